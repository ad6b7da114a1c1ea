"""Sentence pairs: with gold scores, with entailment labels, the samples, and users' own."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from bertflow.data.tables import (
    PACKED,
    STANDARD_INPUT,
    TABLES,
    Columns,
    File,
    StandardInput,
    Wanted,
    kind_of,
    listed,
    read_rows,
)
from bertflow.errors import InputError, quoted, shown

log = logging.getLogger(__name__)

DATA_VARIABLE = "BERTFLOW_DATA"
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
TRUTH = {"true": 1.0, "false": 0.0}


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
        skipped: Rows of the file that are no usable pair, counted by reason. They are in none of
            the lists; ungraded pairs are, and do not count here.
        rows: The number of each pair in its file or subset: its own where there is one (index of
            QNLI), else that of its line or row; empty where pairs come from no file.
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
    path: str | Path,
    *,
    columns: tuple[str, str, str] | None = None,
    format: str | None = None,
) -> Pairs:
    r"""Read pairs of one's own: two columns of text and one of scores.

    A score is a number, or true or false; blank is ungraded. In .tsv quotes are plain characters.
    A row of other cells than the header has is an error: nothing is left out.

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
        InputError: The file is missing, of unknown kind, not UTF-8, lacks a column or none is
            recognised (the message lists those it has), a row has more or fewer cells, a sentence
            is blank or no text, a score no number (named by line), or no pair is graded.
        MissingDependencyError: A .parquet without its package; the message is the pip line.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "mine.tsv"
        >>> _ = file.write_text("A cat\tA dog\t2.5\nA cat\tA cat\t5\n")
        >>> read_pairs(file, columns=("1", "2", "3")).gold
        [2.5, 5.0]
    """
    source: File = StandardInput() if str(path) == STANDARD_INPUT else Path(path)
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
        (str(number), *_graded_pair(cells, f"{source}, {unit} {number}"))
        for number, cells in read_rows(source, kind, wanted)
        if cells is not None
    ]
    gold = [grade for *_, grade in pairs]
    check_graded(gold, str(source))
    binary = all(grade in (None, 0, 1) for grade in gold)
    log.info("%s: %d pairs, gold is %s", source, len(pairs), "0 and 1" if binary else "graded")
    packed = source.suffix.lower() in PACKED
    return Pairs(
        task="pairs",
        split=Path(Path(source.name).stem if packed else source.name).stem,
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


def sample_texts() -> list[str]:
    """All distinct text that comes with bertflow: the sentences, then both halves of the pairs.

    Example:
        >>> len(sample_texts())
        1560
    """
    pairs = sample_pairs()
    return list(dict.fromkeys([*sample_sentences(), *pairs.first, *pairs.second]))


def sentence(value: Any, place: str) -> str:
    """A sentence with the space around it, because stored vectors go by the exact text.

    Raises:
        InputError: It is no text, or blank: it would have no vector.
    """
    if value is not None and not isinstance(value, str):
        raise InputError(f"{place}: {shown(value)} is not text")
    if not value or not value.strip():
        raise InputError(f"{place}: a sentence is blank; complete or remove the row")
    return value


def score(
    value: Any, place: str, *, span: tuple[float, float] | None = None, truth: bool = False
) -> float | None:
    """A gold score as a number, None where it is blank; with `truth`, true and false are 1 and 0.

    Raises:
        InputError: It is no finite number, or outside the span.
    """
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    if truth and text.lower() in TRUTH:
        return TRUTH[text.lower()]
    try:
        # float() would take 1_0 for 10.
        number = math.nan if "_" in text else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{place}: score {shown(text)} is not a number such as 4.5; leave it empty where there "
            "is none"
        )
    if span is not None and not span[0] <= number <= span[1]:
        raise InputError(f"{place}: score {number:g} is not between {span[0]:g} and {span[1]:g}")
    return number


def check_graded(
    gold: Sequence[float | None], source: str, skipped: Mapping[str, int] | None = None
) -> None:
    """Refuse pairs if none is graded."""
    if not gold:
        raise no_pair(source, skipped or {})
    if all(grade is None for grade in gold):
        raise InputError(f"{source}: none of its {len(gold)} pairs has a gold score")


def no_pair(source: str, skipped: Mapping[str, int]) -> InputError:
    """The error for a source without a pair, with the counts of skipped rows."""
    counts = ", ".join(f"{count} skipped: {reason}" for reason, count in skipped.items())
    return InputError(f"{source} holds no pair{f' ({counts})' if counts else ''}")


def _graded_pair(cells: Sequence[Any], place: str) -> tuple[str, str, float | None]:
    first, second, grade = cells
    return sentence(first, place), sentence(second, place), score(grade, place, truth=True)


def _recognised(table: Columns) -> Sequence[str]:
    """The two texts and the score by their names, where only one reading is possible."""
    plain = [name.strip().lower().translate(_SEPARATORS) for name in table.names]
    texts = [couple for couple in TEXT_COLUMNS if all(plain.count(name) == 1 for name in couple)]
    golds = [name for name in plain if name in GOLD_COLUMNS]
    if len(texts) != 1 or len(golds) != 1:
        once = [name for name in table.names if name and table.names.count(name) == 1][:3]
        three = ",".join([*once, *("FIRST", "SECOND", "SCORE")[len(once) :]])
        if any(name.replace(".", "").isdecimal() for name in table.names):  # There is no header.
            three = "1,2,3"
        raise InputError(
            f"{table.path}: cannot tell which columns are the two texts and the score; it has "
            f"{listed(table.names)}; name the three by columns, such as --columns {quoted(three)}"
            ", or where there is no header by numbers from 1"
        )
    return [table.names[plain.index(name)] for name in (*texts[0], golds[0])]


_SEPARATORS = str.maketrans("", "", " -_")
