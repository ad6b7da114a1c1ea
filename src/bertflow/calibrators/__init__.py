"""Calibrators: matrices in, matrices out; scikit-learn estimators that know no text."""

from bertflow.calibrators.adaptive import AdaptiveWhitening
from bertflow.calibrators.base import Calibrator
from bertflow.calibrators.flow import Flow
from bertflow.calibrators.linear import (
    AllButTheTop,
    LinearCalibrator,
    SoftStandardization,
    Standardization,
    Whitening,
    crowding,
)
from bertflow.calibrators.moments import Moments, QueryMap
from bertflow.calibrators.reference import Density, Reference
from bertflow.calibrators.storage import load_calibrator, named_calibrator, save_calibrator

__all__ = [
    "AdaptiveWhitening",
    "AllButTheTop",
    "Calibrator",
    "Density",
    "Flow",
    "LinearCalibrator",
    "Moments",
    "QueryMap",
    "Reference",
    "SoftStandardization",
    "Standardization",
    "Whitening",
    "crowding",
    "load_calibrator",
    "named_calibrator",
    "save_calibrator",
]
