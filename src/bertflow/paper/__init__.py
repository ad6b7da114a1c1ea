"""The paper's tables and figure: declared, computed once, and set beside the published numbers."""

from collections.abc import Iterable

from bertflow.errors import unknown

__all__ = ["NAMES", "check_names"]

NAMES = (*(f"table{number}" for number in range(1, 9)), "figure2")


def check_names(names: Iterable[str]) -> None:
    """Refuse a wrong name of a table, without a heavy import."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise unknown("table", name, (*NAMES, "all"))
