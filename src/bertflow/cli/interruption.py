"""Ctrl-C and SIGTERM: how a command that is stopped ends, and what it says it has saved.

SIGTERM, which schedulers send, becomes the same interruption as Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertflow.encoders import SentenceCache

NOTHING = "the same command begins anew: nothing was saved yet"
_terminated: list[int] = []
# The signal masks of each thread from before the forks that it is in.
_held = threading.local()


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


class Interrupted(Exception):
    """A command was stopped; the message says what the same command goes on from."""


def how_it_ended() -> tuple[str, int]:
    """What an interruption of this process is called, and its exit code."""
    return ("terminated", 143) if _terminated else ("interrupted", 130)


def catch_termination() -> None:
    """Let SIGTERM interrupt this process, but end the processes that it forks.

    A process that was started to ignore SIGTERM goes on ignoring it.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(os, "register_at_fork"):
        # Hold SIGTERM back during a fork: Python would lose one that comes to the child before it
        # has let go of our handler.
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_end_in_child)


def let_termination_end() -> None:
    """Let SIGTERM end the process without a word, as it does where nothing catches it."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _hold() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _held.masks = [*getattr(_held, "masks", []), before]


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.masks.pop())


def _end_in_child() -> None:
    let_termination_end()
    _release()


@contextmanager
def still_terminated() -> Iterator[None]:
    """Keep our handler of SIGTERM while a library starts that would put its own in its place."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is _terminate:
            signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> None:
    _terminated.append(signal.SIGTERM)
    raise Terminated


def resumes_from(path: Path, cache: SentenceCache | None = None) -> str:
    """What the same command goes on from.

    Args:
        path: What a stopped command leaves; it need not be there.
        cache: Where vectors are kept besides; None if they are not.
    """
    if path.exists():
        return f"the same command goes on from {path}"
    if cache is not None and (cache.found or cache.encoded):
        return f"the same command goes on from the vectors in {cache.folder}"
    return NOTHING
