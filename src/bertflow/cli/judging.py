"""The commands that say what vectors are worth: evaluate, compare, diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli import console, opening, options
from bertflow.cli.options import Shared, argument, flag, option, refuse
from bertflow.data import STS_TASKS, TASKS
from bertflow.display import Bars
from bertflow.errors import InputError, MissingDataError, unknown

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.analysis import Diagnosis
    from bertflow.data import Pairs

# Pairs alike are those with at least this share of the highest score.
ALIKE = 0.8


def evaluate(
    model: str = Shared.model,
    *,
    task: list[str] | None = option(None, "NAME"),
    own: options.Graded,
    against: str | None = option(None, "[MODEL]"),
    data: Path | None = Shared.data,
    split: str | None = option(None, "NAME"),
    card: bool = flag("--card"),
    results: console.Results,
    how: options.Encoder,
) -> None:
    """Score a model, calibrated or bare, on tasks or on pairs of your own.

    Args:
        task: sts12, sts13, sts14, sts15, sts16, stsb, sick-r, qnli; or all, which is these eight.
            May be repeated.
        against: Another model, or without a value the calibrated model's own encoder; says which
            differences are beyond chance. Beside a calibrated model, encoders without a pooling of
            their own take its pooling and length, unless --pooling and --max-length say otherwise.
        split: train, dev or test. Default: the one scores are published for.
        card: Note the scores in the model's card, in place of those noted before.
    """
    names = _named(task, own)
    own.check()
    if not task:
        refuse({"--split": split}, "goes with --task")
    results.check({"MODEL": model, "--against": against or None, "--pairs": own.pairs})
    pairs = own.read()
    from bertflow import evaluation
    from bertflow.calibrators.readme import CARD
    from bertflow.cli.score_pages import difference_page, scores_page
    from bertflow.evaluation.score_grids import encoder_name
    from bertflow.models import is_calibrated, save_card

    opening.check_own(against, model)
    if card:
        if not is_calibrated(model):
            raise InputError(f"--card needs a calibrated model that bertflow saved, not {model}")
        console.check_files({"--card": Path(model) / CARD}, {})
    found, absent = _read(names, TASKS, data, split)
    sides = [model] if against is None else [model, against]
    scores: dict[int, evaluation.Scores] = {}
    for place, loaded in opening.open_sides(sides, how):
        with console.progress_bar("encode") as report:
            several = evaluation.score_all(
                loaded, [*found, *pairs], progress=report, **how.encoding()
            )
        if sides[place] == options.OWN_ENCODER:
            # Its files are the model's, which knows from its fit what the encoder is called.
            name = encoder_name(next(iter(scores[0].scores.values())))
            several = [replace(one, encoder={**one.encoder, "name": name}) for one in several]
            sides[place] = "its encoder"
        scores[place] = evaluation.Scores(scores={one.task: one for one in several}, absent=absent)
        if card and place == 0:
            loaded.add_scores(*several)
            save_card(loaded, model)
        del loaded
    pages = [scores_page(name, scores[place]) for place, name in enumerate(sides)]
    content: dict[str, Any] = {"model": model, **scores[0].to_dict()}
    if against is not None:
        apart = evaluation.differences(scores[1], scores[0])
        pages.append(difference_page(sides, [scores[0], scores[1]], apart))
        other = against or encoder_name(next(iter(scores[1].scores.values())))
        content["against"] = {"model": other, **scores[1].to_dict()}
        content["differences"] = {name: one.to_dict() for name, one in apart.items()}
    results.give(pages, content)


def compare(
    encoder: str = Shared.encoder,
    *,
    task: list[str] | None = option(None, "NAME"),
    own: options.Material,
    fit: str | None = option(None, "NAME"),
    method: list[str] | None = option(None, "NAME"),
    seeds: int = option(5, "N", min=1),
    jobs: int | None = option(None, "N", min=1),
    data: Path | None = Shared.data,
    results: console.Results,
    how: options.Encoder,
) -> None:
    """Fit every calibrator on an encoder, score them side by side, and say what is chance.

    Stopped, the same command goes on from the fits in the cache.

    Args:
        encoder: A sentence-transformers or transformers folder, a hub name or a .gguf file.
        task: sts12, sts13, sts14, sts15, sts16, stsb, sick-r, qnli; or all, which is the seven of
            STS, without qnli, whose sentences are very many. May be repeated.
        fit: Unlabelled sentences to fit on: target, each task's or the pairs' own; nli, SNLI and
            MNLI; corpus, those of --corpus. Default: corpus where that is given, otherwise target.
        corpus: What you would fit on, as --corpus of fit: what is judged is then what would be
            shipped. May be repeated.
        method: Only these; default: all. none, adaptive-whitening, standardization,
            all-but-the-top, standardization+all-but-the-top, whitening, whitening-dim,
            soft-whitening, flow, released-flow, tempered-flow. May be repeated.
        seeds: How often each flow is fitted.
        jobs: Processes that fit at a time; default: the CPUs.
    """
    fit = fit or ("corpus" if own.corpus else "target")
    if fit not in ("target", "nli", "corpus"):
        raise InputError(f"--fit takes target, nli or corpus, got {fit!r}")
    if (fit == "corpus") != bool(own.corpus):
        raise InputError("--fit corpus goes with --corpus FILE, and --corpus with --fit corpus")
    names = _named(task, own)
    own.check()
    results.check({"ENCODER": encoder, "--pairs": own.pairs, "--corpus": own.corpus})
    pairs, sentences = own.read(), own.sentences() if own.corpus else fit
    from bertflow import evaluation
    from bertflow.cli.score_pages import comparison_page

    found, absent = _read(names, STS_TASKS, data)
    loaded, cache = opening.open_any(encoder, how), how.cache
    folder = None if cache is None else cache.folder
    with console.interruptible(lambda: console.resumes_from(folder)), Bars() as report:
        result = evaluation.compare(
            loaded,
            [*found, *pairs],
            fit=sentences,
            methods=method or list(evaluation.METHODS),
            seeds=seeds,
            data=data,
            jobs=jobs,
            progress=report,
            **how.encoding(),
        )
    result = replace(result, absent=absent)
    results.give([comparison_page(encoder, result)], {"given": encoder, **result.to_dict()})


def diagnose(
    source: str = argument("ENCODER|FILE.npy", callback=options.known_place),
    *,
    own: options.Material,
    limit: int = option(10000, "N", min=2),
    results: console.Results,
    how: options.Encoder,
) -> None:
    """Look at vectors without labels, and say whether calibration is likely to help.

    Args:
        source: An encoder, or vectors, one a row.
        corpus: Sentences to encode, as --corpus of fit; default: sentences that come along.
        limit: Take the first N sentences, or N vectors at random.
    """
    vectors = source.endswith(".npy")
    name = "VECTORS" if vectors else "ENCODER"
    results.check({name: source, "--corpus": own.corpus, "--pairs": own.pairs})
    own.check()
    if vectors:
        given = options.changed(own) | options.changed(how, "no_cache")
        refuse(given, "does not go with vectors")
        with opening.vectors_named(source):
            found = _diagnose_file(Path(source), limit)
    else:
        from bertflow.data import sample_sentences

        pairs = own.read()
        if own.corpus:
            sentences = own.sentences(limit)
        elif pairs:
            sentences = [*pairs[0].first, *pairs[0].second][:limit]
        else:
            sentences = sample_sentences()[:limit]
        found = _diagnose_encoder(opening.open_any(source, how), sentences, pairs, how)
    from bertflow.cli.score_pages import diagnosis_page

    page = diagnosis_page(source, found, ALIKE)
    results.give([page], {"source": source, **found.to_dict()})


def _diagnose_file(path: Path, limit: int) -> Diagnosis:
    import numpy as np

    from bertflow.analysis import diagnose
    from bertflow.arrays import finite
    from bertflow.io.vectors import read_vectors

    vectors = finite(read_vectors(path))
    if len(vectors) > limit:
        # Not the first: files are often sorted.
        drawn = np.random.default_rng(0).choice(len(vectors), size=limit, replace=False)
        vectors = vectors[np.sort(drawn)]
    return diagnose(np.asarray(vectors))


def _diagnose_encoder(
    encoder: SentenceTransformer, sentences: list[str], own: list[Pairs], how: options.Encoder
) -> Diagnosis:
    """Diagnose an encoder's vectors of distinct sentences and, with pairs, their alignment."""
    from bertflow.analysis import diagnose

    alike: list[tuple[str, str]] = []
    for pairs in own:
        grades = [grade or 0.0 for grade in pairs.gold]
        alike = [
            (first, second)
            for first, second, grade in zip(pairs.first, pairs.second, grades, strict=True)
            if grade >= ALIKE * max(grades) > 0 and first != second
        ]
    enough: Any = tuple(zip(*alike, strict=True)) if len(alike) > 1 else None
    with console.progress_bar("encode") as report:
        found = diagnose(encoder, sentences, pairs=enough, progress=report, **how.encoding())
    if not own or enough:
        return found
    few = f"no alignment: {len(alike)} pairs are alike (score from {ALIKE} of the highest, above 0)"
    return replace(found, warnings=(*found.warnings, few))


def _named(tasks: list[str] | None, own: options.Graded) -> list[str]:
    """The tasks that --task names. No encoder is imported, so that a mistake is told at once."""
    if not tasks and own.pairs is None:
        raise InputError("give --task NAME (or all), or --pairs FILE")
    names = [part.strip() for name in tasks or [] for part in name.split(",")]
    for name in names:
        if name not in (*TASKS, "all"):
            raise unknown("task", name, (*TASKS, "all"))
    return names


def _read(
    names: list[str], of_all: Sequence[str], data: Path | None, split: str | None = None
) -> tuple[list[Pairs], dict[str, str]]:
    """The pairs of tasks, and why some are absent, which only tasks of "all" may be."""
    from bertflow.evaluation import read_tasks

    if not names:
        return [], {}
    every = [task for name in names for task in (of_all if name == "all" else [name])]
    found, absent = read_tasks(every, data, split)
    if absent and "all" not in names:
        raise MissingDataError("; ".join(absent.values()))
    return found, absent
