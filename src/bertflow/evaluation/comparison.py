"""Calibrators side by side on one encoder: the methods, and their comparison."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.calibrators import AllButTheTop, Calibrator, Whitening, named_calibrator
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_sentences, read_task
from bertflow.data.readers import Texts, read_texts
from bertflow.display import notebook
from bertflow.encoders import Computing, describe_encoder, embed, library_versions
from bertflow.errors import InputError, MissingDataError, check_number, unknown
from bertflow.evaluation import scores
from bertflow.evaluation.bootstrap import Difference, holm
from bertflow.evaluation.experiment import Outcome, PairRows, Trial, run_all, run_trials
from bertflow.evaluation.score_grids import comparison_grids, comparison_title
from bertflow.evaluation.scores import Estimate, Figures
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
    """A way to calibrate: its names on the command line and in a table, and how it is built.

    `build` gives the calibrator for a number of dimensions and a seed, None for the vectors as they
    are; `seeded` says whether the seed matters. If `tuned`, n_components is chosen on a dev split,
    from 1 to 20, where there is one.
    """

    name: str
    label: str
    build: Callable[[int, int], Calibrator | None]
    seeded: bool = False
    tuned: bool = False


def published_dim(width: int) -> int:
    """The dimensions that whitening keeps: 256, as published, or half of narrower vectors."""
    return DIM if width > DIM else max(1, width // 2)


def _whitening(power: float, width: int, seed: int) -> Whitening:
    return Whitening(published_dim(width), power=power, shrinkage=0.0)


def named(name: str, *, seeded: bool = False) -> Method:
    """A calibrator by the name that it has for `calibrate`."""

    def build(width: int, seed: int) -> Calibrator:
        return named_calibrator(name, **({"random_state": seed} if seeded else {}))

    return Method(name, name if seeded else name.replace("-", " "), build, seeded)


_DECLARED = (
    Method("none", "none", lambda *_: None),
    named("adaptive-whitening"),
    named("standardization"),
    Method("all-but-the-top", "all-but-the-top", lambda *_: AllButTheTop(), tuned=True),
    Method(
        "standardization+all-but-the-top",
        "standardization + all-but-the-top",
        lambda *_: AllButTheTop(standardize=True),
        tuned=True,
    ),
    Method("whitening", "whitening", lambda *_: Whitening(shrinkage=0.0)),
    Method("whitening-dim", "whitening {dim}", partial(_whitening, 1.0)),
    Method("soft-whitening", f"soft whitening {{dim}} (power {SOFT})", partial(_whitening, SOFT)),
    *(named(flow, seeded=True) for flow in ("flow", "released-flow", "tempered-flow")),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _DECLARED})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The results of a method."""

    method: str
    label: str  # In a table.
    estimates: Mapping[str, Mapping[str, Estimate]]  # Mean over seeds, by aggregation and task.
    components: Mapping[str, int]  # By task, those chosen on a dev split.
    fit_seconds: float  # Of one seed, all tasks together.
    megabytes: float  # Of one saved calibrator.

    def overall(self, aggregation: str) -> Estimate:
        """The mean over the tasks that count: the STS ones, or all if there is none."""
        tasks = self.estimates[aggregation]
        return scores.mean_over({name: tasks[name] for name in scores.counted(list(tasks))})

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON has them."""
        return {
            "label": self.label,
            "tasks": {
                aggregation: {
                    task: {**scores.as_json(one), "seed_deviation": one.deviation}
                    for task, one in tasks.items()
                }
                for aggregation, tasks in self.estimates.items()
            },
            "overall": {name: scores.as_json(self.overall(name)) for name in self.estimates},
            "components": dict(self.components),
            "fit_seconds": self.fit_seconds,
            "megabytes": self.megabytes,
        }


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
        sentences: How many distinct sentences were encoded.
        cut: How many of these the encoder cuts, being longer than it takes.
        encode_seconds: How long encoding took.
        seconds: How long all took.
        facts: Of a job, by method, what its first fit found beside measures, such as a threshold.
        versions: Of the libraries.
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
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def aggregations(self) -> list[str]:
        """Both "wmean" and "all", or "all" alone where no task has subsets."""
        return list(next(iter(self.entries.values())).estimates)

    @property
    def best(self) -> dict[str, str | None]:
        """By aggregation, the method with the highest overall value."""
        found: dict[str, str | None] = {}
        for aggregation in self.aggregations:
            overall = {name: one.overall(aggregation).value for name, one in self.entries.items()}
            values = {name: value for name, value in overall.items() if value is not None}
            found[aggregation] = max(values, key=lambda name: values[name], default=None)
        return found

    def against(self, reference: str, aggregation: str) -> dict[str, Difference]:
        """How much higher the other methods are than one, corrected for their number (Holm).

        A KeyError says that the method or aggregation ("wmean" or "all") is not there.
        """
        overall = {name: entry.overall(aggregation) for name, entry in self.entries.items()}
        base = overall.pop(reference)
        return holm({name: one.above(base) for name, one in overall.items()})

    def __repr__(self) -> str:
        grids = [grid.text() for grid in comparison_grids(self)]
        return "\n\n".join([f"Comparison of {comparison_title(self)}", *grids])

    def _repr_html_(self) -> str:
        absent = {"absent": ", ".join(self.absent)} if self.absent else {}
        return notebook(f"Comparison of {comparison_title(self)}", absent, comparison_grids(self))

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        against = {
            f"{aggregation}, against {reference}": self.against(reference, aggregation)
            for aggregation, best in self.best.items()
            for reference in dict.fromkeys(["none", best or "none"])
            if reference in self.entries
        }
        facts = {"facts": self.facts} if self.facts else {}  # Those of tasks have none.
        return {
            **{name: one for name, one in vars(self).items() if name != "facts"},
            **facts,
            "counted": scores.counted(list(self.tasks)),
            "entries": {
                name: entry.to_dict()
                | {"differences": {k: v[name].to_dict() for k, v in against.items() if name in v}}
                for name, entry in self.entries.items()
            },
        }


# Pairs to choose n_components on, and the text to fit on for that; no text: the task's own.
Dev: TypeAlias = tuple[Pairs, Sequence[str]]


@dataclass(frozen=True)
class _Material:
    """All that is read before anything is encoded; `devs` is empty unless a method needs one."""

    tests: Sequence[Pairs]
    read: Mapping[str, Texts]  # By task or data set, or as "corpus" if it is the user's own.
    shared: bool  # Whether all tasks are fitted on all of that.
    devs: Mapping[str, Dev | None]

    @property
    def corpora(self) -> dict[str, Sequence[str]]:
        """The sentences to fit on by task, or as "corpus"."""
        if self.shared:
            return {CORPUS: [text for one in self.read.values() for text in one.sentences]}
        return {name: one.sentences for name, one in self.read.items()}

    def texts(self) -> list[str]:
        """Every sentence that needs a vector, with repeats."""
        judged, texts = list(self.tests), [text for one in self.corpora.values() for text in one]
        for dev in filter(None, self.devs.values()):
            judged.append(dev[0])
            texts += dev[1]
        for pairs in judged:
            first, second, _ = pairs.graded()
            texts += [*first, *second]
        return texts


def compare(
    encoder: SentenceTransformer,
    tasks: Sequence[str | Pairs] = STS_TASKS,
    *,
    fit: str | Sequence[str] = "target",
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 5,
    data: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[Computing],
) -> Comparison:
    """Fit every calibrator on an encoder's vectors, and score them on the same pairs and resamples.

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
        jobs: Processes that fit; None takes one a CPU. Results do not depend on it.
        progress: Called with "encode", "fit" or "score", the steps done and their total.
        options: See `bertflow.encoders.Computing`. The cache also keeps fits, so that a stopped
            comparison goes on.

    Raises:
        InputError: A task, method or fit is unknown, the encoder is calibrated, or data are not
            readable.
        MissingDataError: The data of all tasks, or those to fit on, are not there.
    """
    began = time.perf_counter()
    methods = compared(encoder, methods, METHODS, seeds)
    report = progress or (lambda stage, done, total: None)
    material, absent = _gather(tasks, fit, methods, data)
    texts = material.texts()
    start = time.perf_counter()
    embedded = embed(encoder, texts, progress=partial(report, "encode"), **options)
    encode_seconds = time.perf_counter() - start
    log.info("%d distinct sentences in %.1f s", len(embedded.vectors), encode_seconds)
    width = embedded.vectors.shape[1]
    row_of = dict(zip(texts, embedded.index.tolist(), strict=True))
    trials = _plan(material, row_of, methods, seeds, width)
    outcomes = run_trials(
        embedded.vectors,
        trials,
        cache=options.get("cache"),
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
        fitted_on={
            "fit": fit if isinstance(fit, str) else CORPUS,
            "sets": [name for name in material.read if name in NLI],
            "sentences": {name: len(corpus) for name, corpus in material.corpora.items()},
            "skipped": {n: dict(one.skipped) for n, one in material.read.items() if one.skipped},
        },
        dev={
            task: f"{dev[0].task} {dev[0].split}" if dev else None
            for task, dev in material.devs.items()
        },
        encoder=describe_encoder(encoder),
        seeds=seeds,
        sentences=len(embedded.vectors),
        cut=embedded.cut,
        encode_seconds=encode_seconds,
        seconds=time.perf_counter() - began,
    )


def compared(
    encoder: SentenceTransformer, methods: Sequence[str], known: Mapping[str, Method], seeds: int
) -> list[str]:
    """The distinct methods of a comparison, if there can be one."""
    check_number("seeds", seeds, 1, integer=True)
    if isinstance(encoder, CalibratedSentenceTransformer):
        raise InputError("the model is calibrated already; give the encoder that it was fitted on")
    if not methods:
        raise InputError("nothing to compare: give at least one method")
    for name in methods:
        if name not in known:
            raise unknown("method", name, known)
    return list(dict.fromkeys(methods))


def _gather(
    tasks: Sequence[str | Pairs],
    fit: str | Sequence[str],
    methods: Sequence[str],
    data: str | Path | None,
) -> tuple[_Material, dict[str, str]]:
    """Read the tasks and corpora; also say why a task is absent."""
    if not tasks:
        raise InputError("nothing to compare: give at least one task")
    known = [task for task in tasks if isinstance(task, str)]
    tests, absent = read_tasks(known, data) if known else ([], {})
    tests += [task for task in tasks if isinstance(task, Pairs)]
    names = [pairs.task for pairs in tests]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is there twice; give each task once")
    read = _texts_to_fit(fit, tests, data)
    tuned = any(METHODS[name].tuned for name in methods)
    devs = {pairs.task: _dev(pairs, fit, data) for pairs in tests} if tuned else {}
    return _Material(tests, read, not isinstance(fit, str) or fit == "nli", devs), absent


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


def _dev(pairs: Pairs, fit: str | Sequence[str], data: str | Path | None) -> Dev | None:
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
        return dev, read_sentences("stsb", data) if fit == "target" and not own else []
    except MissingDataError:
        return None


def _plan(
    material: _Material, row_of: Mapping[str, int], methods: Sequence[str], seeds: int, width: int
) -> list[Trial]:
    """Every fit of every method: one a seed and, where they differ, a corpus."""

    def rows(texts: Sequence[str]) -> Array:
        return np.fromiter((row_of[text] for text in texts), dtype=np.int64, count=len(texts))

    graded = {pairs.task: PairRows.of(pairs, rows) for pairs in material.tests}
    # Each corpus, and the pairs that a calibrator fitted on it is judged on.
    fits = [
        (rows(texts), [*graded.values()] if material.shared else [graded[name]])
        for name, texts in material.corpora.items()
    ]
    devs = {
        task: (PairRows.of(dev[0], rows), rows(dev[1]) if dev[1] else None)
        for task, dev in material.devs.items()
        if dev is not None
    }
    none = (None, None)
    trials = []
    for name in methods:
        method = METHODS[name]
        for seed in range(seeds if method.seeded else 1):
            calibrator = method.build(width, seed)
            for corpus, judged in fits:
                for tests in [[one] for one in judged] if method.tuned else [judged]:
                    dev, dev_corpus = devs.get(tests[0].task, none) if method.tuned else none
                    trials.append(Trial(calibrator, corpus, tests, dev, dev_corpus, name))
    return trials


def _score(
    tests: Sequence[Pairs], ran: Sequence[tuple[Trial, Outcome]], jobs: int | None, report: Progress
) -> dict[str, dict[str, list[Figures]]]:
    """By task and method, the figures of each seed, all on the same pairs."""
    judged: dict[str, list[tuple[str, Array]]] = {pairs.task: [] for pairs in tests}
    for trial, outcome in ran:
        for test, cosines in zip(trial.tests, outcome.cosines, strict=True):
            judged[test.task].append((trial.method, cosines))
    works = []
    for pairs in tests:
        whole = scores.on_all_pairs(pairs, np.stack([one for _, one in judged[pairs.task]]))
        works.append(partial(scores.figures, pairs, whole))
    scored: dict[str, dict[str, list[Figures]]] = {pairs.task: {} for pairs in tests}
    for done, (number, found) in enumerate(run_all(works, jobs), 1):
        task = tests[number].task
        for (method, _), one in zip(judged[task], found, strict=True):
            scored[task].setdefault(method, []).append(one)
        report("score", done, len(works))
    return scored


def _entry(
    method: Method,
    width: int,
    ran: Sequence[tuple[Trial, Outcome]],
    scored: Mapping[str, Sequence[Figures]],
) -> Entry:
    """The results of a method's fits, given by task the figures of each seed."""
    subsets = any(len(seeds[0].aggregations) > 1 for seeds in scored.values())
    return Entry(
        method=method.name,
        label=method.label.format(dim=published_dim(width)),
        estimates={
            aggregation: {
                task: scores.over_seeds([seed.main(aggregation) for seed in seeds])
                for task, seeds in scored.items()
            }
            for aggregation in (("wmean", "all") if subsets else ("all",))
        },
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
