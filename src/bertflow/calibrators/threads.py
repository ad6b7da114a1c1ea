"""Computing on one thread, also where several threads of a program do so at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0  # How many threads are in `one_thread`.
_outside = 1  # What a new thread had before the first of them came.


def usual_threads() -> int:
    """How many threads operations of this thread take when nobody computes on one.

    torch keeps a number for each thread, and gives a new one what any thread has set last: while
    another is in `one_thread`, that is 1, which is not what the program was given.
    """
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
            _outside = before
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(before)


def _usual() -> int:
    own = torch.get_num_threads()
    return _outside if _inside and own == 1 else own
