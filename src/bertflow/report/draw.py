"""Figures for notebooks and papers, and their files; drawing changes nothing outside of them.

Each function takes the numbers that `bertflow.report.measures` gives. The page of `bertflow report`
shows the same figures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertflow.analysis.frequency import Mean
from bertflow.arrays import Array
from bertflow.display.tables import fixed
from bertflow.errors import InputError, MissingDependencyError
from bertflow.io.files import check_writable, write_bytes
from bertflow.report.measures import (
    Cloud,
    CosineHistogram,
    EditScatter,
    ScoreTable,
    Spectra,
    TrainingCurve,
    WordNorms,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# None leaves the date out, so that files are the same every time.
UNDATED: dict[str, dict[str, None]] = {
    ".svg": {"Date": None},
    ".png": {},
    ".pdf": {"CreationDate": None},
}
PNG_DPI = 200
# Without a salt of its own, matplotlib names the parts of an SVG at random.
SAME_FILES: Any = {"svg.hashsalt": "bertflow", "svg.fonttype": "none", "pdf.fonttype": 42}


@dataclass(frozen=True)
class Look:
    """How a side is drawn, so that sides differ without colour, too.

    Attributes:
        color: On a light ground.
        dark: On a dark ground.
        dashes: Of its lines, in points; none are solid.
        marker: Of its points, as matplotlib names it.
    """

    color: str
    dark: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def linestyle(self) -> Any:
        """The dashes as matplotlib takes them."""
        return (0, self.dashes) if self.dashes else "solid"


# The first side, and the second. Source of the hues: Okabe and Ito (2008), for any colour vision.
LOOKS = (
    Look(color="#d55e00", dark="#e69f00", dashes=(5.0, 3.0), marker="^"),
    Look(color="#0072b2", dark="#56b4e9", dashes=(), marker="o"),
)
PUBLISHED_COLOR = "#57606a"
INK, FAINT, GROUND, STRIPE = "#262626", "#8c8c8c", "#ffffff", "#f3f4f6"
# Light and round for the many, dark and pointed for the few.
REST: dict[str, Any] = {"color": "#56a0d3", "marker": "o", "alpha": 0.4, "linewidths": 0}
SHORT: dict[str, Any] = {"color": "#b34700", "marker": "^", "alpha": 0.9, "linewidths": 0.4}
# Areas of markers in points², largest and smallest: up to ROOMY markers are large, more shrink.
SHORT_AREAS, REST_AREAS, ROOMY = (26.0, 14.0), (26.0, 9.0), 60
PANEL_WIDTH, PANEL_HEIGHT, LABELS = 3.1, 3.1, 0.5
PANELS_A_ROW = 4
TITLE_CHARACTERS = 32
# The scale of STS; scores from 0 to 1 or to 100 are shown as far as they go.
GRADES, MARGIN = (0.0, 5.0), 0.2
LABEL: dict[str, Any] = {"fontsize": 9, "color": INK}
# Of a single picture, in inches: a column of a paper.
FIGURE_WIDTH, FIGURE_HEIGHT = 4.2, 3.0
SCORE_STEP = 0.17
# A mean that is nearer to the origin is drawn without an arrow: none of it could be seen.
LEAST_ARROW = 0.05
# More points than this are an image within a vector file.
RASTER = 2000
# Longer labels stand below each other.
LEGEND_CHARACTERS = 20


def cosine_histogram(found: CosineHistogram) -> Figure:
    """Draw histograms of the cosines of random pairs, one over the other, and their means.

    Args:
        found: As `bertflow.report.measures.measure_cosines` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Ethayarajh (2019), for mean cosine as the measure of anisotropy.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import measure_cosines
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> figure = cosine_histogram(measure_cosines({"before": x + 3.0, "after": x}))
        >>> figure.axes[0].get_xlabel()
        'cosine of two random rows'
    """
    figure, axes = _single()
    for (name, share), look in zip(found.shares.items(), _looks(found.shares), strict=True):
        # The fill has no pattern: the outline carries the dashes that tell the sides apart.
        axes.stairs(100 * share, found.edges, fill=True, color=look.color, alpha=0.16)
        axes.stairs(
            100 * share,
            found.edges,
            color=look.color,
            linewidth=1.5,
            linestyle=look.linestyle,
            label=f"{name}, mean {fixed(found.means[name])}",
        )
        axes.axvline(found.means[name], color=look.color, linewidth=0.8, linestyle=":")
    axes.set_xlim(float(found.edges[0]), float(found.edges[-1]))
    axes.set_ylim(bottom=0)
    return _labelled(figure, axes, "cosine of two random rows", "share of pairs, %")


def spectrum(found: Spectra) -> Figure:
    """Draw singular values relative to the first, by rank, on logarithmic axes.

    Args:
        found: As `bertflow.report.measures.measure_spectra` gives it. Values below 1e-4, which are
            rounding or of dimensions that do not vary, lie on the axis.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import measure_spectra
        >>> figure = spectrum(measure_spectra({"before": np.diag([4.0, 2.0])}))
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [1.0, 0.5]
    """
    figure, axes = _single()
    for (name, values), look in zip(found.values.items(), _looks(found.values), strict=True):
        axes.plot(
            np.arange(1, len(values) + 1),
            np.maximum(values, found.floor),
            color=look.color,
            linewidth=1.5,
            linestyle=look.linestyle,
            label=name,
        )
    axes.set_ylim(found.floor, 1.2)
    axes.set_yscale("log")
    axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        _number_logarithms(axis)
    return _labelled(figure, axes, "rank of the singular value", "relative to the first")


def cloud(found: Cloud) -> Figure:
    """Draw each side's rows at length 1 on two axes through the origin, a panel a side.

    All panels have one scale. The cross is the origin, and the arrow goes from it to the mean of
    all rows: what they share. Where the cloud lies at the end of a long arrow, all rows point much
    the same way, and their cosines are high whatever they mean; a calibrated cloud lies around the
    cross.

    Args:
        found: As `bertflow.report.measures.project` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched. Points are
        drawn as an image within it, where there are more than 2,000, so that vector files stay
        small.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import project
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> [axes.get_title(loc="left") for axes in cloud(project({"before": x, "after": x})).axes]
        ['before', 'after']
    """
    return _clouds(found, found.points, titled=True)


def cloud_panel(found: Cloud, name: str) -> Figure:
    """Draw one side of a cloud, at the scale of all sides, without its title."""
    return _clouds(found, [name], titled=False)


def _clouds(found: Cloud, names: Iterable[str], *, titled: bool) -> Figure:
    names = list(names)
    across, upward = found.limits
    tall = float(np.ptp(upward) / np.ptp(across))
    height = PANEL_HEIGHT * tall + (2 if titled else 1) * LABELS
    figure = _figure(PANEL_WIDTH * len(names) + LABELS, height)
    looks = dict(zip(found.points, _looks(found.points), strict=True))
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        _draw_cloud(axes, found, name, looks[name])
        if titled:
            _entitle(axes, _wrapped(name))
    return _settled(figure)


def _draw_cloud(axes: Axes, found: Cloud, name: str, look: Look) -> None:
    points = found.points[name]
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=7,
        color=look.color,
        marker=look.marker,
        alpha=0.45,
        linewidths=0,
        rasterized=len(points) > RASTER,
        gid=".dots",
    )
    axes.plot(
        0, 0, marker="+", markersize=9, markeredgewidth=1.2, color=INK, zorder=3, gid=".origin"
    )
    if found.lengths[name] > LEAST_ARROW:
        x, y = found.means[name].tolist()
        arrow = {"arrowstyle": "->", "color": INK, "shrinkA": 0, "shrinkB": 0, "gid": ".shared"}
        axes.annotate("", (x, y), (0.0, 0.0), arrowprops=arrow)
    axes.set_xlim(*found.limits[0])
    axes.set_ylim(*found.limits[1])
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    first, second = (f"{100 * share:.3g} %" for share in found.explained[name].tolist())
    _name_axes(axes, f"first axis, {first} of squared length", f"second axis, {second}")


def norm_by_frequency(found: WordNorms) -> Figure:
    """Draw norms of word embeddings by frequency rank, and the means of Table 1's ranges.

    Args:
        found: As `bertflow.report.measures.measure_word_norms` gives it. Where it has published
            means, they are drawn as well.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Paper, section 2.2 and Table 1.

    Example:
        >>> import numpy as np
        >>> from bertflow.analysis.frequency import Words
        >>> from bertflow.report.measures import measure_word_norms
        >>> words = Words(["the", "of"], ranks=np.array([0, 3]), rows=np.array([0, 1]))
        >>> found = measure_word_norms(np.eye(2), words, ranges=[(0, 10)])
        >>> norm_by_frequency(found).axes[0].get_ylabel()
        'ℓ2 norm'
    """
    figure, axes = _single()
    color = LOOKS[1].color
    if len(found.words):
        dots = REST | {"s": 4, "label": "words", "gid": ".titled"}
        axes.scatter(found.ranks + 1, found.norms, **dots)
    spans = np.array([(max(group.low, 1), group.high) for group in found.groups], dtype=float)
    norms = [group.norm or Mean(np.nan) for group in found.groups]
    means, least, most, published = (
        np.array(numbers, dtype=float)
        for numbers in (
            [norm.value for norm in norms],
            [norm.low for norm in norms],
            [norm.high for norm in norms],
            [group.published for group in found.groups],
        )
    )
    for values, label, style in (
        (published, "published, BERT-base", {"color": PUBLISHED_COLOR, "linestyle": ":"}),
        (means, "mean of a range", {"color": color, "linewidth": 2.2}),
    ):
        known = np.isfinite(values)
        if known.any():
            axes.hlines(values[known], *spans[known].T, label=label, **{"linewidth": 1.3} | style)
    known = np.isfinite(least) & np.isfinite(most)
    middles = np.sqrt(spans.prod(axis=1))
    axes.vlines(middles[known], least[known], most[known], color=color, linewidth=1.3)
    axes.set_xscale("log")
    _number_logarithms(axes.xaxis)
    return _labelled(figure, axes, "rank of the word's frequency", "ℓ2 norm")


def training_curve(found: TrainingCurve) -> Figure:
    """Draw the loss of a fit over its steps: the mean in windows, and the range within them.

    Args:
        found: As `bertflow.report.measures.summarize_training` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import summarize_training
        >>> figure = training_curve(summarize_training(np.linspace(3.0, 1.0, 100)))
        >>> figure.axes[0].get_ylabel()
        'bits per dimension'
    """
    figure, axes = _single()
    color = LOOKS[1].color
    axes.fill_between(
        found.steps, found.low, found.high, color=color, alpha=0.16, linewidth=0, label="range"
    )
    axes.plot(found.steps, found.mean, color=color, linewidth=1.5, label="mean of a window")
    if found.final is not None:
        label = f"fitted rows, {fixed(found.final, 3)}"
        axes.axhline(found.final, color=PUBLISHED_COLOR, linewidth=1, linestyle="--", label=label)
    axes.set_xlim(0, found.total)
    return _labelled(figure, axes, "step", "bits per dimension")


def score_forest(found: ScoreTable) -> Figure:
    """Draw scores with their 95 % intervals, a band a task, and hollow what was published.

    Args:
        found: Such as `build_report(...).scores`.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        InputError: No row has a score.
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Paper, Table 2, for what is published.

    Example:
        >>> from bertflow.paper.results import CellResult, RowResult, TableResult
        >>> cells = {"stsb": CellResult(value=59.0, low=55, high=62)}
        >>> row = RowResult(label="encoder", cells=cells)
        >>> table = TableResult(title="STS", columns=["stsb"], rows=[row])
        >>> figure = score_forest(ScoreTable(table=table, drawn=[row]))
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['stsb']
    """
    drawn, columns = found.drawn, found.table.columns
    if not found.has_drawn_score:
        raise InputError("no row that is drawn has a score; there is nothing to draw")
    band = SCORE_STEP * (len(drawn) + 1)
    height = band * len(columns) + 0.45 + 0.2 * (len(drawn) + 1)
    figure, axes = _single(height=height)
    for place in range(1, len(columns), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=STRIPE, linewidth=0, zorder=0)
    published_label = found.published_label
    for side, (row, look) in enumerate(zip(drawn, LOOKS, strict=False)):
        value, low, high, published = (
            np.array([getattr(row.cells[name], part) for name in columns], dtype=float)
            for part in ("value", "low", "high", "published")
        )
        shift = (side - (len(drawn) - 1) / 2) / (len(drawn) + 1)
        heights = np.arange(len(columns)) + shift
        if np.isfinite(published).any():
            axes.plot(
                published,
                heights,
                marker="D",
                markersize=4.5,
                markerfacecolor=GROUND,
                markeredgecolor=look.color,
                linestyle="none",
                label=published_label,
                zorder=2,
            )
            published_label = "_"
        axes.hlines(heights, low, high, color=look.color, linewidth=1.4, zorder=3)
        axes.plot(
            value,
            heights,
            marker=look.marker,
            markersize=5.5,
            color=look.color,
            markeredgecolor=GROUND,
            markeredgewidth=0.5,
            linestyle="none",
            label=row.label,
            zorder=4,
        )
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.set_yticks(range(len(columns)), columns)
    return _labelled(figure, axes, found.measure, "")


def edit_distance_scatter(found: EditScatter) -> Figure:
    r"""Draw pairs by similarity and edit distance, a panel for each similarity.

    Pairs that are close stand out. A panel's title gives Spearman's ρ × 100 of its similarity with
    edit distance, over all pairs and over those that are close.

    Args:
        found: As `bertflow.report.measures.relate_to_edits` gives it, such as
            `build_report(...).edits`. The first panel is gold, the others are cosines.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Section 4.4, Figure 2.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import relate_to_edits
        >>> panels = {"gold": np.array([5.0, 4.0, 0.0]), "raw": np.array([0.9, 0.8, 0.7])}
        >>> figure = edit_distance_scatter(relate_to_edits(panels, np.array([1, 2, 30])))
        >>> print(figure.axes[1].get_title(loc="left"))
        raw
        ρ × 100: −100.00, ≤ 4 apart: −100.00
    """
    columns = min(len(found.panels), PANELS_A_ROW)
    rows = math.ceil(len(found.panels) / columns)
    figure = _figure(PANEL_WIDTH * columns + LABELS, PANEL_HEIGHT * rows + LABELS)
    figure.get_layout_engine().set(wspace=0.06, hspace=0.08)  # type: ignore[call-arg, union-attr]
    grid = figure.add_gridspec(rows, columns)
    first: Axes | None = None
    for number, name in enumerate(found.panels):
        axes = figure.add_subplot(grid[divmod(number, columns)], sharey=first)
        first = first or axes
        _draw_edits(axes, found, name)
        _entitle(axes, _wrapped(name), _correlations(found, name))
        if number % columns:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
    assert first is not None
    figure.legend(
        first.collections,
        found.kinds,
        loc="outside lower center",
        ncols=min(columns, 2),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handletextpad=0.2,
    )
    return _settled(figure)


def edits_panel(found: EditScatter, name: str) -> Figure:
    """Draw one panel of the scatter of edit distances, without title and legend."""
    figure = _figure(PANEL_WIDTH + LABELS, PANEL_HEIGHT + LABELS)
    _draw_edits(figure.add_subplot(), found, name)
    return _settled(figure)


def _draw_edits(axes: Axes, found: EditScatter, name: str) -> None:
    values, apart, near = found.panels[name], found.distances, found.is_near
    areas = [
        float(np.clip(large * ROOMY / max(int(part.sum()), 1), small, large))
        for part, (large, small) in ((near, SHORT_AREAS), (~near, REST_AREAS))
    ]
    axes.scatter(values[near], apart[near], s=areas[0], zorder=3, edgecolors=GROUND, **SHORT)
    axes.scatter(values[~near], apart[~near], s=areas[1], zorder=2, **REST)
    is_gold = name == next(iter(found.panels))
    if is_gold and GRADES[0] <= values.min() and 1 < values.max() <= GRADES[1]:
        axes.set_xlim(GRADES[0] - MARGIN, GRADES[1] + MARGIN)
    axes.set_ylim(bottom=min(0.0, float(apart.min())) - 0.03 * float(np.ptp(apart) or 1))
    similarity = "gold similarity" if is_gold else "cosine similarity"
    _name_axes(axes, similarity, f"edit distance ({found.unit})")


def _correlations(found: EditScatter, name: str) -> str:
    whole, near = (
        "undefined" if rho is None else fixed(100 * rho)
        for rho in (found.whole[name], found.near[name])
    )
    return f"ρ × 100: {whole}, ≤ {found.short} apart: {near}"


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file that is then the new one whole, or still the old one.

    The same figure gives the same bytes: no date, and in an SVG no random names. Text in an SVG
    stays text.

    Args:
        figure: Of matplotlib.
        path: .svg, .png (200 dots an inch) or .pdf.

    Raises:
        InputError: Another suffix.
        ModelError: It cannot be written.
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> from tempfile import mkdtemp
        >>> from matplotlib.figure import Figure
        >>> file = Path(mkdtemp()) / "empty.svg"
        >>> save_figure(Figure(), file)
        >>> file.read_text(encoding="utf-8")[:5]
        '<?xml'
    """
    suffix = _known_suffix(Path(path))
    write_bytes(Path(path), file_content(figure, suffix))


def file_content(figure: Figure, suffix: str) -> bytes:
    """The bytes of a figure's file of the kind that a suffix names, such as ".svg"."""
    check_matplotlib()
    import matplotlib

    content = BytesIO()
    with matplotlib.rc_context(SAME_FILES):
        figure.savefig(content, format=suffix[1:], dpi=PNG_DPI, metadata=UNDATED[suffix])
    return content.getvalue()


def check_figure(path: str | Path) -> None:
    """Refuse a file that no figure can be written to, before any work is done for it.

    Raises:
        InputError: Its suffix is none of .svg, .png and .pdf.
        ModelError: It is a folder, or is in none that may be written to.
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> check_figure("scatter.jpg")
        Traceback (most recent call last):
        bertflow.errors.InputError: scatter.jpg must end in .svg, .png or .pdf to hold a figure
    """
    _known_suffix(Path(path))
    check_matplotlib()
    check_writable(path)


def check_matplotlib() -> None:
    """Refuse to go on without matplotlib.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("figures need matplotlib: pip install 'bertflow[report]'")


def _known_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in UNDATED:
        raise InputError(f"{path} must end in .svg, .png or .pdf to hold a figure")
    return suffix


# Layout.


def _figure(width: float, height: float) -> Figure:
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=GROUND, layout="constrained")


def _single(*, height: float = FIGURE_HEIGHT) -> tuple[Figure, Axes]:
    figure = _figure(FIGURE_WIDTH, height)
    return figure, figure.add_subplot()


def _labelled(figure: Figure, axes: Axes, x: str, y: str) -> Figure:
    """Name the axes, put a legend above them, and lay the figure out."""
    _name_axes(axes, x, y)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        legend = figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=1 if max(map(len, labels)) > LEGEND_CHARACTERS else len(labels),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return _settled(figure)


def _settled(figure: Figure) -> Figure:
    """Lay out once: the engine starts from where it left off and would move things in each file."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _name_axes(axes: Axes, x: str, y: str) -> None:
    """Name both axes, keep two lines of the frame, and leave nothing to rcParams."""
    axes.set_xlabel(x, **LABEL)
    axes.set_ylabel(y, **LABEL)
    axes.set_facecolor(GROUND)
    axes.grid(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    axes.tick_params(which="both", color=FAINT, labelcolor=INK, labelsize=8, width=0.8)
    # Minor ticks are shorter; their labels stand in line with those of the major ones all the same.
    axes.tick_params(which="major", length=3, pad=3.5)
    axes.tick_params(which="minor", length=2, pad=4.5)


def _number_logarithms(axis: Axis) -> None:
    """Plain numbers at the powers of ten; over less than two of them at 2 and 5, too."""
    low, high = axis.get_view_interval()
    close = high < 100 * low

    def between(value: float, place: float) -> str:
        return f"{value:,g}" if close and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(between)


def _entitle(axes: Axes, *lines: str) -> None:
    axes.set_title("\n".join(lines), loc="left", linespacing=1.4, parse_math=False, **LABEL)


def _wrapped(name: str) -> str:
    # Not cut: names may be paths that differ at the end or in the middle.
    return "\n".join(textwrap.wrap(name, TITLE_CHARACTERS) or [""])


def _looks(sides: Mapping[str, Array | float]) -> list[Look]:
    return [LOOKS[place % len(LOOKS)] for place in range(len(sides))]
