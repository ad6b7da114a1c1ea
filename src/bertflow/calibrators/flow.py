"""Flow: the paper's calibrator, a Glow and the loop that trains it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import bertflow
from bertflow.arrays import Array, check_device, mapped, taken
from bertflow.calibrators.base import Calibrator, Progress, Shown, Vectors, empty, learned_tensor
from bertflow.calibrators.frame import Frame, FramedGlow, Framing
from bertflow.calibrators.moments import Moments
from bertflow.calibrators.training import Checkpoint, Schedule, train
from bertflow.display import Bars, of_stage, watched
from bertflow.errors import InputError, TrainingError, check_number, warn
from bertflow.flows import Glow, Permutation
from bertflow.flows.glow import Design
from bertflow.process_state import usual_threads

EVALUATION_ROWS = 65536
# A `partial_fit` draws at most so many rows from the flow in place of those it was fitted on.
DRAWN_ROWS = 200_000
# On stored STS-B vectors the paper's flow gains next to nothing over its standardization with 10
# steps, about half of all that it gains with 50, and three quarters or more with 100.
ENOUGH_STEPS = 50

# The released code takes 32 pairs a step, and the sum of the two sides' mean losses: 64 rows here,
# and since that sum is twice the mean over the 64, clipping at 1 and 1e-6 become 0.5 and 5e-7.
RELEASED: dict[str, Any] = {
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

# From the plateau that dev splits of raw encoders show, see docs/results.md.
TEMPERED: dict[str, Any] = {
    "normalize": True,
    "axes": "principal",
    "noise": 0.75,
    "leading": 3,
    "leading_gain": 0.3,
    "centring": 0.95,
    "learning_rate": 3e-4,
}


@dataclass(repr=False, eq=False)
class Flow(Calibrator, Design, Schedule, Framing):
    r"""BERT-flow: an invertible map that turns the cloud of vectors into a standard Gaussian.

    .. math::
        \max_\phi\ \mathbb E_x \left[ \log \mathcal N(f_\phi(x); 0, I)
        + \log \left| \det \tfrac{\partial f_\phi}{\partial x} \right| \right],
        \qquad z = f_\phi(x)

    f is a `bertflow.flows.Glow` over the standardized dimensions that vary; the others bypass it.
    The defaults are the paper's Table 7, which leaves batches, decay of the step size and start of
    the weights open: they are chosen so that results depend little on the seed.

    Args:
        levels: Levels of the multi-scale flow (the paper: 2, the released code: 3).
        depth: Steps (ActNorm, permutation, coupling) a level.
        width: Hidden width of the coupling nets.
        coupling: "additive" (the paper) or "affine" (Glow).
        permutation: "random" (the paper), "reverse" (the released code) or "linear" (Glow's learned
            invertible matrix).
        residual: Whether the coupling nets have the residual connection of Table 7.
        scale_rate: How fast log-scales train, see `bertflow.flows.ActNorm`.
        weight_init: Start of the coupling nets, "orthogonal" or, as released, "normal".
        epochs: Passes over the rows; a fraction stops within the first.
        batch_size: Rows (sentences) a step.
        learning_rate: Step size of Adam at the start.
        schedule: "linear" lets the step size fall to zero over the fit; "constant" is as released.
        weight_decay: Decoupled weight decay.
        bias_correction: Adam's correction of its early moments; the released code has none.
        adam_epsilon: Added to the root of Adam's second moment.
        max_grad_norm: Gradients are clipped to this norm; None does not clip.
        normalize: Scale rows to unit length first; their length is lost, also to the inverse.
        axes: "given", or "principal": the flow works on the principal axes of the rows.
        noise: The share q of the axes, from the last, that counts as noise, 0 to 1: an output
            dimension is multiplied by the Wiener gain λ / (λ + λ_q) of its axis, at least 0.001;
            λ_q is the variance of axis round((1 − q) D), or of the last that varies. 0 is off.
            Needs axes="principal".
        leading: How many leading axes are damped besides. Needs axes="principal".
        leading_gain: The factor of these axes, above 0 and at most 1.
        centring: The share of the mean that is removed; the rest stays in the output.
        device: Where to fit: "auto" takes a GPU if there is one; results come back to the CPU.
        random_state: Seed or numpy RandomState; the same seed, rows and thread count give the
            same bits.

    Attributes:
        flow_: The fitted `bertflow.flows.Glow`, over the dimensions that vary.
        frame_: What surrounds it, a `bertflow.calibrators.frame.Frame`.
        mean_: Centre of the rows, shape (D,).
        scale_: The divisor of each dimension (or principal axis), shape (D,).
        live_: Which of them vary, booleans of shape (D,).
        loss_: Bits per dimension of the fitted rows (a sample of 65,536 where there are more;
            after `partial_fit` of the new rows and those drawn in place of earlier ones):
            the mean of −log_prob / (D ln 2). A density's, so it can be negative.
        loss_curve_: The training loss of every step, shape (steps,), in the same unit.

    Warns:
        FewRowsWarning: By fit, of fewer than 50 steps.

    Source:
        Paper, sections 3.2 and 4.1, appendix A and B, Table 7.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(256, 8)) ** 3
        >>> flow = Flow(epochs=2).fit(x)
        >>> bool(np.allclose(flow.inverse_transform(flow.transform(x)), x, atol=1e-6))
        True
        >>> flow.log_prob(x).shape, flow.sample(5).shape
        ((256,), (5, 8))
    """

    names = {"flow": {}, "tempered-flow": TEMPERED, "released-flow": RELEASED}

    _: KW_ONLY
    device: Literal["auto"] | str = "auto"
    random_state: int | np.random.RandomState | None = 0

    flow_: Glow = field(init=False)
    frame_: Frame = field(init=False)
    loss_: float = field(init=False)
    loss_curve_: Array = field(init=False)
    mean_ = property(attrgetter("frame_.mean"))
    scale_ = property(attrgetter("frame_.scale"))
    live_ = property(attrgetter("frame_.live"))

    @classmethod
    def released(cls, **changes: Any) -> Self:
        """The released code's design and schedule: 3 levels, reversal, no residual connection.

        Its dropout of the encoder is not repeated. The changes are arguments of the constructor.

        Example:
            >>> Flow.released(epochs=3).levels
            3
        """
        return cls(**{**RELEASED, **changes})

    @classmethod
    def tempered(cls, **changes: Any) -> Self:
        r"""A flow for raw language models, with a tempered prior: noisy axes count for less.

        .. math::
            z_i = g_i \left( f(u)_i + 0.05\, (R \mu)_i / \sigma_i \right), \qquad
            g_i = \frac{\lambda_i}{\lambda_i + \lambda_{D/4}} \cdot
            \{0.3 \text{ if } i < 3\}, \qquad u = (R\,(x / |x| - \mu)) \oslash \sigma

        :math:`\lambda` is the variance along an axis; docs/mathematics.md derives the gain. The
        changes are arguments of the constructor.

        Example:
            >>> Flow.tempered(epochs=3).noise
            0.75
        """
        return cls(**{**TEMPERED, **changes})

    def partial_fit(self, X: Any, y: None = None, *, progress: Shown = None) -> Self:  # noqa: N803
        """Go on from the weights on more rows, as many passes as a fit takes.

        Earlier rows need not be there: as many as there were, at most 200,000, are drawn from the
        flow itself. Centre and deviations are those of all rows; the axes stay. Arguments and
        errors are those of `bertflow.Calibrator.partial_fit`, and an InputError says which argument
        of the design has changed.

        Source:
            Drawing earlier data from the model itself: Shin et al. (2017), "Continual Learning with
            Deep Generative Replay".
        """
        return super().partial_fit(X, y, progress=progress)

    def log_prob(self, X: Any) -> Any:  # noqa: N803
        """Log-density of each row under the fitted flow, in nats, shape (N,).

        Dimensions that did not vary count as Gaussian with deviation `scale_`; gains and offset
        leave the density as it is. After a fit with queries it is that of documents. Errors are
        those of `transform`.
        """
        check_is_fitted(self)
        return mapped(self._log_prob_into, self._checked(X), 1)[:, 0]

    def score(self, X: Any, y: None = None) -> float:  # noqa: N803
        """Mean of `log_prob` over the rows: what GridSearchCV maximises."""
        return float(torch.as_tensor(self.log_prob(X)).cpu().double().mean())

    def sample(
        self, n_samples: int = 1, *, random_state: int | np.random.RandomState | None = None
    ) -> Array:
        """Draw vectors from the fitted density, shape (n_samples, D), float32."""
        check_is_fitted(self)
        check_number("n_samples", n_samples, 1, integer=True)
        random = check_random_state(random_state)
        z = random.standard_normal((n_samples, self.n_features_in_)).astype(np.float32)
        return self.inverse_transform(self.frame_.temper(torch.from_numpy(z)).numpy())

    def _more_facts(self) -> dict[str, str]:
        still = self.n_features_in_ - self.frame_.count
        bypassing = {"not varying": f"{still:,} dimensions, which bypass the flow"}
        return {
            **(bypassing if still else {}),
            "steps": f"{len(self.loss_curve_):,}",
            "bits per dimension": f"{self.loss_:.4f}",
        }

    @property
    def _needs_covariance(self) -> bool:
        return self.axes == "principal"

    @property
    def _unit_rows(self) -> bool:
        return self.normalize

    def _fit(
        self, moments: Moments, rows: Vectors, progress: Shown, checkpoint: str | Path | None
    ) -> None:
        device = self._training_device(rows)
        before = self.reference_ if self.__sklearn_is_fitted__() else None
        seed = int(check_random_state(self.random_state).randint(2**31))
        earlier = np.empty((0, rows.shape[1]), dtype=np.float32)
        if before is None:
            frame = Frame.of(moments, self)
        else:
            self._check_unchanged()
            frame = self.frame_.moved(moments)
            earlier = self.sample(min(before.moments.count, DRAWN_ROWS), random_state=seed)
        take, count = partial(_taken_of, rows, earlier), len(rows) + len(earlier)
        kept = None
        if checkpoint is not None:
            run = self._run(rows, device, seed)
            kept = Checkpoint(checkpoint, run, rows, any_seed=self.random_state is None)
            seed = int(kept.run["seed"])
        generator = torch.Generator().manual_seed(seed)
        # Other devices may lack float64.
        place = device if device.type == "cuda" else None

        def fetch(index: Tensor) -> Tensor:
            entered = frame.enter(take(index).to(place)).float()
            return entered[:, : frame.count].contiguous()

        new = before is None
        glow = self._build(frame.count, generator) if new else copy.deepcopy(self.flow_)
        self._warn_of_few_steps(count)
        with _reporting(progress, frame) as report:
            curve = train(
                glow,
                fetch,
                count,
                self,
                device=device,
                generator=generator,
                progress=report,
                checkpoint=kept,
                new=new,
            )
        self.flow_, self.frame_ = glow, frame.tempered(glow, self)
        self._kept = {}
        losses = frame.bits(curve).numpy()
        self.loss_curve_ = losses if new else np.concatenate([self.loss_curve_, losses])
        sample = torch.randperm(count, generator=generator)[:EVALUATION_ROWS]
        self._conclude(take(sample), len(curve))

    def _check_unchanged(self) -> None:
        """Refuse to go on with another design or frame than the weights are of."""
        for name in (one.name for kind in (Design, Framing) for one in fields(kind)):
            if (value := getattr(self, name)) != (was := self._fitted_with[name]):
                raise InputError(
                    f"{name} was {was!r} at the fit, not {value!r}; set it back, or fit"
                )

    def _training_device(self, rows: Vectors) -> torch.device:
        if self.device != "auto":
            return check_device(self.device)
        if isinstance(rows, Tensor):
            return rows.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _warn_of_few_steps(self, rows: int) -> None:
        if (steps := self._steps(rows)) < ENOUGH_STEPS:
            epochs = self.epochs * ENOUGH_STEPS / steps
            warn(
                f"{steps} steps hardly train a flow ({rows:,} rows); give more rows, or "
                f"epochs={math.ceil(epochs)} for {ENOUGH_STEPS} steps"
            )

    def _conclude(self, sample: Tensor, steps: int) -> None:
        try:
            log_prob = mapped(self._log_prob_into, sample.cpu().numpy(), 1)
        except InputError:  # The rows are finite, so their log_prob is not.
            raise TrainingError(
                f"step {steps} of {steps} left a loss that is not finite; "
                f"lower learning_rate (now {self.learning_rate})"
            ) from None
        self.loss_ = float(
            -log_prob[:, 0].astype(np.float64).mean() / (self.n_features_in_ * math.log(2))
        )

    def _run(self, rows: Vectors, device: torch.device, seed: int) -> dict[str, Any]:
        """All that the bits of a fit depend on, without the contents of the rows."""
        arguments = self.get_params(deep=False)
        return {
            **{k: v for k, v in arguments.items() if k not in ("device", "random_state")},
            "seed": seed,
            "shape": tuple(rows.shape),
            "dtype": rows.dtype,
            "rows on": rows.device.type if isinstance(rows, Tensor) else "cpu",
            "device": device.type,
            "threads": usual_threads(),
            "bertflow": bertflow.__version__,
            "torch": torch.__version__,
        }

    def _check_arguments(self) -> None:
        self._check_design()
        try:
            check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state: {error}") from None
        self._check_schedule()
        self._check_framing(self.permutation)

    def _build(self, live: int, generator: torch.Generator | None = None) -> Glow:
        design = {field.name: getattr(self, field.name) for field in fields(Design)}
        return Glow(live, generator=generator, **design).float()

    def _map(self, like: Tensor) -> FramedGlow:
        return self._once("flow", like, lambda: FramedGlow(self.frame_, self.flow_, like))

    def _transform_into(self, x: Tensor, out: Tensor) -> None:
        self._map(x).latent(x, out)
        self.frame_.temper(out)

    def _inverse_transform_into(self, z: Tensor, out: Tensor) -> None:
        self._map(z).rows(self.frame_.untemper(z), out)

    def _log_prob_into(self, x: Tensor, out: Tensor) -> None:
        z = torch.empty_like(x)
        log_det = self._map(x).latent(x, z)
        constant = 0.5 * self.n_features_in_ * math.log(2 * math.pi) + self.frame_.log_volume
        out[:, 0] = log_det - 0.5 * z.square().sum(dim=1) - constant

    def _learned(self) -> dict[str, Tensor]:
        weights = {f"flow.{name}": tensor for name, tensor in self.flow_.state_dict().items()}
        return {
            **self.frame_.learned(),
            "loss": torch.tensor(self.loss_, dtype=torch.float64),
            "loss_curve": learned_tensor(self.loss_curve_),
            **weights,
        }

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        self._check_arguments()
        width = self.n_features_in_
        # Each layer has several names in the file. A larger depth is wrong, and building so many
        # layers only to find that out could take for ever.
        if self.depth > len(shapes):
            raise InputError(f"depth={self.depth} is more than the {len(shapes)} names in the file")
        # Only the file says how many dimensions vary: the width of the first layer.
        live = shapes.get("flow.levels.0.steps.0.bias", (width,))[0]
        if not 2 <= live <= width:
            raise InputError(f"a flow over {live} of {width} dimensions cannot be")
        with torch.device("meta"):
            weights = {f"flow.{k}": v for k, v in self._build(live).state_dict().items()}
        curve = empty(*shapes.get("loss_curve", (0,))[:1])
        return {**self._frame_tensors(width), "loss": empty(), "loss_curve": curve, **weights}

    def _restore(self, learned: Mapping[str, Tensor]) -> None:
        weights = {k.removeprefix("flow."): v for k, v in learned.items() if k.startswith("flow.")}
        arrays = {k: v.numpy() for k, v in learned.items() if not k.startswith("flow.")}
        self.loss_, self.loss_curve_ = float(arrays.pop("loss")), arrays.pop("loss_curve")
        self.frame_ = Frame(normalize=self.normalize, **arrays)
        # A generator of its own leaves torch's global one unchanged.
        self.flow_ = self._build(self.frame_.count, torch.Generator())
        self.flow_.load_state_dict(weights)
        for module in self.flow_.modules():
            if isinstance(module, Permutation):
                Permutation(module.order)  # Refuses an order that is none.
        self.flow_.eval().requires_grad_(False)


def _taken_of(rows: Vectors, earlier: Array, index: Tensor) -> Tensor:
    """The rows of an index into the new rows and then the earlier ones."""
    new = index < len(rows)
    if bool(new.all()):
        return taken(rows, index)
    found = torch.empty(len(index), rows.shape[1], dtype=torch.float64)
    found[new] = taken(rows, index[new]).cpu().double()
    found[~new] = taken(earlier, index[~new] - len(rows)).double()
    return found


@contextmanager
def _reporting(progress: Shown, frame: Frame) -> Iterator[Progress | None]:
    """Call a function with the steps and the loss of the rows, or show a bar; see `fit`."""
    with watched(progress) as report:
        show = of_stage(report, "fit") if isinstance(report, Bars) else report
        yield show and (lambda done, total, loss: show(done, total, frame.bits(loss)))
