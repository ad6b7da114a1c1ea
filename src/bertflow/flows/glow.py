"""Glow on vectors: multi-scale composition, density and sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bertflow.errors import InputError
from bertflow.flows.bijection import Bijection, Composition
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
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
        levels: Number of levels (the paper: 2, the released code: 3).
        depth: Steps a level.
        width: Hidden width of the coupling nets.
        coupling: "additive" (the paper) or "affine" (Glow).
        permutation: "random" (the paper), "reverse" (the released code) or "linear" (Glow's
            invertible matrix, PLU).
        residual: Whether the coupling nets have the residual connection of Table 7.
        scale_rate: How fast log-scales train, see ActNorm.
        weight_init: How the coupling nets start, see CouplingNet.
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
        for name, value, least in [
            ("features", features, 2),
            ("levels", levels, 1),
            ("depth", depth, 1),
            ("width", width, 1),
        ]:
            if value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        if not scale_rate > 0:
            raise InputError(f"scale_rate must be above 0, got {scale_rate}")
        if coupling not in get_args(CouplingName):
            raise InputError(f"coupling must be one of {get_args(CouplingName)}, got {coupling!r}")
        if permutation not in get_args(PermutationName):
            raise InputError(
                f"permutation must be one of {get_args(PermutationName)}, got {permutation!r}"
            )
        if weight_init not in get_args(WeightInit):
            raise InputError(
                f"weight_init must be one of {get_args(WeightInit)}, got {weight_init!r}"
            )
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
        """How many dimensions each level works on, the first being D."""
        widths = [self.features]
        while len(widths) < len(self.levels):
            widths.append(widths[-1] - widths[-1] // 2)
        return widths

    def compositions(self) -> Iterator[Composition]:
        """The levels, each a composition of its steps."""
        for level in self.levels:
            assert isinstance(level, Composition)
            yield level

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map data (N, D) to latent (N, D) and its log-determinant (N,)."""
        log_det = x.new_zeros(len(x))
        latent = []
        for index, level in enumerate(self.compositions()):
            x, level_log_det = level(x)
            log_det = log_det + level_log_det
            if index < len(self.levels) - 1:
                x, out = _split(x)
                latent.append(out)
        return torch.cat([*latent, x], dim=1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        """Map latent (N, D) to data (N, D)."""
        sizes = [width // 2 for width in self.level_widths()[:-1]]
        *latent, x = torch.split(z, [*sizes, self.features - sum(sizes)], dim=1)
        for index, level in reversed(list(enumerate(self.compositions()))):
            if index < len(self.levels) - 1:
                x = torch.cat([x, latent[index]], dim=1)
            x = level.inverse(x)
        return x

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set every ActNorm from a sample x (N, D), layer by layer, in float64.

        Each sees what the layers before it make of the sample.
        """
        dtype = next(self.parameters()).dtype
        self.double()
        x, latent = x.double(), []
        for index, level in enumerate(self.compositions()):
            x = level.initialize(x)
            if index < len(self.levels) - 1:
                x, out = _split(x)
                latent.append(out)
        self.to(dtype)
        return torch.cat([*latent, x], dim=1).to(dtype)

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


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cut into the part that goes on and the part that is latent (the smaller if odd)."""
    goes_on = x.shape[1] - x.shape[1] // 2
    return x[:, :goes_on], x[:, goes_on:]


def _mixing(kind: PermutationName, features: int, generator: torch.Generator | None) -> Bijection:
    if kind == "reverse":
        return Permutation.reverse(features)
    if kind == "random":
        return Permutation.random(features, generator)
    return InvertibleLinear(features, generator)
