"""Query, key and value out of one projection, and their gradients back into it without a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from .native_library import slices_of_one

__all__ = ["unbind_three"]


class _UnbindThree(torch.autograd.Function):
    """``unbind``, whose backward takes over gradients that already lie side by side, as native's do."""

    @staticmethod
    def forward(packed: Tensor) -> tuple[Tensor, ...]:
        return packed.unbind(-3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        given = [grad for grad in grads if grad is not None]
        if not given:
            return None
        plain = not torch.is_grad_enabled() and not any(map(is_functorch_wrapped_tensor, given))
        if plain and len(given) == 3 and given[0].dim() == 4 and slices_of_one(given):
            first = given[0]
            strides = (*first.stride()[:2], ctx.shape[-1] * ctx.shape[-2], *first.stride()[2:])
            return first.as_strided(ctx.shape, strides)
        return torch.stack([torch.zeros_like(given[0]) if g is None else g for g in grads], dim=-3)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None) -> tuple[Tensor, ...] | None:
        return None if tangent is None else tangent.unbind(-3)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], packed: Tensor) -> Any:
        (dim,) = in_dims
        assert dim is not None
        return _UnbindThree.apply(packed.movedim(dim, 0)), (0, 0, 0)


def unbind_three(packed: Tensor) -> tuple[Tensor, ...]:
    """``packed.unbind(-3)`` of a ``(..., 3, H, d)`` tensor."""
    if torch.compiler.is_compiling() or packed.is_meta:
        return packed.unbind(-3)
    return _UnbindThree.apply(packed)
