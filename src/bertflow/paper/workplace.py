"""Where jobs run, what they leave, and how far they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.evaluation.trials import cpus
from bertflow.paper.jobs import Tuning
from bertflow.paper.records import Records
from bertflow.paper.subjects import Subject

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where jobs run and what they leave.

    Attributes:
        folder: Holds `records`, `vectors` and `models`.
        batch_size: Sentences a forward pass.
        device: Where encoders run; None takes a GPU if there is one.
        jobs: Processes that fit at a time; None takes one a CPU.
        trust_remote_code: Whether code that comes with an encoder may run.
    """

    folder: Path
    batch_size: int = 32
    device: str | None = None
    jobs: int | None = None
    trust_remote_code: bool = False

    @property
    def records(self) -> Records:
        """The records."""
        return Records(self.folder / "records")

    def model(self, tuning: Tuning) -> Path:
        """The folder of a fine-tuned encoder."""
        return self.folder / "models" / tuning.key

    def processes(self) -> int:
        """How many fit at a time."""
        return cpus() if self.jobs is None else self.jobs


@dataclass
class Steps:
    """Counts finished jobs, and tells.

    Attributes:
        report: Who is told.
        total: How many there are.
        done: How many are finished.
    """

    report: Progress
    total: int
    done: int = 0

    def one(self) -> None:
        """One more is finished."""
        self.done += 1
        self.report("cells", self.done, self.total)


def about_subject(subject: Subject) -> dict[str, Any]:
    """What a record says of the encoder, for people."""
    return {
        "encoder": subject.name,
        "label": subject.label,
        "revision": subject.revision,
        "max_length": subject.max_length,
    }
