"""A report's content: what a run, a model or vectors say, measured once for page and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import Diagnosis, diagnose, frequent_words, word_embeddings
from bertflow.analysis.gains import PairGains, measure_gains
from bertflow.calibrators import Calibrator, Flow, load_calibrator
from bertflow.calibrators.base import Array
from bertflow.calibrators.card import last_part
from bertflow.calibrators.presets import preset_name
from bertflow.calibrators.storage import SUBFOLDER
from bertflow.data import STS_TASKS, read_corpus, sample_pairs, sample_texts
from bertflow.encoders import library_versions
from bertflow.errors import BertflowError, InputError, ModelError, quoted
from bertflow.models import load
from bertflow.paper.published import published
from bertflow.report.figures import (
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
from bertflow.report.runs import SAME, Run, is_run, take_from
from bertflow.report.scores import LACKING, Headline, edits_of_sides, headline_of, score_sides
from bertflow.report.sides import (
    Chosen,
    Side,
    cached_vectors,
    choose,
    read_matrix,
    rows_of_all,
    side_of_file,
)
from bertflow.report.verdicts import AFTER, BEFORE, SENTENCES, VECTORS, conclude

T = TypeVar("T")

NEIGHBOURS = 5


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
    """Sentences in a file, as `read_corpus` takes them."""

    source: str | Path
    column: str | None
    format: str | None

    def __str__(self) -> str:
        return str(self.source)

    def read(self, **how: Any) -> list[str]:
        """The sentences."""
        return read_corpus([self.source], column=self.column, format=self.format, **how)

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


@dataclass(eq=False)
class _Draft:
    """A report that is being put together."""

    title: str
    sides: list[Side] = field(default_factory=list)
    texts: Sequence[str] | None = None
    calibrator: Calibrator | None = None
    words: WordNorms | None = None
    edits: EditScatter | None = None
    scores: ScoreTable | None = None
    headline: Headline | None = None
    gains: PairGains | None = None
    provenance: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def put(self, section: str, found: T | str) -> T | None:
        """What a section has; None, and a note of what would fill it, where it has a reason."""
        if isinstance(found, str):
            self.absent[section] = found
            return None
        return found


def build_report(
    source: str | Path,
    *,
    corpus: str | Path | None = None,
    column: str | None = None,
    format: str | None = None,
    against: str | Path | None = None,
    data: str | Path | None = None,
    tasks: Sequence[str] = (),
) -> Report:
    """Put together what records say of a run, a model or vectors; no sentence is encoded.

    Args:
        source: A folder of `bertflow reproduce`; a saved calibrated model or calibrator; or a .npy
            file of vectors, one a row. A run's flow is fitted again from its record, on the run's
            vectors, and held against the record's cosines. A model's vectors are those that
            `bertflow fit` and the other commands have left in the cache.
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

    Returns:
        The report; a section without data is None, and `absent` says what would fill it.

    Raises:
        InputError: A file or folder is none of these, a task is unknown, or what is given does not
            belong together.
        ModelError: A model, calibrator or record cannot be read, or sentences that were asked for
            have no vector: the message is the command that makes them.

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
    told = None if corpus is None else _Corpus(corpus, column, format)
    if unknown := [task for task in tasks if task not in STS_TASKS]:
        raise InputError(
            f"a report has no task {unknown[0]!r}; expected some of {', '.join(STS_TASKS)}"
        )
    named = tasks or (STS_TASKS if data is not None else ())
    if str(source).endswith(".npy"):
        return _finished(_of_vectors(path, told, against, data, named))
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give a folder of bertflow reproduce, a saved model or "
            "calibrator, or a .npy file of vectors"
        )
    if path.is_dir() and is_run(path):
        if tasks:
            raise InputError(f"{path} is a run, which has its scores; leave out the tasks")
        return _finished(_of_run(path, told, against, data))
    if path.is_dir() and any((path / name).is_file() for name in _MARKS):
        with ExitStack() as opened:
            return _finished(_of_model(path, told, against, data, named, opened))
    raise InputError(
        f"{path} is no folder of bertflow reproduce, saved calibrator or .npy file; of a bare "
        "encoder write the vectors first: bertflow encode ENCODER --corpus FILE --output OUT.npy"
    )


# What `bertflow demo` says that a model was fitted on.
DEMO = "demo"
_MARKS = ("config.json", f"{SUBFOLDER}/config.json")


def _of_vectors(
    path: Path,
    corpus: _Corpus | None,
    against: str | Path | None,
    data: str | Path | None,
    tasks: Sequence[str],
) -> _Draft:
    vectors = read_matrix(path)
    texts = None
    if corpus is not None:
        texts = corpus.beside(vectors, path)
    chosen = choose(len(vectors), texts)
    before = side_of_file(BEFORE, path, vectors, chosen, texts)
    draft = _Draft(title=path.name, sides=[before], texts=chosen.texts)
    draft.provenance += [
        ("vectors", f"{path}: {len(vectors):,} of {vectors.shape[1]} dimensions, {vectors.dtype}"),
        *([] if corpus is None else [("corpus", str(corpus))]),
    ]
    kinds = [""]
    if against is not None and str(against).endswith(".npy"):
        other = read_matrix(against)
        if len(other) != len(vectors):
            raise InputError(
                f"{against} holds {len(other):,} rows, but {path} {len(vectors):,}; row i of both "
                "must be of the same sentence"
            )
        draft.sides.append(side_of_file(AFTER, against, other, chosen, texts))
        draft.provenance.append(("after", f"{against}: {other.shape[1]} dimensions"))
        kinds.append("")
    elif against is not None:
        draft.calibrator = load_calibrator(against)
        draft.sides.append(before.under(draft.calibrator, AFTER, str(against)))
        draft.provenance += _calibrator_facts(draft.calibrator, str(against))
        kinds.append("")
    _tell_chosen(draft, chosen)
    _score(draft, kinds, data, tasks)
    draft.absent["words"] = (
        "the report of a saved model shows it (bertflow fit --encoder), or of bertflow reproduce "
        "table1"
    )
    return draft


def _of_model(
    path: Path,
    corpus: _Corpus | None,
    against: str | Path | None,
    data: str | Path | None,
    tasks: Sequence[str],
    opened: ExitStack,
) -> _Draft:
    calibrator = load_calibrator(path)
    draft = _Draft(title=path.resolve().name, calibrator=calibrator)
    draft.provenance += _calibrator_facts(calibrator, str(path))
    saved: Mapping[str, Any] = calibrator.provenance_
    if (path / "modules.json").is_file():
        model = load(path, device="cpu")
        base = _of_cache(draft, model, path, saved, corpus, opened)
        draft.words = draft.put("words", _words_of(model, path.resolve().name))
    else:
        base = _of_fitted_rows(draft, path, saved, corpus)
        draft.absent["words"] = "the report of a saved model shows it (bertflow fit --encoder)"
    if base is None:
        if against is not None:
            raise ModelError(f"there is nothing to set {against} beside: {draft.absent['cosines']}")
        return draft
    kinds = ["encoder", "flow" if isinstance(calibrator, Flow) else ""]
    after = base.under(calibrator, AFTER, str(path))
    draft.sides = [base, after]
    if against is not None:
        draft.sides, kinds = _two_models(draft, path, base, after, against), ["", ""]
    elif corpus is None and saved.get("corpus") == DEMO and draft.texts is not None:
        draft.gains = measure_gains(sample_pairs(), draft.texts, base.rows, after.rows)
    _score(
        draft,
        kinds,
        data,
        tasks,
        lambda task: f"bertflow evaluate {quoted(path)} --task {task} keeps them",
    )
    return draft


def _of_cache(
    draft: _Draft,
    model: SentenceTransformer,
    path: Path,
    saved: Mapping[str, Any],
    corpus: _Corpus | None,
    opened: ExitStack,
) -> Side | None:
    """The encoder's vectors of the corpus, or a note of what puts them there."""
    if corpus is None and saved.get("corpus") == DEMO:
        texts: Sequence[str] = sample_texts()
        named = f"the {len(texts):,} everyday sentences that come with bertflow"
        shown = "bertflow demo, as it was called but without --no-cache,"
        draft.notes.append(f"shown are {named}; bertflow demo fitted it on these and others")
    else:
        files, column, limit = _fitted_corpus(saved)
        kind = saved.get("format")
        if corpus is not None:
            files, column, kind, limit = [corpus.source], corpus.column, corpus.format, None
        lacking = [file for file in files if not Path(file).is_file()]
        if not files or lacking:
            told = f"{lacking[0]}, which it was fitted on, is not there" if lacking else "no corpus"
            _nothing(draft, f"{told}: --corpus FILE names the sentences to look at")
            return None
        texts = read_corpus(files, column=column, limit=limit, format=kind)
        named = ", ".join(map(str, files))
        shown = f"bertflow encode {quoted(path)} --corpus {quoted(files[0])} --output OUT.npy"
        if column is not None:
            shown += f" --column {quoted(column)}"
        if kind is not None:
            shown += f" --format {kind}"
    chosen = choose(len(texts), texts)
    assert chosen.texts is not None
    try:
        take, precision = opened.enter_context(cached_vectors(model, path, chosen.texts))
        rows = rows_of_all(take, chosen.texts, shown)
    except ModelError as error:
        if corpus is not None:
            raise
        _nothing(draft, str(error))
        return None
    draft.texts = chosen.texts
    draft.provenance += [
        ("corpus", named),
        ("vectors", f"of the cache, encoded in {precision}"),
    ]
    _tell_chosen(draft, chosen)
    name = (saved.get("encoder") or {}).get("name") or "its encoder"
    return Side(name=BEFORE, label=str(name), rows=rows, take=take)


def _of_fitted_rows(
    draft: _Draft,
    path: Path,
    saved: Mapping[str, Any],
    corpus: _Corpus | None,
) -> Side | None:
    """The rows that a calibrator was fitted on, or a note of what to give instead."""
    file = saved.get("vectors")
    if not isinstance(file, str) or not Path(file).is_file():
        what = (
            f"{file}, which it was fitted on, is not there"
            if file
            else "a calibrator holds no vectors"
        )
        remedy = (
            f"bertflow report VECTORS.npy --against {quoted(path)} draws vectors of its encoder"
        )
        if corpus is not None:
            raise ModelError(f"{path} is a calibrator without its encoder, and {what}; {remedy}")
        _nothing(draft, f"{what}: {remedy}")
        return None
    limit = saved.get("limit")
    vectors = read_matrix(file)[: limit if isinstance(limit, int) else None]
    texts = None
    if corpus is not None:
        texts = corpus.beside(vectors, file)
        draft.provenance.append(("corpus", str(corpus)))
    chosen = choose(len(vectors), texts)
    draft.texts = chosen.texts
    _tell_chosen(draft, chosen)
    return side_of_file(BEFORE, file, vectors, chosen, texts)


def _two_models(
    draft: _Draft, path: Path, base: Side, after: Side, against: str | Path
) -> list[Side]:
    """Two calibrators of one encoder side by side, or a model and vectors of the same corpus."""
    names = [Path(one).resolve().name for one in (path, against)]
    if names[0] == names[1] or "gold" in names:
        names = [str(path), str(against)]
    one = Side(name=names[0], label=after.label, rows=after.rows, take=after.take)
    if str(against).endswith(".npy"):
        other = read_matrix(against)
        if len(other) != len(base.rows):
            raise InputError(
                f"{against} holds {len(other):,} rows, but {len(base.rows):,} distinct sentences "
                "are looked at; row i must be the vector of the i-th of them"
            )
        chosen = choose(len(other), None)
        return [one, side_of_file(names[1], against, other, chosen, draft.texts)]
    calibrator = load_calibrator(against)
    encoders = [
        {k: v for k, v in (found.provenance_.get("encoder") or {}).items() if k != "name"}
        for found in (draft.calibrator, calibrator)
        if found is not None
    ]
    if all(encoders) and encoders[0] != encoders[1]:
        raise InputError(
            f"{against} was fitted on another encoder than {path}; encode the corpus with both "
            "(bertflow encode) and compare the files: bertflow report ONE.npy --against OTHER.npy"
        )
    draft.provenance += _calibrator_facts(calibrator, str(against))
    return [one, base.under(calibrator, names[1], str(against))]


def _of_run(
    path: Path,
    corpus: _Corpus | None,
    against: str | Path | None,
    data: str | Path | None,
) -> _Draft:
    run = Run(path, data)
    draft = _Draft(title=run.folder.name)
    draft.provenance += run.provenance()
    draft.words = draft.put("words", run.words())
    draft.edits = draft.put("edits", run.edits())
    scores = draft.put("scores", run.scores())
    if scores is not None:
        draft.scores, draft.headline = scores
    if len(run.settings["encoders"]) > 1:
        draft.notes.append(f"clouds, words and edit distance are those of {run.encoder}")
    if against is not None and str(against).endswith(".npy"):
        raise InputError(f"a run goes with a calibrator or calibrated model, got {against}")
    if run.pair is None:
        reason = "bertflow reproduce table2 with this encoder, and its records, would fill it"
        if corpus is not None or against is not None:
            raise ModelError(f"{run.folder} has no vectors to look at: {reason}")
        _nothing(draft, reason)
        return draft
    try:
        cache = run.vectors()
        fitted_on = run.corpus() if corpus is None or against is None else []
    except ModelError as error:
        if corpus is not None or against is not None:
            raise
        _nothing(draft, str(error))
        return draft
    texts = fitted_on if corpus is None else corpus.read()
    chosen = choose(len(texts), texts)
    assert chosen.texts is not None
    take = take_from(cache)
    remedy = "bertflow encode ENCODER --corpus FILE --output OUT.npy and bertflow report OUT.npy"
    found, rows = take(chosen.texts)
    if rows is None or not found.all():
        lost = chosen.texts[int(found.argmin())]
        raise ModelError(
            f"{int((~found).sum()):,} of {len(found):,} sentences were not in the run, the first "
            f"is {lost[:80]!r}; for sentences of your own: {remedy}"
        )
    draft.texts = chosen.texts
    before, after = run.pair
    pooling = before.about["pooling"] or "its own pooling"
    draft.sides = [
        Side(name=BEFORE, label=f"{run.encoder}, {pooling}", rows=rows, take=take),
    ]
    if against is not None:
        draft.calibrator = load_calibrator(against)
        draft.sides.append(draft.sides[0].under(draft.calibrator, AFTER, str(against)))
        draft.provenance += _calibrator_facts(draft.calibrator, str(against))
    else:
        fitted = run.fit_again(cache, fitted_on)
        draft.calibrator = fitted.calibrator
        about = after.about
        label = (
            f"{preset_name(about['calibrator'])} fitted on {about['fitted_on']}, "
            f"seed {about['seed']}"
        )
        draft.sides.append(draft.sides[0].under(draft.calibrator, AFTER, label))
        draft.notes.append(f"the calibrator of the clouds is fitted again from record {after.key}")
        if fitted.apart is None:
            draft.notes.append("it is not held against its record: the pairs are not there")
        elif fitted.apart <= SAME:
            draft.notes.append(
                f"its cosines of {fitted.checked:,} pairs are the record's, up to "
                f"{fitted.apart:.1e}"
            )
        else:
            draft.notes.append(
                f"its cosines of {fitted.checked:,} pairs differ from the record's by up to "
                f"{fitted.apart:.2g}: other versions or another processor; the scores are the "
                "record's"
            )
    draft.provenance.append(("corpus", str(corpus or f"text of {after.about['fitted_on']}")))
    _tell_chosen(draft, chosen)
    return draft


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


def _fitted_corpus(saved: Mapping[str, Any]) -> tuple[list[str | Path], str | None, int | None]:
    """The files that a model was fitted on, as its provenance names them."""
    files, column, limit = saved.get("corpus"), saved.get("column"), saved.get("limit")
    named = isinstance(files, list) and all(isinstance(file, str) for file in files)
    return (
        [*files] if named and isinstance(files, list) else [],
        column if isinstance(column, str) else None,
        limit if isinstance(limit, int) else None,
    )


def _nothing(draft: _Draft, reason: str) -> None:
    """Say of all sections that need vectors what would fill them."""
    for section in ("cosines", "spectra", "cloud", "neighbours"):
        draft.absent[section] = reason
    for section in ("scores", "edits"):
        if getattr(draft, section) is None:
            draft.absent.setdefault(section, reason)


def _score(
    draft: _Draft,
    kinds: Sequence[str],
    data: str | Path | None,
    tasks: Sequence[str],
    remedy: Callable[[str], str] = lambda task: "give the vectors of a corpus that holds them",
) -> None:
    """Score the sides on those tasks whose sentences have vectors, and set them beside edits."""
    if "stsb" not in tasks:
        draft.absent["edits"] = "--task stsb, or --data DIR, would fill it: it is of STS-B dev"
    if not tasks:
        draft.absent["scores"] = (
            "a task that is named would fill it: --task NAME or, for all that are there, --data DIR"
        )
        return
    draft.scores, draft.headline = score_sides(draft.sides, kinds, data, tasks)
    if draft.scores is None:
        draft.absent["scores"] = (
            "it takes a task's pairs (--data DIR or BERTFLOW_DATA) and vectors of all of its "
            f"sentences: {remedy(','.join(tasks))}"
        )
    if "stsb" not in tasks:
        return
    told = edits_of_sides(draft.sides, data)
    if told == LACKING:
        told = f"{LACKING}: {remedy('stsb --split dev')}"
    draft.edits = draft.put("edits", told)


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
    versions = saved.get("versions")
    if isinstance(versions, Mapping):
        facts.append(("fitted with", json.dumps(dict(versions)).strip("{}").replace('"', "")))
    return facts


def _count(value: Any) -> str:
    """A count as a stranger's file has it."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _tell_chosen(draft: _Draft, chosen: Chosen) -> None:
    looked = len(chosen.rows)
    if chosen.texts is not None and chosen.distinct < chosen.total:
        draft.notes.append(f"{chosen.total:,} sentences, {chosen.distinct:,} of them distinct")
    if looked < chosen.distinct:
        draft.notes.append(f"measured on {looked:,} of {chosen.distinct:,} rows, drawn at random")


def _finished(draft: _Draft) -> Report:
    """Measure the sides, and say what comes of it."""
    rows = {side.name: side.rows for side in draft.sides}
    found: dict[str, Any] = {}
    diagnoses: dict[str, Diagnosis] = {}
    if rows:
        measured: dict[str, Callable[[], Any]] = {
            "cosines": lambda: measure_cosines(rows),
            "spectra": lambda: measure_spectra(rows),
            "cloud": lambda: project(rows),
        }
        for name, measure in measured.items():
            found[name] = draft.put(name, _or_reason(measure))
        for side, vectors in rows.items():
            one = _or_reason(lambda vectors=vectors: diagnose(vectors))  # type: ignore[misc]
            if isinstance(one, str):
                draft.notes.append(f"{side}: {one}")
            else:
                diagnoses[side] = one
        if found["cloud"] is not None and len(draft.sides[0].rows) > NEIGHBOURS:
            found["neighbours"] = _neighbours(rows, found["cloud"].rows)
        else:
            draft.absent["neighbours"] = f"more than {NEIGHBOURS} rows would fill it"
    training = draft.put("training", _training(draft.calibrator))
    verdict, evidence = conclude(
        [side.name for side in draft.sides] or [BEFORE, AFTER],
        diagnoses,
        draft.headline or headline_of(draft.gains),
        scored=draft.scores is not None,
        lacking=draft.absent.get("cosines", ""),
        rows=VECTORS if draft.texts is None else SENTENCES,
    )
    return Report(
        title=draft.title,
        verdict=verdict,
        evidence=evidence,
        sides={side.name: last_part(side.label) for side in draft.sides},
        gains=draft.gains,
        diagnoses=diagnoses,
        texts=draft.texts,
        scores=draft.scores,
        words=draft.words,
        edits=draft.edits,
        training=training,
        provenance=[
            *draft.provenance,
            *(
                (name, version)
                for name, version in library_versions().items()
                if name == "bertflow"
            ),
        ]
        if not any(name == "bertflow" for name, _ in draft.provenance)
        else draft.provenance,
        notes=draft.notes,
        absent={name: draft.absent[name] for name in SECTIONS if name in draft.absent},
        **found,
    )


SECTIONS = (
    "cosines",
    "spectra",
    "cloud",
    "neighbours",
    "scores",
    "words",
    "edits",
    "training",
)


def _or_reason(measure: Callable[[], T]) -> T | str:
    try:
        return measure()
    except InputError as error:
        return str(error)


def _neighbours(rows: Mapping[str, Array], queries: Array) -> NeighbourLists:
    count = len(next(iter(rows.values())))
    return find_neighbours(rows, queries, k=min(NEIGHBOURS, count - 1))


def _training(calibrator: Calibrator | None) -> TrainingCurve | str:
    if calibrator is None:
        return "a saved flow would fill it"
    if not isinstance(calibrator, Flow):
        return f"{type(calibrator).__name__} is not trained step by step; a flow would fill it"
    if len(calibrator.loss_curve_) == 0:
        return "the flow was fitted without a step"
    final = float(calibrator.loss_)
    return summarize_training(calibrator.loss_curve_, final=final if np.isfinite(final) else None)
