"""Descriptions of an encoder: its settings, its origin, and all that its vectors depend on."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling
from sentence_transformers.util import load_file_path

import bertflow
from bertflow.calibrators.readme import CARD
from bertflow.encoders.encoder import config_of, prompt_of
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.probe import fingerprint, probed
from bertflow.errors import InputError
from bertflow.io.reading import hub_answers

LIBRARIES = ("torch", "transformers", "sentence-transformers", "scikit-learn", "numpy")
version = cache(metadata.version)  # Looking one up takes as long as encoding a sentence.
# Settings of a model that its vectors do not depend on, or that are described elsewhere.
APART = ("_name_or_path", "architectures", "dtype", "transformers_version")
# The beginning of a card with metadata; the hub's client complains about cards without.
METADATA = re.compile(r"\s*---[ \t]*\r?\n")


def describe_encoder(encoder: SentenceTransformer) -> dict[str, Any]:
    """Describe an encoder by its name, settings and a SHA-256 of all weights, for people."""
    digest = hashlib.sha256()
    for name, tensor in encoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return {**describe_settings(encoder), "weights": digest.hexdigest()}


def vocabulary_hash(encoder: SentenceTransformer) -> str | None:
    """A SHA-256 of the tokens and their numbers; None where the tokenizer does not tell them."""
    get_vocab = getattr(getattr(encoder[0], "tokenizer", None), "get_vocab", None)
    return _sha256(json.dumps(get_vocab(), sort_keys=True)) if callable(get_vocab) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
    limit = encoder.max_seq_length
    return {
        "name": getattr(config_of(encoder), "_name_or_path", None) or None,
        "modules": [type(module).__name__ for module in encoder],
        "pooling": pooling,
        "layers": layers,
        "max_length": None if limit is None or math.isinf(limit) else limit,
        "dtype": str(encoder.dtype).removeprefix("torch."),
        "prompt": prompt_of(encoder),
        "width": encoder.get_embedding_dimension() or 0,
    }


def describe_vectors(
    encoder: SentenceTransformer,
    precision: str = "float32",
    description: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe all that an encoder's vectors depend on, tokenizer, settings and versions, too.

    Nothing else has its description. `description` is what `describe_encoder` gives, which is for
    people. An InputError says that the tokenizer cannot be described.
    """
    modules = json.dumps([_module(module) for module in encoder], sort_keys=True, default=str)
    facts = describe_encoder(encoder) if description is None else description
    return {
        # The probe's vectors show other changes: hooks, activations, constants of modules.
        "probe": fingerprint(probed(encoder)),
        "encoder": {name: value for name, value in facts.items() if name != "name"},
        "precision": precision,
        "modules": _sha256(modules),
        "versions": {name: version(name) for name in ("transformers", "sentence-transformers")},
    }


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
        learned = module.calibrator._tensors().items()
        facts["role"] = module.role
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
    backend = getattr(tokenizer, "backend_tokenizer", None) or tokenizer
    if hasattr(backend, "to_str"):
        text = backend.to_str()
        # Truncation and padding come first; each call sets them.
        _, mark, rest = text.partition('"added_tokens"')
        content = {"sha256": _sha256(rest if mark else text)}
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
    return {"bertflow": bertflow.__version__, **{name: version(name) for name in LIBRARIES}}


def origin_of(encoder: SentenceTransformer) -> dict[str, str]:
    """Where an encoder comes from, as far as that is known.

    "base_model" and "revision" are its name and commit on the hub, for which no folder is taken;
    "license" is its licence, and "license_from" says where that was found.
    """
    origin: dict[str, str] = {}
    data, commit = encoder.model_card_data, getattr(config_of(encoder), "_commit_hash", None)
    # `load_encoder` notes what came from the hub; sentence-transformers asks the hub before.
    if isinstance(data.base_model, str):
        origin = {"base_model": data.base_model, **({"revision": commit} if commit else {})}
    licence, source = data.license, "its file or its owner"
    if not licence:
        licence, source = _licence_in_card(encoder, origin), "its card"
    if licence:
        origin |= {"license": licence.strip().lower(), "license_from": source}
    return origin


def _licence_in_card(encoder: SentenceTransformer, origin: Mapping[str, str]) -> str | None:
    """The licence in the card that an encoder was loaded with, the hub's, or its folder's."""
    from huggingface_hub import ModelCard

    with suppress(Exception):  # There may be no card, and anyone may have written it.
        text = getattr(encoder, "_model_card_text", None)
        if not text and "base_model" in origin:
            where: Any = {"revision": origin.get("revision"), "local_files_only": not hub_answers()}
            path = load_file_path(origin["base_model"], CARD, **where)
            text = Path(path or "").read_text(encoding="utf-8")
        elif not text:
            text = (Path(config_of(encoder)._name_or_path) / CARD).read_text(encoding="utf-8")
        if METADATA.match(text):
            data: Any = ModelCard(text, ignore_metadata_errors=True).data
            return data.license if isinstance(data.license, str) else None
    return None
