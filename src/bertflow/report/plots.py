"""Figures, and their files; drawing them changes nothing outside of them."""

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
from bertflow.calibrators.storage import check_writable, write_bytes
from bertflow.errors import InputError, MissingDependencyError
from bertflow.evaluation.correlation import correlate

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


def edit_distance_scatter(
    panels: Mapping[str, Array],
    distances: Array,
    *,
    short: int = 4,
    unit: str = "characters",
) -> Figure:
    r"""Draw pairs by similarity and edit distance, a panel for each similarity.

    Pairs at most `short` apart stand out. A panel's title gives Spearman's ρ × 100 of its
    similarity with edit distance, over all pairs and over the short ones.

    Args:
        panels: By name, similarities of N pairs, shape (N,) each, NaN where there is none: such
            pairs are in no panel. The first is gold, the others are cosines.
        distances: Edit distances, shape (N,).
        short: Pairs at most so far apart are highlighted.
        unit: What the distances count, for the labels.

    Returns:
        The figure, for `save_figure`; no global state of matplotlib has been touched.

    Raises:
        InputError: No panel, shapes that differ, or no pair that has every similarity.
        MissingDependencyError: matplotlib is not there; the message is the pip line.

    Source:
        Section 4.4, Figure 2.

    Example:
        >>> import numpy as np
        >>> panels = {"gold": np.array([5.0, 4.0, 0.0]), "raw": np.array([0.9, 0.8, 0.7])}
        >>> figure = edit_distance_scatter(panels, np.array([1, 2, 30]))
        >>> print(figure.axes[1].get_title(loc="left"))
        raw
        ρ × 100: −100.00, ≤ 4 apart: −100.00
    """
    _check_matplotlib()
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("there is no panel to draw; give a similarity at least")
    for name, values in panels.items():
        if values.shape != distances.shape or values.ndim != 1:
            raise InputError(
                f"{name} must have a value for each of the {distances.size} edit distances, "
                f"got shape {values.shape}"
            )
    stacked: Array = np.stack([*panels.values()]).astype(np.float64)
    used = np.flatnonzero(np.isfinite(stacked).all(axis=0))
    if len(used) == 0:
        raise InputError(
            f"none of the {len(distances)} pairs has every similarity; nothing to draw"
        )
    apart = distances[used]
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
        _draw_panel(axes, values[used], apart, short)
        _quieten(axes)
        axes.set_title(
            _title(name, values[used], apart, short),
            loc="left",
            fontsize=9,
            color=INK,
            linespacing=1.4,
            parse_math=False,
        )
        if number == 0 and _is_graded(values[used]):
            axes.set_xlim(GRADES[0] - MARGIN, GRADES[1] + MARGIN)
        axes.set_xlabel("gold similarity" if number == 0 else "cosine similarity", **LABEL)
        if number % columns == 0:
            axes.set_ylabel(f"edit distance ({unit})", **LABEL)
        else:
            axes.tick_params(labelleft=False)
    assert first is not None
    first.set_ylim(bottom=min(0.0, float(apart.min())) - 0.03 * float(np.ptp(apart) or 1))
    near = int((apart <= short).sum())
    figure.legend(
        first.collections,
        [f"at most {short} {unit} apart ({near:,} pairs)", f"the others ({len(apart) - near:,})"],
        loc="outside lower center",
        ncols=min(columns, 2),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handletextpad=0.2,
    )
    # Laid out once: the engine starts from where it left off and would move things in each file.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _draw_panel(axes: Axes, values: Array, apart: Array, short: int) -> None:
    near = apart <= short
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


def _title(name: str, values: Array, apart: Array, short: int) -> str:
    near = apart <= short
    whole, close = _rho(values, apart), _rho(values[near], apart[near])
    # Wrapped, not cut: names may be paths that differ at the end or in the middle.
    lines = textwrap.wrap(name, TITLE_CHARACTERS) or [""]
    return "\n".join([*lines, f"ρ × 100: {whole}, ≤ {short} apart: {close}"])


def _rho(values: Array, apart: Array) -> str:
    found = correlate(values, apart).spearman
    return "undefined" if found is None else f"{100 * found:.2f}".replace("-", "−")


def _is_graded(gold: Array) -> bool:
    return bool(GRADES[0] <= gold.min() and 1 < gold.max() <= GRADES[1])


def _quieten(axes: Axes) -> None:
    """Leave the frame's two lines that are read against, and say outright what rcParams might."""
    axes.set_facecolor("white")
    axes.grid(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=8, length=3, width=0.8)
