"""What is drawn from a corpus: distinct sentences, each with the same chance, in one pass."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from bertflow import Flow, Whitening, calibrate, load_encoder
from bertflow.encoders import sample_corpus
from bertflow.errors import InputError

CORPUS = [f"sentence {number * number % 911}" for number in range(3000)]


def test_a_corpus_that_is_small_enough_is_taken_with_its_repeats():
    for size in [3000, 10000]:
        found = sample_corpus(iter(CORPUS), size)
        assert (found.sentences, found.rows, found.whole) == (CORPUS, 3000, True)


def test_of_a_larger_one_so_many_distinct_sentences_are_drawn_in_its_order():
    for size in [2, 17, 400]:
        found = sample_corpus(iter(CORPUS), size)
        assert (found.rows, found.whole, len(found.sentences)) == (3000, False, size)
        first = {sentence: CORPUS.index(sentence) for sentence in found.sentences}
        assert len(first) == size
        assert list(first.values()) == sorted(first.values())


def test_where_there_are_fewer_distinct_ones_all_are_taken():
    found = sample_corpus(CORPUS, 2000)
    assert sorted(found.sentences) == sorted(set(CORPUS))
    assert not found.whole


def test_neither_order_nor_repeats_change_what_is_drawn():
    expected = set(sample_corpus(CORPUS, 50).sentences)
    shuffled = CORPUS * 2
    random.Random(0).shuffle(shuffled)
    assert set(sample_corpus(shuffled, 50).sentences) == expected
    parts = [sample_corpus(CORPUS[start : start + 1000], 50).sentences for start in (0, 1000, 2000)]
    together = [sentence for part in parts for sentence in part]
    assert set(sample_corpus(together, 50).sentences) == expected


def test_the_seed_decides():
    once, again, other = (sample_corpus(CORPUS, 50, seed=seed).sentences for seed in (7, 7, 8))
    assert once == again != other


def test_every_sentence_has_the_same_chance():
    distinct = sorted(set(CORPUS))[:150]
    counts: Counter[str] = Counter()
    for seed in range(1500):
        counts.update(sample_corpus(distinct, 40, seed=seed).sentences)
    found = np.array([counts[sentence] for sentence in distinct])
    share = 40 / len(distinct)
    deviation = (1500 * share * (1 - share)) ** 0.5
    assert found.mean() == pytest.approx(1500 * share)
    assert found.std() == pytest.approx(deviation, rel=0.15)
    assert abs(found - found.mean()).max() < 5 * deviation


def test_what_is_held_does_not_grow():
    def most_held(count: int) -> int:
        tracemalloc.start()
        sample_corpus((f"sentence {number}" for number in range(count)), 100)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    most_held(1000)
    assert most_held(50_000) < most_held(5_000) + 20_000


def test_a_sample_of_less_than_two_is_refused():
    for size in [1, 0, -3]:
        with pytest.raises(InputError, match=rf"at least 2 sentences, got {size}"):
            sample_corpus(CORPUS, size)


def test_what_is_not_text_is_named(tiny_bert):
    for place in [3, 60]:
        for bad, said in [(5, "is int, not text"), ("\ud800", "holds half a character")]:
            corpus: list = CORPUS[:80]
            corpus[place] = bad
            with pytest.raises(InputError, match=f"sentence {place} {said}"):
                calibrate(load_encoder(tiny_bert), corpus, Whitening(), sample=50)


def test_calibrate_fits_on_the_sample_and_says_so(tiny_bert, tiny_sentences):
    encoder = load_encoder(tiny_bert)
    calibrator = Flow(epochs=1, random_state=3)
    model = calibrate(encoder, iter(tiny_sentences), calibrator, sample=60)
    facts = model.calibrator.provenance_
    assert facts["drawn_from"] == len(tiny_sentences)
    assert facts["sentences"] == facts["distinct"] == 60
    drawn = sample_corpus(tiny_sentences, 60, seed=3).sentences
    expected = calibrate(encoder, drawn, calibrator)
    assert "drawn_from" not in expected.calibrator.provenance_
    assert np.array_equal(model.calibrator.mean_, expected.calibrator.mean_)
    whole = calibrate(encoder, tiny_sentences, calibrator, sample=None)
    assert whole.calibrator.provenance_["sentences"] == len(tiny_sentences)


def test_on_the_command_line(cli, tmp_path, tiny_bert, tiny_sentences):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("\n".join(tiny_sentences) + "\n")
    fit = ["fit", "--encoder", str(tiny_bert), "--corpus", str(corpus), "--output"]
    code, out, _ = cli(*fit, tmp_path / "m", "--calibrator", "whitening", "--sample", "50")
    count = f"{len(tiny_sentences):,}"
    assert code == 0
    assert f"whitening fitted on 50 sentences (drawn from {count}, 50 distinct, " in out
    code, out, _ = cli(*fit, tmp_path / "n", "--calibrator", "whitening", "--sample", "0")
    assert code == 0
    assert f"whitening fitted on {count} sentences (" in out
    code, _, err = cli(*fit, tmp_path / "n", "--sample", "1")
    assert (code, err) == (1, "error: a sample needs at least 2 sentences, got 1\n")
