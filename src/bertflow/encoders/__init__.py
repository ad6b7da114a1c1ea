"""Encoders: text to matrices, and calibrated models that load anywhere."""

from bertflow.encoders.corpus import Embedded, embed
from bertflow.encoders.fingerprint import describe_encoder, library_versions
from bertflow.encoders.loading import hidden_states, load_encoder
from bertflow.encoders.model import (
    CalibratedSentenceTransformer,
    attach,
    calibrate,
    is_calibrated,
    load,
    open_model,
    save_model,
)
from bertflow.encoders.module import CalibratorModule
from bertflow.encoders.portable import to_modules

__all__ = [
    "CalibratedSentenceTransformer",
    "CalibratorModule",
    "Embedded",
    "attach",
    "calibrate",
    "describe_encoder",
    "embed",
    "hidden_states",
    "is_calibrated",
    "library_versions",
    "load",
    "load_encoder",
    "open_model",
    "save_model",
    "to_modules",
]
