"""The SentenceTransformer that bertflow returns, its parts, and checks of its sentences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import unwrap
from itertools import count
from typing import Any, Literal, TypeAlias

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router, Transformer
from torch import nn
from transformers import PreTrainedModel

from bertflow.errors import InputError, unknown
from bertflow.process_state import pinned

# The side of a search that a text is on.
Role: TypeAlias = Literal["query", "document"]
# The names of each side's prompt, as sentence-transformers looks for them.
PROMPTS: Mapping[str, Sequence[str]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
# Names of the modules that calibrate begin with this; their place follows.
CALIBRATOR = "calibrator_"
# The methods that lead from text to vectors, and the packages whose hooks every model has.
METHODS = ("encode", "encode_query", "encode_document", "preprocess", "tokenize", "forward")
LIBRARIES = ("transformers.", "sentence_transformers.", "bertflow.", "torch.", "accelerate.")
# transformers' flag of a model whose hooks for hidden states are in place.
INSTALLED = "_output_capturing_hooks_installed"


class Encoder(SentenceTransformer):
    """A SentenceTransformer whose `encode` depends on nothing that the process has set.

    It takes a column of pandas, polars or Arrow as well as a list. Without a sentence it gives an
    array of shape (0, D), of the type that it gives otherwise.
    """

    @wraps(SentenceTransformer.encode)
    @pinned()
    def encode(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Vectors of sentences, as `SentenceTransformer.encode` gives them."""
        given = args[0] if args else kwargs.pop("sentences", kwargs.pop("inputs", None))
        if not isinstance(given, str | dict):
            given = list(_several(given))
            if not given:
                return super().encode(["a"], *args[1:], **kwargs)[:0]
            if not any(isinstance(one, dict) for one in given):  # Messages and other inputs.
                given = list(as_sentences(given))
        return super().encode(given, *args[1:], **kwargs)


def config_of(model: SentenceTransformer) -> Any:
    """Transformers' configuration of a model's first module; None if it is none of theirs."""
    return getattr(getattr(model[0], "model", None), "config", None)


def encoder_of(model: SentenceTransformer) -> SentenceTransformer:
    """A calibrated model's encoder, whose modules are the model's own; another model itself."""
    behind = calibrating(model)
    return part_of(model, [m for m in model if m not in behind]) if behind else model


def calibrating(model: SentenceTransformer) -> list[Any]:
    """The modules of a model that calibrate."""
    return [module for name, module in model._modules.items() if name.startswith(CALIBRATOR)]


def prompt_of(model: SentenceTransformer) -> str | None:
    """The text that a model puts before each sentence."""
    return model.prompts.get(model.default_prompt_name or "") or None


def with_modules(model: Any, modules: Mapping[str, Any]) -> Any:
    """A copy of a module with other submodules; each is the given one itself."""
    # A shallow copy is quick, and sets no device or type on modules that other threads use.
    twin = copy.copy(model)
    twin._modules = dict(modules)
    return twin


def part_of(model: SentenceTransformer, modules: Sequence[Any]) -> SentenceTransformer:
    """Some of a model's modules as a model, at their full width."""
    # The names stay: a digest of the weights contains them.
    chosen = {name: module for name, module in model._modules.items() if module in modules}
    part: SentenceTransformer = with_modules(model, chosen)
    part.truncate_dim = None
    return part


def side_of(model: SentenceTransformer, role: str) -> SentenceTransformer:
    """A model that encodes all text as `encode_query` or `encode_document` of the given one does.

    It has that side's prompt and, of a module with routes, that side's route; its modules are the
    model's own.
    """
    if role not in PROMPTS:
        raise unknown("role", role, PROMPTS)
    modules: dict[str, Any] = {}
    for name, module in model._modules.items():
        own: Any = getattr(module, "of_role", None)
        if (route := _route(module, role)) is not None:
            modules |= {f"{name}_{place}": one for place, one in enumerate(route)}
        else:
            modules[name] = module if own is None else own(role)
    side: SentenceTransformer = with_modules(model, modules)
    named = next((name for name in PROMPTS[role] if name in model.prompts), None)
    if named is not None:
        side.default_prompt_name = named
    return side


def _route(module: Any, role: str) -> Any:
    """The modules that text of a role takes through a Router; None of other modules."""
    if not isinstance(module, Router):
        return None
    mappings = module.route_mappings or {}
    keys = [(role, "text"), (role, None), (None, "text"), (None, None)]
    names = [*(mappings.get(key) for key in keys), role, "text", module.default_route]
    known: Any = module.sub_modules
    return next((known[name] for name in names if name in known), None)


def own_part(model: SentenceTransformer) -> str | None:
    """The name of a replaced method on the way to vectors, or "hooks": no setting would show it."""
    for name in METHODS:
        if _is_own(model, name) or any(name in vars(module) for module in model):
            return name
    for module in model.modules():
        if not _is_of_library(vars(module).get("forward")):
            return "forward"
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]:
            if not _is_of_library(hook):
                return "hooks"
    return None


def _is_of_library(function: Any) -> bool:
    return function is None or str(getattr(function, "__module__", "")).startswith(LIBRARIES)


def _is_own(model: SentenceTransformer, name: str) -> bool:
    """Whether a method is not the library's; a wrapper of the library's method does not count."""
    usual = unwrap(getattr(SentenceTransformer, name, None) or len)
    return name in vars(model) or unwrap(getattr(type(model), name, None) or len) is not usual


def is_usual(model: SentenceTransformer) -> bool:
    """Whether a model encodes as the library does, not by an `encode` or `forward` of its own."""
    own = _is_own(model, "encode") or _is_own(model, "forward")
    return not own and isinstance(model[0], Transformer)


class _Hook:
    """transformers' hook that keeps a hidden state; a copy of it does nothing."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return None if self.function is None else self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()


class _Installed:
    """True; a copy of it is False, so that transformers installs hooks of its own in a copy."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.kind, self.config = type(model), model.config

    def __deepcopy__(self, memo: Any) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _not_installed, (self.kind, self.config)


def _not_installed(kind: type[PreTrainedModel], config: Any) -> bool:
    # transformers learns what a class can record when a model of it is made, and unpickling makes
    # none. So one is made without memory.
    with torch.device("meta"):
        kind(copy.deepcopy(config))
    return False


def keep_picklable(encoder: nn.Module) -> None:
    """Let an encoder be pickled though transformers' first forward pass has installed hooks."""
    for module in encoder.modules():
        for key, hook in module._forward_hooks.items():
            if str(getattr(hook, "__module__", "")).startswith("transformers."):
                module._forward_hooks[key] = _Hook(hook)
        if isinstance(module, PreTrainedModel) and getattr(module, INSTALLED, None) is True:
            setattr(module, INSTALLED, _Installed(module))


def as_sentences(given: Any) -> Iterator[str]:
    """Sentences to loop over, from a list, a column of any library, or an iterable.

    Raises:
        InputError: At once if these are no sentences, and at a sentence that is not text.
    """
    return map(_text, _several(given), count())


def _several(given: Any) -> Iterable[Any]:
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    table = any(getattr(given, name, None) is not None for name in ("column_names", "columns"))
    if not several or table or len(getattr(given, "shape", (0,))) != 1:
        raise InputError(
            f"expected sentences, got {type(given).__name__}; give a list of texts, or one column "
            "of a table"
        )
    return list(given.to_pylist()) if hasattr(given, "to_pylist") else given


def _text(sentence: Any, position: int) -> str:
    if not isinstance(sentence, str):
        raise InputError(f"sentence {position} is {type(sentence).__name__}, not text")
    if not sentence.isascii() and any("\ud800" <= c <= "\udfff" for c in sentence):
        raise InputError(f"sentence {position} holds half a character (a lone surrogate)")
    return sentence
