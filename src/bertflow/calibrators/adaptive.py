"""AdaptiveWhitening: the default calibrator, whose strength follows from the cloud itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bertflow.calibrators.base import Array, empty, like
from bertflow.calibrators.linear import LinearCalibrator
from bertflow.calibrators.moments import Moments, principal_axes

POWER = 0.75
NOISE = 1 / 13


class AdaptiveWhitening(LinearCalibrator):
    r"""Whiten as strongly as the cloud of vectors asks for.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 8)) + 3.0
        >>> AdaptiveWhitening().fit_transform(x).shape
        (500, 8)
    """

    normalizes = True
    components_: Array

    def _fit_moments(self, moments: Moments) -> None:
        deviation, directions, _ = principal_axes(moments.covariance())
        variance = deviation.square()
        shares = variance / variance.sum()
        rank = 1 / shares.square().sum()
        relative = variance / variance.mean()
        self.mean_ = moments.mean.numpy()
        self.components_ = directions.contiguous().numpy()
        self.scale_ = ((relative + NOISE * rank) ** POWER).numpy()

    def _needs_float64(self) -> bool:
        return False

    def _linear_into(self, centred: Tensor, out: Tensor) -> None:
        torch.mm(
            centred, self._once("forward", centred, lambda: self._matrix(centred, -1)).T, out=out
        )

    def _inverse_linear_into(self, z: Tensor, out: Tensor) -> None:
        torch.mm(z, self._once("backward", z, lambda: self._matrix(z, 1)), out=out)

    def _matrix(self, tensor: Tensor, power: int) -> Tensor:
        return like(self.components_ * self.scale_[:, None] ** power, tensor)

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        width = self.n_features_in_
        return {"mean": empty(width), "components": empty(width, width), "scale": empty(width)}
