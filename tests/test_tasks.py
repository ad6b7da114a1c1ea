"""Evaluation: the score is the correlation by hand, and carries all it depends on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

import bertflow
from bertflow.calibrators import AllButTheTop, Flow, Standardization, Whitening
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_task
from bertflow.encoders import load_encoder
from bertflow.errors import InputError, MissingDataError
from bertflow.evaluation import (
    TASKS,
    Difference,
    Estimate,
    Score,
    Scores,
    difference,
    differences,
    evaluate,
    evaluate_all,
    read_tasks,
    score_all,
    score_pairs,
)
from bertflow.models import calibrate
from conftest import of_probe
from task_files import write_qnli, write_tasks

PAIRS = 40
WIDTH = 16
CALIBRATORS = {
    "flow": Flow(epochs=1, random_state=3),
    "whitening": Whitening(dim=4),
    "standardization": Standardization(),
    "all-but-the-top": AllButTheTop(2),
}
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture(autouse=True)
def no_data_but_what_a_test_writes(monkeypatch):
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setattr("bertflow.data.sources.hub_answers", lambda: False)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def seven(tmp_path_factory) -> Path:
    """A folder with all seven STS tasks and QNLI."""
    return write_tasks(tmp_path_factory.mktemp("tasks"), *STS_TASKS, "qnli")


@pytest.fixture(scope="module")
def scores(encoder, seven) -> Scores:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BERTFLOW_DATA", raising=False)
        return evaluate_all(encoder, data=seven)


@pytest.fixture(scope="module")
def pairs(tiny_sentences):
    first, second = tiny_sentences[:PAIRS], tiny_sentences[PAIRS : 2 * PAIRS]
    gold = np.random.default_rng(1).integers(0, 11, size=PAIRS) / 2
    return Pairs("stsb", "test", first, second, gold.tolist(), "here")


@pytest.fixture
def heard(encoder, monkeypatch) -> list[str]:
    """Every sentence that the encoder is asked for, in order."""
    said: list[str] = []
    encode = encoder.encode

    def spy(sentences, **keywords):
        said.extend(text for text in sentences if not of_probe(text))
        return encode(sentences, **keywords)

    monkeypatch.setattr(encoder, "encode", spy)
    return said


@pytest.fixture
def speaking(encoder, monkeypatch):
    """Let the encoder give the vectors that a test wants."""

    def speak(vectors: dict[str, np.ndarray]):
        def encode(sentences, **keywords):
            width = len(next(iter(vectors.values())))
            return np.stack([vectors.get(text, np.ones(width)) for text in sentences])

        monkeypatch.setattr(encoder, "encode", encode)
        return encoder

    return speak


def stsb(folder: Path, pairs: Pairs, split: str = "test") -> Path:
    """Write the pairs as the benchmark comes, and give the folder to look in."""
    place = folder / "STSBenchmark"
    place.mkdir(parents=True, exist_ok=True)
    lines = [
        f"genre\tfile\tyear\t{i:04}\t{'' if score is None else score}\t{a}\t{b}\n"
        for i, (a, b, score) in enumerate(zip(pairs.first, pairs.second, pairs.gold, strict=True))
    ]
    (place / f"sts-{split}.csv").write_text("".join(lines))
    return folder


def alone(encoder, pairs: Pairs) -> np.ndarray:
    """Cosines, every sentence encoded alone."""
    return np.array(
        [
            1 - cosine(*(encoder.encode([text])[0].astype(np.float64) for text in texts))
            for texts in zip(pairs.first, pairs.second, strict=True)
        ]
    )


def by_hand(encoder, pairs: Pairs, used) -> tuple[float, float]:
    """Spearman's and Pearson's, every sentence encoded alone."""
    chosen = alone(encoder, pairs)[used], np.array(pairs.gold, dtype=float)[used]
    return spearmanr(*chosen).statistic, pearsonr(*chosen).statistic


def spearman_and_pearson(score: Score) -> tuple[float | None, float | None]:
    return tuple(score.aggregations["all"][name].value for name in ("spearman", "pearson"))


def numbers(value):
    """Every number in a nest of dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def strict_json(score: Score | Scores) -> dict:
    """Through JSON and back; NaN and infinity are refused."""
    return json.loads(json.dumps(score.to_dict(), allow_nan=False))


# One task.


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_score_is_the_correlation_by_hand(encoder, pairs, tmp_path, split):
    score = evaluate(encoder, "stsb", data=stsb(tmp_path, pairs, split), split=split)
    # Ranks may only swap where two similarities agree to float32's last digits.
    assert spearman_and_pearson(score) == pytest.approx(
        by_hand(encoder, pairs, slice(None)), abs=1e-3
    )
    assert score.aggregations["all"]["pearson"].value == pytest.approx(
        by_hand(encoder, pairs, slice(None))[1], abs=1e-5
    )
    assert (score.task, score.split, score.measure) == ("stsb", split, "spearman")
    assert list(score.aggregations) == ["all"]
    assert score.wmean == score.mean == score.all == score.aggregations["all"]["spearman"]
    assert (score.pairs, score.scored, score.all.undefined) == (PAIRS, {"": PAIRS}, None)
    assert sum(score.skipped.values()) == 0
    assert score.data == str(tmp_path / "STSBenchmark" / f"sts-{split}.csv")
    assert score.all.low < score.all.value < score.all.high


def test_aggregations_of_a_task_with_subsets_are_those_by_hand(encoder, seven):
    score = evaluate(encoder, "sts15", data=seven)
    pairs = read_task("sts15", seven)
    used = np.array([grade is not None for grade in pairs.gold])
    similarity, gold = alone(encoder, pairs), np.array(pairs.gold, dtype=float)
    parts, counts = [], []
    for subset in CATALOG["sts15"].subsets:
        rows = used & (np.array(pairs.subset) == subset)
        parts.append(spearmanr(similarity[rows], gold[rows]).statistic)
        counts.append(int(rows.sum()))
        found = score.subsets[subset]["spearman"]
        assert found.value == pytest.approx(parts[-1], abs=0.02)
    assert score.scored == dict(zip(CATALOG["sts15"].subsets, counts, strict=True))
    assert score.wmean.value == pytest.approx(np.average(parts, weights=counts), abs=0.01)
    assert score.mean.value == pytest.approx(np.mean(parts), abs=0.01)
    whole = spearmanr(similarity[used], gold[used]).statistic
    assert score.all.value == pytest.approx(whole, abs=0.01)
    assert score.wmean == score.aggregations["wmean"]["spearman"]
    assert score.pairs == len(pairs) == sum(counts) + score.skipped["no gold score"]
    assert score.skipped["no gold score"] > 10
    assert score.data == str(seven / "senteval/STS/STS15-en-test")


def test_qnli_is_the_area_by_hand(encoder, seven):
    score = evaluate(encoder, "qnli", data=seven)
    pairs = read_task("qnli", seven)
    assert (score.measure, score.split) == ("auc", "dev")
    assert list(score.aggregations) == ["all"]
    assert list(score.aggregations["all"]) == ["auc"]
    area = roc_auc_score(pairs.gold, alone(encoder, pairs))
    assert score.all.value == pytest.approx(area, abs=0.01)


def test_qnli_of_one_class_has_no_area_and_says_so(encoder, tmp_path):
    write_qnli(tmp_path, labels=("entailment",))
    score = evaluate(encoder, "qnli", data=tmp_path)
    assert score.all == Estimate(None, undefined="all 24 pairs are of one class")
    read = strict_json(score)
    assert read["aggregations"]["all"]["auc"]["value"] is None
    assert read["aggregations"]["all"]["auc"]["undefined"] == "all 24 pairs are of one class"


def test_a_blank_gold_score_is_skipped_and_counted(encoder, pairs, tmp_path):
    gold = [None if i in (0, 7, 8) else score for i, score in enumerate(pairs.gold)]
    given = replace(pairs, gold=gold)
    score = evaluate(encoder, data=stsb(tmp_path, given))
    used = np.array([score is not None for score in gold])
    assert (score.pairs, score.scored) == (PAIRS, {"": PAIRS - 3})
    assert score.skipped == {"no gold score": 3, "zero vector": 0, "vector not finite": 0}
    assert spearman_and_pearson(score) == pytest.approx(by_hand(encoder, given, used), abs=1e-3)
    assert_array_equal(np.isnan(score.cosines), ~used)


def test_rows_that_are_no_pair_are_counted_among_the_skipped(encoder, pairs):
    given = replace(pairs, skipped={"no label": 3})
    score = score_pairs(encoder, given)
    assert score.pairs == PAIRS + 3
    assert score.skipped["no label"] == 3
    assert sum(score.scored.values()) + sum(score.skipped.values()) == score.pairs


def test_first_and_third_of_four_are_scored(encoder, pairs, tmp_path):
    four = Pairs("", "", pairs.first[:4], pairs.second[:4], [5.0, None, 1.0, None], "")
    score = evaluate(encoder, data=stsb(tmp_path, four))
    assert (score.pairs, score.scored, score.skipped["no gold score"]) == (4, {"": 2}, 2)
    assert abs(score.all.value) == pytest.approx(1.0)


def test_zero_and_non_finite_vectors_are_skipped_and_counted(speaking, rng):
    vectors = {str(number): rng.normal(size=4).astype(np.float32) for number in range(16)}
    vectors["1"] = np.zeros(4, dtype=np.float32)
    vectors["11"] = np.zeros(4, dtype=np.float32)
    vectors["4"] = np.array([1, np.nan, 0, 0], dtype=np.float32)
    vectors["13"] = np.array([1, 0, -np.inf, 0], dtype=np.float32)
    first, second = (list(map(str, side)) for side in (range(8), range(8, 16)))
    gold = [0.0, 5.0, 1.0, 4.0, 3.0, 2.0, None, 2.5]
    score = score_pairs(speaking(vectors), Pairs("t", "s", first, second, gold, ""))
    used = [0, 2, 7]
    similarity = [1 - cosine(vectors[first[i]], vectors[second[i]]) for i in used]
    assert score.scored == {"": 3}
    assert score.skipped == {"no gold score": 1, "zero vector": 2, "vector not finite": 2}
    assert_array_equal(np.flatnonzero(~np.isnan(score.cosines)), used)
    assert_allclose(score.cosines[used], similarity, rtol=0, atol=1e-6)
    expected = spearmanr(similarity, [0.0, 1.0, 2.5]).statistic
    assert score.all.value == pytest.approx(expected, abs=1e-12)
    assert strict_json(score)["skipped"]["vector not finite"] == 2


def test_vectors_that_are_all_zero_give_no_score_rather_than_0(speaking):
    vectors = {text: np.zeros(4, dtype=np.float32) for text in "abcdef"}
    given = Pairs("t", "s", list("abc"), list("def"), [1.0, 2.0, 3.0], "")
    score = score_pairs(speaking(vectors), given)
    assert score.all == Estimate(None, undefined="0 scored pairs, but it takes 2")
    assert score.skipped["zero vector"] == 3


@pytest.mark.parametrize(
    ("gold", "reason"),
    [([None, None, 3.0], "1 scored pairs"), ([2.0] * 3, "gold scores"), ([None] * 3, "0 scored")],
)
def test_an_undefined_score_says_why_and_is_no_number(encoder, pairs, gold, reason):
    score = score_pairs(encoder, Pairs("t", "s", pairs.first[:3], pairs.second[:3], gold, ""))
    assert spearman_and_pearson(score) == (None, None)
    assert reason in score.all.undefined
    shown = strict_json(score)["aggregations"]["all"]["spearman"]
    assert shown == {"value": None, "interval": None, "undefined": score.all.undefined}


def test_the_score_depends_on_neither_order_nor_batch(encoder, pairs):
    order = np.random.default_rng(2).permutation(PAIRS)
    shuffled = replace(
        pairs,
        first=[pairs.second[i] for i in order],
        second=[pairs.first[i] for i in order],
        gold=[pairs.gold[i] for i in order],
    )
    once, again = score_pairs(encoder, pairs), score_pairs(encoder, shuffled, batch_size=3)
    assert spearman_and_pearson(once) == pytest.approx(spearman_and_pearson(again), abs=1e-3)
    assert_allclose(again.cosines, once.cosines[order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["float", "half", "bfloat16"])
def test_equal_texts_have_exactly_equal_cosines(tiny_bert, tiny_sentences, precision):
    encoder = getattr(load_encoder(tiny_bert, device="cpu"), precision)()
    texts = list(dict.fromkeys(tiny_sentences))[:40]
    first, second = texts[:20], texts[20:]
    given = Pairs(
        "t", "s", [*first, *first[::-1], *second], [*second, *second[::-1], *first], [1.0] * 60, ""
    )
    found = score_pairs(encoder, given, batch_size=7).cosines
    assert found.dtype == np.float64
    assert_array_equal(found[20:40], found[19::-1])
    assert_array_equal(found[40:], found[:20])
    assert len(set(found)) == 20


def test_cosines_of_half_precision_are_computed_in_float64(speaking, rng):
    # Squares of these are beyond float16, and steps of float32 beyond 1e-12.
    vectors = {text: (300 * rng.normal(size=50)).astype(np.float16) for text in "abcdefgh"}
    given = Pairs("t", "s", list("abcd"), list("efgh"), [1.0, 2.0, 3.0, 4.0], "")
    found = score_pairs(speaking(vectors), given).cosines
    exact = {text: row.astype(np.float64) for text, row in vectors.items()}
    expected = [1 - cosine(exact[a], exact[b]) for a, b in zip("abcd", "efgh", strict=True)]
    assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_text_beside_itself_has_cosine_1(encoder, pairs):
    given = Pairs("t", "s", pairs.first[:5], pairs.first[:5], [1.0] * 5, "")
    assert_array_equal(score_pairs(encoder, given).cosines, np.ones(5))


def test_progress_counts_distinct_sentences(encoder, pairs):
    seen = []
    score_pairs(encoder, pairs, progress=lambda done, total: seen.append((done, total)))
    distinct = len({*pairs.first, *pairs.second})
    assert seen[-1] == (distinct, distinct)


# Several tasks.


def test_each_distinct_sentence_is_encoded_once_over_all_tasks(encoder, heard, pairs):
    ungraded = "the bird reads the letter"
    other = Pairs(
        "own",
        "all",
        [*pairs.second, ungraded],
        [*pairs.first[::-1], pairs.first[0]],
        [*pairs.gold, None],
        "",
    )
    together = score_all(encoder, [pairs, other, pairs])
    assert set(Counter(heard).values()) == {1}
    assert set(heard) == {*pairs.first, *pairs.second}
    apart = [score_pairs(encoder, one) for one in (pairs, other, pairs)]
    for one, expected in zip(together, apart, strict=True):
        assert_allclose(one.cosines, expected.cosines, rtol=0, atol=1e-6)
        assert one.scored == expected.scored


def test_evaluate_all_gives_what_evaluate_gives(encoder, seven, scores):
    assert list(scores.scores) == list(TASKS)
    assert scores.absent == {}
    for task, score in scores.scores.items():
        one = evaluate(encoder, task, data=seven)
        assert score.split == one.split == CATALOG[task].default_split
        assert_allclose(score.cosines, one.cosines, rtol=0, atol=1e-6)
        assert (score.scored, score.skipped, score.data) == (one.scored, one.skipped, one.data)
        assert set(score.aggregations) == set(one.aggregations)
        assert score.all.value == pytest.approx(one.all.value, abs=0.02)


def test_evaluate_all_encodes_each_distinct_sentence_once(encoder, heard, seven):
    evaluate_all(encoder, ("sts15", "stsb", "qnli"), data=seven)
    assert set(Counter(heard).values()) == {1}
    expected = set()
    for task in ("sts15", "stsb", "qnli"):
        pairs = read_task(task, seven)
        graded = [grade is not None for grade in pairs.gold]
        for side in (pairs.first, pairs.second):
            expected |= {text for text, kept in zip(side, graded, strict=True) if kept}
    assert set(heard) == expected


def test_a_task_named_twice_is_scored_once(encoder, seven):
    found = evaluate_all(encoder, ("stsb", "qnli", "stsb"), data=seven)
    assert list(found.scores) == ["stsb", "qnli"]


def test_an_absent_task_is_absent_with_the_paths_that_were_tried(encoder, tmp_path):
    write_tasks(tmp_path, "stsb", "sick-r")
    found = evaluate_all(encoder, data=tmp_path)
    assert list(found.scores) == ["stsb", "sick-r"]
    assert set(found.absent) == set(TASKS) - {"stsb", "sick-r"}
    for task, reason in found.absent.items():
        assert f"no data for {task}" in reason
        assert str(tmp_path) in reason
    assert "STS12-en-test/STS.input.MSRpar.txt" in found.absent["sts12"]
    assert "QNLI/dev.tsv" in found.absent["qnli"]
    read = strict_json(found)
    assert set(read["scores"]) == {"stsb", "sick-r"}
    assert read["absent"] == found.absent
    for name in ("wmean", "all"):
        assert found.average(name).value is None
        assert read["average_of_seven"][name]["value"] is None


def test_if_no_task_is_there_the_paths_are_an_error(encoder, tmp_path):
    with pytest.raises(MissingDataError, match=r"no data for sts13.*STS13-en-test"):
        evaluate_all(encoder, ("sts13", "stsb"), data=tmp_path)
    with pytest.raises(MissingDataError, match="no task is named"):
        evaluate_all(encoder, (), data=tmp_path)


def test_an_unknown_task_among_others_is_refused_before_any_is_read(tmp_path):
    with pytest.raises(InputError, match="unknown task 'sts17'; expected one of sts12, .*qnli"):
        read_tasks(("stsb", "sts17"), tmp_path)


def test_a_broken_file_is_no_absent_task(encoder, tmp_path):
    write_tasks(tmp_path, "stsb", "sick-r")
    file = tmp_path / "senteval/SICK/SICK_test_annotated.txt"
    file.write_text(file.read_text() + "7\ta cat\n")
    with pytest.raises(InputError, match=r"SICK_test_annotated\.txt, line 26"):
        evaluate_all(encoder, ("stsb", "sick-r"), data=tmp_path)


# The average of seven.


def test_the_average_is_the_mean_of_seven_under_each_aggregation(scores):
    for name in ("wmean", "all"):
        values = [scores.scores[task].main(name).value for task in STS_TASKS]
        got = scores.average(name)
        assert got.value == pytest.approx(np.mean(values), abs=1e-12)
        assert got.low < got.value < got.high
    assert scores.average("wmean").value != scores.average("all").value
    without_qnli = {task: scores.scores[task] for task in STS_TASKS}
    assert Scores(scores=without_qnli, absent={}).average("all") == scores.average("all")


def test_the_averages_interval_is_of_tasks_resampled_each_by_itself(scores):
    for name in ("wmean", "all"):
        seven = [scores.scores[task] for task in STS_TASKS]
        drawn = np.array([one.main(name).replicates for one in seven])
        got = scores.average(name)
        expected = tuple(np.nanpercentile(drawn.mean(axis=0), [2.5, 97.5]))
        assert (got.low, got.high) == pytest.approx(expected, abs=1e-12)
        # Independent tasks: the variance of the sum is the sum of their variances.
        spread = np.nanstd(drawn.mean(axis=0))
        apart = np.sqrt((np.nanstd(drawn, axis=1) ** 2).sum()) / 7
        assert spread == pytest.approx(apart, rel=0.1)


@pytest.mark.parametrize("missing", [("sts12",), ("sts14", "sick-r"), STS_TASKS])
def test_unless_all_seven_ran_there_is_no_average_and_the_absent_are_named(scores, missing):
    ran = {task: score for task, score in scores.scores.items() if task not in missing}
    for name in ("wmean", "all"):
        expected = f"not all seven ran: {', '.join(missing)} absent"
        assert Scores(scores=ran, absent={}).average(name) == Estimate(None, undefined=expected)


def test_one_undefined_task_leaves_the_average_undefined(encoder, scores):
    pairs = read_task("sts12", Path(scores.scores["sts12"].data))
    # As the hub has it, without its subsets.
    whole = score_pairs(encoder, replace(pairs, subset=()))
    reason = "the source does not tell the subsets apart"
    assert whole.wmean == whole.mean == Estimate(None, undefined=reason)
    assert whole.all.value == pytest.approx(scores.scores["sts12"].all.value, abs=0.02)
    found = Scores(scores={**scores.scores, "sts12": whole}, absent={})
    expected = Estimate(None, undefined=f"sts12 is undefined: {reason}")
    assert found.average("wmean") == expected
    assert found.average("all").value is not None
    assert strict_json(found)["average_of_seven"]["wmean"]["undefined"] == expected.undefined


# What is refused, and where data are looked for.


@pytest.mark.parametrize("task", ["sts-b", "", "STSB", "sick", "snli"])
def test_an_unknown_task_is_refused_and_the_known_are_listed(encoder, task, tmp_path):
    with pytest.raises(InputError, match=f"unknown task '{task}'.*{', '.join(TASKS)}"):
        evaluate(encoder, task, data=tmp_path)


@pytest.mark.parametrize("split", ["validation", "", "Test"])
def test_an_unknown_split_is_refused_and_the_known_are_listed(encoder, split, tmp_path):
    with pytest.raises(InputError, match=f"unknown split of stsb '{split}'.*train, dev, test"):
        evaluate(encoder, data=tmp_path, split=split)


def test_data_that_are_not_there_are_refused_before_encoding(tmp_path):
    with pytest.raises(MissingDataError, match=r"sts-test\.csv"):
        evaluate(None, data=tmp_path)


def test_the_environment_says_where_the_data_are(encoder, pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTFLOW_DATA", str(stsb(tmp_path, pairs)))
    assert evaluate(encoder).scored == {"": PAIRS}


# What a score carries.


def test_a_bare_score_carries_its_encoder(encoder, pairs):
    score = score_pairs(encoder, pairs)
    assert (score.calibrator, score.fitted_on) == (None, None)
    assert score.encoder["layers"] == [1, 3]
    assert score.encoder["pooling"] == "mean"
    assert score.encoder["max_length"] == 32
    assert score.encoder["width"] == WIDTH
    assert score.versions["bertflow"] == bertflow.__version__
    assert score.time.endswith("+00:00")
    assert score.graded is pairs


@every_calibrator
def test_a_calibrated_score_carries_its_calibrator(encoder, pairs, tiny_sentences, name):
    calibrator = CALIBRATORS[name]
    model = calibrate(encoder, tiny_sentences, calibrator, provenance={"corpus": ["c.txt"]})
    score = score_pairs(model, pairs)
    assert score.calibrator == {"name": name, **calibrator.get_params()}
    assert score.fitted_on["corpus"] == ["c.txt"]
    assert score.fitted_on["sentences"] == 300
    assert score.fitted_on["encoder"]["layers"] == [1, 3]
    sides = list(pairs.first), list(pairs.second)
    vectors = [model.calibrator.transform(encoder.encode(side)) for side in sides]
    similarity = [1 - cosine(a, b) for a, b in zip(*vectors, strict=True)]
    assert_allclose(score.cosines, similarity, rtol=0, atol=1e-4)
    expected = pearsonr(similarity, pairs.gold).statistic
    assert score.aggregations["all"]["pearson"].value == pytest.approx(expected, abs=1e-4)


@every_calibrator
def test_a_score_survives_json(encoder, pairs, tiny_sentences, name):
    score = score_pairs(calibrate(encoder, tiny_sentences, CALIBRATORS[name]), pairs)
    read = strict_json(score)
    shown = read["aggregations"]["all"]["spearman"]
    assert shown == {"value": score.all.value, "interval": [score.all.low, score.all.high]}
    assert read["calibrator"]["name"] == name
    assert read["fitted_on"]["sentences"] == 300
    assert read["scored"] == {"": PAIRS}
    assert set(read) == set(score.__dataclass_fields__) - {"graded", "cosines"}
    assert_allclose(numbers(read), numbers(score.to_dict()), rtol=0)
    assert len(numbers(read)) > 10


def test_scores_survive_json(scores):
    read = strict_json(scores)
    assert set(read) == {"scores", "absent", "average_of_seven"}
    assert list(read["scores"]) == list(TASKS)
    for task, score in scores.scores.items():
        assert read["scores"][task] == json.loads(json.dumps(score.to_dict()))
        for part in ("encoder", "versions", "time", "data", "scored", "skipped", "pairs"):
            assert read["scores"][task][part] is not None
    sts12 = read["scores"]["sts12"]
    assert list(sts12["aggregations"]) == ["wmean", "mean", "all"]
    assert list(sts12["subsets"]) == list(CATALOG["sts12"].subsets)
    assert read["average_of_seven"]["all"]["value"] == scores.average("all").value


# Differences.


@pytest.fixture(scope="module")
def two(encoder, tiny_bert):
    """The same pairs by two encoders."""
    random = np.random.default_rng(5)
    words = random.permutation([f"w{number}" for number in range(400)]).tolist()
    subset = ["a"] * 60 + ["b"] * 40 + ["c"] * 100
    gold = random.normal(size=200).round(1)
    return Pairs("own", "all", words[:200], words[200:], gold.tolist(), "here", subset=subset)


def scored_as(encoder, pairs: Pairs, cosines) -> Score:
    """A score of cosines that a test wants."""
    base = score_pairs(encoder, replace(pairs, first=["the cat"] * len(pairs)))
    return replace(base, graded=pairs, cosines=np.asarray(cosines))


def test_a_model_does_not_differ_from_itself(encoder, two):
    score = scored_as(encoder, two, np.random.default_rng(0).normal(size=200))
    for name in ("wmean", "mean", "all"):
        assert difference(score, score, name) == Difference(0.0, 0.0, 0.0, 1.0, 1.0)


def test_a_difference_is_of_the_main_measure_under_its_aggregation(encoder, two):
    random, gold = np.random.default_rng(0), np.array(two.gold)
    noise = random.normal(size=200)
    before, after = (scored_as(encoder, two, gold + scale * noise) for scale in (3.0, 1.0))
    names = np.array(two.subset)
    values = {}
    for name, one in (("before", before), ("after", after)):
        parts = [spearmanr(one.cosines[names == s], gold[names == s])[0] for s in "abc"]
        values[name] = {
            "wmean": np.average(parts, weights=[60, 40, 100]),
            "mean": np.mean(parts),
            "all": spearmanr(one.cosines, gold)[0],
        }
    for name in ("wmean", "mean", "all"):
        rise = values["after"][name] - values["before"][name]
        found = difference(before, after, name)
        assert found.value == pytest.approx(rise, abs=1e-12)
        assert found.low < rise < found.high
        assert found.real
        back = difference(after, before, name)
        assert back.value == pytest.approx(-rise, abs=1e-12)
        assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=1e-12)
    assert difference(before, after) == difference(before, after, "all")


def test_a_pair_without_a_cosine_in_one_score_counts_for_neither(encoder, two):
    random, gold = np.random.default_rng(0), np.array(two.gold)
    one, other = gold + random.normal(size=(2, 200))
    one[:9], other[3:30] = np.nan, np.nan
    found = difference(scored_as(encoder, two, one), scored_as(encoder, two, other))
    used = slice(30, None)
    expected = spearmanr(other[used], gold[used])[0] - spearmanr(one[used], gold[used])[0]
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_a_task_without_subsets_differs_alike_under_every_aggregation(encoder, pairs):
    other = replace(score_pairs(encoder, pairs), cosines=np.linspace(0, 1, PAIRS))
    found = [difference(score_pairs(encoder, pairs), other, name) for name in ("wmean", "all")]
    assert found[0] == found[1]
    assert found[0].p is not None


def test_an_undefined_score_has_no_difference(encoder, pairs):
    score = score_pairs(encoder, pairs)
    constant = replace(score, cosines=np.full(PAIRS, 0.5))
    assert difference(score, constant) == Difference(None)
    assert difference(constant, score) == Difference(None)


@pytest.mark.parametrize("case", ["text", "order", "gold", "ungraded", "subsets", "fewer"])
def test_scores_of_different_pairs_have_no_difference(encoder, pairs, case):
    gold = list(pairs.gold)
    other = {
        "text": replace(pairs, first=[*pairs.first[:-1], "a dog"]),
        "order": replace(
            pairs, first=pairs.first[::-1], second=pairs.second[::-1], gold=gold[::-1]
        ),
        "gold": replace(pairs, gold=[*gold[:-1], 0.25]),
        "ungraded": replace(pairs, gold=[*gold[:-1], None]),
        "subsets": replace(pairs, subset=["one", "two"] * (len(pairs) // 2)),
        "fewer": replace(pairs, first=pairs.first[:9], second=pairs.second[:9], gold=gold[:9]),
    }[case]
    other = replace(other, source="elsewhere")
    one, two = score_pairs(encoder, pairs), score_pairs(encoder, other)
    with pytest.raises(InputError, match="pairs or subsets: stsb test from here, .*elsewh"):
        difference(one, two)
    again = replace(pairs, source="elsewhere", gold=[*gold])
    assert difference(one, score_pairs(encoder, again)).value == 0


def test_differences_are_by_task_and_aggregation_corrected_for_their_number(encoder, two):
    random, gold = np.random.default_rng(0), np.array(two.gold)
    noise = random.normal(size=(2, 200))
    subsets, plain = two, replace(two, task="plain", subset=())
    before, after = (
        Scores(
            scores={
                one.task: scored_as(encoder, one, gold + scale * noise[number])
                for number, one in enumerate([subsets, plain])
            },
            absent={},
        )
        for scale in (3.0, 2.7)
    )
    found = differences(before, after)
    assert list(found) == ["own, wmean", "own, mean", "own, all", "plain"]
    for name, one in found.items():
        task, _, aggregation = name.partition(", ")
        alone = difference(before.scores[task], after.scores[task], aggregation or "all")
        assert (one.value, one.low, one.high, one.p) == (
            alone.value,
            alone.low,
            alone.high,
            alone.p,
        )
    in_order = sorted(found.values(), key=lambda one: one.p)
    highest = 0.0
    for place, one in enumerate(in_order):
        highest = min(1, max(highest, (4 - place) * one.p))
        assert one.adjusted == pytest.approx(highest)
    assert in_order[0].adjusted > in_order[0].p > 0


def test_differences_take_only_tasks_that_both_have(encoder, pairs, scores):
    mine = {"stsb": scores.scores["stsb"], "qnli": scores.scores["qnli"]}
    other = {"stsb": scores.scores["stsb"], "sick-r": scores.scores["sick-r"]}
    found = differences(Scores(scores=mine, absent={}), Scores(scores=other, absent={}))
    assert list(found) == ["stsb"]
    assert differences(Scores(scores={}, absent={}), scores) == {}


def test_differences_hold_the_average_only_if_all_seven_ran(encoder, seven, scores):
    better = {
        task: replace(
            one,
            cosines=one.cosines
            + 0.02 * np.array([np.nan if g is None else g for g in one.graded.gold], dtype=float),
        )
        for task, one in scores.scores.items()
    }
    found = differences(scores, Scores(scores=better, absent={}))
    for name in ("wmean", "all"):
        one = found[f"average of the seven, {name}"]
        each = [found.get(f"{task}, {name}", found.get(task)) for task in STS_TASKS]
        assert one.value == pytest.approx(np.mean([d.value for d in each]), abs=1e-12)
        assert one.low < one.value < one.high
        assert one.high - one.low < np.mean([d.high - d.low for d in each])
        assert one.real
    del better["sick-r"]
    found = differences(scores, Scores(scores=better, absent={}))
    assert not any("average" in name for name in found)
