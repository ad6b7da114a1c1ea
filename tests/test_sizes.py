"""Configurations that ask for more than their weights hold: refused before it is allocated."""

from __future__ import annotations

import json
import resource
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from bertflow import load_encoder
from bertflow.encoders.sizes import check_gguf, check_transformer
from bertflow.errors import InputError, ModelError


@pytest.fixture
def folder(tiny_bert, tmp_path) -> Path:
    return shutil.copytree(tiny_bert, tmp_path / "encoder")


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(folder: Path) -> str:
    """The line a folder is refused with, at once and in little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ModelError) as caught:
        load_encoder(folder, device="cpu")
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_size_that_the_weights_have_not_is_refused_before_it_is_allocated(folder):
    whole = (folder / "config.json").read_text()
    for changes in [
        {"vocab_size": 10**9},
        {"hidden_size": 10**7},
        {"hidden_size": 4000},
        {"intermediate_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"type_vocab_size": 10**10},
        {"num_hidden_layers": 100000},
        {"num_hidden_layers": 10**18},
        {"hidden_size": 10**30},
    ]:
        (folder / "config.json").write_text(whole)
        edit(folder / "config.json", **changes)
        line = refused(folder)
        if changes.get("hidden_size") != 10**30:
            assert "config.json asks for" in line


def test_blocks_are_counted_against_the_tensors(folder):
    edit(folder / "config.json", num_hidden_layers=257)
    assert "asks for 257 blocks (num_hidden_layers), but its weights hold" in refused(folder)
    edit(folder / "config.json", num_hidden_layers=3)
    load_encoder(folder, device="cpu")


def test_a_count_of_blocks_that_cannot_be_is_refused_naming_the_encoder(folder):
    edit(folder / "config.json", num_hidden_layers=-1)
    assert "config.json asks for -1 blocks (num_hidden_layers), expected 0" in refused(folder)
    edit(folder / "config.json", num_hidden_layers=0)
    with pytest.raises(
        InputError, match="asks for hidden state 1, but the encoder has 0"
    ) as caught:
        load_encoder(folder, device="cpu")
    assert str(caught.value).startswith(f"{folder}: ")
    load_encoder(folder, pooling="layers:0", device="cpu")


def test_what_fits_is_let_pass(tiny_bert, tiny_llama, shared_data):
    for whole in (tiny_bert, tiny_llama):
        check_transformer(whole)


@pytest.mark.parametrize(
    "changes",
    [{"in_features": 10**6, "out_features": 10**6}, {"out_features": 10**12}],
    ids=str,
)
def test_a_layer_after_the_transformer_is_checked_as_well(tiny_bert, tmp_path, changes):
    encoder = load_encoder(tiny_bert, pooling="mean", device="cpu")
    folder = tmp_path / "model"
    SentenceTransformer(modules=[*encoder, Dense(16, 8)]).save_pretrained(str(folder))
    load_encoder(folder, device="cpu")
    edit(folder / "2_Dense/config.json", **changes)
    assert "2_Dense/config.json asks for more" in refused(folder)


# .gguf


def gguf_file(path: Path, architecture: str, **facts: int) -> Path:
    """A file with a header and one tensor."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, architecture)
    for name, number in facts.items():
        writer.add_uint64(f"{architecture}.{name}", number)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", ["nonesuch", "bert", "clip"])
def test_a_gguf_of_an_unknown_architecture_is_refused_by_its_name(tmp_path, architecture):
    path = gguf_file(tmp_path / "x.gguf", architecture, block_count=1, embedding_length=8)
    line = refused(path)
    assert f"architecture {architecture} " in line
    # And so is a folder that holds nothing else.
    assert f"architecture {architecture} " in refused(tmp_path)


@pytest.mark.parametrize(
    "facts",
    [{"block_count": 10**9}, {"embedding_length": 10**12}, {"vocab_size": 2**62}],
    ids=str,
)
def test_a_gguf_that_promises_more_than_it_holds_is_refused(tmp_path, facts):
    path = gguf_file(tmp_path / "x.gguf", "llama", **facts)
    assert f"asks for {next(iter(facts.values())):,}" in refused(path)


def test_a_gguf_that_is_none_is_refused(tmp_path):
    for content in [
        b"",
        b"GGUF",
        b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
        b"GGUF" + struct.pack("<IQQ", 9, 1, 1),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**50),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1) + b"a" + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**40),
        b"PK\x03\x04" + bytes(100),
    ]:
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=r"x\.gguf cannot be loaded: it is not a whole \.gguf"):
            check_gguf(tmp_path / "x.gguf")


def test_shapes_that_overflow_in_a_header_are_refused(folder):
    save_file({"x": torch.zeros(4)}, folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    for old, new in [(b"[4]", b"[9223372036854775807,9223372036854775807]"), (b"[0,16]", b"[0,1]")]:
        header = content[8 : 8 + struct.unpack("<Q", content[:8])[0]].replace(old, new)
        damaged = struct.pack("<Q", len(header)) + header + bytes(16)
        (folder / "model.safetensors").write_bytes(damaged)
        refused(folder)
