"""The commands that make and apply calibrators: fit, transform, encode."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.cli.destinations import check_files, check_folder
from bertflow.cli.interruption import Interrupted, resumes_from
from bertflow.cli.opening import load_raw, open_any, vectors_named
from bertflow.cli.options import (
    CALIBRATOR,
    INPUT,
    REQUIRED,
    SOURCES_HELP,
    SPEED,
    CalibratorOptions,
    EncoderOptions,
    SpeedOptions,
    TextOptions,
    argument,
    encoder_option,
    flag,
    known_devices,
    model_argument,
    option,
    refuse_beside,
)
from bertflow.cli.scaling import (
    ClusterOptions,
    EncodingClusterOptions,
    encode_shards,
    fit_shards,
    transform_shards,
)
from bertflow.cli.terminal import from_cache, progress_bar, progress_bars, show
from bertflow.errors import InputError, ModelError, TrainingError, one_line, quoted
from bertflow.io.files import clear_part, part_folder, part_path, save_or_keep

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bertflow.calibrators import Calibrator
    from bertflow.encoders import SentenceCache

devices_option = partial(
    option,
    None,
    "N",
    "Encode in so many processes, on all GPUs (all), or on cuda:0,cuda:1.",
    group=SPEED,
    callback=known_devices,
)


def fit(
    *,
    encoder: str | None = encoder_option(None),
    corpus: list[str] | None = option(None, "FILE", SOURCES_HELP),
    text: TextOptions,
    output: Path = option(REQUIRED, "DIR", "Folder to save to."),
    chosen: CalibratorOptions,
    vectors: str | None = option(
        None, "FILE", "Vectors, .npy or a folder of .parquet, instead of encoder and corpus."
    ),
    limit: int | None = option(None, "N", "Take only the first N sentences.", group=INPUT, min=1),
    sample: int = option(
        200_000,
        "N",
        "Of a larger corpus, fit on N distinct sentences drawn at random; 0 takes all.",
        group=INPUT,
        min=0,
    ),
    loading: EncoderOptions,
    no_portable: bool = flag(
        "--no-portable",
        "Save with bertflow's own module, which plain sentence-transformers lacks.",
        CALIBRATOR,
    ),
    speed: SpeedOptions,
    devices: str | None = devices_option(),
    cluster: ClusterOptions,
) -> None:
    """Fit a calibrator on unlabelled sentences or vectors, and save it. Stopped, it goes on."""
    built = chosen.build(speed.device)
    if vectors is not None:
        refuse_beside(
            "--vectors goes without",
            {
                "--encoder": encoder,
                "--corpus": corpus,
                "--pooling": loading.pooling,
                "--column": text.column,
                "--format": text.format,
                "--max-length": loading.max_length,
                "--no-portable": no_portable,
                "--devices": devices,
                "--trust-remote-code": loading.trust_remote_code,
            },
        )
        if cluster.engine is not None or _are_shards(vectors):
            fit_shards(vectors, built, output, cluster, limit)
        else:
            cluster.refuse_without_engine()
            _fit_vectors(Path(vectors), built, output, limit)
        return
    if cluster.engine is not None:
        raise InputError("--engine goes with --vectors; encode the corpus to a folder first")
    cluster.refuse_without_engine()
    if encoder is None or not corpus:
        raise InputError("give --encoder with at least one --corpus, or --vectors")
    from bertflow.data import checked_corpus

    check_folder(output, {"--encoder": encoder, "--corpus": corpus})
    sentences = checked_corpus(corpus, column=text.column, limit=limit, format=text.format)
    provenance = {"corpus": corpus, "column": text.column, "limit": limit}
    if text.format:
        provenance["format"] = text.format
    from bertflow.models import calibrate

    places = _parsed(devices)
    began = time.perf_counter()
    with _checkpoint(output, speed.cache) as checkpoint:
        loaded = load_raw(encoder, loading, speed)
        with progress_bars() as report:
            model = calibrate(
                loaded,
                sentences,
                built,
                portable=not no_portable,
                sample=sample or None,
                devices=places,
                provenance=provenance,
                progress=report,
                checkpoint=checkpoint,
                **speed.encoding(),
            )
        _save(model, output)
    seconds = time.perf_counter() - began
    _show_fitted(chosen.calibrator, model, from_cache(speed.cache), _to_limit(loaded), seconds)
    plainly = f"SentenceTransformer({str(output)!r}) loads it anywhere"
    how = f"bertflow.load({str(output)!r}) loads it" if no_portable else plainly
    show(f"saved to {one_line(output)}: {how}")


def _show_fitted(name: str, model: Any, cached: str, limit: str, seconds: float) -> None:
    facts = model.calibrator.provenance_
    drawn = f"drawn from {facts['drawn_from']:,}, " if "drawn_from" in facts else ""
    show(
        f"{name} fitted on {facts['sentences']:,} sentences ({drawn}{facts['distinct']:,} "
        f"distinct, {cached}{facts['cut_to_max_length']:,} cut{limit}) in {seconds:.0f} s"
    )
    _show_loss(model.calibrator)


def _save(model: Any, output: Path) -> None:
    from bertflow.calibrators import save_calibrator
    from bertflow.models import save_model

    save_or_keep(
        output,
        lambda folder: save_model(model, folder),
        lambda folder: save_calibrator(model.calibrator, folder),
    )


def _parsed(devices: str | None) -> Any:
    """The devices of --devices."""
    from bertflow.encoders import parse_devices

    return parse_devices(devices) if devices else None


def _are_shards(vectors: str) -> bool:
    """Whether vectors are a folder of .parquet files, or one of them."""
    return "://" in vectors or vectors.endswith(".parquet") or Path(vectors).is_dir()


def _fit_vectors(source: Path, calibrator: Calibrator, output: Path, limit: int | None) -> None:
    from bertflow.calibrators import save_calibrator
    from bertflow.display import of_stage
    from bertflow.io.vectors import read_vectors

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
    """The file from which a fit goes on, in a folder beside its output that one process holds.

    It is removed once the output is written, and stays where a fit is stopped or fails.

    Raises:
        ModelError: Another process is writing the output, or the folder cannot be made.
        TrainingError: The fit's, with where the last good weights are.
        Interrupted: By Ctrl-C, with what the same command goes on from.
    """
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
            raise Interrupted(resumes_from(file, cache)) from None
        except TrainingError as error:
            raise TrainingError(f"{error}{_saved_beside(error, output)}") from error
        except ModelError as error:
            if not file.exists():
                raise
            raise ModelError(f"{error}; {resumes_from(file)}") from error
        finally:
            if done or not file.exists():
                clear_part(folder)


def _written(file: Path) -> int | None:
    """When a file was written last, None if it is not there."""
    return file.stat().st_mtime_ns if file.exists() else None


def _saved_beside(error: TrainingError, output: Path) -> str:
    """Save the last good flow of a training beside the output, and say where."""
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
    folder: Path = argument("DIR", "A saved calibrator or calibrated model."),
    *,
    vectors: str = option(REQUIRED, "IN.npy", "Vectors, one a row; or a folder of .parquet."),
    output: Path = option(REQUIRED, "OUT.npy", "File to write; for a folder of .parquet a folder."),
    inverse: bool = flag("--inverse", "Undo the calibration."),
    cluster: ClusterOptions,
) -> None:
    """Apply a saved calibrator to vectors."""
    if cluster.engine is not None or _are_shards(vectors):
        transform_shards(folder, vectors, output, cluster, inverse)
        return
    cluster.refuse_without_engine()
    check_files({"--output": output}, {"DIR": folder, "--vectors": vectors}, rows=True)
    _refuse_other_than_npy(output, "transform", "of a folder of .parquet files it makes a folder")
    from bertflow.calibrators import load_calibrator
    from bertflow.io.vectors import transform_file

    calibrator, shape, computed = load_calibrator(folder), (0, 0), 0
    with vectors_named(vectors), progress_bar("transform") as report:

        def tell(done: int, total: int) -> None:
            nonlocal computed
            computed = done
            report(done, total)

        def write(place: Path) -> None:
            nonlocal shape
            apply = calibrator.inverse_transform if inverse else calibrator.transform
            shape = transform_file(apply, vectors, place, progress=tell)

        save_or_keep(
            output, write, when=lambda error: computed > 0 and isinstance(error, ModelError)
        )
    rows, width = shape
    show(f"wrote {rows:,} vectors of {width} dimensions to {one_line(output)}")


def _refuse_other_than_npy(output: Path, command: str, otherwise: str) -> None:
    if output.suffix.lower() != ".npy":
        raise InputError(f"{output} must end in .npy, to which {command} writes; {otherwise}")


def encode(
    model: str = model_argument(),
    *,
    corpus: list[str] = option(REQUIRED, "FILE", SOURCES_HELP, "--corpus", "--input"),
    output: Path = option(
        REQUIRED, "FILE", "File to write. Stopped, the same command goes on where it was."
    ),
    text: TextOptions,
    loading: EncoderOptions,
    speed: SpeedOptions,
    devices: str | None = devices_option(),
    cluster: EncodingClusterOptions,
) -> None:
    """Encode sentences to vectors, row i for sentence i; of a folder of shards, a folder."""
    if cluster.engine is not None:
        if text.format is not None:
            raise InputError("--engine goes without --format: it reads a folder of .parquet files")
        encode_shards(model, corpus, output, text.column, cluster, loading, speed)
        return
    cluster.refuse_without_engine()
    from bertflow.data import checked_corpus

    check_files({"--output": output}, {"MODEL": model, "--corpus": corpus}, rows=True)
    _refuse_other_than_npy(
        output, "encode", "for a folder of .parquet files, ids and all, give --engine local"
    )
    sentences = checked_corpus(corpus, column=text.column, blank="refuse", format=text.format)
    from bertflow.encoders import encode_file

    places = _parsed(devices)
    loaded = open_any(model, loading, speed)
    try:
        with progress_bar("encode") as report:
            encoded = encode_file(
                loaded, sentences, output, devices=places, progress=report, **speed.encoding()
            )
    except KeyboardInterrupt:
        raise Interrupted(resumes_from(part_path(output), speed.cache)) from None
    show(
        f"wrote {encoded.rows:,} vectors of {encoded.width} dimensions to {one_line(output)} "
        f"({from_cache(speed.cache)}{encoded.cut:,} distinct sentences cut{_to_limit(loaded)})"
    )
