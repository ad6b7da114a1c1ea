"""Word embeddings by frequency of the word: their norms and how near their neighbours are."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis.neighbours import checked, nearest_neighbours
from bertflow.arrays import Array
from bertflow.errors import InputError, ModelError, check_number, need

# Ranks from and to, the second not included.
RANGES = ((0, 100), (100, 500), (500, 5000), (5000, 10000))
NEIGHBOURS = (3, 5, 7)
# Standard errors on either side of a mean, for 95 %.
ERRORS = 1.96


@dataclass(frozen=True, eq=False)
class Words:
    """Words that are one piece of a tokenizer, the most frequent first.

    Attributes:
        words: The words.
        ranks: By frequency among all words of the language, from 0, shape (n,).
        rows: The token id of each: its row in the embedding matrix, shape (n,).
    """

    words: list[str]
    ranks: Array
    rows: Array


def frequent_words(tokenizer: Any, *, most: int = 10000, language: str = "en") -> Words:
    """The most frequent words of a language that are one piece of a tokenizer; ranks count all.

    Words are looked up after a space or by themselves, whichever makes more of them one piece.

    Args:
        tokenizer: A tokenizer of transformers.
        most: How many words are ranked.
        language: Its code in wordfreq, such as "en" or "de".

    Raises:
        InputError: most is below 1, wordfreq does not know the language, or the tokenizer is none
            of transformers.
        MissingDependencyError: wordfreq is not there; the message is the pip line.

    Source: Paper, Table 1, by Wikipedia; wordfreq (Speer, 2022) counts eight kinds of text.

    Example:
        ``frequent_words(load_encoder("bert-base-uncased").tokenizer).words[:3]``
    """
    check_number("most", most, 1, integer=True)
    if not callable(tokenizer):
        raise InputError(
            "words are looked up by a tokenizer of transformers, got "
            f"{type(tokenizer).__name__}; give that of a transformer"
        )
    need("the rank of a word", "words", "wordfreq")
    import wordfreq

    try:
        ranked = wordfreq.top_n_list(language, most)
    except LookupError:
        known = ", ".join(sorted(wordfreq.available_languages()))
        raise InputError(
            f"wordfreq has no words of language {language!r}; it has {known}"
        ) from None
    # A tokenizer keeps how it cuts and pads, and other threads may be using this one.
    tokenizer = copy.deepcopy(tokenizer)
    forms = [_single_pieces(tokenizer, [before + word for word in ranked]) for before in (" ", "")]
    # The first of equals: where the space makes no difference, as in BERT, both are the same.
    rows = max(forms, key=lambda form: int((form >= 0).sum()))
    ranks = np.flatnonzero(rows >= 0)
    return Words([ranked[rank] for rank in ranks], ranks, rows[ranks])


def _single_pieces(tokenizer: Any, texts: list[str]) -> Array:
    """The token id of each text that is one known piece, −1 of others."""
    pieces = tokenizer(texts, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    single = (ids[0] if len(ids) == 1 and ids[0] != unknown else -1 for ids in pieces)
    return np.fromiter(single, dtype=np.int64)


def word_embeddings(encoder: SentenceTransformer) -> Array:
    """The input embeddings of an encoder's tokens by token id, float32, shape (vocabulary, D).

    Raises:
        InputError: The encoder does not begin with a transformer.
        ModelError: The transformer has no table of input embeddings.
    """
    first = encoder[0]
    model: Any = getattr(first, "model", None)
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            "word embeddings are read from a transformer, but the encoder begins with "
            f"{type(first).__name__}"
        )
    try:
        weight = model.get_input_embeddings().weight
    except (NotImplementedError, AttributeError):
        raise ModelError(
            f"{type(model).__name__} has no table of input embeddings; take another encoder"
        ) from None
    table: Array = weight.detach().float().cpu().numpy()
    return table


@dataclass(frozen=True)
class Mean:
    """A mean over words with its 95 % interval (1.96 standard errors), None for a single word."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class WordGroup:
    """Words of one piece with ranks from `low` below `high`; means are None where there is none.

    `norm` is the mean of their ℓ2 norms. By k, `distance` is that of the mean ℓ2 distances to the
    k nearest others, and `dot` that of the mean dot products with the k that have the largest.
    """

    low: int
    high: int
    words: int
    norm: Mean | None
    distance: Mapping[int, Mean | None]
    dot: Mapping[int, Mean | None]


@dataclass(frozen=True)
class WordStatistics:
    """Groups of words by frequency; neighbours are sought among all embeddings."""

    groups: Sequence[WordGroup]
    vocabulary: int
    width: int

    def to_dict(self) -> dict[str, Any]:
        """The means as JSON has them, k being a string; `null` where a range has no word."""
        return dict(json.loads(json.dumps(asdict(self))))


def word_statistics(
    embeddings: Array,
    words: Words,
    *,
    ranges: Sequence[tuple[int, int]] = RANGES,
    neighbours: Sequence[int] = NEIGHBOURS,
    progress: Callable[[int, int], None] | None = None,
) -> WordStatistics:
    r"""Norms of word embeddings and nearness of their neighbours, by range of frequency rank.

    .. math:: \frac{1}{|G|} \sum_{w \in G} \lVert w \rVert, \qquad
        \frac{1}{|G|} \sum_{w \in G} \frac1k \sum_{x \in N_k(w)} \lVert w - x \rVert, \qquad
        \frac{1}{|G|} \sum_{w \in G} \frac1k \sum_{x \in P_k(w)} w \cdot x

    G are the words of a range, :math:`N_k(w)` the k other rows of the matrix that are nearest by ℓ2
    distance, and :math:`P_k(w)` the k with the largest dot products. That these are two sets is our
    reading: the paper's dot products are larger than neighbours by distance can have.

    Args:
        embeddings: All tokens, shape (N, D).
        words: Which rows are words, and their ranks.
        ranges: Ranks from and to, the second not included.
        neighbours: The counts k, 1 ≤ k < N.
        progress: Called with the words done and their total.

    Raises:
        InputError: A word's row or a count that cannot be, or an embedding that is NaN or infinite
            (named).

    Source: Paper, section 2.2 and Table 1.

    Example:
        >>> table = np.array([[3.0, 4.0], [3.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
        >>> words = Words(["the", "of"], ranks=np.array([0, 3]), rows=np.array([0, 1]))
        >>> group = word_statistics(table, words, ranges=[(0, 10)], neighbours=[1]).groups[0]
        >>> group.words, group.norm.value, group.distance[1].value, group.dot[1].value
        (2, 4.0, 3.0, 12.5)
    """
    embeddings = checked(embeddings)
    for k in neighbours:
        check_number("neighbours", k, 1, len(embeddings) - 1, integer=True)
    if len(words.rows) and not 0 <= words.rows.min() <= words.rows.max() < len(embeddings):
        raise InputError(
            f"words have rows {words.rows.min()} to {words.rows.max()}, but there are "
            f"{len(embeddings)} embeddings; take those of the tokenizer's own encoder"
        )
    members = [(words.ranks >= low) & (words.ranks < high) for low, high in ranges]
    asked = np.flatnonzero(np.any(members, axis=0))
    rows = words.rows[asked]
    norms = np.linalg.norm(embeddings[rows].astype(np.float64), axis=1)
    found = nearest_neighbours(rows, embeddings, k=max(neighbours), progress=progress)
    groups = []
    for (low, high), member in zip(ranges, members, strict=True):
        within = np.flatnonzero(member[asked])
        # The k best are the first k of the best.
        distance, dot = (
            {k: _mean(measures[within, :k].mean(axis=1)) for k in neighbours}
            for measures in (found.distances, found.dots)
        )
        groups.append(WordGroup(low, high, len(within), _mean(norms[within]), distance, dot))
    return WordStatistics(groups, *embeddings.shape)


def _mean(values: Array) -> Mean | None:
    """The mean of some words' measures with its interval; None where there is no word."""
    if len(values) == 0:
        return None
    value = float(values.mean())
    if len(values) == 1:
        return Mean(value)
    error = ERRORS * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Mean(value, value - error, value + error)
