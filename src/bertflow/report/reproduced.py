"""What a folder of `bertflow reproduce` holds, for a report: tables, records and vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.analysis.frequency import Mean
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.calibrators.storage import CALIBRATORS, recorded_name
from bertflow.data import CATALOG, DATA_VARIABLE
from bertflow.data.readers import find_files
from bertflow.encoders import VectorCache
from bertflow.errors import InputError, ModelError
from bertflow.evaluation import paired_cosine
from bertflow.io.reading import read_json
from bertflow.io.result_store import Result, ResultStore, key_of
from bertflow.paper.declared import AVERAGE, SCORE_TABLES, published
from bertflow.paper.results import CellResult, TableResult
from bertflow.paper.subjects import Material
from bertflow.report.measures import EditScatter, NormGroup, ScoreTable, WordNorms
from bertflow.report.task_scores import (
    NO_RAPIDFUZZ,
    NO_STSB_DEV,
    edits_of,
    headline_between,
    local_pairs,
)
from bertflow.report.verdicts import Headline

# Tables in which a row is an encoder and another its flow, fitted on the target's text.
BEFORE_AFTER = {
    "table2": ("last2avg", "flow target"),
    "table5": ("", "flow target"),
    "table7": ("last2avg", "flow"),
    "table3": ("nli last2avg", "nli flow target"),
}
LARGEST_TABLE = 2 * 10**7
# Cosines of a flow that is fitted again are those of its record up to this.
SAME = 1e-4


def is_run(folder: Path) -> bool:
    """Whether a folder is one of `bertflow reproduce`: of tables, or of all its records."""
    return (folder / "records").is_dir() or any(folder.glob("table[1-8].json"))


class Run:
    """A folder of tables, and the records and vectors beside it; nothing in them is changed.

    Args:
        folder: One of tables, or one that holds `records` and a single folder of tables.
        data: As in `bertflow.data.read_task`; the model hub is not asked.

    Raises:
        InputError: It holds no table, or those of several encoders to choose from.
        ModelError: A table cannot be read.
    """

    def __init__(self, folder: str | Path, data: str | Path | None = None) -> None:
        self.folder = _folder_of_tables(Path(folder))
        self.home = self.folder.parent
        self.records = ResultStore(self.home / "records")
        self.data = data
        self.tables = {
            path.stem: _read_table(path) for path in sorted(self.folder.glob("table[1-8].json"))
        }
        self.settings = next(iter(self.tables.values())).settings
        # Of several encoders the first: the paper's base.
        self.encoder: str = next(iter(self.settings["encoders"]))
        self.material = Material(data or os.environ.get(DATA_VARIABLE), self.settings["limit"])

    @cached_property
    def pair(self) -> tuple[Result, Result] | None:
        """Records of the encoder and of its flow, seed 0, on one task; None where there are none.

        The task is STS-B where that is there.
        """
        for name, rows in BEFORE_AFTER.items():
            if name not in self.tables:
                continue
            before, after = (self._cells(name, row) for row in rows)
            for column in ("stsb", *self.tables[name].columns):
                keys = [
                    cells[column].records[:1] if column in cells else ()
                    for cells in (before, after)
                ]
                found = [self.records.get(key) for several in keys for key in several]
                if len(found) == 2 and found[0] is not None and found[1] is not None:
                    return found[0], found[1]
        return None

    def _cells(self, table: str, row: str) -> Mapping[str, CellResult]:
        for one in self.tables[table].rows:
            if one.name == row and one.encoder == self.encoder:
                return one.cells
        return {}

    def _need_pair(self) -> tuple[Result, Result]:
        if self.pair is None:
            raise ModelError(
                "bertflow reproduce table2 with this encoder, and its records, would fill it"
            )
        return self.pair

    @property
    def before_label(self) -> str:
        """The encoder and its pooling."""
        return f"{self.encoder}, {self._need_pair()[0].about['pooling'] or 'its own pooling'}"

    @property
    def after_label(self) -> str:
        """The flow and what it was fitted on."""
        about = self._need_pair()[1].about
        name = recorded_name(about["calibrator"])
        return f"{name} fitted on {about['fitted_on']}, seed {about['seed']}"

    @property
    def fitted_on(self) -> str:
        """The name of the flow's corpus."""
        return str(self._need_pair()[1].about["fitted_on"])

    @cached_property
    def cache(self) -> VectorCache:
        """The encoder's vectors.

        Raises:
            ModelError: They are not there.
        """
        recipe = dict(self._need_pair()[0].recipe["encoding"])
        folder = self.home / "vectors" / key_of(recipe)
        if not (folder / "vectors.f32").is_file():
            raise ModelError(
                f"the run's vectors are not in {folder}; the bertflow reproduce that made the "
                "tables makes them again"
            )
        return VectorCache(folder, recipe)

    def vectors_of(self, texts: Sequence[str]) -> Array:
        """The encoder's vectors of sentences.

        Raises:
            ModelError: One was not in the run.
        """
        rows = self.cache.find(texts)
        if (rows < 0).any():
            raise ModelError(
                f"{int((rows < 0).sum()):,} of {len(texts):,} sentences were not in the run, the "
                f"first is {texts[int(rows.argmin())][:80]!r}; for sentences of your own: bertflow "
                "encode ENCODER --corpus FILE --output OUT.npy and bertflow report OUT.npy"
            )
        return np.asarray(self.cache.vectors()[rows])

    def corpus(self) -> list[str]:
        """The sentences that the flow was fitted on, repeats kept.

        Raises:
            ModelError: They are not there, or are others than the run's.
        """
        digest = self._need_pair()[1].recipe["fitting"]["corpus"]
        name = self.fitted_on
        remedy = f"give the folder that the run was made on by --data DIR or {DATA_VARIABLE}"
        title = CATALOG[name].title if name in CATALOG else name
        if name not in CATALOG or not _is_there(name, self.material.data):
            raise ModelError(f"the text of {title} is not there; {remedy}")
        if self.material.corpus_digest(name) != digest:
            raise ModelError(f"the corpus of {title} is another than the run's; {remedy}")
        return self.material.corpus(name)

    def fit_again(self) -> tuple[Calibrator, list[str]]:
        """Fit the flow as its record says, on the run's vectors, and hold it against the record.

        Returns:
            The calibrator, and what a reader must know about it.

        Raises:
            ModelError: The corpus or a vector is not there.
        """
        record = self._need_pair()[1]
        about, recipe = record.about, record.recipe["fitting"]
        arguments = dict(recipe["arguments"])
        if about.get("n_components") is not None:
            arguments["n_components"] = about["n_components"]
        calibrator = CALIBRATORS[recipe["calibrator"]](**arguments)
        if "device" in calibrator.get_params():
            calibrator.set_params(device="cpu")
        calibrator.fit(self.vectors_of(self.corpus()))
        again = f"the calibrator of the clouds is fitted again from record {record.key}"
        scored = about["task"], about["split"]
        there = local_pairs(scored[0], self.data, scored[1]) is not None
        if not there or self.material.pairs_digest(*scored) != record.recipe["pairs"]:
            return calibrator, [again, "it is not held against its record: the pairs are not there"]
        pairs = self.material.pairs(*scored)
        first, second, _ = pairs.graded()
        graded = np.array([grade is not None for grade in pairs.gold])
        known = record.arrays["cosines"][graded]
        halves = (calibrator._rows(self.vectors_of(texts)) for texts in (first, second))
        apart = float(np.nanmax(np.abs(paired_cosine(*halves) - known)))
        held = f"its cosines of {len(known):,} pairs are the record's, up to {apart:.1e}"
        if apart > SAME:
            held = (
                f"its cosines of {len(known):,} pairs differ from the record's by up to "
                f"{apart:.2g}: other versions or another processor; the scores are the record's"
            )
        return calibrator, [again, held]

    def edits(self) -> EditScatter | str:
        """Figure 2 from the cosines in records, or what would fill that section."""
        if find_spec("rapidfuzz") is None:
            return NO_RAPIDFUZZ
        if self.pair is None:
            return "bertflow reproduce table6 with this encoder would fill it"
        if local_pairs("stsb", self.data, "dev") is None:
            return NO_STSB_DEV
        digest = self.material.pairs_digest("stsb", "dev")
        on_dev = {"task": "stsb", "split": "dev", "pairs": digest}
        cosines = {}
        for name, record in zip(("before", "after"), self.pair, strict=True):
            scored = self.records.get(key_of({**record.recipe, **on_dev}))
            if scored is None:
                return (
                    "bertflow reproduce figure2 with this encoder would fill it; where the run has "
                    "it, its STS-B dev is another than the one in the folder"
                )
            cosines[name] = scored.arrays["cosines"]
        return edits_of(self.material.pairs("stsb", "dev"), cosines)

    def words(self) -> WordNorms | str:
        """Norms by frequency from the record of Table 1, or what would fill that section."""
        files = self.settings["encoders"][self.encoder]["files"]
        for one in self.records:
            known = one.recipe.get("encoder")
            if one.kind != "words" or not isinstance(known, str):
                continue
            if known.startswith(files) if files else one.about["label"] == self.encoder:
                return _recorded_norms(one, self.encoder)
        return "bertflow reproduce table1 with this encoder would fill it"

    def scores(self) -> tuple[ScoreTable | str, Headline | None]:
        """The run's table of scores, or what would fill that section; and the verdict's part."""
        for name, rows in BEFORE_AFTER.items():
            if name in self.tables:
                return self._score_table(name, rows), self._headline(name, rows)
        return "bertflow reproduce table2 with this encoder would fill it", None

    def _score_table(self, name: str, drawn: tuple[str, str]) -> ScoreTable:
        table = self.tables[name]
        rows = [row for row in table.rows if row.name in drawn and row.encoder == self.encoder]
        title = f"{table.title} ({name.replace('table', 'Table ')})"
        labels = [row.label for row in table.rows]
        named = [
            replace(row, label=f"{row.encoder}: {row.label}")
            if row.encoder and labels.count(row.label) > 1
            else row
            for row in table.rows
        ]
        return ScoreTable(table=replace(table, title=title, rows=named), drawn=rows[:2])

    def _headline(self, name: str, rows: tuple[str, str]) -> Headline | None:
        """The claim that the flow beats its encoder, on average, else on the first task."""
        before, after = (self._cells(name, row) for row in rows)
        declared = [one for one in SCORE_TABLES[name].claims if (one.below, one.above) == rows]
        texts = [one.text for one in declared if one.column == AVERAGE]
        columns = self.tables[name].columns
        changes = [
            (AVERAGE if AVERAGE in columns else columns[0], claim.difference)
            for claim in self.tables[name].claims
            if claim.text in texts and claim.encoder == self.encoder
        ]
        changes += [(column, change) for column, cell in after.items() if (change := cell.baseline)]
        if not changes or not before:
            return None
        column, difference = changes[0]
        return headline_between(before[column], after[column], column, difference)

    def provenance(self) -> list[tuple[str, str]]:
        """What the tables and the picture of the cloud depend on."""
        settings = self.settings
        facts = [("run", str(self.folder))]
        for label, one in settings["encoders"].items():
            which = f"revision {one['revision']}" if one["revision"] else f"files {one['files']}"
            facts.append(
                (
                    f"encoder {label}",
                    f"{one['name']} ({which}), pooling {one['pooling']}, at most "
                    f"{one['max_length']} tokens",
                )
            )
        if settings.get("flow"):
            facts.append(("flow", f"{settings['flow']}, {settings['seeds']} seeds"))
        if settings.get("limit"):
            facts.append(("only a trial", f"about {settings['limit']:,} pairs of each split"))
        facts.append(("tables", ", ".join(self.tables)))
        for name, one in zip(("before", "after"), self.pair or (), strict=False):
            made = f"{one.about['task']} {one.about['split']}, {one.time}"
            facts.append((f"record {name}", f"{one.key}: {made}"))
        return facts + [(name, str(number)) for name, number in settings["versions"].items()]


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


def _is_there(task: str, root: str | Path | None) -> bool:
    data_set = CATALOG[task]
    return bool(root) and any(
        find_files(data_set, split, Path(str(root)))[0] for split in data_set.splits
    )


def _recorded_norms(record: Result, label: str) -> WordNorms:
    numbers = published("table1")
    try:
        groups = [
            NormGroup(
                low=group["low"],
                high=group["high"],
                words=group["words"],
                norm=Mean(**group["norm"]) if group["norm"] else None,
                published=numbers.value("norm", column) if column in numbers.columns else None,
            )
            for group in record.result["groups"]
            if (column := f"{group['low']}-{group['high']}")
        ]
    except (KeyError, TypeError) as error:
        raise ModelError(f"record {record.key} lacks {error}; remove it and run again") from None
    return WordNorms(groups=groups, encoder=label)
