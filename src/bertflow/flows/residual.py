"""An additive Glow as a residual network in the coordinates of its input."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from bertflow.flows.glow import Glow
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    CouplingNet,
    InvertibleLinear,
    Permutation,
)


@dataclass(frozen=True)
class ResidualCoupling:
    r"""One coupling: :math:`u \leftarrow u + V h + v`, and how h comes about.

    :math:`h_1 = \mathrm{relu}(W_1 u + b_1)`, :math:`h_2 = \mathrm{relu}(W_2 h_1 + b_2)`, and h is
    :math:`h_2`, or :math:`h_2 + h_1` with a residual connection. :math:`W_1 V = 0` and
    :math:`W_1 v = 0`, so that subtracting :math:`V h + v` undoes it.

    `out` is V, of shape (D, width), and `shift` v; `residual` says whether h has h1 in it.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    out: Tensor
    shift: Tensor
    residual: bool

    @property
    def width(self) -> int:
        """How many hidden units there are."""
        return len(self.b1)


@dataclass(frozen=True)
class ResidualForm:
    r"""A Glow of additive couplings with all its ActNorms and permutations folded away.

    With :math:`A u + c` the product of all ActNorms and permutations up to a coupling, the
    coupling is :math:`u \leftarrow u + A^{-1} E\, g(S (A u + c))`, where S picks the kept half and
    E places the moved one. One affine map is left at the end:

    .. math:: z = A u_K + c

    All is float64. A row of A, `matrix`, has one entry that is not zero, unless there are
    `InvertibleLinear` layers; c is `constant`.

    Example:
        >>> form = ResidualForm.of(Glow(6, width=4).double())
        >>> len(form.couplings), form.matrix.count_nonzero().item()
        (6, 6)
    """

    couplings: tuple[ResidualCoupling, ...]
    matrix: Tensor
    constant: Tensor

    @staticmethod
    def suits(glow: Glow) -> bool:
        """Whether all couplings are additive: others have no such form."""
        kinds = (ActNorm, Permutation, InvertibleLinear, AdditiveCoupling)
        return all(isinstance(step, kinds) for level, _ in glow.stages() for step in level)

    @classmethod
    @torch.no_grad()
    def of(cls, glow: Glow) -> Self:
        """Fold a Glow; a ValueError unless it `suits`."""
        if not cls.suits(glow):
            raise ValueError("only a Glow of additive couplings has a residual form")
        glow = copy.deepcopy(glow).double()
        matrix = torch.eye(glow.features, dtype=torch.float64)
        constant = torch.zeros(glow.features, dtype=torch.float64)
        couplings = []
        for level, width in glow.stages():
            # The rows of the matrix that this level works on: views, which are written to.
            rows, shift = matrix[:width], constant[:width]
            for step in level:
                if isinstance(step, ActNorm):
                    scale = step.scale()
                    rows.mul_(scale[:, None])
                    shift.add_(step.bias).mul_(scale)
                elif isinstance(step, Permutation):
                    rows.copy_(rows[step.order])
                    shift.copy_(shift[step.order])
                elif isinstance(step, InvertibleLinear):
                    weight = step.weight()
                    rows.copy_(weight @ rows)
                    shift.copy_(weight @ shift)
                elif isinstance(step, AdditiveCoupling):
                    back = _inverse(matrix)[:, step.kept : width]
                    kept = slice(0, step.kept)
                    couplings.append(_folded(step.net, rows[kept], shift[kept], back))
        order = glow.in_latent_order(torch.arange(glow.features)[None])[0]
        return cls(tuple(couplings), matrix[order], constant[order])


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse, which for a scaled permutation needs no solving."""
    scaled_permutation = int(matrix.count_nonzero()) == len(matrix)
    squares = matrix.square().sum(dim=1)
    inverse: Tensor = matrix.T / squares if scaled_permutation else torch.linalg.inv(matrix)
    return inverse


def _folded(net: CouplingNet, matrix: Tensor, constant: Tensor, back: Tensor) -> ResidualCoupling:
    """A coupling net with its ActNorms and the affine maps around it folded in."""
    w1, b1 = _normed(net.linear1, net.actnorm1)
    w2, b2 = _normed(net.linear2, net.actnorm2)
    scale = net.output_scale()
    w3 = scale[:, None] * net.linear3.weight
    b3 = scale * net.linear3.bias
    return ResidualCoupling(
        w1=w1 @ matrix,
        b1=w1 @ constant + b1,
        w2=w2,
        b2=b2,
        out=back @ w3,
        shift=back @ b3,
        residual=net.residual,
    )


def _normed(linear: nn.Linear, norm: ActNorm) -> tuple[Tensor, Tensor]:
    scale = norm.scale()
    return scale[:, None] * linear.weight, scale * norm.bias
