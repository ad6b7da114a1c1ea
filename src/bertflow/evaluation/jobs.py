"""How well a model does a job of the user's own: search, classes and clusters, duplicates.

A job names the texts that it needs and judges their vectors. Its measures are functions of how
often each item (query, text or pair) counts, so one bootstrap over items serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.description import describe_encoder, library_versions
from bertflow.encoders.embedding import EncodeOptions, embed
from bertflow.encoders.encoder import Role, side_of
from bertflow.encoders.precision import resolved_precision
from bertflow.evaluation.bootstrap import RESAMPLES, Difference, Measure, Resamples, holm
from bertflow.evaluation.scores import Estimate, as_json
from bertflow.evaluation.tasks import describe_calibrator
from bertflow.models import CalibratedSentenceTransformer

# Fewer items have no interval: their resamples are too much alike, and chance would look real.
FEWEST = 10


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the vectors of one model are worth on a job.

    Attributes:
        items: How many items are resampled.
        measures: By name; the first is the main one. NaN where a measure is not defined.
        facts: More that was found, such as a threshold, as JSON has it.
    """

    items: int
    measures: Mapping[str, Measure]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Job(Protocol):
    """A job: material that was read and checked.

    Attributes:
        kind: "search", "classes" or "duplicates".
        unit: What is counted and resampled: "queries", "texts" or "pairs".
        source: The file or folder.
        counts: How much there is, by name, such as queries and documents.
        skipped: What does not count, by reason.
    """

    kind: str
    unit: str
    source: str
    counts: Mapping[str, int]
    skipped: Mapping[str, int]

    def texts(self) -> Mapping[Role, Sequence[str]]:
        """The texts to encode, by the side they are encoded on."""

    def judge(self, vectors: Mapping[Role, Array]) -> Judgement:
        """Judge the vectors of those texts, shape (N, D), row by row; other rows may be zero."""


def estimates(
    found: Judgement, *, resamples: int = RESAMPLES, random_state: int = 0
) -> dict[str, Estimate]:
    """Each measure with its 95 % interval; every model sees the same resamples."""
    draws = Resamples([np.arange(found.items)], resamples=resamples, random_state=random_state)
    once = np.ones((1, found.items))
    done = {}
    for name, replicates in draws.of(found.measures).items():
        value = float(found.measures[name](once)[0])
        if found.items < FEWEST:
            replicates[:] = np.nan
        known = None if np.isnan(value) else value
        done[name] = Estimate.of(known, replicates, None if known is not None else "not defined")
    return done


@dataclass(frozen=True, kw_only=True)
class JobScore:
    """What a model is worth on a job, and everything that depends on.

    Attributes:
        kind: As of the job; so are unit, source, counts and skipped.
        measures: By name, the estimate; the first is the main one.
        facts: More that was found, such as a threshold.
        encoder: Name, pooling, length, type and fingerprint.
        calibrator: Its name and arguments, or None.
        fitted_on: Provenance of the calibrator, or None.
        cut: How many distinct texts the encoder cuts, being longer than it takes.
        versions: Of the libraries.
        time: When, UTC.
    """

    kind: str
    unit: str
    source: str
    counts: Mapping[str, int]
    skipped: Mapping[str, int]
    measures: Mapping[str, Estimate]
    facts: Mapping[str, Any]
    encoder: Mapping[str, Any]
    calibrator: Mapping[str, Any] | None
    fitted_on: Mapping[str, Any] | None
    cut: int
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON has it."""
        measures = {name: as_json(one) for name, one in self.measures.items()}
        return {**vars(self), "measures": measures}


def evaluate_job(
    model: SentenceTransformer, job: Job, **options: Unpack[EncodeOptions]
) -> JobScore:
    """Encode the texts of a job, each side with its prompt and map, and judge them.

    Args:
        model: A SentenceTransformer, calibrated or not.
        job: What `read_retrieval`, `read_labels` or `DuplicatesJob.of` gives.
        options: See `bertflow.encoders.EncodeOptions`.
    """
    vectors, cut = job_vectors(model, job, **options)
    found = job.judge(vectors)
    calibrated = isinstance(model, CalibratedSentenceTransformer)
    precision = resolved_precision(options.get("precision", "auto"), model)
    return JobScore(
        kind=job.kind,
        unit=job.unit,
        source=job.source,
        counts=job.counts,
        skipped=job.skipped,
        measures=estimates(found),
        facts=found.facts,
        encoder={**describe_encoder(model), "precision": precision},
        calibrator=describe_calibrator(model.calibrator) if calibrated else None,
        fitted_on=getattr(model.calibrator, "provenance_", None) if calibrated else None,
        cut=cut,
    )


def job_vectors(
    model: SentenceTransformer, job: Job, **options: Unpack[EncodeOptions]
) -> tuple[dict[Role, Array], int]:
    """The vectors of a job's texts by side, and how many distinct texts are cut."""
    vectors: dict[Role, Array] = {}
    cut = 0
    for role, texts in job.texts().items():
        embedded = embed(side_of(model, role), texts, **options)
        vectors[role] = embedded.rows()
        cut += embedded.cut
    return vectors, cut


def job_differences(before: JobScore, after: JobScore) -> dict[str, Difference]:
    """How much higher each measure is after, by paired bootstrap, corrected by Holm."""
    return holm(
        {
            name: one.above(before.measures[name])
            for name, one in after.measures.items()
            if name in before.measures
        }
    )
