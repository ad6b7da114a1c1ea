"""A table of text: aligned for a terminal, or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Cells under headings, the first column being names.

    Attributes:
        title: What the cells are.
        columns: Headings.
        rows: Cells, as text.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Aligned columns, names to the left and figures to the right.

        It is as wide as it is: a figure that is cut off misleads, a line that wraps does not.

        Example:
            >>> print(Grid("ages", ["who", "age"], [["Ann", "9"], ["Benedict", "10"]]).text())
            ages
            who       age
            Ann         9
            Benedict   10
        """
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *shown])

    def markdown(self) -> str:
        """As Markdown has it."""
        rule = ["---" if place == 0 else "---:" for place in range(len(self.columns))]
        lines = [self.columns, rule, *self.rows]
        body = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return f"**{self.title}**\n\n{body}\n"
