"""Named settings of Flow: the arguments in which they differ from its defaults."""

from __future__ import annotations

from typing import Any

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
