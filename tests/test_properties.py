"""What every calibrator keeps on any matrix: hypothesis over shapes, types, layouts, degeneracies.

Without more said the examples are few and always the same. The nightly tests look at more of them,
and with BERTFLOW_EXAMPLES=N at N other ones each time.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tempfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.calibrators import (
    AllButTheTop,
    Calibrator,
    Flow,
    Whitening,
    load_calibrator,
    save_calibrator,
)
from bertflow.calibrators.storage import CALIBRATORS
from bertflow.errors import InputError
from bertflow.flows import ResidualForm

# Every registered calibrator as it comes, so that a new one is looked at, too; and what arguments
# make of them. Flows are smaller than by default, to be quick.
VARIANTS: dict[str, Callable[[], Calibrator]] = {
    **CALIBRATORS,
    "whitening-3": lambda: Whitening(dim=3),
    "whitening-soft": lambda: Whitening(power=0.75, shrinkage=0.1),
    "all-but-the-top-standardized": lambda: AllButTheTop(standardize=True),
    "flow-released": Flow.released,
    "flow-tempered": Flow.tempered,
    "flow-affine": lambda: Flow(coupling="affine"),
    "flow-linear": lambda: Flow(permutation="linear"),
    "flow-principal": lambda: Flow(axes="principal", noise=0.5, leading=1, centring=0.9),
}
# What they make of a row is of its size, or of size 1.
SMALL = ["adaptive-whitening", "all-but-the-top", "flow-tempered", "soft-standardization"]
# What they remove does not come back.
LOSSY = ["all-but-the-top", "all-but-the-top-standardized", "whitening-3"]
LARGEST = {"float16": 6e4, "int64": 2.0**53}
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}

every_variant = pytest.mark.parametrize("name", VARIANTS)


# Matrices


def _low_rank(random, n, d):
    rank = int(random.integers(1, d))
    return random.normal(size=(n, rank)) @ random.normal(size=(rank, d)) + random.normal(size=d)


def _duplicated(random, n, d):
    columns = random.normal(3, 2, size=(n, d))
    return columns[:, random.integers(0, max(1, d // 2), size=d)]


def _dead(random, n, d):
    x = random.normal(3, 2, size=(n, d))
    dead = random.random(d) < 0.5
    x[:, dead] = random.choice([0.0, 1.0, -1e4 / 3, 1e6], size=int(dead.sum()))
    return x


def _outlier(value):
    def made(random, n, d):
        x = random.normal(3, 2, size=(n, d))
        where = (random.integers(n), random.integers(d) if random.random() < 0.5 else slice(None))
        x[where] = random.choice([-1, 1]) * value
        return x

    return made


def _one_differs(random, n, d):
    x = np.tile(random.normal(3, 2, size=d), (n, 1))
    x[random.integers(n), random.integers(d)] += 1.0
    return x


def _scaled(scale, mean=0.0):
    return lambda random, n, d: mean + scale * random.normal(size=(n, d))


MATRICES = {
    "normal": _scaled(2.0, 3.0),
    "low rank": _low_rank,
    "duplicated columns": _duplicated,
    "dead dimensions": _dead,
    "all rows equal": lambda random, n, d: np.tile(random.normal(3, 2, size=d), (n, 1)),
    "all rows zero": lambda random, n, d: np.zeros((n, d)),
    "one entry differs": _one_differs,
    "multiples of one row": lambda random, n, d: (
        random.normal(2, 1, size=(n, 1)) * random.normal(size=d)
    ),
    "an outlier of 1e30": _outlier(1e30),
    "an outlier of 1e4": _outlier(1e4),
    "tiny": _scaled(1e-30),
    "subnormal": _scaled(1e-41),
    "too small to square": _scaled(1e-200),
    "huge": _scaled(1e30),
    "too large to square": _scaled(1e200),
    "near the end of float32": _scaled(1e37),
    "a common offset of 1e6": _scaled(1.0, 1e6),
    "an offset far above the deviation": _scaled(1e-6, 1.0),
    "columns of different units": lambda random, n, d: (
        random.normal(1, 1, (n, d)) * 10.0 ** random.uniform(-12, 12, size=d)
    ),
    "zeros and ones": lambda random, n, d: random.integers(0, 2, size=(n, d)).astype(float),
    "heavy tails": lambda random, n, d: random.standard_cauchy(size=(n, d)),
}
LAYOUTS = ["plain", "fortran", "strided", "reversed", "read-only", "torch", "torch transposed"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A matrix to fit on, and others to ask for."""

    matrix: str
    rows: int
    width: int
    dtype: str
    layout: str
    query: str
    seed: int

    def fitted_on(self):
        return self._made(self.matrix, self.rows, self.seed)

    def asked(self):
        """Rows of another kind perhaps, among them three of those that it was fitted on."""
        other = self._made(self.query, 9, self.seed + 1)
        own = self.fitted_on()[:3]
        together = torch.cat if isinstance(own, torch.Tensor) else np.concatenate
        return self._laid_out(together([own, other]))

    def _made(self, matrix, rows, seed):
        x = MATRICES[matrix](np.random.default_rng(seed), rows, self.width)
        if self.dtype == "bfloat16":
            return torch.from_numpy(np.clip(x, -3e38, 3e38)).bfloat16()
        end = LARGEST.get(self.dtype, 3e38 if self.dtype == "float32" else math.inf)
        return self._laid_out(np.clip(x, -end, end).astype(self.dtype))

    def _laid_out(self, x):
        if isinstance(x, torch.Tensor):
            return x
        if self.layout == "fortran":
            return np.asfortranarray(x)
        if self.layout == "strided":
            return np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3]
        if self.layout == "reversed":
            return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
        if self.layout == "read-only":
            x.flags.writeable = False
        elif self.layout == "torch":
            return torch.from_numpy(x)
        elif self.layout == "torch transposed":
            return torch.from_numpy(np.ascontiguousarray(x.T)).T
        return x


cases = st.builds(
    Case,
    matrix=st.sampled_from(list(MATRICES)),
    rows=st.sampled_from([2, 3, 5, 17, 40]),
    width=st.sampled_from([2, 3, 4, 5, 7, 12, 33]),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16", "int64"]),
    layout=st.sampled_from(LAYOUTS),
    query=st.sampled_from(list(MATRICES)),
    seed=st.integers(0, 2**16),
)


def of_any_matrix(test):
    """The test on few matrices, and nightly on many."""
    asked = os.environ.get("BERTFLOW_EXAMPLES")

    def on(name: str, examples: int) -> None:
        """Hypothesis only decides which cases; the same ones each time unless asked for more."""

        @settings(max_examples=examples, deadline=None, database=None, derandomize=asked is None)
        @given(case=cases)
        def of(case):
            test(name, case)

        of()

    @every_variant
    def quick(name):
        on(name, 2 if name.startswith("flow") else 10)

    @pytest.mark.nightly
    @every_variant
    def wide(name):
        on(name, int(asked or 60))

    return quick, wide


# What is asked of them


def numbers(x) -> np.ndarray:
    return x.double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.float64)


def fitted(name: str, x) -> Calibrator | None:
    """Fitted; None where the rows are refused, as they may be, in one line that says why."""
    calibrator = VARIANTS[name]()
    if isinstance(calibrator, Flow):
        calibrator.set_params(depth=2, batch_size=16)
    try:
        return calibrator.fit(x)
    except InputError as error:
        assert re.search(
            r"rows are equal|only \d of \d+ (dimensions|principal axes) vary|too (large|little) to "
            r"square|dim must be|n_components must be",
            str(error),
        ), error
        assert "\n" not in str(error)
        return None


def accepted(function, x, kinds: list[str] | None = None):
    """What a function makes of those rows that it does not refuse, and their numbers.

    A row may only be refused by its number, with the remedy, and not if float64 could be given.
    """
    kept = list(range(len(x)))
    while kept:
        try:
            return function(x[kept]), kept
        except InputError as error:
            said = re.search(r"finite in row (\d+) .*; (give X in a wider type)", str(error))
            assert said, error
            assert "\n" not in str(error)
            if kinds is not None:
                kinds.append(said[2])
            del kept[int(said[1])]
    return None, []


def shift(function, x, epsilon, more=0.0):
    """How far each row of a function moves with the last digits of what goes in.

    Args:
        function: Of float64 rows.
        x: The rows.
        epsilon: Of the arithmetic.
        more: What rows are added to inside, whose last digits count, too.
    """
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(8, *x.shape))
    size = epsilon * (np.abs(x) + more)
    moved = [numbers(function(x + size * sign)) for sign in signs]
    return np.abs(np.array(moved) - numbers(function(x))).max(axis=(0, 2))


def finite(z) -> bool:
    return bool(np.isfinite(numbers(z)).all())


def _gives_finite_rows(name, case):
    x = case.fitted_on()
    before = numbers(x).copy()
    calibrator = fitted(name, x)
    np.testing.assert_array_equal(numbers(x), before)
    if calibrator is None:
        return
    for rows in (x, case.asked()):
        before = numbers(rows).copy()
        z, kept = accepted(calibrator.transform, rows)
        np.testing.assert_array_equal(numbers(rows), before)
        # Less its mean, a row near the end of its type may be beyond it.
        ends = {"float16": 0.0, "bfloat16": 0.0, "float32": 1e38}
        if rows is x and np.abs(before).max() < ends.get(case.dtype, math.inf):
            assert len(kept) == len(x)
        if z is None:
            continue
        assert finite(z)
        assert type(z) is type(rows)
        assert z.dtype == rows.dtype or case.dtype == "int64"
        latent = numbers(z).copy()
        back, _ = accepted(calibrator.inverse_transform, z)
        assert back is None or finite(back)
        np.testing.assert_array_equal(numbers(z), latent)
        if isinstance(calibrator, Flow):
            density, _ = accepted(calibrator.log_prob, rows)
            assert density is None or finite(density)
    if isinstance(calibrator, Flow):
        assert math.isfinite(calibrator.loss_)
        assert np.isfinite(calibrator.loss_curve_).all()


def _brings_back(name, case):
    x = case.fitted_on()
    calibrator = fitted(name, x)
    if calibrator is None:
        return
    z, kept = accepted(calibrator.transform, x)
    back, again = accepted(calibrator.inverse_transform, z) if kept else (None, [])
    if back is None:
        return
    epsilon = max(EPSILON.get(case.dtype, EPSILON["float64"]), EPSILON["float64"])
    z, rows = numbers(z)[again], numbers(x)[kept][again]
    if name not in LOSSY:
        # A flow on two rows may have learned to stretch them by any factor that is allowed.
        stretched = shift(calibrator.inverse_transform, z, epsilon)[:, None]
        if name == "flow-tempered":
            length = np.linalg.norm(rows / np.abs(rows).max(), axis=1, keepdims=True)
            rows = rows / np.abs(rows).max() / np.where(length > 0, length, 1)
        scale = np.abs(rows).max()
        assert (np.abs(numbers(back) - rows) <= 1e3 * epsilon * scale + 20 * stretched).all()


def _maps_rows_alone(name, case):
    x = case.fitted_on()
    calibrator = fitted(name, x)
    if calibrator is None:
        return
    rows, kept = accepted(calibrator.transform, case.asked())
    if not kept:
        return
    asked = case.asked()[kept]
    together = numbers(rows)
    order = np.random.default_rng(case.seed).permutation(len(kept))
    permuted = numbers(calibrator.transform(asked[order]))
    alone = np.concatenate(
        [numbers(calibrator.transform(asked[n : n + 1])) for n in range(len(kept))]
    )
    epsilon = EPSILON.get(case.dtype, EPSILON["float64"])
    arithmetic = min(epsilon, EPSILON["float32"])
    shifted = shift(calibrator.transform, numbers(asked), arithmetic, np.abs(calibrator.mean_))
    usual = np.abs(numbers(calibrator.transform(numbers(x)))).max()
    size = np.maximum(np.abs(together).max(axis=1), usual)
    tolerance = (20 * shifted + 20 * max(epsilon, arithmetic) * size)[:, None]
    if isinstance(calibrator, AllButTheTop):
        # What is taken away is as large as the row less its mean, and is rounded as such; to shift
        # the row is to shift what is taken away, and shows nothing of that.
        inside = np.abs((numbers(asked) - calibrator.mean_) / calibrator.scale_)
        tolerance = tolerance + 20 * arithmetic * inside.max(axis=1, keepdims=True)
    if name == "flow-linear":
        # So do learned matrices: of two rows they and what scales between them may stretch some
        # directions thousands of times as much as others, and cancel what was rounded before.
        tolerance = tolerance * np.linalg.cond(ResidualForm.of(calibrator.flow_).matrix.numpy())
    assert (np.abs(alone - together) <= tolerance).all()
    assert (np.abs(permuted - together[order]) <= tolerance[order]).all()


def _saves(name, case):
    x = case.fitted_on()
    calibrator = fitted(name, x)
    if calibrator is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        save_calibrator(calibrator, folder)
        loaded = load_calibrator(folder)
    for rows in (x, case.asked()):
        z, kept = accepted(calibrator.transform, rows)
        again, also = accepted(loaded.transform, rows)
        assert kept == also
        if kept:
            np.testing.assert_array_equal(numbers(again), numbers(z))
            np.testing.assert_array_equal(
                numbers(accepted(loaded.inverse_transform, z)[0]),
                numbers(accepted(calibrator.inverse_transform, z)[0]),
            )


def _sees_numbers_alone(name, case):
    plain = dataclasses.replace(case, layout="plain")
    calibrator, other = fitted(name, plain.fitted_on()), fitted(name, case.fitted_on())
    assert (calibrator is None) == (other is None)
    if calibrator is None:
        return
    z, kept = accepted(calibrator.transform, plain.asked())
    found, also = accepted(other.transform, case.asked())
    assert kept == also
    if kept:
        np.testing.assert_array_equal(numbers(found), numbers(z))


test_finite_rows_give_finite_rows_or_are_refused_in_one_line, test_and_many_of_them = of_any_matrix(
    _gives_finite_rows
)
test_what_was_mapped_comes_back, test_and_much_of_it = of_any_matrix(_brings_back)
test_a_row_is_mapped_as_it_is_alone_in_any_order, test_and_many_a_row = of_any_matrix(
    _maps_rows_alone
)
test_saved_and_loaded_it_gives_the_same_bits, test_and_many_a_time = of_any_matrix(_saves)
test_layout_and_library_do_not_matter, test_and_many_a_layout = of_any_matrix(_sees_numbers_alone)


# By hand


def test_every_registered_calibrator_is_looked_at():
    assert {type(build()) for build in VARIANTS.values()} >= set(CALIBRATORS.values())


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in SMALL])
def test_a_row_too_far_off_for_its_type_is_refused_by_number_with_the_remedy(name):
    x = 1e-3 * np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    calibrator = fitted(name, x)
    far = np.tile(x[:1], (5000, 1))
    for value, kind, wider in [(6e4, np.float16, "float32"), (3e38, np.float32, "float64")]:
        far[4321] = value
        with pytest.raises(InputError, match=r"row 4321 .*; give X in a wider"):
            calibrator.transform(far.astype(kind))
        assert finite(calibrator.transform(far.astype(wider)))
    if isinstance(calibrator, Flow):
        far[4321] = 1e30
        with pytest.raises(InputError, match=r"row 4321 .*; give X in a wider"):
            calibrator.log_prob(far)
        assert finite(calibrator.log_prob(far.astype(np.float64)))


# Affine couplings stretch such rows themselves, and turned at their length they do not fit.
@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if name not in ("flow-affine", "adaptive-whitening")]
)
def test_a_row_is_refused_for_its_image_not_for_what_is_on_the_way_to_it(name):
    for dtype in ["float32", "bfloat16"]:
        x = 10 * np.random.default_rng(0).normal(size=(60, 12))
        calibrator = fitted(name, x)
        # Near the end of their type, where the product with an axis, which is taken away, is
        # beyond it.
        along = getattr(calibrator, "components_", np.ones((1, 12)))
        far = 3e38 * np.sign(np.concatenate([along, x]))
        given = torch.from_numpy(far).to(getattr(torch, dtype))
        expected = numbers(calibrator.transform(given.double()))
        fits = np.abs(expected).max(axis=1) < 0.99 * torch.finfo(given.dtype).max
        assert fits[0]
        alone = [numbers(calibrator.transform(given[n : n + 1])) for n in np.flatnonzero(fits)]
        tolerance = 20 * EPSILON[dtype] * 3e38
        np.testing.assert_allclose(np.concatenate(alone), expected[fits], rtol=0, atol=tolerance)
        _, kept = accepted(calibrator.transform, given)
        assert set(np.flatnonzero(fits)) <= set(kept)


@pytest.mark.parametrize("name", SMALL)
def test_where_size_is_not_amplified_rows_of_1e30_are_mapped(name):
    x = 1e-3 * np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    calibrator = fitted(name, x)
    x[7] = 1e30
    assert finite(calibrator.transform(x))


@every_variant
def test_a_latent_row_too_far_off_is_refused_by_number(name):
    calibrator = fitted(name, 1e3 * np.random.default_rng(0).normal(size=(60, 8)))
    z = calibrator.transform(1e3 * np.ones((50, 8)))
    z[31] = 3e4
    assert finite(calibrator.inverse_transform(z))
    if name not in SMALL:
        with pytest.raises(InputError, match=r"row 31 .*; give X in a wider"):
            calibrator.inverse_transform(z.astype(np.float16))


@every_variant
def test_what_overflows_in_float32_is_computed_in_float64(name):
    for scale in [1e-30, 1e32, 1e37]:
        x = scale * np.random.default_rng(0).normal(3, 2, size=(60, 8))
        calibrator = fitted(name, x)
        single = x.astype(np.float32)
        found, expected = (calibrator.transform(one) for one in (single, single.astype(np.float64)))
        assert found.dtype == np.float32
        tolerance = 1e-6 * np.abs(expected).max() + np.finfo(np.float32).smallest_subnormal
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
        assert finite(calibrator.inverse_transform(found))


# At unit length they can be.
@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if name not in ("flow-tempered", "adaptive-whitening")]
)
def test_rows_that_float64_cannot_square_are_refused_with_the_remedy(name):
    x = np.random.default_rng(0).normal(size=(60, 8))
    with pytest.raises(InputError, match="too large to square in float64; scale it down"):
        VARIANTS[name]().fit(1e200 * x)
    for scale in (1e-200, 1e-150):
        with pytest.raises(InputError, match="or differ by less than 1e-146"):
            VARIANTS[name]().fit(scale * x)


@every_variant
def test_rows_that_differ_by_rounding_alone_are_said_to(name):
    x = np.full((50, 4), 1e6)
    x[::2, 0] += 1e-7
    with pytest.raises(InputError, match=r"all 50 rows are equal( at unit length)? up to rounding"):
        VARIANTS[name]().fit(x)
