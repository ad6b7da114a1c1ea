"""STS-B on stored SmolLM2 vectors: raw, standardized, whitened and flow, five seeds.

Fits on every sentence of every pair of train, dev and test, repeats kept, and scores the test
split. With --few: fitted on few sentences, others than are compared or the very ones, on MiniLM's
vectors, too (of its 2,000 sentences, all pairs of the three splits). Needs BERTFLOW_DATA or
../shared/data.

    python -m benchmarks.stsb_vectors [--seeds 5] [--few]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bertflow.calibrators import (
    AdaptiveWhitening,
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
)
from bertflow.data import Pairs, read_task
from bertflow.encoders import library_versions
from bertflow.errors import FewRowsWarning
from bertflow.evaluation import correlate, paired_cosine

VECTORS = ("first-last-avg", "last2avg")
CLOUDS = [*(f"smollm2-135m_{name}" for name in VECTORS), "minilm-l6_mean_first2000"]


def main() -> None:
    """Fit, score and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--few", action="store_true")
    given = parser.parse_args()
    seeds = range(given.seeds)
    data = Path(os.environ.get("BERTFLOW_DATA", "../shared/data"))
    sentences = json.loads((data / "embeddings/stsb_sentences.json").read_text(encoding="utf-8"))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    splits = {split: read_task("stsb", data, split) for split in ("train", "dev", "test")}
    if given.few:
        few_rows(data, row_of, splits, seeds)
        return
    fitted = [row_of[s] for p in splits.values() for s in (*p.first, *p.second)]
    test = splits["test"]
    first = [row_of[s] for s in test.first]
    second = [row_of[s] for s in test.second]
    gold = np.array(test.gold, dtype=np.float64)

    methods: dict[str, list[Calibrator | None]] = {
        "none": [None],
        "AdaptiveWhitening()": [AdaptiveWhitening()],
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


def few_rows(
    data: Path, row_of: Mapping[str, int], splits: Mapping[str, Pairs], seeds: range
) -> None:
    """Print Spearman x 100 by the number of rows, the mean over draws of rows."""
    warnings.simplefilter("ignore", FewRowsWarning)
    kinds: dict[str, Calibrator] = {
        "AdaptiveWhitening()": AdaptiveWhitening(),
        "standardization": Standardization(),
        "Whitening(shrinkage=0.0)": Whitening(shrinkage=0.0),
        "Whitening()": Whitening(),
    }
    print("| vectors | fitted on | rows | raw |", " | ".join(kinds), "| shrinkage |")
    print("|---|---|---|---|", "---|" * len(kinds), "---|", sep="")
    for name in CLOUDS:
        rows = np.load(data / f"embeddings/{name}.npy").astype(np.float32)
        pairs = np.array(
            [
                (row_of[a], row_of[b], gold)
                for split in (splits if name.startswith("minilm") else ["test"])
                for a, b, gold in zip(
                    splits[split].first, splits[split].second, splits[split].gold, strict=True
                )
                if max(row_of[a], row_of[b]) < len(rows)
            ]
        )
        others = np.setdiff1d(np.arange(len(rows)), pairs[:, :2])
        for compared in (False, True):
            for count in [50, 150, 300, 400, 1_000, 3_000, len(rows)]:
                if count > (1_000 if compared else len(rows)):
                    continue
                found = []
                for seed in seeds if count < len(rows) else [0]:
                    random = np.random.default_rng(seed)
                    used = random.permutation(pairs)[: count // 2] if compared else pairs
                    first, second = used[:, :2].astype(int).T
                    if compared:
                        fitted = np.concatenate([first, second])
                    else:
                        pool = others if count <= len(others) else np.arange(len(rows))
                        fitted = random.choice(pool, count, replace=False)
                    scores = [_spearman(rows, first, second, used[:, 2])]
                    for calibrator in kinds.values():
                        z = calibrator.fit(rows[fitted]).transform(rows)
                        scores.append(_spearman(z, first, second, used[:, 2]))
                    found.append([*scores, kinds["Whitening()"].shrinkage_])
                *means, shrinkage = np.mean(found, axis=0)
                what = "the compared" if compared else "others"
                cells = " | ".join(f"{mean:.1f}" for mean in means)
                print(f"| {name} | {what} | {count:,} | {cells} | {shrinkage:.4f} |", flush=True)


def _spearman(z: np.ndarray, first: np.ndarray, second: np.ndarray, gold: np.ndarray) -> float:
    return 100 * (correlate(paired_cosine(z[first], z[second]), gold).spearman or np.nan)


if __name__ == "__main__":
    main()
