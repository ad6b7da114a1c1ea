"""Reading lines and rows: text, csv, tsv, jsonl and parquet, any of them packed."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from bertflow.errors import InputError, MissingDependencyError, check_choice, need, quoted, shown
from bertflow.io.files import reason_of
from bertflow.io.reading import HEAD, contents, parse_json

log = logging.getLogger(__name__)
warn_once = cache(log.warning)  # A corpus may be read twice.
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
FILE_KINDS = (".txt", *TABLES)
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
# No more is held at a time, whatever a file says or a packed one unpacks to.
LONGEST_LINE = 2**24
PARQUET_ROWS = 1024
PARQUET_MARK = b"PAR1"
LISTED = 20
READ_AT_ONCE = 2**16
# What may stand between the cells of a .csv, the usual one first.
DELIMITERS = ",;|\t"
SEPARATORS = str.maketrans("", "", " -_")
# A single column of one of these names has a header; of another name it may be a first sentence.
TEXT_NAMES = frozenset(
    "text texts sentence sentences content contents body document documents paragraph passage "
    "question query answer title abstract description comment review message tweet post".split()
)


class StandardInput(PurePosixPath):
    """Standard input by the interface of a path; it can be read once."""

    def open(self, mode: str = "rb") -> AbstractContextManager[Any]:
        """Its bytes, whatever encoding the locale gives it."""
        if sys.stdin is None:
            raise InputError(f"{self} is closed; give a file, or sentences to read")
        if hasattr(sys.stdin, "buffer"):
            return nullcontext(sys.stdin.buffer)
        return io.BytesIO(sys.stdin.read().encode())  # A stand-in that has text only.


File = Path | StandardInput
STANDARD_INPUT = StandardInput("standard input")
Row = tuple[int, list[Any]]


@dataclass(frozen=True)
class Wanted:
    """The columns that are wanted of a table.

    Attributes:
        path: The table.
        columns: Names; or for a .csv or .tsv without a header numbers from 1, as digits.
        roles: What each of them is.
        known: Where no columns are named, the names that each part of them has in common use,
            without capitals, spaces, hyphens and underscores; those of several columns stand
            together. If there are none, the only column of text is taken, and then no row of a
            .jsonl may hold text elsewhere.
        texts: How many of the columns, from the first, must be text.
    """

    path: Any
    columns: Sequence[str] | None
    roles: Sequence[str] = ("text",)
    known: Sequence[Sequence[str]] = ()
    texts: int = 1

    @property
    def named(self) -> bool:
        """Whether columns have names, which stand in a header."""
        return self.columns is None or not any(map(str.isdecimal, self.columns))

    def chosen(self, names: Sequence[str], texts: Sequence[str]) -> Sequence[str]:
        """Columns of a table with these names, of which some may hold text; one reading only."""
        if not self.known:
            return only_text(self.path, texts)
        plain = [name.strip().lower().translate(SEPARATORS) for name in names]
        found = [[one for one in part if set(one.split()) <= set(plain)] for part in self.known]
        chosen = [name for part in found for one in part for name in one.split()]
        if all(len(part) == 1 for part in found) and all(plain.count(one) == 1 for one in chosen):
            return [names[plain.index(name)] for name in chosen]
        once = [name for name in names if name and names.count(name) == 1][: len(self.roles)]
        such = [*once, *map(str.upper, self.roles[len(once) :])]
        if any(name.replace(".", "").isdecimal() for name in names):  # There is no header.
            such = [str(number) for number, _ in enumerate(self.roles, start=1)]
        raise InputError(
            f"{self.path}: cannot tell which columns are {', '.join(self.roles)}; it has "
            f"{listed(names)}; name them by columns, such as --columns {quoted(','.join(such))}, "
            "or where there is no header by numbers from 1"
        )


def only_text(path: object, texts: Sequence[str]) -> Sequence[str]:
    """The one column of text; several or none are refused."""
    if len(texts) == 1:
        return texts
    raise InputError(
        f"{path} has {len(texts)} text columns ({listed(texts)}); "
        "name one by --column (in Python column=)"
    )


def name_of(path: File) -> str:
    """A file's name without its ending, and without that of its packing."""
    name = path.name.removesuffix(path.suffix) if path.suffix.lower() in PACKED else path.name
    return Path(name).stem


def kind_of(path: File, kinds: Sequence[str], format: str | None = None) -> str:
    """The ending that says how a file is read: `format`, or that of its name without packing."""
    if not isinstance(path, StandardInput) and not path.exists():
        raise InputError(f"{path} does not exist")
    if format is not None:
        check_choice("format", format, tuple(kind[1:] for kind in kinds))
        return f".{format}"
    endings = map(str.lower, reversed(path.suffixes))
    other = ".txt" if isinstance(path, StandardInput) else ""
    kind = next((ending for ending in endings if ending not in PACKED), other)
    if kind not in kinds:
        like = kinds[0][1:]
        raise InputError(
            f"{path} is of unknown kind {kind!r}; expected one of {', '.join(kinds)}, each also "
            f"with {', '.join(PACKED)}; give files or a pattern of such files, or name the format "
            f'by --format {like} (in Python format="{like}")'
        )
    return kind


@contextmanager
def open_bytes(path: File) -> Iterator[Any]:
    """Open a file, packed or not, for its bytes; also while they are read it may be refused."""
    packing = path.suffix.lower()
    broken: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
    try:
        with path.open("rb") as file:
            if packing == ".gz":
                yield gzip.open(file, "rb")
            elif packing in PACKED:
                start, error = _decompressor(packing, path)
                broken = (*broken, error)
                yield io.BufferedReader(_Unpacked(file, start))
            else:  # In an object store, its own readline takes no bound.
                yield file if isinstance(file, io.BufferedIOBase) else io.BufferedReader(file)
    except broken as error:
        raise InputError(f"{path} is not a whole {PACKED[packing]} file: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}") from None


class _Unpacked(io.RawIOBase):
    """All streams of a packed file; bz2.open and lzma.open stop silently at other bytes."""

    def __init__(self, file: Any, start: Callable[[], Any]) -> None:
        self._file, self._start, self._stream = file, start, start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0")  # Zeros may pad a stream.
                while not packed and (more := self._file.read(READ_AT_ONCE)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    return 0
                self._stream = self._start()
            elif self._stream.needs_input and not (packed := self._file.read(READ_AT_ONCE)):
                raise EOFError("it breaks off")
            if data := self._stream.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def _decompressor(packing: str, path: File) -> tuple[Callable[[], Any], type[Exception]]:
    """What starts to unpack a stream, and the error that it raises."""
    if packing == ".bz2":
        return bz2.BZ2Decompressor, OSError
    if packing == ".xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    # Not zstandard, which takes a broken-off file for a whole one.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            module = import_module(name)
            return module.ZstdDecompressor, module.ZstdError
    raise MissingDependencyError(
        f"reading {path.name} needs backports.zstd: pip install 'bertflow[remote]'"
    )


def whole_lines(path: File) -> Iterator[str]:
    """The lines of a file, packed or not, decoded, with their line feeds.

    Even a small packed file may hold a line that fills the memory, so one that is too long is
    refused.
    """
    with open_bytes(path) as file:
        read = iter(partial(file.readline, LONGEST_LINE + 1), b"")
        for number, line in enumerate(read, start=1):
            if number == 1:  # Spreadsheets put a byte-order mark before the first column's name.
                if said := contents(line[:HEAD]):
                    raise InputError(f"{path} {said}")
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) > LONGEST_LINE:
                raise InputError(
                    f"{path}, line {number}: it has more than {LONGEST_LINE:,} bytes; give one "
                    "sentence a row"
                )
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text = "\0"
            if "\0" in text or text.startswith("\ufeff"):
                raise InputError(
                    f"{path} is not UTF-8 text: line {number}; it may be Windows-1252 (Latin-1) or "
                    "UTF-16 text, hold a NUL character, or be several files, one after another; "
                    "convert it to UTF-8, for example by iconv"
                )
            yield text


def read_lines(path: File, *, returns: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers from 1, without line feed and one return.

    Without `returns`, a carriage return within a line is refused: to many programs a line ends
    there.
    """
    for number, whole in enumerate(whole_lines(path), start=1):
        line = whole.removesuffix("\n").removesuffix("\r")
        if not returns and "\r" in line.strip("\r"):
            raise InputError(
                f"{path}, line {number}: it has a carriage return within; end lines with line "
                "feeds, as by tr '\\r' '\\n'"
            )
        yield number, line


def read_rows(kind: str, wanted: Wanted) -> Iterator[Row]:
    """The cells of some columns of a file whose ending, one of `TABLES`, is `kind`.

    Yields:
        The number of line (in parquet row) and the cells; none of a row with nothing in it.

    Raises:
        InputError: A column is missing, there twice or not text, a row is malformed or has other
            cells than the header (named by line), or the file is damaged.
        MissingDependencyError: A .parquet without its package; the message is the pip line.
    """
    if kind == ".parquet":
        return _parquet(wanted)
    if kind == ".jsonl":
        return _jsonl(wanted)
    if kind == ".csv":
        return _delimited(_comma_separated(wanted), wanted)
    return _delimited(((n, line.split("\t")) for n, line in read_lines(wanted.path)), wanted)


def listed(names: Collection[str]) -> str:
    """Names for a message, at most so many."""
    first = ", ".join(map(shown, islice(names, LISTED))) or "none"
    return f"{first} and {len(names) - LISTED:,} more" if len(names) > LISTED else first


def read_objects(path: File, expected: str) -> Iterator[tuple[int, str, Any]]:
    """Number, place and value of each line of JSON that is not blank."""
    for number, line in enumerate(whole_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = parse_json(line.strip(), constants=True)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error}); {expected}") from None
        yield number, place, value


def _jsonl(wanted: Wanted) -> Iterator[Row]:
    path, columns = wanted.path, wanted.columns
    expected = "expected an object, as jq -c . writes lines, or jq -c '.[]' for an array"
    alone = columns is None and not wanted.known
    for number, place, row in read_objects(path, expected):
        if isinstance(row, str) and wanted.texts == 1:
            yield number, [row]
            continue
        if not isinstance(row, dict):
            raise InputError(f"{place}: got {shown(row)}; {expected}")
        strings = [key for key, value in row.items() if may_hold_text(value)]
        if columns is None:
            columns = wanted.chosen(list(row), strings)
        for position, column in enumerate(columns):
            if column not in row:
                raise InputError(f"{place}: no {shown(column)}; it has {listed(row)}")
            if position < wanted.texts and not isinstance(row[column], str | None):
                raise InputError(f"{place}: {shown(column)} is not text")
        if alone and (others := [key for key in strings if key not in columns]):
            raise InputError(
                f"{place}: {listed(others)} is text, as is {shown(columns[0])}; name one by "
                "--column (in Python column=)"
            )
        yield number, [row[column] for column in columns]


def _delimited(rows: Iterator[tuple[int, list[str]]], wanted: Wanted) -> Iterator[Row]:
    path, columns = wanted.path, wanted.columns
    begin, header = next(rows, (0, []))
    if not begin:  # An empty file; a first line that is blank is no header, and refused below.
        return
    names = header
    if columns is None or wanted.named:
        while header and not header[-1].strip():  # A delimiter at the end of every line.
            header.pop()
        if columns is None:
            columns = wanted.chosen(header, header)
            _check_header(header, path)
    else:
        if all(cell.strip().isdecimal() for cell in header):
            raise InputError(
                f"{path}, line 1: all its cells are numbers, so {', '.join(columns)} may be names "
                "or places; give the columns names of letters"
            )
        names = [str(number) for number, _ in enumerate(header, start=1)]
        rows = chain([(begin, header)], rows)
    positions = [column_index(column, names, path) for column in columns]
    width = len(header)
    for number, row in rows:
        if not any(map(str.strip, row)):
            yield number, []
            continue
        if len(row) < width or any(map(str.strip, row[width:])):
            raise InputError(
                f"{path}, line {number}: {len(row)} cells, but the first line has {width} "
                f"({listed(header)}); in .csv put a text that holds the delimiter or an end of "
                "line in quotes; if there is one sentence a line, name the file .txt"
            )
        yield number, [row[position] for position in positions]


def column_index(column: str, names: Sequence[str], path: object) -> int:
    """The place of a column among a table's; none or several of its name are refused."""
    count = names.count(column)
    if count != 1:
        said = f"{count} columns" if count else "no column"
        raise InputError(f"{path} has {said} {shown(column)}; it has {listed(names)}")
    return names.index(column)


def _check_header(header: Sequence[str], path: object) -> None:
    """Refuse what may be a first sentence: a single column that nobody named; of one word, warn."""
    name = header[0].strip()
    if len(header) > 1 or name.lower() in TEXT_NAMES:
        return
    remedy = "for a file without a header give --column 1 (in Python column='1')"
    if re.fullmatch(r"\w+", name):
        warn_once(f"{path}: line 1, {shown(name)}, is taken as the column's name; {remedy}")
        return
    raise InputError(
        f"{path}: line 1, {shown(name)}, stands where the column's name is expected, and may be a "
        f"sentence, or names between other marks, which --format csv reads; {remedy}, else its "
        "name by --column"
    )


def _comma_separated(wanted: Wanted) -> Iterator[tuple[int, list[str]]]:
    path = wanted.path
    lines = whole_lines(path)
    first = next(lines, "")
    if re.match('"?sep=', first, re.IGNORECASE):
        raise InputError(f"{path}, line 1: {shown(first.strip())} is a mark of Excel's; remove it")
    # Spreadsheets of some languages write semicolons. In prose a space follows a mark.
    counts = {mark: len(re.findall(f"[{mark}]\\S", first)) for mark in DELIMITERS}
    delimiter = max(counts, key=lambda mark: counts[mark])
    if not wanted.named and 0 < counts[","] < counts[delimiter]:
        raise InputError(
            f"{path}, line 1: cells may end at ',' or at {delimiter!r}; give the columns names in "
            "a line before it"
        )
    spaced = 0 < first.count(delimiter) == first.count(f"{delimiter} ")
    # Strict: a quote that never closes is an error, not the end of the corpus.
    reader = csv.reader(
        chain(filter(None, [first]), lines),
        delimiter=delimiter,
        skipinitialspace=spaced,
        strict=True,
    )
    begins = 1
    try:
        for row in reader:
            yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {begins}: the row that begins there is malformed ({error}); does a "
            "quote never close, or a line end with a carriage return?"
        ) from None


def _parquet(wanted: Wanted) -> Iterator[Row]:
    path = wanted.path
    need(f"reading {path.name}", "parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    with open_bytes(path) as file:
        if path.suffix.lower() in PACKED or not file.seekable():
            file = io.BytesIO(file.read())
        head = file.read(HEAD)
        file.seek(0)
        if not head.startswith(PARQUET_MARK) and (said := contents(head)):
            raise InputError(f"{path} {said}")
        try:
            table = pyarrow.parquet.ParquetFile(file)
            chosen = _chosen(table.schema_arrow, wanted)
            batches = table.iter_batches(PARQUET_ROWS, columns=list(chosen))
            yield from arrow_rows(batches, replace(wanted, columns=chosen))
            if "://" not in str(path):  # What comes over a network is not read twice.
                _check_alone(file, table.metadata, chosen, path)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a whole parquet file: {error}") from None


def _check_alone(file: Any, metadata: Any, chosen: Sequence[str], path: File) -> None:
    """Refuse a file that was appended to another: its end describes the last one only.

    The mark between them is looked for behind the place where the last text begins.
    """
    end, place, last = b"", 0, metadata.num_row_groups - 1
    for leaf in range(metadata.num_columns if last >= 0 else 0):
        # In a damaged file columns that were not read may end the interpreter.
        if metadata.schema.column(leaf).path.partition(".")[0] in chosen:
            place = max(place, metadata.row_group(last).column(leaf).data_page_offset)
    file.seek(place)
    while block := file.read(READ_AT_ONCE):
        if 2 * PARQUET_MARK in end + block:  # The first one's end and the next one's beginning.
            raise InputError(
                f"{path} holds several parquet files, one after another; separate them"
            )
        end = block[1 - 2 * len(PARQUET_MARK) :]


def arrow_rows(batches: Iterable[Any], wanted: Wanted) -> Iterator[Row]:
    """The cells of some columns of Arrow tables, row by row."""
    number, names = 0, list[str]()
    for batch in batches:
        names = list(dict.fromkeys([*names, *_chosen(batch.schema, wanted)]))
        if wanted.columns is None:  # A stream may have its text elsewhere later.
            only_text(wanted.path, names)
        for cells in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            number += 1
            yield number, list(cells)


def _chosen(schema: Any, wanted: Wanted) -> Sequence[str]:
    path, columns = wanted.path, wanted.columns
    if columns is None:
        strings = [field.name for field in schema if not _is_number(field.type)]
        columns = wanted.chosen(schema.names, strings)
    for column in columns[: wanted.texts]:
        check_text(schema, column, path)
    for column in columns[wanted.texts :]:
        column_index(column, schema.names, path)
    return columns


def check_text(schema: Any, column: str, path: object) -> None:
    """Refuse an Arrow schema in which a column is missing, there twice or no text."""
    kind = schema.field(column_index(column, schema.names, path)).type
    # A batch of a stream may have nothing in the column, and no type then.
    if not is_text(kind) and str(kind) != "null":
        raise InputError(f"{path}: column {column!r} is not text but {kind}")


def may_hold_text(value: Any) -> bool:
    """Whether a cell is text, or something with text inside, which is then not chosen silently."""
    if isinstance(value, list):
        return any(map(may_hold_text, value))
    return isinstance(value, str | dict)


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
