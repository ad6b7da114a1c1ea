"""The loop that trains a Glow by maximum likelihood, its checkpoint, and its steps on a GPU.

A checkpoint is small: the order of rows, the frame and the initialisation follow from the seed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bertflow.arrays import chunks
from bertflow.calibrators.base import Progress, Vectors
from bertflow.errors import ModelError, TrainingError, check_choice, check_number
from bertflow.flows import ActNorm, FlatParameters, Glow, InvertibleLinear, LikelihoodGradient
from bertflow.io.files import check_writable, write_bytes
from bertflow.process_state import one_thread

log = logging.getLogger(__name__)

T = TypeVar("T")
Fetch = Callable[[Tensor], Tensor]
Factors = tuple[float, float, float] | Tensor

BETA1, BETA2 = 0.9, 0.999
WINDOW_ROWS = 8192
# The largest factor by which training may change the product of the ActNorm scales of one
# dimension, or of the diagonals of learned matrices.
SCALE_DRIFT = 1000.0
# Calls before a GPU's steps are recorded. The first call sets up CUDA libraries, which cannot be
# recorded.
WARM_UP = 3
KIND = "bertflow checkpoint"
# Steps between two looks at a GPU's losses, for which it has to wait; a state is saved only then.
KEPT_STEPS = 64
# The file is written at most once in so many seconds.
SAVED_SECONDS = 10.0


@dataclass(kw_only=True, repr=False, eq=False)
class Schedule:
    """How long and how fast to train: arguments of `bertflow.Flow`, which documents them."""

    epochs: float = 1.0
    batch_size: int = 32
    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear"] = "linear"
    weight_decay: float = 0.0
    bias_correction: bool = True
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def _check_schedule(self) -> None:
        check_number("batch_size", self.batch_size, 1, integer=True)
        check_number("weight_decay", self.weight_decay, 0)
        for name in ["epochs", "learning_rate", "adam_epsilon", "max_grad_norm"]:
            if name != "max_grad_norm" or self.max_grad_norm is not None:
                check_number(name, getattr(self, name), 0, above=True)
        check_choice("bias_correction", self.bias_correction, (True, False))
        check_choice("schedule", self.schedule, ("constant", "linear"))

    def _steps(self, rows: int) -> int:
        return max(1, round(self.epochs * math.ceil(rows / self.batch_size)))


def train(
    glow: Glow,
    fetch: Fetch,
    rows: int,
    schedule: Schedule,
    *,
    device: torch.device,
    generator: torch.Generator,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    new: bool = True,
) -> Tensor:
    """Initialise a Glow on a shuffled sample, train it in place, and leave it on the CPU, frozen.

    One that is not `new` is trained already, and keeps its weights.
    `fetch` gives the rows of an index as float32, (n,) to (n, D), on the device or the CPU; `rows`
    is how many there are, and the generator the source of their order. Returns the loss of each
    step in bits per dimension, shape (steps,), float64.
    """
    total = schedule._steps(rows)
    order = torch.randperm(rows, generator=generator)
    first_rows = fetch(order[:WINDOW_ROWS])
    # In float64, which not every device has.
    if new:
        glow.to(first_rows.device).initialize(first_rows)
    else:
        glow.train().requires_grad_(True)
    glow.to(device)
    suits = LikelihoodGradient.suits(glow)
    objective = LikelihoodGradient(glow) if suits else _Autograd(glow)
    optimizer = _Adam(glow, objective.parameters, schedule, total)
    curve = torch.empty(total, dtype=torch.float64)
    start = 0
    if checkpoint is not None and checkpoint.state is not None:
        start = optimizer.go_on(checkpoint.state)
        curve[:start] = checkpoint.state.curve
    log.info("%d rows of %d dimensions, step %d of %d", rows, glow.features, start, total)
    batches = _batches(fetch, order, schedule.batch_size, device, generator, start)
    losses, norms = torch.empty(2, total, device=device)
    fetched = steps_fetched(device)
    # A step is hundreds of operations that take microseconds: a second thread gains nothing, and
    # would make the bits depend on the number of threads. On a GPU launching takes longest.
    with one_thread() if device.type == "cpu" else on_a_stream(device):
        loss_of: Callable[[Tensor], Tensor] = recorded(objective, device)
        update = recorded(optimizer.update, device)
        for step in range(start, total):
            if checkpoint is not None and step % KEPT_STEPS == 0:
                checkpoint.save(optimizer.state(curve[:step]))
            losses[step] = loss_of(next(batches))
            norms[step] = update(optimizer.factors(step))
            if (done := step + 1) % fetched and done < total:
                continue
            first = step // fetched * fetched
            curve[first:done] = losses[first:done]
            _check_finite(losses, norms, first, done, schedule)
            if progress is not None:
                for n in range(first, done):
                    progress(n + 1, total, float(curve[n]))
    objective.parameters.release()
    glow.to("cpu").eval().requires_grad_(False)
    return curve


def steps_fetched(device: torch.device) -> int:
    """Steps between two readings of the losses."""
    return 1 if device.type == "cpu" else KEPT_STEPS


def _check_finite(losses: Tensor, norms: Tensor, first: int, done: int, schedule: Schedule) -> None:
    bad = ~(losses[first:done].isfinite() & norms[first:done].isfinite())
    if bool(bad.any()):
        at = first + int(bad.int().argmax())
        raise TrainingError(
            f"step {at + 1} of {len(losses)} is not finite (loss {float(losses[at])}, gradient "
            f"norm {float(norms[at])}); lower learning_rate (now {schedule.learning_rate})"
        )


def _batches(
    fetch: Fetch,
    order: Tensor,
    size: int,
    device: torch.device,
    generator: torch.Generator,
    skipped: int,
) -> Iterator[Tensor]:
    """Batches without end, shuffled anew each epoch; skipped ones are drawn, but not fetched."""
    rows, window = len(order), max(1, WINDOW_ROWS // size) * size
    while True:
        left = order[skipped * size :]
        for index in torch.split(left, window) if len(left) else ():
            yield from torch.split(fetch(index).to(device), size)
        skipped = max(0, skipped - math.ceil(rows / size))
        order = torch.randperm(rows, generator=generator)


class _Autograd:
    """Loss and gradient of any Glow, for those whose gradient is not written out."""

    def __init__(self, glow: Glow) -> None:
        self.glow = glow
        scales = [m.log_scale for m in glow.modules() if isinstance(m, ActNorm)]
        others = [p for p in glow.parameters() if all(p is not scale for scale in scales)]
        self.parameters = FlatParameters([*scales, *others])

    def __call__(self, x: Tensor) -> Tensor:
        self.parameters.gradient.zero_()
        loss = self.glow.bits_per_dimension(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class _Adam:
    """Adam over all parameters as one vector, so that a step is a handful of operations.

    Log-scales of ActNorms, which must come first, and of `InvertibleLinear` are kept near their
    start: the density of directions without variance is unbounded.
    """

    def __init__(
        self, glow: Glow, parameters: FlatParameters, schedule: Schedule, total: int
    ) -> None:
        self.schedule, self.total = schedule, total
        self.flat, self.gradient = parameters.values, parameters.gradient
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.root = torch.empty_like(self.flat)
        self.table: Tensor | None = None
        if self.flat.device.type == "cuda":
            rows = [self._factors(step) for step in range(total)]
            self.table = torch.tensor(rows, device=self.flat.device)
        norms = [m for m in glow.modules() if isinstance(m, ActNorm)]
        mixing = [m for m in glow.modules() if isinstance(m, InvertibleLinear)]
        drift, width = math.log(SCALE_DRIFT), sum(len(m.bias) for m in norms)
        bounded = [(slice(0, width), 1 / norms[0].scale_rate, len(norms))]
        bounded += [(parameters.spans[m.log_diagonal], 1.0, len(mixing)) for m in mixing]
        self.bounds = []
        for span, unit, count in bounded:
            values = self.flat[span]
            reach = torch.full_like(values, unit) * (drift / count)
            self.bounds.append((values, values - reach, values + reach))

    def state(self, curve: Tensor) -> State:
        return State(self.flat, self.first, self.second, curve)

    def go_on(self, state: State) -> int:
        for own, saved in zip(self.state(state.curve)[:3], state, strict=False):
            own.copy_(saved)
        return len(state.curve)

    def factors(self, step: int) -> Factors:
        """Learning rate, divisor, what decay leaves; on a GPU as a row of a table there."""
        return self._factors(step) if self.table is None else self.table[step]

    def _factors(self, step: int) -> tuple[float, float, float]:
        how = self.schedule
        left = 1 if how.schedule == "constant" else 1 - step / self.total
        rate = how.learning_rate * left
        kept = 1 - rate * how.weight_decay
        if not how.bias_correction:
            return rate, 1.0, kept
        return rate / (1 - BETA1 ** (step + 1)), math.sqrt(1 - BETA2 ** (step + 1)), kept

    @torch.no_grad()
    def update(self, factors: Factors) -> Tensor:
        """Apply the gradient with a step's factors, and return its norm before clipping."""
        how = self.schedule
        rate, divisor, kept = factors
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if how.max_grad_norm is not None:
            self.gradient.mul_((how.max_grad_norm / norm).clamp_(max=1))
        self.first.lerp_(self.gradient, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(self.gradient, self.gradient, value=1 - BETA2)
        if how.weight_decay:
            self.flat.mul_(kept)
        torch.sqrt(self.second, out=self.root)
        if how.bias_correction:
            self.root /= divisor
        self.root.add_(how.adam_epsilon)
        if isinstance(rate, Tensor):
            torch.div(self.first, self.root, out=self.root)
            self.flat.addcmul_(self.root, rate, value=-1)
        else:
            self.flat.addcdiv_(self.first, self.root, value=-rate)
        for bounded, lower, upper in self.bounds:
            torch.clamp(bounded, lower, upper, out=bounded)
        return norm


class State(NamedTuple):
    """Between two steps: all parameters, Adam's moments, shape (P,); losses so far, (steps,)."""

    values: Tensor
    first: Tensor
    second: Tensor
    curve: Tensor


class Checkpoint:
    """The state of a training in a file, which is always replaced whole.

    A file belongs to one run: the rows, shape (N, D), and all else that the bits depend on. A
    damaged file, or that of another run, is ignored with a warning in the log. A full disk is a
    warning, too. With `any_seed` the run takes the seed of the file.
    """

    def __init__(
        self, path: str | Path, run: Mapping[str, Any], rows: Vectors, any_seed: bool = False
    ) -> None:
        self.path: Path | None = Path(path)
        self.run = {name: str(value) for name, value in run.items()}
        self.state: State | None = None
        self._rows = rows
        check_writable(self.path)
        if self.path.exists():
            self._open(self.path, any_seed)
        self._saved = time.monotonic()

    def save(self, state: State) -> None:
        """Write a state, if it is time to, anything was trained and the disk has room."""
        early = time.monotonic() - self._saved < SAVED_SECONDS
        if self.path is None or early or not len(state.curve):
            return
        tensors = {name: tensor.cpu() for name, tensor in state._asdict().items()}
        about = {**self.run, "kind": KIND, "contents": self._contents}
        try:
            write_bytes(self.path, save(tensors, {**about, "check": _check(about, tensors)}))
            log.info("step %d saved in %s", len(state.curve), self.path)
        except ModelError as error:
            log.warning("%s; training goes on without a checkpoint", error)
            self.path = None
        self._saved = time.monotonic()

    def _open(self, path: Path, any_seed: bool) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, str] = file.metadata() or {}
                ours = about.get("kind") == KIND
                tensors = {name: file.get_tensor(name) for name in State._fields if ours}
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            log.warning("%s is damaged (%s): starting anew", path, error)
            return
        if not ours:
            raise ModelError(f"{path} is no checkpoint of a fit; give a file that is not there yet")
        seed = about.get("seed", "") if any_seed else self.run["seed"]
        expected = {**self.run, "seed": seed, "contents": self._contents}
        differing = [name for name, value in expected.items() if about.get(name) != value]
        if differing:
            log.warning(
                "%s is of another fit (other %s): starting anew", path, ", ".join(differing)
            )
        elif about.pop("check", None) != _check(about, tensors):
            log.warning("%s is damaged (other bytes than were written): starting anew", path)
        else:
            self.state, self.run["seed"] = State(**tensors), seed

    @cached_property
    def _contents(self) -> str:
        return _digest(b"", chunks(self._rows))


def _check(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    return _digest(repr(sorted(about.items())).encode(), map(tensors.__getitem__, sorted(tensors)))


def _digest(start: bytes, tensors: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(start, digest_size=16)
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def on_a_stream(device: torch.device) -> Iterator[None]:
    """Use a separate CUDA stream while inside: the default stream cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    own: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    own.wait_stream(before)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        before.wait_stream(own)


def recorded(compute: Callable[[T], Tensor], device: torch.device) -> Callable[[T], Tensor]:
    """A function of a tensor that is quick to call again and again on a GPU.

    A CUDA graph launches all operations at once, one graph for each shape of the argument. Other
    tensors that are read or changed must stay in place. Call it within `on_a_stream`; the next call
    overwrites the result. Off the GPU, and where recording fails, it is the given function.
    """
    if device.type != "cuda":
        return compute
    calls: Counter[torch.Size] = Counter()
    graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Any, Tensor]] = {}
    fails = False

    def call(x: Any) -> Tensor:
        nonlocal fails
        if x.shape not in graphs:
            calls[x.shape] += 1
            if calls[x.shape] <= WARM_UP or fails:
                return compute(x)
            try:
                graphs[x.shape] = _record(compute, x)
            except RuntimeError as error:
                log.warning("steps are not recorded as a CUDA graph, which is slower: %s", error)
                fails = True
                return compute(x)
        graph, argument, result = graphs[x.shape]
        argument.copy_(x)
        graph.replay()
        return result

    return call


def _record(compute: Callable[[Any], Tensor], x: Any) -> tuple[torch.cuda.CUDAGraph, Any, Tensor]:
    """A graph of the operations, with the memory of their argument and of their result."""
    graph, argument = torch.cuda.CUDAGraph(), x.clone()
    stream = torch.cuda.current_stream(x.device)
    # Other threads may use the device meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        return graph, argument, compute(argument)
