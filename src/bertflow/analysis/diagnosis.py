"""Will calibration help? Measures without labels, and a verdict from earlier measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import isotropy
from bertflow.analysis.neighbours import checked, directed, sampled
from bertflow.arrays import Array, unit_rows
from bertflow.data import sample_sentences
from bertflow.display import Grid, notebook
from bertflow.display.grid import MINUS, fixed
from bertflow.encoders import EncodeOptions, embed
from bertflow.encoders.encoder import CALIBRATOR, as_sentences
from bertflow.errors import InputError, unknown
from bertflow.models import open_model
from bertflow.process_state import one_thread

Verdict = Literal["yes", "no", "unclear", "uninformative"]

# From the encoders of docs/results.md (`python -m benchmarks.diagnosis`).
CROWDED = 0.35
SPREAD = 0.1
FEW_ROWS = 200
# What other jobs than similarity gained and lost, by whether the vectors were crowded
# (`python -m benchmarks.jobs`, docs/guides/jobs.md).
ADVICE: Mapping[tuple[str, bool], tuple[Verdict, str]] = {
    ("search", True): (
        "yes",
        "In search such vectors gained 8 to 58 points of nDCG@10 on all three collections we "
        "measured, by search-whitening fitted on documents and queries",
    ),
    ("search", False): (
        "unclear",
        "In search an embedding model gained 3.0 points of nDCG@10 on QNLI by search-whitening "
        "fitted on documents and queries, nothing that could be told on Cranfield, and lost 1.1 on "
        "captions; other calibrators lost up to 10",
    ),
    ("classes", True): (
        "yes",
        "For classes and clusters such vectors gained 2 to 12 points of k-NN accuracy and 3 to 18 "
        "of V-measure by soft-standardization; whitening of any kind cost up to 35",
    ),
    ("classes", False): (
        "no",
        "For classes and clusters soft-standardization leaves an embedding model as it is; "
        "whitening and all-but-the-top cost it 15 to 18 points of V-measure, and 14 to 16 of "
        "accuracy with 8 labels a class",
    ),
    ("duplicates", True): (
        "unclear",
        "For duplicates such vectors gained 6 to 11 points of average precision on SNLI by "
        "adaptive-whitening; on SICK one cloud of three gained, by 4, and of the others nothing "
        "could be told",
    ),
    ("duplicates", False): (
        "no",
        "For duplicates an embedding model lost by every calibrator on SICK and SNLI: 0.1 and 1.0 "
        "points of average precision by adaptive-whitening, 12 and 7 by whitening",
    ),
}
DIAGNOSED = ("similarity", "search", "classes", "clusters", "duplicates")
VERDICTS: dict[Verdict, str] = {
    "yes": "Calibration is likely to help",
    "no": "Leave the vectors as they are",
    "unclear": "Cannot tell without trying",
    "uninformative": "These cosines tell nothing apart",
}
NEIGHBOURS = 10
# The cosines of random directions vary by 1 / sqrt(D). If cosines vary by less than this share of
# that, a map fitted on these rows has made them equal.
EVEN = 0.5
EVEN_ROWS = 2000
# A loss of sentence-transformers, as cards name it: a tag of today's, or the code of older ones.
LOSS = re.compile(r"\bloss:(\w+)|sentence_transformers\.losses\.(\w+)")
# It trains a classifier over two vectors, not their cosine; such encoders gained from calibration.
NOT_OF_COSINES = "SoftmaxLoss"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measures of a cloud of vectors, and whether calibration is likely to help.

    Attributes:
        verdict: Whether calibration is likely to raise the correlation of cosine with meaning:
            "yes", "no" or "unclear"; "uninformative" where all pairs have nearly the same cosine.
        reason: Why, in a sentence.
        warnings: What makes the verdict less sure.
        rows: How many vectors, those that are zero not counted.
        width: Their dimensions.
        cosine_deviation: How much the cosines of pairs vary, their common direction aside.
        partition_isotropy: Of vectors scaled to mean length 1. It and the others are the measures
            of the same names.
        alignment: Of pairs that belong together, None without pairs.
        cut: How many sentences the encoder cuts, being longer than it takes; None of vectors.
        job: What the verdict is about.
    """

    verdict: Verdict
    reason: str
    warnings: tuple[str, ...]
    rows: int
    width: int
    mean_cosine: float
    cosine_deviation: float
    partition_isotropy: float
    isoscore: float
    effective_rank: float
    dominance: isotropy.Dominance
    dead_dimensions: tuple[int, ...]
    hubness: isotropy.Hubness
    uniformity: float
    alignment: float | None
    cut: int | None = None
    job: str = "similarity"

    def evidence(self) -> Grid:
        """Every measure beside its best value."""
        return evidence_of({"here": self})

    def __repr__(self) -> str:
        lines = [f"{VERDICTS[self.verdict]}: {self.reason}"]
        lines += [f"{self.rows:,} vectors of {self.width} dimensions", self.evidence().text()]
        return "\n".join([*lines, *(f"- {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        facts = {"why": self.reason, "vectors": f"{self.rows:,}, each of {self.width} dimensions"}
        if self.warnings:
            facts["but"] = "; ".join(self.warnings)
        return notebook(VERDICTS[self.verdict], facts, [self.evidence()])

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON has it."""
        top = [{"dimension": number, "share": share} for number, share in self.dominance.top(3)]
        shown = {**asdict(self), "dominance": top}
        if self.job == "similarity":
            del shown["job"]
        return shown


def evidence_of(diagnoses: Mapping[str, Diagnosis]) -> Grid:
    """Every measure of some clouds, by name, beside its best value."""
    several = [_evidence(one) for one in diagnoses.values()]
    # What not all of them have, such as the alignment, is left out.
    names = [name for name in several[0] if all(name in one for one in several)]
    rows = []
    for name in names:
        values, best = zip(*(one[name] for one in several), strict=True)
        rows.append([name, *values, " / ".join(dict.fromkeys(best))])
    return Grid("evidence", ["measure", *diagnoses, "at best"], rows)


def _evidence(one: Diagnosis) -> dict[str, tuple[str, str]]:
    """By measure, its value and its best value."""
    random = one.width**-0.5  # Of random directions.
    shown = {
        "mean cosine of random pairs": (fixed(one.mean_cosine, 3), "0"),
        "deviation of cosines, centred": (fixed(one.cosine_deviation, 3), f"from {random:.3f}"),
        "partition function isotropy": (fixed(one.partition_isotropy, 3), "1"),
        "IsoScore": (fixed(one.isoscore, 3), "1"),
        "effective rank": (fixed(one.effective_rank, 0), f"{min(one.width, one.rows - 1)}"),
        "hubness (skewness, k = 10)": (fixed(one.hubness.skewness), "0"),
        "rows that are nobody's neighbour": (f"{100 * one.hubness.antihubs:.0f} %", "0 %"),
        "uniformity": (fixed(one.uniformity), f"{MINUS}4"),
        "dimensions that do not vary": (f"{len(one.dead_dimensions)}", "0"),
    }
    if one.alignment is not None:
        shown["alignment of pairs alike"] = (fixed(one.alignment, 3), "0")
    return shown


def diagnose(
    vectors: Array | SentenceTransformer | str | Path,
    sentences: Sequence[str] | None = None,
    *,
    pairs: tuple[Any, Any] | None = None,
    job: str = "similarity",
    random_state: int = 0,
    **options: Unpack[EncodeOptions],
) -> Diagnosis:
    r"""Measure a cloud of vectors without labels, and judge whether calibration will help.

    The verdict goes by the mean cosine of random pairs: "yes" from 0.35 up, where whitening and
    flows gained on all nine clouds we measured, "no" below 0.1, where all lost on the one we
    measured, and else "unclear". Two things go before the mean. It is "no" for an encoder whose
    modules or card say that it was trained to be compared by cosine. It is "uninformative" where,
    with :math:`\bar u` the mean of the directions :math:`u_i = x_i / |x_i|`, the cosines of
    :math:`u_i - \bar u` vary by less than half of :math:`1/\sqrt D`, as only a map fitted on few of
    these very rows leaves them.

    For another job than similarity the verdict and its reason are what encoders of the same kind,
    crowded or not, gained or lost on that job where we measured it.

    Args:
        vectors: Shape (N, D), N > 10 without zero rows, better thousands: of sentences like those
            that will be compared. Or an encoder, also by name as in `load_encoder`.
        sentences: For an encoder; None takes sentences that come along. Each distinct one counts
            once.
        pairs: Vectors of sentences that belong together, each of shape (P, D), for alignment; with
            an encoder those sentences, P of each.
        job: "similarity", "search", "classes", "clusters" or "duplicates".
        random_state: Seed of all draws.
        options: For an encoder, see `bertflow.encoders.EncodeOptions`.

    Raises:
        InputError: 10 or fewer rows that are not zero, all rows equal, a NaN or infinite row
            (named), or sentences without an encoder.

    Source: The measures' own; the thresholds from docs/results.md.

    Example:
        >>> cloud = np.random.default_rng(0).normal(size=(500, 16))
        >>> diagnose(cloud).verdict, diagnose(cloud + 3.0).verdict
        ('no', 'yes')
    """
    if job not in DIAGNOSED:
        raise unknown("job", job, DIAGNOSED)
    if isinstance(vectors, str | Path):
        vectors = open_model(vectors)
    if not isinstance(vectors, SentenceTransformer):
        if sentences is not None:
            raise InputError(
                "sentences have vectors by an encoder: give diagnose(encoder, sentences), or their "
                "vectors alone"
            )
        return _for_job(_measured(vectors, pairs, random_state), job)
    sentences = list(as_sentences(sample_sentences() if sentences is None else sentences))
    first, second = ([], []) if pairs is None else map(list, pairs)
    embedded = embed(vectors, [*sentences, *first, *second], **options)
    cloud = embedded.vectors[np.unique(embedded.index[: len(sentences)])]
    rows = embedded.rows()[len(sentences) :]
    alike = (rows[: len(first)], rows[len(first) :]) if first else None
    found = replace(_measured(cloud, alike, random_state), cut=embedded.cut)
    trained = "" if found.verdict == "uninformative" else _training(vectors)
    if not trained:
        return _for_job(found, job)
    reason = (
        f"this is an embedding model: {trained}; random pairs of these sentences have a mean "
        f"cosine of {found.mean_cosine:.2f}, as text of one field may"
    )
    return _for_job(replace(found, verdict="no", reason=reason), job)


def _for_job(found: Diagnosis, job: str) -> Diagnosis:
    """The diagnosis with the verdict and evidence for a job, by whether vectors are crowded."""
    if job == "similarity" or found.verdict == "uninformative":
        return replace(found, job=job)
    if found.verdict == "unclear":
        why = f"{found.reason}; for {job} we have measured crowded vectors, and embedding models"
        return replace(found, job=job, reason=why)
    verdict, evidence = ADVICE["classes" if job == "clusters" else job, found.verdict == "yes"]
    return replace(found, job=job, verdict=verdict, reason=f"{found.reason}. {evidence}")


def _training(encoder: SentenceTransformer) -> str:
    """The signs that an encoder was trained for its cosines, or "".

    Behind a calibrator there are none: that has changed the vectors.
    """
    if any(name.startswith(CALIBRATOR) for name in encoder._modules):
        return ""
    said = []
    if any(type(module).__name__ == "Normalize" for module in encoder):
        said.append("its modules end in Normalize")
    card = getattr(encoder, "_model_card_text", None) or ""
    text = " ".join([card, *(getattr(encoder.model_card_data, "tags", None) or [])])
    losses = dict.fromkeys(tag or code for tag, code in LOSS.findall(text))
    if names := [name for name in losses if name != NOT_OF_COSINES]:
        said.append(f"its card names {', '.join(names)}")
    return " and ".join(said)


def _measured(vectors: Array, pairs: tuple[Array, Array] | None, random_state: int) -> Diagnosis:
    given = len(checked(vectors))
    vectors = directed(vectors)
    if len(vectors) <= NEIGHBOURS:
        raise InputError(
            f"a diagnosis takes more than {NEIGHBOURS} vectors that are not zero, "
            f"got {len(vectors)} of {given}"
        )
    width = vectors.shape[1]
    # Eigenvectors of a few hundred dimensions stall on several threads.
    with one_thread():
        cosine = isotropy.mean_cosine(vectors, random_state=random_state)
        deviation = _cosine_deviation(vectors, random_state)
        verdict, reason = _judge(cosine, deviation, width)
        # At a common scale: partition functions of others cannot be compared.
        rows = vectors.astype(np.float64)
        scaled = rows / np.linalg.norm(rows, axis=1).mean()
        return Diagnosis(
            verdict=verdict,
            reason=reason,
            warnings=_warnings(len(vectors), width, zeros=given - len(vectors)),
            rows=len(vectors),
            width=width,
            mean_cosine=cosine,
            cosine_deviation=deviation,
            partition_isotropy=isotropy.partition_isotropy(scaled, random_state=random_state),
            isoscore=isotropy.isoscore(vectors),
            effective_rank=isotropy.effective_rank(vectors),
            dominance=isotropy.dominance(vectors),
            dead_dimensions=tuple(isotropy.dead_dimensions(vectors).tolist()),
            hubness=isotropy.hubness(vectors, k=NEIGHBOURS, random_state=random_state),
            uniformity=isotropy.uniformity(vectors, random_state=random_state),
            alignment=None if pairs is None else isotropy.alignment(*pairs),
        )


def _cosine_deviation(vectors: Array, random_state: int) -> float:
    """How much the cosines of all pairs vary once the mean direction is taken off."""
    directions = unit_rows(vectors)
    rows = unit_rows(sampled(directions - directions.mean(axis=0), EVEN_ROWS, random_state))
    cosines = rows @ rows.T
    return float(cosines[~np.eye(len(cosines), dtype=bool)].std())


def _judge(mean: float, deviation: float, width: int) -> tuple[Verdict, str]:
    cosine = f"random pairs have a mean cosine of {mean:.2f}"
    if deviation < EVEN * width**-0.5:
        return "uninformative", (
            f"{cosine}, and apart from what all share their cosines vary by {deviation:.4f}, where "
            f"random directions of {width} dimensions vary by {width**-0.5:.4f}: a map fitted on "
            "too few of these very rows makes all pairs equally alike"
        )
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
