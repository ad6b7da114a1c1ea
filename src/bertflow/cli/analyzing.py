"""The commands that look at an encoder as the paper does: analyze words, lexical, isotropy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli import console, opening, options
from bertflow.cli.options import ENCODER, INPUT, Shared, changed, option, refuse
from bertflow.display import Grid
from bertflow.display.grid import fixed, with_interval

if TYPE_CHECKING:
    from bertflow.analysis import Isotropy, Lexical, WordStatistics
    from bertflow.analysis.frequency import Mean
    from bertflow.data import Pairs
    from bertflow.evaluation import Score


def words(
    encoder: str = Shared.encoder,
    *,
    language: str = option("en", "CODE"),
    results: console.Results,
    trust_remote_code: bool = Shared.trust_remote_code,
) -> None:
    """Norms and neighbours of word embeddings by frequency of the word (the paper's Table 1).

    Args:
        language: Language of the frequencies, such as en or de.
    """
    results.check({"ENCODER": encoder})
    from bertflow.analysis import frequent_words, word_embeddings, word_statistics

    how = options.Loading(trust_remote_code=trust_remote_code, device="cpu")
    loaded = opening.load_raw(encoder, how)
    ranked = frequent_words(loaded[0].tokenizer, language=language)
    found = word_statistics(word_embeddings(loaded), ranked)
    content = {"encoder": encoder, "language": language, **found.to_dict()}
    results.give([words_page(encoder, language, found)], content)


def words_page(encoder: str, language: str, found: WordStatistics) -> console.Page:
    """Word embeddings by frequency."""
    groups = found.groups
    columns = [f"[{group.low:,}, {group.high:,})" for group in groups]
    rows = [
        ["words of one piece", *(f"{group.words:,}" for group in groups)],
        ["mean ℓ2 norm", *(_mean(group.norm) for group in groups)],
    ]
    for measure, title in {"distance": "ℓ2 distance", "dot": "dot product"}.items():
        for k in getattr(groups[0], measure):
            means = (_mean(getattr(group, measure)[k]) for group in groups)
            rows.append([f"mean k-NN {title}, k = {k}", *means])
    facts = {
        "encoder": f"{encoder}: {found.vocabulary:,} word embeddings of {found.width} dimensions",
        "ranks": f"by frequency, wordfreq, {language}; words of one whole piece",
    }
    notes = [
        "neighbours among all word embeddings; ± 1.96 standard errors of the mean over words",
    ]
    return console.Page(facts, [Grid("rank of the word", ["", *columns], rows)], notes)


def _mean(one: Mean | None) -> str:
    if one is None or one.value is None:
        return ""
    if one.low is None or one.high is None:
        return fixed(one.value, 3)
    return f"{fixed(one.value, 3)} ± {fixed((one.high - one.low) / 2, 3)}"


def lexical(
    model: str = Shared.model,
    *,
    against: str | None = option(None, "[MODEL]"),
    task: str | None = option(None, "NAME"),
    split: str | None = option(None, "NAME"),
    own: options.Graded,
    unit: str = option("characters", "NAME"),
    short: int = option(4, "N", min=0),
    figure: Path | None = option(None, "FILE"),
    data: Path | None = Shared.data,
    results: console.Results,
    how: options.Encoder,
) -> None:
    """How far similarity is only edit distance (the paper's Table 6 and Figure 2).

    Args:
        against: Another model, or without a value the calibrated model's own encoder. Beside a
            calibrated model, encoders without a pooling of their own take its pooling and length,
            unless --pooling and --max-length say otherwise.
        task: A task with graded pairs. Default: stsb.
        split: Its part. Default: dev of stsb.
        unit: Edits are counted in characters or words.
        short: Pairs at most so far apart are set apart.
        figure: Draw it: .svg, .png or .pdf (the paper's Figure 2).
    """
    results.check({"MODEL": model, "--against": against or None, "--pairs": own.pairs}, figure)
    opening.check_own(against, model)
    own.check()
    from bertflow.data import read_task

    if own.pairs is not None:
        refuse({"--task": task, "--split": split}, "does not go with --pairs")
        pairs = own.read()[0]
    else:
        pairs = read_task(task or "stsb", data, split if task else split or "dev")
    from bertflow import analysis
    from bertflow.evaluation import score_pairs
    from bertflow.evaluation.scores import gold_of
    from bertflow.report import draw
    from bertflow.report.measures import relate_to_edits

    if figure is not None:
        draw.check_figure(figure)
    distances = analysis.edit_distances(pairs.first, pairs.second, unit=unit)
    names = [model] if against is None else [against, model]
    found: dict[int, Score] = {}
    for place, loaded in opening.open_sides(names, how):
        with console.progress_bar("encode") as report:
            found[place] = score_pairs(loaded, pairs, progress=report, **how.encoding())
        del loaded
    scores = {name or "its encoder": found[place] for place, name in enumerate(names)}
    gold, cosines = gold_of(pairs), {name: score.cosines for name, score in scores.items()}
    statistics = analysis.lexical_statistics(gold, cosines, distances, short=short)
    figures = {}
    if figure is not None:
        related = relate_to_edits({"gold": gold, **cosines}, distances, short=short, unit=unit)
        figures[figure] = partial(draw.save_figure, draw.edit_distance_scatter(related))
    content = {
        "task": pairs.task,
        "split": pairs.split,
        "data": pairs.source,
        "unit": unit,
        "cut": max(score.cut for score in scores.values()),
        "not_scored": {name: score.skipped for name, score in scores.items()},
        **statistics.to_dict(),
    }
    results.give([lexical_page(pairs, unit, statistics, scores)], content, figures)


def lexical_page(
    pairs: Pairs, unit: str, found: Lexical, scores: Mapping[str, Score]
) -> console.Page:
    """How similarities go with edit distance; scores are by model."""
    from bertflow.cli.score_pages import side_of

    columns = (found.edit, found.gold, found.short_edit, found.short_gold)
    rows = [[name, *(with_interval(one[name]) for one in columns)] for name in found.edit]
    near = f"≤ {found.short} apart"
    heads = ["similarity", "edit distance", "gold", f"edit, {near}", f"gold, {near}"]
    cut = max(score.cut for score in scores.values())
    facts = {
        "pairs": f"{pairs.task} {pairs.split}: {found.pairs:,} from {pairs.source}; "
        f"{found.short_pairs:,} at most {found.short} {unit} apart",
        "cut": f"{cut:,} distinct texts are longer than the encoder takes",
    }
    notes = [side_of(name, score) for name, score in scores.items()]
    notes.append(
        f"edit distance: Levenshtein over {unit}; negative, since distant pairs are less alike"
    )
    if len(set(pairs.subset)) > 1:
        notes.append("over all pairs together, of whichever subset (all)")
    for name, score in scores.items():
        apart = found.difference(name, "gold")
        if apart.value is not None:
            more = "more" if apart.value < 0 else "less"
            sure = "" if apart.real else "; chance is enough to explain it"
            difference = with_interval(apart, signed=True)
            notes.append(f"{name} goes with edit distance {more} than gold: {difference}{sure}")
        if skipped := console.counts(score.skipped):
            notes.append(f"{name}: not scored: {skipped}")
    if found.skipped:
        notes.append(f"{found.skipped:,} pairs left out: without gold or without a cosine")
    return console.Page(facts, [Grid("Spearman × 100, 95 % interval", heads, rows)], notes)


def isotropy(
    encoder: str = Shared.encoder,
    *,
    corpus: list[str] | None = Shared.corpus,
    text: options.Text,
    limit: int = option(2000, "N", group=INPUT, min=3),
    pooling: list[str] | None = option(None, "NAME", group=ENCODER),
    results: console.Results,
    how: options.Encoder,
) -> None:
    """Isotropy of the sentence vectors of every hidden state, or of the poolings named.

    Without --corpus it is of sentences that come along.

    Args:
        limit: Take the first N sentences.
        pooling: Only these, such as layers:1. May be repeated. Default: all hidden states.
    """
    if not corpus:
        refuse(changed(text), "goes with --corpus")
    results.check({"ENCODER": encoder, "--corpus": corpus})
    from bertflow import data

    sentences = data.sample_sentences()
    if corpus:
        sentences = data.read_corpus(corpus, column=text.column, format=text.format)
    import numpy as np

    from bertflow import encoders
    from bertflow.analysis import measure_isotropy

    distinct = list(dict.fromkeys(sentences))[:limit]
    loading = {**how.loading(), "cache": how.cache}
    del loading["pooling"]
    with console.busy(f"loading {encoder}"):
        if pooling:
            poolings = list(dict.fromkeys(pooling))
            loaded = encoders.load_poolings(encoder, poolings, **loading)
        else:
            loaded, poolings = encoders.load_layers(encoder, **loading)
    with console.progress_bar("encode") as report:
        embedded = encoders.embed(loaded, distinct, progress=report, **how.encoding())
    parts = np.split(embedded.rows(), len(poolings), axis=1)
    found = {name: measure_isotropy(part) for name, part in zip(poolings, parts, strict=True)}
    content = {
        "encoder": encoder,
        "cut": embedded.cut,
        "poolings": {name: one.to_dict() for name, one in found.items()},
    }
    results.give([isotropy_page(encoder, found, embedded.cut)], content)


def isotropy_page(encoder: str, found: Mapping[str, Isotropy], cut: int) -> console.Page:
    """Isotropy pooling by pooling."""
    rows = [
        [
            name,
            *(f"{one.mean_cosine:.3f}", f"{one.partition_isotropy:.3f}", f"{one.isoscore:.3f}"),
            *(f"{one.effective_rank:.0f}", f"{100 * one.leading_share:.0f} %"),
        ]
        for name, one in found.items()
    ]
    first = next(iter(found.values()))
    rows.append(["at best", "0", "1", "1", f"{min(first.width, first.rows - 1)}", ""])
    measures = ["mean cosine", "partition isotropy", "IsoScore", "effective rank"]
    facts = {
        "encoder": encoder,
        "vectors": f"{first.rows:,} sentences, {first.width} dimensions",
        "cut": f"{cut:,} sentences are longer than the encoder takes",
    }
    notes = [
        "layers:0 is the embeddings, the highest the last block; leading dimension: its share of "
        "the mean cosine",
        "the most isotropic pooling is not always the best one: bertflow compare tells",
    ]
    grid = Grid("isotropy", ["pooling", *measures, "leading dimension"], rows)
    return console.Page(facts, [grid], notes)
