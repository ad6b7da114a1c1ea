"""Classes and clusters: how well vectors tell the classes of a user's own texts apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import scipy.special
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from bertflow.arrays import Array, unit_rows
from bertflow.data import LabelledTexts, read_labelled
from bertflow.encoders.encoder import Role
from bertflow.errors import InputError
from bertflow.evaluation.bootstrap import Measure, mean_of
from bertflow.evaluation.jobs import Judgement

FOLDS, NEIGHBOURS = 5, 5
# Runs of k-means, whose measures are averaged. One run, also the best of many, differs by points of
# adjusted Rand between clouds that are nearly the same.
RUNS = 20
# Labels a class in the curve of few labels, and how many draws of them are averaged.
FEW, DRAWS = (8, 16, 64), 5
# Of the logistic regression, whose rows have a mean square of 1, so it fits every model alike.
C, MOST_STEPS = 10.0, 1000


def read_labels(
    path: str | Path, *, columns: tuple[str, str] | None = None, format: str | None = None
) -> LabelsJob:
    """Read texts with their classes as a job; see `bertflow.data.read_labelled`."""
    return LabelsJob(read_labelled(path, columns=columns, format=format))


class LabelsJob:
    r"""Telling the classes of texts apart, by few labels, by all, and by none.

    Rows are scaled to unit length. Classes are predicted by 5-fold cross-validation, stratified:
    by logistic regression (rows centred, then divided by one number so that their mean square
    length is 1; C = 10), and by the majority of the 5 nearest neighbours by cosine. Clusters are
    those of k-means, as many as classes, and their measures are means of 20 runs. In a resample
    every measure is the one that scikit-learn gives on the resample written out. With mutual
    information I and entropies H of classes i and clusters j,

    .. math:: V = \frac{2 I(i; j)}{H(i) + H(j)}, \qquad
        \mathrm{ARI} = \frac{2 (ad - bc)}{(a + b)(b + d) + (a + c)(c + d)}

    where a counts the ordered pairs of texts that are together in both, d in none, b and c in one.

    Args:
        data: Texts and labels.

    Raises:
        InputError: There are fewer texts than folds.

    Example:
        >>> texts = ["a", "b", "c", "d", "e", "f"]
        >>> job = LabelsJob(LabelledTexts(texts, ["x", "x", "x", "y", "y", "y"], "mine.csv"))
        >>> rows = np.array([[9.0, 0], [9, 1], [9, 2], [0, 9], [1, 9], [2, 9]])
        >>> found = job.judge({"document": rows})
        >>> [float(found.measures[one](np.ones((1, 6)))[0]) for one in ("accuracy", "v-measure")]
        [1.0, 1.0]
    """

    kind = "classes"
    unit = "texts"

    def __init__(self, data: LabelledTexts) -> None:
        if len(data) < FOLDS:
            raise InputError(
                f"{data.source}: {len(data)} texts are too few; at least {FOLDS} are needed, one "
                "a fold"
            )
        self.data = data
        self.source, self.skipped = data.source, data.skipped
        number = {label: n for n, label in enumerate(sorted(set(data.labels)))}
        self._classes = np.array([number[label] for label in data.labels])
        self.counts: Mapping[str, int] = {"texts": len(data), "classes": len(number)}

    def texts(self) -> Mapping[Role, Sequence[str]]:
        """The texts, encoded as documents."""
        return {"document": self.data.texts}

    def judge(self, vectors: Mapping[Role, Array]) -> Judgement:
        """Judge the vectors of the texts, shape (N, D).

        The fact "few labels" has for 8, 16 and 64 labels a class how many classes have more texts
        than that, and the accuracy on their other texts, a mean of 5 draws.
        """
        rows = unit_rows(vectors["document"])
        with catch_warnings():  # Vectors that are all alike have fewer clusters than classes.
            simplefilter("ignore", ConvergenceWarning)
            return Judgement(
                items=len(rows),
                measures=self._measures(rows),
                facts={"few labels": self._few_labels(rows)},
            )

    def _measures(self, rows: Array) -> dict[str, Measure]:
        classes, number = self._classes, self.counts["classes"]
        place = _places(classes, seed=0)
        fold = np.empty(len(rows), dtype=np.int64)
        # Members of a class follow each other, so each fold gets its share of all, and two members
        # of a class are never in one fold alone.
        fold[np.lexsort((place, classes))] = np.arange(len(rows)) % FOLDS
        predicted = {name: np.empty_like(classes) for name in CLASSIFIERS}
        for held_out in (fold == one for one in range(FOLDS)):
            for name, classify in CLASSIFIERS.items():
                predicted[name][held_out] = classify(
                    rows[~held_out], classes[~held_out], rows[held_out]
                )
        measures: dict[str, Measure] = {}
        for name, guessed in predicted.items():
            prefix = "" if name == "logistic regression" else f"{name} "
            measures[f"{prefix}accuracy"] = mean_of((guessed == classes).astype(np.float64))
            measures[f"{prefix}macro-f1"] = _Table(classes, guessed).macro_f1
        tables = []
        for run in range(RUNS):  # From the same texts in every model, so less differs by chance.
            first = np.random.default_rng(run).choice(len(rows), number, replace=False)
            means = KMeans(number, init=rows[first], n_init=1, random_state=run)
            tables.append(_Table(classes, means.fit_predict(rows)))
        measures["v-measure"] = _average([table.v_measure for table in tables])
        measures["adjusted rand"] = _average([table.adjusted_rand for table in tables])
        return measures

    def _few_labels(self, rows: Array) -> list[dict[str, Any]]:
        classes, sizes, curve = self._classes, np.bincount(self._classes), []
        for few in FEW:
            enough = sizes > few
            if enough.sum() < 2:
                break
            shares: dict[str, list[float]] = {name: [] for name in CLASSIFIERS}
            for draw in range(1, DRAWS + 1):
                place = _places(classes, seed=draw)
                known, rest = (enough[classes] & part for part in (place < few, place >= few))
                for name, classify in CLASSIFIERS.items():
                    guessed = classify(rows[known], classes[known], rows[rest])
                    shares[name].append(float(np.mean(guessed == classes[rest])))
            means = {name: float(np.mean(several)) for name, several in shares.items()}
            curve.append({"labels": few, "classes": int(enough.sum()), **means})
        return curve


class _Table:
    """How often two groupings of N items meet, in each of B resamples."""

    def __init__(self, first: Array, second: Array) -> None:
        width = 1 + int(max(first.max(), second.max()))
        # Few of the cells are ever met, so only those are counted.
        cells, cell_of = np.unique(first * width + second, return_inverse=True)
        self.first, self.second = np.divmod(cells, width)
        self._cells = _one_hot(cell_of, len(cells))
        self._firsts, self._seconds = (_one_hot(one, width) for one in (self.first, self.second))

    def macro_f1(self, counts: Array) -> Array:
        """The mean over the classes that are true or predicted somewhere."""
        met, firsts, seconds = self._sums(counts)
        same = self.first == self.second
        hits = np.zeros_like(firsts)
        hits[:, self.first[same]] = met[:, same]
        seen = firsts + seconds
        return np.asarray(_shares(2 * hits, seen).sum(axis=1) / (seen > 0).sum(axis=1))

    def v_measure(self, counts: Array) -> Array:
        met, firsts, seconds = self._sums(counts)
        either = _entropy(firsts) + _entropy(seconds)
        mutual = np.clip(either - _entropy(met), 0, None)
        return np.where(either > 0, _shares(2 * mutual, either), 1.0)

    def adjusted_rand(self, counts: Array) -> Array:
        met, firsts, seconds = (np.square(sums).sum(axis=1) for sums in self._sums(counts))
        total = counts.sum(axis=1)
        both, b, c = met - total, firsts - met, seconds - met
        neither = np.square(total) - firsts - seconds + met
        below = (both + b) * (b + neither) + (both + c) * (c + neither)
        return np.where(b + c > 0, _shares(2 * (both * neither - b * c), below), 1.0)

    def _sums(self, counts: Array) -> tuple[Array, Array, Array]:
        """Of the cells, of the first grouping and of the second, shapes (B, cells), (B, width)."""
        met = counts @ self._cells
        return met, met @ self._firsts, met @ self._seconds


def _average(measures: Sequence[Measure]) -> Measure:
    return lambda counts: np.mean([measure(counts) for measure in measures], axis=0)


def _one_hot(numbers: Array, width: int) -> csr_array:
    rows = np.arange(len(numbers) + 1)
    return csr_array((np.ones(len(numbers)), numbers, rows), (len(numbers), width))


def _shares(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)


def _entropy(sums: Array) -> Array:
    return np.asarray(scipy.special.entr(sums / sums.sum(axis=1, keepdims=True)).sum(axis=1))


def _places(classes: Array, *, seed: int) -> Array:
    """The place of each item within its class, in an order drawn at random."""
    order = np.random.default_rng(seed).permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    sizes = np.bincount(classes)
    place = np.empty_like(classes)
    place[order] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def _regression(rows: Array, classes: Array, others: Array) -> Array:
    centre = rows.mean(axis=0)
    size = np.sqrt(np.square(rows - centre).sum(axis=1).mean()) or 1.0
    model = LogisticRegression(C=C, max_iter=MOST_STEPS)
    model.fit((rows - centre) / size, classes)
    return np.asarray(model.predict((others - centre) / size))


def _neighbours(rows: Array, classes: Array, others: Array) -> Array:
    # Of rows at unit length, those nearest are those of the highest cosine.
    model = KNeighborsClassifier(min(NEIGHBOURS, len(rows)), algorithm="brute")
    return np.asarray(model.fit(rows, classes).predict(others))


CLASSIFIERS: Mapping[str, Callable[[Array, Array, Array], Array]] = {
    "logistic regression": _regression,
    "k-nn": _neighbours,
}
