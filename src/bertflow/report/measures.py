"""The numbers behind the pictures of a report.

`sides` are vectors by name: matrices of shape (N, D) with the same rows each, whose widths may
differ. Every measure raises InputError where there is no side, the sides have unequal rows, there
are fewer than 2 rows, or a row is not finite (it is named).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bertflow.analysis.frequency import RANGES, WordGroup, Words, check_rows, mean_of
from bertflow.analysis.isotropy import cosines_of_rows, random_pairs, singular_spectrum
from bertflow.analysis.neighbours import (
    checked,
    nearest_neighbours,
    sampled,
    unit_rows,
    within_range,
)
from bertflow.arrays import Array
from bertflow.calibrators.moments import moments_of
from bertflow.errors import InputError, check_number
from bertflow.evaluation.scores import correlate
from bertflow.paper.results import RowResult, TableResult
from bertflow.process_state import one_thread

Sides = Mapping[str, Array]

# The same width on every page, so that histograms can be laid side by side.
BIN = 0.025
SPECTRUM_ROWS = 4000
# Smaller singular values, relative to the first, are rounding or of dimensions that do not vary.
LEAST_SINGULAR = 1e-4
WINDOWS = 60
# The height of a cloud's picture is at least this part of its width.
FLATTEST = 0.6


@dataclass(frozen=True, eq=False)
class CosineHistogram:
    """Cosines of random pairs of rows, binned.

    Attributes:
        edges: Ends of the bins, shape (B + 1,).
        shares: By side, the share of the pairs in each bin, shape (B,).
        means: By side, the mean cosine.
        pairs: How many pairs have a cosine on every side.
    """

    edges: Array
    shares: Mapping[str, Array]
    means: Mapping[str, float]
    pairs: int

    def bins(self) -> Iterator[tuple[float, float, list[str]]]:
        """Ends of each bin that is not empty, and the share of each side in percent."""
        for low, high, *shares in zip(
            self.edges[:-1], self.edges[1:], *self.shares.values(), strict=True
        ):
            if any(shares):
                yield low, high, [f"{100 * share:.2f} %" for share in shares]


def measure_cosines(sides: Sides, *, pairs: int = 20000, random_state: int = 0) -> CosineHistogram:
    r"""Bin the cosines of random pairs of different rows, the same pairs on every side.

    .. math:: c_{ij} = \frac{x_i \cdot x_j}{\lVert x_i \rVert \lVert x_j \rVert}, \qquad i \neq j

    Args:
        sides: Vectors by name.
        pairs: How many are drawn. A pair with a zero row on one side counts on none.
        random_state: Seed of the draw.

    Returns:
        Shares of bins that are 0.025 wide.

    Raises:
        InputError: The sides cannot be compared, or no pair has a cosine on every side.

    Source:
        Ethayarajh (2019); the paper's section 2.2 for why it matters.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 8))
        >>> found = measure_cosines({"before": x + 3.0, "after": x})
        >>> found.means["before"] > 0.8, abs(found.means["after"]) < 0.1
        (True, True)
    """
    sides = check_sides(sides)
    check_number("pairs", pairs, 1, integer=True)
    count = len(next(iter(sides.values())))
    first, second = random_pairs(count, pairs, random_state)
    cosines = {name: cosines_of_rows(rows, first, second) for name, rows in sides.items()}
    used = np.all([np.isfinite(one) for one in cosines.values()], axis=0)
    if not used.any():
        raise InputError(f"none of {pairs:,} pairs of rows has a cosine: all rows are zero")
    cosines = {name: one[used].clip(-1.0, 1.0) for name, one in cosines.items()}
    low = min(float(one.min()) for one in cosines.values())
    steps = round(1 / BIN)
    edges: Array = np.arange(min(math.floor(low * steps), 0), steps + 1) / steps
    return CosineHistogram(
        edges=edges,
        shares={name: np.histogram(one, bins=edges)[0] / len(one) for name, one in cosines.items()},
        means={name: float(one.mean()) for name, one in cosines.items()},
        pairs=int(used.sum()),
    )


@dataclass(frozen=True, eq=False)
class Spectra:
    """Singular values relative to the largest.

    Attributes:
        values: By side, falling from 1, shape (min(rows, D),).
        rows: How many rows they are of.
    """

    values: Mapping[str, Array]
    rows: int

    @property
    def floor(self) -> float:
        """Start of a picture's axis: the power of ten below the least value, at least 1e-4."""
        least = min(float(values.min()) for values in self.values.values())
        if least <= LEAST_SINGULAR:
            return LEAST_SINGULAR
        return 10.0 ** math.floor(math.log10(least)) if least < 1 else 0.1

    @property
    def below(self) -> dict[str, int]:
        """By side, how many values are smaller than `floor` and are drawn on the axis."""
        return {name: int((values < self.floor).sum()) for name, values in self.values.items()}


def measure_spectra(sides: Sides, *, rows: int = SPECTRUM_ROWS, random_state: int = 0) -> Spectra:
    r"""Singular values of each side's matrix, not centred, divided by the largest.

    .. math:: \sigma_k(X) / \sigma_1(X)

    Args:
        sides: Vectors by name.
        rows: How many rows are taken at most, the same on every side.
        random_state: Seed of the draw.

    Raises:
        InputError: The sides cannot be compared.

    Source:
        Paper, section 3.1; Mu and Viswanath (2018).

    Example:
        >>> import numpy as np
        >>> measure_spectra({"before": np.diag([4.0, 2.0])}).values["before"]
        array([1. , 0.5])
    """
    sides = check_sides(sides)
    with one_thread():
        values = {
            name: singular_spectrum(sampled(vectors, rows, random_state))
            for name, vectors in sides.items()
        }
    return Spectra(values=values, rows=min(rows, len(next(iter(sides.values())))))


@dataclass(frozen=True, eq=False)
class Cloud:
    """Each side's rows at length 1 on its own two principal axes through the origin.

    Attributes:
        points: By side, coordinates of the drawn rows, shape (n, 2).
        explained: By side, the share of the squared length along both axes, shape (2,).
        means: By side, coordinates of the mean of all rows, shape (2,).
        lengths: By side, the length of that mean in all dimensions: 1 where all rows point the same
            way, near 0 where they share no direction.
        rows: Numbers of the drawn rows, shape (n,), the same on every side.
    """

    points: Mapping[str, Array]
    explained: Mapping[str, Array]
    means: Mapping[str, Array]
    lengths: Mapping[str, float]
    rows: Array

    @property
    def limits(self) -> Array:
        """Least and largest of both axes over all sides and the origin, with a margin, (2, 2)."""
        every = np.concatenate([np.zeros((1, 2)), *self.points.values()])
        low, high = every.min(axis=0), every.max(axis=0)
        margin = 0.03 * (float((high - low).max()) or 1.0)
        # A flat cloud keeps some room above and below it.
        short = np.maximum(FLATTEST * float((high - low).max()) - (high - low), 0) / 2
        ends: Array = np.stack([low - short - margin, high + short + margin], axis=1)
        return ends


def project(sides: Sides, *, points: int = 1500, random_state: int = 0) -> Cloud:
    r"""Rows at length 1 on two axes through the origin, and the same rows on every side's axes.

    .. math::
        y = \frac{x}{\lVert x \rVert}\, [v_1\; v_2], \qquad M v_k = \lambda_k v_k, \qquad
        M = \frac{1}{N} \sum_i \frac{x_i x_i^\top}{\lVert x_i \rVert^2}

    Nothing is centred. If all rows share a direction, their cosines are high, the first axis is
    that direction, and the cloud lies to one side of the origin. Only directions count, as in a
    cosine; a zero row stays at the origin. M is taken over all rows. The first axis points towards
    the mean of the rows, and the largest entry of the second is positive, so that the picture is
    always the same.

    Args:
        sides: Vectors by name.
        points: How many rows are drawn.
        random_state: Seed of the draw.

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
    check_number("points", points, 1, integer=True)
    count = len(next(iter(sides.values())))
    drawn = np.arange(count)
    if count > points:
        random = np.random.default_rng(random_state)
        drawn = np.sort(random.choice(count, size=points, replace=False))
    parts = {name: _principal(name, vectors, drawn) for name, vectors in sides.items()}
    return Cloud(
        points={name: part[0] for name, part in parts.items()},
        explained={name: part[1] for name, part in parts.items()},
        means={name: part[2] for name, part in parts.items()},
        lengths={name: part[3] for name, part in parts.items()},
        rows=drawn,
    )


def _principal(name: str, vectors: Array, drawn: Array) -> tuple[Array, Array, Array, float]:
    """Points, shares of the squared length, the mean of all rows, and the length of the mean."""
    if vectors.shape[1] < 2:
        raise InputError(f"{name} has 1 dimension, but a cloud in two takes at least 2")
    rows, _ = within_range(vectors)
    with one_thread():
        moments = moments_of(rows, normalize=True)
        second = moments.covariance() + torch.outer(moments.mean, moments.mean)
        total = float(second.trace())
        values, directions = torch.linalg.eigh(second)
    axes = directions[:, -2:].flip(1)
    signs = axes[axes.abs().argmax(dim=0), [0, 1]].sign()
    mean = moments.mean @ axes
    if float(mean[0].abs()) > 1e-9:  # A shorter mean has no direction.
        signs[0] = mean[0].sign()
    axes, mean = axes * signs, mean * signs
    points: Array = unit_rows(rows[drawn]) @ axes.numpy()
    shares = (values[-2:].flip(0).clamp(min=0) / total).numpy()
    return points, shares, mean.numpy(), float(moments.mean.norm())


@dataclass(frozen=True, eq=False)
class NeighbourLists:
    """Nearest neighbours by cosine.

    Attributes:
        queries: Row numbers of the queries, shape (Q,).
        rows: By side, row numbers of their neighbours, best first, shape (Q, k).
        cosines: By side, the cosines of these, shape (Q, k).
        among: How many rows were searched.
    """

    queries: Array
    rows: Mapping[str, Array]
    cosines: Mapping[str, Array]
    among: int

    @property
    def k(self) -> int:
        """How many neighbours each query has."""
        return int(next(iter(self.rows.values())).shape[1])

    @property
    def kept(self) -> float | None:
        """The mean share of neighbours that are the same on both sides; None of one side."""
        if len(self.rows) < 2:
            return None
        first, *_, last = self.rows.values()
        same = (first[:, :, None] == last[:, None, :]).any(axis=2)
        return float(same.mean())


def find_neighbours(sides: Sides, queries: Array, *, k: int = 5) -> NeighbourLists:
    """The k other rows with the highest cosine to each query, on every side.

    Args:
        sides: Vectors by name.
        queries: Row numbers, shape (Q,).
        k: How many, 1 ≤ k < N.

    Raises:
        InputError: The sides cannot be compared, or k or a row number is out of its range.

    Example:
        >>> import numpy as np
        >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> find_neighbours({"before": x}, np.array([0]), k=1).rows["before"]
        array([[1]])
    """
    sides = check_sides(sides)
    found = {
        name: nearest_neighbours(queries, unit_rows(vectors), k=k)
        for name, vectors in sides.items()
    }
    return NeighbourLists(
        queries=np.asarray(queries, dtype=np.int64),
        rows={name: one.largest for name, one in found.items()},
        cosines={name: one.dots for name, one in found.items()},
        among=len(next(iter(sides.values()))),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class WordNorms:
    """Norms of word embeddings by how frequent the word is.

    Attributes:
        groups: The ranges of ranks in order, with their mean norms.
        published: The paper's mean norm of each range for BERT-base; None where it has none.
        encoder: Whose embeddings.
        words: Words that are drawn one by one, the most frequent first.
        ranks: Of each of these words, from 0, shape (n,).
        norms: Of each, shape (n,).
    """

    groups: Sequence[WordGroup]
    published: Sequence[float | None]
    encoder: str = ""
    words: Sequence[str] = ()
    ranks: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    norms: Array = field(default_factory=lambda: np.empty(0))

    def point_titles(self) -> list[str]:
        """Each word that is drawn, and its norm."""
        named = zip(self.words, self.norms.tolist(), strict=True)
        return [f"{word}: {norm:.3f}" for word, norm in named]


def measure_word_norms(
    embeddings: Array,
    words: Words,
    *,
    ranges: Sequence[tuple[int, int]] = RANGES,
    encoder: str = "",
    published: Sequence[float | None] = (),
    points: int = 1200,
) -> WordNorms:
    r"""Norms of word embeddings, and their means by range of frequency rank.

    .. math:: \frac{1}{|G|} \sum_{w \in G} \lVert w \rVert_2 \pm 1.96\, \frac{s}{\sqrt{|G|}}

    Args:
        embeddings: Of all tokens, shape (V, D), as `bertflow.analysis.word_embeddings` gives them.
        words: Which rows are words, as `bertflow.analysis.frequent_words` gives them.
        ranges: Ranks from and to, the second not included.
        encoder: Whose embeddings they are, for labels.
        published: The paper's means, one a range, or none.
        points: How many words are drawn at most, evenly over the logarithm of the rank.

    Raises:
        InputError: A word has a row that is not there, or `published` has another length.

    Source:
        Paper, section 2.2 and Table 1.

    Example:
        >>> import numpy as np
        >>> table = np.array([[3.0, 4.0], [6.0, 8.0]])
        >>> words = Words(["the", "of"], ranks=np.array([0, 3]), rows=np.array([0, 1]))
        >>> measure_word_norms(table, words, ranges=[(0, 10)]).groups[0].norm.value
        7.5
    """
    check_rows(words, embeddings)
    if published and len(published) != len(ranges):
        raise InputError(f"published must have {len(ranges)} means, got {len(published)}")
    norms = np.linalg.norm(embeddings[words.rows].astype(np.float64), axis=1)
    groups = []
    for low, high in ranges:
        within = norms[(words.ranks >= low) & (words.ranks < high)]
        groups.append(WordGroup(low, high, len(within), mean_of(within), {}, {}))
    drawn = np.arange(len(norms))
    if len(norms) > points:
        drawn = np.unique(np.geomspace(1, len(norms), points).round().astype(np.int64)) - 1
    return WordNorms(
        groups=groups,
        published=published or [None] * len(ranges),
        encoder=encoder,
        words=[words.words[n] for n in drawn.tolist()],
        ranks=words.ranks[drawn],
        norms=norms[drawn],
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class EditScatter:
    """Similarities of pairs against their edit distances.

    Attributes:
        panels: By name, similarities of the pairs that have all of them, shape (n,).
        distances: Edit distances of these pairs, shape (n,).
        short: Pairs up to this distance are short, and stand out.
        unit: What the distances count.
        whole: By name, Spearman's ρ with the distance over all pairs; None where undefined.
        near: The same over the short pairs.
    """

    panels: Mapping[str, Array]
    distances: Array
    short: int
    unit: str
    whole: Mapping[str, float | None]
    near: Mapping[str, float | None]

    @property
    def is_near(self) -> Array:
        """Which pairs are short, shape (n,)."""
        close: Array = self.distances <= self.short
        return close

    @property
    def kinds(self) -> list[str]:
        """Names of the short pairs and of the others in a legend, with their numbers."""
        near = int(self.is_near.sum())
        return [
            f"at most {self.short} {self.unit} apart ({near:,} pairs)",
            f"the others ({len(self.distances) - near:,})",
        ]


def relate_to_edits(
    panels: Mapping[str, Array], distances: Array, *, short: int = 4, unit: str = "characters"
) -> EditScatter:
    """Set similarities beside edit distances, over the pairs that have every similarity.

    Args:
        panels: By name, similarities of N pairs, shape (N,) each. A pair with NaN in one panel is
            in none. The first panel is gold, the others are cosines.
        distances: Edit distances, shape (N,).
        short: Pairs up to this distance are also looked at by themselves.
        unit: What the distances count.

    Raises:
        InputError: There is no panel, shapes differ, or no pair has every similarity.

    Source:
        Section 4.4, Figure 2.

    Example:
        >>> import numpy as np
        >>> panels = {"gold": np.array([5.0, 4.0, 0.0])}
        >>> relate_to_edits(panels, np.array([1, 2, 30])).whole["gold"]
        -1.0
    """
    if not panels:
        raise InputError("there is no panel to draw; give a similarity at least")
    for name, values in panels.items():
        if values.shape != distances.shape or values.ndim != 1:
            raise InputError(
                f"{name} must have a value for each of the {distances.size} edit distances, "
                f"got shape {values.shape}"
            )
    stacked: Array = np.stack([*panels.values()]).astype(np.float64)
    used = np.flatnonzero(np.isfinite(stacked).all(axis=0))
    if len(used) == 0:
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
        whole={name: correlate(values, apart).spearman for name, values in kept.items()},
        near={
            name: correlate(values[close], apart[close]).spearman for name, values in kept.items()
        },
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingCurve:
    """The loss of a fit over its steps, in windows of steps.

    Attributes:
        steps: The last step of each window, counting from 1, shape (W,).
        mean: Mean loss of each window in bits per dimension, shape (W,).
        low: Least loss of each window.
        high: Largest loss of each window.
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
    losses: Array, *, final: float | None = None, windows: int = WINDOWS
) -> TrainingCurve:
    """Summarize the losses of a fit in windows of equally many steps.

    Args:
        losses: `Flow.loss_curve_`, bits per dimension, shape (steps,).
        final: `Flow.loss_`.
        windows: At most so many.

    Raises:
        InputError: There is no step.

    Example:
        >>> import numpy as np
        >>> summarize_training(np.array([4.0, 2.0, 1.0, 1.0]), windows=2).mean
        array([3., 1.])
    """
    if len(losses) == 0:
        raise InputError("the fit has no step, and so no training curve")
    check_number("windows", windows, 1, integer=True)
    parts = np.array_split(np.asarray(losses, dtype=np.float64), min(windows, len(losses)))
    return TrainingCurve(
        steps=np.cumsum([len(part) for part in parts]),
        mean=np.array([part.mean() for part in parts]),
        low=np.array([part.min() for part in parts]),
        high=np.array([part.max() for part in parts]),
        total=len(losses),
        final=final,
    )


@dataclass(frozen=True)
class ScoreTable:
    """Spearman × 100 of some models on some tasks.

    Attributes:
        table: The scores, the published numbers and the claims.
        drawn: The one or two rows that are in the picture.
    """

    table: TableResult
    drawn: Sequence[RowResult]

    @property
    def has_drawn_score(self) -> bool:
        """Whether there is a score to draw."""
        return any(cell.value is not None for row in self.drawn for cell in row.cells.values())

    @property
    def published_label(self) -> str:
        """Name of the drawn rows' published numbers; empty where they have none."""
        if all(cell.published is None for row in self.drawn for cell in row.cells.values()):
            return ""
        whose = dict.fromkeys(row.published_for for row in self.drawn if row.published_for)
        return f"published for {', '.join(whose)}" if whose else "published"


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
