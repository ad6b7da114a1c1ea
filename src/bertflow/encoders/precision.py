"""The precision of a transformer, kernels for a processor, and calibration in float32."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import GELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bertflow.encoders.encoder import is_usual, with_modules
from bertflow.errors import check_choice

Precision = Literal["auto", "float32", "mixed", "fast"]

HALF = (torch.float16, torch.bfloat16)
# Below this width a product is too small for its type to matter.
LEAST_WIDTH = 256
PACKED_ATTENTION = "bertflow_packed"
# The kernel multiplies tiles of so many rows.
TILE = 16
# Laid-out weights take memory a second time, so a model with more in its products has none.
MOST_WEIGHTS = 2**28


def resolved_precision(
    precision: Precision, encoder: SentenceTransformer
) -> Literal["float32", "mixed", "fast"]:
    """The precision in which an encoder computes on its device; an InputError for any other.

    - "float32": every operation in the encoder's own type.
    - "mixed": products, attention and activations in bfloat16 (products are summed in float32);
      what blocks add up, and norms, in float32.
    - "fast": the whole transformer in bfloat16.
    - "auto": "mixed" where the device multiplies bfloat16 quickly and the encoder is wide enough.

    One that was loaded in half precision, or is no usual transformer, is left as it is.
    """
    check_choice("precision", precision, get_args(Precision))
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
    """A copy of the encoder in another precision; weights that are not cast are shared with it."""
    transformer = with_modules(encoder[0], encoder[0]._modules)
    first = next(iter(encoder._modules))
    model: SentenceTransformer = with_modules(encoder, {**encoder._modules, first: transformer})
    if kind == "fast":
        transformer.model = copy.deepcopy(transformer.model).bfloat16()
    else:
        shared = {id(weight): weight for weight in transformer.model.parameters()}
        transformer.model = copy.deepcopy(transformer.model, shared)
        for module in transformer.model.modules():
            if isinstance(module, nn.Linear):
                for name, weight in list(module.named_parameters(recurse=False)):
                    halved = nn.Parameter(weight.detach().bfloat16(), requires_grad=False)
                    setattr(module, name, halved)
    pack_attention(transformer.model)
    pack_products(transformer.model)
    return model


def raised(value: Any) -> Any:
    """States in float32 instead of half precision, because pooling sums over tokens and layers."""
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


def raise_inputs(module: Any) -> None:
    """Let a calibrating module, and each route of it, raise what comes in."""
    routes = getattr(module, "sub_modules", {}).values()
    for head in {module, *(route[0] for route in routes)}:
        head.register_forward_pre_hook(raise_input)


@contextmanager
def kept_from_half(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keep weights of calibrating modules in float32, whatever casts the model inside.

    sentence-transformers casts modules to the encoder's type, and `half()` casts all of a model.
    Statistics would lose their digits: a mean may be far larger than the differences from it.
    """
    before = [(weight, weight.data) for module in modules for weight in module.parameters()]
    yield
    for weight, values in before:
        if weight.dtype in HALF:
            weight.data = values.to(weight.device)


# Kernels for a processor.


def pack_attention(model: Any) -> None:
    """Let a transformer on a CPU attend to several short sentences at once, in half the time.

    Models with masks of their own, or without PyTorch's attention, stay as they are.
    """
    config = getattr(model, "config", None)
    module = sys.modules.get(type(model).__module__)
    if (
        getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(module, "ALL_ATTENTION_FUNCTIONS", None) is ALL_ATTENTION_FUNCTIONS
        and next(model.parameters()).device.type == "cpu"
    ):
        AttentionInterface.register(PACKED_ATTENTION, packed_attention)
        AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
        model.set_attn_implementation(PACKED_ATTENTION)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' "sdpa" computes it, with short whole sentences packed together.

    Query, key and value have shape (N, heads, L, D), the result (N, L, heads, D). g sentences of L
    tokens, L below a tile, are multiplied as one of g L tokens; a mask keeps each to itself.
    """
    count, heads, length, width = query.shape
    together = -(-TILE // length)
    causal = others.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if (
        attention_mask is not None
        or causal
        or length >= TILE
        or count < together
        or others.get("position_bias") is not None
        or not query.shape == key.shape == value.shape
    ):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    whole = count // together * together
    mask = _own_sentence_only(together, length, query.dtype)
    q, k, v = (
        part[:whole]
        .transpose(1, 2)
        .reshape(whole // together, together * length, heads, width)
        .transpose(1, 2)
        for part in (query, key, value)
    )
    packed, _ = sdpa_attention_forward(module, q, k, v, mask, **{**others, "is_causal": False})
    out = packed.reshape(whole, length, heads, width)
    if whole < count:
        rest, _ = sdpa_attention_forward(
            module, query[whole:], key[whole:], value[whole:], None, **others
        )
        out = torch.cat([out, rest])
    return out, None


@lru_cache(maxsize=64)
def _own_sentence_only(together: int, length: int, dtype: torch.dtype) -> Tensor:
    """The mask to add to products of queries and keys: 0 within a sentence, else -infinity."""
    sentence = torch.arange(together * length) // length
    other = sentence[:, None] != sentence
    mask = torch.zeros(other.shape, dtype=dtype).masked_fill_(other, float("-inf"))
    return mask[None, None]


class PackedLinear(nn.Linear):
    """A linear layer in bfloat16 on a CPU, weights laid out once, with or without GELU behind it.

    GELU is taken of the sum, which is float32, before it is rounded.
    """

    def __init__(self, linear: nn.Linear, gelu: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self._behind = ("gelu", "none") if gelu else ("none", "")

    def forward(self, input: Tensor) -> Tensor:
        """The product, in bfloat16."""
        kind, how = self._behind
        image: Tensor = torch.ops.mkldnn._linear_pointwise(
            input.to(torch.bfloat16), self._packed, self.bias, kind, [], how
        )
        return image


def pack_products(model: Any) -> None:
    """Lay out a transformer's weights, which are bfloat16, once, in place, not at every call.

    Hooked layers stay as they are. So do large models, for their memory, and other devices.
    """
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and not _is_hooked(child)
    ]
    if (
        not layers
        or any(child.weight.device.type != "cpu" for _, _, child in layers)
        or sum(child.weight.numel() for _, _, child in layers) > MOST_WEIGHTS
        or not _has_packed_products()
    ):
        return
    # A layer in two places stays one.
    packed: dict[tuple[int, bool], PackedLinear] = {}
    for parent, name, child in layers:
        gelu = _has_gelu_behind(parent, name)
        key = (id(child), gelu)
        if key not in packed:
            packed[key] = PackedLinear(child, gelu)
        setattr(parent, name, packed[key])
        if gelu:
            parent.intermediate_act_fn = nn.Identity()


def _is_hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or hasattr(module, "parametrizations")
    )


def _has_gelu_behind(parent: nn.Module, name: str) -> bool:
    """Whether an exact GELU follows a layer, as in transformers' BERT and its relatives."""
    return (
        type(parent).__module__.startswith("transformers.models.")
        and type(parent).__name__.endswith("Intermediate")
        and [child for child, _ in parent.named_children()] == ["dense", "intermediate_act_fn"]
        and name == "dense"
        and isinstance(parent.intermediate_act_fn, GELUActivation)
        and not _is_hooked(parent)
    )


def _has_packed_products() -> bool:
    """Whether PyTorch has the product here that `torch.compile` takes on a CPU."""
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return False
    library = torch.ops.mkldnn
    # ARM's library has no product with GELU behind it, and is quicker by itself.
    return bool(library._is_mkldnn_bf16_supported() and not library._is_mkldnn_acl_supported())
