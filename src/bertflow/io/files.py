"""Files that are written: each is afterwards the new one whole, or still the old one.

What is written is made beside its target under a hidden name, and then moved to its place.
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
    """The reason an error gives, in one line that can be read."""
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
        # Not OSErrors alone: safetensors and tokenizers are written in Rust, and raise their own.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise ModelError(f"cannot write {target}: {reason_of(error)}") from error


def followed(target: Path) -> Path:
    """The place a link leads to; of "." and ".." the folder by its name."""
    named = target.name not in ("", "..") and not target.is_symlink()
    return target if named else Path(os.path.realpath(target))


@contextmanager
def sole_writer(output: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from writing an output while inside.

    The lock ends with its process; the file of a killed one is taken over.

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
            lock.unlink()  # While it is held: whoever has opened it sees that it is gone.
        held.release()


@contextmanager
def staged(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """Make an empty file or folder beside the target, to be filled and moved to its place.

    If it is still there at the end it is removed. What killed processes left for the same target
    is removed first; a lock tells that from what other processes are filling.

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
                    continue  # Another writer took it for stale before it was locked.
                yield staging
                return
        finally:
            remove(staging)


def remove_stale(folder: Path, name: str) -> None:
    """Remove what killed processes were filling for targets in a folder.

    Args:
        folder: The targets'.
        name: Regular expression of their names.
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
    """Lock a file or folder: True; False if another process has it, None if there are no locks."""
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
    """Remove a file, link or folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Give an empty file to fill, which then takes another's place in one move.

    A link is followed: the file it leads to is replaced, and the link stays. So do the permissions
    of a file that was there.

    Raises:
        OSError: It cannot be made or moved.
        ModelError: What is there is no regular file.
    """
    _check_regular(path)
    target = followed(path)
    with staged(target) as staging:
        keep_permissions(target, staging)  # At once: nobody else may read a private file meanwhile.
        yield staging
        staging.replace(target)


def keep_permissions(old: Path, new: Path) -> None:
    """Give a file the permissions of another, if that is there; its owner may write to it.

    Raises:
        OSError: They cannot be changed.
    """
    if not old.exists():
        return
    mode = stat.S_IMODE(old.stat().st_mode) & PERMISSIONS | stat.S_IWUSR
    # Some network file systems refuse any change; there all files are alike.
    if mode != stat.S_IMODE(new.stat().st_mode):
        new.chmod(mode)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, as `write_bytes` does, in UTF-8; what that cannot hold is escaped.

    Raises:
        ModelError: It cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file that is then the new one whole, or still the old one.

    Links are followed, and permissions stay. To a device or pipe the content is written directly.

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
        path: The file. A device or pipe that is there may be one, if `rows` is False.
        rows: Whether it is written row by row, which takes a regular file.

    Raises:
        ModelError: It is a folder, is read-only, cannot be made, or is there and something that
            cannot be written.
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
    """Make what `staged` makes for a target, and remove it, before any work is done for that.

    Raises:
        OSError: It cannot be made.
    """
    with no_new_folders(target), staged(target, folder=folder):
        pass


@contextmanager
def no_new_folders(path: Path) -> Iterator[None]:
    """Remove the folders above a path that were made inside and hold nothing."""
    made = [parent for parent in path.absolute().parents if not parent.exists()]
    try:
        yield
    finally:
        for parent in made:
            with suppress(OSError):  # It holds something.
                parent.rmdir()


def _is_stream(path: Path) -> bool:
    """Whether a device or pipe is there, to which text can be written."""
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
    """Refuse outputs that are each other, or what is read, which would be lost.

    Files are told by what they are, not by their names: a link, another spelling or a hard link
    is the same file.

    Args:
        outputs: Files or folders to write, by what messages call them; None is none.
        inputs: Files and folders that are read, each after what messages call it. What is not
            there, such as a name on the hub, is none of them.

    Raises:
        InputError: Two outputs are the same; or an output is an input, lies in a folder that is
            one, or is a folder that holds one.

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
    """Whether two paths are one file or folder, there or to be; never of devices and pipes."""
    with suppress(OSError, ValueError):
        if first.exists() and second.exists():
            return first.samefile(second) and not _is_stream(first)
        return os.path.realpath(first) == os.path.realpath(second)
    return False


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path, there or to be, lies in a folder."""
    with suppress(OSError, ValueError):
        real = Path(os.path.realpath(path))
        return any(parent.exists() and parent.samefile(folder) for parent in real.parents)
    return False


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # Names on the hub may be no paths at all.
        return path.exists()
    return False


def _touches(output: Path, path: Path) -> tuple[str, str] | None:
    """How writing an output would change what is read, and what to do instead; None if not."""
    elsewhere = "give another, or it would be lost"
    if is_same(output, path):
        return "is what {read} reads", elsewhere
    if path.is_dir() and is_within(output, path):
        return "is in the folder that {read} reads ({path})", "give a place outside of it"
    if output.is_dir() and is_within(path, output):
        return "holds what {read} reads ({path})", elsewhere
    return None
