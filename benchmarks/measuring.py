"""Ratios against a baseline in the same run: the two are timed in turn, and medians are quoted."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bertflow.encoders import library_versions


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
