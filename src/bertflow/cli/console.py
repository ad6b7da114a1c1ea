"""What commands show and write, where they may write it, and what they say when stopped."""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.status import Status

from bertflow.display import Bars, Grid
from bertflow.errors import InputError, ModelError, one_line, quoted
from bertflow.io import files

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache

# As --json and --markdown name standard output.
STDOUT = Path("-")
Given = str | Path | Sequence[str | Path] | None


def show(text: str) -> None:
    """Print text on standard output; long lines wrap there, so that paths can be copied."""
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


def show_form(name: str, **values: Any) -> None:
    """Print a template of this package, filled with values."""
    from jinja2 import Environment, PackageLoader

    forms = Environment(loader=PackageLoader("bertflow.cli"), trim_blocks=True, lstrip_blocks=True)  # noqa: S701 (text for a terminal)
    forms.globals |= {"one_line": one_line, "quoted": quoted, "repr": repr}
    show(forms.get_template(name).render(values).rstrip())


def busy(text: str) -> Status:
    """Show on standard error that something takes its time, if that is a terminal."""
    return Console(stderr=True).status(text)


@contextmanager
def progress_bar(stage: str) -> Iterator[Callable[[int, int], None]]:
    """Give the function that draws the bar of one stage, called with steps and their total."""
    with Bars() as bars:
        yield lambda done, total: bars(stage, done, total)


def counts(reasons: Mapping[str, int]) -> str:
    """How many pairs or rows were left out, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)


@contextmanager
def vectors_named(source: str | Path) -> Iterator[None]:
    """Let messages about X name the file that the rows come from."""
    try:
        yield
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        if name != "X":
            raise
        raise InputError(f"{one_line(source)} {rest}") from error


@contextmanager
def resumable(
    path: Path | None, cache: SentenceCache | None = None, *, mark: str = "", errors: bool = False
) -> Iterator[None]:
    """Let an interruption, with `errors` a ModelError too, say what the same command goes on from.

    That is the path, of a folder only if it holds the mark (a file or pattern), else the cache.
    """
    try:
        yield
    except KeyboardInterrupt:
        if _is_there(path, mark):
            kept = f"goes on from {path}"
        elif cache is not None and (cache.found or cache.encoded):
            kept = f"goes on from the vectors in {cache.folder}"
        else:
            kept = "begins anew: nothing was saved yet"
        raise KeyboardInterrupt(f"the same command {kept}") from None
    except ModelError as error:
        if errors and _is_there(path, mark):
            raise ModelError(f"{error}; the same command goes on from {path}") from error
        raise


def _is_there(path: Path | None, mark: str) -> bool:
    return path is not None and path.exists() and (not mark or any(path.glob(mark)))


def check_files(
    outputs: Mapping[str, Path | None], reads: Mapping[str, Given], *, rows: bool = False
) -> None:
    """Refuse files to write that are, hold or lie in what is read, or cannot be written.

    Files for rows must be regular ones that end in .npy. Both mappings are by option.
    """
    paths = [path for path in outputs.values() if path is not None]
    for path in paths:
        files.check_writable(path, rows=rows)
    files.check_apart(outputs, _listed(reads))
    for path in paths:
        if rows and path.suffix.lower() != ".npy":
            raise InputError(f"{path} must end in .npy; --engine local makes a folder of a folder")


def check_folder(output: Path, reads: Mapping[str, Given], *, ours: bool = True) -> None:
    """Refuse a folder as --output that is, holds or lies in what is read.

    With `ours` the folder is replaced as a whole, so it must hold nothing but our own files.
    """
    if output == STDOUT:
        raise ModelError("cannot write -: it stands for standard output; give a folder")
    files.check_apart({"--output": output}, _listed(reads))
    if ours:
        files.check_replaceable(output)


def _listed(reads: Mapping[str, Given]) -> Iterator[tuple[str, str | Path]]:
    """What is read on this machine, one by one; patterns as their files."""
    for name, given in reads.items():
        for source in [given] if isinstance(given, str | Path) else given or ():
            matched = glob.glob(str(source), recursive=True)  # noqa: PTH207
            yield from ((name, path) for path in [source, *matched])


@dataclass(frozen=True)
class Page:
    """Facts by their names, tables and notes, in the order they are read."""

    facts: Mapping[str, str]
    grids: Sequence[Grid]
    notes: Sequence[str]

    def text(self) -> str:
        """The page as a terminal shows it, whose width notes keep to; anywhere else in a line."""
        terminal = Console()
        width = terminal.width if terminal.is_terminal else sys.maxsize
        wrapped = TextWrapper(
            width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        lines = [f"{name:<11}{one_line(value)}" for name, value in self.facts.items()]
        for grid in self.grids:
            lines += ["", grid.text()]
        lines += [""] if self.notes else []
        return "\n".join([*lines, *(wrapped.fill(f"- {one_line(note)}") for note in self.notes)])

    def markdown(self) -> str:
        """The page as Markdown."""
        facts = "".join(f"- {name}: {one_line(value)}\n" for name, value in self.facts.items())
        notes = "".join(f"- {one_line(note)}\n" for note in self.notes)
        return "\n".join([facts, *(grid.markdown() for grid in self.grids), notes])
