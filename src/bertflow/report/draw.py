"""Figures for notebooks, papers and the page of `bertflow report`.

Each function draws numbers that `bertflow.report.measures` gives, and returns a matplotlib figure
for `save_figure`. The caller's settings of matplotlib neither count nor change. Without matplotlib
every function raises MissingDependencyError, whose message is the pip line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import numpy as np

from bertflow.display.grid import fixed, hundredfold
from bertflow.errors import InputError, need
from bertflow.io.files import check_writable, write_bytes
from bertflow.report.measures import (
    LEAST_SINGULAR,
    Cloud,
    CosineHistogram,
    EditScatter,
    Spectra,
    TrainingCurve,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")

# None leaves the date out, so that files are the same every time.
UNDATED: Any = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}
PNG_DPI = 200


class Look(NamedTuple):
    """Colour, line and marker of a side, as matplotlib names them."""

    color: str
    linestyle: Any
    marker: str


# The first side, and the second; they differ without colour, too.
# Source of the hues: Okabe and Ito (2008), for any colour vision.
LOOKS = (Look("#d55e00", (0, (5.0, 3.0)), "^"), Look("#0072b2", "solid", "o"))
FINAL_COLOR = "#57606a"
INK, FAINT, GROUND = "#262626", "#8c8c8c", "#ffffff"
# Light and round for the many, dark and pointed for the few.
REST: dict[str, Any] = {"color": "#56a0d3", "marker": "o", "alpha": 0.4, "linewidths": 0, "s": 9}
SHORT: dict[str, Any] = {"color": "#b34700", "marker": "^", "alpha": 0.9, "linewidths": 0.4}
SHORT |= {"edgecolors": GROUND, "zorder": 3, "s": 22}
STYLE = "bertflow.report.figures"
PANEL, LABELS = 3.1, 0.5
TITLE_CHARACTERS = 32
# Size of a single picture in inches: a column of a paper.
FIGURE_WIDTH, FIGURE_HEIGHT = 4.2, 3.0
# A shorter arrow could not be seen.
LEAST_ARROW = 0.05
# Longer labels stand below each other.
LEGEND_CHARACTERS = 20


def check_matplotlib() -> None:
    """Refuse to go on without matplotlib; the message is the pip line."""
    need("drawing", "report", "matplotlib")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style, and lay out the figure once: each file would move things again."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        check_matplotlib()
        import matplotlib.style

        with matplotlib.style.context(["default", STYLE]):
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

    return drawn


@styled
def cosine_histogram(found: CosineHistogram) -> Figure:
    """Draw histograms of the cosines of random pairs over each other, and their means.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import measure_cosines
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> figure = cosine_histogram(measure_cosines({"before": x + 3.0, "after": x}))
        >>> figure.axes[0].get_xlabel()
        'cosine of two random rows'
    """
    figure, axes = _single()
    for (name, share), look in zip(found.shares.items(), LOOKS, strict=False):
        mean = found.means[name]
        # The fill has no pattern: the outline carries the dashes that tell the sides apart.
        axes.stairs(100 * share, found.edges, fill=True, color=look.color, alpha=0.16)
        line = {"color": look.color, "linestyle": look.linestyle, "linewidth": 1.5}
        label = f"{name}, mean {fixed(mean)}"
        axes.stairs(100 * share, found.edges, label=label, **line)
        axes.axvline(mean, color=look.color, linewidth=0.8, linestyle=":")
    axes.set(xlabel="cosine of two random rows", ylabel="share of pairs, %")
    axes.set_xlim(float(found.edges[0]), float(found.edges[-1]))
    axes.set_ylim(bottom=0)
    return _with_legend(figure, axes)


@styled
def spectrum(found: Spectra) -> Figure:
    """Draw singular values by rank, on logarithmic axes; those below 1e-4 lie on the axis.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import measure_spectra
        >>> figure = spectrum(measure_spectra({"before": np.diag([4.0, 2.0])}))
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [1.0, 0.5]
    """
    figure, axes = _single()
    for (name, values), look in zip(found.values.items(), LOOKS, strict=False):
        ranks, shown = np.arange(1, len(values) + 1), np.maximum(values, LEAST_SINGULAR)
        axes.plot(ranks, shown, label=name, color=look.color, linestyle=look.linestyle)
    axes.set(xlabel="rank of the singular value", ylabel="relative to the first")
    axes.set(xscale="log", yscale="log", ylim=(LEAST_SINGULAR, 1.2))
    _number_logarithms(axes.xaxis)
    _number_logarithms(axes.yaxis)
    return _with_legend(figure, axes)


@styled
def cloud(found: Cloud, side: str | None = None) -> Figure:
    """Draw each side's rows at length 1 on two axes through the origin, a panel a side.

    All panels have one scale. The cross is the origin, and the arrow goes from it to the mean of
    all rows. If a `side` is named it is drawn alone, without its title.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import project
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> [axes.get_title(loc="left") for axes in cloud(project({"before": x, "after": x})).axes]
        ['before', 'after']
    """
    across, upward = found.limits
    tall = float(np.ptp(upward) / np.ptp(across))
    looks = dict(zip(found.points, LOOKS, strict=False))
    names = [side] if side else list(looks)
    figure = _figure(PANEL * len(names) + LABELS, PANEL * tall + (1 if side else 2) * LABELS)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        _draw_cloud(axes, found, name, looks[name])
        if side is None:
            _entitle(axes, name)
    return figure


def _draw_cloud(axes: Axes, found: Cloud, name: str, look: Look) -> None:
    dots: dict[str, Any] = {"color": look.color, "marker": look.marker, "gid": ".dots"}
    x, y = found.points[name].T
    axes.scatter(x, y, s=7, alpha=0.45, linewidths=0, **dots)
    axes.plot(0, 0, "+", markersize=9, markeredgewidth=1.2, color=INK, zorder=3, gid=".origin")
    if found.lengths[name] > LEAST_ARROW:
        arrow = {"arrowstyle": "->", "color": INK, "shrinkA": 0, "shrinkB": 0, "gid": ".shared"}
        axes.annotate("", found.means[name].tolist(), (0.0, 0.0), arrowprops=arrow)
    axes.set(xlim=found.limits[0], ylim=found.limits[1], aspect="equal")
    axes.locator_params(nbins=5)
    first, second = (f"{100 * share:.3g} %" for share in found.explained[name].tolist())
    axes.set(xlabel=f"first axis, {first} of squared length", ylabel=f"second axis, {second}")


@styled
def training_curve(found: TrainingCurve) -> Figure:
    """Draw the loss of a fit over its steps: the mean and the range in windows of steps.

    Example:
        >>> import numpy as np
        >>> from bertflow.report.measures import summarize_training
        >>> figure = training_curve(summarize_training(np.linspace(3.0, 1.0, 100)))
        >>> figure.axes[0].get_ylabel()
        'bits per dimension'
    """
    figure, axes = _single()
    color = LOOKS[1].color
    area: dict[str, Any] = {"color": color, "alpha": 0.16, "linewidth": 0, "label": "range"}
    axes.fill_between(found.steps, found.low, found.high, **area)
    axes.plot(found.steps, found.mean, color=color, label="mean of a window")
    if found.final is not None:
        label = f"fitted rows, {fixed(found.final, 3)}"
        axes.axhline(found.final, color=FINAL_COLOR, linewidth=1, linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="bits per dimension", xlim=(0, found.total))
    return _with_legend(figure, axes)


@styled
def edit_distance_scatter(found: EditScatter) -> Figure:
    r"""Draw pairs by similarity and edit distance, a panel for each similarity.

    Short pairs stand out. Titles give Spearman's ρ × 100 with edit distance, over all pairs and
    over the short ones.

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
    figure = _figure(PANEL * len(found.panels) + LABELS, PANEL + LABELS)
    near = found.distances <= found.short
    panels = figure.subplots(1, len(found.panels), sharey=True, squeeze=False)[0]
    for (name, values), axes in zip(found.panels.items(), panels, strict=True):
        for part, how in ((near, SHORT), (~near, REST)):
            axes.scatter(values[part], found.distances[part], **how)
        similarity = "gold" if name == next(iter(found.panels)) else "cosine"
        axes.set(xlabel=f"{similarity} similarity", ylabel=f"edit distance ({found.unit})")
        axes.label_outer()
        whole, short = (hundredfold(rho[name]) for rho in (found.whole, found.near))
        _entitle(axes, name, f"ρ × 100: {whole}, ≤ {found.short} apart: {short}")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[call-arg, union-attr]
    kinds = [
        f"at most {found.short} {found.unit} apart ({near.sum():,} pairs)",
        f"the others ({(~near).sum():,})",
    ]
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(panels), 2)}
    place |= {"fontsize": 9, "handletextpad": 0.2}
    figure.legend(panels[0].collections, kinds, **place)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure of matplotlib as .svg, .png (200 dots an inch) or .pdf, whole or not at all.

    The same figure gives the same bytes. Text in an SVG stays text.

    Raises:
        InputError: Another suffix.
        ModelError: It cannot be written.

    Example:
        >>> from tempfile import mkdtemp
        >>> from matplotlib.figure import Figure
        >>> file = Path(mkdtemp()) / "empty.svg"
        >>> save_figure(Figure(), file)
        >>> file.read_text(encoding="utf-8")[:5]
        '<?xml'
    """
    write_bytes(path, file_content(figure, _known_suffix(path)))


def file_content(figure: Figure, suffix: str, *, salt: str = "bertflow") -> bytes:
    """The bytes of a figure's file, such as ".svg", whose ids are named after the salt."""
    import matplotlib.style

    content = BytesIO()
    with matplotlib.style.context(["default", STYLE, {"svg.hashsalt": salt}]):
        figure.savefig(content, format=suffix[1:], dpi=PNG_DPI, metadata=UNDATED[suffix])
    return content.getvalue()


def check_figure(path: str | Path) -> None:
    """Refuse a file that no figure can be written to, before any work is done for it."""
    _known_suffix(path)
    check_matplotlib()
    check_writable(path)


def _known_suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in UNDATED:
        raise InputError(f"{path} must end in .svg, .png or .pdf to hold a figure")
    return suffix


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _single(*, height: float = FIGURE_HEIGHT) -> tuple[Figure, Axes]:
    figure = _figure(FIGURE_WIDTH, height)
    return figure, figure.add_subplot()


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    """Put a legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        columns = 1 if max(map(len, labels)) > LEGEND_CHARACTERS else len(labels)
        figure.legend(handles, labels, loc="outside upper left", ncols=columns)
    return figure


def _number_logarithms(axis: Axis) -> None:
    """Plain numbers at the powers of ten; over less than two of them at 2 and 5, too."""
    low, high = axis.get_view_interval()
    close = high < 100 * low

    def between(value: float, place: float) -> str:
        return f"{value:,g}" if close and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(between)


def _entitle(axes: Axes, name: str, *lines: str) -> None:
    # Not cut: names may be paths that differ at the end or in the middle.
    wrapped: Iterable[str] = textwrap.wrap(name, TITLE_CHARACTERS) or [""]
    axes.set_title("\n".join([*wrapped, *lines]), linespacing=1.4)
