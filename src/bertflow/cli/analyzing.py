"""The commands that look at an encoder as the paper does: analyze words, lexical, isotropy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertflow.cli.caching import as_precision, tell_found, users_cache
from bertflow.cli.opening import check_own, load_raw, open_sides
from bertflow.cli.options import (
    ENCODER,
    INPUT,
    BatchSize,
    Column,
    Columns,
    Command,
    Corpus,
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
    device_or_none,
    known_place,
    known_pooling,
    three,
)
from bertflow.cli.places import check_results
from bertflow.errors import InputError

if TYPE_CHECKING:
    from bertflow.data import Pairs
    from bertflow.evaluation import Score

analyze = typer.Typer(
    no_args_is_help=True,
    help="Look at an encoder as the paper does: its words, edit distance, isotropy.",
)

Encoder = Annotated[
    str,
    typer.Argument(
        metavar="ENCODER",
        callback=known_place,
        help="An encoder's folder, a hub name or a .gguf file.",
    ),
]


@analyze.command()
def words(
    encoder: Encoder,
    language: Annotated[
        str, typer.Option(metavar="CODE", help="Language of the frequencies, such as en or de.")
    ] = "en",
    json_: Json = None,
    markdown: Markdown = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Norms and neighbours of word embeddings by frequency of the word (the paper's Table 1)."""
    check_results({"--json": json_, "--markdown": markdown}, {"ENCODER": encoder})
    from bertflow.analysis import frequent_words, word_embeddings, word_statistics
    from bertflow.cli.paper_pages import words_page
    from bertflow.cli.results import give

    loaded = load_raw(encoder, None, None, "cpu", trust_remote_code, users_cache(False))
    ranked = frequent_words(loaded[0].tokenizer, language=language)
    found = word_statistics(word_embeddings(loaded), ranked)
    give(
        [words_page(encoder, language, found)],
        {"encoder": encoder, "language": language, **found.to_dict()},
        json_,
        markdown,
    )


@analyze.command(cls=Command)
def lexical(
    model: Model,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="[MODEL]",
            help="Another model, or without a value the calibrated model's own encoder. Beside a "
            "calibrated model its encoder and raw ones take its pooling and length, unless "
            "--pooling and --max-length say otherwise.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="A task with graded pairs. Default: stsb.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its part. Default: dev of stsb.")
    ] = None,
    pairs: OwnPairs = None,
    columns: Columns = None,
    format_: Format = None,
    unit: Annotated[
        str, typer.Option(metavar="NAME", help="Edits are counted in characters or words.")
    ] = "characters",
    short: Annotated[
        int, typer.Option(metavar="N", min=0, help="Pairs at most so far apart are set apart.")
    ] = 4,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: .svg, .png or .pdf (the paper's Figure 2)."),
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
    """How far similarity is only edit distance (the paper's Table 6 and Figure 2)."""
    check_results(
        {"--json": json_, "--markdown": markdown, "--figure": figure},
        {"MODEL": model, "--against": against or None, "--pairs": pairs},
        data=data,
    )
    check_own(against, model)
    found = _pairs(task, split, pairs, columns, data, format_)
    from bertflow.analysis import edit_distances, lexical_statistics
    from bertflow.cli.paper_pages import lexical_page
    from bertflow.cli.results import give, side_of
    from bertflow.cli.terminal import progress_bars
    from bertflow.evaluation import score_pairs
    from bertflow.evaluation.scores import gold_of
    from bertflow.report.draw import check_figure, edit_distance_scatter, save_figure
    from bertflow.report.measures import relate_to_edits

    if figure is not None:
        check_figure(figure)
    distances = edit_distances(found.first, found.second, unit=unit)
    cache, kind = users_cache(no_cache), as_precision(precision)
    names = [model] if against is None else [against, model]
    scores: dict[int, Score] = {}
    for place, loaded in open_sides(names, pooling, max_length, device, trust_remote_code, cache):
        with progress_bars() as report:
            scores[place] = score_pairs(
                loaded,
                found,
                batch_size=batch_size,
                cache=cache,
                precision=kind,
                progress=lambda done, total, report=report: report("encode", done, total),  # type: ignore[misc]
            )
        del loaded
    tell_found(cache)
    sides = {name or "its encoder": scores[place] for place, name in enumerate(names)}
    cosines = {name: one.cosines for name, one in sides.items()}
    skipped = {name: one.skipped for name, one in sides.items()}
    cut = max(one.cut for one in sides.values())
    gold = gold_of(found)
    statistics = lexical_statistics(gold, cosines, distances, short=short)
    figures = {}
    if figure is not None:
        panels = {"gold": gold, **cosines}
        related = relate_to_edits(panels, distances, short=short, unit=unit)
        figures[figure] = partial(save_figure, edit_distance_scatter(related))
    page = lexical_page(found, unit, statistics, skipped, cut)
    told = [side_of(name, one) for name, one in sides.items()]
    give(
        [replace(page, notes=[*told, *page.notes])],
        {
            "task": found.task,
            "split": found.split,
            "data": found.source,
            "unit": unit,
            "cut": cut,
            "not_scored": skipped,
            **statistics.to_dict(),
        },
        json_,
        markdown,
        figures,
    )


@analyze.command()
def isotropy(
    encoder: Encoder,
    corpus: Corpus = None,
    column: Column = None,
    format_: Format = None,
    limit: Annotated[
        int,
        typer.Option(metavar="N", min=3, help="Take the first N sentences.", rich_help_panel=INPUT),
    ] = 2000,
    pooling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these, such as layers:1. May be repeated. Default: all hidden states.",
            rich_help_panel=ENCODER,
        ),
    ] = None,
    json_: Json = None,
    markdown: Markdown = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Isotropy of the sentence vectors of every hidden state, or of the poolings named.

    Without --corpus it is of sentences that come along.
    """
    for option, value in {"--column": column, "--format": format_}.items():
        if value is not None and not corpus:
            raise InputError(f"{option} goes with --corpus")
    for name in pooling or []:
        known_pooling(name)
    check_results(
        {"--json": json_, "--markdown": markdown}, {"ENCODER": encoder, "--corpus": corpus}
    )
    from bertflow.data import read_corpus, sample_sentences

    sentences = read_corpus(corpus, column=column, format=format_) if corpus else sample_sentences()
    import numpy as np

    from bertflow.analysis import measure_isotropy
    from bertflow.cli.paper_pages import isotropy_page
    from bertflow.cli.results import give
    from bertflow.cli.terminal import busy, progress_bars
    from bertflow.encoders import embed, load_layers, load_poolings

    cache, kind = users_cache(no_cache), as_precision(precision)
    distinct = list(dict.fromkeys(sentences))[:limit]
    how: dict[str, Any] = {
        "max_length": max_length,
        "device": device_or_none(device),
        "trust_remote_code": trust_remote_code,
        "cache": cache,
    }
    with busy(f"loading {encoder}"):
        if pooling:
            poolings = list(dict.fromkeys(pooling))
            loaded = load_poolings(encoder, poolings, **how)
        else:
            loaded, poolings = load_layers(encoder, **how)
    with progress_bars() as report:
        embedded = embed(
            loaded,
            distinct,
            batch_size=batch_size,
            cache=cache,
            precision=kind,
            progress=lambda done, total: report("encode", done, total),
        )
    tell_found(cache)
    parts = np.split(embedded.rows(), len(poolings), axis=1)
    found = {name: measure_isotropy(part) for name, part in zip(poolings, parts, strict=True)}
    give(
        [isotropy_page(encoder, found, embedded.cut)],
        {
            "encoder": encoder,
            "cut": embedded.cut,
            "poolings": {name: one.to_dict() for name, one in found.items()},
        },
        json_,
        markdown,
    )


def _pairs(
    task: str | None,
    split: str | None,
    pairs: Path | None,
    columns: str | None,
    data: Path | None,
    format_: str | None,
) -> Pairs:
    from bertflow.data import read_pairs, read_task

    for name, value in {"--columns": columns, "--format": format_}.items():
        if value is not None and pairs is None:
            raise InputError(f"{name} goes with --pairs")
    if pairs is not None:
        if task is not None or split is not None:
            raise InputError("--pairs goes without --task and --split")
        return read_pairs(pairs, columns=three(columns), format=format_)
    if task is None:
        return read_task("stsb", data, split or "dev")
    return read_task(task, data, split)
