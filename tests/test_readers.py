"""Reading data sets: every layout gives the same pairs, and every reader meets trouble alike."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertflow.data import (
    CATALOG,
    DATA_VARIABLE,
    read_corpus,
    read_nli,
    read_sentences,
    read_task,
    sources,
)
from bertflow.data.readers import nli_splits, read_texts
from bertflow.errors import InputError, MissingDataError

Cells = tuple[str, str, str]
FIRST = ["A cat sat.", 'He said "no".', "Café, 日本語"]
SECOND = ["A cat was sitting.", '"Who ran', "it's 😀"]
GOLD = ["4.5", "2", "1.0"]
YES_NO = ["entailment", "not_entailment", "entailment"]
THREE = ["entailment", "contradiction", "neutral"]


@dataclass(frozen=True)
class Case:
    """A layout on tiny files: how rows are written, and where an error about one must point.

    `files` gives file names and their text for some rows; `main` holds the sentences, `labelled`
    the labels, `above` is how many lines stand above the first row.
    """

    name: str
    split: str
    place: str
    files: Callable[[Sequence[Cells]], dict[str, str]]
    main: str
    labelled: str
    above: int = 0
    extra: str = "\textra"
    short: str | None = "only one cell"

    def read(self, data: Path):
        kind = CATALOG[self.name].kind
        return (read_nli if kind == "nli" else read_task)(self.name, data, self.split)

    def labels(self, read):
        return list(read.labels if CATALOG[self.name].kind == "nli" else read.gold)

    def good(self) -> list[Cells]:
        labels = {"sts": GOLD, "qnli": YES_NO, "nli": THREE}[CATALOG[self.name].kind]
        return list(zip(FIRST, SECOND, labels, strict=True))

    def expected(self) -> list[object]:
        kind = CATALOG[self.name].kind
        return {"sts": [4.5, 2.0, 1.0], "qnli": [1.0, 0.0, 1.0], "nli": THREE}[kind]

    def write(self, root: Path, rows: Sequence[Cells] | None = None, place: str | None = None):
        folder = root / (self.place if place is None else place)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files(self.good() if rows is None else rows).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", newline="")
        return folder

    def change(self, folder: Path, change: Callable[[bytes], bytes]) -> None:
        """Rewrite the bytes of all files."""
        for name in self.files(self.good()):
            (folder / name).write_bytes(change((folder / name).read_bytes()))


def lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def sts(prefix: str, year: str, *more: str) -> Callable[[Sequence[Cells]], dict[str, str]]:
    subset, *others = CATALOG[year].subsets

    def files(rows: Sequence[Cells]) -> dict[str, str]:
        made = {
            f"{prefix}.input.{subset}.txt": lines([(a, b, *more) for a, b, _ in rows]),
            f"{prefix}.gs.{subset}.txt": lines([(gold,) for _, _, gold in rows]),
        }
        for other in others:
            made[f"{prefix}.input.{other}.txt"] = f"{other} a\t{other} b\n"
            made[f"{prefix}.gs.{other}.txt"] = "3\n"
        return made

    return files


def table(file: str, header: str, row: str) -> Callable[[Sequence[Cells]], dict[str, str]]:
    """Cells of a row: 1, 2, 3 for first, second, label; anything else as it is."""

    def files(rows: Sequence[Cells]) -> dict[str, str]:
        made = [[dict(zip("123", cells, strict=True)).get(c, c) for c in row] for cells in rows]
        return {file: lines(([header.split()] if header else []) + made)}

    return files


def jsonl(file: str) -> Callable[[Sequence[Cells]], dict[str, str]]:
    def files(rows: Sequence[Cells]) -> dict[str, str]:
        objects = [
            {"annotator_labels": [], "gold_label": c, "sentence1": a, "sentence2": b}
            for a, b, c in rows
        ]
        return {file: "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects)}

    return files


def aligned(rows: Sequence[Cells]) -> dict[str, str]:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    names = ["s1.dev", "s2.dev", "labels.dev"]
    return {
        name: lines([(c,) for c in column]) for name, column in zip(names, columns, strict=True)
    }


SICK = "pair_ID sentence_A sentence_B relatedness_score entailment_judgment"
SICK_ALL = (
    "pair_ID sentence_A sentence_B entailment_label relatedness_score entailment_AB SemEval_set"
)
NLI_TEXT = "gold_label sentence1_binary_parse sentence2_binary_parse sentence1 sentence2 pairID"
GLUE_SNLI = "index captionID pairID sentence1 sentence2 label1 gold_label"
GLUE_MNLI = "index promptID pairID genre sentence1 sentence2 label1 gold_label"


def header_case(name: str, split: str, place: str, file: str, header: str, row: str) -> Case:
    return Case(name, split, place, table(file, header, row), file, file, above=1)


def jsonl_case(name: str, split: str, place: str, file: str) -> Case:
    return Case(name, split, place, jsonl(file), file, file, short='{"sentence1": "a"}')


CASES = {
    "sts13": Case(
        "sts13",
        "test",
        "STS/STS13-en-test",
        sts("STS", "sts13"),
        "STS.input.FNWN.txt",
        "STS.gs.FNWN.txt",
    ),
    "sts16-archive": Case(
        "sts16",
        "test",
        "sts2016-english-with-gs-v1.0",
        sts("STS2016", "sts16", "source 1", "source 2"),
        "STS2016.input.answer-answer.txt",
        "STS2016.gs.answer-answer.txt",
    ),
    "stsb": Case(
        "stsb",
        "dev",
        "STS/STSBenchmark",
        table("sts-dev.csv", "", "gfyi312"),
        "sts-dev.csv",
        "sts-dev.csv",
    ),
    "stsb-glue": header_case(
        "stsb",
        "dev",
        "glue/STS-B",
        "dev.tsv",
        "index genre filename year sentence1 sentence2 score",
        "igfy123",
    ),
    "sick-r": header_case("sick-r", "dev", "senteval/SICK", "SICK_trial.txt", SICK, "i123N"),
    "sick-r-archive": header_case(
        "sick-r", "test", ".", "sick_test_annotated/SICK_test_annotated.txt", SICK, "i123N"
    ),
    "sick-r-single": header_case(
        "sick-r", "dev", "SICK", "SICK.txt", SICK_ALL, ["i", "1", "2", "N", "3", "A", "TRIAL"]
    ),
    "sick-e": header_case("sick-e", "dev", "SICK", "SICK_trial.txt", SICK, "i1243"),
    "sick-e-single": header_case(
        "sick-e", "train", "SICK", "SICK.txt", SICK_ALL, ["i", "1", "2", "3", "4", "A", "TRAIN"]
    ),
    "qnli": header_case(
        "qnli", "dev", "glue/QNLI", "dev.tsv", "index question sentence label", "i123"
    ),
    "snli-shared": jsonl_case("snli", "dev", "nli", "snli_dev.jsonl"),
    "snli-jsonl": jsonl_case("snli", "dev", "snli_1.0", "snli_1.0_dev.jsonl"),
    "snli-txt": header_case("snli", "dev", "snli_1.0", "snli_1.0_dev.txt", NLI_TEXT, "3pp12i"),
    "snli-glue": header_case("snli", "dev", "glue/SNLI", "dev.tsv", GLUE_SNLI, "icp12x3"),
    "snli-senteval": Case(
        "snli", "dev", "senteval/SNLI", aligned, "s1.dev", "labels.dev", short=None
    ),
    "mnli-jsonl": jsonl_case(
        "mnli", "dev-matched", "multinli_1.0", "multinli_1.0_dev_matched.jsonl"
    ),
    "mnli-txt": header_case(
        "mnli", "dev-mismatched", ".", "multinli_1.0_dev_mismatched.txt", NLI_TEXT, "3pp12i"
    ),
    "mnli-glue": header_case(
        "mnli", "dev-matched", "glue/MNLI", "dev_matched.tsv", GLUE_MNLI, "ippg12x3"
    ),
}
# One of each way in which rows are read; the layouts of a way differ by their declaration alone.
WAYS = {key: CASES[key] for key in ("sts13", "sick-r", "snli-jsonl", "snli-senteval")}
SCORED = {key: case for key, case in WAYS.items() if CATALOG[case.name].kind == "sts"}
NLI = {key: CASES[key] for key in ("sick-e", "snli-jsonl", "snli-senteval")}
NAMED = {**NLI, "qnli": CASES["qnli"]}
HEADED = {key: CASES[key] for key in ("sick-r", "qnli", "snli-txt")}
# Tab-separated, where a row may be too long.
TABBED = {key: case for key, case in WAYS.items() if key not in ("snli-jsonl", "snli-senteval")}
SINGLE = {key: case for key, case in CASES.items() if case.main == "SICK.txt"}
PAIRED = {key: WAYS[key] for key in ("sts13", "snli-senteval")}


def over(cases: dict[str, Case]):
    return pytest.mark.parametrize("case", cases.values(), ids=cases)


def once(name: str, values: Sequence[str], cases: dict[str, Case]):
    """The first case with every value, and the others with the first."""
    (first, case), *others = cases.items()
    made = [(first, case, value) for value in values]
    made += [(key, other, values[0]) for key, other in others]
    return pytest.mark.parametrize(
        ("case", name),
        [(one, value) for _, one, value in made],
        ids=[f"{key}-{value}" for key, _, value in made],
    )


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def check(case: Case, read) -> None:
    """The good rows, and for a year's other subsets a row each."""
    assert list(read.first[:3]) == FIRST
    assert list(read.second[:3]) == SECOND
    assert case.labels(read)[:3] == case.expected()
    assert len(read) == len(read.second) == len(case.labels(read))
    assert len(read) == 3 + max(0, len(CATALOG[case.name].subsets) - 1)
    assert dict(read.skipped) == {}


# Layouts and places.


@over(CASES)
def test_every_layout_gives_the_same_pairs(tmp_path, case):
    folder = case.write(tmp_path)
    read = case.read(tmp_path)
    check(case, read)
    assert read.split == case.split
    assert Path(read.source) in (folder / case.main, folder)


@over(CASES)
def test_the_folder_itself_or_its_parent_may_be_given(tmp_path, case):
    folder = case.write(tmp_path)
    check(case, case.read(folder))
    if folder.parent != tmp_path.parent:
        check(case, case.read(folder.parent))
    check(case, case.read(str(tmp_path)))


ARCHIVES = {
    "sts12": ["test-gold", "STS2012-en-test/test-gold"],
    "sts13": ["test-gs"],
    "sts14": ["sts-en-test-gs-2014", "sts-en-gs-2014"],
    "sts15": ["test_evaluation_task2a"],
    "sts16": ["sts2016-english-with-gs-v1.0"],
}


HOMES = ["senteval", "SentEval/data/downstream", "data/downstream", "downstream", "."]
YEARS = [f"sts{year}" for year in range(12, 17)]


@pytest.mark.parametrize(("name", "home"), list(zip(YEARS, HOMES, strict=True)))
def test_the_years_are_found_where_senteval_puts_them(tmp_path, name, home):
    case = year_case(name, f"{home}/STS/STS{name[3:]}-en-test")
    case.write(tmp_path)
    check(case, case.read(tmp_path))


@pytest.mark.parametrize(("name", "place"), [(n, p) for n, ps in ARCHIVES.items() for p in ps])
def test_the_years_are_found_where_their_archives_unpack(tmp_path, name, place):
    case = year_case(name, place)
    case.write(tmp_path)
    check(case, case.read(tmp_path))


def year_case(name: str, place: str, prefix: str = "STS") -> Case:
    subset = next(iter(CATALOG[name].subsets))
    main, gold = f"{prefix}.input.{subset}.txt", f"{prefix}.gs.{subset}.txt"
    return Case(name, "test", place, sts(prefix, name), main, gold)


@pytest.mark.parametrize("name", YEARS)
def test_a_year_tells_its_own_folder_from_the_others(tmp_path, name):
    """Several have a subset called headlines."""
    for other in YEARS:
        year_case(other, other).write(tmp_path)
        if other == name:
            check(year_case(name, other), read_task(name, tmp_path / other))
        else:
            with pytest.raises(InputError, match=f"no data for {name}"):
                read_task(name, tmp_path / other)


def test_the_subset_of_each_pair_is_known(tmp_path):
    CASES["sts13"].write(tmp_path)
    assert list(read_task("sts13", tmp_path).subset) == ["FNWN"] * 3 + ["headlines", "OnWN"]


def test_smt_is_no_part_of_2013(tmp_path):
    folder = CASES["sts13"].write(tmp_path)
    (folder / "STS.input.SMT.txt").write_text("a\tb\n")
    (folder / "STS.gs.SMT.txt").write_text("1\n")
    assert set(read_task("sts13", tmp_path).subset) == {"FNWN", "headlines", "OnWN"}


@over(PAIRED)
def test_a_folder_that_lacks_a_file_is_named_with_it(tmp_path, case):
    folder = case.write(tmp_path)
    (folder / case.labelled).unlink()
    with pytest.raises(InputError, match=f"{case.labelled} cannot be read: No such file") as caught:
        case.read(tmp_path)
    assert str(folder) in str(caught.value)


def test_a_task_without_subsets_has_none(tmp_path):
    CASES["stsb"].write(tmp_path)
    assert list(read_task("stsb", tmp_path, "dev").subset) == []


def test_glue_files_of_another_data_set_are_not_taken(tmp_path):
    """train.tsv is the name of five."""
    mnli = table("train.tsv", GLUE_MNLI, "ippg12x3")
    Case("mnli", "train", "glue/MNLI", mnli, "train.tsv", "train.tsv").write(tmp_path)
    here = tmp_path / "glue/MNLI"
    assert list(read_nli("mnli", here, "train").labels) == THREE
    for read, name in [(read_nli, "snli"), (read_task, "stsb"), (read_task, "qnli")]:
        with pytest.raises(InputError, match=f"no data for {name}"):
            read(name, here, "train")


def test_aligned_files_are_taken_only_where_a_folder_is_called_snli(tmp_path):
    case = CASES["snli-senteval"]
    case.write(tmp_path, place="AllNLI")
    with pytest.raises(InputError, match="no data for snli"):
        read_nli("snli", tmp_path / "AllNLI", "dev")


def test_glues_labels_of_snli_are_the_last_cell(tmp_path):
    """Rows that five annotators labelled have four more cells than the header."""
    (tmp_path / "SNLI").mkdir()
    five = ["1", "c", "p", "a", "b", "neutral", *["contradiction"] * 4, "contradiction"]
    one = ["2", "c", "p", "c", "d", "entailment", "entailment"]
    (tmp_path / "SNLI/train.tsv").write_text(lines([GLUE_SNLI.split(), five, one]))
    assert list(read_nli("snli", tmp_path).labels) == ["contradiction", "entailment"]


def test_splits_in_one_file_are_told_apart(tmp_path):
    rows = [
        ["1", f"a {s}", "b", "NEUTRAL", "3", "A", s] for s in ("TRAIN", "TEST", "TRIAL", "TEST")
    ]
    (tmp_path / "SICK.txt").write_text(lines([SICK_ALL.split(), *rows]))
    assert list(read_task("sick-r", tmp_path).first) == ["a TEST"] * 2
    assert list(read_task("sick-r", tmp_path, "dev").first) == ["a TRIAL"]
    assert list(read_nli("sick-e", tmp_path).first) == ["a TRAIN"]


# Quotes, line ends, encodings.


@over(WAYS)
def test_quotes_are_plain_characters(tmp_path, case):
    label = case.good()[0][2]
    rows = [('"Who ran', "b", label), ("c", 'd "e"', label), ('"f"', '"', label)]
    case.write(tmp_path, rows)
    read = case.read(tmp_path)
    assert list(read.first[:3]) == ['"Who ran', "c", '"f"']
    assert list(read.second[:3]) == ["b", 'd "e"', '"']


@over(WAYS)
def test_only_line_feeds_end_a_line(tmp_path, case):
    label = case.good()[0][2]
    odd = "one\rtwo\u2028three\x85four\x0cfive"
    case.write(tmp_path, [(odd, "b", label), ("c", odd, label)])
    read = case.read(tmp_path)
    assert list(read.first[:2]) == [odd, "c"]
    assert list(read.second[:2]) == ["b", odd]


@over(WAYS)
def test_windows_line_ends_are_no_part_of_the_text(tmp_path, case):
    case.change(case.write(tmp_path), lambda data: data.replace(b"\n", b"\r\n"))
    check(case, case.read(tmp_path))


@over(WAYS)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, case):
    case.change(case.write(tmp_path), lambda data: b"\xef\xbb\xbf" + data)
    check(case, case.read(tmp_path))


@over(WAYS)
def test_a_last_line_without_an_end_counts(tmp_path, case):
    case.change(case.write(tmp_path), lambda data: data.removesuffix(b"\n"))
    check(case, case.read(tmp_path))


@over(WAYS)
def test_text_that_is_not_utf8_is_refused(tmp_path, case):
    folder = case.write(tmp_path)
    (folder / case.main).write_bytes((folder / case.main).read_bytes().replace(b"cat", b"c\xe9t"))
    with pytest.raises(InputError, match=rf"{re.escape(case.main)} is not UTF-8"):
        case.read(tmp_path)


@over(WAYS)
def test_space_around_a_sentence_stays(tmp_path, case):
    case.write(tmp_path, [(" a ", "b ", case.good()[0][2])])
    read = case.read(tmp_path)
    assert (read.first[0], read.second[0]) == (" a ", "b ")


# Rows.


def with_line(case: Case, folder: Path, line: str, file: str | None = None) -> str:
    """Put a line behind the second row; what an error about it must begin with."""
    path = folder / (case.main if file is None else file)
    text = path.read_text(encoding="utf-8").split("\n")
    at = case.above + 2
    path.write_text("\n".join([*text[:at], line, *text[at:]]), encoding="utf-8")
    return re.escape(f"{path}, line {at + 1}:")


@over(TABBED)
def test_more_columns_are_ignored(tmp_path, case):
    folder = case.write(tmp_path)
    path = folder / case.main
    text = path.read_text(encoding="utf-8").split("\n")
    text[case.above + 1] += "\tmore\tand more"
    path.write_text("\n".join(text), encoding="utf-8")
    check(case, case.read(tmp_path))


@over({key: case for key, case in WAYS.items() if case.short and key != "qnli"})
def test_a_row_too_short_is_named_by_file_and_line(tmp_path, case):
    folder = case.write(tmp_path)
    place = with_line(case, folder, case.short)
    if case.labelled != case.main:
        with_line(case, folder, "3", case.labelled)
    with pytest.raises(InputError, match=place):
        case.read(tmp_path)


def test_rows_of_seven_nine_and_seven_columns_are_three_pairs_and_five_is_an_error(tmp_path):
    row = ["genre", "file", "2016", "1", "3.0", "a", "b"]
    path = tmp_path / "sts-test.csv"
    path.write_text(lines([row, [*row, "licence", "source"], row]))
    assert len(read_task("stsb", tmp_path)) == 3
    path.write_text(lines([row, [*row, "licence", "source"], row, row[:5]]))
    with pytest.raises(InputError, match=r"sts-test\.csv, line 4: 5 columns, expected 7"):
        read_task("stsb", tmp_path)


@over({key: case for key, case in WAYS.items() if key not in PAIRED})
def test_blank_lines_are_no_rows(tmp_path, case):
    folder = case.write(tmp_path)
    with_line(case, folder, "")
    with_line(case, folder, "  ")
    check(case, case.read(tmp_path))


@pytest.mark.parametrize(("side", "blank"), [(0, ""), (1, "  ")])
@over(WAYS)
def test_a_blank_sentence_is_named_by_file_and_line(tmp_path, case, side, blank):
    rows = case.good()
    row = list(rows[1])
    row[side] = blank
    folder = case.write(tmp_path, [rows[0], tuple(row), rows[2]])
    main = "s2.dev" if side and case.main == "s1.dev" else case.main
    place = re.escape(f"{folder / main}, line {case.above + 2}:")
    with pytest.raises(InputError, match=rf"{place} a sentence is blank"):
        case.read(tmp_path)


@over({key: case for key, case in WAYS.items() if not CATALOG[case.name].subsets})
def test_a_file_without_a_row_is_refused(tmp_path, case):
    folder = case.write(tmp_path, [])
    with pytest.raises(InputError, match="holds no pair") as caught:
        case.read(tmp_path)
    assert str(folder) in str(caught.value)
    for file in case.files(case.good()):
        (folder / file).write_text("")
    with pytest.raises(InputError, match="holds no pair"):
        case.read(tmp_path)


def test_years_without_a_row_are_refused(tmp_path):
    folder = CASES["sts13"].write(tmp_path)
    for path in folder.iterdir():
        path.write_text("")
    with pytest.raises(InputError, match="holds no pair"):
        read_task("sts13", tmp_path)


@over(HEADED)
def test_a_header_that_lacks_a_column_is_refused_and_those_there_are_listed(tmp_path, case):
    folder = case.write(tmp_path)
    path = folder / case.main
    header, rest = path.read_text(encoding="utf-8").split("\n", 1)
    columns = header.split("\t")
    second = next(c for c in ("sentence2", "sentence_B", "sentence") if c in columns)
    path.write_text("\t".join("x" if c == second else c for c in columns) + "\n" + rest)
    with pytest.raises(InputError, match=rf"no column '{second}'; it has .*'x'"):
        case.read(tmp_path)


# Scores.


@once("bad", ["x", "5,0", "3.2.1", "nan", "inf", "-inf", "1_0", "0x1"], SCORED)
def test_a_score_that_is_not_a_number_is_named_by_file_and_line(tmp_path, case, bad):
    rows = case.good()
    folder = case.write(tmp_path, [rows[0], (*rows[1][:2], bad)])
    place = re.escape(f"{folder / case.labelled}, line {case.above + 2}:")
    with pytest.raises(InputError, match=rf"{place} score '{re.escape(bad)}' is not a number"):
        case.read(tmp_path)


@once("bad", ["5.01", "-0.1", "100"], SCORED)
def test_a_score_out_of_range_is_named_by_file_and_line(tmp_path, case, bad):
    rows = case.good()
    folder = case.write(tmp_path, [rows[0], (*rows[1][:2], bad)])
    low, high = CATALOG[case.name].score_range
    place = re.escape(f"{folder / case.labelled}, line {case.above + 2}:")
    with pytest.raises(InputError, match=rf"{place} score '{bad}' .* between {low} and {high}"):
        case.read(tmp_path)


@over(SCORED)
def test_the_ends_of_the_range_are_scores(tmp_path, case):
    low, high = CATALOG[case.name].score_range
    case.write(tmp_path, [("a", "b", str(low)), ("c", "d", f"{high}.000")])
    assert list(case.read(tmp_path).gold[:2]) == [low, high]


@once("blank", ["", " "], SCORED)
def test_a_blank_score_is_no_score_and_the_rest_stays_aligned(tmp_path, case, blank):
    """Four lines, graded 5, blank, 1, blank: the first and the third count."""
    rows = [("a", "b", "5"), ("c", "d", blank), ("e", "f", "1"), ("g", "h", blank)]
    case.write(tmp_path, rows)
    read = case.read(tmp_path)
    assert list(read.first[:4]) == ["a", "c", "e", "g"]
    assert list(read.gold[:4]) == [5.0, None, 1.0, None]
    assert dict(read.skipped) == {}
    assert read.binary is False


@over(SCORED)
def test_pairs_of_which_none_is_graded_are_refused(tmp_path, case):
    folder = case.write(tmp_path, [("a", "b", ""), ("c", "d", " ")])
    for path in folder.rglob("*.gs.*"):
        path.write_text("\n" * path.read_text().count("\n"))
    with pytest.raises(InputError, match="none of its . pairs has a gold score"):
        case.read(tmp_path)


@over(PAIRED)
@pytest.mark.parametrize("change", [-1, 1])
def test_files_of_different_length_are_named_with_their_lengths(tmp_path, case, change):
    folder = case.write(tmp_path)
    path = folder / case.labelled
    text = path.read_text().splitlines()
    text = text[:-1] if change < 0 else [*text, text[0]]
    path.write_text("".join(line + "\n" for line in text))
    message = rf"{re.escape(case.main)} has 3 lines, but .*{re.escape(path.name)} has {3 + change}"
    with pytest.raises(InputError, match=message):
        case.read(tmp_path)


def test_glue_publishes_sts_b_test_without_scores(tmp_path):
    (tmp_path / "test.tsv").write_text("")
    folder = tmp_path / "glue/STS-B"
    folder.mkdir(parents=True)
    (folder / "test.tsv").write_text("index\tgenre\tsentence1\tsentence2\n0\tg\ta\tb\n")
    with pytest.raises(InputError, match=r"test\.tsv: none of its 1 pairs has a gold score"):
        read_task("stsb", tmp_path)
    assert read_sentences("stsb", tmp_path) == ["a", "b"]


# Labels.


@once("bad", ["maybe", "0", "1", "entail"], NAMED)
def test_an_unknown_label_is_named_by_file_and_line(tmp_path, case, bad):
    rows = case.good()
    folder = case.write(tmp_path, [rows[0], (*rows[1][:2], bad)])
    place = re.escape(f"{folder / case.labelled}, line {case.above + 2}:")
    with pytest.raises(InputError, match=rf"{place} unknown label '{bad}'; expected one of"):
        case.read(tmp_path)


@over(NLI)
def test_contradictory_is_contradiction_and_capitals_do_not_matter(tmp_path, case):
    case.write(tmp_path, [("a", "b", "contradictory"), ("c", "d", "NEUTRAL")])
    assert list(case.read(tmp_path).labels) == ["contradiction", "neutral"]


@over(NLI)
def test_pairs_without_a_gold_label_are_skipped_and_counted(tmp_path, case):
    case.write(tmp_path, [("a", "b", "-"), ("c", "d", "neutral"), ("e", "f", "-")])
    read = case.read(tmp_path)
    assert (list(read.first), list(read.labels)) == (["c"], ["neutral"])
    assert dict(read.skipped) == {"no gold label": 2}


@over(NLI)
def test_a_file_without_any_gold_label_is_refused(tmp_path, case):
    case.write(tmp_path, [("a", "b", "-"), ("c", "d", "-")])
    with pytest.raises(InputError, match=r"holds no pair \(2 skipped: no gold label\)"):
        case.read(tmp_path)


def qnli(folder: Path, *rows: str, header: str = "index\tquestion\tsentence\tlabel") -> Path:
    (folder / "dev.tsv").write_text("".join(row + "\n" for row in (header, *rows)))
    return folder


def test_qnli_questions_that_open_a_quote_swallow_no_row(tmp_path):
    rows = [
        '0\t"Who ran\tA ate\tentailment',
        "1\tWho sat\tB ate\tnot_entailment",
        '2\tWho ate\t"C ate\tentailment',
        "3\tWho\tD\tnot_entailment",
    ]
    read = read_task("qnli", qnli(tmp_path, *rows))
    assert list(read.first) == ['"Who ran', "Who sat", "Who ate", "Who"]
    assert list(read.second) == ["A ate", "B ate", '"C ate', "D"]
    assert list(read.gold) == [1.0, 0.0, 1.0, 0.0]
    assert read.binary is True


def test_qnli_rows_that_are_cut_off_are_skipped_and_counted(tmp_path):
    good = [f"{n}\tq{n}\ts{n}\tentailment" for n in range(4)]
    read = read_task("qnli", qnli(tmp_path, *good[:2], "7\tq", "8\tq\ts", *good[2:]))
    assert list(read.first) == ["q0", "q1", "q2", "q3"]
    assert list(read.second) == ["s0", "s1", "s2", "s3"]
    assert dict(read.skipped) == {"incomplete line": 1, "no label": 1}


@pytest.mark.parametrize("cut", ["7", "7\t", "7\tq\t", "7\tq\t\t", "7\tq\t \t"])
def test_qnli_rows_may_be_cut_off_behind_a_tab(tmp_path, cut):
    read = read_task("qnli", qnli(tmp_path, "0\tq\ts\tentailment", cut))
    assert (len(read), dict(read.skipped)) == (1, {"incomplete line": 1})


@pytest.mark.parametrize("label", ["", " ", "-"])
def test_qnli_rows_without_a_label_are_skipped_and_counted(tmp_path, label):
    read = read_task("qnli", qnli(tmp_path, "0\tq\ts\tentailment", f"1\tq\ts\t{label}"))
    assert (len(read), dict(read.skipped)) == (1, {"no label": 1})


def test_qnli_files_without_labels_are_refused_but_their_text_is_read(tmp_path):
    folder = qnli(tmp_path, "0\tq0\ts0", "1\tq1\ts1", header="index\tquestion\tsentence")
    with pytest.raises(InputError, match=r"dev\.tsv holds no pair \(2 skipped: no label\)"):
        read_task("qnli", folder)
    assert read_sentences("qnli", folder) == ["q0", "s0", "q1", "s1"]


def test_qnli_with_one_class_left_is_read(tmp_path):
    read = read_task("qnli", qnli(tmp_path, "0\tq\ts\tentailment"))
    assert list(read.gold) == [1.0]


def test_a_label_that_is_a_number_in_jsonl_is_unknown(tmp_path):
    row = {"gold_label": 0, "sentence1": "a", "sentence2": "b"}
    (tmp_path / "snli_dev.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match=r"snli_dev\.jsonl, line 1: unknown label '0'"):
        read_nli("snli", tmp_path, "dev")


@pytest.mark.parametrize(
    ("line", "message"),
    [("a\tb", "not JSON"), ("[1]", r"got \[1\]; expected"), ('"a"', "got 'a'; expected")],
)
def test_a_line_that_is_no_object_is_named(tmp_path, line, message):
    good = '{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}'
    (tmp_path / "snli_dev.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(InputError, match=rf"snli_dev\.jsonl, line 2: {message}"):
        read_nli("snli", tmp_path, "dev")


def test_text_that_is_no_text_in_jsonl_is_named(tmp_path):
    (tmp_path / "snli_dev.jsonl").write_text('{"gold_label": "x", "sentence1": 0, "sentence2": ""}')
    with pytest.raises(InputError, match=r"line 1: 'sentence1' is not text"):
        read_nli("snli", tmp_path, "dev")


# The unlabelled text of a task.


@over(WAYS)
def test_the_sentences_are_both_sides_of_every_pair(tmp_path, case):
    case.write(tmp_path)
    texts = read_sentences(case.name, tmp_path)
    assert texts[:6] == [text for pair in zip(FIRST, SECOND, strict=True) for text in pair]
    assert len(texts) == 2 * (3 + max(0, len(CATALOG[case.name].subsets) - 1))


@over(WAYS)
def test_the_sentences_of_pairs_without_gold_are_there_and_repeats_stay(tmp_path, case):
    ungraded = "-" if case.name != "qnli" and CATALOG[case.name].kind == "nli" else ""
    case.write(tmp_path, [("a", "b", ungraded), ("a", "b", ungraded), ("c", "a", ungraded)])
    assert read_sentences(case.name, tmp_path)[:6] == ["a", "b", "a", "b", "c", "a"]


def test_the_sentences_are_those_of_all_splits_that_are_there(tmp_path):
    row = ["genre", "file", "2016", "1", "3.0"]
    for split in ("test", "train"):
        (tmp_path / f"sts-{split}.csv").write_text(lines([[*row, f"{split} a", f"{split} b"]]))
    assert read_sentences("stsb", tmp_path) == ["train a", "train b", "test a", "test b"]


def test_the_sentences_of_splits_in_one_file_are_in_the_order_of_the_splits(tmp_path):
    rows = [["1", f"a {s}", f"b {s}", "N", "3", "A", s] for s in ("TEST", "TRIAL", "TRAIN")]
    (tmp_path / "SICK.txt").write_text(lines([SICK_ALL.split(), *rows]))
    expected = [f"{side} {s}" for s in ("TRAIN", "TRIAL", "TEST") for side in "ab"]
    assert read_sentences("sick-r", tmp_path) == expected
    (tmp_path / "SICK.txt").write_text(lines([SICK_ALL.split(), *rows[:2]]))
    with pytest.raises(InputError, match=r"SICK\.txt holds no pair"):
        read_sentences("sick-r", tmp_path)


def test_sentences_of_cut_rows_are_left_out_and_blank_ones_named(tmp_path):
    qnli(tmp_path, "0\tq\ts\tentailment", "7\tq")
    assert read_sentences("qnli", tmp_path) == ["q", "s"]
    qnli(tmp_path, "0\t\ts\tentailment")
    with pytest.raises(InputError, match=r"dev\.tsv, line 2: a sentence is blank"):
        read_sentences("qnli", tmp_path)


def test_a_file_without_a_sentence_is_refused(tmp_path):
    qnli(tmp_path, "7\tq")
    with pytest.raises(InputError, match=r"dev\.tsv holds no pair"):
        read_sentences("qnli", tmp_path)


# What is not there.


def test_the_default_split_is_the_catalogues(tmp_path):
    row = ["genre", "file", "2016", "1", "3.0", "a", "b"]
    (tmp_path / "sts-test.csv").write_text(lines([row]))
    assert read_task("stsb", tmp_path).split == "test"
    assert read_task("qnli", qnli(tmp_path, "0\tq\ts\tentailment")).split == "dev"


@pytest.mark.parametrize("read", [read_task, read_nli, read_sentences])
def test_an_unknown_name_is_refused_and_the_known_are_listed(read):
    with pytest.raises(InputError, match=r"unknown .* 'stsx'; expected one of .*(sick-e|sick-r)"):
        read("stsx")


@pytest.mark.parametrize(("read", "name"), [(read_task, "snli"), (read_nli, "qnli")])
def test_a_data_set_of_another_kind_is_refused(read, name):
    with pytest.raises(InputError, match=f"'{name}'; expected one of"):
        read(name)


@pytest.mark.parametrize(
    ("read", "name", "split"),
    [(read_task, "sts12", "train"), (read_task, "qnli", "test"), (read_nli, "mnli", "dev")],
)
def test_an_unknown_split_is_refused_and_the_known_are_listed(tmp_path, read, name, split):
    known = ", ".join(CATALOG[name].splits)
    with pytest.raises(InputError, match=f"split of {name} '{split}'; expected one of {known}"):
        read(name, tmp_path, split)


@pytest.mark.parametrize("name", CATALOG)
def test_every_path_that_was_tried_is_in_one_line(tmp_path, name):
    data_set = CATALOG[name]
    read = read_nli if data_set.kind == "nli" else read_task
    with pytest.raises(InputError) as caught:
        read(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert DATA_VARIABLE in message
    for layout in data_set.layouts:
        for folder in layout.folders:
            path = tmp_path / folder / layout.files[data_set.default_split][0]
            assert message.count(f"{path},") + message.count(f"{path};") == 1


def test_the_splits_that_are_there_are_told_and_all_where_none_is(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert nli_splits("snli") == nli_splits("snli", tmp_path) == ("train", "dev", "test")
    (tmp_path / "snli_test.jsonl").write_text("{}")
    assert nli_splits("snli", tmp_path) == ("test",)
    (tmp_path / "snli_dev.jsonl").write_text("{}")
    assert nli_splits("snli", tmp_path) == ("dev", "test")
    assert nli_splits("mnli", tmp_path) == ("train", "dev-matched", "dev-mismatched")
    with pytest.raises(InputError, match="stsb"):
        nli_splits("stsb", tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        nli_splits("snli", tmp_path / "nowhere")


def test_another_split_of_the_same_folder_is_not_taken(tmp_path):
    CASES["stsb"].write(tmp_path)
    with pytest.raises(InputError, match=r"sts-test\.csv"):
        read_task("stsb", tmp_path, "test")


def test_the_environment_says_where_the_data_are(tmp_path, monkeypatch):
    qnli(tmp_path, "0\tq\ts\tentailment")
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path))
    assert list(read_task("qnli").first) == ["q"]
    assert read_sentences("qnli") == ["q", "s"]


def test_a_folder_that_is_given_beats_the_environment(tmp_path, monkeypatch):
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("BERTFLOW_DATA", str(qnli(tmp_path, "0\tq\ts\tentailment")))
    qnli(tmp_path / "given", "0\tasked\ts\tentailment")
    assert list(read_task("qnli", tmp_path / "given").first) == ["asked"]


@pytest.mark.parametrize("value", [None, ""])
def test_no_folder_and_no_environment_says_what_to_do(monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("BERTFLOW_DATA", value)
    with pytest.raises(InputError, match=r"no folder is given.*--data DIR or BERTFLOW_DATA"):
        read_task("stsb")


@pytest.mark.parametrize("name", ["missing", "file.csv"])
def test_a_folder_that_is_none_is_refused_at_once(tmp_path, monkeypatch, name):
    (tmp_path / "file.csv").write_text("")
    with pytest.raises(InputError, match=f"{name} is no folder"):
        read_task("stsb", tmp_path / name)
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / name))
    with pytest.raises(InputError, match=f"{name} is no folder"):
        read_task("stsb")


# Rows and what is left out.


@over({**SCORED, "qnli": CASES["qnli"]})
def test_pairs_know_the_rows_they_are_of(tmp_path, case):
    case.write(tmp_path, case.good())
    found = case.read(tmp_path)
    assert len(found.rows) == len(found)
    assert all(found.rows)


def test_qnli_rows_are_known_by_their_index_and_others_by_their_line(tmp_path):
    good = [f"{n}\tq{n}\ts{n}\tentailment" for n in (70, 3, 5)]
    read = read_task("qnli", qnli(tmp_path, good[0], "7\tq", *good[1:]))
    assert list(read.rows) == ["70", "3", "5"]
    read = read_task(
        "qnli",
        qnli(tmp_path, "q\ts\tentailment", "a\tb\tentailment", header="question\tsentence\tlabel"),
    )
    assert list(read.rows) == ["2", "3"]


def test_rows_that_are_cut_off_are_counted_among_the_text_too(tmp_path):
    qnli(tmp_path, "0\tq\ts\tentailment", "7\tq", "8\tr\tt")
    found = read_texts("qnli", tmp_path)
    assert found.sentences == ["q", "s", "r", "t"]
    assert dict(found.skipped) == {"incomplete line": 1}
    assert read_sentences("qnli", tmp_path) == found.sentences
    qnli(tmp_path, "7\tq", "8")
    with pytest.raises(InputError, match=r"holds no pair \(2 skipped: incomplete line\)"):
        read_texts("qnli", tmp_path)


@pytest.mark.parametrize("name", ["stsb", "qnli"])
def test_a_release_without_labels_counts_as_not_there(tmp_path, name):
    if name == "qnli":
        qnli(tmp_path, "0\tq0\ts0", header="index\tquestion\tsentence")
    else:
        (tmp_path / "STS-B").mkdir()
        (tmp_path / "STS-B/test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    with pytest.raises(MissingDataError, match="there are releases without labels: give one with"):
        read_task(name, tmp_path)


def test_ungraded_pairs_of_any_other_file_are_an_error_not_an_absence(tmp_path):
    (tmp_path / "STSBenchmark").mkdir()
    (tmp_path / "STSBenchmark/sts-train.csv").write_text("a\tb\tc\t1\t\tx\ty\n")
    with pytest.raises(InputError) as caught:
        read_task("stsb", tmp_path, "train")
    assert not isinstance(caught.value, MissingDataError)


# Files that unpack to more than they seem.


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl"])
def test_a_line_that_would_fill_the_memory_is_named(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("bertflow.data.tables.LONGEST_LINE", 1000)
    path = tmp_path / f"c{kind}.gz"
    path.write_bytes(gzip.compress(b"text\n" + b"a" * 100_000))
    if kind == ".jsonl":
        path.write_bytes(gzip.compress(b'{"text": "a"}\n' + b"a" * 100_000))
    with pytest.raises(InputError, match=rf"c\{kind}\.gz, line 2: it has more than 1,000 bytes"):
        read_corpus([path])
