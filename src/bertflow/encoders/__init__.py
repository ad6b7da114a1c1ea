"""Encoders: text to matrices.

Calibrated models have a package of their own, `bertflow.models`. Their names are here, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertflow.encoders.devices import DevicesEncoding, parse_devices
from bertflow.encoders.embedding import Embedded, embed, fill
from bertflow.encoders.encoding import encode_distinct
from bertflow.encoders.fingerprint import describe_encoder, library_versions
from bertflow.encoders.loading import load_encoder
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.poolings import load_layers, load_poolings
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.sampling import SAMPLE, Sampled, sample_corpus
from bertflow.encoders.sentence_cache import SentenceCache, VectorCache
from bertflow.encoders.states import hidden_states
from bertflow.encoders.streaming import Encoded, Rows, encode_file, encode_rows
from bertflow.encoders.word_vectors import load_word_vectors

if TYPE_CHECKING:
    from bertflow.models import (
        CalibratedSentenceTransformer,
        attach,
        calibrate,
        is_calibrated,
        load,
        open_model,
        save_card,
        save_model,
        to_modules,
    )

__all__ = [
    "CalibratedSentenceTransformer",
    "CalibratorModule",
    "DevicesEncoding",
    "Embedded",
    "Encoded",
    "Precision",
    "Rows",
    "SAMPLE",
    "Sampled",
    "SentenceCache",
    "VectorCache",
    "attach",
    "calibrate",
    "describe_encoder",
    "embed",
    "encode_distinct",
    "encode_file",
    "encode_rows",
    "fill",
    "hidden_states",
    "is_calibrated",
    "library_versions",
    "load",
    "load_encoder",
    "load_layers",
    "load_poolings",
    "load_word_vectors",
    "open_model",
    "parse_devices",
    "resolved_precision",
    "sample_corpus",
    "save_card",
    "save_model",
    "to_modules",
]


def __getattr__(name: str) -> Any:
    # These stand on the encoders, so they are imported when they are asked for.
    if name not in __all__:
        raise AttributeError(f"module 'bertflow.encoders' has no attribute {name!r}")
    return getattr(import_module("bertflow.models"), name)
