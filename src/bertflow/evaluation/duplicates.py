"""Duplicates: pairs that are the same or not, and from which cosine on they are called the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bertflow.arrays import Array
from bertflow.data import Pairs
from bertflow.encoders.encoder import Role
from bertflow.errors import InputError, check_number
from bertflow.evaluation.jobs import Judgement
from bertflow.evaluation.scores import cosines_of_rows

# Fewer pairs of a kind say nothing about a threshold, and cannot be halved.
FEWEST = 4
PRECISION = 0.95
# A threshold with its precision, recall and F1; without one, the reason.
Cut: TypeAlias = dict[str, Any]


class DuplicatesJob:
    """Pairs that are duplicates or not, judged by their cosines.

    Pairs whose cosine is not defined, because a vector is zero, are never called duplicates.

    Args:
        pairs: Such as `bertflow.data.read_pairs` reads; without a score they do not count.
        alike: From which score on pairs are duplicates; None where scores are 1 and 0.
        precision: Of the threshold for those who want few false alarms, above 0 and at most 1.

    Raises:
        InputError: Scores are not 1 and 0 and `alike` is not given, or there are fewer than four
            pairs of a kind.

    Example:
        >>> from bertflow.data import sample_pairs
        >>> job = DuplicatesJob(sample_pairs(), alike=4)
        >>> job.counts
        {'pairs': 180, 'duplicates': 55, 'texts': 360}
        >>> found = job.judge({"document": np.random.default_rng(0).normal(size=(360, 8))})
        >>> list(found.measures), found.facts["no cosine"]
        (['average precision', 'best f1'], 0)
    """

    kind = "duplicates"
    unit = "pairs"

    def __init__(
        self, pairs: Pairs, alike: float | None = None, *, precision: float = PRECISION
    ) -> None:
        check_number("precision", precision, 0, 1, above=True)
        if alike is not None:
            check_number("alike", alike)
        first, second, gold = pairs.graded()
        if alike is None and (other := next((one for one in gold if one not in (0, 1)), None)):
            raise InputError(
                f"{pairs.source}: score {other:g} is neither 1 (duplicates) nor 0; give `alike`, "
                "the score from which on pairs are duplicates"
            )
        # Whether each pair is duplicates, shape (N,).
        self.alike = np.array(gold, dtype=np.float64) >= (1 if alike is None else alike)
        few = int(self.alike.sum()), int((~self.alike).sum())
        if min(few) < FEWEST:
            raise InputError(
                f"{pairs.source}: {few[0]} pairs are duplicates and {few[1]} are not, but it takes "
                f"{FEWEST} of each; add pairs{'' if alike is None else ', or change `alike`'}"
            )
        number = {text: n for n, text in enumerate(dict.fromkeys([*first, *second]))}
        # The distinct texts, and the two of each pair as their numbers, shape (N, 2).
        self.distinct = list(number)
        self.rows = np.array([[number[one] for one in side] for side in (first, second)]).T
        self.source, self.precision = pairs.source, precision
        self.counts: Mapping[str, int] = {
            "pairs": len(gold),
            "duplicates": few[0],
            "texts": len(number),
        }
        ungraded = {"no gold score": len(pairs) - len(gold)} if len(gold) < len(pairs) else {}
        self.skipped: Mapping[str, int] = {**pairs.skipped, **ungraded}

    def texts(self) -> Mapping[Role, Sequence[str]]:
        """The distinct texts."""
        return {"document": self.distinct}

    def judge(self, vectors: Mapping[Role, Array]) -> Judgement:
        r"""Judge the vectors of the texts, shape (T, D), by average precision and the best F1.

        .. math:: \text{AP} = \sum_t (R_t - R_{t-1}) P_t, \qquad
            \text{F}_1 = \max_t \frac{2 P_t R_t}{P_t + R_t}

        over thresholds t that fall, with precision P and recall R of the pairs at or above each.
        Equal cosines are called together, as scikit-learn has it.

        Facts: the thresholds with the best F1 and with the chosen precision (at the most recall),
        each with its precision, recall and F1; how they fare on one half of the pairs if they are
        chosen on the other ("held out"); how many pairs have no cosine.
        """
        cosine = cosines_of_rows(vectors["document"], *self.rows.T)
        ranked = _Ranked(cosine, self.alike)
        chosen, shared = _half(self.rows, self.alike)
        other = _Ranked(cosine[~chosen], self.alike[~chosen])
        thresholds = _Ranked(cosine[chosen], self.alike[chosen]).thresholds(self.precision)
        return Judgement(
            items=len(cosine),
            measures={"average precision": ranked.average_precision, "best f1": ranked.best_f1},
            facts={
                "precision": self.precision,
                **{name: ranked.cut(at) for name, at in ranked.thresholds(self.precision).items()},
                "held out": {
                    "pairs": [int(chosen.sum()), int((~chosen).sum())],
                    "texts in both": shared,
                    **{name: other.cut(at) for name, at in thresholds.items()},
                },
                "no cosine": int(np.isnan(cosine).sum()),
            },
        )


class _Ranked:
    """Pairs by falling cosine, those without one last and never called duplicates."""

    def __init__(self, cosine: Array, alike: Array) -> None:
        self.cosine, self.alike = cosine, alike
        self.order = np.argsort(-cosine, kind="stable")
        known = cosine[self.order][: np.count_nonzero(~np.isnan(cosine))]
        # Equal cosines are called together: the place of the last of each.
        self.ends = np.flatnonzero(np.diff(known, append=-2.0))
        self.levels = known[self.ends]

    def called(self, counts: Array) -> tuple[Array, Array, Array]:
        """Pairs called, duplicates among them, by level, and all duplicates, if pairs are weighted.

        `counts` has shape (B, N), the result shapes (B, levels), (B, levels) and (B, 1).
        """
        ordered = counts[:, self.order]
        called = np.cumsum(ordered, axis=1)[:, self.ends]
        ordered *= self.alike[self.order]
        right = np.cumsum(ordered, axis=1)
        return called, right[:, self.ends], right[:, -1:]

    def average_precision(self, counts: Array) -> Array:
        """Average precision, NaN without a duplicate."""
        called, right, total = self.called(counts)
        steps = np.diff(right, axis=1, prepend=0)
        steps *= right / np.maximum(called, 1)
        with np.errstate(invalid="ignore"):
            return np.asarray(steps.sum(axis=1) / total[:, 0])

    def best_f1(self, counts: Array) -> Array:
        """The best F1 of any threshold, NaN without a duplicate."""
        called, right, total = self.called(counts)
        best = (2 * right / np.maximum(called + total, 1)).max(axis=1, initial=0)
        return np.where(total[:, 0] > 0, best, np.nan)

    def thresholds(self, precision: float) -> dict[str, float | None]:
        """With the best F1, and with a precision at the most recall."""
        called, right, total = (one[0] for one in self.called(np.ones((1, len(self.cosine)))))
        precise = np.flatnonzero(right / called >= precision)
        # A threshold lies midway between cosines, which rounding and other pairs forgive best.
        below = np.append(self.levels[1:], self.levels[-1:])
        middle = (self.levels + below) / 2
        at = np.where(middle > below, middle, self.levels)
        return {
            "best f1": float(at[np.argmax(right / (called + total))]) if len(at) else None,
            "chosen precision": float(at[precise[-1]]) if len(precise) else None,
        }

    def cut(self, threshold: float | None) -> Cut:
        """What a threshold does to these pairs; without one, the reason."""
        if threshold is None:
            return {"threshold": None, "undefined": "no threshold reaches it"}
        called = self.cosine >= threshold
        right, said, total = (int(one.sum()) for one in (called & self.alike, called, self.alike))
        return {
            "threshold": threshold,
            "precision": right / said if said else None,
            "recall": right / total,
            "f1": 2 * right / (said + total),
        }


def _half(rows: Array, alike: Array) -> tuple[Array, int]:
    """One half of the pairs, half of each kind, as a mask; and how many texts both halves have."""
    texts = rows.max() + 1
    links = coo_array((np.ones(len(rows)), rows.T), shape=(texts, texts))
    group = connected_components(links, directed=False)[1][rows[:, 0]]
    chosen = _dealt(group, alike)
    for kind in (alike, ~alike):
        if not 1 / 3 <= chosen[kind].mean() <= 2 / 3:  # Too many pairs hang together.
            chosen = _dealt(np.arange(len(rows)), alike)
    return chosen, len(np.intersect1d(rows[chosen], rows[~chosen]))


def _dealt(group: Array, alike: Array) -> Array:
    """Groups of pairs are dealt in two, the largest first, each to where its kind is scarcer."""
    kinds = (alike, ~alike)
    shares = np.stack([np.bincount(group, weights=kind) / kind.sum() for kind in kinds], axis=1)
    shuffled = np.random.default_rng(0).permutation(len(shares))
    dealt, chosen = np.zeros((2, 2)), np.zeros(len(shares), dtype=bool)
    for one in shuffled[np.argsort(-shares[shuffled].sum(axis=1), kind="stable")]:
        to, other = dealt @ shares[one]
        chosen[one] = to <= other
        dealt[0 if to <= other else 1] += shares[one]
    return chosen[group]
