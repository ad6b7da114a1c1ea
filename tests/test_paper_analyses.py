"""Tables 1 and 6: every number in them by hand, and what is concluded from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from bertflow.io.result_store import Result
from bertflow.paper.analyses import Scatter, lexical_table, words_table
from bertflow.paper.declared import published
from bertflow.paper.plan import Subject, Words
from bertflow.paper.results import TableResult
from test_paper_tables import BASE, LARGE, NOW, TINY, Records, by_holm, shown

# Table 6.


def scattered(label: str = "tiny", seed: int = 0) -> Scatter:
    random = np.random.default_rng(seed)
    characters = np.random.default_rng(9).integers(0, 40, 80)
    gold = 5 - characters / 10 + np.random.default_rng(8).normal(0, 1, 80)
    raw = -characters / 40 + random.normal(0, 0.05, 80)
    return Scatter(
        encoder=label,
        own=label == "BERT-base",
        panels={"gold": gold, f"{label}, pooled": raw, "flow (target)": gold / 5 + raw},
        distances={"characters": characters, "words": characters // 5},
    )


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(100 * scipy.stats.spearmanr(one, other).statistic)


def test_table_6_is_scipys_spearman_over_all_and_over_short_pairs():
    one = scattered()
    result = lexical_table([one])
    assert [row.label for row in result.rows] == ["gold similarity", *[*one.panels][1:]]
    gold = one.panels["gold"]
    for row, values in zip(result.rows, one.panels.values(), strict=True):
        for unit, distances in one.distances.items():
            short = distances <= 4
            cells = row.cells
            assert cells[f"edit, {unit}"].value == pytest.approx(spearman(values, distances))
            assert cells[f"edit, ≤ 4 {unit}"].value == pytest.approx(
                spearman(values[short], distances[short])
            )
            assert cells[f"gold, ≤ 4 {unit}"].value == pytest.approx(
                spearman(values[short], gold[short])
            )
            assert cells[f"edit, {unit}"].pairs == 80
            assert cells[f"gold, ≤ 4 {unit}"].pairs == int(short.sum())
        assert row.cells["gold"].value == pytest.approx(spearman(values, gold))
        assert row.cells["gold"].pairs == 80
        assert set(row.cells) == set(result.columns)
    count = {unit: int((d <= 4).sum()) for unit, d in one.distances.items()}
    assert (
        "tiny: 80 pairs, 0 more without a cosine; at most 4 apart "
        f"{count['characters']} by characters, {count['words']} by words"
    ) in result.notes


def test_table_6s_claims_are_differences_of_its_cells():
    result = lexical_table([scattered()])
    rows = {row.name: row.cells for row in result.rows}
    expected = [
        rows["gold"]["edit, characters"].value - rows["encoder"]["edit, characters"].value,
        rows["flow"]["edit, characters"].value - rows["encoder"]["edit, characters"].value,
        rows["gold"]["edit, words"].value - rows["encoder"]["edit, words"].value,
        rows["flow"]["edit, words"].value - rows["encoder"]["edit, words"].value,
        rows["flow"]["gold"].value - rows["encoder"]["gold"].value,
    ]
    assert [claim.difference.value for claim in result.claims] == pytest.approx(expected)
    assert result.claims[0].published == pytest.approx(-24.61 + 50.49)
    ps = [claim.difference.p for claim in result.claims]
    assert [claim.difference.adjusted for claim in result.claims] == pytest.approx(by_holm(ps))
    assert {claim.verdict for claim in result.claims} == {"holds"}


def test_table_6_has_gold_once_and_a_difference_for_bert_base_alone():
    one, other = scattered("BERT-base"), scattered("tiny", 3)
    result = lexical_table([one, other])
    assert [(row.name, row.encoder) for row in result.rows] == [
        ("gold", ""),
        ("encoder", "BERT-base"),
        ("flow", "BERT-base"),
        ("encoder", "tiny"),
        ("flow", "tiny"),
    ]
    gold, base, _, tiny, _ = result.rows
    numbers = published("table6")
    for row, known in ((gold, "gold"), (base, "encoder"), (tiny, "encoder")):
        for column, printed in (("edit, words", "edit"), ("gold", "gold")):
            assert list(row.cells[column].doubts) == list(numbers.rows[known].doubts[printed])
    assert gold.cells["edit, characters"].doubts
    assert result.doubts()
    assert gold.cells["edit, words"].difference == pytest.approx(
        gold.cells["edit, words"].value + 24.61
    )
    assert base.cells["edit, characters"].difference == pytest.approx(
        base.cells["edit, characters"].value + 50.49
    )
    assert base.published_for is None
    assert (tiny.published_for, tiny.cells["edit, words"].difference) == ("BERT-base", None)
    assert len(result.claims) == 10
    assert len([note for note in result.notes if ": 80 pairs" in note]) == 2


def test_table_6_without_short_pairs_says_why():
    one = scattered()
    far = {unit: np.arange(80) + 10 for unit in one.distances}
    result = lexical_table([replace(one, distances=far)])
    for row in result.rows:
        cell = row.cells["edit, ≤ 4 words"]
        assert cell.value is None
        assert cell.reason
    json.dumps(result.to_dict(), allow_nan=False)


# Table 1.

RANGES = ((0, 100), (100, 500), (500, 5000), (5000, 10000))


def mean_of(value: float, error: float) -> dict[str, float]:
    return {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error}


def words_made(groups: Sequence[Mapping[str, Any]], *subjects: Subject) -> TableResult:
    records, jobs = Records(), []
    for subject in subjects:
        job = Words(
            subject=subject, ranges=RANGES, neighbours=(3, 5, 7), frequencies="wordfreq 3.1"
        )
        record = Result(
            kind="words",
            key=job.key,
            recipe=job.recipe(),
            about={},
            result={"groups": list(groups), "vocabulary": 30522, "width": 768},
            seconds=1.0,
            **NOW,
        )
        records.put(record)
        jobs.append(job)
    return words_table(jobs, records)


def groups_of(*norms: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """A range of words for each norm; distances rise, and dot products fall, with the range."""
    return [
        {
            "words": 90 - n,
            "norm": norm,
            "distance": {k: mean_of(1.0 + n, 0.01) for k in ("3", "5", "7")},
            "dot": {k: mean_of(1.0 - n, 0.01) for k in ("3", "5", "7")},
        }
        for n, norm in enumerate(norms)
    ]


NORMS = [mean_of(0.95, 0.02), mean_of(1.0, 0.02), mean_of(1.1, 0.02), mean_of(1.02, 0.03)]


def test_table_1_is_the_records_means_beside_the_published_ones():
    result = words_made(groups_of(*NORMS), BASE)
    assert list(result.columns) == ["0-100", "100-500", "500-5000", "5000-10000"]
    names = ["norm", *(f"{measure} {k}" for measure in ("distance", "dot") for k in (3, 5, 7))]
    assert [row.name for row in result.rows] == names
    for column, norm in zip(result.columns, NORMS, strict=True):
        cell = result.rows[0].cells[column]
        assert (cell.value, cell.low, cell.high) == (norm["value"], norm["low"], norm["high"])
        printed = published("table1").value("norm", column)
        assert cell.published == printed
        assert cell.difference == pytest.approx(norm["value"] - printed)
    assert result.unit == 1
    assert "BERT-base: 30,522 embeddings of 768 dimensions; words: 90 of 100 (0-100), " in (
        "\n".join(result.notes)
    )


def test_table_1_claims_that_the_last_range_is_above_the_first():
    result = words_made(groups_of(*NORMS), BASE)
    rise, error = 1.02 - 0.95, math.hypot(0.02, 0.03)
    found = result.claims[0].difference
    assert found.value == pytest.approx(rise)
    assert [found.low, found.high] == pytest.approx([rise - 1.96 * error, rise + 1.96 * error])
    assert found.p == pytest.approx(2 * (1 - scipy.stats.norm.cdf(rise / error)))
    numbers = published("table1")
    assert result.claims[0].published == pytest.approx(
        numbers.value("norm", "5000-10000") - numbers.value("norm", "0-100")
    )
    ps = [claim.difference.p for claim in result.claims]
    assert [claim.difference.adjusted for claim in result.claims] == pytest.approx(by_holm(ps))
    assert [claim.verdict for claim in result.claims] == [
        "cannot be told",
        *["holds"] * 3,
        *["does not hold"] * 3,
    ]
    assert all(claim.text.startswith("larger for rare words") for claim in result.claims)


@pytest.mark.parametrize("last", [None, {"value": 1.0, "low": None, "high": None}])
def test_table_1_claims_nothing_of_a_range_without_words_or_with_one(last):
    result = words_made(groups_of(*NORMS[:3], last), TINY)
    cell = result.rows[0].cells["5000-10000"]
    assert cell.value == (None if last is None else 1.0)
    assert (cell.reason is None) == (last is not None)
    assert len(result.claims) == 6
    assert all("norm" not in claim.text for claim in result.claims)
    assert result.rows[0].published_for == "BERT-base"
    json.dumps(result.to_dict(), allow_nan=False)


def test_table_1_says_whose_rows_are_whose():
    result = words_made(groups_of(*NORMS), BASE, LARGE)
    assert [row.encoder for row in result.rows] == ["BERT-base"] * 7 + ["BERT-large"] * 7
    labels = [label for label, _ in shown(result)]
    assert labels[0] == "BERT-base: mean ℓ2 norm"
    assert labels[7] == "BERT-large: mean ℓ2 norm"
    assert len(set(labels)) == 14
    # Table 1 is BERT-base's.
    assert [row.published_for for row in result.rows[::7]] == [None, "BERT-base"]
    assert result.rows[7].cells["0-100"].difference is None
