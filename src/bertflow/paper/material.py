"""What is measured on: tasks and corpora, read once, and told apart by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertflow.data import Pairs, read_sentences, read_task
from bertflow.errors import MissingDataError

NLI = ("snli", "mnli")


class Material:
    """Tasks and corpora by name.

    Args:
        data: Folder of the data; None takes the environment variable BERTFLOW_DATA.
        limit: Take about so many pairs of each split, evenly spread; None takes all.
    """

    def __init__(self, data: str | Path | None = None, limit: int | None = None) -> None:
        self.data = data
        self.limit = limit
        self._pairs: dict[tuple[str, str | None], Pairs | MissingDataError] = {}
        self._corpora: dict[str, list[str] | MissingDataError] = {}
        self._digests: dict[tuple[str, ...], str] = {}
        # Of each set that "nli" is made of, how many sentences.
        self.found_nli: dict[str, int] = {}

    def pairs(self, task: str, split: str | None = None) -> Pairs:
        """The pairs of a task.

        Raises:
            MissingDataError: They are nowhere.
        """
        key = task, split
        if key not in self._pairs:
            try:
                self._pairs[key] = self._fewer(read_task(task, self.data, split))
            except MissingDataError as error:
                self._pairs[key] = error
        found = self._pairs[key]
        if isinstance(found, MissingDataError):
            raise found
        return found

    def corpus(self, name: str) -> list[str]:
        """The sentences of a task, or of SNLI and MNLI as far as they are there for "nli".

        Raises:
            MissingDataError: They are nowhere.
        """
        if name not in self._corpora:
            try:
                self._corpora[name] = self._read(name)
            except MissingDataError as error:
                self._corpora[name] = error
        found = self._corpora[name]
        if isinstance(found, MissingDataError):
            raise found
        return found

    def pairs_digest(self, task: str, split: str | None = None) -> str:
        """SHA-256 of the pairs: texts, gold and subsets."""
        key = "pairs", task, split or ""
        if key not in self._digests:
            pairs = self.pairs(task, split)
            subsets = pairs.subset or [""] * len(pairs)
            rows = zip(pairs.first, pairs.second, pairs.gold, subsets, strict=True)
            self._digests[key] = digest_of(f"{row}" for row in rows)
        return self._digests[key]

    def corpus_digest(self, name: str) -> str:
        """SHA-256 of the sentences."""
        key = "corpus", name
        if key not in self._digests:
            self._digests[key] = digest_of(self.corpus(name))
        return self._digests[key]

    def _read(self, name: str) -> list[str]:
        if name != "nli":
            return self._fewer_sentences(read_sentences(name, self.data))
        texts: list[str] = []
        reasons: list[MissingDataError] = []
        for one in NLI:
            try:
                added = self._fewer_sentences(read_sentences(one, self.data))
                texts += added
                self.found_nli[one] = len(added)
            except MissingDataError as error:
                reasons.append(error)
        if not texts:
            raise reasons[0]
        return texts

    def _fewer(self, pairs: Pairs) -> Pairs:
        if self.limit is None or len(pairs) <= self.limit:
            return pairs
        # Of graded pairs, or a small limit might meet none in a year with many that are not.
        graded = [n for n, gold in enumerate(pairs.gold) if gold is not None]
        keep = [graded[n] for n in spread(len(graded), self.limit)]
        return replace(
            pairs,
            first=[pairs.first[n] for n in keep],
            second=[pairs.second[n] for n in keep],
            gold=[pairs.gold[n] for n in keep],
            subset=[pairs.subset[n] for n in keep] if pairs.subset else (),
            rows=[pairs.rows[n] for n in keep] if pairs.rows else (),
        )

    def _fewer_sentences(self, texts: list[str]) -> list[str]:
        """Both sides of pairs that are evenly spread."""
        if self.limit is None or len(texts) <= 2 * self.limit:
            return texts
        return [t for n in spread(len(texts) // 2, self.limit) for t in texts[2 * n : 2 * n + 2]]


def spread(total: int, count: int) -> Sequence[int]:
    """So many numbers below a total, evenly spread.

    Example:
        >>> spread(10, 3)
        [0, 4, 9]
    """
    numbers: list[int] = np.linspace(0, total - 1, min(count, total)).astype(int).tolist()
    return numbers


def digest_of(texts: Iterable[str]) -> str:
    """SHA-256 of texts in order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
