"""The data sets bertflow knows, by name, as catalog.toml declares them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import Literal, get_args

from bertflow.errors import unknown

Kind = Literal["sts", "qnli", "nli"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One form in which people have a data set's files.

    Attributes:
        form: "sts": of each subset a file of tab-separated sentences and one of scores;
            "aligned": a file of first sentences, one of second and one of labels;
            "header": tab-separated columns by name; "positions": by number from 0, no header;
            "jsonl": an object a line.
        folders: Places below the given folder in the order they are tried; "." is itself, and so
            it is if it bears the name of one of them.
        files: By split; the first of them tells the data set.
        columns: First text, second text and label: names, or numbers from 0.
        mark: A column that tells the data set where neither folder nor file bears its name.
        rows: If a file holds several splits, the column and its value for each split.
        unlabelled: Splits whose label column may be missing.
        cut: Whether rows may be cut off; they are skipped and counted, not refused.
        ident: The column by which rows are known; where there is none they are by their line.
        label_last: Whether the label is a row's last cell, whatever the header says.
    """

    form: Literal["sts", "aligned", "header", "positions", "jsonl"]
    folders: Sequence[str]
    files: Mapping[str, Sequence[str]]
    columns: Sequence[str | int]
    mark: str | None = None
    rows: tuple[str, Mapping[str, str]] | None = None
    unlabelled: Sequence[str] = ()
    cut: bool = False
    ident: str | None = None
    label_last: bool = False


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """The repository and commit of a data set on the hub; `splits` gives names of splits there."""

    repository: str
    revision: str
    config: str | None = None
    splits: Mapping[str, str]
    columns: Sequence[str]
    ident: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The declaration of a data set.

    Attributes:
        title: Its name elsewhere.
        kind: "sts": graded pairs; "qnli": pairs with 1 and 0; "nli": pairs with `NLI_LABELS`.
        splits: How many pairs of each split count: those with a gold score or label.
        default_split: The split that is read where none is named.
        subsets: How many pairs of each subset count; empty where there is none.
        score_range: The lowest and the highest gold score; None where gold is a label.
        columns: First text, second text, and score or label.
        layouts: Forms of its files, in the order they are tried.
        hub: Where the hub has it; None with the reason in `no_hub`.
    """

    name: str
    title: str
    kind: Kind
    splits: Mapping[str, int]
    default_split: str
    subsets: Mapping[str, int] = field(default_factory=dict)
    score_range: tuple[float, float] | None = None
    columns: Sequence[str]
    licence: str
    citation: str
    homepage: str
    layouts: Sequence[Layout]
    hub: HubSource | None = None
    no_hub: str | None = None


def _catalog() -> Iterator[DataSet]:
    content = (files("bertflow.data") / "catalog.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(content)
    homes = declared.pop("homes")
    homes = [dict(zip(homes, places, strict=True)) for places in product(*homes.values())]
    for name, facts in declared.items():
        file_names = facts.pop("file_names", {})
        for layout in facts["layouts"]:
            layout["files"] = {
                split: [
                    pattern.format(split=file_names.get(split, split), subset=subset)
                    for subset in facts.get("subsets", [""])
                    for pattern in layout["files"]
                ]
                for split in facts["splits"]
            }
            folders = (one.format(**home) for one in layout["folders"] for home in homes)
            layout["folders"] = list(dict.fromkeys(folders))
        layouts = [Layout(**{"columns": facts["columns"], **one}) for one in facts.pop("layouts")]
        hub = HubSource(**facts.pop("hub")) if "hub" in facts else None
        span = tuple(facts.pop("score_range")) if "score_range" in facts else None
        yield DataSet(name=name, layouts=layouts, hub=hub, score_range=span, **facts)


CATALOG: Mapping[str, DataSet] = MappingProxyType({one.name: one for one in _catalog()})
STS_TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick-r")
# All whose pairs have a score or a label.
TASKS = tuple(name for name, one in CATALOG.items() if one.kind in ("sts", "qnli"))
KINDS: tuple[Kind, ...] = get_args(Kind)


def find_data_set(name: str, kinds: Sequence[Kind] = KINDS) -> DataSet:
    """The declaration of a data set, whose kind must be one of `kinds`.

    Raises:
        InputError: There is none of that name and kind.

    Example:
        >>> find_data_set("stsb").splits["test"]
        1379
    """
    known = {key: one for key, one in CATALOG.items() if one.kind in kinds}
    if name not in known:
        raise unknown("NLI data set" if tuple(kinds) == ("nli",) else "task", name, known)
    return known[name]
