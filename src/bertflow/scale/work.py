"""One shard from its bytes to a file beside the output, wherever that is done."""

from __future__ import annotations

import base64
import json
import secrets
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertflow.errors import BertflowError, InputError, ModelError
from bertflow.process_state import pinned
from bertflow.scale.places import Place
from bertflow.scale.shards import Shard, read, write
from bertflow.scale.workers import Worker, digest_of


def packed_schema(schema: Any) -> str:
    """A schema as a job has it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _unpacked(text: str) -> Any:
    import pyarrow

    return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(text)))


@dataclass(frozen=True)
class Job:
    """What a worker is told.

    Attributes:
        shard: The part of the input.
        where: The input, for every process.
        said: What messages call it.
        target: Where the file to write begins its name. What follows is each try's own: a job that
            is given to a second actor, because the first is out of sight, may be written by both.
        schema: Of what is read, as Arrow writes it, in base64.
        recipe: What the worker's description must hash to.
    """

    shard: Shard
    where: str
    said: str
    target: str
    schema: str
    recipe: str

    def to_json(self) -> str:
        """As text, which travels."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What `to_json` gave."""
        found = json.loads(text)
        shard = found.pop("shard")
        return cls(shard=Shard(**{**shard, "span": tuple(shard["span"])}), **found)


@dataclass(frozen=True)
class Receipt:
    """What came of a job.

    Attributes:
        name: Of the shard.
        target: The file that was written.
        error: In one line what is wrong; None if all is well.
        at_fault: "input" if the shard cannot be used, "worker" if something else failed.
        details: Where it failed, if nobody thought of that.
        input: SHA-256 of the shard's bytes.
        output: SHA-256 of the file's.
        rows: How many it has.
        left_out: How many rows were left out because they have no text.
    """

    name: str
    target: str
    error: str | None = None
    at_fault: str = ""
    details: str = ""
    input: str = ""
    output: str = ""
    rows: int = 0
    left_out: int = 0

    def to_json(self) -> str:
        """As text, which travels."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """What `to_json` gave."""
        return cls(**json.loads(text))


class Working:
    """A worker with what it is told once: its description, made when the first job comes.

    Args:
        worker: What is done with the rows.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._recipe: str | None = None

    def __call__(self, job: Job) -> Receipt:
        """Do a job; what goes wrong is on the receipt, with the shard's name."""
        target = Path(f"{job.target}.{secrets.token_hex(4)}")
        try:
            return self._done(job, target)
        except BertflowError as error:
            fault = "input" if isinstance(error, InputError) else "worker"
            found = Receipt(job.shard.name, str(target), str(error), fault)
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            found = Receipt(
                job.shard.name,
                str(target),
                f"{job.said}/{job.shard.path}: {type(error).__name__}: {said}",
                "worker",
                traceback.format_exc(),
            )
        target.unlink(missing_ok=True)
        return found

    @pinned()
    def _done(self, job: Job, target: Path) -> Receipt:
        if self._recipe is None:
            self._recipe = digest_of(self.worker.describe())
        if self._recipe != job.recipe:
            return Receipt(
                job.shard.name,
                str(target),
                "a worker's model is not that of the others: give all of them the same files and "
                "versions",
                "worker",
            )
        place, worker = Place(job.where, job.said), self.worker
        worker.left_out = 0
        schema = _unpacked(job.schema)
        name = place.named(job.shard.path)

        def batches() -> Iterator[Any]:
            yield from read(place, job.shard, schema, worker.columns)

        made = worker.process(batches(), name, job.shard.first)
        try:
            rows, output = write(target, worker.schema(schema), made)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
        return Receipt(
            job.shard.name,
            str(target),
            input=place.digest(job.shard.path, *job.shard.span),
            output=output,
            rows=rows,
            left_out=worker.left_out,
        )
