"""A fitted calibrator as a torch module that exporters can record: functional operations only."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bertflow.arrays import unit_length
from bertflow.calibrators.base import Calibrator, learned_tensor
from bertflow.calibrators.flow import Flow
from bertflow.calibrators.linear import LinearCalibrator
from bertflow.calibrators.moments import QueryMap
from bertflow.errors import ModelError
from bertflow.flows import Bijection, Glow, InvertibleLinear


class CalibratorGraph(nn.Module):
    r"""What `transform` does, or `inverse_transform`, in float32: (N, D) to (N, K), or back.

    .. math:: z = A (q(x) - \mu) \quad\text{or}\quad z = g \odot f(A (q(x) - \mu)) + b

    q brings queries to the documents, f is a flow's Glow. A calibrator's own methods write into
    tensors that are there and keep others, which a recording of them would take for constants.

    Args:
        calibrator: A fitted linear calibrator or flow.
        role: Of the rows, "query" or "document".
        inverse: Undo the map instead.

    Raises:
        ModelError: The calibrator is of another kind.

    Example:
        >>> from bertflow import Whitening
        >>> whitening = Whitening().fit([[0.0, 1.0], [2.0, 5.0], [4.0, 3.0]])
        >>> z = CalibratorGraph(whitening)(torch.tensor([[2.0, 3.0]]))
        >>> CalibratorGraph(whitening, inverse=True)(z)
        tensor([[2., 3.]])
    """

    def __init__(
        self, calibrator: Calibrator, role: str = "document", *, inverse: bool = False
    ) -> None:
        super().__init__()
        steps: list[nn.Module]
        if isinstance(calibrator, LinearCalibrator):
            steps = [_inverse_affine(calibrator) if inverse else _affine(calibrator)]
        elif isinstance(calibrator, Flow):
            steps = _out_of_flow(calibrator) if inverse else _into_flow(calibrator)
        else:
            raise ModelError(f"{type(calibrator).__name__} has no form that can be recorded")
        queries = calibrator.query_map_ if role == "query" else None
        if queries is not None:
            steps = [*steps, _brings(queries.inverse())] if inverse else [_brings(queries), *steps]
        self.steps = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows."""
        mapped: Tensor = self.steps(x)
        return mapped


class _Affine(nn.Module):
    """Rows x to (x - before) @ matrix.T + after."""

    def __init__(self, before: Tensor, matrix: Tensor, after: Tensor) -> None:
        super().__init__()
        self.before, self.after = nn.Buffer(before.float()), nn.Buffer(after.float())
        # The product is of the plain layout, which onnxruntime multiplies by without turning it.
        self.transposed = nn.Buffer(matrix.T.float().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.before) @ self.transposed + self.after


class _Glow(nn.Module):
    """A Glow over the first columns of a row, or its inverse; the others pass it by."""

    def __init__(self, glow: Glow, *, inverse: bool) -> None:
        super().__init__()
        self.glow, self.inverse = copy.deepcopy(glow).float(), inverse
        level: Any
        for level, _ in self.glow.stages():
            for place, step in enumerate(level.steps):
                if isinstance(step, InvertibleLinear):
                    level.steps[place] = _Matrix(step)

    def forward(self, u: Tensor) -> Tensor:
        own, rest = u[:, : self.glow.features], u[:, self.glow.features :]
        mapped = self.glow.inverse(own) if self.inverse else self.glow(own)[0]
        return torch.cat([mapped, rest], dim=1) if rest.shape[1] else mapped


class _Matrix(Bijection):
    """An `InvertibleLinear` as its matrix and the inverse: no runtime solves triangular systems."""

    def __init__(self, layer: InvertibleLinear) -> None:
        super().__init__()
        weight = copy.deepcopy(layer).double().weight().detach()
        self.weight = nn.Buffer(weight.float())
        self.inverted = nn.Buffer(torch.linalg.inv(weight).float())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight.T, x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        return z @ self.inverted.T


class _UnitLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return unit_length(x)


def _affine(calibrator: LinearCalibrator) -> _Affine:
    centre, matrix = calibrator.affine()
    return _Affine(centre, matrix, torch.zeros(len(matrix)))


def _inverse_affine(calibrator: LinearCalibrator) -> _Affine:
    width, kept = calibrator.n_features_in_, calibrator._n_features_out
    matrix = torch.empty(kept, width, dtype=torch.float64)
    calibrator._inverse_linear_into(torch.eye(kept, dtype=torch.float64), matrix)
    return _Affine(torch.zeros(kept), matrix.T, learned_tensor(calibrator.mean_))


def _brings(queries: QueryMap) -> _Affine:
    return _Affine(queries.centre, queries.matrix, queries.target)


def _entry(flow: Flow) -> Tensor:
    """The matrix from centred rows to a Glow's columns: those that vary, then the others."""
    frame = flow.frame_
    axes = torch.eye(len(frame.mean), dtype=torch.float64)
    if frame.components is not None:
        axes = learned_tensor(frame.components)
    return (axes / learned_tensor(frame.scale)[:, None])[torch.from_numpy(frame.order)]


def _tempering(flow: Flow) -> tuple[Tensor, Tensor]:
    """Gain and offset behind a Glow."""
    ones = torch.ones(flow.n_features_in_, dtype=torch.float64)
    offset = flow.frame_.temper(torch.zeros_like(ones))
    return flow.frame_.temper(ones) - offset, offset


def _into_flow(flow: Flow) -> list[nn.Module]:
    frame, (gain, offset) = flow.frame_, _tempering(flow)
    none = torch.zeros(len(gain))
    steps = [
        _Affine(learned_tensor(frame.mean), _entry(flow), none),
        _Glow(flow.flow_, inverse=False),
    ]
    if frame.gain is not None or frame.offset is not None:
        steps.append(_Affine(none, torch.diag(gain), offset))
    return [_UnitLength(), *steps] if frame.normalize else steps


def _out_of_flow(flow: Flow) -> list[nn.Module]:
    gain, offset = _tempering(flow)
    back = torch.linalg.inv(_entry(flow))
    return [
        _Affine(offset, torch.diag(1 / gain), torch.zeros(len(gain))),
        _Glow(flow.flow_, inverse=True),
        _Affine(torch.zeros(len(gain)), back, learned_tensor(flow.frame_.mean)),
    ]
