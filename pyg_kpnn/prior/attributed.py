"""From a networkx graph with attributes, as graph files give it, to rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.interop import networkx_columns
from pyg_kpnn.prior.names import brief, is_missing, listing, name_of, show
from pyg_kpnn.prior.rows import Rows, check_flag, finish

if TYPE_CHECKING:
    import networkx as nx

    from pyg_kpnn.prior.graph import PriorGraph
    from pyg_kpnn.prior.report import ReadReport

__all__ = ["Lines", "graph_of"]

#: Where the edges between two node ids stand in the file, in order.
Lines = Mapping[tuple[Any, Any], deque[int]]


def graph_of(
    graph: nx.Graph,
    file: str,
    *,
    name: str | None,
    sign: str | None,
    weight: str | None,
    width: str | None,
    side: str | None,
    undirected: str | None,
    drop_self_loops: bool,
    on_duplicate: str,
    on_conflict: str,
    sign_map: Mapping[Any, int] | None,
    return_report: bool,
    lines: Lines | None = None,
    unit: str = "edge",
    notes: list[str] | None = None,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """The prior graph of a file's graph: names, sides and widths of node attributes, the rest of edges."""
    for role, label in {"name": name, "sign": sign, "weight": weight, "width": width, "side": side}.items():
        if label is not None and not isinstance(label, str):
            raise PriorGraphError(f"{role!r} must be None or the name of an attribute. Got {show(label)}.")
    names = {key: key for key in graph} if name is None else _attribute(graph, name, "name", file)
    sides = None if side is None else _sides(graph, side, file)
    _refuse_twins(names, sides, file)
    columns = networkx_columns(graph, sign=sign, weight=weight, undirected=undirected)
    at = _places(columns["source"], columns["target"], lines)
    if sides is not None:
        for s, t, line in zip(columns["source"], columns["target"], at.tolist(), strict=True):
            if (sides[s], sides[t]) != ("source", "target"):
                raise PriorGraphError(
                    f"An edge of a bipartite graph must lead from its source side to its target side. Got "
                    f"{brief(name_of(names[s]))} ({sides[s]}) -> {brief(name_of(names[t]))} ({sides[t]}) at "
                    f"{unit} {line} of {file}."
                )
    rows = Rows(
        file,
        {**columns, **{role: columns[role].map(names) for role in ("source", "target")}},
        at,
        unit=unit,
        notes=[*(notes or []), *_unread(graph, {name, width, side}, {sign, weight})],
    )
    if sides is None:
        rows.nodes = list(names.values())
    else:
        first, second = (
            [names[key] for key in graph if sides[key] == which] for which in ("source", "target")
        )
        rows.sides = (first, second)
    result: PriorGraph | tuple[PriorGraph, ReadReport] = finish(
        rows,
        return_report=check_flag(return_report, "return_report"),
        drop_self_loops=check_flag(drop_self_loops, "drop_self_loops"),
        widths=None if width is None else _widths(graph, width, names, file),
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
    )
    return result


def _attribute(graph: nx.Graph, label: str, role: str, file: str) -> dict[Any, Any]:
    """The attribute of every node; one without it is an error."""
    values = {key: attributes.get(label) for key, attributes in graph.nodes(data=True)}
    absent = [key for key, value in values.items() if is_missing(value)]
    if absent:
        there = sorted({str(each) for _, attributes in graph.nodes(data=True) for each in attributes})
        raise PriorGraphError(
            f"Every node of {file} must have the {role} attribute {show(label)}. Got none at "
            f"{listing((show(key) for key in absent), len(absent))}; attributes there are "
            f"{listing(map(show, there), len(there)) or 'none'}. Name another with {role}=."
        )
    return values


def _sides(graph: nx.Graph, label: str, file: str) -> dict[Any, str]:
    sides = _attribute(graph, label, "side", file)
    bad = [key for key, value in sides.items() if value not in ("source", "target")]
    if bad:
        shown = (f"{show(sides[key])} at {show(key)}" for key in bad)
        raise PriorGraphError(
            f"The side of a node must be 'source' or 'target'. Got {listing(shown, len(bad))} in {file}."
        )
    return sides


def _widths(graph: nx.Graph, label: str, names: Mapping[Any, Any], file: str) -> dict[str, int]:
    widths: dict[str, int] = {}
    for key, value in _attribute(graph, label, "width", file).items():
        name = name_of(names[key])
        if widths.setdefault(name, value) != value:
            raise PriorGraphError(
                f"A name on both sides must have one width. Got {show(widths[name])} and {show(value)} for "
                f"{show(name)} in {file}."
            )
    return widths


def _refuse_twins(names: Mapping[Any, Any], sides: Mapping[Any, str] | None, file: str) -> None:
    """Two nodes of one name would become one node."""
    seen: dict[tuple[str, str], Any] = {}
    again = []
    for key, value in names.items():
        one = (name_of(value), "" if sides is None else sides[key])
        if seen.setdefault(one, key) is not key:
            again.append(f"{show(one[0])} for the nodes {show(seen[one])} and {show(key)}")
    if again:
        raise PriorGraphError(
            f"Every node of {file} must have a name of its own. Got {listing(again, len(again))}. "
            "Choose another attribute with name=, or rename the nodes."
        )


def _places(source: Any, target: Any, lines: Lines | None) -> np.ndarray:
    if lines is None:
        return np.arange(1, len(source) + 1)
    left = {pair: deque(at) for pair, at in lines.items()}
    back = {pair: deque(at) for pair, at in lines.items()}
    out = []
    for pair in zip(source, target, strict=True):
        # an edge of an undirected graph comes twice, the second time turned round
        queue = left.get(pair) or back.get(pair[::-1]) or back[pair]
        out.append(queue.popleft())
    return np.array(out, dtype=np.int64)


def _unread(graph: nx.Graph, of_nodes: set[str | None], of_edges: set[str | None]) -> list[str]:
    """Notes about attributes that do not end in the graph."""
    notes = []
    for what, data, read in (
        ("node", (attributes for _, attributes in graph.nodes(data=True)), of_nodes),
        ("edge", (attributes for _, _, attributes in graph.edges(data=True)), of_edges),
    ):
        labels: dict[str, None] = {}
        listed: dict[str, None] = {}
        for attributes in data:
            for label, value in attributes.items():
                labels[str(label)] = None
                if isinstance(value, str) and value[:1] == "[" and value[-1:] == "]":
                    listed[str(label)] = None
        rest = sorted(label for label in labels if label not in read)
        if rest:
            notes.append(f"{what} attributes that were not read: {listing(map(show, rest), len(rest))}")
        if listed:
            texts = listing(map(show, listed), len(listed))
            notes.append(f"{what} attributes that hold lists written as text: {texts}")
    return notes
