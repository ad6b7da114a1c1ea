"""Loss and gradient of an additive Glow written out, without autograd."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bertflow.flows.glow import Glow
from bertflow.flows.layers import ActNorm, AdditiveCoupling, CouplingNet, Permutation


class FlatParameters:
    """Parameters as views of one vector, so that an optimizer is a handful of operations.

    Args:
        parameters: Of one type and device. They keep their values and become views of `values`;
            their `.grad` become views of `gradient`, which starts at zero.

    Attributes:
        values: Shape (P,), in the order given.
        gradient: Shape (P,).

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 1)
        >>> flat = FlatParameters([layer.bias, layer.weight])
        >>> flat.values[0] = 7.0
        >>> layer.bias.tolist(), flat.values.shape
        ([7.0], torch.Size([3]))
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.values)
        self._spans: dict[nn.Parameter, slice] = {}
        start = 0
        for p in self.parameters:
            span = slice(start, start + p.numel())
            p.data = self.values[span].view_as(p)
            p.grad = self.gradient[span].view_as(p)
            self._spans[p] = span
            start = span.stop

    def span(self, parameter: nn.Parameter) -> slice:
        """Where in the vectors a parameter lies."""
        return self._spans[parameter]

    def gradient_of(self, parameter: nn.Parameter) -> Tensor:
        """The gradient of one parameter, in its shape: a view."""
        return self.gradient[self.span(parameter)].view_as(parameter)

    def release(self) -> None:
        """Give each parameter memory of its own again, and no gradient."""
        for p in self.parameters:
            p.data = p.data.clone()
            p.grad = None


class LikelihoodGradient:
    r"""The bits per dimension of a batch and their gradient, in few operations a layer.

    For Glows of ActNorm, fixed permutation and additive coupling. In a batch of 32 rows every
    operation has microseconds of work, so their number is what costs. Here

    - rows are columns, (D, N): halves are contiguous, and a permutation copies whole lines;
    - parameters of one kind lie side by side in one vector, so that all log-scales are
      exponentiated at once, and the gradients of all scales and shifts are row sums of one matrix:
      with :math:`v = (u + b)\, e^{r s}`,

      .. math::
          \frac{\partial \ell}{\partial s} = r \sum_n v_n\, \frac{\partial \ell}{\partial v_n},
          \qquad
          \frac{\partial \ell}{\partial b} = e^{r s} \sum_n \frac{\partial \ell}{\partial v_n};

    - the large matrices are allocated once for every size of batch.

    The numbers are autograd's up to rounding. The parameters of the Glow become views of one vector
    of `parameters`; calling this fills the gradient there.

    Example:
        >>> import torch
        >>> glow = Glow(6, width=4, generator=torch.Generator().manual_seed(0))
        >>> x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
        >>> expected = glow.bits_per_dimension(x)
        >>> expected.backward()
        >>> wanted = glow.levels[0].steps[0].bias.grad.clone()
        >>> gradient = LikelihoodGradient(glow)
        >>> bool(torch.isclose(gradient(x), expected))
        True
        >>> found = gradient.parameters.gradient_of(glow.levels[0].steps[0].bias)
        >>> torch.allclose(found, wanted, atol=1e-6)
        True
    """

    def __init__(self, glow: Glow) -> None:
        if not self.suits(glow):
            raise ValueError("only ActNorm, Permutation and AdditiveCoupling are written out")
        levels = [list(level) for level, _ in glow.stages()]
        steps = [step for level in levels for step in zip(*[iter(level)] * 3, strict=True)]
        norms: list[ActNorm] = [norm for norm, _, _ in steps]
        nets: list[CouplingNet] = [coupling.net for _, _, coupling in steps]
        inner = [norm for net in nets for norm in (net.actnorm1, net.actnorm2)]
        self.features = glow.features
        self.rate = norms[0].scale_rate
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
        self.outer = sum(len(norm.bias) for norm in norms)
        self.normed = self.outer + sum(len(norm.bias) for norm in inner)
        self.rows = self.normed + sum(len(net.log_scale) for net in nets)
        values = self.parameters.values
        self.scale = torch.empty(self.rows, 1, dtype=values.dtype, device=values.device)
        self.shift = torch.empty_like(self.scale)
        self.steps = steps
        self.last_of_level = {level[-1] for level in levels}
        orders, moved = [], []
        for norm, mixing, coupling in steps:
            state = self.parameters.span(norm.log_scale)
            orders.append(mixing.order + state.start)
            moved.append(torch.arange(state.start + coupling.kept, state.stop))
        self.back = torch.cat(orders).argsort()
        self.moved_rows = torch.cat(moved).to(values.device)
        self._works: dict[int, _Work] = {}

    @staticmethod
    def suits(glow: Glow) -> bool:
        """Whether the gradients of all its layers are written out here."""
        kinds = (ActNorm, Permutation, AdditiveCoupling)
        return all(
            isinstance(step, kinds[n % 3])
            for level, _ in glow.stages()
            for n, step in enumerate(level)
        )

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
            torch.mul(x, v.scale, out=v.spare).add_(v.shift)
            torch.index_select(v.spare, 0, v.order, out=v.state)
            torch.mm(v.weights[0], v.kept, out=v.hidden1).mul_(v.scale1).add_(v.shift1).relu_()
            torch.mm(v.weights[1], v.hidden1, out=v.hidden2).mul_(v.scale2).add_(v.shift2).relu_()
            # The output is kept before its scale: the gradient of the scale is a row sum of it.
            self._read_out(v, work)
            torch.mm(v.weights[2], v.read_out, out=v.out).add_(v.shift3)
            v.moved.add_(torch.mul(v.out, v.scale3, out=v.grad_out))
            x = v.kept if v.ends_level else v.state

    def _read_out(self, v: _Views, work: _Work) -> None:
        """Compute the input of a coupling net's last layer, where that is a sum."""
        if self.residual:
            torch.add(v.hidden1, v.hidden2, out=work.hidden)

    def _loss(self, work: _Work) -> Tensor:
        """The loss. Its gradient by the latent vector is that vector; it is written here."""
        squares: list[Tensor] = []
        for v in work.layers:
            if not v.ends_level:
                continue
            last = v is work.layers[-1]
            latent, grad = (v.state, v.grad_state) if last else (v.moved, v.grad_moved)
            torch.mul(latent, work.unit, out=grad)
            squares.append(torch.dot(latent.view(-1), grad.view(-1)))
        volume = self.parameters.values[: self.outer].sum() * (self.rate * work.count * work.unit)
        return torch.stack(squares).sum() / 2 - volume + 0.5 * math.log2(2 * math.pi)

    def _backward(self, work: _Work) -> None:
        hidden, small = work.hidden, work.small
        for n in range(len(work.layers) - 1, -1, -1):
            v = work.layers[n]
            torch.mul(v.grad_moved, v.scale3, out=v.grad_out)
            self._read_out(v, work)
            torch.mm(v.grad_out, v.read_out_t, out=v.grad_weights[2])
            torch.mm(v.weights_t[2], v.grad_out, out=hidden)
            _through_relu(hidden, v.hidden2, v.grad_hidden2)
            torch.mul(v.grad_hidden2, v.scale2, out=small)
            torch.mm(small, v.hidden1_t, out=v.grad_weights[1])
            if self.residual:
                hidden.addmm_(v.weights_t[1], small)
            else:
                torch.mm(v.weights_t[1], small, out=hidden)
            _through_relu(hidden, v.hidden1, v.grad_hidden1)
            torch.mul(v.grad_hidden1, v.scale1, out=small)
            torch.mm(small, v.kept_t, out=v.grad_weights[0])
            v.grad_kept.addmm_(v.weights_t[0], small)
            if n:
                before = work.layers[n - 1]
                into = before.grad_kept if before.ends_level else before.grad_state
                torch.index_select(v.grad_state, 0, v.back, out=v.spare)
                torch.mul(v.spare, v.scale, out=into)

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
        self.layers = [_Views(of, self, *step) for step in of.steps]


class _Views:
    """The parts of all matrices and vectors that belong to one layer.

    Slicing costs as much as computing, so it is done once.
    """

    def __init__(
        self,
        of: LikelihoodGradient,
        work: _Work,
        norm: ActNorm,
        mixing: Permutation,
        coupling: AdditiveCoupling,
    ) -> None:
        net, span = coupling.net, of.parameters.span
        values, grads = work.values, work.grads
        self.order, self.back = mixing.order, mixing.order.argsort()
        self.ends_level = coupling in of.last_of_level
        state = span(norm.log_scale)
        kept = slice(state.start, state.start + coupling.kept)
        moved = slice(kept.stop, state.stop)
        self.spare = work.spare[: state.stop - state.start]
        self.state, self.grad_state = values[state], grads[state]
        self.scale, self.shift = of.scale[state], of.shift[state]
        self.kept, self.kept_t, self.grad_kept = values[kept], values[kept].T, grads[kept]
        self.moved, self.grad_moved = values[moved], grads[moved]
        hidden = span(net.actnorm1.log_scale)
        self.hidden1, self.hidden1_t = values[hidden], values[hidden].T
        self.grad_hidden1 = grads[hidden]
        self.scale1, self.shift1 = of.scale[hidden], of.shift[hidden]
        hidden = span(net.actnorm2.log_scale)
        self.hidden2, self.grad_hidden2 = values[hidden], grads[hidden]
        self.scale2, self.shift2 = of.scale[hidden], of.shift[hidden]
        self.read_out = work.hidden if of.residual else self.hidden2
        self.read_out_t = self.read_out.T
        out = span(net.log_scale)
        self.out, self.grad_out = values[out], grads[out]
        self.scale3, self.shift3 = of.scale[out], of.shift[out]
        self.weights = [weight.data for weight in net.weights()]
        self.weights_t = [weight.T for weight in self.weights]
        self.grad_weights = [of.parameters.gradient_of(weight) for weight in net.weights()]


def _through_relu(grad: Tensor, after: Tensor, out: Tensor) -> None:
    """The gradient before a ReLU, from that after it and what came out of it."""
    torch.ops.aten.threshold_backward.grad_input(grad, after, 0, grad_input=out)
