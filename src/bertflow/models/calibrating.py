"""Fit a calibrator behind an encoder, or append one that is fitted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from bertflow.arrays import Array, check_device
from bertflow.calibrators import Calibrator
from bertflow.calibrators.readme import told_of
from bertflow.calibrators.storage import (
    as_calibrator,
    calibrator_for,
    check_savable,
    plain_provenance,
)
from bertflow.display import of_stage, watched
from bertflow.encoders.description import (
    describe_encoder,
    library_versions,
    origin_of,
    vocabulary_hash,
)
from bertflow.encoders.embedding import EncodeOptions, check_options
from bertflow.encoders.encoder import part_of, prompt_of, side_of
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.probe import check_encoder, fingerprint, tried_out
from bertflow.encoders.sampling import SAMPLE, sample_corpus
from bertflow.encoders.sentence_cache import SentenceCache
from bertflow.encoders.streaming import Encoded, Rows, encode_rows
from bertflow.errors import InputError, ModelError
from bertflow.io.files import check_writable
from bertflow.models.calibrated import CalibratedSentenceTransformer, is_fitted_on
from bertflow.models.portable import CHECKED_ROWS, check_design, check_portable, to_modules
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

ENOUGH = {"sentences": " (and is worth it from some hundreds)", "queries": " (and 30 help)"}

Progress = Callable[[str, int, int], None]


@pinned(seed=True)
def calibrate(
    encoder: SentenceTransformer | str | Path,
    sentences: Iterable[str],
    calibrator: Calibrator | str | None = None,
    *,
    queries: Iterable[str] | None = None,
    job: str = "similarity",
    portable: bool = True,
    sample: int | None = SAMPLE,
    batch_size: int = 32,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    devices: Sequence[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | None = None,
) -> CalibratedSentenceTransformer:
    """Fit a calibrator on an encoder's vectors of unlabelled sentences, and append it.

    Each distinct sentence is encoded once; repeats count as often as they occur. Vectors that would
    fill the memory lie in a temporary file. Neither encoder nor calibrator is changed.

    Args:
        encoder: Any SentenceTransformer, or what `load_encoder` takes.
        sentences: At least two distinct ones: a list, or anything that gives them one by one.
        calibrator: One that is fitted anew, or its name, such as "whitening"; None takes the one
            for the job.
        queries: What people will ask, without labels, where the sentences are the documents that
            are searched: at least 2 distinct ones, and some 30 help. They get a map of their own,
            which the model's `encode_query` takes, in plain sentence-transformers, too. Each side
            is encoded with the encoder's prompt for it.
        job: What the vectors are for: "similarity", "search", "classes" or "clusters".
        portable: Write the calibrator as built-in modules, so that the saved model loads without
            bertflow. False uses bertflow's own module.
        sample: How many sentences are enough, see `sample_corpus`; drawn by the calibrator's seed,
            if it is a number. None takes all there are, a chunk at a time.
        batch_size: Sentences a forward pass.
        cache: Where vectors are taken from and kept; None encodes all.
        precision: In which the corpus is encoded, see `resolved_precision`. The model that is
            returned computes in the encoder's own type.
        devices: Of the processes that encode, see `DevicesEncoding`; None encodes in this one.
        provenance: More to be kept with the model, such as the names of files.
        progress: None shows bars where someone watches, False never does, True at once and in any
            thread. A function is called with "encode" or "fit", the steps done and their total.
        checkpoint: File from which a stopped fit of a flow goes on, as in `bertflow.Flow.fit`.

    Returns:
        A SentenceTransformer that gives calibrated vectors; `.calibrator` is the fitted one.

    Raises:
        InputError: Too few sentences or queries, no sentences, or a vector that is not finite.
        ModelError: The encoder is not one function of the text, would not be the same once it is
            saved, or the calibrator cannot be portable.
        TrainingError: A step of the fit is not finite.

    Example:
        ``save_model(calibrate(load_encoder("bert-base-uncased"), sentences), "m")``
    """
    check_options(batch_size, cache, devices)
    if checkpoint is not None:
        check_writable(checkpoint)
    calibrator = _to_fit(calibrator, portable, job)
    more = plain_provenance(provenance or {})
    if isinstance(encoder, str | Path):
        encoder = load_encoder(encoder)
    alone = tried_out(encoder, sides=queries is not None)
    calibrator.n_features_in_ = alone.shape[1]
    calibrator._check_arguments()
    description = describe_encoder(encoder)
    with watched(progress) as report, Rows() as store, Rows() as asked:
        how: EncodeOptions = {
            "batch_size": batch_size,
            "cache": cache,
            "precision": precision,
            "devices": devices,
            "progress": None if report is None else partial(report, "encode"),
        }
        asks: dict[str, Any] = {}
        documents = encoder
        known: Mapping[str, Any] | None = description
        if queries is not None or job == "search":
            documents, known = side_of(encoder, "document"), None
        if queries is not None:
            found = _rows_of("queries", side_of(encoder, "query"), queries, asked, None, how)
            asks = {"queries": found.rows, "distinct_queries": found.distinct}
            asks["prompts"] = _prompts(encoder)
        sentences, drawn = _enough(sentences, sample, calibrator)
        encoded = _rows_of("sentences", documents, sentences, store, known, how)
        computed, origin = resolved_precision(precision, encoder), origin_of(encoder)
        calibrator.provenance_ = {
            **more,
            "encoder": description,
            "probe": fingerprint(alone),
            "vocabulary": vocabulary_hash(encoder),
            "sentences": encoded.rows,
            "distinct": encoded.distinct,
            "cut_to_max_length": encoded.cut,
            **drawn,
            **asks,
            **({} if job == "similarity" else {"job": job}),
            "precision": computed,
            "versions": library_versions(),
            **({"origin": origin} if origin else {}),
        }
        log.info(
            "%d sentences, %d distinct, %d of these cut to %s tokens; in %s (asked: %s)",
            *(encoded.rows, encoded.distinct, encoded.cut, encoder.max_seq_length),
            *(computed, precision),
        )
        log.info("for %s: %r", job, calibrator)
        rows, began = store.array(), time.perf_counter()
        fitting = False if report is None else of_stage(report, "fit")
        both: Any = None if queries is None else asked.array()
        calibrator.fit(rows, queries=both, progress=fitting, checkpoint=checkpoint)
        log.info("%r fitted in %.1f s", calibrator, time.perf_counter() - began)
        first_rows = np.array(rows[:CHECKED_ROWS])
    return appended(encoder, calibrator, portable, first_rows)


def _prompts(encoder: SentenceTransformer) -> dict[str, str]:
    return {role: prompt_of(side_of(encoder, role)) or "" for role in ("query", "document")}


def _to_fit(calibrator: Calibrator | str | None, portable: bool, job: str) -> Calibrator:
    """A calibrator to fit, checked before an hour of encoding."""
    calibrator_for(job)
    calibrator = cast("Calibrator", clone(as_calibrator(calibrator, job)))
    check_savable(calibrator)
    if (place := getattr(calibrator, "device", "auto")) != "auto":
        check_device(place)
    if portable:
        check_design(calibrator)
    return calibrator


def _rows_of(
    kind: str,
    encoder: SentenceTransformer,
    texts: Iterable[str],
    sink: Rows,
    description: Mapping[str, Any] | None,
    how: EncodeOptions,
) -> Encoded:
    encoded = encode_rows(encoder, texts, sink, description=description, **how)
    if encoded.distinct < 2:
        raise InputError(
            f"got {encoded.rows} {kind}, {encoded.distinct} of them distinct, but calibrating "
            f"needs at least 2{ENOUGH[kind]}"
        )
    return encoded


def _enough(
    sentences: Iterable[str], sample: int | None, calibrator: Calibrator
) -> tuple[Iterable[str], dict[str, int]]:
    """Enough sentences, and of how many they were drawn."""
    if sample is None:
        return sentences, {}
    given = getattr(calibrator, "random_state", None)
    seed = int(given) if isinstance(given, Integral) else 0
    found = sample_corpus(sentences, sample, seed=seed)
    return found.sentences, {} if found.whole else {"drawn_from": found.rows}


@pinned(seed=True)
def attach(
    encoder: SentenceTransformer, calibrator: Calibrator, *, portable: bool = True
) -> CalibratedSentenceTransformer:
    """Append a fitted calibrator to the encoder it belongs to.

    If it was fitted on an encoder's vectors, this must be that encoder, with the same pooling,
    length and type. The encoder's modules are shared with the result. `portable` is as in
    `calibrate`.

    Raises:
        sklearn.exceptions.NotFittedError: The calibrator has not been fitted.
        ModelError: The calibrator belongs to another encoder (the message names what differs),
            or cannot be portable.
        InputError: The widths differ.
    """
    check_is_fitted(calibrator)
    provenance, differing = getattr(calibrator, "provenance_", {}), []
    if "encoder" in provenance:
        fitted, given = told_of(calibrator, "encoder"), describe_encoder(encoder)
        differing = [
            f"{name} {fitted.get(name)!r}, not {value!r}"
            for name, value in given.items()
            if name != "name" and fitted.get(name) != value
        ]
    if provenance.get("prompts", own := _prompts(encoder)) != own:
        differing.append(f"prompts {provenance['prompts']!r}, not {own!r}")
    if not is_fitted_on(provenance, encoder, check_encoder(encoder)):
        differing += ["vectors of the same sentences, or the tokens of the tokenizer"]
    if differing:
        raise ModelError(
            "the calibrator was fitted on another encoder than this one, which differs in "
            f"{'; '.join(differing)}"
        )
    return appended(encoder, calibrator, portable, None)


def appended(
    encoder: SentenceTransformer, calibrator: Calibrator, portable: bool, sample: Array | None
) -> CalibratedSentenceTransformer:
    """An encoder with a calibrator of its vectors behind it, tried out on a sample of them."""
    width = int(part_of(encoder, [*encoder]).get_embedding_dimension() or 0)
    expected = calibrator.n_features_in_
    if (given := encoder.get_embedding_dimension()) != expected:
        raise InputError(
            f"the encoder gives vectors of {given} dimensions, but the calibrator was fitted on "
            f"{expected}"
        )
    modules: list[Any] = [CalibratorModule(calibrator)]
    if portable:
        modules = to_modules(calibrator, width)
        check_portable(calibrator, modules, width, sample)
    return CalibratedSentenceTransformer._of(encoder, modules, calibrator)
