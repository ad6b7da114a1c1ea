"""Pictures for the page: SVG of a few hundred numbers, drawn without any library.

Sizes are in the units of a view box 360 wide, which a phone shows one to one. Colours are classes
of the style sheet, so that a picture follows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from bertflow.calibrators.base import Array
from bertflow.report.figures import (
    Cloud,
    CosineHistogram,
    EditScatter,
    ScoreTable,
    Spectra,
    TrainingCurve,
    WordNorms,
)

WIDTH, HEIGHT = 360.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 12.0, 36.0
TICKS = 5
# Half of what a digit is wide, in the size that ticks have.
HALF_DIGIT = 3.2
# Three panels side by side are narrower.
NARROW = 270.0
MINUS = "−"
# Numbers from the first up, and below the second, are shown by their power of ten.
LARGE, SMALL = 1e5, 0.01
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
# An arrow that is shorter cannot be seen; and how long its head is.
SHORTEST, HEAD = 7.0, 6.0


@dataclass(frozen=True)
class Axis:
    """From values to places.

    Attributes:
        low: The value at the beginning.
        high: The value at the end.
        start: The place of the first.
        end: The place of the last.
        log: Whether places go by the logarithm.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value.

        Example:
            >>> Axis(0.0, 10.0, 100.0, 200.0)(5.0)
            150.0
        """
        turn: Callable[[float], float] = math.log10 if self.log else float
        span = turn(self.high) - turn(self.low)
        share = (turn(value) - turn(self.low)) / span if span else 0.5
        return self.start + share * (self.end - self.start)

    def places(self, values: Array) -> Array:
        """Those of many values."""
        return np.array([self(float(value)) for value in values])


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers within a range, evenly apart.

    Example:
        >>> ticks(0.0, 1.0), ticks(-0.3, 0.9)
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8])
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.7 * raw)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) + 0.0 for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, and where they are fewer than three, their 2 and 5 folds."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**n for n in powers if low * 0.999 <= 10.0**n <= high * 1.001]
    if len(tens) > 2:
        return tens
    return [
        factor * 10.0**n
        for n in powers
        for factor in (1, 2, 5)
        if low * 0.999 <= factor * 10.0**n <= high * 1.001
    ]


def number(value: float) -> str:
    """A number on an axis, short.

    Example:
        >>> number(0.2), number(-1000.0), number(5000.0), number(0.001), number(-2.5e6)
        ('0.2', '−1,000', '5,000', '10⁻³', '−2.5·10⁶')
    """
    if value and not SMALL <= abs(value) < LARGE:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        factor = f"{value / 10.0**power:.3g}".replace("-", MINUS)
        raised = f"10{str(power).translate(RAISED)}"
        return {"1": raised, f"{MINUS}1": f"{MINUS}{raised}"}.get(factor, f"{factor}·{raised}")
    text = f"{value:,.0f}" if abs(value) >= 10 and value == round(value) else f"{value:,.4g}"
    return text.replace("-", MINUS)


def drawing(body: str, label: str, *, height: float = HEIGHT, width: float = WIDTH) -> str:
    """An SVG that a screen reader takes for one picture."""
    return (
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}" focusable="false">{body}</svg>'
    )


def axes(
    x: Axis,
    y: Axis,
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
    grid: bool = True,
) -> str:
    """Two axes with their ticks, and faint lines to read heights from."""
    parts = []
    for value in _ticks(y) if y_ticks is None else y_ticks:
        place = y(value)
        if grid:
            parts.append(f'<path class="grid" d="M{x.start:.1f} {place:.1f}H{x.end:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{x.start - 5:.1f}" y="{place + 3.5:.1f}" '
            f'text-anchor="end">{number(value)}</text>'
        )
    for value in _ticks(x) if x_ticks is None else x_ticks:
        place, told = x(value), number(value)
        parts.append(f'<path class="axis" d="M{place:.1f} {y.start:.1f}v4"/>')
        # Long numbers at the end stay within the picture.
        ends = place + HALF_DIGIT * len(told) > x.end + RIGHT
        parts.append(
            f'<text class="tick" x="{x.end + RIGHT if ends else place:.1f}" y="{y.start + 15:.1f}" '
            f'text-anchor="{"end" if ends else "middle"}">{told}</text>'
        )
    parts.append(f'<path class="axis" d="M{x.start:.1f} {y.start:.1f}H{x.end:.1f}"/>')
    parts.append(
        f'<text class="name" x="{(x.start + x.end) / 2:.1f}" y="{y.start + 31:.1f}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
    )
    middle = (y.start + y.end) / 2
    parts.append(
        f'<text class="name" transform="translate(11 {middle:.1f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _ticks(axis: Axis) -> list[float]:
    return (log_ticks if axis.log else ticks)(axis.low, axis.high)


def _frame(
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    logs: tuple[bool, bool] = (False, False),
    width: float = WIDTH,
) -> tuple[Axis, Axis]:
    return (
        Axis(*x, LEFT, width - RIGHT, log=logs[0]),
        Axis(*y, HEIGHT - BOTTOM, TOP, log=logs[1]),
    )


def _path(x: Array, y: Array) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def cosines_chart(found: CosineHistogram, label: str) -> str:
    """Histograms of cosines, one over the other, each with its mean."""
    top = 100 * max(float(share.max()) for share in found.shares.values())
    x, y = _frame((float(found.edges[0]), 1.0), (0.0, 1.08 * top))
    parts = [axes(x, y, x_label="cosine of two random rows", y_label="share of pairs, %")]
    edges = np.repeat(x.places(found.edges), 2)[1:-1]
    for side, (name, share) in enumerate(found.shares.items()):
        heights = np.repeat(y.places(100 * share), 2)
        line = _path(edges, heights)
        parts.append(
            f'<path class="area s{side}" d="{line}V{y.start:.1f}H{edges[0]:.1f}Z"/>'
            f'<path class="line s{side}" d="{line}"/>'
        )
        mean = x(found.means[name])
        parts.append(
            f'<path class="mean s{side}" d="M{mean:.1f} {y.start:.1f}V{y.end:.1f}">'
            f"<title>{escape(name)}: mean {found.means[name]:.3f}</title></path>"
        )
    return drawing("".join(parts), label)


def spectra_chart(found: Spectra, label: str) -> str:
    """Singular values by rank, both axes logarithmic."""
    longest = max(len(values) for values in found.values.values())
    low = found.floor
    x, y = _frame((1.0, max(float(longest), 2.0)), (low, 1.0), logs=(True, True))
    parts = [axes(x, y, x_label="rank of the singular value", y_label="relative to the first")]
    for side, values in enumerate(found.values.values()):
        ranks = shown_ranks(len(values))
        heights = np.maximum(values[ranks - 1], low)
        parts.append(
            f'<path class="line s{side}" d="{_path(x.places(ranks), y.places(heights))}"/>'
        )
    return drawing("".join(parts), label)


def shown_ranks(count: int, most: int = 160) -> Array:
    """Ranks from 1 to the last, denser where a logarithmic axis shows them apart."""
    return np.unique(np.geomspace(1, max(count, 1), most).round().astype(np.int64))


def cloud_chart(found: Cloud, name: str, side: int, label: str) -> str:
    """A side's rows on its two axes through the origin, at the scale of all sides."""
    (left, right), (below, above) = found.limits.tolist()
    size = WIDTH - LEFT - RIGHT
    if above - below > right - left:
        # Taller than wide: the second axis then sets the scale.
        middle, half = (left + right) / 2, (above - below) / 2
        left, right = middle - half, middle + half
    height = size * (above - below) / (right - left)
    x = Axis(left, right, LEFT, LEFT + size)
    y = Axis(below, above, TOP + height, TOP)
    first, second = (f"{100 * share:.3g} %" for share in found.explained[name].tolist())
    frame = axes(
        x,
        y,
        x_label=f"first axis, {first} of squared length",
        y_label=f"second axis, {second}",
        grid=False,
    )
    parts = [frame, f'<g class="dots s{side}">']
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2"/>' for a, b in found.points[name].tolist()
    ]
    ahead, up = found.means[name].tolist()
    parts.append(f"</g>{_arrow(x(0.0), y(0.0), x(ahead), y(up))}")
    parts.append('<g class="marks"></g>')
    return drawing("".join(parts), label, height=TOP + height + BOTTOM)


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A cross, and an arrow from it, if it is long enough to be seen."""
    cross = f'<path class="origin" d="M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12"/>'
    long = math.hypot(to_x - x, to_y - y)
    if long < SHORTEST:
        return cross
    ahead, up = HEAD * (to_x - x) / long, HEAD * (to_y - y) / long
    wings = "".join(
        f"M{to_x:.1f} {to_y:.1f}l{-ahead + turn * up:.1f} {-up - turn * ahead:.1f}"
        for turn in (0.5, -0.5)
    )
    return f'{cross}<path class="shared" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}{wings}"/>'


def words_chart(found: WordNorms, label: str) -> str:
    """Norms of words over their rank, and the mean of each range with its interval."""
    means = [group for group in found.groups if group.value is not None]
    values = [*found.norms.tolist(), *(group.value or 0.0 for group in means)]
    values += [group.published for group in found.groups if group.published is not None]
    values += [end for group in means for end in (group.least, group.most) if end is not None]
    low, high = min(values), max(values)
    margin = 0.06 * ((high - low) or 1.0)
    last = max(group.high for group in found.groups)
    x, y = _frame((1.0, float(last)), (max(low - margin, 0.0), high + margin), logs=(True, False))
    parts = [axes(x, y, x_label="rank of the word's frequency", y_label="ℓ2 norm")]
    parts.append('<g class="dots rest">')
    for word, rank, norm in zip(
        found.words, found.ranks.tolist(), found.norms.tolist(), strict=True
    ):
        parts.append(
            f'<circle cx="{x(rank + 1):.1f}" cy="{y(norm):.1f}" r="1.6">'
            f"<title>{escape(word)}: {norm:.3f}</title></circle>"
        )
    parts.append("</g>")
    for group in found.groups:
        start, end = x(max(group.low, 1)), x(group.high)
        if group.published is not None:
            place = y(group.published)
            parts.append(
                f'<path class="published" d="M{start + 1:.1f} {place:.1f}H{end - 1:.1f}"/>'
            )
        if group.value is None:
            continue
        place, middle = y(group.value), (start + end) / 2
        parts.append(f'<path class="level s1" d="M{start + 1:.1f} {place:.1f}H{end - 1:.1f}"/>')
        if group.least is not None and group.most is not None:
            parts.append(
                f'<path class="whisker s1" d="M{middle:.1f} {y(group.least):.1f}'
                f'V{y(group.most):.1f}"/>'
            )
    return drawing("".join(parts), label)


def edits_chart(found: EditScatter, panel: int, label: str) -> str:
    """Pairs by similarity and edit distance."""
    name = list(found.panels)[panel]
    values = found.panels[name]
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * ((high - low) or 1.0)
    top = float(found.distances.max()) or 1.0
    x, y = _frame((low - margin, high + margin), (-0.03 * top, 1.03 * top), width=NARROW)
    what = "gold similarity" if panel == 0 else "cosine similarity"
    marks = ticks(low - margin, high + margin, 4)
    parts = [
        axes(
            x,
            y,
            x_label=what,
            y_label=f"edit distance, {found.unit}",
            x_ticks=marks,
            y_ticks=ticks(0.0, top),
        )
    ]
    near = found.is_near
    for kind, chosen in (("rest", ~near), ("short", near)):
        parts.append(f'<g class="dots {kind}">')
        for a, b in zip(values[chosen].tolist(), found.distances[chosen].tolist(), strict=True):
            parts.append(_mark(kind, x(a), y(b)))
        parts.append("</g>")
    return drawing("".join(parts), label, width=NARROW)


def _mark(kind: str, x: float, y: float) -> str:
    if kind == "rest":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>'
    return f'<path d="M{x:.1f} {y - 3:.1f}l3 5.2h-6z"/>'


def training_chart(found: TrainingCurve, label: str) -> str:
    """The loss over the steps: its mean in windows, and the range within them."""
    low, high = float(found.low.min()), float(found.high.max())
    if found.final is not None:
        low, high = min(low, found.final), max(high, found.final)
    margin = 0.05 * ((high - low) or 1.0)
    x, y = _frame((0.0, float(found.total)), (low - margin, high + margin))
    parts = [axes(x, y, x_label="step", y_label="bits per dimension")]
    steps = x.places(found.steps)
    if bool((found.high > found.low).any()):
        upper, lower = y.places(found.high), y.places(found.low)
        band = _path(np.concatenate([steps, steps[::-1]]), np.concatenate([upper, lower[::-1]]))
        parts.append(f'<path class="area s1" d="{band}Z"/>')
    parts.append(f'<path class="line s1" d="{_path(steps, y.places(found.mean))}"/>')
    if found.final is not None:
        place = y(found.final)
        parts.append(f'<path class="published" d="M{x.start:.1f} {place:.1f}H{x.end:.1f}"/>')
    return drawing("".join(parts), label)


def scores_chart(found: ScoreTable, label: str) -> str:
    """Scores with intervals, a band a task: ours, and hollow what was published."""
    drawn = [row for row in found.rows if row.drawn][:2]
    values = [
        end
        for row in drawn
        for cell in row.cells.values()
        for end in (cell.value, cell.low, cell.high, cell.published)
        if end is not None
    ]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = 0.05 * ((high - low) or 1.0)
    band = 13.0 * len(drawn) + 9.0
    height = TOP + band * len(found.columns) + BOTTOM
    x = Axis(low - margin, high + margin, 62.0, WIDTH - RIGHT)
    parts = []
    for value in ticks(x.low, x.high):
        place = x(value)
        parts.append(f'<path class="grid" d="M{place:.1f} {TOP:.1f}V{height - BOTTOM:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{place:.1f}" y="{height - BOTTOM + 15:.1f}" '
            f'text-anchor="middle">{number(value)}</text>'
        )
    parts.append(
        f'<text class="name" x="{(x.start + x.end) / 2:.1f}" y="{height - BOTTOM + 31:.1f}" '
        f'text-anchor="middle">{escape(found.measure)}</text>'
    )
    for place, column in enumerate(found.columns):
        start = TOP + band * place
        if place % 2:
            parts.append(
                f'<rect class="stripe" x="0" y="{start:.1f}" width="{WIDTH:.0f}" '
                f'height="{band:.1f}"/>'
            )
        parts.append(
            f'<text class="tick strong" x="56" y="{start + band / 2 + 3.5:.1f}" '
            f'text-anchor="end">{escape(column)}</text>'
        )
        for side, row in enumerate(drawn):
            parts.append(_score_mark(row.cells, column, side, x, start + 11.0 + 13.0 * side))
    # Stripes go under what is drawn on them.
    parts.sort(key=lambda part: not part.startswith("<rect"))
    return drawing("".join(parts), label, height=height)


def _score_mark(cells: Mapping[str, object], column: str, side: int, x: Axis, y: float) -> str:
    cell = cells.get(column)
    parts = []
    value, low, high, published = (
        getattr(cell, name, None) for name in ("value", "low", "high", "published")
    )
    if published is not None:
        place = x(published)
        parts.append(
            f'<path class="print s{side}" d="M{place:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z">'
            f"<title>published {published:.2f}</title></path>"
        )
    if value is not None:
        if low is not None and high is not None:
            parts.append(f'<path class="whisker s{side}" d="M{x(low):.1f} {y:.1f}H{x(high):.1f}"/>')
        place = x(value)
        shape = (
            f'<path class="point s0" d="M{place:.1f} {y - 4.6:.1f}l4.4 7.8h-8.8z">'
            if side == 0
            else f'<circle class="point s1" cx="{place:.1f}" cy="{y:.1f}" r="4">'
        )
        parts.append(f"{shape}<title>{value:.2f}</title></{'path' if side == 0 else 'circle'}>")
    return "".join(parts)
