"""The numbers behind the pictures, by hand and by independent libraries."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import spearmanr

from bertflow.errors import InputError
from bertflow.report.measures import (
    measure_cosines,
    measure_spectra,
    project,
    relate_to_edits,
    summarize_training,
)

ROWS = 120


@pytest.fixture
def sides(rng):
    x = rng.normal(size=(ROWS, 6)) * np.arange(1.0, 7.0)
    return {"before": x + 4.0, "after": x[:, :3]}


def test_shares_of_cosines_add_up_to_one_and_their_means_are_the_pairs(sides):
    found = measure_cosines(sides, pairs=3000)
    for share in found.shares.values():
        assert share.sum() == pytest.approx(1)
        assert len(share) == len(found.edges) - 1
    centres = (found.edges[1:] + found.edges[:-1]) / 2
    for name, share in found.shares.items():
        assert share @ centres == pytest.approx(found.means[name], abs=0.0125)


def test_every_side_sees_the_same_pairs(sides):
    both = measure_cosines({"one": sides["before"], "other": sides["before"]}, pairs=500)
    assert_array_equal(both.shares["one"], both.shares["other"])
    alone = measure_cosines({"one": sides["before"]}, pairs=500)
    assert alone.means["one"] == both.means["one"]


def test_bins_of_any_two_pages_can_be_laid_side_by_side(sides):
    for edges in (measure_cosines({"x": x}).edges for x in sides.values()):
        assert_allclose(edges / 0.025, np.round(edges / 0.025), atol=1e-9)
        assert edges[-1] == 1


def test_pairs_with_a_row_that_is_zero_on_one_side_count_on_none(sides):
    sides["after"] = sides["after"].copy()
    sides["after"][:60] = 0
    found = measure_cosines(sides, pairs=4000)
    assert 800 < found.pairs < 1200
    assert all(np.isfinite(mean) for mean in found.means.values())
    with pytest.raises(InputError, match="all rows are zero"):
        measure_cosines({"none": np.zeros((5, 2))})


def test_spectra_are_singular_values_over_the_first(sides):
    found = measure_spectra(sides)
    for name, x in sides.items():
        values = np.linalg.svd(x, compute_uv=False)
        assert_allclose(found.values[name], values / values[0])


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_the_cloud_is_on_the_principal_axes_of_rows_at_length_1_through_the_origin(sides):
    found = project(sides)
    for name, x in sides.items():
        _, values, axes = np.linalg.svd(unit(x), full_matrices=False)
        points = unit(x) @ axes[:2].T
        signs = np.sign((points * found.points[name]).sum(axis=0))
        assert_allclose(found.points[name], points * signs, atol=1e-8)
        assert_allclose(found.explained[name], values[:2] ** 2 / (values**2).sum())
        assert_allclose(found.means[name], points.mean(axis=0) * signs, atol=1e-8)
    again = project({name: x[:, ::1].copy() for name, x in sides.items()})
    assert_array_equal(again.points["before"], found.points["before"])


def test_a_direction_that_all_rows_share_moves_the_cloud_off_the_origin(rng):
    x = rng.normal(size=(400, 20))
    found = project({"before": x + 3.0, "after": x})
    for name, rows in (("before", x + 3.0), ("after", x)):
        length = np.linalg.norm(unit(rows).mean(axis=0))
        assert found.lengths[name] == pytest.approx(length)
        # All pairs, those of a row with itself among them.
        assert length**2 == pytest.approx((unit(rows) @ unit(rows).T).mean())
    assert found.lengths["before"] > 0.9
    assert found.lengths["after"] < 0.1
    # The first axis is that direction, and points to where the rows lie.
    assert found.means["before"][0] == pytest.approx(found.lengths["before"], rel=1e-3)
    assert (found.points["before"][:, 0] > 0.7).all()
    assert (project({"x": -x - 3.0}).points["x"][:, 0] > 0.7).all()


def test_all_sides_and_the_origin_lie_within_the_limits_of_a_cloud(sides):
    found = project(sides)
    for points in [*found.points.values(), np.zeros((1, 2)), *found.means.values()]:
        assert (points > found.limits[:, 0]).all()
        assert (points < found.limits[:, 1]).all()
    # Also of one that is flat.
    flat = project({"x": np.column_stack([np.ones(9), np.linspace(0, 1e-6, 9)])}).limits
    assert np.ptp(flat[1]) >= 0.6 * np.ptp(flat[0])


def test_rows_that_are_zero_stay_at_the_origin(rng):
    x = rng.normal(size=(30, 4)) + 2
    x[7] = 0
    assert_array_equal(project({"x": x}).points["x"][7], [0, 0])


def test_the_cloud_draws_the_same_rows_on_every_side(sides):
    found = project(sides, points=30)
    assert found.rows.shape == (30,)
    assert (np.diff(found.rows) > 0).all()
    whole = project(sides)
    for name in sides:
        assert_allclose(found.points[name], whole.points[name][found.rows])


def test_axes_do_not_depend_on_the_unit(sides):
    one = project(sides)
    other = project({name: 1e30 * x for name, x in sides.items()})
    assert_allclose(other.explained["before"], one.explained["before"])
    assert_allclose(other.points["before"], one.points["before"], rtol=1e-6, atol=1e-9)


def test_edit_distances_are_related_over_pairs_that_have_every_similarity(rng):
    distances = rng.integers(0, 20, size=50)
    panels = {"gold": rng.normal(size=50), "raw": rng.normal(size=50)}
    panels["gold"][3] = np.nan
    found = relate_to_edits(panels, distances, short=6, unit="words")
    keep = np.arange(50) != 3
    near = keep & (distances <= 6)
    for name, values in panels.items():
        assert found.whole[name] == pytest.approx(spearmanr(values[keep], distances[keep])[0])
        assert found.near[name] == pytest.approx(spearmanr(values[near], distances[near])[0])
        assert_array_equal(found.panels[name], values[keep])
    assert (found.distances <= found.short).sum() == near.sum()


def test_windows_of_training_hold_every_step_once(rng):
    losses = rng.normal(size=1001)
    found = summarize_training(losses, windows=60, final=0.5)
    sizes = np.diff([0, *found.steps])
    assert found.steps[-1] == found.total == 1001
    assert sizes.min() >= 16
    assert sizes.max() <= 17
    assert sizes @ found.mean == pytest.approx(losses.sum())
    assert found.low.min() == losses.min()
    assert found.high.max() == losses.max()


@pytest.mark.parametrize("measure", [measure_cosines, measure_spectra, project])
def test_sides_that_cannot_be_compared_are_refused(measure, sides):
    with pytest.raises(InputError, match="one side at least"):
        measure({})
    with pytest.raises(InputError, match="before 120, after 100"):
        measure({**sides, "after": sides["after"][:100]})
    sides["before"][5, 2] = np.nan
    with pytest.raises(InputError, match="row 5"):
        measure(sides)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: project({"flat": np.ones((5, 3))}), "all 5 rows are equal"),
        (lambda x: project({"thin": x[:, :1]}), "1 dimension"),
        (lambda x: summarize_training(np.empty(0)), "no step"),
    ],
)
def test_what_cannot_be_measured_is_refused(sides, call, expected):
    with pytest.raises(InputError, match=expected):
        call(sides["before"])
