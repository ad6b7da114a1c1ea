"""Reading lines and rows: text, csv, tsv, jsonl and parquet, any of them packed."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any

from bertflow.errors import InputError, MissingDependencyError, shown
from bertflow.strict_json import parse_json

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
KINDS = (".txt", *TABLES)
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
# So much is read at a time, whatever a file says or a packed one unpacks to: characters of a line
# or cell, bytes of a packed .parquet, rows of a .parquet.
LONGEST_LINE = 2**24
LARGEST_PACKED = 2**30
PARQUET_ROWS = 1024
LISTED = 20


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
    """The ending that says how a file is read, lower case and without that of its packing.

    Raises:
        InputError: The file is missing, a folder, or of none of these kinds.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give its files")
    return kind_of(path, kinds)


def kind_of(path: Path, kinds: Sequence[str]) -> str:
    """The same, of what is known to be no folder.

    Raises:
        InputError: The file is missing or of none of these kinds.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in kinds:
        raise InputError(
            f"{path} is of unknown kind {kind or 'without an ending'!r}; expected one of "
            f"{', '.join(kinds)}, each also with {', '.join(PACKED)}"
        )
    return kind


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Say in one line, with the file's name, what is wrong with its bytes."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text; convert it to UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, _DamagedError) as error:
        packing = PACKED.get(Path(str(name)).suffix.lower(), "packed")
        raise InputError(f"{name} is not a whole {packing} file: {error}") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None


class _DamagedError(Exception):
    """What a packed file is, in the words of a library without an error of its own for it."""


def bounded_lines(file: IO[str], name: str | Path) -> Iterator[str]:
    """The lines of an open file with their ends.

    Raises:
        InputError: One is longer than any sentence: a packed file of some kilobytes may hold one
            that fills the memory.
    """
    number = 1
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise too_long(f"{name}, line {number}")
        yield line
        number += 1


def too_long(place: str) -> InputError:
    """What is said of a line or cell that is longer than any sentence."""
    return InputError(
        f"{place}: it has more than {LONGEST_LINE:,} characters; give one sentence a row"
    )


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, packed or not, as lines that keep their ends."""
    # utf-8-sig: spreadsheets put a byte-order mark in front of the first column's name.
    # A line ends with a line feed; a lone carriage return is part of a sentence.
    with (
        open_bytes(path) as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n") as file,
    ):
        yield file


@contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """Open a file, packed or not, for its bytes.

    Raises:
        MissingDependencyError: A .zst without its package; the message is the pip line.
    """
    packing = path.suffix.lower()
    with path.open("rb") as file:
        if packing == ".gz":
            with gzip.open(file, "rb") as stream:
                yield stream
        elif packing == ".xz":
            with lzma.open(file, "rb") as stream:
                yield stream
        elif packing == ".bz2":
            with bz2.open(file, "rb") as stream, _damage(OSError):
                yield stream
        elif packing == ".zst":
            zstd = _zstd(path)
            with zstd.open(file, "rb") as stream, _damage(zstd.ZstdError):
                yield stream
        else:
            yield file


def _zstd(path: Path) -> Any:
    # Not zstandard, to which a file that breaks off is one that ends.
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingDependencyError(
        f"reading {path.name} needs backports.zstd: pip install 'bertflow[remote]'"
    )


@contextmanager
def _damage(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        raise _DamagedError(str(error)) from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers from 1, without line feed and one return.

    Raises:
        InputError: The file cannot be read or is not UTF-8.
    """
    with reading(path), open_text(path) as file:
        yield from _numbered(file, path)


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
                rows = (
                    _tab_separated(file, path) if kind == ".tsv" else _comma_separated(file, path)
                )
                yield from _delimited(rows, path, columns, choose)


def listed(names: Iterable[str]) -> str:
    """Names for a message, at most so many."""
    rest = iter(names)
    first = ", ".join(map(shown, islice(rest, LISTED))) or "none"
    more = sum(1 for _ in rest)
    return f"{first} and {more:,} more" if more else first


def _numbered(file: IO[str], path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(bounded_lines(file, path), start=1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _jsonl(
    file: IO[str], path: Path, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    expected = "an object or a string" if texts == 1 else "an object"
    for number, line in enumerate(bounded_lines(file, path), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, constants=True)
        except ValueError as error:
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
                raise InputError(f"{path}, line {number}: no {shown(column)}; it has {listed(row)}")
            if place < texts and not isinstance(row[column], str | None):
                raise InputError(f"{path}, line {number}: {shown(column)} is not text")
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
                raise InputError(f"{path} has no column {shown(column)}; it has {listed(header)}")
        positions = [header.index(column) for column in columns]
    last = max(positions)
    for number, row in rows:
        if not any(row):
            yield number, None
            continue
        if len(row) <= last:
            column = columns[positions.index(last)]
            raise InputError(
                f"{path}, line {number}: {len(row)} columns, but column {shown(column)} is "
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


def _tab_separated(file: IO[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in _numbered(file, path):
        yield number, line.split("\t")


def _comma_separated(file: IO[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    # Strict: a quote that never closes is an error, not the end of the corpus.
    reader = csv.reader(bounded_lines(file, path), strict=True)
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
    with ExitStack() as opened:
        source: Any = path
        if path.suffix.lower() in PACKED:
            content = opened.enter_context(open_bytes(path)).read(LARGEST_PACKED + 1)
            if len(content) > LARGEST_PACKED:
                raise InputError(
                    f"{path} unpacks to more than {LARGEST_PACKED:,} bytes; unpack it first"
                )
            source = io.BytesIO(content)
        elif not isinstance(path, Path):  # In an object store.
            source = opened.enter_context(path.open("rb"))
        yield from _parquet_rows(source, path, columns, choose, texts)


def _parquet_rows(
    source: Any, path: Path, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
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
        for batch in table.iter_batches(PARQUET_ROWS, columns=list(columns)):
            for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                number += 1
                if any(isinstance(cell, str) and len(cell) > LONGEST_LINE for cell in cells):
                    raise too_long(f"{path}, row {number}")
                yield number, list(cells)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a whole parquet file: {error}") from None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))
