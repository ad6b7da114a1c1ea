"""The rivals that `compare` sets side by side, and the comparison: each sentence encoded once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
)
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_sentences, read_task, read_texts
from bertflow.encoders import (
    Precision,
    SentenceCache,
    describe_encoder,
    embed,
)
from bertflow.errors import InputError, MissingDataError, check_number, unknown
from bertflow.evaluation.comparison import Comparison, Entry
from bertflow.evaluation.experiment import (
    ModelFigures,
    Outcome,
    PairRows,
    Trial,
    figures_recipe,
    run_stored,
    run_trial,
    score_models,
    trial_recipes,
)
from bertflow.evaluation.scores import Estimate, Figures, on_all_pairs, over_seeds
from bertflow.evaluation.tasks import read_available, read_tasks
from bertflow.models import CalibratedSentenceTransformer

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
NLI = ("snli", "mnli")
# The published width of whitening; narrower vectors are halved instead.
DIM = 256
SOFT = 0.75


@dataclass(frozen=True)
class Method:
    """A way to calibrate.

    Attributes:
        name: Its name on the command line.
        label: Its name in a table.
        build: Gives the calibrator for vectors of so many dimensions and a seed; None for the
            vectors as they are.
        seeded: Whether the seed matters.
        tuned: Whether n_components is chosen on a dev split, from 1 to 20, where there is one.
    """

    name: str
    label: str
    build: Callable[[int, int], Calibrator | None]
    seeded: bool = False
    tuned: bool = False


def published_dim(width: int) -> int:
    """The dimensions that whitening keeps: 256, as published, or half of narrower vectors."""
    return DIM if width > DIM else max(1, width // 2)


def _whitening(width: int, power: float = 1.0) -> Whitening:
    return Whitening(published_dim(width), power=power, shrinkage=0.0)


_DECLARED = (
    Method("none", "none", lambda width, seed: None),
    Method("adaptive-whitening", "adaptive whitening", lambda width, seed: AdaptiveWhitening()),
    Method("standardization", "standardization", lambda width, seed: Standardization()),
    Method("all-but-the-top", "all-but-the-top", lambda width, seed: AllButTheTop(), tuned=True),
    Method(
        "standardization+all-but-the-top",
        "standardization + all-but-the-top",
        lambda width, seed: AllButTheTop(standardize=True),
        tuned=True,
    ),
    Method("whitening", "whitening", lambda width, seed: Whitening(shrinkage=0.0)),
    Method("whitening-dim", "whitening {dim}", lambda width, seed: _whitening(width)),
    Method(
        "soft-whitening",
        f"soft whitening {{dim}} (power {SOFT})",
        lambda width, seed: _whitening(width, SOFT),
    ),
    Method("flow", "flow", lambda width, seed: Flow(random_state=seed), seeded=True),
    Method(
        "released-flow",
        "released-flow",
        lambda width, seed: Flow.released(random_state=seed),
        seeded=True,
    ),
    Method(
        "tempered-flow",
        "tempered-flow",
        lambda width, seed: Flow.tempered(random_state=seed),
        seeded=True,
    ),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _DECLARED})


@dataclass(frozen=True)
class _Dev:
    """Pairs to choose n_components on, and the text to fit on for that; empty: the task's own."""

    pairs: Pairs
    corpus: Sequence[str]


@dataclass(frozen=True)
class _Corpora:
    """What is fitted on.

    Attributes:
        texts: Sentences by task, or as "corpus" where they are the same for all.
        sets: The data sets that "corpus" is made of, if it is made of any.
        skipped: Of each data set, rows left out by reason.
    """

    texts: Mapping[str, Sequence[str]]
    sets: Sequence[str] = ()
    skipped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Material:
    """All that is read before anything is encoded.

    Attributes:
        tests: The pairs to score on, each task once.
        corpora: What is fitted on.
        devs: By task, if a method needs one; None where there is none.
    """

    tests: Sequence[Pairs]
    corpora: _Corpora
    devs: Mapping[str, _Dev | None]

    def texts(self) -> list[str]:
        """Every sentence that needs a vector, with repeats."""
        devs = [dev for dev in self.devs.values() if dev is not None]
        corpora = [*self.corpora.texts.values(), *(dev.corpus for dev in devs)]
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
    material, absent = _gather(tasks, fit, methods, data)
    texts = material.texts()
    start = time.perf_counter()
    embedded = embed(
        encoder,
        texts,
        batch_size=batch_size,
        cache=cache,
        precision=precision,
        progress=partial(report, "encode"),
    )
    encode_seconds = time.perf_counter() - start
    log.info("%d distinct sentences in %.1f s", len(embedded.vectors), encode_seconds)
    row_of = dict(zip(texts, embedded.index.tolist(), strict=True))
    trials = _plan(material, row_of, methods, seeds, embedded.vectors.shape[1])
    results = _run(embedded.vectors, trials, material.tests, jobs, cache, report)
    return Comparison(
        entries={name: _entry(name, embedded.vectors.shape[1], *results) for name in methods},
        tasks={pairs.task: _described(pairs, results[1]) for pairs in material.tests},
        absent=absent,
        fitted_on={
            "fit": fit if isinstance(fit, str) else "corpus",
            "sets": list(material.corpora.sets),
            "sentences": {name: len(corpus) for name, corpus in material.corpora.texts.items()},
            "skipped": {
                name: dict(counts) for name, counts in material.corpora.skipped.items() if counts
            },
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


def _gather(
    tasks: Sequence[str | Pairs],
    fit: str | Sequence[str],
    methods: Sequence[str],
    data: str | Path | None,
) -> tuple[_Material, dict[str, str]]:
    """What is there of the tasks and corpora, and why a task is not."""
    named = [task for task in tasks if isinstance(task, str)]
    tests, absent = read_tasks(named, data) if named else ([], {})
    tests += [task for task in tasks if isinstance(task, Pairs)]
    names = [pairs.task for pairs in tests]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is there twice; give each task once")
    tuned = any(METHODS[name].tuned for name in methods)
    corpora = _corpora(fit, tests, data)
    devs = {pairs.task: _dev(pairs, fit, data) for pairs in tests} if tuned else {}
    return _Material(tests, corpora, devs), absent


def _corpora(fit: str | Sequence[str], tests: Sequence[Pairs], data: str | Path | None) -> _Corpora:
    if not isinstance(fit, str):
        return _Corpora({"corpus": list(fit)})
    if fit == "target":
        read = {
            pairs.task: read_texts(pairs.task, data) for pairs in tests if pairs.task in CATALOG
        }
        return _Corpora(
            {
                pairs.task: read[pairs.task].sentences
                if pairs.task in read
                else [*pairs.first, *pairs.second]
                for pairs in tests
            },
            skipped={name: one.skipped for name, one in read.items()},
        )
    if fit != "nli":
        raise InputError(f"unknown fit {fit!r}; expected 'target', 'nli' or sentences")
    read, _ = read_available(NLI, lambda name: read_texts(name, data))
    texts = [text for one in read.values() for text in one.sentences]
    return _Corpora({"corpus": texts}, [*read], {name: one.skipped for name, one in read.items()})


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


def _plan(
    material: _Material,
    row_of: Mapping[str, int],
    methods: Sequence[str],
    seeds: int,
    width: int,
) -> list[tuple[str, Trial]]:
    """Every fit, after the name of its method: one a seed and, where they differ, a corpus."""

    def rows(texts: Sequence[str]) -> Array:
        return np.fromiter((row_of[text] for text in texts), dtype=np.int64, count=len(texts))

    corpora = {name: rows(texts) for name, texts in material.corpora.texts.items()}
    tests = {pairs.task: PairRows.of(pairs, rows) for pairs in material.tests}
    devs = {
        task: (PairRows.of(dev.pairs, rows), rows(dev.corpus) if dev.corpus else None)
        for task, dev in material.devs.items()
        if dev is not None
    }
    trials: list[tuple[str, Trial]] = []
    for name in methods:
        method = METHODS[name]
        for seed in range(seeds if method.seeded else 1):
            calibrator = method.build(width, seed)
            if "corpus" in corpora and not method.tuned:
                trials.append((name, Trial(calibrator, corpora["corpus"], [*tests.values()])))
                continue
            for task, test in tests.items():
                corpus = corpora["corpus" if "corpus" in corpora else task]
                dev = devs.get(task, (None, None)) if method.tuned else (None, None)
                trials.append((name, Trial(calibrator, corpus, [test], *dev)))
    return trials


# By method, its outcomes, each with the tasks that it was tested on; and by task and method, the
# figures of each seed.
_Results = tuple[
    Mapping[str, list[tuple[Trial, Outcome]]], Mapping[str, Mapping[str, list[Figures]]]
]


def _run(
    vectors: Array,
    planned: Sequence[tuple[str, Trial]],
    tests: Sequence[Pairs],
    jobs: int | None,
    cache: SentenceCache | None,
    report: Progress,
) -> _Results:
    """Fit and score everything."""
    trials = [trial for _, trial in planned]
    outcomes = run_stored(
        [partial(run_trial, vectors, trial) for trial in trials],
        Outcome,
        recipes=trial_recipes(vectors, trials) if cache else [],
        cache=cache,
        jobs=jobs,
        report=lambda done: report("fit", done, len(trials)),
    )
    by_method: dict[str, list[tuple[Trial, Outcome]]] = {}
    # By task, the method and the cosines of each fit.
    rows: dict[str, list[tuple[str, Array]]] = {pairs.task: [] for pairs in tests}
    for (name, trial), outcome in zip(planned, outcomes, strict=True):
        by_method.setdefault(name, []).append((trial, outcome))
        for test, cosines in zip(trial.tests, outcome.cosines, strict=True):
            rows[test.task].append((name, cosines))
    stacks = [
        on_all_pairs(pairs, np.stack([one for _, one in rows[pairs.task]])) for pairs in tests
    ]
    scored = run_stored(
        [partial(score_models, *one) for one in zip(tests, stacks, strict=True)],
        ModelFigures,
        recipes=[figures_recipe(*one) for one in zip(tests, stacks, strict=True)] if cache else [],
        cache=cache,
        jobs=jobs,
        report=lambda done: report("score", done, len(tests)),
    )
    figures: dict[str, dict[str, list[Figures]]] = {}
    for pairs, found in zip(tests, scored, strict=True):
        of_task = figures.setdefault(pairs.task, {})
        for (name, _), one in zip(rows[pairs.task], found.models, strict=True):
            of_task.setdefault(name, []).append(one)
    return by_method, figures


def _entry(
    name: str,
    width: int,
    by_method: Mapping[str, list[tuple[Trial, Outcome]]],
    figures: Mapping[str, Mapping[str, list[Figures]]],
) -> Entry:
    first = [one[name][0] for one in figures.values()]
    estimates: dict[str, dict[str, Estimate]] = {}
    spread: dict[str, dict[str, float]] = {}
    replicates: dict[str, dict[str, Array]] = {}
    subsets = any(len(one.aggregations) > 1 for one in first)
    for aggregation in ("wmean", "all") if subsets else ("all",):
        estimates[aggregation], spread[aggregation], replicates[aggregation] = {}, {}, {}
        for task, of_task in figures.items():
            seeds = of_task[name]
            one, deviation, drawn = over_seeds(
                [seed.main(aggregation) for seed in seeds],
                np.stack([seed.drawn(aggregation) for seed in seeds]),
            )
            estimates[aggregation][task] = one
            spread[aggregation][task] = deviation or 0.0
            replicates[aggregation][task] = drawn
    mine = by_method[name]
    runs = max(len(of_task[name]) for of_task in figures.values())
    return Entry(
        method=name,
        label=METHODS[name].label.format(dim=published_dim(width)),
        estimates=estimates,
        spread=spread,
        replicates=replicates,
        components={
            trial.tests[0].task: outcome.components
            for trial, outcome in mine
            if outcome.components is not None
        },
        fit_seconds=sum(outcome.seconds for _, outcome in mine) / runs,
        megabytes=float(np.mean([outcome.bytes for _, outcome in mine])) / 1e6,
    )


def _described(pairs: Pairs, figures: Mapping[str, Mapping[str, list[Figures]]]) -> dict[str, Any]:
    """What a task was scored on: the same pairs for every method."""
    found = next(iter(figures[pairs.task].values()))[0]
    graded = len(pairs.graded()[0])
    return {
        "split": pairs.split,
        "measure": found.measure,
        "pairs": len(pairs) + sum(pairs.skipped.values()),
        "scored": dict(found.scored),
        "skipped": {
            **pairs.skipped,
            "no gold score": len(pairs) - graded,
            "no cosine in some method": graded - sum(found.scored.values()),
        },
        "data": pairs.source,
    }
