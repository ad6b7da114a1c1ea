"""The commands that look at an encoder as the paper does: analyze words, lexical, isotropy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli.destinations import check_results
from bertflow.cli.opening import check_own, load_raw, open_sides
from bertflow.cli.options import (
    ENCODER,
    INPUT,
    SOURCES_HELP,
    EncoderOptions,
    PairOptions,
    ResultOptions,
    SpeedOptions,
    TextOptions,
    argument,
    data_option,
    device_or_none,
    known_place,
    known_pooling,
    max_length_option,
    model_argument,
    option,
    refuse_alone,
    trust_option,
)
from bertflow.cli.terminal import busy, progress_bar, tell_cached
from bertflow.errors import InputError

if TYPE_CHECKING:
    from bertflow.data import Pairs
    from bertflow.evaluation import Score

encoder_argument = partial(
    argument, "ENCODER", "An encoder's folder, a hub name or a .gguf file.", callback=known_place
)


def words(
    encoder: str = encoder_argument(),
    *,
    language: str = option("en", "CODE", "Language of the frequencies, such as en or de."),
    results: ResultOptions,
    trust_remote_code: bool = trust_option(),
) -> None:
    """Norms and neighbours of word embeddings by frequency of the word (the paper's Table 1)."""
    check_results(results.files(), {"ENCODER": encoder})
    from bertflow.analysis import frequent_words, word_embeddings, word_statistics
    from bertflow.cli.analysis_pages import words_page
    from bertflow.cli.pages import give

    loading = EncoderOptions(trust_remote_code=trust_remote_code)
    loaded = load_raw(encoder, loading, SpeedOptions(device="cpu"))
    ranked = frequent_words(loaded[0].tokenizer, language=language)
    found = word_statistics(word_embeddings(loaded), ranked)
    content = {"encoder": encoder, "language": language, **found.to_dict()}
    give([words_page(encoder, language, found)], content, results)


def lexical(
    model: str = model_argument(),
    *,
    against: str | None = option(
        None,
        "[MODEL]",
        "Another model, or without a value the calibrated model's own encoder. Beside a "
        "calibrated model its encoder and raw ones take its pooling and length, unless "
        "--pooling and --max-length say otherwise.",
    ),
    task: str | None = option(None, "NAME", "A task with graded pairs. Default: stsb."),
    split: str | None = option(None, "NAME", "Its part. Default: dev of stsb."),
    own: PairOptions,
    unit: str = option("characters", "NAME", "Edits are counted in characters or words."),
    short: int = option(4, "N", "Pairs at most so far apart are set apart.", min=0),
    figure: Path | None = option(
        None, "FILE", "Draw it: .svg, .png or .pdf (the paper's Figure 2)."
    ),
    data: Path | None = data_option(),
    results: ResultOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
) -> None:
    """How far similarity is only edit distance (the paper's Table 6 and Figure 2)."""
    reads = {"MODEL": model, "--against": against or None, "--pairs": own.pairs}
    check_results({**results.files(), "--figure": figure}, reads, data=data)
    check_own(against, model)
    pairs = _pairs(task, split, own, data)
    from bertflow.analysis import edit_distances, lexical_statistics
    from bertflow.cli.analysis_pages import lexical_page
    from bertflow.cli.pages import give
    from bertflow.evaluation.scores import gold_of
    from bertflow.report.draw import check_figure, edit_distance_scatter, save_figure
    from bertflow.report.measures import relate_to_edits

    if figure is not None:
        check_figure(figure)
    distances = edit_distances(pairs.first, pairs.second, unit=unit)
    scores = _scored([model] if against is None else [against, model], pairs, loading, speed)
    gold, cosines = gold_of(pairs), {name: score.cosines for name, score in scores.items()}
    statistics = lexical_statistics(gold, cosines, distances, short=short)
    figures = {}
    if figure is not None:
        panels = {"gold": gold, **cosines}
        related = relate_to_edits(panels, distances, short=short, unit=unit)
        figures[figure] = partial(save_figure, edit_distance_scatter(related))
    content = {
        "task": pairs.task,
        "split": pairs.split,
        "data": pairs.source,
        "unit": unit,
        "cut": max(score.cut for score in scores.values()),
        "not_scored": {name: score.skipped for name, score in scores.items()},
        **statistics.to_dict(),
    }
    give([lexical_page(pairs, unit, statistics, scores)], content, results, figures)


def _scored(
    names: list[str], pairs: Pairs, loading: EncoderOptions, speed: SpeedOptions
) -> dict[str, Score]:
    """The scores of models by name."""
    from bertflow.evaluation import score_pairs

    scores: dict[int, Score] = {}
    for place, loaded in open_sides(names, loading, speed):
        with progress_bar("encode") as report:
            scores[place] = score_pairs(loaded, pairs, progress=report, **speed.encoding())
        del loaded
    tell_cached(speed.cache)
    return {name or "its encoder": scores[place] for place, name in enumerate(names)}


def _pairs(task: str | None, split: str | None, own: PairOptions, data: Path | None) -> Pairs:
    from bertflow.data import read_task

    refuse_alone("--pairs", {"--columns": own.columns, "--format": own.format}, has_it=own.pairs)
    if own.pairs is not None:
        if task is not None or split is not None:
            raise InputError("--pairs goes without --task and --split")
        return own.read()[0]
    if task is None:
        return read_task("stsb", data, split or "dev")
    return read_task(task, data, split)


def isotropy(
    encoder: str = encoder_argument(),
    *,
    corpus: list[str] | None = option(None, "FILE", SOURCES_HELP),
    text: TextOptions,
    limit: int = option(2000, "N", "Take the first N sentences.", group=INPUT, min=3),
    pooling: list[str] | None = option(
        None,
        "NAME",
        "Only these, such as layers:1. May be repeated. Default: all hidden states.",
        group=ENCODER,
    ),
    results: ResultOptions,
    max_length: int | None = max_length_option(),
    speed: SpeedOptions,
    trust_remote_code: bool = trust_option(),
) -> None:
    """Isotropy of the sentence vectors of every hidden state, or of the poolings named.

    Without --corpus it is of sentences that come along.
    """
    refuse_alone("--corpus", {"--column": text.column, "--format": text.format}, has_it=corpus)
    for name in pooling or []:
        known_pooling(name)
    check_results(results.files(), {"ENCODER": encoder, "--corpus": corpus})
    from bertflow.data import read_corpus, sample_sentences

    if corpus:
        sentences = read_corpus(corpus, column=text.column, format=text.format)
    else:
        sentences = sample_sentences()
    import numpy as np

    from bertflow.analysis import measure_isotropy
    from bertflow.cli.analysis_pages import isotropy_page
    from bertflow.cli.pages import give
    from bertflow.encoders import embed, load_layers, load_poolings

    distinct = list(dict.fromkeys(sentences))[:limit]
    how: dict[str, Any] = {
        "max_length": max_length,
        "device": device_or_none(speed.device),
        "trust_remote_code": trust_remote_code,
        "cache": speed.cache,
    }
    with busy(f"loading {encoder}"):
        if pooling:
            poolings = list(dict.fromkeys(pooling))
            loaded = load_poolings(encoder, poolings, **how)
        else:
            loaded, poolings = load_layers(encoder, **how)
    with progress_bar("encode") as report:
        embedded = embed(loaded, distinct, progress=report, **speed.encoding())
    tell_cached(speed.cache)
    parts = np.split(embedded.rows(), len(poolings), axis=1)
    found = {name: measure_isotropy(part) for name, part in zip(poolings, parts, strict=True)}
    content = {
        "encoder": encoder,
        "cut": embedded.cut,
        "poolings": {name: one.to_dict() for name, one in found.items()},
    }
    give([isotropy_page(encoder, found, embedded.cut)], content, results)
