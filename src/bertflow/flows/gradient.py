"""Loss and gradient of an additive Glow written out, without autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bertflow.flows.flat import FlatParameters
from bertflow.flows.glow import Glow
from bertflow.flows.layers import ActNorm, AdditiveCoupling, CouplingNet, Permutation


class LikelihoodGradient:
    r"""The bits per dimension of a batch and their gradient, in few operations a layer.

    For Glows of ActNorm, fixed permutation and additive coupling. In a batch of 32 rows every
    operation has microseconds of work, and what costs is how many there are. Here

    - rows are columns, (D, N): halves are contiguous, and a permutation copies whole lines;
    - parameters of one kind lie side by side in one vector, so that all log-scales are
      exponentiated at once, and the gradients of all scales and shifts are row sums of one matrix:
      with :math:`v = (u + b)\, e^{r s}`,

      .. math::
          \frac{\partial \ell}{\partial s} = r \sum_n v_n\, \frac{\partial \ell}{\partial v_n},
          \qquad
          \frac{\partial \ell}{\partial b} = e^{r s} \sum_n \frac{\partial \ell}{\partial v_n};

    - the large matrices are allocated once for every size of batch.

    The numbers are autograd's up to rounding.

    Args:
        glow: Initialised. Its parameters become views of one vector.

    Attributes:
        parameters: That vector, and the gradient that calling this fills.

    Raises:
        ValueError: The Glow has another kind of layer, see `suits`.

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
        levels = [list(level) for level in glow.compositions()]
        steps = [step for level in levels for step in zip(*[iter(level)] * 3, strict=True)]
        norms: list[ActNorm] = [norm for norm, _, _ in steps]
        nets: list[CouplingNet] = [coupling.net for _, _, coupling in steps]
        inner = [norm for net in nets for norm in (net.actnorm1, net.actnorm2)]
        self.features = glow.features
        self.rate = norms[0].scale_rate
        self.residual = nets[0].residual
        # Scales of states, hidden values and outputs; then, in the same order, what is added to
        # them. The states of all layers and their gradients have these as rows.
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
        self.layers: list[_Layer] = []
        for level in levels:
            for norm, mixing, coupling in zip(*[iter(level)] * 3, strict=True):
                self.layers.append(self._layer(norm, mixing, coupling))
            self.layers[-1].ends_level = True
        starts = [layer.state.start for layer in self.layers]
        orders = [layer.order + start for layer, start in zip(self.layers, starts, strict=True)]
        self.back = torch.cat(orders).argsort()
        moved = [torch.arange(layer.moved.start, layer.moved.stop) for layer in self.layers]
        self.moved_rows = torch.cat(moved).to(values.device)
        self._works: dict[int, _Work] = {}

    @staticmethod
    def suits(glow: Glow) -> bool:
        """Whether the gradients of all its layers are written out here."""
        kinds = (ActNorm, Permutation, AdditiveCoupling)
        return all(
            isinstance(step, kinds[n % 3])
            for level in glow.compositions()
            for n, step in enumerate(level)
        )

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        """Fill the gradient, and return the loss in bits per dimension.

        Args:
            x: A batch of rows, shape (N, D).

        Returns:
            The mean over the rows, without dimensions.
        """
        count = len(x)
        if count not in self._works:
            self._works[count] = self._work(count)
        work = self._works[count]
        self._forward(x, work)
        loss = self._loss(work)
        self._backward(work)
        self._collect(work)
        return loss

    def _layer(self, norm: ActNorm, mixing: Permutation, coupling: AdditiveCoupling) -> _Layer:
        net, span = coupling.net, self.parameters.span
        state = span(norm.log_scale)
        middle = state.start + coupling.kept
        return _Layer(
            order=mixing.order,
            back=mixing.order.argsort(),
            state=state,
            kept=slice(state.start, middle),
            moved=slice(middle, state.stop),
            hidden1=span(net.actnorm1.log_scale),
            hidden2=span(net.actnorm2.log_scale),
            out=span(net.log_scale),
            net=net,
        )

    def _work(self, count: int) -> _Work:
        like = self.parameters.values
        values, grads, product = torch.empty(
            3, self.rows, count, dtype=like.dtype, device=like.device
        )
        width = max(layer.net.linear2.out_features for layer in self.layers)
        spare = values.new_empty(self.features, count)
        hidden, small = values.new_empty(2, width, count)
        return _Work(
            count=count,
            unit=1 / (count * self.features * math.log(2)),
            values=values,
            grads=grads,
            product=product,
            ones=values.new_ones(count),
            hidden=hidden,
            small=small,
            layers=[self._views(layer, values, grads, spare, hidden) for layer in self.layers],
        )

    def _views(
        self, layer: _Layer, values: Tensor, grads: Tensor, spare: Tensor, hidden: Tensor
    ) -> _Views:
        net, gradient_of = layer.net, self.parameters.gradient_of
        weights = net.weights()
        read_out = hidden if self.residual else values[layer.hidden2]
        return _Views(
            layer=layer,
            spare=spare[: layer.state.stop - layer.state.start],
            state=values[layer.state],
            kept=values[layer.kept],
            kept_t=values[layer.kept].T,
            moved=values[layer.moved],
            hidden1=values[layer.hidden1],
            hidden1_t=values[layer.hidden1].T,
            hidden2=values[layer.hidden2],
            read_out=read_out,
            read_out_t=read_out.T,
            out=values[layer.out],
            grad_state=grads[layer.state],
            grad_kept=grads[layer.kept],
            grad_moved=grads[layer.moved],
            grad_hidden1=grads[layer.hidden1],
            grad_hidden2=grads[layer.hidden2],
            grad_out=grads[layer.out],
            scale=self.scale[layer.state],
            shift=self.shift[layer.state],
            scale1=self.scale[layer.hidden1],
            shift1=self.shift[layer.hidden1],
            scale2=self.scale[layer.hidden2],
            shift2=self.shift[layer.hidden2],
            scale3=self.scale[layer.out],
            shift3=self.shift[layer.out],
            weights=tuple(w.data for w in weights),
            weights_t=tuple(w.data.T for w in weights),
            grad_weights=tuple(gradient_of(w) for w in weights),
        )

    def _forward(self, x: Tensor, work: _Work) -> None:
        values, rows, normed = self.parameters.values[:, None], self.rows, self.normed
        torch.mul(values[:rows], self.rate, out=self.scale).exp_()
        torch.mul(values[rows : rows + normed], self.scale[:normed], out=self.shift[:normed])
        self.shift[normed:].copy_(values[rows + normed : 2 * rows])
        x = x.T
        for v in work.layers:
            torch.mul(x, v.scale, out=v.spare).add_(v.shift)
            torch.index_select(v.spare, 0, v.layer.order, out=v.state)
            torch.mm(v.weights[0], v.kept, out=v.hidden1).mul_(v.scale1).add_(v.shift1).relu_()
            torch.mm(v.weights[1], v.hidden1, out=v.hidden2).mul_(v.scale2).add_(v.shift2).relu_()
            # What comes out is kept before its scale: the scale's gradient is a row sum of it.
            self._read_out(v, work)
            torch.mm(v.weights[2], v.read_out, out=v.out).add_(v.shift3)
            v.moved.add_(torch.mul(v.out, v.scale3, out=v.grad_out))
            x = v.kept if v.layer.ends_level else v.state

    def _read_out(self, v: _Views, work: _Work) -> None:
        """Compute what the last layer of a coupling net reads, where that is a sum."""
        if self.residual:
            torch.add(v.hidden1, v.hidden2, out=work.hidden)

    def _loss(self, work: _Work) -> Tensor:
        """The loss. Its gradient by the latent vector is that vector; it is written here."""
        squares: list[Tensor] = []
        for v in work.layers:
            if not v.layer.ends_level:
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
                into = before.grad_kept if before.layer.ends_level else before.grad_state
                torch.index_select(v.grad_state, 0, v.layer.back, out=v.spare)
                torch.mul(v.spare, v.scale, out=into)

    def _collect(self, work: _Work) -> None:
        """Gradients of all scales and shifts, from the states and their gradients."""
        outer, normed, rows = self.outer, self.normed, self.rows
        torch.mul(work.values, work.grads, out=work.product)
        products, sums = torch.mv(work.product, work.ones), torch.mv(work.grads, work.ones)
        # States are those after the coupling: what it has added is none of ActNorm's doing.
        products[:outer].index_add_(0, self.moved_rows, products[normed:], alpha=-1)
        volume = work.count * work.unit
        products[:outer] = products[:outer].index_select(0, self.back) - volume
        sums[:outer] = sums[:outer].index_select(0, self.back)
        sums[:normed] *= self.scale[:normed, 0]
        torch.mul(products, self.rate, out=self.parameters.gradient[:rows])
        self.parameters.gradient[rows : 2 * rows] = sums


@dataclass
class _Layer:
    """One ActNorm, permutation and coupling, and which rows of the states are theirs."""

    order: Tensor
    back: Tensor
    state: slice
    kept: slice
    moved: slice
    hidden1: slice
    hidden2: slice
    out: slice
    net: CouplingNet
    ends_level: bool = False


@dataclass(frozen=True)
class _Views:
    """Of one layer, the parts of the matrices and vectors that belong to it."""

    layer: _Layer
    spare: Tensor
    state: Tensor
    kept: Tensor
    kept_t: Tensor
    moved: Tensor
    hidden1: Tensor
    hidden1_t: Tensor
    hidden2: Tensor
    read_out: Tensor
    read_out_t: Tensor
    out: Tensor
    grad_state: Tensor
    grad_kept: Tensor
    grad_moved: Tensor
    grad_hidden1: Tensor
    grad_hidden2: Tensor
    grad_out: Tensor
    scale: Tensor
    shift: Tensor
    scale1: Tensor
    shift1: Tensor
    scale2: Tensor
    shift2: Tensor
    scale3: Tensor
    shift3: Tensor
    weights: tuple[Tensor, ...]
    weights_t: tuple[Tensor, ...]
    grad_weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Work:
    """Memory for batches of one size: all states, their gradients, and room to compute."""

    count: int
    unit: float
    values: Tensor
    grads: Tensor
    product: Tensor
    ones: Tensor
    hidden: Tensor
    small: Tensor
    layers: list[_Views]


def _through_relu(grad: Tensor, after: Tensor, out: Tensor) -> None:
    """The gradient before a ReLU, from that after it and what came out of it."""
    torch.ops.aten.threshold_backward.grad_input(grad, after, 0, grad_input=out)
