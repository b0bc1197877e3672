"""Prior graphs of named nodes: names go in, integers do the work, names come out.

* :class:`PriorGraph` (also called :data:`AdjacencySpec`) — the named graph and its unit-level indices.
* :func:`parse_adjacency` — the strict door for a ``source, target`` frame.
* :func:`read_edgelist` — the same from a CSV or TSV file, all cells read as text.
* :func:`align_inputs` — puts the columns of a data table in the order of the graph's nodes, by name.

Nothing here imports pandas, networkx or torch_geometric before a function needs it.
"""

from pyg_kpnn.prior.align import align_inputs
from pyg_kpnn.prior.build import parse_adjacency
from pyg_kpnn.prior.graph import AdjacencySpec, PriorGraph
from pyg_kpnn.prior.readers import read_edgelist

__all__ = ["AdjacencySpec", "PriorGraph", "align_inputs", "parse_adjacency", "read_edgelist"]
