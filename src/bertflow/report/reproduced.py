"""A folder of `bertflow reproduce`, for a report: its tables, and the words of its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertflow.analysis.frequency import Mean, WordGroup
from bertflow.errors import InputError, ModelError
from bertflow.io.reading import read_json
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import AVERAGE, SCORE_TABLES, published
from bertflow.paper.results import RowResult, TableResult
from bertflow.report.measures import ScoreTable, WordNorms
from bertflow.report.sides import Headline, headline_of

# By table, the row of an encoder and the row of its flow, fitted on the target's text.
BEFORE_AFTER = {
    "table2": ("last2avg", "flow target"),
    "table5": ("", "flow target"),
    "table7": ("last2avg", "flow"),
    "table3": ("nli last2avg", "nli flow target"),
}
LARGEST_TABLE = 2 * 10**7


def is_run(folder: Path) -> bool:
    """Whether a folder is one of `bertflow reproduce`: of tables, or of all its records."""
    return (folder / "records").is_dir() or any(folder.glob("table[1-8].json"))


class Run:
    """A folder of tables, or one that holds `records` and a single folder of tables."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = _folder_of_tables(Path(folder))
        self.records = ResultStore(self.folder.parent / "records")
        self.tables = {
            path.stem: _read_table(path) for path in sorted(self.folder.glob("table[1-8].json"))
        }
        self.settings = next(iter(self.tables.values())).settings
        # The first of several encoders: the paper's base.
        self.encoder: str = next(iter(self.settings["encoders"]))

    def _compared(self) -> Iterator[tuple[TableResult, RowResult, RowResult]]:
        """The tables that have the encoder and its flow, with both rows."""
        for name, names in BEFORE_AFTER.items():
            if table := self.tables.get(name):
                own = {row.name: row for row in table.rows if row.encoder == self.encoder}
                if own.keys() >= set(names):
                    yield table, own[names[0]], own[names[1]]

    def words(self) -> WordNorms:
        """Mean norms by frequency, from the record of Table 1."""
        about, numbers = self.settings["encoders"][self.encoder], published("table1")
        digest = f"hub:{about['revision']}" if about["revision"] else about["files"]
        for one in self.records:
            if one.kind == "words" and str(one.recipe["encoder"]).startswith(digest):
                groups = [
                    WordGroup(**{**group, "norm": group["norm"] and Mean(**group["norm"])})
                    for group in one.result["groups"]
                ]
                columns = [f"{group.low}-{group.high}" for group in groups]
                printed = [numbers.value("norm", column) for column in columns]
                return WordNorms(groups=groups, published=printed, encoder=self.encoder)
        raise ModelError("bertflow reproduce table1 with this encoder would fill it")

    def scores(self) -> tuple[ScoreTable, Headline | None]:
        """The run's table of scores, and the claim that the flow beats its encoder."""
        for table, before, after in self._compared():
            labels = zip(table.rows, table.labels(), strict=True)
            rows = [replace(row, label=label) for row, label in labels]
            title = f"{table.title} ({table.name.replace('table', 'Table ')})"
            texts = [
                claim.text
                for claim in SCORE_TABLES[table.name].claims
                if (claim.below, claim.above, claim.column) == (before.name, after.name, AVERAGE)
            ]
            column = AVERAGE if AVERAGE in table.columns else table.columns[0]
            own = [claim for claim in table.claims if claim.encoder == self.encoder]
            claimed = [claim.difference for claim in own if claim.text in texts]
            shown = ScoreTable(replace(table, title=title, rows=rows), drawn=[before, after])
            marked = after.marked({column: claimed[0]}) if claimed else after
            return shown, headline_of(before, marked)
        raise ModelError("bertflow reproduce table2 with this encoder would fill it")

    def provenance(self) -> dict[str, str]:
        """All that the tables depend on, by name."""
        first = next(iter(self.tables.values()))
        about = {"run": str(self.folder), **first.facts(), "tables": ", ".join(self.tables)}
        return {**about, **self.settings["versions"]}


def _read_table(path: Path) -> TableResult:
    saved: Any = read_json(path, largest=LARGEST_TABLE)
    try:
        table = TableResult.from_dict(saved)
        if table.name == path.stem and table.settings["encoders"]:
            return table
        reason = "it names no encoder" if table.name == path.stem else f"it is {table.name}"
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = repr(error)
    raise ModelError(f"{path} is no table of bertflow reproduce ({reason}); make it again")


def _folder_of_tables(folder: Path) -> Path:
    if any(folder.glob("table[1-8].json")):
        return folder
    several = sorted({path.parent for path in folder.glob("*/table[1-8].json")})
    if len(several) == 1:
        return several[0]
    if not several:
        raise InputError(
            f"{folder} holds records but no table; bertflow reproduce table2 writes one"
        )
    raise InputError(
        f"{folder} holds the tables of {len(several)} runs; give one of "
        f"{', '.join(map(str, several))}"
    )
