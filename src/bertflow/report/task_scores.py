"""Scores of a report's sides on STS tasks, and how their cosines go with edit distance."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bertflow.analysis.gains import PairGains
from bertflow.analysis.lexical import edit_distances
from bertflow.arrays import Array
from bertflow.data import CATALOG, DATA_VARIABLE, STS_TASKS, Pairs, read_task
from bertflow.data.readers import find_files
from bertflow.errors import InputError
from bertflow.evaluation import (
    Difference,
    Estimate,
    figures,
    holm,
    paired_cosine,
    paired_difference,
)
from bertflow.evaluation.scores import Figures, average, average_replicates, gold_of, on_all_pairs
from bertflow.paper.declared import published
from bertflow.paper.results import CellResult, RowResult, TableResult, scaled, shown_estimate
from bertflow.report.measures import EditScatter, ScoreTable, relate_to_edits
from bertflow.report.sides import Side
from bertflow.report.verdicts import Headline

AVERAGE = "average"
# Of the paper's Table 2: what stands beside an encoder, and beside a flow on top of it.
PUBLISHED = {"encoder": "base last2avg", "flow": "base flow target"}
PUBLISHED_FOR = "BERT-base"
# Distances count words: by characters, hardly any pairs are close (14 of 1,500).
EDIT_UNIT = "words"
NO_SCORES = (
    "it takes a task's pairs (--data DIR or BERTFLOW_DATA) and vectors of all of its sentences: "
    "give a model, or the vectors of a corpus that holds them"
)
NO_RAPIDFUZZ = "edit distance needs rapidfuzz: pip install 'bertflow[words]'"
NO_STSB_DEV = f"STS-B dev would fill it: --data DIR or {DATA_VARIABLE} names the folder"


def local_pairs(task: str, data: str | Path | None, split: str | None = None) -> Pairs | None:
    """The pairs of a task if its files are there; the model hub is not asked.

    Raises:
        InputError: A file is there and damaged.
    """
    root = data or os.environ.get(DATA_VARIABLE)
    data_set = CATALOG[task]
    split = split or data_set.default_split
    if not root:
        return None
    if not Path(root).is_dir():
        raise InputError(f"{root} is no folder; give the folder that holds {data_set.title}")
    return read_task(task, root, split) if find_files(data_set, split, Path(root))[0] else None


def cosines_of(pairs: Pairs, side: Side) -> Array | None:
    """A side's cosines of the graded pairs, NaN of the others, shape (N,); None if one lacks."""
    if side.vectors_of is None:
        return None
    first, second, _ = pairs.graded()
    distinct = list(dict.fromkeys([*first, *second]))
    vectors = side.vectors_of(distinct)
    if vectors is None:
        return None
    place = {text: n for n, text in enumerate(distinct)}
    halves = [vectors[[place[text] for text in half]] for half in (first, second)]
    return on_all_pairs(pairs, paired_cosine(*halves))


# A score, and its value in each resample.
Sampled: TypeAlias = tuple[Estimate, Array]


def _by_column(scored: Mapping[str, Figures]) -> dict[str, Sampled]:
    """The weighted mean over subsets of each task and, where all seven ran, their average."""
    columns = {task: (one.main("wmean"), one.drawn("wmean")) for task, one in scored.items()}
    if set(scored) == set(STS_TASKS):
        columns[AVERAGE] = average(scored, "wmean"), average_replicates(scored, "wmean")
    return columns


def score_sides(
    sides: Sequence[Side], kinds: Sequence[str], data: str | Path | None, tasks: Sequence[str]
) -> tuple[ScoreTable | str, Headline | None]:
    """Score the sides on those STS tasks whose sentences all have a vector.

    Args:
        sides: One or two.
        kinds: Of each, the key in `PUBLISHED` of what stands beside it, or "".
        data: Folder of the tasks; None takes the environment variable BERTFLOW_DATA.
        tasks: Their names.

    Returns:
        The table, times 100, or what would fill it where no task is there with all its vectors;
        and the difference of the last side to the first.
    """
    scored: list[dict[str, Figures]] = [{} for _ in sides]
    for task in tasks:
        pairs = local_pairs(task, data)
        cosines = [] if pairs is None else [cosines_of(pairs, side) for side in sides]
        known = [one for one in cosines if one is not None]
        if pairs is None or len(known) < len(sides):
            continue
        for one, of_side in zip(figures(pairs, np.stack(known)), scored, strict=True):
            of_side[task] = one
    if not scored[0]:
        return NO_SCORES, None
    scores = [_by_column(of_side) for of_side in scored]
    differences = _differences(scores[0], scores[-1]) if len(sides) > 1 else {}
    columns = list(scores[0])
    with_subsets = len(columns) > 1 or bool(CATALOG[columns[0]].subsets)
    rows = [
        RowResult(
            label=side.name,
            cells=_cells(side_scores, kind, differences if side is sides[-1] else {}),
            aggregation="wmean" if with_subsets else None,
            published_for=PUBLISHED_FOR if kind in PUBLISHED else None,
        )
        for side, kind, side_scores in zip(sides, kinds, scores, strict=True)
    ]
    notes = ["95 %: bootstrap over pairs, within subsets; the sides are scored on the same pairs"]
    if differences:
        notes.append(
            f"↑ ↓: above or below “{sides[0].name}” beyond chance (paired, Holm over the table), · "
            "where that cannot be told"
        )
    if absent := [task for task in tasks if task not in columns]:
        notes.append(f"{', '.join(absent)}: no data there, or not every sentence has a vector")
    title = "Semantic textual similarity"
    table = TableResult(title=title, columns=columns, rows=rows, notes=notes)
    return ScoreTable(table=table, drawn=rows), _headline(rows, differences)


def _differences(
    before: Mapping[str, Sampled], after: Mapping[str, Sampled]
) -> dict[str, Difference]:
    """After less before, by column, times 100, corrected for their number."""
    raw = {}
    for name, (first, first_drawn) in before.items():
        last, last_drawn = after[name]
        rise = None if first.value is None or last.value is None else last.value - first.value
        raw[name] = paired_difference(rise, first_drawn, last_drawn)
    return {name: scaled(change) for name, change in holm(raw).items()}


def _cells(
    scores: Mapping[str, Sampled], kind: str, differences: Mapping[str, Difference]
) -> dict[str, CellResult]:
    """The scores of a side, with what was published beside them, for another encoder."""
    printed: dict[str, float | None] = {}
    doubts: dict[str, Sequence[str]] = {}
    if kind in PUBLISHED:
        numbers = published("table2")
        tasks = [task for task in scores if task != AVERAGE]
        printed = {task: numbers.value(PUBLISHED[kind], task) for task in tasks}
        doubts = {task: numbers.rows[PUBLISHED[kind]].doubts[task] for task in tasks}
        known = [number for number in printed.values() if number is not None]
        if len(known) == len(tasks):
            printed[AVERAGE] = float(np.mean(known))
    return {
        name: CellResult(
            **shown_estimate(estimate),
            published=printed.get(name),
            comparable=False,
            doubts=doubts.get(name, ()),
            baseline=differences.get(name),
            reason=estimate.undefined,
        )
        for name, (estimate, _) in scores.items()
    }


def _headline(rows: Sequence[RowResult], differences: Mapping[str, Difference]) -> Headline | None:
    before, after = rows[0].cells, rows[-1].cells
    for name in (AVERAGE, "stsb", *before):
        if name in differences and (
            headline := headline_between(before[name], after[name], name, differences[name])
        ):
            return headline
    return None


def headline_between(
    before: CellResult, after: CellResult, column: str, difference: Difference
) -> Headline | None:
    """The difference between two cells of a column; None where one has no value."""
    if before.value is None or after.value is None or difference.value is None:
        return None
    return Headline(
        what="the seven STS tasks" if column == AVERAGE else CATALOG[column].title,
        before=before.value,
        after=after.value,
        difference=difference,
    )


def headline_of(gains: PairGains | None) -> Headline | None:
    """What the pairs that come with bertflow tell; no person has graded those."""
    if gains is None:
        return None
    gain = gains.spearman
    if gain.before.value is None or gain.after.value is None:
        return None
    return Headline(
        what=f"the {gains.pairs:,} graded pairs that come with bertflow",
        before=100 * gain.before.value,
        after=100 * gain.after.value,
        difference=scaled(gain.difference),
        grades="their grades",
    )


def edits_of_sides(sides: Sequence[Side], data: str | Path | None) -> EditScatter | str:
    """Similarities of STS-B dev against edit distance, or what would fill that section."""
    if find_spec("rapidfuzz") is None:
        return NO_RAPIDFUZZ
    pairs = local_pairs("stsb", data, "dev")
    if pairs is None:
        return NO_STSB_DEV
    cosines = {}
    for side in sides:
        known = cosines_of(pairs, side)
        if known is None:
            return "vectors of all sentences of STS-B dev would fill it"
        cosines[side.name] = known
    return edits_of(pairs, cosines)


def edits_of(pairs: Pairs, cosines: Mapping[str, Array]) -> EditScatter:
    """Figure 2 of cosines of graded pairs."""
    gold = gold_of(pairs)
    first, second, _ = pairs.graded()
    panels = {
        name: similarity[~np.isnan(gold)] for name, similarity in {"gold": gold, **cosines}.items()
    }
    return relate_to_edits(panels, edit_distances(first, second, unit=EDIT_UNIT), unit=EDIT_UNIT)
