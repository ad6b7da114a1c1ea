"""Calibrate vectors that you already have: vectors.py [VECTORS.npy]."""

import sys

import numpy as np

from bertflow import AdaptiveWhitening, diagnose, load_calibrator, save_calibrator
from bertflow.analysis import mean_cosine

if len(sys.argv) > 1:
    vectors = np.load(sys.argv[1], mmap_mode="r")
else:  # Some that crowd together, as those of many models do.
    random = np.random.default_rng(0)
    vectors = random.normal(size=(4000, 128)) * np.linspace(2.0, 0.2, 128) + 1.5

verdict = diagnose(vectors)
print(f"will it help? {verdict.verdict}: {verdict.reason}")

calibrator = AdaptiveWhitening().fit(vectors)
save_calibrator(calibrator, "my-calibrator")

# Later, and elsewhere: new rows, one by one or many at once.
calibrator = load_calibrator("my-calibrator")
new = vectors[:100]
calibrated = calibrator.transform(new)
print(f"mean cosine before {mean_cosine(new):.3f}, after {mean_cosine(calibrated):.3f}")

back = calibrator.inverse_transform(calibrated)
print(f"undone, they differ by at most {np.abs(back - new).max():.1e}")
