"""The affine calibrators against numpy and scikit-learn, to the last digit that matters."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from bertflow.calibrators import AllButTheTop, Standardization, Whitening
from bertflow.data import read_task
from bertflow.errors import FewRowsWarning, InputError
from bertflow.evaluation import correlate, paired_cosine

LINEAR = {
    "standardization": Standardization,
    "all-but-the-top": AllButTheTop,
    "all-but-the-top-standardized": lambda: AllButTheTop(2, standardize=True),
    "whitening": Whitening,
    "whitening-3": lambda: Whitening(3),
    "whitening-soft": lambda: Whitening(power=0.75, shrinkage=0.1),
}
every_linear = pytest.mark.parametrize("build", LINEAR.values(), ids=LINEAR)


@pytest.fixture
def x(rng):
    """600 x 8 correlated rows away from zero, the axes of clearly different variance."""
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    return rng.normal(size=(600, 8)) * 2.0 ** -np.arange(8) @ rotation + rng.normal(size=8) * 5


def principal(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues in falling order, eigenvectors as rows."""
    values, vectors = np.linalg.eigh(covariance)
    return values[::-1], vectors.T[::-1]


def up_to_sign(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The expected columns, each with the sign of the found one."""
    return expected * np.sign((found * expected).sum(axis=0))


# Standardization


def test_standardization_is_scikit_learns(x):
    found = Standardization().fit(x)
    expected = StandardScaler().fit(x)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-12)
    np.testing.assert_allclose(found.scale_, expected.scale_, rtol=1e-12)
    np.testing.assert_allclose(found.transform(x), expected.transform(x), rtol=1e-10, atol=1e-12)
    z = found.transform(x)
    np.testing.assert_allclose(found.inverse_transform(z), x, rtol=1e-12)


def test_standardization_divides_a_dead_dimension_by_the_typical_deviation():
    x = np.array([[0.0, 7.0, 0.0, 0.0], [2.0, 7.0, 6.0, 20.0]])
    found = Standardization().fit(x)
    assert found.scale_.tolist() == [1.0, 3.0, 3.0, 10.0]
    assert found.transform(np.array([[1.0, 10.0, 3.0, 10.0]])).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_standardization_takes_float32_far_from_zero(rng):
    x = rng.normal(10_000, 1, size=(5000, 3)).astype(np.float32)
    np.testing.assert_allclose(Standardization().fit(x).scale_ ** 2, 1, atol=0.06)
    np.testing.assert_allclose(Standardization().fit_transform(x).var(axis=0), 1, atol=1e-3)


# Whitening


def test_whitening_takes_float32_far_from_zero(rng):
    x = rng.normal(10_000, 1, size=(5000, 3)).astype(np.float32)
    whitening = Whitening(shrinkage=0.0).fit(x)
    np.testing.assert_allclose(whitening.scale_**2, 1, atol=0.06)
    np.testing.assert_allclose(np.cov(whitening.transform(x).T, ddof=0), np.eye(3), atol=1e-3)


def test_whitened_rows_have_mean_zero_and_identity_covariance(x):
    z = Whitening(shrinkage=0.0).fit_transform(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(z.T, ddof=0), np.eye(8), atol=1e-6)


def test_real_vectors_are_whitened_to_identity_covariance(shared_data):
    raw = np.load(shared_data / "embeddings/smollm2-135m_first-last-avg.npy", mmap_mode="r")
    x = np.asarray(raw[:6000], dtype=np.float64)
    z = Whitening(shrinkage=0.0).fit_transform(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(z.T, ddof=0), np.eye(576), atol=1e-6)


def test_whitening_is_scikit_learns_pca_up_to_sign_and_ddof(x):
    for dim in [None, 1, 3]:
        found = Whitening(dim, shrinkage=0.0).fit_transform(x)
        expected = PCA(dim, whiten=True, svd_solver="full").fit_transform(x)
        expected = expected * np.sqrt(len(x) / (len(x) - 1))
        np.testing.assert_allclose(found, up_to_sign(found, expected), atol=1e-8)


def test_first_columns_of_all_are_those_of_fewer(x):
    for settings in [{}, {"power": 0.75, "shrinkage": 0.1}]:
        for dim in [1, 3, 7, 8]:
            few, everything = Whitening(dim, **settings), Whitening(**settings)
            z = few.fit_transform(x)
            assert z.shape == (600, dim)
            np.testing.assert_allclose(
                z, everything.fit_transform(x)[:, :dim], rtol=1e-12, atol=1e-12
            )


def test_first_columns_carry_the_most_variance(x):
    kept = Whitening(3, power=0).fit_transform(x).var(axis=0)
    expected = principal(np.cov(x.T, ddof=0))[0][:3]
    np.testing.assert_allclose(kept, expected, rtol=1e-9)


def test_power_zero_only_rotates(x):
    found = Whitening(power=0).fit(x)
    z = found.transform(x)
    np.testing.assert_array_equal(found.scale_, np.ones(8))
    centred = x - x.mean(axis=0)
    np.testing.assert_allclose(z @ z.T, centred @ centred.T, atol=1e-9)
    covariance = np.cov(z.T, ddof=0)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-12)
    assert (np.diff(np.diag(covariance)) < 0).all()


def test_power_softens_the_scales(x):
    for power in [0.25, 0.75]:
        variances = principal(np.cov(x.T, ddof=0))[0]
        z = Whitening(power=power, shrinkage=0.0).fit_transform(x)
        np.testing.assert_allclose(z.var(axis=0), variances ** (1 - power), rtol=1e-9)


def test_shrinkage_by_hand():
    # Variances 4 and 1 about the mean (10, 0), no correlation; tr/D = 2.5.
    x = np.array([[12.0, 1.0], [8.0, 1.0], [12.0, -1.0], [8.0, -1.0]])
    all_shrunk = Whitening(shrinkage=1).fit(x)
    np.testing.assert_allclose(all_shrunk.scale_, np.sqrt([2.5, 2.5]))
    lengths = np.linalg.norm(all_shrunk.transform(x), axis=1)
    np.testing.assert_allclose(lengths, np.sqrt((4 + 1) / 2.5))
    fifth = Whitening(shrinkage=0.2).fit(x)
    np.testing.assert_allclose(fifth.scale_**2, [0.8 * 4 + 0.2 * 2.5, 0.8 * 1 + 0.2 * 2.5])
    z = fifth.transform(np.array([[12.0, 1.0]]))
    np.testing.assert_allclose(z, [[2 / np.sqrt(3.7), 1 / np.sqrt(1.3)]])


def test_shrinkage_follows_from_rows_and_effective_dimensions():
    # Variances 4 and 1: (4 + 1)^2 / (16 + 1) effective dimensions, 4 rows.
    x = np.array([[12.0, 1.0], [8.0, 1.0], [12.0, -1.0], [8.0, -1.0]])
    found = Whitening().fit(x)
    share = 1 / (1 + (4 / (25 * 25 / 17)) ** 2)
    assert found.shrinkage_ == pytest.approx(share)
    np.testing.assert_allclose(found.scale_, Whitening(shrinkage=share).fit(x).scale_)
    huge = Whitening().fit(1e140 * x)
    assert huge.shrinkage_ == pytest.approx(share)


def test_shrinkage_fades_with_more_rows(rng):
    shares = [Whitening().fit(rng.normal(size=(n, 4))).shrinkage_ for n in (20, 200, 2000, 50_000)]
    assert shares[0] > 0.9
    assert shares[-1] < 1e-4
    assert (np.diff(shares) < 0).all()


@pytest.mark.parametrize(
    ("cloud", "width"),
    [("smollm2-135m_first-last-avg", 576), ("smollm2-135m_last2avg", 576),
     ("minilm-l6_mean_first2000", 384)],
)  # fmt: skip
def test_whitening_on_the_300_rows_that_are_compared_is_not_below_raw(shared_data, cloud, width):
    rows = np.load(shared_data / f"embeddings/{cloud}.npy", mmap_mode="r")[:2000]
    rows = np.asarray(rows, dtype=np.float32)
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text())
    row_of = {sentence: row for row, sentence in enumerate(sentences[:2000])}
    pairs = [
        (row_of[a], row_of[b], gold)
        for split in ("train", "dev", "test")
        for task in [read_task("stsb", shared_data, split)]
        for a, b, gold in zip(task.first, task.second, task.gold, strict=True)
        if a in row_of and b in row_of
    ]

    def spearman(z, used):
        first, second = used[:, :2].astype(int).T
        return 100 * correlate(paired_cosine(z[first], z[second]), used[:, 2]).spearman

    differences, unguarded = [], []
    for seed in range(4):
        used = np.random.default_rng(seed).permutation(np.array(pairs))[:150]
        fitted = rows[used[:, :2].astype(int).ravel()]
        assert fitted.shape == (300, width)
        raw = spearman(rows, used)
        differences.append(spearman(Whitening().fit(fitted).transform(rows), used) - raw)
        plain = Whitening(shrinkage=0.0).fit(fitted)
        unguarded.append(spearman(plain.transform(rows), used) - raw)
    assert np.mean(differences) > -1
    assert np.mean(unguarded) < -5


def test_many_rows_are_whitened_as_without_shrinkage(shared_data):
    rows = np.load(shared_data / "embeddings/smollm2-135m_first-last-avg.npy").astype(np.float32)
    found, plain = Whitening().fit(rows), Whitening(shrinkage=0.0).fit(rows)
    assert found.shrinkage_ < 0.002
    np.testing.assert_allclose(found.scale_, plain.scale_, rtol=0.05)


def test_few_rows_are_warned_of_with_both_numbers(rng):
    with pytest.warns(FewRowsWarning, match=r"300 rows .* 576 dimensions .*shrinkage"):
        Whitening().fit(rng.normal(size=(300, 576)))
    with pytest.warns(FewRowsWarning, match=r"39 rows .* 10 dimensions .*fit on 40 or more"):
        Whitening(shrinkage=0.0).fit(rng.normal(size=(39, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Whitening().fit(rng.normal(size=(40, 10)))


def test_axes_beyond_the_rank_are_warned_of_with_the_rank(rng):
    for calibrator, name in [(Whitening(dim=40), "dim"), (AllButTheTop(40), "n_components")]:
        x = rng.normal(size=(20, 64))
        with pytest.warns(FewRowsWarning, match=f"{name}=40 .*19 axes.*20 rows.*are arbitrary"):
            calibrator.fit(x)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            calibrator.set_params(**{name: 19}).fit(x)
        assert not any("axes" in str(one.message) for one in seen)
        calibrator.set_params(**{name: 40})


def test_full_shrinkage_only_rotates_and_scales_by_one_number(x):
    z = Whitening(shrinkage=1.0).fit_transform(x)
    centred = x - x.mean(axis=0)
    typical = np.trace(np.cov(x.T, ddof=0)) / 8
    np.testing.assert_allclose(z @ z.T, centred @ centred.T / typical, atol=1e-9)


def test_whitening_maps_back_onto_its_axes(x):
    found = Whitening(3).fit(x)
    back = found.inverse_transform(found.transform(x))
    centred = x - x.mean(axis=0)
    axes = principal(np.cov(x.T, ddof=0))[1][:3]
    np.testing.assert_allclose(back, centred @ axes.T @ axes + x.mean(axis=0), atol=1e-9)


def test_whitening_refuses_a_bad_argument_by_name(x):
    for arguments, message in [
        ({"dim": 0}, "dim must be .*1 and 8, got 0"),
        ({"dim": 9}, "dim must be .*1 and 8, got 9"),
        ({"dim": -1}, "dim must be .*1 and 8, got -1"),
        ({"power": -0.1}, "power must be .*0 and 1, got -0.1"),
        ({"power": 1.5}, "power must be .*0 and 1, got 1.5"),
        ({"power": float("nan")}, "power must be .*0 and 1, got nan"),
        ({"shrinkage": -0.1}, "shrinkage must be .*0 and 1, got -0.1"),
        ({"shrinkage": 1.1}, "shrinkage must be .*0 and 1, got 1.1"),
        ({"shrinkage": "automatic"}, "shrinkage must be .*0 and 1, got 'automatic'"),
    ]:
        with pytest.raises(InputError, match=message):
            Whitening(**arguments).fit(x)


def test_a_rank_deficient_cloud_is_whitened_within_its_span(rng):
    basis = np.linalg.qr(rng.normal(size=(10, 10)))[0][:, :4]
    x = rng.normal(size=(300, 4)) @ basis.T
    z = Whitening(shrinkage=0.0).fit_transform(x)
    np.testing.assert_allclose(np.cov(z[:, :4].T, ddof=0), np.eye(4), atol=1e-6)
    np.testing.assert_allclose(z[:, 4:], 0, atol=1e-6)
    # A query outside the span is divided by a typical deviation, which is 1 here.
    outside = np.linalg.svd(basis.T)[2][-1]
    moved = Whitening(shrinkage=0.0).fit(x).transform(np.stack([x[0], x[0] + outside]))
    assert 0.8 < np.linalg.norm(moved[1] - moved[0]) < 1.3


# AllButTheTop


def test_removed_directions_are_gone_and_the_others_kept(x):
    for count in [1, 3, 7]:
        for dtype in [np.float64, np.float32]:
            rows = x.astype(dtype)
            z = AllButTheTop(count).fit_transform(rows).astype(np.float64)
            wide = rows.astype(np.float64)
            centred = wide - wide.mean(axis=0)
            axes = principal(np.cov(wide.T, ddof=0))[1]
            removed, kept = axes[:count], axes[count:]
            total = centred.var(axis=0).sum()
            assert (z @ removed.T).var(axis=0).sum() < 1e-10 * total
            tolerance = 1e-9 if dtype == np.float64 else 1e-4
            np.testing.assert_allclose(z @ kept.T, centred @ kept.T, atol=tolerance)
            np.testing.assert_allclose(z.mean(axis=0), 0, atol=tolerance)


def test_removed_directions_of_real_vectors_are_gone(shared_data):
    x = np.load(shared_data / "embeddings/minilm-l6_mean_first2000.npy").astype(np.float64)
    found = AllButTheTop(10).fit(x)
    z = found.transform(x)
    assert (z @ found.components_.T).var(axis=0).sum() < 1e-10 * x.var(axis=0).sum()
    values = principal(np.cov(x.T, ddof=0))[0]
    np.testing.assert_allclose(z.var(axis=0).sum(), values[10:].sum(), rtol=1e-9)


def test_no_components_only_centres(x):
    z = AllButTheTop(n_components=0).fit_transform(x)
    np.testing.assert_allclose(z, x - x.mean(axis=0), atol=1e-12)


def test_no_components_standardized_is_standardization(x):
    z = AllButTheTop(n_components=0, standardize=True).fit_transform(x)
    np.testing.assert_allclose(z, Standardization().fit_transform(x), atol=1e-12)


def test_by_default_a_hundredth_of_the_dimensions_is_removed(rng):
    for width, count in [(2, 1), (99, 1), (200, 2), (768, 7)]:
        x = rng.normal(size=(20, width))
        assert AllButTheTop().fit(x).components_.shape == (count, width)


def test_standardize_removes_directions_of_the_correlation_matrix(x):
    x = x * np.array([100.0, 1, 1, 1, 1, 1, 1, 0.01])
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    directions = principal(np.corrcoef(x.T))[1][:2]
    expected = scaled - scaled @ directions.T @ directions
    z = AllButTheTop(2, standardize=True).fit_transform(x)
    np.testing.assert_allclose(z, expected, atol=1e-9)


def test_removed_part_comes_back_as_its_mean(x):
    for standardize in (False, True):
        found = AllButTheTop(2, standardize=standardize).fit(x)
        back = found.inverse_transform(found.transform(x))
        scale = x.std(axis=0) if standardize else np.ones(8)
        scaled = (x - x.mean(axis=0)) / scale
        v = found.components_
        np.testing.assert_allclose(v @ v.T, np.eye(2), atol=1e-12)
        expected = (scaled - scaled @ v.T @ v) * scale + x.mean(axis=0)
        np.testing.assert_allclose(back, expected, atol=1e-9)


def test_removing_as_many_directions_as_there_are_is_refused(x):
    for count in [-1, 8, 9, 100]:
        with pytest.raises(InputError, match=f"n_components must be .*0 and 7.*got {count}"):
            AllButTheTop(count).fit(x)


def test_standardized_dead_dimension_does_not_count_as_a_direction(x):
    x = np.column_stack([x, np.full(600, 4.0)])
    found = AllButTheTop(1, standardize=True).fit(x)
    assert abs(found.components_[0, -1]) < 1e-12
    z = found.transform(x)
    np.testing.assert_array_equal(z[:, -1], 0)
    np.testing.assert_allclose(
        z[:, :-1], AllButTheTop(1, standardize=True).fit_transform(x[:, :-1]), atol=1e-9
    )


# All of them


@every_linear
def test_affine_is_the_map_itself(build, x):
    found = build().fit(x)
    centre, matrix = found.affine()
    assert centre.dtype == matrix.dtype == torch.float64
    expected = (x - centre.numpy()) @ matrix.numpy().T
    np.testing.assert_allclose(found.transform(x), expected, atol=1e-9)


@every_linear
def test_refits_agree_also_on_permuted_rows(build, x, rng):
    found, again = build().fit(x), build().fit(x)
    permuted = build().fit(rng.permutation(x))
    z = found.transform(x)
    np.testing.assert_array_equal(z, again.transform(x))
    np.testing.assert_allclose(z, permuted.transform(x), atol=1e-9)


@every_linear
def test_refitting_forgets_the_first_rows(build, x, rng):
    once = build().fit(x)
    twice = build().fit(rng.normal(3, 2, size=(50, 8))).fit(x)
    np.testing.assert_array_equal(once.transform(x), twice.transform(x))


@pytest.mark.parametrize("build", [AllButTheTop, Whitening])
def test_each_axis_has_its_largest_entry_positive(build, x):
    axes = build().fit(x).components_
    assert (axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)] > 0).all()
    flipped = build().fit(-x).components_
    np.testing.assert_allclose(flipped, axes, atol=1e-9)


@every_linear
def test_a_chunk_boundary_changes_nothing(build, rng):
    for count in [4095, 4096, 4097, 9000]:
        x = (
            rng.normal(size=(count, 5)) * np.array([5.0, 4, 3, 2, 1])
            + np.arange(count)[:, None] / 1e3
        )
        found = build().fit(x)
        # What float64 numpy makes of all rows at once.
        np.testing.assert_allclose(found.mean_, x.mean(axis=0), rtol=1e-12)
        z = found.transform(x)
        parts = np.concatenate([found.transform(part) for part in np.array_split(x, 31)])
        np.testing.assert_allclose(z, parts, rtol=1e-10, atol=1e-10)
        expected = (x - x.mean(axis=0)) @ found.affine()[1].numpy().T
        np.testing.assert_allclose(z, expected, atol=1e-9)


def test_more_rows_than_a_chunk_are_whitened_as_numpy_would(rng):
    x = (
        rng.normal(size=(10_000, 4)) * np.array([4.0, 3, 2, 1])
        + 100 * np.sort(rng.normal(size=10_000))[:, None]
    )
    z = Whitening(shrinkage=0.0).fit_transform(x)
    np.testing.assert_allclose(np.cov(z.T, ddof=0), np.eye(4), atol=1e-6)


@every_linear
def test_shift_of_the_cloud_changes_nothing(build, x):
    z = build().fit_transform(x)
    shifted = build().fit_transform(x + 1000.0)
    np.testing.assert_allclose(shifted, z, atol=1e-7)


def test_units_that_differ_by_many_powers_of_ten_give_finite_rows_or_are_refused_in_words():
    """LAPACK does not converge on a covariance that goes from 1e-300 to 1e300."""
    for span, fewest in [(12, 15), (100, 15), (150, 10)]:
        units = 10.0 ** np.linspace(-span, span, 8)
        taken = 0
        for seed in range(15):
            x = np.random.default_rng(seed).normal(3, 2, (3, 8)) * units
            try:
                assert np.isfinite(Whitening().fit_transform(x)).all()
                taken += 1
            except torch.linalg.LinAlgError:
                pass
        assert fewest <= taken, span
