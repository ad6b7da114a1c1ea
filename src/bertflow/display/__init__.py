"""How objects and progress look: tables of text, HTML for notebooks, bars where someone watches."""

from bertflow.display.bars import Bars, Report, of_stage, watched
from bertflow.display.grid import Grid
from bertflow.display.html import block, facts_table, unfolded

__all__ = ["Bars", "Grid", "Report", "block", "facts_table", "of_stage", "unfolded", "watched"]
