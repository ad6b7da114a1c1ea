"""Writing files, so that each is either completely new or still the old one.

New content is written beside its target under a hidden name, and then moved to its place.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

from filelock import FileLock, Timeout

from bertflow.errors import BertflowError, InputError, ModelError

log = logging.getLogger(__name__)

PERMISSIONS = 0o777
LONGEST_REASON = 500


def reason_of(error: Exception) -> str:
    """The reason that an error gives, on one readable line."""
    said = (isinstance(error, OSError) and error.strerror) or str(error).split("\n")[0]
    if system := re.search(r"\(os error (\d+)\)", said):  # As libraries in Rust say it.
        said = os.strerror(int(system[1]))
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} …"


@contextmanager
def writing(target: str | Path) -> Iterator[None]:
    """Turn the errors of a file system into a ModelError that names the target."""
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
    """The target of a link; for "." and ".." the folder under its real name."""
    named = target.name not in ("", "..") and not target.is_symlink()
    return target if named else Path(os.path.realpath(target))


@contextmanager
def sole_writer(output: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from writing an output while inside.

    The lock ends with its process, so a killed process leaves none.

    Args:
        output: What is written; named in the error.
        lock: The file that is locked, and removed at the end; its folder is made if need be.

    Raises:
        ModelError: Another process is writing the output, or the lock cannot be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
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

    Raises:
        OSError: It cannot be made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent, re.escape(target.name))
    while True:
        staging = target.parent / f".{target.name}-{secrets.token_hex(4)}.bertflow"
        try:
            if folder:
                staging.mkdir()
            else:
                staging.touch(exist_ok=False)
            with _locked(staging) as locked:
                if locked is False or not staging.exists():
                    continue  # Another writer removed it as stale before we locked it.
                yield staging
                return
        finally:
            remove(staging)


def remove_stale(folder: Path, name: str) -> None:
    """Remove the left-overs of killed processes for some targets in a folder.

    Args:
        folder: The folder of the targets.
        name: Regular expression that matches the targets' names.
    """
    stale = re.compile(rf"\.(?:{name})-[0-9a-f]{{8}}\.bertflow")
    with suppress(OSError):
        for path in folder.iterdir():
            if stale.fullmatch(path.name):
                with _locked(path) as locked:
                    if locked:
                        remove(path)


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder. Gives False if another process holds it, None if locks do not work."""
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield None
        return
    locked: bool | None = True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        locked = False if isinstance(error, BlockingIOError) else None
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


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Give an empty file to fill, which then replaces the target in one move.

    A link is followed: its target is replaced, and the link stays. The permissions of the old file
    stay, too.

    Raises:
        OSError: It cannot be made or moved.
        ModelError: The path exists and is no regular file.
    """
    _check_regular(path)
    target = followed(path)
    with staged(target) as staging:
        keep_permissions(target, staging)  # Before writing: a private file stays private.
        yield staging
        staging.replace(target)


def keep_permissions(old: Path, new: Path) -> None:
    """Give a new file the permissions of the old one, if any; the owner may always write.

    Raises:
        OSError: They cannot be changed.
    """
    if not old.exists():
        return
    mode = stat.S_IMODE(old.stat().st_mode) & PERMISSIONS | stat.S_IWUSR
    # Some network file systems refuse any change of permissions, so do not ask without need.
    if mode != stat.S_IMODE(new.stat().st_mode):
        new.chmod(mode)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, as `write_bytes` does; lone surrogates are escaped.

    Raises:
        ModelError: It cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file, which is either completely new or still the old one.

    Links are followed, and permissions stay. Devices and pipes are written to directly.

    Raises:
        ModelError: It cannot be written.
    """
    path = Path(path)
    with writing(path):
        if _is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
                file.write(content)
        else:
            with placed(path) as staging:
                staging.write_bytes(content)
    log.debug("wrote %s, %d bytes", path, len(content))


def check_writable(path: str | Path, *, rows: bool = False) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Args:
        path: The file; an existing device or pipe only if `rows` is False.
        rows: Whether it is written row by row, which needs a regular file.

    Raises:
        ModelError: It is a folder, is read-only, is of another kind, or cannot be made.
    """
    path = Path(path)
    if str(path) == "-":
        raise ModelError("cannot write -: it stands for standard output; give a file")
    with writing(path):
        if path.is_dir():
            raise ModelError(f"cannot write {path}: it is a folder; give a file")
        stream = _is_stream(path) and not rows
        if not stream:
            _check_regular(path)
        if path.exists() and not os.access(path, os.W_OK):
            raise ModelError(
                f"cannot write {path}: it is there and may not be written to; give another file, "
                "or the right to write"
            )
        if not stream:
            try_out(followed(path))


def try_out(target: Path, *, folder: bool = False) -> None:
    """Make and remove what `staged` makes, to find out early whether that works.

    Raises:
        OSError: It cannot be made.
    """
    with no_new_folders(target), staged(target, folder=folder):
        pass


@contextmanager
def no_new_folders(path: Path) -> Iterator[None]:
    """Afterwards remove the parent folders of a path that were made inside and are empty."""
    made = [parent for parent in path.absolute().parents if not parent.exists()]
    try:
        yield
    finally:
        for parent in made:
            with suppress(OSError):  # It holds something.
                parent.rmdir()


def _is_stream(path: Path) -> bool:
    """Whether the path is a device or pipe, to which text can be written."""
    mode = path.stat().st_mode if path.exists() else 0
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ModelError(
            f"cannot write {path}: it is a device or pipe, which no file can take the place of; "
            "give a file"
        )


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
        if is_same(first, second):
            raise InputError(f"{name} and {other} are both {first}; give each a place of its own")
    given = [(name, Path(path)) for name, path in inputs if _is_there(Path(path))]
    for name, output in places.items():
        for read, path in given:
            if how := _touches(output, path):
                raise InputError(f"{name} {output} {how[0].format(read=read, path=path)}; {how[1]}")


def is_same(first: Path, second: Path) -> bool:
    """Whether two paths, existing or not, are one file or folder; False for devices and pipes."""
    with suppress(OSError, ValueError):
        if first.exists() and second.exists():
            return first.samefile(second) and not _is_stream(first)
        return os.path.realpath(first) == os.path.realpath(second)
    return False


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path, existing or not, lies in a folder."""
    with suppress(OSError, ValueError):
        real = Path(os.path.realpath(path))
        return any(parent.exists() and parent.samefile(folder) for parent in real.parents)
    return False


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # Names on the hub may be invalid paths.
        return path.exists()
    return False


def _touches(output: Path, path: Path) -> tuple[str, str] | None:
    """How writing an output would destroy an input, and the remedy; None if it would not."""
    elsewhere = "give another, or it would be lost"
    if is_same(output, path):
        return "is what {read} reads", elsewhere
    if path.is_dir() and is_within(output, path):
        return "is in the folder that {read} reads ({path})", "give a place outside of it"
    if output.is_dir() and is_within(path, output):
        return "holds what {read} reads ({path})", elsewhere
    return None
