"""Running jobs: what has no record yet is computed, and leaves one as soon as it is finished."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from bertflow.evaluation import as_json, describe_calibrator, figures
from bertflow.evaluation.experiment import Outcome, PairRows, Trial, run_all, run_trial
from bertflow.evaluation.scores import on_all_pairs
from bertflow.finetuning import finetune_and_save
from bertflow.finetuning.finetuned import FACTS
from bertflow.io.files import remove_stale, staged, writing
from bertflow.io.reading import read_json
from bertflow.io.result_store import Result, ResultStore, key_of
from bertflow.paper.plan import Encoding, Job, Planner, Score, Tuning, Words
from bertflow.paper.subjects import Subject

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

# Rows of a corpus above this many bytes are fitted from a memory-mapped file, not from memory.
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

    def load(self, encodings: Sequence[Encoding]) -> SentenceTransformer:
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
        progress: Called with "train", "encode" or "cells", the steps done and their total.

    Returns:
        How many were run.
    """
    records = place.records
    missing = {job.key: job for job in jobs if records.get(job.key) is None}
    log.info("%d jobs to run", len(missing))
    scores = [job for job in missing.values() if isinstance(job, Score)]
    tunings = {key: job for key, job in missing.items() if isinstance(job, Tuning)}
    for score in scores:
        # Of no use to a score is the record of a model that is gone.
        if (tuning := score.encoding.tuning) is not None and not (
            place.model(tuning).is_dir() and records.get(tuning.key)
        ):
            tunings[tuning.key] = tuning
    report = progress or (lambda stage, done, total: None)
    run = _Run(planner, place, report, len(missing.keys() | tunings.keys()))
    for job in missing.values():
        if isinstance(job, Words):
            run.words(job)
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.encoding.weights, []).append(score)
    for group in sorted(groups.values(), key=lambda group: group[0].encoding.tuning is not None):
        tuning = group[0].encoding.tuning
        if tuning is not None and tuning.key in tunings:
            run.tune(tunings.pop(tuning.key))
        run.score(group)
    for tuning in tunings.values():
        run.tune(tuning)
    return run.done


@dataclass
class _Run:
    """The jobs of a table on their way.

    Attributes:
        planner: Whose material they were planned on.
        place: Where they leave what.
        report: Told of every step.
        total: How many jobs there are.
        done: How many are finished.
    """

    planner: Planner
    place: Workplace
    report: Progress
    total: int
    done: int = 0

    def words(self, job: Words) -> None:
        """The statistics of word embeddings."""
        began = time.perf_counter()
        encoder = load_encoder(
            job.subject.name,
            revision=job.subject.revision,
            device="cpu",
            trust_remote_code=self.place.trust_remote_code,
        )
        words = frequent_words(encoder[0].tokenizer, most=job.ranges[-1][1])
        found = word_statistics(
            word_embeddings(encoder), words, ranges=job.ranges, neighbours=job.neighbours
        )
        self._keep(job, {}, found.to_dict(), time.perf_counter() - began)

    def tune(self, tuning: Tuning) -> None:
        """Fine-tune an encoder, unless that is done and only its record is lacking."""
        folder, subject = self.place.model(tuning), tuning.subject
        if not folder.is_dir():
            encoder = load_encoder(
                subject.name,
                pooling=tuning.pooling,
                max_length=subject.max_length,
                revision=subject.revision,
                device=self.place.device,
                trust_remote_code=self.place.trust_remote_code,
            )
            folder.parent.mkdir(parents=True, exist_ok=True)
            finetune_and_save(
                encoder,
                self.planner.material.labelled(),
                folder,
                self.planner.recipe(tuning.seed),
                checkpoints=folder.with_name(f"{folder.name}.checkpoints"),
                progress=lambda stage, step, total: (
                    self.report("train", step, total) if stage == "train" else None
                ),
            )
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
        """Score what one set of weights gives, under all its poolings."""
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
        """Encode all sentences that are needed: those that several poolings need in one pass."""
        users: dict[tuple[str, ...], set[str]] = {}
        for score in group:
            names: list[tuple[str, ...]] = [("pairs", score.task, score.split)]
            if score.fitting is not None:
                names.append(("corpus", score.fitting.corpus))
                names += [("pairs", score.task, "dev")] if score.fitting.dev else []
            for name in names:
                users.setdefault(name, set()).add(score.encoding.key)
        passes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for name, keys in users.items():
            passes.setdefault(tuple(key for key in encodings if key in keys), []).append(name)
        for several, names in passes.items():
            texts = [text for name in names for text in self._texts(name)]
            tasks = [name[1:] for name in names if name[0] == "pairs"]
            # Another pooling, where one pass lacks nothing, is not computed again.
            lacking = [key for key in several if caches[key].missing(texts)]
            folders = [caches[key].folder for key in lacking]
            fill(
                [caches[key] for key in lacking],
                texts,
                partial(self._load, [encodings[key] for key in lacking], tasks, folders),
                batch_size=self.place.batch_size,
                progress=partial(self.report, "encode"),
            )

    def _texts(self, name: tuple[str, ...]) -> list[str]:
        if name[0] == "corpus":
            return self.planner.material.corpus(name[1])
        first, second, _ = self.planner.material.pairs(*name[1:]).graded()
        return [*first, *second]

    def _load(
        self,
        encodings: Sequence[Encoding],
        tasks: Sequence[tuple[str, ...]],
        folders: Sequence[Path],
    ) -> SentenceTransformer:
        """Load an encoder, and note beside its vectors how many texts of each task it cuts."""
        encoder = self.place.load(encodings)
        for task in tasks:
            recipe = self._cut_recipe(*task)
            cut = count_cut_of(encoder, list(dict.fromkeys(self._texts(("pairs", *task)))))
            note = Result(
                kind="cut", key=key_of(recipe), recipe=recipe, result={"cut": cut}, seconds=0.0
            )
            for folder in folders:
                ResultStore(folder).put(note)
        return encoder

    def _cut_recipe(self, task: str, split: str) -> dict[str, Any]:
        """What the number of cut texts depends on besides the encoder."""
        return {"job": "cut", "pairs": self.planner.material.pairs_digest(task, split)}

    @contextmanager
    def _corpora(self, scores: Sequence[Score], cache: VectorCache) -> Iterator[dict[str, Array]]:
        """By corpus, numbers of the cache's rows or, of a large one, a memory-mapped copy of them.

        Repeats count as often as they occur, so a large corpus is written out with its repeats, to
        be read by all its fits, and removed after them.
        """
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
                        rows[name] = _spread(
                            vectors, numbers, written.enter_context(staged(target))
                        )
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
            # So that several run at a time, and the bits do not depend on the device.
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
        subject = job.encoding.subject if isinstance(job, Score) else job.subject
        record = Result(
            kind=job.kind,
            key=job.key,
            recipe=job.recipe(),
            about={**about_subject(subject), **about},
            result=result,
            seconds=seconds,
            versions=library_versions(),
        )
        self.place.records.put(replace(record, **more))
        log.info("%s %s finished in %.1f s", job.kind, job.key, seconds)
        self.done += 1
        self.report("cells", self.done, self.total)


def about_subject(subject: Subject) -> dict[str, Any]:
    """What a record says of the encoder, for people."""
    return {
        "encoder": subject.name,
        "label": subject.label,
        "revision": subject.revision,
        "max_length": subject.max_length,
    }


def _spread(vectors: Array, numbers: Array, path: Path) -> Array:
    """Write rows to a file, and map it: to fill a map would end the process on a full disk."""
    with path.open("wb") as file:
        for start in range(0, len(numbers), SPREAD_ROWS):
            rows = vectors[numbers[start : start + SPREAD_ROWS]]
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)
    return np.memmap(path, dtype="<f4", mode="r", shape=(len(numbers), vectors.shape[1]))
