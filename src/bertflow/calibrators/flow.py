"""Flow: the paper's calibrator, a Glow and the loop that trains it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow.calibrators.base import (
    Array,
    Calibrator,
    as_tensor,
    check_device,
    check_number,
    empty,
    like,
    mapped,
)
from bertflow.calibrators.moments import ROUNDING, moments_of
from bertflow.calibrators.training import Progress, Schedule, train
from bertflow.errors import InputError, TrainingError
from bertflow.flows import Glow, Permutation, bounded_deviation
from bertflow.flows.glow import CouplingName, PermutationName
from bertflow.flows.layers import WeightInit

EVALUATION_ROWS = 65536


class Flow(Calibrator):
    r"""BERT-flow: an invertible map that turns the cloud of vectors into a standard Gaussian.

    .. math::
        \max_\phi\ \mathbb E_x \left[ \log \mathcal N(f_\phi(x); 0, I)
        + \log \left| \det \tfrac{\partial f_\phi}{\partial x} \right| \right],
        \qquad z = f_\phi(x)

    f is a `bertflow.flows.Glow`. The rows are first standardized, as the first ActNorm would do
    anyway, so that nothing depends on the unit of a dimension; dimensions that do not vary in the
    corpus bypass the flow. The defaults are the
    paper's Table 7, with what it leaves open (batches, decay of the step size, start of the
    weights) chosen so that results depend little on the seed; `Flow.released` gives the design and
    schedule of the released code.

    Args:
        levels: Levels of the multi-scale flow.
        depth: Steps (ActNorm, permutation, coupling) a level.
        width: Hidden width of the coupling nets.
        coupling: "additive" or "affine".
        permutation: "random", "reverse" or "linear" (a learned invertible matrix).
        residual: Residual connection in the coupling nets.
        scale_rate: How fast log-scales train, see `bertflow.flows.ActNorm`.
        weight_init: How the coupling nets start: "orthogonal", with which results depend less on
            the seed, or "normal" as in the released code.
        epochs: Passes over the rows; a fraction stops within the first.
        batch_size: Rows (sentences) a step.
        learning_rate: Step size of Adam at the start.
        schedule: "linear" lets the step size fall to zero over the fit, which halves what the
            result depends on the seed; "constant" is the released code's.
        weight_decay: Decoupled weight decay.
        bias_correction: Adam's correction of its early moments; the released code has none.
        adam_epsilon: Added to the root of Adam's second moment.
        max_grad_norm: Gradients are clipped to this norm; None does not clip.
        device: Where to fit: "auto" takes a GPU if there is one; results come back to the CPU.
        random_state: Seed or numpy RandomState; the same seed, rows and thread count give the
            same bits.

    Attributes:
        flow_: The fitted `bertflow.flows.Glow`, over the dimensions that vary.
        mean_: Centre of the rows, shape (D,).
        scale_: What each dimension is divided by first, shape (D,): its deviation, or the typical
            one where it does not vary.
        live_: Which dimensions vary, booleans of shape (D,).
        loss_: Bits per dimension of the fitted rows (a sample of 65,536 where there are more):
            the mean of −log_prob / (D ln 2). A density's, so it can be negative.
        loss_curve_: The training loss of every step, shape (steps,), in the same unit.

    Raises:
        InputError: By fit, for bad rows or an argument out of its range.
        TrainingError: By fit, if a step is not finite.

    Source:
        Paper, sections 3.2 and 4.1, appendix A and B, Table 7.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(256, 8)) ** 3
        >>> flow = Flow(epochs=2).fit(x)
        >>> z = flow.transform(x)
        >>> bool(np.allclose(flow.inverse_transform(z), x, atol=1e-6))
        True
        >>> flow.log_prob(x).shape, flow.sample(5).shape
        ((256,), (5, 8))
    """

    flow_: Glow
    mean_: Array
    scale_: Array
    live_: Array
    loss_: float
    loss_curve_: Array

    def __init__(
        self,
        levels: int = 2,
        depth: int = 3,
        *,
        width: int = 32,
        coupling: CouplingName = "additive",
        permutation: PermutationName = "random",
        residual: bool = True,
        scale_rate: float = 3.0,
        weight_init: WeightInit = "orthogonal",
        epochs: float = 1.0,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        schedule: Literal["constant", "linear"] = "linear",
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        adam_epsilon: float = 1e-8,
        max_grad_norm: float | None = 1.0,
        device: Literal["auto"] | str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.levels = levels
        self.depth = depth
        self.width = width
        self.coupling = coupling
        self.permutation = permutation
        self.residual = residual
        self.scale_rate = scale_rate
        self.weight_init = weight_init
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.bias_correction = bias_correction
        self.adam_epsilon = adam_epsilon
        self.max_grad_norm = max_grad_norm
        self.device = device
        self.random_state = random_state

    @classmethod
    def released(cls, **changes: Any) -> Self:
        """The design and schedule of the released code instead of the paper's Table 7.

        Three levels, reversal, no residual connection, AdamW without bias correction. It takes 32
        pairs a step and adds the two sides' mean losses: 64 rows here, and since that sum is twice
        the mean over the 64, clipping at 1 and Adam's 1e-6 become 0.5 and 5e-7. What is not
        repeated: it leaves the encoder's dropout on while it fits.

        Args:
            changes: Arguments of the constructor that differ.

        Example:
            >>> Flow.released(epochs=3).levels
            3
        """
        settings = {
            "levels": 3,
            "permutation": "reverse",
            "residual": False,
            "weight_init": "normal",
            "batch_size": 64,
            "schedule": "constant",
            "weight_decay": 0.01,
            "bias_correction": False,
            "adam_epsilon": 5e-7,
            "max_grad_norm": 0.5,
        }
        return cls(**{**settings, **changes})

    def fit(self, X: Any, y: None = None, *, progress: Progress | None = None) -> Self:  # noqa: N803
        """Learn the flow from rows.

        Args:
            X: Vectors, shape (N, D): an array, a memory-mapped file or a tensor.
            y: Ignored, there for scikit-learn's sake.
            progress: Called after every step with the steps done, their total and the loss in bits
                per dimension.

        Returns:
            The flow itself.
        """
        self._progress = progress
        try:
            return super().fit(X)
        finally:
            del self._progress

    def log_prob(self, X: Any) -> Any:  # noqa: N803
        """Log-density of each row under the fitted flow, in nats, shape (N,).

        Dimensions that did not vary in the corpus count as Gaussian with deviation `scale_`.

        Raises:
            sklearn.exceptions.NotFittedError: fit has not been called.
            InputError: A NaN or infinite row (named), or another width than at fit.
        """
        check_is_fitted(self)
        return self._log_probs(self._checked(X, fitting=False))

    def _log_probs(self, rows: Any) -> Any:
        return mapped(lambda chunk: self._log_prob(chunk)[:, None], rows, 1)[:, 0]

    def score(self, X: Any, y: None = None) -> float:  # noqa: N803
        """Mean of `log_prob` over the rows: what GridSearchCV maximises."""
        return float(np.mean(np.asarray(as_tensor(self.log_prob(X)).cpu(), dtype=np.float64)))

    def sample(
        self, n_samples: int = 1, *, random_state: int | np.random.RandomState | None = None
    ) -> Array:
        """Draw vectors from the fitted density.

        Args:
            n_samples: How many.
            random_state: Seed or numpy RandomState.

        Returns:
            Shape (n_samples, D), float32.

        Raises:
            sklearn.exceptions.NotFittedError: fit has not been called.
        """
        check_is_fitted(self)
        random = check_random_state(random_state)
        z = random.standard_normal((n_samples, self.n_features_in_)).astype(np.float32)
        return self.inverse_transform(z)

    def _fit(self, rows: Array | Tensor) -> None:
        self._check_arguments()
        device = self._device(rows)
        moments = moments_of(rows, covariance=False)
        floor = ROUNDING * moments.mean.abs()
        deviation = moments.deviation()
        live = (deviation > floor) & (bounded_deviation(deviation, floor) == deviation)
        if int(live.sum()) < 2:
            raise InputError(
                f"only {int(live.sum())} of {len(live)} dimensions vary, but a flow needs 2"
            )
        self.mean_ = moments.mean.numpy()
        self.scale_ = bounded_deviation(deviation, floor).numpy()
        self.live_ = live.numpy()
        try:
            random = check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state: {error}") from None
        generator = torch.Generator().manual_seed(int(random.randint(2**31)))

        def fetch(index: Tensor) -> Tensor:
            return self._split(self._normalised(_take(rows, index)))[0].float()

        self.flow_ = self._build(int(live.sum()), generator)
        self._copies: dict[tuple[torch.dtype, torch.device], Glow] = {}
        # The flow's loss is per varying dimension of standardized rows; ours is per dimension of
        # the rows as given, so the others and the change of unit belong to it.
        share = int(live.sum()) / len(live)
        others = (1 - share) * 0.5 * math.log2(2 * math.pi) + float(np.log2(self.scale_).mean())
        shown = self._progress
        curve = train(
            self.flow_,
            fetch,
            len(rows),
            self._schedule(),
            device=device,
            generator=generator,
            progress=shown and (lambda done, of, loss: shown(done, of, share * loss + others)),
        )
        self.loss_curve_ = (share * curve + others).numpy()
        sample = torch.randperm(len(rows), generator=generator)[:EVALUATION_ROWS]
        log_prob = self._log_probs(_take(rows, sample).cpu().numpy()).astype(np.float64)
        self.loss_ = float(-log_prob.mean() / (len(live) * math.log(2)))
        if not math.isfinite(self.loss_):
            raise TrainingError(
                f"step {len(curve)} of {len(curve)} left a loss of {self.loss_}; "
                f"lower learning_rate (now {self.learning_rate})"
            )

    def _device(self, rows: Array | Tensor) -> torch.device:
        if self.device != "auto":
            return check_device(self.device)
        if isinstance(rows, Tensor):
            return rows.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _schedule(self) -> Schedule:
        return Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})

    def _check_arguments(self) -> None:
        for name in ["levels", "depth", "width", "batch_size"]:
            check_number(name, getattr(self, name), 1, integer=True)
        for name in ["scale_rate", "epochs", "learning_rate", "adam_epsilon"]:
            check_number(name, getattr(self, name), 0, above=True)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, 0, above=True)
        check_number("weight_decay", self.weight_decay, 0)
        if self.schedule not in ("constant", "linear"):
            raise InputError(f"schedule must be 'constant' or 'linear', got {self.schedule!r}")

    def _build(self, live: int, generator: torch.Generator | None = None) -> Glow:
        return Glow(
            live,
            levels=self.levels,
            depth=self.depth,
            width=self.width,
            coupling=self.coupling,
            permutation=self.permutation,
            residual=self.residual,
            scale_rate=self.scale_rate,
            weight_init=self.weight_init,
            generator=generator,
        ).float()

    def _normalised(self, x: Tensor) -> Tensor:
        return (x - like(self.mean_, x)) / like(self.scale_, x)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The dimensions that vary, and those that do not."""
        live = torch.from_numpy(self.live_).to(x.device)
        return x[:, live], x[:, ~live]

    def _glow(self, like: Tensor) -> Glow:
        """The flow in the type and on the device of a chunk; flow_ itself stays as it is."""
        key = (like.dtype, like.device)
        if key == (torch.float32, torch.device("cpu")):
            return self.flow_
        if key not in self._copies:
            self._copies[key] = copy.deepcopy(self.flow_).to(dtype=like.dtype, device=like.device)
        return self._copies[key]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return {**state, "_copies": {}} if "_copies" in state else state

    def _transform(self, x: Tensor) -> Tensor:
        live, dead = self._split(self._normalised(x))
        return torch.cat([self._glow(x)(live)[0], dead], dim=1)

    def _inverse_transform(self, z: Tensor) -> Tensor:
        live = torch.from_numpy(self.live_).to(z.device)
        x = torch.empty_like(z)
        count = int(live.sum())
        x[:, live] = self._glow(z).inverse(z[:, :count])
        x[:, ~live] = z[:, count:]
        return x * like(self.scale_, z) + like(self.mean_, z)

    def _log_prob(self, x: Tensor) -> Tensor:
        live, dead = self._split(self._normalised(x))
        unit = float(np.log(self.scale_).sum())
        gaussian = -0.5 * (dead.square() + math.log(2 * math.pi)).sum(dim=1)
        return self._glow(x).log_prob(live) + gaussian - unit

    def _learned(self) -> dict[str, Tensor]:
        weights = {f"flow.{name}": tensor for name, tensor in self.flow_.state_dict().items()}
        return {
            "mean": torch.from_numpy(self.mean_),
            "scale": torch.from_numpy(self.scale_),
            "live": torch.from_numpy(self.live_),
            "loss": torch.tensor(self.loss_, dtype=torch.float64),
            "loss_curve": torch.from_numpy(self.loss_curve_),
            **weights,
        }

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        width = self.n_features_in_
        # How many dimensions vary is only known from the file: the first layer has that width.
        live = shapes.get("flow.levels.0.steps.0.bias", (width,))[0]
        if not 2 <= live <= width:
            raise InputError(f"a flow over {live} of {width} dimensions cannot be")
        with torch.device("meta"):
            weights = {f"flow.{k}": v for k, v in self._build(live).state_dict().items()}
        fixed = {name: empty(width) for name in ("mean", "scale")}
        curve = empty(*shapes.get("loss_curve", (0,))[:1])
        live_ = empty(width, dtype=torch.bool)
        return {**fixed, "live": live_, "loss": empty(), "loss_curve": curve, **weights}

    def _restore(self, learned: Mapping[str, Tensor]) -> None:
        self.mean_ = learned["mean"].numpy()
        self.scale_ = learned["scale"].numpy()
        self.live_ = learned["live"].bool().numpy()
        self.loss_ = float(learned["loss"])
        self.loss_curve_ = learned["loss_curve"].numpy()
        weights = {k.removeprefix("flow."): v for k, v in learned.items() if k.startswith("flow.")}
        self.flow_ = self._build(int(self.live_.sum()))
        if self.flow_.features != len(weights["levels.0.steps.0.bias"]):
            raise InputError(
                f"live says that {self.flow_.features} dimensions vary, not the layers"
            )
        self._copies = {}
        self.flow_.load_state_dict(weights)
        for module in self.flow_.modules():
            if isinstance(module, Permutation):
                Permutation(module.order)  # Refuses an order that is none.
        self.flow_.eval().requires_grad_(False)


def _take(rows: Array | Tensor, index: Tensor) -> Tensor:
    if isinstance(rows, Tensor):
        return as_tensor(rows[index.to(rows.device)])
    return as_tensor(rows[index.numpy()])
