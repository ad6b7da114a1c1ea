"""Scores and comparisons as tables of text: for a terminal, a page or a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertflow.calibrators.storage import recorded_name
from bertflow.display import Grid
from bertflow.display.grid import (
    ascii_minus,
    fixed,
    hundredfold,
    hundredfold_span,
    p_value,
    with_interval,
)
from bertflow.evaluation.scores import AVERAGES, Estimate, counted

if TYPE_CHECKING:
    from bertflow.evaluation.comparison import Comparison
    from bertflow.evaluation.jobs import JobScore
    from bertflow.evaluation.tasks import Score, Scores

MEASURES = {"spearman": "Spearman × 100", "pearson": "Pearson × 100", "auc": "AUC × 100"}
STS_COUNT = 7


def label_of(score: Score, aggregation: str) -> str:
    """A score's name in a table: its task, its split if that is unusual, and the aggregation."""
    label = score.task if score.split in ("test", "all") else f"{score.task} {score.split}"
    return f"{label}, {aggregation}" if len(score.aggregations) > 1 else label


def averages(scores: Scores) -> dict[str, Estimate]:
    """The averages of the seven STS tasks by name, where that many were asked for."""
    if len(scores.scores) + len(scores.absent) < STS_COUNT:
        return {}
    return {f"average of the seven, {name}": scores.average(name) for name in AVERAGES}


def scores_grid(scores: Scores) -> Grid:
    """Every task with its subsets and, of the seven, the average."""
    several = list(scores.scores.values())
    measures = [
        name for name in MEASURES if any(name in one.aggregations["all"] for one in several)
    ]
    rows: list[list[str]] = []
    for score in several:
        total = sum(score.scored.values())
        for aggregation, found in score.aggregations.items():
            rows.append([label_of(score, aggregation), f"{total:,}", *cells(found, measures)])
        for subset, found in score.subsets.items():
            rows.append([f"    {subset}", f"{score.scored[subset]:,}", *cells(found, measures)])
    for name, one in averages(scores).items():
        rows.append([name, "", *cells({"spearman": one}, measures)])
    heads = [head for measure in measures for head in (MEASURES[measure], "95 %")]
    return Grid("cosine against gold", ["task", "pairs", *heads], rows)


def job_grids(score: JobScore) -> list[Grid]:
    """Every measure of a job, and tables of what was found beside them."""
    rows = [[name, *cells({name: one}, [name])] for name, one in score.measures.items()]
    found: dict[tuple[str, ...], list[list[str]]] = {}
    for name, figures in _figures(score.facts):
        found.setdefault(tuple(figures), []).append([name, *map(_plain, figures.values())])
    others = []
    for heads, lines in found.items():
        if len(names := {name for name, *_ in lines}) == 1:
            others.append(Grid(names.pop(), heads, [line[1:] for line in lines]))
        else:
            others.append(Grid(heads[0], ["", *heads], lines))
    return [Grid(f"{score.kind}, × 100", ["measure", "value", "95 %"], rows), *others]


def _figures(facts: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The innermost tables of facts by their names, one after another."""
    for name, one in facts.items():
        listed = one if isinstance(one, list) else [one]
        for part in listed:
            if isinstance(part, Mapping):
                if any(isinstance(value, Mapping) for value in part.values()):
                    yield from _figures(part, f"{under}{name}, ")
                else:
                    yield f"{under}{name}", part


def _plain(value: Any) -> str:
    return fixed(value, 3) if isinstance(value, float) else str("" if value is None else value)


def model_name(score: Score | JobScore) -> str:
    """The encoder by its name, after the calibrator if there is one."""
    encoder = encoder_name(score)
    return f"{recorded_name(score.calibrator)} on {encoder}" if score.calibrator else encoder


def encoder_name(score: Score | JobScore) -> str:
    """The name of the encoder; a saved model knows it from its fit."""
    fitted = (score.fitted_on or {}).get("encoder")
    name = fitted.get("name") if isinstance(fitted, Mapping) else None  # Users note it as text.
    return str(name or score.encoder.get("name") or "an encoder without a name")


def score_line(score: Score) -> str:
    """A score in a line: its pairs, the main measure by aggregation, and the model."""
    values = {name: ascii_minus(with_interval(score.main(name))) for name in score.aggregations}
    named = [f"{name} {value}" if len(values) > 1 else value for name, value in values.items()]
    return (
        f"{score.task} {score.split}, {sum(score.scored.values()):,} pairs: "
        f"{MEASURES[score.measure]} {', '.join(named)}; {model_name(score)}"
    )


def comparison_grids(result: Comparison) -> list[Grid]:
    """By aggregation, every method on every task, and its gain; of a job all measures."""
    if job := job_of(result):
        grids = [gains_grid(result, result.aggregations[0])]
        if len(result.aggregations) > 1:
            rows = [
                [one.label, *(hundredfold(one.overall(name).value) for name in result.aggregations)]
                for one in result.entries.values()
            ]
            grids.append(Grid(f"{job}, × 100", ["calibrator", *result.aggregations], rows))
        return grids
    grids = []
    for aggregation in result.aggregations:
        if len(result.tasks) > 1:
            grids.append(tasks_grid(result, aggregation))
        grids.append(gains_grid(result, aggregation))
    return grids


def job_of(result: Comparison) -> str | None:
    """The kind of job that calibrators are compared on; None for tasks."""
    return next((name for name, one in result.tasks.items() if "unit" in one), None)


def comparison_title(result: Comparison) -> str:
    """How many calibrators on which encoder."""
    seeds = f", {result.seeds} seeds" if result.seeds > 1 else ""
    encoder = result.encoder.get("name") or "an encoder without a name"
    calibrators = sum(name != "none" for name in result.entries)
    count = len(result.tasks)
    tasks = job_of(result) or f"{count} task{'s' if count != 1 else ''}"
    return f"{calibrators} calibrator{'s' if calibrators != 1 else ''} on {encoder}, {tasks}{seeds}"


def tasks_grid(result: Comparison, aggregation: str) -> Grid:
    """Every method on every task."""
    tasks = list(result.tasks)
    shown = counted(tasks)
    mean = [_overall_name(shown)] if len(shown) > 1 else []
    rows = []
    for entry in result.entries.values():
        cells = [hundredfold(entry.estimates[aggregation][task].value) for task in tasks]
        if mean:
            cells.append(hundredfold(entry.overall(aggregation).value))
        rows.append([entry.label, *cells])
    return Grid(_title(result, aggregation), ["calibrator", *tasks, *mean], rows)


def gains_grid(result: Comparison, aggregation: str) -> Grid:
    """The overall value of every method, and how it differs from none."""
    shown = counted(list(result.tasks))
    base = "none" if "none" in result.entries else next(iter(result.entries))
    gains = result.against(base, aggregation)
    rows = []
    for name, entry in result.entries.items():
        overall = entry.overall(aggregation)
        row = [entry.label, hundredfold(overall.value), hundredfold_span(overall), "", "", ""]
        if gain := gains.get(name):
            span = hundredfold_span(gain, signed=True)
            row[3:] = [hundredfold(gain.value, signed=True), span, p_value(gain.adjusted)]
        rows.append(row)
    gain_column = f"gain on {result.entries[base].label}"
    name = aggregation if job_of(result) else _overall_name(shown)
    columns = ["calibrator", name, "95 %", gain_column, "95 %", "p (Holm)"]
    return Grid(_title(result, aggregation), columns, rows)


def _overall_name(shown: Sequence[str]) -> str:
    return {1: shown[0], STS_COUNT: "average"}.get(len(shown), f"mean of {len(shown)}")


def _title(result: Comparison, aggregation: str) -> str:
    if job := job_of(result):
        return f"{job}: {aggregation} × 100"
    measures = {MEASURES[one["measure"]] for one in result.tasks.values()}
    areas = [task for task, one in result.tasks.items() if one["measure"] == "auc"]
    title = measures.pop() if len(measures) == 1 else f"Spearman × 100, of {', '.join(areas)} AUC"
    return f"{title}, {aggregation}" if len(result.aggregations) > 1 else title


def cells(found: Mapping[str, Estimate], measures: Sequence[str]) -> list[str]:
    """Each measure and its interval."""
    shown = []
    for measure in measures:
        one = found.get(measure)
        shown += ["", ""] if one is None else [hundredfold(one.value), hundredfold_span(one)]
    return shown
