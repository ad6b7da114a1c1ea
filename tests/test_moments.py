"""Moments: chunked, merged and one-shot agree, and agree with numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bertflow.calibrators import Moments
from bertflow.calibrators.moments import moments_of
from bertflow.errors import InputError

every_kind = pytest.mark.parametrize("covariance", [True, False], ids=["full", "diagonal"])


def of(*parts: np.ndarray, covariance: bool = True) -> Moments:
    moments = Moments(parts[0].shape[1], covariance=covariance)
    for part in parts:
        moments.update(torch.from_numpy(part))
    return moments


def assert_same(found: Moments, expected: Moments, *, full: bool) -> None:
    assert found.count == expected.count
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.variance(), expected.variance(), rtol=1e-12, atol=1e-12)
    if full:
        np.testing.assert_allclose(
            found.covariance(), expected.covariance(), rtol=1e-12, atol=1e-12
        )


@pytest.fixture
def x(rng):
    return rng.normal(size=(1000, 5)) @ rng.normal(size=(5, 5)) + 3.0


def test_by_hand():
    moments = of(np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 10.0]]))
    assert moments.count == 3
    assert moments.mean.tolist() == [3.0, 6.0]
    np.testing.assert_allclose(moments.covariance(), [[8 / 3, 16 / 3], [16 / 3, 32 / 3]])
    np.testing.assert_allclose(moments.variance(), [8 / 3, 32 / 3])
    np.testing.assert_allclose(moments.deviation(), np.sqrt([8 / 3, 32 / 3]))


def test_agrees_with_numpy(x):
    moments = of(x)
    np.testing.assert_allclose(moments.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(x.T, ddof=0), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(moments.variance(), x.var(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation(), x.std(axis=0), rtol=1e-12)


def test_chunked_is_one_shot(x):
    for size in [1, 7, 333, 999]:
        for covariance in [True, False]:
            parts = [x[start : start + size] for start in range(0, len(x), size)]
            assert_same(
                of(*parts, covariance=covariance), of(x, covariance=covariance), full=covariance
            )


def test_merged_in_any_order_is_one_shot(x):
    for covariance in [True, False]:
        expected = of(x, covariance=covariance)
        parts = [x[:10], x[10:11], x[11:600], x[600:]]
        for order in itertools.permutations(range(4)):
            merged = Moments(5, covariance=covariance)
            for index in order:
                merged.merge(of(parts[index], covariance=covariance))
            assert_same(merged, expected, full=covariance)


def test_merged_as_a_tree_is_one_shot(x):
    for covariance in [True, False]:
        left = of(x[:100], covariance=covariance)
        left.merge(of(x[100:300], covariance=covariance))
        right = of(x[300:301], covariance=covariance)
        right.merge(of(x[301:], covariance=covariance))
        left.merge(right)
        assert_same(left, of(x, covariance=covariance), full=covariance)


def test_merging_leaves_the_other_alone(x):
    first, second = of(x[:10]), of(x[10:])
    mean, covariance = second.mean.clone(), second.covariance().clone()
    first.merge(second)
    first.update(torch.from_numpy(x))
    assert second.count == 990
    assert torch.equal(second.mean, mean)
    assert torch.equal(second.covariance(), covariance)


def test_updating_leaves_the_rows_alone(x):
    before = x.copy()
    of(x)
    np.testing.assert_array_equal(x, before)


def test_nothing_adds_nothing(x):
    for covariance in [True, False]:
        moments = of(x, covariance=covariance)
        moments.update(torch.empty(0, 5))
        moments.merge(Moments(5, covariance=covariance))
        assert_same(moments, of(x, covariance=covariance), full=covariance)
        nothing = Moments(5, covariance=covariance)
        nothing.merge(Moments(5, covariance=covariance))
        assert nothing.count == 0
        nothing.merge(moments)
        assert_same(nothing, moments, full=covariance)


def test_a_large_mean_costs_no_digits_in_float32(rng):
    for size in [50, 5000]:
        for covariance in [True, False]:
            x = rng.normal(10_000, 1, size=(5000, 3)).astype(np.float32)
            parts = [x[start : start + size] for start in range(0, 5000, size)]
            variance = of(*parts, covariance=covariance).variance()
            np.testing.assert_allclose(variance, 1, atol=0.06)
            np.testing.assert_allclose(variance, x.astype(np.float64).var(axis=0), rtol=1e-9)


def test_rows_of_any_type_are_summed_in_float64(x):
    for dtype in [torch.float16, torch.bfloat16, torch.float32, torch.float64]:
        rows = torch.from_numpy(x).to(dtype)
        moments = Moments(5)
        moments.update(rows)
        assert moments.mean.dtype == moments.covariance().dtype == torch.float64
        expected = rows.double().numpy()
        np.testing.assert_allclose(moments.mean, expected.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(
            moments.covariance(), np.cov(expected.T, ddof=0), rtol=1e-10, atol=1e-12
        )


def test_diagonal_is_that_of_the_full_matrix_and_refuses_to_be_more(x):
    diagonal = of(x, covariance=False)
    np.testing.assert_allclose(diagonal.variance(), of(x).variance(), rtol=1e-12)
    with pytest.raises(ValueError, match="covariance=True"):
        diagonal.covariance()


def test_equal_rows_are_refused_whatever_rounding_leaves():
    for count in [2, 1000, 9001]:
        for value in [0.0, 0.1, 1 / 3, -12345.678, 1e-30, 1e30]:
            for covariance in [True, False]:
                rows = np.full((count, 3), value) * np.array([1.0, 1.7, -0.3])
                with pytest.raises(InputError, match=f"all {count} rows are equal"):
                    moments_of(rows, covariance=covariance)


def test_equal_rows_of_low_precision_are_refused():
    for dtype in [np.float16, np.float32]:
        for covariance in [True, False]:
            rows = np.tile(np.array([0.1, 1 / 3, 7.7], dtype=dtype), (5000, 1))
            with pytest.raises(InputError, match="equal"):
                moments_of(rows, covariance=covariance)


def test_rows_that_differ_in_one_place_only_are_not_refused():
    for covariance in [True, False]:
        rows = np.full((5000, 3), 1 / 3, dtype=np.float32)
        rows[4500, 1] = np.nextafter(np.float32(1 / 3), np.float32(1))
        assert moments_of(rows, covariance=covariance).count == 5000


def test_values_too_large_to_square_are_refused():
    for covariance in [True, False]:
        rows = np.array([[1e200, 1.0], [-1e200, 2.0], [3e200, 1.0]])
        with pytest.raises(InputError, match="too large"):
            moments_of(rows, covariance=covariance)


def test_chunks_of_checked_rows_are_one_shot(rng):
    for kind in [np.asarray, torch.from_numpy]:
        for covariance in [True, False]:
            x = rng.normal(size=(10_000, 3)) + 5
            found = moments_of(kind(x), covariance=covariance)
            assert_same(found, of(x, covariance=covariance), full=covariance)


def test_moments_that_were_kept_are_those_that_were_taken(rng):
    for covariance in [True, False]:
        taken = of(rng.normal(size=(100, 3)) + 5, covariance=covariance)
        again = Moments.restored(taken.count, taken.mean, taken.second)
        assert_same(again, taken, full=covariance)
        other = of(rng.normal(size=(50, 3)), covariance=covariance)
        again.merge(other)
        taken.merge(other)
        assert_same(again, taken, full=covariance)


@pytest.mark.parametrize("covariance", [True, False])
def test_moments_of_a_part_are_taken_away_again(rng, covariance):
    x = torch.from_numpy(rng.normal(7, 2, size=(60, 5)))
    whole, part, rest = (moments_of(rows, covariance=covariance) for rows in (x, x[:25], x[25:]))
    left = whole - part
    assert left.count == 35
    torch.testing.assert_close(left.mean, rest.mean)
    torch.testing.assert_close(left.second, rest.second)
    both = part + rest
    torch.testing.assert_close(both.second, whole.second)
    assert part.count == 25
    assert (part - whole).count == 0
