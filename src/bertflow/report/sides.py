"""What a report compares: rows of vectors, and the vector of any sentence that has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.calibrators import Calibrator
from bertflow.calibrators.base import Array
from bertflow.calibrators.vectors import read_vectors
from bertflow.encoders import SentenceCache, resolved_precision
from bertflow.encoders.embedding import halves
from bertflow.errors import InputError, ModelError, shown

# Which of some distinct sentences have a vector, shape (N,), and those vectors, shape (found, D).
Take: TypeAlias = Callable[[Sequence[str]], tuple[Array, Array | None]]

PRECISIONS = ("auto", "float32", "mixed", "fast")
# Rows that are measured; from more, so many are drawn.
ROWS = 10000


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One of the sides that a report compares.

    Attributes:
        name: Short, as in a legend.
        label: What it is, in a line.
        rows: Vectors of the rows that are looked at, shape (n, D).
        take: Gives vectors of sentences; None where rows have no text.
    """

    name: str
    label: str
    rows: Array
    take: Take | None = None

    def under(self, calibrator: Calibrator, name: str, label: str) -> Side:
        """The same rows after a calibrator.

        Raises:
            InputError: The calibrator was fitted on vectors of another width, or a row is not
                finite (named).
        """
        width = calibrator.n_features_in_
        if self.rows.shape[1] != width:
            raise InputError(
                f"{label} was fitted on vectors of {width} dimensions, but {self.label} has "
                f"{self.rows.shape[1]}; give the calibrator of these vectors"
            )
        take = self.take

        def calibrated(sentences: Sequence[str]) -> tuple[Array, Array | None]:
            assert take is not None
            found, vectors = take(sentences)
            return found, None if vectors is None else calibrator._rows(vectors)

        return Side(
            name=name,
            label=label,
            rows=calibrator._rows(self.rows),
            take=None if take is None else calibrated,
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows of a file or corpus that are looked at.

    Attributes:
        rows: Their numbers, rising, shape (n,).
        texts: Of each; None where there is none.
        total: How many rows there were.
        distinct: How many of them have a text of their own; `total` without texts.
    """

    rows: Array
    texts: list[str] | None
    total: int
    distinct: int


def choose(total: int, texts: Sequence[str] | None, *, random_state: int = 0) -> Chosen:
    """Rows to look at: of equal texts the first, and of more than 10,000 as many at random."""
    rows = np.arange(total)
    if texts is not None:
        first = {text: total - 1 - n for n, text in enumerate(reversed(texts))}
        rows = np.array(sorted(first.values()), dtype=np.int64)
    distinct = len(rows)
    if distinct > ROWS:
        random = np.random.default_rng(random_state)
        rows = np.sort(random.choice(rows, size=ROWS, replace=False))
    return Chosen(
        rows=rows,
        texts=None if texts is None else [texts[n] for n in rows.tolist()],
        total=total,
        distinct=distinct,
    )


def read_matrix(path: str | Path) -> Array:
    """Open a .npy file of at least two rows and two dimensions.

    Raises:
        InputError: It is none; the message names the file.
    """
    vectors = read_vectors(path)
    if len(vectors) < 2 or vectors.shape[1] < 2:
        raise InputError(
            f"{path} holds vectors of shape {vectors.shape}; a report takes at least 2 rows and "
            "2 dimensions"
        )
    return vectors


def side_of_file(
    name: str, path: str | Path, vectors: Array, chosen: Chosen, texts: Sequence[str] | None
) -> Side:
    """The side of a .npy file.

    Raises:
        InputError: One of the rows that are looked at is not finite; it is named.
    """

    def rows_of(numbers: Array) -> Array:
        rows = np.asarray(vectors[numbers])
        rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise InputError(
                f"{path} is not finite in row {int(numbers[bad][0])} (rows count from 0); remove "
                "or mend that row"
            )
        return rows

    take: Take | None = None
    if texts is not None:
        row_of = {text: len(texts) - 1 - n for n, text in enumerate(reversed(texts))}

        def take(sentences: Sequence[str]) -> tuple[Array, Array | None]:
            numbers = np.array([row_of.get(text, -1) for text in sentences], dtype=np.int64)
            found = numbers >= 0
            return found, rows_of(numbers[found]) if found.any() else None

    return Side(name=name, label=str(path), rows=rows_of(chosen.rows), take=take)


@contextmanager
def cached_vectors(
    model: SentenceTransformer, folder: Path, sentences: Sequence[str]
) -> Iterator[tuple[Take, str]]:
    """The encoder's vectors that lie in the user's cache, for a saved calibrated model.

    Its weights tell its encoder from all others; no sentence goes through it.

    Args:
        model: As `bertflow.load` gives it.
        folder: Where it was saved, for messages.
        sentences: Distinct. Of several precisions, the one is taken that has most of them.

    Yields:
        What gives vectors of sentences, and the precision they were encoded in.

    Raises:
        ModelError: Its encoder is not told apart from its calibrator.
    """
    bare, _ = halves(model)
    if bare is model:
        raise ModelError(
            f"{folder} computes in half precision or by code of its own, so that the cache holds "
            "its own vectors, not its encoder's; write the encoder's to a file (bertflow encode "
            "ENCODER) and give that with --against this model"
        )
    cache = SentenceCache()
    best: tuple[int, str] | None = None
    for kind in dict.fromkeys(resolved_precision(one, model) for one in PRECISIONS):  # type: ignore[arg-type]
        if not cache.has(bare, precision=kind):
            continue
        with cache.opened(bare, precision=kind) as kept:
            count = int(kept.take(sentences)[0].sum())
        if best is None or count > best[0]:
            best = count, kind
    if best is None:
        yield (lambda asked: (np.zeros(len(asked), dtype=bool), None)), "float32"
        return
    with cache.opened(bare, precision=best[1]) as kept:
        yield kept.take, best[1]


def rows_of_all(take: Take, sentences: Sequence[str], remedy: str) -> Array:
    """The vectors of sentences that all must have one.

    Raises:
        ModelError: Some have none; the message is the command that puts them there.
    """
    found, vectors = take(sentences)
    if vectors is None or not found.all():
        lost = sentences[int(found.argmin())]
        raise ModelError(
            f"{int((~found).sum()):,} of {len(sentences):,} sentences have no vector in the cache, "
            f"the first is {shown(lost)}; {remedy} puts them there"
        )
    return vectors
