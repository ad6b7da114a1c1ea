"""Looking at clouds of vectors: equal to hand computation, numpy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.analysis import (
    Dominance,
    Hubness,
    alignment,
    dead_dimensions,
    dominance,
    effective_rank,
    hubness,
    isoscore,
    mean_cosine,
    partition_isotropy,
    singular_spectrum,
    uniformity,
)
from bertflow.errors import InputError


def test_mean_cosine_of_identical_rows_is_1(rng):
    assert mean_cosine(np.tile(rng.normal(size=7), (50, 1))) == 1.0


def test_mean_cosine_pairs_different_rows_only():
    # Were a row ever its own partner, the mean would be above −1.
    assert mean_cosine(np.array([[1.0, 0.0], [-2.0, 0.0]])) == -1.0


def test_mean_cosine_by_hand():
    # Cosines of the three pairs: 0, 0 and −1.
    vectors = np.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    assert mean_cosine(vectors, pairs=200000) == pytest.approx(-1 / 3, abs=0.005)


def test_mean_cosine_is_near_the_mean_over_all_pairs(rng):
    vectors = rng.normal(1.0, 1.0, size=(40, 5))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    every = (unit @ unit.T)[np.triu_indices(40, k=1)].mean()
    assert mean_cosine(vectors, pairs=200000) == pytest.approx(every, abs=0.005)


def test_mean_cosine_of_an_isotropic_cloud_is_near_0_and_of_a_cone_near_1(rng):
    cloud = rng.normal(size=(2000, 64))
    assert abs(mean_cosine(cloud)) < 0.01
    assert mean_cosine(cloud + 20.0) > 0.99


def test_mean_cosine_leaves_zero_rows_out():
    vectors = np.array([[1.0, 2.0], [2.0, 4.0], [0.0, 0.0]])
    assert mean_cosine(vectors) == pytest.approx(1.0, abs=1e-12)


def test_mean_cosine_depends_on_its_seed_alone(rng):
    vectors = rng.normal(size=(100, 5))
    once = mean_cosine(vectors, pairs=50, random_state=3)
    np.random.default_rng(9).normal()
    assert mean_cosine(vectors, pairs=50, random_state=3) == once
    assert mean_cosine(vectors, pairs=50, random_state=4) != once


@pytest.mark.parametrize("pairs", [0, 2.5])
def test_mean_cosine_refuses_a_count_of_pairs_out_of_range(pairs):
    with pytest.raises(InputError, match=f"pairs must be an integer of at least 1, got {pairs}"):
        mean_cosine(np.eye(3), pairs=pairs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (7, 7)])
def test_spectrum_is_numpys_singular_values_over_the_first(rng, shape, dtype):
    vectors = (rng.normal(size=shape) + 2.0).astype(dtype)
    values = np.linalg.svd(vectors.astype(np.float64), compute_uv=False)
    got = singular_spectrum(vectors)
    assert got.dtype == np.float64
    assert got.shape == (min(shape),)
    assert_allclose(got, values / values[0], rtol=0, atol=1e-12)


def test_spectrum_is_not_centred():
    # Equal rows vary in no direction, but they have a length: one value, and rank 1.
    assert_allclose(singular_spectrum(np.full((5, 3), 4.0)), [1.0, 0.0, 0.0], atol=1e-12)


def test_spectrum_of_a_white_cloud_is_flat():
    orthonormal = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 8)))[0]
    assert_allclose(singular_spectrum(3.0 * orthonormal), np.ones(8), atol=1e-12)


def test_spectrum_of_zeros_is_zeros():
    assert_array_equal(singular_spectrum(np.zeros((4, 3))), np.zeros(3))


def aligned(vectors):
    return alignment(vectors, vectors[::-1])


def hubs(vectors):
    return hubness(vectors, k=3)


BY_COSINE = [aligned, dominance, hubs, mean_cosine, uniformity]
AS_GIVEN = [dead_dimensions, effective_rank, isoscore, partition_isotropy]
MEASURES = BY_COSINE + AS_GIVEN


def numbers(result):
    """All the numbers in what a measure returns."""
    if isinstance(result, Dominance):
        return result.contributions
    if isinstance(result, Hubness):
        return [result.skewness, result.antihubs, result.largest]
    return np.atleast_1d(result)


@pytest.mark.parametrize("function", [*MEASURES, singular_spectrum], ids=lambda f: f.__name__)
def test_the_callers_array_is_untouched(rng, function):
    vectors = rng.normal(size=(20, 4))
    vectors[3] = 0.0
    kept = vectors.copy()
    vectors.flags.writeable = False
    function(vectors)
    assert_array_equal(vectors, kept)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_is_computed_in_double(rng, measure):
    for dtype in (np.float32, np.float16, np.int64):
        vectors = (50 * rng.normal(1.0, 1.0, size=(40, 4))).astype(dtype)
        got, expected = numbers(measure(vectors)), numbers(measure(vectors.astype(np.float64)))
        assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("measure", [*MEASURES, singular_spectrum])
def test_every_measure_names_a_row_that_is_not_finite(rng, measure):
    vectors = rng.normal(size=(20, 4))
    for value, kind in ((np.nan, "NaN"), (-np.inf, "infinity")):
        vectors[6, 1] = value
        with pytest.raises(InputError, match=rf"{kind}.* in row 6"):
            measure(vectors)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_takes_a_matrix_of_two_rows(measure):
    for rows in (0, 1):
        with pytest.raises(InputError, match=f"at least 2 rows, got {rows}"):
            measure(np.ones((rows, 3)))
    for shape in ((6,), (5, 0), (3, 4, 5)):
        with pytest.raises(InputError, match=r"shape \(rows, dimensions\), got shape"):
            measure(np.ones(shape))


@pytest.mark.parametrize("measure", BY_COSINE)
def test_measures_by_cosine_leave_zero_rows_out_and_need_two_others(measure):
    vectors = np.zeros((5, 3))
    vectors[2] = 1.0
    with pytest.raises(InputError, match="at least 2 (rows|pairs)"):
        measure(vectors)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.filterwarnings("error")
def test_no_scale_makes_a_measure_fail(rng, measure):
    for scale in (1e-140, 1e-38, 1e-30, 1e30, 1e38, 1e140):
        result = numbers(measure(scale * rng.uniform(-1.0, 2.0, size=(40, 4))))
        assert np.isfinite(result).all(), scale
    for scale in (1e-200, 1e200):
        with pytest.raises(InputError, match=r"the largest number in X is .e[+-]200; divide X"):
            measure(np.full((40, 4), scale))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "vectors",
    [np.full((9, 3), 0.1), np.full((9, 3), 1e30), np.arange(-4.0, 5.0)[:, None]],
    ids=["all equal", "all equal and huge", "one dimension"],
)
def test_degenerate_clouds_give_finite_numbers_or_say_why_not(measure, vectors):
    try:
        result = numbers(measure(vectors))
    except InputError as error:
        assert "equal" in str(error) or "needs at least 2, got 1" in str(error)
    else:
        assert np.isfinite(result).all()
