"""Folders of parquet in one process: what is written, what is done again, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertflow import (
    AllButTheTop,
    Flow,
    InputError,
    ModelError,
    Standardization,
    Whitening,
    load_calibrator,
    load_encoder,
    save_calibrator,
)
from bertflow.calibrators import AdaptiveWhitening, Moments
from bertflow.encoders import encoding
from bertflow.encoders.encoding import Encoding
from bertflow.scale import (
    BlockMoments,
    Encode,
    Transform,
    files_of,
    fit_folder,
    folder_moments,
    merged_moments,
    opened_engine,
    run,
)
from bertflow.scale.engines import _Actor
from bertflow.scale.folders import MANIFEST
from bertflow.scale.shards import Place, plan
from conftest import of_probe

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
WIDTH = 6


@pytest.fixture
def vectors() -> np.ndarray:
    random = np.random.default_rng(0)
    rows = random.normal(size=(1000, WIDTH)) @ random.normal(size=(WIDTH, WIDTH)) + 50.0
    return rows.astype(np.float32)


def table_of(vectors: np.ndarray, first: int = 0, lists: bool = False) -> Any:
    """Ids and vectors, in lists of one length or of any."""
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    if lists:
        ends = pyarrow.array(np.arange(len(vectors) + 1) * vectors.shape[1], pyarrow.int32())
        column = pyarrow.ListArray.from_arrays(ends, flat)
    else:
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    ids = np.arange(first, first + len(vectors))
    return pyarrow.table({"id": ids, "vector": column, "name": [f"row {n}" for n in ids]})


@pytest.fixture
def shards(tmp_path: Path, vectors: np.ndarray) -> Path:
    """Four files, one of them in a folder of its own, one empty, one in row groups of 50."""
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    parquet.write_table(table_of(vectors[:300]), folder / "a.parquet")
    parquet.write_table(table_of(vectors[:0]), folder / "b.parquet")
    parquet.write_table(table_of(vectors[300:600], 300), folder / "more" / "c.parquet")
    parquet.write_table(table_of(vectors[600:], 600), folder / "z.parquet", row_group_size=50)
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture
def calibrator(vectors: np.ndarray) -> Whitening:
    return Whitening(dim=3).fit(vectors)


def rows_of(folder: Path) -> dict[str, Any]:
    """All rows of an output in the order of the input, vectors as one array."""
    tables = [parquet.read_table(file) for file in files_of(folder)]
    whole = pyarrow.concat_tables(tables)
    found = {name: whole.column(name).to_pylist() for name in whole.column_names}
    found["vector"] = np.array(found["vector"], dtype=np.float64)
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Every file, what is hidden included."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Lengths:
    """An encoder whose vector of a text is its length, its number and 1; made where it is used."""

    def __init__(self, calls: Path | None = None, fails_at: int | None = None) -> None:
        self.calls, self.fails_at = calls, fails_at

    def __call__(self) -> Any:
        from sentence_transformers import SentenceTransformer

        calls, fails_at = self.calls, self.fails_at

        class Three(torch.nn.Module):
            def get_embedding_dimension(self) -> int:
                return 3

        class Model(SentenceTransformer):
            def encode(self, texts: list[str], **keywords: Any) -> np.ndarray:
                if calls is not None:
                    with calls.open("a") as file:
                        file.writelines(f"{text}\n" for text in texts if not of_probe(text))
                numbers = [0.0 if of_probe(t) else float(t.split()[1]) for t in texts]
                if fails_at in numbers:
                    raise RuntimeError("killed")
                rows = [[len(t), n, 1.0] for t, n in zip(texts, numbers, strict=True)]
                return np.array(rows, dtype=np.float32)

        return Model(modules=[Three()], device="cpu")


def write_texts(path: Path, texts: list[str | None], first: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = list(range(first, first + len(texts)))
    texts = pyarrow.array(texts, pyarrow.string())
    parquet.write_table(pyarrow.table({"id": ids, "text": texts}), path)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for n in range(3):
        write_texts(folder / f"{n}.parquet", [f"sentence {10 * n + i}" for i in range(10)], 10 * n)
    return folder


# What is written.


def test_a_folder_is_transformed_row_by_row_and_all_other_columns_stay(
    tmp_path, shards, vectors, calibrator
):
    outcome = run(Transform(calibrator), shards, tmp_path / "out")
    assert (outcome.shards, outcome.rows, outcome.done_before) == (4, 1000, 0)
    found = rows_of(tmp_path / "out")
    assert found["id"] == list(range(1000))
    assert found["name"] == [f"row {n}" for n in range(1000)]
    np.testing.assert_allclose(found["vector"], calibrator.transform(vectors), rtol=0, atol=1e-6)
    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.parquet")}
    assert names == {"a.parquet", "b.parquet", "more/c.parquet", "z.parquet"}
    kind = parquet.read_schema(tmp_path / "out" / "b.parquet").field("vector").type
    assert kind == pyarrow.list_(pyarrow.float32(), 3)


def test_nothing_is_left_beside_the_files(tmp_path, shards, calibrator):
    run(Transform(calibrator), shards, tmp_path / "out")
    hidden = [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    assert hidden == []


def test_transform_and_inverse_of_a_folder_undo_each_other(tmp_path, shards, vectors):
    calibrator = Whitening().fit(vectors)
    run(Transform(calibrator), shards, tmp_path / "out")
    run(Transform(calibrator, inverse=True), tmp_path / "out", tmp_path / "back")
    np.testing.assert_allclose(rows_of(tmp_path / "back")["vector"], vectors, rtol=0, atol=1e-3)


def test_a_large_file_is_several_shards(shards, monkeypatch):
    monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", 100)
    planned = plan(Place(shards), Transform("unused").columns)
    parts = [shard for shard in planned.shards if shard.path == "z.parquet"]
    assert [shard.name for shard in parts] == [f"z.part-{n:05d}-of-00004.parquet" for n in range(4)]
    assert [(shard.first, shard.rows) for shard in parts] == [(100 * n, 100) for n in range(4)]
    assert [(shard.start, shard.stop) for shard in parts] == [(2 * n, 2 * n + 2) for n in range(4)]


def test_parts_of_a_large_file_hold_each_row_once(
    tmp_path, shards, vectors, calibrator, monkeypatch
):
    monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", 100)
    run(Transform(calibrator), shards, tmp_path / "out")
    found = rows_of(tmp_path / "out")
    assert found["id"] == list(range(1000))
    np.testing.assert_allclose(found["vector"], calibrator.transform(vectors), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "lists"),
    [(np.float16, True), (np.float32, False), (np.float32, True), (np.float64, False)],
)
def test_vectors_keep_their_type(tmp_path, vectors, calibrator, kind, lists):
    rows = vectors.astype(kind)
    (tmp_path / "in").mkdir()
    parquet.write_table(table_of(rows, lists=lists), tmp_path / "in" / "a.parquet")
    run(Transform(calibrator), tmp_path / "in", tmp_path / "out")
    field = parquet.read_schema(tmp_path / "out" / "a.parquet").field("vector")
    assert field.type == pyarrow.list_(pyarrow.from_numpy_dtype(kind), 3)
    expected = calibrator.transform(rows).astype(np.float64)
    np.testing.assert_array_equal(rows_of(tmp_path / "out")["vector"], expected)


def test_an_encoders_folder_is_what_the_encoder_gives_and_ids_stay(tmp_path, tiny_bert):
    encoder = load_encoder(tiny_bert)
    texts = [f"the {'red ' * (n % 7)}cat" for n in range(60)]
    for n in range(3):
        write_texts(tmp_path / "in" / f"{n}.parquet", texts[20 * n : 20 * n + 20], 20 * n)
    outcome = run(Encode(str(tiny_bert), precision="float32"), tmp_path / "in", tmp_path / "out")
    found = rows_of(tmp_path / "out")
    assert outcome.rows == 60
    assert sorted(found) == ["id", "vector"]
    assert found["id"] == list(range(60))
    expected = Encoding(encoder)(texts)
    np.testing.assert_allclose(found["vector"], expected, rtol=0, atol=1e-6)


def test_text_is_kept_and_other_columns_left_out_where_that_is_asked_for(tmp_path, corpus):
    run(Encode(Lengths(), keep=["text"], vector="v"), corpus, tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / "1.parquet")
    assert table.column_names == ["text", "v"]
    assert table.column("text").to_pylist() == [f"sentence {n}" for n in range(10, 20)]


def test_float16_takes_half_the_room(tmp_path, corpus):
    run(Encode(Lengths(), numbers="float16"), corpus, tmp_path / "out")
    kind = parquet.read_schema(tmp_path / "out" / "0.parquet").field("vector").type
    assert kind == pyarrow.list_(pyarrow.float16(), 3)


def test_equal_sentences_are_encoded_once_a_batch(tmp_path):
    texts = [f"sentence {n % 4}" for n in range(20)]
    write_texts(tmp_path / "in" / "a.parquet", texts)
    calls = tmp_path / "calls"
    run(Encode(Lengths(calls)), tmp_path / "in", tmp_path / "out")
    assert sorted(calls.read_text().splitlines()) == [f"sentence {n}" for n in range(4)]
    assert rows_of(tmp_path / "out")["vector"][:, 1].tolist() == [n % 4 for n in range(20)]


def test_a_place_with_an_address_is_read_like_a_folder(tmp_path, shards, vectors, calibrator):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(f"{shards}/", "/bucket/in", recursive=True)
    try:
        outcome = run(Transform(calibrator), "memory://bucket/in", tmp_path / "out")
        again = run(Transform(calibrator), "memory://bucket/in", tmp_path / "out")
    finally:
        memory.rm("/bucket", recursive=True)
    assert (outcome.rows, again.done_before) == (1000, 4)
    found = rows_of(tmp_path / "out")
    np.testing.assert_allclose(found["vector"], calibrator.transform(vectors), rtol=0, atol=1e-6)


# A second run.


def test_a_second_run_does_nothing_and_changes_no_byte(tmp_path, corpus):
    calls, out = tmp_path / "calls", tmp_path / "out"
    run(Encode(Lengths(calls)), corpus, out)
    before, count = content(out), len(calls.read_text())
    outcome = run(Encode(Lengths(calls)), corpus, out)
    assert outcome.done_before == outcome.shards == 3
    assert content(out) == before
    assert len(calls.read_text()) == count


def removed(corpus: Path, out: Path) -> None:
    (out / "1.parquet").unlink()


def cut_short(corpus: Path, out: Path) -> None:
    os.truncate(out / "1.parquet", 100)


def written_by_others(corpus: Path, out: Path) -> None:
    table = parquet.read_table(out / "1.parquet").replace_schema_metadata(None)
    parquet.write_table(table, out / "1.parquet")


def written_by_another_run(corpus: Path, out: Path) -> None:
    run(Encode(Lengths(), numbers="float16"), corpus, out.with_name("other"))
    shutil.copy(out.with_name("other") / "1.parquet", out / "1.parquet")


def renamed(corpus: Path, out: Path) -> None:
    shutil.copy(out / "2.parquet", out / "1.parquet")


def changed(corpus: Path, out: Path) -> None:
    # Of the same size, so that only its time and its bytes tell.
    size = (corpus / "1.parquet").stat().st_size
    write_texts(corpus / "1.parquet", [f"sentence {n}" for n in range(50, 60)], 10)
    assert (corpus / "1.parquet").stat().st_size == size


@pytest.mark.parametrize(
    "harm", [removed, cut_short, written_by_others, written_by_another_run, renamed, changed]
)
def test_a_second_run_does_only_what_is_missing_or_changed(tmp_path, corpus, harm):
    calls, out = tmp_path / "calls", tmp_path / "out"
    run(Encode(Lengths(calls)), corpus, out)
    harm(corpus, out)
    calls.unlink()
    outcome = run(Encode(Lengths(calls)), corpus, out)
    assert (outcome.shards, outcome.done_before, outcome.rows) == (3, 2, 30)
    first = 50 if harm is changed else 10
    assert len(calls.read_text().splitlines()) == 10
    found = rows_of(out)
    assert found["id"] == list(range(30))
    assert found["vector"][10:20, 1].tolist() == list(range(first, first + 10))


def test_a_new_file_is_added_and_others_are_not_done_again(tmp_path, corpus):
    calls, out = tmp_path / "calls", tmp_path / "out"
    run(Encode(Lengths(calls)), corpus, out)
    os.utime(out / "2.parquet")
    write_texts(corpus / "00.parquet", ["sentence 77"], 77)
    calls.unlink()
    outcome = run(Encode(Lengths(calls)), corpus, out)
    assert (outcome.shards, outcome.done_before, outcome.rows) == (4, 3, 31)
    assert calls.read_text() == "sentence 77\n"


def test_another_split_of_a_file_leaves_no_row_twice(tmp_path, shards, calibrator, monkeypatch):
    out = tmp_path / "out"
    for rows in (100, 1000):
        monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", rows)
        run(Transform(calibrator), shards, out)
    assert rows_of(out)["id"] == list(range(1000))
    assert sum(parquet.read_metadata(path).num_rows for path in out.rglob("*.parquet")) == 1000


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, corpus):
    class Stopped(Exception):
        pass

    def stopping(done: int, total: int) -> None:
        if done == 20:
            raise Stopped

    calls = tmp_path / "calls"
    with pytest.raises(Stopped):
        run(Encode(Lengths(calls)), corpus, tmp_path / "out", progress=stopping)
    outcome = run(Encode(Lengths(calls)), corpus, tmp_path / "out")
    assert outcome.done_before == 2
    assert len(calls.read_text().splitlines()) == 30
    run(Encode(Lengths()), corpus, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_shard_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "PART_SECONDS", 0.0)
    write_texts(tmp_path / "corpus/one.parquet", [f"sentence {n}" for n in range(10, 99)])
    calls, killed = tmp_path / "calls", Lengths(tmp_path / "calls", fails_at=60)
    with pytest.raises(ModelError, match=r"one\.parquet: .*killed"):
        run(Encode(killed, batch_size=10), tmp_path / "corpus", tmp_path / "out")
    run(Encode(Lengths(calls), batch_size=10), tmp_path / "corpus", tmp_path / "out")
    assert len(calls.read_text().splitlines()) < 89 + 20
    run(Encode(Lengths(), batch_size=10), tmp_path / "corpus", tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_stopped_run_is_no_finished_folder(tmp_path, corpus):
    write_texts(corpus / "1.parquet", ["sentence 1", None], 10)
    with pytest.raises(InputError):
        run(Encode(Lengths()), corpus, tmp_path / "out")
    with pytest.raises(ModelError, match="out is not finished; run it again"):
        files_of(tmp_path / "out")


def test_a_missing_file_is_named(tmp_path, corpus):
    run(Encode(Lengths()), corpus, tmp_path / "out")
    (tmp_path / "out" / "1.parquet").unlink()
    with pytest.raises(ModelError, match=r"1\.parquet is missing; run it again"):
        files_of(tmp_path / "out")


class OtherProcesses:
    """An engine whose workers, jobs and results travel as Ray's do."""

    def describe(self, worker: Any) -> dict[str, Any]:
        return travelled(worker).describe()

    def run(self, job: Any, shards: Any) -> Iterator[Any]:
        actors = [_Actor(travelled(job)), _Actor(travelled(job))]
        for number, shard in enumerate(reversed(shards)):
            yield travelled(actors[number % 2].do(travelled(shard)))


def travelled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def test_shards_of_other_processes_are_the_same_bytes(tmp_path, corpus, shards, calibrator):
    for worker, source in [(Encode(Lengths()), corpus), (Transform(calibrator), shards)]:
        here, there = tmp_path / f"here-{source.name}", tmp_path / f"there-{source.name}"
        run(worker, source, here)
        run(worker, source, there, engine=OtherProcesses())
        assert content(there) == content(here)


def test_what_fails_in_another_process_is_named(tmp_path, corpus):
    write_texts(corpus / "1.parquet", ["unnumbered"])
    with pytest.raises(ModelError, match=r"1\.parquet: .*IndexError"):
        run(Encode(Lengths()), corpus, tmp_path / "out", engine=OtherProcesses())
    write_texts(corpus / "1.parquet", [None])
    with pytest.raises(InputError, match=r"1\.parquet, row 0 has no text"):
        run(Encode(Lengths()), corpus, tmp_path / "out", engine=OtherProcesses())


def test_a_worker_with_another_model_refuses_to_work(tmp_path, corpus):
    class Mixed(OtherProcesses):
        def run(self, job: Any, shards: Any) -> Iterator[Any]:
            other = Encode(Lengths(), numbers="float16")
            return super().run(replace(job, worker=other), shards)

    with pytest.raises(ModelError, match="a worker's model is not that of the others"):
        run(Encode(Lengths()), corpus, tmp_path / "out", engine=Mixed())
    assert not list((tmp_path / "out").glob("*.parquet"))


# What is refused, or left out where that is asked for.


def unreadable(folder: Path) -> str:
    (folder / "1.parquet").write_bytes(b"PAR1 and nothing")
    return "1.parquet is not a whole parquet file"


def empty_file(folder: Path) -> str:
    (folder / "1.parquet").write_bytes(b"")
    return "1.parquet is not a whole parquet file"


def damaged_pages(folder: Path) -> str:
    whole = bytearray((folder / "1.parquet").read_bytes())
    whole[4:60] = b"\xff" * 56
    (folder / "1.parquet").write_bytes(bytes(whole))
    return "1.parquet"


def no_column(folder: Path) -> str:
    table = parquet.read_table(folder / "1.parquet").rename_columns(["id", "words"])
    parquet.write_table(table, folder / "1.parquet")
    return "1.parquet has no column 'text'; it has 'id', 'words'"


def numbers_for_text(folder: Path) -> str:
    parquet.write_table(pyarrow.table({"id": [1], "text": [2]}), folder / "1.parquet")
    return "1.parquet: column 'text' is not text but int64"


def mixed_ids(folder: Path) -> str:
    table = pyarrow.table({"id": ["a"], "text": ["sentence 1"]})
    parquet.write_table(table, folder / "1.parquet")
    return "1.parquet: column 'id' is string, but int64 in"


def a_null(folder: Path) -> str:
    write_texts(folder / "1.parquet", ["sentence 1", None])
    return "1.parquet, row 1 has no text"


HARMS = [unreadable, empty_file, damaged_pages, no_column, numbers_for_text, mixed_ids, a_null]


def matrix(table: Any) -> np.ndarray:
    return np.array(table["vector"].to_pylist())


def test_an_empty_batch_gives_an_empty_one():
    nothing = pyarrow.table({"id": pyarrow.nulls(0), "text": pyarrow.nulls(0)})
    fitted = Whitening(dim=2).fit(np.random.default_rng(0).normal(size=(50, 3)))
    for worker, width in [
        (Encode(Lengths(), column="text"), 3),
        (Transform(fitted, vector="text"), 2),
        (Transform(fitted, vector="text", inverse=True), 3),
    ]:
        found = worker(nothing)
        assert found.num_rows == 0
        assert found.schema[-1].type.list_size == width


def test_missing_text_in_a_batch_is_named_by_its_row_or_left_out():
    batch = pyarrow.table({"text": ["sentence 1", None, "sentence 3"]})
    with pytest.raises(InputError, match=r"row 1 has no text"):
        Encode(Lengths(), column="text")(batch)
    assert Encode(Lengths(), column="text", blank="skip")(batch).num_rows == 2


def test_batches_of_a_calibrator_that_gives_data_frames_are_tables_still(vectors):
    fitted = Whitening().fit(vectors)
    expected = fitted.transform(vectors)
    found = Transform(fitted.set_output(transform="pandas"))(table_of(vectors))
    np.testing.assert_array_equal(matrix(found), expected)


@pytest.mark.parametrize("harm", HARMS)
def test_a_shard_that_cannot_be_used_is_named_or_left_out_and_counted(tmp_path, corpus, harm):
    said, out = harm(corpus), tmp_path / "out"
    worker = Encode(Lengths(), column="text")
    with pytest.raises(InputError) as caught:
        run(worker, corpus, tmp_path / "refused")
    assert said in str(caught.value)
    assert str(corpus) in str(caught.value)
    outcome = run(worker, corpus, out, skip_unreadable=True)
    assert list(outcome.skipped) == ["1.parquet"]
    assert said in outcome.skipped["1.parquet"]
    assert (outcome.shards, outcome.rows) == (2, 20)
    assert not (out / "1.parquet").exists()
    assert said in json.loads((out / MANIFEST).read_text())["skipped"]["1.parquet"]
    # Mended, it is done by the same call, and only it.
    write_texts(corpus / "1.parquet", [f"sentence {n}" for n in range(10, 20)], 10)
    again = run(worker, corpus, out, skip_unreadable=True)
    assert (again.shards, again.done_before, again.rows) == (3, 2, 30)
    assert again.skipped == {}
    assert rows_of(out)["id"] == list(range(30))


def test_what_was_made_of_a_shard_that_is_now_damaged_goes(tmp_path, corpus):
    run(Encode(Lengths()), corpus, tmp_path / "out")
    unreadable(corpus)
    run(Encode(Lengths()), corpus, tmp_path / "out", skip_unreadable=True)
    assert not (tmp_path / "out" / "1.parquet").exists()


def test_nothing_is_written_for_a_corpus_that_is_refused(tmp_path, corpus):
    no_column(corpus)
    with pytest.raises(InputError):
        run(Encode(Lengths(), column="text"), corpus, tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


def test_rows_without_text_are_left_out_and_counted_where_asked(tmp_path, corpus):
    write_texts(corpus / "1.parquet", ["sentence 1", None, "  ", "sentence 2"], 10)
    write_texts(corpus / "2.parquet", [None, None], 20)
    outcome = run(Encode(Lengths(), blank="skip"), corpus, tmp_path / "out")
    assert (outcome.rows, outcome.left_out, outcome.shards) == (12, 4, 3)
    assert rows_of(tmp_path / "out")["id"] == [*range(10), 10, 13]


def test_what_is_done_stays_when_rows_without_text_are_left_out_the_second_time(tmp_path, corpus):
    write_texts(corpus / "2.parquet", ["sentence 20", None], 20)
    with pytest.raises(InputError, match=r"row 1 has no text.*--skip-blank"):
        run(Encode(Lengths()), corpus, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    assert len(before) == 2
    outcome = run(Encode(Lengths(), blank="skip"), corpus, tmp_path / "out")
    assert (outcome.shards, outcome.done_before, outcome.left_out) == (3, 2, 1)
    after = {path.name: path.stat().st_mtime_ns for path in files_of(tmp_path / "out")}
    assert before.items() <= after.items()
    # Whoever asks for all rows is not given a folder that lacks some.
    with pytest.raises(ModelError, match="another blank"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_columns_without_a_value_have_the_others_type(tmp_path, corpus):
    # As pandas writes a partition that is empty, or in which a column is.
    write_texts(corpus / "3.parquet", ["sentence 30"], 30)
    empty = pyarrow.table({"id": pyarrow.nulls(0), "text": pyarrow.nulls(0)})
    parquet.write_table(empty, corpus / "0a.parquet")
    table = pyarrow.table({"id": pyarrow.nulls(1), "text": ["sentence 9"]})
    parquet.write_table(table, corpus / "00.parquet")
    outcome = run(Encode(Lengths(), column="text"), corpus, tmp_path / "out")
    assert (outcome.shards, outcome.rows) == (6, 32)
    assert rows_of(tmp_path / "out")["id"] == [*range(10), None, *range(10, 31)]
    kinds = {parquet.read_schema(path).field("id").type for path in files_of(tmp_path / "out")}
    assert kinds == {pyarrow.int64()}


def test_text_of_any_arrow_type_is_text_in_one_folder(tmp_path):
    kinds = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]
    kinds.append(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    (tmp_path / "in").mkdir()
    for number, kind in enumerate(kinds):
        texts = pyarrow.array([f"sentence {number}"]).cast(kind)
        table = pyarrow.table({"text": texts, "source": pyarrow.array(["s"]).cast(kind)})
        parquet.write_table(table, tmp_path / f"in/{number}.parquet")
    run(Encode(Lengths(), column="text"), tmp_path / "in", tmp_path / "out")
    found = rows_of(tmp_path / "out")
    assert [vector[1] for vector in found["vector"]] == [0.0, 1.0, 2.0, 3.0]
    assert found["source"] == ["s"] * 4


def test_two_text_columns_ask_for_a_name(tmp_path):
    (tmp_path / "in").mkdir()
    parquet.write_table(pyarrow.table({"a": ["x 1"], "b": ["y 2"]}), tmp_path / "in/a.parquet")
    with pytest.raises(InputError, match="2 text columns .'a', 'b'.; name one"):
        run(Encode(Lengths()), tmp_path / "in", tmp_path / "out")
    run(Encode(Lengths(), column="b"), tmp_path / "in", tmp_path / "out")


def test_a_vector_that_is_not_finite_is_named_by_its_row(tmp_path, corpus):
    write_texts(corpus / "1.parquet", ["sentence 1", "sentence nan"])
    with pytest.raises(InputError, match=r"1\.parquet, row 1: the encoder's vector is not finite"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("nan", r"z\.parquet, with row \d+ counted as 0: X contains NaN in row \d"),
        ("null", r"z\.parquet, row 77: there is no vector"),
        ("hole", r"z\.parquet, row 77: its vector lacks a number"),
        ("width", r"z\.parquet, row 77: its vector has 2 numbers"),
    ],
)
def test_a_vector_that_cannot_be_used_is_named_by_its_row(
    tmp_path, shards, vectors, calibrator, harm, said
):
    rows: list[Any] = vectors[600:].tolist()
    if harm == "nan":
        rows[77][2] = float("nan")
    elif harm == "null":
        rows[77] = None
    elif harm == "hole":
        rows[77][2] = None
    else:
        rows[77] = [1.0, 2.0]
    for path in [p for p in shards.rglob("*.parquet") if p.name != "z.parquet"]:
        path.unlink()
    column = pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))
    parquet.write_table(pyarrow.table({"vector": column}), shards / "z.parquet", row_group_size=60)
    for worker in (Transform(calibrator), BlockMoments()):
        with pytest.raises(InputError, match=said):
            run(worker, shards, tmp_path / type(worker).__name__)


def test_another_width_than_the_calibrators_is_refused_with_the_shards_name(tmp_path, calibrator):
    (tmp_path / "in").mkdir()
    parquet.write_table(table_of(np.ones((3, 2), np.float32)), tmp_path / "in" / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: X has 2 features"):
        run(Transform(calibrator), tmp_path / "in", tmp_path / "out")


def test_two_runs_on_one_output_folder_are_refused_by_name(tmp_path, corpus):
    out = tmp_path / "out"
    caught: list[str] = []

    def second(done: int, total: int) -> None:
        if done == 10:
            with pytest.raises(ModelError) as error:
                run(Encode(Lengths()), corpus, out)
            caught.append(str(error.value))

    run(Encode(Lengths()), corpus, out, progress=second)
    assert len(caught) == 1
    assert f"cannot write {out}: another process is writing it" in caught[0]
    assert rows_of(out)["id"] == list(range(30))


def test_a_folder_that_was_made_another_way_is_refused(tmp_path, corpus):
    run(Encode(Lengths()), corpus, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(ModelError, match="another numbers .numbers 'float32', now 'float16'"):
        run(Encode(Lengths(), numbers="float16"), corpus, tmp_path / "out")
    assert content(tmp_path / "out") == before


def test_a_folder_of_others_is_refused(tmp_path, corpus):
    write_texts(tmp_path / "out" / "mine.parquet", ["mine 1"])
    with pytest.raises(ModelError, match=r"mine\.parquet is in no _manifest\.json"):
        run(Encode(Lengths()), corpus, tmp_path / "out")
    assert content(tmp_path / "out").keys() == {"mine.parquet"}


def test_a_file_of_others_in_our_folder_is_refused(tmp_path, corpus):
    run(Encode(Lengths()), corpus, tmp_path / "out")
    write_texts(tmp_path / "out" / "mine.parquet", ["mine 1"])
    with pytest.raises(ModelError, match=r"mine\.parquet is in no _manifest"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_rows_of_an_input_that_is_gone_are_not_left_silently(tmp_path, corpus):
    run(Encode(Lengths()), corpus, tmp_path / "out")
    (corpus / "1.parquet").rename(corpus / "4.parquet")
    with pytest.raises(ModelError, match=r"1\.parquet was made of 1\.parquet, which is gone"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "said"),
    [("nowhere", "nowhere does not exist"), ("bare", "is no .parquet file and no folder with any")],
)
def test_no_shards_are_an_error(tmp_path, source, said):
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match=said):
        run(Encode(Lengths()), tmp_path / source, tmp_path / "out")


def test_an_output_elsewhere_than_on_a_disk_is_refused(tmp_path, corpus):
    with pytest.raises(InputError, match="s3://bucket/out is an address; give a folder on a disk"):
        run(Encode(Lengths()), corpus, "s3://bucket/out")


def test_an_output_inside_the_input_is_refused(tmp_path, corpus):
    with pytest.raises(InputError, match="overlaps with what the run reads"):
        run(Encode(Lengths()), corpus, corpus / "out")
    assert not (corpus / "out").exists()


def test_files_that_are_no_parquet_are_refused_or_skipped_by_name(tmp_path, corpus):
    (corpus / "2.parquet").rename(corpus / "2.PARQUET")
    (corpus / "more.csv").write_text("text\nA man\n")
    with pytest.raises(InputError, match=r"more\.csv is no \.parquet file"):
        run(Encode(Lengths()), corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    outcome = run(Encode(Lengths()), corpus, tmp_path / "out", skip_unreadable=True)
    assert list(outcome.skipped) == ["more.csv"]
    assert outcome.rows == 30


def test_a_shard_that_changes_meanwhile_is_refused(tmp_path, corpus):
    def changing(done: int, total: int) -> None:
        if done == 10:
            os.utime(corpus / "2.parquet")

    with pytest.raises(InputError, match=r"2\.parquet was changed meanwhile; run it again"):
        run(Encode(Lengths()), corpus, tmp_path / "out", progress=changing)
    run(Encode(Lengths()), corpus, tmp_path / "out")


def test_a_manifest_of_others_is_refused(tmp_path, corpus):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_text("hello\n")
    with pytest.raises(ModelError, match="_manifest.json is no JSON"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_a_model_that_fails_names_the_shard(tmp_path, corpus):
    write_texts(corpus / "1.parquet", ["unnumbered"])
    with pytest.raises(ModelError, match=r"1\.parquet: .*IndexError"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_unknown_engines_and_arguments_are_refused():
    with pytest.raises(InputError, match=r"engine must be one of \('local', 'ray'\), got 'spark'"):
        with opened_engine("spark"):
            pass
    with pytest.raises(InputError, match="engine local has no address and no workers"):
        with opened_engine("local", workers=2):
            pass
    with pytest.raises(InputError, match=r"numbers must be one of \('float32', 'float16'\)"):
        Encode("model", numbers="int8")


# Moments.


@pytest.mark.parametrize(
    ("covariance", "shard_rows"), [(False, 100_000), (True, 70), (True, 100_000)]
)
def test_merged_moments_are_those_of_one_pass(
    tmp_path, shards, vectors, covariance, shard_rows, monkeypatch
):
    monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", shard_rows)
    found, outcome = folder_moments(shards, tmp_path / "moments", covariance=covariance)
    once = Moments(WIDTH, covariance=covariance)
    once.update(torch.from_numpy(vectors))
    assert found.count == 1000
    assert outcome.shards >= 4
    torch.testing.assert_close(found.mean, once.mean, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.second, once.second, rtol=1e-10, atol=1e-10 * 1000)


CALIBRATORS = [
    AdaptiveWhitening(),
    Whitening(),
    Whitening(dim=2, power=0.75, shrinkage=0.1),
    Standardization(),
    AllButTheTop(n_components=2),
    AllButTheTop(n_components=1, standardize=True),
]


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=str)
def test_a_calibrator_from_merged_moments_is_the_one_from_rows(
    tmp_path, shards, vectors, calibrator
):
    from sklearn.base import clone

    whole = clone(calibrator).fit(vectors)
    fit_folder(calibrator, shards, tmp_path / "moments")
    np.testing.assert_allclose(
        calibrator.transform(vectors), whole.transform(vectors), rtol=0, atol=1e-4
    )
    for name, learned in whole._learned().items():
        torch.testing.assert_close(calibrator._learned()[name], learned, rtol=1e-8, atol=1e-8)


def test_near_duplicates_are_found_in_a_folder_too(tmp_path, vectors, monkeypatch):
    monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", 300)
    near = vectors + 0.01 * np.random.default_rng(0).normal(size=vectors.shape)
    rows = np.stack([vectors, near], axis=1).reshape(-1, vectors.shape[1])
    (tmp_path / "in").mkdir()
    parquet.write_table(table_of(rows), tmp_path / "in/x.parquet", row_group_size=300)
    found = AdaptiveWhitening()
    fit_folder(found, tmp_path / "in", tmp_path / "moments")
    assert found.near_duplicates_ > 0.9


def test_moments_of_blocks_can_be_merged_by_anyone(vectors):
    take = BlockMoments(covariance=False)
    blocks = [take(table_of(part)) for part in (vectors[:10], vectors[10:])]
    rows = blocks[0].to_pylist()
    once = Moments(WIDTH, covariance=False)
    once.update(torch.from_numpy(vectors))
    for found in (merged_moments(blocks), merged_moments([*rows, blocks[1]])):
        assert found.count == 1000
        torch.testing.assert_close(found.second, once.second, rtol=1e-10, atol=1e-7)


def test_moments_of_one_dimension_keep_their_covariance(vectors):
    merged = merged_moments([BlockMoments()(table_of(vectors[:, :1]))])
    np.testing.assert_allclose(merged.covariance(), [[vectors[:, 0].var()]], rtol=1e-5)


def test_moments_of_nothing_and_of_other_widths_are_refused(vectors):
    take = BlockMoments()
    with pytest.raises(InputError, match="holds no vector"):
        merged_moments([])
    with pytest.raises(InputError, match="vectors of one width"):
        merged_moments([take(table_of(vectors)), take(table_of(vectors[:, :3]))])


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=str)
def test_fit_moments_refuses_what_fit_refuses(calibrator):
    few = Moments(3)
    few.update(torch.ones(1, 3))
    with pytest.raises(InputError, match="needs moments of at least 2 rows"):
        calibrator.fit_moments(few)
    few.update(torch.ones(4, 3))
    with pytest.raises(InputError, match="all 5 rows are equal"):
        calibrator.fit_moments(few)


def test_fit_moments_wants_the_covariance_where_it_is_needed():
    moments = Moments(2, covariance=False)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    with pytest.raises(InputError, match="build Moments with covariance=True"):
        Whitening().fit_moments(moments)
    Standardization().fit_moments(moments)


def test_a_flow_is_refused_with_a_remedy(tmp_path, shards):
    with pytest.raises(InputError, match="fit it on a sample"):
        fit_folder(Flow(), shards, tmp_path / "moments")


# In anyone's own map_batches, here without one.


def test_encode_takes_tables(tiny_bert):
    texts = ["the cat plays", "two red birds", "the cat plays"]
    expected = Encoding(load_encoder(tiny_bert))(texts)
    encode = Encode(str(tiny_bert), column="text", precision="float32")
    table = encode(pyarrow.table({"id": [0, 1, 2], "text": texts}))
    assert table["id"].to_pylist() == [0, 1, 2]
    np.testing.assert_allclose(matrix(table), expected, rtol=0, atol=1e-6)
    assert encode(table.slice(0, 0).select(["id"]).append_column("text", [[]])).num_rows == 0


def test_transform_takes_tables(vectors, calibrator):
    table = Transform(calibrator)(table_of(vectors))
    assert table.column_names == ["id", "vector", "name"]
    np.testing.assert_array_equal(matrix(table).astype(np.float32), calibrator.transform(vectors))


def test_a_batch_of_another_kind_is_refused(calibrator, vectors):
    with pytest.raises(InputError, match="a batch is dict, not a pyarrow.Table; give batch_format"):
        Transform(calibrator)({"vector": vectors})
    with pytest.raises(
        InputError, match="no column 'vector'; vectors are in 'x': name one by --vector"
    ):
        Transform(calibrator)(table_of(vectors).rename_columns(["id", "x", "name"]))


def test_a_worker_travels_without_its_model(tiny_bert):
    encode = Encode(str(tiny_bert))
    encode(pyarrow.table({"text": ["the cat"]}))
    assert len(pickle.dumps(encode)) < 2000


# The command line.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    yield home


def test_from_text_to_calibrated_vectors_in_folders(here, done, tiny_bert, tiny_sentences):
    for n in range(3):
        write_texts(here / "in" / f"{n}.parquet", tiny_sentences[100 * n : 100 * n + 100], 100 * n)
    encode = ["encode", tiny_bert, "--corpus", "in", "--output", "raw", "--engine", "local"]
    encode += ["--precision", "float32"]
    assert "raw has 300 vectors in 3 shards\n" in done(*encode)
    assert "300 vectors in 3 shards, 3 of them there before" in done(*encode)
    out = done("fit", "--vectors", "raw", "--calibrator", "whitening", "--output", "w")
    assert "fitted on 300 vectors of 16 dimensions in 3 shards" in out
    assert sorted(path.name for path in here.iterdir()) == ["in", "raw", "w"]
    done("transform", "w", "--vectors", "raw", "--output", "calibrated")
    raw = Encoding(load_encoder(tiny_bert))(tiny_sentences)
    expected = load_calibrator("w").transform(raw)
    np.testing.assert_allclose(rows_of(here / "calibrated")["vector"], expected, atol=2e-4)
    assert load_calibrator("w").provenance_ == {"vectors": "raw", "rows": 300, "limit": None}
    whole = Whitening().fit(raw)
    np.testing.assert_allclose(whole.scale_, load_calibrator("w").scale_, rtol=1e-4)


def test_a_pattern_is_no_folder_of_shards(here, refused, tiny_bert):
    write_texts(Path("in/0.parquet"), ["sentence 1"], 0)
    command = ["encode", tiny_bert, "--engine", "local", "--output", "v"]
    assert "not a pattern" in refused(*command, "--corpus", "in/*.parquet")
    assert not Path("v").exists()


def test_skipped_shards_are_counted_and_listed(here, done, refused, vectors):
    (here / "in").mkdir()
    parquet.write_table(table_of(vectors), here / "in" / "a.parquet")
    (here / "in" / "b.parquet").write_bytes(b"nothing")
    save_calibrator(Standardization().fit(vectors), here / "s")
    command = ["transform", "s", "--vectors", "in", "--output", "out"]
    assert "in/b.parquet is not a whole parquet file" in refused(*command)
    out = done(*command, "--skip-unreadable")
    assert "1 file skipped, which the same command tries again:\n  b.parquet: in/b.parquet" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "encode m --corpus in --output out --engine spark",
            "engine must be one of ('local', 'ray')",
        ),
        ("encode m --corpus in --output out --keep id", "--keep goes with a folder"),
        ("encode m --corpus a --corpus b --output out --engine local", "takes one --corpus"),
        ("transform m --vectors x.npy --output o --workers 2", "--workers goes with a folder"),
        ("fit --vectors in --output o --limit 3 --calibrator whitening", "--limit does not go"),
        ("fit --vectors in --output o --calibrator flow", "Flow is trained on rows"),
        ("fit --encoder e --corpus c --output o --engine ray", "--engine goes with --vectors"),
    ],
)
def test_options_that_do_not_go_together_are_refused(here, refused, arguments, said):
    (here / "in").mkdir()
    assert said in refused(*arguments.split())


def test_ray_is_asked_for_by_the_line_that_installs_it(here, refused, monkeypatch, vectors):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    save_calibrator(Standardization().fit(vectors), here / "s")
    said = refused("transform", "s", "--vectors", "in", "--output", "out", "--engine", "ray")
    assert said == "engine ray needs ray: pip install 'bertflow[ray]'"


@pytest.fixture
def made(tmp_path, corpus):
    """A folder that a run has written."""
    run(Encode(Lengths()), corpus, tmp_path / "made")
    return tmp_path / "made"


def test_what_a_run_has_not_finished_is_no_input(tmp_path, corpus, made):
    def stopping(done: int, total: int) -> None:
        if done == 10:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Encode(Lengths()), corpus, tmp_path / "out", progress=stopping)
    with pytest.raises(ModelError, match="out is not finished"):
        folder_moments(tmp_path / "out", tmp_path / "moments")
    (made / "1.parquet").unlink()
    with pytest.raises(ModelError, match=r"1\.parquet is missing"):
        folder_moments(made, tmp_path / "moments")


def test_files_of_others_in_a_runs_folder_are_no_input(tmp_path, made):
    shutil.copy(made / "1.parquet", made / "copy.parquet")
    with pytest.raises(InputError, match=r"copy\.parquet is not in _manifest\.json"):
        folder_moments(made, tmp_path / "moments")


def test_links_that_lead_nowhere_or_round_are_named(tmp_path, corpus):
    (corpus / "l.parquet").symlink_to("nothing")
    with pytest.raises(InputError, match=r"l\.parquet is neither a file nor a link to one"):
        run(Encode(Lengths()), corpus, tmp_path / "out")
    (corpus / "l.parquet").unlink()
    (corpus / "ring").symlink_to(corpus)
    with pytest.raises(InputError, match="are one file, by a link; its rows would be read twice"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_an_output_folder_that_holds_files_of_others_is_refused(tmp_path, corpus):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"mine\.txt is in no _manifest\.json"):
        run(Encode(Lengths()), corpus, tmp_path / "out")


def test_copies_of_a_folder_go_on_where_it_was(tmp_path: Path, corpus: Path) -> None:
    run(Encode(Lengths()), corpus, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert run(Encode(Lengths()), corpus, tmp_path / "copy").done_before == 3
