"""How evenly a cloud of vectors fills the directions of its space."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.stats
import torch

from bertflow.analysis.neighbours import checked, cosine_blocks, directed, sampled
from bertflow.arrays import CHUNK_ROWS, Array, as_tensor, chunks, finite, unit_rows
from bertflow.calibrators.moments import ROUNDING, moments_of
from bertflow.errors import InputError, check_number
from bertflow.evaluation.scores import cosines_of_rows, paired_cosine
from bertflow.flows import bounded_deviation

# Above what rounding adds to a cosine, and far below what a float32 vector can tell.
TIE = 4e-15


def mean_cosine(vectors: Array, *, pairs: int = 20000, random_state: int = 0) -> float:
    """Mean cosine of random pairs of different rows: near 0 in an isotropic cloud.

    Source: Ethayarajh (2019), as the measure of anisotropy.

    Example:
        >>> mean_cosine(np.ones((5, 3)))
        1.0
    """
    vectors = directed(vectors)
    check_number("pairs", pairs, 1, integer=True)
    return float(cosines_of_rows(vectors, *random_pairs(len(vectors), pairs, random_state)).mean())


def random_pairs(count: int, pairs: int, random_state: int) -> tuple[Array, Array]:
    """Numbers of so many pairs of different rows below `count`."""
    random = np.random.default_rng(random_state)
    first = random.integers(count, size=pairs)
    return first, (first + random.integers(1, count, size=pairs)) % count


def partition_isotropy(vectors: Array, *, rows: int = 20000, random_state: int = 0) -> float:
    r"""How alike the partition function is in all directions: 1 where it is constant.

    .. math:: I(W) = \frac{\min_{c \in C} Z(c)}{\max_{c \in C} Z(c)}, \qquad
        Z(c) = \sum_i e^{c \cdot w_i}

    C are the eigenvectors of :math:`W^\top W`, W not centred, with both signs. Shrinking a cloud
    brings I to 1, enlarging it to 0: compare clouds of one scale.

    Source: Mu and Viswanath (2018).

    Example:
        >>> cross = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> partition_isotropy(cross)
        1.0
        >>> round(partition_isotropy(cross + [3.0, 0.0]), 4)
        0.0025
    """
    sample = sampled(checked(vectors), rows, random_state)
    gram = torch.zeros(sample.shape[1], sample.shape[1], dtype=torch.float64)
    for chunk in chunks(sample):
        gram += chunk.double().T @ chunk.double()
    directions = torch.linalg.eigh(gram).eigenvectors
    log_z = torch.full((2, sample.shape[1]), -math.inf, dtype=torch.float64)
    for chunk in chunks(sample):
        exponent = chunk.double() @ directions
        both = torch.stack([exponent.logsumexp(dim=0), (-exponent).logsumexp(dim=0)])
        log_z = torch.logaddexp(log_z, both)
    return math.exp(float(log_z.min() - log_z.max()))


def isoscore(vectors: Array) -> float:
    r"""IsoScore: the share of D ≥ 2 dimensions used evenly, 0 for a line, 1 for a ball.

    With the variances λ along the principal axes, the paper's steps come to

    .. math:: \iota = \frac{R - 1}{D - 1}, \qquad
        R = \frac{(\sum \lambda)^2}{\sum \lambda^2}
        = \frac{(\operatorname{tr} \Sigma)^2}{\lVert \Sigma \rVert_F^2}

    R being the participation ratio. Neither mean, rotation nor scale matters. Of N rows of a ball
    the score is about N / (N + D).

    Source: Rudman et al. (2022), algorithm 1.

    Example:
        >>> isoscore(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        1.0
    """
    rows = checked(vectors)
    width = rows.shape[1]
    if width < 2:
        raise InputError("IsoScore compares dimensions and needs at least 2, got 1")
    covariance = moments_of(rows).covariance()
    ratio = 1 / float((covariance / covariance.trace()).square().sum())
    # Rounding may leave the bounds.
    return float(np.clip((ratio - 1) / (width - 1), 0.0, 1.0))


def singular_spectrum(vectors: Array) -> Array:
    """Singular values, not centred, relative to the first, falling, shape (min(N, D),).

    In an anisotropic cloud one or a few dwarf the others.

    Source: Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> singular_spectrum(np.diag([4.0, 2.0]))
        array([1. , 0.5])
    """
    values = torch.linalg.svdvals(as_tensor(finite(vectors)).double()).numpy()
    spectrum: Array = values / values[0] if values[0] > 0 else values
    return spectrum


@dataclass(frozen=True, kw_only=True)
class Isotropy:
    """Number of vectors, their dimensions, and the measures of the same names.

    `leading_share` is the largest share of one dimension in the mean cosine.
    """

    rows: int
    width: int
    mean_cosine: float
    partition_isotropy: float
    isoscore: float
    effective_rank: float
    leading_share: float

    def to_dict(self) -> dict[str, Any]:
        """The measures as JSON has them."""
        return asdict(self)


def measure_isotropy(vectors: Array) -> Isotropy:
    """Measure the isotropy of a cloud of different sentences, N ≥ 3.

    Example:
        >>> ball = np.random.default_rng(0).normal(size=(2000, 8))
        >>> [round(abs(measure_isotropy(cloud).mean_cosine), 1) for cloud in (ball, ball + 10.0)]
        [0.0, 1.0]
    """
    return Isotropy(
        rows=len(vectors),
        width=vectors.shape[1],
        mean_cosine=mean_cosine(vectors),
        partition_isotropy=partition_isotropy(vectors),
        isoscore=isoscore(vectors),
        effective_rank=effective_rank(vectors),
        leading_share=dominance(vectors).top(1)[0][1],
    )


def effective_rank(vectors: Array) -> float:
    r"""Effective rank: how many dimensions the cloud uses, between 1 and min(N − 1, D).

    .. math:: \operatorname{erank} = \exp\Big(-\sum_k p_k \ln p_k\Big), \qquad
        p_k = \sigma_k / \sum_j \sigma_j

    σ are the singular values (not their squares) of the centred matrix, without those that are
    rounding. Neither mean, rotation nor scale matters.

    Source: Roy and Vetterli (2007); they do not centre.

    Example:
        >>> cross = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(effective_rank(cross + 5.0), 6)
        2.0
    """
    covariance = moments_of(checked(vectors)).covariance()
    eigenvalues = torch.linalg.eigvalsh(covariance)
    # They are good to about this part of the largest.
    singular = eigenvalues[eigenvalues > ROUNDING * eigenvalues[-1]].sqrt()
    share = singular / singular.sum()
    return float(torch.exp(-(share * share.log()).sum()))


@dataclass(frozen=True, eq=False)
class Dominance:
    """The contribution of each dimension to the mean cosine, shape (D,): they add up to it."""

    contributions: Array

    @property
    def mean_cosine(self) -> float:
        """Mean cosine of all pairs of different rows."""
        return float(self.contributions.sum())

    @property
    def shares(self) -> Array:
        r"""The part of each dimension, shape (D,): :math:`|c_d| / \sum_e |c_e|`, or all 0."""
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

    By the right-hand side all pairs cost one pass. Axes matter: it is not for rotated vectors.

    Source: Timkey and van Schijndel (2021).

    Example:
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
    """Numbers of the dimensions that do not vary, by the calibrators' rule.

    Their deviation is rounding, or below 1e-4 of the typical one: see `flows.bounded_deviation`.

    Example:
        >>> dead_dimensions(np.array([[1.0, 7.0, 2.0], [2.0, 7.0, 4.0]]))
        array([1])
    """
    moments = moments_of(checked(vectors), covariance=False)
    floor = ROUNDING * moments.mean.abs()
    deviation = moments.deviation()
    live = (deviation > floor) & (bounded_deviation(deviation, floor) == deviation)
    return np.flatnonzero(~live.numpy())


def alignment(first: Array, second: Array) -> float:
    r"""Mean squared distance of pairs that belong together, on the sphere: 0 is best, 4 is worst.

    .. math:: \ell_{\text{align}} = \frac{1}{N} \sum_i
        \Big\lVert \frac{x_i}{\lVert x_i \rVert} - \frac{y_i}{\lVert y_i \rVert} \Big\rVert^2
        = 2 - \frac{2}{N} \sum_i \cos(x_i, y_i)

    Both sides have shape (N, D). Pairs with a row that is zero are left out.

    Source: Wang and Isola (2020), section 4.1, with α = 2.

    Example:
        >>> alignment(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[5.0, 0.0], [3.0, 0.0]]))
        1.0
    """
    cosine = paired_cosine(checked(first), checked(second))
    known = cosine[~np.isnan(cosine)]
    if len(known) < 2:
        raise InputError(
            f"cosines take at least 2 pairs without a zero row, got {len(known)} of {len(cosine)}"
        )
    return float(2 - 2 * known.mean())


def uniformity(vectors: Array, *, rows: int = 5000, random_state: int = 0) -> float:
    r"""How evenly a cloud covers the sphere: 0 if all rows point one way, lower is more even.

    .. math:: \ell_{\text{uniform}} = \ln \frac{1}{N (N - 1)} \sum_{i \ne j}
        e^{-2 \lVert u_i - u_j \rVert^2}, \qquad u_i = x_i / \lVert x_i \rVert

    Even in many dimensions is near −4; no cloud is below −8.

    Source: Wang and Isola (2020), section 4.1, with t = 2.

    Example:
        >>> round(uniformity(np.array([[1.0, 0.0], [0.0, 2.0]])), 6)
        -4.0
    """
    unit = unit_rows(sampled(directed(vectors), rows, random_state))
    count = len(unit)
    total = 0.0
    for _, cosine in cosine_blocks(unit):
        # ‖u − v‖² = 2 − 2 cos; rounding must not make it negative.
        total += float(np.exp(4 * np.minimum(cosine, 1.0) - 4).sum())
    return float(np.log(total / (count * (count - 1))))


@dataclass(frozen=True)
class Hubness:
    """How unevenly rows occur among each other's k nearest neighbours.

    `skewness` is near 0 without hubs and rises with them, `antihubs` is the share of the rows that
    are among nobody's nearest, and `largest` the number of rows that have the strongest hub there.
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
    (ddof 0); S = 0 if that is 0. Where all rows share a direction, those near it become hubs.
    S depends on the number of rows. Of neighbours that tie, those that follow the row come first.

    Source: Radovanović, Nanopoulos and Ivanović (2010).

    Example:
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
        # Cyclically, so that equal rows do not make hubs of the first of them.
        cosine -= TIE * ((np.arange(count) - numbers[:, None]) % count)
        near = np.argpartition(cosine, count - k, axis=1)[:, count - k :]
        occurrence += np.bincount(near.ravel(), minlength=count)
    return Hubness(
        skewness=float(scipy.stats.skew(occurrence)) if np.ptp(occurrence) else 0.0,
        antihubs=float(np.mean(occurrence == 0)),
        largest=int(occurrence.max()),
        k=k,
        rows=count,
    )
