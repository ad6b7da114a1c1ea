"""Calibrators in models of half precision: their weights stay, and compute, in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

HALF = (torch.float16, torch.bfloat16)


def raise_input(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Before a module is called: give it the sentence vector in the type of its weights."""
    features: dict[str, Any] = arguments[0]
    x = features["sentence_embedding"]
    weight = next(module.parameters(), None)
    if weight is not None:
        features["sentence_embedding"] = x.to(weight.dtype)
    elif x.dtype in HALF:
        features["sentence_embedding"] = x.float()


@contextmanager
def kept_from_half(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo what turns the weights of modules into half precision while inside.

    sentence-transformers casts whatever follows an encoder to the encoder's type, and `half()` all
    of a model. Statistics do not survive that: a mean may be far larger than what it leaves.
    """
    owners = [part for module in modules for part in module.modules()]
    before = [
        (part, name, weight.data)
        for part in owners
        for name, weight in part._parameters.items()
        if weight is not None
    ]
    yield
    for part, name, values in before:
        weight = part._parameters[name]
        if weight is not None and weight.dtype in HALF:
            weight.data = values.to(weight.device)
