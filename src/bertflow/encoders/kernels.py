"""Attention and products that suit a processor better: packed sentences, weights laid out once."""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import GELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "bertflow_packed"
# The kernel multiplies tiles of so many rows.
TILE = 16
# Laid-out weights take memory a second time, so a model with more in its products has none.
MOST_WEIGHTS = 2**28


def pack_attention(model: Any) -> None:
    """Let a model in half precision on a CPU attend to several short sentences in one product.

    Queries and keys of g sentences of L tokens each, L below a tile, are multiplied as one sentence
    of g L tokens; a mask keeps each sentence to itself, so that the result is the same up to
    rounding. It takes about half as long. Models that mask tokens of their own accord (causal ones,
    windows), or do not attend by PyTorch's kernel, are left as they are.

    Args:
        model: A transformer, changed in place.
    """
    config = getattr(model, "config", None)
    module = sys.modules.get(type(model).__module__)
    if (
        getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(module, "ALL_ATTENTION_FUNCTIONS", None) is ALL_ATTENTION_FUNCTIONS
        and next(model.parameters()).device.type == "cpu"
    ):
        AttentionInterface.register(NAME, packed_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' "sdpa" computes it, with short whole sentences packed together.

    Args:
        module: The attention layer.
        query: Shape (N, heads, L, D), as are key and value.
        key: Likewise.
        value: Likewise.
        attention_mask: None where every token sees every other one of its sentence.
        others: What `sdpa_attention_forward` takes.

    Returns:
        Shape (N, L, heads, D), and no weights.
    """
    count, heads, length, width = query.shape
    together = -(-TILE // length)
    causal = others.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if (
        attention_mask is not None
        or causal
        or length >= TILE
        or count < together
        or others.get("position_bias") is not None
        or not query.shape == key.shape == value.shape
    ):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    whole = count // together * together
    mask = _own_sentence_only(together, length, query.dtype)
    q, k, v = (
        part[:whole]
        .transpose(1, 2)
        .reshape(whole // together, together * length, heads, width)
        .transpose(1, 2)
        for part in (query, key, value)
    )
    packed, _ = sdpa_attention_forward(module, q, k, v, mask, **{**others, "is_causal": False})
    out = packed.reshape(whole, length, heads, width)
    if whole < count:
        rest, _ = sdpa_attention_forward(
            module, query[whole:], key[whole:], value[whole:], None, **others
        )
        out = torch.cat([out, rest])
    return out, None


@lru_cache(maxsize=64)
def _own_sentence_only(together: int, length: int, dtype: torch.dtype) -> Tensor:
    """The mask to add to products of queries and keys: 0 within a sentence, else -infinity."""
    sentence = torch.arange(together * length) // length
    other = sentence[:, None] != sentence
    mask = torch.zeros(other.shape, dtype=dtype).masked_fill_(other, float("-inf"))
    return mask[None, None]


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
