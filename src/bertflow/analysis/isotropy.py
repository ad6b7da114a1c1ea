"""How evenly a cloud of vectors fills the directions of its space."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from bertflow.analysis.dimensions import dominance, effective_rank
from bertflow.analysis.rows import checked, directed, sampled, within_range
from bertflow.arrays import CHUNK_ROWS, Array, as_tensor, chunks, finite
from bertflow.calibrators.moments import moments_of
from bertflow.errors import InputError, check_number
from bertflow.evaluation import paired_cosine


def mean_cosine(vectors: Array, *, pairs: int = 20000, random_state: int = 0) -> float:
    """Mean cosine of random pairs of different rows: near 0 in an isotropic cloud.

    Args:
        vectors: Shape (N, D), N ≥ 2. Rows that are zero have no cosine and are left out.
        pairs: How many pairs are drawn.
        random_state: Seed of the draw.

    Returns:
        The mean over the pairs.

    Raises:
        InputError: Fewer than 2 rows that are not zero, or a NaN or infinite row (named).

    Source:
        Ethayarajh (2019), as the measure of anisotropy.

    Example:
        >>> import numpy as np
        >>> mean_cosine(np.ones((5, 3)))
        1.0
    """
    vectors = directed(vectors)
    check_number("pairs", pairs, 1, integer=True)
    return float(cosines_of_rows(vectors, *random_pairs(len(vectors), pairs, random_state)).mean())


def random_pairs(count: int, pairs: int, random_state: int) -> tuple[Array, Array]:
    """Numbers of so many pairs of different rows below `count`, each of shape (pairs,)."""
    random = np.random.default_rng(random_state)
    first = random.integers(count, size=pairs)
    return first, (first + random.integers(1, count, size=pairs)) % count


def cosines_of_rows(vectors: Array, first: Array, second: Array) -> Array:
    """Cosines of pairs of rows by number, a few thousand pairs at a time."""
    starts = range(0, len(first), CHUNK_ROWS)
    parts = [slice(start, start + CHUNK_ROWS) for start in starts]
    return np.concatenate(
        [paired_cosine(vectors[first[part]], vectors[second[part]]) for part in parts]
    )


def partition_isotropy(vectors: Array, *, rows: int = 20000, random_state: int = 0) -> float:
    r"""How alike the partition function is in all directions: 1 where it is constant.

    .. math:: I(W) = \frac{\min_{c \in C} Z(c)}{\max_{c \in C} Z(c)}, \qquad
        Z(c) = \sum_i e^{c \cdot w_i}

    C are the eigenvectors of :math:`W^\top W`, W not centred, each with both signs: the paper
    defines I over all directions and then takes the eigenvectors for them, whose sign is
    arbitrary, but Z(c) and Z(−c) differ. With one sign the value would be an accident of the
    linear algebra; with both it is the closer, never larger, bound. Where eigenvalues coincide the
    vectors themselves are arbitrary, and the value depends on them.

    Scale matters, because the vectors enter an exponential as they are: shrinking a cloud brings
    I to 1, enlarging it brings I to 0. Compare clouds of one scale, or scale them first.

    Args:
        vectors: Shape (N, D), N ≥ 2.
        rows: A larger cloud is sampled: this many rows are drawn.
        random_state: Seed of the draw.

    Returns:
        Between 0 and 1; 0.0 where it is too small for a float.

    Raises:
        InputError: Fewer than 2 rows, a NaN or infinite row (named), or `rows` is below 2.

    Source:
        Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> cross = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> partition_isotropy(cross)
        1.0
        >>> round(partition_isotropy(cross + [3.0, 0.0]), 4)
        0.0025
    """
    sample, size = within_range(sampled(checked(vectors), rows, random_state))
    # Beyond that, exp of any difference that float64 can tell is 0 already.
    size = min(size, 1e100)
    gram = torch.zeros(sample.shape[1], sample.shape[1], dtype=torch.float64)
    for chunk in chunks(sample):
        gram += chunk.double().T @ chunk.double()
    directions = torch.linalg.eigh(gram).eigenvectors
    log_z = torch.full((2, sample.shape[1]), -math.inf, dtype=torch.float64)
    for chunk in chunks(sample):
        exponent = size * (chunk.double() @ directions)
        both = torch.stack([exponent.logsumexp(dim=0), (-exponent).logsumexp(dim=0)])
        log_z = torch.logaddexp(log_z, both)
    return math.exp(float(log_z.min() - log_z.max()))


def isoscore(vectors: Array) -> float:
    r"""IsoScore: the share of dimensions the cloud uses evenly, 0 for a line, 1 for a ball.

    The paper's steps, λ being the variances along the principal axes:

    .. math::
        \hat\lambda = \sqrt D\, \lambda / \lVert \lambda \rVert, \qquad
        \delta = \frac{\lVert \hat\lambda - 1 \rVert}{\sqrt{2 (D - \sqrt D)}}, \qquad
        \phi = \frac{(D - \delta^2 (D - \sqrt D))^2}{D^2}, \qquad
        \iota = \frac{D \phi - 1}{D - 1}

    Inserted into each other they give, with the participation ratio R,

    .. math:: \iota = \frac{R - 1}{D - 1}, \qquad
        R = \frac{(\sum \lambda)^2}{\sum \lambda^2}
        = \frac{(\operatorname{tr} \Sigma)^2}{\lVert \Sigma \rVert_F^2}

    which is what is computed: no axes are needed. It does not depend on the mean, on rotation or
    on scale. From few rows it comes out low: of N rows of a ball it is about N / (N + D).

    Args:
        vectors: Shape (N, D), N ≥ 2, D ≥ 2. All rows are used, in chunks.

    Returns:
        Between 0 and 1.

    Raises:
        InputError: Fewer than 2 rows or dimensions, all rows equal, or a NaN or infinite row
            (named).

    Source:
        Rudman et al. (2022), algorithm 1.

    Example:
        >>> import numpy as np
        >>> isoscore(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        1.0
        >>> isoscore(np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
        0.0
    """
    rows = within_range(checked(vectors))[0]
    width = rows.shape[1]
    if width < 2:
        raise InputError("IsoScore compares dimensions and needs at least 2, got 1")
    covariance = moments_of(rows).covariance()
    ratio = 1 / float((covariance / covariance.trace()).square().sum())
    # Rounding may leave the bounds.
    return float(np.clip((ratio - 1) / (width - 1), 0.0, 1.0))


def singular_spectrum(vectors: Array) -> Array:
    """Singular values of the matrix as it is (not centred), falling, the first being 1.

    An anisotropic cloud has one or a few that dwarf the others; that of a white one is flat.

    Args:
        vectors: Shape (N, D).

    Returns:
        Shape (min(N, D),), float64.

    Raises:
        InputError: A NaN or infinite row (named).

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> singular_spectrum(np.diag([4.0, 2.0]))
        array([1. , 0.5])
    """
    values = torch.linalg.svdvals(as_tensor(finite(vectors)).double()).numpy()
    spectrum: Array = values / values[0] if values[0] > 0 else values
    return spectrum


@dataclass(frozen=True, kw_only=True)
class Isotropy:
    """How isotropic a cloud of vectors is.

    Attributes:
        rows: How many vectors.
        width: Their dimensions.
        mean_cosine: Of random pairs; 0 is best.
        partition_isotropy: Alike in all directions; 1 is best.
        isoscore: Share of dimensions that are used evenly; 1 is best.
        effective_rank: How many dimensions are used, at most `width`.
        leading_share: Share of the mean cosine that the one dimension with the most of it has.
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
    """Measure a cloud's isotropy.

    Args:
        vectors: Of different sentences, shape (N, D), N ≥ 3.

    Raises:
        InputError: Too few rows, or one that is not finite.

    Source:
        Ethayarajh (2019), which looks at it layer by layer; Mu and Viswanath (2018); Rudman et
        al. (2022); Roy and Vetterli (2007).

    Example:
        >>> import numpy as np
        >>> ball = np.random.default_rng(0).normal(size=(2000, 8))
        >>> cone = ball + 10.0
        >>> [round(abs(measure_isotropy(cloud).mean_cosine), 1) for cloud in (ball, cone)]
        [0.0, 1.0]
    """
    leading = dominance(vectors).top(1)
    return Isotropy(
        rows=len(vectors),
        width=vectors.shape[1],
        mean_cosine=mean_cosine(vectors),
        partition_isotropy=partition_isotropy(vectors),
        isoscore=isoscore(vectors),
        effective_rank=effective_rank(vectors),
        leading_share=float(leading[0][1]),
    )
