"""What scores and comparisons look like, on a terminal and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.cli.grid import Grid
from bertflow.cli.opening import show
from bertflow.data import CATALOG
from bertflow.evaluation import METHODS, Comparison, Difference, Estimate, Scores
from bertflow.evaluation.comparison import counted
from bertflow.evaluation.scores import AVERAGES

MEASURES = {"spearman": "Spearman × 100", "pearson": "Pearson × 100", "auc": "AUC × 100"}
STS_COUNT = 7


@dataclass(frozen=True)
class Page:
    """Lines, tables and notes, in the order they are read.

    Attributes:
        facts: What was scored, by name.
        grids: The tables.
        notes: What must be said beside them.
    """

    facts: Mapping[str, str]
    grids: Sequence[Grid]
    notes: Sequence[str]

    def markdown(self) -> str:
        """As Markdown has it."""
        facts = "".join(f"- {name}: {value}\n" for name, value in self.facts.items())
        notes = "".join(f"- {note}\n" for note in self.notes)
        return "\n".join([facts, *(grid.markdown() for grid in self.grids), notes])


def give(
    pages: Sequence[Page], content: dict[str, Any], json_: Path | None, markdown: Path | None
) -> None:
    """Show pages, and write them and the content where it is asked for."""
    from bertflow.calibrators.storage import write_text

    # Files first: whoever reads what is shown may have gone.
    if json_ is not None:
        write_text(json_, json.dumps(content, indent=2, allow_nan=False) + "\n")
    if markdown is not None:
        write_text(markdown, "\n".join(page.markdown() for page in pages))
    for place, page in enumerate(pages):
        if place:
            show("")
        for name, value in page.facts.items():
            show(f"{name:<11}{value}")
        for grid in page.grids:
            show("")
            show(grid.text())
        if page.notes:
            show("")
        for note in page.notes:
            show(f"- {note}")


def scores_page(model: str, scores: Scores) -> Page:
    """The scores of a model."""
    several = list(scores.scores.values())
    measures = [
        name for name in MEASURES if any(name in one.aggregations["all"] for one in several)
    ]
    columns = ["task", "pairs"]
    for measure in measures:
        columns += [MEASURES[measure], "95 %"]
    rows: list[list[str]] = []
    notes: list[str] = []
    for name, score in scores.scores.items():
        label = name if score.split in ("test", "all") else f"{name} {score.split}"
        total = sum(score.scored.values())
        for aggregation, found in score.aggregations.items():
            named = f"{label}, {aggregation}" if len(score.aggregations) > 1 else label
            rows.append([named, f"{total:,}", *_cells(found, measures)])
            notes += _reasons(named, found)
        for subset, found in score.subsets.items():
            rows.append([f"    {subset}", f"{score.scored[subset]:,}", *_cells(found, measures)])
            notes += _reasons(f"{name}, {subset}", found)
        skipped = [f"{count:,} {reason}" for reason, count in score.skipped.items() if count]
        if skipped:
            notes.append(f"{name}: {score.pairs:,} pairs; not scored: {', '.join(skipped)}")
    notes += [f"absent: {reason}" for reason in scores.absent.values()]
    if len(scores.scores) + len(scores.absent) >= STS_COUNT:
        for aggregation in AVERAGES:
            one = scores.average(aggregation)
            named = f"average of the seven, {aggregation}"
            rows.append([named, "", *_cells({"spearman": one}, measures)])
            if one.undefined:
                notes.append(f"{named}: {one.undefined}")
    if any(len(score.aggregations) > 1 for score in several):
        notes.append(
            "wmean is the mean over subsets weighted by their pairs, mean the plain one, all is "
            "over all pairs together; they are not comparable with each other"
        )
    first = several[0]
    fitted = first.fitted_on or {}
    facts = {"model": model}
    if first.calibrator:
        facts["calibrator"] = str(first.calibrator["name"])
        corpus = fitted.get("corpus")
        what = f" of {', '.join(corpus) if isinstance(corpus, list) else corpus}" if corpus else ""
        count = fitted.get("sentences")
        facts["fitted on"] = "not recorded" if count is None else f"{count:,} sentences{what}"
    else:
        facts["calibrator"] = "none"
    facts["data"] = ", ".join(dict.fromkeys(score.data for score in several))
    facts["cut"] = _cut(
        sum(score.cut for score in several),
        sum(score.texts for score in several),
        first.encoder["max_length"],
    )
    if len(several) > 1:
        cuts = [f"{name} {score.cut:,}" for name, score in scores.scores.items() if score.cut]
        facts["cut"] += f": {', '.join(cuts)}" if cuts else ""
    return Page(facts, [Grid("cosine against gold", columns, rows)], notes)


def difference_page(model: str, other: str, differences: Mapping[str, Difference]) -> Page:
    """How one model's scores differ from another's, by task and aggregation."""
    rows = [
        [name, _signed(one.value), _span(one.low, one.high), _p(one.adjusted), _verdict(one)]
        for name, one in differences.items()
    ]
    title = f"{model} minus {other}, × 100"
    notes = [
        "p by paired bootstrap over pairs (from its deviation), corrected for the number of "
        "differences shown (Holm); with few pairs it can disagree with the interval"
    ]
    return Page({}, [Grid(title, ["task", "difference", "95 %", "p", ""], rows)], notes)


def comparison_page(encoder: str, result: Comparison) -> Page:
    """Calibrators side by side."""
    tasks = list(result.tasks)
    shown = counted(tasks)
    facts = {
        "encoder": f"{encoder}, {_pooling(result.encoder)}, maximum length "
        f"{result.encoder['max_length']}",
        "fitted on": _fitted(result.fitted_on),
        "encoded": f"{result.sentences:,} distinct sentences, once, in "
        f"{result.encode_seconds:.0f} s; all took {result.seconds:.0f} s",
        "cut": _cut(result.cut, result.sentences, result.encoder["max_length"]),
        "pairs": ", ".join(
            f"{name} {sum(one['scored'].values()):,}" for name, one in result.tasks.items()
        ),
    }
    grids: list[Grid] = []
    notes: list[str] = []
    for aggregation in result.aggregations:
        if len(tasks) > 1:
            grids.append(_tasks_grid(result, aggregation, tasks, shown))
        grids.append(_gains_grid(result, aggregation, shown))
        notes += _verdicts(result, aggregation)
    grids.append(
        Grid(
            "cost",
            ["calibrator", "fit seconds", "MB"],
            [
                [entry.label, f"{entry.fit_seconds:.1f}", f"{entry.megabytes:.2f}"]
                for entry in result.entries.values()
            ],
        )
    )
    choices = {
        entry.label: entry.components for entry in result.entries.values() if entry.components
    }
    for label, counts in choices.items():
        where = ", ".join(f"{task} {count}" for task, count in counts.items())
        notes.append(f"{label}: directions removed, chosen on a dev split: {where}")
    if choices:
        splits = sorted({split for split in result.dev.values() if split is not None})
        notes.append(f"dev splits: {', '.join(splits)}; stsb's serves tasks that have none")
    if without := [task for task, split in result.dev.items() if split is None]:
        notes.append(
            f"no dev split is there for {', '.join(without)}: all-but-the-top removes D // 100, "
            "at least 1"
        )
    if result.seeds > 1 and any(METHODS[name].seeded for name in result.entries):
        notes.append(
            f"flows are fitted with {result.seeds} seeds: figures are means, intervals those of "
            "one fit (they vary with pairs and seed), fit seconds are one seed's"
        )
    for name, one in result.tasks.items():
        skipped = [f"{count:,} {reason}" for reason, count in one["skipped"].items() if count]
        if skipped:
            notes.append(f"{name}: not scored: {', '.join(skipped)}")
    for name, counts in result.fitted_on.get("skipped", {}).items():
        left = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        notes.append(f"{name}: not fitted on: rows left out: {left}")
    notes += [f"absent: {reason}" for reason in result.absent.values()]
    if 1 < len(shown) < STS_COUNT:
        notes.append(f"the mean is of {len(shown)} tasks, not the average of the seven")
    return Page(facts, grids, notes)


def _tasks_grid(
    result: Comparison, aggregation: str, tasks: Sequence[str], shown: Sequence[str]
) -> Grid:
    """Every method on every task."""
    mean = [_overall_name(shown)] if len(shown) > 1 else []
    rows = []
    for entry in result.entries.values():
        cells = [_number(entry.estimates[aggregation][task]) for task in tasks]
        if mean:
            cells.append(_number(entry.overall(aggregation)))
        rows.append([entry.label, *cells])
    return Grid(_title(result, aggregation), ["calibrator", *tasks, *mean], rows)


def _gains_grid(result: Comparison, aggregation: str, shown: Sequence[str]) -> Grid:
    """The overall value of every method, and how it differs from none."""
    base = "none" if "none" in result.entries else next(iter(result.entries))
    gains = result.against(base, aggregation)
    rows = []
    for name, entry in result.entries.items():
        overall = entry.overall(aggregation)
        cells = [_number(overall), _span(overall.low, overall.high)]
        gain = gains.get(name)
        if gain is None:
            cells += ["", "", ""]
        else:
            cells += [_signed(gain.value), _span(gain.low, gain.high, signed=True)]
            cells.append(_p(gain.adjusted))
        rows.append([entry.label, *cells])
    gain_column = f"gain on {result.entries[base].label}"
    columns = ["calibrator", _overall_name(shown), "95 %", gain_column, "95 %", "p (Holm)"]
    return Grid(_title(result, aggregation), columns, rows)


def _overall_name(shown: Sequence[str]) -> str:
    return {1: shown[0], STS_COUNT: "average"}.get(len(shown), f"mean of {len(shown)}")


def _title(result: Comparison, aggregation: str) -> str:
    measures = {MEASURES[one["measure"]] for one in result.tasks.values()}
    areas = [task for task, one in result.tasks.items() if one["measure"] == "auc"]
    title = measures.pop() if len(measures) == 1 else f"Spearman × 100, of {', '.join(areas)} AUC"
    return f"{title}, {aggregation}" if len(result.aggregations) > 1 else title


def _verdicts(result: Comparison, aggregation: str) -> list[str]:
    """Which differences are real, in words."""
    if len(result.entries) < 2:
        return []
    prefix = f"{aggregation}: " if len(result.aggregations) > 1 else ""
    best = result.best[aggregation]
    said = []
    if "none" in result.entries:
        above, below, unclear = _told_apart(result, "none", aggregation)
        said += [f"better than none, beyond chance: {above}"] if above else []
        said += [f"worse than none, beyond chance: {below}"] if below else []
        said += [f"cannot be told from none: {unclear}"] if unclear else []
    if best is not None and best != "none":
        _, below, unclear = _told_apart(result, best, aggregation)
        parts = [f"the highest is {result.entries[best].label}"]
        parts += [f"lower beyond chance: {below}"] if below else []
        parts += [f"cannot be told from it: {unclear}"] if unclear else []
        said.append("; ".join(parts))
    return [prefix + one for one in said]


def _told_apart(result: Comparison, reference: str, aggregation: str) -> tuple[str, str, str]:
    """The methods above and below one beyond chance, and the others, each with its difference."""
    groups: tuple[list[str], list[str], list[str]] = ([], [], [])
    for name, one in result.against(reference, aggregation).items():
        place = (0 if (one.value or 0) > 0 else 1) if one.real else 2
        groups[place].append(f"{result.entries[name].label} {_signed(one.value)}")
    above, below, unclear = (", ".join(group) for group in groups)
    return above, below, unclear


def _cut(cut: int, texts: int, length: int | None) -> str:
    """How many texts are too long."""
    if length is None:
        return "texts of any length are read whole"
    return f"{cut:,} of {texts:,} distinct texts are longer than {length} tokens"


def _pooling(encoder: Mapping[str, Any]) -> str:
    layers = encoder.get("layers")
    states = f" of hidden states {', '.join(map(str, layers))}" if layers else ""
    return f"{encoder.get('pooling') or 'its own pooling'}{states}"


def _fitted(fitted_on: Mapping[str, Any]) -> str:
    total = f"{sum(fitted_on['sentences'].values()):,} sentences"
    if fitted_on["fit"] == "corpus":
        return f"the given corpus ({total})"
    if fitted_on["fit"] == "nli":
        return f"{' and '.join(fitted_on['sets'])}, all splits that are there ({total})"
    if all(name not in CATALOG for name in fitted_on["sentences"]):
        return f"the text of the pairs themselves ({total})"
    return f"each task's own text: all splits that are there, also pairs never graded ({total})"


def _cells(found: Mapping[str, Estimate], measures: Sequence[str]) -> list[str]:
    cells = []
    for measure in measures:
        one = found.get(measure)
        cells += ["", ""] if one is None else [_number(one), _span(one.low, one.high)]
    return cells


def _reasons(name: str, found: Mapping[str, Estimate]) -> list[str]:
    reasons = dict.fromkeys(one.undefined for one in found.values() if one.undefined)
    said = [f"{name}: undefined: {reason}" for reason in reasons]
    if any(one.value is not None and one.low is None for one in found.values()):
        said.append(f"{name}: no interval: too many resamples of so few pairs are undefined")
    return said


def _number(one: Estimate) -> str:
    return "undefined" if one.value is None else f"{100 * one.value:.2f}"


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:+.2f}"


def _span(low: float | None, high: float | None, *, signed: bool = False) -> str:
    if low is None or high is None:
        return ""
    form = "+.1f" if signed else ".1f"
    return f"{100 * low:{form}} to {100 * high:{form}}"


def _p(value: float | None) -> str:
    return "" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(one: Difference) -> str:
    if one.value is None:
        return "undefined"
    if one.p is None:
        return "too few pairs to tell"
    return "real" if one.real else "chance is enough to explain it"
