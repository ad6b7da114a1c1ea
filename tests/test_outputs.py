"""Moving into place: whatever stops a writer, and when, the old one or the new one is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertflow.errors import ModelError
from bertflow.io.files import MANIFEST, check_replaceable, replaced_folder, staged, write_text

posix = pytest.mark.skipif(sys.platform == "win32", reason="no locks on folders, no signals")
LEFT = ".saved-0123abcd.bertflow"
OLD = ".saved-old.bertflow"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def save(target: Path, text: str) -> None:
    with replaced_folder(target) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "inner").mkdir()
        (folder / "inner" / "b.txt").write_text(text)


def assert_saved(target: Path, text: str) -> None:
    """It is there whole, and nothing lies beside it."""
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    files = {name: data for name, data in contents(target).items() if name != MANIFEST}
    assert files == {"a.txt": text.encode(), "inner": b"", "inner/b.txt": text.encode()}


# Stopped at every step

SCRIPT = '''
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from bertflow.io import vectors
from bertflow.io.files import check_replaceable, replaced_folder

root = Path(sys.argv[1])
TARGET = root / "saved"
COUNTED = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
CLEANING = {"os.remove", "os.rmdir"}
after = {"steps": 0, "stop": 0, "at": ""}


def step(event):
    after["steps"] += 1
    if after["steps"] == after["stop"]:
        after["at"] = event
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt


def hook(event, args):
    made = event == "open" and args[2] & os.O_CREAT
    inside = str(args[0]).startswith(str(root)) if args else False
    if (made or event in COUNTED) and inside or event in CLEANING and args[1] != -1:
        step(event)


def half_by_half(self, data, *_, **__):
    data = data.encode() if isinstance(data, str) else data
    with self.open("wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        step("write")
        file.write(data[len(data) // 2 :])
    step("written")


Path.write_text = Path.write_bytes = half_by_half


def folder(text):
    with replaced_folder(TARGET) as place:
        (place / "a.txt").write_text(text)
        (place / "inner").mkdir()
        (place / "inner" / "b.txt").write_text(text)
        (place / "empty").mkdir()


def rows(text):
    def chunks():
        for _ in range(3):
            step("chunk")
            yield np.frombuffer(text.encode(), dtype=np.uint8)[None]

    vectors._write(TARGET, (3, len(text)), np.dtype(np.uint8), chunks())


def there():
    if TARGET.is_file():
        return TARGET.read_bytes()
    return {str(p.relative_to(TARGET)): p.is_file() and p.read_bytes() for p in TARGET.rglob("*")}


def wiped():
    shutil.rmtree(root)
    root.mkdir()


def stopped(write, n):
    """Write in a process that is stopped at step n: whether there was such a step, and where."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.addaudithook(hook)
            after["steps"], after["stop"] = 0, n
            write("new")
            code = 0
        except KeyboardInterrupt:
            os.write(writer, after["at"].encode())
            code = 2
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        at = said.read()
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 2 if how == "interrupt" else -signal.SIGKILL), (write, n, code)
    return code != 0, at


for how, write, first in [
    ("kill", folder, None),
    ("kill", folder, "old"),
    ("kill", rows, "old"),
    ("interrupt", folder, "old"),
    ("interrupt", rows, None),
]:
    wiped()
    write("new")
    new = there()
    wiped()
    old = None
    if first:
        write(first)
        old = there()
    n = 0
    while True:
        n += 1
        wiped()
        if first:
            write(first)
        was, at = stopped(write, n)
        if not was:
            break
        where = (how, write.__name__, first, n, at)
        if how == "kill" and write is folder:
            check_replaceable(TARGET)
        found = there() if TARGET.exists() else None
        assert found == new or found == old, (where, found)
        beside = sorted(path.name for path in root.iterdir() if path != TARGET)
        assert how == "kill" or not beside or at in CLEANING, (where, beside)
        write("new")
        assert there() == new, where
        assert list(root.iterdir()) == [TARGET], (where, list(root.iterdir()))
    assert n > 6, (write, n)
'''


@posix
@pytest.mark.slow
def test_stopped_at_any_step_the_old_or_the_new_is_there_and_a_rerun_cleans_up(tmp_path):
    (tmp_path / "root").mkdir()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_is_replaced_whole(tmp_path):
    save(tmp_path / "saved", "old")
    save(tmp_path / "saved", "new")
    assert_saved(tmp_path / "saved", "new")


@pytest.mark.parametrize("failing", [1, 2])
def test_failure_while_moving_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch, failing):
    save(tmp_path / "saved", "old")
    rename, calls = Path.rename, []

    def rename_until(self, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_until)
    with pytest.raises(ModelError, match="saved: No space left"):
        save(tmp_path / "saved", "new")
    assert len(calls) >= failing
    assert_saved(tmp_path / "saved", "old")


# What a killed process left


def killed_between_the_renames(home: Path) -> None:
    save(home / "saved", "old")
    (home / "saved").rename(home / OLD)


def test_a_folder_that_was_moved_away_comes_back(tmp_path):
    killed_between_the_renames(tmp_path)
    check_replaceable(tmp_path / "saved")
    assert_saved(tmp_path / "saved", "old")


def test_it_comes_back_before_a_failure_too(tmp_path):
    killed_between_the_renames(tmp_path)
    with pytest.raises(KeyError), replaced_folder(tmp_path / "saved"):
        raise KeyError
    assert_saved(tmp_path / "saved", "old")


@posix
@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_process_was_filling_is_removed_by_the_next(tmp_path, folder):
    if folder:
        (tmp_path / LEFT / "inner").mkdir(parents=True)
        (tmp_path / LEFT / "inner" / "x").touch()
        save(tmp_path / "saved", "new")
    else:
        (tmp_path / LEFT).touch()
        write_text(tmp_path / "saved", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_being_filled_stays(tmp_path, folder):
    with (
        staged(tmp_path / "saved", folder=folder) as first,
        staged(tmp_path / "saved", folder=folder) as second,
    ):
        write_text(tmp_path / "saved", "new")
        assert first.exists()
        assert second.exists()
        assert first != second
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_what_only_looks_similar_stays(tmp_path):
    names = [
        ".saved-0123abcd",
        ".saved.old",
        ".saved-0123abcd.bertflow.txt",
        ".saved-more-0123abcd.bertflow",
        ".sXved-0123abcd.bertflow",
    ]
    for name in names:
        (tmp_path / name).write_text("mine")
    save(tmp_path / "saved", "new")
    write_text(tmp_path / "file", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "saved", "file"])


@posix
def test_without_locks_nothing_is_taken_for_stale_and_all_else_works(tmp_path, monkeypatch):
    import fcntl

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    killed_between_the_renames(tmp_path)
    (tmp_path / LEFT).mkdir()
    save(tmp_path / "saved", "new")
    (tmp_path / LEFT).rmdir()
    assert_saved(tmp_path / "saved", "new")


# Names and modes


@posix
@pytest.mark.parametrize(("mask", "modes"), [(0o022, (0o755, 0o644)), (0o077, (0o700, 0o600))])
def test_modes_are_those_of_the_process(tmp_path, mask, modes):
    before = os.umask(mask)
    try:
        save(tmp_path / "saved", "new")
        write_text(tmp_path / "file", "new")
    finally:
        os.umask(before)
    found = [(tmp_path / name).stat().st_mode & 0o777 for name in ["saved", "file"]]
    assert tuple(found) == modes


def test_the_folder_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    save(tmp_path / "runs" / "first", "old")
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "first", target_is_directory=True)
    save(tmp_path / "latest", "new")
    assert_saved(tmp_path / "runs" / "first", "new")
    assert (tmp_path / "latest").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_where_a_link_leads_to_nothing_the_folder_is_made(tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "first", target_is_directory=True)
    save(tmp_path / "latest", "new")
    assert_saved(tmp_path / "runs" / "first", "new")
