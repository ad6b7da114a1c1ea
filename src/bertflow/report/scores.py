"""Scores for a report: from the tables of a reproduction, or from vectors that are there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.analysis.gains import PairGains
from bertflow.analysis.lexical import edit_distances
from bertflow.calibrators.base import Array
from bertflow.data import CATALOG, DATA_VARIABLE, STS_TASKS, Pairs, read_task
from bertflow.data.layouts import find_files
from bertflow.errors import InputError
from bertflow.evaluation import Difference, Estimate, figures, holm, paired_cosine
from bertflow.evaluation.bootstrap import paired_difference
from bertflow.evaluation.scores import Figures, average, average_replicates, gold_of
from bertflow.paper.published import published
from bertflow.report.figures import EditScatter, ScoreCell, ScoreRow, ScoreTable, relate_to_edits
from bertflow.report.sides import Side

AVERAGE = "average"
# Of the paper's Table 2: what stands beside an encoder, and beside a flow on top of it.
PUBLISHED = {"encoder": "base last2avg", "flow": "base flow target"}
PUBLISHED_FOR = "BERT-base"
# How far pairs are apart is counted in words: by characters, hardly any are close (14 of 1,500).
EDIT_UNIT = "words"
LACKING = "vectors of all sentences of STS-B dev would fill it"


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
    if side.take is None:
        return None
    graded = np.array([grade is not None for grade in pairs.gold])
    first, second, _ = pairs.graded()
    distinct = list(dict.fromkeys([*first, *second]))
    found, vectors = side.take(distinct)
    if vectors is None or not found.all():
        return None
    place = {text: n for n, text in enumerate(distinct)}
    cosines = np.full(len(pairs), np.nan)
    cosines[graded] = paired_cosine(
        vectors[[place[text] for text in first]], vectors[[place[text] for text in second]]
    )
    return cosines


def score_sides(
    sides: Sequence[Side], kinds: Sequence[str], data: str | Path | None, tasks: Sequence[str]
) -> tuple[ScoreTable | None, Headline | None]:
    """Score the sides on those STS tasks whose sentences all have a vector.

    Args:
        sides: One or two.
        kinds: Of each, the key in `PUBLISHED` of what stands beside it, or "".
        data: Folder of the tasks; None takes the environment variable BERTFLOW_DATA.
        tasks: Their names.

    Returns:
        The table, times 100, and the difference of the last side to the first; None where no task
        is there with all its vectors.
    """
    found: dict[str, list[Figures]] = {}
    for task in tasks:
        pairs = local_pairs(task, data)
        if pairs is None:
            continue
        cosines = [cosines_of(pairs, side) for side in sides]
        if any(one is None for one in cosines):
            continue
        found[task] = figures(pairs, np.stack(cosines))  # type: ignore[arg-type]
    if not found:
        return None, None
    differences = _differences(found) if len(sides) > 1 else {}
    columns = list(found)
    whole = set(columns) == set(STS_TASKS)
    rows = []
    for number, (side, kind) in enumerate(zip(sides, kinds, strict=True)):
        last = number == len(sides) - 1 and len(sides) > 1
        cells = {
            task: _cell(
                several[number].main("wmean"), kind, task, differences.get(task) if last else None
            )
            for task, several in found.items()
        }
        if whole:
            own = {task: several[number] for task, several in found.items()}
            printed = [cells[task].published for task in columns]
            mean = (
                float(np.mean([one for one in printed if one is not None]))
                if None not in printed
                else None
            )
            cells[AVERAGE] = _cell(
                average(own, "wmean"), kind, None, differences.get(AVERAGE) if last else None, mean
            )
        rows.append(
            ScoreRow(
                label=side.name,
                cells=cells,
                aggregation="wmean" if len(columns) > 1 or CATALOG[columns[0]].subsets else None,
                published_for=PUBLISHED_FOR if kind in PUBLISHED else None,
            )
        )
    absent = [task for task in tasks if task not in found]
    notes = ["95 %: bootstrap over pairs, within subsets; the sides are scored on the same pairs"]
    if differences:
        notes.append(
            f"↑ ↓: above or below {sides[0].name} beyond chance (paired, Holm over the table), · "
            "where that cannot be told"
        )
    if absent:
        notes.append(f"{', '.join(absent)}: no data there, or not every sentence has a vector")
    table = ScoreTable(
        title="Semantic textual similarity",
        measure="Spearman × 100",
        columns=[*columns, AVERAGE] if whole else columns,
        rows=rows,
        notes=notes,
    )
    return table, _headline(found, rows, differences)


def _differences(found: Mapping[str, Sequence[Figures]]) -> dict[str, Difference]:
    """The last side less the first, by task, corrected for their number."""
    raw: dict[str, Difference] = {}
    for task, several in found.items():
        raw[task] = _difference(
            several[0].main("wmean"),
            several[-1].main("wmean"),
            *(
                one.replicates.get("wmean", one.replicates["all"])
                for one in (several[0], several[-1])
            ),
        )
    if set(found) == set(STS_TASKS):
        first, last = ({task: several[n] for task, several in found.items()} for n in (0, -1))
        raw[AVERAGE] = _difference(
            average(first, "wmean"),
            average(last, "wmean"),
            average_replicates(first, "wmean"),
            average_replicates(last, "wmean"),
        )
    return holm(raw)


def _difference(before: Estimate, after: Estimate, one: Array, other: Array) -> Difference:
    rise = None if before.value is None or after.value is None else after.value - before.value
    return paired_difference(rise, one, other)


def _headline(
    found: Mapping[str, Any], rows: Sequence[ScoreRow], differences: Mapping[str, Difference]
) -> Headline | None:
    for name in (AVERAGE, "stsb", *found):
        one = differences.get(name)
        if one is None or one.value is None:
            continue
        before, after = rows[0].cells[name].value, rows[-1].cells[name].value
        if before is None or after is None:
            continue
        return Headline(
            what="the seven STS tasks" if name == AVERAGE else CATALOG[name].title,
            before=before,
            after=after,
            difference=_scaled(one),
        )
    return None


def headline_of(gains: PairGains | None) -> Headline | None:
    """What the pairs that come with bertflow tell; no person has graded those."""
    if gains is None:
        return None
    one = gains.spearman
    if one.before.value is None or one.after.value is None:
        return None
    return Headline(
        what=f"the {gains.pairs:,} graded pairs that come with bertflow",
        before=100 * one.before.value,
        after=100 * one.after.value,
        difference=_scaled(one.difference),
        grades="their grades",
    )


def _scaled(one: Difference) -> Difference:
    value, low, high = (None if x is None else 100 * x for x in (one.value, one.low, one.high))
    return Difference(value, low, high, one.p, one.adjusted)


def _cell(
    estimate: Estimate,
    kind: str,
    task: str | None,
    beaten: Difference | None,
    printed: float | None = None,
) -> ScoreCell:
    doubts: Sequence[str] = ()
    if kind in PUBLISHED and task is not None:
        table = published("table2")
        printed = table.value(PUBLISHED[kind], task)
        doubts = table.doubts(PUBLISHED[kind], task)
    value, low, high = (
        None if x is None else 100 * x for x in (estimate.value, estimate.low, estimate.high)
    )
    return ScoreCell(
        value=value,
        low=low,
        high=high,
        published=printed,
        comparable=False,
        doubts=doubts,
        mark="" if beaten is None or value is None else mark_of(beaten.value, real=beaten.real),
        reason=estimate.undefined,
    )


def mark_of(value: float | None, *, real: bool) -> str:
    """Above or below beyond chance, as the paper's arrows; · where that cannot be told."""
    if not real:
        return "·"
    return "↑" if (value or 0) > 0 else "↓"


def edits_of_sides(sides: Sequence[Side], data: str | Path | None) -> EditScatter | str:
    """Similarities of STS-B dev against edit distance, or what would fill that section."""
    if find_spec("rapidfuzz") is None:
        return "edit distance needs rapidfuzz: pip install 'bertflow[words]'"
    pairs = local_pairs("stsb", data, "dev")
    if pairs is None:
        return f"STS-B dev would fill it: --data DIR or {DATA_VARIABLE} names the folder"
    cosines = {side.name: cosines_of(pairs, side) for side in sides}
    if any(one is None for one in cosines.values()):
        return LACKING
    return edits_of(pairs, {name: one for name, one in cosines.items() if one is not None})


def edits_of(pairs: Pairs, cosines: Mapping[str, Array]) -> EditScatter:
    """Figure 2 of cosines of graded pairs."""
    keep = ~np.isnan(gold_of(pairs))
    first, second, _ = pairs.graded()
    panels = {"gold": gold_of(pairs)[keep], **{name: one[keep] for name, one in cosines.items()}}
    return relate_to_edits(panels, edit_distances(first, second, unit=EDIT_UNIT), unit=EDIT_UNIT)
