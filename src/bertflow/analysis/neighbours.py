"""Nearest neighbours: by cosine to a few queries, by distance and dot product within a matrix."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from bertflow.analysis.rows import checked, unit_rows
from bertflow.calibrators.base import Array, check_number
from bertflow.errors import InputError

# Beyond the k, so many are looked at exactly; of those left out none may come near the k-th.
SPARE = 8
# Scores are searched by the maxima of groups of so many: one pass instead of a sort.
GROUP = 64
# Products are taken in blocks large enough for the multiplication to be fast, and searched in
# blocks small enough to stay in the processor's cache.
PRODUCT_ENTRIES = 2**24
SEARCH_ROWS = 16
SCAN_ROWS = 4096
# Half of the gap between 1 and the next float32: what one operation rounds off at most.
ROUNDING = 2.0**-24


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

    The products of centred rows in float32 propose :math:`k + 8` candidates for both, block after
    block; their measures are then taken in float64 from the rows as they are, so that equal rows
    have a distance of exactly 0. Where a row left out could, within the bound of float32's
    rounding, belong to the k, all rows are gone through in float64.

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
    found = Neighbours(
        nearest=np.empty((len(numbers), k), dtype=np.int64),
        distances=np.empty((len(numbers), k)),
        largest=np.empty((len(numbers), k), dtype=np.int64),
        dots=np.empty((len(numbers), k)),
    )
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, len(numbers), search.block):
            block = numbers[start : start + search.block]
            products = search.products(block)
            starts = range(0, len(block), SEARCH_ROWS)
            parts = [(block[i : i + SEARCH_ROWS], products[i : i + SEARCH_ROWS]) for i in starts]
            results = pool.map(search.best, *zip(*parts, strict=True))
            for first, (near, large) in zip(starts, results, strict=True):
                place = slice(start + first, start + first + len(near[0]))
                found.nearest[place], found.distances[place] = near[0], -near[1]
                found.largest[place], found.dots[place] = large
            if progress is not None:
                progress(start + len(block), len(numbers))
    return found


Measure: TypeAlias = Callable[[Array, Array], Array]


def _nearness(queries: Array, others: Array) -> Array:
    """Minus the distance: as of dot products, the largest is the best."""
    apart = np.subtract(others, queries)
    return np.asarray(-np.sqrt(np.einsum("...d,...d->...", apart, apart)))


def _dot(queries: Array, others: Array) -> Array:
    return np.asarray(np.multiply(others, queries).sum(axis=-1))


class _Search:
    """The matrix centred and scaled in float32, and what turns products into scores.

    With x = σx' + μ, the order of distances is that of q'·x' − ½‖x'‖², and the order of dot
    products that of q'·x' + (μ/σ)·x': one product for both, and no digits lost to a mean that is
    far from the origin.
    """

    def __init__(self, vectors: Array, k: int) -> None:
        count, width = vectors.shape
        self.vectors, self.k = vectors, k
        self.kept = min(k + SPARE, count - 1)
        self.centre = vectors.mean(axis=0, dtype=np.float64)
        filled = -(-count // GROUP) * GROUP
        self.matrix = np.zeros((filled, width), dtype=np.float32)
        inner = self.matrix[:count]
        above, below = vectors.max(axis=0) - self.centre, self.centre - vectors.min(axis=0)
        self.scale = float(np.maximum(above, below).max()) or 1.0
        # Scaled before they become float32, whose range they may leave.
        for start in range(0, count, SCAN_ROWS):
            part = slice(start, start + SCAN_ROWS)
            inner[part] = (vectors[part] - self.centre) / self.scale
        squares = np.einsum("nd,nd->n", inner, inner, dtype=np.float64)
        shifts = np.einsum("nd,d->n", inner, self.centre / self.scale, dtype=np.float64)
        self.longest = float(np.sqrt(squares.max()))
        self.added: dict[Measure, Array] = {}
        self.largest: dict[Measure, float] = {}
        for measure, added in ((_nearness, -squares / 2), (_dot, shifts)):
            self.added[measure] = np.full(filled, -np.inf, dtype=np.float32)
            self.added[measure][:count] = added
            self.largest[measure] = float(np.abs(added).max())
        self.block = min(max(1, PRODUCT_ENTRIES // filled), 512)
        self.space = np.empty((self.block, filled), dtype=np.float32)

    def products(self, numbers: Array) -> Array:
        """Of some rows with all, shape (B, filled), −∞ of a row with itself."""
        products = self.space[: len(numbers)]
        np.matmul(self.matrix[numbers], self.matrix.T, out=products)
        products[np.arange(len(numbers)), numbers] = -np.inf
        return products

    def best(
        self, numbers: Array, products: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Row numbers and measures of the k nearest and of the k largest; uses up the products."""
        near = self._best(numbers, products + self.added[_nearness], _nearness)
        products += self.added[_dot]
        return near, self._best(numbers, products, _dot)

    def _best(self, numbers: Array, scores: Array, measure: Measure) -> tuple[Array, Array]:
        candidates, floor = _highest(scores, self.kept)
        # In the order of rows, so that of equal measures the first come first.
        candidates.sort(axis=1)
        queries = self.vectors[numbers].astype(np.float64)
        values = measure(queries[:, None], self.vectors[candidates])
        order = np.argsort(-values, axis=1, kind="stable")[:, : self.k]
        candidates = np.take_along_axis(candidates, order, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        if self.kept < len(self.vectors) - 1:
            for row in np.flatnonzero(~self._certain(queries, values[:, -1], floor, measure)):
                candidates[row], values[row] = self._scan(numbers[row], queries[row], measure)
        return candidates, values

    def _certain(self, queries: Array, last: Array, floor: Array, measure: Measure) -> Array:
        """Whether no row that is no candidate can be among the k, whatever was rounded off."""
        centred = (queries - self.centre) / self.scale
        squares = np.einsum("nd,nd->n", centred, centred)
        if measure is _nearness:
            exact = (squares - (last / self.scale) ** 2) / 2
        else:
            exact = (last - queries @ self.centre) / self.scale**2
        roundings = ROUNDING * (self.vectors.shape[1] + 16)
        bound = roundings * (np.sqrt(squares) * self.longest + self.largest[measure])
        return np.asarray(exact > floor + bound)

    def _scan(self, number: int, query: Array, measure: Measure) -> tuple[Array, Array]:
        """The k best of all rows, in float64 throughout."""
        parts = range(0, len(self.vectors), SCAN_ROWS)
        values = np.concatenate([measure(query, self.vectors[i : i + SCAN_ROWS]) for i in parts])
        values[number] = -np.inf
        order = np.argsort(-values, kind="stable")[: self.k]
        return order, values[order]


def _highest(scores: Array, count: int) -> tuple[Array, Array]:
    """Columns of the `count` highest scores of each row in any order, and the lowest of those.

    The highest lie in the groups with the highest maxima, one a group at the least.
    """
    groups = scores.shape[1] // GROUP
    searched = min(count, groups)
    grouped = scores.reshape(len(scores), GROUP, groups)
    chosen = np.argpartition(grouped.max(axis=1), -searched, axis=1)[:, -searched:]
    members = np.take_along_axis(grouped, chosen[:, None, :], axis=2).reshape(len(scores), -1)
    columns = (groups * np.arange(GROUP)[:, None] + chosen[:, None, :]).reshape(len(scores), -1)
    place = np.argpartition(members, -count, axis=1)[:, -count:]
    floor = np.take_along_axis(members, place, axis=1).min(axis=1)
    return np.take_along_axis(columns, place, axis=1), floor
