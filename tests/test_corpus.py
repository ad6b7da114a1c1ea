"""Reading sentences: every kind of file gives the same rows, or an error that says where."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertflow.data import checked_corpus, read_corpus, stream_corpus, tables
from bertflow.data.sources import located
from bertflow.errors import InputError, MissingDependencyError
from bertflow.io.reading import contents

SENTENCES = [
    "A plain sentence.",
    'He said "no" and left.',
    '"Who ran',
    "Apples, pears and plums",
    "Café, naïve, 日本語, 😀",
    "it's the same again",
    "it's the same again",
]
TEXT_KINDS = [".txt", ".csv", ".tsv", ".jsonl"]
TABLES = [".csv", ".tsv", ".jsonl", ".parquet"]
DELIMITED = [".csv", ".tsv"]
KINDS = [*TEXT_KINDS, ".parquet"]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_text_kind = pytest.mark.parametrize("kind", TEXT_KINDS)
every_table = pytest.mark.parametrize("kind", TABLES)
every_delimited = pytest.mark.parametrize("kind", DELIMITED)


def once(kinds: Sequence[str], name: str, values: Sequence):
    """The first kind with every value, and the other kinds with the first value."""
    cases = [(kinds[0], value) for value in values] + [(kind, values[0]) for kind in kinds[1:]]
    return pytest.mark.parametrize(("kind", name), cases, ids=str)


def content(kind: str, columns: dict[str, Sequence], newline: str = "\n") -> bytes:
    """A file of that kind with these columns; plain text takes the first."""
    rows = list(zip(*columns.values(), strict=True))
    if kind == ".parquet":
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), sink)
        return sink.getvalue()
    if kind == ".txt":
        lines = [row[0] for row in rows]
    elif kind == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    elif kind == ".tsv":
        lines = ["\t".join(map(str, row)) for row in [tuple(columns), *rows]]
    else:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator=newline).writerows([tuple(columns), *rows])
        return out.getvalue().encode()
    return "".join(line + newline for line in lines).encode()


def written(folder: Path, kind: str, data: bytes, *, packed: bool = False) -> Path:
    path = folder / f"corpus{kind}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@once(KINDS, "packed", [False, True])
def test_every_kind_gives_the_same_sentences(tmp_path, kind, packed):
    path = written(tmp_path, kind, content(kind, {"text": SENTENCES}), packed=packed)
    assert read_corpus([path]) == SENTENCES
    assert read_corpus([str(path)]) == SENTENCES


def test_standard_input_gives_the_same_sentences(monkeypatch):
    stdin(monkeypatch, content(".txt", {"text": SENTENCES}))
    assert read_corpus(["-"]) == SENTENCES


@every_text_kind
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, kind):
    data = b"\xef\xbb\xbf" + content(kind, {"text": SENTENCES, "id": range(len(SENTENCES))})
    column = None if kind == ".txt" else "text"
    assert read_corpus([written(tmp_path, kind, data)], column=column) == SENTENCES


def test_a_byte_order_mark_on_standard_input_is_no_part_of_the_text(monkeypatch):
    stdin(monkeypatch, b"\xef\xbb\xbfA cat\nA dog\n")
    assert read_corpus(["-"]) == ["A cat", "A dog"]


@every_text_kind
def test_windows_line_ends_are_no_part_of_the_text(tmp_path, kind):
    data = content(kind, {"id": ["a"] * len(SENTENCES), "text": SENTENCES}, newline="\r\n")
    expected = ["a"] * len(SENTENCES) if kind == ".txt" else SENTENCES
    column = None if kind == ".txt" else "text"
    assert read_corpus([written(tmp_path, kind, data)], column=column) == expected


def test_windows_line_ends_on_standard_input_are_no_part_of_the_text(monkeypatch):
    stdin(monkeypatch, b"A cat\r\n\r\nA dog\r\n")
    assert read_corpus(["-"]) == ["A cat", "A dog"]


@every_kind
def test_space_around_a_sentence_is_cut_off(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": ["  A cat ", "A  dog\u00a0"]}))
    assert read_corpus([path]) == ["A cat", "A  dog"]


@every_kind
def test_a_last_line_without_an_end_counts(tmp_path, kind):
    data = content(kind, {"text": ["A cat", "A dog"]})
    path = written(tmp_path, kind, data if kind == ".parquet" else data.rstrip(b"\n"))
    assert read_corpus([path]) == ["A cat", "A dog"]


def test_files_are_read_in_order_with_repeats(tmp_path, monkeypatch):
    stdin(monkeypatch, b"from stdin\n")
    (tmp_path / "b.txt").write_text("B\nboth\n")
    (tmp_path / "a.jsonl").write_text('{"text": "both"}\n{"text": "A"}\n')
    sources = [tmp_path / "b.txt", "-", tmp_path / "a.jsonl"]
    assert read_corpus(sources) == ["B", "both", "from stdin", "both", "A"]


@pytest.mark.parametrize("name", ["S.TXT", "my.corpus.v2.txt", "S.Txt.GZ"])
def test_the_last_ending_counts_in_any_case(tmp_path, name):
    data = b"A cat\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("GZ") else data)
    assert read_corpus([tmp_path / name]) == ["A cat"]


# Columns.


@every_table
def test_a_column_is_taken_by_name(tmp_path, kind):
    columns = {"id": ["x", "y"], "first": ["A cat", "A dog"], "second": ["B", "C"]}
    path = written(tmp_path, kind, content(kind, columns))
    assert read_corpus([path], column="first") == ["A cat", "A dog"]
    assert read_corpus([path], column="second") == ["B", "C"]


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_the_only_text_column_among_numbers_needs_no_name(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"id": [1, 2], "text": ["A cat", "A dog"]}))
    assert read_corpus([path]) == ["A cat", "A dog"]


@every_delimited
def test_a_column_by_number_counts_from_1_in_a_file_without_header(tmp_path, kind):
    separator = "," if kind == ".csv" else "\t"
    path = tmp_path / f"c{kind}"
    path.write_text(f"A cat{separator}B cat\nA dog{separator}B dog\n")
    assert read_corpus([path], column="1") == ["A cat", "A dog"]
    assert read_corpus([path], column="2") == ["B cat", "B dog"]


@every_delimited
def test_a_number_says_that_there_is_no_header(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"2": ["3"], "A cat": ["A dog"]}))
    assert read_corpus([path], column="2") == ["A cat", "A dog"]


@once(DELIMITED, "column", ["0", "3"])
def test_a_column_number_out_of_range_is_refused(tmp_path, kind, column):
    path = written(tmp_path, kind, content(kind, {"a": ["A cat"], "b": ["A dog"]}))
    with pytest.raises(InputError, match=column):
        read_corpus([path], column=column)


@every_table
def test_an_unknown_column_is_refused_and_those_there_are_listed(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"first": ["A cat"], "second": ["A dog"]}))
    with pytest.raises(InputError, match=r"corpus.*'text'.*'first', 'second'"):
        read_corpus([path], column="text")


@every_table
def test_two_text_columns_without_a_name_are_refused_and_listed(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"first": ["A cat"], "second": ["A dog"]}))
    with pytest.raises(InputError, match=r"2 text columns \('first', 'second'\).*column"):
        read_corpus([path])


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_column_that_is_not_text_is_refused(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"id": [1, 2], "text": ["A cat", "A dog"]}))
    with pytest.raises(InputError, match=r"corpus.*'id' is not text"):
        read_corpus([path], column="id")


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.large_string()),
    ],
    ids=str,
)
def test_every_text_type_of_arrow_is_text_in_every_group_of_rows(tmp_path, kind):
    column = pyarrow.array(["A cat", "A dog", "A cat"]).cast(kind)
    assert tables.is_text(kind)
    numbers = pyarrow.array([[1], [2], [3]])
    table = pyarrow.table({"text": column, "n": numbers})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet", row_group_size=1)
    assert read_corpus([tmp_path / "c.parquet"]) == ["A cat", "A dog", "A cat"]


def test_lists_of_text_are_no_text(tmp_path):
    path = written(tmp_path, ".parquet", content(".parquet", {"text": [["A cat"], ["A", "dog"]]}))
    assert not tables.is_text(pyarrow.dictionary(pyarrow.int8(), pyarrow.binary()))
    with pytest.raises(InputError, match=r"column 'text' is not text but list"):
        read_corpus([path])
    with pytest.raises(InputError, match=r"'text' is not text but list"):
        read_corpus([path], column="text")


@pytest.mark.parametrize("kind", ["binary", "list", "struct", "null"])
def test_an_id_is_not_taken_for_the_text_where_that_is_of_another_kind(tmp_path, kind):
    made = {
        "binary": pyarrow.array([b"A man", b"A dog"]),
        "list": pyarrow.array([["A man"], ["A dog"]]),
        "struct": pyarrow.array([{"text": "A man"}, {"text": "A dog"}]),
        "null": pyarrow.nulls(2),
    }[kind]
    table = pyarrow.table({"id": ["a1", "a2"], "text": made, "vector": [[0.5], [0.25]]})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"has 2 text columns \('id', 'text'\)"):
        read_corpus(tmp_path / "c.parquet")
    (tmp_path / "c.jsonl").write_text('{"id": "a1", "sentences": ["A man", "A dog"]}\n')
    with pytest.raises(InputError, match=r"has 2 text columns \('id', 'sentences'\)"):
        read_corpus(tmp_path / "c.jsonl")


def test_bytes_that_are_no_utf8_in_a_parquet_are_named_by_the_file(tmp_path):
    wrong = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": wrong}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet is not a whole parquet file: .utf-8"):
        read_corpus(tmp_path / "c.parquet")


def test_files_that_were_put_one_after_another_are_told_by_their_marks(tmp_path):
    (tmp_path / "c.csv").write_text("\ufefftext\nA man\n\ufefftext\nA cat\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.csv is not UTF-8 text: line 3; .* several files"):
        read_corpus(tmp_path / "c.csv")


def test_a_number_is_no_place_where_names_are_numbers(tmp_path):
    (tmp_path / "c.csv").write_text("0,1\nA man plays,A dog runs\n")
    with pytest.raises(InputError, match="all its cells are numbers"):
        read_corpus(tmp_path / "c.csv", column="1")


def test_two_columns_of_the_name_that_is_asked_for_are_refused(tmp_path):
    (tmp_path / "c.csv").write_text("text,text\nA,B\n")
    same = pyarrow.table([["A"], ["B"]], names=["text", "text"])
    pyarrow.parquet.write_table(same, tmp_path / "c.parquet")
    for name in ("c.csv", "c.parquet"):
        with pytest.raises(
            InputError, match=rf"{name} has 2 columns 'text'; it has 'text', 'text'"
        ):
            read_corpus([tmp_path / name], column="text")


def test_a_parquet_file_that_was_appended_to_another_is_refused(tmp_path):
    path = written(tmp_path, ".parquet", content(".parquet", {"text": ["A cat", "A dog"]}))
    with path.open("ab") as file:
        pyarrow.parquet.write_table(pyarrow.table({"text": ["A cow", "An ox"]}), file)
    with pytest.raises(InputError, match="holds several parquet files"):
        read_corpus([path])
    path.write_bytes(content(".parquet", {"text": ["A cat", "A dog"]}) * 2)
    with pytest.raises(InputError, match="holds several parquet files"):
        read_corpus([path])


# Quotes and rows.


def test_quotes_in_tsv_are_plain_characters(tmp_path):
    path = tmp_path / "qnli.tsv"
    path.write_text(
        "index\tquestion\tsentence\tlabel\n"
        '0\t"Who ran\tA ate\tentailment\n'
        "1\tWho sat\tB ate\tnot_entailment\n"
        '2\tWho ate\t"C ate\tentailment\n'
        '3\t"Who"\tD "ate"\tentailment\n'
    )
    assert read_corpus([path], column="question") == ['"Who ran', "Who sat", "Who ate", '"Who"']
    assert read_corpus([path], column="sentence") == ["A ate", "B ate", '"C ate', 'D "ate"']


def test_a_quoted_csv_field_may_hold_commas_quotes_and_line_ends(tmp_path):
    (tmp_path / "c.csv").write_bytes(b'id,text\r\n1,"A, ""b""\r\nand c"\r\n2,D\r\n')
    assert read_corpus([tmp_path / "c.csv"], column="text") == ['A, "b"\r\nand c', "D"]


def test_a_csv_quote_that_never_closes_is_named_by_the_line_where_it_opens(tmp_path):
    (tmp_path / "c.csv").write_text('id,text\n1,A\n2,"B\n3,C\n4,D\n5,E\n')
    with pytest.raises(InputError, match=r"c\.csv, line 3\b"):
        read_corpus([tmp_path / "c.csv"], column="text")


def test_text_after_a_closing_csv_quote_is_named_by_line(tmp_path):
    (tmp_path / "c.csv").write_text('id,text\n1,A\n2,"B" or not\n3,C\n')
    with pytest.raises(InputError, match=r"c\.csv, line 3\b"):
        read_corpus([tmp_path / "c.csv"], column="text")


@every_delimited
def test_a_row_too_short_is_named_by_file_and_line(tmp_path, kind):
    separator = "," if kind == ".csv" else "\t"
    data = f"id{separator}text\n1{separator}A\n2\n3{separator}C\n".encode()
    path = written(tmp_path, kind, data)
    with pytest.raises(InputError, match=rf"{path.name}, line 3\b.*'text'"):
        read_corpus([path], column="text")


@once(DELIMITED, "row", [["1", "A", "x"], ["1", "A", "", "x"], ["1"]])
def test_a_row_of_other_cells_than_the_header_is_named(tmp_path, kind, row):
    separator = "," if kind == ".csv" else "\t"
    rows = [["id", "text"], ["1", "B"], row, ["3", "C"]]
    path = tmp_path / f"c{kind}"
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    for column in ("text", "id", "1"):
        with pytest.raises(InputError, match=rf"c\{kind}, line 3: {len(row)} cells, but .* has 2"):
            read_corpus([path], column=column)


@every_delimited
def test_empty_cells_beyond_the_header_are_nothing(tmp_path, kind):
    rows = [["id", "text", ""], ["1", "A", "", " "], ["2", "B"], [], ["", ""], ["3", "C", ""]]
    separator = "," if kind == ".csv" else "\t"
    (tmp_path / f"c{kind}").write_text("".join(separator.join(row) + "\n" for row in rows))
    assert read_corpus([tmp_path / f"c{kind}"], column="text") == ["A", "B", "C"]


def test_a_single_column_with_unquoted_commas_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "c.csv").write_text("text\nA cat\nA man, who runs\n")
    with pytest.raises(InputError, match=r"line 3: 2 cells, .*'text'.* quotes; .* file \.txt"):
        read_corpus([tmp_path / "c.csv"])


@pytest.mark.parametrize(
    "text",
    [
        'id;text\n1;A man, who runs\n2;"B; C"\n',
        "id|text\n1|A man, who runs\n2|B; C\n",
        'id, text\n1, "A man, who runs"\n2, B; C\n',
    ],
)
def test_delimiters_that_spreadsheets_write_are_read(tmp_path, text):
    (tmp_path / "c.csv").write_text(text)
    assert read_corpus([tmp_path / "c.csv"], column="text") == ["A man, who runs", "B; C"]


def test_of_a_file_without_header_the_delimiter_is_not_guessed_among_two(tmp_path):
    (tmp_path / "c.csv").write_text("1,New York;NY;USA\n2,Austin;TX;USA\n")
    with pytest.raises(InputError, match=r"line 1: cells may end at ',' or at ';'; give"):
        read_corpus([tmp_path / "c.csv"], column="2")
    (tmp_path / "c.csv").write_text("id,city\n1,New York;NY;USA\n2,Austin;TX;USA\n")
    assert read_corpus([tmp_path / "c.csv"], column="city") == ["New York;NY;USA", "Austin;TX;USA"]
    (tmp_path / "c.csv").write_text("A man, who runs;1\nA cat;0\n")
    assert read_corpus([tmp_path / "c.csv"], column="1") == ["A man, who runs", "A cat"]


def test_a_csv_may_have_tabs_and_commas_in_a_tsv_are_noticed(tmp_path):
    (tmp_path / "c.csv").write_text("text\tlabel\nA cat, black\t1\n")
    assert read_corpus([tmp_path / "c.csv"], column="text") == ["A cat, black"]
    (tmp_path / "c.tsv").write_text("text,label\nA cat,1\n")
    with pytest.raises(InputError, match=r"c\.tsv: line 1, 'text,label', .*--format csv"):
        read_corpus([tmp_path / "c.tsv"])
    assert read_corpus([tmp_path / "c.tsv"], column="text", format="csv") == ["A cat"]


@pytest.mark.parametrize("first", ["A man runs", "Yes.", "今天天气很好。"])
def test_a_first_line_that_is_like_a_sentence_is_not_taken_as_a_name(tmp_path, first):
    (tmp_path / "c.csv").write_text(f"{first}\nA cat\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"line 1, '{first}', .*--column 1 .*--column$"):
        read_corpus([tmp_path / "c.csv"])
    assert read_corpus([tmp_path / "c.csv"], column="1") == [first, "A cat"]
    assert read_corpus([tmp_path / "c.csv"], column=first) == ["A cat"]


def test_a_name_that_may_be_a_sentence_is_said_once(tmp_path, caplog):
    for name, said in {"text": 0, "Hello": 1}.items():
        (tmp_path / f"{name}.csv").write_text(f"{name}\nA cat\n")
        assert list(checked_corpus([tmp_path / f"{name}.csv"])) == ["A cat"]
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warned) == said
    assert "line 1, 'Hello', is taken as the column's name" in warned[0]


def test_a_jsonl_file_of_strings_needs_no_column(tmp_path):
    (tmp_path / "c.jsonl").write_text('"A cat"\n"A dog"\n')
    assert read_corpus([tmp_path / "c.jsonl"]) == ["A cat", "A dog"]


@pytest.mark.parametrize("column", [None, "text", "1"])
@pytest.mark.parametrize("first", ["", "sep=;"])
def test_a_table_whose_first_line_is_no_header_is_not_taken_for_empty(tmp_path, first, column):
    (tmp_path / "c.csv").write_text(f"{first}\ntext;n\nA cat;1\n")
    (tmp_path / "c.txt").write_text("A dog\n")
    with pytest.raises(InputError, match=r"c\.csv"):
        read_corpus([tmp_path / "c.csv", tmp_path / "c.txt"], column=column)


def test_a_cell_beyond_all_bounds_is_named_by_line(tmp_path):
    limit = csv.field_size_limit()
    (tmp_path / "c.csv").write_text('text\nA\n"B\n' + "C\n" * limit)
    with pytest.raises(InputError, match=r"line 3: .*field limit .*does a quote never close"):
        read_corpus([tmp_path / "c.csv"])
    assert csv.field_size_limit() == limit


@once([".csv", ".tsv", ".txt"], "text", ["text\nA cat\nA dog\rA cow\n", "text\rA cat\rA dog\r"])
def test_a_carriage_return_within_a_line_is_refused(tmp_path, kind, text):
    (tmp_path / f"c{kind}").write_bytes(text.encode())
    with pytest.raises(InputError, match=rf"c\{kind}, line [13]: .*carriage return"):
        read_corpus([tmp_path / f"c{kind}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A dog", "not JSON"),
        ('{"text": "A dog"', "not JSON"),
        ('{"text": "A dog"} {"text": "B"}', "not JSON .*expected an object"),
        ("[1]", r"got \[1\]; expected an object, .*jq -c '\.\[\]' for an array"),
        ("[", r"not JSON .*jq -c '\.\[\]' for an array"),
        ("{", r"not JSON \(.* at line 1, .*as jq -c \. writes lines"),
        ('{"text": "A dog", "title": "B"}', "'title' is text, as is 'text'; name one by --column"),
        ("3", "got 3; expected an object"),
        ('{"other": "A dog"}', "'text'.*'other'"),
        ('{"text": 3}', "not text"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path, line, message):
    data = f'{{"text": "A cat"}}\n\n{line}\n{{"text": "A cow"}}\n'.encode()
    path = written(tmp_path, ".jsonl", data)
    with pytest.raises(InputError, match=rf"{path.name}, line 3: .*{message}"):
        read_corpus([path])


# How many, and blank ones.


@every_kind
def test_limit_takes_the_first_and_reads_no_further(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": SENTENCES}))
    assert read_corpus([path, tmp_path / "missing.txt"], limit=3) == SENTENCES[:3]


@every_kind
def test_a_limit_above_the_count_takes_all(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": SENTENCES}))
    assert read_corpus([path], limit=100) == SENTENCES


def test_limit_counts_over_files_and_on_standard_input(tmp_path, monkeypatch):
    stdin(monkeypatch, b"A\nB\nC\n")
    (tmp_path / "c.txt").write_text("D\n\nE\n")
    assert read_corpus([tmp_path / "c.txt", "-"], limit=3) == ["D", "E", "A"]


BLANKS = {"id": ["1", "2", "3", "4", "5"], "text": ["A cat", "", "A dog", "  ", "A cow"]}


def with_blanks(folder: Path, kind: str) -> Path:
    columns = {"text": BLANKS["text"]} if kind == ".txt" else BLANKS
    return written(folder, kind, content(kind, columns))


@every_kind
def test_blank_sentences_are_skipped(tmp_path, kind):
    column = None if kind == ".txt" else "text"
    assert read_corpus([with_blanks(tmp_path, kind)], column=column) == ["A cat", "A dog", "A cow"]


@every_kind
def test_a_blank_sentence_is_refused_by_number_where_asked(tmp_path, kind):
    column = None if kind == ".txt" else "text"
    with pytest.raises(InputError, match=r"sentence 2 is blank"):
        read_corpus([with_blanks(tmp_path, kind)], column=column, blank="refuse")


def test_a_blank_line_of_standard_input_is_skipped_or_refused(monkeypatch):
    stdin(monkeypatch, b"A cat\nA dog\n\nA cow\n")
    assert read_corpus(["-"]) == ["A cat", "A dog", "A cow"]
    stdin(monkeypatch, b"A cat\nA dog\n\nA cow\n")
    with pytest.raises(InputError, match=r"sentence 3 is blank"):
        read_corpus(["-"], blank="refuse")


@every_table
def test_a_blank_row_of_a_single_column_is_skipped_or_refused(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": ["A cat", "", "A dog"]}))
    assert read_corpus([path]) == ["A cat", "A dog"]
    with pytest.raises(InputError, match=r"sentence 2 is blank"):
        read_corpus([path], blank="refuse")


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_null_is_a_blank_sentence(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": ["A cat", None, "A dog"]}))
    assert read_corpus([path]) == ["A cat", "A dog"]
    with pytest.raises(InputError, match=r"sentence 2 is blank"):
        read_corpus([path], blank="refuse")


@every_kind
def test_no_blank_sentence_is_nothing_to_refuse(tmp_path, kind):
    path = written(tmp_path, kind, content(kind, {"text": SENTENCES}))
    assert read_corpus([path], blank="refuse") == SENTENCES


# What cannot be read.


@once(TEXT_KINDS, "data", [b"\n\n  \n", b""])
def test_a_file_without_a_sentence_is_refused(tmp_path, kind, data):
    path = written(tmp_path, kind, data)
    with pytest.raises(InputError, match=rf"{path.name}.*") as caught:
        read_corpus([path])
    assert "\n" not in str(caught.value)


@once(TABLES, "texts", [["", "  "], []])
def test_a_table_without_a_sentence_is_refused(tmp_path, kind, texts):
    column = pyarrow.array(texts, pyarrow.string()) if kind == ".parquet" else texts
    path = written(tmp_path, kind, content(kind, {"text": column}))
    with pytest.raises(InputError, match=rf"{path.name} holds no sentence"):
        read_corpus([path], column="text")


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_standard_input_without_a_sentence_is_refused(monkeypatch, data):
    stdin(monkeypatch, data)
    with pytest.raises(InputError, match="holds no sentence"):
        read_corpus(["-"])


def test_no_source_is_refused():
    with pytest.raises(InputError, match="holds no sentence"):
        read_corpus([])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"missing\.csv\.gz does not exist"):
        read_corpus([tmp_path / "missing.csv.gz"])


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (located, "corpus.doc"),
        (read_corpus, "corpus.doc"),
        (read_corpus, "corpus"),
        (read_corpus, "corpus.gz"),
        (read_corpus, "corpus.txt.zip"),
    ],
)
def test_an_unknown_ending_is_refused_and_the_known_are_listed(tmp_path, read, name):
    (tmp_path / name).write_text("A cat\n")
    hint = r'.*name the format by --format txt \(in Python format="txt"\)$'
    with pytest.raises(
        InputError, match=rf"\.txt, \.csv, \.tsv, \.jsonl, \.parquet.*; {hint}"
    ) as caught:
        read(tmp_path / name)
    assert name in str(caught.value)


def test_any_bad_source_is_refused_before_reading(tmp_path):
    (tmp_path / "good.txt").write_text("A cat\n")
    with pytest.raises(InputError, match=r"bad\.txt does not exist"):
        checked_corpus([tmp_path / "good.txt", "-", tmp_path / "bad.txt"])


def test_sources_are_located_without_reading(tmp_path, monkeypatch):
    stdin(monkeypatch, b"A cat\n")
    (tmp_path / "bad.jsonl").write_text("not json\n")
    checked_corpus(["-", tmp_path / "bad.jsonl"])
    assert read_corpus(["-"]) == ["A cat"]


@every_text_kind
def test_text_that_is_not_utf8_is_refused(tmp_path, kind):
    data = content(kind, {"text": ["A cat", "Caf__", "A dog"]}).replace(b"f__", b"f\xe9")
    path = written(tmp_path, kind, data)
    with pytest.raises(InputError, match=rf"{path.name} is not UTF-8 .*line [23].*Windows-1252"):
        read_corpus([path])


@every_text_kind
def test_utf16_is_refused_by_name(tmp_path, kind):
    text = content(kind, {"text": ["A cat", "A dog"]}).decode()
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path = written(tmp_path, kind, text.encode(encoding))
        with pytest.raises(InputError, match=rf"{path.name}.* UTF-16.*; convert it to UTF-8"):
            read_corpus([path])


@every_text_kind
def test_a_nul_character_is_named_by_line(tmp_path, kind):
    data = content(kind, {"text": ["A cat", "A__dog"]}).replace(b"__", b"\0")
    path = written(tmp_path, kind, data)
    with pytest.raises(InputError, match=rf"{path.name} is not UTF-8 text: line [23]; .* NUL "):
        read_corpus([path])


def test_standard_input_that_is_not_utf8_is_refused(monkeypatch):
    stdin(monkeypatch, b"A cat\nCaf\xe9\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_corpus(["-"])


def test_standard_input_is_utf8_whatever_the_locale(monkeypatch):
    data = io.BytesIO("A caf\u00e9\n".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="latin-1"))
    assert read_corpus(["-"]) == ["A café"]


def test_a_stand_in_for_standard_input_may_have_no_bytes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("A cat\nA dog\n"))
    assert read_corpus(["-"]) == ["A cat", "A dog"]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
OTHERS = {
    "a git-lfs pointer": POINTER,
    "a zip archive": b"PK\x03\x04\x14\0\0\0",
    "packed with gzip": gzip.compress(b"A cat\n"),
    "a .parquet file": content(".parquet", {"text": ["A cat"]}),
    "a PDF": b"%PDF-1.7\n",
    "XML": b'<?xml version="1.0"?>\n<a/>\n',
    "a .npy file": b"\x93NUMPY\x01\0v\0",
    "a web page": b"<!DOCTYPE html>\n<html>\n",
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_file_that_is_something_else_than_its_name_says_is_refused(tmp_path, other):
    for kind in TEXT_KINDS if "parquet" in other else KINDS:
        path = written(tmp_path, kind, OTHERS[other])
        with pytest.raises(InputError, match=rf"^{path} is {other}"):
            read_corpus([path])


def test_what_is_packed_is_to_be_unpacked_where_no_name_helps(tmp_path, monkeypatch):
    packed = gzip.compress(b"A cat\n")
    stdin(monkeypatch, packed)
    twice = written(tmp_path, ".txt", packed, packed=True)
    for source in ("-", twice):
        with pytest.raises(InputError, match=r"is packed with gzip; unpack it"):
            read_corpus(source)


def test_text_about_such_files_is_text(tmp_path):
    lines = ["PAR1 and GGUF are marks.", "BZh too", "PK is another", "version 2 of git-lfs"]
    assert [contents(line.encode()) for line in lines] == [None] * 4


# Formats.


@every_kind
def test_a_format_counts_for_more_than_the_ending(tmp_path, kind):
    data = content(kind, {"text": SENTENCES})
    for name in ("corpus", "wiki.en", "c.txt", "c.gz"):
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        for read in (read_corpus, stream_corpus, checked_corpus):
            assert list(read([tmp_path / name], format=kind[1:])) == SENTENCES
        located(tmp_path / name, format=kind[1:])


@every_kind
def test_standard_input_may_have_any_format(monkeypatch, kind):
    stdin(monkeypatch, content(kind, {"text": SENTENCES}))
    assert list(checked_corpus(["-"], format=kind[1:])) == SENTENCES


def test_an_unknown_format_is_refused(tmp_path):
    (tmp_path / "c.txt").write_text("A cat\n")
    with pytest.raises(InputError, match="format must be one of .*'txt', 'csv', .*, got 'doc'"):
        located(tmp_path / "c.txt", format="doc")


@pytest.mark.parametrize("kind", [".txt", ".csv", ".parquet"])
def test_a_pipe_is_read_once(tmp_path, kind):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = content(kind, {"text": SENTENCES})
    writer = threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True)
    writer.start()
    assert list(checked_corpus([pipe], format=kind[1:])) == SENTENCES
    writer.join()


@every_kind
def test_a_gzip_file_that_breaks_off_is_refused(tmp_path, kind):
    sentences = [f"sentence {number} of {number**3}" for number in range(500)]
    path = written(tmp_path, kind, content(kind, {"text": sentences}), packed=True)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=rf"{path.name} is not a whole gzip file"):
        read_corpus([path])


@once(KINDS, "kept", [10, 0])
def test_a_gzip_file_that_is_none_is_refused(tmp_path, kind, kept):
    path = written(tmp_path, kind, content(kind, {"text": SENTENCES}), packed=True)
    path.write_bytes(path.read_bytes()[:kept] + b"\xff" * 40)
    with pytest.raises(InputError, match=rf"{path.name} is not a whole gzip file"):
        read_corpus([path])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"A cat\n",
        lambda data: data[:100],
        lambda data: data[:4] + b"\xff" * 40 + data[44:],
        lambda data: data[:-60] + b"\xff" * 48 + data[-12:],
    ],
    ids=["empty", "text", "cut", "bad-page", "bad-footer"],
)
def test_a_damaged_parquet_file_is_refused(tmp_path, damage):
    data = damage(content(".parquet", {"text": SENTENCES}))
    path = written(tmp_path, ".parquet", data)
    with pytest.raises(InputError, match=rf"{path.name}") as caught:
        read_corpus([path])
    assert "parquet file" in str(caught.value)


def test_parquet_without_its_package_gives_the_line_that_installs_it(tmp_path, monkeypatch):
    path = written(tmp_path, ".parquet", content(".parquet", {"text": SENTENCES}))
    monkeypatch.setattr("bertflow.errors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertflow\[parquet\]'"):
        read_corpus([path])


def test_one_source_need_not_be_in_a_list(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    for source in (file, str(file), [file]):
        assert read_corpus(source) == ["one", "two"]
        assert list(stream_corpus(source)) == list(checked_corpus(source)) == ["one", "two"]
    for read in (read_corpus, checked_corpus):
        assert list(read(path for path in [file, file])) == ["one", "two"] * 2


def test_what_is_no_source_or_no_argument_is_refused_in_one_line(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    with file.open() as opened:
        for source in (opened, b"a.txt", [b"a.txt"], None, 3, "", ["a.txt", ""]):
            with pytest.raises(InputError, match=r"^a source must be the name of .*, got .*'-'"):
                read_corpus(source)
    for name, value in (("limit", 1.5), ("limit", "3"), ("column", 2), ("blank", "keep")):
        with pytest.raises(InputError, match=rf"^{name} must be .*, got {value!r}$"):
            read_corpus(file, **{name: value})
