"""Results on disk, found again by the key of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertflow.errors import ModelError
from bertflow.io.files import remove_stale, write_bytes
from bertflow.io.reading import read_json

FORMAT = 1
KEY_LENGTH = 20
# Keys of earlier versions had up to 32 digits.
FILE = r"([0-9a-f]{20,32})\.(json|npz)"
LARGEST_JSON = 10**7

Arrays = Mapping[str, npt.NDArray[Any]]


def key_of(recipe: Mapping[str, Any], length: int = KEY_LENGTH) -> str:
    """The first digits of a recipe's SHA-256, whatever the order of its parts."""
    text = json.dumps(recipe, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a piece of work, and all that it depends on.

    Attributes:
        kind: What was done, such as "score".
        key: `key_of` the recipe.
        recipe: All that the result depends on; `about` has the same for people.
        result: The figures, as JSON has them.
        seconds: How long the work took.
        time: When, UTC.
        arrays: By name; not part of the JSON.
    """

    kind: str
    key: str
    recipe: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = FORMAT
    arrays: Arrays = field(default_factory=dict, repr=False, compare=False)

    def to_json(self) -> str:
        """All but the arrays; a ValueError if a number is not finite."""
        plain = {name: value for name, value in vars(self).items() if name != "arrays"}
        return json.dumps(plain, indent=2, allow_nan=False) + "\n"


class ResultStore:
    """A folder of results: KEY.json each, and KEY.npz where there are arrays.

    A result is there whole or not at all: its arrays are written before its JSON.

    Args:
        folder: Made when the first result is written.
        size: Bytes at most; the least recently used results make room. None keeps all.
    """

    def __init__(self, folder: str | Path, size: int | None = None) -> None:
        self.folder = Path(folder)
        self.size = size

    def get(self, key: str) -> Result | None:
        """The result with a key; None if there is none, or it is damaged or of a later format."""
        path = self.folder / f"{key}.json"
        try:
            content = read_json(path, largest=LARGEST_JSON)
            result = Result(**content, arrays=_read_arrays(path.with_suffix(".npz")))
        except Exception:  # Whatever is wrong with the files, the work is done again.
            return None
        if (result.format, result.key) != (FORMAT, key) or not isinstance(result.result, dict):
            return None
        if self.size is not None:
            with suppress(OSError):  # Another process removed it, or it may only be read.
                os.utime(path)
        return result

    def need(self, key: str) -> Result:
        """The result with a key; a ModelError if there is none."""
        result = self.get(key)
        if result is None:
            raise ModelError(f"{self.folder} holds no record {key}; run the job first")
        return result

    def put(self, result: Result) -> None:
        """Write a result, unless it alone is larger than the store may be."""
        path = self.folder / f"{result.key}.json"
        contents = {path: result.to_json().encode()}
        if result.arrays:
            packed = BytesIO()
            np.savez_compressed(packed, **result.arrays)  # type: ignore[arg-type]
            contents = {path.with_suffix(".npz"): packed.getvalue(), **contents}
        count = sum(map(len, contents.values()))
        if self.size is not None:
            if count > self.size:
                return
            self._make_room(count, self.size)
        for target, content in contents.items():
            write_bytes(target, content)

    def sizes(self) -> dict[str, int]:
        """The bytes of each result by its key, the least recently used first."""
        found: dict[str, tuple[int, int]] = {}
        for path in self.folder.glob("*"):
            if match := re.fullmatch(FILE, path.name):
                with suppress(OSError):  # Another process removed it.
                    status = path.stat()
                    used, size = found.get(match[1], (0, 0))
                    found[match[1]] = max(used, status.st_mtime_ns), size + status.st_size
        return {key: found[key][1] for key in sorted(found, key=found.__getitem__)}

    def clear(self) -> None:
        """Remove all results, and the folder if nothing else is in it."""
        self._make_room(1, 0)
        with suppress(OSError):
            self.folder.rmdir()

    def _make_room(self, count: int, size: int) -> None:
        """Remove results until there is room for so many bytes more."""
        sizes = self.sizes()
        total = sum(sizes.values()) + count
        if total > size:
            remove_stale(self.folder, FILE)
        for key, freed in sizes.items():
            if total <= size:
                break
            for ending in ("json", "npz"):  # Without its JSON, a result counts as not there.
                with suppress(OSError):
                    (self.folder / f"{key}.{ending}").unlink()
            total -= freed


def _read_arrays(path: Path) -> Arrays:
    """The arrays of a .npz file; none if there is no such file."""
    if not path.exists():
        return {}
    # Opened here: numpy leaves a file open that is no archive.
    with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
        return dict(file)
