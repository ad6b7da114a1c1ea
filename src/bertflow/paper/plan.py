"""What is measured, and from a table and an encoder to jobs: what each cell needs.

Encoders, tasks and corpora are told apart by their content. The recipe of a job spells out all that
its result depends on, and the key of its record is a hash of the recipe. So a changed recipe leaves
all other records valid, and tables share jobs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from huggingface_hub import snapshot_download

from bertflow.analysis.frequency import NEIGHBOURS, RANGES
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import calibrator_name
from bertflow.data import CATALOG, Pairs, read_sentences, read_task
from bertflow.errors import MissingDataError, ModelError, check_choice, check_number, need
from bertflow.evaluation.tasks import read_available
from bertflow.finetuning import NliCorpus, Recipe, nli_corpus
from bertflow.io.files import reason_of
from bertflow.io.reading import hub_answers, hub_names, not_on_hub
from bertflow.io.result_store import key_of
from bertflow.paper.declared import FLOWS, PAPER_POOLING, PLAIN_POOLING, Row, Table

T = TypeVar("T")

# The files that vectors depend on; a changed model card changes nothing.
PARTS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model", ".jinja", ".gz", ".py")
PAPER = {"bert-base-uncased": "base", "bert-large-uncased": "large"}
NLI = ("snli", "mnli")
# By the source of a row, why it has its published numbers alone.
NOT_RUN = {
    "published": "not a model that bertflow runs",
    "words": "name the file of the word vectors to run it",
}
# Arguments of a fine-tuning that change nothing but how it is carried out.
WITHOUT_EFFECT = {"checkpoint_steps", "random_state"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder, or averaged word vectors.

    Attributes:
        name: Hub name, folder or file, as given; `label` is its name in a table.
        digest: SHA-256 of its files, or the hub's commit; records depend on it.
        revision: The hub's commit; None of local files.
        size: Which of the paper's two encoders it is; None for any other.
        pooling: The one pooling to use instead of the paper's.
        max_length: Tokens a sentence is cut to.
        words: Whether it is a text file of word vectors.
    """

    name: str
    label: str
    digest: str
    revision: str | None = None
    size: str | None = None
    pooling: str | None = None
    max_length: int | None = 64
    words: bool = False

    @property
    def papers(self) -> bool:
        """Whether published numbers are of this very encoder, pooled as the paper does."""
        return self.size is not None and self.pooling is None


def identify(
    name: str | Path, *, pooling: str | None = None, max_length: int | None = 64
) -> Subject:
    """Find an encoder without loading it; a ModelError if it is neither here nor on the hub.

    The name is a folder, a .gguf file, a text file of word vectors, or a hub name, after which
    @REVISION may name a branch, tag or commit.
    """
    path, wanted = Path(name), ""
    if not path.exists():
        name, _, wanted = str(name).partition("@")
        path = Path(name)
    size = PAPER.get(path.name)
    revision = None if path.exists() else _commit(str(name), wanted or None)
    words = path.is_file() and path.suffix != ".gguf"
    return Subject(
        name=str(name),
        label=_label(path) if size is None else f"BERT-{size}",
        digest=f"hub:{revision}" if revision else _files_digest(path),
        revision=revision,
        size=size,
        pooling=pooling,
        max_length=None if words else max_length,
        words=words,
    )


def _label(path: Path) -> str:
    """A name short enough for a table; "model" and the like are named after their folder."""
    path = path.resolve() if path.exists() else path
    name = path.parent.name if path.name in ("model", "encoder", "checkpoint") else path.name
    plain = re.sub(r"(\.txt)?(\.gz|\.gguf)?$", "", name)
    return re.sub(r"[^\w.+-]+", "-", plain) or "encoder"


def _files_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        inside = file.relative_to(path)  # Of a single file it is empty: its name is no part of it.
        hidden = any(part.startswith(".") for part in inside.parts)
        if file.is_file() and (file == path or (file.suffix.lower() in PARTS and not hidden)):
            name = "" if file == path else inside.as_posix()
            digest.update(f"{name} {file.stat().st_size}\n".encode())
            with file.open("rb") as content:
                while block := content.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()


def _commit(name: str, wanted: str | None) -> str:
    """The commit of a hub name, from the hub or else from the cache."""
    candidates, offline, reason = hub_names(name), not hub_answers(), None
    for candidate in candidates:
        try:
            found = snapshot_download(
                candidate, revision=wanted, allow_patterns="config.json", local_files_only=offline
            )
            return Path(found).name
        except Exception as error:  # The hub client has many; all mean that it cannot be had.
            reason = None if offline else reason_of(error)
    raise ModelError(not_on_hub(name, reason))


def _once(read: Callable[..., T]) -> Callable[..., T]:
    """Remember the result of a method, or its MissingDataError, for all later calls."""

    @wraps(read)
    def remembered(self: Material, *args: Any) -> T:
        key = (read.__name__, *(one for one in args if one is not None))
        if key not in self._known:
            try:
                self._known[key] = read(self, *args)
            except MissingDataError as error:
                self._known[key] = error
        if isinstance(found := self._known[key], MissingDataError):
            raise found
        return cast(T, found)

    return remembered


class Material:
    """Tasks and corpora by name; each is read once, or lacks with a MissingDataError.

    With a limit, about so many pairs of each split are taken, evenly spread.
    """

    def __init__(self, data: str | Path | None = None, limit: int | None = None) -> None:
        self.data = data
        self.limit = limit
        self._known: dict[tuple[Any, ...], Any] = {}

    @_once
    def pairs(self, task: str, split: str | None = None) -> Pairs:
        """The pairs of a task."""
        pairs = read_task(task, self.data, split)
        if self.limit is None or len(pairs) <= self.limit:
            return pairs
        # Graded pairs only: in some years few are, and a small limit might meet none.
        graded = [n for n, gold in enumerate(pairs.gold) if gold is not None]
        keep = [graded[n] for n in spread(len(graded), self.limit)]
        kept: dict[str, Any] = {}
        for name in ("first", "second", "gold", "subset", "rows"):
            if whole := getattr(pairs, name):
                kept[name] = [whole[n] for n in keep]
        return replace(pairs, **kept)

    @_once
    def corpus(self, name: str) -> list[str]:
        """The sentences of a task or, for "nli", of those of SNLI and MNLI that are there."""
        if name == "nli":
            return [text for texts in self.nli().values() for text in texts]
        texts = read_sentences(name, self.data)
        if self.limit is None:
            return texts
        return [texts[n] for n in spread(len(texts), 2 * self.limit)]

    def nli(self) -> dict[str, list[str]]:
        """The sentences of each set that "nli" is made of."""
        return read_available(NLI, self.corpus)[0]

    @_once
    def labelled(self) -> NliCorpus:
        """SNLI and MNLI with their labels, or the one that is there."""
        for names in (NLI, *((name,) for name in NLI)):
            try:
                return nli_corpus(names, self.data, limit=self.limit)
            except MissingDataError as error:
                reason = error
        raise reason

    @_once
    def pairs_digest(self, task: str, split: str | None = None) -> str:
        """SHA-256 of the pairs: texts, gold and subsets."""
        pairs = self.pairs(task, split)
        subsets = pairs.subset or [""] * len(pairs)
        rows = zip(pairs.first, pairs.second, pairs.gold, subsets, strict=True)
        return digest_of(f"{row}" for row in rows)

    @_once
    def corpus_digest(self, name: str) -> str:
        """SHA-256 of the sentences."""
        return digest_of(self.corpus(name))


def spread(total: int, count: int) -> Sequence[int]:
    """So many numbers below a total, evenly spread."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total))]


def digest_of(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


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
        dev: SHA-256 of the dev split that n_components is chosen on; None where it is not chosen.
    """

    calibrator: Calibrator = field(compare=False)
    corpus: str
    corpus_digest: str
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


@dataclass(frozen=True)
class Cell:
    """A row and a task, and the jobs: one, or one a seed; an empty cell has the reason instead."""

    row: Row
    column: str
    jobs: Sequence[Score]
    reason: str | None = None

    @property
    def reads_data(self) -> bool:
        """Whether it depends on data; without jobs they are missing."""
        return self.reason not in NOT_RUN.values()


@dataclass(frozen=True)
class Plan:
    """A table for one encoder, with the rows that this encoder has and a cell for each column."""

    table: Table
    subject: Subject
    rows: Sequence[Row]
    cells: Mapping[tuple[str, str], Cell]

    @property
    def tunings(self) -> dict[str, Tuning]:
        """The fine-tunings that the cells need, by key."""
        several = [job.encoding.tuning for cell in self.cells.values() for job in cell.jobs]
        return {tuning.key: tuning for tuning in several if tuning is not None}

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all cells, and the fine-tunings, whose accuracy stands beside the table."""
        scores = [job for cell in self.cells.values() for job in cell.jobs]
        return [*scores, *self.tunings.values()]

    def label(self, row: Row, chosen: str = "chosen") -> str:
        """The label of a row, with the n_components that was chosen."""
        names = {PAPER_POOLING: "first and last block", PLAIN_POOLING: "last block"}
        pooling = self.subject.pooling or row.pooling
        return row.label.format(
            encoder=self.subject.label, pooling=names.get(pooling, pooling), chosen=chosen
        )


@dataclass(frozen=True)
class Planner:
    """Plans tables on what may vary; an InputError if a value is unknown or out of its range.

    Attributes:
        material: Tasks and corpora.
        flow: Which flow the rows called flow have: "paper", "released" or "tempered".
        seeds: How often each flow is fitted, and in Table 8 each encoder fine-tuned.
        finetuning: How encoders are fine-tuned, but for the seed.
        words: Word vectors, for the row that has them.
    """

    material: Material
    flow: str = "paper"
    seeds: int = 5
    finetuning: Recipe = field(default_factory=Recipe)
    words: Subject | None = None

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, 1, integer=True)
        check_choice("flow", self.flow, tuple(FLOWS))

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
        need("table1", "words", "wordfreq")
        frequencies = f"wordfreq {version('wordfreq')}"
        return Words(subject=subject, ranges=RANGES, neighbours=NEIGHBOURS, frequencies=frequencies)

    def recipe(self, seed: int) -> Recipe:
        """How an encoder is fine-tuned."""
        return replace(self.finetuning, random_state=seed)

    def _cell(self, table: Table, subject: Subject, row: Row, column: str) -> Cell:
        whom = self.words if row.source == "words" else subject
        if row.source == "published" or whom is None:
            return Cell(row, column, [], NOT_RUN[row.source])
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
                for seed in range(self.seeds if row.seeded or row.per_seed else 1)
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
        calibrator = row.build(self.flow, seed)
        if calibrator is None:
            return None
        corpus = "nli" if row.fit == "nli" else column
        return Fitting(
            calibrator=calibrator,
            corpus=corpus,
            corpus_digest=self.material.corpus_digest(corpus),
            dev=self.material.pairs_digest(column, "dev") if row.chosen else None,
        )
