"""Does new text still look like what a calibrator was fitted on? Without the fitted rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow.analysis.neighbours import sampled
from bertflow.arrays import Array, as_tensor
from bertflow.calibrators import Calibrator, Density, Flow, Reference, load_calibrator
from bertflow.calibrators.reference import mean_cosine_of
from bertflow.display import Grid, notebook
from bertflow.display.grid import fixed, hundredfold, span
from bertflow.encoders import EncodeOptions, embed, sample_corpus
from bertflow.errors import InputError, one_line, shown
from bertflow.models import CalibratedSentenceTransformer, is_calibrated, load
from bertflow.models.updating import fitted_side

# Of a longer text so many sentences are looked at, drawn at random.
SAMPLE = 10_000
LEAST_ROWS = 20
# A share beyond this by more than chance asks for a new fit; a half is no difference.
MARGIN = 0.9
QUANTILE = 0.01
SHOWN, LONGEST = 10, 90
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Share:
    """A share from 0 to 1, and its 95 % interval. One half means no difference."""

    value: float
    low: float
    high: float

    @property
    def beyond(self) -> bool:
        """Whether the interval lies above 0.9."""
        return self.low > MARGIN


@dataclass(frozen=True)
class Unlike:
    """A row unlike the fitted ones: its text, or the number of a vector from 0; its log-density."""

    row: str | int
    log_density: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How new rows differ from those that a calibrator was fitted on.

    Attributes:
        rows: New rows that were looked at.
        fitted_rows: Rows that the calibrator was fitted on.
        mean_cosine: Of two new rows after calibration.
        fitted_mean_cosine: Of two fitted rows; after updates the mean over their parts.
        log_density: Mean `Calibrator.log_density` of the new rows, in nats per dimension.
        fitted_log_density: Of fitted rows, each by moments that it is not part of.
        beyond: Share of new rows that are less typical than 99 % of the fitted ones.
        less_typical: How often a new row is less typical than a fitted one.
        elsewhere: How often a new row lies farther than a fitted one along the way from the fitted
            rows' centre to the new rows', see `bertflow.calibrators.Density.passed`.
        bits: Of a `Flow`, bits per dimension of the new rows; None of others.
        fitted_bits: Of the rows it was trained on. They are a little fewer than of other rows.
        unlike: The ten least typical rows, the least first.
    """

    rows: int
    fitted_rows: int
    mean_cosine: float
    fitted_mean_cosine: float
    log_density: float
    fitted_log_density: float
    beyond: float
    less_typical: Share
    elsewhere: Share
    bits: float | None
    fitted_bits: float | None
    unlike: tuple[Unlike, ...]

    @property
    def refit(self) -> bool:
        """Whether to fit anew: one of the two shares is above 0.9 by more than chance."""
        return self.less_typical.beyond or self.elsewhere.beyond

    @property
    def verdict(self) -> str:
        """What to do and why, in a sentence."""
        said = {"lie elsewhere": self.elsewhere, "are less typical": self.less_typical}
        if found := [what for what, share in said.items() if share.beyond]:
            return f"refit: the new rows {' and '.join(found)}"
        return "keep: the new rows look like the fitted ones"

    def grids(self) -> list[Grid]:
        """The figures beside those of the fitted rows, and the two shares."""
        figures = {
            "mean cosine after calibration": (self.mean_cosine, self.fitted_mean_cosine),
            "log-density, nats per dimension": (self.log_density, self.fitted_log_density),
            "bits per dimension of the flow": (self.bits, self.fitted_bits),
        }
        rows = [
            [name, fixed(new, 3), fixed(old, 3)]
            for name, (new, old) in figures.items()
            if new is not None
        ]
        rows.append(["% beyond the 99 % quantile", hundredfold(self.beyond, 1), "1.0"])
        shares = {"lies farther out": self.elsewhere, "is less typical": self.less_typical}
        tests = [
            [name, hundredfold(one.value, 1), span(100 * one.low, 100 * one.high, 1)]
            for name, one in shares.items()
        ]
        return [
            Grid("what rows are like", ["", "new", "fitted"], rows),
            Grid("how often a new row, beside a fitted one", ["", "%", "95 % interval"], tests),
            Grid(
                "the least typical",
                ["row", "log-density"],
                [[_name(one), fixed(one.log_density, 3)] for one in self.unlike],
            ),
        ]

    def __repr__(self) -> str:
        grids = "\n\n".join(grid.text() for grid in self.grids())
        return f"{self.verdict}\n{self.rows:,} rows, {self.fitted_rows:,} fitted\n\n{grids}"

    def _repr_html_(self) -> str:
        facts = {"new": f"{self.rows:,} rows", "fitted": f"{self.fitted_rows:,} rows"}
        return notebook(self.verdict, facts, self.grids())

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it; what is not known is null."""
        found = {"refit": self.refit, "verdict": self.verdict, **asdict(self)}
        return {k: None if v != v else v for k, v in found.items()}


def drift(
    fitted: Calibrator | CalibratedSentenceTransformer | str | Path,
    given: Any,
    *,
    random_state: int = 0,
    **options: Unpack[EncodeOptions],
) -> Drift:
    r"""Compare new rows with what a calibrator keeps of those it was fitted on.

    Two shares decide, each with an interval that counts equal rows as one. How often is a new row
    less typical than a fitted one, by `Calibrator.log_density` (Mann and Whitney's U over the
    number of pairs)? And how often does it lie farther out along the way to where the new rows are?
    That way is learned on a half of the new rows and judged on the other, and the other way round.
    Where a share is above 0.9 by more than chance, the map should be fitted anew.

    Args:
        fitted: A calibrator, a calibrated model, or the folder of either.
        given: New sentences, of a model; else new vectors, shape (N, D). At least 20 that differ;
            of more than 10,000 so many are drawn.
        random_state: Seed of the halves, and of the draw of vectors.
        options: For sentences, see `bertflow.encoders.EncodeOptions`.

    Raises:
        InputError: Too few rows, a NaN or infinite one (named), another width, or a calibrator that
            keeps no statistics of its rows, as those of earlier versions.
        ModelError: The folder holds neither.

    Source:
        The interval of U is that of DeLong et al. (1988); a learned way that is judged on other
        rows is a classifier two-sample test (Lopez-Paz and Oquab, 2017).

    Example:
        >>> from bertflow import Whitening
        >>> x = np.random.default_rng(0).normal(size=(3000, 8))
        >>> whitening = Whitening().fit(x[:2000])
        >>> drift(whitening, x[2000:]).refit, drift(whitening, x[2000:] + 1.0).refit
        (False, True)
    """
    if isinstance(fitted, str | Path):
        fitted = load(fitted) if is_calibrated(fitted) else load_calibrator(fitted)
    if isinstance(fitted, CalibratedSentenceTransformer):
        texts = sample_corpus(given, SAMPLE, seed=random_state).sentences
        rows = embed(fitted_side(fitted), texts, **options).rows()
        return _compared(fitted.calibrator, rows, texts, random_state)
    if not isinstance(fitted, Calibrator):
        raise InputError(f"expected a calibrator or a calibrated model, got {shown(fitted)}")
    check_is_fitted(fitted)
    rows = fitted._checked(given)
    numbers = sampled(np.arange(len(rows)), SAMPLE, random_state)
    return _compared(fitted, rows[numbers], numbers.tolist(), random_state)


def _compared(
    calibrator: Calibrator, rows: Any, names: Sequence[str] | Sequence[int], seed: int
) -> Drift:
    raw = as_tensor(rows).cpu().double()
    typical = calibrator.log_density(raw).numpy()
    kept = calibrator.reference_
    assert kept is not None  # log_density has refused that.
    images, wide = calibrator._transform(raw), calibrator._compared(raw)
    _, which = np.unique(wide.numpy(), axis=0, return_inverse=True)
    which = which.reshape(-1)
    if which.max(initial=-1) + 1 < LEAST_ROWS:
        raise InputError(
            f"got {which.max(initial=-1) + 1} rows that differ; at least {LEAST_ROWS} tell whether "
            "anything has changed"
        )
    if (fitted := len(np.unique(kept.log_density))) < LEAST_ROWS:
        raise InputError(
            f"the calibrator keeps how typical {fitted} different rows are, and at least "
            f"{LEAST_ROWS} are needed; fit it on more rows, not on moments alone"
        )
    least = np.argsort(typical, kind="stable")[: min(SHOWN, len(typical))]
    flow = calibrator if isinstance(calibrator, Flow) else None
    bits = None if flow is None else -flow.score(raw) / (raw.shape[1] * math.log(2))
    return Drift(
        rows=len(rows),
        fitted_rows=kept.moments.count,
        mean_cosine=mean_cosine_of(images),
        fitted_mean_cosine=kept.mean_cosine,
        log_density=float(typical.mean()),
        fitted_log_density=float(kept.log_density.mean()),
        beyond=float((typical < np.quantile(kept.log_density, QUANTILE)).mean()),
        less_typical=_less_typical(kept.log_density, typical, which),
        elsewhere=_elsewhere(kept, wide, which, seed),
        bits=bits,
        fitted_bits=None if flow is None else flow.loss_,
        unlike=tuple(Unlike(names[n], float(typical[n])) for n in least.tolist()),
    )


def _less_typical(fitted: Array, new: Array, which: Array) -> Share:
    """How often a new log-density is below a fitted one; equal ones count half."""
    above = _below(-fitted, -new)
    below = _below(new, fitted)
    value = float(above.mean())
    _, same = np.unique(fitted, return_inverse=True)
    spread = _variance_of_mean(above, which) + _variance_of_mean(below, same)
    return _share(value, spread)


def _below(values: Array, others: Array) -> Array:
    """For each of the others, the share of the values below it; equal ones count half."""
    order = np.sort(values)
    ends = [np.searchsorted(order, others, side) for side in ("left", "right")]
    found: Array = (ends[0] + ends[1]) / (2 * len(order))
    return found


def _elsewhere(kept: Reference, rows: Tensor, which: Array, seed: int) -> Share:
    density = Density(kept.cloud)
    error = kept.centre_error(density)
    # Equal rows go to one half.
    half = np.random.default_rng(seed).permutation(which.max() + 1)[which] % 2 == 0
    found = np.empty(len(rows))
    for judged in (half, ~half):
        there = torch.from_numpy(judged)
        found[judged] = density.passed(rows[there], rows[~there].mean(dim=0), error).numpy()
    return _share(float(found.mean()), _variance_of_mean(found, which))


def _share(value: float, variance: float) -> Share:
    reach = NORMAL_95 * math.sqrt(variance)
    return Share(value, max(0.0, value - reach), min(1.0, value + reach))


def _variance_of_mean(values: Array, which: Array) -> float:
    """Of values that are drawn in groups: equal rows say no more than one of them."""
    sums = np.bincount(which, weights=values - values.mean())
    return float(np.square(sums).sum()) / len(values) ** 2


def _name(one: Unlike) -> str:
    text = one_line(" ".join(str(one.row).split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
