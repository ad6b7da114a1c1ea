"""Settings of the process that must not change a result, and the number of threads torch uses.

torch gives a new thread the number of threads that any thread has set last. So a thread that sets
its own number restores the one for new threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import numpy as np
import sklearn
import torch

T = TypeVar("T")

_threads_lock = threading.Lock()


def shared_by_threads(
    setting: Callable[[], Iterator[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Make a context manager for a setting of the whole process, which threads may enter together.

    The first thread that enters runs the generator function to its `yield`, and the last one that
    leaves runs the rest, which restores the setting.
    """
    # Reentrant: the garbage collector may end a generator of the thread that holds the lock.
    lock = threading.RLock()
    setting_once = contextmanager(setting)
    held, inside = ExitStack(), 0

    @contextmanager
    def shared() -> Iterator[None]:
        nonlocal inside
        with lock:
            if not inside:
                held.enter_context(setting_once())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if not inside:
                    held.close()

    return shared


@shared_by_threads
def _default_type() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    if torch.get_default_dtype() == torch.float32:  # Nobody has set another meanwhile.
        torch.set_default_dtype(before)


@contextmanager
def pinned(*, seed: bool = False) -> Iterator[None]:
    """Compute as in a fresh process, whatever the caller has set; afterwards all is as before.

    With `seed`, torch's global generator is restored, too: modules of other libraries draw from it
    when they are made. That is not for code that several threads run at the same time.
    """
    usual_threads()  # A new thread gets its number of threads now, not while another sets its own.
    with ExitStack() as settings:
        settings.enter_context(_default_type())
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


def usual_threads() -> int:
    """How many threads torch uses for operations of this thread."""
    # A new thread gets its number by asking, so no other thread may be setting one.
    with _threads_lock:
        return torch.get_num_threads()


def set_own_threads(count: int) -> None:
    """Set how many threads torch uses for operations of this thread, and not for new threads."""
    with _threads_lock:
        # A thread's first question overwrites its own number, so ask before setting it.
        torch.get_num_threads()
        for_new_threads = _in_a_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        if for_new_threads != count:
            _in_a_new_thread(lambda: torch.set_num_threads(for_new_threads))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread while inside, and afterwards as before."""
    before = usual_threads()
    set_own_threads(1)
    try:
        yield
    finally:
        set_own_threads(before)


def _in_a_new_thread(call: Callable[[], T]) -> T:
    # No pool: those take no work once the main thread has ended, and fits may outlive it.
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]
