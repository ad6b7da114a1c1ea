"""Cosine similarity and its correlation with gold scores."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.stats

from bertflow.calibrators.base import Array
from bertflow.errors import InputError


def paired_cosine(first: Array, second: Array) -> Array:
    r"""Cosine of each row with its partner, in float64.

    .. math:: c_i = \frac{a_i \cdot b_i}{\lVert a_i \rVert \lVert b_i \rVert}

    Args:
        first: Shape (N, D).
        second: Shape (N, D).

    Returns:
        Shape (N,). NaN where a row is zero or not finite: such pairs have no cosine, and are for
        the caller to count. Equal rows give exactly 1.

    Raises:
        InputError: The shapes differ.

    Example:
        >>> import numpy as np
        >>> paired_cosine(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [1.0, 0.0]]))
        array([0.70710678,        nan])
    """
    if first.shape != second.shape:
        raise InputError(f"pairs need equal shapes, got {first.shape} and {second.shape}")
    first, second = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(all="ignore"):
        a = first / np.abs(first).max(axis=1, keepdims=True, initial=0)
        b = second / np.abs(second).max(axis=1, keepdims=True, initial=0)
        product = np.einsum("nd,nd->n", a, b)
        square = np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b)
        cosine: Array = product / np.sqrt(square)
        cosine[(first == second).all(axis=1) & np.isfinite(cosine)] = 1.0
    return cosine


@dataclass(frozen=True)
class Correlation:
    """Spearman's and Pearson's correlation; None with the reason where they are not defined."""

    spearman: float | None
    pearson: float | None
    undefined: str | None = None


def spearman_difference(
    before: Array, after: Array, gold: Array, *, resamples: int = 1000, random_state: int = 0
) -> tuple[float, float]:
    """95 % interval of how much Spearman's correlation with gold rises, by bootstrap over pairs.

    Both correlations are taken on the same resampled pairs, so what the two share cancels.

    Args:
        before: Similarities, shape (N,).
        after: Other similarities of the same pairs, shape (N,).
        gold: Gold scores, shape (N,).
        resamples: How often pairs are drawn with replacement.
        random_state: Seed of the draw.

    Returns:
        The 2.5 % and the 97.5 % quantile of the difference.

    Example:
        >>> import numpy as np
        >>> gold = np.arange(50.0)
        >>> [round(bound, 6) for bound in spearman_difference(-gold, gold, gold)]
        [2.0, 2.0]
    """
    random = np.random.default_rng(random_state)
    differences = []
    for _ in range(resamples):
        drawn = random.integers(len(gold), size=len(gold))
        both = [correlate(side[drawn], gold[drawn]).spearman for side in (before, after)]
        if both[0] is not None and both[1] is not None:
            differences.append(both[1] - both[0])
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def correlate(similarity: Array, gold: Array) -> Correlation:
    """Correlate similarities with gold scores, shape (N,) each.

    Example:
        >>> import numpy as np
        >>> correlate(np.array([0.1, 0.5, 0.9]), np.array([1.0, 2.0, 5.0])).spearman
        1.0
        >>> correlate(np.array([0.5, 0.5]), np.array([1.0, 2.0])).undefined
        'all similarities are equal'
    """
    if len(similarity) < 2:
        return Correlation(None, None, f"{len(similarity)} scored pairs, but it takes 2")
    if np.ptp(similarity) == 0:
        return Correlation(None, None, "all similarities are equal")
    if np.ptp(gold) == 0:
        return Correlation(None, None, "all gold scores are equal")
    with warnings.catch_warnings():
        # Similarities that are almost equal still have an order; it is what is asked for.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return Correlation(
            spearman=float(scipy.stats.spearmanr(similarity, gold).statistic),
            pearson=float(scipy.stats.pearsonr(similarity, gold).statistic),
        )
