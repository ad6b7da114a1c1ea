"""Where shards are worked on: in this process, or by Ray's actors on this machine and others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from bertflow.errors import InputError, MissingDependencyError, ModelError
from bertflow.scale.work import Job, Receipt, Working
from bertflow.scale.workers import Worker

log = logging.getLogger(__name__)

ENGINES = ("local", "ray")


class Engine(Protocol):
    """What has jobs done."""

    def describe(self, worker: Worker) -> dict[str, Any]:
        """What a worker says of itself, where it will work.

        Raises:
            BertflowError: Its model cannot be loaded.
        """

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Receipt]:
        """Have jobs done, and give what came of each as soon as it is there, in any order."""


class Local:
    """All jobs one after the other in this process."""

    def describe(self, worker: Worker) -> dict[str, Any]:
        """What the worker says of itself."""
        return worker.describe()

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Receipt]:
        """Do one job after the other."""
        yield from map(Working(worker), jobs)


class RayEngine:
    """Jobs are the rows of a Ray data set, which actors with a worker each take one by one.

    What travels are names of shards and receipts; actors read and write the shards themselves. An
    actor that dies is started again by Ray, and so is the job it had.

    Args:
        workers: How many actors; None for as many as there are GPUs or, where there are none, CPUs
            less one.
        cpus: Logical CPUs an actor takes.
        gpus: GPUs an actor takes; None for one where the cluster has any.
    """

    def __init__(
        self, workers: int | None = None, *, cpus: float = 1.0, gpus: float | None = None
    ) -> None:
        ray = _ray()
        there = ray.cluster_resources()
        all_cpus, all_gpus = there.get("CPU", 0.0), there.get("GPU", 0.0)
        self.cpus, self.gpus = cpus, (1.0 if all_gpus else 0.0) if gpus is None else gpus
        if workers is None:
            workers = int(all_gpus / self.gpus) if self.gpus else int((all_cpus - 1) / (cpus or 1))
            workers = max(1, workers)
        self.workers = workers
        if workers * cpus > all_cpus or workers * self.gpus > all_gpus:
            raise InputError(
                f"{workers} workers of {cpus:g} CPUs and {self.gpus:g} GPUs do not fit on the "
                f"cluster, which has {all_cpus:g} and {all_gpus:g}; ask for fewer"
            )
        log.info("%d workers of %g CPUs and %g GPUs", workers, cpus, self.gpus)

    def describe(self, worker: Worker) -> dict[str, Any]:
        """What a worker says of itself on a node of the cluster."""
        ray = _ray()
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_described)
        try:
            found, kind, said = ray.get(remote.remote(worker))
        except ray.exceptions.RayError as error:
            raise ModelError(f"the cluster failed: {_reason(error)}") from error
        if kind is not None:
            raise kind(said)
        description: dict[str, Any] = found
        return description

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Receipt]:
        """Have actors do the jobs."""
        ray = _ray()
        if not jobs:
            return
        context = ray.data.DataContext.get_current()
        bars = context.enable_progress_bars
        context.enable_progress_bars = False
        try:
            rows = [{"job": job.to_json()} for job in jobs]
            data = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                _Actor,
                fn_constructor_args=(worker,),
                batch_size=1,
                num_cpus=self.cpus,
                num_gpus=self.gpus or None,
                compute=ray.data.ActorPoolStrategy(
                    size=min(self.workers, len(jobs)), max_tasks_in_flight_per_actor=2
                ),
            )
            for batch in data.iter_batches(
                batch_size=None, batch_format="numpy", prefetch_batches=0
            ):
                yield from map(Receipt.from_json, batch["receipt"].tolist())
        except ray.exceptions.RayError as error:
            raise ModelError(f"the cluster failed: {_reason(error)}") from error
        finally:
            context.enable_progress_bars = bars


def _ray() -> Any:
    """Ray and its data, whose types differ with its version."""
    import_module("ray.data")
    return import_module("ray")


class _Actor:
    """A worker in a process of its own."""

    def __init__(self, worker: Worker) -> None:
        self._working = Working(worker)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        jobs = map(Job.from_json, batch["job"].tolist())
        return {"receipt": [self._working(job).to_json() for job in jobs]}


def _described(worker: Worker) -> tuple[dict[str, Any] | None, type[Exception] | None, str]:
    from bertflow.errors import BertflowError

    try:
        return worker.describe(), None, ""
    except BertflowError as error:
        return None, type(error), str(error)


@contextmanager
def opened_engine(
    name: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
) -> Iterator[Engine]:
    """Give an engine, connected for as long as it is used.

    Args:
        name: "local" or "ray".
        address: Of a Ray cluster, `auto` for the one this machine belongs to; None for one that is
            started on this machine and ends with the block, or for the one this process is
            connected to already.
        workers: See `RayEngine`; the local engine is always one.
        cpus: See `RayEngine`.
        gpus: See `RayEngine`.

    Raises:
        InputError: There is no such engine, or the cluster has too little for the workers.
        MissingDependencyError: Ray is not installed.
        ModelError: The cluster cannot be reached.
    """
    if name not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    if name == "local":
        given = {"address": address, "workers": workers, "gpus": gpus}
        if clash := [key for key, value in given.items() if value is not None]:
            raise InputError(f"the local engine has no {', '.join(clash)}; give engine ray")
        yield Local()
        return
    if find_spec("ray") is None:
        raise MissingDependencyError("engine ray needs Ray: pip install 'bertflow[ray]'")
    ray = _ray()
    # What it tells about its plans is not ours to show, nor that there are no bars: we asked it.
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    if ours:
        own: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ModelError(
                f"there is no Ray cluster at {address or 'this machine'}: {_reason(error)}"
            ) from None
    try:
        yield RayEngine(workers, cpus=cpus, gpus=gpus)
    finally:
        if ours:
            with suppress(Exception):
                ray.shutdown()


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
