"""What a report compares: rows of files, models and runs, their scores, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.analysis.frequency import Mean, WordGroup
from bertflow.analysis.lexical import edit_distances
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import last_part
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_task
from bertflow.display.grid import fixed
from bertflow.errors import InputError, MissingDataError, ModelError
from bertflow.evaluation import Difference, figures, holm, paired_cosine
from bertflow.evaluation.jobs import JobScore, job_differences
from bertflow.evaluation.scores import Figures, average, on_all_pairs
from bertflow.evaluation.tasks import read_available
from bertflow.io.reading import read_json
from bertflow.io.result_store import ResultStore
from bertflow.paper.declared import AVERAGE, SCORE_TABLES
from bertflow.paper.results import CellResult, RowResult, TableResult, scaled, shown_estimate
from bertflow.report.measures import (
    EditScatter,
    Headline,
    ScoreTable,
    WordNorms,
    published_norms,
    relate_to_edits,
)

BEFORE, AFTER = "before", "after"
# By characters hardly any pairs are close: 14 of the 1,500 of STS-B dev.
EDIT_UNIT = "words"
# By table, the row of an encoder and the row of its flow, fitted on the target's text.
BEFORE_AFTER = {
    "table2": ("last2avg", "flow target"),
    "table5": ("", "flow target"),
    "table7": ("last2avg", "flow"),
    "table3": ("nli last2avg", "nli flow target"),
}
TABLES, LARGEST_TABLE = "table[1-8].json", 2 * 10**7
# Gives the vectors of sentences, shape (N, D), or raises MissingDataError.
VectorsOf: TypeAlias = Callable[[Sequence[str]], Array]


@dataclass(frozen=True, eq=False)
class Side:
    """One of the sides that a report compares: the vectors that are measured, shape (n, D).

    The name is short, as in a legend; the label says in a line what it is.
    """

    name: str
    label: str
    rows: Array
    vectors_of: VectorsOf

    def under(self, calibrator: Calibrator, name: str, label: str) -> Side:
        """The same rows after a calibrator; InputError for one of vectors of another width."""
        width = calibrator.n_features_in_
        if self.rows.shape[1] != width:
            raise InputError(
                f"{label} was fitted on vectors of {width} dimensions, but {self.label} has "
                f"{self.rows.shape[1]}; give the calibrator of these vectors"
            )
        rows = calibrator._rows(self.rows)
        return Side(name, label, rows, lambda texts: calibrator._rows(self.vectors_of(texts)))


def first_rows(texts: Sequence[str]) -> dict[str, int]:
    """By text, the number of the first row that has it."""
    return {text: len(texts) - 1 - n for n, text in enumerate(reversed(texts))}


def side_of_file(
    name: str, path: str | Path, vectors: Array, chosen: Array, texts: Sequence[str] | None
) -> Side:
    """The side of a .npy file's vectors, of which some rows are measured; `texts` are of all."""
    row_of = first_rows(texts or ())

    def vectors_of(sentences: Sequence[str]) -> Array:
        if lacking := [text for text in sentences if text not in row_of]:
            raise MissingDataError(
                f"{path} has no vector of {lacking[0][:80]!r}; --corpus FILE names the sentences "
                "of its rows"
            )
        return finite_rows(np.array([row_of[text] for text in sentences], dtype=np.int64))

    def finite_rows(numbers: Array) -> Array:
        rows = np.asarray(vectors[numbers])
        rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise InputError(
                f"{path} is not finite in row {int(numbers[bad][0])} (rows count from 0); remove "
                "or mend that row"
            )
        return rows

    return Side(name, str(path), finite_rows(chosen), vectors_of)


def cosines_of(pairs: Pairs, sides: Sequence[Side]) -> Array:
    """Each side's cosines of the graded pairs, shape (sides, graded)."""
    first, second, _ = pairs.graded()
    several = [side.vectors_of([*first, *second]) for side in sides]
    return np.stack([paired_cosine(*np.split(vectors, 2)) for vectors in several])


def score_sides(sides: Sequence[Side], data: str | Path | None, tasks: Sequence[str]) -> ScoreTable:
    """Score one or two sides on those STS tasks whose sentences all have a vector.

    Raises:
        MissingDataError: No task is there with all its vectors; the reason of the first.
    """

    def read(task: str) -> list[Figures]:
        pairs = read_task(task, data)
        return figures(pairs, on_all_pairs(pairs, cosines_of(pairs, sides)))

    scored, absent = read_available(tasks, read)
    aggregation = "wmean" if any(CATALOG[task].subsets for task in scored) else None
    estimates, rows = [], []
    for number, side in enumerate(sides):
        found = {task: several[number] for task, several in scored.items()}
        columns = {task: one.main("wmean") for task, one in found.items()}
        if set(found) == set(STS_TASKS):
            columns[AVERAGE] = average(found, "wmean")
        cells = {
            name: CellResult(**shown_estimate(one), reason=one.undefined)
            for name, one in columns.items()
        }
        estimates.append(columns)
        rows.append(RowResult(label=side.name, cells=cells, aggregation=aggregation))
    notes = ["95 %: bootstrap over pairs, within subsets; the sides are scored on the same pairs"]
    if len(sides) > 1:
        before, after = estimates
        changes = holm({name: after[name].above(one) for name, one in before.items()})
        rows[-1] = rows[-1].marked({name: scaled(change) for name, change in changes.items()})
        notes.append(
            f"↑ ↓: above or below “{sides[0].name}” beyond chance (paired, Holm over the table), · "
            "where that cannot be told"
        )
    if absent:
        notes.append(f"{', '.join(absent)}: no data there, or not every sentence has a vector")
    table = TableResult(
        title="Semantic textual similarity", columns=list(estimates[0]), rows=rows, notes=notes
    )
    return ScoreTable(table, drawn=rows, headline=headline_of(rows[0], rows[-1]))


def headline_of(before: RowResult, after: RowResult) -> Headline | None:
    """The difference between two rows: on average, else on STS-B, else on the first task."""
    for column in (AVERAGE, "stsb", *after.cells):
        change = after.cells[column].baseline if column in after.cells else None
        if change is not None and change.value is not None:
            what = "the seven STS tasks" if column == AVERAGE else CATALOG[column].title
            return Headline(what, before.cells[column].value, after.cells[column].value, change)
    return None


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
        return ScoreTable(table, drawn=[before, after], headline=headline_of(before, marked))

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


@dataclass(frozen=True)
class JobSides:
    """What two models are worth on a job."""

    before: JobScore
    after: JobScore

    @cached_property
    def differences(self) -> Mapping[str, Difference]:
        """How much higher each measure of the second is."""
        return job_differences(self.before, self.after)

    def headline(self) -> Headline:
        """The difference by the main measure."""
        measure, change = next(iter(self.differences.items()))
        what = f"{self.after.kind} of {last_part(self.after.source, 3)}"
        old, new = (100 * (one.measures[measure].value or 0) for one in (self.before, self.after))
        return Headline(what, old, new, scaled(change), measure)


def edits_of(sides: Sequence[Side], data: str | Path | None) -> EditScatter:
    """Figure 2 of STS-B dev: its grades and the sides' cosines."""
    pairs = read_task("stsb", data, "dev")
    first, second, grades = pairs.graded()
    panels = {"gold": np.array(grades)}
    panels |= zip((side.name for side in sides), cosines_of(pairs, sides), strict=True)
    distances = edit_distances(first, second, unit=EDIT_UNIT)
    return relate_to_edits(panels, distances, unit=EDIT_UNIT)


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    lacking: str = "",
    rows: str = "sentences",
) -> tuple[str, str]:
    """The verdict and its evidence: what the scores tell, or else what the clouds of the sides do.

    `rows` is what the vectors are of; `lacking` says what would give some where there are none.
    """
    usual = set(names) <= {BEFORE, AFTER}
    crowding = _crowding(diagnoses, rows, by="" if usual else "by ")
    if headline is not None:
        return headline.sentence(names if not usual else ()), _sentence(crowding)
    if not diagnoses:
        return "Nothing here tells whether calibration helps.", _sentence(lacking)
    if not usual:
        verdict = "Without scores, which of the two is better cannot be told."
        return verdict, _sentence(crowding)
    several = list(diagnoses.values())
    first, last = several[0], several[-1]
    verdict, reason = VERDICTS[first.verdict], first.reason
    if last.verdict == "uninformative" != first.verdict:
        verdict, reason = "Calibration has left nothing to tell apart", last.reason
    return f"{verdict}: {crowding}.", _sentence(reason)


def _crowding(diagnoses: Mapping[str, Diagnosis], rows: str, *, by: str) -> str:
    """How alike all rows look, side by side."""
    told = []
    for name, one in diagnoses.items():
        side = f" {by}{name}" if len(diagnoses) > 1 else ""
        alike = f"{max(round(100 * one.mean_cosine), 0)} % alike{side}"
        told.append(f"{alike} (mean cosine {fixed(one.mean_cosine)})")
    return f"any two unrelated {rows} look {' and '.join(told)}; near 0 is right"


def _sentence(told: str) -> str:
    return f"{told[:1].upper()}{told[1:].rstrip('.')}." if told else ""
