"""The commands that say what vectors are worth: evaluate, compare, diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli.opening import check_own, open_any, open_sides, vectors_named
from bertflow.cli.options import (
    OWN_ENCODER,
    EncoderOptions,
    PairOptions,
    ResultOptions,
    Shared,
    SpeedOptions,
    argument,
    changed,
    flag,
    option,
    refuse,
)
from bertflow.cli.output import (
    NOTHING,
    check_files,
    check_results,
    give,
    interruptible,
    progress_bar,
    resumes_from,
)
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
    own: PairOptions,
    against: str | None = option(None, "[MODEL]"),
    data: Path | None = Shared.data,
    split: str | None = option(None, "NAME"),
    card: bool = flag("--card"),
    results: ResultOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
) -> None:
    """Score a model, calibrated or bare, on tasks or on pairs of your own.

    Args:
        task: sts12, sts13, sts14, sts15, sts16, stsb, sick-r, qnli; or all, which is these eight.
            May be repeated.
        against: Another model, or without a value the calibrated model's own encoder; says which
            differences are beyond chance. Beside a calibrated model its encoder and raw ones take
            its pooling and length, unless --pooling and --max-length say otherwise.
        split: train, dev or test. Default: the one scores are published for.
        card: Note the scores in the model's card, in place of those noted before.
    """
    names = _named(task, own, of_all=TASKS)
    if own.pairs is None:
        refuse({"--columns": own.columns, "--format": own.format}, "goes with --pairs")
    if not task:
        refuse({"--split": split}, "goes with --task")
    reads = {"MODEL": model, "--against": against or None, "--pairs": own.pairs}
    check_results(results.files(), reads)
    pairs = own.read()
    from bertflow.cli.score_pages import difference_page, scores_page
    from bertflow.evaluation import Scores, differences, score_all
    from bertflow.evaluation.score_grids import encoder_name
    from bertflow.models import save_card

    check_own(against, model)
    if card:
        _check_card(model)
    tasks, absent = _read(names, pairs, task, data, split)
    sides = [model] if against is None else [model, against]
    scores: dict[int, Scores] = {}
    carded: Any = None
    for place, loaded in open_sides(sides, loading, speed):
        with progress_bar("encode") as report:
            several = score_all(loaded, tasks, progress=report, **speed.encoding())
        if sides[place] == OWN_ENCODER:
            # Its files are the model's, which knows from its fit what the encoder is called.
            name = encoder_name(next(iter(scores[0].scores.values())))
            several = [replace(one, encoder={**one.encoder, "name": name}) for one in several]
            sides[place] = "its encoder"
        scores[place] = Scores(scores={one.task: one for one in several}, absent=absent)
        if card and place == 0:
            carded = loaded
            carded.add_scores(*several)
        del loaded
    pages = [scores_page(name, scores[place]) for place, name in enumerate(sides)]
    content: dict[str, Any] = {"model": model, **scores[0].to_dict()}
    if against is not None:
        apart = differences(scores[1], scores[0])
        pages.append(difference_page(sides, [scores[0], scores[1]], apart))
        other = against or encoder_name(next(iter(scores[1].scores.values())))
        content["against"] = {"model": other, **scores[1].to_dict()}
        content["differences"] = {name: one.to_dict() for name, one in apart.items()}
    try:
        give(pages, content, results)
    finally:
        if carded is not None:
            save_card(carded, model)


def _check_card(model: str) -> None:
    """Refuse --card where there is no card to write to."""
    from bertflow.calibrators.readme import CARD
    from bertflow.models import is_calibrated

    if not is_calibrated(model):
        raise InputError(
            f"--card needs a calibrated model that bertflow saved, and {model} is none"
        )
    check_files({"--card": Path(model) / CARD}, {})


def compare(
    encoder: str = argument("ENCODER"),
    *,
    task: list[str] | None = option(None, "NAME"),
    own: PairOptions,
    fit: str | None = option(None, "NAME"),
    corpus: list[str] | None = option(None, "FILE"),
    column: str | None = Shared.column,
    method: list[str] | None = option(None, "NAME"),
    seeds: int = option(5, "N", min=1),
    jobs: int | None = option(None, "N", min=1),
    data: Path | None = Shared.data,
    results: ResultOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
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
    fit = fit or ("corpus" if corpus else "target")
    if fit not in ("target", "nli", "corpus"):
        raise InputError(f"--fit takes target, nli or corpus, got {fit!r}")
    if (fit == "corpus") != bool(corpus):
        raise InputError("--fit corpus goes with --corpus FILE, and --corpus with --fit corpus")
    names = _named(task, own, of_all=STS_TASKS)
    _refuse_unread(own, corpus, column)
    reads = {"ENCODER": encoder, "--pairs": own.pairs, "--corpus": corpus}
    check_results(results.files(), reads)
    pairs = own.read()
    from bertflow.data import read_corpus

    sentences: str | Sequence[str] = fit
    if corpus:
        sentences = read_corpus(corpus, column=column, format=own.format)
    from bertflow.cli.score_pages import comparison_page
    from bertflow.evaluation import METHODS
    from bertflow.evaluation import compare as compare_calibrators

    methods = method or list(METHODS)
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    tasks, absent = _read(names, pairs, task, data, None)
    loaded, cache = open_any(encoder, loading, speed), speed.cache
    with (
        interruptible(lambda: NOTHING if cache is None else resumes_from(cache.folder)),
        Bars() as report,
    ):
        result = compare_calibrators(
            loaded,
            tasks,
            fit=sentences,
            methods=methods,
            seeds=seeds,
            data=data,
            jobs=jobs,
            progress=report,
            **speed.encoding(),
        )
    result = replace(result, absent=absent)
    give([comparison_page(encoder, result)], {"given": encoder, **result.to_dict()}, results)


def diagnose(
    source: str = argument("ENCODER|FILE.npy"),
    *,
    corpus: list[str] | None = option(None, "FILE"),
    column: str | None = Shared.column,
    own: PairOptions,
    limit: int = option(10000, "N", min=2),
    results: ResultOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
) -> None:
    """Look at vectors without labels, and say whether calibration is likely to help.

    Args:
        source: An encoder, or vectors, one a row.
        corpus: Sentences to encode, as --corpus of fit; default: sentences that come along.
        limit: Take the first N sentences, or N vectors at random.
    """
    vectors = source.endswith(".npy")
    reads = {"VECTORS" if vectors else "ENCODER": source, "--corpus": corpus, "--pairs": own.pairs}
    check_results(results.files(), reads)
    _refuse_unread(own, corpus, column)
    if vectors:
        given = {"--corpus": corpus, "--pairs": own.pairs, **changed(loading)}
        refuse({**given, **changed(speed, "no_cache")}, "does not go with vectors")
        with vectors_named(source):
            found = _diagnose_file(Path(source), limit)
    else:
        from bertflow.data import read_corpus, sample_sentences

        pairs = own.read()
        if corpus:
            sentences = read_corpus(corpus, column=column, limit=limit, format=own.format)
        elif pairs:
            sentences = [*pairs[0].first, *pairs[0].second][:limit]
        else:
            sentences = sample_sentences()[:limit]
        loaded = open_any(source, loading, speed)
        found = _diagnose_encoder(loaded, sentences, pairs, speed)
    from bertflow.cli.score_pages import diagnosis_page

    page = diagnosis_page(source, found, ALIKE)
    give([page], {"source": source, **found.to_dict()}, results)


def _diagnose_file(path: Path, limit: int) -> Diagnosis:
    """Diagnose vectors in a .npy file."""
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
    encoder: SentenceTransformer, sentences: Sequence[str], own: list[Pairs], speed: SpeedOptions
) -> Diagnosis:
    """Diagnose an encoder's vectors of distinct sentences and, with pairs, their alignment."""
    from bertflow.analysis import diagnose

    alike: list[tuple[str, str]] = []
    for pairs in own:
        best = max(grade for grade in pairs.gold if grade is not None)
        alike = [
            (first, second)
            for first, second, grade in zip(pairs.first, pairs.second, pairs.gold, strict=True)
            if grade is not None and grade >= ALIKE * best > 0 and first != second
        ]
    enough = len(alike) > 1
    with progress_bar("encode") as report:
        found = diagnose(
            encoder,
            sentences,
            pairs=tuple(zip(*alike, strict=True)) if enough else None,  # type: ignore[arg-type]
            progress=report,
            **speed.encoding(),
        )
    if not own or enough:
        return found
    few = f"no alignment: {len(alike)} pairs are alike (score from {ALIKE} of the highest, above 0)"
    return replace(found, warnings=(*found.warnings, few))


def _refuse_unread(own: PairOptions, corpus: list[str] | None, column: str | None) -> None:
    """Refuse options of how a corpus or pairs are read, where none are."""
    if not corpus:
        refuse({"--column": column}, "goes with --corpus")
    if own.pairs is None:
        refuse({"--columns": own.columns}, "goes with --pairs")
        if not corpus:
            refuse({"--format": own.format}, "goes with --corpus or --pairs")


def _named(tasks: list[str] | None, own: PairOptions, *, of_all: Sequence[str]) -> list[str]:
    """The tasks that --task names, "all" meaning these.

    It imports no encoder, so that a mistake is reported at once.
    """
    if not tasks and own.pairs is None:
        raise InputError("give --task NAME (or all), or --pairs FILE")
    names: list[str] = []
    for name in tasks or []:
        for part in map(str.strip, name.split(",")):
            if part not in (*TASKS, "all"):
                raise unknown("task", part, (*TASKS, "all"))
            names += of_all if part == "all" else [part]
    return names


def _read(
    names: list[str],
    own: list[Pairs],
    tasks: list[str] | None,
    data: Path | None,
    split: str | None,
) -> tuple[list[Pairs], dict[str, str]]:
    """The pairs of the tasks and one's own, and why some are absent."""
    from bertflow.evaluation import read_tasks

    if not names:
        return own, {}
    found, absent = read_tasks(names, data, split)
    if absent and "all" not in ",".join(tasks or []).split(","):
        raise MissingDataError("; ".join(absent.values()))
    return [*found, *own], absent
