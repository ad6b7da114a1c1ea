"""Where sentences may lie: packed files, folders, patterns, object stores, tables of `datasets`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest

from bertflow.data import checked_corpus, read_corpus, stream_corpus
from bertflow.data import sources as module
from bertflow.data.sources import HubTable, located
from bertflow.errors import InputError, MissingDependencyError
from test_corpus import SENTENCES, TABLES, content

zstd = pytest.importorskip("backports.zstd", reason="backports.zstd is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

PACKING: dict[str, Any] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}


@pytest.fixture
def store() -> str:
    """A folder of an object store, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    return "memory://bucket/corpus"


def put(store: str, name: str, data: bytes) -> str:
    with fsspec.open(f"{store}/{name}", "wb") as file:
        file.write(data)
    return f"{store}/{name}"


# Packed.


@pytest.mark.parametrize(
    ("kind", "packing"),
    [*((".txt", packing) for packing in PACKING), *((kind, ".xz") for kind in TABLES)],
)
def test_every_packing_of_every_kind_gives_the_same_sentences(tmp_path, kind, packing):
    path = tmp_path / f"corpus{kind}{packing}"
    path.write_bytes(PACKING[packing](content(kind, {"text": SENTENCES})))
    assert read_corpus([path]) == SENTENCES


@pytest.mark.parametrize(
    ("kind", "packing"), [*((".txt", packing) for packing in PACKING), (".parquet", ".gz")]
)
@pytest.mark.parametrize("damage", ["breaks off", "is none"])
def test_a_packed_file_that_is_damaged_is_refused_by_name(tmp_path, kind, packing, damage):
    path = tmp_path / f"corpus{kind}{packing}"
    whole = PACKING[packing](content(kind, {"text": [f"sentence {n * n}" for n in range(20_000)]}))
    path.write_bytes(whole[: len(whole) // 2] if damage == "breaks off" else b"A cat sleeps.\n" * 9)
    with pytest.raises(InputError, match=rf"^\S*corpus\{kind}\{packing} is not a whole \w+ file"):
        read_corpus([path])


@pytest.mark.parametrize("packing", PACKING)
def test_all_members_of_a_packed_file_are_read_and_nothing_else_may_follow(tmp_path, packing):
    path = tmp_path / f"corpus.txt{packing}"
    members = PACKING[packing](b"A cat\n") + PACKING[packing](b"A dog\n")
    path.write_bytes(members)
    assert read_corpus([path]) == ["A cat", "A dog"]
    path.write_bytes(members + b"A cow\n")
    with pytest.raises(InputError, match=rf"corpus\.txt\{packing} is not a whole \w+ file"):
        read_corpus([path])


def test_a_package_for_zst_that_is_missing_is_named(tmp_path, monkeypatch):
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "corpus.txt.zst"
    path.write_bytes(zstd.compress(b"A cat\n"))
    with pytest.raises(MissingDependencyError, match=r"corpus\.txt\.zst needs .*'bertflow\[rem"):
        read_corpus([path])


# Folders and patterns.


def tree(folder: Path) -> Path:
    for name, text in {
        "b.txt": "second",
        "a/1.txt": "first",
        "a/2.txt.gz": "one more",
        "c.csv": "text\nthird",
        "_README.md": "no",
        "_SUCCESS": "",
        ".hidden.txt": "no",
        "_temporary/d.txt": "no",
        ".git/e.txt": "no",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = f"{text}\n".encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def test_a_folder_is_all_its_files_by_name(tmp_path):
    folder = tree(tmp_path / "corpus")
    assert read_corpus([folder]) == ["first", "one more", "second", "third"]
    assert read_corpus([str(folder)]) == read_corpus([folder])
    assert list(checked_corpus([folder])) == read_corpus([folder])


def test_a_folder_below_a_hidden_one_is_read(tmp_path):
    assert len(read_corpus([tree(tmp_path / ".cache" / "corpus")])) == 4


def test_a_folder_without_such_a_file_is_refused(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "folder.txt" / "a.doc").write_text("A cat\n")
    with pytest.raises(InputError, match=r"folder\.txt/a\.doc is of unknown kind '\.doc'"):
        located(tmp_path / "folder.txt")
    (tmp_path / "folder.txt" / "a.doc").unlink()
    with pytest.raises(InputError, match=r"folder\.txt/\*\* matches no file"):
        located(tmp_path / "folder.txt")


def test_what_a_folder_holds_beside_and_is_not_read_is_an_error(tmp_path):
    folder = tree(tmp_path / "corpus")
    (tmp_path / "elsewhere").mkdir()
    (folder / "a/README.md").write_text("no\n")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "broken.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"what is no file: 'broken\.txt', 'linked'; give a"):
        located(folder)
    (folder / "linked").unlink()
    (folder / "broken.txt").unlink()
    with pytest.raises(InputError, match=r"README\.md is of unknown kind .*; give .* a pattern of"):
        located(folder)


def test_of_a_folder_the_format_is_that_of_all_its_files(tmp_path):
    for name in ("part-00001", "part-00000", "more.doc", "_SUCCESS"):
        (tmp_path / name).write_text(f"{name}\n")
    assert read_corpus([tmp_path], format="txt") == ["more.doc", "part-00000", "part-00001"]
    assert read_corpus([f"{tmp_path}/part-*"], format="txt") == ["part-00000", "part-00001"]


def test_a_pattern_that_matches_a_folder_is_refused(tmp_path):
    tree(tmp_path)
    with pytest.raises(InputError, match=r"also matches what is no file: '_temporary', 'a'; "):
        located(f"{tmp_path}/*")
    assert len(read_corpus([f"{tmp_path}/[ab]*/**/*"])) == 2


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["second"]),
        ("a/*", ["first", "one more"]),
        ("**/*.txt*", ["first", "one more", "no", "second"]),
        (".*.txt", ["no"]),
        ("a/[1].txt", ["first"]),
        ("a/?.txt", ["first"]),
    ],
)
def test_a_pattern_is_the_files_that_match(tmp_path, monkeypatch, pattern, expected):
    tree(tmp_path)
    assert sorted(read_corpus([str(tmp_path / pattern)])) == sorted(expected)
    monkeypatch.chdir(tmp_path)
    assert sorted(read_corpus([pattern])) == sorted(expected)


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    (tmp_path / "what[1].txt").write_text("A cat\n")
    (tmp_path / "what1.txt").write_text("A dog\n")
    assert read_corpus([tmp_path / "what[1].txt"]) == ["A cat"]


def test_a_pattern_that_matches_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\*\.txt matches no file"):
        located(str(tmp_path / "none*.txt"))


def test_a_pattern_that_matches_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("no\n")
    with pytest.raises(InputError, match=r"README\.md is of unknown kind"):
        located(str(tmp_path / "*.md"))


# Object stores.


@pytest.mark.parametrize(
    ("kind", "packing"),
    [(".txt", ""), (".csv", ".gz"), (".tsv", ""), (".jsonl", ".zst"), (".parquet", ".gz")],
)
def test_a_file_of_a_store_is_read_like_any(store, kind, packing):
    data = content(kind, {"text": SENTENCES})
    name = put(store, f"part{kind}{packing}", PACKING[packing](data) if packing else data)
    assert read_corpus([name]) == SENTENCES
    assert list(checked_corpus([name])) == SENTENCES


def test_a_folder_and_a_pattern_of_a_store(store):
    for name, text in {"b.txt": "second", "a/1.txt": "first", "_x/c.txt": "no"}.items():
        put(store, name, f"{text}\n".encode())
    assert read_corpus([store]) == ["first", "second"]
    assert read_corpus([f"{store}/*.txt"]) == ["second"]
    assert read_corpus([f"{store}/a/1.txt", f"{store}/b.txt"]) == ["first", "second"]
    put(store, "a/README.md", b"no\n")
    with pytest.raises(InputError, match=r"corpus/a/README\.md is of unknown kind"):
        read_corpus([store])


@pytest.mark.parametrize("kind", TABLES)
def test_what_is_wrong_in_a_store_is_said_by_its_name(store, kind):
    name = put(store, f"part{kind}", content(kind, {"a": ["x"], "b": ["y"]}))
    with pytest.raises(InputError, match=rf"^memory://bucket/corpus/part\{kind}.*text columns"):
        read_corpus([name])
    with pytest.raises(InputError, match=r"^memory://bucket/corpus/none\.txt does not exist"):
        located(f"{store}/none.txt")


def test_a_store_that_nobody_knows_is_refused():
    with pytest.raises(InputError, match=r"^nosuch://bucket/a\.txt cannot be read: .*nosuch"):
        located("nosuch://bucket/a.txt")


def test_a_store_that_does_not_answer_is_one_line(store, monkeypatch):
    name = put(store, "part.txt", b"A cat\n")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("access denied\nand a page of details")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "_open", refuse)
    with pytest.raises(InputError, match=r"^memory://bucket/corpus/part\.txt cannot .* denied$"):
        read_corpus([name])


def test_a_store_without_the_package_gives_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"'bertflow\[remote\]'"):
        located("memory://bucket/a.txt")


# Tables of `datasets`.


@pytest.fixture
def table() -> Any:
    ident = list(range(len(SENTENCES)))
    return datasets.Dataset.from_dict({"id": ident, "text": SENTENCES, "other": SENTENCES[::-1]})


def test_a_saved_table_is_read(tmp_path, table):
    table.save_to_disk(tmp_path / "saved")
    assert read_corpus([tmp_path / "saved"], column="text") == SENTENCES
    assert read_corpus([tmp_path / "saved"], column="other", limit=2) == SENTENCES[:-3:-1]
    table.remove_columns("other").save_to_disk(tmp_path / "single")
    assert read_corpus([tmp_path / "single"]) == SENTENCES


def test_what_is_wrong_with_a_saved_table_is_said(tmp_path, table):
    table.save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"saved has 2 text columns \('text', 'other'\)"):
        read_corpus([tmp_path / "saved"])
    with pytest.raises(
        InputError, match=r"saved has no column 'none'; it has 'id', 'text', 'other'"
    ):
        read_corpus([tmp_path / "saved"], column="none")
    with pytest.raises(InputError, match=r"saved: column 'id' is not text but int64"):
        read_corpus([tmp_path / "saved"], column="id")
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"no")
    with pytest.raises(InputError, match=r"^\S*saved cannot be read: "):
        read_corpus([tmp_path / "saved"], column="text")
    datasets.DatasetDict(train=table).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"both holds several splits; give .*both/train"):
        read_corpus([tmp_path / "both"])
    assert read_corpus([tmp_path / "both" / "train"], column="text") == SENTENCES


def test_of_a_saved_tables_folder_nothing_is_left_unread(tmp_path, table):
    saved = tmp_path / "saved"
    table.select([]).save_to_disk(saved)
    with pytest.raises(InputError, match=r"saved holds a table without a row"):
        read_corpus(saved, column="text")
    table.save_to_disk(saved)
    datasets.load_from_disk(str(saved)).map(lambda row: {"new": 1})
    assert read_corpus(saved, column="text") == SENTENCES  # The cache of `map` is no table.
    for name in ("more.txt", "data-00001-of-00003.arrow"):
        (saved / name).write_text("A cat\n")
        with pytest.raises(InputError, match=rf"saved also holds what is not read: '{name}'"):
            read_corpus(saved, column="text")
        (saved / name).unlink()


def test_blank_and_missing_rows_of_a_table_are_skipped(tmp_path):
    rows = ["A cat", None, "  ", "A dog"]
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(tmp_path / "saved")
    assert read_corpus([tmp_path / "saved"]) == ["A cat", "A dog"]


def test_a_second_text_column_that_begins_late_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    rows = {"id": ["a", "b", "c"], "text": [None, None, "A cat"]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"saved has 2 text columns \('id', 'text'\)"):
        read_corpus([tmp_path / "saved"])
    assert read_corpus([tmp_path / "saved"], column="text") == ["A cat"]


@pytest.mark.parametrize("late", [{"id": "c", "text": "A cat"}, {"id": 3, "text": "A cat"}])
def test_a_stream_of_unknown_types_whose_text_is_elsewhere_later_is_an_error(monkeypatch, late):
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    rows = [{"id": "a", "text": 1}, {"id": "b", "text": 2}, late]
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    monkeypatch.setattr(module, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stream)
    with pytest.raises(InputError, match=r"train has 2 text columns \('id', 'text'\)"):
        read_corpus(["hub:owner/name:train"])


def test_every_text_type_of_arrow_is_text_in_a_table(tmp_path):
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        table = pyarrow.table({"text": pyarrow.array(["A cat"], kind), "n": [1]})
        datasets.Dataset(table).save_to_disk(tmp_path / str(kind))
        assert read_corpus([tmp_path / str(kind)]) == ["A cat"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hub:owner/name:train", HubTable("owner/name", None, "train", None)),
        ("hub:name@v1:plain:test", HubTable("name", "plain", "test", "v1")),
    ],
)
def test_names_of_the_hub(text, expected):
    assert located(text) == [expected]
    assert str(expected) == text


@pytest.mark.parametrize("text", ["hub:", "hub:name", "hub::train", "hub:a:b:c:d", "hub:name:"])
def test_a_name_without_a_split_is_refused(text):
    with pytest.raises(InputError, match="names no split; write hub:OWNER/NAME:SPLIT or"):
        located(text)


def test_a_data_set_of_the_hub_is_streamed(table, monkeypatch):
    asked: list[Any] = []

    def load(*arguments: Any, **named: Any) -> Any:
        asked.append((arguments, named))
        return table.to_iterable_dataset()

    monkeypatch.setattr(module, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    stream = stream_corpus(["hub:owner/name@v1:plain:train"], column="text")
    assert next(stream) == SENTENCES[0]
    expected = {"split": "train", "revision": "v1", "streaming": True}
    assert asked == [(("owner/name", "plain"), expected)]
    assert list(checked_corpus(["hub:owner/name:train"], column="text")) == SENTENCES
    assert len(asked) == 2  # It is not read twice.


def test_a_hub_that_does_not_answer_or_has_no_such_data_is_one_line(monkeypatch):
    monkeypatch.setattr(module, "hub_answers", lambda: False)
    with pytest.raises(InputError, match=r"^hub:owner/name:train cannot be read: no connection"):
        read_corpus(["hub:owner/name:train"])

    def load(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("no data set\nof that name")

    monkeypatch.setattr(module, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match=r"^hub:owner/name:train cannot be read: no data set$"):
        read_corpus(["hub:owner/name:train"])


def test_datasets_that_is_missing_is_named(tmp_path, table, monkeypatch):
    table.save_to_disk(tmp_path / "saved")
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"'bertflow\[hub\]'"):
        read_corpus([tmp_path / "saved"])
