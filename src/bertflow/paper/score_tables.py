"""Tables of scores, from the records of their jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertflow.arrays import Array
from bertflow.evaluation import Difference, Estimate, holm, over_seeds, paired_difference
from bertflow.evaluation.scores import less
from bertflow.io.result_store import Result, ResultStore
from bertflow.paper.declared import AVERAGE, SEVEN, PublishedTable, Row, published
from bertflow.paper.plan import Cell, Plan
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

INTERVALS = (
    "95 %: bootstrap over pairs, within subsets, and over seeds where there are several; arrows: "
    "above or below the row's baseline beyond chance (paired, Holm over the table), · where that "
    "cannot be told"
)


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
    components: int | None = None


class EncoderRows:
    """The rows of a table for one encoder, from the records of its jobs.

    Args:
        plan: The table for the encoder.
        store: Where the records are.

    Attributes:
        seen: By row and column, "average" among them; None where there is nothing.

    Raises:
        ModelError: A job has no record yet.
    """

    def __init__(self, plan: Plan, store: ResultStore) -> None:
        self.plan = plan
        self.numbers = published(plan.table.name)
        needed = {job.key for job in plan.jobs} | plan.tunings.keys()
        self.records: dict[str, Result] = {key: store.need(key) for key in needed}
        self.seen = {key: self._seen(cell) for key, cell in plan.cells.items()}
        for row in plan.rows:
            self.seen[row.name, AVERAGE] = self._averaged(row)

    def result(self, row: Row, columns: Sequence[str]) -> RowResult:
        """A row with its cells."""
        cells: dict[str, CellResult] = {}
        for column in columns:
            cells[column] = self._cell(row, column, cells)
        chosen = [one.components for one in cells.values() if one.components is not None]
        foreign = any(one.published is not None and not one.comparable for one in cells.values())
        name = published_name(self.plan.subject, row, self.numbers) or ""
        whose = "BERT-large" if name.startswith("large") else "BERT-base"
        ours = row.source in ("raw", "nli")
        return RowResult(
            name=row.name,
            label=self.plan.label(row, f"= {chosen[0]} (chosen)" if chosen else "chosen"),
            encoder=self.plan.subject.label if ours else "",
            aggregation=row.aggregation if len(self.plan.table.columns) > 1 else None,
            cells=cells,
            published_for=whose if foreign else None,
        )

    def difference(self, above: str, below: str, column: str) -> Difference | None:
        """How much higher one row is than another; None where one of them is not there."""
        one, other = self.seen.get((above, column)), self.seen.get((below, column))
        if one is None or other is None or one.scored != other.scored:
            return None
        rise = less(one.estimate.value, other.estimate.value)
        return None if rise is None else paired_difference(rise, other.drawn, one.drawn)

    def claims(self) -> list[ClaimResult]:
        """What the paper says of the rows that are there."""
        rows = {row.name: row for row in self.plan.rows}
        claims = []
        for claim in self.plan.table.claims:
            if claim.above not in rows or claim.below not in rows:
                continue
            found = self.difference(claim.above, claim.below, claim.column)
            above, below = (
                self._printed(rows[name], claim.column).published
                for name in (claim.above, claim.below)
            )
            claims.append(
                ClaimResult(
                    text=claim.text,
                    encoder=self.plan.subject.label,
                    published=less(above, below),
                    # Without both rows there is nothing to tell by.
                    difference=Difference(None) if found is None else scaled(found),
                )
            )
        return claims

    def notes(self) -> list[str]:
        """What must be said beside the rows."""
        return [*self._tunings(), *self._cuts(), *self._unscored(), *self._reasons()]

    def _seen(self, cell: Cell) -> Seen | None:
        """What the records of a cell's jobs say; None if it has no job."""
        if not cell.jobs:
            return None
        records = [self.records[job.key] for job in cell.jobs]
        aggregation = cell.row.aggregation
        estimates, drawn = [], []
        for record in records:
            shown = record.result["figures"]
            estimates.append(Estimate.from_json(shown.get(aggregation, shown["all"])))
            arrays = record.arrays
            drawn.append(arrays.get(f"replicates_{aggregation}", arrays["replicates_all"]))
        mean, _, mixed = over_seeds(estimates, np.stack(drawn))
        return Seen(
            estimate=mean,
            values=[one.value for one in estimates if one.value is not None],
            drawn=mixed,
            scored=records[-1].result["scored"],
            components=records[0].about["n_components"],
        )

    def _averaged(self, row: Row) -> Seen | None:
        """A row over all columns; None if one is lacking or undefined."""
        columns = self.plan.table.columns
        parts = [self.seen[row.name, column] for column in columns]
        there = [part for part in parts if part is not None and part.estimate.value is not None]
        if len(there) < len(columns):
            return None
        drawn: Array = np.mean([part.drawn for part in there], axis=0)
        return Seen(
            estimate=Estimate.of(float(np.mean([part.estimate.value for part in there])), drawn),
            values=np.mean([part.values for part in there], axis=0).tolist(),
            drawn=drawn,
            scored={
                f"{column} {subset}": count
                for column, part in zip(columns, there, strict=True)
                for subset, count in part.scored.items()
            },
        )

    def _printed(self, row: Row, column: str) -> CellResult:
        """What was published beside a cell of ours."""
        name = published_name(self.plan.subject, row, self.numbers)
        if name is None:
            return CellResult()
        printed = self.numbers.rows[name]
        # SBERT's two rows are BERT-base's.
        size = "base" if row.once else name.split(" ")[0]
        own = self.plan.subject.papers and self.plan.subject.size == size
        shown = CellResult(comparable=own or row.source in ("words", "published"))
        if column != AVERAGE:
            return replace(
                shown,
                published=self.numbers.value(name, column),
                published_deviation=printed.deviation,
                published_median=printed.median,
                doubts=printed.doubts[column],
            )
        columns = self.plan.table.columns
        numbers = [self.numbers.value(name, one) for one in columns]
        whole = [number for number in numbers if number is not None]
        doubts = [doubt for one in columns for doubt in printed.doubts[one]]
        return replace(
            shown,
            published=float(np.mean(whole)) if len(whole) == len(numbers) else None,
            doubts=tuple(dict.fromkeys(doubts)),
        )

    def _cell(self, row: Row, column: str, others: Mapping[str, CellResult]) -> CellResult:
        """A cell; the average knows the other cells of its row."""
        shown, seen = self._printed(row, column), self.seen[row.name, column]
        if seen is not None:
            values = [100 * value for value in seen.values]
            shown = replace(shown, **shown_estimate(seen.estimate, values))
        if column == AVERAGE:
            lost = [name for name, one in others.items() if one.value is None]
            if not lost:
                return shown
            reason = f"no {', '.join(lost)}" if len(lost) < len(others) else others[lost[0]].reason
            return replace(shown, reason=reason)
        cell = self.plan.cells[row.name, column]
        if seen is None:
            return replace(shown, reason=cell.reason)
        return replace(
            shown,
            reason=seen.estimate.undefined,
            components=seen.components,
            pairs=sum(seen.scored.values()),
            records=[job.key for job in cell.jobs],
        )

    def _tunings(self) -> list[str]:
        """How well each fine-tuned encoder of the table knows what it was trained for."""
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

    def _cuts(self) -> list[str]:
        """How many texts of each task were too long."""
        cuts: dict[str, int] = {}
        for job in self.plan.jobs:
            cut = self.records[job.key].result.get("cut") or 0
            cuts[job.task] = max(cuts.get(job.task, 0), cut)
        told = [f"{task} {cut:,}" for task, cut in cuts.items() if cut]
        subject = self.plan.subject
        start = f"{subject.label}: distinct texts longer than {subject.max_length} tokens, cut: "
        return [start + ", ".join(told)] if told else []

    def _unscored(self) -> list[str]:
        """How many pairs of each task do not count, by reason, and whether they are fitted on."""
        lacking: dict[str, str] = {}
        cosines: dict[str, dict[str, str]] = {}
        for cell in self.plan.cells.values():
            for job in cell.jobs:
                counts = dict(self.records[job.key].result.get("skipped", {}))
                if lost := counts.pop("no cosine", 0):
                    label = self.plan.label(cell.row)
                    cosines.setdefault(label, {})[job.task] = f"{job.task} {lost:,}"
                if any(counts.values()):
                    reasons = [f"{count:,} {reason}" for reason, count in counts.items() if count]
                    lacking[job.task] = f"{job.task} {', '.join(reasons)}"
        notes = []
        if lacking:
            fitted = any(row.fit == "target" for row in self.plan.rows)
            more = "; what is fitted on the target takes the sentences of ungraded ones, too"
            notes.append(f"pairs not scored: {', '.join(lacking.values())}{more if fitted else ''}")
        for label, tasks in cosines.items():
            told = ", ".join(tasks.values())
            notes.append(f"{label}: pairs without a cosine, a vector being zero: {told}")
        return notes

    def _reasons(self) -> list[str]:
        """Why cells are empty, each reason once."""
        reasons: dict[str, list[str]] = {}
        for key, cell in self.plan.cells.items():
            seen = self.seen[key]
            reason = cell.reason if seen is None else seen.estimate.undefined
            if reason is None or cell.row.source == "published":
                continue
            # Without a file of word vectors the row is empty, whatever the task.
            about = cell.row.label if cell.published_only else cell.column
            if seen is not None:
                about = f"{cell.column}, {cell.row.aggregation}"
            # The places that were tried are many, and differ only in the task.
            reason = re.sub(r"no data for .*?: tried [^;]*;", "no data there;", reason)
            reasons.setdefault(reason, []).append(about)
        return [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items()]


def score_table(plans: Sequence[Plan], store: ResultStore) -> TableResult:
    """A table of scores, from the records of all its jobs.

    Args:
        plans: The table for each encoder.
        store: Where the jobs' records are.

    Raises:
        ModelError: A job has no record yet.
    """
    table = plans[0].table
    whole = table.columns == SEVEN
    columns = [*table.columns, AVERAGE] if whole else list(table.columns)
    rows: list[RowResult] = []
    marks: dict[str, tuple[int, str, Difference]] = {}
    claims: list[ClaimResult] = []
    notes = [INTERVALS, *table.notes]
    for plan in plans:
        encoder = EncoderRows(plan, store)
        for row in plan.rows:
            for column in table.columns if row.baseline is not None else ():
                found = encoder.difference(row.name, row.baseline or "", column)
                if found is not None:
                    marks[f"{len(rows)} {column}"] = len(rows), column, found
            rows.append(encoder.result(row, columns))
        claims += encoder.claims()
        notes += encoder.notes()
    corrected = holm({key: found for key, (_, _, found) in marks.items()})
    for key, (number, column, _) in marks.items():
        cells = rows[number].cells
        marked = replace(cells[column], baseline=scaled(corrected[key]))
        rows[number] = replace(rows[number], cells={**cells, column: marked})
    return TableResult(
        name=table.name,
        title=table.title,
        unit=100,
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=list(dict.fromkeys(notes)),
    )


def published_name(subject: Subject, row: Row, numbers: PublishedTable) -> str | None:
    """The published row that stands beside one of ours: of this encoder, or else of one of them."""
    names = [row.name]
    if not row.once:
        names = [f"{size} {row.name}".strip() for size in (subject.size, "base", "large") if size]
    return next((name for name in names if name in numbers.rows), None)
