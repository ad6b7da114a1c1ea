"""AdaptiveWhitening: the default calibrator, whose strength follows from the cloud itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, unit_length
from bertflow.calibrators.base import Vectors
from bertflow.calibrators.linear import LinearCalibrator
from bertflow.calibrators.moments import Moments, principal_axes
from bertflow.calibrators.reference import sample_of
from bertflow.errors import InputError

# The constants of the equation; `python -m benchmarks.adaptive` compares them with others.
NOISE = 2.5
COMMON = 0.2
FEW_AXES = 40.0
MANY_ALIKE = 0.08
# With a smaller value, few rows would all come out equally far apart.
OF_ROWS = 0.75
# The least mean cosine that is counted; a cloud without a common direction has a lower one.
LEAST_COSINE = 1e-4
# Rows at unit length whose deviation is below this differ by the rounding of float32 alone.
ROUNDING = 5e-7
# Two rows are near duplicates if their cosine lies between these two; above, they are the same.
ALIKE, SAME = 0.8, 0.9999


class AdaptiveWhitening(LinearCalibrator):
    r"""Whiten as strongly as the cloud of vectors asks for: the calibrator to start with.

    .. math::
        z = \left(I + \tfrac1n S\right)^{-1} x, \qquad
        n = \frac{\operatorname{tr} \Sigma}{D} \left(1 + \frac{0.2^2}{\bar c^2}\right)
        \left( \frac{2.5\, r^3}{r^3 + 40^3} \left(1 + \frac{a^2}{0.08^2}\right)
        + \frac{3D}{4N} \right)

    S is the second moment of the rows at unit length, about the origin, and :math:`\Sigma` their
    covariance; :math:`\bar c` is the mean cosine of two rows, r the count of effective axes, and a
    the share of rows with a near duplicate: docs/mathematics.md defines them. z, of shape (N, D),
    is given along the eigenvectors of S; the first of them lies near the mean.

    A direction in which rows have much in common is made small. So vectors of raw language models
    are whitened, and those of embedding models hardly changed. There are no arguments, labels or
    seeds. Nothing is subtracted: a row twice as long has an image twice as long.

    Attributes:
        components_: The axes, shape (D, D), orthonormal, each with its largest entry positive.
        gain_: The factor of each axis, shape (D,), above 0 and at most 1.
        noise_: The level n, as a share of a row's squared length.
        mean_cosine_: Of two rows.
        effective_axes_: The above.
        near_duplicates_: The above, 0 to 1.

    Raises:
        InputError: By fit, for bad rows, or rows that all point the same way.

    Source:
        Chosen on dev splits, see docs/results.md: whitening (Su et al., 2021) by a covariance that
        is shrunk towards a multiple of I (Ledoit and Wolf, 2004), applied twice.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(2000, 64)) + 5.0
        >>> whitening = AdaptiveWhitening().fit(x)
        >>> round(whitening.mean_cosine_, 2), bool(whitening.gain_[0] < 0.05 * whitening.gain_[1])
        (0.96, True)
    """

    names = {"adaptive-whitening": {}}
    learned = {"components": "KD", "gain": "K", "noise": "", "mean_cosine": ""}
    learned |= {"effective_axes": "", "near_duplicates": ""}
    from_unit_rows = True
    gain_: Array
    noise_: float
    mean_cosine_: float
    effective_axes_: float
    near_duplicates_: float

    @property
    def mean_(self) -> Array:  # type: ignore[override]
        """What is subtracted: zeros of shape (D,)."""
        return np.zeros(self.n_features_in_)

    def _fit_moments(self, moments: Moments, sample: Vectors | None) -> None:
        covariance, mean, rows = moments.covariance(), moments.mean, moments.count
        width, common = len(mean), float(mean.square().sum())
        total = float(covariance.trace())
        squared = total + common  # The mean squared length: 1, or less where there are zero rows.
        if not 0.5 <= squared <= 1 + 1e-6:
            raise InputError("AdaptiveWhitening is learned from moments of rows at unit length")
        if total < ROUNDING**2:
            raise InputError(
                f"all {rows} rows point the same way, up to rounding: there is nothing to learn"
            )
        shares = principal_axes(covariance)[0].square() / total
        self.effective_axes_ = float(torch.special.entr(shares).sum().exp())
        self.mean_cosine_ = (rows * common - squared) / (rows - 1)
        deviation, axes, _ = principal_axes(covariance + torch.outer(mean, mean))
        cubed = self.effective_axes_**3
        unit = total / width * (1 + (COMMON / max(self.mean_cosine_, LEAST_COSINE)) ** 2)
        level, of_rows = NOISE * cubed / (cubed + FEW_AXES**3), OF_ROWS * width / rows
        before = self.reference_ if self.__sklearn_is_fitted__() else None
        known = 0.0 if before is None else before.moments.count / rows
        alike = 0.0 if before is None else known * self.near_duplicates_
        if sample is not None:
            gain = 1 / (1 + deviation.square() / (unit * (level + of_rows)))
            found = unit_length(sample_of(sample)) @ axes.T * gain
            alike += (1 - known) * _share_alike(found)
        self.near_duplicates_ = alike
        level *= 1 + (self.near_duplicates_ / MANY_ALIKE) ** 2
        self.noise_ = unit * (level + of_rows)
        self.components_ = axes.contiguous().numpy()
        self.gain_ = (1 / (1 + deviation.square() / self.noise_)).numpy()

    def _more_facts(self) -> dict[str, str]:
        return {
            "mean cosine": f"{self.mean_cosine_:.3f}",
            "effective axes": f"{self.effective_axes_:.1f}",
            "near duplicates": f"{self.near_duplicates_:.1%}",
            "strongest gain": f"{self.gain_.min():.2g}",
        }

    def _axes(self, power: int) -> Array:
        return np.asarray(self.components_ * self.gain_[:, None] ** power)


def _share_alike(rows: Tensor) -> float:
    directions = unit_length(rows)
    cosines = directions @ directions.T
    near = (cosines > ALIKE) & (cosines < SAME)
    return float(near.any(dim=1).double().mean())
