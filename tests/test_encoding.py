"""Encoding without padding and in other arithmetic, against SentenceTransformer.encode."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout, Normalize
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bertflow.encoders import embed, embedding, encoding, load_encoder
from bertflow.encoders import precision as precisions
from bertflow.encoders.embedding import encode_lists
from bertflow.encoders.encoding import Encoding, Group
from bertflow.encoders.precision import packed_attention, resolved_precision
from bertflow.encoders.sentence_cache import Unfinished
from bertflow.errors import InputError

POOLINGS = ["cls", "mean", "last2avg", "first-last-avg", "embed-last-avg"]
TEXTS = ["a dog", "", "the cat sleeps on the mat . " * 9, "?", "a dog", "bird reads a book today"]


@pytest.fixture(params=["bert", "llama"])
def folder(request, tiny_bert, tiny_llama):
    return tiny_bert if request.param == "bert" else tiny_llama


def reference(encoder: SentenceTransformer, texts: list[str]) -> np.ndarray:
    return encoder.encode(texts, show_progress_bar=False)


def smallest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_it_is_encode(pooling, folder, tiny_sentences):
    encoder = load_encoder(folder, pooling=pooling)
    texts = [*tiny_sentences[:60], *TEXTS]
    found = Encoding(encoder)(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference(encoder, texts), rtol=0, atol=2e-5)


def test_order_and_groups_do_not_matter(tiny_bert, tiny_sentences, monkeypatch):
    encoder = load_encoder(tiny_bert)
    expected = Encoding(encoder)(tiny_sentences)
    monkeypatch.setattr(embedding, "CHUNK_SENTENCES", 9)
    how = {"batch_size": 1, "precision": "float32"}
    found = embed(encoder, tiny_sentences[::-1], **how).rows()[::-1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_left_padding(tiny_llama, tiny_sentences):
    encoder = load_encoder(tiny_llama)
    expected = Encoding(encoder)(tiny_sentences[:50])
    encoder[0].tokenizer.padding_side = "left"
    found = Encoding(encoder)(tiny_sentences[:50])
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_prompt_truncation_and_later_modules_are_kept(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    encoder = SentenceTransformer(
        modules=[*encoder, Normalize()],
        prompts={"q": "the dog "},
        default_prompt_name="q",
        truncate_dim=5,
        device="cpu",
    )
    found = Encoding(encoder)(tiny_sentences[:40])
    assert found.shape == (40, 5)
    np.testing.assert_allclose(found, reference(encoder, tiny_sentences[:40]), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("precision", "pooling"), [("mixed", "first-last-avg"), ("fast", "mean")])
def test_half_precision_is_close_and_leaves_the_encoder_alone(
    precision, pooling, folder, tiny_sentences
):
    encoder = load_encoder(folder, pooling=pooling)
    before = copy.deepcopy(encoder.state_dict())
    expected = reference(encoder, tiny_sentences)
    found = Encoding(encoder, precision=precision)(tiny_sentences)
    assert found.dtype == np.float32
    assert 0.98 < smallest_cosine(found, expected)
    assert not np.array_equal(found, expected)
    assert {name: t.dtype for name, t in encoder.state_dict().items()} == {
        name: t.dtype for name, t in before.items()
    }
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])
    np.testing.assert_array_equal(reference(encoder, tiny_sentences), expected)


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_dropout_is_off_whatever_mode_the_encoder_is_in(precision, folder, tiny_sentences):
    encoder = load_encoder(folder)
    expected = Encoding(encoder, precision=precision)(tiny_sentences[:40])
    encoder = SentenceTransformer(modules=[*encoder, Dropout(0.5)], device="cpu")
    encoder.train()
    found = Encoding(encoder, precision=precision)(tiny_sentences[:40])
    np.testing.assert_array_equal(found, expected)


def test_packed_attention_is_attention(rng):
    for length, count in [(1, 60), (2, 7), (5, 60), (8, 7), (13, 1), (15, 7), (16, 60), (40, 7)]:
        layer = torch.nn.Module()
        layer.is_causal = False
        query, key, value = (
            torch.tensor(rng.standard_normal((count, length, 3, 8)), dtype=torch.float32).transpose(
                1, 2
            )
            for _ in range(3)
        )
        found, _ = packed_attention(layer, query, key, value, None, scaling=0.3)
        expected, _ = sdpa_attention_forward(layer, query, key, value, None, scaling=0.3)
        assert found.shape == expected.shape == (count, length, 3, 8)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
        layer.is_causal = True
        found, _ = packed_attention(layer, query, key, value, None)
        expected, _ = sdpa_attention_forward(layer, query, key, value, None)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        mask = torch.ones(count, 1, length, length, dtype=torch.bool).tril()
        found, _ = packed_attention(layer, query, key, value, mask)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("precision", ["mixed", "fast"])
def test_attention_is_packed_in_half_precision_only(
    precision, tiny_bert, tiny_sentences, monkeypatch
):
    sizes: list[int] = []

    def counted(module, query, *args, **keywords):
        sizes.append(query.shape[2])
        return sdpa_attention_forward(module, query, *args, **keywords)

    monkeypatch.setattr("bertflow.encoders.precision.sdpa_attention_forward", counted)
    encoder = load_encoder(tiny_bert)
    Encoding(encoder)(tiny_sentences)
    assert sizes == []
    packed = Encoding(encoder, precision=precision)(tiny_sentences)
    assert max(sizes) >= 16  # No sentence has so many tokens.
    assert encoder[0].model.config._attn_implementation == "sdpa"
    monkeypatch.setattr(precisions, "pack_attention", lambda model: None)
    alone = Encoding(encoder, precision=precision)(tiny_sentences)
    assert smallest_cosine(packed, alone) > 0.999


def test_batches_beside_each_other_are_those_one_after_the_other(
    folder, tiny_sentences, monkeypatch
):
    threads = torch.get_num_threads()
    encoder = load_encoder(folder, pooling="first-last-avg")
    monkeypatch.setattr(encoding, "WORKERS", 1)
    expected = Encoding(encoder, batch_size=1)(tiny_sentences)
    monkeypatch.setattr(encoding, "WORKERS", 4)
    torch.set_num_threads(4)
    names: set[str] = set()
    forward = encoding._forward

    def watched(*arguments):
        names.add(threading.current_thread().name)
        return forward(*arguments)

    encode = Encoding(encoder, batch_size=1)
    encode(tiny_sentences[:1])  # Tries the encoder out.
    monkeypatch.setattr(encoding, "_forward", watched)
    try:
        found = encode(tiny_sentences)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    assert all(name.startswith("encode") for name in names)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_groups_are_begun_ahead_and_do_not_depend_on_each_other(
    folder, tiny_sentences, monkeypatch
):
    threads = torch.get_num_threads()
    encoder = load_encoder(folder)
    # Some for the workers, some too small for them, one empty.
    bounds = [0, 60, 62, 120, 120, 150, 151, 152, 200]
    groups = [tiny_sentences[a:b] for a, b in pairwise(bounds)]
    encode = Encoding(encoder, batch_size=1)
    taken: list[int] = []

    def counted():
        for number, group in enumerate(groups):
            taken.append(number)
            yield Group(group)

    torch.set_num_threads(2)
    try:
        alone = [encode(group) for group in groups if group]
        found = []
        for group, rows, vectors in encode.each(counted()):
            if not found:
                assert taken == [0, 1]
            if not len(rows):
                assert not group.sentences
                continue
            assert sorted(rows) == list(range(len(group.sentences)))
            found.append(vectors[rows.argsort()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lists_are_encoded_in_order_and_each_sentence_of_a_list_once(
    tiny_bert, tiny_sentences, encoded
):
    encoder = load_encoder(tiny_bert)
    some = tiny_sentences
    lists = [[], some[:9], [*some[9:12], *some[9:12]], [], some[:9], [], []]
    expected = [Encoding(encoder)(one) if one else np.empty((0, 0)) for one in lists]
    encoded.clear()
    given = list(encode_lists(Encoding(encoder), lists))
    assert sum(map(len, given)) == sum(map(len, lists))
    for vectors, wanted in zip(given, expected, strict=True):
        np.testing.assert_allclose(vectors, wanted, rtol=0, atol=2e-6)
    assert len(encoded) == 9 + len(set(some[9:12])) + 9


def test_lists_that_were_stopped_go_on_to_the_same_bits(
    tiny_bert, tiny_sentences, encoded, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "PART_SECONDS", 0.0)
    encoder = load_encoder(tiny_bert)
    some = list(dict.fromkeys(tiny_sentences))
    lists = [some[:40], [], some[20:90], some[:40], some[90:120]]

    def vectors(kept: Unfinished | None = None) -> Iterator[np.ndarray]:
        return encode_lists(Encoding(encoder, batch_size=1), lists, kept)

    expected = list(vectors())
    stopped = vectors(Unfinished(tmp_path / "kept"))
    assert [len(next(stopped)) for _ in range(3)] == [40, 0, 70]
    stopped.close()
    encoded.clear()
    for one, other in zip(vectors(Unfinished(tmp_path / "kept")), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(encoded) <= 70
    encoded.clear()
    for one, other in zip(vectors(Unfinished(tmp_path / "kept")), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not encoded


def test_parts_that_two_processes_have_left_are_taken_once(tmp_path):
    group, rows = Group(["a", "b", "c"]), np.eye(3, dtype=np.float32)
    for places in ([0, 1], [2, 1]):
        Unfinished(tmp_path).add(group, np.array(places), rows[places])
    places, vectors = Unfinished(tmp_path).take(group)
    assert places.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(vectors, rows)


def test_who_stops_half_way_has_its_threads_back(tiny_bert, tiny_sentences):
    threads = torch.get_num_threads()
    encoder = load_encoder(tiny_bert)
    torch.set_num_threads(2)
    groups = [Group(tiny_sentences[start : start + 60]) for start in range(0, 180, 60)]
    try:
        for _ in Encoding(encoder, batch_size=1).each(groups):
            break
        assert torch.get_num_threads() == 2
        assert not [t for t in threading.enumerate() if t.name.startswith("encode")]
    finally:
        torch.set_num_threads(threads)


def test_what_goes_wrong_in_a_batch_is_said_and_ends_the_others(
    tiny_bert, tiny_sentences, monkeypatch
):
    threads = torch.get_num_threads()
    encoder = load_encoder(tiny_bert)
    torch.set_num_threads(2)
    calls: list[int] = []

    def broken(*arguments):
        calls.append(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(encoding, "_forward", broken)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            Encoding(encoder, batch_size=1)(tiny_sentences)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_models_that_keep_something_run_alone(tiny_bert, tiny_llama):
    assert encoding._may_run_beside_itself(load_encoder(tiny_bert))
    llama = load_encoder(tiny_llama)
    assert encoding._may_run_beside_itself(llama)
    next(m for m in llama.modules() if hasattr(m, "rope_type")).rope_type = "dynamic"
    assert not encoding._may_run_beside_itself(llama)
    foreign = type("Foreign", (Normalize,), {"__module__": "transformers_modules.x"})
    encoder = SentenceTransformer(modules=[*load_encoder(tiny_bert), foreign()], device="cpu")
    assert not encoding._may_run_beside_itself(encoder)


def test_a_pool_is_tokenized_by_length(tiny_bert, tiny_sentences, monkeypatch):
    encoder = load_encoder(tiny_bert)
    expected = Encoding(encoder)(tiny_sentences)
    widths: list[int] = []
    preprocess = SentenceTransformer.preprocess

    def counted(self, inputs, *args, **keywords):
        found = preprocess(self, inputs, *args, **keywords)
        widths.append(found["input_ids"].shape[1])
        return found

    monkeypatch.setattr(SentenceTransformer, "preprocess", counted)
    monkeypatch.setattr(encoding, "TOKENIZED", 16)
    np.testing.assert_array_equal(Encoding(encoder)(tiny_sentences), expected)
    assert len(set(widths)) > 1


def test_mixed_is_closer_than_fast(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    expected = reference(encoder, tiny_sentences)
    mixed, fast = (
        np.abs(Encoding(encoder, precision=kind)(tiny_sentences) - expected).mean()
        for kind in ("mixed", "fast")
    )
    assert mixed < fast


def test_an_encoder_in_half_precision_is_taken_as_it_is(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, dtype="bfloat16")
    assert resolved_precision("fast", encoder) == "float32"
    found = Encoding(encoder, precision="mixed")(tiny_sentences[:40])
    expected = encoder.encode(
        tiny_sentences[:40], show_progress_bar=False, convert_to_tensor=True
    ).float()
    assert smallest_cosine(found, expected.numpy()) > 0.99


def test_automatic_precision(tiny_bert, monkeypatch):
    encoder = load_encoder(tiny_bert)
    monkeypatch.setattr(precisions, "multiplies_bfloat16", lambda device: True)
    assert resolved_precision("auto", encoder) == "float32"  # Too narrow to gain.
    monkeypatch.setattr(precisions, "LEAST_WIDTH", 16)
    assert resolved_precision("auto", encoder) == "mixed"
    monkeypatch.setattr(precisions, "multiplies_bfloat16", lambda device: False)
    assert resolved_precision("auto", encoder) == "float32"
    assert resolved_precision("fast", encoder) == "fast"


def test_an_unknown_precision_is_refused(tiny_bert):
    with pytest.raises(InputError, match="precision must be one of .*'mixed', 'fast'"):
        Encoding(load_encoder(tiny_bert), precision="int4")(["a"])


def test_encoders_that_are_no_transformer_go_their_own_way(tmp_path):
    from bertflow.encoders import load_word_vectors

    (tmp_path / "v.txt").write_text("cat 1 0 2\ndog 0 1 3\n")
    encoder = load_word_vectors(tmp_path / "v.txt")
    texts = ["cat dog", "dog", "cat"]
    np.testing.assert_array_equal(Encoding(encoder)(texts), reference(encoder, texts))
    assert resolved_precision("auto", encoder) == "float32"


# What a GPU is given: batches of several lengths, padded. Its arithmetic is in test_cuda.py.


def long_and_short(sentences: list[str]) -> list[str]:
    return [" ".join(sentences[n : n + 1 + n % 9]) for n in range(len(sentences))]


@pytest.mark.parametrize(
    ("left", "padding"), [(False, 0), (False, 40), (False, 10_000), (True, 40)]
)
def test_batches_hold_each_row_once_and_little_padding(left, padding, rng):
    lengths = torch.from_numpy(rng.integers(1, 30, size=200))
    place = torch.arange(32)
    mask = ((place >= 32 - lengths[:, None]) if left else (place < lengths[:, None])).long()
    features = {"attention_mask": mask, "input_ids": mask * torch.arange(200)[:, None], "task": "x"}
    batches = list(encoding._batches(features, 300, padding))
    assert sorted(torch.cat([rows for rows, _ in batches]).tolist()) == list(range(200))
    for rows, batch in batches:
        found = batch["attention_mask"]
        assert batch["task"] == "x"
        assert found.numel() <= 300
        assert int((found == 0).sum()) <= (0 if left else padding)
        assert torch.equal(found.sum(dim=1), lengths[rows])
        assert torch.equal(batch["input_ids"], found * rows[:, None])
        assert bool((found[:, -1] if left else found[:, 0]).all())


def test_a_row_without_a_token_is_in_a_batch_too():
    mask = torch.tensor([[1, 1], [0, 0], [0, 0]])
    batches = list(encoding._batches({"attention_mask": mask}, 1))
    assert [rows.tolist() for rows, _ in batches] == [[0], [1], [2]]


def launched(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """What the path of a GPU gives on the processor."""
    features = encoding._tokenized(model, texts, None)
    assert features is not None
    ((rows, vectors),) = encoding.Encoding(model)._launch(model, Group(texts), features, 64)
    return vectors[rows.argsort()]


@pytest.mark.parametrize("side", ["left", "right"])
def test_launched_batches_are_sentences_on_their_own(folder, side, tiny_sentences):
    model = load_encoder(folder)
    texts = long_and_short(tiny_sentences)
    expected = reference(model, texts)
    model.tokenizer.padding_side = side  # BERT, padded on the left, counts positions from there.
    assert smallest_cosine(launched(model, texts), expected) > 0.99999


def test_a_batch_too_large_for_the_memory_is_halved_until_it_fits(
    tiny_bert, tiny_sentences, monkeypatch
):
    model = load_encoder(tiny_bert)
    texts = long_and_short(tiny_sentences)
    expected = launched(model, texts)
    forward, rows = encoding._forward, []

    def small(model, batch, kind):
        rows.append(len(batch["attention_mask"]))
        if rows[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(model, batch, kind)

    monkeypatch.setattr(encoding, "_forward", small)
    np.testing.assert_allclose(launched(model, texts), expected, rtol=0, atol=1e-5)
    assert max(rows) > 3
    monkeypatch.setattr(
        encoding, "_forward", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none left"))
    )
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        launched(model, texts)
