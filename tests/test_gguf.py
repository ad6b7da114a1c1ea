"""A .gguf opens quickly: parsed once, kept in the cache, and the same encoder either way."""

from __future__ import annotations

import logging
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, modeling_gguf_pytorch_utils

from bertflow import SentenceCache, load_encoder
from bertflow.encoders import embed, probe
from bertflow.encoders.description import describe_vectors
from bertflow.errors import ModelError
from gguf_files import write_gguf

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")
SENTENCES = ["the dog", "dog the dog", "the"]
PATCHED = [
    (gguf, "GGUFReader"),
    (gguf, "get_tensor_name_map"),
    (modeling_gguf_pytorch_utils, "load_gguf_checkpoint"),
    (modeling_gguf_pytorch_utils, "tqdm"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture
def cache(tmp_path) -> SentenceCache:
    return SentenceCache(tmp_path / "cache")


@pytest.fixture
def unread(monkeypatch):
    """From the call on, no weight of a .gguf can be de-quantised."""

    def fail(*_):
        raise AssertionError("the file was read again")

    return lambda: monkeypatch.setattr(gguf, "dequantize", fail)


def kept(cache: SentenceCache) -> list[Path]:
    return [one.folder for one in cache.contents() if one.gguf]


def assert_same(one: SentenceTransformer, other: SentenceTransformer) -> None:
    assert describe_vectors(one) == describe_vectors(other)
    assert one[0].model.config.to_dict() == other[0].model.config.to_dict()
    assert one.model_card_data.license == other.model_card_data.license == "apache-2.0"
    assert list(one.state_dict()) == list(other.state_dict())
    for sentence in SENTENCES:
        assert one.tokenize([sentence])["input_ids"].equal(other.tokenize([sentence])["input_ids"])
    assert_array_equal(one.encode(SENTENCES), other.encode(SENTENCES))


def test_what_is_read_is_what_transformers_reads(file):
    how = {"gguf_file": file.name}
    model = AutoModel.from_pretrained(file.parent, dtype=torch.float32, **how)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **how)
    encoder = load_encoder(file, device="cpu")
    ours = encoder[0].model.state_dict()
    assert list(ours) == list(model.state_dict())
    assert all(torch.equal(ours[name], tensor) for name, tensor in model.state_dict().items())
    assert encoder[0].tokenizer(SENTENCES)["input_ids"] == tokenizer(SENTENCES)["input_ids"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_opens_the_same_from_the_cache_without_being_read(file, cache, unread, dtype):
    without = load_encoder(file, device="cpu", dtype=dtype)
    first = load_encoder(file, device="cpu", dtype=dtype, cache=cache)
    unread()
    later = load_encoder(file, device="cpu", dtype=dtype, cache=cache)
    assert_same(without, first)
    assert_same(without, later)
    other = load_encoder(file.parent, pooling="layers:1", device="cpu", dtype=dtype, cache=cache)
    assert len(other[0].model.layers) == 2  # One more than it needs, before the norm.
    assert len(kept(cache)) == 1


def test_what_the_probe_found_is_known_the_next_time(file, cache, monkeypatch):
    tried: list[int] = []

    def counted(encoder, texts, name):
        tried.append(len(texts))
        return encoded(encoder, texts, name)

    encoded = probe._vectors_of
    monkeypatch.setattr(probe, "_vectors_of", counted)
    first = load_encoder(file, pooling="layers:1", device="cpu", cache=cache)
    assert tried
    tried.clear()
    later = load_encoder(file, pooling="layers:1", device="cpu", cache=cache)
    assert not tried
    assert_same(later, first)
    tried.clear()
    load_encoder(file, pooling="layers:1", max_length=8, device="cpu", cache=cache)
    assert tried


def test_without_a_cache_nothing_is_kept(file, cache_of_its_own):
    load_encoder(file, device="cpu")
    assert not cache_of_its_own.exists()


def test_the_content_counts_and_not_the_name(file, cache, tmp_path, unread):
    own = tmp_path / "own.gguf"
    own.write_bytes(file.read_bytes())
    before, times = load_encoder(own, device="cpu", cache=cache), own.stat()
    (tmp_path / "other").mkdir()
    changed = write_gguf(tmp_path / "other", seed=1).read_bytes()
    assert len(changed) == times.st_size
    own.write_bytes(changed)
    os.utime(own, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = load_encoder(own, device="cpu", cache=cache)
    assert_same(after, load_encoder(own, device="cpu"))
    assert not np.array_equal(before.encode(SENTENCES), after.encode(SENTENCES))
    unread()
    load_encoder(file, device="cpu", cache=cache)


def test_what_is_kept_of_other_versions_is_not_taken(file, cache, monkeypatch):
    load_encoder(file, device="cpu", cache=cache)
    monkeypatch.setattr("bertflow.encoders.gguf.version", lambda name: "99.0")
    load_encoder(file, device="cpu", cache=cache)
    assert len(kept(cache)) == 2


def test_what_is_damaged_in_the_cache_is_read_again(file, cache, unread, caplog):
    expected = load_encoder(file, device="cpu", cache=cache)
    (place,) = kept(cache)
    content = place.read_bytes()[:-100]
    place.unlink()  # Not in place: what is loaded maps the file.
    place.write_bytes(content)
    assert_same(load_encoder(file, device="cpu", cache=cache), expected)
    unread()
    assert_same(load_encoder(file, device="cpu", cache=cache), expected)
    assert caplog.messages == []


def test_what_the_user_changes_in_the_encoder_is_not_kept(file, cache):
    first = load_encoder(file, device="cpu", cache=cache)
    expected = first.encode(SENTENCES)
    for _ in range(2):
        opened = load_encoder(file, device="cpu", cache=cache)
        assert_array_equal(opened.encode(SENTENCES), expected)
        with torch.no_grad():
            for weights in opened.parameters():
                weights.add_(1)


def test_a_cache_that_cannot_be_written_is_one_warning(file, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = SentenceCache(tmp_path / "file")
    encoder = load_encoder(file, device="cpu", cache=cache)
    embed(encoder, SENTENCES, cache=cache)
    assert_same(encoder, load_encoder(file, device="cpu"))
    told = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].startswith("the cache of sentence vectors is not used: ")


def test_what_was_read_keeps_to_the_size_and_the_least_recently_used_goes_first(
    file, cache, tmp_path
):
    load_encoder(file, device="cpu", cache=SentenceCache(cache.folder, 1000))
    assert cache.contents() == []
    embed(load_encoder(file, device="cpu", cache=cache), SENTENCES, cache=cache)
    read, vectors = sorted(cache.contents(), key=lambda one: not one.gguf)
    assert (read.gguf, read.sentences, vectors.gguf) == (True, 0, False)
    os.utime(read.folder, (1, 1))
    load_encoder(file, device="cpu", cache=cache)
    assert cache.contents()[-1].folder == read.folder  # It was used again.
    os.utime(read.folder, (1, 1))
    (tmp_path / "other").mkdir()
    other = write_gguf(tmp_path / "other", seed=1)
    small = SentenceCache(cache.folder, 3 * read.bytes // 2)
    load_encoder(other, device="cpu", cache=small)
    assert (len(kept(cache)), read.folder.exists(), vectors.folder.exists()) == (1, False, True)
    os.utime(vectors.folder / "vectors.f32", (1, 1))
    load_encoder(file, device="cpu", cache=small)
    assert kept(cache) == [read.folder]
    assert not vectors.folder.exists()
    assert sum(one.bytes for one in cache.contents()) <= small.size


def test_commands_keep_what_they_read_and_the_cache_shows_and_clears_it(
    file, done, tmp_path, monkeypatch, cache_of_its_own, unread
):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("\n".join(SENTENCES))
    words = ["encode", file, "--corpus", "corpus.txt", "--output", "z.npy", "--device", "cpu"]
    done(*words, "--no-cache")
    assert not cache_of_its_own.exists()
    done(*words)
    expected = np.load("z.npy")
    unread()
    done(*words)
    assert_array_equal(np.load("z.npy"), expected)
    said = done("cache").splitlines()
    assert said[1].startswith("1 encoders, 3 sentences, 0.1 MB of at most")
    assert said[2] == "1 .gguf files as they were read, 0.1 MB of that"
    (cache_of_its_own / "gguf" / f".{'0' * 32}.safetensors-01234567.bertflow").write_text("killed")
    assert done("cache", "--clear") == "removed 1 encoders, 0.1 MB\n"
    assert not cache_of_its_own.exists()


def test_libraries_are_as_before_after_a_load_that_failed_too(file, cache, tmp_path):
    before = [getattr(holder, name) for holder, name in PATCHED]
    load_encoder(file, device="cpu", cache=cache)
    (tmp_path / "lost").mkdir()
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj.weight"):
        load_encoder(write_gguf(tmp_path / "lost", lost="blk.1.ffn_up"), device="cpu", cache=cache)
    assert [getattr(holder, name) for holder, name in PATCHED] == before


def test_threads_open_different_files_at_a_time(file, cache, tmp_path, unread):
    (tmp_path / "other").mkdir()
    files = [file, write_gguf(tmp_path / "other", seed=1)]
    expected = [load_encoder(one, device="cpu") for one in files]
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(lambda one: load_encoder(one, device="cpu", cache=cache), files * 2)
            )
        for one, same in zip(found, expected * 2, strict=True):
            assert_same(one, same)
        assert len(kept(cache)) == 2
        unread()


def test_a_gguf_that_is_cut_off_anywhere_is_one_error(file, cache, tmp_path):
    content = file.read_bytes()
    for length in [10, 60, *range(200, content.index(b"token_embd"), 37), len(content) - 200]:
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"cut.gguf cannot be loaded"):
            load_encoder(tmp_path / "cut.gguf", device="cpu", cache=cache)
    assert kept(cache) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**40),
        b"PK\x03\x04" + bytes(100),
    ],
)
def test_a_gguf_that_is_none_is_refused(content, tmp_path):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"x\.gguf cannot be loaded: "):
        load_encoder(tmp_path / "x.gguf", device="cpu")


def test_a_gguf_of_an_unknown_architecture_is_refused_by_its_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "nonesuch")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    with pytest.raises(ModelError, match="architecture nonesuch "):
        load_encoder(tmp_path, device="cpu")
