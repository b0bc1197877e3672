"""The doors for frames, pairs and two-sided edgelists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.assemble import assemble
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import is_frame, is_row, listing, name_list, show

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["parse_adjacency"]


def parse_adjacency(edgelist: pd.DataFrame, widths: Mapping[Any, int] | None = None) -> PriorGraph:
    """Build a graph from a frame with columns ``source`` and ``target``, one row an edge.

    The strict door: beyond what :meth:`PriorGraph.from_pandas` refuses, it refuses graphs without an
    input node (in-degree 0), graphs without an output node (out-degree 0), and input nodes wider than
    one unit. Columns other than the two are ignored, the frame is left as it is.

    Parameters
    ----------
    edgelist : pandas.DataFrame
        Columns ``source`` and ``target``; a node's name is ``str(id)``. A :class:`PriorGraph` is
        returned as it is (then ``widths`` must be None).
    widths : mapping from name to int, optional
        Units of the nodes that have more than one.

    Returns
    -------
    PriorGraph

    Raises
    ------
    PriorGraphError
        Not a frame, a missing column, no rows, missing or empty names, duplicate edges, no input or no
        output node, bad widths.

    Examples
    --------
    >>> import pandas as pd
    >>> graph = parse_adjacency(pd.DataFrame({"source": ["b", "a"], "target": ["c", "c"]}), {"c": 2})
    >>> graph.nodes, graph.input_nodes, graph.output_nodes, graph.state_dim
    (('a', 'b', 'c'), ('a', 'b'), ('c',), 4)
    """
    if isinstance(edgelist, PriorGraph):
        if widths is not None:
            raise PriorGraphError(
                "'widths' belong to building a graph. Got a PriorGraph and widths. Build it again with them."
            )
        return edgelist
    graph = graph_from_frame(edgelist, widths=widths)
    if not graph.input_nodes:
        raise PriorGraphError(
            "An adjacency must have an input node (in-degree 0). Got an incoming edge at every one of the "
            f"{graph.num_nodes} nodes. Add a node that is only a source, or use PriorGraph.from_pandas."
        )
    if not graph.output_nodes:
        raise PriorGraphError(
            "An adjacency must have an output node (out-degree 0). Got an outgoing edge at every one of the "
            f"{graph.num_nodes} nodes. Add a node that is only a target, or use PriorGraph.from_pandas."
        )
    wide = [f"{show(name)} with {graph.widths[name]}" for name in graph.input_nodes if name in graph.widths]
    if wide:
        raise PriorGraphError(
            f"An input node must have width 1, since it reads one column. Got {listing(wide)}. "
            "Give each measurement a node of its own."
        )
    return graph


def need_frame(frame: Any) -> pd.DataFrame:
    """Return ``frame``, or raise if it is no DataFrame."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise PriorGraphError(
            f"An edgelist must be a pandas.DataFrame. Got {type(frame).__name__}. "
            "For pairs use PriorGraph.from_edges, for files read_edgelist."
        )
    return frame


def pick_column(frame: pd.DataFrame, label: Any, role: str) -> pd.Series:
    """The one column with this label, as positions 0..n-1."""
    try:
        where = [i for i, name in enumerate(frame.columns) if name is label or bool(name == label)]
    except Exception:  # pandas.NA and arrays compare to no truth value, other objects raise what they like
        where = []
    if len(where) != 1:
        raise PriorGraphError(
            f"The edgelist must have one {role} column {show(label)}. Got {len(where)} of that name among "
            f"the columns {listing(map(show, frame.columns), len(frame.columns))}. Name it with {role}=."
        )
    return frame.iloc[:, where[0]].reset_index(drop=True)


def graph_from_frame(
    frame: Any,
    *,
    source: Any = "source",
    target: Any = "target",
    sign: Any = None,
    weight: Any = None,
    **how: Any,
) -> PriorGraph:
    """The work of :meth:`PriorGraph.from_pandas`."""
    frame = need_frame(frame)
    return assemble(
        pick_column(frame, source, "source"),
        pick_column(frame, target, "target"),
        sign=None if sign is None else pick_column(frame, sign, "sign"),
        weight=None if weight is None else pick_column(frame, weight, "weight"),
        **how,
    )


def split_pairs(edges: Any) -> tuple[pd.Series, pd.Series]:
    """Two columns from (source, target) pairs or an (E, 2) array."""
    import pandas as pd

    if hasattr(edges, "detach"):
        edges = edges.detach().cpu().numpy()
    if isinstance(edges, np.ndarray) and edges.dtype != object:
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise PriorGraphError(
                f"An array of edges must have shape (E, 2). Got {edges.shape}. "
                "Transpose a (2, E) edge_index, or use PriorGraph.from_data."
            )
        return pd.Series(edges[:, 0]), pd.Series(edges[:, 1])
    if isinstance(edges, (str, bytes, Mapping)) or not isinstance(edges, Iterable):
        raise PriorGraphError(
            f"'edges' must be a sequence of (source, target) pairs. Got {type(edges).__name__}. "
            "For a DataFrame use PriorGraph.from_pandas."
        )
    if is_frame(edges):
        raise PriorGraphError("'edges' must be pairs. Got a DataFrame. Use PriorGraph.from_pandas.")
    pairs = list(edges)
    for row, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list, np.ndarray)) or len(pair) != 2:
            raise PriorGraphError(
                f"Every edge must be a (source, target) pair. Got {show(pair)} at row {row}. "
                "Signs and weights are given by sign= and weight=."
            )
    return (
        pd.Series([pair[0] for pair in pairs], dtype=object),
        pd.Series([pair[1] for pair in pairs], dtype=object),
    )


def as_column(values: Any, rows: int, what: str) -> pd.Series | None:
    """A sequence with one entry an edge, as a column."""
    import pandas as pd

    if values is None:
        return None
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not is_row(values):
        raise PriorGraphError(
            f"{what!r} must be a sequence with one entry an edge. Got {type(values).__name__}"
            f"{f' of shape {values.shape}' if hasattr(values, 'shape') else ''}. Pass a flat list or array."
        )
    if not isinstance(values, np.ndarray):
        values = list(values)
    if len(values) != rows:
        raise PriorGraphError(f"{what!r} must have one entry an edge. Got {len(values)} for {rows} edges.")
    return pd.Series(values, dtype=object if isinstance(values, list) else None)


def graph_from_pairs(edges: Any, *, sign: Any = None, weight: Any = None, **how: Any) -> PriorGraph:
    """The work of :meth:`PriorGraph.from_edges`."""
    source, target = split_pairs(edges)
    return assemble(
        source,
        target,
        sign=as_column(sign, len(source), "sign"),
        weight=as_column(weight, len(source), "weight"),
        **how,
    )


def bipartite_graph(
    edgelist: Any,
    *,
    sources: Any = None,
    targets: Any = None,
    sign: Any = None,
    weight: Any = None,
    **how: Any,
) -> PriorGraph:
    """The work of :meth:`PriorGraph.bipartite`."""
    sides = tuple(
        None if names is None else name_list(names, what)
        for names, what in ((sources, "sources"), (targets, "targets"))
    )
    if is_frame(edgelist):
        return graph_from_frame(edgelist, sign=sign, weight=weight, sides=sides, **how)
    return graph_from_pairs(edgelist, sign=sign, weight=weight, sides=sides, **how)
