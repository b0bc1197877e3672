"""The models of the regulatory tasks: all take (B, n) values and which of them are hidden."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from pyg_kpnn import PriorGraph, PriorTransformer

HEADS, LAYERS = 4, 2
WIDTH, DENSE_WIDTH, CHANNELS = 16, 64, 4
SIZES: dict[str, Any] = dict(embed_dim=WIDTH, num_heads=HEADS, num_layers=LAYERS)

Build = Callable[[PriorGraph, "int | None", float], nn.Module]


class Perceptron(nn.Module):
    """Values, with 0 for the hidden ones, and which are hidden; two hidden layers. It knows no graph."""

    def __init__(self, graph: PriorGraph, classes: int | None, dropout: float) -> None:
        super().__init__()
        n = graph.state_dim
        self.with_mask = classes is None
        self.layers = nn.Sequential(
            *(nn.Linear(2 * n if self.with_mask else n, DENSE_WIDTH), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(DENSE_WIDTH, DENSE_WIDTH), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(DENSE_WIDTH, n if classes is None else classes),
        )

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        if hidden is not None:
            x = torch.cat([x.masked_fill(hidden, 0.0), hidden.to(x.dtype)], dim=-1)
        return self.layers(x)


class MaskedLinear(nn.Module):
    """A Linear of all channels of all nodes whose weight is 0 where the prior has no edge and no loop."""

    def __init__(self, graph: PriorGraph) -> None:
        super().__init__()
        n = graph.state_dim
        edges = torch.eye(n)
        edges[graph.target_index, graph.source_index] = 1.0
        mask = edges.repeat_interleave(CHANNELS, 0).repeat_interleave(CHANNELS, 1)
        self.register_buffer("mask", mask)
        bound = 1.0 / mask.sum(1, keepdim=True).sqrt()
        self.weight = nn.Parameter((2.0 * torch.rand_like(mask) - 1.0) * bound * mask)
        self.bias = nn.Parameter(torch.zeros(len(mask)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Primed(nn.Module):
    """The knowledge-primed network: node by node, linear maps along the prior with an ELU between."""

    def __init__(self, graph: PriorGraph, classes: int | None, dropout: float) -> None:
        super().__init__()
        n = graph.state_dim
        self.value = nn.Parameter(torch.randn(n, CHANNELS))
        self.unknown = nn.Parameter(torch.randn(n, CHANNELS))
        self.layers = nn.ModuleList(MaskedLinear(graph) for _ in range(LAYERS))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(n * CHANNELS, classes) if classes is not None else None
        self.readout = nn.Parameter(torch.randn(n, CHANNELS) / math.sqrt(CHANNELS))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        tokens = x.unsqueeze(-1) * self.value
        if hidden is not None:
            tokens = torch.where(hidden.unsqueeze(-1), self.unknown, tokens)
        state = tokens.flatten(1)
        for layer in self.layers:
            state = self.dropout(F.elu(layer(state)))
        if self.head is not None:
            return self.head(state)
        return (state.unflatten(1, self.readout.shape) * self.readout).sum(-1) + self.bias


class AllToAll(nn.Module):
    """nn.MultiheadAttention without any mask of the prior, called as our attention is."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(
            ours.embed_dim, ours.num_heads, dropout=ours.dropout, batch_first=True
        )

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, hidden: Any = None, *_: Any, **__: Any
    ) -> Any:
        return self.layer(query, key, value, key_padding_mask=hidden, need_weights=False)

    def has_live_source(self, hidden: Tensor) -> Tensor:
        return ~hidden.all(-1, keepdim=True).expand_as(hidden)


class Convolution(nn.Module):
    """PyG's TransformerConv on a batch as one graph of B copies; edges out of hidden tokens are left out."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.conv = TransformerConv(
            ours.embed_dim, ours.head_dim, heads=ours.num_heads, dropout=ours.dropout, root_weight=True
        )
        self.register_buffer("edges", torch.stack([ours.source_index, ours.target_index]))
        self.has_live_source = ours.has_live_source

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, hidden: Any = None, *_: Any, **__: Any
    ) -> Any:
        samples, n, _width = query.shape
        offset = n * torch.arange(samples, device=query.device).view(1, -1, 1)
        edges = (self.edges.unsqueeze(1) + offset).flatten(1)
        if hidden is not None:
            edges = edges[:, ~hidden.flatten()[edges[0]]]
        return self.conv(query.flatten(0, 1), edges).unflatten(0, (samples, n)), None


class Kpnn2(nn.Module):
    """kpnn2's layer on the same edges."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        n = ours.key_features
        make = import_module("kpnn2").PackedMultiheadAttention
        edges = ours.source_index, ours.target_index
        self.has_live_source = ours.has_live_source
        self.layer = make(*edges, n, n, ours.embed_dim, ours.num_heads, dropout=ours.dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, hidden: Any = None, *_: Any, **__: Any
    ) -> Any:
        return self.layer(query, key, value, hidden)


def _readout(classes: int | None) -> dict[str, Any]:
    return {} if classes is None else {"readout": "class", "num_classes": classes}


def _with(attention: Callable[[Any], nn.Module] | None) -> Build:
    """Our model, or it with another attention and everything else the same."""

    def build(graph: PriorGraph, classes: int | None, dropout: float) -> nn.Module:
        model = PriorTransformer(graph, dropout=dropout, **_readout(classes), **SIZES)
        if attention is not None:
            for layer in model.layers:
                layer.attention = attention(layer.attention)
        return model

    return build


def shared(graph: PriorGraph, classes: int | None, dropout: float) -> nn.Module:
    """Our model with one set of head weights for all nodes, or for their mean."""
    return PriorTransformer(graph, dropout=dropout, shared_head=True, **_readout(classes), **SIZES)


def both_ways(name: str) -> Build:
    """A model on the prior and the way back of its edges: a gene is told by what it regulates, too."""
    return lambda graph, classes, dropout: MODELS[name](graph.to_undirected(), classes, dropout)


MODELS: dict[str, Build] = {
    "MLP": Perceptron,
    "masked linear": Primed,
    "dense attention": _with(AllToAll),
    "TransformerConv": _with(Convolution),
    "kpnn2": _with(Kpnn2),
    "ours": _with(None),
}
OF_CLASSES = {**MODELS, "ours, shared head": shared}
OF_VALUES = {
    **MODELS,
    "ours, shared head": shared,
    "masked linear, both ways": both_ways("masked linear"),
    "ours, both ways": both_ways("ours"),
}


def size(model: nn.Module) -> int:
    """Numbers that are trained; of a masked weight only those that count."""
    masked = {
        id(part.weight): int(part.mask.sum()) for part in model.modules() if isinstance(part, MaskedLinear)
    }
    return sum(masked.get(id(each), each.numel()) for each in model.parameters())
