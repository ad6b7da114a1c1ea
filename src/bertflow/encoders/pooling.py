"""Sentence vectors from hidden states: poolings by name, and models cut to the needed blocks."""

from __future__ import annotations

import logging
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
from bertflow.encoders.probe import difference, probe_texts, probed, tolerance
from bertflow.errors import InputError, ModelError, shown, unknown
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

RECIPES = ("cls", "mean", "last2avg", "first-last-avg", "embed-last-avg", "layers:1,12")


def parse_pooling(pooling: str) -> tuple[int, ...] | None:
    """The layers that a recipe spells out, or None for a recipe by name."""
    if not isinstance(pooling, str):
        raise InputError(f"pooling must be one of {', '.join(RECIPES)}, got {shown(pooling)}")
    if pooling in RECIPES[:-1]:
        return None
    kind, _, numbers = pooling.partition(":")
    try:
        if kind != "layers":
            raise ValueError
        layers = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        raise unknown("pooling", pooling, RECIPES) from None
    if len(set(layers)) < len(layers) or min(layers) < 0:
        raise InputError(f"pooling {pooling!r} must name different hidden states from 0 up")
    return layers


def hidden_states(pooling: str, blocks: int) -> tuple[int, ...]:
    """The hidden states that a recipe averages, for an encoder with so many blocks.

    `pooling` is as in `load_encoder`. Indices rise, 0 being the embeddings and L the last block.

    Raises:
        InputError: The recipe is unknown, or asks for a layer the encoder does not have.

    Example:
        >>> hidden_states("last2avg", 12), hidden_states("layers:0,6", 12)
        ((11, 12), (0, 6))
    """
    layers = parse_pooling(pooling)
    if layers is None:
        layers = {
            "cls": (blocks,),
            "mean": (blocks,),
            "last2avg": (blocks - 1, blocks),
            "first-last-avg": (1, blocks),
            "embed-last-avg": (0, blocks),
        }[pooling]
    if max(layers) > blocks:
        raise InputError(
            f"pooling {pooling!r} asks for hidden state {max(layers)}, but the encoder has "
            f"{blocks} blocks (hidden states 0 to {blocks})"
        )
    if pooling == "last2avg" and blocks < 2:
        raise InputError(f"pooling 'last2avg' needs 2 blocks, but the encoder has {blocks}")
    return tuple(sorted(set(layers)))


def pooled(
    transformer: Transformer, pooling: str, name: str, device: str | None
) -> tuple[SentenceTransformer, Array]:
    """The encoder of a recipe, cut to the blocks that it needs where that changes nothing.

    The probe's vectors come with it, computed on the processor.
    """
    states = [_hidden_states(transformer, text, name) for text in probe_texts(transformer)]
    try:
        layers = hidden_states(pooling, len(states[0]) - 1)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    name = f"{name} with {pooling}"
    if len({one[layer].shape[-1] for one in states for layer in layers}) > 1:
        widths = ", ".join(str(states[0][layer].shape[-1]) for layer in layers)
        raise ModelError(
            f"{name} would average hidden states of different widths ({widths}); take one, such as "
            "pooling mean"
        )
    first = pooling == "cls"
    wanted = np.stack(
        [
            np.mean([one[n][0] if first else one[n].mean(axis=0) for n in layers], axis=0)
            for one in states
        ]
    )
    total = len(states[0]) - 1
    cut = Cut(transformer.model, total)
    off, said = np.inf, ""
    for blocks in cut.choices(layers[-1]):
        cut.keep(blocks)
        if blocks < total and not cut.can_be_saved():
            continue
        modules = [transformer, *_pools(transformer, layers, blocks, first)]
        model = Encoder(modules=modules, device="cpu")
        try:
            alone = probed(model, name)
            off = difference(wanted, alone)
        except ModelError as error:  # A model that cannot be cut may still work whole.
            said = str(error)
            continue
        if off <= tolerance(model):
            log.info("kept %d of %d blocks", blocks, total)
            return Encoder(modules=modules, device=device).eval(), alone
    if np.isinf(off):
        raise ModelError(f"{said} or another pooling")
    if _is_decoder(transformer.model):
        raise ModelError(
            f"{name} is an encoder-decoder ({type(transformer.model).__name__}), of which "
            "sentence-transformers would pool the decoder; use another encoder"
        )
    raise ModelError(
        f"{name} is pooled otherwise by sentence-transformers (off by {off:.0%} of a vector's "
        f"length) than its hidden states {', '.join(map(str, layers))}; use another pooling"
    )


def cut_to(transformer: Transformer, pooling: str, blocks: int, device: str | None) -> Encoder:
    """The encoder that `pooled` gave before, of which this number of blocks is known."""
    config: Any = transformer.model.config
    total = config.get_text_config().num_hidden_layers
    layers = hidden_states(pooling, total)
    Cut(transformer.model, total).keep(blocks)
    pools = _pools(transformer, layers, blocks, pooling == "cls")
    return Encoder(modules=[transformer, *pools], device=device).eval()


@pinned()
@torch.no_grad()
def _hidden_states(transformer: Transformer, text: str, name: str) -> list[Array]:
    """All hidden states of a text, each of shape (tokens, D), without sentence-transformers."""
    model: Any = transformer.eval().model
    reader = model.get_encoder() if _is_decoder(model) else model
    with readable(lambda said: f"{name} cannot encode a sentence: {said}; use another encoder"):
        features = transformer.preprocess([text])
        inputs = {key: one for key, one in features.items() if isinstance(one, torch.Tensor)}
        taken = signature(reader.forward).parameters
        if "input_ids" in taken:  # An adapter's forward has no names.
            inputs = {key: one for key, one in inputs.items() if key in taken}
        found = reader(**inputs, output_hidden_states=True, return_dict=True)
        # A model without blocks has only its output.
        states = getattr(found, "hidden_states", None) or (found.last_hidden_state,)
        return [state[0].float().numpy() for state in states]


def _is_decoder(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False)) and hasattr(model, "decoder")


def _pools(
    transformer: Transformer, layers: Sequence[int], blocks: int, first: bool
) -> list[nn.Module]:
    """The modules that average hidden states of a model with so many blocks."""
    width = transformer.get_embedding_dimension()
    several = tuple(layers) != (blocks,)
    # Parts of a model may have configurations of their own, as T5's encoder has.
    for module in transformer.model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "output_hidden_states"):
            config.output_hidden_states = several
    pooling = Pooling(width, pooling_mode="cls" if first else "mean")
    if not several:
        return [pooling]
    weights = torch.zeros(blocks + 1 - layers[0])
    weights[[layer - layers[0] for layer in layers]] = 1.0
    mix = WeightedLayerPooling(
        width,
        num_hidden_layers=blocks,
        layer_start=layers[0],
        layer_weights=nn.Parameter(weights, requires_grad=False),
    )
    return [mix, pooling]


class Cut:
    """The blocks of a transformers model; the last ones can be left out and put back.

    Models like GPT and Llama normalise after their last block, whichever that is. Cut right after
    block i, their hidden state i would change, so they need one block more. Only trying tells, with
    the numbers of `choices` in turn.
    """

    def __init__(self, model: nn.Module, total: int) -> None:
        self.total = total
        self._configs: list[Any] = []
        for module in model.modules():
            config = getattr(module, "config", None)
            if hasattr(config, "get_text_config"):
                config = config.get_text_config()  # type: ignore[union-attr]
            known = any(config is other for other in self._configs)
            if getattr(config, "num_hidden_layers", None) == total and not known:
                self._configs.append(config)
        self._blocks = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == total
        ]
        self._lists = [
            {
                key: value
                for key, value in config.to_dict().items()
                if isinstance(value, list) and len(value) == total
            }
            for config in self._configs
        ]

    def choices(self, top: int) -> list[int]:
        """The numbers of blocks to try if hidden state `top` is the highest that is needed."""
        if not self._blocks or not self._configs:
            return [self.total]
        least = max(top, 1)
        return sorted({min(least, self.total), min(least + 1, self.total), self.total})

    def keep(self, count: int) -> None:
        """Keep the first blocks, in place; `total` puts all of them back."""
        for parent, name, full in self._blocks:
            setattr(parent, name, full if count == self.total else full[:count])
        for config, lists in zip(self._configs, self._lists, strict=True):
            for key, value in lists.items():
                setattr(config, key, value[:count])
            config.num_hidden_layers = count

    def can_be_saved(self) -> bool:
        """Whether the configuration can be read again; some refuse a number of blocks."""
        try:
            for config in self._configs:
                type(config).from_dict(config.to_dict())
        except Exception:  # Whatever it says, the model is not cut there.
            return False
        return True


class SeveralPoolings(nn.Module):
    r"""Sentence vectors of several poolings side by side, from all hidden states.

    .. math:: s = \Big[\, \tfrac1{|L_1|} \sum_{l \in L_1} \operatorname{pool}_1(h_l) \;\Big|\;
        \tfrac1{|L_2|} \sum_{l \in L_2} \operatorname{pool}_2(h_l) \;\Big|\; \dots \Big]

    A pooling is the hidden states that it averages, 0 being the embeddings, and whether it takes
    the first token alone instead of the mean over tokens. `width` is that of a hidden state, D.
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
    encoder: SentenceTransformer, pools: Sequence[tuple[Sequence[int], bool]]
) -> SentenceTransformer:
    """An encoder with several poolings; its transformer must give all hidden states."""
    transformer: Any = encoder[0]
    last = SeveralPoolings(pools, transformer.get_embedding_dimension())
    return Encoder(modules=[transformer, last], device=str(encoder.device)).eval()
