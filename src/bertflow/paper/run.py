"""Reproducing the paper: tables by name, whose jobs run once and leave a record each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis.frequency import frequent_words, word_embeddings, word_statistics
from bertflow.arrays import Array
from bertflow.encoders import VectorCache, fill, library_versions, load_poolings, load_word_vectors
from bertflow.encoders.embedding import count_cut_of
from bertflow.errors import BertflowError, InputError, MissingDataError
from bertflow.evaluation import as_json, figures
from bertflow.evaluation.experiment import Outcome, PairRows, Trial, run_all, run_trial
from bertflow.evaluation.scores import on_all_pairs
from bertflow.finetuning import finetune, save_finetuned
from bertflow.finetuning.siamese import FACTS
from bertflow.io.reading import read_json
from bertflow.io.result_store import Result, ResultStore, key_of
from bertflow.paper import NAMES
from bertflow.paper.analyses import Scatter, lexical_table, scatter, words_table
from bertflow.paper.declared import SCORE_TABLES, Table
from bertflow.paper.plan import Encoding, Job, Plan, Planner, Score, Subject, Tuning, Words
from bertflow.paper.results import TableResult, score_table

Progress = Callable[[str, int, int], None]
# "pairs", a task and its split; or "corpus" and its name.
Source: TypeAlias = tuple[str, ...]
Made: TypeAlias = TableResult | list[Scatter] | BertflowError

FIGURE = "figure2"
WORDS = "table1"
LEXICAL = "table6"
SWEEP = "table7"


@dataclass(kw_only=True)
class Workplace:
    """Where jobs run and what they leave.

    Attributes:
        planner: Holds the data and what may vary.
        folder: Holds `records`, `vectors` and `models`.
        device: Where encoders run; None takes a GPU if there is one.
        jobs: Processes that fit at a time; None takes one a CPU.
        trust_remote_code: Whether code that comes with an encoder may run.
        report: Called with "train", "encode" or "cells", the steps done and their total.
        todo: How many jobs of a table had no record; so many of them are `done`.
    """

    planner: Planner
    folder: Path
    batch_size: int = 32
    device: str | None = None
    jobs: int | None = None
    trust_remote_code: bool = False
    report: Progress = field(default=lambda stage, done, total: None)
    todo: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

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

    def load(self, encodings: Sequence[Encoding]) -> SentenceTransformer:
        """The encoder of encodings that differ in their pooling alone."""
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

    def run(self, jobs: Iterable[Job]) -> None:
        """Run the jobs that have no record yet, each once."""
        missing = {job.key: job for job in jobs if self.records.get(job.key) is None}
        scores = [job for job in missing.values() if isinstance(job, Score)]
        for score in scores:
            tuning = score.encoding.tuning
            # A score needs the model, whose record may outlive it.
            if tuning and not (self.model(tuning).is_dir() and self.records.get(tuning.key)):
                missing[tuning.key] = tuning
        self.todo, self.done = len(missing), 0
        for job in missing.values():
            if isinstance(job, Words):
                self._count_words(job)
            elif isinstance(job, Tuning):
                self._tune(job)
        for group in _grouped(scores, lambda score: score.encoding.weights):
            self._score(group)

    def _count_words(self, job: Words) -> None:
        """The statistics of word embeddings."""
        began = time.perf_counter()
        # Words have no length.
        subject = replace(job.subject, max_length=None)
        encoder = self.load([Encoding(subject=subject, pooling=None)])
        words = frequent_words(encoder[0].tokenizer, most=job.ranges[-1][1])
        found = word_statistics(
            word_embeddings(encoder), words, ranges=job.ranges, neighbours=job.neighbours
        )
        seconds = time.perf_counter() - began
        self._keep(job, job.subject, result=found.to_dict(), seconds=seconds)

    def _tune(self, tuning: Tuning) -> None:
        """Fine-tune an encoder, unless only the record is missing."""
        folder, subject = self.model(tuning), tuning.subject
        if not folder.is_dir():
            tuned = finetune(
                self.load([Encoding(subject=subject, pooling=tuning.pooling)]),
                self.planner.material.labelled(),
                self.planner.recipe(tuning.seed),
                checkpoints=folder.with_name(f"{folder.name}.checkpoints"),
                progress=self.report,
            )
            save_finetuned(tuned, folder)
        facts = read_json(folder / FACTS)
        self._keep(
            tuning,
            subject,
            about={"precision": facts["recipe"]["precision"], "device": facts["device"]},
            result={name: facts[name] for name in ("labels", "accuracy", "counts")},
            seconds=facts["seconds"],
            versions=facts["versions"],
        )

    def _score(self, group: Sequence[Score]) -> None:
        """Score the vectors of one set of weights, under all its poolings."""
        caches, cuts = self._encode(group)
        for several in _grouped(group, lambda score: score.encoding.key):
            cache = caches[several[0].encoding.key]
            batches = _grouped(several, lambda score: score.fit)
            names = {score.fitting.corpus for score in several if score.fitting}
            corpora = {name: self.planner.material.corpus(name) for name in names}
            # All fits share these arrays: joblib maps them into its processes.
            rows = {name: cache.vectors()[cache.rows(texts)] for name, texts in corpora.items()}
            trials = [self._trial(batch, cache, rows) for batch in batches]
            works = [partial(run_trial, cache.vectors(), trial) for trial in trials]
            for number, outcome in run_all(works, self.jobs):
                for score, cosines in zip(batches[number], outcome.cosines, strict=True):
                    self._keep_score(
                        score, cosines, outcome, cuts["pairs", score.task, score.split]
                    )

    def _encode(self, group: Sequence[Score]) -> tuple[dict[str, VectorCache], dict[Source, int]]:
        """Encode all sentences that are needed; several poolings take one pass.

        With the vectors comes how many texts of each task and split are cut.
        """
        encodings = {score.encoding.key: score.encoding for score in group}
        caches = {key: self.vectors(one) for key, one in encodings.items()}
        users: dict[Source, set[str]] = {}
        for score in group:
            for source in _sources(score):
                users.setdefault(source, set()).add(score.encoding.key)
        passes: dict[tuple[str, ...], list[Source]] = {}
        for source, keys in users.items():
            passes.setdefault(tuple(sorted(keys)), []).append(source)
        cuts: dict[Source, int] = {}
        for several, sources in passes.items():
            load = cache(partial(self.load, [encodings[key] for key in several]))
            fill(
                [caches[key] for key in several],
                [text for source in sources for text in self._texts(source)],
                load,
                batch_size=self.batch_size,
                progress=partial(self.report, "encode"),
            )
            for source in sources:
                if source[0] == "pairs":
                    cuts[source] = self._cut(source, group[0].encoding, load)
        return caches, cuts

    def _texts(self, source: Source) -> list[str]:
        if source[0] == "corpus":
            return self.planner.material.corpus(source[1])
        first, second, _ = self.planner.material.pairs(*source[1:]).graded()
        return [*first, *second]

    def _cut(
        self, source: Source, encoding: Encoding, load: Callable[[], SentenceTransformer]
    ) -> int:
        """How many distinct texts of a task an encoder cuts, which is loaded once to count them."""
        pairs = self.planner.material.pairs_digest(*source[1:])
        recipe = {"job": "cut", "weights": encoding.weights, "pairs": pairs}
        notes, key = ResultStore(self.folder / "vectors" / "cuts"), key_of(recipe)
        note = notes.get(key)
        if note is None:
            cut = count_cut_of(load(), list(dict.fromkeys(self._texts(source))))
            note = Result(kind="cut", key=key, recipe=recipe, result={"cut": cut}, seconds=0.0)
            notes.put(note)
        return int(note.result["cut"])

    def _trial(
        self, batch: Sequence[Score], cache: VectorCache, rows: Mapping[str, Array]
    ) -> Trial:
        pairs, fitting = self.planner.material.pairs, batch[0].fitting
        tests = [PairRows.of(pairs(one.task, one.split), cache.rows) for one in batch]
        if fitting is None:
            return Trial(None, None, tests)
        dev = PairRows.of(pairs(batch[0].task, "dev"), cache.rows) if fitting.dev else None
        return Trial(fitting.calibrator, rows[fitting.corpus], tests, dev)

    def _keep_score(self, score: Score, cosines: Array, outcome: Outcome, cut: int) -> None:
        pairs = self.planner.material.pairs(score.task, score.split)
        full = on_all_pairs(pairs, cosines)
        found = figures(pairs, full[None, :])[0]
        result = {
            "measure": found.measure,
            "figures": {name: as_json(found.main(name)) for name in found.aggregations},
            "cut": cut,
            "scored": dict(found.scored),
            "skipped": {
                **pairs.skipped,
                "no gold score": len(pairs) - len(cosines),
                "no cosine": int(np.isnan(cosines).sum()),
            },
        }
        drawn = {f"replicates_{name}": found.main(name).replicates for name in found.aggregations}
        self._keep(
            score,
            score.encoding.subject,
            about={
                "data": pairs.source,
                "fitted_on": score.fitting and score.fitting.corpus,
                "n_components": outcome.components,
            },
            result=result,
            seconds=outcome.seconds,
            arrays={"cosines": full, **drawn},
        )

    def _keep(self, job: Job, subject: Subject, **parts: Any) -> None:
        """Write a job's record, and tell that it is finished."""
        encoder = {"encoder": subject.name, "label": subject.label, "revision": subject.revision}
        about = {**encoder, **parts.pop("about", {})}
        parts = {"versions": library_versions(), **parts}
        record = Result(kind=job.kind, key=job.key, recipe=job.recipe(), about=about, **parts)
        self.records.put(record)
        self.done += 1
        self.report("cells", self.done, self.todo)


def _grouped(scores: Iterable[Score], key: Callable[[Score], str]) -> list[list[Score]]:
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(key(score), []).append(score)
    return list(groups.values())


def _sources(score: Score) -> list[Source]:
    """The text that a score needs vectors of."""
    sources: list[Source] = [("pairs", score.task, score.split)]
    if score.fitting is not None:
        sources.append(("corpus", score.fitting.corpus))
        sources += [("pairs", score.task, "dev")] if score.fitting.dev else []
    return sources


def reproduce(
    names: Sequence[str], subjects: Sequence[Subject], place: Workplace
) -> Iterator[tuple[str, Made]]:
    """Reproduce tables of the paper for encoders, one after the other.

    Every finished job leaves a record, and a job with a record is not run again. So a run that was
    stopped goes on where it was.

    Args:
        names: Some of table1 to table8 and figure2; "all" is every one.
        subjects: The encoders, as `identify` gives them.
        place: Where the jobs run.

    Returns:
        The name of each table, and the table, the numbers of Figure 2, or why it is absent.

    Raises:
        InputError: Two encoders have the same label, or one is a file of word vectors.

    Example:
        ``dict(reproduce(["table2"], [identify("bert-base-uncased")],
        Workplace(planner=Planner(Material("data")), folder=Path("runs"))))``
    """
    labels = [subject.label for subject in subjects]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"two encoders are called {twice[0]}; give a copy under another name")
    if words := [subject.name for subject in subjects if subject.words]:
        raise InputError(f"{words[0]} is a file of word vectors, not an encoder")
    for name in NAMES:
        if name in names or "all" in names:
            made: Made
            try:
                made = _made(name, subjects, place)
            except BertflowError as error:
                # One table may fail alone, for example if the encoder has too few blocks.
                made = error
            yield name, made


def _made(name: str, subjects: Sequence[Subject], place: Workplace) -> TableResult | list[Scatter]:
    """A table or the numbers of Figure 2, once all its jobs have a record."""
    planner, plans = place.planner, list[Plan]()
    if name == WORDS:
        words = [planner.words_job(one) for one in subjects]
        place.run(words)
        table = words_table(words, place.records)
    else:
        plans = _plans(SCORE_TABLES[LEXICAL if name == FIGURE else name], subjects, planner)
        place.run([job for plan in plans for job in plan.jobs])
        if name not in (FIGURE, LEXICAL):
            table = score_table(plans, place.records)
        else:
            pairs = planner.material.pairs("stsb", "dev")
            scatters = [scatter(plan, pairs, place.records) for plan in plans]
            if name == FIGURE:
                return scatters
            table = lexical_table(scatters)
    return replace(table, settings=settings(name, plans, subjects, planner))


def _plans(table: Table, subjects: Sequence[Subject], planner: Planner) -> list[Plan]:
    # Rows that are there once are about the paper's base encoder, if that is among them.
    first = min(subjects, key=lambda subject: subject.size != "base")
    plans = [planner.plan(table, one, first=one is first) for one in subjects]
    cells = [cell for plan in plans for cell in plan.cells.values()]
    if not any(cell.jobs for cell in cells):
        raise MissingDataError(
            next(cell.reason for cell in cells if cell.reads_data and cell.reason)
        )
    return plans


def settings(
    name: str, plans: Sequence[Plan], subjects: Sequence[Subject], planner: Planner
) -> dict[str, Any]:
    """All that a whole table depends on."""
    material = planner.material
    cells = [cell for plan in plans for cell in plan.cells.values()]
    fitted = {job.fitting.corpus for cell in cells for job in cell.jobs if job.fitting}
    nli = material.nli() if "nli" in fitted else {}
    flow = "paper" if name == SWEEP else planner.flow
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
        "nli": {name: len(texts) for name, texts in nli.items()},
        "versions": library_versions(),
    }
