"""The one loop that encodes a corpus, each distinct sentence once; `embed` and `fill`."""

from __future__ import annotations

import copy
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array, check_device
from bertflow.encoders.description import describe_vectors
from bertflow.encoders.encoder import as_sentences, encoder_of, is_usual, own_part, prompt_of
from bertflow.encoders.encoding import (
    NOTHING,
    DevicesEncoding,
    Encoding,
    Group,
    GroupPart,
    collected,
    sentence_vectors,
)
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.sentence_cache import EncoderVectors, SentenceCache, Unfinished, VectorCache
from bertflow.errors import InputError, check_number, shown
from bertflow.process_state import pinned

Progress = Callable[[int, int], None]
Store = EncoderVectors | Unfinished


class Computing(TypedDict, total=False):
    """How sentences become vectors.

    Attributes:
        batch_size: Sentences a forward pass; 32 by default.
        cache: Gives and keeps vectors; None encodes all of them.
        precision: As in `resolved_precision`; "auto" by default.
        devices: Of the processes that encode, see `DevicesEncoding`; None encodes in this one.
    """

    batch_size: int
    cache: SentenceCache | None
    precision: Precision
    devices: Sequence[str] | None


class EncodeOptions(Computing, total=False):
    """How a corpus is encoded: the options of `Computing`, and progress.

    Attributes:
        progress: Called with the distinct sentences done, and how many are known so far.
    """

    progress: Progress | None


CHUNK_SENTENCES = 1024
# With no more weights than this in its products, an encoder is a small one.
SMALL = 2**25


class Chunk:
    """Sentences that are encoded together, each distinct one once; `start` is the first's place.

    `index` has the number in `distinct` of each sentence, shape (N,), and `first` the place of each
    distinct sentence's first occurrence.
    """

    def __init__(self, sentences: Sequence[str], start: int = 0) -> None:
        number_of: dict[str, int] = {}
        self.index = np.fromiter(
            (number_of.setdefault(text, len(number_of)) for text in sentences), dtype=np.int64
        )
        self.distinct = list(number_of)
        self._counts = np.bincount(self.index, minlength=len(number_of))
        # The places of the first distinct sentence, then those of the second, and so on.
        self._places = start + np.argsort(self.index, kind="stable")
        self._begins = np.cumsum(self._counts) - self._counts
        self.first: Array = self._places[self._begins]

    def groups(self, size: int, numbers: Array | None = None) -> Iterator[Group]:
        """Groups of so many distinct sentences, or of those with the given numbers."""
        # Of about one length, the longest first: memory runs out early or never.
        numbers = np.arange(len(self.distinct)) if numbers is None else numbers
        lengths = np.array([len(self.distinct[n]) for n in numbers.tolist()], dtype=np.int64)
        ordered = numbers[np.argsort(-lengths, kind="stable")]
        for start in range(0, len(ordered), size):
            some = ordered[start : start + size]
            yield Group([self.distinct[n] for n in some.tolist()], some)

    def places(self, numbers: Array) -> tuple[Array, Array]:
        """All places of some distinct sentences, and which of them is at each place."""
        counts = self._counts[numbers]
        which = np.repeat(np.arange(len(numbers)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._places[self._begins[numbers][which] + within], which

    def finite(self, parts: Iterable[GroupPart]) -> Iterator[GroupPart]:
        """The parts; an InputError names the sentence of a vector that is not finite."""
        for group, places, vectors in parts:
            if (bad := first_not_finite(vectors)) is not None:
                place = places[bad]
                raise InputError(
                    f"the encoder's vector of sentence {self.first[group.numbers[place]]} is not "
                    f"finite: {group.sentences[place][:80]!r}"
                )
            yield group, places, vectors


class CorpusEncoder:
    """Encodes a corpus group by group, as far as the cache and unfinished work have not got it.

    Of a calibrated model the encoder is taken, and each group is calibrated when it is whole.
    `total` is how many distinct sentences are known so far, which `progress` is told.
    """

    def __init__(
        self,
        encoder: SentenceTransformer,
        *,
        batch_size: int = 32,
        precision: Precision = "auto",
        cache: SentenceCache | None = None,
        devices: Sequence[str] | None = None,
        description: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_options(batch_size, cache, devices)
        self.precision = resolved_precision(precision, encoder)
        # In half precision, or with an `encode` of its own, a calibrated model is one encoder.
        parted = encoder.dtype == torch.float32 and is_usual(encoder)
        self._model, self.bare = encoder, encoder_of(encoder) if parted else encoder
        self.group_size = group_size(self.bare)
        self._how: Any = {"batch_size": batch_size, "precision": self.precision}
        self._encoding: Encoding | DevicesEncoding
        if devices is None or [*devices] == [str(encoder.device)]:
            self._encoding = Encoding(self.bare, **self._how)
        else:
            self._encoding = DevicesEncoding(self.bare, devices, **self._how)
        self._description = description if self.bare is encoder else None
        self._stores: list[Store] = []
        if cache is not None:
            self._stores.append(EncoderVectors(cache, lambda: self._about))
        self._progress, self.total, self._done = progress, 0, 0

    @cached_property
    def _about(self) -> Mapping[str, Any] | None:
        """All that the encoder's vectors depend on; None if it has code that may change."""
        if own_part(self.bare) is not None:
            return None
        return describe_vectors(self.bare, self.precision, self._description)

    def go_on_from(self, folder: Path) -> None:
        """Take what a stopped run has left in a folder, and keep there what the cache does not."""
        with suppress(InputError):  # The encoder cannot be described.
            if self._about is not None:
                about = [self._about, self._how["batch_size"]]
                self._stores.append(Unfinished(folder, about))

    def each(self, groups: Iterable[Group]) -> Iterator[GroupPart]:
        """Vectors of the lacking sentences of groups, part after part."""
        parts = self._told(parts_of(self._encoding, groups, self._stores))
        return parts if self.bare is self._model else self._calibrated(parts)

    def _told(self, parts: Iterable[GroupPart]) -> Iterator[GroupPart]:
        for part in parts:
            yield part
            self._done += len(part[1])
            if self._progress is not None:
                self._progress(self._done, self.total)

    def _calibrated(self, parts: Iterable[GroupPart]) -> Iterator[GroupPart]:
        """Groups, calibrated when all their parts are there."""
        # The last bits of a row can depend on the rows beside it, and the end of a part on time.
        model, behind = self._model, list(self._model)[len(self.bare) :]
        begun: dict[Group, list[tuple[Array, Array]]] = {}
        for group, places, encoded in parts:
            begun.setdefault(group, []).append((places, encoded))
            if sum(len(places) for places, _ in begun[group]) == len(group.sentences):
                order, rows = (np.concatenate(part) for part in zip(*begun.pop(group), strict=True))
                given = torch.from_numpy(rows[order.argsort()]).to(model.device)
                with torch.inference_mode():
                    out = sentence_vectors(model, behind, {"sentence_embedding": given})
                yield group, np.arange(len(order)), out.cpu().numpy()


def check_options(batch_size: Any, cache: Any, devices: Any) -> None:
    """Refuse, before any work, options that cannot be."""
    check_number("batch_size", batch_size, 1, integer=True)
    if cache is not None and not isinstance(cache, SentenceCache):
        raise InputError(f"cache must be a SentenceCache(folder), got {shown(cache)}")
    if devices is not None and (not isinstance(devices, list | tuple) or not devices):
        raise InputError(f"devices must be a list such as ['cpu', 'cpu'], got {shown(devices)}")
    for device in devices or ():
        check_device(device)


def parts_of(
    encoding: Encoding | DevicesEncoding, groups: Iterable[Group], stores: Sequence[Store] = ()
) -> Iterator[GroupPart]:
    """Parts of groups: taken from stores, or encoded and kept in the first store with room."""
    # Stores are asked as soon as a group is begun, which is before the one ahead of it is done.
    taken: dict[Group, list[GroupPart]] = {}

    def lacking() -> Iterator[Group]:
        for group in groups:
            for store in stores:
                places, vectors = store.take(group)
                if len(places):
                    group.lacking = np.setdiff1d(group.lacking, places)
                    taken.setdefault(group, []).append((group, places, vectors))
            yield group

    for group, places, vectors in encoding.each(lacking()):
        parts = taken.pop(group, [])
        if len(places):
            parts.append((group, places, vectors))
            for store in stores:
                if store.add(group, places, vectors):
                    break
        yield from parts


@dataclass(frozen=True)
class Embedded:
    """Vectors of distinct sentences, shape (distinct, D), float32, and each sentence's row in them.

    `cut` of the distinct sentences were longer than the encoder's limit; 0 if not counted.
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
    finite: bool = True,
    count_cut: bool = True,
    **options: Unpack[EncodeOptions],
) -> Embedded:
    """Encode each distinct sentence once; with a cache, only those that it lacks.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed.
        finite: Refuse a vector that is not finite.
        count_cut: Count the sentences that are too long, which tokenizes them once more.
        options: See `EncodeOptions`.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
    """
    sentences = list(as_sentences(sentences))
    if not sentences:
        raise InputError("there is no sentence to encode")
    chunk = Chunk(sentences)
    corpus = CorpusEncoder(encoder, **options)
    corpus.total = len(chunk.distinct)
    parts = corpus.each(chunk.groups(corpus.group_size))
    vectors = collected(chunk.finite(parts) if finite else parts, len(chunk.distinct))
    cut = count_cut_of(encoder, chunk.distinct) if count_cut else 0
    return Embedded(vectors=vectors, index=chunk.index, cut=cut)


@pinned()
def fill(
    caches: Sequence[VectorCache],
    sentences: Sequence[str],
    encoder: Callable[[], SentenceTransformer],
    **options: Unpack[EncodeOptions],
) -> None:
    """Encode the sentences that any of the caches lacks, in float32, and keep what is done.

    Only if a sentence is lacking, `encoder` is called to load the encoder. Its vectors are those of
    the caches side by side, one for each pooling.

    Raises:
        InputError: A sentence is no text, or its vector is not finite.
        ModelError: A cache cannot be written.
    """
    sentences = list(as_sentences(sentences))
    missing = {sentence for cache in caches for sentence in cache.missing(sentences)}
    if not missing:
        return
    chunk = Chunk(sentences)

    def groups() -> Iterator[Group]:
        # Groups are of all sentences, so that batches do not depend on the caches.
        for group in chunk.groups(CHUNK_SENTENCES):
            group.lacking = np.flatnonzero([text in missing for text in group.sentences])
            yield group

    options["precision"] = "float32"
    corpus = CorpusEncoder(encoder(), **options)
    corpus.total = len(missing)
    for group, places, vectors in chunk.finite(corpus.each(groups())):
        for cache, part in zip(caches, np.split(vectors, len(caches), axis=1), strict=True):
            cache.add(group.texts(places), part)


def encode_lists(
    encoding: Encoding, lists: Iterable[Sequence[str]], unfinished: Unfinished | None = None
) -> Iterator[Array]:
    """Encode lists of sentences one after the other, each distinct sentence of a list once.

    The next list is tokenized while one is being encoded. With `unfinished` a stopped call goes on
    to the same bits. Vectors of a list have shape (N, D), of an empty one (0, 0), and are not
    checked.
    """
    size = group_size(encoding.encoder)
    begun: deque[Chunk] = deque()
    vectors, done = NOTHING, 0

    def groups() -> Iterator[Group]:
        for sentences in lists:
            begun.append(chunk := Chunk(sentences))
            yield from chunk.groups(size)

    # Lists are encoded in order.
    for group, places, part in parts_of(encoding, groups(), [unfinished] if unfinished else []):
        while done == len(begun[0].distinct):
            yield vectors[begun.popleft().index]
            vectors, done = NOTHING, 0
        if not done:
            vectors = np.empty((len(begun[0].distinct), part.shape[1]), dtype=np.float32)
        vectors[group.numbers[places]] = part
        done += len(places)
    for chunk in begun:
        yield vectors[chunk.index]
        vectors = NOTHING


def group_size(encoder: SentenceTransformer) -> int:
    """How many sentences are put into batches together: more for a small encoder."""
    # A larger group is encoded faster, because more of its sentences have the same length.
    layers = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in layers)
    return CHUNK_SENTENCES * (4 if weights <= SMALL else 1)


def first_not_finite(vectors: Array) -> int | None:
    """The number of the first row that is not finite."""
    good = np.isfinite(vectors).all(axis=1)
    return None if good.all() else int(good.argmin())


def most_tokens(text: str) -> int:
    """How many tokens a text can be, whatever the tokenizer, its special ones apart."""
    if text.isascii():
        return len(text)
    # Tokenizers may have bytes for tokens, and normalize before. Then UTF-8 grows to three times
    # its size by composed characters (NFD), to eleven times by others (NFKC of U+FDFA).
    growth = 3 if unicodedata.is_normalized("NFKC", text) else 11
    return growth * len(text.encode("utf-8", "surrogatepass"))


def count_cut_of(encoder: SentenceTransformer, distinct: Sequence[str]) -> int:
    """How many sentences, with the encoder's prompt, have more tokens than it takes."""
    limit = encoder.max_seq_length
    tokenizer: Any = getattr(encoder[0], "tokenizer", None)
    if limit is None or not callable(tokenizer):
        return 0
    prompt = prompt_of(encoder) or ""
    # Room for the mark that some put before the first word, too.
    room = limit - 1 - tokenizer.num_special_tokens_to_add()
    long = [text for sentence in distinct if most_tokens(text := prompt + sentence) > room]
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
