"""The catalogue: declarations are complete and agree with each other and with the real files."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bertflow.data import CATALOG, STS_TASKS, read_nli, read_sentences, read_task
from bertflow.data.catalog import find_data_set
from bertflow.errors import InputError

every_set = pytest.mark.parametrize("name", CATALOG)
YEARS = [f"sts{year}" for year in range(12, 17)]
# Published: SemEval's task papers, GLUE's and the corpora's own.
COUNTS = {
    "sts12": {"test": 3108},
    "sts13": {"test": 1500},
    "sts14": {"test": 3750},
    "sts15": {"test": 3000},
    "sts16": {"test": 1186},
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "sick-r": {"train": 4500, "dev": 500, "test": 4927},
    "sick-e": {"train": 4500, "dev": 500, "test": 4927},
    "qnli": {"train": 104743, "dev": 5463},
    "snli": {"train": 549367, "dev": 9842, "test": 9824},
    "mnli": {"train": 392702, "dev-matched": 9815, "dev-mismatched": 9832},
}
# What the shared data hold.
HERE = [
    *((name, "test") for name in YEARS),
    *((name, split) for name in ("stsb", "sick-r", "sick-e") for split in ("train", "dev", "test")),
    ("qnli", "dev"),
    ("snli", "dev"),
    ("snli", "test"),
]


def test_the_names_are_all_there():
    assert set(CATALOG) == set(COUNTS)
    assert all(data_set.name == name for name, data_set in CATALOG.items())


def test_the_seven_tasks_are_in_the_papers_order():
    assert STS_TASKS == (*YEARS, "stsb", "sick-r")
    assert all(CATALOG[name].kind == "sts" for name in STS_TASKS)


def test_counts_are_the_published_ones():
    for name in CATALOG:
        assert dict(CATALOG[name].splits) == COUNTS[name]


def test_every_declaration_is_complete():
    for name in CATALOG:
        data_set = CATALOG[name]
        assert data_set.default_split in data_set.splits
        assert (data_set.kind == "qnli") == (name == "qnli")
        assert (data_set.kind == "nli") == (name in ("snli", "mnli", "sick-e"))
        assert len(set(data_set.columns)) == 3
        assert data_set.title and data_set.licence
        assert re.fullmatch(r"[A-Z][\w, -]+ \((19|20)\d\d\): .+\. \S.*", data_set.citation)
        assert data_set.homepage.startswith("https://")
        assert data_set.layouts


def test_scores_have_a_range_and_labels_none():
    for name in CATALOG:
        data_set = CATALOG[name]
        expected = None if data_set.kind != "sts" else (1, 5) if name == "sick-r" else (0, 5)
        assert data_set.score_range == expected


@pytest.mark.parametrize("name", YEARS)
def test_the_subsets_add_up(name):
    data_set = CATALOG[name]
    assert sum(data_set.subsets.values()) == data_set.splits["test"]
    others = {s for year in YEARS if year != name for s in CATALOG[year].subsets}
    assert next(iter(data_set.subsets)) not in others


def test_every_layout_has_every_split():
    for name in CATALOG:
        data_set = CATALOG[name]
        for layout in data_set.layouts:
            assert set(layout.files) == set(data_set.splits)
            assert len(set(layout.folders)) == len(layout.folders)
            assert set(layout.unlabelled) <= set(data_set.splits)
            if layout.rows is not None:
                assert set(layout.rows[1]) == set(data_set.splits)


def test_the_hub_is_pinned_or_there_is_a_reason():
    for name in CATALOG:
        data_set = CATALOG[name]
        assert (data_set.hub is None) != (data_set.no_hub is None)
        if data_set.hub is not None:
            assert re.fullmatch(r"[0-9a-f]{40}", data_set.hub.revision)
            assert re.fullmatch(r"[\w-]+/[\w-]+", data_set.hub.repository)
            assert set(data_set.hub.splits) == set(data_set.splits)


def test_sick_is_not_taken_from_the_hub():
    assert CATALOG["sick-r"].hub is CATALOG["sick-e"].hub is None


def test_the_catalogue_cannot_be_changed():
    with pytest.raises(TypeError):
        CATALOG["mine"] = CATALOG["stsb"]  # type: ignore[index]


def test_a_name_is_found_among_its_kind_only():
    assert find_data_set("stsb") is CATALOG["stsb"]
    assert find_data_set("snli", ("nli",)) is CATALOG["snli"]
    with pytest.raises(InputError, match="unknown task 'snli'; expected one of .*stsb") as caught:
        find_data_set("snli", ("sts", "qnli"))
    assert "mnli" not in str(caught.value)


# The real files.


@pytest.mark.parametrize(("name", "split"), HERE)
def test_the_real_files_have_the_declared_counts(shared_data, name, split):
    data_set = CATALOG[name]
    if data_set.kind == "nli":
        pairs = read_nli(name, shared_data, split)
        assert len(pairs.labels) == len(pairs) == data_set.splits[split]
        assert set(pairs.labels) == {"contradiction", "entailment", "neutral"}
        return
    pairs = read_task(name, shared_data, split)
    assert sum(grade is not None for grade in pairs.gold) == data_set.splits[split]
    assert len(pairs) == len(pairs.second) == len(pairs.gold)
    assert pairs.binary == (name == "qnli")
    assert dict(pairs.skipped) == {}


@pytest.mark.parametrize("name", YEARS)
def test_the_real_subsets_have_the_declared_counts(shared_data, name):
    pairs = read_task(name, shared_data)
    graded = Counter(s for s, g in zip(pairs.subset, pairs.gold, strict=True) if g is not None)
    assert graded == dict(CATALOG[name].subsets)
    assert list(dict.fromkeys(pairs.subset)) == list(CATALOG[name].subsets)


def test_the_real_sentences_are_both_sides_of_all_pairs(shared_data):
    for name, count in [("sts15", 2 * 8500), ("sts16", 2 * 9183), ("stsb", 17256), ("qnli", 10926)]:
        assert len(read_sentences(name, shared_data)) == count


@pytest.mark.parametrize(
    ("name", "first", "second", "gold"),
    [
        ("stsb", "A girl is styling her hair.", "A girl is brushing her hair.", 2.5),
        ("sts15", "is your health care rationed?", "is there any property involved?", 0.6),
        ("sts16", "You do not need to worry.", "You don't have to worry.", 5.0),
        (
            "sick-r",
            "There is no boy playing outdoors and there is no man smiling",
            "A group of kids is playing in a yard and an old man is standing in the background",
            3.3,
        ),
        (
            "qnli",
            "What is the first major city in the stream of the Rhine?",
            "The most important tributaries in this area are the Ill below of Strasbourg, the "
            "Neckar in Mannheim and the Main across from Mainz.",
            0.0,
        ),
    ],
)
def test_known_real_pairs_have_their_score(shared_data, name, first, second, gold):
    pairs = read_task(name, shared_data)
    rows = list(zip(pairs.first, pairs.second, pairs.gold, strict=True))
    assert (first, second, gold) in rows
