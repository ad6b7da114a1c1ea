"""Reports of a reproduction: tables, records and vectors as they are, and the flow once more."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bertflow import evaluation
from bertflow.encoders import VectorCache
from bertflow.errors import InputError, ModelError
from bertflow.paper import Material, Options, Planner, Workplace, identify, reproduce
from bertflow.paper import run as jobs
from bertflow.report import build_report, render
from conftest import tree
from task_files import write_tasks
from test_cli_reproduce import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_in_a_process_of_its_own")]


@pytest.fixture(scope="module")
def ran(tiny_bert, tmp_path_factory) -> Path:
    """A folder in which tables were reproduced once."""
    import contextlib
    import io

    from bertflow.cli.main import run

    root = tmp_path_factory.mktemp("run")
    shutil.copytree(tiny_bert, root / "tiny")
    write_tasks(root / "data", "stsb")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(root)
        patched.setattr(jobs, "figures", functools.partial(evaluation.figures, resamples=40))
        with contextlib.redirect_stdout(io.StringIO()):
            assert run([str(argument) for argument in COMMAND]) == 0
    return root


@pytest.fixture(autouse=True)
def work(ran, tmp_path, monkeypatch) -> Path:
    shutil.copytree(ran / "runs", tmp_path / "runs")
    (tmp_path / "data").symlink_to(ran / "data")
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments, **options):
        raise AssertionError("an encoder ran")

    monkeypatch.setattr(SentenceTransformer, "forward", refuse)
    return tmp_path


@pytest.fixture
def table2(ran):
    return json.loads(Path("runs/tiny/table2.json").read_text())


def test_scores_and_published_numbers_are_those_of_the_table(table2):
    found = build_report("runs/tiny", data="data")
    assert len(found.scores.table.rows) == len(table2["rows"])
    for row, known in zip(found.scores.table.rows, table2["rows"], strict=True):
        for column in table2["columns"]:
            cell, other = row.cells[column], known["cells"][column]
            for name in ("value", "low", "high", "published", "difference"):
                assert getattr(cell, name) == other[name]
    assert len(found.scores.drawn) == 2
    page = render(found)
    for row in table2["rows"]:
        value = row["cells"]["stsb"]["value"]
        if value is not None:
            assert f"{value:.2f}" in page


def test_the_flow_that_is_fitted_again_is_the_one_of_the_record():
    found = build_report("runs", data="data")
    assert list(found.sides) == ["before", "after"]
    (held,) = [note for note in found.notes if "are the record's, up to" in note]
    count, apart = re.match(
        r"its cosines of (\d+) pairs are the record's, up to (.*)", held
    ).groups()
    assert int(count) == 24
    assert float(apart) < 1e-5
    assert found.training is not None


def test_words_are_those_of_the_record():
    found = build_report("runs/tiny", data="data")
    known = json.loads(Path("runs/tiny/table1.json").read_text())["rows"][0]["cells"]
    for group in found.words.groups:
        cell = known[f"{group.low}-{group.high}"]
        known_mean = None if cell["value"] is None else pytest.approx(cell["value"])
        assert (group.norm and group.norm.value) == known_mean
        assert group.published == cell["published"]


def test_edit_distances_are_those_of_figure_2():
    found = build_report("runs/tiny", data="data")
    planner = Planner(Material("data"), Options(seeds=2))
    place = Workplace(folder=Path("runs"), device="cpu", jobs=1)
    subject = identify(Path.cwd() / "data/../tiny", max_length=32)
    scatter = reproduce(["figure2"], [subject], planner, place).scatters[0]
    assert list(found.edits.panels) == ["gold", "before", "after"]
    np.testing.assert_array_equal(found.edits.distances, scatter.distances["words"])
    for one, other in zip(found.edits.panels.values(), scatter.panels.values(), strict=True):
        np.testing.assert_allclose(one, other)


def test_nothing_in_the_run_is_changed():
    before = tree(Path("runs"))
    build_report("runs", data="data")
    assert tree(Path("runs")) == before


def test_vectors_that_are_only_read_leave_nothing_behind(tmp_path):
    about = {"encoder": "none"}
    found = VectorCache(tmp_path / "none", about)
    assert len(found) == 0
    assert not (tmp_path / "none").exists()
    VectorCache(tmp_path / "some", about).add(["a"], np.ones((1, 2), dtype=np.float32))
    (tmp_path / "some" / ".lock").unlink(missing_ok=True)
    before = tree(tmp_path / "some")
    found = VectorCache(tmp_path / "some", about)
    assert found.vectors()[found.rows(["a"])].tolist() == [[1.0, 1.0]]
    assert tree(tmp_path / "some") == before
    with pytest.raises(ModelError, match="another encoder"):
        VectorCache(tmp_path / "some", {"encoder": "other"})


def test_without_the_data_the_tables_are_still_there():
    found = build_report("runs")
    assert found.scores is not None
    assert found.cloud is None
    assert "--data DIR" in found.absent["cloud"]
    assert "STS-B dev would fill it" in found.absent["edits"]


def test_without_its_vectors_the_tables_are_still_there():
    shutil.rmtree("runs/vectors")
    found = build_report("runs", data="data")
    assert found.scores is not None
    assert found.edits is not None
    assert "makes them again" in found.absent["cloud"]


def test_other_data_than_the_runs_are_not_taken_for_it(ran):
    shutil.copytree(ran / "data", "other")
    file = next(Path("other").rglob("sts-dev.csv"))
    file.write_text(file.read_text().replace("the", "a"))
    found = build_report("runs", data="other")
    assert "is another than the run's" in found.absent["cloud"]
    assert "is another" in found.absent["edits"]


def test_sentences_that_were_not_in_the_run_are_told():
    Path("own.txt").write_text("the man\nnever seen before\n")
    with pytest.raises(ModelError, match="sentences were not in the run"):
        build_report("runs", corpus="own.txt", data="data")


def test_a_damaged_table_is_named(done):
    Path("runs/tiny/table2.json").write_text('{"table": "table2"}')
    with pytest.raises(ModelError, match="table2.json is no table of bertflow reproduce"):
        build_report("runs", data="data")


def test_a_run_is_not_set_beside_vectors():
    with pytest.raises(InputError, match="a run goes with a calibrator"):
        build_report("runs", against="x.npy", data="data")
