"""Figures: what they show, that nothing overlaps or leaks, and files that are always the same."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal
from scipy.stats import spearmanr

from bertflow.errors import InputError, MissingDependencyError, ModelError
from bertflow.report import draw, edit_distance_scatter, save_figure
from bertflow.report.draw import REST, SHORT, check_figure
from bertflow.report.measures import relate_to_edits

PAIRS = 60
MAGIC = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


@pytest.fixture
def material(rng):
    """Panels as of Table 6, and distances of which some are short."""
    distances = rng.integers(0, 40, size=PAIRS)
    distances[:6] = [0, 1, 2, 3, 4, 5]
    panels = {
        "gold": rng.uniform(0.5, 4.5, size=PAIRS),
        "BERT-base last2avg": rng.uniform(0.6, 1.0, size=PAIRS),
        "BERT-base last2avg + flow": rng.uniform(-0.2, 1.0, size=PAIRS),
    }
    return panels, distances


def scatter(panels, distances, **how):
    return edit_distance_scatter(relate_to_edits(panels, distances, **how))


def title(axes):
    return axes.get_title(loc="left")


def points(collection):
    return np.asarray(collection.get_offsets())


# What it shows.


def test_there_is_a_panel_for_each_similarity(material):
    panels, distances = material
    figure = scatter(panels, distances)
    assert [title(axes).split("\n")[0] for axes in figure.axes] == list(panels)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "gold similarity",
        "cosine similarity",
        "cosine similarity",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["edit distance (characters)", "", ""]


def test_every_pair_is_a_point_and_the_short_ones_stand_out(material):
    panels, distances = material
    near = distances <= 4
    for axes, values in zip(scatter(panels, distances).axes, panels.values(), strict=True):
        highlighted, rest = axes.collections
        assert_array_equal(points(highlighted), np.column_stack([values, distances])[near])
        assert_array_equal(points(rest), np.column_stack([values, distances])[~near])
        assert highlighted.get_zorder() > rest.get_zorder()
        assert not np.allclose(highlighted.get_facecolor(), rest.get_facecolor())
        one, other = (each.get_paths()[0].vertices for each in axes.collections)
        assert one.shape != other.shape


def test_the_two_kinds_differ_in_grey_too():
    def lightness(color, alpha):
        grey = np.dot(matplotlib.colors.to_rgb(color), [0.2126, 0.7152, 0.0722])
        return 1 - alpha * (1 - grey)

    dark, light = (lightness(kind["color"], kind["alpha"]) for kind in (SHORT, REST))
    assert light - dark > 0.35


def test_the_short_ones_are_up_to_the_number_given(material):
    panels, distances = material
    figure = scatter(panels, distances, short=11, unit="words")
    near = distances <= 11
    assert len(points(figure.axes[0].collections[0])) == near.sum()
    assert figure.axes[0].get_ylabel() == "edit distance (words)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"at most 11 words apart ({near.sum()} pairs)",
        f"the others ({(~near).sum()})",
    ]


def test_titles_give_spearmans_correlation_of_all_and_of_the_short_pairs(material):
    panels, distances = material
    near = distances <= 9
    figure = scatter(panels, distances, short=9)
    for axes, values in zip(figure.axes, panels.values(), strict=True):
        whole, close = (
            f"{100 * spearmanr(values[used], distances[used]).statistic:.2f}".replace("-", "−")
            for used in (slice(None), near)
        )
        assert title(axes).split("\n")[1] == f"ρ × 100: {whole}, ≤ 9 apart: {close}"


def test_a_correlation_that_is_not_defined_is_said_so(material):
    panels, distances = material
    figure = scatter(panels, distances + 10)
    assert title(figure.axes[0]).endswith("≤ 4 apart: undefined")
    assert figure.legends[0].get_texts()[0].get_text() == "at most 4 characters apart (0 pairs)"


def test_pairs_without_one_of_the_similarities_are_in_no_panel(material):
    panels, distances = material
    panels["gold"][2], panels["BERT-base last2avg"][[7, 8]] = np.nan, np.nan
    kept = np.setdiff1d(np.arange(PAIRS), [2, 7, 8])
    found = scatter(panels, distances)
    less = scatter({name: values[kept] for name, values in panels.items()}, distances[kept])
    for one, other in zip(found.axes, less.axes, strict=True):
        assert title(one) == title(other)
        for drawn, expected in zip(one.collections, other.collections, strict=True):
            assert_array_equal(points(drawn), points(expected))
    shown = sum(len(points(collection)) for collection in found.axes[0].collections)
    assert shown == PAIRS - 3


def test_edit_distance_is_one_axis_for_all_with_every_point_inside(material):
    panels, distances = material
    figure = scatter(panels, distances)
    first = figure.axes[0]
    for axes, values in zip(figure.axes, panels.values(), strict=True):
        assert first.get_shared_y_axes().joined(first, axes)
        low, high = axes.get_ylim()
        assert low < 0
        assert distances.max() < high
        low, high = axes.get_xlim()
        assert low < values.min() < values.max() < high


# That nothing overlaps.


@pytest.mark.parametrize("count", [1, 3])
def test_no_text_lies_on_another_and_all_of_it_is_in_the_figure(rng, count):
    distances = rng.integers(0, 250, size=PAIRS)
    name = "/home/somebody/models/an-encoder-with-a-long-name/checkpoint-{}"
    panels = {name.format(number): rng.uniform(-1, 1, size=PAIRS) for number in range(count)}
    figure = scatter(panels, distances)
    assert len(figure.axes) == count
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = [axes._left_title for axes in figure.axes]
    texts += [axes.xaxis.label for axes in figure.axes]
    texts += [axes.yaxis.label for axes in figure.axes if axes.get_ylabel()]
    boxes = [text.get_window_extent(renderer) for text in texts]
    boxes += [axes.patch.get_window_extent(renderer) for axes in figure.axes]
    boxes.append(figure.legends[0].get_window_extent(renderer))
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1


def test_names_are_wrapped_but_not_cut_and_never_read_as_formulas(material, tmp_path):
    _, distances = material
    name = r"runs/$\frac$ & <models>/" + "x" * 70
    figure = scatter({name: np.linspace(0, 1, PAIRS)}, distances)
    *lines, _ = title(figure.axes[0]).split("\n")
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")
    assert max(map(len, lines)) <= 32
    save_figure(figure, tmp_path / "figure.svg")
    assert "&lt;models&gt;" in (tmp_path / "figure.svg").read_text("utf-8")


# What is refused.


def test_figures_of_nothing_are_refused(material):
    _, distances = material
    with pytest.raises(InputError, match=f"none of the {PAIRS} pairs"):
        scatter({"gold": np.full(PAIRS, np.nan)}, distances)


@pytest.mark.parametrize("shape", [(PAIRS - 1,), (PAIRS, 1)])
def test_shapes_that_differ_are_refused_by_numpy(material, shape):
    panels, distances = material
    with pytest.raises(ValueError, match="same shape"):
        scatter({"gold": panels["gold"], "flow": np.zeros(shape)}, distances)


def test_a_missing_package_is_named_with_the_line_that_installs_it(material, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (lambda: scatter(*material), lambda: check_figure(tmp_path / "figure.svg")):
        with pytest.raises(
            MissingDependencyError, match=r"matplotlib: pip install 'bertflow\[report\]'"
        ):
            call()
    assert list(tmp_path.iterdir()) == []


# Files.


@pytest.mark.parametrize("suffix", MAGIC)
def test_files_are_of_their_kind_without_a_date_and_the_same_every_time(
    material, tmp_path, suffix, monkeypatch
):
    figure = scatter(*material)
    for number in range(2):
        # Some formats take today's date from here.
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(1_000_000_000 * number))
        save_figure(figure, tmp_path / f"figure{number}{suffix}")
    one, other = (tmp_path / f"figure{number}{suffix}" for number in range(2))
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes().startswith(MAGIC[suffix])
    assert sorted(tmp_path.iterdir()) == [one, other]
    for mark in (b"<dc:date>", b"CreationDate", b"ModDate", b"tIME"):
        assert mark not in one.read_bytes()


def test_two_figures_of_the_same_numbers_are_the_same_file(material):
    one, other = (draw.file_content(scatter(*material), ".svg") for _ in range(2))
    assert one == other


def test_text_in_an_svg_is_text(material, tmp_path):
    panels, distances = material
    file = tmp_path / "new" / "folder" / "figure.SVG"
    save_figure(scatter(panels, distances), file)
    content = file.read_text("utf-8")
    for text in [*panels, "edit distance (characters)", "at most 4 characters apart"]:
        assert text in content


def test_a_png_has_200_dots_an_inch(tmp_path):
    save_figure(Figure(figsize=(2, 1)), tmp_path / "figure.png")
    header = (tmp_path / "figure.png").read_bytes()[16:24]
    assert (int.from_bytes(header[:4]), int.from_bytes(header[4:])) == (400, 200)


@pytest.mark.parametrize("call", [lambda path: save_figure(Figure(), path), check_figure])
def test_a_file_that_cannot_hold_a_figure_is_refused_without_a_trace(tmp_path, call):
    for name in ("figure.jpg", "figure", "figure.svg.gz"):
        with pytest.raises(InputError, match=r"must end in \.svg, \.png or \.pdf"):
            call(tmp_path / name)
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "folder.svg", tmp_path / "file" / "figure.svg"):
        with pytest.raises(ModelError, match=f"cannot write {path}"):
            call(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.svg"]


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file(tmp_path):
    class Broken(Figure):
        def draw(self, renderer):
            raise RuntimeError("no ink")

    file = tmp_path / "figure.svg"
    file.write_text("old")
    with pytest.raises(RuntimeError, match="no ink"):
        save_figure(Broken(), file)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]
    assert file.read_text() == "old"


def test_checking_a_file_makes_no_file(tmp_path):
    check_figure(tmp_path / "new" / "figure.pdf")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Nothing outside.


def test_settings_of_the_caller_neither_count_nor_change(material):
    plain = draw.file_content(scatter(*material), ".svg")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert draw.file_content(scatter(*material), ".svg") == plain
        assert dict(matplotlib.rcParams) == before


def test_importing_loads_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    spec = importlib.util.spec_from_file_location("plots_again", draw.__file__)
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plots_again", again)
    spec.loader.exec_module(again)
    assert again.edit_distance_scatter is not draw.edit_distance_scatter


def test_drawing_loads_no_pyplot(material, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    save_figure(scatter(*material), tmp_path / "figure.svg")
    assert sys.modules["matplotlib.pyplot"] is None
