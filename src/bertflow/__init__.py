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
    from bertflow.analysis import diagnose, drift
    from bertflow.calibrators import (
        AdaptiveWhitening,
        AllButTheTop,
        Calibrator,
        Flow,
        SoftStandardization,
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
    from bertflow.models import (
        CalibratedSentenceTransformer,
        attach,
        calibrate,
        export_onnx,
        load,
        update,
    )

__version__ = "0.1.0"

# The program that uses bertflow shows the log; without a program's wish nothing is printed.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# The modules to look a name up in, the cheaper to import first.
_HOMES = ("errors", "calibrators", "encoders", "models", "evaluation", "analysis")

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
    "SoftStandardization",
    "Standardization",
    "TrainingError",
    "Whitening",
    "__version__",
    "attach",
    "calibrate",
    "compare",
    "diagnose",
    "drift",
    "evaluate",
    "evaluate_all",
    "export_onnx",
    "load",
    "load_calibrator",
    "load_encoder",
    "save_calibrator",
    "update",
]


def __getattr__(name: str) -> Any:
    homes = (import_module(f"bertflow.{home}") for home in _HOMES if name in __all__)
    for module in homes:
        if hasattr(module, name):
            globals()[name] = value = getattr(module, name)
            return value
    raise AttributeError(f"module 'bertflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
