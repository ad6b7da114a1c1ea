"""Where shards lie: a local folder or an address, read through Arrow's file systems."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertflow.errors import InputError, MissingDependencyError

READ_BYTES = 2**20
# These are Arrow's own; whatever else has an address goes through fsspec.
ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")


@dataclass(frozen=True)
class Found:
    """A file as it was found.

    Attributes:
        path: Below the place.
        size: In bytes.
        modified: When it was written last, in nanoseconds since 1970; 0 where that is not known.
    """

    path: str
    size: int
    modified: int


class Place:
    """A folder of shards, or one file of them.

    Args:
        where: A path, or an address such as `s3://bucket/folder`.
        said: What messages call it; None for the same.

    Raises:
        InputError: There is nothing, or no file system for the address.
        MissingDependencyError: pyarrow is not there.
    """

    def __init__(self, where: str | Path, said: str | None = None) -> None:
        self.where = said or str(where)
        self._files, root = _filesystem(str(where))
        # As other processes find it, whatever folder they are in.
        self.address = str(where) if "://" in str(where) else root
        from pyarrow.fs import FileType

        with self._reading(self.where):
            kind = self._files.get_file_info(root).type
        if kind == FileType.NotFound:
            pattern = any(mark in self.where for mark in "*?[")
            hint = "; shards take a folder or a file, not a pattern" if pattern else ""
            raise InputError(f"{self.where} does not exist{hint}")
        self.is_file = kind == FileType.File
        self._root = root.rstrip("/").rpartition("/")[0] if self.is_file else root.rstrip("/")
        self._only = root.rpartition("/")[2] if self.is_file else None

    def files(self) -> list[Found]:
        """All files in it, in the order of their paths; those whose name begins with . or _ apart.

        Raises:
            InputError: It cannot be listed.
        """
        from pyarrow.fs import FileSelector, FileType

        with self._reading(self.where):
            if self._only is not None:
                return [self.found(self._only)]
            listed = self._files.get_file_info(FileSelector(self._root, recursive=True))
        below = len(self._root) + 1
        found = [_found(one, one.path[below:]) for one in listed if one.type == FileType.File]
        return sorted((one for one in found if not _is_hidden(one.path)), key=lambda one: one.path)

    def found(self, path: str) -> Found:
        """A file as it is now.

        Raises:
            InputError: It is not there.
        """
        from pyarrow.fs import FileType

        with self._reading(self.named(path)):
            info = self._files.get_file_info(f"{self._root}/{path}")
        if info.type != FileType.File:
            raise InputError(f"{self.named(path)} does not exist any more")
        return _found(info, path)

    def named(self, path: str) -> str:
        """A file's path as messages show it."""
        return self.where if self._only is not None else f"{self.where.rstrip('/')}/{path}"

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        """Open a file for Arrow to read.

        Raises:
            InputError: It cannot be read, while inside.
        """
        with self._reading(self.named(path)):
            with self._files.open_input_file(f"{self._root}/{path}") as file:
                yield file

    def local(self, path: str) -> Path:
        """Where a file is on this machine.

        Raises:
            InputError: It is on none.
        """
        from pyarrow.fs import LocalFileSystem

        if not isinstance(self._files, LocalFileSystem):
            raise InputError(f"{self.named(path)} must be on this machine; copy it to a folder")
        return Path(f"{self._root}/{path}")

    def digest(self, path: str, start: int, stop: int) -> str:
        """SHA-256 of a file's bytes from `start` up to `stop`, in hexadecimal.

        Raises:
            InputError: It cannot be read, or ends before.
        """
        digest, left = hashlib.sha256(), stop - start
        with self.opened(path) as file:
            file.seek(start)
            while left:
                part = file.read(min(READ_BYTES, left))
                if not part:
                    raise InputError(f"{self.named(path)} ends before byte {stop:,}")
                digest.update(part)
                left -= len(part)
        return digest.hexdigest()

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{name} cannot be read: {_reason(error)}") from None


def needs_pyarrow(what: str) -> None:
    """Say which package is missing.

    Raises:
        MissingDependencyError: It is.
    """
    if find_spec("pyarrow") is None:
        raise MissingDependencyError(f"{what} needs pyarrow: pip install 'bertflow[parquet]'")


def _filesystem(where: str) -> tuple[Any, str]:
    needs_pyarrow(f"reading {where}")
    import pyarrow
    from pyarrow import fs

    scheme, separator, _ = where.partition("://")
    if not separator:
        return fs.LocalFileSystem(), Path(where).absolute().as_posix()
    try:
        if scheme in ARROW_SCHEMES:
            found: tuple[Any, str] = fs.FileSystem.from_uri(where)
            return found
        import fsspec

        other, root = fsspec.core.url_to_fs(where)
        return fs.PyFileSystem(fs.FSSpecHandler(other)), root
    except ImportError as error:
        raise MissingDependencyError(f"{where} cannot be reached: {error}") from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{where} cannot be reached: {_reason(error)}") from None


def _found(info: Any, path: str) -> Found:
    return Found(path, int(info.size), int(info.mtime_ns or 0))


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _reason(error: Exception) -> str:
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(said.split()) or type(error).__name__
