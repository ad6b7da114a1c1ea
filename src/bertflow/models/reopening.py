"""Load saved calibrated models with their calibrators."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string

from bertflow.arrays import check_device
from bertflow.calibrators import load_calibrator
from bertflow.calibrators.readme import CARD
from bertflow.calibrators.writing import SUBFOLDER
from bertflow.encoders.checks import check_files, check_weights, read_modules, readable
from bertflow.encoders.description import read_card
from bertflow.encoders.encoder import CALIBRATOR, keep_picklable
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import MODULE_PATH
from bertflow.encoders.precision import HALF, raise_input
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.errors import InputError, ModelError
from bertflow.models.calibrated import CalibratedSentenceTransformer, belongs_to_its_calibrator
from bertflow.process_state import pinned

log = logging.getLogger(__name__)


@pinned(seed=True)
def load(
    path: str | Path, *, device: str | None = None, trust_remote_code: bool = False
) -> CalibratedSentenceTransformer:
    """Load a saved calibrated model together with its calibrator.

    Args:
        path: What `save_pretrained` or `bertflow fit --encoder` wrote.
        device: Where it runs; None takes a GPU if there is one.
        trust_remote_code: Whether code that came with the encoder may run.

    Returns:
        The model; `.calibrator` gives inverse, likelihood and sampling.

    Raises:
        ModelError: The folder is not such a model; the message says what is missing.
    """
    path = Path(path)
    if device is not None:
        check_device(device)
    if not (path / "modules.json").is_file():
        raise ModelError(f"{path} is no calibrated model: it holds no modules.json")
    if not (path / SUBFOLDER).is_dir():
        raise ModelError(
            f"{path} is no calibrated model: it holds no {SUBFOLDER}/, which one that was trained "
            "or set otherwise after it was calibrated does not have; SentenceTransformer loads it"
        )
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with readable(lambda said: f"{path} cannot be loaded: {said}"):
        check_files(path)
        calibrator = load_calibrator(path / SUBFOLDER)
        entries = read_modules(path / "modules.json", own=MODULE_PATH, **trust)
        model = CalibratedSentenceTransformer(str(path), device=device, **trust)
        check_weights(model, str(path), [entry["path"] for entry in entries], **trust)
        for entry in entries:
            name, kind = entry["name"], entry["type"]
            if name.startswith(CALIBRATOR):
                if model.dtype in HALF and kind != MODULE_PATH:  # Read it again, in float32.
                    whole = import_from_string(kind).load(str(path), subfolder=entry["path"])
                    model._modules[name] = whole.to(model.device)
                model._modules[name].register_forward_pre_hook(raise_input)
    log.info("%s: a calibrated model, %r", path, calibrator)
    model.calibrator = calibrator
    model._origin = getattr(calibrator, "provenance_", {}).get("origin", {})
    model._card = read_card(path / CARD)
    if not belongs_to_its_calibrator(model.eval()):
        raise ModelError(
            f"{path} holds a calibrator that does not belong to its model, which was trained, "
            "set otherwise or replaced since; SentenceTransformer loads the model alone"
        )
    keep_picklable(model)
    return model


def is_calibrated(name: str | Path) -> bool:
    """Whether a name is the folder of a saved calibrated model."""
    return (Path(name) / SUBFOLDER / "config.json").is_file()


def open_model(
    name: str | Path,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    cache: SentenceCache | None = None,
) -> SentenceTransformer:
    """Open a saved calibrated model, or else an encoder as `load_encoder` does.

    Raises:
        InputError: A pooling or maximum length for a calibrated model, whose own are fixed.
        ModelError: It cannot be had.
    """
    how: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    if not is_calibrated(name):
        return load_encoder(name, pooling=pooling, max_length=max_length, cache=cache, **how)
    if pooling is not None or max_length is not None:
        raise InputError(
            f"{name} is a calibrated model: its pooling and maximum length are those it was "
            "fitted with; leave them out"
        )
    return load(name, **how)
