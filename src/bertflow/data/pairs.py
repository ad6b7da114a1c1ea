"""Sentence pairs and texts with a class: users' own tables of them, and the samples."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bertflow.data.tables import (
    STANDARD_INPUT,
    TABLES,
    TEXT_NAMES,
    Wanted,
    kind_of,
    listed,
    name_of,
    read_rows,
)
from bertflow.errors import InputError, MissingDataError, shown

log = logging.getLogger(__name__)

DATA_VARIABLE = "BERTFLOW_DATA"
SAMPLE_DATA = Path(__file__).parent / "sample"
NLI_LABELS = ("contradiction", "entailment", "neutral")
TRUTH = {"true": 1, "false": 0}


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


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, each of one class, checked by `of`.

    Attributes:
        texts: Distinct texts.
        labels: The class of each; at least two classes, each with at least two texts.
        source: The file.
        skipped: Rows that do not count, by reason.
    """

    texts: Sequence[str]
    labels: Sequence[str]
    source: str
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str]], source: str = "the texts") -> Self:
        """Texts and labels, without those that cannot be judged.

        Skipped are a blank text or label, a text that was there before (it would be its own nearest
        neighbour), and the only text of a class.

        Raises:
            InputError: Fewer than two classes are left.

        Example:
            >>> rows = [("A cat", "animal"), ("A dog", "animal"), ("A car", "thing"), ("", "thing")]
            >>> LabelledTexts.of([*rows, ("A cup", "thing")]).skipped
            {'blank text': 1}
        """
        found: dict[str, str] = {}
        skipped: Counter[str] = Counter()
        for text, label in rows:
            if not text.strip():
                skipped["blank text"] += 1
            elif not label.strip():
                skipped["blank label"] += 1
            elif text in found:
                skipped["repeated text"] += 1
            else:
                found[text] = label
        sizes = Counter(found.values())
        kept = {text: label for text, label in found.items() if sizes[label] > 1}
        if alone := len(found) - len(kept):
            skipped["only text of its class"] = alone
        if len(classes := set(kept.values())) < 2:
            raise InputError(
                f"{source} has {listed(classes) if classes else 'no class'} with two texts or "
                f"more, but two such classes are needed{counted(skipped)}"
            )
        return cls(list(kept), list(kept.values()), source, dict(skipped))


_PAIRS = Wanted(
    None,
    None,
    roles=("first", "second", "score"),
    known=(
        (
            "sentence1 sentence2, sentencea sentenceb, text1 text2, texta textb, first second, "
            "premise hypothesis, question1 question2, question sentence, query document, "
            "query passage"
        ).split(", "),
        (
            "score label similarity similarityscore gold goldscore relatedness relatednessscore "
            "isduplicate"
        ).split(),
    ),
    texts=2,
)
_LABELLED = Wanted(
    None,
    None,
    roles=("text", "label"),
    known=(
        [*TEXT_NAMES, "utterance", "utterances", "headline"],
        "label labels class classes category categories topic topics intent intents".split(),
    ),
    texts=0,
)


def _own_rows(wanted: Wanted, format: str | None) -> Iterator[tuple[int, str, list[Any]]]:
    """Number, place and cells of each row of a user's table that is not empty."""
    columns, roles = wanted.columns, wanted.roles
    if columns is not None and not (
        len(columns) == len(set(columns)) == len(roles)
        and all(isinstance(one, str) for one in columns)
    ):
        raise InputError(
            f"columns must be {len(roles)} different ones, {', '.join(roles)}, each as text such "
            f"as {roles[-1]!r} or '{len(roles)}', got {listed(columns)}"
        )
    kind = kind_of(wanted.path, TABLES, format)
    unit = "row" if kind == ".parquet" else "line"
    for number, cells in read_rows(kind, wanted):
        if cells:
            yield number, f"{wanted.path}, {unit} {number}", cells


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
    source = STANDARD_INPUT if str(path) == "-" else Path(path)
    wanted = replace(_PAIRS, path=source, columns=columns)
    pairs = [
        (str(number), *_graded(place, *cells)) for number, place, cells in _own_rows(wanted, format)
    ]
    gold = [grade for *_, grade in pairs]
    check_graded(gold, str(source), {})
    binary = all(grade in (None, 0, 1) for grade in gold)
    log.info("%s: %d pairs, gold is %s", source, len(gold), "0 and 1" if binary else "graded")
    return Pairs(
        task="pairs",
        split=name_of(source),
        first=[first for _, first, _, _ in pairs],
        second=[second for _, _, second, _ in pairs],
        gold=gold,
        source=str(source),
        binary=binary,
        rows=[number for number, *_ in pairs],
    )


def read_labelled(
    path: str | Path, *, columns: tuple[str, str] | None = None, format: str | None = None
) -> LabelledTexts:
    r"""Read texts of one's own and their classes: a column of text and one of labels.

    A label is a word or a whole number. Rows that cannot be judged are skipped and counted.

    Arguments and errors are as of `read_pairs`, for the columns text and label; and fewer than two
    classes are an InputError.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "mine.tsv"
        >>> _ = file.write_text("A cat\tanimal\nA dog\tanimal\nA car\tthing\nA cup\tthing\n")
        >>> read_labelled(file, columns=("1", "2")).labels
        ['animal', 'animal', 'thing', 'thing']
    """
    source = STANDARD_INPUT if str(path) == "-" else Path(path)
    wanted = replace(_LABELLED, path=source, columns=columns)
    rows = [
        (text_of(text, place), _label(label, place))
        for _, place, (text, label) in _own_rows(wanted, format)
    ]
    found = LabelledTexts.of(rows, str(source))
    log.info("%s: %d texts of %d classes", source, len(found), len(set(found.labels)))
    return found


def sample_pairs() -> Pairs:
    """The graded pairs that come with bertflow: a demonstration, not a benchmark.

    Example:
        >>> len(sample_pairs())
        180
    """
    pairs = read_pairs(SAMPLE_DATA / "pairs.tsv")
    source = "bertflow/data/sample/pairs.tsv"
    return replace(pairs, task="sample", split="all", source=source, rows=())


def sample_sentences() -> list[str]:
    """The unlabelled sentences that come with bertflow.

    Example:
        >>> len(sample_sentences())
        1200
    """
    return (SAMPLE_DATA / "sentences.txt").read_text(encoding="utf-8").splitlines()


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
    text = text_of(value, place)
    if not text.strip():
        raise InputError(f"{place}: a sentence is blank; complete or remove the row")
    return text


def text_of(value: Any, place: str) -> str:
    """The text of a cell, which is empty where there is none."""
    if not isinstance(value, str | None):
        raise InputError(f"{place}: {shown(value)} is not text")
    return value or ""


def score(value: Any, place: str, *, span: tuple[float, float] | None = None) -> float | None:
    """A gold score as a number, None where it is blank."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
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
    return InputError(f"{source} holds no pair{counted(skipped)}")


def counted(skipped: Mapping[str, int]) -> str:
    """The counts of skipped rows for the end of a message."""
    counts = ", ".join(f"{count} skipped: {reason}" for reason, count in skipped.items())
    return f" ({counts})" if counts else ""


def _graded(place: str, first: Any, second: Any, grade: Any) -> tuple[str, str, float | None]:
    number = TRUTH.get(str(grade).strip().lower(), grade)
    return sentence(first, place), sentence(second, place), score(number, place)


def _label(value: Any, place: str) -> str:
    """A label as text, which is empty where there is none; 2.0 is 2, as tables may write it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = str(value).strip()
    whole = not isinstance(value, float) or value.is_integer()
    word = isinstance(value, str | int | float) and not re.fullmatch(r"[+-]?\d*\.\d*[1-9]\d*", text)
    if not (whole and word):
        raise InputError(
            f"{place}: label {shown(value)} is neither a word nor a whole number; leave it empty "
            "where there is none"
        )
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text)
