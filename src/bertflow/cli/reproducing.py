"""The command that reproduces the paper, and what its tables look like: reproduce."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli.interruption import Interrupted, resumes_from
from bertflow.cli.options import (
    ENCODER,
    INPUT,
    SPEED,
    argument,
    batch_size_option,
    data_option,
    device_option,
    device_or_none,
    known_pooling,
    option,
    trust_option,
)
from bertflow.cli.terminal import progress_bars, show
from bertflow.errors import BertflowError, InputError, MissingDataError, one_line, unknown
from bertflow.io.files import check_apart, write_text

if TYPE_CHECKING:
    from bertflow.paper import Subject, TableResult
    from bertflow.paper.analyses import Scatter

DEFAULT_ENCODERS = ("bert-base-uncased", "bert-large-uncased")


def reproduce(
    table: list[str] = argument(
        "TABLE", "table1 to table8, figure2, or all. Several are possible."
    ),
    *,
    encoder: list[str] | None = option(
        None,
        "NAME",
        "Hub name[@revision], folder or .gguf. May be repeated. Default: the paper's two.",
    ),
    label: str | None = option(
        None, "TEXT", "What the encoder is called in the tables.", group=ENCODER
    ),
    pooling: str | None = option(
        None,
        "NAME",
        "Only this pooling, such as layers:1, not the paper's.",
        group=ENCODER,
        callback=known_pooling,
    ),
    max_length: int = option(64, "N", "Tokens a sentence is cut to.", group=INPUT, min=1),
    glove: str | None = option(
        None,
        "FILE",
        "Word vectors for the row Avg. GloVe: a text file, or a model of such.",
        group=INPUT,
    ),
    data: Path | None = data_option(),
    output: Path = option(
        Path("runs"), "DIR", "Folder for tables, records, vectors and fine-tuned models."
    ),
    seeds: int = option(5, "N", "Fits of each flow; in table8 fine-tunings of the encoder.", min=1),
    limit: int | None = option(
        None, "N", "Take about N pairs of each split: a quick trial.", group=INPUT, min=1
    ),
    flow: str = option("paper", "NAME", "The flow: paper, released or tempered."),
    jobs: int | None = option(
        None, "N", "Processes that fit at a time. Default: the CPUs.", group=SPEED, min=1
    ),
    batch_size: int = batch_size_option(),
    device: str = device_option(),
    trust_remote_code: bool = trust_option(),
) -> None:
    """Reproduce tables of the paper: ours, published, difference. Stopped, it goes on."""
    from bertflow.paper import NAMES

    for name in table:
        if name not in (*NAMES, "all"):
            raise unknown("table", name, (*NAMES, "all"))
    names = encoder or list(DEFAULT_ENCODERS)
    if label is not None and len(names) != 1:
        raise InputError(f"--label goes with one --encoder, got {len(names)}")
    from bertflow.paper import Material, Options, Planner, Workplace, identify
    from bertflow.paper import reproduce as run

    options = Options(flow=flow, seeds=seeds)  # type: ignore[arg-type]
    subjects = [identify(name, pooling=pooling, max_length=max_length) for name in names]
    if label is not None:
        subjects = [replace(subjects[0], label=label)]
    words = None if glove is None else replace(identify(glove), label="GloVe", max_length=None)
    place = Workplace(
        folder=output,
        batch_size=batch_size,
        device=device_or_none(device),
        jobs=jobs,
        trust_remote_code=trust_remote_code,
    )
    planner = Planner(Material(data, limit), options, words)
    folder = output / _slug(subjects, flow, limit)
    read = [("--encoder", name) for name in names]
    read += [] if glove is None else [("--glove", glove)]
    check_apart({"--output": output / "records", "the tables": folder / "tables"}, read)
    written: list[str] = []

    def finished(one: TableResult | Sequence[Scatter]) -> None:
        written.extend(_write(one, folder))

    try:
        with progress_bars() as report:
            result = run(table, subjects, planner, place, progress=report, finished=finished)
    except KeyboardInterrupt:
        raise Interrupted(resumes_from(output)) from None
    failed = {
        name: error
        for name, error in result.absent.items()
        if not isinstance(error, MissingDataError)
    }
    parts = [table_text(one) for one in result.tables.values()]
    parts += [
        f"{name} is absent: {error}" for name, error in result.absent.items() if name not in failed
    ]
    show("\n\n".join([*parts, f"wrote {', '.join(written)} to {one_line(folder)}"]))
    if failed:
        # Missing data is told; anything else is an error, though other tables are there.
        why = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise BertflowError(
            f"{len(failed)} of {len(result.absent) + len(result.tables) + bool(result.scatters)} "
            f"could not be made: {why}; the same command makes what is missing"
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
    from bertflow.paper import TableResult

    if not isinstance(one, TableResult):
        return [name for scatter in one for name in _draw(scatter, folder)]
    content = json.dumps(one.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
    forms = {"md": table_markdown(one), "csv": _csv(one), "json": f"{content}\n"}
    for suffix, text in forms.items():
        write_text(folder / f"{one.name}.{suffix}", text)
    return [f"{one.name}.{suffix}" for suffix in forms]


def _draw(scatter: Scatter, folder: Path) -> list[str]:
    from bertflow.report.draw import edit_distance_scatter, save_figure
    from bertflow.report.measures import relate_to_edits

    written = []
    for unit, distances in scatter.distances.items():
        figure = edit_distance_scatter(relate_to_edits(scatter.panels, distances, unit=unit))
        for suffix in ("svg", "png"):
            name = f"figure2-{_file_name(scatter.encoder)}-{unit}.{suffix}"
            save_figure(figure, folder / name)
            written.append(name)
    return written


def _csv(one: TableResult) -> str:
    rows = one.flat()
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def table_text(one: TableResult) -> str:
    """A table with its claims and notes as a terminal shows it."""
    from bertflow.cli.paper_grids import claims_grid, notes_of, table_grid

    parts = [f"{one.name}: {one.title}", "", table_grid(one).text()]
    if one.claims:
        parts += ["", claims_grid(one).text()]
    if notes := notes_of(one):
        parts += ["", *(f"- {note}" for note in notes)]
    return "\n".join(parts)


def table_markdown(one: TableResult) -> str:
    """A table with its claims and notes as Markdown."""
    from bertflow.cli.paper_grids import claims_grid, notes_of, table_grid

    parts = [f"## {one.name}: {one.title}\n", table_grid(one).markdown()]
    if one.claims:
        parts.append(claims_grid(one).markdown())
    parts.append("".join(f"- {note}\n" for note in notes_of(one)))
    return "\n".join(parts)
