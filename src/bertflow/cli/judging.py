"""The commands that say what vectors are worth: evaluate, compare, diagnose, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from bertflow.cli import console, options
from bertflow.cli.fitting_more import no_encoder
from bertflow.cli.options import Shared, argument, flag, one_of, option, refuse
from bertflow.data import STS_TASKS, TASKS
from bertflow.display import Bars
from bertflow.errors import InputError, MissingDataError

if TYPE_CHECKING:
    from bertflow.analysis import Diagnosis
    from bertflow.data import Pairs

# The exit code of `drift` where it says refit.
REFIT = 3
# Pairs alike are those with at least this share of the highest score.
ALIKE = 0.8
# The material that each job is posed by.
MATERIAL = {"search": "retrieval", "classes": "labels", "clusters": "labels", "duplicates": "pairs"}


def _tasks(given: list[str] | None) -> list[str]:
    names = options.listed(given)
    for name in names:
        one_of("task", (*TASKS, "all"))(name)
    return names


def evaluate(
    model: str = Shared.model,
    *,
    task: list[str] | None = option(None, "NAME", callback=_tasks),
    own: options.OwnJob,
    against: str | None = Shared.against,
    data: Path | None = Shared.data,
    split: str | None = option(None, "NAME"),
    card: bool = flag("--card"),
    results: options.Results,
    how: options.Encoder,
) -> None:
    """Score a model, calibrated or bare, on tasks, on pairs or on a job of your own.

    Pairs with labels 1 and 0 are also judged as duplicates: the best thresholds, and what they do.

    Args:
        task: sts12, sts13, sts14, sts15, sts16, stsb, sick-r, qnli; or all, which is these eight.
            May be repeated.
        split: train, dev or test, of --task or --retrieval. Default: the one scores are published
            for.
        card: Note the scores in the model's card, in place of those noted before.
    """
    own.check(task or [])
    if not task and own.retrieval is None:
        refuse({"--split": split}, "goes with --task or --retrieval")
    results.check({"MODEL": model, "--against": against or None, **own.reads()})
    pairs, job = own.read(), own.job(split)
    from bertflow import evaluation
    from bertflow.calibrators.readme import CARD
    from bertflow.cli import score_pages
    from bertflow.encoders import SentenceCache
    from bertflow.evaluation.jobs import JobScore, evaluate_job
    from bertflow.evaluation.score_grids import encoder_name
    from bertflow.models import is_calibrated, save_card

    options.check_own(against, model)
    if card:
        if not is_calibrated(model):
            raise InputError(f"--card needs a calibrated model that bertflow saved, not {model}")
        console.check_files({"--card": Path(model) / CARD}, {})
    tasks, absent = _read(task, TASKS, data, split)
    tasks += pairs
    few = []
    if pairs and pairs[0].binary:
        try:
            job = evaluation.DuplicatesJob(pairs[0])
        except InputError as error:  # There may be an area all the same.
            few = [f"no thresholds: {error}"]
    sides = [model] if against is None else [model, against]
    found: dict[int, list[evaluation.Score | JobScore]] = {}
    for place, loaded in how.open_sides(sides):
        # Tasks and the job may share texts, which are encoded once without the user's cache, too.
        with console.progress_bar("encode") as bar, TemporaryDirectory() as tmp:
            encoding = {**how.encoding(), "progress": bar, "cache": how.cache or SentenceCache(tmp)}
            found[place] = [*evaluation.score_all(loaded, tasks, **encoding)] if tasks else []
            if job is not None:
                found[place].append(evaluate_job(loaded, job, **encoding))
        if sides[place] == options.OWN_ENCODER:
            # Its files are the model's, which knows from its fit what the encoder is called.
            name = {"name": encoder_name(found[0][0])}
            found[place] = [replace(one, encoder={**one.encoder, **name}) for one in found[place]]
            sides[place] = "its encoder"
        if card and place == 0:
            loaded.add_scores(*found[0])
            save_card(loaded, model)
        del loaded
    pages = [score_pages.model_page(side, found[n], absent) for n, side in enumerate(sides)]
    pages[0] = replace(pages[0], notes=[*pages[0].notes, *few])
    content: dict[str, Any] = {"model": model, **score_pages.model_content(found[0], absent)}
    if against is not None:
        page, apart = score_pages.differences_page(sides, found[0], found[1])
        pages.append(page)
        other = {"model": against or encoder_name(found[1][0])}
        content["against"] = other | score_pages.model_content(found[1], absent)
        content |= apart
    results.give(pages, content)


def compare(
    encoder: str = Shared.encoder,
    *,
    task: list[str] | None = option(None, "NAME", callback=_tasks),
    own: options.JobMaterial,
    job: str | None = option(None, "NAME", callback=one_of("job", MATERIAL)),
    fit: str | None = option(None, "NAME", callback=one_of("fit", ("target", "nli", "corpus"))),
    queries: list[str] | None = option(None, "FILE"),
    method: list[str] | None = option(None, "NAME"),
    seeds: int = option(5, "N", min=1),
    jobs: int | None = option(None, "N", min=1),
    data: Path | None = Shared.data,
    results: options.Results,
    how: options.Encoder,
) -> None:
    """Fit every calibrator on an encoder, score them side by side, and say what is chance.

    Stopped, the same command goes on from the fits in the cache.

    Args:
        task: sts12, sts13, sts14, sts15, sts16, stsb, sick-r, qnli; or all, which is the seven of
            STS, without qnli, whose sentences are very many. May be repeated.
        job: What is judged: search of --retrieval; classes or clusters of --labels, which comes
            first; duplicates of --pairs with labels 1 and 0. Default: search, classes or, of
            --pairs, the cosines.
        fit: Unlabelled sentences to fit on: target, each task's or the pairs' own; nli, SNLI and
            MNLI; corpus, those of --corpus. Default: corpus where that is given, otherwise target.
        corpus: What you would fit on, as --corpus of fit: what is judged is then what would be
            shipped. May be repeated.
        queries: Queries to fit on, of --retrieval; read as --corpus. Default: its own, or none
            beside --corpus. May be repeated.
        method: Only these; default: all, or for a job all but the flows, which take minutes. none,
            adaptive-whitening, standardization, all-but-the-top, standardization+all-but-the-top,
            whitening, whitening-dim, soft-whitening, flow, released-flow, tempered-flow; for a job
            also search-whitening and soft-standardization. May be repeated.
        seeds: How often each flow is fitted.
    """
    fit = fit or ("corpus" if own.corpus else "target")
    if (fit == "corpus") != bool(own.corpus):
        raise InputError("--fit corpus goes with --corpus FILE, and --corpus with --fit corpus")
    if own.retrieval is None:
        refuse({"--queries": queries}, "goes with --retrieval")
    replace(own, corpus=own.corpus or queries).check(task or [])
    if job is not None and (task or getattr(own, MATERIAL[job]) is None):
        raise InputError(f"--job {job} goes with --{MATERIAL[job]} alone")
    if fit == "nli" and (job or own.retrieval or own.labels):
        raise InputError("--fit nli goes with --task or --pairs, without --job")
    results.check({"ENCODER": encoder, "--queries": queries, **own.reads()})
    pairs = own.read()
    posed = own.duplicates(pairs[0]) if job == "duplicates" else own.job()
    corpus = own.sentences(own.corpus) if own.corpus else None
    asked = own.sentences(queries) if queries else None
    from bertflow import evaluation
    from bertflow.cli.score_pages import comparison_page
    from bertflow.evaluation.jobs import compare_job

    found, absent = _read(task, STS_TASKS, data)
    loaded, cache = how.open_any(encoder), how.cache
    fits = None if cache is None or posed is not None else cache.folder
    with console.resumable(fits, cache), Bars() as report:
        common: dict[str, Any] = {
            "methods": method or (list(evaluation.METHODS) if posed is None else None),
            "seeds": seeds,
            "jobs": jobs,
            "progress": report,
            **how.encoding(),
        }
        result: evaluation.Comparison
        if posed is None:
            result = evaluation.compare(
                loaded, [*found, *pairs], fit=corpus or fit, data=data, **common
            )
            result = replace(result, absent=absent)
        else:
            main = "v-measure" if job == "clusters" else None
            result = compare_job(loaded, posed, main=main, corpus=corpus, queries=asked, **common)
    results.give([comparison_page(encoder, result)], {"given": encoder, **result.to_dict()})


def diagnose(
    source: str = argument("ENCODER|FILE.npy", callback=options.known_place),
    *,
    own: options.Material,
    job: str = option("similarity", "NAME"),
    limit: int = option(10000, "N", min=2),
    results: options.Results,
    how: options.Encoder,
) -> None:
    """Look at vectors without labels, and say whether calibration is likely to help.

    Args:
        source: An encoder, or vectors, one a row.
        corpus: Sentences to encode, as --corpus of fit; default: sentences that come along.
        job: What the vectors are for: similarity, search, classes, clusters or duplicates.
        limit: Take the first N sentences, or N vectors at random.
    """
    vectors = source.endswith(".npy")
    results.check({"VECTORS" if vectors else "ENCODER": source, **own.reads()})
    own.check()
    if vectors:
        given = options.changed(own) | options.changed(how, "no_cache")
        refuse(given, "does not go with vectors")
        from bertflow import analysis
        from bertflow.analysis.neighbours import sampled
        from bertflow.arrays import finite
        from bertflow.io.vectors import read_vectors

        with console.vectors_named(source):
            # Not the first of them: files are often sorted.
            drawn = sampled(finite(read_vectors(source)), limit, 0)
            found = analysis.diagnose(drawn, job=job)
    else:
        found = _diagnose_encoder(source, own, limit, job, how)
    from bertflow.cli.score_pages import diagnosis_page

    page = diagnosis_page(source, found, ALIKE)
    results.give([page], {"source": source, **found.to_dict()})


def drift(
    folder: Path = argument("DIR"),
    *,
    corpus: list[str] | None = Shared.corpus,
    text: options.Text,
    vectors: str | None = option(None, "FILE.npy"),
    results: options.Results,
    how: options.Encoder,
) -> None:
    """Say whether new text still looks like what a model was fitted on.

    The fitted text need not be there. Where it says refit, the exit code is 3.

    Args:
        folder: A saved calibrated model or calibrator.
        corpus: New sentences, of which at most 10,000 are drawn. May be repeated.
        vectors: New vectors instead, one a row, as the encoder gives them.
    """
    results.check({"DIR": folder, "--corpus": corpus, "--vectors": vectors})
    if (vectors is None) == (not corpus):
        raise InputError("give --corpus, or --vectors")
    if vectors is not None:
        given = options.changed(text) | options.changed(how, "no_cache")
        refuse(given, "does not go with --vectors")
        from bertflow.calibrators import load_calibrator
        from bertflow.io.vectors import read_vectors

        calibrator, rows = load_calibrator(folder), read_vectors(vectors)
        from bertflow import analysis

        with console.vectors_named(vectors):
            found = analysis.drift(calibrator, rows)
    else:
        from bertflow.data import checked_corpus
        from bertflow.models import is_calibrated

        if not is_calibrated(folder):
            raise no_encoder(folder)
        sentences = checked_corpus(corpus or [], **asdict(text))
        model: Any = how.open_any(str(folder))
        from bertflow import analysis

        with console.progress_bar("encode") as bar:
            found = analysis.drift(model, sentences, **how.encoding(), progress=bar)
    from bertflow.cli.score_pages import drift_page

    results.give(
        [drift_page(folder, found)],
        {"model": str(folder), "new": vectors or corpus, **found.to_dict()},
    )
    if found.refit:
        raise typer.Exit(REFIT)


def _diagnose_encoder(
    name: str, own: options.Material, limit: int, job: str, how: options.Encoder
) -> Diagnosis:
    """Diagnose an encoder's vectors of distinct sentences and, with pairs, their alignment."""
    from bertflow.data import sample_sentences

    sentences = own.sentences(own.corpus, limit) if own.corpus else sample_sentences()[:limit]
    alike: list[tuple[str, str]] = []
    for pairs in own.read():
        if not own.corpus:
            sentences = [*pairs.first, *pairs.second][:limit]
        grades = [grade or 0.0 for grade in pairs.gold]
        alike = [
            (first, second)
            for first, second, grade in zip(pairs.first, pairs.second, grades, strict=True)
            if grade >= ALIKE * max(grades) > 0 and first != second
        ]
    enough: Any = tuple(zip(*alike, strict=True)) if len(alike) > 1 else None
    encoder = how.open_any(name)
    from bertflow.analysis import diagnose

    with console.progress_bar("encode") as report:
        encoding = {**how.encoding(), "progress": report}
        found = diagnose(encoder, sentences, pairs=enough, job=job, **encoding)
    if own.pairs is None or enough:
        return found
    few = f"no alignment: {len(alike)} pairs are alike (score from {ALIKE} of the highest, above 0)"
    return replace(found, warnings=(*found.warnings, few))


def _read(
    task: list[str] | None, of_all: Sequence[str], data: Path | None, split: str | None = None
) -> tuple[list[Pairs], dict[str, str]]:
    """The pairs of tasks, and why some are absent, which only tasks of "all" may be."""
    from bertflow.evaluation import read_tasks

    if not task:
        return [], {}
    every = [one for name in task for one in (of_all if name == "all" else [name])]
    found, absent = read_tasks(every, data, split)
    if absent and "all" not in task:
        raise MissingDataError("; ".join(absent.values()))
    return found, absent
