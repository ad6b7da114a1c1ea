"""Records and vectors as pictures: a page that stands alone, and figures for papers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.report.building import Report, build_report
    from bertflow.report.page import check_page, render, write_report
    from bertflow.report.plots import (
        check_figure,
        cloud,
        cosine_histogram,
        edit_distance_scatter,
        norm_by_frequency,
        save_figure,
        score_forest,
        spectrum,
        training_curve,
    )

# Loaded when first used: to draw a figure takes neither a page nor a model.
_HOME_OF = {
    "Report": "building",
    "build_report": "building",
    "check_figure": "plots",
    "check_page": "page",
    "cloud": "plots",
    "cosine_histogram": "plots",
    "edit_distance_scatter": "plots",
    "norm_by_frequency": "plots",
    "render": "page",
    "save_figure": "plots",
    "score_forest": "plots",
    "spectrum": "plots",
    "training_curve": "plots",
    "write_report": "page",
}

__all__ = [
    "Report",
    "build_report",
    "check_figure",
    "check_page",
    "cloud",
    "cosine_histogram",
    "edit_distance_scatter",
    "norm_by_frequency",
    "render",
    "save_figure",
    "score_forest",
    "spectrum",
    "training_curve",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bertflow.report' has no attribute {name!r}")
    return getattr(import_module(f"bertflow.report.{_HOME_OF[name]}"), name)
