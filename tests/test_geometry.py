"""Hubness, alignment and uniformity: equal to loops, scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist
from scipy.stats import ortho_group
from sklearn.neighbors import NearestNeighbors

import bertflow.analysis.neighbours
from bertflow.analysis import Hubness, alignment, hubness, uniformity
from bertflow.errors import InputError
from bertflow.evaluation import paired_cosine


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(params=[2**22, 1000])
def _blocks(request, monkeypatch):
    """All rows in one block, and three at a time with a rest."""
    monkeypatch.setattr(bertflow.analysis.neighbours, "BLOCK_ENTRIES", request.param)


@pytest.mark.usefixtures("_blocks")
def test_hubness_is_that_of_scikit_learn_and_scipy(rng):
    for k in [1, 10, 301]:
        vectors = rng.normal(0.3, 1.0, size=(302, 20))
        neighbours = NearestNeighbors(n_neighbors=k, metric="cosine").fit(vectors)
        lists = neighbours.kneighbors(return_distance=False)
        occurrence = np.bincount(lists.ravel(), minlength=302)
        skewness = scipy.stats.skew(occurrence) if np.ptp(occurrence) else 0.0
        got = hubness(vectors, k=k)
        assert got.skewness == pytest.approx(skewness, abs=1e-12)
        assert got.antihubs == np.mean(occurrence == 0)
        assert (got.largest, got.k, got.rows) == (occurrence.max(), k, 302)


def test_hubness_by_hand():
    # All three axes are nearest to the diagonal, row 0; that one's nearest is the row after it.
    star = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # Occurrences 3, 1, 0, 0: third moment 1.5, variance 1.5.
    expected = Hubness(skewness=1.5 / 1.5**1.5, antihubs=0.5, largest=3, k=1, rows=4)
    got = hubness(star, k=1)
    assert got.skewness == pytest.approx(expected.skewness)
    assert (got.antihubs, got.largest, got.k, got.rows) == (0.5, 3, 1, 4)


def test_a_common_direction_makes_hubs_and_centring_removes_them(rng):
    # On an even sphere no row is more central than another; off the origin the ones near the mean
    # direction are, and the more dimensions the more so.
    cloud = rng.normal(size=(1000, 100))
    centred, narrow, shifted = hubness(cloud), hubness(cloud[:, :3] + 1.0), hubness(cloud + 1.0)
    assert abs(centred.skewness) < 0.5
    assert abs(narrow.skewness) < 0.5
    assert shifted.skewness > 1.5
    assert shifted.antihubs > 0.01 > centred.antihubs
    assert shifted.largest > 3 * centred.largest


@pytest.mark.usefixtures("_blocks")
def test_ties_make_no_hubs():
    for vectors in [
        np.eye(60),
        np.tile([0.1, 0.7, 3.0], (60, 1)),
        np.repeat(np.eye(4), 15, axis=0),
    ]:
        assert hubness(vectors, k=5) == Hubness(0.0, 0.0, 5, k=5, rows=60)


def test_hubness_goes_by_direction_and_leaves_zero_rows_out(rng):
    vectors = rng.normal(size=(50, 6))
    scaled = np.insert(rng.uniform(0.1, 9, size=(50, 1)) * vectors, 7, 0.0, axis=0)
    assert hubness(scaled) == hubness(vectors)
    assert hubness(vectors @ ortho_group.rvs(6, random_state=1)) == hubness(vectors)


def test_a_large_cloud_is_sampled_by_seed(rng):
    vectors = rng.normal(size=(400, 6))
    once = hubness(vectors, rows=100, random_state=1)
    assert once.rows == 100
    assert hubness(vectors, rows=100, random_state=1) == once
    assert hubness(vectors, rows=100, random_state=2) != once
    assert hubness(vectors, rows=400, random_state=1) == hubness(vectors, random_state=2)
    evenness = [uniformity(vectors, rows=100, random_state=seed) for seed in (1, 1, 2)]
    assert evenness[0] == evenness[1] != evenness[2]
    assert evenness[0] == pytest.approx(uniformity(vectors), abs=0.1)


def test_hubness_refuses_a_count_out_of_range(rng):
    for k, rows in [(0, 10), (10, 10), (10, 5000), (1.5, 10)]:
        with pytest.raises(InputError, match=f"k must be an integer between 1 and 9, got {k}"):
            hubness(rng.normal(size=(10, 3)), k=k, rows=rows)


def test_a_sample_takes_two_rows(rng):
    for rows in [1, -3, 10.0]:
        for measure in [hubness, uniformity]:
            with pytest.raises(
                InputError, match=f"rows must be an integer of at least 2, got {rows}"
            ):
                measure(rng.normal(size=(20, 3)), rows=rows)


def test_alignment_is_the_mean_over_pairs(rng):
    for count in [40, 9000]:
        first, second = rng.normal(size=(2, count, 5))
        expected = np.square(unit(first) - unit(second)).sum(axis=1).mean()
        assert alignment(first, second) == pytest.approx(expected, rel=1e-12)
        cosine = paired_cosine(first, second).mean()
        assert alignment(first, second) == pytest.approx(2 - 2 * cosine, rel=1e-12)


def test_alignment_by_hand(rng):
    vectors = rng.normal(size=(7, 4))
    assert alignment(vectors, vectors) == 0.0
    assert alignment(vectors, -3 * vectors) == pytest.approx(4.0)
    assert alignment(np.eye(3), np.roll(np.eye(3), 1, axis=0)) == pytest.approx(2.0)


def test_alignment_leaves_pairs_with_a_zero_row_out():
    first = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    second = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    assert alignment(first, second) == 1.0
    with pytest.raises(InputError, match="2 pairs without a zero row, got 1 of 3"):
        alignment(first[:3], second[:3])


def test_alignment_refuses_other_shapes():
    with pytest.raises(InputError, match=r"equal shapes, got \(3, 2\) and \(2, 2\)"):
        alignment(np.ones((3, 2)), np.ones((2, 2)))


@pytest.mark.usefixtures("_blocks")
def test_uniformity_is_the_log_mean_over_distinct_pairs(rng):
    vectors = rng.normal(0.3, 1.0, size=(302, 5))
    expected = np.log(np.exp(-2 * pdist(unit(vectors), "sqeuclidean")).mean())
    assert uniformity(vectors) == pytest.approx(expected, rel=1e-12)


def test_uniformity_by_hand():
    assert uniformity(np.tile([0.1, 0.7, 3.0], (9, 1))) == pytest.approx(0.0, abs=1e-14)
    assert uniformity(np.array([[2.0, 1.0], [-4.0, -2.0]])) == pytest.approx(-8.0)
    # Of the six pairs of a cross in the plane four are at a right angle and two opposite.
    square = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    expected = np.log((4 * np.exp(-4) + 2 * np.exp(-8)) / 6)
    assert uniformity(square) == pytest.approx(expected)


def test_uniformity_of_an_even_cloud_in_many_dimensions_is_near_minus_4(rng):
    assert uniformity(rng.normal(size=(500, 400))) == pytest.approx(-4.0, abs=0.05)


def test_uniformity_goes_by_direction_and_leaves_zero_rows_out(rng):
    vectors = rng.normal(size=(50, 6))
    scaled = np.insert(10.0 ** rng.uniform(-150, 150, size=(50, 1)) * vectors, 7, 0.0, axis=0)
    turned = vectors @ ortho_group.rvs(6, random_state=1)
    assert_allclose([uniformity(scaled), uniformity(turned)], uniformity(vectors), rtol=1e-12)
