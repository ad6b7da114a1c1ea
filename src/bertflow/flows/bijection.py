"""The contract of every invertible map: `forward` with its log-determinant, and `inverse`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Bijection(nn.Module, ABC):
    r"""An invertible map :math:`f : \mathbb{R}^D \to \mathbb{R}^D` acting on rows.

    The direction is always data to latent: `forward` takes data :math:`x` to latent :math:`z`
    together with :math:`\log |\det \partial z / \partial x|`, one number a row.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map data to latent.

        Args:
            x: Data, shape (N, D).

        Returns:
            z of shape (N, D), and log_det of shape (N,).
        """

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """Map latent, shape (N, D), back to data, shape (N, D)."""

    @abstractmethod
    def initialize(self, x: Tensor) -> Tensor:
        """Set what depends on the data from a sample x (N, D), and return forward(x)'s z.

        Maps with nothing to set just apply themselves, so that the next one sees its own input.
        """


class Composition(Bijection):
    r"""Bijections applied one after the other: :math:`f = f_K \circ \dots \circ f_1`.

    The log-determinants add up.

    Args:
        steps: The maps, the first applied first.

    Example:
        >>> import torch
        >>> from bertflow.flows import ActNorm, Composition, Permutation
        >>> f = Composition([ActNorm(4), Permutation.reverse(4)])
        >>> z, log_det = f(torch.ones(3, 4))
        >>> z.shape, log_det.shape
        (torch.Size([3, 4]), torch.Size([3]))
    """

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
            assert isinstance(step, Bijection)
            z = step.inverse(z)
        return z

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Initialise every step on what the steps before it make of the sample."""
        for step in self.steps:
            assert isinstance(step, Bijection)
            x = step.initialize(x)
        return x
