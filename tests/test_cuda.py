"""The same code on a GPU: fit, transform, encode; skipped, with the reason, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertflow import AllButTheTop, Flow, Standardization, Whitening, calibrate, load_encoder
from bertflow.encoders import encode_distinct, resolved_precision
from bertflow.errors import TrainingError
from test_encoding import smallest_cosine

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device on this machine"
)
CALIBRATORS = [Flow, Whitening, Standardization, AllButTheTop]


def rows(count: int = 4000, width: int = 48) -> np.ndarray:
    random = np.random.default_rng(0)
    found = random.standard_normal((count, width)) @ random.standard_normal((width, width)) + 3
    return found.astype(np.float32)


@pytest.mark.parametrize("kind", CALIBRATORS)
def test_tensors_on_the_gpu_stay_there_and_come_back(kind):
    x = torch.from_numpy(rows()).cuda()
    calibrator = kind().fit(x.cpu().numpy())
    z = calibrator.transform(x)
    assert z.device == x.device and z.dtype == x.dtype
    expected = calibrator.transform(x.cpu().numpy())
    np.testing.assert_allclose(z.cpu().numpy(), expected, rtol=0, atol=2e-3)
    if kind is not AllButTheTop:
        torch.testing.assert_close(calibrator.inverse_transform(z), x, rtol=0, atol=5e-2)


@pytest.mark.parametrize("permutation", ["reverse", "random", "linear"])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_flow_fitted_there_is_the_one_fitted_here(permutation, schedule):
    x = rows()
    design = dict(permutation=permutation, schedule=schedule, epochs=2, random_state=0)
    here, there = (Flow(**design, device=device).fit(x) for device in ("cpu", "cuda"))
    assert there.loss_curve_.shape == here.loss_curve_.shape
    np.testing.assert_allclose(there.loss_curve_, here.loss_curve_, rtol=0, atol=2e-2)
    assert there.score(x) == pytest.approx(here.score(x), abs=1e-2)
    assert all(p.device.type == "cpu" for p in there.flow_.parameters())


def test_every_step_is_reported_in_order():
    steps: list[int] = []
    Flow(device="cuda").fit(rows(), progress=lambda done, of, loss: steps.append(done))
    assert steps == list(range(1, len(steps) + 1))


def test_a_step_that_is_not_finite_is_named():
    with pytest.raises(TrainingError, match=r"^step \d+ of \d+ is not finite"):
        Flow(device="cuda", learning_rate=1e12, max_grad_norm=None).fit(rows())


@pytest.mark.parametrize("precision", ["float32", "mixed", "fast", "auto"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_encoding_is_close_to_the_processors(
    kind, precision, tiny_bert, tiny_llama, tiny_sentences
):
    folder = tiny_bert if kind == "bert" else tiny_llama
    here, there = (load_encoder(folder, device=device) for device in ("cpu", "cuda"))
    expected = encode_distinct(here, tiny_sentences)
    found = encode_distinct(there, tiny_sentences, precision=precision)
    least = 0.9999 if resolved_precision(precision, there) == "float32" else 0.98
    assert smallest_cosine(found, expected) > least


@pytest.mark.parametrize("portable", [True, False])
def test_a_calibrated_model_lives_there(portable, tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cuda")
    model = calibrate(encoder, tiny_sentences, Flow(epochs=1), portable=portable)
    assert model.device.type == "cuda"
    found = model.encode(tiny_sentences[:20], show_progress_bar=False)
    raw = encoder.encode(tiny_sentences[:20], show_progress_bar=False)
    np.testing.assert_allclose(found, model.calibrator.transform(raw), rtol=0, atol=5e-2)
