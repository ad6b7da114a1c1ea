"""Tables of scores: every number in them by hand, and what is concluded from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from bertflow.cli.reproducing import claims_grid, table_grid, table_markdown, table_page
from bertflow.data import STS_TASKS
from bertflow.display.grid import ascii_minus
from bertflow.evaluation import Difference
from bertflow.io.result_store import Result
from bertflow.paper.declared import SCORE_TABLES, SEVEN, Row, published
from bertflow.paper.plan import Material, Plan, Planner, Score, Subject
from bertflow.paper.results import (
    INTERVALS,
    CellResult,
    ClaimResult,
    RowResult,
    TableResult,
    corrected,
    score_table,
)
from task_files import write_tasks

RESAMPLES = 200
TINY = Subject(name="tiny", label="tiny", digest="1" * 64, max_length=32)
BASE = replace(TINY, label="BERT-base", digest="2" * 64, size="base")
LARGE = replace(TINY, label="BERT-large", digest="3" * 64, size="large")
GLOVE = Subject(name="g", label="GloVe", digest="4" * 64, max_length=None, words=True)

# What a score is, on a scale of 1, by row, task and seed; None is undefined.
Values = Callable[[str, str, int], float | None]


NOW = {"versions": {}, "time": "2024-01-01T00:00:00+00:00"}


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Material:
    """All tasks, and SNLI."""
    return Material(write_tasks(tmp_path_factory.mktemp("tables"), *STS_TASKS, "qnli", "snli"))


class Records(dict[str, Result]):
    """A store of results in memory."""

    def put(self, record: Result) -> None:
        self[record.key] = record

    def need(self, key: str) -> Result:
        return self[key]


@dataclass
class Made:
    """A table made of records that say what they are told to."""

    result: TableResult
    plans: Sequence[Plan]
    records: Records

    def row(self, name: str, encoder: str | None = None) -> RowResult:
        found = [
            row
            for row in self.result.rows
            if row.name == name and (encoder is None or row.encoder == encoder)
        ]
        assert len(found) == 1
        return found[0]

    def drawn(self, row: str, column: str, aggregation: str = "wmean", plan: int = 0) -> np.ndarray:
        """Resample t of a cell is resample t of the t-th seed, counted round."""
        jobs = self.plans[plan].cells[row, column].jobs
        stack = [self.records.need(job.key).arrays[f"replicates_{aggregation}"] for job in jobs]
        return np.array([stack[t % len(stack)][t] for t in range(RESAMPLES)])


def variations() -> list[Row]:
    """The rows of Table 7 that change one argument."""
    return [row for row in SCORE_TABLES["table7"].rows if row.group is not None]


# How far the aggregations are from each other, so that the wrong one is seen.
OFFSETS = {"wmean": 0.0, "mean": -0.1, "all": -0.2}


def put_score(records: Records, job: Score, value: float | None, seed: int) -> None:
    shared = np.random.default_rng([len(job.task), *map(ord, job.task)]).normal(0, 0.02, RESAMPLES)
    own = np.random.default_rng([int(job.key[:8], 16)]).normal(0, 0.004, RESAMPLES)
    drawn = (0.0 if value is None else value) + shared + own
    figures: dict[str, Any] = {}
    for name, offset in OFFSETS.items():
        figures[name] = {"value": None, "interval": None, "undefined": "all cosines are equal"}
        if value is not None:
            span = np.quantile(drawn + offset, [0.025, 0.975]).tolist()
            figures[name] = {"value": value + offset, "interval": span}
    chosen = 4 + seed if job.fitting is not None and job.fitting.dev else None
    if value is None:
        drawn = np.full(RESAMPLES, np.nan)
    arrays = {f"replicates_{name}": drawn + offset for name, offset in OFFSETS.items()}
    record = Result(
        kind="score",
        key=job.key,
        recipe=job.recipe(),
        about={"n_components": chosen},
        result={"measure": "spearman", "figures": figures, "scored": {"": 24}},
        seconds=1.0,
        arrays={"cosines": np.zeros(24), **arrays},
        **NOW,
    )
    records.put(record)


def put_tuning(records: Records, plan: Plan) -> None:
    for cell in plan.cells.values():
        for job in cell.jobs:
            if (tuning := job.encoding.tuning) is not None:
                accuracy = {"value": 0.625, "low": 0.5, "high": 0.75, "pairs": 80, "majority": 0.35}
                records.put(
                    Result(
                        kind="tuning",
                        key=tuning.key,
                        recipe=tuning.recipe(),
                        about={"precision": "bf16", "device": "cuda"},
                        result={
                            "accuracy": accuracy,
                            "counts": {"train": {"neutral": 1000, "entailment": 500}},
                        },
                        seconds=1.0,
                        **NOW,
                    )
                )


@pytest.fixture
def make(material, tmp_path) -> Callable[..., Made]:
    """Make a table for encoders from what its records shall say."""

    def of(
        name: str,
        values: Values,
        *subjects: Subject,
        seeds: int = 3,
        words: Subject | None = None,
        without: Sequence[str] = (),
    ) -> Made:
        records = Records()
        there = material
        if without:
            names = [name for name in STS_TASKS if name not in without]
            there = Material(write_tasks(tmp_path / "data", *names, "snli"))
        planner = Planner(there, seeds=seeds, words=words)
        plans = [
            planner.plan(SCORE_TABLES[name], subject, first=not place)
            for place, subject in enumerate(subjects or [TINY])
        ]
        for plan in plans:
            for (row, column), cell in plan.cells.items():
                for seed, job in enumerate(cell.jobs):
                    put_score(records, job, values(row, column, seed), seed)
            put_tuning(records, plan)
        return Made(score_table(plans, records), plans, records)

    return of


LEVELS = {
    "": 0.40,
    "bert avg (sbert)": 0.40,
    "cls (sbert)": 0.30,
    "true last2avg": 0.45,
    "last2avg": 0.50,
    "flow nli": 0.42,
    "flow target": 0.60,
    "glove": 0.55,
}
SEEDS = (0.0, 0.03, -0.01)


def usual(row: str, column: str, seed: int) -> float:
    """A level for each row, a little less for later tasks, and a little for each seed."""
    level = LEVELS.get(row.removeprefix("nli "), 0.5)
    return level - 0.01 * ([*SEVEN, "qnli"].index(column)) + SEEDS[seed % 3]


def by_holm(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    out, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        highest = min(1.0, max(highest, (len(values) - rank) * values[place]))
        out[place] = highest
    return out


def p_of(value: float, before: np.ndarray, after: np.ndarray) -> float:
    return float(2 * scipy.stats.norm.sf(abs(value) / np.std(after - before)))


# A cell.


def test_a_cell_is_mean_deviation_and_median_over_seeds(make):
    cell = make("table2", usual).row("flow target").cells["sts12"]
    seeds = [60 - 2 + 100 * one for one in SEEDS]
    assert list(cell.values) == pytest.approx(seeds)
    assert cell.value == pytest.approx(58 + 2 / 3)
    assert cell.median == pytest.approx(58)
    mean = sum(seeds) / 3
    deviation = math.sqrt(sum((one - mean) ** 2 for one in seeds) / 2)
    assert cell.deviation == pytest.approx(deviation)


def test_one_seed_has_no_deviation_and_is_its_own_median(make):
    cell = make("table2", usual).row("last2avg").cells["stsb"]
    assert (cell.deviation, len(cell.values)) == (None, 1)
    assert cell.median == cell.value == pytest.approx(50)


def test_the_interval_is_that_of_resamples_which_take_the_seeds_in_turn(make):
    made = make("table2", usual)
    cell = made.row("flow target").cells["stsb"]
    expected = 100 * np.quantile(made.drawn("flow target", "stsb"), [0.025, 0.975])
    assert [cell.low, cell.high] == pytest.approx(expected.tolist())


@pytest.mark.parametrize(
    ("row", "aggregation"), [("last2avg", "wmean"), ("bert avg (sbert)", "all"), ("", "wmean")]
)
def test_a_row_is_aggregated_as_its_published_one(make, row, aggregation):
    found = make("table2", usual).row(row)
    assert found.aggregation == aggregation
    assert found.cells["sts13"].value == pytest.approx(
        100 * (LEVELS[row] - 0.03 + OFFSETS[aggregation])
    )


def test_a_cell_names_its_records(make):
    made = make("table2", usual)
    cell = made.row("flow nli").cells["stsb"]
    assert list(cell.records) == [j.key for j in made.plans[0].cells["flow nli", "stsb"].jobs]
    assert len(set(cell.records)) == 3


def test_an_undefined_score_is_empty_with_the_reason(make):
    def values(row: str, column: str, seed: int) -> float | None:
        hit = (row, column, seed) == ("flow target", "sts14", 1)
        return None if hit else usual(row, column, seed)

    made = make("table2", values)
    cells = made.row("flow target").cells
    assert (cells["sts14"].value, cells["sts14"].low, cells["sts14"].baseline) == (None, None, None)
    assert cells["sts14"].reason == "all cosines are equal"
    assert (cells["average"].value, cells["average"].reason) == (None, "no sts14")
    # The claim stays, and cannot be told; it does not count in the correction of the others.
    claims = {claim.text: claim for claim in made.result.claims}
    assert len(claims) == 5
    lost = claims["flow (target) beats its encoder"]
    assert (lost.difference, lost.verdict) == (Difference(None), "cannot be told")
    assert lost.published is not None
    told = [claim.difference for claim in claims.values() if claim.difference.value is not None]
    assert [one.adjusted for one in told] == pytest.approx(by_holm([one.p for one in told]))
    assert len(told) == 3
    grid = claims_grid(made.result)
    (line,) = [row for row in grid.rows if row[0] == lost.text]
    assert line[3:] == ["", "", "", "cannot be told"]
    # The reason once, by the task and how its subsets are put together.
    assert [note for note in made.result.notes if "cosines are equal" in note] == [
        "sts14, wmean: all cosines are equal"
    ]
    json.dumps(made.result.to_dict(), allow_nan=False)


# What was published, and the difference.


@pytest.mark.parametrize(("subject", "size"), [(BASE, "base"), (LARGE, "large")])
def test_the_difference_is_ours_less_the_published_one_of_the_same_encoder(make, subject, size):
    made = make("table2", usual, subject)
    numbers = published("table2")
    for name in ("", "last2avg", "flow nli", "flow target"):
        row = made.row(name)
        assert row.published_for is None
        for column in SEVEN:
            printed = numbers.value(f"{size} {name}".strip(), column)
            cell = row.cells[column]
            assert cell.published == printed
            assert cell.difference == pytest.approx(cell.value - printed)


def test_other_encoders_stand_beside_bert_base_without_a_difference(make):
    made = make("table2", usual)
    row = made.row("flow target")
    assert row.published_for == "BERT-base"
    cell = row.cells["stsb"]
    assert cell.published == published("table2").value("base flow target", "stsb") == 70.72
    assert cell.difference is None
    assert all(cell.difference is None for cell in row.cells.values())


def test_a_row_that_the_paper_has_not_is_without_a_published_number(make):
    row = make("table2", usual, BASE).row("true last2avg")
    assert row.published_for is None
    for cell in row.cells.values():
        assert (cell.published, cell.difference, list(cell.doubts)) == (None, None, [])
        assert cell.value is not None


def test_word_vectors_are_compared_whatever_the_encoder_is(make):
    made = make("table2", usual, words=GLOVE)
    row = made.row("glove")
    assert (row.encoder, row.published_for) == ("", None)
    cell = row.cells["stsb"]
    assert cell.published == 58.02
    assert cell.difference == pytest.approx(100 * (0.55 - 0.2) - 58.02)


def test_without_word_vectors_their_row_is_as_published(make):
    made = make("table2", usual)
    cell = made.row("glove").cells["stsb"]
    assert (cell.value, cell.published, cell.difference) == (None, 58.02, None)
    assert cell.reason == "name the file of the word vectors to run it"
    assert not any(made.plans[0].cells["glove", column].reads_data for column in SEVEN)
    assert [note for note in made.result.notes if "word vectors" in note] == [
        "Avg. GloVe embeddings: name the file of the word vectors to run it"
    ]


def test_data_that_are_nowhere_are_said_once_by_the_name_of_the_task(make):
    made = make("table2", usual, words=GLOVE, without=["sts16"])
    said = [note.partition(": ") for note in made.result.notes if "no data" in note]
    assert [about for about, *_ in said] == ["sts16"]
    # The cell has all the places that were tried; the note has what is to be done.
    cell = made.plans[0].cells["last2avg", "sts16"]
    assert cell.reads_data
    assert cell.reason.startswith("no data for sts16 (test): tried ")
    assert said[0][2].startswith("no data there; hub: ")
    assert "; give the folder that holds " in said[0][2]
    assert not any("tried" in note for note in made.result.notes)


def test_models_of_others_are_shown_as_published(make):
    made = make("table3", usual)
    for name in ("infersent", "use", "sbert base", "sroberta large"):
        row = made.row(name)
        assert row.encoder == ""
        assert row.published_for is None
        for column in SEVEN:
            cell = row.cells[column]
            assert cell.published == published("table3").value(name, column)
            assert (cell.value, cell.difference) == (None, None)
            assert (cell.reason, cell.pairs) == ("not a model that bertflow runs", None)
            assert not made.plans[0].cells[name, column].reads_data
    assert not any("bertflow runs" in note for note in made.result.notes)


def test_doubts_go_with_their_numbers(make):
    cell = make("table2", usual, BASE).row("flow nli").cells["stsb"]
    assert list(cell.doubts) == list(published("table2").rows["base flow nli"].doubts["stsb"])
    assert any("68.66" in doubt for doubt in cell.doubts)


def test_pairs_that_do_not_count_are_said_with_their_reason(make):
    made = make("table2", usual)
    assert not any("not scored" in note for note in made.result.notes)
    lacking = {"incomplete line": 0, "no gold score": 1500}
    for (row, column), cell in made.plans[0].cells.items():
        for job in cell.jobs if column == "sts15" else []:
            record = made.records.need(job.key)
            skipped = {**lacking, "no cosine": 3 if row == "last2avg" else 0}
            said = replace(record, result={**record.result, "skipped": skipped})
            made.records.put(said)
    notes = score_table(made.plans, made.records).notes
    assert "pairs not scored, no gold score: sts15 1,500" in notes
    (lost,) = [note for note in notes if "zero vector" in note]
    label = made.row("last2avg").label
    assert lost == f"{label}: pairs with a zero vector: sts15 3"


def test_a_cell_says_how_many_pairs_are_scored(make):
    cells = make("table2", usual).row("flow target").cells
    assert [cells[column].pairs for column in SEVEN] == [24] * 7
    assert cells["average"].pairs is None


@pytest.mark.parametrize("subject", [BASE, TINY, LARGE], ids=lambda one: one.label)
def test_table_8s_published_row_has_its_deviation_and_median_and_is_bert_larges(make, subject):
    made = make("table8", usual, subject)
    numbers = published("table8")
    for row, (_, lines) in zip(made.result.rows, shown(made.result), strict=True):
        printed, cell = numbers.rows[f"large {row.name}"], row.cells["stsb"]
        assert cell.published == printed.values["stsb"]
        assert cell.published_deviation == printed.deviation
        assert cell.published_median == printed.median
        assert cell.published_median is not None
        own = subject is LARGE
        assert row.published_for == (None if own else "BERT-large")
        assert (cell.difference is not None) == own
        (text,) = lines["published" if own else "published, BERT-large"]
        assert text.startswith(
            f"{cell.published:.2f} ± {printed.deviation:.2f}, median {printed.median:.2f}"
        )


@pytest.mark.parametrize("subject", [replace(LARGE, pooling="cls"), TINY], ids=["large", "another"])
def test_a_pooling_of_ones_own_is_no_encoder_of_the_papers(make, subject):
    """Whatever it is called, its numbers are not those that were published."""
    made = make("table2", usual, subject)
    size = subject.size or "base"
    for name in ("last2avg", "flow nli", "flow target"):
        row = made.row(name)
        cell = row.cells["stsb"]
        assert cell.published == published("table2").value(f"{size} {name}", "stsb")
        assert (cell.comparable, cell.difference) == (False, None)
        assert row.published_for == f"BERT-{size}"


@pytest.mark.parametrize(("subject", "own"), [(BASE, True), (LARGE, False), (TINY, False)])
def test_rows_as_sbert_scores_are_bert_bases(make, subject, own):
    made = make("table2", usual, subject)
    for name in ("bert avg (sbert)", "cls (sbert)"):
        row = made.row(name)
        assert row.published_for == (None if own else "BERT-base")
        for column in SEVEN:
            cell = row.cells[column]
            assert cell.published == published("table2").value(name, column)
            assert (cell.difference is not None) == own


# The average.


def test_the_average_is_the_plain_mean_of_all_seven(make):
    made = make("table2", usual, BASE)
    row = made.row("flow target")
    values = [row.cells[column].value for column in SEVEN]
    average = row.cells["average"]
    assert list(row.cells) == [*SEVEN, "average"]
    assert average.value == pytest.approx(sum(values) / 7)
    by_seed = [sum(row.cells[column].values[seed] for column in SEVEN) / 7 for seed in range(3)]
    assert list(average.values) == pytest.approx(by_seed)
    assert average.deviation == pytest.approx(np.std(by_seed, ddof=1))
    drawn = np.mean([made.drawn("flow target", column) for column in SEVEN], axis=0)
    span = (100 * np.quantile(drawn, [0.025, 0.975])).tolist()
    assert [average.low, average.high] == pytest.approx(span)
    printed = [published("table2").value("base flow target", column) for column in SEVEN]
    assert average.published == pytest.approx(sum(printed) / 7)
    assert average.difference == pytest.approx(average.value - sum(printed) / 7)


def test_there_is_no_average_of_six(make):
    made = make("table2", usual, without=["sts16"])
    for name in ("last2avg", "flow target"):
        cells = made.row(name).cells
        assert cells["sts15"].value is not None
        assert cells["sts16"].reason.startswith("no data for sts16")
        assert (cells["average"].value, cells["average"].reason) == (None, "no sts16")
        # What was published has all seven.
        assert cells["average"].published is not None
    untold = {
        claim.text
        for claim in made.result.claims
        if (claim.difference, claim.verdict) == (Difference(None), "cannot be told")
    }
    assert {claim.text for claim in made.result.claims} - untold == {
        "except on SICK-R, where flow (NLI) does"
    }
    assert len(untold) == 4
    assert any(note.startswith("sts16: no data there; ") for note in made.result.notes)


@pytest.mark.parametrize("name", ["table4", "table8"])
def test_a_table_of_one_task_has_no_average(make, name):
    made = make(name, usual)
    assert list(made.result.columns) == list(SCORE_TABLES[name].columns)
    assert all(row.aggregation is None for row in made.result.rows)


# Arrows.


def marked(made: Made, plan: int = 0) -> dict[tuple[str, str], CellResult]:
    return {
        (row.name, column): cell
        for row in made.result.rows
        for column, cell in row.cells.items()
        if cell.baseline is not None
    }


def test_only_rows_with_a_baseline_are_marked(make):
    made = make("table2", usual)
    assert set(marked(made)) == {
        (row, column) for row in ("flow nli", "flow target") for column in SEVEN
    }


def test_marks_are_paired_differences_corrected_for_all_of_the_table(make):
    made = make("table2", usual)
    cells = marked(made)
    ps = []
    for (row, column), cell in cells.items():
        rise = (cell.value - made.row("last2avg").cells[column].value) / 100
        assert cell.baseline.value == pytest.approx(100 * rise)
        before, after = made.drawn("last2avg", column), made.drawn(row, column)
        span = 100 * np.quantile(after - before, [0.025, 0.975])
        assert [cell.baseline.low, cell.baseline.high] == pytest.approx(span.tolist())
        ps.append(p_of(rise, before, after))
        assert cell.baseline.p == pytest.approx(ps[-1])
    adjusted = [cell.baseline.adjusted for cell in cells.values()]
    assert adjusted == pytest.approx(by_holm(ps))
    assert len(ps) == 14


def test_marks_of_two_encoders_are_corrected_together(make):
    made = make("table5", usual, BASE, LARGE)
    cells = [cell for row in made.result.rows for cell in row.cells.values() if cell.baseline]
    assert len(cells) == 2 * 6
    ps = [cell.baseline.p for cell in cells]
    assert [cell.baseline.adjusted for cell in cells] == pytest.approx(by_holm(ps))


def shown(result: TableResult) -> list[tuple[str, dict[str, list[str]]]]:
    """Of each row of the table, its label and the lines that the grid has for it."""
    grid = table_grid(result)
    start = 2 if grid.columns[1] == "of subsets" else 1
    found: list[tuple[str, dict[str, list[str]]]] = []
    for line in grid.rows:
        name, *cells = map(ascii_minus, line[start:])
        assert len(cells) == len(result.columns)
        if line[0]:
            found.append((line[0], {}))
        assert name not in found[-1][1]
        found[-1][1][name] = cells
    return found


@pytest.mark.parametrize(
    ("rise", "arrow"), [(0.2, " ↑"), (-0.2, " ↓"), (0.0001, " ·"), (-0.0001, " ·")]
)
def test_an_arrow_needs_a_difference_that_chance_does_not_explain(make, rise, arrow):
    def values(row: str, column: str, seed: int) -> float:
        return 0.5 + (rise if row == "flow target" else 0.0)

    lines = dict(shown(make("table5", values).result))
    assert lines["tiny-flow (target)"]["ours"] == [f"{100 * (0.5 + rise):.2f}{arrow}"]
    assert lines["tiny, last block"]["ours"] == ["50.00"]


def test_what_is_only_so_by_its_own_p_value_gets_no_arrow():
    """0.04 alone, beside one that is surely real: Holm makes it 0.04 of 1; of 2 it is 0.08."""
    one = ClaimResult(
        text="a",
        encoder="e",
        published=None,
        difference=Difference(1.0, 0.1, 1.9, p=0.04, adjusted=0.04),
    )
    (alone,) = corrected([one])
    assert (alone.verdict, alone.difference.adjusted) == ("holds", 0.04)
    two = corrected([one, replace(one, difference=replace(one.difference, value=-1.0, p=0.03))])
    assert [claim.verdict for claim in two] == ["cannot be told", "cannot be told"]
    assert [claim.difference.adjusted for claim in two] == pytest.approx([0.06, 0.06])


# Claims.


def test_claims_are_differences_of_averages_corrected_for_each_other(make):
    made = make("table2", usual, BASE)
    claims = {claim.text: claim for claim in made.result.claims}
    expected = {
        "averaging two layers beats the last one": ("last2avg", "", SEVEN),
        "flow (target) beats its encoder": ("flow target", "last2avg", SEVEN),
        "flow (NLI) beats its encoder": ("flow nli", "last2avg", SEVEN),
        "flow (target) beats flow (NLI)": ("flow target", "flow nli", SEVEN),
        "except on SICK-R, where flow (NLI) does": ("flow nli", "flow target", ["sick-r"]),
    }
    assert list(claims) == list(expected)
    ps, numbers = [], published("table2")
    for text, (above, below, columns) in expected.items():
        one, other = (
            np.mean([made.drawn(row, column) for column in columns], axis=0)
            for row in (above, below)
        )
        ours = [
            np.mean([made.row(row).cells[column].value for column in columns])
            for row in (above, below)
        ]
        printed = [
            np.mean([numbers.value(f"base {row}".strip(), column) for column in columns])
            for row in (above, below)
        ]
        found = claims[text].difference
        assert found.value == pytest.approx(ours[0] - ours[1])
        span = 100 * np.quantile(one - other, [0.025, 0.975])
        assert [found.low, found.high] == pytest.approx(span.tolist())
        assert claims[text].published == pytest.approx(printed[0] - printed[1])
        assert claims[text].encoder == "BERT-base"
        ps.append(p_of((ours[0] - ours[1]) / 100, other, one))
    assert [claim.difference.adjusted for claim in claims.values()] == pytest.approx(by_holm(ps))


def test_verdicts_follow_sign_and_adjusted_p(make):
    verdicts = {claim.text: claim.verdict for claim in make("table2", usual).result.claims}
    assert verdicts == {
        "averaging two layers beats the last one": "holds",
        "flow (target) beats its encoder": "holds",
        # 42 where the encoder has 50.
        "flow (NLI) beats its encoder": "does not hold",
        "flow (target) beats flow (NLI)": "holds",
        "except on SICK-R, where flow (NLI) does": "does not hold",
    }


def test_equal_rows_cannot_be_told_apart(make):
    claims = make("table2", lambda row, column, seed: 0.5).result.claims
    assert {claim.verdict for claim in claims} == {"cannot be told"}


def test_claims_of_two_encoders_are_judged_together(make):
    made = make("table5", usual, BASE, LARGE)
    assert [claim.encoder for claim in made.result.claims] == ["BERT-base"] * 5 + ["BERT-large"] * 5
    ps = [claim.difference.p for claim in made.result.claims]
    adjusted = [claim.difference.adjusted for claim in made.result.claims]
    assert adjusted == pytest.approx(by_holm(ps))
    # Table 5 is printed for BERT-base alone, so that its numbers stand beside BERT-large's, too.
    base, large = made.result.claims[:5], made.result.claims[5:]
    assert [one.published for one in large] == [one.published for one in base]
    assert None not in [one.published for one in base]
    grid = claims_grid(made.result)
    assert all(line[2].endswith(" (BERT-base)") for line in grid.rows[5:])
    assert len(grid.rows) == 10


@pytest.mark.parametrize(
    ("name", "several", "beside"),
    [
        ("table2", [BASE], [""]),
        # SBERT's rows are BERT-base's, but no claim is about them.
        ("table2", [LARGE], [""]),
        ("table2", [TINY], [" (BERT-base)"]),
        ("table2", [BASE, TINY], ["", " (BERT-base)"]),
        ("table2", [LARGE, TINY], ["", " (BERT-base)"]),
        ("table2", [BASE, LARGE, TINY], ["", "", " (BERT-base)"]),
        ("table5", [LARGE], [" (BERT-base)"]),
        ("table8", [BASE], [" (BERT-large)"]),
        ("table7", [TINY], [""]),
    ],
)
def test_claims_say_whose_numbers_are_published(make, name, several, beside):
    made = make(name, usual, *several)
    grid = claims_grid(made.result)
    after = dict(zip([one.label for one in several], beside, strict=True))
    for claim, line in zip(made.result.claims, grid.rows, strict=True):
        number = "" if claim.published is None else f"{claim.published:+.2f}"
        expected = [claim.encoder, number and number + after[claim.encoder]]
        assert [*map(ascii_minus, line[1:3])] == expected


# Which rows there are.


def test_rows_and_claims_about_other_poolings_vanish_under_a_named_one(make):
    named = replace(TINY, pooling="layers:1")
    made = make("table2", usual, named)
    assert [row.label for row in made.result.rows] == [
        "Avg. GloVe embeddings",
        "tiny, layers:1",
        "tiny-flow (NLI)",
        "tiny-flow (target)",
    ]
    texts = [claim.text for claim in made.result.claims]
    assert "averaging two layers beats the last one" not in texts
    assert len(texts) == 4
    for cell in made.plans[0].cells.values():
        assert all(job.encoding.pooling == "layers:1" for job in cell.jobs)
    three = make("table8", usual, named)
    assert [row.name for row in three.result.rows] == ["nli last2avg", "nli last2avg flow target"]
    for cell in three.plans[0].cells.values():
        for job in cell.jobs:
            assert job.encoding.tuning.pooling == "layers:1"


def test_with_two_encoders_rows_that_are_there_once_appear_once(make):
    made = make("table2", usual, BASE, LARGE, words=GLOVE)
    named = [(row.name, row.encoder) for row in made.result.rows]
    each = ["", "true last2avg", "last2avg", "flow nli", "flow target"]
    assert named == [
        ("glove", ""),
        ("bert avg (sbert)", "BERT-base"),
        ("cls (sbert)", "BERT-base"),
        *((name, "BERT-base") for name in each),
        *((name, "BERT-large") for name in each),
    ]
    large = made.row("flow target", "BERT-large").cells["stsb"]
    assert large.published == 72.26
    three = make("table3", usual, BASE, LARGE)
    assert sum(row.name == "infersent" for row in three.result.rows) == 1


@pytest.mark.parametrize("name", ["table2", "table7", "table8"])
def test_every_row_of_the_declaration_is_there_in_its_order(make, name):
    made = make(name, usual)
    assert [row.name for row in made.result.rows] == [row.name for row in SCORE_TABLES[name].rows]
    assert all("{" not in row.label for row in made.result.rows)


def test_the_chosen_count_is_the_first_seeds_and_in_the_label(make):
    made = make("table5", usual)
    cell = made.row("natsv k=10").cells["stsb"]
    assert cell.components == 4
    assert made.row("natsv k=10").label == "+ all-but-the-top (NATSV), k = 4 (chosen)"
    assert made.row("natsv k=1").cells["stsb"].components is None


@pytest.mark.parametrize("seeds", [1, 4])
def test_table_8_has_a_fine_tuning_and_a_value_a_seed(make, seeds):
    made = make("table8", usual, BASE, seeds=seeds)
    for row in made.result.rows:
        cell = row.cells["stsb"]
        assert len(cell.values) == len(set(cell.records)) == seeds
        jobs = made.plans[0].cells[row.name, "stsb"].jobs
        assert [job.encoding.tuning.seed for job in jobs] == list(range(seeds))
        assert len({job.encoding.tuning.key for job in jobs}) == seeds
        assert (cell.deviation is None) == (seeds == 1)
    notes = [note for note in made.result.notes if note.startswith("BERT-base-NLI, seed")]
    assert notes == [
        f"BERT-base-NLI, seed {seed}: trained on 1,500 pairs of SNLI; accuracy on 80 held-out "
        "pairs 62.5 % (50.0 to 75.0), most frequent label 35.0 %; bf16 on cuda"
        for seed in range(seeds)
    ]
    lines = dict(shown(made.result))["BERT-base-NLI, first and last block"]
    assert "median" in lines
    assert ("± over seeds" in lines) == (seeds > 1)


# Table 7.


@pytest.mark.parametrize(
    ("group", "verdict"), [("architecture", "does not hold"), ("schedule", "holds")]
)
def test_the_sweeps_claim_is_the_mean_change_of_one_group_less_that_of_the_other(
    make, group, verdict
):
    # Some are above the flow and some below it, which is no matter.
    levels = {one.name: 0.5 + 0.005 * n for n, one in enumerate(variations())}
    for n, one in enumerate(one for one in variations() if one.group == group):
        levels[one.name] = 0.55 + (-1) ** n * 0.2

    def values(row: str, column: str, seed: int) -> float:
        return levels.get(row, 0.55) + SEEDS[seed]

    made = make("table7", values)
    reference, resampled = made.row("flow").cells["stsb"].value, made.drawn("flow", "stsb")
    changes, drawn = {}, {}
    for group in ("architecture", "schedule"):
        rows = [one.name for one in variations() if one.group == group]
        moved = [abs(made.row(row).cells["stsb"].value - reference) for row in rows]
        changes[group] = sum(moved) / len(moved)
        stack = [abs(made.drawn(row, "stsb") - resampled) for row in rows]
        drawn[group] = sum(stack) / len(stack)
    (claim,) = made.result.claims
    found = claim.difference
    assert found.value == pytest.approx(changes["schedule"] - changes["architecture"])
    change = drawn["schedule"] - drawn["architecture"]
    assert [found.low, found.high] == pytest.approx(
        (100 * np.quantile(change, [0.025, 0.975])).tolist()
    )
    assert found.p == pytest.approx(
        2 * scipy.stats.norm.sf(abs(found.value) / 100 / np.std(change))
    )
    assert claim.verdict == verdict
    assert claim.text.endswith(
        f"mean change {changes['schedule']:.2f} against {changes['architecture']:.2f}"
    )


def test_the_sweeps_rows_are_marked_against_its_flow(make):
    levels = {"levels = 1": 0.3, "epochs = 4.0": 0.8}
    made = make("table7", lambda row, column, seed: levels.get(row, 0.55) + SEEDS[seed])
    cells = {row: cell for (row, _), cell in marked(made).items()}
    assert list(cells) == [one.name for one in variations()]
    for name, cell in cells.items():
        rise = cell.value - made.row("flow").cells["stsb"].value
        assert cell.baseline.value == pytest.approx(rise, abs=1e-9)
        p = p_of(rise / 100, made.drawn("flow", "stsb"), made.drawn(name, "stsb"))
        assert cell.baseline.p == pytest.approx(p)
    ps = [cell.baseline.p for cell in cells.values()]
    assert [cell.baseline.adjusted for cell in cells.values()] == pytest.approx(by_holm(ps))
    ours = {
        row.name: lines["ours"][0]
        for row, (_, lines) in zip(made.result.rows, shown(made.result), strict=True)
    }
    assert ours["levels = 1"].endswith(" ↓")
    assert ours["epochs = 4.0"].endswith(" ↑")
    assert ours["flow"][-1].isdigit()


def test_the_sweep_is_of_the_papers_flow_whichever_the_other_tables_are_about(material):
    def keys(name: str, **options: Any) -> dict[str, list[str]]:
        plan = Planner(material, seeds=2, **options).plan(SCORE_TABLES[name], TINY)
        return {row: [job.key for job in cell.jobs] for (row, _), cell in plan.cells.items()}

    assert keys("table7", flow="tempered") == keys("table7")
    # Table 6 fits once, which is the first of these.
    assert keys("table6")["flow"] == keys("table7")["flow"][:1]


def test_every_row_of_the_sweep_changes_one_argument(make):
    made = make("table7", usual, seeds=1)
    plain = made.plans[0].cells["flow", "stsb"].jobs[0].fitting.calibrator.get_params()
    for one in variations():
        (job,) = made.plans[0].cells[one.name, "stsb"].jobs
        arguments = job.fitting.calibrator.get_params()
        changed = {name: arguments[name] for name in plain if arguments[name] != plain[name]}
        assert changed == dict(one.arguments), one.name
        assert f"{next(iter(changed))} = {next(iter(changed.values()))}" == one.name
        assert job.split == "dev"
    notes = made.result.notes
    assert any(note.endswith("paper 32, released code 32") for note in notes)
    assert "None" not in " ".join(notes)


def test_a_sweep_with_an_undefined_row_claims_nothing(make):
    made = make("table7", lambda row, *_: None if row == "levels = 1" else 0.5)
    assert made.result.claims == []


# What it looks like.


@pytest.mark.parametrize(
    ("name", "subjects"),
    [("table2", [BASE, LARGE]), ("table4", [TINY]), ("table7", [TINY]), ("table8", [BASE, LARGE])],
)
def test_what_is_shown_is_what_the_cells_hold(make, name, subjects):
    made = make(name, usual, *subjects)
    result = made.result
    marks = result.doubts()
    labels = [row.label for row in result.rows]
    for row, (label, lines) in zip(result.rows, shown(result), strict=True):
        # What several encoders call the same has the encoder before it.
        several = row.encoder and labels.count(row.label) > 1
        assert label == (f"{row.encoder}: {row.label}" if several else row.label)
        cells = [row.cells[column] for column in result.columns]
        ours = [cell.rstrip(" ↑↓·") for cell in lines.get("ours", [""] * len(cells))]
        assert ours == ["" if c.value is None else f"{c.value:.2f}" for c in cells]
        whom = f"published, {row.published_for}" if row.published_for else "published"
        printed = lines.get(whom, [""] * len(cells))
        for text, cell in zip(printed, cells, strict=True):
            number = "" if cell.published is None else f"{cell.published:.2f}"
            if cell.published_deviation is not None:
                number += f" ± {cell.published_deviation:.2f}"
            if cell.published_median is not None:
                number += f", median {cell.published_median:.2f}"
            letters = "".join(sorted(marks[d] for d in cell.doubts)) if number else ""
            assert text == f"{number} {letters}".strip()
        apart = lines.get("difference", [""] * len(cells))
        assert apart == ["" if c.difference is None else f"{c.difference:+.2f}" for c in cells]
    shown_labels = [label for label, _ in shown(result)]
    assert len(set(shown_labels)) == len(shown_labels)
    whole = table_markdown(result)
    for word in ("nan", "None", "inf ", "{", "}"):
        assert word not in whole
    for letter, doubt in {letter: doubt for doubt, letter in marks.items()}.items():
        assert table_page(result).notes.count(f"{letter}: {doubt}") == 1


@pytest.mark.parametrize("name", ["table2", "table5", "table8"])
def test_the_json_of_a_table_is_what_it_holds(make, name):
    result = make(name, usual, BASE).result
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [one["row"] for one in content["rows"]] == [row.name for row in result.rows]
    for one, row in zip(content["rows"], result.rows, strict=True):
        assert one["label"] == row.label
        assert set(one["cells"]) == set(row.cells) == set(result.columns)
        for column, cell in row.cells.items():
            there = one["cells"][column]
            assert there["value"] == cell.value
            assert there["difference"] == cell.difference
            assert there["published"] == cell.published
            assert there["pairs"] == cell.pairs
            assert there["published_deviation"] == cell.published_deviation
            assert there["published_median"] == cell.published_median
            assert (there["low"], there["high"]) == (cell.low, cell.high)
            assert there["values"] == list(cell.values)
            if cell.baseline is not None:
                assert there["baseline"]["p_holm"] == cell.baseline.adjusted
    assert [one["verdict"] for one in content["claims"]] == [c.verdict for c in result.claims]


def test_there_are_letters_enough_for_the_doubts_of_every_table(make):
    for name in ("table2", "table3", "table4", "table5", "table8"):
        result = make(name, usual, BASE, LARGE, seeds=1, words=GLOVE).result
        assert result.notes[0] == INTERVALS
        doubts = {d for row in result.rows for c in row.cells.values() for d in c.doubts}
        assert doubts == set(result.doubts())
