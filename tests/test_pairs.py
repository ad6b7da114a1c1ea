"""Graded pairs: users' own files, rows aligned, errors with their line; and the samples."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from bertflow.data import Pairs, read_pairs, sample_pairs, sample_sentences
from bertflow.errors import InputError, MissingDependencyError

KINDS = [".csv", ".tsv", ".jsonl", ".parquet"]
DELIMITED = [".csv", ".tsv"]
NAMES = ("sentence1", "sentence2", "score")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_text_kind = pytest.mark.parametrize("kind", KINDS[:3])
every_delimited = pytest.mark.parametrize("kind", DELIMITED)


def once(name: str, values: Sequence[Any], kind: str = ".jsonl"):
    """One kind of file with every value, and the other kinds with the first."""
    others = [(other, values[0]) for other in KINDS if other != kind]
    return pytest.mark.parametrize(
        ("kind", name), [*((kind, value) for value in values), *others], ids=str
    )


def content(kind: str, columns: dict[str, Sequence]) -> bytes:
    """A file of that kind with these columns; typed where the kind has types."""
    rows = list(zip(*columns.values(), strict=True))
    if kind == ".parquet":
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), sink)
        return sink.getvalue()
    if kind == ".jsonl":
        made = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows]
        return "".join(made).encode()
    out = io.StringIO(newline="")
    cells = [["" if cell is None else cell for cell in row] for row in [tuple(columns), *rows]]
    if kind == ".tsv":
        out.writelines("\t".join(map(str, row)) + "\n" for row in cells)
    else:
        csv.writer(out, lineterminator="\n").writerows(cells)
    return out.getvalue().encode()


def written(folder: Path, kind: str, columns: dict[str, Sequence], *, packed: bool = False) -> Path:
    path = folder / f"mine{kind}{'.gz' if packed else ''}"
    data = content(kind, columns)
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def table(
    first: Sequence = ("A cat", '"Who ran', "Café 😀"),
    second: Sequence = ("A dog", "it's", 'he said "no"'),
    gold: Sequence = (4.5, 0.0, 2.0),
    names: Sequence[str] = NAMES,
) -> dict[str, Sequence]:
    return dict(zip(names, (list(first), list(second), list(gold)), strict=True))


def at(path: Path, row: int, kind: str) -> str:
    """Where a row stands: parquet counts rows, .jsonl lines, the others their header too."""
    place = {".parquet": f"row {row}", ".jsonl": f"line {row}"}.get(kind, f"line {row + 1}")
    return re.escape(f"{path}, {place}:")


# Reading.


@once("packed", [False, True])
def test_every_kind_gives_the_same_pairs(tmp_path, kind, packed):
    path = written(tmp_path, kind, table(), packed=packed)
    read = read_pairs(path)
    assert list(read.first) == ["A cat", '"Who ran', "Café 😀"]
    assert list(read.second) == ["A dog", "it's", 'he said "no"']
    assert list(read.gold) == [4.5, 0.0, 2.0]
    assert (read.task, read.split, read.source) == ("pairs", "mine", str(path))
    assert (read.binary, list(read.subset), dict(read.skipped)) == (False, [], {})
    assert read_pairs(str(path)) == read


@pytest.mark.parametrize(
    ("name", "split"), [("my.v2.tsv", "my.v2"), ("My.TSV", "My"), ("my.v2.tsv.gz", "my.v2")]
)
def test_the_split_is_the_files_name(tmp_path, name, split):
    data = content(".tsv", table())
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_pairs(tmp_path / name).split == split


KNOWN_TEXTS = [
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("Sentence_A", "sentence_B"),
    ("Sentence 1", "Sentence 2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("first", "second"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "document"),
    ("query", "passage"),
]
KNOWN_GOLD = ["score", "label", "similarity", "gold", "relatedness_score", "is_duplicate", "SCORE"]


@once("texts", KNOWN_TEXTS, ".csv")
def test_texts_are_recognised_by_name(tmp_path, kind, texts):
    read = read_pairs(written(tmp_path, kind, {"id": ["x"] * 3, **table(names=(*texts, "score"))}))
    assert (read.first[0], read.second[0], read.gold[0]) == ("A cat", "A dog", 4.5)


@once("gold", KNOWN_GOLD, ".csv")
def test_scores_are_recognised_by_name_in_any_place(tmp_path, kind, gold):
    columns = table(names=("text1", "text2", gold))
    read = read_pairs(written(tmp_path, kind, dict(reversed(columns.items()))))
    assert (read.first[0], read.second[0], read.gold[0]) == ("A cat", "A dog", 4.5)


@once(
    "names",
    [
        ("left", "right", "score"),
        ("sentence1", "sentence2", "grade"),
        ("sentence1", "text2", "score"),
        ("sentence1", "sentence_1", "score"),
    ],
)
def test_unknown_names_are_refused_and_those_there_are_listed(tmp_path, kind, names):
    path = written(tmp_path, kind, table(names=names))
    with pytest.raises(InputError, match=r"cannot tell which columns.*by columns") as caught:
        read_pairs(path)
    assert ", ".join(map(repr, names)) in str(caught.value)
    assert str(path) in str(caught.value)


@once("more", ["label", "Score", "text1 text2", "sentence_1"])
def test_names_that_could_be_read_in_two_ways_are_refused(tmp_path, kind, more):
    extra = {name: ["x"] * 3 for name in more.split()}
    with pytest.raises(InputError, match="cannot tell which columns"):
        read_pairs(written(tmp_path, kind, {**table(), **extra}))


@every_kind
def test_columns_may_be_named(tmp_path, kind):
    columns = table(names=("left", "right", "grade"))
    path = written(tmp_path, kind, {"id": [1, 2, 3], "score": [9, 9, 9], **columns})
    read = read_pairs(path, columns=("right", "left", "grade"))
    assert (read.first[0], read.second[0], read.gold[0]) == ("A dog", "A cat", 4.5)


@every_kind
def test_a_named_column_that_is_not_there_is_refused(tmp_path, kind):
    path = written(tmp_path, kind, table())
    with pytest.raises(InputError, match=r"mine.*'grade'.*'sentence1', 'sentence2', 'score'"):
        read_pairs(path, columns=("sentence1", "sentence2", "grade"))


@every_delimited
def test_numbers_from_1_say_that_there_is_no_header(tmp_path, kind):
    separator = "," if kind == ".csv" else "\t"
    path = tmp_path / f"mine{kind}"
    path.write_text("".join(separator.join(r) + "\n" for r in [("5", "a", "b"), ("1", "c", "d")]))
    read = read_pairs(path, columns=("2", "3", "1"))
    assert (list(read.first), list(read.second)) == (["a", "c"], ["b", "d"])
    assert list(read.gold) == [5.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (".csv", ("0", "1", "2")),
        (".csv", ("1", "2", "4")),
        (".csv", ("1", "2", "score")),
        (".tsv", ("1", "2", "4")),
    ],
)
def test_numbers_out_of_range_or_among_names_are_refused(tmp_path, kind, columns):
    with pytest.raises(InputError, match=r"0|4|score"):
        read_pairs(written(tmp_path, kind, table()), columns=columns)


@pytest.mark.parametrize(
    "columns", [("a", "b"), ("a", "a", "b"), ("a", "b", "c", "d"), (), (1, 2, 3)]
)
def test_columns_must_be_three_different_ones(tmp_path, columns):
    with pytest.raises(InputError, match="3 different"):
        read_pairs(written(tmp_path, ".csv", table()), columns=columns)


# Scores.


@once("gold", [(1, 0, 1), (True, False, True), (1.0, 0.0, 1.0), ("1", "0", "1")])
def test_ones_and_zeros_are_binary(tmp_path, kind, gold):
    read = read_pairs(written(tmp_path, kind, table(gold=gold)))
    assert (list(read.gold), read.binary) == ([1.0, 0.0, 1.0], True)


@once("gold", [("true", "false", "true"), ("TRUE", "False", " true ")])
def test_true_and_false_are_binary(tmp_path, kind, gold):
    read = read_pairs(written(tmp_path, kind, table(gold=gold)))
    assert (list(read.gold), read.binary) == ([1.0, 0.0, 1.0], True)


@every_kind
def test_one_class_alone_is_read(tmp_path, kind):
    read = read_pairs(written(tmp_path, kind, table(gold=(1, 1, 1))))
    assert (list(read.gold), read.binary) == ([1.0, 1.0, 1.0], True)


@once("gold", [(0, 1, 2), (0.5, 1, 0), (-1, 1, 1)])
def test_other_numbers_are_not_binary(tmp_path, kind, gold):
    read = read_pairs(written(tmp_path, kind, table(gold=[float(one) for one in gold])))
    assert (list(read.gold), read.binary) == (list(gold), False)


@once("gold", [(5.0, None, 1.0), (1.0, None, 0.0)])
def test_a_blank_score_is_no_score_and_the_rest_stays_aligned(tmp_path, kind, gold):
    read = read_pairs(written(tmp_path, kind, table(gold=gold)))
    assert (list(read.gold), read.binary) == (list(gold), gold[0] == 1)
    assert list(read.first) == ["A cat", '"Who ran', "Café 😀"]


@once("bad", ["x", "5,0", "nan", "inf", "-inf", "1_0", "yes", "1e999"])
def test_a_score_that_is_no_number_is_named_by_line(tmp_path, kind, bad):
    path = written(tmp_path, kind, table(gold=("1", bad, "0")))
    with pytest.raises(InputError, match=rf"{at(path, 2, kind)} score '{re.escape(bad)}'"):
        read_pairs(path)


@pytest.mark.parametrize("bad", [[1], {"a": 1}, float("nan"), 10**400])
def test_a_score_that_is_no_number_in_json_is_named_by_line(tmp_path, bad):
    path = written(tmp_path, ".jsonl", table(gold=(1, bad, 0)))
    with pytest.raises(InputError, match=at(path, 2, ".jsonl")):
        read_pairs(path)


@every_kind
def test_pairs_of_which_none_is_graded_are_refused(tmp_path, kind):
    gold = pyarrow.nulls(3, pyarrow.float64()) if kind == ".parquet" else [None] * 3
    columns = {**table(), "score": gold}
    with pytest.raises(InputError, match=r"mine.*: none of its 3 pairs has a gold score"):
        read_pairs(written(tmp_path, kind, columns))


# Rows.


@once("cell", [(0, ""), (1, "  "), (0, None), (1, None)])
def test_a_blank_sentence_is_named_by_line(tmp_path, kind, cell):
    side, blank = cell
    texts = [["a", "b", "c"], ["d", "e", "f"]]
    texts[side][1] = blank
    path = written(tmp_path, kind, table(*texts))
    with pytest.raises(InputError, match=rf"{at(path, 2, kind)} a sentence is blank"):
        read_pairs(path)


@pytest.mark.parametrize("bad", [3, 0, False, ["a"]])
def test_text_that_is_no_text_in_json_is_named_by_line(tmp_path, bad):
    path = written(tmp_path, ".jsonl", table(second=("a", bad, "c")))
    with pytest.raises(InputError, match=rf"{at(path, 2, '.jsonl')} 'sentence2' is not text"):
        read_pairs(path)


def test_text_that_is_no_text_in_parquet_is_refused(tmp_path):
    path = written(tmp_path, ".parquet", table(second=(1, 2, 3)))
    with pytest.raises(InputError, match=r"mine\.parquet: column 'sentence2' is not text"):
        read_pairs(path)


@pytest.mark.parametrize(("kind", "packed"), [(".csv", False), (".tsv", True)])
def test_a_row_too_short_is_named_by_line(tmp_path, kind, packed):
    separator = "," if kind == ".csv" else "\t"
    rows = [NAMES, ("a", "b", "1"), ("c", "d"), ("e", "f", "2")]
    data = "".join(separator.join(row) + "\n" for row in rows).encode()
    path = tmp_path / f"mine{kind}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(InputError, match=rf"{path.name}, line 3\b.*'score'"):
        read_pairs(path)


def test_a_json_row_that_lacks_a_key_is_named_by_line(tmp_path):
    good = '{"sentence1": "a", "sentence2": "b", "score": 1}\n'
    (tmp_path / "mine.jsonl").write_text(good + '{"sentence1": "a", "sentence2": "b"}\n')
    with pytest.raises(InputError, match=r"mine\.jsonl, line 2: no 'score'; it has 'sentence1'"):
        read_pairs(tmp_path / "mine.jsonl")


def test_a_json_row_that_is_a_string_is_named_by_line(tmp_path):
    (tmp_path / "mine.jsonl").write_text('"A cat"\n')
    with pytest.raises(InputError, match=r"mine\.jsonl, line 1: got 'A cat'; expected an object, "):
        read_pairs(tmp_path / "mine.jsonl")


@every_delimited
def test_empty_cells_beyond_the_header_and_blank_rows_are_ignored(tmp_path, kind):
    separator = "," if kind == ".csv" else "\t"
    rows = [NAMES, ("a", "b", "1", ""), (), ("", "", ""), ("c", "d", "2", " ", "")]
    (tmp_path / f"mine{kind}").write_text("".join(separator.join(row) + "\n" for row in rows))
    assert list(read_pairs(tmp_path / f"mine{kind}").gold) == [1.0, 2.0]


@every_delimited
def test_more_cells_than_the_header_has_are_named_by_line(tmp_path, kind):
    separator = "," if kind == ".csv" else "\t"
    rows = [NAMES, ("a", "b", "1"), ("A man", " old", "b", "2")]
    (tmp_path / f"mine{kind}").write_text("".join(separator.join(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"line 3: 4 cells, but the first .* 3 \('sentence1'"):
        read_pairs(tmp_path / f"mine{kind}")


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ("a,b,same", "a,b,same"),
        ("id,left side,right,gold", "'id,left side,right'"),
        ("sentence1,sentence2,score,score", "sentence1,sentence2,SCORE"),
        ("A man,A boy,4.5", "1,2,3"),
    ],
)
def test_a_refusal_to_guess_shows_the_option_with_names_of_the_file(tmp_path, header, shown):
    (tmp_path / "mine.csv").write_text(f"{header}\n")
    with pytest.raises(InputError, match=rf"by columns, such as --columns {shown}, or where there"):
        read_pairs(tmp_path / "mine.csv")


def test_a_format_counts_for_more_than_the_ending(tmp_path, monkeypatch):
    (tmp_path / "mine").write_bytes(content(".tsv", table()))
    assert read_pairs(tmp_path / "mine", format="tsv").gold == [4.5, 0.0, 2.0]
    with pytest.raises(InputError, match=r'mine is of unknown kind .*format="csv"\)$'):
        read_pairs(tmp_path / "mine")
    with pytest.raises(InputError, match="format must be one of .*'csv', 'tsv', .*, got 'txt'"):
        read_pairs(tmp_path / "mine", format="txt")
    given = io.TextIOWrapper(io.BytesIO(content(".jsonl", table())), encoding="latin-1")
    monkeypatch.setattr("sys.stdin", given)
    read = read_pairs("-", format="jsonl")
    assert (read.first[2], read.split, read.source) == ("Café 😀", *["standard input"] * 2)


def test_a_csv_quote_that_never_closes_is_named_by_the_line_where_it_opens(tmp_path):
    (tmp_path / "mine.csv").write_text('text1,text2,score\na,b,1\n"c,d,2\ne,f,3\n')
    with pytest.raises(InputError, match=r"mine\.csv, line 3\b"):
        read_pairs(tmp_path / "mine.csv")


@every_text_kind
def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_the_text(tmp_path, kind):
    columns = dict(reversed(table().items())) if kind != ".jsonl" else table()
    path = written(tmp_path, kind, columns)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert list(read_pairs(path).first) == ["A cat", '"Who ran', "Café 😀"]


@every_kind
def test_a_table_without_a_row_is_refused(tmp_path, kind):
    empty = pyarrow.array([], pyarrow.string()) if kind == ".parquet" else []
    path = written(tmp_path, kind, dict.fromkeys(NAMES, empty))
    with pytest.raises(InputError, match=rf"{path.name} holds no pair"):
        read_pairs(path)


@every_text_kind
def test_an_empty_file_is_refused(tmp_path, kind):
    (tmp_path / f"mine{kind}").write_bytes(b"")
    with pytest.raises(InputError, match=rf"mine{kind} holds no pair"):
        read_pairs(tmp_path / f"mine{kind}")


def test_what_is_no_table_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("a\tb\t1\n")
    with pytest.raises(InputError, match=r"'\.txt'; expected one of \.csv, \.tsv, \.jsonl, \.parq"):
        read_pairs(tmp_path / "mine.txt")
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        read_pairs(tmp_path / "missing.csv")
    with pytest.raises(InputError, match=r"is of unknown kind .*; expected one of .*; give files"):
        read_pairs(tmp_path)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    path = written(tmp_path, ".parquet", table())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a whole parquet file"):
        read_pairs(path)


def test_parquet_without_its_package_gives_the_line_that_installs_it(tmp_path, monkeypatch):
    path = written(tmp_path, ".parquet", table())
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertflow\[parquet\]'"):
        read_pairs(path)


# What comes along.


def test_pairs_need_no_more_than_their_texts_and_gold():
    pairs = Pairs("t", "s", ["a", "b"], ["c", "d"], [1.0, None], "here")
    assert (len(pairs), pairs.subset, pairs.binary, dict(pairs.skipped)) == (2, (), False, {})


def test_sample_pairs_cover_the_whole_scale():
    read = sample_pairs()
    assert len(read) == len(read.second) == len(read.gold) == 180
    assert all(0 <= score <= 5 for score in read.gold)
    for low, high in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]:
        assert sum(low <= score <= high for score in read.gold) >= 20
    assert {0.0, 5.0} <= set(read.gold)


def test_sample_pairs_are_distinct_pairs_of_different_sentences():
    read = sample_pairs()
    texts = list(zip(read.first, read.second, strict=True))
    assert len(set(texts)) == 180
    assert all(first.strip() and second.strip() and first != second for first, second in texts)


def test_sample_sentences_are_distinct_and_not_in_the_pairs():
    sentences, graded = sample_sentences(), sample_pairs()
    assert len(sentences) == len(set(sentences)) == 1200
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert not set(sentences) & {*graded.first, *graded.second}
