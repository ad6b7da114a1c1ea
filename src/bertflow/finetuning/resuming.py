"""Going on from a checkpoint of the trainer, if it is whole and of the same run.

Each checkpoint has a record of its run, its losses and the sizes of its files. The record is
written last, so a checkpoint without it, or with other sizes, does not count.
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
    """Find the checkpoint that a run goes on from, and remove all others.

    Args:
        folder: Where its checkpoints are or will be.
        run: All that the result depends on, for JSON.

    Returns:
        The last whole checkpoint of this run or None, and the names in `run` that differ in a
        checkpoint that was discarded.

    Raises:
        ModelError: The folder holds something else, or cannot be written.
    """
    described = json.loads(json.dumps(run))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if not _NAME.fullmatch(path.name):
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
    """Give a classifier the weights of a checkpoint, and return the loss of each step before it."""
    path = checkpoint / CLASSIFIER
    try:
        classifier.load_state_dict(load_file(path))
        losses = [float(loss) for loss in _record(checkpoint)["losses"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove {checkpoint}") from None
    return losses


@contextmanager
def completed(checkpoint: Path, run: Mapping[str, Any], losses: Sequence[float]) -> Iterator[None]:
    """Record a checkpoint that is written inside, and then remove those before it.

    If it cannot be written, no part of it is left.
    """
    try:
        yield
        record = {"run": run, "losses": losses, "files": _sizes(checkpoint)}
        write_text(checkpoint / RECORD, json.dumps(record) + "\n")
    except (BertflowError, OSError, SafetensorError, RuntimeError) as error:
        reason = reason_of(error)
        # torch does not say that the disk is full.
        if shutil.disk_usage(checkpoint.parent).free < SMALL:
            reason = os.strerror(errno.ENOSPC)
        shutil.rmtree(checkpoint, ignore_errors=True)
        if isinstance(error, BertflowError):
            raise
        raise ModelError(f"cannot write {checkpoint}: {reason}") from error
    for other in _checkpoints(checkpoint.parent):
        if step(other) < step(checkpoint):
            shutil.rmtree(other)


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _record(checkpoint: Path) -> dict[str, Any]:
    """The record of a whole checkpoint; empty if a file is missing, cut short or has grown."""
    try:
        record = parse_json((checkpoint / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    kinds = {"run": dict, "losses": list, "files": dict}
    if not isinstance(record, dict) or any(type(record.get(k)) is not v for k, v in kinds.items()):
        return {}
    # Earlier versions recorded the last losses only.
    whole = len(record["losses"]) == step(checkpoint) and record["files"] == _sizes(checkpoint)
    return record if whole else {}


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    }
