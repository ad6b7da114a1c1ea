"""A reproduced table: ours, published, the difference, and which claims hold.

Tables of scores are made from the records of their jobs.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from bertflow.arrays import Array
from bertflow.evaluation import Difference, Estimate, holm, over_seeds, paired_difference
from bertflow.evaluation.scores import less, mean_over
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import AVERAGE, PublishedTable, Row, published
from bertflow.paper.plan import Cell, Plan, Subject

Shown = TypeVar("Shown", Difference, Estimate)

INTERVALS = (
    "95 %: bootstrap over pairs, within subsets, and over seeds where there are several; arrows: "
    "above or below the row's baseline beyond chance (paired, Holm over the table), · where that "
    "cannot be told"
)
# Sources of rows that are about the encoder.
OURS = ("raw", "nli")


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Our value in a cell, and the published one; None where there is none.

    Attributes:
        value: The mean over seeds, with `low` and `high`, the ends of its 95 % interval.
        values: The value of each seed, with their `deviation` (ddof 1) and `median`.
        published: The published number, with its `published_deviation` and `published_median`.
        comparable: Whether it was published for this encoder.
        baseline: The difference to the row that this one should beat, with its p-value corrected
            for the table (Holm).
        components: The chosen n_components.
        reason: Why there is no value.
        doubts: Why the published number is doubtful.
        pairs: How many pairs are scored.
        records: Keys of the records of the value, one a seed.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    values: Sequence[float] = ()
    deviation: float | None = None
    median: float | None = None
    published: float | None = None
    published_deviation: float | None = None
    published_median: float | None = None
    comparable: bool = True
    baseline: Difference | None = None
    components: int | None = None
    reason: str | None = None
    doubts: Sequence[str] = ()
    pairs: int | None = None
    records: Sequence[str] = ()

    @property
    def difference(self) -> float | None:
        """Ours less the published one, if that is of the same encoder."""
        return less(self.value, self.published) if self.comparable else None

    def to_dict(self) -> dict[str, Any]:
        """The cell as JSON has it."""
        baseline = self.baseline and self.baseline.to_dict()
        return {**vars(self), "difference": self.difference, "baseline": baseline}


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row of an encoder, with a cell for each column.

    Attributes:
        name: In the declaration.
        aggregation: "wmean" or "all"; None where it makes no difference.
        published_for: Whom the published numbers are of, if that is another encoder.
    """

    name: str
    label: str
    encoder: str
    aggregation: str | None = None
    cells: Mapping[str, CellResult]
    published_for: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """A claim of the paper, and what we see on an encoder.

    Attributes:
        published: The published difference, or None.
        difference: Ours, with its interval and p-value corrected for all claims of the table.
    """

    text: str
    encoder: str
    published: float | None
    difference: Difference

    @property
    def verdict(self) -> str:
        """Whether it holds, where chance is an unlikely explanation of the difference."""
        if not self.difference.real:
            return "cannot be told"
        return "holds" if (self.difference.value or 0) > 0 else "does not hold"


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """A table.

    Attributes:
        name: Such as "table2".
        unit: 100 where values are shown times 100, else 1.
        notes: What must be said beside the rows.
        settings: What all of it depends on: encoders, flow, seeds, limit, NLI sets, versions.
    """

    name: str
    title: str
    unit: int = 100
    columns: Sequence[str]
    rows: Sequence[RowResult]
    claims: Sequence[ClaimResult] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def labels(self) -> list[str]:
        """Labels of the rows, with the encoder before labels that several encoders have."""
        labels = [row.label for row in self.rows]
        return [
            f"{row.encoder}: {label}" if row.encoder and labels.count(label) > 1 else label
            for row, label in zip(self.rows, labels, strict=True)
        ]

    def doubts(self) -> dict[str, str]:
        """By doubt about a published number of the table, the letter that marks it."""
        doubts = dict.fromkeys(
            doubt for row in self.rows for cell in row.cells.values() for doubt in cell.doubts
        )
        return dict(zip(doubts, string.ascii_lowercase, strict=False))

    def facts(self) -> dict[str, str]:
        """What the whole table depends on, besides the versions."""
        found = self.settings
        facts = {
            f"encoder {label}": ", ".join(f"{name} {value}" for name, value in one.items() if value)
            for label, one in found.get("encoders", {}).items()
        }
        if found.get("flow"):
            facts["flow"] = f"{found['flow']}, seeds: {found['seeds']}"
        if found.get("limit"):
            facts["ONLY A TRIAL"] = f"about {found['limit']:,} pairs of each split"
        if found.get("nli"):
            sets = [f"{count:,} sentences of {name}" for name, count in found["nli"].items()]
            facts["NLI"] = ", ".join(sets)
        return facts

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON has it; numbers as they are shown, differences included."""
        rows = [
            _json(row, "name", "row", cells={c: cell.to_dict() for c, cell in row.cells.items()})
            for row in self.rows
        ]
        claims = [
            {
                "claim": one.text,
                "encoder": one.encoder,
                "published": one.published,
                **one.difference.to_dict(),
                "verdict": one.verdict,
            }
            for one in self.claims
        ]
        return _json(self, "name", "table", rows=rows, claims=claims)


def _json(one: Any, name: str, key: str, **parts: Any) -> dict[str, Any]:
    """The fields of a dataclass, one of them under another key, and some of them replaced."""
    found = {**vars(one), **parts}
    return {key: found.pop(name), **found}


def corrected(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Correct the p-values of a table's claims for their number (Holm)."""
    found = holm({place: claim.difference for place, claim in enumerate(claims)})
    return [replace(claim, difference=found[place]) for place, claim in enumerate(claims)]


def scaled(one: Shown) -> Shown:
    """A difference or an estimate as tables show it: times 100."""
    value, low, high = (None if x is None else 100 * x for x in (one.value, one.low, one.high))
    return replace(one, value=value, low=low, high=high)


def shown_estimate(estimate: Estimate, values: Sequence[float] = ()) -> dict[str, Any]:
    """The parts of a cell that an estimate gives, times 100; `values` are those of the seeds."""
    one = scaled(estimate)
    if one.value is None:
        return {}
    values = list(values) or [one.value]
    return {
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "values": values,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "median": float(np.median(values)),
    }


def score_table(plans: Sequence[Plan], store: ResultStore) -> TableResult:
    """A table of scores, from its plan for each encoder and the records of all jobs."""
    table = plans[0].table
    rows: list[RowResult] = []
    changes: dict[tuple[int, str], Difference] = {}
    claims: list[ClaimResult] = []
    notes = [INTERVALS, *table.notes]
    for plan in plans:
        encoder = EncoderRows(plan, store)
        for row in plan.rows:
            if row.baseline is not None:
                for column in table.columns:
                    change = encoder.difference(row.name, row.baseline, column)
                    if change.value is not None:
                        changes[len(rows), column] = change
            rows.append(encoder.rows[row.name])
        claims += [*encoder.claims(), *encoder.spread()]
        notes += [*encoder.tunings(), *encoder.counts(), *encoder.reasons()]
    for (place, column), change in holm(changes).items():
        cells = rows[place].cells
        marked = replace(cells[column], baseline=scaled(change))
        rows[place] = replace(rows[place], cells={**cells, column: marked})
    return TableResult(
        name=table.name,
        title=table.title,
        columns=table.all_columns,
        rows=rows,
        claims=corrected(claims),
        notes=list(dict.fromkeys(notes)),
    )


class EncoderRows:
    """The rows of a table for one encoder, by name, from the records of its jobs.

    By row and column, `estimates` are on a scale of 1, and each of their resamples takes the next
    seed; `scored` counts pairs by subset.
    """

    def __init__(self, plan: Plan, store: ResultStore) -> None:
        self.plan = plan
        self.records = {key: store.need(key) for key in {job.key for job in plan.jobs}}
        self.estimates: dict[tuple[str, str], Estimate] = {}
        self.scored: dict[tuple[str, str], Mapping[str, int]] = {}
        self.rows = {row.name: self._row(row) for row in plan.rows}

    def claims(self) -> list[ClaimResult]:
        """The paper's claims about rows that are there."""
        claims = []
        for claim in self.plan.table.claims:
            above, below = self.rows.get(claim.above), self.rows.get(claim.below)
            if above is None or below is None:
                continue
            # The average of a single task is that task.
            column = claim.column if claim.column in above.cells else self.plan.table.columns[0]
            claims.append(
                ClaimResult(
                    text=claim.text,
                    encoder=self.plan.subject.label,
                    published=less(above.cells[column].published, below.cells[column].published),
                    difference=scaled(self.difference(above.name, below.name, column)),
                )
            )
        return claims

    def spread(self) -> list[ClaimResult]:
        """The claim of Table 7 that the schedule matters more, by the mean absolute change."""
        # By group, the change that each variation makes: of the value, and in each resample.
        changes: dict[str, list[Array]] = {"schedule": [], "architecture": []}
        for row in self.plan.rows:
            if row.group is not None and row.baseline is not None:
                column = self.plan.table.columns[0]
                one, other = (self.estimates[name, column] for name in (row.name, row.baseline))
                if one.value is None or other.value is None:
                    return []
                moved = one.replicates - other.replicates
                changes[row.group].append(np.abs(np.append(one.value - other.value, moved)))
        if not changes["schedule"]:
            return []
        schedule, architecture = (np.mean(several, axis=0) for several in changes.values())
        change = float(schedule[0] - architecture[0])
        text = (
            "the schedule matters more than the architecture: mean change "
            f"{100 * schedule[0]:.2f} against {100 * architecture[0]:.2f}"
        )
        found = scaled(paired_difference(change, architecture[1:], schedule[1:]))
        encoder = self.plan.subject.label
        return [ClaimResult(text=text, encoder=encoder, published=None, difference=found)]

    def difference(self, above: str, below: str, column: str) -> Difference:
        """How much higher one row is than another; without a value where one is missing."""
        columns = self.plan.table.columns if column == AVERAGE else [column]
        if any(self.scored.get((above, one)) != self.scored.get((below, one)) for one in columns):
            return Difference(None)
        one, other = (self.estimates.get((name, column)) for name in (above, below))
        return Difference(None) if one is None or other is None else one.above(other)

    def _ours(self, cell: Cell) -> dict[str, Any]:
        """Our parts of a cell."""
        if not cell.jobs:
            return {"reason": cell.reason}
        records = [self.records[job.key] for job in cell.jobs]
        estimates = []
        for record in records:
            # Without subsets there is "all" alone.
            shown = record.result["figures"]
            name = cell.row.aggregation if cell.row.aggregation in shown else "all"
            one = Estimate.from_json(shown[name])
            estimates.append(replace(one, replicates=record.arrays[f"replicates_{name}"]))
        place = cell.row.name, cell.column
        mean = self.estimates[place] = over_seeds(estimates)
        self.scored[place] = records[-1].result["scored"]
        return {
            **shown_estimate(mean, [100 * one.value for one in estimates if one.value is not None]),
            "reason": mean.undefined,
            "pairs": sum(self.scored[place].values()),
            "components": records[0].about["n_components"],
            "records": [record.key for record in records],
        }

    def _averaged(self, row: Row, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Our parts of the average, from those of the tasks."""
        if lost := [name for name, part in parts.items() if "value" not in part]:
            # Where all are missing, the reason of the first says it.
            first = parts[lost[0]]["reason"] if len(lost) == len(parts) else None
            return {"reason": first or f"no {', '.join(lost)}"}
        mean = mean_over({name: self.estimates[row.name, name] for name in parts})
        self.estimates[row.name, AVERAGE] = mean
        return shown_estimate(
            mean, np.mean([part["values"] for part in parts.values()], axis=0).tolist()
        )

    def _row(self, row: Row) -> RowResult:
        """A row, with the published one beside it."""
        table, subject = self.plan.table, self.plan.subject
        numbers = published(table.name)
        name = published_name(subject, row, numbers)
        whose = None
        if name is not None and row.source in OURS:
            size = "large" if name.startswith("large") else "base"
            whose = None if subject.papers and subject.size == size else f"BERT-{size}"
        ours = {column: self._ours(self.plan.cells[row.name, column]) for column in table.columns}
        if AVERAGE in table.all_columns:
            ours[AVERAGE] = self._averaged(row, ours)
        cells = {
            column: CellResult(**printed(numbers, name, column, whose is None), **parts)
            for column, parts in ours.items()
        }
        chosen = [one.components for one in cells.values() if one.components is not None]
        return RowResult(
            name=row.name,
            label=self.plan.label(row, f"= {chosen[0]} (chosen)" if chosen else "chosen"),
            encoder=subject.label if row.source in OURS else "",
            aggregation=row.aggregation if len(table.columns) > 1 else None,
            cells=cells,
            published_for=whose,
        )

    def tunings(self) -> list[str]:
        """The accuracy of each fine-tuned encoder."""
        notes = []
        for key, tuning in self.plan.tunings.items():
            found, about = self.records[key].result, self.records[key].about
            one, sets = found["accuracy"], " and ".join(name.upper() for name in tuning.sets)
            notes.append(
                f"{self.plan.subject.label}-NLI, seed {tuning.seed}: trained on "
                f"{sum(found['counts']['train'].values()):,} pairs of {sets}; accuracy on "
                f"{one['pairs']:,} held-out pairs {100 * one['value']:.1f} % "
                f"({100 * one['low']:.1f} to {100 * one['high']:.1f}), most frequent label "
                f"{100 * one['majority']:.1f} %; {about['precision']} on {about['device']}"
            )
        return notes

    def counts(self) -> list[str]:
        """How many texts of each task are cut, and how many pairs do not count, with the reason."""
        encoder, length = self.plan.subject.label, self.plan.subject.max_length
        told: dict[str, dict[str, str]] = {}
        for cell in self.plan.cells.values():
            headings = {
                "cut": f"{encoder}: distinct texts longer than {length} tokens, cut",
                "no cosine": f"{self.plan.label(cell.row)}: pairs with a zero vector",
            }
            for job in cell.jobs:
                result = self.records[job.key].result
                counts = {"cut": result.get("cut") or 0, **result.get("skipped", {})}
                for reason, count in counts.items():
                    heading = headings.get(reason, f"pairs not scored, {reason}")
                    if count:
                        told.setdefault(heading, {})[job.task] = f"{job.task} {count:,}"
        return [f"{heading}: {', '.join(tasks.values())}" for heading, tasks in told.items()]

    def reasons(self) -> list[str]:
        """Why cells are empty, each reason once."""
        reasons: dict[str, list[str]] = {}
        for cell in self.plan.cells.values():
            reason = self.rows[cell.row.name].cells[cell.column].reason
            if reason is None or cell.row.source == "published":
                continue
            # Without a file of word vectors the row is empty, whatever the task.
            about = cell.column if cell.reads_data else cell.row.label
            about += f", {cell.row.aggregation}" if cell.jobs else ""
            # The places that were tried are many, and differ only in the task.
            reason = re.sub(r"no data for .*?: tried [^;]*;", "no data there;", reason)
            reasons.setdefault(reason, []).append(about)
        return [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items()]


def printed(
    numbers: PublishedTable, row: str | None, column: str, comparable: bool
) -> dict[str, Any]:
    """The parts of a cell that were published; `comparable` says whether for this encoder."""
    if row is None or column not in (*numbers.columns, AVERAGE):
        return {}
    return {
        "comparable": comparable,
        "published": numbers.value(row, column),
        "published_deviation": numbers.rows[row].deviation,
        "published_median": numbers.rows[row].median,
        "doubts": numbers.doubts(row, column),
    }


def published_name(subject: Subject, row: Row, numbers: PublishedTable) -> str | None:
    """The published row beside one of ours: of this encoder, or else of base or large."""
    names = [row.name]
    if not row.once:
        names = [f"{size} {row.name}".strip() for size in (subject.size, "base", "large") if size]
    return next((name for name in names if name in numbers.rows), None)
