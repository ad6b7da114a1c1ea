"""Names in docstrings lead to where they are described, by whichever module they are called.

`bertflow.Flow`, `Flow` and `bertflow.calibrators.flow.Flow` are one class; it is described once.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode


def _resolve(app: Sphinx, env: BuildEnvironment, node: Any, content: Any) -> nodes.Node | None:
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target:
        return None
    objects = env.domains.python_domain.objects
    parts = target.split(".")
    for start in range(len(parts)):
        ending = "." + ".".join(parts[start:])
        found = [name for name in objects if name.endswith(ending)]
        if len(found) == 1:
            entry = objects[found[0]]
            where = (node["refdoc"], entry.docname, entry.node_id)
            return make_refnode(app.builder, *where, content, found[0])
        if found or not parts[0].startswith("bertflow"):
            return None
    return None


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    # What scikit-learn adds to estimators for its metadata routing, which they do not take part in.
    return True if re.fullmatch(r"set_\w+_request", name) else None


def _escape(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Napoleon has made fields of attributes; a name such as mean_ would be a link.
    lines[:] = [re.sub(r"^(:(?:ivar|vartype) \w*)_:", r"\1\\_:", line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Ask here where Sphinx knows no such name."""
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _escape, priority=900)
    for kind in PyObject.doc_field_types:
        if kind.name == "variable":
            kind.label = "Attributes"
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
