"""Streaming mean and covariance in float64, mergeable across chunks and machines."""

from __future__ import annotations

import torch
from torch import Tensor

from bertflow.arrays import Array, chunks, unit_length
from bertflow.errors import InputError
from bertflow.flows import bounded_deviation
from bertflow.process_state import pinned

# Deviation that float64 rounding alone can give a constant column, as a share of its mean.
ROUNDING = 1e-12
# Below this, the square of a deviation loses digits in float64, or is 0.
LEAST_DEVIATION = 1e-146


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

    @classmethod
    def restored(cls, count: int, mean: Tensor, second: Tensor) -> Moments:
        """Moments with these attributes."""
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
    moments = Moments(rows.shape[1], covariance=covariance)
    for chunk in chunks(rows):
        wide = _wide(chunk)
        moments.update(unit_length(wide) if normalize else wide)
    check_moments(moments, " at unit length" if normalize else "")
    return moments


def check_moments(moments: Moments, alike: str = "") -> None:
    """Refuse moments of rows that are all equal, or not finite or too large to square."""
    mean, deviation = moments.mean.abs(), moments.deviation()
    if not bool(deviation.isfinite().all()):
        raise InputError(
            "X holds values that are not finite or too large to square in float64; scale it down"
        )
    if not bool((deviation > (ROUNDING * mean).clamp(min=LEAST_DEVIATION)).any()):
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
