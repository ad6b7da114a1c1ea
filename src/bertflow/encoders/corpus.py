"""From sentences to vectors: each distinct sentence once, rows checked, cuts counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.calibrators.base import Array
from bertflow.errors import InputError

Progress = Callable[[int, int], None]

CHUNK_SENTENCES = 1024


@dataclass(frozen=True)
class Embedded:
    """Vectors of distinct sentences, and which of them each sentence has.

    Attributes:
        vectors: Shape (distinct, D), float32.
        index: Row of each sentence as it was given, repeats included, shape (N,).
        cut: How many of the distinct sentences were longer than the encoder's limit; 0 if that was
            not asked for.
    """

    vectors: Array
    index: Array
    cut: int

    def rows(self) -> Array:
        """The vectors with repeats, shape (N, D)."""
        rows: Array = self.vectors[self.index]
        return rows


def embed(
    encoder: SentenceTransformer,
    sentences: Sequence[str],
    *,
    batch_size: int = 32,
    finite: bool = True,
    count_cut: bool = True,
    progress: Progress | None = None,
) -> Embedded:
    """Encode each distinct sentence once.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed.
        batch_size: Sentences a forward pass.
        finite: Refuse a vector that is not; otherwise it is for the caller to count.
        count_cut: Count the sentences that are too long, which tokenizes them once more.
        progress: Called with the distinct sentences done and their total.

    Returns:
        The vectors and who has which.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
    """
    if len(sentences) == 0:
        raise InputError("there is no sentence to encode")
    for position, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise InputError(f"sentence {position} is {type(sentence).__name__}, not text")
        if not sentence.isascii() and any("\ud800" <= c <= "\udfff" for c in sentence):
            raise InputError(f"sentence {position} holds half a character (a lone surrogate)")
    row_of: dict[str, int] = {}
    index = np.fromiter((row_of.setdefault(s, len(row_of)) for s in sentences), dtype=np.int64)
    # Longest first: a batch holds sentences of one length, and memory runs out early or never.
    distinct = sorted(row_of, key=len, reverse=True)
    vectors: Array | None = None
    for start in range(0, len(distinct), CHUNK_SENTENCES):
        chunk = distinct[start : start + CHUNK_SENTENCES]
        encoded: Array = encoder.encode(
            chunk, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
        )
        encoded = encoded.astype(np.float32, copy=False)
        good = np.isfinite(encoded).all(axis=1)
        if finite and not good.all():
            bad = chunk[int(good.argmin())]
            raise InputError(
                f"the encoder's vector of sentence {sentences.index(bad)} is not finite: "
                f"{bad[:80]!r}"
            )
        if vectors is None:
            vectors = np.empty((len(distinct), encoded.shape[1]), dtype=np.float32)
        vectors[[row_of[sentence] for sentence in chunk]] = encoded
        if progress is not None:
            progress(start + len(chunk), len(distinct))
    assert vectors is not None
    return Embedded(
        vectors=vectors, index=index, cut=_count_cut(encoder, distinct) if count_cut else 0
    )


def _count_cut(encoder: SentenceTransformer, distinct: list[str]) -> int:
    """How many sentences have more tokens than the encoder takes."""
    limit = encoder.max_seq_length
    tokenizer: Any = getattr(encoder[0], "tokenizer", None)
    if limit is None or not callable(tokenizer):
        return 0
    # A token is at least one character, so only these can be too long.
    long = [sentence for sentence in distinct if len(sentence) > limit - 2]
    if not long:
        return 0
    tokens = tokenizer(long, truncation=False, padding=False, verbose=False)["input_ids"]
    return sum(len(ids) > limit for ids in tokens)
