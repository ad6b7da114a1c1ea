"""Pages of scores, comparisons and diagnoses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bertflow.analysis.diagnosis import VERDICTS, Diagnosis
from bertflow.analysis.drifting import Drift
from bertflow.calibrators.storage import recorded_name
from bertflow.cli.console import Page, counts
from bertflow.data import CATALOG
from bertflow.display import Grid
from bertflow.display.grid import ascii_minus, hundredfold, hundredfold_span, p_value
from bertflow.evaluation import Comparison, Difference, Estimate, Score, Scores, differences
from bertflow.evaluation import score_grids as grids
from bertflow.evaluation.jobs import JOB_METHODS, JobScore, job_differences
from bertflow.evaluation.scores import counted

# What to do next, by the verdict or by the job.
NEXT = {
    "yes": "bertflow fit calibrates; bertflow compare shows on pairs of your own what it gains",
    "no": "bertflow compare shows on pairs of your own what calibration would change",
    "unclear": "bertflow compare tells, on a task or on pairs of your own",
    "uninformative": "fit on ten times as many rows as dimensions, and diagnose other sentences",
    "search": "bertflow compare ENCODER --retrieval DIR tells, on a search of your own",
    "classes": "bertflow compare ENCODER --labels FILE tells, on texts of your own",
    "clusters": "bertflow compare ENCODER --labels FILE --job clusters tells, on texts of your own",
    "duplicates": "bertflow compare ENCODER --pairs FILE --job duplicates tells, on your own pairs",
}


def parted(
    found: Sequence[Score | JobScore], absent: Mapping[str, str] | None = None
) -> tuple[Scores, list[JobScore]]:
    """A model's scores by task, and that on a job, if there is one."""
    tasks = {one.task: one for one in found if isinstance(one, Score)}
    jobs = [one for one in found if isinstance(one, JobScore)]
    return Scores(scores=tasks, absent=absent or {}), jobs


def model_content(found: Sequence[Score | JobScore], absent: Mapping[str, str]) -> dict[str, Any]:
    """All that is known of a model, as JSON has it."""
    scores, jobs = parted(found, absent)
    content = scores.to_dict() if scores.scores else {}
    return {**content, "job": jobs[0].to_dict()} if jobs else content


def model_page(model: str, found: Sequence[Score | JobScore], absent: Mapping[str, str]) -> Page:
    """All that is known of a model, at least one score."""
    scores, jobs = parted(found, absent)
    first, shown, notes = found[0], list[Grid](), list[str]()
    facts = {
        "model": model,
        "encoder": f"{grids.encoder_name(first)}, {how_it_reads(first.encoder)}",
        "calibrator": recorded_name(first.calibrator) if first.calibrator else "none",
    }
    for job in jobs:
        facts["job"] = _job(job.kind, job.counts, job.source)
        facts["cut"] = _cut(job.cut, "the", job.encoder)
    if several := list(scores.scores.values()):
        facts["data"] = ", ".join(dict.fromkeys(score.data for score in several))
        cut, texts = sum(score.cut for score in several), sum(score.texts for score in several)
        cuts = [f"{score.task} {score.cut:,}" for score in several if score.cut]
        each = f": {', '.join(cuts)}" if len(several) > 1 and cuts else ""
        facts["cut"] = _cut(cut, f"{texts:,}", first.encoder) + each
        shown.append(grids.scores_grid(scores))
        notes += _score_notes(scores)
    for job in jobs:
        shown += grids.job_grids(job)
        notes += _job_notes(job)
    fitted = first.fitted_on or {}
    if "sentences" in fitted:
        corpus = fitted.get("corpus", "a list")
        names = ", ".join(corpus) if isinstance(corpus, list) else corpus
        facts["fitted on"] = f"{fitted['sentences']:,} sentences of {names}"
    return Page(facts, shown, notes)


def _job_notes(score: JobScore) -> Iterator[str]:
    for name, one in score.measures.items():
        yield from _reasons(name, [one], score.unit)
    yield from (f"{name}: {one:g}" for name, one in score.facts.items() if isinstance(one, float))
    if skipped := counts(score.skipped):
        yield f"does not count: {skipped}"


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


def differences_page(
    names: Sequence[str], found: Sequence[Score | JobScore], other: Sequence[Score | JobScore]
) -> tuple[Page, dict[str, Any]]:
    """How a model's scores differ from another's: as a page, and as JSON has it."""
    (scores, jobs), (others, other_jobs) = parted(found), parted(other)
    apart: dict[str, tuple[str, str, Mapping[str, Difference]]] = {}
    if scores.scores:
        apart["differences"] = ("task", "pairs", differences(others, scores))
    for job, before in zip(jobs, other_jobs, strict=True):
        apart["job_differences"] = ("measure", job.unit, job_differences(before, job))
    shown, notes, content = [], [], {}
    for key, (what, unit, by_name) in apart.items():
        rows = []
        for name, one in by_name.items():
            figures = [hundredfold(one.value, signed=True), hundredfold_span(one)]
            rows.append([name, *figures, p_value(one.adjusted), _verdict(one, unit)])
        heads = [what, "difference", "95 %", "p", ""]
        shown.append(Grid(" minus ".join(names) + ", × 100", heads, rows))
        corrected = "corrected for the number of differences (Holm)"
        notes.append(f"p by paired bootstrap over {unit}, {corrected}")
        content[key] = {name: one.to_dict() for name, one in by_name.items()}
    facts = {"model": side_of(names[0], found[0]), "against": side_of(names[1], other[0])}
    return Page(facts, shown, list(dict.fromkeys(notes))), content


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
        "encoder": f"{encoder}, {how_it_reads(result.encoder)}",
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
            gain = ascii_minus(hundredfold(one.value, signed=True))
            group.append(f"{result.entries[name].label} {gain}")
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
    return f"{known if known == name else f'{name}: {known}'}, {how_it_reads(score.encoder)}"


def how_it_reads(encoder: Mapping[str, Any]) -> str:
    """What an encoder makes of hidden states, and to how many tokens it cuts."""
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
    notes += [*found.warnings, NEXT[found.verdict if found.job == "similarity" else found.job]]
    facts = {
        "verdict": f"{VERDICTS[found.verdict]}: {found.reason}",
        "vectors": f"{source}: {found.rows:,}, each of {found.width} dimensions",
    }
    if found.cut is not None:
        facts["cut"] = f"{found.cut:,} sentences are longer than the encoder takes"
    return Page(facts, [found.evidence()], notes)


def drift_page(model: object, found: Drift) -> Page:
    """The verdict first, then the figures, and what they mean."""
    facts = {
        "verdict": found.verdict,
        "model": f"{model}, fitted on {found.fitted_rows:,} rows",
        "new": f"{found.rows:,} rows",
    }
    notes = [
        "50 % is no difference; an interval above 90 % says refit",
        "farther out: along the way from the centre of the fitted rows to that of the new ones",
        "typical: by the log-density of a Gaussian with the moments of the fitted rows",
    ]
    if found.refit:
        notes.append(
            "bertflow fit --update learns from new text beside the old; bertflow fit from it alone"
        )
    return Page(facts, found.grids(), notes)
