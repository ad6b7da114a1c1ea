"""The paper's Table 6 on stored SmolLM2 vectors: similarity against edit distance, STS-B dev.

One flow, fitted on every sentence of every pair of train, dev and test, repeats kept. Needs
BERTFLOW_DATA or ../shared/data.

    python -m benchmarks.lexical_vectors
"""

from __future__ import annotations

import numpy as np

from benchmarks.measuring import DATA, stored_vectors
from bertflow.analysis import edit_distances, lexical_statistics
from bertflow.calibrators import Flow
from bertflow.data import read_task
from bertflow.evaluation import paired_cosine
from bertflow.evaluation.scores import Estimate

VECTORS = ("first-last-avg", "last2avg")


def shown(one: Estimate) -> str:
    """An estimate × 100 with its 95 % interval."""
    if one.value is None:
        return "undefined"
    if one.low is None or one.high is None:
        return f"{100 * one.value:7.2f}" + " " * 19
    return f"{100 * one.value:7.2f} ({100 * one.low:6.1f} to {100 * one.high:6.1f})"


def main() -> None:
    """Fit, correlate and print."""
    splits = [read_task("stsb", DATA, split) for split in ("train", "dev", "test")]
    dev = splits[1]
    gold = np.array(dev.gold, dtype=np.float64)
    for name in VECTORS:
        row_of, rows = stored_vectors(name)
        fitted = [row_of[text] for pairs in splits for text in (*pairs.first, *pairs.second)]
        sides = [[row_of[text] for text in side] for side in (dev.first, dev.second)]
        clouds = {"raw": rows, "flow": Flow().fit(rows[fitted]).transform(rows)}
        cosines = {
            cloud: paired_cosine(*(vectors[side] for side in sides))
            for cloud, vectors in clouds.items()
        }
        for unit in ("characters", "words"):
            distances = edit_distances(dev.first, dev.second, unit=unit)
            found = lexical_statistics(gold, cosines, distances)
            print(f"{name}, {unit}: {found.short_pairs} of {found.pairs} pairs at most 4 apart")
            for one in found.edit:
                print(
                    f"  {one:<5} edit {shown(found.edit[one])}  gold {shown(found.gold[one])}  "
                    f"short: edit {shown(found.short_edit[one])}"
                )


if __name__ == "__main__":
    main()
