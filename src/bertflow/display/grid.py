"""A table of text: aligned for a terminal, as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bertflow.display.html import CELL, LINE


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

    def html(self) -> str:
        """As a notebook has it."""

        def line(cells: Sequence[str], kind: str, rule: str = "") -> str:
            shown = "".join(
                f'<{kind} style="{CELL} text-align: {"right" if place else "left"};{rule}">'
                f"{escape(cell)}</{kind}>"
                for place, cell in enumerate(cells)
            )
            return f'<tr style="background: transparent;">{shown}</tr>'

        head = line(self.columns, "th", f" border-bottom: {LINE};")
        body = "".join(line(cells, "td") for cells in self.rows)
        return (
            '<table style="color: inherit; border-collapse: collapse;">'
            f'<caption style="color: inherit; text-align: left;">{escape(self.title)}</caption>'
            f"<thead>{head}</thead><tbody>{body}</tbody></table>"
        )
