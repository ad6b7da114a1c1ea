"""Reproducing the paper: tables by name, whose jobs run once and leave a record each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.base import clone

from bertflow.analysis.frequency import frequent_words, word_embeddings, word_statistics
from bertflow.arrays import Array
from bertflow.encoders import (
    VectorCache,
    fill,
    library_versions,
    load_encoder,
    load_poolings,
    load_word_vectors,
)
from bertflow.encoders.embedding import count_cut_of
from bertflow.errors import (
    BertflowError,
    InputError,
    MissingDataError,
    MissingDependencyError,
    unknown,
)
from bertflow.evaluation import as_json, describe_calibrator, figures
from bertflow.evaluation.experiment import Outcome, PairRows, Trial, run_all, run_trial
from bertflow.evaluation.scores import on_all_pairs
from bertflow.finetuning import finetune, save_finetuned
from bertflow.finetuning.finetuned import FACTS
from bertflow.io.files import remove_stale, staged, writing
from bertflow.io.reading import read_json
from bertflow.io.result_store import Result, ResultStore, key_of
from bertflow.paper import NAMES
from bertflow.paper.analyses import Scatter, lexical_table, scatter, sweep_table, words_table
from bertflow.paper.declared import SCORE_TABLES
from bertflow.paper.plan import Encoding, Job, Plan, Planner, Score, Tuning, Words
from bertflow.paper.results import TableResult, score_table
from bertflow.paper.subjects import Subject

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
# "pairs", a task and its split; or "corpus" and its name.
Source: TypeAlias = tuple[str, ...]

FIGURE = "figure2"
WORDS = "table1"
LEXICAL = "table6"
SWEEP = "table7"
TUNED = ("table3", "table4", "table8")
# By package, the extra that brings it, and the tables that need it.
PACKAGES = {
    "wordfreq": ("words", (WORDS,)),
    "rapidfuzz": ("words", (LEXICAL, FIGURE)),
    "matplotlib": ("report", (FIGURE,)),
    "accelerate": ("train", TUNED),
    "datasets": ("train", TUNED),
}
# A corpus with more bytes is fitted from a memory-mapped file, not from memory.
IN_MEMORY = 1 << 29
SPREAD_ROWS = 65536


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where jobs run and what they leave.

    Attributes:
        folder: Holds `records`, `vectors` and `models`.
        batch_size: Sentences a forward pass.
        device: Where encoders run; None takes a GPU if there is one.
        jobs: Processes that fit at a time; None takes one a CPU.
        trust_remote_code: Whether code that comes with an encoder may run.
    """

    folder: Path
    batch_size: int = 32
    device: str | None = None
    jobs: int | None = None
    trust_remote_code: bool = False

    @property
    def records(self) -> ResultStore:
        """The results of finished jobs."""
        return ResultStore(self.folder / "records")

    def model(self, tuning: Tuning) -> Path:
        """The folder of a fine-tuned encoder."""
        return self.folder / "models" / tuning.key

    def vectors(self, encoding: Encoding) -> VectorCache:
        """The vectors of sentences."""
        return VectorCache(self.folder / "vectors" / encoding.key, encoding.recipe())

    def load(self, subject: Subject, **how: Any) -> SentenceTransformer:
        """An encoder; `how` are further arguments of `load_encoder`."""
        return load_encoder(
            subject.name,
            revision=subject.revision,
            trust_remote_code=self.trust_remote_code,
            **{"device": self.device, **how},
        )

    def load_poolings(self, encodings: Sequence[Encoding]) -> SentenceTransformer:
        """The encoder of several encodings that differ in their pooling alone."""
        subject, tuning = encodings[0].subject, encodings[0].tuning
        if subject.words:
            return load_word_vectors(subject.name)
        return load_poolings(
            subject.name if tuning is None else self.model(tuning),
            [encoding.pooling for encoding in encodings],
            max_length=subject.max_length,
            revision=subject.revision if tuning is None else None,
            device=self.device,
            trust_remote_code=self.trust_remote_code,
        )


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The tables that were asked for.

    Attributes:
        tables: By name, in the order they were asked for.
        scatters: The numbers of Figure 2, one an encoder, if it was asked for.
        absent: By name, why a table is missing.
        ran: How many jobs had no record yet.
    """

    tables: Mapping[str, TableResult]
    scatters: Sequence[Scatter]
    absent: Mapping[str, BertflowError]
    ran: int


def reproduce(
    names: Sequence[str],
    subjects: Sequence[Subject],
    planner: Planner,
    place: Workplace,
    *,
    progress: Progress | None = None,
    finished: Callable[[TableResult | Sequence[Scatter]], None] | None = None,
) -> Reproduction:
    """Reproduce tables of the paper for encoders.

    Every finished job leaves a record, and a job with a record is not run again. So a run that was
    stopped goes on where it was.

    Args:
        names: Some of table1 to table8 and figure2; "all" is every one.
        subjects: The encoders, as `identify` gives them.
        planner: Holds the data and what may vary.
        place: Where records, vectors and fine-tuned models lie.
        progress: Called with "train", "encode" or "cells", the steps done and their total.
        finished: Called with each table, or the numbers of Figure 2, as soon as it is there.

    Returns:
        The tables. A table that cannot be made is absent, with the reason.

    Raises:
        InputError: A name is unknown, no encoder is given, two have the same label, or one is a
            file of word vectors.
        BertflowError: No table can be made; the first one's reason.
        MissingDependencyError: A package is missing; the message is the pip line.

    Source:
        Paper, Tables 1 to 8 and Figure 2.

    Example:
        ``reproduce(["table2"], [identify("bert-base-uncased")], Planner(Material("data"),
        Options()), Workplace(folder=Path("runs")))``
    """
    wanted = _checked(names, subjects)
    tables: dict[str, TableResult] = {}
    scatters: list[Scatter] = []
    absent: dict[str, BertflowError] = {}
    ran = 0
    for name in wanted:
        try:
            plans = _plans(name, subjects, planner)
            jobs: list[Job] = [planner.words_job(one) for one in subjects if name == WORDS]
            for plan in plans:
                # The accuracy of a fine-tuned encoder stands beside the table.
                jobs += [*plan.jobs, *plan.tunings.values()]
            ran += run_jobs(jobs, planner, place, progress=progress)
            if name == FIGURE:
                scatters = _scatters(plans, planner, place)
            else:
                tables[name] = _table(name, plans, subjects, planner, place)
        except BertflowError as error:
            # One table may fail alone, for example if the encoder has too few blocks.
            absent[name] = error
            continue
        # Not caught: a table that cannot be written must not count as absent.
        if finished is not None:
            finished(scatters if name == FIGURE else tables[name])
    if absent and not tables and not scatters:
        raise next(iter(absent.values()))
    return Reproduction(tables=tables, scatters=scatters, absent=absent, ran=ran)


def _checked(names: Sequence[str], subjects: Sequence[Subject]) -> list[str]:
    """The names of the tables in order, once nothing is wrong from the start."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise unknown("table", name, (*NAMES, "all"))
    if not subjects:
        raise InputError("no encoder is given")
    labels = [subject.label for subject in subjects]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"two encoders are called {twice[0]}; give a copy under another name")
    if words := [subject.name for subject in subjects if subject.words]:
        raise InputError(f"{words[0]} is a file of word vectors, not an encoder")
    wanted = [name for name in NAMES if name in names or "all" in names]
    for package, (extra, tables) in PACKAGES.items():
        users = [name for name in wanted if name in tables]
        if users and find_spec(package) is None:
            raise MissingDependencyError(
                f"{' and '.join(users)} needs {package}: pip install 'bertflow[{extra}]'"
            )
    return wanted


def _plans(name: str, subjects: Sequence[Subject], planner: Planner) -> list[Plan]:
    if name == WORDS:
        return []
    table = SCORE_TABLES[LEXICAL if name == FIGURE else name]
    # Rows that are there once are about the paper's base encoder, if that is among them.
    base = next((n for n, subject in enumerate(subjects) if subject.size == "base"), 0)
    plans = [
        planner.plan(table, subject, first=place == base) for place, subject in enumerate(subjects)
    ]
    cells = [cell for plan in plans for cell in plan.cells.values()]
    if not any(cell.jobs for cell in cells):
        raise MissingDataError(
            next(cell.reason for cell in cells if cell.reason and not cell.published_only)
        )
    return plans


def _scatters(plans: Sequence[Plan], planner: Planner, place: Workplace) -> list[Scatter]:
    pairs = planner.material.pairs("stsb", "dev")
    return [scatter(plan, pairs, place.records) for plan in plans]


def _table(
    name: str,
    plans: Sequence[Plan],
    subjects: Sequence[Subject],
    planner: Planner,
    place: Workplace,
) -> TableResult:
    if name == WORDS:
        found = words_table([planner.words_job(subject) for subject in subjects], place.records)
    elif name == LEXICAL:
        sizes = [subject.size if subject.papers else None for subject in subjects]
        found = lexical_table(_scatters(plans, planner, place), sizes)
    else:
        found = (sweep_table if name == SWEEP else score_table)(plans, place.records)
    return replace(found, settings=settings(name, plans, subjects, planner))


def settings(
    name: str, plans: Sequence[Plan], subjects: Sequence[Subject], planner: Planner
) -> dict[str, Any]:
    """All that a whole table depends on."""
    material = planner.material
    cells = [cell for plan in plans for cell in plan.cells.values()]
    fitted = {job.fitting.corpus for plan in plans for job in plan.jobs if job.fitting}
    flow = "paper" if name == SWEEP else planner.options.flow
    return {
        "encoders": {
            one.label: {
                "name": one.name,
                "revision": one.revision,
                "files": None if one.revision else one.digest[:16],
                "pooling": one.pooling or "the paper's",
                "max_length": one.max_length,
            }
            for one in subjects
        },
        "flow": flow if fitted else None,
        "seeds": max((len(cell.jobs) for cell in cells), default=1),
        "limit": material.limit,
        "nli": dict(material.found_nli) if "nli" in fitted else {},
        "versions": library_versions(),
    }


def run_jobs(
    jobs: Iterable[Job],
    planner: Planner,
    place: Workplace,
    *,
    progress: Progress | None = None,
) -> int:
    """Run the jobs that have no record yet; each leaves one as soon as it is finished.

    Args:
        jobs: In any order, repeats allowed.
        planner: Whose material they were planned on.
        place: Where.
        progress: As in `reproduce`.

    Returns:
        How many were run.
    """
    records = place.records
    missing = {job.key: job for job in jobs if records.get(job.key) is None}
    log.info("%d jobs to run", len(missing))
    scores = [job for job in missing.values() if isinstance(job, Score)]
    for score in scores:
        tuning = score.encoding.tuning
        # A score needs the model, whose record may outlive it.
        if tuning and not (place.model(tuning).is_dir() and records.get(tuning.key)):
            missing[tuning.key] = tuning
    run = _Run(planner, place, progress or (lambda stage, done, total: None), len(missing))
    for job in missing.values():
        if isinstance(job, Words):
            run.words(job)
        elif isinstance(job, Tuning):
            run.tune(job)
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.encoding.weights, []).append(score)
    for group in groups.values():
        run.score(group)
    return run.done


@dataclass
class _Run:
    """The jobs that are being run: so many of a total are done."""

    planner: Planner
    place: Workplace
    report: Progress
    total: int
    done: int = 0

    def words(self, job: Words) -> None:
        """The statistics of word embeddings."""
        began = time.perf_counter()
        encoder = self.place.load(job.subject, device="cpu")
        words = frequent_words(encoder[0].tokenizer, most=job.ranges[-1][1])
        found = word_statistics(
            word_embeddings(encoder), words, ranges=job.ranges, neighbours=job.neighbours
        )
        self._keep(job, {}, found.to_dict(), time.perf_counter() - began)

    def tune(self, tuning: Tuning) -> None:
        """Fine-tune an encoder, unless only the record is missing."""
        folder, subject = self.place.model(tuning), tuning.subject
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            tuned = finetune(
                self.place.load(subject, pooling=tuning.pooling, max_length=subject.max_length),
                self.planner.material.labelled(),
                self.planner.recipe(tuning.seed),
                checkpoints=folder.with_name(f"{folder.name}.checkpoints"),
                progress=lambda stage, step, total: (
                    self.report("train", step, total) if stage == "train" else None
                ),
            )
            save_finetuned(tuned, folder)
        facts = read_json(folder / FACTS)
        about = {
            "sets": facts["sets"],
            "seed": tuning.seed,
            "pooling": tuning.pooling,
            "precision": facts["recipe"]["precision"],
            "device": facts["device"],
        }
        result = {name: facts[name] for name in ("labels", "accuracy", "counts")}
        self._keep(tuning, about, result, facts["seconds"], versions=facts["versions"])

    def score(self, group: Sequence[Score]) -> None:
        """Score the vectors of one set of weights, under all its poolings."""
        encodings = {score.encoding.key: score.encoding for score in group}
        caches = {key: self.place.vectors(one) for key, one in encodings.items()}
        self._encode(group, encodings, caches)
        for key, cache in caches.items():
            fits: dict[str, list[Score]] = {}
            for score in group:
                if score.encoding.key == key:
                    fits.setdefault(score.fit, []).append(score)
            batches = list(fits.values())
            with self._corpora([batch[0] for batch in batches], cache) as rows:
                trials = [self._trial(batch, cache, rows) for batch in batches]
                works = [partial(run_trial, cache.vectors(), trial) for trial in trials]
                for number, outcome in run_all(works, self.place.jobs):
                    for score, cosines in zip(batches[number], outcome.cosines, strict=True):
                        self._keep_score(score, cosines, outcome, cache)

    def _encode(
        self,
        group: Sequence[Score],
        encodings: Mapping[str, Encoding],
        caches: Mapping[str, VectorCache],
    ) -> None:
        """Encode all sentences that are needed; several poolings take one pass."""
        users: dict[Source, set[str]] = {}
        for score in group:
            sources: list[Source] = [("pairs", score.task, score.split)]
            if score.fitting is not None:
                sources.append(("corpus", score.fitting.corpus))
                sources += [("pairs", score.task, "dev")] if score.fitting.dev else []
            for source in sources:
                users.setdefault(source, set()).add(score.encoding.key)
        passes: dict[tuple[str, ...], list[Source]] = {}
        for source, keys in users.items():
            passes.setdefault(tuple(key for key in encodings if key in keys), []).append(source)
        for several, named in passes.items():
            fill(
                [caches[key] for key in several],
                [text for source in named for text in self._texts(source)],
                partial(self._load, [encodings[key] for key in several], named),
                batch_size=self.place.batch_size,
                progress=partial(self.report, "encode"),
            )

    def _texts(self, source: Source) -> list[str]:
        if source[0] == "corpus":
            return self.planner.material.corpus(source[1])
        first, second, _ = self.planner.material.pairs(*source[1:]).graded()
        return [*first, *second]

    def _load(
        self, encodings: Sequence[Encoding], sources: Sequence[Source]
    ) -> SentenceTransformer:
        """Load an encoder, and note beside its vectors how many texts of each task it cuts."""
        encoder = self.place.load_poolings(encodings)
        for kind, *task in sources:
            if kind == "pairs":
                recipe = self._cut_recipe(*task)
                cut = count_cut_of(encoder, list(dict.fromkeys(self._texts((kind, *task)))))
                note = Result(
                    kind="cut", key=key_of(recipe), recipe=recipe, result={"cut": cut}, seconds=0.0
                )
                for encoding in encodings:
                    ResultStore(self.place.vectors(encoding).folder).put(note)
        return encoder

    def _cut_recipe(self, task: str, split: str) -> dict[str, Any]:
        """All that the number of cut texts depends on besides the encoder."""
        return {"job": "cut", "pairs": self.planner.material.pairs_digest(task, split)}

    @contextmanager
    def _corpora(self, scores: Sequence[Score], cache: VectorCache) -> Iterator[dict[str, Array]]:
        """By corpus, the numbers of its rows or, of a large one, a file of them for all fits."""
        names = {one.fitting.corpus: one.fitting.corpus_digest for one in scores if one.fitting}
        rows: dict[str, Array] = {}
        remove_stale(cache.folder, r"corpus-[0-9a-f]{16}\.f32")
        with ExitStack() as written:
            for name, digest in names.items():
                rows[name] = numbers = cache.rows(self.planner.material.corpus(name))
                vectors = cache.vectors()
                if len(numbers) * vectors.shape[1] * vectors.itemsize > IN_MEMORY:
                    target = cache.folder / f"corpus-{digest[:16]}.f32"
                    with writing(target):
                        staging = written.enter_context(staged(target))
                        rows[name] = _spread(vectors, numbers, staging)
            try:
                yield rows
            finally:
                rows.clear()  # Before their files go.

    def _trial(
        self, batch: Sequence[Score], cache: VectorCache, rows: Mapping[str, Array]
    ) -> Trial:
        pairs = self.planner.material.pairs
        tests = [PairRows.of(pairs(one.task, one.split), cache.rows) for one in batch]
        fitting = batch[0].fitting
        if fitting is None:
            return Trial(None, None, tests)
        calibrator = clone(fitting.calibrator)
        if "device" in calibrator.get_params():
            # Several fits run at a time, and the bits must not depend on the device.
            calibrator.set_params(device="cpu")
        dev = None
        if fitting.dev is not None:
            dev = PairRows.of(pairs(batch[0].task, "dev"), cache.rows)
        return Trial(calibrator, rows[fitting.corpus], tests, dev)

    def _keep_score(
        self, score: Score, cosines: Array, outcome: Outcome, cache: VectorCache
    ) -> None:
        material = self.planner.material
        pairs = material.pairs(score.task, score.split)
        full = on_all_pairs(pairs, cosines)
        found = figures(pairs, full[None, :])[0]
        tuning, fitting = score.encoding.tuning, score.fitting
        fitted: dict[str, Any] = dict.fromkeys(
            ("calibrator", "fitted_on", "nli", "sentences", "seed")
        )
        if fitting is not None:
            chosen = {"n_components": outcome.components} if outcome.components else {}
            fitted = {
                "calibrator": {**describe_calibrator(fitting.calibrator), **chosen},
                "fitted_on": fitting.corpus,
                "nli": dict(material.found_nli) if fitting.corpus == "nli" else None,
                "sentences": len(material.corpus(fitting.corpus)),
                "seed": fitting.seed,
            }
        about = {
            "pooling": score.encoding.pooling,
            "fine_tuned": tuning and {"model": tuning.key, "seed": tuning.seed},
            "task": score.task,
            "split": score.split,
            "data": pairs.source,
            **fitted,
            "n_components": outcome.components,
        }
        noted = ResultStore(cache.folder).get(key_of(self._cut_recipe(score.task, score.split)))
        result = {
            "measure": found.measure,
            "figures": {name: as_json(found.main(name)) for name in found.aggregations},
            "pairs": len(pairs) + sum(pairs.skipped.values()),
            "cut": noted and noted.result["cut"],
            "scored": dict(found.scored),
            "skipped": {
                **pairs.skipped,
                "no gold score": len(pairs) - len(cosines),
                "no cosine": int(np.isnan(cosines).sum()),
            },
        }
        arrays = {"cosines": full, **{f"replicates_{k}": v for k, v in found.replicates.items()}}
        self._keep(score, about, result, outcome.seconds, arrays=arrays)

    def _keep(
        self,
        job: Job,
        about: Mapping[str, Any],
        result: Mapping[str, Any],
        seconds: float,
        **more: Any,
    ) -> None:
        """Write a job's record, and tell that it is finished."""
        subject = job.subject
        encoder = {
            "encoder": subject.name,
            "label": subject.label,
            "revision": subject.revision,
            "max_length": subject.max_length,
        }
        record = Result(
            kind=job.kind,
            key=job.key,
            recipe=job.recipe(),
            about={**encoder, **about},
            result=result,
            seconds=seconds,
            versions=library_versions(),
        )
        self.place.records.put(replace(record, **more))
        log.info("%s %s finished in %.1f s", job.kind, job.key, seconds)
        self.done += 1
        self.report("cells", self.done, self.total)


def _spread(vectors: Array, numbers: Array, path: Path) -> Array:
    """Write rows to a file, and map it: filling a map would end the process on a full disk."""
    with path.open("wb") as file:
        for start in range(0, len(numbers), SPREAD_ROWS):
            rows = vectors[numbers[start : start + SPREAD_ROWS]]
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)
    return np.memmap(path, dtype="<f4", mode="r", shape=(len(numbers), vectors.shape[1]))
