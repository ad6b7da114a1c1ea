"""Queries beside documents: the map that brings vectors of queries to where documents lie."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, finite, matrix
from bertflow.calibrators.moments import Moments, moments_of
from bertflow.errors import InputError

# Added to each variance, as a share of the documents' mean variance, so that the map has an
# inverse also where neither side varies.
LEAST_VARIANCE = 1e-3
# What is saved, and how many dimensions it has.
PARTS = {"centre": 1, "matrix": 2, "target": 1}


@dataclass(frozen=True)
class QueryMap:
    r"""Brings queries to the centre and the covariance of documents, as far as their number allows.

    .. math::
        q' = \mu_d + \Sigma_d^{1/2}\, \tilde\Sigma_q^{-1/2} (q - \tilde\mu_q), \qquad
        \tilde\Sigma_q = \frac{n \Sigma_q + D \Sigma_d}{n + D}, \qquad
        \tilde\mu_q = \mu_d + \left( 1 - \frac{\operatorname{tr} \Sigma_q}
        {(n - 1) \lVert \mu_q - \mu_d \rVert^2} \right)_{\!+} (\mu_q - \mu_d)

    Queries and documents are two kinds of text, and lie in different cones. Few queries say little
    about their covariance, and less about a centre that is near the documents': the map is then
    near the identity. A thousandth of the documents' mean variance is added to every variance.

    Attributes:
        centre: :math:`\tilde\mu_q`, shape (D,).
        matrix: :math:`\Sigma_d^{1/2} \tilde\Sigma_q^{-1/2}`, shape (D, D).
        target: :math:`\mu_d`, shape (D,).
        count: The queries n.

    Source:
        The centre is James and Stein's (1961) estimate; the matrix whitens queries and colours
        them as documents.

    Example:
        >>> documents, queries = Moments(2), Moments(2)
        >>> documents.update(torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 2.0], [2.0, 0.0]]))
        >>> queries.update(torch.tensor([[9.0, 9.0], [11.0, 11.0], [9.0, 11.0], [11.0, 9.0]]))
        >>> QueryMap.of(documents, queries).apply(torch.tensor([[10.0, 11.0]])).round(decimals=1)
        tensor([[1.1, 2.1]])
    """

    centre: Tensor
    matrix: Tensor
    target: Tensor
    count: int

    @classmethod
    def of(cls, documents: Moments, queries: Moments) -> Self:
        """Learn it from moments of both sides, with their covariances."""
        count, width = queries.count, len(documents.mean)
        gap = queries.mean - documents.mean
        spread = queries.variance().sum() / (count - 1)
        sure = (1 - spread / gap.square().sum().clamp(min=1e-300)).clamp(min=0)
        covariance = documents.covariance()
        mixed = (count * queries.covariance() + width * covariance) / (count + width)
        least = LEAST_VARIANCE * covariance.diagonal().mean()
        return cls(
            centre=documents.mean + sure * gap,
            matrix=_power(covariance, 0.5, least) @ _power(mixed, -0.5, least),
            target=documents.mean.clone(),
            count=count,
        )

    def learned(self) -> dict[str, Tensor]:
        """Its tensors, by their names in files."""
        return {f"query_{name}": getattr(self, name) for name in PARTS}

    @staticmethod
    def allocated(width: int) -> dict[str, Tensor]:
        """Shapes and types of these tensors, without memory."""
        return {
            f"query_{name}": torch.empty(*[width] * dims, dtype=torch.float64, device="meta")
            for name, dims in PARTS.items()
        }

    @classmethod
    def restored(cls, count: int, learned: MutableMapping[str, Tensor]) -> Self:
        """Take these tensors out of those of a file."""
        return cls(count=count, **{name: learned.pop(f"query_{name}") for name in PARTS})

    def apply(self, x: Tensor) -> Tensor:
        """Map queries, shape (n, D)."""
        centre, matrix, target = (one.to(x) for one in (self.centre, self.matrix, self.target))
        mapped: Tensor = torch.addmm(target, x - centre, matrix.T)
        return mapped

    @cached_property
    def _back(self) -> Tensor:
        inverse: Tensor = torch.linalg.inv(self.matrix)
        return inverse

    def undo(self, x: Tensor) -> Tensor:
        """Map them back."""
        centre, matrix, target = (one.to(x) for one in (self.centre, self._back, self.target))
        mapped: Tensor = torch.addmm(centre, x - target, matrix.T)
        return mapped


def moments_of_queries(queries: Any, width: int) -> Moments:
    """Moments of vectors of queries, at least 2 of this width; a message names them."""
    try:
        rows = finite(matrix(queries, width))
        if rows.shape[1] != width:
            raise InputError(f"{rows.shape[1]} columns, but X has {width}")
        if len(rows) < 2:
            raise InputError(f"got {len(rows)}, but a map of their own takes at least 2")
        return moments_of(rows)
    except InputError as error:
        raise InputError(f"queries: {error}") from None


def _power(covariance: Tensor, power: float, least: Tensor) -> Tensor:
    values, axes = torch.linalg.eigh(covariance)
    found: Tensor = (axes * (values.clamp(min=0) + least) ** power) @ axes.T
    return found


def rows_of_role(role: object, count: int) -> Array | None:
    """Which of so many rows are queries, shape (count,); None for none of them."""
    if isinstance(role, str):
        several = np.full(count, role, dtype=object)
    else:
        several = np.asarray(role, dtype=object)
    if several.shape != (count,):
        raise InputError(f"role must be one word, or one for each of {count} rows")
    queries: Array = several == "query"
    if not (queries | (several == "document")).all():
        other = several[~(queries | (several == "document"))][0]
        raise InputError(f"a role is 'query' or 'document', got {other!r}")
    return queries if queries.any() else None
