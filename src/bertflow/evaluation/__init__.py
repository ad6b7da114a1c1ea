"""Scores that cannot mislead."""

from bertflow.evaluation.correlation import (
    Correlation,
    correlate,
    paired_cosine,
    spearman_difference,
)
from bertflow.evaluation.tasks import TASKS, Score, evaluate, score_pairs

__all__ = [
    "TASKS",
    "Correlation",
    "Score",
    "correlate",
    "evaluate",
    "paired_cosine",
    "score_pairs",
    "spearman_difference",
]
