"""What a reproduced table looks like: a line each for ours, interval, published, difference."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence

from bertflow.display import Grid
from bertflow.display.numbers import fixed, p_value, span
from bertflow.paper.results import CellResult, RowResult, TableResult

# Rows of values whose median is worth a line: the seeds are what that table is about.
ABOUT_SEEDS = ("table8",)


def table_grid(one: TableResult) -> Grid:
    """Ours, its 95 % interval, spread over seeds, published, and the difference."""
    scale = " × 100" if one.unit == 100 else ""
    aggregated = len({row.aggregation for row in one.rows} - {None}) > 0
    marks = doubts_of(one)
    rows: list[list[str]] = []
    labels = _labels(one)
    for row, own in zip(one.rows, labels, strict=True):
        for place, (name, cells) in enumerate(_lines(row, one, marks)):
            label = own if place == 0 else ""
            middle = [row.aggregation or "" if place == 0 else ""] if aggregated else []
            rows.append([label, *middle, name, *cells])
    heads = ["", "of subsets", ""] if aggregated else ["", ""]
    return Grid(f"ours and published{scale}", [*heads, *one.columns], rows)


def _lines(
    row: RowResult, one: TableResult, marks: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    cells = [row.cells[column] for column in one.columns]
    digits = 2 if one.unit == 100 else 3
    foreign = f"published, {row.published_for}" if row.published_for else "published"
    wanted: list[tuple[str, Callable[[CellResult], str]]] = [
        ("ours", lambda cell: fixed(cell.value, digits, minus="-") + _arrow(cell)),
        ("95 %", lambda cell: span(cell.low, cell.high, digits - 1, minus="-")),
        ("± over seeds", lambda cell: fixed(cell.deviation, 2, minus="-")),
    ]
    if one.name in ABOUT_SEEDS:
        wanted.append(("median", lambda cell: fixed(cell.median, digits, minus="-")))
    wanted += [
        (foreign, lambda cell: _published(cell, marks)),
        ("difference", lambda cell: fixed(cell.difference, 2, signed=True, minus="-")),
    ]
    lines = [(name, [form(cell) for cell in cells]) for name, form in wanted]
    return [(name, shown) for name, shown in lines if any(shown)] or [("ours", ["" for _ in cells])]


def _labels(one: TableResult) -> list[str]:
    """The rows' labels, with the encoder before those that several encoders have."""
    labels = [row.label for row in one.rows]
    return [
        f"{row.encoder}: {row.label}" if row.encoder and labels.count(row.label) > 1 else row.label
        for row in one.rows
    ]


def _published(cell: CellResult, marks: Mapping[str, str]) -> str:
    shown = fixed(cell.published, 2, minus="-")
    if cell.published_deviation is not None:
        shown += f" ± {cell.published_deviation:.2f}"
    if cell.published_median is not None:
        shown += f", median {cell.published_median:.2f}"
    return f"{shown} {_letters(cell, marks)}".strip()


def doubts_of(one: TableResult) -> dict[str, str]:
    """Of each doubt about a published number of the table, the letter that marks it."""
    doubts = dict.fromkeys(
        doubt for row in one.rows for cell in row.cells.values() for doubt in cell.doubts
    )
    return dict(zip(doubts, string.ascii_lowercase, strict=False))


def _letters(cell: CellResult, marks: Mapping[str, str]) -> str:
    if cell.published is None:
        return ""
    return "".join(sorted(marks[doubt] for doubt in cell.doubts))


def claims_grid(one: TableResult) -> Grid:
    """What the paper says, and whether we see it."""
    encoders = list(dict.fromkeys(claim.encoder for claim in one.claims))
    whom = {encoder: _published_for(one, encoder) for encoder in encoders}
    # In the head if all published numbers are of one encoder, else beside those that are another's.
    together = len({name or encoder for encoder, name in whom.items()}) == 1
    rows = []
    for claim in one.claims:
        found, foreign = claim.difference, whom[claim.encoder]
        printed = fixed(claim.published, 2, signed=True, minus="-")
        if printed and foreign and not together:
            printed += f" ({foreign})"
        rows.append(
            [
                claim.text,
                *([claim.encoder] if len(encoders) > 1 else []),
                printed,
                fixed(found.value, 2, signed=True, minus="-"),
                span(found.low, found.high, 1 if one.unit == 100 else 2, signed=True, minus="-"),
                p_value(found.adjusted),
                claim.verdict,
            ]
        )
    whose = f" on {encoders[0]}" if len(encoders) == 1 else ""
    named = next((name for name in whom.values() if name), None)
    heads: Sequence[str] = [
        "claim",
        *(["encoder"] if len(encoders) > 1 else []),
        f"published, {named}" if named and together else "published",
        "ours",
        "95 %",
        "p (Holm)",
        "verdict",
    ]
    return Grid(f"the paper's claims{whose}", heads, rows)


def _published_for(one: TableResult, encoder: str) -> str | None:
    """Whom the numbers beside an encoder's rows are of, where none of them is its own."""
    found = [
        row.published_for
        for row in one.rows
        if row.encoder == encoder and any(c.published is not None for c in row.cells.values())
    ]
    return None if None in found else next(iter(found), None)


def _arrow(cell: CellResult) -> str:
    """Above or below the row's baseline beyond chance, as the paper's arrows; · where not."""
    if cell.baseline is None or cell.value is None:
        return ""
    if not cell.baseline.real:
        return " ·"
    return " ↑" if (cell.baseline.value or 0) > 0 else " ↓"


def notes_of(one: TableResult) -> list[str]:
    """What must be said beside the table, the doubts about published numbers last."""
    return [
        *_settings(one),
        *one.notes,
        *(f"{letter}: {doubt}" for doubt, letter in doubts_of(one).items()),
    ]


def _settings(one: TableResult) -> list[str]:
    """What the whole table depends on."""
    if not one.settings:
        return []
    found = one.settings
    notes = []
    for label, encoder in found["encoders"].items():
        which = f"revision {encoder['revision']}" if encoder["revision"] else encoder["files"]
        notes.append(
            f"{label}: {encoder['name']} ({which}), pooling {encoder['pooling']}, at most "
            f"{encoder['max_length']} tokens"
        )
    said = []
    if found["flow"] is not None:
        plural = "" if found["seeds"] == 1 else "s"
        said.append(f"flow: {found['flow']}, {found['seeds']} seed{plural}")
    if found["limit"] is not None:
        said.append(f"ONLY A TRIAL: about {found['limit']:,} pairs of each split")
    notes += ["; ".join(said)] if said else []
    if found["nli"]:
        sets = ", ".join(f"{count:,} of {name.upper()}" for name, count in found["nli"].items())
        notes.append(f"NLI: sentences of the splits that are there: {sets}")
    return notes
