"""The gain of calibration on graded pairs: in their order, and in the first hit of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertflow.analysis.isotropy import mean_cosine
from bertflow.arrays import Array, unit_rows
from bertflow.data import Pairs
from bertflow.evaluation import Difference, Estimate, Resamples, figures, holm, paired_cosine
from bertflow.evaluation.bootstrap import mean_of

# Pairs with this grade or a higher one say the same, but for unimportant details.
PARAPHRASE = 4.0


@dataclass(frozen=True)
class Gain:
    """A figure before and after, and the difference on the same pairs."""

    before: Estimate
    after: Estimate
    difference: Difference


@dataclass(frozen=True, eq=False, kw_only=True)
class PairGains:
    """The result of `measure_gains`."""

    spearman: Gain  # Correlation of cosines with grades.
    first_hit: Gain  # Share of the searches that find the other half of the pair first.
    mean_cosine: tuple[float, float]  # Of random pairs of texts, before and after.
    pairs: int  # That have a cosine on both sides.
    among: int  # Texts, the query included.
    searched: Array  # Numbers of the pairs whose first half is searched with, shape (P,).
    places: Array  # Where the other half comes, from 1, before and after, shape (2, P).


def measure_gains(pairs: Pairs, texts: Sequence[str], before: Array, after: Array) -> PairGains:
    r"""Compare two sets of vectors of the same texts by how they order and find graded pairs.

    A pair graded 4 or more whose halves differ is a paraphrase. Its first half is searched with;
    its second half comes at place

    .. math:: 1 + \#\{t \neq q, o : \cos(q, t) \geq \cos(q, o)\}

    Texts are distinct, both halves of every pair among them; vectors have shape (N, D). Intervals
    are of a paired bootstrap over pairs; p-values are corrected for two differences.
    """
    vectors = [before, after]
    place = {text: row for row, text in enumerate(texts)}
    first, second = (
        np.array([place[text] for text in half], dtype=np.int64)
        for half in (pairs.first, pairs.second)
    )
    alike = [grade is not None and grade >= PARAPHRASE for grade in pairs.gold]
    searched = np.flatnonzero(np.array(alike) & (first != second))
    cosines = np.stack([paired_cosine(side[first], side[second]) for side in vectors])
    places = np.stack([_places(side, first[searched], second[searched]) for side in vectors])
    ordered = figures(pairs, cosines)
    spearman = [one.main("all") for one in ordered]
    hits = (places == 1).astype(np.float64)
    drawn = Resamples([len(searched)]).of({n: mean_of(hit) for n, hit in enumerate(hits)})
    shares = [Estimate.of(float(hit.mean()), drawn[n]) for n, hit in enumerate(hits)]
    changes = holm(
        {"spearman": spearman[1].above(spearman[0]), "first hit": shares[1].above(shares[0])}
    )
    return PairGains(
        spearman=Gain(spearman[0], spearman[1], changes["spearman"]),
        first_hit=Gain(shares[0], shares[1], changes["first hit"]),
        mean_cosine=(mean_cosine(before), mean_cosine(after)),
        pairs=sum(ordered[0].scored.values()),
        among=len(texts),
        searched=searched,
        places=places,
    )


def _places(vectors: Array, queries: Array, others: Array) -> Array:
    """At which place row `others[i]` comes among all but `queries[i]`, from 1, shape (P,)."""
    rows = unit_rows(vectors)
    cosines = rows[queries] @ rows.T
    each = np.arange(len(queries))
    cosines[each, queries] = -np.inf
    places: Array = (cosines >= cosines[each, others][:, None]).sum(axis=1)
    return places
