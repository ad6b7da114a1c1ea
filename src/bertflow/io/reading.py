"""Files of others: their kind by the first bytes, small JSON, and whether the hub answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bertflow.errors import ModelError, shown

# So many bytes are enough to tell.
HEAD = 512
PACKED_WITH = (
    "is packed with {0}; unpack it (only text and tables may be packed, once, with a name in {1})"
)
KINDS = {
    b"version https://git-lfs": "is a git-lfs pointer, not the file; fetch that by: git lfs pull",
    b"/annex/objects/": "is a git-annex pointer, not the file; fetch that by: git annex get",
    b"\x1f\x8b": PACKED_WITH.format("gzip", ".gz"),
    **{b"BZh%d1AY" % level: PACKED_WITH.format("bzip2", ".bz2") for level in range(1, 10)},
    b"\xfd7zXZ\0": PACKED_WITH.format("xz", ".xz"),
    b"\x28\xb5\x2f\xfd": PACKED_WITH.format("zstd", ".zst"),
    b"PK\x03\x04": "is a zip archive, as .xlsx, .docx and .npz are; unpack it or export it as text",
    b"PK\x05\x06": "is an empty zip archive",
    b"Rar!\x1a": "is a RAR archive; unpack it",
    b"\x04\x22\x4d\x18": "is packed with lz4; unpack it",
    b"7z\xbc\xaf\x27\x1c": "is a 7z archive; unpack it",
    b"PAR1\x15": "is a .parquet file; name it so, or give that as its format",
    b"ARROW1\0\0": "is an Arrow file; write it as .parquet",
    b"\x93NUMPY": "is a .npy file, an array of numpy",
    b"%PDF-": "is a PDF; export its text",
    b"{\\rtf": "is an RTF document; export its text",
    b"\xd0\xcf\x11\xe0": "is an old Office document; export its text",
    b"\x89HDF": "is an HDF5 file",
    b"SQLite format 3\0": "is an SQLite database; export its text",
    b"\xff\xfe\0\0": "is not UTF-8 text but UTF-32; convert it to UTF-8",
    b"\xff\xfe": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"\xfe\xff": "is not UTF-8 text but UTF-16; convert it to UTF-8",
    b"Obj\x01": "is an Avro file; write it as .parquet",
    b"<?xml": "is XML; export its text",
    b"<!doctype html": "is a web page; export its text",
    b"<html": "is a web page; export its text",
}
TAR_MARK, TAR_PLACE = b"ustar", 257


def contents(head: bytes) -> str | None:
    """The message about a file by its first `HEAD` bytes; None if its name may be right.

    Example:
        >>> contents(b"%PDF-1.7 ...")
        'is a PDF; export its text'
    """
    if head[TAR_PLACE:].startswith(TAR_MARK):
        return "is a tar archive; unpack it"
    heads = head, head.removeprefix(b"\xef\xbb\xbf").lower()
    found = (said for begin, said in KINDS.items() if any(one.startswith(begin) for one in heads))
    return next(found, None)


# Far more bytes than any of our files has; a larger one is foreign, and is not read whole.
LARGEST = 10**6


def parse_json(text: str, *, constants: bool = False) -> Any:
    """Parse JSON that every reader understands alike; a ValueError says in one line why not.

    Python's own parser lets the last of two equal keys win, and takes NaN, Infinity and numbers too
    large for a float. With `constants` those numbers pass, for the caller to refuse where they
    matter.

    Example:
        >>> parse_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> parse_json('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it has the key 'a' twice
    """
    checks: dict[str, Any] = (
        {} if constants else {"parse_constant": _finite, "parse_float": _finite}
    )
    try:
        return json.loads(text, object_pairs_hook=_once, **checks)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(path: Path, *, largest: int = LARGEST) -> Any:
    """Parse a small JSON file; a ModelError names a file that is not JSON, or is larger."""
    try:
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is no file")
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


def hub_answers() -> bool:
    """Whether the hub can be reached: its clients would try for minutes before they give up."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    if getproxies().get(hub.scheme):
        return True  # The proxy's answer is for the client to get.
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=10).close()
    except OSError:
        return False
    return True
