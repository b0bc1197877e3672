"""The kernels that are measured without projections: ours, the floor and the peers, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from common import (
    Contestant,
    Size,
    block_diagonal,
    missing_backends,
    power_law_edges,
    require_same,
    too_large_for_dense,
    too_large_to_gather,
    usable_backends,
)
from environment import version_of
from layers import dense_mask, import_kpnn2
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import TransformerConv

from pyg_kpnn.ops import EdgeLayout, edge_attention
from pyg_kpnn.ops.native_library import read_rows

FORWARD, BOTH = "forward", "both"
FLOOR, NATIVE = "floor", "native"


class Problem(NamedTuple):
    size: Size
    layout: EdgeLayout
    tensors: tuple[Tensor, Tensor, Tensor]  # query, key, value (B, n, H, d), leaves that want gradients
    gradient: Tensor  # of the output, zero at targets without a source


@lru_cache(maxsize=1)
def layout_of(nodes: int, edges: int) -> EdgeLayout:
    return EdgeLayout(torch.stack(power_law_edges(nodes, edges)), nodes, nodes)


def problem(size: Size) -> Problem:
    layout = layout_of(size.nodes, size.edges)
    generator = torch.Generator().manual_seed(0)
    shape = (size.samples, size.nodes, size.heads, size.width)
    query, key, value, gradient = (torch.randn(shape, generator=generator) for _ in range(4))
    # What a dense mask makes of a target without a source is its own.
    gradient[:, layout.target_ptr.diff() == 0] = 0.0
    query, key, value = (tensor.to(size.dtype).requires_grad_() for tensor in (query, key, value))
    return Problem(size, layout, (query, key, value), gradient.to(size.dtype))


# Contestants


def floor(given: Problem) -> Contestant:
    """Reading the rows, in float32 whatever the dtype of the problem."""
    key, value = (tensor.detach().to(torch.float32) for tensor in given.tensors[1:])
    layout = given.layout
    return Contestant(FLOOR, {FORWARD: lambda: read_rows(key, value, layout.target_ptr, layout.source_int32)})


def differentiated(
    name: str, attend: Callable[..., Tensor], leaves: Sequence[Tensor], gradient: Tensor
) -> Contestant:
    """Inference, and inference and gradients, of ``attend(*leaves)``."""

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*leaves)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(*leaves), leaves, gradient)

    return Contestant(name, {FORWARD: forward, BOTH: both})


def ours(given: Problem, backend: str, name: str | None = None) -> Contestant:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return edge_attention(query, key, value, given.layout, backend=backend)[0]

    return differentiated(name or backend, attend, given.tensors, given.gradient)


class Same(nn.Linear):
    """A projection that returns its input, so that a layer is its kernel."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


class Given(nn.Module):
    """A projection that returns one tensor, whatever comes in."""

    tensor: Tensor

    def forward(self, _: Tensor) -> Tensor:
        return self.tensor


def kpnn2(given: Problem, chunk_size: int | None, name: str) -> Contestant:
    size = given.size
    sizes = (size.nodes, size.nodes, size.embed_dim, size.heads)
    layer = import_kpnn2().PackedMultiheadAttention(*given.layout.edge_index, *sizes, chunk_size=chunk_size)
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        setattr(layer, projection, Same(size.embed_dim, size.embed_dim))
    leaves = [tensor.detach().flatten(2).requires_grad_() for tensor in given.tensors]
    return differentiated(name, lambda *tokens: layer(*tokens)[0], leaves, given.gradient.flatten(2))


def transformer_conv(given: Problem, name: str) -> Contestant:
    size = given.size
    conv = TransformerConv(size.embed_dim, size.width, heads=size.heads, root_weight=False)
    conv.lin_query, conv.lin_key, conv.lin_value = nn.Identity(), nn.Identity(), Given()
    edges = block_diagonal(given.layout.edge_index, size.nodes, size.samples)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        conv.lin_value.tensor = value  # it takes one tensor for key and value
        return conv((key, query), edges)

    leaves = [tensor.detach().flatten(0, 1).flatten(1).requires_grad_() for tensor in given.tensors]
    return differentiated(name, attend, leaves, given.gradient.flatten(0, 1).flatten(1))


def dense(given: Problem, name: str) -> Contestant:
    mask = dense_mask(given.layout.edge_index, given.size.nodes)

    def attend(*tensors: Tensor) -> Tensor:
        query, key, value = (tensor.transpose(1, 2) for tensor in tensors)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)

    return differentiated(name, attend, given.tensors, given.gradient)


def peers(given: Problem, chunk_size: int) -> tuple[list[Contestant], dict[str, str]]:
    """Everything beside the native kernel, and why some are left out."""
    size = given.size
    gathered = too_large_to_gather(size)
    no_kpnn2 = None if version_of("kpnn2") else "not installed"
    one_chunk = f"{size.edges:,} edges fit into one chunk" if size.edges <= chunk_size else None
    table: list[tuple[str, Callable[[str], Contestant], str | None]] = [
        *((other, partial(ours, given), gathered) for other in usable_backends() if other != NATIVE),
        ("kpnn2", partial(kpnn2, given, None), no_kpnn2 or gathered),
        ("kpnn2, chunked", partial(kpnn2, given, chunk_size), no_kpnn2 or one_chunk),
        ("PyG TransformerConv, block-diagonal batch", partial(transformer_conv, given), gathered),
        ("scaled_dot_product_attention, dense mask", partial(dense, given), too_large_for_dense(size)),
    ]
    left_out = {name: why for name, _, why in table if why} | missing_backends()
    return [make(name) for name, make, why in table if not why], left_out


def compare(native: Contestant, others: Sequence[Contestant], layout: EdgeLayout) -> None:
    """Raise unless all compute the same where a target has a source, and the same gradients."""
    fed = layout.target_ptr.diff() > 0
    expected = native.warm_up()
    for other in others:
        found = other.warm_up()
        pairs = [(found[FORWARD].reshape(expected[FORWARD].shape)[:, fed], expected[FORWARD][:, fed])]
        pairs += [(a.reshape(b.shape), b) for a, b in zip(found[BOTH], expected[BOTH], strict=True)]
        for what, (got, wanted) in zip(
            ("output", "gradient of query", "gradient of key", "gradient of value"), pairs, strict=True
        ):
            require_same(other.name, what, got, wanted)
