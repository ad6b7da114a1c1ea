"""Calibrators by name, written to a folder, and read back.

A folder holds config.json and model.safetensors, no pickle; reference.safetensors, what is kept of
the fitted rows, which earlier versions lack and ignore; and a README.md, never read back.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow.calibrators.adaptive import AdaptiveWhitening
from bertflow.calibrators.base import Calibrator
from bertflow.calibrators.flow import Flow
from bertflow.calibrators.linear import (
    AllButTheTop,
    SoftStandardization,
    Standardization,
    Whitening,
)
from bertflow.calibrators.moments import QueryMap
from bertflow.calibrators.readme import calibrator_name, preset_name, write_card
from bertflow.calibrators.reference import Reference
from bertflow.errors import InputError, ModelError, check_number, did_you_mean, shown, unknown
from bertflow.io.files import reason_of, replaced_folder
from bertflow.io.reading import LARGEST, path_of, read_json
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

FORMAT = 1
# The rest of config.json is far shorter than a tenth of the largest file that is read.
LONGEST_PROVENANCE = 9 * LARGEST // 10
CONFIG, WEIGHTS, SUBFOLDER = "config.json", "model.safetensors", "bertflow"
REFERENCE = "reference.safetensors"
# What reading a damaged file may raise.
DAMAGE = (
    *(OSError, SafetensorError, LookupError, AttributeError),
    *(ValueError, TypeError, ArithmeticError, RuntimeError),
)
TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.bool: "BOOL"}

CLASSES = (AdaptiveWhitening, Flow, Whitening, Standardization, SoftStandardization, AllButTheTop)
CALIBRATORS: dict[str, type[Calibrator]] = {next(iter(kind.names)): kind for kind in CLASSES}
NAMED: dict[str, Callable[[], Calibrator]] = {
    name: partial(kind, **changes) for kind in CLASSES for name, changes in kind.names.items()
}


def named_calibrator(name: str, **arguments: Any) -> Calibrator:
    """Construct a calibrator by its name and arguments; InputError if one is unknown.

    Example:
        >>> named_calibrator("whitening", dim=2)
        Whitening(dim=2)
    """
    if name not in NAMED:
        raise unknown("calibrator", name, NAMED)
    calibrator = NAMED[name]()
    known = sorted(calibrator.get_params(deep=False))
    for key in arguments.keys() - set(known):
        has = ", ".join(known) or "no arguments"
        raise InputError(f"{name} has no {shown(key)}; it has {has}{did_you_mean(key, known)}")
    calibrator.set_params(**arguments)
    return calibrator


# The calibrator for each job, and why, as docs/guides/jobs.md has it measured.
JOBS: dict[str, tuple[str, str]] = {
    "similarity": ("adaptive-whitening", "it damps what all vectors have in common"),
    "search": ("search-whitening", "on average it gained most where we measured search"),
    "classes": ("soft-standardization", "it keeps the leading axes, which tell classes apart"),
    "clusters": ("soft-standardization", "it keeps the leading axes, which tell groups apart"),
}


def calibrator_for(job: str) -> str:
    """The name of the calibrator for a job; InputError if that is unknown."""
    if job not in JOBS:
        raise unknown("job", job, JOBS)
    return JOBS[job][0]


def as_calibrator(given: Any, job: str = "similarity") -> Calibrator:
    """A calibrator itself, the one of a name, or for None the one for the job."""
    if given is None or isinstance(given, str):
        return named_calibrator(given or calibrator_for(job))
    if isinstance(given, Calibrator):
        return given
    raise InputError(
        f"expected a calibrator, such as Whitening(), or its name, got {shown(given)}; "
        f"the names are {', '.join(NAMED)}"
    )


def recorded_name(recorded: Mapping[str, Any]) -> str:
    """The name and arguments, as people write them, of a calibrator described in a record."""
    name = str(recorded["name"])
    if name not in CALIBRATORS:
        return name
    calibrator = CALIBRATORS[name]()
    known = calibrator.get_params(deep=False).keys() & recorded.keys()
    return preset_name(calibrator.set_params(**{key: recorded[key] for key in known}))


def check_savable(calibrator: Calibrator) -> None:
    """Refuse a calibrator, fitted or not, whose kind or arguments cannot be stored."""
    calibrator_name(calibrator)
    _arguments(calibrator)


def plain_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance as config.json holds it; an InputError if it cannot.

    Numbers and arrays of numpy and torch, sets, paths and dates become plain, inf becomes "inf".
    """
    try:
        # Indented deeper than in the file, so that the file is no longer than this.
        text = json.dumps(dict(provenance), default=_plain, indent=4)
        plain: dict[str, Any] = json.loads(text, parse_constant=lambda name: str(float(name)))
        if len(text) > LONGEST_PROVENANCE:
            raise ValueError(f"{len(text):,} letters are too many")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{CONFIG} cannot hold the provenance: {reason_of(error)}") from None
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    for convert in ("tolist", "isoformat", "__fspath__"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"{shown(value)} is no text, number, list or mapping")


def save_calibrator(
    calibrator: Calibrator, folder: str | Path, *, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a fitted calibrator to a folder, which is never left half-written.

    Args:
        calibrator: Fitted.
        folder: Made if it is not there; replaced if it holds a calibrator; refused if it holds
            something else.
        provenance: What it was fitted on, see `plain_provenance`; None keeps the calibrator's own.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        InputError: An argument of the calibrator, or the provenance, cannot be stored.
        ModelError: The folder holds something else, or cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_calibrator(Whitening().fit([[1, 2], [3, 5]]), folder)
        ...     load_calibrator(folder)
        Whitening()
    """
    described = copy.copy(calibrator)
    if provenance is not None:
        described.provenance_ = plain_provenance(provenance)
    with replaced_folder(folder) as staging:
        write_calibrator(described, staging)
        write_card(described, staging)
    log.info("wrote %s", folder)


@pinned()
def write_calibrator(calibrator: Calibrator, folder: Path, *, reference: bool = True) -> None:
    """Write a calibrator into a folder that is there; what is kept of its rows only if asked."""
    check_is_fitted(calibrator)
    names, queries = getattr(calibrator, "feature_names_in_", None), calibrator.query_map_
    config = {
        "format": FORMAT,
        "calibrator": calibrator_name(calibrator),
        "n_features_in": calibrator.n_features_in_,
        **({"n_samples": rows} if (rows := getattr(calibrator, "n_samples_", None)) else {}),
        **({} if queries is None else {"n_queries": queries.count}),
        **({"feature_names_in": [*map(str, names)]} if names is not None else {}),
        "arguments": _arguments(calibrator),
        "provenance": plain_provenance(getattr(calibrator, "provenance_", {})),
    }
    tensors = {name: tensor.contiguous() for name, tensor in calibrator._tensors().items()}
    (folder / CONFIG).write_bytes((json.dumps(config, indent=2) + "\n").encode())
    save_file(tensors, folder / WEIGHTS)
    if reference and calibrator.reference_ is not None:
        save_file(calibrator.reference_.tensors(), folder / REFERENCE)


def _arguments(calibrator: Calibrator) -> dict[str, Any]:
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


@pinned()
def load_calibrator(folder: str | Path) -> Calibrator:
    """Read a calibrator back, from its own folder or from a saved model's; nothing is unpickled.

    Args:
        folder: What `save_calibrator`, `bertflow fit` or a model's `save_pretrained` wrote.

    Returns:
        The fitted calibrator; `provenance_` says what it was fitted on.

    Raises:
        ModelError: The folder, a file or a part of one is missing or foreign; the message names it.
    """
    folder = calibrator_folder(folder)
    path, weights = folder / CONFIG, folder / WEIGHTS
    with _blamed(f"{path} is no calibrator's"):
        config = read_json(path)
        calibrator = _constructed(config)
    with _blamed(f"{weights} cannot be read"), safe_open(weights, framework="pt") as file:
        _compare(file, calibrator, folder, queries="n_queries" in config)
        # Copied out of the file, which may change; and memory that is aligned otherwise can
        # change the last bit of a product.
        learned = {name: file.get_tensor(name).clone() for name in file.keys()}
        _check_values(learned, calibrator, weights)
        if count := config.get("n_queries"):
            calibrator.query_map_ = QueryMap.restored(count, learned)
        calibrator._restore(learned)
    if (kept := folder / REFERENCE).exists():
        with _blamed(f"{kept} cannot be read"):
            found = Reference.restored(
                load_file(kept), calibrator.n_features_in_, covariance=calibrator._needs_covariance
            )
            if found.moments.count != config.get("n_samples", found.moments.count):
                raise ValueError(f"it is of {found.moments.count} rows, {CONFIG} of others")
            calibrator.reference_ = found
    calibrator._fitted = True
    log.info("%s: %r of %d dimensions", folder, calibrator, calibrator.n_features_in_)
    return calibrator


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    try:
        yield
    except ModelError:  # It names the file already.
        raise
    except DAMAGE as error:
        raise ModelError(f"{what}: {reason_of(error)}") from None


def is_calibrator(name: str | Path) -> bool:
    """Whether a name is the folder of a calibrator alone, without an encoder."""
    config = Path(name) / CONFIG
    if not config.is_file() or (config.parent / "modules.json").exists():
        return False
    with suppress(ModelError):  # Whoever opens it says what is wrong.
        found = read_json(config)
        return isinstance(found, dict) and "calibrator" in found
    return False


def calibrator_folder(folder: str | Path) -> Path:
    """The folder of the two files: the given one, or its `bertflow/` in a saved model."""
    folder = path_of(folder)
    with _blamed(f"{folder} cannot be read"):
        for candidate in [folder / SUBFOLDER, folder]:
            if (candidate / CONFIG).exists():
                return candidate
        if not folder.exists():
            raise ModelError(f"{folder} does not exist; give a folder that bertflow has saved")
    raise ModelError(
        f"{folder} holds no calibrator: expected {CONFIG} and {WEIGHTS} there or in {SUBFOLDER}/"
    )


def _constructed(config: Any) -> Calibrator:
    kind, version = config["calibrator"], config["format"]
    if type(version) is not int or version != FORMAT:
        raise InputError(f"format {shown(version)} is not {FORMAT}; install a newer bertflow")
    if kind not in CALIBRATORS:
        raise InputError(f"{shown(kind)} is none of {[*CALIBRATORS]}; install a newer bertflow")
    # Files of earlier versions have no number of rows, and lack arguments that were added later,
    # whose defaults leave a calibrator as it was.
    arguments = config["arguments"]
    if more := sorted({*arguments} - {*CALIBRATORS[kind]().get_params(deep=False)}):
        raise InputError(f"arguments hold {', '.join(more)}; install a newer bertflow")
    calibrator = CALIBRATORS[kind](**arguments)
    sizes = {"n_features_in": config["n_features_in"]}
    sizes |= {name: config[name] for name in ("n_samples", "n_queries") if name in config}
    for name, value in sizes.items():
        check_number(name, value, 2, integer=True)
        if name != "n_queries":
            setattr(calibrator, f"{name}_", value)
    if not isinstance(config["provenance"], dict):
        raise InputError(f"provenance must be an object, got {shown(config['provenance'])}")
    calibrator._fitted_with = calibrator.get_params(deep=False)
    calibrator.provenance_ = config["provenance"]
    if (names := config.get("feature_names_in")) is not None:  # It was fitted on a data frame.
        if not isinstance(names, list) or len(names) != config["n_features_in"]:
            raise InputError(f"feature_names_in must name each dimension, got {shown(names)}")
        calibrator.feature_names_in_ = np.array(names, dtype=object)
    return calibrator


def _compare(file: Any, calibrator: Calibrator, folder: Path, *, queries: bool) -> None:
    parts = {name: file.get_slice(name) for name in file.keys()}
    shapes = {name: tuple(part.get_shape()) for name, part in parts.items()}
    with _blamed(f"{folder / CONFIG} does not fit {folder / WEIGHTS}"):
        allocated = calibrator._allocate(shapes)
    if queries:
        allocated |= QueryMap.allocated(calibrator.n_features_in_)
    expected = {name: (TYPES[part.dtype], tuple(part.shape)) for name, part in allocated.items()}
    given = {name: (part.get_dtype(), shapes[name]) for name, part in parts.items()}
    for name in sorted(expected.keys() | given.keys()):
        found, wanted = given.get(name, "missing"), expected.get(name, "none")
        if found != wanted:
            raise ModelError(f"{folder / WEIGHTS}: {name} is {found}, expected {wanted}")


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
