"""Calibrated models: an encoder and its calibrator as one, saved so that it loads anywhere."""

from bertflow.encoders.module import CalibratorModule
from bertflow.models.calibrated import (
    CalibratedSentenceTransformer,
    is_calibrated,
    load,
    open_model,
    save_card,
    save_model,
)
from bertflow.models.calibrating import attach, calibrate
from bertflow.models.export import Exported, export_onnx
from bertflow.models.portable import to_modules
from bertflow.models.updating import update

__all__ = [
    "CalibratedSentenceTransformer",
    "CalibratorModule",
    "Exported",
    "attach",
    "calibrate",
    "export_onnx",
    "is_calibrated",
    "load",
    "open_model",
    "save_card",
    "save_model",
    "to_modules",
    "update",
]
