"""Linear and LayerNorm as the layers of this package call them: see :mod:`pyg_kpnn.ops.rows`."""

from __future__ import annotations

import math

import torch
import torch_geometric
from torch import Tensor, nn

from ..ops.rows import apart, as_autocast, layer_norm, linear

__all__ = ["LayerNorm", "NodeLinear", "is_plain", "project"]

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


class NodeLinear(nn.Module):
    """``(..., n, d)`` to ``(..., n, 1)``, as an ``nn.Linear(d, 1)`` for each of n nodes would.

    Weights are ``(num_nodes, in_features)``, the bias ``(num_nodes,)``.
    """

    def __init__(self, num_nodes: int, in_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_nodes, in_features))
        self.bias = nn.Parameter(torch.empty(num_nodes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases anew."""
        bound = 1.0 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Sizes."""
        return "num_nodes={}, in_features={}".format(*self.weight.shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """Read every token with its node's weights."""
        known, lost = apart(tokens)  # no 0 * NaN in the gradient of the weights
        known, weight, bias, lost = as_autocast(known, self.weight, self.bias, lost)
        samples = known.reshape(-1, *weight.shape).transpose(0, 1)
        # One operation, as in Linear: under DDP no gradient may be ready before a recomputed forward pass.
        read = torch.baddbmm(bias[:, None, None], samples, weight.unsqueeze(-1))
        return read.transpose(0, 1).reshape(lost.shape) + lost
