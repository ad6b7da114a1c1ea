"""The isotropy of a cloud in one object, to set an encoder's hidden states side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bertflow.analysis.dimensions import dominance, effective_rank
from bertflow.analysis.isotropy import isoscore, mean_cosine, partition_isotropy
from bertflow.arrays import Array


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
