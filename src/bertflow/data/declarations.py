"""How a data set is declared: what it holds, the layouts of its files, its place on the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sts", "qnli", "nli"]
# Where SentEval's and GLUE's folders lie in what people give as the folder of their data.
SENTEVAL = ("senteval/", "SentEval/data/downstream/", "data/downstream/", "downstream/", "")
GLUE = ("glue/", "GLUE/", "glue_data/", "")


def below(homes: Sequence[str], folder: str) -> tuple[str, ...]:
    """A folder in each of several homes, which end with a slash."""
    return tuple(home + folder for home in homes)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One form in which people have a data set's files.

    Attributes:
        form: "sts": of each subset a file of tab-separated sentences and one of scores;
            "aligned": a file of first sentences, one of second and one of labels;
            "header": tab-separated columns by name; "positions": by number from 0, no header;
            "jsonl": an object a line.
        folders: Places below the given folder, in the order they are tried; "." is itself. It is
            itself also if it bears the name of one of them.
        files: Of each split, the files that must all be there. The first tells the data set.
        columns: First text, second text and label: names, or numbers from 0.
        mark: A column that tells the data set where neither folder nor file bears its name.
        rows: Of a file that holds several splits, the column and the value that tell them apart.
        unlabelled: Splits whose label column may be missing.
        cut: Whether rows may be cut off; they are skipped and counted, not refused.
        ident: The column by which rows are known; where there is none they are by their line.
        label_last: Whether the label is a row's last cell, whatever the header says.
    """

    form: Literal["sts", "aligned", "header", "positions", "jsonl"]
    folders: Sequence[str]
    files: Mapping[str, Sequence[str]]
    columns: tuple[str, str, str] | tuple[int, int, int] = (0, 1, 2)
    mark: str | None = None
    rows: tuple[str, Mapping[str, str]] | None = None
    unlabelled: Sequence[str] = ()
    cut: bool = False
    ident: str | None = None
    label_last: bool = False


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """Where the model hub has a data set.

    Attributes:
        repository: Its name.
        revision: The commit that is read.
        config: The part of the repository; None where it has one only.
        splits: Of each split, its name there.
        columns: First text, second text and label.
        ident: As in `Layout`.
    """

    repository: str
    revision: str
    config: str | None = None
    splits: Mapping[str, str]
    columns: tuple[str, str, str]
    ident: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known of a data set.

    Attributes:
        name: Its name here.
        title: Its name elsewhere.
        kind: "sts": graded pairs; "qnli": pairs with 1 and 0; "nli": pairs with `NLI_LABELS`.
        splits: How many pairs of each split count: those with a gold score or label.
        default_split: The one that is meant where none is named.
        subsets: How many pairs of each subset count; empty where there is none.
        score_range: The lowest and the highest gold score; None where gold is a label.
        columns: What is read: first text, second text, score or label.
        licence: Under which it may be used.
        citation: Authors, year, title, venue.
        homepage: Where it is described.
        layouts: Forms of its files, in the order they are tried.
        hub: Where the model hub has it; None with the reason in `no_hub`.
        no_hub: Why the hub is not asked.
    """

    name: str
    title: str
    kind: Kind
    splits: Mapping[str, int]
    default_split: str
    subsets: Mapping[str, int] = field(default_factory=dict)
    score_range: tuple[float, float] | None = None
    columns: tuple[str, str, str]
    licence: str
    citation: str
    homepage: str
    layouts: Sequence[Layout]
    hub: HubSource | None = None
    no_hub: str | None = None
