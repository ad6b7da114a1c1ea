"""What each calibrator does to classes and clusters.

Classes are the kinds of sentences in STS12 to STS16 (headlines, captions, forums ...), 400 of each,
judged as `--labels` judges a user's own. Calibrators are fitted on these sentences, without labels.

    python -m benchmarks.classes [--clouds smollm2:1 minilm:6] [--vectors FOLDER]

Needs BERTFLOW_DATA or ../shared/data, and both packaged encoders. --vectors keeps each cloud there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.adaptive import DATA, encoder_of
from bertflow import SentenceCache
from bertflow.arrays import Array
from bertflow.calibrators import Calibrator, named_calibrator
from bertflow.data import LabelledTexts, read_task
from bertflow.encoders import embed, library_versions
from bertflow.evaluation import LabelsJob
from bertflow.evaluation.jobs import estimates

CLOUDS = ["smollm2:1", "smollm2:6", "minilm:6"]
TASKS = ["sts12", "sts13", "sts14", "sts15", "sts16"]
# Kinds that have several names; two of fewer than 400 sentences are left out.
KINDS = {
    "surprise.OnWN": "OnWN",
    "surprise.SMTnews": "news",
    "deft-news": "news",
    "MSRpar": "news",
}
EACH = 400
NAMES = ["standardization", "adaptive-whitening", "whitening", "all-but-the-top"]


def sources() -> LabelledTexts:
    """Sentences with their kind; those of two kinds are left out."""
    found: dict[str, set[str]] = {}
    for task in TASKS:
        pairs = read_task(task, DATA)
        for *both, subset in zip(pairs.first, pairs.second, pairs.subset, strict=True):
            for text in both:
                found.setdefault(text, set()).add(KINDS.get(subset, subset))
    kinds: dict[str, list[str]] = {}
    for text in sorted(found):
        if len(found[text]) == 1:
            kinds.setdefault(*found[text], []).append(text)
    random = np.random.default_rng(0)
    rows = [
        (str(text), kind)
        for kind, texts in sorted(kinds.items())
        if len(texts) >= EACH
        for text in random.permutation(texts)[:EACH]
    ]
    return LabelledTexts(*map(list, zip(*rows, strict=True)), "STS12 to STS16")


def cloud_of(name: str, texts: list[str], folder: Path | None) -> Array:
    """The vectors of a cloud, (N, D), from the folder if they are there."""
    path = folder and folder / f"classes_{name.replace(':', '_')}.npy"
    if path and path.exists():
        return np.load(path)
    rows = embed(encoder_of(name), texts, precision="float32", cache=SentenceCache()).rows()
    if path:
        np.save(path, rows)
    return rows


def figures(job: LabelsJob, rows: Array) -> dict[str, str]:
    """The measures with half the width of their intervals, and the curve of few labels, x 100."""
    judged = job.judge({"document": rows})
    found = {
        name: f"{100 * one.value:.1f} ± {50 * (one.high - one.low):.1f}"
        for name, one in estimates(judged).items()
    }
    for point in judged.facts["few labels"]:
        for name in ("logistic regression", "k-nn"):
            found[f"{name}, {point['labels']}"] = f"{100 * point[name]:.1f}"
    return found


def print_table(job: LabelsJob, rows: Array, maps: Mapping[str, Calibrator | None]) -> None:
    """A row a calibrator."""
    for place, (name, calibrator) in enumerate(maps.items()):
        found = figures(job, calibrator.fit_transform(rows) if calibrator else rows)
        if place == 0:
            print("| calibrator |", " | ".join(found), "|")
            print("|---|" + "---:|" * len(found))
        print(f"| {name} |", " | ".join(found.values()), "|", flush=True)


def main() -> None:
    """Print a table a cloud."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clouds", nargs="+", default=CLOUDS)
    parser.add_argument("--vectors", type=Path)
    given = parser.parse_args()
    data = sources()
    job = LabelsJob(data)
    print(job.counts, sorted(set(data.labels)))
    for cloud in given.clouds:
        print(f"\n**{cloud}**\n")
        rows = cloud_of(cloud, list(data.texts), given.vectors)
        print_table(job, rows, {"none": None, **{name: named_calibrator(name) for name in NAMES}})
    print("\n" + ", ".join(f"{k} {v}" for k, v in library_versions().items()))


if __name__ == "__main__":
    main()
