"""Columns of Arrow tables: vectors as lists of numbers, and batches of arrays as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, types

from bertflow.arrays import Array
from bertflow.data.tables import listed
from bertflow.errors import InputError

# The default name of the column of vectors.
VECTOR = "vector"
# What messages call a batch that does not come from a file.
BATCH = "the batch"


def vector_column(vectors: Array) -> Any:
    """Vectors (N, D) as a column of lists of one length, without copying them."""
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def vectors_of(column: Any, place: str, first: int = 0) -> Array:
    """The vectors (N, D) of a column of lists.

    Args:
        column: An Arrow array of lists of numbers, all of one length.
        place: The file or batch, for messages.
        first: The number of the column's first row in that place.

    Raises:
        InputError: A vector is missing or of another length than the others, or one of its numbers
            is missing; the message names the row.
    """
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


def storage_type(kind: Any) -> Any:
    """The Arrow type that a column is stored as, also where it is an extension type."""
    return kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind


def is_vectors(kind: Any) -> bool:
    """Whether a column's type is lists of floating numbers."""
    kind = storage_type(kind)
    lists = (types.is_fixed_size_list, types.is_list, types.is_large_list)
    return any(is_list(kind) for is_list in lists) and bool(types.is_floating(kind.value_type))


def check_column(schema: Any, name: str, place: str) -> None:
    """Check that a schema has a column, and once.

    Raises:
        InputError: It has none of that name, or several.
    """
    count = schema.names.count(name)
    if count != 1:
        has = "no column" if not count else f"{count} columns"
        raise InputError(f"{place} has {has} {name!r}; it has {listed(schema.names)}")


def check_vectors(schema: Any, name: str, place: str) -> None:
    """Check that a schema has a column of vectors. A column without any value has no type.

    Raises:
        InputError: It has none of that name, or the column holds something else.
    """
    vectors = [field.name for field in schema if is_vectors(field.type)]
    if name not in schema.names and vectors:
        raise InputError(
            f"{place} has no column {name!r}; vectors are in {listed(vectors)}: name one by "
            "--vector (in Python vector=)"
        )
    check_column(schema, name, place)
    kind = schema.field(name).type
    if not is_vectors(kind) and str(kind) != "null":
        raise InputError(
            f"{place}: column {name!r} is {kind}, expected vectors: lists of floating numbers"
        )


def as_table(batch: Mapping[str, Any]) -> Any:
    """Arrays by name as a table; matrices become columns of vectors.

    Raises:
        InputError: An array has more than two dimensions, or holds values of different types.
    """
    return pyarrow.table({name: _as_column(name, values) for name, values in batch.items()})


def as_arrays(table: Any) -> dict[str, Any]:
    """The columns of a table as arrays by name; columns of vectors become matrices."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return {
        name: vectors_of(column, BATCH)
        if is_vectors(column.type)
        else column.to_numpy(zero_copy_only=False)
        for name, column in columns.items()
    }


def _as_column(name: str, values: Any) -> Any:
    array = np.asarray(values)
    if array.ndim == 2:
        return vector_column(array)
    if array.ndim > 2:
        raise InputError(f"column {name!r} has shape {array.shape}; expected rows or vectors")
    if array.dtype.kind not in "OUT":
        return pyarrow.array(array)
    cells = array.tolist()
    try:
        return pyarrow.array(cells, from_pandas=True)  # NaN stands for missing text.
    except pyarrow.ArrowException:
        kinds = [type(cell).__name__ for cell in cells]
        row = next((n for n, kind in enumerate(kinds) if kind != kinds[0]), 0)
        raise InputError(
            f"{BATCH}: column {name!r} holds {kinds[0]} and, in row {row}, {kinds[row]}; expected "
            "values of one type"
        ) from None
