"""What commands show and write: pages, text on standard output, progress on standard error."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bertflow.cli.destinations import is_output
from bertflow.cli.options import ResultOptions
from bertflow.display import Bars, Grid
from bertflow.errors import ModelError, one_line
from bertflow.io.files import save_or_keep, write_text

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache


def console() -> Console:
    """Standard output; long lines are the terminal's to wrap, so that paths can be copied."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def show(what: Any) -> None:
    """Print text or a table on standard output."""
    console().print(what)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


@contextmanager
def logging_to_terminal(verbose: bool) -> Iterator[None]:
    """Show on standard error what bertflow logs, until the command has ended.

    Args:
        verbose: All that it does, each line with the time and the module; otherwise warnings alone.
    """
    log, handler = logging.getLogger("bertflow"), logging.StreamHandler()
    plain = "%(message)s"
    handler.setFormatter(
        _OneLine(f"%(asctime)s %(name)s: {plain}" if verbose else plain, "%H:%M:%S")
    )
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
        log.removeHandler(handler)


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show on standard error that something takes its time, if that is a terminal."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield
        return
    with terminal.status(text):
        yield


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Give what draws a bar a stage on standard error, if that is a terminal."""
    with Bars() as bars:
        yield bars


@contextmanager
def progress_bar(stage: str) -> Iterator[Callable[[int, int], None]]:
    """Give what draws the bar of one stage, called with what is done and the total."""
    with progress_bars() as report:
        yield lambda done, total: report(stage, done, total)


def from_cache(cache: SentenceCache | None) -> str:
    """How many sentences were in the cache, as part of a list; nothing if none were."""
    return f"{cache}, " if cache is not None and cache.found else ""


def tell_cached(cache: SentenceCache | None) -> None:
    """Say on standard error, if that is a terminal, how many sentences were in the cache."""
    terminal = Console(stderr=True, highlight=False)
    if cache is not None and cache.found and terminal.is_terminal:
        terminal.print(f"{cache.found + cache.encoded:,} sentences, {cache}")


@dataclass(frozen=True)
class Page:
    """Lines, tables and notes, in the order they are read.

    Attributes:
        facts: What was scored, by name.
        grids: The tables.
        notes: What must be said beside them.
    """

    facts: Mapping[str, str]
    grids: Sequence[Grid]
    notes: Sequence[str]

    def text(self) -> str:
        """As a terminal shows it."""
        lines = [f"{name:<11}{one_line(value)}" for name, value in self.facts.items()]
        for grid in self.grids:
            lines += ["", grid.text()]
        lines += [""] if self.notes else []
        return "\n".join([*lines, *(f"- {one_line(note)}" for note in self.notes)])

    def markdown(self) -> str:
        """As Markdown has it."""
        facts = "".join(f"- {name}: {one_line(value)}\n" for name, value in self.facts.items())
        notes = "".join(f"- {one_line(note)}\n" for note in self.notes)
        return "\n".join([facts, *(grid.markdown() for grid in self.grids), notes])


def give(
    pages: Sequence[Page],
    content: dict[str, Any],
    results: ResultOptions,
    others: Mapping[Path, Callable[[Path], object]] = MappingProxyType({}),
) -> None:
    """Show pages, and write them and the content where it is asked for.

    What is asked for on standard output is shown alone. Where a file cannot be written, all else is
    done all the same.

    Args:
        pages: What is shown, and written as Markdown.
        content: What is written as JSON.
        results: Where to.
        others: Other files, and what writes each.

    Raises:
        ModelError: A file cannot be written; the message says where its content is instead.
    """
    forms: list[tuple[Path, str]] = []
    if results.json is not None:
        forms.append((results.json, json.dumps(content, indent=2, allow_nan=False) + "\n"))
    if results.markdown is not None:
        forms.append((results.markdown, "\n".join(page.markdown() for page in pages)))
    # Files first: whoever reads what is shown may have gone.
    writers: dict[Path, Callable[[Path], object]] = {
        path: partial(write_text, text=text) for path, text in forms if not is_output(path)
    }
    lost = [
        error
        for path, write in {**writers, **others}.items()
        if (error := written(path, write)) is not None
    ]
    try:
        alone = [text for path, text in forms if is_output(path)]
        if alone:
            sys.stdout.write(alone[0])
        else:
            show("\n\n".join(page.text() for page in pages))
    finally:  # Also where whoever reads what is shown has gone.
        if lost:
            raise ModelError("; ".join(lost))


def written(path: Path, write: Callable[[Path], object]) -> str | None:
    """Write a file as `save_or_keep` does.

    Returns:
        What went wrong, and where the content is; None where nothing did.
    """
    try:
        save_or_keep(path, write, when=lambda error: isinstance(error, ModelError))
    except ModelError as error:
        return str(error)
    return None
