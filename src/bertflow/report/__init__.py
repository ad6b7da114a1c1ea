"""Records and vectors as pictures: a page that stands alone, and figures for papers."""

from bertflow.report.build import Report, build_report
from bertflow.report.draw import (
    cloud,
    cosine_histogram,
    edit_distance_scatter,
    save_figure,
    spectrum,
    training_curve,
)
from bertflow.report.measures import (
    measure_cosines,
    measure_spectra,
    project,
    relate_to_edits,
    summarize_training,
)
from bertflow.report.page import render, write_report

__all__ = [
    "Report",
    "build_report",
    "cloud",
    "cosine_histogram",
    "edit_distance_scatter",
    "measure_cosines",
    "measure_spectra",
    "project",
    "relate_to_edits",
    "render",
    "save_figure",
    "spectrum",
    "summarize_training",
    "training_curve",
    "write_report",
]
