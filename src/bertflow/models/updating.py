"""Let a calibrated model learn from more sentences than it was fitted on."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.calibrators.updates import note_update
from bertflow.display import of_stage, watched
from bertflow.encoders.embedding import Computing, check_options
from bertflow.encoders.encoder import calibrating, side_of
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.sampling import SAMPLE, sample_corpus
from bertflow.encoders.streaming import Rows, encode_rows
from bertflow.errors import InputError
from bertflow.models.calibrated import CalibratedSentenceTransformer
from bertflow.models.calibrating import Progress, appended
from bertflow.models.portable import CHECKED_ROWS
from bertflow.process_state import pinned


def fitted_side(model: CalibratedSentenceTransformer) -> SentenceTransformer:
    """The encoder of a calibrated model, as it read the sentences that were fitted."""
    calibrator, encoder = model.calibrator, model.encoder
    two_sided = calibrator.query_map_ is not None
    searches = getattr(calibrator, "provenance_", {}).get("job") == "search"
    return side_of(encoder, "document") if two_sided or searches else encoder


@pinned(seed=True)
def update(
    model: CalibratedSentenceTransformer,
    sentences: Iterable[str],
    *,
    sample: int | None = SAMPLE,
    files: Sequence[str] = (),
    progress: Progress | bool | None = None,
    **options: Unpack[Computing],
) -> CalibratedSentenceTransformer:
    """Let the calibrator of a model learn from more sentences, as `Calibrator.partial_fit` does.

    The sentences before need not be there. The model that is given stays as it is. A calibrator
    that was fitted on documents and queries learns from more documents; its map of queries stays.

    Args:
        model: What `calibrate` or `load` gave.
        sentences: New ones only, at least one.
        sample: How many of them are enough, as in `calibrate`.
        files: The names of the files they come from, to be kept with the model.
        progress: As in `calibrate`.
        options: See `bertflow.encoders.Computing`.

    Returns:
        The new model. The last of `calibrator.provenance_["updates"]` says how many sentences were
        added, and how far the map has moved ("moved"): by how much the cosine of two of them has
        changed, the median. Vectors of the old model do not go with those of the new one.

    Raises:
        InputError: No sentences, a vector that is not finite, or a calibrator that keeps no
            statistics of its rows.
        ModelError: The calibrator cannot be portable any more.
        TrainingError: A step of the fit is not finite.

    Example:
        ``save_model(update(load("m"), new_sentences), "m")``
    """
    check_options(options.get("batch_size", 32), options.get("cache"), options.get("devices"))
    calibrator = copy.deepcopy(model.calibrator)
    drawn = sentences if sample is None else sample_corpus(sentences, sample).sentences
    with watched(progress) as report, Rows() as store:
        told = None if report is None else partial(report, "encode")
        encoded = encode_rows(fitted_side(model), drawn, store, **options, progress=told)
        if not encoded.rows:
            raise InputError("there is no sentence to learn from")
        rows = store.array()
        fitting = False if report is None else of_stage(report, "fit")
        calibrator.partial_fit(rows, progress=fitting)
        about: dict[str, Any] = {"sentences": encoded.rows, "cut_to_max_length": encoded.cut}
        about |= {"corpus": [*files]} if files else {}
        note_update(calibrator, model.calibrator, rows, about)
        first_rows = np.array(rows[:CHECKED_ROWS])
    portable = not any(isinstance(one, CalibratorModule) for one in calibrating(model))
    return appended(model.encoder, calibrator, portable, first_rows)
