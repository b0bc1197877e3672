"""What the tests of the layers share: attention by loops, backends, a record of tensor sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def _attend(q, k, v, edges, hidden=None, bias=None, features=None) -> tuple[Tensor, Tensor]:
    """One sample by loops: q (T, H, d), k and v (S, H, d), edges (2, E), hidden (S,), bias (E, H)."""
    pairs = edges.T.tolist()
    weights = q.new_zeros(len(pairs), q.shape[1])
    mixed = torch.zeros_like(q)
    for target in range(q.shape[0]):
        live = [e for e, (s, t) in enumerate(pairs) if t == target and not (hidden is not None and hidden[s])]
        for head in range(q.shape[1]):
            if not live:
                continue
            extra = [0.0 if features is None else features[e, head] for e in live]
            offers = torch.stack([k[pairs[e][0], head] + x for e, x in zip(live, extra, strict=True)])
            carried = torch.stack([v[pairs[e][0], head] + x for e, x in zip(live, extra, strict=True)])
            scores = offers @ q[target, head] / q.shape[-1] ** 0.5
            if bias is not None:
                scores = scores + torch.stack([bias[e, head] for e in live])
            share = scores.softmax(0)
            cell = torch.zeros(q.shape[0], q.shape[1], 1, dtype=q.dtype)
            cell[target, head] = 1.0
            mixed = mixed + cell * (share @ carried)
            for e, w in zip(live, share.unbind(), strict=True):
                spot = torch.zeros_like(weights)
                spot[e, head] = 1.0
                weights = weights + spot * w
    return mixed, weights


@pytest.fixture
def attend() -> Callable[..., tuple[Tensor, Tensor]]:
    return _attend


class _LargestTensor(TorchDispatchMode):
    """Number of entries of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.numel())
        return out


@pytest.fixture
def largest_tensor() -> type[_LargestTensor]:
    return _LargestTensor
