"""Maps of rows whose gradients leave out what is not finite, and are exact to any order.

A row of NaN comes out as a row of NaN. A loss that leaves that row out sends it a gradient of 0, and
torch's own layers would still multiply the two: 0 * NaN in the gradient of a weight that every row
shares. Here, and in the backward passes of attention, what is not finite counts as 0 in the products
of backward. So NaN is seen in the outputs it reaches, and in a loss that they are part of, and no
output or gradient of others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual
from torch.nn import functional

from .precision import traced, without_autocast

__all__ = ["apart", "as_autocast", "finite", "layer_norm", "linear", "primals", "times"]


def finite(tensor: Tensor) -> Tensor:
    """``tensor`` with 0 where it is NaN or infinite."""
    if not torch.compiler.is_compiling() and (
        is_functorch_wrapped_tensor(tensor) or forward_ad._current_level >= 0
    ):
        # Forward mode of nan_to_num multiplies the tangent by 0, which leaves NaN in it.
        return torch.where(tensor.isfinite(), tensor, 0.0)
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def apart(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (..., d) with those that are not finite set to 0, and (..., 1) NaN for those, 0 for the others.

    ``f(known) + lost`` is ``f(rows)`` for every map ``f`` of single rows, and sends nothing back where
    it is NaN.
    """
    low, high = torch.aminmax(rows.detach(), dim=-1, keepdim=True)
    lost = (low - low) + (high - high)  # of infinities, too, NaN
    return torch.where(lost == 0, rows, 0.0), lost


def times(left: Tensor, right: Tensor) -> Tensor:
    """``left * right``, where a product that is not finite sends nothing back."""
    known, seen = finite(left) * finite(right), (left * right).detach()
    return known + torch.where(seen.isfinite(), 0.0, seen)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``rows @ weight.T + bias`` (..., out) as ``torch.nn.functional.linear``, under autocast too."""
    # Here and not inside, so that each gradient is cast back to its tensor's own dtype.
    rows, weight = as_autocast(rows, weight)
    bias = None if bias is None else bias.to(rows.dtype)
    function = _Linear if torch.compiler.is_compiling() else _LinearWithForwardAD
    with without_autocast(rows.device.type):
        return function.apply(rows, weight, bias)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What ``torch.autocast``, where it is on, makes of the operands of a matrix product."""
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    low = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(low) for tensor in tensors)


def layer_norm(rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``torch.nn.functional.layer_norm`` over the last axis.

    Forward mode of torch's own forgets that mean and variance change (torch 2.13), so that whatever is
    differentiated again after it, such as ``jacfwd(jacfwd(f))``, is wrong without an error.
    """
    if torch.compiler.is_compiling():
        # A number of its own for each call: with dynamic=True one cannot enter two functions (torch 2.13).
        return _LayerNorm.apply(rows, weight, bias, eps + 0.0)
    return _LayerNormWithForwardAD.apply(rows, weight, bias, eps)


def primals(ctx: Any) -> list[Any]:
    """What ``save_for_forward`` was given, without the tangents of the level at work."""
    return [None if tensor is None else unpack_dual(tensor).primal for tensor in ctx.saved_tensors]


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(rows, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, weight, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(rows, weight)
        ctx.save_for_forward(rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        grad_rows = grad_weight = grad_bias = None
        flat = grad.reshape(-1, grad.shape[-1])
        with without_autocast(grad.device.type):  # backward runs wherever its caller does
            if ctx.needs_input_grad[0]:
                grad_rows = grad.matmul(weight)
            if ctx.needs_input_grad[1]:
                grad_weight = _product_of_known(flat.T, rows.reshape(-1, rows.shape[-1]))
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = flat.sum(0)
        return grad_rows, grad_weight, grad_bias


def _product_of_known(left: Tensor, rows: Tensor) -> Tensor:
    """``left @ finite(rows)``."""
    plain = left.is_cpu and not traced() and not torch.is_grad_enabled()
    if plain and not is_functorch_wrapped_tensor(rows):
        # A finite product has met nothing else: looking at it is cheaper than a copy of the rows.
        product = left.matmul(rows)
        if bool(product.isfinite().all()):
            return product
    return left.matmul(finite(rows))


class _LayerNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(rows, rows.shape[-1:], weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows, weight, _, ctx.eps = inputs
        ctx.save_for_backward(rows, weight)
        ctx.save_for_forward(rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        dtype = torch.promote_types(torch.promote_types(rows.dtype, grad.dtype), torch.float32)
        known, grad, scale = (tensor.to(dtype) for tensor in (finite(rows), grad, weight))
        if not torch.is_grad_enabled():  # nobody differentiates again: torch's fused pass
            aten, shape = torch.ops.aten, rows.shape[-1:]
            _, mean, rate = aten.native_layer_norm(known, shape, scale, None, ctx.eps)
            grads = aten.native_layer_norm_backward(
                grad, known, shape, mean, rate, scale, scale, (True, True, True)
            )
            return *(g.to(t.dtype) for g, t in zip(grads, (rows, weight, weight), strict=True)), None
        unit, rate = _standardised(known, ctx.eps)
        grad_rows = _without_mean(grad * scale, unit) * rate
        width = rows.shape[-1]
        grad_weight = (grad * unit).reshape(-1, width).sum(0)
        grad_bias = grad.reshape(-1, width).sum(0)
        return grad_rows.to(rows.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None


def _standardised(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Rows of mean 0 and variance 1, and the factor 1 / sqrt(variance + eps)."""
    centred = rows - rows.mean(-1, keepdim=True)
    rate = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centred * rate, rate


def _without_mean(change: Tensor, unit: Tensor) -> Tensor:
    """``change`` less its mean and less its share along ``unit``: the Jacobian, which is symmetric."""
    along = (change * unit).mean(-1, keepdim=True)
    return change - change.mean(-1, keepdim=True) - unit * along


# torch.compile refuses functions with a jvp of their own, so forward mode is a subclass that
# the compiled path does not see.


class _LinearWithForwardAD(_Linear):
    @staticmethod
    def jvp(ctx: Any, rows: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        with _set_fwd_grad_enabled(True):
            old_rows, old_weight = primals(ctx)
            terms = []
            if rows is not None:
                terms.append(functional.linear(rows, old_weight))
            if weight is not None:
                terms.append(functional.linear(old_rows, weight))
            if bias is not None:
                terms.append(bias.expand(*old_rows.shape[:-1], -1))
            return sum(terms[1:], terms[0])


class _LayerNormWithForwardAD(_LayerNorm):
    @staticmethod
    def jvp(ctx: Any, rows: Tensor | None, weight: Tensor | None, bias: Tensor | None, _: None) -> Tensor:
        with _set_fwd_grad_enabled(True):
            old_rows, old_weight = primals(ctx)
            unit, rate = _standardised(old_rows, ctx.eps)
            terms = []
            if rows is not None:
                terms.append(_without_mean(rows, unit) * rate * old_weight)
            if weight is not None:
                terms.append(unit * weight)
            if bias is not None:
                terms.append(bias.expand_as(unit))
            return sum(terms[1:], terms[0])
