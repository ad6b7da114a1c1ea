"""What an output folder holds, and of what: a line a shard, so that nothing is done twice."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from bertflow.errors import ModelError, shown
from bertflow.io.files import write_text
from bertflow.io.json import parse_json
from bertflow.scale.places import Place
from bertflow.scale.shards import Bad, Shard

MANIFEST = "_manifest.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A shard that is done.

    Attributes:
        shard: What it was made of.
        input: SHA-256 of that.
        size: Of the file that came of it, in bytes.
        modified: When that was written, in nanoseconds since 1970.
        output: SHA-256 of that.
        rows: How many it has.
        left_out: How many rows of the input have no text, and were left out.
    """

    shard: Shard
    input: str
    size: int
    modified: int
    output: str
    rows: int
    left_out: int


class Manifest:
    """The file `_manifest.jsonl` of an output folder: first what was done, then a line a shard.

    A line is added whenever a shard is done, and a later line for the same shard counts. A process
    that is killed leaves at most the beginning of one.

    Args:
        folder: The output.

    Raises:
        ModelError: There is one that is none of ours.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / MANIFEST
        self.recipe: dict[str, Any] | None = None
        self.records: dict[str, Record] = {}
        self._file: IO[bytes] | None = None
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror or error}") from None
        # What follows the last end of a line was being written when its process was killed.
        for number, line in enumerate(lines[:-1], 1):
            try:
                found = parse_json(line.decode("utf-8"))
                if number == 1:
                    if found["format"] != FORMAT:
                        raise ModelError(
                            f"{self.path} has format {shown(found['format'])}, expected {FORMAT}; "
                            "install a newer bertflow"
                        )
                    self.recipe = dict(found["recipe"])
                elif "skipped" not in found:
                    record = _record(found)
                    self.records[record.shard.name] = record
            except (ValueError, KeyError, TypeError) as error:
                raise ModelError(
                    f"{self.path}, line {number}: it is no line of a manifest ({error}); "
                    "give another output"
                ) from None

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Say what is done, or compare it with what was.

        Rows without text may be left out from now on where they were refused before: what is done
        has none.

        Raises:
            ModelError: The folder holds what was made in another way, or the manifest cannot be
                written.
        """
        recipe = json.loads(json.dumps(recipe))
        if self.recipe is None:
            self.recipe = dict(recipe)
            self.records = {}
        elif {**self.recipe, "blank": "skip"} == recipe and self.recipe.get("blank") == "refuse":
            self.recipe = dict(recipe)
        elif differing := sorted(
            name for name in {*recipe, *self.recipe} if recipe.get(name) != self.recipe.get(name)
        ):
            first = differing[0]
            raise ModelError(
                f"{self.folder} was made with another {', '.join(differing)} "
                f"({first} {shown(self.recipe.get(first))}, now {shown(recipe.get(first))}); "
                "give another output"
            )
        self._write([])
        try:
            self._file = self.path.open("ab")
        except OSError as error:
            raise ModelError(f"cannot write {self.path}: {error.strerror or error}") from None

    def is_done(self, shard: Shard, place: Place) -> bool:
        """Whether a shard has its file, and both are what they were.

        Sizes and times tell for most; where a time differs, the bytes do.

        Raises:
            InputError: The input cannot be read.
        """
        record = self.records.get(shard.name)
        if record is None:
            return False
        old = record.shard
        if (old.path, old.size, old.start, old.stop, old.first, old.rows, old.span) != (
            shard.path,
            shard.size,
            shard.start,
            shard.stop,
            shard.first,
            shard.rows,
            shard.span,
        ):
            return False
        try:
            stat = (self.folder / shard.name).stat()
        except OSError:
            return False
        if stat.st_size != record.size:
            return False
        if stat.st_mtime_ns != record.modified:
            if Place(self.folder).digest(shard.name, 0, record.size) != record.output:
                return False
        if not old.modified == shard.modified != 0:
            if place.digest(shard.path, *shard.span) != record.input:
                return False
        self.records[shard.name] = replace(record, shard=shard, modified=stat.st_mtime_ns)
        return True

    def add(self, record: Record) -> None:
        """Note that a shard is done, through to the disk.

        Raises:
            ModelError: That cannot be written.
        """
        assert self._file is not None
        self.records[record.shard.name] = record
        try:
            self._file.write(_line(record).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ModelError(f"cannot write {self.path}: {error.strerror or error}") from None

    def finish(self, order: list[Shard], skipped: list[Bad]) -> None:
        """Write it anew, each shard once and in order, with what was skipped."""
        self.close()
        self.records = {shard.name: self.records[shard.name] for shard in order}
        self._write(skipped)

    def close(self) -> None:
        """Stop adding."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, skipped: list[Bad]) -> None:
        lines = [json.dumps({"format": FORMAT, "recipe": self.recipe}) + "\n"]
        lines += [_line(record) for record in self.records.values()]
        lines += [json.dumps({"skipped": one.path, "reason": one.reason}) + "\n" for one in skipped]
        write_text(self.path, "".join(lines))


def _line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


def _record(found: Any) -> Record:
    shard = dict(found["shard"])
    start, stop = shard["span"]
    shard["span"] = (int(start), int(stop))
    return Record(**{**found, "shard": Shard(**shard)})
