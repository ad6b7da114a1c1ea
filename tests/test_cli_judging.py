"""evaluate and compare on the command line: every figure by its name, and what they refuse."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bertflow.calibrators import Whitening
from bertflow.cli.score_pages import comparison_page, model_page
from bertflow.data import CATALOG, STS_TASKS, read_corpus, read_pairs, read_task
from bertflow.display.grid import ascii_minus
from bertflow.encoders import load_encoder
from bertflow.evaluation import (
    METHODS,
    TASKS,
    Estimate,
    Score,
    Scores,
    compare,
    differences,
    evaluate_all,
    score_all,
    score_pairs,
)
from bertflow.models import calibrate, save_model
from conftest import tree
from task_files import graded_rows, write_qnli, write_tasks

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")
HUNDRED = re.compile(r"-?\d+\.\d\d$")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """All tasks, and SNLI."""
    return write_tasks(tmp_path_factory.mktemp("tasks"), *TASKS, "snli")


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def tiny_calibrated(tmp_path_factory, encoder, tiny_sentences) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    provenance = {"corpus": ["mine.txt"]}
    save_model(calibrate(encoder, tiny_sentences, Whitening(), provenance=provenance), folder)
    return folder


@pytest.fixture(autouse=True)
def work(tmp_path, written, monkeypatch) -> Path:
    """A folder to work in, with pairs of one's own and sentences; data are at `data`."""
    rows = graded_rows(40, 50)
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "left", "right", "stars"])
        table.writerows([number, *row] for number, row in enumerate(rows))
    labels = [f"{a}\t{b}\t{float(gold) >= 3}\n" for a, b, gold in rows]
    (tmp_path / "labels.tsv").write_text("text1\ttext2\tlabel\n" + "".join(labels).lower())
    (tmp_path / "corpus.txt").write_text("".join(f"{a}\n{b}\n" for a, b, _ in rows))
    (tmp_path / "data").symlink_to(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bertflow.data.sources.hub_answers", lambda: False)
    return tmp_path


def read(path: str) -> dict:
    return json.loads(Path(path).read_text(), parse_constant=pytest.fail)


def cells(said: str, name: str) -> list[str]:
    """A row of a table on the terminal, by the name that stands first."""
    rows = [line for line in said.splitlines() if re.match(rf"\s*{re.escape(name)}  ", line)]
    assert len(rows) == 1, f"{len(rows)} rows of {name!r} in:\n{said}"
    return re.split(r"  +", rows[0].strip())


def shown(one: Estimate) -> list[str]:
    return [f"{100 * one.value:.2f}", f"{100 * one.low:.1f} to {100 * one.high:.1f}"]


def same(got: dict, expected: Score, *, within: float = 1e-6) -> None:
    """A score in JSON is that of the library, the time aside."""
    plain = json.loads(json.dumps(expected.to_dict()))
    assert got.keys() == plain.keys()
    for key in plain.keys() - {"time", "aggregations", "subsets"}:
        assert got[key] == plain[key], key
    for part in ("aggregations", "subsets"):
        assert got[part].keys() == plain[part].keys()
        for name, measures in plain[part].items():
            for measure, one in measures.items():
                assert got[part][name][measure]["value"] == pytest.approx(one["value"], abs=within)


def grids(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text."""
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        assert len({len(row) for row in rows}) == 1
        assert set("".join(rows[1])) <= set("-:")
        found.append([rows[0], *rows[2:]])
    return found


# evaluate


def test_every_aggregation_and_subset_is_shown_by_its_name(done, tiny_bert, encoder):
    said = done("evaluate", tiny_bert, "--task", "sts15", "--data", "data", "--json", "s.json")
    score = evaluate_all(encoder, ("sts15",), data="data").scores["sts15"]
    total = str(sum(score.scored.values()))
    for name, found in score.aggregations.items():
        expected = [*shown(found["spearman"]), *shown(found["pearson"])]
        assert cells(said, f"sts15, {name}") == [f"sts15, {name}", total, *expected]
    for name, found in score.subsets.items():
        expected = [*shown(found["spearman"]), *shown(found["pearson"])]
        assert cells(said, name) == [name, str(score.scored[name]), *expected]
    assert (
        f"sts15: {score.pairs} pairs; not scored: {score.skipped['no gold score']} no gold" in said
    )
    assert "wmean is the mean over subsets weighted by their pairs" in said
    assert "average of the seven" not in said
    got = read("s.json")
    assert got["model"] == str(tiny_bert)
    assert set(got) == {"model", "scores", "absent", "average_of_seven"}
    same(got["scores"]["sts15"], score)
    assert got["average_of_seven"]["all"]["value"] is None


def test_several_tasks_are_shown_in_the_order_given(done, tiny_bert, encoder):
    given = ["--task", "stsb,qnli", "--task", "sts12"]
    said = done("evaluate", tiny_bert, *given, "--data", "data", "--json", "s.json")
    expected = evaluate_all(encoder, ("stsb", "qnli", "sts12"), data="data")
    got = read("s.json")
    assert list(got["scores"]) == ["stsb", "qnli", "sts12"]
    for task, score in expected.scores.items():
        same(got["scores"][task], score)
    # A task without subsets has one figure, of qnli the area.
    stsb = expected.scores["stsb"].aggregations["all"]
    assert cells(said, "stsb") == ["stsb", "24", *shown(stsb["spearman"]), *shown(stsb["pearson"])]
    assert cells(said, "qnli dev") == ["qnli dev", "24", *shown(expected.scores["qnli"].all)]
    assert "Spearman × 100" in said
    assert "AUC × 100" in said
    assert said.index("\nstsb ") < said.index("\nqnli dev") < said.index("\nsts12, wmean")


def test_all_tasks_have_the_average_of_the_seven_under_both_aggregations(done, tiny_bert, encoder):
    options = ["--task", "all", "--data", "data", "--json", "s.json"]
    said = done("evaluate", tiny_bert, "--against", tiny_bert, *options)
    expected = evaluate_all(encoder, data="data")
    got = read("s.json")
    assert list(got["scores"]) == list(TASKS)
    page = said[: said.index("\nmodel ")]
    for name in ("wmean", "all"):
        row = f"average of the seven, {name}"
        assert cells(page, row) == [row, *shown(expected.average(name))]
        value = got["average_of_seven"][name]["value"]
        assert value == pytest.approx(expected.average(name).value, abs=1e-6)
    for task in TASKS:
        assert f"\n{task}" in page
    # A model does not differ from itself: five tasks have three figures, three have one.
    assert len(got["differences"]) == 5 * 3 + 3 + 2
    assert {f"average of the seven, {name}" for name in ("wmean", "all")} < set(got["differences"])
    for one in got["differences"].values():
        assert (one["value"], one["p"], one["p_holm"], one["real"]) == (0, 1, 1, False)
    assert said.count("chance is enough to explain it") == 20
    assert not re.search(r" real$", said, re.M)


def test_absent_tasks_are_said_with_the_paths_and_never_averaged(done, tiny_bert, tmp_path):
    write_tasks(tmp_path / "few", "stsb", "sts12")
    said = done("evaluate", tiny_bert, "--task", "all", "--data", "few", "--json", "s.json")
    absent = set(TASKS) - {"stsb", "sts12"}
    got = read("s.json")
    assert set(got["scores"]) == {"stsb", "sts12"}
    assert set(got["absent"]) == absent
    for task in absent:
        assert f"- absent: no data for {task} " in said
        assert not re.search(rf"^{task}\b", said, re.M)
    assert "few/senteval/STS/STS13-en-test/STS.input.FNWN.txt" in said
    for name in ("wmean", "all"):
        row = f"average of the seven, {name}"
        assert cells(said, row) == [row, "undefined"]
        assert (
            f"- {row}: undefined: not all seven ran: sts13, sts14, sts15, sts16, sick-r absent"
            in said
        )
        assert got["average_of_seven"][name]["value"] is None
    assert " 0.00" not in said


def test_a_named_task_that_is_absent_is_an_error_with_its_paths(refused, tiny_bert, tmp_path):
    write_tasks(tmp_path / "few", "stsb")
    for command in ("evaluate", "compare"):
        for given in (["--task", "sts13"], ["--task", "stsb", "--task", "sts13"]):
            said = refused(command, tiny_bert, *given, "--data", "few", "--json", "s.json")
            assert said.startswith("no data for sts13 (test): tried few/senteval/STS/STS13-en-test")
            assert "--data DIR" in said


def test_of_all_tasks_at_least_one_must_be_there(refused, tiny_bert, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in ("evaluate", "compare"):
        said = refused(command, tiny_bert, "--task", "all", "--data", "empty")
        assert "no data for sts12 (test): tried empty/senteval/STS/STS12-en-test" in said


def test_undefined_is_said_with_its_reason_and_is_null(done, tiny_bert, tmp_path):
    write_qnli(tmp_path / "one", labels=("entailment",))
    said = done("evaluate", tiny_bert, "--task", "qnli", "--data", "one", "--json", "s.json")
    assert cells(said, "qnli dev") == ["qnli dev", "24", "undefined"]
    assert "- qnli dev: undefined: all 24 pairs are of one class" in said
    got = read("s.json")["scores"]["qnli"]["aggregations"]["all"]["auc"]
    assert (got["value"], got["interval"]) == (None, None)
    assert got["undefined"] == "all 24 pairs are of one class"


def test_subsets_that_are_not_told_apart_are_said(encoder, written):
    # As the hub has the task.
    pairs = replace(read_task("sts12", written), subset=())
    page = model_page("model", [score_pairs(encoder, pairs)], {})
    rows = {row[0]: row[2] for row in page.grids[0].rows}
    assert rows["sts12, wmean"] == rows["sts12, mean"] == "undefined"
    assert HUNDRED.match(ascii_minus(rows["sts12, all"]))
    reason = "undefined: the source does not tell the subsets apart"
    assert {f"sts12, wmean: {reason}", f"sts12, mean: {reason}"} <= set(page.notes)


def test_zero_and_non_finite_vectors_are_said(encoder, monkeypatch, written):
    encode, pairs = encoder.encode, read_task("stsb", written)

    def broken(sentences: Sequence[str], **keywords):
        rows = encode(sentences, **keywords).copy()
        for row, text in zip(rows, sentences, strict=True):
            if text in (pairs.first[0], pairs.second[1]):
                row[:] = 0
            if text == pairs.first[2]:
                row[3] = float("nan")
        return rows

    monkeypatch.setattr(encoder, "encode", broken)
    page = model_page("model", [score_pairs(encoder, pairs)], {})
    assert page.grids[0].rows[0][1] == "21"
    assert "stsb: 24 pairs; not scored: 2 zero vector, 1 vector not finite" in page.notes


def test_pairs_of_ones_own_by_their_columns(done, tiny_bert, encoder):
    options = ["--pairs", "mine.csv", "--columns", "left, right ,stars"]
    said = done("evaluate", tiny_bert, *options, "--json", "s.json")
    score = score_pairs(encoder, read_pairs("mine.csv", columns=("left", "right", "stars")))
    found = score.aggregations["all"]
    expected = [*shown(found["spearman"]), *shown(found["pearson"])]
    assert cells(said, "pairs mine") == ["pairs mine", "40", *expected]
    assert "data       mine.csv\n" in said
    same(read("s.json")["scores"]["pairs"], score)


def test_labels_of_ones_own_are_scored_by_the_area(done, tiny_bert, encoder):
    said = done("evaluate", tiny_bert, "--pairs", "labels.tsv")
    score = score_pairs(encoder, read_pairs("labels.tsv"))
    assert score.measure == "auc"
    assert cells(said, "pairs labels") == ["pairs labels", "40", *shown(score.all)]
    assert "Spearman" not in said


def test_pairs_of_ones_own_stand_beside_tasks(done, tiny_bert):
    options = ["--task", "stsb", "--data", "data", "--pairs", "labels.tsv", "--json", "s.json"]
    said = done("evaluate", tiny_bert, *options)
    assert list(read("s.json")["scores"]) == ["stsb", "pairs"]
    assert cells(said, "stsb")[1] == "24"
    assert cells(said, "pairs labels")[1] == "40"


def test_another_split_is_scored_and_said(done, tiny_bert, encoder):
    options = ["--task", "stsb", "--data", "data", "--split", "dev", "--json", "s.json"]
    said = done("evaluate", tiny_bert, *options)
    expected = score_pairs(encoder, read_task("stsb", "data", "dev"))
    same(read("s.json")["scores"]["stsb"], expected)
    assert cells(said, "stsb dev")[2] == f"{100 * expected.all.value:.2f}"


def test_the_environment_says_where_the_data_are(done, tiny_bert, monkeypatch):
    monkeypatch.setenv("BERTFLOW_DATA", "data")
    assert cells(done("evaluate", tiny_bert, "--task", "stsb"), "stsb")[1] == "24"


def test_what_is_scored_is_said(done, tiny_bert, tiny_calibrated):
    bare = done("evaluate", tiny_bert, "--task", "stsb", "--data", "data")
    assert f"model      {tiny_bert}\n" in bare
    assert "calibrator none\n" in bare
    assert "data       data/senteval/STS/STSBenchmark/sts-test.csv\n" in bare
    options = ["--task", "stsb", "--data", "data", "--json", "s.json"]
    said = done("evaluate", tiny_calibrated, *options)
    assert "calibrator whitening\n" in said
    assert "fitted on  300 sentences of mine.txt\n" in said
    got = read("s.json")["scores"]["stsb"]
    assert got["calibrator"]["name"] == "whitening"
    assert got["fitted_on"]["corpus"] == ["mine.txt"]
    assert got["versions"]["bertflow"]
    assert got["encoder"]["pooling"] == "mean"


def test_against_another_model_every_difference_is_tested(
    done, tiny_bert, tiny_calibrated, encoder
):
    options = ["--task", "sts12,stsb", "--pairs", "labels.tsv", "--data", "data"]
    said = done("evaluate", tiny_calibrated, "--against", tiny_bert, *options, "--json", "s.json")
    found = [read_task("sts12", "data"), read_task("stsb", "data"), read_pairs("labels.tsv")]
    corpus_fitted = load_encoder_of(tiny_calibrated)
    before, after = (
        Scores(scores={one.task: one for one in score_all(model, found)}, absent={})
        for model in (encoder, corpus_fitted)
    )
    expected = differences(before, after)
    names = ["sts12, wmean", "sts12, mean", "sts12, all", "stsb", "pairs"]
    assert list(expected) == names
    got = read("s.json")
    assert (got["model"], got["against"]["model"]) == (str(tiny_calibrated), str(tiny_bert))
    assert list(got["differences"]) == names
    table = said[said.index(f"{tiny_calibrated} minus {tiny_bert}, × 100") :]
    for name, one in expected.items():
        assert got["differences"][name]["value"] == pytest.approx(one.value, abs=1e-6)
        assert got["differences"][name]["p_holm"] == pytest.approx(one.adjusted, abs=1e-4)
        assert got["differences"][name]["real"] == one.real
        row = cells(table, name)
        assert row[:3] == [name, f"{100 * one.value:+.2f}", interval_of(one)]
        assert row[4] == ("real" if one.real else "chance is enough to explain it")
    assert "paired bootstrap" in table
    assert "(Holm)" in table
    for model in (tiny_calibrated, tiny_bert):
        assert f"model      {model}\n" in said
    for task in ("sts12", "stsb", "pairs"):
        same(got["scores"][task], after.scores[task], within=1e-4)
        same(got["against"]["scores"][task], before.scores[task])


def load_encoder_of(folder: Path):
    import bertflow

    return bertflow.load(folder, device="cpu")


def interval_of(one) -> str:
    return f"{100 * one.low:.1f} to {100 * one.high:.1f}"


def test_markdown_holds_what_is_shown(done, tiny_bert, tiny_calibrated):
    options = ["--task", "sts13,stsb", "--data", "data", "--markdown", "new/s.md"]
    said = done("evaluate", tiny_calibrated, "--against", tiny_bert, *options)
    text = Path("new/s.md").read_text()
    first, second, third = grids(text)
    assert first[0][:3] == ["task", "pairs", "Spearman × 100"]
    names = ["sts13, wmean", "sts13, mean", "sts13, all", *CATALOG["sts13"].subsets, "stsb"]
    assert [row[0] for row in first[1:]] == [row[0] for row in second[1:]] == names
    assert [row[0] for row in third[1:]] == ["sts13, wmean", "sts13, mean", "sts13, all", "stsb"]
    for row in (*first[1:], *second[1:], *third[1:]):
        line = re.compile(
            r"\s*" + r"\s+".join(re.escape(cell) for cell in row if cell) + r"$", re.M
        )
        assert line.search(said), row
    assert f"- model: {tiny_calibrated}\n" in text
    assert f"- model: {tiny_bert}\n" in text
    for note in re.findall(r"^- .*", said, re.M):
        assert note in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --task NAME (or all), or --pairs FILE"),
        (["--columns", "a,b,c"], "give --task NAME (or all), or --pairs FILE"),
        (["--task", "stsb", "--columns", "a,b,c"], "--columns goes with --pairs"),
        (["--pairs", "mine.csv", "--columns", "left,right"], "columns must be 3 different ones"),
        (
            ["--pairs", "mine.csv", "--columns", "left,right,stars,id"],
            "columns must be 3 different ones",
        ),
        (["--pairs", "mine.csv", "--columns", "left,right,nope"], "nope"),
        (["--pairs", "mine.csv"], "mine.csv: cannot tell which columns"),
        (["--pairs", "nope.csv"], "nope.csv"),
        (["--pairs", "corpus.txt"], "corpus.txt"),
        (["--task", "sick"], f"unknown task 'sick'; expected one of {', '.join(TASKS)}"),
        (["--task", "sts-b"], "all; did you mean stsb?"),
        (["--task", ""], "unknown task ''"),
        (["--task", "stsb,"], "unknown task ''"),
        (["--task", "stsb", "--data", "nope"], "nope is no folder"),
    ],
)
def test_what_cannot_be_scored_is_refused(refused, tiny_bert, options, message):
    data = [] if "--data" in options else ["--data", "data"]
    written = ["--json", "s.json", "--markdown", "s.md"]
    for command in ("evaluate", "compare"):
        assert message in refused(command, tiny_bert, *data, *options, *written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "stsb", "--split", "all"], "unknown split of stsb 'all'; expected"),
        (["--task", "sts12", "--split", "dev"], "unknown split of sts12 'dev'; expected"),
        (["--task", "qnli", "--split", "train"], "no data for qnli (train)"),
        (["--task", "stsb", "--against", "./nope"], "./nope does not exist"),
        (["--task", "stsb", "--json", "folder"], "cannot write folder"),
        (["--task", "stsb", "--json", "corpus.txt/s.json"], "cannot write corpus.txt/s.json"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(refused, tiny_bert, work, options, message):
    (work / "folder").mkdir()
    assert message in refused("evaluate", tiny_bert, "--data", "data", *options)


def test_no_data_say_how_to_give_them(refused, tiny_bert):
    for command in ("evaluate", "compare"):
        said = refused(command, tiny_bert, "--task", "stsb")
        assert "--data" in said
        assert "BERTFLOW_DATA" in said


# compare

SOME = ("none", "all-but-the-top", "whitening", "flow")


def methods(*names: str) -> list[str]:
    return [part for name in names for part in ("--method", name)]


def test_a_comparison_is_that_of_the_library(done, tiny_bert, encoder):
    said = done(
        *["compare", tiny_bert, "--task", "sts12", "--task", "stsb", "--data", "data"],
        *methods(*SOME),
        *["--seeds", 2, "--jobs", 1, "--json", "c.json"],
    )
    expected = compare(encoder, ("sts12", "stsb"), data="data", methods=SOME, seeds=2, jobs=1)
    got, plain = read("c.json"), json.loads(json.dumps(expected.to_dict()))
    assert got.pop("given") == str(tiny_bert)
    assert got.keys() == plain.keys()
    for key in plain.keys() - {"entries", "encode_seconds", "seconds", "time"}:
        assert got[key] == plain[key], key
    for name, entry in plain["entries"].items():
        for part in ("tasks", "overall", "components", "label", "megabytes"):
            assert got["entries"][name][part] == entry[part]
        assert got["entries"][name]["differences"] == entry["differences"]
    assert "304 sentences" in said
    assert f"{expected.sentences} distinct sentences, once" in said
    assert "pairs      sts12 80, stsb 24\n" in said


def test_every_method_task_and_aggregation_is_shown(done, tiny_bert, encoder):
    options = ["--task", "sts12,stsb", "--data", "data", "--seeds", 1, "--jobs", 1]
    said = done("compare", tiny_bert, *options)
    result = compare(encoder, ("sts12", "stsb"), data="data", seeds=1, jobs=1)
    page = comparison_page(str(tiny_bert), result)
    titles = [grid.title for grid in page.grids]
    for aggregation in ("wmean", "all"):
        assert titles.count(f"Spearman × 100, {aggregation}") == 2
        tasks, gains = (
            replace(grid, rows=[[*map(ascii_minus, row)] for row in grid.rows])
            for grid in page.grids
            if grid.title == f"Spearman × 100, {aggregation}"
        )
        assert tasks.columns == ["calibrator", "sts12", "stsb", "mean of 2"]
        for method, row, gain in zip(METHODS, tasks.rows, gains.rows, strict=True):
            entry = result.entries[method]
            overall = entry.overall(aggregation)
            found = [*entry.estimates[aggregation].values(), overall]
            assert row == [entry.label, *(f"{100 * one.value:.2f}" for one in found)]
            assert gain[:3] == [entry.label, *shown(overall)]
            if method != "none":
                one = result.against("none", aggregation)[method]
                assert gain[3] == f"{100 * one.value:+.2f}"
                assert gain[4] == f"{100 * one.low:+.1f} to {100 * one.high:+.1f}"
    assert "the mean is of 2 tasks, not the average of the seven" in said
    # What is shown is that page, times aside.
    for grid in page.grids[:-1]:
        assert grid.text() in said
    for note in page.notes:
        assert f"- {note}\n" in said


def test_a_comparison_says_that_pairs_never_graded_are_fitted_on(done, tiny_bert, encoder):
    options = ["--task", "sts15", "--data", "data", *methods("none"), "--jobs", 1]
    said = done("compare", tiny_bert, *options, "--markdown", "c.md")
    skipped = evaluate_all(encoder, ("sts15",), data="data").scores["sts15"].skipped
    assert skipped["no gold score"]
    for text in (said, Path("c.md").read_text()):
        assert "all splits that are there, also pairs never graded" in text
        assert f"- sts15: not scored: {skipped['no gold score']} no gold score\n" in text


def test_tasks_without_subsets_have_one_table_without_an_aggregation(done, tiny_bert):
    options = ["--task", "stsb", "--data", "data", *methods("none", "whitening"), "--jobs", 1]
    said = done("compare", tiny_bert, *options, "--json", "c.json")
    assert "Spearman × 100\n" in said
    assert "wmean" not in said
    got = read("c.json")
    assert all(set(entry["overall"]) == {"all"} for entry in got["entries"].values())
    value = got["entries"]["whitening"]["overall"]["all"]["value"]
    rows = [line for line in said.splitlines() if line.startswith("whitening ")]
    assert f" {100 * value:.2f} " in rows[0]


def test_all_means_the_seven_sts_tasks_and_absent_ones_are_said(done, tiny_bert, tmp_path):
    given = [*methods("none", "whitening"), "--jobs", 1, "--json", "c.json"]
    said = done("compare", tiny_bert, "--task", "all", "--data", "data", *given)
    assert list(read("c.json")["tasks"]) == list(STS_TASKS)
    assert "average" in said
    assert "absent" not in said
    write_tasks(tmp_path / "few", "stsb", "sts13")
    said = done("compare", tiny_bert, "--task", "all", "--data", "few", *given)
    got = read("c.json")
    assert list(got["tasks"]) == ["sts13", "stsb"]
    assert set(got["absent"]) == set(STS_TASKS) - {"sts13", "stsb"}
    for task in got["absent"]:
        assert f"- absent: no data for {task} " in said
    assert "mean of 2" in said
    assert "average  " not in said
    assert "not the average of the seven" in said


def test_a_corpus_of_ones_own_is_fitted_on(done, tiny_bert, encoder):
    said = done(
        *["compare", tiny_bert, "--task", "stsb", "--data", "data", "--fit", "corpus"],
        *["--corpus", "corpus.txt", *methods("none", "whitening"), "--jobs", 1],
        *["--json", "c.json"],
    )
    expected = compare(
        encoder,
        ("stsb",),
        data="data",
        fit=read_corpus(["corpus.txt"]),
        methods=("none", "whitening"),
        jobs=1,
    )
    got = read("c.json")
    assert got["fitted_on"] == {
        "fit": "corpus",
        "sets": [],
        "sentences": {"corpus": 80},
        "skipped": {},
    }
    value = got["entries"]["whitening"]["overall"]["all"]["value"]
    assert value == pytest.approx(expected.entries["whitening"].overall("all").value, abs=1e-6)
    assert "the given corpus (80 sentences)" in said


def test_a_column_of_a_table_is_the_corpus(done, tiny_bert):
    done(
        *["compare", tiny_bert, "--task", "stsb", "--data", "data", "--fit", "corpus"],
        *["--corpus", "mine.csv", "--column", "left", *methods("none"), "--jobs", 1],
        *["--json", "c.json"],
    )
    assert read("c.json")["fitted_on"]["sentences"] == {"corpus": 40}


def test_nli_is_fitted_on(done, tiny_bert):
    said = done(
        *["compare", tiny_bert, "--task", "stsb", "--data", "data", "--fit", "nli"],
        *[*methods("none", "whitening"), "--jobs", 1, "--json", "c.json"],
    )
    assert read("c.json")["fitted_on"] == {
        "fit": "nli",
        "sets": ["snli"],
        "sentences": {"corpus": 144},
        "skipped": {},
    }
    assert "snli, all splits that are there (144 sentences)" in said


def test_pairs_of_ones_own_are_compared_on(done, tiny_bert, encoder):
    said = done(
        *["compare", tiny_bert, "--pairs", "mine.csv", "--columns", "left,right,stars"],
        *[*methods("none", "whitening"), "--jobs", 1, "--json", "c.json"],
    )
    pairs = read_pairs("mine.csv", columns=("left", "right", "stars"))
    expected = compare(encoder, [pairs], methods=("none", "whitening"), jobs=1)
    got = read("c.json")
    assert list(got["tasks"]) == ["pairs"]
    for name, entry in expected.entries.items():
        value = got["entries"][name]["overall"]["all"]["value"]
        assert value == pytest.approx(entry.overall("all").value, abs=1e-6)
        assert f"{100 * value:.2f}" in said


def test_the_choice_on_a_dev_split_is_said(done, tiny_bert):
    options = ["--task", "stsb,sick-r", "--data", "data", "--jobs", 1, "--json", "c.json"]
    said = done("compare", tiny_bert, *methods("none", "all-but-the-top"), *options)
    got = read("c.json")
    counts = got["entries"]["all-but-the-top"]["components"]
    assert set(counts) == {"stsb", "sick-r"}
    assert got["dev"] == {"stsb": "stsb dev", "sick-r": "sick-r dev"}
    chosen = ", ".join(f"{task} {counts[task]} ({task} dev)" for task in ("stsb", "sick-r"))
    assert f"a dev split: {chosen}\n" in said


def test_a_comparison_as_markdown_holds_what_is_shown(done, tiny_bert):
    options = ["--task", "sts13,stsb", "--data", "data", "--seeds", 2, "--jobs", 1]
    said = done("compare", tiny_bert, *methods(*SOME), *options, "--markdown", "new/c.md")
    text = Path("new/c.md").read_text()
    found = grids(text)
    assert len(found) == 5
    labels = [METHODS[name].label for name in SOME]
    for table in found:
        assert [row[0] for row in table[1:]] == labels
        for row in table:
            line = r"^" + r"\s+".join(re.escape(cell) for cell in row if cell) + r"$"
            assert re.search(line, said, re.M), row
    for title in ("Spearman × 100, wmean", "Spearman × 100, all"):
        assert text.count(f"**{title}**") == 2
    for note in re.findall(r"^- .*", said, re.M):
        assert note in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fit", "test"], "unknown fit 'test'; expected one of target, nli, corpus"),
        (["--fit", "corpus"], "--fit corpus goes with --corpus FILE"),
        (["--fit", "nli", "--corpus", "corpus.txt"], "--corpus with --fit corpus"),
        (["--fit", "corpus", "--corpus", "nope.txt"], "nope.txt does not exist"),
        (["--method", "Flow"], f"expected one of {', '.join(METHODS)}; did you mean flow?"),
        (["--method", "none", "--method", ""], "unknown method ''"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(refused, tiny_bert, options, message):
    given = ["--task", "stsb", "--data", "data", "--json", "c.json"]
    assert message in refused("compare", tiny_bert, *given, *options)


def test_nli_that_is_not_there_is_refused_with_its_paths(refused, tiny_bert, tmp_path):
    write_tasks(tmp_path / "few", "stsb")
    said = refused("compare", tiny_bert, "--task", "stsb", "--data", "few", "--fit", "nli")
    assert "no data for snli" in said
    assert "few/" in said


def test_the_data_are_untouched(done, tiny_bert, written):
    before = tree(written)
    done("compare", tiny_bert, "--task", "stsb", "--data", "data", *methods("none"), "--jobs", 1)
    done("evaluate", tiny_bert, "--task", "stsb", "--data", "data")
    assert tree(written) == before


# What goes together, and what is said of it.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "m", "--pairs", "p.csv", "--split", "dev"], "--split goes with --task"),
        (["compare", "m", "--task", "stsb", "--column", "x"], "--column goes with --corpus"),
        (["diagnose", "m", "--column", "x"], "--column goes with --corpus"),
        (["diagnose", "m", "--columns", "a,b,c"], "--columns goes with --pairs"),
        (["diagnose", "m", "--format", "csv"], "--format goes with --corpus or --pairs"),
        (["compare", "m", "--task", "stsb", "--format", "csv"], "--format goes with --corpus or"),
        (["evaluate", "m", "--task", "stsb", "--format", "csv"], "--format goes with --pairs"),
        (["evaluate", "m", "--task", "sick"], "unknown task 'sick'; expected one of sts12"),
    ],
)
def test_an_option_without_what_it_belongs_to_is_refused(refused, work, arguments, message):
    Path("p.csv").write_text("text1,text2,score\na,b,1\n")
    assert message in refused(*arguments)


def test_a_calibrated_model_is_set_against_its_encoder_at_the_same_pooling(work, done, tiny_bert):
    how = ["--pooling", "last2avg", "--max-length", 20]
    done("fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "m", *how)
    said = done(
        *["evaluate", "m", "--against", tiny_bert, "--task", "stsb", "--data", "data", *how],
        *["--json", "s.json"],
    )
    read = json.loads(Path("s.json").read_text())
    assert read["against"]["scores"]["stsb"]["encoder"]["layers"] == [2, 3]
    assert read["scores"]["stsb"]["fitted_on"]["encoder"]["layers"] == [2, 3]
    assert "m minus" in said


@pytest.fixture
def fitted(work, done, tiny_bert) -> Path:
    """A calibrated model of another pooling and length than encoders have by default."""
    how = ["--pooling", "layers:1", "--max-length", 20, "--calibrator", "tempered-flow"]
    done("fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "m", *how)
    return work / "m"


OWN = ["--pairs", "mine.csv", "--columns", "left,right,stars", "--json", "s.json"]


def test_against_without_a_value_is_the_models_own_encoder(fitted, done, tiny_bert):
    said = done("evaluate", "m", "--against", *OWN)
    own = load_encoder(tiny_bert, pooling="layers:1", max_length=20, device="cpu")
    expected = score_pairs(own, read_pairs("mine.csv", columns=("left", "right", "stars")))
    got = read("s.json")["against"]
    assert got["model"] == str(tiny_bert)
    same(got["scores"]["pairs"], expected)
    assert f"model      m: tempered-flow on {tiny_bert}, mean, maximum length 20\n" in said
    assert f"against    its encoder: {tiny_bert}, mean, maximum length 20\n" in said
    assert "calibrator tempered-flow\n" in said


def test_an_encoder_beside_a_calibrated_model_has_its_pooling_and_length(
    fitted, done, tiny_bert, tiny_llama, work
):
    load_encoder(tiny_llama, pooling="cls", device="cpu").save_pretrained("pooled")
    for other, how, pooling, layers, length in [
        (tiny_bert, [], "mean", None, 20),
        (tiny_bert, ["--pooling", "last2avg", "--max-length", 9], "mean", [2, 3], 9),
        # Another raw encoder, whose state 1 is not its last one once it is cut.
        (tiny_llama, [], "mean", [1], 20),
        ("pooled", [], "cls", None, 32),
    ]:
        done("evaluate", "m", "--against", other, *OWN, *how)
        about = read("s.json")["against"]["scores"]["pairs"]["encoder"]
        assert (about["pooling"], about["layers"], about["max_length"]) == (pooling, layers, length)
    # The other way round, too.
    done("evaluate", tiny_bert, "--against", "m", *OWN)
    assert read("s.json")["scores"]["pairs"]["encoder"]["max_length"] == 20


def test_against_without_a_value_needs_a_calibrated_model(fitted, refused, tiny_bert, done):
    assert "is none; name the other model" in refused("evaluate", tiny_bert, "--against", *OWN)
    assert "leave them out" in refused("evaluate", "m", "--against", "--pooling", "mean", *OWN)
    said = done("analyze", "lexical", "m", "--against", *OWN)
    assert f"- its encoder: {tiny_bert}" not in said  # Its name is that of the folder.
    assert "\nits encoder  " in said


def test_pairs_of_ones_own_touch_no_task_that_was_not_named(done, tiny_bert, monkeypatch):
    how = [*methods("none", "all-but-the-top"), "--jobs", 1, "--no-cache"]
    given = ["compare", tiny_bert, *OWN, *how]
    done(*given)
    without = read("s.json")
    monkeypatch.setenv("BERTFLOW_DATA", "data")
    said = done(*given)
    found = read("s.json")
    pairs = read_pairs("mine.csv", columns=("left", "right", "stars"))
    assert found["sentences"] == len({*pairs.first, *pairs.second})
    assert (
        found["entries"]["all-but-the-top"]["overall"]
        == (without["entries"]["all-but-the-top"]["overall"])
    )
    assert found["dev"] == {"pairs": None}
    assert "no dev split is there for pairs: all-but-the-top removes D // 100, at least 1" in said


def test_a_comparison_says_that_the_pairs_were_fitted_on_and_a_corpus_is_by_default(
    done, tiny_bert
):
    how = [*methods("none", "whitening"), "--jobs", 1]
    said = done("compare", tiny_bert, *OWN, *how)
    assert "fitted on  80 sentences of the pairs themselves\n" in said
    assert "--corpus FILE fits on what you would fit on, and judges what would be shipped" in said
    said = done("compare", tiny_bert, *OWN, *how, "--corpus", "corpus.txt")
    assert read("s.json")["fitted_on"]["fit"] == "corpus"
    assert "shipped" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", ["--json", "--markdown"])
def test_what_cannot_be_written_in_the_end_is_kept_and_shown(cli, tiny_bert, form):
    options = ["--task", "stsb", "--data", "data", form, "/dev/full"]
    code, out, err = cli("evaluate", tiny_bert, *options)
    assert code == 1
    assert "Spearman × 100" in out
    start, _, kept = err.strip().partition("; what was computed is in ")
    assert start == "error: cannot write /dev/full: No space left on device"
    assert "stsb" in Path(kept).read_text()


def test_compare_refuses_what_is_calibrated_already(work, done, refused, tiny_bert):
    done("fit", "--encoder", tiny_bert, "--corpus", "corpus.txt", "--output", "m")
    said = refused("compare", "m", "--task", "stsb", "--data", "data", "--method", "none")
    assert "calibrated already" in said


def test_a_release_without_scores_is_absent_among_all_and_an_error_by_name(
    done, refused, tiny_bert, tmp_path
):
    data = write_tasks(tmp_path / "others", "sick-r")
    (data / "glue/STS-B").mkdir(parents=True)
    (data / "glue/STS-B/test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    why = "test.tsv: none of its 1 pairs has a gold score; there are releases without labels"
    out = done("evaluate", tiny_bert, "--task", "all", "--data", data)
    assert f"absent: {data}/glue/STS-B/{why}" in out
    assert "sick-r" in out
    assert why in refused("evaluate", tiny_bert, "--task", "stsb", "--data", data)
