"""A fitted flow with all its affine parts folded together, to map rows quickly."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from bertflow.arrays import unit_length
from bertflow.calibrators.base import learned_tensor
from bertflow.calibrators.frame import Frame
from bertflow.flows import ResidualForm

# The columns it reads; w1, b1, w2, b2 as right-hand factors; whether h1 is added to h2; V; and the
# columns it changes.
_Coupling: TypeAlias = tuple[slice, Tensor, Tensor, Tensor, Tensor, bool, Tensor, slice]


class FoldedFlow:
    r"""Rows to latent and back, through an additive Glow and the frame around it.

    Only the couplings' hidden units are not affine (see `bertflow.flows.ResidualForm`). The whole
    flow becomes

    - one selection of columns, or with principal axes one matrix product, which brings the axes
      into the order of the latent dimensions;
    - two products with D x 32 matrices for each coupling, whose result is added to the rows in
      place;
    - one scale and shift at the end.

    Args:
        frame: What surrounds the Glow.
        form: The Glow.
        like: Gives the type and device to compute in.

    Attributes:
        log_det: Of the Glow, the same for every row.
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

    def latent(self, x: Tensor, out: Tensor) -> None:
        """Map rows (n, D) to latent (n, D), standard normal, before `Frame.temper`."""
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

    def rows(self, z: Tensor, out: Tensor) -> None:
        """Undo `latent`; the length of a row is not brought back."""
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
