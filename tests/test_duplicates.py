"""Duplicates: scikit-learn's figures on every resample, thresholds, halves, strangers' tables."""

from __future__ import annotations

import json
import re
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import average_precision_score, precision_recall_curve

from bertflow.data import read_pairs
from bertflow.errors import InputError
from bertflow.evaluation import DuplicatesJob, Resamples, paired_cosine
from bertflow.evaluation.duplicates import _half, _Ranked
from bertflow.evaluation.jobs import estimates


def job_of(tmp_path, lines, **options) -> DuplicatesJob:
    """A job of lines of text, text and score."""
    file = tmp_path / "mine.tsv"
    file.write_text("text1\ttext2\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return DuplicatesJob(read_pairs(file), **options)


def numbered(tmp_path, alike, **options) -> DuplicatesJob:
    """A job whose pairs share no text."""
    return job_of(tmp_path, [f"a{n}\tb{n}\t{int(a)}" for n, a in enumerate(alike)], **options)


def vectors_with(job, cosines) -> dict[str, np.ndarray]:
    """Vectors whose pairs have these cosines; zero vectors where it is NaN."""
    angle = np.arccos(np.clip(np.nan_to_num(cosines), -1, 1))
    rows = np.zeros((len(job.distinct), 2))
    rows[job.rows[:, 0]] = [1, 0]
    rows[job.rows[:, 1]] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows[job.rows[np.isnan(cosines), 1]] = 0
    return {"document": rows}


def noisy(count=60, decimals=12, seed=0):
    """Labels, and cosines that follow them more or less."""
    random = np.random.default_rng(seed)
    alike = random.integers(0, 2, size=count).astype(bool)
    return alike, (0.3 * alike + random.uniform(-0.3, 0.6, size=count)).round(decimals)


def f1_of(gold, cosine) -> float:
    precision, recall, _ = precision_recall_curve(gold, cosine)
    return float(np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300)))


def test_measures_are_those_of_scikit_learn_on_every_resample_written_out(tmp_path):
    for decimals in (12, 1):  # Without ties and with many.
        alike, cosines = noisy(decimals=decimals)
        job = numbered(tmp_path, alike)
        vectors = vectors_with(job, cosines)
        cosines = paired_cosine(*(vectors["document"][side] for side in job.rows.T))
        found = job.judge(vectors)
        counts = np.concatenate(list(Resamples([60], resamples=40).counts()))
        drawn = [np.repeat(np.arange(60), row.astype(int)) for row in counts]
        for name, reference in (("average precision", average_precision_score), ("best f1", f1_of)):
            expected = [reference(alike[one], cosines[one]) for one in drawn]
            assert_allclose(found.measures[name](counts), expected, rtol=0, atol=1e-12)
            whole = found.measures[name](np.ones((1, 60)))
            assert_allclose(whole, reference(alike, cosines), rtol=0, atol=1e-12)


def test_a_resample_without_a_duplicate_has_no_value(tmp_path):
    alike, cosines = noisy()
    job = numbered(tmp_path, alike)
    counts = np.stack([1.0 * alike, 1.0 * ~alike])
    for measure in job.judge(vectors_with(job, cosines)).measures.values():
        assert np.isnan(measure(counts)).tolist() == [False, True]


def test_estimates_have_the_main_measure_first_with_its_interval(tmp_path):
    alike, cosines = noisy()
    job = numbered(tmp_path, alike)
    found = estimates(job.judge(vectors_with(job, cosines)), resamples=200)
    assert list(found) == ["average precision", "best f1"]
    for one in found.values():
        assert one.low < one.value < one.high


def test_thresholds_do_what_they_say(tmp_path):
    alike, cosines = noisy(400)
    job = numbered(tmp_path, alike, precision=0.9)
    facts = job.judge(vectors_with(job, cosines)).facts
    for name in ("best f1", "chosen precision"):
        cut = facts[name]
        called = cosines >= cut["threshold"]
        assert cut["precision"] == alike[called].mean()
        assert cut["recall"] == called[alike].mean()
        assert_allclose(cut["f1"], 2 * (called & alike).sum() / (called.sum() + alike.sum()))
    assert_allclose(facts["best f1"]["f1"], f1_of(alike, cosines))
    cut = facts["chosen precision"]
    assert cut["precision"] >= 0.9
    for lower in cosines[cosines < cut["threshold"]]:
        assert alike[cosines >= lower].mean() < 0.9
    assert json.loads(json.dumps(facts)) == facts


def test_a_precision_that_no_threshold_reaches_says_so(tmp_path):
    alike, cosines = noisy(40)
    cosines[np.flatnonzero(~alike)[:8]] = 1.0
    job = numbered(tmp_path, alike)
    assert job.judge(vectors_with(job, cosines)).facts["chosen precision"] == {
        "threshold": None,
        "undefined": "no threshold reaches it",
    }


def test_a_threshold_lies_midway_between_the_cosines_that_it_parts(tmp_path):
    job = numbered(tmp_path, [True] * 5 + [False] * 5)
    facts = job.judge(vectors_with(job, np.array([0.8] * 5 + [0.2] * 5))).facts
    for found in (facts, facts["held out"]):
        for name in ("best f1", "chosen precision"):
            assert_allclose(found[name]["threshold"], 0.5)
            assert found[name]["f1"] == 1


def test_cosines_that_are_neighbours_in_floating_point_are_parted(tmp_path):
    alike = [True] * 5 + [False] * 5
    job = numbered(tmp_path, alike)
    # Unequal by one last bit, which no midpoint lies between.
    for pair in ((0.5, np.nextafter(0.5, 0)), (np.nextafter(0.5, 1), 0.5)):
        ranked = _Ranked(np.repeat(pair, 5), job.alike)
        assert ranked.cut(ranked.thresholds(0.95)["best f1"])["f1"] == 1


def test_pairs_without_a_cosine_are_never_called_duplicates(tmp_path):
    alike = np.array([True] * 8 + [False] * 8)
    cosines = np.where(alike, 0.9, 0.1)
    cosines[[0, 1, 8]] = np.nan
    job = numbered(tmp_path, alike)
    found = job.judge(vectors_with(job, cosines))
    assert found.facts["no cosine"] == 3
    assert found.facts["best f1"]["recall"] == 6 / 8
    assert_allclose(found.measures["average precision"](np.ones((1, 16))), 6 / 8)
    none = job.judge({"document": np.zeros((32, 4))})
    assert none.facts["best f1"]["threshold"] is None
    assert [one(np.ones((1, 16)))[0] for one in none.measures.values()] == [0, 0]


def test_halves_have_half_of_each_kind_and_share_no_text(tmp_path):
    random = np.random.default_rng(1)
    # A text on the left stands in three pairs, in the manner of SNLI, and one in 200.
    lines = [
        f"p{n // 3 if n < 400 else 0}\th{n}\t{int(random.uniform() < 0.2)}" for n in range(600)
    ]
    job = job_of(tmp_path, lines)
    found = job.judge({"document": random.normal(size=(len(job.distinct), 8))}).facts["held out"]
    assert found["texts in both"] == 0
    assert sum(found["pairs"]) == 600
    assert abs(found["pairs"][0] - 300) <= 12
    chosen, _ = _half(job.rows, job.alike)
    for kind in (job.alike, ~job.alike):
        assert 0.4 < chosen[kind].mean() < 0.6


def test_halves_of_pairs_that_all_hang_together_are_by_pair_and_say_so(tmp_path):
    job = job_of(tmp_path, [f"the one\tother {n}\t{n % 2}" for n in range(41)])
    found = job.judge({"document": np.random.default_rng(0).normal(size=(42, 8))})
    assert found.facts["held out"]["texts in both"] == 1
    assert sorted(found.facts["held out"]["pairs"]) == [20, 21]


def test_a_threshold_of_one_half_is_judged_on_the_other(tmp_path):
    alike, cosines = noisy(200, seed=3)
    job = numbered(tmp_path, alike)
    chosen, _ = _half(job.rows, job.alike)
    cut = job.judge(vectors_with(job, cosines)).facts["held out"]["best f1"]
    called = cosines >= cut["threshold"]
    assert cut["precision"] == alike[~chosen & called].mean()
    assert cut["recall"] == called[~chosen & alike].mean()
    assert_allclose(
        2 * (called & alike & chosen).sum() / ((called & chosen).sum() + (alike & chosen).sum()),
        f1_of(alike[chosen], cosines[chosen]),
    )


def test_graded_pairs_become_duplicates_from_a_score_on(tmp_path):
    lines = [f"a{n}\tb{n}\t{n % 6}" for n in range(36)]
    job = job_of(tmp_path, [*lines, "not\tgraded\t"], alike=4)
    assert job.counts == {"pairs": 36, "duplicates": 12, "texts": 72}
    assert job.skipped == {"no gold score": 1}


@pytest.mark.parametrize(
    ("grades", "options", "said"),
    [
        ("0123450", {}, "score 2 is neither 1 (duplicates) nor 0; give `alike`"),
        ("1" * 9, {}, "9 pairs are duplicates and 0 are not, but it takes 4 of each; add pairs"),
        ("000111111", {}, "6 pairs are duplicates and 3 are not"),
        ("012345", {"alike": 9}, "0 pairs are duplicates and 6 are not, but it takes 4 of each; "
         "add pairs, or change `alike`"),
        ("00001111", {"alike": float("nan")}, "alike must be a number, got nan"),
        ("00001111", {"precision": 0}, "precision must be a number above 0 and at most 1, got 0"),
        ("00001111", {"precision": 95}, "precision must be a number above 0 and at most 1, got 95"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_an_error_in_one_line(tmp_path, grades, options, said):
    lines = [f"a{n}\tb{n}\t{grade}" for n, grade in enumerate(grades)]
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        job_of(tmp_path, lines, **options)
    assert "\n" not in str(caught.value)


def test_true_and_false_repeats_and_equal_texts_are_pairs_as_any(tmp_path):
    lines = ["Zoë\tzoe\ttrue", "a\ta\tTRUE", "x\ty\tfalse", "y\tx\tfalse"] * 4
    job = job_of(tmp_path, [line + "\r" for line in lines])
    assert job.counts == {"pairs": 16, "duplicates": 8, "texts": 5}
    found = job.judge({"document": np.random.default_rng(0).normal(size=(5, 8))})
    assert 0 < found.measures["average precision"](np.ones((1, 16)))[0] <= 1


def test_memory_is_bounded_by_the_block_and_not_by_the_vectors(tmp_path):
    alike, _ = noisy(20_000)
    job = numbered(tmp_path, alike)
    rows = np.random.default_rng(0).normal(size=(40_000, 64)).astype(np.float32)
    tracemalloc.start()
    found = job.judge({"document": rows})
    for measure in found.measures.values():
        measure(np.ones((12, 20_000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # Both sides of the pairs in float64 alone would be 20 MB.
