"""Vectors in .npy files, read and written in chunks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from bertflow.arrays import Array, finite
from bertflow.calibrators.base import Calibrator
from bertflow.errors import InputError, ModelError, quoted, shown
from bertflow.io.contents import HEAD, contents
from bertflow.io.files import check_apart, check_writable, placed
from bertflow.io.outputs import part_folder

log = logging.getLogger(__name__)

CHUNK_ROWS = 65536
Progress = Callable[[int, int], None]


def read_vectors(path: str | Path) -> Array:
    """Open a .npy file of vectors, memory-mapped and read-only.

    Args:
        path: A matrix of shape (N, D) of any floating or integer type.

    Returns:
        The matrix.

    Raises:
        InputError: The file is missing, not a .npy, holds objects, is not a matrix, or goes on
            after it.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist" if not path.exists() else f"{path} is no file")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head.startswith(b"PK"):
            raise InputError(
                f"{path} is an archive of arrays ({', '.join(map(shown, ZipFile(path).namelist()))}"
                "); give a .npy file of one, as numpy.save writes it"
            )
        if head.startswith(b"PAR1"):
            raise InputError(
                f"{path} is a .parquet file, expected a .npy; fit and transform read it, ids and "
                f"all, by --vectors {quoted(path)} --engine local"
            )
        if not head.startswith(np.lib.format.MAGIC_PREFIX) and (said := contents(head)):
            raise InputError(f"{path} {said}")
        vectors: np.memmap = np.lib.format.open_memmap(path, mode="r")
    except InputError:
        raise
    # numpy parses a header as Python text, so a damaged one can raise any exception.
    except Exception as error:
        objects = " but of Python objects, as of rows that differ in length"
        raise InputError(
            f"{path} is not a .npy file of numbers{objects if 'Python obj' in str(error) else ''}; "
            "numpy.save writes one"
        ) from None
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds an array of shape {vectors.shape} and type {vectors.dtype}; "
            "expected a matrix of numbers, one row a vector"
        )
    if left := path.stat().st_size - vectors.offset - vectors.nbytes:
        raise InputError(
            f"{path} holds {left:,} bytes more after its array of shape {vectors.shape}, as if "
            "saved to twice; give one array a file"
        )
    log.info("%s: %d vectors of %d dimensions, %s", path, *vectors.shape, vectors.dtype)
    return vectors


def write_vectors(path: str | Path, vectors: Array) -> None:
    """Write a .npy file that is then the new one whole, or still the old one.

    Raises:
        ModelError: It cannot be written, or another process is writing it.
    """
    starts = range(0, len(vectors), CHUNK_ROWS)
    chunks = (vectors[start : start + CHUNK_ROWS] for start in starts)
    _write(path, vectors.shape, vectors.dtype, chunks)


def transform_file(
    calibrator: Calibrator,
    source: str | Path,
    target: str | Path,
    *,
    inverse: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Map a .npy file to another in chunks, in memory that does not grow with the file.

    Args:
        calibrator: Fitted.
        source: Vectors, shape (N, D).
        target: The file to write, replaced as a whole; not the source.
        inverse: Apply `inverse_transform` instead.
        progress: Called with the rows done and their total.

    Returns:
        The shape of what was written.

    Raises:
        InputError: The source is not readable, of another width, or has a row that is not finite or
            whose image its type cannot hold; or the target is the source.
        ModelError: The target cannot be written, or another process is writing it.
    """
    check_apart({"the output": target}, [("the transform", source)])
    check_writable(target, rows=True)
    vectors = read_vectors(source)
    if len(vectors) == 0:
        raise InputError(f"{source} holds no vector")
    finite(vectors)
    apply = calibrator.inverse_transform if inverse else calibrator.transform
    first = apply(_chunk(vectors, 0))

    def chunks() -> Iterator[Array]:
        for start in range(0, len(vectors), CHUNK_ROWS):
            try:
                yield apply(_chunk(vectors, start)) if start else first
            except InputError as error:
                raise InputError(f"{source}, with row {start} counted as 0: {error}") from None
            if progress is not None:
                progress(min(start + CHUNK_ROWS, len(vectors)), len(vectors))

    shape = (len(vectors), first.shape[1])
    _write(target, shape, first.dtype, chunks())
    return shape


def _chunk(vectors: Array, start: int) -> Array:
    chunk = vectors[start : start + CHUNK_ROWS]
    return chunk if chunk.dtype.kind == "f" else chunk.astype(np.float64)


def _write(
    path: str | Path, shape: tuple[int, ...], dtype: np.dtype, chunks: Iterable[Array]
) -> None:
    path = Path(path)
    description = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    try:
        # Written, not memory-mapped: on a full disk a mapped file would kill the process.
        with part_folder(path), placed(path) as staging, staging.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, description)
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None
    log.info("wrote %s: %d vectors of %d dimensions", path, *shape)
