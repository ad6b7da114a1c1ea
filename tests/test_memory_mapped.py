"""Rows in memory-mapped files: read in pieces, and given back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bertflow import arrays
from bertflow.arrays import chunks, let_go, taken
from bertflow.calibrators import Flow, Standardization, training


@pytest.fixture
def file(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.normal(size=(4000, 64)).astype(np.float16))
    return tmp_path / "x.npy"


def resident(address: int) -> int:
    """How many kilobytes of the mapping that holds an address are in memory."""
    inside = False
    with open("/proc/self/smaps") as lines:  # noqa: PTH123
        for line in lines:
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                inside = low <= address < high
            elif inside and line.startswith("Rss:"):
                return int(line.split()[1])
    raise LookupError(address)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_what_was_read_is_given_back(file):
    x = np.load(file, mmap_mode="r")
    rows = np.asarray(x)
    total = sum(float(chunk.sum()) for chunk in chunks(rows, 100))
    assert total == pytest.approx(float(np.load(file).astype(np.float32).sum()), abs=1)
    assert resident(x.ctypes.data) < 100
    taken(rows, torch.arange(4000))
    assert resident(x.ctypes.data) < 100


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_rows_from_anywhere_are_taken_a_part_at_a_time(file, monkeypatch):
    monkeypatch.setattr(arrays, "TAKEN_ROWS", 50)
    x = np.load(file, mmap_mode="r")
    held: list[int] = []
    let = arrays.let_go
    monkeypatch.setattr(
        arrays, "let_go", lambda rows: held.append(resident(x.ctypes.data)) or let(rows)
    )
    index = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:2000]
    found = taken(x, index)
    np.testing.assert_array_equal(found, np.load(file).astype(np.float32)[index.numpy()])
    assert len(held) == 40
    assert max(held) < 400  # Of the 500 kB of the file.
    np.testing.assert_array_equal(taken(x, index[:0]).shape, (0, 64))


def test_changes_in_a_private_copy_stay(file):
    x = np.load(file, mmap_mode="c")
    x[5] = 7
    for rows in (x, np.asarray(x), x[2:], np.asarray(x)[2:]):
        list(chunks(rows))
        let_go(rows)
    assert (x[5] == 7).all()


@pytest.mark.parametrize("build", [Standardization, Flow])
def test_every_way_to_open_a_file_gives_the_same(build, file):
    for mode in ["r", "r+", "c", None]:
        x = np.load(file, mmap_mode=mode)
        expected = np.load(file)
        z = build().fit(x).transform(x)
        np.testing.assert_array_equal(z, build().fit(expected).transform(expected))


@pytest.mark.parametrize("epochs", [0.4, 1, 2.5])
def test_rows_in_a_file_are_trained_on_in_the_same_order(file, monkeypatch, epochs):
    monkeypatch.setattr(training, "WINDOW_ROWS", 512)
    mapped = Flow(epochs=epochs, random_state=0).fit(np.load(file, mmap_mode="r"))
    here = Flow(epochs=epochs, random_state=0).fit(np.load(file))
    np.testing.assert_array_equal(mapped.loss_curve_, here.loss_curve_)
    np.testing.assert_array_equal(mapped.sample(9, random_state=0), here.sample(9, random_state=0))
    assert mapped.loss_ == here.loss_
