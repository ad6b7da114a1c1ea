"""Alignment and uniformity: near what belongs together, spread out otherwise."""

from __future__ import annotations

import numpy as np

from bertflow.analysis.rows import checked, cosine_blocks, directed, sampled, unit_rows
from bertflow.arrays import CHUNK_ROWS, Array
from bertflow.errors import InputError


def alignment(first: Array, second: Array) -> float:
    r"""Mean squared distance of pairs that belong together, on the sphere: 0 is best, 4 is worst.

    .. math:: \ell_{\text{align}} = \frac{1}{N} \sum_i
        \Big\lVert \frac{x_i}{\lVert x_i \rVert} - \frac{y_i}{\lVert y_i \rVert} \Big\rVert^2

    Args:
        first: Shape (N, D), N ≥ 2. Pairs with a row that is zero are left out.
        second: Their partners, shape (N, D).

    Returns:
        The mean; 2 − 2 × the mean cosine of the pairs.

    Raises:
        InputError: The shapes differ, fewer than 2 pairs are without a zero row, or a row is NaN
            or infinite (named).

    Source:
        Wang and Isola (2020), section 4.1, with α = 2.

    Example:
        >>> import numpy as np
        >>> alignment(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[5.0, 0.0], [3.0, 0.0]]))
        1.0
    """
    first, second = checked(first), checked(second)
    if first.shape != second.shape:
        raise InputError(f"pairs need equal shapes, got {first.shape} and {second.shape}")
    whole = np.logical_and(first.any(axis=1), second.any(axis=1))
    count = int(whole.sum())
    if count < 2:
        raise InputError(
            f"cosines take at least 2 pairs without a zero row, got {count} of {len(first)}"
        )
    total = 0.0
    for start in range(0, len(first), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        apart = np.square(unit_rows(first[part]) - unit_rows(second[part])).sum(axis=1)
        total += float(apart[whole[part]].sum())
    return total / count


def uniformity(vectors: Array, *, rows: int = 5000, random_state: int = 0) -> float:
    r"""How evenly a cloud covers the sphere: 0 if all rows point one way, lower is more even.

    .. math:: \ell_{\text{uniform}} = \ln \frac{1}{N (N - 1)} \sum_{i \ne j}
        e^{-2 \lVert u_i - u_j \rVert^2}, \qquad u_i = x_i / \lVert x_i \rVert

    Even in many dimensions is near −4; no cloud is below −8.

    Args:
        vectors: Shape (N, D), N ≥ 2. Rows that are zero have no direction and are left out.
        rows: A larger cloud is sampled: this many rows are drawn, and all their pairs taken.
        random_state: Seed of the draw.

    Returns:
        The logarithm of the mean.

    Raises:
        InputError: Fewer than 2 rows that are not zero, a NaN or infinite row (named), or `rows`
            is below 2.

    Source:
        Wang and Isola (2020), section 4.1, with t = 2.

    Example:
        >>> import numpy as np
        >>> round(uniformity(np.array([[1.0, 0.0], [0.0, 2.0]])), 6)
        -4.0
    """
    unit = unit_rows(sampled(directed(vectors), rows, random_state))
    count = len(unit)
    total = 0.0
    for numbers, cosine in cosine_blocks(unit):
        # ‖u − v‖² = 2 − 2 cos; rounding must not make it negative.
        potential = np.exp(4 * np.minimum(cosine, 1.0) - 4)
        potential[np.arange(len(numbers)), numbers] = 0.0
        total += float(potential.sum())
    return float(np.log(total / (count * (count - 1))))
