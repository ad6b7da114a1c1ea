"""Cosine similarity and its correlation with gold scores."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.stats
from sklearn.metrics import roc_auc_score

from bertflow.arrays import Array
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


def area_under_curve(similarity: Array, gold: Array) -> tuple[float | None, str | None]:
    """Area under the ROC curve of similarities, gold being 1 and 0, shape (N,) each.

    Returns:
        The area and None, or None and the reason where it is not defined.

    Example:
        >>> import numpy as np
        >>> area_under_curve(np.array([0.2, 0.4, 0.9]), np.array([0.0, 1.0, 1.0]))
        (1.0, None)
        >>> area_under_curve(np.array([0.2, 0.4]), np.array([1.0, 1.0]))
        (None, 'all 2 pairs are of one class')
    """
    if len(gold) == 0:
        return None, "no pair is scored"
    if np.ptp(gold) == 0:
        return None, f"all {len(gold)} pairs are of one class"
    return float(roc_auc_score(gold, similarity)), None
