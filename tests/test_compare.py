"""Comparisons: every method by hand, each sentence once, and differences that mean it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from types import NoneType

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from bertflow.calibrators import AllButTheTop, Flow, Standardization, Whitening, save_calibrator
from bertflow.data import Pairs, read_sentences, read_task
from bertflow.encoders import SentenceCache, load_encoder
from bertflow.errors import InputError, MissingDataError
from bertflow.evaluation import (
    METHODS,
    Comparison,
    Difference,
    Estimate,
    compare,
    evaluate,
    experiment,
    figures,
    holm,
    paired_cosine,
    score_pairs,
)
from bertflow.evaluation.experiment import run_trial
from bertflow.evaluation.scores import counted
from conftest import of_probe
from task_files import graded_rows, write_tasks

WIDTH = 16
TASKS = ("sts12", "sts15", "stsb", "sick-r", "qnli")
LINEAR = ("none", "standardization", "all-but-the-top", "whitening")
FLOWS = {"flow": Flow, "released-flow": Flow.released, "tempered-flow": Flow.tempered}


@cache
def vector(text: str) -> np.ndarray:
    """The mean of the words' vectors beside a direction that all share, as raw encoders have it."""
    words = [np.random.default_rng([*word.encode()]).normal(size=WIDTH) for word in text.split()]
    return (np.mean(words, axis=0) * np.linspace(3, 0.3, WIDTH) + 2).astype(np.float32)


def vectors(texts) -> np.ndarray:
    return np.stack([vector(text) for text in texts])


class Stub:
    """Stands for an encoder's encode: vectors that depend on nothing but the text."""

    def __init__(self):
        self.heard: list[str] = []

    def __call__(self, sentences, **keywords):
        self.heard += [text for text in sentences if not of_probe(text)]
        return vectors(sentences)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.encode = Stub()
    return encoder


@pytest.fixture(autouse=True, scope="module")
def no_data_but_what_is_written():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BERTFLOW_DATA", raising=False)
        patch.setattr("bertflow.data.sources.hub_answers", lambda: False)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"), *TASKS, "snli")


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    """What is reported while everything is compared."""
    return []


@pytest.fixture(scope="module")
def everything(encoder, folder, told) -> Comparison:
    """All methods on five tasks."""
    encoder.encode.heard.clear()
    return compare(
        encoder, TASKS, data=folder, seeds=2, jobs=1, progress=lambda *at: told.append(at)
    )


@pytest.fixture(scope="module")
def heard(encoder, everything) -> list[str]:
    """The sentences that were encoded for that."""
    return list(encoder.encode.heard)


def own_pairs(count: int = 40, seed: int = 77, **changes) -> Pairs:
    first, second, gold = zip(*graded_rows(count, seed), strict=True)
    pairs = Pairs("pairs", "mine", first, second, [float(grade) for grade in gold], "mine.csv")
    return replace(pairs, **changes)


def cosines(pairs: Pairs, transform=lambda x: x) -> np.ndarray:
    """Of all pairs, through a map of vectors."""
    return paired_cosine(transform(vectors(pairs.first)), transform(vectors(pairs.second)))


def grades(pairs: Pairs) -> np.ndarray:
    return np.array([np.nan if grade is None else grade for grade in pairs.gold])


def by_hand(pairs: Pairs, transform=lambda x: x) -> dict[str, float]:
    """wmean and all, or of qnli the area."""
    found, gold = cosines(pairs, transform), grades(pairs)
    used = ~np.isnan(gold)
    if pairs.binary:
        return dict.fromkeys(("wmean", "all"), roc_auc_score(gold[used], found[used]))
    names = np.array(pairs.subset or [""] * len(pairs))
    parts = {name: used & (names == name) for name in dict.fromkeys(names)}
    values = [spearmanr(found[rows], gold[rows]).statistic for rows in parts.values()]
    return {
        "wmean": np.average(values, weights=[rows.sum() for rows in parts.values()]),
        "all": spearmanr(found[used], gold[used]).statistic,
    }


def strict_json(result: Comparison) -> dict:
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


# What is compared.


def test_every_method_is_there_in_its_order(everything):
    assert list(everything.entries) == list(METHODS)
    for name, entry in everything.entries.items():
        assert entry.method == name
        assert list(entry.estimates) == ["wmean", "all"]
        for tasks in entry.estimates.values():
            assert list(tasks) == list(TASKS)
            for one in tasks.values():
                assert -1 <= one.low <= one.value <= one.high <= 1
    labels = [entry.label for entry in everything.entries.values()]
    assert len(set(labels)) == len(METHODS)
    # Vectors of 16 dimensions are halved.
    assert all(
        "8" in everything.entries[name].label for name in ("whitening-dim", "soft-whitening")
    )
    assert not any("{" in label for label in labels)


def test_each_distinct_sentence_is_encoded_once(everything, heard, folder):
    assert set(Counter(heard).values()) == {1}
    assert set(heard) == {text for task in TASKS for text in read_sentences(task, folder)}
    assert everything.sentences == len(heard)


def test_the_real_encoder_is_asked_once_too(tiny_bert, folder):
    encoder = load_encoder(tiny_bert, device="cpu")
    asked, encode = [], encoder.encode

    def spy(sentences, **keywords):
        asked.extend(text for text in sentences if not of_probe(text))
        return encode(sentences, **keywords)

    encoder.encode = spy
    result = compare(encoder, ("sts12", "stsb"), data=folder, methods=LINEAR, jobs=1)
    assert set(Counter(asked).values()) == {1}
    assert result.sentences == len(asked)
    assert result.encoder["layers"] == [1, 3]
    expected = evaluate(encoder, "sts12", data=folder)
    got = result.entries["none"].estimates["wmean"]["sts12"]
    assert got.value == pytest.approx(expected.wmean.value, abs=0.02)


def test_progress_reaches_its_end_in_every_stage(told, everything):
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["encode", "fit", "score"]
    # Eight methods without a seed and three with two, on each task.
    expected = {"encode": everything.sentences, "fit": (8 + 2 * 3) * 5, "score": 5}
    for stage, count in expected.items():
        steps = [at[1:] for at in told if at[0] == stage]
        assert steps[-1] == (count, count)
        assert steps == sorted(steps)


def test_none_has_the_scores_that_evaluate_gives(everything, encoder, folder):
    for task in TASKS:
        score = evaluate(encoder, task, data=folder)
        for name in ("wmean", "all"):
            assert everything.entries["none"].estimates[name][task] == score.main(name)
        described = everything.tasks[task]
        assert described["scored"] == score.scored
        assert (described["split"], described["measure"]) == (score.split, score.measure)
        assert (described["pairs"], described["data"]) == (score.pairs, score.data)
        assert described["skipped"]["no gold score"] == score.skipped["no gold score"]
    assert everything.tasks["sts15"]["skipped"]["no gold score"] > 10


# Each method by hand: PCA, scaling and singular vectors as others compute them.


def removal(rows, count: int, *, scale: bool = False):
    """All-but-the-top by numpy."""
    scaler = StandardScaler(with_std=scale).fit(rows)
    _, _, axes = np.linalg.svd(scaler.transform(rows), full_matrices=False)
    top = axes[:count]
    return lambda x: (c := scaler.transform(x.astype(np.float64))) - c @ top.T @ top


def expected_map(method: str, rows):
    rows = rows.astype(np.float64)
    if method == "standardization":
        return StandardScaler().fit(rows).transform
    kept = WIDTH if method == "whitening" else WIDTH // 2
    # Whitening by scikit-learn divides by n − 1, which no cosine sees.
    pca = PCA(kept, whiten=method != "soft-whitening", svd_solver="full").fit(rows)
    if method == "soft-whitening":
        # λ to a power of −0.75 / 2 instead of −1 / 2.
        return lambda x: pca.transform(x) / pca.explained_variance_**0.375
    return pca.transform


@pytest.mark.parametrize(
    "method", ["standardization", "whitening", "whitening-dim", "soft-whitening"]
)
@pytest.mark.parametrize("task", TASKS)
def test_linear_methods_score_as_they_do_by_hand(everything, folder, method, task):
    # Fitted on the text of all splits, repeats kept, also of pairs that were never graded.
    transform = expected_map(method, vectors(read_sentences(task, folder)))
    expected = by_hand(read_task(task, folder), transform)
    for name, value in expected.items():
        got = everything.entries[method].estimates[name][task].value
        assert got == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("method", ["all-but-the-top", "standardization+all-but-the-top"])
@pytest.mark.parametrize(
    ("task", "judge"),
    [
        ("sts12", "stsb"),
        ("sts15", "stsb"),
        ("stsb", "stsb"),
        ("sick-r", "sick-r"),
        ("qnli", "stsb"),
    ],
)
def test_the_number_of_directions_is_the_best_on_a_dev_split(
    everything, folder, method, task, judge
):
    scale = method.startswith("standardization")
    dev = read_task(judge, folder, "dev")
    rows = vectors(read_sentences(judge, folder))
    tried = [by_hand(dev, removal(rows, count, scale=scale))["all"] for count in range(1, WIDTH)]
    best = int(np.argmax(tried)) + 1
    assert everything.entries[method].components[task] == best
    assert everything.dev[task] == f"{judge} dev"
    # And it is removed from the task's own.
    own = vectors(read_sentences(task, folder))
    expected = by_hand(read_task(task, folder), removal(own, best, scale=scale))
    for name, value in expected.items():
        got = everything.entries[method].estimates[name][task].value
        assert got == pytest.approx(value, abs=1e-9)


def test_the_tuning_had_a_choice(everything):
    counts = [
        count
        for method in ("all-but-the-top", "standardization+all-but-the-top")
        for count in everything.entries[method].components.values()
    ]
    assert len(set(counts)) > 1
    assert max(counts) > 1
    for name, entry in everything.entries.items():
        assert (set(entry.components) == set(TASKS)) == METHODS[name].tuned
        assert bool(entry.components) == METHODS[name].tuned


def test_the_test_split_has_no_part_in_the_choice(encoder, folder, tmp_path):
    methods = ("none", "all-but-the-top")
    other = write_tasks(tmp_path, "stsb")
    file = other / "senteval/STS/STSBenchmark/sts-test.csv"
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    scores = [line[4] for line in lines]
    for line, score in zip(lines, scores[::-1], strict=True):
        line[4] = score
    file.write_text("".join("\t".join(line) + "\n" for line in lines))
    one, two = (
        compare(encoder, ("stsb",), data=data, methods=methods, jobs=1) for data in (folder, other)
    )
    assert one.entries["all-but-the-top"].components == two.entries["all-but-the-top"].components
    assert one.entries["none"].estimates != two.entries["none"].estimates


def test_of_equal_counts_the_least_is_chosen(encoder, folder, tmp_path):
    # With equal dev pairs only, every count is undefined alike.
    other = write_tasks(tmp_path, "stsb")
    dev = other / "senteval/STS/STSBenchmark/sts-dev.csv"
    dev.write_text("g\tf\ty\t0\t1\ta cat\ta cat\ng\tf\ty\t1\t2\ta dog\ta dog\n")
    result = compare(encoder, ("stsb",), data=other, methods=("all-but-the-top",), jobs=1)
    assert result.entries["all-but-the-top"].components == {"stsb": 1}


def test_without_a_dev_split_nothing_is_chosen(encoder):
    result = compare(encoder, [own_pairs()], methods=("none", "all-but-the-top"), jobs=1)
    assert result.entries["all-but-the-top"].components == {}
    assert result.dev == {"pairs": None}
    untuned = compare(encoder, [own_pairs()], methods=("none", "whitening"), jobs=1)
    assert untuned.dev == {}


@pytest.mark.parametrize("method", FLOWS)
def test_flows_are_the_mean_over_seeds_by_hand(everything, folder, method):
    entry = everything.entries[method]
    for task in ("sts12", "qnli"):
        rows = vectors(read_sentences(task, folder))
        pairs = read_task(task, folder)
        flows = [FLOWS[method](random_state=seed).fit(rows) for seed in (0, 1)]
        values = [by_hand(pairs, flow.transform) for flow in flows]
        for name in ("wmean", "all"):
            one, other = (value[name] for value in values)
            got = entry.estimates[name][task].value
            assert got == pytest.approx((one + other) / 2, abs=1e-3)
            assert entry.estimates[name][task].deviation == pytest.approx(
                abs(one - other) / 2, abs=1e-3
            )
        # Resamples take the seeds in turn, so that the interval holds both sources of chance.
        stack = np.stack([cosines(pairs, flow.transform) for flow in flows])
        drawn = [found.main("all").replicates for found in figures(pairs, stack)]
        mixed = np.where(np.arange(1000) % 2 == 0, *drawn)
        assert_allclose(entry.estimates["all"][task].replicates, mixed, rtol=0, atol=0.02)


def test_only_methods_with_a_seed_vary_with_it(everything):
    assert everything.seeds == 2
    for name, entry in everything.entries.items():
        spread = [one.deviation for tasks in entry.estimates.values() for one in tasks.values()]
        assert any(spread) == METHODS[name].seeded
        assert min(spread) >= 0


def test_more_seeds_keep_the_first(encoder, folder):
    one, three = (
        compare(encoder, ("stsb",), data=folder, methods=("flow",), seeds=seeds, jobs=1)
        for seeds in (1, 3)
    )
    first, mixed = (
        found.entries["flow"].estimates["all"]["stsb"].replicates for found in (one, three)
    )
    assert_array_equal(mixed[::3], first[::3])
    assert one.entries["flow"].estimates["all"]["stsb"].deviation == 0
    assert three.entries["flow"].estimates["all"]["stsb"].deviation > 0


# What is fitted on.


def test_target_is_each_tasks_own_text(everything, folder):
    assert everything.fitted_on["fit"] == "target"
    counts = {task: len(read_sentences(task, folder)) for task in TASKS}
    assert everything.fitted_on["sentences"] == counts
    # Of 80 pairs both sides, though many were never graded.
    assert counts["sts15"] == 160 > 2 * sum(everything.tasks["sts15"]["scored"].values())


@pytest.mark.parametrize("given", ["nli", "own sentences"])
def test_one_corpus_serves_all_tasks(encoder, folder, given):
    corpus = read_sentences("snli", folder)
    encoder.encode.heard.clear()
    result = compare(
        encoder,
        ("sts12", "sick-r"),
        fit="nli" if given == "nli" else corpus,
        data=folder,
        methods=("whitening", "all-but-the-top", "flow"),
        seeds=1,
        jobs=1,
    )
    assert set(Counter(encoder.encode.heard).values()) == {1}
    kind, sets = ("nli", ["snli"]) if given == "nli" else ("corpus", [])
    assert result.fitted_on == {
        "fit": kind,
        "sets": sets,
        "sentences": {"corpus": len(corpus)},
        "skipped": {},
    }
    rows = vectors(corpus)
    flow = Flow(random_state=0).fit(rows)
    for task, judge in [("sts12", "stsb"), ("sick-r", "sick-r")]:
        pairs, dev = read_task(task, folder), read_task(judge, folder, "dev")
        tried = [by_hand(dev, removal(rows, count))["all"] for count in range(1, WIDTH)]
        best = int(np.argmax(tried)) + 1
        assert result.entries["all-but-the-top"].components[task] == best
        maps = {
            "whitening": expected_map("whitening", rows),
            "all-but-the-top": removal(rows, best),
            "flow": flow.transform,
        }
        for method, transform in maps.items():
            got = result.entries[method].estimates["all"][task].value
            assert got == pytest.approx(by_hand(pairs, transform)["all"], abs=1e-3)


def test_a_fit_that_is_not_there_is_refused_with_its_paths(encoder, tmp_path):
    write_tasks(tmp_path, "stsb")
    with pytest.raises(MissingDataError, match=r"no data for snli.*snli_1\.0"):
        compare(encoder, ("stsb",), fit="nli", data=tmp_path, jobs=1)


# Pairs of one's own.


def test_pairs_of_ones_own_are_fitted_on_and_scored(encoder):
    pairs = own_pairs()
    result = compare(encoder, [pairs], methods=("none", "whitening"), jobs=1)
    assert result.aggregations == ["all"]
    assert list(result.tasks) == ["pairs"]
    assert result.tasks["pairs"]["data"] == "mine.csv"
    assert result.fitted_on["sentences"] == {"pairs": 80}
    assert result.entries["none"].estimates["all"]["pairs"] == score_pairs(encoder, pairs).all
    transform = expected_map("whitening", vectors([*pairs.first, *pairs.second]))
    got = result.entries["whitening"].overall("all")
    assert got.value == pytest.approx(by_hand(pairs, transform)["all"], abs=1e-9)


def test_pairs_of_ones_own_stand_beside_tasks_without_counting(encoder, folder):
    pairs = own_pairs()
    result = compare(encoder, ["stsb", pairs], data=folder, methods=("none",), jobs=1)
    assert set(result.tasks) == {"stsb", "pairs"}
    entry = result.entries["none"]
    assert entry.overall("all") == entry.estimates["all"]["stsb"]
    assert entry.estimates["all"]["pairs"] == score_pairs(encoder, pairs).all


def test_two_classes_of_ones_own_are_scored_by_the_area(encoder):
    pairs = own_pairs()
    labels = [float(grade >= 3) for grade in pairs.gold]
    pairs = replace(pairs, gold=labels, binary=True)
    result = compare(encoder, [pairs], methods=("none", "whitening"), jobs=1)
    assert result.tasks["pairs"]["measure"] == "auc"
    got = result.entries["none"].overall("all").value
    assert got == pytest.approx(roc_auc_score(labels, cosines(pairs)), abs=1e-12)


def test_pairs_that_were_never_graded_are_fitted_on_and_not_scored(encoder):
    pairs = own_pairs()
    gold = [None if number % 4 == 0 else grade for number, grade in enumerate(pairs.gold)]
    result = compare(encoder, [replace(pairs, gold=gold)], methods=("whitening",), jobs=1)
    assert result.tasks["pairs"]["scored"] == {"": 30}
    assert result.tasks["pairs"]["skipped"]["no gold score"] == 10
    transform = expected_map("whitening", vectors([*pairs.first, *pairs.second]))
    expected = by_hand(replace(pairs, gold=gold), transform)["all"]
    assert result.entries["whitening"].overall("all").value == pytest.approx(expected, abs=1e-9)


def test_two_files_of_ones_own_are_refused(encoder):
    both = [own_pairs(30, 1, split="one"), own_pairs(30, 2, split="two")]
    with pytest.raises(InputError, match="pairs is there twice"):
        compare(encoder, both, methods=("none",), jobs=1)


# Vectors that have no cosine.


def speaking(encoder, monkeypatch, changed: dict[str, np.ndarray]):
    """Let the encoder give other vectors for some sentences."""

    def encode(sentences, **keywords):
        return np.stack([changed.get(text, vector(text)) for text in sentences])

    monkeypatch.setattr(encoder, "encode", encode)


def test_a_pair_that_one_method_gives_no_cosine_counts_for_none(encoder, monkeypatch):
    pairs = own_pairs()
    speaking(encoder, monkeypatch, {pairs.first[3]: np.zeros(WIDTH, dtype=np.float32)})
    result = compare(encoder, [pairs], seeds=1, jobs=1)
    assert result.tasks["pairs"]["scored"] == {"": 39}
    assert result.tasks["pairs"]["skipped"]["no cosine in some method"] == 1
    changed = vectors([*pairs.first, *pairs.second])
    changed[3] = 0
    used = np.arange(40) != 3
    transform = expected_map("whitening", changed)
    for method, found in [("none", cosines(pairs)), ("whitening", cosines(pairs, transform))]:
        expected = spearmanr(found[used], grades(pairs)[used]).statistic
        got = result.entries[method].overall("all").value
        assert got == pytest.approx(expected, abs=1e-9)


def test_a_vector_that_is_not_finite_is_refused_by_its_sentence(encoder, monkeypatch):
    pairs = own_pairs()
    speaking(encoder, monkeypatch, {pairs.second[5]: np.full(WIDTH, np.nan, dtype=np.float32)})
    with pytest.raises(InputError, match=re.escape(f"not finite: {pairs.second[5]!r}")):
        compare(encoder, [pairs], methods=("none",), jobs=1)


# What is said of them together.


def test_the_overall_value_is_the_mean_over_sts_tasks(everything):
    sts = [task for task in TASKS if task != "qnli"]
    assert counted(TASKS) == sts
    for entry in everything.entries.values():
        for name in ("wmean", "all"):
            found = entry.overall(name)
            values = [entry.estimates[name][task].value for task in sts]
            assert found.value == pytest.approx(np.mean(values), abs=1e-12)
            drawn = np.mean([entry.estimates[name][task].replicates for task in sts], axis=0)
            expected = tuple(np.nanpercentile(drawn, [2.5, 97.5]))
            assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert counted(["qnli", "pairs"]) == ["qnli", "pairs"]


def test_an_undefined_task_leaves_the_overall_value_undefined(everything):
    entry = everything.entries["whitening"]
    estimates = {**entry.estimates["all"], "stsb": Estimate(None, undefined="why")}
    found = replace(entry, estimates={**entry.estimates, "all": estimates})
    assert found.overall("all") == Estimate(None, undefined="stsb is undefined: why")
    result = replace(everything, entries={**everything.entries, "whitening": found})
    assert result.best["all"] not in (None, "whitening")
    assert result.against("none", "all")["whitening"] == Difference(None)
    assert strict_json(result)["entries"]["whitening"]["overall"]["all"]["value"] is None


def test_the_best_is_the_highest(everything):
    for name in everything.aggregations:
        values = {key: entry.overall(name).value for key, entry in everything.entries.items()}
        assert values[everything.best[name]] == max(values.values())


@pytest.mark.parametrize("reference", ["none", "whitening"])
@pytest.mark.parametrize("aggregation", ["wmean", "all"])
def test_differences_are_paired_and_corrected_for_their_number(everything, reference, aggregation):
    found = everything.against(reference, aggregation)
    assert list(found) == [name for name in METHODS if name != reference]
    base = everything.entries[reference]
    for name, one in found.items():
        entry = everything.entries[name]
        rise = entry.overall(aggregation).value - base.overall(aggregation).value
        assert one.value == pytest.approx(rise, abs=1e-12)
        gain = entry.overall(aggregation).replicates - base.overall(aggregation).replicates
        expected = tuple(np.nanpercentile(gain, [2.5, 97.5]))
        assert (one.low, one.high) == pytest.approx(expected, abs=1e-12)
    plain = {name: replace(one, adjusted=one.p) for name, one in found.items()}
    assert holm(plain) == found
    least = min(found.values(), key=lambda one: one.p)
    assert least.adjusted == pytest.approx(min(1, 10 * least.p))


def test_a_method_that_is_clearly_better_is_told_apart(encoder):
    # Every vector has one entry that is large, the same for near and far sentences.
    pairs = own_pairs(400)
    result = compare(encoder, [pairs], methods=("none", "standardization", "whitening"), jobs=1)
    gains = result.against("none", "all")
    assert result.best["all"] != "none"
    assert gains[result.best["all"]].real
    back = result.against(result.best["all"], "all")["none"]
    assert back.value == -gains[result.best["all"]].value
    assert back.real


def test_equal_methods_are_not_told_apart(everything):
    entries = {"none": everything.entries["none"], "flow": everything.entries["none"]}
    found = replace(everything, entries=entries).against("none", "all")
    assert found == {"flow": Difference(0.0, 0.0, 0.0, 1.0, 1.0)}


# What a comparison carries.


def test_a_comparison_survives_json(everything):
    read = strict_json(everything)
    assert set(read) == {*everything.__dataclass_fields__, "counted"} - {"facts"}  # Those of jobs.
    assert read["counted"] == ["sts12", "sts15", "stsb", "sick-r"]
    for part in ("encoder", "fitted_on", "versions", "time", "sentences", "seconds", "dev"):
        assert read[part]
    assert list(read["entries"]) == list(METHODS)
    for name, entry in read["entries"].items():
        assert list(entry["tasks"]) == ["wmean", "all"]
        for aggregation, tasks in entry["tasks"].items():
            for task, shown in tasks.items():
                one = everything.entries[name].estimates[aggregation][task]
                assert shown["value"] == one.value
                assert shown["interval"] == [one.low, one.high]
                spread = everything.entries[name].estimates[aggregation][task].deviation
                assert shown["seed_deviation"] == spread
            best = everything.best[aggregation]
            references = {"none", best} - {name}
            for reference in references:
                shown = entry["differences"][f"{aggregation}, against {reference}"]
                one = everything.against(reference, aggregation)[name]
                assert shown["value"] == one.value
                assert shown["interval"] == [one.low, one.high]
                assert (shown["p"], shown["p_holm"]) == (one.p, one.adjusted)
                assert shown["real"] == one.real
        assert entry["components"] == everything.entries[name].components


def test_times_are_those_of_fitting(everything):
    entries = everything.entries
    assert (entries["none"].fit_seconds, entries["none"].megabytes) == (0, 0)
    for name, entry in entries.items():
        assert (entry.fit_seconds > 0) == (entry.megabytes > 0) == (name != "none")
    assert 0 < everything.encode_seconds < everything.seconds
    assert sum(entry.fit_seconds for entry in entries.values()) < everything.seconds


def test_megabytes_are_those_of_the_saved_file(encoder, folder, tmp_path):
    result = compare(encoder, ("stsb",), data=folder, methods=("whitening", "flow"), jobs=1)
    fitted = {"whitening": Whitening(), "flow": Flow()}
    rows = vectors(read_sentences("stsb", folder))
    for name, calibrator in fitted.items():
        save_calibrator(calibrator.fit(rows), tmp_path / name)
        saved = load_file(tmp_path / name / "model.safetensors")
        size = sum(tensor.nbytes for tensor in saved.values())
        assert result.entries[name].megabytes == pytest.approx(size / 1e6)


def test_an_absent_task_is_absent_with_the_paths_that_were_tried(encoder, folder):
    result = compare(encoder, ("stsb", "sts13"), data=folder, methods=("none",), jobs=1)
    assert list(result.tasks) == ["stsb"]
    assert list(result.absent) == ["sts13"]
    assert "STS13-en-test/STS.input.FNWN.txt" in result.absent["sts13"]
    assert strict_json(result)["absent"] == result.absent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("none", "Flow")}, "unknown method 'Flow'; expected one of none, adaptive"),
        ({"fit": "test"}, "unknown fit 'test'; expected 'target', 'nli' or sentences"),
        ({"tasks": ("stsb", "sts17")}, "unknown task 'sts17'; expected one of sts12, .*qnli"),
        ({"seeds": 0}, "seeds.*1.*0"),
        ({"seeds": 1.5}, "seeds"),
        ({"tasks": ("sts13", "sts14")}, r"no data for sts13.*STS13-en-test"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_encoding(encoder, folder, changes, message):
    encoder.encode.heard.clear()
    tasks = changes.pop("tasks", ("stsb",))
    with pytest.raises(InputError, match=message):
        compare(encoder, tasks, data=folder, jobs=1, **changes)
    assert encoder.encode.heard == []


def test_no_method_is_refused(encoder):
    with pytest.raises(InputError, match="method"):
        compare(encoder, [own_pairs()], methods=(), jobs=1)


@pytest.mark.nightly
def test_results_do_not_depend_on_the_number_of_processes(encoder, folder, everything, tmp_path):
    cache = SentenceCache(tmp_path)
    shared = compare(encoder, TASKS, data=folder, seeds=2, jobs=2, cache=cache)
    assert len(cache.results.sizes()) == (8 + 2 * 3) * 5  # Each process stores what it has fitted.
    for name, entry in everything.entries.items():
        other = shared.entries[name]
        assert other.components == entry.components
        for aggregation, tasks in entry.estimates.items():
            assert other.estimates[aggregation] == tasks
            for task, one in tasks.items():
                assert_array_equal(other.estimates[aggregation][task].replicates, one.replicates)


# Going on.


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """Methods that are fitted from here on."""
    done: list[str] = []

    names = {
        NoneType: "none",
        AllButTheTop: "all-but-the-top",
        Flow: "tempered-flow",
        Standardization: "standardization",
        Whitening: "whitening",
    }

    def trial(vectors, one):
        done.append(names[type(one.calibrator)])
        return run_trial(vectors, one)

    monkeypatch.setattr(experiment, "run_trial", trial)
    return done


def timeless(result: Comparison) -> dict:
    """A comparison as JSON, without what tells the time."""

    def cut(one):
        if isinstance(one, dict):
            return {k: cut(v) for k, v in one.items() if "seconds" not in k and k != "time"}
        return one

    return cut(strict_json(result))


AGAIN = {"tasks": ["stsb", "sick-r"], "methods": ["none", "all-but-the-top", "whitening"]}


def test_a_stopped_comparison_goes_on_to_the_same_bits(encoder, folder, tmp_path, ran):
    def stop(name, done, total):
        if (name, done) == ("fit", 1):
            raise KeyboardInterrupt

    whole = compare(encoder, data=folder, jobs=1, **AGAIN)
    all_of_it = list(ran)
    assert Counter(ran) == {name: 2 for name in AGAIN["methods"]}  # Each task has its own corpus.
    ran.clear()
    cache = SentenceCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        compare(encoder, data=folder, jobs=1, cache=cache, progress=stop, **AGAIN)
    assert ran == all_of_it[:1]
    told = []
    result = compare(
        encoder, data=folder, jobs=1, cache=cache, progress=lambda *at: told.append(at), **AGAIN
    )
    assert ran == all_of_it
    assert timeless(result) == timeless(whole)
    for name, entry in result.entries.items():
        for aggregation, tasks in entry.estimates.items():
            for task, one in tasks.items():
                other = whole.entries[name].estimates[aggregation][task]
                assert_array_equal(one.replicates, other.replicates)
    assert [at for at in told if at[0] == "fit"][-1] == ("fit", 6, 6)
    assert [at for at in told if at[0] == "score"][-1] == ("score", 2, 2)
    third = compare(encoder, data=folder, jobs=1, cache=SentenceCache(tmp_path), **AGAIN)
    assert ran == all_of_it
    assert timeless(third) == timeless(whole)
    # Times are those of the fits that there were.
    for name, entry in third.entries.items():
        assert entry.fit_seconds == result.entries[name].fit_seconds


def test_only_fits_that_are_new_are_done(encoder, folder, tmp_path, ran):
    def compared(**changes):
        ran.clear()
        arguments = {"methods": ["whitening"], "fit": ["a dog", "a cat", "two cats"], "seeds": 1}
        arguments |= {"tasks": ["stsb"], **changes}
        compare(encoder, data=folder, jobs=1, cache=SentenceCache(tmp_path), **arguments)
        return list(ran)

    assert compared() == ["whitening"]
    assert compared() == []
    assert compared(methods=["whitening", "standardization"]) == ["standardization"]
    assert compared(fit=["a dog", "a cat", "two cats", "a cat"]) == ["whitening"]
    assert compared(fit=["a dog", "two cats", "a cat"]) == ["whitening"]
    assert compared(methods=["tempered-flow"]) == ["tempered-flow"]
    assert compared(methods=["tempered-flow"], seeds=2) == ["tempered-flow"]
    assert compared(tasks=["sick-r", "stsb"]) == ["whitening"]
    # A corpus of each task's own does not hang on which others there are.
    assert compared(fit="target") == ["whitening"]
    assert compared(fit="target", tasks=["sick-r", "stsb"]) == ["whitening"]


def test_other_code_or_versions_do_it_anew(encoder, folder, tmp_path, ran, monkeypatch):
    def compared():
        ran.clear()
        cache = SentenceCache(tmp_path)
        compare(encoder, ["stsb"], data=folder, jobs=1, cache=cache, methods=["whitening"])
        return len(ran)

    assert compared() == 1
    monkeypatch.setattr("bertflow.__version__", "7.0")
    assert compared() == 1
    monkeypatch.setattr(experiment, "_code", lambda: "other")
    assert compared() == 1
    assert compared() == 0


def test_a_damaged_result_is_done_anew(encoder, folder, tmp_path, ran):
    cache = SentenceCache(tmp_path)
    arguments = {"data": folder, "jobs": 1, "cache": cache, "methods": ["whitening"]}
    first = compare(encoder, ["stsb"], **arguments)
    for path in cache.results.folder.iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    assert timeless(compare(encoder, ["stsb"], **arguments)) == timeless(first)
    assert ran == ["whitening"] * 2
    assert timeless(compare(encoder, ["stsb"], **arguments)) == timeless(first)
    assert ran == ["whitening"] * 2


def test_where_results_cannot_be_kept_it_is_said_once(
    encoder, folder, tmp_path, caplog, monkeypatch
):
    def full(self, data):
        raise OSError(28, "No space left on device")

    cache = SentenceCache(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", full)
        compare(encoder, data=folder, jobs=1, cache=cache, **AGAIN)
    [record] = caplog.records
    assert "No space left on device" in record.getMessage()
    assert cache.results.sizes() == {}
