"""Models without dropout while they encode, also several threads on one that was left training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn


@dataclass
class _Use:
    """How many encode with a module, and what it is to be again after the last of them."""

    count: int = 0
    training: bool = False


# Taken again by a generator that the garbage collector ends while its thread has it.
_lock = threading.RLock()
_uses: WeakKeyDictionary[nn.Module, _Use] = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout while inside; modules that were training do so again when nobody is.

    Models may have modules in common, and threads models: the first that comes turns training off,
    the last that goes turns it on.

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
        # Not looked up again: of what the garbage collector ends weak references are gone.
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
