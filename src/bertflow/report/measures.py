"""The numbers behind the pictures of a report.

`sides` are vectors by name: matrices of shape (N, D) with the same rows each, whose widths may
differ. Every measure raises InputError where there is no side, the sides have unequal rows, there
are fewer than 2 rows, or a row is not finite (it is named).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bertflow.analysis.isotropy import random_pairs, singular_spectrum
from bertflow.analysis.neighbours import checked, sampled
from bertflow.arrays import Array, unit_rows
from bertflow.calibrators.moments import moments_of
from bertflow.data import CATALOG
from bertflow.display.grid import hundredfold, hundredfold_span
from bertflow.errors import InputError, check_number
from bertflow.evaluation import Difference, Estimate
from bertflow.evaluation.scores import correlate, cosines_of_rows
from bertflow.process_state import one_thread

Sides = Mapping[str, Array]

# The column of a table of scores that is the average of the seven STS tasks.
AVERAGE = "average"
# Bins of cosines in 1: the same on every page, so that histograms can be laid side by side.
BINS = 40
# The start of a spectrum's axis. Smaller values, relative to the first, are rounding or of
# dimensions that do not vary.
LEAST_SINGULAR = 1e-4
# The height of a cloud's picture is at least this part of its width.
FLATTEST = 0.6


@dataclass(frozen=True, eq=False)
class CosineHistogram:
    """Cosines of random pairs of rows.

    Attributes:
        edges: Ends of the bins, shape (B + 1,).
        shares: By side, the share of the pairs in each bin, shape (B,); `means` are mean cosines.
        pairs: How many pairs have a cosine on every side.
    """

    edges: Array
    shares: Mapping[str, Array]
    means: Mapping[str, float]
    pairs: int


def measure_cosines(sides: Sides, *, pairs: int = 20000, random_state: int = 0) -> CosineHistogram:
    r"""Bin the cosines of random pairs of different rows, the same pairs on every side.

    .. math:: c_{ij} = \frac{x_i \cdot x_j}{\lVert x_i \rVert \lVert x_j \rVert}, \qquad i \neq j

    Bins are 0.025 wide. A pair with a zero row on one side counts on none; if no pair is left that
    is an InputError.

    Source:
        Ethayarajh (2019).

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> found = measure_cosines({"before": x + 3.0, "after": x})
        >>> found.means["before"] > 0.8, abs(found.means["after"]) < 0.1
        (True, True)
    """
    sides = check_sides(sides)
    check_number("pairs", pairs, 1, integer=True)
    chosen = random_pairs(len(next(iter(sides.values()))), pairs, random_state)
    cosines = np.stack([cosines_of_rows(rows, *chosen) for rows in sides.values()])
    cosines = cosines[:, np.isfinite(cosines).all(axis=0)].clip(-1.0, 1.0)
    if not cosines.size:
        raise InputError(f"none of {pairs:,} pairs of rows has a cosine: all rows are zero")
    edges: Array = np.arange(min(math.floor(cosines.min() * BINS), 0), BINS + 1) / BINS
    by_side = dict(zip(sides, cosines, strict=True))
    shares = {name: np.histogram(one, bins=edges)[0] / len(one) for name, one in by_side.items()}
    means = {name: float(one.mean()) for name, one in by_side.items()}
    return CosineHistogram(edges, shares, means, pairs=cosines.shape[1])


@dataclass(frozen=True, eq=False)
class Spectra:
    """Singular values of so many rows, by side: falling from 1, shape (min(rows, D),)."""

    values: Mapping[str, Array]
    rows: int


def measure_spectra(sides: Sides, *, rows: int = 4000, random_state: int = 0) -> Spectra:
    r"""Singular values of each side's matrix, not centred, divided by the largest.

    .. math:: \sigma_k(X) / \sigma_1(X)

    At most so many rows are taken, the same on every side.

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> measure_spectra({"before": np.diag([4.0, 2.0])}).values["before"]
        array([1. , 0.5])
    """
    chosen = {name: sampled(one, rows, random_state) for name, one in check_sides(sides).items()}
    with one_thread():
        values = {name: singular_spectrum(vectors) for name, vectors in chosen.items()}
    return Spectra(values, rows=len(next(iter(chosen.values()))))


@dataclass(frozen=True, eq=False)
class Cloud:
    """Each side's rows at length 1 on its own two principal axes through the origin.

    Attributes:
        rows: Numbers of the drawn rows, shape (n,), the same on every side.
        points: By side, coordinates of the drawn rows, shape (n, 2).
        explained: By side, the share of the squared length along both axes, shape (2,).
        means: By side, coordinates of the mean of all rows, shape (2,).
        lengths: By side, the length of that mean in all dimensions, 0 to 1.
    """

    rows: Array
    points: dict[str, Array] = field(default_factory=dict)
    explained: dict[str, Array] = field(default_factory=dict)
    means: dict[str, Array] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)

    @property
    def limits(self) -> Array:
        """Least and largest of both axes over all sides and the origin, with a margin, (2, 2)."""
        every = np.concatenate([np.zeros((1, 2)), *self.points.values()])
        low, high = every.min(axis=0), every.max(axis=0)
        widest = float((high - low).max())
        # A flat cloud keeps some room above and below it.
        room = np.maximum(FLATTEST * widest - (high - low), 0) / 2 + 0.03 * (widest or 1.0)
        ends: Array = np.stack([low - room, high + room], axis=1)
        return ends


def project(sides: Sides, *, points: int = 1500, random_state: int = 0) -> Cloud:
    r"""Rows at length 1 on two axes through the origin, and the same rows on every side's axes.

    .. math::
        y = \frac{x}{\lVert x \rVert}\, [v_1\; v_2], \qquad M v_k = \lambda_k v_k, \qquad
        M = \frac{1}{N} \sum_i \frac{x_i x_i^\top}{\lVert x_i \rVert^2}

    Nothing is centred: a direction that all rows share is the first axis, and the cloud lies to one
    side of the origin. A zero row stays there. The first axis points towards the mean of all rows,
    and the largest entry of the second is positive, so that the picture is always the same. At most
    so many points are drawn, at random.

    Raises:
        InputError: The sides cannot be compared, or one has a single dimension or only equal rows.

    Source:
        Mu and Viswanath (2018), for the common direction; Pearson (1901), for principal axes.

    Example:
        >>> import numpy as np
        >>> found = project({"before": np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 3.0]])})
        >>> found.points["before"].round(6).tolist(), found.explained["before"].round(3).tolist()
        ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.667, 0.333])
    """
    sides = check_sides(sides)
    count = len(next(iter(sides.values())))
    cloud = Cloud(sampled(np.arange(count), points, random_state))
    for name, vectors in sides.items():
        if vectors.shape[1] < 2:
            raise InputError(f"{name} has 1 dimension, but a cloud in two takes at least 2")
        with one_thread():
            moments = moments_of(vectors, normalize=True)
            second = moments.covariance() + torch.outer(moments.mean, moments.mean)
            values, directions = torch.linalg.eigh(second)
        axes = directions[:, -2:].flip(1)
        signs = axes[axes.abs().argmax(dim=0), [0, 1]].sign()
        along = float(moments.mean @ axes[:, 0])
        if abs(along) > 1e-9:  # A shorter mean has no direction.
            signs[0] = math.copysign(1.0, along)
        axes *= signs
        cloud.points[name] = unit_rows(vectors[cloud.rows]) @ axes.numpy()
        cloud.explained[name] = (values[-2:].flip(0).clamp(min=0) / second.trace()).numpy()
        cloud.means[name] = (moments.mean @ axes).numpy()
        cloud.lengths[name] = float(moments.mean.norm())
    return cloud


@dataclass(frozen=True, eq=False, kw_only=True)
class EditScatter:
    """Similarities of the pairs that have all of them, against edit distances, shape (n,).

    Attributes:
        panels: By name, similarities.
        distances: Edit distances in the unit.
        short: Pairs up to this distance are short, and stand out.
        whole: By name, Spearman's ρ with the distance over all pairs; None where undefined.
        near: The same over the short pairs.
    """

    panels: Mapping[str, Array]
    distances: Array
    short: int
    unit: str
    whole: Mapping[str, float | None]
    near: Mapping[str, float | None]


def relate_to_edits(
    panels: Mapping[str, Array], distances: Array, *, short: int = 4, unit: str = "characters"
) -> EditScatter:
    """Set similarities beside edit distances, over the pairs that have every similarity.

    Args:
        panels: By name, similarities of N pairs, shape (N,) each: gold first, then cosines. A pair
            with NaN in one panel is in none.
        distances: Edit distances, shape (N,), in the unit.
        short: Pairs up to this distance are also looked at by themselves.
        unit: "characters" or "words".

    Raises:
        InputError: No pair has every similarity.

    Source:
        Section 4.4, Figure 2.

    Example:
        >>> import numpy as np
        >>> panels = {"gold": np.array([5.0, 4.0, 0.0])}
        >>> relate_to_edits(panels, np.array([1, 2, 30])).whole["gold"]
        -1.0
    """
    used = np.isfinite(np.stack([*panels.values()]).astype(np.float64)).all(axis=0)
    if not used.any():
        raise InputError(
            f"none of the {len(distances)} pairs has every similarity; nothing to draw"
        )
    apart = distances[used]
    close = apart <= short
    kept = {name: values[used] for name, values in panels.items()}
    return EditScatter(
        panels=kept,
        distances=apart,
        short=short,
        unit=unit,
        whole={name: correlate(one, apart).spearman for name, one in kept.items()},
        near={name: correlate(one[close], apart[close]).spearman for name, one in kept.items()},
    )


@dataclass(frozen=True, eq=False)
class TrainingCurve:
    """The loss of a fit in W windows of steps, in bits per dimension.

    Attributes:
        steps: The last step of each window, counting from 1, shape (W,).
        mean: Mean loss of each window, shape (W,); `low` and `high` are the least and the largest.
        total: How many steps there were.
        final: Loss of the fitted rows under the fitted flow; None where it is not known.
    """

    steps: Array
    mean: Array
    low: Array
    high: Array
    total: int
    final: float | None = None


def summarize_training(
    losses: Array, *, final: float | None = None, windows: int = 60
) -> TrainingCurve:
    """Summarize the losses of a fit in windows of equally many steps.

    The losses are `Flow.loss_curve_`, bits per dimension, shape (steps,), and `final` is
    `Flow.loss_`. Without a step there is an InputError.

    Example:
        >>> import numpy as np
        >>> summarize_training(np.array([4.0, 2.0, 1.0, 1.0]), windows=2).mean
        array([3., 1.])
    """
    if len(losses) == 0:
        raise InputError("the fit has no step, and so no training curve")
    parts = np.array_split(np.asarray(losses, dtype=np.float64), min(windows, len(losses)))
    steps = np.cumsum([len(part) for part in parts])
    mean, low, high = (np.array([take(one) for one in parts]) for take in (np.mean, np.min, np.max))
    return TrainingCurve(steps, mean, low, high, len(losses), final)


@dataclass(frozen=True)
class Headline:
    """The difference that a report's verdict is about, and what is scored."""

    what: str
    before: float | None
    after: float | None
    difference: Difference
    measure: str = "Spearman"

    def sentence(self, names: Sequence[str] = ()) -> str:
        """The difference in plain words; the names are of sides that are not before and after."""
        change = self.difference
        before, after = hundredfold(self.before), hundredfold(self.after)
        told = hundredfold(change.value, signed=True)
        if ends := hundredfold_span(change, 2, signed=True):
            told += f", 95 % {ends}"
        figures = f"on {self.what} ({self.measure} × 100 from {before} to {after}: {told})."
        better = (change.value or 0.0) > 0
        if not change.real:
            whom = f"{names[-1]} beside {names[0]}" if names else "calibration"
            return f"It may be chance what {whom} changes {figures}"
        if names:
            return f"{names[-1]} is {'ahead of' if better else 'behind'} {names[0]} {figures}"
        return f"Calibration {'helped' if better else 'did harm'} {figures}"


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Spearman's correlations of two sides on some tasks.

    Attributes:
        scores: By side and column, a task or `AVERAGE`, the estimate.
        changes: By column, how much higher the second side is, with p-values corrected (Holm).
    """

    scores: Mapping[str, Mapping[str, Estimate]]
    changes: Mapping[str, Difference] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def headline(self) -> Headline | None:
        """The change on average, else on STS-B, else on the first task that has one."""
        for column in (AVERAGE, "stsb", *self.changes):
            change = self.changes.get(column, Difference(None))
            if change.value is not None:
                what = "the seven STS tasks" if column == AVERAGE else CATALOG[column].title
                before, after = (side[column].value for side in self.scores.values())
                return Headline(what, before, after, change)
        return None


def check_sides(sides: Sides) -> dict[str, Array]:
    """The sides as matrices of finite rows, equally many each."""
    if not sides:
        raise InputError("there are no vectors to measure; give one side at least")
    found = {name: checked(vectors) for name, vectors in sides.items()}
    counts = {name: len(vectors) for name, vectors in found.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise InputError(f"all sides must have the same rows, got {told}")
    return found
