"""The portable form: built-in modules that give what the calibrator gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from bertflow import calibrate, load_encoder
from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Flow,
    SoftStandardization,
    Standardization,
    Whitening,
)
from bertflow.calibrators.storage import CALIBRATORS as REGISTERED
from bertflow.errors import ModelError
from bertflow.models import to_modules

CALIBRATORS = {
    "adaptive whitening": AdaptiveWhitening(),
    "standardization": Standardization(),
    "soft standardization": SoftStandardization(),
    "all-but-the-top": AllButTheTop(3),
    "standardized all-but-the-top": AllButTheTop(3, standardize=True),
    "whitening": Whitening(),
    "whitening to 20": Whitening(20),
    "soft whitening": Whitening(power=0.5, shrinkage=0.1),
    "flow": Flow(),
    "released flow": Flow.released(),
    "one level": Flow(levels=1, depth=1, width=5),
    "five levels": Flow(levels=5, depth=2, residual=False),
    "linear permutation": Flow(permutation="linear", epochs=0.2),
    "principal axes": Flow(axes="principal"),
    "part of the mean left": Flow(centring=0.9),
    "tempered flow": Flow.tempered(),
}


FOREIGN = """
import sys, json
sys.modules["bertflow"] = None  # as where it is not installed
import numpy as np, sentence_transformers, torch
folders, sentences, out, dtype = json.load(sys.stdin)
kind = getattr(torch, dtype)
for folder in folders:
    model = sentence_transformers.SentenceTransformer(
        folder, device="cpu", model_kwargs={"dtype": kind}
    )
    assert {p.dtype for p in model.parameters()} == {kind}
    np.save(out + "/" + folder.split("/")[-1], model.encode(sentences).astype("float32"))
print(sentence_transformers.__version__)
"""


def applied(modules, rows):
    features = {"sentence_embedding": torch.from_numpy(rows)}
    with torch.no_grad():
        for module in modules:
            features = module(features)
    return features["sentence_embedding"].numpy()


def relative(got, expected):
    return (np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)).max()


@pytest.fixture(scope="module")
def real_vectors(shared_data):
    rows = np.load(shared_data / "embeddings/minilm-l6_mean_first2000.npy")
    last = np.load(shared_data / "embeddings/smollm2-135m_last2avg.npy", mmap_mode="r")
    return {"minilm": rows, "smollm2": np.array(last[:2000], dtype=np.float32)}


@pytest.mark.parametrize("name", CALIBRATORS)
def test_modules_give_what_the_calibrator_gives_on_real_vectors(name, real_vectors):
    usual = name in ("adaptive whitening", "whitening", "flow", "tempered flow")
    for encoder in ["minilm", "smollm2"] if usual else ["smollm2"]:
        rows = real_vectors[encoder]
        calibrator = CALIBRATORS[name].fit(rows)
        modules = to_modules(calibrator, rows.shape[1])
        exact = calibrator.transform(rows.astype(np.float64))
        # A learned matrix is less well conditioned, in the calibrator's own float32 too.
        assert relative(applied(modules, rows), exact) < (1e-4 if "linear" in name else 1e-5)
        assert modules[-1].get_embedding_dimension() == exact.shape[1]


@pytest.mark.parametrize("build", [Flow, Flow.tempered])
def test_every_width_has_a_portable_form(build, rng):
    for width in [2, 3, 5, 6, 7, 31]:
        rows = (rng.normal(size=(200, width)) * 3 + 5).astype(np.float32)
        flow = build(levels=3, epochs=3).fit(rows)
        got = applied(to_modules(flow, width), rows)
        assert relative(got, flow.transform(rows.astype(np.float64))) < 1e-5


@pytest.mark.parametrize("build", [Flow, Flow.tempered])
def test_far_outliers_pass_as_they_do_in_the_calibrator(build, rng):
    rows = rng.normal(size=(300, 8)).astype(np.float32)
    flow = build(epochs=3).fit(rows)
    far = 1e4 * rng.normal(size=(20, 8)).astype(np.float32)
    exact = flow.transform(far.astype(np.float64))
    assert relative(applied(to_modules(flow, 8), far), exact) < 1e-5


@pytest.mark.parametrize("build", [Whitening, Flow, Flow.tempered])
def test_dimensions_beyond_the_calibrators_are_cut(build, rng):
    rows = rng.normal(size=(100, 12)).astype(np.float32)
    calibrator = build().fit(rows[:, :8])
    got = applied(to_modules(calibrator, 12), rows)
    np.testing.assert_allclose(got, calibrator.transform(rows[:, :8]), atol=1e-5)


def test_default_flow_at_768_dimensions_stays_below_80_megabytes(rng):
    flow = Flow(epochs=0.1).fit(rng.normal(size=(200, 768)).astype(np.float32))
    modules = to_modules(flow, 768)
    assert sum(4 * p.numel() for module in modules for p in module.parameters()) < 80e6


def test_only_activations_that_load_without_trust_are_used(rng):
    flow = Flow(epochs=0.1).fit(rng.normal(size=(50, 8)))
    names = {type(m.activation_function).__module__.split(".")[0] for m in to_modules(flow, 8)}
    assert names == {"torch"}


def test_unit_length_is_one_built_in_module(rng):
    flow = Flow.tempered(epochs=0.1).fit(rng.normal(size=(50, 8)))
    plain = [type(m) for m in to_modules(Flow(epochs=0.1).fit(rng.normal(size=(50, 8))), 8)]
    assert [type(m) for m in to_modules(flow, 8)] == [Normalize, *plain]
    assert [type(m) for m in to_modules(flow, 9)] == [Dense, Normalize, *plain]


def test_affine_coupling_is_refused_with_the_reason(rng):
    flow = Flow(coupling="affine").fit(rng.normal(size=(50, 8)))
    with pytest.raises(ModelError, match="multiplies one half by a function of the other"):
        to_modules(flow, 8)


# Where there is no bertflow


@pytest.fixture(scope="module")
def saved(tiny_bert, tiny_sentences, tmp_path_factory):
    """Models of every calibrator, moved after they were saved, and the vectors they gave."""
    home = tmp_path_factory.mktemp("saved")
    encoder = load_encoder(tiny_bert, device="cpu")
    vectors = {}
    for number, (name, calibrator) in enumerate(CALIBRATORS.items()):
        if name == "whitening to 20":
            name, calibrator = "whitening to 5", Whitening(5)
        model = calibrate(encoder, tiny_sentences, calibrator)
        folder = home / f"{number} {name}"
        model.save_pretrained(str(home / "first"))
        (home / "first").rename(folder)
        vectors[folder] = model.encode(tiny_sentences[:50])
    return vectors


def others() -> list[str]:
    """The versions of sentence-transformers that .ci/run has put aside."""
    aside = os.environ.get("BERTFLOW_OTHER_VERSIONS")
    return sorted(map(str, Path(aside).iterdir())) if aside else []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=Path(path).name or "installed", marks=[pytest.mark.nightly][: bool(path)]
        )
        for path in others()
    ],
)
def test_every_calibrator_gives_the_same_where_there_is_no_bertflow(
    path, dtype, saved, tiny_sentences, tmp_path
):
    asked = [[str(folder) for folder in saved], tiny_sentences[:50], str(tmp_path), dtype]
    ran = subprocess.run(
        [sys.executable, "-c", FOREIGN],
        input=json.dumps(asked),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    if path:
        assert ran.stdout.split()[-1] == Path(path).name
    for folder, expected in saved.items():
        found = np.load(tmp_path / f"{folder.name}.npy")
        if dtype == "float32":
            tolerance = 1e-4 if "linear" in folder.name else 1e-5
            assert relative(found, expected) < tolerance, folder.name
        else:
            rounded, exact = (
                (unit := rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ unit.T
                for rows in (found, expected)
            )
            np.testing.assert_allclose(rounded, exact, rtol=0, atol=1e-2, err_msg=folder.name)


def test_every_registered_calibrator_is_looked_at():
    assert {type(calibrator) for calibrator in CALIBRATORS.values()} >= set(REGISTERED.values())


def test_numbers_that_float32_cannot_hold_are_refused(rng):
    for calibrator in (Whitening(), Standardization(), Flow(epochs=0.1)):
        calibrator.fit(1e-40 * rng.normal(size=(50, 8)))
        with pytest.raises(ModelError, match=r"too far from 1 for float32.*portable=False"):
            to_modules(calibrator, 8)
