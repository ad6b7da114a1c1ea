"""How many sentences a calibrator needs: scores on STS-B test against how many it is fitted on.

    python -m benchmarks.sample_size --encoder FOLDER|FILE.gguf [--pooling layers:1] [--data DIR]

The corpus is the text of every data set in DIR but STS-B; from it sentences are drawn as `fit`
draws them, three seeds each. Prints a Markdown table: Spearman x 100, mean and range over seeds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import numpy as np

from benchmarks.measuring import machine, table_line
from bertflow import Flow, SentenceCache, Standardization, Whitening, load_encoder
from bertflow.calibrators.base import Calibrator
from bertflow.data import read_sentences, read_task
from bertflow.encoders import embed, sample_corpus
from bertflow.evaluation import correlate, paired_cosine

NAMES = ["sts12", "sts13", "sts14", "sts15", "sts16", "sick-r", "qnli", "snli"]
SIZES = [500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000]
KINDS: dict[str, Callable[[int], Calibrator]] = {
    "standardization": lambda seed: Standardization(),
    "whitening": lambda seed: Whitening(),
    "flow": lambda seed: Flow(random_state=seed),
    "tempered flow": lambda seed: Flow.tempered(random_state=seed),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--pooling")
    parser.add_argument("--data", default=os.environ.get("BERTFLOW_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    encoder = load_encoder(given.encoder, pooling=given.pooling, device="cpu")
    corpus: dict[str, None] = {}
    for name in NAMES:
        corpus.update(dict.fromkeys(read_sentences(name, given.data)))
    pairs = read_task("stsb", given.data)
    cache = SentenceCache()
    distinct = list(corpus)
    vectors = embed(encoder, distinct, cache=cache).vectors
    sides = [embed(encoder, side, cache=cache).rows() for side in (pairs.first, pairs.second)]
    gold = np.array(pairs.gold, dtype=np.float64)
    place = {sentence: number for number, sentence in enumerate(distinct)}

    def score(transform: Callable[[np.ndarray], np.ndarray]) -> float:
        found = correlate(paired_cosine(*map(transform, sides)), gold)
        assert found.spearman is not None
        return 100 * found.spearman

    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"\n{len(distinct):,} distinct sentences; not calibrated {score(lambda x: x):.2f}\n")
    print(table_line(["sentences", *KINDS]), table_line(["---"] * (len(KINDS) + 1)), sep="\n")
    for size in [size for size in SIZES if size < len(distinct)] + [len(distinct)]:
        cells = []
        for make in KINDS.values():
            found = []
            for seed in range(given.seeds):
                drawn = sample_corpus(distinct, size, seed=seed).sentences
                rows = vectors[[place[sentence] for sentence in drawn]]
                found.append(score(make(seed).fit(rows).transform))
            cells.append(f"{np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        print(table_line([f"{size:,}", *cells]), flush=True)


if __name__ == "__main__":
    main()
