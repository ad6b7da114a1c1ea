"""How many threads torch computes with, set for one thread and no other.

torch keeps a number for each thread, and gives a new one the number that any thread has set last.
So a thread that sets its own number must restore the one for new threads: fits and encodings in
other threads then have the number that the program was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

_lock = threading.Lock()


def usual_threads() -> int:
    """How many threads operations of this thread take.

    A thread that has not computed yet gets its number here, while no other is setting one.
    """
    with _lock:
        return torch.get_num_threads()


def set_own_threads(count: int) -> None:
    """Set how many threads operations of this thread take; those to come have what they had.

    Args:
        count: At least 1.

    Example:
        >>> before = usual_threads()
        >>> set_own_threads(before + 1)
        >>> usual_threads() == before + 1, _in_a_new_thread(usual_threads) == before
        (True, True)
        >>> set_own_threads(before)
    """
    with _lock:
        # A thread takes the number of those to come when it first asks, were its own set or not.
        torch.get_num_threads()
        to_come = _in_a_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        if to_come != count:
            _in_a_new_thread(lambda: torch.set_num_threads(to_come))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread while inside, and afterwards as before.

    Example:
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    before = usual_threads()
    set_own_threads(1)
    try:
        yield
    finally:
        set_own_threads(before)


def _in_a_new_thread(call: Callable[[], T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
