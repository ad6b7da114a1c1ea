"""The same code on a GPU: fit, transform, encode; skipped, with the reason, where there is none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from bertflow import AllButTheTop, Flow, Standardization, Whitening, calibrate, load_encoder
from bertflow.calibrators import training
from bertflow.encoders import resolved_precision
from bertflow.encoders.encoding import Encoding
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


@pytest.mark.parametrize("kind", CALIBRATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_rows_on_the_gpu_are_fitted_as_they_are_here(kind, dtype):
    x = torch.from_numpy(rows()).to(dtype)
    here, there = kind().fit(x), kind().fit(x.cuda())
    np.testing.assert_allclose(there.mean_, here.mean_, rtol=1e-9, atol=1e-12)
    if kind is not Flow:  # Its parameters are trained in float32, and differ more and more.
        z, expected = (c.transform(x.double()) for c in (there, here))
        torch.testing.assert_close(z, expected, rtol=1e-6, atol=1e-6)


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


DESIGNS = {
    "usual": {},
    "learned matrices": {"permutation": "linear"},
    "affine": {"coupling": "affine"},
    "everything else": {
        "residual": False,
        "weight_decay": 0.01,
        "bias_correction": True,
        "max_grad_norm": None,
        "schedule": "linear",
        "batch_size": 48,
    },
}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_recorded_steps_are_the_steps_themselves(design, monkeypatch, caplog):
    def flow() -> Flow:
        return Flow(**design, random_state=0, epochs=3, device="cuda")

    x = rows(1_000)  # The last batch of an epoch is smaller.
    recorded = flow().fit(x)
    assert not [r for r in caplog.records if "not recorded" in r.getMessage()]
    monkeypatch.setattr(training, "recorded", lambda compute, device: compute)
    plain = flow().fit(x)
    np.testing.assert_allclose(recorded.loss_curve_, plain.loss_curve_, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        recorded.transform(torch.from_numpy(x)),
        plain.transform(torch.from_numpy(x)),
        rtol=0,
        atol=1e-3,
    )


def test_where_nothing_can_be_recorded_steps_are_made_all_the_same(monkeypatch, caplog):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no graphs here")

    recorded = Flow(random_state=0, device="cuda").fit(rows())
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    plain = Flow(random_state=0, device="cuda").fit(rows())
    assert [r for r in caplog.records if "no graphs here" in r.getMessage()]
    np.testing.assert_allclose(recorded.loss_curve_, plain.loss_curve_, rtol=0, atol=1e-5)


def test_other_threads_may_use_the_device_while_steps_are_recorded(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cuda")
    expected = Encoding(encoder)(tiny_sentences)
    alone = Flow(random_state=0, device="cuda").fit(rows())
    with ThreadPoolExecutor(3) as pool:
        encoded = [pool.submit(Encoding(encoder), tiny_sentences) for _ in range(40)]
        fitted = [Flow(random_state=0, device="cuda").fit(rows()) for _ in range(3)]
        for one in encoded:
            assert smallest_cosine(one.result(), expected) > 0.99999
    for flow in fitted:
        assert np.array_equal(flow.loss_curve_, alone.loss_curve_)


def test_the_same_seed_gives_the_same_bits():
    a, b = (Flow(random_state=3, device="cuda").fit(rows()) for _ in range(2))
    assert np.array_equal(a.loss_curve_, b.loss_curve_)
    assert np.array_equal(a.transform(rows()), b.transform(rows()))


def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("bertflow.calibrators.training.SAVED_SECONDS", 0.0)
    whole = Flow(random_state=0, epochs=3, device="cuda").fit(rows())

    def stop(done: int, of: int, loss: float) -> None:
        if done == 200:
            raise KeyboardInterrupt

    flow = Flow(random_state=0, epochs=3, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        flow.fit(rows(), progress=stop, checkpoint=tmp_path / "kept")
    resumed = flow.fit(rows(), checkpoint=tmp_path / "kept")
    assert np.array_equal(resumed.loss_curve_, whole.loss_curve_)
    assert np.array_equal(resumed.transform(rows()), whole.transform(rows()))


def test_rows_of_a_file_are_fitted_there_too(tmp_path):
    np.save(tmp_path / "rows.npy", rows())
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    a, b = (Flow(random_state=0, device="cuda").fit(x) for x in (mapped, rows()))
    assert np.array_equal(a.loss_curve_, b.loss_curve_)


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
    expected = Encoding(here)(tiny_sentences)
    found = Encoding(there, precision=precision)(tiny_sentences)
    least = 0.9999 if resolved_precision(precision, there) == "float32" else 0.98
    assert smallest_cosine(found, expected) > least


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_padding_changes_no_vector(kind, tiny_bert, tiny_llama, tiny_sentences):
    folder = tiny_bert if kind == "bert" else tiny_llama
    here, there = (load_encoder(folder, device=device) for device in ("cpu", "cuda"))
    texts = [" ".join(tiny_sentences[n : n + 1 + n % 9]) for n in range(len(tiny_sentences))]
    found = Encoding(there, precision="float32")(texts)
    assert smallest_cosine(found, Encoding(here)(texts)) > 0.99999


@pytest.mark.parametrize("portable", [True, False])
def test_a_calibrated_model_lives_there(portable, tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cuda")
    model = calibrate(encoder, tiny_sentences, Flow(epochs=1), portable=portable)
    assert model.device.type == "cuda"
    found = model.encode(tiny_sentences[:20], show_progress_bar=False)
    raw = encoder.encode(tiny_sentences[:20], show_progress_bar=False)
    np.testing.assert_allclose(found, model.calibrator.transform(raw), rtol=0, atol=5e-2)
