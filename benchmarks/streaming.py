"""What `encode_file` holds in memory as the corpus grows, the encoder stubbed.

Each size runs in a process of its own, which encodes so many distinct short sentences and some
repeats to a .npy file. Printed are the most memory above the idle process (resident, files that are
mapped included), sentences a second, and as the last line all of it as JSON.

    python -m benchmarks.streaming [--sentences 100000 1000000] [--width 384] [--calibrate]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import memory, memory_when_idle

REPEATED = 10  # One sentence of so many was there before.


def main() -> None:
    """Run each size in its own process, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--calibrate", action="store_true", help="Fit a Whitening instead.")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone is not None:
        print(json.dumps(measured(given.alone, given.width, given.calibrate)))
        return
    results = []
    for count in given.sentences:
        command = [sys.executable, "-m", "benchmarks.streaming", "--alone", str(count)]
        command += ["--width", str(given.width), *(["--calibrate"] if given.calibrate else [])]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        results.append(found)
        print(
            f"{found['sentences']:>9,} sentences, width {found['width']}: "
            f"{found['peak_mb']:,.0f} MB above the idle process ({found['own_mb']:,.0f} MB without "
            f"mapped files), {found['sentences_per_second']:,.0f} sentences a second"
        )
    print(json.dumps({"task": "calibrate" if given.calibrate else "encode", "results": results}))


def measured(count: int, width: int, calibrating: bool) -> dict[str, Any]:
    """Encode so many sentences, and say what that took."""
    from bertflow import Whitening, calibrate
    from bertflow.encoders import encode_file

    encoder = stub(width)
    with tempfile.TemporaryDirectory() as folder:
        encode_file(encoder, ["one", "two"], Path(folder) / "first.npy")  # All is loaded now.
        idle = memory_when_idle()
        began = time.perf_counter()
        if calibrating:
            calibrate(encoder, sentences(count), Whitening())
        else:
            encode_file(encoder, sentences(count), Path(folder) / "vectors.npy")
        seconds = time.perf_counter() - began
    now = memory()
    return {
        "sentences": count,
        "width": width,
        "peak_mb": now["VmHWM"] - idle["VmRSS"],
        "own_mb": now["RssAnon"] - idle["RssAnon"],
        "seconds": seconds,
        "sentences_per_second": count / seconds,
    }


def sentences(count: int) -> Iterator[str]:
    """Short sentences, some of which come again."""
    for number in range(count):
        which = number // 2 if number % REPEATED == 0 else number
        yield f"a sentence about number {which} that is {'quite ' * (which % 5)}short"


def stub(width: int, cost: float = 0.0) -> Any:
    """A SentenceTransformer that gives numbers for hardly any work, and sleeps meanwhile."""
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    class Hashing(torch.nn.Module):
        def get_embedding_dimension(self) -> int:
            return width

    table = np.sin(np.arange(4096)[:, None] * np.arange(1.0, width + 1)).astype(np.float32)

    class Stub(SentenceTransformer):
        def encode(self, texts: Sequence[str], **keywords: Any) -> Any:
            if cost:
                time.sleep(cost * len(texts))
            return table[[hash(text) & 4095 for text in texts]]

    return Stub(modules=[Hashing()], device="cpu")


if __name__ == "__main__":
    main()
