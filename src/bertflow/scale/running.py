"""A folder of shards to a folder of shards: what is missing is done, and nothing twice."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bertflow.errors import InputError, ModelError
from bertflow.io.files import reason_of, sole_writer
from bertflow.scale.engines import Engine, Local
from bertflow.scale.manifest import MANIFEST, Manifest, Record
from bertflow.scale.places import Place
from bertflow.scale.shards import SHARD_ROWS, Bad, Plan, Shard, plan
from bertflow.scale.work import Job, Receipt, packed_schema
from bertflow.scale.workers import Worker, digest_of

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
LOCK, BEING_WRITTEN = ".lock", ".part"


@dataclass(frozen=True)
class Outcome:
    """What a run has done.

    Attributes:
        shards: How many files the output has.
        done_before: How many of them were there.
        rows: How many rows all of them have.
        left_out: How many rows of the input have no text, and were left out.
        skipped: Files of the input that could not be used, where that was asked for.
    """

    shards: int
    done_before: int
    rows: int
    left_out: int
    skipped: list[Bad]


def run(
    worker: Worker,
    source: str | Path,
    output: str | Path,
    *,
    engine: Engine | None = None,
    skip_unreadable: bool = False,
    shard_rows: int = SHARD_ROWS,
    progress: Progress | None = None,
) -> Outcome:
    """Apply a worker to every shard of a folder, each to a file of the same name in another.

    A file is written beside and moved to its place when it is whole, by this process alone. What
    the folder holds is in its manifest, so that the same call after a kill does only what is
    missing, and after a change of some input files only those.

    Args:
        worker: `Encode`, `Transform` or `BlockMoments`.
        source: A folder of .parquet files, also in folders of it; one file; or an address of
            either, such as `s3://bucket/folder`.
        output: A folder on a disk that all workers share.
        engine: Where it is done; None for this process.
        skip_unreadable: Leave out files that cannot be used, and say which; otherwise the first of
            them is an error. They are tried again by the next run.
        shard_rows: A file of more rows is split where one of its row groups ends.
        progress: Called with the rows done, those done before included, and their total.

    Returns:
        What was done.

    Raises:
        InputError: There is no such folder, the output is an address, a file cannot be used or was
            changed meanwhile (it is named), or files of the output come from files that are gone.
        ModelError: The output cannot be written, holds something else, was made in another way, or
            another process is writing it; or the model cannot be loaded.
        MissingDependencyError: pyarrow is not there.

    Example:
        >>> import tempfile
        >>> import numpy as np, pyarrow, pyarrow.parquet
        >>> from bertflow import Standardization
        >>> from bertflow.scale import Transform
        >>> x = np.array([[0.0, 10.0], [2.0, 30.0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     home, out = Path(folder, "in"), Path(folder, "out")
        ...     home.mkdir()
        ...     table = pyarrow.table({"id": [7, 8], "vector": x.tolist()})
        ...     pyarrow.parquet.write_table(table, home / "a.parquet")
        ...     first = run(Transform(Standardization().fit(x)), home, out)
        ...     again = run(Transform(Standardization().fit(x)), home, out)
        ...     found = pyarrow.parquet.read_table(out / "a.parquet").to_pydict()
        >>> found
        {'id': [7, 8], 'vector': [[-1.0, -1.0], [1.0, 1.0]]}
        >>> first.rows, first.done_before, again.done_before
        (2, 0, 1)
    """
    engine = engine or Local()
    if "://" in str(output):
        raise InputError(f"{output} is an address; give a folder on a disk that all workers share")
    output = Path(output)
    place = Place(source)
    with _held(output):
        if _is_inside(place, output):
            raise InputError(f"{output} is or lies in the input {source}; give a folder of its own")
        planned = plan(place, worker.columns, shard_rows=shard_rows)
        skipped = list(planned.bad)
        if skipped and not skip_unreadable:
            raise InputError(_refusal(skipped))
        if not planned.shards:
            raise InputError(f"none of the files in {source} can be used: {skipped[0].reason}")
        manifest = Manifest(output)
        _refuse_foreign(output, manifest, planned)
        description = engine.describe(worker)
        recipe = digest_of(description)
        manifest.begin(description)
        try:
            before = [shard for shard in planned.shards if manifest.is_done(shard, place)]
            there = {shard.name for shard in before}
            todo = [shard for shard in planned.shards if shard.name not in there]
            log.info("%d shards, %d of them done before", len(planned.shards), len(before))
            done, total = sum(shard.rows for shard in before), planned.rows
            if progress is not None:
                progress(done, total)
            with _beside(output) as beside:
                schema = packed_schema(planned.schema)
                jobs = [
                    Job(shard, place.address, place.where, str(beside / str(n)), schema, recipe)
                    for n, shard in enumerate(todo)
                ]
                shards = {shard.name: shard for shard in todo}
                for receipt in _each_once(engine.run(worker, jobs)):
                    shard = shards.pop(receipt.name)
                    if receipt.error is not None:
                        _raise_or_skip(receipt, shard, skip_unreadable, skipped)
                    else:
                        manifest.add(_in_place(receipt, shard, output))
                    done += shard.rows
                    if progress is not None:
                        progress(done, total)
            if shards:
                raise ModelError(
                    f"{len(shards)} shards came to nothing, the first {next(iter(shards))}; run "
                    "it again"
                )
            left = {one.path for one in skipped}
            order = [shard for shard in planned.shards if shard.path not in left]
            _remove_former(output, manifest, {shard.name for shard in order})
            manifest.finish(order, skipped)
        finally:
            manifest.close()
    records = [manifest.records[shard.name] for shard in order]
    return Outcome(
        shards=len(order),
        done_before=sum(shard.name in there for shard in order),
        rows=sum(record.rows for record in records),
        left_out=sum(record.left_out for record in records),
        skipped=skipped,
    )


@contextmanager
def _held(output: Path) -> Iterator[None]:
    """Be the only one who writes to a folder; one that was made for nothing goes again."""
    made = [folder for folder in (output, *output.absolute().parents) if not folder.exists()]
    if output.exists() and not output.is_dir():
        raise ModelError(f"{output} is a file; give a folder")
    held = False
    try:
        with sole_writer(output, output / LOCK):
            held = True
            yield
    finally:
        for folder in made if held else ():
            with suppress(OSError):  # It holds something.
                folder.rmdir()


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A folder for files to be. What killed processes left there goes, and so does this one.

    Its name is this run's: what an actor of a run that was killed may still be writing has none.
    """
    home = output / BEING_WRITTEN
    shutil.rmtree(home, ignore_errors=True)
    try:
        folder = home / secrets.token_hex(4)
        folder.mkdir(parents=True)
    except OSError as error:
        raise ModelError(f"cannot write {output}: {reason_of(error)}") from None
    try:
        yield folder.absolute()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _each_once(receipts: Iterator[Receipt]) -> Iterator[Receipt]:
    """Receipts, but of a job that was done again, because its actor was lost, the first alone."""
    seen: set[str] = set()
    for receipt in receipts:
        if receipt.name not in seen:
            seen.add(receipt.name)
            yield receipt


def _in_place(receipt: Receipt, shard: Shard, output: Path) -> Record:
    """Move a file to its place."""
    target = output / shard.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(receipt.target).replace(target)
        stat = target.stat()
    except OSError as error:
        raise ModelError(f"cannot write {target}: {reason_of(error)}") from None
    return Record(
        shard=shard,
        input=receipt.input,
        size=stat.st_size,
        modified=stat.st_mtime_ns,
        output=receipt.output,
        rows=receipt.rows,
        left_out=receipt.left_out,
    )


def _raise_or_skip(receipt: Receipt, shard: Shard, skipping: bool, skipped: list[Bad]) -> None:
    assert receipt.error is not None
    if receipt.at_fault != "input":
        log.info("%s", receipt.details)
        raise ModelError(receipt.error)
    if not skipping:
        raise InputError(receipt.error)
    if all(one.path != shard.path for one in skipped):
        skipped.append(Bad(shard.path, receipt.error))


def _refusal(bad: Sequence[Bad]) -> str:
    more = f"; {len(bad) - 1} more cannot be used" if len(bad) > 1 else ""
    return f"{bad[0].reason}{more}"


def _refuse_foreign(output: Path, manifest: Manifest, planned: Plan) -> None:
    """Refuse to write where others have written, or where rows would be twice."""
    try:
        found = sorted(path.relative_to(output).as_posix() for path in output.rglob("*.parquet"))
    except OSError as error:
        raise ModelError(f"{output} cannot be read: {reason_of(error)}") from None
    ours = {*manifest.records, *(shard.name for shard in planned.shards)}
    found = [name for name in found if not name.startswith(".")]
    if manifest.recipe is None and found:
        raise ModelError(
            f"{output} holds {found[0]} but no {MANIFEST}: bertflow did not write it there; give a "
            "folder that is empty or not there yet"
        )
    for name in found:
        if name not in ours and name not in {one.path for one in planned.bad}:
            raise ModelError(
                f"{output} holds {name}, which its {MANIFEST} does not; remove it or give another "
                "output"
            )
    paths = {shard.path for shard in planned.shards} | {one.path for one in planned.bad}
    for name, record in manifest.records.items():
        if record.shard.path not in paths and (output / name).exists():
            raise InputError(
                f"{output / name} was made of {record.shard.path}, which is gone; remove it or "
                "give another output"
            )


def _remove_former(output: Path, manifest: Manifest, names: set[str]) -> None:
    """Remove what was made of files that are now split otherwise, or cannot be used any more."""
    for name in [*manifest.records]:
        if name not in names:
            with suppress(OSError):
                (output / name).unlink()
            log.info("removed %s, whose input has changed", output / name)


def _is_inside(place: Place, output: Path) -> bool:
    if "://" in place.where or place.is_file:
        return False
    home, out = os.path.realpath(place.where), os.path.realpath(output)
    return os.path.commonpath([home, out]) == home


def files_of(output: str | Path) -> list[Path]:
    """The files of a folder that `run` has finished, in the order of the input.

    Raises:
        ModelError: It has no manifest, or a file is missing.
    """
    manifest = Manifest(Path(output))
    if manifest.recipe is None:
        raise ModelError(f"{output} has no {MANIFEST}; bertflow has not written it")
    files = [manifest.folder / name for name in manifest.records]
    for file in files:
        if not file.exists():
            raise ModelError(f"{file} is missing; run it again")
    return files
