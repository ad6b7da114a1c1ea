"""From a table and an encoder to jobs: what each cell needs, and why one cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from bertflow.calibrators.base import check_number
from bertflow.data import CATALOG
from bertflow.errors import InputError, MissingDataError
from bertflow.finetuning import NliCorpus, Recipe, nli_corpus
from bertflow.paper.jobs import Encoding, Fitting, Score, Tuning, Words
from bertflow.paper.material import NLI, Material
from bertflow.paper.subjects import Subject
from bertflow.paper.tables import FLOWS, PAPER_POOLING, PLAIN_POOLING, FlowName, Row, Table

# What of a fine-tuning's arguments changes nothing but how it is carried out.
WITHOUT_EFFECT = ("checkpoint_steps", "random_state")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a reproduction may vary.

    Attributes:
        flow: "paper", "released" or "tempered": which flow the rows called flow are.
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
        jobs: One a seed, or one; none if it cannot be.
        reason: Why it cannot be, or None.
        published_only: Whether that is no want of data: the row is there for its published number.
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


class Planner:
    """Plans tables on one body of data.

    Args:
        material: Tasks and corpora.
        options: What may vary.
        words: Averaged word vectors for the row that has them, or None.
    """

    def __init__(self, material: Material, options: Options, words: Subject | None = None) -> None:
        self.material = material
        self.options = options
        self.words = words
        self._labelled: NliCorpus | MissingDataError | None = None

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
        from bertflow.analysis.frequency import NEIGHBOURS, RANGES

        return Words(
            subject=subject,
            ranges=RANGES,
            neighbours=NEIGHBOURS,
            frequencies=f"wordfreq {version('wordfreq')}",
        )

    def labelled(self) -> NliCorpus:
        """SNLI and MNLI with their labels, as far as they are there.

        Raises:
            MissingDataError: Neither is.
        """
        if self._labelled is None:
            self._labelled = self._read_labelled()
        if isinstance(self._labelled, MissingDataError):
            raise self._labelled
        return self._labelled

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
        if row.source == "words":
            assert self.words is not None
            return Encoding(subject=self.words, pooling=None)
        tuning = None
        if row.source == "nli":
            tuning = self._tuning(subject, seed if row.per_seed else 0)
        return Encoding(subject=subject, pooling=pooling_of(subject, row), tuning=tuning)

    def _tuning(self, subject: Subject, seed: int) -> Tuning:
        corpus = self.labelled()
        arguments = asdict(self.recipe(seed))
        if arguments["precision"] == "auto":
            # What that comes to is the device's, of which no record depends.
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
        if row.calibrator is None:
            return None
        corpus = "nli" if row.fit == "nli" else column
        return Fitting(
            calibrator=row.calibrator(self.options.flow, seed),
            corpus=corpus,
            corpus_digest=self.material.corpus_digest(corpus),
            seed=seed if row.seeded else None,
            dev=self.material.pairs_digest(column, "dev") if row.chosen else None,
        )

    def _read_labelled(self) -> NliCorpus | MissingDataError:
        reasons = []
        for names in (NLI, *((name,) for name in NLI)):
            try:
                return nli_corpus(names, self.material.data, limit=self.material.limit)
            except MissingDataError as error:
                reasons.append(error)
        return reasons[-1]


def pooling_of(subject: Subject, row: Row) -> str | None:
    """The pooling of a row: the one the user names, or the paper's."""
    return subject.pooling or row.pooling


def pooling_label(subject: Subject, row: Row) -> str:
    """What it is called in a table."""
    names = {PAPER_POOLING: "first and last block", PLAIN_POOLING: "last block"}
    pooling = pooling_of(subject, row) or "own pooling"
    return names.get(pooling, pooling)
