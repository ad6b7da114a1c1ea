"""What is worked on at a time: a parquet file, or some row groups of a large one.

From each comes one file of the output, which has its name. It is written beside and moved to its
place when it is whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibrators.base import Array, let_go
from bertflow.calibrators.vectors import read_vectors
from bertflow.data.tables import listed
from bertflow.errors import InputError, ModelError
from bertflow.scale.places import Found, Place

# A larger file is several shards: so much is lost with a process that is killed.
SHARD_ROWS = 2**18
# What is read, worked on and written at a time.
BATCH_ROWS = 2**14
# Parquet footers that are read at a time.
READERS = 16
BUFFER = 2**20
VECTOR = "vector"


@dataclass(frozen=True)
class Shard:
    """A part of the input.

    Attributes:
        name: Of the file that comes from it, below the output.
        path: Of the file it is in, below the input.
        size: Of that file, in bytes.
        modified: When that was written last, in nanoseconds since 1970.
        start: The first row group, or the first row of a .npy.
        stop: The one after the last.
        first: The number of the first row in the file.
        rows: How many there are.
        span: The bytes of the file that are this shard's; those of all shards are the file.
    """

    name: str
    path: str
    size: int
    modified: int
    start: int
    stop: int
    first: int
    rows: int
    span: tuple[int, int]


@dataclass(frozen=True)
class Bad:
    """A file that cannot be used, and why, in one line."""

    path: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that there is to do.

    Attributes:
        shards: In the order of the files and of their rows.
        schema: Of what is read of all of them.
        bad: Files that cannot be used.
    """

    shards: list[Shard]
    schema: Any
    bad: list[Bad]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(shard.rows for shard in self.shards)


Choose = Callable[[Any, str], Sequence[str]]


def plan(place: Place, choose: Choose, *, shard_rows: int = SHARD_ROWS) -> Plan:
    """Look at the end of every file, and say what there is to do.

    Args:
        place: The input.
        choose: Gives the columns that are read of a schema, whose file is named; it raises an
            InputError if there are none such.
        shard_rows: A file of more is split where one of its row groups ends.

    Raises:
        InputError: There is no .parquet file, or two shards would be written to one name.
    """
    found = place.files()
    endings = (".parquet", ".npy") if place.is_file else (".parquet",)
    files = [one for one in found if one.path.lower().endswith(endings)]
    if not files:
        kinds = ".parquet or .npy file" if place.is_file else "folder with .parquet files in it"
        raise InputError(f"{place.where} is no {kinds}; give one")
    with ThreadPoolExecutor(READERS) as pool:
        looked = list(pool.map(lambda one: _looked_at(place, one, choose, shard_rows), files))
    shards: list[Shard] = []
    bad = [
        Bad(one.path, f"{place.named(one.path)} is no .parquet file, and would not be read")
        for one in found
        if not one.path.lower().endswith(endings)
    ]
    whole: Any = None
    home = ""
    for one, found_there in zip(files, looked, strict=True):
        if isinstance(found_there, Bad):
            bad.append(found_there)
            continue
        parts, schema = found_there
        if whole is None:
            whole, home = schema, one.path
        elif (why := _differing(whole, schema)) is not None:
            bad.append(Bad(one.path, f"{place.named(one.path)}: {why} in {place.named(home)}"))
            continue
        whole = _merged(whole, schema)
        shards += parts
    names: dict[str, Shard] = {}
    for shard in shards:
        if (other := names.setdefault(shard.name, shard)) is not shard:
            raise InputError(
                f"{place.named(other.path)} and {place.named(shard.path)} would both be written to "
                f"{shard.name}; rename one of them"
            )
    return Plan(shards, whole, bad)


def _looked_at(
    place: Place, file: Found, choose: Choose, shard_rows: int
) -> tuple[list[Shard], Any] | Bad:
    try:
        if file.path.lower().endswith(".npy"):
            return _npy_shards(place, file, shard_rows), _npy_schema(place, file.path)
        with _parquet(place, file.path) as table:
            schema = _chosen(table.schema_arrow, choose, place.named(file.path))
            return _parquet_shards(table.metadata, file, shard_rows), schema
    except InputError as error:
        return Bad(file.path, str(error))


def _chosen(schema: Any, choose: Choose, name: str) -> Any:
    import pyarrow

    return pyarrow.schema([schema.field(column) for column in choose(schema, name)])


def _differing(first: Any, other: Any) -> str | None:
    """What is not as in the first file. A column without a value may have no type."""
    from pyarrow import types

    if first.names != other.names:
        return f"its columns are {listed(other.names)}, but {listed(first.names)}"
    for one, field in zip(first, other, strict=True):
        if one.type != field.type and not (types.is_null(one.type) or types.is_null(field.type)):
            return f"column {one.name!r} is {field.type}, but {one.type}"
    return None


def _merged(first: Any, other: Any) -> Any:
    import pyarrow

    pairs = zip(first, other, strict=True)
    return pyarrow.schema(
        [field if pyarrow.types.is_null(one.type) else one for one, field in pairs]
    )


def _parquet_shards(metadata: Any, file: Found, shard_rows: int) -> list[Shard]:
    ends, starts, rows = [], [0], [0]
    for group in range(metadata.num_row_groups):
        rows.append(rows[-1] + metadata.row_group(group).num_rows)
        if rows[-1] - rows[starts[-1]] >= shard_rows:
            ends.append(group + 1)
            starts.append(group + 1)
    if not ends or ends[-1] != metadata.num_row_groups:
        ends.append(metadata.num_row_groups)
    begins = [0, *(_offset(metadata.row_group(end)) for end in ends[:-1])]
    if sorted(set(begins)) != begins:  # Row groups in another order than their bytes.
        ends, begins = [metadata.num_row_groups], [0]
    stops = [*begins[1:], file.size]
    starts = [0, *ends[:-1]]
    return [
        Shard(
            _part_name(file.path, number, len(ends)),
            file.path,
            file.size,
            file.modified,
            start,
            stop,
            rows[start],
            rows[stop] - rows[start],
            (begins[number], stops[number]),
        )
        for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]


def _offset(group: Any) -> int:
    """Where the bytes of a row group begin."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return min(
        int(c.dictionary_page_offset) if c.has_dictionary_page else int(c.data_page_offset)
        for c in columns
    )


def _npy_shards(place: Place, file: Found, shard_rows: int) -> list[Shard]:
    vectors = read_vectors(place.local(file.path))
    starts = list(range(0, len(vectors), shard_rows)) or [0]
    stops = [*starts[1:], len(vectors)]
    row = vectors.itemsize * vectors.shape[1]
    if not vectors.flags.c_contiguous:  # Its columns lie one after the other.
        starts, stops, row = [0], [len(vectors)], 0
    begins = [0, *(file.size - row * (len(vectors) - start) for start in starts[1:])]
    return [
        Shard(
            f"{_part_name(file.path, number, len(starts))}.parquet",
            file.path,
            file.size,
            file.modified,
            start,
            stop,
            start,
            stop - start,
            (begin, end),
        )
        for number, (start, stop, begin, end) in enumerate(
            zip(starts, stops, begins, [*begins[1:], file.size], strict=True)
        )
    ]


def _part_name(path: str, number: int, of: int) -> str:
    if of == 1:
        return path
    stem, _, ending = path.rpartition(".")
    return f"{stem}.part-{number:05d}-of-{of:05d}.{ending}"


def read(
    place: Place, shard: Shard, schema: Any, choose: Choose, *, batch_rows: int = BATCH_ROWS
) -> Iterator[Any]:
    """The rows of a shard, in record batches of at most so many.

    Args:
        place: The input.
        shard: A part of it.
        schema: Of the batches, which the plan has.
        choose: As in `plan`.
        batch_rows: Rows of a batch.

    Raises:
        InputError: It cannot be read, or has changed since it was planned; it is named.
    """
    _unchanged(place, shard)
    if shard.path.lower().endswith(".npy"):
        yield from _read_npy(place, shard, batch_rows)
    else:
        with _parquet(place, shard.path) as table:
            columns = _chosen(table.schema_arrow, choose, place.named(shard.path)).names
            count = 0
            # A group at a time: several ahead would be memory that grows with the file.
            for group in range(shard.start, shard.stop):
                for batch in table.iter_batches(batch_rows, row_groups=[group], columns=columns):
                    count += batch.num_rows
                    yield _typed(batch.select(columns), schema)
            if count != shard.rows:
                raise InputError(
                    f"{place.named(shard.path)} has {count:,} rows where its end says "
                    f"{shard.rows:,}; write it again"
                )
    _unchanged(place, shard)


def _typed(batch: Any, schema: Any) -> Any:
    """A batch with the types of all shards, where it has none of its own."""
    import pyarrow

    columns = [
        column if column.type == field.type else pyarrow.nulls(len(column), field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _npy_schema(place: Place, path: str) -> Any:
    import pyarrow

    vectors = read_vectors(place.local(path))
    number = pyarrow.from_numpy_dtype(_as_numbers(vectors[:0]).dtype)
    return pyarrow.schema([(VECTOR, pyarrow.list_(number, vectors.shape[1]))])


def _as_numbers(rows: Array) -> Array:
    """Rows of a type that Arrow has for vectors."""
    if rows.dtype.kind != "f" or rows.dtype.itemsize > 8 or not rows.dtype.isnative:
        return rows.astype(np.float64)
    return rows


def _read_npy(place: Place, shard: Shard, batch_rows: int) -> Iterator[Any]:
    import pyarrow

    vectors = read_vectors(place.local(shard.path))
    for start in range(shard.start, shard.stop, batch_rows):
        rows = _as_numbers(np.array(vectors[start : min(start + batch_rows, shard.stop)]))
        let_go(vectors)
        yield pyarrow.RecordBatch.from_arrays([vector_column(rows)], [VECTOR])


def _unchanged(place: Place, shard: Shard) -> None:
    now = place.found(shard.path)
    if (now.size, now.modified) != (shard.size, shard.modified):
        raise InputError(f"{place.named(shard.path)} was changed meanwhile; run it again")


@contextmanager
def _parquet(place: Place, path: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    with place.opened(path) as file:
        try:
            yield pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)
        except (pyarrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())
            raise InputError(f"{place.named(path)} is not a whole parquet file: {said}") from None


# Columns of vectors.


def vector_column(vectors: Array) -> Any:
    """Vectors (N, D) as a column of lists of one length, without copying them."""
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def vectors_of(column: Any, place: str, first: int = 0) -> Array:
    """The vectors (N, D) of a column of lists.

    Args:
        column: An Arrow array of lists of numbers, all of one length.
        place: What it is, for messages.
        first: The number of its first row there.

    Raises:
        InputError: A vector is missing or of another length than the others, or one of its numbers
            is missing; the message names the row.
    """
    import pyarrow
    from pyarrow import compute, types

    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if types.is_null(column.type):
        column = column.cast(pyarrow.list_(pyarrow.float32()))
    if column.null_count:
        row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{place}, row {row}: there is no vector; leave that row out")
    flat = column.flatten()
    if types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            raise InputError(
                f"{place}, row {first + row}: its vector has {lengths[row]} numbers, that of row "
                f"{first} has {width}"
            )
    if flat.null_count:
        missing = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{place}, row {first + missing // width}: its vector lacks a number")
    rows: Array = flat.to_numpy(zero_copy_only=False).reshape(len(column), width)
    return rows


def is_vectors(kind: Any) -> bool:
    """Whether a column's type is lists of floating numbers."""
    from pyarrow import BaseExtensionType, types

    if isinstance(kind, BaseExtensionType):
        kind = kind.storage_type
    lists = (types.is_fixed_size_list, types.is_list, types.is_large_list)
    return any(one(kind) for one in lists) and bool(types.is_floating(kind.value_type))


# What is written.


class _Hashed:
    """A file that is written and hashed at once."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


def write(path: Path, schema: Any, batches: Iterable[Any]) -> tuple[int, str]:
    """Write a parquet file through to the disk, each batch while the next is made.

    Args:
        path: Where. Its folder is there as long as whoever asked for this waits for it.
        schema: Of all batches.
        batches: Each becomes a row group.

    Returns:
        How many rows it has, and the SHA-256 of its bytes.

    Raises:
        ModelError: It cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    # Numbers of vectors neither repeat nor compress, and nobody asks for the least of them.
    plain = [field.name for field in schema if not is_vectors(field.type)]
    rows = 0
    try:
        with path.open("wb") as file:
            hashed = _Hashed(file)
            with pyarrow.parquet.ParquetWriter(
                pyarrow.PythonFile(hashed, mode="w"),
                schema,
                use_dictionary=plain,
                write_statistics=plain,
                compression={name: "snappy" for name in plain} or "none",
            ) as writer:
                with ThreadPoolExecutor(1, "write") as thread:
                    pending: Future[None] | None = None
                    for batch in batches:
                        rows += batch.num_rows
                        if pending is not None:
                            pending.result()
                        pending = thread.submit(writer.write_batch, batch)
                    if pending is not None:
                        pending.result()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None
    return rows, hashed.digest.hexdigest()
