"""What commands show and write, where they may write it, and what they say when stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bertflow.cli.options import ResultOptions
from bertflow.display import Bars, Grid
from bertflow.errors import InputError, ModelError, one_line
from bertflow.io.files import (
    check_apart,
    check_replaceable,
    check_writable,
    save_or_keep,
    write_text,
)

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache

# As --json and --markdown name standard output.
STDOUT = Path("-")
Given = str | Path | Sequence[str | Path] | None
NOTHING = "the same command begins anew: nothing was saved yet"


# On the terminal.


def show(text: str) -> None:
    """Print text on standard output; long lines wrap there, so that paths can be copied."""
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


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
def progress_bar(stage: str) -> Iterator[Callable[[int, int], None]]:
    """Give the function that draws the bar of one stage, called with steps and their total."""
    with Bars() as bars:
        yield lambda done, total: bars(stage, done, total)


def counts(reasons: Mapping[str, int]) -> str:
    """How many pairs or rows were left out, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)


def from_cache(cache: SentenceCache | None) -> str:
    """How many sentences were in the cache, as part of a list; nothing if none were."""
    return f"{cache}, " if cache is not None and cache.found else ""


# Stopped.


class Interrupted(Exception):
    """A command was stopped; the message says what the same command goes on from."""


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Turn an interruption into `Interrupted`, with the text that the function gives then."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(kept()) from None


def resumes_from(path: Path, cache: SentenceCache | None = None, *, mark: str = "") -> str:
    """What the same command goes on from: a path, else vectors in the cache, else nothing.

    A folder counts only if it holds the mark, a file or pattern.
    """
    if path.exists() and (not mark or any(path.glob(mark))):
        return f"the same command goes on from {path}"
    if cache is not None and (cache.found or cache.encoded):
        return f"the same command goes on from the vectors in {cache.folder}"
    return NOTHING


# Where a command may write: what is impossible or would cost the input is refused.


def check_files(
    outputs: Mapping[str, Path | None], reads: Mapping[str, Given], *, rows: bool = False
) -> None:
    """Refuse files to write that are, hold or lie in what is read, or cannot be written.

    Files that are written row by row must be regular ones. Both mappings are by option.
    """
    given = {name: path for name, path in outputs.items() if path is not None}
    for path in given.values():
        check_writable(path, rows=rows)
    if given:
        check_apart(given, _listed(reads))


def check_results(outputs: Mapping[str, Path | None], reads: Mapping[str, Given]) -> None:
    """Refuse files of results as `check_files` does; one of them may be standard output."""
    shown = [name for name, path in outputs.items() if path == STDOUT]
    if len(shown) > 1:
        raise InputError(f"{' and '.join(shown)} are both standard output; give a file for one")
    check_files({name: path for name, path in outputs.items() if path != STDOUT}, reads)


def check_folder(output: Path, reads: Mapping[str, Given], *, ours: bool = True) -> None:
    """Refuse a folder as --output that is, holds or lies in what is read.

    With `ours` the folder is replaced as a whole, so it must hold nothing but our own files.
    """
    if output == STDOUT:
        raise ModelError("cannot write -: it stands for standard output; give a folder")
    check_apart({"--output": output}, _listed(reads))
    if ours:
        check_replaceable(output)


def _listed(reads: Mapping[str, Given]) -> Iterator[tuple[str, str | Path]]:
    """What is read on this machine, one by one; patterns and folders of text as their files."""
    for name, given in reads.items():
        if isinstance(given, str | Path):
            yield name, given
        else:
            yield from ((name, path) for source in given or () for path in _files_of(source))


def _files_of(source: str | Path) -> Iterator[str | Path]:
    from bertflow.data.sources import HUB, located

    text = str(source)
    if text == "-" or text.startswith(HUB) or "://" in text:
        return
    try:
        yield from map(str, located([source]))
    except InputError:  # Said by the reader, in its turn, unless --format says what it is.
        yield text


# Results.


@dataclass(frozen=True)
class Page:
    """Facts by their names, tables and notes, in the order they are read."""

    facts: Mapping[str, str]
    grids: Sequence[Grid]
    notes: Sequence[str]

    def text(self) -> str:
        """The page as a terminal shows it."""
        lines = [f"{name:<11}{one_line(value)}" for name, value in self.facts.items()]
        for grid in self.grids:
            lines += ["", grid.text()]
        lines += [""] if self.notes else []
        return "\n".join([*lines, *(f"- {one_line(note)}" for note in self.notes)])

    def markdown(self) -> str:
        """The page as Markdown."""
        facts = "".join(f"- {name}: {one_line(value)}\n" for name, value in self.facts.items())
        notes = "".join(f"- {one_line(note)}\n" for note in self.notes)
        return "\n".join([facts, *(grid.markdown() for grid in self.grids), notes])


def give(
    pages: Sequence[Page],
    content: dict[str, Any],
    results: ResultOptions,
    others: Mapping[Path, Callable[[Path], object]] = MappingProxyType({}),
) -> None:
    """Show pages, and write them as Markdown and the content as JSON where it is asked for.

    What is asked for on standard output is shown alone. Other files come with what writes each.
    Where a file cannot be written, all else is done all the same, and a ModelError says so.
    """
    forms: list[tuple[Path, str]] = []
    if results.json is not None:
        forms.append((results.json, json.dumps(content, indent=2, allow_nan=False) + "\n"))
    if results.markdown is not None:
        forms.append((results.markdown, "\n".join(page.markdown() for page in pages)))
    # Files first: whoever reads what is shown may have gone.
    writers: dict[Path, Callable[[Path], object]] = {
        path: partial(write_text, text=text) for path, text in forms if path != STDOUT
    }
    lost = []
    for path, write in {**writers, **others}.items():
        try:
            save_or_keep(path, write)
        except ModelError as error:
            lost.append(str(error))
    try:
        if alone := [text for path, text in forms if path == STDOUT]:
            sys.stdout.write(alone[0])
        else:
            show("\n\n".join(page.text() for page in pages))
    finally:  # Also where whoever reads what is shown has gone.
        if lost:
            raise ModelError("; ".join(lost))
