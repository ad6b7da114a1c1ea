"""The commands that say what vectors are worth: evaluate, compare, diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertflow.cli.caching import as_precision, tell_found, users_cache
from bertflow.cli.interruption import NOTHING, Interrupted, kept
from bertflow.cli.opening import check_own, open_any, open_sides
from bertflow.cli.options import (
    OWN_ENCODER,
    BatchSize,
    Column,
    Columns,
    Data,
    Device,
    EncodingPrecision,
    Format,
    Json,
    Markdown,
    MaxLength,
    Model,
    NoCache,
    OwnPairs,
    Pooling,
    TrustRemoteCode,
    three,
)
from bertflow.cli.places import check_files, check_results, vectors_named
from bertflow.data import STS_TASKS, TASKS
from bertflow.errors import InputError, MissingDataError, unknown

if TYPE_CHECKING:
    from bertflow.data import Pairs

NAMES = ", ".join(TASKS)


def evaluate(
    model: Model,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"{NAMES}; or all, which is these eight. May be repeated."
        ),
    ] = None,
    pairs: OwnPairs = None,
    columns: Columns = None,
    format_: Format = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="[MODEL]",
            help="Another model, or without a value the calibrated model's own encoder; says which "
            "differences are beyond chance. Beside a calibrated model its encoder and raw ones "
            "take its pooling and length, unless --pooling and --max-length say otherwise.",
        ),
    ] = None,
    data: Data = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="train, dev or test. Default: the one scores are published for."
        ),
    ] = None,
    card: Annotated[
        bool,
        typer.Option(
            "--card", help="Note the scores in the model's card, in place of those noted before."
        ),
    ] = False,
    json_: Json = None,
    markdown: Markdown = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Score a model, calibrated or bare, on tasks or on pairs of your own."""
    if format_ is not None and pairs is None:
        raise InputError("--format goes with --pairs")
    names = _named(task, pairs, columns, split, of_all=TASKS)
    check_results(
        {"--json": json_, "--markdown": markdown},
        {"MODEL": model, "--against": against or None, "--pairs": pairs},
        data=data,
    )
    own = _own(pairs, columns, format_)
    from bertflow.calibrators.readme import CARD
    from bertflow.cli.results import difference_page, give, scores_page
    from bertflow.cli.terminal import progress_bars
    from bertflow.evaluation import Scores, differences, score_all
    from bertflow.evaluation.score_grids import encoder_name
    from bertflow.models import CalibratedSentenceTransformer, is_calibrated, save_card

    check_own(against, model)
    if card and not (is_calibrated(model) and Path(model).is_dir()):
        raise InputError(
            f"--card needs a calibrated model that bertflow saved, and {model} is none"
        )
    if card:
        check_files({"--card": Path(model) / CARD})
    found, absent = _read(names, own, task, data, split)
    cache, kind = users_cache(no_cache), as_precision(precision)
    sides = [model] if against is None else [model, against]
    results: dict[int, Scores] = {}
    carded: CalibratedSentenceTransformer | None = None
    for place, loaded in open_sides(sides, pooling, max_length, device, trust_remote_code, cache):
        with progress_bars() as report:
            scores = score_all(
                loaded,
                found,
                batch_size=batch_size,
                cache=cache,
                precision=kind,
                progress=lambda done, total, report=report: report("encode", done, total),  # type: ignore[misc]
            )
        if sides[place] == OWN_ENCODER:
            # Its files are those of the model, which knows from its fit what it is called.
            name = encoder_name(next(iter(results[0].scores.values())))
            scores = [replace(one, encoder={**one.encoder, "name": name}) for one in scores]
            sides[place] = "its encoder"
        results[place] = Scores(scores={one.task: one for one in scores}, absent=absent)
        if card and place == 0 and isinstance(loaded, CalibratedSentenceTransformer):
            loaded.add_scores(*scores)
            carded = loaded
        del loaded
    tell_found(cache)
    pages = [scores_page(name, results[place]) for place, name in enumerate(sides)]
    content: dict[str, Any] = {"model": model, **results[0].to_dict()}
    if against is not None:
        found_differences = differences(results[1], results[0])
        pages.append(difference_page(sides, [results[0], results[1]], found_differences))
        content["against"] = {
            "model": against or encoder_name(next(iter(results[1].scores.values()))),
            **results[1].to_dict(),
        }
        content["differences"] = {name: one.to_dict() for name, one in found_differences.items()}
    try:
        give(pages, content, json_, markdown)
    finally:
        if carded is not None:
            save_card(carded, model)


def compare(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="ENCODER",
            help="A sentence-transformers or transformers folder, a hub name or a .gguf file.",
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"{NAMES}; or all, which is the seven of STS, without qnli, whose sentences are "
            "very many. May be repeated.",
        ),
    ] = None,
    pairs: OwnPairs = None,
    columns: Columns = None,
    format_: Format = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Unlabelled sentences to fit on: target, each task's or the pairs' own; nli, SNLI "
            "and MNLI; corpus, those of --corpus. Default: corpus where that is given, otherwise "
            "target.",
        ),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="What you would fit on, as --corpus of fit: what is judged is then what would be "
            "shipped. May be repeated.",
        ),
    ] = None,
    column: Column = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these; default: all. none, adaptive-whitening, standardization, "
            "all-but-the-top, standardization+all-but-the-top, whitening, whitening-dim, "
            "soft-whitening, flow, released-flow, tempered-flow. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often each flow is fitted.")
    ] = 5,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes that fit at a time; default: the CPUs."),
    ] = None,
    data: Data = None,
    json_: Json = None,
    markdown: Markdown = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Fit every calibrator on an encoder, score them side by side, and say what is chance.

    Stopped, the same command goes on from the fits in the cache.
    """
    fit = fit or ("corpus" if corpus else "target")
    if fit not in ("target", "nli", "corpus"):
        raise InputError(f"--fit takes target, nli or corpus, got {fit!r}")
    if (fit == "corpus") != bool(corpus):
        raise InputError("--fit corpus goes with --corpus FILE, and --corpus with --fit corpus")
    if column is not None and not corpus:
        raise InputError("--column goes with --corpus")
    if format_ is not None and not corpus and pairs is None:
        raise InputError("--format goes with --corpus or --pairs")
    names = _named(task, pairs, columns, None, of_all=STS_TASKS)
    check_results(
        {"--json": json_, "--markdown": markdown},
        {"ENCODER": encoder, "--pairs": pairs, "--corpus": corpus},
        data=data,
    )
    own = _own(pairs, columns, format_)
    from bertflow.data import read_corpus

    sentences: str | Sequence[str] = fit
    if corpus:
        sentences = read_corpus(corpus, column=column, format=format_)
    from bertflow.cli.results import comparison_page, give
    from bertflow.cli.terminal import progress_bars
    from bertflow.evaluation import METHODS
    from bertflow.evaluation import compare as compare_calibrators

    methods = method or list(METHODS)
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    found, absent = _read(names, own, task, data, None)
    cache, kind = users_cache(no_cache), as_precision(precision)
    loaded = open_any(encoder, pooling, max_length, device, trust_remote_code, cache)
    try:
        with progress_bars() as report:
            result = compare_calibrators(
                loaded,
                found,
                fit=sentences,
                methods=methods,
                seeds=seeds,
                data=data,
                batch_size=batch_size,
                jobs=jobs,
                cache=cache,
                precision=kind,
                progress=report,
            )
    except KeyboardInterrupt:
        raise Interrupted(NOTHING if cache is None else kept(cache.folder)) from None
    tell_found(cache)
    result = replace(result, absent=absent)
    give(
        [comparison_page(encoder, result)], {"given": encoder, **result.to_dict()}, json_, markdown
    )


def diagnose(
    source: Annotated[
        str,
        typer.Argument(metavar="ENCODER|FILE.npy", help="An encoder, or vectors, one a row."),
    ],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Sentences to encode, as --corpus of fit; default: sentences that come along.",
        ),
    ] = None,
    column: Column = None,
    pairs: OwnPairs = None,
    columns: Columns = None,
    format_: Format = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=2, help="Take the first N sentences, or N vectors at random."
        ),
    ] = 10000,
    json_: Json = None,
    markdown: Markdown = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Look at vectors without labels, and say whether calibration is likely to help."""
    check_results(
        {"--json": json_, "--markdown": markdown},
        {"ENCODER" if not source.endswith(".npy") else "VECTORS": source, "--corpus": corpus}
        | {"--pairs": pairs},
    )
    for name, value, of, given_of in (
        ("--column", column, "--corpus", corpus),
        ("--columns", columns, "--pairs", pairs),
        ("--format", format_, "--corpus or --pairs", corpus or pairs),
    ):
        if value is not None and not given_of:
            raise InputError(f"{name} goes with {of}")
    if source.endswith(".npy"):
        given = {
            "--corpus": corpus,
            "--pairs": pairs,
            "--pooling": pooling,
            "--column": column,
            "--max-length": max_length,
        }
        if clash := [name for name, value in given.items() if value]:
            raise InputError(f"vectors go without {', '.join(clash)}")
        from bertflow.cli.diagnosis import diagnose_file

        with vectors_named(source):
            found = diagnose_file(Path(source), limit)
    else:
        from bertflow.data import read_corpus, read_pairs, sample_sentences

        own = read_pairs(pairs, columns=three(columns), format=format_) if pairs else None
        if corpus:
            sentences = read_corpus(corpus, column=column, limit=limit, format=format_)
        elif own is not None:
            sentences = [*own.first, *own.second][:limit]
        else:
            sentences = sample_sentences()[:limit]
        from bertflow.cli.diagnosis import diagnose_encoder

        cache, kind = users_cache(no_cache), as_precision(precision)
        loaded = open_any(source, pooling, max_length, device, trust_remote_code, cache)
        found = diagnose_encoder(loaded, sentences, own, batch_size, cache, kind)
        tell_found(cache)
    from bertflow.cli.diagnosis import diagnosis_page
    from bertflow.cli.results import give

    give([diagnosis_page(source, found)], {"source": source, **found.to_dict()}, json_, markdown)


def _named(
    tasks: list[str] | None,
    pairs: Path | None,
    columns: str | None,
    split: str | None,
    *,
    of_all: Sequence[str],
) -> list[str]:
    """The tasks that --task names, "all" meaning these.

    No encoder is imported for that, so that what is wrong is said at once.
    """
    if not tasks and pairs is None:
        raise InputError("give --task NAME (or all), or --pairs FILE")
    if columns is not None and pairs is None:
        raise InputError("--columns goes with --pairs")
    if split is not None and not tasks:
        raise InputError("--split goes with --task")
    names: list[str] = []
    for name in tasks or []:
        for part in map(str.strip, name.split(",")):
            if part not in (*TASKS, "all"):
                raise unknown("task", part, (*TASKS, "all"))
            names += of_all if part == "all" else [part]
    return names


def _own(pairs: Path | None, columns: str | None, format_: str | None) -> list[Pairs]:
    """The pairs of --pairs, read before an encoder is imported, too."""
    from bertflow.data import read_pairs

    return [] if pairs is None else [read_pairs(pairs, columns=three(columns), format=format_)]


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
