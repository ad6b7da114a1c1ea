"""The command that writes a page about a run, a model or vectors: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertflow.cli.opening import check_own, show
from bertflow.cli.options import Column, Format
from bertflow.cli.places import Given, check_files
from bertflow.errors import ModelError, one_line


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL|VECTORS",
            help="A folder of bertflow reproduce; a saved calibrated model or calibrator; or "
            "vectors in a .npy file, one a row.",
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="File to write.")],
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Sentences, as --corpus of fit: of vectors their texts, row by row; of a model or "
            "run those to look at. Default: those it was fitted on.",
        ),
    ] = None,
    column: Column = None,
    format_: Format = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="[OTHER]",
            help="What to set beside it: of vectors a calibrator or calibrated model, which is "
            "applied to them, or a .npy file of the same rows; of a model another calibrator of "
            "its encoder or, without a value, its own encoder, which is the default; of a run a "
            "calibrator in place of its flow.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Score vectors or a model on it: sts12, sts13, sts14, sts15, sts16, stsb or "
            "sick-r. May be repeated. Default: all that are in --data, none without that.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the tasks, in any layout people have; default: BERTFLOW_DATA, for "
            "tasks that --task names and for a run.",
        ),
    ] = None,
) -> None:
    """Write one page about a run, a model or vectors, before and after.

    The page stands alone: it opens from disk, without a network. A model encodes only what fit,
    encode, evaluate and others have not left in the cache. Of a section that is left out the page
    says what would fill it.
    """
    from bertflow.cli.results import written
    from bertflow.cli.terminal import progress_bars
    from bertflow.report import build_report, check_page, write_report
    from bertflow.report.reproduced import is_run

    check_page(output)
    check_own(against, source)
    # A page is none of the records of a run, in whose folder it may well lie.
    reads: dict[str, Given] = {"the report": source} if not is_run(Path(source)) else {}
    reads |= {"--corpus": None if corpus is None else [corpus], "--against": against or None}
    check_files({"--output": output}, reads, data=data)
    with progress_bars() as bars:
        names = [part.strip() for name in task or () for part in name.split(",")]
        found = build_report(
            source,
            corpus=corpus,
            column=column,
            format=format_,
            against=against or None,
            data=data,
            tasks=names,
            progress=lambda done, total: bars("encode", done, total),
        )
        sizes: list[int] = []
        lost = written(output, lambda place: sizes.append(write_report(found, place)))
    show(one_line(found.verdict))
    for names, reason in found.left_out():
        show(one_line(f"- without {', '.join(names)}: {reason}"))
    if lost:
        raise ModelError(lost)
    show(f"wrote {one_line(output)}, {sizes[0] / 1e6:.1f} MB: open it in a browser")
