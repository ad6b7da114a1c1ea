"""What docs/guides/vector-stores.md builds of shards finds what the vectors' cosines say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertflow import Whitening, load_encoder, save_calibrator
from bertflow.scale import Encode, Transform, files_of, fit_folder, run
from conftest import REPOSITORY
from pages import blocks

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
PAGE = REPOSITORY / "docs" / "guides" / "vector-stores.md"
QUESTION = "Is the train late?"
# So that none is the number of its row.
FIRST_ID = 700


@pytest.fixture
def shards(tiny_bert: Path, tiny_sentences: list[str], tmp_path: Path, monkeypatch) -> Path:
    """The folders that the page's commands make, of two files, one in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("bert-base-uncased").symlink_to(tiny_bert)
    texts = list(dict.fromkeys(tiny_sentences))
    ids = FIRST_ID - np.arange(len(texts)) * 3
    Path("in/more").mkdir(parents=True)
    for name, part in [("in/b.parquet", slice(0, 200)), ("in/more/a.parquet", slice(200, None))]:
        parquet.write_table(pyarrow.table({"text": texts[part], "id": ids[part]}), name)
    monkeypatch.setattr("bertflow.scale.shards.SHARD_ROWS", 100)
    run(Encode("bert-base-uncased"), "in", "raw")
    calibrator = Whitening()
    asked = load_encoder("bert-base-uncased").encode_query(texts[:40])
    fit_folder(calibrator, "raw", "moments", queries=asked)
    save_calibrator(calibrator, "my-calibrator")
    run(Transform(calibrator), "raw", "calibrated")
    return tmp_path


@pytest.fixture
def page(shards: Path) -> Callable[..., dict[str, Any]]:
    """Run the page's blocks that hold a word, after its first; the names they leave."""
    python = [block for block in blocks(PAGE) if block.kind == "python"]
    names: dict[str, Any] = {"__name__": "__main__"}

    def call(*words: str, **replaced: str) -> dict[str, Any]:
        texts = [python[0].text]
        for word in words:
            found = [block.text for block in python if word in block.text]
            assert len(found) == 1, word
            texts += found
        for text in texts:
            for old, new in replaced.items():
                text = text.replace(f"postgresql:///{old}", new)
            exec(compile(text, str(PAGE), "exec"), names)
        return names

    return call


def documents() -> dict[str, int]:
    """The ids of the texts."""
    table = pyarrow.concat_tables(map(parquet.read_table, sorted(Path("in").rglob("*.parquet"))))
    return dict(zip(table["text"].to_pylist(), table["id"].to_pylist(), strict=True))


def exact(model: Any) -> tuple[list[int], np.ndarray]:
    """The ids of texts by cosine with the question, highest first, and the cosines, in float64."""
    id_of = documents()
    vectors = np.asarray(model.encode_document([*id_of]), dtype=np.float64)
    question = np.asarray(model.encode_query(QUESTION), dtype=np.float64)
    cosines = vectors @ question / np.linalg.norm(vectors, axis=1) / np.linalg.norm(question)
    order = np.argsort(-cosines)
    return np.array([*id_of.values()])[order].tolist(), cosines[order]


def test_the_folder_is_several_files_that_are_read_a_batch_at_a_time(page):
    names = page()
    found = list(names["batches"]("calibrated"))
    assert len(files_of("calibrated")) == len(found) == 2
    ids = [number for batch in found for number in batch["id"].to_pylist()]
    assert ids == list(documents().values())
    assert [names["numbers"](batch).shape for batch in found] == [(200, 16), (len(ids) - 200, 16)]


def test_no_more_than_some_batches_are_in_memory(page, tmp_path):
    names, file, width = page(), tmp_path / "large.parquet", 32
    schema = pyarrow.schema([("id", "int64"), ("vector", pyarrow.list_(pyarrow.float32(), width))])
    vectors = np.random.default_rng(0).normal(size=(2**14, width)).astype(np.float32)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), width)
    batch = pyarrow.record_batch([np.arange(2**14), column], schema=schema)
    with parquet.ParquetWriter(file, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(24):
            writer.write_batch(batch)
    names["files_of"] = lambda folder: [file]
    before = pyarrow.total_allocated_bytes()
    held = [pyarrow.total_allocated_bytes() - before for _ in names["batches"]("any")]
    assert len(held) == 24
    assert max(held) < 8 * batch.nbytes


def test_faiss_gives_the_ids_of_the_exact_cosines(page):
    faiss = pytest.importorskip("faiss")
    names = page("import faiss")
    wanted, cosines = exact(names["model"])
    assert names["ids"][0].tolist() == wanted[:3]
    np.testing.assert_allclose(names["cosines"][0], cosines[:3], atol=1e-5)
    again = faiss.read_index("documents.faiss")
    query = names["model"].encode_query([QUESTION], normalize_embeddings=True)
    found, ids = again.search(query, len(wanted))
    np.testing.assert_allclose(found[0], cosines, atol=1e-5)
    assert ids[0, :50].tolist() == wanted[:50]
    assert sorted(ids[0].tolist()) == sorted(wanted)


def test_recall_is_the_share_of_questions_whose_answer_is_among_the_first(page, capsys):
    pytest.importorskip("faiss")
    names = page("import faiss", "def recall")
    assert capsys.readouterr().out.count("calibrated 0.0") == 2  # No such ids are there.
    some = dict(list(documents().items())[50:90])
    wanted, _ = exact(names["model"])
    for answers, shares in [
        (some, (1.0, 1.0)),  # Each text finds itself.
        (dict.fromkeys(some, -1), (0.0, 0.0)),
        ({QUESTION: wanted[1]}, (0.0, 1.0)),
        ({QUESTION: wanted[4], **dict(list(some.items())[:3])}, (0.75, 0.75)),
    ]:
        names["answers"] = answers
        queries = names["model"].encode_document([*answers], normalize_embeddings=True)
        if QUESTION in answers:
            queries[0] = names["model"].encode_query(QUESTION, normalize_embeddings=True)
        assert tuple(names["recall"](names["index"], queries, k) for k in (1, 4)) == shares


def test_lancedb_gives_the_ids_of_the_exact_cosines_with_and_without_an_index(page, capsys):
    pytest.importorskip("lancedb", reason="lancedb is not installed")
    names = page("import lancedb", "create_index")
    wanted, cosines = exact(names["model"])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(number) for number, _ in shown] == wanted[:3]
    np.testing.assert_allclose([float(cosine) for _, cosine in shown], cosines[:3], atol=1e-5)
    assert names["table"].count_rows() == len(wanted)
    assert [row["id"] for row in names["sure"]] == wanted[:3]
    (index,) = names["table"].list_indices()
    assert (index.index_type, index.columns) == ("IvfHnswSq", ["vector"])
    assert {row["id"] for row in names["near"]} <= set(wanted[:10])
    search = names["table"].search(names["query"]).distance_type("cosine")
    every = search.bypass_vector_index().limit(len(wanted)).to_list()
    assert [row["id"] for row in every[:50]] == wanted[:50]


@pytest.mark.slow
def test_pgvector_gives_the_ids_of_the_exact_cosines(page, tmp_path, monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("pgvector", reason="pgvector is not installed")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # Where pgserver has its lock.
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed")
    server = pgserver.get_server(tmp_path / "postgres", cleanup_mode="stop")
    try:
        names = page("import psycopg", documents=server.get_uri())
        with names["psycopg"].connect(server.get_uri()) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM documents").fetchall()
            ((index,),) = connection.execute(
                "SELECT indexdef FROM pg_indexes WHERE indexname <> 'documents_pkey' "
                "AND tablename = 'documents'"
            ).fetchall()
    finally:
        server.cleanup()
    wanted, cosines = exact(names["model"])
    assert [number for number, _ in names["nearest"]] == wanted[:3]
    np.testing.assert_allclose([cosine for _, cosine in names["nearest"]], cosines[:3], atol=1e-5)
    assert count == len(wanted)
    assert "USING hnsw (vector vector_cosine_ops)" in index
