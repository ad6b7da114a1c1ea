"""Invertible maps as differentiable torch modules: no files, no text."""

from bertflow.flows.glow import Glow, ResidualCoupling, ResidualForm
from bertflow.flows.gradient import FlatParameters, LikelihoodGradient
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Bijection,
    Composition,
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
    "FlatParameters",
    "Glow",
    "InvertibleLinear",
    "LikelihoodGradient",
    "Permutation",
    "ResidualCoupling",
    "ResidualForm",
    "bounded_deviation",
]
