"""Vectors on disk: each sentence is encoded once, whatever stops the process."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from sentence_transformers import SentenceTransformer

from bertflow.arrays import Array
from bertflow.encoders.digests import DIGEST, SentenceIndex, digests_of
from bertflow.encoders.embedding import (
    CHUNK_SENTENCES,
    counted,
    encode_groups,
    first_not_finite,
    longest_first,
    not_finite,
)
from bertflow.encoders.encoder import check_text
from bertflow.encoders.encoding import Encoding, Group
from bertflow.errors import InputError, ModelError
from bertflow.io.files import write_text
from bertflow.io.json import parse_json
from bertflow.process_state import pinned

Progress = Callable[[int, int], None]

FORMAT = 1
COUNT = 8


class VectorCache:
    """An encoder's vectors of distinct sentences: a file that only grows, and is memory-mapped.

    Rows are written first, then the sentences they belong to, then how many there are, so that a
    process that is killed leaves a call of `add` whole or not at all: what is not counted is
    overwritten by the next one. Several processes may write at the same time.

    Args:
        folder: Made if it is not there.
        about: What the vectors depend on; kept beside them and compared.
        read_only: Read what is there, and write nothing: no folder, no lock.

    Raises:
        ModelError: The folder holds vectors that depend on something else, or is damaged.

    Example:
        >>> import numpy as np, tempfile
        >>> cache = VectorCache(tempfile.mkdtemp(), {"encoder": "none"})
        >>> cache.add(["a", "b"], np.eye(2, dtype=np.float32))
        >>> cache.missing(["b", "c", "c"]), cache.vectors()[cache.rows(["b"])].tolist()
        (['c'], [[0.0, 1.0]])
    """

    def __init__(
        self, folder: str | Path, about: dict[str, Any], *, read_only: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.about = {"format": FORMAT, **about}
        self._index = SentenceIndex()
        self._count = 0
        self._width: int | None = None
        self._made: str | None = None
        self._mapped: Array | None = None
        try:
            if read_only:
                # What is counted is whole, whoever is writing: rows come before their count.
                self._refresh()
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
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
            path = self.folder / "vectors.f32"
            self._mapped = np.memmap(path, dtype="<f4", mode="r", shape=shape)
        return self._mapped

    def add(self, sentences: Sequence[str], vectors: Array) -> None:
        """Append vectors; sentences that are there already are left out.

        Args:
            sentences: Distinct.
            vectors: Of each, shape (N, D).

        Raises:
            ModelError: It cannot be written, the width is another, or the folder has been removed.
        """
        try:
            with self._locked():
                self._refresh()
                digests = digests_of(sentences)
                fresh = self._index.find(digests) < 0
                if self._width not in (None, vectors.shape[1]):
                    raise ModelError(
                        f"{self.folder} holds vectors of {self._width} dimensions, "
                        f"not {vectors.shape[1]}"
                    )
                if self._width is None:
                    self._width, self._made = vectors.shape[1], uuid.uuid4().hex
                    content = {**self.about, "width": self._width, "made": self._made}
                    write_text(self.folder / "about.json", json.dumps(content, indent=2) + "\n")
                rows = np.ascontiguousarray(vectors[fresh], dtype="<f4")
                _write_at(self.folder / "vectors.f32", 4 * self._width * len(self), rows.tobytes())
                _write_at(self.folder / "sentences", DIGEST * len(self), digests[fresh].tobytes())
                count = len(self) + len(rows)
                _write_at(self.folder / "count", 0, count.to_bytes(COUNT, "little"))
                self._remember(digests[fresh])
        except OSError as error:
            raise ModelError(f"cannot write {self.folder}: {error.strerror or error}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with FileLock(self.folder / ".lock"):
            yield

    def _refresh(self) -> None:
        """Read what is there, also what other processes have added since."""
        about = self.folder / "about.json"
        if not about.is_file():
            self._check_size(0, 0)
            return
        try:
            found = parse_json(about.read_text(encoding="utf-8"))
            self._width = int(found.pop("width"))
            made = found.pop("made", None)
            if self._width < 1:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{about} is damaged; remove {self.folder}") from None
        if found != json.loads(json.dumps(self.about)):
            raise ModelError(f"{self.folder} holds vectors of another encoder; remove it")
        if self._count and made != self._made:
            raise ModelError(f"{self.folder} was removed and made anew while it was in use")
        self._made = made
        names, vectors = self.folder / "sentences", self.folder / "vectors.f32"
        if not names.is_file() or not vectors.is_file():
            self._check_size(0, 0)
            return
        with names.open("rb") as file:
            known = file.seek(0, os.SEEK_END) // DIGEST
            self._check_size(known, vectors.stat().st_size // (4 * self._width))
            file.seek(DIGEST * len(self))
            added = file.read()
        whole = min(known, vectors.stat().st_size // (4 * self._width))
        with suppress(OSError):  # Those that were made before it was written have none.
            noted = (self.folder / "count").read_bytes()
            whole = min(whole, int.from_bytes(noted, "little")) if len(noted) == COUNT else whole
        count = max(whole - len(self), 0)
        self._remember(np.frombuffer(added, dtype=f"S{DIGEST}", count=count))

    def _check_size(self, sentences: int, vectors: int) -> None:
        """Refuse to go on with less than there was: it would be taken for what it is not."""
        if min(sentences, vectors) < self._count:
            raise ModelError(f"{self.folder} was removed or cut short while it was in use")

    def _remember(self, digests: Array) -> None:
        self._index.add(digests, np.arange(len(self), len(self) + len(digests)))
        self._count += len(digests)


@pinned()
def fill(
    caches: Sequence[VectorCache],
    sentences: Sequence[str],
    encoder: Callable[[], SentenceTransformer],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> None:
    """Encode what any of the caches lacks, and keep it every few seconds.

    Args:
        caches: One for each pooling of the encoder.
        sentences: Text, repeats allowed.
        encoder: Gives it; called only if something is lacking. Its vectors are those of the
            caches side by side.
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
    # In the order of the sentences, whatever some of the caches have: batches are then the same.
    distinct = longest_first(dict.fromkeys(sentences))

    def groups() -> Iterator[Group]:
        for start in range(0, len(distinct), CHUNK_SENTENCES):
            group = Group(distinct[start : start + CHUNK_SENTENCES])
            group.lacking = np.flatnonzero([text in missing for text in group.sentences])
            yield group

    def put(group: Group, rows: Array, vectors: Array) -> None:
        texts = group.texts(rows)
        if (bad := first_not_finite(vectors)) is not None:
            raise not_finite(list(sentences).index(texts[bad]), texts[bad])
        for cache, part in zip(caches, np.split(vectors, len(caches), axis=1), strict=True):
            cache.add(texts, part)

    encode = Encoding(encoder(), batch_size=batch_size)
    encode_groups(encode, groups(), None, put, counted(progress, lambda: len(missing)))


def _write_at(path: Path, place: int, data: bytes) -> None:
    """Write at a place, where the file ends then, and wait until it is on the disk."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        if place + len(data) < file.seek(0, os.SEEK_END):
            file.truncate(place)
        file.seek(place)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
