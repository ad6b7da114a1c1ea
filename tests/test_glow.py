"""Glow: multi-scale composition, density and sampling, and the golden files."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from bertflow.errors import InputError
from bertflow.flows import Glow

WIDTHS = [2, 5, 300]
KINDS = [
    pytest.param(coupling, permutation, residual, id=f"{coupling}-{permutation}-{residual}")
    for coupling in ("additive", "affine")
    for permutation in ("reverse", "random", "linear")
    for residual in (False, True)
]
every_kind = pytest.mark.parametrize(("coupling", "permutation", "residual"), KINDS)


def rows(count: int, features: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, dtype=torch.float64, generator=generator)


def randomised(features: int, *, seed: int = 0, noise: float = 0.15, **choices) -> Glow:
    """A Glow in float64, initialised, every parameter moved off its start."""
    generator = torch.Generator().manual_seed(seed)
    choices = {"levels": 3, "depth": 1, "width": 8, **choices}
    flow = Glow(features, generator=generator, **choices).double()
    flow.initialize(1 + rows(200, features, seed=9))
    with torch.no_grad():
        for parameter in flow.parameters():
            step = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.add_(noise / math.sqrt(max(1, parameter.shape[-1])) * step)
    return flow


def log_det_is_the_autograd_jacobians(flow, x):
    z, log_det = flow(x)
    assert z.shape == x.shape
    assert log_det.shape == (len(x),)
    for row, value in zip(x, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda r: flow(r[None])[0][0], row)
        torch.testing.assert_close(value, torch.linalg.slogdet(jacobian)[1], rtol=0, atol=1e-9)


@every_kind
def test_log_det_is_that_of_the_autograd_jacobian(coupling, permutation, residual):
    kind = {"coupling": coupling, "permutation": permutation, "residual": residual}
    for features in (2, 5):
        log_det_is_the_autograd_jacobians(randomised(features, **kind), rows(3, features))


@pytest.mark.parametrize("features", [6, 300])
def test_log_det_of_wide_flows_is_that_of_the_autograd_jacobian(features):
    flow = randomised(features, coupling="affine")
    x = rows(1, features)
    jacobian = torch.autograd.functional.jacobian(
        lambda r: flow(r[None])[0][0], x[0], vectorize=True
    )
    torch.testing.assert_close(
        flow(x)[1][0], torch.linalg.slogdet(jacobian)[1], rtol=1e-10, atol=1e-9
    )


@every_kind
def test_inverse_undoes_forward(coupling, permutation, residual):
    for features in WIDTHS:
        kind = {"coupling": coupling, "permutation": permutation, "residual": residual}
        flow = randomised(features, **kind)
        x = rows(5, features)
        with torch.no_grad():
            z, _ = flow(x)
            torch.testing.assert_close(flow.inverse(z), x, rtol=0, atol=1e-9)
            torch.testing.assert_close(flow(flow.inverse(x))[0], x, rtol=0, atol=1e-9)


@every_kind
def test_gradients_reach_every_parameter(coupling, permutation, residual):
    kind = {"coupling": coupling, "permutation": permutation, "residual": residual}
    flow = randomised(7, **kind)
    flow.bits_per_dimension(rows(64, 7)).backward()
    for name, parameter in flow.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@every_kind
def test_saved_state_gives_the_same_outputs_to_a_fresh_one(coupling, permutation, residual):
    kind = {"coupling": coupling, "permutation": permutation, "residual": residual}
    flow, fresh = randomised(7, **kind), randomised(7, seed=1, **kind)
    x = rows(5, 7)
    assert not torch.equal(flow(x)[0], fresh(x)[0])
    fresh.load_state_dict(flow.state_dict())
    for found, expected in zip(fresh(x), flow(x), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(fresh.inverse(x), flow.inverse(x))


@every_kind
def test_initialize_gives_latent_of_mean_zero_and_variance_one(coupling, permutation, residual):
    flow = Glow(
        7,
        levels=3,
        coupling=coupling,
        permutation=permutation,
        residual=residual,
        generator=torch.Generator().manual_seed(0),
    ).double()
    x = 50 + 3 * rows(300, 7)
    flow.initialize(x)
    z = flow(x)[0].detach().numpy()
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    if permutation != "linear":  # a rotation after the last ActNorm mixes correlated dimensions
        np.testing.assert_allclose(z.var(axis=0), 1, atol=1e-5)


def test_initialize_keeps_the_type_of_the_parameters():
    flow = Glow(6, width=4)
    flow.initialize(rows(20, 6).float())
    assert {p.dtype for p in flow.parameters()} == {torch.float32}
    assert {b.dtype for b in flow.buffers()} == {torch.int64}


def test_initialize_returns_latent_of_the_full_width():
    flow = Glow(6, levels=2, width=4).double()
    x = rows(20, 6)
    torch.testing.assert_close(flow.initialize(x), flow(x)[0], rtol=0, atol=1e-12)


def test_levels_work_on_the_larger_half_and_stop_before_one_dimension():
    for features, levels, widths in [
        (2, 1, [2]),
        (2, 3, [2]),
        (3, 3, [3, 2]),
        (5, 3, [5, 3, 2]),
        (6, 3, [6, 3, 2]),
        (7, 3, [7, 4, 2]),
        (300, 3, [300, 150, 75]),
        (770, 3, [770, 385, 193]),
        (8, 9, [8, 4, 2]),
    ]:
        flow = Glow(features, levels=levels, depth=2, width=4)
        assert flow.widths == widths
        assert len(flow.levels) == len(widths)
        assert [len(level.steps[0].bias) for level in flow.levels] == widths
        assert {len(level.steps) for level in flow.levels} == {6}


def test_latent_holds_the_split_off_halves_in_order_then_the_rest():
    flow = Glow(8, levels=3, depth=1, width=4, permutation="reverse")
    x = torch.arange(8.0)[None]
    # 01234567 is reversed, 3210 split off; 7654 is reversed, 67 split off; 45 is reversed.
    assert flow(x)[0].tolist() == [[3, 2, 1, 0, 6, 7, 5, 4]]
    assert flow.inverse(torch.tensor([[3.0, 2, 1, 0, 6, 7, 5, 4]])).tolist() == x.tolist()


def test_later_levels_do_not_touch_what_was_split_off():
    flow = randomised(8, levels=2, permutation="reverse")
    x = rows(4, 8)
    before = flow(x)[0]
    with torch.no_grad():
        for parameter in flow.levels[1].parameters():
            parameter.add_(0.3)
    after = flow(x)[0]
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before[:, 4:] - after[:, 4:]).abs() > 0).all()


def test_log_prob_of_an_untrained_flow_is_the_standard_normals():
    for features in [2, 5, 8]:
        for permutation in ["reverse", "random"]:
            flow = Glow(features, levels=3, width=4, permutation=permutation).double()
            x = rows(20, features)
            expected = multivariate_normal(np.zeros(features), np.eye(features)).logpdf(x.numpy())
            np.testing.assert_allclose(flow.log_prob(x).detach(), expected, rtol=0, atol=1e-12)


def test_log_prob_of_an_initialised_flow_is_that_of_a_normal_with_its_moments():
    x = rows(500, 5) * torch.tensor([1.0, 2, 3, 4, 5]) + torch.tensor([5.0, 4, 3, 2, 1])
    flow = Glow(5, levels=3, width=4, permutation="random").double()
    flow.initialize(x)
    normal = multivariate_normal(x.numpy().mean(axis=0), np.diag(x.numpy().var(axis=0)))
    query = 3 * rows(50, 5, seed=3)
    np.testing.assert_allclose(flow.log_prob(query).detach(), normal.logpdf(query), atol=1e-3)


def test_log_prob_is_the_change_of_variables():
    flow = randomised(5, coupling="affine")
    x = rows(6, 5)
    z, log_det = flow(x)
    normal = multivariate_normal(np.zeros(5), np.eye(5)).logpdf(z.detach().numpy())
    np.testing.assert_allclose(
        flow.log_prob(x).detach(), normal + log_det.detach().numpy(), atol=1e-12
    )


def test_bits_per_dimension_is_the_mean_of_minus_log_prob_in_bits():
    flow = randomised(5)
    x = rows(6, 5)
    expected = np.mean(-flow.log_prob(x).detach().numpy()) / (5 * np.log(2))
    loss = flow.bits_per_dimension(x)
    assert loss.shape == ()
    np.testing.assert_allclose(float(loss.detach()), expected, rtol=1e-14)


def test_density_integrates_to_one():
    for coupling in ["additive", "affine"]:
        flow = randomised(2, coupling=coupling, noise=0.06)
        side = torch.linspace(-15, 15, 601, dtype=torch.float64)
        grid = torch.cartesian_prod(side, side)
        with torch.no_grad():
            total = flow.log_prob(grid).exp().sum() * (side[1] - side[0]) ** 2
        assert abs(float(total) - 1) < 1e-3


def test_sample_is_the_inverse_of_normal_draws():
    flow = randomised(5)
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    x = flow.inverse(z).detach()
    assert x.shape == (40, 5)
    torch.testing.assert_close(flow(x)[0].detach(), z, rtol=0, atol=1e-9)


def test_samples_have_the_moments_of_the_density():
    flow = Glow(3, levels=2, width=4).double()
    data = rows(2000, 3) * torch.tensor([1.0, 5.0, 0.2]) + torch.tensor([0.0, 10.0, -3.0])
    flow.initialize(data)
    z = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = flow.inverse(z).detach().numpy()
    np.testing.assert_allclose(x.mean(axis=0), data.mean(dim=0), atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), data.std(dim=0, correction=0), rtol=0.03)


def test_bad_argument_is_refused_by_name():
    for arguments, message in [
        ({"features": 1}, "features must be .*at least 2, got 1"),
        ({"features": 0}, "features must be .*at least 2, got 0"),
        ({"levels": 0}, "levels must be .*at least 1, got 0"),
        ({"depth": 0}, "depth must be .*at least 1, got 0"),
        ({"width": 0}, "width must be .*at least 1, got 0"),
        ({"width": -3}, "width must be .*at least 1, got -3"),
        ({"coupling": "x"}, "coupling must be one of .*'additive'.*got 'x'"),
        ({"coupling": None}, "coupling must be one of .*got None"),
        ({"weight_init": "zeros"}, "weight_init must be one of .*got 'zeros'"),
        ({"permutation": "shuffle"}, "permutation must be one of .*'reverse'.*got 'shuffle'"),
        ({"scale_rate": 0.0}, "scale_rate must be .*got 0"),
        ({"scale_rate": -1.0}, "scale_rate must be .*got -1"),
    ]:
        with pytest.raises(InputError, match=message):
            Glow(**{"features": 4, **arguments})


def test_dead_dimensions_stay_finite_and_later_rows_are_not_blown_up():
    x = 3 + rows(300, 8)
    x[:, 2] = 5.0
    x[:, 6] = 0.0
    flow = Glow(8, levels=3, generator=torch.Generator().manual_seed(0)).double()
    flow.initialize(x)
    later = x[:10].clone()
    later[:, [2, 6]] += 1.0
    z, log_det = flow(later)
    assert log_det.isfinite().all()
    assert z.abs().max() < 20


def test_one_flow_does_not_share_anything_with_its_copy():
    flow = randomised(5)
    twin = copy.deepcopy(flow)
    x = rows(4, 5)
    before = flow(x)[0]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(flow(x)[0], before)


# Golden files

GOLDEN = [
    pytest.param("glow_reference_d48_l3_k3.npz", 48, 3, id="d48"),
    pytest.param("glow_reference_d32_l2_k3.npz", 32, 2, id="d32"),
]
every_golden = pytest.mark.parametrize(("name", "features", "levels"), GOLDEN)


def released(features: int, levels: int) -> Glow:
    return Glow(
        features, levels=levels, depth=3, width=32, permutation="reverse", residual=False
    ).double()


def our_name(name: str) -> str:
    """level{l}.step{s}.… of the golden files, spelled as the state of a Glow spells it."""
    level, step, kind, *rest = name.split(".")
    position = 3 * int(step.removeprefix("step")) + (2 if kind == "coupling" else 0)
    rest = ["log_scale" if part == "log_scale_div3" else part for part in rest]
    if rest[0] == "linear3" and rest[1] == "log_scale":
        rest = ["log_scale"]
    net = ["net"] if kind == "coupling" else []
    parts = ["levels", level.removeprefix("level"), "steps", str(position), *net, *rest]
    return ".".join(parts)


@every_golden
def test_initialisation_reproduces_the_golden_file(shared_data, name, features, levels):
    golden = np.load(shared_data / "golden" / name)
    x = torch.from_numpy(golden["x"])
    flow = released(features, levels)
    flow.initialize(x)
    with torch.no_grad():
        np.testing.assert_allclose(flow(x)[0], golden["z_after_init"], rtol=0, atol=1e-9)
        loss = float(flow.bits_per_dimension(x))
    assert abs(loss - float(golden["loss_after_init"])) < 1e-9


@every_golden
def test_stored_parameters_reproduce_the_golden_file(shared_data, name, features, levels):
    golden = np.load(shared_data / "golden" / name)
    flow = released(features, levels)
    state = {our_name(key): torch.from_numpy(golden[key]) for key in golden if "level" in key}
    missing, foreign = flow.load_state_dict(state, strict=False)
    assert foreign == []
    assert all(key.endswith(".order") for key in missing)
    x = torch.from_numpy(golden["x"])
    with torch.no_grad():
        z, _ = flow(x)
        np.testing.assert_allclose(z, golden["z"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(flow.inverse(z), x, rtol=0, atol=1e-9)
        loss = float(flow.bits_per_dimension(x))
    assert abs(loss - float(golden["loss"])) < 1e-9
