"""Folders of parquet: what encode, transform and fit do with --engine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.cli.destinations import check_folder, check_folder_apart
from bertflow.cli.interruption import NOTHING, Interrupted, still_terminated
from bertflow.cli.options import CLUSTER, EncoderOptions, SpeedOptions, device_or_none, flag, option
from bertflow.cli.terminal import progress_bar, show
from bertflow.errors import InputError, one_line, quoted
from bertflow.io.files import clear_part, part_folder, save_or_keep

if TYPE_CHECKING:
    from bertflow.calibrators import Calibrator
    from bertflow.scale import Engine, Outcome, Worker

STDERR = 2
# Endings of files, where a folder is to be made.
FILES = (".npy", ".parquet", ".csv", ".tsv", ".jsonl", ".json", ".txt")


@dataclass(frozen=True)
class ClusterOptions:
    """How shards are worked on."""

    engine: str | None = option(
        None,
        "NAME",
        "local or ray: work on a folder of .parquet here or on a cluster, shard by shard.",
        group=CLUSTER,
    )
    address: str | None = option(
        None,
        "HOST:PORT",
        "Ray cluster, or auto for this machine's. Default: one is started.",
        group=CLUSTER,
    )
    workers: int | None = option(
        None, "N", "Ray actors. Default: one a GPU, or one a CPU but for one.", group=CLUSTER, min=1
    )
    skip_unreadable: bool = flag(
        "--skip-unreadable", "Leave out shards that cannot be used, count and list them.", CLUSTER
    )
    vector: str = option("vector", "NAME", "Column of vectors in .parquet files.", group=CLUSTER)

    def refuse_without_engine(self) -> None:
        """Refuse options that mean nothing for single files.

        Raises:
            InputError: One was given.
        """
        given = [
            f"--{one.name.replace('_', '-')}"
            for one in fields(self)
            if one.name != "engine" and getattr(self, one.name) != one.default
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


@dataclass(frozen=True)
class EncodingClusterOptions(ClusterOptions):
    """How shards of text are worked on."""

    keep: list[str] | None = option(
        None,
        "NAME",
        "Column to keep beside the vectors. May be repeated. Default: all but the text.",
        group=CLUSTER,
    )
    numbers: str = option(
        "float32", "KIND", "float32 or float16: numbers in .parquet files.", group=CLUSTER
    )
    skip_blank: bool = flag(
        "--skip-blank", "Leave out rows of shards without text; counted.", CLUSTER
    )


@contextmanager
def _ray_quiet() -> Iterator[None]:
    """Start Ray without what its C++ part writes on standard error, now and later.

    Of every pool of actors it says as an error that it may not be able to start them again, and
    that its level was set as it begins. Real errors come as exceptions. Whoever sets
    RAY_BACKEND_LOG_LEVEL sees all of it.
    """
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    terminal, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(terminal, STDERR)
        os.close(terminal)
        os.close(nowhere)


def encode_shards(
    model: str,
    corpus: list[str],
    output: Path,
    column: str | None,
    cluster: EncodingClusterOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
) -> None:
    """Encode a folder of .parquet files to another."""
    from bertflow.scale import Encode

    check_folder_apart(output, {"MODEL": model})
    if len(corpus) != 1 or corpus[0] == "-":
        raise InputError(f"--engine takes one --corpus, a folder of .parquet, got {len(corpus)}")
    worker = Encode(
        str(Path(model).absolute()) if Path(model).exists() else model,
        column=column,
        pooling=loading.pooling,
        max_length=loading.max_length,
        trust_remote_code=loading.trust_remote_code,
        device=device_or_none(speed.device),
        batch_size=speed.batch_size,
        precision=speed.precision,  # type: ignore[arg-type]
        vector=cluster.vector,
        keep=cluster.keep,
        numbers=cluster.numbers,
        blank="skip" if cluster.skip_blank else "refuse",
    )
    _run(worker, corpus[0], output, cluster, "encode")


def transform_shards(
    folder: Path, vectors: str, output: Path, cluster: ClusterOptions, inverse: bool
) -> None:
    """Map the vectors of a folder of .parquet files to another."""
    from bertflow.scale import Transform

    check_folder_apart(output, {"DIR": folder})
    worker = Transform(str(folder.absolute()), vector=cluster.vector, inverse=inverse)
    _run(worker, vectors, output, cluster, "transform")


def fit_shards(
    source: str, calibrator: Calibrator, output: Path, cluster: ClusterOptions, limit: int | None
) -> None:
    """Fit a calibrator on the merged moments of shards, and save it."""
    from bertflow.calibrators import save_calibrator
    from bertflow.scale import fit_folder

    if limit is not None:
        raise InputError("--limit does not go with shards: moments are of all vectors")
    check_folder(output, {"--vectors": source})
    began = time.perf_counter()
    with part_folder(output) as part:
        moments = part / "moments"
        with _interruptible(moments), cluster.opened() as engine, progress_bar("moments") as report:
            outcome = fit_folder(
                calibrator,
                source,
                moments,
                vector=cluster.vector,
                engine=engine,
                skip_unreadable=cluster.skip_unreadable,
                progress=report,
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


def _run(worker: Worker, source: str, output: Path, cluster: ClusterOptions, stage: str) -> None:
    from bertflow.scale import run

    if output.suffix in FILES and not output.exists():
        raise InputError(f"{output} looks like a file, but of shards a folder is made; name one")
    with _interruptible(output), cluster.opened() as engine, progress_bar(stage) as report:
        outcome = run(
            worker,
            source,
            output,
            engine=engine,
            skip_unreadable=cluster.skip_unreadable,
            progress=report,
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
