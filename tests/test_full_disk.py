"""A disk without room: one line that names what could not be written, the old output, and going on.

Everywhere else files are limited in size instead (`benchmarks.torture`, its way "full").
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import tree
from task_files import write_tasks

SIZE = 4 * 2**20
# Room in kilobytes, from hardly any to nearly enough.
ROOMS = (0, 12, 120)
# What is kept, and where the line says it is.
KEPT = {
    "encode": r"; what is done is kept in \S+\.z\.npy\.part, and the same command goes on from it",
    "fit": r"(; what was computed is in \S+)?(; the same command goes on from \S+\.part/\S+)?",
    "finetune": r"; the same command goes on from \S+\.checkpoints",
}
TIMES = ("seconds", "time", "resumed_at")


@pytest.fixture
def disk(tmp_path: Path, tiny_bert: Path, tiny_sentences: list[str], monkeypatch) -> Iterator[Path]:
    """A small file system to work in, which can be filled; what is read lies elsewhere."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if not sys.platform.startswith("linux") or shutil.which("mount") is None:
        pytest.skip("no small file system can be mounted here")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    (tmp_path / "corpus.txt").write_text("\n".join(tiny_sentences) + "\n")
    write_tasks(tmp_path / "data", "stsb", "snli")
    monkeypatch.chdir(place)
    try:
        yield place
    finally:
        monkeypatch.undo()
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, room: int) -> Path:
    """Leave so many kilobytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        left = os.statvfs(disk)
        file.write(bytes(left.f_bavail * left.f_frsize - 1024 * room))
    return filler


def files(folder: Path) -> dict[str, bytes]:
    """What is in an output, but for what is kept to go on from."""
    return {
        name: content
        for name, content in tree(folder).items()
        if content and not name.startswith(".z.npy.part")
    }


def timeless(files: dict[str, bytes]) -> dict[str, object]:
    """Without what tells the time."""
    found: dict[str, object] = {}
    for name, content in files.items():
        if name.endswith("finetuning.json") or "/records/" in name and name.endswith(".json"):
            about = json.loads(content)
            found[name] = {key: value for key, value in about.items() if key not in TIMES}
        elif not name.endswith("vectors/about.json"):
            found[name] = content
    return found


def commands(tmp_path: Path, tiny_bert: Path) -> dict[str, list[object]]:
    text = ["--corpus", tmp_path / "corpus.txt"]
    data = ["--data", tmp_path / "data"]
    flow = ["--calibrator", "flow", "--set", "width=8"]
    return {
        "fit": ["fit", "--encoder", tiny_bert, *text, *flow, "--output", "out"],
        "encode": ["encode", tiny_bert, *text, "--output", "out/z.npy"],
        "finetune": ["finetune", "--encoder", tiny_bert, "--nli", "snli", *data, "--output", "out"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "cache", ["cache elsewhere", pytest.param("cache there", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    "name", ["fit", "encode", pytest.param("finetune", marks=pytest.mark.nightly)]
)
def test_without_room_it_is_one_line_the_old_one_stays_and_with_room_it_goes_on(
    disk: Path,
    tmp_path: Path,
    tiny_bert: Path,
    cli: Callable,
    done: Callable,
    monkeypatch,
    name,
    cache,
):
    command = commands(tmp_path, tiny_bert)[name]
    monkeypatch.setenv("BERTFLOW_CACHE", str((tmp_path if "else" in cache else disk) / "cache"))
    seed = ["--max-length", 4] if name == "encode" else ["--random-state", 5]
    done(*command, *seed)
    old = tree(disk / "out")
    done(*command)
    new = timeless(tree(disk / "out"))
    failed = 0
    for room in ROOMS:
        shutil.rmtree(disk / "out")
        shutil.rmtree(os.environ["BERTFLOW_CACHE"], ignore_errors=True)
        for path, content in old.items():
            target = disk / "out" / path
            if content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        filler = fill(disk, room)
        code, _, err = cli(*command)
        filler.unlink()
        if code:
            failed += 1
            *warnings, last = err.splitlines()
            assert code == 1
            assert last.startswith("error: cannot write ")
            assert "out" in last
            _, _, kept = last.partition(": No space left on device")
            assert not kept or re.fullmatch(KEPT[name], kept), last
            parts = list((disk / "out").glob(".z.npy.part/*.npz"))
            assert name != "encode" or bool(kept) == bool(parts)
            assert all("No space left on device" in line for line in warnings), err
            assert files(disk / "out") == {k: v for k, v in old.items() if v}
        done(*command)
        assert timeless(tree(disk / "out")) == new
        beside = {path.name for path in disk.iterdir()}
        assert beside - {"cache"} == {"out"}
    assert failed >= 2


@pytest.mark.slow
def test_records_without_room_are_one_line_and_what_is_finished_is_kept(
    disk: Path, tmp_path: Path, tiny_bert: Path, cli: Callable, done: Callable
):
    command = ["reproduce", "table2", "table5", "--encoder", tiny_bert, "--max-length", 32]
    command += ["--data", tmp_path / "data", "--seeds", 1, "--jobs", 1, "--device", "cpu"]
    done(*command, "--output", tmp_path / "whole")

    def results(folder: Path) -> dict[str, object]:
        return {
            path.name: json.loads(path.read_text())["result"]
            for path in (folder / "records").glob("*.json")
        }

    failed = 0
    for room in (0, 60, 160):
        filler = fill(disk, room)
        code, out, err = cli(*command, "--output", "runs")
        filler.unlink()
        if code:
            failed += 1
            assert code == 1
            assert err.startswith("error: ")
            assert err.count("\n") == 1
            assert "No space left on device" in err
            assert "runs" in err
        done(*command, "--output", "runs")
        assert results(disk / "runs") == results(tmp_path / "whole")
        assert not list(disk.rglob("*.bertflow"))
        shutil.rmtree(disk / "runs")
    assert failed >= 2
