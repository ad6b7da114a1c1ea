"""The folded flow against the Glow and its frame, layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertflow.calibrators import Flow
from bertflow.calibrators.frame import FramedGlow
from bertflow.flows import Glow, ResidualForm

DESIGNS = {
    "paper": {},
    "released": dict(Flow.released().get_params()),
    "tempered": dict(Flow.tempered().get_params()),
    "at unit length": {"normalize": True},
    "on principal axes": {"axes": "principal"},
    "with matrices": {"permutation": "linear"},
    "without residual": {"residual": False, "levels": 3},
}
every_design = pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)


def rows(count: int = 400, width: int = 9) -> np.ndarray:
    """Rows far from zero and of very different deviations, with a column that does not vary."""
    x = np.random.default_rng(0).normal(size=(count, width)) ** 3
    x = x * np.logspace(-2, 2, width) + np.linspace(-30, 30, width)
    x[:, 4] = 3.0
    return x


def entered(flow: Flow, x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    u, count = flow.frame_.enter(torch.from_numpy(x)), flow.frame_.count
    return u[:, :count], u[:, count:]


def plain(flow: Flow, x: np.ndarray) -> torch.Tensor:
    live, dead = entered(flow, x)
    return torch.cat([flow.flow_.double()(live)[0], dead], dim=1)


@every_design
def test_latent_is_the_layers(design):
    flow = Flow(**{**design, "epochs": 3}).fit(rows())
    folded = FramedGlow(flow.frame_, flow.flow_, torch.empty(0).double())
    z = torch.empty(400, 9).double()
    with torch.no_grad():
        folded.latent(torch.from_numpy(rows()), z)
        np.testing.assert_allclose(z, plain(flow, rows()), rtol=0, atol=1e-10)


@every_design
def test_and_the_log_determinant_too(design):
    flow = Flow(**{**design, "epochs": 3}).fit(rows())
    folded = FramedGlow(flow.frame_, flow.flow_, torch.empty(0).double())
    live, _ = entered(flow, rows(5))
    with torch.no_grad():
        expected = flow.flow_.double()(live)[1]
    np.testing.assert_allclose(np.full(5, folded.core.log_det), expected, atol=1e-9)


@every_design
def test_rows_come_back(design):
    flow = Flow(**{**design, "epochs": 3}).fit(rows())
    folded = FramedGlow(flow.frame_, flow.flow_, torch.empty(0).double())
    x = torch.from_numpy(rows())
    z, back = torch.empty_like(x), torch.empty_like(x)
    folded.latent(x, z)
    folded.rows(z, back)
    expected = torch.nn.functional.normalize(x) if design.get("normalize") else x
    np.testing.assert_allclose(back, expected, rtol=1e-9, atol=1e-9)


@every_design
def test_float32_is_as_exact_as_the_layers_in_float32(design):
    flow = Flow(**{**design, "epochs": 3}).fit(rows())
    exact = plain(flow, rows())
    flow.flow_.float()
    x = rows().astype(np.float32)
    live, dead = entered(flow, x)
    with torch.no_grad():
        layers = torch.cat([flow.flow_(live)[0], dead], dim=1)
    folded = FramedGlow(flow.frame_, flow.flow_, torch.empty(0))
    z = torch.empty(400, 9)
    folded.latent(torch.from_numpy(x), z)
    error, usual = (float((other - exact).abs().max()) for other in (z, layers))
    assert error < 3 * usual + 1e-6


def test_a_new_fit_forgets_the_old_map():
    x = rows()
    flow = Flow().fit(x)
    flow.transform(x)
    again = flow.fit(x[::-1] * 2).transform(x)
    np.testing.assert_array_equal(again, Flow().fit(x[::-1] * 2).transform(x))


def test_affine_couplings_have_no_residual_form():
    glow = Glow(6, coupling="affine")
    assert not ResidualForm.suits(glow)
    with pytest.raises(ValueError, match="additive"):
        ResidualForm.of(glow)


def test_residual_form_is_the_glow():
    for permutation in ["random", "reverse", "linear"]:
        generator = torch.Generator().manual_seed(0)
        glow = Glow(7, levels=2, width=5, permutation=permutation, generator=generator).double()
        x = torch.randn(50, 7, generator=generator).double()
        with torch.no_grad():
            glow.initialize(x)
            for p in glow.parameters():
                p += 0.1 * torch.randn(p.shape, generator=generator)
            glow.double()
            form, u = ResidualForm.of(glow), x
            for c in form.couplings:
                h1 = torch.relu(u @ c.w1.T + c.b1)
                h2 = torch.relu(h1 @ c.w2.T + c.b2)
                assert (c.w1 @ c.out).abs().max() < 1e-10
                u = u + (h2 + h1 if c.residual else h2) @ c.out.T + c.shift
            z = u @ form.matrix.T + form.constant
            np.testing.assert_allclose(z, glow(x)[0], atol=1e-10)
