"""Files and folders to be: made beside their target, locked while in use, moved in one call.

What one process works on for longer lies in a folder beside its output (`part_folder`), and who
writes an output at all holds a lock (`sole_writer`).
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from bertflow.errors import ModelError

# The call by which two paths trade places, what it takes for "here", and its flag.
EXCHANGES = {"linux": ("renameat2", -100), "darwin": ("renameatx_np", -2)}
EXCHANGE = 2
LOCK = "lock"
# How often a folder is made again that another process has just removed.
ATTEMPTS = 10


@contextmanager
def sole_writer(output: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from writing an output while inside.

    The lock ends with its process. What a killed one left of it is taken over, and its file is
    removed at the end.

    Args:
        output: What is written; named in the error.
        lock: The file that is locked; its folder is made if it is not there.

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
    try:
        for attempt in range(ATTEMPTS):
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                held.acquire(timeout=0)
                break
            except FileNotFoundError:  # Its folder was removed by a process that has ended.
                if attempt == ATTEMPTS - 1:
                    raise
    except Timeout:
        raise ModelError(
            f"cannot write {output}: another process is writing it ({lock}); wait for it, or give "
            "another output"
        ) from None
    except OSError as error:
        raise ModelError(f"cannot write {output}: {error.strerror or error}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # While it is held: whoever has opened it sees that it is gone.
        held.release()


def followed(target: Path) -> Path:
    """Where a link leads, which then stays; of "." and ".." the folder by its name."""
    named = target.name not in ("", "..") and not target.is_symlink()
    return target if named else Path(os.path.realpath(target))


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
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        with sole_writer(output, folder / LOCK):
            yield folder
    finally:
        # Whether it was held or not: one that another process is about to lock is made again.
        for one in (folder, *made):
            with suppress(OSError):  # It holds something.
                one.rmdir()


def clear_part(folder: Path) -> None:
    """Remove what is in a folder of `part_folder`, its lock apart, whatever wrote it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK:
                _remove(path)


@contextmanager
def staged(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """Make an empty file or folder beside the target, to be filled and moved to its place.

    Whatever is there after the block is removed, and so is before it what killed processes left
    for the same target. What others are filling stays: it is locked as long as they live.

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
            _remove(staging)


def try_out(target: Path, *, folder: bool = False) -> None:
    """Make what `staged` makes for a target, and remove it, before any work is done for that.

    Raises:
        OSError: It cannot be made.
    """
    made = [parent for parent in target.absolute().parents if not parent.exists()]
    try:
        with staged(target, folder=folder):
            pass
    finally:
        for one in made:
            with suppress(OSError):  # It holds something.
                one.rmdir()


def take_place(staging: Path, target: Path) -> None:
    """Move a folder to where another is or was, which is then at `staging` or gone.

    Where the system cannot exchange two folders there is a moment without a target; a process
    killed in it leaves the old one for `return_old`.

    Raises:
        OSError: It cannot be moved; the other is where it was.
    """
    if not target.exists():
        staging.rename(target)
        return
    if exchange(staging, target):
        return
    with _locked(target):
        try:
            target.rename(_old(target))
            staging.rename(target)
            # Under that name only while it is needed: half removed it must not come back.
            with suppress(OSError):
                _old(target).rename(staging)
        except BaseException:
            _settle(target)
            raise


def exchange(one: Path, other: Path) -> bool:
    """Let two paths trade places in one system call; False if that cannot be."""
    if sys.platform not in EXCHANGES:
        return False
    name, here = EXCHANGES[sys.platform]
    call = getattr(ctypes.CDLL(None), name, None)
    paths = (here, os.fsencode(one), here, os.fsencode(other))
    return call is not None and bool(call(*paths, EXCHANGE) == 0)


def return_old(target: Path) -> None:
    """Bring back the folder of a process that was killed while it was being replaced.

    Raises:
        OSError: It cannot be brought back.
    """
    if _old(target).exists() and _is_free(target):
        with _locked(_old(target)) as locked:
            if locked is not False:
                _settle(target)


def remove_old(target: Path) -> None:
    """Remove the folder of a process that was killed just after it had been replaced."""
    if _old(target).exists() and not _is_free(target):
        with _locked(_old(target)) as locked:
            if locked is not False:
                _remove(_old(target))


def _settle(target: Path) -> None:
    """End a replacement, whichever of its steps came last: one folder, under the target's name."""
    old = _old(target)
    if not _is_free(target):
        _remove(old)
    elif old.exists():
        with suppress(OSError):
            target.rmdir()
        old.rename(target)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}-old.bertflow"


def _is_free(target: Path) -> bool:
    """Whether there is nothing, or an empty folder."""
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


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
                        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder: True; False if another has it, None if there are no locks."""
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        locked: bool | None = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:
            locked = None
        yield locked
    finally:
        os.close(handle)
