"""Nearest neighbours by cosine."""

from __future__ import annotations

import numpy as np

from bertflow.analysis.rows import unit_rows
from bertflow.calibrators.base import Array
from bertflow.errors import InputError


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
