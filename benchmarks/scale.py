"""What shards cost: rates with 1, 2 and 4 Ray actors, time and memory of 10^5 to 10^7 sentences.

The encoder is stubbed. For the actors it takes a fixed time a sentence, in which it sleeps: so
what is measured is what Ray, reading, writing and hashing leave of the ideal, on any number of
cores, and not how many encoders the machine's cores can feed. Rates are those between the receipts
of the first and the last shards, without the start of the cluster and of the actors, which is
printed beside.

    python -m benchmarks.scale workers [--count 1 2 4] [--cost 0.00025]
    python -m benchmarks.scale growth [--sentences 100000 1000000 10000000] [--width 16] [--cost 0]
    python -m benchmarks.scale vectors [--rows 262144] [--width 768]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measuring import memory, memory_when_idle
from benchmarks.streaming import stub

SHARDS, SHARD_ROWS = 32, 2048
FILE_ROWS = 2**18


def main() -> None:
    """Run one of the two, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    workers = parts.add_parser("workers")
    workers.add_argument("--count", type=int, nargs="+", default=[1, 2, 4])
    workers.add_argument("--cost", type=float, default=0.00025, help="Seconds a sentence.")
    growth = parts.add_parser("growth")
    growth.add_argument("--sentences", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    growth.add_argument("--width", type=int, default=16)
    growth.add_argument("--cost", type=float, default=0.0, help="Seconds a sentence, slept.")
    growth.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    vectors = parts.add_parser("vectors")
    vectors.add_argument("--rows", type=int, default=FILE_ROWS)
    vectors.add_argument("--width", type=int, default=768)
    given = parser.parse_args()
    if given.part == "vectors":
        print(json.dumps({"task": "vectors", "results": of_vectors(given.rows, given.width)}))
    elif given.part == "workers":
        print(json.dumps({"task": "workers", "results": with_workers(given.count, given.cost)}))
    elif given.alone is not None:
        print(json.dumps(alone(given.alone, given.width, given.cost)))
    else:
        results = grown(given.sentences, given.width, given.cost)
        print(json.dumps({"task": "growth", "results": results}))


def with_workers(counts: list[int], cost: float) -> list[dict[str, Any]]:
    """Encode the same folder with so many actors each."""
    import ray

    from bertflow.scale import Encode, opened_engine, run

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        home = Path(folder)
        write_corpus(home / "in", SHARDS * SHARD_ROWS, SHARD_ROWS)
        # More logical CPUs than actors: Ray has tasks of its own.
        ray.init(
            num_cpus=max(counts) + 4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            for count in counts:
                times: list[float] = []
                peaks = home / f"peaks-{count}"
                peaks.mkdir()
                began = time.perf_counter()
                with opened_engine("ray", workers=count) as engine:
                    run(
                        Encode(costly(cost, peaks)),
                        home / "in",
                        home / f"out-{count}",
                        engine=engine,
                        progress=lambda done, total, to=times: to.append(time.perf_counter()),
                    )
                # times[0] is before the first shard; the first of each actor are left out.
                shards = SHARDS - count
                rate = shards * SHARD_ROWS / (times[-1] - times[count])
                peak = max(float(file.read_text()) for file in peaks.iterdir())
                results.append(
                    {
                        "workers": count,
                        "sentences_per_second": rate,
                        "ideal": count / cost,
                        "efficiency": rate / (count * results[0]["sentences_per_second"])
                        if results
                        else 1.0,
                        "peak_mb_of_an_actor": peak,
                        "seconds_with_start": times[-1] - began,
                    }
                )
                found = results[-1]
                print(
                    f"{count} workers: {rate:,.0f} sentences a second (the encoder alone: "
                    f"{found['ideal']:,.0f}), efficiency {found['efficiency']:.2f} against "
                    f"{counts[0]}, {peak:,.0f} MB an actor at most, "
                    f"{found['seconds_with_start']:.1f} s with the start of the actors"
                )
        finally:
            ray.shutdown()
    return results


def costly(cost: float, peaks: Path) -> Callable[[], Any]:
    """Makes an encoder that sleeps so many seconds a sentence, and notes its process's memory."""

    def made() -> Any:
        import numpy as np
        import torch
        from sentence_transformers import SentenceTransformer

        class Wide(torch.nn.Module):
            def get_embedding_dimension(self) -> int:
                return 384

        class Costly(SentenceTransformer):
            def encode(self, texts: list[str], **keywords: Any) -> Any:
                time.sleep(cost * len(texts))
                lines = Path("/proc/self/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                (peaks / str(os.getpid())).write_text(str(peak * 1024 / 1e6))
                return np.zeros((len(texts), 384), dtype=np.float32)

        return Costly(modules=[Wide()], device="cpu")

    return made


def grown(counts: list[int], width: int, cost: float) -> list[dict[str, Any]]:
    """Encode folders of so many sentences, each in a process of its own."""
    results = []
    for count in counts:
        command = [sys.executable, "-m", "benchmarks.scale", "growth", "--alone", str(count)]
        command += ["--width", str(width), "--cost", str(cost)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        results.append(found)
        print(
            f"{count:>10,} sentences, width {width}: {found['seconds']:,.1f} s, "
            f"{1e6 * found['seconds'] / count:.1f} us a sentence "
            f"({found['processor_seconds']:,.1f} s of the processor, "
            f"{1e6 * found['processor_seconds'] / count:.1f} us), "
            f"{found['peak_mb']:,.0f} MB above the idle process",
            flush=True,
        )
    return results


def alone(count: int, width: int, cost: float) -> dict[str, Any]:
    """Encode a folder in this process, and say what that took."""
    from bertflow.scale import Encode, run

    encoder = stub(width, cost)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_corpus(home / "in", count, FILE_ROWS)
        write_corpus(home / "few", 100, FILE_ROWS)
        run(Encode(encoder), home / "few", home / "first")  # All is loaded now.
        idle = memory_when_idle()
        began, used = time.perf_counter(), time.process_time()
        outcome = run(Encode(encoder), home / "in", home / "out")
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        began = time.perf_counter()
        run(Encode(encoder), home / "in", home / "out")
        again = time.perf_counter() - began
    assert outcome.rows == count
    return {
        "sentences": count,
        "width": width,
        "shards": outcome.shards,
        "seconds": seconds,
        "processor_seconds": processor,
        "second_run_seconds": again,
        "peak_mb": memory()["VmHWM"] - idle["VmRSS"],
    }


def of_vectors(count: int, width: int) -> list[dict[str, Any]]:
    """Transform, and take moments of, a shard of vectors in this process."""
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    from bertflow import Whitening
    from bertflow.scale import BlockMoments, Transform, run
    from bertflow.scale.shards import BATCH_ROWS, vector_column

    random = np.random.default_rng(0)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "in").mkdir()
        rows = random.normal(size=(count, width)).astype(np.float32)
        table = pyarrow.table({"vector": vector_column(rows)})
        pyarrow.parquet.write_table(
            table,
            home / "in" / "0.parquet",
            row_group_size=BATCH_ROWS,
            compression="none",
            use_dictionary=False,
        )
        for name, worker in {
            "transform (whitening)": Transform(Whitening().fit(rows[:5000])),
            "moments with covariance": BlockMoments(),
            "moments without": BlockMoments(covariance=False),
        }.items():
            began, used = time.perf_counter(), time.process_time()
            run(worker, home / "in", home / name)
            seconds, processor = time.perf_counter() - began, time.process_time() - used
            results.append({"what": name, "rows": count, "seconds": seconds, "cpu": processor})
            print(
                f"{name}: {count / seconds:,.0f} rows of {width} a second, "
                f"{count / processor:,.0f} a second of the processor"
            )
    return results


def write_corpus(folder: Path, count: int, file_rows: int) -> None:
    """Distinct short sentences in .parquet files."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for number, start in enumerate(range(0, count, file_rows)):
        span = range(start, min(start + file_rows, count))
        texts = [f"a sentence about number {n} that is {'quite ' * (n % 5)}short" for n in span]
        table = pyarrow.table({"id": list(span), "text": texts})
        pyarrow.parquet.write_table(
            table, folder / f"{number:05d}.parquet", row_group_size=max(1, file_rows // 4)
        )


if __name__ == "__main__":
    main()
