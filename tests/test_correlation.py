"""Cosine and correlation: equal to an independent computation, and undefined where they are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cosine
from scipy.stats import rankdata

from bertflow.errors import InputError
from bertflow.evaluation import Correlation, area_under_curve, correlate, paired_cosine


def test_cosine_is_that_of_scipy(rng):
    first, second = rng.normal(size=(2, 200, 7)) * 10.0 ** rng.integers(-3, 4, size=(2, 200, 1))
    expected = [1 - cosine(a, b) for a, b in zip(first, second, strict=True)]
    assert_allclose(paired_cosine(first, second), expected, rtol=0, atol=1e-12)


def test_cosine_by_hand():
    first = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    second = np.array([[0.0, 2.0], [-5.0, 0.0], [1.0, 1.0], [4.0, 3.0]])
    expected = [0.0, -1.0, np.sqrt(0.5), 24 / 25]
    assert_allclose(paired_cosine(first, second), expected, rtol=0, atol=1e-15)


def test_equal_rows_have_exactly_cosine_1(rng):
    for dtype in [np.float64, np.float32, np.float16, np.int64]:
        rows = (100 * rng.normal(size=(500, 7))).astype(dtype)
        assert_array_equal(paired_cosine(rows, rows.copy()), np.ones(500))


def test_a_zero_or_non_finite_row_has_no_cosine(rng):
    for side in [0, 1]:
        for bad in [0.0, np.nan, np.inf, -np.inf]:
            pair = list(rng.normal(size=(2, 4, 3)))
            pair[side][2] = [0.0, 0.0, 0.0] if bad == 0 else [1.0, bad, 2.0]
            got = paired_cosine(*pair)
            assert np.isnan(got[2])
            assert np.isfinite(got[[0, 1, 3]]).all()


def test_any_magnitude_has_the_same_cosine(rng):
    for scale, other in [(1e200, 1e200), (1e-200, 1e200), (1e30, 1.0), (1e-200, 1e-30)]:
        first, second = rng.normal(size=(2, 50, 5))
        expected = paired_cosine(first, second)
        assert_allclose(paired_cosine(first * scale, second * other), expected, rtol=0, atol=1e-12)


def test_one_huge_entry_does_not_hide_the_others_in_another_row():
    first = np.array([[1e200, 1e200], [1.0, 1.0]])
    second = np.array([[1e-200, 0.0], [1.0, 0.0]])
    assert_allclose(paired_cosine(first, second), [np.sqrt(0.5)] * 2, rtol=0, atol=1e-15)


def test_half_precision_is_raised_before_it_overflows():
    # Squares of these are far above what float16 holds.
    first = np.array([[300.0, 400.0], [1.0, 2.0]], dtype=np.float16)
    second = np.array([[400.0, 300.0], [2.0, 1.0]], dtype=np.float16)
    got = paired_cosine(first, second)
    assert got.dtype == np.float64
    assert_allclose(got, [0.96, 0.8], rtol=0, atol=1e-15)


def test_the_callers_arrays_are_untouched(rng):
    for dtype in [np.float64, np.float32, np.float16, np.int32]:
        first, second = (10 * rng.normal(size=(2, 20, 3))).astype(dtype)
        kept = first.copy(), second.copy()
        first.flags.writeable = second.flags.writeable = False
        paired_cosine(first, second)
        assert_array_equal(first, kept[0])
        assert_array_equal(second, kept[1])


def test_rows_do_not_depend_on_their_mates(rng):
    first, second = rng.normal(size=(2, 50, 5))
    alone = [paired_cosine(first[i : i + 1], second[i : i + 1])[0] for i in range(50)]
    assert_array_equal(paired_cosine(first, second), alone)


def test_equal_pairs_have_exactly_equal_cosines_wherever_they_stand(rng):
    for dtype in [np.float64, np.float32, np.float16]:
        for width in [1, 2, 3, 7, 8, 15, 16, 17, 63, 300, 576, 767, 768]:
            first, second = rng.normal(size=(2, 40, width)).astype(dtype)
            cosine = paired_cosine(first, second)
            order = rng.integers(40, size=333)
            assert_array_equal(paired_cosine(first[order], second[order]), cosine[order])
            assert_array_equal(paired_cosine(second, first), cosine)


def test_no_pair_has_no_cosine():
    assert paired_cosine(np.empty((0, 3)), np.empty((0, 3))).shape == (0,)


def test_different_shapes_are_refused_by_name():
    for other in [(3, 4), (2, 5)]:
        with pytest.raises(InputError, match=r"\(3, 5\).*" + str(other)[1:-1]):
            paired_cosine(np.ones((3, 5)), np.ones(other))
    with pytest.raises(InputError, match=r"need columns .*, got \(2, 0\)"):
        paired_cosine(np.ones((2, 0)), np.ones((2, 0)))


def test_correlations_are_those_of_numpy_with_ties(rng):
    gold = rng.integers(0, 6, size=300).astype(float)
    similarity = np.round(gold / 5 + rng.normal(size=300), 1)
    got = correlate(similarity, gold)
    pearson = np.corrcoef(similarity, gold)[0, 1]
    spearman = np.corrcoef(rankdata(similarity), rankdata(gold))[0, 1]
    assert len(set(similarity)) < 100
    assert got.pearson == pytest.approx(pearson, abs=1e-12)
    assert got.spearman == pytest.approx(spearman, abs=1e-12)
    assert got.undefined is None
    assert type(got.spearman) is type(got.pearson) is float


def test_all_pairs_are_ranked_together_not_subset_by_subset():
    # Each half alone has correlation 1, but over all six the ranks disagree.
    similarity = np.array([0.9, 0.8, 0.7, 0.3, 0.2, 0.1])
    gold = np.array([2.0, 1.0, 0.0, 5.0, 4.0, 3.0])
    assert correlate(similarity[:3], gold[:3]).spearman == pytest.approx(1.0)
    assert correlate(similarity[3:], gold[3:]).spearman == pytest.approx(1.0)
    assert correlate(similarity, gold).spearman == pytest.approx(-19 / 35, abs=1e-12)


def test_a_straight_line_is_a_correlation_of_1():
    for sign in [1, -1]:
        gold = np.array([0.0, 1.0, 2.0, 5.0])
        got = correlate(sign * (gold / 10 + 0.2), gold)
        assert got.spearman == pytest.approx(sign, abs=1e-12)
        assert got.pearson == pytest.approx(sign, abs=1e-12)


def test_fewer_than_two_pairs_have_no_correlation():
    for count in [0, 1]:
        got = correlate(np.full(count, 0.5), np.full(count, 2.0))
        assert got == Correlation(None, None, f"{count} scored pairs, but it takes 2")


def test_what_does_not_vary_has_no_correlation():
    for similarity, gold, reason in [
        ([0.5, 0.5, 0.5], [1.0, 2.0, 3.0], "similarities"),
        ([0.1, 0.2, 0.3], [4.0, 4.0, 4.0], "gold"),
    ]:
        got = correlate(np.array(similarity), np.array(gold))
        assert (got.spearman, got.pearson) == (None, None)
        assert reason in got.undefined


def test_correlating_leaves_the_callers_arrays_untouched(rng):
    similarity, gold = rng.normal(size=(2, 30))
    kept = similarity.copy(), gold.copy()
    similarity.flags.writeable = gold.flags.writeable = False
    correlate(similarity, gold)
    assert_array_equal(similarity, kept[0])
    assert_array_equal(gold, kept[1])


def test_the_area_is_the_share_of_pairs_of_pairs_in_order(rng):
    for ties in [False, True]:
        gold = rng.integers(0, 2, size=80).astype(float)
        similarity = 0.3 * gold + rng.normal(size=80)
        if ties:
            similarity = similarity.round(0)
        gap = similarity[gold == 1][:, None] - similarity[gold == 0][None, :]
        expected = np.mean((gap > 0) + 0.5 * (gap == 0))
        assert (np.sum(gap == 0) > 50) == ties
        area, reason = area_under_curve(similarity, gold)
        assert area == pytest.approx(expected, abs=1e-12)
        assert (type(area), reason) == (float, None)


def test_without_both_classes_there_is_no_area():
    for gold, reason in [
        ([], "no pair is scored"),
        ([1.0, 1.0], "all 2 pairs are of one class"),
        ([0.0] * 3, "all 3 pairs are of one class"),
    ]:
        assert area_under_curve(np.arange(float(len(gold))), np.array(gold)) == (None, reason)


def test_the_area_of_equal_similarities_is_a_half():
    assert area_under_curve(np.full(4, 0.3), np.array([0.0, 1.0, 1.0, 0.0])) == (0.5, None)
