"""Results on disk: whole or not there, within a size, the least recently used removed first."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bertflow import SentenceCache
from bertflow.encoders.result_cache import ResultCache
from bertflow.errors import ModelError


def key(number: int) -> str:
    return f"{number:032x}"


def arrays(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full(1000, number / 7), "empty": np.empty(0), "flags": np.array([True, False])}


def test_what_is_kept_comes_back_bit_for_bit(tmp_path):
    results = ResultCache(tmp_path / "new", 10**6)
    facts = {"value": 0.1 + 0.2, "none": None, "nested": {"list": [1, "two"]}}
    results.put(key(1), facts, arrays(1))
    found, given = ResultCache(tmp_path / "new", 0).get(key(1))
    assert found == facts
    assert given.keys() == arrays(1).keys()
    for name, one in arrays(1).items():
        assert one.dtype == given[name].dtype
        np.testing.assert_array_equal(one, given[name])
    assert results.get(key(2)) is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"{key(1)}.npz"]


def test_the_least_recently_used_go_when_there_is_no_room(tmp_path):
    results = ResultCache(tmp_path, 10**6)
    for number in range(4):
        results.put(key(number), {}, arrays(number))
        os.utime(tmp_path / f"{key(number)}.npz", (number, number))
    one = results.bytes() // 4
    assert results.get(key(0)) is not None  # It is the last one now.
    ResultCache(tmp_path, int(3.5 * one)).put(key(4), {}, arrays(4))
    assert {path.stem for path in results.files()} == {key(0), key(3), key(4)}
    assert results.bytes() <= 3.5 * one


def test_what_was_read_counts_where_its_time_cannot_be_set(tmp_path, monkeypatch):
    """The file is another user's, or has been removed since."""
    results = ResultCache(tmp_path, 10**6)
    results.put(key(0), {"value": 1}, arrays(0))

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("bertflow.encoders.result_cache.os.utime", refused)
    found = results.get(key(0))
    assert found is not None and found[0] == {"value": 1}


def test_what_alone_is_too_large_is_not_kept_and_removes_nothing(tmp_path):
    results = ResultCache(tmp_path, 10**6)
    results.put(key(0), {}, arrays(0))
    ResultCache(tmp_path, 100).put(key(1), {}, arrays(1))
    ResultCache(tmp_path, 0).put(key(1), {}, {})
    assert [path.stem for path in results.files()] == [key(0)]


def test_what_others_have_in_the_folder_stays(tmp_path):
    results = ResultCache(tmp_path / "r", 10**6)
    results.put(key(0), {}, arrays(0))
    (tmp_path / "r" / "notes.npz").write_text("mine")
    left = tmp_path / "r" / f".{key(3)}.npz-0123abcd.bertflow"
    left.touch()
    results.clear()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["notes.npz"]
    (tmp_path / "r" / "notes.npz").unlink()
    results.clear()
    assert not (tmp_path / "r").exists()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot write"):
        ResultCache(tmp_path / "file" / "r", 10**6).put(key(0), {}, {})
    assert ResultCache(tmp_path / "file" / "r", 10**6).get(key(0)) is None


def test_results_are_part_of_the_cache_of_sentence_vectors(tmp_path, monkeypatch):
    cache = SentenceCache(tmp_path / "cache", 10**6)
    assert cache.results.size == 10**6 // 20
    cache.results.put(key(0), {}, arrays(0))
    assert cache.results.bytes() > 8000
    # They count for the size that vectors have.
    assert cache.make_room(tmp_path / "cache" / "vectors" / key(1), 10**6 - 20_000)
    assert not cache.make_room(tmp_path / "cache" / "vectors" / key(1), 10**6 - 5_000)
    assert cache.clear() == []
    assert not (tmp_path / "cache").exists()
    assert SentenceCache(tmp_path, 0).results.size == 0
