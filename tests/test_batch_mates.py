"""A sentence's vector does not depend on its batch mates, and fitting leaves the encoder alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout

from bertflow import calibrate, load_encoder
from bertflow.calibrators import Flow, Standardization, Whitening
from bertflow.calibrators.storage import CALIBRATORS
from bertflow.encoders import embed
from bertflow.encoders.encoding import Encoding
from bertflow.errors import ModelError

# Of 1 to 32 tokens with the two special ones, so that each is padded to each.
LENGTHS = [1, 2, 3, 5, 8, 13, 21, 29, 60]
TEXTS = [" ".join(["the dog eats bread", "a man reads"][n % 2] for _ in range(n)) for n in LENGTHS]
TEXTS += ["?", "bird"]


def unlike(found, expected) -> float:
    """One minus the smallest cosine."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(1 - ((found * expected).sum(axis=1) / norms).min())


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "cls"), ("bert", "layers:0,2"), ("llama", "first-last-avg")]
)
def test_alone_or_in_a_batch_a_sentence_has_the_same_vector(pooling, kind, request):
    encoder = load_encoder(request.getfixturevalue(f"tiny_{kind}"), pooling=pooling, device="cpu")
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    # Padded to the longest, to each length in turn, and without padding.
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, rtol=0, atol=1e-5)
    for mate in TEXTS[::2]:
        pairs = np.stack([encoder.encode([text, mate])[0] for text in TEXTS[:4]])
        np.testing.assert_allclose(pairs, alone[:4], rtol=0, atol=1e-5)
    np.testing.assert_allclose(Encoding(encoder)(TEXTS), alone, rtol=0, atol=1e-5)
    for precision in ("mixed", "fast"):
        single = [Encoding(encoder, precision=precision)([text]) for text in TEXTS]
        together = Encoding(encoder, precision=precision)(TEXTS * 3)
        assert unlike(together, np.concatenate(single * 3)) < 1e-3


@pytest.mark.parametrize("name", ["flow", "whitening"])
def test_so_it_has_in_a_calibrated_model(name, tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    model = calibrate(encoder, tiny_sentences, CALIBRATORS[name]())
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    size = np.abs(alone).max()
    np.testing.assert_allclose(model.encode(TEXTS), alone, rtol=0, atol=1e-5 * size)
    np.testing.assert_allclose(embed(model, TEXTS).rows(), alone, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize(("name", "portable"), [("flow", True), ("whitening", False)])
def test_weights_are_the_same_bits_after_a_fit_and_the_mode_is_evaluation(
    name, portable, tiny_bert, tiny_sentences
):
    encoder = load_encoder(tiny_bert, device="cpu")
    before = copy.deepcopy(encoder.state_dict())
    model = calibrate(encoder, tiny_sentences, CALIBRATORS[name](), portable=portable)
    after = encoder.state_dict()
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor), key
        assert torch.equal(model.state_dict()[key], tensor), key
    assert not any(module.training for one in (encoder, model) for module in one.modules())
    assert not any(p.requires_grad and p.grad is not None for p in encoder.parameters())


@pytest.mark.parametrize("build", [Flow, Whitening])
def test_dropout_is_off_while_fitting_and_no_gradients_are_kept(build, tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    expected = calibrate(encoder, tiny_sentences, build()).calibrator.transform(np.ones((2, 16)))
    dropping = SentenceTransformer(modules=[*encoder, Dropout(0.5)], device="cpu").train()
    found = calibrate(dropping, tiny_sentences, build()).calibrator.transform(np.ones((2, 16)))
    np.testing.assert_array_equal(found, expected)
    assert all(parameter.grad is None for parameter in dropping.parameters())


class SpoilsMates(torch.nn.Module):
    """Gives NaN for every row but the first, once there are several."""

    def forward(self, features):
        features["sentence_embedding"] = features["sentence_embedding"].clone()
        features["sentence_embedding"][1:] = float("nan")
        return features

    def get_embedding_dimension(self):
        return 16


def test_an_encoder_whose_vectors_depend_on_their_batch_is_refused(tiny_bert):
    sound = load_encoder(tiny_bert, device="cpu")
    encoder = SentenceTransformer(modules=[*sound, SpoilsMates()], device="cpu").eval()
    for function in (embed, lambda *given: calibrate(*given, Standardization())):
        with pytest.raises(ModelError, match="another vector in a batch than alone"):
            function(encoder, ["the dog eats bread today", "a cat"])
