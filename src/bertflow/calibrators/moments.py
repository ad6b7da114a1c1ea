"""Streaming mean and covariance, mergeable across chunks, and the map of queries made of them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, chunks, finite, matrix, unit_length
from bertflow.errors import InputError, unknown
from bertflow.flows import bounded_deviation
from bertflow.process_state import pinned

# Deviation that float64 rounding alone can give a constant column, as a share of its mean.
ROUNDING = 1e-12
# Below this, the square of a deviation loses digits in float64, or is 0.
LEAST_DEVIATION = 1e-146
# Added to each variance, which is about 1, so that the map has an inverse also where neither side
# varies.
LEAST_VARIANCE = 1e-3
# A gap between the centres of a fifth of a deviation may come from topics, and is halved.
TOPICS = 0.2**2
ROLES = ("query", "document")
# What is saved, and how many dimensions it has.
PARTS = {"centre": 1, "matrix": 2, "target": 1}


class Moments:
    r"""Count, mean and centred second moments of the rows seen so far.

    Chunks are centred on their own mean before they are squared, so that a large mean costs no
    digits, and merged by

    .. math::
        M = M_a + M_b + \frac{n_a n_b}{n_a + n_b}\, \delta \delta^\top,
        \qquad \delta = \mu_b - \mu_a

    Args:
        features: Width D.
        covariance: Keep the full matrix (D, D); otherwise only its diagonal (D,).

    Attributes:
        count: Rows seen.
        mean: Shape (D,), float64.
        second: Sums of centred products, (D, D), or of squares alone, (D,).

    Source:
        Chan, Golub and LeVeque (1983), equations 2.1.

    Example:
        >>> import torch
        >>> moments = Moments(2)
        >>> moments.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
        >>> moments.update(torch.tensor([[5.0, 10.0]]))
        >>> moments.mean.tolist(), moments.covariance()[0].tolist()
        ([3.0, 6.0], [2.6666666666666665, 5.333333333333333])
    """

    @pinned()
    def __init__(self, features: int, *, covariance: bool = True) -> None:
        self.count = 0
        self.mean = torch.zeros(features, dtype=torch.float64)
        shape = (features, features) if covariance else (features,)
        self.second = torch.zeros(shape, dtype=torch.float64)

    @pinned()
    def update(self, rows: Tensor) -> None:
        """Take in a chunk of rows, shape (n, D), of any floating type."""
        if len(rows) == 0:
            return
        wide = _wide(rows)
        mean = wide.mean(dim=0)
        second = self._product(wide - mean)
        self.merge(Moments.restored(len(wide), mean.cpu(), second.cpu()))

    @pinned()
    def merge(self, other: Moments) -> None:
        """Take in the rows that another Moments of the same kind has seen."""
        total = self.count + other.count
        if total == 0:
            return
        delta = other.mean - self.mean
        weight = self.count * other.count / total
        self.second += other.second + weight * self._product(delta[None, :])
        self.mean = self.mean + delta * (other.count / total)
        self.count = total

    def __add__(self, other: Moments) -> Moments:
        """The moments of the rows of both."""
        both = Moments.restored(self.count, self.mean, self.second.clone())
        both.merge(other)
        return both

    def __sub__(self, part: Moments) -> Moments:
        """The moments of the rows that are left without some of them."""
        count = self.count - part.count
        if count <= 0:
            return Moments(len(self.mean), covariance=self.second.ndim == 2)
        delta = part.mean - self.mean
        # The mean of the rest lies on the other side.
        mean = self.mean - delta * (part.count / count)
        gone = part.second + self.count * part.count / count * self._product(delta[None, :])
        return Moments.restored(count, mean, self.second - gone)

    @classmethod
    def restored(cls, count: int, mean: Tensor, second: Tensor) -> Moments:
        """Moments from their attributes."""
        moments = cls.__new__(cls)
        moments.count = count
        moments.mean, moments.second = mean.double(), second.double()
        return moments

    def _product(self, centred: Tensor) -> Tensor:
        full = self.second.ndim == 2
        return centred.T @ centred if full else centred.square().sum(dim=0)

    def variance(self) -> Tensor:
        """Variance of each dimension, shape (D,), with ddof 0: divided by the count."""
        diagonal = self.second.diagonal() if self.second.ndim == 2 else self.second
        return diagonal / self.count

    def deviation(self) -> Tensor:
        """Square root of the variance, shape (D,)."""
        return self.variance().sqrt()

    def scale(self) -> Tensor:
        """The divisor of each dimension, shape (D,): its deviation, or the typical one."""
        return bounded_deviation(self.deviation(), ROUNDING * self.mean.abs())

    def covariance(self) -> Tensor:
        """Covariance matrix, shape (D, D), with ddof 0; an InputError without `covariance`."""
        if self.second.ndim != 2:
            raise InputError("the covariance is needed: build Moments with covariance=True")
        return self.second / self.count


def moments_of(
    rows: Array | Tensor, *, covariance: bool = True, normalize: bool = False
) -> Moments:
    """Moments of rows, or of the rows at unit length, as `check_moments` allows them."""
    moments = gathered(rows, covariance=covariance, normalize=normalize)
    check_moments(moments, " at unit length" if normalize else "")
    return moments


def gathered(rows: Array | Tensor, *, covariance: bool, normalize: bool) -> Moments:
    """Moments of any rows, also of one alone or of equal ones."""
    moments = Moments(rows.shape[1], covariance=covariance)
    for chunk in chunks(rows):
        wide = _wide(chunk)
        moments.update(unit_length(wide) if normalize else wide)
    return moments


def varies(moments: Moments) -> bool:
    """Whether rows differ by more than rounding; an InputError if they are too large to square."""
    mean, deviation = moments.mean.abs(), moments.deviation()
    if not bool(deviation.isfinite().all()):
        raise InputError(
            "X holds values that are not finite or too large to square in float64; scale it down"
        )
    return bool((deviation > (ROUNDING * mean).clamp(min=LEAST_DEVIATION)).any())


def check_moments(moments: Moments, alike: str = "") -> None:
    """Refuse moments of rows that are all equal, or not finite or too large to square."""
    if not varies(moments):
        raise InputError(
            f"all {moments.count} rows are equal{alike} up to rounding, or differ by less than "
            f"{LEAST_DEVIATION:g}: there is nothing to learn from them"
        )


def _wide(rows: Tensor) -> Tensor:
    """Rows in float64, on their CUDA device or the CPU: other devices may lack float64."""
    return rows.to(device=None if rows.is_cuda else "cpu", dtype=torch.float64)


def principal_axes(covariance: Tensor) -> tuple[Tensor, Tensor, float]:
    """The principal axes of a covariance matrix (D, D).

    Returns the deviation along each axis, shape (D,), falling; the axes as rows, shape (D, D),
    orthonormal, each with its largest entry positive; and the deviation that rounding can leave.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values, directions = values.flip(0).clamp(min=0), vectors.T.flip(0)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    floor = (values[0] * len(values) * torch.finfo(torch.float64).eps).sqrt()
    return values.sqrt(), directions * largest.sign(), float(floor)


@dataclass(frozen=True, eq=False)
class QueryMap:
    r"""Brings queries to the centre and the covariance of documents, as far as their number allows.

    .. math::
        q' = \mu_d + \Sigma_d^{1/2}\, \tilde\Sigma_q^{-1/2} (q - \tilde\mu_q), \qquad
        \tilde\Sigma_q = \frac{n \Sigma_q + D \Sigma_d}{n + D}, \qquad
        \tilde\mu_q = \mu_d + \left( \frac{g - \operatorname{tr} \Sigma_q / ((n - 1) D)}{g + 0.04}
        \right)_{\!+} (\mu_q - \mu_d), \qquad g = \tfrac{1}{D} \lVert \mu_q - \mu_d \rVert^2

    Queries and documents are two kinds of text, and lie in different cones. Few queries say little
    about their covariance, and less about a centre that is near the documents': the map is then
    near the identity. A small gap between the centres may also come from topics, so it counts less.
    All of it is computed with each dimension divided by the documents' deviation, and a thousandth
    is added to every variance.

    Attributes:
        centre: :math:`\tilde\mu_q`, shape (D,).
        matrix: :math:`\Sigma_d^{1/2} \tilde\Sigma_q^{-1/2}`, shape (D, D).
        target: :math:`\mu_d`, shape (D,).
        count: The queries n.

    Source:
        The centre is shrunk as by James and Stein (1961), and by 0.04 besides, which was chosen on
        QNLI and Cranfield; the matrix whitens queries and colours them as documents.

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
        check_moments(documents)
        count, width = queries.count, len(documents.mean)
        if len(queries.mean) != width:
            raise InputError(
                f"queries have {len(queries.mean)} dimensions, but documents have {width}"
            )
        scale = documents.scale()
        gap = queries.mean - documents.mean
        squared = (gap / scale).square().mean()
        noise = (queries.variance() / scale.square()).mean() / (count - 1)
        sure = ((squared - noise) / (squared + TOPICS)).clamp(min=0)
        own, other = (one.covariance() / torch.outer(scale, scale) for one in (queries, documents))
        mixed = (count * own + width * other) / (count + width)
        matrix = _matrix_power(other, 0.5) @ _matrix_power(mixed, -0.5)
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


def places_of_roles(role: object, count: int) -> dict[str, Array]:
    """The numbers of the rows of each role, of so many rows."""
    roles = np.asarray([role] * count if isinstance(role, str) else role, dtype=object)
    if roles.shape != (count,):
        raise InputError(f"role must be one word, or one for each of {count} rows")
    for other in (one for one in roles if one not in ROLES):
        raise unknown("role", str(other), ROLES)
    places = {name: np.flatnonzero(roles == name) for name in ROLES}
    return {name: found for name, found in places.items() if len(found)}


def _matrix_power(covariance: Tensor, power: float) -> Tensor:
    values, axes = torch.linalg.eigh(covariance)
    found: Tensor = (axes * (values.clamp(min=0) + LEAST_VARIANCE) ** power) @ axes.T
    return found
