"""What each calibrator does to classes and clusters.

Classes are the kinds of sentences in STS12 to STS16 (headlines, captions, forums ...), 400 of each,
judged as `--labels` judges a user's own. Calibrators are fitted on these sentences, without labels.

    python -m benchmarks.classes [--clouds smollm2:1 minilm:6] [--vectors FOLDER]

Needs BERTFLOW_DATA or ../shared/data, and both packaged encoders. --vectors keeps each cloud there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.adaptive import DATA, encoder_of
from bertflow import SentenceCache
from bertflow.arrays import Array
from bertflow.calibrators import named_calibrator
from bertflow.data import LabelledTexts, read_task
from bertflow.encoders import embed, library_versions
from bertflow.evaluation import Estimate, LabelsJob, holm
from bertflow.evaluation.jobs import estimates

CLOUDS = ["smollm2:1", "smollm2:6", "minilm:6"]
TASKS = ["sts12", "sts13", "sts14", "sts15", "sts16"]
# Kinds that have several names; two of fewer than 400 sentences are left out.
KINDS = {"surprise.OnWN": "OnWN", "surprise.SMTnews": "news", "deft-news": "news", "MSRpar": "news"}
EACH = 400
NAMES = [
    "soft-standardization",
    "standardization",
    "adaptive-whitening",
    "whitening",
    "all-but-the-top",
]


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


def figures(job: LabelsJob, rows: Array) -> tuple[dict[str, Estimate], dict[str, float]]:
    """The measures, and the curve of few labels."""
    judged = job.judge({"document": rows})
    few = {
        f"{name}, {point['labels']}": point[name]
        for point in judged.facts["few labels"]
        for name in ("logistic regression", "k-nn")
    }
    return estimates(judged), few


def print_table(job: LabelsJob, rows: Array) -> None:
    """A row a calibrator, with what it gains over raw vectors; `~` is a gain that may be chance."""
    before, few_before = figures(job, rows)
    print("| calibrator |", " | ".join([*before, *few_before]), "|")
    print("|---|" + "---:|" * (len(before) + len(few_before)))
    raw = [one.value for one in before.values()] + list(few_before.values())
    print("| none |", " | ".join(f"{100 * (one or 0):.1f}" for one in raw), "|", flush=True)
    for name in NAMES:
        after, few = figures(job, named_calibrator(name).fit_transform(rows))
        found = holm({key: one.above(before[key]) for key, one in after.items()})
        cells = [
            f"{100 * (after[key].value or 0):.1f} ({100 * (one.value or 0):+.1f}"
            f"{'' if one.real else ' ~'})"
            for key, one in found.items()
        ]
        cells += [
            f"{100 * few[key]:.1f} ({100 * (few[key] - few_before[key]):+.1f})" for key in few
        ]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


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
        print_table(job, rows)
    print("\n" + ", ".join(f"{k} {v}" for k, v in library_versions().items()))


if __name__ == "__main__":
    main()
