"""What a report compares: rows of files and models, their scores, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.analysis.lexical import edit_distances
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import last_part
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_task
from bertflow.display.grid import fixed
from bertflow.errors import InputError, MissingDataError
from bertflow.evaluation import Difference, Estimate, figures, holm, paired_cosine
from bertflow.evaluation.jobs import JobScore, job_differences
from bertflow.evaluation.scores import Figures, average, on_all_pairs
from bertflow.evaluation.tasks import read_available
from bertflow.report.measures import AVERAGE, EditScatter, Headline, ScoreTable, relate_to_edits

BEFORE, AFTER = "before", "after"
# By characters hardly any pairs are close: 14 of the 1,500 of STS-B dev.
EDIT_UNIT = "words"
# Gives the vectors of sentences, shape (N, D), or raises MissingDataError.
VectorsOf: TypeAlias = Callable[[Sequence[str]], Array]


@dataclass(frozen=True, eq=False)
class Side:
    """One of the sides that a report compares: the vectors that are measured, shape (n, D).

    The name is short, as in a legend; the label says in a line what it is.
    """

    name: str
    label: str
    rows: Array
    vectors_of: VectorsOf

    def under(self, calibrator: Calibrator, name: str, label: str) -> Side:
        """The same rows after a calibrator; InputError for one of vectors of another width."""
        width = calibrator.n_features_in_
        if self.rows.shape[1] != width:
            raise InputError(
                f"{label} was fitted on vectors of {width} dimensions, but {self.label} has "
                f"{self.rows.shape[1]}; give the calibrator of these vectors"
            )
        rows = calibrator._rows(self.rows)
        return Side(name, label, rows, lambda texts: calibrator._rows(self.vectors_of(texts)))


def first_rows(texts: Sequence[str]) -> dict[str, int]:
    """By text, the number of the first row that has it."""
    return {text: len(texts) - 1 - n for n, text in enumerate(reversed(texts))}


def side_of_file(
    name: str, path: str | Path, vectors: Array, chosen: Array, texts: Sequence[str] | None
) -> Side:
    """The side of a .npy file's vectors, of which some rows are measured; `texts` are of all."""
    row_of = first_rows(texts or ())

    def vectors_of(sentences: Sequence[str]) -> Array:
        if lacking := [text for text in sentences if text not in row_of]:
            raise MissingDataError(
                f"{path} has no vector of {lacking[0][:80]!r}; --corpus FILE names the sentences "
                "of its rows"
            )
        return finite_rows(np.array([row_of[text] for text in sentences], dtype=np.int64))

    def finite_rows(numbers: Array) -> Array:
        rows = np.asarray(vectors[numbers])
        rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise InputError(
                f"{path} is not finite in row {int(numbers[bad][0])} (rows count from 0); remove "
                "or mend that row"
            )
        return rows

    return Side(name, str(path), finite_rows(chosen), vectors_of)


def cosines_of(pairs: Pairs, sides: Sequence[Side]) -> Array:
    """Each side's cosines of the graded pairs, shape (sides, graded)."""
    first, second, _ = pairs.graded()
    several = [side.vectors_of([*first, *second]) for side in sides]
    return np.stack([paired_cosine(*np.split(vectors, 2)) for vectors in several])


def score_sides(sides: Sequence[Side], data: str | Path | None, tasks: Sequence[str]) -> ScoreTable:
    """Score one or two sides on those STS tasks whose sentences all have a vector.

    Raises:
        MissingDataError: No task is there with all its vectors; the reason of the first.
    """

    def read(task: str) -> list[Figures]:
        pairs = read_task(task, data)
        return figures(pairs, on_all_pairs(pairs, cosines_of(pairs, sides)))

    scored, absent = read_available(tasks, read)
    scores: dict[str, dict[str, Estimate]] = {}
    for number, side in enumerate(sides):
        found = {task: several[number] for task, several in scored.items()}
        scores[side.name] = {task: one.main("wmean") for task, one in found.items()}
        if set(found) == set(STS_TASKS):
            scores[side.name][AVERAGE] = average(found, "wmean")
    before, *others = scores.values()
    changes = {}
    for after in others:
        changes = holm({name: after[name].above(one) for name, one in before.items()})
    notes = ["95 %: bootstrap over pairs, within subsets; the sides are scored on the same pairs"]
    if changes:
        notes.append("differences are paired, and their p-values corrected for their number (Holm)")
    if any(CATALOG[task].subsets for task in scored):
        notes.append("a task with subsets: their mean, weighted by their pairs")
    if absent:
        notes.append(f"{', '.join(absent)}: no data there, or not every sentence has a vector")
    return ScoreTable(scores, changes, notes)


@dataclass(frozen=True)
class JobSides:
    """What two models are worth on a job."""

    before: JobScore
    after: JobScore

    @cached_property
    def differences(self) -> Mapping[str, Difference]:
        """How much higher each measure of the second is."""
        return job_differences(self.before, self.after)

    def headline(self) -> Headline:
        """The difference by the main measure."""
        measure, change = next(iter(self.differences.items()))
        what = f"{self.after.kind} of {last_part(self.after.source, 3)}"
        old, new = (one.measures[measure].value for one in (self.before, self.after))
        return Headline(what, old, new, change, measure)


def edits_of(sides: Sequence[Side], data: str | Path | None) -> EditScatter:
    """Figure 2 of STS-B dev: its grades and the sides' cosines."""
    pairs = read_task("stsb", data, "dev")
    first, second, grades = pairs.graded()
    panels = {"gold": np.array(grades)}
    panels |= zip((side.name for side in sides), cosines_of(pairs, sides), strict=True)
    distances = edit_distances(first, second, unit=EDIT_UNIT)
    return relate_to_edits(panels, distances, unit=EDIT_UNIT)


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    lacking: str = "",
    rows: str = "sentences",
) -> tuple[str, str]:
    """The verdict and its evidence: what the scores tell, or else what the clouds of the sides do.

    `rows` is what the vectors are of; `lacking` says what would give some where there are none.
    """
    usual = set(names) <= {BEFORE, AFTER}
    crowding = _crowding(diagnoses, rows, by="" if usual else "by ")
    if headline is not None:
        return headline.sentence(names if not usual else ()), _sentence(crowding)
    if not diagnoses:
        return "Nothing here tells whether calibration helps.", _sentence(lacking)
    if not usual:
        verdict = "Without scores, which of the two is better cannot be told."
        return verdict, _sentence(crowding)
    several = list(diagnoses.values())
    first, last = several[0], several[-1]
    verdict, reason = VERDICTS[first.verdict], first.reason
    if last.verdict == "uninformative" != first.verdict:
        verdict, reason = "Calibration has left nothing to tell apart", last.reason
    return f"{verdict}: {crowding}.", _sentence(reason)


def _crowding(diagnoses: Mapping[str, Diagnosis], rows: str, *, by: str) -> str:
    """How alike all rows look, side by side."""
    told = []
    for name, one in diagnoses.items():
        side = f" {by}{name}" if len(diagnoses) > 1 else ""
        alike = f"{max(round(100 * one.mean_cosine), 0)} % alike{side}"
        told.append(f"{alike} (mean cosine {fixed(one.mean_cosine)})")
    return f"any two unrelated {rows} look {' and '.join(told)}; near 0 is right"


def _sentence(told: str) -> str:
    return f"{told[:1].upper()}{told[1:].rstrip('.')}." if told else ""
