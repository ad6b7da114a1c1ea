"""Intervals by bootstrap: statistics of many resamples of pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy.stats

from bertflow.arrays import Array
from bertflow.errors import InputError

RESAMPLES = 1000
CONFIDENCE = 0.95
# Resamples are counted and ranked in blocks of about this many numbers, which fit in a cache.
BLOCK_ENTRIES = 2**16

T = TypeVar("T")

# From how often each of N items counts, shape (B, N), to a value or values, shape (..., B).
Measure: TypeAlias = Callable[[Array], Array]


class Resamples:
    r"""Resamples of pairs with replacement, drawn within each subset, the same for every model.

    A resample is how often each pair occurs in it, so values are sorted once: the average rank of
    a value is

    .. math:: r(v) = \#\{u < v\} + \tfrac{1}{2} (\#\{u = v\} + 1)

    by the running sum of counts in sorted order.

    Args:
        sizes: How many pairs each subset has, which it keeps in every resample.
        resamples: How many.
        random_state: Seed of the draw, one number or several. Models scored on the same pairs with
            the same seed see the same resamples, so what they share cancels in the difference.

    Example:
        >>> draws = Resamples([50], resamples=200)
        >>> sums = draws.of({"sum": lambda counts: counts.sum(axis=1)})["sum"]
        >>> set(sums.tolist())
        {50.0}
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        resamples: int = RESAMPLES,
        random_state: int | Sequence[int] = 0,
    ) -> None:
        if resamples < 2:
            raise InputError(f"resamples must be at least 2, got {resamples}")
        self.sizes = list(sizes)
        self.resamples = resamples
        self.seed = [*random_state] if isinstance(random_state, Sequence) else [int(random_state)]

    def of(self, measures: Mapping[T, Measure]) -> dict[T, Array]:
        """Each measure in each resample, shape (..., resamples)."""
        drawn: dict[T, list[Array]] = {name: [] for name in measures}
        with np.errstate(invalid="ignore", divide="ignore"):
            for counts in self.counts():
                for name, measure in measures.items():
                    drawn[name].append(measure(counts))
        return {name: np.concatenate(parts, axis=-1) for name, parts in drawn.items()}

    def counts(self) -> Iterator[Array]:
        """How often each pair occurs, subset by subset, shape (block, pairs)."""
        draws = [
            (np.random.default_rng([*self.seed, number]), size)
            for number, size in enumerate(self.sizes)
        ]
        total = sum(self.sizes)
        block = max(1, BLOCK_ENTRIES // max(total, 1))
        for start in range(0, self.resamples, block):
            counts = np.empty((min(block, self.resamples - start), total))
            for row in counts:
                drawn = [
                    np.bincount(random.integers(n, size=n), minlength=n) for random, n in draws
                ]
                row[:] = np.concatenate([*drawn, row[:0]])
            yield counts


def mean_of(values: Array) -> Measure:
    """The mean of a number of each item, shape (N,), as a measure."""
    return lambda counts: np.asarray(counts @ values / counts.sum(axis=1))


def spearman_of(similarities: Array, gold: Array) -> Measure:
    """Spearman's correlations of models' similarities, shape (M, N), with gold, (N,), as a measure.

    Like `pearson_of` and `auc_of` it is the one that scipy or scikit-learn gives on a resample
    written out, NaN where undefined.
    """
    models, target = [_ranks_of(one) for one in similarities], _ranks_of(gold)

    def measure(counts: Array) -> Array:
        ranks = target(counts)
        return np.stack([_pearson(counts, model(counts), ranks) for model in models])

    return measure


def pearson_of(similarities: Array, gold: Array) -> Measure:
    """Pearson's correlations."""
    *models, target = (side.astype(np.float64)[None, :] for side in (*similarities, gold))
    return lambda counts: np.stack([_pearson(counts, model, target) for model in models])


def auc_of(similarities: Array, gold: Array) -> Measure:
    """Areas under the ROC curve, gold being 1 and 0."""
    models = [_ranks_of(one) for one in similarities]

    def measure(counts: Array) -> Array:
        positive = counts * gold
        ones = positive.sum(axis=1)
        zeros = counts.sum(axis=1) - ones
        # Copies of a pair tie with each other; average ranks share that out.
        sums = np.stack([_dot(positive, model(counts)) for model in models])
        return np.asarray((sums - ones * (ones + 1) / 2) / (ones * zeros))

    return measure


def _ranks_of(values: Array) -> Measure:
    """Average rank of each value in each resample, shape (B, N)."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    order, ends = np.argsort(group, kind="stable"), np.cumsum(sizes) - 1

    def ranks(counts: Array) -> Array:
        # How many are no larger than the values of each group of equals, and how many are smaller.
        upper = np.cumsum(counts[:, order], axis=1)[:, ends]
        lower = np.concatenate([np.zeros((len(counts), 1)), upper[:, :-1]], axis=1)
        return np.take((lower + upper + 1) / 2, group, axis=1)

    return ranks


def _pearson(counts: Array, x: Array, y: Array) -> Array:
    total = counts.sum(axis=1)
    a, b = (side - (_dot(counts, side) / total)[:, None] for side in (x, y))
    weighted_a, weighted_b = counts * a, counts * b
    squares = _dot(weighted_a, a), _dot(weighted_b, b)
    correlation: Array = _dot(weighted_a, b) / np.sqrt(squares[0] * squares[1])
    for square, side in zip(squares, (x, y), strict=True):
        # Where a side is constant only rounding is left of its variance.
        largest = np.square(side).max(axis=1, initial=0)
        correlation[square <= 1e-24 * total * largest] = np.nan
    return correlation.clip(-1.0, 1.0)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(a @ b[0] if len(b) != len(a) else np.einsum("bn,bn->b", a, b))


def interval(replicates: Array) -> tuple[float, float] | None:
    """The middle 95 % of a statistic in resamples (Efron, 1979); None where too few are defined."""
    defined = replicates[np.isfinite(replicates)]
    # Where it is undefined in many resamples, the rest are no fair sample.
    if len(defined) < 0.9 * len(replicates):
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """How much higher one score is than another on the same pairs.

    Attributes:
        value: The difference of the scores; None where one is undefined.
        low: Lower end of its 95 % interval by paired bootstrap; None, as the p-values, where too
            many resamples leave it undefined.
        high: Upper end.
        p: Two-sided p-value of "they are equal", from the bootstrap's deviation.
        adjusted: p after Holm's correction for all differences looked at together.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None

    @property
    def real(self) -> bool:
        """Whether chance is an unlikely explanation: adjusted p below 0.05."""
        return self.adjusted is not None and self.adjusted < 1 - CONFIDENCE

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON has it."""
        return {
            "value": self.value,
            "interval": None if self.low is None else [self.low, self.high],
            "p": self.p,
            "p_holm": self.adjusted,
            "real": self.real,
        }


def paired_difference(value: float | None, before: Array, after: Array) -> Difference:
    """Test a difference of two scores by their values in the same resamples, shape (resamples,).

    Example:
        >>> noise = np.random.default_rng(0).normal(size=1000)
        >>> paired_difference(0.5, noise, noise + 0.5).p
        0.0
    """
    differences = after - before
    span = interval(differences)
    if value is None or span is None:
        return Difference(value)
    deviation = float(np.nanstd(differences))
    if deviation > 1e-12:
        p = float(2 * scipy.stats.norm.sf(abs(value) / deviation))
    else:
        p = 1.0 if abs(value) < 1e-12 else 0.0
    return Difference(value, *span, p=p, adjusted=p)


def holm(differences: Mapping[T, Difference]) -> dict[T, Difference]:
    """Correct p-values for how many differences are looked at, by Holm (1979).

    Example:
        >>> two = {"a": Difference(1.0, p=0.03), "b": Difference(2.0, p=0.01)}
        >>> {name: one.adjusted for name, one in holm(two).items()}
        {'a': 0.03, 'b': 0.02}
    """
    tested = {name: one.p for name, one in differences.items() if one.p is not None}
    ordered = sorted(tested, key=lambda name: tested[name])
    # The smallest p counts once a test, the next once less; none falls below those before it.
    raised = [(len(ordered) - place) * tested[name] for place, name in enumerate(ordered)]
    adjusted = dict(zip(ordered, accumulate(raised, max), strict=True))
    return {
        name: replace(one, adjusted=min(1.0, adjusted[name])) if name in adjusted else one
        for name, one in differences.items()
    }
