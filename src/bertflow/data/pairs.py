"""Sentence pairs: with gold scores, with entailment labels, the samples, and users' own."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertflow.data.tables import (
    PACKED,
    STANDARD_INPUT,
    TABLES,
    File,
    Wanted,
    kind_of,
    listed,
    read_rows,
)
from bertflow.errors import InputError, MissingDataError, quoted, shown

log = logging.getLogger(__name__)

DATA_VARIABLE = "BERTFLOW_DATA"
SAMPLE = Path(__file__).parent / "sample"
NLI_LABELS = ("contradiction", "entailment", "neutral")
# Names by which columns are known, without their spaces, hyphens, underscores and capitals.
TEXT_COLUMNS = (
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("first", "second"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "document"),
    ("query", "passage"),
)
GOLD_COLUMNS = (
    "score label similarity similarityscore gold goldscore relatedness relatednessscore isduplicate"
).split()
TRUTH = {"true": "1", "false": "0"}


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with gold scores.

    Attributes:
        task: The task's name.
        split: Which part of it.
        first: One sentence a pair.
        second: The other.
        gold: Graded similarity, or 1 and 0; None where a pair was never graded.
        source: The file, the folder of several, or repository@revision of the hub.
        subset: The name of each pair's subset; empty where the task has none.
        binary: Whether gold is 1 and 0 only.
        skipped: Rows that are no pair and in none of the lists, counted by reason.
        rows: Each pair's index (of QNLI), or else its line or row; empty if it is of no file.
    """

    task: str
    split: str
    first: Sequence[str]
    second: Sequence[str]
    gold: Sequence[float | None]
    source: str
    subset: Sequence[str] = ()
    binary: bool = False
    skipped: Mapping[str, int] = field(default_factory=dict)
    rows: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.first)

    def graded(self) -> tuple[list[str], list[str], list[float]]:
        """First sentences, second sentences and gold of the pairs that were graded."""
        rows = zip(self.first, self.second, self.gold, strict=True)
        kept = [(first, second, gold) for first, second, gold in rows if gold is not None]
        return [row[0] for row in kept], [row[1] for row in kept], [row[2] for row in kept]


@dataclass(frozen=True)
class NliPairs:
    """Premises and hypotheses, each pair with one of `NLI_LABELS`; otherwise like `Pairs`."""

    name: str
    split: str
    first: Sequence[str]
    second: Sequence[str]
    labels: Sequence[str]
    source: str
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first)


def read_pairs(
    path: str | Path, *, columns: tuple[str, str, str] | None = None, format: str | None = None
) -> Pairs:
    r"""Read pairs of one's own: two columns of text and one of scores.

    A score is a number, or true or false; blank is ungraded. In .tsv quotes are plain characters.

    Args:
        path: A .csv, .tsv, .jsonl or .parquet, each also packed (.gz, .bz2, .xz, .zst); or "-" for
            standard input.
        columns: First text, second text and score: names, or for a .csv or .tsv without a header
            numbers from 1, as digits. None looks for names in common use, such as sentence1,
            sentence2 and score.
        format: "csv", "tsv", "jsonl" or "parquet", whatever the name ends in.

    Returns:
        The pairs, as task "pairs" with the file's name as split.

    Raises:
        InputError: The file is missing or damaged, columns are missing or not recognised, a row is
            malformed (named by line), or no pair is graded.
        MissingDependencyError: A .parquet without its package; the message is the pip line.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "mine.tsv"
        >>> _ = file.write_text("A cat\tA dog\t2.5\nA cat\tA cat\t5\n")
        >>> read_pairs(file, columns=("1", "2", "3")).gold
        [2.5, 5.0]
    """
    source: File = STANDARD_INPUT if str(path) == "-" else Path(path)
    if columns is not None and not (
        len(columns) == len(set(columns)) == 3 and all(isinstance(one, str) for one in columns)
    ):
        raise InputError(
            "columns must be three different ones, first text, second text and score, each as text "
            f"such as 'score' or '3', got {listed(columns)}"
        )
    kind = kind_of(source, TABLES, format)
    unit = "row" if kind == ".parquet" else "line"
    wanted = Wanted(source, columns, _recognised, texts=2)
    pairs = [
        (str(number), *_graded_pair(f"{source}, {unit} {number}", *cells))
        for number, cells in read_rows(source, kind, wanted)
        if cells is not None
    ]
    gold = [grade for *_, grade in pairs]
    check_graded(gold, str(source), {})
    binary = all(grade in (None, 0, 1) for grade in gold)
    log.info("%s: %d pairs, gold is %s", source, len(pairs), "0 and 1" if binary else "graded")
    name = Path(source.name)
    return Pairs(
        task="pairs",
        split=Path(name.stem if name.suffix.lower() in PACKED else name).stem,
        first=[first for _, first, _, _ in pairs],
        second=[second for _, _, second, _ in pairs],
        gold=gold,
        source=str(source),
        binary=binary,
        rows=[number for number, *_ in pairs],
    )


def sample_pairs() -> Pairs:
    """The graded pairs that come with bertflow: a demonstration, not a benchmark.

    Example:
        >>> len(sample_pairs())
        180
    """
    pairs = read_pairs(SAMPLE / "pairs.tsv")
    source = "bertflow/data/sample/pairs.tsv"
    return replace(pairs, task="sample", split="all", source=source, rows=())


def sample_sentences() -> list[str]:
    """The unlabelled sentences that come with bertflow.

    Example:
        >>> len(sample_sentences())
        1200
    """
    return (SAMPLE / "sentences.txt").read_text(encoding="utf-8").splitlines()


def sample_texts() -> list[str]:
    """All distinct text that comes with bertflow: the sentences, then both halves of the pairs.

    Example:
        >>> len(sample_texts())
        1560
    """
    pairs = sample_pairs()
    return list(dict.fromkeys([*sample_sentences(), *pairs.first, *pairs.second]))


def sentence(value: Any, place: str) -> str:
    """A sentence with the space around it, because stored vectors go by the exact text."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{place}: {shown(value)} is not text")
    if not value or not value.strip():
        raise InputError(f"{place}: a sentence is blank; complete or remove the row")
    return value


def score(
    value: Any, place: str, *, span: tuple[float, float] | None = None, truth: bool = False
) -> float | None:
    """A gold score as a number, None where it is blank; with `truth`, true is 1 and false 0."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    if truth:
        text = TRUTH.get(text.lower(), text)
    try:
        # float() would take 1_0 for 10.
        number = math.nan if "_" in text else float(text)
    except ValueError:
        number = math.nan
    low, high = span or (-sys.float_info.max, sys.float_info.max)
    if not low <= number <= high:
        like = f"between {low:g} and {high:g}" if span else "such as 4.5"
        raise InputError(
            f"{place}: score {shown(text)} is not a number {like}; leave it empty where there is "
            "none"
        )
    return number


def check_graded(
    gold: Sequence[float | None], source: str, skipped: Mapping[str, int], *, bare: bool = False
) -> None:
    """Refuse pairs if none is graded; with `bare` as absent, since there are others with labels."""
    if all(grade is None for grade in gold):
        said = f"{source}: none of its {len(gold)} pairs has a gold score"
        said = said if gold else str(no_pair(source, skipped))
        if bare and (gold or skipped.keys() == {"no label"}):  # Else the file is damaged.
            raise MissingDataError(f"{said}; there are releases without labels: give one with them")
        raise InputError(said)


def no_pair(source: str, skipped: Mapping[str, int]) -> InputError:
    """The error for a source without a pair, with the counts of skipped rows."""
    counts = ", ".join(f"{count} skipped: {reason}" for reason, count in skipped.items())
    return InputError(f"{source} holds no pair{f' ({counts})' if counts else ''}")


def _graded_pair(place: str, first: Any, second: Any, grade: Any) -> tuple[str, str, float | None]:
    return sentence(first, place), sentence(second, place), score(grade, place, truth=True)


def _recognised(path: object, names: Sequence[str], _: Sequence[str]) -> Sequence[str]:
    """The two texts and the score by their names, where only one reading is possible."""
    plain = [name.strip().lower().translate(_SEPARATORS) for name in names]
    texts = [couple for couple in TEXT_COLUMNS if all(plain.count(name) == 1 for name in couple)]
    golds = [name for name in plain if name in GOLD_COLUMNS]
    if len(texts) != 1 or len(golds) != 1:
        once = [name for name in names if name and names.count(name) == 1][:3]
        three = ",".join([*once, *("FIRST", "SECOND", "SCORE")[len(once) :]])
        if any(name.replace(".", "").isdecimal() for name in names):  # There is no header.
            three = "1,2,3"
        raise InputError(
            f"{path}: cannot tell which columns are the two texts and the score; it has "
            f"{listed(names)}; name the three by columns, such as --columns {quoted(three)}, or "
            "where there is no header by numbers from 1"
        )
    return [names[plain.index(name)] for name in (*texts[0], golds[0])]


_SEPARATORS = str.maketrans("", "", " -_")
