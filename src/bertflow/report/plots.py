"""Figures for notebooks and papers, and their files; drawing changes nothing outside of them.

Each takes the numbers that `bertflow.report.figures` measures, which the page of `bertflow report`
draws, too, and gives a matplotlib figure for `save_figure`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertflow.calibrators.base import Array
from bertflow.errors import InputError, MissingDependencyError
from bertflow.io.files import check_writable, write_bytes
from bertflow.report.figures import (
    Cloud,
    CosineHistogram,
    EditScatter,
    ScoreTable,
    Spectra,
    TrainingCurve,
    WordNorms,
)
from bertflow.report.palette import LOOKS, PUBLISHED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What would say when a file was written, by format: None leaves it out.
UNDATED: dict[str, dict[str, None]] = {
    ".svg": {"Date": None},
    ".png": {},
    ".pdf": {"CreationDate": None},
}
PNG_DPI = 200
# Light and round for the many, dark and pointed for the few: told apart without colour, too.
REST: dict[str, Any] = {"color": "#56a0d3", "marker": "o", "s": 9, "alpha": 0.4, "linewidths": 0}
SHORT: dict[str, Any] = {"color": "#b34700", "marker": "^", "alpha": 0.9, "linewidths": 0.4}
# Areas of the few's markers in points²: large where they are few, and smaller as they crowd.
LARGE, SMALL, ROOMY = 26.0, 14.0, 60
INK, FAINT = "#262626", "#8c8c8c"
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
LEAST_ARROW = 0.02
# More points than this are an image within a vector file.
RASTER = 2000
# Longer labels stand below each other.
LEGEND_CHARACTERS = 20


def cosine_histogram(found: CosineHistogram) -> Figure:
    """Draw histograms of the cosines of random pairs, one over the other, and their means.

    Args:
        found: As `bertflow.report.figures.measure_cosines` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Ethayarajh (2019), for mean cosine as the measure of anisotropy.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.figures import measure_cosines
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> figure = cosine_histogram(measure_cosines({"before": x + 3.0, "after": x}))
        >>> figure.axes[0].get_xlabel()
        'cosine of two random rows'
    """
    figure, axes = _single()
    for (name, share), look in zip(found.shares.items(), _looks(found.shares), strict=True):
        # Of one colour throughout: the outline carries the pattern that tells the sides apart.
        axes.stairs(100 * share, found.edges, fill=True, color=look.color, alpha=0.16)
        axes.stairs(
            100 * share,
            found.edges,
            color=look.color,
            linewidth=1.5,
            linestyle=_dashes(look),
            label=f"{name}, mean {_number(found.means[name], 2)}",
        )
        axes.axvline(found.means[name], color=look.color, linewidth=0.8, linestyle=":")
    axes.set_xlim(float(found.edges[0]), float(found.edges[-1]))
    axes.set_ylim(bottom=0)
    return _labelled(figure, axes, "cosine of two random rows", "share of pairs, %")


def spectrum(found: Spectra) -> Figure:
    """Draw singular values relative to the first, by rank, on logarithmic axes.

    Args:
        found: As `bertflow.report.figures.measure_spectra` gives it. Values below 1e-4, which are
            rounding or of dimensions that do not vary, lie on the axis.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> from bertflow.report.figures import measure_spectra
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
            linestyle=_dashes(look),
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=found.floor)
    return _labelled(figure, axes, "rank of the singular value", "relative to the first")


def cloud(found: Cloud) -> Figure:
    """Draw each side's rows at length 1 on two axes through the origin, a panel a side.

    All panels have one scale. The cross is the origin, and the arrow goes from it to the mean of
    all rows: what they share. Where the cloud lies at the end of a long arrow, all rows point much
    the same way, and their cosines are high whatever they mean; a calibrated cloud lies around the
    cross.

    Args:
        found: As `bertflow.report.figures.project` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched. Points are
        drawn as an image within it, where there are more than 2,000, so that vector files stay
        small.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.figures import project
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> [axes.get_title(loc="left") for axes in cloud(project({"before": x, "after": x})).axes]
        ['before', 'after']
    """
    _check_matplotlib()
    from matplotlib.figure import Figure

    count = len(found.points)
    across, upward = found.limits
    tall = float(np.ptp(upward) / np.ptp(across))
    figure = Figure(
        figsize=(PANEL_WIDTH * count + LABELS, PANEL_HEIGHT * tall + 2 * LABELS),
        facecolor="white",
        layout="constrained",
    )
    for place, ((name, points), look) in enumerate(
        zip(found.points.items(), _looks(found.points), strict=True)
    ):
        axes = figure.add_subplot(1, count, place + 1)
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=7,
            color=look.color,
            marker=look.marker,
            alpha=0.45,
            linewidths=0,
            rasterized=len(points) > RASTER,
        )
        axes.plot(0, 0, marker="+", markersize=9, markeredgewidth=1.2, color=INK, zorder=3)
        if found.lengths[name] > LEAST_ARROW:
            axes.annotate(
                "",
                (float(found.means[name][0]), float(found.means[name][1])),
                (0.0, 0.0),
                arrowprops={"arrowstyle": "->", "color": INK, "shrinkA": 0, "shrinkB": 0},
            )
        axes.set_xlim(*across)
        axes.set_ylim(*upward)
        axes.set_aspect("equal")
        axes.locator_params(nbins=5)
        _quieten(axes)
        first, second = (f"{100 * share:.3g} %" for share in found.explained[name].tolist())
        axes.set_title(
            "\n".join(textwrap.wrap(name, TITLE_CHARACTERS) or [""]),
            loc="left",
            fontsize=9,
            color=INK,
            parse_math=False,
        )
        axes.set_xlabel(f"first axis, {first} of squared length", **LABEL)
        axes.set_ylabel(f"second axis, {second}", **LABEL)
    return _settled(figure)


def norm_by_frequency(found: WordNorms) -> Figure:
    """Draw norms of word embeddings by frequency rank, and the means of Table 1's ranges.

    Args:
        found: As `bertflow.report.figures.measure_word_norms` gives it. Where it has published
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
        >>> from bertflow.report.figures import measure_word_norms
        >>> words = Words(["the", "of"], ranks=np.array([0, 3]), rows=np.array([0, 1]))
        >>> found = measure_word_norms(np.eye(2), words, ranges=[(0, 10)])
        >>> norm_by_frequency(found).axes[0].get_ylabel()
        'ℓ2 norm'
    """
    figure, axes = _single()
    look, named = LOOKS[1], False
    if len(found.words):
        axes.scatter(
            found.ranks + 1,
            found.norms,
            s=4,
            color=REST["color"],
            alpha=REST["alpha"],
            linewidths=0,
            label="words",
        )
    for group in found.groups:
        span = max(group.low, 1), group.high
        if group.published is not None:
            axes.hlines(
                group.published,
                *span,
                color=PUBLISHED.color,
                linewidth=1.3,
                linestyle=":",
                label="_" if named else "published, BERT-base",
            )
            named = True
        if group.value is None:
            continue
        drawn = any(one.get_label() == "mean of a range" for one in axes.collections)
        axes.hlines(
            group.value,
            *span,
            color=look.color,
            linewidth=2.2,
            label="_" if drawn else "mean of a range",
        )
        if group.least is not None and group.most is not None:
            axes.vlines(
                math.sqrt(span[0] * span[1]),
                group.least,
                group.most,
                color=look.color,
                linewidth=1.3,
            )
    axes.set_xscale("log")
    return _labelled(figure, axes, "rank of the word's frequency", "ℓ2 norm")


def training_curve(found: TrainingCurve) -> Figure:
    """Draw the loss of a fit over its steps: the mean in windows, and the range within them.

    Args:
        found: As `bertflow.report.figures.summarize_training` gives it.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.figures import summarize_training
        >>> figure = training_curve(summarize_training(np.linspace(3.0, 1.0, 100)))
        >>> figure.axes[0].get_ylabel()
        'bits per dimension'
    """
    figure, axes = _single()
    look = LOOKS[1]
    axes.fill_between(
        found.steps, found.low, found.high, color=look.color, alpha=0.16, linewidth=0, label="range"
    )
    axes.plot(found.steps, found.mean, color=look.color, linewidth=1.5, label="mean of a window")
    if found.final is not None:
        axes.axhline(
            found.final,
            color=PUBLISHED.color,
            linewidth=1,
            linestyle="--",
            label=f"fitted rows, {_number(found.final, 3)}",
        )
    axes.set_xlim(0, found.total)
    return _labelled(figure, axes, "step", "bits per dimension")


def score_forest(found: ScoreTable) -> Figure:
    """Draw scores with their 95 % intervals, a band a task, and hollow what was published.

    Args:
        found: Such as `build_report(...).scores`; of its rows the first two that are marked as
            drawn.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        InputError: No row has a score.
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Paper, Table 2, for what is published.

    Example:
        >>> from bertflow.report.figures import ScoreCell, ScoreRow
        >>> row = ScoreRow(label="encoder", cells={"stsb": ScoreCell(value=59.0, low=55, high=62)})
        >>> table = ScoreTable(title="STS", measure="Spearman × 100", columns=["stsb"], rows=[row])
        >>> [label.get_text() for label in score_forest(table).axes[0].get_yticklabels()]
        ['stsb']
    """
    drawn = [row for row in found.rows if row.drawn][:2]
    if not any(cell.value is not None for row in drawn for cell in row.cells.values()):
        raise InputError("no row that is drawn has a score; there is nothing to draw")
    band = SCORE_STEP * (len(drawn) + 1)
    height = band * len(found.columns) + 0.45 + 0.2 * (len(drawn) + 1)
    figure, axes = _single(height=height)
    published_named = False
    for place, column in enumerate(found.columns):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color="#f3f4f6", linewidth=0, zorder=0)
        for side, (row, look) in enumerate(zip(drawn, LOOKS, strict=False)):
            cell = row.cells[column]
            y = place + (side - (len(drawn) - 1) / 2) / (len(drawn) + 1)
            if cell.published is not None:
                axes.plot(
                    cell.published,
                    y,
                    marker=PUBLISHED.marker,
                    markersize=4.5,
                    markerfacecolor="white",
                    markeredgecolor=look.color,
                    linestyle="none",
                    label="_" if published_named else _published_label(found),
                    zorder=2,
                )
                published_named = True
            if cell.value is None:
                continue
            if cell.low is not None and cell.high is not None:
                axes.hlines(y, cell.low, cell.high, color=look.color, linewidth=1.4, zorder=3)
            axes.plot(
                cell.value,
                y,
                marker=look.marker,
                markersize=5.5,
                color=look.color,
                markeredgecolor="white",
                markeredgewidth=0.5,
                linestyle="none",
                label="_" if any(one.get_label() == row.label for one in axes.lines) else row.label,
                zorder=4,
            )
    axes.set_ylim(len(found.columns) - 0.5, -0.5)
    axes.set_yticks(range(len(found.columns)), found.columns)
    return _labelled(figure, axes, found.measure, "")


def _published_label(found: ScoreTable) -> str:
    whose = dict.fromkeys(
        row.published_for for row in found.rows if row.drawn and row.published_for
    )
    return f"published for {', '.join(whose)}" if whose else "published"


def edit_distance_scatter(found: EditScatter) -> Figure:
    r"""Draw pairs by similarity and edit distance, a panel for each similarity.

    Pairs that are close stand out. A panel's title gives Spearman's ρ × 100 of its similarity with
    edit distance, over all pairs and over those that are close.

    Args:
        found: As `bertflow.report.figures.relate_to_edits` gives it, such as
            `build_report(...).edits`. The first panel is gold, the others are cosines.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Section 4.4, Figure 2.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.figures import relate_to_edits
        >>> panels = {"gold": np.array([5.0, 4.0, 0.0]), "raw": np.array([0.9, 0.8, 0.7])}
        >>> figure = edit_distance_scatter(relate_to_edits(panels, np.array([1, 2, 30])))
        >>> print(figure.axes[1].get_title(loc="left"))
        raw
        ρ × 100: −100.00, ≤ 4 apart: −100.00
    """
    _check_matplotlib()
    from matplotlib.figure import Figure

    panels, apart = found.panels, found.distances
    columns = min(len(panels), PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(PANEL_WIDTH * columns + LABELS, PANEL_HEIGHT * rows + LABELS),
        facecolor="white",
        layout="constrained",
    )
    figure.get_layout_engine().set(wspace=0.06, hspace=0.08)  # type: ignore[call-arg, union-attr]
    grid = figure.add_gridspec(rows, columns)
    first: Axes | None = None
    for number, (name, values) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[divmod(number, columns)], sharey=first)
        first = first or axes
        _draw_panel(axes, values, apart, found.is_near)
        _quieten(axes)
        axes.set_title(
            _title(name, found),
            loc="left",
            fontsize=9,
            color=INK,
            linespacing=1.4,
            parse_math=False,
        )
        if number == 0 and _is_graded(values):
            axes.set_xlim(GRADES[0] - MARGIN, GRADES[1] + MARGIN)
        axes.set_xlabel("gold similarity" if number == 0 else "cosine similarity", **LABEL)
        if number % columns == 0:
            axes.set_ylabel(f"edit distance ({found.unit})", **LABEL)
        else:
            axes.tick_params(labelleft=False)
    assert first is not None
    first.set_ylim(bottom=min(0.0, float(apart.min())) - 0.03 * float(np.ptp(apart) or 1))
    near = int(found.is_near.sum())
    figure.legend(
        first.collections,
        [
            f"at most {found.short} {found.unit} apart ({near:,} pairs)",
            f"the others ({len(apart) - near:,})",
        ],
        loc="outside lower center",
        ncols=min(columns, 2),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handletextpad=0.2,
    )
    return _settled(figure)


def _draw_panel(axes: Axes, values: Array, apart: Array, near: Array) -> None:
    area = float(np.clip(LARGE * ROOMY / max(int(near.sum()), 1), SMALL, LARGE))
    axes.scatter(values[near], apart[near], s=area, zorder=3, edgecolors="white", **SHORT)
    axes.scatter(values[~near], apart[~near], zorder=2, **REST)


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
    path = Path(path)
    suffix = _known_suffix(path)
    _check_matplotlib()
    import matplotlib

    content = BytesIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "bertflow", "svg.fonttype": "none", "pdf.fonttype": 42}
    ):
        figure.savefig(content, format=suffix[1:], dpi=PNG_DPI, metadata=UNDATED[suffix])
    write_bytes(path, content.getvalue())


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
    _check_matplotlib()
    check_writable(path)


def _known_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in UNDATED:
        raise InputError(f"{path} must end in .svg, .png or .pdf to hold a figure")
    return suffix


def _check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("figures need matplotlib: pip install 'bertflow[report]'")


def _title(name: str, found: EditScatter) -> str:
    # Wrapped, not cut: names may be paths that differ at the end or in the middle.
    lines = textwrap.wrap(name, TITLE_CHARACTERS) or [""]
    whole, close = (
        "undefined" if rho is None else _number(100 * rho, 2)
        for rho in (found.whole[name], found.near[name])
    )
    return "\n".join([*lines, f"ρ × 100: {whole}, ≤ {found.short} apart: {close}"])


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _is_graded(gold: Array) -> bool:
    return bool(GRADES[0] <= gold.min() and 1 < gold.max() <= GRADES[1])


def _single(*, height: float = FIGURE_HEIGHT) -> tuple[Figure, Axes]:
    """A figure of one picture, a column of a paper wide."""
    _check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(FIGURE_WIDTH, height), facecolor="white", layout="constrained")
    return figure, figure.add_subplot()


def _labelled(figure: Figure, axes: Axes, x: str, y: str) -> Figure:
    """Name the axes, say above them what is what, and lay the figure out."""
    _quieten(axes)
    axes.set_xlabel(x, **LABEL)
    axes.set_ylabel(y, **LABEL)
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


def _looks(sides: Mapping[str, Any]) -> list[Look]:
    return [LOOKS[place % len(LOOKS)] for place in range(len(sides))]


def _dashes(look: Look) -> Any:
    return (0, look.dashes) if look.dashes else "solid"


def _quieten(axes: Axes) -> None:
    """Leave the frame's two lines that are read against, and say outright what rcParams might."""
    axes.set_facecolor("white")
    axes.grid(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=8, length=3, width=0.8)
