"""Backend ``torch``: segment sums with index_select, index_add and scatter_reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import EdgeLayout

__all__ = ["TorchKernel"]


class TorchKernel:
    """Plain torch operations; every transform and device that torch has."""

    def edge_order(self, layout: EdgeLayout, side: str) -> tuple[Tensor | None, Tensor]:
        return None, layout.source if side == "target" else layout.target

    def add_rows(self, out: Tensor, rows: Tensor, layout: EdgeLayout, side: str, edges: slice) -> None:
        index = layout.target if side == "target" else layout.source
        out.index_add_(-3, index[edges], rows)

    def segment_max(self, scores: Tensor, layout: EdgeLayout) -> Tensor:
        out = scores.new_full((scores.shape[0], layout.num_targets, scores.shape[2]), -torch.inf)
        index = layout.target.view(1, -1, 1).expand_as(scores)
        return out.scatter_reduce(1, index, scores, "amax")

    def segment_sum(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        out = values.new_zeros(values.shape[0], layout.num_targets, values.shape[2])
        return out.scatter_add(1, layout.target.view(1, -1, 1).expand_as(values), values)

    def spread(self, values: Tensor, layout: EdgeLayout) -> Tensor:
        return values.index_select(1, layout.target)
