"""The affine calibrators: standardization, all-but-the-top and whitening."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from bertflow.arrays import Array, matrix
from bertflow.calibrators.base import Calibrator, Shown, Vectors, empty, learned_tensor, like
from bertflow.calibrators.moments import Moments, QueryMap, check_moments, principal_axes
from bertflow.errors import InputError, check_choice, check_number, warn
from bertflow.flows import bounded_deviation

# With fewer rows per dimension the smallest variances are estimated at less than a quarter of their
# true size (Marchenko and Pastur: (1 - sqrt(D / N))^2), and whitening divides by them.
ENOUGH_ROWS = 4
# With so many rows per effective dimension a covariance is shrunk by half, see docs/mathematics.md.
HALF_SHRUNK_ROWS = 25
# From this share of a common direction on vectors are crowded, and altogether so with the sum.
CROWDED_FROM, CROWDED_SPAN = 0.3, 0.4


class LinearCalibrator(Calibrator):
    r"""A calibrator of the form :math:`z = A (x - \mu)`."""

    mean_: Array
    scale_: Array
    components_: Array

    # What is learned, by the name in files: a letter for each side, D dimensions by K axes.
    learned: ClassVar[Mapping[str, str]] = {}
    # Whether the fit needs rows at unit length, and the covariance and not the variances alone.
    from_unit_rows, needs_covariance = False, True

    def fit_moments(
        self,
        moments: Moments,
        sample: Any = None,
        *,
        query_map: QueryMap | None = None,
        more: bool = False,
    ) -> Self:
        """Learn the map that `fit` learns, from moments of rows: those of many files, merged.

        Args:
            moments: Of at least 2 rows; with the full covariance where `needs_covariance` says so,
                of rows at unit length where `from_unit_rows` does.
            sample: Some 2,000 of the rows, shape (n, D): what `AdaptiveWhitening` looks for near
                duplicates in, and new rows are later compared with.
            query_map: What brings queries to the rows, which are then documents.
            more: The rows come beside those of earlier fits, as for `partial_fit`.

        Raises:
            InputError: As `fit`; or the moments are of another kind.

        Example:
            >>> import torch
            >>> moments = Moments(2)
            >>> moments.update(torch.tensor([[0.0, 10.0], [2.0, 30.0], [4.0, 20.0]]))
            >>> Standardization().fit_moments(moments).mean_
            array([ 2., 20.])
        """
        if more:
            self._check_updatable()
        if more and self.reference_ is not None:
            width = self.n_features_in_
            if len(moments.mean) != width:
                raise InputError(
                    f"the moments are of {len(moments.mean)} dimensions, but the calibrator was "
                    f"fitted on {width}"
                )
            moments = self.reference_.moments + moments
        else:
            self._begin()
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = width = len(moments.mean)
        if min(moments.count, width) < 2:
            raise InputError(
                f"{type(self).__name__} needs moments of at least 2 rows of 2 dimensions, got "
                f"{moments.count} of {width}"
            )
        self._check_arguments()
        check_moments(moments)
        rows = None if sample is None else matrix(sample, width)
        self._fit_moments(moments, rows)
        self.query_map_ = query_map or self.query_map_
        self._remember(moments, rows)
        return self

    @property
    def _needs_covariance(self) -> bool:
        return self.needs_covariance

    @property
    def _unit_rows(self) -> bool:
        return self.from_unit_rows

    def _fit(
        self, moments: Moments, rows: Vectors, progress: Shown, checkpoint: str | Path | None
    ) -> None:
        self._fit_moments(moments, rows)

    def _count(self) -> int:
        return self._n_features_out

    @abstractmethod
    def _fit_moments(self, moments: Moments, rows: Vectors | None) -> None:
        """Learn from checked moments, and from rows or a sample of them if they are there."""

    def affine(self) -> tuple[Tensor, Tensor]:
        r"""The centre :math:`\mu`, shape (D,), and the matrix A, shape (K, D), in float64."""
        matrix = torch.empty(self.n_features_in_, self._n_features_out, dtype=torch.float64)
        self._linear_into(torch.eye(self.n_features_in_, dtype=torch.float64), matrix)
        return learned_tensor(self.mean_), matrix.T

    def _transform_into(self, x: Tensor, out: Tensor) -> None:
        self._linear_into(x - self._as("mean", x), out)

    def _inverse_transform_into(self, z: Tensor, out: Tensor) -> None:
        self._inverse_linear_into(z, out)
        out.add_(self._as("mean", z))

    def _linear_into(self, centred: Tensor, out: Tensor) -> None:
        matrix = self._once("forward", centred, lambda: like(self._axes(1), centred))
        torch.mm(centred, matrix.T, out=out)

    def _inverse_linear_into(self, z: Tensor, out: Tensor) -> None:
        torch.mm(z, self._once("backward", z, lambda: like(self._axes(-1), z)), out=out)

    def _axes(self, power: int) -> Array:
        """The axes, shape (K, D), each times a power of its gain."""
        axes: Array = self.components_ * self.scale_[:, None] ** -power
        return axes

    def _as(self, name: str, tensor: Tensor) -> Tensor:
        return self._once(name, tensor, lambda: like(getattr(self, f"{name}_"), tensor))

    def _learned(self) -> dict[str, Tensor]:
        return {name: learned_tensor(getattr(self, f"{name}_")) for name in self.learned}

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        self._check_arguments()
        size = {"D": self.n_features_in_, "K": self._count()}
        return {
            name: empty(*(size[side] for side in sides)) for name, sides in self.learned.items()
        }

    def _restore(self, learned: Mapping[str, Tensor]) -> None:
        for name, tensor in learned.items():
            setattr(self, f"{name}_", tensor.numpy() if tensor.ndim else float(tensor))


class Standardization(LinearCalibrator):
    r"""Give each dimension mean 0 and variance 1 (ddof 0): the paper's SN.

    .. math:: z_d = (x_d - \mu_d) / \sigma_d

    Attributes:
        mean_: Shape (D,).
        scale_: The deviations, shape (D,); the typical one where a dimension does not vary.

    Source:
        Paper, section 4.3 and Table 5.

    Example:
        >>> import numpy as np
        >>> Standardization().fit_transform(np.array([[0.0, 10.0], [2.0, 30.0]]))
        array([[-1., -1.],
               [ 1.,  1.]])
    """

    names = {"standardization": {}}
    learned = {"mean": "D", "scale": "D"}
    needs_covariance = False

    def _fit_moments(self, moments: Moments, rows: Vectors | None) -> None:
        self.mean_ = moments.mean.numpy()
        self.scale_ = moments.scale().numpy()

    def _linear_into(self, centred: Tensor, out: Tensor) -> None:
        torch.div(centred, self._as("scale", centred), out=out)

    def _inverse_linear_into(self, z: Tensor, out: Tensor) -> None:
        torch.mul(z, self._as("scale", z), out=out)


class SoftStandardization(Standardization):
    r"""Standardize as strongly as the vectors are crowded: the calibrator for classes and clusters.

    .. math:: z_d = (x_d - c\, \mu_d) / \sigma_d^{3c/4}

    c is how crowded the cloud is, see `crowding`. Axes are neither turned nor whitened, since what
    texts of a class have in common lies on the leading ones.

    Attributes:
        mean_: What is subtracted, shape (D,).
        scale_: The divisors, shape (D,).

    Source:
        Chosen in docs/guides/jobs.md.

    Example:
        >>> import numpy as np
        >>> SoftStandardization().fit_transform(np.array([[90.0, 10.0], [92.0, 42.0]]))
        array([[-1., -2.],
               [ 1.,  2.]])
    """

    names = {"soft-standardization": {}}

    def _fit_moments(self, moments: Moments, rows: Vectors | None) -> None:
        crowded = crowding(moments)
        self.mean_ = (crowded * moments.mean).numpy()
        self.scale_ = (moments.scale() ** (0.75 * crowded)).numpy()


@dataclass(repr=False, eq=False)
class AllButTheTop(LinearCalibrator):
    r"""Remove the mean and the k leading principal directions: the paper's NATSV.

    .. math:: z = (I - V_k V_k^\top)\, (x - \mu) \oslash \sigma

    :math:`V_k` are the leading eigenvectors of the covariance; with `standardize`, of the
    correlation matrix, otherwise :math:`\sigma = 1`.

    Args:
        n_components: The count k, 0 ≤ k < D. None takes D // 100 but at least 1, as its authors do.
        standardize: Standardize first: the paper's SN + NATSV.

    Attributes:
        mean_: Shape (D,).
        scale_: Shape (D,); ones without standardize.
        components_: The removed directions, shape (k, D), orthonormal, largest entries positive.

    Source:
        Mu and Viswanath (2018); paper, section 4.3 and Table 5.

    Example:
        >>> import numpy as np
        >>> x = np.array([[9.0, 1.0, 0.0], [-9.0, 1.0, 0.0], [9.0, -1.0, 0.0], [-9.0, -1.0, 0.0]])
        >>> AllButTheTop(n_components=1).fit_transform(x).std(axis=0).round(6)
        array([0., 1., 0.])
    """

    names = {"all-but-the-top": {}}
    learned = {"mean": "D", "scale": "D", "components": "KD"}

    n_components: int | None = None
    _: KW_ONLY
    standardize: bool = False

    def _count(self) -> int:
        if self.n_components is None:
            return max(1, self.n_features_in_ // 100)
        return self.n_components

    def _check_arguments(self) -> None:
        check_number("n_components", self._count(), 0, self.n_features_in_ - 1, integer=True)
        check_choice("standardize", self.standardize, (True, False))

    def _fit_moments(self, moments: Moments, rows: Vectors | None) -> None:
        self.mean_ = moments.mean.numpy()
        scale = moments.scale() if self.standardize else torch.ones_like(moments.mean)
        self.scale_ = scale.numpy()
        correlation = moments.covariance() / torch.outer(scale, scale)
        deviation, directions, floor = principal_axes(correlation)
        _check_rank("n_components", self._count(), deviation, floor, moments.count)
        self.components_ = directions[: self._count()].contiguous().numpy()

    def _more_facts(self) -> dict[str, str]:
        return {"directions removed": f"{self._count():,}"}

    def _linear_into(self, centred: Tensor, out: Tensor) -> None:
        components = self._as("components", centred)
        torch.div(centred, self._as("scale", centred), out=out)
        out.addmm_(out @ components.T, components, alpha=-1)

    def _inverse_linear_into(self, z: Tensor, out: Tensor) -> None:
        torch.mul(z, self._as("scale", z), out=out)


@dataclass(repr=False, eq=False)
class Whitening(LinearCalibrator):
    r"""Rotate to the principal axes and give each the same variance.

    .. math::
        z = \Lambda^{-p/2} U^\top (x - \mu), \qquad
        (1 - s)\, \Sigma + s\, \tfrac{\operatorname{tr} \Sigma}{D} I = U \Lambda U^\top

    The axes fall in variance, so the first columns are the ones to keep. ``shrinkage=0.0`` is as
    published: the fitted rows come out with mean 0 and covariance I (ddof 0). That makes few rows
    orthogonal, so by default s follows from the number of rows N and the effective dimensions r:

    .. math::
        s = \frac{1}{1 + (N / 25 r)^2}, \qquad
        r = \frac{(\operatorname{tr} \Sigma)^2}{\operatorname{tr} \Sigma^2}

    ``power="auto"`` is p = c + (1 - c) min(1, 2r / D); c, see `crowding`, says how crowded the
    cloud is. Leading axes of a crowded cloud are an artefact of the encoder. Those of any other
    tell topics apart; the fewer there are, the less they are damped. ``shrinkage="rows"`` is
    s = v / (1 + v), v = 1/20 + D / 3N: little, and more where rows are few. The preset
    "search-whitening" is both: the calibrator for search.

    Args:
        dim: Keep the first `dim` axes, 1 ≤ dim ≤ D; None keeps all.
        power: The power p in 0 … 1: 1 whitens, 0 only rotates; 0.75 is a good soft whitening.
        shrinkage: The share s in 0 … 1 of a multiple of I in the covariance; "auto" and "rows" are
            the above.

    Attributes:
        shrinkage_: The share that was taken; it is not saved, nor is the power.
        power_: The power that was taken.
        mean_: Shape (D,).
        components_: The axes, shape (K, D), orthonormal, each with its largest entry positive.
        scale_: The divisor of each axis, shape (K,); the typical one where there is no variance.

    Warns:
        FewRowsWarning: By fit, of fewer than 4 rows a dimension, or of a `dim` beyond their rank.

    Source:
        Su et al. (2021), "Whitening Sentence Representations".

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 3)) @ np.diag([5.0, 1.0, 0.1]) + 7.0
        >>> z = Whitening(shrinkage=0.0).fit_transform(x)
        >>> np.allclose(np.cov(z.T, ddof=0), np.eye(3))
        True
    """

    names = {"whitening": {}, "search-whitening": {"power": "auto", "shrinkage": "rows"}}
    learned = {"mean": "D", "components": "KD", "scale": "K"}

    dim: int | None = None
    _: KW_ONLY
    power: float | Literal["auto"] = 1.0
    shrinkage: float | Literal["auto", "rows"] = "auto"

    power_: float = field(init=False)
    shrinkage_: float = field(init=False)

    def _check_arguments(self) -> None:
        if self.dim is not None:
            check_number("dim", self.dim, 1, self.n_features_in_, integer=True)
        _check_share("power", self.power, "auto")
        _check_share("shrinkage", self.shrinkage, "auto", "rows")

    def _fit_moments(self, moments: Moments, rows: Vectors | None) -> None:
        width, kept = self.n_features_in_, self._n_features_out
        self.shrinkage_ = s = _shrinkage(moments, self.shrinkage)
        self.power_ = _automatic_power(moments) if self.power == "auto" else self.power
        if moments.count < ENOUGH_ROWS * width:
            warn(
                f"{moments.count:,} rows are few to whiten {width:,} dimensions (shrinkage "
                f"{s:.2g}): fit on {ENOUGH_ROWS * width:,} or more, or use Standardization"
            )
        deviation, directions, floor = principal_axes(moments.covariance())
        _check_rank("dim", kept, deviation, floor, moments.count)
        mean = deviation.square().mean()
        deviation = bounded_deviation(deviation, floor)
        if s:  # The axes stay: a multiple of I adds the same to the variance along each.
            deviation = ((1 - s) * deviation.square() + s * mean).sqrt()
        self.mean_ = moments.mean.numpy()
        self.components_ = directions[:kept].contiguous().numpy()
        self.scale_ = (deviation[:kept] ** self.power_).numpy()

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_ if self.dim is None else self.dim


def crowding(moments: Moments) -> float:
    r"""How much vectors crowd around a common direction, 0 to 1.

    .. math::
        c = \min\left(1, \max\left(0, \frac{m - 0.3}{0.4}\right)\right), \qquad
        m = \frac{\lVert \mu \rVert^2}{\lVert \mu \rVert^2 + \operatorname{tr} \Sigma}

    m is nearly the mean cosine of two rows: 0.7 to 1 for raw language models, below 0.3 for others.

    Example:
        >>> moments = Moments(2)
        >>> moments.update(torch.tensor([[9.0, 1.0], [9.0, -1.0]]))
        >>> crowding(moments)
        1.0
    """
    # Divided by the largest, so that squares stay in range.
    largest = torch.maximum(moments.mean.abs().max(), moments.deviation().max())
    common = float((moments.mean / largest).square().sum())
    spread = float((moments.deviation() / largest).square().sum())
    return min(1.0, max(0.0, (common / (common + spread) - CROWDED_FROM) / CROWDED_SPAN))


def _check_share(name: str, value: Any, *words: str) -> None:
    if not (isinstance(value, str) and value in words):
        check_number(name, value, 0, 1)


def _shrinkage(moments: Moments, asked: float | str) -> float:
    if not isinstance(asked, str):
        return asked
    rows = moments.count
    if asked == "rows":
        level = 1 / 20 + len(moments.mean) / (3 * rows)
        return level / (1 + level)
    enough = rows / (HALF_SHRUNK_ROWS * _effective_dimensions(moments))
    return 1 / (1 + enough * enough)


def _automatic_power(moments: Moments) -> float:
    """How strongly to whiten, by the cloud."""
    crowded = crowding(moments)
    return crowded + (1 - crowded) * min(1, 2 * _effective_dimensions(moments) / len(moments.mean))


def _effective_dimensions(moments: Moments) -> float:
    covariance = moments.covariance()
    covariance = covariance / covariance.diagonal().max()  # Squares stay in range.
    return float(covariance.trace().square() / covariance.square().sum())


def _check_rank(name: str, count: int, deviation: Tensor, floor: float, rows: int) -> None:
    rank = int((deviation > floor).sum())
    if rank < count < len(deviation):
        warn(
            f"{name}={count} is more than the {rank} axes along which {rows:,} rows vary: the "
            f"others are arbitrary; take {name}={rank} or less, or more rows"
        )
