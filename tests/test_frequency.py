"""Words by frequency, and exact neighbours: by hand, against scikit-learn, with ties."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import scipy.stats
import torch
import wordfreq
from numpy.testing import assert_allclose, assert_array_equal
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
from sklearn.neighbors import NearestNeighbors
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertflow import load_encoder
from bertflow.analysis import neighbours
from bertflow.analysis.frequency import (
    NEIGHBOURS,
    RANGES,
    Words,
    frequent_words,
    word_embeddings,
    word_statistics,
)
from bertflow.analysis.neighbours import nearest_neighbours
from bertflow.errors import InputError, MissingDependencyError, ModelError

TOP = ["the", "to", "and", "of", "a", "in", "i", "is", "for", "that"]


def by_brute_force(rows, vectors, k):
    """Numbers and measures of the nearest and the largest, all in float64, the first of ties."""
    wide = np.asarray(vectors, dtype=np.float64)
    apart = np.sqrt(np.square(wide[rows][:, None] - wide).sum(axis=2))
    dots = wide[rows] @ wide.T
    place = np.arange(len(rows)), np.asarray(rows)
    apart[place], dots[place] = np.inf, -np.inf
    near, large = (np.argsort(one, axis=1, kind="stable")[:, :k] for one in (apart, -dots))
    return (
        near,
        np.take_along_axis(apart, near, axis=1),
        large,
        np.take_along_axis(dots, large, axis=1),
    )


# Neighbours.


@pytest.mark.parametrize(
    ("count", "width", "k", "shift", "dtype"),
    [
        (400, 12, 7, 30.0, np.float64),
        (400, 12, 7, 30.0, np.float32),
        (400, 12, 7, 0.0, np.float16),
        (6, 3, 2, 0.0, np.float32),
        (130, 5, 129, 30.0, np.float64),
        (2, 1, 1, 0.0, np.float64),
    ],
)
def test_neighbours_are_those_of_scikit_learn(rng, count, width, k, shift, dtype):
    vectors = (rng.normal(size=(count, width)) + shift).astype(dtype)
    found = nearest_neighbours(np.arange(count), vectors, k=k)
    wide = vectors.astype(np.float64)
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(wide)
    # Without a query, scikit-learn too leaves out the row itself.
    assert_allclose(found.distances, search.kneighbors()[0], atol=1e-6)
    _, distances, _, dots = by_brute_force(np.arange(count), vectors, k)
    assert_allclose(found.distances, distances, rtol=1e-13)
    assert_allclose(found.dots, dots, rtol=1e-12, atol=1e-12)
    for numbers, values, measure in (
        (found.nearest, found.distances, lambda q, x: np.linalg.norm(q - x, axis=-1)),
        (found.largest, found.dots, lambda q, x: (q * x).sum(axis=-1)),
    ):
        assert numbers.shape == values.shape == (count, k)
        assert not (numbers == np.arange(count)[:, None]).any()
        assert_allclose(measure(wide[:, None], wide[numbers]), values, rtol=1e-12, atol=1e-12)


def test_equal_rows_are_at_distance_0_and_the_first_of_them_come_first(rng):
    # In the middle of others, far from the origin.
    vectors = (1000 + rng.normal(size=(300, 8))).astype(np.float32)
    equal = np.arange(100, 106)
    vectors[equal] = vectors[equal[0]]
    found = nearest_neighbours(equal, vectors, k=5)
    assert_array_equal(found.distances, np.zeros((6, 5)))
    assert found.nearest[0].tolist() == [101, 102, 103, 104, 105]
    assert found.nearest[2].tolist() == [100, 101, 103, 104, 105]


def test_rows_closer_together_than_float32_can_tell_are_still_told_apart(rng):
    # 200 rows on a ray, in an order that says nothing, 1e-9 apart.
    steps = rng.permutation(200)
    vectors = np.concatenate([np.zeros((1, 4)), np.ones((200, 4)) * (1 + 1e-9 * steps[:, None])])
    vectors[:, 0] += 7
    found = nearest_neighbours([0], vectors, k=6)
    assert steps[found.nearest[0] - 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps[found.largest[0] - 1].tolist() == [199, 198, 197, 196, 195, 194]


def test_the_unit_of_the_vectors_does_not_matter(rng):
    for scale in [1e-30, 1e30, 1e-60, 1e60]:
        vectors = rng.normal(size=(200, 5)) + 3
        plain, scaled = (
            nearest_neighbours(np.arange(200), x, k=4) for x in (vectors, scale * vectors)
        )
        assert_array_equal(plain.nearest, scaled.nearest)
        assert_array_equal(plain.largest, scaled.largest)
        assert_allclose(scaled.distances, scale * plain.distances, rtol=1e-12)
        assert_allclose(scaled.dots, scale**2 * plain.dots, rtol=1e-12)


def test_rows_that_are_all_equal_have_neighbours():
    found = nearest_neighbours([0, 3], np.full((5, 2), 2.0), k=2)
    assert found.distances.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.dots.tolist() == [[8.0, 8.0], [8.0, 8.0]]


def test_blocks_do_not_show(rng, monkeypatch):
    vectors = rng.normal(size=(150, 4)).astype(np.float32)
    rows = rng.integers(150, size=40)
    done = []
    whole = nearest_neighbours(rows, vectors, k=5, progress=lambda *step: done.append(step))
    assert done == [(40, 40)]
    monkeypatch.setattr(neighbours, "SEARCH_ENTRIES", 150 * 11)
    parts = nearest_neighbours(rows, vectors, k=5, progress=lambda *step: done.append(step))
    assert done[1:] == [(11, 40), (22, 40), (33, 40), (40, 40)]
    for name, values in vars(whole).items():
        assert_array_equal(getattr(parts, name), values)
    near, _, large, _ = by_brute_force(rows, vectors, 5)
    assert_array_equal(whole.nearest, near)
    assert_array_equal(whole.largest, large)


def test_no_rows_have_no_neighbours(rng):
    found = nearest_neighbours([], rng.normal(size=(4, 2)), k=3)
    assert {values.shape for values in vars(found).values()} == {(0, 3)}


def test_k_must_leave_a_row(rng):
    for k in [0, 4, 1.5]:
        with pytest.raises(InputError, match="k must be an integer between 1 and 3"):
            nearest_neighbours([0], rng.normal(size=(4, 2)), k=k)


def test_a_row_that_is_not_finite_is_named(rng):
    vectors = rng.normal(size=(4, 2))
    vectors[2, 1] = np.nan
    with pytest.raises(InputError, match="row 2"):
        nearest_neighbours([0], vectors, k=1)


# Words.


def word_pieces():
    """BERT's kind: lower case, pieces within a word marked, special tokens put around."""
    known = ["[UNK]", "[CLS]", "[SEP]", "the", "of", "i", "##n", "that", "for", "is"]
    pieces = {piece: number for number, piece in enumerate(known)}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_pairs():
    """GPT-2's kind: a space is part of the piece; "of" is a piece only within words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("t", "o"), ("Ġ", "to"), ("o", "f")]
    merges += [("Ġ", "a"), ("Ġ", "i"), ("Ġi", "n")]
    pieces = [*letters, *("".join(pair) for pair in merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentence_pieces():
    """Llama's kind: a mark is put before every text, and spaces become marks."""
    pieces = ["<unk>", "▁", "▁the", "▁of", "▁i", "n", "of"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Replace("▁", " ")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_words_are_whole_pieces_of_every_kind_of_tokenizer():
    for make, expected in [
        (word_pieces, ["the", "of", "i", "is", "for", "that"]),
        (byte_pairs, ["the", "to", "a", "in", "i"]),
        (sentence_pieces, ["the", "of", "i"]),
    ]:
        tokenizer = make()
        assert wordfreq.top_n_list("en", 10) == TOP
        found = frequent_words(tokenizer, most=10)
        assert found.words == expected
        assert found.ranks.tolist() == [TOP.index(word) for word in expected]
        marks = {"word_pieces": "", "byte_pairs": "Ġ", "sentence_pieces": "▁"}
        pieces = tokenizer.convert_ids_to_tokens(found.rows.tolist())
        assert pieces == [marks[make.__name__] + word for word in expected]


def test_ranks_count_the_words_of_several_pieces_too():
    found = frequent_words(word_pieces(), most=3)
    assert (found.words, found.ranks.tolist()) == (["the"], [0])
    later = frequent_words(word_pieces(), most=4)
    assert (later.words, later.ranks.tolist()) == (["the", "of"], [0, 3])


def test_a_tokenizer_that_knows_none_of_the_words_gives_none():
    found = frequent_words(word_pieces(), most=40, language="ru")
    assert (found.words, found.ranks.shape, found.rows.shape) == ([], (0,), (0,))


def test_another_language_has_other_words():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "und": 1, "the": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    assert frequent_words(fast, most=10, language="de").words == ["und"]


def test_an_unknown_language_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="no words of language 'xx'; it has .*en, "):
        frequent_words(word_pieces(), language="xx")


def test_most_must_be_a_count():
    with pytest.raises(InputError, match="most must be an integer of at least 1, got 0"):
        frequent_words(word_pieces(), most=0)


def test_a_tokenizer_of_another_kind_is_refused():
    for tokenizer in [None, object()]:
        with pytest.raises(
            InputError, match=f"tokenizer of transformers, got {type(tokenizer).__name__}"
        ):
            frequent_words(tokenizer)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    with pytest.raises(MissingDependencyError, match=r"wordfreq: pip install 'bertflow\[words\]'"):
        frequent_words(word_pieces())


# Word embeddings.


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_are_the_rows_of_the_tokens(kind, dtype, request):
    encoder = load_encoder(request.getfixturevalue(kind), device="cpu", dtype=dtype)
    table = word_embeddings(encoder)
    assert table.dtype == np.float32
    assert table.shape == (len(encoder[0].tokenizer), 16)
    found = frequent_words(encoder[0].tokenizer)
    assert found.words[:4] == ["the", "and", "of", "a"]
    model = encoder[0].model
    states = model.get_input_embeddings()(torch.from_numpy(found.rows)).detach().float()
    assert_array_equal(table[found.rows], states.numpy())


def test_an_encoder_that_begins_with_no_transformer_is_refused():
    encoder = SentenceTransformer(modules=[_word_vectors(), Pooling(2)])
    with pytest.raises(InputError, match="begins with WordEmbeddings"):
        word_embeddings(encoder)
    with pytest.raises(InputError, match="tokenizer of transformers, got WhitespaceTokenizer"):
        frequent_words(encoder[0].tokenizer)


def _word_vectors():
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    tokenizer = WhitespaceTokenizer(vocab=["cat", "dog"])
    return WordEmbeddings(tokenizer, np.eye(2), update_embeddings=False)


def test_a_transformer_without_a_table_is_named(tiny_bert, monkeypatch):
    encoder = load_encoder(tiny_bert, device="cpu")

    def absent():
        raise NotImplementedError

    monkeypatch.setattr(encoder[0].model, "get_input_embeddings", absent)
    with pytest.raises(ModelError, match="BertModel has no table of input embeddings"):
        word_embeddings(encoder)


# Statistics.


@pytest.fixture
def material(rng):
    """500 embeddings, every third of them a word; the ranks have gaps."""
    embeddings = (rng.normal(size=(500, 9)) + 0.5).astype(np.float32)
    rows = rng.permutation(500)[:160]
    ranks = np.sort(rng.permutation(300)[:160])
    return embeddings, Words([f"word{rank}" for rank in ranks], ranks, rows)


def test_the_papers_ranges_and_counts_are_the_defaults(material):
    found = word_statistics(*material)
    assert [(group.low, group.high) for group in found.groups] == list(RANGES)
    assert RANGES == ((0, 100), (100, 500), (500, 5000), (5000, 10000))
    for group in found.groups:
        assert tuple(group.distance) == tuple(group.dot) == NEIGHBOURS == (3, 5, 7)
    assert (found.vocabulary, found.width) == (500, 9)


def test_means_are_those_of_scikit_learns_neighbours(material):
    embeddings, words = material
    ranges, counts = [(0, 30), (30, 200)], [4, 1]
    found = word_statistics(embeddings, words, ranges=ranges, neighbours=counts)
    wide = embeddings.astype(np.float64)
    # One more than asked for, because the first is the word itself.
    search = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(wide)
    for group, (low, high) in zip(found.groups, ranges, strict=True):
        rows = words.rows[(words.ranks >= low) & (words.ranks < high)]
        assert (group.low, group.high, group.words) == (low, high, len(rows))
        assert len(rows) > 10
        distances = search.kneighbors(wide[rows])[0][:, 1:]
        dots = wide[rows] @ wide.T
        dots[np.arange(len(rows)), rows] = -np.inf
        dots = -np.sort(-dots, axis=1)
        expected = [(group.norm, np.linalg.norm(wide[rows], axis=1))]
        expected += [(group.distance[k], distances[:, :k].mean(axis=1)) for k in counts]
        expected += [(group.dot[k], dots[:, :k].mean(axis=1)) for k in counts]
        for mean, values in expected:
            assert mean.value == pytest.approx(values.mean(), rel=1e-9)
            error = 1.96 * scipy.stats.sem(values)
            assert (mean.low, mean.high) == pytest.approx(
                (values.mean() - error, values.mean() + error), rel=1e-9
            )


def test_neighbours_are_sought_among_all_embeddings_and_not_the_word_itself():
    # "the" and "of" are far apart; what is near them are pieces that are no words.
    table = np.array([[0.0, 10.0], [0.0, 11.0], [10.0, 0.0], [10.0, 2.0], [-9.0, -9.0]])
    words = Words(["the", "of"], ranks=np.array([0, 3]), rows=np.array([0, 2]))
    (group,) = word_statistics(table, words, ranges=[(0, 4)], neighbours=[1, 2]).groups
    assert group.norm.value == 10.0
    assert group.distance[1].value == pytest.approx((1 + 2) / 2)
    far = np.hypot(10, 8), np.hypot(10, 10)
    assert group.distance[2].value == pytest.approx(((1 + far[0]) / 2 + (2 + far[1]) / 2) / 2)
    assert group.dot[1].value == pytest.approx((110 + 100) / 2)
    assert group.dot[2].value == pytest.approx(((110 + 20) / 2 + (100 + 0) / 2) / 2)


def test_neighbours_by_distance_and_by_dot_product_are_two_sets():
    table = np.array([[1.0, 0.0], [1.1, 0.0], [9.0, 9.0]])
    words = Words(["the"], ranks=np.array([0]), rows=np.array([0]))
    (group,) = word_statistics(table, words, ranges=[(0, 1)], neighbours=[1]).groups
    assert group.distance[1].value == pytest.approx(0.1)
    assert group.dot[1].value == 9.0


def test_a_single_word_has_no_interval_and_none_no_mean(material):
    embeddings, words = material
    rank = int(words.ranks[5])
    found = word_statistics(embeddings, words, ranges=[(rank, rank + 1), (900, 1000)])
    single, empty = found.groups
    assert (single.words, empty.words) == (1, 0)
    for mean in (single.norm, *single.distance.values(), *single.dot.values()):
        assert mean.value is not None
        assert (mean.low, mean.high) == (None, None)
    assert empty.norm is None
    assert set(empty.distance.values()) == set(empty.dot.values()) == {None}


def test_a_range_ends_before_its_second_number(material):
    embeddings, words = material
    first, second = (int(rank) for rank in words.ranks[:2])
    (group,) = word_statistics(embeddings, words, ranges=[(first, second)]).groups
    assert group.words == 1


def test_json_is_what_the_statistics_say(material):
    found = word_statistics(*material, ranges=[(0, 50), (900, 1000)], neighbours=[2])
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (content["vocabulary"], content["width"]) == (500, 9)
    full, empty = content["groups"]
    group = found.groups[0]
    assert (full["low"], full["high"], full["words"]) == (0, 50, group.words)
    assert full["norm"] == vars(group.norm)
    assert full["distance"] == {"2": vars(group.distance[2])}
    assert full["dot"] == {"2": vars(group.dot[2])}
    assert (empty["norm"], empty["distance"], empty["dot"]) == (None, {"2": None}, {"2": None})


def test_progress_counts_the_words_within_the_ranges(material):
    embeddings, words = material
    done = []
    found = word_statistics(
        embeddings, words, ranges=[(0, 50)], progress=lambda *step: done.append(step)
    )
    assert done[-1] == (found.groups[0].words, found.groups[0].words)


def test_what_cannot_be_asked_is_refused(material):
    for given, message in [
        ({"neighbours": [3, 0]}, "neighbours must be an integer between 1 and 499, got 0"),
        ({"neighbours": [500]}, "neighbours must be an integer between 1 and 499, got 500"),
    ]:
        with pytest.raises(InputError, match=message):
            word_statistics(*material, **given)


def test_words_of_another_tokenizer_are_refused(material):
    embeddings, words = material
    with pytest.raises(InputError, match="but there are 10 embeddings; take those of the token"):
        word_statistics(embeddings[:10], words)
