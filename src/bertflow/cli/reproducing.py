"""The commands of the paper: reproduce, and analyze words, lexical and isotropy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli import console, options
from bertflow.cli.options import ENCODER, INPUT, SPEED, Shared, argument, changed, option, refuse
from bertflow.display import Bars, Grid
from bertflow.display.grid import fixed, p_value, span, with_interval
from bertflow.errors import BertflowError, InputError, MissingDataError, one_line
from bertflow.io.files import check_apart, save_or_keep, write_text

if TYPE_CHECKING:
    from bertflow.analysis import Lexical
    from bertflow.analysis.frequency import Mean
    from bertflow.data import Pairs
    from bertflow.evaluation import Score
    from bertflow.paper.analyses import Scatter
    from bertflow.paper.plan import Subject
    from bertflow.paper.results import CellResult, TableResult
    from bertflow.paper.run import Made

DEFAULT_ENCODERS = ("bert-base-uncased", "bert-large-uncased")


def reproduce(
    table: list[str] = argument("TABLE"),
    *,
    encoder: list[str] | None = option(None, "NAME"),
    label: str | None = option(None, "TEXT", group=ENCODER),
    pooling: str | None = Shared.pooling,
    max_length: int = option(64, "N", group=INPUT, min=1),
    glove: str | None = option(None, "FILE", group=INPUT),
    data: Path | None = Shared.data,
    output: Path = option(Path("runs"), "DIR"),
    seeds: int = option(5, "N", min=1),
    limit: int | None = option(None, "N", group=INPUT, min=1),
    flow: str = option("paper", "NAME"),
    jobs: int | None = option(None, "N", group=SPEED, min=1),
    batch_size: int = Shared.batch_size,
    device: str = Shared.device,
    trust_remote_code: bool = Shared.trust_remote_code,
) -> None:
    """Reproduce tables of the paper: ours, published, difference. Stopped, it goes on.

    Args:
        table: table1 to table8, figure2, or all. Several are possible.
        encoder: Hub name[@revision], folder or .gguf. May be repeated. Default: the paper's two.
        label: What the encoder is called in the tables.
        pooling: Only this pooling, such as layers:1, not the paper's.
        max_length: Tokens a sentence is cut to.
        glove: Word vectors for the row Avg. GloVe: a text file, or a model of such.
        output: Folder for tables, records, vectors and fine-tuned models.
        seeds: Fits of each flow; in table8 fine-tunings of the encoder.
        limit: Take about N pairs of each split: a quick trial.
        flow: The flow: paper, released or tempered.
    """
    from bertflow.paper import check_names

    check_names(table)
    names = encoder or list(DEFAULT_ENCODERS)
    if label is not None and len(names) != 1:
        raise InputError(f"--label goes with one --encoder, got {len(names)}")
    from bertflow.paper.plan import Material, Planner, identify
    from bertflow.paper.results import TableResult
    from bertflow.paper.run import Workplace
    from bertflow.paper.run import reproduce as run

    planner = Planner(Material(data, limit), flow, seeds)
    subjects = [identify(name, pooling=pooling, max_length=max_length) for name in names]
    if label is not None:
        subjects = [replace(subjects[0], label=label)]
    if glove is not None:
        planner = replace(planner, words=replace(identify(glove, max_length=None), label="GloVe"))
    folder = output / _slug(subjects, flow, limit)
    read = [*(("--encoder", name) for name in names), *([("--glove", glove)] if glove else [])]
    check_apart({"--output": output / "records", "the tables": folder / "tables"}, read)
    made: dict[str, Made] = {}
    written: list[str] = []
    with console.resumable(output), Bars() as report:
        place = Workplace(
            planner=planner,
            folder=output,
            batch_size=batch_size,
            device=None if device == "auto" else device,
            jobs=jobs,
            trust_remote_code=trust_remote_code,
            report=report,
        )
        for name, one in run(table, subjects, place):
            made[name] = one
            if not isinstance(one, BertflowError):
                _write(folder, written, one)
    absent = {name: one for name, one in made.items() if isinstance(one, BertflowError)}
    if len(absent) == len(made):
        raise next(iter(absent.values()))
    failed = [name for name, error in absent.items() if not isinstance(error, MissingDataError)]
    tables = [one for one in made.values() if isinstance(one, TableResult)]
    parts = [f"{one.name}: {one.title}\n{table_page(one).text()}" for one in tables]
    parts += [f"{name} is absent: {why}" for name, why in absent.items() if name not in failed]
    console.show("\n\n".join([*parts, f"wrote {', '.join(written)} to {one_line(folder)}"]))
    if failed:
        # Missing data is told; anything else is an error, though other tables are there.
        why = "; ".join(f"{name}: {absent[name]}" for name in failed)
        raise BertflowError(
            f"{len(failed)} of {len(made)} could not be made: {why}; the same command makes what "
            "is missing"
        )


def _slug(subjects: Sequence[Subject], flow: str, limit: int | None) -> str:
    """A name for the folder of these tables; a trial does not take the place of the real ones."""
    names = [one.label if one.pooling is None else f"{one.label}-{one.pooling}" for one in subjects]
    parts = ["+".join(map(_file_name, names))]
    parts += [f"{flow}-flow"] if flow != "paper" else []
    parts += [f"limit{limit}"] if limit is not None else []
    return "-".join(parts)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text.replace(":", ""))


def _write(folder: Path, written: list[str], one: TableResult | list[Scatter]) -> None:
    """Write a table as Markdown and JSON, or the figure, and note the names of the files."""
    if not isinstance(one, list):
        content = json.dumps(one.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
        for suffix, text in {"md": table_markdown(one), "json": f"{content}\n"}.items():
            written.append(f"{one.name}.{suffix}")
            write_text(folder / written[-1], text)
        return
    from bertflow.report.draw import edit_distance_scatter, save_figure
    from bertflow.report.measures import relate_to_edits

    for scatter in one:
        for unit, distances in scatter.distances.items():
            figure = edit_distance_scatter(relate_to_edits(scatter.panels, distances, unit=unit))
            for suffix in ("svg", "png"):
                written.append(f"figure2-{_file_name(scatter.encoder)}-{unit}.{suffix}")
                save_figure(figure, folder / written[-1])


def table_page(one: TableResult) -> console.Page:
    """A table with its claims and notes, the doubts about published numbers last."""
    grids = [table_grid(one), claims_grid(one)] if one.claims else [table_grid(one)]
    facts = [f"{name}: {fact}" for name, fact in one.facts().items()]
    doubts = [f"{letter}: {doubt}" for doubt, letter in one.doubts().items()]
    return console.Page({}, grids, [*facts, *one.notes, *doubts])


def table_markdown(one: TableResult) -> str:
    """A table with its title, claims and notes as Markdown."""
    return f"## {one.name}: {one.title}\n{table_page(one).markdown()}"


def table_grid(one: TableResult) -> Grid:
    """Ours, its 95 % interval, spread over seeds, published, and the difference."""
    digits = 2 if one.unit == 100 else 3
    aggregated = any(row.aggregation for row in one.rows)
    marks = one.doubts()
    lines: dict[str, Callable[[CellResult], str]] = {
        "ours": lambda cell: fixed(cell.value, digits) + _arrow(cell),
        "95 %": lambda cell: span(cell.low, cell.high, digits - 1),
        "± over seeds": lambda cell: fixed(cell.deviation, 2),
        "median": lambda cell: fixed(cell.published_median and cell.median, digits),
        "published": lambda cell: _published(cell, marks),
        "difference": lambda cell: fixed(cell.difference, 2, signed=True),
    }
    rows: list[list[str]] = []
    for row, label in zip(one.rows, one.labels(), strict=True):
        about = [label, row.aggregation or ""] if aggregated else [label]
        for name, form in lines.items():
            cells = [form(row.cells[column]) for column in one.columns]
            whose = f", {row.published_for}" if row.published_for and name == "published" else ""
            if any(cells) or name == "ours":
                rows.append([*about, name + whose, *cells])
                about = [""] * len(about)
    heads = ["", "of subsets", ""] if aggregated else ["", ""]
    scale = " × 100" if one.unit == 100 else ""
    return Grid(f"ours and published{scale}", [*heads, *one.columns], rows)


def _published(cell: CellResult, marks: Mapping[str, str]) -> str:
    if cell.published is None:
        return ""
    shown = fixed(cell.published, 2)
    if cell.published_deviation is not None:
        shown += f" ± {cell.published_deviation:.2f}"
    if cell.published_median is not None:
        shown += f", median {cell.published_median:.2f}"
    return f"{shown} {''.join(sorted(marks[doubt] for doubt in cell.doubts))}".strip()


def claims_grid(one: TableResult) -> Grid:
    """What the paper says, and whether we see it."""
    # An encoder's own rows come last.
    whom = {
        row.encoder: row.published_for
        for row in one.rows
        if any(cell.published is not None for cell in row.cells.values())
    }
    rows = []
    for claim in one.claims:
        found, foreign = claim.difference, whom.get(claim.encoder)
        printed = fixed(claim.published, 2, signed=True)
        rows.append(
            [
                claim.text,
                claim.encoder,
                f"{printed} ({foreign})" if printed and foreign else printed,
                fixed(found.value, 2, signed=True),
                span(found.low, found.high, 1 if one.unit == 100 else 2, signed=True),
                p_value(found.adjusted),
                claim.verdict,
            ]
        )
    columns = ["claim", "encoder", "published", "ours", "95 %", "p (Holm)", "verdict"]
    return Grid("the paper's claims", columns, rows)


def _arrow(cell: CellResult) -> str:
    """Above or below the row's baseline beyond chance, as the paper's arrows; · where not."""
    if cell.baseline is None or cell.value is None:
        return ""
    if not cell.baseline.real:
        return " ·"
    return " ↑" if (cell.baseline.value or 0) > 0 else " ↓"


def words(
    encoder: str = Shared.encoder,
    *,
    language: str = option("en", "CODE"),
    results: options.Results,
    trust_remote_code: bool = Shared.trust_remote_code,
) -> None:
    """Norms and neighbours of word embeddings by frequency of the word (the paper's Table 1).

    Args:
        language: Language of the frequencies, such as en or de.
    """
    results.check({"ENCODER": encoder})
    from bertflow.analysis import frequent_words, word_embeddings, word_statistics

    how = options.Loading(trust_remote_code=trust_remote_code, device="cpu")
    loaded = how.load_raw(encoder)
    ranked = frequent_words(loaded[0].tokenizer, language=language)
    found = word_statistics(word_embeddings(loaded), ranked)
    groups = found.groups
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
    note = "neighbours among all word embeddings; ± 1.96 standard errors of the mean over words"
    columns = ["", *(f"[{group.low:,}, {group.high:,})" for group in groups)]
    page = console.Page(facts, [Grid("rank of the word", columns, rows)], [note])
    results.give([page], {"encoder": encoder, "language": language, **found.to_dict()})


def _mean(one: Mean | None) -> str:
    if one is None:
        return ""
    if one.low is None or one.high is None:
        return fixed(one.value, 3)
    return f"{fixed(one.value, 3)} ± {fixed((one.high - one.low) / 2, 3)}"


def lexical(
    model: str = Shared.model,
    *,
    against: str | None = Shared.against,
    task: str | None = option(None, "NAME"),
    split: str | None = option(None, "NAME"),
    own: options.Graded,
    unit: str = option("characters", "NAME"),
    short: int = option(4, "N", min=0),
    figure: Path | None = option(None, "FILE"),
    data: Path | None = Shared.data,
    results: options.Results,
    how: options.Encoder,
) -> None:
    """How far similarity is only edit distance (the paper's Table 6 and Figure 2).

    Args:
        task: A task with graded pairs. Default: stsb.
        split: Its part. Default: dev of stsb.
        unit: Edits are counted in characters or words.
        short: Pairs at most so far apart are set apart.
        figure: Draw it: .svg, .png or .pdf (the paper's Figure 2).
    """
    results.check({"MODEL": model, "--against": against or None, **own.reads()}, figure)
    options.check_own(against, model)
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
    for place, loaded in how.open_sides(names):
        with console.progress_bar("encode") as report:
            found[place] = score_pairs(loaded, pairs, progress=report, **how.encoding())
        del loaded
    scores = {name or "its encoder": found[place] for place, name in enumerate(names)}
    gold, cosines = gold_of(pairs), {name: score.cosines for name, score in scores.items()}
    statistics = analysis.lexical_statistics(gold, cosines, distances, short=short)
    if figure is not None:
        related = relate_to_edits({"gold": gold, **cosines}, distances, short=short, unit=unit)
        save_or_keep(figure, partial(draw.save_figure, draw.edit_distance_scatter(related)))
    content = {
        "task": pairs.task,
        "split": pairs.split,
        "data": pairs.source,
        "unit": unit,
        "cut": max(score.cut for score in scores.values()),
        "not_scored": {name: score.skipped for name, score in scores.items()},
        **statistics.to_dict(),
    }
    results.give([lexical_page(pairs, unit, statistics, scores)], content)


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
    pooling: list[str] | None = option(None, "NAME", group=ENCODER, callback=options.known_pooling),
    results: options.Results,
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
    from bertflow.data import sample_sentences

    sentences = text.sentences(corpus) if corpus else sample_sentences()
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
    rows = []
    for name, one in found.items():
        figures = (one.mean_cosine, one.partition_isotropy, one.isoscore)
        rank, leading = f"{one.effective_rank:.0f}", f"{100 * one.leading_share:.0f} %"
        rows.append([name, *(f"{figure:.3f}" for figure in figures), rank, leading])
    first = found[poolings[0]]
    rows.append(["at best", "0", "1", "1", f"{min(first.width, first.rows - 1)}", ""])
    measures = ["mean cosine", "partition isotropy", "IsoScore", "effective rank"]
    grid = Grid("isotropy", ["pooling", *measures, "leading dimension"], rows)
    facts = {
        "encoder": encoder,
        "vectors": f"{first.rows:,} sentences, {first.width} dimensions",
        "cut": f"{embedded.cut:,} sentences are longer than the encoder takes",
    }
    notes = [
        "layers:0 is the embeddings, the highest the last block; leading dimension: its share of "
        "the mean cosine",
        "the most isotropic pooling is not always the best one: bertflow compare tells",
    ]
    content = {
        "encoder": encoder,
        "cut": embedded.cut,
        "poolings": {name: one.to_dict() for name, one in found.items()},
    }
    results.give([console.Page(facts, [grid], notes)], content)
