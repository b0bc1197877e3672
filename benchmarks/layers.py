"""The whole layers that are measured: ours and its peers, all with the same weights.

Each is a module that takes tokens (B, n, embed_dim) and attends within one graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from common import (
    Size,
    block_diagonal,
    missing_backends,
    power_law_edges,
    too_large_for_dense,
    too_large_to_gather,
    usable_backends,
)
from environment import version_of
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import TransformerConv

from pyg_kpnn import PackedMultiheadAttention

Build = Callable[[PackedMultiheadAttention], nn.Module]

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
CHUNKED = ", chunked"
TRANSFORMER_CONV = "PyG TransformerConv, block-diagonal batch"
DENSE = ("nn.MultiheadAttention, dense mask", "scaled_dot_product_attention, dense mask")


class SelfAttention(nn.Module):
    """A layer that is called with query, key and value, on tokens that are all three."""

    def __init__(self, layer: nn.Module, **options: Any) -> None:
        super().__init__()
        self.layer = layer
        self.options = options

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens, tokens, **self.options)[0]


class BlockDiagonal(nn.Module):
    """PyG's TransformerConv without its root term, then an output projection.

    It takes no batch axis, so B samples are one graph of B copies, as PyG's loaders make it.
    """

    def __init__(self, ours: PackedMultiheadAttention, samples: int) -> None:
        super().__init__()
        width = ours.embed_dim
        self.conv = TransformerConv(width, ours.head_dim, heads=ours.num_heads, root_weight=False)
        for name, projection in zip(("query", "key", "value"), PROJECTIONS, strict=True):
            getattr(self.conv, f"lin_{name}").load_state_dict(getattr(ours, projection).state_dict())
        self.conv.lin_skip = None  # made even where it is not used
        self.out_proj = copy.deepcopy(ours.out_proj)
        self.edge_index = block_diagonal(ours.given_edge_index, ours.key_features, samples)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = self.conv(tokens.flatten(0, 1), self.edge_index)
        return self.out_proj(mixed).unflatten(0, tokens.shape[:2])


class DenseAttention(nn.Module):
    """Our projections around scaled_dot_product_attention with a mask (n, n), True = attend."""

    def __init__(self, ours: PackedMultiheadAttention) -> None:
        super().__init__()
        self.projections = nn.ModuleList(copy.deepcopy(getattr(ours, name)) for name in PROJECTIONS)
        self.out_proj = copy.deepcopy(ours.out_proj)
        self.num_heads = ours.num_heads
        self.mask = dense_mask(ours.given_edge_index, ours.key_features)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            project(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in self.projections
        )
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=self.mask)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def dense_mask(edge_index: Tensor, num_nodes: int) -> Tensor:
    """(n, n) bool, [target, source], True = attend; all True for a target without a source, or it is NaN."""
    mask = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
    mask[edge_index[1], edge_index[0]] = True
    mask[~mask.any(1)] = True
    return mask


def import_kpnn2() -> Any:
    """kpnn2, which has no types and is not always installed."""
    return import_module("kpnn2")


def our_layer(size: Size) -> PackedMultiheadAttention:
    """Our layer with its defaults, seeded; the others take graph and weights from it."""
    source, target = power_law_edges(size.nodes, size.edges)
    generator = torch.Generator().manual_seed(0)
    return PackedMultiheadAttention(
        source, target, size.nodes, size.nodes, size.embed_dim, size.heads, generator=generator
    )


def _packed(make: Callable[..., nn.Module], chunk: int | None, backend: str | None) -> Build:
    """Our class or kpnn2's, which have the same arguments and parameters."""

    def build(ours: PackedMultiheadAttention) -> nn.Module:
        nodes = ours.key_features
        layer: Any = make(
            *ours.given_edge_index, nodes, nodes, ours.embed_dim, ours.num_heads, chunk_size=chunk
        )
        layer.load_state_dict(ours.state_dict())
        if backend:
            layer.backend = backend
        return SelfAttention(layer)

    return build


def _multihead(ours: PackedMultiheadAttention) -> nn.Module:
    layer = nn.MultiheadAttention(ours.embed_dim, ours.num_heads, batch_first=True)
    projections = [getattr(ours, name) for name in PROJECTIONS]
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        layer.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
    layer.out_proj.load_state_dict(ours.out_proj.state_dict())
    hidden = ~dense_mask(ours.given_edge_index, ours.key_features)
    return SelfAttention(layer, attn_mask=hidden, need_weights=False)


def candidates(size: Size, chunk_size: int) -> tuple[dict[str, Build], dict[str, str]]:
    """Layers by name, our defaults first, and why others are left out."""
    found: dict[str, Build] = {"ours": SelfAttention}
    left_out: dict[str, str] = {f"ours, {name}": why for name, why in missing_backends().items()}

    def add(name: str, build: Build, why_not: str | None = None) -> None:
        if why_not is None:
            found[name] = build
        else:
            left_out[name] = why_not

    # The native kernel is what our defaults take, and it gathers nothing that chunks could cut.
    backends = [name for name in usable_backends() if name != "native"]
    one_chunk = f"{size.edges:,} edges fit into one chunk" if size.edges <= chunk_size else None
    no_kpnn2 = None if version_of("kpnn2") else "not installed"
    gathered = too_large_to_gather(size)
    for backend in backends:
        add(f"ours, {backend}", _packed(PackedMultiheadAttention, None, backend), gathered)
        chunked = _packed(PackedMultiheadAttention, chunk_size, backend)
        add(f"ours, {backend}{CHUNKED}", chunked, one_chunk)

    def kpnn2(*arguments: Any, **options: Any) -> nn.Module:
        return import_kpnn2().PackedMultiheadAttention(*arguments, **options)

    add("kpnn2", _packed(kpnn2, None, None), no_kpnn2 or gathered)
    add(f"kpnn2{CHUNKED}", _packed(kpnn2, chunk_size, None), no_kpnn2 or one_chunk)
    add(TRANSFORMER_CONV, lambda ours: BlockDiagonal(ours, size.samples), gathered)
    for name, build in zip(DENSE, (_multihead, DenseAttention), strict=True):
        add(name, build, too_large_for_dense(size))
    return found, left_out
