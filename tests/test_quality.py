"""What calibration is worth on real vectors: the figures that the README and the notes quote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertflow import Flow, Standardization, Whitening, calibrate, evaluate, load_encoder
from bertflow.data import read_task
from bertflow.demo import default_encoder
from bertflow.evaluation import correlate, difference, paired_cosine

POOLINGS = ("first-last-avg", "last2avg")


@pytest.fixture(scope="module")
def stsb(shared_data):
    """Stored vectors by pooling, the rows to fit on, and a function that scores vectors."""
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text("utf-8"))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    splits = [read_task("stsb", shared_data, split) for split in ("train", "dev", "test")]
    fitted = [row_of[s] for pairs in splits for s in (*pairs.first, *pairs.second)]
    test = splits[-1]
    first, second = ([row_of[s] for s in side] for side in (test.first, test.second))
    vectors = {
        pooling: np.load(shared_data / f"embeddings/smollm2-135m_{pooling}.npy").astype(np.float32)
        for pooling in POOLINGS
    }

    def score(z):
        return 100 * correlate(paired_cosine(z[first], z[second]), np.array(test.gold)).spearman

    assert len(fitted) == 17256
    return vectors, fitted, score


@pytest.mark.parametrize(
    ("calibrator", "expected", "tolerance"),
    [
        (None, (51.47, 19.94), 0.05),
        (Standardization(), (59.8, 47.6), 0.3),
        (Whitening(), (66.7, 58.9), 0.3),
    ],
)
def test_linear_calibrators_reach_the_reference_on_smollm2(stsb, calibrator, expected, tolerance):
    vectors, fitted, score = stsb
    for pooling, reference in zip(POOLINGS, expected, strict=True):
        rows = vectors[pooling]
        z = rows if calibrator is None else calibrator.fit(rows[fitted]).transform(rows)
        assert score(z) == pytest.approx(reference, abs=tolerance)


@pytest.mark.nightly
def test_flow_reaches_the_reference_whatever_the_seed(stsb):
    vectors, fitted, score = stsb
    for pooling, least in zip(POOLINGS, (66.3, 57.5), strict=True):
        rows = vectors[pooling]
        flows = [Flow(random_state=seed).fit(rows[fitted]) for seed in range(5)]
        scores = [score(flow.transform(rows)) for flow in flows]
        assert np.mean(scores) >= least
        assert np.ptp(scores) <= 0.4


@pytest.mark.nightly
def test_smollm2_at_block_1_gains_ten_points_end_to_end(shared_data):
    encoder = load_encoder(default_encoder(None)[0], pooling="layers:1")
    splits = [read_task("stsb", shared_data, split) for split in ("train", "dev", "test")]
    sentences = [s for pairs in splits for s in (*pairs.first, *pairs.second)]
    before = evaluate(encoder, data=shared_data)
    after = evaluate(calibrate(encoder, sentences), data=shared_data)
    assert before.all.value == pytest.approx(0.584, abs=0.002)
    assert after.all.value >= 0.68
    gain = difference(before, after)
    assert gain.real
    assert gain.low > 0.07
