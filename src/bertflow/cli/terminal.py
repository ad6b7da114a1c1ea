"""The terminal: text on standard output, progress on standard error where someone watches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bertflow.display import Bars
from bertflow.errors import one_line

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache


def console() -> Console:
    """Standard output; long lines are the terminal's to wrap, so that paths can be copied."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def show(what: Any) -> None:
    """Print text or a table on standard output."""
    console().print(what)


class _Handler(logging.Handler):
    """Writes a line on what is standard error at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        try:
            sys.stderr.write(f"{one_line(self.format(record))}\n")
        except Exception:
            self.handleError(record)


_HANDLER = _Handler()


def log_to_terminal(verbose: bool) -> None:
    """Show on standard error what bertflow logs.

    Args:
        verbose: All that it does, each line with the time and the module; otherwise warnings alone.
    """
    log = logging.getLogger("bertflow")
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    plain = "%(message)s"
    _HANDLER.setFormatter(
        logging.Formatter(f"%(asctime)s %(name)s: {plain}" if verbose else plain, "%H:%M:%S")
    )
    log.addHandler(_HANDLER)


def stop_logging() -> None:
    """Undo `log_to_terminal`, for programs that go on after a command."""
    log = logging.getLogger("bertflow")
    log.setLevel(logging.NOTSET)
    log.removeHandler(_HANDLER)


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
