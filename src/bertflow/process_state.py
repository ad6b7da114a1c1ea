"""Settings of the process that must not change a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import sklearn
import torch


@contextmanager
def pinned() -> Iterator[None]:
    """Compute as in a fresh process, whatever the caller has set.

    Inside, torch's default type is float32 and its default device the CPU, autocast and inference
    mode are off, gradients can be computed, numpy only warns, and scikit-learn returns arrays.
    Everything is as before afterwards. It serves as a decorator, too.

    The default type belongs to the whole process, so it is touched only where someone changed it.

    Example:
        >>> torch.set_default_dtype(torch.float64)
        >>> with pinned():
        ...     torch.zeros(1).dtype
        torch.float32
        >>> torch.zeros(1).dtype
        torch.float64
        >>> torch.set_default_dtype(torch.float32)
    """
    with ExitStack() as settings:
        if (before := torch.get_default_dtype()) != torch.float32:
            torch.set_default_dtype(torch.float32)
            settings.callback(torch.set_default_dtype, before)
        if torch.get_default_device() != torch.device("cpu"):
            settings.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.enable_grad())
        settings.enter_context(np.errstate(all="warn", under="ignore"))
        settings.enter_context(sklearn.config_context(transform_output="default"))
        yield
