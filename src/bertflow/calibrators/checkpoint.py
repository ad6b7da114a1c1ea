"""The last good state of a training: kept in memory, and in a file from which a fit goes on.

The order of rows, the frame and the initialisation follow from the seed and are not stored.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bertflow.arrays import Array, chunks
from bertflow.errors import ModelError
from bertflow.io.files import check_writable, write_bytes

log = logging.getLogger(__name__)

KIND = "bertflow checkpoint"
NAMES = ("values", "first", "second", "curve")
# Steps between two copies of the state. A copy at each step would be slow, and a GPU would wait for
# each loss.
KEPT_STEPS = 64
# The file is written at most once in so many seconds.
SAVED_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class State:
    """A training between two steps.

    Attributes:
        values: All parameters, shape (P,).
        first: Adam's first moment, shape (P,).
        second: Its second moment, shape (P,).
        curve: The losses of the steps so far, shape (steps,).
    """

    values: Tensor
    first: Tensor
    second: Tensor
    curve: Tensor

    @property
    def step(self) -> int:
        """How many steps there have been."""
        return len(self.curve)


class Checkpoint:
    """The last state that gave a finite loss and gradient, and the file that holds it.

    A file belongs to one run: its rows, arguments, seed, versions, kind of device and number of
    threads. A damaged file, or that of another run, is ignored with a warning in the log. A full
    disk is a warning, too: training goes on.

    Args:
        path: The file, always replaced whole; None keeps the state in memory only.
        run: All that the bits depend on, with "seed", without the contents of the rows.
        rows: The training rows, shape (N, D); hashed only if the file exists or is to be written.
        any_seed: Go on with the seed of the file, which is then that of the run.
    """

    def __init__(
        self,
        path: str | Path | None,
        run: Mapping[str, Any],
        rows: Array | Tensor,
        *,
        any_seed: bool = False,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.run = {name: str(value) for name, value in run.items()}
        self.state: State | None = None
        self._rows = rows
        if self.path is not None:
            check_writable(self.path)
            if self.path.exists():
                self._open(self.path, any_seed)
        self._saved = time.monotonic()

    def keep(self, state: State, loss: Tensor, gradient: Tensor) -> None:
        """Keep a state, with tensors of its own, if the loss and gradient there are finite."""
        norm = torch.linalg.vector_norm(gradient)
        if not (math.isfinite(float(loss)) and math.isfinite(float(norm))):
            return
        self.state = state
        if self.path is not None and time.monotonic() - self._saved >= SAVED_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the state that is kept to the file, if there is one, and something was trained."""
        if self.path is None or self.state is None or not self.state.step:
            return
        tensors = {name: getattr(self.state, name).cpu() for name in NAMES}
        about = {**self.run, "kind": KIND, "contents": self._contents}
        try:
            write_bytes(self.path, save(tensors, {**about, "check": _digest(about, tensors)}))
            log.info("step %d saved in %s", self.state.step, self.path)
        except ModelError as error:
            log.warning("%s; training goes on without a checkpoint", error)
            self.path = None
        self._saved = time.monotonic()

    def _open(self, path: Path, any_seed: bool) -> None:
        """Take the state from the file, if the file is whole and of this run."""
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, str] = file.metadata() or {}
                ours = about.get("kind") == KIND
                tensors = {name: file.get_tensor(name) for name in NAMES} if ours else {}
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            log.warning("%s is damaged (%s): starting anew", path, error)
            return
        if not ours:
            raise ModelError(f"{path} is no checkpoint of a fit; give a file that is not there yet")
        differing = [
            f"{name} {about.get(name)}, not {value}"
            for name, value in self.run.items()
            if about.get(name) != value and not (any_seed and name == "seed")
        ]
        if not differing and about.get("contents") != self._contents:
            differing = ["other values in the rows"]
        if differing:
            log.warning("%s is of another fit (%s): starting anew", path, "; ".join(differing))
        elif about.pop("check", None) != _digest(about, tensors):
            log.warning("%s is damaged (other bytes than were written): starting anew", path)
        else:
            self.state = State(**tensors)
            self.run["seed"] = about["seed"]

    @cached_property
    def _contents(self) -> str:
        """A hash of the rows."""
        digest = hashlib.blake2b(digest_size=16)
        for chunk in chunks(self._rows):
            digest.update(_bytes(chunk))
        return digest.hexdigest()


def _digest(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A hash of all that a file holds."""
    digest = hashlib.blake2b(repr(sorted(about.items())).encode(), digest_size=16)
    for _, tensor in sorted(tensors.items()):
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
