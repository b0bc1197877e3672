"""Graph files that networkx reads, GraphML and GML, made safe for files of strangers."""

from __future__ import annotations

import io
import os
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.attributed import graph_of
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import listing, show
from pyg_kpnn.prior.readers import check_bytes
from pyg_kpnn.prior.text import gzip_faults, unpacked

if TYPE_CHECKING:
    from pyg_kpnn.prior.report import ReadReport

__all__ = ["MAX_MARKUP", "read_gml", "read_graphml", "whole_file"]

#: Most bytes of a graph file, once unpacked: 64 MiB. Parsed, it takes many times as much memory.
MAX_MARKUP = 2**26
_DEEPEST = 100


@overload
def read_graphml(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_graphml(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_graphml(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    sign: str | None = None,
    weight: str | None = None,
    width: str | None = None,
    side: str | None = None,
    undirected: str | None = None,
    drop_self_loops: bool = False,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    max_bytes: int = MAX_MARKUP,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph from a GraphML file; nodes without an edge are kept.

    Parameters
    ----------
    path : path
        Any suffix; ``.gz`` is unpacked.
    name : str, optional
        Node attribute with the name; by default nodes are named by their ``id``.
    sign, weight : str, optional
        Edge attributes to read; an edge without the sign attribute has an unknown sign, one without the
        weight attribute is an error. Defaults that the file states count.
    width : str, optional
        Node attribute with the number of units.
    side : str, optional
        Node attribute that is ``"source"`` or ``"target"``; with it the graph is bipartite.
    undirected : {None, "both"}, default None
        An undirected graph is refused unless ``"both"`` asks for an edge in each direction.
    drop_self_loops, on_duplicate, on_conflict, sign_map, return_report
        As in :func:`~pyg_kpnn.prior.read_edgelist`.
    max_bytes : int, default 67108864 (64 MiB)
        Most bytes, counted after unpacking ``.gz``.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport) with ``return_report=True``

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        A DOCTYPE or an entity declaration (which can make a small file grow without end), XML that is not
        well-formed or no GraphML, several graphs, edges between nodes that are not there, nodes of one
        name, more than ``max_bytes``, and all errors of :meth:`PriorGraph.from_networkx`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from pyg_kpnn.prior import PriorGraph, write_graphml
    >>> graph = PriorGraph.from_edges([("heat shock", "HSF1")], sign=[1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.graphml")
    ...     write_graphml(graph, path)
    ...     read_graphml(path, sign="sign") == graph
    True
    """
    import networkx as nx

    path = Path(path)
    data = whole_file(path, max_bytes)
    scan = _Scan(path.name)
    scan.read(data)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            graph = nx.read_graphml(io.BytesIO(data), node_type=str)
        except Exception as error:  # networkx raises what its parsing comes across
            raise _no_graph(path.name, "GraphML", error) from error
    scan.compare(graph)
    for kind, attributes in (
        ("node", (each for _, each in graph.nodes(data=True))),
        ("edge", (each for _, _, each in graph.edges(data=True))),
    ):
        defaults = graph.graph.get(f"{kind}_default", {})
        for each in attributes if defaults else ():
            each.update({label: value for label, value in defaults.items() if label not in each})
    return graph_of(
        graph,
        path.name,
        name=name,
        sign=sign,
        weight=weight,
        width=width,
        side=side,
        undirected=undirected,
        drop_self_loops=drop_self_loops,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        return_report=return_report,
        lines=scan.lines,
        unit="line",
        notes=[f"networkx says: {text}" for text in dict.fromkeys(str(each.message) for each in told)],
    )


@overload
def read_gml(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...
@overload
def read_gml(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...
def read_gml(  # type: ignore[misc]
    path: str | os.PathLike[str],
    *,
    name: str | None = "label",
    sign: str | None = None,
    weight: str | None = None,
    width: str | None = None,
    side: str | None = None,
    undirected: str | None = None,
    drop_self_loops: bool = False,
    on_duplicate: str = "error",
    on_conflict: str = "error",
    sign_map: Mapping[Any, int] | None = None,
    max_bytes: int = MAX_MARKUP,
    return_report: bool = False,
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph from a GML file; nodes without an edge are kept.

    Everything is as in :func:`~pyg_kpnn.prior.read_graphml`, but nodes are named by their ``label`` unless
    another attribute is chosen (None: by their number), and errors and reports count edges in the order
    networkx gives them, by source node, since it does not tell lines.

    Raises
    ------
    FileNotFoundError
        No such file.
    PriorGraphError
        As :func:`~pyg_kpnn.prior.read_graphml`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> text = '''graph [ directed 1 node [ id 0 label "a" ] node [ id 1 label "b" ]
    ... edge [ source 0 target 1 mor -1 ] ]'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.gml")
    ...     _ = path.write_text(text)
    ...     graph = read_gml(path, sign="mor")
    >>> graph.edges, graph.sign.tolist()
    ((('a', 'b'),), [-1])
    """
    import networkx as nx

    path = Path(path)
    data = whole_file(path, max_bytes)
    try:
        graph = nx.parse_gml(data.decode("utf-8-sig"), label=None)
    except Exception as error:
        raise _no_graph(path.name, "GML", error) from error
    return graph_of(
        graph,
        path.name,
        name=name,
        sign=sign,
        weight=weight,
        width=width,
        side=side,
        undirected=undirected,
        drop_self_loops=drop_self_loops,
        on_duplicate=on_duplicate,
        on_conflict=on_conflict,
        sign_map=sign_map,
        return_report=return_report,
    )


def whole_file(path: Path, max_bytes: Any) -> bytes:
    """All bytes of a file, unpacked where it is ``.gz``, if they are at most ``max_bytes``."""
    limit = check_bytes(max_bytes)
    with path.open("rb") as stream, gzip_faults(path.name):
        zipped = path.suffix.lower() == ".gz"
        return unpacked(stream, path.name, zipped=zipped, max_bytes=limit).read()


def _no_graph(file: str, kind: str, error: Exception) -> PriorGraphError:
    return PriorGraphError(f"{file} must be a {kind} file. Got one that does not read ({show(str(error))}).")


class _Scan:
    """A first pass over XML: refuses what could grow, and counts what networkx must come to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[tuple[str, str], deque[int]] = {}
        self.nodes: dict[str, int] = {}
        self.edges = 0
        self._graphs = 0
        self._depth = 0

    def read(self, data: bytes) -> None:
        from xml.parsers import expat

        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._doctype
        parser.StartElementHandler = lambda tag, attributes: self._start(
            tag.rpartition(" ")[2], attributes, parser.CurrentLineNumber
        )
        parser.EndElementHandler = self._end
        try:
            parser.Parse(data, True)
        except PriorGraphError:
            raise
        except Exception as error:  # ExpatError, and what Python raises for an encoding it does not know
            raise PriorGraphError(
                f"{self.file} must be well-formed XML. Got a fault in line {parser.CurrentLineNumber} "
                f"({error})."
            ) from error
        if self._graphs > 1:
            raise PriorGraphError(
                f"{self.file} must hold one graph. Got {self._graphs}. Write each to a file of its own."
            )
        stray = [end for pair in self.lines for end in pair if end not in self.nodes]
        if stray:
            shown = (show(name) for name in dict.fromkeys(stray))
            raise PriorGraphError(
                f"Every end of an edge must be a node of {self.file}. Got {listing(shown, len(set(stray)))}."
            )

    def _doctype(self, *_: Any) -> None:
        raise PriorGraphError(
            f"{self.file} must be GraphML without a DOCTYPE and entities, which can make a small file grow "
            "without end. Got one. Remove it, if you trust the file."
        )

    def _start(self, tag: str, attributes: Mapping[str, str], line: int) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PriorGraphError(
                f"Elements of {self.file} must be nested at most {_DEEPEST} deep. Got more on line {line}."
            )
        if tag == "graph" and self._depth <= 2:
            self._graphs += 1
            default = attributes.get("edgedefault")
            if default not in ("directed", "undirected"):  # networkx takes any other word for undirected
                raise PriorGraphError(
                    f"The edgedefault of a graph must be 'directed' or 'undirected'. Got {show(default)} "
                    f"on line {line} of {self.file}."
                )
        if tag == "node":
            node = self._need(attributes, "id", tag, line)
            if self.nodes.setdefault(node, line) != line:
                raise PriorGraphError(
                    f"Every node of {self.file} must stand there once. Got {show(node)} on lines "
                    f"{self.nodes[node]} and {line}."
                )
        if tag == "edge":
            source, target = (self._need(attributes, end, tag, line) for end in ("source", "target"))
            self.lines.setdefault((source, target), deque()).append(line)
            self.edges += 1

    def _end(self, _: str) -> None:
        self._depth -= 1

    def _need(self, attributes: Mapping[str, str], label: str, tag: str, line: int) -> str:
        if label not in attributes:
            raise PriorGraphError(
                f"Every {tag} of {self.file} must have its {label}. Got none on line {line}."
            )
        return attributes[label]

    def compare(self, graph: Any) -> None:
        """Refuse a file of which networkx leaves something out."""
        for what, due, found in (
            ("node", len(self.nodes), graph.number_of_nodes()),
            ("edge", self.edges, graph.number_of_edges()),
        ):
            if due != found:
                raise PriorGraphError(
                    f"Every {what} of {self.file} must be read. Got {due} in the file and {found} from "
                    f"networkx: {'edges share an id' if what == 'edge' else 'nodes are in a nested graph'}. "
                    "Correct it."
                )
