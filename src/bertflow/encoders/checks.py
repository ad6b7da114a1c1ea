"""Checks of an encoder's files, and one kind of error for all that can be wrong with them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, WARNING
from pathlib import Path, PureWindowsPath
from threading import RLock
from typing import Any

from sentence_transformers.util import import_from_string
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from bertflow.errors import BertflowError, ModelError, shown
from bertflow.io.reading import HEAD, LARGEST, contents, parse_json

BUILT_IN = "sentence_transformers."
# No hidden state depends on these parts of a model, and many checkpoints lack them.
ASIDE = {"pooler", "lm_head", "cls", "classifier", "score", "qa_outputs"}
NAMED = 3
CLASS_NAME = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){1,9}", re.ASCII)
# What git-lfs leaves in the place of a file is smaller than this.
LARGEST_POINTER = 1024
# transformers' mark on a tensor that it has read.
MARK = "_is_hf_initialized"
TRUST = "if you trust it, pass trust_remote_code=True (--trust-remote-code)"

_lock = RLock()
_inside = 0
_verbosity, _bars = WARNING, True


@contextmanager
def readable(wording: Callable[[str], str]) -> Iterator[None]:
    """Turn whatever the libraries raise about a file into a ModelError of one line.

    Args:
        wording: Makes the message of what they said.

    Raises:
        ModelError: They raised anything; bertflow's own errors pass.
    """
    try:
        with quietly():
            yield
    except BertflowError:
        raise
    # safetensors, tokenizers, pickle and json have their own, tokenizers' being a plain Exception.
    except Exception as error:
        raise ModelError(wording(_in_one_line(error))) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars and warnings; those that matter are errors here.

    These settings belong to the process: the first thread that enters notes them, and the last
    that leaves puts them back.
    """
    global _inside, _verbosity, _bars
    library: Any = logging
    with _lock:
        if not _inside:
            _verbosity, _bars = library.get_verbosity(), library.is_progress_bar_enabled()
            if _verbosity == WARNING:
                library.set_verbosity(ERROR)
            library.disable_progress_bar()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                library.set_verbosity(_verbosity)
                if _bars:
                    library.enable_progress_bar()


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
    """Refuse a model some of whose weights were not in its files.

    transformers gives those random values, and only logs it.

    Args:
        modules: Loaded, the ones of a sentence-transformers model.
        name: The folder or hub name that they were loaded from.
        folders: In it, the folder of each.
        keywords: More of `from_pretrained`.

    Raises:
        ModelError: Weights are missing; the message names three.
    """
    for part, home in zip(modules, folders, strict=False):
        for model, folder in _models(part, home):
            # transformers does not document its mark: where one lacks, it is asked.
            state = model.state_dict(keep_vars=True)
            if not _needed(key for key, one in state.items() if not getattr(one, MARK, False)):
                continue
            missing = _missing(type(model), name, folder, keywords)
            if missing and len(missing) == len(_needed(state)):
                raise ModelError(
                    f"{Path(name) / folder} holds none of the weights of a "
                    f"{type(model).__name__} ({_some(missing)}): sentence-transformers cannot load "
                    "it; use another encoder"
                )
            if missing:
                raise ModelError(
                    f"{Path(name) / folder} lacks weights that its config.json asks for: "
                    f"{_some(missing)}; get its files again"
                )


def _models(module: Any, folder: str) -> Iterator[tuple[PreTrainedModel, str]]:
    """The transformers of a module and their folders; a Router has one for each route."""
    if isinstance(model := getattr(module, "model", None), PreTrainedModel):
        yield model, folder
    for route, parts in getattr(module, "sub_modules", {}).items():
        for place, part in enumerate(parts):
            inside = f"{route}_{place}_{type(part).__name__}"
            yield from _models(part, f"{folder}/{inside}" if folder else inside)


def _missing(kind: Any, name: str, folder: str, keywords: Mapping[str, Any]) -> list[str]:
    """Load a model once more, to learn which weights its files lack."""
    how = {"subfolder": folder, "output_loading_info": True, **keywords}
    _, report = kind.from_pretrained(name, **how)
    return _needed(report["missing_keys"])


def _needed(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if ASIDE.isdisjoint(name.split(".")))


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def check_files(folder: Path) -> None:
    """Refuse a folder with pipes or devices, whose reading would not end, or git-lfs pointers.

    Args:
        folder: An encoder's, here or in the hub's cache.

    Raises:
        ModelError: It has one, or cannot be looked through; the message names it.
    """
    try:
        for path in folder.rglob("*"):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise ModelError(f"{path} is no file; get the files of {folder} again")
            if path.is_file() and path.stat().st_size < LARGEST_POINTER:
                said = contents(path.read_bytes()[:HEAD])
                if said is not None and "pointer" in said:
                    raise ModelError(f"{path} {said}")
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror or error}") from None


def read_modules(
    file: Path, *, trust_remote_code: bool = False, own: str | None = None
) -> list[dict[str, str]]:
    """Read the list of a sentence-transformers model's modules, and refuse what it must not ask.

    A module's folder must lie inside the model's, wherever links lead. Its files may be links, as
    they are in the hub's cache.

    Args:
        file: The modules.json.
        trust_remote_code: Whether classes that are not sentence-transformers' own may be used.
        own: A class that may be used all the same.

    Returns:
        Of each module its `name`, `path` and `type`.

    Raises:
        ModelError: The file is no such list, or asks for a folder outside or for a class that may
            not be used.
    """
    with readable(lambda said: f"{file} cannot be read: {said}"):
        with file.open(encoding="utf-8") as opened:
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ModelError(f"{file} is no list of modules: it has more than {LARGEST:,} bytes")
        entries = parse_json(content)
    if not isinstance(entries, list) or not entries:
        raise ModelError(f"{file} is no list of modules")
    for place, entry in enumerate(entries):
        for key in ["name", "path", "type"]:
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                raise ModelError(f"{file} is no list of modules: entry {place} has no {key}")
        if not _is_inside(file.parent.resolve(), entry["path"]):
            raise ModelError(
                f"{file} asks for {shown(entry['path'])}, which is not inside {file.parent}"
            )
        kind = entry["type"]
        if not CLASS_NAME.fullmatch(kind):
            raise ModelError(f"{file} asks for {shown(kind)}, which names no class")
        if kind.startswith(BUILT_IN):
            module_class(kind, file)
        elif kind != own and not trust_remote_code:
            raise ModelError(f"{file} asks for {kind}, which is not built in; {TRUST}")
    if len({entry["name"] for entry in entries}) < len(entries):
        raise ModelError(f"{file} has two modules of one name")
    return entries


def _is_inside(home: Path, path: str) -> bool:
    """Whether a path, written for any system and wherever its links lead, stays inside a folder."""
    written = PureWindowsPath(path)  # Knows either slash.
    if written.anchor or ".." in written.parts:
        return False
    try:
        return (home / path).resolve().is_relative_to(home)
    except (OSError, RuntimeError, ValueError):  # A name too long, a ring of links, a null byte.
        return False


def module_class(name: str, file: Path) -> Any:
    """Import a module's class from sentence-transformers.

    Raises:
        ModelError: There is none of the name, or it is no module that can be loaded.
    """
    try:
        kind = import_from_string(name)
    except (ImportError, AttributeError):
        raise ModelError(f"{file} asks for {name}, which sentence-transformers lacks") from None
    if not isinstance(kind, type) or not issubclass(kind, nn.Module) or not hasattr(kind, "load"):
        raise ModelError(f"{file} asks for {name}, which is no module that can be loaded")
    return kind
