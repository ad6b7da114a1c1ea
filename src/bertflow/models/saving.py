"""Save a calibrated model, or its card alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string

from bertflow.calibrators.readme import CARD, HERE, named
from bertflow.calibrators.writing import SUBFOLDER, write_calibrator
from bertflow.encoders.checks import quietly
from bertflow.encoders.description import describe_encoder
from bertflow.encoders.encoder import calibrating, part_of
from bertflow.encoders.probe import (
    can_be_loaded,
    check_saved,
    difference,
    is_fingerprint_of,
    probed,
)
from bertflow.errors import ModelError
from bertflow.io.files import (
    check_replaceable,
    foreign_entries,
    merged_folder,
    replaced_folder,
    write_text,
)
from bertflow.models.card import card_of
from bertflow.process_state import pinned

if TYPE_CHECKING:
    from bertflow.models.calibrated import CalibratedSentenceTransformer

log = logging.getLogger(__name__)

# Modules that differ by more than this from their calibrator were trained since.
CHANGED = 0.01


def save_model(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Save a model to a folder that is then the new one whole, or still the old one.

    It is what `model.save_pretrained` writes, but a folder with files of others is refused.

    Raises:
        ModelError: The folder holds something that bertflow did not write, or cannot be written.
    """
    check_replaceable(folder)
    write_model(model, Path(folder))


def save_card(model: CalibratedSentenceTransformer, folder: str | Path) -> None:
    """Write the card of a saved model anew, with the scores that were added to it since.

    What someone has edited in it stays, and all other files are left alone.

    Args:
        model: As it was loaded from the folder, with `add_scores`.
        folder: Of the saved model.

    Raises:
        ModelError: It cannot be written.
    """
    write_text(Path(folder) / CARD, named(card_of(model), model.model_card_data.model_id or HERE))


@pinned(seed=True)
def write_model(
    model: CalibratedSentenceTransformer,
    folder: Path,
    *,
    name: str | None = None,
    card: bool = True,
    safe_serialization: bool = True,
) -> None:
    """Save a model, see `CalibratedSentenceTransformer.save`."""
    try:
        shared = folder.is_dir() and bool(foreign_entries(folder))
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror or error}") from None
    # A model that was trained further has a card of that, which its trainer knows best.
    trained = "generated_from_trainer" in model.model_card_data.tags
    with merged_folder(folder) if shared else replaced_folder(folder) as staging:
        with quietly():
            SentenceTransformer.save(
                model,
                str(staging),
                model_name=name,
                create_model_card=card and trained,
                safe_serialization=safe_serialization,
            )
        for file in staging.rglob("tokenizer.json"):
            forget_settings(file)
        if card and not trained:
            content = named(card_of(model), model.model_card_data.model_id or name or HERE)
            (staging / CARD).write_text(content, encoding="utf-8", newline="\n")
        name_modules_for_every_version(staging / "modules.json")
        if belongs_to_its_calibrator(model, weights=True):
            (staging / SUBFOLDER).mkdir(exist_ok=True)
            write_calibrator(model.calibrator, staging / SUBFOLDER)
        else:
            log.warning(
                "the model was trained or set otherwise after it was calibrated: its calibrator, "
                "which no longer belongs to it, is not saved"
            )
        if can_be_loaded(model):
            check_saved(staging, model)
    if shared and can_be_loaded(model):  # Files of others may change what is loaded.
        check_saved(folder, model)
    log.info("wrote %s", folder)


def belongs_to_its_calibrator(
    model: CalibratedSentenceTransformer, *, weights: bool = False
) -> bool:
    """Whether a model's encoder and calibrating modules still are those of its calibrator.

    Args:
        model: The model.
        weights: Compare all weights of the encoder as well, which takes a while.
    """
    provenance = getattr(model.calibrator, "provenance_", {})
    described = provenance.get("encoder")
    fitted = described if isinstance(described, dict) else {}
    # An encoder may itself be a calibrated model.
    count = len(fitted.get("modules") or []) or len(model) - len(calibrating(model))
    encoder = part_of(model, list(model)[:count])
    whole = probed(encoder)
    vectors = whole[:, : model.calibrator.n_features_in_]
    if not is_fingerprint_of(provenance.get("probe"), vectors, encoder):
        return False
    if weights and fitted.get("dtype") == str(encoder.dtype).removeprefix("torch."):
        if fitted.get("weights") not in (None, describe_encoder(encoder)["weights"]):
            return False
    features = {"sentence_embedding": torch.from_numpy(whole).to(model.device)}
    with pinned(), torch.no_grad():
        for module in calibrating(model):
            if module not in encoder:
                features = module(features)
    expected = model.calibrator._rows(vectors.astype(np.float64))
    return difference(expected, features["sentence_embedding"].float().cpu().numpy()) <= CHANGED


def name_modules_for_every_version(path: Path) -> None:
    """Give built-in modules the names that every version of sentence-transformers resolves."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    for entry in entries:
        kind, _, name = entry["type"].rpartition(".")
        if not kind.startswith("sentence_transformers."):
            continue
        classic = f"sentence_transformers.models.{name}"
        try:
            same = import_from_string(classic)
        except ImportError:
            continue
        if same is import_from_string(entry["type"]):
            entry["type"] = classic
    path.write_text(json.dumps(entries, indent=2), encoding="utf-8")


def forget_settings(path: Path) -> None:
    """Take out of a tokenizer.json how its tokenizer was last set to cut and pad.

    That is the last call's, not the model's: the same model is the same bytes. The tokenizer itself
    is left alone, since other threads may be using it.

    Args:
        path: As tokenizers writes it; what begins otherwise is left as it is.
    """
    head, name, rest = path.read_text(encoding="utf-8").partition('"added_tokens"')
    try:
        settings = json.loads(head.rstrip().removesuffix(",") + "}")
    except ValueError:
        return
    if settings.get("truncation") is None and settings.get("padding") is None:
        return
    none = json.dumps({**settings, "truncation": None, "padding": None}, indent=2)
    path.write_text(none.removesuffix("\n}") + f",\n  {name}{rest}", encoding="utf-8", newline="\n")
