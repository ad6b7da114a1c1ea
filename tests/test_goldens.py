"""What users' scripts rely on is as it was: exit codes, JSON, options, vectors and fits per seed.

`python tests/test_goldens.py` writes the golden files again: do that only for a change that is
meant, and say so in CHANGELOG.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertflow import (
    AdaptiveWhitening,
    AllButTheTop,
    Flow,
    Standardization,
    Whitening,
    calibrate,
    load_encoder,
)
from bertflow.cli.main import run
from conftest import QUIET, WORDS, save_tiny_encoder
from task_files import write_tasks, write_word_vectors

GOLDEN = Path(__file__).parent / "fixtures/golden"
HASH = re.compile("[0-9a-f]{64}")
ENCODER = ["tiny", "--device", "cpu", "--precision", "float32"]
PLAIN = ["tiny", "--device", "cpu"]
FIT = ["fit", "--encoder", *ENCODER, "--corpus", "corpus.txt"]
TASKS = ["--task", "stsb", "--task", "qnli", "--data", "data"]
REPRODUCE = ["reproduce", "table1", "table2", "table4", "table5", "table6", "figure2"]
COMMANDS = {
    "fit": [*FIT, "--output", "model"],
    "fit flow": [*FIT, "--calibrator", "flow", "--set", "epochs=2", "--output", "flow-model"],
    "fit vectors": ["fit", "--vectors", "x.npy", "--calibrator", "whitening", "--output", "map"],
    "transform": ["transform", "map", "--vectors", "x.npy", "--output", "z.npy"],
    "transform back": ["transform", "map", "--vectors", "z.npy", "--inverse"]
    + ["--output", "back.npy"],
    "encode": ["encode", *ENCODER, "--corpus", "corpus.txt", "--output", "e.npy"],
    "encode calibrated": ["encode", "model", *ENCODER[1:], "--corpus", "corpus.txt"]
    + ["--output", "c.npy"],
    "encode shards": ["encode", *ENCODER, "--corpus", "shards", "--engine", "local"]
    + ["--output", "encoded"],
    "evaluate": ["evaluate", *ENCODER, *TASKS, "--json", "evaluate.json"],
    "evaluate against": [
        "evaluate",
        "model",
        *ENCODER[1:],
        "--against",
        "--pairs",
        "pairs.tsv",
        "--columns",
        "1,2,3",
    ]
    + ["--json", "against.json"],
    "compare": ["compare", *ENCODER, "--task", "stsb", "--data", "data", "--method", "none"]
    + ["--method", "whitening", "--method", "flow", "--seeds", "2", "--json", "compare.json"],
    "diagnose": ["diagnose", *ENCODER, "--corpus", "corpus.txt", "--json", "diagnose.json"],
    "analyze words": ["analyze", "words", "tiny", "--json", "words.json"],
    "analyze lexical": ["analyze", "lexical", *ENCODER, "--task", "stsb", "--data", "data"]
    + ["--json", "lexical.json"],
    "analyze isotropy": ["analyze", "isotropy", *ENCODER, "--corpus", "corpus.txt"]
    + ["--json", "isotropy.json"],
    "finetune": ["finetune", "--encoder", *PLAIN, "--nli", "snli", "--data", "data"]
    + ["--epochs", "1", "--output", "tuned"],
    "reproduce": [*REPRODUCE, "--encoder", *PLAIN, "--max-length", "32", "--data", "data"]
    + ["--seeds", "1", "--jobs", "1", "--glove", "glove.txt"],
    "report": ["report", "model", "--output", "report.html"],
    "cache": ["cache"],
    "no command": ["fitt"],
    "no option": ["fit", "--encodr", "tiny"],
    "no encoder": ["evaluate", "nowhere", "--task", "stsb", "--data", "data"],
    "no corpus": ["encode", "tiny", "--corpus", "nothing.txt", "--output", "n.npy"],
    "no method": ["compare", "tiny", "--method", "whitenin", "--task", "stsb", "--data", "data"],
    "no argument": ["fit", "--vectors", "x.npy", "--set", "epochs=2", "--output", "no"],
    "bad vectors": ["transform", "map", "--vectors", "bad.npy", "--output", "no.npy"],
    "no run": ["report", "nothing", "--output", "no.html"],
}
HELP = [
    "",
    "fit",
    "transform",
    "encode",
    "evaluate",
    "compare",
    "diagnose",
    "finetune",
    "reproduce",
]
HELP += ["report", "demo", "push", "cache", "analyze words", "analyze lexical", "analyze isotropy"]
# What differs between two runs of the same command.
# Files whose names are nobody's business.
WITHIN = re.compile("cache/|runs/(models|records|vectors)/")
PASSING = re.compile("date|seconds|times?$|created|started|versions")


def write_inputs(folder: Path) -> None:
    """A tiny encoder and small files of every kind that the commands read."""
    save_tiny_encoder(folder / "tiny")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=random.integers(3, 12))) for _ in range(120)]
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in texts))
    pairs = [f"{a}\t{b}\t{n % 6}\n" for n, (a, b) in enumerate(zip(texts, texts[1:], strict=False))]
    (folder / "pairs.tsv").write_text("".join(pairs[:40]))
    rows = random.normal(size=(200, 8)) @ random.normal(size=(8, 8)) + 2
    np.save(folder / "x.npy", rows.astype(np.float32))
    np.save(folder / "bad.npy", np.full((3, 8), np.nan))
    write_tasks(folder / "data", "stsb", "qnli", "snli")
    write_word_vectors(folder / "glove.txt")
    import pyarrow as pa
    from pyarrow import parquet

    (folder / "shards").mkdir()
    for number in range(2):
        table = pa.table({"text": texts[50 * number : 50 * number + 50]})
        parquet.write_table(table, folder / f"shards/{number}.parquet")


def called(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def lasting(value: Any) -> Any:
    """A JSON value without times and versions, its numbers to four digits."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if not PASSING.search(key)}
    if isinstance(value, list):
        return [lasting(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def ran() -> dict[str, Any]:
    """Run all commands, in this order, in the current folder: what a script would see of each."""
    seen: dict[str, Any] = {}
    for name, arguments in COMMANDS.items():
        before = {path for path in Path.cwd().rglob("*") if path.is_file()}
        code, _, err = called(arguments)
        new = {path for path in Path.cwd().rglob("*") if path.is_file()} - before
        shown = sorted(str(path.relative_to(Path.cwd())) for path in new)
        seen[name] = {
            "exit code": code,
            "lines of error": err.count("\n") if code else 0,
            "files": [path for path in shown if not WITHIN.match(path)],
            "json": {
                path.name: lasting(json.loads(path.read_text()))
                for path in sorted(new)
                if path.suffix == ".json" and path.parent in (Path.cwd(), Path.cwd() / "runs/tiny")
            },
        }
    return seen


def options() -> dict[str, list[str]]:
    """The options that each command's help lists."""
    texts = {name: called([*name.split(), "--help"])[1] for name in HELP}
    return {
        name: sorted(set(re.findall(r"(?<=[ │])--[a-z][a-z-]+", text)))
        for name, text in texts.items()
    }


def arrays() -> dict[str, np.ndarray]:
    """Vectors of the commands above, and of every calibrator with a seed."""
    rows = np.load("x.npy")
    found = {name: np.load(f"{name}.npy") for name in ("z", "back", "e", "c")}
    for calibrator in (
        AdaptiveWhitening(),
        AllButTheTop(),
        Standardization(),
        Whitening(),
        Whitening(4, shrinkage=0.0),
        Flow(epochs=3),
        Flow.tempered(epochs=3),
        Flow.released(epochs=1),
        Flow(epochs=2, coupling="affine", random_state=3),
    ):
        found[f"{calibrator!r}"] = calibrator.fit(rows).transform(rows[:20])
    encoder = load_encoder("tiny", device="cpu", pooling="first-last-avg")
    texts = Path("corpus.txt").read_text().splitlines()
    model = calibrate(encoder, texts, Flow(epochs=1))
    found["calibrate"] = model.encode(texts[:10])
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("goldens")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIET, "BERTFLOW_CACHE": str(folder / "cache")}.items():
            patch.setenv(name, value)
        patch.setenv("COLUMNS", "80")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)
        write_inputs(folder)
        yield ran()


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def near(value: Any, golden: Any, where: str = "") -> list[str]:
    """Where two JSON values differ, numbers by more than a thousandth."""
    if isinstance(golden, dict) and isinstance(value, dict):
        wrong = [f"{where}: only one has {sorted(value.keys() ^ golden.keys())}"]
        wrong = wrong if value.keys() != golden.keys() else []
        return sum(
            (near(value[k], golden[k], f"{where}.{k}") for k in value.keys() & golden.keys()), wrong
        )
    if isinstance(golden, list) and isinstance(value, list) and len(golden) == len(value):
        parts = zip(value, golden, strict=True)
        return sum((near(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(parts)), [])
    if isinstance(golden, float) and isinstance(value, (int, float)):
        same = abs(value - golden) <= 1e-3 * max(1, abs(golden))
        return [] if same else [f"{where}: {value} is not {golden}"]
    if isinstance(golden, str) and isinstance(value, str):
        if golden.count(" ") > 2:
            return []  # Prose may be written better.
        if HASH.fullmatch(golden) and HASH.fullmatch(value):
            return []  # Of fitted weights, whose last bits are the processor's.
    return [] if value == golden else [f"{where}: {value!r} is not {golden!r}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_what_it_did(work, name):
    assert near(work[name], read("commands.json")[name]) == []


def test_every_option_is_still_there(work):
    found = options()
    for command, names in read("options.json").items():
        assert {*names} <= {*found[command]}, command


def test_vectors_and_fits_are_as_they_were(work):
    with np.load(GOLDEN / "arrays.npz") as golden:
        found = arrays()
        assert sorted(found) == sorted(golden)
        for name, expected in golden.items():
            assert found[name].dtype == expected.dtype, name
            np.testing.assert_allclose(
                found[name], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=name
            )


if __name__ == "__main__":
    import tempfile

    os.environ.update({**QUIET, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"})
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    target.mkdir(parents=True, exist_ok=True)
    target = target.resolve()
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        os.environ["BERTFLOW_CACHE"] = str(Path(temporary) / "cache")
        write_inputs(Path(temporary))
        commands = ran()
        (target / "commands.json").write_text(json.dumps(commands, indent=1))
        (target / "options.json").write_text(json.dumps(options(), indent=1))
        np.savez_compressed(target / "arrays.npz", **arrays())
