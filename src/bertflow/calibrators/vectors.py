"""Vectors in .npy files, read and written in chunks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertflow.calibrators.base import Array, Calibrator, finite
from bertflow.errors import InputError, ModelError

CHUNK_ROWS = 65536
Progress = Callable[[int, int], None]


def read_vectors(path: str | Path) -> Array:
    """Open a .npy file of vectors, memory-mapped and read-only.

    Args:
        path: A matrix of shape (N, D) of any floating or integer type.

    Returns:
        The matrix.

    Raises:
        InputError: The file is missing, not a .npy, holds objects, or is not a matrix.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist" if not path.exists() else f"{path} is no file")
    try:
        vectors: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise InputError(f"{path} is not a .npy file of numbers") from None
    if not isinstance(vectors, np.ndarray):
        raise InputError(f"{path} is an archive of arrays; give a .npy file of one")
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds an array of shape {vectors.shape} and type {vectors.dtype}; "
            "expected a matrix of numbers, one row a vector"
        )
    return vectors


def write_vectors(path: str | Path, vectors: Array) -> None:
    """Write a .npy file that is then the new one whole, or still the old one.

    Raises:
        ModelError: It cannot be written.
    """
    _write(path, vectors.shape, vectors.dtype, lambda out: out.__setitem__(slice(None), vectors))


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
        target: The file to write, replaced as a whole.
        inverse: Apply `inverse_transform` instead.
        progress: Called with the rows done and their total.

    Returns:
        The shape of what was written.

    Raises:
        InputError: The source is not readable, of another width, or has a row that is not finite.
        ModelError: The target cannot be written.
    """
    vectors = read_vectors(source)
    if len(vectors) == 0:
        raise InputError(f"{source} holds no vector")
    finite(vectors)
    apply = calibrator.inverse_transform if inverse else calibrator.transform
    first = apply(_chunk(vectors, 0))

    def fill(out: Array) -> None:
        out[: len(first)] = first
        for start in range(0, len(vectors), CHUNK_ROWS):
            if start:
                out[start : start + CHUNK_ROWS] = apply(_chunk(vectors, start))
            if progress is not None:
                progress(min(start + CHUNK_ROWS, len(vectors)), len(vectors))

    shape = (len(vectors), first.shape[1])
    _write(target, shape, first.dtype, fill)
    return shape


def _chunk(vectors: Array, start: int) -> Array:
    chunk = vectors[start : start + CHUNK_ROWS]
    return chunk if chunk.dtype.kind == "f" else chunk.astype(np.float64)


def _write(
    path: str | Path, shape: tuple[int, ...], dtype: np.dtype, fill: Callable[[Array], None]
) -> None:
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        try:
            out = np.lib.format.open_memmap(staging, mode="w+", dtype=dtype, shape=shape)
            fill(out)
            out.flush()
            Path(staging).chmod(0o644)
            Path(staging).replace(path)
        finally:
            Path(staging).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None
