"""The published numbers are the paper's, row by row, and what is said of them follows from them."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from bertflow.data import CATALOG
from bertflow.paper.declared import SCORE_TABLES, PublishedTable, published
from bertflow.paper.plan import Subject
from bertflow.paper.results import published_name

NUMBERED = [f"table{number}" for number in range(1, 9)]
TABLES = [*NUMBERED, "whitening"]
YEARS = [f"sts{year}" for year in range(12, 17)]
SEVEN = ["stsb", "sick-r", *YEARS]
every_table = pytest.mark.parametrize("name", TABLES)
NUMBER = re.compile(r"-?\d+\.\d+")
# Rows of the table in notes.md, and where they are here.
NOTED = {
    "Avg. GloVe": ("table2", "glove"),
    "BERT-base mean, as SBERT printed it": ("table2", "bert avg (sbert)"),
    "BERT-base CLS": ("table2", "cls (sbert)"),
    "BERT-base": ("table2", "base"),
    'BERT-base "last2avg"': ("table2", "base last2avg"),
    "BERT-base-flow (NLI)": ("table2", "base flow nli"),
    "BERT-base-flow (target)": ("table2", "base flow target"),
    "BERT-large": ("table2", "large"),
    'BERT-large "last2avg"': ("table2", "large last2avg"),
    "BERT-large-flow (NLI)": ("table2", "large flow nli"),
    "BERT-large-flow (target)": ("table2", "large flow target"),
    "BERT-base-whitening (target)": ("whitening", "base whitening target"),
    "BERT-base-whitening-256 (target)": ("whitening", "base whitening-256 target"),
    "BERT-base-NLI": ("table3", "base nli"),
    'BERT-base-NLI "last2avg"': ("table3", "base nli last2avg"),
    "BERT-base-NLI-flow (NLI)": ("table3", "base nli flow nli"),
    "BERT-base-NLI-flow (target)": ("table3", "base nli flow target"),
    "BERT-large-NLI-flow (target)": ("table3", "large nli flow target"),
}


def text_of(shared_data: Path, name: str) -> str:
    path = shared_data.parent / "paper" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def paper(shared_data):
    return text_of(shared_data, "bert-flow-paper.md")


@pytest.fixture
def notes(shared_data):
    return text_of(shared_data, "notes.md")


def printed_lines(paper: str, number: int) -> list[list[str]]:
    """The cells of a table of the paper: the lines with tabs right above its caption."""
    above = paper[: paper.index(f"\nTable {number}: ")].rstrip().splitlines()
    lines: list[list[str]] = []
    while "\t" in above[-1]:
        lines.insert(0, above.pop().split("\t"))
    return lines


def printed_rows(paper: str, number: int) -> list[tuple[str, list[float]]]:
    """Label and numbers of the rows that have numbers."""
    rows = [
        (label, [float(found) for cell in cells for found in NUMBER.findall(cell)])
        for label, *cells in printed_lines(paper, number)
    ]
    return [(label, numbers) for label, numbers in rows if numbers]


def bare(label: str) -> str:
    """A label without markup: letters and digits only."""
    plain = re.sub(r"<[^>]+>", "", label).replace("ℓ", "ell").replace("induced", "induce")
    return re.sub(r"[^a-z0-9]", "", plain.lower())


def numbers_of(table: PublishedTable, name: str) -> list[float | None]:
    row = table.rows[name]
    more = [one for one in (row.deviation, row.median) if one is not None]
    return [*(table.value(name, column) for column in table.columns), *more]


def averaged(table: str, row: str) -> float:
    return float(np.mean([published(table).value(row, column) for column in SEVEN]))


def gains(table: str, above: str, below: str) -> list[float]:
    one = published(table)
    return [one.value(above, column) - one.value(below, column) for column in one.columns]


# Against the sources.


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 8])
def test_every_row_is_the_papers(paper, number):
    table = published(f"table{number}")
    here = [(bare(row.label), numbers_of(table, name)) for name, row in table.rows.items()]
    assert here == [(bare(label), numbers) for label, numbers in printed_rows(paper, number)]


def test_the_hyperparameters_are_the_papers(paper):
    printed = printed_lines(paper, 7)
    found = list(published("table7").rows.values())
    assert [str(row.values["paper"]) for row in found] == [cells[-1] for cells in printed]
    # A stray "in" is printed behind the first label.
    assert [bare(row.label) for row in found] == [
        bare(cells[0].removesuffix(" in")) for cells in printed
    ]
    assert [row.values["released"] for row in found][1:] == [32, 3, 3]
    assert "without residual" in str(found[0].values["released"])


@pytest.mark.parametrize("number", [2, 3])
def test_the_seven_tasks_stand_in_the_papers_order(paper, number):
    header = [name.lower().replace("sts-", "sts") for name in printed_lines(paper, number)[0][1:]]
    assert list(published(f"table{number}").columns) == header == SEVEN


def test_the_ranges_of_table_1_are_the_papers(paper):
    header = printed_lines(paper, 1)[0][1:]
    ranges = [re.findall(r"\d+", cell.replace("K", "000")) for cell in header]
    assert ["-".join(ends) for ends in ranges[:3]] == list(published("table1").columns[:3])
    # Misprinted: other renderings of the paper have it too.
    assert header[3] == "[5K, 1K)"
    assert published("table1").columns[3] == "5000-10000"


def test_rows_with_a_k_are_named_and_labelled_for_it():
    rows = [row for table in TABLES for row in published(table).rows.values()]
    labelled = {row.name: k[1] for row in rows if (k := re.search(r"\(k = (\d+)\)", row.label))}
    assert len(labelled) == 6 + 4
    for name, k in labelled.items():
        assert name.endswith((f" {k}", f"k={k}"))


def test_every_row_is_the_notes(notes):
    lines = [line.strip("|").split("|") for line in notes.splitlines() if line.count("|") == 10]
    rows = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    rows = {label: cells for label, cells in rows.items() if NUMBER.search(cells[0])}
    assert set(rows) == set(NOTED)
    for label, (table, name) in NOTED.items():
        *cells, aggregation = rows[label]
        # A footnote's mark stands behind its number.
        numbers = [float(NUMBER.match(cell).group()) for cell in cells]
        assert numbers == numbers_of(published(table), name), label
        assert aggregation == published(table).rows[name].aggregation, label


def test_whitening_is_all_there(notes):
    assert [name for table, name in NOTED.values() if table == "whitening"] == list(
        published("whitening").rows
    )


# What every table keeps.


@every_table
def test_every_row_is_complete(name):
    table = published(name)
    assert table.name == name
    assert table.rows
    for key, row in table.rows.items():
        assert row.name == key
        assert row.label
        assert list(row.values) == list(row.doubts) == list(table.columns)
        for column in table.columns:
            value = table.value(key, column)
            assert (value is None) == isinstance(row.values[column], str)


@pytest.mark.parametrize("name", [name for name in TABLES if published(name).unit == 100])
def test_measures_times_100_are_within_their_bounds(name):
    table = published(name)
    assert table.measure in ("spearman", "auc")
    for row in table.rows:
        numbers = numbers_of(table, row)
        assert all(abs(number) <= 100 for number in numbers)
        # A slipped decimal point.
        assert all(abs(number) > 10 for number in numbers[: len(table.columns)])


@every_table
def test_aggregation_is_said_where_there_are_subsets(name):
    table = published(name)
    subsets = set(YEARS) <= set(table.columns)
    for row in table.rows.values():
        assert (row.aggregation is not None) == subsets
        if subsets:
            theirs = "all" if row.source == "Reimers and Gurevych 2019" else "wmean"
            assert row.aggregation == theirs


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table5", "table8", "whitening"])
def test_columns_are_tasks(name):
    assert set(published(name).columns) <= set(CATALOG)


def test_no_name_in_the_file_stands_twice_and_every_doubt_is_about_columns_there_are():
    tables = tomllib.loads(files("bertflow.paper").joinpath("published.toml").read_text("utf-8"))
    doubts = tables.pop("doubts")
    for name, table in tables.items():
        rows = [row["name"] for row in table["rows"]]
        for names in (table["columns"], rows):
            assert len(set(names)) == len(names), name
        assert table["unit"] in (1, 100)
        for row in table["rows"]:
            assert len(row["values"]) == len(table["columns"]), row["name"]
            for key in row.get("doubts", ()):
                assert set(doubts[key].get("columns", ())) <= set(table["columns"]), key


def test_every_table_of_ours_is_whole():
    """The rows that claims and baselines name are there, and each name once."""
    for name, table in SCORE_TABLES.items():
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names), name
        assert {one for claim in table.claims for one in (claim.above, claim.below)} <= set(names)
        assert {claim.column for claim in table.claims} <= {"average", *table.columns}
        for row in table.rows:
            assert row.baseline is None or row.baseline in names
            assert row.source in ("raw", "nli", "words", "published")
            assert row.fit in (None, "nli", "target")
            assert (row.build("paper", 0) is None) == (row.fit is None), row.name
            assert row.calibrator in (
                *(None, "flow", "paper-flow", "standardization", "all-but-the-top"),
            )
            assert row.aggregation in ("wmean", "all")
            assert row.group in (None, "architecture", "schedule")


def test_a_table_is_read_once():
    assert published("table2") is published("table2")


# Rows of ours, and those of theirs that they stand beside.


NOT_PUBLISHED = {
    "table2": {"base true last2avg", "large true last2avg"},
    "table3": set(),
    "table4": {
        f"{size} {row}"
        for size in ("base", "large")
        for row in ("last2avg", "flow nli", "flow target")
    },
    "table5": {
        "large",
        "large sn",
        "large natsv k=1",
        "large natsv k=10",
        "large sn natsv k=1",
        "large sn natsv k=6",
        "large flow target",
    },
    "table8": {"base nli", "base nli last2avg", "base nli last2avg flow target"},
}


# What was published for the other encoder alone stands beside both.
ELSEWHERE = {
    "table5": {name: name.replace("large", "base") for name in NOT_PUBLISHED["table5"]},
    "table8": {name: name.replace("base", "large") for name in NOT_PUBLISHED["table8"]},
}


def beside(name: str) -> dict[str, str]:
    """Every row of ours for both encoders, by the name of the published one: its aggregation."""
    subjects = [Subject(name="", label="", digest="", size=size) for size in ("base", "large")]
    rows = SCORE_TABLES[name].rows
    table = published(name)
    found = {}
    for one in subjects:
        for row in rows:
            own = row.name if row.once else f"{one.size} {row.name}".strip()
            beside = published_name(one, row, table)
            other = ELSEWHERE.get(name, {}).get(own)
            assert beside == (own if own in table.rows else other), own
            found[own] = row.aggregation
    return found


@pytest.mark.parametrize("name", NOT_PUBLISHED)
def test_every_row_of_ours_meets_its_published_one_and_none_is_left_over(name):
    table = published(name)
    assert tuple(SCORE_TABLES[name].columns) == table.columns
    assert set(beside(name)) == set(table.rows) | NOT_PUBLISHED[name]
    assert not set(table.rows) & NOT_PUBLISHED[name]


@pytest.mark.parametrize("name", ["table2", "table3"])
def test_rows_that_stand_side_by_side_are_aggregated_alike(name):
    ours = beside(name)
    for key, row in published(name).rows.items():
        assert row.aggregation == ours[key], key


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table5", "table8"])
def test_encoders_that_are_not_the_papers_stand_beside_base_or_else_large(name):
    table, other = published(name), Subject(name="", label="", digest="")
    for row in SCORE_TABLES[name].rows:
        wanted = [row.name] if row.once else [f"{s} {row.name}".strip() for s in ("base", "large")]
        expected = next((one for one in wanted if one in table.rows), None)
        assert published_name(other, row, table) == expected
        if name == "table8":
            assert expected == f"large {row.name}"


@pytest.mark.parametrize("name", ["table6", "table7"])
def test_where_other_numbers_are_published_nothing_stands_beside_a_row(name):
    base = Subject(name="", label="", digest="", size="base")
    found = [published_name(base, row, published(name)) for row in SCORE_TABLES[name].rows]
    assert set(found) == {None}


# Doubts.


def test_the_doubtful_number_is_doubted_in_its_cell_alone():
    table = published("table2")
    doubted = [
        (row, column)
        for row in table.rows
        for column in table.columns
        if any("68.66" in doubt for doubt in table.rows[row].doubts[column])
    ]
    assert doubted == [("base flow nli", "stsb")]


def about(name: str, phrase: str) -> set[tuple[str, str]]:
    """Cells with a doubt that holds a phrase."""
    table = published(name)
    return {
        (row, column)
        for row in table.rows
        for column in table.columns
        if any(phrase in doubt for doubt in table.rows[row].doubts[column])
    }


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table8"])
def test_last2avg_and_every_flow_on_it_is_doubted(name):
    table = published(name)
    rows = [row for row in table.rows if "last2avg" in row or "flow" in row]
    assert about(name, "off-by-one") == {(row, column) for row in rows for column in table.columns}


@pytest.mark.parametrize("name", ["table2", "table3"])
def test_a_year_is_doubted_for_its_aggregation_or_its_scale(name):
    table = published(name)
    theirs = {row for row in table.rows if table.rows[row].aggregation == "all"}
    ours = set(table.rows) - theirs
    assert theirs
    assert about(name, "wmean is what the released code does") == {
        (row, year) for row in ours for year in YEARS
    }
    assert about(name, "Reimers and Gurevych 2019, who take") == {
        (row, year) for row in theirs for year in YEARS
    }


def test_numbers_that_were_copied_wrongly_are_doubted():
    assert about("table2", "38.08") == {("cls (sbert)", "sts16")}
    assert about("table3", "66.87") == {("infersent", "sts16")}


@pytest.mark.parametrize(
    ("name", "row", "column", "phrase"),
    [
        ("table1", "dot 7", "5000-10000", "[5K, 10K)"),
        ("table2", "bert avg (sbert)", "sts14", "57.98"),
        ("table5", "base flow target", "stsb", "70.72"),
        ("table6", "gold", "edit", "characters, words"),
        ("table6", "encoder", "gold", "which encoder"),
        ("table7", "levels", "paper", "released"),
        ("whitening", "base whitening target", "sick-r", "one decimal"),
    ],
)
def test_other_doubts_are_there(name, row, column, phrase):
    assert any(phrase in doubt for doubt in published(name).rows[row].doubts[column])


def test_what_nothing_is_said_against_has_no_doubt():
    assert published("table1").rows["norm"].doubts["0-100"] == ()
    assert published("table2").rows["base"].doubts["stsb"] == ()
    assert published("table7").rows["levels"].doubts["released"] == ()


def test_no_doubt_is_left_unused():
    text = files("bertflow.paper").joinpath("published.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    declared = set(raw.pop("doubts"))
    assert declared == {key for t in raw.values() for r in t["rows"] for key in r.get("doubts", ())}


# What the paper says of its numbers, section 4 and the introduction.


def test_the_papers_largest_gain_and_its_averages_follow(paper):
    largest, mean = map(
        float,
        re.search(r"up to ([\d.]+) points with an average of ([\d.]+) points", paper).groups(),
    )
    base, large = map(
        float, re.search(r"performance by ([\d.]+) and ([\d.]+) points on average", paper).groups()
    )
    assert (largest, mean, base, large) == (12.70, 8.16, 5.88, 8.16)
    for size, expected in (("base", base), ("large", large)):
        gained = averaged("table2", f"{size} flow target") - averaged("table2", f"{size} last2avg")
        assert gained == pytest.approx(expected, abs=0.005)
    found = {
        (size, fit): max(gains("table2", f"{size} flow {fit}", f"{size} last2avg"))
        for size in ("base", "large")
        for fit in ("nli", "target")
    }
    assert max(found, key=found.get) == ("large", "target")
    assert max(found.values()) == pytest.approx(largest, abs=1e-9)


def test_the_gain_is_not_consistent():
    # The introduction says "consistently"; the table's own arrows say otherwise.
    worse = [
        (size, fit, column)
        for size in ("base", "large")
        for fit in ("nli", "target")
        for column, gain in zip(
            SEVEN, gains("table2", f"{size} flow {fit}", f"{size} last2avg"), strict=True
        )
        if gain < 0
    ]
    assert worse == [("base", "nli", "stsb"), ("base", "target", "sick-r")]


@pytest.mark.parametrize("size", ["base", "large"])
def test_two_layers_are_better_than_one(size):
    assert min(gains("table2", f"{size} last2avg", size)) > 0
    assert min(gains("table3", f"{size} nli last2avg", f"{size} nli")) > 0


@pytest.mark.parametrize("table", ["table2", "table3"])
@pytest.mark.parametrize("size", ["base", "large"])
def test_fitting_on_the_target_is_better_but_for_sick_r(table, size):
    supervised = " nli" if table == "table3" else ""
    found = gains(table, f"{size}{supervised} flow target", f"{size}{supervised} flow nli")
    assert [c for c, gain in zip(SEVEN, found, strict=True) if gain < 0] == ["sick-r"]


def test_the_encoders_are_below_glove_on_average_not_on_each_task():
    assert max(averaged("table2", size) for size in ("base", "large")) < averaged("table2", "glove")
    above = [c for c, gain in zip(SEVEN, gains("table2", "base", "glove"), strict=True) if gain > 0]
    assert above == ["sick-r", "sts16"]


@pytest.mark.parametrize("size", ["base", "large"])
def test_auc_rises_with_flow_and_more_on_the_target(size):
    rows = [f"{size} nli {what}" for what in ("last2avg", "flow nli", "flow target")]
    encoder, nli, target = (published("table4").value(row, "qnli") for row in rows)
    assert encoder < nli < target


def test_calibrators_stand_in_the_papers_order():
    rows = ["base", "base sn", "base natsv k=10", "base sn natsv k=6", "base flow target"]
    values = [published("table5").value(row, "stsb") for row in rows]
    assert values == sorted(values)
    assert published("table5").value("base", "stsb") == published("table2").value("base", "stsb")


@pytest.mark.parametrize("row", published("table1").rows)
def test_rare_words_are_far_from_the_origin_and_from_their_neighbours(row):
    rising = numbers_of(published("table1"), row)
    assert rising == sorted(rising)


def test_neighbours_further_down_are_further_away():
    table = published("table1")
    for column in table.columns:
        assert [table.value(f"distance {k}", column) for k in (3, 5, 7)] == sorted(
            table.value(f"distance {k}", column) for k in (7, 5, 3)
        )
        dots = [table.value(f"dot {k}", column) for k in (3, 5, 7)]
        assert dots == sorted(dots, reverse=True)


def test_flow_goes_less_with_edit_distance_than_its_encoder():
    edit = {row: published("table6").value(row, "edit") for row in ("gold", "encoder", "flow")}
    assert edit["encoder"] < edit["flow"] < edit["gold"] < 0
