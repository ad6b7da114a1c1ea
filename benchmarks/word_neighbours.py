"""What exact neighbours cost: seconds, and memory above the matrix, every row being a query.

The matrix has the size of a large vocabulary, and clusters, so that neighbours are near.

    python -m benchmarks.word_neighbours [--rows 50000] [--width 768]
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from benchmarks.measuring import memory, memory_when_idle
from bertflow.analysis.neighbours import nearest_neighbours


def main() -> None:
    """Search once and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=768)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    matrix = random.standard_normal((given.rows, given.width), dtype=np.float32)
    centres = random.standard_normal((500, given.width), dtype=np.float32)
    # Row by row, so that nothing beside the matrix has been in memory before.
    for row, centre in zip(matrix, random.integers(len(centres), size=given.rows), strict=True):
        row += centres[centre]
    before = memory_when_idle()["VmRSS"]
    began, busy = time.perf_counter(), time.process_time()
    nearest_neighbours(np.arange(given.rows), matrix, k=7)
    seconds, work = time.perf_counter() - began, time.process_time() - busy
    above = memory()["VmHWM"] - before
    print(
        f"{given.rows:,} x {given.width}, every row: {seconds:.1f} s on {os.cpu_count()} CPUs "
        f"({work:.1f} s of CPU), {above:.0f} MB above the matrix"
    )


if __name__ == "__main__":
    main()
