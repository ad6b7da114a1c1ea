"""Invertible maps as differentiable torch modules: no files, no text."""

from bertflow.flows.bijection import Bijection, Composition
from bertflow.flows.flat import FlatParameters
from bertflow.flows.glow import Glow
from bertflow.flows.gradient import LikelihoodGradient
from bertflow.flows.layers import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    CouplingNet,
    InvertibleLinear,
    Permutation,
    bounded_deviation,
)
from bertflow.flows.residual import ResidualCoupling, ResidualForm

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
