"""Reading lines and rows: text, csv, tsv, jsonl and parquet, any of them gzipped."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from bertflow.errors import InputError, MissingDependencyError

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Columns:
    """What a table has to choose from.

    Attributes:
        path: The table.
        names: All its columns.
        texts: Those that hold text, as far as the kind of file tells.
    """

    path: Path
    names: Sequence[str]
    texts: Sequence[str]


Row = tuple[int, list[Any] | None]
Choose = Callable[[Columns], Sequence[str]]


def file_kind(path: Path, kinds: Sequence[str]) -> str:
    """The ending that says how a file is read, lower case and without .gz.

    Raises:
        InputError: The file is missing, a folder, or of none of these kinds.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give its files")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in kinds:
        raise InputError(
            f"{path} is of unknown kind {kind or 'without an ending'!r}; expected one of "
            f"{', '.join(kinds)}, each also with .gz"
        )
    return kind


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Say in one line, with the file's name, what is wrong with its bytes."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text; convert it to UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{name} is not a whole gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, packed or not, as lines that keep their ends."""
    compressed = path.suffix.lower() == ".gz"
    # utf-8-sig: spreadsheets put a byte-order mark in front of the first column's name.
    # A line ends with a line feed; a lone carriage return is part of a sentence.
    with (
        gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
        if compressed
        else path.open(encoding="utf-8-sig", newline="\n")
    ) as file:
        yield file


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers from 1, without line feed and one return.

    Raises:
        InputError: The file cannot be read or is not UTF-8.
    """
    with reading(path), open_text(path) as file:
        yield from _numbered(file)


def read_rows(
    path: Path, kind: str, columns: Sequence[str] | None, choose: Choose, *, texts: int
) -> Iterator[Row]:
    """The cells of some columns, row by row.

    Args:
        path: The table.
        kind: Its ending, one of `TABLES`.
        columns: Names; or for a .csv or .tsv without a header numbers from 1, as digits.
        choose: Gives the names where `columns` is None.
        texts: How many of the columns, from the first, must be text. Of a single one a .jsonl
            may also have bare strings as rows.

    Yields:
        The number of line (in parquet row) and the cells; None for a row with nothing in it.

    Raises:
        InputError: A column is missing or is not text, a row is malformed or too short (named by
            line), or the file is damaged.
        MissingDependencyError: A .parquet without its package; the message is the pip line.
    """
    with reading(path):
        if kind == ".parquet":
            yield from _parquet(path, columns, choose, texts)
            return
        with open_text(path) as file:
            if kind == ".jsonl":
                yield from _jsonl(file, path, columns, choose, texts)
            else:
                rows = _tab_separated(file) if kind == ".tsv" else _comma_separated(file, path)
                yield from _delimited(rows, path, columns, choose)


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names) or "none"


def _numbered(file: IO[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _jsonl(
    file: IO[str], path: Path, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    expected = "an object or a string" if texts == 1 else "an object"
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error.msg})") from None
        except (RecursionError, ValueError) as error:  # Too deep, or a number too long.
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        if isinstance(row, str) and texts == 1:
            yield number, [row]
            continue
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected {expected}")
        if columns is None:
            strings = [key for key, value in row.items() if isinstance(value, str)]
            columns = choose(Columns(path, list(row), strings))
        for place, column in enumerate(columns):
            if column not in row:
                raise InputError(f"{path}, line {number}: no {column!r}; it has {listed(row)}")
            if place < texts and not isinstance(row[column], str | None):
                raise InputError(f"{path}, line {number}: {column!r} is not text")
        yield number, [row[column] for column in columns]


def _delimited(
    rows: Iterator[tuple[int, list[str]]],
    path: Path,
    columns: Sequence[str] | None,
    choose: Choose,
) -> Iterator[Row]:
    _, header = next(rows, (0, None))
    if header is None:
        return
    if columns is not None and any(column.isdecimal() for column in columns):
        positions = [_position(column, header, path) for column in columns]
        yield 1, [header[position] for position in positions]
    else:
        if columns is None:
            columns = choose(Columns(path, header, header))
        for column in columns:
            if column not in header:
                raise InputError(f"{path} has no column {column!r}; it has {listed(header)}")
        positions = [header.index(column) for column in columns]
    last = max(positions)
    for number, row in rows:
        if not any(row):
            yield number, None
            continue
        if len(row) <= last:
            column = columns[positions.index(last)]
            raise InputError(
                f"{path}, line {number}: {len(row)} columns, but column {column!r} is "
                f"number {last + 1}"
            )
        yield number, [row[position] for position in positions]


def _position(column: str, header: Sequence[str], path: Path) -> int:
    if not column.isdecimal():
        raise InputError(f"columns must be all names or all numbers, got {column!r} among numbers")
    if int(column) == 0:
        raise InputError(f"column must be a name or a number from 1, got {column!r}")
    if int(column) > len(header):
        raise InputError(f"{path}, line 1: no column {column}; it has {len(header)}")
    return int(column) - 1


def _tab_separated(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in _numbered(file):
        yield number, line.split("\t")


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


def _parquet(
    path: Path, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    if find_spec("pyarrow") is None:
        raise MissingDependencyError(
            f"reading {path.name} needs pyarrow: pip install 'bertflow[parquet]'"
        )
    import pyarrow
    import pyarrow.parquet

    source: Any = path
    number = 0
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as stream:
                source = pyarrow.BufferReader(stream.read())
        table = pyarrow.parquet.ParquetFile(source)
        schema = table.schema_arrow
        if columns is None:
            strings = [field.name for field in schema if _is_text(field.type)]
            columns = choose(Columns(path, schema.names, strings))
        for place, column in enumerate(columns):
            if column not in schema.names:
                raise InputError(f"{path} has no column {column!r}; it has {listed(schema.names)}")
            if place < texts and not _is_text(schema.field(column).type):
                raise InputError(f"{path}: column {column!r} is not text")
        for batch in table.iter_batches(columns=list(columns)):
            for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                number += 1
                yield number, list(cells)
    except gzip.BadGzipFile:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a whole parquet file: {error}") from None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))
