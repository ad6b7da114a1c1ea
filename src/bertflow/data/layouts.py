"""Finding a data set's files, and reading each layout as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertflow.data.catalog import DataSet, Layout
from bertflow.data.pairs import sentence
from bertflow.data.tables import (
    bounded_lines,
    column_index,
    open_bytes,
    read_lines,
    read_rows,
    reading,
)
from bertflow.errors import InputError


class Row(NamedTuple):
    """A row of a file or of the hub, its label not yet understood.

    Attributes:
        place: Where it stands, for messages.
        first: The first text.
        second: The second.
        label: Score or label; None where there is none.
        label_place: Where that stands.
        subset: Which subset it is of, or "".
        fault: Why it is no pair, or "".
        row: What it is known by among the rows of its split or subset: a number of its own, else
            that of its line.
    """

    place: str
    first: Any
    second: Any
    label: Any
    label_place: str
    subset: str = ""
    fault: str = ""
    row: str = ""


@dataclass(frozen=True)
class Found:
    """A split's files, all there.

    Attributes:
        data_set: Of which data set.
        split: Which part of it.
        layout: Their form.
        paths: The files.
    """

    data_set: DataSet
    split: str
    layout: Layout
    paths: Sequence[Path]

    @property
    def source(self) -> str:
        """The file, or the folder of several."""
        return str(self.paths[0] if len(self.paths) == 1 else self.paths[0].parent)


def find_files(data_set: DataSet, split: str, root: Path) -> tuple[Found | None, list[Path]]:
    """Look for a split's files in every place where people have them.

    Args:
        data_set: The data set.
        split: Which part of it.
        root: The given folder.

    Returns:
        The files or None, and the paths that were tried.

    Raises:
        InputError: Some of the files are there and others are not.
    """
    tried: list[Path] = []
    for layout in data_set.layouts:
        for folder, named in _folders(layout, root):
            paths = [folder / file for file in layout.files[split]]
            if paths[0] in tried:
                continue
            tried.append(paths[0])
            if not paths[0].is_file() or not (named or _is_marked(paths[0], layout)):
                continue
            lacking = [path.name for path in paths if not path.is_file()]
            if lacking:
                raise InputError(
                    f"{paths[0].parent} is {data_set.title}, but lacks {', '.join(lacking)}; "
                    "complete the folder"
                )
            return Found(data_set, split, layout, paths), tried
    return None, tried


def read_found(found: Found) -> Iterator[Row]:
    """The rows of a split's files, in their order.

    Raises:
        InputError: A file is not UTF-8, lacks a column, has a row too short (named by line), or
            files that belong together differ in length.
    """
    read = {
        "sts": _sts,
        "aligned": _aligned,
        "header": _header,
        "positions": _positions,
        "jsonl": _jsonl,
    }[found.layout.form]
    return read(found)


def _folders(layout: Layout, root: Path) -> Iterator[tuple[Path, bool]]:
    """The places, and of each whether it bears the data set's name."""
    names = {Path(folder).name.lower() for folder in layout.folders} - {"", "original"}
    if root.resolve().name.lower() in names:
        yield root, True
    for folder in layout.folders:
        yield root / folder, folder != "."


def _is_marked(path: Path, layout: Layout) -> bool:
    if layout.mark is None:
        return True
    _, header = next(read_lines(path), (0, ""))
    return not header or layout.mark in header.split("\t")


def _sts(found: Found) -> Iterator[Row]:
    pairs = zip(found.paths[::2], found.paths[1::2], strict=True)
    for subset, (texts, scores) in zip(found.data_set.subsets, pairs, strict=True):
        for number, (text, score) in enumerate(_side_by_side(texts, scores), start=1):
            cells = text.split("\t")
            if len(cells) < 2:
                raise _short(texts, number, len(cells), 2)
            place, at = f"{texts}, line {number}", f"{scores}, line {number}"
            yield Row(place, cells[0], cells[1], score, at, subset, row=str(number))


def _aligned(found: Found) -> Iterator[Row]:
    for number, cells in enumerate(_side_by_side(*found.paths), start=1):
        places = [f"{path}, line {number}" for path in found.paths]
        # Here already, because the two stand in different files.
        first, second = (sentence(*pair) for pair in zip(cells[:2], places[:2], strict=True))
        yield Row(places[0], first, second, cells[2], places[2], row=str(number))


def _side_by_side(*paths: Path) -> Iterator[tuple[str, ...]]:
    """The lines of files of which each goes with the same line of the others."""
    read = [_whole(path) for path in paths]
    count, ended = len(read[0][0]), read[0][1]
    for path, (lines, _) in zip(paths, read, strict=True):
        # A last line that is blank and has no line feed is seen only by the other files' count,
        # and believed only where they go without a last line feed as well.
        if len(lines) == count - 1 and not ended:
            lines.append("")
        if len(lines) != count:
            raise InputError(
                f"{paths[0]} has {count} lines, but {path} has {len(lines)}; each line of one "
                "must have its line in the other"
            )
    return zip(*(lines for lines, _ in read), strict=True)


def _whole(path: Path) -> tuple[list[str], bool]:
    """The lines of a file, and whether the last has its line feed."""
    last = ""
    lines = []
    with reading(path), open_bytes(path) as file:
        for last in bounded_lines(file, path):
            lines.append(last.removesuffix("\n").removesuffix("\r"))
    return lines, last.endswith("\n")


def _positions(found: Found) -> Iterator[Row]:
    (path,) = found.paths
    first, second, label = (int(column) for column in found.layout.columns)
    needed = max(first, second, label) + 1
    for number, place, cells in _tabbed(read_lines(path), path):
        if len(cells) < needed:
            raise _short(path, number, len(cells), needed)
        yield Row(place, cells[first], cells[second], cells[label], place, row=str(number))


def _header(found: Found) -> Iterator[Row]:
    layout, (path,) = found.layout, found.paths
    lines = read_lines(path)
    _, line = next(lines, (0, ""))
    if not line:
        return
    header = line.split("\t")
    first, second = (column_index(str(name), header, path) for name in layout.columns[:2])
    label: int | None = None
    if layout.columns[2] in header or found.split not in layout.unlabelled:
        label = column_index(str(layout.columns[2]), header, path)
    chosen: tuple[int, str] | None = None
    if layout.rows is not None:
        chosen = column_index(layout.rows[0], header, path), layout.rows[1][found.split]
    ident = header.index(layout.ident) if layout.ident in header else None
    texts = max(first, second)
    needed = max(texts, label or 0, chosen[0] if chosen else 0, ident or 0) + 1
    for number, place, cells in _tabbed(lines, path):
        if layout.cut:
            # Cut off within a row: what is left may end with the tab.
            while cells and not cells[-1].strip():
                cells.pop()
            if len(cells) <= texts:
                yield Row(place, "", "", None, place, fault="incomplete line")
                continue
            cells += [""] * (needed - len(cells))
        if len(cells) < needed:
            raise _short(path, number, len(cells), needed)
        if chosen is not None and cells[chosen[0]].strip().upper() != chosen[1]:
            continue
        value = None if label is None else cells[-1 if layout.label_last else label]
        row = cells[ident] if ident is not None else str(number)
        yield Row(place, cells[first], cells[second], value, place, row=row)


def _tabbed(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Of each line that is not blank, its number, its place for messages and its cells."""
    for number, line in lines:
        if line.strip():
            yield number, f"{path}, line {number}", line.split("\t")


def _jsonl(found: Found) -> Iterator[Row]:
    (path,) = found.paths
    columns = [str(column) for column in found.layout.columns]
    for number, cells in read_rows(path, ".jsonl", columns, lambda table: table.names, texts=2):
        if cells is not None:
            place = f"{path}, line {number}"
            yield Row(place, cells[0], cells[1], cells[2], place, row=str(number))


def _short(path: Path, number: int, has: int, needs: int) -> InputError:
    return InputError(f"{path}, line {number}: {has} columns, expected {needs}")
