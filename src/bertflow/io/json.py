"""JSON from anyone: small, not nested too deep, each key once, and only finite numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bertflow.errors import ModelError, shown

# Far more bytes than any of our files has; a larger one is foreign, and is not read whole.
LARGEST = 10**6


def parse_json(text: str, *, constants: bool = False) -> Any:
    """Parse JSON that every reader understands alike.

    Python's own parser lets the last of two equal keys win, and takes NaN and Infinity, which JSON
    does not have.

    Args:
        text: The JSON.
        constants: Let NaN, Infinity and numbers too large for a float pass, for the caller to
            refuse where they matter.

    Raises:
        ValueError: It is no such JSON; the message says in one line why.

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
    """What a small JSON file holds.

    Args:
        path: The file.
        largest: The most bytes it may have.

    Raises:
        ModelError: It cannot be read, is larger, or is no JSON; the message names it.
    """
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
