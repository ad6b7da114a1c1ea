"""Tables of scores, from the records of their jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertflow.calibrators.base import Array
from bertflow.evaluation import Difference, Estimate, holm, over_seeds, paired_difference
from bertflow.paper.jobs import Score
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
from bertflow.paper.subjects import Subject
from bertflow.paper.tables import AVERAGE, SEVEN, Row

INTERVALS = (
    "95 %: bootstrap over pairs, within subsets, and over seeds where there are several; arrows: "
    "above or below the row's baseline beyond chance (paired, Holm over the table), · where that "
    "cannot be told"
)
WITH_NUMBERS = ("table2", "table3", "table4", "table5", "table8")


@dataclass(frozen=True)
class Seen:
    """What the records of a cell say, on a scale of 1.

    Attributes:
        estimate: The mean over seeds.
        values: Of each seed.
        drawn: The mean in each resample, which takes the next seed, shape (resamples,).
        scored: How many pairs count, by subset.
        components: The chosen n_components, or None.
    """

    estimate: Estimate
    values: Sequence[float]
    drawn: Array
    scored: Mapping[str, int]
    components: int | None


def score_table(plans: Sequence[Plan], records: Records) -> TableResult:
    """A table of scores, from the records of all its jobs.

    Args:
        plans: The table for each encoder.
        records: Where the jobs' records are.

    Raises:
        ModelError: A job has no record yet.
    """
    table = plans[0].table
    numbers = published_or_none(table.name)
    columns = list(table.columns)
    whole = tuple(columns) == tuple(SEVEN)
    rows: list[RowResult] = []
    marks: dict[tuple[int, str], Difference] = {}
    claims: list[ClaimResult] = []
    notes = [INTERVALS, *table.notes]
    for plan in plans:
        seen = {key: seen_of(cell.jobs, cell.row, records) for key, cell in plan.cells.items()}
        for row in plan.rows:
            cells = {
                column: _cell(plan, row, column, seen[row.name, column], numbers)
                for column in columns
            }
            if row.baseline is not None:
                for column in columns:
                    found = _difference(seen, row.name, row.baseline, column)
                    if found is not None:
                        marks[len(rows), column] = found
            if whole:
                cells[AVERAGE] = _average_cell(plan, row, seen, cells)
            rows.append(_row(plan, row, cells))
        claims += _claims(plan, seen, numbers, columns)
        notes += _tunings(plan, records) + _cuts(plan, records) + _unscored(plan, records)
        notes += _reasons(plan, seen)
    corrected = holm({f"{number} {column}": one for (number, column), one in marks.items()})
    for number, column in marks:
        old = rows[number]
        beaten = scaled(corrected[f"{number} {column}"], 100)
        marked = replace(old.cells[column], baseline=beaten)
        rows[number] = replace(old, cells={**old.cells, column: marked})
    return TableResult(
        name=table.name,
        title=table.title,
        unit=100,
        columns=[*columns, AVERAGE] if whole else columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=list(dict.fromkeys(notes)),
    )


def published_or_none(name: str) -> PublishedTable | None:
    """The published numbers of a table of scores, if its rows have some."""
    return published(name) if name in WITH_NUMBERS else None


def seen_of(jobs: Sequence[Score], row: Row, records: Records) -> Seen | None:
    """What the records of a cell's jobs say; None if it has no job."""
    if not jobs:
        return None
    estimates, drawn, components = [], [], []
    for job in jobs:
        record = records.need(job.key)
        shown = record.result["figures"]
        estimates.append(_estimate(shown.get(row.aggregation, shown["all"])))
        arrays = records.arrays(job.key)
        drawn.append(arrays.get(f"replicates_{row.aggregation}", arrays["replicates_all"]))
        components.append(record.about["n_components"])
    mean, _, mixed = over_seeds(estimates, np.stack(drawn))
    return Seen(
        estimate=mean,
        values=[one.value for one in estimates if one.value is not None],
        drawn=mixed,
        scored=record.result["scored"],
        components=components[0],
    )


def _estimate(shown: Mapping[str, Any]) -> Estimate:
    low, high = shown["interval"] or (None, None)
    return Estimate(shown["value"], low, high, shown.get("undefined"))


def _cell(
    plan: Plan, row: Row, column: str, seen: Seen | None, numbers: PublishedTable | None
) -> CellResult:
    shown = CellResult()
    name = published_name(plan.subject, row, numbers)
    if name is not None and numbers is not None:
        printed = numbers.row(name)
        shown = CellResult(
            published=numbers.value(name, column),
            published_deviation=printed.deviation,
            published_median=printed.median,
            doubts=numbers.doubts(name, column),
            comparable=_comparable(plan.subject, row, name),
        )
    if seen is None:
        return replace(shown, reason=plan.cells[row.name, column].reason)
    return replace(
        shown,
        reason=seen.estimate.undefined,
        components=seen.components,
        pairs=sum(seen.scored.values()),
        records=[job.key for job in plan.cells[row.name, column].jobs],
        **shown_estimate(seen.estimate, [100 * value for value in seen.values]),
    )


def _average_cell(
    plan: Plan,
    row: Row,
    seen: Mapping[tuple[str, str], Seen | None],
    cells: Mapping[str, CellResult],
) -> CellResult:
    """The plain mean over the seven tasks, if all are there."""
    numbers = [cells[column].published for column in plan.table.columns]
    whole = [number for number in numbers if number is not None]
    shown = CellResult(
        published=float(np.mean(whole)) if len(whole) == len(numbers) else None,
        comparable=cells[plan.table.columns[0]].comparable,
        doubts=tuple(dict.fromkeys(doubt for cell in cells.values() for doubt in cell.doubts)),
    )
    found = _averaged(seen, row.name, plan.table.columns)
    if found is None:
        lost = [column for column in plan.table.columns if cells[column].value is None]
        reason = cells[lost[0]].reason if len(lost) == len(numbers) else f"no {', '.join(lost)}"
        return replace(shown, reason=reason)
    return replace(shown, **shown_estimate(found.estimate, [100 * value for value in found.values]))


def _averaged(
    seen: Mapping[tuple[str, str], Seen | None], row: str, columns: Sequence[str]
) -> Seen | None:
    """A row over all columns; None if one is lacking or undefined."""
    parts = [seen.get((row, column)) for column in columns]
    there = [part for part in parts if part is not None and part.estimate.value is not None]
    if len(there) < len(columns):
        return None
    drawn: Array = np.mean([part.drawn for part in there], axis=0)
    values = np.mean([part.values for part in there], axis=0)
    return Seen(
        estimate=Estimate.of(float(np.mean([part.estimate.value for part in there])), drawn),
        values=values.tolist(),
        drawn=drawn,
        scored={
            f"{column} {k}": n
            for column, part in zip(columns, there, strict=True)
            for k, n in part.scored.items()
        },
        components=None,
    )


def _difference(
    seen: Mapping[tuple[str, str], Seen | None],
    above: str,
    below: str,
    columns: str | Sequence[str],
) -> Difference | None:
    """How much higher one row is than another; None where one of them is not there."""
    if isinstance(columns, str):
        one, other = seen.get((above, columns)), seen.get((below, columns))
    else:
        one, other = (_averaged(seen, name, columns) for name in (above, below))
    if one is None or other is None or one.scored != other.scored:
        return None
    if one.estimate.value is None or other.estimate.value is None:
        return None
    return paired_difference(one.estimate.value - other.estimate.value, other.drawn, one.drawn)


def _claims(
    plan: Plan,
    seen: Mapping[tuple[str, str], Seen | None],
    numbers: PublishedTable | None,
    columns: Sequence[str],
) -> list[ClaimResult]:
    rows = {row.name: row for row in plan.rows}
    claims = []
    for claim in plan.table.claims:
        if claim.above not in rows or claim.below not in rows:
            continue
        single = claim.column if claim.column != AVERAGE else None
        found = _difference(seen, claim.above, claim.below, single or columns)
        printed = [
            _printed(plan.subject, rows[name], [single] if single else columns, numbers)
            for name in (claim.above, claim.below)
        ]
        claims.append(
            ClaimResult(
                text=claim.text,
                encoder=plan.subject.label,
                published=None
                if printed[0] is None or printed[1] is None
                else printed[0] - printed[1],
                # Without both rows there is nothing to tell by.
                difference=Difference(None) if found is None else scaled(found, 100),
                verdict="cannot be told",
            )
        )
    return claims


def _printed(
    subject: Subject, row: Row, columns: Sequence[str], numbers: PublishedTable | None
) -> float | None:
    name = published_name(subject, row, numbers)
    if numbers is None or name is None:
        return None
    values = [numbers.value(name, column) for column in columns]
    whole = [value for value in values if value is not None]
    return float(np.mean(whole)) if len(whole) == len(values) else None


def published_name(subject: Subject, row: Row, numbers: PublishedTable | None) -> str | None:
    """The published row that stands beside one of ours: of this encoder, or else of one of them."""
    if numbers is None:
        return None
    names = [row.name]
    if not row.once:
        names = [f"{size} {row.name}".strip() for size in (subject.size, "base", "large") if size]
    return next((name for name in names if name in numbers.names), None)


def _comparable(subject: Subject, row: Row, name: str) -> bool:
    """Whether a published row is of this very encoder and pooling."""
    if row.source in ("words", "published"):
        return True
    # SBERT's two rows are BERT-base's.
    size = "base" if row.once else name.split(" ")[0]
    return subject.papers and subject.size == size


def _row(plan: Plan, row: Row, cells: Mapping[str, CellResult]) -> RowResult:
    chosen = [c.components for c in cells.values() if c.components is not None]
    how = f"= {chosen[0]} (chosen)" if chosen else "chosen"
    foreign = any(cell.published is not None and not cell.comparable for cell in cells.values())
    name = published_name(plan.subject, row, published_or_none(plan.table.name)) or ""
    whose = "BERT-large" if name.startswith("large") else "BERT-base"
    return RowResult(
        name=row.name,
        label=row.label.format(
            encoder=plan.subject.label, pooling=pooling_label(plan.subject, row), chosen=how
        ),
        encoder="" if row.source in ("words", "published") else plan.subject.label,
        aggregation=row.aggregation if len(plan.table.columns) > 1 else None,
        cells=cells,
        published_for=whose if foreign else None,
    )


def _tunings(plan: Plan, records: Records) -> list[str]:
    """How well each fine-tuned encoder of the table knows what it was trained for."""
    tunings = {
        job.encoding.tuning.key: job.encoding.tuning
        for cell in plan.cells.values()
        for job in cell.jobs
        if job.encoding.tuning is not None
    }
    notes = []
    for key, tuning in tunings.items():
        record = records.need(key)
        found, about = record.result, record.about
        one, sets = found["accuracy"], " and ".join(name.upper() for name in tuning.sets)
        notes.append(
            f"{plan.subject.label}-NLI, seed {tuning.seed}: trained on "
            f"{sum(found['counts']['train'].values()):,} pairs of {sets}; accuracy on "
            f"{one['pairs']:,} held-out pairs {100 * one['value']:.1f} % "
            f"({100 * one['low']:.1f} to {100 * one['high']:.1f}), most frequent label "
            f"{100 * one['majority']:.1f} %; {about['precision']} on {about['device']}"
        )
    return notes


def _cuts(plan: Plan, records: Records) -> list[str]:
    """How many texts of each task were too long."""
    cuts: dict[str, int] = {}
    for cell in plan.cells.values():
        for job in cell.jobs:
            cut = records.need(job.key).result.get("cut")
            cuts[job.task] = max(cuts.get(job.task, 0), cut or 0)
    told = [f"{task} {cut:,}" for task, cut in cuts.items() if cut]
    if not told:
        return []
    length = plan.subject.max_length
    return [
        f"{plan.subject.label}: distinct texts longer than {length} tokens, cut: {', '.join(told)}"
    ]


def _unscored(plan: Plan, records: Records) -> list[str]:
    """How many pairs of each task do not count, by reason, and whether they are fitted on."""
    lacking: dict[str, dict[str, int]] = {}
    cosines: dict[str, dict[str, int]] = {}
    for cell in plan.cells.values():
        for job in cell.jobs:
            counts = dict(records.need(job.key).result.get("skipped", {}))
            if lost := counts.pop("no cosine", 0):
                label = cell.row.label.format(
                    encoder=plan.subject.label,
                    pooling=pooling_label(plan.subject, cell.row),
                    chosen="chosen",
                )
                cosines.setdefault(label, {})[job.task] = lost
            lacking[job.task] = {reason: count for reason, count in counts.items() if count}
    notes = []
    told = [
        f"{task} {', '.join(f'{count:,} {reason}' for reason, count in counts.items())}"
        for task, counts in lacking.items()
        if counts
    ]
    if told:
        fitted = any(cell.row.fit == "target" for cell in plan.cells.values())
        more = "; what is fitted on the target takes the sentences of ungraded ones, too"
        notes.append(f"pairs not scored: {', '.join(told)}{more if fitted else ''}")
    for label, counts in cosines.items():
        told = [f"{task} {count:,}" for task, count in counts.items()]
        notes.append(f"{label}: pairs without a cosine, a vector being zero: {', '.join(told)}")
    return notes


def _reasons(plan: Plan, seen: Mapping[tuple[str, str], Seen | None]) -> list[str]:
    """Why cells are empty, each reason once."""
    reasons: dict[str, list[str]] = {}
    for key, cell in plan.cells.items():
        found = seen[key]
        reason = cell.reason if found is None else found.estimate.undefined
        if reason is None or cell.row.source == "published":
            continue
        # Without a file of word vectors the row is empty, whatever the task.
        about = cell.row.label if cell.published_only else cell.column
        if found is not None:
            about = f"{cell.column}, {cell.row.aggregation}"
        # The places that were tried are many, and differ only in the task.
        reason = re.sub(r"no data for .*?: tried [^;]*;", "no data there;", reason)
        reasons.setdefault(reason, []).append(about)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items()]
