"""Graphs as Cytoscape.js elements in JSON."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.attributed import graph_of
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.markup import MAX_MARKUP, whole_file
from pyg_kpnn.prior.names import listing, show

if TYPE_CHECKING:
    from pyg_kpnn.prior.report import ReadReport

__all__ = ["read_cytoscape_json"]


@overload
def read_cytoscape_json(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_cytoscape_json(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_cytoscape_json(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    name: str | None = "name",
    sign: str | None = None,
    weight: str | None = None,
    width: str | None = None,
    side: str | None = None,
    drop_self_loops: bool = False,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    max_bytes: int = MAX_MARKUP,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph from Cytoscape.js JSON, as Cytoscape exports it (``.cyjs``) too.

    Parameters
    ----------
    path : path
        Any suffix; ``.gz`` is unpacked. Elements are ``{"nodes": […], "edges": […]}`` or one list, by
        themselves or under ``"elements"``.
    name : str or None, default "name"
        Field of a node's data with its name; None takes the ids.
    sign, weight, width, side, drop_self_loops, on_duplicate, on_conflict, sign_map, max_bytes, return_report
        As in :func:`~pyg_kpnn.prior.read_graphml`, with fields of the data for attributes. Edges are
        counted from 1.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport) with ``return_report=True``

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        Not JSON, no elements, nodes without an id or of one id, edges between nodes that are not there,
        and all errors of :func:`~pyg_kpnn.prior.read_graphml`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> text = '''[{"data": {"id": "1", "name": "a"}}, {"data": {"id": "2", "name": "b"}},
    ... {"data": {"source": "1", "target": "2", "w": 0.5}}]'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.cyjs")
    ...     _ = path.write_text(text)
    ...     graph = read_cytoscape_json(path, weight="w")
    >>> graph.edges, graph.weight.tolist()
    ((('a', 'b'),), [0.5])
    """
    import networkx as nx

    path = Path(path)
    data = whole_file(path, max_bytes)
    try:
        payload = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        raise PriorGraphError(f"{path.name} must be JSON. Got a fault ({show(str(error))}).") from error
    nodes, edges = _elements(payload, path.name)
    graph = nx.MultiDiGraph()
    for place, node in enumerate(_data(nodes, "node", path.name), start=1):
        ident = _ident(node, "id", f"node {place}", path.name)
        if ident in graph:
            raise PriorGraphError(
                f"Every node of {path.name} must have an id of its own. Got {show(ident)} twice."
            )
        graph.add_nodes_from([(ident, node)])
    lines: dict[tuple[str, str], deque[int]] = {}
    for place, edge in enumerate(_data(edges, "edge", path.name), start=1):
        ends = tuple(_ident(edge, end, f"edge {place}", path.name) for end in ("source", "target"))
        stray = [end for end in ends if end not in graph]
        if stray:
            raise PriorGraphError(
                f"Every end of an edge must be a node of {path.name}. Got "
                f"{listing(map(show, stray))} at edge {place}."
            )
        graph.add_edges_from([(*ends, place, edge)])
        lines.setdefault((ends[0], ends[1]), deque()).append(place)
    return graph_of(
        graph,
        path.name,
        name=name,
        sign=sign,
        weight=weight,
        width=width,
        side=side,
        undirected=None,
        drop_self_loops=drop_self_loops,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        return_report=return_report,
        lines=lines,
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _elements(payload: Any, file: str) -> tuple[list[Any], list[Any]]:
    if isinstance(payload, dict) and "elements" in payload:
        payload = payload["elements"]
    if isinstance(payload, list):
        is_edge = [
            isinstance(each, dict) and isinstance(each.get("data"), dict) and "source" in each["data"]
            for each in payload
        ]
        both = list(zip(payload, is_edge, strict=True))
        return [each for each, edge in both if not edge], [each for each, edge in both if edge]
    if isinstance(payload, dict):
        nodes, edges = payload.get("nodes"), payload.get("edges")
        if isinstance(nodes, list) and isinstance(edges, list):
            return nodes, edges
    raise PriorGraphError(
        f"{file} must hold Cytoscape elements, a list or lists of 'nodes' and 'edges'. Got {show(payload)}."
    )


def _data(elements: list[Any], what: str, file: str) -> Iterator[dict[str, Any]]:
    for place, element in enumerate(elements, start=1):
        data = element.get("data") if isinstance(element, dict) else None
        if not isinstance(data, dict):
            raise PriorGraphError(
                f"Every {what} of {file} must be an object with 'data'. Got {show(element)} at {what} "
                f"{place}."
            )
        yield data


def _ident(data: dict[str, Any], key: str, place: str, file: str) -> str:
    """Ids are text; a number stands for the text it is written as."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise PriorGraphError(
            f"The {key} of a node or edge must be text. Got {show(value)} at {place} of {file}."
        )
    return str(value)
