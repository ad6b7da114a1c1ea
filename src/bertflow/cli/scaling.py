"""Folders of parquet: what encode, transform and fit do with --engine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertflow.cli.interruption import NOTHING, Interrupted, still_terminated
from bertflow.cli.opening import show
from bertflow.cli.options import CLUSTER
from bertflow.cli.places import check_folder, check_folder_apart
from bertflow.errors import InputError, one_line, quoted

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator
    from bertflow.scale import Engine, Outcome, Worker

STDERR = 2
# What is the name of a file, where a folder is to be made.
FILES = (".npy", ".parquet", ".csv", ".tsv", ".jsonl", ".json", ".txt")
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="local or ray: work on a folder of .parquet here or on a cluster, shard by shard.",
        rich_help_panel=CLUSTER,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Ray cluster, or auto for this machine's. Default: one is started.",
        rich_help_panel=CLUSTER,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Ray actors. Default: one a GPU, or one a CPU but for one.",
        rich_help_panel=CLUSTER,
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Leave out shards that cannot be used, count and list them.",
        rich_help_panel=CLUSTER,
    ),
]
Vector = Annotated[
    str,
    typer.Option(
        "--vector",
        metavar="NAME",
        help="Column of vectors in .parquet files.",
        rich_help_panel=CLUSTER,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Column to keep beside the vectors. May be repeated. Default: all but the text.",
        rich_help_panel=CLUSTER,
    ),
]
Numbers = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="float32 or float16: numbers in .parquet files.",
        rich_help_panel=CLUSTER,
    ),
]
SkipBlank = Annotated[
    bool,
    typer.Option(
        "--skip-blank",
        help="Leave out rows of shards without text; counted.",
        rich_help_panel=CLUSTER,
    ),
]


@dataclass(frozen=True)
class Scaling:
    """What was given for shards.

    Attributes:
        engine: --engine; None if it was not given.
        address: --address.
        workers: --workers.
        skip_unreadable: --skip-unreadable.
        vector: --vector.
        keep: --keep.
        numbers: --numbers.
        skip_blank: --skip-blank.
    """

    engine: str | None
    address: str | None = None
    workers: int | None = None
    skip_unreadable: bool = False
    vector: str = "vector"
    keep: list[str] | None = None
    numbers: str = "float32"
    skip_blank: bool = False

    def refuse_without_engine(self) -> None:
        """Refuse options that mean nothing for single files.

        Raises:
            InputError: One was given.
        """
        plain = Scaling(None)
        names = {name: f"--{name.replace('_', '-')}" for name in self.__dict__ if name != "engine"}
        given = [
            option for name, option in names.items() if getattr(self, name) != getattr(plain, name)
        ]
        if given:
            raise InputError(
                f"{', '.join(given)} goes with a folder of .parquet files and --engine local or ray"
            )

    @contextmanager
    def opened(self) -> Iterator[Engine]:
        """The engine."""
        from bertflow.scale import opened_engine

        name = self.engine or "local"
        with ExitStack() as opened:
            with still_terminated(), _ray_quiet() if name == "ray" else nullcontext():
                engine = opened.enter_context(
                    opened_engine(name, address=self.address, workers=self.workers)
                )
            yield engine


@contextmanager
def _ray_quiet() -> Iterator[None]:
    """Start Ray without what its C++ part writes on standard error, now and later.

    Of every pool of actors it says as an error that it may not be able to start them again, and
    that its level was set as it begins. What goes wrong comes as an exception. Whoever sets
    RAY_BACKEND_LOG_LEVEL sees all of it.
    """
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    kept, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


def encode_shards(
    model: str, corpus: list[str], output: Path, scaling: Scaling, **settings: Any
) -> None:
    """Encode a folder of .parquet files to another."""
    from bertflow.scale import Encode

    check_folder_apart(output, {"MODEL": model})
    if len(corpus) != 1 or corpus[0] == "-":
        raise InputError(f"--engine takes one --corpus, a folder of .parquet, got {len(corpus)}")
    worker = Encode(
        str(Path(model).absolute()) if Path(model).exists() else model,
        vector=scaling.vector,
        keep=scaling.keep,
        numbers=scaling.numbers,
        blank="skip" if scaling.skip_blank else "refuse",
        **settings,
    )
    _run(worker, corpus[0], output, scaling, "encode")


def transform_shards(
    folder: Path, vectors: str | Path, output: Path, scaling: Scaling, inverse: bool
) -> None:
    """Map the vectors of a folder of .parquet files to another."""
    from bertflow.scale import Transform

    _refuse_encoders_options(scaling)
    check_folder_apart(output, {"DIR": folder})
    worker = Transform(str(folder.absolute()), vector=scaling.vector, inverse=inverse)
    _run(worker, vectors, output, scaling, "transform")


def fit_shards(
    source: str | Path, calibrator: Calibrator, output: Path, scaling: Scaling, limit: int | None
) -> None:
    """Fit a calibrator on the merged moments of shards, and save it."""
    from bertflow.calibrators import save_calibrator
    from bertflow.cli.terminal import progress_bars
    from bertflow.io.outputs import clear_part, part_folder, save_or_keep
    from bertflow.scale import fit_folder

    _refuse_encoders_options(scaling)
    if limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    check_folder(output, {"--vectors": source})
    began = time.perf_counter()
    with part_folder(output) as part:
        moments = part / "moments"
        with _interruptible(moments), scaling.opened() as engine, progress_bars() as report:
            outcome = fit_folder(
                calibrator,
                source,
                moments,
                vector=scaling.vector,
                engine=engine,
                skip_unreadable=scaling.skip_unreadable,
                progress=lambda done, total: report("moments", done, total),
            )
        save_or_keep(output, lambda folder: save_calibrator(calibrator, folder))
        clear_part(part)
    show(
        f"fitted on {calibrator.provenance_['rows']:,} vectors of {calibrator.n_features_in_} "
        f"dimensions in {_shards(outcome)} in {time.perf_counter() - began:.1f} s"
    )
    _show_left_out(outcome)
    how = f"bertflow transform {quoted(output)} --vectors IN --output OUT"
    show(f"saved to {one_line(output)}: {how}")


def _run(worker: Worker, source: str | Path, output: Path, scaling: Scaling, stage: str) -> None:
    from bertflow.cli.terminal import progress_bars
    from bertflow.scale import run

    if output.suffix in FILES and not output.exists():
        raise InputError(f"{output} looks like a file, but of shards a folder is made; name one")
    with _interruptible(output), scaling.opened() as engine, progress_bars() as report:
        outcome = run(
            worker,
            source,
            output,
            engine=engine,
            skip_unreadable=scaling.skip_unreadable,
            progress=lambda done, total: report(stage, done, total),
        )
    before = f", {outcome.done_before:,} of them there before" if outcome.done_before else ""
    show(f"{one_line(output)} has {outcome.rows:,} vectors in {_shards(outcome)}{before}")
    _show_left_out(outcome)


def _shards(outcome: Outcome) -> str:
    return f"{outcome.shards:,} shard{'s' if outcome.shards != 1 else ''}"


def _show_left_out(outcome: Outcome) -> None:
    if outcome.left_out:
        show(f"{outcome.left_out:,} rows without text left out")
    if outcome.skipped:
        files = "1 file" if len(outcome.skipped) == 1 else f"{len(outcome.skipped):,} files"
        show(f"{files} skipped, which the same command tries again:")
        for one in outcome.skipped:
            show(one_line(f"  {one.path}: {one.reason}"))


def _refuse_encoders_options(scaling: Scaling) -> None:
    given = {
        "--keep": scaling.keep,
        "--numbers": scaling.numbers != "float32",
        "--skip-blank": scaling.skip_blank,
    }
    if clash := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(clash)} is for encode")


@contextmanager
def _interruptible(output: Path) -> Iterator[None]:
    from bertflow.scale.manifest import MANIFEST

    try:
        yield
    except KeyboardInterrupt:
        there = (output / MANIFEST).exists()
        raise Interrupted(
            f"the same command goes on: what is done is in {output}" if there else NOTHING
        ) from None
