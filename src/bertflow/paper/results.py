"""A reproduced table: ours, published, the difference, and which claims hold.

Tables of scores are made from the records of their jobs.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bertflow.evaluation import Difference, Estimate, holm, over_seeds
from bertflow.evaluation.scores import less, mean_over
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import AVERAGE, SEVEN, PublishedTable, Row, published
from bertflow.paper.plan import Cell, Plan
from bertflow.paper.subjects import Subject

INTERVALS = (
    "95 %: bootstrap over pairs, within subsets, and over seeds where there are several; arrows: "
    "above or below the row's baseline beyond chance (paired, Holm over the table), · where that "
    "cannot be told"
)


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Our value in a cell, and the published one.

    Attributes:
        value: The mean over seeds; None where there is none.
        low: Lower end of its 95 % interval.
        high: Upper end.
        values: The value of each seed.
        deviation: Over seeds, ddof 1; None of a single seed.
        median: Over seeds.
        published: The published number; None where there is none.
        published_deviation: Its deviation over seeds, if that was published.
        published_median: Its median over seeds, if that was published.
        comparable: Whether it was published for this encoder.
        baseline: The difference to the row that this one should beat, with its p-value corrected
            for the table (Holm); None where there is none.
        components: The chosen n_components.
        reason: Why there is no value, or None.
        doubts: Why the published number is doubtful.
        pairs: How many pairs are scored; None in tables that do not count pairs.
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

    def marks(self, letters: Mapping[str, str]) -> str:
        """The letters of the doubts about the published number."""
        doubts = () if self.published is None else self.doubts
        return "".join(sorted(letters[doubt] for doubt in doubts))


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row.

    Attributes:
        name: In the declaration.
        label: What it is called.
        encoder: Whose it is.
        aggregation: "wmean" or "all"; None where it makes no difference.
        cells: By column.
        published_for: Whom the published numbers are of, if that is another encoder.
    """

    name: str = ""
    label: str
    encoder: str = ""
    aggregation: str | None = None
    cells: Mapping[str, CellResult]
    published_for: str | None = None

    def marked(self, baselines: Mapping[str, Difference]) -> RowResult:
        """The row with differences to its baseline, by column."""
        marked = {name: replace(self.cells[name], baseline=one) for name, one in baselines.items()}
        return replace(self, cells={**self.cells, **marked})


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """A claim of the paper, and what we see.

    Attributes:
        text: The claim.
        encoder: The encoder that it is checked on.
        published: The published difference, or None.
        difference: Ours, with its interval and p-value corrected for all claims of the table.
        verdict: "holds" or "does not hold" where chance is an unlikely explanation.
    """

    text: str
    encoder: str
    published: float | None
    difference: Difference
    verdict: Literal["holds", "does not hold", "cannot be told"] = "cannot be told"


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """A table.

    Attributes:
        name: Such as "table2".
        title: What it shows.
        unit: 100 where values are shown times 100, else 1.
        columns: Names.
        rows: In order.
        claims: In order.
        notes: What must be said beside them.
        settings: What all of it depends on: encoders, flow, seeds, limit, NLI sets, versions.
    """

    name: str = ""
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

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON has it; numbers as they are shown, differences included."""
        return {
            "table": self.name,
            "title": self.title,
            "unit": self.unit,
            "columns": list(self.columns),
            "rows": [
                {
                    "row": row.name,
                    "label": row.label,
                    "encoder": row.encoder,
                    "aggregation": row.aggregation,
                    "published_for": row.published_for,
                    "cells": {
                        column: {
                            **asdict(replace(cell, baseline=None)),
                            "difference": cell.difference,
                            "baseline": cell.baseline and cell.baseline.to_dict(),
                        }
                        for column, cell in row.cells.items()
                    },
                }
                for row in self.rows
            ],
            "claims": [
                {
                    "claim": one.text,
                    "encoder": one.encoder,
                    "published": one.published,
                    **one.difference.to_dict(),
                    "verdict": one.verdict,
                }
                for one in self.claims
            ],
            "notes": list(self.notes),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TableResult:
        """The table that `to_dict` gave.

        Raises:
            KeyError: A part is missing.
            TypeError: A part is of another kind.
        """
        rows = [
            RowResult(
                name=row["row"],
                label=row["label"],
                encoder=row["encoder"],
                aggregation=row["aggregation"],
                cells={column: _saved_cell(row["cells"][column]) for column in saved["columns"]},
                published_for=row["published_for"],
            )
            for row in saved["rows"]
        ]
        claims = [
            ClaimResult(
                text=claim["claim"],
                encoder=claim["encoder"],
                published=claim["published"],
                difference=Difference.from_dict(claim),
                verdict=claim["verdict"],
            )
            for claim in saved["claims"]
        ]
        plain = {name: saved[name] for name in ("title", "unit", "columns", "notes", "settings")}
        return cls(name=saved["table"], rows=rows, claims=claims, **plain)

    def flat(self) -> list[dict[str, Any]]:
        """A row a cell, as CSV has it."""
        return [
            {
                "table": self.name,
                "encoder": row.encoder,
                "row": row.label,
                "column": column,
                "aggregation": row.aggregation or "",
                "value": cell.value,
                "low": cell.low,
                "high": cell.high,
                "seeds": len(cell.values),
                "deviation": cell.deviation,
                "median": cell.median,
                "pairs": cell.pairs,
                "published": cell.published,
                "published_for": row.published_for or row.encoder,
                "difference": cell.difference,
                "doubts": "; ".join(cell.doubts),
                "reason": cell.reason or "",
            }
            for row in self.rows
            for column in self.columns
            for cell in [row.cells[column]]
        ]


def _saved_cell(saved: Mapping[str, Any]) -> CellResult:
    plain = {name: saved[name] for name in CellResult.__dataclass_fields__}
    baseline = plain.pop("baseline")
    return CellResult(**plain, baseline=baseline and Difference.from_dict(baseline))


def judged_claims(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Correct the p-values of a table's claims for their number (Holm), and say what holds."""
    corrected = holm({str(place): one.difference for place, one in enumerate(claims)})
    judged = []
    for place, one in enumerate(claims):
        found = corrected[str(place)]
        one = replace(one, difference=found, verdict="cannot be told")
        if found.real:
            one = replace(one, verdict="holds" if (found.value or 0) > 0 else "does not hold")
        judged.append(one)
    return judged


def scaled(one: Difference) -> Difference:
    """A difference times 100."""
    value, low, high = (None if x is None else 100 * x for x in (one.value, one.low, one.high))
    return replace(one, value=value, low=low, high=high)


def shown_estimate(estimate: Estimate, values: Sequence[float] = ()) -> dict[str, Any]:
    """The parts of a cell that an estimate gives, times 100; nothing where it is undefined.

    Args:
        estimate: The mean over seeds, on a scale of 1.
        values: Of each seed, times 100; none where there is one.
    """
    if estimate.value is None:
        return {}
    values = list(values) or [100 * estimate.value]
    return {
        "value": 100 * estimate.value,
        "low": None if estimate.low is None else 100 * estimate.low,
        "high": None if estimate.high is None else 100 * estimate.high,
        "values": values,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "median": float(np.median(values)),
    }


def score_table(plans: Sequence[Plan], store: ResultStore) -> TableResult:
    """A table of scores, from its plan for each encoder and the records of all jobs."""
    table = plans[0].table
    columns = [*table.columns, AVERAGE] if table.columns == SEVEN else list(table.columns)
    rows: list[RowResult] = []
    changes: dict[str, Difference] = {}
    claims: list[ClaimResult] = []
    notes = [INTERVALS, *table.notes]
    for plan in plans:
        encoder = EncoderRows(plan, store)
        for row in plan.rows:
            for column in table.columns if row.baseline is not None else ():
                change = encoder.difference(row.name, row.baseline or "", column)
                if change is not None:
                    changes[f"{len(rows)} {column}"] = change
            rows.append(encoder.result(row, columns))
        claims += encoder.claims()
        notes += encoder.notes()
    for key, change in holm(changes).items():
        number, _, column = key.partition(" ")
        rows[int(number)] = rows[int(number)].marked({column: scaled(change)})
    return TableResult(
        name=table.name,
        title=table.title,
        columns=columns,
        rows=rows,
        claims=judged_claims(claims),
        notes=list(dict.fromkeys(notes)),
    )


@dataclass(frozen=True)
class Seen:
    """The content of a cell's records, on a scale of 1.

    Attributes:
        estimate: The mean over seeds; each resample takes the next seed.
        values: Of each seed.
        scored: How many pairs count, by subset.
        components: The chosen n_components, or None.
    """

    estimate: Estimate
    values: Sequence[float]
    scored: Mapping[str, int]
    components: int | None = None


class EncoderRows:
    """The rows of a table for one encoder, from the records of its jobs.

    Attributes:
        seen: By row and column, "average" among them; None where there is nothing.
    """

    def __init__(self, plan: Plan, store: ResultStore) -> None:
        self.plan = plan
        self.numbers = published(plan.table.name)
        needed = {job.key for job in plan.jobs} | plan.tunings.keys()
        self.records = {key: store.need(key) for key in needed}
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
        """How much higher one row is than another; None where one is missing."""
        one, other = self.seen.get((above, column)), self.seen.get((below, column))
        if one is None or other is None or one.scored != other.scored:
            return None
        found = one.estimate.above(other.estimate)
        return None if found.value is None else found

    def claims(self) -> list[ClaimResult]:
        """The paper's claims about rows that are there."""
        rows = {row.name: row for row in self.plan.rows}
        claims = []
        for claim in self.plan.table.claims:
            if not {claim.above, claim.below} <= rows.keys():
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
                    difference=Difference(None) if found is None else scaled(found),
                )
            )
        return claims

    def notes(self) -> list[str]:
        """Notes that belong beside the rows."""
        return [*self._tunings(), *self._cuts(), *self._unscored(), *self._reasons()]

    def _seen(self, cell: Cell) -> Seen | None:
        if not cell.jobs:
            return None
        records = [self.records[job.key] for job in cell.jobs]
        aggregation = cell.row.aggregation
        estimates = []
        for record in records:
            shown, arrays = record.result["figures"], record.arrays
            drawn = arrays.get(f"replicates_{aggregation}", arrays["replicates_all"])
            one = Estimate.from_json(shown.get(aggregation, shown["all"]))
            estimates.append(replace(one, replicates=drawn))
        mean, _ = over_seeds(estimates)
        return Seen(
            estimate=mean,
            values=[one.value for one in estimates if one.value is not None],
            scored=records[-1].result["scored"],
            components=records[0].about["n_components"],
        )

    def _averaged(self, row: Row) -> Seen | None:
        """A row over all columns; None if one is missing or undefined."""
        columns = self.plan.table.columns
        parts = {name: seen for name in columns if (seen := self.seen[row.name, name])}
        if len(parts) < len(columns):
            return None
        mean = mean_over({name: part.estimate for name, part in parts.items()})
        if mean.value is None:
            return None
        return Seen(
            estimate=mean,
            values=np.mean([part.values for part in parts.values()], axis=0).tolist(),
            scored={
                f"{name} {subset}": count
                for name, part in parts.items()
                for subset, count in part.scored.items()
            },
        )

    def _printed(self, row: Row, column: str) -> CellResult:
        """The published number beside a cell of ours."""
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
        """How many pairs of each task do not count, and why."""
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


def published_name(subject: Subject, row: Row, numbers: PublishedTable) -> str | None:
    """The published row beside one of ours: of this encoder, or else of base or large."""
    names = [row.name]
    if not row.once:
        names = [f"{size} {row.name}".strip() for size in (subject.size, "base", "large") if size]
    return next((name for name in names if name in numbers.rows), None)
