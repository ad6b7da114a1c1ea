"""Encoders that can be copied and sent to other processes, whenever they have encoded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import nn
from transformers import PreTrainedModel

INSTALLED = "_output_capturing_hooks_installed"
# How often a model is copied that changes meanwhile.
COPIES = 3


class _Hook:
    """transformers' hook that keeps a hidden state; a copy in another process does nothing.

    Args:
        function: The hook, which cannot be pickled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Nothing, ()


class _Nothing:
    """What remains of a hook in a copy."""

    def __call__(self, *arguments: Any) -> None:
        """Leave the output as it is."""


class _Installed:
    """True, but False in a copy, so that transformers installs its hooks there."""

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


class _Keeper:
    """A hook of a Transformer that makes its model's hooks such that they can be pickled.

    transformers learns what a class of models can record when one is made, and a copy in another
    process never is: it would have no hidden states. So one is made there, without memory.

    Args:
        kind: The model's class.
        config: Its configuration.
    """

    def __init__(self, kind: type[PreTrainedModel], config: Any) -> None:
        self.kind, self.config = kind, config

    def __call__(self, transformer: nn.Module, *_: Any) -> None:
        """After a forward pass, wrap what it may have installed."""
        model: Any = transformer.model
        # A part of the model may be what has installed them.
        if not any(getattr(module, INSTALLED, None) is True for module in model.modules()):
            return
        for module in model.modules():
            for key, hook in module._forward_hooks.items():
                if _is_of_transformers(hook):
                    module._forward_hooks[key] = _Hook(hook)
            if getattr(module, INSTALLED, None) is True:
                setattr(module, INSTALLED, _Installed())

    def __reduce__(self) -> tuple[Any, ...]:
        return _keeper_of_a_copy, (self.kind, self.config)


def _keeper_of_a_copy(kind: type[PreTrainedModel], config: Any) -> _Keeper:
    with torch.device("meta"):
        kind(copy.deepcopy(config))
    return _Keeper(kind, config)


def keep_picklable(encoder: nn.Module) -> None:
    """Let an encoder be pickled after its transformer has given hidden states, too.

    For those transformers installs hooks, on the first forward pass that asks for them, which are
    functions inside a function and cannot be pickled. They stay where they are, but are left out
    of copies, which get their own. Where every pass will ask for them they are installed now: a
    thread may pickle the encoder while another's first pass is under way.

    Args:
        encoder: Changed in place.
    """
    for part in encoder.modules():
        if isinstance(part, Transformer) and isinstance(part.model, PreTrainedModel):
            if getattr(part.model.config, "output_hidden_states", False):
                _install(part.model)
            keeper = _Keeper(type(part.model), part.model.config)
            keeper(part)
            # Not on the model: its forward() is called without its hooks.
            part.register_forward_hook(keeper)


def copied(model: Any, shared: Mapping[int, Any]) -> Any:
    """A deep copy of a model without transformers' hooks, which installs its own.

    Another thread's first forward pass may be installing them meanwhile. A copy that took some of
    them, and then installed all, would have hidden states twice.

    Args:
        model: Of transformers.
        shared: What is not copied, by its id.
    """
    for tries in range(COPIES, 0, -1):
        try:
            twin: Any = copy.deepcopy(model, dict(shared))
            break
        except RuntimeError:  # A dictionary has grown; hooks are installed once.
            if tries == 1:
                raise
    for module in twin.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, _Nothing) or _is_of_transformers(hook):
                del module._forward_hooks[key]
        vars(module).pop(INSTALLED, None)
    return twin


def _is_of_transformers(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("transformers.")


def _install(model: PreTrainedModel) -> None:
    # Installed twice, every hidden state would be there twice.
    if any(getattr(module, INSTALLED, False) for module in model.modules()):
        return
    # Not documented; where it is not there, the first forward pass does it.
    with suppress(ImportError):
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        maybe_install_capturing_hooks(model)
