"""What a transformer computes in, and what calibrates behind one in half precision."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast, get_args

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from bertflow.encoders.encoder import is_usual
from bertflow.encoders.kernels import pack_attention, pack_products
from bertflow.encoders.sharing import copied
from bertflow.errors import InputError

Precision = Literal["auto", "float32", "mixed", "fast"]

HALF = (torch.float16, torch.bfloat16)
# Below this width a product is too small for its type to matter.
LEAST_WIDTH = 256


def check_precision(name: str) -> Precision:
    """The precision of that name.

    Raises:
        InputError: There is none.
    """
    for known in get_args(Precision):
        if name == known:
            return cast("Precision", known)
    raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {name!r}")


def resolved_precision(
    precision: Precision, encoder: SentenceTransformer
) -> Literal["float32", "mixed", "fast"]:
    """What a precision means for an encoder on the device it is on.

    - "float32": every operation in the encoder's own type.
    - "mixed": products, attention and activations in bfloat16 (products are summed in float32);
      what blocks add up, and norms, in float32.
    - "fast": the whole transformer in bfloat16.
    - "auto": "mixed" where the device multiplies bfloat16 quickly and the encoder is wide enough to
      gain by it, else "float32".

    An encoder that was loaded in half precision, is no transformer, or has an `encode` of its own
    is left as it is.

    Raises:
        InputError: It is none of these.
    """
    check_precision(precision)
    if encoder.dtype != torch.float32 or not is_usual(encoder):
        return "float32"
    if precision != "auto":
        return precision
    transformer: Any = encoder[0]
    wide = transformer.get_embedding_dimension() >= LEAST_WIDTH
    return "mixed" if wide and multiplies_bfloat16(encoder.device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has units for products of bfloat16 matrices."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Processors that only emulate the type are slower with it than with float32.
    supported = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return device.type == "cpu" and bool(supported())


def in_precision(encoder: SentenceTransformer, kind: str) -> SentenceTransformer:
    """The encoder with another transformer; all that is not cast is shared with it."""
    model: SentenceTransformer
    transformer: Any
    model, transformer = _shallow(encoder), _shallow(encoder[0])
    model._modules[next(iter(model._modules))] = transformer
    if kind == "fast":
        transformer.model = copied(transformer.model, {}).bfloat16()
    else:
        transformer.model = copied(
            transformer.model, {id(weight): weight for weight in transformer.model.parameters()}
        )
        for module in transformer.model.modules():
            if isinstance(module, nn.Linear):
                for name, weight in list(module.named_parameters(recurse=False)):
                    halved = nn.Parameter(weight.detach().bfloat16(), requires_grad=False)
                    setattr(module, name, halved)
    pack_attention(transformer.model)
    pack_products(transformer.model)
    return model


def _shallow(module: Any) -> Any:
    """A module whose submodules can be replaced without replacing them in the first."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def raised(value: Any) -> Any:
    """States in half precision raised: what pools them sums over tokens and layers."""
    if isinstance(value, tuple):
        return tuple(raised(part) for part in value)
    if isinstance(value, Tensor) and value.dtype in HALF:
        return value.float()
    return value


def raise_input(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Cast the sentence vector to the type of a calibrating module's weights; a pre-hook."""
    features: dict[str, Any] = arguments[0]
    x = features["sentence_embedding"]
    weight = next(module.parameters(), None)
    if weight is not None:
        features["sentence_embedding"] = x.to(weight.dtype)
    elif x.dtype in HALF:
        features["sentence_embedding"] = x.float()


@contextmanager
def kept_from_half(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo what turns the weights of modules into half precision while inside.

    sentence-transformers casts whatever follows an encoder to the encoder's type, and `half()` all
    of a model. Statistics do not survive that: a mean may be far larger than what it leaves.
    """
    owners = [part for module in modules for part in module.modules()]
    before = [
        (part, name, weight.data)
        for part in owners
        for name, weight in part._parameters.items()
        if weight is not None
    ]
    yield
    for part, name, values in before:
        weight = part._parameters[name]
        if weight is not None and weight.dtype in HALF:
            weight.data = values.to(weight.device)
