"""Computing on one thread, also where several threads of a program do so at once.

torch keeps a number for each thread, and gives a new one the number that any thread has set last.
So who sets it for a while must put back both, its own and that of threads to come; and a thread
that comes in between has 1, which is not what the program was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

_lock = threading.Lock()
_inside = 0  # How many threads are in `one_thread`.
_outside = 1  # What a new thread had before the first of them came.


def usual_threads() -> int:
    """How many threads operations of this thread take when nobody computes on one."""
    with _lock:
        return _usual()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread while inside; afterwards as before, in threads to come as well.

    Example:
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    global _inside, _outside
    with _lock:
        before = _usual()
        if not _inside:
            _outside = _in_a_new_thread(torch.get_num_threads)
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(before)
            if not _inside and before != _outside:
                _in_a_new_thread(lambda: torch.set_num_threads(_outside))


def _usual() -> int:
    own = torch.get_num_threads()
    return _outside if _inside and own == 1 else own


def _in_a_new_thread(call: Callable[[], T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
