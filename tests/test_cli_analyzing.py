"""analyze words, lexical and isotropy on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from bertflow.analysis import (
    edit_distances,
    frequent_words,
    mean_cosine,
    measure_isotropy,
    word_embeddings,
    word_statistics,
)
from bertflow.calibrators import Whitening
from bertflow.data import read_task, sample_sentences
from bertflow.encoders import embed, load_encoder, load_layers, load_word_vectors
from bertflow.errors import InputError
from bertflow.evaluation import score_pairs
from bertflow.models import calibrate, save_model
from task_files import graded_rows, write_tasks

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"), "stsb", "sick-r")


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_shows_every_range_and_writes_what_it_shows(done, tiny_bert):
    out = done("analyze", "words", tiny_bert, "--json", "w.json", "--markdown", "w.md")
    encoder = load_encoder(tiny_bert)
    found = word_statistics(word_embeddings(encoder), frequent_words(encoder[0].tokenizer))
    assert json.loads(Path("w.json").read_text())["groups"] == found.to_dict()["groups"]
    for group in found.groups:
        assert f"[{group.low:,}, {group.high:,})" in out
        if group.norm is not None:
            assert f"{group.norm.value:.3f}" in out
            assert f"{group.norm.value:.3f}" in Path("w.md").read_text()
    assert "nan" not in out


def test_words_refuses_an_unknown_language(refused, tiny_bert):
    assert "xx" in refused("analyze", "words", tiny_bert, "--language", "xx")


def test_lexical_is_spearman_with_edit_distance(done, tiny_bert, written):
    out = done(
        *("analyze", "lexical", tiny_bert, "--data", written, "--unit", "words", "--short", 2),
        *("--json", "l.json", "--figure", "f.svg"),
    )
    pairs = read_task("stsb", written, "dev")
    cosines = score_pairs(load_encoder(tiny_bert), pairs).cosines
    distances = edit_distances(pairs.first, pairs.second, unit="words")
    shown = json.loads(Path("l.json").read_text())["similarities"]
    expected = scipy.stats.spearmanr(cosines, distances).statistic
    assert shown[str(tiny_bert)]["edit"]["value"] == pytest.approx(expected)
    gold = scipy.stats.spearmanr(pairs.gold, distances).statistic
    assert shown["gold"]["edit"]["value"] == pytest.approx(gold)
    assert f"{100 * expected:.2f}" in out
    assert f"{int((distances <= 2).sum())} at most 2 words apart" in out
    assert Path("f.svg").read_text().startswith("<?xml")


def test_lexical_sets_a_calibrated_model_beside_its_encoder(done, tiny_bert, tiny_sentences, work):
    model = calibrate(load_encoder(tiny_bert), tiny_sentences, Whitening())
    save_model(model, work / "model")
    rows = "".join(f"{a}\t{b}\t{gold}\n" for a, b, gold in graded_rows(30, 3))
    (work / "mine.tsv").write_text(rows)
    out = done(
        *("analyze", "lexical", "model", "--against", tiny_bert, "--pairs", "mine.tsv"),
        *("--columns", "1,2,3", "--max-length", 16),
    )
    lines = [line.split("  ")[0] for line in out.splitlines()]
    assert lines.index(str(tiny_bert)) < lines.index("model")


def test_lexical_names_its_aggregation_where_there_are_subsets(done, tiny_bert, written, work):
    write_tasks(work / "data", "sts13")
    out = done("analyze", "lexical", tiny_bert, "--task", "sts13", "--data", "data")
    assert "- over all pairs together, of whichever subset (all)\n" in out
    assert "together" not in done("analyze", "lexical", tiny_bert, "--data", written)


def test_lexical_says_of_each_model_what_is_not_scored_and_why(done, tiny_bert, work):
    words = "".join(f"w{n} {n + 1} {n % 7} 1\n" for n in range(20))
    Path("words.txt").write_text(words)
    load_word_vectors("words.txt").save_pretrained("averaged")
    rows = [(f"w{n} w{n + 1}", f"w{2 * n}", n % 4) for n in range(9)]
    rows += [("nothing known", "w3", 1), ("w4", "w5", ""), ("w6", "w7", "")]
    lines = "".join(f"{a}\t{b}\t{gold}\n" for a, b, gold in rows)
    (work / "mine.tsv").write_text("text1\ttext2\tscore\n" + lines)
    how = ["--pairs", "mine.tsv", "--against", tiny_bert]
    out = done("analyze", "lexical", "averaged", *how, "--json", "l.json", "--markdown", "l.md")
    for said in (out, Path("l.md").read_text()):
        assert "- averaged: not scored: 2 no gold score, 1 zero vector\n" in said
        assert f"- {tiny_bert}: not scored: 2 no gold score\n" in said
    told = json.loads(Path("l.json").read_text())
    assert told["skipped"] == 3
    assert told["not_scored"]["averaged"]["zero vector"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--figure", "f.jpg"], "must end in .svg, .png or .pdf"),
        (["--unit", "letters"], "letters"),
        (["--columns", "1,2,3"], "--columns goes with --pairs"),
        (["--pairs", "x.tsv", "--task", "stsb"], "--task does not go with --pairs"),
        (["--task", "snli"], "snli"),
    ],
)
def test_lexical_refuses_before_any_work(refused, tiny_bert, written, arguments, expected):
    assert expected in refused("analyze", "lexical", tiny_bert, "--data", written, *arguments)


def test_isotropy_has_a_line_for_every_hidden_state(done, tiny_bert, monkeypatch, work):
    sentences = sorted({" ".join(row[:2]) for row in graded_rows(60, 1)})
    (work / "s.txt").write_text("\n".join(sentences))
    done("analyze", "isotropy", tiny_bert, "--corpus", "s.txt", "--json", "i.json")
    shown = json.loads(Path("i.json").read_text())["poolings"]
    assert list(shown) == [f"layers:{state}" for state in range(4)]
    for name, one in shown.items():
        alone = embed(load_encoder(tiny_bert, pooling=name), sentences).rows()
        assert one["mean_cosine"] == pytest.approx(mean_cosine(alone), abs=1e-4)
        assert one["rows"] == len(sentences)


def test_isotropy_of_the_poolings_that_are_named(done, tiny_bert):
    out = done(
        *("analyze", "isotropy", tiny_bert, "--limit", 50),
        *("--pooling", "last2avg", "--pooling", "cls", "--max-length", 16),
    )
    assert "last2avg" in out
    assert "layers:1" not in out
    assert f"{len(sample_sentences()[:50])} sentences" in out


def test_isotropy_refuses_a_column_without_a_corpus(refused, tiny_bert):
    assert "--column goes with" in refused("analyze", "isotropy", tiny_bert, "--column", "x")


def test_all_layers_of_a_causal_model_are_its_hidden_states(tiny_llama, tiny_sentences):
    encoder, names = load_layers(tiny_llama, max_length=16)
    parts = np.split(embed(encoder, tiny_sentences[:40]).rows(), len(names), axis=1)
    assert len(names) == 4
    for name, part in zip(names, parts, strict=True):
        alone = embed(load_encoder(tiny_llama, pooling=name, max_length=16), tiny_sentences[:40])
        assert np.abs(alone.rows() - part).max() < 1e-5


def test_the_measures_of_a_ball_are_at_their_best(rng):
    ball = measure_isotropy(rng.normal(size=(4000, 6)))
    cone = measure_isotropy(rng.normal(size=(4000, 6)) + 8 * np.eye(6)[0])
    assert ball.mean_cosine == pytest.approx(0, abs=0.02)
    assert ball.isoscore > 0.99
    assert ball.effective_rank == pytest.approx(6, abs=0.05)
    assert cone.mean_cosine > 0.9
    assert cone.leading_share > 0.9
    assert cone.partition_isotropy < 0.01 < ball.partition_isotropy


def test_a_row_that_is_not_finite_is_named():
    with pytest.raises(InputError, match="row 2"):
        measure_isotropy(np.array([[1.0, 2.0], [2.0, 1.0], [np.nan, 1.0], [0.0, 1.0]]))
