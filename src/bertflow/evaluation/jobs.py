"""How well models and calibrators do a job of the user's own: search, classes, duplicates.

A job names the texts that it needs and judges their vectors. Its measures are functions of how
often each item (query, text or pair) counts, so one bootstrap over items serves them all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.calibrators.storage import JOBS
from bertflow.encoders import Computing, describe_encoder
from bertflow.encoders.embedding import EncodeOptions, embed
from bertflow.encoders.encoder import Role, side_of
from bertflow.errors import InputError, unknown
from bertflow.evaluation.bootstrap import RESAMPLES, Difference, Measure, Resamples, holm
from bertflow.evaluation.comparison import (
    CORPUS,
    METHODS,
    Comparison,
    Entry,
    Method,
    Progress,
    compared,
    named,
    published_dim,
)
from bertflow.evaluation.experiment import fit, run_all, size_of
from bertflow.evaluation.scores import Estimate, as_json, over_seeds
from bertflow.evaluation.tasks import Provenance

# Fewer items have no interval: their resamples are too much alike, and chance would look real.
FEWEST = 10
TWO_SIDED = "two-sided"
# Vectors of more bytes are mapped one method at a time, because each process has a copy.
LARGE = 2**28


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the vectors of one model are worth on a job."""

    items: int  # That are resampled.
    measures: Mapping[str, Measure]  # The main one first; NaN where one is not defined.
    facts: Mapping[str, Any] = field(default_factory=dict)  # Such as a threshold.


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


def estimates(found: Judgement, *, resamples: int = RESAMPLES) -> dict[str, Estimate]:
    """Each measure with its 95 % interval; every model sees the same resamples."""
    draws = Resamples([found.items], resamples=resamples)
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
class JobScore(Provenance):
    """What a model is worth on a job, and everything that depends on.

    Kind, unit, source, counts and skipped are those of the `Job`, and measures and facts those of
    the `Judgement`, each measure with its interval.
    """

    kind: str
    unit: str
    source: str
    counts: Mapping[str, int]
    skipped: Mapping[str, int]
    measures: Mapping[str, Estimate]
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON has it."""
        measures = {name: as_json(one) for name, one in self.measures.items()}
        return {**vars(self), "measures": measures}


def evaluate_job(
    model: SentenceTransformer, job: Job, **options: Unpack[EncodeOptions]
) -> JobScore:
    """Encode the texts of a job, each side with its prompt and map, and judge them.

    The job is what `read_retrieval`, `read_labels` or `DuplicatesJob` gives; options as of
    `bertflow.encoders.EncodeOptions`.
    """
    vectors, cut = job_vectors(model, job, **options)
    found = job.judge(vectors)
    return JobScore(
        kind=job.kind,
        unit=job.unit,
        source=job.source,
        counts=job.counts,
        skipped=job.skipped,
        measures=estimates(found),
        facts=found.facts,
        cut=cut,
        **Provenance.of(model, options),
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


# Those of tasks, and what `calibrate` takes by default for some job.
JOB_METHODS: Mapping[str, Method] = {**{name: named(name) for name, _ in JOBS.values()}, **METHODS}


def default_methods(kind: str) -> list[str]:
    """None, then what `calibrate` takes for the job, then all but flows, which take minutes."""
    preset, _ = JOBS.get(kind, JOBS["similarity"])
    others = [name for name, method in JOB_METHODS.items() if not method.seeded]
    return list(dict.fromkeys(["none", preset, *others]))


def _entry(
    job: Job,
    vectors: Mapping[Role, Array],
    rows: Mapping[Role, Array],
    seeds: int,
    main: str | None,
    name: str,
    two_sided: bool,
) -> tuple[Entry, Mapping[str, Any]]:
    """Fit a method on rows by side, once a seed, and judge it; beside it the first fit's facts."""
    method, width = JOB_METHODS[name], vectors["document"].shape[1]
    found, seconds, size = [], 0.0, 0
    for seed in range(seeds if method.seeded else 1):
        mapped = vectors
        if (calibrator := method.build(width, seed)) is not None:
            began = time.perf_counter()
            if two_sided:
                fit(calibrator, rows["document"], rows["query"])
            else:
                fit(calibrator, np.concatenate(list(rows.values())))
            seconds += time.perf_counter() - began
            size = size_of(calibrator)
            mapped = {role: calibrator._rows(side, role) for role, side in vectors.items()}
        found.append(job.judge(mapped))
    if main not in (None, *found[0].measures):
        raise unknown("measure", str(main), found[0].measures)
    measured = [estimates(one) for one in found]
    label = method.label.format(dim=published_dim(width))
    entry = Entry(
        method=name,
        label=f"{TWO_SIDED} {label}" if two_sided else label,
        estimates={
            measure: {job.kind: over_seeds([one[measure] for one in measured])}
            for measure in sorted(measured[0], key=lambda measure: measure != main)
        },
        components={},
        fit_seconds=seconds / len(found),
        megabytes=size / 1e6,
    )
    return entry, found[0].facts


def compare_job(
    encoder: SentenceTransformer,
    job: Job,
    *,
    methods: Sequence[str] | None = None,
    main: str | None = None,
    corpus: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    seeds: int = 5,
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[Computing],
) -> Comparison:
    """Fit every calibrator on an encoder's vectors, and judge each by the same job and resamples.

    The only task is the job, by its kind, and the aggregations are its measures, the main one
    first. Where both sides of a search are there to fit on, each calibrator is fitted twice: with a
    map for each side ("two-sided whitening"), and with one map on the rows of both.

    Args:
        encoder: Any SentenceTransformer that is not calibrated.
        job: Such as `bertflow.evaluation.DuplicatesJob` gives.
        methods: Names in `METHODS`, "search-whitening" or "soft-standardization"; None takes all
            but the flows, after "none" what `calibrate` takes for the job.
        main: The measure that comes first; None takes the job's own first one.
        corpus: Documents or sentences to fit on; None takes the job's own.
        queries: Queries to fit on; None takes the job's own, or none beside a given corpus.
        seeds: How often methods with a seed are fitted, with seeds from 0.
        jobs: Processes that fit and judge; None takes one a CPU, or for vectors of over 256 MB one
            in all. Results do not depend on it.
        progress: Called with "encode" or "fit", the steps done and their total.
        options: See `bertflow.encoders.Computing`.

    Raises:
        InputError: A method or the main measure is unknown, the encoder is calibrated, or queries
            are given to a job without any.

    Example:
        ``compare_job(load_encoder("bert-base-uncased"), DuplicatesJob(read_pairs("mine.csv")))``
    """
    began = time.perf_counter()
    methods = default_methods(job.kind) if methods is None else methods
    methods = compared(encoder, methods, JOB_METHODS, seeds)
    texts = dict(job.texts())
    if queries is not None and "query" not in texts:
        raise InputError(f"queries do not go with {job.source}, a job without queries")
    report = progress or (lambda stage, done, total: None)
    how: EncodeOptions = {**options, "progress": partial(report, "encode")}
    vectors, cut = job_vectors(encoder, job, **how)
    rows = {} if corpus is not None else dict(vectors)
    given: dict[Role, Sequence[str] | None] = {"document": corpus, "query": queries}
    for role, some in given.items():
        if some is not None:
            rows[role] = embed(side_of(encoder, role), some, count_cut=False, **how).rows()
    encode_seconds = time.perf_counter() - began
    sides = (True, False) if len(rows.get("query", ())) > 1 else (False,)
    variants = [
        (name, two_sided)
        for name in methods
        for two_sided in (sides if name != "none" else (False,))
    ]
    if jobs is None and sum(side.nbytes for side in vectors.values()) > LARGE:
        jobs = 1
    tried = partial(_entry, job, vectors, rows, seeds, main)
    done = {}
    for number, found in run_all([partial(tried, *variant) for variant in variants], jobs):
        done[number] = found
        report("fit", len(done), len(variants))
    names = [f"{TWO_SIDED} {name}" if two_sided else name for name, two_sided in variants]
    described = {"data": job.source, "unit": job.unit, "counts": dict(job.counts)}
    own = corpus is None and queries is None
    return Comparison(
        entries={name: done[number][0] for number, name in enumerate(names)},
        facts={name: done[number][1] for number, name in enumerate(names)},
        tasks={job.kind: {**described, "skipped": dict(job.skipped)}},
        absent={},
        fitted_on={
            "fit": "target" if own else CORPUS,
            "sentences": {role: len(side) for role, side in rows.items()},
        },
        dev={},
        encoder=describe_encoder(encoder),
        seeds=seeds,
        sentences=sum(len(set(side)) for side in texts.values()),
        cut=cut,
        encode_seconds=encode_seconds,
        seconds=time.perf_counter() - began,
    )
