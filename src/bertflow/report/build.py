"""A report's content: what vectors or a model say, measured once for page and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import Diagnosis, diagnose
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.analysis.gains import PairGains, measure_gains
from bertflow.analysis.neighbours import Neighbours, nearest_neighbours, sampled
from bertflow.arrays import Array, unit_rows
from bertflow.calibrators import Calibrator, Flow, load_calibrator
from bertflow.calibrators.readme import encoder_facts, last_part, preset_name, told_of
from bertflow.data import CATALOG, STS_TASKS, read_corpus, read_task, sample_pairs, sample_texts
from bertflow.data.readers import find_files
from bertflow.display.grid import fixed
from bertflow.encoders import SentenceCache, embed, library_versions
from bertflow.encoders.encoder import encoder_of
from bertflow.errors import (
    BertflowError,
    InputError,
    MissingDataError,
    MissingDependencyError,
    ModelError,
    unknown,
)
from bertflow.evaluation import Difference, Estimate, figures, holm, paired_cosine
from bertflow.evaluation.jobs import Job, JobScore, evaluate_job, job_differences
from bertflow.evaluation.scores import Figures, average, on_all_pairs
from bertflow.evaluation.tasks import read_available
from bertflow.io.vectors import read_vectors
from bertflow.models import CalibratedSentenceTransformer, attach, is_calibrated, load
from bertflow.report import measures
from bertflow.report.measures import AVERAGE, Headline, ScoreTable

BEFORE, AFTER = "before", "after"
# Rows that are measured at most, and how many neighbours of a row are shown.
ROWS, NEIGHBOURS = 10000, 5
# The corpus of a model of `bertflow demo`, in its provenance.
DEMO = "demo"
# The sections that a report may lack, in order.
SECTIONS = "job cosines spectra cloud neighbours scores training".split()
OF_VECTORS = ("cosines", "spectra", "cloud", "neighbours", "scores")
# How to get a section that takes an argument, or another source.
UNASKED = {
    "job": "of a saved model, --retrieval DIR, --labels FILE or --pairs FILE would fill it",
    "scores": "of a saved model, --task NAME or, for all tasks there, --data DIR would fill it",
}
# Why scores may be left out. Anything else, such as a damaged file of a task, is an error.
LACKING = (MissingDataError, MissingDependencyError)


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


@dataclass(eq=False, kw_only=True)
class Report:
    """All that a page shows; a section without data is None, and `absent` says what would fill it.

    Attributes:
        verdict: The conclusion, a sentence; `evidence` is what it rests on.
        sides: By name, what each side is; `diagnoses` are the measures of its cloud.
        gains: What the demonstration's model is worth on the pairs that come with bertflow.
        job: What both sides are worth on a job of the user's own.
        neighbours: By side, the nearest of the measured rows to each row that the cloud draws.
        measured: How many rows are measured.
        texts: Text of each of them; None where rows have none.
        provenance: What all of it depends on, by name.
        notes: What must be said beside it.
    """

    title: str
    verdict: str = ""
    evidence: str = ""
    sides: Mapping[str, str] = field(default_factory=dict)
    gains: PairGains | None = None
    job: JobSides | None = None
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    cosines: measures.CosineHistogram | None = None
    spectra: measures.Spectra | None = None
    cloud: measures.Cloud | None = None
    neighbours: Mapping[str, Neighbours] | None = None
    measured: int = 0
    texts: Sequence[str] | None = None
    scores: measures.ScoreTable | None = None
    training: measures.TrainingCurve | None = None
    provenance: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=lambda: dict(UNASKED))

    def left_out(self) -> list[tuple[list[str], str]]:
        """Names of absent sections that lack the same, and what would fill them."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.absent.items():
            reasons.setdefault(reason.rstrip("."), []).append(name)
        return [(names, reason) for reason, names in reasons.items()]


def build_report(
    source: str | Path,
    *,
    corpus: str | Path | None = None,
    column: str | None = None,
    format: str | None = None,
    against: str | Path | None = None,
    data: str | Path | None = None,
    tasks: Sequence[str] = (),
    job: Job | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Put together what there is to say of a model or of vectors.

    Args:
        source: A saved calibrated model, or a .npy file of vectors, one a row. A model encodes the
            sentences that the cache lacks.
        corpus: Sentences, as `bertflow.data.read_corpus` takes them: the texts of vectors, row by
            row, or those that a model is shown on; None takes those it was fitted on.
        column: Text column of a table.
        format: Format of the corpus, whatever its name ends in.
        against: The other side. Of vectors: a calibrator or calibrated model, which is applied to
            them, or vectors of the same rows. Of a model: another calibrator of the same encoder.
        data: Folder of the tasks; None takes the environment variable BERTFLOW_DATA.
        tasks: STS tasks to score a model on, as in `bertflow.evaluate`. None takes all whose files
            are in `data`, if that is given.
        job: A job of your own to judge a model by, from `bertflow.evaluation.read_retrieval`,
            `read_labels` or `DuplicatesJob`.
        progress: Called with the distinct sentences that a model has encoded and their total.

    Returns:
        The report; a section without data is None, and `absent` says what would fill it.

    Raises:
        InputError: A file or folder is none of these, a task is unknown, or the arguments do not
            belong together.
        ModelError: A model or calibrator cannot be read.

    Example:
        >>> import numpy as np, tempfile
        >>> file = Path(tempfile.mkdtemp()) / "vectors.npy"
        >>> np.save(file, np.random.default_rng(0).normal(size=(200, 8)) + 3.0)
        >>> build_report(file).verdict.partition(" (")[0]
        'Calibration is likely to help: any two unrelated vectors look 91 % alike'
    """
    path = Path(source)
    how = {"column": column, "format": format}
    if corpus is None and any(how.values()):
        raise InputError("a column or format goes with a corpus")
    for task in tasks:
        if task not in STS_TASKS:
            raise unknown("task of a report", task, STS_TASKS)
    draft = _Draft(path, corpus, how, against, data, tasks or _tasks_in(data), job, progress)
    if path.suffix == ".npy":
        if tasks or data is not None or job is not None:
            raise InputError(
                f"{path} holds vectors; tasks and jobs need a saved model, to encode their texts"
            )
        draft.take_vectors()
    elif is_calibrated(path):
        draft.take_model()
    else:
        problem = "is nothing to report on" if path.exists() else "does not exist"
        raise InputError(
            f"{path} {problem}; give a saved model, or a .npy file of vectors, beside which "
            "--against sets a calibrator"
        )
    return draft.finished()


def _tasks_in(data: str | Path | None) -> list[str]:
    """The STS tasks whose files are in a folder."""
    if data is None:
        return []
    if not Path(data).is_dir():
        raise InputError(f"{data} is no folder; give the folder that holds the tasks")
    sets = [CATALOG[task] for task in STS_TASKS]
    return [one.name for one in sets if find_files(one, one.default_split, Path(data))]


@dataclass(eq=False)
class _Draft:
    """A report that is being put together, from the arguments of `build_report`."""

    path: Path
    corpus: str | Path | None
    how: Mapping[str, Any]
    against: str | Path | None
    data: str | Path | None
    tasks: Sequence[str]
    job: Job | None
    progress: Callable[[int, int], None] | None
    sides: list[Side] = field(default_factory=list)
    calibrator: Calibrator | None = None

    def __post_init__(self) -> None:
        self.report = Report(title=self.path.resolve().name)
        self.report.provenance["bertflow"] = library_versions()["bertflow"]

    def take_vectors(self) -> None:
        """Compare vectors with others of the same rows, or with what a calibrator makes of them."""
        files = {BEFORE: self.path}
        if self.against is not None and str(self.against).endswith(".npy"):
            files[AFTER] = Path(self.against)
        matrices = {name: read_vectors(path) for name, path in files.items()}
        counts: dict[Any, int] = {files[name]: len(one) for name, one in matrices.items()}
        texts = None
        if self.corpus is not None:
            texts = read_corpus(self.corpus, blank="refuse", **self.how)
            counts[self.corpus] = len(texts)
            self.report.provenance["corpus"] = str(self.corpus)
        (first, total), *others = counts.items()
        for other, count in others:
            if count != total:
                raise InputError(
                    f"{other} holds {count:,} rows, but {first} {total:,}; row i of both must be "
                    "of the same sentence"
                )
        rows = self.look_at(total, texts)
        for name, vectors in matrices.items():
            self.sides.append(side_of_file(name, files[name], vectors, rows))
            about = f"{files[name]}: {total:,} of {vectors.shape[1]} dimensions"
            self.report.provenance["vectors" if name == BEFORE else name] = about
        if self.against is not None and AFTER not in files:
            calibrator = self.use(self.against)
            self.sides.append(self.sides[0].under(calibrator, AFTER, str(self.against)))

    def take_model(self) -> None:
        """Compare the encoder of a saved model before and after its calibrator."""
        calibrator, model = self.use(self.path), load(self.path)
        saved, other = calibrator.provenance_, self.other_model(model.encoder)
        how: dict[str, Any] = {"precision": saved.get("precision", "auto")}
        how |= {"cache": SentenceCache(), "progress": self.progress}
        if self.job is not None:
            two = (model, other) if other else (model.encoder, model)
            self.report.job = JobSides(*(evaluate_job(one, self.job, **how) for one in two))
            self.report.provenance["job"] = f"{self.job.kind} of {self.job.source}"
        try:
            texts, self.report.provenance["corpus"] = self.corpus_of(saved)
        except MissingDataError as error:
            if other is not None or self.corpus is not None:
                raise
            self.report.absent |= dict.fromkeys(OF_VECTORS, str(error))
            return
        rows = self.look_at(len(texts), texts)
        encoder = encoder_of(model)

        def encode(sentences: Sequence[str]) -> Array:
            return embed(encoder, sentences, count_cut=False, **how).rows()

        name = str(told_of(calibrator, "encoder").get("name") or "its encoder")
        base = Side(BEFORE, name, encode([texts[n] for n in rows.tolist()]))
        if other is not None:
            places = [str(self.path), str(self.against)]
            names = [Path(place).resolve().name for place in places]
            if names[0] == names[1] or "gold" in names:
                names = places
            pairs = zip((calibrator, other.calibrator), names, places, strict=True)
            self.sides = [base.under(*one) for one in pairs]
        else:
            self.sides = [base, base.under(calibrator, AFTER, str(self.path))]
        if self.tasks:
            try:
                self.report.scores = score_sides(self.sides, encode, self.data, self.tasks)
            except LACKING as error:
                self.report.absent["scores"] = str(error)
        if other is None and self.corpus is None and saved.get("corpus") == DEMO:
            both = (side.rows for side in self.sides)
            self.report.gains = measure_gains(sample_pairs(), texts, *both)

    def other_model(self, encoder: SentenceTransformer) -> CalibratedSentenceTransformer | None:
        """The encoder with the other calibrator, if one is set beside it."""
        if self.against is None:
            return None
        calibrator = load_calibrator(self.against)
        self.report.provenance["against"] = f"{self.against}: {preset_name(calibrator)}"
        try:
            return attach(encoder, calibrator, portable=False)
        except ModelError as error:
            raise InputError(
                f"{self.against}: {error}; encode the corpus with both (bertflow encode) and "
                "compare the files: bertflow report ONE.npy --against OTHER.npy"
            ) from None

    def corpus_of(self, saved: Mapping[str, Any]) -> tuple[list[str], str]:
        """The sentences that a model is shown on, by default those it was fitted on; their name."""
        if self.corpus is not None:
            return read_corpus(self.corpus, **self.how), str(self.corpus)
        files = saved.get("corpus")
        if files == DEMO:
            texts = sample_texts()
            name = f"the {len(texts):,} everyday sentences that come with bertflow"
            self.report.notes.append(
                f"shown are {name}; bertflow demo fitted it on these and others"
            )
            return texts, name
        remedy = "--corpus FILE names the sentences to look at"
        if not isinstance(files, list) or not files:
            raise MissingDataError(f"no corpus: {remedy}")
        if lacking := [file for file in files if not Path(file).is_file()]:
            raise MissingDataError(f"{lacking[0]}, which it was fitted on, is not there: {remedy}")
        how: dict[str, Any] = {name: saved.get(name) for name in ("column", "format", "limit")}
        return read_corpus(files, **how), ", ".join(files)

    def add(self, section: str, make: Callable[..., Any], *given: Any) -> None:
        """Add a section that is made of what is given or, where that cannot be, say why."""
        try:
            setattr(self.report, section, make(*given))
        except BertflowError as error:
            self.report.absent[section] = str(error)

    def look_at(self, total: int, texts: Sequence[str] | None) -> Array:
        """Numbers of the rows to measure, rising: the first of equal texts, at most 10,000."""
        rows = np.arange(total)
        if texts is not None:
            first: dict[str, int] = {}
            for row, text in enumerate(texts):
                first.setdefault(text, row)
            rows = np.array([*first.values()], dtype=np.int64)
        if len(rows) < total:
            self.report.notes.append(f"{total:,} sentences, {len(rows):,} of them distinct")
        if len(rows) > ROWS:
            told = f"measured on {ROWS:,} of {len(rows):,} rows, drawn at random"
            self.report.notes.append(told)
        rows = sampled(rows, ROWS, 0)
        self.report.measured = len(rows)
        self.report.texts = None if texts is None else [texts[n] for n in rows.tolist()]
        return rows

    def use(self, place: str | Path) -> Calibrator:
        """Load a saved calibrator, and note it, its encoder and its versions in the provenance."""
        self.calibrator = calibrator = load_calibrator(place)
        saved, encoder = calibrator.provenance_, told_of(calibrator, "encoder")
        facts = {"calibrator": f"{place}: {preset_name(calibrator)}", **calibrator.facts()}
        if encoder:
            facts["encoder"] = str(encoder.get("name") or "unnamed")
            facts |= encoder_facts(encoder)
            facts["weights"] = f"SHA-256 {str(encoder.get('weights'))[:16]}"
        if "precision" in saved:
            facts["precision"] = str(saved["precision"])
        if versions := told_of(calibrator, "versions"):
            facts["fitted with"] = ", ".join(f"{name} {one}" for name, one in versions.items())
        self.report.provenance |= facts
        return calibrator

    def finished(self) -> Report:
        """Measure the sides, and say what comes of it."""
        report, rows = self.report, {side.name: side.rows for side in self.sides}
        if rows:
            self.add("cosines", measures.measure_cosines, rows)
            self.add("spectra", measures.measure_spectra, rows)
            self.add("cloud", measures.project, rows)
        if report.cloud is not None:
            self.add("neighbours", _neighbours, rows, report.cloud.rows)
        for name, vectors in rows.items():
            try:
                report.diagnoses[name] = diagnose(vectors)
            except InputError as error:
                report.notes.append(f"{name}: {error}")
        self.add("training", _training, self.calibrator)
        report.sides = {side.name: last_part(side.label) for side in self.sides}
        report.verdict, report.evidence = conclude(
            list(rows),
            report.diagnoses,
            self.headline(),
            lacking=report.absent.get("cosines", ""),
            rows="vectors" if report.texts is None else "sentences",
        )
        missing = [name for name in SECTIONS if getattr(report, name) is None]
        report.absent = {name: report.absent[name] for name in missing if name in report.absent}
        return report

    def headline(self) -> measures.Headline | None:
        """The difference that the verdict is about: on the user's own job, if there is one."""
        report = self.report
        if report.job is not None:
            return report.job.headline()
        return report.scores.headline() if report.scores else _headline_of(report.gains)


def _neighbours(sides: Mapping[str, Array], queries: Array) -> dict[str, Neighbours]:
    return {
        name: nearest_neighbours(queries, unit_rows(vectors), k=NEIGHBOURS)
        for name, vectors in sides.items()
    }


def _headline_of(gains: PairGains | None) -> measures.Headline | None:
    """The gain on the pairs that come with bertflow, which no person has graded."""
    if gains is None or gains.spearman.difference.value is None:
        return None
    what = f"the {gains.pairs:,} graded pairs that come with bertflow"
    one = gains.spearman
    return measures.Headline(what, one.before.value, one.after.value, one.difference)


def _training(calibrator: Calibrator | None) -> measures.TrainingCurve:
    if not isinstance(calibrator, Flow):
        raise InputError("a saved flow would fill it: all else is not trained step by step")
    final = float(calibrator.loss_) if np.isfinite(calibrator.loss_) else None
    return measures.summarize_training(calibrator.loss_curve_, final=final)
