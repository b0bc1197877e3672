"""Graphs to and from pandas frames, networkx and torch_geometric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.assemble import assemble
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import brief, check_choice, listing, name_list, show

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from pyg_kpnn.prior.data import PriorData


def edgelist_frame(graph: PriorGraph) -> pd.DataFrame:
    """The work of :meth:`PriorGraph.to_edgelist`."""
    import pandas as pd

    source, target = graph._edge_names
    # copies: pandas may wrap an array instead of copying it, and the frame is the caller's to write to
    columns: dict[str, Any] = {"source": source.copy(), "target": target.copy()}
    if graph._sign is not None:
        columns["sign"] = graph._sign.astype(np.int64)
    if graph._weight is not None:
        columns["weight"] = graph._weight.copy()
    return pd.DataFrame(columns)


def to_networkx(graph: PriorGraph) -> nx.DiGraph:
    """The work of :meth:`PriorGraph.to_networkx`."""
    import networkx as nx

    out = nx.DiGraph()
    split = len(graph.source_nodes)
    keys: list[Any] = list(graph.nodes)
    if graph.is_bipartite:
        keys = [("source" if i < split else "target", name) for i, name in enumerate(graph.nodes)]
    for i, key in enumerate(keys):
        out.add_node(key)
        if graph.widths:
            out.nodes[key]["width"] = graph.node_widths[i]
        if graph.is_bipartite:
            out.nodes[key]["bipartite"] = int(i >= split)
    offset = split if graph.is_bipartite else 0
    ends = zip(graph._source.tolist(), graph._target.tolist(), strict=True)
    out.add_edges_from((keys[s], keys[offset + t]) for s, t in ends)
    attributes = {"sign": graph._sign, "weight": graph._weight}
    for name, values in attributes.items():
        if values is not None:
            # add_edges_from kept the canonical order node by node, so address edges by their ends
            ends = zip(graph._source.tolist(), graph._target.tolist(), strict=True)
            for (s, t), value in zip(ends, values.tolist(), strict=True):
                out.edges[keys[s], keys[offset + t]][name] = value
    return out


def graph_from_networkx(
    graph: Any,
    *,
    sign: str | None = None,
    weight: str | None = None,
    undirected: str | None = None,
    **how: Any,
) -> PriorGraph:
    """The work of :meth:`PriorGraph.from_networkx`."""
    columns = networkx_columns(graph, sign=sign, weight=weight, undirected=undirected)
    return assemble(
        columns.pop("source"),
        columns.pop("target"),
        nodes=list(graph.nodes),
        place="edge {}".format,
        **columns,
        **how,
    )


def networkx_columns(
    graph: Any, *, sign: str | None = None, weight: str | None = None, undirected: str | None = None
) -> dict[str, pd.Series]:
    """Source, target and what else is asked for of every edge; the way back of undirected ones comes last."""
    import networkx as nx
    import pandas as pd

    if not isinstance(graph, nx.Graph):
        raise PriorGraphError(f"'graph' must be a networkx graph. Got {type(graph).__name__}.")
    check_choice(undirected, (None, "both"), "undirected")
    if not graph.is_directed() and undirected is None:
        raise PriorGraphError(
            f"A prior graph is directed. Got an undirected {type(graph).__name__} with "
            f"{graph.number_of_edges()} edges. Pass undirected='both' for an edge in each direction."
        )
    rows = list(graph.edges(data=True))
    if not graph.is_directed():
        rows += [(v, u, attributes) for u, v, attributes in rows if u != v]
    read: dict[str, pd.Series] = {}
    for role, attribute in (("sign", sign), ("weight", weight)):
        if attribute is None:
            continue
        absent = [(u, v) for u, v, attributes in rows if attribute not in attributes]
        if rows and (len(absent) == len(rows) or (absent and role == "weight")):
            there = sorted({str(key) for _, _, attributes in rows for key in attributes})
            without = (f"{brief(str(u))} -> {brief(str(v))}" for u, v in absent)
            raise PriorGraphError(
                f"{'Every' if role == 'weight' else 'Some'} edge must have the {role} attribute "
                f"{attribute!r}. Got none at {listing(without, len(absent))}; "
                f"attributes there are {listing(map(show, there), len(there)) or 'none'}. "
                "Fill it in, or name another."
            )
        read[role] = pd.Series([attributes.get(attribute) for _, _, attributes in rows], dtype=object)
    return {
        "source": pd.Series([u for u, _, _ in rows], dtype=object),
        "target": pd.Series([v for _, v, _ in rows], dtype=object),
        **read,
    }


def to_data(graph: PriorGraph, dtype: torch.dtype) -> PriorData:
    """The work of :meth:`PriorGraph.to_data`."""
    from pyg_kpnn.prior.data import PriorData

    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise PriorGraphError(
            f"'dtype' of edge_weight must be a floating one, or weights would be cut. Got {dtype!r}."
        )
    edge, sign, weight = graph.pair_edge, graph.sign, graph.weight
    names = np.repeat(np.array(graph.nodes, dtype=object), graph.node_widths)
    return PriorData(
        edge_index=torch.stack([graph.source_index, graph.target_index]),
        edge_sign=torch.zeros_like(edge) if sign is None else sign.long()[edge],
        edge_weight=torch.ones(len(edge), dtype=dtype) if weight is None else weight.to(dtype)[edge],
        input_mask=torch.from_numpy(np.repeat(graph._roles[0], graph.node_widths)),
        output_mask=torch.from_numpy(np.repeat(graph._roles[1], graph.node_widths)),
        node_names=names.tolist(),
        num_nodes=graph.state_dim,
        source_units=graph.num_sources if graph.is_bipartite else 0,
        target_units=graph.num_targets if graph.is_bipartite else 0,
    )


def graph_from_data(
    data: Any, node_names: Any = None, *, on_duplicate: str = "error", on_conflict: str = "error"
) -> PriorGraph:
    """The work of :meth:`PriorGraph.from_data`."""
    import pandas as pd
    from torch_geometric.data import Batch, Data

    from pyg_kpnn.prior.data import PriorData

    if not isinstance(data, Data) or isinstance(data, Batch):
        raise PriorGraphError(
            f"'data' must be one torch_geometric.data.Data. Got {type(data).__name__}. "
            "Take the graphs of a batch one at a time: batch[i]."
        )
    if data.edge_index is None:
        raise PriorGraphError("'data' must have an edge_index. Got none. Convert adj_t to edge_index first.")
    count = int(data.num_nodes)
    names = node_names if node_names is not None else getattr(data, "node_names", None)
    names = [str(i) for i in range(count)] if names is None else name_list(names, "node_names", ordered=True)
    if len(names) != count:
        raise PriorGraphError(f"'node_names' must have one name a node. Got {len(names)} for {count} nodes.")
    edge_index = data.edge_index.detach().cpu().numpy()
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind not in "iu":
        raise PriorGraphError(
            f"edge_index must hold integers of shape (2, E). Got {edge_index.dtype} of {edge_index.shape}."
        )
    edge_index = edge_index.astype(np.int64)
    bipartite = isinstance(data, PriorData) and data.is_bipartite
    split = data.num_sources if bipartite else count
    limits = (split, count - split) if bipartite else (count, count)
    for row, limit in zip(edge_index, limits, strict=True):
        bad = row[(row < 0) | (row >= limit)]
        if len(bad):
            raise PriorGraphError(
                f"edge_index must lie within 0 and {limit - 1}. Got "
                f"{listing(map(str, bad.tolist()), len(bad))}."
            )

    sides = (names[:split], names[split:]) if bipartite else (names, names)
    wide = isinstance(data, PriorData)
    starts = [_blocks(side, wide) for side in sides]
    columns: dict[str, np.ndarray] = {}
    for key, attribute in (("sign", "edge_sign"), ("weight", "edge_weight")):
        values = getattr(data, attribute, None)
        if values is not None:
            columns[key] = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
            if columns[key].shape != edge_index.shape[1:]:
                raise PriorGraphError(
                    f"{attribute} must have one entry an edge. Got {columns[key].shape} for "
                    f"{edge_index.shape[1]} edges."
                )
    widths: dict[str, int] = {}
    if wide:
        edge_index, columns, widths = _fold(edge_index, columns, sides, starts)
    return assemble(
        pd.Series([sides[0][i] for i in edge_index[0].tolist()], dtype=object),
        pd.Series([sides[1][i] for i in edge_index[1].tolist()], dtype=object),
        nodes=None if bipartite else names,
        sides=sides if bipartite else None,
        widths=widths,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        place="column {} of edge_index".format,
        **{key: pd.Series(values) for key, values in columns.items()},
    )


def _blocks(names: list[Any], wide: bool) -> np.ndarray:
    """First unit of every unit's node; a name may stand in one run of units only, of length 1 unless wide."""
    first = np.arange(len(names))
    seen: dict[Any, int] = {}
    for i, name in enumerate(names):
        start = seen.setdefault(name, i)
        if start != i:
            if not wide or first[i - 1] != start:
                raise PriorGraphError(
                    f"'node_names' must name each node once. Got {show(name)} at nodes {start} and {i}. "
                    "Give each node a name of its own."
                )
            first[i] = start
    return first


def _fold(
    edge_index: np.ndarray, columns: dict[str, np.ndarray], sides: Any, starts: list[np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, int]]:
    """Fold unit pairs back into named edges; every edge must be a full block of equal values."""
    sizes = [np.bincount(first, minlength=len(first)) for first in starts]
    folded = np.stack([first[row] for first, row in zip(starts, edge_index, strict=True)])
    key = folded[0] * len(starts[1]) + folded[1]
    _, lead, group, found = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    distinct = len(np.unique(edge_index[0] * len(starts[1]) + edge_index[1]))
    due = sizes[0][folded[0][lead]] * sizes[1][folded[1][lead]]
    uneven = found != due
    for values in columns.values():
        uneven |= np.bincount(group, values != values[lead][group]).astype(bool)
    if uneven.any() or distinct != len(key):
        at = lead[np.flatnonzero(uneven)[0]] if uneven.any() else 0
        raise PriorGraphError(
            "The units of an edge must be one full block of equal sign and weight. Got a partial or uneven "
            f"one at {sides[0][folded[0][at]]} -> {sides[1][folded[1][at]]}. "
            "Pass the data as to_data() gave it."
        )
    widths = {
        sides[i][first]: int(size)
        for i, side_sizes in enumerate(sizes)
        for first, size in enumerate(side_sizes.tolist())
        if size > 1
    }
    return folded[:, lead], {key: values[lead] for key, values in columns.items()}, widths
