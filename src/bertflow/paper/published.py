"""The numbers that others have published, typed: the paper's Tables 1-8 and BERT-whitening's."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

from bertflow.data import CATALOG
from bertflow.errors import InputError
from bertflow.evaluation.scores import AGGREGATIONS

UNITS = (1, 100)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A row as it was printed.

    Attributes:
        name: A short stable key; it begins with base or large where there is a row for each.
        label: What the row is called there.
        source: Who published it first.
        values: By column, a number in the table's unit, or words.
        aggregation: How the subsets of a task are put together, one of `AGGREGATIONS`; None in a
            table of tasks without subsets.
        doubts: By column, what must be known before a number is trusted.
        k: Neighbours, or directions that all-but-the-top takes away; None where there are none.
        seeds: How many seeds `values` is the mean over, where that is said.
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
        measure: What its numbers are: "spearman", "auc", "mean" or "hyperparameter".
        unit: 100 where the numbers are the measure times 100, else 1.
        columns: Tasks, or what else the columns are about.
        rows: By name, in the printed order.
    """

    name: str
    title: str
    source: str
    measure: str
    unit: int
    columns: tuple[str, ...]
    rows: Mapping[str, PublishedRow]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows, in the printed order."""
        return tuple(self.rows)

    def row(self, name: str) -> PublishedRow:
        """A row by its name.

        Raises:
            InputError: The table has no such row.

        Example:
            >>> published("table2").row("base flow nli").aggregation
            'wmean'
        """
        return _find(self.rows, name, f"row of {self.name}")

    def value(self, row: str, column: str) -> float | None:
        """A number, in the table's unit; None where words are printed.

        Args:
            row: Its name.
            column: One of `columns`.

        Raises:
            InputError: The table has no such row or column.

        Example:
            >>> published("table2").value("large flow target", "stsb")
            72.26
            >>> published("table7").value("coupling", "paper") is None
            True
        """
        cell = _find(self.row(row).values, column, f"column of {self.name}")
        return None if isinstance(cell, str) else cell

    def doubts(self, row: str, column: str) -> tuple[str, ...]:
        """What must be known before a number is trusted, a sentence each.

        Args:
            row: Its name.
            column: One of `columns`.

        Raises:
            InputError: The table has no such row or column.

        Example:
            >>> published("table2").doubts("base flow nli", "stsb")[0]
            "others who ran the authors' code got 68.66; 58.56 is below the encoder's own 59.04"
        """
        return _find(self.row(row).doubts, column, f"column of {self.name}")


def published(table: str) -> PublishedTable:
    """A published table.

    Args:
        table: "table1" to "table8" of Li et al. 2020, or "whitening" of Su et al. 2021.

    Raises:
        InputError: There is no such table.

    Example:
        >>> published("table8").row("large nli").median
        78.19
    """
    return _find(_tables(), table, "published table")


@cache
def _tables() -> Mapping[str, PublishedTable]:
    text = files("bertflow.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return parse_published(text)


def parse_published(text: str) -> Mapping[str, PublishedTable]:
    """Read tables from TOML and check them.

    Args:
        text: As in `published.toml`.

    Raises:
        InputError: A row has not as many values as there are columns, names a doubt that is not
            there, or lacks the aggregation of tasks with subsets; the message says which row.
    """
    raw = tomllib.loads(text)
    doubts = raw.pop("doubts", {})
    return MappingProxyType({name: _table(name, one, doubts) for name, one in raw.items()})


def _table(name: str, raw: Mapping[str, Any], doubts: Mapping[str, Any]) -> PublishedTable:
    about = {key: raw[key] for key in ("title", "source", "measure", "unit")}
    columns = tuple(raw["columns"])
    rows = [_row(name, one, columns, raw["source"], doubts) for one in raw["rows"]]
    _check_unique(columns, f"columns of {name}")
    _check_unique((row.name for row in rows), f"rows of {name}")
    if about["unit"] not in UNITS:
        raise InputError(f"{name}: unit {about['unit']!r}; expected one of {_listed(UNITS)}")
    by_name = MappingProxyType({row.name: row for row in rows})
    return PublishedTable(name=name, columns=columns, rows=by_name, **about)


def _row(
    table: str,
    raw: Mapping[str, Any],
    columns: Sequence[str],
    source: str,
    doubts: Mapping[str, Any],
) -> PublishedRow:
    where = f"{table}, row {raw['name']!r}"
    fields = {"source": source, **raw}
    values, keys = fields.pop("values"), fields.pop("doubts", ())
    if len(values) != len(columns):
        raise InputError(f"{where}: {len(values)} values for {len(columns)} columns")
    if not all(isinstance(value, str) or math.isfinite(value) for value in values):
        raise InputError(f"{where}: a value is not finite")
    subsets = any(column in CATALOG and CATALOG[column].subsets for column in columns)
    known = AGGREGATIONS if subsets else (None,)
    if fields.get("aggregation") not in known:
        raise InputError(
            f"{where}: aggregation {fields.get('aggregation')!r}; expected one of {_listed(known)}"
        )
    doubted: dict[str, list[str]] = {column: [] for column in columns}
    for key in keys:
        doubt = _find(doubts, key, f"doubt in {where}")
        for column in doubt.get("columns", columns):
            _find(doubted, column, f"column of doubt {key!r} in {where}").append(doubt["text"])
    return PublishedRow(
        values=MappingProxyType(dict(zip(columns, values, strict=True))),
        doubts=MappingProxyType({column: tuple(found) for column, found in doubted.items()}),
        **fields,
    )


def _check_unique(names: Iterable[str], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{what}: {_listed(twice)} more than once")


def _find(known: Mapping[str, T], name: str, what: str) -> T:
    if name not in known:
        raise InputError(f"unknown {what}: {name!r}; expected one of {_listed(known)}")
    return known[name]


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
