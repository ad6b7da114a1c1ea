"""Descriptions of an encoder: its settings, its origin, and all that its vectors depend on."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling
from sentence_transformers.util import load_file_path

import bertflow
from bertflow.calibrators.readme import CARD
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.probe import fingerprint, probed
from bertflow.errors import InputError
from bertflow.io.reading import hub_answers

# Settings of a model that its vectors do not depend on, or that are described elsewhere.
APART = ("_name_or_path", "architectures", "dtype", "transformers_version")
LARGEST_CARD = 10**6
# The beginning of a card with metadata; the hub's client complains about cards without.
METADATA = re.compile(r"\s*---[ \t]*\r?\n")
COMMIT = re.compile(r"[0-9a-f]{40}")


def describe_encoder(encoder: SentenceTransformer) -> dict[str, Any]:
    """Describe an encoder such that two that give the same vectors have the same description.

    It has name, modules, pooling, averaged hidden states (None if its own), maximum length, data
    type, prompt, width and a SHA-256 of all weights.
    """
    digest = hashlib.sha256()
    for name, tensor in encoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return {**describe_settings(encoder), "weights": digest.hexdigest()}


def vocabulary_hash(encoder: SentenceTransformer) -> str | None:
    """A SHA-256 of the tokens and their numbers; None where the tokenizer does not tell them.

    It stays the same when an encoder is saved and loaded again.
    """
    get_vocab = getattr(getattr(encoder[0], "tokenizer", None), "get_vocab", None)
    if not callable(get_vocab):
        return None
    return hashlib.sha256(json.dumps(get_vocab(), sort_keys=True).encode()).hexdigest()


def describe_settings(encoder: SentenceTransformer) -> dict[str, Any]:
    """The description without the weights, which takes no time."""
    pooling, layers = None, None
    for module in encoder:
        if isinstance(module, Pooling):
            mode = module.pooling_mode
            pooling = mode if isinstance(mode, str) else "+".join(mode)
        if isinstance(module, WeightedLayerPooling):
            used = module.layer_weights.nonzero().flatten().tolist()
            layers = [module.layer_start + int(layer) for layer in used]
    config = getattr(getattr(encoder[0], "model", None), "config", None)
    limit = encoder.max_seq_length
    return {
        "name": getattr(config, "_name_or_path", None) or None,
        "modules": [type(module).__name__ for module in encoder],
        "pooling": pooling,
        "layers": layers,
        "max_length": None if limit is None or math.isinf(limit) else limit,
        "dtype": str(encoder.dtype).removeprefix("torch."),
        "prompt": encoder.prompts.get(encoder.default_prompt_name or "") or None,
        "width": min(encoder.get_embedding_dimension() or 0, encoder.truncate_dim or 1 << 30),
    }


def describe_vectors(
    encoder: SentenceTransformer,
    precision: str = "float32",
    description: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe all that an encoder's vectors depend on, so that nothing else has its description.

    `describe_encoder` is for people. This tells apart more: tokenizers, settings of modules, and
    versions of the libraries.

    `description` is that of `describe_encoder`, if it is known: reading all weights takes a while.

    Raises:
        InputError: The tokenizer cannot be described.
    """
    modules = json.dumps([_module(module) for module in encoder], sort_keys=True, default=str)
    facts = describe_encoder(encoder) if description is None else description
    return {
        # The probe's vectors show other changes: hooks, activations, constants of modules.
        "probe": fingerprint(probed(encoder)),
        "encoder": {name: value for name, value in facts.items() if name != "name"},
        "precision": precision,
        "modules": hashlib.sha256(modules.encode()).hexdigest(),
        "versions": _versions(),
    }


@cache  # Looking versions up takes as long as encoding a sentence.
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("transformers", "sentence-transformers")}


def _module(module: Any) -> dict[str, Any]:
    """The settings of a module, its weights apart."""
    config: Any = getattr(getattr(module, "model", None), "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    facts: dict[str, Any] = {
        "kind": f"{type(module).__module__}.{type(module).__qualname__}",
        "settings": module.get_config_dict() if hasattr(module, "get_config_dict") else None,
        "model": {name: value for name, value in settings.items() if name not in APART},
        "lower": getattr(module, "do_lower_case", None),
    }
    if isinstance(module, CalibratorModule):
        learned = module.calibrator._learned().items()
        facts["calibrator"] = {
            "arguments": {k: repr(v) for k, v in module.calibrator.get_params(deep=False).items()},
            "learned": {
                name: hashlib.sha256(tensor.detach().cpu().numpy().tobytes()).hexdigest()
                for name, tensor in learned
            },
        }
    if (tokenizer := getattr(module, "tokenizer", None)) is not None:
        facts["tokenizer"] = _tokenizer(tokenizer)
    return facts


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None and hasattr(tokenizer, "to_str"):
        backend = tokenizer
    if backend is not None:
        text = backend.to_str()
        # Truncation and padding come first; each call sets them.
        _, mark, rest = text.partition('"added_tokens"')
        content = {"sha256": hashlib.sha256((rest if mark else text).encode()).hexdigest()}
    elif callable(getattr(tokenizer, "get_vocab", None)):
        content = {"vocabulary": tokenizer.get_vocab()}
        if hasattr(tokenizer, "get_config_dict"):
            content["settings"] = tokenizer.get_config_dict()
    else:
        raise InputError(f"a {type(tokenizer).__name__} cannot be described")
    sides = {name: getattr(tokenizer, name, None) for name in ("padding_side", "truncation_side")}
    return {"kind": type(tokenizer).__name__, "content": content, **sides}


def library_versions() -> dict[str, str]:
    """Versions of the packages that a result depends on."""
    names = ["torch", "transformers", "sentence-transformers", "scikit-learn", "numpy"]
    return {"bertflow": bertflow.__version__, **{name: version(name) for name in names}}


def note_hub(model: Any, name: str, revision: str | None) -> None:
    """Note in an encoder that has just come from the hub its name and commit there."""
    model._hub_name = name
    with suppress(Exception):  # Without the commit the name is still right.
        for file in ("config.json", "modules.json"):
            where: dict[str, Any] = {"revision": revision, "local_files_only": True}
            home = Path(load_file_path(name, file, **where) or "").parent.name
            if COMMIT.fullmatch(home):
                model._hub_commit = home


def origin_of(encoder: SentenceTransformer) -> dict[str, str]:
    """Where an encoder comes from: its name on the hub and its licence.

    As far as they are known: "base_model" and "revision", its name and commit on the hub;
    "license", and where that was found in "license_from". The name counts only if the encoder was
    loaded from there, so that no folder is taken for a name on the hub.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from torch import nn
        >>> origin_of(SentenceTransformer(modules=[nn.Identity()], device="cpu"))
        {}
    """
    origin: dict[str, str] = {}
    # sentence-transformers has asked the hub before it calls a name a base model.
    name = getattr(encoder, "_hub_name", None) or encoder.model_card_data.base_model
    if isinstance(name, str):
        origin["base_model"] = name
        if commit := getattr(encoder, "_hub_commit", None):
            origin["revision"] = commit
    licence, source = encoder.model_card_data.license, "its file or its owner"
    if not licence:
        licence, source = _licence_in_card(_card(encoder, origin)), "its card"
    if licence:
        origin |= {"license": licence.strip().lower(), "license_from": source}
    return origin


def _card(encoder: SentenceTransformer, origin: Mapping[str, str]) -> str:
    """An encoder's card: the one it was loaded with, the hub's, or the one in its folder."""
    if text := getattr(encoder, "_model_card_text", None):
        return str(text)
    if "base_model" in origin:
        where: dict[str, Any] = {
            "revision": origin.get("revision"),
            "local_files_only": not hub_answers(),
        }
        with suppress(Exception):  # The hub may have no card, or not answer.
            return read_card(Path(load_file_path(origin["base_model"], CARD, **where) or ""))
        return ""
    name = getattr(getattr(getattr(encoder[0], "model", None), "config", None), "_name_or_path", "")
    return read_card(Path(name) / CARD) if isinstance(name, str) and name else ""


def _licence_in_card(text: str) -> str | None:
    from huggingface_hub import ModelCard

    if not METADATA.match(text):
        return None
    with suppress(Exception):  # Anyone may have written the card.
        data: Any = ModelCard(text, ignore_metadata_errors=True).data
        return data.license if isinstance(data.license, str) else None
    return None


def read_card(path: Path) -> str:
    """The text of a card; empty if there is none, or a file too large for one."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= LARGEST_CARD:
            return path.read_text(encoding="utf-8")
    return ""
