"""How evenly a cloud of vectors fills the directions of its space."""

from __future__ import annotations

import numpy as np
import torch

from bertflow.calibrators.base import Array, as_tensor
from bertflow.errors import InputError
from bertflow.evaluation import paired_cosine


def mean_cosine(vectors: Array, *, pairs: int = 20000, random_state: int = 0) -> float:
    """Mean cosine of random pairs of different rows: near 0 in an isotropic cloud.

    Args:
        vectors: Shape (N, D), N ≥ 2.
        pairs: How many pairs are drawn.
        random_state: Seed of the draw.

    Returns:
        The mean over the pairs that have a cosine.

    Raises:
        InputError: Fewer than 2 rows, or no pair has a cosine.

    Example:
        >>> import numpy as np
        >>> mean_cosine(np.ones((5, 3)))
        1.0
    """
    if len(vectors) < 2:
        raise InputError(f"pairs take at least 2 rows, got {len(vectors)}")
    random = np.random.default_rng(random_state)
    first = random.integers(len(vectors), size=pairs)
    second = (first + random.integers(1, len(vectors), size=pairs)) % len(vectors)
    cosine = paired_cosine(vectors[first], vectors[second])
    if np.isnan(cosine).all():
        raise InputError("no pair has a cosine: the vectors are zero or not finite")
    return float(np.nanmean(cosine))


def singular_spectrum(vectors: Array) -> Array:
    """Singular values of the matrix as it is (not centred), falling, the first being 1.

    An anisotropic cloud has one or a few that dwarf the others; that of a white one is flat.

    Args:
        vectors: Shape (N, D).

    Returns:
        Shape (min(N, D),), float64.

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> singular_spectrum(np.diag([4.0, 2.0]))
        array([1. , 0.5])
    """
    values = torch.linalg.svdvals(as_tensor(vectors).double()).numpy()
    spectrum: Array = values / values[0] if values[0] > 0 else values
    return spectrum
