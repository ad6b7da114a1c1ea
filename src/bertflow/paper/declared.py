"""The paper's tables as we make them, and the published numbers: two TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from bertflow.calibrators import AllButTheTop, Calibrator, Flow, Standardization

FlowName = Literal["paper", "released", "tempered"]
FLOWS: Mapping[str, Callable[..., Flow]] = {
    "paper": Flow,
    "released": Flow.released,
    "tempered": Flow.tempered,
}
SEVEN = ("stsb", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")
AVERAGE = "average"

# The released code, which gave the published numbers, averages these for "last2avg".
PAPER_POOLING = "first-last-avg"
PLAIN_POOLING = "mean"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: an encoder under a pooling and a calibrator.

    Attributes:
        name: Of the row in its table; with the encoder's size before it, of the published one.
        label: What it is called; {encoder} stands for the encoder's name.
        source: "raw", the encoder; "nli", fine-tuned on NLI; "words", averaged word vectors;
            "published", nothing that we can run.
        pooling: As in `load_encoder`. A pooling that the user names replaces it.
        other: Whether the row is about another pooling than its table. Where the user names a
            pooling, such rows are left out.
        calibrator: "flow", the flow that is asked for; "paper-flow"; "standardization" or
            "all-but-the-top"; None for the vectors as they are.
        arguments: Of the calibrator.
        group: In Table 7 "architecture" or "schedule", if the row changes one argument.
        seeded: Whether there is a fit a seed.
        chosen: Whether n_components is chosen on the dev split, from 1 to 20.
        fit: "nli", "target", or None.
        aggregation: Of tasks with subsets, "wmean" or "all".
        baseline: The row that this one should beat, or None.
        once: Whether the first encoder alone has the row, whose published row does not go by the
            encoder's size.
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

    def build(self, flow: FlowName, seed: int) -> Calibrator | None:
        """The calibrator, not fitted."""
        if self.calibrator == "standardization":
            return Standardization(**self.arguments)
        if self.calibrator == "all-but-the-top":
            return AllButTheTop(**self.arguments)
        if self.calibrator is None:
            return None
        make = FLOWS[flow if self.calibrator == "flow" else "paper"]
        return make(random_state=seed, **self.arguments)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that one row is above another.

    Attributes:
        text: The claim.
        above: The higher row.
        below: The other.
        column: The task, or "average" over all tasks of the table.
    """

    text: str
    above: str
    below: str
    column: str = AVERAGE


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of scores.

    Attributes:
        name: Such as "table2".
        title: What it shows.
        columns: The tasks.
        split: Of the tasks; None takes the one that scores are published for.
        rows: The rows of one encoder.
        claims: The paper's.
        notes: What must be known to read it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    split: str | None = None
    rows: Sequence[Row]
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A row as it was printed.

    Attributes:
        name: A short stable key; it begins with base or large where each has a row.
        label: What the row is called there.
        source: Who published it first.
        values: By column, a number in the table's unit, or words.
        aggregation: Over the subsets of a task; None in a table of tasks without subsets.
        doubts: By column, why the number is doubtful, a sentence each.
        k: Neighbours, or directions that all-but-the-top removes; None where there are none.
        seeds: How many seeds `values` is the mean over, if that is known.
        deviation: Over the seeds, in the table's unit.
        median: Over the seeds, in the table's unit.
    """

    name: str
    label: str
    source: str
    values: Mapping[str, float | str]
    aggregation: str | None = None
    doubts: Mapping[str, tuple[str, ...]]
    k: int | None = None
    seeds: int | None = None
    deviation: float | None = None
    median: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table as it was printed.

    Attributes:
        name: Such as "table2".
        title: What it shows.
        source: Where it is printed.
        measure: "spearman", "auc", "mean" or "hyperparameter".
        unit: 100 where the numbers are the measure times 100, else 1.
        columns: Tasks, or other names.
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
        """A number, in the table's unit; None where words are printed.

        Example:
            >>> published("table2").value("large flow target", "stsb")
            72.26
            >>> published("table7").value("coupling", "paper") is None
            True
        """
        cell = self.rows[row].values[column]
        return None if isinstance(cell, str) else cell


def published(name: str) -> PublishedTable:
    """A published table: "table1" to "table8" of Li et al. 2020, or "whitening" of Su et al. 2021.

    Example:
        >>> published("table8").rows["large nli"].median
        78.19
        >>> published("table2").rows["base flow nli"].doubts["stsb"][0]
        "others who ran the authors' code got 68.66; 58.56 is below the encoder's own 59.04"
    """
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


def _our_tables() -> Iterator[tuple[str, Table]]:
    tables = _read("tables.toml")
    notes = tables.pop("notes")
    for name, table in tables.items():
        rows = [Row(**raw) for raw in table.pop("rows")]
        for group, arguments in table.pop("variations", {}).items():
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
                for argument, values in arguments.items()
                for value in values
            ]
        claims = [Claim(**raw) for raw in table.pop("claims", ())]
        told = [notes.get(note, note) for note in table.pop("notes", ())]
        columns = tuple(table.pop("columns"))
        yield (
            name,
            Table(name=name, columns=columns, rows=rows, claims=claims, notes=told, **table),
        )


SCORE_TABLES: Mapping[str, Table] = dict(_our_tables())
