"""Models in half precision: calibrators keep their weights, compute in float32, and agree."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.base import clone

from bertflow import attach, calibrate, load, load_encoder
from bertflow.calibrators import Flow, Whitening
from bertflow.calibrators.storage import CALIBRATORS
from bertflow.models import to_modules

PORTABLE = {
    **{name: build() for name, build in CALIBRATORS.items()},
    "flow-tempered": Flow.tempered(),
}
EVERY = {**{name: (one, True) for name, one in PORTABLE.items()}}
EVERY["whitening, own module"] = (Whitening(8), False)
EVERY["flow-affine, own module"] = (Flow(coupling="affine"), False)
HALVED = {
    "half()": lambda model: model.half(),
    "bfloat16()": lambda model: model.bfloat16(),
    "to(float16)": lambda model: model.to(torch.float16),
}
every_calibrator = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def models(encoder, tiny_sentences):
    """Calibrated in float32, each with an encoder of its own."""

    @functools.cache
    def fitted(name):
        calibrator, portable = EVERY[name]
        return calibrate(encoder, tiny_sentences, calibrator, portable=portable)

    def made(name):
        return copy.deepcopy(fitted(name))

    return made


def calibrating(model):
    return [m for name, m in model._modules.items() if name.startswith("calibrator_")]


def cosines(vectors) -> np.ndarray:
    """Of every pair of rows."""
    vectors = np.asarray(vectors, dtype=np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def weights(model) -> list[torch.Tensor]:
    return [tensor.clone() for m in calibrating(model) for tensor in m.state_dict().values()]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "half()") for name in ("adaptive-whitening", "flow-tempered", *list(EVERY)[-2:])),
        *(("flow", how) for how in HALVED),
    ],
)
def test_cosines_agree_and_statistics_stay_float32(name, how, models, tiny_sentences, tmp_path):
    sentences = tiny_sentences[:60]
    model = models(name)
    full, before = model.encode(sentences), weights(model)
    learned = {k: v.clone() for k, v in model.calibrator._learned().items()}
    half = HALVED[how](model)
    assert half.dtype in (torch.float16, torch.bfloat16)
    # What the encoder itself gives in half precision is not the calibrator's doing.
    bare = SentenceTransformer(modules=list(half)[: len(half) - len(calibrating(half))])
    given = bare.encode(sentences, convert_to_tensor=True).double().cpu().numpy()
    exact = half.calibrator.transform(given)
    half.save_pretrained(str(tmp_path / "half"))
    loaded = load(tmp_path / "half", device="cpu")
    assert loaded.dtype == half.dtype
    for one in (half, loaded):
        vectors = one.encode(sentences)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(
            vectors, exact, rtol=0, atol=1e-5 * np.linalg.norm(exact, axis=1).max()
        )
        if how != "bfloat16()":  # The tiny encoder is random: its own bfloat16 is that far off.
            np.testing.assert_allclose(cosines(vectors), cosines(full), rtol=0, atol=1e-2)
        assert_equal(weights(one), before)
        for key, value in one.calibrator._learned().items():
            assert value.dtype == learned[key].dtype
            assert torch.equal(value, learned[key])


@every_calibrator
def test_an_encoder_loaded_in_half_precision_is_calibrated_in_float32(
    name, encoder, tiny_bert, tiny_sentences
):
    calibrator, portable = EVERY[name]
    calibrator = clone(calibrator).fit(encoder.encode(tiny_sentences))
    half = load_encoder(tiny_bert, dtype="float16", device="cpu")
    model = attach(half, calibrator, portable=portable)
    assert model.dtype == half.dtype == torch.float16
    assert {tensor.dtype for tensor in weights(model)} <= {torch.float32}
    given = half.encode(tiny_sentences[:20], convert_to_tensor=True).double().numpy()
    exact = model.calibrator.transform(given)
    np.testing.assert_allclose(
        model.encode(tiny_sentences[:20]),
        exact,
        rtol=0,
        atol=1e-5 * np.linalg.norm(exact, axis=1).max(),
    )


def test_calibrating_a_calibrated_model_leaves_the_first_calibrator_whole(models, tiny_sentences):
    first = models("whitening").half()
    before = weights(first)
    second = calibrate(first, tiny_sentences, Whitening(4))
    assert_equal(weights(first), before)
    assert_equal(weights(second)[: len(before)], before)


def test_weights_go_where_the_model_goes(models):
    model = models("flow").to("meta")
    assert {m.linear.weight.device.type for m in calibrating(model)} == {"meta"}


def test_doubled_and_back_it_is_what_it_was(models, tiny_sentences):
    model = models("flow-tempered")
    before, expected = weights(model), model.encode(tiny_sentences[:9])
    model.double()
    np.testing.assert_allclose(model.encode(tiny_sentences[:9]), expected, rtol=0, atol=1e-4)
    model.float()
    assert_equal(weights(model), before)


def test_what_needs_more_than_half_precision_holds_is_given(tiny_bert, tiny_sentences):
    # Divided by a deviation of 1e-6, what the encoder gives is beyond float16.
    encoder = load_encoder(tiny_bert, device="cpu")
    rows = 1e-6 * np.random.default_rng(0).normal(size=(50, 16))
    for portable in (True, False):
        model = attach(copy.deepcopy(encoder), Whitening().fit(rows), portable=portable).half()
        vectors = model.encode(tiny_sentences[:9])
        assert np.isfinite(vectors).all()
        assert np.abs(vectors).max() > 7e4


# Real vectors


def applied(modules, rows) -> np.ndarray:
    features = {"sentence_embedding": rows}
    with torch.no_grad():
        for module in modules:
            features = module(features)
    return features["sentence_embedding"].double().numpy()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "file", ["smollm2-135m_first-last-avg", "smollm2-135m_last2avg", "minilm-l6_mean_first2000"]
)
@pytest.mark.parametrize("name", PORTABLE)
def test_cosines_of_real_vectors_agree_to_a_hundredth(name, file, shared_data):
    raw = np.load(shared_data / f"embeddings/{file}.npy", mmap_mode="r")
    rows = np.array(raw[:4000], dtype=np.float32)
    calibrator = PORTABLE[name].fit(rows)
    expected = cosines(calibrator.transform(rows[:500].astype(np.float64)))
    modules = to_modules(calibrator, rows.shape[1])
    for dtype in (torch.float16, torch.bfloat16):
        given = torch.from_numpy(rows[:500]).to(dtype)
        # Computed in float32, as our models do: what is left is what the vectors have lost.
        found = cosines(applied(modules, given.float()))
        # bfloat16 has three bits less, and SmolLM2's last states large means: 0.027 at most.
        tolerance = 1e-2 if dtype == torch.float16 else 3e-2
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
        if dtype == torch.float16:  # As plain sentence-transformers does.
            whole = [copy.deepcopy(module).to(dtype) for module in modules]
            np.testing.assert_allclose(cosines(applied(whole, given)), expected, rtol=0, atol=1e-2)
