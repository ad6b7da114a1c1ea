"""Encoders in other processes, also after they have encoded."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from bertflow import attach, calibrate, load, load_encoder
from bertflow.calibrators import Standardization
from bertflow.encoders import load_layers, load_poolings

SENTENCES = ["the dog runs .", "a man plays the guitar on the street .", "bread"]
OPENED = {
    "averaging": load_encoder,
    "cut": lambda folder, **how: load_encoder(folder, pooling="layers:1", **how),
    "last": lambda folder, **how: load_encoder(folder, pooling="mean", **how),
    "poolings": lambda folder, **how: load_poolings(folder, ["mean", "last2avg"], **how),
    "layers": lambda folder, **how: load_layers(folder, **how)[0],
}


@pytest.mark.parametrize("model", ["bert", "llama"])
@pytest.mark.parametrize("kind", OPENED)
def test_a_pickled_encoder_gives_the_same_vectors(kind, model, request):
    for before in ["loading", "encoding"]:
        encoder = OPENED[kind](request.getfixturevalue(f"tiny_{model}"), device="cpu")
        if before == "encoding":
            encoder.encode(SENTENCES)
        again = pickle.loads(pickle.dumps(encoder))
        expected = encoder.encode(SENTENCES)
        np.testing.assert_array_equal(again.encode(SENTENCES), expected)
        for one in [copy.deepcopy(encoder), encoder]:
            np.testing.assert_array_equal(one.encode(SENTENCES), expected)


@pytest.mark.parametrize("portable", [True, False])
def test_a_pickled_calibrated_model_gives_the_same_vectors(
    portable, tiny_bert, tiny_sentences, tmp_path
):
    encoder = load_encoder(tiny_bert, device="cpu")
    model = calibrate(encoder, tiny_sentences, Standardization(), portable=portable)
    model.save_pretrained(str(tmp_path / "model"))
    expected = model.encode(SENTENCES)
    loaded = load(tmp_path / "model", device="cpu")
    for one in [model, attach(encoder, model.calibrator, portable=portable), loaded]:
        one.encode(SENTENCES)
        again = pickle.loads(pickle.dumps(one))
        np.testing.assert_array_equal(again.encode(SENTENCES), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_two_processes_give_the_rows_of_one_in_order(kind, request, tiny_sentences):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"), device="cpu")
    texts = [f"{tiny_sentences[i % 300]} {tiny_sentences[i // 4]}" for i in range(1003)]
    alone = encoder.encode(texts)
    pool = encoder.start_multi_process_pool(["cpu", "cpu"])
    try:
        together = encoder.encode(texts, pool=pool, chunk_size=100)
    finally:
        encoder.stop_multi_process_pool(pool)
    np.testing.assert_allclose(together, alone, atol=1e-5)
