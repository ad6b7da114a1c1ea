"""The experiment: calibrators are fitted on vectors and judged on pairs; results are stored."""

from __future__ import annotations

import copy
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from joblib import Parallel, cpu_count, delayed
from joblib import hash as content_hash

import bertflow
from bertflow.arrays import Array
from bertflow.calibrators import AllButTheTop, Calibrator
from bertflow.data import Pairs
from bertflow.encoders import SentenceCache
from bertflow.errors import BertflowError, FewRowsWarning, ModelError
from bertflow.evaluation.scores import correlate, paired_cosine
from bertflow.io.result_store import Result, key_of
from bertflow.process_state import usual_threads

MOST_COMPONENTS = 20
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
# The parts of bertflow whose code an outcome depends on.
PARTS = ("flows", "calibrators", "data", "evaluation")

T = TypeVar("T")
Recipe = dict[str, Any]


@dataclass(frozen=True)
class PairRows:
    """The graded pairs of a task as numbers of rows, shape (N,) each, beside their gold scores."""

    task: str
    first: Array
    second: Array
    gold: Array

    @classmethod
    def of(cls, pairs: Pairs, rows_of: Callable[[Sequence[str]], Array]) -> Self:
        """The graded ones of some pairs; `rows_of` gives the row of each sentence."""
        first, second, gold = pairs.graded()
        return cls(pairs.task, rows_of(first), rows_of(second), np.array(gold))


@dataclass(frozen=True)
class Trial:
    """A calibrator to be fitted once, and all pairs that it is judged on."""

    calibrator: Calibrator | None  # Not fitted; None takes the vectors as they are.
    corpus: Array | None  # Numbers of the rows to fit on, shape (N,); or rows, shape (N, D).
    tests: Sequence[PairRows]
    dev: PairRows | None = None  # To choose the n_components of an `AllButTheTop` on.
    dev_corpus: Array | None = None  # Rows to fit on for that choice, if others than `corpus`.
    method: str = ""  # That it tries, for the caller.


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    cosines: list[Array]  # For each test, NaN where a vector is zero or not finite.
    seconds: float  # To choose n_components and fit.
    bytes: int  # Of the saved calibrator.
    components: int | None = None  # If they were chosen.

    def to_result(self, recipe: Recipe) -> Result:
        """As it is stored."""
        return Result(
            kind="trial",
            key=key_of(recipe),
            recipe=recipe,
            result={"bytes": self.bytes, "components": self.components},
            seconds=self.seconds,
            arrays={f"cosines {place}": one for place, one in enumerate(self.cosines)},
        )

    @classmethod
    def from_result(cls, stored: Result) -> Self:
        """From what `to_result` gave."""
        cosines = [stored.arrays[f"cosines {place}"] for place in range(len(stored.arrays))]
        return cls(cosines, stored.seconds, **stored.result)


def run_trial(vectors: Array, trial: Trial) -> Outcome:
    """Fit a copy of a trial's calibrator on some of the vectors, and take the pairs' cosines."""
    calibrator = copy.deepcopy(trial.calibrator)
    if calibrator is None or trial.corpus is None:
        return Outcome([_cosines(vectors, test, None) for test in trial.tests], 0.0, 0)
    rows = vectors[trial.corpus] if trial.corpus.ndim == 1 else trial.corpus
    began = time.perf_counter()
    chosen = None
    if trial.dev is not None and isinstance(calibrator, AllButTheTop):
        others = rows if trial.dev_corpus is None else vectors[trial.dev_corpus]
        chosen = _best_count(calibrator, others, vectors, trial.dev)
        calibrator.set_params(n_components=chosen)
    fit(calibrator, rows)
    seconds = time.perf_counter() - began
    return Outcome(
        cosines=[_cosines(vectors, test, calibrator) for test in trial.tests],
        seconds=seconds,
        bytes=size_of(calibrator),
        components=chosen,
    )


def fit(calibrator: Calibrator, rows: Array, queries: Array | None = None) -> None:
    """Fit without a warning of few rows: whoever reads the scores is told how many there were."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        calibrator.fit(rows, queries=queries, progress=False)


def size_of(calibrator: Calibrator) -> int:
    """The bytes of a fitted calibrator."""
    return sum(t.numel() * t.element_size() for t in calibrator._tensors().values())


def trial_recipes(vectors: Array, trials: Sequence[Trial]) -> list[Recipe]:
    """For each trial, all that its outcome depends on, whatever else is compared with it."""
    rows = np.ascontiguousarray(vectors)
    marks = np.array([hashlib.blake2b(row.data, digest_size=16).digest() for row in rows])

    def content(*several: Array | None) -> list[str | None]:
        return [None if one is None else content_hash(marks[one]) for one in several]

    return [
        {
            "job": "trial",
            "calibrator": type(trial.calibrator).__name__,
            "arguments": trial.calibrator and repr(trial.calibrator.get_params(deep=False)),
            "fitted on": content(trial.corpus, trial.dev_corpus),
            "tests": [content(one.first, one.second) for one in trial.tests],
            "dev": trial.dev
            and [*content(trial.dev.first, trial.dev.second), content_hash(trial.dev.gold)],
            "bertflow": bertflow.__version__,
            "code": _code(),
            "libraries": {name: version(name) for name in LIBRARIES},
            "threads": usual_threads(),
        }
        for trial in trials
    ]


def run_trials(
    vectors: Array,
    trials: Sequence[Trial],
    *,
    cache: SentenceCache | None,
    jobs: int | None,
    report: Callable[[int], None],
) -> list[Outcome]:
    """Take the outcomes that the cache has, run the other trials, and store each at once.

    `report` is called with the number of outcomes so far.
    """
    done: dict[int, Outcome] = {}
    recipes = [] if cache is None else trial_recipes(vectors, trials)
    for number, recipe in enumerate(recipes):
        if cache is not None and (stored := cache.results.get(key_of(recipe))) is not None:
            done[number] = Outcome.from_result(stored)
    if done:
        report(len(done))
    lacking = [number for number in range(len(trials)) if number not in done]
    works = [partial(run_trial, vectors, trials[number]) for number in lacking]
    for place, outcome in run_all(works, jobs):
        done[number := lacking[place]] = outcome
        if cache is not None:
            try:
                cache.results.put(outcome.to_result(recipes[number]))
            except BertflowError as error:  # The work does not depend on it.
                cache.warn(ModelError(str(error)))
        report(len(done))
    return [done[number] for number in range(len(trials))]


def run_all(works: Sequence[Callable[[], T]], jobs: int | None) -> Iterator[tuple[int, T]]:
    """Run work in several processes (None: one a CPU); results come numbered, as they are done."""
    count = min(cpu_count() if jobs is None else jobs, len(works))
    if count <= 1:
        yield from ((number, work()) for number, work in enumerate(works))
        return
    workers = Parallel(n_jobs=count, return_as="generator_unordered")
    yield from workers(delayed(_numbered)(number, work) for number, work in enumerate(works))


def _numbered(number: int, work: Callable[[], T]) -> tuple[int, T]:
    return number, work()


def _best_count(calibrator: AllButTheTop, rows: Array, vectors: Array, dev: PairRows) -> int:
    """The n_components from 1 to 20 with the best Spearman on the dev pairs; of equals the least.

    One fit gives all: its components are in order, and each count takes the first of them.
    """
    most = min(MOST_COMPONENTS, vectors.shape[1] - 1)
    fit(calibrator.set_params(n_components=most), rows)
    scores = []
    for count in range(1, most + 1):
        fewer = copy.copy(calibrator)
        fewer.n_components, fewer.components_ = count, calibrator.components_[:count]
        score = correlate(_cosines(vectors, dev, fewer), dev.gold).spearman
        scores.append(-2.0 if score is None else score)
    return int(np.argmax(scores)) + 1


def _cosines(vectors: Array, test: PairRows, calibrator: Calibrator | None) -> Array:
    used, places = np.unique([test.first, test.second], return_inverse=True)
    rows = vectors[used] if calibrator is None else calibrator._rows(vectors[used])
    first, second = places.reshape(2, -1)
    return paired_cosine(rows[first], rows[second])


@cache
def _code() -> str:
    """A hash of the code that outcomes depend on: a version stands for many states of it."""
    package = Path(__file__).parents[1]
    sources = [package / "arrays.py"]
    for part in PARTS:
        sources += sorted((package / part).glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
