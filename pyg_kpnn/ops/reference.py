"""Backend ``reference``: dense, obvious and slow; what every other backend is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from .dropout import keep_mask
from .layout import EdgeLayout

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
    """Attention with a (B, num_targets, E, H) table of scores, edges in the caller's order.

    Shapes as in :func:`pyg_kpnn.ops.edge_attention` with one batch axis B. Returns ``mixed``
    (B, num_targets, H, d) and ``weights`` (B, E, H).
    """
    source, target = layout.edge_index
    key, value = key[:, source], value[:, source]
    if edge_features is not None:
        key, value = key + edge_features, value + edge_features
    scores = (query[:, target] * key).sum(-1) / query.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if key_mask is not None:
        scores = scores.masked_fill(key_mask[:, source].unsqueeze(-1), -torch.inf)

    # into[t, e] says that edge e ends in target t: row t of the table is one softmax.
    into = target == torch.arange(layout.num_targets, device=target.device).unsqueeze(-1)
    table = torch.where(into.unsqueeze(-1), scores.unsqueeze(1), -torch.inf)
    live = (table > -torch.inf).any(dim=2, keepdim=True) | table.isnan().any(dim=2, keepdim=True)
    table = torch.where(live, table, 0.0).softmax(dim=2)
    table = torch.where(live & into.unsqueeze(-1), table, 0.0)
    if dropout_p > 0.0 and seed is not None:
        edge = torch.arange(layout.num_edges, device=target.device)
        keep = keep_mask(seed, query.shape[0], edge, query.shape[2], dropout_p)
        scale = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
        table = torch.where(keep.unsqueeze(1), table * scale, 0.0)
    # Only where an edge is: a value of NaN times a weight of 0 would reach every target.
    carried = torch.where(into[..., None, None], table.unsqueeze(-1) * value.unsqueeze(1), 0.0)
    return carried.sum(dim=2), table.sum(dim=1)
