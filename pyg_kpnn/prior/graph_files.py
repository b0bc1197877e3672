"""Graphs into GraphML and Cytoscape JSON, which hold all of one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.output import check_graph, refuse_names, text_file

__all__ = ["NOT_XML", "write_cytoscape_json", "write_graphml"]

#: Characters that XML 1.0 has no way to write.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_graphml(graph: PriorGraph, path: str | os.PathLike[str]) -> None:
    """Write all of a graph as GraphML: attributes ``name``, ``sign``, ``weight``, ``width`` and ``side``.

    Reading it back takes ``sign="sign"``, ``weight="weight"`` and ``width="width"`` where the graph has
    them, and ``name="name", side="side"`` for a bipartite graph, whose ids are ``source:`` or ``target:``
    and the name.

    Parameters
    ----------
    graph : PriorGraph
        Any.
    path : path
        Any suffix; ``.gz`` is packed.

    Raises
    ------
    PriorGraphError
        Names with characters that XML cannot hold, such as control characters.

    Examples
    --------
    See :func:`~pyg_kpnn.prior.read_graphml`.
    """
    path = Path(path)
    check_graph(graph, path, (), ())
    refuse_names(
        graph.nodes, NOT_XML.search, "XML cannot hold control characters. Write parquet or Cytoscape JSON."
    )
    nodes, edges = _attributes(graph)
    types = {"name": "string", "side": "string", "width": "int", "sign": "int", "weight": "double"}
    with text_file(path) as file:
        file.write("<?xml version='1.0' encoding='utf-8'?>\n")
        file.write('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
        for kind, sample in (("node", nodes[0]), ("edge", edges[0])):
            for label in sample:
                if label in types:
                    file.write(
                        f'  <key id="{label}" for="{kind}" attr.name="{label}" attr.type="{types[label]}"/>\n'
                    )
        file.write('  <graph edgedefault="directed">\n')
        for node in nodes:
            file.write(f"    <node id={quoteattr(node['id'])}>{_data_elements(node, types)}</node>\n")
        for edge in edges:
            ends = f"source={quoteattr(edge['source'])} target={quoteattr(edge['target'])}"
            file.write(f"    <edge {ends}>{_data_elements(edge, types)}</edge>\n")
        file.write("  </graph>\n</graphml>\n")


def write_cytoscape_json(graph: PriorGraph, path: str | os.PathLike[str]) -> None:
    """Write all of a graph as Cytoscape.js elements, which Cytoscape opens too.

    Node data are ``id``, ``name`` and, where there are any, ``side`` and ``width``; edge data ``id``,
    ``source``, ``target``, ``sign`` and ``weight``. Reading it back takes the options
    :func:`write_graphml` names.

    Parameters
    ----------
    graph : PriorGraph
        Any.
    path : path
        Any suffix; ``.gz`` is packed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from pyg_kpnn.prior import read_cytoscape_json
    >>> graph = PriorGraph.bipartite([("a", "a")], widths={"a": 2})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.cyjs")
    ...     write_cytoscape_json(graph, path)
    ...     read_cytoscape_json(path, side="side", width="width") == graph
    True
    """
    path = Path(path)
    check_graph(graph, path, (), ())
    nodes, edges = _attributes(graph)
    elements = {
        "nodes": [{"data": node} for node in nodes],
        "edges": [{"data": {"id": f"e{i}", **edge}} for i, edge in enumerate(edges)],
    }
    with text_file(path) as file:
        json.dump({"data": {"name": path.name}, "elements": elements}, file, allow_nan=False)


def _attributes(graph: PriorGraph) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes and edges with all the graph knows of them."""
    split = len(graph.source_nodes)
    sides = ["source" if i < split else "target" for i in range(graph.num_nodes)]
    ids = list(graph.nodes)
    if graph.is_bipartite:
        ids = [f"{side}:{name}" for side, name in zip(sides, graph.nodes, strict=True)]
    nodes: list[dict[str, Any]] = []
    for i, name in enumerate(graph.nodes):
        node: dict[str, Any] = {"id": ids[i], "name": name}
        if graph.is_bipartite:
            node["side"] = sides[i]
        if graph.widths:
            node["width"] = graph.node_widths[i]
        nodes.append(node)
    offset = split if graph.is_bipartite else 0
    edges: list[dict[str, Any]] = [
        {"source": ids[s], "target": ids[offset + t]}
        for s, t in zip(graph._source.tolist(), graph._target.tolist(), strict=True)
    ]
    for label, values in (("sign", graph._sign), ("weight", graph._weight)):
        if values is not None:
            for edge, value in zip(edges, values.tolist(), strict=True):
                edge[label] = value
    return nodes, edges


def _data_elements(data: Mapping[str, Any], types: Mapping[str, str]) -> str:
    # a carriage return that is not escaped reads back as a line feed
    texts = ((label, escape(str(data[label]), {"\r": "&#13;"})) for label in types if label in data)
    return "".join(f'<data key="{label}">{text}</data>' for label, text in texts)
