"""A PyG ``Data`` that knows how the indices of a prior graph grow when graphs are batched.

The only module of this folder that imports torch_geometric; loaded by ``to_data`` and ``from_data``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data

__all__ = ["PriorData"]

_COUNTS = {
    "source_index": "num_sources",
    "input_index": "num_sources",
    "target_index": "num_targets",
    "output_index": "num_targets",
}


class PriorData(Data):
    """Units of a prior graph as PyG nodes, unit pairs as PyG edges.

    Attributes
    ----------
    edge_index : Tensor
        int64 (2, nnz): ``source_index`` over ``target_index``.
    source_index, target_index : Tensor
        int64 (nnz,), the rows of ``edge_index``.
    input_index, output_index : Tensor
        int64, units of the input and output nodes.
    edge_sign : Tensor
        int64 (nnz,), 0 where unknown. Always present, so that any two graphs batch.
    edge_weight : Tensor
        (nnz,), 1 where the graph has no weights. Always present.
    node_names : list of str
        One name a unit: a node of width w stands there w times in a row. In a bipartite graph the
        source side comes first.
    num_nodes : int
        ``state_dim``: all units.
    num_sources, num_targets : int
        Units of each side; they differ from ``num_nodes`` only in a bipartite graph.

    In a batch every index grows by the units of its own side, so a bipartite graph batches as well.
    """

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index" and "num_sources" in self:
            return torch.tensor([[int(self["num_sources"])], [int(self["num_targets"])]])
        if key in _COUNTS and "num_sources" in self:
            return int(self[_COUNTS[key]])
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key in _COUNTS:
            return 0
        return super().__cat_dim__(key, value, *args, **kwargs)
