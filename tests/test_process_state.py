"""What the process has set changes no calibrator's result, and is as before afterwards."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch

from bertflow.calibrators import (
    Calibrator,
    Flow,
    Moments,
    Standardization,
    Whitening,
    load_calibrator,
    save_calibrator,
)
from bertflow.calibrators.linear import LinearCalibrator
from bertflow.process_state import pinned

CALIBRATORS: list[Callable[[], Calibrator]] = [
    Whitening,
    Flow,
    lambda: Flow(coupling="affine", permutation="linear"),
    Flow.tempered,
]


@contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def seeded() -> Iterator[None]:
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    yield


STATES: dict[str, Callable[[], Any]] = {
    "float16": lambda: default_type(torch.float16),
    "float64": lambda: default_type(torch.float64),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "errstate": lambda: np.errstate(all="raise"),
    "pandas": lambda: sklearn.config_context(transform_output="pandas"),
    "seeds": seeded,
}
every_state = pytest.mark.parametrize("state", STATES)


def settings() -> list[Any]:
    """All that `pinned` may touch, as it is."""
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        np.geterr(),
        sklearn.get_config(),
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    ]


@functools.cache
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(3, 2, size=(200, 8)).astype(np.float32)


def results(build: Callable[[], Calibrator], folder: Any) -> list[np.ndarray]:
    """What every method makes of rows, also of a calibrator that was saved and loaded."""
    given, tensor = rows(), torch.as_tensor(rows(), device="cpu")
    calibrator = build().fit(given)
    found = [calibrator.transform(given), calibrator.inverse_transform(given)]
    found.append(build().fit_transform(tensor))
    save_calibrator(calibrator, folder)
    found.append(load_calibrator(folder).transform(given))
    if isinstance(calibrator, Flow):
        found += [calibrator.log_prob(given), calibrator.score(given), calibrator.loss_curve_]
        found.append(calibrator.sample(5, random_state=0))
    if isinstance(calibrator, LinearCalibrator):
        moments = Moments(8)
        moments.update(tensor)
        found.append(build().fit_moments(moments).affine()[1])
    return [np.asarray(one) for one in found]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Results where nothing is set."""
    folder = tmp_path_factory.mktemp("usual")
    return [results(build, folder / f"{n}") for n, build in enumerate(CALIBRATORS)]


@every_state
def test_results_are_the_same_bits_whatever_is_set(state, usual, tmp_path):
    for number, build in enumerate(CALIBRATORS):
        with STATES[state]():
            before = settings()
            found = results(build, tmp_path / f"{number}")
            after = settings()
        assert after == before
        for one, other in zip(found, usual[number], strict=True):
            np.testing.assert_array_equal(one, other)


def test_transform_gives_the_data_frame_that_the_caller_asked_for():
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(Whitening().fit_transform(rows()), pd.DataFrame)
    asked = Flow().set_output(transform="pandas").fit(rows())
    assert isinstance(asked.transform(rows()), pd.DataFrame)
    assert isinstance(asked.sample(3), np.ndarray)


def test_methods_of_a_new_subclass_are_pinned_too():
    class Mine(Standardization):
        def measure(self) -> torch.dtype:
            return torch.ones(1).dtype

    with default_type(torch.float64):
        assert Mine().measure() == torch.float32


def test_fits_in_threads_are_the_same_bits_and_put_the_default_type_back():
    expected = Flow().fit(rows()).transform(rows())
    with default_type(torch.float64):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: Flow().fit(rows()).transform(rows()), range(8)))
        assert torch.get_default_dtype() == torch.float64
    for one in found:
        np.testing.assert_array_equal(one, expected)


def test_who_leaves_last_puts_the_default_type_back():
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with pinned():
            inside.set()
            leave.wait(10)

    with default_type(torch.bfloat16):
        thread = threading.Thread(target=other)
        with pinned():
            thread.start()
            inside.wait(10)
        assert torch.get_default_dtype() == torch.float32
        leave.set()
        thread.join()
        assert torch.get_default_dtype() == torch.bfloat16


def test_a_default_type_that_is_set_inside_stays():
    with default_type(torch.bfloat16):
        with pinned():
            torch.set_default_dtype(torch.float64)
        assert torch.get_default_dtype() == torch.float64


def test_the_default_type_comes_back_after_an_error():
    with default_type(torch.float64):
        with pytest.raises(ZeroDivisionError), pinned():
            raise ZeroDivisionError
        assert torch.get_default_dtype() == torch.float64
