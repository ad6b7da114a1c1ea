r"""A fitted calibrator as built-in sentence-transformers modules: a chain of `Dense`.

A model saved this way loads with plain sentence-transformers, without `trust_remote_code`. Affine
calibrators are two `Dense`: one subtracts the centre (exactly: its weight is the identity), one
multiplies.

A flow of additive couplings is a residual network, see `bertflow.flows.ResidualForm`:
:math:`u \leftarrow u + V h(u) + v`. A `Dense` has one activation for all its outputs, but only h
bends. LeakyReLU with slope a lets u through, and makes the units of h out of pairs:

.. math::
    \ell(-\ell(u)) = -a\,u, \qquad \mathrm{relu}(p) = \frac{\ell(p) + a\,\ell(-p)}{1 - a^2}.

So a coupling, whose net has two hidden layers, is two `Dense` with LeakyReLU. Before them one
`Dense` centres, after them one closes; principal axes, gains and offset are part of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Router
from torch import Tensor, nn

from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, Flow, LinearCalibrator
from bertflow.encoders.probe import difference
from bertflow.errors import ModelError
from bertflow.flows import ResidualCoupling, ResidualForm

# How far the portable form may differ from the calibrator on real vectors.
TOLERANCE = 1e-4
CHECKED_ROWS = 512

OTHERWISE = "save with bertflow's own module (portable=False, on the command line --no-portable)"
# LeakyReLU's default slope, as float32 holds it: a module loaded by name has no other.
SLOPE = float(torch.tensor(0.01, dtype=torch.float32))


def to_modules(calibrator: Calibrator, in_features: int) -> list[Any]:
    """Write a fitted calibrator as built-in modules.

    They are to append to a SentenceTransformer: `Dense`, and `Normalize` where a flow does. Of
    `in_features` dimensions that arrive the first are taken, as an encoder's `truncate_dim` does.
    After a fit with queries they are one `Router`, whose routes share all modules but those that
    bring queries to the documents.

    Raises:
        ModelError: The calibrator has no such form; the message says why.
    """
    if (queries := calibrator.query_map_) is not None:
        documents = after = _one_sided(calibrator, in_features)
        if in_features > calibrator.n_features_in_:  # The query map takes the first of them.
            after = _one_sided(calibrator, calibrator.n_features_in_)
        brought = [_centring(queries.centre, in_features), _dense(queries.matrix, queries.target)]
        # A task that is no role has a route, too: that of documents, as without a task.
        routes: Any = {("query", None): "query", (None, None): "document"}
        modules = [
            Router(
                {"query": [*brought, *after], "document": documents},
                default_route="document",
                route_mappings=routes,
            )
        ]
    else:
        modules = _one_sided(calibrator, in_features)
    if not all(bool(p.isfinite().all()) for module in modules for p in module.parameters()):
        raise ModelError(
            f"the {type(calibrator).__name__} was fitted on numbers too far from 1 for float32, in "
            f"which built-in modules compute; scale the vectors, or {OTHERWISE}"
        )
    return modules


def _one_sided(calibrator: Calibrator, in_features: int) -> list[Any]:
    if isinstance(calibrator, Flow):
        return _flow_modules(calibrator, in_features)
    if isinstance(calibrator, LinearCalibrator):
        centre, matrix = calibrator.affine()
        modules = [_centring(centre, in_features)] if bool(centre.any()) else []
        unread = torch.zeros(len(matrix), 0 if modules else in_features - matrix.shape[1])
        modules.append(_dense(torch.cat([matrix, unread], dim=1), torch.zeros(len(matrix))))
        return modules
    raise ModelError(f"{type(calibrator).__name__} has no form in built-in modules")


def check_design(calibrator: Calibrator) -> None:
    """Refuse a flow, fitted or not, whose affine couplings have no form in built-in modules."""
    if isinstance(calibrator, Flow) and calibrator.coupling == "affine":
        raise ModelError(
            "AffineCoupling multiplies one half by a function of the other, which no chain of "
            f"built-in modules can do; fit with coupling='additive', or {OTHERWISE}"
        )


def _flow_modules(flow: Flow, in_features: int) -> list[Dense | Normalize]:
    frame = flow.frame_
    live = torch.from_numpy(frame.live)
    check_design(flow)
    form = ResidualForm.of(flow.flow_)
    width, count = len(live), frame.count
    # From the axes that vary to all of them, in the calibrator's order.
    embed = torch.eye(width, dtype=torch.float64)[live]
    close = torch.zeros(width, width, dtype=torch.float64)
    close[:count] = form.matrix @ embed
    close[count:] = torch.eye(width, dtype=torch.float64)[~live]
    bias = torch.cat([form.constant, torch.zeros(width - count, dtype=torch.float64)])
    bias = frame.temper(bias)
    if frame.gain is not None:
        close = torch.from_numpy(frame.gain)[:, None] * close
    modules: list[Dense | Normalize] = []
    if frame.normalize:
        if in_features > width:  # The length is that of the part that is taken.
            modules.append(_centring(torch.zeros(width), in_features))
            in_features = width
        modules.append(Normalize())
    modules.append(_centring(torch.from_numpy(frame.mean), in_features))
    entry = torch.diag(1 / torch.from_numpy(frame.scale))
    if frame.components is not None:
        entry = entry @ torch.from_numpy(frame.components)
    start = torch.zeros(width, dtype=torch.float64)
    for coupling in form.couplings:
        modules.extend(_coupling_modules(coupling, embed, entry, start))
        # What the next module must apply to this one's output to have u again.
        hidden = _relu_of_pairs(coupling.width)
        if coupling.residual:
            hidden = torch.cat([hidden, torch.eye(coupling.width, dtype=torch.float64)], dim=1)
        carried = torch.eye(width, dtype=torch.float64) / -SLOPE
        entry = torch.cat([carried, embed.T @ coupling.out @ hidden], dim=1)
        start = embed.T @ coupling.shift
    modules.append(_dense(close @ entry, close @ start + bias))
    return modules


def _coupling_modules(
    coupling: ResidualCoupling, embed: Tensor, entry: Tensor, start: Tensor
) -> list[Dense]:
    """The two bent modules of a coupling.

    The first makes [l(u), l(p1), l(-p1)], the second [-a u, l(p2), l(-p2)] and, for a residual
    connection, h1, which LeakyReLU leaves as it is because it is not negative.
    """
    width, hidden = embed.shape[1], coupling.width
    relu, pad = _relu_of_pairs(hidden), nn.functional.pad
    w1 = coupling.w1 @ embed
    first = torch.cat([entry, w1 @ entry, -w1 @ entry])
    p1 = w1 @ start + coupling.b1
    w2 = pad(coupling.w2 @ relu, (width, 0))
    second = [pad(-torch.eye(width, dtype=torch.float64), (0, 2 * hidden)), w2, -w2]
    bias = [torch.zeros(width, dtype=torch.float64), coupling.b2, -coupling.b2]
    if coupling.residual:
        second.append(pad(relu, (width, 0)))
        bias.append(torch.zeros(hidden, dtype=torch.float64))
    return [
        _dense(first, torch.cat([start, p1, -p1]), nn.LeakyReLU()),
        _dense(torch.cat(second), torch.cat(bias), nn.LeakyReLU()),
    ]


def _relu_of_pairs(width: int) -> Tensor:
    """The matrix that turns [l(p), l(-p)] into relu(p), shape (width, 2 width)."""
    identity = torch.eye(width, dtype=torch.float64) / (1 - SLOPE**2)
    return torch.cat([identity, SLOPE * identity], dim=1)


def _centring(centre: Tensor, in_features: int) -> Dense:
    """Subtract the centre: a weight of ones and zeros leaves every digit of x - centre."""
    return _dense(torch.eye(len(centre), in_features), -centre)


def _dense(weight: Tensor, bias: Tensor, activation: nn.Module | None = None) -> Dense:
    return Dense(
        weight.shape[1],
        weight.shape[0],
        activation_function=activation or nn.Identity(),
        init_weight=weight.float().contiguous(),
        init_bias=bias.float(),
    )


def check_portable(
    calibrator: Calibrator, modules: Sequence[Any], width: int, sample: Array | None
) -> None:
    """Compare the built-in modules with the calibrator itself, on real vectors or a flow's own."""
    if sample is None:
        if not isinstance(calibrator, Flow):
            return
        sample = calibrator.sample(CHECKED_ROWS, random_state=0)
    padded = np.pad(sample.astype(np.float32), ((0, 0), (0, width - sample.shape[1])))
    off = apart(calibrator, modules, sample, padded)
    if off > TOLERANCE:
        raise ModelError(
            f"the built-in modules differ from the calibrator by {off:.1e} (allowed "
            f"{TOLERANCE:.0e}): its map is too ill-conditioned for float32; train it less, or "
            f"{OTHERWISE}"
        )


@torch.no_grad()
def apart(
    calibrator: Calibrator,
    modules: Sequence[Any],
    rows: Array,
    whole: Array,
    device: torch.device | str = "cpu",
) -> float:
    """How far modules are from their calibrator on rows, which arrive at them whole."""
    off, exact = [], rows.astype(np.float64)
    for role in ("document",) if calibrator.query_map_ is None else ("document", "query"):
        features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(whole).to(device)}
        for module in modules:
            takes = "task" in getattr(module, "forward_kwargs", ())
            features = module(features, task=role) if takes else module(features)
        image = np.asarray(features["sentence_embedding"].float().cpu())
        off.append(difference(calibrator._rows(exact, role), image))
    return max(off)
