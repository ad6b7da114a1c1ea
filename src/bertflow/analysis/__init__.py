"""Looking at clouds of vectors."""

from bertflow.analysis.diagnosis import Diagnosis, diagnose
from bertflow.analysis.frequency import (
    WordStatistics,
    frequent_words,
    word_embeddings,
    word_statistics,
)
from bertflow.analysis.isotropy import (
    Dominance,
    Isotropy,
    alignment,
    dead_dimensions,
    dominance,
    effective_rank,
    isoscore,
    mean_cosine,
    measure_isotropy,
    partition_isotropy,
    singular_spectrum,
    uniformity,
)
from bertflow.analysis.lexical import Lexical, edit_distances, lexical_statistics
from bertflow.analysis.neighbours import Hubness, hubness, nearest

__all__ = [
    "Diagnosis",
    "Dominance",
    "Hubness",
    "Isotropy",
    "Lexical",
    "WordStatistics",
    "alignment",
    "dead_dimensions",
    "diagnose",
    "dominance",
    "edit_distances",
    "effective_rank",
    "frequent_words",
    "hubness",
    "isoscore",
    "lexical_statistics",
    "mean_cosine",
    "measure_isotropy",
    "nearest",
    "partition_isotropy",
    "singular_spectrum",
    "uniformity",
    "word_embeddings",
    "word_statistics",
]
