"""Files and folders that are written whole or not at all.

New content is written beside its target under a hidden name, and then moved to its place. Failures
are a ModelError that names the target.
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

from bertflow.errors import BertflowError, InputError, ModelError, shown
from bertflow.io.reading import read_json

log = logging.getLogger(__name__)

PERMISSIONS = 0o777
LONGEST_REASON = 500
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
    said = (isinstance(error, OSError) and error.strerror) or str(error).split("\n")[0]
    if system := re.search(r"\(os error (\d+)\)", said):  # As libraries in Rust say it.
        said = os.strerror(int(system[1]))
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} …"


@contextmanager
def writing(target: str | Path) -> Iterator[None]:
    """Turn the errors of a file system into a ModelError that names the target."""
    if not isinstance(target, str | os.PathLike) or "\0" in str(target):
        raise ModelError(f"cannot write {shown(target)}: it is no path; give the name of one")
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
    """Keep other processes from writing an output while inside.

    The lock is a file, which is made and removed again. It ends with its process, so a killed
    process leaves none. If another process holds it, a ModelError says so.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     output = Path(folder, "out")
        ...     with sole_writer(output, Path(folder, ".out.lock")):
        ...         written = output.write_text("mine")
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['out']
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

    Anything not moved by the end is removed. Left-overs of killed processes for the same target are
    removed first; files that another process is filling are locked, and stay.
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
    """Lock a file or folder. Gives False if another process holds it, or locks do not work."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except OSError:
        locked = False
    try:
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

    A link is followed: its target is replaced, and the link stays. The permissions of the old file
    stay, too. A device or pipe is refused.
    """
    _check_regular(path)
    target = followed(path)
    with staged(target) as staging:
        keep_permissions(target, staging)  # Before writing: a private file stays private.
        yield staging
        staging.replace(target)


def keep_permissions(old: Path, new: Path) -> None:
    """Give a new file the permissions of the old one, if any; the owner may always write."""
    if not old.exists():
        return
    mode = stat.S_IMODE(old.stat().st_mode) & PERMISSIONS | stat.S_IWUSR
    # Some network file systems refuse any change of permissions, so do not ask without need.
    if mode != stat.S_IMODE(new.stat().st_mode):
        new.chmod(mode)


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

    Args:
        output: Where to save.
        saves: Functions that save to a path. Where the first fails in the temporary folder, too,
            the next one is tried there, which may save less.

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
    """Refuse a file that cannot be written, before any work is done for it.

    Args:
        path: The file; an existing device or pipe only if `rows` is False.
        rows: Whether it is written row by row, which needs a regular file.
    """
    with writing(path):
        path = Path(path)
        if str(path) == "-":
            raise ModelError("cannot write -: it stands for standard output; give a file")
        if path.is_dir():
            raise ModelError(f"cannot write {path}: it is a folder; give a file")
        if rows:
            _check_regular(path)
        if path.exists() and not os.access(path, os.W_OK):
            raise ModelError(
                f"cannot write {path}: it is there and may not be written to; give another file, "
                "or the right to write"
            )
        if not _is_special(path):
            _try_out(followed(path))


def _try_out(target: Path, *, folder: bool = False) -> None:
    """Make and remove what `staged` makes, to find out early whether that works."""
    with _no_new_folders(target), staged(target, folder=folder):
        pass


@contextmanager
def _no_new_folders(path: Path) -> Iterator[None]:
    """Afterwards remove the parent folders of a path that were made inside and are empty."""
    made = [parent for parent in path.absolute().parents if not parent.exists()]
    try:
        yield
    finally:
        for parent in made:
            with suppress(OSError):  # It holds something.
                parent.rmdir()


def _is_special(path: Path) -> bool:
    """Whether the path is there, but neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_regular(path: Path) -> None:
    if _is_special(path):
        raise ModelError(
            f"cannot write {path}: it is a device or pipe, which no file can take the place of; "
            "give a file"
        )


# Unfinished work beside an output


def part_path(output: Path) -> Path:
    """The path of `part_folder`: beside the output, or beside the target of a link."""
    whole = followed(output).absolute()
    return whole.with_name(f".{whole.name}.part")


@contextmanager
def part_folder(output: Path) -> Iterator[Path]:
    """Give the folder beside an output that holds unfinished work, to one process at a time.

    The folder stays as long as it holds something; `clear_part` empties it.
    """
    folder = part_path(output)
    with _no_new_folders(folder):
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

    The target must not exist, be empty, or hold only files that were written this way before; a
    folder keeps a list of them. If filling fails, the target stays as it was. A process that is
    killed while it moves the folders leaves the old one under a hidden name; the next process
    brings it back.
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
    """Refuse a folder that cannot be replaced, before any work is done for it.

    Another folder is made beside it and removed again, to find out whether that works.
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
        _try_out(target, folder=True)


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
    """Relative paths of the files and links in a folder."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


@contextmanager
def merged_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, whose files are then moved into an existing folder.

    The target may hold anything. Each file is the old one or the new one, never half. A process
    that is killed while it moves them leaves some of both. If filling fails, none is moved.
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
    """Refuse outputs that are the same as each other or as an input, which would be lost.

    Links, hard links and other spellings of a path count as the same file.

    Args:
        outputs: Files or folders to write, by their names in messages; None is ignored.
        inputs: Pairs of a name for messages and a file or folder to read. Paths that do not exist,
            such as names on the hub, are ignored.

    Raises:
        InputError: Two outputs are the same; or an output is an input, lies in an input folder, or
            is a folder that holds an input.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "pairs.tsv"
        >>> _ = file.write_text("A cat,A dog,1")
        >>> check_apart({"--json": file}, [("--pairs", file)])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        bertflow.errors.InputError: --json .../pairs.tsv is what --pairs reads; ...
    """
    places = {name: Path(path) for name, path in outputs.items() if path is not None}
    for (name, first), (other, second) in combinations(places.items(), 2):
        if _is_same(first, second):
            raise InputError(f"{name} and {other} are both {first}; give each a place of its own")
    for read, path in inputs:
        for name, output in places.items():
            if loss := _loss(output, Path(path), read):
                raise InputError(f"{name} {output} {loss}")


def _loss(output: Path, path: Path, read: str) -> str:
    """How writing an output would destroy an input, and the remedy; empty if it would not."""
    with suppress(OSError, ValueError):  # Names on the hub may be invalid paths.
        if not path.exists():
            return ""
        if _is_same(output, path):
            return f"is what {read} reads; give another, or it would be lost"
        if _is_within(output, path):
            return f"is in the folder that {read} reads ({path}); give a place outside of it"
        if _is_within(path, output):
            return f"holds what {read} reads ({path}); give another, or it would be lost"
    return ""


def _is_same(first: Path, second: Path) -> bool:
    """Whether two paths, existing or not, are one file or folder; False for devices and pipes."""
    if first.exists() and second.exists():
        return first.samefile(second) and not _is_special(first)
    return os.path.realpath(first) == os.path.realpath(second)


def _is_within(path: Path, folder: Path) -> bool:
    """Whether a path, existing or not, lies in a folder."""
    real = Path(os.path.realpath(path))
    return folder.is_dir() and any(
        parent.exists() and parent.samefile(folder) for parent in real.parents
    )
