"""A PyG ``Data`` that knows how the indices of a prior graph grow when graphs are batched.

The only module of this folder that imports torch_geometric; loaded by ``to_data`` and ``from_data``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_kpnn.errors import PriorGraphError

__all__ = ["PriorData"]

_DERIVED = ("source_index", "target_index", "input_index", "output_index", "num_sources", "num_targets")


class PriorData(Data):
    """Units of a prior graph as PyG nodes, unit pairs as PyG edges.

    Attributes
    ----------
    edge_index : Tensor
        int64 (2, nnz): ``source_index`` over ``target_index``.
    source_index, target_index : Tensor
        int64 (nnz,), the rows of ``edge_index``; read from it, as the next two are read from the masks.
    input_index, output_index : Tensor
        int64, units of the input and output nodes; each counts within its side.
    input_mask, output_mask : Tensor
        bool (num_nodes,), the same units of the graph that ``to_data`` was called on.
    edge_sign : Tensor
        int64 (nnz,), 0 where unknown. Always present, so that any two graphs batch.
    edge_weight : Tensor
        (nnz,), 1 where the graph has no weights. Always present.
    node_names : list of str
        One name a unit: a node of width w stands there w times in a row. In a bipartite graph the
        source side comes first.
    num_nodes : int
        All units; ``state_dim`` as it comes from ``to_data``.
    num_sources, num_targets : int
        Units of each side: ``num_nodes``, or in a bipartite graph ``source_units`` and ``target_units``
        (0 in a plain one).
    is_bipartite : bool
        Whether sources and targets are two separate sets of units.

    What can be derived is derived, so transforms that drop, add or renumber nodes leave a plain graph
    whole. A bipartite graph counts its units within a side, which such transforms know nothing of:
    reading or batching it then raises ``PriorGraphError``. In a batch every index grows by the units of
    its own side, so a bipartite graph batches as well.
    """

    @property
    def source_index(self) -> Tensor:
        return self.edge_index[0]

    @property
    def target_index(self) -> Tensor:
        return self.edge_index[1]

    @property
    def input_index(self) -> Tensor:
        if self.is_bipartite:
            return torch.arange(self.num_sources, device=self.input_mask.device)
        return self.input_mask.nonzero()[:, 0]

    @property
    def output_index(self) -> Tensor:
        if self.is_bipartite:
            return torch.arange(self.num_targets, device=self.output_mask.device)
        return self.output_mask.nonzero()[:, 0]

    @property
    def is_bipartite(self) -> bool:
        return self._sides()[0] > 0

    @property
    def num_sources(self) -> int:
        return self._sides()[0] or int(self.num_nodes)

    @property
    def num_targets(self) -> int:
        return self._sides()[1] or int(self.num_nodes)

    def _sides(self) -> tuple[int, int]:
        """Units of the sides of a bipartite graph (of all graphs of a batch), 0 and 0 for a plain one."""
        source, target = (
            int(torch.as_tensor(self._store.get(key, 0)).sum()) for key in ("source_units", "target_units")
        )
        if source and source + target != self.num_nodes:
            raise PriorGraphError(
                f"The nodes of bipartite data must be its sides. Got {source} + {target} units for "
                f"{self.num_nodes} nodes. Change nodes before to_data(), and batch plain graphs apart."
            )
        return source, target

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key) if key in _DERIVED else super().__getitem__(key)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index":
            return torch.tensor([[self.num_sources], [self.num_targets]])
        return super().__inc__(key, value, *args, **kwargs)
