"""AdaptiveWhitening: its formula, and that it is at or above its rivals where it was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from bertflow.calibrators import (
    AdaptiveWhitening,
    Moments,
    Standardization,
    Whitening,
    load_calibrator,
    save_calibrator,
)
from bertflow.data import read_task
from bertflow.errors import InputError
from bertflow.evaluation import correlate, paired_cosine
from bertflow.models import to_modules

CLOUDS = ["smollm2-135m_first-last-avg", "smollm2-135m_last2avg", "minilm-l6_mean_first2000"]
RAW = CLOUDS[:2]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_the_map_is_the_one_of_its_equation(rng):
    x = rng.normal(size=(300, 12)) * np.linspace(3, 0.2, 12) + 2.0
    u, found = unit(x), AdaptiveWhitening().fit(x)
    covariance, second = np.cov(u.T, ddof=0), u.T @ u / 300
    shares = np.linalg.eigvalsh(covariance) / np.trace(covariance)
    rank = np.exp(-(shares * np.log(shares)).sum())
    cosines = (u @ u.T)[~np.eye(300, dtype=bool)]
    second_term = 3 * 12 / (4 * 300)
    unit_noise = np.trace(covariance) / 12 * (1 + (0.2 / cosines.mean()) ** 2)
    level = 2.5 * rank**3 / (rank**3 + 40**3)
    first = unit(u @ np.linalg.inv(np.eye(12) + second / (unit_noise * (level + second_term))))
    near = first @ first.T
    alike = ((near > 0.8) & (near < 0.9999)).any(axis=1).mean()
    noise = unit_noise * (level * (1 + (alike / 0.08) ** 2) + second_term)
    assert found.near_duplicates_ == pytest.approx(alike)
    assert 0 < alike < 1
    assert found.effective_axes_ == pytest.approx(rank)
    assert found.mean_cosine_ == pytest.approx(cosines.mean())
    assert found.noise_ == pytest.approx(noise)
    z = found.transform(x)
    # z is along the axes; turned back it is (I + S/n)^-1 x.
    expected = x @ np.linalg.inv(np.eye(12) + second / noise)
    np.testing.assert_allclose(z @ found.components_, expected, atol=1e-12)
    np.testing.assert_allclose(found.inverse_transform(z), x, atol=1e-10)


def test_neither_lengths_of_rows_nor_their_unit_change_what_is_learned(rng):
    x = rng.normal(size=(200, 8)) + 1.0
    one = AdaptiveWhitening().fit(x)
    other = AdaptiveWhitening().fit(1e20 * x * rng.uniform(0.5, 2.0, size=(200, 1)))
    np.testing.assert_allclose(one.gain_, other.gain_, rtol=1e-9)


@pytest.mark.parametrize("strong", [0, 5])
def test_without_a_common_direction_nothing_changes(rng, strong):
    x = rng.normal(size=(2000, 256))
    x[:, :strong] *= 10
    assert AdaptiveWhitening().fit(np.concatenate([x, -x])).gain_.min() > 0.98


def test_what_it_followed_from_is_kept_and_shown(rng, tmp_path):
    fitted = AdaptiveWhitening().fit(rng.normal(size=(100, 6)) + 3.0)
    save_calibrator(fitted, tmp_path / "c")
    loaded = load_calibrator(tmp_path / "c")
    names = ["mean cosine", "effective axes", "near duplicates", "strongest gain"]
    assert list(loaded.facts().items())[-4:] == list(fitted.facts().items())[-4:]
    assert list(fitted.facts())[-4:] == names


def test_rows_that_come_twice_are_no_near_duplicates(rng):
    x = rng.normal(size=(300, 64)) + 1.0
    near = np.concatenate([x, x + 0.1 * rng.normal(size=x.shape)])
    assert AdaptiveWhitening().fit(np.concatenate([x, x])).near_duplicates_ == 0
    assert AdaptiveWhitening().fit(near).near_duplicates_ == 1


def test_moments_must_be_of_rows_at_unit_length(rng):
    for scale in (3.0, 0.3):
        moments = Moments(4)
        moments.update(scale * torch.from_numpy(unit(rng.normal(size=(50, 4)))))
        with pytest.raises(InputError, match="rows at unit length"):
            AdaptiveWhitening().fit_moments(moments)


def test_a_sample_of_another_width_is_refused(rng):
    moments = Moments(4)
    moments.update(torch.from_numpy(unit(rng.normal(size=(50, 4)))))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        AdaptiveWhitening().fit_moments(moments, np.ones((5, 3)))


def test_rows_that_all_point_the_same_way_are_refused(rng):
    x = (rng.uniform(1, 9, size=(50, 1)) * rng.normal(size=(1, 8))).astype(np.float32)
    with pytest.raises(InputError, match="all 50 rows point the same way"):
        AdaptiveWhitening().fit(x)


def test_zero_rows_are_rows_without_a_direction(rng):
    x = rng.normal(size=(500, 16)) + 1.0
    found = AdaptiveWhitening().fit(np.concatenate([x, np.zeros((50, 16))]))
    cosines = unit(x) @ unit(x).T
    mean = (cosines.sum() - 500) / (550 * 549)
    assert found.mean_cosine_ == pytest.approx(mean)


def test_as_built_in_modules_it_is_a_single_product(rng):
    assert len(to_modules(AdaptiveWhitening().fit(rng.normal(size=(50, 4)) + 1.0), 4)) == 1


# Against raw vectors and rivals, on stored vectors.


@pytest.fixture(scope="module")
def stsb(shared_data):
    """Give a cloud's rows, the pairs that both have vectors, and the rows of none of them."""
    sentences = json.loads((shared_data / "embeddings/stsb_sentences.json").read_text())

    def read(cloud):
        rows = np.load(shared_data / f"embeddings/{cloud}.npy").astype(np.float32)
        row_of = {sentence: row for row, sentence in enumerate(sentences[: len(rows)])}
        splits = ["test"] if cloud in RAW else ["train", "dev", "test"]
        pairs = np.array(
            [
                (row_of[a], row_of[b], gold)
                for split in splits
                for task in [read_task("stsb", shared_data, split)]
                for a, b, gold in zip(task.first, task.second, task.gold, strict=True)
                if a in row_of and b in row_of
            ]
        )
        return rows, pairs, np.setdiff1d(np.arange(len(rows)), pairs[:, :2])

    return read


def spearman(z, pairs):
    first, second = pairs[:, :2].astype(int).T
    return 100 * correlate(paired_cosine(z[first], z[second]), pairs[:, 2]).spearman


def test_with_many_rows_it_is_above_its_rivals_and_leaves_an_embedding_model_alone(stsb):
    for cloud in CLOUDS:
        rows, pairs, _ = stsb(cloud)
        scores = {
            name: spearman(rows if kind is None else kind.fit(rows).transform(rows), pairs)
            for name, kind in {
                "none": None,
                "adaptive": AdaptiveWhitening(),
                "standardization": Standardization(),
                "whitening": Whitening(shrinkage=0.0),
            }.items()
        }
        ours = scores.pop("adaptive")
        assert ours > max(scores.values()) - (0 if cloud in RAW else 0.3), (cloud, ours, scores)


@pytest.mark.parametrize("cloud", RAW)
def test_with_few_rows_it_is_above_its_rivals(stsb, cloud):
    rows, pairs, others = stsb(cloud)
    for count in (50, 1000):
        kinds = [AdaptiveWhitening(), Standardization(), Whitening(shrinkage=0.0)]
        scores = []
        for seed in range(3):
            used = rows[np.random.default_rng(seed).choice(others, count, replace=False)]
            scores.append([spearman(kind.fit(used).transform(rows), pairs) for kind in kinds])
        ours, *theirs = np.mean(scores, axis=0)
        assert ours > max(theirs), (count, ours, theirs)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_fitted_on_the_very_rows_that_are_compared_it_is_not_below_raw(stsb, cloud):
    rows, pairs, _ = stsb(cloud)
    for count in (100, 300):
        gaps = []
        for seed in range(3):
            used = np.random.default_rng(seed).permutation(pairs)[: count // 2]
            fitted = AdaptiveWhitening().fit(rows[used[:, :2].astype(int).ravel()])
            gaps.append(spearman(fitted.transform(rows), used) - spearman(rows, used))
        assert np.mean(gaps) > -1, (count, gaps)
