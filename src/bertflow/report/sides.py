"""What a report compares: rows of files and models, their scores, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import last_part
from bertflow.data import CATALOG, STS_TASKS, read_task
from bertflow.display.grid import fixed
from bertflow.errors import InputError
from bertflow.evaluation import Difference, Estimate, figures, holm, paired_cosine
from bertflow.evaluation.jobs import JobScore, job_differences
from bertflow.evaluation.scores import Figures, average, on_all_pairs
from bertflow.evaluation.tasks import read_available
from bertflow.report.measures import AVERAGE, Headline, ScoreTable

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, eq=False)
class Side:
    """One of the sides that a report compares: the vectors that are measured, shape (n, D).

    The name is short, as in a legend; the label says in a line what it is. What was encoded becomes
    vectors of this side by `apply`.
    """

    name: str
    label: str
    rows: Array
    apply: Callable[[Array], Array] = np.asarray

    def under(self, calibrator: Calibrator, name: str, label: str) -> Side:
        """The same rows after a calibrator; InputError for one of vectors of another width."""
        width = calibrator.n_features_in_
        if self.rows.shape[1] != width:
            raise InputError(
                f"{label} was fitted on vectors of {width} dimensions, but {self.label} has "
                f"{self.rows.shape[1]}; give the calibrator of these vectors"
            )
        return Side(name, label, calibrator._rows(self.rows), calibrator._rows)


def side_of_file(name: str, path: str | Path, vectors: Array, chosen: Array) -> Side:
    """The side of a .npy file's vectors, of which some rows are measured."""
    rows = np.asarray(vectors[chosen])
    rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(
            f"{path} is not finite in row {int(chosen[bad][0])} (rows count from 0); remove or "
            "mend that row"
        )
    return Side(name, str(path), rows)


def score_sides(
    sides: Sequence[Side],
    encode: Callable[[Sequence[str]], Array],
    data: str | Path | None,
    tasks: Sequence[str],
) -> ScoreTable:
    """Score both sides of an encoder's vectors on those STS tasks whose data are there.

    Raises:
        MissingDataError: None is there; the reason of the first.
    """

    def read(task: str) -> list[Figures]:
        pairs = read_task(task, data)
        first, second, _ = pairs.graded()
        vectors = encode([*first, *second])
        cosines = [paired_cosine(*np.split(side.apply(vectors), 2)) for side in sides]
        return figures(pairs, on_all_pairs(pairs, np.stack(cosines)))

    scored, absent = read_available(tasks, read)
    scores: dict[str, dict[str, Estimate]] = {}
    for number, side in enumerate(sides):
        found = {task: several[number] for task, several in scored.items()}
        scores[side.name] = {task: one.main("wmean") for task, one in found.items()}
        if set(found) == set(STS_TASKS):
            scores[side.name][AVERAGE] = average(found, "wmean")
    before, after = scores.values()
    changes = holm({name: after[name].above(one) for name, one in before.items()})
    notes = [
        "95 %: bootstrap over pairs, within subsets, the same for both sides; differences are "
        "paired, and their p-values corrected for their number (Holm)"
    ]
    if any(CATALOG[task].subsets for task in scored):
        notes.append("a task with subsets: their mean, weighted by their pairs")
    if absent:
        notes.append(f"{', '.join(absent)}: no data there")
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
