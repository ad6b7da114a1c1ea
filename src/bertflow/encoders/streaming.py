"""From a stream of sentences to rows: what is held does not grow with it, but for some bytes each.

A corpus is read a chunk at a time. Of each sentence a hash and a row number are kept, so that one
that comes again is not encoded again; rows go to memory while they are few, and to a file then.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.digests import SentenceIndex, digests_of
from bertflow.encoders.embedding import (
    count_cut_of,
    counted,
    encode_groups,
    first_not_finite,
    group_size,
    halves,
    longest_first,
    not_finite,
    opened,
    when_whole,
)
from bertflow.encoders.encoder import as_sentences, check_text
from bertflow.encoders.encoding import Group, Precision, own_part, resolved_precision
from bertflow.encoders.fingerprint import describe_encoder
from bertflow.encoders.processes import group_encoder
from bertflow.encoders.sentence_cache import SentenceCache, describe_vectors
from bertflow.errors import InputError, ModelError
from bertflow.io.files import check_writable, followed, keep_permissions, write_text
from bertflow.io.json import parse_json
from bertflow.io.outputs import clear_part, part_folder, part_path
from bertflow.process_state import pinned

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

# What is read at a time, and sorted by length: so many sentences or so much text. What fits in
# memory, of 256 dimensions and more, is one chunk.
STREAM_SENTENCES = 2**18
STREAM_CHARACTERS = 2**26
# Rows of more bytes than this go to a file.
IN_MEMORY = 2**28
WRITTEN_ROWS = 4096
FIRST = 512
HEADER = 128
FORMAT = 2
CHECK = 16
PARTS = "parts"


@dataclass(frozen=True)
class Encoded:
    """What became of a stream of sentences.

    Attributes:
        rows: How many sentences there were, repeats included.
        distinct: How many distinct ones.
        cut: How many of the distinct ones were longer than the encoder's limit.
        width: Of the vectors, 0 without sentences.
        first: The rows of the first distinct sentences, at most `FIRST`.
    """

    rows: int
    distinct: int
    cut: int
    width: int
    first: Array


class Sink(Protocol):
    """Where rows go: in any order, each at its place."""

    def extend(self, count: int) -> None:
        """Make room for so many more."""

    def put(self, places: Array, vectors: Array) -> None:
        """Write vectors (n, D) at row numbers (n,)."""

    def get(self, places: Array) -> Array:
        """Read the vectors at row numbers."""

    def found(self, sentences: Array, places: Array) -> tuple[Array, Array]:
        """What was there before of a group, given by its hashes and places.

        Returns:
            Numbers of sentences, shape (n,), and their vectors, shape (n, D).
        """

    def note(self, sentences: Array, rows: Array, vectors: Array) -> None:
        """Say that of a group with these hashes these sentences are there."""


@pinned()
def encode_rows(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    sink: Sink,
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
        sink: Where row i of sentence i goes.
        batch_size: Sentences a forward pass.
        cache: Where vectors are taken from and kept; None encodes all of them.
        precision: What the encoder computes in, see `resolved_precision`.
        devices: Of the processes that encode, see `DevicesEncoding`; None encodes in this one.
        description: What `describe_encoder` gives, if that is known already.
        progress: Called with the distinct sentences done, and how many are known so far.

    Raises:
        InputError: Something that is not text, or a vector that is not finite; the message names
            the sentence.
        ModelError: A process that encodes has ended before its work; the message names it.
    """
    sentences = as_sentences(sentences)
    known = SentenceIndex()
    rows = cut = width = 0
    kind = resolved_precision(precision, encoder)
    bare, calibrated = halves(encoder)
    size = group_size(bare)
    if cache is None:  # Then each batch is calibrated at once, and a kill does not cost a group.
        bare, calibrated = encoder, None
    encode = group_encoder(bare, devices, batch_size=batch_size, precision=kind)
    told = counted(progress, lambda: len(known))

    def write(group: _Group, rows: Array, vectors: Array) -> None:
        nonlocal width
        width = vectors.shape[1]
        where, which = group.spread.of(group.members[rows])
        sink.put(where, vectors[which])

    def put(group: _Group, rows: Array, vectors: Array) -> None:
        if (bad := first_not_finite(vectors)) is not None:
            raise not_finite(int(group.places[rows[bad]]), group.sentences[rows[bad]])
        write(group, rows, vectors)
        sink.note(group.hashes, rows, vectors)

    def lacking(groups: Iterable[_Group]) -> Iterator[_Group]:
        for group in groups:
            there, vectors = sink.found(group.hashes, group.places)
            if len(there):
                write(group, there, vectors)
                # They are the model's, which are its encoder's unless it is calibrated.
                if kept is not None and bare is encoder:
                    kept.add(group.texts(there), vectors)
                group.lacking = np.setdiff1d(group.lacking, there)
                told(len(there))
            yield group

    with opened(cache, bare, kind, description if bare is encoder else None) as kept:
        for chunk in _chunks(sentences):
            check_text(chunk, rows)
            sink.extend(len(chunk))
            local: dict[str, int] = {}
            index = np.fromiter((local.setdefault(s, len(local)) for s in chunk), dtype=np.int64)
            digests = digests_of(local)
            seen = known.find(digests)
            first = np.zeros(len(local), dtype=np.int64)
            first[index[::-1]] = np.arange(len(chunk))[::-1]
            fresh = seen < 0
            known.add(digests[fresh], rows + first[fresh])
            spread = _Places(index, rows, len(local))
            new = longest_first(s for s, one in zip(local, fresh.tolist(), strict=True) if one)
            groups = _grouped(new, local, digests, rows + first, size, spread)
            # The rows before the cache: what is stopped in between goes on with these bits.
            encode_groups(encode, lacking(groups), kept, when_whole(calibrated, put), told)
            _repeat(sink, spread, np.flatnonzero(~fresh), seen)
            log.info("%d sentences, %d of them new", len(chunk), len(new))
            cut += count_cut_of(encoder, new)
            rows += len(chunk)
    log.info("%d sentences encoded in %s", rows, kind)
    return Encoded(rows=rows, distinct=len(known), cut=cut, width=width, first=known.first(FIRST))


def _repeat(sink: Sink, spread: _Places, members: Array, seen: Array) -> None:
    """Copy the rows of sentences that came in an earlier chunk."""
    for start in range(0, len(members), WRITTEN_ROWS):
        some = members[start : start + WRITTEN_ROWS]
        where, which = spread.of(some)
        sink.put(where, sink.get(seen[some])[which])


class _Group(Group):
    """Sentences of about one length.

    Attributes:
        members: Which of the chunk's distinct sentences they are.
        hashes: Of each.
        places: The first row of each.
        spread: Where each is.
    """

    def __init__(
        self,
        sentences: Sequence[str],
        members: Array,
        hashes: Array,
        places: Array,
        spread: _Places,
    ) -> None:
        super().__init__(sentences)
        self.members, self.hashes, self.places, self.spread = members, hashes, places, spread


def _grouped(
    new: Sequence[str],
    local: Mapping[str, int],
    digests: Array,
    places: Array,
    size: int,
    spread: _Places,
) -> Iterator[_Group]:
    """The new sentences of a chunk in groups."""
    for start in range(0, len(new), size):
        sentences = new[start : start + size]
        members = np.array([local[sentence] for sentence in sentences])
        yield _Group(sentences, members, digests[members], places[members], spread)


class _Places:
    """Where in a chunk each of its distinct sentences is, repeats included."""

    def __init__(self, index: Array, start: int, count: int) -> None:
        self._order = np.argsort(index, kind="stable")
        self._ends = np.cumsum(np.bincount(index, minlength=count))
        self._start = start

    def of(self, members: Array) -> tuple[Array, Array]:
        """The places of some distinct sentences, and which of these each place has."""
        ends = self._ends[members]
        begins = np.where(members > 0, self._ends[members - 1], 0)
        counts = ends - begins
        which = np.repeat(np.arange(len(members)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._start + self._order[np.repeat(begins, counts) + within], which


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


class Rows:
    """Rows to fit on: in memory while they are few, in a temporary file when they are not.

    The file has no name beyond its creation, so that it goes with the process whatever ends that.

    Example:
        >>> with Rows() as rows:
        ...     rows.extend(2)
        ...     rows.put(np.array([1, 0]), np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32))
        ...     rows.array().tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """

    def __init__(self) -> None:
        self._count = 0
        self._block: Array | None = None
        self._file: _RowFile | None = None

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._file is not None:
            self._file.file.close()

    def extend(self, count: int) -> None:
        """Make room for so many more."""
        self._count += count

    def put(self, places: Array, vectors: Array) -> None:
        """Write vectors (n, D) at row numbers (n,).

        Raises:
            ModelError: The temporary file cannot be written.
        """
        if self._file is None and self._count * vectors.shape[1] * 4 > IN_MEMORY:
            with _temporary():
                self._file = _RowFile(tempfile.TemporaryFile(buffering=0), vectors.shape[1], 0)
                if self._block is not None:
                    self._file.put(np.arange(len(self._block)), self._block)
                    self._block = None
        if self._file is not None:
            with _temporary():
                self._file.put(places, vectors)
            return
        if self._block is None:
            self._block = np.empty((self._count, vectors.shape[1]), dtype=np.float32)
        elif len(self._block) < self._count:
            more = np.empty((self._count - len(self._block), vectors.shape[1]), dtype=np.float32)
            self._block = np.concatenate([self._block, more])
        self._block[places] = vectors

    def get(self, places: Array) -> Array:
        """Read the vectors at row numbers."""
        return self.array()[places]

    def found(self, sentences: Array, places: Array) -> tuple[Array, Array]:
        """Nothing was there before."""
        return places[:0], places[:0]

    def note(self, sentences: Array, rows: Array, vectors: Array) -> None:
        """Nothing is to be found again."""

    def array(self) -> Array:
        """The rows, shape (N, D), float32; memory-mapped and read-only if they are in a file."""
        if self._file is not None:
            return self._file.array()
        assert self._block is not None
        return self._block


class _RowFile:
    """Rows of float32 in a file, from an offset on."""

    def __init__(self, file: IO[bytes], width: int, offset: int) -> None:
        self.file, self.width, self.offset = file, width, offset

    def put(self, places: Array, vectors: Array) -> None:
        # Runs of neighbours are written at once; a memory map would count as memory, and where the
        # disk is full end the process.
        order = np.argsort(places)
        places, rows = places[order], np.ascontiguousarray(vectors[order], dtype="<f4")
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=True):
            self.file.seek(self.offset + 4 * self.width * int(places[start]))
            data = rows[start:stop].tobytes()
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def array(self) -> Array:
        end = self.file.seek(0, os.SEEK_END)
        shape = (max(0, end - self.offset) // (4 * self.width), self.width)
        if not shape[0]:
            return np.empty(shape, dtype=np.float32)
        rows: Array = np.memmap(self.file, dtype="<f4", mode="r", offset=self.offset, shape=shape)
        return rows


@contextmanager
def _temporary() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write temporary files in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; TMPDIR names another folder"
        ) from None


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

    What is done lies in a folder beside the file, and the same call after a kill goes on there: it
    reads the sentences again, compares each group of them and its rows with what was noted, and
    encodes what is lacking. The file is then what it would have been, bit by bit.

    Args:
        encoder: Any SentenceTransformer.
        sentences: Text, repeats allowed; read once, a chunk at a time.
        output: The .npy file, which is then the new one whole, or still the old one.
        batch_size: Sentences a forward pass.
        cache: Where vectors are taken from and kept; None encodes all of them.
        precision: What the encoder computes in, see `resolved_precision`.
        devices: Of the processes that encode, see `DevicesEncoding`; None encodes in this one.
        progress: Called with the distinct sentences done, and how many are known so far.

    Returns:
        What was written.

    Raises:
        InputError: No sentence, something that is not text, or a vector that is not finite; the
            message names the sentence.
        ModelError: The file cannot be written, another process is writing it, or one of those that
            encode has ended before its work.
    """
    output = Path(output)
    check_writable(output, rows=True)
    description = describe_encoder(encoder)
    try:
        about = _described(encoder, resolved_precision(precision, encoder), description)
        with _PartialFile(output, about, batch_size, group_size(halves(encoder)[0])) as sink:
            found = encode_rows(
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
            if not found.rows:
                raise InputError("there is no sentence to encode")
            sink.complete(found)
    except OSError as error:
        raise ModelError(
            f"cannot write {output}: {error.strerror or error}{_kept(part_path(output))}"
        ) from None
    return found


def _kept(folder: Path) -> str:
    """What a message adds where something is there to go on from."""
    noted = folder / PARTS
    if not noted.exists() or not noted.stat().st_size:
        return ""
    return f"; what is done is kept in {folder}, and the same command goes on from it"


class _PartialFile:
    """The file to be, in a folder beside it, and a note of every part of a group that is there.

    A note is a hash of the group's sentences, one of the part, and a bit for each sentence of the
    group: whether it is in the part. The part's hash is of these bits and its rows. So a note holds
    without waiting for the disk, and for whatever has become of the corpus or the file since.
    """

    def __init__(self, output: Path, encoder: dict[str, Any], batch_size: int, group: int) -> None:
        self.output = followed(output)
        self.folder = part_path(output)
        self.about = {"format": FORMAT, "vectors": encoder, "batch_size": batch_size}
        self.group = group
        self._rows: _RowFile | None = None
        # What follows the hash of its sentences, for each.
        self._notes: dict[bytes, list[bytes]] = {}
        self._count, self._size = 0, 2 * CHECK + -(-group // 8)
        self._noted: IO[bytes] | None = None
        self._ours = False
        self._held = ExitStack()

    def __enter__(self) -> _PartialFile:
        if self.folder.exists():
            self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._held:
            self._close()
            # What the corpus or encoder is to blame for would end the same way again.
            if self._ours and (kind is None or issubclass(kind, InputError)):
                clear_part(self.folder)

    def _close(self) -> None:
        for file in (self._noted, None if self._rows is None else self._rows.file):
            if file is not None:
                file.close()

    def extend(self, count: int) -> None:
        """Room is made by writing."""

    def put(self, places: Array, vectors: Array) -> None:
        """Write vectors (n, D) at row numbers (n,)."""
        self._file(vectors.shape[1]).put(places, vectors)

    def get(self, places: Array) -> Array:
        """Read the vectors at row numbers."""
        assert self._rows is not None
        return np.array(self._rows.array()[places])

    def found(self, sentences: Array, places: Array) -> tuple[Array, Array]:
        """What is there of a group."""
        if self._rows is None:
            return places[:0], places[:0]
        rows = self._rows.array()
        there = np.zeros(len(sentences), dtype=bool)
        for note in self._notes.get(_hash(sentences), ()):
            check, bits = note[:CHECK], note[CHECK:]
            part = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[: len(there)])
            if len(part) and places[part].max() < len(rows):
                there[part] |= _hash(bits, rows[places[part]]) == check
        return np.flatnonzero(there), np.array(rows[places[there]])

    def note(self, sentences: Array, rows: Array, vectors: Array) -> None:
        """Note that a part of a group is there."""
        assert self._noted is not None
        there = np.zeros(8 * (self._size - 2 * CHECK), dtype=bool)
        there[rows] = True
        bits = np.packbits(there).tobytes()
        check = _hash(bits, vectors[np.argsort(rows)].astype("<f4", copy=False))
        # At once, so that a part is there whole or not at all.
        self._noted.seek(self._size * self._count)
        self._noted.write(_hash(sentences) + check + bits)
        self._count += 1

    def complete(self, found: Encoded) -> None:
        """Put the file in its place."""
        rows = self._file(found.width)
        rows.file.truncate(HEADER + 4 * found.width * found.rows)
        rows.file.seek(0)
        rows.file.write(_header((found.rows, found.width)))
        os.fsync(rows.file.fileno())
        (self.folder / "rows.npy").replace(self.output)

    def _open(self) -> None:
        """Take possession of the folder, and of what is in it if it belongs to the same work."""
        self._held.enter_context(part_folder(self.output))
        self._ours = True
        noted = b""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = parse_json((self.folder / "about.json").read_text(encoding="utf-8"))
            width = int(found.pop("width"))
            rows = self.folder / "rows.npy"
            # Without a row of that width there is nothing to go on from.
            there = 0 < 4 * width <= rows.stat().st_size - HEADER
            if there and found == json.loads(json.dumps({**self.about, "group": self.group})):
                noted = (self.folder / PARTS).read_bytes()
                self._rows = _RowFile(rows.open("r+b", buffering=0), width, HEADER)
        if self._rows is not None:
            self._count = len(noted) // self._size
            for start in range(0, self._count * self._size, self._size):
                note = noted[start : start + self._size]
                self._notes.setdefault(note[:CHECK], []).append(note[CHECK:])
            self._noted = (self.folder / PARTS).open("r+b", buffering=0)

    def _file(self, width: int) -> _RowFile:
        """The file of the rows, made with the first of them."""
        if self._rows is None and not self._ours:
            self._open()
        if self._rows is not None and self._rows.width != width:
            self._close()
            self._rows = None  # What was noted is of no such rows.
        if self._rows is None:
            about = {**self.about, "group": self.group, "width": width}
            self._notes, self._count = {}, 0
            self._noted = (self.folder / PARTS).open("w+b", buffering=0)
            write_text(self.folder / "about.json", json.dumps(about, indent=2) + "\n")
            file = (self.folder / "rows.npy").open("w+b", buffering=0)
            keep_permissions(self.output, self.folder / "rows.npy")
            file.write(bytes(HEADER))
            self._rows = _RowFile(file, width, HEADER)
        return self._rows


def _described(
    encoder: SentenceTransformer, precision: str, description: Mapping[str, Any]
) -> dict[str, Any]:
    if own_part(encoder) is None:
        with suppress(InputError):
            return describe_vectors(encoder, precision, description)
    return {"unlike any other": uuid.uuid4().hex}  # What is stopped starts again.


def _hash(*parts: bytes | Array) -> bytes:
    found = hashlib.blake2b(digest_size=CHECK)
    for part in parts:
        found.update(part if isinstance(part, bytes) else part.tobytes())
    return found.digest()


def _header(shape: Sequence[int]) -> bytes:
    """The beginning of a .npy file, as numpy writes it."""
    out = io.BytesIO()
    description = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(out, description)
    header = out.getvalue()
    assert len(header) == HEADER
    return header
