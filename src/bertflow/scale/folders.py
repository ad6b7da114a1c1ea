"""A folder of shards to another folder, or to the calibrator that is fitted on all its vectors.

The footer of each file of the output holds the key of the run and the version of the input. So a
file that is in its place is finished, and tells by itself whether it is still what the run would
make.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow.parquet import read_metadata, read_table

from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, LinearCalibrator, Moments, QueryMap
from bertflow.calibrators.moments import moments_of_queries
from bertflow.calibrators.reference import SAMPLED_ROWS
from bertflow.errors import InputError, ModelError, shown
from bertflow.io.files import check_apart, sole_writer, write_text, writing
from bertflow.io.reading import read_json
from bertflow.scale.engines import NOTE, Engine, Job, note_of, run_key
from bertflow.scale.shards import READERS, VECTOR, Place, Plan, Shard, plan, read, vectors_of
from bertflow.scale.workers import BlockMoments, Worker, merged_moments

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
MANIFEST, LOCK, UNFINISHED = "_manifest.json", ".lock", ".unfinished"
LARGEST_MANIFEST = 2**30
# In a large folder rows are drawn from the start of this many shards.
SHARDS_SAMPLED = 20


@dataclass(frozen=True)
class Outcome:
    """What a run has done: its output has `shards`, some of them `done_before`, and `rows`.

    `left_out` are rows of the input without text, and `skipped` says by its path why a file of the
    input could not be used.
    """

    shards: int
    done_before: int
    rows: int
    left_out: int
    skipped: dict[str, str]


def run(
    worker: Worker,
    source: str | Path,
    output: str | Path,
    *,
    engine: Engine | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Apply a worker to every shard of a folder, each to a file of the same name in another.

    The same call after a kill, or after a change of some input files, does only what is missing.

    Args:
        worker: `Encode`, `Transform` or `BlockMoments`.
        source: A folder of .parquet files, also in folders of it; one file; or an address of
            either, such as `s3://bucket/folder`.
        output: A folder on a disk that all workers share.
        engine: Where the work is done; None for this process.
        skip_unreadable: Leave out files that cannot be used, and list them; the next run tries them
            again.
        progress: Called with the rows done, those done before included, and their total.

    Raises:
        InputError: The input or a file of it (it is named) cannot be used or has changed meanwhile,
            the output is an address, or files of the output come from files that are gone.
        ModelError: The output cannot be written, holds something else, was made in another way, or
            another process is writing it; or the model cannot be loaded.
        MissingDependencyError: The package is missing that reads from such an address.

    Example:
        >>> import tempfile
        >>> import pyarrow, pyarrow.parquet
        >>> from bertflow import Standardization
        >>> from bertflow.scale import Transform
        >>> x = [[0.0, 10.0], [2.0, 30.0]]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file, output = Path(folder, "a.parquet"), Path(folder, "out")
        ...     pyarrow.parquet.write_table(pyarrow.table({"vector": x}), file)
        ...     outcome = run(Transform(Standardization().fit(x)), file, output)
        ...     found = pyarrow.parquet.read_table(output / "a.parquet").to_pydict()
        >>> outcome.rows, found
        (2, {'vector': [[-1.0, -1.0], [1.0, 1.0]]})
    """
    if "://" in str(output):
        raise InputError(f"{output} is an address; give a folder on a disk that all workers share")
    output, place = Path(output), Place(source)
    check_apart({"the output": output}, [("the run", source)])
    check_whole(place)
    planned = plan(place, worker.columns, skip_unreadable=skip_unreadable)
    Manifest(output).refuse_others(planned)
    description = engine.describe(worker) if engine else worker.describe()
    with sole_writer(output, output / LOCK):
        manifest = Manifest(output)
        manifest.begin(description, planned.shards)
        job = Job(
            worker, place, planned.schema, output.absolute() / UNFINISHED, run_key(description)
        )
        rows = manifest.rows_done(planned.shards, job.key)
        todo = [shard for shard in planned.shards if shard.name not in rows]
        before = set(rows)
        log.info("%d shards, %d of them done before", len(planned.shards), len(before))
        report = progress or (lambda done, total: None)
        total = sum(shard.rows for shard in planned.shards)
        done = total - sum(shard.rows for shard in todo)
        report(done, total)
        skipped = dict(planned.bad)
        for result in engine.run(job, todo) if engine else map(job.do, todo):
            if result.error is None:
                manifest.put(result.path, result.shard.name)
                shutil.rmtree(result.path.parent, ignore_errors=True)
                rows[result.shard.name] = result.rows
            elif skip_unreadable and isinstance(result.error, InputError):
                skipped.setdefault(result.shard.path, str(result.error))
            else:
                raise result.error
            done += result.shard.rows
            report(done, total)
        shards = [shard for shard in planned.shards if shard.path not in skipped]
        manifest.finish(shards, skipped)
        shutil.rmtree(job.home, ignore_errors=True)
    made = sum(rows[shard.name] for shard in shards)
    left_out = sum(shard.rows for shard in shards) - made
    return Outcome(
        shards=len(shards),
        done_before=sum(shard.name in before for shard in shards),
        rows=made,
        left_out=left_out if worker.row_by_row else 0,
        skipped=skipped,
    )


class Manifest:
    """The file `_manifest.json` of an output folder: how its files are made, and which there are.

    It is written before the first file is, and again when all are there. A ModelError refuses one
    that bertflow did not write.
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
        """Refuse a folder with a file that is not made of this input; without a manifest any."""
        ours: set[str] = set()
        if self.recipe is not None:
            inputs = {*planned.bad, *(shard.path for shard in planned.shards)}
            ours |= {name for name, path in self.files.items() if path in inputs}
            ours |= {shard.name for shard in planned.shards}
        pattern = "[!.]*" if self.recipe is None else "[!.]*.parquet"
        for path in sorted(filter(Path.is_file, self.folder.rglob(pattern))):
            name = path.relative_to(self.folder).as_posix()
            if name not in ours:
                source = self.files.get(name)
                reason = (
                    f"was made of {source}, which is gone" if source else f"is in no {MANIFEST}"
                )
                raise ModelError(f"{path} {reason}; remove it or give another output")

    def begin(self, recipe: Mapping[str, Any], shards: Sequence[Shard]) -> None:
        """Write how the files are made and which there will be, beside those that are there."""
        recipe = json.loads(json.dumps(recipe))
        before = recipe if self.recipe is None else self.recipe
        names = sorted({*recipe, *before})
        different = [name for name in names if recipe.get(name) != before.get(name)]
        # Rows without text may be left out from now on where they were refused before.
        if different and not (different == ["blank"] and recipe.get("blank") == "skip"):
            first = different[0]
            raise ModelError(
                f"{self.folder} was made with another {', '.join(different)} "
                f"({first} {shown(before.get(first))}, now {shown(recipe.get(first))}); "
                "give another output"
            )
        self.recipe, self.finished = dict(recipe), False
        self.files |= {shard.name: shard.path for shard in shards}
        self._write({})

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

    def finish(self, shards: Sequence[Shard], skipped: Mapping[str, str]) -> None:
        """List the files of these shards, and remove those of input that is now split otherwise."""
        former = self.files
        self.files = {shard.name: shard.path for shard in shards}
        self.finished = True
        for name in former.keys() - self.files.keys():
            (self.folder / name).unlink(missing_ok=True)
        self._write(skipped)

    def _write(self, skipped: Mapping[str, str]) -> None:
        content = {
            "recipe": self.recipe,
            "finished": self.finished,
            "files": self.files,
            "skipped": dict(skipped),
        }
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def check_whole(place: Place) -> None:
    """Refuse a folder that `run` has not finished, or to which files of others were added."""
    folder = Path(place.where)
    if not (folder / MANIFEST).is_file():
        return
    if others := {*folder.rglob("[!._]*.parquet")}.difference(files_of(folder)):
        raise InputError(f"{min(others)} is not in {MANIFEST}, which lists the files; remove it")


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


def folder_moments(
    source: str | Path,
    folder: str | Path,
    *,
    vector: str = VECTOR,
    covariance: bool = True,
    normalize: bool = False,
    **options: Any,
) -> tuple[Moments, Outcome]:
    """The moments of all vectors of a folder of .parquet files, merged in the order of its shards.

    Those of each shard are kept in a folder, so that a stopped run goes on. Other arguments are
    those of `BlockMoments` and of `run`, and so are the errors.
    """
    worker = BlockMoments(vector=vector, covariance=covariance, normalize=normalize)
    outcome = run(worker, source, folder, **options)
    return merged_moments(read_table(file) for file in files_of(folder)), outcome


def fit_folder(
    calibrator: Calibrator,
    source: str | Path,
    folder: str | Path,
    *,
    queries: Any = None,
    vector: str = VECTOR,
    more: bool = False,
    **options: Any,
) -> Outcome:
    """Fit a calibrator that learns from moments on all vectors of a folder.

    With `more` they come beside those it was fitted on, as for `Calibrator.partial_fit`.

    `queries` are vectors of queries, shape (n, D), of which the source has the documents; with
    them some calibrators use one more folder, FOLDER-as-given. Other arguments and errors are those
    of `folder_moments`. An InputError says that the calibrator needs rows, as `Flow` does.
    """
    if not isinstance(calibrator, LinearCalibrator):
        raise InputError(
            f"{type(calibrator).__name__} is trained on rows, not on moments, and cannot be fitted "
            f"on the folder {source}; fit it on a sample (a .npy of some 200,000 vectors)"
        )
    asked = None if queries is None else moments_of_queries(queries)
    unit, full = calibrator.from_unit_rows, calibrator.needs_covariance
    moments, outcome = folder_moments(
        source, folder, vector=vector, covariance=full, normalize=unit, **options
    )
    query_map = None
    if asked is not None:
        documents = moments
        if unit or not full:  # Queries are mapped as they are.
            documents, _ = folder_moments(
                source, f"{Path(folder)}-as-given", vector=vector, **options
            )
        query_map = QueryMap.of(documents, asked)
    sample = sampled_rows(source, vector)
    calibrator.fit_moments(moments, sample, query_map=query_map, more=more)
    calibrator.provenance_ = {"vectors": str(source), "rows": moments.count, "limit": None}
    return outcome


def sampled_rows(source: str | Path, vector: str) -> Array | None:
    """Rows from the start of shards all over a folder, as many as a sample takes."""
    place, worker = Place(source), BlockMoments(vector=vector)
    planned = plan(place, worker.columns, skip_unreadable=True)
    chosen = planned.shards[:: max(1, len(planned.shards) // SHARDS_SAMPLED)]
    count = -(-SAMPLED_ROWS // max(1, len(chosen)))
    parts = []
    for shard in chosen:
        with suppress(InputError):  # The run has skipped this shard.
            for batch in islice(read(place, shard, planned.schema, batch_rows=count), 1):
                parts.append(vectors_of(batch.column(vector), place.named(shard.path)))
    return np.concatenate(parts)[:SAMPLED_ROWS] if parts else None
