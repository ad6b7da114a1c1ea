"""Files and folders that are written whole or not at all.

New content is written beside its target under a hidden name, and then moved into place.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

from filelock import FileLock, Timeout

from bertflow.errors import BertflowError, InputError, ModelError
from bertflow.io.reading import path_of, read_json

log = logging.getLogger(__name__)

PERMISSIONS = 0o777
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


def reason_of(error: Exception) -> str:
    """The reason that an error gives, on one readable line."""
    said = (isinstance(error, OSError) and error.strerror) or str(error).strip().split("\n")[0]
    if system := re.search(r"\(os error (\d+)\)", said):  # As libraries in Rust say it.
        said = os.strerror(int(system[1]))
    return said or type(error).__name__


@contextmanager
def writing(target: str | Path) -> Iterator[None]:
    """Turn the errors of a file system into a ModelError that names the target."""
    path_of(target)
    try:
        yield
    except BertflowError:
        raise
    except Exception as error:
        # safetensors and tokenizers are written in Rust and raise other classes than OSError.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise ModelError(f"cannot write {target}: {reason_of(error)}") from error


def followed(target: Path) -> Path:
    """The target of a link; other paths unchanged."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


# Locks and temporary names


@contextmanager
def sole_writer(output: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from writing an output while inside; a ModelError if one does already.

    The lock is a file that is removed again; a killed process holds none.
    """
    held = FileLock(lock)
    with writing(output):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout:
            raise ModelError(
                f"cannot write {output}: another process is writing it ({lock}); wait for it, or "
                "give another output"
            ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # While the lock is held, so that a waiting process sees it is gone.
        held.release()


@contextmanager
def staged(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """Make an empty file or folder beside the target, to be filled and moved to its place.

    What is not moved by the end is removed, and so is what killed processes left for this target;
    what another process is filling is locked, and stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent, re.escape(target.name))
    staging = target.parent / f".{target.name}-{secrets.token_hex(4)}.bertflow"
    try:
        if folder:
            staging.mkdir()
        else:
            staging.touch(exist_ok=False)
        with _locked(staging):
            yield staging
    finally:
        remove(staging)


def remove_stale(folder: Path, name: str) -> None:
    """Remove left-overs of killed processes, for targets whose names match an expression."""
    stale = re.compile(rf"\.(?:{name})-[0-9a-f]{{8}}\.bertflow")
    for path in folder.glob(".*.bertflow"):
        if stale.fullmatch(path.name):
            with suppress(OSError), _locked(path) as locked:
                if locked:
                    remove(path)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock a file or folder; False if another process holds it, or locks do not work."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle, locked = os.open(path, os.O_RDONLY), False
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, link or folder, and ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


# Files


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Give an empty file to fill, which then replaces the target in one move.

    Links are followed, and the permissions of the old file stay, but the owner may always write.
    `check_writable` refuses what is no file.
    """
    target = followed(path)
    with staged(target) as staging:
        if target.exists():  # Before writing: a private file stays private.
            mode = stat.S_IMODE(target.stat().st_mode) & PERMISSIONS | stat.S_IWUSR
            # Some network file systems refuse any change of permissions.
            if mode != stat.S_IMODE(staging.stat().st_mode):
                staging.chmod(mode)
        yield staging
        staging.replace(target)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, as `write_bytes` does; lone surrogates are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file, see `placed`. Devices and pipes are written to directly."""
    with writing(path):
        path = Path(path)
        if _is_special(path):
            path.write_bytes(content)
        else:
            with placed(path) as staging:
                staging.write_bytes(content)
    log.debug("wrote %s, %d bytes", path, len(content))


def save_or_keep(output: Path, *saves: Callable[[Path], object]) -> None:
    """Save to a file or folder; where that fails, save into a new temporary folder instead.

    Where the first of `saves` fails there, too, the next one is tried, which may save less.

    Raises:
        ModelError: It could not be saved to the output; the message says why, and where it is.
    """
    try:
        saves[0](output)
    except Exception as error:  # Of any kind: the result must not be lost.
        known = isinstance(error, BertflowError)
        why = str(error) if known else f"{output}: {reason_of(error)}"
        for save in saves:
            with suppress(Exception):
                place = Path(tempfile.mkdtemp(prefix="bertflow-")) / output.name
                save(place)
                why = f"{why}; what was computed is in {place}"
                break
        raise ModelError(why) from error


def check_writable(path: str | Path, *, rows: bool = False) -> None:
    """Refuse a file that cannot be written, before any work; `rows` need a regular file."""
    with writing(path):
        path = Path(path)
        faults = {
            "stands for standard output": str(path) == "-",
            "is a folder": path.is_dir(),
            "may not be written to": path.exists() and not os.access(path, os.W_OK),
            "is a device or pipe, which no file can take the place of": rows and _is_special(path),
        }
        if fault := next((fault for fault, there in faults.items() if there), None):
            raise ModelError(f"cannot write {path}: it {fault}; give a file")
        if not _is_special(path):
            with staged(followed(path)):  # To find out early whether that works.
                pass


def _is_special(path: Path) -> bool:
    """Whether the path is there, but neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


# Unfinished work beside an output


def part_path(output: Path) -> Path:
    """The path of `part_folder`: beside the output, or beside the target of a link."""
    whole = followed(output).absolute()
    return whole.with_name(f".{whole.name}.part")


@contextmanager
def part_folder(output: Path) -> Iterator[Path]:
    """Give the folder beside an output that holds unfinished work, to one process at a time.

    It stays as long as it holds something.
    """
    folder = part_path(output)
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


# Folders


@contextmanager
def replaced_folder(target: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then replaces the target.

    The target may only hold what was written this way before, of which a folder keeps a list. A
    process that is killed while it moves the folders leaves the old one under a hidden name; the
    next one brings it back.
    """
    check_replaceable(target)
    target = followed(Path(target))
    with writing(target), staged(target, folder=True) as staging:
        yield staging
        (staging / MANIFEST).write_text(json.dumps(_entries(staging)) + "\n", encoding="utf-8")
        check_replaceable(target)  # Again: others may have added files meanwhile.
        if target.exists():
            target.rename(_old(target))
        try:
            staging.rename(target)
        finally:
            _settle(target)


def check_replaceable(target: str | Path) -> None:
    """Refuse a folder that cannot be replaced, before any work is done for it."""
    with writing(target):
        target = followed(Path(target))
        _settle(target)
        if target.exists():
            names = foreign_entries(target)
            foreign = [f"holds {name}, which bertflow did not write there" for name in names]
            if faults := foreign if target.is_dir() else ["is a file"]:
                raise ModelError(
                    f"{target} {faults[0]}; give a folder that is empty or not there yet"
                )
            _check_movable(target)
        with staged(target, folder=True):
            pass


def _check_movable(folder: Path) -> None:
    here = Path.cwd().resolve()
    mounted = os.path.ismount(folder)  # noqa: PTH214 - of all systems
    if mounted or Path(os.path.realpath(folder)) in (here, *here.parents):
        raise ModelError(
            f"cannot write {folder}: it is a mount point, or is or holds the current folder, which "
            f"no other folder can take the place of; give one in it, such as {folder / 'model'}"
        )


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
    """The files in a folder that `replaced_folder` did not write."""
    try:
        listed = read_json(folder / MANIFEST)
    except ModelError:  # There is no list.
        listed = []
    ours = [MANIFEST, *(listed if isinstance(listed, list) else [])]
    return [name for name in _entries(folder) if name not in ours]


def _entries(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


@contextmanager
def merged_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, whose files are then moved into a folder that holds anything.

    Each file is the old one or the new one; a process that is killed meanwhile leaves some of both.
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


# Outputs and inputs


def check_apart(
    outputs: Mapping[str, str | Path | None], inputs: Iterable[tuple[str, str | Path]]
) -> None:
    """Refuse outputs that are each other or an input, lie in an input, or hold one.

    Links, hard links and other spellings of a path count as the same file. Both have names for
    messages; an output that is None, and an input that does not exist, are ignored.
    """
    places = {name: Path(path) for name, path in outputs.items() if path is not None}
    for (name, first), (other, second) in combinations(places.items(), 2):
        if _is_same(first, second):
            raise InputError(f"{name} and {other} are both {first}; give each a place of its own")
    for read, path in inputs:
        for name, output in places.items():
            if _overlap(output, Path(path)):
                raise InputError(
                    f"{name} {output} overlaps with what {read} reads ({path}); give another place"
                )


def _overlap(output: Path, path: Path) -> bool:
    with suppress(OSError, ValueError):  # Names on the hub may be invalid paths.
        if path.exists():
            one, other = Path(os.path.realpath(output)), Path(os.path.realpath(path))
            return one in other.parents or other in one.parents or _is_same(output, path)
    return False


def _is_same(first: Path, second: Path) -> bool:
    """Whether two paths, existing or not, are one file or folder; False for devices and pipes."""
    if first.exists() and second.exists():
        return first.samefile(second) and not _is_special(first)
    return os.path.realpath(first) == os.path.realpath(second)
