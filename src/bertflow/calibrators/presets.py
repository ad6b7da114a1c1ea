"""Named settings of Flow, and the name that people know a calibrator by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertflow.errors import InputError, shown

if TYPE_CHECKING:
    from bertflow.calibrators.base import Calibrator

# Each holds the arguments in which it differs from the defaults.

# 32 pairs a step, the sum of the two sides' mean losses: 64 rows here, and since that sum is twice
# the mean over the 64, clipping at 1 and Adam's 1e-6 become 0.5 and 5e-7.
RELEASED: dict[str, Any] = {
    "levels": 3,
    "permutation": "reverse",
    "residual": False,
    "weight_init": "normal",
    "batch_size": 64,
    "schedule": "constant",
    "weight_decay": 0.01,
    "bias_correction": False,
    "adam_epsilon": 5e-7,
    "max_grad_norm": 0.5,
}

# From the plateau that dev splits (STS-B dev, SICK trial) of raw encoders show, see
# docs/results.md.
TEMPERED: dict[str, Any] = {
    "normalize": True,
    "axes": "principal",
    "noise": 0.75,
    "leading": 3,
    "leading_gain": 0.3,
    "centring": 0.95,
    "learning_rate": 3e-4,
}

PRESETS: dict[str, dict[str, Any]] = {
    "flow": {},
    "tempered-flow": TEMPERED,
    "released-flow": RELEASED,
}


# By class: the name in files and on the command line.
NAMES = {
    "AdaptiveWhitening": "adaptive-whitening",
    "Flow": "flow",
    "Whitening": "whitening",
    "Standardization": "standardization",
    "AllButTheTop": "all-but-the-top",
}


def calibrator_name(calibrator: Calibrator) -> str:
    """The name a calibrator goes by in files and on the command line.

    Raises:
        InputError: It is of no class of bertflow's, and cannot be stored.
    """
    kind = type(calibrator)
    if kind.__module__.startswith("bertflow.calibrators.") and kind.__name__ in NAMES:
        return NAMES[kind.__name__]
    raise InputError(f"{kind.__name__} is none of {', '.join(NAMES.values())}")


def preset_of(calibrator: Calibrator) -> tuple[str, dict[str, Any]]:
    """The name that people know a calibrator by, and the arguments in which it differs from that.

    The device is none of them: it makes no other calibrator.

    Example:
        >>> from bertflow import Flow
        >>> preset_of(Flow.tempered(epochs=2))
        ('tempered-flow', {'epochs': 2})
    """
    name, given = calibrator_name(calibrator), calibrator.get_params(deep=False)
    defaults = type(calibrator)().get_params(deep=False)
    presets = PRESETS if name == "flow" else {name: {}}
    found = {
        preset: {
            key: value
            for key, value in given.items()
            if key != "device" and value != {**defaults, **changed}[key]
        }
        for preset, changed in presets.items()
    }
    nearest = min(found, key=lambda preset: len(found[preset]))
    return nearest, found[nearest]


def preset_name(calibrator: Calibrator) -> str:
    """The same in words.

    Example:
        >>> from bertflow import Flow, Whitening
        >>> preset_name(Flow.tempered()), preset_name(Flow.tempered(epochs=2))
        ('tempered-flow', 'tempered-flow, epochs=2')
        >>> preset_name(Whitening(256))
        'whitening, dim=256'
    """
    name, changed = preset_of(calibrator)
    return ", ".join([name, *(f"{key}={shown(value)}" for key, value in changed.items())])
