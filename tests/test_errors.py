"""What goes wrong is said in one line, whatever the value; and how a command ends is a number."""

from __future__ import annotations

import ast
import logging
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.pipeline import make_pipeline

import bertflow
from bertflow import errors
from bertflow.calibrators import Flow, Whitening
from bertflow.cli.main import EXIT_CODES
from bertflow.errors import BertflowError, FewRowsWarning, InputError, ModelError, one_line, shown

SOURCE = Path(bertflow.__file__).parent
KINDS = [
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BertflowError)
]
NASTY = ["a\nb", "a\r\nb", "\x1b[2J", "a\tb", "a\0b", "\u2028", "\x85", "\ud800", "x" * 100_000]


def test_a_message_is_one_line_whatever_is_in_it():
    for value in NASTY:
        (said,) = {str(getattr(errors, kind)(f"before {value} after")) for kind in KINDS}
        assert said.startswith("before ")
        assert said.endswith(" after")
        assert len(said.splitlines()) == 1
        assert not re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800]", said)
        assert len(said) <= errors.LONGEST_MESSAGE


def test_a_message_survives_another_process_and_is_escaped_once():
    error = InputError("a\nb")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a\\nb"


def test_what_people_write_stays_as_it_is():
    text = "/home/José/データ/a b\u00a0c \N{FAMILY} \\n: expected 1 to 5, got 'x'"
    assert one_line(text) == text
    assert str(ModelError(text)) == text


def test_a_value_is_shown_short_with_its_end():
    for value in [*NASTY, {"a": ["b" * 1000]}, list(range(1000)), None, 3]:
        said = shown(value)
        assert len(said) <= errors.LONGEST_VALUE
        assert said.isprintable()
        assert said[-1] == repr(value)[-1]
        if len(repr(value)) <= errors.LONGEST_VALUE:
            assert said == repr(value)


# Messages as they stand in the source.


def raised() -> list[tuple[str, ast.expr]]:
    """Every message that is given where one of bertflow's errors is made, and where."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in KINDS:
                    place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                    assert len(node.args) == 1, f"{place}: an error takes one message"
                    found.append((place, node.args[0]))
    return found


def constants(message: ast.expr) -> str:
    """What of a message is written out."""
    return "".join(
        str(node.value)
        for node in ast.walk(message)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_every_message_is_written_as_one_line_that_says_something():
    messages = raised()
    assert len(messages) > 150
    for place, message in messages:
        text = constants(message)
        assert "\n" not in text, place
        last = message.values[-1] if isinstance(message, ast.JoinedStr) else message
        if isinstance(last, ast.Constant):
            # scikit-learn looks for one sentence with its full stop.
            text_end = str(last.value).removesuffix(" is required.")
            assert not text_end.endswith((".", "!", " ")), place
        # Either words of its own, or those of a function that words it.
        assert len(text.split()) > 1 or not isinstance(message, ast.Constant), place


INSIDE = ("object at 0x", "<class", "Traceback", "PosixPath(", "tensor(", "array(", "dtype(")


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with files of which something is wrong."""
    monkeypatch.chdir(tmp_path)
    Path("s.txt").write_text("the dog\na cat\n")
    Path("two\nlines.csv").write_text("a,b\nx\n")
    Path("labels.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t" + "x" * 50_000 + "\n")
    Path("columns.csv").write_text(",".join(f"column{n}" for n in range(5000)) + "\nx\n")
    Path("x.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'shape': (9,), (((")
    Path("saved").mkdir()
    Path("saved/config.json").write_text('{"format": {"a": [1, 2]}, "calibrator": "\\u001b[2J"}')
    Path("encoder").mkdir()
    Path("encoder/modules.json").write_text('[{"name": "a", "type": "os.system", "path": "../.."}]')
    Path("empty.gguf").write_bytes(b"GGUF")
    return tmp_path


FAULTS = [
    ["fit", "--encoder", "nope/nope/nope", "--corpus", "s.txt", "--output", "out"],
    ["fit", "--encoder", "encoder", "--corpus", "s.txt", "--output", "out"],
    ["fit", "--encoder", "empty.gguf", "--corpus", "s.txt", "--output", "out"],
    ["fit", "--encoder", "encoder", "--corpus", "two\nlines.csv", "--output", "out"],
    ["fit", "--encoder", "encoder", "--corpus", "columns.csv", "--output", "out"],
    ["fit", "--vectors", "x.npy", "--output", "out"],
    ["fit", "--vectors", "x.npy", "--output", "out", "--set", "epochs=" + "9" * 5000],
    ["fit", "--vectors", "x.npy", "--output", "out", "--set", "epochs=" + "[" * 5000],
    ["fit", "--vectors", "x.npy", "--output", "out", "--calibrator", "a\nb"],
    ["transform", "saved", "--vectors", "x.npy", "--output", "z.npy"],
    ["encode", "encoder", "--corpus", "s.txt", "--output", "saved"],
    ["evaluate", "encoder", "--pairs", "labels.tsv"],
    ["evaluate", "encoder", "--task", "a\nb"],
    ["compare", "encoder", "--task", "stsb", "--data", "no\nfolder"],
    ["diagnose", "x.npy"],
    ["analyze", "lexical", "encoder", "--pairs", "labels.tsv"],
    ["analyze", "isotropy", "encoder", "--corpus", "s.txt"],
    ["finetune", "--encoder", "encoder", "--nli", "a\nb", "--output", "out"],
    ["reproduce", "table9"],
    ["demo", "--encoder", "encoder", "--calibrator", "nope"],
]


def test_every_command_ends_in_1_and_one_short_line(work, refused):
    for arguments in FAULTS:
        line = refused(*arguments)
        assert len(line) < 2000
        assert line.isprintable()
        assert not any(word in line for word in INSIDE), line


def test_the_exit_codes_are_in_the_help(cli):
    code, out, err = cli("--help")
    assert (code, err) == (0, "")
    assert " ".join(f"Exit codes: {EXIT_CODES}.".split()) in " ".join(out.split())
    codes = [int(number) for number in re.findall(r"(?:^|; )(\d+) ", EXIT_CODES)]
    assert codes == [0, 1, 2, 3, 130, 143]


def test_a_reader_that_has_gone_is_no_error(work):
    code = (
        "import os, sys; from bertflow.cli.main import main\n"
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.argv[1:] = ['--help']; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=300
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


# What is logged.


LOGS = ["fit", "--vectors", "rows.npy", "--output", "out", "--calibrator", "whitening"]


@pytest.fixture
def rows(work, rng):
    import numpy as np

    np.save("rows.npy", rng.normal(size=(50, 4)))


def test_verbose_logs_on_standard_error_and_leaves_standard_output_alone(cli, rows):
    code, plain, err = cli(*LOGS)
    assert (code, err) == (0, "")
    code, out, err = cli("--verbose", *LOGS)
    assert code == 0
    assert re.sub(r"[\d.]+ s", "s", out) == re.sub(r"[\d.]+ s", "s", plain)
    lines = err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d bertflow(\.\w+)+: \S", line) for line in lines)
    assert any("rows.npy: 50 vectors of 4 dimensions, float64" in line for line in lines)
    assert any(line.endswith("wrote out") for line in lines)
    # And only where it was asked for.
    assert cli(*LOGS)[2] == ""
    assert logging.getLogger("bertflow").level == logging.NOTSET


def test_verbose_tells_of_encoder_corpus_cache_and_fit(cli, work, tiny_bert):
    fit = ["fit", "--encoder", tiny_bert, "--corpus", "s.txt", "--output", "out"]
    _, _, err = cli("-v", *fit)
    for said in [
        f"encoders.loading: {tiny_bert} loaded in ",
        "at most 32 tokens",
        "data.sources: s.txt: 2 sentences",
        "2 sentences, 2 of them new",
        "2 sentences, 2 distinct, 0 of these cut to 32 tokens; in float32 (asked: auto)",
        "fitted in ",
        "wrote out",
    ]:
        assert said in err, err
    _, _, err = cli("-v", *fit)
    assert "2 found, 0 not" in err


def test_a_warning_is_a_line_without_verbose_too(cli, work, tiny_bert, monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("BERTFLOW_CACHE", "file")
    code, _, err = cli("encode", tiny_bert, "--corpus", "s.txt", "--output", "z.npy")
    assert code == 0
    assert err.startswith("the cache of sentence vectors is not used: ")
    assert err.count("\n") == 1


# The library prints nothing.


def prints(tree: ast.Module) -> list[int]:
    """Lines that print, or get hold of standard output or error."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("print", "pprint", "breakpoint"):
                found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "sys" and node.attr.strip("_") in ("stdout", "stderr"):
                found.append(node.lineno)
            if node.value.id == "warnings" and node.attr == "warn":
                found.append(node.lineno)
    return sorted(found)


def test_printing_is_found():
    source = "import sys\nprint(1)\nsys.stderr.write('x')\nx = sys.__stdout__\nwarnings.warn('')"
    assert prints(ast.parse(source)) == [2, 3, 4, 5]


def test_no_module_of_the_library_prints():
    found = {
        path.name: lines
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(SOURCE / "cli")
        and (lines := prints(ast.parse(path.read_text("utf-8"))))
    }
    # `warn` warns, and bars ask whether standard error is a terminal; nothing else.
    assert found.keys() == {"errors.py", "progress.py"}
    assert len(found["errors.py"]) == 1


def test_a_warning_of_few_rows_is_at_the_line_of_the_caller(rng):
    x = rng.normal(size=(20, 8))
    pipeline = make_pipeline(Whitening())
    for fit in (Whitening().fit, Flow().fit, Whitening().fit_transform, pipeline.fit):
        with pytest.warns(FewRowsWarning) as seen:
            fit(x)
        assert [one.filename for one in seen] == [__file__]


API = """
import sys
import warnings
import numpy as np
import bertflow
from bertflow.errors import FewRowsWarning
warnings.simplefilter("ignore", FewRowsWarning)
from bertflow import Flow, Whitening, calibrate, load_encoder, load, save_calibrator
from bertflow.encoders import encode_file
from bertflow.models import open_model, save_model
encoder, data = sys.argv[1:]
sentences = [f"the dog {'eats ' * n}bread ." for n in range(40)]
model = calibrate(load_encoder(encoder, device="cpu"), sentences, Flow(epochs=1, device="cpu"))
model.save_pretrained("plain")
save_model(model, "out")
bertflow.evaluate(load("out", device="cpu"), "stsb", data=data)
bertflow.compare(load_encoder(encoder, device="cpu"), ["stsb"], data=data, seeds=1, jobs=1,
                 methods=["none", "whitening", "flow"])
encode_file(open_model(encoder, device="cpu"), sentences, "z.npy")
bertflow.diagnose(np.load("z.npy"))
save_calibrator(Whitening().fit(np.random.default_rng(0).normal(size=(50, 4))), "w")
bertflow.load_calibrator("w")
try:
    load_encoder("w")
except bertflow.ModelError:
    pass
cache = bertflow.SentenceCache("w/config.json")  # Of no use: a warning, for who listens.
calibrate(load_encoder(encoder, device="cpu"), sentences, Whitening(), cache=cache)
"""


def test_the_library_prints_nothing_and_shows_no_bar(work, tiny_bert):
    from task_files import write_tasks

    data = write_tasks(work / "data", "stsb")
    quiet = ("TQDM_DISABLE", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS")
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:bertflow", "-c", API, str(tiny_bert), str(data)],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k not in quiet} | {"HF_HUB_OFFLINE": "1"},
        timeout=600,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
