"""The loop that trains a Glow by maximum likelihood: one flat buffer, Adam, steps counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertflow.calibrators.base import Array, check_device, check_number
from bertflow.errors import InputError, TrainingError
from bertflow.flows import ActNorm, Glow

Progress = Callable[[int, int, float], None]
Fetch = Callable[[Tensor], Tensor]

BETA1, BETA2 = 0.9, 0.999
WINDOW_ROWS = 8192
# How far training may move the product of the ActNorm scales that act on one dimension.
SCALE_DRIFT = 1000.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast to train; the names are those of `bertflow.Flow`."""

    epochs: float
    batch_size: int
    learning_rate: float
    schedule: Literal["constant", "linear"]
    weight_decay: float
    bias_correction: bool
    adam_epsilon: float
    max_grad_norm: float | None

    def check(self) -> None:
        """Refuse what is out of range.

        Raises:
            InputError: The message names the argument.
        """
        check_number("batch_size", self.batch_size, 1, integer=True)
        for name in ["epochs", "learning_rate", "adam_epsilon"]:
            check_number(name, getattr(self, name), 0, above=True)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, 0, above=True)
        check_number("weight_decay", self.weight_decay, 0)
        if self.schedule not in ("constant", "linear"):
            raise InputError(f"schedule must be 'constant' or 'linear', got {self.schedule!r}")

    def steps(self, rows: int) -> int:
        """The number of steps for so many rows, at least one."""
        return max(1, round(self.epochs * math.ceil(rows / self.batch_size)))

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 - step / total)


def train(
    glow: Glow,
    fetch: Fetch,
    rows: int,
    schedule: Schedule,
    *,
    device: torch.device,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Tensor:
    """Initialise a flow on a shuffled sample and train it in place.

    Args:
        glow: Built, not initialised; it ends on the CPU, frozen.
        fetch: Gives the rows of an index as float32, shape (n,) to (n, D).
        rows: How many rows there are.
        schedule: How long and how fast.
        device: Where to train.
        generator: Source of the order of rows.
        progress: Called after each step with the steps done, their total and the loss.

    Returns:
        The loss of each step in bits per dimension, shape (steps,), float64.

    Raises:
        TrainingError: A loss or gradient is not finite; the message names the step.
    """
    total = schedule.steps(rows)
    curve = torch.empty(total, dtype=torch.float64)
    order = torch.randperm(rows, generator=generator)
    glow.initialize(fetch(order[:WINDOW_ROWS]).cpu())
    glow.to(device)
    optimizer = _FlatAdam(glow, schedule)
    batches = _batches(fetch, rows, order, schedule.batch_size, device, generator)
    with _one_thread(device):
        for step in range(total):
            loss = glow.bits_per_dimension(next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            norm = optimizer.step(schedule.rate(step, total))
            curve[step] = loss.item()
            if not math.isfinite(norm) or not math.isfinite(float(curve[step])):
                raise TrainingError(
                    f"step {step + 1} of {total} is not finite (loss {float(curve[step])}, "
                    f"gradient norm {norm}); lower learning_rate (now {schedule.learning_rate})"
                )
            if progress is not None:
                progress(step + 1, total, float(curve[step]))
    optimizer.release()
    glow.to("cpu").eval().requires_grad_(False)
    return curve


def training_device(name: Literal["auto"] | str, rows: Array | Tensor) -> torch.device:
    """The device of that name; for "auto" where the rows are, or a GPU if there is one.

    Raises:
        InputError: There is none of that name.
    """
    if name != "auto":
        return check_device(name)
    if isinstance(rows, Tensor):
        return rows.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one thread while inside.

    A step is hundreds of operations of microseconds: a second thread gains nothing when the
    machine is idle, costs a factor when it is not, and would make the bits depend on its number.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(
    fetch: Fetch,
    rows: int,
    order: Tensor,
    batch_size: int,
    device: torch.device,
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """Batches without end, shuffled anew each epoch; rows are fetched a window at a time."""
    window = max(1, WINDOW_ROWS // batch_size) * batch_size
    while True:
        for start in range(0, rows, window):
            block = fetch(order[start : start + window]).to(device)
            yield from torch.split(block, batch_size)
        order = torch.randperm(rows, generator=generator)


class _FlatAdam:
    """Adam over all parameters as one vector, so that a step is a handful of operations.

    Parameters and gradients of the flow become views into two buffers. Log-scales of ActNorms are
    kept within a bound of where they started: directions that carry no variance would otherwise
    be scaled up without limit, for their density is unbounded.
    """

    def __init__(self, glow: Glow, schedule: Schedule) -> None:
        self.schedule = schedule
        self.parameters = list(glow.parameters())
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.flat)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = 0
        reach = torch.full_like(self.flat, math.inf)
        norms = [m for m in glow.modules() if isinstance(m, ActNorm)]
        drift = math.log(SCALE_DRIFT) / len(norms)
        bounded = {id(m.log_scale): drift / m.scale_rate for m in norms}
        start = 0
        for p in self.parameters:
            span = slice(start, start + p.numel())
            p.data = self.flat[span].view_as(p)
            p.grad = self.gradient[span].view_as(p)
            reach[span] = bounded.get(id(p), math.inf)
            start = span.stop
        self.lower, self.upper = self.flat - reach, self.flat + reach

    @torch.no_grad()
    def step(self, rate: float) -> float:
        """Apply the gradient at a learning rate, clear it, and return its norm before clipping."""
        how = self.schedule
        self.count += 1
        norm = float(torch.linalg.vector_norm(self.gradient, dtype=torch.float64))
        if how.max_grad_norm is not None and norm > how.max_grad_norm:
            self.gradient.mul_(how.max_grad_norm / norm)
        self.first.lerp_(self.gradient, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(self.gradient, self.gradient, value=1 - BETA2)
        if how.weight_decay:
            self.flat.mul_(1 - rate * how.weight_decay)
        root = self.second.sqrt()
        if how.bias_correction:
            rate /= 1 - BETA1**self.count
            root /= math.sqrt(1 - BETA2**self.count)
        self.flat.addcdiv_(self.first, root.add_(how.adam_epsilon), value=-rate)
        self.flat.clamp_(self.lower, self.upper)
        self.gradient.zero_()
        return norm

    def release(self) -> None:
        """Give each parameter memory of its own again."""
        for p in self.parameters:
            p.data = p.data.clone()
            p.grad = None
