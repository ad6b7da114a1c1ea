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
from collections.abc import Mapping, Sequence, Set
from datetime import date
from enum import Enum
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import save_file
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow.calibrators.presets import calibrator_name
from bertflow.calibrators.readme import CARD, calibrator_card
from bertflow.errors import InputError, shown
from bertflow.io.files import reason_of
from bertflow.io.json import LARGEST as LARGEST_JSON
from bertflow.io.json import parse_json
from bertflow.io.outputs import replaced_folder
from bertflow.process_state import pinned

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator

log = logging.getLogger(__name__)

FORMAT = 1
CONFIG, WEIGHTS, SUBFOLDER = "config.json", "model.safetensors", "bertflow"


def check_savable(calibrator: Calibrator) -> None:
    """Refuse a calibrator that could be fitted but not saved.

    Args:
        calibrator: Fitted or not.

    Raises:
        InputError: It is of a kind, or has an argument, that cannot be stored.

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
    finite becomes its name, such as "inf"; paths, dates and bytes become text; tuples and sets
    become lists.

    Args:
        provenance: A mapping of such values, text, and lists and mappings of them.

    Raises:
        InputError: It holds another value, itself, or too much; the message says where.

    Example:
        >>> plain_provenance({"file": Path("a"), "n": np.int64(3), "max": float("inf")})
        {'file': 'a', 'n': 3, 'max': 'inf'}
    """
    if not isinstance(provenance, Mapping):
        raise InputError(f"provenance must be a mapping, got {shown(provenance)}")
    try:
        found: dict[str, Any] = _plain(provenance, "provenance")
    except RecursionError:
        raise InputError("provenance holds itself, or is nested too deep") from None
    _json(found)
    return found


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | str):  # Also their subclasses.
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, bytes | os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str | int | float | os.PathLike | None):
                raise InputError(
                    f"{place} has the key {shown(key)}, which {CONFIG} cannot hold; give text"
                )
            if str(key) in found:
                raise InputError(f"{place} has two keys that are {shown(str(key))} as text")
            found[str(key)] = _plain(inner, f"{place}[{shown(key)}]")
        return found
    if isinstance(value, Set):
        return sorted((_plain(inner, place) for inner in value), key=repr)
    if isinstance(value, Sequence):
        return [_plain(inner, f"{place}[{number}]") for number, inner in enumerate(value)]
    raise InputError(
        f"{place} is {shown(value)}, which {CONFIG} cannot hold; give text, numbers, or lists and "
        "mappings of them"
    )


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
    config = {
        "format": FORMAT,
        "calibrator": calibrator_name(calibrator),
        "n_features_in": calibrator.n_features_in_,
        **({"n_samples": rows} if (rows := getattr(calibrator, "n_samples_", None)) else {}),
        "arguments": _arguments(calibrator),
        "provenance": plain_provenance(getattr(calibrator, "provenance_", {})),
    }
    tensors = {name: tensor.contiguous() for name, tensor in calibrator._learned().items()}
    (folder / CONFIG).write_bytes(_json(config))
    save_file(tensors, folder / WEIGHTS)


def _arguments(calibrator: Calibrator) -> dict[str, Any]:
    """The arguments of a calibrator as JSON has them."""
    found = {}
    for name, value in calibrator.get_params(deep=False).items():
        plain = value.item() if isinstance(value, np.generic) else value
        finite = not isinstance(plain, float) or math.isfinite(plain)
        if not (plain is None or isinstance(plain, bool | int | float | str)) or not finite:
            raise InputError(f"{name}={shown(value)} cannot be stored; give a number or a string")
        found[name] = plain
    return found


def _json(content: Any) -> bytes:
    """The bytes of a JSON file.

    Raises:
        InputError: The content cannot be written as JSON that can be read back.
    """
    try:
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        parse_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{CONFIG} cannot hold the provenance: {reason_of(error)}") from None
    if len(text) > LARGEST_JSON:
        raise InputError(
            f"{CONFIG} would have {len(text)} bytes, more than {LARGEST_JSON}; "
            "shorten the provenance"
        )
    return text.encode("utf-8")


def without_folders(calibrator: Calibrator) -> Calibrator:
    """A copy of a calibrator whose provenance names files without the folders of this machine.

    Args:
        calibrator: Left as it is.
    """

    def shortened(name: Any) -> Any:
        if isinstance(name, str):
            # The name of a data set on the hub has a slash, too, but is public.
            parts = PureWindowsPath(name) if "\\" in name else PurePath(name)
            return name if name.startswith("hub:") else parts.name or name
        return [shortened(each) for each in name] if isinstance(name, list | tuple) else name

    provenance = dict(getattr(calibrator, "provenance_", {}))
    for key in ("corpus", "vectors"):
        if key in provenance:
            provenance[key] = shortened(provenance[key])
    encoder = provenance.get("encoder")
    origin = provenance.get("origin")
    public_name = origin.get("base_model") if isinstance(origin, Mapping) else None
    if isinstance(encoder, Mapping) and encoder.get("name") not in (None, public_name):
        provenance["encoder"] = {**encoder, "name": shortened(encoder["name"])}
    public = copy.copy(calibrator)
    public.provenance_ = provenance
    return public
