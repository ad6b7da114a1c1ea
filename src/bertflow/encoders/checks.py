"""Checks of an encoder's files, and one kind of error for all that can be wrong with them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import ERROR, WARNING
from pathlib import Path, PureWindowsPath
from threading import RLock
from typing import Any

from sentence_transformers.util import import_from_string
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging

from bertflow.errors import BertflowError, ModelError, shown
from bertflow.io.contents import HEAD, contents
from bertflow.io.json import LARGEST, parse_json

BUILT_IN = "sentence_transformers."
# No hidden state depends on these parts of a model, and many checkpoints lack them.
ASIDE = {"pooler", "lm_head", "cls", "classifier", "score", "qa_outputs"}
NAMED = 3
CLASS_NAME, LONGEST_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII), 200
# More bytes than what git-lfs leaves in the place of a file ever has.
LARGEST_POINTER = 1024
# transformers' mark on a tensor that it has read.
MARK = "_is_hf_initialized"
# What an added token may say of itself; of anything else tokenizers prints that it is ignored.
TOKEN_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TOKEN_SETTINGS = {
    *("__type", "content", "id", "lstrip", "normalized", "rstrip", "single_word", "special"),
}
# How Python shows its own objects.
INSIDE = [
    (re.compile(r"<class '([\w.]+)'>"), r"\1"),
    (re.compile(r"<([\w.]+) object at 0x[0-9a-fA-F]+>"), r"\1"),
    (re.compile(r"\b(?:Posix|Windows)Path\(('[^']*'|\"[^\"]*\")\)"), r"\1"),
]
TRUST = "if you trust it, pass trust_remote_code=True (--trust-remote-code)"


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
        raise ModelError(wording(one_line(error))) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' bars and its warnings, of which those that matter are errors here.

    The settings are the process's: the first thread that comes notes them, the last that goes puts
    them back.
    """
    told: Any = logging
    with _hush:
        if not _hush.inside:
            _hush.verbosity, _hush.bars = told.get_verbosity(), told.is_progress_bar_enabled()
            if _hush.verbosity == WARNING:
                told.set_verbosity(ERROR)
            told.disable_progress_bar()
        _hush.inside += 1
    try:
        yield
    finally:
        with _hush:
            _hush.inside -= 1
            if not _hush.inside:
                told.set_verbosity(_hush.verbosity)
                if _hush.bars:
                    told.enable_progress_bar()


class _Hush:
    """How many are in `quietly`, and what transformers was set to before the first of them."""

    def __init__(self) -> None:
        self._lock = RLock()
        self.inside = 0
        self.verbosity, self.bars = WARNING, True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_hush = _Hush()


def one_line(error: Exception) -> str:
    """What an error says in one line, and its kind where that says too little."""
    if "trust_remote_code=True" in str(error):
        return f"it comes with code of its own; {TRUST}"
    if "weights_only" in str(error):  # It would go on to say how to have the code run.
        return "its weights are a pickle that holds more than tensors, expected safetensors"
    said = str(error)
    for pattern, plain in INSIDE:
        said = pattern.sub(plain, said)
    told = textwrap.shorten(said, 240, placeholder=" ...")
    kind = type(error).__name__
    return f"{kind}: {told}" if told and isinstance(error, LookupError) else told or kind


@contextmanager
def shapes_named(name: str, folders: Iterable[str], **keywords: Any) -> Iterator[None]:
    """Name the weights that have other shapes than the configuration, which transformers only logs.

    Args:
        name: A folder or hub name that is loaded inside.
        folders: Its folders of weights.
        keywords: More of `from_pretrained`.

    Raises:
        ModelError: Loading failed for that reason; the message names three.
    """
    try:
        yield
    except BertflowError:
        raise
    except RuntimeError:
        for folder in folders:
            shapes: Mapping[str, Any] = {}
            with suppress(Exception):  # What failed above is told, not what fails now.
                shapes = _told(AutoModel, name, folder, keywords)[1]
            _refuse_shapes(Path(name) / folder, shapes)
        raise


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
    for model, folder in (
        found for given in zip(modules, folders, strict=False) for found in _models(*given)
    ):
        # The mark is not documented: a tensor without it is a suspicion, and transformers is asked.
        state = model.state_dict(keep_vars=True)
        unread = [k for k, t in state.items() if not getattr(t, MARK, False)]
        if not _needed(unread):
            continue
        missing, shapes = _told(type(model), name, folder, keywords)
        _refuse_shapes(Path(name) / folder, shapes)
        if missing and len(missing) == len(_needed(state)):
            raise ModelError(
                f"{Path(name) / folder} holds none of the weights of a {type(model).__name__} "
                f"({_some(missing)}): sentence-transformers cannot load it; use another encoder"
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


def _told(
    kind: Any, name: str, folder: str, keywords: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Load once more, to be told which weights are missing, and the shapes of those that differ."""
    _, told = kind.from_pretrained(
        name,
        subfolder=folder,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **keywords,
    )
    return _needed(told["missing_keys"]), {key[0]: key[1:] for key in told["mismatched_keys"]}


def _refuse_shapes(folder: Path, shapes: Mapping[str, Any]) -> None:
    if names := _needed(shapes):
        there, asked = (tuple(shape) for shape in shapes[names[0]])
        raise ModelError(
            f"{folder} holds weights of another shape than its config.json asks for: "
            f"{_some(names)} (the first is {there}, not {asked}); get its files again"
        )


def _needed(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if ASIDE.isdisjoint(name.split(".")))


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def check_files(folder: Path) -> None:
    """Refuse a folder that holds what libraries stumble over without an error.

    That is what is neither file nor folder, since to read a pipe would never end, and added tokens
    with settings that there are not, whose names would be printed.

    Args:
        folder: An encoder's, here or in the hub's cache.

    Raises:
        ModelError: It does, or cannot be looked through; the message names what is there.
    """
    try:
        for path in folder.rglob("*"):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise ModelError(f"{path} is no file; get the files of {folder} again")
            if path.is_file() and path.stat().st_size < LARGEST_POINTER:
                said = contents(path.read_bytes()[:HEAD])
                if said is not None and "pointer" in said:
                    raise ModelError(f"{path} {said}")
            if path.name in TOKEN_FILES and path.is_file():
                for token in _added_tokens(path):
                    for name in token.keys() - TOKEN_SETTINGS:
                        raise ModelError(
                            f"{path} has an added token with {shown(name)}, which is no setting of "
                            "one; get the file again"
                        )
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror or error}") from None


def _added_tokens(path: Path) -> list[dict[str, Any]]:
    """What a tokenizer's file says of tokens beside its vocabulary; no JSON says nothing."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found: list[Any] = []
    with suppress(ValueError, RecursionError):
        if path.name == "tokenizer.json":
            # Of some megabytes the most is vocabulary, and need not be parsed.
            for match in re.finditer(r'"added_tokens"\s*:\s*(?=\[)', text):
                found += json.JSONDecoder().raw_decode(text, match.end())[0]
        else:
            content = json.loads(text)
            holders: list[Any] = [content] if isinstance(content, dict) else []
            if holders and isinstance(more := content.get("added_tokens_decoder"), dict):
                found += more.values()
            for holder in holders:
                inside = holder.values() if isinstance(holder, dict) else holder
                holders += [part for part in inside if isinstance(part, dict | list)]
            found += [one for one in holders if "content" in one or "__type" in one]
    return [token for token in found if isinstance(token, dict)]


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
    home = file.parent.resolve()
    for place, entry in enumerate(entries):
        for key in ["name", "path", "type"]:
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                raise ModelError(f"{file} is no list of modules: entry {place} has no {key}")
        written = PureWindowsPath(entry["path"])  # Knows either slash.
        outside = bool(written.anchor) or ".." in written.parts or "\0" in entry["path"]
        try:
            outside = outside or not (home / entry["path"]).resolve().is_relative_to(home)
        except (OSError, RuntimeError, ValueError):  # A name too long, a ring of links.
            outside = True
        if outside:
            raise ModelError(
                f"{file} asks for {shown(entry['path'])}, which is not inside {file.parent}"
            )
        if entry["type"] == own:
            continue
        if len(entry["type"]) > LONGEST_NAME or not CLASS_NAME.fullmatch(entry["type"]):
            raise ModelError(f"{file} asks for {shown(entry['type'])}, which names no class")
        if entry["type"].startswith(BUILT_IN):
            module_class(entry["type"], file)
        elif not trust_remote_code:
            raise ModelError(f"{file} asks for {entry['type']}, which is not built in; {TRUST}")
    if len({entry["name"] for entry in entries}) < len(entries):
        raise ModelError(f"{file} has two modules of one name")
    return entries


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
