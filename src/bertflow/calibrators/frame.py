r"""The affine maps around a flow's Glow: :math:`z = g \odot f((R\,(x - \mu)) \oslash \sigma) + b`.

R holds the axes as rows (the identity, or the principal axes), :math:`\sigma` the deviations along
them, and f is the Glow over the axes that vary; the others pass it by. The gain g and the offset b
act on the output only: the density of a row does not depend on them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, unit_length
from bertflow.calibrators.base import empty, learned_tensor, like
from bertflow.calibrators.moments import ROUNDING, Moments, principal_axes
from bertflow.errors import InputError, check_choice, check_number
from bertflow.flows import Glow, ResidualForm, bounded_deviation

Loss = TypeVar("Loss", float, Tensor)
AxesName = Literal["given", "principal"]

# The least Wiener gain: 0 has no inverse. A thousandth adds a millionth to a squared length, too
# little to change a cosine, and float16 can still hold it.
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

    def _check_framing(self, permutation: str) -> None:
        check_choice("normalize", self.normalize, (True, False))
        check_choice("axes", self.axes, get_args(AxesName))
        check_number("noise", self.noise, 0, 1)
        check_number("leading", self.leading, 0, integer=True)
        check_number("leading_gain", self.leading_gain, 0, 1, above=True)
        check_number("centring", self.centring, 0, 1)
        single = permutation != "linear"  # Learned matrices mix the axes.
        for name, off, fits in [
            ("noise", 0, single and self.axes == "principal"),
            ("leading", 0, single and self.axes == "principal"),
            ("centring", 1, single),
        ]:
            if (value := getattr(self, name)) != off and not fits:
                needed = "" if name == "centring" else "axes='principal' and "
                raise InputError(
                    f"{name}={value} acts on single axes: it needs {needed}permutation='random' or "
                    f"'reverse', got axes={self.axes!r}, permutation={permutation!r}"
                )

    def _frame_tensors(self, width: int) -> dict[str, Tensor]:
        has = {"gain": self.noise > 0 or self.leading > 0, "offset": self.centring < 1}
        names = ["mean", "scale", *(name for name, there in has.items() if there)]
        learned = {name: empty(width) for name in names}
        learned["live"] = empty(width, dtype=torch.bool)
        if self.axes == "principal":
            learned["components"] = empty(width, width)
        return learned


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A fitted frame. Axes are counted before the Glow, latent dimensions after it.

    Attributes:
        normalize: Whether rows are scaled to unit length first.
        mean: Centre of the rows, shape (D,).
        scale: The divisor of each axis, shape (D,).
        live: Which axes vary, booleans of shape (D,).
        components: The axes as rows, shape (D, D), orthonormal; None where they are as given.
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
    def of(cls, moments: Moments, framing: Framing) -> Self:
        """Learn centre, axes and deviations; gain and offset need the Glow, see `tempered`."""
        principal = framing.axes == "principal"
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

    def moved(self, moments: Moments) -> Self:
        """The same axes with the centre and deviations of more rows, as a trained Glow needs them.

        Axes that did not vary keep their divisor.
        """
        variance = moments.variance()
        if self.components is not None:
            axes = learned_tensor(self.components)
            variance = ((axes @ moments.covariance()) * axes).sum(dim=1)
        scale = np.where(self.live, variance.sqrt().numpy(), self.scale)
        return replace(self, mean=moments.mean.numpy(), scale=scale)

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

        :math:`\lambda_i` is the variance along axis i (0 where it does not vary), :math:`\lambda_q`
        that of `Flow`'s noise; without noise w is 1. d is the leading gain on the leading axes and
        1 elsewhere, c the share of the mean that is removed. b is never inverted, and needs no
        least gain: on an axis that hardly varies the mean can be many deviations long.
        """
        wiener = np.ones(len(self.mean))
        if framing.noise > 0:
            variance = np.where(self.live, np.square(self.scale), 0.0)
            level = variance[min(round((1 - framing.noise) * len(variance)), self.count - 1)]
            wiener = variance / (variance + level)
        damping = np.ones(len(self.mean))
        damping[: framing.leading] = framing.leading_gain
        gain = np.maximum(wiener, LEAST_GAIN) * damping
        rotated = self.mean if self.components is None else self.components @ self.mean
        offset = (1 - framing.centring) * wiener * damping * rotated / self.scale
        order = self.order.copy()
        order[: self.count] = order[glow.latent_axes().numpy()]
        return replace(
            self,
            gain=gain[order] if framing.noise > 0 or framing.leading > 0 else None,
            offset=offset[order] if framing.centring < 1 else None,
        )

    @property
    def count(self) -> int:
        """How many axes vary: the width of the Glow."""
        return int(self.live.sum())

    @property
    def order(self) -> Array:
        """The axes that vary, then the others, shape (D,)."""
        return np.argsort(~self.live, kind="stable")

    @property
    def log_volume(self) -> float:
        """The logarithm of the volume that one unit of the Glow's input stands for."""
        return float(np.log(self.scale).sum())

    def bits(self, loss: Loss) -> Loss:
        """Bits per dimension of the rows from the Glow's; other axes are standard normal."""
        share = self.count / len(self.live)
        others = (1 - share) * 0.5 * math.log2(2 * math.pi) + float(np.log2(self.scale).mean())
        return share * loss + others

    def enter(self, x: Tensor) -> Tensor:
        """Rows (N, D) to standardized axes (N, D): first those that vary, for the Glow."""
        if self.normalize:
            x = unit_length(x)
        u = x - like(self.mean, x)
        if self.components is not None:
            u = u @ like(self.components, x).T
        u = u / like(self.scale, x)
        return u[:, torch.from_numpy(self.order).to(u.device)]

    def temper(self, z: Tensor) -> Tensor:
        """Latent (N, D), standard normal, to the output; in place."""
        if self.gain is not None:
            z.mul_(like(self.gain, z))
        return z if self.offset is None else z.add_(like(self.offset, z))

    def untemper(self, z: Tensor) -> Tensor:
        """Undo `temper`, not in place."""
        if self.offset is not None:
            z = z - like(self.offset, z)
        return z if self.gain is None else z / like(self.gain, z)


class FramedGlow:
    """Rows to latent and back through a frame and a Glow, in a tensor's type and on its device."""

    def __init__(self, frame: Frame, glow: Glow, x: Tensor) -> None:
        self.frame, self.count = frame, frame.count
        kind = FoldedGlow if ResidualForm.suits(glow) else _PlainGlow
        self.core: FoldedGlow | _PlainGlow = kind(glow, x)
        order = torch.from_numpy(frame.order)
        order[: self.count] = order[self.core.axes]
        self.order, self.back = order.to(x.device), order.argsort().to(x.device)
        self.mean, self.scale = like(frame.mean, x), like(frame.scale[order], x)
        self.centre = self.mean[self.order]
        self.axes = None if frame.components is None else like(frame.components[order], x)

    def latent(self, x: Tensor, out: Tensor) -> Tensor | float:
        """Write the latent (n, D) of rows before `Frame.temper`; give the log-determinant."""
        if self.frame.normalize:
            x = unit_length(x)
        if self.axes is None:
            torch.index_select(x, 1, self.order, out=out)
            out.sub_(self.centre)
        else:
            torch.mm(x - self.mean, self.axes.T, out=out)
        out.div_(self.scale)
        return self.core.apply(out[:, : self.count])

    def rows(self, z: Tensor, out: Tensor) -> None:
        """Undo `latent`; the length of a row is not brought back."""
        u = z.clone()
        self.core.undo(u[:, : self.count])
        u.mul_(self.scale)
        if self.axes is None:
            torch.index_select(u, 1, self.back, out=out)
        else:
            torch.mm(u, self.axes, out=out)
        out.add_(self.mean)


class _PlainGlow:
    def __init__(self, glow: Glow, like: Tensor) -> None:
        self.glow = copy.deepcopy(glow).to(dtype=like.dtype, device=like.device)
        self.axes = torch.arange(glow.features)

    def apply(self, u: Tensor) -> Tensor:
        z, log_det = self.glow.forward(u.contiguous())
        u.copy_(z)
        return log_det

    def undo(self, u: Tensor) -> None:
        u.copy_(self.glow.inverse(u.contiguous()))


# The columns it reads; w1, b1, w2, b2 as right-hand factors; whether h1 is added to h2; V; and the
# columns it changes.
_Coupling: TypeAlias = tuple[slice, Tensor, Tensor, Tensor, Tensor, bool, Tensor, slice]


class FoldedGlow:
    """A Glow of additive couplings, quickly: only their hidden units are not affine.

    See `bertflow.flows.ResidualForm`. Its columns are in the order of the latent dimensions, which
    came from `axes`; each coupling is two products with D x 32 matrices, added in place.
    """

    def __init__(self, glow: Glow, like: Tensor) -> None:
        form = ResidualForm.of(glow)
        matrix, behind = form.matrix, torch.zeros_like(form.constant)
        self.diagonal = int(matrix.count_nonzero()) == len(matrix)
        self.axes = matrix.abs().argmax(dim=1) if self.diagonal else torch.arange(len(matrix))
        # In latent order each level reads and changes columns that lie side by side.
        self.couplings: list[_Coupling] = []
        for c in form.couplings:
            w1, out = c.w1[:, self.axes].T, c.out[self.axes].T
            reads, moves = _extent(w1), _extent(out.T)
            # A coupling's constant shift moves into the biases of the couplings that read it.
            inner = _as(like, w1[reads], c.b1 + c.w1 @ behind, c.w2.T, c.b2)
            self.couplings.append((reads, *inner, c.residual, *_as(like, out[:, moves]), moves))
            behind = behind + c.shift
        self.constant = (form.constant + matrix @ behind).to(like)
        if self.diagonal:
            factor = matrix.gather(1, self.axes[:, None])[:, 0]
            self.log_det = float(factor.abs().log().sum())
            self.factor = factor.to(like)
        else:
            self.log_det = float(torch.linalg.slogdet(matrix).logabsdet)
            self.matrix, self.inverted = _as(like, matrix.T, torch.linalg.inv(matrix).T)

    def apply(self, u: Tensor) -> float:
        """Rows to latent in place; the log-determinant is the same for every row."""
        for coupling in self.couplings:
            self._couple(u, coupling, 1)
        if self.diagonal:
            u.mul_(self.factor)
        else:
            u.copy_(u @ self.matrix)
        u.add_(self.constant)
        return self.log_det

    def undo(self, u: Tensor) -> None:
        """Latent to rows in place."""
        u.sub_(self.constant)
        if self.diagonal:
            u.div_(self.factor)
        else:
            u.copy_(u @ self.inverted)
        for coupling in reversed(self.couplings):
            self._couple(u, coupling, -1)

    @staticmethod
    def _couple(u: Tensor, coupling: _Coupling, sign: int) -> None:
        reads, w1, b1, w2, b2, residual, back, moves = coupling
        h1 = torch.addmm(b1, u[:, reads], w1).relu_()
        h2 = torch.addmm(b2, h1, w2).relu_()
        u[:, moves].addmm_(h2.add_(h1) if residual else h2, back, alpha=sign)


def _as(like: Tensor, *tensors: Tensor) -> Any:
    return [tensor.to(like).contiguous() for tensor in tensors]


def _extent(matrix: Tensor) -> slice:
    """The range from the first nonzero row of a matrix to the last."""
    rows = matrix.any(dim=1).nonzero()[:, 0].tolist()
    return slice(rows[0], rows[-1] + 1) if rows else slice(0, 0)
