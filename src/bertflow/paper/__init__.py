"""The paper's tables and figure: declared, computed once, and set beside the published numbers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.paper.plan import Options, Planner
    from bertflow.paper.results import TableResult
    from bertflow.paper.run import Reproduction, Workplace, reproduce
    from bertflow.paper.subjects import Material, Subject, identify

# Without a heavy import, so that a wrong name is refused at once.
NAMES = (*(f"table{number}" for number in range(1, 9)), "figure2")
_HOME_OF = {
    "Material": "subjects",
    "Options": "plan",
    "Planner": "plan",
    "Reproduction": "run",
    "Subject": "subjects",
    "TableResult": "results",
    "Workplace": "run",
    "identify": "subjects",
    "reproduce": "run",
}

__all__ = [
    "Material",
    "Options",
    "Planner",
    "Reproduction",
    "Subject",
    "TableResult",
    "Workplace",
    "identify",
    "reproduce",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bertflow.paper' has no attribute {name!r}")
    return getattr(import_module(f"bertflow.paper.{_HOME_OF[name]}"), name)
