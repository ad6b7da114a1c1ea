"""Looking at clouds of vectors."""

from bertflow.analysis.isotropy import mean_cosine, singular_spectrum
from bertflow.analysis.neighbours import nearest

__all__ = ["mean_cosine", "nearest", "singular_spectrum"]
