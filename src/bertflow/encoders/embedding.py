"""From sentences to vectors: each distinct sentence once, rows checked, cuts counted."""

from __future__ import annotations

import copy
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.encoder import as_sentences, check_text, encoder_of
from bertflow.encoders.encoding import (
    Encoding,
    G,
    Group,
    Precision,
    is_usual,
    prompt_of,
    resolved_precision,
)
from bertflow.encoders.processes import GroupEncoder
from bertflow.errors import InputError
from bertflow.process_state import pinned

if TYPE_CHECKING:
    from bertflow.encoders.sentence_cache import EncoderVectors, SentenceCache

Progress = Callable[[int, int], None]

CHUNK_SENTENCES = 1024
# With no more weights than this in its products, an encoder is a small one.
SMALL = 2**25


class Chunk:
    """Sentences that are encoded together: each distinct one once, the longest first.

    Attributes:
        distinct: The distinct sentences, in the order of their first occurrence.
        index: Which of these each sentence is, shape (N,).
        first: Where each distinct sentence occurs first, shape (distinct,).
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        number_of: dict[str, int] = {}
        self.index = np.fromiter(
            (number_of.setdefault(text, len(number_of)) for text in sentences), dtype=np.int64
        )
        self.distinct = list(number_of)
        self.first = np.zeros(len(number_of), dtype=np.int64)
        self.first[self.index[::-1]] = np.arange(len(self.index))[::-1]

    def groups(self, size: int, numbers: Array | None = None) -> Iterator[Group]:
        """Groups of distinct sentences, those of about one length together.

        The longest come first: memory runs out early or never.

        Args:
            size: Sentences a group.
            numbers: Which of the distinct sentences; None for all.
        """
        numbers = np.arange(len(self.distinct)) if numbers is None else numbers
        lengths = np.array([len(self.distinct[n]) for n in numbers.tolist()], dtype=np.int64)
        ordered = numbers[np.argsort(-lengths, kind="stable")]
        for start in range(0, len(ordered), size):
            some = ordered[start : start + size]
            yield Group([self.distinct[n] for n in some.tolist()], some)


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


@pinned()
def embed(
    encoder: SentenceTransformer,
    sentences: Sequence[str],
    *,
    batch_size: int = 32,
    finite: bool = True,
    count_cut: bool = True,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    progress: Progress | None = None,
) -> Embedded:
    """Encode each distinct sentence once; with a cache, only those that it lacks.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed.
        batch_size: Sentences a forward pass.
        finite: Refuse a vector that is not; otherwise it is for the caller to count.
        count_cut: Count the sentences that are too long, which tokenizes them once more.
        cache: Where vectors are taken from and kept; None encodes all of them.
        precision: What the encoder computes in, see `resolved_precision`.
        progress: Called with the distinct sentences done and their total.

    Returns:
        The vectors and who has which.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
    """
    sentences = list(as_sentences(sentences))
    if not sentences:
        raise InputError("there is no sentence to encode")
    check_text(sentences)
    row_of: dict[str, int] = {}
    index = np.fromiter((row_of.setdefault(s, len(row_of)) for s in sentences), dtype=np.int64)
    distinct = longest_first(row_of)
    vectors: Array | None = None
    kind = resolved_precision(precision, encoder)
    bare, calibrated = halves(encoder)
    encode = Encoding(bare, batch_size=batch_size, precision=kind)

    def put(group: Group, rows: Array, own: Array) -> None:
        nonlocal vectors
        texts = group.texts(rows)
        if finite and (bad := first_not_finite(own)) is not None:
            raise not_finite(sentences.index(texts[bad]), texts[bad])
        if vectors is None:
            vectors = np.empty((len(distinct), own.shape[1]), dtype=np.float32)
        vectors[[row_of[text] for text in texts]] = own

    with opened(cache, bare, kind) as kept:
        size = group_size(bare)
        groups = (Group(distinct[start : start + size]) for start in range(0, len(distinct), size))
        told = counted(progress, lambda: len(distinct))
        encode_groups(encode, groups, kept, when_whole(calibrated, put), told)
    assert vectors is not None
    return Embedded(
        vectors=vectors, index=index, cut=count_cut_of(encoder, distinct) if count_cut else 0
    )


def encode_lists(encoding: Encoding, lists: Iterable[Sequence[str]]) -> Iterator[Array]:
    """Encode lists of sentences one after the other, each distinct sentence of a list once.

    The next list is tokenized while one is being encoded.

    Args:
        encoding: What encodes.
        lists: Lists of text, taken some ahead of what is given.

    Returns:
        The vectors of each list, in order, shape (N, D), float32; of an empty list (0, 0). They are
        not checked.

    Raises:
        ModelError: As `Encoding.each`.
    """
    size = group_size(encoding.encoder)
    begun: deque[Chunk] = deque()

    def groups() -> Iterator[Group]:
        for sentences in lists:
            begun.append(chunk := Chunk(sentences))
            yield from chunk.groups(size)

    vectors: Array | None = None
    left = 0
    for group, rows, part in encoding.each(groups()):
        while not begun[0].distinct:
            begun.popleft()
            yield np.empty((0, 0), dtype=np.float32)
        if vectors is None:  # The groups of a list come one after the other.
            left = len(begun[0].distinct)
            vectors = np.empty((left, part.shape[1]), dtype=np.float32)
        vectors[group.numbers[rows]] = part
        left -= len(rows)
        if not left:
            yield vectors[begun.popleft().index]
            vectors = None
    for _ in begun:
        yield np.empty((0, 0), dtype=np.float32)


def halves(
    encoder: SentenceTransformer,
) -> tuple[SentenceTransformer, Callable[[Array], Array] | None]:
    """A calibrated model's encoder, and the function that calibrates its vectors.

    The vectors of a sentence before and after calibration then cost one pass through the encoder,
    where there is a cache. A model that is not calibrated is all encoder.

    Returns:
        The encoder, whose modules are the model's own, and a function of its vectors, shape (N, D),
        that gives the model's; None where the first is the whole model.
    """
    bare = encoder_of(encoder)
    if bare is encoder or encoder.dtype != torch.float32 or not is_usual(encoder):
        return encoder, None

    def calibrated(vectors: Array) -> Array:
        features: dict[str, Any] = {
            "sentence_embedding": torch.from_numpy(vectors).to(encoder.device)
        }
        with torch.inference_mode():
            for module in list(encoder)[len(bare) :]:
                features = module(features)
        found = features["sentence_embedding"]
        if encoder.truncate_dim is not None:
            found = found[:, : encoder.truncate_dim]
        out: Array = found.float().cpu().numpy()
        return out

    return bare, calibrated


def when_whole(
    calibrated: Callable[[Array], Array] | None, put: Callable[[G, Array, Array], None]
) -> Callable[[G, Array, Array], None]:
    """What takes parts of groups and puts their calibrated vectors.

    A group is calibrated when it is whole, because the last bits of a row can depend on the others,
    and what is a part depends on time.
    """
    if calibrated is None:
        return put
    begun: dict[G, list[tuple[Array, Array]]] = {}

    def gather(group: G, rows: Array, encoded: Array) -> None:
        parts = begun.setdefault(group, [])
        parts.append((rows, encoded))
        if sum(len(rows) for rows, _ in parts) == len(group.sentences):
            order, vectors = (np.concatenate(one) for one in zip(*begun.pop(group), strict=True))
            put(group, np.arange(len(order)), calibrated(vectors[order.argsort()]))

    return gather


def longest_first(distinct: Iterable[str]) -> list[str]:
    """Sentences such that a batch holds those of one length, and memory runs out early or never."""
    return sorted(distinct, key=len, reverse=True)


def group_size(encoder: SentenceTransformer) -> int:
    """How many sentences are put into batches together.

    More are encoded faster, since more of them have one length, and are larger parts of a GPU.
    """
    layers = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in layers)
    return CHUNK_SENTENCES * (4 if weights <= SMALL else 1)


def opened(
    cache: SentenceCache | None,
    encoder: SentenceTransformer,
    precision: Precision,
    description: Mapping[str, Any] | None = None,
) -> AbstractContextManager[EncoderVectors | None]:
    """The encoder's vectors in a cache, if there is one."""
    if cache is None:
        return nullcontext()
    return cache.opened(encoder, precision=precision, description=description)


def encode_groups(
    encode: GroupEncoder,
    groups: Iterable[G],
    kept: EncoderVectors | None,
    put: Callable[[G, Array, Array], None],
    told: Callable[[int], None],
) -> None:
    """Encode what groups lack, as far as a cache has not got it, and hand on part after part.

    Args:
        encode: What encodes.
        groups: Taken ahead of what is put: while one is dealt with, the next is encoded.
        kept: The encoder's vectors in the cache, which gets each part after it was put; None
            where there is none.
        put: Called with a group, numbers of its sentences, shape (n,), and their vectors, shape
            (n, D), float32.
        told: Called with how many were put.
    """

    def lacking() -> Iterator[G]:
        for group in groups:
            if kept is not None:
                found, vectors = kept.take(group.texts(group.lacking))
                if vectors is not None:
                    put(group, group.lacking[found], vectors)
                    told(len(vectors))
                group.lacking = group.lacking[~found]
            yield group

    for group, rows, vectors in encode.each(lacking()):
        put(group, rows, vectors)
        if kept is not None:
            kept.add(group.texts(rows), vectors)
        told(len(rows))


def counted(progress: Progress | None, total: Callable[[], int]) -> Callable[[int], None]:
    """What adds up the numbers that it is called with, and tells the sum and the total."""
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total())

    return told


def first_not_finite(vectors: Array) -> int | None:
    """The number of the first row that is not finite."""
    good = np.isfinite(vectors).all(axis=1)
    return None if good.all() else int(good.argmin())


def not_finite(number: int, sentence: str) -> InputError:
    """What is said of a sentence whose vector is not finite."""
    return InputError(f"the encoder's vector of sentence {number} is not finite: {sentence[:80]!r}")


def most_tokens(text: str) -> int:
    """How many tokens a text can be, whatever the tokenizer, its special ones apart.

    Example:
        >>> most_tokens("a dog"), most_tokens("\N{GRINNING FACE}")
        (5, 12)
    """
    if text.isascii():
        return len(text)
    # Tokenizers may have bytes for tokens, and normalize before. Then UTF-8 grows to three times
    # its size by composed characters (NFD), to eleven times by others (NFKC of U+FDFA).
    growth = 3 if unicodedata.is_normalized("NFKC", text) else 11
    return growth * len(text.encode("utf-8", "surrogatepass"))


def count_cut_of(encoder: SentenceTransformer, distinct: Sequence[str]) -> int:
    """How many sentences have, behind the encoder's prompt, more tokens than it takes."""
    limit = encoder.max_seq_length
    tokenizer: Any = getattr(encoder[0], "tokenizer", None)
    if limit is None or not callable(tokenizer):
        return 0
    prompt = prompt_of(encoder) or ""
    # Room for the mark that some put before the first word, too.
    room = limit - 1 - tokenizer.num_special_tokens_to_add()
    long = [text for one in distinct if most_tokens(text := prompt + one) > room]
    if not long:
        return 0
    # A tokenizer keeps how it cuts and pads, and other threads may be using this one.
    tokenizer = copy.deepcopy(tokenizer)
    cut = 0
    for start in range(0, len(long), CHUNK_SENTENCES):
        chunk = long[start : start + CHUNK_SENTENCES]
        tokens = tokenizer(chunk, truncation=False, padding=False, verbose=False)["input_ids"]
        cut += sum(len(ids) > limit for ids in tokens)
    return cut
