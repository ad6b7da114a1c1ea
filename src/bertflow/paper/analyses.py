"""The paper's other tables: word embeddings, edit distance, and what the flow is sensitive to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from bertflow.analysis.lexical import UNITS, Lexical, edit_distances, lexical_statistics
from bertflow.calibrators import Flow
from bertflow.calibrators.base import Array
from bertflow.data import Pairs
from bertflow.evaluation import Difference, Estimate, paired_difference
from bertflow.evaluation.scores import gold_of
from bertflow.paper.jobs import Words
from bertflow.paper.planning import Plan, pooling_label
from bertflow.paper.published import PublishedTable, published
from bertflow.paper.records import Records
from bertflow.paper.results import (
    CellResult,
    ClaimResult,
    RowResult,
    TableResult,
    judged_claims,
    scaled,
    shown_estimate,
)
from bertflow.paper.score_tables import score_table, seen_of
from bertflow.paper.tables import VARIATIONS

MEASURES = ("norm", "distance", "dot")
MEASURE_LABELS = {
    "norm": "mean ℓ2 norm",
    "distance": "mean k-NN ℓ2 distance, k = {k}",
    "dot": "mean k-NN dot product, k = {k}",
}
SHORT = 4


def words_table(jobs: Sequence[Words], records: Records) -> TableResult:
    """Table 1: word embeddings by the rank of the word's frequency."""
    numbers = published("table1")
    columns = [f"{low}-{high}" for low, high in jobs[0].ranges]
    rows: list[RowResult] = []
    claims: list[ClaimResult] = []
    notes = [
        f"ranks from {jobs[0].frequencies}, the paper's from Wikipedia; words of one whole piece",
        "neighbours among all word embeddings: the nearest by distance, and those with the "
        "largest dot product; intervals of the mean over words, ± 1.96 standard errors",
    ]
    for job in jobs:
        found = records.need(job.key).result
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
                name = measure if k is None else f"{measure} {k}"
                means = [_mean(group, measure, k) for group in groups]
                label = MEASURE_LABELS[measure].format(k=k)
                rows.append(
                    RowResult(
                        name=name,
                        label=label if len(jobs) == 1 else f"{job.subject.label}: {label}",
                        encoder=job.subject.label,
                        aggregation=None,
                        cells={
                            column: _word_cell(
                                mean,
                                numbers.value(name, column),
                                numbers.doubts(name, column),
                                comparable=job.subject.size == "base",
                            )
                            for column, mean in zip(columns, means, strict=True)
                        },
                        published_for=None if job.subject.size == "base" else "BERT-base",
                    )
                )
                printed = [numbers.value(name, column) for column in columns]
                claims += _rising(label, job, means, printed)
    return TableResult(
        name="table1",
        title="Word embeddings by rank of the word's frequency",
        unit=1,
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=notes,
    )


def _mean(group: Mapping[str, Any], measure: str, k: int | None) -> Mapping[str, float] | None:
    found = group[measure] if k is None else group[measure][str(k)]
    return found if found is None or found["value"] is not None else None


def _word_cell(
    mean: Mapping[str, float] | None,
    printed: float | None,
    doubts: Sequence[str],
    *,
    comparable: bool,
) -> CellResult:
    shown = CellResult(published=printed, doubts=doubts, comparable=comparable)
    if mean is None:
        return replace(shown, reason="no word of this range is one piece")
    value = mean["value"]
    return replace(
        shown, value=value, low=mean["low"], high=mean["high"], values=[value], median=value
    )


def _rising(
    label: str,
    job: Words,
    means: Sequence[Mapping[str, float] | None],
    printed: Sequence[float | None],
) -> list[ClaimResult]:
    """The claim that a mean is larger for rarer words: the last range against the first."""
    first, last = means[0], means[-1]
    if first is None or last is None or first["low"] is None or last["low"] is None:
        return []
    errors = [(one["high"] - one["low"]) / (2 * 1.96) for one in (first, last)]
    error, rise = math.hypot(*errors), last["value"] - first["value"]
    p = float(2 * scipy.stats.norm.sf(abs(rise) / error)) if error > 0 else float(rise == 0)
    difference = Difference(rise, rise - 1.96 * error, rise + 1.96 * error, p=p, adjusted=p)
    ends = printed[0], printed[-1]
    return [
        ClaimResult(
            text=f"larger for rare words than for frequent ones: {label}",
            encoder=job.subject.label,
            published=None if ends[0] is None or ends[1] is None else ends[1] - ends[0],
            difference=difference,
            verdict="cannot be told",
        )
    ]


@dataclass(frozen=True)
class Scatter:
    """What Figure 2 shows of one encoder.

    Attributes:
        encoder: Its name.
        panels: By name, similarities of the pairs, shape (N,): gold, encoder, flow.
        distances: By unit, edit distances, shape (N,).
    """

    encoder: str
    panels: Mapping[str, Array]
    distances: Mapping[str, Array]


def scatter(plan: Plan, pairs: Pairs, records: Records) -> Scatter:
    """Similarities and edit distances of the pairs of Table 6, of the first seed.

    Raises:
        ModelError: A job has no record yet.
        MissingDependencyError: rapidfuzz is not there.
    """
    column = plan.table.columns[0]
    gold = gold_of(pairs)
    cosines = {
        row.label.format(
            encoder=plan.subject.label, pooling=pooling_label(plan.subject, row)
        ): records.arrays(plan.cells[row.name, column].jobs[0].key)["cosines"]
        for row in plan.rows
    }
    keep = ~np.isnan(gold)
    first, second, _ = pairs.graded()
    return Scatter(
        encoder=plan.subject.label,
        panels={"gold": gold[keep], **{name: one[keep] for name, one in cosines.items()}},
        distances={unit: edit_distances(first, second, unit=unit) for unit in UNITS},
    )


def lexical_table(scatters: Sequence[Scatter], sizes: Sequence[str | None]) -> TableResult:
    """Table 6: how each similarity goes with edit distance, and with gold.

    Args:
        scatters: Of each encoder.
        sizes: Which of the paper's encoders each is, None for others.
    """
    numbers = published("table6")
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
            if name == "gold" and rows:
                continue  # It is the same for every encoder.
            rows.append(
                _lexical_row(
                    name, numbers, known, scattered.encoder, found, comparable=size == "base"
                )
            )
        claims += _lexical_claims(scattered.encoder, list(others), found)
    return TableResult(
        name="table6",
        title="Similarity against edit distance, STS-B dev: Spearman",
        unit=100,
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=list(dict.fromkeys(notes)),
    )


def _lexical_row(
    name: str,
    numbers: PublishedTable,
    known: str,
    encoder: str,
    found: Mapping[str, Lexical],
    *,
    comparable: bool,
) -> RowResult:
    cells: dict[str, CellResult] = {}
    for unit, one in found.items():
        # The published number stands beside both units, since it is one of the two.
        edit, gold = (
            CellResult(
                published=numbers.value(known, column),
                doubts=numbers.doubts(known, column),
                comparable=comparable or known == "gold",
            )
            for column in ("edit", "gold")
        )
        cells[f"edit, {unit}"] = _cell(one.edit[name], edit, one.pairs)
        cells["gold"] = _cell(one.gold[name], gold, one.pairs)
        short = CellResult(comparable=comparable)
        cells[f"edit, ≤ {SHORT} {unit}"] = _cell(one.short_edit[name], short, one.short_pairs)
        cells[f"gold, ≤ {SHORT} {unit}"] = _cell(one.short_gold[name], short, one.short_pairs)
    itself = known == "gold"
    return RowResult(
        name=known,
        label="gold similarity" if itself else name,
        encoder="" if itself else encoder,
        aggregation=None,
        cells=cells,
        published_for=None if comparable or itself else "BERT-base",
    )


def _cell(estimate: Estimate, shown: CellResult, pairs: int) -> CellResult:
    return replace(shown, reason=estimate.undefined, pairs=pairs, **shown_estimate(estimate))


def _lexical_claims(
    encoder: str, names: Sequence[str], found: Mapping[str, Lexical]
) -> list[ClaimResult]:
    """What section 4.4 says; correlations with edit distance are negative, so less is more."""
    raw, flow = names
    numbers = published("table6")
    claims = []
    for unit, one in found.items():
        for text, above, below, rows in (
            (
                f"the encoder goes with edit distance more than gold does ({unit})",
                "gold",
                raw,
                ("gold", "encoder"),
            ),
            (
                f"the flow goes with edit distance less than its encoder does ({unit})",
                flow,
                raw,
                ("flow", "encoder"),
            ),
        ):
            printed = [numbers.value(row, "edit") for row in rows]
            claims.append(
                ClaimResult(
                    text=text,
                    encoder=encoder,
                    published=_less(*printed),
                    difference=scaled(one.difference(above, below), 100),
                    verdict="cannot be told",
                )
            )
    printed = [numbers.value(row, "gold") for row in ("flow", "encoder")]
    claims.append(
        ClaimResult(
            text="the flow goes with gold more than its encoder does",
            encoder=encoder,
            published=_less(*printed),
            difference=scaled(next(iter(found.values())).difference(flow, raw, "gold"), 100),
            verdict="cannot be told",
        )
    )
    return claims


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def sweep_table(plans: Sequence[Plan], records: Records) -> TableResult:
    """Table 7: the flow's hyperparameters, and what one change of each does."""
    result = score_table(plans, records)
    notes = [
        f"{row.label}: paper {row.values['paper']}, released code {row.values['released']}, "
        f"ours {_ours(row.name)}"
        for row in published("table7").rows.values()
    ]
    claims = [claim for plan in plans for claim in _spread_claim(plan, records)]
    return replace(result, claims=judged_claims(claims), notes=[*notes, *result.notes])


def _ours(name: str) -> str:
    arguments = Flow().get_params()
    if name == "coupling":
        return "3 linear layers, residual connection around the middle one"
    return str(arguments[name])


def _spread_claim(plan: Plan, records: Records) -> list[ClaimResult]:
    """The claim that the learning schedule matters more than the architecture does.

    How much a group matters is the mean, over its variations, of the absolute change of the score.
    """
    column = plan.table.columns[0]
    seen = {row.name: seen_of(plan.cells[row.name, column].jobs, row, records) for row in plan.rows}
    reference = seen["flow"]
    values: dict[str, list[float]] = {"architecture": [], "schedule": []}
    drawn: dict[str, list[Array]] = {"architecture": [], "schedule": []}
    for one in VARIATIONS:
        found = seen[one.name]
        if found is None or reference is None:
            return []
        if found.estimate.value is None or reference.estimate.value is None:
            return []
        values[one.group].append(abs(found.estimate.value - reference.estimate.value))
        drawn[one.group].append(np.abs(found.drawn - reference.drawn))
    change = {name: float(np.mean(several)) for name, several in values.items()}
    resampled = {name: np.mean(several, axis=0) for name, several in drawn.items()}
    difference = paired_difference(
        change["schedule"] - change["architecture"],
        resampled["architecture"],
        resampled["schedule"],
    )
    return [
        ClaimResult(
            text="the schedule matters more than the architecture: mean change "
            f"{100 * change['schedule']:.2f} against {100 * change['architecture']:.2f}",
            encoder=plan.subject.label,
            published=None,
            difference=scaled(difference, 100),
            verdict="cannot be told",
        )
    ]
