"""Going on from the trainer's checkpoints: of this very run and whole, or removed.

A record in each checkpoint says of which run it is and how large its files are. It is written last,
so that a checkpoint without it, or with other sizes, does not count.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from bertflow.errors import BertflowError, ModelError
from bertflow.io.files import reason_of, write_text
from bertflow.io.reading import parse_json

RECORD, CLASSIFIER = "run.json", "classifier.safetensors"
# With less room than this the disk is full: no optimizer state is that small.
SMALL = 2**16
_NAME = re.compile(r"checkpoint-(\d+)")


def last_checkpoint(folder: Path, run: Mapping[str, Any]) -> tuple[Path | None, list[str]]:
    """Find the checkpoint a run goes on from, and remove what it cannot use.

    Args:
        folder: Where its checkpoints are or will be.
        run: All that the result depends on, for JSON.

    Returns:
        The last whole checkpoint of this run or None, and the names in `run` of what was another
        in checkpoints that were discarded.

    Raises:
        ModelError: The folder holds something else, or cannot be written.
    """
    described = json.loads(json.dumps(run))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            # Earlier versions had the record beside the checkpoints.
            if not _NAME.fullmatch(path.name) and path.name != RECORD:
                raise ModelError(
                    f"{folder} is for checkpoints, but holds {path.name}, which bertflow did not "
                    "write; move it, or choose another folder"
                )
        resume, differing = None, list[str]()
        for path in sorted(_checkpoints(folder), key=step, reverse=True):
            earlier = _record(path).get("run")
            if resume is None and earlier == described:
                resume = path
                continue
            if earlier is not None and not differing:
                differing = [name for name in described if earlier.get(name) != described[name]]
            shutil.rmtree(path)
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror or error}") from None
    return resume, [] if resume else differing


def step(checkpoint: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def restore(checkpoint: Path, classifier: nn.Module) -> list[float]:
    """Give a classifier the weights of a checkpoint.

    Returns:
        The losses since the last point of the loss curve when it was saved.

    Raises:
        ModelError: They are not there, or another's.
    """
    path = checkpoint / CLASSIFIER
    try:
        classifier.load_state_dict(load_file(path))
        return [float(loss) for loss in _record(checkpoint)["losses"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove {checkpoint}") from None


@contextmanager
def completed(checkpoint: Path, run: Mapping[str, Any], losses: Sequence[float]) -> Iterator[None]:
    """Record a checkpoint that is written inside, and then remove those before it.

    On a full disk no part of it is left.

    Args:
        checkpoint: The folder.
        run: As in `last_checkpoint`.
        losses: Of the steps since the last point of the loss curve.

    Raises:
        ModelError: It cannot be written.
    """
    try:
        yield
        record = {"run": run, "losses": losses, "files": _sizes(checkpoint)}
        write_text(checkpoint / RECORD, json.dumps(record) + "\n")
    except (BertflowError, OSError, SafetensorError, RuntimeError) as error:
        reason = reason_of(error)
        # torch says only that some position is not what it should be.
        if not isinstance(error, OSError | SafetensorError) and _is_full(checkpoint.parent):
            reason = os.strerror(errno.ENOSPC)
        shutil.rmtree(checkpoint, ignore_errors=True)
        if isinstance(error, BertflowError):
            raise
        raise ModelError(f"cannot write {checkpoint}: {reason}") from error
    for other in _checkpoints(checkpoint.parent):
        if step(other) < step(checkpoint):
            shutil.rmtree(other)


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < SMALL


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _record(checkpoint: Path) -> dict[str, Any]:
    """What is recorded of a whole checkpoint; nothing if a file is not there in full."""
    try:
        record = parse_json((checkpoint / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = isinstance(record, dict) and isinstance(record.get("run"), dict)
    return record if known and record.get("files") == _sizes(checkpoint) else {}


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    }
