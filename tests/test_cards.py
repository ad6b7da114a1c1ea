"""The cards of saved models and calibrators: they are true, valid, and the same bytes each time."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from sentence_transformers import SentenceTransformer

from bertflow import (
    AllButTheTop,
    Flow,
    Standardization,
    Whitening,
    attach,
    calibrate,
    load,
    load_calibrator,
    load_encoder,
    save_calibrator,
)
from bertflow.calibrators.readme import HERE, code, made_of, named, preset_name, table, text
from bertflow.calibrators.storage import recorded_name
from bertflow.data import Pairs
from bertflow.encoders.description import origin_of
from bertflow.errors import InputError
from bertflow.evaluation import Scores, describe_calibrator, score_pairs
from bertflow.models import save_model
from bertflow.models.card import GENERATED
from conftest import tree


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """Not to be changed."""
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(60, 4))


def card_of(folder) -> ModelCard:
    return ModelCard((folder / "README.md").read_text(encoding="utf-8"))


def programs(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


@pytest.mark.parametrize(
    "calibrator",
    [Flow(epochs=1), Whitening(3), AllButTheTop(1), Standardization()],
    ids=lambda one: type(one).__name__,
)
def test_a_calibrators_card_says_what_it_is_and_its_code_runs(
    calibrator, rows, tmp_path, monkeypatch
):
    save_calibrator(calibrator.fit(rows), tmp_path / "path/to/this/folder")
    card = card_of(tmp_path / HERE)
    data = metadata_load(tmp_path / HERE / "README.md")
    assert data["library_name"] == "bertflow"
    assert data["tags"][0] == "bertflow"
    assert card.data.to_dict() == data
    assert "| fitted on | 60 rows |" in card.text
    assert f"`{calibrator!r}`" in card.text
    (program,) = programs(card.content)
    monkeypatch.chdir(tmp_path)
    found: dict = {"vectors": rows}
    exec(program, found)
    np.testing.assert_array_equal(found["calibrated"], calibrator.transform(rows))


def test_a_preset_has_its_name_and_what_was_changed_of_it():
    for calibrator, name in [
        (Flow(device="cpu"), "flow"),
        (Flow.tempered(), "tempered-flow"),
        (Flow.tempered(epochs=2, device="cpu"), "tempered-flow, epochs=2"),
        (Flow.released(), "released-flow"),
        (Flow(levels=3), "flow, levels=3"),
        (Whitening(256), "whitening, dim=256"),
        (Standardization(), "standardization"),
    ]:
        assert preset_name(calibrator) == recorded_name(describe_calibrator(calibrator)) == name


def test_a_card_names_the_preset(encoder, tiny_sentences, tmp_path):
    save_model(calibrate(encoder, tiny_sentences, Flow.tempered(epochs=2)), tmp_path / "m")
    card = card_of(tmp_path / "m")
    assert ", calibrated (tempered-flow)\n" in card.text
    assert "| calibrator | tempered-flow, epochs=2: `Flow(axes='principal', " in card.text


@pytest.mark.parametrize("portable", [True, False], ids=["built-in", "own"])
def test_a_models_card_says_what_it_is_and_its_code_runs(
    encoder, tiny_sentences, tmp_path, monkeypatch, capsys, portable
):
    model = calibrate(
        encoder,
        tiny_sentences,
        Flow(epochs=1),
        portable=portable,
        provenance={"corpus": ["/home/someone/private/a_b|c.txt", "-"]},
    )
    save_model(model, tmp_path / HERE)
    card = card_of(tmp_path / HERE)
    data = metadata_load(tmp_path / HERE / "README.md")
    assert data["library_name"] == ("sentence-transformers" if portable else "bertflow")
    assert data["pipeline_tag"] == "sentence-similarity"
    assert ("sentence-transformers" in data["tags"]) == portable
    assert {"bertflow", "flow", "sentence-similarity"} <= set(data["tags"])
    assert "base_model" not in data  # A folder's name is none of the hub.
    assert "license" not in data
    assert GENERATED not in card.content
    distinct = len(set(tiny_sentences))
    for said in [
        "| calibrator | `Flow(epochs=1)` |",
        f"| fitted on | 300 sentences, {distinct} of them distinct |",
        "| files | `a_b\\|c.txt`, `-` |",
        "| pooling | mean, of hidden states 1, 3 averaged |",
        "| maximum length | 32 tokens |",
        f"| bits per dimension | {model.calibrator.loss_:.4f} |",
        "vectors of 16 dimensions",
        "is not known here: look it up",
        "None are noted here",
    ]:
        assert said in card.text, said
    assert "/home/someone" not in card.content
    assert str(tmp_path) not in card.content
    assert ("trust_remote_code=True" in card.text) != portable
    monkeypatch.chdir(tmp_path)
    for program in programs(card.content):
        found: dict = {}
        exec(program, found)
        np.testing.assert_allclose(
            found["vectors"], model.encode(["Any sentence.", "Another one."]), atol=1e-5
        )
    assert len(programs(card.content)) == 1 + portable
    assert "Flow(epochs=1)" in capsys.readouterr().out


def test_the_same_model_has_the_same_card_also_loaded_and_saved_again(
    encoder, tiny_sentences, tmp_path
):
    for name in ("a", "b"):
        save_model(calibrate(encoder, tiny_sentences, Whitening(4)), tmp_path / name)
    save_model(load(tmp_path / "a", device="cpu"), tmp_path / "again")
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == tree(tmp_path / "again")
    alone = load_calibrator(tmp_path / "a")
    save_calibrator(alone, tmp_path / "c")
    save_calibrator(load_calibrator(tmp_path / "c"), tmp_path / "d")
    assert tree(tmp_path / "c") == tree(tmp_path / "d")


def test_a_card_that_someone_has_edited_stays_and_one_that_lies_does_not(
    encoder, tiny_sentences, tmp_path
):
    save_model(calibrate(encoder, tiny_sentences, Whitening(4)), tmp_path / "m")
    place = tmp_path / "m" / "README.md"
    ours = place.read_text()
    place.write_text(ours.replace("## Limits", "## My own words\n\nHello.\n\n## Limits"))
    save_model(load(tmp_path / "m", device="cpu"), tmp_path / "n")
    assert "Hello." in (tmp_path / "n" / "README.md").read_text()
    # What earlier versions left sentence-transformers to write says that the model was trained.
    plain = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    plain._model_card_text = None
    plain.model_card_data.generate_widget_examples = False
    plain.save_pretrained(str(tmp_path / "plain"))
    theirs = (tmp_path / "plain" / "README.md").read_text()
    assert GENERATED in theirs
    for other in (theirs, "", " \n"):
        place.write_text(other)
        save_model(load(tmp_path / "m", device="cpu"), tmp_path / "o")
        assert (tmp_path / "o" / "README.md").read_text() == ours
    place.write_bytes(b"\xff\xfe")
    save_model(load(tmp_path / "m", device="cpu"), tmp_path / "o")
    assert (tmp_path / "o" / "README.md").read_text() == ours
    place.unlink()
    save_model(load(tmp_path / "m", device="cpu"), tmp_path / "o")
    assert (tmp_path / "o" / "README.md").read_text() == ours


def test_a_card_is_left_out_where_that_is_asked_for(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    assert not (tmp_path / "m" / "README.md").exists()
    model.save_pretrained(str(tmp_path / "m"), model_name="me/mine")
    assert 'SentenceTransformer("me/mine")' in card_of(tmp_path / "m").text


def test_what_the_owner_says_of_a_model_is_in_its_card(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    model.model_card_data.license = "mit"
    model.model_card_data.language = ["en"]
    model.model_card_data.model_name = "me/<mine>"
    model.model_card_data.add_tags("sts")
    save_model(model, tmp_path / "m")
    data = metadata_load(tmp_path / "m" / "README.md")
    assert (data["license"], data["language"], data["tags"][-1]) == ("mit", ["en"], "sts")
    assert "# me/\\<mine\\>\n" in card_of(tmp_path / "m").content
    assert "`mit`, by the word of whoever saved this model" in card_of(tmp_path / "m").text


def test_a_model_that_was_trained_further_has_the_trainers_card(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    model.model_card_data.add_tags("generated_from_trainer")
    model.model_card_data.generate_widget_examples = False
    save_model(model, tmp_path / "m")
    assert "generated_from_trainer" in metadata_load(tmp_path / "m" / "README.md")["tags"]


# Where the encoder comes from.


@pytest.mark.parametrize(
    ("files", "licence", "where"),
    [
        ({"README.md": "---\nlicense: CC-BY-4.0\n---\n# An encoder\n"}, "cc-by-4.0", "its card"),
        ({"README.md": "# no metadata\n", "LICENSE": "All rights reserved."}, None, None),
        ({"README.md": "---\nlicense: [mit]\n---\n"}, None, None),
        ({"README.md": "---\n{[\n---\n"}, None, None),
    ],
    ids=["card", "unknown", "list", "damaged"],
)
def test_the_licence_of_an_encoder_is_found_in_its_card(
    files, licence, where, tiny_bert, tiny_sentences, tmp_path, caplog
):
    folder = shutil.copytree(tiny_bert, tmp_path / "encoder")
    for name, content in files.items():
        (folder / name).write_text(content)
    with caplog.at_level(logging.WARNING):
        encoder = load_encoder(folder, device="cpu")
        model = calibrate(encoder, tiny_sentences[:20], Standardization())
        save_model(model, tmp_path / "m")
    assert caplog.text == ""
    data = metadata_load(tmp_path / "m" / "README.md")
    assert data.get("license") == licence
    assert model.calibrator.provenance_.get("origin", {}).get("license") == licence
    if licence is not None:
        assert f"`{licence}`, the encoder's, by {where}" in card_of(tmp_path / "m").text
    bare = Standardization().fit(np.random.default_rng(0).normal(size=(50, 16)))
    save_model(attach(encoder, bare), tmp_path / "attached")
    assert metadata_load(tmp_path / "attached" / "README.md").get("license") == licence


def test_only_what_came_from_the_hub_is_called_by_a_name_of_it(tiny_bert, monkeypatch):
    encoder = load_encoder(tiny_bert, device="cpu")
    monkeypatch.setattr(encoder[0].model.config, "_name_or_path", "someone/tiny")
    assert origin_of(encoder) == {}  # It might be a folder of that name that is gone.
    encoder.model_card_data.base_model = "someone/tiny"
    assert origin_of(encoder) == {"base_model": "someone/tiny"}


# Scores.


@pytest.fixture(scope="module")
def pairs(tiny_sentences):
    gold = [float(number % 6) for number in range(60)]
    return Pairs(
        task="mine",
        split="all",
        first=tiny_sentences[:60],
        second=tiny_sentences[60:120],
        gold=gold,
        source="x",
        subset=["one", "two"] * 30,
    )


def test_scores_are_in_the_card_if_they_are_this_models(encoder, tiny_sentences, pairs, tmp_path):
    model = calibrate(encoder, tiny_sentences, Whitening(4))
    score = score_pairs(model, pairs)
    model.add_scores(Scores(scores={"mine": score}, absent={}))
    save_model(model, tmp_path / "m")
    shown = card_of(tmp_path / "m").text
    for aggregation in ("wmean", "mean", "all"):
        one = score.main(aggregation)
        ends = f"{100 * one.low:.1f} to {100 * one.high:.1f}"
        row = f"| mine all | 60 | Spearman, {aggregation} | {100 * one.value:.2f} | {ends} |"
        assert row in shown
    results = card_of(tmp_path / "m").data.eval_results
    values = {one.metric_name: one.metric_value for one in results}
    assert values["Spearman of cosine (all)"] == pytest.approx(score.all.value, abs=1e-6)
    assert "None are noted" not in shown
    for own in (True, False):
        other = calibrate(encoder, tiny_sentences, Whitening(3), portable=own)
        for one in (score, score_pairs(encoder, pairs)):
            with pytest.raises(InputError, match="mine all is of another model"):
                other.add_scores(one)


@pytest.mark.parametrize("marks", [True, False], ids=["in their place", "at the end"])
def test_scores_that_come_later_leave_the_rest_of_a_card(
    encoder, tiny_sentences, pairs, tmp_path, marks
):
    save_model(calibrate(encoder, tiny_sentences, Whitening(4)), tmp_path / "m")
    place = tmp_path / "m" / "README.md"
    if not marks:
        place.write_text("No metadata, and my own words.")
    before = place.read_text()
    model = load(tmp_path / "m", device="cpu")
    score = score_pairs(model, pairs)
    model.add_scores(score)
    save_model(model, tmp_path / "n")
    after = (tmp_path / "n" / "README.md").read_text()
    assert f"{100 * score.all.value:.2f}" in after
    kept = before.partition("## Scores")[0].partition("\n# ")[2] or before
    assert kept in after
    save_model(load(tmp_path / "n", device="cpu"), tmp_path / "o")
    assert (tmp_path / "o" / "README.md").read_text() == after
    again = load(tmp_path / "n", device="cpu")
    again.add_scores(score)
    save_model(again, tmp_path / "p")
    assert (tmp_path / "p" / "README.md").read_text() == after


# Words.


def test_names_of_others_cannot_break_a_card(rows):
    for value in ["a|b", "`", "``x`", "line\nbreak", "<script>", "[a](b)", "*_~", "\x1b[0m"]:
        assert "\n" not in text(value) + code(value)
        assert not re.search(r"(?<!\\)[<|`*\[]", text(value))
        whitening = Whitening(2).fit(rows)
        whitening.provenance_ = {
            "encoder": {"name": value, "pooling": value, "dtype": value, "prompt": value},
            "versions": {value: value},
            "corpus": [value],
            "precision": value,
            "origin": {"license": "mit", "base_model": "someone/tiny"},
        }
        lines = table(made_of(whitening)).splitlines()
        assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines)


def test_code_in_a_card_is_given_a_name_of_the_hub_and_no_other():
    code_of = f'import bertflow\n\nm = bertflow.load("{HERE}")\nSentenceTransformer("{HERE}")'
    assert named(code_of, HERE) == named(code_of, "some folder/x") == code_of
    assert named(code_of, "me/m") == (
        "import bertflow\nfrom huggingface_hub import snapshot_download\n\n"
        'm = bertflow.load(snapshot_download("me/m"))\nSentenceTransformer("me/m")'
    )
    assert named(named(code_of, "me/m"), "me/n") == named(code_of, "me/m")


def test_a_count_of_rows_that_cannot_be_is_refused(rows, tmp_path):
    save_calibrator(Whitening(2).fit(rows), tmp_path / "w")
    path = tmp_path / "w" / "config.json"
    config = json.loads(path.read_text())
    for wrong in (1, -3, "60", 2.5, True):
        path.write_text(json.dumps({**config, "n_samples": wrong}))
        with pytest.raises(Exception, match="n_samples must be an integer of at least 2"):
            load_calibrator(tmp_path / "w")
    del config["n_samples"]  # As in files of earlier versions.
    path.write_text(json.dumps(config))
    assert "fitted on" not in load_calibrator(tmp_path / "w").facts()


@pytest.mark.parametrize("wrong", ["x", {"base_model": "a](b", "license": ["mit"]}])
def test_a_provenance_that_is_anything_does_not_keep_a_model_from_being_saved(
    encoder, tiny_sentences, tmp_path, wrong
):
    save_model(calibrate(encoder, tiny_sentences[:20], Standardization()), tmp_path / "m")
    path = tmp_path / "m" / "bertflow" / "config.json"
    config = json.loads(path.read_text())
    told = {"encoder": wrong, "origin": wrong, "versions": wrong, "corpus": wrong}
    path.write_text(json.dumps({**config, "provenance": told}))
    (tmp_path / "m" / "README.md").unlink()
    model = load(tmp_path / "m", device="cpu")
    save_model(model, tmp_path / "n")
    assert {"base_model", "license"}.isdisjoint(metadata_load(tmp_path / "n" / "README.md"))
    assert "an encoder without a name" in card_of(tmp_path / "n").text
    assert model.facts()["encoder"] == "without a name"


def test_the_card_has_the_threshold_of_duplicates_and_how_it_carries_over(
    done, tiny_bert, tiny_sentences, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    distinct = list(dict.fromkeys(tiny_sentences))
    same = [f"{one}\t{one} .\t1" for one in distinct[:40]]
    other = [f"{one}\t{two}\t0" for one, two in zip(distinct[40:80], distinct[80:120], strict=True)]
    Path("mine.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(same + other))
    save_model(calibrate(load_encoder(tiny_bert), tiny_sentences, "whitening"), "model")
    told = done("evaluate", "model", "--pairs", "mine.tsv", "--card", "--json", "-")
    threshold = json.loads(told)["job"]["facts"]["best f1"]["threshold"]
    card = Path("model/README.md").read_text(encoding="utf-8")
    assert f"Best F1: two texts are the same from a cosine of {threshold:.3f} on." in card
    assert "| duplicates of mine.tsv | 80 pairs | average precision |" in card
    assert "Chosen on one half of them, on the other half: precision" in card
