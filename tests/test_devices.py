"""Encoding by several processes: the same vectors in the same order, and a death is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bertflow import SentenceCache, Whitening, calibrate, load_encoder
from bertflow.encoders import DevicesEncoding, encode_file, parse_devices
from bertflow.encoders import encoding as module
from bertflow.encoders.encoding import Encoding, Group
from bertflow.errors import InputError, ModelError

TWO = ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("2", 0, ["cpu", "cpu"]),
        ("2", 4, ["cuda:0", "cuda:1"]),
        ("all", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        (" cpu , cpu", 0, ["cpu", "cpu"]),
    ],
)
def test_devices_are_named(monkeypatch, text, gpus, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert parse_devices(text) == expected


@pytest.mark.parametrize(
    ("text", "gpus", "said"),
    [
        ("all", 0, "there are 0 GPUs, but devices is all; give a number"),
        ("3", 2, "there are 2 GPUs, but devices is 3"),
        ("0", 0, "there are 0 GPUs, but devices is 0; give a number"),
        ("cpu,", 0, "devices takes all, a number, or names with commas, got 'cpu,'"),
        ("cpu,nonsense", 0, "nonsense"),
    ],
)
def test_devices_that_there_are_not_are_refused(monkeypatch, text, gpus, said):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with pytest.raises(InputError, match=said):
        parse_devices(text)


class Tasks:
    """A queue, and three connections to processes that are none: each gives halves of groups."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.workers = {Connected(self): ("cpu", None) for _ in range(3)}

    def put(self, item: Any) -> None:
        number, sentences, lacking = item
        halves = [part for part in np.array_split(lacking, 2) if len(part)]
        self.waiting += [(number, sentences, part) for part in halves]


class Connected(Connection):
    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks

    def __del__(self) -> None:
        pass

    def recv(self) -> Any:
        # The group that was given out last is done first.
        number, sentences, part = self.tasks.waiting.pop()
        return number, part, np.array([[number, int(sentences[n])] for n in part])


def test_parts_of_every_group_come_back_whoever_is_done_first(monkeypatch):
    tasks = Tasks()
    monkeypatch.setattr(module, "wait", lambda workers: workers[:1])
    groups = [Group([str(n) for n in range(number % 4)]) for number in range(20)]
    for group in groups[4::4]:  # Some of these are there already.
        group.sentences, group.lacking = ["7", "8", "9"], np.array([0, 2])
    whole = [group for group in groups if len(group.lacking)]
    left = {group: set(group.lacking.tolist()) for group in whole}
    taken: list[Group] = []

    def counted() -> Iterator[Group]:
        for group in groups:
            taken.append(group)
            yield group

    for group, places, vectors in module._handed_out(counted(), tasks, tasks.workers):
        assert sum(bool(left.get(one)) for one in taken) <= module.AHEAD * len(tasks.workers)
        if group not in whole:
            assert not len(places)
            continue
        assert set(vectors[:, 0]) == {groups.index(group)}
        assert vectors[:, 1].tolist() == [int(text) for text in group.texts(places)]
        left[group] -= set(places.tolist())
    assert not any(left.values()) and not tasks.waiting


@pytest.mark.slow
def test_processes_give_what_one_gives_and_a_death_is_said(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, pooling="first-last-avg")
    groups = [Group(tiny_sentences[n : n + n % 40]) for n in range(0, 280, 7)]
    left = {id(group): len(group.sentences) for group in groups if group.sentences}
    endless = chain(groups, (Group(["a dog"]) for _ in count()))
    with pytest.raises(ModelError, match=r"^the process on cpu \(\d+\) ended with status -9;"):
        for group, rows, vectors in DevicesEncoding(encoder, TWO).each(endless):
            if id(group) in left:
                expected = Encoding(encoder)(group.sentences)[rows]
                np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)
                left[id(group)] -= len(rows)
            elif not any(left.values()):
                for process in module.multiprocessing.active_children():
                    os.kill(process.pid, signal.SIGKILL)
    assert not any(left.values())


@pytest.mark.nightly
def test_everything_that_streams_takes_devices(tiny_bert, tiny_sentences, tmp_path, cli):
    encoder = load_encoder(tiny_bert)
    for name, devices in (("one.npy", None), ("two.npy", TWO)):
        encode_file(encoder, tiny_sentences * 2, tmp_path / name, devices=devices)
    one, two = (np.load(tmp_path / name) for name in ("one.npy", "two.npy"))
    np.testing.assert_allclose(two, one, rtol=0, atol=2e-6)
    cache = SentenceCache(tmp_path / "cache")
    model = calibrate(encoder, tiny_sentences, Whitening(), devices=TWO, cache=cache)
    alone = calibrate(encoder, tiny_sentences, Whitening(), cache=cache)
    np.testing.assert_array_equal(model.calibrator.mean_, alone.calibrator.mean_)
    (tmp_path / "c.txt").write_text("\n".join(tiny_sentences) + "\n")
    command = ["encode", str(tiny_bert), "--corpus", tmp_path / "c.txt", "--no-cache", "--output"]
    assert cli(*command, tmp_path / "three.npy", "--devices", "2")[0] == 0
    three = np.load(tmp_path / "three.npy")
    np.testing.assert_allclose(three, two[: len(three)], rtol=0, atol=2e-6)
    code, _, err = cli(*command, tmp_path / "three.npy", "--devices", "cpu,")
    assert (code, err.startswith("error: devices takes all, a number")) == (1, True)


@pytest.mark.nightly
def test_a_process_that_dies_is_named_and_what_was_finished_is_kept(
    tiny_bert, tiny_sentences, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertflow.encoders.embedding.group_size", lambda encoder: 20)
    encoder = load_encoder(tiny_bert)
    encode_file(encoder, tiny_sentences, tmp_path / "whole.npy", devices=TWO)

    def kill(done: int, known: int) -> None:
        if done >= 100:
            os.kill(module.multiprocessing.active_children()[0].pid, signal.SIGKILL)
            time.sleep(0.2)

    output = tmp_path / "out.npy"
    with pytest.raises(ModelError, match=r"^the process on cpu \(\d+\) ended with status -9;"):
        encode_file(encoder, tiny_sentences, output, devices=TWO, progress=kill)
    assert not output.exists()
    encoded: list[int] = []
    each = DevicesEncoding.each

    def counted(self: DevicesEncoding, groups: Any) -> Any:
        def noted() -> Iterator[Group]:
            for group in groups:
                encoded.append(len(group.lacking))
                yield group

        return each(self, noted())

    monkeypatch.setattr(DevicesEncoding, "each", counted)
    encode_file(encoder, tiny_sentences, output, devices=TWO)
    assert sum(encoded) <= len(set(tiny_sentences)) - 100
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


class Slow(torch.nn.Module):
    """Half a second a batch."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.5)
        return features


@pytest.mark.nightly
def test_a_kill_costs_some_seconds_of_each_process(tiny_bert):
    """Of two groups of twelve seconds each has given its first half before one is whole."""
    encoder = SentenceTransformer(modules=[*load_encoder(tiny_bert), Slow()], device="cpu")
    texts = [("a dog " * (n + 1)).strip() for n in range(12)] * 2
    groups = [Group(texts), Group(texts)]
    parts = DevicesEncoding(encoder, TWO, batch_size=1).each(groups)
    first, second = next(parts), next(parts)
    parts.close()
    assert first[0] is not second[0]
    assert 0 < len(first[1]) < len(texts) and 0 < len(second[1]) < len(texts)


@pytest.mark.nightly
def test_what_fails_in_a_process_is_said_here_and_all_of_them_end(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    encoder[0].model.embeddings = torch.nn.Identity()
    with pytest.raises(ModelError, match="cannot encode a sentence: Identity.forward"):
        list(DevicesEncoding(encoder, TWO).each([Group(tiny_sentences)]))


@pytest.mark.nightly
def test_who_stops_half_way_leaves_no_process(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    vectors = DevicesEncoding(encoder, TWO).each(Group(tiny_sentences[:9]) for _ in range(50))
    next(vectors)
    there = {Path(f"/proc/{p.pid}") for p in module.multiprocessing.active_children()}
    assert len(there) == 2
    vectors.close()
    assert not any(place.exists() for place in there)


ORPHAN = """
import os, sys
from bertflow import load_encoder
from bertflow.encoders import DevicesEncoding
from bertflow.encoders.encoding import Group
import multiprocessing
if __name__ == "__main__":
    groups = (Group(["a dog"]) for _ in range(10**6))
    for _ in DevicesEncoding(load_encoder(sys.argv[1]), ["cpu", "cpu"]).each(groups):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), 9)
"""


@pytest.mark.nightly
def test_processes_end_with_the_one_that_started_them(tiny_bert, tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    command = [sys.executable, tmp_path / "orphan.py", tiny_bert]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    children = [Path(f"/proc/{pid}") for pid in done.stdout.split()]
    assert len(children) == 2
    for _ in range(100):
        if not any(place.exists() for place in children):
            break
        time.sleep(0.1)
    assert not any(place.exists() for place in children)
