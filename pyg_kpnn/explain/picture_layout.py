"""Where the boxes of a picture stand and which way its edges bend: the same every time, no random numbers.

Lengths are in points. A piece of the graph without cycles goes from left to right in layers, any other is
spread so that distances follow the number of edges between nodes; pieces are put side by side. Every node
is a box around its name and no two boxes overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

from .picture_edges import Edges

__all__ = ["LAYOUTS", "bend", "crossing", "curve", "place", "ports"]

LAYOUTS = ("auto", "layered", "spread")
#: Room between boxes, beside and above each other, and between layers and pieces.
_GAP = np.array([16.0, 12.0])
_LAYER_GAP, _PIECE_GAP, _STEP = 64.0, 34.0, 95.0


def place(edges: Edges, sizes: np.ndarray, layout: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Centres ``(n, 2)`` of boxes of ``sizes`` ``(n, 2)``, from (0, 0) on, y upwards; which are in layers."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(edges.names)))
    loose = edges.source != edges.target
    graph.add_edges_from(zip(edges.source[loose].tolist(), edges.target[loose].tolist(), strict=True))
    pieces = [sorted(piece) for piece in nx.weakly_connected_components(graph)]
    boxes: list[tuple[list[int], np.ndarray]] = []
    in_layers = np.zeros(len(edges.names), dtype=bool)
    for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)):
        part = graph.subgraph(piece)
        layered = layout == "layered" or (layout == "auto" and nx.is_directed_acyclic_graph(part))
        local = _layers(part, piece, sizes[piece]) if layered else _spread(part, piece, sizes[piece])
        boxes.append((piece, local))
        in_layers[piece] = layered
    return _packed(boxes, sizes), in_layers


def _layers(graph: nx.DiGraph, piece: list[int], sizes: np.ndarray) -> np.ndarray:
    """Left to right: a node stands one layer after the last of its sources."""
    number = {node: i for i, node in enumerate(piece)}
    forward = nx.DiGraph()
    forward.add_nodes_from(range(len(piece)))
    order = _mostly_forward(graph, piece)
    rank = {node: i for i, node in enumerate(order)}
    forward.add_edges_from(
        (number[a], number[b]) if rank[a] < rank[b] else (number[b], number[a])
        for a in piece
        for b in sorted(graph.successors(a))
    )
    depth = np.zeros(len(piece), dtype=int)
    topological = list(nx.topological_sort(forward))
    for node in topological:
        depth[node] = max((depth[before] + 1 for before in forward.predecessors(node)), default=0)
    for node in reversed(topological):  # pulls a source that enters late up to its first target
        after = [depth[other] for other in forward.successors(node)]
        if after:
            depth[node] = min(after) - 1
    # y runs upwards, names are read downwards
    columns = [np.flatnonzero(depth == level)[::-1].tolist() for level in range(int(depth.max()) + 1)]
    heights = sizes[:, 1] + 0.6 * _GAP[1]
    y = np.zeros(len(piece))
    for column in columns:
        _stack(column, y, heights, None)
    for sweep in range(8):
        inward = sweep % 2 == 0
        for column in columns if inward else reversed(columns):
            near = forward.predecessors if inward else forward.successors
            wish = {node: _mean([y[other] for other in near(node)], y[node]) for node in column}
            column.sort(key=lambda node: (wish[node], -node))
            _stack(column, y, heights, wish)
    centres = np.zeros((len(piece), 2))
    centres[:, 1] = y
    right = 0.0
    for level, column in enumerate(columns):
        widest = sizes[column, 0].max()
        # many edges between two layers need room to be told apart
        between = min(max(_LAYER_GAP, 0.25 * np.ptp(y)), 300.0) if level else 0.0
        centres[column, 0] = right + between + widest / 2
        right += between + widest
    return centres


def _mostly_forward(graph: nx.DiGraph, piece: list[int]) -> list[int]:
    """An order in which few edges run backwards: sources first, sinks last, else who gives most."""
    left = graph.copy()
    first: list[int] = []
    last: list[int] = []
    while left:
        sinks = sorted(n for n in left if left.out_degree(n) == 0)
        sources = sorted(n for n in left if left.in_degree(n) == 0 and left.out_degree(n) > 0)
        if not sinks and not sources:
            sources = [max(sorted(left), key=lambda n: left.out_degree(n) - left.in_degree(n))]
        first += sources
        last = sinks + last
        left.remove_nodes_from([*sinks, *sources])
    return first + last


def _mean(values: list[float], otherwise: float) -> float:
    return float(np.mean(values)) if values else otherwise


def _stack(column: list[int], y: np.ndarray, heights: np.ndarray, wish: dict[int, float] | None) -> None:
    """One above the other in this order, each as near to its wish as the others let it."""
    middle = np.cumsum(heights[column]) - heights[column] / 2
    if wish is None:
        y[column] = middle - middle.mean()
        return
    # nearest ascending values in least squares: pool neighbours that would overlap, then take their mean
    offsets = np.array([wish[node] for node in column]) - middle
    blocks: list[list[float]] = []
    for value in offsets:
        blocks.append([float(value), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    y[column] = middle + np.repeat([a for a, _ in blocks], [int(n) for _, n in blocks])


def _spread(graph: nx.DiGraph, piece: list[int], sizes: np.ndarray) -> np.ndarray:
    """Distances in the picture follow distances in the graph (stress majorisation from a circle)."""
    count = len(piece)
    if count == 1:
        return np.zeros((1, 2))
    number = {node: i for i, node in enumerate(piece)}
    hops = np.zeros((count, count))
    for node, lengths in nx.all_pairs_shortest_path_length(graph.to_undirected(as_view=True)):
        for other, length in lengths.items():
            hops[number[node], number[other]] = length
    degree = np.array([graph.degree(node) for node in piece], dtype=float)
    # neighbours of a hub share its surroundings, which must grow with their number
    grown = 1.0 + 0.12 * np.sqrt(np.maximum(np.maximum.outer(degree, degree) - 6.0, 0.0))
    crowded = graph.number_of_edges() / count  # many edges need room to be told apart
    step = _STEP * min(1.8, 1.0 + 0.15 * max(0.0, crowded - 1.5))
    wish = step * hops * np.where(hops == 1, grown, 1.0)
    np.fill_diagonal(wish, 1.0)
    weight = wish**-2.0
    np.fill_diagonal(weight, 0.0)
    total = weight.sum(1, keepdims=True)
    angle = 2.0 * np.pi * np.argsort(np.argsort(_round(graph, piece))) / count
    at = _STEP * count / (2.0 * np.pi) * np.stack([np.cos(angle), np.sin(angle)], 1)
    for _ in range(300 if count <= 400 else 60):
        apart = at[:, None] - at[None]
        distance = np.sqrt((apart**2).sum(2))
        np.fill_diagonal(distance, 1.0)
        pull = weight * wish / np.maximum(distance, 1e-6)
        new = (weight @ at + (pull[:, :, None] * apart).sum(1)) / total
        moved, at = np.abs(new - at).max(), new
        if moved < 0.05:
            break
    at = at - at.mean(0)
    spread = np.linalg.svd(at, full_matrices=False)[2]
    at = at @ spread.T  # the long way lies across
    at *= np.where(at[np.abs(at).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    return _apart(at * [1.15, 1.0], sizes)


def _round(graph: nx.DiGraph, piece: list[int]) -> np.ndarray:
    """Place of each node in a walk through the graph, so that neighbours start side by side on a circle."""
    start = max(piece, key=lambda node: (graph.degree(node), -node))
    walk = list(nx.dfs_preorder_nodes(graph.to_undirected(), start, sort_neighbors=sorted))
    rank = {node: i for i, node in enumerate(walk)}
    return np.array([rank[node] for node in piece])


def _apart(at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Push boxes that overlap away from each other, the shorter way, until none do."""
    need = (sizes[:, None] + sizes[None]) / 2.0 + _GAP
    for _ in range(1000):
        gap = at[:, None] - at[None]
        over = need - np.abs(gap)
        touching = np.triu((over > 1e-6).all(2), 1)
        if not touching.any():
            return at
        at = at.copy()
        for i, j in np.argwhere(touching):
            over_now = need[i, j] - np.abs(at[i] - at[j])
            if (over_now <= 0).any():
                continue
            axis = int(over_now.argmin())
            step = over_now[axis] / 2.0 + 0.01
            way = 1.0 if at[i, axis] >= at[j, axis] else -1.0
            at[i, axis] += way * step
            at[j, axis] -= way * step
    return at * 1.0 if len(at) < 2 else _grid(at, sizes)


def _grid(at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Where pushing does not end: blow everything up until no box touches another."""
    need = (sizes[:, None] + sizes[None]) / 2.0 + _GAP
    gap = np.abs(at[:, None] - at[None])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.nan_to_num((need / gap).min(2), posinf=1.0)
    np.fill_diagonal(factor, 1.0)
    return at * max(1.0, float(factor.max()))


def _packed(pieces: Sequence[tuple[list[int], np.ndarray]], sizes: np.ndarray) -> np.ndarray:
    """Pieces in rows, the largest first; each keeps its own layout."""
    lows, extents = [], []
    for piece, at in pieces:
        low, high = (at - sizes[piece] / 2).min(0), (at + sizes[piece] / 2).max(0)
        lows.append(low)
        extents.append(high - low)
    extent = np.array(extents)
    width = max(extent[:, 0].max(), 1.25 * float(np.sqrt(np.prod(extent + _PIECE_GAP, axis=1).sum())))
    centres = np.zeros((len(sizes), 2))
    order = sorted(range(len(pieces)), key=lambda i: (-extent[i, 1], i))
    x = y = row = 0.0
    for i in order:
        if x > 0 and x + extent[i, 0] > width:
            x, y, row = 0.0, y - row - _PIECE_GAP, 0.0
        centres[pieces[i][0]] = pieces[i][1] - lows[i] + [x, y - extent[i, 1]]
        x, row = x + extent[i, 0] + _PIECE_GAP, max(row, extent[i, 1])
    return centres - (centres - sizes / 2).min(0)


# --- edges ---------------------------------------------------------------------------------------


def curve(start: np.ndarray, end: np.ndarray, rad: float, count: int = 33) -> np.ndarray:
    """Points ``(count, 2)`` of the arc from ``start`` to ``end`` that bends by ``rad`` of its length."""
    across = end - start
    control = (start + end) / 2.0 + rad * np.array([across[1], -across[0]])
    t = np.linspace(0.0, 1.0, count)[:, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end


def crossing(points: np.ndarray, at: np.ndarray, sizes: np.ndarray, ends: tuple[int, int]) -> int:
    """How many boxes other than its ends an edge passes under."""
    inside = (np.abs(points[:, None] - at[None]) < sizes[None] / 2.0 + 1.0).all(2).any(0)
    inside[list(ends)] = False
    return int(inside.sum())


def ports(edges: Edges, at: np.ndarray, sizes: np.ndarray, in_layers: np.ndarray) -> np.ndarray:
    """Where edges start and end, ``(E, 2, 2)``: at centres, or from side to side between two layers.

    A column of boxes hides what runs to their centres at a steep angle, but not what meets their sides.
    """
    out = np.stack([at[edges.source], at[edges.target]], 1)
    right = at[edges.source, 0] + sizes[edges.source, 0] / 2
    left = at[edges.target, 0] - sizes[edges.target, 0] / 2
    sides = in_layers[edges.source] & (left - right > 20.0)
    out[sides, 0, 0], out[sides, 1, 0] = right[sides], left[sides]
    return out


def bend(edges: Edges, ends: np.ndarray, at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How far each edge bends: as little as keeps it off other boxes and off an edge the other way."""
    pairs = set(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    out = np.zeros(len(edges.source))
    for row, (s, t) in enumerate(zip(edges.source.tolist(), edges.target.tolist(), strict=True)):
        if s == t:
            continue
        # both edges of a pair bend to their own right, and so to different sides
        tried = (
            (0.18, 0.3, 0.42) if (t, s) in pairs else (0.0, 0.12, -0.12, 0.22, -0.22, 0.35, -0.35, 0.5, -0.5)
        )
        hits = [crossing(curve(ends[row, 0], ends[row, 1], rad), at, sizes, (s, t)) for rad in tried]
        out[row] = tried[int(np.argmin(hits))]
    return out
