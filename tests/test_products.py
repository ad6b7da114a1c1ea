"""Linear layers whose weights are laid out once, against nn.Linear under autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from bertflow.encoders import load_encoder
from bertflow.encoders import precision as precisions
from bertflow.encoders.encoding import Encoding
from bertflow.encoders.precision import PackedLinear, pack_products

pytestmark = pytest.mark.skipif(
    not precisions._has_packed_products(), reason="this PyTorch has no packed products"
)


def autocast(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        return layer(inputs)


def test_it_is_the_product_under_autocast():
    for dtype in [torch.float32, torch.bfloat16]:
        for shape in [(1, 1, 7), (3, 5, 64), (300, 64), (2, 3, 4, 33)]:
            for bias in [True, False]:
                torch.manual_seed(0)
                layer = nn.Linear(shape[-1], 24, bias=bias)
                inputs = torch.randn(shape).to(dtype)
                packed = PackedLinear(copy.deepcopy(layer).bfloat16())
                for given in (inputs, inputs.transpose(0, -2), inputs[..., :1, :]):
                    found, expected = autocast(packed, given), autocast(layer, given)
                    assert found.dtype == expected.dtype == torch.bfloat16
                    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("name", ["gelu", "gelu_python"])
def test_gelu_behind_is_closer_to_float32_than_under_autocast(name, tiny_bert):
    encoder = load_encoder(tiny_bert)
    block = encoder[0].model.encoder.layer[0].intermediate
    block.intermediate_act_fn = ACT2FN[name]
    plain = copy.deepcopy(block)
    torch.manual_seed(0)
    inputs = 3 * torch.randn(9, 6, block.dense.in_features)
    with torch.inference_mode():
        expected = plain(inputs)
    pack_products(block.bfloat16())
    assert isinstance(block.dense, PackedLinear)
    found, other = ((autocast(one, inputs) - expected).abs() for one in (block, plain))
    assert found.mean() <= other.mean() and found.max() <= 1.5 * other.max()


@pytest.mark.parametrize("name", ["relu", "gelu_new", "gelu_pytorch_tanh"])
def test_other_activations_stay(name, tiny_bert):
    block = load_encoder(tiny_bert)[0].model.encoder.layer[0].intermediate
    activation = block.intermediate_act_fn = ACT2FN[name]
    pack_products(block.bfloat16())
    assert isinstance(block.dense, PackedLinear) and block.dense._behind == ("none", "")
    assert block.intermediate_act_fn is activation


@pytest.mark.parametrize("precision", ["mixed", "fast"])
def test_an_encoder_gives_what_it_gave_and_keeps_its_layers(
    precision, tiny_bert, tiny_sentences, monkeypatch
):
    encoder = load_encoder(tiny_bert, pooling="first-last-avg")
    before = torch.get_rng_state()
    packed = Encoding(encoder, precision=precision)(tiny_sentences)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(isinstance(module, PackedLinear) for module in encoder.modules())
    monkeypatch.setattr(precisions, "pack_products", lambda model: None)
    plain = Encoding(encoder, precision=precision)(tiny_sentences)
    exact = Encoding(encoder)(tiny_sentences)
    assert abs(packed - exact).mean() <= 1.1 * abs(plain - exact).mean()


def test_layers_that_others_hook_into_are_left(tiny_bert):
    model = load_encoder(tiny_bert)[0].model
    first, second = (model.encoder.layer[n].attention.self.query for n in (0, 1))
    first.register_forward_hook(lambda *_: None)
    second.forward = second.forward
    pack_products(model.bfloat16())
    assert type(first) is type(second) is nn.Linear
    assert model.encoder.layer[0].attention.self.query is first
    assert isinstance(model.encoder.layer[0].attention.self.key, PackedLinear)


def test_a_layer_in_two_places_stays_one():
    shared = nn.Linear(4, 4).bfloat16()
    model = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)])
    pack_products(model)
    assert isinstance(model[0][0], PackedLinear) and model[0][0] is model[1][0]


@pytest.mark.parametrize("cause", ["size", "lacking", "ARM"])
def test_models_that_are_left(cause, tiny_bert, monkeypatch):
    if cause == "size":
        monkeypatch.setattr(precisions, "MOST_WEIGHTS", 10)
    else:
        name = "_is_mkldnn_bf16_supported" if cause == "lacking" else "_is_mkldnn_acl_supported"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: cause == "ARM")
    model = load_encoder(tiny_bert)[0].model
    pack_products(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
