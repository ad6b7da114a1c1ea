"""evaluate and compare on jobs of one's own: every kind, its figures, and what is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from bertflow import calibrate, load_encoder
from bertflow.cli.options import Loading
from bertflow.data import read_pairs
from bertflow.encoders import encoding
from bertflow.evaluation import DuplicatesJob, read_labels, read_retrieval
from bertflow.evaluation.jobs import compare_job, default_methods, evaluate_job, job_differences
from bertflow.models import save_model

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")
JOBS = {
    "search": ["--retrieval", "collection"],
    "classes": ["--labels", "labels.csv", "--columns", "what, kind"],
    "duplicates": ["--pairs", "pairs.tsv"],
}


def job(kind: str):
    if kind == "search":
        return read_retrieval("collection")
    if kind == "classes":
        return read_labels("labels.csv", columns=("what", "kind"))
    return DuplicatesJob(read_pairs("pairs.tsv"))


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory, encoder, tiny_sentences) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_model(calibrate(encoder, tiny_sentences, "whitening"), folder)
    return folder


@pytest.fixture(autouse=True)
def work(tmp_path, tiny_sentences, monkeypatch) -> Path:
    """Material of every kind, in the folder to work in."""
    texts = list(dict.fromkeys(tiny_sentences))
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    for name, some in (("corpus", texts[:60]), ("queries", texts[60:80])):
        rows = [{"_id": f"{name}{n}", "text": text} for n, text in enumerate(some)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    qrels = "".join(f"queries{n}\tcorpus{3 * n}\t1\n" for n in range(20))
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["what", "kind"])
        table.writerows([text, ("short", "long")[len(text) > 35]] for text in texts[:60])
    pairs = [(text, texts[n + 1], 0) for n, text in enumerate(texts[:20])]
    pairs += [(text, f"{text} .", 1) for text in texts[30:50]]
    lines = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs)
    (tmp_path / "pairs.tsv").write_text(f"text1\ttext2\tlabel\n{lines}")
    (tmp_path / "graded.tsv").write_text("text1\ttext2\tscore\n" + lines.replace("\t1\n", "\t4\n"))
    (tmp_path / "corpus.txt").write_text("\n".join(texts[100:200]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path: str) -> dict:
    return json.loads(Path(path).read_text(), parse_constant=pytest.fail)


def cells(said: str, name: str) -> list[str]:
    """A row of the first table on the terminal that has it, by the name that stands first."""
    rows = [line for line in said.splitlines() if re.match(rf"{re.escape(name)}  ", line)]
    return re.split(r"  +", rows[0].strip())


@pytest.mark.parametrize("kind", JOBS)
def test_every_measure_of_a_job_is_shown_with_its_interval(kind, done, tiny_bert, encoder):
    said = done("evaluate", tiny_bert, *JOBS[kind], "--json", "s.json", "--markdown", "s.md")
    score = evaluate_job(encoder, job(kind))
    got = read("s.json")["job"]
    assert (got["kind"], got["source"]) == (kind, score.source)
    assert got["measures"].keys() == score.measures.keys()
    assert json.loads(json.dumps(score.facts)).keys() == got["facts"].keys()
    for name, one in score.measures.items():
        value, span = f"{100 * one.value:.2f}", f"{100 * one.low:.1f} to {100 * one.high:.1f}"
        assert cells(said, name) == [name, value, span]
        assert got["measures"][name]["value"] == pytest.approx(one.value, abs=1e-6)
        assert f"| {name} | {value} | {span} |" in Path("s.md").read_text()
    counts = ", ".join(f"{count:,} {name}" for name, count in score.counts.items())
    assert f"job        {kind}, {counts} of {score.source}\n" in said


@pytest.mark.parametrize("kind", JOBS)
def test_differences_of_every_measure_are_paired_and_told_from_chance(
    kind, done, calibrated, encoder
):
    said = done("evaluate", calibrated, "--against", *JOBS[kind], "--json", "s.json")
    posed = job(kind)
    expected = job_differences(
        evaluate_job(encoder, posed), evaluate_job(load_model(calibrated), posed)
    )
    got = read("s.json")["job_differences"]
    assert list(got) == list(expected)
    table = said[said.index("minus its encoder, × 100") :]
    for name, one in expected.items():
        assert got[name]["value"] == pytest.approx(one.value, abs=1e-6)
        assert got[name]["real"] == one.real
        row = cells(table, name)
        assert row[1] == f"{100 * one.value:+.2f}"
        assert row[-1] == ("real" if one.real else "chance is enough to explain it")
    assert f"paired bootstrap over {posed.unit}, corrected" in table
    assert read("s.json")["against"]["job"]["calibrator"] is None


def load_model(folder: Path):
    from bertflow import load

    return load(folder, device="cpu")


def test_a_model_is_no_better_than_itself(done, tiny_bert):
    said = done("evaluate", tiny_bert, "--against", tiny_bert, *JOBS["search"], "--json", "s.json")
    table = said[said.index("minus") :]
    assert "real" not in table
    assert table.count("chance is enough to explain it") == len(read("s.json")["job_differences"])


def test_labelled_pairs_have_the_area_and_thresholds(done, tiny_bert):
    said = done("evaluate", tiny_bert, *JOBS["duplicates"], "--json", "s.json")
    got = read("s.json")
    assert cells(said, "pairs pairs")[:2] == ["pairs pairs", "40"]
    assert "AUC × 100" in said
    assert got["scores"]["pairs"]["measure"] == "auc"
    best = got["job"]["facts"]["best f1"]
    assert cells(said[said.index("threshold") :], "best f1")[1] == f"{best['threshold']:.3f}"
    assert cells(said, "held out, best f1")


def test_labelled_pairs_are_encoded_once_without_the_cache_too(done, tiny_bert, monkeypatch):
    encoded: list[str] = []
    tokenized = encoding._tokenized

    def noted(model, texts, *arguments):
        encoded.extend(texts)
        return tokenized(model, texts, *arguments)

    monkeypatch.setattr(encoding, "_tokenized", noted)
    done("evaluate", tiny_bert, *JOBS["duplicates"], "--no-cache")
    pairs = read_pairs("pairs.tsv")
    assert sum(text == pairs.first[0] for text in encoded) == 1


def test_too_few_labelled_pairs_still_have_the_area(done, tiny_bert):
    Path("few.tsv").write_text("text1\ttext2\tlabel\na cat\ta dog\t0\na cat\tthe cat\t1\n")
    said = done("evaluate", tiny_bert, "--pairs", "few.tsv", "--json", "s.json")
    assert cells(said, "pairs few")[2] == "100.00"
    assert "- no thresholds: few.tsv: 1 pairs are duplicates" in said
    assert "job" not in read("s.json")


def test_graded_pairs_are_no_duplicates(done, tiny_bert):
    done("evaluate", tiny_bert, "--pairs", "graded.tsv", "--json", "s.json")
    assert "job" not in read("s.json")


@pytest.mark.parametrize("kind", JOBS)
def test_calibrators_are_compared_on_a_job(kind, done, tiny_bert, encoder):
    options = [*JOBS[kind], "--job", kind, "--jobs", "1"]
    said = done("compare", tiny_bert, *options, "--json", "s.json", "--markdown", "s.md")
    found = compare_job(encoder, job(kind), jobs=1)
    got = read("s.json")
    assert list(got["entries"]) == list(found.entries)
    assert got["given"] == str(tiny_bert)
    main, *others = found.aggregations
    gains = said[said.index(f"{kind}: {main} × 100") :]
    every = said[said.index(f"\n{kind}, × 100") :]
    against = found.against("none", main)
    for name, entry in found.entries.items():
        shown = [f"{100 * entry.overall(one).value:.2f}" for one in (main, *others)]
        assert cells(gains, entry.label)[:2] == [entry.label, shown[0]]
        assert cells(every, entry.label) == [entry.label, *shown]
        if name != "none":
            value = got["entries"][name]["differences"][f"{main}, against none"]["value"]
            assert value == pytest.approx(against[name].value, abs=1e-6)
    methods = default_methods(kind)
    if kind == "search":
        methods = [f"{side}{name}" for name in methods[1:] for side in ("two-sided ", "")]
        methods = ["none", *methods]
    assert list(found.entries) == methods
    notes = "".join(re.findall(r"^- .*", said, re.M))
    assert f"{main}: " in notes
    assert "from none" in notes or "than none" in notes


def test_the_job_says_which_measure_comes_first(done, tiny_bert):
    options = [*JOBS["classes"], "--method", "none", "--method", "whitening", "--jobs", "1"]
    for job, main in (((), "accuracy"), (("--job", "clusters"), "v-measure")):
        said = done("compare", tiny_bert, *options, *job, "--json", "s.json")
        assert next(iter(read("s.json")["entries"]["none"]["overall"])) == main
        assert f"classes: {main} × 100" in said


def test_calibrators_are_fitted_on_a_corpus_of_ones_own(done, tiny_bert):
    options = [*JOBS["search"], "--corpus", "corpus.txt", "--method", "whitening", "--jobs", "1"]
    said = done("compare", tiny_bert, *options, "--json", "s.json")
    assert "fitted on  the given corpus (100 sentences)\n" in said
    assert list(read("s.json")["entries"]) == ["whitening"]
    said = done("compare", tiny_bert, *options, "--queries", "corpus.txt", "--json", "s.json")
    assert "fitted on  the given corpus (200 sentences)\n" in said
    assert list(read("s.json")["entries"]) == ["two-sided whitening", "whitening"]


def test_labelled_pairs_are_compared_by_the_area_unless_the_job_is_named(done, tiny_bert):
    done("compare", tiny_bert, *JOBS["duplicates"], "--method", "none", "--json", "s.json")
    assert read("s.json")["tasks"]["pairs"]["measure"] == "auc"


BOTH = [
    (
        ["--retrieval", "collection", "--labels", "labels.csv"],
        "--retrieval and --labels do not go together; give one at a time",
    ),
    (["--task", "stsb", "--labels", "labels.csv"], "--task and --labels do not go together"),
    (["--pairs", "pairs.tsv", *JOBS["search"]], "--pairs and --retrieval do not go together"),
    (["--retrieval", "collection", "--columns", "a,b"], "--columns goes with --pairs"),
    (["--labels", "labels.csv", "--columns", "a,b,c"], "columns must be 2 different ones"),
    (["--labels", "labels.csv", "--columns", "what,no"], "labels.csv"),
    (["--labels", "nothing.csv"], "nothing.csv"),
    (["--retrieval", "nothing"], "nothing is no folder"),
    ([], "--retrieval DIR or --labels FILE"),
    (["--labels", "labels.csv", "--json", "labels.csv"], "labels.csv"),
    (["--retrieval", "collection", "--json", "collection/corpus.jsonl"], "collection"),
]
EVALUATE = [
    (["--labels", "labels.csv", "--split", "dev"], "--split goes with --task or --retrieval"),
    (["--retrieval", "collection", "--split", "dev"], "dev"),
]
COMPARE = [
    (["--job", "search", "--labels", "labels.csv"], "--job search goes with --retrieval alone"),
    (["--job", "cluster", "--labels", "labels.csv"], "unknown job 'cluster'"),
    (["--job", "duplicates", "--task", "stsb", *JOBS["duplicates"]], "goes with --pairs alone"),
    (["--job", "duplicates", "--pairs", "graded.tsv"], "--pairs takes labels 1 and 0 here"),
    (["--labels", "labels.csv", "--queries", "corpus.txt"], "--queries goes with --retrieval"),
    ([*JOBS["search"], "--queries", "nothing.txt"], "nothing.txt"),
    (["--labels", "labels.csv", "--fit", "nli"], "--fit nli goes with --task or --pairs"),
]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        *((command, *case) for command in ("evaluate", "compare") for case in BOTH),
        *(("evaluate", *case) for case in EVALUATE),
        *(("compare", *case) for case in COMPARE),
    ],
)
def test_a_wrong_mix_is_refused_before_an_encoder_is_loaded(
    command, options, message, refused, tiny_bert, monkeypatch
):
    monkeypatch.setattr(Loading, "open_any", lambda *_: pytest.fail("an encoder was loaded"))
    assert message in refused(command, tiny_bert, *options)
