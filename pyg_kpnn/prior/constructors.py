"""The ways into a prior graph; the work is in ``build``, ``interop`` and ``fingerprint``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from torch_geometric.data import Data

    from pyg_kpnn.prior.graph import PriorGraph

__all__ = ["GraphConstructors"]


class GraphConstructors:
    """Class methods of :class:`~pyg_kpnn.prior.PriorGraph` that build one.

    The modules that do the work need the finished class, hence the imports inside the methods.
    """

    __slots__ = ()

    @classmethod
    def from_pandas(
        cls,
        frame: pd.DataFrame,
        *,
        source: Any = "source",
        target: Any = "target",
        sign: Any = None,
        weight: Any = None,
        nodes: Iterable[Any] | None = None,
        widths: Mapping[Any, int] | None = None,
        on_duplicate: str = "error",
        on_conflict: str = "error",
        sign_map: Mapping[Any, int] | None = None,
    ) -> PriorGraph:
        """Build a graph from a frame with one row an edge.

        Parameters
        ----------
        frame : pandas.DataFrame
            Left as it is. Columns not named below are ignored.
        source, target : column label, default "source" and "target"
            Columns of node ids; a node's name is ``str(id)``.
        sign, weight : column label, optional
            Not read unless named. A sign cell is +1, -1, 0 or a word such as ``"activation"``; a missing
            or empty one means unknown. Weights must be finite numbers.
        nodes : iterable, optional
            Further names; those without an edge become isolated nodes.
        widths : mapping, optional
            Units of the nodes that have more than one.
        on_duplicate : {"error", "first", "max"}, default "error"
            What to do with rows of one (source, target) pair: refuse them, take the first row's weight,
            or the largest weight. The sign is the one known sign among all of the rows.
        on_conflict : {"error", "unknown"}, default "error"
            What to do when duplicate rows carry both + and -: refuse them or call the sign unknown.
        sign_map : mapping, optional
            Cell to -1, 0 or 1; replaces the built-in table of words.

        Returns
        -------
        PriorGraph

        Raises
        ------
        PriorGraphError
            No rows, a missing column, missing or empty names, ids that clash as text (``1`` and ``"1"``),
            duplicates or conflicts under ``"error"``, unreadable signs, weights that are not finite.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"tf": ["b", "a"], "gene": ["c", "c"], "type": ["-", "activation"]})
        >>> graph = PriorGraph.from_pandas(frame, source="tf", target="gene", sign="type", nodes=["z"])
        >>> graph.edges, graph.sign.tolist(), graph.nodes
        ((('a', 'c'), ('b', 'c')), [1, -1], ('a', 'b', 'c', 'z'))
        """
        from pyg_kpnn.prior.build import graph_from_frame

        return graph_from_frame(
            frame,
            source=source,
            target=target,
            sign=sign,
            weight=weight,
            nodes=nodes,
            widths=widths,
            on_duplicate=on_duplicate,
            on_conflict=on_conflict,
            sign_map=sign_map,
        )

    @classmethod
    def from_edges(
        cls,
        edges: Any,
        *,
        sign: Iterable[Any] | None = None,
        weight: Iterable[Any] | None = None,
        nodes: Iterable[Any] | None = None,
        widths: Mapping[Any, int] | None = None,
        on_duplicate: str = "error",
        on_conflict: str = "error",
        sign_map: Mapping[Any, int] | None = None,
    ) -> PriorGraph:
        """Build a graph from (source, target) pairs, or an integer array of shape (E, 2).

        ``sign`` and ``weight`` are sequences with one entry a pair; everything else, the errors
        included, is as in :meth:`from_pandas`.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> PriorGraph.from_edges([("a", "a"), ("b", "a")], weight=[0.5, 2]).weight.tolist()
        [0.5, 2.0]
        """
        from pyg_kpnn.prior.build import graph_from_pairs

        return graph_from_pairs(
            edges,
            sign=sign,
            weight=weight,
            nodes=nodes,
            widths=widths,
            on_duplicate=on_duplicate,
            on_conflict=on_conflict,
            sign_map=sign_map,
        )

    @classmethod
    def bipartite(
        cls,
        edgelist: Any,
        *,
        sources: Iterable[Any] | None = None,
        targets: Iterable[Any] | None = None,
        widths: Mapping[Any, int] | None = None,
        sign: Any = None,
        weight: Any = None,
        on_duplicate: str = "error",
        on_conflict: str = "error",
        sign_map: Mapping[Any, int] | None = None,
    ) -> PriorGraph:
        """Build a graph between two sets of names; a name on both sides is two nodes.

        Parameters
        ----------
        edgelist : pandas.DataFrame or iterable of pairs
            A frame with columns ``source`` and ``target`` (then ``sign`` and ``weight`` are column
            labels), or pairs (then they are sequences).
        sources, targets : iterable, optional
            All names of a side, when it has nodes without an edge. An edge whose end is not listed is
            an error. By default the names found in the edges.
        widths : mapping, optional
            Units by name. A name on both sides has one width on both.
        sign, weight, on_duplicate, on_conflict, sign_map
            As in :meth:`from_pandas`.

        Raises
        ------
        PriorGraphError
            As in :meth:`from_pandas`, and for an edge that leaves the listed names.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> graph = PriorGraph.bipartite([("TP53", "apoptosis"), ("MYC", "growth")], sources=["TP53", "MYC"])
        >>> graph.nodes
        ('MYC', 'TP53', 'apoptosis', 'growth')
        >>> graph.edge_index.tolist()
        [[0, 1], [1, 0]]
        """
        from pyg_kpnn.prior.build import bipartite_graph

        return bipartite_graph(
            edgelist,
            sources=sources,
            targets=targets,
            widths=widths,
            sign=sign,
            weight=weight,
            on_duplicate=on_duplicate,
            on_conflict=on_conflict,
            sign_map=sign_map,
        )

    @classmethod
    def from_networkx(
        cls,
        graph: nx.Graph,
        *,
        sign: str | None = None,
        weight: str | None = None,
        undirected: str | None = None,
        widths: Mapping[Any, int] | None = None,
        on_duplicate: str = "error",
        on_conflict: str = "error",
        sign_map: Mapping[Any, int] | None = None,
    ) -> PriorGraph:
        """Build a graph from networkx; nodes without an edge are kept.

        Parameters
        ----------
        graph : networkx.Graph
            Any of the four classes. Parallel edges of a multigraph follow ``on_duplicate``.
        sign, weight : str, optional
            Edge attributes to read; an edge without the sign attribute has an unknown sign, one without
            the weight attribute is an error.
        undirected : {None, "both"}, default None
            An undirected graph is refused unless ``"both"`` asks for an edge in each direction.
        widths, on_duplicate, on_conflict, sign_map
            As in :meth:`from_pandas`.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> import networkx as nx
        >>> PriorGraph.from_networkx(nx.path_graph(3), undirected="both").edges
        (('0', '1'), ('1', '0'), ('1', '2'), ('2', '1'))
        """
        from pyg_kpnn.prior.interop import graph_from_networkx

        return graph_from_networkx(
            graph,
            sign=sign,
            weight=weight,
            undirected=undirected,
            widths=widths,
            on_duplicate=on_duplicate,
            on_conflict=on_conflict,
            sign_map=sign_map,
        )

    @classmethod
    def from_data(
        cls,
        data: Data,
        node_names: Iterable[Any] | None = None,
        *,
        on_duplicate: str = "error",
        on_conflict: str = "error",
    ) -> PriorGraph:
        """Build a graph from a PyG ``Data``; the inverse of :meth:`to_data`.

        Names come from ``node_names``, else from ``data.node_names``, else they are ``"0"`` to
        ``"n-1"``. Names sort as text (``"10"`` before ``"2"``), so the order of ``nodes`` is in general
        not the order of the data's rows: ``align_inputs(node_names, graph)`` gives the permutation.
        ``data.edge_sign`` and ``data.edge_weight`` are read where present. An undirected PyG graph
        holds both directions already and needs nothing.

        Examples
        --------
        >>> from pyg_kpnn.prior import PriorGraph
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
        >>> PriorGraph.from_data(data, node_names=["d", "c", "b", "a"]).edges
        (('c', 'b'), ('d', 'c'))
        """
        from pyg_kpnn.prior.interop import graph_from_data

        return graph_from_data(data, node_names, on_duplicate=on_duplicate, on_conflict=on_conflict)

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> PriorGraph:
        """Rebuild a graph from :meth:`to_dict`; unknown keys are ignored, any edge order is accepted.

        Raises
        ------
        PriorGraphError
            For a payload of another kind or version, bad edges, or lists of the wrong length.
        """
        from pyg_kpnn.prior.fingerprint import from_payload

        return from_payload(payload)
