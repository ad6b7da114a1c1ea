"""The paper's other tables: word embeddings, edit distance, and what the flow is sensitive to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from bertflow.analysis.lexical import UNITS, Lexical, edit_distances, lexical_statistics
from bertflow.arrays import Array
from bertflow.calibrators import Flow
from bertflow.data import Pairs
from bertflow.evaluation import Difference, Estimate, paired_difference
from bertflow.evaluation.scores import gold_of, less
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import published
from bertflow.paper.plan import Plan, Words
from bertflow.paper.results import (
    CellResult,
    ClaimResult,
    EncoderRows,
    RowResult,
    TableResult,
    judged_claims,
    scaled,
    score_table,
    shown_estimate,
)

MEASURES = ("norm", "distance", "dot")
MEASURE_LABELS = {
    "norm": "mean ℓ2 norm",
    "distance": "mean k-NN ℓ2 distance, k = {k}",
    "dot": "mean k-NN dot product, k = {k}",
}
SHORT = 4


def words_table(jobs: Sequence[Words], store: ResultStore) -> TableResult:
    """Table 1: word embeddings by the rank of the word's frequency."""
    columns = [f"{low}-{high}" for low, high in jobs[0].ranges]
    rows: list[RowResult] = []
    claims: list[ClaimResult] = []
    notes = [
        f"ranks from {jobs[0].frequencies}, the paper's from Wikipedia; words of one whole piece",
        "neighbours among all word embeddings: the nearest by distance, and those with the "
        "largest dot product; intervals of the mean over words, ± 1.96 standard errors",
    ]
    for job in jobs:
        found = store.need(job.key).result
        groups: Sequence[Mapping[str, Any]] = found["groups"]
        named = ", ".join(
            f"{group['words']:,} of {high - low:,} ({column})"
            for group, column, (low, high) in zip(groups, columns, job.ranges, strict=True)
        )
        notes.append(
            f"{job.subject.label}: {found['vocabulary']:,} embeddings of {found['width']} "
            f"dimensions; words: {named}"
        )
        for measure in MEASURES:
            for k in [None] if measure == "norm" else job.neighbours:
                row = _words_row(job, columns, groups, measure, k)
                label = MEASURE_LABELS[measure].format(k=k)
                claims += _rising(label, [row.cells[column] for column in columns], row.encoder)
                rows.append(row if len(jobs) > 1 else replace(row, label=label))
    return TableResult(
        name="table1",
        title="Word embeddings by rank of the word's frequency",
        unit=1,
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=notes,
    )


def _words_row(
    job: Words,
    columns: Sequence[str],
    groups: Sequence[Mapping[str, Any]],
    measure: str,
    k: int | None,
) -> RowResult:
    numbers, name = published("table1"), measure if k is None else f"{measure} {k}"
    own, cells = job.subject.size == "base", {}
    for column, group in zip(columns, groups, strict=True):
        mean = group[measure] if k is None else group[measure][str(k)]
        shown: dict[str, Any] = {"reason": "no word of this range is one piece"}
        if mean is not None:
            value = mean["value"]
            shown = {**mean, "values": [value], "median": value}
        cells[column] = CellResult(
            **shown,
            published=numbers.value(name, column),
            doubts=numbers.rows[name].doubts[column],
            comparable=own,
        )
    return RowResult(
        name=name,
        label=f"{job.subject.label}: {MEASURE_LABELS[measure].format(k=k)}",
        encoder=job.subject.label,
        cells=cells,
        published_for=None if own else "BERT-base",
    )


def _rising(label: str, cells: Sequence[CellResult], encoder: str) -> list[ClaimResult]:
    """The claim that a mean is larger for rare words: the last range against the first."""
    first, last = cells[0], cells[-1]
    rise = less(last.value, first.value)
    widths = less(first.high, first.low), less(last.high, last.low)
    if rise is None or widths[0] is None or widths[1] is None:
        return []
    error = math.hypot(widths[0], widths[1]) / (2 * 1.96)
    p = float(2 * scipy.stats.norm.sf(abs(rise) / error)) if error > 0 else float(rise == 0)
    return [
        ClaimResult(
            text=f"larger for rare words than for frequent ones: {label}",
            encoder=encoder,
            published=less(last.published, first.published),
            difference=Difference(rise, rise - 1.96 * error, rise + 1.96 * error, p=p, adjusted=p),
        )
    ]


@dataclass(frozen=True)
class Scatter:
    """The numbers of Figure 2 for one encoder.

    Attributes:
        encoder: Its name.
        panels: By name, similarities of the pairs, shape (N,): gold, encoder, flow.
        distances: By unit, edit distances, shape (N,).
    """

    encoder: str
    panels: Mapping[str, Array]
    distances: Mapping[str, Array]


def scatter(plan: Plan, pairs: Pairs, store: ResultStore) -> Scatter:
    """Similarities and edit distances of the pairs of Table 6, of the first seed."""
    (column,), gold = plan.table.columns, gold_of(pairs)
    panels = {"gold": gold}
    for row in plan.rows:
        key = plan.cells[row.name, column].jobs[0].key
        panels[plan.label(row)] = store.need(key).arrays["cosines"]
    first, second, _ = pairs.graded()
    return Scatter(
        encoder=plan.subject.label,
        panels={name: values[~np.isnan(gold)] for name, values in panels.items()},
        distances={unit: edit_distances(first, second, unit=unit) for unit in UNITS},
    )


def lexical_table(scatters: Sequence[Scatter], sizes: Sequence[str | None]) -> TableResult:
    """Table 6: how each similarity correlates with edit distance and with gold.

    `sizes` says of each encoder which of the paper's it is; None for others.
    """
    columns = [f"edit, {unit}" for unit in UNITS] + ["gold"]
    columns += [f"{name}, ≤ {SHORT} {unit}" for unit in UNITS for name in ("edit", "gold")]
    rows: list[RowResult] = []
    claims: list[ClaimResult] = []
    notes = [
        "edit distance by rapidfuzz (Levenshtein) over characters, and over lower-cased words; "
        "the paper does not say which it took: published for gold is -24.61",
        "flow: one fit, seed 0",
    ]
    for scattered, size in zip(scatters, sizes, strict=True):
        gold = scattered.panels["gold"]
        others = {name: one for name, one in scattered.panels.items() if name != "gold"}
        found = {
            unit: lexical_statistics(gold, others, distances, short=SHORT)
            for unit, distances in scattered.distances.items()
        }
        short = ", ".join(
            f"{int((distances <= SHORT).sum()):,} by {unit}"
            for unit, distances in scattered.distances.items()
        )
        notes.append(f"pairs: {len(gold):,}, at most {SHORT} apart {short}")
        if skipped := next(iter(found.values())).skipped:
            notes.append(
                f"{scattered.encoder}: {skipped:,} of them have no cosine, and are left out"
            )
        for name, known in zip(("gold", *others), ("gold", "encoder", "flow"), strict=True):
            if name != "gold" or not rows:  # Gold is the same for every encoder.
                own = size == "base"
                rows.append(_lexical_row(name, known, scattered.encoder, found, comparable=own))
        claims += _lexical_claims(scattered.encoder, list(others), found)
    return TableResult(
        name="table6",
        title="Similarity against edit distance, STS-B dev: Spearman",
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=list(dict.fromkeys(notes)),
    )


def _lexical_row(
    name: str, known: str, encoder: str, found: Mapping[str, Lexical], *, comparable: bool
) -> RowResult:
    numbers, itself = published("table6"), known == "gold"
    printed = {
        column: CellResult(
            published=numbers.value(known, column),
            doubts=numbers.rows[known].doubts[column],
            comparable=comparable or itself,
        )
        for column in ("edit", "gold")
    }
    cells: dict[str, CellResult] = {}
    for unit, one in found.items():
        # The published number stands beside both units, since it is one of the two.
        cells[f"edit, {unit}"] = _cell(one.edit[name], printed["edit"], one.pairs)
        cells["gold"] = _cell(one.gold[name], printed["gold"], one.pairs)
        short = CellResult(comparable=comparable)
        cells[f"edit, ≤ {SHORT} {unit}"] = _cell(one.short_edit[name], short, one.short_pairs)
        cells[f"gold, ≤ {SHORT} {unit}"] = _cell(one.short_gold[name], short, one.short_pairs)
    return RowResult(
        name=known,
        label="gold similarity" if itself else name,
        encoder="" if itself else encoder,
        cells=cells,
        published_for=None if comparable or itself else "BERT-base",
    )


def _cell(estimate: Estimate, shown: CellResult, pairs: int) -> CellResult:
    return replace(shown, reason=estimate.undefined, pairs=pairs, **shown_estimate(estimate))


def _lexical_claims(
    encoder: str, names: Sequence[str], found: Mapping[str, Lexical]
) -> list[ClaimResult]:
    """The claims of section 4.4; correlations with edit distance are negative, so less is more."""
    raw, flow = names
    numbers, known = published("table6"), {"gold": "gold", raw: "encoder", flow: "flow"}
    claims = []
    for unit in found:
        more = f"the encoder goes with edit distance more than gold does ({unit})"
        fewer = f"the flow goes with edit distance less than its encoder does ({unit})"
        claims += [(more, "gold", unit, "edit"), (fewer, flow, unit, "edit")]
    better = "the flow goes with gold more than its encoder does"
    claims.append((better, flow, next(iter(found)), "gold"))
    return [
        ClaimResult(
            text=text,
            encoder=encoder,
            published=less(*(numbers.value(known[name], column) for name in (above, raw))),
            difference=scaled(found[unit].difference(above, raw, column)),
        )
        for text, above, unit, column in claims
    ]


def sweep_table(plans: Sequence[Plan], store: ResultStore) -> TableResult:
    """Table 7: the flow's hyperparameters, and the effect of one change of each."""
    result = score_table(plans, store)
    ours = {
        **Flow().get_params(),
        "coupling": "3 linear layers, residual connection around the middle one",
    }
    notes = [
        f"{row.label}: paper {row.values['paper']}, released code {row.values['released']}, "
        f"ours {ours[row.name]}"
        for row in published("table7").rows.values()
    ]
    claims = [claim for plan in plans for claim in _spread_claim(plan, store)]
    return replace(result, claims=judged_claims(claims), notes=[*notes, *result.notes])


def _spread_claim(plan: Plan, store: ResultStore) -> list[ClaimResult]:
    """The claim that the learning schedule matters more than the architecture does.

    How much a group matters is the mean, over its variations, of the absolute change of the score.
    """
    column = plan.table.columns[0]
    seen = EncoderRows(plan, store).seen
    reference = seen["flow", column]
    changes: dict[str, list[float]] = {"schedule": [], "architecture": []}
    drawn: dict[str, list[Array]] = {"schedule": [], "architecture": []}
    for row in plan.rows:
        if row.group is None:
            continue
        found = seen[row.name, column]
        if found is None or reference is None:
            return []
        change = less(found.estimate.value, reference.estimate.value)
        if change is None:
            return []
        changes[row.group].append(abs(change))
        drawn[row.group].append(np.abs(found.estimate.replicates - reference.estimate.replicates))
    schedule, architecture = (float(np.mean(several)) for several in changes.values())
    after, before = (np.mean(several, axis=0) for several in drawn.values())
    return [
        ClaimResult(
            text="the schedule matters more than the architecture: mean change "
            f"{100 * schedule:.2f} against {100 * architecture:.2f}",
            encoder=plan.subject.label,
            published=None,
            difference=scaled(paired_difference(schedule - architecture, before, after)),
        )
    ]
