"""An encoder is one function of the text on all ways to its vectors, or it is refused by name."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
import transformers
from benchmarks.architectures import judged, made, names, swept
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoTokenizer

from bertflow import Flow, Standardization, Whitening, attach, calibrate, load, load_encoder
from bertflow.encoders import embed, encoding
from bertflow.encoders.encoder import own_part
from bertflow.encoders.probe import SENTENCES, check_encoder
from bertflow.errors import InputError, ModelError

ONE_LINE = re.compile(r"[^\n]{10,500}")


@pytest.fixture
def encoder(tiny_bert: Path) -> SentenceTransformer:
    return load_encoder(tiny_bert, pooling="mean", device="cpu")


def whitened(encoder, sentences):
    return calibrate(encoder, sentences, Whitening(dim=4))


# Architectures.


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("t5", None), ("opt", "layers:1"), ("xlm", None), ("clip_text_model", "layers:1")],
)
def test_the_hidden_states_that_are_asked_for_are_pooled(name, pooling, tmp_path):
    assert not made(name, tmp_path)
    verdict = judged(name, tmp_path, pooling)
    assert verdict.kind == "right", verdict.line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bart", "encoder-decoder"),
        ("m2m_100", "lacks weights that a M2M100Encoder as in its config.json has"),
        ("fnet", "another vector in a batch than alone"),
        ("convbert", "another vector in a batch than alone"),
    ],
)
def test_an_architecture_that_cannot_be_right_is_refused_by_name_when_loaded(
    name, message, tmp_path
):
    assert not made(name, tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        load_encoder(tmp_path)
    assert str(tmp_path) in str(caught.value) and ONE_LINE.fullmatch(str(caught.value))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_every_architecture_is_right_or_refused_in_one_line(part):
    found = [one for one in swept(names()[part::8]) if not isinstance(one, str)]
    assert len(found) > 20
    assert [one for one in found if one.kind == "wrong"] == []
    assert all(ONE_LINE.fullmatch(one.line) for one in found if one.kind == "refused")


# Encoders that someone has changed.


class Slightly(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 1.05 * self.inner(x)


class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


def dense(encoder):
    return encoder[0].model.encoder.layer[0].output


def weight_norm(encoder):
    nn.utils.parametrizations.weight_norm(dense(encoder).dense)
    dense(encoder).dense.parametrizations.weight.original0.data.mul_(3)


def wrapped(encoder):
    dense(encoder).dense = Doubled(dense(encoder).dense)


def hooked(encoder):
    dense(encoder).register_forward_hook(lambda module, given, out: 2 * out)


def activation(encoder):
    encoder[0].model.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()


def preprocessing(encoder):
    usual = encoder.preprocess
    encoder.preprocess = lambda texts, **how: usual([t.replace("café", "") for t in texts], **how)


AGAIN = "another model when it is saved and loaded again"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (weight_norm, AGAIN),
        (wrapped, AGAIN),
        (activation, AGAIN),
        (hooked, "has its own hooks"),
        (preprocessing, "has its own preprocess"),
    ],
)
def test_what_is_lost_when_a_model_is_saved_is_refused_before_the_corpus_is_encoded(
    encoder, change, message, tiny_sentences, encoded
):
    change(encoder)
    with pytest.raises((ModelError, InputError), match=message):
        whitened(encoder, tiny_sentences)
    assert encoded == []


def test_an_encode_that_is_only_watched_is_the_librarys(tiny_bert, tiny_sentences, monkeypatch):
    usual = SentenceTransformer.encode

    @functools.wraps(usual)
    def watched(self, *given, **how):
        return usual(self, *given, **how)

    monkeypatch.setattr(SentenceTransformer, "encode", watched)
    assert whitened(load_encoder(tiny_bert, device="cpu"), tiny_sentences).encode(["a"]).size == 4


def test_an_encoder_cut_by_truncate_dim_keeps_its_calibrator(encoder, tiny_sentences, tmp_path):
    encoder.truncate_dim = 8
    model = calibrate(encoder, tiny_sentences, Whitening())
    model.save_pretrained(str(tmp_path / "m"))
    np.testing.assert_array_equal(load(tmp_path / "m").encode(["a dog"]), model.encode(["a dog"]))
    assert model.encoder.encode([]).shape == (0, 8)


def test_double_precision_is_held_to_the_same_digits(encoder, tiny_sentences):
    encoder.double()
    dense(encoder).dense = Slightly(dense(encoder).dense)
    with pytest.raises(ModelError, match=AGAIN):
        whitened(encoder, tiny_sentences)


def test_a_folder_without_its_tokenizer_is_refused(tmp_path):
    assert not made("bert", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("length", [2, -1, None, "8"])
def test_a_limit_that_leaves_no_room_beside_special_tokens_is_refused(encoder, length):
    encoder.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    encoder.max_seq_length = length
    with pytest.raises(InputError, match=f"must be an integer between 3 and 32, got {length!r}"):
        check_encoder(encoder)


def test_a_limit_above_the_models_positions_is_refused(tiny_llama, tiny_sentences):
    encoder = SentenceTransformer(modules=transformer_and_pooling(tiny_llama), device="cpu")
    encoder.tokenizer.pad_token = encoder.tokenizer.eos_token
    encoder.max_seq_length = 64
    with pytest.raises(InputError, match="must be an integer between 1 and 32, got 64"):
        whitened(encoder, tiny_sentences)


@pytest.mark.parametrize("wrong", [None, b"a dog", 3, "half of \ud83d"])
def test_what_is_no_text_is_named_by_its_place(encoder, wrong):
    with pytest.raises(InputError, match="^sentence 1 "):
        encoder.encode(["a dog", wrong])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_encoder_is_refused_by_name(encoder, tiny_bert, tiny_sentences):
    encoder[0].model = torch.ao.quantization.quantize_dynamic(encoder[0].model, {nn.Linear})
    with pytest.raises(ModelError, match=re.escape(str(tiny_bert))):
        whitened(encoder, tiny_sentences)


class Prefixed(SentenceTransformer):
    def encode(self, texts, **keywords):
        return super().encode([f"the man {text}" for text in texts], **keywords)


def test_an_encode_of_ones_own_is_followed_or_refused(encoder, tiny_sentences):
    prefixed = Prefixed(modules=list(encoder), device="cpu")
    np.testing.assert_allclose(embed(prefixed, ["a dog"]).rows(), prefixed.encode(["a dog"]))
    with pytest.raises(InputError, match="Prefixed has its own encode"):
        whitened(prefixed, tiny_sentences)


def test_corpora_are_not_encoded_otherwise_than_by_encode(encoder, monkeypatch):
    forward = encoding._forward
    monkeypatch.setattr(encoding, "_forward", lambda *given: 1.01 * forward(*given))
    with pytest.raises(ModelError, match="encoded otherwise in a corpus"):
        embed(encoder, ["a dog"])


def test_tokens_without_an_embedding_are_refused_with_both_counts(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "more")
    words = AutoTokenizer.from_pretrained(folder)
    count = len(words)
    words.add_tokens(["covid19x", "<domain>"])
    words.save_pretrained(folder)
    message = f"has {count + 2} tokens, but its model has embeddings for {count};"
    with pytest.raises(ModelError, match=message):
        load_encoder(folder)


def test_a_calibrator_is_not_attached_to_an_encoder_with_the_same_weights_and_other_vectors(
    encoder, tiny_sentences
):
    calibrator = whitened(encoder, tiny_sentences).calibrator
    attach(encoder, calibrator)
    hooked(encoder)
    with pytest.raises(ModelError, match="differs in vectors of the same sentences"):
        attach(encoder, calibrator)


# What is saved.


@pytest.mark.parametrize(("name", "value"), [("max_seq_length", 4), ("prompts", "cat ")])
def test_a_model_that_was_set_otherwise_does_not_keep_its_calibrator(
    encoder, tiny_sentences, tmp_path, name, value
):
    model = whitened(encoder, tiny_sentences)
    if name == "prompts":
        model.default_prompt_name, value = "q", {"q": value}
    setattr(model, name, value)
    with pytest.warns(UserWarning, match="its calibrator, which no longer belongs to it, is not"):
        model.save_pretrained(str(tmp_path / "m"))
    with pytest.raises(ModelError, match="trained or set otherwise after it was calibrated"):
        load(tmp_path / "m")


def test_a_model_that_was_trained_further_does_not_keep_its_calibrator(
    encoder, tiny_sentences, tmp_path
):
    model = whitened(encoder, tiny_sentences)
    model[-1].linear.weight.data.mul_(1.5)
    with pytest.warns(UserWarning, match="its calibrator, which no longer belongs to it, is not"):
        model.save_pretrained(str(tmp_path / "m"))
    plain = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    np.testing.assert_allclose(plain.encode(["a dog"]), model.encode(["a dog"]), atol=1e-6)
    with pytest.raises(ModelError, match="SentenceTransformer may load it"):
        load(tmp_path / "m")


@pytest.mark.parametrize("place", [0, -1], ids=["encoder", "calibrator"])
def test_a_calibrator_that_plain_sentence_transformers_left_behind_is_not_offered(
    encoder, tiny_sentences, tmp_path, place
):
    whitened(encoder, tiny_sentences).save_pretrained(str(tmp_path / "m"))
    plain = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    for weight in plain[place].parameters():
        weight.data.mul_(1.5)
    plain.save_pretrained(str(tmp_path / "m"))
    with pytest.raises(ModelError, match="does not belong to its model"):
        load(tmp_path / "m")


def test_what_is_saved_replaces_what_would_be_loaded_instead(
    tiny_bert, tiny_llama, tiny_sentences, tmp_path
):
    old, new = (
        whitened(load_encoder(one, pooling="mean", device="cpu"), tiny_sentences)
        for one in (tiny_llama, tiny_bert)
    )
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    old.save(str(folder))
    new.save(str(folder), safe_serialization=False)
    for model in (load(folder), SentenceTransformer(str(folder), device="cpu")):
        np.testing.assert_allclose(model.encode(["a dog"]), new.encode(["a dog"]), atol=1e-6)
    assert (folder / "notes.txt").exists()


def test_a_save_that_would_load_as_another_model_leaves_the_old_one(
    encoder, tiny_sentences, tmp_path
):
    model = whitened(encoder, tiny_sentences)
    model.save_pretrained(str(tmp_path / "m"))
    expected = load(tmp_path / "m").encode(["a dog"])
    hooked(model)
    with pytest.raises(ModelError, match="the saved model gives other vectors"):
        model.save_pretrained(str(tmp_path / "m"))
    np.testing.assert_array_equal(load(tmp_path / "m").encode(["a dog"]), expected)


# Other kinds of models.


def transformer_and_pooling(folder):
    transformer = Transformer(str(folder))
    return [transformer, Pooling(transformer.get_embedding_dimension())]


def test_a_route_whose_weights_have_foreign_names_is_refused(tiny_bert, tmp_path):
    routes = Router.for_query_document(
        query_modules=transformer_and_pooling(tiny_bert),
        document_modules=transformer_and_pooling(tiny_bert),
        default_route="query",
    )
    folder = tmp_path / "router"
    SentenceTransformer(modules=[routes, Normalize()], device="cpu").save_pretrained(str(folder))
    load_encoder(folder)
    from safetensors.torch import load_file, save_file

    weights = folder / "document_0_Transformer" / "model.safetensors"
    save_file({f"q.{k}": v for k, v in load_file(weights).items()}, weights, {"format": "pt"})
    with pytest.raises(ModelError, match="document_0_Transformer lacks weights"):
        load_encoder(folder)


def test_routes_that_differ_are_said(tiny_bert, tiny_llama, tiny_sentences, caplog):
    other = load_encoder(tiny_llama, pooling="mean", device="cpu")
    routes = Router.for_query_document(
        query_modules=list(other),
        document_modules=transformer_and_pooling(tiny_bert),
        default_route="document",
    )
    whitened(SentenceTransformer(modules=[routes], device="cpu"), tiny_sentences)
    assert "encoded on different routes" in caplog.text


def test_static_embeddings_are_calibrated_and_saved(tiny_bert, tiny_sentences, tmp_path):
    words = AutoTokenizer.from_pretrained(tiny_bert).backend_tokenizer
    static = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu")
    model = whitened(static, tiny_sentences)
    model.save_pretrained(str(tmp_path / "m"))
    for loaded in (load(tmp_path / "m"), SentenceTransformer(str(tmp_path / "m"), device="cpu")):
        np.testing.assert_allclose(loaded.encode(["a dog"]), model.encode(["a dog"]), atol=1e-6)


def test_sparse_encoders_and_cross_encoders_are_refused(tiny_bert, tiny_sentences, tmp_path):
    config = transformers.AutoConfig.from_pretrained(tiny_bert)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "mlm")
    first = Transformer(str(tmp_path / "mlm"), transformer_task="fill-mask")
    sparse = SparseEncoder(modules=[first, SpladePooling()], device="cpu")
    sparse.save_pretrained(str(tmp_path / "sparse"))
    with pytest.raises(ModelError, match="is a SparseEncoder"):
        load_encoder(tmp_path / "sparse")
    for function in (calibrate, embed):
        with pytest.raises(InputError, match="dense vectors, got SparseEncoder"):
            function(sparse, tiny_sentences)
    with pytest.raises(InputError, match="expected a SentenceTransformer .* got Linear"):
        check_encoder(nn.Linear(2, 2))


def test_a_pointer_of_git_lfs_is_named(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "pointer")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "tokenizer.json").write_text(pointer)
    with pytest.raises(ModelError, match=r"tokenizer\.json is a git-lfs pointer"):
        load_encoder(folder)


def test_an_adapter_without_peft_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text("{}")
    module = "sentence_transformers.base.modules.transformer"
    monkeypatch.setattr(f"{module}.is_peft_available", lambda: False)
    with pytest.raises(ModelError, match="pip install peft"):
        load_encoder(tmp_path)


# Sentences and vectors.


@pytest.mark.parametrize(
    "make",
    [
        np.array,
        pandas.Series,
        polars.Series,
        pyarrow.array,
        lambda texts: pyarrow.array(texts, pyarrow.string_view()),
        lambda texts: pyarrow.chunked_array([texts]),
        tuple,
    ],
)
def test_a_column_is_taken_as_a_list_is(encoder, make):
    texts = ["a dog", "the cat"]
    np.testing.assert_array_equal(encoder.encode(make(texts)), encoder.encode(texts))
    np.testing.assert_array_equal(embed(encoder, make(texts)).rows(), embed(encoder, texts).rows())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda texts: pandas.DataFrame({"text": texts, "label": 1}), "got DataFrame"),
        (lambda texts: polars.DataFrame({"text": texts}), "got DataFrame"),
        (lambda texts: pyarrow.table({"text": texts}), "got Table; .* one column of a table"),
        (lambda texts: {"text": texts}, "got dict"),
        (lambda texts: np.array([texts]), "got ndarray"),
        (lambda texts: texts[0], "got str; give a list of texts"),
        (lambda texts: 3, "got int"),
    ],
)
def test_what_is_no_column_of_sentences_is_refused(encoder, make, message):
    given = make(["a dog", "the cat"])
    for function in (calibrate, embed):
        with pytest.raises(InputError, match=message):
            function(encoder, given)
    if not isinstance(given, str | dict):
        with pytest.raises(InputError, match=message):
            encoder.encode(given)


def test_no_sentence_is_an_array_without_rows(encoder, tiny_sentences, tmp_path):
    model = calibrate(encoder, tiny_sentences, Flow(epochs=1))
    model.save_pretrained(str(tmp_path / "m"))
    for one in (encoder, model, load(tmp_path / "m")):
        assert one.encode([]).shape == one.encode_query([]).shape == (0, 16)
        assert one.encode([], convert_to_tensor=True).shape == (0, 16)
        assert one.encode([], truncate_dim=3).shape == (0, 3)
    assert model.calibrator.transform(encoder.encode([])).shape == (0, 16)


def test_names_serve_where_objects_do(tiny_bert, tiny_sentences):
    model = calibrate(tiny_bert, tiny_sentences, "whitening")
    assert isinstance(model.calibrator, Whitening)
    with pytest.raises(InputError, match="tempered-flow"):
        calibrate(tiny_bert, tiny_sentences, "tempered")


# The state of the process.


def test_the_default_type_changes_no_model(tiny_bert, tiny_sentences, tmp_path):
    dtype = torch.bfloat16

    def model():
        made = calibrate(load_encoder(tiny_bert, device="cpu"), tiny_sentences, Flow(epochs=1))
        made.save_pretrained(str(tmp_path / "m"))
        return load(tmp_path / "m").encode(tiny_sentences)

    expected = model()
    torch.set_default_dtype(dtype)
    try:
        found = model()
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, expected)


def test_gradients_and_autocast_change_no_model(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    expected = calibrate(encoder, tiny_sentences, Flow(epochs=1)).encode(tiny_sentences)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model = calibrate(encoder, tiny_sentences, Flow(epochs=1))
        found = model.encode(tiny_sentences)
        rows = embed(model, tiny_sentences).rows()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_the_probe_says_what_failed(encoder, monkeypatch):
    def broken(features):
        raise IndexError("index out of range in self")

    encoder[1].forward = broken
    with pytest.raises(ModelError, match="cannot encode a sentence: IndexError: index out of"):
        embed(encoder, list(SENTENCES))


def test_another_vocabulary_is_another_encoder_though_the_probe_is_the_same(
    tiny_bert, tiny_sentences, tmp_path
):
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_bert, folder)
    model = calibrate(load_encoder(folder), tiny_sentences, Standardization())
    model.save_pretrained(str(tmp_path / "model"))
    for changed in (folder, tmp_path / "model"):
        path = changed / "tokenizer.json"
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"]
        first, second = (w for w in ("cat", "dog"))
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="differs in .*the tokens of the tokenizer"):
        attach(load_encoder(folder), model.calibrator)
    with pytest.raises(ModelError, match="does not belong to its model"):
        load(tmp_path / "model")


def test_a_forward_that_was_put_on_a_module_is_its_own(tiny_bert):
    encoder = load_encoder(tiny_bert)
    words = encoder[0].model.embeddings.word_embeddings
    usual = words.forward
    words.forward = lambda ids: usual(ids) * (ids != 9)[..., None]
    assert own_part(encoder) == "forward"


def test_a_device_or_length_that_cannot_be_is_refused_before_the_corpus_is_read(tiny_bert):
    def corpus():
        raise AssertionError
        yield

    with pytest.raises(InputError, match="there is no device 'cuda:99' here"):
        calibrate(load_encoder(tiny_bert), corpus(), Flow(device="cuda:99"))
    encoder = load_encoder(tiny_bert)
    encoder.max_seq_length = 7.5
    with pytest.raises(InputError, match=r"between 1 and 32, got 7\.5"):
        calibrate(encoder, corpus())
