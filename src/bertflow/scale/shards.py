"""The input: parquet files and the parts of large ones, in a local folder or an object store.

Vectors are columns of lists there, and matrices elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
from pyarrow import compute, fs, types
from pyarrow.parquet import ParquetFile

from bertflow.arrays import Array
from bertflow.data.tables import column_index, is_text, listed
from bertflow.errors import InputError, MissingDependencyError
from bertflow.io.files import reason_of

# The default name of the column of vectors.
VECTOR = "vector"
# What messages call a batch that does not come from a file.
BATCH = "the batch"
# A larger file is split: a process that is killed loses the shard it works on.
SHARD_ROWS = 2**18
# Rows that are read, worked on and written at a time.
BATCH_ROWS = 2**14
# Parquet footers that are read at the same time.
READERS = 16
BUFFER_BYTES = 2**20
# Arrow has clients of its own for these; fsspec serves all other addresses.
ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")

# Takes a schema and the name of its file; gives the columns to read, or raises an InputError.
ColumnChoice = Callable[[Any, str], Sequence[str]]


@dataclass(frozen=True)
class FileVersion:
    """A file, relative to the place, and its size and time, or what the store keeps instead."""

    path: str
    version: str


@dataclass(frozen=True)
class Shard:
    """A file of the input, or its row groups from `start` to before `stop`.

    `name` is the output file that is made of it, and `first` the number of its first row.
    """

    name: str
    file: FileVersion
    start: int
    stop: int
    first: int
    rows: int

    @property
    def path(self) -> str:
        """The path of the input file, relative to the place."""
        return self.file.path


@dataclass(frozen=True)
class Plan:
    """The shards of an input in order, the columns that are read, and why files cannot be used."""

    shards: list[Shard]
    schema: Any
    bad: dict[str, str]


class Place:
    """A folder of shards, or one file: a path, or an address such as `s3://bucket/folder`."""

    def __init__(self, where: str | Path) -> None:
        self.where = str(where)
        self._files, root = _file_system(self.where)
        with _reading(self.where):
            kind = self._files.get_file_info(root).type
        if kind == fs.FileType.NotFound:
            raise InputError(f"{self.where} does not exist; give a folder or file, not a pattern")
        self.is_file = kind == fs.FileType.File
        folder, _, self._only_file = root.rpartition("/") if self.is_file else (root, "", "")
        self._root = folder.rstrip("/")

    def files(self) -> list[FileVersion]:
        """All files, sorted by path, without those whose name begins with . or _."""
        if self.is_file:
            return [self.found(self._only_file)]
        with _reading(self.where):
            infos = self._files.get_file_info(fs.FileSelector(self._root, recursive=True))
        below = len(self._root) + 1
        shown = sorted((i.path[below:], i) for i in infos if not _is_hidden(i.path[below:]))
        if isinstance(self._files, fs.LocalFileSystem):
            folders = [path for path, i in shown if i.type == fs.FileType.Directory]
            self._check_links(["", *folders])
        return [self._version(i, path) for path, i in shown if i.type == fs.FileType.File]

    def _check_links(self, folders: Sequence[str]) -> None:
        """Refuse a file that is there twice, and pipes and links to nothing, which Arrow omits."""
        first: dict[Path, Path] = {}
        for entry in (entry for folder in folders for entry in Path(self._root, folder).iterdir()):
            if entry.is_dir() or _is_hidden(entry.name):
                continue
            if not entry.is_file():
                raise InputError(f"{entry} is neither a file nor a link to one")
            if (other := first.setdefault(entry.resolve(), entry)) != entry:
                raise InputError(
                    f"{entry} and {other} are one file, by a link; its rows would be read twice"
                )

    def found(self, path: str) -> FileVersion:
        """A file as it is now; an InputError if it does not exist any more."""
        with _reading(self.named(path)):
            info = self._files.get_file_info(f"{self._root}/{path}")
        if info.type != fs.FileType.File:
            raise InputError(f"{self.named(path)} does not exist any more")
        return self._version(info, path)

    def named(self, path: str) -> str:
        """A file's path as messages show it."""
        return self.where if self.is_file else f"{self.where.rstrip('/')}/{path}"

    @contextmanager
    def parquet(self, path: str) -> Iterator[ParquetFile]:
        """Open a .parquet file; an InputError if it cannot be read, now or within the block."""
        name = self.named(path)
        with _reading(name):
            file = self._files.open_input_file(f"{self._root}/{path}")
        with _reading(name, "is not a whole parquet file"), file:
            yield ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES)

    def _version(self, info: Any, path: str) -> FileVersion:
        changed = info.mtime_ns
        if not changed and isinstance(self._files, fs.PyFileSystem):
            # Not every store of fsspec tells Arrow a time; each can tell versions apart.
            changed = self._files.handler.fs.ukey(f"{self._root}/{path}")
        return FileVersion(path, f"{info.size} {changed}")


def plan(place: Place, choose: ColumnChoice, *, skip_unreadable: bool = False) -> Plan:
    """Look at every file of an input, and divide large ones where a row group ends."""
    found = place.files()
    files = [file for file in found if file.path.lower().endswith(".parquet")]
    bad = {
        path: f"{place.named(path)} is no .parquet file, and would not be read"
        for path in sorted({file.path for file in found} - {file.path for file in files})
    }
    if not files:
        raise InputError(f"{place.where} is no .parquet file and no folder with any; give one")
    with ThreadPoolExecutor(READERS) as pool:
        looks = [pool.submit(_looked_at, place, file, choose) for file in files]
    shards: list[Shard] = []
    common: Any = None
    for file, look in zip(files, looks, strict=True):
        try:
            parts, schema = look.result()
            if shards:
                schema = _unified(
                    common, schema, place.named(file.path), place.named(shards[0].path)
                )
            common = schema
            shards += parts
        except InputError as error:
            bad[file.path] = str(error)
    if bad and not (skip_unreadable and shards):
        none = f"none of the files in {place.where} can be used: " if skip_unreadable else ""
        raise InputError(f"{none}{next(iter(bad.values()))}")
    for name, count in Counter(shard.name for shard in shards).items():
        if count > 1:
            raise InputError(f"{count} shards of {place.where} would be {name}; rename a file")
    return Plan(shards, common, bad)


def read(place: Place, shard: Shard, schema: Any, *, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
    """The rows of a shard, in record batches of the plan's schema.

    An InputError says that its file cannot be read, or has changed since it was planned.
    """
    _check_unchanged(place, shard)
    with place.parquet(shard.path) as table:
        # One group at a time: reading ahead would take memory that grows with the file.
        for group in range(shard.start, shard.stop):
            for batch in table.iter_batches(batch_rows, row_groups=[group], columns=schema.names):
                columns = [batch.column(field.name).cast(field.type) for field in schema]
                yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)
    _check_unchanged(place, shard)


@contextmanager
def _reading(name: str, fault: str = "cannot be read") -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{name} {fault}: {reason_of(error)}") from None


def _file_system(where: str) -> tuple[Any, str]:
    """The file system of a path or address, and the path in it."""
    scheme, separator, _ = where.partition("://")
    if not separator:
        return fs.LocalFileSystem(), Path(where).absolute().as_posix()
    try:
        if scheme in ARROW_SCHEMES:
            system, root = fs.FileSystem.from_uri(where)
            return system, root
        other, root = fsspec.core.url_to_fs(where)
        return fs.PyFileSystem(fs.FSSpecHandler(other)), root
    except ImportError as error:
        raise MissingDependencyError(f"{where} cannot be reached: {error}") from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{where} cannot be reached: {reason_of(error)}") from None


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _looked_at(place: Place, file: FileVersion, choose: ColumnChoice) -> tuple[list[Shard], Any]:
    """The shards of a file and the schema of the columns to read."""
    name = place.named(file.path)
    with place.parquet(file.path) as table:
        schema = table.schema_arrow
        chosen = pyarrow.schema([schema.field(column) for column in choose(schema, name)])
        numbers = range(table.metadata.num_row_groups)
        groups = [table.metadata.row_group(number).num_rows for number in numbers]
        return _divided(file, groups), chosen


def _unified(first: Any, other: Any, name: str, first_name: str) -> Any:
    """A schema for both: a column without any value takes the other's type, and all text is text.

    The names of both files are for the message of an InputError.
    """
    if first.names != other.names:
        columns = f"{listed(other.names)}, but {listed(first.names)}"
        raise InputError(f"{name}: its columns are {columns} in {first_name}")
    fields = []
    for expected, field in zip(first, other, strict=True):
        if types.is_null(expected.type):
            expected = field
        elif expected.type != field.type and is_text(expected.type) and is_text(field.type):
            expected = expected.with_type(pyarrow.large_string())
        elif expected.type != field.type and not types.is_null(field.type):
            kinds = f"{field.type}, but {expected.type}"
            raise InputError(f"{name}: column {field.name!r} is {kinds} in {first_name}")
        fields.append(expected)
    return pyarrow.schema(fields)


def _divided(file: FileVersion, groups: Sequence[int]) -> list[Shard]:
    """The shards of a file, from the number of rows of each of its groups."""
    parts = []
    start, first, rows = 0, 0, 0
    for group, count in enumerate(groups):
        rows += count
        if rows >= SHARD_ROWS:
            parts.append((start, group + 1, first, rows))
            start, first, rows = group + 1, first + rows, 0
    if start < len(groups) or not parts:
        parts.append((start, len(groups), first, rows))
    names = [file.path]
    if (count := len(parts)) > 1:
        stem, _, ending = file.path.rpartition(".")
        names = [f"{stem}.part-{n:05d}-of-{count:05d}.{ending}" for n in range(count)]
    return [Shard(name, file, *part) for name, part in zip(names, parts, strict=True)]


def _check_unchanged(place: Place, shard: Shard) -> None:
    if place.found(shard.path) != shard.file:
        raise InputError(f"{place.named(shard.path)} was changed meanwhile; run it again")


def vector_column(vectors: Array) -> Any:
    """Vectors (N, D) as a column of lists of one length, without copying them."""
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def vectors_of(column: Any, place: str, first: int = 0) -> Array:
    """The vectors (N, D) of an Arrow array of lists, whose first row has number `first` in a file.

    An InputError names the row of a vector that is missing, is of another length, or lacks numbers.
    """
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if types.is_null(column.type):
        column = column.cast(pyarrow.list_(pyarrow.float32()))
    lengths = compute.list_value_length(column)
    if types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        width = lengths[0].as_py() if len(lengths) else 0
    wrong = compute.fill_null(compute.not_equal(lengths, width), True)
    if (row := compute.index(wrong, True).as_py()) >= 0:
        said = f"its vector has {lengths[row]} numbers, that of row {first} has {width}"
        if not lengths[row].is_valid:
            said = "there is no vector; leave that row out"
        raise InputError(f"{place}, row {first + row}: {said}")
    flat = column.flatten()
    if flat.null_count:
        row = first + compute.index(flat.is_null(), True).as_py() // width
        raise InputError(f"{place}, row {row}: its vector lacks a number")
    rows: Array = flat.to_numpy(zero_copy_only=False).reshape(len(column), width)
    return rows


def storage_type(kind: Any) -> Any:
    """The Arrow type that a column is stored as, also where it is an extension type."""
    return kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind


def is_vectors(kind: Any) -> bool:
    """Whether a column's type is lists of floating numbers."""
    kind = storage_type(kind)
    lists = (types.is_fixed_size_list, types.is_list, types.is_large_list)
    return any(is_list(kind) for is_list in lists) and bool(types.is_floating(kind.value_type))


def check_vectors(schema: Any, name: str, place: str) -> None:
    """Refuse a schema without this column of vectors. A column without any value has no type."""
    vectors = [field.name for field in schema if is_vectors(field.type)]
    if name not in schema.names and vectors:
        raise InputError(
            f"{place} has no column {name!r}; vectors are in {listed(vectors)}: name one by "
            "--vector (in Python vector=)"
        )
    kind = schema.field(column_index(name, schema.names, place)).type
    if not is_vectors(kind) and str(kind) != "null":
        raise InputError(
            f"{place}: column {name!r} is {kind}, expected vectors: lists of floating numbers"
        )
