"""Scores that cannot mislead."""

from bertflow.data import TASKS
from bertflow.evaluation.bootstrap import Difference, Resamples, holm, paired_difference
from bertflow.evaluation.comparison import METHODS, Comparison, Method, compare
from bertflow.evaluation.duplicates import DuplicatesJob
from bertflow.evaluation.jobs import JobScore, compare_job, evaluate_job, job_differences
from bertflow.evaluation.labels import LabelsJob, read_labels
from bertflow.evaluation.retrieval import RetrievalJob, exact_search, read_retrieval
from bertflow.evaluation.scores import (
    Correlation,
    Estimate,
    area_under_curve,
    as_json,
    correlate,
    figures,
    over_seeds,
    paired_cosine,
)
from bertflow.evaluation.tasks import (
    Score,
    Scores,
    describe_calibrator,
    difference,
    differences,
    evaluate,
    evaluate_all,
    read_tasks,
    score_all,
    score_pairs,
)

__all__ = [
    "METHODS",
    "TASKS",
    "Comparison",
    "Correlation",
    "Difference",
    "DuplicatesJob",
    "Estimate",
    "JobScore",
    "LabelsJob",
    "Method",
    "Resamples",
    "RetrievalJob",
    "Score",
    "Scores",
    "area_under_curve",
    "as_json",
    "compare",
    "compare_job",
    "correlate",
    "describe_calibrator",
    "difference",
    "differences",
    "evaluate",
    "evaluate_all",
    "evaluate_job",
    "exact_search",
    "figures",
    "holm",
    "job_differences",
    "over_seeds",
    "paired_cosine",
    "paired_difference",
    "read_labels",
    "read_retrieval",
    "read_tasks",
    "score_all",
    "score_pairs",
]
