"""What makes two encoders the same, and what their vectors depend on besides."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

import bertflow
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.probe import fingerprint, probed
from bertflow.errors import InputError

# Settings of a model that its vectors do not depend on, or that are described elsewhere.
APART = ("_name_or_path", "architectures", "dtype", "transformers_version")


def describe_encoder(encoder: SentenceTransformer) -> dict[str, Any]:
    """Describe an encoder such that two that give the same vectors have the same description.

    Args:
        encoder: Any SentenceTransformer.

    Returns:
        Its name, modules, pooling, averaged hidden states (None if its own), maximum length,
        data type, prompt, width and a SHA-256 of all its weights.
    """
    return {**describe_settings(encoder), "weights": _weights_digest(encoder)}


def describe_settings(encoder: SentenceTransformer) -> dict[str, Any]:
    """The same without the weights, which takes no time."""
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
    prompt = encoder.prompts.get(encoder.default_prompt_name or "") or None
    return {
        "name": getattr(config, "_name_or_path", None) or None,
        "modules": [type(module).__name__ for module in encoder],
        "pooling": pooling,
        "layers": layers,
        "max_length": None if limit is None or math.isinf(limit) else limit,
        "dtype": str(encoder.dtype).removeprefix("torch."),
        "prompt": prompt,
        "width": min(encoder.get_embedding_dimension() or 0, encoder.truncate_dim or 1 << 30),
    }


def describe_vectors(
    encoder: SentenceTransformer,
    precision: str = "float32",
    description: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe all that an encoder's vectors depend on, so that nothing else has its description.

    That is more than `describe_encoder` tells apart, which is for people: the tokenizer too, what
    modules are set to, and the versions of the libraries that run them.

    Args:
        encoder: Any SentenceTransformer.
        precision: What it computes in.
        description: As in `SentenceCache.opened`.
    """
    modules = json.dumps([_module(module) for module in encoder], sort_keys=True, default=str)
    encoder_facts = describe_encoder(encoder) if description is None else description
    return {
        # Whatever else changes the vectors: hooks, activations, constants of modules.
        "probe": fingerprint(probed(encoder)),
        "encoder": {name: value for name, value in encoder_facts.items() if name != "name"},
        "precision": precision,
        "modules": hashlib.sha256(modules.encode()).hexdigest(),
        "versions": _versions(),
    }


@cache
def _versions() -> dict[str, str]:
    """Of what runs encoders; to look them up takes as long as a sentence."""
    return {name: version(name) for name in ("transformers", "sentence-transformers")}


def _module(module: Any) -> dict[str, Any]:
    """What a module is set to, its weights apart."""
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
    tokenizer = getattr(module, "tokenizer", None)
    if tokenizer is not None:
        facts["tokenizer"] = _tokenizer(tokenizer)
    return facts


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None and hasattr(tokenizer, "to_str"):
        backend = tokenizer
    if backend is not None:
        text = backend.to_str()
        # What comes before is truncation and padding, which each call sets.
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
    """Versions of what a result depends on."""
    names = ["torch", "transformers", "sentence-transformers", "scikit-learn", "numpy"]
    return {"bertflow": bertflow.__version__, **{name: version(name) for name in names}}


def _weights_digest(encoder: SentenceTransformer) -> str:
    digest = hashlib.sha256()
    for name, tensor in encoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
