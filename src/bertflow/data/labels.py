"""Texts of one's own with a class each, from a table."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bertflow.data.tables import (
    STANDARD_INPUT,
    TABLES,
    TEXT_NAMES,
    File,
    Wanted,
    kind_of,
    listed,
    read_rows,
)
from bertflow.errors import InputError, quoted, shown

log = logging.getLogger(__name__)

# Names by which columns are known, whatever their capitals.
TEXT_COLUMNS = TEXT_NAMES | {"utterance", "utterances", "headline"}
LABEL_COLUMNS = frozenset(
    "label labels class classes category categories topic topics intent intents".split()
)


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
            counts = "".join(f"; {count} skipped: {reason}" for reason, count in skipped.items())
            raise InputError(
                f"{source} has {listed(classes) if classes else 'no class'} with two texts or "
                f"more, but two such classes are needed{counts}"
            )
        return cls(list(kept), list(kept.values()), source, dict(skipped))


def read_labelled(
    path: str | Path, *, columns: tuple[str, str] | None = None, format: str | None = None
) -> LabelledTexts:
    r"""Read texts of one's own and their classes: a column of text and one of labels.

    A label is a word or a whole number. Rows that cannot be judged are skipped and counted.

    Args:
        path: A .csv, .tsv, .jsonl or .parquet, each also packed (.gz, .bz2, .xz, .zst); or "-" for
            standard input.
        columns: Text and label: names, or for a .csv or .tsv without a header numbers from 1, as
            digits. None looks for names in common use, such as text and label.
        format: "csv", "tsv", "jsonl" or "parquet", whatever the name ends in.

    Raises:
        InputError: The file is missing or damaged, columns are missing or not recognised, a row is
            malformed (named by line), or fewer than two classes are left.
        MissingDependencyError: A .parquet without its package; the message is the pip line.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "mine.tsv"
        >>> _ = file.write_text("A cat\tanimal\nA dog\tanimal\nA car\tthing\nA cup\tthing\n")
        >>> read_labelled(file, columns=("1", "2")).labels
        ['animal', 'animal', 'thing', 'thing']
    """
    source: File = STANDARD_INPUT if str(path) == "-" else Path(path)
    if columns is not None and not (
        len(columns) == len(set(columns)) == 2 and all(isinstance(one, str) for one in columns)
    ):
        raise InputError(
            "columns must be two different ones, text and label, each as text such as 'label' or "
            f"'2', got {listed(columns)}"
        )
    kind = kind_of(source, TABLES, format)
    unit = "row" if kind == ".parquet" else "line"
    rows = []
    for number, cells in read_rows(source, kind, Wanted(source, columns, _recognised, texts=0)):
        if cells is None:
            continue
        place = f"{source}, {unit} {number}"
        if not isinstance(cells[0], str | None):
            raise InputError(f"{place}: {shown(cells[0])} is not text")
        rows.append((cells[0] or "", _label(cells[1], place)))
    found = LabelledTexts.of(rows, str(source))
    log.info("%s: %d texts of %d classes", source, len(found), len(set(found.labels)))
    return found


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


def _recognised(path: object, names: Sequence[str], _: Sequence[str]) -> Sequence[str]:
    """The text and the label by their names, where only one reading is possible."""
    plain = [name.strip().lower() for name in names]
    found = [
        [name for name, known in zip(names, plain, strict=True) if known in columns]
        for columns in (TEXT_COLUMNS, LABEL_COLUMNS)
    ]
    if [len(one) for one in found] != [1, 1]:
        once = [name for name in names if name and names.count(name) == 1][:2]
        two = ",".join([*once, *("TEXT", "LABEL")[len(once) :]])
        raise InputError(
            f"{path}: cannot tell which columns are the text and the label; it has "
            f"{listed(names)}; name the two by columns, such as --columns {quoted(two)}, or where "
            "there is no header by numbers from 1"
        )
    return [name for one in found for name in one]
