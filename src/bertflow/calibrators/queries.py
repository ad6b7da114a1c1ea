"""Queries beside documents: the map that brings vectors of queries to where documents lie."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from bertflow.arrays import finite, matrix
from bertflow.calibrators.moments import Moments, moments_of
from bertflow.errors import InputError

# Added to each variance, which is about 1, so that the map has an inverse also where neither side
# varies.
LEAST_VARIANCE = 1e-3
ROLES = ("query", "document")
# What is saved, and how many dimensions it has.
PARTS = {"centre": 1, "matrix": 2, "target": 1}


@dataclass(frozen=True, eq=False)
class QueryMap:
    r"""Brings queries to the centre and the covariance of documents, as far as their number allows.

    .. math::
        q' = \mu_d + \Sigma_d^{1/2}\, \tilde\Sigma_q^{-1/2} (q - \tilde\mu_q), \qquad
        \tilde\Sigma_q = \frac{n \Sigma_q + D \Sigma_d}{n + D}, \qquad
        \tilde\mu_q = \mu_d + \left( 1 - \frac{\operatorname{tr} \Sigma_q}
        {(n - 1) \lVert \mu_q - \mu_d \rVert^2} \right)_{\!+} (\mu_q - \mu_d)

    Queries and documents are two kinds of text, and lie in different cones. Few queries say little
    about their covariance, and less about a centre that is near the documents': the map is then
    near the identity. All of it is computed with each dimension divided by the documents'
    deviation, and a thousandth is added to every variance.

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
        tensor([[1., 2.]])
    """

    centre: Tensor
    matrix: Tensor
    target: Tensor
    count: int

    @classmethod
    def of(cls, documents: Moments, queries: Moments) -> Self:
        """Learn it from moments of both sides, with their covariances."""
        count, width = queries.count, len(documents.mean)
        if len(queries.mean) != width:
            raise InputError(
                f"queries have {len(queries.mean)} dimensions, but documents have {width}"
            )
        scale = documents.scale()
        gap = queries.mean - documents.mean
        spread = (queries.variance() / scale.square()).sum() / (count - 1)
        sure = (1 - spread / (gap / scale).square().sum().clamp(min=1e-300)).clamp(min=0)
        own, other = (one.covariance() / torch.outer(scale, scale) for one in (queries, documents))
        mixed = (count * own + width * other) / (count + width)
        matrix = _power(other, 0.5) @ _power(mixed, -0.5)
        return cls(
            centre=documents.mean + sure * gap,
            matrix=scale[:, None] * matrix / scale,
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
        found = cls(count=count, **{name: learned.pop(f"query_{name}") for name in PARTS})
        if torch.linalg.inv_ex(found.matrix).info:
            raise ValueError("query_matrix has no inverse")
        return found

    def apply(self, x: Tensor) -> Tensor:
        """Map queries, shape (n, D)."""
        here = self.to(x)
        mapped: Tensor = torch.addmm(here.target, x - here.centre, here.matrix.T)
        return mapped

    def inverse(self) -> Self:
        """The map back."""
        matrix = torch.linalg.inv(self.matrix)
        return replace(self, centre=self.target, matrix=matrix, target=self.centre)

    def to(self, x: Tensor) -> Self:
        """The same map in a tensor's type, on its device."""
        return replace(self, **{name: getattr(self, name).to(x) for name in PARTS})


def moments_of_queries(X: Any, check: Callable[[Any], Any] = matrix) -> Moments:  # noqa: N803
    """Moments of vectors of queries, at least 2 of them; messages say that it is the queries."""
    try:
        rows = check(X)
        if len(rows) < 2:
            raise InputError(f"got {len(rows)}, but a map of their own takes at least 2")
        return moments_of(finite(rows))
    except InputError as error:
        raise InputError(f"of the queries: {error}") from None


def _power(covariance: Tensor, power: float) -> Tensor:
    values, axes = torch.linalg.eigh(covariance)
    found: Tensor = (axes * (values.clamp(min=0) + LEAST_VARIANCE) ** power) @ axes.T
    return found
