"""Data sets by name: found in any layout that people have them in, else read from the hub."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertflow.data.catalog import DataSet, HubSource, Layout, find_data_set
from bertflow.data.pairs import (
    DATA_VARIABLE,
    NLI_LABELS,
    NliPairs,
    Pairs,
    check_graded,
    no_pair,
    score,
    sentence,
)
from bertflow.data.sources import HubTable, open_table
from bertflow.data.tables import Wanted, column_index, read_lines, read_rows
from bertflow.errors import InputError, MissingDataError, shown, unknown
from bertflow.io.files import reason_of

log = logging.getLogger(__name__)

T = TypeVar("T")
QNLI_GOLD = {"entailment": 1.0, "not_entailment": 0.0}
NLI_NAMES = {**{name: name for name in NLI_LABELS}, "contradictory": "contradiction"}


class Row(NamedTuple):
    """A row of a file or of the hub, with places for messages; a fault is why it is no pair."""

    place: str
    first: Any
    second: Any
    label: Any
    row: str
    label_place: str = ""
    subset: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Found:
    """The files of a split, all there, and the layout that they have."""

    data_set: DataSet
    split: str
    layout: Layout
    paths: Sequence[Path]


@dataclass(frozen=True)
class Texts:
    """Both sides of every pair, repeats kept, and the rows that are no pair, counted by reason."""

    sentences: list[str]
    skipped: Mapping[str, int]


def read_task(name: str, data: str | Path | None = None, split: str | None = None) -> Pairs:
    """Read a split of a task: sts12 to sts16, stsb, sick-r or qnli.

    Args:
        name: The task.
        data: The folder of its files, or one that holds it; None takes the environment variable
            BERTFLOW_DATA. Where they are not there, the hub is asked.
        split: Which part; None takes the one its scores are published for.

    Returns:
        The pairs. Gold of qnli is 1 for entailment and 0 for not_entailment.

    Raises:
        MissingDataError: The data are nowhere; the message lists the paths that were tried.
        InputError: Task or split are unknown, a row is malformed (named by line), or no pair has
            a gold score.
    """
    data_set = find_data_set(name, ("sts", "qnli"))
    split, source, rows = _split(data_set, data, split)
    skipped: Counter[str] = Counter()
    read = _pairs(rows, skipped)
    pairs: list[tuple[Row, float | None]]
    if data_set.kind == "qnli":
        pairs = list(_labelled(read, QNLI_GOLD, "no label", skipped))
    else:
        span = data_set.score_range
        pairs = [(row, score(row.label, row.label_place or row.place, span=span)) for row in read]
    gold = [grade for _, grade in pairs]
    bare = any(split in layout.unlabelled for layout in data_set.layouts)
    check_graded(gold, source, skipped, bare=bare)
    log.info("%s %s: %d pairs of %s", name, split, len(pairs), source)
    return Pairs(
        task=name,
        split=split,
        first=[row.first for row, _ in pairs],
        second=[row.second for row, _ in pairs],
        gold=gold,
        source=source,
        subset=[row.subset for row, _ in pairs if row.subset],
        binary=data_set.kind == "qnli",
        skipped=dict(skipped),
        rows=[row.row for row, _ in pairs],
    )


def read_nli(name: str, data: str | Path | None = None, split: str | None = None) -> NliPairs:
    """Read the pairs of an NLI data set (snli, mnli or sick-e) whose annotators agreed on a label.

    Arguments and errors are those of `read_task`, but no split means "train".
    """
    split, source, rows = _split(find_data_set(name, ("nli",)), data, split)
    skipped: Counter[str] = Counter()
    pairs = list(_labelled(_pairs(rows, skipped), NLI_NAMES, "no gold label", skipped))
    if not pairs:
        raise no_pair(source, skipped)
    log.info("%s %s: %d pairs of %s; skipped: %s", name, split, len(pairs), source, dict(skipped))
    return NliPairs(
        name=name,
        split=split,
        first=[row.first for row, _ in pairs],
        second=[row.second for row, _ in pairs],
        labels=[label for _, label in pairs],
        source=source,
        skipped=dict(skipped),
    )


def nli_splits(name: str, data: str | Path | None = None) -> tuple[str, ...]:
    """The splits of an NLI data set that are in the folder, or all, since else the hub is asked."""
    data_set = find_data_set(name, ("nli",))
    there = [split for split in data_set.splits if _in_folder(data_set, [split], data)]
    return tuple(there or data_set.splits)


def read_sentences(name: str, data: str | Path | None = None) -> list[str]:
    """Read the text of any data set, as a fit on the target task uses it; see `read_texts`."""
    return read_texts(name, data).sentences


def read_texts(name: str, data: str | Path | None = None) -> Texts:
    """Read the text of any data set without its labels, and count the rows left out.

    It is both sides of every pair of all splits, repeats kept, also of pairs without gold. If any
    split is in the folder, only those in the folder count. Arguments as of `read_task`.
    """
    data_set = find_data_set(name)
    texts: list[str] = []
    skipped: Counter[str] = Counter()
    for source, rows in _sources(data_set, list(data_set.splits), data):
        left_out: Counter[str] = Counter()
        sentences = [text for row in _pairs(rows, left_out) for text in (row.first, row.second)]
        if not sentences:
            raise no_pair(source, left_out)
        for reason, number in left_out.items():
            log.info("%s: %d rows left out: %s", source, number, reason)
        texts += sentences
        skipped += left_out
    log.info("%s: %d sentences", name, len(texts))
    return Texts(texts, dict(skipped))


def _split(
    data_set: DataSet, data: str | Path | None, split: str | None
) -> tuple[str, str, Iterable[Row]]:
    """The name, source and rows of a split; None takes the default one."""
    split = data_set.default_split if split is None else split
    if split not in data_set.splits:
        raise unknown(f"split of {data_set.name}", split, data_set.splits)
    ((source, rows),) = _sources(data_set, [split], data)
    return split, source, rows


def _pairs(rows: Iterable[Row], skipped: Counter[str]) -> Iterator[Row]:
    """The rows that are two sentences; the others are counted by reason."""
    for row in rows:
        if row.fault:
            skipped[row.fault] += 1
            continue
        sentence(row.first, row.place)
        sentence(row.second, row.place)
        yield row


def _labelled(
    rows: Iterable[Row], labels: Mapping[str, T], reason: str, skipped: Counter[str]
) -> Iterator[tuple[Row, T]]:
    """The rows with a label and its meaning; those without are counted."""
    for row in rows:
        text = "" if row.label is None else str(row.label).strip()
        if text in ("", "-"):
            skipped[reason] += 1
        elif text.lower() in labels:
            yield row, labels[text.lower()]
        else:
            raise InputError(
                f"{row.label_place or row.place}: unknown label {shown(text)}; "
                f"expected one of {', '.join(labels)}"
            )


# Where the rows of a split come from.


def _sources(
    data_set: DataSet, splits: Sequence[str], data: str | Path | None
) -> list[tuple[str, Iterable[Row]]]:
    """The splits' sources and rows: those found in the folder, else all from the hub."""
    if found := _in_folder(data_set, splits, data):
        paths = [files.paths for files in found]
        sources = [path[0] if len(path) == 1 else path[0].parent for path in paths]
        return [(str(source), _rows(files)) for source, files in zip(sources, found, strict=True)]
    hub = data_set.hub
    try:
        if hub is None:
            raise InputError(f"not asked, because {data_set.no_hub}")
        return [_hub_rows(hub, hub.splits[split]) for split in splits]
    except Exception as error:  # The hub's client has many; all mean that it gives nothing.
        root = data or os.environ.get(DATA_VARIABLE)
        tried = [
            str(Path(root, folder, layout.files[split][0]))
            for layout in data_set.layouts
            for split in splits
            for folder in layout.folders
            if root
        ]
        looked = f"tried {', '.join(dict.fromkeys(tried))}" if tried else "no folder is given"
        raise MissingDataError(
            f"no data for {data_set.name} ({', '.join(splits)}): {looked}; hub: "
            f"{reason_of(error)}; give the folder that holds {data_set.title} by --data DIR or "
            f"{DATA_VARIABLE}"
        ) from error


def _in_folder(data_set: DataSet, splits: Sequence[str], data: str | Path | None) -> list[Found]:
    root = data or os.environ.get(DATA_VARIABLE)
    if not root:
        return []
    if not Path(root).is_dir():
        raise InputError(f"{root} is no folder; give the folder that holds {data_set.title}")
    looked = (find_files(data_set, split, Path(root)) for split in splits)
    return [files for files in looked if files]


def find_files(data_set: DataSet, split: str, root: Path) -> Found | None:
    """A split's files below a folder, if the first of them is there."""
    for layout in data_set.layouts:
        own = {Path(folder).name.lower() for folder in layout.folders} - {"", "original"}
        # The places, and of each whether it bears the data set's name.
        places = [(root, True)] if root.resolve().name.lower() in own else []
        places += [(root / folder, folder != ".") for folder in layout.folders]
        for folder, named in places:
            paths = [folder / file for file in layout.files[split]]
            marked = named or layout.mark is None
            if paths[0].is_file() and (marked or _is_marked(paths[0], layout.mark)):
                return Found(data_set, split, layout, paths)
    return None


def _is_marked(path: Path, mark: str | None) -> bool:
    _, header = next(read_lines(path, returns=True), (0, ""))
    return not header or mark in header.split("\t")


def _hub_rows(hub: HubSource, split: str) -> tuple[str, Iterator[Row]]:
    """The name and the rows of a split of the hub, which is asked at once."""
    source = f"{hub.repository}@{hub.revision}"
    table = HubTable(hub.repository, hub.config, split, hub.revision)
    return source, _table_rows(open_table(table, streaming=False), hub, source)


def _table_rows(table: Any, hub: HubSource, source: str) -> Iterator[Row]:
    for column in hub.columns:
        column_index(column, table.column_names, source)
    names = getattr(table.features[hub.columns[2]], "names", None)  # A ClassLabel has them.
    cells = table.to_dict()
    known = cells.get(hub.ident) or range(1, len(table) + 1)
    rows = zip(*(cells[column] for column in hub.columns), known, strict=True)
    for number, (first, second, label, row) in enumerate(rows, start=1):
        if names is not None and label is not None:
            label = names[label] if label >= 0 else None  # −1 stands for no label.
        yield Row(f"{source}, row {number}", first, second, label, str(row))


# The forms of files.


def _rows(found: Found) -> Iterator[Row]:
    forms = {"sts": _side_by_side, "aligned": _side_by_side, "jsonl": _objects}
    return forms.get(found.layout.form, _cells)(found)


def _side_by_side(found: Found) -> Iterator[Row]:
    """For each subset, files whose lines belong together: sentences, and in the last one labels."""
    subsets = list(found.data_set.subsets) or [""]
    size = len(found.paths) // len(subsets)
    for order, subset in enumerate(subsets):
        paths = found.paths[order * size : (order + 1) * size]
        for number, lines in enumerate(_lines_of(paths), start=1):
            places = [f"{path}, line {number}" for path in paths]
            texts = lines[0].split("\t") if found.layout.form == "sts" else lines[:2]
            _check_width(texts, 2, paths[0], number)
            # Here already, because the second may stand in another file.
            first, second = sentence(texts[0], places[0]), sentence(texts[1], places[-2])
            yield Row(places[0], first, second, lines[-1], str(number), places[-1], subset)


def _lines_of(paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The lines of several files side by side; their numbers must be equal."""
    read = [[line for _, line in read_lines(path, returns=True)] for path in paths]
    for path, lines in zip(paths, read, strict=True):
        if len(lines) != len(read[0]):
            raise InputError(
                f"{paths[0]} has {len(read[0])} lines, but {path} has {len(lines)}; each line of "
                "one must have its line in the other"
            )
    return zip(*read, strict=True)


def _cells(found: Found) -> Iterator[Row]:
    """Tab-separated columns, by name where there is a header, else by number from 0."""
    layout, (path,) = found.layout, found.paths
    lines, header = read_lines(path, returns=True), []
    if layout.form == "header":
        header = next(lines, (0, ""))[1].split("\t")
        if header == [""]:
            return

    def place_of(column: str | int) -> int:
        return column if isinstance(column, int) else column_index(column, header, path)

    bare = found.split in layout.unlabelled and layout.columns[2] not in header
    first, second, *label = map(place_of, layout.columns[: 2 if bare else 3])
    kept = [] if layout.rows is None else [place_of(layout.rows[0])]
    ident = [header.index(layout.ident)] if layout.ident in header else []
    needed = 1 + max(first, second, *label, *kept, *ident)
    for number, line in lines:
        if not line.strip():
            continue
        cells, place, row = line.split("\t"), f"{path}, line {number}", str(number)
        if layout.cut:
            # The row may be cut off behind a tab.
            while cells and not cells[-1].strip():
                cells.pop()
            if len(cells) <= max(first, second):
                yield Row(place, "", "", None, row, fault="incomplete line")
                continue
            cells += [""] * (needed - len(cells))
        _check_width(cells, needed, path, number)
        if layout.rows and cells[kept[0]].strip().upper() != layout.rows[1][found.split]:
            continue
        if ident:
            row = cells[ident[0]]
        value = cells[-1 if layout.label_last else label[0]] if label else None
        yield Row(place, cells[first], cells[second], value, row)


def _objects(found: Found) -> Iterator[Row]:
    (path,) = found.paths
    columns = [str(column) for column in found.layout.columns]
    for number, (first, second, label) in read_rows(".jsonl", Wanted(path, columns, texts=2)):
        yield Row(f"{path}, line {number}", first, second, label, str(number))


def _check_width(cells: Sequence[str], needed: int, path: Path, number: int) -> None:
    if len(cells) < needed:
        raise InputError(f"{path}, line {number}: {len(cells)} columns, expected {needed}")
