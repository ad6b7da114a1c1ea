"""Layers of a flow: every bijection keeps the contract, and each does what its equation says."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bertflow.errors import InputError
from bertflow.flows import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Composition,
    CouplingNet,
    Glow,
    InvertibleLinear,
    Permutation,
    bounded_deviation,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomised(module: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """The module in float64, every parameter moved off its special start."""
    module.double()
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            # The wider a matrix, the smaller its entries, so that it stays well-conditioned.
            parameter.add_(0.3 / math.sqrt(parameter.shape[-1]) * noise)
    return module


def rows(count: int, features: int, seed: int = 2) -> Tensor:
    return torch.randn(count, features, dtype=torch.float64, generator=seeded(seed))


def composition(features: int, seed: int = 0) -> Composition:
    return Composition(
        [
            ActNorm(features),
            Permutation.random(features, seeded(seed)),
            AffineCoupling(features, width=6, generator=seeded(seed)),
            InvertibleLinear(features, seeded(seed)),
        ]
    )


BIJECTIONS = {
    "actnorm": lambda d, seed=0: ActNorm(d),
    "actnorm-rate1": lambda d, seed=0: ActNorm(d, scale_rate=1.0),
    "reverse": lambda d, seed=0: Permutation.reverse(d),
    "random": lambda d, seed=0: Permutation.random(d, seeded(seed)),
    "linear": lambda d, seed=0: InvertibleLinear(d, seeded(seed)),
    "additive": lambda d, seed=0: AdditiveCoupling(d, width=6, generator=seeded(seed)),
    "additive-residual": lambda d, seed=0: AdditiveCoupling(
        d, width=6, residual=True, generator=seeded(seed)
    ),
    "affine": lambda d, seed=0: AffineCoupling(d, width=6, generator=seeded(seed)),
    "affine-residual": lambda d, seed=0: AffineCoupling(
        d, width=6, residual=True, generator=seeded(seed)
    ),
    "composition": composition,
    "glow": lambda d, seed=0: Glow(d, levels=2, depth=1, width=6, generator=seeded(seed)),
}
# Maps that only reorder or shift: their log-determinant is 0, not nearly 0.
VOLUME_PRESERVING = ["reverse", "random", "additive", "additive-residual"]

every_bijection = pytest.mark.parametrize("build", BIJECTIONS.values(), ids=BIJECTIONS)
every_width = pytest.mark.parametrize("features", [2, 5])


def log_det_is_the_autograd_jacobians(bijection, x):
    _, log_det = bijection(x)
    assert log_det.shape == (len(x),)
    for row, value in zip(x, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda r: bijection(r[None])[0][0], row)
        torch.testing.assert_close(value, torch.linalg.slogdet(jacobian)[1], rtol=0, atol=1e-9)


@every_bijection
def test_log_det_is_that_of_the_autograd_jacobian(build):
    for features in (2, 5):
        log_det_is_the_autograd_jacobians(randomised(build(features)), rows(4, features))


@every_bijection
def test_inverse_undoes_forward_and_forward_undoes_inverse(build):
    for features in [2, 5, 300]:
        bijection = randomised(build(features))
        x = rows(8, features)
        with torch.no_grad():
            torch.testing.assert_close(bijection.inverse(bijection(x)[0]), x, rtol=0, atol=1e-9)
            torch.testing.assert_close(bijection(bijection.inverse(x))[0], x, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", VOLUME_PRESERVING)
def test_log_det_of_reordering_and_shifting_is_exactly_zero(name):
    _, log_det = randomised(BIJECTIONS[name](7))(rows(5, 7))
    assert torch.equal(log_det, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in BIJECTIONS if name not in ("reverse", "random")])
def test_gradients_reach_every_parameter(name):
    for features in [2, 5]:
        bijection = randomised(BIJECTIONS[name](features))
        z, log_det = bijection(rows(16, features))
        (z.square().sum() + log_det.sum()).backward()
        assert list(bijection.parameters())
        for place, parameter in bijection.named_parameters():
            assert parameter.grad is not None, place
            assert parameter.grad.isfinite().all(), place
            assert parameter.grad.abs().max() > 0, place


@every_bijection
def test_gradients_reach_the_input(build):
    x = rows(3, 5).requires_grad_()
    randomised(build(5))(x)[0].square().sum().backward()
    assert (x.grad.abs() > 0).all()


@every_bijection
def test_saved_state_gives_the_same_outputs_to_a_fresh_one(build):
    bijection = randomised(build(6))
    file = io.BytesIO()
    torch.save(bijection.state_dict(), file)
    file.seek(0)
    fresh = build(6, seed=5).double()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    x = rows(9, 6)
    for found, expected in zip(fresh(x), bijection(x), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(fresh.inverse(x), bijection.inverse(x))


@every_bijection
def test_initialize_returns_what_forward_then_gives(build):
    bijection = build(6).double()
    x = 5 + 3 * rows(50, 6)
    z = bijection.initialize(x)
    torch.testing.assert_close(z, bijection(x)[0], rtol=0, atol=1e-12)


@every_bijection
def test_initialize_twice_on_the_same_rows_changes_nothing(build):
    bijection = build(6).double()
    x = 5 + 3 * rows(50, 6)
    bijection.initialize(x)
    before = copy.deepcopy(bijection.state_dict())
    bijection.initialize(x)
    for name, value in bijection.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-12)


@every_bijection
def test_forward_leaves_its_input_alone(build):
    x = rows(4, 5)
    before = x.clone()
    bijection = randomised(build(5))
    bijection(x)
    bijection.inverse(x)
    bijection.initialize(x)
    assert torch.equal(x, before)


@every_bijection
def test_each_row_is_mapped_alone(build):
    bijection = randomised(build(5))
    x = rows(6, 5)
    z, log_det = bijection(x)
    for index in range(6):
        alone_z, alone_log_det = bijection(x[index : index + 1])
        torch.testing.assert_close(alone_z[0], z[index], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone_log_det[0], log_det[index], rtol=0, atol=1e-12)


@every_bijection
def test_same_generator_seed_gives_the_same_bits_whatever_the_global_seed(build):
    torch.manual_seed(1)
    first = build(6).state_dict()
    torch.manual_seed(2)
    second = build(6).state_dict()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


# bounded_deviation


def test_bounded_deviation_by_hand():
    found = bounded_deviation(torch.tensor([2.0, 0.0, 4.0, 3.0]))
    assert found.tolist() == [2.0, 3.0, 4.0, 3.0]


def test_bounded_deviation_replaces_what_is_below_a_ten_thousandth_of_the_typical():
    found = bounded_deviation(torch.tensor([1.0, 1.0, 1.0, 0.9e-4, 1.1e-4], dtype=torch.float64))
    assert found.tolist() == [1.0, 1.0, 1.0, 1.0, 1.1e-4]


def test_bounded_deviation_is_not_fooled_by_one_outlier():
    deviation = torch.tensor([1e30, 1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    assert torch.equal(bounded_deviation(deviation), deviation)


def test_bounded_deviation_counts_as_dead_what_is_at_the_floor():
    deviation = torch.tensor([0.5, 1.0, 2.0, 3.0])
    assert bounded_deviation(deviation, 0.5).tolist() == [2.0, 1.0, 2.0, 3.0]
    floor = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert bounded_deviation(deviation, floor).tolist() == [0.5, 2.0, 2.0, 3.0]


def test_bounded_deviation_is_one_where_nothing_varies():
    assert bounded_deviation(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


# ActNorm


def test_actnorm_starts_at_mean_zero_and_variance_one():
    for scale_rate in [1.0, 3.0]:
        x = rows(500, 4) * torch.tensor([1.0, 10.0, 0.1, 3.0]) + torch.tensor(
            [0.0, 5.0, -2.0, 100.0]
        )
        layer = ActNorm(4, scale_rate=scale_rate).double()
        z = layer.initialize(x).detach().numpy()
        np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
        # The deviation 0.1 feels the 1e-6 that is added to it most.
        np.testing.assert_allclose(z.var(axis=0), 1, atol=3e-5)
        deviation = x.numpy().std(axis=0)
        np.testing.assert_allclose(z, (x - x.mean(dim=0)).numpy() / (deviation + 1e-6), atol=1e-10)


def test_actnorm_starts_at_variance_one_for_float32_far_from_zero():
    x = (10_000 + rows(5000, 3)).float()
    z = ActNorm(3).initialize(x)
    assert z.dtype == torch.float32
    np.testing.assert_allclose(z.double().numpy().mean(axis=0), 0, atol=2e-3)
    np.testing.assert_allclose(z.double().numpy().var(axis=0), 1, atol=1e-3)


def test_actnorm_passes_a_dead_dimension_at_the_typical_scale():
    x = rows(200, 5) * torch.tensor([1.0, 2.0, 4.0, 0.0, 0.0]) + torch.tensor([0, 0, 0, 7.0, 0])
    layer = ActNorm(5).double()
    z = layer.initialize(x)
    assert torch.equal(z[:, 3:], torch.zeros(200, 2, dtype=torch.float64))
    typical = np.median(x[:, :3].numpy().std(axis=0))
    np.testing.assert_allclose(layer.scale()[3:].detach().numpy(), 1 / (typical + 1e-6), rtol=1e-12)
    later = x[:1].clone()
    later[0, 3] += typical
    np.testing.assert_allclose(layer(later)[0][0, 3].detach(), 1, atol=1e-5)


def test_actnorm_by_hand():
    layer = ActNorm(2, scale_rate=2.0).double()
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
        layer.log_scale.copy_(torch.tensor([0.5, 0.0]))
    z, log_det = layer(torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64))
    np.testing.assert_allclose(z.detach(), [[2 * np.e, 2.0], [np.e, 0.0]], rtol=1e-15)
    assert log_det.tolist() == [1.0, 1.0]


def test_repr_of_actnorm_shows_width_and_rate():
    assert repr(ActNorm(4, scale_rate=1.5)) == "ActNorm(4, scale_rate=1.5)"


# Permutation


def test_reverse_by_hand():
    z, _ = Permutation.reverse(4)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert z.tolist() == [[4.0, 3.0, 2.0, 1.0]]


def test_permutation_by_hand():
    layer = Permutation(torch.tensor([2, 0, 1]))
    x = torch.tensor([[10.0, 20.0, 30.0]])
    assert layer(x)[0].tolist() == [[30.0, 10.0, 20.0]]
    assert layer.inverse(torch.tensor([[30.0, 10.0, 20.0]])).tolist() == x.tolist()


def test_random_permutation_is_drawn_from_its_generator():
    draws = [Permutation.random(50, seeded(seed)).order for seed in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert sorted(draws[0].tolist()) == list(range(50))


def test_order_of_a_permutation_is_in_its_state():
    layer = Permutation.random(20, seeded(3))
    assert torch.equal(layer.state_dict()["order"], layer.order)
    other = Permutation.random(20, seeded(4))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.order, layer.order)
    with pytest.raises(RuntimeError, match="order"):
        other.load_state_dict({})


def test_changing_the_type_of_a_permutation_keeps_its_order():
    layer = Permutation.reverse(3000)
    order = layer.order.clone()
    assert torch.equal(layer.half().double().order, order)


def test_permutation_refuses_what_is_not_one():
    for order in [[0, 0], [1, 2], [0, 2, 3], [-1, 0]]:
        with pytest.raises(InputError, match=f"order must hold each of 0 … {len(order) - 1} once"):
            Permutation(torch.tensor(order))


# InvertibleLinear


def test_invertible_linear_starts_as_a_rotation():
    layer = InvertibleLinear(12, seeded()).double()
    weight = layer.weight().detach().numpy()
    np.testing.assert_allclose(weight @ weight.T, np.eye(12), atol=1e-6)
    _, log_det = layer(rows(3, 12))
    np.testing.assert_allclose(log_det.detach(), 0, atol=1e-6)


def test_invertible_linear_multiplies_each_row_by_its_weight():
    layer = randomised(InvertibleLinear(5, seeded()))
    x = rows(3, 5)
    weight = layer.weight().detach().numpy()
    expected = np.stack([weight @ row for row in x.numpy()])
    np.testing.assert_allclose(layer(x)[0].detach(), expected, atol=1e-13)


def test_invertible_linear_stays_invertible_whatever_is_learned():
    layer = InvertibleLinear(4, seeded()).double()
    signs, p = layer.sign.clone(), layer.p.clone()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-5).add_(1)
    _, log_det = layer(rows(1, 4))
    value = np.linalg.slogdet(layer.weight().detach().numpy())[1]
    np.testing.assert_allclose(log_det.detach(), [value], rtol=1e-9)
    assert torch.equal(layer.sign, signs)
    assert torch.equal(layer.p, p)


# CouplingNet and couplings


def net_of(inputs: int, outputs: int, width: int, **choices) -> CouplingNet:
    choices = {"residual": False, "scale_rate": 3.0, "weight_init": "orthogonal", **choices}
    return CouplingNet(inputs, outputs, width=width, generator=seeded(), **choices)


@pytest.mark.parametrize("residual", [False, True])
def test_coupling_net_is_its_equation(residual):
    net = randomised(net_of(3, 2, 4, residual=residual, scale_rate=2.0))
    state = {name: value.numpy() for name, value in net.state_dict().items()}

    def norm(name, value):
        return (value + state[f"{name}.bias"]) * np.exp(2.0 * state[f"{name}.log_scale"])

    x = rows(7, 3).numpy()
    h1 = np.maximum(norm("actnorm1", x @ state["linear1.weight"].T), 0)
    h2 = np.maximum(norm("actnorm2", h1 @ state["linear2.weight"].T), 0)
    hidden = h2 + h1 if residual else h2
    out = hidden @ state["linear3.weight"].T + state["linear3.bias"]
    expected = out * np.exp(2.0 * state["log_scale"])
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach(), expected, atol=1e-13)


def test_normal_weights_start_with_deviation_a_twentieth():
    net = net_of(300, 2, 200, weight_init="normal")
    for weight in (net.linear1.weight, net.linear2.weight):
        assert abs(float(weight.detach().std()) - 0.05) < 0.001
        assert abs(float(weight.detach().mean())) < 0.001


def test_orthogonal_weights_start_orthogonal():
    net = net_of(30, 2, 20, weight_init="orthogonal")
    for weight in (net.linear1.weight, net.linear2.weight):
        np.testing.assert_allclose((weight @ weight.T).detach(), np.eye(20), atol=1e-5)


def test_coupling_net_initialises_its_norms_on_what_reaches_them():
    net = net_of(3, 2, 8).double()
    x = 4 + rows(400, 3)
    net.initialize(x)
    first = net.actnorm1(net.linear1(x))[0]
    second = net.actnorm2(net.linear2(first.relu()))[0]
    for hidden in (first, second):
        np.testing.assert_allclose(hidden.detach().mean(dim=0), 0, atol=1e-12)
        np.testing.assert_allclose(hidden.detach().var(dim=0, correction=0), 1, atol=1e-3)


def test_fresh_coupling_is_the_identity():
    for features in [2, 7]:
        for kind in [AdditiveCoupling, AffineCoupling]:
            coupling = kind(features, width=4).double()
            x = rows(5, features)
            coupling.initialize(x)
            z, log_det = coupling(x)
            assert torch.equal(z, x)
            assert torch.equal(log_det, torch.zeros(5, dtype=torch.float64))


def test_coupling_keeps_the_first_half_the_larger_one_if_odd():
    for features, kept in [(2, 1), (6, 3), (7, 4)]:
        for kind in [AdditiveCoupling, AffineCoupling]:
            coupling = randomised(kind(features, width=4, generator=seeded()))
            x = rows(5, features)
            z, _ = coupling(x)
            assert torch.equal(z[:, :kept], x[:, :kept])
            assert ((z[:, kept:] - x[:, kept:]).abs() > 0).all()


def test_additive_coupling_adds_the_net_of_the_first_half():
    coupling = randomised(AdditiveCoupling(5, width=4, generator=seeded()))
    x = rows(6, 5)
    torch.testing.assert_close(coupling(x)[0][:, 3:] - x[:, 3:], coupling.net(x[:, :3]))


def test_affine_coupling_is_its_equation():
    coupling = randomised(AffineCoupling(5, width=4, generator=seeded()))
    x = rows(6, 5).numpy()
    out = coupling.net(torch.from_numpy(x[:, :3])).detach().numpy()
    shift, raw = out[:, :2], out[:, 2:]
    log_scale = 2 * np.tanh(raw / 2)
    z, log_det = coupling(torch.from_numpy(x))
    np.testing.assert_allclose(z.detach()[:, 3:], x[:, 3:] * np.exp(log_scale) + shift, atol=1e-13)
    np.testing.assert_allclose(log_det.detach(), log_scale.sum(axis=1), atol=1e-13)


def test_affine_coupling_bounds_its_log_scale_by_two():
    coupling = randomised(AffineCoupling(6, width=4, generator=seeded()))
    with torch.no_grad():
        coupling.net.linear3.bias.copy_(torch.tensor([0, 0, 0, 1e6, 1e6, -1e6]))
    _, log_det = coupling(rows(5, 6))
    np.testing.assert_allclose(log_det.detach(), 2 + 2 - 2, atol=1e-9)


def test_coupling_refuses_fewer_than_two_dimensions():
    for features in [1, 0]:
        for kind in [AdditiveCoupling, AffineCoupling]:
            with pytest.raises(InputError, match=f"at least 2 dimensions, got {features}"):
                kind(features)


# Composition


def test_composition_applies_the_first_step_first_and_adds_log_determinants():
    norm = ActNorm(3, scale_rate=1.0).double()
    with torch.no_grad():
        norm.log_scale.copy_(torch.tensor([0.0, 1.0, 2.0]))
    x = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    z, log_det = Composition([norm, Permutation.reverse(3), norm])(x)
    # Scaled by (1, e, e²), reversed, scaled again.
    np.testing.assert_allclose(z.detach(), [[np.e**2, np.e**2, np.e**2]], rtol=1e-14)
    assert log_det.tolist() == [6.0]
    z, _ = Composition([Permutation.reverse(3), norm])(x)
    np.testing.assert_allclose(z.detach(), [[1, np.e, np.e**2]], rtol=1e-14)


def test_composition_of_nothing_is_the_identity():
    x = rows(3, 4)
    z, log_det = Composition([])(x)
    assert torch.equal(z, x)
    assert torch.equal(log_det, torch.zeros(3, dtype=torch.float64))


def test_composition_iterates_over_its_steps():
    steps = [ActNorm(2), Permutation.reverse(2)]
    assert list(Composition(steps)) == steps


def test_composition_initialises_each_step_on_what_the_steps_before_make():
    first, second = ActNorm(3).double(), ActNorm(3).double()
    x = 9 + 4 * rows(100, 3)
    Composition([first, second]).initialize(x)
    np.testing.assert_allclose(first.bias.detach(), -x.mean(dim=0), rtol=1e-12)
    np.testing.assert_allclose(second.bias.detach(), 0, atol=1e-12)
    np.testing.assert_allclose(second.scale().detach(), 1, atol=1e-5)
