"""The one loop that encodes a corpus, each distinct sentence once; `embed` and `fill`."""

from __future__ import annotations

import copy
import logging
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array, check_device
from bertflow.encoders.devices import DevicesEncoding
from bertflow.encoders.encoder import as_sentences, check_text, encoder_of, is_usual
from bertflow.encoders.encoding import PART_SECONDS, Encoding, Group, prompt_of
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.sentence_cache import SentenceCache, VectorCache
from bertflow.errors import InputError, check_number, shown
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
# Called with a group, places in it, shape (n,), and the vectors of the sentences there, (n, D).
Put = Callable[[Group, Array, Array], None]

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

    def check_finite(self, group: Group, places: Array, vectors: Array) -> None:
        """Raise an InputError that names the sentence of a vector that is not finite."""
        if (bad := first_not_finite(vectors)) is not None:
            place = places[bad]
            raise InputError(
                f"the encoder's vector of sentence {self.first[group.numbers[place]]} is not "
                f"finite: {group.sentences[place][:80]!r}"
            )


class CorpusEncoder:
    """Encodes a corpus group by group, as far as a cache has not got it.

    With `by_halves`, which a cache needs, a calibrated model's encoder is encoded with, and each
    group is calibrated when it is whole. Otherwise each batch goes through the whole model.
    """

    def __init__(
        self,
        encoder: SentenceTransformer,
        total: Callable[[], int],
        *,
        batch_size: int,
        precision: Precision,
        cache: SentenceCache | None = None,
        devices: Sequence[str] | None = None,
        description: Mapping[str, Any] | None = None,
        by_halves: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.check_options(batch_size, cache, devices)
        self.precision = resolved_precision(precision, encoder)
        bare, self._calibrated = halves(encoder)
        self.group_size = group_size(bare)
        if not by_halves:
            bare, self._calibrated = encoder, None
        elif bare is not encoder:
            description = None
        how: Any = {"batch_size": batch_size, "precision": self.precision}
        several = devices is not None and [*devices] != [str(encoder.device)]
        self._encoding: Encoding | DevicesEncoding = (
            DevicesEncoding(bare, devices or (), **how) if several else Encoding(bare, **how)
        )
        self._kept = None
        if cache is not None:
            self._kept = cache.opened(bare, precision=self.precision, description=description)
        self._progress, self._total, self._done = progress, total, 0

    @staticmethod
    def check_options(batch_size: Any, cache: Any, devices: Any) -> None:
        """Refuse, before any work, options that cannot be."""
        check_number("batch_size", batch_size, 1, integer=True)
        if cache is not None and not isinstance(cache, SentenceCache):
            raise InputError(f"cache must be a SentenceCache(folder), got {shown(cache)}")
        if devices is not None and (not isinstance(devices, list | tuple) or not devices):
            raise InputError(f"devices must be a list such as ['cpu', 'cpu'], got {shown(devices)}")
        for device in devices or ():
            check_device(device)

    def encode(self, groups: Iterable[Group], put: Put) -> None:
        """Encode the lacking sentences of groups, and put part after part."""
        put = when_whole(self._calibrated, put)

        def lacking() -> Iterator[Group]:
            for group in groups:
                if self._kept is not None:
                    there, vectors = self._kept.take(group.texts(group.lacking))
                    log.info("cache: %d found, %d not", there.sum(), (~there).sum())
                    if vectors is not None:
                        put(group, group.lacking[there], vectors)
                        self.tell(len(vectors))
                    group.lacking = group.lacking[~there]
                yield group

        for group, places, vectors in self._encoding.each(lacking()):
            put(group, places, vectors)
            # After `put`, so that a run that is stopped in between goes on with these bits.
            if self._kept is not None:
                self._kept.add(group.texts(places), vectors)
            self.tell(len(places))

    def tell(self, count: int) -> None:
        """Report so many more sentences as done."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total())


@dataclass(frozen=True)
class Embedded:
    """Vectors of distinct sentences, and the row of each sentence in them.

    Attributes:
        vectors: Shape (distinct, D), float32.
        index: Row of each sentence, repeats included, shape (N,).
        cut: How many distinct sentences were longer than the encoder's limit; 0 if not counted.
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
        finite: Refuse a vector that is not finite.
        count_cut: Count the sentences that are too long, which tokenizes them once more.
        cache: Gives and keeps vectors; None encodes all of them.
        precision: As in `resolved_precision`.
        progress: Called with the distinct sentences done and their total.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
    """
    sentences = list(as_sentences(sentences))
    if not sentences:
        raise InputError("there is no sentence to encode")
    check_text(sentences)
    chunk = Chunk(sentences)
    vectors: Array | None = None

    def put(group: Group, places: Array, part: Array) -> None:
        nonlocal vectors
        if finite:
            chunk.check_finite(group, places, part)
        if vectors is None:
            vectors = np.empty((len(chunk.distinct), part.shape[1]), dtype=np.float32)
        vectors[group.numbers[places]] = part

    corpus = CorpusEncoder(
        encoder,
        lambda: len(chunk.distinct),
        batch_size=batch_size,
        precision=precision,
        cache=cache,
        progress=progress,
    )
    corpus.encode(chunk.groups(corpus.group_size), put)
    assert vectors is not None
    cut = count_cut_of(encoder, chunk.distinct) if count_cut else 0
    return Embedded(vectors=vectors, index=chunk.index, cut=cut)


@pinned()
def fill(
    caches: Sequence[VectorCache],
    sentences: Sequence[str],
    encoder: Callable[[], SentenceTransformer],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> None:
    """Encode the sentences that any of the caches lacks, and keep vectors every few seconds.

    Args:
        caches: One for each pooling of the encoder.
        sentences: Text, repeats allowed.
        encoder: Loads the encoder; called only if a sentence is lacking. Its vectors are those of
            the caches side by side.
        batch_size: Sentences a forward pass.
        progress: Called with the sentences encoded and their total.

    Raises:
        InputError: A sentence is no text, or its vector is not finite.
        ModelError: A cache cannot be written.
    """
    check_text(sentences)
    missing = {sentence for cache in caches for sentence in cache.missing(sentences)}
    if not missing:
        return
    chunk = Chunk(sentences)

    def groups() -> Iterator[Group]:
        # Groups are of all sentences, so that batches do not depend on the caches.
        for group in chunk.groups(CHUNK_SENTENCES):
            group.lacking = np.flatnonzero([text in missing for text in group.sentences])
            yield group

    def put(group: Group, places: Array, vectors: Array) -> None:
        chunk.check_finite(group, places, vectors)
        for cache, part in zip(caches, np.split(vectors, len(caches), axis=1), strict=True):
            cache.add(group.texts(places), part)

    corpus = CorpusEncoder(
        encoder(),
        lambda: len(missing),
        batch_size=batch_size,
        precision="float32",
        progress=progress,
    )
    corpus.encode(groups(), put)


@dataclass
class _List:
    """A list of sentences that is being encoded, `number` lists after the first.

    `places` are the rows of its distinct sentences in the store, -1 without one. `left` of them are
    still to be encoded, and `vectors` are of the others.
    """

    number: int
    chunk: Chunk
    places: Array
    left: int
    vectors: Array | None = None


def encode_lists(
    encoding: Encoding, lists: Iterable[Sequence[str]], kept: VectorCache | None = None
) -> Iterator[Array]:
    """Encode lists of sentences one after the other, each distinct sentence of a list once.

    The next list is tokenized while one is being encoded. `kept` gets the vectors every few
    seconds; those of an earlier call with the same lists are taken from it, so the result is the
    same to the last bit.

    Returns:
        The vectors of each list, in order, shape (N, D), float32; of an empty list (0, 0). They are
        not checked.
    """
    size = group_size(encoding.encoder)
    begun: deque[_List] = deque()

    def groups() -> Iterator[Group]:
        for number, sentences in enumerate(lists):
            chunk = Chunk(sentences)
            places = np.full(len(chunk.distinct), -1)
            if kept is not None:
                places = kept.find(_names(number, chunk.distinct))
            begun.append(_List(number, chunk, places, int((places < 0).sum())))
            for group in chunk.groups(size):
                group.lacking = np.flatnonzero(places[group.numbers] < 0)
                yield group

    def whole() -> Iterator[Array]:
        while begun and not begun[0].left:
            yield _rows_of(begun.popleft(), kept)

    waiting: list[tuple[list[str], Array]] = []
    written = monotonic()
    for group, places, part in encoding.each(groups()):
        yield from whole()
        one = begun[0]  # Lists are encoded in order.
        if one.vectors is None:
            one.vectors = np.empty((len(one.chunk.distinct), part.shape[1]), dtype=np.float32)
        one.vectors[group.numbers[places]] = part
        one.left -= len(places)
        if kept is not None:
            waiting.append((_names(one.number, group.texts(places)), part))
            if monotonic() - written >= PART_SECONDS:
                names, parts = zip(*waiting, strict=True)
                kept.add([name for some in names for name in some], np.concatenate(parts))
                waiting, written = [], monotonic()
    yield from whole()


def _names(number: int, sentences: Sequence[str]) -> list[str]:
    """Names of a list's sentences in the store of vectors."""
    # The last bits of a vector depend on the batch, so a sentence has another name in each list.
    return [f"{number} {sentence}" for sentence in sentences]


def _rows_of(one: _List, kept: VectorCache | None) -> Array:
    """A row for each sentence of a list, taken from the store where it was not encoded."""
    there = np.flatnonzero(one.places >= 0)
    if kept is not None and len(there):
        stored = kept.vectors()
        if one.vectors is None:
            one.vectors = np.empty((len(one.places), stored.shape[1]), dtype=np.float32)
        one.vectors[there] = stored[one.places[there]]
    if one.vectors is None:
        return np.empty((0, 0), dtype=np.float32)
    return one.vectors[one.chunk.index]


def halves(
    encoder: SentenceTransformer,
) -> tuple[SentenceTransformer, Callable[[Array], Array] | None]:
    """A calibrated model's encoder, and the function that calibrates its vectors, shape (N, D).

    Another model is all encoder, and there is no function.
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
        rows = features["sentence_embedding"]
        if encoder.truncate_dim is not None:
            rows = rows[:, : encoder.truncate_dim]
        out: Array = rows.float().cpu().numpy()
        return out

    return bare, calibrated


def when_whole(calibrated: Callable[[Array], Array] | None, put: Put) -> Put:
    """A function that gathers parts of groups, and puts each group calibrated when it is whole."""
    # The last bits of a row can depend on the rows beside it, and the end of a part on time.
    if calibrated is None:
        return put
    begun: dict[Group, list[tuple[Array, Array]]] = {}

    def gather(group: Group, places: Array, encoded: Array) -> None:
        parts = begun.setdefault(group, [])
        parts.append((places, encoded))
        if sum(len(places) for places, _ in parts) == len(group.sentences):
            order, vectors = (np.concatenate(part) for part in zip(*begun.pop(group), strict=True))
            put(group, np.arange(len(order)), calibrated(vectors[order.argsort()]))

    return gather


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
