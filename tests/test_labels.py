"""Classes and clusters of users' own texts: what is read, and that measures are scikit-learn's."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from collections import Counter

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from sklearn import metrics

from bertflow.data import LabelledTexts, read_labelled
from bertflow.errors import InputError
from bertflow.evaluation import LabelsJob, labels, read_labels
from bertflow.evaluation.jobs import estimates

ROWS = [("Café 😀", "a"), ('"Who ran', "b"), ("it's", "a"), ("no, never", "b"), ("x\u2028y", "a")]


def written(path, rows=ROWS, names=("text", "label")):
    """A table of the kind that the path's ending says, packed if it says so."""
    kind = path.suffixes[0]
    if kind == ".parquet":
        sink = io.BytesIO()
        columns = zip(names, map(list, zip(*rows, strict=True)), strict=True)
        pyarrow.parquet.write_table(pyarrow.table(dict(columns)), sink)
        data = sink.getvalue()
    elif kind == ".jsonl":
        data = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        data = data.encode()
    else:
        mark = {".tsv": "\t", ".csv": ","}[kind]
        quote = (lambda cell: f'"{cell.replace(chr(34), 2 * chr(34))}"') if mark == "," else str
        lines = [names, *(tuple(quote(str(cell)) for cell in row) for row in rows)]
        data = "".join(mark.join(line) + "\r\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def job(given, source="mine.csv"):
    return LabelsJob(LabelledTexts([f"text {n}" for n in range(len(given))], given, source))


def values(found):
    once = np.ones((1, found.items))
    return {name: float(measure(once)[0]) for name, measure in found.measures.items()}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz"])
def test_every_kind_of_file_gives_the_same_texts(tmp_path, ending):
    path = written(tmp_path / f"mine{ending}")
    read = read_labelled(path)
    assert list(zip(read.texts, read.labels, strict=True)) == ROWS
    assert (read.source, dict(read.skipped)) == (str(path), {})


def test_columns_are_found_by_name_in_any_order_among_others(tmp_path):
    rows = [(label, "id", text) for text, label in ROWS]
    for names in [("Intent", "id", "Utterance"), ("category", "note", " sentence ")]:
        for ending in (".csv", ".jsonl", ".parquet"):
            read = read_labelled(written(tmp_path / f"mine{ending}", rows, names))
            assert list(read.texts) == [text for text, _ in ROWS]


def test_columns_may_be_named_or_numbered(tmp_path, monkeypatch):
    named = written(tmp_path / "mine.tsv", names=("said", "means"))
    assert len(read_labelled(named, columns=("said", "means"))) == 5
    lines = named.read_bytes().split(b"\r\n", 1)[1]
    (tmp_path / "bare.tsv").write_bytes(lines)
    assert read_labelled(tmp_path / "bare.tsv", columns=("1", "2")).texts[0] == "Café 😀"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert len(read_labelled("-", columns=("1", "2"), format="tsv")) == 5


@pytest.mark.parametrize(
    ("names", "columns", "said"),
    [
        (("left", "right"), None, "name them by columns, such as --columns left,right"),
        (("text", "sentence"), None, "cannot tell which columns are text, label"),
        (("text", "label"), ("text", "text"), "columns must be 2 different ones"),
        (("text", "label"), "text", "columns must be 2 different ones"),
        (("text", "label"), ("text", "topic"), "no column 'topic'"),
        (("text", "text"), ("text", "label"), "2 columns 'text'"),
    ],
)
def test_columns_that_cannot_be_told_are_refused(tmp_path, names, columns, said):
    with pytest.raises(InputError, match=said):
        read_labelled(written(tmp_path / "mine.csv", names=names), columns=columns)


def test_what_cannot_be_judged_is_skipped_and_counted(tmp_path):
    bad = [(" ", "a"), ("new", " "), ("Café 😀", "a"), ("it's", "b"), ("alone", "c")]
    read = read_labelled(written(tmp_path / "mine.csv", [*bad, *ROWS]))
    assert sorted(read.texts) == sorted(text for text, _ in ROWS)
    assert read.labels[read.texts.index("it's")] == "b"  # The label that came first.
    expected = {"blank text": 1, "blank label": 1, "repeated text": 2, "only text of its class": 1}
    assert dict(read.skipped) == expected


def test_labels_are_words_or_whole_numbers_however_a_table_writes_them(tmp_path):
    texts = "abcdefgh"
    given = [1, 1.0, "1", " 1 ", "1.0", "-2", -2, "v1.5"]
    rows = [*zip(texts, given, strict=True), ("i", "v1.5"), ("j", None), ("k", float("nan"))]
    read = read_labelled(written(tmp_path / "mine.jsonl", rows))
    assert list(read.labels) == [*"11111", "-2", "-2", "v1.5", "v1.5"]
    assert read.skipped == {"blank label": 2}


@pytest.mark.parametrize("label", [0.5, "0.50", "-.5", ["a"], {"a": 1}, float("inf")])
def test_a_label_that_is_no_class_is_refused_by_its_line(tmp_path, label):
    path = written(tmp_path / "mine.jsonl", [*ROWS, ("text", label)])
    with pytest.raises(InputError, match=f"line 6: label {re.escape(repr(label))} is neither"):
        read_labelled(path)


def test_a_text_that_is_none_is_refused_by_its_line(tmp_path):
    for ending, place in [(".jsonl", "line 2"), (".parquet", "row 1")]:
        rows = [*ROWS[:1], (5, "a")] if ending == ".jsonl" else [(5, "a"), (6, "a")]
        with pytest.raises(InputError, match=f"{place}: [56] is not text"):
            read_labelled(written(tmp_path / f"mine{ending}", rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no class with two texts or more, but two such classes are needed"),
        (ROWS[:1], "no class with two texts or more.*1 skipped: only text of its class"),
        (ROWS[:3], "has 'a' with two texts or more, but two such classes are needed .1 skipped"),
        ([("same", "a")] * 9, "no class.*8 skipped: repeated text"),
    ],
)
def test_fewer_than_two_classes_are_refused(tmp_path, rows, said):
    with pytest.raises(InputError, match=said):
        read_labelled(written(tmp_path / "mine.csv", rows))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"")
    with pytest.raises(InputError, match="two such classes are needed"):
        read_labelled(tmp_path / "mine.csv")


def test_fewer_texts_than_folds_are_refused(tmp_path):
    with pytest.raises(InputError, match="4 texts are too few; at least 5 are needed, one a fold"):
        read_labels(written(tmp_path / "mine.csv", ROWS[:4]))


def test_a_job_says_what_it_has(tmp_path):
    path = written(tmp_path / "mine.csv", [*ROWS, ("", "a")])
    read = read_labels(path)
    assert (read.kind, read.unit, read.source) == ("classes", "texts", str(path))
    assert read.counts == {"texts": 5, "classes": 2}
    assert read.skipped == {"blank text": 1}
    assert list(read.texts()["document"]) == [text for text, _ in ROWS]


@pytest.fixture(scope="module")
def judged():
    """Labels, rows in overlapping groups, and what they are worth."""
    random = np.random.default_rng(0)
    classes = random.permutation(np.repeat(np.arange(4), [40, 25, 12, 3]))
    rows = random.normal(size=(80, 6)) + 2 * np.eye(6)[classes]
    return classes, rows, job([f"c{one}" for one in classes]).judge({"document": rows})


def test_measures_are_scikit_learns_on_the_resample_written_out(judged, monkeypatch):
    classes, rows, _ = judged
    seen, made = [], labels._Table
    monkeypatch.setattr(labels, "_Table", lambda a, b: seen.append(b) or made(a, b))
    found = job([f"c{one}" for one in classes]).judge({"document": rows})
    regression, neighbours, *runs = seen
    assert len(runs) == 20
    rare = np.flatnonzero(classes == 3)
    counts = np.random.default_rng(1).multinomial(80, np.full(80, 1 / 80), size=30).astype(float)
    counts[0, rare] = 0  # A class may be absent from a resample,
    counts[1] = 80.0 * (np.arange(80) == 5)  # and a resample may hold one text alone.
    for name, measure in found.measures.items():
        guessed = neighbours if name.startswith("k-nn") else regression
        expected = []
        for row in counts.astype(int):
            written_out = np.repeat(np.arange(80), row)
            true, other = classes[written_out], guessed[written_out]
            clusters = [one[written_out] for one in runs]
            if name.endswith("accuracy"):
                expected.append(metrics.accuracy_score(true, other))
            elif name.endswith("macro-f1"):
                expected.append(metrics.f1_score(true, other, average="macro", zero_division=0))
            elif name == "v-measure":
                expected.append(np.mean([metrics.v_measure_score(true, one) for one in clusters]))
            else:
                expected.append(
                    np.mean([metrics.adjusted_rand_score(true, one) for one in clusters])
                )
        np.testing.assert_allclose(measure(counts), expected, atol=1e-12, err_msg=name)


def test_neither_length_nor_place_of_the_rows_matters(judged):
    classes, rows, found = judged
    longer = rows * np.random.default_rng(2).uniform(0.1, 1e3, size=(80, 1))
    again = job([f"c{one}" for one in classes]).judge({"document": longer.astype(np.float32)})
    assert values(again) == pytest.approx(values(found), abs=1e-6)
    assert again.facts["few labels"][0] == pytest.approx(found.facts["few labels"][0], abs=1e-6)


def test_no_text_helps_to_predict_itself():
    """On noise, cross-validation and the curve of few labels are at chance."""
    given = [*"ab"] * 150
    found = job(given).judge({"document": np.random.default_rng(3).normal(size=(300, 20))})
    chance = pytest.approx(0.5, abs=0.1)
    got = values(found)
    assert (got["accuracy"], got["k-nn accuracy"]) == (chance, chance)
    assert abs(got["adjusted rand"]) < 0.05
    for point in found.facts["few labels"]:
        assert (point["logistic regression"], point["k-nn"]) == (chance, chance)


def test_what_all_rows_share_does_not_slow_or_change_the_regression(judged):
    """A far centre shrinks all differences of unit rows alike, and the regression's C fits both."""
    random = np.random.default_rng(4)
    given = [*"abc"] * 60
    rows = random.normal(size=(180, 8)) + 1.5 * np.eye(8)[[0, 1, 2] * 60]
    far = np.concatenate([rows, np.full((180, 1), 1e3)], axis=1)
    equal = np.concatenate([rows / np.linalg.norm(rows, axis=1, keepdims=True)] * 2, axis=1)
    near = values(job(given).judge({"document": equal}))["accuracy"]
    assert values(job(given).judge({"document": far}))["accuracy"] == pytest.approx(near, abs=0.05)


def test_few_labels_are_those_that_the_classes_allow(judged):
    classes, _, found = judged
    assert Counter(classes.tolist()) == {0: 40, 1: 25, 2: 12, 3: 3}
    curve = found.facts["few labels"]
    assert [(point["labels"], point["classes"]) for point in curve] == [(8, 3), (16, 2)]
    assert all(0 < point[name] <= 1 for point in curve for name in ("logistic regression", "k-nn"))
    json.dumps(found.facts)
    assert job([*"aabbb"]).judge({"document": np.eye(5)}).facts == {"few labels": []}


def test_classes_smaller_than_the_folds_are_judged():
    given = [*"aabbccddee"]
    rows = np.eye(5)[np.repeat(np.arange(5), 2)]
    got = values(job(given).judge({"document": rows}))
    assert got["accuracy"] == got["v-measure"] == got["adjusted rand"] == 1.0


@pytest.mark.parametrize("rows", [np.zeros((6, 3)), np.ones((6, 3)), np.full((6, 3), 1e30)])
def test_vectors_that_are_all_alike_are_judged_without_a_warning(rows):
    got = values(job([*"ababab"]).judge({"document": rows.astype(np.float32)}))
    assert got["accuracy"] <= 0.5
    assert got["v-measure"] < 0.5


def test_judging_is_the_same_each_time_and_takes_a_file_of_vectors(judged, tmp_path):
    classes, rows, found = judged
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    again = job([f"c{one}" for one in classes]).judge({"document": mapped})
    assert values(again) == values(found)
    assert again.facts == found.facts
    one, two = (estimates(judgement, resamples=20) for judgement in (found, again))
    assert one == two
    assert all(each.low <= each.value <= each.high for each in one.values())
