"""The command line: what it writes, and one line with an exit code for what it cannot do."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import huggingface_hub.constants
import numpy as np
import pytest
import typer
from filelock import FileLock
from numpy.testing import assert_allclose, assert_array_equal
from sentence_transformers import SentenceTransformer

import bertflow
from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Flow,
    SoftStandardization,
    Standardization,
    Whitening,
    load_calibrator,
    save_calibrator,
    training,
)
from bertflow.cli import options
from bertflow.cli.console import Page
from bertflow.cli.main import app, run
from bertflow.cli.options import Chosen
from bertflow.display import Bars
from bertflow.encoders import Precision, Role, load_encoder
from bertflow.errors import FewRowsWarning, InputError, ModelError
from bertflow.evaluation import evaluate
from bertflow.models import calibrate, save_model
from bertflow.models.calibrated import CalibratedSentenceTransformer
from conftest import QUIET, tree

WIDTH = 16
CALIBRATORS = {
    "adaptive-whitening": AdaptiveWhitening,
    "flow": Flow,
    "whitening": Whitening,
    "standardization": Standardization,
    "soft-standardization": SoftStandardization,
    "all-but-the-top": AllButTheTop,
}
PRESETS = {"tempered-flow": Flow.tempered, "released-flow": Flow.released}
COMMANDS = ["fit", "transform", "encode", "evaluate", "compare", "diagnose", "demo"]
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)
pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")


@pytest.fixture
def work(tmp_path, tiny_sentences, monkeypatch):
    """A folder to work in, with sentences, vectors and graded pairs."""
    (tmp_path / "corpus.txt").write_text("\n".join(tiny_sentences) + "\n")
    rows = np.random.default_rng(0).normal(2, 1, size=(120, WIDTH)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", rows)
    place = tmp_path / "data" / "STSBenchmark"
    place.mkdir(parents=True)
    gold = np.random.default_rng(1).integers(0, 11, size=30) / 2
    lines = [
        f"genre\tfile\tyear\tid\t{'' if i == 4 else score}\t{a}\t{b}\n"
        for i, (score, a, b) in enumerate(
            zip(gold, tiny_sentences[:30], tiny_sentences[30:60], strict=True)
        )
    ]
    (place / "sts-test.csv").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tiny_fitted(tmp_path_factory) -> Path:
    """A saved calibrator of 16 dimensions."""
    folder = tmp_path_factory.mktemp("saved") / "calibrator"
    rows = np.random.default_rng(0).normal(2, 1, size=(120, WIDTH)).astype(np.float32)
    save_calibrator(Whitening().fit(rows), folder)
    return folder


@pytest.fixture(scope="module")
def tiny_calibrated(tmp_path_factory, tiny_bert, tiny_sentences) -> Path:
    """A saved calibrated model."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    encoder = load_encoder(tiny_bert, device="cpu")
    save_model(calibrate(encoder, tiny_sentences, Whitening()), folder)
    return folder


# Vectors.


@every_calibrator
def test_fit_transform_and_inverse_on_vectors(work, done, name):
    said = done("fit", "--vectors", "vectors.npy", "--calibrator", name, "--output", "c")
    assert "120 vectors of 16 dimensions" in said
    assert "saved to c" in said
    x = np.load("vectors.npy")
    calibrator = load_calibrator("c")
    assert type(calibrator) is CALIBRATORS[name]
    expected = CALIBRATORS[name]().fit(x)
    assert_array_equal(calibrator.transform(x), expected.transform(x))
    assert calibrator.provenance_ == {"vectors": "vectors.npy", "rows": 120, "limit": None}

    said = done("transform", "c", "--vectors", "vectors.npy", "--output", "z.npy")
    assert said == "wrote 120 vectors of 16 dimensions to z.npy\n"
    assert_allclose(np.load("z.npy"), expected.transform(x), rtol=0, atol=1e-5)

    done("transform", "c", "--vectors", "z.npy", "--output", "x.npy", "--inverse")
    back = np.load("x.npy")
    assert_allclose(back, expected.inverse_transform(np.load("z.npy")), rtol=0, atol=1e-5)
    if name != "all-but-the-top":
        assert_allclose(back, x, rtol=0, atol=1e-3)


def test_settings_seed_and_limit_reach_the_calibrator(work, done):
    done(
        *["fit", "--vectors", "vectors.npy", "--output", "c", "--random-state", 7, "--limit", 50],
        *["--set", "epochs=2", "--set", "max_grad_norm=null", "--set", "residual=false"],
        *["--set", "permutation=reverse", "--device", "cpu", "--calibrator", "flow"],
    )
    x = np.load("vectors.npy")
    same = Flow(
        epochs=2,
        max_grad_norm=None,
        residual=False,
        permutation="reverse",
        random_state=7,
        device="cpu",
    )
    calibrator = load_calibrator("c")
    assert calibrator.get_params() == same.get_params()
    assert_array_equal(calibrator.transform(x), same.fit(x[:50]).transform(x))
    assert calibrator.provenance_["rows"] == calibrator.provenance_["limit"] == 50


def test_a_kept_dimension_is_the_width_of_what_is_written(work, done):
    done(
        *["fit", "--vectors", "vectors.npy", "--output", "c", "--calibrator", "whitening"],
        *["--set", "dim=5"],
    )
    said = done("transform", "c", "--vectors", "vectors.npy", "--output", "z.npy")
    assert "120 vectors of 5 dimensions" in said
    assert np.load("z.npy").shape == (120, 5)


# Encoders.


@pytest.mark.parametrize("name", ["flow", "whitening"])
def test_fit_encode_and_evaluate_with_an_encoder(work, done, tiny_bert, name):
    said = done(
        *["fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "m"],
        *["--calibrator", name, "--pooling", "last2avg", "--max-length", 20],
    )
    sentences = Path("corpus.txt").read_text().splitlines()
    assert f"{name} fitted on 300 sentences ({len(set(sentences)):,} distinct" in said
    assert "saved to m" in said

    done("encode", "m", "--input", "corpus.txt", "--output", "z.npy")
    encoder = load_encoder(tiny_bert, pooling="last2avg", max_length=20, device="cpu")
    model = bertflow.load("m", device="cpu")
    assert type(model.calibrator) is CALIBRATORS[name]
    assert model.calibrator.provenance_["corpus"] == ["corpus.txt"]
    raw = encoder.encode(sentences)
    written = np.load("z.npy")
    assert_allclose(written, model.calibrator.transform(raw), rtol=0, atol=1e-3)
    assert_allclose(written, SentenceTransformer("m").encode(sentences), rtol=0, atol=1e-5)

    said = done("evaluate", "m", "--task", "stsb", "--data", "data", "--json", "new/score.json")
    read = json.loads(Path("new/score.json").read_text())
    expected = evaluate(model, data="data")
    assert read["model"] == "m"
    score = read["scores"]["stsb"]
    assert score["calibrator"] == json.loads(json.dumps(expected.calibrator))
    assert score["fitted_on"]["distinct"] == len(set(sentences))
    value = score["aggregations"]["all"]["spearman"]["value"]
    assert value == pytest.approx(expected.all.value, abs=1e-6)
    assert f"{100 * value:.2f}" in said
    assert f"calibrator {name}\n" in said


@pytest.mark.parametrize("pooling", ["cls", "mean", "last2avg", "embed-last-avg", "layers:0,2"])
def test_encode_writes_row_i_for_sentence_i(work, done, tiny_bert, pooling):
    Path("s.txt").write_text("the cat runs\na dog\nthe cat runs\n")
    said = done("encode", tiny_bert, "--input", "s.txt", "--output", "e.npy", "--pooling", pooling)
    assert said.startswith("wrote 3 vectors of 16 dimensions to e.npy")
    encoder = load_encoder(tiny_bert, pooling=pooling)
    expected = encoder.encode(["the cat runs", "a dog", "the cat runs"])
    assert_allclose(np.load("e.npy"), expected, rtol=0, atol=1e-5)


def test_encode_counts_what_is_cut(work, done, tiny_bert):
    Path("s.txt").write_text("the cat runs in the street today\na dog\n")
    said = done("encode", tiny_bert, "--input", "s.txt", "--output", "e.npy", "--max-length", 5)
    assert "(1 distinct sentences cut to 5 tokens)" in said


def test_sentences_come_from_standard_input(work, done, tiny_bert, monkeypatch):
    data = Path("corpus.txt").read_bytes()
    fit = ["fit", "--encoder", tiny_bert, "--calibrator", "whitening", "--corpus"]
    done(*fit, "corpus.txt", "--output", "file")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    done(*fit, "-", "--output", "stdin")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    done("encode", "stdin", "--input", "-", "--output", "stdin.npy")
    done("encode", "file", "--input", "corpus.txt", "--output", "file.npy")
    assert_array_equal(np.load("stdin.npy"), np.load("file.npy"))


def test_several_files_a_column_and_a_limit(work, done, tiny_bert):
    Path("a.csv").write_text("id,text\n1,the cat\n2,a dog\n3,the bird\n")
    Path("b.jsonl").write_text('{"id": "4", "text": "two men"}\n{"id": "5", "text": "a red car"}\n')
    said = done(
        *["fit", "--encoder", tiny_bert, "--corpus", "a.csv", "--corpus", "b.jsonl"],
        *["--column", "text", "--limit", 4, "--calibrator", "standardization", "--output", "m"],
    )
    assert "fitted on 4 sentences (4 distinct" in said
    provenance = load_calibrator("m").provenance_
    assert provenance["corpus"] == ["a.csv", "b.jsonl"]
    assert (provenance["column"], provenance["limit"]) == ("text", 4)


def test_affine_couplings_work_with_bertflows_own_module(work, done, tiny_bert):
    done(
        *["fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "m"],
        *["--calibrator", "flow", "--set", "coupling=affine", "--no-portable"],
    )
    assert bertflow.load("m").calibrator.coupling == "affine"
    done("evaluate", "m", "--task", "stsb", "--data", "data", "--json", "score.json")
    read = json.loads(Path("score.json").read_text())
    expected = evaluate(bertflow.load("m"), data="data").all.value
    got = read["scores"]["stsb"]["aggregations"]["all"]["spearman"]["value"]
    assert got == pytest.approx(expected)


def test_scores_are_noted_in_a_models_card_where_asked(work, done, refused, tiny_bert):
    fit = ["fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--calibrator", "whitening"]
    done(*fit, "--output", "m")
    task = ["--task", "stsb", "--data", "data"]
    before = tree(Path("m"))
    assert b"--card" in before["README.md"]
    said = done("evaluate", "m", *task, "--against", tiny_bert, "--card")
    after = tree(Path("m"))
    assert [name for name in after if after[name] != before.get(name)] == ["README.md"]
    noted = re.search(
        r"\| stsb test \| \d+ \| Spearman, all \| (-?\d+\.\d\d) ", Path("m/README.md").read_text()
    )
    assert noted is not None and noted[1] in said
    assert b"None are noted" not in after["README.md"]
    done("evaluate", "m", *task, "--card")
    assert tree(Path("m")) == after
    assert "--card needs a calibrated model" in refused("evaluate", tiny_bert, *task, "--card")


def test_encode_without_an_engine_writes_npy_files_alone(work, refused, tiny_bert):
    given = ["encode", tiny_bert, "--corpus", "corpus.txt", "--output"]
    assert refused(*given, "vectors").startswith("vectors must end in .npy")
    assert "--engine local" in refused(*given, "vectors")
    assert not Path("vectors").exists()


def test_fitting_again_replaces_vectors_calibrator(work, done):
    for name in CALIBRATORS:
        done("fit", "--vectors", "vectors.npy", "--calibrator", name, "--output", "c")
        assert type(load_calibrator("c")) is CALIBRATORS[name]
    assert sorted(path.name for path in Path("c").iterdir()) == [
        ".bertflow-files.json",
        "README.md",
        "config.json",
        "model.safetensors",
        "reference.safetensors",
    ]
    assert [path.name for path in work.iterdir() if path.name.startswith(".")] == []


def test_fitting_again_replaces_an_encoders_model(work, done, tiny_bert):
    for name in ["standardization", "whitening"]:
        done(
            *["fit", "--encoder", tiny_bert, "--corpus", "corpus.txt"],
            *["--calibrator", name, "--output", "m"],
        )
        assert type(bertflow.load("m").calibrator) is CALIBRATORS[name]
    assert [path.name for path in work.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("form", ["vectors", "encoder"])
def test_an_empty_folder_may_be_the_output(work, done, tiny_bert, form):
    Path("out").mkdir()
    done(*fitting(form, tiny_bert), "--output", "out")
    assert load_calibrator("out").n_features_in_ == WIDTH


def fitting(form: str, encoder: Path) -> list:
    """fit in either form, without the output."""
    given = {"vectors": ["--vectors", "vectors.npy"], "encoder": ["--encoder", encoder]}
    corpus = ["--corpus", "corpus.txt"] if form == "encoder" else []
    return ["fit", *given[form], *corpus, "--calibrator", "whitening"]


@pytest.mark.parametrize("form", ["vectors", "encoder"])
def test_a_path_is_shown_as_it_is(work, done, tiny_bert, form):
    # An unbalanced tag would be an error of the terminal's markup, after the work is done.
    target = Path("out[/red]p:smile:t [red]") / "model"
    assert f"saved to {target}:" in done(*fitting(form, tiny_bert), "--output", target)
    assert load_calibrator(target).n_features_in_ == WIDTH


# Settings of the calibrator.


SETTINGS = [
    ("flow", "epochs=2", "epochs", 2),
    ("flow", "epochs=0.25", "epochs", 0.25),
    ("flow", "learning_rate=1e-2", "learning_rate", 0.01),
    ("flow", "levels=3", "levels", 3),
    ("flow", " batch-size = 64 ", "batch_size", 64),
    ("flow", "max_grad_norm=null", "max_grad_norm", None),
    ("flow", "max_grad_norm=None", "max_grad_norm", None),
    ("flow", "residual=false", "residual", False),
    ("flow", "residual=True", "residual", True),
    ("flow", "coupling=affine", "coupling", "affine"),
    ("flow", 'coupling="affine"', "coupling", "affine"),
    ("flow", "random_state=5", "random_state", 5),
    ("whitening", "dim=256", "dim", 256),
    ("whitening", "dim=null", "dim", None),
    ("whitening", "power=0.75", "power", 0.75),
    ("whitening", "power=1", "power", 1),
    ("whitening", "shrinkage=auto", "shrinkage", "auto"),
    ("whitening", "shrinkage=0.1", "shrinkage", 0.1),
    ("all-but-the-top", "n_components=3", "n_components", 3),
    ("all-but-the-top", "standardize=TRUE", "standardize", True),
]


def test_a_setting_is_read_as_what_it_is():
    for name, setting, key, value in SETTINGS:
        got = Chosen(calibrator=name, set=[setting]).build("auto").get_params()[key]
        assert got == value, setting
        assert type(got) is type(value), setting


def test_seed_and_device_go_to_who_takes_them():
    flow = Chosen(calibrator="flow", random_state=3).build("cpu")
    assert (flow.random_state, flow.device) == (3, "cpu")
    for name in ["whitening", "standardization", "all-but-the-top"]:
        default = CALIBRATORS[name]().get_params()
        assert Chosen(calibrator=name).build("cpu").get_params() == default


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_flow_with_its_settings_and_what_is_set_besides(name):
    built = Chosen(calibrator=name, set=["epochs=0.5"], random_state=3).build("cpu")
    expected = PRESETS[name](epochs=0.5, random_state=3, device="cpu")
    assert type(built) is Flow
    assert built.get_params() == expected.get_params() != Flow().get_params()


@every_calibrator
def test_an_unknown_setting_is_refused_and_the_known_are_listed(name):
    with pytest.raises(InputError, match=f"{name} has no 'colour'") as caught:
        Chosen(calibrator=name, set=["colour=1"]).build("auto")
    for known in CALIBRATORS[name]().get_params():
        assert known in str(caught.value)


@pytest.mark.parametrize("setting", ["epochs", "", "epochs:2"])
def test_a_setting_without_a_value_is_refused(setting):
    with pytest.raises(InputError, match="KEY=VALUE"):
        Chosen(calibrator="flow", set=[setting]).build("auto")


# What cannot be done: exit code 1, one line, nothing written.


@pytest.fixture
def refused(refused, work):
    """As it is everywhere, in the folder to work in."""
    return refused


def test_a_missing_corpus_is_refused(refused, tiny_bert):
    for source in ["nope.txt", "nope.parquet"]:
        fit = ["fit", "--encoder", tiny_bert, "--output", "out", "--corpus"]
        assert f"{source} does not exist" in refused(*fit, source)
        assert f"{source} does not exist" in refused(*fit, "corpus.txt", "--corpus", source)
        encode = ["encode", tiny_bert, "--output", "e.npy", "--input"]
        assert f"{source} does not exist" in refused(*encode, source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no sentence"),
        ("\n  \n", "holds no sentence"),
        ("the cat\n", "at least 2"),
        ("the cat\nthe cat\nthe cat\n", "at least 2"),
    ],
)
def test_too_small_a_corpus_is_refused(refused, work, tiny_bert, text, message):
    Path("small.txt").write_text(text)
    fit = ["fit", "--encoder", tiny_bert, "--output", "out", "--corpus", "small.txt"]
    assert message in refused(*fit)


def test_text_that_no_tokenizer_takes_is_refused(refused, work, tiny_bert):
    # Half of a surrogate pair is valid JSON, but no text.
    Path("s.jsonl").write_text('{"text": "the cat"}\n{"text": "a \\ud83d dog"}\n')
    refused("encode", tiny_bert, "--input", "s.jsonl", "--output", "e.npy")
    refused("fit", "--encoder", tiny_bert, "--corpus", "s.jsonl", "--output", "out")


def test_a_blank_line_to_encode_is_refused_by_number(refused, work, tiny_bert):
    Path("s.txt").write_text("the cat\n\na dog\n")
    said = refused("encode", tiny_bert, "--input", "s.txt", "--output", "e.npy")
    assert "sentence 2 is blank" in said


def loading_commands(encoder: str | Path, *options) -> list[list]:
    """Each command that loads an encoder."""
    return [
        ["fit", "--encoder", encoder, "--corpus", "corpus.txt", "--output", "out", *options],
        ["encode", encoder, "--input", "corpus.txt", "--output", "e.npy", *options],
        ["evaluate", encoder, "--task", "stsb", "--data", "data", "--json", "s.json", *options],
        ["demo", "--encoder", encoder, "--output", "out", *options],
        ["compare", encoder, "--task", "stsb", "--data", "data", "--json", "s.json", *options],
    ]


CORPUS = ["--corpus", "corpus.txt", "--output", "e.npy"]
every_loading_command = pytest.mark.parametrize(
    "index", range(5), ids=["fit", "encode", "evaluate", "demo", "compare"]
)
# Bare encoders and models of either kind are opened by a function each.
either_way_of_loading = pytest.mark.parametrize("index", [0, 1], ids=["fit", "encode"])


@every_loading_command
def test_a_missing_encoder_is_refused(refused, index):
    for encoder in ("./nope", "/no/such/folder", "a/b/c"):
        assert f"{encoder} does not exist" in refused(*loading_commands(encoder)[index])


@either_way_of_loading
def test_a_hidden_state_that_is_not_there_is_refused(refused, tiny_bert, index):
    said = refused(*loading_commands(tiny_bert, "--pooling", "layers:9")[index])
    assert "hidden state 9, but the encoder has 3 blocks" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pooling", "max"], "unknown pooling 'max'; expected one of cls, mean, last2avg"),
        (["--pooling", "layers:x"], "unknown pooling 'layers:x'"),
        (["--pooling", "layers:1,1"], "unknown pooling 'layers:1,1'"),
        (["--max-length", 33], "max_length 33 is above the encoder's 32"),
        (["--max-length", 0], "max_length must be an integer of at least 1"),
        (["--device", "nonsense"], "nonsense"),
        (["--device", "cuda:99"], "cuda"),
    ],
    ids=lambda value: "=".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_the_encoder_cannot_do_is_refused(refused, tiny_bert, options, message):
    assert message in refused("encode", tiny_bert, *CORPUS, *options)


@either_way_of_loading
def test_a_model_that_cannot_be_had_is_refused(refused, monkeypatch, index):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    said = refused(*loading_commands("no-such-org/no-such-model")[index])
    assert said.startswith("no-such-org/no-such-model is no folder here and cannot be had")


@either_way_of_loading
def test_a_missing_gguf_is_refused(refused, index):
    assert "nope.gguf does not exist" in refused(*loading_commands("nope.gguf")[index])


@pytest.mark.parametrize("missing", [["gguf"], ["accelerate"], ["gguf", "accelerate"]])
def test_a_gguf_without_its_packages_is_refused_with_the_pip_line(
    refused, work, monkeypatch, missing
):
    Path("model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(
        "bertflow.errors.find_spec", lambda name: None if name in missing else find_spec(name)
    )
    said = refused("encode", "model.gguf", *CORPUS)
    assert "pip install 'bertflow[gguf]'" in said
    assert f"model.gguf needs {' and '.join(missing)}:" in said


@either_way_of_loading
def test_a_gguf_that_is_none_is_refused(refused, work, index):
    Path("model.gguf").write_bytes(b"no such format")
    assert "model.gguf" in refused(*loading_commands("model.gguf")[index])


@either_way_of_loading
def test_a_calibrator_alone_is_no_encoder(refused, tiny_fitted, index):
    said = refused(*loading_commands(tiny_fitted)[index])
    assert "a calibrator alone, without an encoder" in said


@either_way_of_loading
def test_a_file_or_folder_that_is_no_encoder_is_refused(refused, work, index):
    Path("notes.txt").write_text("notes")
    assert "notes.txt is no .gguf file" in refused(*loading_commands("notes.txt")[index])
    assert "data is no encoder" in refused(*loading_commands("./data")[index])


@pytest.mark.parametrize("command", ["fit", "demo"])
@pytest.mark.parametrize("name", ["magic", ""])
def test_an_unknown_calibrator_is_refused_and_the_known_are_listed(
    refused, tiny_bert, command, name
):
    given = ["--corpus", "corpus.txt"] if command == "fit" else []
    said = refused(command, "--encoder", tiny_bert, *given, "--calibrator", name, "--output", "out")
    start, _, known = said.partition("; expected one of ")
    assert start == f"unknown calibrator {name!r}"
    assert set(known.split(", ")) == {*CALIBRATORS, *PRESETS, "search-whitening"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--calibrator", "tempered"], "tempered-flow"),
        (["--calibrator", "Whiten"], "whitening"),
        (["--calibrator", "flow", "--set", "epoch=2"], "epochs"),
        (["--pooling", "last2-avg"], "last2avg"),
        (["--precision", "float-32"], "float32"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_name_that_is_nearly_right_is_asked_about(refused, given, meant):
    said = refused("fit", "--encoder", "a/b", "--corpus", "corpus.txt", "--output", "out", *given)
    assert said.endswith(f"; did you mean {meant}?")


def test_a_bad_row_of_the_data_is_named(refused, work, tiny_bert):
    file = Path("data/STSBenchmark/sts-test.csv")
    file.write_text(file.read_text() + "genre\tfile\tyear\tid\t5\n")
    said = refused("evaluate", tiny_bert, "--task", "stsb", "--data", "data")
    assert "sts-test.csv, line 31: 5 columns" in said


@pytest.mark.parametrize("command", ["encode", "evaluate"])
@pytest.mark.parametrize("option", [["--pooling", "mean"], ["--max-length", "16"]])
def test_a_calibrated_model_keeps_what_it_was_fitted_with(
    refused, tiny_calibrated, command, option
):
    commands = {"encode": 1, "evaluate": 2}
    said = refused(*loading_commands(tiny_calibrated, *option)[commands[command]])
    assert "is a calibrated model" in said


def test_vectors_and_encoder_do_not_go_together(refused, tiny_bert):
    fit = ["fit", "--vectors", "vectors.npy", "--output", "out"]
    for option in [
        ["--encoder", tiny_bert],
        ["--corpus", "corpus.txt"],
        ["--pooling", "mean"],
        ["--column", "text"],
        ["--max-length", 16],
        ["--sample", 5],
        ["--batch-size", 4],
        ["--precision", "fast"],
    ]:
        assert refused(*fit, *option) == f"{option[0]} does not go with --vectors"


def test_an_option_that_would_not_count_is_refused(refused):
    fit = ["fit", "--vectors", "vectors.npy", "--output", "out", "--calibrator", "whitening"]
    twice = ["--set", "dim=4", "--set", "dim=5"]
    assert refused(*fit, *twice) == "--set gives dim twice; give it once"
    assert refused(*fit, "--random-state", 7).startswith(
        "--random-state does not go with whitening"
    )


def test_neither_vectors_nor_an_encoder_with_a_corpus_is_refused(refused, tiny_bert):
    for given in [[], ["--encoder", tiny_bert], ["--corpus", "corpus.txt"]]:
        assert "--vectors" in refused("fit", "--output", "out", *given)


def test_affine_couplings_are_not_portable_and_say_what_to_do(refused, tiny_bert):
    said = refused(
        *["fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "out"],
        *["--calibrator", "flow", "--set", "coupling=affine"],
    )
    assert "--no-portable" in said


@pytest.mark.parametrize(
    ("name", "value", "said"), [("flow", np.nan, "NaN"), ("whitening", np.inf, "inf")]
)
def test_a_vector_that_is_not_finite_is_refused_by_row(refused, work, name, value, said):
    rows = np.load("vectors.npy")
    rows[71, 3] = value
    np.save("bad.npy", rows)
    line = refused("fit", "--vectors", "bad.npy", "--calibrator", name, "--output", "out")
    assert said in line
    assert "row 71 " in line


@pytest.mark.parametrize("inverse", [[], ["--inverse"]])
def test_a_vector_that_is_not_finite_is_not_transformed(refused, work, tiny_fitted, inverse):
    rows = np.load("vectors.npy")
    rows[71, 3] = np.nan
    np.save("bad.npy", rows)
    line = refused("transform", tiny_fitted, "--vectors", "bad.npy", "--output", "z.npy", *inverse)
    assert "NaN in row 71 " in line


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.arange(9.0).reshape(9, 1), "n_features = 1"),
        (np.ones((1, 4)), "n_samples = 1"),
        (np.empty((0, 4)), "sample"),
        (np.ones((9, 4)), "equal"),
        (np.ones(4), "shape (4,)"),
    ],
    ids=["one-dimension", "one-row", "no-row", "equal-rows", "no-matrix"],
)
def test_vectors_that_cannot_be_calibrated_are_refused(refused, work, rows, message):
    np.save("bad.npy", rows)
    for name in ("whitening", "flow"):
        line = refused("fit", "--vectors", "bad.npy", "--calibrator", name, "--output", "out")
        assert message in line


@pytest.mark.parametrize("command", ["fit", "transform"])
def test_a_file_that_is_no_vectors_is_refused(refused, work, tiny_fitted, command):
    Path("text.npy").write_text("0.1 0.2\n")
    for source, output in [("nope.npy", "z.npy"), ("text.npy", "z.npy"), ("data", "out")]:
        given = {"fit": ["fit"], "transform": ["transform", tiny_fitted]}[command]
        assert source in refused(*given, "--vectors", source, "--output", output)


@pytest.mark.parametrize("output", ["z.csv", "z", "z.npz"])
def test_transform_writes_npy_or_nothing(refused, tiny_fitted, output):
    said = refused("transform", tiny_fitted, "--vectors", "vectors.npy", "--output", output)
    assert said.startswith(f"{output} must end in .npy")


@pytest.mark.parametrize("inverse", [[], ["--inverse"]])
def test_vectors_of_another_width_are_refused(refused, work, tiny_fitted, inverse):
    np.save("narrow.npy", np.ones((3, 5)))
    line = refused(
        *["transform", tiny_fitted, "--vectors", "narrow.npy", "--output", "z.npy"], *inverse
    )
    assert "5 " in line
    assert "16" in line


@pytest.mark.parametrize("folder", ["nope", "data", "corpus.txt"])
def test_a_folder_without_a_calibrator_is_refused(refused, folder):
    line = refused("transform", folder, "--vectors", "vectors.npy", "--output", "z.npy")
    assert folder in line


@pytest.mark.parametrize("form", ["vectors", "encoder", "demo"])
@pytest.mark.parametrize("output", ["mine", "mine/notes.txt"])
def test_an_output_that_holds_something_else_is_untouched(refused, work, tiny_bert, form, output):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("do not lose")
    command = ["demo", "--encoder", tiny_bert] if form == "demo" else fitting(form, tiny_bert)
    assert output in refused(*command, "--output", output)
    assert Path("mine/notes.txt").read_text() == "do not lose"


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "--vectors", "nope.npy"],
        ["fit", "--encoder", "no/encoder", "--corpus", "corpus.txt"],
        ["demo", "--encoder", "no/encoder"],
    ],
    ids=["vectors", "encoder", "demo"],
)
def test_an_output_that_holds_something_else_is_refused_before_any_work(refused, command):
    assert refused(*command, "--output", "data").startswith("data holds ")


@pytest.mark.parametrize("command", ["transform", "encode"])
@pytest.mark.parametrize("output", ["data", "corpus.txt/z.npy"])
def test_an_output_file_that_cannot_be_is_refused(
    refused, work, tiny_bert, tiny_fitted, command, output
):
    given = {
        "transform": ["transform", tiny_fitted, "--vectors", "vectors.npy"],
        "encode": ["encode", tiny_bert, "--input", "corpus.txt"],
    }
    assert f"cannot write {output}" in refused(*given[command], "--output", output)


REFUSED = [
    ("flow", "epochs=null"),
    ("flow", "epochs=0"),
    ("flow", "epochs=-1"),
    ("flow", "epochs=Infinity"),
    ("flow", "learning_rate=null"),
    ("flow", "learning_rate=NaN"),
    ("flow", "learning_rate=1e30"),
    ("flow", "adam_epsilon=null"),
    ("flow", "weight_decay=null"),
    ("flow", "weight_decay=-1"),
    ("flow", "weight_decay=NaN"),
    ("flow", "scale_rate=null"),
    ("flow", "levels=0"),
    ("flow", "depth=0"),
    ("flow", "width=0"),
    ("flow", "batch_size=0"),
    ("flow", "coupling=Affine"),
    ("flow", "permutation=none"),
    ("flow", "schedule=cosine"),
    ("flow", "device=nonsense"),
    ("flow", "device=cuda:99"),
    ("flow", "random_state=-1"),
    ("whitening", "dim=0"),
    ("whitening", "dim=17"),
    ("whitening", "dim=2.5"),
    ("whitening", "power=null"),
    ("whitening", "power=2"),
    ("whitening", "shrinkage=null"),
    ("whitening", "shrinkage=-0.1"),
    ("all-but-the-top", "n_components=-1"),
    ("all-but-the-top", "n_components=16"),
    ("all-but-the-top", "n_components=1.5"),
    ("flow", "epochs=many"),
    ("flow", "epochs=true"),
    ("flow", "epochs=[1]"),
    ("flow", "levels=2.5"),
    ("flow", "levels=null"),
    ("flow", "levels=true"),
    ("flow", "residual=yes"),
    ("flow", "coupling=3"),
    ("flow", "max_grad_norm=off"),
    ("whitening", "dim=all"),
    ("whitening", "dim=true"),
    ("whitening", "shrinkage={}"),
    ("whitening", "shrinkage=automatic"),
    ("all-but-the-top", "n_components="),
]


def test_a_setting_of_another_type_or_range_is_refused_by_name(refused):
    for name, setting in REFUSED:
        line = refused(
            *["fit", "--vectors", "vectors.npy", "--output", "out"],
            *["--calibrator", name, "--set", setting],
        )
        assert setting.partition("=")[0].replace("_", " ") in line.replace("_", " "), setting


def test_debug_raises_what_otherwise_is_one_line(work, tiny_bert, capsys):
    fit = ["fit", "--encoder", str(tiny_bert), "--corpus", "nope.txt", "--output", "out"]
    with pytest.raises(InputError, match=r"nope\.txt"):
        run(["--debug", *fit])
    with pytest.raises(ModelError, match="nope"):
        run(["--debug", "transform", "nope", "--vectors", "vectors.npy", "--output", "z.npy"])
    # And only where it was asked for.
    assert run(fit) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_an_error_nobody_thought_of_is_one_line_too(cli, work, tiny_fitted, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("bertflow.io.vectors.transform_file", broken)
    code, _, err = cli("transform", tiny_fitted, "--vectors", "vectors.npy", "--output", "z.npy")
    assert code == 1
    assert err == ("error: unexpected RuntimeError: first line second line (--debug shows where)\n")


def test_an_interruption_is_130(cli, work, tiny_bert, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertflow.data.checked_corpus", interrupted)
    before = tree(work)
    code, _, err = cli("fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "out")
    assert (code, err) == (130, "error: interrupted\n")
    assert tree(work) == before
    assert logging.getLogger("bertflow").level == logging.NOTSET


def test_an_interruption_while_the_process_ends_shows_no_traceback():
    script = """
import atexit, os, signal
from bertflow.cli.main import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.strip()


# Usage.


MISUSES = [
    ["nope"],
    ["fit"],
    ["fit", "--nope"],
    ["fit", "--output", "out", "--limit", "0"],
    ["fit", "--output", "out", "--limit", "many"],
    ["fit", "--output", "out", "--random-state", "x"],
    ["fit", "--output"],
    ["transform"],
    ["transform", "folder", "--vectors", "x.npy"],
    ["transform", "folder", "another", "--vectors", "x.npy", "--output", "z.npy"],
    ["encode", "model", "--output", "z.npy"],
    ["encode", "model", "--input", "s.txt", "--output", "z.npy", "--batch-size", "0"],
    ["evaluate", "--task", "stsb"],
    ["compare", "--task", "stsb"],
    ["compare", "model", "--task", "stsb", "--seeds", "0"],
    ["compare", "model", "--task", "stsb", "--jobs", "0"],
    ["demo", "something"],
    ["--nope"],
]


def test_wrong_usage_is_2_and_one_line(cli, work):
    before = tree(work)
    for arguments in MISUSES:
        code, out, err = cli(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "bertflow --help" in err
        assert tree(work) == before


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_there_for_every_command(cli, command):
    code, out, err = cli(*([command] if command else []), "--help")
    assert cli(*([command] if command else []), "-h") == (code, out, err)
    assert (code, err) == (0, "")
    assert "Usage: bertflow" in out
    special = {
        None: COMMANDS,
        "evaluate": ["--task", "--pairs", "--against", "--json", "--markdown"],
        "compare": ["--task", "--fit", "--method", "--seeds", "--json", "--markdown"],
        "diagnose": ["--corpus", "--pairs", "--json", "--markdown"],
    }
    for word in special.get(command, ["--output"]):
        assert word in out


def commands_and_groups() -> dict[str, object]:
    """Every command by its path."""
    top = typer.main.get_command(app)
    return {
        f"{name} {inner}".strip(): command
        for name, one in top.commands.items()
        for inner, command in getattr(one, "commands", {"": one}).items()
    }


@pytest.mark.parametrize("path", commands_and_groups())
def test_help_can_be_read_at_80_columns(cli, monkeypatch, path):
    """Names stand whole on their line, and the text beside them has half of it."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = cli(*path.split(), "--help")
    assert "…" not in out
    for parameter in commands_and_groups()[path].params:
        names = parameter.opts if parameter.param_type_name == "option" else [""]
        for name in names:
            assert re.search(rf"│.*{name}[ ,].*{re.escape(parameter.metavar or '')} ", out), name
    for line in out.splitlines():
        if found := re.match(r"│( {10,})\S", line):  # The text goes on.
            assert len(line) - len(" │") - len(found[0]) + 1 >= 39, line
    assert len(out.splitlines()) <= 90


def test_the_help_of_fit_begins_with_what_everyone_needs(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = cli("fit", "--help")
    everyday = re.search(r"╭─ Options(.*?)╰", out, re.DOTALL)[1]
    assert re.findall(r"(--[a-z-]+)  ", everyday) == [
        *("--encoder", "--corpus", "--queries", "--output", "--calibrator", "--job", "--vectors"),
        *("--query-vectors", "--update", "--help"),
    ]
    for group in ("Input", "Calibrator", "Encoder", "Speed and cache", "Folders of .parquet"):
        assert f"╭─ {group}" in out


def test_no_argument_shows_the_help_and_no_error(cli):
    _, out, err = cli()
    assert "Usage: bertflow" in out
    assert "error" not in err


def test_the_package_runs_as_the_command():
    ran = subprocess.run(
        [sys.executable, "-m", "bertflow", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{bertflow.__version__}\n"


def test_version_is_that_of_the_package(cli):
    assert cli("--version") == (0, f"{bertflow.__version__}\n", "")


def test_a_warning_is_one_plain_line(cli, work):
    few = ["--vectors", "few.npy", "--calibrator", "whitening"]
    np.save("few.npy", np.load("vectors.npy")[:10])
    with warnings.catch_warnings():
        warnings.simplefilter("always", FewRowsWarning)
        code, _, err = cli("fit", *few, "--output", "c")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("warning: ")
    assert "10 rows" in err


def test_notes_are_wrapped_by_words_on_a_terminal_alone(monkeypatch):
    page = Page({}, [], ["four-letter words " * 20 + "/a/path-that-stays-whole" * 5])
    assert page.text().count("\n") == 1
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    _, first, *lines, path = page.text().splitlines()
    assert first.startswith("- four-letter words ")
    assert all(line.startswith("  four-letter ") and len(line) <= 60 for line in lines)
    assert path.endswith("/a/path-that-stays-whole" * 5)


# In a process of its own.


def process(*arguments, flags=(), **keywords) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in QUIET}
    code = "from bertflow.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        **keywords,
    )


def test_help_needs_no_docstrings():
    ran = process("fit", "--help", flags=["-OO"])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--encoder" in ran.stdout


@pytest.mark.nightly
def test_a_process_evaluates_without_a_word_on_standard_error(work, tiny_calibrated):
    done = process("evaluate", tiny_calibrated, "--task", "stsb", "--data", "data")
    assert (done.returncode, done.stderr) == (0, "")
    assert "whitening" in done.stdout


def test_a_process_ends_with_the_code_of_its_error(work):
    done = process("encode", "model", "--input", "nope.txt", "--output", "e.npy")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: nope.txt does not exist\n"
    assert process("nope").returncode == 2


READING = ["fit", "encode", "evaluate", "compare", "diagnose", "analyze isotropy"]


def test_whatever_reads_text_can_be_told_its_format():
    for command in [*READING, "analyze lexical", "report"]:
        names = [name for one in commands_and_groups()[command].params for name in one.opts]
        assert "--format" in names, command


def test_a_format_reaches_the_readers(work, cli, done, refused, tiny_bert, tiny_sentences):
    """Of corpora and of pairs, where no ending says what they are."""
    Path("sents").write_bytes(Path("corpus.txt").read_bytes())
    rows = [f'"{a}","{b}",{a < b:d}' for a, b in itertools.pairwise(tiny_sentences[:40])]
    Path("pairs").write_text("\n".join(["a,b,s", *rows]))
    fit = [*fitting("encoder", tiny_bert), "--output", "m"]
    fit[fit.index("corpus.txt")] = "sents"
    assert "--format" in refused(*fit)
    done(*fit, "--format", "txt")
    assert load_calibrator("m").provenance_["format"] == "txt"
    done("encode", "m", "--corpus", "sents", "--format", "txt", "--output", "z.npy")
    assert len(np.load("z.npy")) == 300
    done("report", "z.npy", "--corpus", "sents", "--format", "txt", "--output", "page.html")
    columns = ["--columns", "a,b,s", "--format", "csv"]
    for command in ["evaluate", "diagnose", "analyze lexical"]:
        assert cli(*command.split(), tiny_bert, "--pairs", "pairs", *columns)[0] == 0, command
    code, out, _ = cli("analyze", "isotropy", tiny_bert, "--corpus", "sents", "--format", "txt")
    assert code == 0
    assert "unknown kind" not in out


# What is wrong with the command line or the files, each with what the message says of it.
WRONG = [
    (["fit", "--encoder", "a/b", "--corpus", "nope.txt", "--output", "m"], "nope.txt"),
    (["fit", "--encoder", "a/b", "--corpus", "corpus.txt", "--output", "data"], "data holds"),
    (["fit", "--encoder", "a/b", "--corpus", "corpus.txt", "--output", "corpus.txt/m"], "m"),
    (["encode", "a/b", "--corpus", "corpus.txt", "--output", "z.csv"], "z.csv must end in .npy"),
    (["encode", "a/b", "--corpus", "nope.txt", "--output", "z.npy"], "nope.txt"),
    (["transform", "nope", "--vectors", "vectors.npy", "--output", "z.npy"], "nope"),
    (["demo", "--calibrator", "magic"], "unknown calibrator"),
    (
        ["encode", "a/b", "--corpus", "nope.txt", "--output", "z.npy", "--role", "both"],
        "query, doc",
    ),
    (["evaluate", "a/b", "--task", "sick"], "qnli, all; did you mean"),
    (["evaluate", "a/b", "--task", "stsb", "--precision", "int4"], "unknown precision"),
    (["evaluate", "a/b", "--task", "stsb", "--json", "corpus.txt/s.json"], "corpus.txt"),
    (["compare", "a/b", "--pairs", "nope.csv"], "nope.csv"),
    (["compare", "a/b", "--pairs", "mine.csv"], "mine.csv"),
    (["diagnose", "a/b", "--corpus", "nope.txt"], "nope.txt"),
    (["diagnose", "a/b", "--pairs", "nope.csv"], "nope.csv"),
    (["analyze", "isotropy", "a/b", "--corpus", "nope.txt"], "nope.txt"),
    (["analyze", "lexical", "a/b", "--pairs", "nope.csv"], "nope.csv"),
    (["finetune", "--encoder", "a/b", "--nli", "snli", "--output", "data"], "data holds"),
]


def test_what_is_wrong_is_said_before_an_encoder_is_imported(work):
    """That would take seconds more; in one process, which none of them makes import it."""
    code = (
        "import sys; from bertflow.cli.main import run\n"
        f"for given in {[given for given, _ in WRONG]}:\n"
        "    assert run(given) == 1, given\n"
        "    assert 'sentence_transformers' not in sys.modules, given\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for (given, said), line in zip(WRONG, ran.stderr.splitlines(), strict=True):
        assert line.startswith("error: "), given
        assert said in line


@pytest.mark.parametrize(
    "command",
    [
        ["encode", "a/b", "--corpus", "nope.txt", "--output", "z.npy"],
        ["compare", "a/b", "--pairs", "nope.csv"],
        ["reproduce", "table1", "--encoder", "a/b", "--data", "nope"],
        ["analyze", "isotropy", "a/b", "--corpus", "nope.txt", "--pooling", "cls"],
    ],
)
def test_an_unknown_pooling_is_refused_before_anything_is_read(refused, work, command):
    assert "unknown pooling 'meen'" in refused(*command, "--pooling", "meen")


def test_the_names_that_are_known_without_an_encoder_are_those_it_knows():
    assert options.PRECISIONS == get_args(Precision)
    assert options.ROLES == get_args(Role)


def test_an_output_that_is_taken_meanwhile_stays(cli, work, monkeypatch):
    """Someone puts a file into the output while the fit is going on."""
    learn = Whitening._fit

    def disturbed(self, *given):
        Path("m").mkdir()
        Path("m/notes.txt").write_text("mine")
        learn(self, *given)

    monkeypatch.setattr(Whitening, "_fit", disturbed)
    code, _, err = cli(*fitting("vectors", Path()), "--output", "m")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: m holds notes.txt")
    assert [path.name for path in Path("m").iterdir()] == ["notes.txt"]


# Stopped.


def part(name: str) -> Path:
    return Path(f".{name}.part/flow.safetensors")


@pytest.fixture
def stop(monkeypatch):
    """Let the next fit be interrupted after a step; checkpoints are written at every chance."""
    monkeypatch.setattr("bertflow.calibrators.training.SAVED_SECONDS", 0.0)
    seen = []

    def after(step: int | None, error: type[BaseException] = KeyboardInterrupt) -> list[int]:
        class Watching(Bars):
            def __call__(self, stage, done, total, bits=None):
                if stage == "fit":
                    seen.append(done)
                    if done == step:
                        raise error

        seen.clear()
        monkeypatch.setattr("bertflow.display.progress.Bars", Watching)
        monkeypatch.setattr("bertflow.display.progress.is_watched", lambda: True)
        return seen

    return after


@pytest.fixture
def fit(request, work, tiny_bert):
    """The command of a flow of 100 steps and more, on vectors or on text, but for its output."""
    source = {
        "vectors": ["--vectors", "vectors.npy", "--set", "batch_size=1"],
        "text": ["--encoder", tiny_bert, "--corpus", "corpus.txt", "--set", "batch_size=3"],
    }
    chosen = source[getattr(request, "param", "vectors")]
    return ["fit", *chosen, "--calibrator", "flow", "--set", "width=8", "--output"]


def learned(name: str) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in load_calibrator(name)._learned().items()}


@pytest.mark.parametrize("fit", ["vectors", "text"], indirect=True)
def test_an_interrupted_fit_says_how_to_go_on_and_does(cli, done, fit, stop, monkeypatch):
    stop(None)
    done(*fit, "whole")
    stop(30)
    code, out, err = cli(*fit, "new/m")
    assert (code, out) == (130, "")
    kept = "the vectors in " if "--encoder" in fit else "nothing was saved yet"
    assert err.startswith("error: interrupted; the same command ")
    assert kept in err
    assert err.count("\n") == 1
    assert not Path("new/m").exists()
    stop(90)
    code, out, err = cli(*fit, "m")
    said = f"error: interrupted; the same command goes on from {part('m').absolute()}\n"
    assert (code, out, err) == (130, "", said)
    assert [path.name for path in part("m").parent.iterdir()] == [part("m").name]
    stop(66)
    with monkeypatch.context() as patch:
        patch.setattr("bertflow.calibrators.training.SAVED_SECONDS", 1000.0)
        said = cli(*fit, "m")
    goes_on = f"the same command goes on from {part('m').absolute()}"
    assert said == (130, "", f"error: interrupted; {goes_on}\n")
    seen = stop(None)
    done(*fit, "m")
    assert seen[0] == 65
    assert not part("m").parent.exists()
    assert learned("m").keys() == learned("whole").keys()
    for name, expected in learned("whole").items():
        assert_array_equal(learned("m")[name], expected)


def test_an_output_that_cannot_be_written_keeps_what_was_trained(cli, done, fit, stop, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bertflow.calibrators.storage.save_file", full)
        code, _, err = cli(*fit, "m")
    assert code == 1
    assert err.startswith("error: cannot write m: No space left on device; the same command ")
    assert f" goes on from {part('m').absolute()}" in err
    assert not Path("m").exists()
    seen = stop(None)
    done(*fit, "m")
    assert seen[0] == 65


def test_a_mistyped_option_takes_nothing_from_what_was_stopped(cli, refused, done, fit, stop):
    stop(90)
    cli(*fit, "m")
    stop(None)
    assert "levels must be" in refused(*fit, "m", "--set", "levels=0")
    seen = stop(None)
    done(*fit, "m")
    assert seen[0] == 65


def test_a_second_process_on_the_same_output_is_refused_at_once(work, refused, done, stop):
    command = ["fit", "--vectors", "vectors.npy", "--output", "m"]
    whole = Path("m").absolute().with_name(".m.part")
    whole.mkdir()
    with FileLock(whole / "lock"):
        said = refused(*command)
    assert said == (
        f"cannot write m: another process is writing it ({whole / 'lock'}); wait for it, or give "
        "another output"
    )
    done(*command)
    assert not whole.exists()


def test_a_fit_that_diverges_names_the_step_and_leaves_no_output(cli, fit, stop, monkeypatch):
    factors = training._Adam.factors

    def broken(self, step):
        if step + 1 == 80:
            self.flat.fill_(float("nan"))
        return factors(self, step)

    monkeypatch.setattr(training._Adam, "factors", broken)
    for _ in range(2):
        stop(None)
        code, out, err = cli(*fit, "m")
        assert (code, out) == (1, "")
        assert err.startswith("error: step 81 of 1")
        assert err.endswith(" (now 0.001)\n")
        assert err.count("\n") == 1
        assert not Path("m").exists()


DYING = """
import os, sys
from bertflow.calibrators import training
from bertflow.display import progress
training.SAVED_SECONDS = 0.0
class Watching(progress.Bars):
    def __call__(self, stage, done, total, bits=None):
        if done == 90 and stage == "fit":
            os.kill(os.getpid(), 9)
progress.Bars, progress.is_watched = Watching, lambda: True
from bertflow.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_to_the_same_bits(done, fit, stop):
    fit = list(map(str, fit))
    process = subprocess.run([sys.executable, "-c", DYING, *fit, "m"], capture_output=True)
    assert process.returncode == -9
    assert not Path("m").exists()
    assert part("m").exists()
    seen = stop(None)
    done(*fit, "whole")
    assert seen[0] == 1
    seen = stop(None)
    done(*fit, "m")
    assert seen[0] == 65
    assert not part("m").parent.exists()
    for name, expected in learned("whole").items():
        assert_array_equal(learned("m")[name], expected)


# Kept.


def kept_place(line: str) -> Path:
    return Path(re.search(r"; what was computed is in (\S+?)(;|$)", line)[1])


@pytest.mark.parametrize("form", ["vectors", "encoder"])
def test_a_calibrator_whose_output_is_taken_meanwhile_is_kept(
    cli, work, tiny_bert, monkeypatch, form
):
    """Someone puts a file into the output while the fit is going on."""
    learn = Whitening._fit

    def disturbed(self, *given):
        Path("m").mkdir(exist_ok=True)
        Path("m/notes.txt").write_text("mine")
        learn(self, *given)

    monkeypatch.setattr(Whitening, "_fit", disturbed)
    command = [*fitting(form, tiny_bert), "--calibrator", "whitening"]
    code, _, err = cli(*command, "--output", "m")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: m holds notes.txt")
    assert [path.name for path in Path("m").iterdir()] == ["notes.txt"]
    place = kept_place(err)
    assert load_calibrator(place).n_features_in_ == WIDTH
    if form != "vectors":
        assert SentenceTransformer(str(place)).encode(["a man"]).shape == (1, WIDTH)


def test_the_calibrator_is_kept_where_the_model_cannot_be_saved(cli, work, tiny_bert, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("such a tokenizer cannot be saved")

    monkeypatch.setattr(CalibratedSentenceTransformer, "save", fails)
    code, _, err = cli(*fitting("encoder", tiny_bert), "--output", "m")
    assert code == 1
    assert err.startswith("error: m: such a tokenizer cannot be saved; what was computed is in ")
    assert load_calibrator(kept_place(err)).n_features_in_ == WIDTH
