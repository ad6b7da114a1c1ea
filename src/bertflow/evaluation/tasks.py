"""Scoring an encoder on a task: a result that carries everything it depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.calibrators.storage import calibrator_name
from bertflow.data import Pairs, read_task
from bertflow.encoders import (
    CalibratedSentenceTransformer,
    describe_encoder,
    embed,
    library_versions,
)
from bertflow.errors import InputError
from bertflow.evaluation.correlation import correlate, paired_cosine

TASKS = ("stsb",)
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score and what it depends on.

    Attributes:
        task: The task's name.
        split: Which part of it.
        aggregation: "all": one correlation over all pairs.
        spearman: Of cosine with gold, −1 to 1; None where undefined, with the reason.
        pearson: The same for Pearson's.
        undefined: The reason, or None.
        pairs: All pairs of the split.
        scored: Those that count.
        skipped: How many do not count, by reason.
        encoder: Name, pooling, length, type and fingerprint.
        calibrator: Its name and arguments, or None.
        fitted_on: Provenance of the calibrator, or None.
        data: The file.
        versions: Versions of the libraries.
        time: When, UTC.
    """

    task: str
    split: str
    aggregation: str
    spearman: float | None
    pearson: float | None
    undefined: str | None
    pairs: int
    scored: int
    skipped: dict[str, int]
    encoder: dict[str, Any]
    calibrator: dict[str, Any] | None
    fitted_on: dict[str, Any] | None
    data: str
    versions: dict[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON has it."""
        return asdict(self)


def evaluate(
    model: SentenceTransformer,
    task: str = "stsb",
    *,
    data: str | Path | None = None,
    split: str = "test",
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Score a model on a task.

    Args:
        model: A SentenceTransformer, calibrated or not.
        task: "stsb".
        data: Folder of the data; None takes the environment variable BERTFLOW_DATA.
        split: Which part.
        batch_size: Sentences a forward pass.
        progress: Called with the distinct sentences encoded and their total.

    Returns:
        The score with everything it depends on.

    Raises:
        InputError: The task is unknown, or its data are not there or not readable.
    """
    pairs = load_pairs(task, data, split)
    return score_pairs(model, pairs, batch_size=batch_size, progress=progress)


def load_pairs(task: str, data: str | Path | None, split: str = "test") -> Pairs:
    """Read the pairs of a task.

    Raises:
        InputError: As `evaluate`.
    """
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}; expected one of {', '.join(TASKS)}")
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    return read_task(task, data, split)


def score_pairs(
    model: SentenceTransformer,
    pairs: Pairs,
    *,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Score a model on graded pairs: the correlation of cosine with gold over all of them.

    Pairs without a gold score, and pairs with a zero vector, are left out and counted.
    """
    embedded = embed(model, [*pairs.first, *pairs.second], batch_size=batch_size, progress=progress)
    rows, count = embedded.rows(), len(pairs)
    cosine = paired_cosine(rows[:count], rows[count:])
    gold = np.array([np.nan if g is None else g for g in pairs.gold], dtype=np.float64)
    ungraded, undefined = np.isnan(gold), np.isnan(cosine)
    used = ~ungraded & ~undefined
    correlation = correlate(cosine[used], gold[used])
    calibrator, fitted_on = None, None
    if isinstance(model, CalibratedSentenceTransformer):
        calibrator = {
            "name": calibrator_name(model.calibrator),
            **{k: _plain(v) for k, v in model.calibrator.get_params(deep=False).items()},
        }
        fitted_on = getattr(model.calibrator, "provenance_", None)
    return Score(
        task=pairs.task,
        split=pairs.split,
        aggregation="all",
        spearman=correlation.spearman,
        pearson=correlation.pearson,
        undefined=correlation.undefined,
        pairs=count,
        scored=int(used.sum()),
        skipped={
            "no gold score": int(ungraded.sum()),
            "zero vector": int((undefined & ~ungraded).sum()),
        },
        encoder=describe_encoder(model),
        calibrator=calibrator,
        fitted_on=fitted_on,
        data=pairs.source,
    )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
