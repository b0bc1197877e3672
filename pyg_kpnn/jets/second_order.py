r"""Gradient, Hessian and Laplacian of an attention network, without jets.

The network is a chain of affine maps, activations and one softmax, and for such a chain

.. math::
    \nabla^2 u = \sum_{\mathrm{blocks}} J^\top D\, J,

one term for each block that is not affine. :math:`J` is the Jacobian of the block's input in x, carried
forward; :math:`D` is the block's second derivative weighted by the adjoint of its output, carried
backward. :math:`D` is diagonal for an activation. It is diagonal for a softmax too once :math:`J` is
centred: the term is :math:`\sum_m a_m (c_m - \bar c)\, (J_m - \bar J)^\top (J_m - \bar J)`, where bars are
means under the attention weights :math:`a` and :math:`c_m` is what slot m adds to u. All of it is matrix
products, and the Laplacian needs only their diagonals.

Values that nothing is traced through come from :mod:`pyg_kpnn.jets.native`, by the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .indices import second_order_rows
from .memory import keep_memory, values_only
from .native import second_order as native
from .network import AttentionNet

__all__ = ["gradient", "hessian", "jet", "laplacian", "value", "value_gradient", "value_gradient_hessian"]

# Numbers in the largest tensor of one block of points: a few of them fill a shared cache.
_BLOCK = 2**18


class _Sweep(NamedTuple):
    """What one pass forward and one backward over n points leave behind; adjoints are of u / 2."""

    query: Tensor  # (n, hidden)
    attention: Tensor  # (n, memory)
    pull: Tensor  # (n, out_dim, memory), a_m (c_m - c̄) / 2: adjoint of the scores
    slopes: list[Tensor]  # of each layer, σ′ (n, hidden)
    curvatures: list[Tensor]  # of each layer, adjoint times σ″, (n, out_dim, hidden); empty to first order
    adjoint: Tensor  # (n, out_dim, hidden), of the first layer's output

    def value(self, net: AttentionNet) -> Tensor:
        """u (n, out_dim)."""
        return net.read_out(self.query, self.attention, net.offers())

    def gradient(self, net: AttentionNet) -> Tensor:
        """(n, in_dim, out_dim)."""
        return ((self.adjoint * self.slopes[0].unsqueeze(1)) @ (2.0 * net.weights[0])).mT


def _sweep(net: AttentionNet, x: Tensor, order: int) -> _Sweep:
    query, levels = net.encode(x, order)
    attention, top = net.weigh_and_rank(query)
    # Of u / 2, because the Hessian is made as a sum with its transpose.
    offers = 0.5 * net.offers()
    # Counted from what the heaviest slot adds, or a softmax all but certain would leave no digit of c - c̄.
    offered = offers.mT - offers[top].unsqueeze(-1)
    share = attention.unsqueeze(1)
    pull = share * (offered - (share * offered).sum(-1, keepdim=True))
    adjoint = pull @ net.keys
    if net.residual:
        adjoint = adjoint + 0.5 * net.readout_weight
    curvatures = []
    for layer in range(len(levels) - 1, -1, -1):
        slope, *second = levels[layer]
        if second:
            curvatures.append(adjoint * second[0].unsqueeze(1))
        if layer:
            adjoint = (adjoint * slope.unsqueeze(1)) @ net.weights[layer]
    return _Sweep(query, attention, pull, [slope for slope, *_ in levels], curvatures[::-1], adjoint)


def value(net: AttentionNet, x: Tensor) -> Tensor:
    """u ``(B, out_dim)`` at x ``(B, in_dim)``."""
    found = native(net, x, "value")
    return net.value(x) if found is None else found[0]


def value_gradient(net: AttentionNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """u ``(B, out_dim)`` and its gradient ``(B, in_dim, out_dim)`` at x ``(B, in_dim)``."""
    found = native(net, x, "value", "gradient")
    if found is not None:
        return found[0], found[1]
    sweep = _sweep(net, x, 1)
    return sweep.value(net), sweep.gradient(net)


def gradient(net: AttentionNet, x: Tensor) -> Tensor:
    """The gradient alone, ``(B, in_dim, out_dim)``."""
    found = native(net, x, "gradient")
    if found is not None:
        return found[0]
    return _sweep(net, x, 1).gradient(net)


def _paths(net: AttentionNet, points: int) -> Tensor | None:
    """``(hidden, in_dim * next)``: from each input through each unit of layer 1 to what follows it.

    Layer 1 has the same Jacobian at all points, so with this table the Jacobian behind it is one
    matrix product of its slopes. None where the table would be larger than what it replaces.
    """
    first, following = net.weights[0], (*net.weights, net.keys)[1]
    if points < first.shape[0]:
        return None
    return (first.unsqueeze(2) * following.mT.unsqueeze(1)).flatten(1)


def _jacobians(net: AttentionNet, sweep: _Sweep, paths: Tensor | None) -> list[Tensor]:
    """Jacobians of the inputs of layers 2 on, (n, in_dim, hidden), and last of the centred scores."""
    hidden, in_dim = net.weights[0].shape
    n, memory = sweep.attention.shape
    found, jacobian = [], net.weights[0].mT.unsqueeze(0)
    for layer, weight in enumerate((*net.weights[1:], net.keys)):
        slope = sweep.slopes[layer]
        if layer == 0 and paths is not None:
            jacobian = (slope @ paths).reshape(n, in_dim, weight.shape[0])
        else:
            rows = (slope.unsqueeze(1) * jacobian).reshape(n * in_dim, hidden)
            if weight is net.keys:  # few rows times many columns is the quicker way round
                jacobian = (weight @ rows.mT).reshape(memory, n, in_dim).permute(1, 2, 0).contiguous()
            else:
                jacobian = (rows @ weight.mT).reshape(n, in_dim, hidden)
        found.append(jacobian)
    found[-1] = jacobian - (jacobian * sweep.attention.unsqueeze(1)).sum(-1, keepdim=True)
    return found


def jet(net: AttentionNet, x: Tensor, order: int) -> Tensor:
    """Taylor coefficients ``(B, size, out_dim)`` of u to an order of at most 2."""
    if order == 0:
        return value(net, x).unsqueeze(1)
    in_dim = x.shape[1]
    if order == 1:
        u, first = value_gradient(net, x)
        rows = [u.unsqueeze(1), first.flip(1)]  # the first row of order 1 is the last input's
    else:
        u, first, second = value_gradient_hessian(net, x)
        place = second_order_rows(in_dim, x.device)
        # D^2 / 2! on the diagonal, D^2 beside it
        scale = torch.where(place % (in_dim + 1) == 0, 0.5, 1.0).to(x.dtype)
        above = second.flatten(1, 2).index_select(1, place) * scale.unsqueeze(1)
        rows = [u.unsqueeze(1), first.flip(1), above]
    return torch.cat(rows, dim=1)


def hessian(net: AttentionNet, x: Tensor) -> Tensor:
    """Hessian ``(B, in_dim, in_dim, out_dim)`` at x ``(B, in_dim)``, symmetric to the last bit."""
    found = native(net, x, "hessian")
    if found is not None:
        return found[0].permute(0, 2, 3, 1)
    return _curved(net, x, lower=False)[0].permute(0, 2, 3, 1)


def value_gradient_hessian(net: AttentionNet, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`value_gradient` and :func:`hessian` return, from one pass."""
    found = native(net, x, "value", "gradient", "hessian")
    if found is None:
        second, u, first = _curved(net, x, lower=True)
    else:
        u, first, second = found
    return u, first, second.permute(0, 2, 3, 1)


def _curved(net: AttentionNet, x: Tensor, lower: bool) -> tuple[Tensor, ...]:
    """Hessian (B, out_dim, in_dim, in_dim); with ``lower`` also u and the gradient."""
    first = net.weights[0]
    in_dim, out_dim = first.shape[1], net.readout_weight.shape[0]
    paths = _paths(net, x.shape[0])
    products = (first.unsqueeze(2) * first.unsqueeze(1)).flatten(1)

    def block(points: Tensor) -> tuple[Tensor, ...]:
        n = points.shape[0]
        sweep = _sweep(net, points, 2)
        half = (sweep.curvatures[0] @ products).reshape(n, out_dim * in_dim, in_dim)
        weights = (*sweep.curvatures[1:], sweep.pull)
        for jacobian, weight in zip(_jacobians(net, sweep, paths), weights, strict=True):
            weighted = jacobian.unsqueeze(1) * weight.unsqueeze(2)
            half = torch.baddbmm(half, weighted.flatten(1, 2), jacobian.mT)
        half = half.reshape(n, out_dim, in_dim, in_dim)
        second = half + half.mT
        return (second, sweep.value(net), sweep.gradient(net)) if lower else (second,)

    return _in_blocks(net, x, block, in_dim * out_dim * max(first.shape[0], in_dim))


def laplacian(net: AttentionNet, x: Tensor) -> Tensor:
    """Sum of the second derivatives of u in each input, ``(B, out_dim)``, without the Hessian."""
    found = native(net, x, "laplacian")
    if found is not None:
        return found[0]
    first = net.weights[0]
    paths = _paths(net, x.shape[0])
    squares = first.square().sum(1)

    def block(points: Tensor) -> tuple[Tensor, ...]:
        sweep = _sweep(net, points, 2)
        half = sweep.curvatures[0] @ squares
        weights = (*sweep.curvatures[1:], sweep.pull)
        for jacobian, weight in zip(_jacobians(net, sweep, paths), weights, strict=True):
            half = half + (weight * jacobian.square().sum(1).unsqueeze(1)).sum(-1)
        return (2.0 * half,)

    return _in_blocks(net, x, block, first.numel())[0]


def _in_blocks(
    net: AttentionNet, x: Tensor, block: Callable[[Tensor], tuple[Tensor, ...]], each: int
) -> tuple[Tensor, ...]:
    """``block`` over as many points at a time as the cache holds, ``each`` numbers a point in one tensor."""
    if not values_only(x, *net.tensors()):
        return block(x)
    keep_memory()
    size = max(1, _BLOCK // each)
    parts = [block(piece) for piece in x.split(size)]
    return parts[0] if len(parts) == 1 else tuple(torch.cat(part) for part in zip(*parts, strict=True))
