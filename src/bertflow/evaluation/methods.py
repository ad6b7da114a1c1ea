"""The rivals that `compare` sets side by side, declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
)

# The published width of whitening; narrower vectors are halved instead.
DIM = 256
SOFT = 0.75


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to calibrate.

    Attributes:
        name: Its name on the command line.
        label: Its name in a table.
        build: Gives the calibrator for vectors of so many dimensions and a seed; None for the
            vectors as they are.
        seeded: Whether the seed matters.
        tuned: Whether n_components is chosen on a dev split, from 1 to 20, where there is one.
    """

    name: str
    label: str
    build: Callable[[int, int], Calibrator] | None
    seeded: bool = False
    tuned: bool = False


def published_dim(width: int) -> int:
    """The dimensions that whitening keeps: 256, as published, or half of narrower vectors."""
    return DIM if width > DIM else max(1, width // 2)


_DECLARED = (
    Method(name="none", label="none", build=None),
    Method(
        name="adaptive-whitening",
        label="adaptive whitening",
        build=lambda width, seed: AdaptiveWhitening(),
    ),
    Method(
        name="standardization", label="standardization", build=lambda width, seed: Standardization()
    ),
    Method(
        name="all-but-the-top",
        label="all-but-the-top",
        build=lambda width, seed: AllButTheTop(),
        tuned=True,
    ),
    Method(
        name="standardization+all-but-the-top",
        label="standardization + all-but-the-top",
        build=lambda width, seed: AllButTheTop(standardize=True),
        tuned=True,
    ),
    Method(name="whitening", label="whitening", build=lambda width, seed: Whitening(shrinkage=0.0)),
    Method(
        name="whitening-dim",
        label="whitening {dim}",
        build=lambda width, seed: Whitening(published_dim(width), shrinkage=0.0),
    ),
    Method(
        name="soft-whitening",
        label=f"soft whitening {{dim}} (power {SOFT})",
        build=lambda width, seed: Whitening(published_dim(width), power=SOFT, shrinkage=0.0),
    ),
    Method(
        name="flow",
        label="flow",
        build=lambda width, seed: Flow(random_state=seed),
        seeded=True,
    ),
    Method(
        name="released-flow",
        label="released-flow",
        build=lambda width, seed: Flow.released(random_state=seed),
        seeded=True,
    ),
    Method(
        name="tempered-flow",
        label="tempered-flow",
        build=lambda width, seed: Flow.tempered(random_state=seed),
        seeded=True,
    ),
)
METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _DECLARED})
