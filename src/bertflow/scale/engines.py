"""Engines: shards are worked on in this process, or by Ray's actors on this machine and others."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bertflow.errors import BertflowError, InputError, MissingDependencyError, ModelError
from bertflow.process_state import pinned
from bertflow.scale.manifest import note_of, run_key, write_shard
from bertflow.scale.shards import Place, Shard, read
from bertflow.scale.workers import Part, Worker

log = logging.getLogger(__name__)

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Job:
    """A shard to work on, with all that a process needs for that.

    Attributes:
        shard: The part of the input.
        place: The input.
        schema: The schema of what is read.
        folder: Holds what is unfinished; a stopped run goes on from it.
        key: The key of the run.
    """

    shard: Shard
    place: Place
    schema: Any
    folder: Path
    key: str


@dataclass(frozen=True)
class Result:
    """What came of a job.

    Attributes:
        shard: The part of the input.
        path: The file that was written.
        rows: The number of its rows.
        error: What went wrong; an InputError if the shard cannot be used. None if all is well.
    """

    shard: Shard
    path: Path
    rows: int = 0
    error: BertflowError | None = None


class Engine(Protocol):
    """Has jobs done."""

    def describe(self, worker: Worker) -> dict[str, Any]:
        """The worker's description of itself, from where it will work."""

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Result]:
        """Have jobs done, and give each result as soon as it is there, in any order."""


class Local:
    """All jobs one after the other in this process."""

    def describe(self, worker: Worker) -> dict[str, Any]:
        """The worker's description of itself."""
        return worker.describe()

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Result]:
        """Do one job after the other."""
        for job in jobs:
            yield _done(worker, job)


class RayEngine:
    """Ray's actors, each with a worker, which take jobs one by one.

    What travels are names of shards and results; actors read and write the shards themselves. Ray
    starts an actor that dies again, and so does it the job that the actor had.

    Args:
        workers: How many actors; None for as many as there are GPUs or, where there are none, CPUs
            less one.
        cpus: Logical CPUs an actor takes.
        gpus: GPUs an actor takes; None for one where the cluster has any.

    Raises:
        InputError: The cluster has too little for that many.
    """

    def __init__(
        self, workers: int | None = None, *, cpus: float = 1.0, gpus: float | None = None
    ) -> None:
        ray = _ray()
        available = ray.cluster_resources()
        all_cpus, all_gpus = available.get("CPU", 0.0), available.get("GPU", 0.0)
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
        """The worker's description of itself from a node of the cluster."""
        ray = _ray()
        with _cluster_errors():
            described = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_described)
            answer = ray.get(described.remote(worker))
        if isinstance(answer, BertflowError):
            raise answer
        description: dict[str, Any] = answer
        return description

    def run(self, worker: Worker, jobs: Sequence[Job]) -> Iterator[Result]:
        """Have actors do the jobs."""
        ray = _ray()
        actor = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=-1, max_task_retries=-1
        )(_Actor)
        with _cluster_errors():
            shared = ray.put(worker)
            actors = [actor.remote(shared) for _ in range(min(self.workers, len(jobs)))]
            try:
                yield from ray.util.ActorPool(actors).map_unordered(
                    lambda chosen, job: chosen.do.remote(job), jobs
                )
            finally:
                for one in actors:
                    ray.kill(one)


class _Actor:
    """A worker in a process of its own, which must be the same as those of the others."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._key: str | None = None

    def do(self, job: Job) -> Result:
        try:
            self._key = self._key or run_key(self.worker.describe())
        except BertflowError as error:
            return Result(job.shard, job.folder, error=ModelError(str(error)))
        if self._key != job.key:
            differs = ModelError(
                "a worker's model is not that of the others: give all of them the same files and "
                "versions"
            )
            return Result(job.shard, job.folder, error=differs)
        return _done(self.worker, job)


def _described(worker: Worker) -> dict[str, Any] | BertflowError:
    try:
        return worker.describe()
    except BertflowError as error:
        return error


@pinned()
def _done(worker: Worker, job: Job) -> Result:
    """Do a job. An error is part of the result, and names the shard."""
    # Another process may still be writing the file of an earlier try.
    path = job.folder / secrets.token_hex(8)
    name = job.place.named(job.shard.path)
    try:
        batches = read(job.place, job.shard, job.schema, worker.columns)
        made = worker.process(batches, Part(name, job.shard.first, job.folder))
        note = note_of(job.shard, job.key)
        return Result(job.shard, path, write_shard(path, worker.schema(job.schema), made, note))
    except InputError as error:
        failure: BertflowError = error
    except BertflowError as error:
        failure = ModelError(f"{name}: {error}")
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        failure = ModelError(f"{name}: {type(error).__name__}: {said}")
        failure.add_note(traceback.format_exc())
    path.unlink(missing_ok=True)
    return Result(job.shard, path, error=failure)


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
    connected_before = ray.is_initialized()
    if not connected_before:
        own: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ModelError(
                f"there is no Ray cluster at {address or 'this machine'}: {_last_line(error)}"
            ) from None
    try:
        yield RayEngine(workers, cpus=cpus, gpus=gpus)
    finally:
        if not connected_before:
            with suppress(Exception):
                ray.shutdown()


def _ray() -> Any:
    """Ray, whose types differ from version to version."""
    import_module("ray.util")
    return import_module("ray")


@contextmanager
def _cluster_errors() -> Iterator[None]:
    ray = _ray()
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ModelError(f"the cluster failed: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
