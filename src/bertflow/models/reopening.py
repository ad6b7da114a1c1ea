"""Load saved calibrated models with their calibrators."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from bertflow.arrays import check_device
from bertflow.calibrators import load_calibrator
from bertflow.calibrators.readme import CARD
from bertflow.calibrators.storage import SUBFOLDER
from bertflow.encoders.checks import check_files, check_weights, read_modules, readable
from bertflow.encoders.encoder import CALIBRATOR, keep_picklable
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import MODULE_PATH
from bertflow.encoders.precision import HALF, raise_inputs
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.errors import InputError, ModelError
from bertflow.models.calibrated import CalibratedSentenceTransformer, belongs_to_its_calibrator
from bertflow.process_state import pinned

log = logging.getLogger(__name__)


@pinned(seed=True)
def load(
    path: str | Path, *, device: str | None = None, trust_remote_code: bool = False
) -> CalibratedSentenceTransformer:
    """Load what `save_pretrained` or `bertflow fit --encoder` wrote, with its calibrator.

    `device` and `trust_remote_code` are as in `load_encoder`.

    Raises:
        ModelError: The folder is not such a model; the message says what is missing.
    """
    path = Path(path)
    if device is not None:
        check_device(device)
    for name in ("modules.json", f"{SUBFOLDER}/"):
        if not (path / name).exists():
            raise ModelError(
                f"{path} is no calibrated model: it holds no {name}, as one that was trained or "
                "set otherwise after it was calibrated; SentenceTransformer may load it"
            )
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with readable(lambda said: f"{path} cannot be loaded: {said}"):
        check_files(path)
        calibrator = load_calibrator(path / SUBFOLDER)
        entries = read_modules(path / "modules.json", own=MODULE_PATH, **trust)
        model = CalibratedSentenceTransformer(str(path), device=device, **trust)
        check_weights(model, str(path), [entry["path"] for entry in entries], **trust)
        for entry in entries:
            if (name := entry["name"]).startswith(CALIBRATOR):
                module: Any = model._modules[name]
                if model.dtype in HALF and entry["type"] != MODULE_PATH:
                    # Read it again, in float32.
                    module = type(module).load(str(path), subfolder=entry["path"])
                    model._modules[name] = module.to(model.device)
                raise_inputs(module)
    log.info("%s: a calibrated model, %r", path, calibrator)
    model.calibrator = calibrator
    origin, model._card = getattr(calibrator, "provenance_", {}).get("origin"), ""
    model._origin = origin if isinstance(origin, Mapping) else {}
    with suppress(OSError, ValueError):  # It may be gone, or be no text.
        model._card = (path / CARD).read_text(encoding="utf-8")
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
