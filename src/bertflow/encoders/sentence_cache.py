"""Vectors on disk: files of an encoder's that only grow, the user's cache, unfinished work."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from filelock import FileLock

from bertflow.arrays import Array
from bertflow.encoders.encoding import NOTHING, Group
from bertflow.errors import InputError, ModelError, shown
from bertflow.io.files import remove_stale, write_text, writing
from bertflow.io.reading import parse_json
from bertflow.io.result_store import ResultStore, key_of

FORMAT = 1
DIGEST = 16
ABOUT, VECTORS, SENTENCES, LOCK = "about.json", "vectors.f32", "sentences", ".lock"
FOLDER_VARIABLE, SIZE_VARIABLE = "BERTFLOW_CACHE", "BERTFLOW_CACHE_SIZE"
DEFAULT_SIZE = "10GB"
# The part for results. A comparison of all methods on all tasks has some 20 MB.
RESULTS_PART, RESULTS_SIZE = 20, 200 * 10**6
KEY_LENGTH = 32
KEY = "[0-9a-f]" * KEY_LENGTH
GGUF = rf"{KEY}\.safetensors"
# Earlier versions wrote the last two.
FILES = (ABOUT, VECTORS, SENTENCES, LOCK, "count", ".in-use")
UNITS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}

log = logging.getLogger(__name__)


def digests_of(sentences: Iterable[str]) -> Array:
    """The hash of each sentence, shape (N,), as bytes of type S16."""
    joined = b"".join(
        hashlib.blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()
        for sentence in sentences
    )
    return np.frombuffer(joined, dtype=f"S{DIGEST}")


class SentenceIndex:
    """A row number for each hash: 24 bytes a sentence."""

    def __init__(self) -> None:
        # Blocks of sorted hashes and their rows. Each is at least twice as large as the next, so
        # that adding rarely copies all.
        self._blocks: list[tuple[Array, Array]] = []

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._blocks)

    def find(self, digests: Array) -> Array:
        """The row of each hash, shape (N,); -1 where there is none."""
        found = np.full(len(digests), -1, dtype=np.int64)
        for known, rows in self._blocks:
            place = np.searchsorted(known, digests).clip(max=len(known) - 1)
            found = np.where(known[place] == digests, rows[place], found)
        return found

    def add(self, digests: Array, rows: Array) -> None:
        """Add hashes and their rows; one that is there already keeps its row."""
        fresh = self.find(digests) < 0
        added, first = np.unique(digests[fresh], return_index=True)
        if not len(added):
            return
        rows = rows[fresh][first]
        while self._blocks and len(self._blocks[-1][0]) < 2 * len(added):
            known, known_rows = self._blocks.pop()
            place = np.searchsorted(known, added)
            added, rows = np.insert(known, place, added), np.insert(known_rows, place, rows)
        self._blocks.append((added, rows))


class VectorCache:
    """An encoder's vectors of distinct sentences: a file that only grows, and is memory-mapped.

    Rows are written before their sentences' hashes, so that a kill leaves no sentence without its
    row. Several processes may write at the same time.

    Args:
        folder: Made with the first vector that is added.
        about: All that the vectors depend on; kept beside them and compared.

    Attributes:
        width: Dimensions of the vectors; None while there is none.

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
        self.width: int | None = None
        # A random mark of the folder, to notice that it was removed and made again.
        self._made: str | None = None
        self._mapped: Array | None = None
        try:
            self._refresh()
        except OSError as error:
            raise ModelError(f"cannot use {self.folder}: {error.strerror or error}") from None

    def __len__(self) -> int:
        return self._count

    def missing(self, sentences: Sequence[str]) -> list[str]:
        """The sentences that have no vector yet, each once, in order."""
        distinct = list(dict.fromkeys(sentences))
        return [distinct[n] for n in np.flatnonzero(self.find(distinct) < 0).tolist()]

    def find(self, sentences: Sequence[str]) -> Array:
        """The row in `vectors` of each sentence, shape (N,); -1 if it has no vector."""
        return self._index.find(digests_of(sentences))

    def rows(self, sentences: Sequence[str]) -> Array:
        """As `find`, but an InputError names a sentence that has no vector."""
        rows = self.find(sentences)
        if len(rows) and rows.min() < 0:
            lost = sentences[int(rows.argmin())]
            raise InputError(f"{self.folder} has no vector of {lost[:80]!r}")
        return rows

    def vectors(self) -> Array:
        """All vectors, shape (sentences, D), float32, memory-mapped and read-only."""
        if self.width is None or not len(self):
            raise InputError(f"{self.folder} holds no vector yet")
        # Mapped again only when it has grown, because a map outlives its folder.
        if self._mapped is None or len(self._mapped) != len(self):
            shape = (len(self), self.width)
            self._mapped = np.memmap(self.folder / VECTORS, dtype="<f4", mode="r", shape=shape)
        return self._mapped

    def add(self, sentences: Sequence[str], vectors: Array) -> None:
        """Append the vectors (N, D) of distinct sentences, except those that are there already.

        A ModelError says that it cannot be written, has another width, or was removed.
        """
        width = vectors.shape[1]
        with writing(self.folder), FileLock(self.folder / LOCK):  # It makes the folder.
            self._refresh()
            if self.width not in (None, width):
                raise ModelError(
                    f"{self.folder} holds vectors of {self.width} dimensions, not {width}"
                )
            if self.width is None:
                self.width, self._made = width, uuid.uuid4().hex
                content = {**self.about, "width": width, "made": self._made}
                write_text(self.folder / ABOUT, json.dumps(content, indent=2) + "\n")
            digests = digests_of(sentences)
            fresh = self._index.find(digests) < 0
            rows = np.ascontiguousarray(vectors[fresh], dtype="<f4")
            _write_at(self.folder / VECTORS, 4 * width * len(self), rows.tobytes())
            _write_at(self.folder / SENTENCES, DIGEST * len(self), digests[fresh].tobytes())
            self._remember(digests[fresh])

    def _refresh(self) -> None:
        """Read the hashes that other processes have added."""
        made, count = self._made, 0
        if (self.folder / ABOUT).is_file():
            self.width, made = self._read_about()
            sizes = [_size(self.folder / SENTENCES), _size(self.folder / VECTORS)]
            count = min(sizes[0] // DIGEST, sizes[1] // (4 * self.width))
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


class SentenceCache:
    """Sentence vectors on disk, one folder an encoder, for `embed`, `calibrate` and the others.

    If it cannot be used, work goes on without it, with one warning in the log. Of folders and
    contents of .gguf files the least recently used are removed, and one that alone would be too
    large does not grow. A small part is for `results` of `compare`.

    Args:
        folder: Made when something is kept; None takes BERTFLOW_CACHE from the environment, else
            bertflow/ in XDG_CACHE_HOME or ~/.cache.
        size: Bytes at most; None takes BERTFLOW_CACHE_SIZE, such as 500MB or 20GB, else 10 GB.

    Attributes:
        found: How many distinct sentences had their vector in the cache since it was made.
        encoded: How many had not.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SentenceCache(folder, 10**6).contents()
        []
    """

    def __init__(self, folder: str | Path | None = None, size: int | None = None) -> None:
        self.folder = _default_folder() if folder is None else Path(folder)
        if size is None:
            size = parse_size(os.environ.get(SIZE_VARIABLE, "").strip() or DEFAULT_SIZE)
        self.size = size
        self.found = self.encoded = 0
        self.lock = Lock()
        self._warned = False

    def contents(self) -> list[Kept]:
        """All folders and files, the least recently used first."""
        places = [*(self.folder / "vectors").glob(KEY), *self.gguf.glob(f"{KEY}.safetensors")]
        return sorted(map(Kept.at, places), key=lambda kept: kept.used)

    @property
    def gguf(self) -> Path:
        """The folder for the content of .gguf files."""
        return self.folder / "gguf"

    @property
    def results(self) -> ResultStore:
        """Results, such as the fits of a comparison, within the size that is left."""
        left = self.size - sum(kept.bytes for kept in self.contents())
        size = min(self.size // RESULTS_PART, RESULTS_SIZE, max(left, 0))
        return ResultStore(self.folder / "results", size)

    def clear(self) -> list[Kept]:
        """Remove all that bertflow has written there; give the folders that are in use and left."""
        for kept in self.contents():
            kept.remove()
        remove_stale(self.gguf, GGUF)
        self.results.clear()
        for folder in (self.folder / "vectors", self.gguf, self.folder):
            with suppress(OSError):  # It holds something, or is not there.
                folder.rmdir()
        return self.contents()

    def make_room(self, folder: Path, count: int) -> bool:
        """Whether so many bytes may be added to a folder or file; others are removed for that."""
        remove_stale(self.gguf, GGUF)
        if Kept.at(folder).bytes + count > self.size:
            return False
        held = self.contents()
        total = sum(kept.bytes for kept in held) + sum(self.results.sizes().values()) + count
        for kept in held:
            if total > self.size and kept.bytes and kept.folder != folder and kept.remove():
                total -= kept.bytes
        return total <= self.size

    def warn(self, error: Exception) -> None:
        """Log once why the cache is not used."""
        if not self._warned:
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("the cache of sentence vectors is not used: %s", reason)
        self._warned = True

    def __repr__(self) -> str:
        bound = f"at most {self.size / 10**9:,.3g} GB"
        return (
            f"SentenceCache({str(self.folder)!r}: {bound}; since it was made {self.found:,} "
            f"sentences were found in it and {self.encoded:,} were not)"
        )

    def __str__(self) -> str:
        """How many of the sentences had their vector there."""
        total = self.found + self.encoded
        if self.found == total:
            return "all in the cache"
        return f"{self.found:,} in the cache" if self.found else "none in the cache"


@dataclass(frozen=True)
class Kept:
    """An encoder's folder in the cache, or the file with the content of a .gguf.

    `used` is when it was used last, in seconds since 1970, and `sentences` the vectors it holds.
    """

    folder: Path
    bytes: int
    sentences: int
    used: float
    gguf: bool = False

    @classmethod
    def at(cls, place: Path) -> Self:
        """The folder or file at a path, as it is now."""
        gguf = place.suffix == ".safetensors"
        there: dict[str, os.stat_result] = {}
        for name in [""] if gguf else FILES:
            with suppress(OSError):  # Another process may have removed it.
                there[name] = (place / name).stat()
        size = sum(stat.st_size for stat in there.values())
        count = there[SENTENCES].st_size // DIGEST if SENTENCES in there else 0
        used = there.get("" if gguf else VECTORS)
        return cls(place, size, count, used.st_mtime if used else 0.0, gguf)

    def remove(self) -> bool:
        """Remove it, but no folder that is being written or holds files of others."""
        try:
            if self.gguf:
                self.folder.unlink(missing_ok=True)
                return True
            with FileLock(self.folder / LOCK, timeout=0):
                for path in self.folder.iterdir():
                    if path.name in FILES or path.name.startswith(f".{ABOUT}-"):
                        path.unlink()
            self.folder.rmdir()
        except OSError:
            return False
        return True


class EncoderVectors:
    """The vectors of one encoder in a `SentenceCache`, or none where that cannot be used.

    `describe` gives all that they depend on, or None for an encoder whose vectors are not kept.
    """

    def __init__(
        self, owner: SentenceCache, describe: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self.store: VectorCache | None = None
        self._owner, self._full = owner, False
        with self.working():
            if (about := describe()) is not None:
                place = owner.folder / "vectors" / key_of(about, KEY_LENGTH)
                self.store = VectorCache(place, about)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Close the store at any error, because the work does not depend on it."""
        try:
            yield
        except Exception as error:
            self.store = None
            self._owner.warn(error)

    def take(self, group: Group) -> tuple[Array, Array]:
        """Places in a group of lacking sentences that have a vector, and these vectors."""
        places, vectors = group.lacking[:0], NOTHING
        with self.working():
            if self.store is not None and len(self.store):
                rows = self.store.find(group.texts(group.lacking))
                there = np.flatnonzero(rows >= 0)
                kept = np.array(self.store.vectors()[rows[there]])
                # Only finite vectors are added, so others are damaged.
                good = np.isfinite(kept).all(axis=1)
                places, vectors = group.lacking[there[good]], kept[good]
                with suppress(OSError):  # It may be there for reading only.
                    os.utime(self.store.folder / VECTORS)
        found, lacking = len(places), len(group.lacking) - len(places)
        log.info("cache: %d found, %d not", found, lacking)
        with self._owner.lock:
            self._owner.found += found
            self._owner.encoded += lacking
        return places, vectors

    def add(self, group: Group, places: Array, vectors: Array) -> bool:
        """Keep the finite ones of some vectors of a group; False if there is no room."""
        if self._full:
            return False
        good = np.isfinite(vectors).all(axis=1)
        with self.working():
            if self.store is not None:
                count = int(good.sum()) * (4 * vectors.shape[1] + DIGEST)
                self._full = not self._owner.make_room(self.store.folder, count)
                if good.any() and not self._full:
                    self.store.add(group.texts(places[good]), vectors[good])
        return self.store is not None and not self._full


class Unfinished:
    """Vectors that a stopped run has left in a folder, a file for each part of a group.

    Last bits depend on the batches, so a file is named after all sentences of the group and after
    `about`, on which vectors depend. It is also named after its content, and so waits for no disk.
    """

    def __init__(self, folder: Path, about: Any = None) -> None:
        self.folder = folder
        self._about = json.dumps(about, sort_keys=True).encode()
        self._left: dict[str, list[Path]] = {}
        for path in sorted(folder.glob("*.npz")):
            self._left.setdefault(path.name.partition("-")[0], []).append(path)

    def take(self, group: Group) -> tuple[Array, Array]:
        """Places in a group of lacking sentences that have a vector, and these vectors."""
        parts: list[tuple[Array, Array]] = []
        for path in self._left.get(self._name(group), ()):
            content = path.read_bytes()
            if path.stem.endswith(_hash(content)):  # It is whole.
                with np.load(BytesIO(content)) as part:
                    parts.append((part["places"], part["vectors"]))
        if not parts:
            return group.lacking[:0], NOTHING
        places, vectors = (np.concatenate(part) for part in zip(*parts, strict=True))
        # Workers of a run that was killed may have gone on for a while beside those of the next.
        places, first = np.unique(places, return_index=True)
        lacking = np.isin(places, group.lacking)
        return places[lacking], vectors[first][lacking]

    def add(self, group: Group, places: Array, vectors: Array) -> bool:
        """Keep vectors of a group, unless one of them is not finite."""
        if not np.isfinite(vectors).all():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        np.savez(content, places=places, vectors=vectors)
        path = self.folder / f"{self._name(group)}-{_hash(content.getvalue())}.npz"
        try:
            path.write_bytes(content.getvalue())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return True

    def _name(self, group: Group) -> str:
        return _hash(self._about + digests_of(group.sentences).tobytes())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST).hexdigest()


def _default_folder() -> Path:
    if own := os.environ.get(FOLDER_VARIABLE):
        return Path(own).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "bertflow"


def parse_size(text: str) -> int:
    """Bytes of a size such as 500MB, 1.5 GB or 2GiB; an InputError if it is none.

    Example:
        >>> parse_size("1.5 GB"), parse_size("2KiB"), parse_size("0")
        (1500000000, 2048, 0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", text.strip().lower())
    if match is not None:
        size = float(match[1]) * (1024 if match[3] else 1000) ** UNITS[match[2]]
        if math.isfinite(size):
            return int(size)
    raise InputError(f"{SIZE_VARIABLE} takes a size such as 500MB or 10GB, got {shown(text)}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _write_at(path: Path, place: int, data: bytes) -> None:
    """Write at a place, cut the file off behind it, and wait until it is on the disk."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        if place + len(data) < file.seek(0, os.SEEK_END):
            file.truncate(place)
        file.seek(place)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
