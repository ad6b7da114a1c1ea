"""Calibrators side by side on one encoder: the methods, and their comparison."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
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
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_sentences, read_task
from bertflow.data.readers import Texts, read_texts
from bertflow.display import block, facts_table
from bertflow.encoders import (
    Precision,
    SentenceCache,
    describe_encoder,
    embed,
    library_versions,
)
from bertflow.errors import InputError, MissingDataError, check_number, unknown
from bertflow.evaluation.bootstrap import Difference, holm
from bertflow.evaluation.experiment import Outcome, PairRows, Trial, run_all, run_trials
from bertflow.evaluation.score_grids import comparison_grids, comparison_title
from bertflow.evaluation.scores import (
    Estimate,
    Figures,
    as_json,
    counted,
    figures,
    mean_over,
    on_all_pairs,
    over_seeds,
)
from bertflow.evaluation.tasks import read_available, read_tasks
from bertflow.models import CalibratedSentenceTransformer

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
NLI = ("snli", "mnli")
# The name of a corpus that is the same for all tasks.
CORPUS = "corpus"
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


def _flow(preset: str, width: int, seed: int) -> Flow:
    return Flow(**Flow.names[preset], random_state=seed)


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
    *(
        Method(name, name, partial(_flow, name), seeded=True)
        for name in ("flow", "released-flow", "tempered-flow")
    ),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _DECLARED})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a method did.

    Attributes:
        method: Its name.
        label: Its name in a table.
        estimates: By aggregation and task, the mean over seeds with its interval: of pairs and,
            where the method has one, of the seed.
        spread: By aggregation and task, the deviation over seeds; 0 where there is one.
        components: By task, the n_components chosen on a dev split.
        fit_seconds: Of one seed, all tasks together.
        megabytes: What one fitted calibrator weighs as it is saved.
    """

    method: str
    label: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    spread: Mapping[str, Mapping[str, float]]
    components: Mapping[str, int]
    fit_seconds: float
    megabytes: float

    def overall(self, aggregation: str) -> Estimate:
        """The mean over the tasks that count: the STS ones, or all if there is none."""
        tasks = self.estimates[aggregation]
        return mean_over({name: tasks[name] for name in counted(list(tasks))})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Calibrators side by side on one encoder.

    Attributes:
        entries: By method, in the order given.
        tasks: By task, the pairs it was scored on: split, pairs, scored, skipped, data, measure.
        absent: Why a task is not among them, by task.
        fitted_on: The text of the fits: kind, data sets of a common corpus, number of sentences by
            task or "corpus", and rows left out by data set and reason.
        dev: Where n_components was chosen, by task; None where none was there: D // 100.
        encoder: As `describe_encoder` gives it.
        seeds: How many.
        sentences: How many distinct sentences were encoded, once.
        cut: How many of these are longer than the encoder takes, and were cut.
        encode_seconds: How long that took.
        seconds: How long all took.
        versions: Versions of the libraries.
        time: When, UTC.
    """

    entries: Mapping[str, Entry]
    tasks: Mapping[str, Mapping[str, Any]]
    absent: Mapping[str, str]
    fitted_on: Mapping[str, Any]
    dev: Mapping[str, str | None]
    encoder: Mapping[str, Any]
    seeds: int
    sentences: int
    cut: int
    encode_seconds: float
    seconds: float
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def aggregations(self) -> list[str]:
        """Both "wmean" and "all", or "all" alone where no task has subsets."""
        return list(next(iter(self.entries.values())).estimates)

    @cached_property
    def best(self) -> dict[str, str | None]:
        """By aggregation, the method with the highest overall value."""
        found: dict[str, str | None] = {}
        for aggregation in self.aggregations:
            values = {
                name: one.value
                for name, entry in self.entries.items()
                if (one := entry.overall(aggregation)).value is not None
            }
            found[aggregation] = max(values, key=lambda name: values[name]) if values else None
        return found

    def against(self, reference: str, aggregation: str) -> dict[str, Difference]:
        """How much higher the other methods are than one, corrected for their number (Holm).

        Args:
            reference: A method that was compared.
            aggregation: "wmean" or "all".

        Raises:
            InputError: The method was not compared, or there is no such aggregation.
        """
        if reference not in self.entries or aggregation not in self.aggregations:
            raise InputError(
                f"no {reference!r} under {aggregation!r}; there are {', '.join(self.entries)} "
                f"under {', '.join(self.aggregations)}"
            )
        base = self.entries[reference].overall(aggregation)
        return holm(
            {
                name: entry.overall(aggregation).above(base)
                for name, entry in self.entries.items()
                if name != reference
            }
        )

    def __repr__(self) -> str:
        grids = [grid.text() for grid in comparison_grids(self)]
        return "\n\n".join([f"Comparison of {comparison_title(self)}", *grids])

    def _repr_html_(self) -> str:
        absent = facts_table({"absent": ", ".join(self.absent)}) if self.absent else ""
        grids = [grid.html() for grid in comparison_grids(self)]
        return block(f"Comparison of {comparison_title(self)}", absent, *grids)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        plain = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "entries"
        }
        return {
            **plain,
            "counted": counted(list(self.tasks)),
            "entries": {name: self._entry(name) for name in self.entries},
        }

    def _entry(self, name: str) -> dict[str, Any]:
        entry = self.entries[name]
        differences = {}
        for aggregation in self.aggregations:
            for reference in dict.fromkeys(["none", self.best[aggregation] or "none"]):
                if reference in self.entries and reference != name:
                    one = self.against(reference, aggregation)[name]
                    differences[f"{aggregation}, against {reference}"] = one.to_dict()
        return {
            "label": entry.label,
            "tasks": {
                aggregation: {
                    task: {**as_json(one), "seed_deviation": entry.spread[aggregation][task]}
                    for task, one in tasks.items()
                }
                for aggregation, tasks in entry.estimates.items()
            },
            "overall": {name: as_json(entry.overall(name)) for name in self.aggregations},
            "differences": differences,
            "components": dict(entry.components),
            "fit_seconds": entry.fit_seconds,
            "megabytes": entry.megabytes,
        }


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
        read: The text to fit on, by task or data set, or as "corpus" if it is the user's own.
        corpora: Its sentences by task, or as "corpus" if they are the same for all tasks.
        devs: By task, if a method needs one; None where there is none.
    """

    tests: Sequence[Pairs]
    read: Mapping[str, Texts]
    corpora: Mapping[str, Sequence[str]]
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

    def described(self) -> dict[str, Any]:
        """The text to fit on, as `Comparison.fitted_on` describes it."""
        return {
            "sets": [name for name in self.read if name in NLI],
            "sentences": {name: len(corpus) for name, corpus in self.corpora.items()},
            "skipped": {name: dict(one.skipped) for name, one in self.read.items() if one.skipped},
        }


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
        fit: Unlabelled sentences: "target" takes all text of each task, also of ungraded pairs;
            "nli" takes SNLI and MNLI, or the one that is there; or sentences of one's own.
        methods: Names in `METHODS`.
        seeds: How often methods with a seed are fitted, with seeds from 0.
        data: Folder of the data; None takes the environment variable BERTFLOW_DATA.
        batch_size: Sentences a forward pass.
        jobs: Processes that fit; None takes one a CPU. Results do not depend on it.
        cache: Where vectors and fits are taken from and kept, such as `SentenceCache()`, so that a
            stopped comparison goes on; None computes all.
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
    width = embedded.vectors.shape[1]
    row_of = dict(zip(texts, embedded.index.tolist(), strict=True))
    trials = _plan(material, row_of, methods, seeds, width)
    outcomes = run_trials(
        embedded.vectors,
        trials,
        cache=cache,
        jobs=jobs,
        report=lambda done: report("fit", done, len(trials)),
    )
    ran = [*zip(trials, outcomes, strict=True)]
    scored = _score(material.tests, ran, jobs, report)
    return Comparison(
        entries={
            name: _entry(
                METHODS[name],
                width,
                [one for one in ran if one[0].method == name],
                {task: by_method[name] for task, by_method in scored.items()},
            )
            for name in methods
        },
        tasks={
            pairs.task: _described(pairs, scored[pairs.task][methods[0]][0])
            for pairs in material.tests
        },
        absent=absent,
        fitted_on={"fit": fit if isinstance(fit, str) else CORPUS, **material.described()},
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
    """Read the tasks and corpora; also say why a task is absent."""
    if not methods or not tasks:
        raise InputError(f"nothing to compare: give at least one {'method' if tasks else 'task'}")
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    known = [task for task in tasks if isinstance(task, str)]
    tests, absent = read_tasks(known, data) if known else ([], {})
    tests += [task for task in tasks if isinstance(task, Pairs)]
    names = [pairs.task for pairs in tests]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is there twice; give each task once")
    read = _texts_to_fit(fit, tests, data)
    corpora = {name: one.sentences for name, one in read.items()}
    if not isinstance(fit, str) or fit == "nli":
        corpora = {CORPUS: [text for sentences in corpora.values() for text in sentences]}
    tuned = any(METHODS[name].tuned for name in methods)
    devs = {pairs.task: _dev(pairs, fit, data) for pairs in tests} if tuned else {}
    return _Material(tests, read, corpora, devs), absent


def _texts_to_fit(
    fit: str | Sequence[str], tests: Sequence[Pairs], data: str | Path | None
) -> dict[str, Texts]:
    """By name, the text of each task or data set, or the user's own."""
    if not isinstance(fit, str):
        return {CORPUS: Texts(list(fit), {})}
    if fit == "nli":
        return read_available(NLI, lambda name: read_texts(name, data))[0]
    if fit != "target":
        raise InputError(f"unknown fit {fit!r}; expected 'target', 'nli' or sentences")
    return {
        pairs.task: read_texts(pairs.task, data)
        if pairs.task in CATALOG
        else Texts([*pairs.first, *pairs.second], {})
        for pairs in tests
    }


def _dev(pairs: Pairs, fit: str | Sequence[str], data: str | Path | None) -> _Dev | None:
    """The task's dev split or, where it has none, STS-B's; none for pairs of one's own."""
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
) -> list[Trial]:
    """Every fit of every method: one a seed and, where they differ, a corpus."""

    def rows(texts: Sequence[str]) -> Array:
        return np.fromiter((row_of[text] for text in texts), dtype=np.int64, count=len(texts))

    tests = {pairs.task: PairRows.of(pairs, rows) for pairs in material.tests}
    # Each corpus, and the pairs that a calibrator fitted on it is judged on.
    fits = [
        (rows(texts), [*tests.values()] if name == CORPUS else [tests[name]])
        for name, texts in material.corpora.items()
    ]
    devs = {
        task: (PairRows.of(dev.pairs, rows), rows(dev.corpus) if dev.corpus else None)
        for task, dev in material.devs.items()
        if dev is not None
    }
    trials = []
    for name in methods:
        method = METHODS[name]
        for seed in range(seeds if method.seeded else 1):
            calibrator = method.build(width, seed)
            for corpus, judged in fits:
                if not method.tuned:
                    trials.append(Trial(calibrator, corpus, judged, method=name))
                    continue
                for test in judged:
                    dev, dev_corpus = devs.get(test.task, (None, None))
                    trials.append(Trial(calibrator, corpus, [test], dev, dev_corpus, name))
    return trials


def _score(
    tests: Sequence[Pairs],
    ran: Sequence[tuple[Trial, Outcome]],
    jobs: int | None,
    report: Progress,
) -> dict[str, dict[str, list[Figures]]]:
    """By task and method, the figures of each seed, all on the same pairs."""
    cosines: dict[str, list[tuple[str, Array]]] = {pairs.task: [] for pairs in tests}
    for trial, outcome in ran:
        for test, of_test in zip(trial.tests, outcome.cosines, strict=True):
            cosines[test.task].append((trial.method, of_test))
    works = [
        partial(
            figures,
            pairs,
            on_all_pairs(pairs, np.stack([of_test for _, of_test in cosines[pairs.task]])),
        )
        for pairs in tests
    ]
    scored: dict[str, dict[str, list[Figures]]] = {pairs.task: {} for pairs in tests}
    for done, (number, found) in enumerate(run_all(works, jobs), 1):
        task = tests[number].task
        for (name, _), one in zip(cosines[task], found, strict=True):
            scored[task].setdefault(name, []).append(one)
        report("score", done, len(works))
    return scored


def _entry(
    method: Method,
    width: int,
    ran: Sequence[tuple[Trial, Outcome]],
    scored: Mapping[str, Sequence[Figures]],
) -> Entry:
    """How a method did in its fits, given by task the figures of each seed."""
    estimates: dict[str, dict[str, Estimate]] = {}
    spread: dict[str, dict[str, float]] = {}
    subsets = any(len(seeds[0].aggregations) > 1 for seeds in scored.values())
    for aggregation in ("wmean", "all") if subsets else ("all",):
        estimates[aggregation], spread[aggregation] = {}, {}
        for task, seeds in scored.items():
            estimate, deviation = over_seeds([seed.main(aggregation) for seed in seeds])
            estimates[aggregation][task] = estimate
            spread[aggregation][task] = deviation or 0.0
    return Entry(
        method=method.name,
        label=method.label.format(dim=published_dim(width)),
        estimates=estimates,
        spread=spread,
        components={
            trial.tests[0].task: outcome.components
            for trial, outcome in ran
            if outcome.components is not None
        },
        fit_seconds=sum(outcome.seconds for _, outcome in ran) / max(map(len, scored.values())),
        megabytes=float(np.mean([outcome.bytes for _, outcome in ran])) / 1e6,
    )


def _described(pairs: Pairs, found: Figures) -> dict[str, Any]:
    """The pairs that a task was scored on; they are the same for every method."""
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
