"""Flow: its density, its loss, its training against torch's own Adam, its seeds and refusals."""

from __future__ import annotations

import copy
import inspect
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.exceptions import NotFittedError

from bertflow.calibrators import Flow
from bertflow.calibrators.training import Schedule, train
from bertflow.errors import FewRowsWarning, InputError, TrainingError
from bertflow.flows import ActNorm, Glow, InvertibleLinear

VARIANTS = {
    "paper": Flow,
    "released": Flow.released,
    "affine": lambda **changes: Flow(coupling="affine", **changes),
    "linear": lambda **changes: Flow(permutation="linear", **changes),
    # At unit length there is no density over the plane to integrate.
    "tempered": lambda **changes: Flow.tempered(
        **{"normalize": False, "learning_rate": 1e-3, **changes}
    ),
}
every_variant = pytest.mark.parametrize("build", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def x(rng):
    """320 x 6 rows that are not normal, of different deviations, away from zero."""
    return rng.normal(size=(320, 6)) ** 3 * np.array([1.0, 2, 3, 1, 2, 3]) + np.arange(6.0)


def waves(count: int, pairs: int = 1) -> np.ndarray:
    """Pairs of columns, the second bent along the first: what a coupling can straighten."""
    a, b = np.random.default_rng(0).normal(size=(2, count, pairs))
    return np.concatenate([3 * a, b + 4 * np.cos(a) - 2], axis=1)


# Density


@every_variant
def test_density_integrates_to_one(build):
    flow = build(epochs=2).fit(waves(1000))
    side = [np.linspace(-25, 25, 251), np.linspace(-20, 20, 251)]
    grid = np.stack(np.meshgrid(*side), axis=-1).reshape(-1, 2)
    cell = (side[0][1] - side[0][0]) * (side[1][1] - side[1][0])
    assert abs(np.exp(flow.log_prob(grid)).sum() * cell - 1) < 1e-2


def test_log_prob_of_a_barely_trained_flow_is_that_of_a_normal_with_its_moments(x):
    for permutation in ["reverse", "random"]:
        flow = Flow(levels=3, permutation=permutation, learning_rate=1e-12, epochs=0.01).fit(x)
        normal = multivariate_normal(x.mean(axis=0), np.diag(x.var(axis=0)))
        np.testing.assert_allclose(flow.log_prob(x), normal.logpdf(x), rtol=1e-4, atol=1e-3)
        z = flow.transform(x)
        np.testing.assert_allclose(
            (z**2).sum(axis=1), ((x - x.mean(0)) ** 2 / x.var(0)).sum(axis=1), rtol=1e-4
        )


@every_variant
def test_log_prob_is_the_change_of_variables(build, x):
    flow = build().fit(x)
    row = torch.from_numpy(x[3])
    glow, frame = flow.flow_.double(), flow.frame_
    axes = torch.eye(6).double() if frame.components is None else torch.tensor(frame.components)
    gain = np.ones(6) if frame.gain is None else frame.gain
    offset = np.zeros(6) if frame.offset is None else frame.offset

    def forward(r):
        scaled = axes @ (r - torch.from_numpy(flow.mean_)) / torch.from_numpy(flow.scale_)
        return glow(scaled[None])[0][0] * torch.from_numpy(gain) + torch.from_numpy(offset)

    jacobian = torch.autograd.functional.jacobian(forward, row)
    z = flow.transform(x[3:4])[0]
    np.testing.assert_allclose(forward(row), z, atol=1e-9)
    expected = multivariate_normal(offset, np.diag(gain**2)).logpdf(z)
    expected += np.linalg.slogdet(jacobian.numpy())[1]
    np.testing.assert_allclose(flow.log_prob(x[3:4]), [expected], rtol=0, atol=1e-9)


@every_variant
def test_training_raises_the_likelihood_above_the_normals(build):
    x = waves(1000)
    normal = multivariate_normal(x.mean(axis=0), np.cov(x.T)).logpdf(x).mean()
    assert build(epochs=4, random_state=1).fit(x).score(x) > normal + 0.05


def test_score_is_the_mean_log_prob(x):
    flow = Flow().fit(x)
    assert abs(flow.score(x) - flow.log_prob(x).mean()) < 1e-12
    assert flow.score(x) == flow.score(x, y=np.zeros(320))


def test_score_takes_every_tensor_that_transform_takes(x):
    for dtype in [torch.float16, torch.bfloat16, torch.float32, torch.float64]:
        flow = Flow().fit(x)
        score = flow.score(torch.from_numpy(x).to(dtype))
        assert abs(score - flow.score(x)) < 0.3


def test_log_prob_is_of_the_kind_and_type_of_the_rows(x):
    for dtype in [np.float16, np.float32, np.float64]:
        flow = Flow().fit(x)
        by_numpy = flow.log_prob(x.astype(dtype))
        by_torch = flow.log_prob(torch.from_numpy(x.astype(dtype)))
        assert by_numpy.shape == (320,)
        assert by_numpy.dtype == dtype
        np.testing.assert_array_equal(by_torch.numpy(), by_numpy)


def test_log_prob_refuses_what_transform_refuses(x):
    flow = Flow().fit(x)
    with pytest.raises(InputError, match="X has 5 features"):
        flow.log_prob(x[:, :5])
    x[7, 0] = np.nan
    with pytest.raises(InputError, match=r"row 7\b"):
        flow.log_prob(x)


def test_dead_dimensions_count_as_normal_with_the_typical_deviation(x):
    wide = np.column_stack([x, np.full(320, 5.0)])
    flow, without = Flow().fit(wide), Flow().fit(x)
    np.testing.assert_array_equal(flow.live_, [True] * 6 + [False])
    later = wide[:20].copy()
    later[:, 6] += np.linspace(-4, 4, 20)
    typical = np.sort(x.std(axis=0))[2]  # the lower median of six
    gaussian = multivariate_normal(5.0, typical**2).logpdf(later[:, 6])
    np.testing.assert_allclose(
        flow.log_prob(later), without.log_prob(x[:20]) + gaussian, rtol=0, atol=1e-6
    )


# Loss


@every_variant
def test_loss_is_minus_the_mean_log_prob_in_bits_per_dimension(build, x):
    for dtype in [np.float32, np.float64]:
        rows = x.astype(dtype)
        flow = build().fit(rows)
        expected = -flow.log_prob(rows).astype(np.float64).mean() / (6 * np.log(2))
        assert abs(flow.loss_ - expected) < 1e-6


def test_columns_that_do_not_vary_count_and_come_back(x):
    rows = np.column_stack([x, np.full(len(x), 3.0), np.zeros(len(x))])
    flow = Flow(epochs=1).fit(rows)
    expected = -flow.log_prob(rows).mean() / (rows.shape[1] * np.log(2))
    assert abs(flow.loss_ - expected) < 1e-5
    assert abs(flow.loss_curve_[-1] - expected) < 0.2
    np.testing.assert_allclose(flow.inverse_transform(flow.transform(rows)), rows, atol=1e-4)


def test_a_flow_that_takes_few_steps_warns_of_it(rng):
    x = rng.normal(size=(300, 4))
    with pytest.warns(FewRowsWarning, match=r"10 steps .*300 rows.* epochs=5 for 50 steps"):
        Flow().fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Flow(epochs=10).fit(x)


def test_loss_curve_has_one_entry_a_step(rng):
    for rows, epochs, batch_size, steps in [
        (256, 2, 32, 16),
        (257, 1, 32, 9),
        (100, 0.5, 32, 2),
        (100, 0.001, 32, 1),
        (10, 3, 64, 3),
        (90, 1.5, 30, 4),
    ]:
        x = rng.normal(size=(rows, 4))
        flow = Flow(epochs=epochs, batch_size=batch_size).fit(x)
        assert flow.loss_curve_.shape == (steps,)
        assert flow.loss_curve_.dtype == np.float64


@every_variant
def test_loss_curve_falls_and_ends_near_the_loss(build):
    flow = build(epochs=2, batch_size=32, random_state=1).fit(waves(1000, pairs=2))
    last = flow.loss_curve_[-20:].mean()
    assert flow.loss_curve_[:5].mean() > last + 0.05
    assert abs(last - flow.loss_) < 0.1


def test_loss_curve_is_in_the_unit_of_the_loss_where_dimensions_are_dead(rng):
    for scale in [1.0, 100.0]:
        x = scale * rng.normal(size=(640, 8))
        x[:, 4:] = 7.0
        flow = Flow(epochs=2).fit(x)
        assert abs(flow.loss_curve_[-20:].mean() - flow.loss_) < 0.1


def test_unit_of_the_rows_moves_the_loss_by_its_bits(x):
    for scale in [0.001, 100.0]:
        flow, scaled = Flow().fit(x), Flow().fit(scale * x)
        assert abs(scaled.loss_ - flow.loss_ - np.log2(scale)) < 1e-4
        np.testing.assert_allclose(
            scaled.loss_curve_, flow.loss_curve_ + np.log2(scale), rtol=0, atol=1e-4
        )


@every_variant
def test_one_dimension_of_another_scale_does_not_spoil_the_others(build, rng):
    for scale in [100.0, 1000000.0]:
        x = rng.normal(size=(320, 6))
        other = x * np.array([scale, 1, 1, 1, 1, 1])
        flow, scaled = build(batch_size=64).fit(x), build(batch_size=64).fit(other)
        assert abs(scaled.loss_ - np.log2(scale) / 6 - flow.loss_) < 0.05


# Training


def trained(glow: Glow, x: torch.Tensor, fetch=None, **settings) -> np.ndarray:
    """Train in place; the settings are Adam's own unless they say otherwise."""
    adam = {
        "epochs": 1,
        "batch_size": len(x),
        "learning_rate": 1e-3,
        "schedule": "constant",
        "weight_decay": 0.0,
        "bias_correction": True,
        "adam_epsilon": 1e-8,
        "max_grad_norm": None,
    }
    curve = train(
        glow,
        fetch or (lambda index: x[index]),
        len(x),
        Schedule(**{**adam, **settings}),
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(1),
    )
    return curve.numpy()


def glow_of(features: int, **choices) -> Glow:
    """In float64: right after initialisation many gradients are 0 up to rounding."""
    generator = torch.Generator().manual_seed(0)
    return Glow(features, width=8, generator=generator, **choices).double()


@pytest.mark.parametrize(
    ("schedule", "decay", "norm", "coupling"),
    [
        ("constant", 0.0, None, "additive"),
        ("constant", 0.1, 0.05, "affine"),
        ("linear", 0.0, 0.05, "additive"),
        ("linear", 0.1, None, "affine"),
    ],
)
def test_training_is_torchs_own_adam_with_decoupled_decay(rng, schedule, decay, norm, coupling):
    x = torch.from_numpy(rng.normal(size=(64, 5)) ** 3)
    glow = glow_of(5, coupling=coupling)
    expected = copy.deepcopy(glow)
    expected.initialize(x)
    adam = torch.optim.AdamW(expected.parameters(), lr=3e-3, eps=1e-6, weight_decay=decay)
    steps = 12
    falling = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: 1.0 if schedule == "constant" else 1 - step / steps
    )
    losses = []
    for _ in range(steps):
        adam.zero_grad()
        loss = expected.bits_per_dimension(x)
        loss.backward()
        losses.append(float(loss.detach()))
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(expected.parameters(), norm)
        adam.step()
        falling.step()
    curve = trained(
        glow,
        x,
        epochs=steps,
        learning_rate=3e-3,
        schedule=schedule,
        weight_decay=decay,
        adam_epsilon=1e-6,
        max_grad_norm=norm,
    )
    np.testing.assert_allclose(curve, losses, rtol=1e-6)
    assert losses[-1] < losses[0]
    for (name, found), wanted in zip(glow.named_parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(found, wanted.detach(), rtol=0, atol=1e-6, err_msg=name)


def test_first_step_without_bias_correction_is_by_hand():
    # m = 0.1 g, v = 0.001 g²: without correction a step is 0.1 / sqrt(0.001) rates long.
    x = torch.from_numpy(waves(64, pairs=2))
    start = glow_of(4)
    moved = {}
    for correction in (True, False):
        glow = copy.deepcopy(start)
        trained(glow, x, bias_correction=correction, adam_epsilon=1e-12)
        weights = [g.levels[0].steps[2].net.linear3.weight.detach() for g in (start, glow)]
        moved[correction] = (weights[1] - weights[0]).abs()
    np.testing.assert_allclose(moved[True], 1e-3, rtol=1e-3)
    np.testing.assert_allclose(moved[False], 1e-3 * 0.1 / np.sqrt(0.001), rtol=1e-3)


def test_long_training_keeps_scales_near_their_start_where_the_density_is_unbounded(rng):
    # Half of the directions carry no variance: scaling them up raises the density without limit.
    x = torch.from_numpy(np.tile(rng.normal(size=(100, 2)), (1, 2)))
    glow = glow_of(4, levels=1, depth=2, permutation="reverse")
    start = copy.deepcopy(glow)
    start.initialize(x)
    trained(glow, x, epochs=300, learning_rate=0.05)
    norms = [[m for m in g.modules() if isinstance(m, ActNorm)] for g in (start, glow)]
    drift = [(b.scale() / a.scale()).log().abs().max() for a, b in zip(*norms, strict=True)]
    assert sum(float(d.detach()) for d in drift) <= np.log(1000) + 1e-6


def test_training_keeps_the_diagonals_of_learned_matrices_near_their_start(rng, monkeypatch):
    monkeypatch.setattr("bertflow.calibrators.training.SCALE_DRIFT", 1.5)
    x = torch.from_numpy(rng.normal(size=(100, 4)) * np.array([1.0, 1, 1, 0]))
    glow = glow_of(4, levels=1, depth=2, permutation="linear")
    start = copy.deepcopy(glow)
    trained(glow, x, epochs=200, learning_rate=0.05)
    mixing = [[m for m in g.modules() if isinstance(m, InvertibleLinear)] for g in (start, glow)]
    drift = [
        float((b.log_diagonal - a.log_diagonal).detach().abs().max())
        for a, b in zip(*mixing, strict=True)
    ]
    assert sum(drift) <= np.log(1.5) + 1e-6
    assert max(drift) > 0.9 * np.log(1.5) / 2  # It would have gone on.


@pytest.mark.parametrize(("rows", "batch_size"), [(100, 10), (9000, 1000)])
def test_each_epoch_takes_every_row_once_in_an_order_of_its_own(rows, batch_size):
    x = torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    asked = []

    def fetch(index):
        asked.append(index.clone())
        return x[index]

    trained(glow_of(3), x, fetch, epochs=2, batch_size=batch_size)
    sample, taken = asked[0], torch.cat(asked[1:])
    assert len(taken) == 2 * rows
    epochs = taken.split(rows)
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, torch.arange(rows))
        assert not torch.equal(epoch, torch.arange(rows))
    assert not torch.equal(*epochs)
    # The initialisation sees a shuffled sample, not the first rows.
    assert len(sample.unique()) == min(rows, 8192)
    assert not torch.equal(sample, torch.arange(len(sample)))


def test_fitted_flow_is_frozen_and_its_parameters_are_its_own(x):
    flow = Flow().fit(x)
    assert not flow.flow_.training
    for parameter in flow.flow_.parameters():
        assert not parameter.requires_grad
        assert parameter.grad is None
        assert parameter.untyped_storage().nbytes() == parameter.nbytes


def test_progress_is_called_once_a_step_with_the_loss(x):
    calls = []
    flow = Flow(epochs=1.5).fit(x, progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == list(range(1, 16))
    assert {call[1] for call in calls} == {15}
    np.testing.assert_allclose([call[2] for call in calls], flow.loss_curve_, atol=1e-9)


def test_progress_changes_nothing_and_leaves_no_trace(x):
    plain, watched = Flow().fit(x), Flow().fit(x, progress=lambda *_: None)
    np.testing.assert_array_equal(plain.transform(x), watched.transform(x))
    assert vars(plain).keys() == vars(watched).keys()


def test_interrupt_from_progress_reaches_the_caller(x):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Flow().fit(x, progress=stop)


# Randomness


@every_variant
def test_same_seed_gives_the_same_bits_and_another_seed_others(build, x):
    first, same, other = build(random_state=3), build(random_state=3), build(random_state=4)
    z = first.fit_transform(x)
    torch.manual_seed(99)
    np.testing.assert_array_equal(same.fit_transform(x), z)
    np.testing.assert_array_equal(same.loss_curve_, first.loss_curve_)
    assert same.loss_ == first.loss_
    assert not np.array_equal(other.fit_transform(x), z)
    assert abs(other.loss_ - first.loss_) < 0.2


def test_a_random_state_that_is_none_is_refused(x):
    with pytest.raises(InputError, match="random_state: 'seed' cannot be used"):
        Flow(random_state="seed").fit(x)


def test_random_state_object_moves_on(x):
    state = np.random.RandomState(0)
    flow = Flow(random_state=state)
    first = flow.fit_transform(x)
    assert not np.array_equal(flow.fit_transform(x), first)
    again = Flow(random_state=np.random.RandomState(0)).fit_transform(x)
    np.testing.assert_array_equal(again, first)


@every_variant
def test_order_of_the_rows_does_not_matter_within_noise(build, rng):
    x = waves(1000, pairs=2)
    ranks = np.argsort(x.sum(axis=1))
    expected = build(batch_size=64).fit(x).loss_
    for permuted in (rng.permutation(x), x[ranks], x[ranks[::-1]]):
        flow = build(batch_size=64).fit(permuted)
        assert np.isfinite(flow.transform(x)).all()
        assert abs(flow.loss_ - expected) < 0.25  # seeds alone differ by 0.3


def test_initialisation_sees_all_of_sorted_rows(rng):
    # 20,000 sorted rows: their first 8,192 alone have another mean and a third of the variance.
    x = np.sort(rng.normal(size=(20_000, 3)), axis=0)
    flow = Flow(learning_rate=1e-12, epochs=0.001).fit(x)
    z = flow.transform(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(z.std(axis=0), 1, atol=0.05)


# Samples


def test_samples_are_drawn_by_their_seed(x):
    flow = Flow().fit(x)
    first = flow.sample(50, random_state=1)
    assert first.shape == (50, 6)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(flow.sample(50, random_state=1), first)
    assert not np.array_equal(flow.sample(50, random_state=2), first)
    assert flow.sample().shape == (1, 6)


def test_so_many_samples_cannot_be_drawn(x):
    for count in [0, -1, 1.5]:
        flow = Flow(epochs=1).fit(x)
        with pytest.raises(InputError, match=r"n_samples .*got"):
            flow.sample(count)


def test_samples_are_standard_normal_when_transformed(x):
    flow = Flow(epochs=3).fit(x)
    z = flow.transform(flow.sample(20_000, random_state=0))
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(np.cov(z.T), np.eye(6), atol=0.04)


def test_samples_have_the_moments_of_normal_rows(rng):
    x = rng.normal(size=(2000, 3)) * np.array([1.0, 5, 0.5]) + np.array([10.0, 0, -10])
    drawn = Flow().fit(x).sample(20_000, random_state=0)
    np.testing.assert_allclose((drawn.mean(axis=0) - x.mean(axis=0)) / x.std(axis=0), 0, atol=0.15)
    np.testing.assert_allclose(drawn.std(axis=0), x.std(axis=0), rtol=0.1)


# Arguments


def test_defaults_are_the_papers_table_7():
    expected = {"levels": 2, "depth": 3, "width": 32, "coupling": "additive"}
    expected |= {"permutation": "random", "residual": True, "learning_rate": 1e-3, "epochs": 1.0}
    assert expected.items() <= Flow().get_params().items()


def test_released_differs_where_the_released_code_does():
    expected = {"levels": 3, "permutation": "reverse", "residual": False, "batch_size": 64}
    expected |= {"weight_decay": 0.01, "bias_correction": False, "schedule": "constant"}
    expected |= {"weight_init": "normal"}
    changed = {
        name: value
        for name, value in Flow.released().get_params().items()
        if value != Flow().get_params()[name]
    }
    assert changed == expected | {"adam_epsilon": 5e-7, "max_grad_norm": 0.5}
    assert (
        Flow.released(levels=1, epochs=3).get_params().items() >= {"levels": 1, "epochs": 3}.items()
    )
    with pytest.raises(TypeError, match="nonsense"):
        Flow.released(nonsense=1)


def test_tempered_differs_in_the_frame_and_the_step_size():
    expected = {"normalize": True, "axes": "principal", "noise": 0.75, "leading": 3}
    expected |= {"leading_gain": 0.3, "centring": 0.95, "learning_rate": 3e-4}
    assert Flow.tempered().get_params() == Flow().get_params() | expected
    assert Flow.tempered(noise=0.5).noise == 0.5
    with pytest.raises(TypeError, match="nonsense"):
        Flow.tempered(nonsense=1)


PRINCIPAL = {"axes": "principal"}


def test_bad_frame_is_refused_by_name(x):
    for arguments, message in [
        ({"normalize": "x"}, r"normalize must be one of \(True, False\), got 'x'"),
        ({"axes": "x"}, "axes must be one of .*principal.*got 'x'"),
        ({"noise": -0.1, **PRINCIPAL}, "noise must be .*between 0 and 1, got -0.1"),
        ({"noise": 1.5, **PRINCIPAL}, "noise must be .*between 0 and 1, got 1.5"),
        ({"noise": "x", **PRINCIPAL}, "noise must be .*got 'x'"),
        ({"leading": -1, **PRINCIPAL}, "leading must be .*at least 0, got -1"),
        ({"leading": 1.5, **PRINCIPAL}, "leading must be an integer .*got 1.5"),
        ({"leading_gain": 0.0}, "leading_gain must be .*above 0 and at most 1, got 0.0"),
        ({"leading_gain": 1.1}, "leading_gain must be .*above 0 and at most 1, got 1.1"),
        ({"centring": -0.1}, "centring must be .*between 0 and 1, got -0.1"),
        ({"centring": 1.1}, "centring must be .*between 0 and 1, got 1.1"),
        ({"noise": 0.25}, "noise=0.25 acts on .* needs axes='principal'.*'given'"),
        ({"leading": 3}, "leading=3 acts on .* needs axes='principal'.*'given'"),
        (
            {"noise": 0.25, "permutation": "linear", **PRINCIPAL},
            "noise=0.25 acts on single axes: it needs .*'random' or 'reverse', .*='linear'",
        ),
        ({"leading": 3, "permutation": "linear", **PRINCIPAL}, "leading=3 .*='linear'"),
        (
            {"centring": 0.0, "permutation": "linear"},
            "centring=0.0 .* needs permutation=.*='linear'",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            Flow(**arguments).fit(x)


# What the library gave before it had frames: z, loss_, log_prob and a sample of two designs.
BEFORE = {
    Flow: (
        [1.22377338, 0.114912215, 0.349315562, 0.911952882]
        + [-0.158075572, -0.585898429, 0.909967401, 0.000603167689],
        3.0236311403477165,
        -14.61778092,
        [3.640109, 6.3713093, 4.4975142, 3.0116177, 1.2508551, 4.9847975, 6.863511, 7.519326],
    ),
    Flow.released: (
        [0.0334718, 0.8299747, -0.152674, 0.1350591, 1.2327275, 0.96465774]
        + [0.46935125, -0.67815108],
        3.0086419269628166,
        -14.65873457,
        [7.06362, 4.958071, 3.3502107, 7.005128, 2.6513228, 4.550251, 6.7396708, 1.2176187],
    ),
}


@pytest.mark.parametrize("build", BEFORE, ids=["paper", "released"])
def test_without_a_frame_it_is_the_flow_it_was(build):
    x = np.random.default_rng(0).normal(3, 2, size=(96, 8))
    z, loss, log_prob, sample = BEFORE[build]
    flow = build().fit(x)
    assert flow.frame_.learned().keys() == {"mean", "scale", "live"}
    np.testing.assert_allclose(flow.transform(x)[0], z, rtol=0, atol=2e-5)
    np.testing.assert_allclose([flow.loss_, flow.log_prob(x[:1])[0]], [loss, log_prob], rtol=1e-5)
    np.testing.assert_allclose(flow.sample(random_state=0)[0], sample, rtol=0, atol=2e-4)


def test_what_must_be_positive_is_refused_by_name(x):
    for value in [0, -1, float("nan")]:
        for name in [
            "epochs",
            "batch_size",
            "learning_rate",
            "adam_epsilon",
            "max_grad_norm",
            "scale_rate",
        ]:
            with pytest.raises(InputError, match=rf"{name} must be .*got {value}"):
                Flow(**{name: value}).fit(x)


def test_bad_argument_is_refused_by_name(x):
    for arguments, message in [
        ({"levels": 0}, "levels must be .*at least 1, got 0"),
        ({"depth": 0}, "depth must be .*at least 1, got 0"),
        ({"width": 0}, "width must be .*at least 1, got 0"),
        ({"coupling": "x"}, "coupling must be one of .*got 'x'"),
        ({"permutation": "x"}, "permutation must be one of .*got 'x'"),
        ({"weight_init": "zeros"}, "weight_init must be .*got 'zeros'"),
        ({"schedule": "cosine"}, "schedule must be .*got 'cosine'"),
        ({"weight_decay": -0.1}, "weight_decay must .*got -0.1"),
        ({"weight_decay": float("nan")}, "weight_decay must .*got nan"),
        ({"epochs": float("inf")}, "epochs must .*got inf"),
        ({"batch_size": 2.5}, "batch_size must .*got 2.5"),
        ({"levels": 1.5}, "levels must .*got 1.5"),
        ({"learning_rate": None}, "learning_rate must .*got None"),
        ({"epochs": None}, "epochs must .*got None"),
        ({"adam_epsilon": None}, "adam_epsilon must .*got None"),
        ({"device": "toaster"}, "device .*toaster"),
    ]:
        with pytest.raises(InputError, match=message):
            Flow(**arguments).fit(x)


def test_every_argument_after_the_second_is_by_name():
    kinds = [p.kind for p in list(inspect.signature(Flow).parameters.values())[2:]]
    assert set(kinds) == {inspect.Parameter.KEYWORD_ONLY}


def test_one_varying_dimension_is_refused(rng):
    x = np.column_stack([rng.normal(size=50), np.full((50, 3), 2.0)])
    with pytest.raises(InputError, match="only 1 of 4 dimensions vary.* give more rows"):
        Flow().fit(x)
    with pytest.raises(InputError, match="only 1 of 4 principal axes vary.* give more rows"):
        Flow(axes="principal").fit(x)


# Divergence


@every_variant
def test_diverging_fit_names_the_step_and_the_remedy(build, x):
    with pytest.raises(TrainingError, match=r"step \d+ of \d+ .*learning_rate \(now 1e\+30\)"):
        build(learning_rate=1e30).fit(x)


def test_fit_that_diverges_at_its_last_step_is_an_error_too(x):
    with pytest.raises(TrainingError, match="step 1 of 1"):
        Flow(learning_rate=1e30, batch_size=len(x)).fit(x)


def test_after_a_diverged_fit_it_is_not_fitted(x):
    flow = Flow(learning_rate=1e30)
    with pytest.raises(TrainingError):
        flow.fit(x)
    with pytest.raises(NotFittedError):
        flow.transform(x)


def test_long_training_on_a_degenerate_cloud_does_not_blow_up_later_rows(rng):
    x = np.tile(rng.normal(size=(300, 3)), (1, 2))
    flow = Flow(epochs=10, learning_rate=1e-2).fit(x)
    later = rng.normal(size=(100, 6))
    z = flow.transform(later)
    assert np.isfinite(z).all()
    assert np.abs(z).max() < 1e4
    np.testing.assert_allclose(flow.inverse_transform(z), later, rtol=0, atol=1e-4)
