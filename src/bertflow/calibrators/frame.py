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
from typing import Literal, Self, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, unit_length
from bertflow.calibrators.base import empty, learned_tensor, like
from bertflow.calibrators.moments import ROUNDING, moments_of, principal_axes
from bertflow.errors import InputError, check_choice, check_number
from bertflow.flows import Glow, ResidualForm, bounded_deviation

Loss = TypeVar("Loss", float, Tensor)
AxesName = Literal["given", "principal"]

# The least Wiener gain. On an axis without variance the gain would be 0, which has no inverse. A
# gain of a thousandth adds a millionth to a squared length: too little to change a cosine, and
# float16 can still hold it.
LEAST_GAIN = 1e-3


@dataclass(kw_only=True, repr=False, eq=False)
class Framing:
    """How to surround a Glow: arguments of `bertflow.Flow`, which documents them."""

    normalize: bool = False
    axes: AxesName = "given"
    noise: float = 0.0
    leading: int = 0
    leading_gain: float = 0.3
    centring: float = 1.0


def check_framing(framing: Framing, permutation: str) -> None:
    """Refuse arguments that are out of range, or that need axes this flow does not have."""
    if not isinstance(framing.normalize, bool):
        raise InputError(f"normalize must be True or False, got {framing.normalize!r}")
    check_choice("axes", framing.axes, get_args(AxesName))
    check_number("noise", framing.noise, 0, 1)
    check_number("leading", framing.leading, 0, integer=True)
    check_number("leading_gain", framing.leading_gain, 0, 1, above=True)
    check_number("centring", framing.centring, 0, 1)
    off = {"noise": 0, "leading": 0, "centring": 1}
    for name in [name for name, value in off.items() if getattr(framing, name) != value]:
        given = f"{name}={getattr(framing, name)}"
        if name != "centring" and framing.axes != "principal":
            raise InputError(
                f"{given} acts on principal axes, but axes is {framing.axes!r}; "
                "set axes='principal'"
            )
        if permutation == "linear":
            raise InputError(
                f"{given} acts on single axes, which permutation='linear' mixes; "
                "use permutation='random' or 'reverse'"
            )


def has_gain(framing: Framing) -> bool:
    """Whether outputs are multiplied."""
    return framing.noise > 0 or framing.leading > 0


def frame_tensors(framing: Framing, width: int) -> dict[str, Tensor]:
    """Names, shapes and types of the tensors that a frame of D dimensions learns."""
    learned = {"mean": empty(width), "scale": empty(width)}
    learned["live"] = empty(width, dtype=torch.bool)
    if framing.axes == "principal":
        learned["components"] = empty(width, width)
    if has_gain(framing):
        learned["gain"] = empty(width)
    if framing.centring < 1:
        learned["offset"] = empty(width)
    return learned


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A fitted frame. Axes are counted before the Glow, latent dimensions after it.

    Attributes:
        normalize: Whether rows are scaled to unit length first.
        mean: Centre of the rows, shape (D,).
        scale: The divisor of each axis, shape (D,).
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
        """Learn centre, axes and deviations; gain and offset need the Glow, see `tempered`."""
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
        """Take back what `learned` gave; names and shapes are those of `frame_tensors`."""
        arrays = {name: learned[name].numpy() for name in frame_tensors(framing, 0)}
        return cls(normalize=framing.normalize, **arrays)

    def learned(self) -> dict[str, Tensor]:
        """The arrays, by the names they have in a file."""
        arrays = {name: array for name, array in vars(self).items() if name != "normalize"}
        return {name: learned_tensor(array) for name, array in arrays.items() if array is not None}

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
        axes = np.arange(len(self.mean))
        wiener = np.ones(len(self.mean))
        if framing.noise > 0:
            variance = np.where(self.live, np.square(self.scale), 0.0)
            level = variance[min(round((1 - framing.noise) * len(variance)), self.count - 1)]
            wiener = variance / (variance + level)
        damping = np.where(axes < framing.leading, framing.leading_gain, 1.0)
        gain = np.maximum(wiener, LEAST_GAIN) * damping
        rotated = self.mean if self.components is None else self.components @ self.mean
        offset = (1 - framing.centring) * wiener * damping * rotated / self.scale
        order = np.concatenate([axes[self.live][glow.latent_axes().numpy()], axes[~self.live]])
        return replace(
            self,
            gain=gain[order] if has_gain(framing) else None,
            offset=offset[order] if framing.centring < 1 else None,
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


class FramedGlow:
    """Rows to latent and back, through the frame and a Glow in the type to compute in."""

    def __init__(self, frame: Frame, glow: Glow) -> None:
        self.frame, self.glow = frame, glow

    def latent(self, x: Tensor, out: Tensor) -> Tensor | float:
        """Write the latent (n, D) of rows (n, D), before `Frame.temper`.

        The Glow's log-determinant is given back: a number, or one for each row.
        """
        live, dead = self.frame.enter(x)
        z, log_det = self.glow.forward(live)
        torch.cat([z, dead], dim=1, out=out)
        return log_det

    def rows(self, z: Tensor, out: Tensor) -> None:
        """Undo `latent`; the length of a row is not brought back."""
        count = self.frame.count
        out.copy_(self.frame.leave(self.glow.inverse(z[:, :count]), z[:, count:]))


# The columns it reads; w1, b1, w2, b2 as right-hand factors; whether h1 is added to h2; V; and the
# columns it changes.
_Coupling: TypeAlias = tuple[slice, Tensor, Tensor, Tensor, Tensor, bool, Tensor, slice]


class FoldedGlow:
    r"""What `FramedGlow` computes, quickly, for a Glow with additive couplings.

    Only the couplings' hidden units are not affine (see `bertflow.flows.ResidualForm`). The whole
    flow becomes

    - one selection of columns, or with principal axes one matrix product, which brings the axes
      into the order of the latent dimensions;
    - two products with D x 32 matrices for each coupling, whose result is added to the rows in
      place;
    - one scale and shift at the end.

    It computes in the type and on the device of a given tensor.
    """

    def __init__(self, frame: Frame, form: ResidualForm, like: Tensor) -> None:
        self.frame, self.count = frame, frame.count
        live, dead = (torch.from_numpy(frame.live == value).nonzero()[:, 0] for value in (1, 0))
        matrix = form.matrix
        self.diagonal = int(matrix.count_nonzero()) == len(matrix)
        axes = matrix.abs().argmax(dim=1) if self.diagonal else torch.arange(len(matrix))
        order = torch.cat([live[axes], dead])
        ones = torch.ones(len(dead), dtype=torch.float64)
        # A coupling's constant shift moves into the biases of the couplings that read it.
        behind, couplings = torch.zeros_like(form.constant), []
        for c in form.couplings:
            b1 = c.b1 + c.w1 @ behind
            couplings.append((c.w1[:, axes].T, b1, c.w2.T, c.b2, c.residual, c.out[axes].T))
            behind = behind + c.shift
        constant = torch.cat([form.constant + matrix @ behind, 0 * ones])

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype=like.dtype, device=like.device).contiguous()

        self.order, self.back = order.to(like.device), order.argsort().to(like.device)
        self.mean = cast(learned_tensor(frame.mean))
        self.axes = None
        if frame.components is not None:
            self.axes = cast(learned_tensor(frame.components)[order])
        self.centre, self.scale = self.mean[self.order], cast(learned_tensor(frame.scale)[order])
        # In latent order each level reads and changes columns that lie side by side.
        self.couplings: list[_Coupling] = []
        for w1, b1, w2, b2, residual, back in couplings:
            reads, moves = _extent(w1), _extent(back.T)
            parts = cast(w1[reads]), cast(b1), cast(w2), cast(b2), residual, cast(back[:, moves])
            self.couplings.append((reads, *parts, moves))
        self.constant = cast(constant)
        if self.diagonal:
            factor = matrix.gather(1, axes[:, None])[:, 0]
            self.factor = cast(torch.cat([factor, ones]))
            self.log_det = float(factor.abs().log().sum())
        else:
            self.matrix, self.inverted = cast(matrix.T), cast(torch.linalg.inv(matrix).T)
            self.log_det = float(torch.linalg.slogdet(matrix).logabsdet)

    def latent(self, x: Tensor, out: Tensor) -> Tensor | float:
        """As `FramedGlow.latent`; the log-determinant is the same for every row."""
        if self.frame.normalize:
            x = unit_length(x)
        if self.axes is None:
            torch.index_select(x, 1, self.order, out=out)
            out.sub_(self.centre)
        else:
            torch.mm(x - self.mean, self.axes.T, out=out)
        out.div_(self.scale)
        moving = out[:, : self.count]
        for coupling in self.couplings:
            self._couple(moving, coupling, 1)
        if self.diagonal:
            out.mul_(self.factor)
        else:
            moving.copy_(moving @ self.matrix)
        out.add_(self.constant)
        return self.log_det

    def rows(self, z: Tensor, out: Tensor) -> None:
        """As `FramedGlow.rows`."""
        u = z - self.constant
        moving = u[:, : self.count]
        if self.diagonal:
            u.div_(self.factor)
        else:
            moving.copy_(moving @ self.inverted)
        for coupling in reversed(self.couplings):
            self._couple(moving, coupling, -1)
        u.mul_(self.scale)
        if self.axes is None:
            torch.index_select(u, 1, self.back, out=out)
        else:
            torch.mm(u, self.axes, out=out)
        out.add_(self.mean)

    @staticmethod
    def _couple(u: Tensor, coupling: _Coupling, sign: int) -> None:
        reads, w1, b1, w2, b2, residual, back, moves = coupling
        h1 = torch.addmm(b1, u[:, reads], w1).relu_()
        h2 = torch.addmm(b2, h1, w2).relu_()
        u[:, moves].addmm_(h2.add_(h1) if residual else h2, back, alpha=sign)


def _extent(matrix: Tensor) -> slice:
    """The range from the first nonzero row of a matrix to the last."""
    rows = matrix.any(dim=1).nonzero()[:, 0].tolist()
    return slice(rows[0], rows[-1] + 1) if rows else slice(0, 0)
