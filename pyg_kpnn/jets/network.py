"""An encoder and one attention over a fixed memory, as a function of its tensors; its jets of any order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .algebra import compose_parts
from .indices import JetSpace
from .layers import ridge_parts, softmax_parts
from .memory import keep_memory, values_only
from .towers import Activation

__all__ = ["AttentionNet"]

# Numbers in the jet of one layer for a block of points: a few such tensors fill a shared cache.
_BLOCK = 2**19


class AttentionNet(NamedTuple):
    r"""Tensors of :math:`u(x) = W_o [\mathrm{softmax}(K q(x)) V\ (+\ q(x))] + b_o`.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn.jets import activation
    >>> one = torch.ones(1, 1)
    >>> net = AttentionNet((one,), (one[0],), one, one, one, one[0], activation("exp"), residual=True)
    >>> net.value(torch.tensor([[-1.0]]))
    tensor([[3.]])
    >>> net.jet(torch.tensor([[-1.0]]), order=2).flatten()
    tensor([3.0000, 1.0000, 0.5000])
    """

    weights: tuple[Tensor, ...]  # (hidden, in_dim), then (hidden, hidden)
    biases: tuple[Tensor, ...]  # (hidden,)
    keys: Tensor  # (memory, hidden), the inverse temperature multiplied in
    values: Tensor  # (memory, value_dim)
    readout_weight: Tensor  # (out_dim, value_dim)
    readout_bias: Tensor  # (out_dim,)
    activation: Activation
    residual: bool

    def encode(self, x: Tensor, order: int = 0) -> tuple[Tensor, list[list[Tensor]]]:
        """Query (..., hidden), and of each layer the derivatives 1 to ``order`` of its activation."""
        hidden, slopes = x, []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            before = functional.linear(hidden, weight, bias)
            if order == 0:
                hidden = self.activation(before)
            else:
                hidden, *levels = self.activation.derivatives(before, order)
                slopes.append(levels)
        return hidden, slopes

    def weigh(self, query: Tensor) -> Tensor:
        """Attention weights (..., memory)."""
        return (query @ self.keys.mT).softmax(-1)

    def weigh_and_rank(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention weights, and the slot (...,) that has the most."""
        scores = query @ self.keys.mT
        highest, top = scores.detach().max(-1, keepdim=True)
        weights = (scores - highest).exp()
        return weights / weights.sum(-1, keepdim=True), top.squeeze(-1)

    def offers(self) -> Tensor:
        """What each slot adds to u when it has all the attention, (memory, out_dim)."""
        return self.values @ self.readout_weight.mT

    def read_out(self, query: Tensor, weights: Tensor, offers: Tensor) -> Tensor:
        """u (..., out_dim)."""
        u = weights @ offers + self.readout_bias
        return u + query @ self.readout_weight.mT if self.residual else u

    def value(self, x: Tensor) -> Tensor:
        """u (..., out_dim) at x (..., in_dim)."""
        query, _ = self.encode(x)
        return self.read_out(query, self.weigh(query), self.offers())

    def jet(self, x: Tensor, order: int) -> Tensor:
        """Taylor coefficients (size, B, out_dim) of u at x (B, in_dim) by jet arithmetic alone."""
        space = JetSpace(x.shape[-1], order)
        if not values_only(x, *self.tensors()):
            return self._jet(x, space)
        keep_memory()
        points = max(1, _BLOCK // (space.size * self.keys.shape[1]))
        parts = [self._jet(piece, space) for piece in x.split(points)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _jet(self, x: Tensor, space: JetSpace) -> Tensor:
        # In homogeneous parts throughout, because putting them together after every layer is a copy.
        before = functional.linear(x, self.weights[0], self.biases[0])
        query = ridge_parts(self.activation.derivatives(before, space.order), self.weights[0], space)
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            inner = [functional.linear(query[0], weight, bias), *(part @ weight.mT for part in query[1:])]
            query = compose_parts(self.activation.derivatives(inner[0][0], space.order), inner, space.n_vars)
        weights = softmax_parts([part @ self.keys.mT for part in query], space.n_vars, dim=-1)
        offers = self.offers()
        u = torch.cat([part @ offers for part in weights])
        if self.residual:
            u = u + torch.cat([part @ self.readout_weight.mT for part in query])
        return torch.cat([u[:1] + self.readout_bias, u[1:]])

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, for questions about all of them."""
        rest = (self.keys, self.values, self.readout_weight, self.readout_bias)
        return (*self.weights, *self.biases, *rest)
