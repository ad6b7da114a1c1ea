"""Invertible layers on vectors: their contract, normalisation, mixing and coupling."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertflow.errors import InputError

WeightInit = Literal["orthogonal", "normal"]

EPSILON = 1e-6
DEAD_RATIO = 1e-4
AFFINE_LOG_SCALE_BOUND = 2.0


class Bijection(nn.Module, ABC):
    r"""An invertible map :math:`f : \mathbb{R}^D \to \mathbb{R}^D` acting on rows.

    `forward` takes data x to latent z, with :math:`\log |\det \partial z / \partial x|` of a row.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map data (N, D) to latent z (N, D), with log_det (N,)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """Map latent, shape (N, D), back to data, shape (N, D)."""

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set what depends on the data from a sample x (N, D), and return forward(x)'s z."""
        z: Tensor = self.forward(x)[0]
        return z


class Composition(Bijection):
    r"""Bijections applied one after the other: :math:`f = f_K \circ \dots \circ f_1`.

    Args:
        steps: The maps, the first applied first; their log-determinants add up.

    Example:
        >>> z, log_det = Composition([ActNorm(4), Permutation.reverse(4)])(torch.ones(3, 4))
        >>> z.shape, log_det.shape
        (torch.Size([3, 4]), torch.Size([3]))
    """

    steps: Any

    def __init__(self, steps: list[Bijection]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.steps)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply every step in turn; the log-determinants add up."""
        log_det = x.new_zeros(len(x))
        for step in self.steps:
            x, step_log_det = step(x)
            log_det = log_det + step_log_det
        return x, log_det

    def inverse(self, z: Tensor) -> Tensor:
        """Undo every step, the last first."""
        for step in reversed(self.steps):
            z = step.inverse(z)
        return z

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Initialise every step on the sample as the steps before it have mapped it."""
        for step in self.steps:
            x = step.initialize(x)
        return x


def bounded_deviation(deviation: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    """Replace the deviation, shape (D,), of directions that do not vary by the typical one.

    A later row that differs there must not be blown up. A direction is dead at or below the floor,
    which rounding can reach, or below 1e-4 of the typical: the median over those above the floor.
    Ones, where nothing varies.

    Example:
        >>> bounded_deviation(torch.tensor([2.0, 0.0, 4.0, 3.0]))
        tensor([2., 3., 4., 3.])
    """
    varies = deviation > floor
    if not bool(varies.any()):
        return torch.ones_like(deviation)
    typical = deviation[varies].median()
    return torch.where(varies & (deviation > DEAD_RATIO * typical), deviation, typical)


class ActNorm(Bijection):
    r"""Shift and scale each dimension, starting at mean 0 and variance 1.

    .. math:: z = (x + b) \odot e^{r s}, \qquad \log |\det| = r \sum_d s_d

    `initialize` sets :math:`b` to minus the mean and :math:`e^{r s}` to
    :math:`1 / (\sigma + 10^{-6})`, by moments in float64, see `bounded_deviation`.

    Args:
        features: Width D.
        scale_rate: The constant r. The released code stores a third of the log-scale (r = 3),
            which makes it train three times as fast.

    Source:
        Kingma and Dhariwal (2018), section 3.1; paper section 3.2.

    Example:
        >>> ActNorm(2).initialize(torch.tensor([[0.0, 10.0], [2.0, 30.0]])).round(decimals=3)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """

    def __init__(self, features: int, *, scale_rate: float = 3.0) -> None:
        super().__init__()
        self.scale_rate = scale_rate
        self.bias = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))

    def scale(self) -> Tensor:
        """The factor e^{rs} of each dimension, shape (D,)."""
        return torch.exp(self.scale_rate * self.log_scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift, then scale; the same log-determinant for every row."""
        log_det = self.scale_rate * self.log_scale.sum()
        return (x + self.bias) * self.scale(), log_det.expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """Undo the scale, then the shift."""
        return z / self.scale() - self.bias

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set shift and scale from the moments of the sample."""
        wide = x.double()
        self.bias.copy_(-wide.mean(dim=0))
        centred = wide + self.bias.double()
        deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(x))
        self.log_scale.copy_(-torch.log(bounded_deviation(deviation) + EPSILON) / self.scale_rate)
        # The same as forward(x)[0], without shifting a large sample again.
        same_type = x.dtype == self.bias.dtype == wide.dtype
        return centred.mul_(self.scale()) if same_type else self(x)[0]

    def extra_repr(self) -> str:
        """Width and rate, for `repr`."""
        return f"{len(self.bias)}, scale_rate={self.scale_rate}"


class Permutation(Bijection):
    r"""Reorder the dimensions: :math:`z_d = x_{\pi(d)}`, with log-determinant exactly 0.

    The index :math:`\pi`, shape (D,), must hold each of 0 … D − 1 once.

    Example:
        >>> Permutation.reverse(3)(torch.tensor([[1.0, 2.0, 3.0]]))[0]
        tensor([[3., 2., 1.]])
    """

    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        if not order.is_meta and not torch.equal(order.sort().values, torch.arange(len(order))):
            raise InputError(f"order must hold each of 0 … {len(order) - 1} once, got {order}")
        self.register_buffer("order", order)

    @classmethod
    def reverse(cls, features: int) -> Permutation:
        """The last dimension first."""
        return cls(torch.arange(features - 1, -1, -1))

    @classmethod
    def random(cls, features: int, generator: torch.Generator | None = None) -> Permutation:
        """Drawn uniformly, then fixed; it is saved with the weights."""
        return cls(torch.randperm(features, generator=generator))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reorder."""
        return x.index_select(1, self.order), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """Put back."""
        return z.index_select(1, self.order.argsort())


class InvertibleLinear(Bijection):
    r"""A learned invertible matrix in PLU form, Glow's 1x1 convolution on plain vectors.

    .. math:: z = P L (U + \mathrm{diag}(\pm e^{s}))\, x, \qquad \log |\det| = \sum_d s_d

    P (a permutation) and the signs are fixed; L (unit lower triangular), U (strictly upper
    triangular) and s are learned. It starts as a random rotation. The parameters hold
    :math:`\sqrt D` times L and U, so that Adam's steps do not make a wide matrix singular.

    Args:
        features: Width D.
        generator: Source of the random rotation.

    Source:
        Kingma and Dhariwal (2018), section 3.2, LU decomposition.

    Example:
        >>> layer = InvertibleLinear(3, generator=torch.Generator().manual_seed(0))
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(layer.inverse(layer(x)[0]), x, atol=1e-5)
        True
    """

    p: Tensor
    sign: Tensor

    def __init__(self, features: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        gaussian = torch.randn(features, features, dtype=torch.float64, generator=generator)
        rotation = torch.linalg.qr(gaussian).Q
        p, lower, upper = torch.linalg.lu(rotation)
        diagonal = upper.diagonal()
        dtype = torch.get_default_dtype()
        self.register_buffer("p", p.to(dtype))
        self.register_buffer("sign", diagonal.sign().to(dtype))
        self.rate = features**-0.5
        self.lower = nn.Parameter((lower.tril(-1) / self.rate).to(dtype))
        self.upper = nn.Parameter((upper.triu(1) / self.rate).to(dtype))
        self.log_diagonal = nn.Parameter(diagonal.abs().log().to(dtype))

    def _factors(self) -> tuple[Tensor, Tensor]:
        identity = torch.eye(len(self.sign), dtype=self.lower.dtype, device=self.lower.device)
        lower = self.rate * self.lower.tril(-1) + identity
        diagonal = torch.diag(self.sign * self.log_diagonal.exp())
        upper = self.rate * self.upper.triu(1) + diagonal
        return lower, upper

    def weight(self) -> Tensor:
        """The matrix itself, shape (D, D)."""
        lower, upper = self._factors()
        return self.p @ lower @ upper

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply each row by the matrix."""
        return x @ self.weight().T, self.log_diagonal.sum().expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """Two triangular solves."""
        lower, upper = self._factors()
        y = torch.linalg.solve_triangular(lower, self.p.T @ z.T, upper=False, unitriangular=True)
        x: Tensor = torch.linalg.solve_triangular(upper, y, upper=True).T
        return x


class _Linear(nn.Linear):
    """Without torch's own start, which would move the caller's generator."""

    def reset_parameters(self) -> None: ...


class CouplingNet(nn.Module):
    r"""The function inside a coupling: three linear layers, two of them normalised.

    .. math::
        h_1 &= \mathrm{relu}(N_1(W_1 x)), \qquad
        h_2 = \mathrm{relu}(N_2(W_2 h_1)) \;[+\, h_1] \\
        g(x) &= (W_3 h_2 + b) \odot e^{r s}

    :math:`N_i` are ActNorms. :math:`W_1` and :math:`W_2` start orthogonal or, as in the released
    code, :math:`\mathcal N(0, 0.05^2)`; :math:`W_3` and :math:`b` start at zero, so that a fresh
    coupling is the identity.

    Args:
        in_features: Width of x.
        out_features: Width of g(x).
        width: Hidden width; residual, scale_rate and weight_init, too, are as in `bertflow.Flow`.
        generator: Source of the weights.

    Source:
        Paper, Table 7.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int = 32,
        residual: bool = False,
        scale_rate: float = 3.0,
        weight_init: WeightInit = "orthogonal",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.scale_rate = scale_rate
        self.linear1 = _Linear(in_features, width, bias=False)
        self.actnorm1 = ActNorm(width, scale_rate=scale_rate)
        self.linear2 = _Linear(width, width, bias=False)
        self.actnorm2 = ActNorm(width, scale_rate=scale_rate)
        self.linear3 = _Linear(width, out_features)
        self.log_scale = nn.Parameter(torch.zeros(out_features))
        for linear in (self.linear1, self.linear2):
            if weight_init == "orthogonal":
                nn.init.orthogonal_(linear.weight, generator=generator)
            else:
                nn.init.normal_(linear.weight, std=0.05, generator=generator)
        nn.init.zeros_(self.linear3.weight)
        nn.init.zeros_(self.linear3.bias)

    def weights(self) -> tuple[nn.Parameter, ...]:
        """The weights of the three linear layers."""
        linears: list[Any] = [self.linear1, self.linear2, self.linear3]
        return tuple(linear.weight for linear in linears)

    def output_scale(self) -> Tensor:
        """The factor e^{rs} of each output, shape (out_features,)."""
        return torch.exp(self.scale_rate * self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate g on rows, shape (N, in_features) to (N, out_features)."""
        h1 = F.relu(self.actnorm1(self.linear1(x))[0])
        h2 = F.relu(self.actnorm2(self.linear2(h1))[0])
        hidden = h2 + h1 if self.residual else h2
        value: Tensor = self.linear3(hidden) * self.output_scale()
        return value

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Initialise the two ActNorms on what reaches them."""
        h1 = F.relu(self.actnorm1.initialize(self.linear1(x)))
        self.actnorm2.initialize(self.linear2(h1))


class _Coupling(Bijection):
    """Keeps the first part of a row, the larger one if D is odd, and moves the rest by it."""

    # How many numbers the net gives for each dimension that moves.
    outputs: ClassVar[int]

    def __init__(self, features: int, **net: Any) -> None:
        super().__init__()
        if features < 2:
            raise InputError(f"a coupling needs at least 2 dimensions, got {features}")
        self.kept = features - features // 2
        self.net = CouplingNet(self.kept, self.outputs * (features - self.kept), **net)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        self.net.initialize(x[:, : self.kept])
        return super().initialize(x)


class AdditiveCoupling(_Coupling):
    """Keep the first half, move the second: :math:`z_2 = x_2 + g(x_1)`, log-determinant 0.

    Args:
        features: Width D, at least 2; if it is odd, the kept part is the larger one.
        **net: width, residual, scale_rate, weight_init and generator, as in `CouplingNet`.

    Source:
        Paper, appendix A, equations 5 to 8; Dinh et al. (2015).

    Example:
        >>> AdditiveCoupling(5, width=4)(torch.ones(2, 5))[1]
        tensor([0., 0.])
    """

    outputs = 1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Add the net's value to the second half."""
        kept, moved = x[:, : self.kept], x[:, self.kept :]
        return torch.cat([kept, moved + self.net(kept)], dim=1), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """Subtract it again: the kept half has not changed."""
        kept, moved = z[:, : self.kept], z[:, self.kept :]
        return torch.cat([kept, moved - self.net(kept)], dim=1)


class AffineCoupling(_Coupling):
    r"""Keep the first half, scale and shift the second; arguments are those of `AdditiveCoupling`.

    .. math::
        z_2 = x_2 \odot e^{a(x_1)} + t(x_1), \qquad \log|\det| = \sum_d a_d(x_1),
        \qquad a = 2 \tanh(\hat a / 2)

    The log-scale is bounded by 2 on either side, so that the inverse stays stable; it starts at 0.

    Source:
        Kingma and Dhariwal (2018), section 3.3; the paper replaces it by the additive one.

    Example:
        >>> AffineCoupling(4, width=4)(torch.ones(2, 4))[1].tolist()
        [0.0, 0.0]
    """

    outputs = 2

    def _shift_and_log_scale(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        shift, raw = self.net(kept).chunk(2, dim=1)
        return shift, AFFINE_LOG_SCALE_BOUND * torch.tanh(raw / AFFINE_LOG_SCALE_BOUND)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift the second half."""
        kept, moved = x[:, : self.kept], x[:, self.kept :]
        shift, log_scale = self._shift_and_log_scale(kept)
        return torch.cat([kept, moved * log_scale.exp() + shift], dim=1), log_scale.sum(dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """Unshift and unscale: the kept half has not changed."""
        kept, moved = z[:, : self.kept], z[:, self.kept :]
        shift, log_scale = self._shift_and_log_scale(kept)
        return torch.cat([kept, (moved - shift) * (-log_scale).exp()], dim=1)
