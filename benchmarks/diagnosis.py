"""What `diagnose` rests on: label-free measures of encoders, and what calibration really brings.

Vectors: states of SmolLM2 (two of them as stored in ../shared/data) and of all-MiniLM-L6-v2, from
its first block to its contrastively trained output. Calibrators are fitted on the sentences of
STS-B dev and test, and scored on both: mean of the two.

    python -m benchmarks.diagnosis
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.measuring import DATA, minilm, stored_vectors, table_line, versions
from bertflow.analysis import diagnose
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, Flow, Whitening
from bertflow.data import Pairs, read_task
from bertflow.demo import default_encoder
from bertflow.encoders import embed, load_encoder
from bertflow.evaluation import correlate, paired_cosine

SMOLLM2 = ("layers:0", "layers:1", "layers:2")
STORED = ("first-last-avg", "last2avg")
MINILM = ("layers:0", "layers:1", "layers:3", "layers:5", None)
HEADINGS = (
    "vectors",
    "mean cosine",
    "partition",
    "IsoScore",
    "rank / D",
    "hubness",
    "uniformity",
    "none",
    "whitening",
    "soft",
    "flow",
    "tempered",
    "verdict",
)


def main() -> None:
    """Measure and print."""
    tasks = [read_task("stsb", DATA, split) for split in ("dev", "test")]
    texts = [text for pairs in tasks for text in (*pairs.first, *pairs.second)]
    print("STS-B, Spearman x 100, mean of dev and test\n")
    print(table_line(HEADINGS))
    print("|---" + "|---:" * (len(HEADINGS) - 2) + "|---|")
    for name, rows in _clouds(texts):
        distinct = np.unique(rows, axis=0)
        found = diagnose(distinct)
        scores = [_score(rows, calibrator, tasks) for calibrator in _calibrators(rows.shape[1])]
        cells = [
            f"{found.mean_cosine:.3f}",
            f"{found.partition_isotropy:.3f}",
            f"{found.isoscore:.3f}",
            f"{found.effective_rank / found.width:.2f}",
            f"{found.hubness.skewness:.2f}",
            f"{found.uniformity:.2f}",
            *[f"{score:.2f}" for score in scores],
        ]
        print(table_line([name, *cells, found.verdict]), flush=True)
    print(f"\n{versions()}")


def _clouds(texts: Sequence[str]) -> Iterator[tuple[str, Array]]:
    """Vectors of the texts, repeats kept."""
    path = default_encoder(None)[0]
    for state in SMOLLM2:
        yield (
            f"SmolLM2, {state}",
            embed(load_encoder(path, pooling=state), texts, precision="float32").rows(),
        )
    for name in STORED:
        row_of, stored = stored_vectors(name)
        yield f"SmolLM2, {name}", stored[[row_of[text] for text in texts]]
    for state in MINILM:
        encoder = load_encoder(minilm(), pooling=state, max_length=64)
        yield (
            f"all-MiniLM-L6-v2, {state or 'as it is'}",
            embed(encoder, texts, precision="float32").rows(),
        )


def _calibrators(width: int) -> list[Calibrator | None]:
    return [None, Whitening(), Whitening(min(256, width // 2), power=0.75), Flow(), Flow.tempered()]


def _score(rows: Array, calibrator: Calibrator | None, tasks: Sequence[Pairs]) -> float:
    z = rows if calibrator is None else calibrator.fit(rows).transform(rows)
    start, found = 0, []
    for pairs in tasks:
        middle, end = start + len(pairs), start + 2 * len(pairs)
        cosine = paired_cosine(z[start:middle], z[middle:end])
        found.append(correlate(cosine, np.array(pairs.gold)).spearman or np.nan)
        start = end
    return 100 * float(np.mean(found))


if __name__ == "__main__":
    main()
