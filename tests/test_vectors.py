"""Vectors in .npy files: chunks make no difference, and a failure leaves the old file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from bertflow.calibrators import (
    AllButTheTop,
    Calibrator,
    Flow,
    Standardization,
    Whitening,
    vectors,
)
from bertflow.calibrators.vectors import read_vectors, transform_file, write_vectors
from bertflow.errors import InputError, ModelError

ROWS, WIDTH, CHUNK = 50, 6, 7
CALIBRATORS = {
    "flow": Flow(epochs=1),
    "whitening": Whitening(),
    "whitening-4": Whitening(dim=4),
    "standardization": Standardization(),
    "all-but-the-top": AllButTheTop(2),
}
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture
def rows(rng) -> np.ndarray:
    return rng.normal(3, 2, size=(ROWS, WIDTH)) @ np.diag([3, 2, 1, 1, 0.5, 0.5])


@pytest.fixture
def source(tmp_path, rows) -> Path:
    np.save(tmp_path / "in.npy", rows)
    return tmp_path / "in.npy"


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(vectors, "CHUNK_ROWS", CHUNK)


def fitted(name: str, rows: np.ndarray) -> Calibrator:
    return clone(CALIBRATORS[name]).fit(rows)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_is_written_is_read_back(tmp_path):
    for dtype in [np.float64, np.float32, np.float16, np.int64, np.uint8, ">f4"]:
        rows = np.arange(12).reshape(4, 3).astype(dtype)
        (tmp_path / "x.npy").unlink(missing_ok=True)
        write_vectors(tmp_path / "x.npy", rows)
        read = read_vectors(tmp_path / "x.npy")
        assert read.dtype == rows.dtype
        assert_array_equal(read, rows)
        assert_array_equal(np.load(tmp_path / "x.npy"), rows)


def test_the_bytes_are_those_of_numpy(tmp_path, rng, small_chunks):
    for shape in [(ROWS, WIDTH), (0, WIDTH), (1, 2)]:
        for order in ["C", "F"]:
            rows = rng.normal(size=shape)
            (tmp_path / "x.npy").unlink(missing_ok=True)
            write_vectors(tmp_path / "x.npy", np.asarray(rows, order=order))
            np.save(tmp_path / "expected.npy", rows)
            assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_files_of_numpy_in_either_order_are_read(tmp_path, rows):
    for order in ["C", "F"]:
        np.save(tmp_path / "x.npy", np.asarray(rows, order=order))
        assert_array_equal(read_vectors(str(tmp_path / "x.npy")), rows)


def test_reading_maps_the_file_and_cannot_write_it(source):
    read = read_vectors(source)
    assert isinstance(read, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        read[0, 0] = 1.0


def save_bad(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez(file, a=np.ones((3, 2)), b=np.ones(3))
    elif kind == "two":
        with path.open("wb") as file:
            np.save(file, np.ones((3, 2)))
            np.save(file, np.ones((3, 2)))
    elif kind == "parquet":
        path.write_bytes(b"PAR1\x15\x04")
    elif kind == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    elif kind == "text":
        path.write_text("0.1 0.2\n0.3 0.4\n")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        np.save(path, np.ones((30, 20)))
        path.write_bytes(path.read_bytes()[:-8])
    elif kind == "objects":
        np.save(path, np.array([[1, None], ["a", 2]], dtype=object), allow_pickle=True)
    elif kind != "missing":
        arrays = {
            "0-d": np.array(3.0),
            "1-d": np.ones(3),
            "3-d": np.ones((2, 2, 2)),
            "complex": np.ones((3, 2), dtype=complex),
            "bool": np.ones((3, 2), dtype=bool),
            "strings": np.array([["a", "b"]]),
            "fields": np.zeros(3, dtype=[("a", "f4"), ("b", "f4")]),
        }
        np.save(path, arrays[kind])


BAD = {
    "missing": "does not exist",
    "folder": "is no file",
    "npz": r"archive of arrays \('a\.npy', 'b\.npy'\)",
    "two": r"176 bytes more after its array of shape \(3, 2\)",
    "parquet": r"by --vectors \S*bad\.npy --engine local",
    "pointer": "is a git-lfs pointer",
    "text": "not a .npy file",
    "empty": "not a .npy file",
    "cut": "not a .npy file",
    "objects": "not a .npy file of numbers but of Python objects",
    "0-d": r"shape \(\)",
    "1-d": r"shape \(3,\)",
    "3-d": r"shape \(2, 2, 2\)",
    "complex": "complex128",
    "bool": "bool",
    "strings": "<U1",
    "fields": r"\('a', '<f4'\)",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_matrix_of_numbers_is_refused_by_name(tmp_path, kind):
    save_bad(tmp_path / "bad.npy", kind)
    with pytest.raises(InputError, match=rf"bad\.npy.*{BAD[kind]}"):
        read_vectors(tmp_path / "bad.npy")


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_read_is_not_transformed(tmp_path, rows, kind):
    save_bad(tmp_path / "bad.npy", kind)
    before = names(tmp_path)
    with pytest.raises(InputError, match=r"bad\.npy"):
        transform_file(Standardization().fit(rows), tmp_path / "bad.npy", tmp_path / "out.npy")
    assert names(tmp_path) == before


@every_calibrator
def test_a_file_in_chunks_is_the_matrix_at_once(tmp_path, source, rows, name, small_chunks):
    calibrator = fitted(name, rows)
    expected = calibrator.transform(rows)
    seen = []
    shape = transform_file(
        calibrator, source, tmp_path / "out.npy", progress=lambda *at: seen.append(at)
    )
    written = np.load(tmp_path / "out.npy")
    assert shape == written.shape == expected.shape
    assert written.dtype == np.float64
    assert_allclose(written, expected, rtol=0, atol=1e-12)
    assert seen == [(min(n, ROWS), ROWS) for n in range(CHUNK, ROWS + CHUNK, CHUNK)]
    assert names(tmp_path) == ["in.npy", "out.npy"]


@every_calibrator
def test_inverse_undoes_as_the_calibrator_does(tmp_path, source, rows, name, small_chunks):
    calibrator = fitted(name, rows)
    transform_file(calibrator, source, tmp_path / "z.npy")
    shape = transform_file(calibrator, tmp_path / "z.npy", tmp_path / "x.npy", inverse=True)
    back = np.load(tmp_path / "x.npy")
    assert shape == back.shape == rows.shape
    expected = calibrator.inverse_transform(calibrator.transform(rows))
    assert_allclose(back, expected, rtol=0, atol=1e-10)
    if name not in ("whitening-4", "all-but-the-top"):
        assert_allclose(back, rows, rtol=0, atol=1e-5)


@every_calibrator
def test_the_type_stays_that_of_the_source(tmp_path, rows, name, small_chunks):
    for dtype in [np.float32, np.float16]:
        out = tmp_path / f"{np.dtype(dtype)}.npy"
        calibrator = fitted(name, rows)
        np.save(tmp_path / "in.npy", rows.astype(dtype))
        transform_file(calibrator, tmp_path / "in.npy", out)
        written = np.load(out)
        assert written.dtype == dtype
        tolerance = 1e-4 if dtype == np.float32 else 1e-2
        assert_allclose(written, calibrator.transform(rows.astype(dtype)), rtol=0, atol=tolerance)


@every_calibrator
def test_integers_are_vectors_too(tmp_path, name, small_chunks):
    for dtype in [np.int64, np.int8, np.uint16]:
        out = tmp_path / f"{np.dtype(dtype)}.npy"
        integers = np.random.default_rng(0).integers(0, 100, size=(ROWS, WIDTH)).astype(dtype)
        calibrator = fitted(name, integers)
        np.save(tmp_path / "in.npy", integers)
        transform_file(calibrator, tmp_path / "in.npy", out)
        written = np.load(out)
        assert written.dtype.kind == "f"
        expected = calibrator.transform(integers.astype(np.float64))
        assert_allclose(written, expected, rtol=0, atol=1e-3)


def test_a_folder_that_is_not_there_is_made(tmp_path, source, rows):
    transform_file(Standardization().fit(rows), source, tmp_path / "new" / "er" / "out.npy")
    assert np.load(tmp_path / "new" / "er" / "out.npy").shape == rows.shape


def test_a_file_is_not_replaced_by_its_own_transform(source, rows):
    for how in ["name", "link", "hard link"]:
        target = source if how == "name" else source.with_name(f"{how}.npy")
        if how == "link":
            target.symlink_to(source)
        elif how == "hard link":
            target.hardlink_to(source)
        before = source.read_bytes()
        with pytest.raises(
            InputError, match=r"\.npy is what the transform reads; give another, or"
        ):
            transform_file(Standardization().fit(rows), source, target)
        assert source.read_bytes() == before


@every_calibrator
def test_another_width_is_refused_and_nothing_written(tmp_path, rows, name):
    for inverse in [False, True]:
        calibrator = fitted(name, rows)
        np.save(tmp_path / "in.npy", np.ones((5, WIDTH + 1)))
        with pytest.raises(InputError, match=f"{WIDTH + 1} "):
            transform_file(calibrator, tmp_path / "in.npy", tmp_path / "out.npy", inverse=inverse)
        assert names(tmp_path) == ["in.npy"]


@every_calibrator
def test_a_row_that_is_not_finite_is_named_by_its_number_in_the_file(
    tmp_path, rows, name, small_chunks
):
    for value, said in [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")]:
        for inverse in [False, True]:
            calibrator = fitted(name, rows)
            bad = calibrator.transform(rows) if inverse else rows.copy()
            bad[33, 1] = value
            bad[40, 0] = value
            np.save(tmp_path / "in.npy", bad)
            with pytest.raises(InputError, match=rf"{said}.*row 33\b"):
                transform_file(
                    calibrator, tmp_path / "in.npy", tmp_path / "out.npy", inverse=inverse
                )
            assert names(tmp_path) == ["in.npy"]


def test_a_row_far_down_is_named_by_its_number_in_the_file(tmp_path, rng):
    rows = rng.normal(size=(5000, 2))
    calibrator = Standardization().fit(rows)
    rows[4999, 1] = np.nan
    np.save(tmp_path / "in.npy", rows)
    with pytest.raises(InputError, match=r"row 4999\b"):
        transform_file(calibrator, tmp_path / "in.npy", tmp_path / "out.npy")


@pytest.mark.parametrize("inverse", [False, True])
def test_no_row_is_refused_in_either_direction(tmp_path, rows, inverse):
    np.save(tmp_path / "in.npy", np.empty((0, WIDTH)))
    with pytest.raises(InputError, match=r"0 sample|n_samples = 0|holds no vector"):
        transform_file(
            Standardization().fit(rows), tmp_path / "in.npy", tmp_path / "out.npy", inverse=inverse
        )
    assert names(tmp_path) == ["in.npy"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (RuntimeError("broken"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), ModelError),
    ],
    ids=lambda value: None if isinstance(value, type) else type(value).__name__,
)
def test_a_failure_half_way_leaves_the_old_file_and_no_other(
    tmp_path, source, rows, small_chunks, monkeypatch, failure, raised
):
    calibrator = Standardization().fit(rows)
    right, calls = calibrator.transform, []

    def failing(x):
        calls.append(len(x))
        if len(calls) == 3:
            raise failure
        return right(x)

    monkeypatch.setattr(calibrator, "transform", failing)
    (tmp_path / "out.npy").write_bytes(b"what was there before")
    with pytest.raises(raised):
        transform_file(calibrator, source, tmp_path / "out.npy")
    assert calls == [CHUNK] * 3
    assert (tmp_path / "out.npy").read_bytes() == b"what was there before"
    assert names(tmp_path) == ["in.npy", "out.npy"]


def test_the_old_file_is_replaced(tmp_path, source, rows):
    (tmp_path / "out.npy").write_bytes(b"what was there before")
    transform_file(Standardization().fit(rows), source, tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").shape == rows.shape
    assert names(tmp_path) == ["in.npy", "out.npy"]


@pytest.mark.parametrize("target", ["folder", "file/x.npy"])
@pytest.mark.parametrize("how", ["write", "transform"])
def test_a_target_that_cannot_be_written_is_named(tmp_path, source, rows, target, how):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("a file")
    before = names(tmp_path)
    with pytest.raises(ModelError, match=f"cannot write .*{target}"):
        if how == "write":
            write_vectors(tmp_path / target, rows)
        else:
            transform_file(Standardization().fit(rows), source, tmp_path / target)
    assert names(tmp_path) == before
    assert (tmp_path / "file").read_text() == "a file"


def test_a_row_too_far_off_is_named_by_where_it_is_in_the_file(tmp_path, small_chunks):
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float16)
    whitening = Standardization().fit(1e-3 * rows.astype(np.float32))
    long = np.tile(1e-3 * rows, (20, 1)).astype(np.float16)
    long[1003] = 6e4
    np.save(tmp_path / "in.npy", long)
    with pytest.raises(InputError) as caught:
        transform_file(whitening, tmp_path / "in.npy", tmp_path / "out.npy")
    start, row = map(
        int, re.findall(r"with row (\d+) counted as 0: .* in row (\d+) ", str(caught.value))[0]
    )
    assert start + row == 1003
    assert "give X as float32" in str(caught.value)
    assert not (tmp_path / "out.npy").exists()
