"""Tables from end to end: the same numbers as evaluate's, computed once whatever stops the run."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertflow import errors, evaluation
from bertflow.calibrators import AllButTheTop, Flow, Standardization
from bertflow.data import STS_TASKS, read_sentences
from bertflow.encoders import load_encoder
from bertflow.errors import (
    BertflowError,
    InputError,
    MissingDataError,
    MissingDependencyError,
    ModelError,
    TrainingError,
)
from bertflow.evaluation import Difference, compare, evaluate
from bertflow.finetuning import Recipe
from bertflow.io.result_store import ResultStore
from bertflow.models import calibrate
from bertflow.paper import NAMES, run
from bertflow.paper.analyses import Scatter
from bertflow.paper.declared import SCORE_TABLES
from bertflow.paper.plan import Material, Planner, Subject, identify
from bertflow.paper.results import TableResult
from bertflow.paper.run import Made, Workplace, reproduce
from task_files import write_tasks

# All that stsb and snli give.
SMALL = ["table2", "table3", "table4", "table5", "table6", "table8", "figure2"]
# So much that 24 pairs show which fine-tuning it was.
FAST = Recipe(learning_rate=3e-3)


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """Intervals are tested elsewhere; here they only take time."""
    with pytest.MonkeyPatch.context() as patched:
        few = functools.partial(evaluation.figures, resamples=40)
        patched.setattr(run, "figures", few)
        yield


@dataclass(frozen=True)
class Reproduction:
    """Tables by name, the numbers of Figure 2, why others are absent, and how many jobs ran."""

    tables: dict[str, TableResult]
    scatters: list[Scatter]
    absent: dict[str, BertflowError]
    ran: int


@dataclass(frozen=True)
class Project:
    """An encoder, data, and a folder for what is computed."""

    subject: Subject
    data: Path
    runs: Path

    def run(self, *names: str, limit: int | None = None, **changes: Any) -> Reproduction:
        """Reproduce tables; changes are of `Planner`, or progress, jobs or made."""
        progress, told = changes.pop("progress", None), []
        made = changes.pop("made", lambda one: None)

        def report(stage: str, done: int, total: int) -> None:
            told.append(stage)
            if progress is not None:
                progress(stage, done, total)

        jobs = changes.pop("jobs", 1)
        planner = Planner(Material(self.data, limit), **{"seeds": 2, "finetuning": FAST, **changes})
        place = Workplace(planner=planner, folder=self.runs, device="cpu", jobs=jobs, report=report)
        found: dict[str, Made] = {}
        for name, one in reproduce(names, [self.subject], place):
            found[name] = one
            if not isinstance(one, BertflowError):
                made(one)
        absent = {name: one for name, one in found.items() if isinstance(one, BertflowError)}
        if len(absent) == len(found):
            raise next(iter(absent.values()))
        return Reproduction(
            tables={name: one for name, one in found.items() if isinstance(one, TableResult)},
            scatters=next((one for one in found.values() if isinstance(one, list)), []),
            absent=absent,
            ran=told.count("cells"),
        )

    def anew(self, runs: Path, **changes: Any) -> Project:
        """The same with a copy of what was computed."""
        shutil.copytree(self.runs, runs)
        return replace(self, runs=runs, **changes)

    def times(self) -> dict[str, int]:
        """When each record was written."""
        folder = self.runs / "records"
        return {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.json")}

    def written_since(self, before: dict[str, int]) -> list[dict[str, Any]]:
        """What the records that are new say they are about; the others must be as they were."""
        after = self.times()
        assert {key: after.get(key) for key in before} == before
        fresh = after.keys() - before.keys()
        return [json.loads((self.runs / f"records/{key}.json").read_text()) for key in fresh]


def contents(project: Project) -> dict[str, Any]:
    """What every record holds besides times, machines and places."""
    found = {}
    for path in sorted((project.runs / "records").iterdir()):
        if path.suffix == ".json":
            record = json.loads(path.read_text())
            found[path.name] = {name: record[name] for name in ("kind", "recipe", "result")}
        else:
            with np.load(path) as arrays:
                found[path.name] = {name: arrays[name].tobytes() for name in arrays.files}
    return found


@pytest.fixture(scope="module")
def base(tiny_bert, tmp_path_factory) -> Project:
    """STS-B and SNLI alone, and nothing computed."""
    root = tmp_path_factory.mktemp("reproduce")
    encoder = Path(shutil.copytree(tiny_bert, root / "tiny"))
    data = write_tasks(root / "data", "stsb", "snli")
    return Project(identify(encoder, max_length=32), data, root / "runs")


@pytest.fixture(scope="module")
def small(base) -> tuple[Project, Reproduction, list[tuple[str, int, int]]]:
    """All that can be had of STS-B and SNLI, once, and the progress that was told."""
    told: list[tuple[str, int, int]] = []
    result = base.run(*SMALL, progress=lambda *step: told.append(step))
    return base, result, told


@pytest.fixture
def copy(small, tmp_path) -> Project:
    """What was computed, to go on with."""
    return small[0].anew(tmp_path / "runs")


@pytest.fixture(scope="module")
def table(small) -> Callable:
    """A cell by table, row and column."""

    def find(name: str, row: str, column: str = "stsb"):
        (found,) = [one for one in small[1].tables[name].rows if one.name == row]
        return found.cells[column]

    return find


# The numbers.


def scored(project: Project, model: Any, split: str | None = None) -> float:
    return 100 * evaluate(model, "stsb", data=project.data, split=split).all.value


def loaded(project: Project, pooling: str, name: str | Path | None = None) -> Any:
    return load_encoder(name or project.subject.name, pooling=pooling, max_length=32, device="cpu")


@pytest.mark.parametrize(
    ("name", "row", "pooling", "calibrator"),
    [
        ("table2", "bert avg (sbert)", "mean", None),
        ("table2", "true last2avg", "last2avg", None),
        ("table2", "last2avg", "first-last-avg", None),
        ("table5", "sn", "mean", Standardization()),
        ("table5", "sn natsv k=1", "mean", AllButTheTop(1, standardize=True)),
    ],
)
def test_a_cell_is_what_calibrate_and_evaluate_give(small, table, name, row, pooling, calibrator):
    model = loaded(small[0], pooling)
    if calibrator is not None:
        model = calibrate(model, read_sentences("stsb", small[0].data), calibrator)
    assert table(name, row).value == pytest.approx(scored(small[0], model), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "row", "pooling", "fit", "arguments"),
    [
        ("table2", "flow target", "first-last-avg", "stsb", {}),
        ("table2", "flow nli", "first-last-avg", "snli", {"epochs": 0.15, "learning_rate": 2e-5}),
    ],
)
def test_a_flow_cell_is_what_calibrate_and_evaluate_give(
    small, table, name, row, pooling, fit, arguments
):
    sentences = read_sentences(fit, small[0].data)
    encoder = loaded(small[0], pooling)
    expected = [
        scored(
            small[0],
            calibrate(encoder, sentences, Flow(random_state=seed, device="cpu", **arguments)),
        )
        for seed in (0, 1)
    ]
    cell = table(name, row)
    assert list(cell.values) == pytest.approx(expected, abs=1e-4)
    assert cell.value == pytest.approx(np.mean(expected), abs=1e-4)
    assert cell.deviation == pytest.approx(np.std(expected, ddof=1), abs=1e-4)


def test_the_chosen_count_is_the_one_that_compare_chooses(small, table):
    found = compare(
        loaded(small[0], "mean"),
        ["stsb"],
        methods=["all-but-the-top", "standardization+all-but-the-top"],
        data=small[0].data,
        jobs=1,
    )
    for row, method in [
        ("natsv k=10", "all-but-the-top"),
        ("sn natsv k=6", "standardization+all-but-the-top"),
    ]:
        cell, entry = table("table5", row), found.entries[method]
        assert cell.components == entry.components["stsb"]
        assert cell.value == pytest.approx(100 * entry.estimates["all"]["stsb"].value, abs=1e-4)
        (label,) = [one.label for one in small[1].tables["table5"].rows if one.name == row]
        assert label.endswith(f"k = {cell.components} (chosen)")


def models(project: Project) -> dict[int, Path]:
    """By seed, the folders of the fine-tuned encoders."""
    records = [json.loads(p.read_text()) for p in (project.runs / "records").glob("*.json")]
    tunings = {one["recipe"]["seed"]: one["key"] for one in records if one["kind"] == "tuning"}
    return {seed: project.runs / "models" / key for seed, key in tunings.items()}


def test_fine_tuned_rows_are_scores_of_the_encoders_in_models(small, table):
    found = models(small[0])
    assert sorted(found) == [0, 1]
    assert {path.name for path in (small[0].runs / "models").iterdir()} == {
        path.name for path in found.values()
    }
    for row, pooling in [("nli", "mean"), ("nli last2avg", "first-last-avg")]:
        expected = [scored(small[0], loaded(small[0], pooling, found[seed])) for seed in (0, 1)]
        assert table("table3", row).value == pytest.approx(expected[0], abs=1e-4)
        assert list(table("table8", row).values) == pytest.approx(expected, abs=1e-4)


def test_in_table_8_every_seed_is_a_fine_tuning_and_a_flow_of_its_own(small, table):
    sentences = read_sentences("stsb", small[0].data)
    expected = [
        scored(
            small[0],
            calibrate(
                loaded(small[0], "first-last-avg", models(small[0])[seed]),
                sentences,
                Flow(random_state=seed, device="cpu"),
            ),
        )
        for seed in (0, 1)
    ]
    assert list(table("table8", "nli last2avg flow target").values) == pytest.approx(
        expected, abs=1e-4
    )
    # In Table 3 the encoder is fine-tuned once, and the flow alone has seeds.
    values = table("table3", "nli flow target").values
    assert values[0] == pytest.approx(expected[0], abs=1e-4)
    assert values[1] != pytest.approx(expected[1], abs=1e-4)


def test_two_fine_tunings_differ_in_their_weights_and_tell_their_accuracy(small):
    project, result, _ = small
    weights = {(path / "model.safetensors").read_bytes() for path in models(project).values()}
    assert len(weights) == 2
    for seed, path in models(project).items():
        facts = json.loads((path / "finetuning.json").read_text())
        share = facts["accuracy"]
        note = (
            f"tiny-NLI, seed {seed}: trained on {sum(facts['counts']['train'].values())} pairs of "
            f"SNLI; accuracy on {share['pairs']} held-out pairs {100 * share['value']:.1f} %"
        )
        assert any(one.startswith(note) for one in result.tables["table8"].notes)
        assert any(one.startswith(note) for one in result.tables["table3"].notes) == (seed == 0)


def test_the_figure_shows_gold_the_encoder_and_the_first_seeds_flow_on_dev(small):
    project, result, _ = small
    (scatter,) = result.scatters
    assert scatter.encoder == "tiny"
    names = ["gold", "tiny, first and last block", "flow (target)"]
    assert list(scatter.panels) == names
    flow = calibrate(
        loaded(project, "first-last-avg"),
        read_sentences("stsb", project.data),
        Flow(random_state=0, device="cpu"),
    )
    dev = evaluate(flow, "stsb", data=project.data, split="dev")
    np.testing.assert_allclose(scatter.panels["flow (target)"], dev.cosines, atol=1e-5)
    np.testing.assert_array_equal(scatter.panels["gold"], np.array(dev.graded.gold))
    assert {unit: len(one) for unit, one in scatter.distances.items()} == {
        "characters": 24,
        "words": 24,
    }


# What is not there.


def test_a_table_without_data_is_absent_with_the_reason(small):
    assert list(small[1].tables) == ["table2", "table3", "table5", "table6", "table8"]
    assert list(small[1].absent) == ["table4"]
    error = small[1].absent["table4"]
    assert isinstance(error, MissingDataError)
    assert str(error).startswith("no data for qnli (dev): tried")


def test_a_task_without_data_is_empty_with_the_reason_and_there_is_no_average(small, table):
    for name, row in [("table2", "flow target"), ("table3", "nli last2avg")]:
        for column in ("sick-r", "sts12", "sts16"):
            cell = table(name, row, column)
            assert (cell.value, cell.low, list(cell.values)) == (None, None, [])
            assert cell.reason.startswith(f"no data for {column}")
        average = table(name, row, "average")
        assert average.value is None
        assert average.reason == "no sick-r, sts12, sts13, sts14, sts15, sts16"
        # What the paper claims of them stays, and cannot be told.
        claims = small[1].tables[name].claims
        assert len(claims) == 5
        assert {(one.difference, one.verdict) for one in claims} == {
            (Difference(None), "cannot be told")
        }


def test_without_any_data_nothing_is_written(base, tmp_path):
    empty = replace(base, data=write_tasks(tmp_path / "none"), runs=tmp_path / "runs")
    with pytest.raises(MissingDataError, match="no data for stsb"):
        empty.run("table5", "table8")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (["table5"], lambda one: [one, one], "two encoders are called tiny"),
        (
            ["table5"],
            lambda one: [replace(one, words=True)],
            "is a file of word vectors, not an encoder",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(base, tmp_path, names, change, message):
    place = Workplace(planner=Planner(Material(base.data)), folder=tmp_path / "runs")
    with pytest.raises(InputError, match=re.escape(message)):
        dict(reproduce(names, change(base.subject), place))
    assert not (tmp_path / "runs").exists()


# Table by table.


def test_each_table_is_handed_on_before_the_next_is_begun(copy):
    shutil.rmtree(copy.runs / "records")
    told: list[Any] = []
    result = copy.run(
        *["figure2", "table6", "table5", "table2", "table4"],
        seeds=1,
        made=told.append,
        progress=lambda stage, done, total: told.append((stage, done, total)),
    )
    handed = [one for one in told if not isinstance(one, tuple)]
    assert handed == [*result.tables.values(), result.scatters]
    assert list(result.tables) == ["table2", "table5", "table6"]
    assert list(result.absent) == ["table4"]
    for one in result.tables.values():
        before = told[told.index(one) - 1]
        assert before[0] == "cells"
        assert before[1] == before[2]
    assert told[0] not in handed


def test_what_fails_one_table_costs_the_others_nothing(base, tmp_path, monkeypatch):
    project = replace(base, runs=tmp_path / "runs")
    judge = run.run_trial

    def judged(vectors, trial):
        if isinstance(trial.calibrator, Standardization):
            raise TrainingError("the loss is not finite")
        return judge(vectors, trial)

    handed = []
    with monkeypatch.context() as patched:
        patched.setattr(run, "run_trial", judged)
        result = project.run("table4", "table5", "table6", seeds=1, made=handed.append)
        assert {name: type(error) for name, error in result.absent.items()} == {
            "table4": MissingDataError,
            "table5": TrainingError,
        }
        assert [one.name for one in handed] == list(result.tables) == ["table6"]
        # Without any table it is the first one's reason.
        with pytest.raises(MissingDataError, match="qnli"):
            project.run("table4", "table5", seeds=1)
    assert project.run("table5", seeds=1).absent == {}


def test_the_figure_alone_is_something(copy):
    result = copy.run("table4", "figure2")
    assert (result.tables, list(result.absent), len(result.scatters)) == ({}, ["table4"], 1)


@pytest.mark.parametrize("name", ["table5", "figure2"])
def test_a_table_that_cannot_be_handed_on_ends_the_run(copy, name):
    """It is not one that is absent: nobody would see that nothing was written."""

    def full(one: Any) -> None:
        raise ModelError("cannot write: the disk is full")

    with pytest.raises(ModelError, match="the disk is full"):
        copy.run(name, made=full)


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("wordfreq", "table1", "words"),
        ("rapidfuzz", "table6", "words"),
        ("datasets", "table8", "train"),
    ],
)
def test_a_package_that_lacks_costs_its_table_alone(copy, monkeypatch, package, name, extra):
    find = errors.find_spec
    monkeypatch.setattr(errors, "find_spec", lambda one: None if one == package else find(one))
    shutil.rmtree(copy.runs / "models")
    result = copy.run("table5", name, seeds=3)
    assert list(result.tables) == ["table5"]
    error = result.absent[name]
    assert isinstance(error, MissingDependencyError)
    assert str(error).endswith(f"pip install 'bertflow[{extra}]'")


def test_a_table_says_what_it_depends_on(small):
    project, result, _ = small
    nli = {"snli": 144}
    encoders = {
        "tiny": {
            "name": project.subject.name,
            "revision": None,
            "files": project.subject.digest[:16],
            "pooling": "the paper's",
            "max_length": 32,
        }
    }
    for name, seeds, sets in [
        ("table2", 2, nli),
        ("table3", 2, nli),
        # Nothing in them is fitted on NLI, whatever is made beside them.
        ("table5", 2, {}),
        ("table6", 1, {}),
        ("table8", 2, {}),
    ]:
        found = dict(result.tables[name].settings)
        assert {"torch", "numpy"} <= found.pop("versions").keys()
        assert found == {
            "encoders": encoders,
            "flow": "paper",
            "seeds": seeds,
            "limit": None,
            "nli": sets,
        }
        assert result.tables[name].to_dict()["settings"] == result.tables[name].settings


def test_settings_are_those_of_the_table(base):
    def settings(name: str, **changes: Any) -> dict[str, Any]:
        one = replace(base.subject, revision="abc", pooling="cls")
        planner = Planner(Material(base.data, 9), "tempered", 3)
        table = SCORE_TABLES.get(name)
        plans = [] if table is None else [planner.plan(table, one)]
        return run.settings(name, plans, [one], planner)

    (encoder,) = settings("table5")["encoders"].values()
    assert (encoder["revision"], encoder["files"], encoder["pooling"]) == ("abc", None, "cls")
    about = {name: settings(name) for name in ("table1", "table2", "table6", "table7")}
    assert {one["limit"] for one in about.values()} == {9}
    assert {name: (one["flow"], one["seeds"]) for name, one in about.items()} == {
        "table1": (None, 1),
        "table2": ("tempered", 3),
        "table6": ("tempered", 1),
        "table7": ("paper", 3),
    }
    assert about["table2"]["nli"] == {"snli": 18}


# What it leaves, and what it tells.


def test_every_job_leaves_a_record_and_nothing_else_is_left(small):
    project, result, _ = small
    assert {path.name for path in project.runs.iterdir()} == {"records", "vectors", "models"}
    kinds = Counter(one["kind"] for one in project.written_since({}))
    assert sum(kinds.values()) == result.ran
    assert kinds["tuning"] == 2
    names = [path.name for path in project.runs.rglob("*")]
    assert not [name for name in names if "checkpoint" in name or name.startswith("corpus-")]
    assert not list((project.runs / "records").glob(".*"))


def test_a_record_says_what_it_is_about(small, table):
    project = small[0]
    (key, _) = table("table2", "flow nli").records
    record = json.loads((project.runs / f"records/{key}.json").read_text())
    about, recipe = record["about"], record["recipe"]
    assert about["encoder"] == project.subject.name
    assert about["label"] == "tiny"
    assert (recipe["task"], recipe["split"]) == ("stsb", "test")
    assert recipe["encoding"]["pooling"] == "first-last-avg"
    assert (about["fitted_on"], recipe["fitting"]["arguments"]["random_state"]) == ("nli", 0)
    assert about["data"].startswith(str(project.data))
    assert record["seconds"] > 0
    assert {"torch", "numpy"} <= record["versions"].keys()
    assert record["result"]["scored"] == {"": 24}
    assert recipe["encoding"]["encoder"] == project.subject.digest


def about_cell(project: Project, cell: Any) -> dict[str, Any]:
    path = project.runs / f"records/{cell.records[0]}.json"
    return json.loads(path.read_text())["about"]


def test_a_record_of_a_chosen_calibrator_has_what_was_chosen(small, table):
    cell = table("table5", "natsv k=10")
    about = about_cell(small[0], cell)
    assert about["n_components"] == cell.components
    fixed = about_cell(small[0], table("table5", "natsv k=1"))
    assert fixed["n_components"] is None


def test_progress_counts_finished_jobs_to_the_end(small):
    cells = [(done, total) for stage, done, total in small[2] if stage == "cells"]
    # It counts anew for each table, to that one's end.
    totals = [total for done, total in cells if done == 1]
    assert cells == [(done, total) for total in totals for done in range(1, total + 1)]
    assert sum(totals) == small[1].ran
    assert len(totals) == 5  # Figure 2 has nothing left to do after Table 6.
    assert {stage for stage, _, _ in small[2]} == {"cells", "encode", "train"}


def test_a_second_run_does_nothing_and_says_the_same(small, monkeypatch):
    project, result, _ = small
    before = project.times()
    monkeypatch.setattr(run, "load_poolings", None)
    again = project.run(*SMALL)
    assert again.ran == 0
    assert project.times() == before
    for name, one in result.tables.items():
        assert again.tables[name].to_dict() == one.to_dict()


def test_a_part_of_the_tables_runs_nothing_that_another_has_run(copy):
    assert copy.run("table5", "table3").ran == 0


def test_a_sentence_is_encoded_once_for_all_tables(copy, monkeypatch):
    """What the vectors on disk have, no other table asks for again."""
    shutil.rmtree(copy.runs / "records")
    shutil.rmtree(copy.runs / "models")
    loads = []
    load = run.load_poolings
    monkeypatch.setattr(
        run, "load_poolings", lambda *a, **k: (loads.append(a[1]), load(*a, **k))[1]
    )
    copy.run("table2", "table5", "table6")
    assert loads == []


def test_several_poolings_are_encoded_in_one_pass(base, tmp_path, monkeypatch):
    loads = []
    load = run.load_poolings
    monkeypatch.setattr(
        run, "load_poolings", lambda *a, **k: (loads.append(set(a[1])), load(*a, **k))[1]
    )
    replace(base, runs=tmp_path / "runs").run("table2", seeds=1)
    # The pairs under all poolings, the corpora under the one that flows are fitted on.
    assert sorted(map(len, loads)) == [1, 4]
    assert loads[-1] == {"first-last-avg"} or loads[0] == {"first-last-avg"}


# Stopped and gone on with.


class Stop:
    """Progress that stops the run at one of its steps, as Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_stopped_at_three_random_places_it_ends_with_the_same_records(small, tmp_path, monkeypatch):
    project, result, told = small
    whole = contents(project)
    written: list[str] = []
    put = ResultStore.put

    def counting(self, record):
        if record.kind != "cut":
            written.append(record.key)
        put(self, record)

    monkeypatch.setattr(ResultStore, "put", counting)
    places = random.Random(4)
    stopped = replace(project, runs=tmp_path / "runs")
    # A third of the way each, so that it is stopped three times for sure.
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            stopped.run(*SMALL, progress=Stop(places.randrange(len(told) // 4)))
    ended = stopped.run(*SMALL)
    assert contents(stopped) == whole
    assert max(Counter(written).values()) == 1
    assert len(written) == result.ran
    assert 0 < ended.ran < result.ran
    for name, one in result.tables.items():
        assert ended.tables[name].to_dict() == one.to_dict()


def test_a_fine_tuning_that_was_stopped_goes_on_and_costs_no_bit(small, tmp_path):
    project = small[0]
    stopped = replace(project, runs=tmp_path / "runs")
    steps = [0]

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "train":
            steps[0] = done
            if done == 3:
                raise KeyboardInterrupt

    frequent = replace(FAST, checkpoint_steps=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.run("table8", seeds=1, progress=stop, finetuning=frequent)
    first = []
    stopped.run(
        "table8",
        seeds=1,
        finetuning=frequent,
        progress=lambda stage, done, _: first.append(done) if stage == "train" else None,
    )
    assert first[0] == 3
    assert not list(stopped.runs.rglob("*.checkpoints"))
    assert len(models(stopped)) == 1
    for path in (stopped.runs / "models").iterdir():
        weights = (project.runs / "models" / path.name / "model.safetensors").read_bytes()
        assert (path / "model.safetensors").read_bytes() == weights


def test_a_fine_tuned_model_whose_record_was_not_written_is_not_trained_again(copy):
    whole = contents(copy)
    (key,) = [path.name for seed, path in models(copy).items() if seed == 1]
    (copy.runs / f"records/{key}.json").unlink()
    told = []
    assert copy.run("table8", progress=lambda *step: told.append(step[0])).ran == 1
    assert told == ["cells"]
    assert contents(copy) == whole


def test_a_fine_tuned_model_that_was_removed_is_trained_again_when_it_is_needed(copy):
    for path in models(copy).values():
        shutil.rmtree(path)
    assert copy.run("table3", "table8").ran == 0
    before = contents(copy)
    # One flow more on the first model; a new sentence vector is not needed for it.
    flows = copy.run("table3", seeds=3)
    assert flows.ran == 2 + 1
    assert before.items() <= contents(copy).items()


def test_damaged_records_alone_are_computed_again(copy, table):
    whole = contents(copy)
    one, other = table("table5", "flow target").records
    folder = copy.runs / "records"
    (folder / f"{one}.json").write_text((folder / f"{one}.json").read_text()[:-20])
    (folder / f"{other}.npz").write_bytes((folder / f"{other}.npz").read_bytes()[:99])
    assert copy.run(*SMALL).ran == 2
    assert contents(copy) == whole


def test_what_was_written_half_when_the_power_went_is_left_aside(copy):
    """A record's file is moved into place whole; what lies beside it is not read."""
    folder = copy.runs / "records"
    (folder / ".abc.json-123").write_text('{"kind": "score"')
    assert copy.run("table5").ran == 0


# A changed recipe.


def test_more_seeds_run_the_new_ones_alone(copy):
    before = copy.times()
    # Table 6 fits once, however many seeds the others have.
    result = copy.run("table5", "table8", "table6", seeds=3)
    recipes = [one["recipe"] for one in copy.written_since(before)]
    assert result.ran == len(recipes) == 5
    assert [one["seed"] for one in recipes if one["job"] == "tuning"] == [2]
    scores = [one for one in recipes if one["job"] == "score"]
    flows = [one["fitting"]["arguments"]["random_state"] for one in scores if one["fitting"]]
    assert flows == [2, 2]
    encoders = [one["encoding"]["encoder"] for one in scores]
    assert [one["seed"] for one in encoders if isinstance(one, dict)] == [2, 2, 2]


def test_another_flow_runs_the_flows_alone(copy):
    before = copy.times()
    assert copy.run("table2", "table5", flow="tempered").ran == 2 * 2 + 2
    for one in copy.written_since(before):
        assert one["recipe"]["fitting"]["calibrator"] == "flow"
        assert one["recipe"]["fitting"]["arguments"]["normalize"] is True


def test_other_arguments_of_a_fine_tuning_run_what_is_fine_tuned_alone(copy):
    before = copy.times()
    result = copy.run("table2", "table3", "table5", seeds=1, finetuning=Recipe(epochs=0.5))
    found = copy.written_since(before)
    assert result.ran == len(found) == 1 + 4
    assert [one["kind"] for one in found].count("tuning") == 1
    for one in found:
        tuned = one["kind"] == "tuning" or isinstance(one["recipe"]["encoding"]["encoder"], dict)
        assert tuned


def test_another_length_runs_all_again(copy):
    before = copy.times()
    other = replace(copy, subject=replace(copy.subject, max_length=8))
    result = other.run("table5")
    found = copy.written_since(before)
    assert result.ran == len(found) == 8
    # Each record says how many of the task's texts were too long.
    score = evaluate(load_encoder(copy.subject.name, max_length=8), "stsb", data=copy.data)
    assert {one["result"]["cut"] for one in found} == {score.cut}
    assert score.cut > 0
    assert f"longer than 8 tokens, cut: stsb {score.cut}" in " ".join(result.tables["table5"].notes)


def test_texts_that_are_cut_are_counted_though_all_have_a_vector(copy):
    """The corpus that Table 2 fits on has the sentences of the dev split, too."""
    other = replace(copy, subject=replace(copy.subject, max_length=8))
    other.run("table2", seeds=1)
    before = other.times()
    other.run("table6")
    found = other.written_since(before)
    assert len(found) == 2
    assert {one["recipe"]["split"] for one in found} == {"dev"}
    assert all(one["result"]["cut"] > 0 for one in found)


def test_another_encoder_of_the_same_name_runs_all_again(copy, tmp_path):
    path = shutil.copytree(copy.subject.name, tmp_path / "tiny")
    assert replace(copy, subject=identify(path, max_length=32)).run("table5").ran == 0
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x3c")
    assert replace(copy, subject=identify(path, max_length=32)).run("table5").ran == 8


@pytest.mark.parametrize("what", ["gold", pytest.param("text", marks=pytest.mark.nightly)])
def test_a_changed_task_runs_its_cells_alone(base, tmp_path, what):
    data = write_tasks(tmp_path / "data", "stsb", "sts12", "snli")
    project = replace(base, data=data, runs=tmp_path / "runs")
    project.run("table2", seeds=1)
    before = project.times()
    kind = {"gold": "gs", "text": "input"}[what]
    path = data / f"senteval/STS/STS12-en-test/STS.{kind}.MSRpar.txt"
    lines = path.read_text().splitlines()
    lines[0] = "1.5" if what == "gold" else "the man\tthe dog"
    path.write_text("\n".join(lines) + "\n")
    result = project.run("table2", seeds=1)
    found = project.written_since(before)
    # Two encoder rows that differ in their aggregation alone are one job.
    assert result.ran == len(found) == 6
    assert {one["recipe"]["task"] for one in found} == {"sts12"}


# Many processes.


@pytest.fixture(scope="module")
def plain(base) -> Project:
    """Two tables, one fit after the other in this process and in memory."""
    project = replace(base, runs=base.runs.parent / "plain")
    assert project.run("table2", "table5").ran == 15
    return project


@pytest.mark.nightly
def test_two_processes_give_the_same_records(plain, tmp_path):
    project = replace(plain, runs=tmp_path / "runs")
    project.run("table2", "table5", jobs=2)
    assert contents(project) == contents(plain)


def test_a_fit_that_fails_costs_nothing_that_was_done(base, tmp_path, monkeypatch):
    project = replace(base, runs=tmp_path / "runs")
    judge, count = run.run_trial, [0]

    def judged(*arguments):
        count[0] += 1
        if count[0] == 4:
            raise TrainingError("the loss is not finite")
        return judge(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(run, "run_trial", judged)
        with pytest.raises(TrainingError, match="not finite"):
            project.run("table5")
    assert len(project.times()) == 3
    assert project.run("table5").ran == 8 - 3


def test_all_fits_on_a_corpus_share_its_rows(base, tmp_path, monkeypatch):
    shared: dict[int, list[int]] = {}
    judge = run.run_trial

    def judged(vectors, trial):
        if trial.corpus is not None:
            shared.setdefault(id(trial.corpus), []).append(len(trial.corpus))
        return judge(vectors, trial)

    monkeypatch.setattr(run, "run_trial", judged)
    replace(base, runs=tmp_path / "runs").run("table2")
    # Repeats count: as many rows as there are sentences. Two seeds on each corpus.
    assert sorted(shared.values()) == [[144, 144], [144, 144]]


def test_flows_are_fitted_on_the_cpu_wherever_the_encoder_runs(copy, monkeypatch):
    shutil.rmtree(copy.runs / "records")
    seen = []
    judge = run.run_trial

    def judged(vectors, trial):
        if isinstance(trial.calibrator, Flow):
            seen.append(trial.calibrator.get_params()["device"])
        return judge(vectors, trial)

    monkeypatch.setattr(run, "run_trial", judged)
    # All vectors are there, so that nothing runs on it.
    planner = Planner(Material(copy.data), seeds=2)
    place = Workplace(planner=planner, folder=copy.runs, device="meta", jobs=1)
    dict(reproduce(["table5"], [copy.subject], place))
    assert seen == ["cpu", "cpu"]


# Two encoders, and less data.


@pytest.mark.parametrize(
    ("sizes", "expected"), [([None, None], "0"), (["large", "base"], "1"), (["large", None], "0")]
)
def test_rows_that_are_there_once_are_computed_for_bert_base_or_else_the_first_encoder(
    base, monkeypatch, sizes, expected
):
    asked: list[Any] = []

    def asking(self, jobs):
        asked.extend(jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Workplace, "run", asking)
    several = [
        replace(base.subject, label=str(n), digest=str(n) * 64, size=size)
        for n, size in enumerate(sizes)
    ]
    planner = Planner(Material(base.data), seeds=1)
    place = Workplace(planner=planner, folder=base.runs.parent / "no")
    with pytest.raises(KeyboardInterrupt):
        dict(reproduce(["table2"], several, place))
    cls = [one.encoding.subject.label for one in asked if one.encoding.pooling == "cls"]
    assert cls == [expected]


def test_a_limit_computes_on_fewer_pairs(copy):
    before = copy.times()
    result = copy.run("table5", limit=7)
    assert result.ran == 8
    assert {one["result"]["scored"][""] for one in copy.written_since(before)} == {7}


# Everything.


@pytest.mark.nightly
def test_all_of_the_paper_stopped_at_three_random_places(base, tmp_path):
    data = write_tasks(tmp_path / "data", *STS_TASKS, "qnli", "snli")
    whole = replace(base, data=data, runs=tmp_path / "whole")
    stopped = replace(whole, runs=tmp_path / "stopped")
    told = []
    result = whole.run("all", progress=lambda *step: told.append(step))
    assert [*result.tables, "figure2"] == list(NAMES)
    assert result.absent == {}
    assert len(result.scatters) == 1
    for name in ("table2", "table3"):
        for row in result.tables[name].rows:
            (source,) = {one.source for one in SCORE_TABLES[name].rows if one.name == row.name}
            ours = source in ("raw", "nli")
            assert (row.cells["average"].value is not None) == ours, row.name
    places = random.Random(11)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            stopped.run("all", progress=Stop(places.randrange(len(told) // 4)))
    ended = stopped.run("all")
    assert 0 < ended.ran < result.ran
    assert contents(stopped) == contents(whole)
    for name, one in result.tables.items():
        assert ended.tables[name].to_dict() == one.to_dict()
    assert whole.run("all").ran == 0


@pytest.mark.nightly
def test_killed_it_goes_on(base, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "figures", evaluation.figures)
    whole = replace(base, runs=tmp_path / "whole")
    whole.run("table3", "table5", finetuning=Recipe())
    killed = replace(base, runs=tmp_path / "killed")
    command = [
        *[sys.executable, "-c", "from bertflow.cli.main import main; main()", "reproduce"],
        *["table3", "table5", "--encoder", base.subject.name, "--data", base.data],
        *["--max-length", "32", "--seeds", "2", "--device", "cpu", "--jobs", "1"],
        *["--output", killed.runs],
    ]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        until = time.monotonic() + 120
        while len(killed.times()) < 4 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        process.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said.decode()
    before = killed.times()
    assert 4 <= len(before) < len(whole.times())
    result = killed.run("table3", "table5", finetuning=Recipe())
    assert result.ran == len(whole.times()) - len(before)
    killed.written_since(before)
    assert contents(killed) == contents(whole)
