"""Progress bars where someone watches: in a terminal by rich, in a notebook as HTML."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Screen
from rich.table import Column
from rich.text import Text

LABELS = {
    "encode": "encode sentences",
    "fit": "fit steps",
    "cells": "finished cells",
    "moments": "moments of rows",
    "train": "train steps",
    "transform": "transform rows",
}
# Seconds of work before a bar appears that nobody has asked for, and between two of its states.
DELAY, INTERVAL = 0.5, 0.1
# The rate is that of the last states, and the loss a running mean: a single batch says little.
RECENT, SMOOTHING = 50, 0.95

Place = Literal["terminal", "notebook"]


class Report(Protocol):
    """Called with a stage, the steps done and their total."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show it."""


class Bars:
    """A bar a stage: how much is done, the loss in bits per dimension, the rate and the time left.

    Used in a `with` statement. What is called is shown where someone watches, and nowhere else.

    Args:
        delay: Seconds before the first bar appears, so that what is quick leaves no trace.
        place: Where to draw; None draws nothing.

    Example:
        >>> with Bars(place=None) as bars:
        ...     bars("fit", 1, 10, 2.5)
        ...     print(bars.stages["fit"])
        fit steps: 1/10, 2.500 bits/dim
    """

    def __init__(self, *, delay: float = 0.0, place: Place | None = None) -> None:
        self.delay, self.place = delay, place
        self.stages: dict[str, Stage] = {}
        self._began = time.monotonic()
        self._drawn = -INTERVAL
        self._canvas: _Terminal | _Notebook | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._canvas is not None:
            self._canvas.draw(self.stages)
            self._canvas.close()
            self._canvas = None

    def __call__(self, stage: str, done: int, total: int, bits: float | None = None) -> None:
        """Say how far a stage is.

        Args:
            stage: One of `LABELS`, or any name.
            done: Steps.
            total: Of so many.
            bits: The loss of the last step, in bits per dimension.
        """
        now = time.monotonic()
        if stage not in self.stages:
            self.stages[stage] = Stage(stage, self._began if not self.stages else now)
        self.stages[stage].update(done, total, bits, now)
        if self.place is None or now - self._began < self.delay:
            return
        if now - self._drawn >= INTERVAL or done == total:
            self._drawn = now
            if self._canvas is None:
                self._canvas = _Terminal() if self.place == "terminal" else _Notebook()
            self._canvas.draw(self.stages)


class Stage:
    """How far a stage is.

    Args:
        name: Its name.
        began: When, on the monotonic clock.
    """

    def __init__(self, name: str, began: float) -> None:
        self.label = LABELS.get(name, name)
        self.began = self.now = began
        self.done, self.total = 0, 0
        self.bits: float | None = None
        self._states: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._first: tuple[float, int] | None = None

    def update(self, done: int, total: int, bits: float | None, now: float) -> None:
        """Take a new state."""
        # The rate counts from the first one: what a fit that goes on had done took no time.
        if self._first is None:
            self._first = (now, done)
        if not self._states or now - self._states[-1][0] >= INTERVAL:
            self._states.append((now, done))
        self.done, self.total, self.now = done, total, now
        if bits is not None:
            kept = SMOOTHING if self.bits is not None else 0.0
            self.bits = kept * (self.bits or 0.0) + (1 - kept) * bits

    @property
    def finished(self) -> bool:
        """Whether all is done that is known of."""
        return self.done >= self.total

    @property
    def rate(self) -> float | None:
        """Steps a second, of late or, once it is finished, of all; None if that is not known."""
        since = self._first if self.finished or not self._states else self._states[0]
        if since is None or self.now <= since[0] or self.done <= since[1]:
            return None
        return (self.done - since[1]) / (self.now - since[0])

    def parts(self) -> dict[str, str]:
        """What is said of it: count, loss, rate and clock, as far as there is any."""
        said = {"count": f"{self.done:,}/{self.total:,}"}
        if self.bits is not None:
            said["bits"] = f"{self.bits:.3f} bits/dim"
        rate = self.rate
        if rate is not None:
            said["rate"] = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        if self.finished:
            said["clock"] = f"in {_clock(self.now - self.began)}"
        elif rate is not None:
            said["clock"] = f"{_clock((self.total - self.done) / rate)} left"
        return said

    def __str__(self) -> str:
        """The label and what is said of it, in one line."""
        return f"{self.label}: {', '.join(self.parts().values())}"


class _Said(ProgressColumn):
    """A column of one part of what is said of a stage."""

    def __init__(self, part: str) -> None:
        super().__init__(Column(justify="right", no_wrap=True))
        self.part = part

    def render(self, task: Task) -> Text:
        """Show it."""
        return Text(task.fields["stage"].parts().get(self.part, ""))


class _Terminal:
    """Bars on standard error, by rich."""

    def __init__(self) -> None:
        self._screen = Screen(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            *(_Said(part) for part in ("count", "bits", "rate", "clock")),
            console=Console(stderr=True),
            expand=True,
            auto_refresh=False,
        )
        self._tasks: dict[str, Any] = {}
        self._screen.start()

    def draw(self, stages: dict[str, Stage]) -> None:
        """Show how far the stages are."""
        for name, stage in stages.items():
            if name not in self._tasks:
                self._tasks[name] = self._screen.add_task(stage.label, total=None, stage=stage)
            self._screen.update(self._tasks[name], completed=stage.done, total=stage.total)
        self._screen.refresh()

    def close(self) -> None:
        """Leave what is shown, and let go of the terminal."""
        self._screen.stop()


class _Notebook:
    """Bars under a notebook's cell, as HTML that is replaced: no widgets are needed."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}
        self._handle: Any = sys.modules["IPython.display"].display(self, display_id=True)

    def draw(self, stages: dict[str, Stage]) -> None:
        """Show how far the stages are."""
        self._stages = stages
        self._handle.update(self)

    def close(self) -> None:
        """Leave what is shown."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self._stages.values()))

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr style="background: transparent;"><td style="text-align: left;">'
            f"{escape(stage.label)}</td>"
            f'<td><progress max="{max(stage.total, 1)}" value="{stage.done}"></progress></td>'
            f'<td style="text-align: left;">{escape(", ".join(stage.parts().values()))}</td></tr>'
            for stage in self._stages.values()
        )
        return (
            '<div class="bertflow" style="max-width: 100%; overflow-x: auto;">'
            f'<table style="color: inherit;"><tbody>{rows}</tbody></table></div>'
        )


def watcher() -> Place | None:
    """Where someone sees a bar: in a notebook, or on a terminal that standard error is."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None and "IPython.display" in sys.modules:
        return "notebook"
    console = Console(stderr=True)
    # Not by rich's word alone: it counts FORCE_COLOR, which logs of automatic runs have, too.
    seen = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
    return "terminal" if seen else None


@contextmanager
def watched(
    progress: Callable[..., None] | bool | None = None,
) -> Iterator[Callable[..., None] | None]:
    """What to call with progress, of what a caller has asked for.

    Args:
        progress: A function, which is given back; False for none; None for bars where someone
            watches, in the main thread of the main process, once half a second has passed; True for
            bars at once and in any thread or process, where someone watches.
    """
    if progress is not None and not isinstance(progress, bool):
        yield progress
        return
    alone = (
        multiprocessing.current_process().name == "MainProcess"
        and threading.current_thread() is threading.main_thread()
    )
    place = watcher() if progress or (progress is None and alone) else None
    if place is None:
        yield None
        return
    with Bars(delay=0.0 if progress else DELAY, place=place) as bars:
        yield bars


def of_stage(report: Callable[..., None], stage: str) -> Callable[[int, int, float], None]:
    """What to call with steps, their total and the loss, for whoever reports the stages of a job.

    Args:
        report: `Bars`, which show the loss, or a function of stage, steps and total.
        stage: The name of the stage.
    """
    if isinstance(report, Bars):
        return lambda done, total, bits: report(stage, done, total, bits)
    return lambda done, total, _: report(stage, done, total)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
