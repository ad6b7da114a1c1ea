"""Lexical similarity: how far a similarity only follows edit distance (Table 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertflow.arrays import Array
from bertflow.errors import InputError, check_number, need
from bertflow.evaluation.bootstrap import RESAMPLES, Difference, Resamples, spearman_of
from bertflow.evaluation.scores import Estimate, as_json, correlate

GOLD = "gold"
UNITS = ("characters", "words")
# The names in the reason "all … are equal".
EDIT, GRADES, OTHERS = "edit distances", "gold scores", "similarities"


def edit_distances(
    first: Sequence[str], second: Sequence[str], *, unit: str = "characters"
) -> Array:
    r"""Levenshtein's distance of each sentence from its partner.

    .. math:: d(a, b) = \min \#\{\text{insertions, deletions, substitutions that make } b
        \text{ of } a\}

    The paper does not name the unit. On STS-B dev gold correlates −20.2 with the distance in
    characters and −23.9 with that in words; −24.61 is published.

    Args:
        first: N sentences.
        second: Their partners.
        unit: Of an edit: "characters", or "words" in lower case, split at white space.

    Raises:
        InputError: Another unit, or unequal lengths.
        MissingDependencyError: rapidfuzz is not there; the message is the pip line.

    Source: Levenshtein (1966); section 4.4.

    Example:
        >>> first, second = ["I like this restaurant"], ["i dislike this restaurant"]
        >>> edit_distances(first, second), edit_distances(first, second, unit="words")
        (array([4]), array([1]))
    """
    if unit not in UNITS:
        raise InputError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
    if len(first) != len(second):
        raise InputError(
            f"pairs need as many second sentences as first, got {len(first)} and {len(second)}"
        )
    need("edit distance", "words", "rapidfuzz")
    from rapidfuzz.distance import Levenshtein

    sides: list[Any] = [first, second]
    if unit == "words":
        sides = [[text.lower().split() for text in side] for side in sides]
    apart = [Levenshtein.distance(*pair) for pair in zip(*sides, strict=True)]
    return np.array(apart, dtype=np.int64)


@dataclass(frozen=True)
class Lexical:
    """Spearman's correlations of gold and similarities, by name, with edit distance and with gold.

    Attributes:
        pairs: How many pairs count.
        short_pairs: How many of them are at most `short` apart.
        skipped: How many were left out, without gold or without one of the similarities.
        short: The edit distance up to which pairs are looked at by themselves.
        edit: With edit distance; negative where distant pairs count as less similar.
        gold: With gold; "gold" itself is 1.
        short_edit: `edit` over the pairs at most `short` apart.
        short_gold: `gold` over those.
    """

    pairs: int
    short_pairs: int
    skipped: int
    short: int
    edit: Mapping[str, Estimate]
    gold: Mapping[str, Estimate]
    short_edit: Mapping[str, Estimate]
    short_gold: Mapping[str, Estimate]

    def difference(self, one: str, other: str, column: str = "edit") -> Difference:
        """How much higher one similarity's correlation with "edit" or "gold" is than another's."""
        estimates: Mapping[str, Estimate] = getattr(self, column)
        return estimates[one].above(estimates[other])

    def to_dict(self) -> dict[str, Any]:
        """The correlations as JSON has them."""
        return {
            "pairs": self.pairs,
            "short": self.short,
            "short_pairs": self.short_pairs,
            "skipped": self.skipped,
            "similarities": {
                name: {
                    column: as_json(getattr(self, column)[name])
                    for column in ("edit", "gold", "short_edit", "short_gold")
                }
                for name in self.edit
            },
        }


def lexical_statistics(
    gold: Array,
    similarities: Mapping[str, Array],
    distances: Array,
    *,
    short: int = 4,
    resamples: int = RESAMPLES,
    random_state: int = 0,
) -> Lexical:
    r"""Correlate similarities with edit distance and with gold, as Table 6 does.

    .. math:: \rho(s, d), \quad \rho(s, g), \quad
        \text{and both over the pairs with } d_i \leq \text{short}

    All count the same pairs, those with gold and with every similarity.

    Args:
        gold: Gold scores, NaN where a pair was never graded, shape (N,).
        similarities: By name, shape (N,) each, NaN where a pair has none.
        distances: Edit distances, shape (N,).
        short: Pairs at most so far apart are looked at by themselves, too.
        resamples: For the intervals; short pairs are drawn among themselves.
        random_state: Seed of the resamples.

    Raises:
        InputError: Shapes that differ, a similarity named "gold", or a number out of its range.

    Source: Section 4.4, Table 6; the short pairs are those Figure 2 highlights.

    Example:
        >>> gold = np.array([5.0, 4.0, 1.0, 0.0])
        >>> cosines = np.array([0.9, 0.8, 0.7, 0.1])
        >>> found = lexical_statistics(gold, {"raw": cosines}, np.array([1, 2, 3, 30]), short=3)
        >>> found.edit["raw"].value, found.gold["raw"].value, found.short_pairs
        (-1.0, 1.0, 3)
    """
    if GOLD in similarities:
        raise InputError("a similarity is named 'gold', as the gold scores are; rename it")
    check_number("short", short, 0, integer=True)
    for name, values in {"distances": distances, **similarities}.items():
        if values.shape != (len(gold),):
            raise InputError(
                f"{name} must have a value for each of the {len(gold)} pairs, "
                f"got shape {values.shape}"
            )
    rows: Array = np.stack([gold, *similarities.values()]).astype(np.float64)
    used = np.flatnonzero(np.isfinite(rows).all(axis=0))
    near = used[distances[used] <= short]
    found = []
    for part in (used, near):
        named = dict(zip([GOLD, *similarities], rows[:, part], strict=True))
        draws = Resamples([len(part)], resamples=resamples, random_state=random_state)
        found += [_correlations(named, distances[part], draws, EDIT)]
        found += [_correlations(named, gold[part], draws, GRADES)]
    return Lexical(len(used), len(near), len(gold) - len(used), short, *found)


def _correlations(
    values: Mapping[str, Array], other: Array, draws: Resamples, kind: str
) -> dict[str, Estimate]:
    """By name, the correlation with edit distances or with gold scores."""
    drawn = draws.of({kind: spearman_of(np.stack([*values.values()]), other)})[kind]
    found = {}
    for (name, one), replicates in zip(values.items(), drawn, strict=True):
        correlation = correlate(one, other, (GRADES if name == GOLD else OTHERS, kind))
        found[name] = Estimate.of(correlation.spearman, replicates, correlation.undefined)
    if kind == GRADES and found[GOLD].value is not None:
        found[GOLD] = Estimate(1.0)  # Not the 1 − 1e-16 that rounding may leave.
    return found
