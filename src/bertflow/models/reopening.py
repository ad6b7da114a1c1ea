"""Saved calibrated models, loaded again with their calibrators."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from bertflow.calibrators import load_calibrator
from bertflow.calibrators.base import check_device
from bertflow.calibrators.card import CARD
from bertflow.calibrators.storage import SUBFOLDER
from bertflow.encoders.checks import (
    check_files,
    check_weights,
    module_class,
    read_modules,
    readable,
    shapes_named,
)
from bertflow.encoders.encoder import CALIBRATOR
from bertflow.encoders.half import HALF, raise_input
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.origin import read_card
from bertflow.encoders.pickling import keep_picklable
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.encoders.sizes import check_sizes
from bertflow.errors import InputError, ModelError
from bertflow.models.calibrated import CalibratedSentenceTransformer
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

OWN_MODULE = f"{CalibratorModule.__module__}.{CalibratorModule.__name__}"


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
            "after it was calibrated does not have; SentenceTransformer loads it"
        )
    check_files(path)
    calibrator = load_calibrator(path / SUBFOLDER)
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with readable(lambda said: f"{path} cannot be loaded: {said}"):
        entries = read_modules(path / "modules.json", own=OWN_MODULE, **trust)
        check_sizes(path, entries, trusted=trust_remote_code)
        folders = [entry["path"] for entry in entries]
        with shapes_named(str(path), folders, **trust):
            own = any(entry["type"] == OWN_MODULE for entry in entries)
            if own and not trust_remote_code:
                model = _load_with_own_module(path, entries, device)
            else:
                model = CalibratedSentenceTransformer(str(path), device=device, **trust)
        check_weights(model, str(path), folders, **trust)
        for entry in entries:
            if entry["name"].startswith(CALIBRATOR):
                if model.dtype in HALF and entry["type"] != OWN_MODULE:
                    kind: Any = module_class(entry["type"], path / "modules.json")
                    whole = kind.load(str(path), subfolder=entry["path"])
                    model._modules[entry["name"]] = whole.to(model.device)
                model._modules[entry["name"]].register_forward_pre_hook(raise_input)
    keep_picklable(model)
    log.info("%s: a calibrated model, %r", path, calibrator)
    model.calibrator = calibrator
    model._origin = getattr(calibrator, "provenance_", {}).get("origin", {})
    model._card = read_card(path / CARD)
    if not model.eval()._has_its_calibrator():
        raise ModelError(
            f"{path} holds a calibrator that does not belong to its model, which was trained or "
            "replaced since; SentenceTransformer loads the model alone"
        )
    return model


def _load_with_own_module(
    path: Path, entries: Sequence[Mapping[str, str]], device: str | None
) -> CalibratedSentenceTransformer:
    """Load module by module: sentence-transformers would ask for trust in ours."""
    modules: Any = OrderedDict()
    for entry in entries:
        kind: Any = CalibratorModule
        if entry["type"] != OWN_MODULE:
            kind = module_class(entry["type"], path / "modules.json")
        modules[entry["name"]] = kind.load(str(path), subfolder=entry["path"])
    config = json.loads((path / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    return CalibratedSentenceTransformer(
        modules=modules,
        device=device,
        prompts=config.get("prompts"),
        default_prompt_name=config.get("default_prompt_name"),
        similarity_fn_name=config.get("similarity_fn_name"),
        truncate_dim=config.get("truncate_dim"),
    )


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
    if not is_calibrated(name):
        return load_encoder(
            name,
            pooling=pooling,
            max_length=max_length,
            device=device,
            trust_remote_code=trust_remote_code,
            cache=cache,
        )
    if pooling is not None or max_length is not None:
        raise InputError(
            f"{name} is a calibrated model: its pooling and maximum length are those it was "
            "fitted with; leave them out"
        )
    return load(name, device=device, trust_remote_code=trust_remote_code)
