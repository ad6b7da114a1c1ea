"""docs/pitfalls.md names tests that are there; and siblings that no other file looks at."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout

from bertflow import load_encoder
from bertflow.data import Pairs
from bertflow.encoders import embed, encode_file
from bertflow.evaluation import compare, score_pairs
from conftest import REPOSITORY
from task_files import graded_rows, write_tasks

PAGE = REPOSITORY / "docs/pitfalls.md"
NAMED = re.compile(r"`(tests/\w+\.py)::(\w+)`")


# The page.


def defined(source: str) -> set[str]:
    """What tests a file defines: functions, and names that functions are given."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in ast.walk(target)]
            found |= {part.id for part in targets if isinstance(part, ast.Name)}
    return {name for name in found if name.startswith("test_")}


def lacking(text: str, root: Path) -> list[str]:
    """Tests that a text names and that are not there."""
    known = {
        file: defined((root / file).read_text(encoding="utf-8"))
        for file in {file for file, _ in NAMED.findall(text)}
        if (root / file).exists()
    }
    return [
        f"{file}::{name}"
        for file, name in NAMED.findall(text)
        if name not in known.get(file, set())
    ]


def rows(text: str) -> list[list[str]]:
    """The cells of every row below a table's head."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    return [
        [cell.strip() for cell in cells]
        for cells in lines
        if set("".join(cells)) - set("-") and cells[0].strip() != "trouble"
    ]


def test_every_test_that_is_named_is_defined():
    assert lacking(PAGE.read_text(encoding="utf-8"), REPOSITORY) == []


def test_every_row_says_what_is_done_and_names_a_test():
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len({name for name, *_ in found if name}) == 20
    for trouble, done, tests in found:
        assert len(done) > 20, trouble
        assert NAMED.search(tests), done
        # Nothing in the last column but names of tests, none of them mistyped.
        assert NAMED.sub("", tests).strip(" ,") == "", tests


def test_what_is_not_defined_is_found(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(
        "test_a, test_b = make()\ndef test_c():\n    test_d = 1\nx = test_e = 1\n"
    )
    text = " ".join(f"`tests/test_x.py::test_{one}`" for one in "abcde")
    assert lacking(text, tmp_path) == ["tests/test_x.py::test_d"]
    assert lacking("`tests/test_y.py::test_a`", tmp_path) == ["tests/test_y.py::test_a"]


# Every command that loads an encoder, beside those of tests/test_cli.py.

COMMANDS = {
    "diagnose": ["diagnose", "ENCODER"],
    "analyze words": ["analyze", "words", "ENCODER"],
    "analyze lexical": ["analyze", "lexical", "ENCODER", "--data", "data"],
    "analyze isotropy": ["analyze", "isotropy", "ENCODER"],
    "finetune": ["finetune", "--encoder", "ENCODER", "--nli", "snli", "--data", "data"],
    "reproduce": ["reproduce", "table5", "--encoder", "ENCODER", "--data", "data"],
}
every_command = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    write_tasks(tmp_path / "data", "stsb", "snli")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def said(refused, cli, work):
    """What a command says that cannot be done. A reproduction has begun its folder by then."""

    def call(name: str, encoder: object, *more: object) -> str:
        written = ["--output", "out"] if name in ("finetune", "reproduce") else []
        line = [encoder if part == "ENCODER" else part for part in COMMANDS[name]]
        if name != "reproduce":
            return refused(*line, *written, *more)
        code, out, err = cli(*line, *written, *more)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert not list(Path("out").rglob("*.json"))
        return err

    return call


@every_command
def test_a_gguf_that_is_not_there_is_named_by_every_command(name, said):
    assert "nope.gguf does not exist" in said(name, "./nope.gguf")


@every_command
def test_a_gguf_without_its_packages_is_the_pip_line_of_every_command(name, said, monkeypatch):
    Path("model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(
        "bertflow.errors.find_spec", lambda one: None if one == "gguf" else find_spec(one)
    )
    assert "pip install 'bertflow[gguf]'" in said(name, "./model.gguf")


@every_command
def test_a_gguf_of_an_unknown_architecture_is_refused_by_name_by_every_command(name, said):
    import gguf

    writer = gguf.GGUFWriter(Path("model.gguf"), "nonesuch")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    assert "architecture nonesuch " in said(name, "./model.gguf")


# What encodes no sentences has no length.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "analyze words"])
def test_a_length_above_the_models_is_refused_by_every_command(name, said, tiny_bert):
    line = said(name, tiny_bert, "--max-length", 33)
    assert "max_length 33 is above the encoder's 32 tokens" in line


# What was never graded is no 0.


def test_pairs_never_graded_have_no_part_in_a_diagnosis(done, work, tiny_bert):
    graded = graded_rows(30, 7)
    blank = [(a, b, "") for a, b, _ in graded_rows(30, 8)]
    for name, given in {"graded": graded, "more": [*blank[:9], *graded, *blank[9:]]}.items():
        text = "".join("\t".join(row) + "\n" for row in given)
        Path(f"{name}.tsv").write_text(f"sentence1\tsentence2\tscore\n{text}")
        how = ["--pairs", f"{name}.tsv", "--limit", 50, "--json", f"{name}.json"]
        done("diagnose", tiny_bert, *how)
    found = [json.loads(Path(f"{name}.json").read_text()) for name in ("graded", "more")]
    assert found[0]["alignment"] is not None
    assert found[1]["alignment"] == pytest.approx(found[0]["alignment"], abs=1e-6)


# Every way to encode.


def test_dropout_is_off_in_every_way_to_encode(tiny_bert, tiny_sentences, tmp_path):
    encoder = load_encoder(tiny_bert, device="cpu")
    texts = tiny_sentences[:12]
    pairs = Pairs("mine", "test", texts[:6], texts[6:], [float(n) for n in range(6)], "here")
    expected = encoder.encode(texts)
    cosines = score_pairs(encoder, pairs).cosines
    scores = compare(encoder, [pairs], methods=["none", "whitening"], jobs=1)

    def dropping() -> SentenceTransformer:
        return SentenceTransformer(modules=[*encoder, Dropout(0.5)], device="cpu").train()

    np.testing.assert_allclose(embed(dropping(), texts).rows(), expected, atol=1e-6)
    encode_file(dropping(), texts, tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    np.testing.assert_allclose(score_pairs(dropping(), pairs).cosines, cosines, atol=1e-6)
    again = compare(dropping(), [pairs], methods=["none", "whitening"], jobs=1)
    for name, entry in scores.entries.items():
        found = again.entries[name].estimates["all"]["mine"].value
        assert found == pytest.approx(entry.estimates["all"]["mine"].value, abs=1e-6)
