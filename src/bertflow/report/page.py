"""A report as one HTML page that stands alone: nothing is fetched, in no browser, for any data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import bertflow
from bertflow.errors import InputError
from bertflow.evaluation import Estimate
from bertflow.io.files import check_writable, write_text
from bertflow.report.building import NEIGHBOURS, Report
from bertflow.report.charts import (
    MINUS,
    cloud_chart,
    cosines_chart,
    edits_chart,
    number,
    scores_chart,
    spectra_chart,
    training_chart,
    words_chart,
)
from bertflow.report.figures import Cloud, ScoreCell, ScoreRow, ScoreTable, Spectra

# Bytes that a page may have, and characters of a sentence that it shows.
LARGEST = 4_800_000
LONGEST_TEXT = 160
SUFFIXES = (".html", ".htm")
# The query to begin with is the first sentence of so many characters, if there is one.
READABLE = range(25, 91)
# What the sections are called where there is little room.
SHORT = {
    "measures": "Measures",
    "cosines": "Cosines",
    "spectra": "Spectrum",
    "cloud": "Cloud",
    "neighbours": "Neighbours",
    "scores": "Scores",
    "words": "Words",
    "edits": "Edit distance",
    "training": "Training",
    "absent": "Not here",
    "provenance": "Provenance",
}
HEADINGS = {
    "measures": "What the vectors are like",
    "cosines": "Cosines of random pairs",
    "spectra": "Singular values",
    "cloud": "The cloud in two dimensions",
    "neighbours": "Nearest neighbours",
    "scores": "Scores",
    "words": "Norm and word frequency",
    "edits": "Similarity and edit distance",
    "training": "Training",
    "absent": "Not here",
    "provenance": "Provenance",
}

# What measures mean, in the fewest words; docs/mathematics.md has their equations.
MEANINGS = {
    "mean cosine of random pairs": "how alike any two look; 1 is the same",
    "deviation of cosines, centred": "0 tells nothing apart",
    "partition function isotropy": "1 if no direction is favoured",
    "IsoScore": "how evenly rows spread over all dimensions",
    "effective rank": "how many dimensions are really used",
    "hubness (skewness, k = 10)": "are the same few nearest to everything?",
    "rows that are nobody's neighbour": "never found by any search",
    "uniformity": "how evenly rows fill the sphere; lower is better",
    "dimensions that do not vary": "the same number in every row",
}


def check_page(path: str | Path) -> None:
    """Refuse a file that no page can be written to, before any work is done for it.

    Raises:
        InputError: It does not end in .html or .htm.
        ModelError: It is a folder, or is in none that may be written to.

    Example:
        >>> check_page("report.pdf")
        Traceback (most recent call last):
        bertflow.errors.InputError: report.pdf must end in .html to hold a report
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in .html to hold a report")
    check_writable(path)


def write_report(report: Report, path: str | Path) -> int:
    """Write a report to a page that is then the new one whole, or still the old one.

    Args:
        report: As `build_report` gives it.
        path: A file that ends in .html or .htm.

    Returns:
        How many bytes it has, below 5 MB.

    Raises:
        InputError: Another suffix.
        ModelError: It cannot be written.
    """
    check_page(path)
    text = render(report)
    write_text(path, text)
    return len(text.encode("utf-8"))


def render(report: Report) -> str:
    """A report as the text of a page; the same report gives the same text.

    Where sentences would make it larger than 5 MB, fewer points and queries are drawn, and the page
    says how many.

    Args:
        report: As `build_report` gives it.

    Returns:
        HTML with its style sheet, script and data.
    """
    text = _render(report)
    while len(text.encode("utf-8")) > LARGEST and report.cloud is not None:
        if len(report.cloud.rows) < 2:
            break
        report = _thinned(report)
        text = _render(report)
    return text


def _thinned(report: Report) -> Report:
    """Every other of the points and queries."""
    assert report.cloud is not None
    cloud = replace(
        report.cloud,
        points={name: points[::2] for name, points in report.cloud.points.items()},
        rows=report.cloud.rows[::2],
    )
    near = report.neighbours
    if near is not None:
        near = replace(
            near,
            queries=near.queries[::2],
            rows={name: rows[::2] for name, rows in near.rows.items()},
            cosines={name: cosines[::2] for name, cosines in near.cosines.items()},
        )
    return replace(report, cloud=cloud, neighbours=near)


def _render(report: Report) -> str:
    style, script = _file("page.css"), _file("page.js")
    sections = [(name, section) for name, section in _sections(report) if section]
    contents = "".join(
        f'<li><a href="#{name}">{escape(SHORT[name])}</a></li>'
        for name, _ in sections
        if name in SHORT
    )
    parts = {
        "version": escape(bertflow.__version__),
        "policy": (
            f"default-src 'none'; style-src '{_hashed(style)}'; script-src '{_hashed(script)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "title": escape(report.title),
        "style": style,
        "contents": contents,
        "body": "\n".join(section for _, section in sections),
        "data": in_script(_payload(report)),
        "script": script,
    }
    # In one pass: what is put in may itself look like a place.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


@cache
def _file(name: str) -> str:
    return files("bertflow.report").joinpath(name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    """What a content security policy knows an inline style sheet or script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def in_script(value: Any) -> str:
    r"""JSON that can stand in a script element, whatever its strings hold.

    Example:
        >>> print(in_script("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Half a character cannot be written as UTF-8.
    return re.sub(r"[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _payload(report: Report) -> dict[str, Any] | None:
    """What the script needs: texts, and the neighbours of each query."""
    near = report.neighbours
    if near is None or report.cloud is None:
        return None
    used = np.unique(np.concatenate([near.queries, *(rows.ravel() for rows in near.rows.values())]))
    place = {row: n for n, row in enumerate(used.tolist())}
    texts = None
    if report.texts is not None:
        texts = [shortened(report.texts[row]) for row in used.tolist()]
    return {
        "names": list(near.rows),
        "texts": texts,
        "rows": None if texts is not None else used.tolist(),
        "queries": [place[row] for row in near.queries.tolist()],
        "near": [
            [[place[row] for row in several] for several in rows.tolist()]
            for rows in near.rows.values()
        ],
        "cosines": [
            [[round(cosine, 3) for cosine in several] for several in cosines.tolist()]
            for cosines in near.cosines.values()
        ],
        "first": _first_query(report),
    }


def shortened(text: str) -> str:
    """A sentence as the page shows it: on one line, and not too long.

    Example:
        >>> shortened("a" * 200)[-3:], len(shortened("a" * 200))
        ('aa…', 160)
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_TEXT else f"{flat[: LONGEST_TEXT - 1]}…"


def _first_query(report: Report) -> int:
    """The query that the page begins with."""
    near = report.neighbours
    assert near is not None
    if report.texts is None:
        return 0
    readable = (len(report.texts[row]) in READABLE for row in near.queries.tolist())
    return next((place for place, good in enumerate(readable) if good), 0)


# Sections.


def _sections(report: Report) -> list[tuple[str, str]]:
    drawn: dict[str, Callable[[Report], str]] = {
        "cosines": _cosines,
        "spectra": _spectra,
        "cloud": _cloud,
        "neighbours": _neighbours,
        "scores": _scores,
        "words": _words,
        "edits": _edits,
        "training": _training,
    }
    parts = [("verdict", _verdict(report)), ("measures", _measures(report))]
    for name, draw in drawn.items():
        if getattr(report, name) is not None:
            parts.append((name, draw(report)))
    parts.append(("absent", _absent(report)))
    parts.append(("provenance", _provenance(report)))
    return parts


def _section(name: str, *parts: str) -> str:
    inner = "\n".join(part for part in parts if part)
    return (
        f'<section id="{name}" aria-labelledby="{name}-head">\n'
        f'<h2 id="{name}-head">{escape(HEADINGS[name])}</h2>\n{inner}\n</section>'
    )


def _absent(report: Report) -> str:
    items = "".join(
        f"<li><strong>{escape(', '.join(HEADINGS[name].lower() for name in names).capitalize())}"
        f"</strong>: {escape(reason)}.</li>"
        for names, reason in report.left_out()
    )
    return _section("absent", f'<ul class="absent">{items}</ul>') if items else ""


def _verdict(report: Report) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return "\n".join(
        [
            '<section id="verdict" aria-label="Verdict">',
            f'<p class="verdict">{escape(report.verdict)}</p>',
            _gains(report),
            f"<p>{escape(report.evidence)}</p>" if report.evidence else "",
            _legend(report.sides) if report.sides else "",
            f'<ul class="notes">{notes}</ul>' if notes else "",
            "</section>",
        ]
    )


def _gains(report: Report) -> str:
    """The figures of the demonstration, as it shows them on a terminal."""
    found = report.gains
    if found is None:
        return ""
    spearman, hits = found.spearman, found.first_hit
    similar = "mean cosine of any two sentences"
    means = [f"{mean:.2f}".replace("-0.00", "0.00") for mean in found.mean_cosine]
    rows = [
        [
            "cosines follow the pairs' grades",
            *(_figure_of(one) for one in (spearman.before, spearman.after)),
            _range(spearman.difference.low, spearman.difference.high, signed=True),
        ],
        [
            "other half of a paraphrase found first",
            *(_figure_of(one, " %", 0) for one in (hits.before, hits.after)),
            _range(hits.difference.low, hits.difference.high, signed=True),
        ],
        [similar, *means, ""],
    ]
    return table(
        ["", "before", "after", "difference, 95 %"],
        [[row[0], *(cell.replace("-", MINUS) for cell in row[1:])] for row in rows],
        "What changed; in brackets 95 % intervals, by bootstrap over pairs",
        kind="measures",
        about={
            rows[0][0]: f"Spearman × 100 over {found.pairs:,} pairs; 100 is the same order",
            rows[1][0]: f"{len(found.searched):,} searches among {found.among:,} sentences",
            similar: "1 is the same, 0 unrelated",
        },
    )


def _figure_of(one: Estimate, unit: str = "", digits: int = 1) -> str:
    if one.value is None:
        return "undefined"
    span = _range(one.low, one.high)
    return f"{100 * one.value:.{digits}f}{unit}" + (f" ({span})" if span else "")


def _range(low: float | None, high: float | None, *, signed: bool = False) -> str:
    if low is None or high is None:
        return ""
    if signed:
        return " to ".join(f"{round(100 * end, 1) + 0.0:+.1f}" for end in (low, high))
    return f"{100 * low:.0f} to {100 * high:.0f}"


def _legend(sides: Mapping[str, str]) -> str:
    items = [
        f"<li>{_key(side)}<span><strong>{escape(name)}</strong>"
        f"{f': {escape(label)}' if label else ''}</span></li>"
        for side, (name, label) in enumerate(sides.items())
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _key(side: int) -> str:
    shape = (
        '<path class="key s0" d="M14 3l4.4 7.8h-8.8z"/>'
        if side == 0
        else '<circle class="key s1" cx="14" cy="7" r="4"/>'
    )
    return (
        f'<svg viewBox="0 0 28 14" aria-hidden="true"><path class="line s{side}" d="M0 7H28"/>'
        f"{shape}</svg>"
    )


def _published_key(text: str, *, dashed: bool) -> str:
    shape = (
        '<path class="published" d="M0 7H28"/>'
        if dashed
        else '<path class="print key" d="M14 3l4 4l-4 4l-4 -4z"/>'
    )
    key = f'<svg viewBox="0 0 28 14" aria-hidden="true">{shape}</svg>'
    return f"<li>{key}<span>{escape(text)}</span></li>"


def _names(report: Report) -> str:
    """The sides' keys once more, where a picture tells them apart."""
    return _legend({name: "" for name in report.sides})


def _figure(chart: str, caption: str, *extra: str, single: bool = True) -> str:
    kind = ' class="single"' if single else ""
    return f"<figure{kind}>{chart}<figcaption>{escape(caption)}</figcaption></figure>" + "".join(
        extra
    )


def _panels(figures: Sequence[str]) -> str:
    """Pictures side by side; one that stands alone is no wider than it need be."""
    lone = " lone" if len(figures) == 1 else ""
    return f'<div class="panels{lone}">{"".join(figures)}</div>'


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    kind: str = "",
    words: Sequence[int] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """A table that scrolls by itself where it is wide; cells are text.

    Args:
        heads: Of the columns; the first is of the rows' names.
        rows: Their cells.
        caption: What it shows.
        kind: Its class in the style sheet.
        words: Columns that hold words, not numbers.
        about: What rows mean, by their names: a small line below the name.
    """
    worded = {n: ' class="words"' for n in words}
    head = "".join(
        f'<th scope="col"{worded.get(n, "")}>{escape(one)}</th>' for n, one in enumerate(heads)
    )
    lines = []
    for first, *cells in rows:
        told = "".join(
            f"<td{worded.get(n, '')}>{escape(cell)}</td>" for n, cell in enumerate(cells, 1)
        )
        meaning = (about or {}).get(first)
        # Its short name is what a screen reader repeats at each cell.
        short = f' abbr="{escape(first)}"' if meaning else ""
        named = escape(first) + (f"<small>{escape(meaning)}</small>" if meaning else "")
        lines.append(f'<tr><th scope="row"{short}>{named}</th>{told}</tr>')
    return _scrolling(
        caption, f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>", kind
    )


def _scrolling(caption: str, inner: str, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{named}><caption><span>{escape(caption)}</span></caption>{inner}</table></div>"
    )


def _numbers(content: str) -> str:
    return f"<details><summary>The numbers as a table</summary>{content}</details>"


def _measures(report: Report) -> str:
    found = report.diagnoses
    if not found:
        return ""
    several = list(found.values())
    rows = [
        ["mean cosine of random pairs", *(f"{one.mean_cosine:.3f}" for one in several), "0"],
        [
            "deviation of cosines, centred",
            *(f"{one.cosine_deviation:.3f}" for one in several),
            " / ".join(dict.fromkeys(f"from {one.width**-0.5:.3f}" for one in several)),
        ],
        [
            "partition function isotropy",
            *(f"{one.partition_isotropy:.3f}" for one in several),
            "1",
        ],
        ["IsoScore", *(f"{one.isoscore:.3f}" for one in several), "1"],
        [
            "effective rank",
            *(f"{one.effective_rank:.0f}" for one in several),
            " / ".join(dict.fromkeys(f"{min(one.width, one.rows - 1):,}" for one in several)),
        ],
        ["hubness (skewness, k = 10)", *(f"{one.hubness.skewness:.2f}" for one in several), "0"],
        [
            "rows that are nobody's neighbour",
            *(f"{one.hubness.antihubs:.0%}" for one in several),
            "0%",
        ],
        ["uniformity", *(f"{one.uniformity:.2f}" for one in several), "-4"],
        ["dimensions that do not vary", *(f"{len(one.dead_dimensions)}" for one in several), "0"],
    ]
    shown = [[row[0], *(cell.replace("-", MINUS) for cell in row[1:])] for row in rows]
    warnings = dict.fromkeys(warning for one in several for warning in one.warnings)
    told = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return _section(
        "measures",
        table(
            ["", *found, "at best"],
            shown,
            f"Measures without labels, over {several[0].rows:,} rows",
            kind="measures",
            about=MEANINGS,
        ),
        f'<ul class="notes">{told}</ul>' if told else "",
    )


def _cosines(report: Report) -> str:
    found = report.cosines
    assert found is not None
    means = ", ".join(f"{name} {mean:.3f}" for name, mean in found.means.items()).replace(
        "-", MINUS
    )
    rows = [
        [
            f"{low:.3f} to {high:.3f}".replace("-", MINUS),
            *(f"{100 * share[n]:.2f} %" for share in found.shares.values()),
        ]
        for n, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True))
        if any(share[n] > 0 for share in found.shares.values())
    ]
    return _section(
        "cosines",
        "<p>A cosine is 1 for vectors that point the same way, and 0 for vectors at right angles. "
        "Two sentences drawn at random rarely mean the same, so theirs should be near 0. Where it "
        "is high all the same, cosine says little about meaning.</p>",
        _names(report),
        _figure(
            cosines_chart(found, f"Histogram of cosines. Means: {means}"),
            f"Cosines of {found.pairs:,} random pairs of rows, the same pairs throughout. Dotted: "
            f"the means, {means}.",
        ),
        _numbers(table(["cosine", *found.shares], rows, "Share of the pairs by cosine")),
    )


def _spectra(report: Report) -> str:
    found = report.spectra
    assert found is not None
    longest = max(len(values) for values in found.values.values())
    ranks = [n for n in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if n < longest]
    rows = [
        [
            f"{rank:,}",
            *(
                f"{values[rank - 1]:.4f}" if rank <= len(values) else ""
                for values in found.values.values()
            ),
        ]
        for rank in [*ranks, longest]
    ]
    second = [f"{name} {values[1]:.3f}" for name, values in found.values.items() if len(values) > 1]
    return _section(
        "spectra",
        "<p>One value far above the rest is a direction that all rows share; a flat line is a "
        "cloud that is as wide in every direction.</p>",
        _names(report),
        _figure(
            spectra_chart(
                found, f"Singular values relative to the first. The second: {', '.join(second)}"
            ),
            f"Singular values of {found.rows:,} rows, not centred, relative to the largest; both "
            f"axes are logarithmic.{_beneath(found)}",
        ),
        _numbers(table(["rank", *found.values], rows, "Singular values relative to the first")),
    )


def _beneath(found: Spectra) -> str:
    """That some values are too small for the axis, where there are any."""
    told = [f"{count:,} {name}" for name, count in found.below.items() if count]
    least = number(found.floor)
    return f" On the lower axis lie those below {least}: {', '.join(told)}." if told else ""


def _cloud(report: Report) -> str:
    found = report.cloud
    assert found is not None
    linked = report.neighbours is not None
    figures = []
    for side, name in enumerate(found.points):
        shares = found.explained[name]
        label = (
            f"Scatter plot of {len(found.rows):,} rows {name} at length 1: their mean is "
            f"{found.lengths[name]:.2f} away from the origin; the two axes hold "
            f"{100 * shares.sum():.1f} % of squared length"
        )
        chart = cloud_chart(found, name, side, label)
        stage = f'<div class="stage">{chart}</div>' if linked else chart
        figure = _figure(stage, _reach(found, name), single=False)
        figures.append(f"<div><h3>{escape(name)}</h3>{figure}</div>")
    how = (
        ' <span class="how">Point at a dot, tap it, or move by arrow keys: the same row is marked '
        "on every side, with its nearest neighbours in rings, and Enter or a click asks for them "
        "below.</span>"
        if linked
        else ""
    )
    rows = [
        [
            f"{name}, axis {axis + 1}",
            f"{100 * found.explained[name][axis]:.2f} %",
            *(
                f"{value:.3f}".replace("-0.000", "0.000").replace("-", MINUS)
                for value in (
                    found.means[name][axis],
                    found.points[name][:, axis].min(),
                    found.points[name][:, axis].max(),
                )
            ),
        ]
        for name in found.points
        for axis in (0, 1)
    ]
    return _section(
        "cloud",
        "<p>The cross is the origin. Each dot is the tip of a row's vector at length 1, for only "
        "directions count in a cosine. The arrow goes to the mean of all rows: what they share. "
        "Where the dots crowd at the end of a long arrow, all point much the same way; where they "
        f"lie around the cross, they do not. Shown are {len(found.rows):,} rows, the same on every "
        f"side.{how}</p>",
        _panels(figures),
        '<p class="readout" id="readout" role="status" aria-live="polite"></p>' if linked else "",
        _numbers(
            table(
                ["axis", "share of squared length", "mean", "lowest", "highest"],
                rows,
                "The axes, and how far the rows that are drawn reach along them",
            )
        ),
    )


def _reach(found: Cloud, name: str) -> str:
    shares = found.explained[name]
    scale = "Both axes, on every side" if len(found.points) > 1 else "Both axes"
    return (
        f"The mean of all rows is {found.lengths[name]:.2f} from the origin (0 at best, 1 if all "
        "point the same way). Not centred: principal axes through the origin, which hold "
        f"{100 * shares.sum():.3g} % of squared length. {scale} at one scale."
    )


def _neighbours(report: Report) -> str:
    found = report.neighbours
    assert found is not None
    kept = found.kept
    first = _first_query(report)

    def text(row: int) -> str:
        return f"row {row:,}" if report.texts is None else shortened(report.texts[row])

    asked = text(int(found.queries[first]))
    lists: list[str] = []
    for name, rows in found.rows.items():
        items = [
            f'<li><span class="cosine">{cosine:.3f}</span><span class="text">{escape(text(row))}'
            "</span></li>"
            for row, cosine in zip(
                rows[first].tolist(), found.cosines[name][first].tolist(), strict=True
            )
        ]
        lists.append(
            f'<div><h3 id="list-{len(lists)}">{escape(name)}</h3>'
            f'<ol aria-labelledby="list-{len(lists)}">{"".join(items)}</ol></div>'
        )
    changed = (
        ""
        if kept is None
        else f" Of a row's {NEIGHBOURS} nearest, {kept:.0%} are the same on both sides, on average."
    )
    return _section(
        "neighbours",
        f"<p>The nearest of {found.among:,} rows by cosine, for any of {len(found.queries):,} "
        f"queries.{changed}</p>",
        '<div class="picker scripted">'
        '<label for="search">Search the queries</label>'
        '<div class="row"><input id="search" type="search" autocomplete="off" spellcheck="false">'
        '<button type="button" id="another">Any other</button></div>'
        '<label for="choice">Choose one</label>'
        '<select id="choice" size="6"></select>'
        '<p class="quiet" id="matches" role="status"></p></div>',
        f'<p class="asked">Nearest to: <strong id="asked">{escape(asked)}</strong></p>',
        f'<div class="lists" aria-live="polite">{"".join(lists)}</div>',
    )


def _scores(report: Report) -> str:
    found = report.scores
    assert found is not None
    letters = _letters(found)
    drawn = [row for row in found.rows if row.drawn][:2]
    chart = scores_chart(found, f"{found.title}: scores with 95 % intervals, in the table below")
    keys = [
        f"<li>{_key(side)}<span>{escape(row.label)}</span></li>" for side, row in enumerate(drawn)
    ]
    foreign = dict.fromkeys(row.published_for for row in drawn if row.published_for)
    if any(cell.published is not None for row in drawn for cell in row.cells.values()):
        whose = f" for {', '.join(foreign)}" if foreign else ""
        keys.append(_published_key(f"published{whose}", dashed=False))
    notes = [*found.notes, *(f"{letter}: {doubt}" for doubt, letter in letters.items())]
    told = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section(
        "scores",
        f"<p>{escape(found.title)}: {escape(found.measure)}, with 95 % intervals.</p>",
        f'<ul class="legend">{"".join(keys)}</ul>' if chart else "",
        _figure(
            chart,
            "Filled: ours, with the interval. Hollow: published"
            + (f" for {', '.join(foreign)}, another encoder, for orientation." if foreign else "."),
        )
        if chart
        else "",
        _score_table(found, letters),
        _claims(found),
        f'<ul class="notes">{told}</ul>' if told else "",
    )


def _letters(found: ScoreTable) -> dict[str, str]:
    """Of each doubt about a published number, the letter that marks it."""
    doubts = dict.fromkeys(
        doubt
        for row in found.rows
        for cell in row.cells.values()
        if cell.published is not None
        for doubt in cell.doubts
    )
    return dict(zip(doubts, string.ascii_lowercase, strict=False))


def _score_table(found: ScoreTable, letters: Mapping[str, str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ["", *found.columns])
    lines = []
    for row in found.rows:
        cells = "".join(
            f"<td>{_score_cell(row.cells[name], letters)}</td>" for name in found.columns
        )
        lines.append(f'<tr><th scope="row">{escape(_row_label(row))}</th>{cells}</tr>')
    return _scrolling(
        f"{found.measure}: ours, its 95 % interval, and the published number; in brackets what was "
        "published for another encoder",
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>",
        "scores",
    )


def _row_label(row: ScoreRow) -> str:
    told = [part for part in (row.aggregation, row.published_for) if part]
    if row.published_for:
        told[-1] = f"published: {row.published_for}"
    return f"{row.label} ({', '.join(told)})" if told else row.label


def _score_cell(cell: ScoreCell, letters: Mapping[str, str]) -> str:
    parts = []
    if cell.value is not None:
        parts.append(f'<span class="value">{cell.value:.2f} {cell.mark}</span>')
    if cell.low is not None and cell.high is not None:
        parts.append(f'<span class="span">{cell.low:.1f} to {cell.high:.1f}</span>')
    if cell.published is not None:
        told = f"{cell.published:.2f}" if cell.comparable else f"[{cell.published:.2f}]"
        marks = "".join(sorted(letters.get(doubt, "") for doubt in cell.doubts))
        small = f"<sup>{marks}</sup>" if marks else ""
        away = "" if cell.difference is None else f", {cell.difference:+.2f}".replace("-", MINUS)
        parts.append(
            f'<span class="print-value"><span class="unseen">published </span>{told}{small}{away}'
            "</span>"
        )
    return "".join(parts) or '<span class="span">–</span>'


def _claims(found: ScoreTable) -> str:
    if not found.claims:
        return ""
    rows = []
    for one in found.claims:
        span = one["interval"]
        rows.append(
            [
                str(one["claim"]),
                _signed(one["published"]),
                _signed(one["value"]),
                "" if span is None else f"{_signed(span[0], 1)} to {_signed(span[1], 1)}",
                str(one["verdict"]),
            ]
        )
    several = len({one["encoder"] for one in found.claims}) > 1
    if several:
        rows = [
            [f"{one['encoder']}: {row[0]}", *row[1:]]
            for one, row in zip(found.claims, rows, strict=True)
        ]
    return "<h3>The paper's claims</h3>" + table(
        ["claim", "published", "ours", "95 %", "verdict"],
        rows,
        "Differences, and whether more than chance is behind them",
        words=[4],
    )


def _signed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def _words(report: Report) -> str:
    found = report.words
    assert found is not None
    rows = [
        [
            f"{group.low:,} to {group.high:,}",
            f"{group.words:,}",
            "" if group.value is None else f"{group.value:.3f}",
            ""
            if group.least is None or group.most is None
            else f"{group.least:.3f} to {group.most:.3f}",
            "" if group.published is None else f"{group.published:.2f}",
        ]
        for group in found.groups
    ]
    dots = " Dots: single words." if len(found.words) else ""
    keys = [f"<li>{_level_key()}<span>mean of a range, with its interval</span></li>"]
    if any(group.published is not None for group in found.groups):
        keys.append(_published_key("the paper's, for BERT-base", dashed=True))
    return _section(
        "words",
        "<p>The paper finds that in BERT frequent words lie near the origin, and rare ones far "
        "out.</p>",
        f'<ul class="legend">{"".join(keys)}</ul>',
        _figure(
            words_chart(found, f"Norm of word embeddings by frequency rank, {found.encoder}"),
            f"ℓ2 norms of the word embeddings of {found.encoder} by rank of the word's frequency, "
            f"on a logarithmic axis.{dots}",
        ),
        _numbers(
            table(
                ["rank", "words", "mean norm", "95 %", "published for BERT-base"],
                rows,
                "Mean norm by rank of the word's frequency",
            )
        ),
    )


def _level_key() -> str:
    return (
        '<svg viewBox="0 0 28 14" aria-hidden="true"><path class="level s1" d="M0 7H28"/>'
        '<path class="whisker s1" d="M14 2V12"/></svg>'
    )


def _edits(report: Report) -> str:
    found = report.edits
    assert found is not None
    figures, rows = [], []
    for panel, name in enumerate(found.panels):
        whole, near = _rho(found.whole[name]), _rho(found.near[name])
        label = (
            f"{name} against edit distance: Spearman × 100 {whole}, over pairs at most "
            f"{found.short} {found.unit} apart {near}"
        )
        figures.append(
            f"<div><h3>{escape(name)}</h3>"
            + _figure(
                edits_chart(found, panel, label),
                f"ρ × 100 with edit distance: {whole}; over the short ones {near}.",
                single=False,
            )
            + "</div>"
        )
        rows.append([name, whole, near])
    count = int(found.is_near.sum())
    keys = [
        '<li><svg viewBox="0 0 28 14" aria-hidden="true"><g class="dots short">'
        '<path d="M14 2l5 8.7h-10z"/></g></svg>'
        f"<span>at most {found.short} {found.unit} apart ({count:,} pairs)</span></li>",
        '<li><svg viewBox="0 0 28 14" aria-hidden="true"><g class="dots rest">'
        '<circle cx="14" cy="7" r="4"/></g></svg>'
        f"<span>the others ({len(found.distances) - count:,})</span></li>",
    ]
    return _section(
        "edits",
        "<p>Pairs of STS-B dev. A similarity of meaning need not follow how many words two "
        "sentences differ in; one of letters does.</p>",
        f'<ul class="legend">{"".join(keys)}</ul>',
        _panels(figures),
        _numbers(
            table(
                ["similarity", "all pairs", f"at most {found.short} {found.unit} apart"],
                rows,
                "Spearman × 100 of similarity with edit distance",
            )
        ),
    )


def _rho(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}".replace("-", MINUS)


def _training(report: Report) -> str:
    found = report.training
    assert found is not None
    places = np.unique(np.linspace(0, len(found.steps) - 1, 12).round().astype(int)).tolist()
    rows = [
        [
            f"{found.steps[n]:,}",
            *(f"{part[n]:.4f}".replace("-", MINUS) for part in (found.mean, found.low, found.high)),
        ]
        for n in places
    ]
    final = "" if found.final is None else f"{found.final:.4f}".replace("-", MINUS)
    dashed = f" Dashed: the fitted rows under the fitted flow, {final}." if final else ""
    return _section(
        "training",
        _figure(
            training_chart(found, f"Training loss over {found.total:,} steps, ending at {final}"),
            f"Loss of the flow's fit in bits per dimension over {found.total:,} steps: mean and "
            f"range in windows of steps.{dashed}",
        ),
        _numbers(
            table(["up to step", "mean", "least", "largest"], rows, "Loss in windows of steps")
        ),
    )


def _provenance(report: Report) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in report.provenance
    )
    return _section(
        "provenance",
        _scrolling("What all of this depends on", f"<tbody>{lines}</tbody>", "facts"),
    )
