"""Cutting a transformer to the blocks that are needed, whatever its architecture."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

PROBE = "A short sentence to compare the hidden states with."


@torch.no_grad()
def cut_blocks(model: nn.Module, tokenizer: Any, top: int) -> int:
    """Remove the blocks that hidden state `top` does not need, in place.

    Models that normalise after their last block (GPT- and Llama-like ones) apply that to whatever
    block is last, so cut right after block i their state i would change; they keep one block
    more. Which kind a model is, a probe sentence tells: its hidden states up to `top` must be
    what they were.

    Args:
        model: A transformers model.
        tokenizer: Its tokenizer.
        top: The highest hidden state needed.

    Returns:
        The number of blocks that are left; all of them if the model cannot be cut.
    """
    config: Any = model.config.get_text_config()  # type: ignore[union-attr, operator]
    total: int = config.num_hidden_layers
    holders = _block_lists(model, total)
    if top >= total or not holders:
        return total
    probe = {
        name: tensor.to(next(model.parameters()).device)
        for name, tensor in tokenizer(PROBE, return_tensors="pt").items()
    }
    before = _states(model, probe)[: top + 1]
    blocks = [(parent, name, getattr(parent, name)) for parent, name in holders]
    lists = {
        key: value
        for key, value in config.to_dict().items()
        if isinstance(value, list) and len(value) == total
    }
    for kept in range(max(top, 1), total):
        _resize(config, blocks, lists, kept)
        after = _states(model, probe)[: top + 1]
        if all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(before, after, strict=True)
        ):
            logger.info("kept %d of %d blocks", kept, total)
            return kept
        if kept > top:
            break
    _resize(config, blocks, lists, total)
    return total


def _block_lists(model: nn.Module, total: int) -> list[tuple[nn.Module, str]]:
    return [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]


def _resize(
    config: Any,
    blocks: list[tuple[nn.Module, str, nn.ModuleList]],
    lists: dict[str, list[Any]],
    kept: int,
) -> None:
    for parent, name, full in blocks:
        setattr(parent, name, full[:kept])
    for key, value in lists.items():
        setattr(config, key, value[:kept])
    config.num_hidden_layers = kept


def _states(model: nn.Module, probe: dict[str, Tensor]) -> tuple[Tensor, ...]:
    states: tuple[Tensor, ...] = model(**probe, output_hidden_states=True).hidden_states
    return states
