"""A folder of shards to another folder, or to the calibrator that is fitted on all its vectors."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch
from pyarrow.parquet import read_table

from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, LinearCalibrator, Moments
from bertflow.calibrators.adaptive import SAMPLE
from bertflow.errors import InputError
from bertflow.io.files import sole_writer
from bertflow.scale.engines import Engine, Job, Local
from bertflow.scale.manifest import Manifest, check_whole, files_of, note_of, run_key
from bertflow.scale.shards import SHARD_ROWS, VECTOR, Bad, Place, Plan, plan, read, vectors_of
from bertflow.scale.workers import BlockMoments, Worker, merged_moments

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
LOCK, UNFINISHED = ".lock", ".unfinished"
# In a large folder near duplicates are looked for at the start of this many shards.
SHARDS_SAMPLED = 20


class RunOptions(TypedDict, total=False):
    """What is passed on to `run`."""

    engine: Engine | None
    skip_unreadable: bool
    shard_rows: int
    progress: Progress | None


@dataclass(frozen=True)
class Outcome:
    """What a run has done.

    Attributes:
        shards: How many files the output has.
        done_before: How many of them were there before.
        rows: How many rows all of them have.
        left_out: How many rows of the input have no text, and were left out.
        skipped: Files of the input that could not be used, where that was asked for.
    """

    shards: int
    done_before: int
    rows: int
    left_out: int
    skipped: list[Bad]


def run(
    worker: Worker,
    source: str | Path,
    output: str | Path,
    *,
    engine: Engine | None = None,
    skip_unreadable: bool = False,
    shard_rows: int = SHARD_ROWS,
    progress: Progress | None = None,
) -> Outcome:
    """Apply a worker to every shard of a folder, each to a file of the same name in another.

    A file is written beside the output and moved to its place when it is whole. It says itself what
    it was made of. So the same call after a kill does only what is missing, and after a change of
    some input files only those.

    Args:
        worker: `Encode`, `Transform` or `BlockMoments`.
        source: A folder of .parquet files, also in folders of it; one file; or an address of
            either, such as `s3://bucket/folder`.
        output: A folder on a disk that all workers share.
        engine: Where the work is done; None for this process.
        skip_unreadable: Leave out files that cannot be used, and say which; otherwise the first of
            them is an error. They are tried again by the next run.
        shard_rows: A file of more rows is split where one of its row groups ends.
        progress: Called with the rows done, those done before included, and their total.

    Returns:
        What was done.

    Raises:
        InputError: There is no such folder, the output is an address, a file cannot be used or was
            changed meanwhile (it is named), or files of the output come from files that are gone.
        ModelError: The output cannot be written, holds something else, was made in another way, or
            another process is writing it; or the model cannot be loaded.
        MissingDependencyError: The package is missing that reads from such an address.

    Example:
        >>> import tempfile
        >>> import numpy as np, pyarrow, pyarrow.parquet
        >>> from bertflow import Standardization
        >>> from bertflow.scale import Transform
        >>> x = np.array([[0.0, 10.0], [2.0, 30.0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     home, out = Path(folder, "in"), Path(folder, "out")
        ...     home.mkdir()
        ...     table = pyarrow.table({"id": [7, 8], "vector": x.tolist()})
        ...     pyarrow.parquet.write_table(table, home / "a.parquet")
        ...     first = run(Transform(Standardization().fit(x)), home, out)
        ...     again = run(Transform(Standardization().fit(x)), home, out)
        ...     found = pyarrow.parquet.read_table(out / "a.parquet").to_pydict()
        >>> found
        {'id': [7, 8], 'vector': [[-1.0, -1.0], [1.0, 1.0]]}
        >>> first.rows, first.done_before, again.done_before
        (2, 0, 1)
    """
    engine = engine or Local()
    if "://" in str(output):
        raise InputError(f"{output} is an address; give a folder on a disk that all workers share")
    output, place = Path(output), Place(source)
    if _is_inside(place, output):
        raise InputError(f"{output} is or lies in the input {source}; give a folder of its own")
    check_whole(place)
    planned = _planned(worker, place, skip_unreadable, shard_rows)
    Manifest(output).refuse_others(planned)
    description = engine.describe(worker)
    with sole_writer(output, output / LOCK):
        manifest = Manifest(output)
        manifest.begin(description, planned.shards)
        key = run_key(description)
        before = manifest.rows_done(planned.shards, key)
        log.info("%d shards, %d of them done before", len(planned.shards), len(before))
        report = progress or (lambda done, total: None)
        total = sum(shard.rows for shard in planned.shards)
        done = sum(shard.rows for shard in planned.shards if shard.name in before)
        report(done, total)
        skipped = {bad.path: bad for bad in planned.bad}
        rows = dict(before)
        todo = [shard for shard in planned.shards if shard.name not in before]
        folders = _unfinished(output, [note_of(shard, key) for shard in todo])
        jobs = [
            Job(shard, place, planned.schema, folder, key)
            for shard, folder in zip(todo, folders, strict=True)
        ]
        for result in engine.run(worker, jobs):
            if result.error is None:
                manifest.put(result.path, result.shard.name)
                shutil.rmtree(result.path.parent, ignore_errors=True)
                rows[result.shard.name] = result.rows
            elif skip_unreadable and isinstance(result.error, InputError):
                bad = Bad(result.shard.path, str(result.error))
                skipped.setdefault(bad.path, bad)
            else:
                raise result.error
            done += result.shard.rows
            report(done, total)
        shards = [shard for shard in planned.shards if shard.path not in skipped]
        manifest.finish(shards, list(skipped.values()))
        shutil.rmtree(output / UNFINISHED, ignore_errors=True)
    made = sum(rows[shard.name] for shard in shards)
    left_out = sum(shard.rows for shard in shards) - made
    return Outcome(
        shards=len(shards),
        done_before=sum(shard.name in before for shard in shards),
        rows=made,
        left_out=left_out if worker.row_by_row else 0,
        skipped=list(skipped.values()),
    )


def folder_moments(
    source: str | Path,
    folder: str | Path,
    *,
    vector: str = VECTOR,
    covariance: bool = True,
    normalize: bool = False,
    **options: Unpack[RunOptions],
) -> tuple[Moments, Outcome]:
    """The moments of all vectors of a folder of .parquet files.

    Each shard has a file of its own with its moments, so that a stopped run goes on. They are
    merged in the order of the shards, so the result does not depend on which worker was first.

    Args:
        source: As in `run`.
        folder: For the moments of shards; it may be removed afterwards.
        vector: The column of vectors.
        covariance: As in `BlockMoments`.
        normalize: As in `BlockMoments`.
        options: engine, skip_unreadable, shard_rows and progress, as in `run`.

    Returns:
        The moments, and what was done.

    Raises:
        InputError: As in `run`, or the shards' vectors are of different widths.
        ModelError: As in `run`.
    """
    worker = BlockMoments(vector=vector, covariance=covariance, normalize=normalize)
    outcome = run(worker, source, folder, **options)
    return merged_moments(read_table(file) for file in files_of(folder)), outcome


def fit_folder(
    calibrator: Calibrator,
    source: str | Path,
    folder: str | Path,
    *,
    vector: str = VECTOR,
    **options: Unpack[RunOptions],
) -> Outcome:
    """Fit a calibrator that learns from moments on all vectors of a folder.

    Args:
        calibrator: Any but `Flow`.
        source: As in `folder_moments`.
        folder: As in `folder_moments`.
        vector: As in `folder_moments`.
        options: As in `folder_moments`.

    Raises:
        InputError: As in `folder_moments`, or the calibrator needs rows.
        ModelError: As in `run`.
    """
    if not isinstance(calibrator, LinearCalibrator):
        raise InputError(
            f"{type(calibrator).__name__} is trained on rows, not on moments, and cannot be fitted "
            f"on the folder {source}; fit it on a sample (a .npy of some 200,000 vectors)"
        )
    moments, outcome = folder_moments(
        source,
        folder,
        vector=vector,
        covariance=calibrator.needs_covariance,
        normalize=calibrator.from_unit_rows,
        **options,
    )
    if not bool(torch.isfinite(moments.second).all()):
        raise InputError("the vectors hold values too large to square in float64; scale them down")
    sample = None
    if calibrator.needs_sample:
        sample = _sampled_rows(source, vector, options.get("shard_rows", SHARD_ROWS))
    calibrator.fit_moments(moments, sample)
    calibrator.provenance_ = {"vectors": str(source), "rows": moments.count, "limit": None}
    return outcome


def _sampled_rows(source: str | Path, vector: str, shard_rows: int) -> Array | None:
    """Rows from the start of shards all over a folder, as many as a sample takes."""
    place, columns = Place(source), BlockMoments(vector=vector).columns
    planned = plan(place, columns, shard_rows=shard_rows)
    chosen = planned.shards[:: max(1, len(planned.shards) // SHARDS_SAMPLED)]
    count = -(-SAMPLE // max(1, len(chosen)))
    parts = []
    for shard in chosen:
        with suppress(InputError):  # The run has skipped this shard.
            for batch in islice(read(place, shard, planned.schema, columns, batch_rows=count), 1):
                parts.append(vectors_of(batch.column(vector), place.named(shard.path)))
    return np.concatenate(parts)[:SAMPLE] if parts else None


def _planned(worker: Worker, place: Place, skip_unreadable: bool, shard_rows: int) -> Plan:
    planned = plan(place, worker.columns, shard_rows=shard_rows)
    if planned.bad and not skip_unreadable:
        others = len(planned.bad) - 1
        more = f"; {others} more cannot be used" if others else ""
        raise InputError(f"{planned.bad[0].reason}{more}")
    if not planned.shards:
        reason = planned.bad[0].reason
        raise InputError(f"none of the files in {place.where} can be used: {reason}")
    return planned


def _unfinished(output: Path, notes: Sequence[str]) -> list[Path]:
    """A folder for the unfinished work on each shard, by what its file will say.

    What stopped runs left of other work is removed.
    """
    home = output.absolute() / UNFINISHED
    folders = [home / hashlib.sha256(note.encode()).hexdigest()[:32] for note in notes]
    for path in set(home.iterdir() if home.is_dir() else ()).difference(folders):
        shutil.rmtree(path, ignore_errors=True)
    return folders


def _is_inside(place: Place, output: Path) -> bool:
    if "://" in place.where or place.is_file:
        return False
    home, out = os.path.realpath(place.where), os.path.realpath(output)
    return os.path.commonpath([home, out]) == home
