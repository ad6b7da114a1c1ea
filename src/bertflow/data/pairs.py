"""Graded sentence pairs and the files they come in."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bertflow.errors import InputError

DATA_VARIABLE = "BERTFLOW_DATA"
STSB_PLACES = ("senteval/STS/STSBenchmark", "STS/STSBenchmark", "STSBenchmark", "stsbenchmark", ".")
STSB_COLUMNS = 7


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with gold scores.

    Attributes:
        task: The task's name.
        split: Which part of it.
        first: One sentence a pair.
        second: The other.
        gold: Graded similarity, 0 to 5; None where a pair was never graded.
        source: The file.
    """

    task: str
    split: str
    first: Sequence[str]
    second: Sequence[str]
    gold: Sequence[float | None]
    source: str

    def __len__(self) -> int:
        return len(self.first)


def read_stsb(data: str | Path | None, split: str = "test") -> Pairs:
    """Read a split of the STS benchmark in its original layout.

    Columns are genre, file, year, id, score, sentence 1, sentence 2, separated by tabs; more are
    ignored, quotes are plain characters, a blank score is no score.

    Args:
        data: The folder, or one that holds it as SentEval does; None takes the environment
            variable BERTFLOW_DATA.
        split: "train", "dev" or "test".

    Returns:
        The pairs.

    Raises:
        InputError: No such file (the message lists the places), a row with fewer columns or a
            score that is no number (named by line), or no pair at all.
    """
    path = _find(data, f"sts-{split}.csv", STSB_PLACES, "the STS benchmark")
    first, second, gold = [], [], []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it to UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = line.rstrip("\r\n").split("\t")
        if len(row) < STSB_COLUMNS:
            raise InputError(f"{path}, line {number}: {len(row)} columns, expected {STSB_COLUMNS}")
        gold.append(_score(row[4], path, number))
        first.append(row[5])
        second.append(row[6])
    if not first:
        raise InputError(f"{path} holds no pair")
    return Pairs("stsb", split, first, second, gold, str(path))


def sample_pairs() -> Pairs:
    """The graded pairs that come with bertflow: a demonstration, not a benchmark.

    Example:
        >>> len(sample_pairs())
        180
    """
    resource = files("bertflow.data") / "sample" / "pairs.tsv"
    rows = [line.split("\t") for line in resource.read_text(encoding="utf-8").splitlines()[1:]]
    return Pairs(
        task="sample",
        split="all",
        first=[row[1] for row in rows],
        second=[row[2] for row in rows],
        gold=[float(row[0]) for row in rows],
        source="bertflow/data/sample/pairs.tsv",
    )


def sample_sentences() -> list[str]:
    """The unlabelled sentences that come with bertflow.

    Example:
        >>> len(sample_sentences())
        1200
    """
    resource = files("bertflow.data") / "sample" / "sentences.txt"
    return resource.read_text(encoding="utf-8").splitlines()


def _find(data: str | Path | None, name: str, places: Sequence[str], what: str) -> Path:
    if data is None:
        data = os.environ.get(DATA_VARIABLE)
    if data is None:
        raise InputError(f"where is {what}? give --data DIR or set {DATA_VARIABLE}")
    tried = [Path(data) / place / name for place in places]
    for path in tried:
        if path.is_file():
            return path
    raise InputError(
        f"cannot find {what} in {data}; tried {', '.join(str(path) for path in tried)}"
    )


def _score(text: str, path: Path, number: int) -> float | None:
    if not text.strip():
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{path}, line {number}: score {text!r} is not a number")
    return score
