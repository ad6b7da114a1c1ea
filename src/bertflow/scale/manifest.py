"""The output: a file for each shard, which says what it was made of, and a list of these files.

The footer of a file holds the key of the run and the version of the input. So a file that is in its
place is finished, and tells by itself whether it is still what the run would make.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow.parquet import ParquetWriter, read_metadata

from bertflow.errors import InputError, ModelError, shown
from bertflow.io.files import write_text, writing
from bertflow.io.reading import read_json
from bertflow.scale.shards import READERS, Bad, Place, Plan, Shard, is_vectors

MANIFEST = "_manifest.json"
LARGEST_MANIFEST = 2**30
# The key of our note among the metadata of a parquet file.
NOTE = b"bertflow"


def run_key(description: Mapping[str, Any]) -> str:
    """A hash by which two runs are known to write the same."""
    # Where rows without text are refused there were none, so skipping them gives the same file.
    lasting = {name: value for name, value in description.items() if name != "blank"}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def note_of(shard: Shard, key: str) -> str:
    """What the footer of a shard's file says."""
    return json.dumps({"run": key, **asdict(shard)})


def write_shard(path: Path, schema: Any, batches: Iterable[Any], note: str) -> int:
    """Write batches to a parquet file, each while the next is made, and give the number of rows."""
    # Numbers of vectors neither repeat nor compress, and nobody asks for the least of them.
    plain = [field.name for field in schema if not is_vectors(field.type)]
    rows = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("wb") as file:
        with (
            ParquetWriter(
                file,
                schema.with_metadata({NOTE: note}),
                use_dictionary=plain,
                write_statistics=plain,
                compression={name: "snappy" for name in plain} or "none",
            ) as writer,
            ThreadPoolExecutor(1, "write") as thread,
        ):
            pending: Future[Any] = thread.submit(list)  # Nothing yet, which is done at once.
            for batch in batches:
                rows += batch.num_rows
                pending.result()
                pending = thread.submit(writer.write_batch, batch)
            pending.result()
        file.flush()
        os.fsync(file.fileno())
    return rows


class Manifest:
    """The file `_manifest.json` of an output folder: how its files are made, and which there are.

    It is written before the first file is, and again when all are there.

    Raises:
        ModelError: There is a manifest that bertflow did not write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / MANIFEST
        # All that the files depend on; None if there is no manifest.
        self.recipe: dict[str, Any] | None = None
        # The files in the order of the input, and the input file of each.
        self.files: dict[str, str] = {}
        self.finished = False
        if self.path.exists():
            content = read_json(self.path, largest=LARGEST_MANIFEST)
            try:
                self.recipe, self.files = dict(content["recipe"]), dict(content["files"])
                self.finished = bool(content["finished"])
            except (KeyError, TypeError, ValueError):
                raise ModelError(
                    f"{self.path} is no manifest of this bertflow; give another output"
                ) from None

    def refuse_others(self, planned: Plan) -> None:
        """Refuse a folder with a .parquet file that is not made of this input."""
        if self.recipe is None:
            if other := min(filter(Path.is_file, self.folder.rglob("[!.]*")), default=None):
                raise ModelError(
                    f"{self.folder} holds {other.relative_to(self.folder)} but no {MANIFEST}: it "
                    "is another's, or of an earlier bertflow; give a folder that is empty or not "
                    "there yet"
                )
            return
        inputs = {bad.path for bad in planned.bad} | {shard.path for shard in planned.shards}
        ours = {shard.name for shard in planned.shards}
        ours |= {name for name, path in self.files.items() if path in inputs}
        for path in sorted(self.folder.rglob("[!.]*.parquet")):
            name = path.relative_to(self.folder).as_posix()
            if name not in ours:
                reason = f"is not in {MANIFEST}"
                if name in self.files:
                    reason = f"was made of {self.files[name]}, which is gone"
                raise ModelError(f"{path} {reason}; remove it or give another output")

    def begin(self, recipe: Mapping[str, Any], shards: Sequence[Shard]) -> None:
        """Write how the files are made and which there will be, beside those that are there."""
        # Rows without text may be left out from now on where they were refused before.
        recipe = json.loads(json.dumps(recipe))
        before = recipe if self.recipe is None else self.recipe
        if before.get("blank") == "refuse" and recipe.get("blank") == "skip":
            before = {**before, "blank": "skip"}
        names = sorted({*recipe, *before})
        if different := [name for name in names if recipe.get(name) != before.get(name)]:
            first = different[0]
            raise ModelError(
                f"{self.folder} was made with another {', '.join(different)} "
                f"({first} {shown(before.get(first))}, now {shown(recipe.get(first))}); "
                "give another output"
            )
        self.recipe, self.finished = dict(recipe), False
        self.files |= {shard.name: shard.path for shard in shards}
        self._write([])

    def rows_done(self, shards: Sequence[Shard], key: str) -> dict[str, int]:
        """The rows of each file that is there and is what the run would make, by its name."""

        def rows(shard: Shard) -> int | None:
            try:
                footer = read_metadata(self.folder / shard.name)
            except (pyarrow.ArrowException, OSError):
                return None
            same = (footer.metadata or {}).get(NOTE) == note_of(shard, key).encode()
            return int(footer.num_rows) if same else None

        with ThreadPoolExecutor(READERS) as pool:
            counts = zip(shards, pool.map(rows, shards), strict=True)
            return {shard.name: count for shard, count in counts if count is not None}

    def put(self, made: Path, name: str) -> None:
        """Move a finished file to its place."""
        target = self.folder / name
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            made.replace(target)

    def finish(self, shards: Sequence[Shard], skipped: Sequence[Bad]) -> None:
        """List the files of these shards, and remove those of input that is now split otherwise."""
        former = self.files
        self.files = {shard.name: shard.path for shard in shards}
        self.finished = True
        for name in former.keys() - self.files.keys():
            (self.folder / name).unlink(missing_ok=True)
        self._write(skipped)

    def _write(self, skipped: Sequence[Bad]) -> None:
        content = {
            "recipe": self.recipe,
            "finished": self.finished,
            "files": self.files,
            "skipped": {bad.path: bad.reason for bad in skipped},
        }
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def check_whole(place: Place) -> None:
    """Refuse a folder that `run` has not finished, or to which files of others were added.

    Raises:
        InputError: A file is of others, or of a run with another encoder or calibrator.
        ModelError: The run was stopped, or a file is missing.
    """
    folder = Path(place.where)
    if place.is_file or "://" in place.where or Manifest(folder).recipe is None:
        return
    files = files_of(folder)
    if others := {*folder.rglob("[!._]*.parquet")}.difference(files):
        raise InputError(f"{min(others)} is not in {MANIFEST}, which lists the files; remove it")
    runs: dict[Any, Path] = {}
    for file in files:
        with suppress(pyarrow.ArrowException, OSError):  # Said when it is read.
            note = json.loads((read_metadata(file).metadata or {}).get(NOTE, b"{}"))
            runs.setdefault(note.get("run"), file)
    if len(runs) > 1:
        one, other, *_ = runs.values()
        raise InputError(
            f"{one} and {other} were made by different models; run the command that made "
            f"{folder} again"
        )


def files_of(output: str | Path) -> list[Path]:
    """The files of a folder that `run` has finished, in the order of the input.

    Raises:
        ModelError: It has no manifest, its last run was stopped, or a file is missing.
    """
    manifest = Manifest(Path(output))
    if manifest.recipe is None:
        raise ModelError(f"{output} has no {MANIFEST}; bertflow has not written it")
    if not manifest.finished:
        raise ModelError(f"{output} is not finished; run it again")
    files = [manifest.folder / name for name in manifest.files]
    for file in files:
        if not file.exists():
            raise ModelError(f"{file} is missing; run it again")
    return files
