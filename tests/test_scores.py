"""Figures: cosines against gold under every aggregation, each by its name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

from bertflow.data import CATALOG, Pairs, read_task
from bertflow.evaluation import (
    Difference,
    Estimate,
    figures,
    over_seeds,
    paired_cosine,
    paired_difference,
)
from bertflow.evaluation.scores import as_json, gold_of, mean_over

YEARS = tuple(f"sts{year}" for year in range(12, 17))
# As published; years of STS have more pairs, which were never graded.
COUNTS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}
COUNTS |= {"stsb": 1379, "sick-r": 4927, "qnli": 5463}


def pairs_of(gold, subset=(), *, task: str = "pairs", binary: bool = False) -> Pairs:
    texts = [f"text {number}" for number in range(len(gold))]
    return Pairs(task, "test", texts, texts, list(gold), "here", subset=subset, binary=binary)


def scored(pairs: Pairs, *cosines, **keywords):
    return figures(pairs, np.array(cosines, dtype=float), **keywords)


@pytest.fixture(scope="module")
def worked():
    """Three pairs each of two subsets: within each the order is right, between them it is not."""
    gold = [2.0, 1.0, 0.0, 5.0, 4.0, 3.0]
    (found,) = scored(pairs_of(gold, ["one"] * 3 + ["two"] * 3), [0.9, 0.8, 0.7, 0.3, 0.2, 0.1])
    return found


def test_the_worked_example(worked):
    assert worked.main("mean").value == pytest.approx(1, abs=1e-12)
    assert worked.main("wmean").value == pytest.approx(1, abs=1e-12)
    assert worked.main("all").value == pytest.approx(-19 / 35, abs=1e-12)
    assert f"{worked.main('all').value:.3f}" == "-0.543"
    assert worked.measure == "spearman"
    assert worked.scored == {"one": 3, "two": 3}
    assert list(worked.aggregations) == ["wmean", "mean", "all"]
    for name in ("one", "two"):
        assert worked.subsets[name]["spearman"].value == pytest.approx(1, abs=1e-12)


def example(count: int = 90, models: int = 2, *, sizes=(0.5, 0.3, 0.2)):
    """Pairs of three subsets in no order, and cosines of models."""
    random = np.random.default_rng(3)
    gold = random.integers(0, 6, size=count).astype(float)
    subset = random.choice(["b", "c", "a"], size=count, p=sizes)
    cosines = 0.8 + 0.02 * gold + 0.05 * random.normal(size=(models, count))
    return pairs_of(gold, subset.tolist()), cosines, gold, subset


def by_hand(cosine, gold, subset, measure=spearmanr):
    """Each aggregation, and each subset's correlation."""
    parts = {
        name: measure(cosine[subset == name], gold[subset == name]).statistic
        for name in dict.fromkeys(subset)
    }
    weights = [np.sum(subset == name) for name in parts]
    return {
        "wmean": np.average(list(parts.values()), weights=weights),
        "mean": np.mean(list(parts.values())),
        "all": measure(cosine, gold).statistic,
    }, parts


def test_aggregations_are_those_of_scipy_by_hand():
    for measure in ["spearman", "pearson"]:
        pairs, cosines, gold, subset = example()
        function = {"spearman": spearmanr, "pearson": pearsonr}[measure]
        for found, cosine in zip(figures(pairs, cosines), cosines, strict=True):
            whole, parts = by_hand(cosine, gold, subset, function)
            assert set(found.aggregations) == set(whole)
            for name, value in whole.items():
                assert found.aggregations[name][measure].value == pytest.approx(value, abs=1e-12)
            for name, value in parts.items():
                assert found.subsets[name][measure].value == pytest.approx(value, abs=1e-12)
            assert len({round(value, 6) for value in whole.values()}) == 3
        assert found.scored == Counter(subset.tolist())


def test_subsets_stand_in_the_order_in_which_they_come():
    pairs, cosines, _, subset = example()
    found = figures(pairs, cosines)[0]
    assert list(found.subsets) == list(found.scored) == list(dict.fromkeys(subset.tolist()))


def test_the_weights_are_the_scored_pairs():
    pairs, cosines, gold, subset = example()
    # Of the largest subset few are scored: some are not graded, others have no cosine.
    large = np.flatnonzero(subset == "b")
    ungraded, without = large[:20], large[20:30]
    gold[ungraded] = np.nan
    cosines[0, without] = np.nan
    given = replace(pairs, gold=[None if np.isnan(grade) else grade for grade in gold])
    (found,) = figures(given, cosines[:1])
    used = np.setdiff1d(np.arange(len(gold)), large[:30])
    whole, parts = by_hand(cosines[0, used], gold[used], subset[used])
    for name, value in whole.items():
        assert found.main(name).value == pytest.approx(value, abs=1e-12)
    assert found.scored == Counter(subset[used].tolist())
    wrong = np.average(list(parts.values()), weights=[np.sum(subset == name) for name in parts])
    assert found.main("wmean").value != pytest.approx(wrong, abs=1e-3)


def test_pairs_without_a_cosine_in_one_model_count_for_none():
    pairs, cosines, gold, subset = example(models=3)
    cosines[0, 5] = cosines[2, [5, 17]] = np.nan
    found = figures(pairs, cosines)
    used = np.setdiff1d(np.arange(len(gold)), [5, 17])
    for one, cosine in zip(found, cosines, strict=True):
        assert sum(one.scored.values()) == len(gold) - 2
        whole, _ = by_hand(cosine[used], gold[used], subset[used])
        assert one.main("all").value == pytest.approx(whole["all"], abs=1e-12)
        assert one.main("wmean").value == pytest.approx(whole["wmean"], abs=1e-12)
    alone = figures(pairs, cosines[1:2])[0]
    assert sum(alone.scored.values()) == len(gold)
    assert alone.main("all").value != found[1].main("all").value


def test_a_model_is_scored_as_alone():
    pairs, cosines, _, _ = example(models=3)
    for together, cosine in zip(figures(pairs, cosines), cosines, strict=True):
        (alone,) = figures(pairs, cosine[None])
        assert together == alone
        for name in alone.aggregations:
            assert_array_equal(together.main(name).replicates, alone.main(name).replicates)


# What is undefined.


def test_an_undefined_subset_leaves_its_means_undefined_and_all_defined():
    for case, reason in [
        ("gold equal", "two is undefined: all gold scores are equal"),
        ("cosines equal", "two is undefined: all similarities are equal"),
        ("one pair", "two is undefined: 1 scored pairs, but it takes 2"),
        ("no pair", "two is undefined: 0 scored pairs, but it takes 2"),
    ]:
        gold = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        cosine = np.array([0.1, 0.4, 0.3, 0.7, 0.6, 0.8])
        if case == "gold equal":
            gold[3:] = [4.0] * 3
        elif case == "cosines equal":
            cosine[3:] = 0.7
        else:
            gold[3 if case == "no pair" else 4 :] = [None] * (3 if case == "no pair" else 2)
        pairs = pairs_of(gold, ["one"] * 3 + ["two"] * 3)
        (found,) = scored(pairs, cosine)
        for measure in ("spearman", "pearson"):
            for name in ("wmean", "mean"):
                assert found.aggregations[name][measure] == Estimate(None, undefined=reason)
            two = found.subsets["two"][measure]
            assert (two.value, two.low, two.high) == (None, None, None)
            assert f"two is undefined: {two.undefined}" == reason
            assert found.subsets["one"][measure].value is not None
        used = np.array([grade is not None for grade in gold])
        expected = spearmanr(cosine[used], np.array(gold, dtype=float)[used]).statistic
        assert found.main("all").value == pytest.approx(expected, abs=1e-12)
        assert found.main("all").undefined is None
        assert np.isnan(found.main("wmean").replicates).all()


def test_where_the_source_does_not_tell_the_subsets_apart_their_means_are_undefined():
    for task in YEARS:
        _, cosines, gold, _ = example()
        found = figures(pairs_of(gold, task=task), cosines)[0]
        for name in ("wmean", "mean"):
            one = found.main(name)
            assert one == Estimate(None, undefined="the source does not tell the subsets apart")
        assert found.main("all").value == pytest.approx(spearmanr(cosines[0], gold)[0], abs=1e-12)
        assert found.subsets == {}
        assert found.scored == {"": len(gold)}


def test_a_task_without_subsets_has_all_alone_and_the_means_are_the_same():
    for task in ["stsb", "sick-r", "pairs", "sample"]:
        _, cosines, gold, _ = example()
        found = figures(pairs_of(gold, task=task), cosines)[0]
        assert list(found.aggregations) == ["all"]
        assert found.main("wmean") is found.main("mean") is found.main("all")
        assert found.subsets == {}
        assert found.scored == {"": len(gold)}


def test_nothing_scored_is_undefined_and_no_number():
    (found,) = scored(pairs_of([None, None]), [0.1, 0.2])
    for estimate in found.aggregations["all"].values():
        assert estimate == Estimate(None, undefined="0 scored pairs, but it takes 2")
    (found,) = scored(pairs_of([None, None], binary=True), [0.1, 0.2])
    assert found.aggregations["all"]["auc"] == Estimate(None, undefined="no pair is scored")


# Gold of 1 and 0.


def test_the_measure_of_two_classes_is_the_area_alone():
    _, cosines, gold, subset = example()
    labels = (gold >= 3).astype(float)
    for given, names in [((), {"all"}), (subset.tolist(), {"wmean", "mean", "all"})]:
        found = figures(pairs_of(labels, given, binary=True), cosines)
        for one, cosine in zip(found, cosines, strict=True):
            assert one.measure == "auc"
            assert set(one.aggregations) == names
            assert all(set(measures) == {"auc"} for measures in one.aggregations.values())
            expected = roc_auc_score(labels, cosine)
            assert one.main("all").value == pytest.approx(expected, abs=1e-12)
    parts = [roc_auc_score(labels[subset == s], cosines[-1][subset == s]) for s in "abc"]
    weights = [np.sum(subset == s) for s in "abc"]
    assert one.main("wmean").value == pytest.approx(np.average(parts, weights=weights), abs=1e-12)


def test_one_class_has_no_area_and_says_so():
    for label in [0.0, 1.0]:
        (found,) = scored(pairs_of([label] * 3, task="qnli", binary=True), [0.1, 0.2, 0.3])
        assert found.main("all") == Estimate(None, undefined="all 3 pairs are of one class")


# Intervals.


def test_an_interval_is_of_its_own_resamples():
    for binary in [False, True]:
        pairs, cosines, gold, _ = example()
        if binary:
            pairs = replace(pairs, gold=(gold >= 3).astype(float).tolist(), binary=True)
        for found in figures(pairs, cosines, resamples=300):
            for name in ("wmean", "mean", "all"):
                one, drawn = found.main(name), found.main(name).replicates
                assert drawn.shape == (300,)
                expected = tuple(np.percentile(drawn, [2.5, 97.5]))
                assert (one.low, one.high) == pytest.approx(expected, abs=1e-12)
                assert one.low < one.value < one.high
                assert np.ptp(drawn) > 0


def test_subsets_of_a_mean_are_resampled_independently():
    # Then the mean's variance is the weighted sum of theirs.
    pairs, cosines, _, _ = example(count=600, models=1)
    (found,) = figures(pairs, cosines, resamples=2000)
    spread = {
        name: (one["spearman"].high - one["spearman"].low) for name, one in found.subsets.items()
    }
    weights = np.array(list(found.scored.values()))
    for name, share in [("wmean", weights / weights.sum()), ("mean", np.full(3, 1 / 3))]:
        expected = np.sqrt(np.sum((share * np.array(list(spread.values()))) ** 2))
        one = found.main(name)
        assert one.high - one.low == pytest.approx(expected, rel=0.08)


def test_a_mean_of_equal_subsets_is_its_weighted_mean():
    gold = np.tile([0.0, 1.0, 2.0, 3.0, 4.0], 4)
    cosine = gold / 10 + np.random.default_rng(0).normal(0, 0.1, size=20)
    (found,) = scored(pairs_of(gold, ["a"] * 10 + ["b"] * 10), cosine)
    assert found.main("mean") == found.main("wmean")
    assert_array_equal(found.main("mean").replicates, found.main("wmean").replicates)
    assert (found.main("mean").replicates != found.main("all").replicates).any()


def test_one_seed_gives_one_interval_and_tasks_are_drawn_independently():
    _, cosines, gold, _ = example(models=1)
    drawn = [
        figures(pairs_of(gold, task=task), cosines, resamples=50, random_state=seed)[0]
        for task, seed in [("stsb", 0), ("stsb", 0), ("stsb", 1), ("sick-r", 0)]
    ]
    first, again, other_seed, other_task = (one.main("all").replicates for one in drawn)
    assert_array_equal(first, again)
    assert not np.isin(first, other_seed).any()
    assert not np.isin(first, other_task).any()


def test_an_undefined_value_has_no_interval():
    drawn = np.linspace(0, 1, 100)
    assert Estimate.of(None, drawn, "why") == Estimate(None, None, None, "why")
    assert Estimate.of(0.5, np.full(100, np.nan)) == Estimate(0.5, None, None, None)


def test_an_estimate_is_compared_and_averaged_in_its_own_resamples():
    random = np.random.default_rng(5)
    drawn = random.normal([[0.5], [0.2]], 0.05, size=(2, 400))
    high, low = (Estimate.of(value, one) for value, one in zip((0.5, 0.2), drawn, strict=True))
    assert high.above(low) == paired_difference(0.5 - 0.2, drawn[1], drawn[0])
    assert high.above(low).low > 0 > low.above(high).high
    assert high.above(Estimate(None)) == Estimate(None).above(high) == Difference(None)
    mean = mean_over({"a": high, "b": low})
    assert mean.value == pytest.approx(0.35)
    assert_allclose(mean.replicates, drawn.mean(axis=0))
    assert (mean.low, mean.high) == pytest.approx(
        tuple(np.quantile(mean.replicates, [0.025, 0.975]))
    )
    undefined = mean_over({"a": high, "b": Estimate(None, undefined="why")})
    assert undefined == Estimate(None, undefined="b is undefined: why")


def test_the_resamples_of_a_mean_over_seeds_are_each_seeds_in_turn():
    drawn = np.arange(12.0).reshape(3, 4)
    mean = over_seeds([Estimate.of(float(n), one) for n, one in enumerate(drawn)])
    assert (mean.value, mean.deviation) == (1.0, pytest.approx(np.sqrt(2 / 3)))
    assert mean.replicates.tolist() == [0.0, 5.0, 10.0, 3.0]
    undefined = Estimate.of(None, drawn[1], "why")
    assert over_seeds([Estimate.of(0.5, drawn[0]), undefined]) == Estimate(None, undefined="why")


def test_an_estimate_as_json():
    assert as_json(Estimate(0.5, 0.25, 0.75)) == {"value": 0.5, "interval": [0.25, 0.75]}
    assert as_json(Estimate(0.5)) == {"value": 0.5, "interval": None}
    undefined = {"value": None, "interval": None, "undefined": "why"}
    assert as_json(Estimate(None, undefined="why")) == undefined


def test_of_very_few_pairs_there_is_a_value_without_an_interval(worked):
    # Of three pairs, one resample in nine draws the same one three times.
    for name in ("wmean", "mean"):
        assert (worked.main(name).low, worked.main(name).high) == (None, None)
    assert worked.main("all").low < worked.main("all").value < worked.main("all").high


def test_numbers_are_plain_for_json():
    pairs, cosines, _, _ = example()
    found = figures(pairs, cosines)[0]
    for measures in found.aggregations.values():
        for one in measures.values():
            assert type(one.value) is type(one.low) is type(one.high) is float
    assert {type(count) for count in found.scored.values()} == {int}
    assert {type(name) for name in found.scored} == {str}


def test_the_callers_cosines_are_untouched():
    pairs, cosines, _, _ = example()
    cosines[0, 3] = np.nan
    kept = cosines.copy()
    cosines.flags.writeable = False
    figures(pairs, cosines)
    assert_array_equal(cosines, kept)


def test_gold_that_was_never_given_is_nan():
    assert_array_equal(gold_of(pairs_of([1.0, None, 0.0])), [1.0, np.nan, 0.0])


# On real vectors and real files.


@pytest.fixture(scope="module")
def real(shared_data):
    """STS-B's test pairs and their cosines, by our function and by hand."""
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text("utf-8"))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    vectors = np.load(shared_data / "embeddings/smollm2-135m_first-last-avg.npy")
    test = read_task("stsb", shared_data)
    first, second = (vectors[[row_of[s] for s in side]] for side in (test.first, test.second))
    exact = first.astype(np.float64), second.astype(np.float64)
    lengths = [np.linalg.norm(side, axis=1) for side in exact]
    return test, paired_cosine(first, second), (exact[0] * exact[1]).sum(1) / np.prod(lengths, 0)


def test_real_vectors_score_as_scipy_and_scikit_learn_have_it(real):
    pairs, cosine, expected = real
    assert_allclose(cosine, expected, rtol=0, atol=1e-12)
    gold = np.array(pairs.gold)
    (found,) = figures(pairs, cosine[None])
    got = {name: one.value for name, one in found.aggregations["all"].items()}
    assert got == pytest.approx(
        {
            "spearman": spearmanr(cosine, gold).statistic,
            "pearson": pearsonr(cosine, gold).statistic,
        },
        abs=1e-12,
    )
    assert 0.51 < found.main("all").value < 0.52
    assert found.scored == {"": 1379}
    labels = (gold >= 3).astype(float)
    (found,) = figures(pairs_of(labels, task="qnli", binary=True), cosine[None])
    assert found.main("all").value == pytest.approx(roc_auc_score(labels, cosine), abs=1e-12)


def test_real_vectors_in_subsets_score_as_scipy_has_it(real):
    pairs, cosine, _ = real
    gold = np.array(pairs.gold)
    subset = np.array(["news", "forums", "captions", "news"])[np.arange(1379) % 4]
    (found,) = figures(replace(pairs, subset=subset.tolist()), cosine[None])
    for measure, function in [("spearman", spearmanr), ("pearson", pearsonr)]:
        whole, parts = by_hand(cosine, gold, subset, function)
        for name, value in whole.items():
            assert found.aggregations[name][measure].value == pytest.approx(value, abs=1e-12)
        for name, value in parts.items():
            assert found.subsets[name][measure].value == pytest.approx(value, abs=1e-12)


def test_real_files_have_the_published_pairs_and_all_of_them_are_scored(shared_data):
    for task in COUNTS:
        pairs = read_task(task, shared_data)
        graded = np.array([grade is not None for grade in pairs.gold])
        # In any order: which pairs are scored does not depend on the cosines.
        (found,) = scored(pairs, np.random.default_rng(0).normal(size=len(pairs)), resamples=2)
        assert sum(found.scored.values()) == graded.sum()
        assert graded.sum() + sum(pairs.skipped.values()) == COUNTS[task]
        if CATALOG[task].subsets:
            assert found.scored == CATALOG[task].subsets
            assert set(found.aggregations) == {"wmean", "mean", "all"}
