"""Backend ``reference``: dense, obvious and slow; what every other backend is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dropout import keep_mask
from .layout import EdgeLayout
from .rows import finite

__all__ = ["reference_attention"]


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    edge_features: Tensor | None,
    key_mask: Tensor | None,
    layout: EdgeLayout,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention with a (B, num_targets, E, H) table of scores.

    Shapes as in :func:`pyg_kpnn.ops.edge_attention` with one batch axis B. Returns ``mixed``
    (B, num_targets, H, d) and ``weights`` (B, E, H).
    """
    # By target, then source: sums of floating point numbers depend on the order of their terms.
    source, target = layout.edge_index
    order = torch.argsort(target * layout.num_sources + source, stable=True)
    edges = layout.edge_index[:, order]
    bias, edge_features = (None if t is None else t[:, order] for t in (bias, edge_features))
    gone = torch.zeros(
        query.shape[0], layout.num_edges, query.shape[2], dtype=torch.bool, device=query.device
    )
    if key_mask is not None:
        gone = gone | key_mask[:, edges[0]].unsqueeze(-1)
    keep = None
    if dropout_p > 0.0 and seed is not None:
        keep = keep_mask(seed, query.shape[0], order, query.shape[2], dropout_p)
    scale = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0

    given = (query, key, value, bias, edge_features)
    raw: list[Any] = [None if t is None else t.detach() for t in given]
    known: list[Any] = [None if t is None else finite(t) for t in given]
    # What is not finite is added as a constant: it is seen, and sends nothing back.
    seen = _dense(*raw, edges=edges, gone=gone, keep=keep, scale=scale)
    clean = _dense(*known, edges=edges, gone=~(seen[2] > 0), keep=keep, scale=scale)
    mixed, weights = (c + torch.where(s.isfinite(), 0.0, s) for c, s in zip(clean[:2], seen, strict=False))
    return mixed, weights[:, torch.argsort(order)]


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    edge_features: Tensor | None,
    *,
    edges: Tensor,
    gone: Tensor,
    keep: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mix, weights (B, E, H) as used, and before dropout; ``gone`` (B, E, H) takes no part."""
    source, target = edges
    key, value = key[:, source], value[:, source]
    if edge_features is not None:
        key, value = key + edge_features, value + edge_features
    scores = (query[:, target] * key).sum(-1) / query.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(gone, -torch.inf)

    # into[t, e] says that edge e ends in target t: row t of the table is one softmax.
    into = target == torch.arange(query.shape[1], device=target.device).unsqueeze(-1)
    table = torch.where(into.unsqueeze(-1), scores.unsqueeze(1), -torch.inf)
    live = (table > -torch.inf).any(dim=2, keepdim=True) | table.isnan().any(dim=2, keepdim=True)
    table = torch.where(live, table, 0.0).softmax(dim=2)
    table = torch.where(live & into.unsqueeze(-1), table, 0.0)
    before = table.sum(dim=1)
    if keep is not None:
        table = torch.where(keep.unsqueeze(1), table * scale, 0.0)
    # Only where an edge is: a value of NaN times a weight of 0 would reach every target.
    carried = torch.where(into[..., None, None], table.unsqueeze(-1) * value.unsqueeze(1), 0.0)
    return carried.sum(dim=2), table.sum(dim=1), before
