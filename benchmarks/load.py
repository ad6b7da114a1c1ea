"""Whether thousands of calls on one model leak: memory, objects, open files, threads.

A calibrated model is encoded with again and again, other sentences each time, and vectors are
mapped again and again. Each kind of call has a process of its own, and memory is looked at twenty
times. What grows at first is not a leak: buffers that are kept for the next call, tables that are
filled once. A leak goes on growing. So the second half counts: what memory grows by in it, and from
one look to the next, the median, in bytes a call, and how many objects of Python are there more at
its end than at its beginning; all stay near 0 however many calls there were before. Printed is also
how much memory grew in all, how many files and threads were opened and not closed, and as the last
line all of it as JSON, the looks included.

    python -m benchmarks.load [--calls 10000] [--encoder NAME] [--only encode transform ...]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import minilm

LOOKS = 20
INTERNED = 400_000
KINDS = ("encode", "embed", "embed, cached", "transform", "inverse")
WORDS = "a man woman dog cat is was plays runs eats guitar bread street red blue small old".split()


def main() -> None:
    """Measure each kind of call, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--encoder", help="None takes the packaged all-MiniLM-L6-v2.")
    parser.add_argument("--only", nargs="+", metavar="KIND", choices=KINDS, default=KINDS)
    given = parser.parse_args()
    results = []
    for kind in given.only:
        found = {"kind": kind, **apart(kind, given.encoder or minilm(), given.calls)}
        results.append(found)
        print(
            f"{kind:>16}: {found['calls']:,} calls, {found['per_second']:,.0f} a second; "
            f"{found['grown_mb']:+.2f} MB in all, {found['later_mb']:+.2f} MB in the second half, "
            f"{found['bytes_per_call']:+,.0f} bytes a call and {found['objects']:+,d} objects; "
            f"{found['files']:+d} files, {found['threads']:+d} threads",
            flush=True,
        )
    print(json.dumps({"task": "load", "results": results}))


def apart(kind: str, encoder: str, calls: int) -> dict[str, Any]:
    """What `measured` finds in a process that has made no other calls."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(alone, kind, encoder, calls).result()


def alone(kind: str, encoder: str, calls: int) -> dict[str, Any]:
    """Measure one kind of call in this process."""
    with tempfile.TemporaryDirectory() as place:
        call = calls_of(encoder, Path(place))[kind]
        fill_interned()
        return measured(call, calls)


def calls_of(encoder: str, place: Path) -> dict[str, Callable[[int], Any]]:
    """What is called with the number of the call."""
    import numpy as np

    from bertflow import Flow, SentenceCache, calibrate, load, load_encoder
    from bertflow.encoders import embed
    from bertflow.models import save_model

    raw = load_encoder(encoder, pooling="first-last-avg", device="cpu")
    sentences = [sentence for sentence, _ in zip(texts(), range(200), strict=False)]
    save_model(calibrate(raw, sentences, Flow.tempered(epochs=0.2)), place / "model")
    model = load(place / "model", device="cpu")
    rows = np.random.default_rng(0).normal(size=(64, model.calibrator.n_features_in_))
    types = [rows.astype(kind) for kind in (np.float16, np.float32, np.float64)]
    cache = SentenceCache(place / "cache")
    stream = texts()

    def some(number: int) -> list[str]:
        return [next(stream) for _ in range(1 + number % 4)]

    return {
        "encode": lambda number: model.encode(some(number), show_progress_bar=False),
        "embed": lambda number: embed(model, some(number)),
        "embed, cached": lambda number: embed(model, sentences[number % 200 :][:4], cache=cache),
        "transform": lambda number: model.calibrator.transform(types[number % 3]),
        "inverse": lambda number: model.calibrator.inverse_transform(types[number % 3]),
    }


def texts() -> Iterator[str]:
    """Sentences without end, of 3 to 14 words, each another."""
    for number in count():
        words = [WORDS[(number * step + step) % len(WORDS)] for step in range(1, 3 + number % 12)]
        yield f"{' '.join(words)} {number}"


def measured(call: Callable[[int], Any], calls: int) -> dict[str, Any]:
    """Make so many calls, after a tenth as many that do not count."""
    for number in range(max(50, calls // 10)):
        call(number)
    before = open_files(), threading.active_count()
    looks, objects = [memory()], [len(gc.get_objects())]
    began = time.perf_counter()
    for look in range(LOOKS):
        for number in range(calls * look // LOOKS, calls * (look + 1) // LOOKS):
            call(number)
        looks.append(memory())
        objects.append(len(gc.get_objects()))
    seconds = time.perf_counter() - began
    half = LOOKS // 2
    return {
        "calls": calls,
        "per_second": calls / seconds,
        "grown_mb": (looks[-1] - looks[0]) / 1e6,
        "later_mb": (looks[-1] - looks[half]) / 1e6,
        "bytes_per_call": median(b - a for a, b in pairwise(looks[half:])) / (calls / LOOKS),
        "objects": objects[-1] - objects[half],
        "files": open_files() - before[0],
        "threads": threading.active_count() - before[1],
        "looks_mb": [round(look / 1e6, 3) for look in looks],
    }


def fill_interned() -> None:
    """Have Python's table of interned strings take the size that it keeps.

    Names of files are interned and forgotten again. The table notices when it is full, and doubles
    once, 4 MB beside torch, however few strings there are in it by then.
    """
    for number in range(INTERNED):
        sys.intern(f"of no use {number}")


def memory() -> int:
    """Bytes of this process that are in memory and its own, less what could be given back."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # Not the C library of Linux.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("only Linux tells how much memory a process has")


def open_files() -> int:
    """How many files this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    main()
