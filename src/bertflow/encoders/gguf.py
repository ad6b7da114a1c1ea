"""Encoders in .gguf files, opened quickly."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache as once
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertflow.encoders.sentence_cache import KEY_LENGTH, SentenceCache
from bertflow.io.files import staged
from bertflow.io.result_store import key_of

# The format of the files in the cache, as part of their keys.
FORM = 2

_one_at_a_time = RLock()


def licence_of(path: Path) -> str | None:
    """The licence that a .gguf names, if it does."""
    field = quick_reader()(path).get_field("general.license")
    return None if field is None else str(field.contents())


def forget_gguf(model: nn.Module, name: str) -> None:
    """The weights are de-quantised: saved again, they are an ordinary checkpoint."""
    config: Any = model.config
    config._name_or_path = name
    for holder, attribute in [(config, "quantization_config"), (model, "hf_quantizer")]:
        vars(holder).pop(attribute, None)
    model.is_quantized = False  # type: ignore[assignment]


def describe_gguf(file: Path, dtype: str) -> dict[str, Any]:
    """All that the content of a .gguf in memory depends on."""
    with file.open("rb") as content:
        return {
            "content": hashlib.file_digest(content, "sha256").hexdigest(),
            "dtype": dtype,
            "versions": {name: version(name) for name in ("transformers", "gguf")},
            "form": FORM,
        }


@contextmanager
def quick_gguf(file: Path, about: Mapping[str, Any], cache: SentenceCache | None) -> Iterator[None]:
    """Have transformers read a .gguf quickly while inside, in one thread at a time.

    The header is read in one pass, without arrays for each token, and the table of tensor names is
    made once. A cache keeps settings, tokens and de-quantised weights under a hash of `about`,
    which `describe_gguf` gives.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    with _one_at_a_time, ExitStack() as undone:
        changes: list[tuple[Any, str, Any]] = [
            (gguf, "GGUFReader", quick_reader()),
            (gguf, "get_tensor_name_map", once(gguf.get_tensor_name_map)),
        ]
        if hasattr(reader, "tqdm"):
            # Draw its bar on terminals only; transformers has no setting for that.
            changes.append((reader, "tqdm", partial(reader.tqdm, disable=None)))
        if cache is not None:
            name, load = "load_gguf_checkpoint", reader.load_gguf_checkpoint
            kept = _kept(file, about, cache, load)
            # Some versions of transformers import the function into the modules that call it.
            modules = [one for one in [*sys.modules.values()] if hasattr(one, "__dict__")]
            changes += [(one, name, kept) for one in modules if vars(one).get(name) is load]
        for holder, name, value in changes:
            undone.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield


@once
def quick_reader() -> type:
    """A GGUFReader that reads lists in one pass over the file's bytes, as views of them."""
    from gguf import GGUFReader, GGUFValueType

    class QuickReader(GGUFReader):
        def _get_field_parts(
            self, orig_offs: int, raw_type: int
        ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
            if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)
            content, at = np.asarray(self.data).data, orig_offs + 12
            kind, count = struct.unpack_from("<IQ", content, orig_offs)
            parts: list[Any] = [content[orig_offs : orig_offs + 4], content[orig_offs + 4 : at]]
            number = self.gguf_scalar_to_np.get(GGUFValueType(kind))
            if not count or (number is None and kind != GGUFValueType.STRING):
                return super()._get_field_parts(orig_offs, raw_type)
            types = [GGUFValueType.ARRAY, GGUFValueType(kind)]
            if number is not None:
                values = np.frombuffer(content, number, count, at)  # Raises if it is cut off.
                parts += list(values.reshape(-1, 1))
                return 12 + values.nbytes, parts, list(range(2, len(parts))), types
            length = struct.Struct("<Q")
            for _ in range(count):
                (size,) = length.unpack_from(content, at)  # Raises if it is cut off.
                parts += (content[at : at + 8], content[at + 8 : at + 8 + size])
                at += 8 + size
            return at - orig_offs, parts, list(range(3, len(parts), 2)), types

    return QuickReader


def _kept(
    file: Path, about: Mapping[str, Any], cache: SentenceCache, load: Callable[..., dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    """Transformers' function `load` that reads a .gguf, with its result kept in the cache."""
    # The result depends on nothing else: `load` takes a model that is made of the file's settings.
    place = cache.gguf / f"{key_of(about, KEY_LENGTH)}.safetensors"
    found = _take(place)

    def read(path: Any, return_tensors: bool = False, **how: Any) -> dict[str, Any]:
        if not file.samefile(path):
            return load(path, return_tensors=return_tensors, **how)
        if found is not None:
            settings, tensors = found
            kept: dict[str, Any] = json.loads(settings)
            return kept | ({"tensors": dict(tensors)} if return_tensors else {})
        result = load(path, return_tensors=return_tensors, **how)
        if return_tensors:
            # As the cache gives them: a transposed tensor may give other last digits.
            result["tensors"] = {name: one.contiguous() for name, one in result["tensors"].items()}
            _put(place, result, cache)
        return result

    return read


def _take(place: Path) -> tuple[str, dict[str, Tensor]] | None:
    """The settings as JSON and the tensors; None if the cache lacks them or they are cut off."""
    with suppress(Exception):  # Whatever is wrong, the .gguf itself is read.
        with safe_open(place, "pt") as kept:
            settings = kept.metadata()["settings"]
            tensors = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
        with suppress(OSError):  # The cache may be read-only.
            os.utime(place)
        return settings, tensors
    return None


def _put(place: Path, result: Mapping[str, Any], cache: SentenceCache) -> None:
    """Keep the settings and tensors, if there is room and JSON can hold the settings."""
    tensors = result["tensors"]
    try:
        parsed = {name: value for name, value in result.items() if name != "tensors"}
        settings = json.dumps(parsed)
        # An upper bound: the file's header escapes quotes, and has a line for each tensor.
        size = 2 * len(settings) + sum(one.nbytes + 512 for one in tensors.values())
        if json.loads(settings) == parsed and cache.make_room(place, size):
            with staged(place) as staging:
                save_file(tensors, staging, {"settings": settings})
                staging.replace(place)
    except Exception as error:  # Whatever is wrong, the encoder works without the cache.
        cache.warn(error)
