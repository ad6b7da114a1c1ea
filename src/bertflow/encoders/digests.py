"""Sentences by a hash of 16 bytes, and where each is: tens of bytes a sentence, no text kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from bertflow.arrays import Array

DIGEST = 16


def digests_of(sentences: Iterable[str]) -> Array:
    """The hash of each sentence, shape (N,), as bytes of type S16.

    Example:
        >>> digests_of(["a", "b", "a"]).dtype, len(set(digests_of(["a", "b", "a"]).tolist()))
        (dtype('S16'), 2)
    """
    joined = b"".join(
        hashlib.blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
        for sentence in sentences
    )
    return np.frombuffer(joined, dtype=f"S{DIGEST}")


class SentenceIndex:
    """A row number for each hash: 24 bytes a sentence.

    Example:
        >>> index = SentenceIndex()
        >>> index.add(digests_of(["a", "b"]), np.array([0, 1]))
        >>> index.find(digests_of(["b", "c", "a"])).tolist(), len(index)
        ([1, -1, 0], 2)
    """

    def __init__(self) -> None:
        self._digests = np.empty(0, dtype=f"S{DIGEST}")
        self._rows = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, digests: Array) -> Array:
        """The row of each hash, shape (N,); -1 where there is none."""
        if not len(self):
            return np.full(len(digests), -1, dtype=np.int64)
        place = np.searchsorted(self._digests, digests).clip(max=len(self) - 1)
        return np.where(self._digests[place] == digests, self._rows[place], -1)

    def first(self, count: int) -> Array:
        """The lowest rows, at most so many, in order."""
        return np.sort(self._rows)[:count]

    def add(self, digests: Array, rows: Array) -> None:
        """Take in hashes and their rows; one that is there already keeps the row it has."""
        fresh = self.find(digests) < 0
        added, first = np.unique(digests[fresh], return_index=True)
        place = np.searchsorted(self._digests, added)
        self._digests = np.insert(self._digests, place, added)
        self._rows = np.insert(self._rows, place, rows[fresh][first])
