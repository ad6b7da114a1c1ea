"""The paper's tables as we make them, and the published numbers: two TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from bertflow.calibrators import Calibrator, named_calibrator

FLOWS = {"paper": "flow", "released": "released-flow", "tempered": "tempered-flow"}
SEVEN = ["stsb", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16"]
AVERAGE = "average"

# The released code, which gave the published numbers, averages these for "last2avg".
PAPER_POOLING = "first-last-avg"
PLAIN_POOLING = "mean"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: an encoder under a pooling and a calibrator.

    Attributes:
        name: Of the row in its table; with the encoder's size before it, of the published one.
        source: "raw", the encoder; "nli", fine-tuned on NLI; "words", averaged word vectors;
            "published", nothing that we can run.
        pooling: As in `load_encoder`. A pooling that the user names replaces it.
        other: Whether the row is about another pooling than its table, and so is left out where
            the user names one.
        calibrator: "flow", the flow that is asked for; "paper-flow"; or the name of another one.
        group: In Table 7 "architecture" or "schedule", if the row changes one argument.
        seeded: Whether there is a fit a seed.
        chosen: Whether n_components is chosen on the dev split, from 1 to 20.
        fit: "nli", "target", or None.
        aggregation: Of tasks with subsets, "wmean" or "all".
        baseline: The row that this one should beat.
        once: Whether the first encoder alone has the row, and its published row has no size.
        per_seed: Whether the fine-tuning, too, is done once a seed.
    """

    name: str
    label: str
    source: str = "raw"
    pooling: str = PAPER_POOLING
    other: bool = False
    calibrator: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    seeded: bool = False
    chosen: bool = False
    fit: str | None = None
    aggregation: str = "wmean"
    baseline: str | None = None
    once: bool = False
    per_seed: bool = False

    def build(self, flow: str, seed: int) -> Calibrator | None:
        """The calibrator, not fitted."""
        if self.calibrator is None:
            return None
        if not self.calibrator.endswith("flow"):
            return named_calibrator(self.calibrator, **self.arguments)
        name = FLOWS[flow if self.calibrator == "flow" else "paper"]
        # Several fits run at a time, and the bits must not depend on the device.
        return named_calibrator(name, random_state=seed, device="cpu", **self.arguments)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that one row is above another, on a task or the "average" over the table's."""

    text: str
    above: str
    below: str
    column: str = AVERAGE


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of scores of an encoder; its columns are tasks, by default on their usual split."""

    name: str
    title: str
    columns: Sequence[str]
    split: str | None = None
    rows: Sequence[Row]
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()

    @property
    def all_columns(self) -> list[str]:
        """The columns, and the average where they are the seven STS tasks."""
        return [*self.columns, AVERAGE] if self.columns == SEVEN else [*self.columns]


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A row as it was printed.

    Attributes:
        name: A short stable key; it begins with base or large where each has a row.
        source: Who published it first.
        values: By column, a number in the table's unit, or words.
        aggregation: Over the subsets of a task; None in a table of tasks without subsets.
        doubts: By column, why the number is doubtful, a sentence each.
        deviation: Over seeds, as `median`; `values` are then means over them.
    """

    name: str
    label: str
    source: str
    values: Mapping[str, float | str]
    aggregation: str | None = None
    doubts: Mapping[str, tuple[str, ...]]
    deviation: float | None = None
    median: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table as it was printed.

    Attributes:
        measure: "spearman", "auc", "mean" or "hyperparameter".
        unit: 100 where the numbers are the measure times 100, else 1.
        rows: By name, in the printed order.
    """

    name: str
    title: str
    source: str
    measure: str
    unit: int
    columns: tuple[str, ...]
    rows: Mapping[str, PublishedRow]

    def value(self, row: str, column: str) -> float | None:
        """A number in the table's unit, or their "average"; None where words are printed."""
        if column == AVERAGE:
            numbers = [self.value(row, one) for one in self.columns]
            whole = [number for number in numbers if number is not None]
            return sum(whole) / len(whole) if len(whole) == len(numbers) else None
        cell = self.rows[row].values[column]
        return None if isinstance(cell, str) else cell

    def doubts(self, row: str, column: str) -> tuple[str, ...]:
        """Why a number is doubtful, or any of those that an average is made of."""
        doubts = self.rows[row].doubts
        columns = self.columns if column == AVERAGE else (column,)
        return tuple(dict.fromkeys(doubt for one in columns for doubt in doubts[one]))


def published(name: str) -> PublishedTable:
    """A published table: "table1" to "table8" of Li et al. 2020, "whitening" of Su et al. 2021."""
    return _published_tables()[name]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("bertflow.paper").joinpath(name).read_text(encoding="utf-8"))


@cache
def _published_tables() -> Mapping[str, PublishedTable]:
    tables = _read("published.toml")
    doubts = tables.pop("doubts")
    for name, table in tables.items():
        columns = tuple(table.pop("columns"))
        rows = {}
        for raw in table.pop("rows"):
            values = dict(zip(columns, raw.pop("values"), strict=True))
            told = [doubts[key] for key in raw.pop("doubts", ())]
            by_column = {
                column: tuple(d["text"] for d in told if column in d.get("columns", columns))
                for column in columns
            }
            row = {"source": table["source"], **raw, "values": values, "doubts": by_column}
            rows[raw["name"]] = PublishedRow(**row)
        tables[name] = PublishedTable(name=name, columns=columns, rows=rows, **table)
    return tables


def _our_tables() -> Iterator[Table]:
    tables = _read("tables.toml")
    notes = tables.pop("notes")
    for name, table in tables.items():
        rows = [Row(**raw) for raw in table.pop("rows")]
        rows += [
            Row(
                name=f"{argument} = {value}",
                label=f"{group}: {argument} = {value}",
                calibrator="paper-flow",
                arguments={argument: value},
                group=group,
                seeded=True,
                fit="target",
                baseline="flow",
            )
            for group, arguments in table.pop("variations", {}).items()
            for argument, values in arguments.items()
            for value in values
        ]
        claims = [Claim(**raw) for raw in table.pop("claims", ())]
        told = [notes.get(note, note) for note in table.pop("notes", ())]
        if published(name).measure == "hyperparameter":
            told += [
                f"{row.label}: paper {row.values['paper']}, released code {row.values['released']}"
                for row in published(name).rows.values()
            ]
        yield Table(name=name, rows=rows, claims=claims, notes=told, **table)


SCORE_TABLES: Mapping[str, Table] = {table.name: table for table in _our_tables()}
