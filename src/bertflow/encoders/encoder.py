"""The SentenceTransformer that bertflow returns, and checks of the sentences that it takes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import wraps
from inspect import unwrap
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer

from bertflow.errors import InputError, shown
from bertflow.process_state import pinned

NAMED = 3
# Names of the modules that calibrate begin with this; their place follows.
CALIBRATOR = "calibrator_"
# The methods that lead from text to vectors, and the packages whose hooks every model has.
METHODS = ("encode", "encode_query", "encode_document", "preprocess", "tokenize", "forward")
LIBRARIES = ("transformers.", "sentence_transformers.", "bertflow.", "torch.", "accelerate.")


class Encoder(SentenceTransformer):
    """A SentenceTransformer whose `encode` depends on nothing that the process has set.

    It takes a column of pandas, polars or Arrow as well as a list. Without a sentence it gives an
    array of shape (0, D), of the type that it gives otherwise.
    """

    @wraps(SentenceTransformer.encode)
    @pinned()
    def encode(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Vectors of sentences, as `SentenceTransformer.encode` gives them."""
        name = "inputs" if "inputs" in kwargs else "sentences"
        given = args[0] if args else kwargs.pop(name, None)
        if not isinstance(given, str | dict):
            given = as_sentences(given)
            given = given if isinstance(given, list) else list(given)
            if not given:
                return super().encode(["a"], *args[1:], **kwargs)[:0]
            if not any(isinstance(one, dict) for one in given):  # Messages and other inputs.
                check_text(given)
        return super().encode(given, *args[1:], **kwargs)


def encoder_of(model: SentenceTransformer) -> SentenceTransformer:
    """A calibrated model's encoder, whose modules are the model's own; another model itself."""
    behind = calibrating(model)
    return part_of(model, [m for m in model if m not in behind]) if behind else model


def calibrating(model: SentenceTransformer) -> list[Any]:
    """The modules of a model that calibrate."""
    return [module for name, module in model._modules.items() if name.startswith(CALIBRATOR)]


def part_of(model: SentenceTransformer, modules: Sequence[Any]) -> SentenceTransformer:
    """Some of a model's modules as a model, at their full width.

    The copy is shallow. Constructing a model takes longer than encoding a sentence, and would set
    a device and type on modules that other threads use.
    """
    part = copy.copy(model)
    # The names stay: a digest of the weights contains them.
    part._modules = {name: module for name, module in model._modules.items() if module in modules}
    part.truncate_dim = None
    return part


def own_part(model: SentenceTransformer) -> str | None:
    """What a model does in a way of its own between text and vectors, such as "encode"; else None.

    That is a method that its class or the model itself has replaced, or a hook on one of its
    modules. A saved model and its settings tell nothing of it.
    """
    for name in METHODS:
        if _is_own(model, name) or any(name in vars(module) for module in model):
            return name
    for module in model.modules():
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]:
            if not str(getattr(hook, "__module__", "")).startswith(LIBRARIES):
                return "hooks"
    return None


def _is_own(model: SentenceTransformer, name: str) -> bool:
    """Whether a method is not the library's; one that only wraps it is."""
    usual = unwrap(getattr(SentenceTransformer, name, None) or len)
    return name in vars(model) or unwrap(getattr(type(model), name, None) or len) is not usual


def is_usual(model: SentenceTransformer) -> bool:
    """Whether a model encodes as the library does, not by an `encode` or `forward` of its own."""
    return (
        not _is_own(model, "encode")
        and not _is_own(model, "forward")
        and isinstance(model[0], Transformer)
        and hasattr(model, "preprocess")
    )


def as_sentences(given: Any) -> Iterable[str]:
    """Check that sentences can be looped over one by one.

    Args:
        given: A list, a column of pandas, polars, Arrow or `datasets`, or anything that gives
            sentences one by one.

    Returns:
        The same; of an Arrow column a list.

    Raises:
        InputError: It is one text, a table, a mapping, has more than one dimension, or is nothing
            that can be looped over.
    """
    if isinstance(given, str | bytes):
        raise InputError("expected sentences, got one text; put it in a list")
    kind = type(given).__name__
    names = getattr(given, "column_names", None)
    if names is None:
        names = list(given) if isinstance(given, Mapping) else getattr(given, "columns", None)
    if names is not None:
        some = ", ".join(shown(name) for name in list(names)[:NAMED])
        raise InputError(f"expected sentences, got a {kind}; give one column of it ({some} ...)")
    if len(shape := getattr(given, "shape", (0,))) != 1:
        raise InputError(f"expected sentences, got a {kind} of shape {shape}; give one column")
    if hasattr(given, "to_pylist"):
        return list(given.to_pylist())
    if not isinstance(given, Iterable):
        raise InputError(f"expected sentences, got {shown(given)}; give a list of texts")
    return given


def check_text(sentences: Sequence[str], first: int = 0) -> None:
    """Refuse what no tokenizer takes.

    Args:
        sentences: Whatever was given as such.
        first: The number of the first one, for the message.

    Raises:
        InputError: One is not text; the message names it.
    """
    for position, sentence in enumerate(sentences, first):
        if not isinstance(sentence, str):
            raise InputError(f"sentence {position} is {type(sentence).__name__}, not text")
        if not sentence.isascii() and any("\ud800" <= c <= "\udfff" for c in sentence):
            raise InputError(f"sentence {position} holds half a character (a lone surrogate)")
