"""From a table and an encoder to jobs: what each cell needs, or why it stays empty.

The recipe of a job spells out all that its result depends on, and the key of its record is a hash
of the recipe. So a changed recipe leaves all other records valid, and tables share jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ClassVar

from bertflow.analysis.frequency import NEIGHBOURS, RANGES
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import calibrator_name
from bertflow.data import CATALOG
from bertflow.errors import MissingDataError, MissingDependencyError, check_choice, check_number
from bertflow.finetuning import Recipe
from bertflow.io.result_store import key_of
from bertflow.paper.declared import FLOWS, PAPER_POOLING, PLAIN_POOLING, Row, Table
from bertflow.paper.subjects import Material, Subject

# By the source of a row, why it has its published numbers alone.
NOT_RUN = {
    "published": "not a model that bertflow runs",
    "words": "name the file of the word vectors to run it",
}
# Arguments of a fine-tuning that change nothing but how it is carried out.
WITHOUT_EFFECT = {"checkpoint_steps", "random_state"}


class Keyed:
    """Something with a recipe, all that it depends on. Its key is a hash of that."""

    kind: ClassVar = ""

    def recipe(self) -> dict[str, Any]:
        """The recipe, for JSON: the fields, but of an encoder only its content."""
        parts: dict[str, Any] = {"job": self.kind, **vars(self)}
        if "subject" in parts:
            parts["encoder"] = parts.pop("subject").digest
        return {
            name: one.recipe() if isinstance(one, Keyed) else one for name, one in parts.items()
        }

    @property
    def key(self) -> str:
        """A hash of the recipe."""
        return key_of(self.recipe())


@dataclass(frozen=True, kw_only=True)
class Tuning(Keyed):
    """Siamese fine-tuning of an encoder on NLI; `corpus` is the SHA-256 of all pairs."""

    kind = "tuning"
    subject: Subject
    pooling: str
    sets: Sequence[str]
    corpus: str
    arguments: Mapping[str, Any]
    seed: int

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {**super().recipe(), "max_length": self.subject.max_length}


@dataclass(frozen=True, kw_only=True)
class Encoding(Keyed):
    """How sentences become vectors; without a pooling, by the encoder's own."""

    subject: Subject
    pooling: str | None
    tuning: Tuning | None = None

    def recipe(self) -> dict[str, Any]:
        """All that the vectors depend on."""
        return {
            "encoder": self.subject.digest if self.tuning is None else self.tuning.recipe(),
            "pooling": self.pooling,
            "max_length": self.subject.max_length,
            "dtype": "float32",
        }

    @property
    def weights(self) -> str:
        """The same for encodings that differ in their pooling alone."""
        return replace(self, pooling="").key


@dataclass(frozen=True, kw_only=True)
class Fitting(Keyed):
    """A calibrator and what it is fitted on.

    Attributes:
        calibrator: Not fitted.
        corpus: A task, or "nli"; `corpus_digest` is the SHA-256 of its sentences.
        seed: Of a flow; None where there is no chance.
        dev: SHA-256 of the dev split that n_components is chosen on; None where it is not chosen.
    """

    calibrator: Calibrator = field(compare=False)
    corpus: str
    corpus_digest: str
    seed: int | None = None
    dev: str | None = None

    def recipe(self) -> dict[str, Any]:
        """All that the fitted calibrator depends on, besides the vectors."""
        lasting = {"device"} if self.dev is None else {"device", "n_components"}
        arguments = self.calibrator.get_params(deep=False)
        return {
            "calibrator": calibrator_name(self.calibrator),
            "arguments": {name: arguments[name] for name in arguments.keys() - lasting},
            "corpus": self.corpus_digest,
            "dev": self.dev,
        }


@dataclass(frozen=True, kw_only=True)
class Score(Keyed):
    """The score of vectors on a split of a task; `pairs` is the SHA-256 of its pairs."""

    kind = "score"
    encoding: Encoding
    fitting: Fitting | None
    task: str
    split: str
    pairs: str

    @property
    def fit(self) -> str:
        """The same for scores that share one fit."""
        return replace(self, task="", split="", pairs="").key


@dataclass(frozen=True, kw_only=True)
class Words(Keyed):
    """Word embeddings by ranges of frequency, and of k neighbours: the paper's Table 1."""

    kind = "words"
    subject: Subject
    ranges: Sequence[tuple[int, int]]
    neighbours: Sequence[int]
    frequencies: str


Job = Tuning | Score | Words


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a reproduction; an InputError if a value is unknown or out of its range.

    Attributes:
        flow: Which flow the rows called flow have: "paper", "released" or "tempered".
        seeds: How often each flow is fitted, and in Table 8 each encoder fine-tuned.
        finetuning: Arguments of `bertflow.finetuning.Recipe` that differ.
    """

    flow: str = "paper"
    seeds: int = 5
    finetuning: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, 1, integer=True)
        check_choice("flow", self.flow, tuple(FLOWS))


@dataclass(frozen=True)
class Cell:
    """A row and a task, and the jobs: one a seed, or one; none of an empty cell, with the reason.

    `published_only` says that it is empty although no data are missing.
    """

    row: Row
    column: str
    jobs: Sequence[Score]
    reason: str | None = None
    published_only: bool = False


@dataclass(frozen=True)
class Plan:
    """A table for one encoder, with the rows that this encoder has and a cell for each column."""

    table: Table
    subject: Subject
    rows: Sequence[Row]
    cells: Mapping[tuple[str, str], Cell]

    @property
    def jobs(self) -> list[Score]:
        """The jobs of all cells."""
        return [job for cell in self.cells.values() for job in cell.jobs]

    @property
    def tunings(self) -> dict[str, Tuning]:
        """The fine-tunings that the cells need, by key."""
        several = [job.encoding.tuning for job in self.jobs]
        return {tuning.key: tuning for tuning in several if tuning is not None}

    def label(self, row: Row, chosen: str = "chosen") -> str:
        """The label of a row, with the n_components that was chosen."""
        names = {PAPER_POOLING: "first and last block", PLAIN_POOLING: "last block"}
        pooling = self.subject.pooling or row.pooling
        return row.label.format(
            encoder=self.subject.label, pooling=names.get(pooling, pooling), chosen=chosen
        )


class Planner:
    """Plans tables on tasks and corpora; `words` are word vectors for the row that has them."""

    def __init__(self, material: Material, options: Options, words: Subject | None = None) -> None:
        self.material = material
        self.options = options
        self.words = words

    def plan(self, table: Table, subject: Subject, *, first: bool = True) -> Plan:
        """All cells of a table for an encoder; rows that are there once go with the first one."""
        rows = [
            row
            for row in table.rows
            if not (row.other and subject.pooling) and (first or not row.once)
        ]
        cells = {
            (row.name, column): self._cell(table, subject, row, column)
            for row in rows
            for column in table.columns
        }
        return Plan(table, subject, rows, cells)

    def words_job(self, subject: Subject) -> Words:
        """The job of Table 1."""
        if find_spec("wordfreq") is None:
            raise MissingDependencyError("table1 needs wordfreq: pip install 'bertflow[words]'")
        frequencies = f"wordfreq {version('wordfreq')}"
        return Words(subject=subject, ranges=RANGES, neighbours=NEIGHBOURS, frequencies=frequencies)

    def recipe(self, seed: int) -> Recipe:
        """How an encoder is fine-tuned."""
        return Recipe(**{**(self.options.finetuning or {}), "random_state": seed})  # type: ignore[arg-type]

    def _cell(self, table: Table, subject: Subject, row: Row, column: str) -> Cell:
        whom = self.words if row.source == "words" else subject
        if row.source == "published" or whom is None:
            return Cell(row, column, [], NOT_RUN[row.source], published_only=True)
        try:
            split = table.split or CATALOG[column].default_split
            pairs = self.material.pairs_digest(column, split)
            jobs = [
                Score(
                    encoding=self._encoding(whom, row, seed),
                    fitting=self._fitting(row, column, seed),
                    task=column,
                    split=split,
                    pairs=pairs,
                )
                for seed in range(self.options.seeds if row.seeded or row.per_seed else 1)
            ]
        except MissingDataError as error:
            return Cell(row, column, [], str(error))
        return Cell(row, column, jobs)

    def _encoding(self, subject: Subject, row: Row, seed: int) -> Encoding:
        if row.source == "words":
            return Encoding(subject=subject, pooling=None)
        tuning = None
        if row.source == "nli":
            tuning = self._tuning(subject, seed if row.per_seed else 0)
        return Encoding(subject=subject, pooling=subject.pooling or row.pooling, tuning=tuning)

    def _tuning(self, subject: Subject, seed: int) -> Tuning:
        corpus = self.material.labelled()
        arguments = asdict(self.recipe(seed))
        # "auto" resolves per device; records must not depend on the device.
        device = {"precision"} if arguments["precision"] == "auto" else set()
        return Tuning(
            subject=subject,
            pooling=subject.pooling or PLAIN_POOLING,
            sets=[one.name for one in corpus.sets],
            corpus=corpus.digest(),
            arguments={k: arguments[k] for k in arguments.keys() - WITHOUT_EFFECT - device},
            seed=seed,
        )

    def _fitting(self, row: Row, column: str, seed: int) -> Fitting | None:
        calibrator = row.build(self.options.flow, seed)
        if calibrator is None:
            return None
        corpus = "nli" if row.fit == "nli" else column
        return Fitting(
            calibrator=calibrator,
            corpus=corpus,
            corpus_digest=self.material.corpus_digest(corpus),
            seed=seed if row.seeded else None,
            dev=self.material.pairs_digest(column, "dev") if row.chosen else None,
        )
