"""The paper's tables and figure: declared, computed once, and set beside what was published."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.paper.material import Material
    from bertflow.paper.planning import Options, Planner
    from bertflow.paper.reproduction import Reproduction, reproduce
    from bertflow.paper.results import TableResult
    from bertflow.paper.subjects import Subject, identify
    from bertflow.paper.workplace import Workplace

# Loaded when first used, so that the names of the tables can be looked up at once.
_HOME_OF = {
    "Material": "material",
    "Options": "planning",
    "Planner": "planning",
    "Reproduction": "reproduction",
    "Subject": "subjects",
    "TableResult": "results",
    "Workplace": "workplace",
    "identify": "subjects",
    "reproduce": "reproduction",
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
