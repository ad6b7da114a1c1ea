"""Training steps on a GPU, recorded once as a CUDA graph and then replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor

log = logging.getLogger(__name__)

T = TypeVar("T")

# Calls before the first recording. The first call sets up CUDA libraries, which cannot be recorded.
WARM_UP = 3


@contextmanager
def on_a_stream(device: torch.device) -> Iterator[None]:
    """Use a separate CUDA stream while inside: the default stream cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    own: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    own.wait_stream(before)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        before.wait_stream(own)


def recorded(compute: Callable[[T], Tensor], device: torch.device) -> Callable[[T], Tensor]:
    """A function of a tensor that is quick to call again and again on a GPU.

    A training step is hundreds of operations that take microseconds, less than their launch. A CUDA
    graph launches all of them at once. Other tensors that the function reads or changes must stay
    at the same place in memory. Each shape of the argument is recorded separately.

    Args:
        compute: Takes a tensor and returns one; off the GPU it may take anything.
        device: Where it computes. Call the result within `on_a_stream(device)`.

    Returns:
        On a CUDA device, a function whose result the next call overwrites; it falls back to
        `compute` if recording fails. Elsewhere `compute` itself.
    """
    if device.type != "cuda":
        return compute
    return cast("Callable[[T], Tensor]", _Recorded(cast("Callable[[Tensor], Tensor]", compute)))


class _Recorded:
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._calls: dict[torch.Size, int] = {}
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._fails = False

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape not in self._graphs:
            self._calls[x.shape] = calls = self._calls.get(x.shape, 0) + 1
            if calls <= WARM_UP or self._fails or not self._record(x):
                return self._compute(x)
        graph, argument, result = self._graphs[x.shape]
        argument.copy_(x)
        graph.replay()
        return result

    def _record(self, x: Tensor) -> bool:
        graph, argument = torch.cuda.CUDAGraph(), x.clone()
        try:
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(
                graph,
                stream=torch.cuda.current_stream(x.device),
                capture_error_mode="thread_local",
            ):
                result = self._compute(argument)
        except RuntimeError as error:
            log.warning("steps are not recorded as a CUDA graph, which is slower: %s", error)
            self._fails = True
            return False
        self._graphs[x.shape] = graph, argument, result
        return True
