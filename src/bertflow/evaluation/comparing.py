"""Comparing calibrators on one encoder: each sentence encoded once, every difference tested."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed
from sentence_transformers import SentenceTransformer

from bertflow.calibrators.base import Array, check_number
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_sentences, read_task, read_texts
from bertflow.encoders import (
    Precision,
    SentenceCache,
    describe_encoder,
    embed,
)
from bertflow.errors import InputError, MissingDataError, ModelError, unknown
from bertflow.evaluation.comparison import Comparison, Entry
from bertflow.evaluation.kept import (
    figures_key,
    kept_figures,
    kept_outcome,
    run_kept,
    score_kept,
    trial_keys,
)
from bertflow.evaluation.methods import METHODS, Method, published_dim
from bertflow.evaluation.scores import Estimate, Figures, gold_of, over_seeds
from bertflow.evaluation.tasks import read_tasks
from bertflow.evaluation.trials import Judge, Outcome, Trial, cpus
from bertflow.models import CalibratedSentenceTransformer

log = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
NLI = ("snli", "mnli")


@dataclass(frozen=True)
class _Dev:
    """Pairs to choose n_components on, and the text to fit on for that; empty: the task's own."""

    pairs: Pairs
    corpus: Sequence[str]


@dataclass(frozen=True)
class _Material:
    """All that is read before anything is encoded.

    Attributes:
        tests: The pairs to score on, each task once.
        corpora: Sentences to fit on, by task, or as "corpus" where they are the same for all.
        sets: The data sets that "corpus" is made of, if it is made of any.
        skipped: Of each data set that is fitted on, rows left out by reason.
        devs: By task, if a method needs one; None where there is none.
    """

    tests: Sequence[Pairs]
    corpora: Mapping[str, Sequence[str]]
    sets: Sequence[str]
    skipped: Mapping[str, Mapping[str, int]]
    devs: Mapping[str, _Dev | None]

    def texts(self) -> list[str]:
        """Every sentence that needs a vector, with repeats."""
        devs = [dev for dev in self.devs.values() if dev is not None]
        corpora = [*self.corpora.values(), *(dev.corpus for dev in devs)]
        texts = [text for corpus in corpora for text in corpus]
        for pairs in (*self.tests, *(dev.pairs for dev in devs)):
            for side in pairs.graded()[:2]:
                texts += side
        return texts


def compare(
    encoder: SentenceTransformer,
    tasks: Sequence[str | Pairs] = STS_TASKS,
    *,
    fit: str | Sequence[str] = "target",
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 5,
    data: str | Path | None = None,
    batch_size: int = 32,
    jobs: int | None = None,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Fit every calibrator on an encoder's vectors, and score them side by side.

    Every distinct sentence is encoded once. All methods are scored on the same pairs and the same
    resamples of them.

    All-but-the-top's n_components is chosen on the task's dev split or, where a task has none, on
    that of STS-B. Where neither is there, and for pairs of one's own, it is D // 100, at least 1.

    Args:
        encoder: Any SentenceTransformer that is not calibrated.
        tasks: Names of tasks, each scored on its published split, or pairs of one's own.
        fit: Unlabelled sentences: "target" takes for each task the text of all its splits, also of
            pairs that were never graded; "nli" takes SNLI and MNLI, as far as they are there; or
            sentences of one's own.
        methods: Names in `METHODS`.
        seeds: How often methods with a seed are fitted, with seeds from 0.
        data: Folder of the data; None takes the environment variable BERTFLOW_DATA.
        batch_size: Sentences a forward pass.
        jobs: Processes that fit at the same time; None takes one a CPU. Results do not depend on
            it.
        cache: Where vectors, fits and scores are taken from and kept, such as `SentenceCache()`, so
            that what was stopped goes on; None computes all.
        precision: What the encoder computes in, as in `bertflow.calibrate`.
        progress: Called with "encode", "fit" or "score", the steps done and their total.

    Returns:
        The comparison.

    Raises:
        InputError: A task, method or fit is unknown, the encoder is calibrated, or data are not
            readable.
        MissingDataError: The data of all tasks, or those to fit on, are not there.
    """
    began = time.perf_counter()
    methods = list(dict.fromkeys(methods))
    check_number("seeds", seeds, 1, integer=True)
    if not methods or not tasks:
        raise InputError(f"nothing to compare: give at least one {'method' if tasks else 'task'}")
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    if isinstance(encoder, CalibratedSentenceTransformer):
        raise InputError("the model is calibrated already; give the encoder that it was fitted on")
    report = progress or (lambda stage, done, total: None)
    given = [task for task in tasks if isinstance(task, Pairs)]
    named = [task for task in tasks if isinstance(task, str)]
    found, absent = read_tasks(named, data) if named else ([], {})
    material = _gather([*found, *given], fit, methods, data)
    tests = material.tests
    texts = material.texts()
    start = time.perf_counter()
    embedded = embed(
        encoder,
        texts,
        batch_size=batch_size,
        cache=cache,
        precision=precision,
        progress=lambda done, total: report("encode", done, total),
    )
    encode_seconds = time.perf_counter() - start
    log.info("%d distinct sentences in %.1f s", len(embedded.vectors), encode_seconds)
    row_of = dict(zip(texts, embedded.index.tolist(), strict=True))
    trials = _plan(material, row_of, methods, seeds)
    log.info("%d fits in %d processes", len(trials), jobs or cpus())
    workers = Parallel(n_jobs=jobs or cpus(), return_as="generator_unordered")
    outcomes = _outcomes(embedded.vectors, trials, workers, cache, report)
    results = list(zip(trials, outcomes, strict=True))
    cosines = {pairs.task: _gathered(pairs.task, methods, results) for pairs in tests}
    stacks = [_spread_out(pairs, cosines[pairs.task][1]) for pairs in tests]
    scored = _scored(tests, stacks, workers, cache, report)
    entries = {
        name: _entry(
            METHODS[name],
            embedded.vectors.shape[1],
            tests,
            {task: cosines[task][0] for task in scored},
            scored,
            results,
        )
        for name in methods
    }
    return Comparison(
        entries=entries,
        tasks={pairs.task: _described(pairs, scored[pairs.task][0]) for pairs in tests},
        absent=absent,
        fitted_on={
            "fit": fit if isinstance(fit, str) else "corpus",
            "sets": list(material.sets),
            "sentences": {name: len(corpus) for name, corpus in material.corpora.items()},
            "skipped": {name: dict(counts) for name, counts in material.skipped.items() if counts},
        },
        dev={
            task: f"{dev.pairs.task} {dev.pairs.split}" if dev else None
            for task, dev in material.devs.items()
        },
        encoder=describe_encoder(encoder),
        seeds=seeds,
        sentences=len(embedded.vectors),
        cut=embedded.cut,
        encode_seconds=encode_seconds,
        seconds=time.perf_counter() - began,
    )


def _outcomes(
    vectors: Array,
    trials: Sequence[Trial],
    workers: Parallel,
    cache: SentenceCache | None,
    report: Progress,
) -> list[Outcome]:
    """What comes of each trial."""
    kept = None if cache is None else cache.results
    keys = [""] * len(trials) if kept is None else trial_keys(vectors, trials)
    return _each(
        [kept_outcome(kept, key) for key in keys],
        lambda number: delayed(run_kept)(number, vectors, trials[number], kept, keys[number]),
        workers,
        cache,
        lambda done: report("fit", done, len(trials)),
    )


def _scored(
    tests: Sequence[Pairs],
    stacks: Sequence[Array],
    workers: Parallel,
    cache: SentenceCache | None,
    report: Progress,
) -> dict[str, list[Figures]]:
    """The figures of each task's cosines."""
    kept = None if cache is None else cache.results
    keys = [
        "" if kept is None else figures_key(pairs, stack)
        for pairs, stack in zip(tests, stacks, strict=True)
    ]
    judged = _each(
        [kept_figures(kept, key) for key in keys],
        lambda number: delayed(score_kept)(
            number, tests[number], stacks[number], kept, keys[number]
        ),
        workers,
        cache,
        lambda done: report("score", done, len(tests)),
    )
    return {pairs.task: one for pairs, one in zip(tests, judged, strict=True)}


def _each(
    before: Sequence[T | None],
    job: Callable[[int], Any],
    workers: Parallel,
    cache: SentenceCache | None,
    report: Callable[[int], None],
) -> list[T]:
    """What is there from before, and what jobs give; those keep it as soon as they have it."""
    found = {number: one for number, one in enumerate(before) if one is not None}
    if found:
        report(len(found))
    lacking = [number for number in range(len(before)) if number not in found]
    for number, one, error in workers(job(number) for number in lacking):
        found[number] = one
        if cache is not None and error is not None:
            cache.warn(ModelError(error))
        report(len(found))
    return [found[number] for number in range(len(before))]


def _gather(
    tests: Sequence[Pairs],
    fit: str | Sequence[str],
    methods: Sequence[str],
    data: str | Path | None,
) -> _Material:
    names = [pairs.task for pairs in tests]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is there twice; give each task once")
    tuned = any(METHODS[name].tuned for name in methods)
    skipped: dict[str, Mapping[str, int]] = {}
    corpora, sets = _corpora(fit, tests, data, skipped)
    return _Material(
        tests=tests,
        corpora=corpora,
        sets=sets,
        skipped=skipped,
        devs={pairs.task: _dev(pairs, fit, data) for pairs in tests} if tuned else {},
    )


def _plan(
    material: _Material, row_of: Mapping[str, int], methods: Sequence[str], seeds: int
) -> list[Trial]:
    """Every fit that there is to be: of each method, seed and, where they differ, corpus."""
    rows = {name: _rows(row_of, corpus) for name, corpus in material.corpora.items()}
    judges = {pairs.task: _judge(row_of, pairs) for pairs in material.tests}
    trials = []
    for name in methods:
        for seed in range(seeds if METHODS[name].seeded else 1):
            if "corpus" in rows and not METHODS[name].tuned:
                trials.append(Trial(name, seed, rows["corpus"], list(judges.values())))
                continue
            for task, judge in judges.items():
                corpus = rows["corpus" if "corpus" in rows else task]
                dev = material.devs.get(task)
                if dev is None:
                    trials.append(Trial(name, seed, corpus, [judge]))
                    continue
                other = _rows(row_of, dev.corpus) if dev.corpus else None
                trials.append(Trial(name, seed, corpus, [judge], _judge(row_of, dev.pairs), other))
    return trials


def _corpora(
    fit: str | Sequence[str],
    tests: Sequence[Pairs],
    data: str | Path | None,
    skipped: dict[str, Mapping[str, int]],
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """What is fitted on, by task or as "corpus" where it is the same for all, and of what sets.

    Rows that are left out are added to `skipped`.
    """

    def read(name: str) -> list[str]:
        found = read_texts(name, data)
        skipped[name] = found.skipped
        return found.sentences

    if not isinstance(fit, str):
        return {"corpus": list(fit)}, []
    if fit == "target":
        own: dict[str, Sequence[str]] = {
            pairs.task: read(pairs.task) if pairs.task in CATALOG else [*pairs.first, *pairs.second]
            for pairs in tests
        }
        return own, []
    if fit != "nli":
        raise InputError(f"unknown fit {fit!r}; expected 'target', 'nli' or sentences")
    texts: list[str] = []
    sets, reasons = [], []
    for name in NLI:
        try:
            texts += read(name)
            sets.append(name)
        except MissingDataError as error:
            reasons.append(str(error))
    if not texts:
        raise MissingDataError(reasons[0])
    return {"corpus": texts}, sets


def _dev(pairs: Pairs, fit: str | Sequence[str], data: str | Path | None) -> _Dev | None:
    """The task's dev split or, where it has none, STS-B's; none for pairs of one's own.

    A comparison on those reads no other data: nobody asked for them.
    """
    declared = CATALOG.get(pairs.task)
    if declared is None:
        return None
    own = "dev" in declared.splits and pairs.split != "dev"
    name = pairs.task if own else "stsb"
    if (name, "dev") == (pairs.task, pairs.split):
        return None  # Never on the pairs that are scored.
    try:
        dev = read_task(name, data, "dev")
        return _Dev(dev, read_sentences("stsb", data) if fit == "target" and not own else [])
    except MissingDataError:
        return None


def _rows(row_of: Mapping[str, int], texts: Sequence[str]) -> Array:
    return np.fromiter((row_of[text] for text in texts), dtype=np.int64, count=len(texts))


def _judge(row_of: Mapping[str, int], pairs: Pairs) -> Judge:
    """The graded pairs as rows."""
    first, second, gold = pairs.graded()
    return Judge(pairs.task, _rows(row_of, first), _rows(row_of, second), np.array(gold))


def _gathered(
    task: str, methods: Sequence[str], results: Sequence[tuple[Trial, Outcome]]
) -> tuple[dict[str, list[int]], Array]:
    """Cosines of every method and seed on a task's graded pairs, and which of them is whose."""
    places: dict[str, list[int]] = {name: [] for name in methods}
    stack: list[Array] = []
    for trial, outcome in results:
        for test, cosine in zip(trial.tests, outcome.cosines, strict=True):
            if test.name == task:
                places[trial.method].append(len(stack))
                stack.append(cosine)
    return places, np.stack(stack)


def _spread_out(pairs: Pairs, cosines: Array) -> Array:
    """From graded pairs to all, NaN where a pair was never graded."""
    full = np.full((len(cosines), len(pairs)), np.nan)
    full[:, ~np.isnan(gold_of(pairs))] = cosines
    return full


def _entry(
    method: Method,
    width: int,
    tests: Sequence[Pairs],
    places: Mapping[str, Mapping[str, list[int]]],
    scored: Mapping[str, Sequence[Figures]],
    results: Sequence[tuple[Trial, Outcome]],
) -> Entry:
    subsets = any(len(scored[pairs.task][0].aggregations) > 1 for pairs in tests)
    estimates: dict[str, dict[str, Estimate]] = {}
    spread: dict[str, dict[str, float]] = {}
    replicates: dict[str, dict[str, Array]] = {}
    for aggregation in ("wmean", "all") if subsets else ("all",):
        estimates[aggregation], spread[aggregation], replicates[aggregation] = {}, {}, {}
        for pairs in tests:
            seeds = [scored[pairs.task][place] for place in places[pairs.task][method.name]]
            one, deviation, drawn = _over_seeds(seeds, aggregation)
            estimates[aggregation][pairs.task] = one
            spread[aggregation][pairs.task] = deviation
            replicates[aggregation][pairs.task] = drawn
    mine = [(trial, outcome) for trial, outcome in results if trial.method == method.name]
    runs = max(len(places[pairs.task][method.name]) for pairs in tests)
    return Entry(
        method=method.name,
        label=method.label.format(dim=published_dim(width)),
        estimates=estimates,
        spread=spread,
        replicates=replicates,
        components={
            trial.tests[0].name: outcome.components
            for trial, outcome in mine
            if outcome.components is not None
        },
        fit_seconds=sum(outcome.seconds for _, outcome in mine) / runs,
        megabytes=float(np.mean([outcome.bytes for _, outcome in mine])) / 1e6,
    )


def _over_seeds(seeds: Sequence[Figures], aggregation: str) -> tuple[Estimate, float, Array]:
    drawn = [one.replicates.get(aggregation, one.replicates["all"]) for one in seeds]
    one, deviation, mixed = over_seeds([one.main(aggregation) for one in seeds], np.stack(drawn))
    return one, deviation or 0.0, mixed


def _described(pairs: Pairs, found: Figures) -> dict[str, Any]:
    graded = int((~np.isnan(gold_of(pairs))).sum())
    total = sum(found.scored.values())
    return {
        "split": pairs.split,
        "measure": found.measure,
        "pairs": len(pairs) + sum(pairs.skipped.values()),
        "scored": dict(found.scored),
        "skipped": {
            **pairs.skipped,
            "no gold score": len(pairs) - graded,
            "no cosine in some method": graded - total,
        },
        "data": pairs.source,
    }
