"""Loss and gradient of an additive Glow written out, without autograd."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from bertflow.flows.glow import Glow
from bertflow.flows.layers import ActNorm, AdditiveCoupling, CouplingNet, Permutation

_Step: TypeAlias = tuple[ActNorm, Permutation, AdditiveCoupling]


class FlatParameters:
    """Parameters as views of one vector, so that an optimizer is a handful of operations.

    Args:
        parameters: Of one type and device. They keep their values and become views of `values`;
            their `.grad` become views of `gradient`, which starts at zero.

    Attributes:
        values: Shape (P,), in the order given.
        gradient: Shape (P,).
        spans: Where in them a parameter lies.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> flat = FlatParameters([layer.bias, layer.weight])
        >>> flat.values[0] = 7.0
        >>> layer.bias.tolist(), flat.values.shape
        ([7.0], torch.Size([3]))
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.values)
        self.spans: dict[nn.Parameter, slice] = {}
        start = 0
        for p in self.parameters:
            span = slice(start, start + p.numel())
            p.data = self.values[span].view_as(p)
            p.grad = self.gradient[span].view_as(p)
            self.spans[p] = span
            start = span.stop

    def release(self) -> None:
        """Give each parameter memory of its own again, and no gradient."""
        for p in self.parameters:
            p.data = p.data.clone()
            p.grad = None


class LikelihoodGradient:
    r"""The bits per dimension of a batch and their gradient, in few operations a layer.

    For Glows of ActNorm, fixed permutation and additive coupling; a ValueError for others. Rows are
    columns, (D, N), so that halves are contiguous; parameters of one kind lie side by side in one
    vector; and the gradients of all scales and shifts are row sums of one matrix: with
    :math:`v = (u + b)\, e^{r s}`,

    .. math::
        \frac{\partial \ell}{\partial s} = r \sum_n v_n\, \frac{\partial \ell}{\partial v_n},
        \qquad
        \frac{\partial \ell}{\partial b} = e^{r s} \sum_n \frac{\partial \ell}{\partial v_n}.

    The numbers are autograd's up to rounding. The Glow's parameters become views of `parameters`;
    calling this fills the gradient there.

    Example:
        >>> import torch
        >>> glow = Glow(6, width=4, generator=torch.Generator().manual_seed(0))
        >>> x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
        >>> bool(torch.isclose(LikelihoodGradient(glow)(x), glow.bits_per_dimension(x)))
        True
    """

    def __init__(self, glow: Glow) -> None:
        if not self.suits(glow):
            raise ValueError("only ActNorm, Permutation and AdditiveCoupling are written out")
        layers: list[Any] = [step for level, _ in glow.stages() for step in level]
        norms, mixings, couplings = layers[::3], layers[1::3], layers[2::3]
        self.steps: list[_Step] = [*zip(norms, mixings, couplings, strict=True)]
        nets = [coupling.net for coupling in couplings]
        inner = [norm for net in nets for norm in (net.actnorm1, net.actnorm2)]
        self.features = glow.features
        self.rate: float = norms[0].scale_rate
        self.residual = nets[0].residual
        # Scales of states, hidden values and outputs; then, in the same order, their shifts. The
        # states of all layers and their gradients have these as rows.
        self.parameters = FlatParameters(
            [
                *(norm.log_scale for norm in [*norms, *inner]),
                *(net.log_scale for net in nets),
                *(norm.bias for norm in [*norms, *inner]),
                *(net.linear3.bias for net in nets),
                *(p for net in nets for p in net.weights()),
            ]
        )
        self.outer: int = sum(len(norm.bias) for norm in norms)
        self.normed = self.outer + sum(len(norm.bias) for norm in inner)
        self.rows = self.normed + sum(len(net.log_scale) for net in nets)
        values = self.parameters.values
        self.scale = torch.empty(self.rows, 1, dtype=values.dtype, device=values.device)
        self.shift = torch.empty_like(self.scale)
        self.last_of_level = {level.steps[-1] for level, _ in glow.stages()}
        orders, moved = [], []
        for norm, mixing, coupling in self.steps:
            state = self.parameters.spans[norm.log_scale]
            orders.append(mixing.order + state.start)
            moved.append(torch.arange(state.start + coupling.kept, state.stop))
        self.back = torch.cat(orders).argsort()
        self.moved_rows = torch.cat(moved).to(values.device)
        self._works: dict[int, _Work] = {}

    @staticmethod
    def suits(glow: Glow) -> bool:
        """Whether the gradients of all its layers are written out here."""
        kinds = (ActNorm, Permutation, AdditiveCoupling)
        return all(isinstance(step, kinds) for level, _ in glow.stages() for step in level)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        """Fill the gradient for a batch (N, D), and return its mean loss in bits per dimension."""
        count = len(x)
        if count not in self._works:
            self._works[count] = _Work(self, count)
        work = self._works[count]
        self._forward(x, work)
        loss = self._loss(work)
        self._backward(work)
        self._collect(work)
        return loss

    def _forward(self, x: Tensor, work: _Work) -> None:
        values, rows, normed = self.parameters.values[:, None], self.rows, self.normed
        torch.mul(values[:rows], self.rate, out=self.scale).exp_()
        torch.mul(values[rows : rows + normed], self.scale[:normed], out=self.shift[:normed])
        self.shift[normed:].copy_(values[rows + normed : 2 * rows])
        x = x.T
        for v in work.layers:
            state, h1, h2, out = v.state, v.hidden1, v.hidden2, v.out
            torch.mul(x, state.scale, out=v.spare).add_(state.shift)
            torch.index_select(v.spare, 0, v.order, out=state.value)
            torch.mm(v.weights[0], v.kept, out=h1.value).mul_(h1.scale).add_(h1.shift).relu_()
            torch.mm(v.weights[1], h1.value, out=h2.value).mul_(h2.scale).add_(h2.shift).relu_()
            # The output is kept before its scale: the gradient of the scale is a row sum of it.
            self._read_out(v, work)
            torch.mm(v.weights[2], v.read_out, out=out.value).add_(out.shift)
            v.moved.add_(torch.mul(out.value, out.scale, out=out.grad))
            x = v.kept if v.ends_level else state.value

    def _read_out(self, v: _Views, work: _Work) -> None:
        """Compute the input of a coupling net's last layer, where that is a sum."""
        if self.residual:
            torch.add(v.hidden1.value, v.hidden2.value, out=work.hidden)

    def _loss(self, work: _Work) -> Tensor:
        """The loss. Its gradient by the latent vector is that vector; it is written here."""
        squares = []
        for v in work.layers:
            if v.ends_level:
                last = v is work.layers[-1]
                latent, grad = (v.state.value, v.state.grad) if last else (v.moved, v.grad_moved)
                torch.mul(latent, work.unit, out=grad)
                squares.append(torch.dot(latent.view(-1), grad.view(-1)))
        volume = self.parameters.values[: self.outer].sum() * (self.rate * work.count * work.unit)
        return torch.stack(squares).sum() / 2 - volume + 0.5 * math.log2(2 * math.pi)

    def _backward(self, work: _Work) -> None:
        hidden, small = work.hidden, work.small
        for n in range(len(work.layers) - 1, -1, -1):
            v = work.layers[n]
            h1, h2, out = v.hidden1, v.hidden2, v.out
            torch.mul(v.grad_moved, out.scale, out=out.grad)
            self._read_out(v, work)
            torch.mm(out.grad, v.read_out_t, out=v.grad_weights[2])
            torch.mm(v.weights_t[2], out.grad, out=hidden)
            _through_relu(hidden, h2.value, h2.grad)
            torch.mul(h2.grad, h2.scale, out=small)
            torch.mm(small, v.hidden1_t, out=v.grad_weights[1])
            if self.residual:
                hidden.addmm_(v.weights_t[1], small)
            else:
                torch.mm(v.weights_t[1], small, out=hidden)
            _through_relu(hidden, h1.value, h1.grad)
            torch.mul(h1.grad, h1.scale, out=small)
            torch.mm(small, v.kept_t, out=v.grad_weights[0])
            v.grad_kept.addmm_(v.weights_t[0], small)
            if n:
                before = work.layers[n - 1]
                into = before.grad_kept if before.ends_level else before.state.grad
                torch.index_select(v.state.grad, 0, v.back, out=v.spare)
                torch.mul(v.spare, v.state.scale, out=into)

    def _collect(self, work: _Work) -> None:
        """Gradients of all scales and shifts, from the states and their gradients."""
        outer, normed, rows = self.outer, self.normed, self.rows
        torch.mul(work.values, work.grads, out=work.product)
        products, sums = torch.mv(work.product, work.ones), torch.mv(work.grads, work.ones)
        # The states are those after the coupling, so its part in them is subtracted.
        products[:outer].index_add_(0, self.moved_rows, products[normed:], alpha=-1)
        volume = work.count * work.unit
        products[:outer] = products[:outer].index_select(0, self.back) - volume
        sums[:outer] = sums[:outer].index_select(0, self.back)
        sums[:normed] *= self.scale[:normed, 0]
        torch.mul(products, self.rate, out=self.parameters.gradient[:rows])
        self.parameters.gradient[rows : 2 * rows] = sums


class _Work:
    """Memory for batches of one size: all states, their gradients, and room to compute."""

    def __init__(self, of: LikelihoodGradient, count: int) -> None:
        like = of.parameters.values
        self.count = count
        self.unit = 1 / (count * of.features * math.log(2))
        self.values, self.grads, self.product = torch.empty(
            3, of.rows, count, dtype=like.dtype, device=like.device
        )
        self.ones = like.new_ones(count)
        self.spare = like.new_empty(of.features, count)
        width = max(coupling.net.linear2.out_features for _, _, coupling in of.steps)
        self.hidden, self.small = like.new_empty(2, width, count)
        self.layers = [_Views(of, self, step) for step in of.steps]


class _Part(NamedTuple):
    """Rows of the states and of their gradients, with the scales and shifts that led there."""

    value: Tensor
    grad: Tensor
    scale: Tensor
    shift: Tensor


class _Views:
    """The parts of all matrices that belong to one layer: slicing costs as much as computing."""

    def __init__(self, of: LikelihoodGradient, work: _Work, step: _Step) -> None:
        def part(scaled: ActNorm | CouplingNet) -> _Part:
            rows = of.parameters.spans[scaled.log_scale]
            return _Part(work.values[rows], work.grads[rows], of.scale[rows], of.shift[rows])

        norm, mixing, coupling = step
        net, kept = coupling.net, coupling.kept
        self.order, self.back = mixing.order, mixing.order.argsort()
        self.ends_level = coupling in of.last_of_level
        self.state, self.out = part(norm), part(net)
        self.hidden1, self.hidden2 = part(net.actnorm1), part(net.actnorm2)
        self.spare = work.spare[: len(self.state.value)]
        self.kept, self.moved = self.state.value[:kept], self.state.value[kept:]
        self.grad_kept, self.grad_moved = self.state.grad[:kept], self.state.grad[kept:]
        self.read_out = work.hidden if of.residual else self.hidden2.value
        self.weights = [weight.data for weight in net.weights()]
        self.grad_weights: list[Any] = [weight.grad for weight in net.weights()]
        self.kept_t, self.hidden1_t = self.kept.T, self.hidden1.value.T
        self.read_out_t, self.weights_t = self.read_out.T, [weight.T for weight in self.weights]


def _through_relu(grad: Tensor, after: Tensor, out: Tensor) -> None:
    """The gradient before a ReLU, from that after it and what came out of it."""
    torch.ops.aten.threshold_backward.grad_input(grad, after, 0, grad_input=out)
