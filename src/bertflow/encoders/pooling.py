"""Sentence vectors from hidden states: poolings by name, and models cut to the needed blocks."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn

from bertflow.arrays import Array
from bertflow.encoders.checks import readable
from bertflow.encoders.encoder import Encoder
from bertflow.encoders.probe import check_encoder, difference, probe_texts, probed, tolerance
from bertflow.errors import InputError, ModelError, unknown
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# The hidden states of the recipes by name; negative ones are counted from behind the last.
STATES = {
    "cls": (-1,),
    "mean": (-1,),
    "last2avg": (-2, -1),
    "first-last-avg": (1, -1),
    "embed-last-avg": (0, -1),
}
RECIPES = (*STATES, "layers:1,12")
# More blocks than any encoder has.
ANY_BLOCKS = 1 << 30


def hidden_states(pooling: str, blocks: int) -> tuple[int, ...]:
    """The hidden states that a recipe averages, for an encoder with so many blocks.

    `pooling` is as in `load_encoder`. Indices rise, 0 being the embeddings and L the last block.

    Raises:
        InputError: The recipe is unknown, or asks for a layer the encoder does not have.

    Example:
        >>> hidden_states("last2avg", 12), hidden_states("layers:0,6", 12)
        ((11, 12), (0, 6))
    """
    recipe = str(pooling)
    spelled = re.fullmatch(r"layers:(\d+(?:,\d+)*)", recipe)
    layers = [int(number) for number in spelled[1].split(",")] if spelled else STATES.get(recipe)
    if not layers or len(set(layers)) < len(layers):
        raise unknown("pooling", recipe, RECIPES)
    found = sorted({layer if layer >= 0 else blocks + 1 + layer for layer in layers})
    if found[0] < 0 or found[-1] > blocks:
        raise InputError(
            f"pooling {recipe!r} asks for hidden state {found[-1]}, but the encoder has "
            f"{blocks} blocks (hidden states 0 to {blocks})"
        )
    return tuple(found)


def pooled(transformer: Transformer, pooling: str, name: str, device: str | None) -> Encoder:
    """The encoder of a recipe, cut to the blocks that it needs where that changes no vector."""
    model: Any = transformer.model
    if getattr(model.config, "is_encoder_decoder", False) and hasattr(model, "decoder"):
        raise ModelError(
            f"{name} is an encoder-decoder ({type(model).__name__}), of which "
            "sentence-transformers would pool the decoder; use another encoder"
        )
    states = [_hidden_states(transformer, text, name) for text in probe_texts(transformer)]
    total, first = len(states[0]) - 1, pooling == "cls"
    layers, name = hidden_states(pooling, total), f"{name} with {pooling}"
    wanted = np.stack(
        [
            sum(one[n][0] if first else one[n].mean(axis=0) for n in layers) / len(layers)
            for one in states
        ]
    )
    cut, said = Cut(model, total), ""
    for blocks in cut.choices(layers[-1]):
        try:
            modules = cut.modules(transformer, layers, blocks, first)
            encoder = Encoder(modules=modules, device="cpu")
            alone = probed(encoder, name)
        except Exception as error:  # A model that cannot be cut may still work whole.
            said = str(error)
            continue
        if (off := difference(wanted, alone)) <= tolerance(encoder):
            log.info("kept %d of %d blocks", blocks, total)
            encoder = Encoder(modules=modules, device=device).eval()
            check_encoder(encoder, name, alone if encoder.device.type == "cpu" else None)
            return encoder
        said = (
            f"{name} is pooled otherwise by sentence-transformers (off by {off:.0%} of a vector's "
            f"length) than its hidden states {', '.join(map(str, layers))}; use another encoder"
        )
    raise ModelError(f"{said} or another pooling")


def cut_to(transformer: Transformer, pooling: str, blocks: int, device: str | None) -> Encoder:
    """The encoder that `pooled` gave before, of which this number of blocks is known."""
    config: Any = transformer.model.config
    total = config.get_text_config().num_hidden_layers
    layers = hidden_states(pooling, total)
    modules = Cut(transformer.model, total).modules(transformer, layers, blocks, pooling == "cls")
    return Encoder(modules=modules, device=device).eval()


@pinned()
@torch.no_grad()
def _hidden_states(transformer: Transformer, text: str, name: str) -> list[Array]:
    """All hidden states of a text, each of shape (tokens, D), without sentence-transformers."""
    model: Any = transformer.eval().model
    with readable(lambda said: f"{name} cannot encode a sentence: {said}; use another encoder"):
        features = transformer.preprocess([text])
        inputs = {key: one for key, one in features.items() if isinstance(one, torch.Tensor)}
        taken = signature(model.forward).parameters
        if "input_ids" in taken:  # An adapter's forward has no names.
            inputs = {key: one for key, one in inputs.items() if key in taken}
        found = model(**inputs, output_hidden_states=True, return_dict=True)
        # A model without blocks has only its output.
        states = getattr(found, "hidden_states", None) or (found.last_hidden_state,)
        return [state[0].float().numpy() for state in states]


class Cut:
    """The blocks of a transformers model; the last ones can be left out and put back.

    Models like GPT and Llama normalise after their last block, so that they need one more than the
    highest hidden state. Only trying tells.
    """

    def __init__(self, model: nn.Module, total: int) -> None:
        self.model, self.total = model, total
        known: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        texts = [one.get_text_config() for one in known if hasattr(one, "get_text_config")]
        configs = {id(one): one for one in texts if getattr(one, "num_hidden_layers", 0) == total}
        # With their lists that have an entry for each block.
        self._configs = [
            (
                config,
                {k: v for k, v in config.to_dict().items() if type(v) is list and len(v) == total},
            )
            for config in configs.values()
        ]
        self._blocks = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == total
        ]

    def choices(self, top: int) -> list[int]:
        """The numbers of blocks to try if hidden state `top` is the highest that is needed."""
        if not self._blocks or not self._configs:
            return [self.total]
        least = max(top, 1)
        return sorted({min(least, self.total), min(least + 1, self.total), self.total})

    def modules(
        self, transformer: Transformer, layers: Sequence[int], count: int, first: bool
    ) -> list[nn.Module]:
        """The first blocks, in place, and behind them the modules that average hidden states."""
        for parent, name, full in self._blocks:
            setattr(parent, name, full if count == self.total else full[:count])
        for config, lists in self._configs:
            for key, value in lists.items():
                setattr(config, key, value[:count])
            config.num_hidden_layers = count
            if count < self.total:  # Some refuse to be read again with so many.
                type(config).from_dict(config.to_dict())
        several = tuple(layers) != (count,)
        # Parts of a model may have configurations of their own, as T5's encoder has.
        for module in self.model.modules():
            part: Any = getattr(module, "config", None)
            if hasattr(part, "output_hidden_states"):
                part.output_hidden_states = several
        width = transformer.get_embedding_dimension()
        pooling = Pooling(width, pooling_mode="cls" if first else "mean")
        if not several:
            return [transformer, pooling]
        weights = torch.zeros(count + 1 - layers[0])
        weights[[layer - layers[0] for layer in layers]] = 1.0
        mix = WeightedLayerPooling(
            width,
            num_hidden_layers=count,
            layer_start=layers[0],
            layer_weights=nn.Parameter(weights, requires_grad=False),
        )
        return [transformer, mix, pooling]


class SeveralPoolings(nn.Module):
    r"""Sentence vectors of several poolings side by side, from all hidden states.

    .. math:: s = \Big[\, \tfrac1{|L_1|} \sum_{l \in L_1} \operatorname{pool}_1(h_l) \;\Big|\;
        \tfrac1{|L_2|} \sum_{l \in L_2} \operatorname{pool}_2(h_l) \;\Big|\; \dots \Big]

    A pooling is the hidden states that it averages, and whether it takes the first token alone
    instead of the mean over tokens. `width` is that of a hidden state, D.
    """

    def __init__(self, poolings: Sequence[tuple[Sequence[int], bool]], width: int) -> None:
        super().__init__()
        self.poolings = [(tuple(states), first) for states, first in poolings]
        self.width = width * len(poolings)

    def get_embedding_dimension(self) -> int:
        """Entries of a vector."""
        return self.width

    def get_config_dict(self) -> dict[str, Any]:
        """Its settings, part of the key of a cache."""
        return {"poolings": self.poolings}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, shape (N, poolings · D)."""
        states: Sequence[Tensor] = features["all_layer_embeddings"]
        mask = features["attention_mask"].unsqueeze(-1).to(states[0].dtype)
        count = mask.sum(dim=1).clamp(min=1e-9)
        averaged = {layer for layers, first in self.poolings if not first for layer in layers}
        means = {layer: (states[layer] * mask).sum(dim=1) / count for layer in averaged}
        pooled = [
            torch.stack([states[n][:, 0] if first else means[n] for n in layers]).mean(dim=0)
            for layers, first in self.poolings
        ]
        features["sentence_embedding"] = torch.cat(pooled, dim=1)
        return features


def side_by_side(
    encoder: SentenceTransformer, poolings: Sequence[str] | None = None
) -> tuple[SentenceTransformer, list[str]]:
    """An encoder with several poolings, or with the mean of every hidden state; and their names."""
    transformer: Any = encoder[0]
    config = transformer.model.config
    config.output_hidden_states = True
    blocks = config.get_text_config().num_hidden_layers
    names = list(poolings or [f"layers:{state}" for state in range(blocks + 1)])
    pools = [(hidden_states(name, blocks), name == "cls") for name in names]
    last = SeveralPoolings(pools, transformer.get_embedding_dimension())
    return Encoder(modules=[transformer, last], device=str(encoder.device)).eval(), names
