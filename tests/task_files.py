"""Small tasks that look like the real ones: files in SentEval's and GLUE's layouts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bertflow.data import CATALOG, NLI_LABELS
from conftest import WORDS

SPLITS = {"train": "SICK_train", "dev": "SICK_trial", "test": "SICK_test_annotated"}
PAIRS = 24
Row = tuple[str, str, str]


def graded_rows(count: int, seed: int, *, blank: bool = False) -> list[Row]:
    """Sentence pairs and gold scores from 1 to 5 that follow how many words are kept."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = random.choice(WORDS, size=random.integers(4, 10)).tolist()
        changed = random.integers(0, len(words) + 1)
        other = words.copy()
        for place in random.choice(len(words), size=changed, replace=False):
            other[place] = random.choice(WORDS)
        score = 1 + 4 * (1 - changed / len(words)) + random.normal(0, 0.7)
        gold = "" if blank and random.random() < 0.3 else f"{np.clip(score, 1, 5):.1f}"
        rows.append((" ".join(words), " ".join(other), gold))
    return rows


def write_sts_year(folder: Path, name: str) -> None:
    """A year of STS: 8 to 24 pairs a subset; in 2015 and 2016 some have no score."""
    place = folder / "senteval/STS" / f"STS{name[3:]}-en-test"
    place.mkdir(parents=True)
    for number, subset in enumerate(CATALOG[name].subsets):
        rows = graded_rows(
            8 + 4 * number, 100 * int(name[3:]) + number, blank=name in ("sts15", "sts16")
        )
        (place / f"STS.input.{subset}.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in rows))
        (place / f"STS.gs.{subset}.txt").write_text("".join(f"{gold}\n" for _, _, gold in rows))


def write_stsb(folder: Path) -> None:
    place = folder / "senteval/STS/STSBenchmark"
    place.mkdir(parents=True)
    for seed, split in enumerate(SPLITS):
        lines = [
            f"genre\tfile\tyear\t{number}\t{gold}\t{a}\t{b}\n"
            for number, (a, b, gold) in enumerate(graded_rows(PAIRS, seed))
        ]
        (place / f"sts-{split}.csv").write_text("".join(lines))


def write_sick(folder: Path) -> None:
    place = folder / "senteval/SICK"
    place.mkdir(parents=True)
    for seed, name in enumerate(SPLITS.values()):
        lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"]
        for number, (a, b, gold) in enumerate(graded_rows(PAIRS, 10 + seed)):
            lines.append(f"{number}\t{a}\t{b}\t{gold}\tNEUTRAL\n")
        (place / f"{name}.txt").write_text("".join(lines))


def write_qnli(folder: Path, *, labels: tuple[str, ...] = ("entailment", "not_entailment")) -> None:
    """The labels in turn."""
    place = folder / "glue/QNLI"
    place.mkdir(parents=True)
    lines = ["index\tquestion\tsentence\tlabel\n"]
    for number, (a, b, _) in enumerate(graded_rows(PAIRS, 20)):
        lines.append(f"{number}\t{a}\t{b}\t{labels[number % len(labels)]}\n")
    (place / "dev.tsv").write_text("".join(lines))


def write_snli(folder: Path) -> None:
    """The labels in turn."""
    (folder / "nli").mkdir(parents=True)
    lines = [
        json.dumps(
            {"gold_label": NLI_LABELS[number % len(NLI_LABELS)], "sentence1": a, "sentence2": b}
        )
        + "\n"
        for number, (a, b, _) in enumerate(graded_rows(3 * PAIRS, 30))
    ]
    (folder / "nli/snli_dev.jsonl").write_text("".join(lines))


def write_tasks(folder: Path, *names: str) -> Path:
    """Write the named tasks, "snli" among them, and give the folder to look in."""
    writers = {"stsb": write_stsb, "sick-r": write_sick, "qnli": write_qnli, "snli": write_snli}
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in writers:
            writers[name](folder)
        else:
            write_sts_year(folder, name)
    return folder


def write_word_vectors(path: Path, seed: int = 0) -> Path:
    """Vectors of 8 numbers for all words but the last ten, as GloVe's files have them."""
    random = np.random.default_rng(seed)
    lines = [
        f"{word} {' '.join(f'{number:.4f}' for number in random.normal(size=8))}\n"
        for word in WORDS[:-10]
    ]
    path.write_text("".join(lines))
    return path
