"""Running jobs: what has no record yet is computed, and leaves one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from bertflow.encoders import load_encoder
from bertflow.finetuning import finetune_and_save
from bertflow.finetuning.finetuned import FACTS
from bertflow.io.json import read_json
from bertflow.paper.jobs import Job, Score, Tuning, Words
from bertflow.paper.planning import Planner
from bertflow.paper.records import Record, Records
from bertflow.paper.scoring import score_group
from bertflow.paper.workplace import Progress, Steps, Workplace, about_subject

log = logging.getLogger(__name__)


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
    report = progress or (lambda stage, done, total: None)
    records = place.records
    missing = {job.key: job for job in jobs if records.get(job.key) is None}
    log.info("%d jobs to run", len(missing))
    scores = [job for job in missing.values() if isinstance(job, Score)]
    tunings = {t.key: t for job in scores if (t := job.encoding.tuning) is not None}
    tunings |= {key: job for key, job in missing.items() if isinstance(job, Tuning)}
    # A record without its model is of no use to what is to come.
    untrained = [
        tuning
        for tuning in tunings.values()
        if not place.model(tuning).is_dir() or records.get(tuning.key) is None
    ]
    steps = Steps(report, len(missing) + len([t for t in untrained if t.key not in missing]))
    for job in missing.values():
        if isinstance(job, Words):
            _words(job, place, records)
            steps.one()
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.encoding.weights, []).append(score)
    for group in sorted(groups.values(), key=lambda group: group[0].encoding.tuning is not None):
        tuning = group[0].encoding.tuning
        if tuning is not None and tuning in untrained:
            _tune(tuning, planner, place, records, report)
            untrained.remove(tuning)
            steps.one()
        score_group(group, planner.material, place, records, report, steps)
    for tuning in untrained:
        _tune(tuning, planner, place, records, report)
        steps.one()
    return steps.done


def _words(job: Words, place: Workplace, records: Records) -> None:
    from bertflow.analysis.frequency import frequent_words, word_embeddings, word_statistics

    began = time.perf_counter()
    encoder = load_encoder(
        job.subject.name,
        revision=job.subject.revision,
        device="cpu",
        trust_remote_code=place.trust_remote_code,
    )
    words = frequent_words(encoder[0].tokenizer, most=job.ranges[-1][1])
    found = word_statistics(
        word_embeddings(encoder), words, ranges=job.ranges, neighbours=job.neighbours
    )
    records.put(
        Record(
            kind=job.kind,
            key=job.key,
            recipe=job.recipe(),
            about=about_subject(job.subject),
            result=found.to_dict(),
            seconds=time.perf_counter() - began,
        )
    )


def _tune(
    tuning: Tuning, planner: Planner, place: Workplace, records: Records, report: Progress
) -> None:
    """Fine-tune an encoder, unless that is done and only its record is lacking."""
    folder = place.model(tuning)
    if not folder.is_dir():
        encoder = load_encoder(
            tuning.subject.name,
            pooling=tuning.pooling,
            max_length=tuning.subject.max_length,
            revision=tuning.subject.revision,
            device=place.device,
            trust_remote_code=place.trust_remote_code,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        finetune_and_save(
            encoder,
            planner.labelled(),
            folder,
            planner.recipe(tuning.seed),
            checkpoints=folder.with_name(f"{folder.name}.checkpoints"),
            progress=lambda stage, step, total: (
                report("train", step, total) if stage == "train" else None
            ),
        )
    facts = read_json(folder / FACTS)
    records.put(
        Record(
            kind=tuning.kind,
            key=tuning.key,
            recipe=tuning.recipe(),
            about={
                **about_subject(tuning.subject),
                "sets": facts["sets"],
                "seed": tuning.seed,
                "pooling": tuning.pooling,
                "precision": facts["recipe"]["precision"],
                "device": facts["device"],
            },
            result={name: facts[name] for name in ("labels", "accuracy", "counts")},
            seconds=facts["seconds"],
            versions=facts["versions"],
        )
    )
