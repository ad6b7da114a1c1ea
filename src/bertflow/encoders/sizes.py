"""What a configuration asks for, set against the weights beside it, before anything is allocated.

transformers builds whatever a config.json describes: a table of a billion words is allocated, and a
thousand blocks take minutes, before it turns out that the weights are of another model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel

from bertflow.encoders.checks import quietly, readable
from bertflow.encoders.gguf import quick_reader
from bertflow.errors import ModelError, shown

# Numbers that a byte of weights may stand for: two in four-bit formats, and as many again for what
# is not stored, such as tables of positions and heads that are left out.
NUMBERS_A_BYTE = 4
# So many blocks are built in seconds; above it there must be a tensor for each.
BLOCKS = 256
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embedding_size")
# What models call the number of their blocks, and a tensor of one: the list, its place, the rest.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
BLOCK = re.compile(r"((?:.*?\.)?(?:layers?|h|blocks?))\.(\d{1,5})\.(.+)")
GGUF_WIDTHS = (".embedding_length", ".feed_forward_length", ".vocab_size")

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

    What cannot be read is left for transformers to refuse, pickled weights are not looked into, and
    where code of the encoder's own runs sizes are that code's affair.

    Args:
        folder: With config.json and the weights, in safetensors.
        trust_remote_code: Whether such code may run.

    Raises:
        ModelError: It does; the message names what it asks for.
    """
    config = _config(folder / "config.json")
    shapes, capacity = _weights(folder)
    if config is None or not shapes or (trust_remote_code and "auto_map" in config):
        return
    numbers = dict(_integers(config))
    for name, number in numbers.items():
        last = name.rpartition(".")[2]
        if last == "num_hidden_layers" and number < 0:
            raise ModelError(
                f"{folder / 'config.json'} asks for {number} blocks ({name}), expected 0 or more; "
                "get its files again"
            )
        if "layer" in last and number > max(BLOCKS, len(shapes)):
            raise ModelError(
                f"{folder / 'config.json'} asks for {number:,} blocks ({name}), but its weights "
                f"hold {len(shapes):,} tensors; get its files again"
            )
    _refuse_surplus_blocks(folder, config, shapes)
    # Only a model with a table larger than all weights is worth building without its weights.
    width = max((n for name, n in numbers.items() if name.rpartition(".")[2] in WIDTHS), default=1)
    if all(number * width <= capacity for number in numbers.values()):
        return
    total = 0
    with suppress(Exception), quietly(), torch.device("meta"):  # What fails here fails there, too.
        kind: Any = AutoModel
        model = kind.from_config(
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False),
            trust_remote_code=False,
        )
        total = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    if total > capacity:
        raise ModelError(
            f"{folder / 'config.json'} asks for {total:,} numbers, more than its weights hold; get "
            "its files again"
        )


def check_module(folder: Path) -> None:
    """Refuse a `Dense`, or another module with weights, whose config.json asks for more than those.

    Args:
        folder: The module's, with config.json and model.safetensors.

    Raises:
        ModelError: It does.
    """
    config = _config(folder / "config.json")
    shapes, capacity = _weights(folder)
    if config is None or not shapes:
        return
    numbers = dict(_integers(config))
    wide = [numbers[name] for name in ("in_features", "out_features") if name in numbers]
    if math.prod(wide) > capacity or any(n > max(capacity, 2**16) for n in numbers.values()):
        asked = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
        raise ModelError(
            f"{folder / 'config.json'} asks for more ({asked[:200]}) than its weights hold "
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
    # The reader checks nothing by itself, so that damage may raise anything.
    with readable(lambda said: f"{path} cannot be loaded: it is not a whole .gguf: {said}"):
        reader = quick_reader()(path)
        facts = {name: field.contents() for name, field in reader.fields.items() if _single(field)}
    tensors, size = len(reader.tensors), path.stat().st_size
    capacity = 2 * NUMBERS_A_BYTE * size  # Some formats have one bit a number.
    for name, number in facts.items():
        if type(number) is not int:
            continue
        blocks = name.endswith(".block_count") and number > max(BLOCKS, tensors)
        if blocks or (number > capacity and name.endswith(GGUF_WIDTHS)):
            raise ModelError(
                f"{path} asks for {number:,} ({shown(name)}), more than its {tensors:,} tensors "
                f"in {size:,} bytes can hold; get the file again"
            )
    return facts.get("general.license")


def _single(field: Any) -> bool:
    """Whether a field of a .gguf is one value, and no list."""
    return len(field.types) == 1


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
        if match := BLOCK.match(name):
            blocks = lists.setdefault(match[1], {})
            blocks.setdefault(int(match[2]), set()).add(match[3])
    if asked is None or len(lists) != 1:
        return
    (blocks,) = lists.values()
    kinds = [tensors for number, tensors in blocks.items() if number < asked]
    surplus = [n for n, tensors in blocks.items() if n >= asked and tensors in kinds]
    if surplus:
        raise ModelError(
            f"{folder} holds weights of {max(surplus) + 1} blocks, and its config.json asks for "
            f"{asked}; get its files again"
        )


def _config(path: Path) -> dict[str, Any] | None:
    """A configuration, or None where the libraries will say what is wrong with it."""
    with suppress(OSError, ValueError, RecursionError):
        config = json.loads(path.read_text(encoding="utf-8"))
        return config if isinstance(config, dict) else None
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
    """Shapes by name of the safetensors in a folder, and how many numbers they may stand for."""
    shapes: dict[str, Shape] = {}
    size = 0
    with suppress(OSError):  # A name too long.
        for path in sorted(folder.glob("*.safetensors")):
            with suppress(Exception), safe_open(path, "pt") as file:  # Loading says what is wrong.
                for name in file.keys():  # noqa: SIM118
                    shapes[name] = tuple(file.get_slice(name).get_shape())
                size += path.stat().st_size
    return shapes, NUMBERS_A_BYTE * size
