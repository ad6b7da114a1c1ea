"""Settings of the process that must not change a result, and the number of threads torch uses.

torch keeps a number of threads for each thread, and gives a new thread the number that any thread
has set last. So a thread that sets its own number restores the one for new threads: fits and
encodings in other threads then have the number that the program was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import numpy as np
import sklearn
import torch

T = TypeVar("T")

_threads_lock = threading.Lock()
# The default type belongs to the whole process: the first thread to enter sets it, and the last one
# to leave restores it.
_lock = threading.Lock()
_inside = 0
_before: torch.dtype | None = None


@contextmanager
def pinned(*, seed: bool = False) -> Iterator[None]:
    """Compute as in a fresh process, whatever the caller has set.

    Inside, torch's default type is float32 and its default device the CPU, autocast and inference
    mode are off, gradients can be computed, numpy only warns, and scikit-learn returns arrays.
    Everything is as before afterwards. It serves as a decorator, too.

    Args:
        seed: Restore torch's global generator, too: modules of other libraries draw numbers from it
            when they are constructed. Not for code that several threads run at the same time.

    Example:
        >>> torch.set_default_dtype(torch.float64)
        >>> with pinned():
        ...     torch.zeros(1).dtype
        torch.float32
        >>> torch.zeros(1).dtype
        torch.float64
        >>> torch.set_default_dtype(torch.float32)
    """
    usual_threads()  # A new thread gets its number of threads now, not while another sets its own.
    with ExitStack() as settings:
        _enter_default_type()
        settings.callback(_leave_default_type)
        if torch.get_default_device() != torch.device("cpu"):
            settings.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                settings.enter_context(torch.autocast(device, enabled=False))
        if seed:
            settings.enter_context(torch.random.fork_rng(devices=[]))
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.enable_grad())
        settings.enter_context(np.errstate(all="warn", under="ignore"))
        settings.enter_context(sklearn.config_context(transform_output="default"))
        yield


def _enter_default_type() -> None:
    global _inside, _before
    with _lock:
        _inside += 1
        if (found := torch.get_default_dtype()) != torch.float32:
            _before = found
            torch.set_default_dtype(torch.float32)


def _leave_default_type() -> None:
    global _inside, _before
    with _lock:
        _inside -= 1
        if not _inside and _before is not None:
            if torch.get_default_dtype() == torch.float32:  # Nobody has set another meanwhile.
                torch.set_default_dtype(_before)
            _before = None


def usual_threads() -> int:
    """How many threads torch uses for operations of this thread.

    A new thread gets its number here, while no other thread is setting one.
    """
    with _threads_lock:
        return torch.get_num_threads()


def set_own_threads(count: int) -> None:
    """Set how many threads torch uses for operations of this thread; new threads are unaffected.

    Args:
        count: At least 1.

    Example:
        >>> before = usual_threads()
        >>> set_own_threads(before + 1)
        >>> usual_threads() == before + 1, _in_a_new_thread(usual_threads) == before
        (True, True)
        >>> set_own_threads(before)
    """
    with _threads_lock:
        # A thread's first question overwrites its own number, so ask before setting it.
        torch.get_num_threads()
        for_new_threads = _in_a_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        if for_new_threads != count:
            _in_a_new_thread(lambda: torch.set_num_threads(for_new_threads))


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
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]
