"""Backend ``native``: the fused kernel, as a function with derivatives of any order.

Forward and first backward run in the library and keep nothing of the size of the edges. What
else torch may ask for, second derivatives, forward mode, gradients of the weights, is computed
by the formula of the ``torch`` backend, which is exact to any order; so is a backward pass past NaN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from .dropout import drop_weights
from .kernels import dot, fold_batch, mix, softmax_tangent, weigh
from .layout import EdgeLayout
from .native_library import NativeInputs, native_backward, native_forward, slices_of_one
from .rows import finite, primals
from .torch_kernel import TorchKernel

__all__ = ["native_attention"]

_KERNEL = TorchKernel()


class _Options(NamedTuple):
    layout: EdgeLayout
    dropout_p: float
    chunk: int | None
    need_weights: bool


def native_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    edge_features: Tensor | None,
    key_mask: Tensor | None,
    layout: EdgeLayout,
    dropout_p: float,
    seed: Tensor | None,
    chunk: int | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """``mixed`` (B, num_targets, H, d), and weights (B, E, H) in the caller's edge order if asked for.

    Arguments as prepared by :func:`pyg_kpnn.ops.edge_attention`, in their own dtype; results are
    float32, or float64 for float64. ``chunk`` bounds what the formula gathers; the kernel gathers
    nothing.
    """
    if edge_features is not None:
        # The kernel reads nodes only: what features add to the scores goes in as a bias, what they
        # add to the mix is summed from the weights.
        compute = torch.promote_types(query.dtype, torch.float32)
        features = edge_features.to(compute)
        own_edges = layout.with_edges_as_sources()
        scaled = query.to(compute) * query.shape[-1] ** -0.5
        scores = dot(scaled, features, own_edges, _KERNEL, chunk).index_select(1, layout.rank)
        mixed, weights = native_attention(
            query, key, value, scores if bias is None else scores + bias, None, key_mask,
            layout, dropout_p, seed, chunk, True,
        )  # fmt: skip
        assert weights is not None
        used = weights.index_select(1, layout.by_target)
        return mixed + mix(used, features, own_edges, _KERNEL, chunk), weights
    options = _Options(layout, dropout_p, chunk, need_weights)
    if torch.compiler.is_compiling():
        inputs = _inputs(query, key, value, bias, key_mask, seed, options)
        mixed, _ = torch.ops.pyg_kpnn.edge_attention(*inputs)
        return mixed, None
    mixed, _, weights = _Native.apply(query, key, value, bias, key_mask, seed, options)
    return mixed, weights


def _inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    options: _Options,
) -> NativeInputs:
    layout = options.layout
    order = (layout.target_ptr, layout.source_int32, layout.by_target)
    back = (layout.source_ptr, layout.by_source, layout.target_by_source)
    return NativeInputs(query, key, value, bias, key_mask, seed, *order, *back, options.dropout_p)


def _layout_of(inputs: NativeInputs) -> EdgeLayout:
    """The layout that ``_inputs`` took apart, with ``rank`` and ``target`` made again."""
    edges = torch.arange(inputs.source.numel())
    tensors = {
        "source": inputs.source.long(),
        "source_int32": inputs.source,
        "target": torch.bucketize(edges, inputs.target_ptr[1:], right=True),
        "by_target": inputs.position,
        "rank": torch.empty_like(edges).scatter_(0, inputs.position, edges),
        "target_ptr": inputs.target_ptr,
        "by_source": inputs.by_source,
        "source_ptr": inputs.source_ptr,
        "target_by_source": inputs.target_by_source,
    }
    return EdgeLayout.from_tensors(tensors, inputs.key.shape[1], inputs.query.shape[1])


class _Terms(NamedTuple):
    """What derivatives are made of, in float32 or wider and in sorted edge order."""

    query: Tensor  # scaled
    key: Tensor
    value: Tensor
    weights: Tensor  # before dropout
    used: Tensor  # after
    scale: float


_Gradients = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # of query, key, value, bias


def _terms(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    options: _Options,
) -> _Terms:
    layout, chunk = options.layout, options.chunk
    scale = query.shape[-1] ** -0.5
    compute = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(compute) * scale, key.to(compute), value.to(compute)
    scores = dot(query, key, layout, _KERNEL, chunk)
    weights = weigh(scores, bias, key_mask, layout, _KERNEL)
    used = drop_weights(weights, layout.by_target, options.dropout_p, seed, chunk)
    return _Terms(query, key, value, weights, used, scale)


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        key_mask: Tensor | None,
        seed: Tensor | None,
        options: _Options,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = _inputs(query, key, value, bias, key_mask, seed, options)
        return native_forward(inputs, options.need_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, ctx.options = inputs
        mixed, norm, _ = output
        ctx.mark_non_differentiable(norm)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, mixed, norm)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None, grad_weights: Tensor | None) -> tuple[Any, ...]:
        query, key, value, bias, key_mask, seed, mixed, norm = ctx.saved_tensors
        options = ctx.options
        if grad is None and grad_weights is None:
            return (None,) * 7
        if grad is not None and grad_weights is None and not torch.is_grad_enabled():
            inputs = _inputs(query, key, value, bias, key_mask, seed, options)
            results = _backward(inputs, options, mixed, norm, grad)
        else:
            terms = _terms(query, key, value, bias, key_mask, seed, options)
            results = _by_formula(terms, seed, options, grad, grad_weights)
        return _as_inputs(results, query, key, value, bias)

    @staticmethod
    def jvp(
        ctx: Any,
        query_tangent: Tensor | None,
        key_tangent: Tensor | None,
        value_tangent: Tensor | None,
        bias_tangent: Tensor | None,
        *_: None,
    ) -> tuple[Tensor, None, Tensor | None]:
        options = ctx.options
        layout, chunk = options.layout, options.chunk
        with _set_fwd_grad_enabled(True):
            query, key, value, bias, key_mask, seed, *_rest = primals(ctx)
            terms = _terms(query, key, value, bias, key_mask, seed, options)
            compute = terms.query.dtype
            change = torch.zeros_like(terms.weights)
            if query_tangent is not None:
                scaled = query_tangent.to(compute) * terms.scale
                change = change + dot(scaled, terms.key, layout, _KERNEL, chunk)
            if key_tangent is not None:
                change = change + dot(terms.query, key_tangent.to(compute), layout, _KERNEL, chunk)
            if bias_tangent is not None:
                change = change + bias_tangent.index_select(1, layout.by_target)
            change = softmax_tangent(terms.weights, change, layout, _KERNEL)
            change = drop_weights(change, layout.by_target, options.dropout_p, seed, chunk)
            mixed = mix(change, terms.value, layout, _KERNEL, chunk)
            if value_tangent is not None:
                mixed = mixed + mix(terms.used, value_tangent.to(compute), layout, _KERNEL, chunk)
            weights = change.index_select(1, layout.rank) if options.need_weights else None
        return mixed, None, weights

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Any, ...], Any]:
        *tensors, options = args
        *dims, _ = in_dims
        if options.dropout_p > 0.0:
            # Samples are numbered along B for dropout, and each of the mapped calls counts from 0.
            calls = []
            for index in range(info.batch_size):
                call = [
                    t if t is None or dim is None else t.select(dim, index)
                    for t, dim in zip(tensors, dims, strict=True)
                ]
                calls.append(_Native.apply(*call, options))
            out = [None if part[0] is None else torch.stack(part) for part in zip(*calls, strict=True)]
        else:
            merged = [
                None if t is None else fold_batch(t, dim, info.batch_size)
                for t, dim in zip(tensors[:5], dims[:5], strict=True)
            ]
            parts = _Native.apply(*merged, None, options)  # a seed, mapped over or not, decides nothing
            out = [None if part is None else part.unflatten(0, (info.batch_size, -1)) for part in parts]
        return tuple(out), tuple(None if part is None else 0 for part in out)


def _by_formula(
    terms: _Terms, seed: Tensor | None, options: _Options, grad: Tensor | None, grad_weights: Tensor | None
) -> _Gradients:
    """Gradients from those of the mix (B, T, H, d) and of the weights (B, E, H), differentiable."""
    layout, chunk = options.layout, options.chunk
    query, key, value, weights, used = (finite(tensor) for tensor in terms[:5])
    grad_used = None if grad_weights is None else grad_weights.index_select(1, layout.by_target)
    grad_value = None
    if grad is not None:
        through = dot(grad, value, layout, _KERNEL, chunk)
        grad_used = through if grad_used is None else grad_used + through
        grad_value = mix(used, grad, layout, _KERNEL, chunk, "source")
    assert grad_used is not None
    grad_kept = drop_weights(grad_used, layout.by_target, options.dropout_p, seed, chunk)
    grad_scores = softmax_tangent(weights, grad_kept, layout, _KERNEL)
    grad_query = mix(grad_scores, key, layout, _KERNEL, chunk, "target") * terms.scale
    grad_key = mix(grad_scores, query, layout, _KERNEL, chunk, "source")
    return grad_query, grad_key, grad_value, grad_scores.index_select(1, layout.rank)


def _backward(
    inputs: NativeInputs, options: _Options, mixed: Tensor, norm: Tensor, grad: Tensor
) -> _Gradients:
    """Gradients by the kernel, which multiplies 0 by NaN; where that is seen in them, by the formula."""
    results = native_backward(inputs, mixed, norm, grad)
    # Gradients that lie side by side are looked at once. Finite ones whose sum is too large take longer,
    # and no harm.
    whole = {
        id(t if t._base is None else t._base): t if t._base is None else t._base
        for t in results
        if t is not None
    }
    if all(math.isfinite(float(tensor.sum())) for tensor in whole.values()):
        return results
    return _by_formula(_terms(*inputs[:6], options), inputs.seed, options, grad, None)


def _as_inputs(
    results: _Gradients, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of the inputs, and None for mask, seed and options."""
    grads = [
        None if grad is None or tensor is None else grad.to(tensor.dtype)
        for grad, tensor in zip(results, (query, key, value, bias), strict=True)
    ]
    return (*grads, None, None, None)


# The same kernel as an operator, which torch.compile does not look into. Such an operator has no
# forward mode, which is why eager code calls the function above.


# Schemas are written out: what torch reads off annotations differs between its versions.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? key_mask, Tensor? seed, "
    "Tensor target_ptr, Tensor source, Tensor position, "
    "Tensor source_ptr, Tensor by_source, Tensor target_by_source, float dropout_p"
)


@torch.library.custom_op(
    "pyg_kpnn::edge_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
)
def _operator(*arguments: Any) -> tuple[Tensor, Tensor]:
    mixed, norm, _ = native_forward(NativeInputs(*arguments), need_weights=False)
    return mixed, norm


@_operator.register_fake
def _(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    batch, targets, heads = query.shape[:3]
    return query.new_empty(query.shape, dtype=dtype), query.new_empty(batch, targets, 2, heads, dtype=dtype)


@torch.library.custom_op(
    "pyg_kpnn::edge_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_ARGUMENTS}, Tensor mixed, Tensor norm, Tensor grad) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward_operator(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mixed, norm, grad = arguments[-3:]
    inputs = NativeInputs(*arguments[:-3])
    options = _Options(_layout_of(inputs), inputs.dropout_p, None, False)
    results = _backward(inputs, options, mixed, norm, grad)
    *grads, grad_bias = _as_inputs(results, *inputs[:4])[:4]
    if slices_of_one(inputs[:3]):  # so are their gradients, and an operator may not return such
        grads = [grad.contiguous().clone() for grad in grads if grad is not None]
    return (*grads, norm.new_empty(0) if grad_bias is None else grad_bias)  # type: ignore[return-value]


@_backward_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *inputs, _, norm, _ = arguments
    bias = inputs[3]
    grads = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in inputs[:3])
    return (*grads, norm.new_empty((0,) if bias is None else bias.shape))


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropout_p = inputs
    mixed, norm = output
    ctx.mark_non_differentiable(norm)
    ctx.save_for_backward(*tensors, mixed, norm)


def _differentiate_operator(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, mixed, norm = ctx.saved_tensors
    grads = torch.ops.pyg_kpnn.edge_attention_backward(*tensors, ctx.dropout_p, mixed, norm, grad)
    grad_bias = None if tensors[3] is None else grads[3]
    return (*grads[:3], grad_bias, *(None,) * 9)


_operator.register_autograd(_differentiate_operator, setup_context=_setup_operator)
