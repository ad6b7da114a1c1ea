"""What calibration does to search in an index: recall of exact search, and of approximate indexes.

    python -m benchmarks.vector_stores ENCODER [--pooling layers:1] [--data DIR] [--seeds 3]

Documents are the distinct sentences of STS-B, all splits. A query is a sentence that is the first
of a pair with a grade of 4 or more; the seconds of those pairs are what it should find among
all documents but itself. Calibrators are fitted on the documents.

Exact: the share of them among the first 1 and 10, with the difference to the raw vectors and its
95 % interval by paired bootstrap over queries. Approximate: so many of the queries are left out of
the index; printed is how many of the 10 that exact search of the same vectors gives are found, and,
in brackets, the share of relevant documents. Prints two Markdown tables and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from benchmarks.measuring import machine, table_line
from bertflow import Flow, SentenceCache, Standardization, Whitening, load_encoder
from bertflow.arrays import Array
from bertflow.calibrators.base import Calibrator
from bertflow.data import read_task
from bertflow.encoders import embed
from bertflow.evaluation.bootstrap import RESAMPLES, Difference, holm, paired_difference

RELEVANT = 4.0
NEAREST = (1, 10)
HELD_OUT = 1000
KINDS: dict[str, Callable[[int], Calibrator | None]] = {
    "none": lambda seed: None,
    "standardization": lambda seed: Standardization(),
    "whitening": lambda seed: Whitening(),
    "flow": lambda seed: Flow(random_state=seed),
    "tempered flow": lambda seed: Flow.tempered(random_state=seed),
}
SEEDED = ("flow", "tempered flow")
# What faiss calls them, for D dimensions; PQ has a byte for each 16 of them, as LanceDB's has.
INDEXES: dict[str, Callable[[int], str]] = {
    "HNSW, M 32, efSearch 64": lambda width: "HNSW32,Flat",
    "IVF-flat, 8 of 128 lists": lambda width: "IVF128,Flat",
    "8 bit scalars": lambda width: "SQ8",
    "PQ, D / 16 bytes": lambda width: f"PQ{width // 16}x8",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoder")
    parser.add_argument("--pooling")
    parser.add_argument("--data", default=os.environ.get("BERTFLOW_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    row_of, relevant = corpus_of(given.data)
    encoder = load_encoder(given.encoder, pooling=given.pooling, device="cpu")
    vectors = embed(encoder, list(row_of), cache=SentenceCache()).vectors
    asked = np.array(list(relevant))
    print(
        f"{len(row_of):,} documents, {len(asked):,} queries, "
        f"{sum(map(len, relevant.values())):,} relevant documents, {vectors.shape[1]} dimensions\n"
    )
    found: dict[str, dict[int, Array]] = {}  # By query, mean over seeds.
    indexes: dict[str, dict[str, tuple[float, float]]] = {}
    for name, make in KINDS.items():
        drawn = []
        for seed in range(given.seeds if name in SEEDED else 1):
            calibrator = make(seed)
            mapped = vectors if calibrator is None else calibrator.fit(vectors).transform(vectors)
            unit = normalized(mapped)
            drawn.append(exact(unit, asked, relevant))
            if seed == 0:
                indexes[name] = approximate(unit, asked, relevant)
        found[name] = {k: np.mean([one[k] for one in drawn], axis=0) for k in NEAREST}
    gains = gains_of(found)
    show(found, gains, indexes)
    result = {
        "task": "vector stores",
        "encoder": given.encoder,
        "pooling": given.pooling,
        "documents": len(row_of),
        "queries": len(asked),
        "recall": {name: {k: one[k].mean() for k in NEAREST} for name, one in found.items()},
        "gain": {name: one.to_dict() for name, one in gains.items()},
        "indexes": indexes,
        "machine": {**machine(), "faiss": faiss.__version__},
    }
    print(json.dumps(result))


def corpus_of(data: str | None) -> tuple[dict[str, int], dict[int, list[int]]]:
    """Documents with their rows, and for the row of each query those that are relevant."""
    row_of: dict[str, int] = {}
    relevant: dict[int, dict[int, None]] = {}
    for split in ("train", "dev", "test"):
        pairs = read_task("stsb", data, split)
        for first, second, gold in zip(pairs.first, pairs.second, pairs.gold, strict=True):
            one, other = (row_of.setdefault(text, len(row_of)) for text in (first, second))
            if gold >= RELEVANT and one != other:
                relevant.setdefault(one, {})[other] = None
    return row_of, {query: list(rows) for query, rows in relevant.items()}


def normalized(rows: Array) -> Array:
    """Rows of length 1 in float32."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def exact(unit: Array, asked: Array, relevant: Mapping[int, Sequence[int]]) -> dict[int, Array]:
    """Of each query, the share of what is relevant among the first k, itself left out."""
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    _, rows = index.search(unit[asked], max(NEAREST) + 1)
    others = [
        [row for row in line if row != query] for query, line in zip(asked, rows, strict=True)
    ]
    return {
        k: np.array(
            [share(line[:k], relevant[query]) for query, line in zip(asked, others, strict=True)]
        )
        for k in NEAREST
    }


def share(line: Sequence[int], wanted: Sequence[int]) -> float:
    """How much of what is wanted is there."""
    return len(set(line).intersection(wanted)) / len(wanted)


def approximate(
    unit: Array, asked: Array, relevant: Mapping[int, Sequence[int]]
) -> dict[str, tuple[float, float]]:
    """By index, the share of exact search's first 10 that it finds, and of what is relevant."""
    k = max(NEAREST)
    out = np.sort(np.random.default_rng(0).permutation(asked)[:HELD_OUT])
    kept = np.setdiff1d(np.arange(len(unit)), out)
    wanted = [np.intersect1d(relevant[query], kept) for query in out]
    truth = faiss.IndexFlatIP(unit.shape[1])
    truth.add(unit[kept])
    _, nearest = truth.search(unit[out], k)
    found = {}
    rows: Array = nearest
    for name in ("exact", *INDEXES):
        if name != "exact":
            width = unit.shape[1]
            index = faiss.index_factory(width, INDEXES[name](width), faiss.METRIC_INNER_PRODUCT)
            if "PQ" in name:
                index.pq.cp.niter = 10  # Of 25, which take minutes each time.
            index.train(unit[kept])
            index.add(unit[kept])
            if "HNSW" in name:
                index.hnsw.efSearch = 64
            if "IVF" in name:
                index.nprobe = 8
            _, rows = index.search(unit[out], k)
        same = np.mean([share(a, b) for a, b in zip(rows, nearest, strict=True)])
        hits = [share(kept[a], b) for a, b in zip(rows, wanted, strict=True) if len(b)]
        found[name] = (float(same), float(np.mean(hits)))
    return found


def gains_of(found: Mapping[str, Mapping[int, Array]]) -> dict[str, Difference]:
    """The differences to the raw vectors, all corrected together."""
    queries = len(found["none"][1])
    drawn = np.random.default_rng(0).integers(queries, size=(RESAMPLES, queries))
    differences = {}
    for k in NEAREST:
        before = found["none"][k]
        for name in [name for name in found if name != "none"]:
            after = found[name][k]
            differences[f"{name} @{k}"] = paired_difference(
                float(after.mean() - before.mean()),
                before[drawn].mean(axis=1),
                after[drawn].mean(axis=1),
            )
    return holm(differences)


def show(
    found: Mapping[str, Mapping[int, Array]],
    gains: Mapping[str, Difference],
    indexes: Mapping[str, Mapping[str, tuple[float, float]]],
) -> None:
    """Print both tables, × 100."""
    print("| vectors | recall@1 | gain | recall@10 | gain |\n|---|---:|---:|---:|---:|")
    for name, one in found.items():
        cells = []
        for k in NEAREST:
            cells.append(f"{100 * one[k].mean():.1f}")
            gain: Any = gains.get(f"{name} @{k}")
            cells.append("" if gain is None else shown(gain))
        print(table_line([name, *cells]))
    names = ["exact", *INDEXES]
    print("\n| vectors | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for name, row in indexes.items():
        cells = [f"{100 * row[one][0]:.1f} ({100 * row[one][1]:.1f})" for one in names]
        print(table_line([name, *cells]))
    print()


def shown(gain: Any) -> str:
    """A difference with its interval."""
    chance = "" if gain.real else ", may be chance"
    return f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}{chance})"


if __name__ == "__main__":
    main()
