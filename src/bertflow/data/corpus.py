"""Reading sentences, one by one, from wherever they lie."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from bertflow.data.sources import (
    STANDARD_INPUT,
    HubTable,
    SavedTable,
    Source,
    is_remote,
    located,
    remote_errors,
    table_rows,
)
from bertflow.data.tables import (
    KINDS,
    Columns,
    bounded_lines,
    kind_of,
    listed,
    open_text,
    read_rows,
    reading,
)
from bertflow.errors import InputError

log = logging.getLogger(__name__)


def read_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
) -> list[str]:
    """Read sentences from files, in order, into a list.

    Args:
        sources: One or more of: files by their ending, .txt (one sentence a line), .csv, .tsv,
            .jsonl, .parquet, each also packed (.gz, .bz2, .xz, .zst); folders and patterns of such
            files; what `datasets` has saved to disk; URLs of any of these (s3://, gs://, https://
            and whatever else fsspec knows); "hub:OWNER/NAME[@REVISION][:CONFIG]:SPLIT", streamed;
            or "-" for standard input, one sentence a line. In .tsv quotes are plain characters.
        column: The text column of a table: its name, or for a .csv or .tsv without a header its
            number from 1. Not needed where there is only one.
        limit: Stop after so many sentences, at least 1.
        blank: Leave out blank sentences, or refuse them, where rows must stay aligned.

    Returns:
        The sentences, repeats kept.

    Raises:
        InputError: A file is missing, of unknown kind, not UTF-8, lacks the column, has a row too
            short (named by line), all of them hold no sentence, or one is blank and is refused.
        MissingDependencyError: A .parquet, .zst, URL or table of `datasets` without its package;
            the message is the pip line.
    """
    return list(stream_corpus(sources, column=column, limit=limit, blank=blank))


def _several(sources: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [sources] if isinstance(sources, str | Path) else sources


def stream_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
) -> Iterator[str]:
    """Read sentences from files one by one, as `read_corpus` does, holding none of them.

    Args:
        sources: As in `read_corpus`.
        column: As in `read_corpus`.
        limit: As in `read_corpus`.
        blank: As in `read_corpus`.

    Yields:
        The sentences, repeats kept.

    Raises:
        InputError: As in `read_corpus`, when it comes to what is wrong.
        MissingDependencyError: As in `read_corpus`.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    # One after the other: with a limit the last of them may not be needed.
    sources = _several(sources)
    found = (one for source in sources for one in located([source]))
    texts = (text.strip() for one in found for text in _read(one, column))
    if blank == "skip":
        texts = (text for text in texts if text)
    number = 0
    for number, text in enumerate(islice(texts, limit), 1):
        if not text:
            raise InputError(f"sentence {number} is blank: it would have no vector")
        yield text
    if not number:
        names = ", ".join(_called(source) for source in sources)
        raise InputError(f"{names or 'the corpus'} holds no sentence")
    log.info("%s: %d sentences", ", ".join(_called(source) for source in sources), number)


def check_corpus(sources: Sequence[str | Path]) -> None:
    """Refuse what `read_corpus` could not read, without reading it.

    Raises:
        InputError: A file is missing or of unknown kind, or a folder or pattern has none.
        MissingDependencyError: As in `read_corpus`.
    """
    located(sources)


def checked_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
) -> Iterator[str]:
    """Read files through once, to refuse what is wrong with them before any work, and stream them.

    Standard input comes only once, and what comes over a network takes its time: with one of these
    among the sources what is wrong is found on the way.

    Args:
        sources: As in `read_corpus`.
        column: As in `read_corpus`.
        limit: As in `read_corpus`.
        blank: As in `read_corpus`.

    Returns:
        What `stream_corpus` gives.

    Raises:
        InputError: As in `read_corpus`.
        MissingDependencyError: As in `read_corpus`.
    """
    sources = _several(sources)
    found = located(sources)
    if not any(source == STANDARD_INPUT or is_remote(source) for source in found):
        for _ in stream_corpus(sources, column=column, limit=limit, blank=blank):
            pass
    return stream_corpus(sources, column=column, limit=limit, blank=blank)


def _called(source: str | Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


def _read(source: Source, column: str | None) -> Iterator[str]:
    columns = None if column is None else [column]
    if isinstance(source, SavedTable | HubTable):
        for _, cells in table_rows(source, columns, _only):
            yield cells[0] or ""
        return
    with remote_errors(source), reading(_called(source)):
        if isinstance(source, str):
            if sys.stdin is None:
                raise InputError(f"{_called(source)} is closed; give a file, or sentences to read")
            lines = bounded_lines(sys.stdin, _called(source))
            yield next(lines, "").removeprefix("\ufeff")
            yield from lines
            return
        kind = kind_of(source, KINDS)
        if kind == ".txt":
            with open_text(source) as file:
                yield from bounded_lines(file, source)
            return
        for _, row in read_rows(source, kind, columns, _only, texts=1):
            yield "" if row is None else row[0] or ""


def _only(table: Columns) -> Sequence[str]:
    if len(table.texts) == 1:
        return table.texts
    raise InputError(
        f"{table.path} has {len(table.texts)} text columns ({listed(table.texts)}); "
        "name one by --column (in Python column=)"
    )
