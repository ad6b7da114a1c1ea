"""Settings of the process that must not change a result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import sklearn
import torch

from bertflow.threads import usual_threads

# The default type belongs to the whole process: the first thread inside sets it, and the last one
# restores what was there.
_lock = threading.Lock()
_inside = 0
_before: torch.dtype | None = None


@contextmanager
def pinned(*, seed: bool = False) -> Iterator[None]:
    """Compute as in a fresh process, whatever the caller has set.

    Inside, torch's default type is float32 and its default device the CPU, autocast and inference
    mode are off, gradients can be computed, numpy only warns, and scikit-learn returns arrays.
    Everything is as before afterwards. It serves as a decorator, too.

    Args:
        seed: Put torch's global generator back as well: modules of other libraries draw numbers
            from it when they are made. Not for what threads call beside each other.

    Example:
        >>> torch.set_default_dtype(torch.float64)
        >>> with pinned():
        ...     torch.zeros(1).dtype
        torch.float32
        >>> torch.zeros(1).dtype
        torch.float64
        >>> torch.set_default_dtype(torch.float32)
    """
    usual_threads()  # A new thread gets its number of threads now, not while another sets its own.
    with ExitStack() as settings:
        _enter_default_type()
        settings.callback(_leave_default_type)
        if torch.get_default_device() != torch.device("cpu"):
            settings.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        if seed:
            settings.enter_context(torch.random.fork_rng(devices=[]))
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.enable_grad())
        settings.enter_context(np.errstate(all="warn", under="ignore"))
        settings.enter_context(sklearn.config_context(transform_output="default"))
        yield


def _enter_default_type() -> None:
    global _inside, _before
    with _lock:
        _inside += 1
        if (found := torch.get_default_dtype()) != torch.float32:
            _before = found
            torch.set_default_dtype(torch.float32)


def _leave_default_type() -> None:
    global _inside, _before
    with _lock:
        _inside -= 1
        if not _inside and _before is not None:
            if torch.get_default_dtype() == torch.float32:  # Nobody has set another meanwhile.
                torch.set_default_dtype(_before)
            _before = None
