"""Scores: estimates with intervals, each named by its aggregation, from cosines and gold."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from bertflow.arrays import Array
from bertflow.data import CATALOG, STS_TASKS, Pairs
from bertflow.evaluation.bootstrap import Resamples, interval
from bertflow.evaluation.correlation import area_under_curve, correlate

Measure: TypeAlias = Literal["spearman", "pearson", "auc"]
AGGREGATIONS = ("wmean", "mean", "all")
# Those under which the average of the seven tasks is published.
AVERAGES = ("wmean", "all")


@dataclass(frozen=True)
class Estimate:
    """A figure and how sure it is.

    Attributes:
        value: Correlation, −1 to 1, or area, 0 to 1; None where undefined.
        low: Lower end of the 95 % interval by bootstrap over pairs; None where there is none.
        high: Upper end.
        undefined: Why there is no value, or None.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    undefined: str | None = None

    @classmethod
    def of(cls, value: float | None, replicates: Array, undefined: str | None = None) -> Self:
        """A value with the interval that its resamples give."""
        span = None if value is None else interval(replicates)
        low, high = span or (None, None)
        return cls(value, low, high, undefined)

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> Self:
        """From what `as_json` gave."""
        low, high = shown["interval"] or (None, None)
        return cls(shown["value"], low, high, shown.get("undefined"))


def as_json(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON has it: `null` with the reason where undefined."""
    shown: dict[str, Any] = {"value": estimate.value, "interval": None}
    if estimate.low is not None:
        shown["interval"] = [estimate.low, estimate.high]
    if estimate.undefined is not None:
        shown["undefined"] = estimate.undefined
    return shown


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What cosines score against gold, without who made them.

    Attributes:
        measure: The main measure: "spearman", or "auc" where gold is 1 and 0.
        aggregations: By aggregation ("wmean", "mean" and "all", or "all" alone where the task has
            no subsets) and measure, the estimate.
        subsets: By subset and measure, the estimate.
        scored: How many pairs count, by subset; "" is the only one where there is none.
        replicates: By aggregation, the main measure in each resample, shape (resamples,).
    """

    measure: Measure
    aggregations: Mapping[str, Mapping[str, Estimate]]
    subsets: Mapping[str, Mapping[str, Estimate]]
    scored: Mapping[str, int]
    replicates: Mapping[str, Array] = field(repr=False, compare=False)

    def main(self, aggregation: str) -> Estimate:
        """The main measure under an aggregation; without subsets all of them are the same."""
        return self.aggregations.get(aggregation, self.aggregations["all"])[self.measure]

    def drawn(self, aggregation: str) -> Array:
        """The same in each resample, shape (resamples,)."""
        return self.replicates.get(aggregation, self.replicates["all"])

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON has them, without the resamples."""
        nested = {
            part: {
                name: {measure: as_json(one) for measure, one in measures.items()}
                for name, measures in getattr(self, part).items()
            }
            for part in ("aggregations", "subsets")
        }
        return {"measure": self.measure, "scored": dict(self.scored), **nested}

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any], replicates: Mapping[str, Array]) -> Self:
        """From what `to_dict` gave, and the resamples."""
        nested = {
            part: {
                name: {measure: Estimate.from_json(one) for measure, one in measures.items()}
                for name, measures in shown[part].items()
            }
            for part in ("aggregations", "subsets")
        }
        return cls(**{**shown, **nested}, replicates=replicates)


def gold_of(pairs: Pairs) -> Array:
    """Gold scores, NaN where a pair was never graded, shape (N,)."""
    return np.array([np.nan if g is None else g for g in pairs.gold], dtype=np.float64)


def on_all_pairs(pairs: Pairs, cosines: Array) -> Array:
    """From the graded pairs to all N, NaN where a pair was never graded, shape (..., N)."""
    gold = gold_of(pairs)
    full = np.full((*cosines.shape[:-1], len(gold)), np.nan)
    full[..., ~np.isnan(gold)] = cosines
    return full


def less(one: float | None, other: float | None) -> float | None:
    """One number less another; None where one is lacking."""
    return None if one is None or other is None else one - other


def figures(
    pairs: Pairs, cosines: Array, *, resamples: int = 1000, random_state: int = 0
) -> list[Figures]:
    r"""Score the cosines of several models on the same pairs.

    .. math:: \text{mean} = \frac1S \sum_s \rho_s, \qquad
        \text{wmean} = \frac{\sum_s n_s \rho_s}{\sum_s n_s}, \qquad
        \text{all} = \rho \text{ over all pairs together}

    Args:
        pairs: N pairs with gold.
        cosines: Shape (models, N), NaN where a pair has no cosine. Pairs that have none in any of
            the models count for no model, so that all are scored on the same.
        resamples: For the intervals.
        random_state: Seed of the resamples.

    Returns:
        Figures of each model.
    """
    gold = gold_of(pairs)
    used = ~np.isnan(gold) & ~np.isnan(cosines).any(axis=0)
    names = np.array(pairs.subset) if pairs.subset else np.full(len(gold), "")
    # In the order in which they come.
    order = list(dict.fromkeys(names.tolist()))
    strata = {name: np.flatnonzero((names == name) & used) for name in order}
    measures: tuple[Measure, ...] = ("auc",) if pairs.binary else ("spearman", "pearson")
    whole = np.concatenate([*strata.values(), np.empty(0, dtype=np.int64)])
    parts = {"": whole} if len(strata) == 1 else {**strata, "": whole}
    drawn: dict[tuple[str, str], Array] = {}
    for number, (name, rows) in enumerate(parts.items()):
        draws = Resamples(
            list(strata.values()) if name == "" else [rows],
            resamples=resamples,
            # A subset is drawn by itself as it is drawn within the whole, and tasks are drawn
            # independently of each other.
            random_state=[random_state, zlib.crc32(f"{pairs.task} {pairs.split}".encode())],
            first=0 if name == "" else number,
        )
        for measure in measures:
            drawn[name, measure] = getattr(draws, measure)(cosines, gold)
    return [
        _figures(pairs, cosine, gold, parts, {key: rows[model] for key, rows in drawn.items()})
        for model, cosine in enumerate(cosines)
    ]


def _figures(
    pairs: Pairs,
    cosine: Array,
    gold: Array,
    parts: Mapping[str, Array],
    drawn: Mapping[tuple[str, str], Array],
) -> Figures:
    measures = list(dict.fromkeys(measure for _, measure in drawn))
    values = {
        name: _values(cosine[rows], gold[rows], binary=pairs.binary) for name, rows in parts.items()
    }
    estimates = {
        name: {
            measure: Estimate.of(found[measure][0], drawn[name, measure], found[measure][1])
            for measure in measures
        }
        for name, found in values.items()
    }
    subsets = {name: found for name, found in estimates.items() if name}
    aggregations = {"all": estimates[""]}
    main: Measure = "auc" if pairs.binary else "spearman"
    replicates = {"all": drawn["", main]}
    declared = CATALOG[pairs.task].subsets if pairs.task in CATALOG else {}
    if subsets or declared:
        sizes = np.array([len(parts[name]) for name in subsets], dtype=np.float64)
        for name, weights in {"wmean": sizes, "mean": np.ones(len(sizes))}.items():
            aggregations[name] = {}
            for measure in measures:
                rows = [drawn[subset, measure] for subset in subsets]
                estimate, mixed = _weighted(
                    {subset: found[measure] for subset, found in subsets.items()},
                    weights,
                    np.array(rows).reshape(len(rows), len(drawn["", measure])),
                )
                aggregations[name][measure] = estimate
                if measure == main:
                    replicates[name] = mixed
    return Figures(
        measure=main,
        aggregations={name: aggregations[name] for name in AGGREGATIONS if name in aggregations},
        subsets=subsets,
        scored={name: len(parts[name]) for name in (subsets or [""])},
        replicates=replicates,
    )


def _values(
    cosine: Array, gold: Array, *, binary: bool
) -> dict[str, tuple[float | None, str | None]]:
    if binary:
        area, reason = area_under_curve(cosine, gold)
        return {"auc": (area, reason)}
    found = correlate(cosine, gold)
    return {
        "spearman": (found.spearman, found.undefined),
        "pearson": (found.pearson, found.undefined),
    }


def _weighted(
    subsets: Mapping[str, Estimate], weights: Array, drawn: Array
) -> tuple[Estimate, Array]:
    """A weighted mean over subsets, and its resamples; drawn has shape (subsets, resamples)."""
    reason = None if subsets else "the source does not tell the subsets apart"
    for name, one in subsets.items():
        if one.value is None:
            reason = f"undefined for {name}: {one.undefined}"
    if reason is not None:
        return Estimate(None, undefined=reason), np.full(drawn.shape[1], np.nan)
    share = weights / weights.sum()
    mixed = share @ drawn
    value = float(share @ np.array([one.value for one in subsets.values()]))
    return Estimate.of(value, mixed), mixed


def average(scores: Mapping[str, Figures], aggregation: str) -> Estimate:
    """The plain mean over the seven STS tasks, if all are there and defined.

    Its interval comes from resampling each task by itself.
    """
    if absent := [name for name in STS_TASKS if name not in scores]:
        return Estimate(None, undefined=f"not all seven ran: {', '.join(absent)} absent")
    seven = {name: scores[name].main(aggregation) for name in STS_TASKS}
    values = []
    for name, one in seven.items():
        if one.value is None:
            return Estimate(None, undefined=f"{name} is undefined: {one.undefined}")
        values.append(one.value)
    return Estimate.of(float(np.mean(values)), average_replicates(scores, aggregation))


def average_replicates(scores: Mapping[str, Figures], aggregation: str) -> Array:
    """The average over the seven STS tasks in each resample, shape (resamples,)."""
    mean: Array = np.mean([scores[name].drawn(aggregation) for name in STS_TASKS], axis=0)
    return mean


def counted(tasks: Sequence[str]) -> list[str]:
    """The tasks whose mean is the overall value: the STS ones, or all if there is none."""
    return [task for task in tasks if task in STS_TASKS] or list(tasks)


def over_seeds(
    estimates: Sequence[Estimate], replicates: Array
) -> tuple[Estimate, float | None, Array]:
    """The mean over runs with several seeds, whose interval covers pairs and seeds.

    Args:
        estimates: Of each seed.
        replicates: Of each seed, in the same resamples, shape (seeds, resamples).

    Returns:
        The mean (undefined if one is), the deviation over seeds (ddof 0; None if undefined), and
        resamples of it, each of the next seed, shape (resamples,).
    """
    turns = np.arange(replicates.shape[1])
    mixed: Array = replicates[turns % len(replicates), turns]
    values = []
    for one in estimates:
        if one.value is None:
            return one, None, mixed
        values.append(one.value)
    return Estimate.of(float(np.mean(values)), mixed), float(np.std(values)), mixed
