"""Will calibration help? Measures without labels, and a verdict from what was measured before."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from bertflow.analysis.alignment import alignment, uniformity
from bertflow.analysis.dimensions import Dominance, dead_dimensions, dominance, effective_rank
from bertflow.analysis.hubness import Hubness, hubness
from bertflow.analysis.isotropy import isoscore, mean_cosine, partition_isotropy
from bertflow.analysis.rows import checked, directed
from bertflow.calibrators.base import Array
from bertflow.calibrators.threads import one_thread
from bertflow.display import Grid, block, facts_table
from bertflow.errors import InputError

Verdict = Literal["yes", "no", "unclear"]

# From the encoders of docs/results.md (`python -m benchmarks.diagnosis`).
CROWDED = 0.35
SPREAD = 0.1
FEW_ROWS = 200
VERDICTS: dict[Verdict, str] = {
    "yes": "Calibration is likely to help",
    "no": "Calibration is not likely to help, and may cost",
    "unclear": "Cannot tell without trying",
}
NEIGHBOURS = 10


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a cloud of vectors is like, and whether calibration is likely to help.

    Attributes:
        verdict: "yes", "no" or "unclear": whether calibration is likely to raise the correlation
            of cosine with meaning.
        reason: Why, in a sentence.
        warnings: What makes the verdict less sure.
        rows: How many vectors, N, those that are zero not counted.
        width: Their dimensions, D.
        mean_cosine: Of random pairs.
        partition_isotropy: Mu and Viswanath's I, of vectors scaled to mean length 1.
        isoscore: Rudman's.
        effective_rank: Of D.
        dominance: What each dimension adds to the mean cosine.
        dead_dimensions: Those that do not vary.
        hubness: Of the k-occurrence, k = 10.
        uniformity: Wang and Isola's.
        alignment: Of pairs that belong together, None without pairs.
        cut: How many of the sentences were longer than the encoder takes; None of vectors alone.
    """

    verdict: Verdict
    reason: str
    warnings: tuple[str, ...]
    rows: int
    width: int
    mean_cosine: float
    partition_isotropy: float
    isoscore: float
    effective_rank: float
    dominance: Dominance
    dead_dimensions: tuple[int, ...]
    hubness: Hubness
    uniformity: float
    alignment: float | None
    cut: int | None = None

    def evidence(self) -> Grid:
        """Every measure beside what it would be at best."""
        rows = [
            ["mean cosine of random pairs", f"{self.mean_cosine:.3f}", "0"],
            ["partition function isotropy", f"{self.partition_isotropy:.3f}", "1"],
            ["IsoScore", f"{self.isoscore:.3f}", "1"],
            ["effective rank", f"{self.effective_rank:.0f}", f"{min(self.width, self.rows - 1)}"],
            ["hubness (skewness, k = 10)", f"{self.hubness.skewness:.2f}", "0"],
            ["rows that are nobody's neighbour", f"{100 * self.hubness.antihubs:.0f} %", "0 %"],
            ["uniformity", f"{self.uniformity:.2f}", "-4"],
            ["dimensions that do not vary", f"{len(self.dead_dimensions)}", "0"],
        ]
        if self.alignment is not None:
            rows.append(["alignment of pairs alike", f"{self.alignment:.3f}", "0"])
        return Grid("evidence", ["measure", "here", "at best"], rows)

    def __repr__(self) -> str:
        lines = [
            f"{VERDICTS[self.verdict]}: {self.reason}",
            f"{self.rows:,} vectors of {self.width} dimensions",
            self.evidence().text(),
            *(f"- {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = {"why": self.reason, "vectors": f"{self.rows:,}, each of {self.width} dimensions"}
        if self.warnings:
            facts["but"] = "; ".join(self.warnings)
        return block(VERDICTS[self.verdict], facts_table(facts), self.evidence().html())

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON has it."""
        top = [
            {"dimension": dimension, "share": share} for dimension, share in self.dominance.top(3)
        ]
        return {**asdict(self), "dominance": top, "hubness": asdict(self.hubness)}


def diagnose(
    vectors: Array, *, pairs: tuple[Array, Array] | None = None, random_state: int = 0
) -> Diagnosis:
    """Measure a cloud of vectors without labels, and judge whether calibration will help.

    The verdict goes by the mean cosine of random pairs. From 0.35 up vectors crowd around a common
    direction, and whitening and flows gained on all nine clouds we measured; below 0.1 they are
    spread out already, as contrastive training leaves them, and on the one we measured all lost.
    Between the two it says "unclear". The other measures are shown because they say what is wrong,
    not whether.

    Args:
        vectors: Shape (N, D), N > 10 without zero rows: of sentences like those that will be
            compared. Thousands are better than hundreds.
        pairs: Vectors of sentences that belong together, each of shape (P, D), for alignment.
        random_state: Seed of what is drawn.

    Returns:
        The measures and the verdict.

    Raises:
        InputError: 10 or fewer rows that are not zero, all rows equal, or a NaN or infinite row
            (named).

    Source:
        The measures' own; the thresholds from docs/results.md.

    Example:
        >>> import numpy as np
        >>> cloud = np.random.default_rng(0).normal(size=(500, 16))
        >>> diagnose(cloud).verdict, diagnose(cloud + 3.0).verdict
        ('no', 'yes')
    """
    given = len(checked(vectors))
    vectors = directed(vectors)
    if len(vectors) <= NEIGHBOURS:
        raise InputError(
            f"a diagnosis takes more than {NEIGHBOURS} vectors that are not zero, "
            f"got {len(vectors)} of {given}"
        )
    # Eigenvectors of a few hundred dimensions stall on several threads.
    with one_thread():
        cosine = mean_cosine(vectors, random_state=random_state)
        verdict, reason = _judge(cosine)
        return Diagnosis(
            verdict=verdict,
            reason=reason,
            warnings=_warnings(len(vectors), vectors.shape[1], zeros=given - len(vectors)),
            rows=len(vectors),
            width=vectors.shape[1],
            mean_cosine=cosine,
            partition_isotropy=partition_isotropy(
                _mean_length_one(vectors), random_state=random_state
            ),
            isoscore=isoscore(vectors),
            effective_rank=effective_rank(vectors),
            dominance=dominance(vectors),
            dead_dimensions=tuple(int(number) for number in dead_dimensions(vectors)),
            hubness=hubness(vectors, k=NEIGHBOURS, random_state=random_state),
            uniformity=uniformity(vectors, random_state=random_state),
            alignment=None if pairs is None else alignment(*pairs),
        )


def _judge(mean: float) -> tuple[Verdict, str]:
    cosine = f"random pairs have a mean cosine of {mean:.2f}"
    if mean >= CROWDED:
        return "yes", f"{cosine}: the vectors crowd around a common direction"
    if mean < SPREAD:
        return "no", f"{cosine}: they are spread out already"
    return "unclear", f"{cosine}, between what gained and what lost where we measured"


def _warnings(rows: int, width: int, *, zeros: int) -> tuple[str, ...]:
    said = []
    if zeros:
        said.append(f"{zeros:,} zero vectors are left out: they have no direction")
    if rows < FEW_ROWS:
        said.append(f"only {rows} vectors: all figures are rough below {FEW_ROWS}")
    elif rows < 10 * width:
        said.append(
            f"{rows:,} vectors of {width} dimensions: IsoScore and effective rank come out low "
            f"below some {10 * width:,}"
        )
    return tuple(said)


def _mean_length_one(vectors: Array) -> Array:
    """The vectors at a common scale: partition functions of others cannot be compared."""
    size = np.abs(vectors).max().astype(np.float64)
    scaled = vectors.astype(np.float64) / (size or 1.0)
    length = np.linalg.norm(scaled, axis=1).mean()
    scaled /= length or 1.0
    return scaled
