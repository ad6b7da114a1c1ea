"""From a table and an encoder to jobs: what each cell needs, or why it stays empty.

The recipe of a job spells out all that its result depends on, and the key of its record is a hash
of the recipe. So a changed recipe leaves all other records valid, and tables share jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar

from bertflow.analysis.frequency import NEIGHBOURS, RANGES
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import calibrator_name
from bertflow.data import CATALOG
from bertflow.errors import InputError, MissingDataError, check_number
from bertflow.finetuning import Recipe
from bertflow.io.result_store import key_of
from bertflow.paper.declared import (
    FLOWS,
    PAPER_POOLING,
    PLAIN_POOLING,
    FlowName,
    Row,
    Table,
)
from bertflow.paper.subjects import Material, Subject

# Arguments of a fine-tuning that change nothing but how it is carried out.
WITHOUT_EFFECT = ("checkpoint_steps", "random_state")


class Keyed:
    """A piece of work with a recipe, all that its result depends on. Its key is a hash of that."""

    def recipe(self) -> dict[str, Any]:
        """The recipe, for JSON."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """A hash of the recipe."""
        return key_of(self.recipe())


@dataclass(frozen=True, kw_only=True)
class Tuning(Keyed):
    """Siamese fine-tuning of an encoder on NLI.

    Attributes:
        subject: The encoder.
        pooling: Of the sentence vectors that are trained.
        sets: The data sets' names.
        corpus: SHA-256 of the pairs, with those held out.
        arguments: Of `bertflow.finetuning.Recipe`, as far as they change the result.
        seed: Its seed.
    """

    kind: ClassVar = "tuning"
    subject: Subject
    pooling: str
    sets: tuple[str, ...]
    corpus: str
    arguments: Mapping[str, Any]
    seed: int

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "job": self.kind,
            "encoder": self.subject.digest,
            "pooling": self.pooling,
            "max_length": self.subject.max_length,
            "sets": list(self.sets),
            "corpus": self.corpus,
            "arguments": dict(self.arguments),
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class Encoding(Keyed):
    """How sentences become vectors.

    Attributes:
        subject: The encoder.
        pooling: As in `load_encoder`; None is its own.
        tuning: How it was fine-tuned before, or None.
    """

    subject: Subject
    pooling: str | None
    tuning: Tuning | None = None

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "encoder": self.subject.digest if self.tuning is None else self.tuning.recipe(),
            "pooling": self.pooling,
            "max_length": self.subject.max_length,
            "dtype": "float32",
        }

    @property
    def weights(self) -> str:
        """The same for encodings that differ in their pooling alone."""
        return key_of({**self.recipe(), "pooling": ""})


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A calibrator and what it is fitted on.

    Attributes:
        calibrator: Not fitted.
        corpus: A task, or "nli".
        corpus_digest: SHA-256 of its sentences.
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
        arguments = self.calibrator.get_params(deep=False)
        arguments.pop("device", None)
        if self.dev is not None:
            arguments.pop("n_components")
        return {
            "calibrator": calibrator_name(self.calibrator),
            "arguments": arguments,
            "corpus": self.corpus_digest,
            "dev": self.dev,
        }


@dataclass(frozen=True, kw_only=True)
class Score(Keyed):
    """The score of vectors on a task, calibrated or not.

    Attributes:
        encoding: Where the vectors come from.
        fitting: The calibrator, or None.
        task: The task.
        split: Its part.
        pairs: SHA-256 of the pairs.
    """

    kind: ClassVar = "score"
    encoding: Encoding
    fitting: Fitting | None
    task: str
    split: str
    pairs: str

    @property
    def subject(self) -> Subject:
        """The encoder."""
        return self.encoding.subject

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "job": self.kind,
            **self._fit(),
            "task": self.task,
            "split": self.split,
            "pairs": self.pairs,
        }

    @property
    def fit(self) -> str:
        """The same for scores that share one fit."""
        return key_of(self._fit())

    def _fit(self) -> dict[str, Any]:
        fitting = self.fitting and self.fitting.recipe()
        return {"encoding": self.encoding.recipe(), "fitting": fitting}


@dataclass(frozen=True, kw_only=True)
class Words(Keyed):
    """Word embeddings by frequency: the paper's Table 1.

    Attributes:
        subject: The encoder.
        ranges: Ranks from and to, the second not included.
        neighbours: The counts k.
        frequencies: Package and version that the ranks come from.
    """

    kind: ClassVar = "words"
    subject: Subject
    ranges: tuple[tuple[int, int], ...]
    neighbours: tuple[int, ...]
    frequencies: str

    def recipe(self) -> dict[str, Any]:
        """All that the result depends on."""
        return {
            "job": self.kind,
            "encoder": self.subject.digest,
            "ranges": [list(one) for one in self.ranges],
            "neighbours": list(self.neighbours),
            "frequencies": self.frequencies,
        }


Job = Tuning | Score | Words


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a reproduction.

    Attributes:
        flow: Which flow the rows called flow have: "paper", "released" or "tempered".
        seeds: How often each flow is fitted, and in Table 8 each encoder fine-tuned.
        finetuning: Arguments of `bertflow.finetuning.Recipe` that differ.

    Raises:
        InputError: A value is unknown or out of its range.
    """

    flow: FlowName = "paper"
    seeds: int = 5
    finetuning: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, 1, integer=True)
        if self.flow not in FLOWS:
            raise InputError(f"flow must be one of {', '.join(FLOWS)}, got {self.flow!r}")


@dataclass(frozen=True)
class Cell:
    """A row and a column, and the job of each seed.

    Attributes:
        row: The row.
        column: The task.
        jobs: One a seed, or one; none of an empty cell.
        reason: Why the cell is empty, or None.
        published_only: Whether it is empty although no data are missing: the row is there for its
            published number.
    """

    row: Row
    column: str
    jobs: Sequence[Score]
    reason: str | None = None
    published_only: bool = False


@dataclass(frozen=True)
class Plan:
    """A table for one encoder.

    Attributes:
        table: The table.
        subject: The encoder.
        rows: The table's rows that this encoder has.
        cells: By row and column.
    """

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
    """Plans tables.

    Args:
        material: Tasks and corpora.
        options: What may vary.
        words: Averaged word vectors for the row that has them, or None.
    """

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
        return Words(
            subject=subject,
            ranges=RANGES,
            neighbours=NEIGHBOURS,
            frequencies=f"wordfreq {version('wordfreq')}",
        )

    def recipe(self, seed: int) -> Recipe:
        """How an encoder is fine-tuned."""
        return Recipe(**{**(self.options.finetuning or {}), "random_state": seed})  # type: ignore[arg-type]

    def _cell(self, table: Table, subject: Subject, row: Row, column: str) -> Cell:
        if row.source == "published":
            return Cell(row, column, [], "not a model that bertflow runs", published_only=True)
        if row.source == "words" and self.words is None:
            reason = "name the file of the word vectors to run it"
            return Cell(row, column, [], reason, published_only=True)
        try:
            split = table.split or CATALOG[column].default_split
            pairs = self.material.pairs_digest(column, split)
            seeds = range(self.options.seeds if row.seeded or row.per_seed else 1)
            jobs = [
                Score(
                    encoding=self._encoding(subject, row, seed),
                    fitting=self._fitting(row, column, seed),
                    task=column,
                    split=split,
                    pairs=pairs,
                )
                for seed in seeds
            ]
        except MissingDataError as error:
            return Cell(row, column, [], str(error))
        return Cell(row, column, jobs)

    def _encoding(self, subject: Subject, row: Row, seed: int) -> Encoding:
        if row.source == "words" and self.words is not None:
            return Encoding(subject=self.words, pooling=None)
        tuning = None
        if row.source == "nli":
            tuning = self._tuning(subject, seed if row.per_seed else 0)
        return Encoding(subject=subject, pooling=subject.pooling or row.pooling, tuning=tuning)

    def _tuning(self, subject: Subject, seed: int) -> Tuning:
        corpus = self.material.labelled()
        arguments = asdict(self.recipe(seed))
        if arguments["precision"] == "auto":
            # "auto" resolves per device; records must not depend on the device.
            del arguments["precision"]
        return Tuning(
            subject=subject,
            pooling=subject.pooling or PLAIN_POOLING,
            sets=tuple(one.name for one in corpus.sets),
            corpus=corpus.digest(),
            arguments={k: v for k, v in arguments.items() if k not in WITHOUT_EFFECT},
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
