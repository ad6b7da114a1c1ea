"""Glow on vectors: multi-scale composition, density and sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bertflow.errors import check_choice, check_number
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Bijection,
    Composition,
    InvertibleLinear,
    Permutation,
    WeightInit,
)

CouplingName = Literal["additive", "affine"]
PermutationName = Literal["random", "reverse", "linear"]


class Glow(Bijection):
    r"""A multi-scale flow from vectors to a standard normal.

    `levels` times: `depth` steps of ActNorm, permutation and coupling; after every level but the
    last, the second half of the dimensions is split off as latent. The latent vector holds the
    halves in the order they were split off, then the rest; its width is the data's.

    .. math::
        \log p(x) = \log \mathcal N(z; 0, I) + \log |\det \partial z / \partial x|

    A level that would be left with fewer than two dimensions is not built, so that every width
    from 2 up takes any number of levels.

    Args:
        features: Width D, at least 2.
        levels: As the following arguments, one of `bertflow.Flow`, which documents them.
        generator: Source of permutations and weights.

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
        self,
        features: int,
        *,
        levels: int = 2,
        depth: int = 3,
        width: int = 32,
        coupling: CouplingName = "additive",
        permutation: PermutationName = "random",
        residual: bool = True,
        scale_rate: float = 3.0,
        weight_init: WeightInit = "orthogonal",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_number("features", features, 2, integer=True)
        for name, count in [("levels", levels), ("depth", depth), ("width", width)]:
            check_number(name, count, 1, integer=True)
        check_number("scale_rate", scale_rate, 0, above=True)
        check_choice("coupling", coupling, get_args(CouplingName))
        check_choice("permutation", permutation, get_args(PermutationName))
        check_choice("weight_init", weight_init, get_args(WeightInit))
        self.features = features
        self.levels = nn.ModuleList()
        remaining = features
        while len(self.levels) < levels and remaining >= 2:
            steps: list[Bijection] = []
            for _ in range(depth):
                steps.append(ActNorm(remaining, scale_rate=scale_rate))
                steps.append(_mixing(permutation, remaining, generator))
                kind = AdditiveCoupling if coupling == "additive" else AffineCoupling
                steps.append(
                    kind(
                        remaining,
                        width=width,
                        residual=residual,
                        scale_rate=scale_rate,
                        weight_init=weight_init,
                        generator=generator,
                    )
                )
            self.levels.append(Composition(steps))
            remaining -= remaining // 2

    def level_widths(self) -> list[int]:
        """How many dimensions each level works on, always the first ones; the first is D."""
        widths = [self.features]
        while len(widths) < len(self.levels):
            widths.append(widths[-1] - widths[-1] // 2)
        return widths

    def stages(self) -> Iterator[tuple[Composition, int]]:
        """Each level, a composition of its steps, with its width."""
        for level, width in zip(self.levels, self.level_widths(), strict=True):
            assert isinstance(level, Composition)
            yield level, width

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
        """Set every ActNorm from a sample x (N, D), layer by layer, in float64.

        Each sees the sample as the layers before it have mapped it.
        """
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
        ends = [*self.level_widths(), 0]
        return [slice(stop, start) for start, stop in pairwise(ends)]

    def latent_axes(self) -> Tensor:
        """The input axis that each latent dimension came from, shape (D,).

        Couplings and ActNorms leave an axis where it is; permutations and splits move it. With
        invertible matrices for permutations there is no such axis.
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
        z, log_det = self(x)
        constant: float = 0.5 * self.features * math.log(2 * math.pi)
        prob: Tensor = log_det - 0.5 * z.square().sum(dim=1) - constant
        return prob

    def bits_per_dimension(self, x: Tensor) -> Tensor:
        r"""The training loss: the mean of :math:`-\log p(x) / (D \ln 2)`, a scalar.

        It comes from a density, so negative values are normal.
        """
        return -self.log_prob(x).mean() / (self.features * math.log(2))

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw `count` rows from the learned density, shape (count, D)."""
        like = next(self.parameters())
        z = torch.randn(
            count, self.features, generator=generator, dtype=like.dtype, device=like.device
        )
        return self.inverse(z)


def _beside_the_rest(moved: Tensor, x: Tensor) -> Tensor:
    """Rows with their first columns moved."""
    rest = x[:, moved.shape[1] :]
    return torch.cat([moved, rest], dim=1) if rest.shape[1] else moved


def _mixing(kind: PermutationName, features: int, generator: torch.Generator | None) -> Bijection:
    if kind == "reverse":
        return Permutation.reverse(features)
    if kind == "random":
        return Permutation.random(features, generator)
    return InvertibleLinear(features, generator)
