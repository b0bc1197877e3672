"""How many edges a value has to travel, and for which pairs that rules a mixed derivative out."""

from __future__ import annotations

import numpy as np
import torch

from ..prior import PriorGraph

__all__ = ["distances", "meeting_hops"]

_COLUMNS = 256  # inputs followed at a time: memory stays near that many numbers an edge


def distances(graph: PriorGraph, units: list[int]) -> np.ndarray:
    """Fewest edges from each of ``units`` to every unit, along the edges.

    Parameters
    ----------
    graph : PriorGraph
        Not bipartite.
    units : list of int
        Positions to start from.

    Returns
    -------
    ndarray
        ``(len(units), graph.state_dim)`` float64: 0 at the unit itself, infinite where no path leads.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    >>> distances(graph, [1])
    array([[inf,  0.,  1.]])
    """
    source, target = graph.source_index, graph.target_index
    found = np.full((len(units), graph.state_dim), np.inf)
    for first in range(0, len(units), _COLUMNS):
        some = torch.tensor(units[first : first + _COLUMNS])
        part = found[first : first + _COLUMNS]
        fresh = torch.zeros(graph.state_dim, len(some), dtype=torch.int32)
        fresh[some, torch.arange(len(some))] = 1
        step = 0
        while bool(fresh.any()):
            part[fresh.T.numpy() > 0] = step
            arrived = torch.zeros_like(fresh).index_add_(0, target, fresh[source])
            fresh = ((arrived > 0) & torch.from_numpy(np.isinf(part.T))).int()
            step += 1
    return found


def meeting_hops(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Hops within which two values meet in any token.

    The bound of outputs that are affine in a sum over tokens: their mixed derivative is a sum over
    tokens of terms each of which needs both values there.

    Parameters
    ----------
    first, second : ndarray
        ``(..., n)`` :func:`distances` of the two inputs.

    Returns
    -------
    ndarray
        ``(...)`` float64, infinite where they never meet.

    Examples
    --------
    >>> graph = PriorGraph.from_edges([("a", "c"), ("b", "d"), ("d", "c")])
    >>> a, b = distances(graph, [0, 1])
    >>> float(meeting_hops(a, b))
    2.0
    """
    return np.maximum(first, second).min(-1)
