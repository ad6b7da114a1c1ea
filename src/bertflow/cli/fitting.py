"""The commands that make and apply calibrators: fit, transform, encode."""

from __future__ import annotations

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
    CALIBRATOR_HELP,
    BatchSize,
    Device,
    Devices,
    EncodingPrecision,
    MaxLength,
    Model,
    NoCache,
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
    from bertflow.calibrators import Calibrator
    from bertflow.encoders import SentenceCache


def fit(
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to save to.")],
    encoder: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR|FILE.gguf", help="Encoder to calibrate."),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Unlabelled sentences: .txt (one a line), .csv, .tsv, .jsonl, .parquet, each "
            "also packed; folders and patterns of these; URLs such as s3://...; "
            "hub:OWNER/NAME:SPLIT; or - for standard input. May be repeated.",
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npy|DIR",
            help="Vectors instead of encoder and corpus; of a folder of .parquet, or with "
            "--engine, the calibrator learns from moments.",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Text column of a table.")
    ] = None,
    calibrator: Annotated[
        str,
        typer.Option(metavar="NAME", help=CALIBRATOR_HELP),
    ] = "flow",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Argument of the calibrator, such as epochs=2, dim=256 or n_components=3. "
            "May be repeated.",
        ),
    ] = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Take only the first N sentences.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of a larger corpus, fit on N distinct sentences drawn at random; 0 takes all.",
        ),
    ] = 200_000,
    random_state: Annotated[int, typer.Option(metavar="N", help="Seed.")] = 0,
    portable: Annotated[
        bool,
        typer.Option(help="Save so that plain sentence-transformers loads it, or with our module."),
    ] = True,
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
) -> None:
    """Fit a calibrator on unlabelled sentences or vectors, and save it; stopped, it goes on."""
    built = build_calibrator(calibrator, set_ or [], random_state, device)
    scaling = Scaling(engine, address, workers, skip_unreadable, vector)
    if vectors is not None:
        given = {
            "--encoder": encoder,
            "--corpus": corpus,
            "--pooling": pooling,
            "--column": column,
            "--max-length": max_length,
            "--no-portable": not portable,
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
    from bertflow.data import checked_corpus

    check_folder(output, {"--encoder": encoder, "--corpus": corpus})
    cache, kind = users_cache(no_cache), as_precision(precision)
    sentences = checked_corpus(corpus, column=column, limit=limit)
    from bertflow.cli.terminal import progress_bars
    from bertflow.encoders import calibrate, parse_devices, save_model

    places = parse_devices(devices) if devices else None

    began = time.perf_counter()
    with _checkpoint(output, cache) as checkpoint:
        loaded = load_raw(encoder, pooling, max_length, device, trust_remote_code, cache)
        with progress_bars() as report:
            model = calibrate(
                loaded,
                sentences,
                built,
                portable=portable,
                sample=sample or None,
                batch_size=batch_size,
                cache=cache,
                precision=kind,
                devices=places,
                provenance={"corpus": corpus, "column": column, "limit": limit},
                progress=report,
                checkpoint=checkpoint,
            )
        save_model(model, output)
    facts = model.calibrator.provenance_
    drawn = f"drawn from {facts['drawn_from']:,}, " if "drawn_from" in facts else ""
    show(
        f"{calibrator} fitted on {facts['sentences']:,} sentences ({drawn}{facts['distinct']:,} "
        f"distinct, {found_in(cache)}{facts['cut_to_max_length']:,} cut to "
        f"{loaded.max_seq_length} tokens) in {time.perf_counter() - began:.0f} s"
    )
    _show_loss(model.calibrator)
    plainly = "SentenceTransformer({!r}) loads it anywhere"
    how = plainly if portable else "bertflow.load({!r}) loads it"
    show(f"saved to {one_line(output)}: {how.format(str(output))}")


def _are_shards(vectors: str) -> bool:
    """Whether vectors are a folder of .parquet files, or one of them."""
    return "://" in vectors or vectors.endswith(".parquet") or Path(vectors).is_dir()


def _fit_vectors(source: Path, calibrator: Calibrator, output: Path, limit: int | None) -> None:
    from bertflow.calibrators import Flow, save_calibrator
    from bertflow.calibrators.vectors import read_vectors
    from bertflow.cli.terminal import progress_bars
    from bertflow.display import of_stage

    check_folder(output, {"--vectors": source})
    rows = read_vectors(source)[:limit]
    began = time.perf_counter()
    calibrator.provenance_ = {"vectors": str(source), "rows": len(rows), "limit": limit}
    with _checkpoint(output) as checkpoint:
        with vectors_named(source), progress_bars() as report:
            if isinstance(calibrator, Flow):
                calibrator.fit(
                    rows,
                    progress=of_stage(report, "fit"),
                    checkpoint=checkpoint,
                )
            else:
                calibrator.fit(rows)
        save_calibrator(calibrator, output)
    show(
        f"fitted on {len(rows):,} vectors of {rows.shape[1]} dimensions "
        f"in {time.perf_counter() - began:.1f} s"
    )
    _show_loss(calibrator)
    how = f"bertflow transform {quoted(output)} --vectors IN --output OUT"
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
    from bertflow.calibrators.staging import clear_part, part_folder

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


def _show_loss(calibrator: Calibrator) -> None:
    loss = getattr(calibrator, "loss_", None)
    if loss is not None:
        show(f"loss {loss:.4f} bits per dimension after {len(calibrator.loss_curve_)} steps")


def transform(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A saved calibrator or calibrated model.")
    ],
    vectors: Annotated[
        str, typer.Option(metavar="IN.npy|DIR", help="Vectors, one a row; or a folder of .parquet.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="OUT.npy|DIR", help="File to write; of a folder, a folder.")
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
    from bertflow.calibrators import load_calibrator
    from bertflow.calibrators.vectors import transform_file
    from bertflow.cli.terminal import progress_bars

    calibrator = load_calibrator(folder)
    with vectors_named(vectors), progress_bars() as report:
        rows, width = transform_file(
            calibrator,
            vectors,
            output,
            inverse=inverse,
            progress=lambda done, total: report("transform", done, total),
        )
    show(f"wrote {rows:,} vectors of {width} dimensions to {one_line(output)}")


def encode(
    model: Model,
    corpus: Annotated[
        list[str],
        typer.Option(
            "--corpus",
            "--input",
            metavar="FILE|-",
            help="Sentences, as --corpus of fit; - is standard input. May be repeated.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="OUT.npy",
            help="File to write, row by row. Stopped, the same command goes on where it was.",
        ),
    ],
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Text column of a table.")
    ] = None,
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
    from bertflow.calibrators.staging import part_path
    from bertflow.data import checked_corpus

    check_files({"--output": output}, {"MODEL": model, "--corpus": corpus}, rows=True)
    if output.suffix.lower() != ".npy":
        raise InputError(
            f"{output} must end in .npy, to which encode writes; for a folder of .parquet files, "
            "ids and all, give --engine local"
        )
    cache, kind = users_cache(no_cache), as_precision(precision)
    sentences = checked_corpus(corpus, column=column, blank="refuse")
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
        f"({found_in(cache)}{encoded.cut:,} distinct sentences cut to "
        f"{loaded.max_seq_length} tokens)"
    )
