"""Encoding without padding and in other arithmetic, against SentenceTransformer.encode."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from bertflow.encoders import encoding, load_encoder
from bertflow.encoders.encoding import encode_distinct, resolved_precision
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
    found = encode_distinct(encoder, texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference(encoder, texts), rtol=0, atol=2e-5)


def test_order_and_pools_do_not_matter(tiny_bert, tiny_sentences, monkeypatch):
    encoder = load_encoder(tiny_bert)
    expected = encode_distinct(encoder, tiny_sentences)
    monkeypatch.setattr(encoding, "POOL", 37)
    found = encode_distinct(encoder, tiny_sentences[::-1], batch_size=1)[::-1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_left_padding(tiny_llama, tiny_sentences):
    encoder = load_encoder(tiny_llama)
    expected = encode_distinct(encoder, tiny_sentences[:50])
    encoder[0].tokenizer.padding_side = "left"
    found = encode_distinct(encoder, tiny_sentences[:50])
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
    found = encode_distinct(encoder, tiny_sentences[:40])
    assert found.shape == (40, 5)
    np.testing.assert_allclose(found, reference(encoder, tiny_sentences[:40]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("precision", ["mixed", "fast"])
@pytest.mark.parametrize("pooling", ["mean", "first-last-avg"])
def test_half_precision_is_close_and_leaves_the_encoder_alone(
    precision, pooling, folder, tiny_sentences
):
    encoder = load_encoder(folder, pooling=pooling)
    before = copy.deepcopy(encoder.state_dict())
    expected = reference(encoder, tiny_sentences)
    found = encode_distinct(encoder, tiny_sentences, precision=precision)
    assert found.dtype == np.float32
    assert 0.98 < smallest_cosine(found, expected)
    assert not np.array_equal(found, expected)
    assert {name: t.dtype for name, t in encoder.state_dict().items()} == {
        name: t.dtype for name, t in before.items()
    }
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])
    np.testing.assert_array_equal(reference(encoder, tiny_sentences), expected)


def test_mixed_is_closer_than_fast(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    expected = reference(encoder, tiny_sentences)
    mixed, fast = (
        np.abs(encode_distinct(encoder, tiny_sentences, precision=kind) - expected).mean()
        for kind in ("mixed", "fast")
    )
    assert mixed < fast


def test_an_encoder_in_half_precision_is_taken_as_it_is(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, dtype="bfloat16")
    assert resolved_precision("fast", encoder) == "float32"
    found = encode_distinct(encoder, tiny_sentences[:40], precision="mixed")
    expected = encoder.encode(
        tiny_sentences[:40], show_progress_bar=False, convert_to_tensor=True
    ).float()
    assert smallest_cosine(found, expected.numpy()) > 0.99


def test_automatic_precision(tiny_bert, monkeypatch):
    encoder = load_encoder(tiny_bert)
    monkeypatch.setattr(encoding, "multiplies_bfloat16", lambda device: True)
    assert resolved_precision("auto", encoder) == "float32"  # Too narrow to gain.
    monkeypatch.setattr(encoding, "LEAST_WIDTH", 16)
    assert resolved_precision("auto", encoder) == "mixed"
    monkeypatch.setattr(encoding, "multiplies_bfloat16", lambda device: False)
    assert resolved_precision("auto", encoder) == "float32"
    assert resolved_precision("fast", encoder) == "fast"


def test_an_unknown_precision_is_refused(tiny_bert):
    with pytest.raises(InputError, match="precision must be one of auto, float32, mixed, fast"):
        encode_distinct(load_encoder(tiny_bert), ["a"], precision="int4")


def test_encoders_that_are_no_transformer_go_their_own_way(tmp_path):
    from bertflow.encoders import load_word_vectors

    (tmp_path / "v.txt").write_text("cat 1 0 2\ndog 0 1 3\n")
    encoder = load_word_vectors(tmp_path / "v.txt")
    texts = ["cat dog", "dog", "cat"]
    np.testing.assert_array_equal(encode_distinct(encoder, texts), reference(encoder, texts))
    assert resolved_precision("auto", encoder) == "float32"
