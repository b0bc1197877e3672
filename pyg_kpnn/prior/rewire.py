"""Random graphs that share a stated property with a given one: the nulls that a prior is held against."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.align import need_graph
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.names import check_choice, show
from pyg_kpnn.prior.trades import Wiring, in_order, trade_connected

__all__ = ["PRESERVE", "count_rewirings", "edge_overlap", "rewire"]

PRESERVE = ("degree", "sign", "component", "labels", "density")
#: Sweeps of a draw: on 42,410 edges (CollecTRI) the overlap with the start has come down to chance by then.
SWEEPS = 30


def rewire(graph: PriorGraph, seed: int, *, preserve: str = "degree", sweeps: int = SWEEPS) -> PriorGraph:
    """Draw a random graph on the same nodes that shares a property with ``graph``.

    Nodes, widths and self-loops stay as they are, and no two edges are parallel, so a model of the drawn
    graph takes the same input columns. What an edge carries (sign and weight) goes with it:

    ``"degree"``
        Every node keeps its in-degree and its out-degree. An edge keeps its target and what it carries
        and gets another source.
    ``"sign"``
        The same within the edges of each sign: in- and out-degree by sign stay. All of ``"degree"`` if
        the graph has no signs.
    ``"component"``
        ``"degree"``, and every weakly connected component stays one, on the nodes it had.
    ``"labels"``
        The same shape with the nodes permuted (those of equal width among themselves, within each side of
        a bipartite graph); self-loops move with their node.
    ``"density"``
        As many edges, anywhere; degrees are not kept.

    Parameters
    ----------
    graph : PriorGraph
        Where the draw starts.
    seed : int
        At least 0. One seed, one graph; no global random state is used or changed.
    preserve : {"degree", "sign", "component", "labels", "density"}, default "degree"
        What the draw shares with ``graph``.
    sweeps : int, default 30
        Times every source trades targets with another one, and every target sources, on average. Unused by
        ``"labels"`` and ``"density"``, whose draws are independent of the start.

    Returns
    -------
    PriorGraph

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule.

    Notes
    -----
    Every step is as likely as its reverse, so all graphs that can be reached are equally likely in the
    long run. With ``"degree"`` these are all graphs of the same degrees and self-loops. With ``"sign"`` and
    ``"component"`` some may be out of reach; that narrows the comparison and does not bias it.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "x"), ("b", "y"), ("c", "z"), ("a", "y")])
    >>> drawn = rewire(graph, 0)
    >>> drawn.nodes == graph.nodes, drawn.num_edges
    (True, 4)
    >>> drawn.edge_index[1].bincount().tolist() == graph.edge_index[1].bincount().tolist()
    True
    """
    need_graph(graph)
    check_choice(preserve, PRESERVE, "preserve")
    rng = np.random.default_rng(whole("seed", seed, 0))
    sweeps = whole("sweeps", sweeps, 1)
    if preserve == "labels":
        return _relabelled(graph, rng)
    state = Wiring.of(graph, signed=preserve == "sign")
    if preserve == "density":
        state.scatter(rng)
    elif preserve == "component":
        trade_connected(state, rng, sweeps)
    else:
        for _ in range(2 * sweeps):  # one for the sources, one for the targets, on average
            state.step(rng)
    return state.graph()


def count_rewirings(graph: PriorGraph, preserve: str = "degree", draws: int = 1000, seed: int = 0) -> int:
    """Number of different wirings among ``graph`` and ``draws`` random graphs.

    A small dense graph may have few. A test that draws at random then cannot reach a p-value below one in
    so many, however many draws it takes. Signs and weights do not count, since a model need not use them.

    Parameters
    ----------
    graph, preserve
        As in :func:`rewire`.
    draws : int, default 1000
        Rewirings to look at, at least 1, each a sweep away from the one before.
    seed : int, default 0
        At least 0.

    Returns
    -------
    int
        At least 1. All there are, if ``draws`` is many times as large.

    Raises
    ------
    PriorGraphError
        If an argument breaks its rule.

    Examples
    --------
    >>> count_rewirings(PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "a")]))  # either way round
    2
    """
    need_graph(graph)
    draws, seed = whole("draws", draws, 1), whole("seed", seed, 0)
    seen = {wiring(graph)}
    for one in np.random.default_rng(seed).integers(2**63, size=draws).tolist():
        graph = rewire(graph, one, preserve=preserve, sweeps=1)
        seen.add(wiring(graph))
    return len(seen)


def edge_overlap(one: PriorGraph, other: PriorGraph) -> float:
    """Share of the edges of ``one`` that ``other`` has too, self-loops aside; NaN if there are none.

    Two rewirings of one graph agree by chance, most of all at the hubs. The overlap of a rewiring with
    its start has mixed once it is no larger.

    Raises
    ------
    PriorGraphError
        If an argument is no graph, or the nodes differ.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    >>> edge_overlap(graph, PriorGraph.from_edges([("a", "b"), ("c", "b")]))
    0.5
    """
    for graph in (one, other):
        need_graph(graph)
    if (one.nodes, one._split) != (other.nodes, other._split):
        raise PriorGraphError("Both graphs must have the same nodes. Got two different sets.")
    keys = one._edge_keys if one.is_bipartite else one._edge_keys[one._source != one._target]
    return float(np.isin(keys, other._edge_keys).mean()) if len(keys) else float("nan")


def wiring(graph: PriorGraph) -> bytes:
    """What tells two rewirings of one graph apart: where the edges are."""
    return graph._edge_keys.tobytes()


def whole(what: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise PriorGraphError(
            f"{what!r} must be an int of at least {least}. Got {show(value)} ({type(value).__name__})."
        )
    return int(value)


def _relabelled(graph: PriorGraph, rng: np.random.Generator) -> PriorGraph:
    places = []
    for widths in graph._side_widths[: 2 if graph.is_bipartite else 1]:
        place = np.arange(len(widths))
        for width in np.unique(widths):
            same = np.flatnonzero(widths == width)
            place[same] = rng.permutation(same)
        places.append(place)
    return in_order(graph, places[0][graph._source], places[-1][graph._target])
