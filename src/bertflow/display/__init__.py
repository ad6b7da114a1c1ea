"""How objects and progress look: tables of text, HTML for notebooks, bars where someone watches."""

from bertflow.display.grid import Grid, block, facts_table, unfolded
from bertflow.display.progress import Bars, of_stage, watched

__all__ = ["Bars", "Grid", "block", "facts_table", "of_stage", "unfolded", "watched"]
