"""Calibrators side by side on a job: what each is fitted on, and which differences are real."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bertflow import AdaptiveWhitening, Whitening, calibrate
from bertflow.calibrators.storage import calibrator_for
from bertflow.cli.score_pages import comparison_page
from bertflow.encoders import load_encoder
from bertflow.errors import InputError
from bertflow.evaluation import METHODS, holm
from bertflow.evaluation.bootstrap import mean_of
from bertflow.evaluation.jobs import (
    JOB_METHODS,
    Judgement,
    compare_job,
    default_methods,
    estimates,
    job_vectors,
)
from bertflow.evaluation.scores import paired_cosine


@dataclass
class Fake:
    """A job whose items are its queries, or else its documents: cosines of neighbours."""

    sides: Mapping[str, Sequence[str]]
    kind: str = "search"
    unit: str = "queries"
    source: str = "mine"
    counts: Mapping[str, int] = field(default_factory=lambda: {"queries": 40, "documents": 90})
    skipped: Mapping[str, int] = field(default_factory=lambda: {"without a document": 2})

    def texts(self):
        return self.sides

    def judge(self, vectors):
        assert {role: len(rows) for role, rows in vectors.items()} == {
            role: len(texts) for role, texts in self.sides.items()
        }
        one = vectors.get("query", vectors["document"])
        cosine = paired_cosine(one, vectors["document"][: len(one)][::-1])
        measures = {"cosine": mean_of(cosine), "square": mean_of(cosine**2)}
        return Judgement(items=len(one), measures=measures, facts={"highest": float(cosine.max())})


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return load_encoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def search(tiny_sentences) -> Any:
    return Fake({"query": tiny_sentences[:40], "document": tiny_sentences[40:130]})


@pytest.fixture
def classes(tiny_sentences) -> Any:
    return Fake({"document": tiny_sentences[:60]}, "classes", "texts")


def test_a_method_has_the_figures_of_a_fit_on_the_jobs_own_texts(encoder, search):
    found = compare_job(encoder, search, methods=["none", "whitening"], jobs=1)
    vectors, _ = job_vectors(encoder, search)
    whitened = Whitening(shrinkage=0.0).fit(np.concatenate([*vectors.values()]))
    expected = {
        "none": estimates(search.judge(vectors)),
        "whitening": estimates(
            search.judge({role: whitened.transform(rows) for role, rows in vectors.items()})
        ),
    }
    for name, measures in expected.items():
        for measure, one in measures.items():
            got = found.entries[name].overall(measure)
            assert got.value == pytest.approx(one.value, abs=1e-6)
            assert (got.low, got.high) == pytest.approx((one.low, one.high), abs=1e-6)


def test_both_sides_have_maps_of_their_own(encoder, search):
    found = compare_job(encoder, search, methods=["adaptive-whitening"], jobs=1)
    assert list(found.entries) == ["two-sided adaptive-whitening", "adaptive-whitening"]
    vectors, _ = job_vectors(encoder, search)
    fitted = AdaptiveWhitening().fit(vectors["document"], queries=vectors["query"])
    mapped = {role: fitted.transform(rows, role=role) for role, rows in vectors.items()}
    value = estimates(search.judge(mapped))["cosine"].value
    two_sided, one_sided = (one.overall("cosine").value for one in found.entries.values())
    assert two_sided == pytest.approx(value, abs=1e-6)
    assert abs(one_sided - value) > 1e-5


@pytest.mark.parametrize("kind", ["search", "classes", "duplicates"])
def test_what_a_fit_for_the_job_takes_comes_first_and_flows_only_if_asked_for(kind):
    methods = default_methods(kind)
    preset = calibrator_for("similarity" if kind == "duplicates" else kind)
    assert methods[:2] == ["none", preset]
    left_out = {"flow", "released-flow", "tempered-flow"}
    assert sorted(methods) == sorted(set(JOB_METHODS) - left_out)
    assert METHODS.keys() < JOB_METHODS.keys()


def test_by_default_all_of_these_are_compared(encoder, classes):
    found = compare_job(encoder, classes, jobs=1)
    assert list(found.entries) == default_methods("classes")
    assert found.entries["soft-standardization"].label == "soft standardization"


def test_seeds_are_averaged(encoder, classes):
    found = compare_job(encoder, classes, methods=["flow"], seeds=2, jobs=1)
    vectors, _ = job_vectors(encoder, classes)
    rows = vectors["document"]
    values = []
    for seed in range(2):
        flow = METHODS["flow"].build(rows.shape[1], seed).fit(rows, progress=False)
        values.append(estimates(classes.judge({"document": flow.transform(rows)}))["cosine"].value)
    entry = found.entries["flow"]
    assert entry.overall("cosine").value == pytest.approx(np.mean(values), abs=1e-6)
    assert entry.estimates["cosine"]["classes"].deviation == pytest.approx(np.std(values), abs=1e-6)


def test_differences_are_paired_and_corrected_for_their_number(encoder, classes):
    methods = ["none", "standardization", "whitening"]
    found = compare_job(encoder, classes, methods=methods, jobs=1)
    base = found.entries["none"].overall("square")
    expected = holm(
        {name: found.entries[name].overall("square").above(base) for name in methods[1:]}
    )
    assert found.against("none", "square") == expected
    best = found.best["square"]
    assert best == max(methods, key=lambda name: found.entries[name].overall("square").value)


def test_a_difference_that_chance_explains_is_said_to_be_unclear(encoder, classes):
    class Same(Fake):
        def judge(self, vectors):
            return Judgement(items=60, measures={"constant": mean_of(np.ones(60))})

    found = compare_job(encoder, Same(classes.sides), methods=["none", "whitening"], jobs=1)
    notes = comparison_page("tiny", found).notes
    assert "cannot be told from none (the highest): whitening +0.00" in notes
    assert not any("beyond chance" in note for note in notes)


def test_a_given_corpus_is_fitted_on_instead(encoder, search, tiny_sentences):
    corpus, queries = tiny_sentences[150:250], tiny_sentences[250:300]
    alone = compare_job(encoder, search, methods=["whitening"], corpus=corpus, jobs=1)
    # Without queries to fit on there is nothing for a second side.
    assert list(alone.entries) == ["whitening"]
    assert alone.fitted_on == {"fit": "corpus", "sentences": {"document": 100}}
    fitted = Whitening(shrinkage=0.0).fit(encoder.encode(corpus))
    vectors, _ = job_vectors(encoder, search)
    mapped = {role: fitted.transform(rows) for role, rows in vectors.items()}
    value = estimates(search.judge(mapped))["cosine"].value
    assert alone.entries["whitening"].overall("cosine").value == pytest.approx(value, abs=1e-4)
    both = compare_job(
        encoder, search, methods=["whitening"], corpus=corpus, queries=queries, jobs=1
    )
    assert list(both.entries) == ["two-sided whitening", "whitening"]
    assert both.fitted_on["sentences"] == {"document": 100, "query": 50}


def test_every_sentence_is_encoded_once(encoder, search, encoded, untried):
    compare_job(encoder, search, methods=["none", "standardization", "whitening"], jobs=1)
    distinct = {*search.sides["query"]}, {*search.sides["document"]}
    assert len(encoded) == sum(map(len, distinct))


def test_work_and_results_pass_between_processes(encoder, search, monkeypatch):
    alone = compare_job(encoder, search, methods=["none", "whitening"], jobs=1)
    used: list[int | None] = []

    def passed(thing: Any) -> Any:
        return pickle.loads(pickle.dumps(thing))

    def run_all(works, jobs):
        used.append(jobs)
        yield from ((number, passed(passed(work)())) for number, work in enumerate(works))

    monkeypatch.setattr("bertflow.evaluation.jobs.run_all", run_all)
    others = compare_job(encoder, search, methods=["none", "whitening"])
    for name, entry in alone.entries.items():
        assert entry.estimates == others.entries[name].estimates
    # Copies of many vectors would fill the memory.
    monkeypatch.setattr("bertflow.evaluation.jobs.LARGE", 16 * 4 * 129)
    compare_job(encoder, search, methods=["none"])
    assert used == [None, 1]


def test_a_comparison_is_json_and_a_page(encoder, search):
    found = compare_job(encoder, search, methods=["none", "whitening"], main="square", jobs=1)
    got = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(got["entries"]["none"]["overall"]) == ["square", "cosine"]
    assert got["facts"]["none"].keys() == {"highest"}
    assert got["tasks"]["search"]["counts"] == {"queries": 40, "documents": 90}
    assert "square, against none" in got["entries"]["two-sided whitening"]["differences"]
    page = comparison_page("tiny", found).text()
    assert "job        search, 40 queries, 90 documents of mine\n" in page
    assert "fitted on  130 sentences of the job itself\n" in page
    assert "search: square × 100\n" in page
    assert "search: not scored: 2 without a document" in page
    for text in (repr(found), found._repr_html_()):
        assert "2 calibrators on" in text
        assert "two-sided whitening" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["whitenin"]}, "unknown method 'whitenin'.*did you mean whitening"),
        ({"methods": []}, "give at least one method"),
        ({"methods": ["none"], "main": "cosin"}, "unknown measure 'cosin'.*did you mean cosine"),
        ({"queries": ["a cat"]}, "queries do not go with mine"),
        ({"seeds": 0}, "seeds"),
        ({"methods": ["whitening"], "corpus": ["a cat"]}, "minimum of 2"),
    ],
)
def test_what_cannot_be_compared_is_refused(encoder, classes, arguments, message):
    with pytest.raises(InputError, match=message):
        compare_job(encoder, classes, jobs=1, **arguments)


def test_a_calibrated_model_is_refused(encoder, classes, tiny_sentences):
    model = calibrate(encoder, tiny_sentences, "standardization")
    with pytest.raises(InputError, match="give the encoder that it was fitted on"):
        compare_job(model, classes)
