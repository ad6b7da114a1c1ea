"""Data from the hub: the real client on a stand-in repository; no network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from bertflow.data import (
    CATALOG,
    DATA_VARIABLE,
    catalog,
    read_nli,
    read_sentences,
    read_task,
    sources,
)
from bertflow.errors import InputError
from bertflow.io.reading import hub_answers
from hub_stand_in import hub_running

TEXT = datasets.Value("string")


@pytest.fixture(autouse=True)
def answering(monkeypatch, tmp_path_factory):
    """A hub that answers, and a cache that is not the user's."""
    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Write a data set as a repository has it and let the catalogue point there."""

    def write(name: str, label: object, columns: dict[str, list], split: str | None = None) -> Path:
        source = CATALOG[name].hub
        assert source is not None
        folder = tmp_path / "repository"
        parts = source.splits if split is None else {split: source.splits[split]}
        config = source.config or "default"
        features = datasets.Features(
            dict(zip(source.columns, (TEXT, TEXT, label), strict=True))
            | {"idx": datasets.Value("int32")}
        )
        rows = {**dict(zip(source.columns, columns.values(), strict=True))}
        rows["idx"] = list(range(len(rows[source.columns[0]])))
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
        for part in parts.values():
            path = folder / config / f"{part}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
            card += f"  - split: {part}\n    path: {config}/{path.name}\n"
        (folder / "README.md").write_text(card + "---\n")
        moved = replace(CATALOG[name], hub=replace(source, repository=str(folder)))
        monkeypatch.setattr(catalog, "CATALOG", {**CATALOG, name: moved})
        return folder

    return write


def pairs(labels: list) -> dict[str, list]:
    count = range(len(labels))
    return {"a": [f"a{n}" for n in count], "b": [f"b{n}" for n in count], "label": labels}


SCORE = datasets.Value("float64")
QNLI = datasets.ClassLabel(names=["entailment", "not_entailment"])
# Of the orders that are about, neither the alphabet's nor NLI_LABELS'.
THREE = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
HELD = [name for name, data_set in CATALOG.items() if data_set.hub is not None]
SCORED = [name for name in HELD if CATALOG[name].kind == "sts"]


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_read(repository, name):
    for kind in ["float32", "float64"]:
        folder = repository(name, datasets.Value(kind), pairs([5.0, 0.0, 2.5]))
        read = read_task(name)
        assert (list(read.first), list(read.second)) == (["a0", "a1", "a2"], ["b0", "b1", "b2"])
        assert list(read.gold) == [5.0, 0.0, 2.5]
        assert read.source == f"{folder}@{CATALOG[name].hub.revision}"
        assert (read.split, read.binary, dict(read.skipped)) == ("test", False, {})
        # The copies there have no subsets, so there is nothing to take their mean of.
        assert list(read.subset) == []


def test_every_split_goes_by_its_name_there(repository):
    for split in CATALOG["stsb"].splits:
        repository("stsb", SCORE, pairs([1.0]), split)
        assert len(read_task("stsb", split=split)) == 1
        for other in set(CATALOG["stsb"].splits) - {split}:
            with pytest.raises(InputError, match="hub: Unknown split"):
                read_task("stsb", split=other)


def test_qnli_labels_go_by_name(repository):
    repository("qnli", QNLI, pairs([0, 1, 0]))
    read = read_task("qnli")
    assert (list(read.gold), read.binary, read.split) == ([1.0, 0.0, 1.0], True, "dev")


def test_qnli_labels_in_another_order_go_by_name(repository):
    repository("qnli", datasets.ClassLabel(names=QNLI.names[::-1]), pairs([0, 1, 0]))
    assert list(read_task("qnli").gold) == [0.0, 1.0, 0.0]


def test_qnli_rows_without_a_label_are_skipped_and_counted(repository):
    repository("qnli", QNLI, pairs([0, -1, None]))
    read = read_task("qnli")
    assert (list(read.gold), dict(read.skipped)) == ([1.0], {"no label": 2})


@pytest.mark.parametrize("names", [THREE.names, THREE.names[::-1]])
@pytest.mark.parametrize("name", ["snli", "mnli"])
def test_nli_labels_go_by_name_and_minus_one_is_none(repository, name, names):
    repository(name, datasets.ClassLabel(names=names), pairs([0, 1, 2, -1]))
    read = read_nli(name)
    assert (list(read.labels), read.split) == (names, "train")
    assert (list(read.first), dict(read.skipped)) == (["a0", "a1", "a2"], {"no gold label": 1})


def test_labels_that_are_only_numbers_are_refused(repository):
    repository("snli", datasets.Value("int64"), pairs([0, 1]))
    with pytest.raises(InputError, match="row 1: unknown label '0'"):
        read_nli("snli")


def test_an_unknown_label_name_is_refused_with_its_row(repository):
    repository("snli", datasets.ClassLabel(names=["neutral", "maybe"]), pairs([0, 1]))
    with pytest.raises(InputError, match=r"repository@\w{40}, row 2: unknown label 'maybe'"):
        read_nli("snli")


@pytest.mark.parametrize("bad", [5.5, -1.0, float("inf"), float("nan")])
def test_scores_are_checked_like_those_of_files(repository, bad):
    repository("stsb", SCORE, pairs([1.0, bad]))
    with pytest.raises(InputError, match=r"row 2: score .* is not (a number|between 0 and 5)"):
        read_task("stsb")


def test_a_missing_score_is_no_score(repository):
    repository("stsb", SCORE, pairs([1.0, None]))
    assert list(read_task("stsb").gold) == [1.0, None]


@pytest.mark.parametrize("blank", ["", " ", None])
def test_a_blank_sentence_is_named_by_row(repository, blank):
    repository("stsb", SCORE, {"a": ["x", blank], "b": ["y", "z"], "score": [1.0, 2.0]})
    with pytest.raises(InputError, match="row 2: a sentence is blank"):
        read_task("stsb")


def test_text_that_is_no_text_is_named_by_row(repository):
    folder = repository("stsb", SCORE, pairs([1.0]), "test")
    table = pyarrow.table({"sentence1": [3], "sentence2": ["b"], "score": [1.0]})
    pyarrow.parquet.write_table(table, next(folder.rglob("test-*.parquet")))
    with pytest.raises(InputError, match="row 1: 3 is not text"):
        read_task("stsb")


def test_a_column_that_is_not_there_is_named(repository):
    folder = repository("stsb", SCORE, pairs([1.0]), "test")
    table = pyarrow.table({"sentence1": ["a"], "text": ["b"], "score": [1.0]})
    pyarrow.parquet.write_table(table, next(folder.rglob("test-*.parquet")))
    with pytest.raises(InputError, match="has no column 'sentence2'; it has 'sentence1', 'text', "):
        read_task("stsb")


def test_the_sentences_are_those_of_all_splits(repository):
    repository("qnli", QNLI, pairs([0, -1]))
    assert read_sentences("qnli") == ["a0", "b0", "a1", "b1"] * 2


@pytest.mark.parametrize("name", HELD)
def test_the_pinned_revision_is_asked_for(monkeypatch, name):
    """What the client is given, of the catalogue as it is."""
    asked = []

    def load(*arguments, **keywords):
        asked.append((arguments, keywords))
        raise ConnectionError("far away\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load)
    data_set = CATALOG[name]
    read = read_nli if data_set.kind == "nli" else read_task
    for split in data_set.splits:
        with pytest.raises(InputError, match=r"hub: far away;") as caught:
            read(name, split=split)
        assert "\n" not in str(caught.value)
    assert asked == [
        (
            (data_set.hub.repository, data_set.hub.config),
            {"split": there, "revision": data_set.hub.revision, "streaming": False},
        )
        for there in data_set.hub.splits.values()
    ]


# When it is asked.


@pytest.fixture
def unasked(monkeypatch):
    def load(*arguments, **keywords):
        pytest.fail("the hub was asked")

    monkeypatch.setattr(datasets, "load_dataset", load)


def qnli_file(folder: Path) -> Path:
    (folder / "dev.tsv").write_text("index\tquestion\tsentence\tlabel\n0\tq\ts\tentailment\n")
    return folder


def test_files_go_before_the_hub(tmp_path, unasked):
    qnli_file(tmp_path)
    assert list(read_task("qnli", tmp_path).first) == ["q"]
    # A split that is there is enough, so that the network does not change what a fit is made of.
    assert read_sentences("qnli", tmp_path) == ["q", "s"]


def test_a_folder_without_the_files_leaves_it_to_the_hub(tmp_path, repository):
    repository("qnli", QNLI, pairs([0, 1]))
    (tmp_path / "empty").mkdir()
    assert list(read_task("qnli", tmp_path / "empty").first) == ["a0", "a1"]


def test_a_malformed_file_does_not_leave_it_to_the_hub(tmp_path, unasked):
    (qnli_file(tmp_path) / "dev.tsv").write_text("index\tquestion\tsentence\tlabel\n0\tq\ts\tx\n")
    with pytest.raises(InputError, match="unknown label 'x'"):
        read_task("qnli", tmp_path)


def test_a_hub_that_does_not_answer_is_not_asked(monkeypatch, tmp_path, unasked):
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    with pytest.raises(InputError, match=r"tried .*dev\.tsv.*; hub: no connection; give") as caught:
        read_task("qnli", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_gives_the_line_that_installs_it(monkeypatch, unasked):
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"hub:.* needs datasets: pip install 'bertflow\[hub\]'"):
        read_task("stsb")


def test_sick_says_why_it_is_not_asked_for(unasked):
    with pytest.raises(InputError, match="hub: not asked, because its copies of SICK have all"):
        read_task("sick-r")


# Whether it answers.


def test_a_hub_answers_unless_it_is_gone_or_offline(monkeypatch):
    with hub_running() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        assert hub_answers()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert not hub_answers()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not hub_answers()
