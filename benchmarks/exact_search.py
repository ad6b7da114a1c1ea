"""Exact search against faiss's flat index: time on the same threads, and memory beside the vectors.

    python -m benchmarks.exact_search [--queries 5000] [--documents 500000] [--width 384] [--k 100]
        [--threads N] [--repeats 3]

Vectors are random and of length 1. The index is built before it is timed; we take the vectors as
they are, so finding their lengths is part of our time. Memory is the highest of the process during
a search, less that before it; once more with the documents in a memory-mapped file of float16, for
500 queries.
Prints a line of a Markdown table; the ratio is how many times as long as faiss we take.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.measuring import (
    HEADER,
    Row,
    in_turn,
    medians,
    memory,
    memory_when_idle,
    seconds,
    versions,
)
from bertflow.evaluation import exact_search

# Queries where no time is taken.
FEW = 500


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--documents", type=int, default=500_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # The BLAS of numpy and of faiss, and OpenMP.
    with threadpool_limits(options.threads):
        row = measured(options)
    print(HEADER)
    print(row.markdown())
    print(versions(), f"faiss {faiss.__version__}", sep=", ")


def measured(options: argparse.Namespace) -> Row:
    """Time, memory, and how many of the documents found are the same."""
    random = np.random.default_rng(0)
    queries, documents = (
        random.standard_normal((count, options.width), dtype=np.float32)
        for count in (options.queries, options.documents)
    )
    faiss.normalize_L2(queries)
    faiss.normalize_L2(documents)
    k = options.k
    beside = peak(queries, documents, k)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "documents.npy"
        np.save(file, documents.astype(np.float16))
        beside_file = peak(queries[:FEW], np.load(file, mmap_mode="r"), k)
    index = faiss.IndexFlatIP(options.width)
    index.add(documents)
    few = queries[:FEW]
    same = (exact_search(few, documents, k)[0] == index.search(few, k)[1]).mean()
    pairs = in_turn(
        lambda: seconds(lambda: index.search(queries, k)),
        lambda: seconds(lambda: exact_search(queries, documents, k)),
        options.repeats,
    )
    theirs, ours = medians(pairs)
    return Row(
        what=f"exact search, {options.queries:,} x {options.documents:,} x {options.width}, k {k}",
        baseline="faiss IndexFlatIP",
        reach="<= 1.3 x the time",
        ratios=[mine / other for other, mine in pairs],
        ours=f"{ours:.2f} s",
        theirs=f"{theirs:.2f} s",
        facts={
            "threads": options.threads,
            "MB beside the vectors": f"{beside:.0f}",
            "of a file": f"{beside_file:.0f}",
            "same rows": f"{same:.5f}",
        },
    )


def peak(queries: Any, documents: Any, k: int) -> float:
    """The megabytes that a search adds to the process at most."""
    before = memory_when_idle()["VmRSS"]
    exact_search(queries, documents, k)
    return memory()["VmHWM"] - before


if __name__ == "__main__":
    main()
