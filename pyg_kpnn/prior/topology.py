"""Pieces and cycles of a graph, on node positions."""

from __future__ import annotations

from collections import deque

import numpy as np

__all__ = ["cycle_through", "strong_components", "weak_components"]


def weak_components(nodes: int, source: np.ndarray, target: np.ndarray) -> int:
    """How many pieces the graph falls into when directions are ignored; an isolated node is a piece.

    Examples
    --------
    >>> weak_components(4, np.array([0, 2]), np.array([1, 1]))
    2
    """
    label = np.arange(nodes)
    while True:
        one, other = label[source], label[target]
        high, low = np.maximum(one, other), np.minimum(one, other)
        if np.array_equal(high, low):
            return int((label == np.arange(nodes)).sum())
        np.minimum.at(label, high, low)  # the higher root points at the lower one
        while not np.array_equal(label, label[label]):
            label = label[label]


def _starts(nodes: int, source: np.ndarray, target: np.ndarray) -> tuple[list[int], list[int]]:
    """Edges sorted by source: where those of each node begin, and their targets."""
    counts = np.bincount(source, minlength=nodes)
    order = np.argsort(source, kind="stable")
    return [0, *np.cumsum(counts).tolist()], target[order].tolist()


def strong_components(nodes: int, source: np.ndarray, target: np.ndarray) -> list[list[int]]:
    """The sets of more than one node in which each leads to each, largest first (Tarjan's algorithm).

    Written without recursion: a chain of a million nodes is a graph like any other.

    Examples
    --------
    >>> strong_components(3, np.array([0, 1, 1, 2]), np.array([1, 0, 2, 2]))
    [[0, 1]]
    """
    first, targets = _starts(nodes, source, target)
    order = [-1] * nodes  # when a node was reached
    low = [0] * nodes  # the earliest node on the stack it leads back to
    stacked = bytearray(nodes)
    stack: list[int] = []
    upcoming = first[:nodes]  # the next edge to follow
    found: list[list[int]] = []
    clock = 0
    for root in range(nodes):
        if order[root] >= 0:
            continue
        path = [root]
        while path:
            node = path[-1]
            if order[node] < 0:
                order[node] = low[node] = clock
                clock += 1
                stack.append(node)
                stacked[node] = 1
            edge = upcoming[node]
            if edge < first[node + 1]:
                upcoming[node] = edge + 1
                after = targets[edge]
                if order[after] < 0:
                    path.append(after)
                elif stacked[after]:
                    low[node] = min(low[node], order[after])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[node])
            if low[node] == order[node]:
                component: list[int] = []
                while not component or component[-1] != node:
                    component.append(stack.pop())
                    stacked[component[-1]] = 0
                if len(component) > 1:
                    found.append(sorted(component))
    return sorted(found, key=lambda component: (-len(component), component))


def cycle_through(component: list[int], source: np.ndarray, target: np.ndarray) -> list[int]:
    """A shortest cycle through the first node of a strong component; that node comes first and last.

    Examples
    --------
    >>> cycle_through([0, 1, 2], np.array([0, 1, 2]), np.array([1, 2, 0]))
    [0, 1, 2, 0]
    """
    inside = np.isin(source, component) & np.isin(target, component) & (source != target)
    after: dict[int, list[int]] = {}
    for s, t in zip(source[inside].tolist(), target[inside].tolist(), strict=True):
        after.setdefault(s, []).append(t)
    start = component[0]
    came_from: dict[int, int] = {}
    queue = deque([start])
    while start not in came_from:
        node = queue.popleft()
        for neighbour in after[node]:
            if neighbour not in came_from:
                came_from[neighbour] = node
                queue.append(neighbour)
    cycle = [start, came_from[start]]
    while cycle[-1] != start:
        cycle.append(came_from[cycle[-1]])
    return cycle[::-1]
