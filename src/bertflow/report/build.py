"""A report's content: what vectors, a model or a run say, measured once for page and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import Diagnosis, diagnose, frequent_words, word_embeddings
from bertflow.analysis.gains import PairGains, measure_gains
from bertflow.calibrators import Calibrator, Flow, load_calibrator
from bertflow.calibrators.readme import last_part, preset_name
from bertflow.calibrators.storage import SUBFOLDER
from bertflow.data import CATALOG, STS_TASKS, read_corpus, read_task, sample_pairs, sample_texts
from bertflow.data.readers import find_files
from bertflow.encoders import SentenceCache, embed, library_versions
from bertflow.encoders.encoder import encoder_of
from bertflow.errors import (
    BertflowError,
    InputError,
    MissingDataError,
    MissingDependencyError,
    ModelError,
    quoted,
)
from bertflow.models import load
from bertflow.paper.declared import published
from bertflow.paper.results import scaled
from bertflow.report import measures
from bertflow.report.reproduced import Run, is_run
from bertflow.report.sides import (
    AFTER,
    BEFORE,
    Chosen,
    Headline,
    Side,
    choose,
    conclude,
    cosines_of,
    edits_of,
    score_sides,
    sides_of_files,
)

NEIGHBOURS = 5
# The corpus of a model of `bertflow demo`, in its provenance.
DEMO = "demo"
MODEL_FILES = ("config.json", f"{SUBFOLDER}/config.json")
# The sections that a report may lack, in order.
SECTIONS = ("cosines", "spectra", "cloud", "neighbours", "scores", "words", "edits", "training")
OF_VECTORS = ("cosines", "spectra", "cloud", "neighbours", "scores", "edits")
# How to get a section that takes an argument.
UNASKED = {
    "scores": "a task that is named would fill it: --task NAME or, for all there, --data DIR",
    "edits": "--task stsb, or --data DIR, would fill it: it is of STS-B dev",
}
# Anything else, such as a damaged file of a task, is an error.
LACKING = (MissingDataError, MissingDependencyError)
OF_MODEL = "the report of a saved model shows it (bertflow fit --encoder)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Report:
    """All that a page shows; a section without data is None, and `absent` says what would fill it.

    Attributes:
        title: What it is about.
        verdict: The conclusion, a sentence.
        evidence: What the verdict rests on, some sentences.
        gains: What the demonstration's model is worth on the pairs that come with bertflow.
        sides: By name, what each side is.
        diagnoses: By side, the measures of its cloud.
        cosines: Cosines of random pairs.
        spectra: Singular values.
        cloud: Two dimensions of each side.
        neighbours: Nearest rows of the rows that the cloud draws.
        texts: Text of each measured row; None where rows have none.
        scores: Scores of tasks.
        words: Norms of words by frequency.
        edits: Similarity against edit distance.
        training: The loss over the steps of the fit.
        provenance: What all of it depends on, by name.
        notes: What must be said beside it.
        absent: By section, what would fill it.
    """

    title: str
    verdict: str
    evidence: str
    sides: Mapping[str, str]
    gains: PairGains | None = None
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    cosines: measures.CosineHistogram | None = None
    spectra: measures.Spectra | None = None
    cloud: measures.Cloud | None = None
    neighbours: measures.NeighbourLists | None = None
    texts: Sequence[str] | None = None
    scores: measures.ScoreTable | None = None
    words: measures.WordNorms | None = None
    edits: measures.EditScatter | None = None
    training: measures.TrainingCurve | None = None
    provenance: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def left_out(self) -> list[tuple[list[str], str]]:
        """Names of absent sections that lack the same, and what would fill them."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.absent.items():
            reasons.setdefault(reason.rstrip("."), []).append(name)
        return [(names, reason) for reason, names in reasons.items()]

    def warnings(self) -> list[str]:
        """The warnings of all diagnoses, each once."""
        return list(dict.fromkeys(w for one in self.diagnoses.values() for w in one.warnings))


def build_report(
    source: str | Path,
    *,
    corpus: str | Path | None = None,
    column: str | None = None,
    format: str | None = None,
    against: str | Path | None = None,
    data: str | Path | None = None,
    tasks: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Put together what there is to say of a run, a model or vectors.

    Args:
        source: A folder of `bertflow reproduce`, whose scores and word norms are shown; a saved
            calibrated model or calibrator; or a .npy file of vectors, one a row. A model encodes
            sentences, unless `bertflow fit` or another command has left their vectors in the cache.
        corpus: Sentences, as `bertflow.data.read_corpus` takes them: the texts of vectors, row by
            row, or the sentences that a model is shown on. None takes those it was fitted on.
        column: Text column of a table.
        format: Format of the corpus, whatever its name ends in.
        against: The other side. Of vectors: a calibrator or calibrated model, which is applied to
            them, or vectors of the same rows. Of a model: another calibrator of the same encoder.
        data: Folder of the tasks; None takes the environment variable BERTFLOW_DATA.
        tasks: STS tasks to score vectors or a model on, as in `bertflow.evaluate`. None takes all
            whose files are in `data`, if that is given.
        progress: Called with the distinct sentences that a model has encoded and their total.

    Returns:
        The report; a section without data is None, and `absent` says what would fill it.

    Raises:
        InputError: A file or folder is none of these, a task is unknown, or the arguments do not
            belong together.
        ModelError: A model, calibrator or table cannot be read.

    Example:
        >>> import numpy as np, tempfile
        >>> file = Path(tempfile.mkdtemp()) / "vectors.npy"
        >>> np.save(file, np.random.default_rng(0).normal(size=(200, 8)) + 3.0)
        >>> build_report(file).verdict.partition(" (")[0]
        'Calibration is likely to help: any two unrelated vectors look 91 % alike'
    """
    path = Path(source)
    if (column is not None or format is not None) and corpus is None:
        raise InputError("a column or format goes with a corpus")
    if unknown := [task for task in tasks if task not in STS_TASKS]:
        raise InputError(
            f"a report has no task {unknown[0]!r}; expected some of {', '.join(STS_TASKS)}"
        )
    draft = _Draft(
        path=path,
        corpus=None if corpus is None else _Corpus([corpus], column, format),
        against=against,
        data=data,
        tasks=tasks or _tasks_in(data),
        progress=progress,
        title=path.resolve().name,
    )
    if path.suffix == ".npy":
        draft.take_vectors()
    elif not path.exists():
        raise InputError(
            f"{path} does not exist; give a folder of bertflow reproduce, a saved model or "
            "calibrator, or a .npy file of vectors"
        )
    elif path.is_dir() and is_run(path):
        if tasks or corpus is not None or against is not None:
            raise InputError(
                f"{path} is a run, whose tables are shown as they are: it goes without corpus, "
                "tasks and another side"
            )
        draft.take_run()
    elif any((path / name).is_file() for name in MODEL_FILES):
        draft.take_model()
    else:
        raise InputError(
            f"{path} is no folder of bertflow reproduce, saved calibrator or .npy file; of a bare "
            "encoder write the vectors first: bertflow encode ENCODER --corpus FILE --output "
            "OUT.npy"
        )
    return draft.finished()


def _tasks_in(data: str | Path | None) -> list[str]:
    """The STS tasks whose files are in a folder."""
    if data is None:
        return []
    if not Path(data).is_dir():
        raise InputError(f"{data} is no folder; give the folder that holds the tasks")
    sets = [CATALOG[task] for task in STS_TASKS]
    return [one.name for one in sets if find_files(one, one.default_split, Path(data))[0]]


@dataclass(frozen=True)
class _Corpus:
    """Sentences in files, as `read_corpus` takes them."""

    files: Sequence[str | Path]
    column: str | None = None
    format: str | None = None
    limit: int | None = None

    def __str__(self) -> str:
        return ", ".join(map(str, self.files))

    def read(self, **how: Any) -> list[str]:
        return read_corpus(
            self.files, column=self.column, format=self.format, limit=self.limit, **how
        )


@dataclass(eq=False, kw_only=True)
class _Draft:
    """A report that is being put together, from the arguments of `build_report`.

    `sections` has attributes of `Report` by name.
    """

    path: Path
    corpus: _Corpus | None
    against: str | Path | None
    data: str | Path | None
    tasks: Sequence[str]
    progress: Callable[[int, int], None] | None
    title: str
    sides: list[Side] = field(default_factory=list)
    texts: Sequence[str] | None = None
    calibrator: Calibrator | None = None
    headline: Headline | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def take_vectors(self) -> None:
        """Compare vectors with others of the same rows, or with what a calibrator makes of them."""
        if self.against is not None and str(self.against).endswith(".npy"):
            self.take_files({BEFORE: self.path, AFTER: self.against})
        else:
            self.take_files({BEFORE: self.path})
            if self.against is not None:
                self.calibrate_by(self.against)
        self.score()
        self.absent["words"] = f"{OF_MODEL}, or of bertflow reproduce table1"

    def take_files(self, files: Mapping[str, str | Path], limit: int | None = None) -> None:
        """Make the rows of .npy files, with their sentences, the sides."""
        texts = None if self.corpus is None else self.corpus.read(blank="refuse")
        self.sides, chosen = sides_of_files(files, texts, str(self.corpus), limit)
        self.look_at(chosen)
        for side in self.sides:
            about = f"{side.label}: {chosen.total:,} of {side.rows.shape[1]} dimensions"
            self.provenance["vectors" if side.name == BEFORE else side.name] = about
        if self.corpus is not None:
            self.provenance["corpus"] = str(self.corpus)

    def take_model(self) -> None:
        """Compare the encoder of a saved model, or the rows of a calibrator, before and after."""
        self.calibrator = load_calibrator(self.path)
        saved = self.calibrator.provenance_
        self.provenance |= _calibrator_facts(self.calibrator, self.path)
        if (self.path / "modules.json").is_file():
            self.encode_sides(saved)
        else:
            self.take_fitted_rows(saved)
            self.absent["words"] = OF_MODEL
        if not self.sides:
            if self.against is not None:
                reason = self.absent["cosines"]
                raise ModelError(f"there is nothing to set {self.against} beside: {reason}")
            return
        if self.against is not None:
            self.compare_calibrators(self.against)
        elif self.texts is not None and self.corpus is None and saved.get("corpus") == DEMO:
            before, after = (side.rows for side in self.sides)
            self.sections["gains"] = measure_gains(sample_pairs(), self.texts, before, after)
        self.score()

    def encode_sides(self, saved: Mapping[str, Any]) -> None:
        """Encode sentences by the encoder and by the model, if there are sentences."""
        model = load(self.path)
        self.add("words", lambda: _words_of(model, self.title))
        corpus = self.corpus or _fitted_corpus(saved)
        if self.corpus is None and saved.get("corpus") == DEMO:
            texts = sample_texts()
            name = f"the {len(texts):,} everyday sentences that come with bertflow"
            self.notes.append(f"shown are {name}; bertflow demo fitted it on these and others")
        elif not corpus.files:
            return self.lack_vectors("no corpus: --corpus FILE names the sentences to look at")
        elif lacking := [file for file in corpus.files if not Path(file).is_file()]:
            told = f"{lacking[0]}, which it was fitted on, is not there"
            return self.lack_vectors(f"{told}: --corpus FILE names the sentences to look at")
        else:
            texts, name = corpus.read(), str(corpus)
        chosen = choose(len(texts), texts)
        how: dict[str, Any] = {
            "cache": SentenceCache(),
            "precision": saved.get("precision", "auto"),
        }

        def side(name: str, label: str, encoder: SentenceTransformer) -> Side:
            def encode(sentences: Sequence[str]) -> Any:
                return embed(
                    encoder, sentences, count_cut=False, progress=self.progress, **how
                ).rows()

            rows = encode(chosen.texts or [])
            return Side(name=name, label=label, rows=rows, vectors_of=encode)

        label = (saved.get("encoder") or {}).get("name") or "its encoder"
        self.sides.append(side(BEFORE, str(label), encoder_of(model)))
        self.sides.append(side(AFTER, str(self.path), model))
        self.look_at(chosen)
        self.provenance["corpus"] = name

    def take_fitted_rows(self, saved: Mapping[str, Any]) -> None:
        """Take the rows that a calibrator was fitted on, or note what to give instead."""
        file = saved.get("vectors")
        if isinstance(file, str) and Path(file).is_file():
            self.take_files({BEFORE: file}, saved.get("limit"))
            assert self.calibrator is not None
            self.calibrate(self.calibrator, str(self.path))
            return
        what = f"{file}, which it was fitted on, is not there" if file else "it holds no vectors"
        remedy = f"bertflow report VECTORS.npy --against {quoted(self.path)} draws its encoder's"
        if self.corpus is not None:
            raise ModelError(
                f"{self.path} is a calibrator without its encoder, and {what}; {remedy}"
            )
        self.lack_vectors(f"{what}: {remedy}")

    def compare_calibrators(self, against: str | Path) -> None:
        """Make the model and another calibrator of its encoder the sides."""
        base, after = self.sides
        names = [Path(place).resolve().name for place in (self.path, against)]
        if names[0] == names[1] or "gold" in names:
            names = [str(self.path), str(against)]
        other = load_calibrator(against)
        encoders = [
            {name: value for name, value in encoder.items() if name != "name"}
            for one in (self.calibrator, other)
            if one is not None and (encoder := one.provenance_.get("encoder"))
        ]
        if len(encoders) == 2 and encoders[0] != encoders[1]:
            raise InputError(
                f"{against} was fitted on another encoder than {self.path}; encode the corpus with "
                "both (bertflow encode) and compare the files: bertflow report ONE.npy --against "
                "OTHER.npy"
            )
        self.provenance["against"] = f"{against}: {preset_name(other)}"
        self.sides = [replace(after, name=names[0]), base.under(other, names[1], str(against))]

    def take_run(self) -> None:
        """Take the scores and word norms of a run."""
        run = Run(self.path)
        self.title = run.folder.name
        self.provenance |= run.provenance()

        def scores() -> measures.ScoreTable:
            table, self.headline = run.scores()
            return table

        self.add("words", run.words)
        self.add("scores", scores)
        self.lack_vectors("the report of a saved model or of vectors shows it")
        self.absent["edits"] = "bertflow reproduce figure2 draws it"

    def add(
        self,
        section: str,
        make: Callable[[], Any],
        reasons: tuple[type[BertflowError], ...] = (BertflowError,),
    ) -> None:
        """Add a section or, where it cannot be made for one of the reasons, say why."""
        try:
            self.sections[section] = make()
        except reasons as error:
            self.absent[section] = str(error)

    def lack_vectors(self, reason: str) -> None:
        """Say of all sections about vectors what would fill them."""
        self.absent = dict.fromkeys(OF_VECTORS, reason) | self.absent

    def look_at(self, chosen: Chosen) -> None:
        """Note which rows the sides have."""
        self.texts = chosen.texts
        self.notes += chosen.notes

    def calibrate(self, calibrator: Calibrator, label: str) -> None:
        """Add the first side under a calibrator as the side after."""
        self.calibrator = calibrator
        self.sides.append(self.sides[0].under(calibrator, AFTER, label))

    def calibrate_by(self, place: str | Path) -> None:
        """The same with a saved calibrator."""
        calibrator = load_calibrator(place)
        self.calibrate(calibrator, str(place))
        self.provenance |= _calibrator_facts(calibrator, place)

    def score(self) -> None:
        """Score the sides on those tasks whose sentences have vectors, and relate them to edits."""

        def scores() -> measures.ScoreTable:
            table, self.headline = score_sides(self.sides, self.data, self.tasks)
            return table

        def edits() -> measures.EditScatter:
            pairs = read_task("stsb", self.data, "dev")
            names = [side.name for side in self.sides]
            return edits_of(pairs, dict(zip(names, cosines_of(pairs, self.sides), strict=True)))

        self.absent |= UNASKED
        if self.tasks:
            self.add("scores", scores, LACKING)
        if "stsb" in self.tasks:
            self.add("edits", edits, LACKING)

    def finished(self) -> Report:
        """Measure the sides, and say what comes of it."""
        rows = {side.name: side.rows for side in self.sides}
        diagnoses: dict[str, Diagnosis] = {}
        if rows:
            self.add("cosines", lambda: measures.measure_cosines(rows))
            self.add("spectra", lambda: measures.measure_spectra(rows))
            self.add("cloud", lambda: measures.project(rows))
        if "cloud" in self.sections:
            drawn = self.sections["cloud"].rows
            self.add("neighbours", lambda: measures.find_neighbours(rows, drawn, k=NEIGHBOURS))
        for name, vectors in rows.items():
            try:
                diagnoses[name] = diagnose(vectors)
            except InputError as error:
                self.notes.append(f"{name}: {error}")
        self.add("training", lambda: _training(self.calibrator))
        verdict, evidence = conclude(
            list(rows) or [BEFORE, AFTER],
            diagnoses,
            self.headline or _headline_of(self.sections.get("gains")),
            scored="scores" in self.sections,
            lacking=self.absent.get("cosines", ""),
            rows="vectors" if self.texts is None else "sentences",
        )
        absent = [name for name in SECTIONS if name not in self.sections and name in self.absent]
        return Report(
            title=self.title,
            verdict=verdict,
            evidence=evidence,
            sides={side.name: last_part(side.label) for side in self.sides},
            diagnoses=diagnoses,
            texts=self.texts,
            provenance=list(
                ({"bertflow": library_versions()["bertflow"]} | self.provenance).items()
            ),
            notes=self.notes,
            absent={name: self.absent[name] for name in absent},
            **self.sections,
        )


def _words_of(model: SentenceTransformer, label: str) -> measures.WordNorms:
    numbers = published("table1")
    return measures.measure_word_norms(
        word_embeddings(model),
        frequent_words(getattr(model[0], "tokenizer", None)),
        encoder=label,
        published=[numbers.value("norm", column) for column in numbers.columns],
    )


def _fitted_corpus(saved: Mapping[str, Any]) -> _Corpus:
    """The files that a model was fitted on, as its provenance names them."""
    files = saved.get("corpus")
    how = (saved.get(name) for name in ("column", "format", "limit"))
    return _Corpus(files if isinstance(files, list) else [], *how)


def _calibrator_facts(calibrator: Calibrator, where: str | Path) -> dict[str, str]:
    """The calibrator, its encoder and its corpus, by name."""
    saved = calibrator.provenance_
    facts = {"calibrator": f"{where}: {preset_name(calibrator)}", **calibrator.facts()}
    encoder = saved.get("encoder")
    if isinstance(encoder, Mapping):
        told = [
            f"{name} {encoder[name]}"
            for name in ("pooling", "layers", "max_length", "dtype", "width")
            if encoder.get(name) is not None
        ]
        facts["encoder"] = f"{encoder.get('name') or 'unnamed'}: {', '.join(told)}"
        facts["weights"] = f"SHA-256 {str(encoder.get('weights'))[:16]}"
    if "precision" in saved:
        facts["precision"] = str(saved["precision"])
    if isinstance(versions := saved.get("versions"), Mapping):
        facts["fitted with"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    return facts


def _headline_of(gains: PairGains | None) -> Headline | None:
    """The gain on the pairs that come with bertflow, which no person has graded."""
    if gains is None:
        return None
    before, after = gains.spearman.before.value, gains.spearman.after.value
    if before is None or after is None:
        return None
    return Headline(
        what=f"the {gains.pairs:,} graded pairs that come with bertflow",
        before=100 * before,
        after=100 * after,
        difference=scaled(gains.spearman.difference),
        grades="their grades",
    )


def _training(calibrator: Calibrator | None) -> measures.TrainingCurve:
    if calibrator is None:
        raise InputError("a saved flow would fill it")
    if not isinstance(calibrator, Flow):
        name = type(calibrator).__name__
        raise InputError(f"{name} is not trained step by step; a flow would fill it")
    final = float(calibrator.loss_) if np.isfinite(calibrator.loss_) else None
    return measures.summarize_training(calibrator.loss_curve_, final=final)
