"""Calibrators side by side on a job of the user's own: search, classes, duplicates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.calibrators.storage import JOBS, named_calibrator
from bertflow.encoders import Precision, SentenceCache, describe_encoder, embed
from bertflow.encoders.encoder import Role, side_of
from bertflow.errors import FewRowsWarning, InputError, check_number, unknown
from bertflow.evaluation.comparison import (
    CORPUS,
    METHODS,
    Comparison,
    Entry,
    Method,
    Progress,
    published_dim,
)
from bertflow.evaluation.experiment import run_all
from bertflow.evaluation.jobs import Job, estimates, job_vectors
from bertflow.evaluation.scores import over_seeds
from bertflow.models import CalibratedSentenceTransformer

TWO_SIDED = "two-sided"
# Vectors of more bytes are mapped one method at a time, because each process has a copy.
LARGE = 2**28


def _preset(name: str, width: int, seed: int) -> Calibrator:
    return named_calibrator(name)


# Those of tasks, and what `calibrate` takes by default for some job.
JOB_METHODS: Mapping[str, Method] = {
    **{
        name: Method(name, name.replace("-", " "), partial(_preset, name))
        for name, _ in JOBS.values()
    },
    **METHODS,
}


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
    found, seconds, size = [], [0.0], 0
    for seed in range(seeds if method.seeded else 1):
        mapped = vectors
        if (calibrator := method.build(width, seed)) is not None:
            began = time.perf_counter()
            with warnings.catch_warnings():  # Whoever reads the figures is told how many there are.
                warnings.simplefilter("ignore", FewRowsWarning)
                if two_sided:
                    calibrator.fit(rows["document"], queries=rows["query"], progress=False)
                else:
                    calibrator.fit(np.concatenate(list(rows.values())), progress=False)
            seconds.append(time.perf_counter() - began)
            size = sum(t.numel() * t.element_size() for t in calibrator._tensors().values())
            mapped = {role: calibrator._rows(side, role) for role, side in vectors.items()}
        found.append(job.judge(mapped))
    if main not in (None, *found[0].measures):
        raise unknown("measure", str(main), found[0].measures)
    measured = [estimates(one) for one in found]
    over = {
        measure: over_seeds([one[measure] for one in measured])
        for measure in sorted(measured[0], key=lambda measure: measure != main)
    }
    label = method.label.format(dim=published_dim(width))
    entry = Entry(
        method=name,
        label=f"{TWO_SIDED} {label}" if two_sided else label,
        estimates={one: {job.kind: estimate} for one, (estimate, _) in over.items()},
        spread={one: {job.kind: deviation or 0.0} for one, (_, deviation) in over.items()},
        components={},
        fit_seconds=sum(seconds) / len(found),
        megabytes=size / 1e6,
    )
    return entry, found[0].facts


@dataclass(frozen=True, kw_only=True, repr=False)
class JobComparison(Comparison):
    """Calibrators side by side on one encoder and one job.

    It is a `Comparison` whose only task is the job, by its kind, and whose aggregations are the
    job's measures, the main one first. Methods with a map for each side are named such as
    "two-sided whitening".

    Attributes:
        facts: By entry, what its first fit found beside the measures, such as a threshold.
    """

    facts: Mapping[str, Mapping[str, Any]]


def compare_job(
    encoder: SentenceTransformer,
    job: Job,
    *,
    methods: Sequence[str] | None = None,
    main: str | None = None,
    corpus: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    seeds: int = 5,
    batch_size: int = 32,
    jobs: int | None = None,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    progress: Progress | None = None,
) -> JobComparison:
    """Fit every calibrator on an encoder's vectors, and judge each by the same job and resamples.

    Where both sides of a search are there to fit on, each calibrator is fitted twice: with a map
    for each side ("two-sided"), and with one map on the rows of both.

    Args:
        encoder: Any SentenceTransformer that is not calibrated.
        job: Such as `bertflow.evaluation.DuplicatesJob.of` gives.
        methods: Names in `METHODS`, "search-whitening" or "soft-standardization"; None takes all
            but the flows, after "none" what `calibrate` takes for the job.
        main: The measure that comes first; None takes the job's own first one.
        corpus: Documents or sentences to fit on; None takes the job's own.
        queries: Queries to fit on; None takes the job's own, or none beside a given corpus.
        seeds: How often methods with a seed are fitted, with seeds from 0.
        batch_size: Sentences a forward pass.
        jobs: Processes that fit and judge; None takes one a CPU, or for vectors of over 256 MB one
            in all. Results do not depend on it.
        cache: Where vectors are taken from and kept; None encodes all.
        precision: What the encoder computes in, as in `bertflow.calibrate`.
        progress: Called with "encode" or "fit", the steps done and their total.

    Raises:
        InputError: A method or the main measure is unknown, the encoder is calibrated, or queries
            are given to a job without any.

    Example:
        ``compare_job(load_encoder("bert-base-uncased"), DuplicatesJob.of(read_pairs("mine.csv")))``
    """
    began = time.perf_counter()
    check_number("seeds", seeds, 1, integer=True)
    methods = default_methods(job.kind) if methods is None else methods
    for name in methods:
        if name not in JOB_METHODS:
            raise unknown("method", name, JOB_METHODS)
    if not methods:
        raise InputError("nothing to compare: give at least one method")
    if isinstance(encoder, CalibratedSentenceTransformer):
        raise InputError("the model is calibrated already; give the encoder that it was fitted on")
    texts = dict(job.texts())
    if queries is not None and "query" not in texts:
        raise InputError(f"queries do not go with {job.source}, a job without queries")
    report = progress or (lambda stage, done, total: None)
    how: Any = {"batch_size": batch_size, "cache": cache, "precision": precision}
    how["progress"] = partial(report, "encode")
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
        for name in dict.fromkeys(methods)
        for two_sided in (sides if name != "none" else (False,))
    ]
    if jobs is None and sum(side.nbytes for side in vectors.values()) > LARGE:
        jobs = 1
    fit = partial(_entry, job, vectors, rows, seeds, main)
    done = {}
    for number, found in run_all([partial(fit, *variant) for variant in variants], jobs):
        done[number] = found
        report("fit", len(done), len(variants))
    names = [f"{TWO_SIDED} {name}" if two_sided else name for name, two_sided in variants]
    described = {"data": job.source, "unit": job.unit, "counts": dict(job.counts)}
    own = corpus is None and queries is None
    return JobComparison(
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
