"""What the tests of the kernels share: a loop oracle, backends, random problems."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyg_kpnn.ops import EdgeLayout
from pyg_kpnn.ops.scatter_kernel import ScatterKernel
from pyg_kpnn.ops.torch_kernel import TorchKernel


@pytest.fixture(params=["torch", "scatter"])
def kernel(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> Any:
    return ScatterKernel() if usable(request.param) == "scatter" else TorchKernel()


def _loop_sample(q, k, v, edges, bias, features, hidden) -> tuple[Tensor, Tensor]:
    """One sample: q (T, H, d), k and v (S, H, d), edges a list of (source, target)."""
    heads, width = q.shape[1:]
    weights: dict[tuple[int, int], Tensor] = {}
    mixed = []
    for target in range(q.shape[0]):
        live = [e for e, (s, t) in enumerate(edges) if t == target and not (hidden is not None and hidden[s])]
        for head in range(heads):
            total = q.new_zeros(width)
            if live:
                scores, carried = [], []
                for e in live:
                    extra = 0.0 if features is None else features[e, head]
                    score = q[target, head] @ (k[edges[e][0], head] + extra) / width**0.5
                    scores.append(score if bias is None else score + bias[e, head])
                    carried.append(v[edges[e][0], head] + extra)
                share = torch.stack(scores).softmax(0)
                weights.update({(e, head): w for e, w in zip(live, share, strict=True)})
                total = sum(w * row for w, row in zip(share, carried, strict=True))
            mixed.append(total)
    zero = q.new_zeros(())
    table = [weights.get((e, h), zero) for e in range(len(edges)) for h in range(heads)]
    return torch.stack(mixed).view_as(q), torch.stack(table).view(len(edges), heads)


def _loop_attention(query, key, value, layout, *, bias=None, edge_features=None, key_mask=None):
    """``edge_attention`` by Python loops over samples, targets, heads and edges."""
    lead, heads = query.shape[:-3], query.shape[-2]
    edges = [tuple(pair) for pair in layout.edge_index.T.tolist()]
    flat = [t.reshape(-1, *t.shape[-3:]) for t in (query, key, value)]
    if bias is not None:
        bias = bias.unsqueeze(-1) if bias.dim() == 1 else bias
        bias = bias.expand(*lead, len(edges), heads).reshape(-1, len(edges), heads)
    if edge_features is not None:
        edge_features = edge_features.expand(*lead, *edge_features.shape[-3:]).reshape(
            -1, *edge_features.shape[-3:]
        )
    if key_mask is not None:
        key_mask = key_mask.reshape(-1, key_mask.shape[-1])
    parts = [
        _loop_sample(
            *(t[b] for t in flat),
            edges,
            None if bias is None else bias[b],
            None if edge_features is None else edge_features[b],
            None if key_mask is None else key_mask[b].tolist(),
        )
        for b in range(flat[0].shape[0])
    ]
    mixed, weights = (torch.stack(part) for part in zip(*parts, strict=True))
    return mixed.view(query.shape), weights.view(*lead, len(edges), heads)


@pytest.fixture
def loop_attention() -> Callable[..., tuple[Tensor, Tensor]]:
    return _loop_attention


def _problem(
    seed: int = 0, lead: tuple[int, ...] = (3,), sources=7, targets=5, edges=11, heads=2, width=3, **kind: Any
) -> SimpleNamespace:
    """A random problem with prime sizes; target 1 has no edge, source 2 feeds nobody."""
    kind = {"dtype": torch.float64, **kind}
    gen = torch.Generator().manual_seed(seed)
    pairs = [(s, t) for s in range(sources) for t in range(targets) if s != 2 and t != 1]
    chosen = torch.randperm(len(pairs), generator=gen)[:edges].tolist()
    edge_index = torch.tensor([pairs[i] for i in chosen]).T.contiguous()

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, **kind)

    mask = torch.rand(*lead, sources, generator=gen) < 0.3
    # A live key and a dead one in every problem.
    mask[..., int(edge_index[0, 0])] = True
    mask[..., int(edge_index[0, 1])] = False
    return SimpleNamespace(
        layout=EdgeLayout(edge_index, sources, targets),
        query=draw(*lead, targets, heads, width),
        key=draw(*lead, sources, heads, width),
        value=draw(*lead, sources, heads, width),
        bias={
            "none": None,
            "edge": draw(edges),
            "edge_head": draw(edges, heads),
            "sample": draw(*lead, edges, heads),
        },
        features={
            "none": None,
            "edge": draw(edges, heads, width),
            "sample": draw(*lead, edges, heads, width),
        },
        mask=mask,
        grad=draw(*lead, targets, heads, width),
        grad_weights=draw(*lead, edges, heads),
    )


@pytest.fixture
def problem() -> Callable[..., SimpleNamespace]:
    return _problem


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
def largest_tensor() -> Callable[[], contextlib.AbstractContextManager[_LargestTensor]]:
    return _LargestTensor
