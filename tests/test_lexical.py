"""Edit distance and what goes with it: by hand, against scipy, and where nothing can be said."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import spearmanr

from bertflow.analysis.lexical import edit_distances, lexical_statistics
from bertflow.data import read_task
from bertflow.errors import InputError, MissingDependencyError
from bertflow.evaluation import Resamples
from bertflow.evaluation.bootstrap import interval, spearman_of

PAIRS = 80


@pytest.fixture
def material(rng):
    """Gold, two similarities and distances that go with each other more or less."""
    distances = rng.integers(0, 30, size=PAIRS)
    gold = rng.integers(0, 6, size=PAIRS).astype(float)
    raw = -0.05 * distances + 0.1 * gold + 0.3 * rng.normal(size=PAIRS)
    flow = -0.01 * distances + 0.2 * gold + 0.3 * rng.normal(size=PAIRS)
    return gold, {"raw": raw, "flow": flow}, distances


def by_recursion(a, b):
    """Levenshtein's distance as its definition has it."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        by_recursion(a[1:], b) + 1,
        by_recursion(a, b[1:]) + 1,
        by_recursion(a[1:], b[1:]) + (a[0] != b[0]),
    )


# Edit distance.


def test_distances_are_those_counted_by_hand():
    for first, second, characters, words in [
        ("kitten", "sitting", 3, 1),
        ("", "abc", 3, 1),
        ("", "", 0, 0),
        ("A dog runs.", "a dog runs.", 1, 0),
        ("a  dog\truns", "a dog runs ", 3, 0),
        ("a cat and a dog", "a dog and a cat", 6, 2),
        ("naïve", "naive", 1, 1),
        ("one two three", "two three four", 9, 2),
    ]:
        assert edit_distances([first], [second]).tolist() == [characters]
        assert edit_distances([first], [second], unit="words").tolist() == [words]


def test_distances_are_the_definitions(rng):
    first, second = (
        ["".join(rng.choice(list("ab "), size=rng.integers(0, 6))) for _ in range(40)]
        for _ in range(2)
    )
    found = edit_distances(first, second)
    assert found.dtype == np.int64
    assert found.tolist() == [by_recursion(*pair) for pair in zip(first, second, strict=True)]
    words = edit_distances(first, second, unit="words")
    assert words.tolist() == [
        by_recursion(a.split(), b.split()) for a, b in zip(first, second, strict=True)
    ]


def test_no_pairs_have_no_distances():
    found = edit_distances([], [])
    assert (found.shape, found.dtype) == ((0,), np.int64)


def test_an_unknown_unit_is_refused():
    for unit in ["tokens", "", "Words"]:
        with pytest.raises(InputError, match=f"one of characters, words, got '{unit}'"):
            edit_distances(["a"], ["b"], unit=unit)


def test_sentences_without_a_partner_are_refused():
    with pytest.raises(InputError, match="got 2 and 1"):
        edit_distances(["a", "b"], ["c"])


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(MissingDependencyError, match=r"rapidfuzz: pip install 'bertflow\[words\]'"):
        edit_distances(["a"], ["b"])


# Correlations.


def test_correlations_are_scipys(material):
    gold, similarities, distances = material
    found = lexical_statistics(gold, similarities, distances, short=9, resamples=50)
    near = distances <= 9
    assert 5 < near.sum() < PAIRS - 5
    assert (found.pairs, found.short_pairs, found.skipped) == (PAIRS, near.sum(), 0)
    assert found.short == 9
    for name, values in {"gold": gold, **similarities}.items():
        for estimates, other, used in [
            (found.edit, distances, slice(None)),
            (found.gold, gold, slice(None)),
            (found.short_edit, distances, near),
            (found.short_gold, gold, near),
        ]:
            expected = spearmanr(values[used], other[used]).statistic
            assert estimates[name].value == pytest.approx(expected, abs=1e-12)
            assert estimates[name].undefined is None


def test_names_are_gold_and_then_the_similarities_in_order(material):
    found = lexical_statistics(*material, resamples=2)
    for estimates in (found.edit, found.gold, found.short_edit, found.short_gold):
        assert list(estimates) == ["gold", "raw", "flow"]


def test_gold_goes_with_itself_exactly_and_without_an_interval(material):
    found = lexical_statistics(*material, resamples=50)
    for estimates in (found.gold, found.short_gold):
        assert estimates["gold"].value == 1.0
        assert estimates["gold"].low is None
        assert estimates["gold"].high is None


def in_resamples(values, other):
    draws = Resamples([len(values)], resamples=60, random_state=3)
    return draws.of({"": spearman_of(values[None, :], other)})[""][0]


def test_intervals_come_from_the_resamples_that_scores_use(material):
    gold, similarities, distances = material
    found = lexical_statistics(gold, similarities, distances, short=9, resamples=60, random_state=3)
    for name, values in {"gold": gold, **similarities}.items():
        for column, other in {"edit": distances, "gold": gold}.items():
            estimate = getattr(found, column)[name]
            if (name, column) != ("gold", "gold"):
                drawn = in_resamples(values, other)
                assert_array_equal(estimate.replicates, drawn)
                assert (estimate.low, estimate.high) == interval(drawn)
    near = distances <= 9
    for name, values in similarities.items():
        short = found.short_edit[name]
        assert (short.low, short.high) == interval(in_resamples(values[near], distances[near]))
        short = found.short_gold[name]
        assert (short.low, short.high) == interval(in_resamples(values[near], gold[near]))


def test_the_seed_decides_the_resamples(material):
    one, same, other = (
        lexical_statistics(*material, resamples=20, random_state=seed) for seed in (0, 0, 1)
    )
    first, again, changed = (found.edit["raw"].replicates for found in (one, same, other))
    assert_array_equal(first, again)
    assert not np.array_equal(first, changed)
    assert one == same


def test_pairs_without_gold_or_a_similarity_are_out_for_all_and_counted(material):
    for spoilt in ["gold", "raw", "flow"]:
        gold, similarities, distances = material
        out = [3, 17, 40]
        kept = np.setdiff1d(np.arange(PAIRS), out)
        rows = {"gold": gold.copy(), **{name: one.copy() for name, one in similarities.items()}}
        rows[spoilt][out] = np.nan
        found = lexical_statistics(
            rows["gold"],
            {name: rows[name] for name in similarities},
            distances,
            short=9,
            resamples=20,
        )
        less = lexical_statistics(
            gold[kept],
            {name: one[kept] for name, one in similarities.items()},
            distances[kept],
            short=9,
            resamples=20,
        )
        assert (found.pairs, found.skipped) == (PAIRS - 3, 3)
        for column in ("edit", "gold", "short_edit", "short_gold"):
            assert getattr(found, column) == getattr(less, column)


# Differences.


def test_a_difference_is_of_the_correlations_on_the_same_resamples(material):
    found = lexical_statistics(*material, resamples=200)
    for one, other, column in [
        ("flow", "raw", "edit"),
        ("gold", "raw", "edit"),
        ("flow", "gold", "edit"),
        ("flow", "raw", "gold"),
    ]:
        estimates = getattr(found, column)
        difference = found.difference(one, other, column)
        assert difference.value == estimates[one].value - estimates[other].value
        drawn = estimates[one].replicates - estimates[other].replicates
        assert (difference.low, difference.high) == interval(drawn)
        back = found.difference(other, one, column)
        assert back.value == -difference.value
        assert back.p == difference.p
    assert found.difference("flow", "raw") == found.difference("flow", "raw", "edit")
    # Less negative, so it goes with edit distance less; by far more than chance would do it.
    assert found.difference("flow", "raw").value > 0.2
    assert found.difference("flow", "raw").real


def test_similarities_that_rank_alike_differ_by_nothing(material):
    gold, similarities, distances = material
    found = lexical_statistics(
        gold, {"raw": similarities["raw"], "same": 2 * similarities["raw"] + 1}, distances
    )
    for column in ("edit", "gold"):
        difference = found.difference("raw", "same", column)
        assert (difference.value, difference.low, difference.high) == (0.0, 0.0, 0.0)
        assert difference.p == 1.0


# Where nothing can be said.


def test_without_short_pairs_theirs_are_undefined_and_the_rest_is_not(material):
    gold, similarities, distances = material
    found = lexical_statistics(gold, similarities, distances + 10, resamples=20)
    assert found.short_pairs == 0
    for name in ("gold", "raw", "flow"):
        for estimate in (found.short_edit[name], found.short_gold[name]):
            assert estimate.value is None
            assert estimate.low is None
            assert estimate.undefined == "0 scored pairs, but it takes 2"
        assert found.edit[name].value is not None


def test_a_single_short_pair_is_not_enough(material):
    gold, similarities, distances = material
    distances = distances + 10
    distances[5] = 4
    found = lexical_statistics(gold, similarities, distances, resamples=20)
    assert found.short_pairs == 1
    assert found.short_edit["raw"].undefined == "1 scored pairs, but it takes 2"


def test_no_pair_at_all_is_undefined_and_no_failure():
    nothing = np.full(3, np.nan)
    found = lexical_statistics(nothing, {"raw": np.zeros(3)}, np.arange(3), resamples=5)
    assert (found.pairs, found.skipped) == (0, 3)
    assert found.edit["raw"].value is None
    assert found.gold["gold"].value is None
    assert found.difference("raw", "gold").value is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_is_constant_is_named(material):
    for constant, reasons in [
        ("gold", {"edit": "all gold scores are equal", "gold": "all gold scores are equal"}),
        ("raw", {"edit": "all similarities are equal", "gold": "all similarities are equal"}),
        ("distances", {"edit": "all edit distances are equal", "gold": None}),
    ]:
        gold, similarities, distances = material
        rows = {"gold": gold, "raw": similarities["raw"], "distances": distances}
        rows[constant] = np.full(PAIRS, 2)
        found = lexical_statistics(
            rows["gold"], {"raw": rows["raw"]}, rows["distances"], resamples=20
        )
        name = "gold" if constant == "gold" else "raw"
        for column, reason in reasons.items():
            estimate = getattr(found, column)[name]
            assert estimate.undefined == reason
            assert (estimate.value is None) == (reason is not None)
            assert (estimate.low is None) == (reason is not None)
        assert found.difference("raw", "gold").value is None
        json.dumps(found.to_dict(), allow_nan=False)


def test_equal_distances_of_short_pairs_are_named(material):
    gold, similarities, distances = material
    found = lexical_statistics(gold, similarities, distances, short=0, resamples=20)
    assert found.short_pairs == (distances == 0).sum() > 1
    assert found.short_edit["raw"].undefined == "all edit distances are equal"


# Arguments and JSON.


def test_a_similarity_may_not_be_called_gold(material):
    gold, similarities, distances = material
    with pytest.raises(InputError, match="named 'gold'"):
        lexical_statistics(gold, {"gold": similarities["raw"]}, distances)


def test_shapes_that_differ_are_refused(material):
    for shape in [(PAIRS - 1,), (PAIRS, 1)]:
        for spoilt in ["raw", "distances"]:
            gold, similarities, distances = material
            rows = {"raw": similarities["raw"], "distances": distances, spoilt: np.zeros(shape)}
            with pytest.raises(
                InputError, match=f"{spoilt} must have a value for each of the {PAIRS}"
            ):
                lexical_statistics(gold, {"raw": rows["raw"]}, rows["distances"])


def test_short_must_be_a_count(material):
    for short in [-1, 2.5, True]:
        with pytest.raises(InputError, match="short must be an integer of at least 0"):
            lexical_statistics(*material, short=short)


def test_json_has_every_estimate(material):
    found = lexical_statistics(*material, short=9, resamples=20)
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {key: content[key] for key in ("pairs", "short", "skipped")} == {
        "pairs": PAIRS,
        "short": 9,
        "skipped": 0,
    }
    assert content["short_pairs"] == found.short_pairs
    assert list(content["similarities"]) == ["gold", "raw", "flow"]
    for name, columns in content["similarities"].items():
        for column, shown in columns.items():
            estimate = getattr(found, column)[name]
            assert shown["value"] == estimate.value
            expected = None if estimate.low is None else [estimate.low, estimate.high]
            assert shown["interval"] == expected


# On the pairs of the paper.


def test_gold_of_stsb_dev_goes_with_edit_distance_as_the_docstring_says(shared_data):
    for unit, correlation, short in [("characters", -20.21, 14), ("words", -23.92, 383)]:
        pairs = read_task("stsb", shared_data, "dev")
        distances = edit_distances(pairs.first, pairs.second, unit=unit)
        found = lexical_statistics(np.array(pairs.gold), {}, distances, resamples=2)
        assert (found.pairs, found.short_pairs) == (1500, short)
        assert 100 * found.edit["gold"].value == pytest.approx(correlation, abs=0.005)
