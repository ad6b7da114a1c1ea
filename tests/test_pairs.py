"""Graded pairs: rows stay aligned, ungraded ones stay ungraded, and errors name the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertflow.data import DATA_VARIABLE, pairs, read_stsb, sample_pairs, sample_sentences
from bertflow.errors import InputError

PLACES = ["senteval/STS/STSBenchmark", "STS/STSBenchmark", "STSBenchmark", "stsbenchmark", "."]


def row(score: str, first: str, second: str, *more: str) -> str:
    return "\t".join(["main-news", "headlines", "2016", "0001", score, first, second, *more]) + "\n"


def stsb(folder: Path, text: str | bytes, split: str = "test") -> Path:
    """Write a split into a folder and give the folder."""
    data = text.encode() if isinstance(text, str) else text
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"sts-{split}.csv").write_bytes(data)
    return folder


def test_rows_of_seven_or_more_columns_are_pairs(tmp_path):
    text = row("5.0", "a", "b") + row("2.5", "c", "d", "licence", "source") + row("0", "e", "f")
    read = read_stsb(stsb(tmp_path, text))
    assert len(read) == 3
    assert list(read.first) == ["a", "c", "e"]
    assert list(read.second) == ["b", "d", "f"]
    assert list(read.gold) == [5.0, 2.5, 0.0]
    assert (read.task, read.split) == ("stsb", "test")
    assert read.source == str(tmp_path / "sts-test.csv")


def test_a_row_too_short_is_named_by_file_and_line(tmp_path):
    text = (
        row("5", "a", "b") + row("4", "c", "d", "x", "y") + row("3", "e", "f") + "1\t2\t3\t4\t5\n"
    )
    with pytest.raises(InputError, match=r"sts-test\.csv, line 4: 5 columns, expected 7"):
        read_stsb(stsb(tmp_path, text))


def test_quotes_are_plain_characters(tmp_path):
    text = row("5", '"Who ran', "b") + row("4", 'he said "no"', '"') + row("3", '"e"', "f")
    read = read_stsb(stsb(tmp_path, text))
    assert list(read.first) == ['"Who ran', 'he said "no"', '"e"']
    assert list(read.second) == ["b", '"', "f"]


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_score_is_no_score_and_the_rest_stays_aligned(tmp_path, blank):
    text = row("5", "a", "b") + row(blank, "c", "d") + row("1", "e", "f") + row(blank, "g", "h")
    read = read_stsb(stsb(tmp_path, text))
    assert list(read.gold) == [5.0, None, 1.0, None]
    assert list(read.first) == ["a", "c", "e", "g"]


@pytest.mark.parametrize("score", ["x", "5,0", "3.2.1", "nan", "inf", "-inf"])
def test_a_score_that_is_not_a_number_is_named_by_line(tmp_path, score):
    text = row("5", "a", "b") + row(score, "c", "d")
    with pytest.raises(InputError, match=rf"sts-test\.csv, line 2: .*'{re.escape(score)}'"):
        read_stsb(stsb(tmp_path, text))


def test_windows_line_ends_are_no_part_of_the_text(tmp_path):
    text = (row("5", "a", "b") + row("4", "c", "d")).replace("\n", "\r\n")
    assert list(read_stsb(stsb(tmp_path, text)).second) == ["b", "d"]


def test_blank_lines_are_no_rows(tmp_path):
    assert (
        len(read_stsb(stsb(tmp_path, row("5", "a", "b") + "\n" + row("4", "c", "d") + "\n"))) == 2
    )


def test_text_that_is_not_utf8_is_refused(tmp_path):
    data = row("5", "a", "b").encode() + row("4", "caf__", "d").encode().replace(b"f__", b"f\xe9")
    with pytest.raises(InputError, match=r"sts-test\.csv.*UTF-8"):
        read_stsb(stsb(tmp_path, data))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_a_pair_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"sts-test\.csv holds no pair"):
        read_stsb(stsb(tmp_path, text))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("place", PLACES)
def test_every_place_and_split_is_found(tmp_path, place, split):
    stsb(tmp_path / place, row("5", "a", "b"), split)
    for data in [tmp_path, str(tmp_path)]:
        read = read_stsb(data, split)
        assert (len(read), read.split) == (1, split)


def test_the_places_tried_are_listed(tmp_path):
    assert list(pairs.STSB_PLACES) == PLACES
    with pytest.raises(InputError) as caught:
        read_stsb(tmp_path, "dev")
    for place in PLACES:
        assert str(tmp_path / place / "sts-dev.csv") in str(caught.value)


def test_another_split_of_the_same_folder_is_not_taken(tmp_path):
    stsb(tmp_path, row("5", "a", "b"), "train")
    with pytest.raises(InputError, match=r"sts-test\.csv"):
        read_stsb(tmp_path, "test")


def test_the_environment_says_where_the_data_are(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(stsb(tmp_path / "env", row("5", "a", "b"))))
    assert list(read_stsb(None).first) == ["a"]


def test_a_folder_that_is_given_beats_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTFLOW_DATA", str(stsb(tmp_path / "env", row("5", "a", "b"))))
    given = stsb(tmp_path / "given", row("5", "c", "d"))
    assert list(read_stsb(given).first) == ["c"]


def test_no_folder_and_no_environment_says_what_to_do(monkeypatch):
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    with pytest.raises(InputError, match=r"--data.*BERTFLOW_DATA"):
        read_stsb(None)


@pytest.mark.parametrize(("split", "count"), [("train", 5749), ("dev", 1500), ("test", 1379)])
def test_the_real_benchmark_has_its_published_counts(shared_data, split, count):
    read = read_stsb(shared_data, split)
    assert len(read) == len(read.second) == len(read.gold) == count
    assert all(score is not None and 0 <= score <= 5 for score in read.gold)
    assert all(text.strip() for text in [*read.first, *read.second])


def test_the_real_benchmark_keeps_its_first_row(shared_data):
    read = read_stsb(shared_data, "test")
    assert read.first[0] == "A girl is styling her hair."
    assert read.second[0] == "A girl is brushing her hair."
    assert read.gold[0] == 2.5


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
