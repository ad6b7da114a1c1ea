"""Two models on the same pairs: how much higher one scores, and whether that is chance."""

from __future__ import annotations

import numpy as np

from bertflow.data import STS_TASKS
from bertflow.errors import InputError
from bertflow.evaluation.bootstrap import Difference, holm, paired_difference
from bertflow.evaluation.scores import (
    AVERAGES,
    Figures,
    average,
    average_replicates,
    figures,
    gold_of,
    less,
)
from bertflow.evaluation.tasks import Score, Scores


def difference(before: Score, after: Score, aggregation: str = "all") -> Difference:
    """How much higher one score is than another on the same pairs, and whether that is chance.

    Args:
        before: A score.
        after: Another model's on the same pairs.
        aggregation: "wmean", "mean" or "all".

    Returns:
        The difference of the main measure, its 95 % interval and p-value by paired bootstrap. If
        one of the two has no cosine for a pair, that counts for neither.

    Raises:
        InputError: They are scores of different pairs, or of other subsets of them.
    """
    return _difference(*_together(before, after), aggregation)


def differences(before: Scores, after: Scores) -> dict[str, Difference]:
    """The same for every task and aggregation, and for the average of the seven if all ran.

    Returns:
        By name, such as "stsb" or "sts12, wmean"; p-values are corrected for their number (Holm).

    Raises:
        InputError: They are scores of different pairs.
    """
    pairs = {
        task: _together(before.scores[task], score)
        for task, score in after.scores.items()
        if task in before.scores
    }
    found = {}
    for task, (one, other) in pairs.items():
        for aggregation in one.aggregations:
            name = f"{task}, {aggregation}" if len(one.aggregations) > 1 else task
            found[name] = _difference(one, other, aggregation)
    if all(task in pairs for task in STS_TASKS):
        sides = [{task: both[side] for task, both in pairs.items()} for side in (0, 1)]
        for aggregation in AVERAGES:
            before_value, after_value = (average(side, aggregation).value for side in sides)
            rise = less(after_value, before_value)
            drawn = [average_replicates(side, aggregation) for side in sides]
            found[f"average of the seven, {aggregation}"] = paired_difference(rise, *drawn)
    corrected = holm(found)
    return {name: corrected[name] for name in found}


def _together(before: Score, after: Score) -> tuple[Figures, Figures]:
    """Both models' figures on the pairs that have a cosine in both."""
    first, second = before.graded, after.graded
    same = (
        list(first.first) == list(second.first)
        and list(first.second) == list(second.second)
        and list(first.subset) == list(second.subset)
        and np.array_equal(gold_of(first), gold_of(second), equal_nan=True)
    )
    if not same:
        raise InputError(
            f"the scores are of different pairs or subsets: {before.task} {before.split} from "
            f"{before.data}, and {after.task} {after.split} from {after.data}"
        )
    one, other = figures(first, np.stack([before.cosines, after.cosines]))
    return one, other


def _difference(one: Figures, other: Figures, aggregation: str) -> Difference:
    rise = less(other.main(aggregation).value, one.main(aggregation).value)
    return paired_difference(rise, one.drawn(aggregation), other.drawn(aggregation))
