"""Vectors in any container as rows, read in chunks, and checked for finiteness."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor

from bertflow.errors import InputError, shown

Array: TypeAlias = NDArray[Any]
Rows = TypeVar("Rows", Array, Tensor)

CHUNK_ROWS = 4096
# Rows from anywhere in a memory-mapped file that are read before its memory is given back: the
# system may map megabytes around each row.
TAKEN_ROWS = 128
# Bytes mapped at a time: few enough for a processor's cache, enough to be worth a call.
CHUNK_BYTES = 2**22
# A GPU waits for each call, so more at a time, but little beside the rows themselves.
GPU_CHUNK_BYTES = 2**26

FLOATS = (np.float64, np.float32, np.float16)
TORCH_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EXPECTED = "expected vectors: an array or tensor (rows, dimensions), or a list or column of them"


class NotNumbersError(InputError, TypeError):
    """The input cannot be numbers; scikit-learn expects a TypeError for that."""


def matrix(X: Any, width: int = 0) -> Any:  # noqa: N803
    """Rows as a matrix of floats: a tensor if X is one or holds tensors, else a numpy array.

    X is an array, a tensor, a data frame of numbers; or a list, Series, object array, Arrow array
    or frame of one column whose entries are vectors. A list without rows gets `width` dimensions.

    Example:
        >>> matrix([[1, 2], [3, 4]]).dtype, matrix([torch.ones(2), torch.zeros(2)]).shape
        (dtype('float64'), torch.Size([2, 2]))
    """
    if isinstance(X, list | tuple) and X and isinstance(X[0], Tensor) and X[0].ndim:
        X = _stacked(X)
    rows = _of_tensor(X) if isinstance(X, Tensor) else _of_others(X)
    if tuple(rows.shape) == (0,):
        rows = rows.reshape(0, width)
    if rows.ndim != 2:
        raise InputError(
            f"expected vectors of shape (rows, dimensions), got shape {tuple(rows.shape)}. "
            "Reshape your data: a single vector by X.reshape(1, -1)"
        )
    return rows


def is_frame(X: Any) -> bool:  # noqa: N803
    """Whether X is a data frame: columns with names."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    return len(shape) == 2 and shape[1] != 1 and hasattr(X, "columns")


def _of_tensor(rows: Tensor) -> Tensor:
    if rows.is_complex():
        raise InputError(f"Complex data not supported: X is {rows.dtype}; give real numbers")
    if rows.is_meta or rows.is_quantized or rows.is_nested or rows.layout != torch.strided:
        raise InputError("X is a meta, quantized, sparse or nested tensor; give a dense one")
    if rows.dtype not in TORCH_FLOATS:
        rows = rows.float() if rows.is_floating_point() else rows.double()
    return rows.detach()


def _of_others(X: Any) -> Any:  # noqa: N803
    kind = type(X).__name__
    if hasattr(X, "tocsr"):
        raise InputError(f"X is a sparse {kind}, which is not supported; give X.toarray()")
    if np.ma.is_masked(X):
        raise InputError("X has masked numbers; fill them, or leave their rows out")
    try:
        return _of_frame(X) if is_frame(X) else _of_array(X)
    except InputError:
        raise
    except Exception as error:  # Foreign types raise what they like.
        said = str(error).split("\n")[0][:150]
        raise NotNumbersError(f"X is a {kind}, no matrix ({said}); {EXPECTED}") from None


def _of_array(X: Any) -> Any:  # noqa: N803
    array = np.asarray(X)
    if array.ndim == 0:
        raise InputError(f"X is a {type(X).__name__}; {EXPECTED}")
    if array.dtype == object and (array.ndim == 1 or array.shape[1:] == (1,)):
        cells = list(array.ravel())
        if any(np.ndim(cell) for cell in cells):
            stacked = _stacked(cells)
            return _of_tensor(stacked) if isinstance(stacked, Tensor) else _numbers(stacked)
    return _numbers(array)


def _of_frame(X: Any) -> NDArray[Any]:  # noqa: N803
    for name in getattr(X, "column_names", None) or list(X.columns):
        column = np.asarray(X[name])
        if column.dtype.kind not in "fiub" and any(
            isinstance(cell, str) or np.ndim(cell) for cell in column
        ):
            raise InputError(
                f"column {shown(name)} of X holds text or vectors beside others; leave it out, or "
                f"give X[{name!r}]"
            )
    # scikit-learn knows the missing values of data frames.
    return cast(
        "NDArray[Any]",
        check_array(X, dtype=list(FLOATS), ensure_all_finite=False, ensure_min_samples=0),
    )


def _stacked(cells: Sequence[Any]) -> Any:
    """One matrix of vectors of one length: a tensor where all are tensors."""
    tensors = all(isinstance(cell, Tensor) for cell in cells)
    rows: list[Any] = [cell.detach() if tensors else np.asarray(cell) for cell in cells]
    for number, row in enumerate(rows):
        if row.ndim != 1 or len(row) != len(rows[0]):
            raise InputError(
                f"row {number} of X (rows count from 0) has shape {tuple(row.shape)}, row 0 has "
                f"{tuple(rows[0].shape)}; expected vectors of one length"
            )
    return torch.stack(rows) if tensors else np.stack(rows)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array of a floating type that torch has."""
    if array.dtype in FLOATS:
        return array
    kind = array.dtype.kind
    if kind == "c":
        raise InputError(f"Complex data not supported: X is {array.dtype}; give real numbers")
    if kind == "O":
        kind = "U" if any(isinstance(cell, str | bytes) for cell in array.flat) else kind
    if kind in "USTmM" and array.size:
        cell = shown(str(array.flat[0]))
        raise InputError(f"X holds text or dates ({cell}); {EXPECTED}; encode text first")
    return array.astype(np.float64)


def check_device(name: str) -> torch.device:
    """The device of that name; an InputError if there is none."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device).cpu()  # Nothing comes back from "meta".
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"there is no device {name!r} here ({reason}); cpu always is") from None
    return device


def chunks(rows: Array | Tensor, size: int = CHUNK_ROWS) -> Iterator[Tensor]:
    """The rows in order, in float32 or float64 tensors of at most `size` rows."""
    for start in range(0, len(rows), size):
        yield as_tensor(rows[start : start + size])
        let_go(rows)


def as_tensor(rows: Array | Tensor) -> Tensor:
    """A tensor of float64 if the rows are, of float32 otherwise."""
    if isinstance(rows, Tensor):
        # Products of arrays with another memory layout are summed in another order.
        return (rows if rows.dtype == torch.float64 else rows.float()).contiguous()
    dtype = np.float64 if rows.dtype == np.float64 else np.float32
    # Read-only arrays (memory-mapped files, views) are copied: torch has no read-only tensors.
    return torch.from_numpy(np.require(rows, dtype=dtype, requirements=["C", "W"]))


def taken(rows: Array | Tensor, index: Tensor) -> Tensor:
    """The rows of an index (on the CPU), as `as_tensor` gives them."""
    if isinstance(rows, Tensor):
        return as_tensor(rows[index.to(rows.device)])
    numbers = index.numpy()
    if _file_of(rows) is None:
        return as_tensor(rows[numbers])
    # Read in the order of the file, a part at a time.
    found = np.empty((len(numbers), *rows.shape[1:]), dtype=rows.dtype)
    order = np.argsort(numbers)
    for start in range(0, len(order), TAKEN_ROWS):
        part = order[start : start + TAKEN_ROWS]
        found[part] = rows[numbers[part]]
        let_go(rows)
    return as_tensor(found)


def let_go(rows: Array | Tensor) -> None:
    """Give back the memory into which a read-only memory-mapped file has been read so far."""
    file = _file_of(rows)
    if file is not None and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED)


def _file_of(rows: Array | Tensor) -> mmap.mmap | None:
    """The memory map under read-only rows; giving back a private copy would lose its changes."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.mode != "r":
            return None
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def unit_length(x: Tensor) -> Tensor:
    """Rows scaled to length 1, (N, D) to (N, D); a row of zeros stays."""
    # By the largest entry first: squares of float32 overflow at 1e19 and vanish at 1e-23.
    largest = x.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.nn.functional.normalize(x / largest, dim=1)


def unit_rows(vectors: Array) -> Array:
    """Rows of an array scaled to length 1 in float64; a row of zeros stays."""
    return unit_length(torch.from_numpy(vectors.astype(np.float64))).numpy()


def mapped(function: Callable[[Tensor, Tensor], None], rows: Rows, width: int) -> Rows:
    """Apply a function to chunks of rows (N, D) and return (N, width) in their own kind and type.

    The function takes a chunk (n, D) in float32 or float64, and a tensor (n, width) of the same
    type to write to. What is not finite must come out as something not finite; such a row, or one
    whose image is not finite, is refused by its number.
    """
    result: Any
    if isinstance(rows, Tensor):
        result = rows.new_empty(len(rows), width)
        into = result
    else:
        result = np.empty((len(rows), width), dtype=rows.dtype)
        into = torch.from_numpy(result)
    most = GPU_CHUNK_BYTES if into.is_cuda else CHUNK_BYTES
    size = max(1, most // (4 * max(width, rows.shape[1])))
    start = 0
    with torch.no_grad():
        for chunk in chunks(rows, size):
            out = into[start : start + len(chunk)]
            if out.dtype == chunk.dtype:
                function(chunk, out)
            else:
                image = torch.empty_like(out, dtype=chunk.dtype)
                function(chunk, image)
                out.copy_(image)
            # Rows that are not finite have no finite image, so one check covers both.
            if not _is_finite(out):
                finite(chunk, start)
                # The image may fit although an intermediate result overflows: try float64.
                lost = ~out.isfinite().all(dim=1)
                again = chunk[lost].double()
                image = torch.empty(len(again), width, dtype=torch.float64, device=out.device)
                function(again, image)
                out[lost] = image.to(out.dtype)
                if not _is_finite(out):
                    raise InputError(
                        f"X is finite in row {start + _first_not_finite(out)} (rows count from 0), "
                        "but so far from the fitted rows that "
                        f"{str(out.dtype).removeprefix('torch.')} cannot hold what becomes of it; "
                        "give X in a wider type, or remove that row"
                    )
            start += len(chunk)
    return cast("Rows", result)


def finite(rows: Any, first: int = 0) -> Any:
    """The rows, unless one of them is not finite: that one is named, counted from `first`."""
    for chunk in chunks(rows):
        if not _is_finite(chunk):
            bad = _first_not_finite(chunk)
            kind = "NaN" if bool(chunk[bad].isnan().any()) else "infinity (inf)"
            raise InputError(
                f"X contains {kind} in row {first + bad} (rows count from 0); remove or mend that "
                "row"
            )
        first += len(chunk)
    return rows


def _is_finite(chunk: Tensor) -> bool:
    # A finite sum proves that all are finite. Otherwise look closer: the sum itself may overflow.
    half = chunk.dtype in (torch.float16, torch.bfloat16)
    total = chunk.sum(dtype=torch.float32 if half else chunk.dtype)
    return math.isfinite(total) or bool(chunk.isfinite().all())


def _first_not_finite(chunk: Tensor) -> int:
    return int((~chunk.isfinite().all(dim=1)).int().argmax())
