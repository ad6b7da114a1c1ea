"""Every block of code in the documentation runs as it stands, page by page, and the site is whole.

Each page has a folder of its own in which the names that it uses are: a small encoder is called
bert-base-uncased, sentences.txt holds sentences, DIR holds data sets. Nothing needs a network.
"""

from __future__ import annotations

import doctest
import functools
import importlib
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from bertflow.data import NLI_LABELS
from conftest import REPOSITORY
from pages import OUTPUT, Block, blocks
from task_files import graded_rows, write_tasks

DOCS = REPOSITORY / "docs"
PAGES = [
    *(path for path in sorted(DOCS.rglob("*.md")) if "build" not in path.parts),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]
MOST_NOT_RUN = 12
OF_OTHERS = {"ray"}  # Programs that pages name without running them.
WIDTH = 128
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@functools.cache
def found(page: Path) -> list[Block]:
    """The blocks that are run or looked at."""
    kept = []
    for block in blocks(page):
        if block.kind not in ("directive", "elsewhere", OUTPUT):
            kept.append(block)
    return kept


def is_slow(page: Path) -> bool:
    """Whether a page does more than a few encodings and fits."""
    text = " ".join(block.text for block in found(page) if block.not_run is None)
    return bool(re.search(r"reproduce|finetune|compare|faiss|bertflow report", text))


WITH_CODE = [
    pytest.param(page, id=name(page), marks=[pytest.mark.nightly] if is_slow(page) else [])
    for page in PAGES
    if any(block.not_run is None for block in found(page))
]


@pytest.fixture(scope="module")
def encoders(tiny_bert, tmp_path_factory) -> dict[str, Path]:
    """Small encoders by the names that the pages have: raw ones, and one that can pool."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bertflow.encoders import load_encoder

    home = tmp_path_factory.mktemp("encoders")
    raw, pooling = home / "raw", home / "pooling"
    # As many tokens as the commands ask for by themselves.
    config = BertConfig.from_pretrained(tiny_bert, max_position_embeddings=WIDTH)
    BertModel(config).save_pretrained(raw)
    AutoTokenizer.from_pretrained(tiny_bert, model_max_length=WIDTH).save_pretrained(raw)
    load_encoder(raw, pooling="mean").save_pretrained(str(pooling))
    names = ("bert-base-uncased", "bert-large-uncased", "my-encoder")
    return {**dict.fromkeys(names, raw), "sentence-transformers/all-MiniLM-L6-v2": pooling}


@pytest.fixture
def place(encoders, tiny_sentences, tmp_path, monkeypatch) -> Path:
    """A folder in which everything that the pages name is there."""
    for encoder, folder in encoders.items():
        (tmp_path / encoder).parent.mkdir(exist_ok=True)
        (tmp_path / encoder).symlink_to(folder)
    for name in ("sentences.txt", "documents.txt"):
        (tmp_path / name).write_text("\n".join(tiny_sentences), encoding="utf-8")
    (tmp_path / "questions.txt").write_text("\n".join(tiny_sentences[:40]), encoding="utf-8")
    (tmp_path / "new.txt").write_text("\n".join(tiny_sentences[:40]), encoding="utf-8")
    rows = ["sentence1,sentence2,score"] + [
        ",".join(f'"{cell}"' for cell in row) for row in graded_rows(60, 7)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(
        pyarrow.table({"id": list(range(300)), "text": tiny_sentences}), tmp_path / "in/a.parquet"
    )
    random = np.random.default_rng(0)
    for file, count in [("vectors.npy", 600), ("new.npy", 50)]:
        np.save(tmp_path / file, random.normal(size=(count, 16)).astype(np.float32) + 2)
    tasks = [*(f"sts{year}" for year in range(12, 17)), "stsb", "sick-r", "qnli", "snli"]
    write_tasks(tmp_path / "DIR", *tasks)
    labelled = zip(itertools.cycle(NLI_LABELS), graded_rows(72, 31), strict=False)
    lines = [
        json.dumps({"gold_label": label, "sentence1": first, "sentence2": second}) + "\n"
        for label, (first, second, _) in labelled
    ]
    (tmp_path / "DIR/nli/multinli_1.0_dev_matched.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    # Fits take turns in this process: to start others takes longer than all of them.
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    return tmp_path


@pytest.fixture
def command_line(as_in_a_process_of_its_own, place, monkeypatch):
    """Run a command as the pages have it; data lie where a user would have said."""
    from bertflow.cli.main import run

    monkeypatch.setenv("BERTFLOW_DATA", str(place / "DIR"))

    def call(block: Block, words: list[str]) -> None:
        assert run(words[1:]) == 0, f"{block.where}: {' '.join(words)}"

    return call


def parsed(words: list[str]) -> None:
    """Refuse a command of bertflow with an option that it has not, without running it."""
    import typer

    from bertflow.cli.main import app

    command: Any = typer.main.get_command(app)
    assert words[1] in command.commands, words
    context = command.make_context("bertflow", [], resilient_parsing=True)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    context = type(context)(command, info_name=words[1])
    command.make_parser(context).parse_args(args=list(rest))


def looked_at(words: list[str]) -> None:
    """What is not run must at least be there: an extra, a target, a module."""
    if words[0] == "pip":
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
        for extras in re.findall(r"\[(.*?)\]", " ".join(words)):
            for extra in extras.split(","):
                assert extra.strip() in project["optional-dependencies"], words
    elif words[0] == "make":
        targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert words[1] in targets, words
    elif words[:2] == ["python", "-m"]:
        path = REPOSITORY.joinpath(*words[2].split("."))
        assert path.with_suffix(".py").is_file() or importlib.util.find_spec(words[2]), words
    elif words[0] not in OF_OTHERS:
        assert words[0] == "bertflow", words
        parsed(words)


@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
@pytest.mark.parametrize("page", WITH_CODE)
def test_every_block_of_a_page_runs_in_its_order(page, place, command_line):
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in found(page):
        if block.not_run is not None:
            continue
        if block.kind == "commands":
            for words in block.commands():
                if words[0] == "bertflow":
                    command_line(block, words)
                else:
                    looked_at(words)
        elif block.kind == "python":
            # As many lines before it as the page has, so that a traceback shows the right one.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec"), names)
        else:
            test = doctest.DocTestParser().get_doctest(
                block.text, names, name(page), str(page), block.line - 1
            )
            said: list[str] = []
            runner = doctest.DocTestRunner(optionflags=FLAGS)
            runner.run(test, out=said.append, clear_globs=False)
            assert runner.summarize(verbose=False).failed == 0, "".join(said)
            names.update(test.globs)


def skipped_blocks() -> list[Block]:
    return [block for page in PAGES for block in found(page) if block.not_run is not None]


def test_what_is_not_run_is_little_and_has_a_reason():
    assert len(skipped_blocks()) <= MOST_NOT_RUN, [block.where for block in skipped_blocks()]
    for block in skipped_blocks():
        assert len(block.not_run or "") > 15, block.where


def test_what_is_not_run_is_right_as_far_as_can_be_seen():
    for block in skipped_blocks():
        if block.kind == "commands":
            for words in block.commands():
                looked_at(words)
        else:
            compile(block.text, block.where, "exec")


def test_commands_of_pages_that_run_at_night_have_their_options():
    for page in filter(is_slow, PAGES):
        for block in found(page):
            if block.kind == "commands" and block.not_run is None:
                for words in block.commands():
                    looked_at(words)


@pytest.mark.parametrize(
    "words",
    [
        "pip install bertflow[nope]",
        "make nope",
        "python -m benchmarks.nope",
        "bertflow fit --nope",
        "bertflow nope",
        "rm -r /",
    ],
)
def test_what_is_not_there_is_noticed(words):
    with pytest.raises(BaseException, match="nope|rm"):
        looked_at(words.split())


def test_pages_are_found_and_none_is_empty():
    assert len(WITH_CODE) > 10
    for page in PAGES:
        assert page.read_text("utf-8").startswith(("# ", "```{include}")), name(page)


def test_what_pages_for_contributors_place_in_a_file_is_there():
    pages = [REPOSITORY / "CONTRIBUTING.md", DOCS / "architecture.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    placed = re.findall(r"((?:`[\w.]+`(?: and )?)+) (?:in|of) `([\w/]+\.py)`", text)
    placed += [
        (names, f"{file}.py") for file, names in re.findall(r"`([\w/]+)\.py`: (`.*?`)", text)
    ]
    assert len(placed) > 14
    for names, file in placed:
        code = (REPOSITORY / "src" / "bertflow" / file).read_text(encoding="utf-8")
        for word in re.findall(r"\w+", names.replace(" and ", " ")):
            assert re.search(rf"^\s*(def |class )?{word}\b", code, flags=re.MULTILINE), (word, file)


def test_blocks_are_told_apart(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "\n".join(
            [
                *[
                    "# Page",
                    "",
                    "```python",
                    "a = f(1)",
                    "```",
                    "",
                    "    bertflow fit \\",
                    "      -x",
                ],
                *["", "<!-- not run: it is a test of this -->", "```python", ">>> 1", "1", "```"],
                *["", "```", "error: no", "```", "", "```{toctree}", "a", "```"],
                *["", "<!-- not run: for what follows, which is a paragraph -->", "", "text", ""],
                *["```", "import numpy", "```"],
            ]
        )
    )
    one, two, three, four, five, six = blocks(page)
    assert (one.kind, one.line, one.not_run) == ("python", 4, None)
    assert (two.kind, two.commands()) == ("commands", [["bertflow", "fit", "-x"]])
    assert (three.kind, three.not_run) == ("doctest", "it is a test of this")
    assert (four.kind, four.not_run, five.kind) == (OUTPUT, None, "directive")
    assert six.not_run is None
    with pytest.raises(AssertionError, match="page.md:29: Python without its language"):
        _ = six.kind


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"\tfrac12 x", ["<mn>1</mn>", "<mn>2</mn>", "<mi>x</mi>"]),
        (r"\tfrac D2", ["<mi>D</mi>", "<mn>2</mn>"]),
        (r"\tfrac1{a + b}", ["<mn>1</mn>", "<mi>a</mi>", "<mo>+</mo>", "<mi>b</mi>"]),
        (r"x \dots y", ["<mi>x</mi>", "<mi>…</mi>", "<mi>y</mi>"]),
    ],
)
def test_formulas_mean_what_tex_means_by_them(source, expected, monkeypatch):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    from formulas import mathml

    assert re.findall(r"<m[ino]>.*?</m[ino]>", mathml(source, block=False)) == expected


def test_a_formula_that_cannot_be_shown_is_an_error(monkeypatch):
    errors = pytest.importorskip("sphinx.errors", reason="needs the extra docs")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    from formulas import mathml

    with pytest.raises(errors.ExtensionError, match="no MathML of .*nosuchcommand"):
        mathml(r"\nosuchcommand", block=True)


# The site.


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it: warnings are errors."""
    pytest.importorskip("sphinx", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "cache"]
        + [DOCS, folder / "html"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


@pytest.mark.nightly
def test_the_site_opens_from_disk_without_a_network(site):
    """Scripts, styles, images and fonts are files beside the pages; links may go elsewhere."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len([page for page in PAGES if page.is_relative_to(DOCS)])
    for page in pages:
        text = page.read_text("utf-8")
        text = re.sub(r"<a\b[^>]*>|xmlns(:\w+)?=\"[^\"]*\"", "", text)
        loaded = re.findall(r"""(?:src|href)=["']?((?:https?:)?//[^"'\s>]*)""", text)
        assert loaded == [], page
        assert "<math" not in text or "MathJax" not in text, page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text("utf-8")), style


@pytest.mark.nightly
def test_every_link_within_the_site_leads_somewhere(site):
    for page in sorted(site.rglob("*.html")):
        for target in re.findall(r"<a\b[^>]*\bhref=\"([^\"#:]+)(?:#[^\"]*)?\"", page.read_text()):
            assert (page.parent / target.split("?")[0]).exists(), f"{page.name}: {target}"


@pytest.mark.nightly
def test_search_finds_from_disk(site):
    """The index is a script, which a browser loads from a disk as well."""
    index = (site / "searchindex.js").read_text("utf-8")
    assert index.startswith("Search.setIndex(")
    assert "whiten" in index


@pytest.mark.nightly
def test_formulas_are_mathml_and_figures_part_of_the_page(site):
    text = (site / "mathematics.html").read_text("utf-8")
    assert text.count("<math") > 60
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    figures = re.findall(r'<svg class="figure"[^>]*aria-label="([^"]{40,})"', text)
    assert len(figures) == 5
    assert "currentColor" in text


@pytest.mark.nightly
def test_every_public_name_and_command_is_described(site):
    import typer

    import bertflow
    from bertflow.cli.main import app

    api = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    for public in set(bertflow.__all__) - {"__version__"}:
        assert re.search(rf'id="bertflow\.\w+\.{public}"', api), public
    described = (DOCS / "command-line.md").read_text("utf-8")
    top: Any = typer.main.get_command(app)
    for command, one in top.commands.items():
        for inner in getattr(one, "commands", {"": None}):
            assert f"```{{command}} {command} {inner}".strip() in described, (command, inner)
