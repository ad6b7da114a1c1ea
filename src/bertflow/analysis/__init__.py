"""Measures of clouds of vectors.

The measures take vectors of shape (N, D), N ≥ 2, in any container. Those that look at directions
leave out rows that are zero. Of a large cloud, `rows` rows or `pairs` pairs are drawn by the seed
`random_state`; a measure without these arguments goes through all rows in chunks. An `InputError`
says that too few rows are left, that all rows are equal where that leaves nothing to measure, or
which row is NaN or infinite.
"""

from bertflow.analysis.diagnosis import Diagnosis, diagnose
from bertflow.analysis.drifting import Drift, Share, Unlike, drift
from bertflow.analysis.frequency import (
    WordStatistics,
    frequent_words,
    word_embeddings,
    word_statistics,
)
from bertflow.analysis.isotropy import (
    Dominance,
    Hubness,
    Isotropy,
    alignment,
    dead_dimensions,
    dominance,
    effective_rank,
    hubness,
    isoscore,
    mean_cosine,
    measure_isotropy,
    partition_isotropy,
    singular_spectrum,
    uniformity,
)
from bertflow.analysis.lexical import Lexical, edit_distances, lexical_statistics

__all__ = [
    "Diagnosis",
    "Dominance",
    "Drift",
    "Hubness",
    "Isotropy",
    "Lexical",
    "Share",
    "Unlike",
    "WordStatistics",
    "alignment",
    "dead_dimensions",
    "diagnose",
    "dominance",
    "drift",
    "edit_distances",
    "effective_rank",
    "frequent_words",
    "hubness",
    "isoscore",
    "lexical_statistics",
    "mean_cosine",
    "measure_isotropy",
    "partition_isotropy",
    "singular_spectrum",
    "uniformity",
    "word_embeddings",
    "word_statistics",
]
