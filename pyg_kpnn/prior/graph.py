"""The named prior graph and the unit-level indices a layer runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import fingerprint as _fingerprint
from pyg_kpnn.prior.constructors import GraphConstructors
from pyg_kpnn.prior.names import name_list, name_of, near_names, show, unknown_names
from pyg_kpnn.prior.restrict import induced, renamed, restricted, with_ways_back

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from torch_geometric.data import Data

__all__ = ["AdjacencySpec", "PriorGraph"]


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor with memory of its own: writing to it leaves the graph as it was."""
    return torch.from_numpy(array.copy())


@dataclass(frozen=True, eq=False, repr=False)
class PriorGraph(GraphConstructors):
    """A directed graph of named nodes in canonical order, with optional signs, weights and widths.

    ``nodes`` are in alphabetical order (Python's order of ``str``) and edges in order of (source name,
    target name), whatever the order of the input. Build one with :func:`~pyg_kpnn.prior.parse_adjacency`,
    :func:`~pyg_kpnn.prior.read_edgelist` or a ``from_*`` method; the constructor takes the canonical
    arrays as they are and is not meant to be called.

    With widths w, node *n* owns the w(n) consecutive units ``node_units(n)``, and a named edge s → t
    stands for all w(s)·w(t) unit pairs, target unit outer, source unit inner::

        sources S = Σ w over the key side      targets T = Σ w over the query side
        edge_index    (2, E)   node positions of the E named edges
        source_index  (nnz,)   unit positions, the key of each packed pair
        target_index  (nnz,)   unit positions, the query of each packed pair
        pair_edge     (nnz,)   column of ``edge_index`` the packed pair belongs to

    In a plain graph both sides are ``nodes`` and S = T = ``state_dim``. In a bipartite graph
    (:meth:`bipartite`) ``nodes = source_nodes + target_nodes``, the first row of ``edge_index`` and
    ``source_index`` count within the source side, the second row and ``target_index`` within the target
    side.

    Every tensor property returns a fresh copy; keep it in a variable inside a loop. Graphs are frozen,
    compare by value, and hash by their fingerprint.

    Attributes
    ----------
    nodes : tuple of str
        Node names; in a bipartite graph source names, then target names.
    node_widths : tuple of int
        Units of each node, in the order of ``nodes``.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("h", "o"), ("b", "h"), ("a", "h")], widths={"h": 2})
    >>> graph.edges
    (('a', 'h'), ('b', 'h'), ('h', 'o'))
    >>> graph.node_units("h"), graph.edge_location("h", "o")
    (slice(2, 4, None), (4, 5))
    >>> graph.target_index.tolist()
    [2, 3, 2, 3, 4, 4]
    """

    nodes: tuple[str, ...]
    node_widths: tuple[int, ...]
    _source: np.ndarray
    _target: np.ndarray
    _sign: np.ndarray | None = None
    _weight: np.ndarray | None = None
    _split: int | None = None

    def __post_init__(self) -> None:
        self._freeze()

    def _freeze(self) -> None:
        for array in (self._source, self._target, self._sign, self._weight):
            if array is not None:
                array.setflags(write=False)

    # --- nodes -----------------------------------------------------------------------------------

    @property
    def is_bipartite(self) -> bool:
        """Whether sources and targets are two separate sets of nodes."""
        return self._split is not None

    @property
    def source_nodes(self) -> tuple[str, ...]:
        """Names on the key side: all nodes, or the source side of a bipartite graph."""
        return self.nodes[: self._split]

    @property
    def target_nodes(self) -> tuple[str, ...]:
        """Names on the query side: all nodes, or the target side of a bipartite graph."""
        return self.nodes if self._split is None else self.nodes[self._split :]

    @property
    def num_nodes(self) -> int:
        """Number of named nodes (both sides together in a bipartite graph)."""
        return len(self.nodes)

    @property
    def num_edges(self) -> int:
        """Number of named edges E."""
        return len(self._source)

    @property
    def widths(self) -> dict[str, int]:
        """A fresh dict of the nodes with more than one unit."""
        return {name: w for name, w in zip(self.nodes, self.node_widths, strict=True) if w > 1}

    @cached_property
    def _side_widths(self) -> tuple[np.ndarray, np.ndarray]:
        every = np.asarray(self.node_widths, dtype=np.int64)
        return (every, every) if self._split is None else (every[: self._split], every[self._split :])

    @cached_property
    def _side_starts(self) -> tuple[np.ndarray, np.ndarray]:
        """First unit of every node, one entry more than there are nodes, for both sides."""
        first, second = (np.concatenate(([0], np.cumsum(w))) for w in self._side_widths)
        return first, second

    @property
    def num_sources(self) -> int:
        """Units on the key side."""
        return int(self._side_starts[0][-1])

    @property
    def num_targets(self) -> int:
        """Units on the query side."""
        return int(self._side_starts[1][-1])

    @property
    def state_dim(self) -> int:
        """Units of all nodes together."""
        return sum(self.node_widths)

    @cached_property
    def _roles(self) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the nodes nothing points at, and of the nodes that point at nothing."""
        if self._split is not None:
            place = np.arange(len(self.nodes))
            return place < self._split, place >= self._split
        has_in, has_out = np.zeros((2, len(self.nodes)), dtype=bool)
        has_in[self._target] = True
        has_out[self._source] = True
        return ~has_in, ~has_out

    def _named(self, mask: np.ndarray) -> tuple[str, ...]:
        return tuple(self.nodes[i] for i in np.flatnonzero(mask).tolist())

    @cached_property
    def input_nodes(self) -> tuple[str, ...]:
        """Names with in-degree 0; a self-loop counts as an edge.

        An isolated node has neither edge and is in ``input_nodes`` and ``output_nodes`` both. In a
        bipartite graph these are ``source_nodes`` and ``target_nodes``.
        """
        return self._named(self._roles[0])

    @cached_property
    def output_nodes(self) -> tuple[str, ...]:
        """Names with out-degree 0 (see :attr:`input_nodes` for isolated nodes)."""
        return self._named(self._roles[1])

    @cached_property
    def hidden_nodes(self) -> tuple[str, ...]:
        """Names that are neither input nor output."""
        return self._named(~(self._roles[0] | self._roles[1]))

    def _units_of(self, side: int) -> Tensor:
        widths = self._side_widths[side]
        if self.is_bipartite:
            return torch.arange(int(widths.sum()))
        return torch.from_numpy(np.flatnonzero(np.repeat(self._roles[side], widths)))

    @property
    def input_index(self) -> Tensor:
        """int64 unit positions of the input nodes (within the source side if bipartite)."""
        return self._units_of(0)

    @property
    def output_index(self) -> Tensor:
        """int64 unit positions of the output nodes (within the target side if bipartite)."""
        return self._units_of(1)

    @cached_property
    def _positions(self) -> tuple[dict[str, int], dict[str, int]]:
        first = {name: i for i, name in enumerate(self.source_nodes)}
        if self._split is None:
            return first, first
        return first, {name: i for i, name in enumerate(self.target_nodes)}

    def _position(self, name: Any, side: int) -> int:
        place = self._positions[side].get(name_of(name))
        if place is None:
            names = self.target_nodes if side else self.source_nodes
            where = f"the {'target' if side else 'source'} side" if self.is_bipartite else "the graph"
            raise PriorGraphError(
                f"A node must be in {where}. Got {show(name_of(name))}{near_names(name_of(name), names)}. "
                "The names are in `nodes`."
            )
        return place

    def node_units(self, name: Any, side: str | None = None) -> slice:
        """Units of a node, as a slice.

        Parameters
        ----------
        name : str
            The node.
        side : {"source", "target"}, optional
            Only for bipartite graphs, where units count within a side; needed when the name is on both.

        Raises
        ------
        PriorGraphError
            For an unknown name (with the nearest known one), or a name on both sides without ``side``.

        Examples
        --------
        >>> PriorGraph.from_edges([("a", "b")], widths={"b": 3}).node_units("b")
        slice(1, 4, None)
        """
        if side not in (None, "source", "target"):
            raise PriorGraphError(
                f"'side' must be 'source' or 'target'. Got {show(side)} for node {show(name)}."
            )
        which = int(side == "target")
        if side is None and self.is_bipartite:
            on_source, on_target = (name_of(name) in table for table in self._positions)
            if on_source and on_target:
                raise PriorGraphError(
                    f"A name on both sides needs its side. Got {show(name)}. Pass side='source' or 'target'."
                )
            if not (on_source or on_target):
                raise PriorGraphError(
                    f"A node must be in the graph. Got {show(name_of(name))}"
                    f"{near_names(name_of(name), self.nodes)}. The names are in `nodes`."
                )
            which = int(on_target)
        place = self._position(name, which)
        starts = self._side_starts[which]
        return slice(int(starts[place]), int(starts[place + 1]))

    # --- edges -----------------------------------------------------------------------------------

    @cached_property
    def _edge_names(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and target name of every edge, as object arrays."""
        return (
            np.array(self.source_nodes, dtype=object)[self._source],
            np.array(self.target_nodes, dtype=object)[self._target],
        )

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(source, target) names in canonical order; built on first use."""
        source, target = self._edge_names
        return tuple(zip(source.tolist(), target.tolist(), strict=True))

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, E) node positions in canonical order; each row counts within its side."""
        return torch.from_numpy(np.stack([self._source, self._target]).astype(np.int64))

    @property
    def sign(self) -> Tensor | None:
        """int8 (E,) of +1, -1 and 0 for unknown; None if no sign is known."""
        return None if self._sign is None else _tensor(self._sign)

    @property
    def weight(self) -> Tensor | None:
        """float64 (E,); None if all weights are 1."""
        return None if self._weight is None else _tensor(self._weight)

    @cached_property
    def _pair_starts(self) -> np.ndarray:
        """First packed position of every edge, one entry more than there are edges."""
        ws, wt = self._side_widths
        return np.concatenate(([0], np.cumsum(ws[self._source] * wt[self._target])))

    @property
    def nnz(self) -> int:
        """Number of packed unit pairs."""
        return int(self._pair_starts[-1])

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``source_index``, ``target_index`` and ``pair_edge``."""
        starts = self._pair_starts
        edge = np.repeat(np.arange(self.num_edges), np.diff(starts))
        within = np.arange(len(edge)) - starts[edge]
        source, target = self._source[edge], self._target[edge]
        inner = self._side_widths[0][source]
        return (
            self._side_starts[0][source] + within % inner,
            self._side_starts[1][target] + within // inner,
            edge,
        )

    @property
    def source_index(self) -> Tensor:
        """int64 (nnz,) source unit of every packed pair."""
        return _tensor(self._pairs[0])

    @property
    def target_index(self) -> Tensor:
        """int64 (nnz,) target unit of every packed pair."""
        return _tensor(self._pairs[1])

    @property
    def pair_edge(self) -> Tensor:
        """int64 (nnz,) named edge of every packed pair, so that ``sign[pair_edge]`` is per pair."""
        return _tensor(self._pairs[2])

    @cached_property
    def _edge_keys(self) -> np.ndarray:
        return self._source.astype(np.int64) * len(self.target_nodes) + self._target

    @cached_property
    def _locations(self) -> dict[int, tuple[int, ...]]:
        return {}

    def edge_location(self, source: Any, target: Any) -> tuple[int, ...]:
        """Packed positions of a named edge: ``source_index[list(edge_location(s, t))]`` are its sources.

        Returns the same tuple object each time.

        Raises
        ------
        PriorGraphError
            For an unknown name or an edge that is not in the graph.
        """
        key = self._position(source, 0) * len(self.target_nodes) + self._position(target, 1)
        edge = int(np.searchsorted(self._edge_keys, key))
        if edge == self.num_edges or self._edge_keys[edge] != key:
            raise PriorGraphError(
                f"An edge must be in the graph. Got {show(source)} -> {show(target)}, whose nodes are there "
                "but not the edge. Edges have a direction: see `edges`."
            )
        found = self._locations.get(edge)
        if found is None:
            found = tuple(range(int(self._pair_starts[edge]), int(self._pair_starts[edge + 1])))
            self._locations[edge] = found
        return found

    # --- new graphs ------------------------------------------------------------------------------

    def subgraph(self, nodes: Iterable[Any]) -> PriorGraph:
        """The graph on some of the nodes and all edges among them; nodes left without an edge stay.

        In a bipartite graph a name selects the nodes of both sides.

        Raises
        ------
        PriorGraphError
            For an unknown name, or if no edge would be left.
        """
        wanted = {name_of(name) for name in name_list(nodes, "nodes")}
        unknown = sorted(wanted.difference(self.nodes))
        if unknown:
            raise PriorGraphError(
                f"'nodes' must be in the graph. Got {unknown_names(unknown, self.nodes)}. Drop them."
            )
        keep = np.array([name in wanted for name in self.nodes], dtype=bool)
        graph = induced(self, keep)
        if not graph.num_edges:
            raise PriorGraphError(
                f"A graph must have at least one edge. Got {len(wanted)} nodes with no edge among them. "
                "Add neighbours of these nodes."
            )
        return graph

    def restrict_to(
        self, features: Any, *, nodes: Iterable[Any] | None = None, isolated: str = "keep"
    ) -> PriorGraph:
        """The graph without the nodes that the data does not measure; signs, weights and widths stay.

        Parameters
        ----------
        features : sequence of names, pandas.DataFrame or AnnData
            As for :func:`~pyg_kpnn.prior.match`, which tells beforehand what will be lost.
        nodes : iterable of names, optional
            The nodes that want a feature; all others stay. Default: all (of the source side).
        isolated : {"keep", "drop"}, default "keep"
            What happens to nodes that have no edge then. A self-loop is an edge.

        Raises
        ------
        PriorGraphError
            If no edge would be left (with the report and its hints), or for bad arguments.

        Examples
        --------
        >>> graph = PriorGraph.from_edges([("a", "b"), ("c", "d")])
        >>> graph.restrict_to(["b", "a", "c"]).nodes
        ('a', 'b', 'c')
        >>> graph.restrict_to(["b", "a", "c"], isolated="drop").nodes
        ('a', 'b')
        """
        return restricted(self, features, nodes, isolated)

    def rename(self, mapping: Mapping[Any, Any] | Callable[[str], Any]) -> PriorGraph:
        """The same graph with other names, in the order that the new names have.

        Parameters
        ----------
        mapping : mapping from old to new name, or function
            Names that are not in a mapping stay; a function is asked for every name. In a bipartite graph
            a name is changed on both sides.

        Raises
        ------
        PriorGraphError
            Two nodes with one name (nodes are never merged), an unknown old or an empty new name.

        Examples
        --------
        >>> PriorGraph.from_edges([("tp53", "MDM2")]).rename({"tp53": "TP53"}).edges
        (('TP53', 'MDM2'),)
        """
        return renamed(self, mapping)

    def reverse(self) -> PriorGraph:
        """The graph with every edge turned round (and the sides of a bipartite graph swapped)."""
        order = np.lexsort((self._source, self._target))
        cut = self._split or 0
        return PriorGraph(
            self.nodes[cut:] + self.nodes[:cut],
            self.node_widths[cut:] + self.node_widths[:cut],
            self._target[order],
            self._source[order],
            None if self._sign is None else self._sign[order],
            None if self._weight is None else self._weight[order],
            None if self._split is None else len(self.nodes) - cut,
        )

    def to_undirected(self) -> PriorGraph:
        """The graph with every edge in both directions.

        An edge that is added takes the sign and the weight of the one it turns round; where both are there
        already, each keeps its own. Nodes and widths stay, and a self-loop stays one edge. Weights and
        derivatives of a model on it no longer say who acts on whom.

        Returns
        -------
        PriorGraph
            Directed, as all are, and with another fingerprint if anything was added.

        Raises
        ------
        PriorGraphError
            If the graph is bipartite.

        Examples
        --------
        >>> graph = PriorGraph.from_edges([("a", "b"), ("b", "a"), ("c", "a")], sign=[1, -1, -1])
        >>> both = graph.to_undirected()
        >>> both.edges, both.sign.tolist()
        ((('a', 'b'), ('a', 'c'), ('b', 'a'), ('c', 'a')), [1, -1, -1, -1])
        """
        return with_ways_back(self)

    def rewire(self, seed: int, preserve: str = "degree") -> PriorGraph:
        """A random graph on the same nodes that shares a property with this one.

        Parameters
        ----------
        seed : int
            At least 0. One seed, one graph; no global random state is used or changed.
        preserve : {"degree", "sign", "component", "labels", "density"}, default "degree"
            In- and out-degrees (of each sign; with the components), the shape, or the number of edges: see
            :func:`pyg_kpnn.prior.rewire.rewire`.

        Raises
        ------
        PriorGraphError
            If an argument breaks its rule.

        Examples
        --------
        >>> graph = PriorGraph.from_edges([("a", "x"), ("b", "y")])
        >>> sorted({graph.rewire(seed).edges for seed in range(20)})
        [(('a', 'x'), ('b', 'y')), (('a', 'y'), ('b', 'x'))]
        """
        from pyg_kpnn.prior.rewire import rewire

        return rewire(self, seed, preserve=preserve)

    # --- ways out --------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON of :meth:`to_dict`.

        It does not depend on the order of the input; a renamed node, a rewired edge, a sign, a weight or
        a width changes it. A graph of names, edges and widths has the fingerprint kpnn2 0.3.0 gives it.
        """
        return _fingerprint.digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict: ``kpnn2_spec`` (1), ``layout``, ``edges`` and whatever is not a default.

        ``widths``, ``signs``, ``weights`` and ``nodes`` (isolated ones) appear only where there are any;
        a bipartite graph has layout ``"bipartite"`` and ``sources``/``targets`` instead of ``nodes``.

        Examples
        --------
        >>> PriorGraph.from_edges([("a", "b")]).to_dict()
        {'kpnn2_spec': 1, 'layout': 'adjacency', 'edges': [['a', 'b']]}
        """
        return _fingerprint.to_payload(self)

    def to_edgelist(self) -> pd.DataFrame:
        """A frame with str columns source and target, and sign and weight only where there are any."""
        from pyg_kpnn.prior.interop import edgelist_frame

        return edgelist_frame(self)

    def to_mask(self) -> Tensor:
        """A fresh float32 (num_targets, num_sources) tensor: 1.0 at [target, source], 0.0 elsewhere.

        Examples
        --------
        >>> PriorGraph.from_edges([("a", "b")]).to_mask().tolist()
        [[0.0, 0.0], [1.0, 0.0]]
        """
        mask = torch.zeros(self.num_targets, self.num_sources)
        mask[self.target_index, self.source_index] = 1.0
        return mask

    def to_networkx(self) -> nx.DiGraph:
        """A ``networkx.DiGraph`` with names as nodes; ``sign``, ``weight``, ``width`` as attributes.

        Attributes appear only where the graph has any. In a bipartite graph, where a name can stand for
        two nodes, nodes are ``(side, name)`` tuples with attribute ``bipartite`` 0 or 1.
        """
        from pyg_kpnn.prior.interop import to_networkx

        return to_networkx(self)

    def to_data(self, *, dtype: torch.dtype = torch.float64) -> Data:
        """A PyG ``Data`` over units that batches; see :class:`~pyg_kpnn.prior.data.PriorData`.

        Parameters
        ----------
        dtype : torch.dtype, default torch.float64
            Of ``edge_weight``, a floating one. The default brings every weight back exactly; a model in
            float32 wants ``torch.float32``.
        """
        from pyg_kpnn.prior.interop import to_data

        return to_data(self, dtype)

    # --- value semantics -------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PriorGraph):
            return NotImplemented
        if self is other:
            return True
        if (self.nodes, self.node_widths, self._split) != (other.nodes, other.node_widths, other._split):
            return False
        mine = (self._source, self._target, self._sign, self._weight)
        theirs = (other._source, other._target, other._sign, other._weight)
        return all(
            b is None if a is None else b is not None and np.array_equal(a, b)
            for a, b in zip(mine, theirs, strict=True)
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __copy__(self) -> PriorGraph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PriorGraph:
        return self  # frozen through and through: a copy could never differ

    def __getstate__(self) -> dict[str, Any]:
        # what is derived is cheap to derive again, and would multiply the size of the pickle
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._freeze()

    def __repr__(self) -> str:
        side = f"sources={len(self.source_nodes)}, targets={len(self.target_nodes)}, " if self._split else ""
        units = f"units={self.state_dim}, " if self.state_dim != self.num_nodes else ""
        extra = "".join(f"{name}, " for name in ("sign", "weight") if getattr(self, "_" + name) is not None)
        return (
            f"PriorGraph(nodes={self.num_nodes}, {side}{units}edges={self.num_edges}, {extra}"
            f"fingerprint={self.fingerprint[:12]})"
        )


#: The name kpnn2 gives its graph, for code that changes one import.
AdjacencySpec = PriorGraph
