"""Reports of a reproduction: the scores of its tables, and the words of its records."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertflow import evaluation
from bertflow.encoders import VectorCache
from bertflow.errors import InputError, ModelError
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
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def table2(ran):
    return json.loads(Path("runs/tiny/table2.json").read_text())


def test_scores_and_published_numbers_are_those_of_the_table(table2):
    found = build_report("runs/tiny")
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


def test_words_are_those_of_the_record():
    found = build_report("runs/tiny")
    known = json.loads(Path("runs/tiny/table1.json").read_text())["rows"][0]["cells"]
    for group, published in zip(found.words.groups, found.words.published, strict=True):
        cell = known[f"{group.low}-{group.high}"]
        known_mean = None if cell["value"] is None else pytest.approx(cell["value"])
        assert (group.norm and group.norm.value) == known_mean
        assert published == cell["published"]


def test_nothing_in_the_run_is_changed():
    before = tree(Path("runs"))
    build_report("runs")
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


def test_sections_of_vectors_say_where_they_are():
    found = build_report("runs")
    assert found.cloud is None
    assert "saved model" in found.absent["cloud"]
    assert "reproduce figure2" in found.absent["edits"]


def test_a_damaged_table_is_named(done):
    Path("runs/tiny/table2.json").write_text('{"table": "table2"}')
    with pytest.raises(ModelError, match="table2.json is no table of bertflow reproduce"):
        build_report("runs")


def test_a_run_goes_alone():
    with pytest.raises(InputError, match="a run, whose tables are shown as they are"):
        build_report("runs", against="x.npy")
