"""What a folder of `bertflow reproduce` holds, for a report: tables, records and vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibrators import Calibrator
from bertflow.calibrators.base import Array
from bertflow.calibrators.storage import CALIBRATORS
from bertflow.data import CATALOG, DATA_VARIABLE
from bertflow.data.layouts import find_files
from bertflow.encoders import VectorCache
from bertflow.errors import InputError, ModelError
from bertflow.evaluation import Difference, paired_cosine
from bertflow.io.json import read_json
from bertflow.paper.jobs import key_of
from bertflow.paper.material import Material
from bertflow.paper.published import published
from bertflow.paper.records import Record, Records
from bertflow.paper.tables import AVERAGE, SCORE_TABLES
from bertflow.report.figures import (
    EditScatter,
    NormGroup,
    ScoreCell,
    ScoreRow,
    ScoreTable,
    WordNorms,
)
from bertflow.report.scores import Headline, edits_of, local_pairs, mark_of
from bertflow.report.sides import Take

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


@dataclass(frozen=True)
class Fitted:
    """A calibrator that was fitted again from its record.

    Attributes:
        calibrator: Fitted.
        checked: How many pairs it was held against.
        apart: How far its cosines are from the record's at most; None where the pairs are not
            there.
    """

    calibrator: Calibrator
    checked: int
    apart: float | None


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
        self.data = data
        self.tables: dict[str, Mapping[str, Any]] = {}
        for path in sorted(self.folder.glob("table[1-8].json")):
            found = read_json(path, largest=LARGEST_TABLE)
            try:
                good = found["table"] == path.stem and bool(found["settings"]["encoders"])
            except (KeyError, TypeError):
                good = False
            if not good:
                raise ModelError(f"{path} is no table of bertflow reproduce; make it again")
            self.tables[path.stem] = found
        self.settings: Mapping[str, Any] = next(iter(self.tables.values()))["settings"]
        # Of several encoders the first: the paper's base.
        self.encoder: str = next(iter(self.settings["encoders"]))

    @cached_property
    def records(self) -> list[Record]:
        """All records beside the tables that can be read."""
        return list(Records(self.home / "records"))

    @cached_property
    def pair(self) -> tuple[Record, Record] | None:
        """Records of the encoder and of its flow, seed 0, on one task; None where there are none.

        The task is STS-B where that is there.
        """
        store = Records(self.home / "records")
        for name, rows in BEFORE_AFTER.items():
            if name not in self.tables:
                continue
            cells = [self._cells(name, row) for row in rows]
            for column in ("stsb", *self.tables[name]["columns"]):
                keys = [one.get(column, {}).get("records") for one in cells]
                if all(keys):
                    before, after = (store.get(one[0]) for one in keys)
                    if before is not None and after is not None:
                        return before, after
        return None

    def _cells(self, table: str, row: str) -> Mapping[str, Any]:
        for one in self.tables[table]["rows"]:
            if one["row"] == row and one["encoder"] == self.encoder:
                cells: Mapping[str, Any] = one["cells"]
                return cells
        return {}

    @cached_property
    def material(self) -> Material:
        """The data that the run was made on, as far as they are there."""
        return Material(self.data or os.environ.get(DATA_VARIABLE), self.settings["limit"])

    def vectors(self) -> VectorCache:
        """The encoder's vectors.

        Raises:
            ModelError: They are not there.
        """
        assert self.pair is not None
        recipe = dict(self.pair[0].recipe["encoding"])
        folder = self.home / "vectors" / key_of(recipe)
        if not (folder / "vectors.f32").is_file():
            raise ModelError(
                f"the run's vectors are not in {folder}; the bertflow reproduce that made the "
                "tables makes them again"
            )
        return VectorCache(folder, recipe, read_only=True)

    def corpus(self) -> list[str]:
        """The sentences that the flow was fitted on, repeats kept.

        Raises:
            ModelError: They are not there, or are others than the run's.
        """
        assert self.pair is not None
        name, digest = self.pair[1].about["fitted_on"], self.pair[1].recipe["fitting"]["corpus"]
        return self._same(name, digest, "corpus")

    def _same(self, name: str, digest: str, what: str) -> list[str]:
        remedy = f"give the folder that the run was made on by --data DIR or {DATA_VARIABLE}"
        root = self.material.data
        title = CATALOG[name].title if name in CATALOG else name
        if name not in CATALOG or not root or not _is_there(name, Path(root)):
            raise ModelError(f"the text of {title} is not there; {remedy}")
        if self.material.corpus_digest(name) != digest:
            raise ModelError(f"the {what} of {title} is another than the run's; {remedy}")
        return self.material.corpus(name)

    def fit_again(self, cache: VectorCache, corpus: Sequence[str]) -> Fitted:
        """Fit the flow as its record says, on the run's vectors, and hold it against the record.

        Raises:
            InputError: A sentence has no vector.
        """
        assert self.pair is not None
        record = self.pair[1]
        recipe = record.recipe["fitting"]
        arguments = dict(recipe["arguments"])
        if record.about.get("n_components") is not None:
            arguments["n_components"] = record.about["n_components"]
        calibrator = CALIBRATORS[recipe["calibrator"]](**arguments)
        if "device" in calibrator.get_params():
            calibrator.set_params(device="cpu")
        vectors = cache.vectors()
        calibrator.fit(vectors[cache.rows(corpus)])
        pairs = local_pairs(record.about["task"], self.data, record.about["split"])
        if pairs is None or not self._are_its_pairs(record):
            return Fitted(calibrator, 0, None)
        pairs = self.material.pairs(record.about["task"], record.about["split"])
        first, second, _ = pairs.graded()
        graded = np.array([grade is not None for grade in pairs.gold])
        known = Records(self.home / "records").arrays(record.key)["cosines"][graded]
        own = paired_cosine(
            *(calibrator._rows(vectors[cache.rows(texts)]) for texts in (first, second))
        )
        apart = np.abs(own - known)
        return Fitted(calibrator, len(apart), float(np.nanmax(apart)))

    def _are_its_pairs(self, record: Record) -> bool:
        task, split = record.about["task"], record.about["split"]
        digest: str = self.material.pairs_digest(task, split)
        return bool(digest == record.recipe["pairs"])

    def edits(self) -> EditScatter | str:
        """Figure 2 from the cosines in records, or what would fill that section."""
        if find_spec("rapidfuzz") is None:
            return "edit distance needs rapidfuzz: pip install 'bertflow[words]'"
        if self.pair is None:
            return "bertflow reproduce table6 with this encoder would fill it"
        before, after = self.pair
        wanted = (None, after.recipe["fitting"])
        found: list[Record | None] = []
        for fitting in wanted:
            found.append(
                next(
                    (
                        one
                        for one in self.records
                        if one.kind == "score"
                        and (one.about["task"], one.about["split"]) == ("stsb", "dev")
                        and one.recipe["encoding"] == before.recipe["encoding"]
                        and one.recipe["fitting"] == fitting
                    ),
                    None,
                )
            )
        raw, flow = found
        if raw is None or flow is None:
            return "bertflow reproduce figure2 with this encoder would fill it"
        if local_pairs("stsb", self.data, "dev") is None:
            return f"STS-B dev would fill it: --data DIR or {DATA_VARIABLE} names the folder"
        if not self._are_its_pairs(raw):
            return "STS-B dev as the run had it would fill it; the one in the folder is another"
        store = Records(self.home / "records")
        return edits_of(
            self.material.pairs("stsb", "dev"),
            {
                name: store.arrays(one.key)["cosines"]
                for name, one in (("before", raw), ("after", flow))
            },
        )

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

    def scores(self) -> tuple[ScoreTable, Headline | None] | str:
        """The run's table of scores, or what would fill that section."""
        for name, rows in BEFORE_AFTER.items():
            if name in self.tables:
                try:
                    table = _score_table(name, self.tables[name], rows)
                    return table, self._headline(name, rows)
                except (KeyError, TypeError, AttributeError) as error:
                    raise ModelError(
                        f"{self.folder / name}.json is no table of bertflow reproduce ({error!r}); "
                        "make it again"
                    ) from None
        return "bertflow reproduce table2 with this encoder would fill it"

    def _headline(self, name: str, rows: tuple[str, str]) -> Headline | None:
        """The claim that the flow beats its encoder, on average, else on the first task."""
        before, after = (self._cells(name, row) for row in rows)
        declared = [one for one in SCORE_TABLES[name].claims if (one.below, one.above) == rows]
        texts = [one.text for one in declared if one.column == AVERAGE]
        whole = self.tables[name]["columns"]
        column = AVERAGE if AVERAGE in whole else whole[0]
        for one in self.tables[name]["claims"]:
            if one["claim"] in texts and one["encoder"] == self.encoder:
                return _headline(before, after, column, one)
        for column in whole:
            found = after.get(column, {}).get("baseline")
            if found:
                return _headline(before, after, column, found)
        return None

    def provenance(self) -> list[tuple[str, str]]:
        """What the tables and the picture of the cloud depend on."""
        told = self.settings
        facts = [("run", str(self.folder))]
        for label, one in told["encoders"].items():
            which = f"revision {one['revision']}" if one["revision"] else f"files {one['files']}"
            facts.append(
                (
                    f"encoder {label}",
                    f"{one['name']} ({which}), pooling {one['pooling']}, at most "
                    f"{one['max_length']} tokens",
                )
            )
        if told.get("flow"):
            facts.append(("flow", f"{told['flow']}, {told['seeds']} seeds"))
        if told.get("limit"):
            facts.append(("only a trial", f"about {told['limit']:,} pairs of each split"))
        facts.append(("tables", ", ".join(self.tables)))
        if self.pair is not None:
            for name, one in zip(("before", "after"), self.pair, strict=True):
                facts.append(
                    (
                        f"record {name}",
                        f"{one.key}: {one.about['task']} {one.about['split']}, {one.time}",
                    )
                )
        facts += [(name, str(number)) for name, number in told["versions"].items()]
        return facts


def take_from(cache: VectorCache) -> Take:
    """Vectors of sentences from a run's file of them."""

    def take(sentences: Sequence[str]) -> tuple[Array, Array | None]:
        rows = cache.find(sentences)
        found = rows >= 0
        return found, np.array(cache.vectors()[rows[found]]) if found.any() else None

    return take


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


def _is_there(task: str, root: Path) -> bool:
    return any(find_files(CATALOG[task], split, root)[0] for split in CATALOG[task].splits)


def _recorded_norms(record: Record, label: str) -> WordNorms:
    numbers = published("table1")
    groups = []
    try:
        for group in record.result["groups"]:
            mean = group["norm"] or {"value": None, "low": None, "high": None}
            column = f"{group['low']}-{group['high']}"
            groups.append(
                NormGroup(
                    low=group["low"],
                    high=group["high"],
                    words=group["words"],
                    value=mean["value"],
                    least=mean["low"],
                    most=mean["high"],
                    published=numbers.value("norm", column) if column in numbers.columns else None,
                )
            )
    except (KeyError, TypeError) as error:
        raise ModelError(f"record {record.key} lacks {error}; remove it and run again") from None
    return WordNorms(groups=groups, encoder=label)


def _score_table(name: str, table: Mapping[str, Any], drawn: tuple[str, str]) -> ScoreTable:
    first = next(iter(table["settings"]["encoders"]))
    labels = [row["label"] for row in table["rows"]]
    rows = []
    for row in table["rows"]:
        label, encoder = row["label"], row["encoder"]
        rows.append(
            ScoreRow(
                label=f"{encoder}: {label}" if encoder and labels.count(label) > 1 else label,
                cells={column: _cell(row["cells"][column]) for column in table["columns"]},
                drawn=row["row"] in drawn and encoder == first,
                aggregation=row["aggregation"],
                published_for=row["published_for"],
            )
        )
    return ScoreTable(
        title=f"{table['title']} ({name.replace('table', 'Table ')})",
        measure="Spearman × 100",
        columns=table["columns"],
        rows=rows,
        claims=table["claims"],
        notes=table["notes"],
    )


def _cell(cell: Mapping[str, Any]) -> ScoreCell:
    baseline = cell["baseline"]
    marked = baseline and cell["value"] is not None
    return ScoreCell(
        value=cell["value"],
        low=cell["low"],
        high=cell["high"],
        published=cell["published"],
        comparable=cell["comparable"],
        doubts=cell["doubts"],
        mark=mark_of(baseline["value"], real=baseline["real"]) if marked else "",
        reason=cell["reason"],
    )


def _headline(
    before: Mapping[str, Any], after: Mapping[str, Any], column: str, found: Mapping[str, Any]
) -> Headline | None:
    values = before.get(column, {}).get("value"), after.get(column, {}).get("value")
    if values[0] is None or values[1] is None or found["value"] is None:
        return None
    low, high = found["interval"] or (None, None)
    title = "the seven STS tasks" if column == AVERAGE else CATALOG[column].title
    return Headline(
        what=title,
        before=values[0],
        after=values[1],
        difference=Difference(found["value"], low, high, found["p"], found["p_holm"]),
    )
