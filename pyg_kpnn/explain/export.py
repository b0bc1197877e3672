"""Tables of weighted edges for other tools: networkx, GraphML, Cytoscape, CSV, parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from torch import Tensor

from ..errors import PriorGraphError
from ..prior import PriorGraph
from ..prior.graph_files import NOT_XML
from ..prior.names import is_frame, is_missing, show, unknown_names
from ..prior.output import text_file, whole
from .named_model import labels, unit_labels

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

__all__ = ["export_edges", "to_networkx"]

SUFFIXES = (".graphml", ".cyjs", ".json", ".csv", ".tsv", ".parquet")


def to_networkx(table: Any, graph: PriorGraph | None = None) -> nx.DiGraph:
    """A networkx graph of a table of edges, every other column an attribute of the edge.

    Parameters
    ----------
    table : pandas.DataFrame, Tensor or ndarray
        With columns ``source`` and ``target``; or weights ``(E,)`` of the edges of ``graph`` in its order.
    graph : PriorGraph, optional
        Adds its nodes without an edge, and refuses names it has not.

    Returns
    -------
    networkx.DiGraph or networkx.MultiDiGraph
        The latter where a pair of names comes in several rows, as with several layers or heads.
        Attributes are plain Python values; missing ones and NaN are left out.

    Raises
    ------
    PriorGraphError
        If columns or names are missing, or a name is not in ``graph``.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "c"), ("b", "c")])
    >>> to_networkx(np.array([0.25, 0.75]), graph).edges["b", "c"]
    {'weight': 0.75}
    """
    import networkx as nx

    if graph is not None and not isinstance(graph, PriorGraph):
        raise PriorGraphError(f"graph must be a PriorGraph, got {type(graph).__name__}.")
    frame = _frame(table, graph)
    source, target = (frame[name].astype(object).tolist() for name in ("source", "target"))
    several = len(set(zip(source, target, strict=True))) < len(source)
    out = nx.MultiDiGraph() if several else nx.DiGraph()
    if graph is not None:
        names = labels(graph.nodes, graph.node_widths)
        known = set(names)
        strange = [name for name in dict.fromkeys([*source, *target]) if name not in known]
        if strange:
            raise PriorGraphError(f"Names must be in the graph, got {unknown_names(strange, names)}.")
        out.add_nodes_from(names)
    others = {str(name): frame[name].astype(object).tolist() for name in frame.columns}
    del others["source"], others["target"]
    for row, ends in enumerate(zip(source, target, strict=True)):
        given = {name: _plain(values[row]) for name, values in others.items()}
        attributes = {name: value for name, value in given.items() if value is not None}
        key = out.add_edge(*ends)  # a column may have any name, so attributes are no keyword arguments
        edge = (ends[0], ends[1], key) if several else ends
        out.edges[edge].update(attributes)
    return out


def export_edges(table: Any, path: Any, graph: PriorGraph | None = None) -> None:
    """Write a table of edges in the format that the suffix of ``path`` says.

    Parameters
    ----------
    table : pandas.DataFrame, Tensor or ndarray
        As in :func:`to_networkx`.
    path : str or path
        ``.graphml``; ``.cyjs`` or ``.json`` for Cytoscape; ``.csv``, ``.tsv`` or ``.parquet`` for the table
        itself. The file appears whole or not at all.
    graph : PriorGraph, optional
        As in :func:`to_networkx`; tables have edges only.

    Raises
    ------
    PriorGraphError
        For another suffix, what :func:`to_networkx` refuses, or a name GraphML cannot hold.
    ImportError
        For parquet without pyarrow: ``pip install "pyg_kpnn[parquet]"``.

    Notes
    -----
    Names are written as they are, also those a spreadsheet takes for a formula (``=A1``, ``+1``, ``-2``,
    ``@x``): a quote mark before it would make a node another node. Before opening a table of a stranger's
    names in a spreadsheet, put one there in a copy.
    """
    import networkx as nx

    place = Path(path)
    kind = place.suffix.lower()
    if kind not in SUFFIXES:
        raise PriorGraphError(
            f"The suffix of path must be one of {', '.join(SUFFIXES)}, got {show(str(path))}."
        )
    if kind in (".csv", ".tsv", ".parquet"):
        frame = _frame(table, graph)
        if kind == ".parquet":
            with whole(place) as file:
                _parquet(frame, file)
        else:
            with text_file(place) as text:
                # quoted, or a name that holds a line end would be two rows
                separator = "\t" if kind == ".tsv" else ","
                frame.to_csv(text, sep=separator, index=False, quoting=csv.QUOTE_NONNUMERIC)
        return
    out = to_networkx(table, graph)
    if kind == ".graphml":
        _check_xml(out)
        with whole(place) as file:
            nx.write_graphml_xml(out, file)
        return
    with text_file(place) as text:
        json.dump(nx.cytoscape_data(out), text, ensure_ascii=False, allow_nan=False, indent=1)


def _frame(table: Any, graph: PriorGraph | None) -> pd.DataFrame:
    import pandas as pd

    if isinstance(table, Tensor):
        table = table.detach().cpu().double().numpy()
    if isinstance(table, np.ndarray):
        if graph is None or table.shape != (graph.nnz,):
            due = "a graph beside them" if graph is None else f"shape ({graph.nnz},)"
            raise PriorGraphError(f"Weights without names need {due}, got shape {table.shape}.")
        sources, targets = unit_labels(graph, "source"), unit_labels(graph, "target")
        ends = {
            "source": [sources[unit] for unit in graph.source_index.tolist()],
            "target": [targets[unit] for unit in graph.target_index.tolist()],
        }
        return pd.DataFrame({**ends, "weight": table.astype(np.float64)})
    if not is_frame(table):
        raise PriorGraphError(
            f"table must be a DataFrame with columns source and target, or weights, got "
            f"{type(table).__name__}."
        )
    for name in ("source", "target"):
        if list(table.columns).count(name) != 1:
            raise PriorGraphError(
                f"table must have one column {name!r}, got {', '.join(map(str, table.columns)) or 'none'}."
            )
        cells = table[name].astype(object).tolist()
        wrong = [row for row, cell in enumerate(cells) if is_missing(cell) or not isinstance(cell, str)]
        if wrong:
            raise PriorGraphError(
                f"Names must be text, got {show(cells[wrong[0]])} as {name} in row {wrong[0]}."
            )
    return table


def _plain(value: Any) -> Any:
    """A Python value, None for a missing one or a number that is not finite."""
    if is_missing(value):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _check_xml(graph: Any) -> None:
    for name in graph.nodes:
        if NOT_XML.search(name):
            raise PriorGraphError(
                f"GraphML cannot hold control characters, got {show(name)}. Rename it, or write .cyjs."
            )


def _parquet(frame: pd.DataFrame, file: BinaryIO) -> None:
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "pyg_kpnn[parquet]".') from error
    frame.to_parquet(file, index=False)
