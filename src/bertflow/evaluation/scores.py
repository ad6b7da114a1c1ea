"""Cosines, and what they score against gold: estimates with intervals, by aggregation."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import scipy.stats
from sklearn.metrics import roc_auc_score

from bertflow.arrays import CHUNK_ROWS, Array, unit_rows
from bertflow.data import CATALOG, STS_TASKS, Pairs
from bertflow.errors import InputError
from bertflow.evaluation.bootstrap import (
    RESAMPLES,
    Difference,
    Measure,
    Resamples,
    auc_of,
    interval,
    paired_difference,
    pearson_of,
    spearman_of,
)

# Those under which the average of the seven tasks is published.
AVERAGES = ("wmean", "all")


def paired_cosine(first: Array, second: Array) -> Array:
    r"""Cosine of each row with its partner, in float64.

    .. math:: c_i = \frac{a_i \cdot b_i}{\lVert a_i \rVert \lVert b_i \rVert}

    Both sides have shape (N, D), the cosines (N,): NaN where a row is zero or not finite, and
    exactly 1 where both rows are equal.

    Raises:
        InputError: The shapes differ, or rows have no columns.

    Example:
        >>> paired_cosine(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [1.0, 0.0]]))
        array([0.70710678,        nan])
    """
    if first.shape != second.shape or first.size < len(first):
        shapes = f"{first.shape} and {second.shape}"
        raise InputError(f"pairs need columns and equal shapes, got {shapes}")
    cosines = np.empty(len(first))
    for start in range(0, len(first), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        one, other = first[part], second[part]
        cosine = np.einsum("nd,nd->n", unit_rows(one), unit_rows(other))
        cosine[(one == other).all(axis=1) & np.isfinite(cosine)] = 1.0
        cosine[~(one.any(axis=1) & other.any(axis=1))] = np.nan
        cosines[part] = cosine
    return cosines


def cosines_of_rows(vectors: Array, first: Array, second: Array) -> Array:
    """Cosines of pairs of rows by number, a few thousand pairs at a time."""
    parts = [slice(start, start + CHUNK_ROWS) for start in range(0, len(first), CHUNK_ROWS)]
    cosines = [paired_cosine(vectors[first[part]], vectors[second[part]]) for part in parts]
    return np.concatenate([*cosines, np.empty(0)])


@dataclass(frozen=True)
class Correlation:
    """Spearman's and Pearson's correlation; None with the reason where they are not defined."""

    spearman: float | None
    pearson: float | None
    undefined: str | None = None


def correlate(
    similarity: Array, gold: Array, names: tuple[str, str] = ("similarities", "gold scores")
) -> Correlation:
    """Correlate similarities with gold scores, shape (N,) each.

    `names` say in the reason which of the two is constant.

    Example:
        >>> correlate(np.array([0.1, 0.5, 0.9]), np.array([1.0, 2.0, 5.0])).spearman
        1.0
        >>> correlate(np.array([0.5, 0.5]), np.array([1.0, 2.0])).undefined
        'all similarities are equal'
    """
    if len(similarity) < 2:
        return Correlation(None, None, f"{len(similarity)} scored pairs, but it takes 2")
    for name, side in zip(names, (similarity, gold), strict=True):
        if np.ptp(side) == 0:
            return Correlation(None, None, f"all {name} are equal")
    with warnings.catch_warnings():
        # Similarities that are almost equal still have an order, and only that counts.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return Correlation(
            spearman=float(scipy.stats.spearmanr(similarity, gold).statistic),
            pearson=float(scipy.stats.pearsonr(similarity, gold).statistic),
        )


def area_under_curve(similarity: Array, gold: Array) -> tuple[float | None, str | None]:
    """Area under the ROC curve, gold being 1 and 0, shape (N,) each; None beside the reason why.

    Example:
        >>> area_under_curve(np.array([0.2, 0.4, 0.9]), np.array([0.0, 1.0, 1.0]))
        (1.0, None)
        >>> area_under_curve(np.array([0.2, 0.4]), np.array([1.0, 1.0]))
        (None, 'all 2 pairs are of one class')
    """
    if len(gold) == 0:
        return None, "no pair is scored"
    if np.ptp(gold) == 0:
        return None, f"all {len(gold)} pairs are of one class"
    return float(roc_auc_score(gold, similarity)), None


@dataclass(frozen=True)
class Estimate:
    """A figure and how sure it is.

    Attributes:
        value: Correlation, −1 to 1, or area, 0 to 1; None where undefined.
        low: Lower end of the 95 % interval by bootstrap over pairs; None where there is none.
        high: Upper end.
        undefined: Why there is no value, or None.
        deviation: Over seeds (ddof 0), 0 where there is one; not in JSON, as the next.
        replicates: The figure in each resample, shape (resamples,).
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    undefined: str | None = None
    deviation: float = 0.0
    replicates: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    @classmethod
    def of(cls, value: float | None, replicates: Array, undefined: str | None = None) -> Self:
        """A value with the interval that its resamples give."""
        span = None if value is None else interval(replicates)
        low, high = span or (None, None)
        return cls(value, low, high, undefined, replicates=replicates)

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> Self:
        """From what `as_json` gave."""
        low, high = shown["interval"] or (None, None)
        return cls(shown["value"], low, high, shown.get("undefined"))

    def above(self, other: Estimate) -> Difference:
        """How much higher this is than another estimate on the same resamples."""
        if self.value is None or other.value is None:
            return Difference(None)
        return paired_difference(self.value - other.value, other.replicates, self.replicates)


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
    """The scores of cosines against gold.

    Attributes:
        measure: The main measure: "spearman", or "auc" where gold is 1 and 0.
        aggregations: By aggregation and measure, the estimate: "wmean" is the mean over subsets
            weighted by their pairs, "mean" the plain one, "all" is over all pairs together. A task
            without subsets has "all" alone.
        subsets: By subset and measure, the estimate.
        scored: How many pairs count, by subset; "" is the only one where there is none.
    """

    measure: Literal["spearman", "auc"]
    aggregations: Mapping[str, Mapping[str, Estimate]]
    subsets: Mapping[str, Mapping[str, Estimate]]
    scored: Mapping[str, int]

    def main(self, aggregation: str) -> Estimate:
        """The main measure under an aggregation; without subsets all of them are the same."""
        return self.aggregations.get(aggregation, self.aggregations["all"])[self.measure]

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


# Estimates by subset, "" being all pairs together, and measure.
Parts: TypeAlias = Mapping[str, dict[str, Estimate]]


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
    pairs: Pairs, cosines: Array, *, resamples: int = RESAMPLES, random_state: int = 0
) -> list[Figures]:
    r"""Score the cosines of several models on the same pairs.

    .. math:: \text{mean} = \frac1S \sum_s \rho_s, \qquad
        \text{wmean} = \frac{\sum_s n_s \rho_s}{\sum_s n_s}, \qquad
        \text{all} = \rho \text{ over all pairs together}

    Args:
        pairs: N pairs with gold.
        cosines: Shape (models, N), NaN where a pair has no cosine. A pair that has none in one
            model counts for no model.
        resamples: For the intervals.
        random_state: Seed of the resamples.
    """
    gold = gold_of(pairs)
    used = ~np.isnan(gold) & ~np.isnan(cosines).any(axis=0)
    names = np.array(pairs.subset) if pairs.subset else np.full(len(gold), "")
    # In the order in which they come.
    order = list(dict.fromkeys(names.tolist()))
    strata = [np.flatnonzero((names == name) & used) for name in order]
    rows = np.concatenate([*strata, np.empty(0, dtype=np.int64)])
    cosines, gold = cosines[:, rows], gold[rows]
    # Subsets, and all pairs together, as columns of the resamples.
    sizes = [len(stratum) for stratum in strata]
    starts = [0, *accumulate(sizes)]
    subsets = order if len(order) > 1 else []
    parts = {name: slice(*starts[n : n + 2]) for n, name in enumerate(subsets)}
    parts[""] = slice(0, len(rows))
    measures = {"auc": auc_of} if pairs.binary else {"spearman": spearman_of, "pearson": pearson_of}
    # Tasks are drawn independently of each other.
    seed = [random_state, zlib.crc32(f"{pairs.task} {pairs.split}".encode())]
    drawn = Resamples(sizes, resamples=resamples, random_state=seed).of(
        {
            (name, measure): _within(columns, of(cosines[:, columns], gold[columns]))
            for name, columns in parts.items()
            for measure, of in measures.items()
        }
    )
    found: list[Parts] = [{name: {} for name in parts} for _ in cosines]
    for (name, measure), of_models in drawn.items():
        columns = parts[name]
        for model, cosine, replicates in zip(found, cosines[:, columns], of_models, strict=True):
            model[name][measure] = _estimate(measure, cosine, gold[columns], replicates)
    scored = {name: columns.stop - columns.start for name, columns in parts.items()}
    return [_aggregated(pairs, model, scored) for model in found]


def _within(columns: slice, measure: Measure) -> Measure:
    """A measure of some of the pairs, as one of resamples of all of them."""
    return lambda counts: measure(counts[:, columns])


def _estimate(measure: str, cosine: Array, gold: Array, replicates: Array) -> Estimate:
    if measure == "auc":
        value, undefined = area_under_curve(cosine, gold)
    else:
        found = correlate(cosine, gold)
        value, undefined = getattr(found, measure), found.undefined
    return Estimate.of(value, replicates, undefined)


def _aggregated(pairs: Pairs, parts: Parts, sizes: Mapping[str, int]) -> Figures:
    """Figures of estimates and numbers of pairs by subset, "" being all pairs together."""
    whole, subsets = parts[""], {name: found for name, found in parts.items() if name}
    means: dict[str, dict[str, Estimate]] = {}
    if subsets:
        counts = np.array([sizes[name] for name in subsets], dtype=np.float64)
        for name, weights in (("wmean", counts), ("mean", np.ones(len(counts)))):
            means[name] = {
                measure: mean_over({key: one[measure] for key, one in subsets.items()}, weights)
                for measure in whole
            }
    elif pairs.task in CATALOG and CATALOG[pairs.task].subsets:
        reason = "the source does not tell the subsets apart"
        untold = {measure: _undefined(one, reason) for measure, one in whole.items()}
        means = {"wmean": untold, "mean": untold}
    return Figures(
        measure="auc" if pairs.binary else "spearman",
        aggregations={**means, "all": whole},
        subsets=subsets,
        scored={name: sizes[name] for name in (subsets or [""])},
    )


def _undefined(like: Estimate, reason: str) -> Estimate:
    return Estimate.of(None, np.full_like(like.replicates, np.nan), reason)


def mean_over(estimates: Mapping[str, Estimate], weights: Array | None = None) -> Estimate:
    """The mean of estimates, each resampled by itself, weighted or plain; undefined if one is."""
    for name, one in estimates.items():
        if one.value is None:
            return _undefined(one, f"{name} is undefined: {one.undefined}")
    several = list(estimates.values())
    share = np.ones(len(several)) if weights is None else weights
    share = share / share.sum()
    mixed = share @ np.array([one.replicates for one in several])
    return Estimate.of(float(share @ np.array([one.value for one in several])), mixed)


def average(scores: Mapping[str, Figures], aggregation: str) -> Estimate:
    """The plain mean over the seven STS tasks, if all are there and defined."""
    if absent := [name for name in STS_TASKS if name not in scores]:
        return Estimate(None, undefined=f"not all seven ran: {', '.join(absent)} absent")
    return mean_over({name: scores[name].main(aggregation) for name in STS_TASKS})


def counted(tasks: Sequence[str]) -> list[str]:
    """The tasks whose mean is the overall value: the STS ones, or all if there is none."""
    return [task for task in tasks if task in STS_TASKS] or list(tasks)


def over_seeds(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over seeds, undefined if one is, with the deviation over them.

    The estimates are of the same resamples. Those of the mean take the seeds in turn, so that its
    interval covers pairs and seeds.
    """
    replicates = np.stack([one.replicates for one in estimates])
    turns = np.arange(replicates.shape[1])
    mixed: Array = replicates[turns % len(replicates), turns]
    for one in estimates:
        if one.value is None:
            return Estimate.of(None, mixed, one.undefined)
    values = np.array([one.value for one in estimates], dtype=np.float64)
    return replace(Estimate.of(float(values.mean()), mixed), deviation=float(values.std()))
