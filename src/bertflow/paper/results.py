"""What a reproduced table holds: ours, published, the difference, and what of the claims holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bertflow.evaluation import Difference, Estimate, holm
from bertflow.evaluation.scores import less

Verdict = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What we have in a cell, and what was published there.

    Attributes:
        value: The mean over seeds; None where there is none.
        low: Lower end of its 95 % interval.
        high: Upper end.
        values: Of each seed.
        deviation: Over seeds, ddof 1; None where there is one.
        median: Over seeds.
        published: The published number; None where there is none.
        published_deviation: Its deviation over seeds, where that was published.
        published_median: Its median over seeds, likewise.
        comparable: Whether it was published for this encoder.
        baseline: The difference to the row that this one should beat, with its p-value corrected
            for the table (Holm); None where there is none.
        components: The chosen n_components.
        reason: Why there is no value, or None.
        doubts: What is doubtful about the published number.
        pairs: How many pairs are scored; None where that is not what is counted.
        records: Keys of the records that the value comes from, one a seed.
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
        """Ours less the published one, where that is of the same encoder."""
        return less(self.value, self.published) if self.comparable else None


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row.

    Attributes:
        name: In the declaration.
        label: What it is called.
        encoder: Whose it is.
        aggregation: "wmean" or "all"; None where it makes no difference.
        cells: By column.
        published_for: Whom the published numbers are of, where that is another encoder.
    """

    name: str = ""
    label: str
    encoder: str = ""
    aggregation: str | None = None
    cells: Mapping[str, CellResult]
    published_for: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """What the paper says, and what we see.

    Attributes:
        text: The claim.
        encoder: Whom it is looked at on.
        published: The published difference, or None.
        difference: Ours, with its interval and p-value corrected for all claims of the table.
        verdict: "holds" or "does not hold" where chance is an unlikely explanation.
    """

    text: str
    encoder: str
    published: float | None
    difference: Difference
    verdict: Verdict = "cannot be told"


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
            KeyError: A part is not there.
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
        verdict: Verdict = "cannot be told"
        if found.real:
            verdict = "holds" if (found.value or 0) > 0 else "does not hold"
        judged.append(replace(one, difference=found, verdict=verdict))
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
