"""A folder of `bertflow reproduce`, for a report: its tables, and the words of its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertflow.analysis.frequency import Mean, WordGroup
from bertflow.errors import InputError, ModelError
from bertflow.io.reading import read_json
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import AVERAGE, SCORE_TABLES
from bertflow.paper.results import RowResult, TableResult
from bertflow.report.measures import ScoreTable, WordNorms, published_norms
from bertflow.report.sides import headline_of

# By table, the row of an encoder and the row of its flow, fitted on the target's text.
BEFORE_AFTER = {
    "table2": ("last2avg", "flow target"),
    "table5": ("", "flow target"),
    "table7": ("last2avg", "flow"),
    "table3": ("nli last2avg", "nli flow target"),
}
TABLES, LARGEST_TABLE = "table[1-8].json", 2 * 10**7


def is_run(folder: Path) -> bool:
    """Whether a folder is one of `bertflow reproduce`: of tables, or of all its records."""
    return (folder / "records").is_dir() or any(folder.glob(TABLES))


class Run:
    """A folder of tables, or one that holds `records` and a single folder of tables."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = _folder_of_tables(Path(folder))
        self.records = ResultStore(self.folder.parent / "records")
        self.tables = {path.stem: _read_table(path) for path in sorted(self.folder.glob(TABLES))}
        self.settings = next(iter(self.tables.values())).settings
        # The first of several encoders: the paper's base.
        self.encoder: str = next(iter(self.settings["encoders"]))

    def words(self) -> WordNorms:
        """Mean norms by frequency, from the record of Table 1."""
        about = self.settings["encoders"][self.encoder]
        digest = f"hub:{about['revision']}" if about["revision"] else about["files"]
        for one in self.records:
            if one.kind == "words" and str(one.recipe["encoder"]).startswith(digest):
                groups = [
                    WordGroup(**{**group, "norm": group["norm"] and Mean(**group["norm"])})
                    for group in one.result["groups"]
                ]
                return WordNorms(groups, published_norms(groups), self.encoder)
        raise ModelError("bertflow reproduce table1 with this encoder would fill it")

    def scores(self) -> ScoreTable:
        """The run's table of scores, with the claim that the flow beats its encoder."""
        for name, (below, above) in BEFORE_AFTER.items():
            rows = self.tables[name].rows if name in self.tables else ()
            own = {row.name: row for row in rows if row.encoder == self.encoder}
            if below in own and above in own:
                return self._compared(self.tables[name], own[below], own[above])
        raise ModelError("bertflow reproduce table2 with this encoder would fill it")

    def _compared(self, table: TableResult, before: RowResult, after: RowResult) -> ScoreTable:
        labels = zip(table.rows, table.labels(), strict=True)
        rows = [replace(row, label=label) for row, label in labels]
        title = f"{table.title} ({table.name.replace('table', 'Table ')})"
        texts = [
            claim.text
            for claim in SCORE_TABLES[table.name].claims
            if (claim.below, claim.above, claim.column) == (before.name, after.name, AVERAGE)
        ]
        marked = after
        for claim in table.claims:
            if claim.encoder == self.encoder and claim.text in texts:
                column = AVERAGE if AVERAGE in table.columns else table.columns[0]
                marked = after.marked({column: claim.difference})
        shown = replace(table, title=title, rows=rows)
        return ScoreTable(shown, drawn=[before, after], headline=headline_of(before, marked))

    def provenance(self) -> dict[str, str]:
        """All that the tables depend on, by name."""
        first = next(iter(self.tables.values()))
        about = {"run": str(self.folder), **first.facts(), "tables": ", ".join(self.tables)}
        return {**about, **self.settings["versions"]}


def _read_table(path: Path) -> TableResult:
    saved: Any = read_json(path, largest=LARGEST_TABLE)
    try:
        table = TableResult.from_dict(saved)
        if table.name != path.stem or not table.settings["encoders"]:
            raise ValueError(f"{table.name} of {len(table.settings['encoders'])} encoders")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        said = f"{path} is no table of bertflow reproduce ({error!r}); make it again"
        raise ModelError(said) from None
    return table


def _folder_of_tables(folder: Path) -> Path:
    if any(folder.glob(TABLES)):
        return folder
    runs = sorted({path.parent for path in folder.glob(f"*/{TABLES}")})
    if len(runs) != 1:
        given = ", ".join(map(str, runs)) or "the one that bertflow reproduce table2 writes"
        raise InputError(f"{folder} holds the tables of {len(runs)} runs; give one of {given}")
    return runs[0]
