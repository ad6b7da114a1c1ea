"""Nearest neighbours: of queries, within a matrix, and the hubs that are everybody's neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bertflow.analysis.rows import checked, cosine_blocks, directed, sampled, unit_rows
from bertflow.arrays import Array
from bertflow.errors import InputError, check_number

# So many candidates beyond the k are looked at; of the rows left out none may come near the k-th.
SPARE = 8
# Products are taken in blocks of about so many entries.
BLOCK_ENTRIES = 2**24
SCAN_ROWS = 4096
# Above what rounding adds to a cosine, and far below what a float32 vector can tell.
TIE = 4e-15


def nearest(queries: Array, vectors: Array, k: int) -> tuple[Array, Array]:
    """The k rows with the highest cosine to each query, best first.

    Args:
        queries: Shape (Q, D).
        vectors: Shape (N, D).
        k: How many, 1 ≤ k ≤ N.

    Returns:
        Row numbers and cosines, each of shape (Q, k).

    Raises:
        InputError: k is out of its range.

    Example:
        >>> import numpy as np
        >>> rows, cosines = nearest(np.array([[1.0, 0.1]]), np.array([[0.0, 1.0], [2.0, 0.0]]), k=1)
        >>> rows.tolist()
        [[1]]
    """
    if not 1 <= k <= len(vectors):
        raise InputError(f"k must be between 1 and {len(vectors)}, got {k}")
    cosine = unit_rows(queries) @ unit_rows(vectors).T
    rows = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(cosine, rows, axis=1)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k neighbours of Q rows among the others, best first; every array has shape (Q, k).

    Attributes:
        nearest: Numbers of the rows with the smallest distance.
        distances: Their ℓ2 distances, rising.
        largest: Numbers of the rows with the largest dot product.
        dots: Their dot products, falling.
    """

    nearest: Array
    distances: Array
    largest: Array
    dots: Array


def nearest_neighbours(
    rows: Array,
    vectors: Array,
    *,
    k: int,
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    r"""The k nearest other rows by distance, and the k with the largest dot product, exactly.

    .. math:: \tfrac12 \lVert q - x \rVert^2 = \tfrac12 \lVert q \rVert^2
        - \big(q \cdot x - \tfrac12 \lVert x \rVert^2\big)

    The products of centred rows propose :math:`k + 8` candidates for both, block after block. Their
    measures are then taken from the rows as they are, so that equal rows have a distance of exactly
    0. Where a row left out could, within rounding, belong to the k, all rows are gone through.

    Args:
        rows: Numbers of the rows whose neighbours are sought, shape (Q,).
        vectors: Shape (N, D). A row is no neighbour of itself, but one equal to it is.
        k: How many, 1 ≤ k < N.
        progress: Called with the rows done and their total.

    Returns:
        Numbers and measures. Of rows that tie, the first come first.

    Raises:
        InputError: k or a row's number is out of its range, or a row is NaN or infinite (named).

    Example:
        >>> import numpy as np
        >>> found = nearest_neighbours([0], np.array([[1.0, 0.0], [9.0, 0.0], [1.0, 1.0]]), k=1)
        >>> found.nearest.tolist(), found.distances.tolist()
        ([[2]], [[1.0]])
        >>> found.largest.tolist(), found.dots.tolist()
        ([[1]], [[9.0]])
    """
    vectors = checked(vectors)
    if vectors.dtype == np.float16:
        vectors = vectors.astype(np.float32)
    check_number("k", k, 1, len(vectors) - 1, integer=True)
    numbers = np.asarray(rows, dtype=np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(vectors):
        raise InputError(
            f"row numbers must be between 0 and {len(vectors) - 1}, "
            f"got {numbers.min()} to {numbers.max()}"
        )
    search = _Search(vectors, k)
    parts = [
        search.best(numbers[start : start + search.block])
        for start in _counted(range(0, len(numbers), search.block), len(numbers), progress)
    ]
    empty = np.empty((0, k), dtype=np.int64), np.empty((0, k))
    near, large = (
        tuple(map(np.concatenate, zip(*(part[side] for part in parts), strict=True)))
        if parts
        else empty
        for side in (0, 1)
    )
    return Neighbours(nearest=near[0], distances=-near[1], largest=large[0], dots=large[1])


def _counted(
    starts: range, total: int, progress: Callable[[int, int], None] | None
) -> Iterator[int]:
    """The beginnings of blocks; tells after each how many rows are done."""
    for start in starts:
        yield start
        if progress is not None:
            progress(min(start + starts.step, total), total)


Measure: TypeAlias = Callable[[Array, Array], Array]


def _nearness(queries: Array, others: Array) -> Array:
    """Minus the distance: as of dot products, the largest is the best."""
    apart = np.subtract(others, queries)
    return np.asarray(-np.sqrt(np.einsum("...d,...d->...", apart, apart)))


def _dot(queries: Array, others: Array) -> Array:
    return np.asarray(np.multiply(others, queries).sum(axis=-1))


class _Search:
    """The matrix centred and scaled, and what turns products into scores.

    With x = σx' + μ, the order of distances is that of q'·x' − ½‖x'‖², and the order of dot
    products that of q'·x' + (μ/σ)·x': one product for both, and no digits lost to a mean that is
    far from the origin.
    """

    def __init__(self, vectors: Array, k: int) -> None:
        count = len(vectors)
        self.vectors, self.k = vectors, k
        self.kept = min(k + SPARE, count - 1)
        self.block = min(max(1, BLOCK_ENTRIES // count), 512)
        centre = vectors.mean(axis=0, dtype=np.float64)
        centred = vectors - centre
        scale = float(np.abs(centred).max()) or 1.0
        centred /= scale
        self.matrix = torch.from_numpy(centred)
        squares = self.matrix.square().sum(dim=1)
        shifts = self.matrix @ torch.from_numpy(centre / scale)
        # A score is off by no more than this: a sum of D products, each rounded.
        self.rounding = (vectors.shape[1] + 4) * float(np.finfo(np.float64).eps)
        self.added: tuple[tuple[Measure, Tensor], ...] = ((_nearness, -squares / 2), (_dot, shifts))
        self.longest = float(squares.max().sqrt())

    def best(self, numbers: Array) -> list[tuple[Array, Array]]:
        """Row numbers and measures of the k nearest, and of the k largest, each of shape (B, k)."""
        products = self.matrix[numbers] @ self.matrix.T
        products[torch.arange(len(numbers)), torch.from_numpy(numbers)] = -torch.inf
        return [self._best(numbers, products + added, measure) for measure, added in self.added]

    def _best(self, numbers: Array, scores: Tensor, measure: Measure) -> tuple[Array, Array]:
        highest = scores.topk(self.kept, dim=1)
        # In the order of rows, so that of equal measures the first come first.
        candidates = highest.indices.sort(dim=1).values.numpy()
        queries = self.vectors[numbers].astype(np.float64)
        values = measure(queries[:, None], self.vectors[candidates])
        order = np.argsort(-values, axis=1, kind="stable")[:, : self.k]
        candidates = np.take_along_axis(candidates, order, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        if self.kept < len(self.vectors) - 1:
            tops = highest.values.numpy()
            bound = self.rounding * (self.longest**2 + np.abs(tops[:, self.k - 1]))
            for row in np.flatnonzero(tops[:, self.k - 1] - tops[:, -1] <= 2 * bound):
                candidates[row], values[row] = self._scan(numbers[row], queries[row], measure)
        return candidates, values

    def _scan(self, number: int, query: Array, measure: Measure) -> tuple[Array, Array]:
        """The k best of all rows."""
        parts = range(0, len(self.vectors), SCAN_ROWS)
        values = np.concatenate([measure(query, self.vectors[i : i + SCAN_ROWS]) for i in parts])
        values[number] = -np.inf
        order = np.argsort(-values, kind="stable")[: self.k]
        return order, values[order]


@dataclass(frozen=True)
class Hubness:
    """How unevenly rows occur among each other's nearest neighbours.

    Attributes:
        skewness: Of the occurrences: near 0 without hubs, and rising with them.
        antihubs: Share of the rows that are among nobody's k nearest.
        largest: How many rows have the strongest hub among their k nearest; the mean is k.
        k: How many neighbours each row had.
        rows: How many rows were looked at.
    """

    skewness: float
    antihubs: float
    largest: int
    k: int
    rows: int


def hubness(vectors: Array, *, k: int = 10, rows: int = 5000, random_state: int = 0) -> Hubness:
    r"""Skewness of the k-occurrence: in how many rows' k nearest, by cosine, each row is.

    .. math:: S = \frac{1}{N} \sum_i \Big(\frac{N_k(i) - k}{\sigma}\Big)^3

    :math:`N_k(i)` counts the rows that have row i among their k nearest others, σ is its deviation
    (ddof 0); S = 0 if that is 0. A cloud even around the origin has no hubs by cosine; where all
    rows share a direction, those near it become hubs.

    The search is exact. Of neighbours that tie, the ones that follow the row come first,
    cyclically, so that equal rows do not make hubs of the first of them.

    Args:
        vectors: Shape (N, D). Rows that are zero have no cosine and are left out.
        k: Neighbours of each row, 1 ≤ k < N.
        rows: A larger cloud is sampled: this many rows are drawn, and neighbours sought among
            them. S depends on their number: compare equal ones.
        random_state: Seed of the draw.

    Returns:
        Skewness, share of anti-hubs, largest occurrence.

    Raises:
        InputError: Fewer than 2 rows that are not zero, a NaN or infinite row (named), or k or
            rows out of its range.

    Source:
        Radovanović, Nanopoulos and Ivanović (2010).

    Example:
        >>> import numpy as np
        >>> star = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> result = hubness(star, k=1)
        >>> result.largest, result.antihubs
        (3, 0.5)
    """
    unit = unit_rows(sampled(directed(vectors), rows, random_state))
    count = len(unit)
    check_number("k", k, 1, count - 1, integer=True)
    occurrence = np.zeros(count, dtype=np.int64)
    for numbers, cosine in cosine_blocks(unit):
        cosine -= TIE * ((np.arange(count) - numbers[:, None]) % count)
        cosine[np.arange(len(numbers)), numbers] = -np.inf
        near = np.argpartition(cosine, count - k, axis=1)[:, count - k :]
        occurrence += np.bincount(near.ravel(), minlength=count)
    centred = occurrence - k
    deviation = np.sqrt(np.mean(centred**2))
    return Hubness(
        skewness=float(np.mean(centred**3) / deviation**3) if deviation > 0 else 0.0,
        antihubs=float(np.mean(occurrence == 0)),
        largest=int(occurrence.max()),
        k=k,
        rows=count,
    )
