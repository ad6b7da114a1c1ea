"""Fitted calibrators written to a folder.

A folder holds config.json and model.safetensors, no pickle, and a card, README.md, which is never
read back.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
from collections.abc import Mapping, Set
from datetime import date
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import save_file
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow.calibrators.readme import CARD, calibrator_card, calibrator_name
from bertflow.errors import InputError, shown
from bertflow.io.files import reason_of, replaced_folder
from bertflow.io.reading import LARGEST
from bertflow.process_state import pinned

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator

log = logging.getLogger(__name__)

FORMAT = 1
# The rest of config.json is far shorter than a tenth of the largest file that is read.
LONGEST_PROVENANCE = 9 * LARGEST // 10
CONFIG, WEIGHTS, SUBFOLDER = "config.json", "model.safetensors", "bertflow"


def check_savable(calibrator: Calibrator) -> None:
    """Refuse a calibrator, fitted or not, whose kind or arguments cannot be stored.

    Example:
        >>> from bertflow import Flow
        >>> check_savable(Flow(random_state=np.random.RandomState(0)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        bertflow.errors.InputError: random_state=RandomState(...) ... cannot be stored; give ...
    """
    calibrator_name(calibrator)
    _arguments(calibrator)


def plain_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance as config.json holds it.

    Numbers, arrays and tensors of numpy and torch become numbers and lists; a number that is not
    finite becomes its name, such as "inf"; paths and dates become text; tuples and sets become
    lists. A provenance that holds anything else, itself, or too much is an InputError.

    Example:
        >>> plain_provenance({"file": Path("a"), "n": np.int64(3), "max": float("inf")})
        {'file': 'a', 'n': 3, 'max': 'inf'}
    """
    if not isinstance(provenance, Mapping):
        raise InputError(f"provenance must be a mapping, got {shown(provenance)}")
    try:
        # Indented deeper than in the file, so that the file is no longer than this.
        text = json.dumps(provenance, default=_plain, indent=4)
        plain: dict[str, Any] = json.loads(text, parse_constant=lambda name: str(float(name)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{CONFIG} cannot hold the provenance: {reason_of(error)}") from None
    if len(text) > LONGEST_PROVENANCE:
        raise InputError(f"{CONFIG} cannot hold a provenance of {len(text):,} letters; shorten it")
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    raise TypeError(f"{shown(value)} is no text, number, list or mapping")


def save_calibrator(
    calibrator: Calibrator,
    folder: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted calibrator to a folder, which is never left half-written.

    Args:
        calibrator: Fitted.
        folder: Made if it is not there; replaced if it holds a calibrator; refused if it holds
            something else.
        provenance: What it was fitted on, kept in config.json as `plain_provenance` has it. None
            keeps what the calibrator was loaded or fitted with.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        InputError: An argument of the calibrator, or the provenance, cannot be stored.
        ModelError: The folder holds something else, or cannot be written.

    Example:
        >>> import numpy as np, tempfile
        >>> from bertflow import Whitening, load_calibrator
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_calibrator(Whitening().fit(x), folder)
        ...     load_calibrator(folder)
        Whitening()
    """
    described = copy.copy(calibrator)
    if provenance is not None:
        described.provenance_ = plain_provenance(provenance)
    with replaced_folder(folder) as staging:
        write_calibrator(described, staging)
        content = calibrator_card(described)
        (staging / CARD).write_text(content, encoding="utf-8", newline="\n")
    log.info("wrote %s", folder)


@pinned()
def write_calibrator(calibrator: Calibrator, folder: Path) -> None:
    """Write the two files of a calibrator into a folder that is there."""
    check_is_fitted(calibrator)
    names = getattr(calibrator, "feature_names_in_", None)
    config = {
        "format": FORMAT,
        "calibrator": calibrator_name(calibrator),
        "n_features_in": calibrator.n_features_in_,
        **({"n_samples": rows} if (rows := getattr(calibrator, "n_samples_", None)) else {}),
        **({"feature_names_in": [*map(str, names)]} if names is not None else {}),
        "arguments": _arguments(calibrator),
        "provenance": plain_provenance(getattr(calibrator, "provenance_", {})),
    }
    tensors = {name: tensor.contiguous() for name, tensor in calibrator._learned().items()}
    (folder / CONFIG).write_bytes((json.dumps(config, indent=2) + "\n").encode())
    save_file(tensors, folder / WEIGHTS)


def _arguments(calibrator: Calibrator) -> dict[str, Any]:
    """The arguments of a calibrator as JSON has them."""
    found, fitted = {}, getattr(calibrator, "_fitted_with", {})
    for name, value in calibrator.get_params(deep=False).items():
        plain = value.item() if isinstance(value, np.generic) else value
        finite = not isinstance(plain, float) or math.isfinite(plain)
        if not (plain is None or isinstance(plain, bool | int | float | str)) or not finite:
            raise InputError(f"{name}={shown(value)} cannot be stored; give a number or a string")
        # Where it was fitted does not matter any more.
        if name != "device" and plain != (before := fitted.get(name, plain)):
            raise InputError(
                f"{name} was {before!r} at the fit, not {plain!r}; set it back, or fit"
            )
        found[name] = plain
    return found


def without_folders(calibrator: Calibrator) -> Calibrator:
    """A copy of a calibrator whose provenance names files without the folders of this machine."""
    provenance = dict(getattr(calibrator, "provenance_", {}))
    for key in ("corpus", "vectors"):
        if key in provenance:
            provenance[key] = _without_folders(provenance[key])
    encoder, origin = provenance.get("encoder"), provenance.get("origin")
    public_name = origin.get("base_model") if isinstance(origin, Mapping) else None
    if isinstance(encoder, Mapping) and encoder.get("name") not in (None, public_name):
        provenance["encoder"] = {**encoder, "name": _without_folders(encoder["name"])}
    public = copy.copy(calibrator)
    public.provenance_ = provenance
    return public


def _without_folders(name: Any) -> Any:
    if isinstance(name, list | tuple):
        return [_without_folders(each) for each in name]
    # The name of a data set on the hub has a slash, too, but is public.
    if not isinstance(name, str) or name.startswith("hub:"):
        return name
    return (PureWindowsPath(name) if "\\" in name else PurePath(name)).name or name
