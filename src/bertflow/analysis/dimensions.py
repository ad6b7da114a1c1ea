"""How many dimensions a cloud of vectors uses, which dominate it, and which are dead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bertflow.analysis.rows import checked, directed, unit_rows, within_range
from bertflow.arrays import CHUNK_ROWS, Array
from bertflow.calibrators.moments import ROUNDING, moments_of
from bertflow.flows import bounded_deviation


def effective_rank(vectors: Array) -> float:
    r"""Effective rank: how many dimensions the cloud uses, between 1 and min(N − 1, D).

    .. math:: \operatorname{erank} = \exp\Big(-\sum_k p_k \ln p_k\Big), \qquad
        p_k = \sigma_k / \sum_j \sigma_j

    σ are the singular values (not their squares) of the centred matrix, taken as the roots of the
    eigenvalues of the covariance; eigenvalues that are rounding count as 0. It does not depend on
    the mean, on rotation or on scale.

    Args:
        vectors: Shape (N, D), N ≥ 2. All rows are used, in chunks.

    Returns:
        A number of dimensions, rarely a whole one.

    Raises:
        InputError: Fewer than 2 rows, all rows equal, or a NaN or infinite row (named).

    Source:
        Roy and Vetterli (2007); they do not centre.

    Example:
        >>> import numpy as np
        >>> cross = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(effective_rank(cross + 5.0), 6)
        2.0
    """
    covariance = moments_of(within_range(checked(vectors))[0]).covariance()
    eigenvalues = torch.linalg.eigvalsh(covariance)
    # They are good to about this part of the largest.
    singular = eigenvalues[eigenvalues > ROUNDING * eigenvalues[-1]].sqrt()
    share = singular / singular.sum()
    return float(torch.exp(-(share * share.log()).sum()))


@dataclass(frozen=True, eq=False)
class Dominance:
    """What each dimension adds to the mean cosine of a cloud.

    Attributes:
        contributions: Shape (D,); they add up to the mean cosine.
    """

    contributions: Array

    @property
    def mean_cosine(self) -> float:
        """Mean cosine of all pairs of different rows."""
        return float(self.contributions.sum())

    @property
    def shares(self) -> Array:
        r"""The part of each dimension, shape (D,): :math:`|c_d| / \sum_e |c_e|`, adding up to 1.

        Absolute values, because contributions may cancel, and the mean cosine, which the paper
        divides by, may be 0; where all are positive this is the paper's share. All shares are 0 if
        all contributions are. If the mean cosine is near 0 no dimension dominates, and the shares
        are those of chance.
        """
        size = np.abs(self.contributions)
        shares: Array = size / (size.sum() or 1.0)
        return shares

    def top(self, count: int) -> list[tuple[int, float]]:
        """The dimensions with the largest shares, with these, largest first."""
        shares = self.shares
        order = np.argsort(-shares, kind="stable")[:count]
        return [(int(dimension), float(shares[dimension])) for dimension in order]


def dominance(vectors: Array) -> Dominance:
    r"""Contribution of each dimension to the mean cosine: a rogue dimension has most of it.

    .. math:: c_d = \frac{1}{N (N - 1)} \sum_{i \ne j} u_{id} u_{jd}
        = \frac{(\sum_i u_{id})^2 - \sum_i u_{id}^2}{N (N - 1)}, \qquad
        u_i = x_i / \lVert x_i \rVert

    The paper draws random pairs; by the right-hand side all pairs cost one pass, so nothing is
    drawn. It depends on the length of no row, but on the axes: it is not for rotated vectors.

    Args:
        vectors: Shape (N, D), N ≥ 2. Rows that are zero have no cosine and are left out.

    Returns:
        Contributions, their shares and their sum.

    Raises:
        InputError: Fewer than 2 rows that are not zero, or a NaN or infinite row (named).

    Source:
        Timkey and van Schijndel (2021).

    Example:
        >>> import numpy as np
        >>> result = dominance(np.array([[4.0, 3.0], [4.0, -3.0]]))
        >>> result.contributions.round(6), round(result.mean_cosine, 6)
        (array([ 0.64, -0.36]), 0.28)
        >>> [(dimension, round(share, 6)) for dimension, share in result.top(1)]
        [(0, 0.64)]
    """
    vectors = directed(vectors)
    count, width = vectors.shape
    total, square = np.zeros(width), np.zeros(width)
    for start in range(0, count, CHUNK_ROWS):
        unit = unit_rows(vectors[start : start + CHUNK_ROWS])
        total += unit.sum(axis=0)
        square += np.square(unit).sum(axis=0)
    return Dominance((np.square(total) - square) / (count * (count - 1)))


def dead_dimensions(vectors: Array) -> Array:
    """Dimensions that do not vary, by the rule by which the calibrators set them apart.

    Their deviation is rounding, or below 1e-4 of the typical one: see `flows.bounded_deviation`.

    Args:
        vectors: Shape (N, D), N ≥ 2. All rows are used, in chunks.

    Returns:
        Their numbers, rising, counted from 0.

    Raises:
        InputError: Fewer than 2 rows, all rows equal, or a NaN or infinite row (named).

    Example:
        >>> import numpy as np
        >>> dead_dimensions(np.array([[1.0, 7.0, 2.0], [2.0, 7.0, 4.0]]))
        array([1])
    """
    moments = moments_of(within_range(checked(vectors))[0], covariance=False)
    floor = ROUNDING * moments.mean.abs()
    deviation = moments.deviation()
    live = (deviation > floor) & (bounded_deviation(deviation, floor) == deviation)
    return np.flatnonzero(~live.numpy())
