"""A calibrator or model learns from more rows: as one fit on all of them, without the old ones."""

from __future__ import annotations

import copy
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from sentence_transformers import SentenceTransformer

from bertflow import (
    AdaptiveWhitening,
    AllButTheTop,
    Flow,
    SoftStandardization,
    Standardization,
    Whitening,
    calibrate,
    drift,
    load,
    load_calibrator,
    save_calibrator,
    update,
)
from bertflow.calibrators.moments import moments_of
from bertflow.calibrators.updates import cosine_change
from bertflow.cli.main import run
from bertflow.errors import FewRowsWarning, InputError, ModelError
from bertflow.models import save_model
from bertflow.scale import fit_folder

LINEAR = {
    "standardization": Standardization,
    "soft-standardization": SoftStandardization,
    "all-but-the-top": AllButTheTop,
    "all-but-the-top-standardized": lambda: AllButTheTop(2, standardize=True),
    "whitening": Whitening,
    "whitening-5": lambda: Whitening(5),
    "search-whitening": lambda: Whitening(power="auto", shrinkage="rows"),
    "adaptive-whitening": AdaptiveWhitening,
}
every_linear = pytest.mark.parametrize("build", LINEAR.values(), ids=LINEAR)
SAVED = Path(__file__).parent / "fixtures/saved/0.1.0.tar.xz"


@pytest.fixture
def x(rng):
    """900 x 64 correlated rows away from zero, no two of them alike."""
    return rng.normal(size=(900, 64)) @ rng.normal(size=(64, 64)) + 3 * rng.normal(size=64)


def parts(x: np.ndarray, seed: int) -> list[np.ndarray]:
    """The rows in another order and in pieces, one of a single row."""
    random = np.random.default_rng(seed)
    cuts = [1, *np.sort(random.choice(np.arange(2, len(x)), 5, replace=False))]
    return np.split(x[random.permutation(len(x))], cuts)


# Linear maps


@every_linear
@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_and_parts_it_is_one_fit_on_all_rows(build, seed, x):
    whole, several = build().fit(x), build()
    for part in parts(x, seed):
        several.partial_fit(part)
    expected = whole.transform(x)
    np.testing.assert_allclose(
        several.transform(x), expected, rtol=0, atol=1e-10 * np.abs(expected).max()
    )
    assert several.n_samples_ == 900


def test_a_fit_goes_on_and_another_one_forgets(x):
    went_on = Whitening().fit(x[:400]).partial_fit(x[400:])
    np.testing.assert_allclose(went_on.transform(x), Whitening().fit_transform(x), rtol=1e-7)
    np.testing.assert_array_equal(
        went_on.fit(x[:400]).transform(x), Whitening().fit(x[:400]).transform(x)
    )


def test_rows_that_do_not_differ_leave_it_not_fitted_until_others_come(x):
    calibrator = Standardization().partial_fit(x[:1]).partial_fit(x[[0, 0]])
    with pytest.raises(Exception, match="not fitted"):
        calibrator.transform(x)
    expected = Standardization().fit(x[[0, 0, 0, 1]]).transform(x)
    np.testing.assert_allclose(
        calibrator.partial_fit(x[1:2]).transform(x), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("kind", [np.float32, torch.from_numpy], ids=["float32", "tensor"])
def test_any_container_and_type_will_do(kind, x):
    rows = kind(x)
    found = Whitening().partial_fit(rows[:300]).partial_fit(rows[300:])
    np.testing.assert_allclose(found.components_, Whitening().fit(rows).components_, atol=1e-9)


@pytest.mark.parametrize("bad", ["nan", "narrow", "empty"])
def test_rows_that_are_refused_change_nothing(bad, x):
    calibrator = Whitening().fit(x)
    before = calibrator.transform(x)
    rows = {"nan": np.where(x == x[3, 3], np.nan, x), "narrow": x[:, :9], "empty": x[:0]}[bad]
    with pytest.raises(InputError):
        calibrator.partial_fit(rows)
    np.testing.assert_array_equal(calibrator.transform(x), before)
    assert calibrator.n_samples_ == 900


def test_few_rows_are_warned_of_once_since_more_may_come(x):
    with pytest.warns(FewRowsWarning):
        calibrator = Whitening().partial_fit(x[:99])
    calibrator.partial_fit(x[99:200])  # A warning would be an error here.


@pytest.mark.parametrize("build", [Standardization, Whitening, AdaptiveWhitening, Flow])
def test_a_saved_calibrator_goes_on_as_if_it_had_not_been_saved(build, x, tmp_path):
    calibrator = build().fit(x[:600])
    save_calibrator(calibrator, tmp_path / "c")
    loaded = load_calibrator(tmp_path / "c").partial_fit(x[600:])
    np.testing.assert_array_equal(loaded.transform(x), calibrator.partial_fit(x[600:]).transform(x))


@pytest.mark.parametrize("build", [Standardization, SoftStandardization, Flow, Whitening])
def test_a_few_far_rows_leave_a_calibrator_that_can_be_saved_and_compared(build, rng, tmp_path):
    calibrator = build().fit(rng.normal(size=(2000, 40)))
    calibrator.partial_fit(rng.normal(size=(30, 40)) * 30)
    save_calibrator(calibrator, tmp_path / "c")
    loaded = load_calibrator(tmp_path / "c")
    assert not drift(loaded, rng.normal(size=(300, 40))).refit


def test_an_update_shares_nothing_with_what_the_caller_holds(x):
    moments = moments_of(x[:400])
    calibrator = Whitening().fit_moments(moments, x[:400])
    calibrator.mean_[:] = 7
    moments.update(torch.from_numpy(x[400:]))
    kept = calibrator.reference_.moments
    assert kept.count == calibrator.n_samples_ == 400
    np.testing.assert_allclose(kept.mean, x[:400].mean(axis=0))


def test_more_moments_for_one_that_keeps_nothing_are_refused(x):
    calibrator = Whitening().fit(x)
    calibrator.reference_ = None
    with pytest.raises(InputError, match="keeps no statistics of its rows"):
        calibrator.fit_moments(moments_of(x), x, more=True)
    assert calibrator.n_samples_ == 900


def test_statistics_of_another_fit_are_refused(x, tmp_path):
    for name, rows in (("a", x), ("b", x[:500])):
        save_calibrator(Whitening().fit(rows), tmp_path / name)
    shutil.copy(tmp_path / "b/reference.safetensors", tmp_path / "a")
    with pytest.raises(ModelError, match="reference.safetensors cannot be read: it is of 500 rows"):
        load_calibrator(tmp_path / "a")


def test_one_of_an_earlier_version_says_that_it_cannot(tmp_path, x):
    with tarfile.open(SAVED) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(path.parent for path in tmp_path.rglob("config.json") if "whitening" in str(path))
    calibrator = load_calibrator(folder)
    with pytest.raises(InputError, match="keeps no statistics .* fit it on all rows once"):
        calibrator.partial_fit(np.ones((3, calibrator.n_features_in_)))


# Flows


def test_a_flow_learns_new_rows_and_hardly_forgets_old_ones(rng):
    old = rng.normal(size=(4000, 8)) ** 3 / 4
    new = rng.normal(size=(4000, 8)) * 0.3 + 4
    before = Flow(epochs=2).fit(old[:3000])
    after = copy.deepcopy(before).partial_fit(new[:3000])
    only_new = Flow(epochs=2).fit(new[:3000])
    whole = Flow(epochs=2).fit(np.concatenate([old[:3000], new[:3000]]))
    assert after.score(new[3000:]) > before.score(new[3000:]) + 8
    assert after.score(old[3000:]) > only_new.score(old[3000:]) + 8
    both = np.concatenate([old[3000:], new[3000:]])
    assert after.score(both) > whole.score(both) - 1
    assert len(after.loss_curve_) > len(before.loss_curve_)


@pytest.mark.parametrize("build", [Flow, Flow.tempered], ids=["paper", "tempered"])
def test_centre_and_deviations_of_a_flow_are_those_of_all_rows(build, x):
    flow = build().fit(x[:600])
    axes = flow.frame_.components
    flow.partial_fit(x[600:] + 3)
    every = np.concatenate([x[:600], x[600:] + 3])
    rows = every / np.linalg.norm(every, axis=1, keepdims=True) if flow.normalize else every
    np.testing.assert_allclose(flow.mean_, rows.mean(axis=0), rtol=1e-9)
    along = rows if axes is None else (rows - rows.mean(axis=0)) @ axes.T
    np.testing.assert_allclose(flow.scale_, along.std(axis=0), rtol=1e-9)


def test_a_flow_of_another_design_is_refused(x):
    flow = Flow().fit(x).set_params(levels=3)
    with pytest.raises(InputError, match="levels was 2 at the fit, not 3; set it back, or fit"):
        flow.partial_fit(x)


# How far it moved


def test_what_only_turns_or_mirrors_the_axes_has_not_moved(x):
    before, after = Whitening().fit(x), Whitening().fit(x)
    after.components_ = -after.components_[::-1]
    after.scale_ = after.scale_[::-1]
    assert cosine_change(before, after, x) < 1e-12
    assert cosine_change(before, Whitening().fit(x[:, ::-1]), x) > 0.01


# Folders of shards


def test_a_folder_of_shards_is_learned_beside_what_was_fitted(x, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    parquet.write_table(pyarrow.table({"vector": x[500:].tolist()}), source / "a.parquet")
    calibrator = Whitening().fit(x[:500])
    fit_folder(calibrator, source, tmp_path / "moments", more=True)
    expected = Whitening().fit_transform(x)
    np.testing.assert_allclose(calibrator.transform(x), expected, rtol=1e-6, atol=1e-9)
    assert calibrator.n_samples_ == 900


# Models


def test_a_model_learns_from_more_sentences_as_from_all_at_once(tiny_bert, tiny_sentences):
    whole = calibrate(tiny_bert, tiny_sentences, "whitening")
    first = calibrate(tiny_bert, tiny_sentences[:200], "whitening")
    vectors = first.encode(tiny_sentences)
    found = update(first, tiny_sentences[200:], files=["new.txt"])
    expected = whole.encode(tiny_sentences)
    np.testing.assert_allclose(found.encode(tiny_sentences), expected, atol=2e-3)
    np.testing.assert_array_equal(first.encode(tiny_sentences), vectors)
    told = found.calibrator.provenance_
    assert (told["sentences"], told["corpus"]) == (300, ["new.txt"])
    assert told["updates"][0]["sentences"] == 100
    assert 0 < told["updates"][0]["moved"] < 1
    assert found.calibrator.facts()["fitted on"] == "300 sentences"


@pytest.mark.parametrize("portable", [True, False])
def test_an_updated_model_is_saved_and_keeps_its_kind(
    portable, tiny_bert, tiny_sentences, tmp_path
):
    model = calibrate(tiny_bert, tiny_sentences[:200], portable=portable)
    found = update(model, tiny_sentences[200:])
    save_model(found, tmp_path / "m")
    expected = found.encode(tiny_sentences)
    np.testing.assert_array_equal(load(tmp_path / "m").encode(tiny_sentences), expected)
    plain = SentenceTransformer(str(tmp_path / "m"), trust_remote_code=not portable)
    np.testing.assert_allclose(plain.encode(tiny_sentences), expected, atol=1e-6)


def test_the_map_of_queries_stays(tiny_bert, tiny_sentences):
    model = calibrate(
        tiny_bert, tiny_sentences[:200], "whitening", queries=tiny_sentences[:40], job="search"
    )
    found = update(model, tiny_sentences[200:])
    kept, now = model.calibrator.query_map_, found.calibrator.query_map_
    assert torch.equal(kept.matrix, now.matrix)
    assert not np.allclose(found.encode_query("the man"), found.encode_document("the man"))


# The command


@pytest.fixture
def work(tmp_path, tiny_sentences, tiny_bert, monkeypatch, capsys):
    """A folder with a model, a calibrator, and more text and vectors for both."""
    monkeypatch.chdir(tmp_path)
    Path("old.txt").write_text("\n".join(tiny_sentences[:200]) + "\n")
    Path("new.txt").write_text("\n".join(tiny_sentences[200:]) + "\n")
    rows = np.random.default_rng(0).normal(2, 1, size=(120, 16))
    np.save("old.npy", rows[:80])
    np.save("new.npy", rows[80:])
    assert run(["fit", "--encoder", str(tiny_bert), "--corpus", "old.txt", "--output", "m"]) == 0
    assert run(["fit", "--vectors", "old.npy", "--output", "c"]) == 0
    capsys.readouterr()
    return rows


def test_update_replaces_the_model_or_writes_another(work, capsys):
    assert run(["fit", "--update", "m", "--corpus", "new.txt", "--output", "m2"]) == 0
    assert load("m").calibrator.n_samples_ == 200
    assert run(["fit", "--update", "m", "--corpus", "new.txt"]) == 0
    said = capsys.readouterr().out
    assert "learned from 100 more sentences" in said
    assert "the map has moved" in said
    assert load("m").calibrator.n_samples_ == load("m2").calibrator.n_samples_ == 300


def test_update_of_a_calibrator_takes_vectors(work, capsys):
    assert run(["fit", "--update", "c", "--vectors", "new.npy"]) == 0
    assert "learned from 40 more rows" in capsys.readouterr().out
    found = load_calibrator("c")
    assert found.provenance_["vectors"] == ["old.npy", "new.npy"]
    np.testing.assert_allclose(
        found.transform(work), AdaptiveWhitening().fit_transform(work), rtol=1e-6
    )


def test_update_of_a_calibrator_takes_a_folder_of_shards(work):
    Path("shards").mkdir()
    parquet.write_table(pyarrow.table({"vector": work[80:].tolist()}), "shards/a.parquet")
    assert run(["fit", "--update", "c", "--vectors", "shards", "--output", "c2"]) == 0
    found = load_calibrator("c2").transform(work)
    np.testing.assert_allclose(found, AdaptiveWhitening().fit_transform(work), rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m"], "give --update with --corpus"),
        (
            ["m", "--corpus", "new.txt", "--vectors", "new.npy"],
            "--corpus does not go with --vectors",
        ),
        (["m", "--corpus", "new.txt", "--engine", "local"], "--engine goes with --vectors"),
        (["m", "--vectors", "new.npy"], "whole model"),
        (["c", "--corpus", "new.txt"], "calibrator without an encoder; give --vectors"),
        (["nowhere", "--corpus", "new.txt"], "nowhere does not exist"),
        (["m", "--corpus", "nowhere.txt"], "nowhere.txt does not exist"),
        (["m", "--corpus", "new.txt", "--calibrator", "flow"], "--calibrator does not go with"),
        (["m", "--corpus", "new.txt", "--pooling", "cls"], "leave them out"),
        (["c", "--vectors", "nan.npy"], "nan.npy contains NaN in row 1"),
        (["c", "--vectors", "new.npy", "--output", "old.npy"], "is a file"),
    ],
)
def test_what_cannot_be_updated_is_said_in_one_line_and_nothing_changes(
    arguments, said, work, capsys
):
    bad = work[:5].copy()
    bad[1, 0] = np.nan
    np.save("nan.npy", bad)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert run(["fit", "--update", *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_calibrator_whose_statistics_are_damaged_is_refused_by_name(work, capsys):
    path = Path("c/reference.safetensors")
    path.write_bytes(path.read_bytes()[:-3])
    assert run(["fit", "--update", "c", "--vectors", "new.npy"]) == 1
    assert "reference.safetensors cannot be read" in capsys.readouterr().err


def test_what_is_kept_says_nothing_of_single_rows_but_how_typical_they_are(work):
    config = json.loads(Path("c/config.json").read_text())
    size = Path("c/reference.safetensors").stat().st_size
    width = config["n_features_in"]
    assert size < 8 * (width * width + width + 80) + 1000
