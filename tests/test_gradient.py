"""The written-out gradient against autograd, and a step of training with either."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from bertflow.calibrators import Flow, training
from bertflow.errors import TrainingError
from bertflow.flows import FlatParameters, Glow, LikelihoodGradient

DESIGNS = {
    "paper": dict(levels=2, permutation="random", residual=True),
    "released": dict(levels=3, permutation="reverse", residual=False),
    "one level": dict(levels=1, depth=1),
    "more levels than there are": dict(levels=9),
    "slow scales": dict(scale_rate=1.0),
}
every_design = pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)


def glow(features: int, **design) -> Glow:
    """A flow that has been initialised and then moved, so that no gradient is zero by chance."""
    generator = torch.Generator().manual_seed(0)
    made = Glow(features, **{"width": 8, **design}, generator=generator)
    made.initialize(torch.randn(300, features, generator=generator))
    with torch.no_grad():
        for p in made.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return made


def batch(count: int, features: int) -> torch.Tensor:
    return 2 * torch.randn(count, features, generator=torch.Generator().manual_seed(1))


@every_design
def test_loss_and_gradient_are_autograds(design):
    for count in [1, 5, 32]:
        for features in [2, 3, 7, 64]:
            flow = glow(features, **design).double()
            x = batch(count, features).double()
            expected = flow.bits_per_dimension(x)
            expected.backward()
            wanted = {name: p.grad.clone() for name, p in flow.named_parameters()}
            gradient = LikelihoodGradient(flow)
            torch.testing.assert_close(gradient(x), expected.detach(), rtol=1e-12, atol=1e-12)
            for name, p in flow.named_parameters():
                found = p.grad
                torch.testing.assert_close(found, wanted[name], rtol=1e-9, atol=1e-11, msg=name)


def test_batches_of_changing_size_do_not_disturb_each_other():
    flow = glow(6)
    gradient = LikelihoodGradient(flow)
    first = gradient(batch(9, 6)), gradient.parameters.gradient.clone()
    gradient(batch(4, 6))
    again = gradient(batch(9, 6)), gradient.parameters.gradient
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_it_sees_what_an_optimizer_writes():
    flow = glow(6)
    gradient = LikelihoodGradient(flow)
    before = gradient(batch(9, 6))
    gradient.parameters.values -= 1e-3 * gradient.parameters.gradient
    after = gradient(batch(9, 6))
    assert after < before
    torch.testing.assert_close(after, flow.bits_per_dimension(batch(9, 6)).detach())


@pytest.mark.parametrize("design", [{"coupling": "affine"}, {"permutation": "linear"}])
def test_other_layers_are_left_to_autograd(design):
    flow = glow(6, **design)
    assert not LikelihoodGradient.suits(flow)
    with pytest.raises(ValueError, match="written out"):
        LikelihoodGradient(flow)


@pytest.mark.parametrize("build", [Flow, Flow.released])
def test_training_is_what_it_is_with_autograd(build, monkeypatch):
    x = np.random.default_rng(0).normal(size=(640, 12)) ** 3
    found = build(epochs=2).fit(x)
    monkeypatch.setattr(LikelihoodGradient, "suits", staticmethod(lambda glow: False))
    expected = build(epochs=2).fit(x)
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, atol=1e-4)
    np.testing.assert_allclose(found.transform(x), expected.transform(x), atol=2e-3)


@pytest.mark.parametrize(("fetched", "coupling"), [(7, "additive"), (64, "affine")])
def test_results_fetched_late_are_the_same(fetched, coupling, monkeypatch):
    # What happens on a GPU, where the loop does not wait for every step.
    x = np.random.default_rng(0).normal(size=(640, 6))
    expected = Flow(coupling=coupling).fit(x)
    monkeypatch.setattr(training, "steps_fetched", lambda device: fetched)
    seen = []
    found = Flow(coupling=coupling).fit(x, progress=lambda *how: seen.append(how))
    np.testing.assert_array_equal(found.loss_curve_, expected.loss_curve_)
    assert [done for done, _, _ in seen] == list(range(1, 21))
    np.testing.assert_allclose([loss for _, _, loss in seen], found.loss_curve_, rtol=1e-12)


@pytest.mark.parametrize("fetched", [1, 64])
def test_a_step_that_is_not_finite_is_named_however_late_it_is_seen(fetched, monkeypatch):
    monkeypatch.setattr(training, "steps_fetched", lambda device: fetched)
    x = np.random.default_rng(0).normal(size=(640, 6))
    original, calls = LikelihoodGradient.__call__, []

    def spoiled(self, batch):
        calls.append(1)
        return original(self, batch) * (torch.nan if len(calls) == 4 else 1)

    monkeypatch.setattr(LikelihoodGradient, "__call__", spoiled)
    with pytest.raises(TrainingError, match="step 4 of 20 is not finite"):
        Flow().fit(x)


def test_flat_parameters_are_the_parameters():
    layer = torch.nn.Linear(3, 2)
    before = copy.deepcopy(layer.state_dict())
    flat = FlatParameters([layer.bias, layer.weight])
    assert flat.values.tolist() == [*before["bias"].tolist(), *before["weight"].flatten().tolist()]
    flat.values[2] = 7.0
    assert layer.weight[0, 0] == 7
    layer(torch.ones(1, 3)).sum().backward()
    assert flat.gradient.tolist() == [1.0] * 8
    assert layer.weight.grad.shape == (2, 3)
    flat.release()
    flat.values.zero_()
    assert layer.weight[0, 0] == 7 and layer.weight.grad is None
