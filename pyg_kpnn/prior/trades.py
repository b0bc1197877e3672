"""Steps of a random walk over the wirings of a graph that leave its degrees as they are.

Wiring is shuffled by global curveball trades (Carstens, Hamann, Meyer, Penschuck, Tran and Wagner 2018,
"Parallel and I/O-efficient randomisation of massive networks using global curveball trades"), for directed
graphs together with reversals of directed 3-cycles (Rao, Jana and Bandyopadhyay 1996, "A Markov chain Monte
Carlo method for generating random (0, 1)-matrices with given marginals").
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pyg_kpnn.prior.graph import PriorGraph

__all__ = ["Wiring", "in_order", "trade_connected", "weak_labels"]

#: 3-cycles tried between two trades.
_TRIANGLES = 4


@dataclass
class Wiring:
    """Edges in any order that move, and those that do not.

    Attributes
    ----------
    start : PriorGraph
    edge : (m,) positions in ``start`` of the edges that move: all, or all but self-loops
    source, target : (m,) where they are now
    kind : (m,) edges trade only with edges of their kind
    active : nodes of each side that have such edges
    piece : for each side, the piece every node of it trades in
    """

    start: PriorGraph
    edge: np.ndarray
    source: np.ndarray
    target: np.ndarray
    kind: np.ndarray
    active: tuple[np.ndarray, np.ndarray] = field(init=False)
    piece: tuple[np.ndarray, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.active = np.unique(self.source), np.unique(self.target)
        start = self.start
        self.piece = np.zeros(len(start.source_nodes), int), np.zeros(len(start.target_nodes), int)

    @classmethod
    def of(cls, graph: PriorGraph, *, signed: bool) -> Wiring:
        source, target = graph._source.astype(np.int64), graph._target.astype(np.int64)
        edge = np.arange(graph.num_edges) if graph.is_bipartite else np.flatnonzero(source != target)
        kind = np.zeros(len(edge), dtype=np.int64)
        if signed and graph._sign is not None:
            kind = graph._sign[edge].astype(np.int64) + 1
        return cls(graph, edge, source[edge], target[edge], kind)

    def graph(self) -> PriorGraph:
        """The graph as it is wired now, in canonical order."""
        start = self.start
        source, target = start._source.copy(), start._target.copy()
        source[self.edge], target[self.edge] = self.source, self.target
        return in_order(start, source, target)

    def step(self, rng: np.random.Generator, share: float = 1.0) -> None:
        """One trade and a few 3-cycles, in either order: so that a step is as likely as its reverse."""
        if rng.random() < 0.5:
            self.trade(rng, share)
            self.turn_triangles(rng)
        else:
            self.turn_triangles(rng)
            self.trade(rng, share)

    def trade(self, rng: np.random.Generator, share: float = 1.0) -> None:
        """Pair the sources, or the targets, of each piece at random; each pair shuffles its neighbours.

        ``share`` of the pairs do, and only neighbours that one of the two has: a common one stays where it
        is, as does one that is the other of the pair, which would become a self-loop.
        """
        # Sources of a thousand targets trade little with sources of two, but their targets do.
        side = int(rng.integers(2))
        here, there = (self.target, self.source) if side else (self.source, self.target)
        partner, pair = self._pairs(rng, side, share)
        mate = partner[here]
        free = np.flatnonzero((mate >= 0) & (mate != (-1 if self.start.is_bipartite else there)))
        key = pair[here[free]] * (there.max(initial=0) + 1) + there[free]
        order = np.argsort(key, kind="stable")
        twice = key[order][1:] == key[order][:-1]
        alone = np.ones(len(free), dtype=bool)
        alone[1:] &= ~twice
        alone[:-1] &= ~twice
        free = free[order[alone]]
        # Within a pair and a kind, sources are dealt anew to the edges, which keep their targets.
        group = pair[here[free]] * 3 + self.kind[free]
        held = free[np.lexsort((rng.random(len(free)), group))]
        self.source[held] = self.source[free[np.argsort(group, kind="stable")]]

    def _pairs(self, rng: np.random.Generator, side: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        """Partner of every node of a side, or -1, and the number of its pair."""
        nodes = rng.permutation(self.active[side])
        nodes = nodes[np.argsort(self.piece[side][nodes], kind="stable")]
        piece = self.piece[side][nodes]
        begin = np.flatnonzero(np.append(True, piece[1:] != piece[:-1])[: len(piece)])
        place = np.arange(len(piece)) - np.repeat(begin, np.diff(np.append(begin, len(piece))))
        first = np.flatnonzero(place % 2 == 1) - 1  # an odd one out has nobody after it
        if share < 1.0:
            first = first[rng.random(len(first)) < share]
        one, other = nodes[first], nodes[first + 1]
        partner, pair = np.full((2, len(self.piece[side])), -1)
        partner[one], partner[other] = other, one
        pair[one] = pair[other] = np.arange(len(first))
        return partner, pair

    def turn_triangles(self, rng: np.random.Generator) -> None:
        """Try a few directed 3-cycles; one of one kind that has no edge the other way may turn round.

        No trade does that without a self-loop on the way. A cycle is tried as often as its reverse: by an
        edge, then one of as many edges out of its end as there are before and after.
        """
        if self.start.is_bipartite or len(self.edge) < 3:
            return
        nodes = len(self.start.nodes)
        tries = rng.random((_TRIANGLES, 2))
        coins = rng.random(_TRIANGLES) < 0.5  # a step that is always taken would come back every other time
        done = 0
        while done < _TRIANGLES:
            order = np.lexsort((self.target, self.source))
            source, target, kind = self.source[order], self.target[order], self.kind[order]
            keys = source * nodes + target
            first = (tries[done:, 0] * len(order)).astype(np.int64)
            low, high = np.searchsorted(source, target[first]), np.searchsorted(source, target[first] + 1)
            second = np.minimum(low + (tries[done:, 1] * (high - low)).astype(np.int64), len(order) - 1)
            a, b, c = source[first], target[first], target[second]
            third = np.minimum(np.searchsorted(keys, c * nodes + a), len(order) - 1)
            good = coins[done:] & (high > low) & (keys[third] == c * nodes + a)
            good &= (kind[first] == kind[second]) & (kind[second] == kind[third])
            for s, t in ((b, a), (c, b), (a, c)):
                back = np.minimum(np.searchsorted(keys, s * nodes + t), len(order) - 1)
                good &= keys[back] != s * nodes + t
            if not good.any():
                return
            at = int(np.argmax(good))
            # a -> b -> c -> a: each edge keeps its target and leaves from the node behind it
            self.source[order[[first[at], second[at], third[at]]]] = c[at], a[at], b[at]
            done += at + 1

    def scatter(self, rng: np.random.Generator) -> None:
        """Put every edge anywhere, each place at most once and none a self-loop."""
        targets = len(self.start.target_nodes)
        across = targets if self.start.is_bipartite else targets - 1
        places = rng.choice(len(self.start.source_nodes) * across, len(self.edge), replace=False)
        self.source, self.target = places // max(across, 1), places % max(across, 1)
        if not self.start.is_bipartite:
            self.target += self.target >= self.source  # leave out the diagonal

    def pieces(self) -> np.ndarray:
        """Weak component of every node, each by its lowest node; of a bipartite graph both sides in a row."""
        shift = len(self.start.source_nodes) if self.start.is_bipartite else 0
        return weak_labels(shift + len(self.start.target_nodes), self.source, self.target + shift)


def weak_labels(nodes: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Lowest node of the weakly connected component of every node.

    Examples
    --------
    >>> weak_labels(4, np.array([3, 2]), np.array([1, 0])).tolist()
    [0, 1, 0, 1]
    """
    label = np.arange(nodes)
    while True:
        one, other = label[source], label[target]
        high, low = np.maximum(one, other), np.minimum(one, other)
        if np.array_equal(high, low):
            return label
        np.minimum.at(label, high, low)
        while not np.array_equal(label, label[label]):
            label = label[label]


def trade_connected(state: Wiring, rng: np.random.Generator, sweeps: int) -> None:
    """Trade within weak components, and go back whenever one has fallen apart.

    A few steps are judged together: what lies between two connected graphs may not be connected.
    """
    pieces = state.pieces()
    state.piece = pieces[: len(state.piece[0])], pieces[-len(state.piece[1]) :]
    halvings = int(np.log2(len(pieces))) + 1
    for _ in range(sweeps * halvings * 3 // 2):  # of each size more than one a sweep, as many are refused
        before = state.source.copy()
        # Few pairs or many, by chance alone: were it to depend on what was refused before, steps would no
        # longer be as likely as their reverse.
        share = 0.5 ** int(rng.integers(halvings))
        for _ in range(int(rng.integers(1, 4))):
            state.step(rng, share)
        if not np.array_equal(state.pieces(), pieces):
            state.source = before


def in_order(graph: PriorGraph, source: np.ndarray, target: np.ndarray) -> PriorGraph:
    """``graph`` with its edges moved to new ends, what they carry with them, in canonical order."""
    order = np.lexsort((target, source))
    return PriorGraph(
        graph.nodes,
        graph.node_widths,
        source[order].astype(np.int32),
        target[order].astype(np.int32),
        None if graph._sign is None else graph._sign[order],
        None if graph._weight is None else graph._weight[order],
        graph._split,
    )
