"""Numbers as text, for tables, a terminal and a page."""

from __future__ import annotations

from typing import Protocol

MINUS = "\N{MINUS SIGN}"


def fixed(value: float | None, digits: int = 2, *, signed: bool = False, minus: str = MINUS) -> str:
    """A number with so many digits after the point; nothing for None, and never minus zero.

    Args:
        value: What is shown.
        digits: How many after the point.
        signed: Put "+" before what is 0 or above.
        minus: The sign of what is below 0; a terminal takes "-".

    Example:
        >>> fixed(-0.254), fixed(-0.001), fixed(1.5, 1, signed=True), fixed(None)
        ('−0.25', '0.00', '+1.5', '')
    """
    if value is None:
        return ""
    # Rounded first, and -0.0 + 0.0 is 0.0.
    text = f"{round(float(value), digits) + 0.0:{'+' if signed else ''}.{digits}f}"
    return text.replace("-", minus)


def span(
    low: float | None,
    high: float | None,
    digits: int = 2,
    *,
    signed: bool = False,
    minus: str = MINUS,
) -> str:
    """Both ends of an interval; nothing where one is missing.

    Example:
        >>> span(0.25, 1.0, 1), span(-1.0, 2.0, 0, signed=True), span(None, None)
        ('0.2 to 1.0', '−1 to +2', '')
    """
    if low is None or high is None:
        return ""
    return " to ".join(fixed(end, digits, signed=signed, minus=minus) for end in (low, high))


class Interval(Protocol):
    """A value with its interval, such as an estimate or a difference."""

    @property
    def value(self) -> float | None:
        """The value; None where it is undefined."""

    @property
    def low(self) -> float | None:
        """The interval's lower end."""

    @property
    def high(self) -> float | None:
        """The interval's upper end."""


def hundredfold(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """A value × 100 as a terminal shows it; "undefined" where there is none.

    Example:
        >>> hundredfold(0.8512), hundredfold(-0.01, signed=True), hundredfold(None)
        ('85.12', '-1.00', 'undefined')
    """
    return "undefined" if value is None else fixed(100 * value, digits, signed=signed, minus="-")


def hundredfold_span(one: Interval, digits: int = 1, *, signed: bool = False) -> str:
    """An interval × 100 as a terminal shows it; nothing where there is none.

    Example:
        >>> from types import SimpleNamespace
        >>> hundredfold_span(SimpleNamespace(low=-0.1, high=0.25))
        '-10.0 to 25.0'
    """
    if one.low is None or one.high is None:
        return ""
    return span(100 * one.low, 100 * one.high, digits, signed=signed, minus="-")


def with_interval(one: Interval, *, signed: bool = False) -> str:
    """A value × 100 with its interval, as far as there is one, as a terminal shows them.

    Example:
        >>> from types import SimpleNamespace
        >>> with_interval(SimpleNamespace(value=0.5, low=0.4, high=0.6))
        '50.00 (40.0 to 60.0)'
    """
    shown, ends = hundredfold(one.value, signed=signed), hundredfold_span(one, signed=signed)
    return f"{shown} ({ends})" if ends else shown


def p_value(value: float | None) -> str:
    """A p-value with three digits; nothing where there is none.

    Example:
        >>> p_value(0.0317), p_value(1e-9)
        ('0.032', '<0.001')
    """
    return "<0.001" if value is not None and value < 0.001 else fixed(value, 3)
