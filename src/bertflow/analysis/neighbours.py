"""Rows of a cloud: checked, sampled, and the rows that are nearest to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, finite, matrix
from bertflow.errors import InputError, check_number

# Cosines, and products in a search, are taken in blocks of about so many entries.
BLOCK_ENTRIES = 2**22
SEARCH_ENTRIES = 2**24


def checked(vectors: Array) -> Array:
    """The vectors as a matrix of floats: 2 finite rows or more, whose squares float64 can hold."""
    given = matrix(vectors)
    if isinstance(given, Tensor):
        given = (given.float() if given.dtype == torch.bfloat16 else given).cpu().numpy()
    if len(given) < 2:
        raise InputError(f"a cloud of vectors takes at least 2 rows, got {len(given)}")
    if given.shape[1] == 0:
        raise InputError(f"expected vectors of shape (rows, dimensions), got shape {given.shape}")
    rows: Array = finite(given)
    largest = np.abs(rows).max() if rows.dtype == np.float64 else 0.0
    if largest and not 1e-150 < largest < 1e150:
        raise InputError(f"the largest number in X is {largest:.0e}; divide X by it")
    return rows


def directed(vectors: Array) -> Array:
    """The checked vectors without rows that are zero, if 2 or more are left."""
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
    """At most so many of the rows, drawn without replacement, in their order."""
    check_number("rows", rows, 2, integer=True)
    if len(vectors) <= rows:
        return vectors
    drawn = np.random.default_rng(random_state).choice(len(vectors), size=rows, replace=False)
    return vectors[np.sort(drawn)]


def cosine_blocks(unit: Array) -> Iterator[tuple[Array, Array]]:
    """Row numbers, shape (B,), and cosines to all rows, (B, N), −inf to itself, block by block."""
    size = max(1, BLOCK_ENTRIES // len(unit))
    for start in range(0, len(unit), size):
        numbers = np.arange(start, min(start + size, len(unit)))
        cosine = unit[numbers] @ unit.T
        cosine[np.arange(len(numbers)), numbers] = -np.inf
        yield numbers, cosine


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest rows with distances, and the largest by dot product, shape (Q, k), best first."""

    nearest: Array
    distances: Array
    largest: Array
    dots: Array


def nearest_neighbours(
    rows: Array, vectors: Array, *, k: int, progress: Callable[[int, int], None] | None = None
) -> Neighbours:
    r"""The k nearest other rows by distance, and the k with the largest dot product.

    With x = σx' + μ, μ being the mean row, the order of distances and that of dot products are

    .. math:: \lVert q - x \rVert \sim \tfrac12 \lVert x' \rVert^2 - q' \cdot x', \qquad
        q \cdot x \sim q' \cdot x' + \tfrac{\mu}{\sigma} \cdot x'

    so one product serves both, and loses no digits to a mean far from the origin. The measures of
    the k are taken from the rows as they are. A row is no neighbour of itself, but an equal one is.

    `rows` are the numbers of the rows of `vectors`, (N, D), whose neighbours are sought, shape
    (Q,), and 1 ≤ k < N. `progress` is called with the rows done and their total.
    """
    vectors = checked(vectors)
    check_number("k", k, 1, len(vectors) - 1, integer=True)
    numbers = np.asarray(rows, dtype=np.int64)
    centre = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - centre
    scale = float(np.abs(centred).max()) or 1.0
    centred /= scale
    scaled = torch.from_numpy(centred)
    halves, shifts = scaled.square().sum(dim=1) / 2, scaled @ torch.from_numpy(centre / scale)
    near, large = np.empty((2, len(numbers), k), dtype=np.int64)
    distances, dots = np.empty((2, len(numbers), k))
    size = min(max(1, SEARCH_ENTRIES // len(vectors)), 512)
    for start in range(0, len(numbers), size):
        part = slice(start, start + size)
        block = numbers[part]
        products = scaled[block] @ scaled.T
        products[torch.arange(len(block)), torch.from_numpy(block)] = -torch.inf
        queries = vectors[block][:, None].astype(np.float64)
        chosen = (products - halves).topk(k, dim=1).indices.numpy()
        apart = vectors[chosen] - queries
        measured = np.sqrt(np.einsum("qkd,qkd->qk", apart, apart))
        near[part], distances[part] = _ordered(chosen, measured, measured)
        chosen = (products + shifts).topk(k, dim=1).indices.numpy()
        measured = (vectors[chosen] * queries).sum(axis=2)
        large[part], dots[part] = _ordered(chosen, measured, -measured)
        if progress is not None:
            progress(min(start + size, len(numbers)), len(numbers))
    return Neighbours(nearest=near, distances=distances, largest=large, dots=dots)


def _ordered(numbers: Array, values: Array, cost: Array) -> tuple[Array, Array]:
    """Rows and their values by rising cost; of equals the first rows come first."""
    order = np.lexsort((numbers, cost), axis=1)
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(values, order, axis=1)
