"""Writing folders: replaced as a whole, and only if they hold nothing but our own files."""

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
# Files that libraries load from a model's folder; the first two patterns are weights.
WEIGHTS_FILES = (
    "model*.safetensors",
    "pytorch_model*.bin",
    "model*.index.json",
    "*model*.bin.*",
    "adapter_*",
)


def part_path(output: Path) -> Path:
    """The path of `part_folder`: beside the output, or beside the target of a link."""
    whole = followed(output).absolute()
    return whole.with_name(f".{whole.name}.part")


@contextmanager
def part_folder(output: Path) -> Iterator[Path]:
    """Give the folder beside an output that holds unfinished work, to one process at a time.

    The folder stays as long as it holds something; `clear_part` empties it.

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
    """Remove everything in a `part_folder` except its lock."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK:
                remove(path)


@contextmanager
def replaced_folder(target: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then replaces the target.

    If filling fails, the target stays as it was. A process that is killed while it moves the
    folders leaves the old one under a hidden name; the next process brings it back.

    Args:
        target: Must not exist, be empty, or hold only files that were written this way before. The
            folder keeps a list of them.

    Raises:
        ModelError: The target holds something else, or cannot be written.
    """
    check_replaceable(target)
    target = followed(Path(target))
    with writing(target), staged(target, folder=True) as staging:
        yield staging
        (staging / MANIFEST).write_text(json.dumps(_entries(staging)) + "\n", encoding="utf-8")
        check_replaceable(target)  # Again: others may have added files meanwhile.
        _take_place(staging, target)


def check_replaceable(target: str | Path) -> None:
    """Refuse a target that holds other files than ours, before any work is done for it.

    A folder is made beside the target and removed again, to find out early whether that works.

    Raises:
        ModelError: It holds other files, or cannot be written or moved.
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
    """Move a folder to the target's place, which may be taken."""
    if target.exists():
        target.rename(_old(target))
    try:
        staging.rename(target)
    finally:
        _settle(target)


def _settle(target: Path) -> None:
    """Finish or undo an interrupted replacement, so that one folder is left at the target."""
    old = _old(target)
    if old.exists():
        if target.exists():
            remove(old)
        else:
            old.rename(target)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}-old.bertflow"


def foreign_entries(folder: Path) -> list[str]:
    """The entries of a folder that `replaced_folder` did not write.

    Raises:
        OSError: It cannot be read.
    """
    ours = [MANIFEST, *_manifest(folder)]
    return [name for name in _entries(folder) if name not in ours]


def _manifest(folder: Path) -> list[str]:
    """The list of files that was written into a folder; empty if there is none."""
    try:
        names = read_json(folder / MANIFEST)
    except ModelError:
        return []
    good = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if good else []


def _entries(folder: Path) -> list[str]:
    """Relative paths of the files, links and empty folders (ending in a slash) in a folder."""
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
    """Give an empty folder to fill, whose files are then moved into an existing folder.

    Each file is the old one or the new one, never half. A process that is killed while it moves
    them leaves some of both. If filling fails, none is moved.

    Args:
        target: A folder that may hold anything.

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
        saves: Functions that save to a given path. If the first also fails in the temporary folder,
            the next one, which may save less, is tried there.
        when: Whether an error is about saving; other errors are raised as they are.

    Raises:
        ModelError: It could not be saved to the output; the message says why, and where it is now.
    """
    try:
        saves[0](output)
        return
    except Exception as error:  # Of any kind: the result must not be lost.
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
