"""Queries beside documents: a map for each side, in calibrators, models and commands."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Router

from bertflow import (
    SoftStandardization,
    Whitening,
    attach,
    calibrate,
    load,
    load_calibrator,
    load_encoder,
)
from bertflow.calibrators import Moments, QueryMap, crowding, named_calibrator, save_calibrator
from bertflow.encoders import embed, encode_file, side_of
from bertflow.errors import InputError, ModelError
from bertflow.models import save_model
from bertflow.scale import fit_folder
from conftest import WORDS

CALIBRATORS = [
    "adaptive-whitening",
    "whitening",
    "search-whitening",
    "standardization",
    "soft-standardization",
    "all-but-the-top",
    "flow",
]
INVERTIBLE = [name for name in CALIBRATORS if name != "all-but-the-top"]
QUERIES = [f"{first} {second} house" for first, second in pairwise(WORDS)][:40]


def cloud(rng, rows, centre, spread):
    return rng.normal(size=(rows, 6)) @ np.diag(spread) + centre


@pytest.fixture
def documents(rng):
    return cloud(rng, 400, [8, 0, 0, 0, 0, 0], [3, 2, 1, 1, 0.5, 0.2])


@pytest.fixture
def queries(rng):
    return cloud(rng, 300, [6, 5, 0, 0, 0, 0], [1, 2, 3, 1, 0.2, 0.5])


def moments(rows):
    found = Moments(rows.shape[1])
    found.update(torch.from_numpy(rows))
    return found


def test_many_queries_get_the_centre_and_covariance_of_documents(rng, documents):
    many = cloud(rng, 50_000, [6, 5, 0, 0, 0, 0], [1, 2, 3, 1, 0.2, 0.5])
    mapped = QueryMap.of(moments(documents), moments(many)).apply(torch.from_numpy(many)).numpy()
    gap, left = many.mean(0) - documents.mean(0), mapped.mean(0) - documents.mean(0)
    assert np.linalg.norm(left) < 0.1 * np.linalg.norm(gap)
    apart = np.cov(mapped.T) - np.cov(documents.T)
    assert np.linalg.norm(apart) < 0.02 * np.linalg.norm(np.cov(documents.T))


def test_documents_too_large_to_square_are_refused(documents, queries):
    with pytest.raises(InputError, match="too large to square"):
        QueryMap.of(moments(documents * 1e200), moments(queries))


def test_few_queries_that_lie_where_documents_do_change_nothing_much(rng, documents):
    few = cloud(rng, 3, [8, 0, 0, 0, 0, 0], [3, 2, 1, 1, 0.5, 0.2])
    found = QueryMap.of(moments(documents), moments(few))
    assert torch.linalg.vector_norm(found.centre - found.target) < 0.5 * np.linalg.norm(
        few.mean(0) - documents.mean(0)
    )


@pytest.mark.parametrize("name", CALIBRATORS)
def test_documents_are_mapped_as_without_queries_and_queries_after_their_own_map(
    name, documents, queries
):
    both = named_calibrator(name).fit(documents, queries=queries)
    alone = named_calibrator(name).fit(documents)
    assert np.array_equal(both.transform(documents), alone.transform(documents))
    moved = QueryMap.of(moments(documents), moments(queries)).apply(torch.from_numpy(queries))
    assert np.allclose(both.transform(queries, "query"), alone.transform(moved.numpy()))


@pytest.mark.parametrize("name", INVERTIBLE)
def test_the_inverse_gives_queries_back(name, documents, queries):
    calibrator = named_calibrator(name).fit(documents, queries=queries)
    back = calibrator.inverse_transform(calibrator.transform(queries, "query"), "query")
    assert np.allclose(back, queries, atol=1e-6)


def test_a_pickle_holds_nothing_that_mapping_queries_has_made(documents, queries):
    calibrator = Whitening().fit(documents, queries=queries)
    before = len(pickle.dumps(calibrator))
    calibrator.inverse_transform(calibrator.transform(queries.astype(np.float32), "query"), "query")
    assert len(pickle.dumps(calibrator)) == before


def test_a_role_a_row_is_the_same_as_two_matrices(documents, queries):
    rows = np.concatenate([documents[:200], queries, documents[200:]])
    roles = np.array(["document"] * 200 + ["query"] * 300 + ["document"] * 200)
    apart = Whitening().fit(documents, queries=queries)
    together = Whitening()
    mapped = together.fit_transform(rows, role=roles)
    assert np.array_equal(mapped[roles == "query"], apart.transform(queries, "query"))
    assert np.array_equal(mapped[roles == "document"], apart.transform(documents))
    assert np.array_equal(together.transform(rows, roles.tolist()), mapped)
    assert np.allclose(together.inverse_transform(mapped, roles), rows)
    assert together.transform(rows[:0], []).shape == (0, 6)


def test_without_queries_one_map_serves_both(documents, queries):
    calibrator = Whitening().fit(documents)
    assert np.array_equal(calibrator.transform(queries, "query"), calibrator.transform(queries))


def test_the_unit_of_a_dimension_changes_nothing(documents, queries):
    unit = np.array([1, 1e6, 1, 1e-3, 1, 1])
    found = [
        QueryMap.of(moments(documents * one), moments(queries * one)).apply(
            torch.from_numpy(queries * one)
        )
        for one in (1, unit)
    ]
    assert np.allclose(found[0].numpy(), found[1].numpy() / unit, atol=1e-6)


def test_columns_of_a_frame_of_queries_are_those_of_the_documents(documents, queries):
    names = list("abcdef")
    frame, asked = (pd.DataFrame(rows, columns=names) for rows in (documents, queries))
    Whitening().fit(frame, queries=asked)
    with pytest.raises(InputError, match="of the queries: The feature names should match"):
        Whitening().fit(frame, queries=asked[names[::-1]])


def test_a_second_fit_without_queries_forgets_them(documents, queries):
    calibrator = Whitening().fit(documents, queries=queries).fit(documents)
    assert np.array_equal(calibrator.transform(queries, "query"), calibrator.transform(queries))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_saved_and_loaded_it_maps_both_sides_to_the_same_bits(name, documents, queries, tmp_path):
    calibrator = named_calibrator(name).fit(documents, queries=queries)
    save_calibrator(calibrator, tmp_path / "saved")
    loaded = load_calibrator(tmp_path / "saved")
    for role, rows in (("query", queries), ("document", documents)):
        assert np.array_equal(loaded.transform(rows, role), calibrator.transform(rows, role))
    assert loaded.facts()["queries"].startswith("300")


def test_dimensions_in_which_neither_side_varies_stay_invertible(rng, documents, queries):
    documents, queries = documents.copy(), queries.copy()
    documents[:, 3], queries[:, 3], queries[:, 4] = 7.0, -1.0, 2.0
    calibrator = Whitening().fit(documents, queries=queries)
    mapped = calibrator.transform(queries, "query")
    assert np.abs(mapped).max() < 100
    assert np.allclose(calibrator.inverse_transform(mapped, "query"), queries, atol=1e-6)


def not_finite(rows):
    rows = rows.copy()
    rows[3, 1] = np.nan
    return rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:1], "of the queries: got 1, but"),
        (lambda rows: rows[:0], "of the queries: got 0"),
        (
            lambda rows: rows[:, :5],
            "of the queries: X has 5 features, but Whitening is expecting 6",
        ),
        (not_finite, "of the queries: X contains NaN in row 3"),
        (lambda rows: np.ones_like(rows), "of the queries: all 300 rows are equal"),
    ],
)
def test_queries_that_cannot_be_fitted_on_are_refused(change, said, documents, queries):
    with pytest.raises(InputError, match=said):
        Whitening().fit(documents, queries=change(queries))


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("passage", "unknown role 'passage'"),
        (["query"], "one for each of 400 rows"),
        (None, "one for each of 400 rows"),
        (["query"] * 399 + [None], "unknown role 'None'"),
    ],
)
def test_a_role_that_is_none_is_refused(role, said, documents, queries):
    calibrator = Whitening().fit(documents, queries=queries)
    for call in (calibrator.transform, calibrator.inverse_transform):
        with pytest.raises(InputError, match=said):
            call(documents, role)


@pytest.mark.parametrize("role", ["query", "document", ["query"] * 400])
def test_a_fit_by_role_needs_both(role, documents):
    with pytest.raises(InputError, match="queries and documents"):
        Whitening().fit(documents, role=role)


def test_crowded_vectors_are_whitened_and_others_the_less_the_fewer_axes_they_take(rng):
    apart = rng.normal(size=(20_000, 8)) * [1, 1, 0, 0, 0, 0, 0, 0]
    assert crowding(moments(apart)) == 0.0
    assert Whitening(power="auto").fit(apart).power_ == pytest.approx(0.5, abs=0.01)
    assert Whitening(power="auto").fit(apart + 10).power_ == 1.0


def test_soft_standardization_leaves_what_is_not_crowded_as_it_is(rng):
    apart = rng.normal(size=(2000, 4)) * [1, 2, 3, 4]
    assert np.array_equal(SoftStandardization().fit_transform(apart), apart)
    found = SoftStandardization().fit_transform(apart + 30)
    assert np.allclose(found.mean(0), 0)
    assert np.allclose(found.std(0), apart.std(0) ** 0.25)


@pytest.fixture(scope="module")
def model(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.prompts = {"query": "red ", "passage": "dog "}
    return calibrate(encoder, tiny_sentences, "whitening", queries=QUERIES, job="search")


@pytest.fixture(scope="module", params=[True, False], ids=["portable", "own module"])
def saved(request, model, tmp_path_factory, tiny_sentences):
    folder = tmp_path_factory.mktemp("two-sided") / "model"
    if not request.param:
        how = {"queries": QUERIES, "portable": False}
        model = calibrate(model.encoder, tiny_sentences, "whitening", **how)
    save_model(model, folder)
    return folder


def test_each_side_is_encoded_with_its_prompt_and_mapped_by_its_map(model):
    encoder = model.encoder
    for role, encode in (("query", model.encode_query), ("document", model.encode_document)):
        raw = getattr(encoder, f"encode_{role}")(QUERIES)
        expected = model.calibrator.transform(raw.astype(np.float64), role)
        assert np.allclose(encode(QUERIES), expected, atol=1e-4)
        assert np.allclose(embed(side_of(model, role), QUERIES).rows(), expected, atol=1e-4)


def test_it_is_fitted_on_both_sides_with_their_prompts(model, tiny_sentences):
    encoder = model.encoder
    documents, queries = encoder.encode_document(tiny_sentences), encoder.encode_query(QUERIES)
    alone = Whitening().fit(documents.astype(np.float64), queries=queries.astype(np.float64))
    rows = queries.astype(np.float64)
    assert np.allclose(
        model.calibrator.transform(rows, "query"), alone.transform(rows, "query"), atol=1e-3
    )


def test_a_saved_model_has_both_sides_again_and_knows_its_job(saved, model):
    loaded = load(saved)
    assert np.array_equal(loaded.encode_document(QUERIES), load(saved).encode_document(QUERIES))
    for name in ("encode_query", "encode_document"):
        assert np.allclose(getattr(loaded, name)(QUERIES), getattr(model, name)(QUERIES), atol=1e-4)
    assert "encode_query" in (saved / "README.md").read_text()


def test_plain_sentence_transformers_has_both_sides(model, tmp_path):
    save_model(model, tmp_path / "model")
    plain = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert np.array_equal(plain.encode_query(QUERIES), model.encode_query(QUERIES))
    assert np.array_equal(plain.encode_document(QUERIES), model.encode_document(QUERIES))
    card = (tmp_path / "model/README.md").read_text()
    assert "model.encode_query(" in card and "| for | search |" in card


def test_a_file_of_queries_is_what_encode_query_gives(model, tmp_path):
    encode_file(side_of(model, "query"), QUERIES, tmp_path / "q.npy")
    assert np.allclose(np.load(tmp_path / "q.npy"), model.encode_query(QUERIES), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_side_of_a_half_precision_model_is_what_its_method_gives(model, dtype):
    half = copy.deepcopy(model).to(dtype)
    for role in ("query", "document"):
        assert np.array_equal(
            side_of(half, role).encode(QUERIES), getattr(half, f"encode_{role}")(QUERIES)
        )


def test_the_sides_of_an_encoder_with_routes_are_those_of_its_methods(tiny_bert, tiny_sentences):
    def dense(seed):
        torch.manual_seed(seed)
        return Dense(16, 16, activation_function=torch.nn.Tanh())

    routes = {"ask": [dense(0)], "tell": [dense(1)]}
    by_role = {("query", None): "ask", ("document", None): "tell"}
    plain = load_encoder(tiny_bert, device="cpu")
    modules = [*plain, Router(routes, default_route="tell", route_mappings=by_role)]
    encoder = SentenceTransformer(modules=modules, device="cpu")
    model = calibrate(encoder, tiny_sentences, "whitening", queries=QUERIES)
    raw = encoder.encode_query(QUERIES).astype(np.float64)
    expected = model.calibrator.transform(raw, "query")
    assert np.allclose(model.encode_query(QUERIES), expected, atol=1e-3)
    assert np.allclose(embed(side_of(model, "query"), QUERIES).rows(), expected, atol=1e-3)


def test_a_task_that_is_no_role_is_that_of_documents(saved):
    loaded = load(saved)
    assert np.array_equal(loaded.encode(QUERIES, task="clustering"), loaded.encode(QUERIES))


def test_a_calibrator_is_not_attached_to_an_encoder_with_other_prompts(model):
    encoder = model.encoder
    attach(encoder, model.calibrator)
    encoder.prompts = {**encoder.prompts, "query": "blue "}
    with pytest.raises(ModelError, match="which differs in prompts"):
        attach(encoder, model.calibrator)


def test_for_search_documents_have_their_prompt_also_without_queries(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert, device="cpu")
    encoder.prompts = {"query": "red ", "document": "dog "}
    model = calibrate(encoder, tiny_sentences, "whitening", job="search")
    assert np.abs(model.encode_document(tiny_sentences).mean(0)).max() < 1e-4


def test_one_distinct_query_is_refused(tiny_bert, tiny_sentences):
    with pytest.raises(InputError, match="got 3 queries, 1 of them distinct"):
        calibrate(load_encoder(tiny_bert), tiny_sentences, queries=["why?"] * 3)


def test_a_job_that_is_none_is_refused(tiny_bert, tiny_sentences):
    with pytest.raises(InputError, match="unknown job 'serch'; expected one of similarity, search"):
        calibrate(load_encoder(tiny_bert), tiny_sentences, job="serch")


@pytest.fixture
def corpus(tmp_path, monkeypatch, tiny_sentences):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents.txt").write_text("\n".join(tiny_sentences))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))


def test_the_command_fits_on_both_sides_and_encodes_each(done, corpus, tiny_bert):
    text = ["--corpus", "documents.txt", "--queries", "queries.txt"]
    said = done("fit", "--encoder", tiny_bert, *text, "--job", "search", "--output", "model")
    assert "for search: search-whitening, since" in said and "queries and" in said
    model = load("model")
    for role in ("query", "document"):
        done(
            "encode", "model", "--corpus", "queries.txt", "--role", role, "--output", f"{role}.npy"
        )
        expected = getattr(model, f"encode_{role}")(QUERIES)
        assert np.allclose(np.load(f"{role}.npy"), expected, atol=1e-5)


def test_without_queries_the_command_says_what_is_lost(done, corpus, tiny_bert):
    given = ["--encoder", tiny_bert, "--corpus", "documents.txt", "--job", "search"]
    assert "with 30 or more of them, without labels" in done("fit", *given, "--output", "model")


def test_vectors_are_fitted_and_transformed_by_role(
    done, documents, queries, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", documents)
    np.save("q.npy", queries)
    done(
        "fit", "--vectors", "d.npy", "--query-vectors", "q.npy", "--job", "search", "--output", "c"
    )
    done("transform", "c", "--vectors", "q.npy", "--role", "query", "--output", "z.npy")
    expected = named_calibrator("search-whitening").fit(documents, queries=queries)
    assert np.allclose(np.load("z.npy"), expected.transform(queries, "query"))


@pytest.mark.parametrize("name", ["adaptive-whitening", "search-whitening", "standardization"])
def test_shards_of_documents_are_fitted_on_as_one_file(name, documents, queries, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, rows in enumerate(np.split(documents, 4)):
        vectors = pa.FixedSizeListArray.from_arrays(rows.ravel(), 6)
        pq.write_table(pa.table({"vector": vectors}), folder / f"{number}.parquet")
    sharded, whole = named_calibrator(name), named_calibrator(name)
    fit_folder(sharded, folder, tmp_path / "moments", queries=queries)
    whole.fit(documents, queries=queries)
    assert np.allclose(sharded.transform(queries, "query"), whole.transform(queries, "query"))


def test_options_of_queries_that_mean_nothing_are_refused(refused, corpus, tiny_bert):
    both = ["--encoder", tiny_bert, "--corpus", "documents.txt", "--output", "m"]
    assert "--query-vectors goes with --vectors" in refused(
        "fit", *both, "--query-vectors", "q.npy"
    )
    given = ["--vectors", "d.npy", "--queries", "queries.txt", "--output", "m"]
    assert "--queries does not go with --vectors" in refused("fit", *given)
    assert "unknown role 'passage'" in refused(
        "transform", "c", "--vectors", "q.npy", "--role", "passage", "--output", "z.npy"
    )
