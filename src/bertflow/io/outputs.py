"""Folders that are written: replaced whole, and never one that holds something of others."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertflow.errors import BertflowError, ModelError
from bertflow.io.files import (
    followed,
    no_new_folders,
    reason_of,
    remove,
    sole_writer,
    staged,
    try_out,
    writing,
)
from bertflow.io.json import read_json

log = logging.getLogger(__name__)

MANIFEST = ".bertflow-files.json"
LOCK = "lock"
# What libraries look for in a model's folder; the first two hold weights.
WEIGHTS_FILES = (
    "model*.safetensors",
    "pytorch_model*.bin",
    "model*.index.json",
    "*model*.bin.*",
    "adapter_*",
)


def part_path(output: Path) -> Path:
    """Where the folder of `part_folder` is: beside what a link leads to."""
    whole = followed(output).absolute()
    return whole.with_name(f".{whole.name}.part")


@contextmanager
def part_folder(output: Path) -> Iterator[Path]:
    """Give the folder beside an output that holds what is done of it, to one process at a time.

    It stays as long as there is something in it; `clear_part` ends that.

    Raises:
        ModelError: Another process is writing the output, or the folder cannot be made.
    """
    folder = part_path(output)
    with no_new_folders(folder):
        try:
            with sole_writer(output, folder / LOCK):
                yield folder
        finally:
            with suppress(OSError):  # It holds something.
                folder.rmdir()


def clear_part(folder: Path) -> None:
    """Remove what is in a folder of `part_folder`, except its lock."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK:
                remove(path)


@contextmanager
def replaced_folder(target: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then takes the target's place.

    If filling fails, the target stays what it was. A process that is killed while it moves the
    folders leaves the old one under a hidden name; the next one brings it back.

    Args:
        target: Must not exist, be empty, or hold nothing but what was written this way before: a
            list of that is kept in the folder.

    Raises:
        ModelError: The target holds something else, or cannot be written.
    """
    check_replaceable(target)
    target = followed(Path(target))
    with writing(target), staged(target, folder=True) as staging:
        yield staging
        (staging / MANIFEST).write_text(json.dumps(_entries(staging)) + "\n", encoding="utf-8")
        check_replaceable(target)  # Again: others may have put something there meanwhile.
        _take_place(staging, target)


def check_replaceable(target: str | Path) -> None:
    """Refuse a target that holds something that is not ours, before any work is done for it.

    A folder is made beside the target and removed again: what cannot be made then cannot be made
    later.

    Raises:
        ModelError: It does, or it cannot be written, or not be moved.
    """
    with writing(target):
        target = followed(Path(target))
        _settle(target)
        if target.exists():
            if not target.is_dir():
                raise ModelError(
                    f"{target} is a file; give a folder that is empty or not there yet"
                )
            if foreign := foreign_entries(target):
                raise ModelError(
                    f"{target} holds {foreign[0]}, which bertflow did not write there; "
                    "give a folder that is empty or not there yet"
                )
            _check_movable(target)
        try_out(target, folder=True)


def _check_movable(folder: Path) -> None:
    reason = ""
    if os.path.ismount(folder):  # noqa: PTH214 - of all systems
        reason = "is a mount point"
    with suppress(OSError):  # The current folder may have been removed.
        if Path(os.path.realpath(folder)) in [(here := Path.cwd().resolve()), *here.parents]:
            reason = "is or holds the current folder"
    if reason:
        raise ModelError(
            f"cannot write {folder}: it {reason}, which no other folder can take the place of; "
            f"give a folder in it, such as {folder / 'model'}"
        )


def _take_place(staging: Path, target: Path) -> None:
    """Move a folder to where another is or was."""
    if target.exists():
        target.rename(_old(target))
    try:
        staging.rename(target)
    finally:
        _settle(target)


def _settle(target: Path) -> None:
    """End a replacement, whichever of its steps came last: one folder, under the target's name."""
    old = _old(target)
    if old.exists():
        if target.exists():
            remove(old)
        else:
            old.rename(target)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}-old.bertflow"


def foreign_entries(folder: Path) -> list[str]:
    """The entries of a folder that `replaced_folder` did not write there.

    Raises:
        OSError: It cannot be read.
    """
    ours = [MANIFEST, *_manifest(folder)]
    return [name for name in _entries(folder) if name not in ours]


def _manifest(folder: Path) -> list[str]:
    """The list that was written into a folder with its files; empty if it is not one of ours."""
    try:
        names = read_json(folder / MANIFEST)
    except ModelError:
        return []
    good = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if good else []


def _entries(folder: Path) -> list[str]:
    """Files, links and empty folders below a folder, if it is there; a folder's ends in a slash."""
    names, folders = [], [folder] if folder.exists() else []
    for home in folders:
        inside = list(home.iterdir())
        if not inside and home != folder:
            names.append(f"{home.relative_to(folder).as_posix()}/")
        for path in inside:
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            else:
                names.append(path.relative_to(folder).as_posix())
    return sorted(names)


@contextmanager
def merged_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, whose files then take their places in one that is there.

    Each is the old one or the new one, never half; a process that is killed while they are moved
    leaves some of both. If filling fails, none is moved.

    Args:
        target: A folder, whatever it holds.

    Raises:
        ModelError: It cannot be written.
    """
    target = followed(target)
    with writing(target), staged(target, folder=True) as staging:
        yield staging
        for path in sorted(staging.rglob("*")):
            place = target / path.relative_to(staging)
            if path.match(WEIGHTS_FILES[0]) or path.match(WEIGHTS_FILES[1]):
                _remove_other_weights(path.parent, place.parent)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                path.replace(place)


def _remove_other_weights(new: Path, old: Path) -> None:
    """Remove weights of an earlier model, which libraries would load instead of the new ones."""
    for pattern in WEIGHTS_FILES:
        for path in old.glob(pattern):
            if not (new / path.name).exists():
                path.unlink()


def save_or_keep(
    output: Path,
    *saves: Callable[[Path], Any],
    when: Callable[[Exception], bool] = lambda error: True,
) -> None:
    """Save what was computed; where that fails, save it into a new temporary folder.

    Args:
        output: Where to, a file or folder.
        saves: What saves to the place it is given. Where the first of them fails in the temporary
            folder, too, the next is tried there: it may save less.
        when: Whether an error is one of saving; others are raised as they are.

    Raises:
        ModelError: It could not be saved to the output; the message says why, and where it is.
    """
    try:
        saves[0](output)
        return
    except Exception as error:  # Whatever it is, what was computed is there.
        if not when(error):
            raise
        failed = error
    why = str(failed) if isinstance(failed, BertflowError) else f"{output}: {reason_of(failed)}"
    for save in saves:
        try:
            home = Path(tempfile.mkdtemp(prefix="bertflow-"))
        except OSError:
            break
        try:
            save(home / output.name)
        except Exception as error:
            log.info("%s cannot be written either: %s", home, error)
            remove(home)
            continue
        raise ModelError(f"{why}; what was computed is in {home / output.name}") from failed
    raise ModelError(f"{why}; nor can a temporary folder be written") from failed
