"""Several poolings of one encoder from one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from bertflow.encoders.encoder import Encoder
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.states import hidden_states
from bertflow.errors import InputError


class SeveralPoolings(nn.Module):
    r"""Sentence vectors of several poolings side by side, from all hidden states.

    .. math:: s = \Big[\, \tfrac1{|L_1|} \sum_{l \in L_1} \operatorname{pool}_1(h_l) \;\Big|\;
        \tfrac1{|L_2|} \sum_{l \in L_2} \operatorname{pool}_2(h_l) \;\Big|\; \dots \Big]

    Args:
        poolings: Of each, the hidden states it averages, 0 being the embeddings, and whether it
            takes the first token alone instead of the mean over tokens.
        width: Entries of a hidden state, D.
    """

    def __init__(self, poolings: Sequence[tuple[Sequence[int], bool]], width: int) -> None:
        super().__init__()
        self.poolings = [(tuple(states), first) for states, first in poolings]
        self.width = width * len(poolings)

    def get_embedding_dimension(self) -> int:
        """Entries of a vector, which sentence-transformers asks for."""
        return self.width

    def get_config_dict(self) -> dict[str, Any]:
        """Its settings, by which a cache tells its vectors from others."""
        return {"poolings": self.poolings}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, shape (N, poolings · D)."""
        states: Sequence[Tensor] = features["all_layer_embeddings"]
        mask = features["attention_mask"].unsqueeze(-1).to(states[0].dtype)
        count = mask.sum(dim=1).clamp(min=1e-9)
        means: dict[int, Tensor] = {}
        pooled = []
        for layers, first in self.poolings:
            if first:
                parts = [states[layer][:, 0] for layer in layers]
            else:
                for layer in layers:
                    if layer not in means:
                        means[layer] = (states[layer] * mask).sum(dim=1) / count
                parts = [means[layer] for layer in layers]
            pooled.append(torch.stack(parts).mean(dim=0))
        features["sentence_embedding"] = torch.cat(pooled, dim=1)
        return features


def load_poolings(
    name: str | Path, poolings: Sequence[str | None], **how: Any
) -> SentenceTransformer:
    """Load an encoder that gives the vectors of several poolings in one forward pass.

    It cannot be saved: it is for filling a `VectorCache` for each pooling.

    Args:
        name: As in `load_encoder`.
        poolings: At least one, each as in `load_encoder`; None only by itself.
        how: Keywords of `load_encoder` but pooling.

    Returns:
        An encoder whose vectors are those of the poolings side by side, shape (poolings · D,).

    Raises:
        InputError: As `load_encoder`, or None is not alone.
        ModelError: As `load_encoder`.
    """
    if len(poolings) == 1:
        return load_encoder(name, pooling=poolings[0], **how)
    named = [pooling for pooling in poolings if pooling is not None]
    if len(named) < len(poolings) or not named:
        raise InputError(f"several poolings must each be named, got {list(poolings)}")
    spelled = all(pooling.startswith("layers:") for pooling in named)
    # Blocks above the highest state are cut off; recipes by name go up to the last.
    states = {state for one in named if spelled for state in hidden_states(one, 1 << 30)}
    widest = f"layers:{','.join(map(str, sorted(states)))}" if spelled else "embed-last-avg"
    encoder, blocks = _with_all_states(name, widest, **how)
    pools = [(hidden_states(one, blocks), one == "cls") for one in named]
    return _side_by_side(encoder, pools)


def load_layers(name: str | Path, **how: Any) -> tuple[SentenceTransformer, list[str]]:
    """Load an encoder that gives the mean over tokens of every hidden state side by side.

    Args:
        name: As in `load_encoder`.
        how: Keywords of `load_encoder` but pooling.

    Returns:
        The encoder, and the pooling of each part: "layers:0" for the embeddings to "layers:L".
    """
    encoder, blocks = _with_all_states(name, "embed-last-avg", **how)
    names = [f"layers:{state}" for state in range(blocks + 1)]
    return _side_by_side(encoder, [((state,), False) for state in range(blocks + 1)]), names


def _with_all_states(name: str | Path, pooling: str, **how: Any) -> tuple[SentenceTransformer, int]:
    """An encoder that gives all its hidden states, and how many blocks it has."""
    encoder = load_encoder(name, pooling=pooling, **how)
    config: Any = encoder[0].model.config  # type: ignore[union-attr]
    config.output_hidden_states = True
    return encoder, config.get_text_config().num_hidden_layers


def _side_by_side(
    encoder: SentenceTransformer, pools: Sequence[tuple[Sequence[int], bool]]
) -> SentenceTransformer:
    transformer: Any = encoder[0]
    last = SeveralPoolings(pools, transformer.get_embedding_dimension())
    return Encoder(modules=[transformer, last], device=str(encoder.device)).eval()
