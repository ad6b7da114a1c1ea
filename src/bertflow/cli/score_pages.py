"""Pages of scores, comparisons and diagnoses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertflow.analysis.diagnosis import VERDICTS, Diagnosis
from bertflow.calibrators.storage import recorded_name
from bertflow.cli.console import Page, counts
from bertflow.data import CATALOG
from bertflow.display import Grid
from bertflow.display.grid import hundredfold, hundredfold_span, p_value
from bertflow.evaluation import Comparison, Difference, Estimate, Score, Scores, differences
from bertflow.evaluation import score_grids as grids
from bertflow.evaluation.jobs import JOB_METHODS, JobScore, job_differences
from bertflow.evaluation.scores import counted

NEXT = {
    "yes": "bertflow fit calibrates; bertflow compare shows on pairs of your own what it gains",
    "no": "bertflow compare shows on pairs of your own what calibration would change",
    "unclear": "bertflow compare tells, on a task or on pairs of your own",
    "uninformative": "fit on ten times as many rows as dimensions, and diagnose other sentences",
}
_COMPARE = "; bertflow compare shows what it gains, by "
NEXT_FOR_JOB = {
    "search": f"bertflow fit --job search --queries FILE calibrates{_COMPARE}--retrieval DIR",
    "classes": f"bertflow fit --job classes calibrates{_COMPARE}--labels FILE",
    "clusters": f"bertflow fit --job clusters calibrates{_COMPARE}--labels FILE --job clusters",
    "duplicates": f"bertflow fit calibrates{_COMPARE}--pairs FILE --job duplicates",
}


@dataclass(frozen=True)
class Judged:
    """What is known of one model: its scores on tasks and pairs, and that on a job."""

    several: Sequence[Score]
    absent: Mapping[str, str]
    job: JobScore | None

    @property
    def scores(self) -> Scores:
        """The scores by task."""
        return Scores(scores={one.task: one for one in self.several}, absent=self.absent)

    @property
    def every(self) -> list[Score | JobScore]:
        """All scores, at least one."""
        return [*self.several, *([] if self.job is None else [self.job])]

    @property
    def encoder(self) -> str:
        """The encoder's name."""
        return grids.encoder_name(self.every[0])

    def named(self, name: str) -> Judged:
        """The same with another name of the encoder."""
        several = [replace(one, encoder={**one.encoder, "name": name}) for one in self.several]
        job = self.job and replace(self.job, encoder={**self.job.encoder, "name": name})
        return Judged(several, self.absent, job)

    def page(self, name: str) -> Page:
        """All of it, given the model's name."""
        pages = [scores_page(name, self.scores)] if self.several else []
        return _joined([*pages, *([] if self.job is None else [job_page(name, self.job)])])

    def against(self, other: Judged, names: Sequence[str]) -> tuple[Page, dict[str, Any]]:
        """How it differs from another model, as a page, and by name as JSON has it."""
        pages, found = [], {}
        if self.several:
            apart = differences(other.scores, self.scores)
            pages.append(difference_page(names, [self.several[0], other.several[0]], apart))
            found["differences"] = apart
        if self.job is not None and other.job is not None:
            apart, unit = job_differences(other.job, self.job), self.job.unit
            pages.append(difference_page(names, [self.job, other.job], apart, "measure", unit))
            found["job_differences"] = apart
        shown = {
            key: {name: one.to_dict() for name, one in apart.items()}
            for key, apart in found.items()
        }
        return _joined(pages), shown

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        scores = self.scores.to_dict() if self.several else {}
        return scores if self.job is None else {**scores, "job": self.job.to_dict()}


def _joined(pages: Sequence[Page]) -> Page:
    """Pages about the same model as one."""
    facts = {name: value for page in reversed(pages) for name, value in page.facts.items()}
    notes = dict.fromkeys(note for page in pages for note in page.notes)
    return Page(facts, [grid for page in pages for grid in page.grids], list(notes))


def scores_page(model: str, scores: Scores) -> Page:
    """The scores of a model."""
    several = list(scores.scores.values())
    cut, texts = sum(score.cut for score in several), sum(score.texts for score in several)
    whole = _cut(cut, f"{texts:,}", several[0].encoder)
    cuts = [f"{name} {score.cut:,}" for name, score in scores.scores.items() if score.cut]
    if len(several) > 1 and cuts:
        whole += f": {', '.join(cuts)}"
    data = ", ".join(dict.fromkeys(score.data for score in several))
    facts = _facts(model, several[0], {"data": data, "cut": whole})
    return Page(facts, [grids.scores_grid(scores)], list(_score_notes(scores)))


def _facts(model: str, first: Score | JobScore, more: Mapping[str, str]) -> dict[str, str]:
    """What was scored: the model and its parts, more, and what it was fitted on."""
    facts = {
        "model": model,
        "encoder": f"{grids.encoder_name(first)}, {_how(first.encoder)}",
        "calibrator": recorded_name(first.calibrator) if first.calibrator else "none",
        **more,
    }
    fitted = first.fitted_on or {}
    if "sentences" in fitted:
        corpus = fitted.get("corpus", "a list")
        names = ", ".join(corpus) if isinstance(corpus, list) else corpus
        facts["fitted on"] = f"{fitted['sentences']:,} sentences of {names}"
    return facts


def job_page(model: str, score: JobScore) -> Page:
    """What a model is worth on a job."""
    cut = _cut(score.cut, "the", score.encoder)
    facts = _facts(model, score, {"job": _job(score.kind, score.counts, score.source), "cut": cut})
    notes: list[str] = []
    for name, one in score.measures.items():
        notes += _reasons(name, [one], score.unit)
    notes += [f"{name}: {one:g}" for name, one in score.facts.items() if isinstance(one, float)]
    if skipped := counts(score.skipped):
        notes.append(f"does not count: {skipped}")
    return Page(facts, grids.job_grids(score), notes)


def _job(kind: str, number: Mapping[str, int], source: str) -> str:
    return f"{kind}, {', '.join(f'{count:,} {name}' for name, count in number.items())} of {source}"


def _score_notes(scores: Scores) -> Iterator[str]:
    for name, score in scores.scores.items():
        parts = {grids.label_of(score, key): found for key, found in score.aggregations.items()}
        parts |= {f"{name}, {subset}": found for subset, found in score.subsets.items()}
        for label, found in parts.items():
            yield from _reasons(label, found.values())
        if skipped := counts(score.skipped):
            yield f"{name}: {score.pairs:,} pairs; not scored: {skipped}"
    yield from (f"absent: {reason}" for reason in scores.absent.values())
    for label, average in grids.averages(scores).items():
        yield from _reasons(label, [average])
    if any(len(score.aggregations) > 1 for score in scores.scores.values()):
        yield "wmean is the mean over subsets weighted by their pairs, all is over all pairs"


def _reasons(name: str, found: Collection[Estimate], unit: str = "pairs") -> Iterator[str]:
    for reason in dict.fromkeys(one.undefined for one in found if one.undefined):
        yield f"{name}: undefined: {reason}"
    if any(one.value is not None and one.low is None for one in found):
        yield f"{name}: no interval: there are too few {unit}"


def difference_page(
    names: Sequence[str],
    sides: Sequence[Score | JobScore],
    differences: Mapping[str, Difference],
    what: str = "task",
    unit: str = "pairs",
) -> Page:
    """How a model's scores differ from another's, by task and aggregation, or by measure of a job.

    `sides` are one score of each model; `unit` is what was resampled.
    """
    rows = [
        [
            name,
            hundredfold(one.value, signed=True),
            hundredfold_span(one),
            p_value(one.adjusted),
            _verdict(one, unit),
        ]
        for name, one in differences.items()
    ]
    note = f"p by paired bootstrap over {unit}, corrected for the number of differences (Holm)"
    grid = Grid(" minus ".join(names) + ", × 100", [what, "difference", "95 %", "p", ""], rows)
    facts = {"model": side_of(names[0], sides[0]), "against": side_of(names[1], sides[1])}
    return Page(facts, [grid], [note])


def _verdict(one: Difference, unit: str) -> str:
    if one.value is None:
        return "undefined"
    if one.p is None:
        return f"too few {unit} to tell"
    return "real" if one.real else "chance is enough to explain it"


def comparison_page(encoder: str, result: Comparison) -> Page:
    """Calibrators side by side."""
    if job := grids.job_of(result):
        one = result.tasks[job]
        judged = {"job": _job(job, one["counts"], one["data"])}
    else:
        scored = {name: sum(one["scored"].values()) for name, one in result.tasks.items()}
        judged = {"pairs": ", ".join(f"{name} {count:,}" for name, count in scored.items())}
    facts = {
        "encoder": f"{encoder}, {_how(result.encoder)}",
        "fitted on": _fitted(result.fitted_on),
        "encoded": f"{result.sentences:,} distinct sentences, once, in "
        f"{result.encode_seconds:.0f} s; all took {result.seconds:.0f} s",
        "cut": _cut(result.cut, f"{result.sentences:,}", result.encoder),
        **judged,
    }
    entries = result.entries.values()
    costs = [[one.label, f"{one.fit_seconds:.1f}", f"{one.megabytes:.2f}"] for one in entries]
    cost = Grid("cost", ["calibrator", "fit seconds", "MB"], costs)
    return Page(facts, [*grids.comparison_grids(result), cost], list(_comparison_notes(result)))


def _fitted(fitted_on: Mapping[str, Any]) -> str:
    total = f"{sum(fitted_on['sentences'].values()):,} sentences"
    if fitted_on["fit"] == "corpus":
        return f"the given corpus ({total})"
    if fitted_on["fit"] == "nli":
        return f"{' and '.join(fitted_on['sets'])}, all splits that are there ({total})"
    if "document" in fitted_on["sentences"]:
        return f"{total} of the job itself"
    if CATALOG.keys().isdisjoint(fitted_on["sentences"]):
        return f"{total} of the pairs themselves"
    return f"each task's own text: all splits that are there, also pairs never graded ({total})"


def _comparison_notes(result: Comparison) -> Iterator[str]:
    for aggregation in result.aggregations[:1] if grids.job_of(result) else result.aggregations:
        yield from _verdicts(result, aggregation)
    yield from _choices(result)
    if result.seeds > 1 and any(JOB_METHODS[one.method].seeded for one in result.entries.values()):
        what = "figures are means, intervals and fit seconds those of one fit"
        yield f"flows are fitted with {result.seeds} seeds: {what}"
    for name, one in result.tasks.items():
        if skipped := counts(one["skipped"]):
            yield f"{name}: not scored: {skipped}"
    for name, skipped in result.fitted_on.get("skipped", {}).items():
        yield f"{name}: not fitted on: rows left out: {counts(skipped)}"
    yield from (f"absent: {reason}" for reason in result.absent.values())
    if 1 < len(shown := counted(list(result.tasks))) < grids.STS_COUNT:
        yield f"the mean is of {len(shown)} tasks, not the average of the seven"


def _verdicts(result: Comparison, aggregation: str) -> Iterator[str]:
    """Which methods differ beyond chance from none, and which from the highest."""
    prefix = f"{aggregation}: " if len(result.aggregations) > 1 else ""
    best = result.best[aggregation]
    for reference in dict.fromkeys(["none", best]):
        if reference is None or reference not in result.entries:
            continue
        label = result.entries[reference].label + (" (the highest)" if reference == best else "")
        groups: dict[str, list[str]] = {
            f"better than {label}, beyond chance": [],
            f"worse than {label}, beyond chance": [],
            f"cannot be told from {label}": [],
        }
        better, worse, unclear = groups.values()
        for name, one in result.against(reference, aggregation).items():
            group = (better if (one.value or 0) > 0 else worse) if one.real else unclear
            group.append(f"{result.entries[name].label} {hundredfold(one.value, signed=True)}")
        for what, group in groups.items():
            if group:
                yield f"{prefix}{what}: {', '.join(group)}"


def _choices(result: Comparison) -> Iterator[str]:
    for one in result.entries.values():
        if one.components:
            where = [
                f"{task} {count} ({result.dev[task]})" for task, count in one.components.items()
            ]
            yield f"{one.label}: directions removed, chosen on a dev split: {', '.join(where)}"
    if without := [task for task, split in result.dev.items() if split is None]:
        removed = "all-but-the-top removes D // 100, at least 1"
        yield f"no dev split is there for {', '.join(without)}: {removed}"
    if result.fitted_on["fit"] == "target" and not CATALOG.keys() >= result.tasks.keys():
        yield "--corpus FILE fits on what you would fit on, and judges what would be shipped"


def _cut(cut: int, texts: str, encoder: Mapping[str, Any]) -> str:
    if encoder["max_length"] is None:
        return "texts of any length are read whole"
    return f"{cut:,} of {texts} distinct texts are longer than {encoder['max_length']} tokens"


def side_of(name: str, score: Score | JobScore) -> str:
    """Whose a score is: a model, its calibrator and encoder, and how that reads sentences."""
    known = grids.model_name(score)
    return f"{known if known == name else f'{name}: {known}'}, {_how(score.encoder)}"


def _how(encoder: Mapping[str, Any]) -> str:
    layers = encoder.get("layers")
    states = f" of hidden states {', '.join(map(str, layers))}" if layers else ""
    pooling = f"{encoder.get('pooling') or 'its own pooling'}{states}"
    return f"{pooling}, maximum length {encoder['max_length'] or 'not bounded'}"


def diagnosis_page(source: str, found: Diagnosis, alike: float) -> Page:
    """The verdict first, then the evidence, and what each figure would be at its best."""
    top = ", ".join(f"{number} ({100 * share:.0f} %)" for number, share in found.dominance.top(3))
    notes = [f"dimensions with most of the cosine: {top}"]
    if found.alignment is not None:
        notes.append(f"pairs alike are those with a score from {alike} of the highest")
    notes += [*found.warnings, NEXT_FOR_JOB.get(found.job, NEXT[found.verdict])]
    facts = {
        "verdict": f"{VERDICTS[found.verdict]}: {found.reason}",
        "vectors": f"{source}: {found.rows:,}, each of {found.width} dimensions",
    }
    if found.cut is not None:
        facts["cut"] = f"{found.cut:,} sentences are longer than the encoder takes"
    return Page(facts, [found.evidence()], notes)
