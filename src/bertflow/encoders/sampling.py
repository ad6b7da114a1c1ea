"""A sample of a corpus of any length, drawn in one pass: what a calibrator is fitted on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from bertflow.encoders.encoder import check_text
from bertflow.errors import InputError

# Of a corpus with more sentences so many distinct ones are taken: docs/scale.md shows what more do.
SAMPLE = 200_000
DIGEST = 16


@dataclass(frozen=True)
class Sampled:
    """A sample, and what it was drawn from.

    Attributes:
        sentences: All, with their repeats, where there were no more than asked for; else so many
            distinct ones, in the order of the corpus.
        rows: How many sentences the corpus has, repeats included.
        whole: Whether the sample is the corpus.
    """

    sentences: list[str]
    rows: int
    whole: bool


def sample_corpus(sentences: Iterable[str], size: int = SAMPLE, *, seed: int = 0) -> Sampled:
    r"""Draw distinct sentences at random, each with the same chance, in one pass.

    Every sentence has a number that looks random, a hash of it under the seed, and the sample are
    the distinct sentences with the `size` smallest. So it depends neither on the order of the
    corpus nor on how often a sentence occurs, and of a corpus in parts it can be drawn from the
    samples of the parts. What is held does not grow with the corpus. A corpus of at most `size`
    sentences is taken as it is, with its repeats.

    Args:
        sentences: Text, read once.
        size: How many, at least 2.
        seed: Another gives another sample.

    Raises:
        InputError: The size is below 2, or something is not text; the message names the sentence.

    Source:
        Cohen and Kaplan (2007), "Summarizing data using bottom-k sketches".

    Example:
        >>> corpus = [f"sentence {n % 700}" for n in range(2000)]
        >>> sample = sample_corpus(corpus, 3)
        >>> sample.sentences == sample_corpus(reversed(corpus), 3).sentences[::-1]
        True
        >>> sample.rows, sample.whole, len(sample.sentences)
        (2000, False, 3)
    """
    if size < 2:
        raise InputError(f"a sample needs at least 2 sentences, got {size}")
    key = int(seed).to_bytes(8, "little", signed=True)
    first: list[str] = []
    drawn: _Smallest | None = None
    rows = 0
    for rows, sentence in enumerate(sentences, 1):
        if drawn is not None:
            drawn.add(rows, sentence)
            continue
        first.append(sentence)
        if rows > size:
            drawn = _Smallest(size, key)
            for place, one in enumerate(first, 1):
                drawn.add(place, one)
            first = []
    if drawn is None:
        return Sampled(first, rows, whole=True)
    return Sampled(drawn.sentences(), rows, whole=False)


class _Smallest:
    """The distinct sentences with the smallest hashes so far."""

    def __init__(self, size: int, key: bytes) -> None:
        self._size, self._key = size, key
        # The largest hash first: by what is smaller than all others when negated.
        self._heap: list[tuple[int, int, str]] = []
        self._there: set[int] = set()
        self._most = -(2 ** (8 * DIGEST))

    def add(self, place: int, sentence: str) -> None:
        try:
            data = sentence.encode()
        except (AttributeError, UnicodeEncodeError):
            check_text([sentence], place - 1)
            raise
        digest = hashlib.blake2b(data, digest_size=DIGEST, key=self._key).digest()
        number = -int.from_bytes(digest, "little")
        if number <= self._most or number in self._there:
            return
        self._there.add(number)
        heappush(self._heap, (number, place, sentence))
        if len(self._heap) > self._size:
            self._there.remove(heappop(self._heap)[0])
            self._most = self._heap[0][0]

    def sentences(self) -> list[str]:
        return [sentence for _, _, sentence in sorted(self._heap, key=lambda one: one[1])]
