"""The terminal: text on standard output, progress on standard error where someone sees it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bertflow.errors import one_line

LABELS = {
    "encode": "encode sentences",
    "fit": "fit steps",
    "cells": "finished cells",
    "train": "train steps",
    "transform": "transform rows",
}


def console() -> Console:
    """Standard output; long lines are the terminal's to wrap, so that paths can be copied."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


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


class Report(Protocol):
    """Called with a stage, the steps done and their total."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show it."""


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
def progress_bars() -> Iterator[Report]:
    """Give a function that draws a bar a stage on standard error, if that is a terminal."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        # A disabled `Progress` ends with an empty line in some versions of rich.
        yield lambda stage, done, total: None
        return
    with Progress(
        TextColumn("{task.description:<17}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=terminal,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(LABELS.get(stage, stage), total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield report
