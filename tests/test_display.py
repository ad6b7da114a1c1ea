"""What objects look like on a terminal and in a notebook, and bars where someone watches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import sklearn
from sklearn.pipeline import make_pipeline

from bertflow import (
    AllButTheTop,
    Flow,
    SentenceCache,
    Standardization,
    Whitening,
    calibrate,
    diagnose,
    load_calibrator,
    load_encoder,
    save_calibrator,
)
from bertflow.data import Pairs
from bertflow.display import Bars, Grid, notebook
from bertflow.display import progress as drawing
from bertflow.display.grid import ascii_minus
from bertflow.evaluation import Scores, compare, score_pairs

NASTY = "<b>&\"'</b>"
CALIBRATORS = [Flow(epochs=1), Whitening(3), AllButTheTop(1), Standardization()]


def parsed(html: str) -> ElementTree.Element:
    """What is shown, which must be well-formed and have no colour, script or sheet of its own."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    for part in root.iter():
        assert part.tag not in ("script", "style", "link", "img", "b" * 2)
        style = part.get("style", "")
        assert "#" not in style
        for value in style.split(";"):
            name, _, what = value.strip().partition(": ")
            if name in ("color", "background"):
                assert what in ("inherit", "transparent")
    return root


def words(html: str) -> str:
    """What a notebook shows, with - for its minus signs."""
    parts = ("".join(part.itertext()).strip() for part in parsed(html).iter("div"))
    return ascii_minus(" ".join(parts))


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(120, 4)) @ np.diag([1.0, 2.0, 3.0, 4.0]) + 5.0


# Pieces.


def test_whatever_is_shown_is_escaped():
    grid = Grid(NASTY, [NASTY, NASTY], [[NASTY, NASTY]])
    html = notebook(NASTY, {NASTY: NASTY}, [grid], **{NASTY: NASTY})
    assert html.count("<b>") == 1  # The title's own.
    assert "".join(parsed(html).itertext()).count(NASTY) == 10


def test_what_is_long_wraps_or_scrolls_within_its_own_block(rows):
    """Pages of notebooks are narrow on a phone; what is wide must not widen them."""
    whole = parsed(notebook("title", {"data": "/a/folder" * 30}, code="x" * 300))
    assert "overflow-wrap: anywhere" in whole.find(".//td").get("style")
    style = whole.find("div").get("style")
    assert "overflow-x: auto" in style
    assert "max-width: 100%" in style
    assert "overflow-x: auto" in whole.find(".//pre").get("style")
    html = diagnose(rows)._repr_html_()
    ours = parsed(html[html.index('<div class="bertflow"') :])
    assert all("overflow-x: auto" in div.get("style") for div in ours.findall("div"))


# Calibrators.


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda one: type(one).__name__)
def test_a_fitted_calibrator_shows_scikit_learns_page(calibrator, rows):
    fitted = sklearn.base.clone(calibrator).fit(rows)
    bundle = fitted._repr_mimebundle_()
    assert bundle["text/plain"] == repr(fitted) == repr(calibrator)
    for html in (bundle["text/html"], fitted._repr_html_()):
        assert "sk-top-container" in html
    assert fitted.facts()["fitted on"] == "120 rows"
    assert calibrator.facts() == {}
    assert "sk-top-container" in make_pipeline(fitted)._repr_html_()


def test_scikit_learns_wish_for_text_is_respected(rows):
    fitted = Whitening().fit(rows)
    with sklearn.config_context(display="text"):
        assert not hasattr(fitted, "_repr_html_")
        assert fitted._repr_mimebundle_() == {"text/plain": "Whitening()"}


def test_a_flow_shows_dimensions_rows_steps_and_bits_also_when_it_is_loaded(rows, tmp_path):
    still = np.concatenate([rows, np.ones((120, 1))], axis=1)
    flow = Flow(epochs=2, batch_size=60).fit(still)
    assert flow.facts() == {
        "dimensions": "5",
        "fitted on": "120 rows",
        "not varying": "1 dimensions, which bypass the flow",
        "steps": "4",
        "bits per dimension": f"{flow.loss_:.4f}",
    }
    save_calibrator(flow, tmp_path / "flow")
    assert load_calibrator(tmp_path / "flow").facts() == flow.facts()


def test_a_count_in_a_provenance_that_is_none_is_left_out(rows):
    fitted = Whitening(3).fit(rows[:7])
    fitted.provenance_ = {"sentences": 7, "distinct": NASTY, "encoder": {"name": NASTY}}
    assert fitted.facts()["fitted on"] == "7 sentences"


# Scores, comparisons, diagnoses, caches and models.


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """Not to be changed."""
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def pairs(tiny_sentences):
    gold = [float(number % 6) for number in range(60)]
    parts = ["one", "two"] * 30
    first, second = tiny_sentences[:60], tiny_sentences[60:120]
    return Pairs(
        task="mine", split="all", first=first, second=second, gold=gold, source=NASTY, subset=parts
    )


def test_a_score_shows_its_figures_by_their_names(encoder, pairs):
    score = score_pairs(encoder, pairs)
    said = repr(score)
    assert said.startswith("Score(mine all, 60 pairs: Spearman × 100 wmean ")
    for aggregation in ("wmean", "mean", "all"):
        one = score.main(aggregation)
        assert f"{aggregation} {100 * one.value:.2f} ({100 * one.low:.1f} to " in said
    assert "\n" not in said
    shown = words(score._repr_html_())
    assert NASTY in shown
    assert f"{100 * score.wmean.value:.2f}" in shown
    several = Scores(scores={"mine": score}, absent={"stsb": NASTY})
    assert repr(several).splitlines()[0] == "cosine against gold"
    assert repr(several).endswith("absent: stsb")
    assert f"{100 * score.wmean.value:.2f}" in words(several._repr_html_())


def test_a_comparison_shows_every_calibrator(encoder, pairs):
    result = compare(encoder, [pairs], methods=["none", "whitening"], seeds=1, jobs=1, fit="target")
    best = result.entries["whitening"].overall("wmean")
    for shown in (repr(result), words(result._repr_html_())):
        assert "Comparison of 1 calibrator on" in shown
        assert f"{100 * best.value:.2f}" in shown
        assert "gain on" in shown


def test_a_diagnosis_shows_its_verdict_first(rows):
    found = diagnose(rows)
    assert repr(found).splitlines()[0] == f"Calibration is likely to help: {found.reason}"
    assert f"{found.mean_cosine:.3f}" in repr(found)
    shown = words(found._repr_html_())
    assert found.reason in shown
    assert f"{found.isoscore:.3f}" in shown
    assert found.warnings[0] in shown


def test_a_cache_shows_where_it_is_and_what_it_holds(encoder, tiny_sentences, tmp_path):
    cache = SentenceCache(tmp_path / NASTY.replace("/", ""), 2 * 10**9)
    assert "at most 2 GB" in repr(cache)
    calibrate(encoder, tiny_sentences[:9], Whitening(2), cache=cache)
    assert f"and {cache.encoded} were not" in repr(cache)
    assert repr(str(cache.folder)) in repr(cache)


def test_a_calibrated_model_shows_its_encoder_and_calibrator(encoder, tiny_sentences):
    model = calibrate(encoder, tiny_sentences, Flow(epochs=1))
    assert "calibrated: Flow(epochs=1); dimensions 16, fitted on 300 sentences" in repr(model)
    assert "(calibrator_3): Dense(" in repr(model)
    shown = words(model._repr_html_())
    for name, value in model.facts().items():
        assert f"{name}{value}" in shown
    del model.calibrator
    assert "calibrated" not in repr(model).splitlines()[1]


# Bars.


def test_a_bar_says_its_stage_the_count_and_a_mean_of_the_loss(capsys):
    with Bars(shown=True) as bars:
        bars("fit", 1000, 2000, 1.0)
        bars("fit", 2000, 2000, 3.0)
        bars("encode", 7, 9)
    first, second = capsys.readouterr().err.rstrip().split("\n")
    fit, encode = first.split("\r")[-1], second.split("\r")[-1]
    assert fit.startswith("fit: 100%")
    assert "2000/2000" in fit
    assert "1.100 bits/dim" in fit
    assert encode.startswith("encode:  78%")
    assert "7/9" in encode


def test_a_stage_that_comes_again_has_a_bar_of_its_own(capsys):
    with Bars(shown=True) as bars:
        for _ in range(2):
            for done in (1, 2, 2):
                bars("encode", done, 2)
    assert len(capsys.readouterr().err.rstrip().split("\n")) == 2


TERMINAL = """
import fcntl, os, pty, struct, sys, termios
source = sys.argv[1]
child, file = pty.fork()
if child == 0:
    os.environ["TERM"] = "xterm"
    os.execv(sys.executable, [sys.executable, "-c", source])
fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
said = b""
while True:
    try:
        part = os.read(file, 65536)
    except OSError:
        break
    if not part:
        break
    said += part
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FIT = """
import numpy as np
from bertflow import Flow
rows = np.random.default_rng(0).normal(size=(200, 4))
Flow(epochs=1).fit(rows, progress=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to be had")
def test_on_a_terminal_a_fit_shows_a_bar():
    ran = subprocess.run(
        [sys.executable, "-c", TERMINAL, FIT],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},  # Of so few steps.
        capture_output=True,
        check=True,
        timeout=300,
    )
    said = ran.stdout.decode()
    assert "bits/dim" in said
    assert "fit: " in said


def test_without_a_terminal_nothing_is_shown(rows, capfd, monkeypatch):
    monkeypatch.setattr(drawing, "DELAY", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for progress in (None, True, False):
        Flow(epochs=1).fit(rows, progress=progress)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def seen(monkeypatch, capfd):
    """Where someone watches, a notebook's kernel: what was drawn since it was asked last."""
    shell = types.SimpleNamespace(kernel=object())
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setattr(drawing, "DELAY", 0.0)
    return lambda: capfd.readouterr().err


def test_where_someone_watches_a_fit_shows_a_bar_once_it_takes_time(rows, seen, monkeypatch):
    slow = Flow(epochs=1).fit(rows)
    said = seen()
    assert "fit: 100%" in said
    assert "4/4" in said
    assert "bits/dim" in said
    Flow(epochs=1).fit(rows, progress=False)
    assert seen() == ""
    monkeypatch.setattr(drawing, "DELAY", 60.0)
    quick = Flow(epochs=1).fit(rows)
    assert seen() == ""
    np.testing.assert_array_equal(quick.transform(rows), slow.transform(rows))


def test_both_stages_of_calibrate_have_a_bar(encoder, tiny_sentences, seen):
    calibrate(encoder, tiny_sentences, Flow(epochs=1), progress=True)
    said = seen()
    assert said.index("encode: 100%") < said.index("fit: 100%")


def test_a_function_is_called_as_before(encoder, tiny_sentences, seen):
    states = []
    calibrate(encoder, tiny_sentences, Flow(epochs=1), progress=lambda *at: states.append(at))
    assert {state[0] for state in states} == {"encode", "fit"}
    assert all(len(state) == 3 for state in states)
    assert seen() == ""


def test_threads_and_other_fits_of_a_search_draw_nothing(rows, seen, monkeypatch):
    thread = threading.Thread(target=lambda: Flow(epochs=1).fit(rows))
    thread.start()
    thread.join()
    process = types.SimpleNamespace(current_process=lambda: types.SimpleNamespace(name="Loky-1"))
    monkeypatch.setattr(drawing, "multiprocessing", process)
    Flow(epochs=1).fit(rows)
    assert seen() == ""


def test_a_bar_ends_with_a_fit_that_fails(rows, seen):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertflow.calibrators.training._Adam.factors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Flow(epochs=1).fit(rows, progress=True)
    seen()
    Flow(epochs=1).fit(rows, progress=True)
    assert "4/4" in seen()
