"""What a change of vectors is worth on graded pairs, against values counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bertflow.analysis.gains import measure_gains
from bertflow.data import Pairs

# Each pair on an axis of its own, but for the second: its other half lies with the first pair.
AXES = np.eye(4)
GOOD = np.concatenate([AXES, AXES + 0.1])
POOR = np.concatenate([AXES, AXES[[0, 0, 2, 3]] + 0.1])
TEXTS = list("abcdefgh")


def pairs(gold) -> Pairs:
    return Pairs("mine", "all", TEXTS[:4], TEXTS[4:], gold, source="here")


def test_first_hits_are_of_paraphrases_alone_and_counted_by_hand():
    found = measure_gains(pairs([5.0, 4.0, 3.5, 0.0]), TEXTS, POOR, GOOD)
    assert found.searched.tolist() == [0, 1]
    # Two rows [1.1, 0.1, 0.1, 0.1] are nearest to the first axis; of the second axis all four of
    # the other halves are as near.
    assert found.places.tolist() == [[2, 4], [1, 1]]
    assert (found.first_hit.before.value, found.first_hit.after.value) == (0.0, 1.0)
    assert found.first_hit.difference.value == 1.0
    assert (found.pairs, found.among) == (4, 8)


def test_equal_vectors_find_nothing_and_have_no_order():
    found = measure_gains(pairs([5.0, 4.0, 3.0, 0.0]), TEXTS, np.ones((8, 3)), GOOD)
    assert found.places[0].tolist() == [7, 7]
    assert found.spearman.before.value is None
    assert found.spearman.difference.value is None
    assert found.mean_cosine[0] == pytest.approx(1.0)
