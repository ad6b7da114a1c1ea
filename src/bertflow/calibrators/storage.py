"""Calibrators on disk: config.json and model.safetensors, a fixed table of names, no pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bertflow.calibrators.base import Calibrator
from bertflow.calibrators.flow import Flow
from bertflow.calibrators.linear import AllButTheTop, Standardization, Whitening
from bertflow.errors import InputError, ModelError

FORMAT = 1
MANIFEST = ".bertflow-files.json"
CONFIG, WEIGHTS, SUBFOLDER = "config.json", "model.safetensors", "bertflow"
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "BOOL": torch.bool}

# Arguments that came with a later version. A file of an earlier one has none of them and means
# their defaults, with which a calibrator is what it was.
ADDED = {"flow": {"normalize", "axes", "noise", "leading", "leading_gain", "centring"}}

CALIBRATORS: dict[str, type[Calibrator]] = {
    "flow": Flow,
    "whitening": Whitening,
    "standardization": Standardization,
    "all-but-the-top": AllButTheTop,
}


def calibrator_name(calibrator: Calibrator) -> str:
    """The name a calibrator goes by in files and on the command line."""
    for name, kind in CALIBRATORS.items():
        if type(calibrator) is kind:
            return name
    raise InputError(f"{type(calibrator).__name__} is none of {', '.join(CALIBRATORS)}")


def save_calibrator(
    calibrator: Calibrator,
    folder: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted calibrator to a folder, which is the old one or the new one, never half.

    Args:
        calibrator: Fitted.
        folder: Made if it is not there; replaced if it holds a calibrator; refused if it holds
            something else.
        provenance: What it was fitted on, kept in config.json. None keeps what the calibrator
            was loaded or fitted with.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        ModelError: The folder holds something else, or cannot be written.

    Example:
        >>> import numpy as np, tempfile
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_calibrator(Whitening().fit(x), folder)
        ...     load_calibrator(folder)
        Whitening()
    """
    with replaced_folder(folder) as staging:
        write_calibrator(calibrator, staging, provenance=provenance)


def write_calibrator(
    calibrator: Calibrator, folder: Path, *, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write the two files of a calibrator into a folder that is there."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(calibrator)
    if provenance is None:
        provenance = getattr(calibrator, "provenance_", {})
    config = {
        "format": FORMAT,
        "calibrator": calibrator_name(calibrator),
        "n_features_in": calibrator.n_features_in_,
        "arguments": {k: _plain(k, v) for k, v in calibrator.get_params(deep=False).items()},
        "provenance": dict(provenance),
    }
    tensors = {name: tensor.contiguous() for name, tensor in calibrator._learned().items()}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS)


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
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        calibrator = _constructed(config)
    except InputError as error:
        raise ModelError(f"{folder / CONFIG}: {error}") from None
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG} is no calibrator's configuration: {error}") from None
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            _compare(file, calibrator, folder)
            calibrator._restore({name: file.get_tensor(name) for name in file.keys()})
            calibrator._fitted = True
    except FileNotFoundError:
        raise ModelError(f"{folder / WEIGHTS} is missing") from None
    except ModelError:
        raise
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {reason}") from None
    calibrator.provenance_ = config["provenance"]
    return calibrator


def calibrator_folder(folder: str | Path) -> Path:
    """Where the two files lie: the folder itself, or the part of a saved model.

    Raises:
        ModelError: Neither holds them; the message says what is there.
    """
    folder = Path(folder)
    for candidate in [folder / SUBFOLDER, folder]:
        if (candidate / CONFIG).is_file() and _is_ours(candidate / CONFIG):
            return candidate
    if not folder.exists():
        raise ModelError(f"{folder} does not exist; give a folder that bertflow has saved")
    raise ModelError(
        f"{folder} holds no calibrator: expected {CONFIG} and {WEIGHTS} there or in {SUBFOLDER}/"
    )


@contextmanager
def replaced_folder(target: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then takes the target's place in one move.

    If filling fails, the target stays what it was.

    Args:
        target: Must not exist, be empty, or hold nothing but what was written this way before: a
            list of that is kept in the folder.

    Raises:
        ModelError: The target holds something else, or cannot be written.
    """
    target = Path(target)
    check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error.strerror}") from None
    try:
        staging.chmod(0o755)
        yield staging
        (staging / MANIFEST).write_text(json.dumps(_files(staging)) + "\n", encoding="utf-8")
        _take_place(staging, target)
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _take_place(staging: Path, target: Path) -> None:
    """Move a folder to where another is or was; if that fails, the other is where it was."""
    if not target.exists():
        staging.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        target.rename(aside / "old")
        try:
            staging.rename(target)
        except BaseException:
            (aside / "old").replace(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file that is then the new one whole, or still the old one.

    Raises:
        ModelError: It cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file that is then the new one whole, or still the old one.

    Raises:
        ModelError: It cannot be written.
    """
    path = Path(path)
    staging = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging.write_bytes(content)
        staging.replace(path)
    except OSError as error:
        with suppress(OSError):
            staging.unlink(missing_ok=True)
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None


def check_writable(path: str | Path) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Raises:
        ModelError: It is a folder, or is in none that may be written to.
    """
    path = Path(path)
    home = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir():
        raise ModelError(f"cannot write {path}: it is a folder; give a file")
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise ModelError(f"cannot write {path}: {home} is not a folder that may be written to")


def check_replaceable(target: str | Path) -> None:
    """Refuse a target that holds something that is not ours, before any work is done for it.

    Raises:
        ModelError: It does, or it cannot be written.
    """
    target = Path(target)
    home = next(folder for folder in [target, *target.absolute().parents] if folder.exists())
    if target.exists() and not target.is_dir():
        raise ModelError(f"{target} is a file; give a folder that is empty or not there yet")
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise ModelError(f"cannot write {target}: {home} is not a folder that may be written to")
    if not target.exists():
        return
    try:
        ours = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        ours = []
    foreign = [name for name in _files(target) if name not in ours and name != MANIFEST]
    if foreign:
        raise ModelError(
            f"{target} holds {foreign[0]}, which bertflow did not write there; "
            "give a folder that is empty or not there yet"
        )


def _files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )


def _is_ours(config: Path) -> bool:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "calibrator" in content and "format" in content


def _constructed(config: Any) -> Calibrator:
    if config["format"] != FORMAT:
        raise InputError(f"format {config['format']} is not {FORMAT}; install a newer bertflow")
    if config["calibrator"] not in CALIBRATORS:
        raise InputError(f"{config['calibrator']!r} is none of {', '.join(CALIBRATORS)}")
    width = config["n_features_in"]
    if not isinstance(width, int) or width < 2:
        raise InputError(f"n_features_in must be an integer from 2 up, got {width!r}")
    if not isinstance(config["provenance"], dict):
        raise InputError(f"provenance must be an object, got {config['provenance']!r}")
    kind = CALIBRATORS[config["calibrator"]]
    missing = kind().get_params(deep=False).keys() - config["arguments"].keys()
    added = ADDED.get(config["calibrator"], set())
    if missing := missing - added if missing >= added else missing:
        raise InputError(f"arguments lack {', '.join(sorted(missing))}")
    calibrator = kind(**config["arguments"])
    calibrator.n_features_in_ = width
    return calibrator


def _compare(file: Any, calibrator: Calibrator, folder: Path) -> None:
    """Compare a weights file's table of contents with what belongs there."""
    path = folder / WEIGHTS
    found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    try:
        expected = calibrator._allocate(found)
    except (InputError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG} does not fit {path}: {error}") from None
    if missing := sorted(expected.keys() - found.keys()):
        raise ModelError(f"{path} lacks {', '.join(missing)}")
    if foreign := sorted(found.keys() - expected.keys()):
        raise ModelError(f"{path} holds foreign names: {', '.join(foreign)}")
    for name, tensor in expected.items():
        if found[name] != (shape := tuple(tensor.shape)):
            raise ModelError(f"{path}: {name} has shape {found[name]}, expected {shape}")
        if TYPES.get(kind := file.get_slice(name).get_dtype()) != tensor.dtype:
            raise ModelError(f"{path}: {name} has type {kind}, expected {tensor.dtype}")


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{name}={value!r} cannot be stored; give a number or a string")
