"""Tables of text, what notebooks show, and numbers as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Grid:
    """Cells as text under headings, with a title; the first column is names."""

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
        lines, shown = self._lines(), [self.title]
        first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
        for name, *figures in lines:
            cells = [name.ljust(first), *map(str.rjust, figures, others)]
            shown.append("  ".join(cells).rstrip())
        return "\n".join(shown)

    def markdown(self) -> str:
        """The table as Markdown."""
        heads, *rows = self._lines()
        rule = ["---", *["---:"] * (len(heads) - 1)]
        body = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            for line in (heads, rule, *rows)
        )
        return f"**{self.title}**\n\n{body}\n"

    def _lines(self) -> list[list[str]]:
        """The headings and the rows, whose figures have "-" for the minus sign."""
        rows = ([name, *map(ascii_minus, figures)] for name, *figures in self.rows)
        return [list(self.columns), *rows]


def notebook(
    title: str, facts: Mapping[str, str], grids: Sequence[Grid] = (), **unfolded: str
) -> str:
    """A part of a notebook's page in HTML; everything is escaped.

    `facts` are names and what they are, a row each. Text under a name of its own is shown when that
    is clicked at.
    """
    from jinja2 import Template

    source = (files("bertflow.display") / "notebook.html").read_text(encoding="utf-8")
    template = Template(source, autoescape=True, trim_blocks=True)
    return str(template.render(title=title, facts=facts, grids=grids, unfolded=unfolded))


def ascii_minus(text: str) -> str:
    """The text with "-" for the minus sign, which not every terminal shows."""
    return text.replace(MINUS, "-")


def fixed(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """A number with so many digits after the point; nothing for None, and never minus zero.

    With `signed` there is "+" before what is 0 or above.

    Example:
        >>> fixed(-0.254), fixed(-0.001), fixed(1.5, 1, signed=True), fixed(None)
        ('−0.25', '0.00', '+1.5', '')
    """
    if value is None:
        return ""
    # Rounded first, and -0.0 + 0.0 is 0.0.
    text = f"{round(float(value), digits) + 0.0:{'+' if signed else ''}.{digits}f}"
    return text.replace("-", MINUS)


def span(low: float | None, high: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Both ends of an interval as `fixed` shows them; nothing where one is missing.

    Example:
        >>> span(0.25, 1.0, 1), span(-1.0, 2.0, 0, signed=True), span(None, None)
        ('0.2 to 1.0', '−1 to +2', '')
    """
    if low is None or high is None:
        return ""
    return f"{fixed(low, digits, signed=signed)} to {fixed(high, digits, signed=signed)}"


def hundredfold(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """A value × 100 as `fixed` shows it; "undefined" where there is none."""
    return "undefined" if value is None else fixed(100 * value, digits, signed=signed)


def hundredfold_span(one: Any, digits: int = 1, *, signed: bool = False) -> str:
    """The interval of an estimate or difference × 100; nothing where it has none."""
    if one.low is None or one.high is None:
        return ""
    return span(100 * one.low, 100 * one.high, digits, signed=signed)


def with_interval(one: Any, *, signed: bool = False) -> str:
    """Such as "50.00 (40.0 to 60.0)": an estimate or difference × 100."""
    shown, ends = hundredfold(one.value, signed=signed), hundredfold_span(one, signed=signed)
    return f"{shown} ({ends})" if ends else shown


def p_value(value: float | None) -> str:
    """A p-value with three digits, or "<0.001"; nothing where there is none."""
    return "<0.001" if value is not None and value < 0.001 else fixed(value, 3)
