"""Progress bars where someone watches: on a terminal or under a notebook's cell, by tqdm."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bertflow.errors import InputError, shown

# Seconds of work before a bar appears that nobody has asked for.
DELAY = 0.5
# The loss is a running mean: a single batch says little.
SMOOTHING = 0.95


class Bars:
    """A bar a stage: how much is done, the time left, the rate, the loss in bits per dimension.

    Bars are drawn within a `with` statement, after a delay in seconds, by default only where
    someone watches.
    """

    def __init__(self, *, delay: float = 0.0, shown: bool | None = None) -> None:
        self.delay = delay
        self.shown = is_watched() if shown is None else shown
        self._bars: dict[str, Any] = {}
        self._losses: dict[str, float] = {}

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()

    def __call__(self, stage: str, done: int, total: int, bits: float | None = None) -> None:
        """Say how many steps of a stage are done; its loss is in bits per dimension."""
        if not self.shown:
            return
        bar = self._bars.get(stage)
        if bar is None or bar.n >= bar.total > done:
            bar = self._bars[stage] = self._begun(stage, done, total)
        if bits is not None:
            before = self._losses.get(stage, bits)
            self._losses[stage] = SMOOTHING * before + (1 - SMOOTHING) * bits
            bar.set_postfix_str(f"{self._losses[stage]:.3f} bits/dim", refresh=False)
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    def _begun(self, stage: str, done: int, total: int) -> Any:
        from tqdm.auto import tqdm

        return tqdm(
            desc=stage,
            initial=done,  # The rate leaves out what an earlier, stopped run had done.
            total=total,
            delay=self.delay,
            disable=False,
            dynamic_ncols=True,
        )


def is_watched() -> bool:
    """Whether someone sees a bar: in a notebook, or on a terminal that standard error is."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return True
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def watched(
    progress: Callable[..., None] | bool | None = None,
) -> Iterator[Callable[..., None] | None]:
    """Give the function to call with progress, or None.

    A function is given back. None stands for bars where someone watches, in the main thread of the
    main process, once half a second has passed; True for bars at once, in any thread or process.
    """
    if progress is not None and not isinstance(progress, bool):
        if not callable(progress):
            raise InputError(f"progress must be a function or a bool, got {shown(progress)}")
        yield progress
        return
    alone = (
        multiprocessing.current_process().name == "MainProcess"
        and threading.current_thread() is threading.main_thread()
    )
    if not (progress or (progress is None and alone)) or not is_watched():
        yield None
        return
    with Bars(delay=0.0 if progress else DELAY) as bars:
        yield bars


def of_stage(report: Callable[..., None], stage: str) -> Callable[[int, int, float], None]:
    """Give the function to call with steps, their total and the loss of one stage of a job.

    `Bars` show the loss; other functions take stage, steps and total.
    """
    if isinstance(report, Bars):
        return lambda done, total, bits: report(stage, done, total, bits)
    return lambda done, total, _: report(stage, done, total)
