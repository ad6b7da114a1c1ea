"""Reading sentences, one by one, from wherever they lie."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from bertflow.data.sources import (
    HubTable,
    SavedTable,
    Source,
    comes_once,
    located,
    remote_errors,
    table_rows,
)
from bertflow.data.tables import (
    KINDS,
    StandardInput,
    kind_of,
    only_text,
    open_bytes,
    read_rows,
    reading,
    sentence_lines,
)
from bertflow.errors import InputError

log = logging.getLogger(__name__)


def read_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
    format: str | None = None,
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
        format: What the files are, "txt", "csv", "tsv", "jsonl" or "parquet", whatever their names
            end in; standard input is "txt" if it is not given. Packing goes by the ending.

    Returns:
        The sentences, repeats kept.

    Raises:
        InputError: A file is missing, of unknown kind, not UTF-8, lacks the column, has a row too
            short (named by line), all of them hold no sentence, or one is blank and is refused.
        MissingDependencyError: A .parquet, .zst, URL or table of `datasets` without its package;
            the message is the pip line.
    """
    return list(stream_corpus(sources, column=column, limit=limit, blank=blank, format=format))


def _several(sources: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [sources] if isinstance(sources, str | Path) else sources


def stream_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
    format: str | None = None,
) -> Iterator[str]:
    """Read sentences from files one by one, as `read_corpus` does, holding none of them.

    Args:
        sources: As in `read_corpus`.
        column: As in `read_corpus`.
        limit: As in `read_corpus`.
        blank: As in `read_corpus`.
        format: As in `read_corpus`.

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
    found = (one for source in sources for one in located([source], format))
    texts = (text.strip() for one in found for text in _read(one, column, format))
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


def check_corpus(sources: Sequence[str | Path], *, format: str | None = None) -> None:
    """Refuse what `read_corpus` could not read, without reading it.

    Args:
        sources: As in `read_corpus`.
        format: As in `read_corpus`.

    Raises:
        InputError: A file is missing or of unknown kind, or a folder or pattern has none.
        MissingDependencyError: As in `read_corpus`.
    """
    located(sources, format)


def checked_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    blank: Literal["skip", "refuse"] = "skip",
    format: str | None = None,
) -> Iterator[str]:
    """Read files through once, to refuse what is wrong with them before any work, and stream them.

    Standard input and pipes come only once, and what comes over a network takes its time: with one
    of these among the sources what is wrong is found on the way.

    Args:
        sources: As in `read_corpus`.
        column: As in `read_corpus`.
        limit: As in `read_corpus`.
        blank: As in `read_corpus`.
        format: As in `read_corpus`.

    Returns:
        What `stream_corpus` gives.

    Raises:
        InputError: As in `read_corpus`.
        MissingDependencyError: As in `read_corpus`.
    """
    sources = _several(sources)
    if not any(map(comes_once, located(sources, format))):
        for _ in stream_corpus(sources, column=column, limit=limit, blank=blank, format=format):
            pass
    return stream_corpus(sources, column=column, limit=limit, blank=blank, format=format)


def _called(source: str | Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


def _read(source: Source, column: str | None, format: str | None) -> Iterator[str]:
    columns = None if column is None else [column]
    if isinstance(source, SavedTable | HubTable):
        for _, cells in table_rows(source, columns, only_text):
            yield cells[0] or ""
        return
    if format is None and isinstance(source, StandardInput):
        format = "txt"
    with remote_errors(source), reading(source):
        kind = kind_of(source, KINDS, format)
        if kind == ".txt":
            with open_bytes(source) as file:
                yield from (line for _, line in sentence_lines(file, source))
            return
        for _, row in read_rows(source, kind, columns, only_text, texts=1):
            yield "" if row is None else row[0] or ""
