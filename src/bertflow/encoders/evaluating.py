"""Dropout stays off while a model encodes, also if several threads share a model in training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn


@dataclass
class _Use:
    """How many threads encode with a module, and whether it trains again after the last one."""

    count: int = 0
    training: bool = False


# Reentrant: the garbage collector may end a generator of the thread that holds the lock.
_lock = threading.RLock()
_uses: WeakKeyDictionary[nn.Module, _Use] = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off while inside; modules that were training train again afterwards.

    Models may share modules, and threads may share models: the first that enters turns training
    off, and the last that leaves turns it on.

    Args:
        model: Its modules are taken one by one.

    Example:
        >>> dropout = nn.Dropout(0.5)
        >>> with evaluating(nn.Sequential(dropout)):
        ...     with evaluating(dropout):
        ...         pass
        ...     dropout.training
        False
        >>> dropout.training
        True
    """
    with _lock:
        # Hold the entries: weak references may be gone when the garbage collector ends this.
        held = [(module, _uses.setdefault(module, _Use())) for module in model.modules()]
        for module, use in held:
            if not use.count:
                use.training = module.training
            use.count += 1
        if any(module.training for module, _ in held):
            model.eval()
    try:
        yield
    finally:
        with _lock:
            for module, use in held:
                use.count -= 1
                if not use.count and use.training:
                    module.training = True
