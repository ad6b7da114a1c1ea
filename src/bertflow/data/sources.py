"""Where sentences come from: files, folders, patterns, object stores, tables of `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertflow.data.tables import (
    KINDS,
    Choose,
    StandardInput,
    arrow_rows,
    ending,
    kind_of,
    listed,
)
from bertflow.errors import InputError, MissingDependencyError
from bertflow.network import hub_answers

STANDARD_INPUT = "-"
HUB = "hub:"
MAGIC = frozenset("*?[")
BATCH_ROWS = 1000


@dataclass(frozen=True)
class SavedTable:
    """A folder that `datasets` has saved, read without loading it.

    Attributes:
        folder: What `Dataset.save_to_disk` wrote.
    """

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class HubTable:
    """A split of a data set on the hub, streamed: nothing of it is kept on disk.

    Attributes:
        name: Such as "owner/name".
        config: Which of its configurations; None where it has one.
        split: Such as "train".
        revision: Branch, tag or commit; None takes the newest.
    """

    name: str
    config: str | None
    split: str
    revision: str | None

    def __str__(self) -> str:
        parts = [self.name if self.revision is None else f"{self.name}@{self.revision}"]
        return HUB + ":".join([*parts, *([self.config] if self.config else []), self.split])

    @classmethod
    def parsed(cls, text: str) -> HubTable:
        """Parse "hub:OWNER/NAME[@REVISION][:CONFIG]:SPLIT".

        Raises:
            InputError: It is none.

        Example:
            >>> HubTable.parsed("hub:owner/name@v1:plain:train")
            HubTable(name='owner/name', config='plain', split='train', revision='v1')
        """
        parts = text.removeprefix(HUB).split(":")
        name, _, revision = parts[0].partition("@")
        if not (name and len(parts) in (2, 3) and all(parts)):
            raise InputError(
                f"{text} names no split; write {HUB}OWNER/NAME:SPLIT "
                f"or {HUB}OWNER/NAME:CONFIG:SPLIT"
            )
        return cls(name, parts[1] if len(parts) == 3 else None, parts[-1], revision or None)


# A path may be one of universal_pathlib, which has the interface of Path.
Source = Path | StandardInput | SavedTable | HubTable


def located(sources: Sequence[str | Path], format: str | None = None) -> list[Source]:
    """Every file, table and standard input that sources stand for, in order.

    Args:
        sources: "-"; files; folders, for all files below them, by name (those that begin with a
            dot or an underscore are left out), or that `datasets` has saved; patterns with `*`,
            `?`, `[...]` and `**`; any of these as a URL that fsspec knows, such as
            s3://bucket/folder; or "hub:OWNER/NAME[@REVISION][:CONFIG]:SPLIT".
        format: What the files are, such as "txt", whatever their names end in.

    Raises:
        InputError: A file is missing or of unknown kind, also in a folder; a folder or pattern has
            no file.
        MissingDependencyError: A URL or table without its package; the message is the pip line.
    """
    return [place for source in sources for place in _located(source, format)]


def is_remote(source: Source) -> bool:
    """Whether reading it takes the network."""
    return isinstance(source, HubTable) or "://" in str(source)


def comes_once(source: Source) -> bool:
    """Whether it cannot be read twice (standard input, a pipe), or only over the network."""
    if isinstance(source, StandardInput | HubTable) or is_remote(source):
        return True
    # Some systems read a file of /dev/fd on from where it was left.
    return isinstance(source, Path) and (not source.is_file() or source.is_relative_to("/dev"))


def table_rows(
    source: SavedTable | HubTable, columns: Sequence[str] | None, choose: Choose
) -> Iterator[tuple[int, list[Any]]]:
    """The cells of text columns of a table, row by row from 1.

    Raises:
        MissingDependencyError: `datasets` is not installed.
        InputError: The folder is damaged, the hub does not answer or has no such data, or a column
            is missing or not text.
    """
    table = _opened(source).with_format("arrow")
    with _named(source):
        batches = table.iter(batch_size=BATCH_ROWS)
        yield from arrow_rows(batches, Path(str(source)), columns, choose)


def _opened(source: SavedTable | HubTable) -> Any:
    if find_spec("datasets") is None:
        raise MissingDependencyError(
            f"reading {source} needs datasets: pip install 'bertflow[hub]'"
        )
    import datasets

    with _named(source):
        if isinstance(source, SavedTable):
            return datasets.load_from_disk(str(source.folder))
        if not hub_answers():
            raise InputError(f"{source} cannot be read: the hub does not answer")
        return datasets.load_dataset(
            source.name, source.config, split=source.split, revision=source.revision, streaming=True
        )


def remote_errors(source: Source) -> AbstractContextManager[None]:
    """Say in one line what the client of a remote store raises; it has errors of its own."""
    remote = is_remote(source) and not isinstance(source, HubTable)
    return _named(source) if remote else nullcontext()


def _located(source: str | Path, format: str | None) -> list[Source]:
    name = str(source)
    if name == STANDARD_INPUT:
        return [StandardInput()]
    if isinstance(source, str) and name.startswith(HUB):
        return [HubTable.parsed(name)]
    path = _remote(name) if isinstance(source, str) and "://" in name else Path(source)
    paths = [path]
    with remote_errors(path):
        if path.is_dir():
            if (path / "dataset_info.json").exists() and (path / "state.json").exists():
                return [SavedTable(path)]
            paths = _inside(path, format)
        elif MAGIC & set(name) and not name.startswith(("http:", "https:")) and not path.exists():
            paths = _matching(name)
    for file in paths:
        kind_of(file, KINDS, format)
    return list(paths)


def _remote(name: str) -> Any:
    if find_spec("upath") is None:
        raise MissingDependencyError(
            f"reading {name} needs universal_pathlib: pip install 'bertflow[remote]'"
        )
    from upath import UPath

    try:
        return UPath(name)
    except (ImportError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {_line(error)}") from None


def _inside(folder: Any, format: str | None) -> list[Any]:
    if (folder / "dataset_dict.json").exists():
        raise InputError(f"{folder} holds several splits; give one of them, such as {folder}/train")
    depth = len(folder.parts)
    # Links to folders are not followed and pipes are not read: the error below names them.
    paths = [
        path
        for path in sorted(folder.rglob("*"), key=str)
        if not _hidden(path, depth, "._") and (path.is_symlink() or not path.is_dir())
    ]
    known = [path for path in paths if path.is_file() and (format or ending(path) in KINDS)]
    if not known:
        raise InputError(
            f"{folder} holds no file of a kind that can be read: {', '.join(KINDS)}; of files "
            'without such an ending name the format by --format txt (in Python format="txt")'
        )
    if others := ["/".join(path.parts[depth:]) for path in paths if path not in known]:
        raise InputError(
            f"{folder} also holds what is not read: {listed(others)}; give a pattern of what to "
            f"read, such as '{folder}/**/*{''.join(known[0].suffixes[-2:])}'"
        )
    return known


def _hidden(path: Any, depth: int, marks: str) -> bool:
    return any(part.startswith(tuple(marks)) for part in path.parts[depth:])


def _matching(pattern: str) -> list[Any]:
    first = min(place for place, letter in enumerate(pattern) if letter in MAGIC)
    base, slash, rest = pattern[:first].rpartition("/")
    relative = rest + pattern[first:]
    folder: Any = _remote(f"{base}/") if "://" in pattern else Path(base + slash or os.curdir)
    depth = len(folder.parts)
    # As in a shell, a star is not the dot that hides a file.
    marks = "" if any(part.startswith(".") for part in relative.split("/")) else "."
    try:
        matched = sorted(folder.glob(relative), key=str)
    except ValueError as error:
        raise InputError(f"{pattern} is no pattern: {error}") from None
    matched = [path for path in matched if not _hidden(path, depth, marks)]
    files = [path for path in matched if path.is_file()]
    if not files:
        raise InputError(f"{pattern} matches no file")
    others = [path.name for path in matched if path not in files and not _hidden(path, depth, "._")]
    if others and "**" not in pattern:
        raise InputError(
            f"{pattern} also matches what is no file: {listed(others)}; give a pattern of files, "
            "or ** for those of all folders below"
        )
    return files


@contextmanager
def _named(source: Source) -> Iterator[None]:
    """Any failure of a library that reads for us, in one line with the source's name."""
    try:
        yield
    except (InputError, MissingDependencyError):
        raise
    except ImportError as error:  # fsspec says which package a protocol needs.
        raise MissingDependencyError(f"{source} cannot be read: {_line(error)}") from None
    except Exception as error:
        raise InputError(f"{source} cannot be read: {_line(error)}") from None


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
