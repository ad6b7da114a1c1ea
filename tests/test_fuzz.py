"""Files from strangers, by the thousand: `python -m benchmarks.fuzz` in short, and its teeth."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest
from benchmarks import fuzz
from benchmarks.fuzz_readers import Reader, readers
from benchmarks.mutations import GRAMMARS, mutated

from bertflow.errors import InputError


@pytest.fixture(scope="module")
def everyone(tmp_path_factory) -> list[Reader]:
    return readers()


def faults(found: dict[str, fuzz.Tally]) -> dict[str, list[str]]:
    return {name: list(one.failures) for name, one in found.items() if one.failures}


def short(everyone, each: int, seed: int, tmp_path: Path) -> dict[str, fuzz.Tally]:
    shares = sum(one.share for one in everyone)
    with fuzz.bounded():
        return fuzz.fuzz(everyone, round(each * shares), seed, tmp_path)


def test_no_reader_stumbles_over_some_damaged_files(everyone, tmp_path):
    found = short([one for one in everyone if one.share >= 0.5], 12, 1, tmp_path)
    assert faults(found) == {}
    assert sum(one.refused for one in found.values()) > 100


@pytest.mark.torture
@pytest.mark.nightly
def test_no_reader_stumbles_over_many_damaged_files(everyone, tmp_path):
    found = short(everyone, 300, 2, tmp_path)
    assert faults(found) == {}
    # Each takes some and refuses some; what stopped work leaves is begun anew, not refused.
    for reader in everyone:
        assert found[reader.name].accepted, reader.name
        assert found[reader.name].refused or reader.name == "encode, stopped", reader.name


def test_the_same_seed_gives_the_same_inputs(everyone):
    content = b'{"a": 1}\n'
    first, second = ([mutated(Random(n), content, [content]) for n in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 30
    for grammar in GRAMMARS:
        assert grammar(Random(3)) == grammar(Random(3))


def seen(tmp_path, read, *, files=None, named=True) -> list[str]:
    """The faults of one reader."""
    reader = Reader(name="one", files=files or {"x": b"a"}, read=read, named=named)
    with fuzz.bounded():
        found = fuzz.fuzz([reader], 5, 0, tmp_path)
    return sorted(found["one"].failures)


def fails(error):
    def read(folder):
        raise error

    return read


def refuses(message):
    def read(folder):
        if (folder / "x").read_bytes() != b"a":
            raise InputError(message.format(folder=folder))

    return read


def test_what_must_not_be_is_found(tmp_path, monkeypatch):
    assert seen(tmp_path, lambda folder: None) == []
    assert seen(tmp_path, refuses("{folder} is bad")) == []
    assert seen(tmp_path, fails(KeyError("x"))) == ["KeyError in read"]
    assert seen(tmp_path, fails(MemoryError())) == ["MemoryError in read"]
    assert seen(tmp_path, refuses("bad")) == ["an error that names no file"]
    assert seen(tmp_path, refuses("bad"), named=False) == []
    assert seen(tmp_path, refuses("{folder} is <class 'x'>")) == ["an error that shows '<class'"]
    assert seen(tmp_path, refuses("")) == ["an error without a message"]
    assert seen(tmp_path, lambda folder: os.write(2, b"x")) == ["something was printed"]
    assert seen(tmp_path, lambda folder: warnings.warn("x", stacklevel=1)) == [
        "UserWarning in <lambda>"
    ]
    assert seen(tmp_path, fails(InputError("x")), named=False) == ["a whole file is refused"]
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)

    def hangs(folder):
        end = time.process_time() + 5
        while time.process_time() < end:
            pass

    assert seen(tmp_path, hangs) == ["OverdueError in overdue"]
    monkeypatch.setattr(fuzz, "MEMORY", 2**28)
    assert seen(tmp_path, lambda folder: np.ones(2**30)) in (
        ["_ArrayMemoryError in ones"],
        ["MemoryError in ones"],
    )


def test_what_fails_is_kept_with_its_traceback(tmp_path):
    seen(tmp_path, fails(KeyError("why")))
    (place,) = tmp_path.iterdir()
    assert (place / "x").exists()
    assert "KeyError: 'why'" in (place / "traceback.txt").read_text()
