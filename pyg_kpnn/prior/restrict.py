"""New graphs from old ones: fewer nodes, other names, or edges both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.fingerprint import without_defaults
from pyg_kpnn.prior.names import check_choice, check_text, is_missing, listing, name_of, show, unknown_names

if TYPE_CHECKING:
    from pyg_kpnn.prior.graph import PriorGraph

__all__ = ["induced", "renamed", "restricted", "with_ways_back"]


def induced(graph: PriorGraph, keep: np.ndarray) -> PriorGraph:
    """The graph on the nodes marked in ``keep`` (num_nodes,) and all edges among them, at least one."""
    from pyg_kpnn.prior.graph import PriorGraph

    left, right = _sides(graph, keep)
    chosen = left[graph._source] & right[graph._target]
    return PriorGraph(
        graph._named(keep),
        tuple(np.asarray(graph.node_widths)[keep].tolist()),
        # positions among the kept nodes: how many kept ones come before
        (np.cumsum(left) - 1).astype(np.int32)[graph._source[chosen]],
        (np.cumsum(right) - 1).astype(np.int32)[graph._target[chosen]],
        *without_defaults(
            None if graph._sign is None else graph._sign[chosen],
            None if graph._weight is None else graph._weight[chosen],
        ),
        None if graph._split is None else int(left.sum()),
    )


def _sides(graph: PriorGraph, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (mask, mask) if graph._split is None else (mask[: graph._split], mask[graph._split :])


def unmeasured(graph: PriorGraph, missing: Iterable[str], *, both: bool) -> np.ndarray:
    """Mask (num_nodes,) of the nodes named in ``missing``: on the source side, or wherever they stand."""
    names = set(missing)
    mask = np.array([name in names for name in graph.nodes], dtype=bool)
    if not both and graph._split is not None:
        mask[graph._split :] = False
    return mask


def lost_edges(graph: PriorGraph, mask: np.ndarray) -> np.ndarray:
    """Positions of the edges that have an end among the masked nodes."""
    left, right = _sides(graph, mask)
    return np.flatnonzero(left[graph._source] | right[graph._target])


def restricted(graph: PriorGraph, features: Any, nodes: Iterable[Any] | None, isolated: str) -> PriorGraph:
    """The work of :meth:`PriorGraph.restrict_to`."""
    from pyg_kpnn.prior.match import match

    check_choice(isolated, ("keep", "drop"), "isolated")
    report = match(graph, features, nodes=nodes)
    keep = ~unmeasured(graph, report.missing, both=nodes is not None)
    left, right = _sides(graph, keep)
    live = left[graph._source] & right[graph._target]
    if not live.any():
        raise PriorGraphError(
            f"A graph must have at least one edge. Got none after restricting it to the features.\n{report}"
        )
    if isolated == "drop":
        ends = np.zeros(len(graph.nodes), dtype=bool)
        ends[graph._source[live]] = True
        ends[graph._target[live] + (graph._split or 0)] = True
        keep = ends
    return graph if keep.all() else induced(graph, keep)


def renamed(graph: PriorGraph, mapping: Mapping[Any, Any] | Callable[[str], Any]) -> PriorGraph:
    """The work of :meth:`PriorGraph.rename`."""
    from pyg_kpnn.prior.graph import PriorGraph

    table = _new_names(graph, mapping)
    cut = len(graph.source_nodes)
    sides = (graph.source_nodes,) if graph._split is None else (graph.source_nodes, graph.target_nodes)
    orders = []
    names: list[str] = []
    for side in sides:
        new = [table.get(name, name) for name in side]
        _check_apart(side, new)
        orders.append(np.array(sorted(range(len(new)), key=new.__getitem__), dtype=np.int64))
        names += [new[i] for i in orders[-1].tolist()]
    check_text(names)
    # where a node of the old order stands in the new one
    places = [np.argsort(order) for order in orders]
    source, target = places[0][graph._source], places[-1][graph._target]
    edges = np.lexsort((target, source))
    widths = np.asarray(graph.node_widths)
    whole = orders[0] if len(orders) == 1 else np.concatenate([orders[0], orders[1] + cut])
    own = widths[whole].tolist()
    units: dict[str, int] = {}
    for name, width in zip(names, own, strict=True):
        if units.setdefault(name, width) != width:
            raise PriorGraphError(
                f"A name on both sides must have one width. Got {units[name]} and {width} for {show(name)} "
                "after renaming. Choose another name."
            )
    return PriorGraph(
        tuple(names),
        tuple(own),
        source[edges].astype(np.int32),
        target[edges].astype(np.int32),
        None if graph._sign is None else graph._sign[edges],
        None if graph._weight is None else graph._weight[edges],
        graph._split,
    )


def with_ways_back(graph: PriorGraph) -> PriorGraph:
    """The work of :meth:`PriorGraph.to_undirected`."""
    from pyg_kpnn.prior.graph import PriorGraph

    if graph.is_bipartite:
        raise PriorGraphError(
            "An undirected graph must have one set of nodes. Got a bipartite graph, whose "
            f"{len(graph.target_nodes)} targets are no sources. See reverse() for the other direction."
        )
    turned = graph._target.astype(np.int64) * len(graph.nodes) + graph._source
    back = np.flatnonzero(~np.isin(turned, graph._edge_keys))
    source = np.concatenate([graph._source, graph._target[back]])
    target = np.concatenate([graph._target, graph._source[back]])
    order = np.lexsort((target, source))
    carried = np.concatenate([np.arange(graph.num_edges), back])[order]
    return PriorGraph(
        graph.nodes,
        graph.node_widths,
        source[order],
        target[order],
        None if graph._sign is None else graph._sign[carried],
        None if graph._weight is None else graph._weight[carried],
        None,
    )


def _new_names(graph: PriorGraph, mapping: Any) -> dict[str, str]:
    """Old name to new name, both checked."""
    if callable(mapping) and not isinstance(mapping, Mapping):
        mapping = {name: mapping(name) for name in dict.fromkeys(graph.nodes)}
    if not isinstance(mapping, Mapping):
        raise PriorGraphError(
            "'mapping' must be a mapping from node name to new name, or a function of the name. Got "
            f"{show(mapping)} ({type(mapping).__name__})."
        )
    table: dict[str, str] = {}
    for old, new in mapping.items():
        name = name_of(old)
        if is_missing(new) or not name_of(new, "New names").strip():
            raise PriorGraphError(
                f"New names must not be missing or empty. Got {show(new)} for node {show(name)}."
            )
        if name in table:
            raise PriorGraphError(f"'mapping' must name each node once. Got {show(name)} twice, as text.")
        table[name] = name_of(new, "New names")
    unknown = sorted(table.keys() - set(graph.nodes))
    if unknown:
        raise PriorGraphError(
            f"'mapping' must name nodes of the graph. Got {unknown_names(unknown, graph.nodes)}. "
            "It goes from the old name to the new one."
        )
    return table


def _check_apart(old: tuple[str, ...], new: list[str]) -> None:
    first: dict[str, str] = {}
    clashes = [
        f"{show(first[name])} and {show(before)}, both named {show(name)}"
        for before, name in zip(old, new, strict=True)
        if first.setdefault(name, before) != before
    ]
    if clashes:
        raise PriorGraphError(
            f"Nodes must keep names of their own. Got {listing(clashes)}. Nodes are never merged: give "
            "another name, or rename both."
        )
