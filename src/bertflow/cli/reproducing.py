"""The command that reproduces the paper, and what its tables look like: reproduce."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli.console import Page, interruptible, resumes_from, show
from bertflow.cli.options import (
    ENCODER,
    INPUT,
    SPEED,
    Shared,
    argument,
    device_or_none,
    option,
    pooling_option,
)
from bertflow.display import Bars, Grid
from bertflow.display.grid import fixed, p_value, span
from bertflow.errors import BertflowError, InputError, MissingDataError, one_line
from bertflow.io.files import check_apart, write_text

if TYPE_CHECKING:
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
    pooling: str | None = pooling_option(None),
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
        jobs: Processes that fit at a time. Default: the CPUs.
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
        words = replace(identify(glove), label="GloVe", max_length=None)
        planner = replace(planner, words=words)
    folder = output / _slug(subjects, flow, limit)
    read = [*(("--encoder", name) for name in names), *([("--glove", glove)] if glove else [])]
    check_apart({"--output": output / "records", "the tables": folder / "tables"}, read)
    made: dict[str, Made] = {}
    written: list[str] = []
    with interruptible(lambda: resumes_from(output)), Bars() as report:
        place = Workplace(
            planner=planner,
            folder=output,
            batch_size=batch_size,
            device=device_or_none(device),
            jobs=jobs,
            trust_remote_code=trust_remote_code,
            report=report,
        )
        for name, one in run(table, subjects, place):
            made[name] = one
            if not isinstance(one, BertflowError):
                written += _write(one, folder)
    absent = {name: one for name, one in made.items() if isinstance(one, BertflowError)}
    if len(absent) == len(made):
        raise next(iter(absent.values()))
    failed = [name for name, error in absent.items() if not isinstance(error, MissingDataError)]
    tables = [one for one in made.values() if isinstance(one, TableResult)]
    parts = [f"{one.name}: {one.title}\n{table_page(one).text()}" for one in tables]
    parts += [f"{name} is absent: {why}" for name, why in absent.items() if name not in failed]
    show("\n\n".join([*parts, f"wrote {', '.join(written)} to {one_line(folder)}"]))
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


def _write(one: TableResult | Sequence[Scatter], folder: Path) -> list[str]:
    """Write a table as Markdown, CSV and JSON, or the figure; the names of the files."""
    from bertflow.paper.results import TableResult

    if not isinstance(one, TableResult):
        return [name for scatter in one for name in _draw(scatter, folder)]
    content = json.dumps(one.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
    forms = {"md": table_markdown(one), "csv": one.to_csv(), "json": f"{content}\n"}
    for suffix, text in forms.items():
        write_text(folder / f"{one.name}.{suffix}", text)
    return [f"{one.name}.{suffix}" for suffix in forms]


def _draw(scatter: Scatter, folder: Path) -> Iterator[str]:
    from bertflow.report.draw import edit_distance_scatter, save_figure
    from bertflow.report.measures import relate_to_edits

    for unit, distances in scatter.distances.items():
        figure = edit_distance_scatter(relate_to_edits(scatter.panels, distances, unit=unit))
        for suffix in ("svg", "png"):
            name = f"figure2-{_file_name(scatter.encoder)}-{unit}.{suffix}"
            save_figure(figure, folder / name)
            yield name


def table_page(one: TableResult) -> Page:
    """A table with its claims and notes."""
    grids = [table_grid(one), claims_grid(one)] if one.claims else [table_grid(one)]
    return Page({}, grids, notes_of(one))


def table_markdown(one: TableResult) -> str:
    """A table with its title, claims and notes as Markdown."""
    return f"## {one.name}: {one.title}\n{table_page(one).markdown()}"


def table_grid(one: TableResult) -> Grid:
    """Ours, its 95 % interval, spread over seeds, published, and the difference."""
    digits = 2 if one.unit == 100 else 3
    aggregated = any(row.aggregation for row in one.rows)
    marks = one.doubts()
    lines: dict[str, Callable[[CellResult], str]] = {
        "ours": lambda cell: fixed(cell.value, digits, minus="-") + _arrow(cell),
        "95 %": lambda cell: span(cell.low, cell.high, digits - 1, minus="-"),
        "± over seeds": lambda cell: fixed(cell.deviation, 2, minus="-"),
        "median": lambda cell: fixed(cell.published_median and cell.median, digits, minus="-"),
        "published": lambda cell: _published(cell, marks),
        "difference": lambda cell: fixed(cell.difference, 2, signed=True, minus="-"),
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
    shown = fixed(cell.published, 2, minus="-")
    if cell.published_deviation is not None:
        shown += f" ± {cell.published_deviation:.2f}"
    if cell.published_median is not None:
        shown += f", median {cell.published_median:.2f}"
    return f"{shown} {cell.marks(marks)}".strip()


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
        printed = fixed(claim.published, 2, signed=True, minus="-")
        rows.append(
            [
                claim.text,
                claim.encoder,
                f"{printed} ({foreign})" if printed and foreign else printed,
                fixed(found.value, 2, signed=True, minus="-"),
                span(found.low, found.high, 1 if one.unit == 100 else 2, signed=True, minus="-"),
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


def notes_of(one: TableResult) -> list[str]:
    """What must be said beside the table, the doubts about published numbers last."""
    return [
        *(f"{name}: {fact}" for name, fact in one.facts().items()),
        *one.notes,
        *(f"{letter}: {doubt}" for doubt, letter in one.doubts().items()),
    ]
