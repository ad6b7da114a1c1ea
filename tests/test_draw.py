"""Figures of measures: that what is drawn is what was measured, and told apart without colour."""

from __future__ import annotations

import re
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.report import draw, measures, page, save_figure
from bertflow.report.draw import LOOKS


@pytest.fixture(scope="module")
def sides():
    x = np.random.default_rng(0).normal(size=(90, 5)) * np.arange(1.0, 6.0)
    return {"before": x + 4, "after": x}


@pytest.fixture(scope="module")
def drawn(sides):
    """A figure of each kind."""
    losses = np.random.default_rng(2).normal(size=300)
    training = measures.summarize_training(losses, final=-0.25)
    return {
        "cosines": draw.cosine_histogram(measures.measure_cosines(sides, pairs=500)),
        "spectra": draw.spectrum(measures.measure_spectra(sides)),
        "cloud": draw.cloud(measures.project(sides)),
        "training": draw.training_curve(training),
    }


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_histogram_has_a_step_of_the_right_height_for_each_bin(sides):
    found = measures.measure_cosines(sides, pairs=500)
    axes = draw.cosine_histogram(found).axes[0]
    outlines = [patch for patch in axes.patches if not patch.get_fill()]
    for outline, share in zip(outlines, found.shares.values(), strict=True):
        assert_allclose(outline.get_data().values, 100 * share)
        assert_allclose(outline.get_data().edges, found.edges)
    means = [line.get_xdata()[0] for line in axes.lines]
    assert_allclose(means, list(found.means.values()))


def test_the_means_stand_in_the_legend(sides):
    found = measures.measure_cosines(sides, pairs=500)
    named = legend(draw.cosine_histogram(found))
    assert [name.split(",")[0] for name in named] == ["before", "after"]
    assert f"{found.means['before']:.2f}" in named[0]


def test_a_spectrum_is_drawn_by_rank_on_logarithms(sides):
    found = measures.measure_spectra(sides)
    axes = draw.spectrum(found).axes[0]
    for line, values in zip(axes.lines, found.values.values(), strict=True):
        assert_array_equal(line.get_xdata(), np.arange(1, len(values) + 1))
        assert_allclose(line.get_ydata(), values)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_dimensions_that_do_not_vary_do_not_stretch_the_axis_of_a_spectrum(rng):
    flat = np.outer(rng.normal(size=20), [1.0, 2.0, 0.0])
    found = measures.measure_spectra({"flat": flat})
    axes = draw.spectrum(found).axes[0]
    assert axes.get_ylim()[0] == 1e-4
    assert axes.lines[0].get_ydata().min() == 1e-4


def test_a_cloud_has_a_panel_a_side_and_both_axes_at_one_scale(sides):
    found = measures.project(sides)
    figure = draw.cloud(found)
    for axes, (name, points) in zip(figure.axes, found.points.items(), strict=True):
        assert_allclose(np.asarray(axes.collections[0].get_offsets()), points)
        assert axes.get_title(loc="left") == name
        assert axes.get_aspect() == 1.0
        assert f"{100 * found.explained[name][0]:.3g} %" in axes.get_xlabel()
        assert_allclose([axes.get_xlim(), axes.get_ylim()], found.limits)
        assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 0]]]
    # The arrow goes from the origin to the mean, if that is not at the origin itself.
    arrows = [[(text.xyann, text.xy) for text in axes.texts] for axes in figure.axes]
    assert arrows[0] == [((0.0, 0.0), tuple(found.means["before"]))]
    centred = measures.project({"centred": np.concatenate([sides["after"], -sides["after"]])})
    assert not list(draw.cloud(centred).axes[0].texts)


def test_a_training_curve_is_the_means_and_ends_at_the_loss_that_is_left(rng):
    found = measures.summarize_training(rng.normal(size=300), final=-0.25)
    figure = draw.training_curve(found)
    line, final = figure.axes[0].lines
    assert_allclose(line.get_ydata(), found.mean)
    assert_array_equal(line.get_xdata(), found.steps)
    assert set(final.get_ydata()) == {-0.25}
    assert "fitted rows, −0.250" in legend(figure)
    without = measures.summarize_training(rng.normal(size=300))
    assert len(draw.training_curve(without).axes[0].lines) == 1


@pytest.mark.parametrize(
    ("count", "shown"), [(300, ["1", "10", "100"]), (20, ["1", "2", "5", "10", "20"])]
)
def test_ranks_are_plain_numbers(rng, count, shown):
    figure = draw.spectrum(measures.measure_spectra({"x": rng.normal(size=(400, count))}))
    axis = figure.axes[0].xaxis
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    seen = {
        tick.label1.get_text(): tick.get_loc() for tick in ticks if low <= tick.get_loc() <= high
    }
    assert sorted((text for text in seen if text), key=float) == shown


def test_the_sides_are_told_apart_without_colour():
    first, second = LOOKS
    assert first.linestyle != second.linestyle
    assert first.marker != second.marker
    sheet = page.template_file("page.css")
    sides = [re.findall(rf"--{name}: (#\w+);", sheet) for name in ("first", "second")]
    light, dark = zip(*sides, strict=True)
    assert light == tuple(look.color for look in LOOKS)
    for ground in (light, dark):
        one, other = map(matplotlib.colors.to_rgb, ground)
        # To people without red, green or blue cones, as the mean of the two that are left.
        for cone in range(3):
            kept = [n for n in range(3) if n != cone]
            assert np.abs(np.subtract(one, other))[kept].max() > 0.2


def test_no_text_lies_on_another_and_all_of_it_is_in_the_figure(drawn):
    for name, figure in drawn.items():
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        boxes = [axes.patch.get_window_extent(renderer) for axes in figure.axes]
        for axes in figure.axes:
            boxes += [
                label.get_window_extent(renderer)
                for label in (axes.xaxis.label, axes.yaxis.label, axes._left_title)
                if label.get_text()
            ]
        boxes += [one.get_window_extent(renderer) for one in figure.legends]
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other), name
        for box in boxes:
            assert box.x0 >= -1, name
            assert box.y0 >= -1, name
            assert box.x1 <= figure.bbox.x1 + 1, name
            assert box.y1 <= figure.bbox.y1 + 1, name


def test_files_are_the_same_every_time_and_small(drawn, tmp_path):
    for name, figure in drawn.items():
        for number in range(2):
            save_figure(figure, tmp_path / f"{name}{number}.svg")
        one, other = (tmp_path / f"{name}{number}.svg" for number in range(2))
        assert one.read_bytes() == other.read_bytes()
        assert len(one.read_bytes()) < 200_000
