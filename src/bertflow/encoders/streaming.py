"""Corpora of any length: encoded to rows in memory that hardly grows with them.

A corpus is read a chunk at a time. Only a hash and a row number of each sentence are kept.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.embedding import Chunk, CorpusEncoder, EncodeOptions, count_cut_of
from bertflow.encoders.encoder import as_sentences
from bertflow.encoders.sentence_cache import SentenceIndex, digests_of
from bertflow.errors import InputError, ModelError
from bertflow.io.files import check_writable, clear_part, part_folder, placed, reason_of, writing
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

# A chunk is so many sentences or so much text, read and sorted by length together. A corpus that
# fits in memory, with 256 dimensions or more, is one chunk.
STREAM_SENTENCES = 2**18
STREAM_CHARACTERS = 2**26
# Rows of more bytes than this go to a file.
IN_MEMORY = 2**28
WRITTEN_ROWS = 4096
HEADER = 128


@dataclass(frozen=True)
class Encoded:
    """Facts about a stream of sentences that was encoded.

    It had so many `rows`, of them so many `distinct`, and of these `cut` are longer than the
    encoder's limit. `width` is that of the vectors, 0 without sentences.
    """

    rows: int
    distinct: int
    cut: int
    width: int


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
        self._block: Array = np.empty((0, 1), dtype=np.float32)
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
                if len(self._block):
                    self._write(np.arange(len(self._block)), self._block)
                    self._block = self._block[:0].copy()
                self._write(places, vectors)
            except OSError as error:
                raise ModelError(
                    f"cannot write temporary files in {tempfile.gettempdir()}: "
                    f"{error.strerror or error}; TMPDIR names another folder"
                ) from None
            return
        if len(self._block) < self._count:
            grown = np.empty((self._count, self.width), dtype=np.float32)
            grown[: len(self._block)] = self._block
            self._block = grown
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
            if self._file.write(data) != len(data):  # As an unbuffered file does on a full disk.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def array(self) -> Array:
        """The rows, shape (N, D), float32; memory-mapped and read-only if they are in a file."""
        if self._file is None:
            return self._block
        shape = (self._file.seek(0, os.SEEK_END) - self._offset) // (4 * self.width), self.width
        rows: Array = np.memmap(self._file, dtype="<f4", mode="r", offset=self._offset, shape=shape)
        return rows


@pinned()
def encode_rows(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    sink: Rows,
    *,
    description: Mapping[str, Any] | None = None,
    **options: Unpack[EncodeOptions],
) -> Encoded:
    """Encode each distinct sentence of a stream once, and write row i for sentence i to a sink.

    The stream is read once, a chunk at a time. `description` is what `describe_encoder` gives, if
    that is known already.

    Raises:
        InputError: Something that is not text, or a vector that is not finite; the message names
            the sentence.
        ModelError: A process that encodes has ended before its work; the message names it.
    """
    corpus = CorpusEncoder(encoder, description=description, **options)
    return _write_rows(corpus, sentences, sink)


def _write_rows(corpus: CorpusEncoder, sentences: Iterable[str], sink: Rows) -> Encoded:
    """Write a row for every sentence, of which a hash and a row number stay in memory."""
    known = SentenceIndex()
    count = cut = 0
    for texts in _chunks(as_sentences(sentences)):
        sink.extend(len(texts))
        chunk = Chunk(texts, count)
        digests = digests_of(chunk.distinct)
        earlier = known.find(digests)
        new, old = np.flatnonzero(earlier < 0), np.flatnonzero(earlier >= 0)
        known.add(digests[new], chunk.first[new])
        corpus.total = len(known)
        left = len(new)
        parts = corpus.each(chunk.groups(corpus.group_size, new))
        for group, places, vectors in chunk.finite(parts):
            rows, which = chunk.places(group.numbers[places])
            sink.put(rows, vectors[which])
            left -= len(places)
        if left:  # A row that nobody wrote would be a vector of zeros.
            raise RuntimeError(f"{left} of {len(new)} rows were not written")
        for start in range(0, len(old), WRITTEN_ROWS):
            some = old[start : start + WRITTEN_ROWS]
            rows, which = chunk.places(some)
            sink.put(rows, sink.array()[earlier[some]][which])
        log.info("%d sentences, %d of them new", len(texts), len(new))
        cut += count_cut_of(corpus.bare, [chunk.distinct[n] for n in new.tolist()])
        count += len(texts)
    log.info("%d sentences encoded in %s", count, corpus.precision)
    return Encoded(rows=count, distinct=len(known), cut=cut, width=sink.width)


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


@pinned()
def encode_file(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    output: str | Path,
    **options: Unpack[EncodeOptions],
) -> Encoded:
    """Encode sentences to a .npy file, row i for sentence i, in memory that does not grow with it.

    Vectors that are not in the cache are kept in a folder beside the file until it is whole, which
    takes its room once more. So the same call after a kill goes on to the same bits. The file is
    then the new one whole, or still the old one.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
        ModelError: The file cannot be written, another process is writing it, or one of those that
            encode has ended before its work.
    """
    output = Path(output)
    check_writable(output, rows=True)
    # Before unfinished work is opened: an InputError would clear it.
    corpus = CorpusEncoder(encoder, **options)
    with writing(output), part_folder(output) as folder:
        with suppress(OSError):  # Not every file system has permissions.
            folder.chmod(0o700)  # The output may be private.
        corpus.go_on_from(folder)
        try:
            with placed(output) as staging, _NpyFile(staging) as sink:
                encoded = _write_rows(corpus, sentences, sink)
                if not encoded.rows:
                    raise InputError("there is no sentence to encode")
                sink.complete(encoded.rows)
        except InputError:  # It would come again.
            clear_part(folder)
            raise
        except OSError as error:
            remedy = ""
            if any(folder.glob("*.npz")):
                remedy = f"; what is done is kept in {folder}, and the same command goes on from it"
            raise ModelError(f"cannot write {output}: {reason_of(error)}{remedy}") from None
        clear_part(folder)
    return encoded


class _NpyFile(Rows):
    """Rows in a .npy file, whose header is written when all of them are there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file, self._offset = path.open("w+b", buffering=0), HEADER

    def put(self, places: Array, vectors: Array) -> None:
        self.width = vectors.shape[1]
        self._write(places, vectors)

    def complete(self, count: int) -> None:
        """Write the header of so many rows, and wait until all is on the disk."""
        assert self._file is not None
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, self.width)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, about)
        assert self._file.tell() == HEADER
        os.fsync(self._file.fileno())
