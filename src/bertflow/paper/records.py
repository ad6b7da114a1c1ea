"""Records: one file a finished job, found again by the job's key."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from bertflow.calibrators.base import Array
from bertflow.calibrators.vectors import read_archive
from bertflow.encoders import library_versions
from bertflow.errors import InputError, ModelError
from bertflow.io.files import write_bytes, write_text
from bertflow.io.json import read_json

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """What came of a job, and what it depends on.

    Attributes:
        kind: "score", "words" or "tuning".
        key: Of the job.
        recipe: All that the result depends on.
        about: The same for people: encoder, task, split, calibrator, corpus, seed, data, revision.
        result: The figures, as JSON has them.
        seconds: How long it took.
        versions: Versions of the libraries.
        time: When, UTC.
    """

    kind: str
    key: str
    recipe: Mapping[str, Any]
    about: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=library_versions)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = FORMAT


class Records:
    """A folder of records.

    A record is there whole or not at all; arrays that belong to it are written before it.

    Args:
        folder: Made when the first record is written.

    Example:
        >>> from tempfile import mkdtemp
        >>> records = Records(mkdtemp())
        >>> one = Record(kind="words", key="ab", recipe={}, about={}, result={"x": 1}, seconds=0.1)
        >>> records.put(one)
        >>> records.get("ab").result, records.get("cd")
        ({'x': 1}, None)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._found: dict[str, Record] = {}

    def get(self, key: str) -> Record | None:
        """The record of a job, or None. One that is damaged counts as not there."""
        if key not in self._found:
            record = self._read(key)
            if record is None:
                return None
            self._found[key] = record
        return self._found[key]

    def need(self, key: str) -> Record:
        """The record of a job that has been run.

        Raises:
            ModelError: There is none.
        """
        record = self.get(key)
        if record is None:
            raise ModelError(f"{self.folder} holds no record {key}; run the job first")
        return record

    def arrays(self, key: str) -> dict[str, Array]:
        """The arrays that belong to a record.

        Raises:
            ModelError: They cannot be read.
        """
        path = self.folder / f"{key}.npz"
        try:
            return read_archive(path)
        except InputError as error:
            raise ModelError(f"{path} cannot be read ({error}); remove it and run again") from None

    def put(self, record: Record, arrays: Mapping[str, Array] | None = None) -> None:
        """Write a record and its arrays.

        Raises:
            ModelError: It cannot be written.
        """
        if arrays is not None:
            content = BytesIO()
            np.savez_compressed(content, **dict(arrays))  # type: ignore[arg-type]
            write_bytes(self.folder / f"{record.key}.npz", content.getvalue())
        text = json.dumps(asdict(record), indent=2, allow_nan=False)
        write_text(self.folder / f"{record.key}.json", text + "\n")
        self._found[record.key] = record
        log.info("%s %s finished in %.1f s", record.kind, record.key, record.seconds)

    def __iter__(self) -> Iterator[Record]:
        for path in sorted(self.folder.glob("*.json")):
            record = self.get(path.stem)
            if record is not None:
                yield record

    def _read(self, key: str) -> Record | None:
        try:
            record = Record(**read_json(self.folder / f"{key}.json"))
        except (ModelError, TypeError):
            return None
        parts = (record.recipe, record.about, record.result, record.versions)
        whole = record.format == FORMAT and record.key == key
        whole = whole and all(isinstance(part, dict) for part in parts)
        if not whole or (record.kind == "score" and not is_zipfile(self.folder / f"{key}.npz")):
            return None
        return record
