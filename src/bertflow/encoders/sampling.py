"""Samples of corpora of any length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

from bertflow.encoders.encoder import as_sentences
from bertflow.errors import InputError, shown

# Sentences of a sample; docs/scale.md shows how little more of them gain.
SAMPLE = 200_000
DIGEST = 16


@dataclass(frozen=True)
class Sampled:
    """A sample of a corpus of `rows` sentences, in its order; with repeats if it is the `whole`."""

    sentences: list[str]
    rows: int
    whole: bool


def sample_corpus(sentences: Iterable[str], size: int = SAMPLE, *, seed: int = 0) -> Sampled:
    r"""Draw distinct sentences at random, each with the same chance, in one pass.

    The sample is the distinct sentences with the `size` smallest hashes under the seed. So neither
    order nor repeats change it, samples of parts merge, and the memory does not grow. A corpus of
    at most `size` sentences is taken as it is, with its repeats.

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
    if not isinstance(size, Integral) or size < 2:
        raise InputError(f"a sample needs at least 2 sentences, got {shown(size)}")
    key = int(seed).to_bytes(8, "little", signed=True)
    first: list[str] = []
    # The place and text of each sentence with a number below the limit.
    drawn: dict[int, tuple[int, str]] = {}
    limit = 2 ** (8 * DIGEST)
    place = -1
    for place, sentence in enumerate(as_sentences(sentences)):
        digest = hashlib.blake2b(sentence.encode(), digest_size=DIGEST, key=key).digest()
        number = int.from_bytes(digest, "little")
        if number < limit:
            drawn.setdefault(number, (place, sentence))
        if place < size:
            first.append(sentence)
        if len(drawn) > 2 * size:
            smallest = sorted(drawn)[:size]
            drawn, limit = {number: drawn[number] for number in smallest}, smallest[-1]
    if place < size:
        return Sampled(first, place + 1, whole=True)
    chosen = sorted(drawn[number] for number in sorted(drawn)[:size])
    return Sampled([sentence for _, sentence in chosen], place + 1, whole=False)
