"""Collections are read whole or refused by line; search is exact; measures are trec_eval's."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.data import read_collection
from bertflow.errors import InputError
from bertflow.evaluation import exact_search, read_retrieval
from bertflow.evaluation import retrieval as module
from bertflow.evaluation.jobs import estimates
from bertflow.evaluation.retrieval import ranking_measures

DOCUMENTS = [
    {"_id": "d1", "title": "Cats", "text": "They purr."},
    {"_id": "d2", "title": "", "text": " Dogs bark. "},
    {"_id": "d3", "text": "Ünïcode\u2028 swims."},
]
QUERIES = [{"_id": "q1", "text": "What purrs?"}, {"_id": "q2", "text": "What barks?"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq2\td2\t1\nq2\td3\t0\n"


@pytest.fixture
def collection(tmp_path):
    """Write a collection; a text stands for a file as it is."""

    def write(corpus=DOCUMENTS, queries=QUERIES, **qrels):
        for name, rows in (("corpus", corpus), ("queries", queries)):
            text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
            (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="")
        (tmp_path / "qrels").mkdir(exist_ok=True)
        for split, text in (qrels or {"test": QRELS}).items():
            (tmp_path / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8", newline="")
        return tmp_path

    return write


def test_a_document_is_its_title_and_text_and_grades_above_0_are_relevant(collection):
    found = read_collection(collection())
    assert found.documents == ["Cats They purr.", "Dogs bark.", "Ünïcode\u2028 swims."]
    assert found.queries == ["What purrs?", "What barks?"]
    assert found.relevant == [{0: 2.0}, {1: 1.0}]
    assert found.skipped == {}


@pytest.mark.parametrize(
    "qrels",
    [
        QRELS.replace("\n", "\r\n"),
        "\ufeff" + QRELS,
        QRELS.partition("\n")[2],
        "q1 0 d1 2\nq2 Q0 d2 1\n\nq2\t0\td3\t-1",
    ],
    ids=["CRLF", "byte-order mark", "no header", "TREC"],
)
def test_every_form_of_qrels_says_the_same(collection, qrels):
    assert read_collection(collection(test=qrels)).relevant == [{0: 2.0}, {1: 1.0}]


def test_numbers_may_be_ids(collection):
    corpus = [{"_id": 1, "text": "a"}, {"_id": "2", "text": "b"}]
    found = read_collection(collection(corpus, [{"_id": 7, "text": "q"}], test="7\t2\t1\n"))
    assert found.relevant == [{1: 1.0}]


def test_files_may_be_packed_and_qrels_lie_beside(collection):
    folder = collection()
    for name in ("corpus.jsonl", "qrels/test.tsv"):
        packed = folder / f"{name.replace('/test', '')}.gz"
        packed.write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read_collection(folder).relevant == [{0: 2.0}, {1: 1.0}]


def test_test_is_taken_before_others_and_several_others_are_named(collection):
    folder = collection(train="q1\td2\t1", dev="q1\td3\t1", test=QRELS)
    assert read_collection(folder).source.endswith("test.tsv")
    assert read_collection(folder, split="dev").relevant == [{2: 1.0}]
    (folder / "qrels/test.tsv").unlink()
    with pytest.raises(InputError, match=r"several qrels \('dev', 'train'\).*split='dev'"):
        read_collection(folder)
    with pytest.raises(InputError, match=r"unknown split .* 'test'; expected one of dev, train"):
        read_collection(folder, split="test")


def test_what_counts_for_nothing_is_counted_by_reason(collection):
    found = read_collection(
        collection(
            [*DOCUMENTS, {"_id": "d4", "text": " "}, {"_id": "d5", "title": None, "text": None}],
            [*QUERIES, {"_id": "q3", "text": "c"}, {"_id": "q4", "text": "d"}],
            test=QRELS + "q1\td4\t1\nq1\td9\t1\nq9\td1\t1\nq3\td3\t0\n",
        )
    )
    assert found.skipped == {
        "document without text": 2,
        "judgements of a document that is unknown or has no text": 2,
        "judgements of a query that is unknown or has no text": 1,
        "queries that the qrels do not name": 1,
        "queries without a relevant document": 1,
    }
    assert (len(found.documents), len(found.queries)) == (3, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"corpus": '{"_id": "a", "text": "b"}\n{"_id"'}, "corpus.jsonl, line 2: not JSON"),
        ({"corpus": '{"_id": "a", "contents": "b"}'}, "line 1: got an object with '_id', 'cont"),
        ({"corpus": "[1]"}, r"line 1: got \[1\]; expected an object with '_id' and 'text'"),
        ({"corpus": [*DOCUMENTS, DOCUMENTS[0]]}, "line 4: _id 'd1' is there twice"),
        ({"corpus": [{"_id": 1, "text": "a"}, {"_id": "1", "text": "b"}]}, "line 2: _id '1' is"),
        ({"corpus": [{"_id": 1.5, "text": "a"}]}, "line 1: _id 1.5 is neither text nor a whole"),
        ({"corpus": [{"_id": "a", "title": 3, "text": "a"}]}, "line 1: 3 is not text"),
        ({"corpus": ""}, "holds no document with text"),
        ({"queries": ""}, "holds no query with text"),
        ({"test": ""}, "gives no query a relevant document"),
        (
            {"test": QRELS.replace("\tq", "\tx").replace("d", "e")},
            "3 skipped: judgements of a document that is",
        ),
        ({"test": "q1\td1\t1\nq1\td1\t2\n"}, "line 2: document 'd1' has another grade for query"),
        ({"test": "q1\td1\t1\nq1\td1\n"}, "line 2: got .*; expected query-id, corpus-id and score"),
        ({"test": "q1\td1\t1\nq1\td2\tNaN\n"}, "line 2: score 'NaN' is not a number"),
        ({"test": "q1\td1\t1\nq1\td2\t\t\n"}, "line 2: got "),
        ({"test": "q1 Q0 d1 1 0.5 run\n"}, "line 1: got 'q1 Q0 d1 1 0.5 run'; expected query-id"),
        ({"test": "query-id,corpus-id,score\nq1,d1,1\n"}, "line 1: got 'query-id,corpus-id,sc"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_line(collection, files, message):
    with pytest.raises(InputError, match=message):
        read_collection(collection(**files))


def test_what_is_not_there_is_named(collection, tmp_path):
    with pytest.raises(InputError, match=r"nowhere is no folder; expected one with corpus\.jsonl"):
        read_collection(tmp_path / "nowhere")
    folder = collection()
    (folder / "qrels/test.tsv").unlink()
    with pytest.raises(InputError, match="has no qrels; expected"):
        read_collection(folder)
    (folder / "queries.jsonl").unlink()
    (folder / "qrels.txt").write_text(QRELS)
    with pytest.raises(InputError, match=r"has no queries\.jsonl; expected"):
        read_collection(folder)


def by_sorting(queries, documents, k):
    unit = [
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-300)
        for side in (queries.astype(np.float64), documents.astype(np.float64))
    ]
    cosines = unit[0] @ unit[1].T
    order = np.argsort(-cosines.round(12), axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosines, order, axis=1)


@pytest.mark.parametrize("k", [1, 10, 100, 601])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_search_is_what_sorting_all_cosines_gives(monkeypatch, k, dtype):
    monkeypatch.setattr(module, "QUERIES", 7)
    monkeypatch.setattr(module, "DOCUMENTS", 64)
    random = np.random.default_rng(0)
    queries = random.normal(size=(20, 24)).astype(dtype)
    documents = random.normal(size=(601, 24)).astype(dtype)
    documents[300] = 0
    queries[3] = 0
    found, cosines = exact_search(queries, documents, k)
    expected, exact = by_sorting(queries, documents, k)
    assert np.array_equal(found, expected)
    assert np.allclose(cosines, exact, atol=1e-6)
    assert found.dtype == np.int64


@pytest.mark.parametrize("sort", [1, -1])
def test_search_does_not_depend_on_the_order_of_documents(monkeypatch, sort):
    """A query whose documents come worst first replaces all of its best in every block."""
    monkeypatch.setattr(module, "DOCUMENTS", 64)
    random = np.random.default_rng(1)
    queries, documents = random.normal(size=(3, 24)), random.normal(size=(1000, 24))
    documents = documents[np.argsort(sort * by_sorting(queries[:1], documents, 1000)[0][0])]
    found, _ = exact_search(queries, documents, 5)
    assert np.array_equal(found, by_sorting(queries, documents, 5)[0])


@pytest.mark.parametrize("copies", [2, 9])
def test_of_equal_documents_the_first_comes_first(copies):
    """Products of equal rows differ in their last bits, as they lie in a block."""
    random = np.random.default_rng(2)
    documents = np.tile(random.normal(size=(333, 50)), (copies, 1)).astype(np.float32)
    queries = random.normal(size=(70, 50)).astype(np.float32)
    found, _ = exact_search(queries, documents, 20)
    assert np.array_equal(found, by_sorting(queries, documents, 20)[0])
    zeros, cosines = exact_search(queries, np.zeros((9000, 50), np.float32), 3)
    assert zeros.tolist() == [[0, 1, 2]] * 70
    assert not cosines.any()


def test_of_cosines_that_only_rounding_tells_apart_the_first_comes_first():
    random = np.random.default_rng(5)
    queries, documents = random.integers(-2, 3, (40, 6)), random.integers(-2, 3, (500, 6))
    found, _ = exact_search(queries, documents, 500)
    assert np.array_equal(found, by_sorting(queries, documents, 500)[0])


def test_a_memory_mapped_file_and_tensors_are_searched_like_arrays(tmp_path):
    random = np.random.default_rng(3)
    queries = random.normal(size=(5, 8)).astype(np.float32)
    documents = random.normal(size=(5000, 8)).astype(np.float32)
    np.save(tmp_path / "d.npy", documents)
    expected = exact_search(queries, documents, 7)
    for other in (np.load(tmp_path / "d.npy", mmap_mode="r"), torch.from_numpy(documents)):
        for ours, theirs in zip(exact_search(queries, other, 7), expected, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_search_does_not_depend_on_magnitude(rng, scale):
    documents, queries = rng.normal(size=(30, 4)), rng.normal(size=(3, 4))
    documents[7] = 0.0
    expected, cosines = exact_search(queries, documents, 30)
    rows, scaled = exact_search(scale * queries, scale * documents, 30)
    assert_array_equal(rows, expected)
    assert_allclose(scaled, cosines, atol=1e-6)
    assert_array_equal(cosines[rows == 7], np.zeros(3))


def test_search_refuses_what_has_no_answer():
    documents = np.ones((5000, 3))
    documents[4500, 1] = np.nan
    with pytest.raises(InputError, match="documents: X contains NaN in row 4500"):
        exact_search(np.ones((2, 3)), documents, 1)
    with pytest.raises(InputError, match=r"queries: X contains infinity \(inf\) in row 1"):
        exact_search([[1.0, 2.0], [1.0, np.inf]], np.ones((2, 2)), 1)
    with pytest.raises(InputError, match="queries have 2 dimensions and documents 3"):
        exact_search(np.ones((2, 2)), np.ones((2, 3)), 1)
    with pytest.raises(InputError, match="k must be an integer between 1 and 2, got 3"):
        exact_search(np.ones((2, 3)), np.ones((2, 3)), 3)
    assert exact_search(np.ones((0, 3)), np.ones((2, 3)), 1)[0].shape == (0, 1)


def test_measures_are_those_of_trec_eval(collection):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    random = np.random.default_rng(4)
    names = [f"d{5000 - n}" for n in range(1300)]  # trec_eval puts the last of equal names first.
    grades = random.integers(-1, 4, size=(30, 1300)) * (random.random((30, 1300)) < 0.03)
    grades[0] = [1] + [0] * 1299
    qrels = {
        f"q{q}": {names[d]: int(grades[q, d]) for d in np.flatnonzero(grades[q])} for q in range(30)
    }
    folder = collection(
        [{"_id": name, "text": name} for name in names],
        [{"_id": name, "text": name} for name in qrels],
        test="\n".join(f"{q} 0 {d} {g}" for q, line in qrels.items() for d, g in line.items()),
    )
    job = read_retrieval(folder)
    documents = random.integers(-1, 2, size=(1300, 5))  # Of 243 different rows: ties abound.
    queries = random.normal(size=(30, 5))
    found, cosines = exact_search(queries, documents, 1000)
    tied = np.diff(cosines, axis=1) == 0
    assert tied.any(axis=1).all()
    run = {
        f"q{q}": {names[d]: float(c) for d, c in zip(found[q], cosines[q], strict=True)}
        for q in range(30)
    }
    first = {f"q{q}": {names[d]: -float(r) for r, d in enumerate(found[q][:10])} for q in range(30)}
    wanted = {"ndcg_cut_10", "recall_10", "recall_100", "map"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first)
    expected = [
        *(np.array([theirs[q][name] for q in qrels]) for name in ("ndcg_cut_10", "recall_10")),
        np.array([theirs[q]["recall_100"] for q in qrels]),
        np.array([ranks[q]["recip_rank"] for q in qrels]),
        np.array([theirs[q]["map"] for q in qrels]),
    ]
    ours = ranking_measures(found, job.collection.relevant)
    assert list(ours) == ["ndcg@10", "recall@10", "recall@100", "mrr@10", "map@1000"]
    for name, values in zip(ours, expected, strict=True):
        assert np.allclose(ours[name], values, rtol=0, atol=1e-9), name
    judged = job.judge({"query": queries, "document": documents})
    for name, values in zip(ours, expected, strict=True):
        mean = float(judged.measures[name](np.ones((1, 30)))[0])
        assert mean == pytest.approx(values.mean(), abs=1e-9)


def test_a_job_of_one_query_and_fewer_documents_than_ranks_has_a_score(collection):
    job = read_retrieval(collection(test="q2\td2\t1\nq2\td3\t1"))
    vectors = {"query": np.array([[1.0, 0.0]]), "document": np.array([[1, 0], [1, 0.1], [1, 9]])}
    values = {name: one.value for name, one in estimates(job.judge(vectors)).items()}
    assert values["mrr@10"] == 0.5
    assert values["recall@10"] == values["recall@100"] == 1
    assert values["map@1000"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert job.counts == {"queries": 1, "documents": 3, "relevant": 2}
    assert {side: len(texts) for side, texts in job.texts().items()} == {"query": 1, "document": 3}
    with pytest.raises(InputError, match="got 2 vectors of 3 texts of role 'document'"):
        job.judge({**vectors, "document": vectors["document"][:2]})
