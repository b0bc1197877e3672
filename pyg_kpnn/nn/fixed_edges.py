"""Fixed-edge models under PyG's explainers, which call ``model(x, edge_index)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PriorGraphError
from .packed_attention import PackedMultiheadAttention

__all__ = ["FixedEdgeModel"]


class FixedEdgeModel(nn.Module):
    """A model whose layers hold their edges, with the call PyG's ``Explainer`` makes.

    An explainer's mask meets a layer's edges by position, so ``edge_index`` must be the edges
    the layers were given; any other is refused, where a silent answer would report weights of
    other edges.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(x, **kwargs)``; holds at least one :class:`PackedMultiheadAttention`,
        all of them given the same edges.

    Raises
    ------
    PriorGraphError
        If the model holds no such layer; from ``forward``, if ``edge_index`` is not theirs.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph, PriorTransformer
    >>> graph = PriorGraph.from_edges([("tf", "gene"), ("tf", "tf")])
    >>> model = FixedEdgeModel(PriorTransformer(graph, embed_dim=8, num_heads=2))
    >>> model(torch.randn(5, 2), graph.edge_index).shape
    torch.Size([5, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        if not self._layers():
            raise PriorGraphError("FixedEdgeModel needs a model with a PackedMultiheadAttention, got none.")

    def _layers(self) -> list[tuple[str, PackedMultiheadAttention]]:
        modules = self.model.named_modules()
        return [(name, module) for name, module in modules if isinstance(module, PackedMultiheadAttention)]

    def forward(self, x: Tensor, edge_index: Tensor, **kwargs: Any) -> Any:
        """Return ``model(x, **kwargs)`` after comparing ``edge_index`` ``(2, E)`` with every layer's."""
        for name, layer in self._layers():
            if not torch.equal(edge_index, layer.given_edge_index):
                raise PriorGraphError(
                    "edge_index must equal the edges the layers were given, in their order; it differs "
                    f"from those of {name or type(layer).__name__!r}. Pass its given_edge_index."
                )
        return self.model(x, **kwargs)
