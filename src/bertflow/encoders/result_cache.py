"""Results on disk, by what they depend on: what was finished before a stop is not done again."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from bertflow.calibrators.base import Array
from bertflow.io.files import remove_stale, write_bytes

KEY = r"[0-9a-f]{32}"
FACTS = "facts"


@dataclass(frozen=True)
class ResultCache:
    """Small results in a folder, a file each, the least recently used removed first.

    A file is there whole or not at all. What is damaged counts as not there.

    Args:
        folder: Made when something is kept.
        size: Bytes that all files have together, at most.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = ResultCache(Path(folder), 10**6)
        ...     results.put("0" * 32, {"seconds": 1.5}, {"x": np.arange(3)})
        ...     facts, arrays = results.get("0" * 32)
        ...     facts, arrays["x"].tolist(), results.get("1" * 32)
        ({'seconds': 1.5}, [0, 1, 2], None)
    """

    folder: Path
    size: int

    def get(self, key: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """What is kept under a key of 32 hexadecimal digits: for JSON, and arrays."""
        path = self.folder / f"{key}.npz"
        try:
            # Opened here: numpy leaves a file open that is no archive.
            with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(arrays.pop(FACTS).tobytes())
        except (OSError, ValueError, EOFError, KeyError, zlib.error, BadZipFile):
            return None
        with suppress(OSError):  # Another process has removed it, or has it for reading only.
            os.utime(path)
        return (facts, arrays) if isinstance(facts, dict) else None

    def put(self, key: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Keep a result, unless it alone is larger than all may be.

        Args:
            key: 32 hexadecimal digits.
            facts: For JSON.
            arrays: Of numbers, none of them called "facts".

        Raises:
            ModelError: It cannot be written.
        """
        about = np.frombuffer(json.dumps(dict(facts)).encode(), dtype=np.uint8)
        content = BytesIO()
        np.savez(content, **{FACTS: about}, **dict(arrays))  # type: ignore[arg-type]
        if len(content.getvalue()) > self.size:
            return
        self._make_room(len(content.getvalue()))
        write_bytes(self.folder / f"{key}.npz", content.getvalue())

    def files(self) -> dict[Path, os.stat_result]:
        """The files that are there, the least recently used first."""
        found = {}
        with suppress(OSError):
            for path in self.folder.iterdir():
                if re.fullmatch(rf"{KEY}\.npz", path.name):
                    with suppress(OSError):  # Another process has removed it.
                        found[path] = path.stat()
        return dict(sorted(found.items(), key=lambda one: one[1].st_mtime_ns))

    def bytes(self) -> int:
        """What the files have together."""
        return sum(one.st_size for one in self.files().values())

    def clear(self) -> None:
        """Remove all files, and the folder if it holds nothing of others."""
        self._make_room(self.size + 1)
        with suppress(OSError):
            self.folder.rmdir()

    def _make_room(self, count: int) -> None:
        files = self.files()
        total = sum(one.st_size for one in files.values()) + count
        if total > self.size:
            remove_stale(self.folder, rf"{KEY}\.npz")
        for path, one in files.items():
            if total <= self.size:
                break
            with suppress(OSError):
                path.unlink()
            total -= one.st_size
