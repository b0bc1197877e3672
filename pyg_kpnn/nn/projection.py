"""Linear and LayerNorm as the layers of this package call them: see :mod:`pyg_kpnn.ops.rows`."""

from __future__ import annotations

import torch_geometric
from torch import Tensor, nn

from ..ops.rows import layer_norm, linear

__all__ = ["LayerNorm", "is_plain", "project"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: nn.Module) -> bool:
    """Whether ``module`` is an ordinary Linear that nobody watches or has changed."""
    return (
        type(module) in (nn.Linear, torch_geometric.nn.Linear)
        and "forward" not in module.__dict__
        and not any(getattr(module, name) for name in _HOOKS)
        and not nn.modules.module._has_any_global_hook()
    )


def project(module: nn.Module, tokens: Tensor) -> Tensor:
    """``module(tokens)``; where ``module`` is a plain Linear, without 0 * NaN in its gradients."""
    if is_plain(module):
        return linear(tokens, module.weight, module.bias)  # type: ignore[arg-type]
    return module(tokens)


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis, whose derivatives are right in every mode of torch.func."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)
