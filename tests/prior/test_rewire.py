"""Random graphs: what each kind keeps, that draws are uniform, that they mix."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, permutations, product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import stats

from pyg_kpnn.datasets import curated_graph
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist
from pyg_kpnn.prior.rewire import PRESERVE, count_rewirings, edge_overlap, rewire
from pyg_kpnn.prior.trades import Wiring, weak_labels

WIRED = ("degree", "sign", "component")


def made_up(seed: int, nodes: int = 13, edges: int = 37) -> PriorGraph:
    """Self-loops, signs, weights, a wide node, an isolated node and several weak components."""
    rng = np.random.default_rng(seed)
    pieces = [range(nodes - 5), range(nodes - 5, nodes - 1)]
    pairs = [(s, t) for piece in pieces for s in piece for t in piece]
    chosen = [pairs[i] for i in rng.choice(len(pairs), edges, replace=False)]
    return PriorGraph.from_edges(
        [(f"n{s:02d}", f"n{t:02d}") for s, t in chosen],
        sign=rng.integers(-1, 2, edges).tolist(),
        weight=rng.integers(1, 9, edges).astype(float).tolist(),
        widths={"n00": 2},
        nodes=[f"n{i:02d}" for i in range(nodes)],
    )


def carried(graph: PriorGraph) -> list[tuple[str, str, int, float]]:
    """Every edge by name with what it carries."""
    sign = [0] * graph.num_edges if graph.sign is None else graph.sign.tolist()
    weight = [1.0] * graph.num_edges if graph.weight is None else graph.weight.tolist()
    return [(s, t, a, b) for (s, t), a, b in zip(graph.edges, sign, weight, strict=True)]


def degrees(graph: PriorGraph, *, signed: bool = False) -> tuple[Counter, Counter]:
    edges = [(s, t, sign if signed else 0) for s, t, sign, _ in carried(graph)]
    return Counter((s, k) for s, _, k in edges), Counter((t, k) for _, t, k in edges)


def components(graph: PriorGraph) -> set[frozenset[str]]:
    return set(map(frozenset, nx.weakly_connected_components(graph.to_networkx())))


def loops(graph: PriorGraph) -> list[tuple]:
    return [edge for edge in carried(graph) if edge[0] == edge[1]]


# --- what stays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("preserve", PRESERVE)
@pytest.mark.parametrize("seed", range(4))
def test_the_columns_of_a_model_and_the_edges_stay(preserve, seed):
    graph = made_up(seed)
    drawn = graph.rewire(seed, preserve)
    assert drawn != graph
    assert (drawn.nodes, drawn.node_widths) == (graph.nodes, graph.node_widths)
    assert (drawn.num_edges, len(set(drawn.edges))) == (graph.num_edges, graph.num_edges)
    assert drawn.edges == tuple(sorted(drawn.edges))
    assert Counter((a, b) for *_, a, b in carried(drawn)) == Counter((a, b) for *_, a, b in carried(graph))
    assert drawn.sign.dtype == graph.sign.dtype
    assert drawn.edge_index.dtype == torch.int64
    assert drawn._source.dtype == graph._source.dtype
    if preserve != "labels":
        assert loops(drawn) == loops(graph)
    assert PriorGraph.from_dict(drawn.to_dict()) == drawn


@pytest.mark.parametrize("preserve", WIRED)
@pytest.mark.parametrize("seed", range(4))
def test_degrees_stay(preserve, seed):
    graph = made_up(seed)
    drawn = graph.rewire(10 + seed, preserve)
    assert degrees(drawn) == degrees(graph)
    # an edge keeps its target, its sign and its weight
    assert Counter(edge[1:] for edge in carried(drawn)) == Counter(edge[1:] for edge in carried(graph))


def test_signed_degrees_stay_where_asked_only():
    graph = made_up(1)
    drawn = [graph.rewire(seed, "sign") for seed in range(6)]
    assert all(degrees(one, signed=True) == degrees(graph, signed=True) for one in drawn)
    assert any(degrees(graph.rewire(seed), signed=True) != degrees(graph, signed=True) for seed in range(6))


def test_components_stay_where_asked_only():
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("p", "q"), ("q", "r"), ("r", "s")]
    graph = PriorGraph.from_edges(pairs, nodes=["alone"])
    drawn = [rewire(graph, seed, preserve="component", sweeps=5) for seed in range(30)]
    assert all(components(one) == components(graph) for one in drawn)
    # six connected graphs on a to e (in another test), and two on p to s
    assert len({one.edges for one in drawn}) > 6
    assert any(components(graph.rewire(seed)) != components(graph) for seed in range(30))


def test_permuted_labels_keep_the_shape_and_the_widths():
    graph = made_up(2)
    for seed in range(3):
        drawn = graph.rewire(seed, "labels")
        assert nx.is_isomorphic(
            graph.to_networkx(),
            drawn.to_networkx(),
            node_match=lambda a, b: a == b,
            edge_match=lambda a, b: a == b,
        )
        assert len(loops(drawn)) == len(loops(graph))


def test_density_forgets_degrees():
    graph = made_up(3)
    assert all(degrees(graph.rewire(seed, "density")) != degrees(graph) for seed in range(5))
    crowded = PriorGraph.from_edges([e for e in permutations("abcd", 2) if e != ("a", "b")])
    absent = {
        next(iter(set(permutations("abcd", 2)) - set(crowded.rewire(s, "density").edges))) for s in range(80)
    }
    assert absent == set(permutations("abcd", 2))  # the last row and the last column too


@pytest.mark.parametrize("preserve", PRESERVE)
def test_bipartite_graphs_keep_their_sides(preserve):
    pairs = [("x", "x"), ("x", "s1"), ("b", "s2"), ("c", "s2"), ("c", "s1"), ("d", "s3"), ("e", "x")]
    graph = PriorGraph.bipartite(pairs, widths={"d": 3}, weight=[1, 2, 3, 4, 5, 6, 7])
    drawn = [graph.rewire(seed, preserve) for seed in range(25)]
    for one in drawn:
        assert (one.source_nodes, one.target_nodes) == (graph.source_nodes, graph.target_nodes)
        assert one.node_widths == graph.node_widths
        assert len(set(one.edges)) == 7
        if preserve in WIRED:
            assert degrees(one) == degrees(graph)
        if preserve == "component":
            assert components(one) == components(graph)
    if preserve != "component":
        # x -> x joins two nodes here and is no self-loop
        assert {("x", "x") in one.edges for one in drawn} == {True, False}
    assert len({one.edges for one in drawn}) > 2


@pytest.mark.parametrize("preserve", PRESERVE)
@pytest.mark.parametrize("pairs", [[("a", "a")], [("a", "a"), ("a", "b")], [("a", "b"), ("b", "a")]])
def test_tiny_graphs(preserve, pairs):
    graph = PriorGraph.from_edges(pairs)
    drawn = graph.rewire(0, preserve)
    assert sorted(Counter(s == t for s, t in drawn.edges)) == sorted(Counter(s == t for s, t in pairs))
    if preserve in WIRED:
        assert drawn == graph


# --- chance ------------------------------------------------------------------------------------------


def same_degrees(edges: list[tuple[str, str]]) -> set[tuple]:
    """All graphs without self-loops that have the degrees of ``edges``, by trying every choice of targets."""
    nodes = sorted({name for edge in edges for name in edge})
    out, into = Counter(s for s, _ in edges), Counter(t for _, t in edges)
    choices = [combinations([t for t in nodes if t != s], out[s]) for s in nodes]
    graphs = set()
    for targets in product(*choices):
        if Counter(t for some in targets for t in some) == into:
            graphs.add(tuple((s, t) for s, some in zip(nodes, targets, strict=True) for t in some))
    return graphs


def uniform(seen: Counter, possible: set, draws: int) -> float:
    """p-value of the draws under equal chances for all that is possible."""
    assert set(seen) <= possible
    return stats.chisquare([seen[one] for one in possible], [draws / len(possible)] * len(possible)).pvalue


CYCLES = {
    "a cycle and its reverse": ("ab bc ca", 2),
    "derangements": ("ab ba cd dc", 9),
    "two cycles": ("ab bc ca cd dc", 6),
    "crowded": ("ab ac ba bc bd ca db dc", 2),
    "five nodes": ("ab bc ca cd de ea", 48),
}


@pytest.mark.parametrize(("words", "count"), CYCLES.values(), ids=CYCLES)
def test_all_graphs_of_the_degrees_are_equally_likely(words, count):
    edges = [tuple(word) for word in words.split()]
    possible = same_degrees(edges)
    graph = PriorGraph.from_edges([*edges, ("a", "a")])
    seen = Counter(tuple(e for e in rewire(graph, s, sweeps=16).edges if e != ("a", "a")) for s in range(400))
    assert len(possible) == count
    assert uniform(seen, possible, 400) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words, _ in CYCLES.values()], ids=CYCLES)
def test_all_graphs_of_the_degrees_are_equally_likely_in_many_draws(words):
    edges = [tuple(word) for word in words.split()]
    graph = PriorGraph.from_edges(edges)
    seen = Counter(rewire(graph, seed).edges for seed in range(8_000))
    assert uniform(seen, same_degrees(edges), 8_000) > 1e-3


def test_a_step_is_as_likely_as_its_reverse():
    possible = sorted(same_degrees([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]))
    steps = np.zeros((9, 9))
    for place, edges in enumerate(possible):
        graph = PriorGraph.from_edges(edges)
        for seed in range(500):
            state = Wiring.of(graph, signed=False)
            state.step(np.random.default_rng([place, seed]))
            steps[place, possible.index(state.graph().edges)] += 1
    there, back = steps[np.triu_indices(9, 1)], steps.T[np.triu_indices(9, 1)]
    taken = there + back > 0
    assert 10 < taken.sum() < 36  # by trades and by 3-cycles, yet not from each to each
    distance = ((there - back)[taken] ** 2 / (there + back)[taken]).sum()
    assert stats.chi2.sf(distance, taken.sum()) > 1e-3


def test_signed_and_connected_draws_are_uniform_too():
    words, signs = "ab cd ac ba dc", [1, 1, 1, -1, -1]
    graph = PriorGraph.from_edges([tuple(word) for word in words.split()], sign=signs)
    one, other = same_degrees([("a", "b"), ("c", "d"), ("a", "c")]), same_degrees([("b", "a"), ("d", "c")])
    possible = {
        tuple(sorted([(*e, 1) for e in plus] + [(*e, -1) for e in minus]))
        for plus, minus in product(one, other)
        if not set(plus) & set(minus)
    }
    assert len(possible) > 2
    seen = Counter(
        tuple(e[:3] for e in carried(rewire(graph, s, preserve="sign", sweeps=8))) for s in range(400)
    )
    assert uniform(seen, possible, 400) > 1e-3

    chain = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]
    whole = {one for one in same_degrees(chain) if nx.is_weakly_connected(nx.DiGraph(one))}
    assert (len(whole), len(same_degrees(chain))) == (6, 11)
    drawn = (rewire(PriorGraph.from_edges(chain), s, preserve="component", sweeps=20) for s in range(200))
    assert uniform(Counter(one.edges for one in drawn), whole, 200) > 1e-3


def test_labels_and_density_are_uniform():
    graph = PriorGraph.from_edges([("a", "b"), ("a", "c"), ("b", "c")])
    shapes = {tuple(sorted(((p, q), (p, r), (q, r)))) for p, q, r in permutations("abc")}
    assert uniform(Counter(graph.rewire(s, "labels").edges for s in range(300)), shapes, 300) > 1e-3
    every = set(combinations(sorted(permutations("abc", 2)), 3))
    assert uniform(Counter(graph.rewire(s, "density").edges for s in range(600)), every, 600) > 1e-3


def test_a_seed_is_a_graph_and_global_chance_stays():
    graph = made_up(0)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for preserve in PRESERVE:
        assert graph.rewire(7, preserve) == graph.rewire(np.int64(7), preserve)
        assert len({graph.rewire(seed, preserve) for seed in range(8)}) == 8
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


# --- mixing ------------------------------------------------------------------------------------------


def test_overlap_with_the_start_comes_down_to_chance():
    # one hub that regulates most nodes, and many small regulators
    rng = np.random.default_rng(0)
    pairs = {("hub", f"g{i:03d}") for i in range(0, 300, 2)}
    pairs |= {(f"g{s:03d}", f"g{t:03d}") for s, t in rng.integers(300, size=(900, 2)).tolist() if s != t}
    graph = PriorGraph.from_edges(sorted(pairs))
    overlaps = [edge_overlap(graph, rewire(graph, 1, sweeps=sweeps)) for sweeps in (1, 4, 30, 120)]
    assert overlaps[0] > overlaps[1] > overlaps[2]
    one, other = rewire(graph, 1), rewire(graph, 2)
    plateau = edge_overlap(one, other)
    assert overlaps[2] == pytest.approx(plateau, abs=0.03)
    assert overlaps[3] == pytest.approx(plateau, abs=0.03)
    assert plateau < 0.2


def test_a_large_real_network(data_dir: Path):
    graph = read_edgelist(data_dir / "human_tf" / "collectri.tsv", sign="interaction")
    assert (graph.num_nodes, graph.num_edges) == (6894, 42410)
    one, other = rewire(graph, 1), rewire(graph, 2, preserve="sign")
    for drawn, signed in ((one, False), (other, True)):
        assert degrees(drawn, signed=signed) == degrees(graph, signed=signed)
        assert loops(drawn) == loops(graph)
    # 0.117 after 200 sweeps
    assert edge_overlap(graph, one) < 0.13


def test_overlap_by_hand():
    graph = PriorGraph.from_edges([("a", "a"), ("a", "b"), ("b", "c"), ("c", "a")])
    other = PriorGraph.from_edges([("a", "a"), ("a", "b"), ("b", "a"), ("c", "b")])
    assert edge_overlap(graph, other) == pytest.approx(1 / 3)
    assert np.isnan(edge_overlap(*[PriorGraph.from_edges([("a", "a")])] * 2))
    sets = PriorGraph.bipartite([("a", "a"), ("b", "b")])
    assert edge_overlap(sets, PriorGraph.bipartite([("a", "a"), ("b", "a"), ("b", "b")])) == 1.0
    assert edge_overlap(sets, PriorGraph.bipartite([("a", "b"), ("b", "a")])) == 0.0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_pairs_are_of_one_piece_and_leave_out_one_at_most(share):
    # three pieces of 3, 5 and 4 sources, every one with an edge
    pairs = [
        (f"{piece}{i}", f"{piece}{i + 1}") for piece, n in (("a", 3), ("b", 5), ("c", 4)) for i in range(n)
    ]
    graph = PriorGraph.from_edges(pairs)
    state = Wiring.of(graph, signed=False)
    state.piece = state.pieces(), state.pieces()
    for seed in range(20):
        partner, pair = state._pairs(np.random.default_rng(seed), 0, share)
        paired = np.flatnonzero(partner >= 0)
        assert set(paired) <= set(graph._source.tolist())
        assert np.array_equal(partner[partner[paired]], paired)
        assert np.array_equal(pair[partner[paired]], pair[paired])
        assert sorted(Counter(pair[paired].tolist()).values()) == [2] * (len(paired) // 2)
        for one, other in zip(paired, partner[paired], strict=True):
            assert graph.nodes[one][0] == graph.nodes[other][0]
            assert one != other
        if share == 1.0:  # an odd one out in the pieces of 3 and 5
            assert Counter(graph.nodes[i][0] for i in paired) == {"a": 2, "b": 4, "c": 4}


def test_weak_labels_against_networkx():
    graph = made_up(4, nodes=20, edges=14)
    label = weak_labels(20, graph._source, graph._target)
    found = {frozenset(graph.nodes[i] for i in np.flatnonzero(label == one)) for one in np.unique(label)}
    assert found == components(graph)


# --- counting ----------------------------------------------------------------------------------------


def test_count_by_enumeration():
    edges = [tuple(word) for word in CYCLES["derangements"][0].split()]
    graph = PriorGraph.from_edges(edges, sign=[1, -1, 1, -1])
    assert count_rewirings(graph, draws=300) == 9  # signs do not count
    assert count_rewirings(graph, draws=1) == 2
    assert count_rewirings(graph, "labels", draws=300) == 3
    assert count_rewirings(graph, draws=40, seed=1) == count_rewirings(graph, draws=40, seed=1)


def test_the_dense_curated_network_has_five():
    graph = curated_graph("mcad")
    moving = [edge for edge in graph.edges if edge[0] != edge[1]]
    assert (graph.num_nodes, graph.num_edges, len(same_degrees(moving))) == (5, 14, 5)
    assert count_rewirings(graph, draws=500) == 5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: rewire("a", 0), "'graph' must be a PriorGraph. Got str."),
        (lambda g: g.rewire(-1), "'seed' must be an int of at least 0. Got -1 (int)."),
        (lambda g: g.rewire(True), "'seed' must be an int of at least 0. Got True (bool)."),
        (lambda g: g.rewire(1.0), "'seed' must be an int of at least 0. Got 1.0 (float)."),
        (lambda g: g.rewire(None), "'seed' must be an int of at least 0. Got None (NoneType)."),
        (lambda g: g.rewire(0, "degrees"), "'preserve' must be 'degree', 'sign', 'component', 'labels' or"),
        (lambda g: g.rewire(0, None), "'density'. Got None."),
        (lambda g: rewire(g, 0, sweeps=0), "'sweeps' must be an int of at least 1. Got 0 (int)."),
        (lambda g: count_rewirings(g, "size"), "'preserve' must be"),
        (lambda g: count_rewirings(g, draws=0), "'draws' must be an int of at least 1. Got 0 (int)."),
        (lambda g: count_rewirings(g, seed="1"), "'seed' must be an int of at least 0. Got '1' (str)."),
        (lambda g: edge_overlap(g, 1), "'graph' must be a PriorGraph. Got int."),
        (
            lambda g: edge_overlap(g, PriorGraph.from_edges([("a", "c")])),
            "Both graphs must have the same nodes.",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(PriorGraphError) as caught:
        call(PriorGraph.from_edges([("a", "b")]))
    assert words in str(caught.value)
