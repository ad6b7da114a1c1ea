"""What makes two encoders the same: pooling, length, type and every weight."""

from __future__ import annotations

import hashlib
import math
from importlib.metadata import version
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

import bertflow


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
