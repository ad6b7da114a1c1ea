"""Vectors in .npy files: read memory-mapped, and transformed in chunks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from bertflow.arrays import Array, finite
from bertflow.errors import InputError
from bertflow.io.files import check_apart, check_writable, part_folder, placed, reason_of, writing
from bertflow.io.reading import HEAD, contents, path_of

log = logging.getLogger(__name__)

CHUNK_ROWS = 65536
Progress = Callable[[int, int], None]


def read_vectors(path: str | Path) -> Array:
    """Open a .npy file of vectors, shape (N, D), memory-mapped and read-only.

    Raises:
        InputError: The file is missing, not a .npy, holds objects, is not a matrix, breaks off, or
            goes on after it.
    """
    path = path_of(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist, or is no file")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        vectors: np.memmap = open_memmap(path, mode="r")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}") from None
    except Exception:  # numpy parses a header as Python text, so any can come of a damaged one.
        other = None if head.startswith(np.lib.format.MAGIC_PREFIX) else contents(head)
        said = other or "is not a whole .npy file of numbers, as numpy.save writes it"
        raise InputError(f"{path} {said}") from None
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


def transform_file(
    transform: Callable[[Array], Array],
    source: str | Path,
    target: str | Path,
    *,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Map a .npy file (N, D) to another in chunks, in memory that does not grow with the file.

    Args:
        transform: Maps rows (n, D) to rows (n, K), such as a calibrator's `transform`.
        source: The file to read.
        target: The file to write, replaced as a whole.
        progress: Called with the rows done and their total.

    Returns:
        The shape (N, K).

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
    first = transform(_chunk(vectors, 0))

    def chunks() -> Iterator[Array]:
        for start in range(0, len(vectors), CHUNK_ROWS):
            try:
                yield transform(_chunk(vectors, start)) if start else first
            except InputError as error:
                raise InputError(f"{source}, with row {start} counted as 0: {error}") from None
            if progress is not None:
                progress(min(start + CHUNK_ROWS, len(vectors)), len(vectors))

    shape = (len(vectors), first.shape[1])
    _write(Path(target), shape, first.dtype, chunks())
    log.info("wrote %s: %d vectors of %d dimensions", target, *shape)
    return shape


def _chunk(vectors: Array, start: int) -> Array:
    chunk = vectors[start : start + CHUNK_ROWS]
    return chunk if chunk.dtype.kind == "f" else chunk.astype(np.float64)


def _write(path: Path, shape: tuple[int, int], dtype: np.dtype, chunks: Iterable[Array]) -> None:
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, shape[1]), dtype))
    # Written, not memory-mapped: on a full disk a mapped file would kill the process.
    with writing(path), part_folder(path), placed(path) as staging, staging.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
        file.flush()
        os.fsync(file.fileno())
