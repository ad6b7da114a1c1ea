"""All parameters of a module as one vector, and their gradient as another."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """Parameters as views of one vector, so that an optimizer is a handful of operations.

    Args:
        parameters: Of one type and device. They keep their values and become views of `values`;
            their `.grad` become views of `gradient`, which starts at zero.

    Attributes:
        values: Shape (P,), in the order given.
        gradient: Shape (P,).

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 1)
        >>> flat = FlatParameters([layer.bias, layer.weight])
        >>> flat.values[0] = 7.0
        >>> layer.bias.tolist(), flat.values.shape
        ([7.0], torch.Size([3]))
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.values)
        self._spans: dict[nn.Parameter, slice] = {}
        start = 0
        for p in self.parameters:
            span = slice(start, start + p.numel())
            p.data = self.values[span].view_as(p)
            p.grad = self.gradient[span].view_as(p)
            self._spans[p] = span
            start = span.stop

    def span(self, parameter: nn.Parameter) -> slice:
        """Where in the vectors a parameter lies."""
        return self._spans[parameter]

    def gradient_of(self, parameter: nn.Parameter) -> Tensor:
        """The gradient of one parameter, in its shape: a view."""
        return self.gradient[self.span(parameter)].view_as(parameter)

    def release(self) -> None:
        """Give each parameter memory of its own again, and no gradient."""
        for p in self.parameters:
            p.data = p.data.clone()
            p.grad = None
