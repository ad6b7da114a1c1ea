"""Who may import whom, and that importing bertflow loads nothing heavy."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import bertflow

SOURCE = Path(bertflow.__file__).parent
# Each part may import itself, `errors` and these.
ALLOWED = {
    "errors": set(),
    "flows": set(),
    "display": set(),
    "arrays": set(),
    "io": set(),
    "process_state": set(),
    "data": set(),
    "calibrators": {"flows", "display"},
    "encoders": {"flows", "calibrators", "display"},
    "models": {"flows", "calibrators", "encoders", "data", "display"},
    "evaluation": {"flows", "calibrators", "encoders", "models", "data", "display"},
    "analysis": {"flows", "calibrators", "encoders", "models", "data", "evaluation", "display"},
    "scale": {"flows", "calibrators", "encoders", "models", "data"},
    "finetuning": {"flows", "calibrators", "encoders", "models", "data", "evaluation"},
    "demo": {"flows", "calibrators", "encoders", "models", "data", "evaluation", "analysis"},
}
ALLOWED["paper"] = {*ALLOWED["demo"], "finetuning"}
ALLOWED["report"] = {*ALLOWED["paper"], "paper", "display"}
ALLOWED["cli"] = {*ALLOWED["report"], "demo", "report", "scale", "display"}
ALLOWED["__main__"] = {"cli"}
for allowed in ALLOWED.values():
    allowed |= {"process_state", "arrays", "io"}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
INSIDE = [path for path in MODULES if path.parts[0] != "__init__.py"]
HEAVY = ["torch", "transformers", "sentence_transformers", "sklearn", "scipy", "numpy"]


def part(path: Path) -> str:
    """flows for flows/glow.py, demo for demo.py."""
    return path.parts[0].removesuffix(".py")


def imported(tree: ast.Module, path: Path) -> set[str]:
    """Full names of all that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = ".".join(["bertflow", *path.parent.parts][: len(path.parts) + 1 - node.level])
            base = node.module if node.level == 0 else f"{home}.{node.module or ''}".strip(".")
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def parsed(path: Path) -> ast.Module:
    return ast.parse((SOURCE / path).read_text(encoding="utf-8"))


def test_every_module_belongs_to_a_part():
    assert {part(path) for path in INSIDE} == set(ALLOWED)
    assert len(INSIDE) > 25


def test_imports_go_downwards_only():
    for path in INSIDE:
        inner = [
            name.split(".")
            for name in imported(parsed(path), path)
            if name.split(".")[0] == "bertflow"
        ]
        used = {parts[1] for parts in inner if len(parts) > 1}
        assert used <= {part(path), "errors", *ALLOWED[part(path)]}, path


def test_the_package_itself_is_imported_for_its_version_only():
    for path in INSIDE:
        tree = parsed(path)
        attributes = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "bertflow"
        }
        assert attributes == ({"__version__"} if "bertflow" in imported(tree, path) else set()), (
            path
        )


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions count; those for type checkers alone do not."""
    names = {".".join(("bertflow", *p.with_suffix("").parts)): p for p in INSIDE}
    names = {name: p for name, p in names.items() if p.name != "__init__.py"}
    graph = {}
    for name, path in names.items():
        tree = parsed(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                node.body = []
        found = imported(tree, path)
        found |= {one.rpartition(".")[0] for one in found}
        graph[name] = sorted(found & names.keys() - {name})
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


def test_every_way_to_import_is_seen():
    for source, path, expected in [
        ("import bertflow.cli", "flows/glow.py", {"bertflow.cli"}),
        ("from bertflow import cli, demo", "flows/glow.py", {"bertflow.cli", "bertflow.demo"}),
        ("def f():\n    from bertflow.cli import app", "demo.py", {"bertflow.cli.app"}),
        ("from ..cli import app", "flows/glow.py", {"bertflow.cli.app"}),
        ("from . import layers", "flows/glow.py", {"bertflow.flows.layers"}),
        ("from .layers import A", "flows/glow.py", {"bertflow.flows.layers.A"}),
        ("from .cli import app", "demo.py", {"bertflow.cli.app"}),
    ]:
        assert imported(ast.parse(source), Path(path)) == expected


def loaded_after(code: str) -> list[str]:
    """Which heavy packages a new process has after running the code."""
    report = f"import sys; print('|', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.rpartition("|")[2].split()


def test_a_heavy_package_would_be_seen():
    assert "numpy" in loaded_after("import numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import bertflow; dir(bertflow); bertflow.__version__",
        "import bertflow.errors",
        "import bertflow.cli",
        "from bertflow.cli.main import run; assert run(['--help']) == 0",
        "from bertflow.cli.main import run; assert run(['fit', '--help']) == 0",
        "from bertflow.cli.main import run; assert run(['--version']) == 0",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(code):
    assert loaded_after(code) == []


def test_every_public_name_resolves_and_stays():
    for name in bertflow.__all__:
        value = getattr(bertflow, name)
        assert getattr(bertflow, name) is value
        if name != "__version__":
            assert value.__name__ == name
            assert value.__module__.startswith("bertflow.")


def test_the_public_names_are_listed_once_in_order():
    assert dir(bertflow) == sorted(set(bertflow.__all__))
    assert len(bertflow.__all__) == len(set(bertflow.__all__))


@pytest.mark.parametrize("name", ["nope", "flow", "__nope__"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"'bertflow' has no attribute '{name}'"):
        getattr(bertflow, name)


def test_every_name_a_package_lists_is_there():
    for package in sorted({part(p) for p in MODULES if len(p.parts) > 1}):
        module = __import__(f"bertflow.{package}", fromlist=["__all__"])
        assert len(module.__all__) == len(set(module.__all__))
        for name in module.__all__:
            assert hasattr(module, name)
