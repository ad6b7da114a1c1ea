"""Checks of an encoder's files, and one kind of error for all that can be wrong with them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from safetensors import safe_open
from sentence_transformers.util import load_file_path
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from bertflow.errors import BertflowError, ModelError, shown
from bertflow.io.reading import HEAD, contents, read_json
from bertflow.process_state import shared_by_threads

BUILT_IN = "sentence_transformers."
# No hidden state depends on these parts of a model, and many checkpoints lack them.
ASIDE = {"pooler", "lm_head", "cls", "classifier", "score", "qa_outputs"}
NAMED = 3
# A git-lfs pointer is smaller than this.
LARGEST_POINTER = 1024
# transformers' mark on a tensor that it has read.
MARK = "_is_hf_initialized"
# Names that models have for the number of their blocks, and for a tensor of a block.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
BLOCK = re.compile(r"((?:.*?\.)?(?:layers?|h|blocks?))\.(\d{1,5})\.(.+)")
TRUST = "if you trust it, pass trust_remote_code=True (--trust-remote-code)"


@contextmanager
def readable(wording: Callable[[str], str]) -> Iterator[None]:
    """Turn every error of a library into a ModelError of one line, made from its message."""
    try:
        with quietly():
            yield
    except BertflowError:
        raise
    # safetensors, tokenizers, pickle and json have their own, tokenizers' being a plain Exception.
    except Exception as error:
        raise ModelError(wording(_in_one_line(error))) from error


@shared_by_threads
def quietly() -> Iterator[None]:
    """Silence transformers' progress bars and warnings; bertflow raises errors where it matters."""
    library: Any = logging
    with ExitStack() as before:
        if library.get_verbosity() == WARNING:
            before.callback(library.set_verbosity, WARNING)
            library.set_verbosity(ERROR)
        if library.is_progress_bar_enabled():
            before.callback(library.enable_progress_bar)
            library.disable_progress_bar()
        yield


def _in_one_line(error: Exception) -> str:
    """The message of an error in one line, with its kind where the message says too little."""
    said = str(error)
    if "trust_remote_code=True" in said:
        return f"it comes with code of its own; {TRUST}"
    if "weights_only" in said:  # The message would go on to say how to have the code run.
        return "its weights are a pickle that holds more than tensors, expected safetensors"
    if "ignore_mismatched_sizes" in said:  # The shapes are in a report that is not shown.
        return "its weights have other shapes than its config.json asks for; get its files again"
    line, kind = textwrap.shorten(said, 240, placeholder=" ..."), type(error).__name__
    return f"{kind}: {line}" if line and isinstance(error, LookupError) else line or kind


def check_weights(
    modules: Iterable[nn.Module], name: str, folders: Iterable[str], **keywords: Any
) -> None:
    """Refuse a model whose files lack weights, or have more blocks than it.

    transformers makes up what is missing, drops what it has no place for, and only logs both.
    `folders` of the modules are in `name`; `keywords` are those of `from_pretrained`.
    """
    for part, home in zip(modules, folders, strict=False):
        for model, folder in _models(part, home):
            # The hub's files are in its cache by now.
            where: dict[str, Any] = {"revision": keywords.get("revision"), "local_files_only": True}
            file = load_file_path(name, "config.json", folder, **where)
            if file is not None and "gguf_file" not in keywords:
                _check_blocks(Path(file))
            # transformers does not document its mark: where one lacks, the model is loaded once
            # more, and transformers is asked.
            state = model.state_dict(keep_vars=True).items()
            if not _needed(key for key, one in state if not getattr(one, MARK, False)):
                continue
            how = {"subfolder": folder, "output_loading_info": True, **keywords}
            kind: Any = type(model)
            _, report = kind.from_pretrained(name, **how)
            if missing := _needed(report["missing_keys"]):
                more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
                raise ModelError(
                    f"{Path(name) / folder} lacks weights that a {kind.__name__} as in its "
                    f"config.json has: {', '.join(missing[:NAMED])}{more}; get its files again, or "
                    "use another encoder"
                )


def _models(module: Any, folder: str) -> Iterator[tuple[PreTrainedModel, str]]:
    """The transformers of a module and their folders; a Router has one for each route."""
    if isinstance(model := getattr(module, "model", None), PreTrainedModel):
        yield model, folder
    for route, parts in getattr(module, "sub_modules", {}).items():
        for place, part in enumerate(parts):
            inside = f"{route}_{place}_{type(part).__name__}"
            yield from _models(part, f"{folder}/{inside}" if folder else inside)


def _needed(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if ASIDE.isdisjoint(name.split(".")))


def _check_blocks(file: Path) -> None:
    """Refuse safetensors with more blocks than a config.json asks for."""
    asked: int | None = None
    lists: dict[str, dict[int, set[str]]] = {}
    with suppress(Exception):
        config = json.loads(file.read_text(encoding="utf-8"))
        asked = next((config[name] for name in DEPTHS if type(config.get(name)) is int), None)
        for path in file.parent.glob("*.safetensors"):
            with safe_open(path, "pt") as weights:
                for match in filter(None, map(BLOCK.match, weights.keys())):
                    blocks = lists.setdefault(match[1], {})
                    blocks.setdefault(int(match[2]), set()).add(match[3])
    if asked is None or len(lists) != 1:
        return
    (blocks,) = lists.values()
    # A block with other tensors may be left out: it predicts several tokens, for example.
    kinds = [tensors for number, tensors in blocks.items() if number < asked]
    surplus = [n for n, tensors in blocks.items() if n >= asked and tensors in kinds]
    if surplus:
        raise ModelError(
            f"{file.parent} holds weights of {max(surplus) + 1} blocks, and its config.json asks "
            f"for {asked}; get its files again"
        )


def check_files(folder: Path) -> None:
    """Refuse a folder with git-lfs pointers in the place of files."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size < LARGEST_POINTER:
            said = contents(path.read_bytes()[:HEAD])
            if said is not None and "pointer" in said:
                raise ModelError(f"{path} {said}")


def read_modules(
    file: Path, *, trust_remote_code: bool = False, own: str | None = None
) -> list[dict[str, str]]:
    """Read a list of modules; untrusted, only with classes of sentence-transformers or `own`."""
    entries: list[dict[str, str]] = read_json(file)
    try:
        kinds, names = [str(entry["type"]) for entry in entries], {one["name"] for one in entries}
    except (TypeError, KeyError):
        kinds, names = [], set()
    # sentence-transformers would lose the first of two modules of one name.
    if not kinds or len(names) < len(kinds):
        raise ModelError(f"{file} is no list of modules, each with a type and a name of its own")
    for kind in kinds:
        if not trust_remote_code and kind != own and not kind.startswith(BUILT_IN):
            raise ModelError(f"{file} asks for {shown(kind)}, which is not built in; {TRUST}")
    return entries
