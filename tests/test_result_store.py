"""Results on disk: whole or not there; in a store with a size, the least recently used go first."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertflow import SentenceCache
from bertflow.errors import ModelError
from bertflow.io.result_store import Result, ResultStore, key_of

ARRAYS = {
    "cosines": np.array([0.1, np.nan, -1.0]),
    "empty": np.empty(0),
    "flags": np.array([True, False]),
}


def key(number: int) -> str:
    return f"{number:020x}"


def result(number: int = 1, **changes) -> Result:
    return Result(
        **{
            "kind": "score",
            "key": key(number),
            "recipe": {"job": "score"},
            "about": {"task": "stsb"},
            "result": {"x": 0.1 + 0.2, "none": None, "nested": {"list": [1, "two"]}},
            "seconds": 0.5,
            "versions": {"torch": "2"},
            "arrays": {"x": np.random.default_rng(number).normal(size=1000)},
            **changes,
        }
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """A store with one result and its arrays."""
    ResultStore(tmp_path / "records").put(result(arrays=ARRAYS))
    return tmp_path / "records"


def test_a_result_comes_back_bit_for_bit(folder):
    found = ResultStore(folder).get(key(1))
    assert found == replace(result(), time=found.time)
    assert found.result["x"] == 0.1 + 0.2
    assert found.time.endswith("+00:00")
    assert found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert list(ResultStore(folder).sizes()) == [key(1)]
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".npz"]


def test_a_recipe_has_the_same_key_in_any_order():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"a": 1, "b": 1})}) == 3


def test_a_result_that_was_cut_off_counts_as_not_there(folder):
    for suffix in ["json", "npz"]:
        for part in range(0, 100, 18):
            ResultStore(folder).put(result(arrays=ARRAYS))
            assert ResultStore(folder).get(key(1)) is not None
            path = folder / f"{key(1)}.{suffix}"
            content = path.read_bytes().rstrip(b"\n")
            path.write_bytes(content[: len(content) * part // 100])
            assert ResultStore(folder).get(key(1)) is None


def test_a_file_of_another_kind_counts_as_not_there(folder):
    for change in [
        lambda content: [],
        lambda content: {},
        lambda content: {**content, "format": 2},
        lambda content: {**content, "key": key(2)},
        lambda content: {**content, "more": 1},
        lambda content: {k: v for k, v in content.items() if k != "result"},
        lambda content: {**content, "result": [1]},
    ]:
        path = folder / f"{key(1)}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
        store = ResultStore(folder)
        assert store.get(key(1)) is None
        with pytest.raises(ModelError, match=f"holds no record {key(1)}; run the job first"):
            store.need(key(1))
        store.put(result())
        assert store.get(key(1)) is not None


def test_arrays_that_have_rotted_count_as_not_there(folder):
    path = folder / f"{key(1)}.npz"
    content = bytearray(path.read_bytes())
    place = content.index(b"cosines.npy") + len("cosines.npy") + 25
    content[place : place + 8] = bytes(8)
    path.write_bytes(content)
    assert ResultStore(folder).get(key(1)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan")])
def test_what_is_no_number_is_never_written(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        ResultStore(tmp_path).put(result(result={"x": value}))
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_there_only_after_its_arrays(tmp_path, monkeypatch):
    """Whatever stops the writing, there is no result without arrays."""
    written = []

    def failing(path, content):
        written.append(Path(path).suffix)
        raise ModelError("no space left")

    monkeypatch.setattr("bertflow.io.result_store.write_bytes", failing)
    with pytest.raises(ModelError, match="no space"):
        ResultStore(tmp_path).put(result())
    assert written == [".npz"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    store = ResultStore(tmp_path / "nothing")
    assert (store.get(key(1)), store.sizes()) == (None, {})
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot write"):
        ResultStore(tmp_path / "file" / "r").put(result())
    assert ResultStore(tmp_path / "file" / "r").get(key(1)) is None


# With a size.


def test_the_least_recently_used_go_when_there_is_no_room(tmp_path):
    store = ResultStore(tmp_path, 10**6)
    for number in range(4):
        store.put(result(number))
        for path in tmp_path.glob(f"{key(number)}.*"):
            os.utime(path, (number, number))
    one = sum(store.sizes().values()) // 4
    assert store.get(key(0)) is not None  # It is the last one now.
    ResultStore(tmp_path, int(3.5 * one)).put(result(4))
    assert set(store.sizes()) == {key(0), key(3), key(4)}
    assert sum(store.sizes().values()) <= 3.5 * one
    assert len(list(tmp_path.iterdir())) == 2 * 3


def test_what_was_read_counts_where_its_time_cannot_be_set(tmp_path, monkeypatch):
    """The file is another user's, or has been removed since."""
    store = ResultStore(tmp_path, 10**6)
    store.put(result())

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("bertflow.io.result_store.os.utime", refused)
    assert store.get(key(1)) is not None


def test_what_alone_is_too_large_is_not_kept_and_removes_nothing(tmp_path):
    ResultStore(tmp_path, 10**6).put(result(0))
    for size in (100, 0):
        ResultStore(tmp_path, size).put(result(1))
    assert list(ResultStore(tmp_path).sizes()) == [key(0)]


def test_what_others_have_in_the_folder_stays(tmp_path):
    store = ResultStore(tmp_path / "r", 10**6)
    store.put(result(0))
    (tmp_path / "r" / "notes.npz").write_text("mine")
    left = tmp_path / "r" / f".{key(3)}.npz-0123abcd.bertflow"
    left.touch()
    store.clear()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["notes.npz"]
    (tmp_path / "r" / "notes.npz").unlink()
    store.clear()
    assert not (tmp_path / "r").exists()


def test_results_are_part_of_the_cache_of_sentence_vectors(tmp_path):
    cache = SentenceCache(tmp_path / "cache", 10**6)
    assert cache.results.size == 10**6 // 20
    cache.results.put(result(0))
    assert sum(cache.results.sizes().values()) > 7000
    # They count for the size that vectors have.
    assert cache.make_room(tmp_path / "cache" / "vectors" / key(1), 10**6 - 20_000)
    assert not cache.make_room(tmp_path / "cache" / "vectors" / key(1), 10**6 - 5_000)
    assert cache.clear() == []
    assert not (tmp_path / "cache").exists()
    assert SentenceCache(tmp_path, 0).results.size == 0
