"""Calibrators learned from more vectors than one machine reads: by moments, merged exactly."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from bertflow.calibrators import AdaptiveWhitening, Calibrator, LinearCalibrator, Moments
from bertflow.calibrators.adaptive import SAMPLE
from bertflow.calibrators.base import Array
from bertflow.errors import InputError
from bertflow.scale.engines import Engine
from bertflow.scale.places import Place
from bertflow.scale.running import Outcome, Progress, files_of, run
from bertflow.scale.shards import SHARD_ROWS, VECTOR, plan, read, vectors_of
from bertflow.scale.workers import BlockMoments, merged_moments

# Of a larger folder, near duplicates are looked for in the beginnings of so many shards.
SHARDS_SAMPLED = 20


def folder_moments(
    source: str | Path,
    folder: str | Path,
    *,
    vector: str = VECTOR,
    covariance: bool = True,
    normalize: bool = False,
    engine: Engine | None = None,
    skip_unreadable: bool = False,
    shard_rows: int = SHARD_ROWS,
    progress: Progress | None = None,
) -> tuple[Moments, Outcome]:
    """The moments of all vectors of a folder of .parquet files, or of a .npy file.

    Each shard's are a file of their own, so that what was stopped goes on; they are merged in the
    order of the shards, whoever was first.

    Args:
        source: As in `run`, or a .npy file.
        folder: For the moments of shards; it may be removed afterwards.
        vector: The column of vectors.
        covariance: As in `BlockMoments`.
        normalize: As in `BlockMoments`.
        engine: As in `run`.
        skip_unreadable: As in `run`.
        shard_rows: As in `run`.
        progress: As in `run`.

    Returns:
        The moments, and what was done.

    Raises:
        InputError: As in `run`, or the shards' vectors are of different widths.
        ModelError: As in `run`.
    """
    import pyarrow.parquet

    worker = BlockMoments(vector=vector, covariance=covariance, normalize=normalize)
    outcome = run(
        worker,
        source,
        folder,
        engine=engine,
        skip_unreadable=skip_unreadable,
        shard_rows=shard_rows,
        progress=progress,
    )
    merged = merged_moments(pyarrow.parquet.read_table(file) for file in files_of(folder))
    return merged, outcome


def fit_folder(
    calibrator: Calibrator,
    source: str | Path,
    folder: str | Path,
    *,
    vector: str = VECTOR,
    engine: Engine | None = None,
    skip_unreadable: bool = False,
    shard_rows: int = SHARD_ROWS,
    progress: Progress | None = None,
) -> Outcome:
    """Fit a calibrator that learns from moments on all vectors of a folder.

    Args:
        calibrator: Any but `Flow`.
        source: As in `folder_moments`.
        folder: As in `folder_moments`.
        vector: As in `folder_moments`.
        engine: As in `run`.
        skip_unreadable: As in `run`.
        shard_rows: As in `run`.
        progress: As in `run`.

    Returns:
        What was done.

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
        engine=engine,
        skip_unreadable=skip_unreadable,
        shard_rows=shard_rows,
        progress=progress,
    )
    if not bool(torch.isfinite(moments.second).all()):
        raise InputError("the vectors hold values too large to square in float64; scale them down")
    if isinstance(calibrator, AdaptiveWhitening):
        calibrator.fit_moments(moments, _some_rows(source, vector, shard_rows))
    else:
        calibrator.fit_moments(moments)
    calibrator.provenance_ = {"vectors": str(source), "rows": moments.count, "limit": None}
    return outcome


def _some_rows(source: str | Path, vector: str, shard_rows: int) -> Array | None:
    """As many rows as a sample takes, from the beginnings of shards all over a folder."""
    place, columns = Place(source), BlockMoments(vector=vector).columns
    planned = plan(place, columns, shard_rows=shard_rows)
    chosen = planned.shards[:: max(1, len(planned.shards) // SHARDS_SAMPLED)]
    count = -(-SAMPLE // max(1, len(chosen)))
    found = []
    for shard in chosen:
        with suppress(InputError):  # It was skipped before.
            for batch in islice(read(place, shard, planned.schema, columns, batch_rows=count), 1):
                found.append(vectors_of(batch.column(vector), place.named(shard.path)))
    return np.concatenate(found)[:SAMPLE] if found else None
