"""What a result depends on, what it is measured on, and how it is kept on disk."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bertflow.calibrators import AllButTheTop, Flow, Standardization
from bertflow.data import read_sentences, read_task
from bertflow.errors import InputError, MissingDataError
from bertflow.finetuning import Recipe
from bertflow.io.result_store import key_of
from bertflow.paper import plan
from bertflow.paper.declared import SCORE_TABLES
from bertflow.paper.plan import (
    Encoding,
    Fitting,
    Material,
    Planner,
    Score,
    Subject,
    Tuning,
    Words,
    digest_of,
    spread,
)
from task_files import write_tasks

SUBJECT = Subject(name="/a/b", label="b", digest="0" * 64, max_length=32)
TUNING = Tuning(
    subject=SUBJECT,
    pooling="mean",
    sets=["snli"],
    corpus="c" * 64,
    arguments={"epochs": 1.0, "learning_rate": 2e-5},
    seed=0,
)
ENCODING = Encoding(subject=SUBJECT, pooling="mean")
FITTING = Fitting(calibrator=Flow(random_state=0), corpus="stsb", corpus_digest="d" * 64)
SCORE = Score(encoding=ENCODING, fitting=FITTING, task="stsb", split="test", pairs="e" * 64)
WORDS = Words(subject=SUBJECT, ranges=[[0, 100]], neighbours=[3], frequencies="wordfreq 3.1")


def fitted(**changes) -> Score:
    return replace(SCORE, fitting=replace(FITTING, **changes))


def encoded(**changes) -> Score:
    return replace(SCORE, encoding=replace(ENCODING, **changes))


def tuned(**changes) -> Score:
    return encoded(tuning=replace(TUNING, **changes))


# Keys.


@pytest.mark.parametrize("job", [SCORE, TUNING, WORDS, tuned()], ids=["flow", "nli", "words", "on"])
@pytest.mark.parametrize(
    "changes",
    [
        {"name": "/elsewhere/c"},
        {"label": "another name"},
        {"size": "base"},
        {"revision": "main"},
        {"words": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_neither_name_nor_place_is_part_of_a_key(job, changes):
    other = replace(SUBJECT, **changes)
    if isinstance(job, Score):
        tuning = job.encoding.tuning and replace(job.encoding.tuning, subject=other)
        moved = replace(job, encoding=replace(job.encoding, subject=other, tuning=tuning))
    else:
        moved = replace(job, subject=other)
    assert moved.key == job.key


def test_the_device_is_not_part_of_a_key():
    assert fitted(calibrator=Flow(random_state=0, device="cpu")).key == SCORE.key
    assert fitted(calibrator=Flow(random_state=0, device="cuda")).fit == SCORE.fit


OTHERS = {
    "weights": encoded(subject=replace(SUBJECT, digest="1" * 64)),
    "max_length": encoded(subject=replace(SUBJECT, max_length=31)),
    "pooling": encoded(pooling="cls"),
    "fine-tuning": tuned(),
    "its seed": tuned(seed=1),
    "its epochs": tuned(arguments={"epochs": 0.5, "learning_rate": 2e-5}),
    "its pairs": tuned(corpus="f" * 64),
    "its pooling": tuned(pooling="cls"),
    "its sets": tuned(sets=["snli", "mnli"]),
    "no calibrator": replace(SCORE, fitting=None),
    "seed": fitted(calibrator=Flow(random_state=1)),
    "argument": fitted(calibrator=Flow(random_state=0, levels=1)),
    "calibrator": fitted(calibrator=Standardization()),
    "components": fitted(calibrator=AllButTheTop(3)),
    "other components": fitted(calibrator=AllButTheTop(4)),
    "chosen components": fitted(calibrator=AllButTheTop(3), dev="a" * 64),
    "dev pairs": fitted(calibrator=AllButTheTop(3), dev="b" * 64),
    "corpus": fitted(corpus_digest="9" * 64),
    "pairs": replace(SCORE, pairs="8" * 64),
    "task": replace(SCORE, task="sick-r"),
    "split": replace(SCORE, split="dev"),
}


def test_all_that_a_score_depends_on_changes_its_key():
    keys = {"as it is": SCORE.key} | {name: job.key for name, job in OTHERS.items()}
    twice = {key for key, count in Counter(keys.values()).items() if count > 1}
    assert [name for name, key in keys.items() if key in twice] == []
    assert all(len(key) == 20 and set(key) <= set("0123456789abcdef") for key in keys.values())


def test_a_changed_default_of_a_calibrator_changes_the_key(monkeypatch):
    key = fitted(calibrator=Flow(random_state=0)).key
    defaults = {**Flow.__init__.__kwdefaults__, "epochs": 17.0}
    monkeypatch.setattr(Flow.__init__, "__kwdefaults__", defaults)
    assert Flow().get_params()["epochs"] == 17.0
    assert fitted(calibrator=Flow(random_state=0)).key != key


def test_a_component_count_that_is_chosen_is_not_part_of_the_key():
    chosen = [fitted(calibrator=AllButTheTop(k), dev="a" * 64).key for k in (1, 5)]
    assert chosen[0] == chosen[1]
    standardized = AllButTheTop(1, standardize=True)
    assert fitted(calibrator=standardized, dev="a" * 64).key != chosen[0]


def test_the_name_of_a_corpus_is_not_part_of_the_key_but_its_content_is():
    assert fitted(corpus="nli").key == SCORE.key


def test_scores_of_one_fit_share_a_unit_and_poolings_of_one_encoder_its_weights():
    assert replace(SCORE, task="sick-r", pairs="7" * 64).fit == SCORE.fit
    assert OTHERS["corpus"].fit != SCORE.fit
    assert OTHERS["pooling"].fit != SCORE.fit
    assert OTHERS["pooling"].encoding.weights == ENCODING.weights
    assert OTHERS["pooling"].encoding.key != ENCODING.key
    for name in ("weights", "max_length", "fine-tuning"):
        assert OTHERS[name].encoding.weights != ENCODING.weights, name


@pytest.mark.parametrize(
    "changes",
    [
        {"ranges": [[0, 50]]},
        {"neighbours": [3, 5]},
        {"frequencies": "wordfreq 3.2"},
        {"subject": replace(SUBJECT, digest="1" * 64)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_all_that_word_statistics_depend_on_changes_their_key(changes):
    assert replace(WORDS, **changes).key != WORDS.key


def test_word_embeddings_do_not_depend_on_the_length_of_sentences():
    assert replace(WORDS, subject=replace(SUBJECT, max_length=9, pooling="cls")).key == WORDS.key


def test_a_recipe_is_json_and_its_key_the_same_in_any_order():
    for job in (SCORE, TUNING, WORDS, *OTHERS.values()):
        assert json.loads(json.dumps(job.recipe(), allow_nan=False)) == job.recipe()
        assert key_of(dict(reversed(job.recipe().items()))) == job.key


# What is planned: the keys that the options and the data come to.


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("jobs"), "stsb", "snli", "sts15", "sts12")


def keys(data: Path, table: str, limit: int | None = None, **options) -> dict[str, list[str]]:
    """By row, the keys of its jobs on STS-B."""
    planner = Planner(Material(data, limit), **{"seeds": 1, **options})
    plan = planner.plan(SCORE_TABLES[table], SUBJECT)
    return {row: [job.key for job in cell.jobs] for (row, _), cell in plan.cells.items()}


def test_more_seeds_keep_the_keys_of_the_first(data):
    few, many = keys(data, "table5", seeds=2), keys(data, "table5", seeds=3)
    assert few["flow target"] == many["flow target"][:2]
    assert len(set(many["flow target"])) == 3
    assert {name: one for name, one in few.items() if name != "flow target"} == {
        name: one for name, one in many.items() if name != "flow target"
    }


@pytest.mark.parametrize("flow", ["released", "tempered"])
def test_another_flow_changes_the_flow_rows_alone(data, flow):
    before, after = keys(data, "table5"), keys(data, "table5", flow=flow)
    assert [row for row in before if before[row] != after[row]] == ["flow target"]


def test_checkpoints_change_no_key_and_other_arguments_of_a_fine_tuning_do(data):
    before = keys(data, "table8")
    assert keys(data, "table8", finetuning=Recipe(checkpoint_steps=7)) == before
    for changes in ({"epochs": 0.5}, {"batch_size": 8}, {"warmup": 0.0}):
        after = keys(data, "table8", finetuning=Recipe(**changes))
        assert not {key for one in before.values() for key in one} & {
            key for one in after.values() for key in one
        }


def test_a_precision_is_part_of_a_fine_tuning_unless_it_is_the_device_s(data):
    before = keys(data, "table8")
    assert keys(data, "table8", finetuning=Recipe(precision="auto")) == before
    named = [
        keys(data, "table8", finetuning=Recipe(**{"precision": one})) for one in ("bf16", "float32")
    ]
    for one, other in ((before, named[0]), (before, named[1]), named):
        assert all(set(one[row]).isdisjoint(other[row]) for row in before)


def test_fewer_pairs_are_other_jobs(data):
    before, after = keys(data, "table5"), keys(data, "table5", limit=5)
    assert all(set(before[row]).isdisjoint(after[row]) for row in before)


@pytest.mark.parametrize(
    ("table", "nli"), [("table2", []), ("table3", ["nli", "nli last2avg", "nli flow target"])]
)
def test_flows_on_nli_are_those_of_appendix_b(data, table, nli):
    planner = Planner(Material(data), seeds=1)
    cells = planner.plan(SCORE_TABLES[table], SUBJECT).cells
    start = "nli " if table == "table3" else ""
    on_nli = cells[f"{start}flow nli", "stsb"].jobs[0].fitting
    target = cells[f"{start}flow target", "stsb"].jobs[0].fitting
    arguments = on_nli.calibrator.get_params()
    assert (arguments["epochs"], arguments["learning_rate"]) == (0.15, 2e-5)
    arguments = target.calibrator.get_params()
    assert (arguments["epochs"], arguments["learning_rate"]) == (1.0, 1e-3)
    assert on_nli.corpus_digest == digest_of(read_sentences("snli", data))
    assert target.corpus_digest == digest_of(read_sentences("stsb", data))
    tunings = [cells[row, "stsb"].jobs[0].encoding.tuning for row in nli]
    assert len({one.key for one in tunings}) == (1 if nli else 0)
    assert all(one.pooling == "mean" and one.sets == ["snli"] for one in tunings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": 1.5}, "seeds must be"),
        ({"flow": "nice"}, "flow must be one of"),
    ],
)
def test_options_out_of_their_range_are_refused(data, options, message):
    with pytest.raises(InputError, match=message):
        Planner(Material(data), **options)


# Material.


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(10, 3, [0, 4, 9]), (5, 5, [0, 1, 2, 3, 4]), (3, 9, [0, 1, 2]), (7, 1, [0])],
)
def test_a_part_is_evenly_spread(total, count, expected):
    assert list(spread(total, count)) == expected


def test_a_limit_takes_pairs_that_are_evenly_spread_with_their_subsets(data):
    whole, part = read_task("sts12", data), Material(data, 9).pairs("sts12")
    places = [(len(whole) - 1) * n // 8 for n in range(9)]
    for name in ("first", "second", "gold", "subset"):
        assert list(getattr(part, name)) == [getattr(whole, name)[n] for n in places]
    assert (part.task, part.split, part.source) == (whole.task, whole.split, whole.source)
    assert set(part.subset) == set(whole.subset)


def test_a_limit_takes_sentences_that_are_evenly_spread(data):
    whole = read_sentences("stsb", data)
    places = [(len(whole) - 1) * n // 9 for n in range(10)]
    assert Material(data, 5).corpus("stsb") == [whole[n] for n in places]
    part = Material(data, 5).pairs("stsb", "train")
    assert len(part) == 5
    assert {part.first[0], part.second[0]} <= set(whole)


@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_limit_above_what_is_there_takes_all(data, limit):
    material = Material(data, limit)
    assert material.pairs("stsb") == read_task("stsb", data)
    assert material.corpus("stsb") == read_sentences("stsb", data)


def test_digests_tell_content_apart_and_nothing_else(data, tmp_path):
    copy = write_tasks(tmp_path / "moved", "stsb", "sts15")
    material, moved = Material(data), Material(copy)
    for name in ("stsb", "sts15"):
        assert material.pairs_digest(name) == moved.pairs_digest(name)
        assert material.corpus_digest(name) == moved.corpus_digest(name)
    assert material.pairs_digest("stsb", "dev") != material.pairs_digest("stsb", "test")


@pytest.mark.parametrize("column", [4, 5, 6], ids=["gold", "first", "second"])
def test_a_changed_pair_changes_its_splits_digest(tmp_path, column):
    data = write_tasks(tmp_path, "stsb")
    splits = "dev", "test"
    before = [Material(data).pairs_digest("stsb", split) for split in splits]
    corpus = Material(data).corpus_digest("stsb")
    path = data / "senteval/STS/STSBenchmark/sts-test.csv"
    lines = path.read_text().splitlines()
    cells = lines[3].split("\t")
    cells[column] = "2.5" if column == 4 else f"{cells[column]} again"
    path.write_text("\n".join([*lines[:3], "\t".join(cells), *lines[4:], ""]))
    after = [Material(data).pairs_digest("stsb", split) for split in splits]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
    # The labels are not part of the text.
    assert (Material(data).corpus_digest("stsb") == corpus) == (column == 4)


def test_the_digest_of_texts_knows_where_one_ends():
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert digest_of(["a", "b"]) != digest_of(["b", "a"])
    assert digest_of([]) != digest_of([""])


def test_data_are_read_once_and_their_lack_is_remembered(data, monkeypatch):
    asked = []

    def counting(name, *arguments):
        asked.append(name)
        return read_task(name, *arguments)

    monkeypatch.setattr(plan, "read_task", counting)
    material = Material(data)
    for _ in range(2):
        material.pairs_digest("stsb")
        material.pairs("stsb")
        with pytest.raises(MissingDataError, match="sick-r"):
            material.pairs("sick-r")
        with pytest.raises(MissingDataError, match="sick-r"):
            material.corpus("sick-r")
    assert asked == ["stsb", "sick-r"]


def test_nli_is_what_is_there_of_it(data, tmp_path):
    only = Material(data)
    assert only.corpus("nli") == read_sentences("snli", data)
    both = write_tasks(tmp_path / "both", "snli")
    lines = (both / "nli/snli_dev.jsonl").read_text().splitlines()[:4]
    (both / "nli/mnli_train.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    material = Material(both)
    found = material.corpus("nli")
    sizes = {name: len(texts) for name, texts in material.nli().items()}
    assert sizes == {"snli": len(only.corpus("nli")), "mnli": 8}
    assert list(only.nli()) == ["snli"]
    part = Material(both, 3)
    assert len(part.corpus("nli")) == sum(map(len, part.nli().values())) == 12
    assert found == [*read_sentences("snli", both), *read_sentences("mnli", both)]
    assert len(found) == len(only.corpus("nli")) + 8
    (both / "nli/snli_dev.jsonl").unlink()
    assert Material(both).corpus("nli") == read_sentences("mnli", both)
    with pytest.raises(MissingDataError, match="no data for snli"):
        Material(write_tasks(tmp_path / "none", "stsb")).corpus("nli")
