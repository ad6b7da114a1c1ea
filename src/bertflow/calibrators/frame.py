r"""The affine maps around a flow's Glow: rows to standardized axes, latent to output.

.. math::
    u = (R\,(x - \mu)) \oslash \sigma, \qquad z = g \odot f(u) + b

R holds the axes as rows (the identity, or the principal axes), :math:`\sigma` the deviations along
them, and f is the Glow over the axes that vary; the others pass it by. The gain g and the offset b
act on the output only: the density of a row does not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, unit_length
from bertflow.calibrators.base import empty, learned_tensor, like
from bertflow.calibrators.moments import ROUNDING, moments_of, principal_axes
from bertflow.errors import InputError, check_number
from bertflow.flows import Glow, Permutation, bounded_deviation

Loss = TypeVar("Loss", float, Tensor)
AxesName = Literal["given", "principal"]

# The least Wiener gain. On an axis without variance the gain would be 0, which has no inverse. A
# gain of a thousandth adds a millionth to a squared length: too little to change a cosine, and
# float16 can still hold it.
LEAST_GAIN = 1e-3


@dataclass(frozen=True, kw_only=True)
class Framing:
    """How to surround a Glow; the names are those of `bertflow.Flow`."""

    normalize: bool
    axes: AxesName
    noise: float
    leading: int
    leading_gain: float
    centring: float

    @property
    def has_gain(self) -> bool:
        """Whether outputs are multiplied."""
        return self.noise > 0 or self.leading > 0

    @property
    def has_offset(self) -> bool:
        """Whether something is added to outputs."""
        return self.centring < 1

    def check(self, permutation: str) -> None:
        """Refuse arguments that are out of range, or that need axes this flow does not have.

        Raises:
            InputError: The message names the argument.
        """
        if not isinstance(self.normalize, bool):
            raise InputError(f"normalize must be True or False, got {self.normalize!r}")
        if self.axes not in get_args(AxesName):
            raise InputError(f"axes must be one of {get_args(AxesName)}, got {self.axes!r}")
        check_number("noise", self.noise, 0, 1)
        check_number("leading", self.leading, 0, integer=True)
        check_number("leading_gain", self.leading_gain, 0, 1, above=True)
        check_number("centring", self.centring, 0, 1)
        off = {"noise": 0, "leading": 0, "centring": 1}
        for name in [name for name, value in off.items() if getattr(self, name) != value]:
            given = f"{name}={getattr(self, name)}"
            if name != "centring" and self.axes != "principal":
                raise InputError(
                    f"{given} acts on principal axes, but axes is {self.axes!r}; "
                    "set axes='principal'"
                )
            if permutation == "linear":
                raise InputError(
                    f"{given} acts on single axes, which permutation='linear' mixes; "
                    "use permutation='random' or 'reverse'"
                )

    def allocate(self, width: int) -> dict[str, Tensor]:
        """Names, shapes and types of what a frame of D dimensions learns."""
        learned = {"mean": empty(width), "scale": empty(width)}
        learned["live"] = empty(width, dtype=torch.bool)
        if self.axes == "principal":
            learned["components"] = empty(width, width)
        if self.has_gain:
            learned["gain"] = empty(width)
        if self.has_offset:
            learned["offset"] = empty(width)
        return learned


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A fitted frame. Axes are counted before the Glow, latent dimensions after it.

    Attributes:
        normalize: Whether rows are scaled to unit length first.
        mean: Centre of the rows, shape (D,).
        scale: What each axis is divided by, shape (D,).
        live: Which axes vary, booleans of shape (D,).
        components: The axes as rows, shape (D, D), orthonormal; None where they are the
            dimensions as given.
        gain: Factor of each output dimension, shape (D,), positive; None where all are 1.
        offset: Added to each output dimension, shape (D,); None where all are 0.
    """

    normalize: bool
    mean: Array
    scale: Array
    live: Array
    components: Array | None = None
    gain: Array | None = None
    offset: Array | None = None

    @classmethod
    def of(cls, rows: Array | Tensor, framing: Framing) -> Self:
        """Learn centre, axes and deviations; gain and offset need the Glow, see `tempered`.

        Raises:
            InputError: Fewer than two axes vary.
        """
        principal = framing.axes == "principal"
        moments = moments_of(rows, covariance=principal, normalize=framing.normalize)
        if principal:
            deviation, directions, rounding = principal_axes(moments.covariance())
            floor = torch.full_like(deviation, rounding)
            components = directions.numpy()
        else:
            deviation, floor, components = moments.deviation(), ROUNDING * moments.mean.abs(), None
        scale = bounded_deviation(deviation, floor)
        live = (deviation > floor) & (scale == deviation)
        if (count := int(live.sum())) < 2:
            kind = "principal axes" if principal else "dimensions"
            raise InputError(
                f"only {count} of {len(live)} {kind} vary, but a flow needs 2; "
                "give more rows that differ, or use another calibrator"
            )
        return cls(
            normalize=framing.normalize,
            mean=moments.mean.numpy(),
            scale=scale.numpy(),
            live=live.numpy(),
            components=components,
        )

    @classmethod
    def restored(cls, learned: Mapping[str, Tensor], framing: Framing) -> Self:
        """Take back what `learned` gave; names and shapes are those of `Framing.allocate`."""
        arrays = {name: learned[name].numpy() for name in framing.allocate(0)}
        return cls(normalize=framing.normalize, **arrays)

    def learned(self) -> dict[str, Tensor]:
        """The arrays, by the names they have in a file."""
        names = ("mean", "scale", "live", "components", "gain", "offset")
        arrays = {name: getattr(self, name) for name in names}
        return {name: learned_tensor(a) for name, a in arrays.items() if a is not None}

    def tempered(self, glow: Glow, framing: Framing) -> Self:
        r"""The same frame with gain and offset, in the order of the Glow's latent dimensions.

        .. math::
            w_i = \frac{\lambda_i}{\lambda_i + \lambda_q}, \qquad
            g_i = \max(w_i, 10^{-3})\, d_i, \qquad
            b_i = (1 - c)\, w_i\, d_i\, (R \mu)_i / \sigma_i

        :math:`\lambda_i` is the variance along axis i (0 where it does not vary),
        :math:`\lambda_q` that of axis round((1 − q) D) for noise q, counted from 0, or of the last
        that varies; d is the leading gain on the leading axes and 1 elsewhere, c the share of the
        mean that is removed. Without noise w is 1. The least gain does not apply to b, which is
        never inverted: on an axis that hardly varies the mean can be many deviations long.
        """
        if not (framing.has_gain or framing.has_offset):
            return self
        wiener = np.ones(len(self.mean))
        if framing.noise > 0:
            variance = np.where(self.live, np.square(self.scale), 0.0)
            level = variance[min(round((1 - framing.noise) * len(variance)), self.count - 1)]
            wiener = variance / (variance + level)
        damping = np.where(np.arange(len(self.mean)) < framing.leading, framing.leading_gain, 1.0)
        gain = np.maximum(wiener, LEAST_GAIN) * damping
        rotated = self.mean if self.components is None else self.components @ self.mean
        offset = (1 - framing.centring) * wiener * damping * rotated / self.scale
        axes = np.arange(len(self.mean))
        order = np.concatenate([axes[self.live][latent_axes(glow).numpy()], axes[~self.live]])
        return replace(
            self,
            gain=gain[order] if framing.has_gain else None,
            offset=offset[order] if framing.has_offset else None,
        )

    @property
    def count(self) -> int:
        """How many axes vary: the width of the Glow."""
        return int(self.live.sum())

    @property
    def log_volume(self) -> float:
        """The logarithm of the volume that one unit of the Glow's input stands for."""
        return float(np.log(self.scale).sum())

    def bits(self, loss: Loss) -> Loss:
        """Bits per dimension of the rows from the Glow's, which are per standardized live axis.

        Axes that bypass the Glow count as standard normal; the change of unit is included.
        """
        share = self.count / len(self.live)
        others = (1 - share) * 0.5 * math.log2(2 * math.pi) + float(np.log2(self.scale).mean())
        return share * loss + others

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (N, D) to standardized axes: those that vary, for the Glow, and the others."""
        if self.normalize:
            x = unit_length(x)
        u = x - like(self.mean, x)
        if self.components is not None:
            u = u @ like(self.components, x).T
        u = u / like(self.scale, x)
        live = learned_tensor(self.live).to(x.device)
        return u[:, live], u[:, ~live]

    def leave(self, varying: Tensor, others: Tensor) -> Tensor:
        """Undo `enter`; the length of a row is not brought back."""
        live = learned_tensor(self.live).to(varying.device)
        u = varying.new_empty(len(varying), len(live))
        u[:, live] = varying
        u[:, ~live] = others
        u = u * like(self.scale, u)
        if self.components is not None:
            u = u @ like(self.components, u)
        return u + like(self.mean, u)

    def temper(self, z: Tensor) -> Tensor:
        """Latent (N, D), standard normal, to the output; in place."""
        if self.gain is not None:
            z.mul_(like(self.gain, z))
        return z if self.offset is None else z.add_(like(self.offset, z))

    def untemper(self, z: Tensor) -> Tensor:
        """Undo `temper`."""
        if self.offset is not None:
            z = z - like(self.offset, z)
        return z if self.gain is None else z / like(self.gain, z)


def latent_axes(glow: Glow) -> Tensor:
    """The input axis that each latent dimension of a Glow came from, shape (D,).

    Couplings and ActNorms leave an axis where it is; permutations and splits move it. With
    invertible matrices for permutations there is no such axis.
    """
    active, latent = torch.arange(glow.features), []
    for index, level in enumerate(glow.compositions()):
        for step in level:
            if isinstance(step, Permutation):
                active = active[step.order]
        if index < len(glow.levels) - 1:
            goes_on = len(active) - len(active) // 2
            latent.append(active[goes_on:])
            active = active[:goes_on]
    return torch.cat([*latent, active])
