"""The sides that a report compares: rows of vectors, their scores, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.analysis.lexical import edit_distances
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.data import CATALOG, STS_TASKS, Pairs, read_task
from bertflow.display.grid import fixed, span
from bertflow.errors import InputError, MissingDataError
from bertflow.evaluation import Difference, Estimate, figures, holm, paired_cosine
from bertflow.evaluation.scores import Figures, average, gold_of, on_all_pairs
from bertflow.io.vectors import read_vectors
from bertflow.paper.declared import AVERAGE
from bertflow.paper.results import CellResult, RowResult, TableResult, scaled, shown_estimate
from bertflow.report.measures import EditScatter, ScoreTable, relate_to_edits

BEFORE, AFTER = "before", "after"
# Gives the vectors of sentences, shape (N, D), or raises MissingDataError.
VectorsOf: TypeAlias = Callable[[Sequence[str]], Array]

# Rows that are measured at most.
ROWS = 10000
# By characters hardly any pairs are close: 14 of the 1,500 of STS-B dev.
EDIT_UNIT = "words"


def no_texts(sentences: Sequence[str]) -> Array:
    """Refuse to give vectors of sentences, since the rows have no text."""
    raise MissingDataError("the rows have no text; --corpus FILE names the sentences")


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One of the sides that a report compares.

    Attributes:
        name: Short, as in a legend.
        label: What it is, in a line.
        rows: The vectors that are measured, shape (n, D).
        vectors_of: Gives vectors of sentences.
    """

    name: str
    label: str
    rows: Array
    vectors_of: VectorsOf = no_texts

    def under(self, calibrator: Calibrator, name: str, label: str) -> Side:
        """The same rows after a calibrator.

        Raises:
            InputError: The calibrator was fitted on vectors of another width, or a row is not
                finite (named).
        """
        width = calibrator.n_features_in_
        if self.rows.shape[1] != width:
            raise InputError(
                f"{label} was fitted on vectors of {width} dimensions, but {self.label} has "
                f"{self.rows.shape[1]}; give the calibrator of these vectors"
            )
        return Side(
            name=name,
            label=label,
            rows=calibrator._rows(self.rows),
            vectors_of=lambda sentences: calibrator._rows(self.vectors_of(sentences)),
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows of a file or corpus that are measured.

    Attributes:
        total: How many rows there are.
        rows: Numbers of the rows, rising, shape (n,).
        texts: Text of each; None where there is none.
        notes: What a reader must know about the choice.
    """

    total: int
    rows: Array
    texts: list[str] | None
    notes: list[str]


def choose(total: int, texts: Sequence[str] | None, *, random_state: int = 0) -> Chosen:
    """Take the first of equal texts, and at most 10,000 rows, drawn at random."""
    rows, notes = np.arange(total), []
    if texts is not None:
        rows = np.sort(np.array([*_first_rows(texts).values()], dtype=np.int64))
    if len(rows) < total:
        notes.append(f"{total:,} sentences, {len(rows):,} of them distinct")
    if len(rows) > ROWS:
        notes.append(f"measured on {ROWS:,} of {len(rows):,} rows, drawn at random")
        random = np.random.default_rng(random_state)
        rows = np.sort(random.choice(rows, size=ROWS, replace=False))
    kept = None if texts is None else [texts[n] for n in rows.tolist()]
    return Chosen(total, rows, kept, notes)


def _first_rows(texts: Sequence[str]) -> dict[str, int]:
    return {text: len(texts) - 1 - n for n, text in enumerate(reversed(texts))}


def sides_of_files(
    files: Mapping[str, str | Path], texts: Sequence[str] | None, corpus: str, limit: int | None
) -> tuple[list[Side], Chosen]:
    """The sides of .npy files of the same rows, with the rows that are measured.

    Args:
        files: By the name of the side.
        texts: The text of every row, or None.
        corpus: Name of the texts, for an error.
        limit: How many rows of each file are taken; None takes all.
    """
    matrices = {name: read_vectors(path)[:limit] for name, path in files.items()}
    for name, vectors in matrices.items():
        if len(vectors) < 2 or vectors.shape[1] < 2:
            raise InputError(
                f"{files[name]} holds vectors of shape {vectors.shape}; a report takes at least 2 "
                "rows and 2 dimensions"
            )
    (first, total), *others = ((files[name], len(one)) for name, one in matrices.items())
    for path, count in others:
        if count != total:
            raise InputError(
                f"{path} holds {count:,} rows, but {first} {total:,}; row i of both must be of "
                "the same sentence"
            )
    if texts is not None and len(texts) != total:
        raise InputError(
            f"{corpus} holds {len(texts):,} sentences, but {first} {total:,} rows; row i must be "
            "the vector of sentence i"
        )
    chosen = choose(total, texts)
    row_of = {} if texts is None else _first_rows(texts)

    def side(name: str, vectors: Array) -> Side:
        path = str(files[name])

        def vectors_of(sentences: Sequence[str]) -> Array:
            numbers = [row_of.get(text, -1) for text in sentences]
            if -1 in numbers:
                lost = sentences[numbers.index(-1)]
                raise MissingDataError(f"{path} has no vector of {lost[:80]!r}")
            return _finite_rows(path, vectors, np.array(numbers, dtype=np.int64))

        rows = _finite_rows(path, vectors, chosen.rows)
        return Side(name=name, label=path, rows=rows, vectors_of=vectors_of if row_of else no_texts)

    return [side(name, vectors) for name, vectors in matrices.items()], chosen


def _finite_rows(path: str, vectors: Array, numbers: Array) -> Array:
    rows = np.asarray(vectors[numbers])
    rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(
            f"{path} is not finite in row {int(numbers[bad][0])} (rows count from 0); remove or "
            "mend that row"
        )
    return rows


def cosines_of(pairs: Pairs, sides: Sequence[Side]) -> Array:
    """Each side's cosines of graded pairs, NaN of the others, shape (sides, N).

    Raises:
        MissingDataError: A side lacks the vector of a sentence.
    """
    first, second, _ = pairs.graded()
    distinct = list(dict.fromkeys([*first, *second]))
    place = {text: n for n, text in enumerate(distinct)}
    halves = [[place[text] for text in half] for half in (first, second)]
    cosines = []
    for side in sides:
        vectors = side.vectors_of(distinct)
        cosines.append(paired_cosine(*(vectors[half] for half in halves)))
    return on_all_pairs(pairs, np.stack(cosines))


@dataclass(frozen=True, eq=False, kw_only=True)
class Headline:
    """The difference that a report's verdict is about.

    Attributes:
        what: What is scored.
        before: The first side's score, times 100.
        after: The last side's.
        difference: After less before, times 100.
        grades: Whose grades they are.
    """

    what: str
    before: float
    after: float
    difference: Difference
    grades: str = "people's grades"

    def sentence(self, names: Sequence[str]) -> str:
        """The difference in plain words.

        Args:
            names: Of the sides.

        Example:
            >>> rise = Difference(2.0, 1.0, 3.0, p=0.001, adjusted=0.001)
            >>> found = Headline(what="STS-B", before=58.0, after=60.0, difference=rise)
            >>> found.sentence(["before", "after"]).partition(" (")[0]
            "Calibration helped: on STS-B, cosines agree better with people's grades than before"
        """
        change = self.difference
        ends = span(change.low, change.high, signed=True)
        figures = (
            f"(Spearman × 100 from {fixed(self.before)} to {fixed(self.after)}: "
            f"{fixed(change.value or 0.0, signed=True)}{f', 95 % {ends}' if ends else ''})"
        )
        usual = list(names) == [BEFORE, AFTER]
        better = (change.value or 0.0) > 0
        how = "better" if better else "less"
        if not change.real:
            whom = "calibration" if usual else f"{names[-1]} beside {names[0]}"
            return (
                f"What {whom} changes on {self.what} may be chance: how well cosines agree with "
                f"{self.grades} hardly differs {figures}."
            )
        if usual:
            came = "helped" if better else "made it worse"
            return (
                f"Calibration {came}: on {self.what}, cosines agree {how} with {self.grades} than "
                f"before {figures}."
            )
        return (
            f"{names[-1]} is {'ahead of' if better else 'behind'} {names[0]}: on {self.what}, its "
            f"cosines agree {how} with {self.grades} {figures}."
        )


def score_sides(
    sides: Sequence[Side], data: str | Path | None, tasks: Sequence[str]
) -> tuple[ScoreTable, Headline | None]:
    """Score one or two sides on those STS tasks whose sentences all have a vector.

    Returns:
        The table, and the difference of the last side to the first.

    Raises:
        MissingDataError: No task is there with all its vectors; the reason of the first.
    """
    scored: list[dict[str, Figures]] = [{} for _ in sides]
    absent: dict[str, MissingDataError] = {}
    for task in tasks:
        try:
            pairs = read_task(task, data)
            cosines = cosines_of(pairs, sides)
        except MissingDataError as error:
            absent[task] = error
            continue
        for one, of_side in zip(figures(pairs, cosines), scored, strict=True):
            of_side[task] = one
    if not scored[0]:
        raise next(iter(absent.values()))
    estimates = [_estimates(of_side) for of_side in scored]
    rows = [
        RowResult(
            label=side.name,
            cells={
                name: CellResult(**shown_estimate(one), reason=one.undefined)
                for name, one in by_column.items()
            },
            aggregation="wmean" if any(CATALOG[task].subsets for task in scored[0]) else None,
        )
        for side, by_column in zip(sides, estimates, strict=True)
    ]
    notes = ["95 %: bootstrap over pairs, within subsets; the sides are scored on the same pairs"]
    headline = None
    if len(sides) > 1:
        before, after = estimates
        changes = holm({name: after[name].above(one) for name, one in before.items()})
        rows[-1] = rows[-1].marked({name: scaled(change) for name, change in changes.items()})
        headline = headline_of(*rows)
        notes.append(
            f"↑ ↓: above or below “{sides[0].name}” beyond chance (paired, Holm over the table), · "
            "where that cannot be told"
        )
    if absent:
        notes.append(f"{', '.join(absent)}: no data there, or not every sentence has a vector")
    columns = list(estimates[0])
    table = TableResult(
        title="Semantic textual similarity", columns=columns, rows=rows, notes=notes
    )
    return ScoreTable(table, drawn=rows), headline


def _estimates(scored: Mapping[str, Figures]) -> dict[str, Estimate]:
    """The score of each task and, where all seven ran, their average."""
    columns = {task: one.main("wmean") for task, one in scored.items()}
    if set(scored) == set(STS_TASKS):
        columns[AVERAGE] = average(scored, "wmean")
    return columns


def headline_of(before: RowResult, after: RowResult) -> Headline | None:
    """The difference between two rows: on average, else on STS-B, else on the first task."""
    for column in (AVERAGE, "stsb", *after.cells):
        one, other = before.cells.get(column), after.cells.get(column)
        if one is None or other is None or one.value is None or other.value is None:
            continue
        if other.baseline is not None and other.baseline.value is not None:
            return Headline(
                what="the seven STS tasks" if column == AVERAGE else CATALOG[column].title,
                before=one.value,
                after=other.value,
                difference=other.baseline,
            )
    return None


def edits_of(pairs: Pairs, cosines: Mapping[str, Array]) -> EditScatter:
    """Figure 2 of graded pairs and the cosines of some sides.

    Raises:
        MissingDependencyError: rapidfuzz is missing; the message is the pip line.
    """
    gold = gold_of(pairs)
    first, second, _ = pairs.graded()
    distances = edit_distances(first, second, unit=EDIT_UNIT)
    panels = {name: one[~np.isnan(gold)] for name, one in {"gold": gold, **cosines}.items()}
    return relate_to_edits(panels, distances, unit=EDIT_UNIT)


def conclude(
    names: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
    headline: Headline | None,
    *,
    scored: bool = False,
    lacking: str = "",
    rows: str = "sentences",
) -> tuple[str, str]:
    """Say what the scores tell, or else what the cloud does, in plain words.

    Args:
        names: Of the sides.
        diagnoses: Of each side whose vectors are there.
        headline: The difference in score; None where there is none.
        scored: Whether there are scores at all.
        lacking: What would fill the sections about vectors, where there are none.
        rows: What the vectors are of.

    Returns:
        The verdict and its evidence, which may be empty.
    """
    usual = set(names) <= {BEFORE, AFTER}
    evenness = _evenness(diagnoses)
    crowding = _crowding(diagnoses, rows, by="" if usual else "by ")
    if headline is not None:
        return headline.sentence(names), f"{_sentence(crowding)} {evenness}".strip()
    if not diagnoses:
        if scored:
            return "No score tells before and after apart.", ""
        return "Nothing here tells whether calibration helps.", _sentence(lacking)
    if not usual:
        verdict = "Without scores, which of the two is better cannot be told."
        return verdict, f"{_sentence(crowding)} {evenness}"
    several = list(diagnoses.values())
    first, last = several[0], several[-1]
    verdict, reason = VERDICTS[first.verdict], first.reason
    if last.verdict == "uninformative" != first.verdict:
        verdict, reason = "Calibration has left nothing to tell apart", last.reason
    return f"{verdict}: {crowding}.", f"{_sentence(reason)} {evenness}".strip()


def _crowding(diagnoses: Mapping[str, Diagnosis], rows: str, *, by: str) -> str:
    """How alike all rows look, side by side."""
    told: list[str] = []
    for name, one in diagnoses.items():
        side = f"{by}{name}" if len(diagnoses) > 1 else ""
        alike, cosine = f"{max(round(100 * one.mean_cosine), 0)} %", fixed(one.mean_cosine)
        if told:
            told.append(f"{side} {alike} ({cosine})")
        else:
            start = f"{side}, " if side else ""
            told.append(
                f"{start}any two unrelated {rows} look {alike} alike (mean cosine {cosine}; it "
                "should be near 0)"
            )
    return ", and ".join(told)


def _evenness(diagnoses: Mapping[str, Diagnosis]) -> str:
    if len(diagnoses) < 2:
        return ""
    scores = [f"{one.isoscore:.2f} {name}" for name, one in diagnoses.items()]
    return f"How evenly they spread over all dimensions (IsoScore, 1 at best): {', '.join(scores)}."


def _sentence(told: str) -> str:
    return f"{told[:1].upper()}{told[1:].rstrip('.')}." if told else ""
