"""Drift: does new text still look like what was fitted, without the fitted rows?"""

from __future__ import annotations

import csv
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from bertflow import (
    AdaptiveWhitening,
    Flow,
    InputError,
    Standardization,
    Whitening,
    calibrate,
    drift,
    load_calibrator,
    save_calibrator,
)
from bertflow.calibrators import Density, Moments
from bertflow.cli.main import run
from bertflow.models import save_model
from test_updating import SAVED

KINDS = {"whitening": Whitening, "adaptive": AdaptiveWhitening, "standardization": Standardization}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)


def cloud(rng: np.random.Generator, rows: int, width: int = 12) -> np.ndarray:
    mixing = np.random.default_rng(9).normal(size=(width, width))
    return rng.standard_t(6, size=(rows, width)) @ mixing + 5


def elsewhere(rng: np.random.Generator, rows: int) -> np.ndarray:
    return cloud(rng, rows)[:, ::-1] + np.linspace(-8, 8, 12)


def moments_of(rows: np.ndarray) -> Moments:
    moments = Moments(rows.shape[1])
    moments.update(torch.from_numpy(rows))
    return moments


# The density


def test_the_density_is_a_gaussian_with_a_shrunk_covariance(rng):
    x = cloud(rng, 50)
    level = 1 / 20 + 12 / 150
    share = level / (1 + level)
    covariance = np.cov(x.T, ddof=0)
    shrunk = (1 - share) * covariance + share * np.diag(covariance.diagonal())
    expected = multivariate_normal(x.mean(axis=0), shrunk).logpdf(x) / 12
    np.testing.assert_allclose(Density(moments_of(x)).of(torch.from_numpy(x)), expected)


def test_fitted_rows_are_judged_by_moments_that_they_are_not_in(rng):
    x = np.repeat(cloud(rng, 40), 2, axis=0)
    kept = Whitening().fit(x).reference_
    for row in range(0, 80, 7):
        # The four fifths that judge it are known only inside; some of 39 do.
        far = x.copy()
        far[(x == x[row]).all(axis=1)] *= 50
        judged = Whitening().fit(far).reference_.log_density[row]
        own = Density(moments_of(far)).of(torch.from_numpy(far[row : row + 1]))
        assert judged < own - 1
    assert len(np.unique(kept.log_density)) == 40


def test_the_mean_follows_from_moments_alone(rng):
    x, other = cloud(rng, 500), cloud(rng, 300) * 1.3 + 1
    density = Density(moments_of(x))
    expected = float(density.of(torch.from_numpy(other)).mean())
    assert density.expected(moments_of(other)) == pytest.approx(expected)


@pytest.mark.parametrize("build", [Whitening, AdaptiveWhitening, Standardization])
@pytest.mark.parametrize(
    ("fitted", "copies", "width"),
    [(25, 1, 200), (50, 1, 200), (40, 1, 24), (2000, 1, 24), (100, 3, 100), (1500, 2, 200)],
)
def test_few_and_repeated_fitted_rows_do_not_look_like_drift(build, fitted, copies, width):
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = np.repeat(rng.normal(size=(fitted, width)) + 1, copies, axis=0)
        one = drift(build().fit(x), rng.normal(size=(400, width)) + 1)
        assert not one.refit
        found.append((one.elsewhere.value, one.less_typical.value))
    assert np.abs(np.mean(found, axis=0) - 0.5).max() < 0.15


# The verdict


def test_new_rows_elsewhere_or_of_another_spread_ask_for_a_refit(rng):
    x = cloud(rng, 3000)
    for build in (*KINDS.values(), Flow):
        calibrator = build().fit(x)
        same = drift(calibrator, cloud(rng, 500))
        assert not same.refit
        assert same.verdict.startswith("keep")
        assert same.beyond < 0.03
        assert same.mean_cosine == pytest.approx(same.fitted_mean_cosine, abs=0.05)
        moved = drift(calibrator, elsewhere(rng, 500))
        assert moved.elsewhere.beyond
        assert moved.verdict.startswith("refit: the new rows lie elsewhere")
        wide = drift(calibrator, (cloud(rng, 500) - 5) * 4 + 5)
        assert wide.less_typical.beyond
        assert wide.beyond > 0.5


def test_a_flow_tells_its_own_likelihood_too(rng):
    x = cloud(rng, 3000)
    flow = Flow().fit(x)
    found = drift(flow, x[:500] + 2)
    assert found.bits == pytest.approx(-flow.score(x[:500] + 2) / (12 * math.log(2)))
    assert found.fitted_bits == flow.loss_
    assert found.bits > found.fitted_bits
    assert drift(Whitening().fit(x), x).bits is None


def test_what_was_learned_in_an_update_is_no_drift_any_more(rng):
    other = elsewhere(rng, 4000)
    for build in (*KINDS.values(), Flow):
        calibrator = build().fit(cloud(rng, 4000))
        assert drift(calibrator, other[3000:]).refit
        calibrator.partial_fit(other[:3000])
        assert not drift(calibrator, other[3000:]).refit
        assert not drift(calibrator, cloud(rng, 1000)).refit


def test_repeats_make_nothing_surer(rng):
    calibrator, new = Whitening().fit(cloud(rng, 2000)), cloud(rng, 100)
    once, often = drift(calibrator, new), drift(calibrator, np.repeat(new, 30, axis=0))
    assert often.elsewhere.high - often.elsewhere.low > 0.1
    width = once.less_typical.high - once.less_typical.low
    assert often.less_typical.high - often.less_typical.low == pytest.approx(width, rel=0.2)


def test_the_least_typical_rows_are_named(rng):
    x = cloud(rng, 1000)
    new = cloud(rng, 300)
    new[[17, 250]] += 40
    found = drift(Whitening().fit(x), new)
    assert {one.row for one in found.unlike[:2]} == {17, 250}
    assert len(found.unlike) == 10
    assert "17" in repr(found)
    assert found.unlike[0].log_density <= found.unlike[1].log_density


@every_kind
def test_captions_news_and_forums_are_told_apart_and_halves_of_each_are_not(build, shared_data):
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text("utf-8"))
    vectors = np.load(shared_data / "embeddings/smollm2-135m_last2avg.npy")
    kinds: dict[str, set[str]] = {}
    for path in (shared_data / "senteval/STS/STSBenchmark").glob("sts-*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                kinds.setdefault(row[0].replace("forums", "forum"), set()).update(row[5:7])
    place = {sentence: number for number, sentence in enumerate(sentences)}
    assert sorted(kinds) == ["main-captions", "main-forum", "main-news"]
    rows = {}
    for kind, texts in kinds.items():
        found = sorted(place[text] for text in texts if text in place)
        rows[kind] = vectors[np.random.default_rng(0).permutation(found)[:2000]]
    for kind, own in rows.items():
        calibrator = build().fit(own[: len(own) // 2])
        assert not drift(calibrator, own[len(own) // 2 :]).refit
        for other in rows.keys() - {kind}:
            assert drift(calibrator, rows[other]).refit, (kind, other)
            assert drift(calibrator, rows[other][:100]).refit, (kind, other)


# What is kept


@pytest.mark.parametrize("build", [*KINDS.values(), Flow])
def test_saved_and_loaded_it_finds_the_same(build, rng, tmp_path):
    calibrator = build().fit(cloud(rng, 900))
    save_calibrator(calibrator, tmp_path / "c")
    new = cloud(rng, 100)
    assert drift(tmp_path / "c", new) == drift(calibrator, new)


def test_one_of_an_earlier_version_and_one_of_moments_alone_say_so(rng, tmp_path):
    with tarfile.open(SAVED) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(path.parent for path in tmp_path.rglob("config.json") if "whitening" in str(path))
    old = load_calibrator(folder)
    with pytest.raises(InputError, match="keeps no statistics of its rows"):
        drift(old, rng.normal(size=(50, old.n_features_in_)))
    with pytest.raises(InputError, match="on more rows, not on moments alone"):
        drift(Whitening().fit_moments(moments_of(cloud(rng, 500))), cloud(rng, 50))


def test_of_very_wide_rows_a_calibrator_of_variances_keeps_no_covariance(
    rng, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertflow.calibrators.reference.WIDEST", 8)
    x = cloud(rng, 500)
    save_calibrator(Standardization().fit(x[:300]).partial_fit(x[300:]), tmp_path / "c")
    assert (tmp_path / "c/reference.safetensors").stat().st_size < 2000
    np.testing.assert_allclose(
        load_calibrator(tmp_path / "c").transform(x), Standardization().fit_transform(x)
    )
    with pytest.raises(InputError, match="variances of very wide rows"):
        drift(tmp_path / "c", x)
    assert not drift(Whitening().fit(x), cloud(rng, 100)).refit


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda x: x[:10], "got 10 rows that differ; at least 20"),
        (lambda x: np.repeat(x[:3], 30, axis=0), "got 3 rows that differ"),
        (lambda x: x[:0], "got 0 rows that differ"),
        (lambda x: np.where(x == x[5, 1], np.inf, x), "infinity .inf. in row 5"),
        (lambda x: x[:, :5], "X has 5 features, but Whitening is expecting 12"),
        (lambda x: ["a", "b"], "text"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(rows, said, rng):
    with pytest.raises(InputError, match=said):
        drift(Whitening().fit(cloud(rng, 100)), rows(cloud(rng, 50)))


# Models and the command


@pytest.fixture
def work(tmp_path, tiny_bert, tiny_sentences, monkeypatch):
    """A folder with a model and a calibrator, and text and vectors like it and unlike it."""
    monkeypatch.chdir(tmp_path)
    save_model(calibrate(tiny_bert, tiny_sentences[:200]), "m")
    Path("same.txt").write_text("\n".join(tiny_sentences[200:]) + "\n")
    long = [" ".join([*["street bird"] * 9, one]) for one in tiny_sentences[200:]]
    Path("other.txt").write_text("\n".join(long) + "\n")
    x = cloud(np.random.default_rng(0), 1100)
    save_calibrator(Whitening().fit(x[:1000]), "c")
    np.save("same.npy", x[1000:])
    np.save("other.npy", elsewhere(np.random.default_rng(0), 100))


@pytest.mark.parametrize(
    ("given", "code", "word"),
    [
        (["m", "--corpus", "same.txt"], 0, "keep"),
        (["m", "--corpus", "other.txt"], 3, "refit"),
        (["c", "--vectors", "same.npy"], 0, "keep"),
        (["c", "--vectors", "other.npy"], 3, "refit"),
    ],
)
def test_the_command_says_refit_by_its_exit_code(given, code, word, work, capsys):
    assert run(["drift", *given]) == code
    shown = capsys.readouterr()
    assert shown.out.startswith(f"verdict    {word}: ")
    assert shown.err == ""
    assert run(["drift", *given, "--json", "-"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["refit"] == (code == 3)
    assert set(found["elsewhere"]) == set(found["less_typical"]) == {"value", "low", "high"}
    assert len(found["unlike"]) == 10
    assert isinstance(found["unlike"][0]["row"], str if given[0] == "m" else int)
    assert {"mean_cosine", "log_density", "beyond", "fitted_log_density"} <= found.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m"], "give --corpus, or --vectors"),
        (["m", "--corpus", "same.txt", "--vectors", "same.npy"], "give --corpus, or --vectors"),
        (["c", "--corpus", "same.txt"], "calibrator without an encoder; give --vectors"),
        (["nowhere", "--corpus", "same.txt"], "nowhere does not exist"),
        (["m", "--corpus", "nowhere.txt"], "nowhere.txt does not exist"),
        (["c", "--vectors", "nowhere.npy"], "nowhere.npy does not exist"),
        (["c", "--vectors", "same.npy", "--column", "a"], "--column does not go with --vectors"),
        (["m", "--corpus", "same.txt", "--json", "m/x.json"], "overlaps"),
        (["m", "--corpus", "short.txt"], "at least 20"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(arguments, said, work, capsys):
    Path("short.txt").write_text("a man\n")
    assert run(["drift", *arguments, *([] if "--json" in arguments else ["--json", "j"])]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("j").exists()
