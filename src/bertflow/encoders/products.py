"""Linear layers whose weights are laid out for the processor once, not at every call."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

# Laid-out weights take memory a second time, so a model with more in its products has none.
MOST_WEIGHTS = 2**28


class PackedLinear(nn.Linear):
    """A linear layer in bfloat16 on a CPU, weights laid out once, with or without GELU behind it.

    As `nn.Linear` under autocast up to rounding: what comes in is rounded to bfloat16, products are
    summed in float32. With GELU, that is taken of the sum before it is rounded.

    Args:
        linear: The layer; its weights are copied.
        gelu: Whether an exact GELU is behind it.
    """

    def __init__(self, linear: nn.Linear, gelu: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name in ("weight", "bias"):
            value = getattr(linear, name)
            if value is not None:
                value = nn.Parameter(value.detach().bfloat16(), requires_grad=False)
            self.register_parameter(name, value)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self._behind = ("gelu", "none") if gelu else ("none", "")

    def forward(self, input: Tensor) -> Tensor:
        """The product, shape (..., out_features), in bfloat16."""
        kind, how = self._behind
        image: Tensor = torch.ops.mkldnn._linear_pointwise(
            input.to(torch.bfloat16), self._packed, self.bias, kind, [], how
        )
        return image


def pack_products(model: Any) -> None:
    """Lay out the weights of a model's linear layers, where that is known to be the same product.

    Otherwise they are copied into the layout that suits a processor's units at every call, which
    costs a small batch much of the product's time. Layers that others hook into are left as they
    are, and so is a model on another device, of a size where memory counts for more, or where
    PyTorch has no such product.

    Args:
        model: A transformer, changed in place.
    """
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and not _is_hooked(child)
    ]
    if (
        not layers
        or any(child.weight.device.type != "cpu" for _, _, child in layers)
        or sum(child.weight.numel() for _, _, child in layers) > MOST_WEIGHTS
        or not _has_packed_products()
    ):
        return
    # A layer in two places stays one.
    packed: dict[tuple[int, bool], PackedLinear] = {}
    for parent, name, child in layers:
        gelu = _has_gelu_behind(parent, name)
        key = (id(child), gelu)
        if key not in packed:
            packed[key] = PackedLinear(child, gelu)
        setattr(parent, name, packed[key])
        if gelu:
            parent.intermediate_act_fn = nn.Identity()


def _is_hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or hasattr(module, "parametrizations")
    )


def _has_gelu_behind(parent: nn.Module, name: str) -> bool:
    """Whether a layer is followed by an exact GELU, as in transformers' BERT and its relatives."""
    return (
        type(parent).__module__.startswith("transformers.models.")
        and type(parent).__name__.endswith("Intermediate")
        and [child for child, _ in parent.named_children()] == ["dense", "intermediate_act_fn"]
        and name == "dense"
        and isinstance(parent.intermediate_act_fn, GELUActivation)
        and not _is_hooked(parent)
    )


@cache
def _has_packed_products() -> bool:
    """Whether PyTorch has the product that `torch.compile` takes on a CPU."""
    # Made without values, whose drawing would move the caller's generator.
    linear = nn.Linear(48, 32, device="meta").to_empty(device="cpu")
    try:
        with torch.inference_mode():
            for gelu in (False, True):
                PackedLinear(linear, gelu)(torch.zeros(3, 5, 48))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True
