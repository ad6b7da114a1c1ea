"""The paper's other tables: word embeddings, edit distance, and what the flow is sensitive to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from bertflow.analysis.lexical import UNITS, Lexical, edit_distances, lexical_statistics
from bertflow.arrays import Array
from bertflow.data import Pairs
from bertflow.evaluation import Difference
from bertflow.evaluation.scores import gold_of, less
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import SCORE_TABLES, published
from bertflow.paper.plan import Plan, Subject, Words
from bertflow.paper.results import (
    CellResult,
    ClaimResult,
    RowResult,
    TableResult,
    corrected,
    printed,
    scaled,
    shown_estimate,
)

SHORT = 4
# Of Table 6: the unit of edits, and which correlations of it.
LEXICAL_COLUMNS = {
    **{f"edit, {unit}": (unit, "edit") for unit in UNITS},
    "gold": (UNITS[0], "gold"),
    **{
        f"{part}, ≤ {SHORT} {unit}": (unit, f"short_{part}")
        for unit in UNITS
        for part in ("edit", "gold")
    },
}
MEASURES = {
    "norm": "mean ℓ2 norm",
    "distance": "mean k-NN ℓ2 distance, k = {k}",
    "dot": "mean k-NN dot product, k = {k}",
}


def words_table(jobs: Sequence[Words], store: ResultStore) -> TableResult:
    """Table 1: word embeddings by the rank of the word's frequency."""
    columns = [f"{low}-{high}" for low, high in jobs[0].ranges]
    rows: list[RowResult] = []
    notes = [
        f"ranks from {jobs[0].frequencies}, the paper's from Wikipedia; words of one whole piece",
        "neighbours among all word embeddings: the nearest by distance, and those with the "
        "largest dot product; intervals of the mean over words, ± 1.96 standard errors",
    ]
    for job in jobs:
        found = store.need(job.key).result
        groups = dict(zip(columns, found["groups"], strict=True))
        rows += [_words_row(job.subject, name, groups) for name in published("table1").rows]
        named = ", ".join(
            f"{group['words']:,} of {high - low:,} ({column})"
            for (column, group), (low, high) in zip(groups.items(), job.ranges, strict=True)
        )
        notes.append(
            f"{job.subject.label}: {found['vocabulary']:,} embeddings of {found['width']} "
            f"dimensions; words: {named}"
        )
    return TableResult(
        name="table1",
        title="Word embeddings by rank of the word's frequency",
        unit=1,
        columns=columns,
        rows=rows,
        claims=corrected([claim for row in rows for claim in _rising(row)]),
        notes=notes,
    )


def _words_row(subject: Subject, name: str, groups: Mapping[str, Mapping[str, Any]]) -> RowResult:
    """The means of a measure, such as "norm" or "distance 3", by column."""
    measure, _, k = name.partition(" ")
    own, cells = subject.size == "base", {}
    for column, group in groups.items():
        mean = group[measure].get(k) if k else group[measure]
        shown: dict[str, Any] = {"reason": "no word of this range is one piece"}
        if mean is not None:
            shown = {**mean, "values": [mean["value"]], "median": mean["value"]}
        cells[column] = CellResult(**printed(published("table1"), name, column, own), **shown)
    return RowResult(
        name=name,
        label=MEASURES[measure].format(k=k),
        encoder=subject.label,
        cells=cells,
        published_for=None if own else "BERT-base",
    )


def _rising(row: RowResult) -> list[ClaimResult]:
    """The claim that a mean is larger for rare words: the last range against the first."""
    first, *_, last = row.cells.values()
    rise = less(last.value, first.value)
    widths = less(first.high, first.low), less(last.high, last.low)
    if rise is None or widths[0] is None or widths[1] is None:
        return []
    error = math.hypot(widths[0], widths[1]) / (2 * 1.96)
    p = float(2 * scipy.stats.norm.sf(abs(rise) / error)) if error > 0 else float(rise == 0)
    return [
        ClaimResult(
            text=f"larger for rare words than for frequent ones: {row.label}",
            encoder=row.encoder,
            published=less(last.published, first.published),
            difference=Difference(rise, rise - 1.96 * error, rise + 1.96 * error, p=p, adjusted=p),
        )
    ]


@dataclass(frozen=True)
class Scatter:
    """The numbers of Figure 2 for one encoder.

    Attributes:
        encoder: Its name.
        own: Whether the paper's numbers are of this very encoder.
        panels: By name, similarities of the pairs, shape (N,): gold, encoder, flow.
        distances: By unit, edit distances, shape (N,).
    """

    encoder: str
    own: bool
    panels: Mapping[str, Array]
    distances: Mapping[str, Array]


def scatter(plan: Plan, pairs: Pairs, store: ResultStore) -> Scatter:
    """Similarities and edit distances of the pairs of Table 6, of the first seed."""
    gold = gold_of(pairs)
    panels = {"gold": gold}
    for cell in plan.cells.values():
        panels[plan.label(cell.row)] = store.need(cell.jobs[0].key).arrays["cosines"]
    first, second, _ = pairs.graded()
    return Scatter(
        encoder=plan.subject.label,
        own=plan.subject.papers and plan.subject.size == "base",
        panels={name: values[~np.isnan(gold)] for name, values in panels.items()},
        distances={unit: edit_distances(first, second, unit=unit) for unit in UNITS},
    )


def lexical_table(scatters: Sequence[Scatter]) -> TableResult:
    """Table 6: how each similarity correlates with edit distance and with gold."""
    table = SCORE_TABLES["table6"]
    rows: list[RowResult] = []
    claims: list[ClaimResult] = []
    notes = [*table.notes]
    for scattered in scatters:
        gold, encoder, flow = scattered.panels.values()
        compared = {"encoder": encoder, "flow": flow}
        found = {
            unit: lexical_statistics(gold, compared, distances, short=SHORT)
            for unit, distances in scattered.distances.items()
        }
        short = ", ".join(f"{one.short_pairs:,} by {unit}" for unit, one in found.items())
        one = found[UNITS[0]]
        notes.append(
            f"{scattered.encoder}: {one.pairs:,} pairs, {one.skipped:,} more without a cosine; at "
            f"most {SHORT} apart {short}"
        )
        for name, label in zip(("gold", *compared), scattered.panels, strict=True):
            if name != "gold" or not rows:  # Gold is the same for every encoder.
                rows.append(_lexical_row(name, label, scattered, found))
        claims += _lexical_claims(scattered.encoder, found)
    return TableResult(
        name=table.name,
        title=table.title,
        columns=list(LEXICAL_COLUMNS),
        rows=rows,
        claims=corrected(claims),
        notes=notes,
    )


def _lexical_row(
    name: str, label: str, scattered: Scatter, found: Mapping[str, Lexical]
) -> RowResult:
    itself = name == "gold"
    comparable = scattered.own or itself
    cells: dict[str, CellResult] = {}
    for column, (unit, part) in LEXICAL_COLUMNS.items():
        one, estimate = found[unit], getattr(found[unit], part)[name]
        # The published number stands beside both units, since it is one of the two.
        beside = printed(published("table6"), name, part, comparable)
        cells[column] = CellResult(
            **{"comparable": scattered.own, **beside},
            **shown_estimate(estimate),
            reason=estimate.undefined,
            pairs=one.short_pairs if part.startswith("short") else one.pairs,
        )
    return RowResult(
        name=name,
        label="gold similarity" if itself else label,
        encoder="" if itself else scattered.encoder,
        cells=cells,
        published_for=None if comparable else "BERT-base",
    )


def _lexical_claims(encoder: str, found: Mapping[str, Lexical]) -> list[ClaimResult]:
    """The claims of section 4.4; correlations with edit distance are negative, so less is more."""
    edit = {
        "gold": "the encoder goes with edit distance more than gold does",
        "flow": "the flow goes with edit distance less than its encoder does",
    }
    claims = [(f"{edit[row]} ({unit})", row, unit, "edit") for unit in UNITS for row in edit]
    claims.append(("the flow goes with gold more than its encoder does", "flow", UNITS[0], "gold"))
    numbers = published("table6")
    return [
        ClaimResult(
            text=text,
            encoder=encoder,
            published=less(numbers.value(row, column), numbers.value("encoder", column)),
            difference=scaled(found[unit].difference(row, "encoder", column)),
        )
        for text, row, unit, column in claims
    ]
