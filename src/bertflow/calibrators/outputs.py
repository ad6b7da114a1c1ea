"""Files that are written: which may be, what they may not replace, and how they are placed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

from bertflow.calibrators.staging import followed, staged, try_out
from bertflow.errors import InputError, ModelError

# What is there and no regular file: what it is called, and whether a text can be written to it.
KINDS = {
    stat.S_IFCHR: ("a device", True),
    stat.S_IFIFO: ("a pipe", True),
    stat.S_IFSOCK: ("a socket", False),
    stat.S_IFBLK: ("a disk", False),
}
PERMISSIONS = 0o777


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Give an empty file to fill, which then takes another's place in one move.

    A link is followed: the file that it leads to is replaced, and the link stays. Of a file that
    was there the permissions are kept.

    Raises:
        OSError: It cannot be made or moved.
        ModelError: What is there is no regular file.
    """
    if kind := special(path):
        raise ModelError(_refusal(path, kind))
    target = followed(path)
    with staged(target) as staging:
        # Before anything is in it: nobody else may read it meanwhile.
        keep_permissions(target, staging, writable=True)
        yield staging
        keep_permissions(target, staging)
        staging.replace(target)


def keep_permissions(old: Path, new: Path, *, writable: bool = False) -> None:
    """Give a file the owner and permissions of another, if that is there.

    Args:
        old: Whose they are.
        new: Who gets them.
        writable: Let its owner write to it all the same.

    Raises:
        OSError: They cannot be changed.
    """
    if not old.exists():
        return
    found, own = old.stat(), new.stat()
    mode = stat.S_IMODE(found.st_mode) & PERMISSIONS
    if hasattr(os, "chown") and (found.st_uid, found.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.chown(new, found.st_uid, found.st_gid)
        except OSError:  # Not everyone may give files away.
            try:
                os.chown(new, -1, found.st_gid)
            except OSError:
                if own.st_gid != found.st_gid:  # What its group may was meant for another.
                    mode &= ~stat.S_IRWXG
    wanted = mode | stat.S_IWUSR if writable else mode
    now = stat.S_IMODE(new.stat().st_mode) & PERMISSIONS
    try:
        if now != wanted:
            new.chmod(wanted)
    except OSError:  # Some network file systems have no permissions to set.
        if now & ~wanted & (stat.S_IRWXG | stat.S_IRWXO):  # Never more open than the old one.
            raise


def special(path: Path) -> str | None:
    """What a place is that is there, but no regular file or folder: "a device"; None otherwise.

    Raises:
        OSError: It cannot be looked at.
    """
    if not path.exists():
        return None
    kind = stat.S_IFMT(path.stat().st_mode)
    return KINDS[kind][0] if kind in KINDS else None


def write_directly(path: Path, content: bytes) -> None:
    """Write to a device or pipe, which nothing can take the place of.

    Raises:
        OSError: It cannot be written.
    """
    with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
        file.write(content)


def check_writable(path: str | Path, *, rows: bool = False) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Args:
        path: The file. A device or pipe that is there may be one, if `rows` is False.
        rows: Whether it is written row by row, which takes a regular file.

    Raises:
        ModelError: It is a folder, is read-only, is in none that may be written to, or is there
            and something that cannot be written.
    """
    path = Path(path)
    if str(path) == "-":
        raise ModelError("cannot write -: it stands for standard output; give a file")
    try:
        if path.is_dir():
            raise ModelError(f"cannot write {path}: it is a folder; give a file")
        if kind := special(path):
            if rows or kind not in [name for name, writable in KINDS.values() if writable]:
                raise ModelError(_refusal(path, kind))
            home = path
        else:
            target = followed(path)
            home = next(folder for folder in target.absolute().parents if folder.exists())
        protected = path.exists() and not os.access(path, os.W_OK)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None
    if protected:
        raise ModelError(
            f"cannot write {path}: it is there and may not be written to; give another file, or "
            "the right to write"
        )
    if home == path:
        return
    if not (home.is_dir() and os.access(home, os.W_OK)):
        raise ModelError(f"cannot write {path}: {home} is not a folder that may be written to")
    try:
        try_out(target)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None


def _refusal(path: Path, kind: str) -> str:
    return f"cannot write {path}: it is {kind}, which no file can take the place of; give a file"


# What is read may not be written.


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
            return first.samefile(second) and special(first) is None
        return os.path.realpath(first) == os.path.realpath(second)
    return False


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path, there or to be, lies in a folder."""
    with suppress(OSError, ValueError):
        real = Path(os.path.realpath(path))
        return any(one.exists() and one.samefile(folder) for one in real.parents)
    return False


def is_in(file: Path, folder: Path, *, but: tuple[str, ...] = ()) -> bool:
    """Whether a file that is there is one of those below a folder, by whatever name.

    Args:
        file: To look for.
        folder: To look through.
        but: Endings of names that do not count.
    """
    with suppress(OSError, ValueError):
        if not file.is_file():
            return False
        wanted = file.stat()
        for home, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    found = (Path(home) / name).stat()
                    if os.path.samestat(found, wanted) and not name.lower().endswith(but):
                        return True
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
    if path.is_dir() and (is_within(output, path) or is_in(output, path)):
        return "is in the folder that {read} reads ({path})", "give a place outside of it"
    if output.is_dir() and is_within(path, output):
        return "holds what {read} reads ({path})", elsewhere
    return None
