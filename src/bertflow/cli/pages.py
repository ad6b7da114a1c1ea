"""Pages: what a command shows and writes, as text, Markdown and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertflow.cli.destinations import is_output
from bertflow.cli.options import ResultOptions
from bertflow.cli.terminal import show
from bertflow.display import Grid
from bertflow.errors import ModelError, one_line
from bertflow.io.files import write_text
from bertflow.io.outputs import save_or_keep


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
        _show(pages, [text for path, text in forms if is_output(path)])
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


def _show(pages: Sequence[Page], alone: Sequence[str]) -> None:
    if alone:
        sys.stdout.write(alone[0])
        return
    for place, page in enumerate(pages):
        if place:
            show("")
        for name, value in page.facts.items():
            show(f"{name:<11}{one_line(value)}")
        for grid in page.grids:
            show("")
            show(grid.text())
        if page.notes:
            show("")
        for note in page.notes:
            show(f"- {one_line(note)}")
