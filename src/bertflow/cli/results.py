"""What scores and comparisons look like, on a terminal and as Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertflow.calibrators.storage import recorded_name
from bertflow.cli.opening import show
from bertflow.cli.places import is_output
from bertflow.data import CATALOG
from bertflow.display import Grid
from bertflow.display.numbers import hundredfold, hundredfold_span, p_value
from bertflow.errors import ModelError, one_line
from bertflow.evaluation import METHODS, Comparison, Difference, Estimate, Score, Scores
from bertflow.evaluation.score_grids import (
    STS_COUNT,
    averages,
    encoder_name,
    gains_grid,
    label_of,
    model_name,
    scores_grid,
    tasks_grid,
)
from bertflow.evaluation.scores import counted


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
        facts = "".join(f"- {name}: {one_line(value)}\n" for name, value in self.facts.items())
        notes = "".join(f"- {one_line(note)}\n" for note in self.notes)
        return "\n".join([facts, *(grid.markdown() for grid in self.grids), notes])


def give(
    pages: Sequence[Page],
    content: dict[str, Any],
    json_: Path | None,
    markdown: Path | None,
    others: Mapping[Path, Callable[[Path], object]] = MappingProxyType({}),
) -> None:
    """Show pages, and write them and the content where it is asked for.

    What is asked for on standard output is shown alone. Where a file cannot be written, all else is
    done all the same.

    Args:
        pages: What is shown, and written as Markdown.
        content: What is written as JSON.
        json_: As --json.
        markdown: As --markdown.
        others: Other files, and what writes each.

    Raises:
        ModelError: A file cannot be written; the message says where its content is instead.
    """
    from bertflow.io.files import write_text

    forms: list[tuple[Path, str]] = []
    if json_ is not None:
        forms.append((json_, json.dumps(content, indent=2, allow_nan=False) + "\n"))
    if markdown is not None:
        forms.append((markdown, "\n".join(page.markdown() for page in pages)))
    # Files first: whoever reads what is shown may have gone.
    writers: dict[Path, Callable[[Path], object]] = {
        path: partial(write_text, text=text) for path, text in forms if not is_output(path)
    }
    lost = [
        error
        for path, write in {**writers, **others}.items()
        if (error := written(path, write)) is not None
    ]
    try:
        _show(pages, [text for path, text in forms if is_output(path)])
    finally:  # Also where whoever reads what is shown has gone.
        if lost:
            raise ModelError("; ".join(lost))


def written(path: Path, write: Callable[[Path], object]) -> str | None:
    """Write a file as `save_or_keep` does.

    Returns:
        What went wrong, and where the content is; None where nothing did.
    """
    from bertflow.io.outputs import save_or_keep

    try:
        save_or_keep(path, write, when=lambda error: isinstance(error, ModelError))
    except ModelError as error:
        return str(error)
    return None


def _show(pages: Sequence[Page], alone: Sequence[str]) -> None:
    if alone:
        sys.stdout.write(alone[0])
        return
    for place, page in enumerate(pages):
        if place:
            show("")
        for name, value in page.facts.items():
            show(f"{name:<11}{one_line(value)}")
        for grid in page.grids:
            show("")
            show(grid.text())
        if page.notes:
            show("")
        for note in page.notes:
            show(f"- {one_line(note)}")


def scores_page(model: str, scores: Scores) -> Page:
    """The scores of a model."""
    several = list(scores.scores.values())
    notes: list[str] = []
    for name, score in scores.scores.items():
        for aggregation, found in score.aggregations.items():
            notes += _reasons(label_of(score, aggregation), found)
        for subset, found in score.subsets.items():
            notes += _reasons(f"{name}, {subset}", found)
        skipped = [f"{count:,} {reason}" for reason, count in score.skipped.items() if count]
        if skipped:
            notes.append(f"{name}: {score.pairs:,} pairs; not scored: {', '.join(skipped)}")
    notes += [f"absent: {reason}" for reason in scores.absent.values()]
    for named, one in averages(scores).items():
        if one.undefined:
            notes.append(f"{named}: {one.undefined}")
    if any(len(score.aggregations) > 1 for score in several):
        notes.append(
            "wmean is the mean over subsets weighted by their pairs, mean the plain one, all is "
            "over all pairs together; they are not comparable with each other"
        )
    first = several[0]
    fitted = first.fitted_on or {}
    facts = {"model": model, "encoder": f"{encoder_name(first)}, {_how(first.encoder)}"}
    if first.calibrator:
        facts["calibrator"] = recorded_name(first.calibrator)
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
    return Page(facts, [scores_grid(scores)], notes)


def difference_page(
    names: Sequence[str], sides: Sequence[Scores], differences: Mapping[str, Difference]
) -> Page:
    """How one model's scores differ from another's, by task and aggregation.

    Args:
        names: Of the model and the other.
        sides: Scores of both.
        differences: The first less the second.
    """
    model, other = names
    facts = {
        place: side_of(name, next(iter(side.scores.values())))
        for place, name, side in zip(("model", "against"), names, sides, strict=True)
    }
    rows = [
        [
            name,
            hundredfold(one.value, signed=True),
            hundredfold_span(one),
            p_value(one.adjusted),
            _verdict(one),
        ]
        for name, one in differences.items()
    ]
    title = f"{model} minus {other}, × 100"
    notes = [
        "p by paired bootstrap over pairs (from its deviation), corrected for the number of "
        "differences shown (Holm); with few pairs it can disagree with the interval"
    ]
    return Page(facts, [Grid(title, ["task", "difference", "95 %", "p", ""], rows)], notes)


def comparison_page(encoder: str, result: Comparison) -> Page:
    """Calibrators side by side."""
    tasks = list(result.tasks)
    shown = counted(tasks)
    facts = {
        "encoder": f"{encoder}, {_how(result.encoder)}",
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
            grids.append(tasks_grid(result, aggregation))
        grids.append(gains_grid(result, aggregation))
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
    if result.fitted_on["fit"] == "target" and any(name not in CATALOG for name in tasks):
        notes.append(
            "pairs of your own: fitted on their sentences alone; --corpus FILE fits on what you "
            "would fit on, and judges what would be shipped"
        )
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
        groups[place].append(f"{result.entries[name].label} {hundredfold(one.value, signed=True)}")
    above, below, unclear = (", ".join(group) for group in groups)
    return above, below, unclear


def _cut(cut: int, texts: int, length: int | None) -> str:
    """How many texts are too long."""
    if length is None:
        return "texts of any length are read whole"
    return f"{cut:,} of {texts:,} distinct texts are longer than {length} tokens"


def side_of(name: str, score: Score) -> str:
    """Whose a score is: a model, its calibrator and encoder, and how that reads sentences."""
    known = model_name(score)
    return f"{known if known == name else f'{name}: {known}'}, {_how(score.encoder)}"


def _how(encoder: Mapping[str, Any]) -> str:
    """An encoder's pooling and maximum length."""
    layers = encoder.get("layers")
    states = f" of hidden states {', '.join(map(str, layers))}" if layers else ""
    pooling = f"{encoder.get('pooling') or 'its own pooling'}{states}"
    return f"{pooling}, maximum length {encoder['max_length'] or 'not bounded'}"


def _fitted(fitted_on: Mapping[str, Any]) -> str:
    total = f"{sum(fitted_on['sentences'].values()):,} sentences"
    if fitted_on["fit"] == "corpus":
        return f"the given corpus ({total})"
    if fitted_on["fit"] == "nli":
        return f"{' and '.join(fitted_on['sets'])}, all splits that are there ({total})"
    if all(name not in CATALOG for name in fitted_on["sentences"]):
        return f"{total} of the pairs themselves"
    return f"each task's own text: all splits that are there, also pairs never graded ({total})"


def _reasons(name: str, found: Mapping[str, Estimate]) -> list[str]:
    reasons = dict.fromkeys(one.undefined for one in found.values() if one.undefined)
    said = [f"{name}: undefined: {reason}" for reason in reasons]
    if any(one.value is not None and one.low is None for one in found.values()):
        said.append(f"{name}: no interval: too many resamples of so few pairs are undefined")
    return said


def _verdict(one: Difference) -> str:
    if one.value is None:
        return "undefined"
    if one.p is None:
        return "too few pairs to tell"
    return "real" if one.real else "chance is enough to explain it"
