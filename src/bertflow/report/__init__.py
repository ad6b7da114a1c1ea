"""Records and analyses as pictures; matplotlib is loaded when the first is drawn."""

from bertflow.report.plots import check_figure, edit_distance_scatter, save_figure

__all__ = ["check_figure", "edit_distance_scatter", "save_figure"]
