"""Sentences from files, folders, patterns, object stores and tables of `datasets`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal

from bertflow.data.tables import (
    FILE_KINDS,
    STANDARD_INPUT,
    StandardInput,
    Wanted,
    arrow_rows,
    kind_of,
    listed,
    read_lines,
    read_rows,
)
from bertflow.errors import (
    InputError,
    MissingDependencyError,
    check_choice,
    check_number,
    need,
    shown,
)
from bertflow.io.files import reason_of
from bertflow.io.reading import hub_answers

log = logging.getLogger(__name__)

HUB = "hub:"
MAGIC = frozenset("*?[")
BATCH_ROWS = 1000


@dataclass(frozen=True)
class SavedTable:
    """A folder that `Dataset.save_to_disk` wrote, read without loading it."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class HubTable:
    """A split of a data set on the hub; no revision is the newest."""

    name: str
    config: str | None
    split: str
    revision: str | None

    def __str__(self) -> str:
        name = f"{self.name}@{self.revision}" if self.revision else self.name
        return HUB + ":".join(filter(None, [name, self.config, self.split]))

    @classmethod
    def parsed(cls, text: str) -> HubTable:
        """Parse "hub:OWNER/NAME[@REVISION][:CONFIG]:SPLIT".

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


def read_corpus(sources: str | Path | Iterable[str | Path], **options: Any) -> list[str]:
    """Read sentences into a list; arguments and errors as of `stream_corpus`."""
    return list(stream_corpus(sources, **options))


def stream_corpus(
    sources: str | Path | Iterable[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
    format: str | None = None,
) -> Iterator[str]:
    """Read sentences one by one from files, in order, holding none of them.

    Args:
        sources: One or more of: files by their ending, .txt (one sentence a line), .csv, .tsv,
            .jsonl, .parquet, each also packed (.gz, .bz2, .xz, .zst); folders and patterns of such
            files; what `datasets` has saved to disk; URLs of any of these (s3://, gs://, https://
            and whatever else fsspec knows); "hub:OWNER/NAME[@REVISION][:CONFIG]:SPLIT", streamed;
            or "-" for standard input, one sentence a line. In .tsv quotes are plain characters.
        column: The text column of a table: its name, or for a .csv or .tsv without a header its
            number from 1. Not needed where there is only one.
        limit: Stop after so many sentences, at least 1.
        blank: Leave out blank sentences, or refuse them, where rows must stay aligned.
        format: What the files are, "txt", "csv", "tsv", "jsonl" or "parquet", whatever their names
            end in; standard input is "txt" if it is not given. Packing goes by the ending.

    Yields:
        The sentences, repeats kept.

    Raises:
        InputError: A file is missing, of unknown kind or damaged, lacks the column, has a bad row
            (named by line), all of them hold no sentence, or one is blank and is refused.
        MissingDependencyError: A .parquet, .zst, URL or table of `datasets` without its package;
            the message is the pip line.
    """
    if not isinstance(column, str | None):
        raise InputError(f"column must be text, such as 'text' or '2', got {shown(column)}")
    if limit is not None:
        check_number("limit", limit, 1, integer=True)
    check_choice("blank", blank, ("skip", "refuse"))
    sources = _several(sources)
    names = ", ".join(map(str, sources))
    # One after the other: with a limit the last of them may not be needed.
    found = (one for source in sources for one in located(source, format))
    texts = (text.strip() for one in found for text in _read(one, column, format))
    if blank == "skip":
        texts = (text for text in texts if text)
    number = 0
    for number, text in enumerate(islice(texts, limit), 1):
        if not text:
            raise InputError(f"sentence {number} is blank: it would have no vector")
        yield text
    if not number:
        raise InputError(f"{names or 'the corpus'} holds no sentence")
    log.info("%s: %d sentences", names, number)


def checked_corpus(sources: str | Path | Iterable[str | Path], **options: Any) -> Iterator[str]:
    """Read files through once, to find faults before any work, and then stream them.

    With standard input, a pipe or a network among the sources, faults are found on the way.
    Arguments and errors as of `stream_corpus`.
    """
    sources = _several(sources)
    found = [one for source in sources for one in located(source, options.get("format"))]
    if not any(map(_comes_once, found)):
        for _ in stream_corpus(sources, **options):
            pass
    return stream_corpus(sources, **options)


def _several(sources: str | Path | Iterable[str | Path]) -> Sequence[str | Path]:
    """Sources as a list, which may be gone through twice; what is no name is refused."""
    given: Any = sources
    several = hasattr(given, "__iter__") and not isinstance(given, str | bytes | os.PathLike)
    names = list(given) if several and not hasattr(given, "read") else [given]
    for name in names:
        if not name or not isinstance(name, str | os.PathLike):
            raise InputError(
                f"a source must be the name of a file or folder, got {shown(name)}; give its name, "
                "or '-' for standard input"
            )
    return names


def _comes_once(source: Source) -> bool:
    """Whether it cannot be read twice (standard input, a pipe), or only over the network."""
    if isinstance(source, StandardInput | HubTable) or "://" in str(source):
        return True
    # Some systems read a file of /dev/fd on from where it was left.
    return isinstance(source, Path) and (not source.is_file() or source.is_relative_to("/dev"))


def _read(source: Source, column: str | None, format: str | None) -> Iterator[str]:
    wanted = Wanted(source, None if column is None else [column])
    with _named(source):
        if isinstance(source, SavedTable | HubTable):
            batches = open_table(source).with_format("arrow").iter(batch_size=BATCH_ROWS)
            rows = arrow_rows(batches, wanted)
        elif (kind := kind_of(source, FILE_KINDS, format)) == ".txt":
            yield from (line for _, line in read_lines(source))
            return
        else:
            rows = read_rows(kind, wanted)
        for _, row in rows:
            yield (row[0] or "") if row else ""


def open_table(source: SavedTable | HubTable, *, streaming: bool = True) -> Any:
    """A table of `datasets`; with `streaming` nothing of the hub is kept on disk."""
    need(f"reading {source}", "hub", "datasets")
    import datasets

    if isinstance(source, SavedTable):
        return datasets.load_from_disk(str(source.folder))
    # A data set in the cache of `datasets` is no substitute: it does not say its revision.
    if not hub_answers():
        raise ConnectionError("no connection")
    which = {"split": source.split, "revision": source.revision, "streaming": streaming}
    return datasets.load_dataset(source.name, source.config, **which)


def located(source: str | Path, format: str | None = None) -> list[Source]:
    """Every file, table and standard input that a source stands for, in order.

    A folder stands for all files below it, by name; those that begin with a dot or an underscore
    are left out. Arguments and errors as of `stream_corpus`.
    """
    name = str(source)
    if name == "-":
        return [STANDARD_INPUT]
    if isinstance(source, str) and name.startswith(HUB):
        return [HubTable.parsed(name)]
    path = _remote(name) if isinstance(source, str) and "://" in name else Path(source)
    files = [path]
    with _named(path):
        if path.is_dir():
            if (path / "dataset_dict.json").exists():
                raise InputError(f"{path} holds several splits; give one, such as {path}/train")
            if (path / "dataset_info.json").exists() and (path / "state.json").exists():
                _check_saved(path)
                return [SavedTable(path)]
            files = _files(path.rglob("*"), len(path.parts), "._", f"{name}/**")
        elif MAGIC & set(name) and not name.startswith(("http:", "https:")) and not path.exists():
            files = _matching(name)
    for file in files:
        kind_of(file, FILE_KINDS, format)
    return files


def _remote(name: str) -> Any:
    need(f"reading {name}", "remote", "upath")
    from upath import UPath

    with _named(name):
        return UPath(name)


def _check_saved(folder: Any) -> None:
    with _named(SavedTable(folder)):
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        own = [file["filename"] for file in state["_data_files"]]
    if not own:
        raise InputError(f"{folder} holds a table without a row; leave it out")
    names = {path.name for path in folder.iterdir()} - {"dataset_info.json", "state.json", *own}
    # `datasets` keeps results of its own beside the table.
    if others := sorted(name for name in names if not name.startswith((".", "_", "cache-"))):
        raise InputError(f"{folder} also holds what is not read: {listed(others)}; move that away")


def _matching(pattern: str) -> list[Any]:
    first = min(place for place, letter in enumerate(pattern) if letter in MAGIC)
    base, slash, rest = pattern[:first].rpartition("/")
    relative = rest + pattern[first:]
    folder: Any = _remote(f"{base}/") if "://" in pattern else Path(base + slash or os.curdir)
    # As in a shell, a star is not the dot that hides a file.
    hidden = "" if any(part.startswith(".") for part in relative.split("/")) else "."
    try:
        found = list(folder.glob(relative))
    except ValueError as error:
        raise InputError(f"{pattern} is no pattern: {error}") from None
    return _files(found, len(folder.parts), hidden, pattern)


def _files(found: Iterable[Any], depth: int, hidden: str, pattern: str) -> list[Any]:
    """The files that match, by name, without those below `depth` that begin with a hidden mark."""
    files: list[Any] = []
    others: list[str] = []
    for path in sorted(found, key=str):
        if any(part.startswith(tuple(hidden)) for part in path.parts[depth:]):
            continue
        if path.is_file():
            files.append(path)
        # Of `**` folders are no matter; pipes and links to folders or nowhere would be left out.
        elif "**" not in pattern or not path.is_dir() or path.is_symlink():
            others.append(path.name)
    if others:
        raise InputError(
            f"{pattern} also matches what is no file: {listed(others)}; give a pattern of files, "
            "or ** for those of all folders below"
        )
    if not files:
        raise InputError(f"{pattern} matches no file")
    return files


@contextmanager
def _named(source: object) -> Iterator[None]:
    """What a library or a store raises that reads for us, in one line with the source's name."""
    try:
        yield
    except (InputError, MissingDependencyError):
        raise
    except Exception as error:
        if isinstance(source, PurePath) and "://" not in str(source):
            raise  # We read local files ourselves.
        # fsspec says which package a protocol needs.
        kind = MissingDependencyError if isinstance(error, ImportError) else InputError
        raise kind(f"{source} cannot be read: {reason_of(error)}") from None
