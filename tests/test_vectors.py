"""Vectors in .npy files: chunks make no difference, and a failure leaves the old file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.calibrators import Standardization, Whitening
from bertflow.errors import InputError, ModelError
from bertflow.io import vectors
from bertflow.io.vectors import read_vectors, transform_file

ROWS, WIDTH, CHUNK = 50, 6, 7


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(vectors, "CHUNK_ROWS", CHUNK)


@pytest.fixture
def rows(rng) -> np.ndarray:
    return rng.normal(3, 2, size=(ROWS, WIDTH)) @ np.diag([3, 2, 1, 1, 0.5, 0.5])


@pytest.fixture
def source(tmp_path, rows) -> Path:
    np.save(tmp_path / "in.npy", rows)
    return tmp_path / "in.npy"


@pytest.fixture
def whitening(rows) -> Whitening:
    return Whitening(dim=4).fit(rows)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def unchanged(rows: np.ndarray) -> np.ndarray:
    return rows


def test_the_bytes_are_those_of_numpy(tmp_path, rng):
    for dtype in [np.float64, np.float32, np.float16, ">f4"]:
        for order in ["C", "F"]:
            rows = np.asarray(rng.normal(size=(ROWS, WIDTH)), order=order).astype(dtype)
            np.save(tmp_path / "in.npy", rows)
            assert_array_equal(read_vectors(str(tmp_path / "in.npy")), rows)
            np.save(tmp_path / "expected.npy", np.ascontiguousarray(rows))
            transform_file(unchanged, tmp_path / "in.npy", tmp_path / "out.npy")
            assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


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
    elif kind == "packed":
        path.write_bytes(b"\x1f\x8b\x08\0")
    elif kind == "objects":
        np.save(path, np.array([[1, None], ["a", 2]], dtype=object), allow_pickle=True)
    elif kind != "missing":
        arrays = {
            "1-d": np.ones(3),
            "3-d": np.ones((2, 2, 2)),
            "complex": np.ones((3, 2), dtype=complex),
            "strings": np.array([["a", "b"]]),
        }
        np.save(path, arrays[kind])


BAD = {
    "missing": "does not exist",
    "folder": "is no file",
    "npz": "is a zip archive",
    "two": r"176 bytes more after its array of shape \(3, 2\)",
    "parquet": "is a .parquet file; name it so",
    "pointer": "is a git-lfs pointer",
    "text": "not a whole .npy file",
    "empty": "not a whole .npy file",
    "cut": "not a whole .npy file of numbers",
    "packed": "packed with gzip; unpack it",
    "objects": "not a whole .npy file of numbers",
    "1-d": r"shape \(3,\)",
    "3-d": r"shape \(2, 2, 2\)",
    "complex": "complex128",
    "strings": "<U1",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_matrix_of_numbers_is_refused_by_name(tmp_path, kind):
    save_bad(tmp_path / "bad.npy", kind)
    before = names(tmp_path)
    with pytest.raises(InputError, match=rf"bad\.npy.*{BAD[kind]}"):
        transform_file(unchanged, tmp_path / "bad.npy", tmp_path / "out.npy")
    assert names(tmp_path) == before


def test_a_file_in_chunks_is_the_matrix_at_once(tmp_path, source, rows, whitening):
    seen = []
    shape = transform_file(
        whitening.transform, source, tmp_path / "z.npy", progress=lambda *at: seen.append(at)
    )
    written, expected = np.load(tmp_path / "z.npy"), whitening.transform(rows)
    assert shape == written.shape == (ROWS, 4)
    assert written.dtype == np.float64
    assert_allclose(written, expected, rtol=0, atol=1e-12)
    assert seen == [(min(n, ROWS), ROWS) for n in range(CHUNK, ROWS + CHUNK, CHUNK)]
    transform_file(whitening.inverse_transform, tmp_path / "z.npy", tmp_path / "x.npy")
    assert_allclose(np.load(tmp_path / "x.npy"), whitening.inverse_transform(expected), atol=1e-10)
    assert names(tmp_path) == ["in.npy", "x.npy", "z.npy"]


def test_the_type_is_that_of_the_source_and_integers_become_floats(tmp_path, rows, whitening):
    for dtype in [np.float32, np.float16, np.int64, np.int8, np.uint16]:
        given = np.abs(rows).astype(dtype)
        np.save(tmp_path / "in.npy", given)
        transform_file(whitening.transform, tmp_path / "in.npy", tmp_path / "out.npy")
        written = np.load(tmp_path / "out.npy")
        floating = np.issubdtype(dtype, np.floating)
        assert written.dtype == (dtype if floating else np.float64)
        expected = whitening.transform(given if floating else given.astype(np.float64))
        assert_allclose(written, expected, rtol=0, atol=1e-2 if dtype == np.float16 else 1e-4)


def test_a_folder_that_is_not_there_is_made_and_an_old_file_is_replaced(tmp_path, source, rows):
    target = tmp_path / "new" / "er" / "out.npy"
    for _ in range(2):
        transform_file(unchanged, source, target)
        assert np.load(target).shape == rows.shape
        assert names(target.parent) == ["out.npy"]
        target.write_bytes(b"what was there before")


def test_a_file_is_not_replaced_by_its_own_transform(source):
    before = source.read_bytes()
    for how in ["name", "link", "hard link"]:
        target = source if how == "name" else source.with_name(f"{how}.npy")
        if how == "link":
            target.symlink_to(source)
        elif how == "hard link":
            target.hardlink_to(source)
        with pytest.raises(InputError, match=r"\.npy overlaps with what the transform reads"):
            transform_file(unchanged, source, target)
        assert source.read_bytes() == before


def test_another_width_and_no_rows_are_refused_and_nothing_written(tmp_path, whitening):
    for apply in [whitening.transform, whitening.inverse_transform]:
        for shape, said in [((5, WIDTH + 1), f"{WIDTH + 1} "), ((0, WIDTH), "holds no vector")]:
            np.save(tmp_path / "in.npy", np.ones(shape))
            with pytest.raises(InputError, match=said):
                transform_file(apply, tmp_path / "in.npy", tmp_path / "out.npy")
            assert names(tmp_path) == ["in.npy"]


def test_a_row_that_is_not_finite_is_named_by_its_number_in_the_file(tmp_path, rows, whitening):
    for value, said in [(np.nan, "NaN"), (-np.inf, "inf")]:
        rows[33, 1] = rows[40, 0] = value
        np.save(tmp_path / "in.npy", rows)
        with pytest.raises(InputError, match=rf"{said}.*row 33\b"):
            transform_file(whitening.transform, tmp_path / "in.npy", tmp_path / "out.npy")
        assert names(tmp_path) == ["in.npy"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (RuntimeError("broken"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), ModelError),
    ],
    ids=["error", "Ctrl-C", "full disk"],
)
def test_a_failure_half_way_leaves_the_old_file_and_no_other(tmp_path, source, failure, raised):
    calls = []

    def failing(rows):
        calls.append(len(rows))
        if len(calls) == 3:
            raise failure
        return rows

    (tmp_path / "out.npy").write_bytes(b"what was there before")
    with pytest.raises(raised):
        transform_file(failing, source, tmp_path / "out.npy")
    assert calls == [CHUNK] * 3
    assert (tmp_path / "out.npy").read_bytes() == b"what was there before"
    assert names(tmp_path) == ["in.npy", "out.npy"]


@pytest.mark.parametrize("target", ["folder", "file/x.npy"])
def test_a_target_that_cannot_be_written_is_named(tmp_path, source, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("a file")
    before = names(tmp_path)
    with pytest.raises(ModelError, match=f"cannot write .*{target}"):
        transform_file(unchanged, source, tmp_path / target)
    assert names(tmp_path) == before
    assert (tmp_path / "file").read_text() == "a file"


def test_a_row_too_far_off_is_named_by_where_it_is_in_the_file(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float16)
    scaling = Standardization().fit(1e-3 * rows.astype(np.float32))
    long = np.tile(1e-3 * rows, (20, 1)).astype(np.float16)
    long[1003] = 6e4
    np.save(tmp_path / "in.npy", long)
    with pytest.raises(InputError) as caught:
        transform_file(scaling.transform, tmp_path / "in.npy", tmp_path / "out.npy")
    start, row = map(
        int, re.findall(r"with row (\d+) counted as 0: .* in row (\d+) ", str(caught.value))[0]
    )
    assert start + row == 1003
    assert "give X in a wider type" in str(caught.value)
    assert not (tmp_path / "out.npy").exists()
