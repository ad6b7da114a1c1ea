"""Vectors on disk: the row of each sentence, found by a hash of 16 bytes."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from bertflow.arrays import Array
from bertflow.errors import InputError, ModelError
from bertflow.io.files import write_text
from bertflow.io.json import parse_json

FORMAT = 1
DIGEST = 16
ABOUT, VECTORS, SENTENCES, LOCK = "about.json", "vectors.f32", "sentences", ".lock"


def digests_of(sentences: Iterable[str]) -> Array:
    """The hash of each sentence, shape (N,), as bytes of type S16.

    Example:
        >>> digests_of(["a", "b", "a"]).dtype, len(set(digests_of(["a", "b", "a"]).tolist()))
        (dtype('S16'), 2)
    """
    joined = b"".join(
        hashlib.blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
        for sentence in sentences
    )
    return np.frombuffer(joined, dtype=f"S{DIGEST}")


class SentenceIndex:
    """A row number for each hash: 24 bytes a sentence.

    Example:
        >>> index = SentenceIndex()
        >>> index.add(digests_of(["a", "b"]), np.array([0, 1]))
        >>> index.find(digests_of(["b", "c", "a"])).tolist(), len(index)
        ([1, -1, 0], 2)
    """

    def __init__(self) -> None:
        self._digests = np.empty(0, dtype=f"S{DIGEST}")
        self._rows = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, digests: Array) -> Array:
        """The row of each hash, shape (N,); -1 where there is none."""
        if not len(self):
            return np.full(len(digests), -1, dtype=np.int64)
        place = np.searchsorted(self._digests, digests).clip(max=len(self) - 1)
        return np.where(self._digests[place] == digests, self._rows[place], -1)

    def first(self, count: int) -> Array:
        """The lowest rows, at most so many, in order."""
        return np.sort(self._rows)[:count]

    def add(self, digests: Array, rows: Array) -> None:
        """Take in hashes and their rows; one that is there already keeps the row it has."""
        fresh = self.find(digests) < 0
        added, first = np.unique(digests[fresh], return_index=True)
        place = np.searchsorted(self._digests, added)
        self._digests = np.insert(self._digests, place, added)
        self._rows = np.insert(self._rows, place, rows[fresh][first])


class VectorCache:
    """An encoder's vectors of distinct sentences: a file that only grows, and is memory-mapped.

    Rows are written before the sentences they belong to, so that each sentence that is there has
    its row, wherever a process is killed. Several processes may write at the same time.

    Args:
        folder: Made with the first vector that is added.
        about: What the vectors depend on; kept beside them and compared.

    Raises:
        ModelError: The folder holds vectors that depend on something else, or is damaged.

    Example:
        >>> import numpy as np, tempfile
        >>> cache = VectorCache(tempfile.mkdtemp(), {"encoder": "none"})
        >>> cache.add(["a", "b"], np.eye(2, dtype=np.float32))
        >>> cache.missing(["b", "c", "c"]), cache.vectors()[cache.rows(["b"])].tolist()
        (['c'], [[0.0, 1.0]])
    """

    def __init__(self, folder: str | Path, about: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.about = {"format": FORMAT, **about}
        self._index = SentenceIndex()
        self._count = 0
        self._width: int | None = None
        # A random mark of the folder: one that was removed and made again has another.
        self._made: str | None = None
        self._mapped: Array | None = None
        try:
            self._refresh()
        except OSError as error:
            raise ModelError(f"cannot use {self.folder}: {error.strerror or error}") from None

    def __len__(self) -> int:
        return self._count

    @property
    def width(self) -> int | None:
        """How many dimensions the vectors have; None while there is none."""
        return self._width

    def missing(self, sentences: Sequence[str]) -> list[str]:
        """Those that have no vector yet, each once, in order."""
        distinct = list(dict.fromkeys(sentences))
        rows = self.find(distinct)
        return [sentence for sentence, row in zip(distinct, rows.tolist(), strict=True) if row < 0]

    def find(self, sentences: Sequence[str]) -> Array:
        """Where in `vectors` each sentence is, shape (N,); -1 where it has no vector."""
        return self._index.find(digests_of(sentences))

    def rows(self, sentences: Sequence[str]) -> Array:
        """Where in `vectors` each sentence is, shape (N,).

        Raises:
            InputError: One has no vector.
        """
        rows = self.find(sentences)
        if len(rows) and rows.min() < 0:
            lost = sentences[int(rows.argmin())]
            raise InputError(f"{self.folder} has no vector of {lost[:80]!r}")
        return rows

    def take(self, sentences: Sequence[str]) -> tuple[Array, Array | None]:
        """The vectors that are there.

        Args:
            sentences: Distinct.

        Returns:
            Which have one, shape (N,), and their vectors in order, shape (found, D), or None.
        """
        rows = self.find(sentences)
        there = rows >= 0
        if not there.any():
            return there, None
        vectors = np.array(self.vectors()[rows[there]])
        # Only finite vectors are added: one that is not has been damaged.
        good = np.isfinite(vectors).all(axis=1)
        there[there] = good
        return there, vectors[good] if good.any() else None

    def vectors(self) -> Array:
        """All vectors, shape (sentences, D), float32, memory-mapped and read-only.

        Raises:
            InputError: There is none yet.
        """
        if self._width is None or not len(self):
            raise InputError(f"{self.folder} holds no vector yet")
        # Mapped again only when it has grown: what was mapped outlives the folder.
        if self._mapped is None or len(self._mapped) != len(self):
            shape = (len(self), self._width)
            self._mapped = np.memmap(self.folder / VECTORS, dtype="<f4", mode="r", shape=shape)
        return self._mapped

    def add(self, sentences: Sequence[str], vectors: Array) -> None:
        """Append vectors; sentences that are there already are left out.

        Args:
            sentences: Distinct.
            vectors: Of each, shape (N, D).

        Raises:
            ModelError: It cannot be written, the width is another, or the folder has been removed.
        """
        width = vectors.shape[1]
        try:
            with FileLock(self.folder / LOCK):  # It makes the folder.
                self._refresh()
                if self._width not in (None, width):
                    raise ModelError(
                        f"{self.folder} holds vectors of {self._width} dimensions, not {width}"
                    )
                if self._width is None:
                    self._width, self._made = width, uuid.uuid4().hex
                    content = {**self.about, "width": width, "made": self._made}
                    write_text(self.folder / ABOUT, json.dumps(content, indent=2) + "\n")
                digests = digests_of(sentences)
                fresh = self._index.find(digests) < 0
                rows = np.ascontiguousarray(vectors[fresh], dtype="<f4")
                _write_at(self.folder / VECTORS, 4 * width * len(self), rows.tobytes())
                _write_at(self.folder / SENTENCES, DIGEST * len(self), digests[fresh].tobytes())
                self._remember(digests[fresh])
        except OSError as error:
            raise ModelError(f"cannot write {self.folder}: {error.strerror or error}") from None

    def _refresh(self) -> None:
        """Read what other processes have added."""
        made, count = self._made, 0
        if (self.folder / ABOUT).is_file():
            self._width, made = self._read_about()
            sizes = [_size(self.folder / SENTENCES), _size(self.folder / VECTORS)]
            count = min(sizes[0] // DIGEST, sizes[1] // (4 * self._width))
        if count < self._count or (self._count and made != self._made):
            raise ModelError(f"{self.folder} was removed or cut short while it was in use")
        self._made = made
        if count > self._count:
            with (self.folder / SENTENCES).open("rb") as file:
                file.seek(DIGEST * self._count)
                added = file.read(DIGEST * (count - self._count))
            self._remember(np.frombuffer(added, dtype=f"S{DIGEST}"))

    def _read_about(self) -> tuple[int, str | None]:
        """The width and the mark of the folder, whose description must be that of this cache."""
        path = self.folder / ABOUT
        try:
            about = parse_json(path.read_text(encoding="utf-8"))
            width, made = int(about.pop("width")), about.pop("made", None)
            if width < 1:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{path} is damaged; remove {self.folder}") from None
        if about != json.loads(json.dumps(self.about)):
            raise ModelError(f"{self.folder} holds vectors of another encoder; remove it")
        return width, made

    def _remember(self, digests: Array) -> None:
        self._index.add(digests, np.arange(len(self), len(self) + len(digests)))
        self._count += len(digests)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _write_at(path: Path, place: int, data: bytes) -> None:
    """Write at a place, where the file ends then, and wait until it is on the disk."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        if place + len(data) < file.seek(0, os.SEEK_END):
            file.truncate(place)
        file.seek(place)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
