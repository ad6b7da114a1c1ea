"""Pages of scores, comparisons and diagnoses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertflow.analysis import Diagnosis
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.calibrators.storage import recorded_name
from bertflow.cli.output import Page, counts
from bertflow.data import CATALOG
from bertflow.display import Grid
from bertflow.display.grid import hundredfold, hundredfold_span, p_value
from bertflow.evaluation import METHODS, Comparison, Difference, Estimate, Score, Scores
from bertflow.evaluation.score_grids import (
    STS_COUNT,
    averages,
    comparison_grids,
    encoder_name,
    label_of,
    model_name,
    scores_grid,
)
from bertflow.evaluation.scores import counted

MEASURED = (
    "where we measured it (docs/results.md), vectors with a mean cosine above 0.35 gained 5 "
    "to 40 points on STS-B; at 0.02 whitening and flows lost 1 to 3, adaptive whitening nothing"
)
NEXT = {
    "yes": "bertflow fit takes adaptive-whitening, the default; bertflow compare shows on pairs of "
    "your own what it gains",
    "no": "bertflow compare shows on pairs of your own what calibration would change",
    "unclear": "bertflow fit changes little where little is wrong; bertflow compare tells, on a "
    "task or on pairs of your own",
    "uninformative": "fit on more rows than dimensions, better ten times as many, and diagnose "
    "vectors of other sentences than were fitted on",
}


def scores_page(model: str, scores: Scores) -> Page:
    """The scores of a model."""
    several = list(scores.scores.values())
    first = several[0]
    facts = {"model": model, "encoder": f"{encoder_name(first)}, {_how(first.encoder)}"}
    facts["calibrator"] = recorded_name(first.calibrator) if first.calibrator else "none"
    if first.calibrator:
        fitted = first.fitted_on or {}
        corpus, count = fitted.get("corpus"), fitted.get("sentences")
        what = f" of {', '.join(corpus) if isinstance(corpus, list) else corpus}" if corpus else ""
        facts["fitted on"] = "not recorded" if count is None else f"{count:,} sentences{what}"
    facts["data"] = ", ".join(dict.fromkeys(score.data for score in several))
    facts["cut"] = _cut(
        sum(score.cut for score in several),
        sum(score.texts for score in several),
        first.encoder["max_length"],
    )
    cuts = [f"{name} {score.cut:,}" for name, score in scores.scores.items() if score.cut]
    if len(several) > 1 and cuts:
        facts["cut"] += f": {', '.join(cuts)}"
    return Page(facts, [scores_grid(scores)], list(_score_notes(scores)))


def _score_notes(scores: Scores) -> Iterator[str]:
    for name, score in scores.scores.items():
        for aggregation, found in score.aggregations.items():
            yield from _reasons(label_of(score, aggregation), found)
        for subset, found in score.subsets.items():
            yield from _reasons(f"{name}, {subset}", found)
        if skipped := counts(score.skipped):
            yield f"{name}: {score.pairs:,} pairs; not scored: {skipped}"
    yield from (f"absent: {reason}" for reason in scores.absent.values())
    for named, average in averages(scores).items():
        if average.undefined:
            yield f"{named}: {average.undefined}"
    if any(len(score.aggregations) > 1 for score in scores.scores.values()):
        yield (
            "wmean is the mean over subsets weighted by their pairs, mean the plain one, all is "
            "over all pairs together; they are not comparable with each other"
        )


def difference_page(
    names: Sequence[str], sides: Sequence[Scores], differences: Mapping[str, Difference]
) -> Page:
    """How a model's scores differ from another's, by task and aggregation."""
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
    entries = result.entries.values()
    costs = [[one.label, f"{one.fit_seconds:.1f}", f"{one.megabytes:.2f}"] for one in entries]
    cost = Grid("cost", ["calibrator", "fit seconds", "MB"], costs)
    return Page(facts, [*comparison_grids(result), cost], list(_comparison_notes(result)))


def _comparison_notes(result: Comparison) -> Iterator[str]:
    for aggregation in result.aggregations:
        yield from _verdicts(result, aggregation)
    yield from _choices(result)
    if result.seeds > 1 and any(METHODS[name].seeded for name in result.entries):
        yield (
            f"flows are fitted with {result.seeds} seeds: figures are means, intervals those of "
            "one fit (they vary with pairs and seed), fit seconds are one seed's"
        )
    for name, one in result.tasks.items():
        if skipped := counts(one["skipped"]):
            yield f"{name}: not scored: {skipped}"
    for name, skipped in result.fitted_on.get("skipped", {}).items():
        yield f"{name}: not fitted on: rows left out: {counts(skipped)}"
    yield from (f"absent: {reason}" for reason in result.absent.values())
    if 1 < len(shown := counted(list(result.tasks))) < STS_COUNT:
        yield f"the mean is of {len(shown)} tasks, not the average of the seven"


def _choices(result: Comparison) -> Iterator[str]:
    """What dev splits and corpora were chosen for the fits."""
    choices = {one.label: one.components for one in result.entries.values() if one.components}
    for label, components in choices.items():
        where = ", ".join(f"{task} {count}" for task, count in components.items())
        yield f"{label}: directions removed, chosen on a dev split: {where}"
    if result.fitted_on["fit"] == "target" and any(name not in CATALOG for name in result.tasks):
        yield (
            "pairs of your own: fitted on their sentences alone; --corpus FILE fits on what you "
            "would fit on, and judges what would be shipped"
        )
    if choices:
        splits = sorted({split for split in result.dev.values() if split is not None})
        yield f"dev splits: {', '.join(splits)}; stsb's serves tasks that have none"
    if without := [task for task, split in result.dev.items() if split is None]:
        yield (
            f"no dev split is there for {', '.join(without)}: all-but-the-top removes D // 100, "
            "at least 1"
        )


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


def diagnosis_page(source: str, found: Diagnosis, alike: float) -> Page:
    """The verdict first, then the evidence, and what each figure would be at its best."""
    top = ", ".join(f"{number} ({100 * share:.0f} %)" for number, share in found.dominance.top(3))
    dead = ", ".join(map(str, found.dead_dimensions[:5]))
    more = len(found.dead_dimensions) - 5
    notes = [f"dimensions with most of the cosine: {top}"]
    if found.alignment is not None:
        notes.append(f"pairs alike are those with a score from {alike} of the highest")
    if dead:
        notes.append(f"not varying: {dead}{f' and {more} more' if more > 0 else ''}")
    notes += found.warnings
    notes.append(MEASURED)
    notes.append(NEXT[found.verdict])
    facts = {
        "verdict": f"{VERDICTS[found.verdict]}: {found.reason}",
        "vectors": f"{source}: {found.rows:,}, each of {found.width} dimensions",
    }
    if found.cut is not None:
        facts["cut"] = f"{found.cut:,} sentences are longer than the encoder takes"
    return Page(facts, [found.evidence()], notes)
