"""Calibrate the sentence vectors of a frozen language model, without labels.

The everyday names, each loaded when it is first used, so that importing bertflow costs nothing.

Example:
    >>> import numpy as np
    >>> import bertflow
    >>> x = np.random.default_rng(0).normal(size=(200, 16)) + 5.0
    >>> z = bertflow.Whitening().fit_transform(x)
    >>> z.shape
    (200, 16)
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.analysis import diagnose
    from bertflow.calibrators import (
        AdaptiveWhitening,
        AllButTheTop,
        Calibrator,
        Flow,
        Standardization,
        Whitening,
        load_calibrator,
        save_calibrator,
    )
    from bertflow.encoders import SentenceCache, load_encoder
    from bertflow.errors import (
        BertflowError,
        InputError,
        MissingDataError,
        MissingDependencyError,
        ModelError,
        TrainingError,
    )
    from bertflow.evaluation import compare, evaluate, evaluate_all
    from bertflow.models import CalibratedSentenceTransformer, attach, calibrate, load

__version__ = "0.1.0"

# The program that uses bertflow shows the log; without a program's wish nothing is printed.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "bertflow.analysis": ["diagnose"],
    "bertflow.calibrators": [
        "AdaptiveWhitening",
        "AllButTheTop",
        "Calibrator",
        "Flow",
        "Standardization",
        "Whitening",
        "load_calibrator",
        "save_calibrator",
    ],
    "bertflow.encoders": ["SentenceCache", "load_encoder"],
    "bertflow.errors": [
        "BertflowError",
        "InputError",
        "MissingDataError",
        "MissingDependencyError",
        "ModelError",
        "TrainingError",
    ],
    "bertflow.evaluation": ["compare", "evaluate", "evaluate_all"],
    "bertflow.models": ["CalibratedSentenceTransformer", "attach", "calibrate", "load"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AdaptiveWhitening",
    "AllButTheTop",
    "BertflowError",
    "CalibratedSentenceTransformer",
    "Calibrator",
    "Flow",
    "InputError",
    "MissingDataError",
    "MissingDependencyError",
    "ModelError",
    "SentenceCache",
    "Standardization",
    "TrainingError",
    "Whitening",
    "__version__",
    "attach",
    "calibrate",
    "compare",
    "diagnose",
    "evaluate",
    "evaluate_all",
    "load",
    "load_calibrator",
    "load_encoder",
    "save_calibrator",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bertflow' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
