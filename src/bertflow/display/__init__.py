"""How objects and progress look: tables of text, parts of notebooks, bars where someone looks."""

from bertflow.display.grid import Grid, notebook
from bertflow.display.progress import Bars, of_stage, watched

__all__ = ["Bars", "Grid", "notebook", "of_stage", "watched"]
