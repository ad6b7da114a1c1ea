"""The page of a report: whole, safe, small, and honest about what it lacks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bertflow.analysis import diagnose
from bertflow.analysis.diagnosis import evidence_of
from bertflow.calibrators import Flow, Whitening, load_calibrator, save_calibrator
from bertflow.data import Pairs
from bertflow.display.grid import fixed, span
from bertflow.encoders import SentenceCache, embed, encoding, load_encoder
from bertflow.errors import BertflowError, InputError
from bertflow.evaluation import Difference, DuplicatesJob, difference, evaluate, read_retrieval
from bertflow.evaluation.jobs import evaluate_job, job_differences
from bertflow.models import attach, calibrate, load, save_model
from bertflow.report import build, build_report, page, render, write_report
from bertflow.report.build import conclude
from bertflow.report.draw import LOOKS
from bertflow.report.measures import Headline
from bertflow.report.page import VARIABLES, check_page
from task_files import write_tasks

pytestmark = pytest.mark.usefixtures("as_in_a_process_of_its_own")
NASTY = [
    "</script><script>document.title = 'broken'</script>",
    "<!-- <script> ]]> &amp; &lt; {{script}} \\u003c",
    "quotes \" and ' and ` and \u2028 and \u2029",
    "<img src=x onerror=\"document.title='broken'\"> a sentence of some length",
    "emoji 🙂, עברית, 中文, and a tab\tin it",
]
ROWS = 60


class Page(HTMLParser):
    """What a page holds, as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.said: list[str] = []
        self.styles: list[str] = []
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._into = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._into is not None:
            self._into.append("")

    def handle_endtag(self, tag):
        self._into = None

    def handle_data(self, data):
        if self._into is not None:
            self._into[-1] += data
        else:
            self.said.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def named(self, tag):
        return [about for name, about in self.elements if name == tag]


TEXTS = [*NASTY, *(f"sentence number {n} of the corpus" for n in range(ROWS - len(NASTY)))]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with vectors, their texts and a flow that was fitted on them."""
    home = tmp_path_factory.mktemp("made")
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32) + 3
    np.save(home / "x.npy", x)
    # A line is a sentence, and these two would be none in a .txt.
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS]
    (home / "texts.jsonl").write_text("".join(lines))
    about = {"vectors": "x.npy", "rows": ROWS, "limit": None}
    save_calibrator(Flow(epochs=1).fit(x), home / "flow", provenance=about)
    return home


@pytest.fixture(autouse=True)
def work(made, tmp_path, monkeypatch) -> Path:
    for path in made.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def vectors() -> np.ndarray:
    return np.load("x.npy")


# What comes of vectors.


def test_vectors_alone_are_one_side(vectors):
    found = build_report("x.npy")
    assert list(found.sides) == ["before"]
    assert found.verdict.startswith(
        "Calibration is likely to help: any two unrelated vectors look 9"
    )
    assert f"mean cosine {found.diagnoses['before'].mean_cosine:.2f}); near 0" in found.verdict
    assert {"scores", "training"} <= found.absent.keys()
    assert found.texts is None
    assert Page(render(found)).data["queries"] == list(range(ROWS))
    assert Page(render(found)).data["texts"] is None


def test_a_calibrator_beside_vectors_is_applied_to_them(vectors):
    flow, found = load_calibrator("flow"), build_report("x.npy", against="flow")
    assert found.cosines.means["after"] == pytest.approx(
        build_of(flow.transform(vectors)).cosines.means["before"]
    )
    assert found.training.total == len(flow.loss_curve_)
    assert found.training.final == pytest.approx(flow.loss_)


def build_of(vectors):
    np.save("other.npy", vectors)
    return build_report("other.npy")


def test_other_vectors_of_the_same_rows_are_the_other_side(vectors):
    np.save("z.npy", vectors[:, :3] - 3)
    found = build_report("x.npy", against="z.npy")
    assert dict(found.sides) == {"before": "x.npy", "after": "z.npy"}
    assert found.diagnoses["after"].width == 3
    before, after = (one.mean_cosine for one in found.diagnoses.values())
    assert f"any two unrelated vectors look {100 * before:.0f} % alike before (" in found.verdict
    assert f"and {100 * max(after, 0):.0f} % alike after (" in found.verdict


@pytest.mark.parametrize("shape", [(1, 6), (ROWS, 1)])
def test_vectors_that_are_too_few_or_too_narrow_are_said_to_be(rng, shape):
    np.save("small.npy", rng.normal(size=shape))
    found = build_report("small.npy")
    assert found.cloud is None
    assert found.absent["cloud"] in unescape(render(found))
    assert found.notes


def test_equal_sentences_are_looked_at_once(vectors):
    Path("t.txt").write_text("".join(f"sentence {n % 40}\n" for n in range(ROWS)))
    found = build_report("x.npy", corpus="t.txt")
    assert found.diagnoses["before"].rows == 40
    assert found.texts == [f"sentence {n}" for n in range(40)]
    assert any("60 sentences, 40 of them distinct" in note for note in found.notes)


def test_scores_are_those_that_evaluate_gives_by_the_paired_difference(model, monkeypatch):
    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    data, loaded = write_tasks(Path("data"), "stsb"), load(model / "saved")
    found = build_report(model / "saved", data=data)
    before, after = (evaluate(one, "stsb", data=data) for one in (loaded.encoder, loaded))
    for name, known in (("before", before), ("after", after)):
        score = found.scores.scores[name]["stsb"]
        assert score.value == pytest.approx(known.all.value)
        assert (score.low, score.high) == pytest.approx((known.all.low, known.all.high))
        assert f'<td><span class="value">{fixed(100 * score.value)}</span>' in render(found)
    change = found.scores.changes["stsb"]
    assert change.value == pytest.approx(difference(before, after).value)
    assert "may be chance" in found.verdict or "Calibration" in found.verdict


def test_a_task_that_nobody_named_decides_nothing(model, plain, monkeypatch):
    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    assert plain.scores is None
    assert "benchmark" not in plain.verdict.lower()
    assert "--task NAME" in plain.absent["scores"]
    monkeypatch.setenv("BERTFLOW_DATA", str(write_tasks(Path("data"), "stsb", "sts13")))
    named = build_report(model / "saved", tasks=["sts13"])
    assert list(named.scores.changes) == ["sts13"]
    assert "STS 2013" in named.verdict or "STS13" in named.verdict
    every = build_report(model / "saved", data="data")
    assert list(every.scores.changes) == ["sts13", "stsb"]


def test_a_map_that_leaves_nothing_to_tell_apart_is_not_praised(rng):
    x = rng.normal(size=(60, 100)) + 2
    np.save("x.npy", x)
    np.save("z.npy", np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[0][:, :-1])
    found = build_report("x.npy", against="z.npy")
    assert found.verdict.startswith("Calibration has left nothing to tell apart: any two")


def test_against_without_a_value_is_a_models_own_encoder_as_by_default(
    model, plain, done, refused, monkeypatch
):
    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    done("report", model / "saved", "--against", "--output", "r.html")
    assert Path("r.html").read_text("utf-8") == render(plain)
    assert "name the other model" in refused("report", "x.npy", "--against", "--output", "s.html")


# What is concluded.


def headline(rise: float, p: float) -> Headline:
    change, low, high = (one / 100 for one in (rise, rise - 1, rise + 1))
    found = Difference(change, low, high, p=p, adjusted=p)
    return Headline(what="STS-B", before=0.58, after=0.58 + change, difference=found)


@pytest.mark.parametrize(
    ("rise", "p", "said"),
    [
        (2.0, 0.001, "Calibration helped on STS-B (Spearman"),
        (-2.0, 0.001, "Calibration did harm on STS-B (Spearman"),
        (0.5, 0.5, "It may be chance what calibration changes on STS-B (Spearman"),
    ],
)
def test_the_verdict_is_plain_before_it_names_a_measure(rng, rise, p, said):
    x = rng.normal(size=(200, 8))
    diagnoses = {"before": diagnose(x + 3), "after": diagnose(x)}
    verdict, evidence = conclude(["before", "after"], diagnoses, headline(rise, p))
    assert verdict.startswith(said)
    signed = f"{rise:+.2f}".replace("-", "−")
    assert f"(Spearman × 100 from 58.00 to {58 + rise:.2f}: {signed}, 95 %" in verdict
    percent = round(100 * diagnoses["before"].mean_cosine)
    assert evidence.startswith(
        f"Any two unrelated sentences look {percent} % alike before (mean cosine"
    )
    assert "and 0 % alike after (" in evidence
    ranked, evidence = conclude(
        ["one", "other"],
        dict(zip(["one", "other"], diagnoses.values(), strict=True)),
        headline(rise, p),
    )
    order = {2.0: "other is ahead of one", -2.0: "other is behind one"}
    assert ranked.startswith(order.get(rise, "It may be chance what other beside one changes on"))
    assert evidence.startswith(f"Any two unrelated sentences look {percent} % alike by one")


def test_vectors_that_are_spread_out_are_said_to_need_nothing(rng):
    x = rng.normal(size=(200, 8))
    verdict, evidence = conclude(["before"], {"before": diagnose(x)}, None)
    assert verdict.startswith("Leave the vectors as they are: any two")
    assert evidence.endswith("they are spread out already.")


# A model.


@pytest.fixture(scope="module")
def model(tiny_bert, tiny_sentences, tmp_path_factory):
    """A saved model, its corpus, and a cache that has the corpus's vectors."""
    home = tmp_path_factory.mktemp("model")
    (home / "corpus.txt").write_text("\n".join(tiny_sentences) + "\n")
    cache = SentenceCache(home / "cache")
    made = calibrate(
        load_encoder(tiny_bert),
        tiny_sentences,
        Whitening(),
        cache=cache,
        provenance={"corpus": [str(home / "corpus.txt")], "column": None, "limit": None},
    )
    save_model(made, home / "saved")
    return home


@pytest.fixture(scope="module")
def plain(model):
    """The report of the model alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BERTFLOW_CACHE", str(model / "cache"))
        return build_report(model / "saved")


def test_a_model_is_drawn_from_the_cache_where_its_vectors_are(model, monkeypatch, tiny_sentences):
    def lacking_none(self, groups):
        for group in groups:
            assert len(group.lacking) == 0
            yield group, group.lacking, np.empty((0, 0), dtype=np.float32)

    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    monkeypatch.setattr(encoding.Encoding, "each", lacking_none)
    found = build_report(model / "saved")
    assert list(found.sides) == ["before", "after"]
    assert found.texts == list(dict.fromkeys(tiny_sentences))
    assert found.diagnoses["after"].isoscore > found.diagnoses["before"].isoscore
    assert "not trained step by step" in found.absent["training"]
    assert found.provenance["corpus"] == str(model / "corpus.txt")


def test_a_model_encodes_what_the_cache_lacks(model, cache_of_its_own, tiny_bert, tiny_sentences):
    told = []
    found = build_report(model / "saved", progress=lambda done, total: told.append((done, total)))
    count = len(set(tiny_sentences))
    assert told[-1] == (count, count)
    assert cache_of_its_own.exists()
    rows = embed(load_encoder(tiny_bert), found.texts).rows()
    assert found.diagnoses["before"].mean_cosine == pytest.approx(diagnose(rows).mean_cosine)


def test_a_model_without_its_corpus_says_what_to_name(model, tiny_bert, tiny_sentences):
    made = calibrate(load_encoder(tiny_bert), tiny_sentences, Whitening())
    save_model(made, "alone")
    found = build_report("alone")
    assert "--corpus FILE names the sentences" in found.absent["cloud"]
    assert build_report("alone", corpus=model / "corpus.txt").cloud is not None


def test_another_calibrator_of_the_same_encoder_is_set_beside_it(model, monkeypatch):
    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    made = Whitening(dim=4).fit(np.random.default_rng(0).normal(size=(50, 16)))
    save_calibrator(made, "narrow")
    found = build_report(model / "saved", against="narrow")
    assert list(found.sides) == ["saved", "narrow"]
    assert found.diagnoses["narrow"].width == 4
    save_calibrator(made, "other", provenance={"encoder": {"weights": "of another"}})
    with pytest.raises(InputError, match="fitted on another encoder"):
        build_report(model / "saved", against="other")


# A job of one's own.

JOBS = {
    "search": ["--retrieval", "collection"],
    "classes": ["--labels", "<b>labels.csv", "--columns", "text,label"],
    "duplicates": ["--pairs", "pairs.tsv"],
}


@pytest.fixture
def material(work, model, tiny_sentences, monkeypatch) -> list[str]:
    """A file or folder of every job, in the folder to work in; the texts they are made of."""
    monkeypatch.setenv("BERTFLOW_CACHE", str(model / "cache"))
    texts = list(dict.fromkeys(tiny_sentences))
    (work / "collection/qrels").mkdir(parents=True)
    for name, some in (("corpus", texts[:60]), ("queries", texts[60:80])):
        rows = [{"_id": f"{name}{n}", "text": text} for n, text in enumerate(some)]
        Path(f"collection/{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_qrels(20)
    rows = [f'"{text}",{("short", "long")[len(text) > 35]}\n' for text in texts[:60]]
    Path("<b>labels.csv").write_text("text,label\n" + "".join(rows))
    pairs = [(text, texts[n + 1], 0) for n, text in enumerate(texts[:20])]
    pairs += [(text, f"{text} .", 1) for text in texts[30:50]]
    lines = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs)
    Path("pairs.tsv").write_text(f"text1\ttext2\tlabel\n{lines}")
    Path("graded.tsv").write_text("text1\ttext2\tscore\n" + lines.replace("\t1\n", "\t4\n"))
    return texts


def write_qrels(queries: int) -> None:
    rows = "".join(f"queries{n}\tcorpus{3 * n}\t1\n" for n in range(queries))
    Path("collection/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of the job's rows by name: their texts, and those of what is small in them."""
    section = text[text.index('<section id="job"') :].split("</section>")[0]
    found = re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', section, re.DOTALL)
    plain = re.compile("<[^>]+>")
    return {
        plain.sub(" ", name): [
            " ".join(plain.sub(" ", cell).split()) for cell in re.findall("<td.*?</td>", cells)
        ]
        for name, cells in found
    }


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_is_judged_before_and_after_by_the_figures_that_evaluate_gives(
    kind, material, model, done, monkeypatch
):
    posed = []
    monkeypatch.setattr(build, "evaluate_job", lambda *a, **k: posed.append(a) or judge(*a, **k))
    judge = evaluate_job
    done("report", model / "saved", *JOBS[kind], "--output", "r.html")
    text = Path("r.html").read_text("utf-8")
    loaded, job = load(model / "saved"), posed[0][1]
    before, after = (evaluate_job(one, job) for one in (loaded.encoder, loaded))
    rows = rows_of(text)
    for name, change in job_differences(before, after).items():
        figures = [before.measures[name], after.measures[name], change]
        for cell, one in zip(rows[name], figures, strict=False):
            value = fixed(100 * one.value, signed=one is change)
            ends = span(100 * one.low, 100 * one.high, 1, signed=one is change)
            assert cell == f"{value} {ends}"
        sign = "better" if change.value > 0 else "worse"
        assert rows[name][3] == (f"yes, {sign}" if change.real else "cannot be told")
    said = " ".join(Page(text).said)
    for count, what in zip(job.counts.values(), job.counts, strict=True):
        assert f"{count:,} {what}" in said
    assert not Page(text).named("b")
    assert f"{kind} of {JOBS[kind][1]}" in said
    if kind == "duplicates":
        for side, score in (("before", before), ("after", after)):
            cut, held = score.facts["best f1"], score.facts["held out"]["best f1"]
            expected = [
                f"{fixed(cut[part], 3)} {fixed(held[part], 3)}" for part in ("threshold", "f1")
            ]
            assert rows[f"{side}: best F1"][::3] == expected


def test_too_few_queries_are_said_to_tell_nothing(material, model):
    write_qrels(4)
    text = render(build_report(model / "saved", job=read_retrieval("collection")))
    assert {cells[3] for cells in rows_of(text).values()} == {"cannot be told: too few queries"}
    assert "may be chance what calibration changes on search of collection/qrels/test.tsv" in text


def test_a_threshold_that_nothing_reaches_is_no_number(material, model):
    pairs = Pairs("pairs", "all", material[:8], material[8:16], [0.0, 1.0] * 4, "p.csv")
    job = DuplicatesJob(pairs, precision=1.0)
    found = build_report(model / "saved", job=job)
    for score in (found.job.before, found.job.after):
        score.facts["chosen precision"] = {
            "threshold": None,
            "undefined": "no threshold reaches it",
        }
    cells = rows_of(render(found))["before: precision from 1"]
    assert [cell.split()[0] for cell in cells] == ["none"] * 4


def test_two_calibrators_of_an_encoder_are_judged_on_a_job(material, model):
    loaded = load(model / "saved")
    narrow = Whitening(dim=4).fit(embed(loaded.encoder, material).rows())
    save_calibrator(narrow, "narrow")
    job = read_retrieval("collection")
    found = build_report(model / "saved", against="narrow", job=job)
    assert found.job.before.measures == evaluate_job(loaded, job).measures
    other = evaluate_job(attach(loaded.encoder, narrow), job)
    assert found.job.after.measures["ndcg@10"].value == pytest.approx(
        other.measures["ndcg@10"].value
    )
    assert '<th scope="col">saved</th><th scope="col">narrow</th>' in render(found)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["x.npy", "--pairs", "pairs.tsv"],
            "x.npy holds vectors; tasks and jobs need a saved model",
        ),
        (["SAVED", "--pairs", "graded.tsv"], "--pairs takes labels 1 and 0 here"),
        (["SAVED", *JOBS["search"], *JOBS["classes"]], "do not go together; give one at a time"),
        (["SAVED", "--columns", "a,b,c"], "--columns goes with --pairs"),
    ],
)
def test_a_job_goes_with_a_saved_model(arguments, expected, material, model, refused):
    given = [str(model / "saved") if one == "SAVED" else one for one in arguments]
    assert expected in refused("report", *given, "--output", "r.html")


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing"], "nothing does not exist; give a saved model, or a .npy file"),
        (["empty"], "empty is nothing to report on; give a saved model, or a .npy file"),
        (["x.npy", "--corpus", "short.txt"], "short.txt holds 2 rows, but x.npy 60"),
        (["x.npy", "--against", "narrow.npy"], "narrow.npy holds 5 rows, but x.npy 60"),
        (["narrow.npy", "--against", "flow"], "fitted on vectors of 6 dimensions"),
        (["x.npy", "--column", "text"], "--column goes with --corpus"),
        (["x.npy", "--task", "qnli"], "unknown task of a report 'qnli'; expected one of sts12"),
        (["bad.npy"], "bad.npy is not finite in row 4"),
        (["flow"], "flow is nothing to report on; give a saved model, or a .npy file"),
        (["x.npy", "--data", "nowhere"], "nowhere is no folder"),
        (["x.npy", "--task", "stsb"], "x.npy holds vectors; tasks and jobs need a saved model"),
    ],
)
def test_what_does_not_belong_together_is_refused(refused, vectors, arguments, expected):
    Path("empty").mkdir()
    Path("short.txt").write_text("one\ntwo\n")
    np.save("narrow.npy", vectors[:5, :3])
    bad = vectors.copy()
    bad[4, 1] = np.nan
    np.save("bad.npy", bad)
    assert expected in refused("report", *arguments, "--output", "r.html")
    with pytest.raises(InputError, match="a column or format goes with a corpus"):
        build_report("x.npy", format="csv")


@pytest.mark.parametrize("name", ["report.pdf", "report", "report.html.gz"])
def test_another_suffix_is_refused_before_any_work(refused, name):
    assert "must end in .html" in refused("report", "nothing", "--output", name)
    with pytest.raises(InputError):
        check_page(name)


def test_a_page_that_cannot_be_written_leaves_no_trace(work):
    (work / "file").write_text("kept")
    found = build_report("x.npy")
    with pytest.raises(BertflowError, match="cannot write"):
        write_report(found, work / "file" / "r.html")
    found = sorted(path.name for path in work.iterdir())
    assert found == ["file", "flow", "texts.jsonl", "x.npy"]


# The page.


def shown_in(home: Path) -> str:
    files = home / "x.npy", home / "texts.jsonl", home / "flow"
    return render(build_report(files[0], corpus=files[1], against=files[2]))


@pytest.fixture(scope="module")
def shown(made) -> str:
    return shown_in(made)


def test_the_same_report_is_the_same_page(shown, made):
    assert shown_in(made) == shown


def test_sentences_cannot_break_out_of_the_page(shown):
    found = Page(shown)
    assert len(found.scripts) == 2
    data = found.data
    assert set(data["texts"].values()) == {page.shortened(text.strip()) for text in TEXTS}
    assert found.scripts[1] == page.template_file("page.js")
    assert not any("onerror" in about for _, about in found.elements)
    assert not any("broken" in script for script in found.scripts[1:])
    assert shown.count("</script>") == 2
    assert "\u2028" not in found.scripts[0]


def test_names_of_files_cannot_either(vectors):
    name = "<b>&\"'{{script}}.npy"
    np.save(name, vectors)
    found = Page(render(build_report(name)))
    assert not found.named("b")
    assert len(found.scripts) == 2


def test_nothing_is_fetched_and_only_its_own_script_may_run(shown):
    found = Page(shown)
    for tag, about in found.elements:
        for name in ("src", "srcset", "action", "poster", "data"):
            assert not about.get(name), (tag, about)
        address = about.get("href", "#")
        assert address.startswith("#") or address == "data:,"
        assert "style" not in about
    assert "url(" not in found.styles[0]
    assert "@import" not in found.styles[0]
    policy = next(about["content"] for about in found.named("meta") if "http-equiv" in about)
    assert policy.startswith("default-src 'none'")
    for text in (found.styles[0], found.scripts[1]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_neighbours_are_those_of_brute_force_and_their_share_is_said(shown, vectors):
    near = Page(shown).data
    assert near["queries"] == list(range(ROWS))
    for rows, side in zip(
        near["near"], (vectors, load_calibrator("flow").transform(vectors)), strict=True
    ):
        unit = side / np.linalg.norm(side.astype(np.float64), axis=1, keepdims=True)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, -np.inf)
        assert rows == np.argsort(-cosine, axis=1)[:, :5].tolist()
    both = [len(set(one) & set(other)) / 5 for one, other in zip(*near["near"], strict=True)]
    assert f"nearest, {np.mean(both):.0%} are the same on both sides" in shown


def test_every_picture_is_named_and_has_a_caption_and_a_table(shown):
    found = Page(shown)
    charts = [about for about in found.named("svg") if about.get("class") == "chart"]
    assert len(charts) >= 5
    for about in charts:
        assert about["role"] == "img"
        assert len(about["aria-label"]) > 15
    assert len(found.named("figure")) == len(found.named("figcaption")) == len(charts)
    assert len(found.named("caption")) == len(found.named("table"))
    keys = [about for about in found.named("svg") if about.get("class") != "chart"]
    assert all(about["aria-hidden"] == "true" for about in keys)
    assert len(found.named("details")) >= 4


def test_what_refers_to_something_finds_it(shown):
    found = Page(shown)
    ids = [about["id"] for _, about in found.elements if about.get("id")]
    assert len(ids) == len(set(ids))
    for _, about in found.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert (about.get(name) or ids[0]) in ids
        if (about.get("href") or "").startswith("#"):
            assert about["href"][1:] in ids
    for name in re.findall(r'getElementById\("(\w+)"\)', found.scripts[1]):
        assert name in ids
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
    assert found.named("html")[0]["lang"] == "en"
    assert found.named("th")
    assert all("scope" in about for about in found.named("th"))


def test_every_measure_is_explained_where_it_stands(shown):
    found = re.findall(r'<th scope="row" abbr="([^"]+)">[^<]+<small>([^<]+)</small>', shown)
    names = [name for name, *_ in evidence_of(build_report("x.npy").diagnoses).rows]
    assert [unescape(name) for name, _ in found] == names
    assert all(len(meaning) < 50 for _, meaning in found)


def test_the_cloud_shows_the_origin_and_what_all_rows_share(shown, vectors):
    assert shown.count('class="origin"') == 2
    # Before, the arrow is long; after, it may be too short to be seen.
    assert 1 <= shown.count('class="shared"') <= 2
    lengths = build_report("x.npy").cloud.lengths
    assert f"The mean of all rows is {lengths['before']:.2f} from the origin" in shown
    np.save("even.npy", np.concatenate([vectors - 3, 3 - vectors]))
    even = render(build_report("even.npy"))
    assert even.count('class="origin"') == 1
    assert 'class="shared"' not in even


def test_pictures_are_matplotlibs_without_its_colours_names_and_fonts(shown):
    charts = re.findall(r"<svg class=\"chart\".*?</svg>", shown, re.DOTALL)
    assert len(charts) >= 5
    for chart in charts:
        # Of every colour the style sheet has a light and a dark one.
        assert not re.search("#[0-9a-f]{6}|rgb|black|white", chart)
        assert set(re.findall(r"var\(--([\w-]+)\)", chart)) <= set(VARIABLES.values())
        assert "DejaVu" not in chart
        assert "<text" in chart
        for name in re.findall(r"(?:url\(|href=\")#([^)\"]+)", chart):
            assert f'id="{name}"' in chart
    assert "cosine of two random rows</text>" in shown


def test_values_below_the_axis_of_the_spectrum_are_counted(vectors):
    still = np.column_stack([vectors, np.zeros((ROWS, 2))])
    np.save("still.npy", still)
    told = re.search(
        r"On the lower axis lie those below [^:]+: (.*?)\.<", render(build_report("still.npy"))
    )
    assert told[1] == "2 before"
    assert "On the lower axis" not in render(build_report("x.npy"))


def test_what_is_absent_is_said_with_what_would_fill_it():
    found = build_report("x.npy")
    text = render(found)
    said = " ".join(" ".join(Page(text).said).split())
    for _, reason in found.left_out():
        assert reason in said
    for heading in ("Scores", "Training"):
        assert heading in said
    assert 'id="training"' not in text


def test_long_sentences_are_cut_on_the_page():
    assert page.shortened("a  b\nc") == "a b c"
    assert len(page.shortened("x" * 10**5)) == page.LONGEST_TEXT


# Colours.


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_can_be_read_and_are_those_of_the_plots(dark):
    style = page.template_file("page.css")
    light, _, rest = style.partition("@media screen and (prefers-color-scheme: dark)")
    found = colours(light)
    if dark:
        found |= colours(rest.split("}")[0])
    assert set(VARIABLES.values()) <= found.keys()
    for name in ("ink", "quiet", "second-ink"):
        assert contrast(found[name], found["ground"]) >= 4.5
        assert contrast(found[name], found["raised"]) >= 4.5
    for name in ("first", "second", "focus", "ring"):
        assert contrast(found[name], found["ground"]) >= 3
    for name, look in zip(("first", "second"), LOOKS, strict=True):
        assert (found[name] == look.color) is not dark
