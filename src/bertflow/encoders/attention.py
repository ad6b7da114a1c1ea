"""Attention over short sentences, several to a call: small products waste a processor's units."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "bertflow_packed"
# The kernel multiplies tiles of so many rows.
TILE = 16


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
    module: torch.nn.Module,
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
