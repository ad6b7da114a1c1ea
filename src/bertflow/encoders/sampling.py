"""A sample of a corpus of any length, drawn in one pass: what a calibrator is fitted on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

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
    # The place and text of each sentence with a number below the limit.
    drawn: dict[int, tuple[int, str]] = {}
    limit = 2 ** (8 * DIGEST)
    place = -1
    for place, sentence in enumerate(sentences):
        number = _number(sentence, place, key)
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


def _number(sentence: str, place: int, key: bytes) -> int:
    """The hash of a sentence under a key."""
    try:
        data = sentence.encode()
    except (AttributeError, UnicodeEncodeError):
        check_text([sentence], place)
        raise
    digest = hashlib.blake2b(data, digest_size=DIGEST, key=key).digest()
    return int.from_bytes(digest, "little")
