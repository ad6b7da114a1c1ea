"""Resamples: what scipy and scikit-learn give on each written out, and tests that mean it."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

from bertflow.errors import InputError
from bertflow.evaluation import Difference, Resamples, bootstrap, holm, paired_difference
from bertflow.evaluation.bootstrap import interval, mean_of

PAIRS = 60
STRATA = {
    "whole": [np.arange(PAIRS)],
    "in order": [np.arange(0, 7), np.arange(7, 40), np.arange(40, PAIRS)],
    "one empty": [np.arange(0, 20), np.empty(0, dtype=int), np.arange(20, PAIRS)],
}
every_strata = pytest.mark.parametrize("strata", STRATA.values(), ids=STRATA)


def reference(measure, similarity, gold):
    """The statistic as another library has it, NaN where it has none."""
    if np.ptp(gold) == 0 or (measure != "auc" and np.ptp(similarity) == 0):
        return np.nan
    if measure == "auc":
        return roc_auc_score(gold, similarity)
    return {"spearman": spearmanr, "pearson": pearsonr}[measure](similarity, gold).statistic


def within(strata, **options) -> Resamples:
    """Resamples of pairs whose numbers are given subset by subset, in order."""
    return Resamples([len(stratum) for stratum in strata], **options)


def drawn_by(draws: Resamples, measure: str, similarity, gold) -> np.ndarray:
    """A statistic in each resample, of one model or of several."""
    statistic = getattr(bootstrap, f"{measure}_of")
    found = draws.of({measure: statistic(np.atleast_2d(similarity), gold)})[measure]
    return found if similarity.ndim == 2 else found[0]


def written_out(draws: Resamples) -> list[np.ndarray]:
    """Each resample as the numbers of its pairs, a pair as often as it was drawn."""
    numbers = np.arange(sum(draws.sizes))
    counts = np.concatenate(list(draws.counts()))
    assert len(counts) == draws.resamples
    return [np.repeat(numbers, row.astype(int)) for row in counts]


def scores(measure: str, kind: str, models: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Similarities that follow gold more or less, with ties or without."""
    random = np.random.default_rng(4)
    gold = random.integers(0, 2 if measure == "auc" else 6, size=PAIRS).astype(float)
    similarity = 0.05 * gold + 0.2 * random.normal(size=(models, PAIRS))
    if kind == "ties":
        similarity = similarity.round(1)
        assert len(np.unique(similarity[0])) < PAIRS / 3
    return similarity, gold


def test_every_resample_scores_as_it_does_written_out():
    for strata in STRATA.values():
        for measure in ["spearman", "pearson", "auc"]:
            for kind in ["ties", "no ties"]:
                similarity, gold = scores(measure, kind)
                draws = within(strata, resamples=25, random_state=1)
                got = drawn_by(draws, measure, similarity, gold)
                expected = [
                    [reference(measure, row[drawn], gold[drawn]) for drawn in written_out(draws)]
                    for row in similarity
                ]
                assert got.shape == (3, 25)
                assert np.isfinite(got).mean() > 0.9
                assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_neither_scale_nor_shift_matters():
    for scale, shift in [(1e-06, 0.9), (1.0, -1.0), (1000000.0, 0.0)]:
        # Raw encoders' cosines lie close together, far from 0.
        similarity, gold = scores("pearson", "no ties")
        draws = within(STRATA["in order"], resamples=20)
        moved = shift + scale * similarity
        assert_array_equal(
            drawn_by(draws, "spearman", moved, gold), drawn_by(draws, "spearman", similarity, gold)
        )
        expected = [
            [reference("pearson", row[drawn], gold[drawn]) for drawn in written_out(draws)]
            for row in similarity
        ]
        assert_allclose(drawn_by(draws, "pearson", moved, gold), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("measure", ["spearman", "pearson", "auc"])
@pytest.mark.parametrize("block", [1, 3 * PAIRS + 1])
def test_the_size_of_a_block_changes_nothing(monkeypatch, measure, block):
    similarity, gold = scores(measure, "ties")
    draws = within(STRATA["in order"], resamples=20)
    expected = drawn_by(draws, measure, similarity, gold)
    drawn = written_out(draws)
    monkeypatch.setattr(bootstrap, "BLOCK_ENTRIES", block)
    for one, other in zip(drawn, written_out(draws), strict=True):
        assert_array_equal(one, other)
    assert_allclose(drawn_by(draws, measure, similarity, gold), expected, rtol=0, atol=1e-14)


def test_a_measure_of_counts_is_that_of_the_resample_written_out():
    for strata in STRATA.values():
        values, _ = scores("spearman", "ties")
        draws = within(strata, resamples=20)
        got = draws.of({number: mean_of(row) for number, row in enumerate(values)})
        for number, row in enumerate(values):
            expected = [row[drawn].mean() for drawn in written_out(draws)]
            assert_allclose(got[number], expected, rtol=0, atol=1e-12)


def test_a_model_alone_has_the_numbers_that_it_has_among_others():
    for measure in ["spearman", "pearson", "auc"]:
        similarity, gold = scores(measure, "ties")
        draws = within(STRATA["in order"], resamples=20)
        together = drawn_by(draws, measure, similarity, gold)
        for row, expected in zip(similarity, together, strict=True):
            alone = drawn_by(draws, measure, row, gold)
            assert alone.shape == (20,)
            assert_array_equal(alone, expected)


def test_strata_keep_their_sizes():
    for strata in STRATA.values():
        for drawn in written_out(within(strata, resamples=50)):
            for stratum in strata:
                assert np.isin(drawn, stratum).sum() == len(stratum)


def test_pairs_are_drawn_with_replacement_and_equally_often():
    strata = STRATA["in order"]
    drawn = written_out(within(strata, resamples=2000))
    counts = np.array([np.bincount(one, minlength=PAIRS) for one in drawn])
    # Of a stratum of n a pair is drawn once on average, with a variance of 1 − 1/n.
    for stratum in strata:
        assert_allclose(counts[:, stratum].mean(axis=0), 1, atol=0.12)
        assert_allclose(counts[:, stratum].var(axis=0), 1 - 1 / len(stratum), atol=0.2)
    assert not (counts == 1).all(axis=1).any()
    # Strata are drawn independently of each other, resamples too.
    assert abs(np.corrcoef(counts[:, 0], counts[:, 7])[0, 1]) < 0.1
    assert abs(np.corrcoef(counts[1:, 0], counts[:-1, 0])[0, 1]) < 0.1


def test_one_seed_gives_one_draw():
    for state in [0, 7, [0, 7], (3, 4, 5)]:
        similarity, gold = scores("spearman", "no ties", models=1)
        once, again, other = (
            drawn_by(
                within(STRATA["in order"], resamples=20, random_state=seed),
                "spearman",
                similarity,
                gold,
            )
            for seed in (state, state, [99, 7])
        )
        assert_array_equal(once, again)
        assert not np.isin(once, other).any()


def test_strata_of_one_size_are_not_drawn_alike():
    strata = [np.arange(20), np.arange(20, 40)]
    drawn = written_out(within(strata, resamples=20))
    alike = [np.array_equal(one[:20] + 20, one[20:]) for one in drawn]
    assert not any(alike)


def test_a_constant_side_has_no_correlation(rng):
    for value in [0.1, 490000000.0]:
        for side in ["similarity", "gold"]:
            for measure in ["spearman", "pearson"]:
                # Without a bound, rounding would pass for variance: the mean of equal numbers is
                # seldom exact.
                given = {"similarity": rng.normal(size=PAIRS), "gold": rng.normal(size=PAIRS)}
                given[side] = np.full(PAIRS, value)
                got = drawn_by(within(STRATA["in order"], resamples=200), measure, **given)
                assert np.isnan(got).all()


def test_only_resamples_that_are_constant_are_undefined():
    for measure in ["spearman", "pearson"]:
        gold, similarity = np.array([1.0, 1.0, 2.0]), np.array([0.1, 0.1, 0.3])
        draws = Resamples([3], resamples=200)
        got = drawn_by(draws, measure, similarity, gold)
        constant = [np.ptp(gold[drawn]) == 0 for drawn in written_out(draws)]
        assert 20 < sum(constant) < 120
        assert_array_equal(np.isnan(got), constant)
        assert_allclose(got[np.isfinite(got)], 1, rtol=0, atol=1e-15)


def test_one_class_has_no_area(rng):
    for value in [0.0, 1.0]:
        draws = Resamples([PAIRS], resamples=20)
        assert np.isnan(drawn_by(draws, "auc", rng.normal(size=PAIRS), np.full(PAIRS, value))).all()


def test_correlations_and_areas_stay_within_their_bounds():
    for measure in ["spearman", "pearson", "auc"]:
        gold = (np.arange(PAIRS) >= PAIRS / 2).astype(float)
        draws = Resamples([PAIRS], resamples=50)
        for sign in (1, -1):
            got = drawn_by(draws, measure, sign * gold, gold)
            assert_allclose(got, max(sign, 0) if measure == "auc" else sign, rtol=0, atol=1e-14)
            assert (np.abs(got) <= 1).all()


def test_no_pair_has_no_statistic():
    for strata in [[], [np.empty(0, dtype=int)]]:
        got = drawn_by(within(strata, resamples=5), "spearman", np.empty(0), np.empty(0))
        assert got.shape == (5,)
        assert np.isnan(got).all()


def test_fewer_than_two_resamples_are_refused():
    for resamples in [1, -3]:
        with pytest.raises(InputError, match=f"resamples must be at least 2, got {resamples}"):
            Resamples([5], resamples=resamples)


def test_the_callers_arrays_are_untouched(rng):
    similarity, gold = rng.normal(size=(2, PAIRS)), rng.normal(size=PAIRS)
    kept = similarity.copy(), gold.copy()
    similarity.flags.writeable = gold.flags.writeable = False
    drawn_by(Resamples([PAIRS], resamples=3), "spearman", similarity, gold)
    assert_array_equal(similarity, kept[0])
    assert_array_equal(gold, kept[1])


# Intervals.


def test_an_interval_is_the_middle_95_percent(rng):
    assert interval(rng.permutation(1001) / 1000) == pytest.approx((0.025, 0.975), abs=1e-12)


def test_where_too_many_resamples_are_undefined_there_is_no_interval():
    for undefined, there in [(0, True), (10, True), (11, False), (100, False)]:
        replicates = np.arange(100.0)
        replicates[:undefined] = np.nan
        span = interval(replicates)
        assert (span is not None) == there
        if span is not None:
            defined = 100 - undefined
            low = undefined + 0.025 * (defined - 1)
            assert span == pytest.approx((low, 99 - 0.025 * (defined - 1)), abs=1e-9)


def correlated(random, count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Gold, and two models' similarities that are as good as each other."""
    gold = random.normal(size=count)
    return gold, gold + noise * random.normal(size=(2, count))


def test_intervals_cover_the_truth_as_often_as_they_say():
    random = np.random.default_rng(0)
    noise = 1.0
    # Of two normal variables with correlation ρ, Spearman's is 6/π asin(ρ/2).
    truth = 6 / math.pi * math.asin(1 / math.sqrt(1 + noise**2) / 2)
    covered, different = [], []
    for number in range(200):
        gold, similarity = correlated(random, 100, noise)
        draws = Resamples([100], resamples=200, random_state=number)
        replicates = drawn_by(draws, "spearman", similarity, gold)
        low, high = interval(replicates[0])
        covered.append(low <= truth <= high)
        values = spearmanr(similarity[0], gold)[0], spearmanr(similarity[1], gold)[0]
        found = paired_difference(values[1] - values[0], *replicates)
        different.append(found.real)
        assert found.low < found.high
    # 95 % and 5 %, three deviations of 200 trials to each side, and small samples' own deviation.
    assert 0.89 <= np.mean(covered) < 1
    assert 0 < np.mean(different) <= 0.10


# Differences.


def test_equal_scores_do_not_differ(rng):
    replicates = rng.normal(size=200)
    assert paired_difference(0.0, replicates, replicates) == Difference(0.0, 0.0, 0.0, 1.0, 1.0)
    assert not paired_difference(0.0, replicates, replicates).real


def test_the_difference_is_the_second_less_the_first_with_its_p_by_hand(rng):
    before = rng.normal(size=1000)
    after = before + 0.2 + 0.1 * rng.normal(size=1000)
    found = paired_difference(0.2, before, after)
    gain = after - before
    assert (found.low, found.high) == pytest.approx(
        tuple(np.percentile(gain, [2.5, 97.5])), abs=1e-12
    )
    # The two tails of the normal distribution.
    assert found.p == pytest.approx(math.erfc(0.2 / gain.std() / math.sqrt(2)), rel=1e-9)
    assert 0.03 < found.p < 0.06
    assert found.adjusted == found.p
    back = paired_difference(-0.2, after, before)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=1e-12)
    assert back.p == pytest.approx(found.p, rel=1e-9)


def test_what_is_shared_cancels():
    # Both vary by far more than they differ.
    random = np.random.default_rng(1)
    gold = random.normal(size=400)
    shared = gold + 2 * random.normal(size=400)
    better = shared + 0.15 * gold
    replicates = drawn_by(Resamples([400]), "spearman", np.stack([shared, better]), gold)
    rise = spearmanr(better, gold)[0] - spearmanr(shared, gold)[0]
    found = paired_difference(rise, *replicates)
    low, high = interval(replicates[0])
    assert found.low < rise < found.high
    assert rise < (high - low) / 2
    assert found.real
    assert found.p < 1e-6


def test_the_interval_of_a_difference_shrinks_with_pairs(rng):
    widths = []
    for count in (50, 800):
        gold, similarity = correlated(rng, count, 1.5)
        replicates = drawn_by(Resamples([count]), "spearman", similarity, gold)
        rise = spearmanr(similarity[1], gold)[0] - spearmanr(similarity[0], gold)[0]
        found = paired_difference(rise, *replicates)
        assert found.low < rise < found.high
        widths.append(found.high - found.low)
    # Sixteen times the pairs make it four times as narrow.
    assert 2.5 < widths[0] / widths[1] < 6


def test_a_difference_that_never_varies_is_certain(rng):
    before = rng.normal(size=200)
    assert paired_difference(0.5, before, before + 0.5).p == pytest.approx(0.0, abs=1e-300)


def test_a_difference_without_value_or_resamples_is_not_tested(rng):
    for case in ["no value", "undefined resamples"]:
        before, after = rng.normal(size=(2, 100))
        if case == "undefined resamples":
            after[:20] = np.nan
        value = None if case == "no value" else 0.3
        found = paired_difference(value, before, after)
        assert found == Difference(value)
        assert (found.p, found.adjusted, found.real) == (None, None, False)


def test_resamples_that_one_score_lacks_do_not_spoil_the_rest(rng):
    before = rng.normal(size=100)
    after = before + rng.normal(1, 0.1, size=100)
    after[:5] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired_difference(1.0, before, after)
    gain = (after - before)[5:]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(gain, [2.5, 97.5])))


# Several differences at once.


def test_holm_by_hand():
    given = {
        "a": Difference(0.1, -0.1, 0.3, 0.010, 0.010),
        "b": Difference(0.2, -0.2, 0.4, 0.040, 0.040),
        "c": Difference(0.3, -0.3, 0.5, 0.030, 0.030),
        "d": Difference(0.4, -0.4, 0.6, 0.005, 0.005),
    }
    # 4 · .005, 3 · .01, 2 · .03, and 1 · .04, which must not fall below the one before.
    expected = {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    got = holm(given)
    assert list(got) == list(given)
    assert {name: one.adjusted for name, one in got.items()} == pytest.approx(expected)
    for name, one in given.items():
        kept = got[name]
        assert (kept.value, kept.low, kept.high, kept.p) == (one.value, one.low, one.high, one.p)
    assert {name for name, one in got.items() if one.real} == {"a", "d"}
    assert all(given[name].adjusted == given[name].p for name in given)


def test_holm_goes_no_higher_than_1():
    got = holm({name: Difference(0.0, p=0.6) for name in "abc"})
    assert [one.adjusted for one in got.values()] == [1.0, 1.0, 1.0]


def test_holm_does_not_count_what_is_undefined():
    got = holm({"x": Difference(None), "a": Difference(1.0, p=0.03), "b": Difference(1.0, p=0.02)})
    assert got["x"] == Difference(None)
    assert (got["b"].adjusted, got["a"].adjusted) == (0.04, 0.04)
    assert holm({}) == {}
    assert holm({"alone": Difference(1.0, p=0.03)})["alone"].adjusted == 0.03


def test_a_difference_is_real_by_its_corrected_p():
    for adjusted, real in [(0.0, True), (0.0499, True), (0.051, False)]:
        assert Difference(0.1, 0.0, 0.2, p=0.001, adjusted=adjusted).real == real
