"""Scores of models on tasks, with everything they depend on, and the differences of two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.calibrators.readme import calibrator_name
from bertflow.data import STS_TASKS, TASKS, Pairs, read_task
from bertflow.display import notebook
from bertflow.encoders.description import describe_encoder, library_versions
from bertflow.encoders.embedding import EncodeOptions, count_cut_of, embed
from bertflow.encoders.precision import resolved_precision
from bertflow.errors import InputError, MissingDataError, unknown
from bertflow.evaluation.bootstrap import Difference, holm
from bertflow.evaluation.score_grids import model_name, score_line, scores_grid
from bertflow.evaluation.scores import (
    AVERAGES,
    Estimate,
    Figures,
    as_json,
    average,
    figures,
    on_all_pairs,
    paired_cosine,
)
from bertflow.models import CalibratedSentenceTransformer

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """All that a score depends on beside what it is a score of."""

    encoder: Mapping[str, Any]  # Name, pooling, length, type and fingerprint.
    calibrator: Mapping[str, Any] | None  # Its name and arguments.
    fitted_on: Mapping[str, Any] | None  # Provenance of the calibrator.
    cut: int  # How many distinct texts the encoder cuts, being longer than it takes.
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @staticmethod
    def of(model: SentenceTransformer, options: EncodeOptions) -> dict[str, Any]:
        """The encoder, calibrator and fit of a model that encodes by these options."""
        calibrator = model.calibrator if isinstance(model, CalibratedSentenceTransformer) else None
        precision = resolved_precision(options.get("precision", "auto"), model)
        return {
            "encoder": {**describe_encoder(model), "precision": precision},
            "calibrator": calibrator and describe_calibrator(calibrator),
            "fitted_on": getattr(calibrator, "provenance_", None),
        }


@dataclass(frozen=True, kw_only=True)
class Score(Figures, Provenance):
    """A score of a task as `Figures`, and everything that it depends on.

    Attributes:
        task: The task's name.
        split: Which part of it.
        pairs: How many pairs the split has.
        skipped: How many of them do not count, by reason.
        data: The file, folder or hub revision.
        texts: How many distinct texts the graded pairs have.
        graded: The pairs; not part of the JSON.
        cosines: One for each pair, NaN where it has none; not part of the JSON.
    """

    task: str
    split: str
    pairs: int
    skipped: Mapping[str, int]
    data: str
    texts: int
    graded: Pairs = field(repr=False, compare=False)
    cosines: Array = field(repr=False, compare=False)

    @property
    def wmean(self) -> Estimate:
        """Mean over the subsets, weighted by their pairs."""
        return self.main("wmean")

    @property
    def mean(self) -> Estimate:
        """Plain mean over the subsets."""
        return self.main("mean")

    @property
    def all(self) -> Estimate:
        """Over all pairs together."""
        return self.main("all")

    def __repr__(self) -> str:
        return f"Score({score_line(self)})"

    def _repr_html_(self) -> str:
        return Scores(scores={self.task: self}, absent={})._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON has it."""
        plain = {**vars(self)}
        del plain["graded"], plain["cosines"]
        return {"task": self.task, "split": self.split, **plain, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one model by task, at least one, and why others are absent, with paths tried."""

    scores: Mapping[str, Score]
    absent: Mapping[str, str]

    def average(self, aggregation: str) -> Estimate:
        """The average of the seven STS tasks under "wmean" or "all"; undefined unless all ran."""
        return average(self.scores, aggregation)

    def __repr__(self) -> str:
        shown = scores_grid(self).text()
        return f"{shown}\nabsent: {', '.join(self.absent)}" if self.absent else shown

    def _repr_html_(self) -> str:
        several = list(self.scores.values())
        data = ", ".join(dict.fromkeys(score.data for score in several))
        facts = {"data": data, "model": model_name(several[0])}
        if self.absent:
            facts["absent"] = ", ".join(self.absent)
        return notebook("Scores", facts, [scores_grid(self)])

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON has them."""
        return {
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "absent": dict(self.absent),
            "average_of_seven": {name: as_json(self.average(name)) for name in AVERAGES},
        }


def evaluate(
    model: SentenceTransformer,
    task: str = "stsb",
    *,
    data: str | Path | None = None,
    split: str | None = None,
    **options: Unpack[EncodeOptions],
) -> Score:
    """Score a model on a task.

    Args:
        model: A SentenceTransformer, calibrated or not.
        task: "sts12" to "sts16", "stsb", "sick-r" or "qnli".
        data: Folder of the data, in any layout people have; None takes the environment variable
            BERTFLOW_DATA. If it is not there the model hub is asked.
        split: Which part; None takes "test", of qnli "dev".
        options: See `bertflow.encoders.EncodeOptions`.

    Raises:
        InputError: The task is unknown, or its data are not there or not readable.

    Example:
        ``evaluate(model, "sts12", data="senteval").wmean.value``
    """
    return score_pairs(model, read_task(task, data, split), **options)


def evaluate_all(
    model: SentenceTransformer,
    tasks: Sequence[str] = TASKS,
    *,
    data: str | Path | None = None,
    **options: Unpack[EncodeOptions],
) -> Scores:
    """Score a model on those of several tasks whose data are there, each on its published split.

    Arguments and errors are those of `evaluate`; it is none if some of the data are not there.
    """
    found, absent = read_tasks(tasks, data)
    scores = score_all(model, found, **options)
    return Scores(scores={score.task: score for score in scores}, absent=absent)


def read_tasks(
    tasks: Sequence[str], data: str | Path | None, split: str | None = None
) -> tuple[list[Pairs], dict[str, str]]:
    """Read the pairs of the tasks whose data are there, and say why the others are absent.

    An unknown task is an InputError; so is it, with the first one's reason, if none is there.
    """
    for task in tasks:
        if task not in TASKS:
            raise unknown("task", task, TASKS)
    found, absent = read_available(tasks, lambda task: read_task(task, data, split))
    return list(found.values()), absent


def read_available(
    names: Iterable[str], read: Callable[[str], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Read everything by its name, and say why something is absent; an error if all of it is."""
    found: dict[str, T] = {}
    absent: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = read(name)
        except MissingDataError as error:
            log.info("%s is absent: %s", name, error)
            absent[name] = str(error)
    if not found:
        raise MissingDataError(next(iter(absent.values()), "no task is named"))
    return found, absent


def score_pairs(
    model: SentenceTransformer, pairs: Pairs, **options: Unpack[EncodeOptions]
) -> Score:
    """Score a model on graded pairs, of a task or one's own; options as of `evaluate`."""
    return score_all(model, [pairs], **options)[0]


def score_all(
    model: SentenceTransformer, tasks: Sequence[Pairs], **options: Unpack[EncodeOptions]
) -> list[Score]:
    """Score a model on the pairs of several tasks; each distinct sentence is encoded once.

    Pairs without a gold score or with a vector that is zero or not finite are left out and counted.
    """
    # Pairs that were never graded have no part in a score.
    sides = [pairs.graded()[:2] for pairs in tasks]
    texts = [text for side in sides for half in side for text in half]
    vectors, rows = np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.int64)
    if texts:  # Those that are cut are counted for each task below.
        embedded = embed(model, texts, finite=False, count_cut=False, **options)
        vectors, rows = embedded.vectors, embedded.index
    about = Provenance.of(model, options)
    scores = []
    for pairs, (first, second) in zip(tasks, sides, strict=True):
        one, other, rows = np.split(rows, [len(first), 2 * len(first)])
        distinct = list(dict.fromkeys([*first, *second]))
        about |= {"texts": len(distinct), "cut": count_cut_of(model, distinct)}
        scores.append(_score(pairs, vectors[one], vectors[other], about))
    precision = about["encoder"]["precision"]
    log.info("%d tasks scored in %s on %s", len(scores), precision, model.device)
    return scores


def _score(pairs: Pairs, first: Array, second: Array, about: Mapping[str, Any]) -> Score:
    """The score of pairs, given the vectors of the graded ones."""
    graded = paired_cosine(first, second)
    cosines = on_all_pairs(pairs, graded)
    finite = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    return Score(
        **vars(figures(pairs, cosines[None, :])[0]),
        task=pairs.task,
        split=pairs.split,
        pairs=len(pairs) + sum(pairs.skipped.values()),
        skipped={
            **pairs.skipped,
            "no gold score": len(pairs) - len(first),
            "zero vector": int((np.isnan(graded) & finite).sum()),
            "vector not finite": int((~finite).sum()),
        },
        data=pairs.source,
        graded=pairs,
        cosines=cosines,
        **about,
    )


def describe_calibrator(calibrator: Any) -> dict[str, Any]:
    """A calibrator's name and arguments, as JSON has them."""
    described = {"name": calibrator_name(calibrator)}
    for name, value in calibrator.get_params(deep=False).items():
        plain = value is None or isinstance(value, bool | int | float | str)
        described[name] = value if plain else repr(value)
    return described


def difference(before: Score, after: Score, aggregation: str = "all") -> Difference:
    """How much higher the second of two scores is, and whether that is chance.

    The difference is that of the main measure under an aggregation ("wmean", "mean" or "all"), by
    paired bootstrap. A pair without a cosine in one of the two counts for neither.

    Raises:
        InputError: They are scores of different pairs, or of other subsets of them.
    """
    one, other = _together(before, after)
    return other.main(aggregation).above(one.main(aggregation))


def differences(before: Scores, after: Scores) -> dict[str, Difference]:
    """The same for every task and aggregation, such as "sts12, wmean", corrected by Holm.

    If all seven STS tasks ran, their averages are among them.
    """
    pairs = {
        task: _together(before.scores[task], score)
        for task, score in after.scores.items()
        if task in before.scores
    }
    found = {}
    for task, (one, other) in pairs.items():
        for aggregation in one.aggregations:
            name = f"{task}, {aggregation}" if len(one.aggregations) > 1 else task
            found[name] = other.main(aggregation).above(one.main(aggregation))
    if all(task in pairs for task in STS_TASKS):
        sides = [{task: both[side] for task, both in pairs.items()} for side in (0, 1)]
        for aggregation in AVERAGES:
            before_all, after_all = (average(side, aggregation) for side in sides)
            found[f"average of the seven, {aggregation}"] = after_all.above(before_all)
    return holm(found)


def _together(before: Score, after: Score) -> list[Figures]:
    """Both models' figures on the pairs that have a cosine in both."""
    sides = [
        [list(part) for part in (one.first, one.second, one.subset, one.gold)]
        for one in (before.graded, after.graded)
    ]
    if sides[0] != sides[1]:
        raise InputError(
            f"the scores are of different pairs or subsets: {before.task} {before.split} from "
            f"{before.data}, and {after.task} {after.split} from {after.data}"
        )
    return figures(before.graded, np.stack([before.cosines, after.cosines]))
