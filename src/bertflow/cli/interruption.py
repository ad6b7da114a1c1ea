"""Ctrl-C: what a command says of what it has kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache

NOTHING = "the same command begins anew: nothing was saved yet"


class Interrupted(Exception):
    """Ctrl-C, and in one line what the same command goes on from."""


def kept(path: Path, cache: SentenceCache | None = None) -> str:
    """What the same command goes on from.

    Args:
        path: What a stopped command leaves; it need not be there.
        cache: Where vectors are kept besides; None if they are not.
    """
    if path.exists():
        return f"the same command goes on from {path}"
    if cache is not None and (cache.found or cache.encoded):
        return f"the same command goes on from the vectors in {cache.folder}"
    return NOTHING
