"""Vectors in the containers that people have them in, as one matrix of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor

from bertflow.errors import InputError, shown

FLOATS = (np.float64, np.float32, np.float16)
TORCH_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EXPECTED = "expected vectors: an array or tensor (rows, dimensions), or a list or column of them"


class NotNumbersError(InputError, TypeError):
    """What is given is of a kind that cannot be numbers; scikit-learn asks for a TypeError."""


def matrix(X: Any, width: int = 0) -> Any:  # noqa: N803
    """Rows as a matrix of floats: a numpy array, or a tensor where tensors are given.

    Args:
        X: An array, a tensor, a data frame of numbers; or a list, Series, object array, Arrow array
            or frame of one column whose entries are vectors.
        width: Dimensions of a list without rows.

    Raises:
        InputError: It is something else; the message says what, and what to do.

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
    """Whether these are columns of numbers that have names."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    return len(shape) == 2 and shape[1] != 1 and hasattr(X, "columns")


def _of_tensor(rows: Tensor) -> Tensor:
    if rows.is_complex():
        raise InputError(f"Complex data not supported: X is {rows.dtype}; give real numbers")
    if rows.layout != torch.strided or rows.is_nested:
        raise InputError("X is a sparse or nested tensor, which is not supported; make it dense")
    if rows.dtype not in TORCH_FLOATS:
        rows = rows.float() if rows.is_floating_point() else rows.double()
    return rows.detach()


def _of_others(X: Any) -> Any:  # noqa: N803
    kind = type(X).__name__
    if hasattr(X, "tocsr"):
        raise InputError(f"X is a sparse {kind}, which is not supported; give X.toarray()")
    if hasattr(X, "__next__"):
        raise InputError(f"X is a {kind}, which can be read once; {EXPECTED}: give list(X)")
    if isinstance(X, np.ma.MaskedArray):
        if (masked := np.ma.getmaskarray(X)).any():
            row = int(np.argwhere(masked)[0, 0])
            raise InputError(
                f"X is masked in row {row} (rows count from 0); fill it, or leave that row out"
            )
        X = X.data  # noqa: N806
    try:
        return _of_frame(X) if is_frame(X) else _of_array(X)
    except InputError:
        raise
    except Exception as error:  # Foreign types raise what they like.
        said = str(error).split("\n")[0][:150]
        raise NotNumbersError(f"X is a {kind}, no matrix ({said}); {EXPECTED}") from None


def _of_array(X: Any) -> Any:  # noqa: N803
    """What numpy makes an array of, be it of vectors."""
    try:
        array = np.asarray(X)
    except ValueError:  # Of rows of several lengths.
        if not isinstance(X, list | tuple):
            raise
        array = np.empty(len(X), dtype=object)
        for number, row in enumerate(X):
            array[number] = row
    if array.ndim == 0:
        raise InputError(f"X is a {type(X).__name__}; {EXPECTED}")
    if array.dtype == object and (array.ndim == 1 or array.shape[1:] == (1,)):
        cells = list(array.ravel())
        if any(np.ndim(cell) for cell in cells):
            stacked = _stacked(cells)
            return _of_tensor(stacked) if isinstance(stacked, Tensor) else _numbers(stacked)
    return _numbers(array)


def _of_frame(X: Any) -> NDArray[Any]:  # noqa: N803
    """A data frame's numbers; a column of something else is named."""
    names = getattr(X, "column_names", None) or list(X.columns)
    for name in names:
        column = np.asarray(X[name])
        if column.dtype.kind not in "fiub" and any(
            isinstance(cell, str) or np.ndim(cell) for cell in column
        ):
            holds = "text" if any(isinstance(cell, str) for cell in column) else "vectors"
            remedy = "leave it out" if holds == "text" else f"give X[{name!r}]"
            raise InputError(f"column {shown(name)} of X holds {holds} beside others; {remedy}")
    # What knows the missing values of data frames.
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
                f"row {number} of X (rows count from 0) is {_described(cells[number])}, row 0 is "
                f"{_described(cells[0])}; expected vectors of one length"
            )
    return torch.stack(rows) if tensors else np.stack(rows)


def _described(cell: Any) -> str:
    shape = np.shape(cell)
    if len(shape) == 1:
        return f"of length {shape[0]}"
    return f"of shape {shape}" if shape else shown(cell)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array of a floating type that torch has."""
    if array.dtype in FLOATS:
        return array
    kind = array.dtype.kind
    if kind == "c":
        raise InputError(f"Complex data not supported: X is {array.dtype}; give real numbers")
    if kind in "OUST":
        text = next((cell for cell in array.flat if isinstance(cell, str | bytes)), None)
        if text is not None:
            raise InputError(f"X holds text ({shown(str(text))}); {EXPECTED}; encode text first")
    if kind in "mM":
        raise InputError(f"X holds {array.dtype}; {EXPECTED}")
    return array.astype(np.float64)
