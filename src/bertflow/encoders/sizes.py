"""What a configuration asks for, set against the weights beside it, before anything is allocated.

transformers builds whatever a config.json describes: a table of a billion words is allocated, and a
thousand blocks take minutes, before it turns out that the weights are of another model.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from bertflow.encoders.checks import quietly
from bertflow.errors import ModelError, shown

# Numbers that a byte of weights may stand for: two in four-bit formats, and as many again for what
# is not stored, such as tables of positions and heads that are left out.
NUMBERS_A_BYTE = 4
# So many blocks are built in seconds; above it there must be a tensor for each.
BLOCKS = 256
# A pickled tensor takes more bytes than this by its name and description.
PICKLED_TENSOR = 100
LARGEST_HEADER = 10**8
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embedding_size")
# What models call the number of their blocks, and a tensor of one: the list, its place, the rest.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
BLOCK = re.compile(r"((?:.*?\.)?(?:layers?|h|blocks?))\.(\d{1,5})\.(.+)")
GGUF_MAGIC = b"GGUF"
GGUF_WIDTHS = (".embedding_length", ".feed_forward_length", ".vocab_size")
# By kind of value in a .gguf, its form; 8 is text, 9 a list.
GGUF_FORMS = dict(zip([*range(8), 10, 11, 12], "BbHhIif?Qqd", strict=True))
GGUF_TEXT, GGUF_LIST = 8, 9

Shape = tuple[int, ...]


def check_sizes(home: Path, entries: Sequence[Mapping[str, str]], *, trusted: bool) -> None:
    """Check every module of a sentence-transformers model.

    Args:
        home: Its folder.
        entries: As `read_modules` gives them.
        trusted: Whether code of the encoder's own may run.

    Raises:
        ModelError: A configuration asks for more than its weights hold.
    """
    for entry in entries:
        if entry["type"].rpartition(".")[2] == "Transformer":
            check_transformer(home / entry["path"], trust_remote_code=trusted)
        else:
            check_module(home / entry["path"])


def check_transformer(folder: Path, *, trust_remote_code: bool = False) -> None:
    """Refuse a transformer's folder whose config.json asks for more than its weights hold.

    What cannot be read is left for transformers to refuse, and where code of the encoder's own runs
    sizes are that code's affair.

    Args:
        folder: With config.json and the weights, in safetensors or pickled.
        trust_remote_code: Whether such code may run.

    Raises:
        ModelError: It does; the message names what it asks for.
    """
    config = _config(folder / "config.json")
    shapes, size = _weights(folder)
    if config is None or not size or (trust_remote_code and "auto_map" in config):
        return
    capacity = NUMBERS_A_BYTE * size
    numbers = dict(_integers(config))
    tensors = len(shapes) or size // PICKLED_TENSOR
    for name, number in numbers.items():
        if name.rpartition(".")[2] == "num_hidden_layers" and number < 0:
            raise ModelError(
                f"{folder / 'config.json'} asks for {number} blocks ({name}), expected 0 or more; "
                "get its files again"
            )
        if "layer" in name.rpartition(".")[2] and number > max(BLOCKS, tensors):
            raise ModelError(
                f"{folder / 'config.json'} asks for {number:,} blocks ({name}), but its weights "
                f"hold {tensors:,} tensors; get its files again"
            )
    _refuse_surplus_blocks(folder, config, shapes)
    if not _may_be_too_large(numbers, capacity):
        return
    asked: dict[str, Shape] = {}
    with suppress(Exception), quietly(), torch.device("meta"):  # What fails here fails there, too.
        kind: Any = AutoModel
        model = kind.from_config(
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False),
            trust_remote_code=False,
        )
        asked = {name: tuple(tensor.shape) for name, tensor in _tensors(model)}
    total = sum(math.prod(shape) for shape in asked.values())
    if total > capacity:
        raise ModelError(_wording(folder, total, asked, shapes))


def check_module(folder: Path) -> None:
    """Refuse a `Dense`, or another module with weights, whose config.json asks for more than those.

    Args:
        folder: The module's, with config.json and model.safetensors.

    Raises:
        ModelError: It does.
    """
    config = _config(folder / "config.json")
    shapes, size = _weights(folder)
    if config is None or not size:
        return
    capacity = NUMBERS_A_BYTE * size
    numbers = dict(_integers(config))
    wide = [numbers[name] for name in ("in_features", "out_features") if name in numbers]
    if math.prod(wide) > capacity or any(n > max(capacity, 2**16) for n in numbers.values()):
        told = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
        raise ModelError(
            f"{folder / 'config.json'} asks for more ({told[:200]}) than its weights hold "
            f"({sum(map(math.prod, shapes.values())):,} numbers); get its files again"
        )


def check_gguf(path: Path) -> str | None:
    """Refuse a .gguf whose header promises what the file cannot hold.

    Args:
        path: The file.

    Returns:
        The licence that it names, if it does.

    Raises:
        ModelError: It does, or it is no .gguf.
    """
    try:
        size = path.stat().st_size
        tensors, facts, licence = _gguf_header(path, size)
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise ModelError(f"{path} cannot be loaded: it is not a whole .gguf: {error}") from None
    capacity = 2 * NUMBERS_A_BYTE * size  # Some formats have one bit a number.
    for name, number in facts.items():
        blocks = name.endswith(".block_count") and number > max(BLOCKS, tensors)
        if blocks or (number > capacity and name.endswith(GGUF_WIDTHS)):
            raise ModelError(
                f"{path} asks for {number:,} ({shown(name)}), more than its {tensors:,} tensors "
                f"in {size:,} bytes can hold; get the file again"
            )
    return licence


def _refuse_surplus_blocks(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> None:
    """Refuse weights with more blocks than the configuration asks for: it would be another model.

    transformers leaves them out, and only logs it. A block is surplus if it has the tensors of one
    that is asked for; those that have others, such as blocks that predict several tokens, are not
    of the encoder. Weights with several lists of blocks are left alone.
    """
    asked = next((config[name] for name in DEPTHS if type(config.get(name)) is int), None)
    lists: dict[str, dict[int, set[str]]] = {}
    for name in shapes:
        if found := BLOCK.match(name):
            blocks = lists.setdefault(found[1], {})
            blocks.setdefault(int(found[2]), set()).add(found[3])
    if asked is None or len(lists) != 1:
        return
    (blocks,) = lists.values()
    kinds = [tensors for number, tensors in blocks.items() if number < asked]
    surplus = [number for number, one in blocks.items() if number >= asked and one in kinds]
    if surplus:
        raise ModelError(
            f"{folder} holds weights of {max(surplus) + 1} blocks, and its config.json asks for "
            f"{asked}; get its files again"
        )


def _wording(
    folder: Path, total: int, asked: Mapping[str, Shape], there: Mapping[str, Shape]
) -> str:
    for name, shape in asked.items():
        for known, other in there.items():
            if (known == name or known.endswith(f".{name}")) and other != shape:
                return (
                    f"{folder} holds weights of another shape than its config.json asks for: "
                    f"{name} (it is {other}, not {shape}); get its files again"
                )
    return (
        f"{folder / 'config.json'} asks for {total:,} numbers, more than its weights hold; get its "
        "files again"
    )


def _may_be_too_large(numbers: Mapping[str, int], capacity: int) -> bool:
    """Whether some table may be larger than all weights; a real model's are not."""
    widths = [n for name, n in numbers.items() if name.rpartition(".")[2] in WIDTHS]
    width = max(widths, default=1)
    return any(number * width > capacity for number in numbers.values())


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _config(path: Path) -> dict[str, Any] | None:
    """A configuration, or None where the libraries will say what is wrong with it."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def _integers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The integers of a configuration, by their names with those of what they are in."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    for above, part in waiting:
        for name, value in part.items():
            full = f"{above}.{name}" if above else str(name)
            if isinstance(value, int) and not isinstance(value, bool):
                yield full, value
            elif isinstance(value, dict) and not re.search("label|token|task", name):
                waiting.append((full, value))


def _weights(folder: Path) -> tuple[dict[str, Shape], int]:
    """Shapes by name of the safetensors in a folder, and the bytes of these or of the pickled."""
    shapes: dict[str, Shape] = {}
    size = 0
    try:
        paths = sorted(folder.glob("*.safetensors"))
        pickled = sorted(folder.glob("*.bin"))
    except OSError:  # A name too long.
        return {}, 0
    for path in paths:
        with suppress(
            OSError, ValueError, RecursionError, struct.error, TypeError, KeyError, OverflowError
        ):
            size += path.stat().st_size
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > min(LARGEST_HEADER, size):
                    continue
                header = json.loads(file.read(length))
            for name, entry in header.items():
                if name != "__metadata__":
                    shapes[name] = tuple(int(n) for n in entry["shape"])
    if not size:
        for path in pickled:
            with suppress(OSError):
                size += path.stat().st_size
    return shapes, size


def _gguf_header(path: Path, size: int) -> tuple[int, dict[str, int], str | None]:
    """How many tensors a .gguf has, the integers it says of the model, and its licence.

    Raises:
        ValueError: It is none, or is cut off.
    """
    facts: dict[str, int] = {}
    licence = None
    with path.open("rb") as file:

        def read(form: str) -> Any:
            content = file.read(struct.calcsize(form))
            return struct.unpack(f"<{form}", content)[0]

        def text() -> bytes:
            length = read("Q")
            if length > size:
                raise ValueError(f"it names a text of {length:,} bytes")
            return file.read(length)

        def skip(kind: int, depth: int = 0) -> None:
            if kind == GGUF_TEXT:
                text()
            elif kind == GGUF_LIST and depth < 2:
                inner, count = read("I"), read("Q")
                if count > size:
                    raise ValueError(f"it names a list of {count:,}")
                if inner in GGUF_FORMS:
                    file.seek(count * struct.calcsize(GGUF_FORMS[inner]), 1)
                else:
                    for _ in range(count):
                        skip(inner, depth + 1)
            elif kind in GGUF_FORMS:
                read(GGUF_FORMS[kind])
            else:
                raise ValueError(f"it holds a value of unknown kind {kind}")

        if file.read(4) != GGUF_MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensors, count = read("I"), read("Q"), read("Q")
        if version not in (2, 3):
            raise ValueError(f"it is of version {version}, expected 2 or 3")
        if max(tensors, count) > size:
            raise ValueError(f"it promises {max(tensors, count):,} entries in {size:,} bytes")
        for _ in range(count):
            name, kind = text().decode("utf-8"), read("I")
            form = GGUF_FORMS.get(kind, "")
            if form and form in "BbHhIiQq":
                facts[name] = read(form)
            elif name == "general.license" and kind == GGUF_TEXT:
                licence = text().decode("utf-8", "replace")
            else:
                skip(kind)
    return tensors, facts, licence
