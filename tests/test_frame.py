"""The frame around a flow's Glow: unit length, principal axes, gains, offset, latent order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertflow.arrays import unit_length
from bertflow.calibrators import Flow
from bertflow.calibrators.frame import LEAST_GAIN
from bertflow.errors import InputError
from bertflow.flows import Glow

# A Glow that is hardly trained is the identity but for the order of its outputs.
UNTRAINED = {"learning_rate": 1e-12, "epochs": 0.001}


@pytest.fixture
def x(rng):
    """400 x 10 correlated rows of falling variances, away from zero and not normal."""
    shape = np.geomspace(4, 0.5, 10)[:, None] * np.linalg.qr(rng.normal(size=(10, 10)))[0]
    return (rng.normal(size=(400, 10)) + 0.1 * rng.normal(size=(400, 10)) ** 3) @ shape + 3.0


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def principal(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances in falling order and axes as columns, each with its largest entry positive."""
    values, vectors = np.linalg.eigh(np.cov(rows.T, ddof=0))
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))]
    return values[::-1], (vectors * np.sign(largest))[:, ::-1]


def cosines(z: np.ndarray) -> np.ndarray:
    z = unit(z.astype(np.float64))
    return (z @ z.T)[np.triu_indices(len(z), 1)]


# The equation


def test_tempered_is_its_equation(x):
    for permutation in ["random", "reverse"]:
        for levels in [1, 2, 3]:
            flow = Flow.tempered(levels=levels, permutation=permutation, **UNTRAINED).fit(x)
            rows = unit(x)
            mean = rows.mean(axis=0)
            variances, axes = principal(rows)
            whiten = axes / np.sqrt(variances)
            gain = variances / (variances + variances[2])  # round(0.25 * 10) is 2
            gain[:3] *= 0.3
            expected = ((rows - mean) @ whiten + 0.05 * mean @ whiten) * gain
            z = flow.transform(x)
            np.testing.assert_allclose(z, expected[:, flow.flow_.latent_axes()], rtol=0, atol=1e-4)


def test_each_part_of_the_frame_is_its_own(x):
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    variances, axes = principal(x)
    rotated = (x - mean) @ axes / np.sqrt(variances)
    by_hand = {
        "normalize": (unit(x) - unit(x).mean(axis=0)) / unit(x).std(axis=0),
        "axes": rotated,
        "noise": rotated * (variances / (variances + variances[4])),
        "leading": rotated * np.array([0.5, 0.5] + [1.0] * 8),
        "centring": (x - 0.75 * mean) / deviation,
        "both": rotated + 0.25 * mean @ axes / np.sqrt(variances),
    }
    frames = {
        "normalize": {"normalize": True},
        "axes": {"axes": "principal"},
        "noise": {"axes": "principal", "noise": 0.6},
        "leading": {"axes": "principal", "leading": 2, "leading_gain": 0.5},
        "centring": {"centring": 0.75},
        "both": {"axes": "principal", "centring": 0.75},
    }
    for name, frame in frames.items():
        flow = Flow(**frame, **UNTRAINED).fit(x)
        expected = by_hand[name][:, flow.flow_.latent_axes()]
        np.testing.assert_allclose(flow.transform(x), expected, rtol=0, atol=1e-4, err_msg=name)


def test_latent_axes_are_where_the_inputs_end_up(rng):
    for features, levels in [(2, 1), (7, 2), (9, 3), (12, 5)]:
        for permutation in ["random", "reverse"]:
            glow = Glow(features, levels=levels, permutation=permutation)
            x = torch.from_numpy(rng.normal(size=(500, features)))
            z = glow.initialize(x)
            order = glow.latent_axes()
            assert sorted(order.tolist()) == list(range(features))
            np.testing.assert_allclose(
                z, ((x - x.mean(0)) / x.std(0, correction=0))[:, order], atol=1e-4
            )


def test_trained_couplings_leave_the_gains_on_their_axes(x):
    # Gains act after the Glow, which trains the same with and without them.
    plain = Flow(axes="principal").fit(x)
    damped = Flow(axes="principal", noise=0.7, leading=1, leading_gain=0.2).fit(x)
    variances = plain.scale_**2
    gain = variances / (variances + variances[3])
    gain[0] *= 0.2
    ratio = damped.transform(x) / plain.transform(x)
    np.testing.assert_allclose(ratio, np.tile(gain[plain.flow_.latent_axes()], (400, 1)), rtol=1e-9)
    assert damped.loss_ == plain.loss_


def test_axes_are_orthonormal_and_fall_in_variance(x):
    flow = Flow.tempered().fit(x)
    np.testing.assert_allclose(
        flow.frame_.components @ flow.frame_.components.T, np.eye(10), rtol=0, atol=1e-12
    )
    assert (np.diff(flow.scale_) <= 0).all()


def test_noise_beyond_the_rank_is_the_last_axis_that_varies(rng):
    x = rng.normal(size=(5, 20))
    flow = Flow(axes="principal", noise=0.5, **UNTRAINED).fit(x)
    gain = np.sort(flow.frame_.gain)[::-1]
    values = principal(x)[0][:4]
    np.testing.assert_allclose(gain[:4], values / (values + values[3]), rtol=1e-6)
    np.testing.assert_array_equal(gain[4:], LEAST_GAIN)


def test_mean_on_an_axis_that_hardly_varies_does_not_fill_the_offset(rng):
    # A narrow cone: at unit length it varies across the mean, along it by a thousandth of that.
    x = rng.normal(size=(400, 6)) * 2e-3 + np.array([1.0, 0, 0, 0, 0, 0])
    frame = Flow.tempered(**UNTRAINED).fit(x).frame_
    variances, axes = principal(unit(x))
    assert variances[5] < 1e-5 * variances[0]
    raw = 0.05 * unit(x).mean(axis=0) @ axes / np.sqrt(variances)
    gain = variances / (variances + variances[2])  # round(0.25 * 6) is 2
    gain[:3] *= 0.3
    np.testing.assert_allclose(np.sort(np.abs(frame.offset)), np.sort(np.abs(raw * gain)), 1e-4)
    assert frame.gain.min() == LEAST_GAIN
    assert np.abs(frame.offset).max() < 1


def test_more_leading_axes_than_there_are_damps_all(x):
    frame = Flow(axes="principal", leading=99, leading_gain=0.5, **UNTRAINED).fit(x).frame_
    np.testing.assert_array_equal(frame.gain, 0.5)


# Density


def test_gains_and_offset_leave_the_density_and_the_loss_as_they_are(x):
    plain = Flow(axes="principal", normalize=True).fit(x)
    tempered = Flow.tempered(learning_rate=1e-3).fit(x)
    np.testing.assert_array_equal(tempered.log_prob(x), plain.log_prob(x))
    np.testing.assert_array_equal(tempered.loss_curve_, plain.loss_curve_)
    drawn = [flow.sample(200, random_state=0) for flow in (plain, tempered)]
    np.testing.assert_allclose(*drawn, rtol=0, atol=1e-5)


def test_rotation_leaves_the_density_of_a_normal_as_it_is(x):
    from scipy.stats import multivariate_normal

    flow = Flow(axes="principal", **UNTRAINED).fit(x)
    normal = multivariate_normal(x.mean(axis=0), np.cov(x.T, ddof=0))
    np.testing.assert_allclose(flow.log_prob(x), normal.logpdf(x), rtol=1e-4, atol=1e-3)


def test_samples_transformed_have_the_tempered_prior(x):
    flow = Flow.tempered(normalize=False).fit(x)
    z = flow.transform(flow.sample(20_000, random_state=0))
    frame = flow.frame_
    np.testing.assert_allclose((z.mean(axis=0) - frame.offset) / frame.gain, 0, atol=0.04)
    np.testing.assert_allclose(z.std(axis=0) / frame.gain, 1, atol=0.04)


def test_density_of_a_row_is_that_of_its_direction(x):
    flow = Flow.tempered().fit(x)
    expected = flow.log_prob(x)
    np.testing.assert_allclose(flow.log_prob(7 * x), expected, rtol=1e-9)
    loss = -expected.mean() / (10 * np.log(2))
    assert abs(flow.loss_ - loss) < 1e-9


# Unit length


def test_unit_length_of_rows_whose_squares_leave_float32(rng):
    for scale in [1e-35, 1.0, 1e35]:
        rows = rng.normal(size=(20, 5))
        found = unit_length(torch.from_numpy(rows * scale).float())
        np.testing.assert_allclose(found, unit(rows), rtol=0, atol=1e-6)


def test_row_of_zeros_stays_one(x):
    assert unit_length(torch.zeros(1, 4)).tolist() == [[0.0] * 4]
    assert np.isfinite(Flow.tempered().fit(x).transform(np.zeros((1, 10)))).all()


def test_rows_of_one_direction_are_refused(rng):
    rows = np.outer(np.arange(1.0, 50.0), rng.normal(size=6))
    with pytest.raises(InputError, match="all 49 rows are equal at unit length"):
        Flow.tempered().fit(rows)


def test_inverse_gives_rows_of_unit_length(x):
    flow = Flow.tempered().fit(x)
    back = flow.inverse_transform(flow.transform(3 * x))
    np.testing.assert_allclose(back, unit(x), rtol=0, atol=1e-10)


# Dimensions that do not vary


def test_dead_dimensions_of_real_vectors_do_not_move_cosines(shared_data):
    rows = np.load(shared_data / "embeddings/minilm-l6_mean_first2000.npy")[:400]
    dead = rows.std(axis=0) < 1e-6
    assert dead.sum() >= 2
    flow = Flow.tempered(batch_size=128).fit(rows)
    without = Flow.tempered(batch_size=128).fit(rows[:, ~dead])
    assert flow.frame_.gain.min() >= LEAST_GAIN
    found, expected = cosines(flow.transform(rows)), cosines(without.transform(rows[:, ~dead]))
    assert np.corrcoef(found, expected)[0, 1] > 0.999
    later = rows.copy()
    later[:, dead] += np.median(rows.std(axis=0))
    z, moved = flow.transform(rows), flow.transform(later)
    assert np.linalg.norm(moved - z, axis=1).max() < 0.1 * np.linalg.norm(z, axis=1).min()
