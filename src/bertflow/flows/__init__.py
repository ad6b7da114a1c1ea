"""Invertible maps as differentiable torch modules: no files, no text."""

from bertflow.flows.bijection import Bijection, Composition
from bertflow.flows.glow import Glow
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    CouplingNet,
    InvertibleLinear,
    Permutation,
    bounded_deviation,
)

__all__ = [
    "ActNorm",
    "AdditiveCoupling",
    "AffineCoupling",
    "Bijection",
    "Composition",
    "CouplingNet",
    "Glow",
    "InvertibleLinear",
    "Permutation",
    "bounded_deviation",
]
