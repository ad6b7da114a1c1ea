"""Corpora of any length: encoded to rows, or sampled, in memory that hardly grows with them.

A corpus is read a chunk at a time. Of each sentence a hash and a row number are kept, so that one
that comes again is not encoded again. Rows are in memory while they are few, and then in a file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.description import describe_encoder, describe_vectors
from bertflow.encoders.embedding import Chunk, CorpusEncoder, Progress, count_cut_of, halves
from bertflow.encoders.encoder import as_sentences, check_text, own_part
from bertflow.encoders.encoding import Group
from bertflow.encoders.precision import Precision, resolved_precision
from bertflow.encoders.sentence_cache import SentenceCache, SentenceIndex, digests_of
from bertflow.errors import InputError, ModelError, shown
from bertflow.io.files import (
    check_writable,
    clear_part,
    followed,
    keep_permissions,
    part_folder,
    part_path,
)
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# A chunk is so many sentences or so much text, read and sorted by length together. A corpus that
# fits in memory, with 256 dimensions or more, is one chunk.
STREAM_SENTENCES = 2**18
STREAM_CHARACTERS = 2**26
# Rows of more bytes than this go to a file.
IN_MEMORY = 2**28
WRITTEN_ROWS = 4096
FIRST = 512
HEADER = 128
ROWS, PARTS = "rows.npy", "parts"
# Sentences of a sample; docs/scale.md shows how little more of them gain.
SAMPLE = 200_000
DIGEST = 16


@dataclass(frozen=True)
class Encoded:
    """Facts about a stream of sentences that was encoded.

    Attributes:
        rows: How many sentences there were, repeats included.
        distinct: How many distinct ones.
        cut: How many distinct ones were longer than the encoder's limit.
        width: Of the vectors, 0 without sentences.
        first: The rows of the first `FIRST` distinct sentences.
    """

    rows: int
    distinct: int
    cut: int
    width: int
    first: Array


class Rows:
    """Rows to fit on: in memory while they are few, in a temporary file when they are not.

    The file has no name, so it goes with the process, whatever ends that.

    Example:
        >>> with Rows() as rows:
        ...     rows.extend(2)
        ...     rows.put(np.array([1, 0]), np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32))
        ...     rows.array().tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """

    def __init__(self) -> None:
        self.width = 0
        self._count = 0
        self._block: Array | None = None
        # The file, and the bytes before its rows.
        self._file: IO[bytes] | None = None
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._file is not None:
            self._file.close()

    def extend(self, count: int) -> None:
        """Make room for so many more."""
        self._count += count

    def put(self, places: Array, vectors: Array) -> None:
        """Write vectors (n, D) at row numbers (n,)."""
        self.width = vectors.shape[1]
        if self._file is not None or self._count * self.width * 4 > IN_MEMORY:
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(buffering=0)
                if self._block is not None:
                    self._write(np.arange(len(self._block)), self._block)
                    self._block = None
                self._write(places, vectors)
            except OSError as error:
                raise ModelError(
                    f"cannot write temporary files in {tempfile.gettempdir()}: "
                    f"{error.strerror or error}; TMPDIR names another folder"
                ) from None
            return
        if self._block is None:
            self._block = np.empty((self._count, self.width), dtype=np.float32)
        elif len(self._block) < self._count:
            more = np.empty((self._count - len(self._block), self.width), dtype=np.float32)
            self._block = np.concatenate([self._block, more])
        self._block[places] = vectors

    def _write(self, places: Array, vectors: Array) -> None:
        # Runs of neighbours are written at once. A memory map would count as memory, and would end
        # the process where the disk is full.
        assert self._file is not None
        order = np.argsort(places)
        places, rows = places[order], np.ascontiguousarray(vectors[order], dtype="<f4")
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=True):
            self._file.seek(self._offset + 4 * self.width * int(places[start]))
            data = rows[start:stop].tobytes()
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def array(self) -> Array:
        """The rows, shape (N, D), float32; memory-mapped and read-only if they are in a file."""
        if self._file is None:
            assert self._block is not None
            return self._block
        end = self._file.seek(0, os.SEEK_END)
        shape = (max(0, end - self._offset) // (4 * self.width), self.width)
        if not shape[0]:
            return np.empty(shape, dtype=np.float32)
        rows: Array = np.memmap(self._file, dtype="<f4", mode="r", offset=self._offset, shape=shape)
        return rows

    def take(self, digests: Array, places: Array) -> tuple[Array, Array]:
        """Numbers and vectors of sentences that an earlier process has left of a group: none."""
        return places[:0], places[:0]

    def note(self, digests: Array, which: Array, vectors: Array) -> None:
        """Note for a later process that some sentences of a group have their rows: nothing."""


@pinned()
def encode_rows(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    sink: Rows,
    *,
    batch_size: int = 32,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    devices: Sequence[str] | None = None,
    description: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """Encode each distinct sentence of a stream once, and write a row for every sentence.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed; read once, a chunk at a time.
        sink: Gets row i of sentence i.
        batch_size: Sentences a forward pass.
        cache: Gives and keeps vectors; None encodes all of them.
        precision: As in `resolved_precision`.
        devices: Of the processes that encode, see `DevicesEncoding`; None encodes in this one.
        description: What `describe_encoder` gives, if that is known already.
        progress: Called with the distinct sentences done, and how many are known so far.

    Raises:
        InputError: Something that is not text, or a vector that is not finite; the message names
            the sentence.
        ModelError: A process that encodes has ended before its work; the message names it.
    """
    known = SentenceIndex()
    corpus = CorpusEncoder(
        encoder,
        lambda: len(known),
        batch_size=batch_size,
        precision=precision,
        cache=cache,
        devices=devices,
        description=description,
        # Without a cache each batch is calibrated at once, and a kill does not cost a group.
        by_halves=cache is not None,
        progress=progress,
    )
    count = cut = 0
    for texts in _chunks(as_sentences(sentences)):
        check_text(texts, count)
        sink.extend(len(texts))
        chunk = Chunk(texts, count)
        digests = digests_of(chunk.distinct)
        earlier = known.find(digests)
        new, old = np.flatnonzero(earlier < 0), np.flatnonzero(earlier >= 0)
        known.add(digests[new], chunk.first[new])
        _encode_chunk(corpus, chunk, new, digests, sink)
        for start in range(0, len(old), WRITTEN_ROWS):
            some = old[start : start + WRITTEN_ROWS]
            places, which = chunk.places(some)
            sink.put(places, sink.array()[earlier[some]][which])
        log.info("%d sentences, %d of them new", len(texts), len(new))
        cut += count_cut_of(encoder, [chunk.distinct[n] for n in new.tolist()])
        count += len(texts)
    log.info("%d sentences encoded in %s", count, corpus.precision)
    return Encoded(
        rows=count, distinct=len(known), cut=cut, width=sink.width, first=known.first(FIRST)
    )


def _encode_chunk(
    corpus: CorpusEncoder, chunk: Chunk, new: Array, digests: Array, sink: Rows
) -> None:
    """Encode the new sentences of a chunk, and write the rows of each wherever it occurs."""
    written = 0

    def write(group: Group, places: Array, vectors: Array) -> None:
        nonlocal written
        rows, which = chunk.places(group.numbers[places])
        sink.put(rows, vectors[which])
        written += len(places)

    def put(group: Group, places: Array, vectors: Array) -> None:
        chunk.check_finite(group, places, vectors)
        write(group, places, vectors)
        sink.note(digests[group.numbers], places, vectors)

    def lacking() -> Iterator[Group]:
        for group in chunk.groups(corpus.group_size, new):
            there, vectors = sink.take(digests[group.numbers], chunk.first[group.numbers])
            if len(there):
                write(group, there, vectors)
                group.lacking = np.setdiff1d(group.lacking, there)
                corpus.tell(len(there))
            yield group

    corpus.encode(lacking(), put)
    if written != len(new):  # A row that nobody wrote would be a vector of zeros.
        raise RuntimeError(f"{written} rows were written of {len(new)}")


def _chunks(sentences: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for sentence in sentences:
        chunk.append(sentence)
        characters += len(sentence) if isinstance(sentence, str) else 0
        if len(chunk) == STREAM_SENTENCES or characters >= STREAM_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def encode_file(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    output: str | Path,
    *,
    batch_size: int = 32,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
    devices: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """Encode sentences to a .npy file, row i for sentence i, in memory that does not grow with it.

    Finished rows lie in a folder beside the file. The same call after a kill reads the sentences
    again, compares each group and its rows with notes there, and encodes the others. The file is
    the same, bit by bit.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed; read once, a chunk at a time.
        output: The .npy file, which is then the new one whole, or still the old one.
        batch_size: As in `encode_rows`; so are the others.
        cache: None encodes all.
        precision: As in `resolved_precision`.
        devices: None encodes in this process.
        progress: Called with the distinct sentences done, and how many are known so far.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
        ModelError: The file cannot be written, another process is writing it, or one of those that
            encode has ended before its work.
    """
    CorpusEncoder.check_options(batch_size, cache, devices)
    output = Path(output)
    check_writable(output, rows=True)
    description = describe_encoder(encoder)
    kind = resolved_precision(precision, encoder)
    # Rows calibrated batch by batch and rows calibrated group by group are not mixed.
    by_groups = cache is not None and halves(encoder)[1] is not None
    vectors: Any = uuid.uuid4().hex  # A stopped run starts again, unless its vectors are known.
    if own_part(encoder) is None:
        with suppress(InputError):
            vectors = describe_vectors(encoder, kind, description)
    about = [vectors, batch_size, by_groups]
    try:
        with _PartialFile(output, about, description["width"]) as sink:
            encoded = encode_rows(
                encoder,
                sentences,
                sink,
                batch_size=batch_size,
                cache=cache,
                precision=precision,
                devices=devices,
                description=description,
                progress=progress,
            )
            if not encoded.rows:
                raise InputError("there is no sentence to encode")
            sink.complete(encoded.rows)
    except OSError as error:
        folder, remedy = part_path(output), ""
        if (folder / PARTS).exists():
            remedy = f"; what is done is kept in {folder}, and the same command goes on from it"
        raise ModelError(f"cannot write {output}: {error.strerror or error}{remedy}") from None
    return encoded


class _PartialFile(Rows):
    """The .npy file to be, in a folder beside it, and a note of every part of a group in it.

    A note is a line of three hexadecimal numbers: a hash of `about` and the group's sentences, a
    hash of the part, and a bit for each sentence of the group, whether it is in the part. The
    part's hash is of these bits and its rows. So a note holds without waiting for the disk,
    whatever has become of the encoder, the corpus or the file since.
    """

    def __init__(self, output: Path, about: Any, width: int) -> None:
        super().__init__()
        self.output, self.folder = followed(output), part_path(output)
        self.width, self._offset = max(width, 1), HEADER
        self._about = json.dumps(about, sort_keys=True).encode()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            held.enter_context(part_folder(self.output))
            path = self.folder / ROWS
            self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            held.callback(self._file.close)
            keep_permissions(self.output, path)
            self._notes = _read_notes(self.folder / PARTS)
            self._noted = held.enter_context((self.folder / PARTS).open("ab", buffering=0))
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._held:
            # An error of the corpus or encoder would come again.
            if kind is None or issubclass(kind, InputError) or not self._noted.tell():
                clear_part(self.folder)

    def put(self, places: Array, vectors: Array) -> None:
        self.width = vectors.shape[1]
        self._write(places, vectors)

    def take(self, digests: Array, places: Array) -> tuple[Array, Array]:
        there = np.zeros(len(digests), dtype=bool)
        notes = self._notes.get(_hash(self._about, digests), ())
        rows = self.array() if notes else places[:0]
        for check, bits in notes:
            part = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[: len(there)])
            if len(part) and places[part].max() < len(rows):
                there[part] |= _hash(bits, rows[places[part]]) == check
        return np.flatnonzero(there), np.array(rows[places[there]])

    def note(self, digests: Array, which: Array, vectors: Array) -> None:
        there = np.zeros(len(digests), dtype=bool)
        there[which] = True
        bits = np.packbits(there).tobytes()
        check = _hash(bits, vectors[np.argsort(which)].astype("<f4", copy=False))
        # In one call, and behind a line that a process has left unfinished when it was killed.
        line = f"\n{_hash(self._about, digests)} {check} {bits.hex()}"
        self._noted.write(line.encode())

    def complete(self, count: int) -> None:
        """Put the file of so many rows in its place."""
        assert self._file is not None
        header = io.BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, self.width)}
        np.lib.format.write_array_header_1_0(header, about)
        assert header.tell() == HEADER
        self._file.truncate(HEADER + 4 * self.width * count)
        self._file.seek(0)
        self._file.write(header.getvalue())
        os.fsync(self._file.fileno())
        (self.folder / ROWS).replace(self.output)


def _read_notes(path: Path) -> dict[str, list[tuple[str, bytes]]]:
    """The notes of each group; damaged lines are left out."""
    notes: dict[str, list[tuple[str, bytes]]] = {}
    content = path.read_bytes() if path.exists() else b""
    for line in content.decode("ascii", "replace").split("\n"):
        with suppress(ValueError):
            group, check, bits = line.split(" ")
            notes.setdefault(group, []).append((check, bytes.fromhex(bits)))
    return notes


def _hash(*parts: bytes | Array) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Sampled:
    """A sample of a corpus.

    Attributes:
        sentences: The sample, in the order of the corpus.
        rows: How many sentences the corpus has, repeats included.
        whole: Whether the sample is the corpus, with its repeats.
    """

    sentences: list[str]
    rows: int
    whole: bool


def sample_corpus(sentences: Iterable[str], size: int = SAMPLE, *, seed: int = 0) -> Sampled:
    r"""Draw distinct sentences at random, each with the same chance, in one pass.

    The sample is the distinct sentences with the `size` smallest hashes under the seed. So neither
    the order of the corpus nor repeats change it, and the sample of a corpus can be drawn from
    those of its parts. The memory does not grow with the corpus. A corpus of at most `size`
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
    if not isinstance(size, Integral) or size < 2:
        raise InputError(f"a sample needs at least 2 sentences, got {shown(size)}")
    key = int(seed).to_bytes(8, "little", signed=True)
    first: list[str] = []
    # The place and text of each sentence with a number below the limit.
    drawn: dict[int, tuple[int, str]] = {}
    limit = 2 ** (8 * DIGEST)
    place = -1
    for place, sentence in enumerate(as_sentences(sentences)):
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
