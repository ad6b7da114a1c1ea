"""A report's content: what a run, a model or vectors say, measured once for page and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import Diagnosis, diagnose, frequent_words, word_embeddings
from bertflow.analysis.gains import PairGains, measure_gains
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, Flow, load_calibrator
from bertflow.calibrators.readme import last_part, preset_name
from bertflow.calibrators.writing import SUBFOLDER
from bertflow.data import STS_TASKS, read_corpus, sample_pairs, sample_texts
from bertflow.encoders import Precision, SentenceCache, embed, library_versions
from bertflow.encoders.encoder import encoder_of
from bertflow.errors import BertflowError, InputError, ModelError, quoted
from bertflow.models import load
from bertflow.paper.declared import published
from bertflow.report.measures import (
    Cloud,
    CosineHistogram,
    EditScatter,
    NeighbourLists,
    ScoreTable,
    Spectra,
    TrainingCurve,
    WordNorms,
    find_neighbours,
    measure_cosines,
    measure_spectra,
    measure_word_norms,
    project,
    summarize_training,
)
from bertflow.report.reproduced import Run, is_run
from bertflow.report.sides import Chosen, Side, VectorsOf, choose, read_matrix, side_of_file
from bertflow.report.task_scores import edits_of_sides, headline_of, score_sides
from bertflow.report.verdicts import AFTER, BEFORE, SENTENCES, VECTORS, Headline, conclude

T = TypeVar("T")

NEIGHBOURS = 5
# What `bertflow demo` says that a model was fitted on.
DEMO = "demo"
MODEL_FILES = ("config.json", f"{SUBFOLDER}/config.json")
# The sections that a report may lack, in order.
SECTIONS = ("cosines", "spectra", "cloud", "neighbours", "scores", "words", "edits", "training")


@dataclass(frozen=True, eq=False, kw_only=True)
class Report:
    """All that a page shows; a section without data is None, and `absent` says what would fill it.

    Attributes:
        title: What it is about.
        verdict: The conclusion, a sentence.
        evidence: What it rests on, a sentence or two.
        gains: Of the demonstration's model, what it is worth on the pairs that come along.
        sides: By name, what each side is.
        diagnoses: By side, the measures of its cloud.
        cosines: Cosines of random pairs.
        spectra: Singular values.
        cloud: Two dimensions of each side.
        neighbours: Nearest rows of the rows that the cloud draws.
        texts: Of each row that is looked at; None where rows have none.
        scores: Scores of tasks beside the published ones.
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
    cosines: CosineHistogram | None = None
    spectra: Spectra | None = None
    cloud: Cloud | None = None
    neighbours: NeighbourLists | None = None
    texts: Sequence[str] | None = None
    scores: ScoreTable | None = None
    words: WordNorms | None = None
    edits: EditScatter | None = None
    training: TrainingCurve | None = None
    provenance: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def left_out(self) -> list[tuple[list[str], str]]:
        """What would fill sections that are absent; those that lack the same are told together.

        Returns:
            The sections' names and the sentence, without its full stop.
        """
        reasons: dict[str, list[str]] = {}
        for name, reason in self.absent.items():
            reasons.setdefault(reason.rstrip("."), []).append(name)
        return [(names, reason) for reason, names in reasons.items()]


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
        """The sentences."""
        return read_corpus(
            self.files, column=self.column, format=self.format, limit=self.limit, **how
        )

    def beside(self, vectors: Array, file: str | Path) -> list[str]:
        """The sentences of vectors, row by row.

        Raises:
            InputError: There are more or fewer of them than rows.
        """
        texts = self.read(blank="refuse")
        if len(texts) != len(vectors):
            raise InputError(
                f"{self} holds {len(texts):,} sentences, but {file} {len(vectors):,} rows; "
                "row i must be the vector of sentence i"
            )
        return texts


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What a report was asked for, as in `build_report`."""

    path: Path
    corpus: _Corpus | None
    against: str | Path | None
    data: str | Path | None
    tasks: Sequence[str]
    progress: Callable[[int, int], None] | None

    @property
    def against_vectors(self) -> bool:
        """Whether it is set beside a file of vectors."""
        return self.against is not None and str(self.against).endswith(".npy")


@dataclass(eq=False)
class _Draft:
    """A report that is being put together; `sections` has attributes of `Report` by name."""

    title: str
    sides: list[Side] = field(default_factory=list)
    texts: Sequence[str] | None = None
    calibrator: Calibrator | None = None
    headline: Headline | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    provenance: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def put(self, section: str, found: object) -> None:
        """Add a section, or a note of what would fill it."""
        if isinstance(found, str):
            self.absent[section] = found
        else:
            self.sections[section] = found

    def lack_vectors(self, reason: str) -> None:
        """Say of all sections that need vectors what would fill them."""
        for section in ("cosines", "spectra", "cloud", "neighbours", "scores", "edits"):
            if section not in self.sections:
                self.absent.setdefault(section, reason)

    def look_at(self, chosen: Chosen) -> None:
        """Note which rows the sides have."""
        self.texts = chosen.texts
        self.notes += chosen.notes

    def take_file(
        self, file: str | Path, corpus: _Corpus | None, *, limit: int | None = None
    ) -> tuple[int, list[str] | None]:
        """Make the rows of a .npy file, with their sentences, the side before.

        Returns:
            How many rows the file has, and the sentence of each.
        """
        vectors = read_matrix(file)[:limit]
        texts = None if corpus is None else corpus.beside(vectors, file)
        chosen = choose(len(vectors), texts)
        self.sides = [side_of_file(BEFORE, file, vectors, chosen, texts)]
        self.look_at(chosen)
        shape = f"{len(vectors):,} of {vectors.shape[1]} dimensions, {vectors.dtype}"
        self.provenance.append(("vectors", f"{file}: {shape}"))
        if corpus is not None:
            self.provenance.append(("corpus", str(corpus)))
        return len(vectors), texts

    def apply(self, place: str | Path) -> None:
        """Add the first side under a saved calibrator as the side after."""
        self.calibrator = load_calibrator(place)
        self.sides.append(self.sides[0].under(self.calibrator, AFTER, str(place)))
        self.provenance += _calibrator_facts(self.calibrator, str(place))


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
        source: A folder of `bertflow reproduce`; a saved calibrated model or calibrator; or a .npy
            file of vectors, one a row. A run's flow is fitted again from its record, on the run's
            vectors, and held against the record's cosines. A model encodes sentences, unless
            `bertflow fit` or another command has left their vectors in the cache.
        corpus: Sentences, as `bertflow.data.read_corpus` takes them: of vectors their texts, row by
            row; of a model or run those to look at. None takes those it was fitted on.
        column: Text column of a table.
        format: As there: what the corpus is, whatever its name ends in.
        against: What to set beside it. Of vectors: a calibrator or calibrated model, which is
            applied to them, or vectors of the same rows. Of a model: another calibrator of the same
            encoder, or vectors of the corpus. Of a run: a calibrator, in place of its flow.
        data: Folder of the tasks. Vectors and models are scored on a task only if it is named, here
            or by `tasks`; a run has its scores. The model hub is not asked.
        tasks: STS tasks to score on; none takes all whose files are in `data`. Where `data` is None
            they are in the environment variable BERTFLOW_DATA.
        progress: Called with the distinct sentences that a model has encoded and their total.

    Returns:
        The report; a section without data is None, and `absent` says what would fill it.

    Raises:
        InputError: A file or folder is none of these, a task is unknown, or what is given does not
            belong together.
        ModelError: A model, calibrator or record cannot be read, or a run has no vector of the
            sentences that were asked for.

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
    request = _Request(
        path=path,
        corpus=None if corpus is None else _Corpus([corpus], column, format),
        against=against,
        data=data,
        tasks=tasks or (STS_TASKS if data is not None else ()),
        progress=progress,
    )
    if str(source).endswith(".npy"):
        return _finished(_of_vectors(request))
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give a folder of bertflow reproduce, a saved model or "
            "calibrator, or a .npy file of vectors"
        )
    if path.is_dir() and is_run(path):
        if tasks:
            raise InputError(f"{path} is a run, which has its scores; leave out the tasks")
        return _finished(_of_run(request))
    if path.is_dir() and any((path / name).is_file() for name in MODEL_FILES):
        return _finished(_of_model(request))
    raise InputError(
        f"{path} is no folder of bertflow reproduce, saved calibrator or .npy file; of a bare "
        "encoder write the vectors first: bertflow encode ENCODER --corpus FILE --output OUT.npy"
    )


# Of vectors.


def _of_vectors(request: _Request) -> _Draft:
    path, corpus, against = request.path, request.corpus, request.against
    draft = _Draft(title=path.name)
    rows, texts = draft.take_file(path, corpus)
    if against is not None and request.against_vectors:
        other = read_matrix(against)
        if len(other) != rows:
            raise InputError(
                f"{against} holds {len(other):,} rows, but {path} {rows:,}; row i of both must be "
                "of the same sentence"
            )
        draft.sides.append(side_of_file(AFTER, against, other, choose(rows, texts), texts))
        draft.provenance.append(("after", f"{against}: {other.shape[1]} dimensions"))
    elif against is not None:
        draft.apply(against)
    _score(draft, [""] * len(draft.sides), request)
    draft.absent["words"] = (
        "the report of a saved model shows it (bertflow fit --encoder), or of bertflow reproduce "
        "table1"
    )
    return draft


# Of a model.


def _of_model(request: _Request) -> _Draft:
    path, against = request.path, request.against
    calibrator = load_calibrator(path)
    draft = _Draft(title=path.resolve().name, calibrator=calibrator)
    draft.provenance += _calibrator_facts(calibrator, str(path))
    if (path / "modules.json").is_file():
        _encode_sides(draft, request, calibrator.provenance_)
    else:
        _take_fitted_rows(draft, request, calibrator)
        draft.absent["words"] = "the report of a saved model shows it (bertflow fit --encoder)"
    if not draft.sides:
        if against is not None:
            raise ModelError(f"there is nothing to set {against} beside: {draft.absent['cosines']}")
        return draft
    kinds = ["encoder", "flow" if isinstance(calibrator, Flow) else ""]
    if against is not None:
        draft.sides, kinds = _two_models(draft, request), ["", ""]
    elif request.corpus is None and calibrator.provenance_.get("corpus") == DEMO:
        if draft.texts is not None:
            before, after = draft.sides
            gains = measure_gains(sample_pairs(), draft.texts, before.rows, after.rows)
            draft.put("gains", gains)
    _score(draft, kinds, request)
    return draft


def _encode_sides(draft: _Draft, request: _Request, saved: Mapping[str, Any]) -> None:
    """The vectors of the encoder and of the model, or a note that there is no sentence."""
    model = load(request.path)
    draft.put("words", _words_of(model, draft.title))
    corpus = request.corpus or _fitted_corpus(saved)
    if request.corpus is None and saved.get("corpus") == DEMO:
        texts = sample_texts()
        name = f"the {len(texts):,} everyday sentences that come with bertflow"
        draft.notes.append(f"shown are {name}; bertflow demo fitted it on these and others")
    else:
        lacking = [file for file in corpus.files if not Path(file).is_file()]
        if not corpus.files or lacking:
            told = f"{lacking[0]}, which it was fitted on, is not there" if lacking else "no corpus"
            draft.lack_vectors(f"{told}: --corpus FILE names the sentences to look at")
            return
        texts, name = corpus.read(), str(corpus)
    chosen = choose(len(texts), texts)
    assert chosen.texts is not None
    cache = SentenceCache()
    precision: Any = saved.get("precision")
    if precision not in get_args(Precision):
        precision = "auto"

    def vectors_of(encoder: SentenceTransformer) -> VectorsOf:
        return lambda sentences: embed(
            encoder,
            sentences,
            count_cut=False,
            cache=cache,
            precision=precision,
            progress=request.progress,
        ).rows()

    label = (saved.get("encoder") or {}).get("name") or "its encoder"
    for side, encoder, what in (
        (BEFORE, encoder_of(model), str(label)),
        (AFTER, model, str(request.path)),
    ):
        give = vectors_of(encoder)
        rows = give(chosen.texts)
        assert rows is not None
        draft.sides.append(Side(name=side, label=what, rows=rows, vectors_of=give))
    draft.look_at(chosen)
    draft.provenance.append(("corpus", name))


def _take_fitted_rows(draft: _Draft, request: _Request, calibrator: Calibrator) -> None:
    """The rows that a calibrator was fitted on, or a note of what to give instead."""
    path, saved = request.path, calibrator.provenance_
    file = saved.get("vectors")
    if not isinstance(file, str) or not Path(file).is_file():
        what = "a calibrator holds no vectors"
        if file:
            what = f"{file}, which it was fitted on, is not there"
        remedy = (
            f"bertflow report VECTORS.npy --against {quoted(path)} draws vectors of its encoder"
        )
        if request.corpus is not None:
            raise ModelError(f"{path} is a calibrator without its encoder, and {what}; {remedy}")
        draft.lack_vectors(f"{what}: {remedy}")
        return
    draft.take_file(file, request.corpus, limit=saved.get("limit"))
    draft.sides.append(draft.sides[0].under(calibrator, AFTER, str(path)))


def _two_models(draft: _Draft, request: _Request) -> list[Side]:
    """Two calibrators of one encoder side by side, or a model and vectors of the same corpus."""
    path, against = request.path, request.against
    assert against is not None
    base, after = draft.sides
    names = [Path(place).resolve().name for place in (path, against)]
    if names[0] == names[1] or "gold" in names:
        names = [str(path), str(against)]
    first = Side(name=names[0], label=after.label, rows=after.rows, vectors_of=after.vectors_of)
    if request.against_vectors:
        other = read_matrix(against)
        if len(other) != len(base.rows):
            raise InputError(
                f"{against} holds {len(other):,} rows, but {len(base.rows):,} distinct sentences "
                "are looked at; row i must be the vector of the i-th of them"
            )
        return [
            first,
            side_of_file(names[1], against, other, choose(len(other), None), draft.texts),
        ]
    calibrator = load_calibrator(against)
    encoders = [
        {name: value for name, value in encoder.items() if name != "name"}
        for one in (draft.calibrator, calibrator)
        if one is not None and (encoder := one.provenance_.get("encoder"))
    ]
    if len(encoders) == 2 and encoders[0] != encoders[1]:
        raise InputError(
            f"{against} was fitted on another encoder than {path}; encode the corpus with both "
            "(bertflow encode) and compare the files: bertflow report ONE.npy --against OTHER.npy"
        )
    draft.provenance += _calibrator_facts(calibrator, str(against))
    return [first, base.under(calibrator, names[1], str(against))]


def _words_of(model: SentenceTransformer, label: str) -> WordNorms | str:
    """Norms of the model's word embeddings, or what would fill that section."""
    numbers = published("table1")
    try:
        found = frequent_words(getattr(model[0], "tokenizer", None))
        table = word_embeddings(model)
    except BertflowError as error:
        return str(error)
    printed = [numbers.value("norm", column) for column in numbers.columns]
    return measure_word_norms(table, found, encoder=label, published=printed)


def _fitted_corpus(saved: Mapping[str, Any]) -> _Corpus:
    """The files that a model was fitted on, as its provenance names them."""
    files = saved.get("corpus")
    return _Corpus(
        files if isinstance(files, list) else [],
        saved.get("column"),
        saved.get("format"),
        saved.get("limit"),
    )


# Of a run.


def _of_run(request: _Request) -> _Draft:
    corpus, against = request.corpus, request.against
    if request.against_vectors:
        raise InputError(f"a run goes with a calibrator or calibrated model, got {against}")
    run = Run(request.path, request.data)
    draft = _Draft(title=run.folder.name)
    draft.provenance += run.provenance()
    draft.put("words", run.words())
    draft.put("edits", run.edits())
    scores, draft.headline = run.scores()
    draft.put("scores", scores)
    if len(run.settings["encoders"]) > 1:
        draft.notes.append(f"clouds, words and edit distance are those of {run.encoder}")
    try:
        texts = run.corpus() if corpus is None else corpus.read()
        vectors = run.vectors_of(texts)
    except ModelError as error:
        if corpus is not None or against is not None:
            raise
        draft.lack_vectors(str(error))
        return draft
    chosen = choose(len(texts), texts)
    draft.sides = [Side(name=BEFORE, label=run.before_label, rows=vectors[chosen.rows])]
    if against is not None:
        draft.apply(against)
    else:
        draft.calibrator, notes = run.fit_again()
        draft.sides.append(draft.sides[0].under(draft.calibrator, AFTER, run.after_label))
        draft.notes += notes
    draft.provenance.append(("corpus", str(corpus or f"text of {run.fitted_on}")))
    draft.look_at(chosen)
    return draft


# What all have in common.


def _score(draft: _Draft, kinds: Sequence[str], request: _Request) -> None:
    """Score the sides on those tasks whose sentences have vectors, and set them beside edits."""
    edits: object = "--task stsb, or --data DIR, would fill it: it is of STS-B dev"
    scores: object = (
        "a task that is named would fill it: --task NAME or, for all that are there, --data DIR"
    )
    if "stsb" in request.tasks:
        edits = edits_of_sides(draft.sides, request.data)
    if request.tasks:
        scores, draft.headline = score_sides(draft.sides, kinds, request.data, request.tasks)
    draft.put("edits", edits)
    draft.put("scores", scores)


def _calibrator_facts(calibrator: Calibrator, where: str) -> list[tuple[str, str]]:
    """What a calibrator is and what it was fitted on."""
    saved: Mapping[str, Any] = getattr(calibrator, "provenance_", {})
    facts = [("calibrator", f"{where}: {preset_name(calibrator)}")]
    if "sentences" in saved:
        told = f"{_count(saved['sentences'])} sentences, {_count(saved.get('distinct'))} distinct"
        facts.append(("fitted on", told))
    elif "rows" in saved:
        facts.append(("fitted on", f"{_count(saved['rows'])} vectors"))
    encoder = saved.get("encoder")
    if isinstance(encoder, Mapping):
        told = ", ".join(
            f"{name} {encoder[name]}"
            for name in ("pooling", "layers", "max_length", "dtype", "width")
            if encoder.get(name) is not None
        )
        facts.append(("encoder", f"{encoder.get('name') or 'unnamed'}: {told}"))
        facts.append(("weights", f"SHA-256 {str(encoder.get('weights'))[:16]}"))
    if "precision" in saved:
        facts.append(("precision", str(saved["precision"])))
    versions = saved.get("versions")
    if isinstance(versions, Mapping):
        facts.append(("fitted with", json.dumps(dict(versions)).strip("{}").replace('"', "")))
    return facts


def _count(value: Any) -> str:
    """A count as a stranger's file has it."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _finished(draft: _Draft) -> Report:
    """Measure the sides, and say what comes of it."""
    rows = {side.name: side.rows for side in draft.sides}
    diagnoses: dict[str, Diagnosis] = {}
    if rows:
        _measure(draft, rows)
        for side, vectors in rows.items():
            diagnosis = _or_reason(diagnose, vectors)
            if isinstance(diagnosis, str):
                draft.notes.append(f"{side}: {diagnosis}")
            else:
                diagnoses[side] = diagnosis
    draft.put("training", _training(draft.calibrator))
    verdict, evidence = conclude(
        list(rows) or [BEFORE, AFTER],
        diagnoses,
        draft.headline or headline_of(draft.sections.get("gains")),
        scored="scores" in draft.sections,
        lacking=draft.absent.get("cosines", ""),
        rows=VECTORS if draft.texts is None else SENTENCES,
    )
    if all(name != "bertflow" for name, _ in draft.provenance):
        draft.provenance.append(("bertflow", library_versions()["bertflow"]))
    return Report(
        title=draft.title,
        verdict=verdict,
        evidence=evidence,
        sides={side.name: last_part(side.label) for side in draft.sides},
        diagnoses=diagnoses,
        texts=draft.texts,
        provenance=draft.provenance,
        notes=draft.notes,
        absent={name: draft.absent[name] for name in SECTIONS if name in draft.absent},
        **draft.sections,
    )


def _measure(draft: _Draft, rows: Mapping[str, Array]) -> None:
    draft.put("cosines", _or_reason(measure_cosines, rows))
    draft.put("spectra", _or_reason(measure_spectra, rows))
    draft.put("cloud", _or_reason(project, rows))
    neighbours: object = f"more than {NEIGHBOURS} rows would fill it"
    cloud = draft.sections.get("cloud")
    if cloud is not None and len(draft.sides[0].rows) > NEIGHBOURS:
        neighbours = find_neighbours(rows, cloud.rows, k=NEIGHBOURS)
    draft.put("neighbours", neighbours)


def _or_reason(measure: Callable[[Any], T], rows: Any) -> T | str:
    try:
        return measure(rows)
    except InputError as error:
        return str(error)


def _training(calibrator: Calibrator | None) -> TrainingCurve | str:
    if calibrator is None:
        return "a saved flow would fill it"
    if not isinstance(calibrator, Flow):
        return f"{type(calibrator).__name__} is not trained step by step; a flow would fill it"
    if len(calibrator.loss_curve_) == 0:
        return "the flow was fitted without a step"
    final = float(calibrator.loss_)
    return summarize_training(calibrator.loss_curve_, final=final if np.isfinite(final) else None)
