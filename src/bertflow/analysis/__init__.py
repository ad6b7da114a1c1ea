"""Looking at clouds of vectors."""

from bertflow.analysis.alignment import alignment, uniformity
from bertflow.analysis.diagnosis import Diagnosis, diagnose
from bertflow.analysis.dimensions import Dominance, dead_dimensions, dominance, effective_rank
from bertflow.analysis.hubness import Hubness, hubness
from bertflow.analysis.isotropy import (
    isoscore,
    mean_cosine,
    partition_isotropy,
    singular_spectrum,
)
from bertflow.analysis.neighbours import nearest

__all__ = [
    "Diagnosis",
    "Dominance",
    "Hubness",
    "alignment",
    "dead_dimensions",
    "diagnose",
    "dominance",
    "effective_rank",
    "hubness",
    "isoscore",
    "mean_cosine",
    "nearest",
    "partition_isotropy",
    "singular_spectrum",
    "uniformity",
]
