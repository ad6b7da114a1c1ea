"""torch's number of threads, set for one thread and no other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
import torch

from bertflow import Flow, diagnose
from bertflow.process_state import one_thread, usual_threads

T = TypeVar("T")
SMALL = {"levels": 2, "depth": 2, "width": 4, "epochs": 1}


@pytest.fixture(autouse=True)
def three() -> Iterator[None]:
    """The program was given three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_another(call: Callable[[], T]) -> T:
    """Call in a thread that has just begun."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("first_out", [0, 1])
def test_threads_that_compute_on_one_leave_all_others_what_they_had(first_out):
    """Whoever comes or goes first, and also meanwhile."""
    inside, out = [threading.Event() for _ in "ab"], [threading.Event() for _ in "ab"]

    def stay(number: int) -> tuple[int, int]:
        with one_thread():
            inside[number].set()
            assert out[number].wait(60)
            own = torch.get_num_threads()
        return own, torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        ran = []
        for number in (0, 1):
            ran.append(pool.submit(stay, number))
            assert inside[number].wait(60)
            assert in_another(torch.get_num_threads) == 3
            assert in_another(usual_threads) == torch.get_num_threads() == 3
        for number in (first_out, 1 - first_out):
            out[number].set()
            assert ran[number].result(60) == (1, 3)
            assert in_another(torch.get_num_threads) == torch.get_num_threads() == 3


def test_what_computes_on_one_thread_ends_with_the_number_of_before():
    rows = np.random.default_rng(0).normal(size=(60, 8))

    def compute(number: int) -> int:
        diagnose(rows) if number % 2 else Flow(**SMALL).fit(rows)
        return torch.get_num_threads()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compute, range(8))) == 8 * [3]
    assert in_another(torch.get_num_threads) == torch.get_num_threads() == 3


def test_a_fit_of_rows_in_a_file_leaves_threads_to_come_their_number(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(60, 8)))
    Flow(**SMALL).fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert in_another(torch.get_num_threads) == torch.get_num_threads() == 3


def test_a_fit_says_the_number_of_its_thread_whatever_others_do_meanwhile(monkeypatch, tmp_path):
    """The file that a stopped fit goes on from is only for the same number."""
    said: list[int] = []
    run = Flow._run

    def watched(self, *arguments):
        found = run(self, *arguments)
        said.append(found["threads"])
        return found

    monkeypatch.setattr(Flow, "_run", watched)
    rows = np.random.default_rng(0).normal(size=(60, 8))

    def fit(*_: object) -> None:
        if len(said) < 2:  # From within a fit, and again from within that one.
            kept = tmp_path / str(len(said))
            in_another(lambda: Flow(**SMALL).fit(rows, progress=fit, checkpoint=kept))

    fit()
    assert said == [3, 3]


OUTLIVES = """
import threading
import numpy as np
from bertflow import Flow
def work():
    threading.main_thread().join()
    print(len(Flow(epochs=1).fit(np.random.default_rng(0).normal(size=(99, 4))).loss_curve_))
threading.Thread(target=work).start()
"""


def test_a_fit_may_outlive_the_main_thread():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", OUTLIVES], capture_output=True)
    assert (done.stdout.strip(), done.stderr) == (b"4", b"")
