"""What a diagnosis is made from, and what it looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow.analysis import Diagnosis, diagnose
from bertflow.analysis.diagnosis import VERDICTS
from bertflow.arrays import finite
from bertflow.calibrators.vectors import read_vectors
from bertflow.cli.results import Page
from bertflow.cli.terminal import progress_bars
from bertflow.data import Pairs
from bertflow.encoders import Precision, SentenceCache

# Pairs alike are those with at least this share of the highest score.
ALIKE = 0.8
MEASURED = (
    "where we measured it (docs/results.md), vectors with a mean cosine above 0.35 gained 5 "
    "to 40 points on STS-B; at 0.02 whitening and flows lost 1 to 3, adaptive whitening nothing"
)
NEXT = {
    "yes": "bertflow fit takes adaptive-whitening, the default; bertflow compare shows on pairs of "
    "your own what it gains",
    "no": "bertflow compare shows on pairs of your own what calibration would change",
    "unclear": "bertflow fit changes little where little is wrong; bertflow compare tells, on a "
    "task or on pairs of your own",
    "uninformative": "fit on more rows than dimensions, better ten times as many, and diagnose "
    "vectors of other sentences than were fitted on",
}


def diagnose_file(path: Path, limit: int) -> Diagnosis:
    """Diagnose vectors in a .npy file."""
    vectors = finite(read_vectors(path))
    if len(vectors) > limit:
        # Not the first: files are often sorted.
        drawn = np.random.default_rng(0).choice(len(vectors), size=limit, replace=False)
        vectors = vectors[np.sort(drawn)]
    return diagnose(np.asarray(vectors))


def diagnose_encoder(
    encoder: SentenceTransformer,
    sentences: Sequence[str],
    pairs: Pairs | None,
    batch_size: int,
    cache: SentenceCache | None = None,
    precision: Precision = "auto",
) -> Diagnosis:
    """Diagnose an encoder's vectors of distinct sentences and, with pairs, their alignment."""
    alike: list[tuple[str, str]] = []
    if pairs is not None:
        best = max(grade for grade in pairs.gold if grade is not None)
        alike = [
            (first, second)
            for first, second, grade in zip(pairs.first, pairs.second, pairs.gold, strict=True)
            if grade is not None and grade >= ALIKE * best > 0 and first != second
        ]
    enough = len(alike) > 1
    with progress_bars() as report:
        found = diagnose(
            encoder,
            sentences,
            pairs=tuple(zip(*alike, strict=True)) if enough else None,  # type: ignore[arg-type]
            batch_size=batch_size,
            cache=cache,
            precision=precision,
            progress=lambda done, total: report("encode", done, total),
        )
    if pairs is None or enough:
        return found
    few = f"no alignment: {len(alike)} pairs are alike (score from {ALIKE} of the highest, above 0)"
    return replace(found, warnings=(*found.warnings, few))


def diagnosis_page(source: str, found: Diagnosis) -> Page:
    """The verdict first, then the evidence, and what each figure would be at its best."""
    top = ", ".join(f"{number} ({100 * share:.0f} %)" for number, share in found.dominance.top(3))
    dead = ", ".join(map(str, found.dead_dimensions[:5]))
    more = len(found.dead_dimensions) - 5
    notes = [f"dimensions with most of the cosine: {top}"]
    if found.alignment is not None:
        notes.append(f"pairs alike are those with a score from {ALIKE} of the highest")
    if dead:
        notes.append(f"not varying: {dead}{f' and {more} more' if more > 0 else ''}")
    notes += found.warnings
    notes.append(MEASURED)
    notes.append(NEXT[found.verdict])
    facts = {
        "verdict": f"{VERDICTS[found.verdict]}: {found.reason}",
        "vectors": f"{source}: {found.rows:,}, each of {found.width} dimensions",
    }
    if found.cut is not None:
        facts["cut"] = f"{found.cut:,} sentences are longer than the encoder takes"
    return Page(facts, [found.evidence()], notes)
