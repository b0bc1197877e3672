"""Prior graphs of named nodes: names go in, integers do the work, names come out.

* :class:`PriorGraph` (also called :data:`AdjacencySpec`) — the named graph and its unit-level indices.
* :func:`parse_adjacency` — the strict door for a ``source, target`` frame.
* :func:`read_edgelist` — the same from a CSV, TSV or parquet file, all cells of text read as text.
* :func:`read_sif`, :func:`read_gmt`, :func:`read_graphml`, :func:`read_gml`, :func:`read_cytoscape_json` —
  other formats; with ``return_report=True`` every reader also gives a :class:`ReadReport`.
* :func:`read_prior` — the reader that belongs to a file's suffix.
* :func:`write_edgelist`, :func:`write_sif`, :func:`write_gmt`, :func:`write_graphml`,
  :func:`write_cytoscape_json` — and out again.
* :func:`describe` — the report of a graph that came from elsewhere.
* :func:`align_inputs` — puts the columns of a data table in the order of the graph's nodes, by name.
* :func:`match` — which nodes a table measures, what that costs in edges, and which names were meant.

Nothing here imports pandas, networkx or torch_geometric before a function needs it.
"""

from pyg_kpnn.prior.align import align_inputs
from pyg_kpnn.prior.build import parse_adjacency
from pyg_kpnn.prior.cytoscape import read_cytoscape_json
from pyg_kpnn.prior.findings import describe
from pyg_kpnn.prior.gmt import read_gmt
from pyg_kpnn.prior.graph import AdjacencySpec, PriorGraph
from pyg_kpnn.prior.hints import Hint
from pyg_kpnn.prior.markup import read_gml, read_graphml
from pyg_kpnn.prior.match import MatchReport, match
from pyg_kpnn.prior.read import read_prior
from pyg_kpnn.prior.readers import read_edgelist
from pyg_kpnn.prior.report import DroppedRows, ReadReport, RepeatedEdge, SignCell
from pyg_kpnn.prior.sif import read_sif
from pyg_kpnn.prior.signs import DEFAULT_SIGNS
from pyg_kpnn.prior.writers import (
    write_cytoscape_json,
    write_edgelist,
    write_gmt,
    write_graphml,
    write_sif,
)

__all__ = [
    "DEFAULT_SIGNS",
    "AdjacencySpec",
    "DroppedRows",
    "Hint",
    "MatchReport",
    "PriorGraph",
    "ReadReport",
    "RepeatedEdge",
    "SignCell",
    "align_inputs",
    "describe",
    "match",
    "parse_adjacency",
    "read_cytoscape_json",
    "read_edgelist",
    "read_gml",
    "read_gmt",
    "read_graphml",
    "read_prior",
    "read_sif",
    "write_cytoscape_json",
    "write_edgelist",
    "write_gmt",
    "write_graphml",
    "write_sif",
]
