"""Vectors on disk, and several poolings in one pass."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from bertflow.encoders import VectorCache, embed, fill, load_encoder, load_poolings
from bertflow.encoders import sentence_cache as module
from bertflow.encoders.encoding import Encoding
from bertflow.errors import InputError, ModelError
from conftest import tree

ABOUT = {"encoder": "x"}


def vectors_of(sentences: list[str], width: int = 3) -> np.ndarray:
    return np.array([[len(s), *map(ord, s[: width - 1].ljust(width - 1))] for s in sentences], "f4")


def test_what_is_added_is_found_again_by_another_cache_on_the_folder(tmp_path):
    cache = VectorCache(tmp_path, ABOUT)
    cache.add(["ab", "c"], vectors_of(["ab", "c"]))
    cache.add(["d"], vectors_of(["d"]))
    again = VectorCache(tmp_path, ABOUT)
    assert len(again) == 3
    assert again.missing(["c", "e", "ab", "e"]) == ["e"]
    rows = again.rows(["d", "ab", "d"])
    assert np.array_equal(again.vectors()[rows], vectors_of(["d", "ab", "d"]))
    assert isinstance(again.vectors(), np.memmap)
    assert not again.vectors().flags.writeable


def test_vectors_that_are_only_read_leave_nothing_behind(tmp_path):
    assert len(VectorCache(tmp_path / "none", ABOUT)) == 0
    assert not (tmp_path / "none").exists()
    VectorCache(tmp_path / "some", ABOUT).add(["a"], np.ones((1, 2), dtype=np.float32))
    (tmp_path / "some" / ".lock").unlink(missing_ok=True)
    before = tree(tmp_path / "some")
    found = VectorCache(tmp_path / "some", ABOUT)
    assert found.vectors()[found.rows(["a"])].tolist() == [[1.0, 1.0]]
    assert tree(tmp_path / "some") == before


def test_a_sentence_that_is_there_is_not_added_twice(tmp_path):
    cache, other = VectorCache(tmp_path, ABOUT), VectorCache(tmp_path, ABOUT)
    cache.add(["a"], vectors_of(["a"]))
    other.add(["a", "b"], vectors_of(["a", "b"]))  # Has not seen it yet.
    cache.add(["c"], vectors_of(["c"]))
    assert len(cache) == 3
    assert np.array_equal(cache.vectors(), vectors_of(["a", "b", "c"]))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("writes", [0, 1])
def test_a_process_killed_while_it_writes_leaves_no_sentence_without_its_row(
    tmp_path, monkeypatch, writes, half
):
    cache = VectorCache(tmp_path, ABOUT)
    cache.add(["a", "b"], vectors_of(["a", "b"]))
    write, calls = module._write_at, []

    def stopped(path, place, data):
        calls.append(path)
        if len(calls) > writes:
            write(path, place, data[: len(data) // 2] if half else data)
            raise KeyboardInterrupt
        write(path, place, data)

    monkeypatch.setattr(module, "_write_at", stopped)
    with pytest.raises(KeyboardInterrupt):
        cache.add(["c", "d"], vectors_of(["c", "d"]))
    monkeypatch.undo()
    again = VectorCache(tmp_path, ABOUT)
    # The sentences come last: half of them is one.
    lost = ["c", "d"] if not writes else ["d"] if half else []
    assert again.missing(["a", "b", "c", "d"]) == lost
    again.add(lost, vectors_of(lost) if lost else np.empty((0, 3)))
    last = VectorCache(tmp_path, ABOUT)
    assert np.array_equal(last.vectors(), vectors_of(["a", "b", "c", "d"]))


def test_a_folder_of_earlier_versions_is_read(tmp_path):
    """They counted what was whole; the first of them had no mark of the folder."""
    VectorCache(tmp_path, ABOUT).add(["a", "b"], vectors_of(["a", "b"]))
    (tmp_path / "count").write_bytes((2).to_bytes(8, "little"))
    about = json.loads((tmp_path / "about.json").read_text())
    del about["made"]
    (tmp_path / "about.json").write_text(json.dumps(about))
    again = VectorCache(tmp_path, ABOUT)
    again.add(["c"], vectors_of(["c"]))
    assert len(VectorCache(tmp_path, ABOUT)) == 3


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_folder_that_is_removed_meanwhile_is_not_taken_for_what_it_was(tmp_path, made_anew):
    cache = VectorCache(tmp_path / "v", ABOUT)
    cache.add(["a", "b"], vectors_of(["a", "b"]))
    before = cache.vectors()
    shutil.rmtree(tmp_path / "v")
    if made_anew:
        VectorCache(tmp_path / "v", ABOUT).add(["x", "y", "z"], vectors_of(["x", "y", "z"]))
    with pytest.raises(ModelError, match="was removed"):
        cache.add(["c"], vectors_of(["c"]))
    assert np.array_equal(cache.vectors(), before)
    assert np.array_equal(before, vectors_of(["a", "b"]))


def test_filling_in_the_order_of_the_sentences_whatever_is_there(
    tmp_path, tiny_bert, monkeypatch, untried
):
    texts = ["a dog", "a cat", "the man", "a train", "a house"]
    orders = []
    each = Encoding.each

    def watched(self, groups):
        for group, rows, vectors in each(self, groups):
            orders.append(group.texts(rows))
            yield group, rows, vectors

    monkeypatch.setattr(Encoding, "each", watched)
    for n, there in enumerate([[], ["a cat", "a train"]]):
        caches = [VectorCache(tmp_path / f"{n}-{part}", ABOUT) for part in range(2)]
        if there:
            caches[0].add(there, vectors_of(there, 16))
        fill(caches, texts, lambda: load_poolings(tiny_bert, ["cls", "mean"]))
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("name", "cut"), [("vectors.f32", 12), ("sentences", 16), ("sentences", 23)]
)
def test_what_was_cut_off_is_written_again(tmp_path, name, cut):
    """What lacks its sentence, or half a row of either, counts for nothing."""
    cache = VectorCache(tmp_path, ABOUT)
    cache.add(["a", "b"], vectors_of(["a", "b"]))
    cache.add(["c", "d"], vectors_of(["c", "d"]))
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-cut])
    again = VectorCache(tmp_path, ABOUT)
    assert 2 <= len(again) < 4
    fill_up = again.missing(["a", "b", "c", "d"])
    again.add(fill_up, vectors_of(fill_up))
    last = VectorCache(tmp_path, ABOUT)
    rows = last.rows(["a", "b", "c", "d"])
    assert np.array_equal(last.vectors()[rows], vectors_of(["a", "b", "c", "d"]))
    assert len(last) == 4


def test_another_encoder_is_refused(tmp_path):
    VectorCache(tmp_path, ABOUT).add(["a"], vectors_of(["a"]))
    with pytest.raises(ModelError, match="another encoder"):
        VectorCache(tmp_path, {"encoder": "y"})
    with pytest.raises(ModelError, match="vectors of 3 dimensions, not 4"):
        VectorCache(tmp_path, ABOUT).add(["b"], vectors_of(["b"], 4))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"width": null}', '{"format": 1}'])
def test_a_damaged_description_is_an_error_that_names_it(tmp_path, content):
    VectorCache(tmp_path, ABOUT).add(["a"], vectors_of(["a"]))
    (tmp_path / "about.json").write_text(content)
    with pytest.raises(ModelError, match=r"about\.json is damaged"):
        VectorCache(tmp_path, ABOUT)


def test_a_sentence_without_vector_is_named(tmp_path):
    cache = VectorCache(tmp_path, ABOUT)
    with pytest.raises(InputError, match="holds no vector yet"):
        cache.vectors()
    with pytest.raises(InputError, match="has no vector of 'lost'"):
        cache.rows(["lost"])


def test_a_folder_is_made_with_the_first_vector(tmp_path):
    cache = VectorCache(tmp_path / "x", ABOUT)
    assert not (tmp_path / "x").exists()
    cache.add(["a"], vectors_of(["a"]))
    assert len(VectorCache(tmp_path / "x", ABOUT)) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write"):
        VectorCache(tmp_path / "file" / "x", ABOUT).add(["a"], vectors_of(["a"]))


POOLINGS = ["cls", "mean", "last2avg", "first-last-avg", "embed-last-avg", "layers:1,2"]


@pytest.mark.parametrize(
    ("kind", "poolings"), [("tiny_bert", POOLINGS), ("tiny_llama", ["layers:0,2", "layers:1"])]
)
def test_several_poolings_are_what_each_gives_alone(kind, poolings, request, tiny_sentences):
    folder = request.getfixturevalue(kind)
    together = load_poolings(folder, poolings, max_length=16)
    assert together.get_embedding_dimension() == 16 * len(poolings)
    parts = np.split(embed(together, tiny_sentences[:70]).rows(), len(poolings), axis=1)
    for pooling, part in zip(poolings, parts, strict=True):
        alone = embed(load_encoder(folder, pooling=pooling, max_length=16), tiny_sentences[:70])
        assert np.abs(part - alone.rows()).max() < 1e-5, pooling


def test_one_pooling_is_the_encoder_itself(tiny_bert):
    assert len(load_poolings(tiny_bert, ["layers:1"])[0].model.encoder.layer) == 1
    assert load_poolings(tiny_bert, [None]).get_embedding_dimension() == 16


def test_several_poolings_must_be_named(tiny_bert):
    for poolings in [["mean", None], []]:
        with pytest.raises(InputError, match="must each be named"):
            load_poolings(tiny_bert, poolings)


def test_filling_encodes_only_what_a_cache_lacks(tmp_path, tiny_bert, tiny_sentences):
    poolings = ["mean", "last2avg"]
    caches = [VectorCache(tmp_path / p, {"pooling": p}) for p in poolings]
    loaded = []

    def encoder():
        loaded.append(load_poolings(tiny_bert, poolings))
        return loaded[-1]

    seen = []
    some = tiny_sentences[:50]
    fill(caches[:1], some, lambda: load_encoder(tiny_bert, pooling="mean"))
    fill(caches, tiny_sentences, encoder, progress=lambda *step: seen.append(step))
    distinct = len(set(tiny_sentences))
    assert seen == [(distinct, distinct)]  # The second cache lacked them all.
    for cache, pooling in zip(caches, poolings, strict=True):
        expected = embed(load_encoder(tiny_bert, pooling=pooling), tiny_sentences).rows()
        rows = cache.rows(tiny_sentences)
        assert len(cache) == distinct
        assert np.abs(cache.vectors()[rows] - expected).max() < 1e-5
    fill(caches, tiny_sentences, encoder)
    assert len(loaded) == 1


def test_filling_does_not_tokenize_again_to_count_what_is_cut(tmp_path, tiny_bert, monkeypatch):
    encoder = load_encoder(tiny_bert, pooling="mean", max_length=4)
    sentences = ["a dog runs in the park with a ball", "a dog", "a dog"]
    whole = embed(encoder, sentences)
    assert whole.cut == 1
    monkeypatch.setattr("bertflow.encoders.embedding.count_cut_of", None)
    quick = embed(encoder, sentences, count_cut=False)
    assert quick.cut == 0
    assert np.array_equal(quick.vectors, whole.vectors)
    assert np.array_equal(quick.index, whole.index)
    fill([VectorCache(tmp_path, ABOUT)], sentences, lambda: encoder)


def test_a_run_that_is_stopped_goes_on(tmp_path, tiny_bert, monkeypatch):
    monkeypatch.setattr("bertflow.encoders.embedding.CHUNK_SENTENCES", 10)
    sentences = [f"a dog {'runs ' * (n % 7)}{n}" for n in range(45)]
    cache = VectorCache(tmp_path, ABOUT)
    encoder = load_encoder(tiny_bert)

    def stop(done, total):
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill([cache], sentences, lambda: encoder, progress=stop)
    seen = []
    again = VectorCache(tmp_path, ABOUT)
    fill([again], sentences, lambda: encoder, progress=lambda *step: seen.append(step))
    assert seen == [(10, 15), (15, 15)]
    assert not again.missing(sentences)
