"""Checkpoints of a run: whole or not there, and of this very run or discarded.

sentence-transformers' trainer saves the encoder, the optimizer, the schedule and the random
states, but not the weights of the loss, the classifier, nor the losses since the last point of
the loss curve. They are added here, and after them a list of all files with their sizes, by which
a checkpoint is known to be whole.
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
from safetensors.torch import load_file, save_file
from torch import nn

from bertflow.errors import BertflowError, ModelError
from bertflow.finetuning.result import CLASSIFIER
from bertflow.io.files import reason_of, sole_writer, write_text
from bertflow.io.json import parse_json

RUN, WHOLE, LOSSES = "run.json", "whole.json", "losses.json"
# With less room than this the disk is full: no optimizer state is that small.
SMALL = 2**16
_NAME = re.compile(r"checkpoint-(\d+)")


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep other processes from training into the same folder while inside.

    Raises:
        ModelError: One is training there, or the folder's parent cannot be written.
    """
    if folder is None:
        yield
        return
    with sole_writer(folder, folder.with_name(f".{folder.name}.lock")):
        yield


def open_checkpoints(folder: Path, run: Mapping[str, Any]) -> tuple[Path | None, list[str]]:
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
            if not (_NAME.fullmatch(path.name) or path.name.lstrip(".").startswith(RUN)):
                raise ModelError(
                    f"{folder} is for checkpoints, but holds {path.name}, which bertflow did not "
                    "write; move it, or choose another folder"
                )
        found = {step(path): path for path in folder.iterdir() if _NAME.fullmatch(path.name)}
        if (earlier := _described(folder)) == described:
            for number, path in list(found.items()):
                if not is_whole(path):
                    shutil.rmtree(path)
                    del found[number]
            return (found[max(found)] if found else None), []
        for path in found.values():
            shutil.rmtree(path)
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror or error}") from None
    write_text(folder / RUN, json.dumps(described, indent=2) + "\n")
    return None, [
        name for name in described if earlier.get(name) != described[name]
    ] if found else []


def _described(folder: Path) -> dict[str, Any]:
    try:
        content = parse_json((folder / RUN).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def step(checkpoint: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def complete_checkpoint(checkpoint: Path, classifier: nn.Module, losses: Sequence[float]) -> None:
    """Add what the trainer left out and the list of files, then remove the checkpoints before.

    Args:
        checkpoint: What the trainer has written.
        classifier: The head.
        losses: Of the steps since the last point of the loss curve.

    Raises:
        ModelError: It cannot be written.
    """
    with written_or_not(checkpoint):
        save_file(classifier.state_dict(), checkpoint / CLASSIFIER)
        (checkpoint / LOSSES).write_text(json.dumps(list(losses)) + "\n", encoding="utf-8")
        write_text(checkpoint / WHOLE, json.dumps(_sizes(checkpoint)) + "\n")
        for other in checkpoint.parent.iterdir():
            if _NAME.fullmatch(other.name) and step(other) < step(checkpoint):
                shutil.rmtree(other)


@contextmanager
def written_or_not(checkpoint: Path) -> Iterator[None]:
    """Say in one line why a checkpoint cannot be written, and leave no part of it on a full disk.

    Raises:
        ModelError: It cannot be written.
    """
    try:
        yield
    except BertflowError:
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = reason_of(error)
        # torch says only that some position is not what it should be.
        full = shutil.disk_usage(checkpoint.parent).free < SMALL
        if full and not isinstance(error, OSError | SafetensorError):
            reason = os.strerror(errno.ENOSPC)
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise ModelError(f"cannot write {checkpoint}: {reason}") from error


def is_whole(checkpoint: Path) -> bool:
    """Whether every file of a checkpoint is there in full."""
    try:
        listed = parse_json((checkpoint / WHOLE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(listed == _sizes(checkpoint))


def restore_classifier(checkpoint: Path, classifier: nn.Module) -> None:
    """Give a classifier the weights of a checkpoint.

    Raises:
        ModelError: They are not there, or another's.
    """
    path = checkpoint / CLASSIFIER
    try:
        classifier.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove {checkpoint}") from None


def restore_losses(checkpoint: Path) -> list[float]:
    """The losses of a checkpoint since the last point of the curve; none if it has no such list."""
    try:
        return [float(one) for one in json.loads((checkpoint / LOSSES).read_text("utf-8"))]
    except FileNotFoundError:
        return []


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != WHOLE
    }
