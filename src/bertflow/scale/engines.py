"""Engines: shards are worked on in this process, or by Ray's actors on this machine and others."""

from __future__ import annotations

import hashlib
import logging
import secrets
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from bertflow.errors import BertflowError, InputError, MissingDependencyError, ModelError
from bertflow.process_state import pinned
from bertflow.scale.manifest import note_of, run_key, write_shard
from bertflow.scale.shards import Place, Shard, read
from bertflow.scale.workers import Part, Worker

log = logging.getLogger(__name__)

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Result:
    """The file that was made of a shard, or the error; an InputError if it cannot be used."""

    shard: Shard
    path: Path
    rows: int = 0
    error: BertflowError | None = None


@dataclass(frozen=True)
class Job:
    """The work on every shard of a run; `home` holds what is unfinished."""

    worker: Worker
    place: Place
    schema: Any
    home: Path
    key: str

    def folder(self, shard: Shard) -> Path:
        """The folder for unfinished work on a shard."""
        note = note_of(shard, self.key)
        return self.home / hashlib.sha256(note.encode()).hexdigest()[:32]

    @pinned()
    def do(self, shard: Shard) -> Result:
        """Work on a shard. An error is part of the result, and names the shard."""
        # Another process may still be writing the file of an earlier try.
        path = self.folder(shard) / secrets.token_hex(8)
        name = self.place.named(shard.path)
        try:
            batches = read(self.place, shard, self.schema)
            made = self.worker.process(batches, Part(name, shard.first, path.parent))
            schema = self.worker.schema(self.schema)
            return Result(shard, path, write_shard(path, schema, made, note_of(shard, self.key)))
        except InputError as error:
            failure: BertflowError = error
        except BertflowError as error:
            failure = ModelError(f"{name}: {error}")
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            failure = ModelError(f"{name}: {type(error).__name__}: {said}")
            failure.add_note(traceback.format_exc())
        path.unlink(missing_ok=True)
        return Result(shard, path, error=failure)


class Local:
    """All shards one after the other in this process."""

    def describe(self, worker: Worker) -> dict[str, Any]:
        """The worker's description of itself, from where it will work."""
        return worker.describe()

    def run(self, job: Job, shards: Sequence[Shard]) -> Iterator[Result]:
        """Work on shards, and give each result as soon as it is there, in any order."""
        return map(job.do, shards)


class RayEngine:
    """Ray's actors, which read and write shards themselves; one that dies is started again.

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
        available = _ray().cluster_resources()
        all_cpus, all_gpus = available.get("CPU", 0.0), available.get("GPU", 0.0)
        gpus = (1.0 if all_gpus else 0.0) if gpus is None else gpus
        if workers is None:
            workers = max(1, int(all_gpus / gpus if gpus else (all_cpus - 1) / (cpus or 1)))
        if workers * cpus > all_cpus or workers * gpus > all_gpus:
            raise InputError(
                f"{workers} workers of {cpus:g} CPUs and {gpus:g} GPUs do not fit on the "
                f"cluster, which has {all_cpus:g} and {all_gpus:g}; ask for fewer"
            )
        log.info("%d workers of %g CPUs and %g GPUs", workers, cpus, gpus)
        self.workers = workers
        self._takes = {"num_cpus": cpus, "num_gpus": gpus}

    def describe(self, worker: Worker) -> dict[str, Any]:
        """The worker's description of itself from a node of the cluster."""
        with _cluster_errors() as ray:
            answer = ray.get(ray.remote(**self._takes)(_described).remote(worker))
        if isinstance(answer, BertflowError):
            raise answer
        description: dict[str, Any] = answer
        return description

    def run(self, job: Job, shards: Sequence[Shard]) -> Iterator[Result]:
        """Have actors work on shards."""
        with _cluster_errors() as ray:
            actor = ray.remote(max_restarts=-1, max_task_retries=-1, **self._takes)(_Actor)
            shared = ray.put(job)
            actors = [actor.remote(shared) for _ in range(min(self.workers, len(shards)))]
            try:
                yield from ray.util.ActorPool(actors).map_unordered(
                    lambda chosen, shard: chosen.do.remote(shard), shards
                )
            finally:
                for one in actors:
                    ray.kill(one)


Engine: TypeAlias = Local | RayEngine


class _Actor:
    """A worker in a process of its own, which must be the same as those of the others."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._key: str | None = None

    def do(self, shard: Shard) -> Result:
        if self._key is None:
            described = _described(self.job.worker)
            if isinstance(described, BertflowError):
                return Result(shard, self.job.home, error=ModelError(str(described)))
            self._key = run_key(described)
        if self._key != self.job.key:
            differs = ModelError(
                "a worker's model is not that of the others: give all of them the same files and "
                "versions"
            )
            return Result(shard, self.job.home, error=differs)
        return self.job.do(shard)


def _described(worker: Worker) -> dict[str, Any] | BertflowError:
    try:
        return worker.describe()
    except BertflowError as error:
        return error


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
        address: Of a Ray cluster, `auto` for this machine's. None takes the one that is connected,
            or starts one on this machine, which ends with the block.
        workers: As in `RayEngine`; so are the others.
        cpus: Of an actor.
        gpus: Of an actor.

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
            where = address or "this machine"
            raise ModelError(f"there is no Ray cluster at {where}: {_last_line(error)}") from None
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
def _cluster_errors() -> Iterator[Any]:
    ray = _ray()
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise ModelError(f"the cluster failed: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
