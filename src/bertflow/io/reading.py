"""Files of others: their kind by the first bytes, small JSON, and whether the hub answers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from bertflow.errors import InputError, ModelError, shown

# So many bytes are enough to tell.
HEAD = 512
PACKED_WITH = (
    "is packed with {0}; unpack it (only text and tables may be packed, once, with a name in {1})"
)
SIGNATURES = {
    b"version https://git-lfs": "is a git-lfs pointer, not the file; fetch that by: git lfs pull",
    b"/annex/objects/": "is a git-annex pointer, not the file; fetch that by: git annex get",
    b"\x1f\x8b": PACKED_WITH.format("gzip", ".gz"),
    **{b"BZh%d1AY" % level: PACKED_WITH.format("bzip2", ".bz2") for level in range(1, 10)},
    b"\xfd7zXZ\0": PACKED_WITH.format("xz", ".xz"),
    b"\x28\xb5\x2f\xfd": PACKED_WITH.format("zstd", ".zst"),
    b"PK\x03\x04": "is a zip archive, as .xlsx, .docx and .npz are; unpack it or export it as text",
    b"PAR1\x15": "is a .parquet file; name it so, or give that as its format",
    b"\x93NUMPY": "is a .npy file, an array of numpy",
    b"%PDF-": "is a PDF; export its text",
    b"{\\rtf": "is an RTF document; export its text",
    b"\xff\xfe": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"\xfe\xff": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"<?xml": "is XML; export its text",
    b"<!doctype html": "is a web page; export its text",
    b"<html": "is a web page; export its text",
}


def contents(head: bytes) -> str | None:
    """The message about a file by its first `HEAD` bytes; None if its name may be right.

    Example:
        >>> contents(b"%PDF-1.7 ...")
        'is a PDF; export its text'
    """
    heads = head, head.removeprefix(b"\xef\xbb\xbf").lower()
    found = (
        said for begin, said in SIGNATURES.items() if any(one.startswith(begin) for one in heads)
    )
    return next(found, None)


def path_of(given: str | Path) -> Path:
    """The path that a caller gave; an InputError if it is none, such as None."""
    if isinstance(given, str | os.PathLike) and "\0" not in str(given):
        return Path(given)
    raise InputError(f"expected the path of a file or folder, got {shown(given)}")


# Far more bytes than any of our files has; a larger one is foreign, and is not read whole.
LARGEST = 10**6


def parse_json(text: str, *, constants: bool = False) -> Any:
    """Parse JSON that every reader understands alike; a ValueError says in one line why not.

    Python's own parser lets the last of two equal keys win, and takes numbers that are not finite,
    which pass with `constants`, for the caller to refuse where they matter.

    Example:
        >>> parse_json('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it has the key 'a' twice
    """
    number = None if constants else _finite
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(path: Path, *, largest: int = LARGEST) -> Any:
    """Parse a small JSON file; a ModelError names a file that is not JSON, or is larger."""
    try:
        if path.is_fifo():
            raise ModelError(f"{path} is a pipe, no file")
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ModelError(f"{path} has more than {largest} bytes, expected a small JSON")
        return parse_json(content.decode("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in members if names.count(name) > 1)
        raise ValueError(f"it has the key {shown(twice)} twice")
    return members


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"it holds {number}, expected finite numbers")
    return value


def hub_names(name: str) -> list[str]:
    """The names that an encoder may have on the hub; a ModelError if it can be a path alone.

    Example:
        >>> hub_names("all-MiniLM-L6-v2")
        ['all-MiniLM-L6-v2', 'sentence-transformers/all-MiniLM-L6-v2']
    """
    path = name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1
    if path or "\\" in name or not name:
        raise ModelError(f"{name} does not exist; give a folder, a file or a hub name")
    return [name] if "/" in name else [name, f"sentence-transformers/{name}"]


def not_on_hub(name: object, reason: str | None) -> str:
    """The message about an encoder that the hub does not give; no reason means no connection."""
    reason = reason or "no connection, and it is not in the cache"
    return (
        f"{name} is no folder here and cannot be had from the model hub ({reason}); check the "
        "name and the network, or give a folder or a .gguf file"
    )


def hub_answers() -> bool:
    """Whether the hub can be reached: its clients would try for minutes before they give up."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # Of the client, the network or the system.
        return False
    return True
