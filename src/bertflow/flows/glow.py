"""Glow on vectors, and an additive Glow as a residual network in the coordinates of its input."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from bertflow.errors import check_choice, check_number
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Bijection,
    Composition,
    CouplingNet,
    InvertibleLinear,
    Permutation,
    WeightInit,
)

CouplingName = Literal["additive", "affine"]
PermutationName = Literal["random", "reverse", "linear"]


@dataclass(repr=False, eq=False)
class Design:
    """How to build a Glow: arguments of `bertflow.Flow`, which documents them."""

    levels: int = 2
    depth: int = 3
    _: KW_ONLY
    width: int = 32
    coupling: CouplingName = "additive"
    permutation: PermutationName = "random"
    residual: bool = True
    scale_rate: float = 3.0
    weight_init: WeightInit = "orthogonal"

    def _check_design(self) -> None:
        for name in ["levels", "depth", "width"]:
            check_number(name, getattr(self, name), 1, integer=True)
        check_number("scale_rate", self.scale_rate, 0, above=True)
        check_choice("residual", self.residual, (True, False))
        check_choice("coupling", self.coupling, get_args(CouplingName))
        check_choice("permutation", self.permutation, get_args(PermutationName))
        check_choice("weight_init", self.weight_init, get_args(WeightInit))


class Glow(Bijection):
    r"""A multi-scale flow from vectors to a standard normal.

    .. math::
        \log p(x) = \log \mathcal N(z; 0, I) + \log |\det \partial z / \partial x|

    `levels` times: `depth` steps of ActNorm, permutation and coupling; after every level but the
    last, the second half of the dimensions is split off as latent. The latent vector holds the
    halves in that order, then the rest. A level that would have fewer than two dimensions is not
    built.

    Args:
        features: Width D, at least 2.
        generator: Source of permutations and weights.
        **design: levels, depth, width, coupling, permutation, residual, scale_rate and weight_init,
            as `bertflow.Flow` documents them.

    Raises:
        InputError: An argument is out of its range; the message names it.

    Source:
        Paper, section 3.2, appendix A and Table 7; Kingma and Dhariwal (2018), figure 2.

    Example:
        >>> import torch
        >>> flow = Glow(6, levels=2, depth=1, width=8, generator=torch.Generator().manual_seed(0))
        >>> x = torch.randn(10, 6)
        >>> z, log_det = flow(x)
        >>> z.shape, log_det.shape, torch.allclose(flow.inverse(z), x, atol=1e-5)
        (torch.Size([10, 6]), torch.Size([10]), True)
    """

    def __init__(
        self, features: int, *, generator: torch.Generator | None = None, **design: Any
    ) -> None:
        super().__init__()
        check_number("features", features, 2, integer=True)
        how = Design(**design)
        how._check_design()
        kind = AdditiveCoupling if how.coupling == "additive" else AffineCoupling
        net = {
            name: getattr(how, name) for name in ["width", "residual", "scale_rate", "weight_init"]
        }
        self.features = features
        self.levels = nn.ModuleList()
        # How many dimensions each level works on, always the first ones.
        self.widths: list[int] = []
        remaining = features
        while len(self.levels) < how.levels and remaining >= 2:
            steps: list[Bijection] = []
            for _ in range(how.depth):
                steps.append(ActNorm(remaining, scale_rate=how.scale_rate))
                steps.append(_mixing(how.permutation, remaining, generator))
                steps.append(kind(remaining, generator=generator, **net))
            self.levels.append(Composition(steps))
            self.widths.append(remaining)
            remaining -= remaining // 2

    def stages(self) -> Iterator[tuple[Composition, int]]:
        """Each level, a composition of its steps, with its width."""
        levels: Any = self.levels
        return zip(levels, self.widths, strict=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map data (N, D) to latent (N, D) and its log-determinant (N,)."""
        log_det = x.new_zeros(len(x))
        for level, width in self.stages():
            moved, level_log_det = level(x[:, :width])
            x = _beside_the_rest(moved, x)
            log_det = log_det + level_log_det
        return self.in_latent_order(x), log_det

    def inverse(self, z: Tensor) -> Tensor:
        """Map latent (N, D) to data (N, D)."""
        spans = self._latent_spans()
        parts = torch.split(z, [span.stop - span.start for span in spans], dim=1)
        x = torch.cat(parts[::-1], dim=1)
        for level, width in reversed(list(self.stages())):
            x = _beside_the_rest(level.inverse(x[:, :width]), x)
        return x

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set every ActNorm from a sample x (N, D), layer by layer, in float64."""
        dtype = next(self.parameters()).dtype
        self.double()
        x = x.double()
        for level, width in self.stages():
            x = _beside_the_rest(level.initialize(x[:, :width]), x)
        self.to(dtype)
        return self.in_latent_order(x).to(dtype)

    def in_latent_order(self, x: Tensor) -> Tensor:
        """Columns (N, D) after the last level, put into the order of the latent vector."""
        return torch.cat([x[:, span] for span in self._latent_spans()], dim=1)

    def _latent_spans(self) -> list[slice]:
        """Where the split-off halves lie after the last level, in their order; then the rest."""
        ends = [*self.widths, 0]
        return [slice(stop, start) for start, stop in pairwise(ends)]

    def latent_axes(self) -> Tensor:
        """The input axis that each latent dimension came from, shape (D,).

        With invertible matrices for permutations there is no such axis.
        """
        axes = torch.arange(self.features)
        for level, width in self.stages():
            for step in level:
                if isinstance(step, Permutation):
                    axes[:width] = axes[:width][step.order]
        return self.in_latent_order(axes[None])[0]

    def log_prob(self, x: Tensor) -> Tensor:
        r"""Log-density of each row in nats, shape (N,).

        .. math:: -\tfrac12 \lVert z \rVert^2 - \tfrac D2 \log 2\pi + \log |\det|
        """
        z, log_det = self.forward(x)
        constant = 0.5 * self.features * math.log(2 * math.pi)
        return log_det - 0.5 * z.square().sum(dim=1) - constant

    def bits_per_dimension(self, x: Tensor) -> Tensor:
        r"""The training loss: the mean of :math:`-\log p(x) / (D \ln 2)`, a scalar."""
        return -self.log_prob(x).mean() / (self.features * math.log(2))


def _beside_the_rest(moved: Tensor, x: Tensor) -> Tensor:
    rest = x[:, moved.shape[1] :]
    return torch.cat([moved, rest], dim=1) if rest.shape[1] else moved


def _mixing(kind: PermutationName, features: int, generator: torch.Generator | None) -> Bijection:
    if kind == "reverse":
        return Permutation.reverse(features)
    if kind == "random":
        return Permutation.random(features, generator)
    return InvertibleLinear(features, generator)


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
