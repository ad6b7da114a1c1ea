"""Reading sentences: text, csv, tsv, jsonl and parquet, any of them gzipped, or standard input."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from bertflow.errors import InputError, MissingDependencyError

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
KINDS = (".txt", *TABLES)


def read_corpus(
    sources: Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
) -> list[str]:
    """Read sentences from files, in order.

    Args:
        sources: Files by their ending: .txt (one sentence a line), .csv, .tsv, .jsonl, .parquet,
            each also with .gz; or "-" for standard input, one sentence a line. In .tsv quotes
            are plain characters.
        column: The text column of a table: its name, or for a .csv or .tsv without a header its
            number from 1. Not needed where there is only one.
        limit: Stop after so many sentences, at least 1.
        blank: Leave out blank sentences, or refuse them, where rows must stay aligned.

    Returns:
        The sentences, repeats kept.

    Raises:
        InputError: A file is missing, of unknown kind, not UTF-8, lacks the column, has a row too
            short (named by line), all of them hold no sentence, or one is blank and is refused.
        MissingDependencyError: A .parquet without its package; the message is the pip line.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    texts = (text.strip() for source in sources for text in _read(source, column))
    if blank == "skip":
        texts = (text for text in texts if text)
    read = list(islice(texts, limit))
    if "" in read:
        raise InputError(f"sentence {read.index('') + 1} is blank: it would have no vector")
    if not read:
        names = ", ".join(_called(source) for source in sources)
        raise InputError(f"{names or 'the corpus'} holds no sentence")
    return read


def check_corpus(sources: Sequence[str | Path]) -> None:
    """Refuse what `read_corpus` could not read, without reading it.

    Raises:
        InputError: A file is missing or of unknown kind.
    """
    for source in sources:
        if str(source) != "-":
            _kind(Path(source))


def _kind(path: Path) -> str:
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give its files")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in KINDS:
        raise InputError(
            f"{path} is of unknown kind {kind or 'without an ending'!r}; expected one of "
            f"{', '.join(KINDS)}, each also with .gz"
        )
    return kind


def _called(source: str | Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


def _read(source: str | Path, column: str | None) -> Iterator[str]:
    path = Path(source)
    try:
        if str(source) == "-":
            yield next(sys.stdin, "").removeprefix("\ufeff")
            yield from sys.stdin
            return
        kind = _kind(path)
        if kind == ".parquet":
            yield from _parquet(path, column)
        else:
            with _opened(path) as file:
                if kind == ".txt":
                    yield from file
                elif kind == ".jsonl":
                    yield from _jsonl(file, path, column)
                else:
                    yield from _delimited(file, path, column, kind)
    except UnicodeDecodeError:
        raise InputError(f"{_called(source)} is not UTF-8 text; convert it to UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole gzip file: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    compressed = path.suffix.lower() == ".gz"
    # utf-8-sig: spreadsheets put a byte-order mark in front of the first column's name.
    # A line ends with a line feed; a lone carriage return is part of a sentence.
    with (
        gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
        if compressed
        else path.open(encoding="utf-8-sig", newline="\n")
    ) as file:
        yield file


def _jsonl(file: IO[str], path: Path, column: str | None) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error.msg})") from None
        if isinstance(row, str):
            yield row
            continue
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected an object or a string")
        if column is None:
            column = _only([key for key, value in row.items() if isinstance(value, str)], path)
        if column not in row:
            raise InputError(f"{path}, line {number}: no {column!r}; it has {_names(row)}")
        value = "" if row[column] is None else row[column]
        if not isinstance(value, str):
            raise InputError(f"{path}, line {number}: {column!r} is not text")
        yield value


def _delimited(file: IO[str], path: Path, column: str | None, kind: str) -> Iterator[str]:
    rows = _tab_separated(file) if kind == ".tsv" else _comma_separated(file, path)
    _, header = next(rows, (0, None))
    if header is None:
        return
    if column is not None and column.isdecimal():
        position = int(column) - 1
        if position < 0:
            raise InputError(f"column must be a name or a number from 1, got {column!r}")
        if position >= len(header):
            raise InputError(f"{path}, line 1: no column {column}; it has {len(header)}")
        yield header[position]
    else:
        if column is None:
            column = _only(header, path)
        if column not in header:
            raise InputError(f"{path} has no column {column!r}; it has {_names(header)}")
        position = header.index(column)
    for number, row in rows:
        if not any(row):
            yield ""
            continue
        if len(row) <= position:
            raise InputError(
                f"{path}, line {number}: {len(row)} columns, but column {column!r} is "
                f"number {position + 1}"
            )
        yield row[position]


def _tab_separated(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        yield number, line.rstrip("\r\n").split("\t")


def _comma_separated(file: IO[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    # Strict: a quote that never closes is an error, not the end of the corpus.
    reader = csv.reader(file, strict=True)
    begins = 1
    try:
        for row in reader:
            yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {begins}: the row that begins there is malformed ({error})"
        ) from None


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    if find_spec("pyarrow") is None:
        raise MissingDependencyError(
            f"reading {path.name} needs pyarrow: pip install 'bertflow[parquet]'"
        )
    import pyarrow
    import pyarrow.parquet

    source: Any = path
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as stream:
                source = pyarrow.BufferReader(stream.read())
        table = pyarrow.parquet.ParquetFile(source)
        names = table.schema_arrow.names
        if column is None:
            column = _only([f.name for f in table.schema_arrow if _is_text(f.type)], path)
        if column not in names:
            raise InputError(f"{path} has no column {column!r}; it has {_names(names)}")
        if not _is_text(table.schema_arrow.field(column).type):
            raise InputError(f"{path}: column {column!r} is not text")
        for batch in table.iter_batches(columns=[column]):
            yield from (value or "" for value in batch.column(0).to_pylist())
    except gzip.BadGzipFile:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a whole parquet file: {error}") from None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _only(names: Sequence[str], path: Path) -> str:
    if len(names) == 1:
        return names[0]
    raise InputError(f"{path} has {len(names)} text columns ({_names(names)}); name one by column")


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
