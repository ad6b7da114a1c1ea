"""Encoders: what a pooling recipe means, what is cut away, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from bertflow.encoders import hidden_states, load_encoder
from bertflow.errors import InputError, MissingDependencyError, ModelError
from conftest import save_tiny_encoder

SENTENCES = ["the dog runs .", "a man plays the guitar on the street .", "bread"]
RECIPES = {
    "mean": (3,),
    "last2avg": (2, 3),
    "first-last-avg": (1, 3),
    "embed-last-avg": (0, 3),
    "layers:1": (1,),
    "layers:2": (2,),
    "layers:0": (0,),
    "layers:2,1": (1, 2),
    "layers:0,1,2,3": (0, 1, 2, 3),
}


def states_by_hand(folder: Path, sentence: str) -> tuple[torch.Tensor, ...]:
    """Hidden states of the whole model, of one sentence alone, shape (T, D) each."""
    model = AutoModel.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(sentence, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens, output_hidden_states=True).hidden_states
    return tuple(state[0] for state in states)


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("pooling", RECIPES)
def test_recipe_averages_the_hidden_states_of_the_whole_model(kind, pooling, request):
    folder = request.getfixturevalue(f"tiny_{kind}")
    vectors = load_encoder(folder, pooling=pooling).encode(SENTENCES)
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        states = states_by_hand(folder, sentence)
        expected = sum(states[layer] for layer in RECIPES[pooling]) / len(RECIPES[pooling])
        np.testing.assert_allclose(vector, expected.mean(dim=0).numpy(), atol=2e-6)


def test_cls_is_the_first_token_of_the_last_state(tiny_bert):
    vectors = load_encoder(tiny_bert, pooling="cls").encode(SENTENCES)
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        expected = states_by_hand(tiny_bert, sentence)[-1][0]
        np.testing.assert_allclose(vector, expected.numpy(), atol=2e-6)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_sentence_alone_has_the_vector_it_has_in_a_batch(kind, request):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"))
    together = encoder.encode(SENTENCES)
    alone = np.stack([encoder.encode([sentence])[0] for sentence in SENTENCES])
    np.testing.assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "pooling", "blocks"),
    [
        ("bert", "layers:1", 1),
        ("bert", "layers:0", 1),
        ("bert", "layers:1,2", 2),
        ("bert", "mean", 3),
        # Normalises after its last block, so the state before that needs one block more.
        ("llama", "layers:1", 2),
        ("llama", "layers:2", 3),
        ("llama", "first-last-avg", 3),
    ],
)
def test_blocks_that_are_not_needed_are_removed(kind, pooling, blocks, request):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"), pooling=pooling)
    model = encoder[0].model
    held = model.encoder.layer if kind == "bert" else model.layers
    assert len(held) == model.config.num_hidden_layers == blocks


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_cut_encoder_is_saved_cut_and_loads_plainly(kind, request, tmp_path):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"), pooling="layers:1")
    encoder.save_pretrained(str(tmp_path / "cut"))
    again = SentenceTransformer(str(tmp_path / "cut"))
    np.testing.assert_allclose(again.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


def test_default_for_a_raw_encoder_is_first_last_avg_and_64_tokens(tmp_path):
    folder = save_tiny_encoder(tmp_path / "raw")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 32
    assert load_encoder(folder).max_seq_length == 32  # all that it can take
    np.testing.assert_array_equal(
        load_encoder(folder).encode(SENTENCES),
        load_encoder(folder, pooling="first-last-avg").encode(SENTENCES),
    )


def test_a_sentence_transformers_model_keeps_its_own_pooling(tiny_bert, tmp_path):
    load_encoder(tiny_bert, pooling="cls").save_pretrained(str(tmp_path / "st"))
    own = load_encoder(tmp_path / "st")
    np.testing.assert_allclose(
        own.encode(SENTENCES), load_encoder(tiny_bert, pooling="cls").encode(SENTENCES), atol=1e-6
    )
    changed = load_encoder(tmp_path / "st", pooling="mean")
    np.testing.assert_allclose(
        changed.encode(SENTENCES),
        load_encoder(tiny_bert, pooling="mean").encode(SENTENCES),
        atol=1e-6,
    )


def test_a_causal_model_pads_right_and_has_a_padding_token(tiny_llama):
    tokenizer = load_encoder(tiny_llama)[0].tokenizer
    assert tokenizer.padding_side == "right"
    assert tokenizer.pad_token is not None


def test_the_chat_template_of_an_instruction_tuned_model_is_not_applied(tiny_llama, tmp_path):
    plain = load_encoder(tiny_llama).encode(SENTENCES)
    model, tokenizer = (
        AutoModel.from_pretrained(tiny_llama),
        AutoTokenizer.from_pretrained(tiny_llama),
    )
    tokenizer.chat_template = "{% for m in messages %}the man is {{ m['content'] }}{% endfor %}"
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "chat")
    np.testing.assert_allclose(load_encoder(tmp_path / "chat").encode(SENTENCES), plain, atol=1e-6)


def test_a_half_precision_checkpoint_is_raised_to_float32(tiny_bert, tmp_path):
    AutoModel.from_pretrained(tiny_bert, dtype=torch.float16).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "half")
    assert load_encoder(tmp_path / "half").dtype == torch.float32
    assert load_encoder(tmp_path / "half", dtype="float16").dtype == torch.float16


def with_tokenizer_limit(folder: Path, copy: Path, limit: int | None) -> Path:
    shutil.copytree(folder, copy)
    file = copy / "tokenizer_config.json"
    told = json.loads(file.read_text())
    told.pop("model_max_length")
    file.write_text(json.dumps(told if limit is None else told | {"model_max_length": limit}))
    return copy


@pytest.mark.parametrize(
    ("asked", "tokenizer", "kind", "form"),
    [
        *((asked, most, "bert", "raw") for asked in [None, 24] for most in [16, 48, None]),
        (24, 16, "llama", "raw"),
        (None, 48, "llama", "modules"),
    ],
)
def test_length_is_the_least_of_asked_tokenizer_and_positions(
    asked, tokenizer, kind, form, request, tmp_path
):
    folder = request.getfixturevalue(f"tiny_{kind}")
    if form == "modules":
        load_encoder(folder, pooling="mean").save_pretrained(str(tmp_path / "saved"))
        folder = tmp_path / "saved"
    folder = with_tokenizer_limit(folder, tmp_path / "copy", tokenizer)
    encoder = load_encoder(folder, max_length=asked, device="cpu")
    expected = min(limit for limit in [asked, tokenizer, 32] if limit is not None)
    assert encoder.max_seq_length == expected
    assert np.isfinite(encoder.encode(["the dog " * 60])).all()


@pytest.mark.parametrize("form", ["raw", "modules"])
def test_positions_of_roberta_begin_after_its_padding(form, tiny_bert, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer.model_max_length = 999
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
        pad_token_id=1,
        type_vocab_size=2,
    )
    folder = tmp_path / "raw"
    RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if form == "modules":
        load_encoder(folder, pooling="mean").save_pretrained(str(tmp_path / "modules"))
        folder = with_tokenizer_limit(tmp_path / "modules", tmp_path / "copy", None)
    encoder = load_encoder(folder, device="cpu")
    assert encoder.max_seq_length == 32
    assert np.isfinite(encoder.encode(["the dog " * 60])).all()
    with pytest.raises(InputError, match="max_length 33 is above the encoder's 32 tokens"):
        load_encoder(folder, max_length=33)


def test_an_encoder_without_a_length_is_given_none(tiny_bert, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    static = StaticEmbedding(tokenizer._tokenizer, embedding_dim=4)
    SentenceTransformer(modules=[static], device="cpu").save_pretrained(str(tmp_path / "static"))
    assert load_encoder(tmp_path / "static").encode(SENTENCES).shape == (3, 4)
    with pytest.raises(InputError, match=r"max_length 8 cannot be set: .* StaticEmbedding"):
        load_encoder(tmp_path / "static", max_length=8)


def test_what_the_encoder_cannot_do_is_refused_by_name(tiny_bert):
    for arguments, message in [
        ({"pooling": "avg"}, "unknown pooling 'avg'"),
        ({"pooling": "layers:"}, "unknown pooling"),
        ({"pooling": "layers:one"}, "unknown pooling"),
        ({"pooling": "layers:1,1"}, "unknown pooling"),
        ({"pooling": 5}, "unknown pooling '5'"),
        ({"pooling": "layers:4"}, "has 3 blocks"),
        ({"pooling": "layers:-1"}, "unknown pooling"),
        ({"max_length": 33}, "above the encoder's 32 tokens"),
        ({"max_length": 0}, "at least 1"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ]:
        with pytest.raises(InputError, match=message):
            load_encoder(tiny_bert, **arguments)


def test_last2avg_needs_a_block():
    assert hidden_states("last2avg", 1) == (0, 1)
    with pytest.raises(InputError, match="has 0 blocks"):
        hidden_states("last2avg", 0)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", ""])
def test_a_path_that_is_not_there_is_named(name):
    with pytest.raises((ModelError, InputError)):
        load_encoder(name)


def test_a_folder_without_an_encoder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"none of modules.json, config.json or one .gguf"):
        load_encoder(tmp_path)


def test_a_gguf_without_its_packages_is_answered_with_the_pip_line(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertflow\[gguf\]'"):
        load_encoder(tmp_path / "model.gguf")
    with pytest.raises(MissingDependencyError):
        load_encoder(tmp_path)


def test_a_broken_gguf_is_one_error(tmp_path):
    pytest.importorskip("gguf", reason="needs the extra gguf")
    (tmp_path / "model.gguf").write_bytes(b"not a gguf file at all" * 10)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(tmp_path / "model.gguf")


@pytest.mark.parametrize("how", ["offline by wish", "no network"])
def test_a_hub_name_without_network_is_one_quick_error(how, monkeypatch, caplog):
    if how == "offline by wish":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(ModelError, match=r"cannot be had from the model hub \(no connection"):
        load_encoder("no-such-organisation/no-such-model")
    assert "Retrying" not in caplog.text


@pytest.mark.nightly
def test_smollm2_from_its_package_gives_the_stored_vectors(shared_data, capsys):
    from bertflow.demo import default_encoder

    path, _ = default_encoder(None)
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text())
    stored = np.load(shared_data / "embeddings/smollm2-135m_first-last-avg.npy")
    some = [0, 1000, 7000, 15000]
    vectors = load_encoder(path, pooling="first-last-avg").encode([sentences[i] for i in some])
    expected = stored[some].astype(np.float32)
    error = np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 2e-3  # the stored ones are float16
    assert capsys.readouterr() == ("", "")
