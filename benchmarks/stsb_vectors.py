"""STS-B on stored SmolLM2 vectors: raw, standardized, whitened and flow, five seeds.

Fits on every sentence of every pair of train, dev and test, repeats kept, and scores the test
split. Needs BERTFLOW_DATA or ../shared/data.

    python -m benchmarks.stsb_vectors [--seeds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bertflow.calibrators import AllButTheTop, Calibrator, Flow, Standardization, Whitening
from bertflow.data import read_task
from bertflow.encoders import library_versions
from bertflow.evaluation import correlate, paired_cosine

VECTORS = ("first-last-avg", "last2avg")


def main() -> None:
    """Fit, score and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    data = Path(os.environ.get("BERTFLOW_DATA", "../shared/data"))
    sentences = json.loads((data / "embeddings/stsb_sentences.json").read_text(encoding="utf-8"))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    splits = {split: read_task("stsb", data, split) for split in ("train", "dev", "test")}
    fitted = [row_of[s] for p in splits.values() for s in (*p.first, *p.second)]
    test = splits["test"]
    first = [row_of[s] for s in test.first]
    second = [row_of[s] for s in test.second]
    gold = np.array(test.gold, dtype=np.float64)

    methods: dict[str, list[Calibrator | None]] = {
        "none": [None],
        "Standardization()": [Standardization()],
        "AllButTheTop()": [AllButTheTop()],
        "AllButTheTop(standardize=True)": [AllButTheTop(standardize=True)],
        "Whitening()": [Whitening()],
        "Whitening(256, power=0.75)": [Whitening(256, power=0.75)],
        "Flow()": [Flow(random_state=seed) for seed in seeds],
        "Flow.released()": [Flow.released(random_state=seed) for seed in seeds],
        "Flow.tempered()": [Flow.tempered(random_state=seed) for seed in seeds],
    }
    table = Table(title="STS-B test, Spearman × 100, all pairs", title_justify="left")
    for name in ["calibrator", "vectors", "mean", "lowest", "highest", "deviation", "fit seconds"]:
        table.add_column(name, justify="left" if name in ("calibrator", "vectors") else "right")
    for vectors in VECTORS:
        rows = np.load(data / f"embeddings/smollm2-135m_{vectors}.npy").astype(np.float32)
        for name, calibrators in methods.items():
            scores, seconds = [], []
            for calibrator in calibrators:
                began = time.perf_counter()
                z = rows if calibrator is None else calibrator.fit(rows[fitted]).transform(rows)
                seconds.append(time.perf_counter() - began)
                spearman = correlate(paired_cosine(z[first], z[second]), gold).spearman
                scores.append(100 * (spearman or np.nan))
            figures = [np.mean(scores), min(scores), max(scores), np.std(scores)]
            table.add_row(
                name, vectors, *[f"{f:.2f}" for f in figures], f"{np.median(seconds):.1f}"
            )
    console = Console(width=120)
    console.print(table)
    console.print(f"fitted on {len(fitted):,} rows; {len(test):,} pairs")
    console.print(", ".join(f"{k} {v}" for k, v in library_versions().items()))


if __name__ == "__main__":
    main()
