"""Measures of how evenly dimensions are used: by hand, by brute force, and the IsoScore package."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group
from sklearn.decomposition import PCA

from bertflow.analysis import (
    dead_dimensions,
    dominance,
    effective_rank,
    isoscore,
    mean_cosine,
    partition_isotropy,
)
from bertflow.calibrators import Flow
from bertflow.errors import InputError


def cross(*sizes):
    """±size along each axis: its principal axes are the axes, its singular values √2 · size."""
    axes = np.diag(np.array(sizes, dtype=np.float64))
    return np.concatenate([axes, -axes])


def waves(rows, width):
    """A cloud that takes no generator of random numbers, so that it is the same for ever."""
    row, column = np.arange(1.0, rows + 1)[:, None], np.arange(1.0, width + 1)
    return np.sin(0.7 * row * column + column**2)


def rotated(vectors):
    return vectors @ ortho_group.rvs(vectors.shape[1], random_state=1)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_partition_isotropy_of_a_cross_is_1(width):
    assert partition_isotropy(cross(*np.ones(width))) == pytest.approx(1.0, abs=1e-14)


def test_partition_isotropy_of_one_direction_by_hand():
    # Z is 2e³ along it, 2e⁻³ against it and 2 across.
    assert partition_isotropy(np.array([[3.0, 0.0], [3.0, 0.0]])) == pytest.approx(np.exp(-6))


def test_partition_isotropy_survives_norms_whose_exponential_overflows():
    # Z is e¹⁰⁰⁰ along the first axis and e⁹⁹⁹ along the second.
    assert partition_isotropy(cross(1000.0, 999.0)) == pytest.approx(np.exp(-1))
    assert partition_isotropy(cross(1e30, 2e30)) == 0.0


@pytest.mark.parametrize("shape", [(50, 6), (4, 9), (9000, 3)])
def test_partition_isotropy_is_that_of_loops_over_both_signs(rng, shape):
    vectors = rng.normal(0.2, 0.5, size=shape)
    directions = np.linalg.eigh(vectors.T @ vectors)[1].T
    z = [np.exp(vectors @ (sign * c)).sum() for c in directions for sign in (1, -1)]
    assert partition_isotropy(vectors) == pytest.approx(min(z) / max(z), rel=1e-10)


def test_partition_isotropy_is_blind_to_rotation_and_reflection_but_not_to_scale(rng):
    vectors = rng.normal(0.2, 0.5, size=(50, 6))
    value = partition_isotropy(vectors)
    assert partition_isotropy(rotated(vectors)) == pytest.approx(value, rel=1e-10)
    assert partition_isotropy(-vectors) == pytest.approx(value, rel=1e-10)
    assert partition_isotropy(2 * vectors) < value < partition_isotropy(vectors / 2)
    assert partition_isotropy(1e-9 * vectors) == pytest.approx(1.0, abs=1e-6)


def test_partition_isotropy_of_a_sample_is_near_that_of_all_and_depends_on_its_seed(rng):
    vectors = rng.normal(0.2, 0.5, size=(3000, 4))
    once = partition_isotropy(vectors, rows=2000, random_state=1)
    assert partition_isotropy(vectors, rows=2000, random_state=1) == once
    assert partition_isotropy(vectors, rows=2000, random_state=2) != once
    assert once == pytest.approx(partition_isotropy(vectors), rel=0.1)


# By the authors' package: IsoScore 2.0.1, float(IsoScore.IsoScore.IsoScore(vectors)) on the CPU.
# It takes the root of D in float32, which costs it the digits after the seventh.
@pytest.mark.parametrize(
    ("vectors", "published"),
    [
        (waves(40, 6), 0.7486216508518603),
        (waves(40, 6) / np.arange(1, 7), 0.21029113472736755),
        (waves(40, 6) * np.arange(1.0, 7.0) ** -3 + 5, 0.006937840091224483),
        (waves(5, 12), 0.19187901980855282),
        (waves(300, 50) / np.sqrt(np.arange(1, 51)), 0.22411302451772275),
    ],
)
def test_isoscore_is_that_of_the_authors_package(vectors, published):
    assert isoscore(vectors) == pytest.approx(published, rel=0, abs=1e-7)


@pytest.mark.parametrize("shape", [(200, 7), (5, 30), (9000, 4)])
def test_isoscore_is_the_papers_algorithm_step_by_step(rng, shape):
    vectors = rng.normal(3.0, 1.0, size=shape) * np.linspace(0.1, 2, shape[1])
    width = shape[1]
    variance = np.zeros(width)
    reoriented = PCA().fit_transform(vectors)
    variance[: reoriented.shape[1]] = reoriented.var(axis=0)
    normalized = np.sqrt(width) * variance / np.linalg.norm(variance)
    defect = np.linalg.norm(normalized - 1) / np.sqrt(2 * (width - np.sqrt(width)))
    phi = (width - defect**2 * (width - np.sqrt(width))) ** 2 / width**2
    assert isoscore(vectors) == pytest.approx((width * phi - 1) / (width - 1), abs=1e-12)


def test_isoscore_by_hand():
    assert isoscore(cross(1, 1, 1, 1)) == pytest.approx(1.0, abs=1e-15)
    assert isoscore(np.outer(np.arange(9.0), [1.0, 2.0, 3.0])) == pytest.approx(0.0, abs=1e-15)
    # Variances 9 : 1, participation ratio 100 / 82.
    assert isoscore(cross(3, 1)) == pytest.approx(18 / 82)
    # k of D dimensions used evenly: (k − 1) / (D − 1).
    assert isoscore(cross(1, 1, 1, 0, 0)) == pytest.approx(0.5)


def test_isoscore_of_few_rows_of_a_ball_is_as_low_as_stated(rng):
    assert isoscore(rng.normal(size=(100, 300))) == pytest.approx(100 / 400, abs=0.01)


def test_isoscore_takes_two_dimensions():
    with pytest.raises(InputError, match="at least 2, got 1"):
        isoscore(np.arange(5.0)[:, None])


def test_effective_rank_by_hand():
    assert effective_rank(cross(1, 1, 1, 1)) == pytest.approx(4.0)
    assert effective_rank(np.outer(np.arange(9.0), [1.0, 2.0, 3.0])) == pytest.approx(1.0)
    # Singular values 3 : 1, not their squares.
    assert effective_rank(cross(3, 1)) == pytest.approx(4 / 3**0.75)


@pytest.mark.parametrize("shape", [(200, 7), (5, 30), (9000, 4)])
def test_effective_rank_is_that_of_numpys_singular_values_of_the_centred_matrix(rng, shape):
    vectors = rng.normal(100.0, 1.0, size=shape) * np.linspace(0.1, 2, shape[1])
    values = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
    share = values / values.sum()
    share = share[share > 1e-12]
    expected = np.exp(-(share * np.log(share)).sum())
    assert effective_rank(vectors) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("measure", [isoscore, effective_rank])
def test_spectral_measures_are_blind_to_rotation_shift_and_scale(rng, measure):
    vectors = rng.normal(size=(60, 5)) * [3, 2, 1, 0.5, 0.1]
    value = measure(vectors)
    for same in (rotated(vectors), vectors + 7.0, 1e30 * vectors, 1e-38 * vectors, 1e38 * vectors):
        assert measure(same) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("measure", [isoscore, effective_rank, dead_dimensions])
def test_spectral_measures_refuse_equal_rows(measure):
    with pytest.raises(InputError, match="all 6 rows are equal"):
        measure(np.tile([0.1, 0.7, 1e6], (6, 1)))


def test_contributions_are_the_means_over_all_pairs(rng):
    vectors = rng.normal(0.5, 1.0, size=(40, 5))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [(i, j) for i in range(40) for j in range(i)]
    expected = np.mean([unit[i] * unit[j] for i, j in pairs], axis=0)
    got = dominance(vectors)
    assert_allclose(got.contributions, expected, rtol=0, atol=1e-14)
    assert got.mean_cosine == pytest.approx(mean_cosine(vectors, pairs=200000), abs=0.005)


def test_contributions_do_not_depend_on_chunks(rng):
    vectors = rng.normal(0.5, 1.0, size=(9000, 3))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = (unit.sum(axis=0) ** 2 - (unit**2).sum(axis=0)) / (9000 * 8999)
    assert_allclose(dominance(vectors).contributions, expected, rtol=1e-10)


def test_contributions_of_one_direction_by_hand():
    got = dominance(np.array([[3.0, -4.0], [6.0, -8.0], [0.3, -0.4]]))
    assert_allclose(got.contributions, [0.36, 0.64], atol=1e-15)
    assert got.mean_cosine == pytest.approx(1.0)
    assert [dimension for dimension, _ in got.top(5)] == [1, 0]


def test_shares_are_of_absolute_contributions_and_add_up_to_1():
    # Dimension 0 adds 0.64 to the cosine of the two, dimension 1 takes 0.36 away.
    got = dominance(np.array([[4.0, 3.0], [4.0, -3.0]]))
    assert_allclose(got.shares, [0.64, 0.36])
    assert got.mean_cosine == pytest.approx(0.28)


def test_contributions_that_cancel_have_shares_and_none_has_none():
    # The mean cosine, by which the paper divides, is 0 in both.
    cancelling = dominance(np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    assert cancelling.mean_cosine == pytest.approx(0.0, abs=1e-15)
    assert_allclose(cancelling.shares, [0.5, 0.5, 0.0])
    assert_array_equal(dominance(np.eye(2)).shares, [0.0, 0.0])


def test_a_rogue_dimension_is_on_top(rng):
    vectors = rng.normal(size=(500, 20))
    vectors[:, 13] += 30.0
    (dimension, share), (_, second) = dominance(vectors).top(2)
    assert dimension == 13
    assert share > 0.99 > 0.01 > second


def test_contributions_depend_on_directions_alone(rng):
    vectors = rng.normal(0.5, 1.0, size=(40, 5))
    lengths = 10.0 ** rng.uniform(-150, 150, size=(40, 1))
    scaled = np.insert(lengths * vectors, 7, 0.0, axis=0)
    expected = dominance(vectors).contributions
    assert_allclose(dominance(scaled).contributions, expected, rtol=0, atol=1e-14)


def test_dead_dimensions_are_those_the_flow_sets_apart(rng):
    vectors = rng.normal(size=(64, 6))
    vectors[:, 1] = 0.1
    vectors[:, 3] = 1e9 + 1e-6 * vectors[:, 3]
    vectors[:, 4] *= 1e-5
    assert dead_dimensions(vectors).tolist() == [1, 3, 4]
    live = Flow(levels=1, depth=1, epochs=1).fit(vectors).live_
    assert_array_equal(dead_dimensions(vectors), np.flatnonzero(~live))


def test_a_cloud_that_varies_everywhere_has_no_dead_dimension(rng):
    assert dead_dimensions(rng.normal(size=(64, 6))).tolist() == []
