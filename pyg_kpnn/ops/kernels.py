"""The two sums over edges that attention is made of, and their derivatives of any order.

For edges :math:`e` from source :math:`s_e` to target :math:`t_e`, with tensors that live on
targets, on sources or on edges:

``dot``  :math:`z_e = \\langle x_{t_e}, y_{s_e} \\rangle`, nodes to edges,

``mix``  :math:`o_i = \\sum_{e: t_e = i} w_e\\, y_{s_e}`, edges and nodes to nodes, or the same
towards the sources.

Each is bilinear, and the derivative of one is the other: the gradient of ``dot`` mixes, the
gradient of ``mix`` dots and mixes. So two autograd functions that call each other are exact
to any order and save nothing but their inputs; the gathered rows, E x d numbers, are made
again in backward, a slice of ``chunk_size`` edges at a time when one is given.

In backward what is not finite counts as 0, see :mod:`pyg_kpnn.ops.rows`: a target of NaN that a loss
leaves out sends its sources a gradient of 0, not of 0 * NaN.

A *kernel* holds what differs between libraries: how to sum rows over segments and how to
find the maximum of one. Tensors here are ``(B, N, H, d)`` on nodes and ``(B, E, H)`` on
edges in the sorted order of :class:`EdgeLayout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from .layout import EdgeLayout
from .precision import traced, without_autocast
from .rows import finite, primals

__all__ = [
    "BatchedFunction",
    "Kernel",
    "dot",
    "fold_batch",
    "mix",
    "segment_softmax",
    "softmax_tangent",
    "weigh",
]


class Kernel(Protocol):
    """Segment reductions of one library over the sorted edges of a layout."""

    def add_rows(self, out: Tensor, rows: Tensor, layout: EdgeLayout, side: str, edges: slice) -> None:
        """Add ``rows`` (..., e, H, d) of the given edges to ``out`` (..., N, H, d), in place."""

    def segment_max(self, scores: Tensor, layout: EdgeLayout) -> Tensor:
        """Maximum (B, N, H) of ``scores`` (B, E, H) over the edges into each target."""

    def segment_sum(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        """Sum (B, N, H) of ``values`` (B, E, H) over the edges into each target, differentiable."""

    def spread(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        """Value (B, E, H) at the target of each edge of ``values`` (B, N, H), differentiable."""

    def edge_order(self, layout: EdgeLayout, side: str) -> tuple[Tensor | None, Tensor]:
        """How ``mix`` towards ``side`` walks the edges.

        Returns which sorted edge comes when (None: as they are sorted), and the node at the
        other end of each in that order.
        """


def dot(
    on_target: Tensor, on_source: Tensor, layout: EdgeLayout, kernel: Kernel, chunk: int | None
) -> Tensor:
    """Inner product (B, E, H) of the rows (B, N, H, d) at the two ends of each edge."""
    function = _Dot if torch.compiler.is_compiling() else _DotWithForwardAD
    return function.apply(on_target, on_source, layout, kernel, chunk)


def mix(
    weights: Tensor, rows: Tensor, layout: EdgeLayout, kernel: Kernel, chunk: int | None, side: str = "target"
) -> Tensor:
    """Weighted sum (B, N, H, d) at ``side`` of the rows at the other end of each edge."""
    function = _Mix if torch.compiler.is_compiling() else _MixWithForwardAD
    return function.apply(weights, rows, layout, kernel, chunk, side)


def segment_softmax(scores: Tensor, layout: EdgeLayout, kernel: Kernel) -> Tensor:
    """Softmax (B, E, H) over the edges into each target; 0 where every score is -inf."""
    function = _Softmax if torch.compiler.is_compiling() else _SoftmaxWithForwardAD
    return function.apply(scores, layout, kernel)


def weigh(
    scores: Tensor, bias: Tensor | None, key_mask: Tensor | None, layout: EdgeLayout, kernel: Kernel
) -> Tensor:
    """Softmax weights (B, E, H) of ``scores`` plus ``bias`` (B, E, H, caller's order), masked keys out."""
    if bias is not None:
        scores = scores + bias.index_select(1, layout.by_target)
    if key_mask is not None:
        hidden = key_mask.index_select(1, layout.source)
        scores = scores.masked_fill(hidden.unsqueeze(-1), -torch.inf)
    return segment_softmax(scores, layout, kernel)


# Numbers gathered at a time when several samples fit: about what stays in a core's cache.
_TILE = 2**18


def _tiles(
    batch: int, layout: EdgeLayout, width: int, chunk: int | None
) -> Iterator[tuple[slice | None, slice]]:
    """Samples (None: all) and edges to gather together: ``chunk`` edges, what samples fit the cache."""
    if chunk is None and torch.compiler.is_compiling():  # where the number of edges may stay open too
        yield None, slice(None)
        return
    step = max(layout.num_edges, 1) if chunk is None else chunk
    blocks: list[slice | None] = [None]
    if not torch.compiler.is_compiling():  # where the number of samples may stay open
        samples = max(1, _TILE // max(1, min(step, layout.num_edges) * width))
        blocks = [slice(first, first + samples) for first in range(0, batch, samples)]
    for block in blocks:
        for start in range(0, layout.num_edges, step):
            yield block, slice(start, min(start + step, layout.num_edges))


def _tile(tensor: Tensor, samples: slice | None) -> Tensor:
    """Those samples of ``tensor``, without the batch axis when it is one sample."""
    return tensor if samples is None else tensor[samples].squeeze(0)


class _Gather:
    """Rows of some nodes, written into the same memory each time.

    Fresh memory for every slice would be paged in anew, and leaves a heap in pieces that no
    later tensor fits.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def __call__(self, rows: Tensor, index: Tensor) -> Tensor:
        if traced():
            return rows.index_select(-3, index)
        shape = (*rows.shape[:-3], index.numel(), *rows.shape[-2:])
        size = math.prod(shape)
        if self._memory is None or self._memory.numel() < size:
            self._memory = rows.new_empty(size)
        return torch.index_select(rows, rows.dim() - 3, index, out=self._memory[:size].view(shape))


def _dot(on_target: Tensor, on_source: Tensor, layout: EdgeLayout, chunk: int | None) -> Tensor:
    batch, _, heads, width = on_target.shape
    out = on_target.new_empty(batch, layout.num_edges, heads)
    at_target, at_source = _Gather(), _Gather()
    for samples, edges in _tiles(batch, layout, heads * width, chunk):
        target_rows = at_target(_tile(on_target, samples), layout.target[edges])
        source_rows = at_source(_tile(on_source, samples), layout.source[edges])
        with without_autocast(out.device.type):  # backward runs wherever its caller does
            _tile(out, samples)[..., edges, :] = torch.einsum("...hd,...hd->...h", target_rows, source_rows)
    return out


def _mix(
    weights: Tensor, rows: Tensor, layout: EdgeLayout, kernel: Kernel, chunk: int | None, side: str
) -> Tensor:
    # Read off a tensor: a size that torch.compile leaves open does not reach backward in any other way.
    size = (layout.target_ptr if side == "target" else layout.source_ptr).shape[0] - 1
    order, origin = kernel.edge_order(layout, side)
    batch, _, heads, width = rows.shape
    out = rows.new_zeros(batch, size, heads, width)
    gather = _Gather()
    for samples, edges in _tiles(batch, layout, heads * width, chunk):
        part = _tile(weights, samples)
        part = part[..., edges, :] if order is None else part.index_select(-2, order[edges])
        message = gather(_tile(rows, samples), origin[edges])
        message = message.mul_(part.unsqueeze(-1))
        kernel.add_rows(_tile(out, samples), message, layout, side, edges)
    return out


def fold_batch(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Fold an axis mapped over by vmap into the batch axis B."""
    moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.flatten(0, 1)


class BatchedFunction(torch.autograd.Function):
    """vmap for functions whose tensor arguments all lead with the batch axis B."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        merged = [
            fold_batch(arg, dim, info.batch_size) if isinstance(arg, Tensor) else arg
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        out = cls.apply(*merged)
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Dot(BatchedFunction):
    @staticmethod
    def forward(
        on_target: Tensor, on_source: Tensor, layout: EdgeLayout, kernel: Kernel, chunk: int | None
    ) -> Tensor:
        return _dot(on_target, on_source, layout, chunk)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        on_target, on_source, *ctx.rest = inputs
        ctx.save_for_backward(on_target, on_source)
        ctx.save_for_forward(on_target, on_source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        on_target, on_source = ctx.saved_tensors
        layout, kernel, chunk = ctx.rest
        grad_target = grad_source = None
        if ctx.needs_input_grad[0]:
            grad_target = mix(grad, finite(on_source), layout, kernel, chunk, "target")
        if ctx.needs_input_grad[1]:
            grad_source = mix(grad, finite(on_target), layout, kernel, chunk, "source")
        return grad_target, grad_source, None, None, None


class _Mix(BatchedFunction):
    @staticmethod
    def forward(
        weights: Tensor, rows: Tensor, layout: EdgeLayout, kernel: Kernel, chunk: int | None, side: str
    ) -> Tensor:
        return _mix(weights, rows, layout, kernel, chunk, side)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weights, rows, *ctx.rest, ctx.side = inputs
        ctx.save_for_backward(weights, rows)
        ctx.save_for_forward(weights, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, rows = ctx.saved_tensors
        layout, kernel, chunk = ctx.rest
        grad_weights = grad_rows = None
        to_target = ctx.side == "target"
        if ctx.needs_input_grad[0]:
            known = finite(rows)
            on_target, on_source = (grad, known) if to_target else (known, grad)
            grad_weights = dot(on_target, on_source, layout, kernel, chunk)
        if ctx.needs_input_grad[1]:
            other = "source" if to_target else "target"
            grad_rows = mix(finite(weights), grad, layout, kernel, chunk, other)
        return grad_weights, grad_rows, None, None, None, None


class _Softmax(BatchedFunction):
    @staticmethod
    def forward(scores: Tensor, layout: EdgeLayout, kernel: Kernel) -> Tensor:
        top = kernel.segment_max(scores, layout)
        # A target without a live edge has no maximum; any finite number keeps exp(-inf) = 0.
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = (scores - kernel.spread(top, layout)).exp_()
        total = kernel.segment_sum(weights, layout)
        total = total.masked_fill(total == 0, 1.0)
        return weights.div_(kernel.spread(total, layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *ctx.rest = inputs
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        return softmax_tangent(finite(weights), grad, *ctx.rest), None, None


def softmax_tangent(weights: Tensor, tangent: Tensor, layout: EdgeLayout, kernel: Kernel) -> Tensor:
    # The Jacobian of a softmax is symmetric, so this serves backward and forward mode alike.
    mean = kernel.segment_sum(weights * tangent, layout)
    return weights * (tangent - kernel.spread(mean, layout))  # in this form one (B, E, H) fewer is alive


# torch.compile refuses functions with a jvp of their own, so forward mode is a subclass that
# the compiled path does not see.


class _DotWithForwardAD(_Dot):
    @staticmethod
    def jvp(ctx: Any, target_tangent: Tensor | None, source_tangent: Tensor | None, *_: None) -> Tensor:
        layout, kernel, chunk = ctx.rest
        terms = []
        with _set_fwd_grad_enabled(True):
            on_target, on_source = primals(ctx)
            if target_tangent is not None:
                terms.append(dot(target_tangent, on_source, layout, kernel, chunk))
            if source_tangent is not None:
                terms.append(dot(on_target, source_tangent, layout, kernel, chunk))
            return terms[0] if len(terms) == 1 else terms[0] + terms[1]


class _MixWithForwardAD(_Mix):
    @staticmethod
    def jvp(ctx: Any, weights_tangent: Tensor | None, rows_tangent: Tensor | None, *_: None) -> Tensor:
        layout, kernel, chunk = ctx.rest
        terms = []
        with _set_fwd_grad_enabled(True):
            weights, rows = primals(ctx)
            if weights_tangent is not None:
                terms.append(mix(weights_tangent, rows, layout, kernel, chunk, ctx.side))
            if rows_tangent is not None:
                terms.append(mix(weights, rows_tangent, layout, kernel, chunk, ctx.side))
            return terms[0] if len(terms) == 1 else terms[0] + terms[1]


class _SoftmaxWithForwardAD(_Softmax):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        with _set_fwd_grad_enabled(True):
            (weights,) = primals(ctx)
            return softmax_tangent(weights, tangent, *ctx.rest)
