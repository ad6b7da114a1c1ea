"""Models that threads and processes share: dropout stays off, and copies and pickles work."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

INSTALLED = "_output_capturing_hooks_installed"


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


class _Hook:
    """transformers' hook that keeps a hidden state, which cannot be pickled; copies do nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Nothing, ()


class _Nothing:
    """What a copy has in the place of a hook."""

    def __call__(self, *arguments: Any) -> None:
        """Leave the output as it is."""


class _Installed:
    """True; but False in a copy, where transformers then installs hooks of its own.

    Args:
        model: The model that says so of itself.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.kind, self.config = type(model), model.config

    def __bool__(self) -> bool:
        return True

    def __deepcopy__(self, memo: Any) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _not_installed, (self.kind, self.config)


def _not_installed(kind: type[PreTrainedModel], config: Any) -> bool:
    # transformers learns what a class can record when a model of it is made, and an unpickled model
    # never is. So one is made without memory.
    with torch.device("meta"):
        kind(copy.deepcopy(config))
    return False


def keep_picklable(encoder: nn.Module) -> None:
    """Let an encoder be pickled after its transformer has given hidden states.

    For those transformers installs hooks in the first forward pass, functions inside a function,
    which cannot be pickled. They stay where they are; a copy installs its own.

    Args:
        encoder: It has encoded. Changed in place.
    """
    for module in encoder.modules():
        for key, hook in module._forward_hooks.items():
            if str(getattr(hook, "__module__", "")).startswith("transformers."):
                module._forward_hooks[key] = _Hook(hook)
        if isinstance(module, PreTrainedModel) and getattr(module, INSTALLED, None) is True:
            setattr(module, INSTALLED, _Installed(module))


def copied(model: Any, shared: Mapping[int, Any]) -> Any:
    """A deep copy of a model while other threads may use it.

    Their first forward pass would install transformers' hooks meanwhile, and a copy with half of
    them would have hidden states twice. So all are installed before.

    Args:
        model: Of transformers.
        shared: What is not copied, by its id.
    """
    # Not documented. Where it is not there, no other thread may encode for the first time.
    with suppress(ImportError):
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        maybe_install_capturing_hooks(model)
    return copy.deepcopy(model, dict(shared))
