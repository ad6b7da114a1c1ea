"""Engines: shards are worked on in this process, or by Ray's actors on this machine and others."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyarrow.parquet import ParquetWriter

from bertflow.errors import BertflowError, InputError, ModelError, check_choice, need
from bertflow.io.files import reason_of, writing
from bertflow.process_state import pinned
from bertflow.scale.shards import Place, Shard, is_vectors, read
from bertflow.scale.workers import Part, Worker

log = logging.getLogger(__name__)

# The key of a file's note among the metadata in its footer.
NOTE = b"bertflow"


def run_key(description: Mapping[str, Any]) -> str:
    """A hash by which two runs are known to write the same."""
    # Where rows without text are refused there were none, so skipping them gives the same file.
    lasting = {name: value for name, value in description.items() if name != "blank"}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def note_of(shard: Shard, key: str) -> str:
    """What the footer of a shard's file says: of which run it is, and of what it was made."""
    return json.dumps({"run": key, **asdict(shard)})


def write_shard(path: Path, schema: Any, batches: Iterable[Any], note: str) -> int:
    """Write batches to a parquet file, each while the next is made, and give the number of rows."""
    # Numbers of vectors neither repeat nor compress, and nobody asks for the least of them.
    plain = [field.name for field in schema if not is_vectors(field.type)]
    rows = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("wb") as file:
        with (
            ParquetWriter(
                file,
                schema.with_metadata({NOTE: note}),
                use_dictionary=plain,
                write_statistics=plain,
                compression={name: "snappy" for name in plain} or "none",
            ) as writer,
            ThreadPoolExecutor(1, "write") as thread,
        ):
            pending: Future[Any] = thread.submit(list)  # Nothing yet, which is done at once.
            for batch in batches:
                rows += batch.num_rows
                pending.result()
                pending = thread.submit(writer.write_batch, batch)
            pending.result()
        file.flush()
        os.fsync(file.fileno())
    return rows


@dataclass(frozen=True)
class Result:
    """The file that was made of a shard, or why the shard cannot be used."""

    shard: Shard
    path: Path
    rows: int = 0
    error: InputError | None = None


@dataclass(frozen=True)
class Job:
    """The work on every shard of a run; `home` holds what is unfinished."""

    worker: Worker
    place: Place
    schema: Any
    home: Path
    key: str

    @pinned()
    def do(self, shard: Shard) -> Result:
        """Work on a shard. A ModelError names it."""
        note = note_of(shard, self.key)
        folder = self.home / hashlib.sha256(note.encode()).hexdigest()[:32]
        # Another process may still be writing the file of an earlier try.
        path = folder / secrets.token_hex(8)
        name = self.place.named(shard.path)
        try:
            batches = read(self.place, shard, self.schema)
            made = self.worker.process(batches, Part(name, shard.first, folder))
            schema = self.worker.schema(self.schema)
            return Result(shard, path, write_shard(path, schema, made, note))
        except Exception as error:
            path.unlink(missing_ok=True)
            if isinstance(error, InputError):
                return Result(shard, path, error=error)
            kind = "" if isinstance(error, BertflowError) else f"{type(error).__name__}: "
            raise ModelError(f"{name}: {kind}{error}") from error


class Engine:
    """Ray's actors, which read and write shards themselves; one that dies is started again.

    An actor takes a CPU and, where the cluster has any, a GPU. `workers` is how many there are, of
    which an InputError says that they do not fit; None takes as many as there are GPUs or, where
    there are none, CPUs less one.
    """

    def __init__(self, workers: int | None = None) -> None:
        import ray

        available = ray.cluster_resources()
        cpus, gpus = int(available.get("CPU", 0)), int(available.get("GPU", 0))
        self.workers = workers or max(1, gpus or cpus - 1)
        if self.workers > (min(cpus, gpus) if gpus else cpus):
            raise InputError(
                f"{self.workers} workers do not fit on the cluster, which has {cpus} CPUs and "
                f"{gpus} GPUs; ask for fewer"
            )
        self._takes = {"num_cpus": 1, "num_gpus": 1 if gpus else 0}
        log.info("%d workers on %d CPUs and %d GPUs", self.workers, cpus, gpus)

    def describe(self, worker: Worker) -> dict[str, Any]:
        """The worker's description of itself from a node of the cluster."""
        with _cluster_errors() as ray:
            task = ray.remote(**self._takes)(type(worker).describe)
            description: dict[str, Any] = ray.get(task.remote(worker))
            return description

    def run(self, job: Job, shards: Sequence[Shard]) -> Iterator[Result]:
        """Have actors work on shards, and give each result as soon as it is there, in any order."""
        from ray.util import ActorPool

        with _cluster_errors() as ray:
            actor = ray.remote(max_restarts=-1, max_task_retries=-1, **self._takes)(_Actor)
            shared = ray.put(job)
            actors = [actor.remote(shared) for _ in range(min(self.workers, len(shards)))]
            try:
                yield from ActorPool(actors).map_unordered(
                    lambda chosen, shard: chosen.do.remote(shard), shards
                )
            finally:
                for one in actors:
                    ray.kill(one)


class _Actor:
    """A worker in a process of its own, which must be the same as those of the others."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def _key(self) -> str:
        return run_key(self.job.worker.describe())

    def do(self, shard: Shard) -> Result:
        if self._key != self.job.key:
            raise ModelError(
                "a worker's model is not that of the others: give all of them the same files and "
                "versions"
            )
        return self.job.do(shard)


@contextmanager
def opened_engine(
    name: str, *, address: str | None = None, workers: int | None = None
) -> Iterator[Engine | None]:
    """Give Ray's actors, connected for as long as they are used; or None, which is this process.

    Args:
        name: "local" or "ray".
        address: Of a Ray cluster, `auto` for this machine's. None takes the one that is connected,
            or starts one on this machine, which ends with the block.
        workers: As in `Engine`.

    Raises:
        InputError: There is no such engine, or the cluster has too little for the workers.
        MissingDependencyError: Ray is not installed.
        ModelError: The cluster cannot be reached.
    """
    check_choice("engine", name, ("local", "ray"))
    if name == "local":
        if address is not None or workers is not None:
            raise InputError("engine local has no address and no workers; give engine ray")
        yield None
        return
    need("engine ray", "ray", "ray")
    import ray

    connected_before = ray.is_initialized()
    if not connected_before:
        own: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = address or "this machine"
            raise ModelError(f"there is no Ray cluster at {where}: {reason_of(error)}") from None
    try:
        yield Engine(workers)
    finally:
        if not connected_before:
            with suppress(Exception):
                ray.shutdown()


@contextmanager
def _cluster_errors() -> Iterator[Any]:
    """Raise the worker's own error, or say in one line what failed in the cluster."""
    import ray

    try:
        yield ray
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, BertflowError):
            raise cause from error
        raise ModelError(
            f"the cluster failed: {type(cause).__name__}: {reason_of(cause)}"
        ) from error
