"""Numbers as text, for tables, a terminal and a page."""

from __future__ import annotations

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
    text = f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"
    return text.replace("-", minus)


def span(low: float | None, high: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Both ends of an interval; nothing where one is missing.

    Example:
        >>> span(0.25, 1.0, 1), span(-1.0, 2.0, 0, signed=True), span(None, None)
        ('0.2 to 1.0', '−1 to +2', '')
    """
    if low is None or high is None:
        return ""
    return " to ".join(fixed(end, digits, signed=signed) for end in (low, high))
