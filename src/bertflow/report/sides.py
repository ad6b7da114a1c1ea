"""What a report compares: rows of vectors, and the vectors of sentences where rows have text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bertflow.arrays import Array
from bertflow.calibrators import Calibrator
from bertflow.errors import InputError
from bertflow.io.vectors import read_vectors

# Gives the vectors of sentences, shape (N, D); None where one of them has no vector.
VectorsOf: TypeAlias = Callable[[Sequence[str]], Array | None]

# Rows that are measured; from more, so many are drawn.
ROWS = 10000


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One of the sides that a report compares.

    Attributes:
        name: Short, as in a legend.
        label: What it is, in a line.
        rows: Vectors of the rows that are looked at, shape (n, D).
        vectors_of: Gives vectors of sentences; None where rows have no text.
    """

    name: str
    label: str
    rows: Array
    vectors_of: VectorsOf | None = None

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
        before = self.vectors_of

        def calibrated(sentences: Sequence[str]) -> Array | None:
            vectors = None if before is None else before(sentences)
            return None if vectors is None else calibrator._rows(vectors)

        return Side(name=name, label=label, rows=calibrator._rows(self.rows), vectors_of=calibrated)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows of a file or corpus that are looked at.

    Attributes:
        rows: Their numbers, rising, shape (n,).
        texts: Of each; None where there is none.
        notes: What a reader must know about the choice.
    """

    rows: Array
    texts: list[str] | None
    notes: list[str]


def choose(total: int, texts: Sequence[str] | None, *, random_state: int = 0) -> Chosen:
    """Rows to look at: of equal texts the first, and of more than 10,000 as many at random."""
    rows, notes = np.arange(total), []
    if texts is not None:
        rows = np.array(sorted(first_rows(texts).values()), dtype=np.int64)
    if len(rows) < total:
        notes.append(f"{total:,} sentences, {len(rows):,} of them distinct")
    if len(rows) > ROWS:
        notes.append(f"measured on {ROWS:,} of {len(rows):,} rows, drawn at random")
        random = np.random.default_rng(random_state)
        rows = np.sort(random.choice(rows, size=ROWS, replace=False))
    return Chosen(rows, None if texts is None else [texts[n] for n in rows.tolist()], notes)


def first_rows(texts: Sequence[str]) -> dict[str, int]:
    """The first row of each text."""
    return {text: len(texts) - 1 - n for n, text in enumerate(reversed(texts))}


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
    row_of = {} if texts is None else first_rows(texts)

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

    def vectors_of(sentences: Sequence[str]) -> Array | None:
        numbers = [row_of.get(text, -1) for text in sentences]
        return None if -1 in numbers else rows_of(np.array(numbers, dtype=np.int64))

    return Side(
        name=name,
        label=str(path),
        rows=rows_of(chosen.rows),
        vectors_of=None if texts is None else vectors_of,
    )
