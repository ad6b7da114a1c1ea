"""Calibrators by name, and read back from a folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertflow.calibrators.adaptive import AdaptiveWhitening
from bertflow.calibrators.base import Calibrator
from bertflow.calibrators.flow import Flow
from bertflow.calibrators.linear import AllButTheTop, Standardization, Whitening
from bertflow.calibrators.readme import preset_name
from bertflow.calibrators.writing import CONFIG, FORMAT, SUBFOLDER, WEIGHTS
from bertflow.errors import InputError, ModelError, did_you_mean, shown, unknown
from bertflow.io.files import reason_of
from bertflow.io.reading import read_json
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

LISTED = 5
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "BOOL": torch.bool}

KINDS = (AdaptiveWhitening, Flow, Whitening, Standardization, AllButTheTop)
CALIBRATORS: dict[str, type[Calibrator]] = {next(iter(kind.names)): kind for kind in KINDS}
# All names under which Python and the command line construct a calibrator.
NAMED: dict[str, Callable[[], Calibrator]] = {
    **CALIBRATORS,
    **{name: partial(kind, **changes) for kind in KINDS for name, changes in kind.names.items()},
}


def named_calibrator(name: str, **arguments: Any) -> Calibrator:
    """Construct a calibrator by its name and arguments; InputError if one is unknown.

    The names are adaptive-whitening, flow, tempered-flow, released-flow, whitening, standardization
    and all-but-the-top.

    Example:
        >>> named_calibrator("whitening", dim=2)
        Whitening(dim=2)
    """
    if name not in NAMED:
        raise unknown("calibrator", name, NAMED)
    calibrator = NAMED[name]()
    known = sorted(calibrator.get_params(deep=False))
    for key in arguments:
        if key not in known:
            raise _no_argument(name, key, known)
    calibrator.set_params(**arguments)
    return calibrator


def _no_argument(name: str, key: str, known: list[str]) -> InputError:
    """The error for an argument that this calibrator does not have, but another may."""
    has = f"{name} has no {shown(key)}; it has {', '.join(known) or 'no arguments'}"
    if near := did_you_mean(key, known):
        return InputError(f"{has}{near}")
    for other, kind in CALIBRATORS.items():
        arguments = kind().get_params(deep=False)
        if key in arguments:
            return InputError(f"{has}; {key} is one of {other}")
        if near := did_you_mean(key, arguments).removesuffix("?"):
            return InputError(f"{has}{near} of {other}?")
    return InputError(has)


def as_calibrator(given: Any) -> Calibrator:
    """A calibrator from an instance, a name, or None, which means `AdaptiveWhitening()`.

    Example:
        >>> as_calibrator("whitening"), as_calibrator(None)
        (Whitening(), AdaptiveWhitening())
    """
    if given is None:
        return AdaptiveWhitening()
    if isinstance(given, str):
        return named_calibrator(given)
    if isinstance(given, Calibrator):
        return given
    if isinstance(given, type) and issubclass(given, Calibrator):
        raise InputError(f"{given.__name__} is a class; give an instance, {given.__name__}()")
    raise InputError(
        f"expected a calibrator, such as Whitening(), or its name, got {type(given).__name__}; "
        f"the names are {', '.join(NAMED)}"
    )


def recorded_name(recorded: Mapping[str, Any]) -> str:
    """The name and arguments, as people write them, of a calibrator described in a record.

    Example:
        >>> recorded_name({"name": "whitening", "dim": 256})
        'whitening, dim=256'
    """
    name = str(recorded["name"])
    if name not in CALIBRATORS:
        return name
    calibrator = CALIBRATORS[name]()
    known = calibrator.get_params(deep=False).keys() & recorded.keys()
    return preset_name(calibrator.set_params(**{key: recorded[key] for key in known}))


@pinned()
def load_calibrator(folder: str | Path) -> Calibrator:
    """Read a calibrator back, from its own folder or from a saved model's.

    Only JSON and safetensors are read. Names, shapes and types are compared with what the
    configuration asks for before any weight is read.

    Args:
        folder: What `save_calibrator`, `bertflow fit` or a model's `save_pretrained` wrote.

    Returns:
        The fitted calibrator; `provenance_` says what it was fitted on.

    Raises:
        ModelError: The folder, a file or a part of one is missing or foreign; the message names it.
    """
    folder = calibrator_folder(folder)
    config, weights = folder / CONFIG, folder / WEIGHTS
    try:
        calibrator = _constructed(read_json(config))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{config} is no calibrator's: {reason_of(error)}") from None
    if not weights.is_file():
        raise ModelError(f"{weights} is {'no file' if weights.exists() else 'missing'}")
    try:
        with safe_open(weights, framework="pt") as file:
            _compare(file, calibrator, folder)
            # Copied out of the file, which may change; and memory that is aligned otherwise can
            # change the last bit of a product.
            learned = {name: file.get_tensor(name).clone() for name in file.keys()}
        _check_values(learned, calibrator, weights)
        calibrator._restore(learned)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise ModelError(f"{weights} cannot be read: {reason_of(error)}") from None
    calibrator._fitted = True
    log.info("%s: %r of %d dimensions", folder, calibrator, calibrator.n_features_in_)
    return calibrator


def calibrator_folder(folder: str | Path) -> Path:
    """The folder of the two files: the given one, or its `bertflow/` in a saved model."""
    folder = Path(folder)
    try:
        for candidate in [folder / SUBFOLDER, folder]:
            if (candidate / CONFIG).exists() and _is_ours(candidate / CONFIG):
                return candidate
        if not folder.exists():
            raise ModelError(f"{folder} does not exist; give a folder that bertflow has saved")
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {reason_of(error)}") from None
    raise ModelError(
        f"{folder} holds no calibrator: expected {CONFIG} and {WEIGHTS} there or in {SUBFOLDER}/"
    )


def _is_ours(config: Path) -> bool:
    content = read_json(config)
    return isinstance(content, dict) and "calibrator" in content and "format" in content


def _constructed(config: Any) -> Calibrator:
    """The calibrator that a configuration describes, not fitted."""
    kind, version = config["calibrator"], config["format"]
    if type(version) is not int or version != FORMAT:
        raise InputError(f"format {shown(version)} is not {FORMAT}; install a newer bertflow")
    if kind not in CALIBRATORS:
        known = ", ".join(CALIBRATORS)
        raise InputError(f"{shown(kind)} is none of {known}; install a newer bertflow")
    # Files of earlier versions have no number of rows.
    for name in ("n_features_in", "n_samples"):
        value = config[name] if name == "n_features_in" else config.get(name, 2)
        if type(value) is not int or value < 2:
            raise InputError(f"{name} must be an integer from 2 up, got {shown(value)}")
    if not isinstance(config["provenance"], dict):
        raise InputError(f"provenance must be an object, got {shown(config['provenance'])}")
    known = CALIBRATORS[kind]().get_params(deep=False).keys()
    if foreign := config["arguments"].keys() - known:
        raise InputError(
            f"arguments hold {_listed(foreign)}, unknown to this version; install a newer bertflow"
        )
    # Later versions added arguments, whose defaults leave a calibrator as it was.
    calibrator = CALIBRATORS[kind](**config["arguments"])
    calibrator.n_features_in_ = width = config["n_features_in"]
    calibrator._fitted_with = calibrator.get_params(deep=False)
    calibrator.provenance_ = config["provenance"]
    if "n_samples" in config:
        calibrator.n_samples_ = config["n_samples"]
    if (names := config.get("feature_names_in")) is not None:  # It was fitted on a data frame.
        if not isinstance(names, list) or {*map(type, names)} != {str} or len(names) != width:
            raise InputError(f"feature_names_in must be {width} names, got {shown(names)}")
        calibrator.feature_names_in_ = np.array(names, dtype=object)
    return calibrator


def _compare(file: Any, calibrator: Calibrator, folder: Path) -> None:
    """Compare the names, shapes and types in a weights file with those expected."""
    path = folder / WEIGHTS
    found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    try:
        expected = calibrator._allocate(found)
    except (InputError, TypeError, RuntimeError, OverflowError) as error:
        raise ModelError(f"{folder / CONFIG} does not fit {path}: {reason_of(error)}") from None
    if missing := expected.keys() - found.keys():
        raise ModelError(f"{path} lacks {_listed(missing)}")
    if foreign := found.keys() - expected.keys():
        raise ModelError(f"{path} holds foreign names: {_listed(foreign)}")
    for name, tensor in expected.items():
        shape, kind = tuple(tensor.shape), file.get_slice(name).get_dtype()
        if (found[name], TYPES.get(kind)) != (shape, tensor.dtype):
            raise ModelError(
                f"{path}: {name} has type {kind} and shape {found[name]}, expected {tensor.dtype} "
                f"and {shape}"
            )


def _check_values(learned: Mapping[str, Tensor], calibrator: Calibrator, path: Path) -> None:
    """Refuse weights whose map or its inverse would give NaN or infinity."""
    rates = {"log_scale": getattr(calibrator, "scale_rate", 1.0), "log_diagonal": 1.0}
    for name, tensor in learned.items():
        kind = name.rpartition(".")[2]
        factors = (rates[kind] * tensor).exp() if kind in rates else tensor
        good = factors.isfinite()
        if kind in rates or name in ("scale", "gain"):
            good &= factors >= torch.finfo(factors.dtype).tiny
        elif kind == "sign":
            good &= tensor.abs() == 1
        if not bool(good.all()):
            value = float(tensor[~good][0])
            raise ModelError(f"{path}: {name} holds {value}, which no fit gives; fit it anew")


def _listed(names: Iterable[str]) -> str:
    first, rest = (ordered := sorted(names))[:LISTED], ordered[LISTED:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")
