"""Evaluation: the score is the correlation by hand, and carries all it depends on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr, spearmanr

import bertflow
from bertflow.calibrators import AllButTheTop, Flow, Standardization, Whitening
from bertflow.data import Pairs
from bertflow.encoders import Embedded, calibrate, load_encoder
from bertflow.errors import InputError
from bertflow.evaluation import TASKS, evaluate, score_pairs, tasks

PAIRS = 40
CALIBRATORS = {
    "flow": Flow(epochs=1, random_state=3),
    "whitening": Whitening(dim=4),
    "standardization": Standardization(),
    "all-but-the-top": AllButTheTop(2),
}
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def pairs(tiny_sentences):
    first, second = tiny_sentences[:PAIRS], tiny_sentences[PAIRS : 2 * PAIRS]
    gold = np.random.default_rng(1).integers(0, 11, size=PAIRS) / 2
    return Pairs("stsb", "test", first, second, gold.tolist(), "here")


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


def by_hand(encoder, pairs: Pairs, used) -> tuple[float, float]:
    """Spearman's and Pearson's, every sentence encoded alone."""
    similarity = [
        1 - cosine(*(encoder.encode([text])[0].astype(np.float64) for text in texts))
        for texts in zip(pairs.first, pairs.second, strict=True)
    ]
    chosen = np.array(similarity)[used], np.array(pairs.gold, dtype=float)[used]
    return spearmanr(*chosen).statistic, pearsonr(*chosen).statistic


def numbers(value):
    """Every number in a nest of dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, float) else []


def strict_json(score) -> dict:
    """Through JSON and back; NaN and infinity are refused."""
    return json.loads(json.dumps(score.to_dict(), allow_nan=False))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_score_is_the_correlation_by_hand(encoder, pairs, tmp_path, split):
    score = evaluate(encoder, "stsb", data=stsb(tmp_path, pairs, split), split=split)
    spearman, pearson = by_hand(encoder, pairs, slice(None))
    # Ranks may only swap where two similarities agree to float32's last digits.
    assert score.spearman == pytest.approx(spearman, abs=1e-3)
    assert score.pearson == pytest.approx(pearson, abs=1e-5)
    assert (score.task, score.split, score.aggregation) == ("stsb", split, "all")
    assert (score.pairs, score.scored, score.undefined) == (PAIRS, PAIRS, None)
    assert sum(score.skipped.values()) == 0
    assert score.data == str(tmp_path / "STSBenchmark" / f"sts-{split}.csv")


def test_a_blank_gold_score_is_skipped_and_counted(encoder, pairs, tmp_path):
    gold = [None if i in (0, 7, 8) else score for i, score in enumerate(pairs.gold)]
    given = replace(pairs, gold=gold)
    score = evaluate(encoder, data=stsb(tmp_path, given))
    used = np.array([score is not None for score in gold])
    spearman, pearson = by_hand(encoder, given, used)
    assert (score.pairs, score.scored) == (PAIRS, PAIRS - 3)
    assert score.skipped == {"no gold score": 3, "zero vector": 0}
    assert score.spearman == pytest.approx(spearman, abs=1e-3)
    assert score.pearson == pytest.approx(pearson, abs=1e-5)


def test_first_and_third_of_four_are_scored(encoder, pairs, tmp_path):
    four = Pairs("", "", pairs.first[:4], pairs.second[:4], [5.0, None, 1.0, None], "")
    score = evaluate(encoder, data=stsb(tmp_path, four))
    assert (score.pairs, score.scored, score.skipped["no gold score"]) == (4, 2, 2)
    assert abs(score.spearman) == pytest.approx(1.0)


def test_a_pair_with_a_zero_vector_is_skipped_and_counted(encoder, monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    vectors[[1, 9]] = 0.0  # The second pair's first side, and the fourth pair's second.
    pairs = Pairs("t", "s", ["a"] * 6, ["b"] * 6, [0.0, 5.0, 1.0, None, 3.0, 2.0], "")
    embedded = Embedded(vectors, np.arange(12), cut=0)
    monkeypatch.setattr(tasks, "embed", lambda *args, **kwargs: embedded)
    score = score_pairs(encoder, pairs)
    used = [0, 2, 4, 5]
    similarity = [1 - cosine(*vectors[[i, i + 6]].astype(np.float64)) for i in used]
    assert (score.scored, score.skipped) == (4, {"no gold score": 1, "zero vector": 1})
    assert score.spearman == pytest.approx(spearmanr(similarity, [0, 1, 3, 2]).statistic)


@pytest.mark.parametrize(
    ("gold", "reason"),
    [([None, None, 3.0], "1 scored pairs"), ([None] * 3, "0 scored"), ([2.0] * 3, "gold scores")],
)
def test_an_undefined_score_says_why_and_is_no_number(encoder, pairs, gold, reason):
    score = score_pairs(encoder, Pairs("t", "s", pairs.first[:3], pairs.second[:3], gold, ""))
    assert (score.spearman, score.pearson) == (None, None)
    assert reason in score.undefined
    assert strict_json(score)["spearman"] is None


def test_the_score_depends_on_neither_order_nor_batch(encoder, pairs):
    order = np.random.default_rng(2).permutation(PAIRS)
    shuffled = replace(
        pairs,
        first=[pairs.second[i] for i in order],
        second=[pairs.first[i] for i in order],
        gold=[pairs.gold[i] for i in order],
    )
    once, again = score_pairs(encoder, pairs), score_pairs(encoder, shuffled, batch_size=3)
    assert once.spearman == pytest.approx(again.spearman, abs=1e-3)
    assert once.pearson == pytest.approx(again.pearson, abs=1e-5)


def test_progress_counts_distinct_sentences(encoder, pairs):
    seen = []
    score_pairs(encoder, pairs, progress=lambda done, total: seen.append((done, total)))
    distinct = len({*pairs.first, *pairs.second})
    assert seen[-1] == (distinct, distinct)


@pytest.mark.parametrize("task", ["sts-b", "", "STSB", "sick"])
def test_an_unknown_task_is_refused_and_the_known_are_listed(encoder, task, tmp_path):
    with pytest.raises(InputError, match=f"unknown task '{task}'.*{', '.join(TASKS)}"):
        evaluate(encoder, task, data=tmp_path)


@pytest.mark.parametrize("split", ["validation", "", "Test"])
def test_an_unknown_split_is_refused_and_the_known_are_listed(encoder, split, tmp_path):
    with pytest.raises(InputError, match=f"unknown split '{split}'.*train, dev, test"):
        evaluate(encoder, data=tmp_path, split=split)


def test_data_that_are_not_there_are_refused_before_encoding(tmp_path):
    with pytest.raises(InputError, match=r"sts-test\.csv"):
        evaluate(None, data=tmp_path)


def test_the_environment_says_where_the_data_are(encoder, pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTFLOW_DATA", str(stsb(tmp_path, pairs)))
    assert evaluate(encoder).scored == PAIRS


def test_a_bare_score_carries_its_encoder(encoder, pairs):
    score = score_pairs(encoder, pairs)
    assert (score.calibrator, score.fitted_on) == (None, None)
    assert score.encoder["layers"] == [1, 3]
    assert score.encoder["pooling"] == "mean"
    assert score.encoder["max_length"] == 32
    assert score.encoder["width"] == 16
    assert score.versions["bertflow"] == bertflow.__version__
    assert score.time.endswith("+00:00")


@every_calibrator
def test_a_calibrated_score_carries_its_calibrator(encoder, pairs, tiny_sentences, name):
    calibrator = CALIBRATORS[name]
    model = calibrate(encoder, tiny_sentences, calibrator, provenance={"corpus": ["c.txt"]})
    score = score_pairs(model, pairs)
    assert score.calibrator == {"name": name, **calibrator.get_params()}
    assert score.fitted_on["corpus"] == ["c.txt"]
    assert score.fitted_on["sentences"] == 300
    assert score.fitted_on["encoder"]["layers"] == [1, 3]
    vectors = [model.calibrator.transform(encoder.encode(side)) for side in map(list, sides(pairs))]
    similarity = [1 - cosine(a, b) for a, b in zip(*vectors, strict=True)]
    assert score.pearson == pytest.approx(pearsonr(similarity, pairs.gold).statistic, abs=1e-4)


def sides(pairs: Pairs):
    return pairs.first, pairs.second


@every_calibrator
def test_a_score_survives_json(encoder, pairs, tiny_sentences, name):
    score = score_pairs(calibrate(encoder, tiny_sentences, CALIBRATORS[name]), pairs)
    read = strict_json(score)
    assert read["spearman"] == score.spearman
    assert read["calibrator"]["name"] == name
    assert set(read) == set(score.__dataclass_fields__)
    assert_allclose(numbers(read), numbers(score.to_dict()), rtol=0)
