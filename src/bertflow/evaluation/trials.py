"""Trials of a comparison: a calibrator is fitted and its cosines are taken, in any process."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertflow.calibrators import AllButTheTop, Calibrator
from bertflow.calibrators.base import Array
from bertflow.errors import FewRowsWarning
from bertflow.evaluation.correlation import correlate, paired_cosine
from bertflow.evaluation.methods import METHODS

MOST_COMPONENTS = 20


@dataclass(frozen=True)
class Judge:
    """Pairs of rows whose cosines are asked for.

    Attributes:
        name: Whose pairs they are.
        first: Row of each first sentence, shape (N,).
        second: Row of each second sentence, shape (N,).
        gold: Shape (N,), without gaps; only a dev split's is looked at.
    """

    name: str
    first: Array
    second: Array
    gold: Array


@dataclass(frozen=True)
class Trial:
    """A method fitted once, and all that it is scored on.

    Attributes:
        method: Its name in METHODS.
        seed: For methods that have one.
        corpus: Rows to fit on, repeats kept.
        tests: Pairs to score on.
        dev: Pairs to choose n_components on, None where there are none.
        dev_corpus: Rows to fit on for that, if others than `corpus`.
    """

    method: str
    seed: int
    corpus: Array
    tests: Sequence[Judge]
    dev: Judge | None = None
    dev_corpus: Array | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        cosines: Of each test's pairs, NaN where a vector is zero or not finite.
        seconds: Fitting, the choice of n_components included.
        bytes: What the fitted calibrator weighs as it is saved.
        components: The chosen n_components, None where nothing was chosen.
    """

    cosines: list[Array]
    seconds: float
    bytes: int
    components: int | None = None


def run_trial(vectors: Array, trial: Trial) -> Outcome:
    """Fit a method on some of the vectors, and take the cosines of the tests' pairs.

    Args:
        vectors: Shape (sentences, D).
        trial: What to do with them.
    """
    method = METHODS[trial.method]
    calibrator = None if method.build is None else method.build(vectors.shape[1], trial.seed)
    tuning = None if trial.dev_corpus is None else vectors[trial.dev_corpus]
    with warnings.catch_warnings():  # The page says on how many sentences all were fitted.
        warnings.simplefilter("ignore", FewRowsWarning)
        return judged(
            vectors,
            vectors[trial.corpus] if calibrator is not None else vectors,
            calibrator,
            trial.tests,
            dev=trial.dev if method.tuned else None,
            tuning=tuning,
        )


def judged(
    vectors: Array,
    rows: Array,
    calibrator: Calibrator | None,
    tests: Sequence[Judge],
    *,
    dev: Judge | None = None,
    tuning: Array | None = None,
) -> Outcome:
    """Fit a calibrator on rows, and take the cosines of pairs of vectors under it.

    Args:
        vectors: Those that the pairs are of, shape (sentences, D).
        rows: Those that are fitted on, shape (N, D).
        calibrator: Not fitted; it is fitted in place. None takes the vectors as they are.
        tests: Pairs to take the cosines of.
        dev: Pairs to choose n_components on, of an `AllButTheTop`; None leaves it.
        tuning: Rows to fit on for that, if others than `rows`.
    """
    if calibrator is None:
        return Outcome([_cosines(vectors, test, None) for test in tests], 0.0, 0)
    began = time.perf_counter()
    chosen = None
    if dev is not None and isinstance(calibrator, AllButTheTop):
        chosen = _best_count(calibrator, rows if tuning is None else tuning, vectors, dev)
        calibrator.set_params(n_components=chosen)
    calibrator.fit(rows, progress=False)
    seconds = time.perf_counter() - began
    return Outcome(
        cosines=[_cosines(vectors, test, calibrator) for test in tests],
        seconds=seconds,
        bytes=sum(t.numel() * t.element_size() for t in calibrator._learned().values()),
        components=chosen,
    )


def _best_count(calibrator: AllButTheTop, rows: Array, vectors: Array, dev: Judge) -> int:
    """The n_components from 1 to 20 with the best Spearman on the dev pairs; of equals the least.

    One fit gives all: its components are in order, and each count takes the first of them.
    """
    most = min(MOST_COMPONENTS, vectors.shape[1] - 1)
    calibrator.set_params(n_components=most).fit(rows)
    scores = []
    for count in range(1, most + 1):
        fewer = copy.copy(calibrator)
        fewer.n_components, fewer.components_ = count, calibrator.components_[:count]
        found = correlate(_cosines(vectors, dev, fewer), dev.gold).spearman
        scores.append(-2.0 if found is None else found)
    return int(np.argmax(scores)) + 1


def _cosines(vectors: Array, test: Judge, calibrator: Calibrator | None) -> Array:
    used, places = np.unique(np.concatenate([test.first, test.second]), return_inverse=True)
    rows = vectors[used]
    if calibrator is not None:
        rows = calibrator._rows(rows)
    count = len(test.first)
    return paired_cosine(rows[places[:count]], rows[places[count:]])


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
