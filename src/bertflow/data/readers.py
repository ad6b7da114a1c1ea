"""Reading data sets by name: from files in any layout people have them, else from the hub."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from bertflow.data.catalog import DataSet, HubSource, find_data_set
from bertflow.data.layouts import Row, find_files, read_found
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
from bertflow.errors import InputError, MissingDataError, shown
from bertflow.network import hub_answers

log = logging.getLogger(__name__)

T = TypeVar("T")
QNLI_GOLD = {"entailment": 1.0, "not_entailment": 0.0}
NLI_NAMES = {**{name: name for name in NLI_LABELS}, "contradictory": "contradiction"}


def read_task(name: str, data: str | Path | None = None, split: str | None = None) -> Pairs:
    """Read a split of a task: sts12 to sts16, stsb, sick-r or qnli.

    Args:
        name: The task.
        data: The folder of its files, or one that holds it; None takes the environment variable
            BERTFLOW_DATA. Where they are not there, the model hub is asked.
        split: Which part; None takes the one its scores are published for.

    Returns:
        The pairs. Gold of qnli is 1 for entailment and 0 for not_entailment.

    Raises:
        MissingDataError: The data are nowhere; the message lists the paths tried and says why the
            hub gave nothing.
        InputError: Task or split are unknown, a row is malformed (named by line), or no pair has
            a gold score.
    """
    data_set = find_data_set(name, ("sts", "qnli"))
    split = _known_split(data_set, split)
    ((source, rows),) = _sources(data_set, [split], data)
    binary = data_set.kind == "qnli"
    skipped: Counter[str] = Counter()
    pairs: list[tuple[Row, float | None]]
    if binary:
        pairs = list(_labelled(_pairs(rows, skipped), QNLI_GOLD, "no label", skipped))
    else:
        span = data_set.score_range
        pairs = [
            (row, score(row.label, row.label_place, span=span)) for row in _pairs(rows, skipped)
        ]
    gold = [grade for _, grade in pairs]
    _check_graded(data_set, split, source, gold, skipped)
    log.info("%s %s: %d pairs of %s", name, split, len(pairs), source)
    return Pairs(
        task=name,
        split=split,
        first=[row.first for row, _ in pairs],
        second=[row.second for row, _ in pairs],
        gold=gold,
        source=source,
        subset=[row.subset for row, _ in pairs if row.subset],
        binary=binary,
        skipped=dict(skipped),
        rows=[row.row for row, _ in pairs],
    )


def read_nli(name: str, data: str | Path | None = None, split: str | None = None) -> NliPairs:
    """Read a split of an NLI data set: snli, mnli or sick-e.

    Args:
        name: The data set.
        data: As in `read_task`.
        split: Which part; None takes "train".

    Returns:
        The pairs whose annotators agreed on a label.

    Raises:
        InputError: As `read_task`, or a label is unknown (named by line).
    """
    data_set = find_data_set(name, ("nli",))
    split = _known_split(data_set, split)
    ((source, rows),) = _sources(data_set, [split], data)
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
    """Tell which splits of an NLI data set can be read.

    Args:
        name: The data set.
        data: As in `read_task`.

    Returns:
        Those whose files are in the folder, in the catalogue's order; all of them where none is,
        because then `read_nli` asks the hub.

    Raises:
        InputError: The data set is unknown, or the folder is none.

    Example:
        >>> nli_splits("mnli")
        ('train', 'dev-matched', 'dev-mismatched')
    """
    data_set = find_data_set(name, ("nli",))
    there = [split for split in data_set.splits if _found(data_set, [split], data)[0]]
    return tuple(there or data_set.splits)


def read_sentences(name: str, data: str | Path | None = None) -> list[str]:
    """Read the text of a data set without its labels: what a fit on the target task uses.

    Args:
        name: Any data set of the catalogue.
        data: As in `read_task`. If any split is there, only those that are there count.

    Returns:
        Both sides of every pair of all splits, repeats kept, also of pairs without gold.

    Raises:
        InputError: As `read_task`.
    """
    return read_texts(name, data).sentences


@dataclass(frozen=True)
class Texts:
    """The text of a data set.

    Attributes:
        sentences: Both sides of every pair, repeats kept.
        skipped: Rows of the files that are no pair, counted by reason.
    """

    sentences: list[str]
    skipped: Mapping[str, int]


def read_texts(name: str, data: str | Path | None = None) -> Texts:
    """Read the text of a data set as `read_sentences` does, and count what is left out.

    Args:
        name: Any data set of the catalogue.
        data: As in `read_sentences`.

    Raises:
        InputError: As `read_task`.
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


def _known_split(data_set: DataSet, split: str | None) -> str:
    if split is None:
        return data_set.default_split
    if split not in data_set.splits:
        raise InputError(
            f"{data_set.name} has no split {split!r}; expected one of {', '.join(data_set.splits)}"
        )
    return split


def _sources(
    data_set: DataSet, splits: Sequence[str], data: str | Path | None
) -> list[tuple[str, Iterable[Row]]]:
    """The splits' sources and rows: those found in the folder, else all from the hub."""
    found, tried = _found(data_set, splits, data)
    if found:
        return found
    try:
        return [_read_hub(data_set, split) for split in splits]
    except NotOnHubError as error:
        looked = f"tried {', '.join(map(str, tried))}" if tried else "no folder is given"
        raise MissingDataError(
            f"no data for {data_set.name} ({', '.join(splits)}): {looked}; hub: {error}; give "
            f"the folder that holds {data_set.title} by --data DIR or {DATA_VARIABLE}"
        ) from error


def _found(
    data_set: DataSet, splits: Sequence[str], data: str | Path | None
) -> tuple[list[tuple[str, Iterable[Row]]], list[Path]]:
    if data is None:
        data = os.environ.get(DATA_VARIABLE)
    if not data:
        return [], []
    root = Path(data)
    if not root.is_dir():
        raise InputError(f"{root} is no folder; give the folder that holds {data_set.title}")
    sources: list[tuple[str, Iterable[Row]]] = []
    tried: list[Path] = []
    for split in splits:
        files, places = find_files(data_set, split, root)
        tried += places
        if files is not None:
            sources.append((files.source, read_found(files)))
    return sources, tried


def _pairs(rows: Iterable[Row], skipped: Counter[str]) -> Iterator[Row]:
    """The rows that are two sentences; what is no pair is counted by reason."""
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
    """The rows with a label and what it stands for; those without are counted."""
    for row in rows:
        text = "" if row.label is None else str(row.label).strip()
        if text in ("", "-"):
            skipped[reason] += 1
        elif text.lower() in labels:
            yield row, labels[text.lower()]
        else:
            raise InputError(
                f"{row.label_place}: unknown label {shown(text)}; "
                f"expected one of {', '.join(labels)}"
            )


def _check_graded(
    data_set: DataSet,
    split: str,
    source: str,
    gold: Sequence[float | None],
    skipped: Mapping[str, int],
) -> None:
    """Refuse pairs of which none can be scored.

    Raises:
        MissingDataError: They come without labels, as GLUE publishes some splits: what is there
            is not what is looked for.
        InputError: There is no pair, or none is graded.
    """
    try:
        check_graded(gold, source, skipped)
    except InputError as error:
        bare = any(split in layout.unlabelled for layout in data_set.layouts)
        if bare and (gold or set(skipped) == {"no label"}):
            raise MissingDataError(
                f"{error}; there are releases without labels: give one with them"
            ) from None
        raise


class NotOnHubError(Exception):
    """The hub gives nothing; the message is the reason."""


def _read_hub(data_set: DataSet, split: str) -> tuple[str, Iterator[Row]]:
    """A split's source, repository@revision, and its rows, with labels by their names.

    Raises:
        NotOnHubError: The hub has no such data, the extra is missing, or the client fails.
        InputError: A column is missing.
    """
    hub = data_set.hub
    if hub is None:
        raise NotOnHubError(f"not asked, because {data_set.no_hub}")
    if find_spec("datasets") is None:
        raise NotOnHubError("needs datasets: pip install 'bertflow[hub]'")
    # What `datasets` has in its cache is no substitute: it does not say of which revision.
    if not hub_answers():
        raise NotOnHubError("no connection")
    import datasets

    source = f"{hub.repository}@{hub.revision}"
    log.info("reading %s %s of the hub", source, hub.splits[split])
    try:
        table = datasets.load_dataset(
            hub.repository, hub.config, split=hub.splits[split], revision=hub.revision
        )
    except Exception as error:  # The client has many; all mean that it gives nothing.
        detail = str(error).strip().split("\n")[0]
        raise NotOnHubError(f"{type(error).__name__}: {detail}") from error
    lacking = [column for column in hub.columns if column not in table.column_names]
    if lacking:
        raise InputError(
            f"{source} has no column {', '.join(lacking)}; it has {', '.join(table.column_names)}"
        )
    return source, _hub_rows(table, hub, source)


def _hub_rows(table: Any, hub: HubSource, source: str) -> Iterator[Row]:
    names = getattr(table.features[hub.columns[2]], "names", None)  # Of a ClassLabel.
    cells = table.to_dict()
    known = cells.get(hub.ident) or range(1, len(table) + 1)
    rows = zip(*(cells[column] for column in hub.columns), known, strict=True)
    for number, (first, second, label, row) in enumerate(rows, start=1):
        if names is not None and label is not None:
            label = names[label] if label >= 0 else None  # −1 stands for no label.
        place = f"{source}, row {number}"
        yield Row(place, first, second, label, place, row=str(row))
