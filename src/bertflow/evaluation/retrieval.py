"""Exact search by cosine, and how well it finds what is relevant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertflow.arrays import Array, as_tensor, chunks, finite, matrix, taken, unit_length
from bertflow.data import Collection, read_collection
from bertflow.encoders.encoder import Role
from bertflow.errors import InputError, check_number
from bertflow.evaluation.bootstrap import mean_of
from bertflow.evaluation.jobs import Judgement
from bertflow.process_state import pinned

# How many documents are looked at for a query, as in runs for trec_eval.
DEPTH = 1000
# Products of so many queries and documents are taken at once: 20 MiB of them.
QUERIES, DOCUMENTS = 1280, 4096
# Cosines in float32 may be wrong by a tenth of this; so many more than k are held for their sake.
CLOSE, SPARE = 1e-6, 32
# Below every key; a key's upper half is a cosine in these units, far finer than CLOSE.
LEAST = np.iinfo(np.int64).min
LOW_HALF, UNIT = 2**32 - 1, np.float32(2**30)


class RetrievalJob:
    """Search in a collection, judged query by query by the relevant documents found."""

    kind = "search"
    unit = "queries"

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.source = collection.source
        self.skipped = collection.skipped
        self.counts: Mapping[str, int] = {
            "queries": len(collection.queries),
            "documents": len(collection.documents),
            "relevant": sum(map(len, collection.relevant)),
        }

    def texts(self) -> Mapping[Role, Sequence[str]]:
        """Queries and documents."""
        return {"query": self.collection.queries, "document": self.collection.documents}

    def judge(self, vectors: Mapping[Role, Array]) -> Judgement:
        r"""Rank the documents for each query by cosine, and judge the first 1,000.

        With grades g of the documents by rank r, 0 where not relevant, g' in the best order and R
        relevant documents, the measures are means over queries of

        .. math:: \mathrm{ndcg@10} = \sum_{r \le 10} \frac{g_r}{\log_2(r + 1)} \Big/
            \sum_{r \le 10} \frac{g'_r}{\log_2(r + 1)}, \qquad
            \mathrm{map@1000} = \frac1R \sum_{r \le 1000, g_r > 0} \frac{\#\{s \le r: g_s > 0\}}{r}

        of recall, the share of the R that is found, and mrr@10, one by the rank of the first found.
        They are those of trec_eval. Of documents with the same cosine the first comes first.
        """
        for side, texts in self.texts().items():
            if len(vectors[side]) != len(texts):
                raise InputError(
                    f"got {len(vectors[side])} vectors of {len(texts)} texts of role {side!r}; "
                    "give one a text, in the order of texts()"
                )
        depth = min(DEPTH, len(self.collection.documents))
        found, _ = exact_search(vectors["query"], vectors["document"], depth)
        measures = ranking_measures(found, self.collection.relevant)
        return Judgement(
            items=len(found), measures={name: mean_of(values) for name, values in measures.items()}
        )


def read_retrieval(folder: str | Path, *, split: str | None = None) -> RetrievalJob:
    """Read a collection as a job; see `bertflow.data.read_collection`."""
    return RetrievalJob(read_collection(folder, split=split))


def ranking_measures(found: Array, relevant: Sequence[Mapping[int, float]]) -> Mapping[str, Array]:
    """The measures of each query, as `RetrievalJob.judge` has them, by grades above 0.

    Documents are found by number, best first, shape (Q, K); those behind rank K count as missed.
    """
    sizes = np.array([len(grades) for grades in relevant])
    query = np.repeat(np.arange(len(sizes)), sizes)
    document = np.fromiter(chain.from_iterable(relevant), np.int64)
    grade = np.fromiter(chain.from_iterable(grades.values() for grades in relevant), np.float64)
    # One number for a query and a document.
    span = max(int(document.max()), int(found.max())) + 1
    known = query * span + document
    order = np.argsort(known)
    asked = np.arange(len(found))[:, None] * span + found
    place = order[np.searchsorted(known, asked, sorter=order).clip(max=len(known) - 1)]
    gains = np.where(known[place] == asked, grade[place], 0.0)

    best = np.lexsort((-grade, query))
    rank = np.arange(len(query)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    top = rank < 10
    ideal = np.bincount(query[top], grade[best][top] / np.log2(rank[top] + 2))
    first = gains[:, :10]
    hits = gains > 0
    ranks = np.arange(1, found.shape[1] + 1)
    precision = np.cumsum(hits, axis=1) / ranks
    return {
        "ndcg@10": (first / np.log2(ranks[:10] + 1)).sum(axis=1) / ideal,
        "recall@10": hits[:, :10].sum(axis=1) / sizes,
        "recall@100": hits[:, :100].sum(axis=1) / sizes,
        "mrr@10": (hits[:, :10] / ranks[:10]).max(axis=1),
        "map@1000": (precision * hits)[:, :DEPTH].sum(axis=1) / sizes,
    }


@pinned()
def exact_search(queries: Any, documents: Any, k: int) -> tuple[Array, Array]:
    """Numbers and cosines, shape (Q, k), of the k documents nearest to each query, best first.

    Products are taken in float32, a block at a time, and cosines closer than 1e-6 once more in
    float64. Of documents with the same cosine the first come first; if more than 32 share the k-th
    place, any of them may be in it. A row of zeros has cosine 0 with every other. Beside input and
    result, memory is taken for some 3 k numbers a query, and 100 MB.

    Args:
        queries: Shape (Q, D), in any container.
        documents: Shape (N, D); also a memory-mapped file, which is read once.
        k: How many, 1 ≤ k ≤ N.

    Raises:
        InputError: Widths differ, k is not in its range, or a row is not finite.

    Example:
        >>> rows, cosines = exact_search([[1.0, 0.1]], [[0.0, 1.0], [2.0, 0.2], [0.0, 0.0]], k=2)
        >>> rows.tolist(), [f"{cosine:.3f}" for cosine in cosines[0]]
        ([[1, 0]], ['1.000', '0.100'])
    """
    asked, rows = matrix(queries), matrix(documents)
    if asked.shape[1] != rows.shape[1]:
        raise InputError(
            f"queries have {asked.shape[1]} dimensions and documents {rows.shape[1]}; encode both "
            "by the same model"
        )
    check_number("k", k, 1, len(rows), integer=True)
    parts = [slice(start, start + QUERIES) for start in range(0, len(asked), QUERIES)]
    best = [
        _Best(_unit(as_tensor(asked[part]), "queries", asked), min(k + SPARE, len(rows)))
        for part in parts
    ]
    start = 0
    for chunk in chunks(rows, DOCUMENTS):
        block = _unit(chunk, "documents", rows)
        for one in best:
            one.see(block, start)
        start += len(block)
    numbers, cosines = np.empty((len(asked), k), np.int64), np.empty((len(asked), k), np.float32)
    for one, part in zip(best, parts, strict=True):
        numbers[part], cosines[part] = _ranked(one.ranked(), asked[part], rows, k)
    return numbers, cosines


class _Best:
    """The best k documents so far of a block of queries.

    A document is held as a key, one integer that is larger for a higher score and, of equal scores,
    for a lower number. Keys above the k-th best are gathered, and cut to k when they are many.
    """

    def __init__(self, queries: Array, k: int) -> None:
        self.queries, self.k = queries, k
        self.floor = np.full(len(queries), -np.inf, dtype=np.float32)
        self.kept = np.empty((len(queries), 0), dtype=np.int64)
        self._forget()

    def _forget(self) -> None:
        self.rows: list[Array] = []
        self.keys: list[Array] = []
        self.counts = np.zeros(len(self.queries), dtype=np.int64)

    def see(self, documents: Array, start: int) -> None:
        """Take the documents with numbers from `start` into account."""
        # Not by torch: where its library is MKL, numpy's is a fifth faster on AMD's processors.
        scores = self.queries @ documents.T
        if start == 0 and self.k <= len(documents):
            cut = len(documents) - self.k
            self.floor = np.partition(scores, cut, axis=1)[:, cut] - np.float32(CLOSE)
        places = np.flatnonzero(scores > self.floor[:, None])
        rows, columns = np.divmod(places, len(documents))
        self.rows.append(rows.astype(np.uint16))
        self.keys.append(_keys(scores.ravel()[places], columns + start))
        self.counts += np.bincount(rows, minlength=len(scores))
        if self.counts.max() > 2 * self.k:
            self._cut()

    def ranked(self) -> Array:
        """The keys of the best k, shape (Q, k), best first."""
        self._cut()
        return np.sort(self.kept, axis=1)[:, ::-1]

    def _cut(self) -> None:
        before = np.repeat(np.arange(len(self.kept), dtype=np.uint16), self.kept.shape[1])
        rows = np.concatenate([before, *self.rows])
        order = np.argsort(rows, kind="stable")  # A radix sort, for these small integers.
        counts = self.counts + self.kept.shape[1]
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        table = np.full((len(counts), counts.max()), LEAST)
        table[rows[order], place] = np.concatenate([self.kept.ravel(), *self.keys])[order]
        self._forget()
        if (cut := table.shape[1] - self.k) >= 0:
            table = np.partition(table, cut, axis=1)[:, cut:].copy()
            self.floor = _cosines(table[:, 0]).astype(np.float32)
        self.kept = table


def _ranked(keys: Array, asked: Any, rows: Any, k: int) -> tuple[Array, Array]:
    """Numbers and cosines of the first k; cosines that rounding may have swapped are mended."""
    numbers, cosines = LOW_HALF - (keys & LOW_HALF), _cosines(keys)
    close = -np.diff(cosines, axis=1) < CLOSE
    query, rank = np.nonzero(np.pad(close, ((0, 0), (1, 0))) | np.pad(close, ((0, 0), (0, 1))))
    for start in range(0, len(query), DOCUMENTS):
        cells = query[start : start + DOCUMENTS], rank[start : start + DOCUMENTS]
        sides = (
            taken(asked, torch.from_numpy(cells[0])),
            taken(rows, torch.from_numpy(numbers[cells])),
        )
        first, second = (unit_length(side.double()).cpu() for side in sides)
        # Rounded, so that sums of the same products in another order are equal.
        cosines[cells] = (first * second).sum(dim=1).round(decimals=12)
    order = np.lexsort((numbers, -cosines), axis=1)[:, :k]
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(cosines, order, axis=1)


def _unit(chunk: Tensor, name: str, rows: Any) -> Array:
    """Rows of length 1 in float32; a row that is not finite is named."""
    lengths = torch.linalg.vector_norm(chunk, dim=1, keepdim=True)
    usual = bool(((lengths > 1e-15) & (lengths < 1e15)).all())  # Squares stay in float32's range.
    unit = (chunk / lengths if usual else unit_length(chunk)).float().cpu()
    if not bool(unit.sum().isfinite()):
        try:
            finite(rows)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    return unit.numpy()


def _keys(cosines: Array, numbers: Array) -> Array:
    keys: Array = ((cosines * UNIT).astype(np.int64) << 32) | (LOW_HALF - numbers)
    return keys


def _cosines(keys: Array) -> Array:
    return (keys >> 32) / UNIT
