"""Where an encoder comes from, as far as that is known: its name on the hub and its licence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path

from bertflow.calibrators.readme import CARD
from bertflow.network import hub_answers

LARGEST_CARD = 10**6
# What begins a card that has metadata; of one without, the client would complain in the log.
METADATA = re.compile(r"\s*---[ \t]*\r?\n")
COMMIT = re.compile(r"[0-9a-f]{40}")


def note_hub(model: SentenceTransformer, name: str, revision: str | None) -> None:
    """Note in an encoder that has just come from the hub what it is called there.

    Args:
        model: The encoder.
        name: Its name there.
        revision: The branch, tag or commit that was asked for.
    """
    note: Any = model
    note._hub_name = name
    with suppress(Exception):  # Without the commit the name is still right.
        for file in ("config.json", "modules.json"):
            where: dict[str, Any] = {"revision": revision, "local_files_only": True}
            home = Path(load_file_path(name, file, **where) or "").parent.name
            if COMMIT.fullmatch(home):
                note._hub_commit = home


def origin_of(encoder: SentenceTransformer) -> dict[str, str]:
    """Where an encoder comes from: what was noted when it was loaded, and its card's licence.

    A name counts as the hub's only if the encoder has come from there, so that no folder of a user
    is taken for one. The card is asked of the hub if it is not at hand.

    Args:
        encoder: Any SentenceTransformer.

    Returns:
        As far as they are known: "base_model" and "revision", its name and commit on the hub, and
        "license", with where that was found in "license_from".

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from torch import nn
        >>> origin_of(SentenceTransformer(modules=[nn.Identity()], device="cpu"))
        {}
    """
    origin: dict[str, str] = {}
    # sentence-transformers has asked the hub before it calls a name a base model.
    name = getattr(encoder, "_hub_name", None) or encoder.model_card_data.base_model
    if isinstance(name, str):
        origin["base_model"] = name
        if commit := getattr(encoder, "_hub_commit", None):
            origin["revision"] = commit
    licence, source = encoder.model_card_data.license, "its file or its owner"
    if not licence:
        licence, source = licence_in_card(_card(encoder, origin)), "its card"
    if licence:
        origin |= {"license": licence.strip().lower(), "license_from": source}
    return origin


def _card(encoder: SentenceTransformer, origin: Mapping[str, str]) -> str:
    """An encoder's card: the one that it was loaded with, the hub's, or the one in its folder."""
    if text := getattr(encoder, "_model_card_text", None):
        return str(text)
    if "base_model" in origin:
        where: dict[str, Any] = {
            "revision": origin.get("revision"),
            "local_files_only": not hub_answers(),
        }
        with suppress(Exception):  # The hub may have no card, or not answer.
            return read_card(Path(load_file_path(origin["base_model"], CARD, **where) or ""))
        return ""
    name = getattr(getattr(getattr(encoder[0], "model", None), "config", None), "_name_or_path", "")
    return read_card(Path(name) / CARD) if isinstance(name, str) and name else ""


def licence_in_card(text: str) -> str | None:
    """The licence that a card's metadata name, None if none is there."""
    from huggingface_hub import ModelCard

    if not METADATA.match(text):
        return None
    with suppress(Exception):  # A card is anyone's text.
        data: Any = ModelCard(text, ignore_metadata_errors=True).data
        return data.license if isinstance(data.license, str) else None
    return None


def read_card(path: Path) -> str:
    """The text of a card; nothing if there is none, or one that is no card by its size."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= LARGEST_CARD:
            return path.read_text(encoding="utf-8")
    return ""
