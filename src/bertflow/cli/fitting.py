"""The commands that make and apply calibrators: fit, transform, encode."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertflow.cli.caching import as_precision, found_in, users_cache
from bertflow.cli.interruption import Interrupted, kept
from bertflow.cli.opening import load_raw, open_any, show
from bertflow.cli.options import (
    CALIBRATOR,
    CALIBRATOR_HELP,
    ENCODER_OPTION,
    INPUT,
    SOURCES_HELP,
    BatchSize,
    Column,
    Corpus,
    Device,
    Devices,
    EncodingPrecision,
    Format,
    MaxLength,
    Model,
    NoCache,
    Output,
    Pooling,
    TrustRemoteCode,
    build_calibrator,
    device_or_none,
)
from bertflow.cli.places import check_files, check_folder, vectors_named
from bertflow.cli.scaling import (
    Address,
    EngineName,
    Keep,
    Numbers,
    Scaling,
    SkipBlank,
    SkipUnreadable,
    Vector,
    Workers,
    encode_shards,
    fit_shards,
    transform_shards,
)
from bertflow.errors import InputError, ModelError, TrainingError, one_line, quoted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.calibrators import Calibrator
    from bertflow.encoders import SentenceCache


def fit(
    *,
    encoder: Annotated[str | None, ENCODER_OPTION] = None,
    corpus: Corpus = None,
    output: Output,
    calibrator: Annotated[
        str, typer.Option(metavar="NAME", help=CALIBRATOR_HELP)
    ] = "adaptive-whitening",
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Vectors, .npy or a folder of .parquet, instead of encoder and corpus.",
        ),
    ] = None,
    column: Column = None,
    format_: Format = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Take only the first N sentences.", rich_help_panel=INPUT
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of a larger corpus, fit on N distinct sentences drawn at random; 0 takes all.",
            rich_help_panel=INPUT,
        ),
    ] = 200_000,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Argument of the calibrator, such as epochs=2 of flow or dim=256 of whitening. "
            "May be repeated.",
            rich_help_panel=CALIBRATOR,
        ),
    ] = None,
    random_state: Annotated[
        int, typer.Option(metavar="N", help="Seed.", rich_help_panel=CALIBRATOR)
    ] = 0,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    trust_remote_code: TrustRemoteCode = False,
    no_portable: Annotated[
        bool,
        typer.Option(
            "--no-portable",
            help="Save with bertflow's own module, which plain sentence-transformers lacks.",
            rich_help_panel=CALIBRATOR,
        ),
    ] = False,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    devices: Devices = None,
    engine: EngineName = None,
    address: Address = None,
    workers: Workers = None,
    skip_unreadable: SkipUnreadable = False,
    vector: Vector = "vector",
) -> None:
    """Fit a calibrator on unlabelled sentences or vectors, and save it. Stopped, it goes on."""
    built = build_calibrator(calibrator, set_ or [], random_state, device)
    scaling = Scaling(engine, address, workers, skip_unreadable, vector)
    if vectors is not None:
        given = {
            "--encoder": encoder,
            "--corpus": corpus,
            "--pooling": pooling,
            "--column": column,
            "--format": format_,
            "--max-length": max_length,
            "--no-portable": no_portable,
            "--devices": devices,
            "--trust-remote-code": trust_remote_code,
        }
        if clash := [name for name, value in given.items() if value]:
            raise InputError(f"--vectors goes without {', '.join(clash)}")
        if engine is not None or _are_shards(vectors):
            fit_shards(vectors, built, output, scaling, limit)
            return
        scaling.refuse_without_engine()
        _fit_vectors(Path(vectors), built, output, limit)
        return
    if engine is not None:
        raise InputError("--engine goes with --vectors; encode the corpus to a folder first")
    scaling.refuse_without_engine()
    if encoder is None or not corpus:
        raise InputError("give --encoder with at least one --corpus, or --vectors")
    from bertflow.calibrators.writing import save_calibrator
    from bertflow.data import checked_corpus
    from bertflow.io.outputs import save_or_keep

    check_folder(output, {"--encoder": encoder, "--corpus": corpus})
    sentences = checked_corpus(corpus, column=column, limit=limit, format=format_)
    cache, kind = users_cache(no_cache), as_precision(precision)
    from bertflow.cli.terminal import progress_bars
    from bertflow.encoders import parse_devices
    from bertflow.models import calibrate, save_model

    places = parse_devices(devices) if devices else None

    began = time.perf_counter()
    with _checkpoint(output, cache) as checkpoint:
        loaded = load_raw(encoder, pooling, max_length, device, trust_remote_code, cache)
        with progress_bars() as report:
            model = calibrate(
                loaded,
                sentences,
                built,
                portable=not no_portable,
                sample=sample or None,
                batch_size=batch_size,
                cache=cache,
                precision=kind,
                devices=places,
                provenance={
                    "corpus": corpus,
                    "column": column,
                    "limit": limit,
                    **({"format": format_} if format_ else {}),
                },
                progress=report,
                checkpoint=checkpoint,
            )
        save_or_keep(
            output,
            lambda folder: save_model(model, folder),
            lambda folder: save_calibrator(model.calibrator, folder),
        )
    facts = model.calibrator.provenance_
    drawn = f"drawn from {facts['drawn_from']:,}, " if "drawn_from" in facts else ""
    show(
        f"{calibrator} fitted on {facts['sentences']:,} sentences ({drawn}{facts['distinct']:,} "
        f"distinct, {found_in(cache)}{facts['cut_to_max_length']:,} cut{_to_limit(loaded)}) in "
        f"{time.perf_counter() - began:.0f} s"
    )
    _show_loss(model.calibrator)
    plainly = "SentenceTransformer({!r}) loads it anywhere"
    how = "bertflow.load({!r}) loads it" if no_portable else plainly
    show(f"saved to {one_line(output)}: {how.format(str(output))}")


def _are_shards(vectors: str) -> bool:
    """Whether vectors are a folder of .parquet files, or one of them."""
    return "://" in vectors or vectors.endswith(".parquet") or Path(vectors).is_dir()


def _fit_vectors(source: Path, calibrator: Calibrator, output: Path, limit: int | None) -> None:
    from bertflow.calibrators import save_calibrator
    from bertflow.calibrators.vectors import read_vectors
    from bertflow.cli.terminal import progress_bars
    from bertflow.display import of_stage
    from bertflow.io.outputs import save_or_keep

    check_folder(output, {"--vectors": source})
    rows = read_vectors(source)[:limit]
    began = time.perf_counter()
    calibrator.provenance_ = {"vectors": str(source), "rows": len(rows), "limit": limit}
    with _checkpoint(output) as checkpoint:
        with vectors_named(source), progress_bars() as report:
            calibrator.fit(rows, progress=of_stage(report, "fit"), checkpoint=checkpoint)
        save_or_keep(output, lambda folder: save_calibrator(calibrator, folder))
    show(
        f"fitted on {len(rows):,} vectors of {rows.shape[1]} dimensions "
        f"in {time.perf_counter() - began:.1f} s"
    )
    _show_loss(calibrator)
    how = f"bertflow transform {quoted(output)} --vectors IN.npy --output OUT.npy"
    show(f"saved to {one_line(output)}: {how}")


@contextmanager
def _checkpoint(output: Path, cache: SentenceCache | None = None) -> Iterator[Path]:
    """The file from which a fit goes on, in a folder beside its output that is one process's.

    It goes once the output is written, and stays where a fit is stopped or fails.

    Raises:
        ModelError: Another process is writing the output, or the folder cannot be made.
        TrainingError: The fit's, with where the last good weights are.
        Interrupted: By Ctrl-C, with what the same command goes on from.
    """
    from bertflow.io.outputs import clear_part, part_folder

    with part_folder(output) as folder:
        file, done = folder / "flow.safetensors", False
        before = _written(file)
        try:
            yield file
            done = True
        except KeyboardInterrupt:
            if before is not None and before == _written(file):
                raise Interrupted(
                    f"the same command begins where this one did; {file} is as it was"
                ) from None
            raise Interrupted(kept(file, cache)) from None
        except TrainingError as error:
            raise TrainingError(f"{error}{_saved_beside(error, output)}") from error
        except ModelError as error:
            if not file.exists():
                raise
            raise ModelError(f"{error}; {kept(file)}") from error
        finally:
            if done or not file.exists():
                clear_part(folder)


def _written(file: Path) -> int | None:
    """When a file was written last, None if it is not there."""
    return file.stat().st_mtime_ns if file.exists() else None


def _saved_beside(error: TrainingError, output: Path) -> str:
    """Save the flow that a training has kept beside the output, and say where."""
    from bertflow.calibrators import save_calibrator

    if error.kept is None or not (steps := len(error.kept.loss_curve_)):
        return ""
    folder = output.parent / f"{output.name}.step-{steps}"
    try:
        save_calibrator(error.kept, folder)
    except ModelError as why:
        return f"; the flow after step {steps} is lost: {why}"
    return f"; the flow after step {steps} is in {folder}"


def _to_limit(encoder: SentenceTransformer) -> str:
    """To how many tokens an encoder cuts; some read texts of any length."""
    limit = encoder.max_seq_length
    return "" if limit is None or math.isinf(limit) else f" to {limit} tokens"


def _show_loss(calibrator: Calibrator) -> None:
    loss = getattr(calibrator, "loss_", None)
    if loss is not None:
        show(f"loss {loss:.4f} bits per dimension after {len(calibrator.loss_curve_)} steps")


def transform(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A saved calibrator or calibrated model.")
    ],
    vectors: Annotated[
        str,
        typer.Option(metavar="IN.npy", help="Vectors, one a row; or a folder of .parquet."),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="OUT.npy", help="File to write; for a folder of .parquet a folder."),
    ],
    inverse: Annotated[bool, typer.Option("--inverse", help="Undo the calibration.")] = False,
    engine: EngineName = None,
    address: Address = None,
    workers: Workers = None,
    skip_unreadable: SkipUnreadable = False,
    vector: Vector = "vector",
) -> None:
    """Apply a saved calibrator to vectors."""
    scaling = Scaling(engine, address, workers, skip_unreadable, vector)
    if engine is not None or _are_shards(vectors):
        transform_shards(folder, vectors, output, scaling, inverse)
        return
    scaling.refuse_without_engine()
    check_files({"--output": output}, {"DIR": folder, "--vectors": vectors}, rows=True)
    _refuse_other_than_npy(output, "transform", "of a folder of .parquet files it makes a folder")
    from bertflow.calibrators import load_calibrator
    from bertflow.calibrators.vectors import transform_file
    from bertflow.cli.terminal import progress_bars
    from bertflow.io.outputs import save_or_keep

    calibrator, shape, computed = load_calibrator(folder), (0, 0), 0
    with vectors_named(vectors), progress_bars() as report:

        def tell(done: int, total: int) -> None:
            nonlocal computed
            computed = done
            report("transform", done, total)

        def write(place: Path) -> None:
            nonlocal shape
            shape = transform_file(calibrator, vectors, place, inverse=inverse, progress=tell)

        save_or_keep(
            output, write, when=lambda error: computed > 0 and isinstance(error, ModelError)
        )
    rows, width = shape
    show(f"wrote {rows:,} vectors of {width} dimensions to {one_line(output)}")


def _refuse_other_than_npy(output: Path, command: str, otherwise: str) -> None:
    if output.suffix.lower() != ".npy":
        raise InputError(f"{output} must end in .npy, to which {command} writes; {otherwise}")


def encode(
    model: Model,
    *,
    corpus: Annotated[
        list[str],
        typer.Option("--corpus", "--input", metavar="FILE", help=SOURCES_HELP),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="File to write. Stopped, the same command goes on where it was."
        ),
    ],
    column: Column = None,
    format_: Format = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 32,
    precision: EncodingPrecision = "auto",
    no_cache: NoCache = False,
    device: Device = "auto",
    devices: Devices = None,
    trust_remote_code: TrustRemoteCode = False,
    engine: EngineName = None,
    address: Address = None,
    workers: Workers = None,
    skip_unreadable: SkipUnreadable = False,
    vector: Vector = "vector",
    keep: Keep = None,
    numbers: Numbers = "float32",
    skip_blank: SkipBlank = False,
) -> None:
    """Encode sentences to vectors, row i for sentence i; of a folder of shards, a folder."""
    scaling = Scaling(engine, address, workers, skip_unreadable, vector, keep, numbers, skip_blank)
    if engine is not None:
        if format_ is not None:
            raise InputError("--engine goes without --format: it reads a folder of .parquet files")
        encode_shards(
            model,
            corpus,
            output,
            scaling,
            column=column,
            pooling=pooling,
            max_length=max_length,
            device=device_or_none(device),
            batch_size=batch_size,
            precision=as_precision(precision),
            trust_remote_code=trust_remote_code,
        )
        return
    scaling.refuse_without_engine()
    from bertflow.data import checked_corpus
    from bertflow.io.outputs import part_path

    check_files({"--output": output}, {"MODEL": model, "--corpus": corpus}, rows=True)
    _refuse_other_than_npy(
        output, "encode", "for a folder of .parquet files, ids and all, give --engine local"
    )
    sentences = checked_corpus(corpus, column=column, blank="refuse", format=format_)
    cache, kind = users_cache(no_cache), as_precision(precision)
    from bertflow.cli.terminal import progress_bars
    from bertflow.encoders import encode_file, parse_devices

    places = parse_devices(devices) if devices else None
    loaded = open_any(model, pooling, max_length, device, trust_remote_code, cache)
    try:
        with progress_bars() as report:
            encoded = encode_file(
                loaded,
                sentences,
                output,
                batch_size=batch_size,
                cache=cache,
                precision=kind,
                devices=places,
                progress=lambda done, total: report("encode", done, total),
            )
    except KeyboardInterrupt:
        raise Interrupted(kept(part_path(output), cache)) from None
    show(
        f"wrote {encoded.rows:,} vectors of {encoded.width} dimensions to {one_line(output)} "
        f"({found_in(cache)}{encoded.cut:,} distinct sentences cut{_to_limit(loaded)})"
    )
