"""Small steps on a GPU: recorded once as a CUDA graph, and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor

log = logging.getLogger(__name__)

T = TypeVar("T")

# Calls that are made as they are before one is recorded: the first of them sets libraries up, which
# cannot be recorded.
WARM_UP = 3


@contextmanager
def on_a_stream(device: torch.device) -> Iterator[None]:
    """Compute in a stream of its own while inside: nothing can be recorded in the usual one."""
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

    A step of training is hundreds of operations of microseconds, and to launch each takes longer
    than to compute it. A CUDA graph launches all of them at once. What the function reads and
    changes besides must stay where it is in memory; each shape of its argument is recorded anew.

    Args:
        compute: Takes a tensor (elsewhere than on a GPU, anything) and gives one.
        device: Where it computes. To be called within `on_a_stream` of it.

    Returns:
        The function itself, where that is no CUDA device. There: one whose result is overwritten
        by the next call. Where recording fails the function is called as it is.
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
