"""Encoders whose files are damaged, incomplete or ask for more than they may: one line, no work."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense
from transformers import AutoModel, PreTrainedModel

from bertflow import calibrate, load, load_encoder
from bertflow.calibrators import Standardization
from bertflow.encoders import checks, load_layers, load_poolings
from bertflow.errors import ModelError
from bertflow.models import open_model
from gguf_files import write_gguf

SENTENCES = ["the dog runs .", "a man plays the guitar on the street .", "bread"]
# How each kind of folder is opened, and where its transformer's files lie.
OPENED = {
    "bert": load_encoder,
    "llama": load_encoder,
    "modules": load_encoder,
    "repooled": lambda folder, **how: load_encoder(folder, pooling="mean", **how),
    "portable": load,
    "own": load,
    "open_model": open_model,
    "poolings": lambda folder, **how: load_poolings(folder, ["mean", "last2avg"], **how),
    "layers": load_layers,
}


@pytest.fixture(scope="module")
def whole(tiny_bert, tiny_llama, tiny_sentences, tmp_path_factory) -> dict[str, Path]:
    """A folder of each kind, undamaged."""
    home = tmp_path_factory.mktemp("whole")
    encoder = load_encoder(tiny_bert, pooling="mean", device="cpu")
    SentenceTransformer(modules=[*encoder, Dense(16, 8)]).save_pretrained(str(home / "modules"))
    for name, portable in [("portable", True), ("own", False)]:
        model = calibrate(encoder, tiny_sentences, Standardization(), portable=portable)
        model.save_pretrained(str(home / name))
    folders = {
        "bert": tiny_bert,
        "llama": tiny_llama,
        "poolings": tiny_bert,
        "layers": tiny_bert,
        "repooled": home / "modules",
        "open_model": home / "own",
    }
    return {kind: folders.get(kind, home / kind) for kind in OPENED}


@pytest.fixture
def folder(request, whole, tmp_path) -> Path:
    """A copy of a kind's folder, to be damaged."""
    return shutil.copytree(whole[request.param], tmp_path / "encoder")


@pytest.fixture
def kind(request) -> str:
    return request.param


# Every way to open a folder makes the same checks, as each_kind shows; by day two ways are enough.
each_kind = pytest.mark.parametrize(
    ("kind", "folder"),
    [
        pytest.param(kind, kind, marks=[] if kind in ("bert", "own") else [pytest.mark.nightly])
        for kind in OPENED
    ],
    indirect=True,
    ids=list(OPENED),
)


def refusal(kind: str, folder: Path, **how: object) -> str:
    """The one line that a folder is refused with, which names it."""
    with pytest.raises(ModelError) as caught:
        OPENED[kind](folder, device="cpu", **how)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


def change_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def names(folder: Path, part: str) -> list[str]:
    return sorted(name for name in load_file(folder / "model.safetensors") if part in name)


@each_kind
def test_a_checkpoint_without_one_of_its_tensors_is_refused(kind, folder):
    lost = names(folder, ".1.")[3]
    change_weights(folder, lambda tensors: tensors.pop(lost))
    line = refusal(kind, folder)
    assert "lacks weights that a " in line and f": {lost};" in line


@each_kind
def test_a_tensor_of_another_shape_is_refused(kind, folder):
    other = names(folder, ".1.")[3]
    change_weights(folder, lambda tensors: tensors.update({other: torch.zeros(3, 5)}))
    assert "its weights have other shapes than its config.json asks for" in refusal(kind, folder)


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, kind) for kind in ["bert", "portable"]], indirect=True
)
def test_where_transformers_marks_no_tensors_it_is_asked(kind, folder, monkeypatch):
    asked = []
    load_once_more = PreTrainedModel.from_pretrained.__func__

    def watched(kind, *name, **how):
        asked.extend([name] if "output_loading_info" in how else [])
        return load_once_more(kind, *name, **how)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(watched))
    OPENED[kind](folder, device="cpu")
    assert not asked
    monkeypatch.setattr(checks, "MARK", "_no_such_mark")
    OPENED[kind](folder, device="cpu")
    assert len(asked) == 1
    lost = names(folder, ".1.")[3]
    change_weights(folder, lambda tensors: tensors.pop(lost))
    assert lost in refusal(kind, folder)


@each_kind
def test_weights_with_more_blocks_than_the_configuration_are_refused(kind, folder):
    (file,) = {path for path in folder.rglob("config.json") if "num_hidden" in path.read_text()}
    config = json.loads(file.read_text())
    blocks = config["num_hidden_layers"]
    file.write_text(json.dumps({**config, "num_hidden_layers": blocks - 1}))
    line = refusal(kind, folder)
    assert f"holds weights of {blocks} blocks, and its config.json asks for {blocks - 1};" in line


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_a_surplus_block_of_another_kind_is_no_part_of_the_encoder(folder, tiny_bert):
    """As those that predict several tokens at once."""
    last = names(folder, ".2.")

    def change(tensors):
        for name in last:
            tensors[name.replace(".2.", ".3.")] = tensors[name].clone()
        tensors[f"{last[0].partition('.2.')[0]}.3.more.weight"] = torch.zeros(2)

    change_weights(folder, change)
    expected = load_encoder(tiny_bert, device="cpu").encode(["red cat"])
    assert np.array_equal(load_encoder(folder, device="cpu").encode(["red cat"]), expected)


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "max_position_embeddings"])
def test_a_size_that_the_weights_have_not_is_refused_before_it_is_allocated(folder, name):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: 10**9}))
    assert "its weights have other shapes than its config.json asks for" in refusal("bert", folder)


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_at_most_three_tensors_are_named(folder):
    lost = names(folder, ".1.")
    change_weights(folder, lambda tensors: [tensors.pop(name) for name in lost])
    line = refusal("bert", folder)
    assert f": {lost[0]}, {lost[1]}, {lost[2]} and {len(lost) - 3} more;" in line


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_what_reaches_no_hidden_state_may_be_missing_or_in_excess(folder, tiny_bert):
    def change(tensors):
        for name in [name for name in tensors if name.startswith("pooler.")]:
            del tensors[name]
        tensors["cls.predictions.bias"] = torch.zeros(7)

    change_weights(folder, change)
    np.testing.assert_array_equal(
        load_encoder(folder).encode(SENTENCES), load_encoder(tiny_bert).encode(SENTENCES)
    )


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
@pytest.mark.parametrize("form", ["of a model with a head", "pickled", "sharded", "half"])
def test_other_forms_of_a_whole_checkpoint_load(folder, form, tiny_bert):
    tensors = load_file(folder / "model.safetensors")
    if form == "of a model with a head":
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        for old, new in [("LayerNorm.weight", "LayerNorm.gamma"), ("Norm.bias", "Norm.beta")]:
            tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    elif form == "pickled":
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    elif form == "sharded":
        (folder / "model.safetensors").unlink()
        AutoModel.from_pretrained(tiny_bert).save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 1
    else:
        tensors = {name: tensor.half() for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_allclose(
        load_encoder(folder).encode(SENTENCES),
        load_encoder(tiny_bert).encode(SENTENCES),
        atol=0.02 if form == "half" else 0,
    )


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_a_pickled_checkpoint_without_one_of_its_tensors_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    lost = "encoder.layer.1.attention.self.query.weight"
    del tensors[lost]
    torch.save(tensors, folder / "pytorch_model.bin")
    assert lost in refusal("bert", folder)


# Damage, of the transformer's files.


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE = {
    "weights truncated": lambda f: truncate(f / "model.safetensors"),
    "weights empty": lambda f: (f / "model.safetensors").write_bytes(b""),
    "weights missing": lambda f: (f / "model.safetensors").unlink(),
    "weights a folder": lambda f: make_folder(f / "model.safetensors"),
    "weights noise": lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 999),
    "config not UTF-8": lambda f: (f / "config.json").write_bytes(b'{"model_type": "\xff"}'),
    "config not JSON": lambda f: (f / "config.json").write_text("{"),
    "config empty": lambda f: (f / "config.json").write_text(""),
    "config a list": lambda f: (f / "config.json").write_text("[]"),
    "config a number": lambda f: (f / "config.json").write_text("5"),
    "config without type": lambda f: (f / "config.json").write_text("{}"),
    "config of an unknown type": lambda f: (f / "config.json").write_text(
        '{"model_type": "nonesuch"}'
    ),
    "config with text for a number": lambda f: (f / "config.json").write_text(
        json.dumps(json.loads((f / "config.json").read_text()) | {"hidden_size": "wide"})
    ),
    "tokenizer truncated": lambda f: truncate(f / "tokenizer.json"),
    "tokenizer empty": lambda f: (f / "tokenizer.json").write_text(""),
    "tokenizer without a model": lambda f: (f / "tokenizer.json").write_text("{}"),
    "tokenizer config a list": lambda f: (f / "tokenizer_config.json").write_text("[]"),
    "tokenizer config truncated": lambda f: truncate(f / "tokenizer_config.json"),
    "tokenizer missing": lambda f: (f / "tokenizer.json").unlink(),
}


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_line_that_names_the_folder(folder, damage):
    DAMAGE[damage](folder)
    refusal("bert", folder)


@each_kind
@pytest.mark.parametrize("damage", ["weights truncated", "tokenizer empty"])
def test_every_way_to_open_a_damaged_folder_names_it(kind, folder, damage):
    DAMAGE[damage](folder)
    refusal(kind, folder)


class Payload:
    def __reduce__(self):
        return (Path.touch, (Path("payload-ran"),))


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_a_pickle_is_not_run(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    # Of a size that the weights could have.
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()) + bytes(10**5))
    line = refusal("bert", folder)
    assert "expected safetensors" in line and "weights_only" not in line
    assert not (tmp_path / "payload-ran").exists()


# modules.json


def entry(**changes: object) -> str:
    usual = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    return json.dumps([{key: value for key, value in (usual | changes).items() if value != ...}])


SOME_LISTS = ["not JSON", "an object", "foreign"]
LISTS = {
    "empty": ("", "is no JSON"),
    "not JSON": ("[", "is no JSON"),
    "an object": ('{"name": "0"}', "is no list of modules"),
    "no modules": ("[]", "is no list of modules"),
    "numbers": ("[1]", "is no list of modules"),
    "no name": (entry(name=...), "is no list of modules"),
    "no type": (entry(type=...), "is no list of modules"),
    "twice": (json.dumps(2 * json.loads(entry())), "is no list of modules"),
    "foreign": (entry(type="os.path.join"), "'os.path.join', which is not built in"),
    "a number": (entry(type=1), "'1', which is not built in"),
}
# What sentence-transformers itself says of these.
OTHER_LISTS = {
    "no path": entry(path=...),
    "a number for a path": entry(path=1),
    "no such module": entry(type="sentence_transformers.no.Such"),
    "no such class": entry(type="sentence_transformers.models.Such"),
    "a function": entry(type="sentence_transformers.util.cos_sim"),
    "another's module": entry(type="sentence_transformers.util.misc.importlib"),
}


@pytest.mark.parametrize("kind", ["modules", "repooled", "portable", "own"])
def test_a_list_of_modules_that_is_none_is_refused_by_name(kind, whole, tmp_path):
    folder = shutil.copytree(whole[kind], tmp_path / "encoder")
    for content in LISTS if kind == "modules" else SOME_LISTS:
        text, message = LISTS[content]
        (folder / "modules.json").write_text(text)
        line = refusal(kind, folder)
        assert str(folder / "modules.json") in line
        assert message in line
    for text in OTHER_LISTS.values() if kind == "modules" else ():
        (folder / "modules.json").write_text(text)
        refusal(kind, folder)


def test_beside_bertflows_own_module_no_other_is_taken(whole, tmp_path):
    folder = shutil.copytree(whole["own"], tmp_path / "encoder")
    own = json.loads((folder / "modules.json").read_text())[-1]
    text, message = LISTS["foreign"]
    (folder / "modules.json").write_text(json.dumps([*json.loads(text), own]))
    assert message in refusal("own", folder)


@pytest.mark.parametrize(
    ("kind", "folder"), [("portable", "portable"), ("own", "own")], indirect=True
)
def test_a_calibrated_model_without_its_list_is_refused(kind, folder):
    (folder / "modules.json").unlink()
    assert "no modules.json" in refusal(kind, folder)


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, kind) for kind in ["modules", "portable", "own"]], indirect=True
)
def test_files_may_be_links_as_in_the_cache_of_the_hub(kind, folder, whole, tmp_path):
    expected = OPENED[kind](whole[kind], device="cpu").encode(SENTENCES)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(f for f in folder.rglob("*") if f.is_file())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    (tmp_path / "link").symlink_to(folder)
    for path in [folder, tmp_path / "link"]:
        np.testing.assert_array_equal(OPENED[kind](path, device="cpu").encode(SENTENCES), expected)


@pytest.mark.parametrize(("kind", "folder"), [("modules", "modules")], indirect=True)
@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "lacking a tensor"])
def test_a_damaged_layer_after_the_transformer_is_refused(kind, folder, damage):
    file = folder / "2_Dense/model.safetensors"
    if damage == "truncated":
        truncate(file)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "missing":
        file.unlink()
    else:
        change_weights(folder / "2_Dense", lambda tensors: tensors.pop("linear.bias"))
    line = refusal(kind, folder)
    assert damage != "lacking a tensor" or "linear.bias" in line


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, kind) for kind in ["modules", "portable", "own"]], indirect=True
)
@pytest.mark.parametrize(
    "content", [b"", b"[]", *(pytest.param(c, marks=pytest.mark.nightly) for c in (b"{", b"\xff"))]
)
def test_a_damaged_configuration_of_the_model_is_refused(kind, folder, content):
    (folder / "config_sentence_transformers.json").write_bytes(content)
    refusal(kind, folder)


def test_an_error_without_a_message_is_told_by_its_kind(tiny_bert, monkeypatch):
    def fail(*arguments: object, **keywords: object) -> None:
        raise AssertionError

    monkeypatch.setattr("bertflow.encoders.loading.Transformer", fail)
    assert refusal("bert", tiny_bert).endswith("cannot be loaded: AssertionError")


def test_a_gguf_without_one_of_its_tensors_is_refused(tmp_path):
    pytest.importorskip("gguf", reason="needs the extra gguf")
    for folder in ["whole", "damaged"]:
        (tmp_path / folder).mkdir()
    whole = load_encoder(write_gguf(tmp_path / "whole"), device="cpu")
    assert np.isfinite(whole.encode(["the dog"])).all()
    write_gguf(tmp_path / "damaged", lost="blk.1.ffn_up")
    assert "layers.1.mlp.up_proj.weight" in refusal("llama", tmp_path / "damaged")


# Code that comes with an encoder.

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel
from sentence_transformers.sentence_transformer.modules import Normalize

Path({marker!r}).touch()


class OwnConfig(BertConfig):
    model_type = "own"


class OwnModel(BertModel):
    config_class = OwnConfig


class OwnModule(Normalize):
    pass
"""


def add_code(folder: Path, marker: Path) -> None:
    """Let the configuration of a transformer name code beside it, which leaves a mark."""
    (folder / "own_code.py").write_text(CODE.format(marker=str(marker)))
    file = folder / "config.json"
    names = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    told = json.loads(file.read_text()) | {"model_type": "own", "auto_map": names}
    file.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, kind) for kind in OPENED if kind != "llama"], indirect=True
)
def test_code_of_an_encoder_runs_only_if_trusted(kind, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.path", list(sys.path))
    marker = tmp_path / "marker"
    add_code(folder, marker)
    assert "trust_remote_code" in refusal(kind, folder)
    assert not marker.exists()
    encoder = OPENED[kind](folder, device="cpu", trust_remote_code=True)
    assert marker.exists()
    first = encoder[0] if kind == "layers" else encoder
    assert type(first[0].model).__name__ == "OwnModel"


@pytest.mark.parametrize(
    ("kind", "folder"),
    [(kind, kind) for kind in ["modules", "repooled", "portable", "own", "open_model"]],
    indirect=True,
)
def test_a_module_of_an_encoder_runs_only_if_trusted(kind, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.path", list(sys.path))
    marker = tmp_path / "marker"
    (folder / "own_code.py").write_text(CODE.format(marker=str(marker)))
    entries = json.loads((folder / "modules.json").read_text())
    entries.append({"idx": 9, "name": "9", "path": "", "type": "own_code.OwnModule"})
    (folder / "modules.json").write_text(json.dumps(entries))
    assert "'own_code.OwnModule', which is not built in" in refusal(kind, folder)
    assert not marker.exists()
    OPENED[kind](folder, device="cpu", trust_remote_code=True)
    assert marker.exists()
