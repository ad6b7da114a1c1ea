"""Hubness: rows that are everybody's neighbours, and rows that are nobody's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertflow.analysis.rows import cosine_blocks, directed, sampled, unit_rows
from bertflow.arrays import Array
from bertflow.errors import check_number

# Above what rounding adds to a cosine, and far below what a float32 vector can tell.
TIE = 4e-15


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
