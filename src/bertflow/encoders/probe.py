"""Probes: whether an encoder is one function of the text on every way to its vectors.

A few sentences are encoded in each way that users have: alone, in a batch, by bertflow's own
encoding, and by a saved copy in plain sentence-transformers. An encoder that differs is refused.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.checks import BUILT_IN, quietly, readable
from bertflow.encoders.encoder import config_of, encoder_of, own_part
from bertflow.encoders.precision import HALF
from bertflow.errors import InputError, ModelError, check_number
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

SENTENCES = (
    "dog",
    "A short sentence to compare the hidden states with.",
    "Two men in dark coats walk down a long street, while it rains, to a house with 12 rooms.",
)
# The probe has a sentence that is cut, unless the encoder's limit would make it long and slow.
SHORT_LIMIT = 128
# The largest difference of two ways to a vector, as a part of its length: in float32 on a
# processor, on a GPU, and in half precision.
EXACT, GPU, ROUGH = 1e-4, 0.01, 0.1
# A tokenizer with fewer tokens than a tenth of the model's embeddings lacks files.
LEAST_VOCABULARY = 10
# The fingerprint has so many projections of each vector, in steps of a thousandth.
PROJECTIONS, STEPS = 4, 1000
# Classes of sentence-transformers whose vectors are not for cosine similarity.
OTHER_KINDS = ("sparse_encoder", "cross_encoder", "multi_vector_encoder")


def check_encoder(
    encoder: SentenceTransformer, name: str | None = None, alone: Array | None = None
) -> Array:
    """Refuse an encoder that fails, or gives a sentence another vector in a batch than alone.

    `name` is for messages, and `alone` is what is returned, if that is known: `probed(encoder)`.

    Raises:
        InputError: It is no SentenceTransformer with dense vectors, or its maximum length is wrong.
        ModelError: A library fails on it, its tokenizer is another's, or the vectors differ.
    """
    modules = list(encoder) if isinstance(encoder, SentenceTransformer) else []
    for kind in map(type, [encoder, *modules]):
        if not modules or any(part in kind.__module__ for part in OTHER_KINDS):
            raise InputError(
                f"expected a SentenceTransformer with dense vectors, got {kind.__name__}; "
                "load_encoder gives one"
            )
    name = name or name_of(encoder)
    _check_tokens(encoder, name)
    tokenizer: Any = getattr(encoder[0], "tokenizer", None)
    if callable(tokenizer) and hasattr(tokenizer, "num_special_tokens_to_add"):
        least, most = 1 + tokenizer.num_special_tokens_to_add(), positions(encoder[0]) or math.inf
        limit = f"max_seq_length of {name}"
        check_number(limit, encoder.max_seq_length, least, most, integer=True)
    bare = encoder_of(encoder)  # A calibrator would enlarge roundings.
    alone = probed(bare, name) if alone is None else alone
    if not np.isfinite(alone).all():
        raise ModelError(
            f"{name} gives vectors that are not finite in {encoder.dtype}; its weights are "
            "damaged, or too large for that type"
        )
    together = _vectors_of(bare, probe_texts(bare), name)
    if (off := difference(alone, together)) > tolerance(bare):
        raise ModelError(
            f"{name} gives a sentence another vector in a batch than alone (they differ by "
            f"{off:.0%} of its length), so no calibrator fits both: it does not mask padding, "
            "pads on the left, is quantized, or random; use another encoder"
        )
    return alone if bare is encoder else probed(encoder, name)


def name_of(encoder: SentenceTransformer) -> str:
    """The name of an encoder in messages."""
    name = getattr(config_of(encoder), "_name_or_path", None)
    return name or f"the {type(encoder[0]).__name__} encoder"


def probe_texts(encoder: Any) -> list[str]:
    """The sentences of the probe: short, longer and, where that is cheap, one that is cut."""
    limit = getattr(encoder, "max_seq_length", None) or SHORT_LIMIT + 1
    long = [" ".join(SENTENCES[1:] * (1 + int(limit) // 20))] if limit <= SHORT_LIMIT else []
    return [*SENTENCES, *long]


def probed(encoder: SentenceTransformer, name: str | None = None) -> Array:
    """The vectors of the probe's sentences, each encoded alone, shape (n, D)."""
    name = name or name_of(encoder)
    return np.concatenate([_vectors_of(encoder, [text], name) for text in probe_texts(encoder)])


def fingerprint(alone: Array) -> list[int]:
    """A few numbers that change with the vectors of `probed`, but not with their rounding.

    They are the logarithm of each vector's length and projections of its direction, in thousandths.
    """
    # The sentence that is cut is left out: provenance has the maximum length already.
    alone = alone[: len(SENTENCES)]
    lengths = np.linalg.norm(alone, axis=1, keepdims=True).clip(1e-30)
    spread = np.random.default_rng(0).standard_normal((alone.shape[1], PROJECTIONS))
    numbers = np.hstack([np.log(lengths), (alone / lengths) @ spread])
    rounded: list[int] = np.rint(np.nan_to_num(numbers) * STEPS).astype(int).ravel().tolist()
    return rounded


def is_fingerprint_of(saved: Any, alone: Array, encoder: SentenceTransformer) -> bool:
    """Whether a saved fingerprint is that of an encoder's vectors, up to its type's roundings."""
    if saved is None:  # Earlier versions saved none.
        return True
    own = fingerprint(alone)
    if not isinstance(saved, list) or len(saved) != len(own) or {*map(type, saved)} != {int}:
        return False
    most = STEPS * (EXACT * 100 if tolerance(encoder) == EXACT else 2 * ROUGH)
    return bool(np.abs(np.subtract(saved, own)).max() <= most)


def check_own_encoding(
    encoder: SentenceTransformer, encode: Callable[[Sequence[str]], Array], *, exact: bool
) -> None:
    """Refuse an encoder to which bertflow's encoding, `exact` in its type, gives other vectors."""
    alone = check_encoder(encoder)
    name = name_of(encoder)
    with readable(lambda said: f"{name} cannot be encoded: {said}"):
        own = encode(probe_texts(encoder))
    if (off := difference(alone, own)) > (tolerance(encoder) if exact else ROUGH):
        raise ModelError(
            f"{name} is encoded otherwise in a corpus than by its own encode (they differ by "
            f"{off:.0%} of a vector's length); {'report it' if exact else 'use float32 precision'}"
        )


def tried_out(encoder: SentenceTransformer, *, sides: bool = False) -> Array:
    """As `check_encoder`, and refuse an encoder whose calibrated model would not be the same.

    Without `sides` the calibrator is fitted on the vectors of `encode` alone.
    """
    alone = check_encoder(encoder)
    declared, width = encoder.get_embedding_dimension(), alone.shape[1]
    if declared != width or width < 2:
        raise ModelError(
            f"the encoder gives vectors of {width} dimensions, expected at least 2 and as many as "
            f"it declares, {declared}; mend truncate_dim, or the config.json of its pooling"
        )
    if (own := own_part(encoder)) is not None:
        raise InputError(
            f"{type(encoder).__name__} has its own {own}, which the calibrated model would not "
            "have; say what it adds by prompts and default_prompt_name of a SentenceTransformer"
        )
    _rehearse(encoder)
    if not sides and any(hasattr(module, "sub_modules") for module in encoder):  # A Router.
        asked = [
            ask(probe_texts(encoder)) for ask in (encoder.encode_query, encoder.encode_document)
        ]
        if max(difference(alone, np.asarray(found)) for found in asked) > ROUGH:
            log.warning(
                "queries and documents are encoded on different routes; the calibrator is fitted "
                "on the vectors of encode, and fits only the route that it takes"
            )
    return alone


def _rehearse(encoder: SentenceTransformer) -> None:
    """Refuse an encoder that gives other vectors once it was saved and loaded again."""
    name = name_of(encoder)
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        size = sum(tensor.nbytes for tensor in encoder.state_dict().values())
        if shutil.disk_usage(folder).free < 2 * size:
            log.warning("%s is not tried out before the work: no room in %s", name, folder)
            return
        try:
            with readable(lambda said: f"{name} cannot be saved: {said}"):
                SentenceTransformer.save(encoder, folder, create_model_card=False)
            check_saved(Path(folder), encoder)
        except ModelError as error:
            raise ModelError(
                f"{name} is another model when it is saved and loaded again ({error}); merge or "
                "remove what was added to it, such as adapters, weight norm or quantization"
            ) from None


def check_saved(folder: Path, model: SentenceTransformer) -> None:
    """Refuse a saved model that plain sentence-transformers loads as another one than `model`."""
    # Only code that is not of the libraries needs trust.
    parts = [*model, getattr(model[0], "model", model[0])]
    own = not all(type(part).__module__.startswith((BUILT_IN, "transformers.")) for part in parts)
    with quietly(), readable(lambda said: f"plain sentence-transformers cannot load it: {said}"):
        try:
            copy = SentenceTransformer(str(folder), device=str(model.device), trust_remote_code=own)
        except torch.OutOfMemoryError:
            log.warning("%s is not loaded again to compare: no memory for a second one", folder)
            return
    if copy.max_seq_length != model.max_seq_length:
        raise ModelError(
            f"the saved model cuts at {copy.max_seq_length} tokens, the one in memory at "
            f"{model.max_seq_length}; set its max_seq_length to what both can have"
        )
    if any(hasattr(module, "sub_modules") for module in model):  # A Router.
        quiet: Any = {"show_progress_bar": False}
        asked = [np.asarray(one.encode_query(SENTENCES[1:], **quiet)) for one in (model, copy)]
        if (off := difference(*asked)) > tolerance(model):
            raise ModelError(f"the saved model gives queries other vectors, {off:.0%} apart")
    name, texts = name_of(model), probe_texts(model)
    # Alone is compared to alone, because a calibrator may enlarge roundings between the two ways.
    for batch in [*([text] for text in texts), texts]:
        off = difference(_vectors_of(model, batch, name), _vectors_of(copy, batch, name))
        if off > tolerance(model):
            raise ModelError(
                "the saved model gives other vectors than the model in memory (they differ by "
                f"{off:.0%} of a vector's length)"
            )


def difference(expected: Array, found: Array) -> float:
    """The largest distance of two vectors of a sentence, as a part of the expected one's length."""
    # Entries that are not finite in both count as equal.
    if expected.shape != found.shape:
        return np.inf
    both = ~np.isfinite(expected) & ~np.isfinite(found)
    expected, found = np.where(both, 0.0, expected), np.where(both, 0.0, found)
    lengths = np.linalg.norm(expected.astype(np.float64), axis=1).clip(1e-12)
    distances = np.linalg.norm(expected.astype(np.float64) - found, axis=1)
    return float(np.nan_to_num(distances / lengths, nan=np.inf).max())


def tolerance(encoder: SentenceTransformer) -> float:
    """How far two ways may differ for the type and device that an encoder computes in."""
    if encoder.dtype in HALF:
        return ROUGH
    return EXACT if encoder.device.type == "cpu" else GPU


@pinned()
def _vectors_of(encoder: SentenceTransformer, texts: Sequence[str], name: str) -> Array:
    with readable(lambda said: f"{name} cannot encode a sentence: {said}; use another encoder"):
        found = encoder.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
        vectors = np.asarray(found, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise ValueError(f"of {len(texts)} it gives vectors of shape {vectors.shape}")
        return vectors


def positions(module: Any) -> int | None:
    """How many tokens a transformer has positions for; None if it has no table of them."""
    model = getattr(module, "model", None)
    config: Any = getattr(model, "config", None)
    settings = config.get_text_config() if hasattr(config, "get_text_config") else None
    count = getattr(settings, "max_position_embeddings", None)
    if not isinstance(count, int) or count <= 0:
        return None
    # RoBERTa's kind counts positions from after its padding index.
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return count - (0 if padding is None else int(padding) + 1)


def _check_tokens(encoder: SentenceTransformer, name: str) -> None:
    """Refuse a tokenizer that knows more tokens than the model has embeddings, or hardly any."""
    module: Any
    for module in encoder.modules():
        try:
            rows = module.model.get_input_embeddings().num_embeddings
            count = 1 + max(module.tokenizer.get_vocab().values(), default=-1)
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if not rows / LEAST_VOCABULARY <= count <= rows:
            raise ModelError(
                f"the tokenizer of {name} has {count} tokens, but its model has embeddings for "
                f"{rows}; get the tokenizer's files again, or call resize_token_embeddings, and "
                "train the new ones"
            )
