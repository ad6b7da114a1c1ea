"""Rows as the measures take them: checked, without zeros, a sample, of length 1, their cosines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, finite, matrix
from bertflow.errors import InputError, check_number

BLOCK_ENTRIES = 2**22


def checked(vectors: Array) -> Array:
    """The vectors as a matrix of floats, at least 2 rows, all of them finite.

    Args:
        vectors: Shape (N, D), in any container that a calibrator takes.

    Raises:
        InputError: Another shape, fewer than 2 rows, or a NaN or infinite row (named).
    """
    given = matrix(vectors)
    if isinstance(given, Tensor):
        given = (given.float() if given.dtype == torch.bfloat16 else given).cpu().numpy()
    if len(given) < 2:
        raise InputError(f"a cloud of vectors takes at least 2 rows, got {len(given)}")
    if given.shape[1] == 0:
        raise InputError(f"expected vectors of shape (rows, dimensions), got shape {given.shape}")
    rows: Array = finite(given)
    return rows


def directed(vectors: Array) -> Array:
    """The checked vectors without the rows that are zero: those have no direction.

    Raises:
        InputError: As `checked`, or fewer than 2 rows are left.
    """
    vectors = checked(vectors)
    nonzero = vectors.any(axis=1)
    if int(nonzero.sum()) < 2:
        raise InputError(
            f"cosines take at least 2 rows that are not zero, got {int(nonzero.sum())} "
            f"of {len(vectors)}"
        )
    # Indexing copies, so only where it changes something.
    return vectors if nonzero.all() else vectors[nonzero]


def sampled(vectors: Array, rows: int, random_state: int) -> Array:
    """At most so many of the rows, drawn without replacement, in their order.

    Raises:
        InputError: `rows` is below 2.
    """
    check_number("rows", rows, 2, integer=True)
    if len(vectors) <= rows:
        return vectors
    drawn = np.random.default_rng(random_state).choice(len(vectors), size=rows, replace=False)
    return vectors[np.sort(drawn)]


def within_range(vectors: Array) -> tuple[Array, float]:
    """Rows whose squares stay in the range of float64, and what they were divided by for that."""
    size = max(float(vectors.max()), -float(vectors.min()))
    if size == 0 or 1e-100 < size < 1e100:
        return vectors, 1.0
    return vectors / size, size


def unit_rows(vectors: Array) -> Array:
    """Each row divided by its length, in float64; rows that are zero stay so.

    Example:
        >>> import numpy as np
        >>> unit_rows(np.array([[3e200, 4e200], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    wide = vectors.astype(np.float64)
    # By the largest entry first: squares of tiny or huge numbers leave the range of float64.
    for norms in (np.abs(wide).max(axis=1, keepdims=True), None):
        size = np.linalg.norm(wide, axis=1, keepdims=True) if norms is None else norms
        wide = wide / np.where(size > 0, size, 1.0)
    return wide


def cosine_blocks(unit: Array) -> Iterator[tuple[Array, Array]]:
    """Row numbers, shape (B,), and their cosines to all rows, shape (B, N), block after block."""
    size = max(1, BLOCK_ENTRIES // len(unit))
    for start in range(0, len(unit), size):
        numbers = np.arange(start, min(start + size, len(unit)))
        yield numbers, unit[numbers] @ unit.T
