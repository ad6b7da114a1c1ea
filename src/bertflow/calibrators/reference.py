"""What is kept of fitted rows: enough to learn from more, and to tell whether others are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, taken, unit_length
from bertflow.calibrators.moments import Moments, varies
from bertflow.errors import InputError

# A sample has so many rows, drawn at random.
SAMPLED_ROWS = 2000
# Each fifth of the sample is judged by moments of the rest.
FOLDS = 5
# Wider vectors are compared only by calibrators that learn from covariances anyway.
WIDEST = 8192


class Density:
    r"""A Gaussian with the moments of rows: how typical a row is.

    .. math::
        \ell(x) = \frac1D \log \mathcal N(x; \mu, \tilde\Sigma), \qquad
        \tilde\Sigma = (1 - s)\, \Sigma + s \operatorname{diag} \Sigma, \qquad
        s = \frac{v}{1 + v}, \quad v = \frac1{20} + \frac{D}{3N}

    A dimension that does not vary counts with the deviation of a typical one.

    Args:
        moments: Of N ≥ 2 rows of D dimensions, with their covariance.

    Source:
        The covariance is shrunk as that of "search-whitening".

    Example:
        >>> moments = Moments(2)
        >>> moments.update(torch.tensor([[0.0, 10.0], [2.0, 30.0], [4.0, 20.0]]))
        >>> near, far = Density(moments).of(torch.tensor([[2.0, 20.0], [9.0, 0.0]]).double())
        >>> bool(near > far)
        True
    """

    def __init__(self, moments: Moments) -> None:
        self.count, self.width = moments.count, len(moments.mean)
        self.mean, self.scale = moments.mean, moments.scale()
        level = 1 / 20 + self.width / (3 * self.count)
        self.kept = 1 / (1 + level)
        self.second = moments.second / torch.outer(self.scale, self.scale)
        ridge = torch.full_like(self.mean, level * self.count)
        self.root, failed = torch.linalg.cholesky_ex(self.second + torch.diag(ridge))
        if failed:
            raise InputError("the moments are those of no rows: a variance is negative")
        # What does not depend on the row: the log-determinant, and that of 2 pi.
        volume = float(2 * (self.root.diagonal().log() + self.scale.log()).sum())
        self.constant = self.width * math.log(2 * math.pi * self.kept / self.count) + volume

    def of(self, rows: Tensor) -> Tensor:
        """The log-density of rows (n, D), float64, in nats per dimension, shape (n,)."""
        centred = (rows - self.mean) / self.scale
        solved = torch.linalg.solve_triangular(self.root, centred.T, upper=False)
        distance = solved.square().sum(dim=0) * self.count / self.kept
        found: Tensor = (distance + self.constant) / (-2 * self.width)
        return found

    def distance(self, log_density: float) -> float:
        """The squared Mahalanobis distance from the mean that a log-density says."""
        return -2 * self.width * log_density - self.constant

    def passed(self, rows: Tensor, centre: Tensor, error: float) -> Tensor:
        r"""The share of fitted rows that lie behind each row on the way to a centre, shape (n,).

        .. math::
            \Phi\left( \frac{w^\top (x - \mu) - b}{\sqrt{w^\top \Sigma w}} \right), \qquad
            w = \tilde\Sigma^{-1} (c - \mu)

        It is a half on average if the rows come from where the fitted ones do, provided that they
        have no part in the centre c, shape (D,). :math:`\mu` is not the mean of that source, but
        of N rows; b = `error` is the squared distance between the two that is to be expected.
        """
        delta = (centre - self.mean) / self.scale
        way = torch.cholesky_solve(delta[:, None], self.root)[:, 0]
        ahead = ((rows - self.mean) / self.scale) @ way - error * self.kept / self.count
        found: Tensor = torch.special.ndtr(ahead / (way @ self.second @ way / self.count).sqrt())
        return found

    def expected(self, moments: Moments) -> float:
        """The mean log-density of rows with these moments."""
        delta = (moments.mean - self.mean) / self.scale
        second = moments.covariance() / torch.outer(self.scale, self.scale)
        squares = torch.cholesky_solve(second + torch.outer(delta, delta), self.root).trace()
        return (float(squares) * self.count / self.kept + self.constant) / (-2 * self.width)


@dataclass(frozen=True, eq=False)
class Reference:
    """What a calibrator keeps of the rows it has learned from.

    Attributes:
        moments: Of all rows; at unit length where the calibrator learns from such rows.
        cloud: Moments with the covariance, which rows are compared by: the same or, where those
            have none, of a sample of at most 2,000 rows a fit. Of more than 8,192 dimensions that
            sample is not kept, and there is no covariance.
        log_density: Of at most 2,000 of the rows, see `Density.of`, each by the moments of rows
            that it is none of; shape (n,), none after a fit on moments alone.
        mean_cosine: Of two of these rows after calibration, NaN without rows; after `partial_fit`
            the mean over the parts, weighted by their rows.
    """

    moments: Moments
    cloud: Moments
    log_density: Array
    mean_cosine: float

    @classmethod
    def of(
        cls, moments: Moments, rows: Tensor, images: Tensor, before: Reference | None = None
    ) -> Self:
        """What to keep after a fit.

        Args:
            moments: Of all rows, earlier ones included.
            rows: Those of the sample, shape (n, D), float64.
            images: The same rows after calibration, shape (n, K).
            before: What was kept of the earlier rows.
        """
        share = 0.0 if before is None else before.moments.count / moments.count
        cosine = mean_cosine_of(images)
        if before is not None and not math.isnan(before.mean_cosine):
            own = before.mean_cosine if math.isnan(cosine) else cosine
            cosine = share * before.mean_cosine + (1 - share) * own
        sampled = moments.second.ndim == 1 and len(moments.mean) <= WIDEST
        distinct, which = np.unique(rows.numpy(), axis=0, return_inverse=True)
        # Of a part of the rows, other copies are not in the sample.
        copies = _copies(which, moments.count) * len(distinct) / max(1, len(rows))

        sample = _moments_of(rows) if sampled else moments

        def without(those: Tensor) -> Moments:
            part = _moments_of(rows[those])
            if not sampled:
                return _without(moments, part, copies)
            others = sample - part
            return others if before is None else _blended(before.cloud, others, share)

        cloud = without(torch.zeros(len(rows), dtype=torch.bool)) if sampled else moments
        kept = cls(moments, cloud, np.empty(0), cosine)
        if not kept.comparable or not varies(cloud):
            return kept
        found = _judged(distinct, which.reshape(-1), without)
        if before is not None and len(before.log_density):
            earlier = before.log_density - before.log_density.mean()
            earlier += _earlier_mean(before, Density(cloud))
            found = _joined(earlier, found, share, moments.count)
        return replace(kept, log_density=found)

    @property
    def comparable(self) -> bool:
        """Whether rows can be compared with those of the cloud."""
        return self.cloud.second.ndim == 2 and self.cloud.count >= 2

    def centre_error(self, density: Density) -> float:
        """The squared distance to be expected of the rows' mean from that of their source.

        It is the mean distance of a row by the number of rows. Equal rows count as one, and as
        often as in the sample there are some among all rows.
        """
        copies = _copies(self.log_density, density.count)
        return density.distance(float(self.log_density.mean())) * copies / density.count

    def tensors(self) -> dict[str, Tensor]:
        """Its parts, by their names in a file."""
        own = {"": self.moments}
        if self.cloud is not self.moments:
            own["cloud_"] = self.cloud
        tensors = {
            "log_density": torch.from_numpy(self.log_density.copy()),
            "mean_cosine": torch.tensor(self.mean_cosine, dtype=torch.float64),
        }
        for name, one in own.items():
            tensors[f"{name}count"] = torch.tensor(one.count)
            tensors[f"{name}mean"], tensors[f"{name}second"] = one.mean, one.second
        return tensors

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], width: int, *, covariance: bool) -> Self:
        """Take them back; a ValueError says what no fit gives."""
        moments = _restored(tensors, "", (width,) * (2 if covariance else 1))
        cloud = moments
        if not covariance and "cloud_count" in tensors:
            cloud = _restored(tensors, "cloud_", (width, width))
        found = tensors["log_density"].double().numpy()
        kept = cls(moments, cloud, found, float(tensors["mean_cosine"]))
        if found.ndim != 1 or not np.isfinite(found).all() or (len(found) and not kept.comparable):
            raise ValueError("log_density holds what no fit gives")
        return kept


def _restored(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Moments:
    count, mean, second = (tensors[f"{name}{part}"] for part in ("count", "mean", "second"))
    moments = Moments.restored(int(count), mean, second)
    good = not count.is_floating_point() and mean.shape == shape[:1] and second.shape == shape
    good &= int(count) >= (0 if name else 2)
    if not good or not bool(mean.isfinite().all() & second.isfinite().all()):
        raise ValueError(f"{name}mean and {name}second hold what no fit gives")
    if bool((moments.variance() < 0).any()):
        raise ValueError(f"{name}second holds a negative variance")
    return moments


def _blended(earlier: Moments, found: Moments, share: float) -> Moments:
    """The moments of samples of two kinds of rows, of which `share` are earlier ones.

    Their count is of so many rows as would be as sure of the mean.
    """
    if not found.count or not earlier.count:
        return found if found.count else earlier
    delta = found.mean - earlier.mean
    covariance = share * earlier.covariance() + (1 - share) * found.covariance()
    covariance += share * (1 - share) * torch.outer(delta, delta)
    count = round(1 / (share**2 / earlier.count + (1 - share) ** 2 / found.count))
    return Moments.restored(count, earlier.mean + (1 - share) * delta, count * covariance)


def _moments_of(rows: Tensor) -> Moments:
    moments = Moments(rows.shape[1])
    moments.update(rows)
    return moments


def _without(moments: Moments, part: Moments, copies: float) -> Moments:
    """Moments of all rows but for some, each with as many copies as it may have."""
    count = round(copies * part.count)
    if count <= part.count:
        return moments - part
    more = Moments.restored(count, part.mean, count / part.count * part.second)
    others = moments - more
    # Where some rows have far more copies than others, that may be too many.
    with suppress(InputError):
        if others.count > 1:
            Density(others)
            return others
    return moments - part


def _copies(values: Array, count: int) -> float:
    """How many rows of so many are equal to a row, itself included, by a sample's values."""
    _, counts = np.unique(values.reshape(-1), return_counts=True)
    equal = (counts * (counts - 1)).sum() / max(1, len(values) * (len(values) - 1))
    return float(1 + (count - 1) * equal)


def _judged(distinct: Array, which: Array, without: Callable[[Tensor], Moments]) -> Array:
    """The log-density of each row by moments that a fifth of the rows, itself included, is not in.

    A row that has shaped its own density would seem more typical than a new one. Equal rows are
    left out together. None are given where that cannot be: of two rows, or of rows that were not
    among those of the moments.
    """
    fold = np.random.default_rng(0).permutation(len(distinct)) % FOLDS
    found = np.empty(len(distinct))
    for number in np.unique(fold):
        own = fold == number
        try:
            others = without(torch.from_numpy(own[which]))
            if others.count < 2 or not varies(others):
                return np.empty(0)
            found[own] = Density(others).of(torch.from_numpy(distinct[own])).numpy()
        except InputError:  # Beside a huge row nothing of the others is left.
            return np.empty(0)
    judged: Array = found[which]
    return judged if np.isfinite(judged).all() else np.empty(0)


def _earlier_mean(before: Reference, density: Density) -> float:
    """The mean log-density of earlier rows, each judged by all others, under a density of more."""
    kept = before.cloud
    own = Density(kept).expected(kept)
    # How much less likely rows are without their own part, which is as large as rows are few.
    alone = (float(before.log_density.mean()) - own) * kept.count / density.count
    return density.expected(kept) + alone


def _joined(earlier: Array, found: Array, share: float, seed: int) -> Array:
    """A sample of all rows, of which `share` are earlier ones."""
    random = np.random.default_rng(seed)
    size = min(SAMPLED_ROWS, len(earlier) + len(found))
    new = random.binomial(size, 1 - share)
    new = min(max(new, size - len(earlier)), len(found))
    old = random.permutation(earlier)[: size - new]
    return np.concatenate([old, random.permutation(found)[:new]])


def sample_of(rows: Array | Tensor) -> Tensor:
    """At most 2,000 of the rows, drawn at random, in float64 on the CPU."""
    drawn = np.random.default_rng(0).permutation(len(rows))[:SAMPLED_ROWS]
    return taken(rows, torch.from_numpy(np.sort(drawn))).cpu().double()


def mean_cosine_of(vectors: Tensor) -> float:
    """The mean cosine of two different rows (N, D); NaN of fewer than two."""
    count, directions = len(vectors), unit_length(vectors)
    if count < 2:
        return math.nan
    common = directions.sum(dim=0).square().sum() - directions.square().sum()
    return float(common) / (count * (count - 1))
