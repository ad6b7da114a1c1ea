"""Where an encoder comes from, as far as that is known: its name on the hub and its licence."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path

from bertflow.network import hub_answers

LARGEST_CARD = 10**6
# What begins a card that has metadata; of one without, the client would complain in the log.
METADATA = re.compile(r"\s*---[ \t]*\r?\n")
COMMIT = re.compile(r"[0-9a-f]{40}")
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "LICENCE.txt", "COPYING")
# Words that are in one licence alone.
WORDING = {
    "apache-2.0": ("Apache License", "Version 2.0, January 2004"),
    "mit": ("Permission is hereby granted, free of charge, to any person obtaining a copy",),
}
# The hub refuses a card whose licence has another identifier than these.
KNOWN = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
    bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause
    bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
    cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0
    epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl
    gpl gpl-2.0 gpl-3.0 h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2
    llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
    ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense
    wtfpl zlib
    """.split()
)


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
    """Where an encoder comes from: what was noted when it was loaded, its card and its files.

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
    found: dict[str, str] = {}
    # sentence-transformers has asked the hub before it calls a name a base model.
    told = getattr(encoder, "_hub_name", None) or encoder.model_card_data.base_model
    if isinstance(told, str):
        found["base_model"] = told
        if commit := getattr(encoder, "_hub_commit", None):
            found["revision"] = commit
    return found | _licence(encoder, found)


def _licence(encoder: SentenceTransformer, found: dict[str, str]) -> dict[str, str]:
    if told := licence_named(getattr(encoder.model_card_data, "license", None)):
        return {"license": told, "license_from": "its file or its owner"}
    config: Any = getattr(getattr(encoder[0], "model", None), "config", None)
    name = getattr(config, "_name_or_path", None)
    folder = Path(name) if isinstance(name, str) and name else None
    if "base_model" in found or (folder is not None and not folder.is_dir()):
        folder = None
    text = getattr(encoder, "_model_card_text", None) or ""
    with suppress(Exception):  # Whatever a card is like, the work does not depend on it.
        if not text and "base_model" in found:
            where: dict[str, Any] = {
                "revision": found.get("revision"),
                "local_files_only": not hub_answers(),
            }
            text = read_card(Path(load_file_path(found["base_model"], "README.md", **where) or ""))
        elif not text and folder is not None:
            text = read_card(folder / "README.md")
    if told := licence_in_card(text):
        return {"license": told, "license_from": "its card"}
    for file in LICENCE_FILES if folder is not None else ():
        words = " ".join(read_card(Path(folder or "", file)).split())
        for licence, parts in WORDING.items():
            if all(part in words for part in parts):
                return {"license": licence, "license_from": f"its file {file}"}
    return {}


def licence_in_card(text: str) -> str | None:
    """The licence that a card's metadata name, None if none is there."""
    from huggingface_hub import ModelCard

    if not METADATA.match(text):
        return None
    with suppress(Exception):  # A card is anyone's text.
        data: Any = ModelCard(text, ignore_metadata_errors=True).data
        return licence_named(data.license)
    return None


def licence_named(value: Any) -> str | None:
    """A licence by the hub's identifier, None if it is none of those."""
    name = value.strip().lower() if isinstance(value, str) else ""
    return name if name in KNOWN else None


def read_card(path: Path) -> str:
    """A text of reasonable size; nothing if there is none."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= LARGEST_CARD:
            return path.read_text(encoding="utf-8")
    return ""
