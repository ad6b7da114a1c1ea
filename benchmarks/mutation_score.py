"""How many small faults the tests catch: of this checkout, and of an earlier one beside it.

The faults are cosmic-ray's (another operator, number, comparison ...), in the flows, the
calibrators and the scoring of tasks. Both checkouts get the same random sample of those that
can be made in both, each against the tests of its module. Tests that take more than five minutes
of a processor's time count as failed.

    pip install cosmic-ray
    git worktree add ../before COMMIT
    python -m benchmarks.mutation_score --before ../before [--mutants 400] [--seed 0] [--jobs 2]
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The tests of each module; files that a checkout does not have are left out.
TESTS = {
    "flows/": "flow_layers glow gradient folding flow_calibrator",
    "calibrators/adaptive": "adaptive calibrators_contract",
    "calibrators/linear": "linear_calibrators half_precision calibrators_contract",
    "calibrators/moments": "moments linear_calibrators queries",
    "calibrators/frame": "frame folding flow_calibrator",
    "calibrators/training": "flow_checkpoint flow_calibrator gradient",
    "calibrators/storage": "storage storage_damage",
    "calibrators/": "flow_calibrator flow_checkpoint vectors calibrators_contract storage",
    "evaluation/": "correlation bootstrap scores tasks",
}
SCORING = ("correlation", "bootstrap", "scores", "differences", "tasks", "trials")
# Without them every run of the tests would begin with seconds of imports.
LOADED = ("torch", "sklearn.utils.estimator_checks", "scipy.stats", "sentence_transformers")
# Seconds of a processor.
LIMIT = 300


@dataclass(frozen=True, order=True)
class Fault:
    """One change of one line; the same in every checkout that has the line.

    Attributes:
        module: The file, below src/bertflow.
        line: What the line says without it.
        operator: cosmic-ray's name of the change.
        number: Which of the places in the module with this line and operator.
    """

    module: str
    line: str
    operator: str
    number: int


def modules(root: Path) -> Iterator[Path]:
    """The modules in which faults are made."""
    source = root / "src/bertflow"
    yield from sorted(source.glob("flows/*.py"))
    yield from sorted(source.glob("calibrators/*.py"))
    yield from sorted(path for path in source.glob("evaluation/*.py") if path.stem in SCORING)


def behaviour(code: str) -> str:
    """What a module does: its syntax tree without annotations and docstrings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.dump(tree)


def faults(root: Path) -> dict[Fault, int]:
    """Every fault that can be made, and which occurrence of its operator it is."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name)() for name in operator_names() if "Variable" not in name}
    found = {}
    for path in modules(root):
        code = path.read_text(encoding="utf-8")
        lines, nodes = code.splitlines(), list(ast_nodes(get_ast(code)))
        for name, operator in operators.items():
            places = [place for node in nodes for place in operator.mutation_positions(node)]
            numbers: Counter[str] = Counter()
            for occurrence, ((row, _), _) in enumerate(places):
                line = lines[row - 1].strip()
                module = str(path.relative_to(root / "src/bertflow"))
                found[Fault(module, line, name, numbers[line])] = occurrence
                numbers[line] += 1
    return found


def faulty(root: Path, fault: Fault, occurrence: int) -> str | None:
    """The module with the fault; None if it does the same as without."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (root / "src/bertflow" / fault.module).read_text(encoding="utf-8")
    changed: str | None = mutate_code(code, get_operator(fault.operator)(), occurrence)
    try:
        return None if changed is None or behaviour(changed) == behaviour(code) else changed
    except SyntaxError:
        return None


@cache
def tests_of(root: Path, module: str) -> list[str]:
    """The files with the tests of a module."""
    names = next(names for start, names in TESTS.items() if module.startswith(start))
    paths = [root / f"tests/test_{name}.py" for name in names.split()]
    return [str(path) for path in paths if path.exists()]


def in_child(root: Path, source: Path, files: list[str]) -> None:
    """Run the tests; never returns."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    signal.alarm(10 * LIMIT)  # Tests that wait for ever take no time of a processor.
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(source)
    sys.path.insert(0, str(source))
    import pytest

    flags = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-m",
        "not nightly and not torture and not slow",
    ]
    os._exit(int(pytest.main([*flags, *files])))


def caught(root: Path, files: list[str], module: str = "", code: str = "") -> bool:
    """Whether the tests fail if a module has another code."""
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary)
        shutil.copytree(root / "src/bertflow", source / "bertflow")
        if module:
            (source / "bertflow" / module).write_text(code, encoding="utf-8")
        child = os.fork()
        if child == 0:
            in_child(root, source, files)
        return os.waitpid(child, 0)[1] != 0


def share(root: Path, sample: dict[Fault, str], jobs: int) -> str:
    """Print which faults survive, and give how many are caught; without any the tests must pass."""
    for files in {tuple(tests_of(root, fault.module)) for fault in sample}:
        if caught(root, list(files)):
            raise SystemExit(f"the tests fail without a fault: {' '.join(files)}")

    def stopped(fault: Fault) -> bool:
        return caught(root, tests_of(root, fault.module), fault.module, sample[fault])

    with ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(sample, pool.map(stopped, sample), strict=True))
    for fault, stops in results.items():
        if not stops:
            print(f"survives: {fault.module}, {fault.operator.split('/')[1]}: {fault.line}")
    count = sum(results.values())
    return f"{count} of {len(results)} caught ({100 * count / len(results):.1f} %)"


def main() -> None:
    """Print the share that each checkout catches, and what survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    for name in LOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    roots = {"before": given.before.resolve(), "now": ROOT}
    possible = {when: faults(root) for when, root in roots.items()}
    common = sorted(possible["before"].keys() & possible["now"].keys())
    print(f"{len(possible['before'])} before, {len(possible['now'])} now, {len(common)} in both")
    random.Random(given.seed).shuffle(common)
    samples: dict[str, dict[Fault, str]] = {when: {} for when in roots}
    for fault in common:
        codes = {when: faulty(root, fault, possible[when][fault]) for when, root in roots.items()}
        if all(codes.values()) and len(samples["now"]) < given.mutants:
            for when, code in codes.items():
                samples[when][fault] = code or ""
        if len(samples["now"]) == given.mutants:
            break
    for when, root in roots.items():
        print(f"\n{when}", flush=True)
        print(share(root, samples[when], given.jobs), flush=True)


if __name__ == "__main__":
    main()
