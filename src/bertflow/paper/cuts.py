"""How many texts were too long for an encoder, noted beside its vectors while it is loaded."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentence_transformers import SentenceTransformer

from bertflow.encoders.embedding import count_cut_of
from bertflow.errors import ModelError
from bertflow.io.files import write_text
from bertflow.io.json import read_json

log = logging.getLogger(__name__)

NOTED = "cut.json"


def note_cuts(
    encoder: SentenceTransformer, texts: Mapping[str, Sequence[str]], folders: Sequence[Path]
) -> None:
    """Note of each of several texts how many of its distinct sentences an encoder cuts.

    Args:
        encoder: The encoder.
        texts: By name; what is noted already is not counted again.
        folders: Where its vectors are, of each of its poolings.

    Raises:
        ModelError: A note cannot be written.
    """
    known = {folder: _noted(folder) for folder in folders}
    for name, sentences in texts.items():
        if all(name in noted for noted in known.values()):
            continue
        distinct = list(dict.fromkeys(sentences))
        cut = count_cut_of(encoder, distinct)
        log.info("%s: %d of %d distinct texts cut", name, cut, len(distinct))
        for noted in known.values():
            noted[name] = cut
    for folder, noted in known.items():
        write_text(folder / NOTED, json.dumps(noted, indent=2) + "\n")


def noted_cut(folder: Path, name: str) -> int | None:
    """How many sentences of a text were cut; None where that was not counted."""
    return _noted(folder).get(name)


def _noted(folder: Path) -> dict[str, int]:
    """What is noted, as far as it can be read."""
    if not (folder / NOTED).is_file():
        return {}
    try:
        found = read_json(folder / NOTED)
    except ModelError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: count for name, count in found.items() if type(count) is int}
