"""A reproduced table: ours, published, the difference, and which claims hold.

Tables of scores are made from the records of their jobs.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

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
T = TypeVar("T")
Place = tuple[str, str]  # A row and a column.
CSV_COLUMNS = (
    *("table", "encoder", "row", "column", "aggregation", "value", "low", "high", "seeds"),
    *("deviation", "median", "pairs", "published", "published_for", "difference", "doubts"),
    "reason",
)


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

    def marks(self, letters: Mapping[str, str]) -> str:
        """The letters of the doubts about the published number."""
        doubts = () if self.published is None else self.doubts
        return "".join(sorted(letters[doubt] for doubt in doubts))


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row of an encoder, with a cell for each column.

    Attributes:
        name: In the declaration.
        aggregation: "wmean" or "all"; None where it makes no difference.
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
    """A claim of the paper, and what we see on an encoder.

    Attributes:
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
        unit: 100 where values are shown times 100, else 1.
        notes: What must be said beside the rows.
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

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TableResult:
        """The table that `to_dict` gave; a KeyError if a part is missing."""
        rows = [
            _of(
                RowResult,
                row,
                name=row["row"],
                cells={column: _saved_cell(row["cells"][column]) for column in saved["columns"]},
            )
            for row in saved["rows"]
        ]
        claims = [
            _of(ClaimResult, claim, text=claim["claim"], difference=Difference.from_dict(claim))
            for claim in saved["claims"]
        ]
        return _of(cls, saved, name=saved["table"], rows=rows, claims=claims)

    def to_csv(self) -> str:
        """The table as CSV, a row a cell."""
        out = io.StringIO()
        writer = csv.DictWriter(out, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            for column in self.columns:
                cell = row.cells[column]
                about = {
                    "table": self.name,
                    "encoder": row.encoder,
                    "row": row.label,
                    "column": column,
                    "aggregation": row.aggregation,
                    "seeds": len(cell.values),
                    "published_for": row.published_for or row.encoder,
                    "doubts": "; ".join(cell.doubts),
                }
                writer.writerow({**cell.to_dict(), **about})
        return out.getvalue()


def _of(kind: type[T], saved: Mapping[str, Any], **parts: Any) -> T:
    """A dataclass from its JSON, and the parts that JSON has otherwise."""
    found = {**saved, **parts}
    return kind(**{one.name: found[one.name] for one in fields(kind)})  # type: ignore[arg-type]


def _saved_cell(saved: Mapping[str, Any]) -> CellResult:
    baseline = saved["baseline"]
    return _of(CellResult, saved, baseline=baseline and Difference.from_dict(baseline))


def _json(one: Any, name: str, key: str, **parts: Any) -> dict[str, Any]:
    """The fields of a dataclass, one of them under another key, and some of them replaced."""
    found = {**vars(one), **parts}
    return {key: found.pop(name), **found}


def _corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Differences with p-values that are corrected for their number (Holm)."""
    return list(holm({str(place): one for place, one in enumerate(differences)}).values())


def judged_claims(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Correct the p-values of a table's claims for their number (Holm), and say what holds."""
    judged = []
    for one, found in zip(claims, _corrected([c.difference for c in claims]), strict=True):
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
    """The parts of a cell that an estimate gives, times 100; `values` are those of the seeds."""
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
    changes: dict[tuple[int, str], Difference] = {}
    claims: list[ClaimResult] = []
    notes = [INTERVALS, *table.notes]
    for plan in plans:
        encoder = EncoderRows(plan, store)
        for row in plan.rows:
            for column in table.columns if row.baseline is not None else ():
                change = encoder.difference((row.name, column), (row.baseline or "", column))
                if change.value is not None:
                    changes[len(rows), column] = change
            rows.append(encoder.result(row, columns))
        claims += encoder.claims()
        notes += encoder.notes()
    for (place, column), change in zip(changes, _corrected([*changes.values()]), strict=True):
        rows[place] = rows[place].marked({column: scaled(change)})
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
    """The content of a cell's records, on a scale of 1; without a value, the reason.

    Each resample of the estimate takes the next seed. `scored` counts pairs by subset.
    """

    estimate: Estimate
    values: Sequence[float] = ()
    scored: Mapping[str, int] = field(default_factory=dict)
    components: int | None = None
    records: Sequence[str] = ()


class EncoderRows:
    """The rows of a table for one encoder, from the records of its jobs.

    `seen` has our values by row and column, "average" among them, and `printed` the published ones.
    """

    def __init__(self, plan: Plan, store: ResultStore) -> None:
        self.plan = plan
        self.numbers = published(plan.table.name)
        needed = {job.key for job in plan.jobs} | plan.tunings.keys()
        self.records = {key: store.need(key) for key in needed}
        self.seen = {key: self._seen(cell) for key, cell in plan.cells.items()}
        self.seen |= {(row.name, AVERAGE): self._averaged(row) for row in plan.rows}
        self.printed = {
            (row.name, column): self._printed(row, column)
            for row in plan.rows
            for column in (*plan.table.columns, AVERAGE)
        }

    def result(self, row: Row, columns: Sequence[str]) -> RowResult:
        """A row with its cells."""
        cells = {column: self._cell(row, column) for column in columns}
        chosen = [one.components for one in cells.values() if one.components is not None]
        foreign = any(one.published is not None and not one.comparable for one in cells.values())
        name = published_name(self.plan.subject, row, self.numbers) or ""
        whose = "BERT-large" if name.startswith("large") else "BERT-base"
        return RowResult(
            name=row.name,
            label=self.plan.label(row, f"= {chosen[0]} (chosen)" if chosen else "chosen"),
            encoder=self.plan.subject.label if row.source in ("raw", "nli") else "",
            aggregation=row.aggregation if len(self.plan.table.columns) > 1 else None,
            cells=cells,
            published_for=whose if foreign else None,
        )

    def difference(self, above: Place, below: Place) -> Difference:
        """How much higher one cell is than another; without a value where one is missing."""
        one, other = self.seen.get(above), self.seen.get(below)
        if one is None or other is None or one.scored != other.scored:
            return Difference(None)
        return one.estimate.above(other.estimate)

    def claims(self) -> list[ClaimResult]:
        """The paper's claims about rows that are there."""
        return [
            ClaimResult(
                text=claim.text,
                encoder=self.plan.subject.label,
                published=less(self.printed[above].published, self.printed[below].published),
                difference=scaled(self.difference(above, below)),
            )
            for claim in self.plan.table.claims
            for above, below in [((claim.above, claim.column), (claim.below, claim.column))]
            if {above, below} <= self.seen.keys()
        ]

    def notes(self) -> list[str]:
        """Notes that belong beside the rows."""
        return [*self._tunings(), *self._counts(), *self._reasons()]

    def _seen(self, cell: Cell) -> Seen:
        if not cell.jobs:
            return Seen(Estimate(None, undefined=cell.reason))
        records = [self.records[job.key] for job in cell.jobs]
        estimates = []
        for record in records:
            # Without subsets there is "all" alone.
            shown = record.result["figures"]
            name = cell.row.aggregation if cell.row.aggregation in shown else "all"
            one = Estimate.from_json(shown[name])
            estimates.append(replace(one, replicates=record.arrays[f"replicates_{name}"]))
        return Seen(
            estimate=over_seeds(estimates),
            values=[one.value for one in estimates if one.value is not None],
            scored=records[-1].result["scored"],
            components=records[0].about["n_components"],
            records=[record.key for record in records],
        )

    def _averaged(self, row: Row) -> Seen:
        parts = {name: self.seen[row.name, name] for name in self.plan.table.columns}
        if lost := [name for name, part in parts.items() if part.estimate.value is None]:
            # Where all are missing, the reason of the first says it.
            first = parts[lost[0]].estimate.undefined if len(lost) == len(parts) else None
            return Seen(Estimate(None, undefined=first or f"no {', '.join(lost)}"))
        return Seen(
            estimate=mean_over({name: part.estimate for name, part in parts.items()}),
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
        # SBERT's two rows are BERT-base's.
        size = "base" if row.once else name.split(" ")[0]
        own = self.plan.subject.papers and self.plan.subject.size == size
        return printed_cell(self.numbers, name, column, own or row.source in ("words", "published"))

    def _cell(self, row: Row, column: str) -> CellResult:
        seen = self.seen[row.name, column]
        counted = seen.scored and column != AVERAGE
        return replace(
            self.printed[row.name, column],
            **shown_estimate(seen.estimate, [100 * value for value in seen.values]),
            reason=seen.estimate.undefined,
            components=seen.components,
            pairs=sum(seen.scored.values()) if counted else None,
            records=seen.records,
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

    def _counts(self) -> list[str]:
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

    def _reasons(self) -> list[str]:
        """Why cells are empty, each reason once."""
        reasons: dict[str, list[str]] = {}
        for key, cell in self.plan.cells.items():
            reason = self.seen[key].estimate.undefined
            if reason is None or cell.row.source == "published":
                continue
            # Without a file of word vectors the row is empty, whatever the task.
            about = cell.row.label if cell.published_only else cell.column
            about += f", {cell.row.aggregation}" if cell.jobs else ""
            # The places that were tried are many, and differ only in the task.
            reason = re.sub(r"no data for .*?: tried [^;]*;", "no data there;", reason)
            reasons.setdefault(reason, []).append(about)
        return [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items()]


def printed_cell(numbers: PublishedTable, row: str, column: str, comparable: bool) -> CellResult:
    """A published number, and nothing of ours."""
    return CellResult(
        comparable=comparable,
        published=numbers.value(row, column),
        published_deviation=numbers.rows[row].deviation,
        published_median=numbers.rows[row].median,
        doubts=numbers.doubts(row, column),
    )


def published_name(subject: Subject, row: Row, numbers: PublishedTable) -> str | None:
    """The published row beside one of ours: of this encoder, or else of base or large."""
    names = [row.name]
    if not row.once:
        names = [f"{size} {row.name}".strip() for size in (subject.size, "base", "large") if size]
    return next((name for name in names if name in numbers.rows), None)
