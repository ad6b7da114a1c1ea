"""reproduce on the command line: what it prints and writes, refuses, and goes on with."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, word_embeddings

from bertflow import evaluation
from bertflow.calibrators import Standardization
from bertflow.cli.main import run
from bertflow.cli.reproducing import table_markdown, table_page
from bertflow.encoders import load_word_vectors
from bertflow.errors import TrainingError
from bertflow.evaluation import evaluate
from bertflow.paper import NAMES, plan
from bertflow.paper import run as jobs
from bertflow.paper.plan import Material, Planner, identify
from bertflow.paper.results import INTERVALS, TableResult
from bertflow.paper.run import Workplace, reproduce
from conftest import QUIET
from task_files import write_tasks, write_word_vectors
from test_imports import loaded_after

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")
TABLES = ["table1", "table2", "table4", "table5", "table6", "figure2"]
ENCODER = ["--encoder", "tiny", "--max-length", 32, "--data", "data", "--device", "cpu"]
COMMAND = ["reproduce", *TABLES, *ENCODER, "--seeds", 2, "--jobs", 1]
SUFFIXES = ("md", "json")


@pytest.fixture(scope="module")
def ran(tiny_bert, tmp_path_factory) -> SimpleNamespace:
    """A folder in which tables were reproduced once, and what was printed."""
    root = tmp_path_factory.mktemp("cli")
    (root / "tiny").symlink_to(shutil.copytree(tiny_bert, root / "encoders/tiny"))
    write_tasks(root / "data", "stsb", "snli")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in QUIET.items():
            patched.setenv(name, value)
        patched.chdir(root)
        patched.setattr(jobs, "figures", functools.partial(evaluation.figures, resamples=40))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(argument) for argument in COMMAND])
    assert code == 0, err.getvalue()
    return SimpleNamespace(root=root, said=out.getvalue())


@pytest.fixture(autouse=True)
def work(ran, tmp_path, monkeypatch) -> Path:
    """A folder to work in, with what was computed."""
    shutil.copytree(ran.root / "runs", tmp_path / "runs")
    for name in ("tiny", "data"):
        (tmp_path / name).symlink_to(ran.root / name)
    monkeypatch.chdir(tmp_path)
    few = functools.partial(evaluation.figures, resamples=40)
    monkeypatch.setattr(jobs, "figures", few)
    return tmp_path


@pytest.fixture
def same(work):
    """What the library makes of the same records: the tables."""
    told = []
    place = Workplace(
        planner=Planner(Material("data"), seeds=2),
        folder=Path("runs"),
        device="cpu",
        jobs=1,
        report=lambda *step: told.append(step),
    )
    made = reproduce(TABLES, [identify("tiny", max_length=32)], place)
    tables = [one for _, one in made if isinstance(one, TableResult)]
    assert told == []
    return tables


def records(folder: Path = Path("runs")) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "records").iterdir()}


# What is written and said.


def test_it_writes_every_table_twice_and_the_figure(work):
    names = {f"{name}.{suffix}" for name in TABLES[:-1] for suffix in SUFFIXES}
    names -= {f"table4.{suffix}" for suffix in SUFFIXES}
    units = ("characters", "words")
    names |= {f"figure2-tiny-{unit}.{kind}" for unit in units for kind in ("svg", "png")}
    assert {path.name for path in Path("runs/tiny").iterdir()} == names
    assert {path.name for path in Path("runs").iterdir()} == {"records", "vectors", "tiny"}
    assert Path("runs/tiny/figure2-tiny-words.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in Path("runs/tiny/figure2-tiny-words.svg").read_text()


def test_the_files_are_the_tables(same):
    for table in same:
        name = table.name
        base = Path("runs/tiny")
        content = json.loads((base / f"{name}.json").read_text(encoding="utf-8"))
        assert content == json.loads(json.dumps(table.to_dict()))
        assert (base / f"{name}.md").read_text(encoding="utf-8") == table_markdown(table)


def test_markdown_is_a_table_with_as_many_cells_in_every_line(same):
    for table in same:
        text = Path(f"runs/tiny/{table.name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"## {table.name}: ")
        blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
        assert len(blocks) == 1 + bool(table.claims)
        for block in blocks:
            assert len({line.replace("\\|", "").count("|") for line in block}) == 1
            assert set(block[1]) <= set("|-: ")


def test_what_is_said_has_every_row_claim_and_note_of_every_table(ran, same):
    for table in same:
        name = table.name
        part = ran.said[ran.said.index(f"{name}: {table.title}") :]
        for row in table.rows:
            assert f"\n{row.label} " in part
        for text in [*(claim.text for claim in table.claims), *table_page(table).notes]:
            assert text in part
    for word in ("nan", "None", "{", "Traceback"):
        assert word not in ran.said.replace(str(ran.root), "")
    assert "table4 is absent: no data for qnli (dev): tried" in ran.said


def test_the_last_line_says_what_was_written(ran):
    last = ran.said.splitlines()[-1]
    assert last.startswith("wrote table1.md, table1.json, table2.md")
    assert last.endswith("figure2-tiny-words.svg, figure2-tiny-words.png to runs/tiny")


def test_a_second_run_prints_the_same_and_runs_nothing(ran, done, monkeypatch):
    before = records()
    monkeypatch.setattr(jobs, "load_poolings", None)
    assert done(*COMMAND) == ran.said
    assert records() == before


def test_the_figure_alone_is_said_without_a_table(done):
    said = done("reproduce", "figure2", *ENCODER, "--seeds", 2)
    assert said.strip().startswith("wrote figure2-tiny-characters.svg, ")
    assert said.count("wrote") == 1


def test_a_label_and_a_pooling_name_the_folder_and_the_rows(done):
    said = done(
        *["reproduce", "table5", *ENCODER, "--label", "Mine", "--pooling", "layers:1,3"],
        *["--seeds", 1, "--jobs", 1],
    )
    assert "\nMine, layers:1,3 " in said
    assert "wrote table5.md, table5.json to runs/Mine-layers1-3" in said
    assert Path("runs/Mine-layers1-3/table5.md").is_file()
    # A name is no recipe.
    before = records()
    done("reproduce", "table5", *ENCODER, "--label", "Other", "--seeds", 2)
    assert records() == before


def test_two_encoders_stand_in_one_table(done, tiny_llama):
    Path("llama").symlink_to(tiny_llama)
    said = done("reproduce", "table1", *ENCODER, "--encoder", "llama")
    name = tiny_llama.resolve().name
    assert f"to runs/tiny+{name}" in said
    content = json.loads(Path(f"runs/tiny+{name}/table1.json").read_text())
    assert [row["encoder"] for row in content["rows"]] == ["tiny"] * 7 + [name] * 7


def test_notes_begin_with_what_the_whole_table_depends_on(same):
    digest = identify("tiny").digest[:16]
    encoder = f"encoder tiny: name tiny, files {digest}, pooling the paper's, max_length 32"
    nli = "NLI: 144 sentences of snli"
    table = {one.name: table_page(one).notes for one in same}
    assert table["table2"][:4] == [encoder, "flow: paper, seeds: 2", nli, INTERVALS]
    assert table["table5"][:3] == [encoder, "flow: paper, seeds: 2", INTERVALS]
    assert table["table6"][:2] == [encoder, "flow: paper, seeds: 1"]
    assert table["table1"][0] == encoder
    assert not any(note.startswith(("flow: ", "NLI: ")) for note in table["table1"])


def test_another_flow_and_a_trial_take_the_place_of_no_real_tables(done):
    real = {path: path.read_bytes() for path in Path("runs/tiny").iterdir()}
    command = ["reproduce", "table5", *ENCODER, "--seeds", 1, "--jobs", 1]
    said = done(*command, "--limit", 12)
    assert said.endswith("to runs/tiny-limit12\n")
    assert "\n- flow: paper, seeds: 1\n- ONLY A TRIAL: about 12 pairs of each split\n" in said
    said = done(*command, "--flow", "tempered")
    assert said.endswith("to runs/tiny-tempered-flow\n")
    assert "\n- flow: tempered, seeds: 1\n" in said
    both = done(*command, "--flow", "tempered", "--limit", 12)
    assert both.endswith("to runs/tiny-tempered-flow-limit12\n")
    assert {path: path.read_bytes() for path in Path("runs/tiny").iterdir()} == real


def test_a_folder_that_cannot_be_written_is_one_line(cli):
    shutil.rmtree("runs/tiny")
    Path("runs/tiny").write_text("")
    code, out, err = cli("reproduce", "table5", *ENCODER, "--seeds", 2)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: cannot write")


# Averaged word vectors.


@pytest.fixture
def vectors(work, monkeypatch) -> Path:
    """A file of word vectors; the bar of its reader hushes in a process of its own."""
    quiet = functools.partial(word_embeddings.tqdm, disable=True)
    monkeypatch.setattr(word_embeddings, "tqdm", quiet)
    return write_word_vectors(work / "words.txt")


def glove_row() -> dict:
    content = json.loads(Path("runs/tiny/table2.json").read_text())
    (row,) = [row for row in content["rows"] if row["row"] == "glove"]
    return row


def test_word_vectors_of_a_file_fill_their_row_alone(done, vectors):
    before = records()
    done("reproduce", "table2", *ENCODER, "--seeds", 2, "--glove", vectors)
    expected = evaluate(load_word_vectors(vectors), "stsb", data="data").all.value
    cell = glove_row()["cells"]["stsb"]
    assert cell["value"] == pytest.approx(100 * expected, abs=1e-4)
    assert cell["published"] == 58.02
    assert cell["difference"] == pytest.approx(cell["value"] - 58.02)
    assert len(records().keys() - before.keys()) == 2  # A record and its arrays.


def test_word_vectors_may_be_a_sentence_transformers_model(done, vectors, work):
    words = load_word_vectors(vectors)[0]
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    SentenceTransformer(modules=[words, pooling], device="cpu").save(str(work / "average"))
    done("reproduce", "table2", *ENCODER, "--seeds", 2, "--glove", "average")
    expected = evaluate(load_word_vectors(vectors), "stsb", data="data").all.value
    assert glove_row()["cells"]["stsb"]["value"] == pytest.approx(100 * expected, abs=1e-4)


def test_a_changed_file_of_word_vectors_is_another(done, vectors):
    command = ["reproduce", "table2", *ENCODER, "--seeds", 2, "--glove", vectors]
    done(*command)
    before = glove_row()["cells"]["stsb"]["value"]
    write_word_vectors(vectors, seed=1)
    done(*command)
    assert glove_row()["cells"]["stsb"]["value"] != before


# Stopped.


def test_interrupted_it_says_how_to_go_on_and_does(cli, done, work, monkeypatch):
    command = ["reproduce", "table5", *ENCODER, "--seeds", 2, "--jobs", 1, "--output", "other"]
    judge, count = jobs.run_trial, [0]

    def judged(*arguments):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return judge(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "run_trial", judged)
        code, out, err = cli(*command)
    assert (code, out) == (130, "")
    assert err == "error: interrupted; the same command goes on from other\n"
    before = records(Path("other"))
    assert len(before) == 2 * 3
    said = done(*command)
    after = records(Path("other"))
    assert before.items() <= after.items()
    assert len(after) == 2 * 8
    assert "wrote table5.md" in said


def test_a_table_that_an_error_made_absent_is_an_exit_code_and_one_without_data_is_not(
    cli, done, work, monkeypatch
):
    command = ["reproduce", "table2", "table4", "table5", *ENCODER, "--seeds", 2, "--jobs", 1]
    shutil.rmtree("runs/records")
    judge = jobs.run_trial

    def judged(vectors, trial):
        if isinstance(trial.calibrator, Standardization):  # In table5 alone.
            raise TrainingError("the loss is not finite")
        return judge(vectors, trial)

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "run_trial", judged)
        code, out, err = cli(*command)
    assert code == 1
    assert err == (
        "error: 1 of 3 could not be made: table5: the loss is not finite; the same command makes "
        "what is missing\n"
    )
    assert "table4 is absent: no data for qnli" in out
    assert "table5 is absent" not in out
    assert "wrote table2.md" in out
    said = done(*command)
    assert "table4 is absent: no data for qnli" in said
    assert "table5.md" in said


# What cannot be done.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], f"unknown table 'table9'; expected one of {', '.join(NAMES)}, all"),
        (["table5", "Table2"], "unknown table 'Table2'"),
        (["table5", "--label", "a", "--encoder", "x"], "--label goes with one --encoder, got 2"),
        (["table5", "--encoder", "tiny"], "two encoders are called tiny"),
        (["table4"], "no data for qnli (dev): tried"),
        (["table5", "--data", "nowhere"], "nowhere is no folder"),
        (
            ["table5", "--flow", "nice"],
            "flow must be one of ('paper', 'released', 'tempered'), got 'nice'",
        ),
        (["table5", "--encoder", "data/nli/snli_dev.jsonl"], "is a file of word vectors, not an"),
        (["table2", "--glove", "./none.txt"], "./none.txt does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(refused, arguments, message):
    assert message in refused("reproduce", *ENCODER, *arguments)


def test_the_papers_encoders_are_the_default_and_refused_in_one_line_without_a_hub(
    refused, monkeypatch
):
    monkeypatch.setattr(plan, "hub_answers", lambda: False)
    nowhere = functools.partial(plan.snapshot_download, cache_dir="nowhere")
    monkeypatch.setattr(plan, "snapshot_download", nowhere)
    assert refused("reproduce", "table5", "--data", "data").startswith(
        "bert-base-uncased is no folder here and cannot be had from the model hub"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-length", 64], "max_length 64 is above the encoder's 32 tokens"),
        (["--pooling", "layers:9"], "asks for hidden state 9, but the encoder has 3 blocks"),
        (["--pooling", "middle"], "unknown pooling 'middle'"),
    ],
)
def test_what_the_encoder_cannot_do_is_one_line(cli, arguments, message):
    before = records()
    code, out, err = cli("reproduce", "table5", *ENCODER, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert "unexpected" not in err
    assert records() == before


@pytest.mark.parametrize(
    "arguments", [[], ["table5", "--seeds", 0], ["table5", "--limit", 0], ["table5", "--jobs", 0]]
)
def test_wrong_usage_is_2(cli, arguments):
    assert cli("reproduce", *arguments)[0] == 2


@pytest.mark.parametrize("arguments", [["table9"], ["--help"], ["table5", "--label", "a"]])
def test_nothing_heavy_is_loaded_for_a_wrong_name_or_for_help(arguments):
    code = 0 if arguments == ["--help"] else 1
    command = ["reproduce", *arguments]
    assert loaded_after(f"from bertflow.cli.main import run; assert run({command}) == {code}") == []


def test_every_option_reaches_the_reproduction(cli, vectors, monkeypatch):
    asked = {}

    def fake(names, of, place):
        asked.update(names=names, subjects=of, place=place)
        yield "figure2", []  # Of no encoder.
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "reproduce", fake)
    code, _, _ = cli(
        *["reproduce", "table3", "all", "--encoder", "tiny", "--label", "A", "--pooling", "cls"],
        *["--max-length", 9, "--glove", vectors, "--data", "data", "--output", "out"],
        *["--seeds", 7, "--limit", 11, "--flow", "tempered", "--jobs", 3, "--batch-size", 5],
        *["--device", "cpu", "--trust-remote-code"],
    )
    assert code == 130
    (subject,), place, planner = asked["subjects"], asked["place"], asked["place"].planner
    assert asked["names"] == ["table3", "all"]
    assert (subject.name, subject.label, subject.pooling) == ("tiny", "A", "cls")
    assert subject.max_length == 9
    assert (planner.seeds, planner.flow) == (7, "tempered")
    assert (planner.material.data, planner.material.limit) == (Path("data"), 11)
    assert (planner.words.label, planner.words.words) == ("GloVe", True)
    assert planner.words.max_length is None
    assert (place.folder, place.batch_size, place.device) == (Path("out"), 5, "cpu")
    assert (place.jobs, place.trust_remote_code) == (3, True)
