"""Reading lines and rows: text, csv, tsv, jsonl and parquet, any of them packed."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from bertflow.errors import InputError, MissingDependencyError, shown
from bertflow.io.reading import HEAD, contents, parse_json

log = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
KINDS = (".txt", *TABLES)
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
# So much is read at a time, whatever a file says or a packed one unpacks to: characters of a line
# or cell, bytes of a packed .parquet, rows of a .parquet.
LONGEST_LINE = 2**24
LARGEST_PACKED = 2**30
PARQUET_ROWS = 1024
PARQUET_MARK = b"PAR1"
STANDARD_INPUT = "-"
LISTED = 20
UNPACKED_AT_ONCE = 2**16
# What may stand between the cells of a .csv, the usual one first.
DELIMITERS = ",;|\t"
# A single column of one of these names has a header; of another name it may be a first sentence.
TEXT_NAMES = frozenset(
    "text texts sentence sentences content contents body document documents paragraph passage "
    "question query answer title abstract description comment review message tweet post".split()
)
CONVERT = "convert it to UTF-8, for example by iconv"
SENTENCE_ENDS = tuple(".!?…。！？")  # noqa: RUF001


@dataclass(frozen=True)
class StandardInput:
    """Standard input, with as much of a path's interface as readers use; it can be read once."""

    name = "standard input"
    suffix = ""
    suffixes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def exists(self) -> bool:
        """Whether it is there: whether it is open is seen when it is read."""
        return True

    def is_dir(self) -> bool:
        """It is not."""
        return False

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[Any]:
        """Its bytes, whatever encoding the locale gives it; a stand-in may have text only."""
        if sys.stdin is None:
            raise InputError(f"{self} is closed; give a file, or sentences to read")
        yield getattr(sys.stdin, "buffer", sys.stdin)


File = Path | StandardInput


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and those of them that may hold text."""

    path: File | str
    names: Sequence[str]
    texts: Sequence[str]


Row = tuple[int, list[Any] | None]
Choose = Callable[[Columns], Sequence[str]]


def only_text(table: Columns) -> Sequence[str]:
    """The one column of text; several or none are refused."""
    if len(table.texts) == 1:
        return table.texts
    raise InputError(
        f"{table.path} has {len(table.texts)} text columns ({listed(table.texts)}); "
        "name one by --column (in Python column=)"
    )


def kind_of(path: File, kinds: Sequence[str], format: str | None = None) -> str:
    """The ending that says how a file is read: that of `format`, or of its name without packing.

    Raises:
        InputError: The file is missing, a folder, or of none of these kinds.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give its files")
    if format is not None:
        kind = f".{format}"
        if kind not in kinds:
            names = ", ".join(kind[1:] for kind in kinds)
            raise InputError(f"format must be one of {names}, got {format!r}")
        return kind
    kind = ending(path)
    if kind not in kinds:
        said = f"is of unknown kind {kind!r}" if kind else "has no ending"
        like = [*get_close_matches(kind, kinds, 1), kinds[0]][0]
        raise InputError(
            f"{path} {said}; expected one of {', '.join(kinds)}, each also with "
            f"{', '.join(PACKED)}; name its format by "
            f'--format {like[1:]} (in Python format="{like[1:]}")'
        )
    return kind


def ending(path: File) -> str:
    """The ending of a file's name, lower case and without that of its packing."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def bounded_lines(file: Any, name: str | File) -> Iterator[str]:
    """The lines of a file opened by `open_bytes`, decoded, with their line feeds.

    Raises:
        InputError: The file is no UTF-8 text, or a line is longer than any sentence: even a small
            packed file may hold a line that fills the memory.
    """
    number = 1
    # A character has four bytes at most.
    while line := file.readline(4 * LONGEST_LINE + 1):
        if number == 1 and isinstance(line, bytes) and (said := contents(line[:HEAD])):
            raise InputError(f"{name} {said}")
        if len(line) > 4 * LONGEST_LINE:
            raise too_long(f"{name}, line {number}")
        try:
            text = line.decode() if isinstance(line, bytes) else line
        except UnicodeDecodeError:
            raise InputError(
                f"{name} is not UTF-8 text: line {number}; it may be Windows-1252 (Latin-1) or "
                f"UTF-16 text; {CONVERT}"
            ) from None
        if number == 1:  # Spreadsheets put a byte-order mark in front of the first column's name.
            text = text.removeprefix("\ufeff")
        elif text.startswith("\ufeff"):
            raise InputError(
                f"{name}, line {number}: it begins with a byte-order mark, so files were put one "
                "after another; give each of them"
            )
        if "\0" in text:
            raise InputError(
                f"{name}, line {number}: it has a NUL character, as UTF-16 text has; {CONVERT}, "
                "or remove the character"
            )
        if len(text) > LONGEST_LINE:
            raise too_long(f"{name}, line {number}")
        yield text
        number += 1


def too_long(place: str) -> InputError:
    """The error for a line or cell that is longer than any sentence."""
    return InputError(
        f"{place}: it has more than {LONGEST_LINE:,} characters; give one sentence a row"
    )


@contextmanager
def open_bytes(path: File) -> Iterator[Any]:
    """Open a file, packed or not, for its bytes.

    Raises:
        InputError: It cannot be read, or is not whole; also while it is being read.
        MissingDependencyError: A .zst without its package; the message is the pip line.
    """
    packing = path.suffix.lower()
    try:
        with path.open("rb") as file:
            if packing == ".gz":
                with gzip.open(file, "rb") as stream:
                    yield stream
            elif packing == ".xz":
                yield io.BufferedReader(_Unpacked(file, lzma.LZMADecompressor, lzma.LZMAError))
            elif packing == ".bz2":
                yield io.BufferedReader(_Unpacked(file, bz2.BZ2Decompressor, OSError))
            elif packing == ".zst":
                zstd = _zstd(path)
                yield io.BufferedReader(_Unpacked(file, zstd.ZstdDecompressor, zstd.ZstdError))
            elif isinstance(file, io.RawIOBase | io.BufferedIOBase | io.TextIOBase):
                yield file
            else:  # In an object store; its own readline takes no bound.
                with io.BufferedReader(file) as stream:
                    yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole {PACKED.get(packing, 'packed')} file: {error}"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


class _Unpacked(io.RawIOBase):
    """All bytes of a packed file; Python's own readers stop silently at trailing bytes."""

    def __init__(self, file: Any, start: Callable[[], Any], error: type[Exception]) -> None:
        self._file, self._start, self._error = file, start, error
        self._stream = start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self._stream.eof:
                # Zeros may pad a stream.
                packed = self._stream.unused_data.lstrip(b"\0")
                while not packed and (more := self._file.read(UNPACKED_AT_ONCE)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    return 0
                self._stream = self._start()
            elif self._stream.needs_input and not (packed := self._file.read(UNPACKED_AT_ONCE)):
                raise EOFError("it breaks off")
            try:
                data = self._stream.decompress(packed, len(buffer))
            except self._error as error:
                raise EOFError(str(error)) from None
            if data:
                buffer[: len(data)] = data
                return len(data)


def _zstd(path: File) -> Any:
    # Not zstandard, which takes a broken-off file for a whole one.
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingDependencyError(
        f"reading {path.name} needs backports.zstd: pip install 'bertflow[remote]'"
    )


def read_lines(path: File, *, returns: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers from 1, without line feed and one return.

    Raises:
        InputError: The file cannot be read, is not UTF-8, or (without `returns`) has a carriage
            return within a line: to many programs a line ends there.
    """
    with open_bytes(path) as file:
        for number, whole in enumerate(bounded_lines(file, path), start=1):
            line = whole.removesuffix("\n").removesuffix("\r")
            if not returns and "\r" in line.strip("\r"):
                raise _lone_return(f"{path}, line {number}")
            yield number, line


def _lone_return(place: str) -> InputError:
    return InputError(
        f"{place}: it has a carriage return within; end lines with line feeds, as by tr '\\r' '\\n'"
    )


def read_rows(
    path: File,
    kind: str,
    columns: Sequence[str] | None,
    choose: Choose = only_text,
    *,
    texts: int = 1,
) -> Iterator[Row]:
    """The cells of some columns, row by row.

    Args:
        path: The table.
        kind: Its ending, one of `TABLES`.
        columns: Names; or for a .csv or .tsv without a header numbers from 1, as digits.
        choose: Gives the names where `columns` is None.
        texts: How many of the columns, from the first, must be text. If it is 1, a row of a .jsonl
            may be a bare string. If the column is also chosen, no row may hold text elsewhere.

    Yields:
        The number of line (in parquet row) and the cells; None for a row with nothing in it.

    Raises:
        InputError: A column is missing, there twice or not text, a row is malformed or has other
            cells than the header (named by line), or the file is damaged.
        MissingDependencyError: A .parquet without its package; the message is the pip line.
    """
    named = columns is None or not any(column.isdecimal() for column in columns)
    if kind == ".tsv":
        rows = ((number, line.split("\t")) for number, line in read_lines(path))
        yield from _delimited(rows, path, columns, choose, named)
        return
    with open_bytes(path) as file:
        if kind == ".parquet":
            yield from _parquet(file, path, columns, choose, texts)
        elif kind == ".jsonl":
            yield from _jsonl(file, path, columns, choose, texts)
        else:
            cells = _comma_separated(file, path, named)
            yield from _delimited(cells, path, columns, choose, named)


def listed(names: Iterable[str]) -> str:
    """Names for a message, at most so many."""
    rest = iter(names)
    first = ", ".join(map(shown, islice(rest, LISTED))) or "none"
    more = sum(1 for _ in rest)
    return f"{first} and {more:,} more" if more else first


def _jsonl(
    file: Any, path: File, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    expected = "an object or a string" if texts == 1 else "an object"
    alone = columns is None and texts == 1
    for number, line in enumerate(bounded_lines(file, path), start=1):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = parse_json(line.strip(), constants=True)
        except ValueError as error:
            if line.lstrip().startswith("["):
                raise InputError(f"{place}: expected {expected}, got {_json_name([])}") from None
            raise InputError(
                f"{place}: not JSON ({error}); a line holds {expected}, as jq -c . writes it"
            ) from None
        if isinstance(row, str) and texts == 1:
            yield number, [row]
            continue
        if not isinstance(row, dict):
            raise InputError(f"{place}: expected {expected}, got {_json_name(row)}")
        strings = [key for key, value in row.items() if may_hold_text(value)]
        if columns is None:
            columns = choose(Columns(path, list(row), strings))
        for position, column in enumerate(columns):
            if column not in row:
                raise InputError(f"{place}: no {shown(column)}; it has {listed(row)}")
            if position < texts and not isinstance(row[column], str | None):
                raise InputError(f"{place}: {shown(column)} is not text")
        if alone and (others := [key for key in strings if key not in columns]):
            raise InputError(
                f"{place}: {listed(others)} is text, as is {shown(columns[0])}; name one by "
                "--column (in Python column=)"
            )
        yield number, [row[column] for column in columns]


def _json_name(value: Any) -> str:
    if isinstance(value, list):
        return "an array; jq -c '.[]' makes lines of one"
    return shown(value)


def _delimited(
    rows: Iterator[tuple[int, list[str]]],
    path: File,
    columns: Sequence[str] | None,
    choose: Choose,
    named: bool,
) -> Iterator[Row]:
    """The cells of some columns; `named` says that the first row is the header."""
    begin, header = next(rows, (0, None))
    if header is None:
        return
    if named:
        while header and not header[-1].strip():  # A delimiter at the end of every line.
            header.pop()
        chosen = columns
        if chosen is None:
            chosen = choose(Columns(path, header, header))
            if len(header) == 1:
                _check_header(header[0], path)
        positions = [column_index(column, header, path) for column in chosen]
    else:
        assert columns is not None
        if all(cell.strip().isdecimal() for cell in header):
            raise InputError(
                f"{path}, line 1: all its cells are numbers, so {', '.join(columns)} may be names "
                "or places; give the columns names of letters"
            )
        positions = [_position(column, header, path) for column in columns]
        yield begin, [header[position] for position in positions]
    width = len(header)
    for number, row in rows:
        if not any(map(str.strip, row)):
            yield number, None
            continue
        if len(row) < width or any(map(str.strip, row[width:])):
            first = f"the header has {width} ({listed(header)})" if named else f"line 1 has {width}"
            lines = "; if it has one sentence a line, name it .txt" if width == 1 else ""
            raise InputError(
                f"{path}, line {number}: {len(row)} cells, but {first}; in .csv put a text that "
                f"holds the delimiter or an end of line in quotes{lines}"
            )
        yield number, [row[position] for position in positions]


def column_index(column: str, names: Sequence[str], path: File | str) -> int:
    """The place of a column among a table's; none or several of its name are refused."""
    count = names.count(column)
    if count != 1:
        said = f"{count} columns" if count else "no column"
        raise InputError(f"{path} has {said} {shown(column)}; it has {listed(names)}")
    return names.index(column)


def _check_header(name: str, path: File) -> None:
    """Refuse or say what may be a first sentence, in a file of one column that nobody named."""
    remedy = "for a file without a header give --column 1 (in Python column='1')"
    several = re.search(r"[,;|]\S", name)
    if several or len(name.split()) > 2 or name.rstrip().endswith(SENTENCE_ENDS):
        like = "several names; as a .csv it is read by --format csv" if several else "a sentence"
        raise InputError(
            f"{path}: line 1, {shown(name)}, stands where the column's name is expected, and is "
            f"like {like}; {remedy}, else name the column by --column"
        )
    if name.strip().lower() not in TEXT_NAMES:
        _warn(f"{path}: line 1, {shown(name)}, is taken as the column's name; {remedy}")


@cache
def _warn(said: str) -> None:
    # Once, though a corpus may be read twice.
    log.warning(said)


def _position(column: str, header: Sequence[str], path: File) -> int:
    if not column.isdecimal():
        raise InputError(f"columns must be all names or all numbers, got {column!r} among numbers")
    if int(column) == 0:
        raise InputError(f"column must be a name or a number from 1, got {column!r}")
    if int(column) > len(header):
        raise InputError(f"{path}, line 1: no column {column}; it has {len(header)}")
    return int(column) - 1


def _comma_separated(file: Any, path: File, named: bool) -> Iterator[tuple[int, list[str]]]:
    lines = bounded_lines(file, path)
    first, begins = next(lines, ""), 1
    if declared := re.fullmatch(r'"?sep=(.)"?\s*', first, re.IGNORECASE):  # Excel's own.
        delimiter, begins = declared[1], 2
        first = next(lines, "")
    else:
        # Spreadsheets of some languages write semicolons. In prose a space follows a mark.
        counts = {mark: len(re.findall(f"[{mark}]\\S", first)) for mark in DELIMITERS}
        delimiter = max(counts, key=lambda mark: counts[mark])
        if not named and 0 < counts[","] < counts[delimiter]:
            raise InputError(
                f"{path}, line 1: cells may end at ',' or at {delimiter!r}; say by which in "
                f"a line before it, such as sep={delimiter}"
            )
    spaced = 0 < first.count(delimiter) == first.count(f"{delimiter} ")
    lines, before = chain([first] if first else [], lines), begins
    # Strict: a quote that never closes is an error, not the end of the corpus.
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=spaced, strict=True)
    try:
        while (row := _next_row(reader)) is not None:
            yield begins, row
            begins = reader.line_num + before
    except csv.Error as error:
        place = f"{path}, line {begins}"
        if "new-line" in str(error):
            raise _lone_return(place) from None
        said = "a cell is too long; does a quote never close?" if "limit" in str(error) else error
        raise InputError(f"{place}: the row that begins there is malformed ({said})") from None


def _next_row(reader: Any) -> list[str] | None:
    # The module's limit holds for the whole process, so it is ours for a moment only.
    limit = csv.field_size_limit(LONGEST_LINE)
    try:
        row: list[str] | None = next(reader, None)
        return row
    finally:
        csv.field_size_limit(limit)


def _parquet(
    file: Any, path: File, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Iterator[Row]:
    if find_spec("pyarrow") is None:
        raise MissingDependencyError(
            f"reading {path.name} needs pyarrow: pip install 'bertflow[parquet]'"
        )
    import pyarrow
    import pyarrow.parquet

    if path.suffix.lower() in PACKED or not file.seekable():
        content = file.read(LARGEST_PACKED + 1)
        if len(content) > LARGEST_PACKED:
            raise InputError(
                f"{path} unpacks to more than {LARGEST_PACKED:,} bytes; unpack it first"
            )
        file = io.BytesIO(content)
    head = file.read(HEAD)
    file.seek(0)
    if not head.startswith(PARQUET_MARK) and (said := contents(head)):
        raise InputError(f"{path} {said}")
    try:
        table = pyarrow.parquet.ParquetFile(file)
        _check_alone(file, table.metadata, path)
        chosen = _chosen(table.schema_arrow, path, columns, choose, texts)
        batches = table.iter_batches(PARQUET_ROWS, columns=list(chosen))
        yield from arrow_rows(batches, path, chosen, choose, texts=texts)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a whole parquet file: {error}") from None


def _check_alone(source: Any, metadata: Any, path: File) -> None:
    """Refuse a file that was appended to another: the end describes the last one only."""
    if not metadata.num_row_groups or not metadata.num_columns:
        return
    begins, ends = [], []
    for group, column in product((0, metadata.num_row_groups - 1), range(metadata.num_columns)):
        chunk = metadata.row_group(group).column(column)
        pages = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
        begins.append(chunk.data_page_offset if pages is None else pages)
        ends.append(begins[-1] + chunk.total_compressed_size)
    source.seek(max(ends))
    if min(begins) > len(PARQUET_MARK) or PARQUET_MARK * 2 in source.read(LARGEST_PACKED):
        raise InputError(f"{path} holds several parquet files, one after another; separate them")


def arrow_rows(
    batches: Iterable[Any],
    path: File | str,
    columns: Sequence[str] | None,
    choose: Choose = only_text,
    *,
    texts: int = 1,
) -> Iterator[tuple[int, list[Any]]]:
    """The cells of some columns of Arrow tables, row by row; arguments as of `read_rows`.

    Raises:
        InputError: A column is missing or not text, or another one is the text in a later table.
    """
    number, before = 0, columns
    try:
        for batch in batches:
            chosen = _chosen(batch.schema, path, columns, choose, texts)
            if before is not None and chosen != before:
                raise InputError(
                    f"{path}, from row {number + 1} on: {listed(chosen)} is the text, before it "
                    f"was {listed(before)}; name one by --column (in Python column=)"
                )
            before = chosen
            for cells in zip(*(batch.column(name).to_pylist() for name in chosen), strict=True):
                number += 1
                if any(isinstance(cell, str) and len(cell) > LONGEST_LINE for cell in cells):
                    raise too_long(f"{path}, row {number}")
                yield number, list(cells)
    except UnicodeDecodeError:
        raise InputError(f"{path}, after row {number}: a text is not UTF-8") from None


def _chosen(
    schema: Any, path: File | str, columns: Sequence[str] | None, choose: Choose, texts: int
) -> Sequence[str]:
    """The columns to read from an Arrow schema; the first of them must be text."""
    if columns is None:
        strings = [field.name for field in schema if not _is_number(field.type)]
        columns = choose(Columns(path, schema.names, strings))
    for position, column in enumerate(columns):
        if position < texts:
            check_text(schema, column, path)
        else:
            column_index(column, schema.names, path)
    return columns


def check_text(schema: Any, column: str, path: File | str) -> None:
    """Refuse an Arrow schema in which a column is missing, there twice or no text."""
    kind = schema.field(column_index(column, schema.names, path)).type
    # A batch of a stream may have nothing in the column, and no type then.
    if not is_text(kind) and str(kind) != "null":
        raise InputError(f"{path}: column {column!r} is not text but {kind}")


def may_hold_text(value: Any) -> bool:
    """Whether a cell is text, or something with text inside, which is then not chosen silently."""
    if isinstance(value, list | tuple):
        return any(map(may_hold_text, value))
    return isinstance(value, str | bytes | dict)


def _is_number(kind: Any) -> bool:
    """Whether an Arrow type is of numbers, times or truth values, or of lists of these."""
    from pyarrow import types

    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return bool(types.is_primitive(kind) or types.is_decimal(kind))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text: any of its string types, or a dictionary of one."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")
