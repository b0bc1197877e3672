"""PriorGraph: canonical order, unit indices, value semantics, lookups, derived graphs."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import AdjacencySpec, PriorGraph

# three inputs, a wide hidden node with a self-loop, a wide output: a(1) b(1) c(1) h(2) o(3)
PAIRS = [("h", "o"), ("c", "h"), ("h", "h"), ("a", "h"), ("b", "h")]


@pytest.fixture
def wide() -> PriorGraph:
    return PriorGraph.from_edges(PAIRS, widths={"h": 2, "o": 3, "a": 1}, sign=["-", "+", "?", 1, -1])


def test_alias():
    assert AdjacencySpec is PriorGraph


def test_names_and_edges_are_canonical(wide):
    assert wide.nodes == ("a", "b", "c", "h", "o")
    assert wide.edges == (("a", "h"), ("b", "h"), ("c", "h"), ("h", "h"), ("h", "o"))
    assert wide.edge_index.tolist() == [[0, 1, 2, 3, 3], [3, 3, 3, 3, 4]]
    assert wide.edge_index.dtype == torch.int64
    assert wide.sign.tolist() == [1, -1, 1, 0, -1]
    assert wide.input_nodes == ("a", "b", "c")
    assert wide.hidden_nodes == ("h",)
    assert wide.output_nodes == ("o",)


def test_order_is_python_text_order():
    graph = PriorGraph.from_edges([("b", "A"), ("é", "Z"), ("10", "9"), ("a b", "a")])
    assert graph.nodes == tuple(sorted(["b", "A", "é", "Z", "10", "9", "a b", "a"]))


def test_units_by_hand(wide):
    assert wide.node_widths == (1, 1, 1, 2, 3)
    assert wide.widths == {"h": 2, "o": 3}
    assert (wide.num_nodes, wide.num_edges, wide.state_dim, wide.nnz) == (5, 5, 8, 16)
    assert (wide.num_sources, wide.num_targets, wide.is_bipartite) == (8, 8, False)
    assert wide.source_nodes == wide.target_nodes == wide.nodes
    # target unit outer, source unit inner
    assert wide.source_index.tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4]
    assert wide.target_index.tolist() == [3, 4, 3, 4, 3, 4, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert wide.pair_edge.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4]
    assert wide.sign[wide.pair_edge].tolist()[-6:] == [-1] * 6
    assert wide.input_index.tolist() == [0, 1, 2]
    assert wide.output_index.tolist() == [5, 6, 7]
    for index in (wide.source_index, wide.target_index, wide.pair_edge, wide.input_index):
        assert index.dtype == torch.int64


def test_node_units_and_edge_location(wide):
    assert wide.node_units("a") == slice(0, 1)
    assert wide.node_units("h") == slice(3, 5)
    assert wide.node_units("o") == wide.node_units("o", side="target") == slice(5, 8)
    assert wide.edge_location("h", "o") == (10, 11, 12, 13, 14, 15)
    assert wide.edge_location("h", "o") is wide.edge_location("h", "o")
    assert all(isinstance(place, int) for place in wide.edge_location("a", "h"))
    for s, t in wide.edges:
        places = list(wide.edge_location(s, t))
        assert set(wide.source_index[places].tolist()) == set(range(8)[wide.node_units(s)])
        assert set(wide.target_index[places].tolist()) == set(range(8)[wide.node_units(t)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: g.edge_location("o", "h"), "'o' -> 'h'"),
        (lambda g: g.edge_location("o", "o"), "'o' -> 'o'"),
        (lambda g: g.edge_location("H", "o"), "differs only in case from 'h'"),
        (lambda g: g.edge_location("h", "zz"), "'zz'"),
        (lambda g: g.node_units("O"), "differs only in case from 'o'"),
        (lambda g: g.node_units("h", side="left"), "'source' or 'target'"),
    ],
)
def test_lookups_name_what_is_wrong(wide, call, words):
    with pytest.raises(PriorGraphError, match=words):
        call(wide)


def test_near_name_hint():
    graph = PriorGraph.from_edges([("GATA1", "TAL1")])
    with pytest.raises(PriorGraphError, match="did you mean 'GATA1'"):
        graph.node_units("GATA11")


def test_mask(wide):
    mask = wide.to_mask()
    assert mask.dtype == torch.float32
    assert mask.shape == (8, 8)
    assert mask.sum() == 16
    assert mask[5, 3] == 1
    assert mask[3, 5] == 0
    mask[0, 0] = 5.0
    assert wide.to_mask()[0, 0] == 0


def test_returned_tensors_cannot_corrupt_the_graph(wide):
    weighted = PriorGraph.from_edges([("a", "b"), ("b", "c")], weight=[2.0, 3.0], sign=[1, -1])
    for graph in (wide, weighted):
        before = graph.fingerprint, graph.source_index, graph.output_index
        for name in (
            "edge_index", "source_index", "target_index", "pair_edge", "input_index", "output_index",
            "sign", "weight",
        ):  # fmt: skip
            tensor = getattr(graph, name)
            if tensor is not None:
                tensor.fill_(7)
        graph.widths["a"] = 9
        fresh = PriorGraph.from_dict(graph.to_dict())
        assert fresh.fingerprint == before[0]
        assert torch.equal(graph.source_index, before[1])
        assert torch.equal(graph.output_index, before[2])
        assert torch.equal(fresh.edge_index, graph.edge_index)
    with pytest.raises(ValueError, match="read-only"):
        wide._source[0] = 3


def test_graph_does_not_hold_the_callers_array():
    pairs = np.array([[0, 1], [1, 2]])
    weight = np.array([2.0, 3.0])
    graph = PriorGraph.from_edges(pairs, weight=weight)
    pairs[:] = 0
    weight[:] = 0
    assert graph.edges == (("0", "1"), ("1", "2"))
    assert graph.weight.tolist() == [2.0, 3.0]
    assert weight.flags.writeable


def test_frozen_value_semantics(wide):
    with pytest.raises(dataclasses.FrozenInstanceError):
        wide.nodes = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        wide.anything = 1
    assert not isinstance(wide, nn.Module)
    again = PriorGraph.from_edges(
        PAIRS[::-1], widths={"o": np.int64(3), "h": 2}, sign=["inhibits", "activates", None, "+", "-"]
    )
    assert again == wide
    assert hash(again) == hash(wide)
    assert {wide: 1}[again] == 1
    assert wide != "graph"
    _ = wide.edges, wide.source_index, wide.edge_location("h", "o")
    for other in (copy.copy(wide), copy.deepcopy(wide), pickle.loads(pickle.dumps(wide))):
        assert other == wide
        assert other.fingerprint == wide.fingerprint
        assert other.edge_location("h", "o") == wide.edge_location("h", "o")
        assert not other._source.flags.writeable


@pytest.mark.parametrize(
    "change",
    [
        {"edges": [("a", "b"), ("b", "d")]},
        {"edges": [("b", "a"), ("b", "c")]},
        {"edges": [("a", "b"), ("b", "c"), ("a", "c")]},
        {"widths": {"c": 2}},
        {"sign": [1, 0]},
        {"weight": [1, 2]},
        {"nodes": ["z"]},
    ],
)
def test_every_part_counts_for_equality_and_fingerprint(change):
    base = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    other = PriorGraph.from_edges(**{"edges": [("a", "b"), ("b", "c")], **change})
    assert other != base
    assert other.fingerprint != base.fingerprint


def test_defaults_are_normalised_away():
    base = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    same = PriorGraph.from_edges(
        [("a", "b"), ("b", "c")], sign=["?", None], weight=[1, 1.0], nodes=["a"], widths={"a": 1}
    )
    assert same == base
    assert same.fingerprint == base.fingerprint
    assert same.sign is None
    assert same.weight is None


def test_signs_and_weights_follow_the_canonical_order():
    graph = PriorGraph.from_edges([("c", "a"), ("a", "b"), ("b", "c")], sign=[-1, 1, 0], weight=[3, 1, 2])
    assert graph.edges == (("a", "b"), ("b", "c"), ("c", "a"))
    assert graph.sign.tolist() == [1, 0, -1]
    assert graph.sign.dtype == torch.int8
    assert graph.weight.tolist() == [1.0, 2.0, 3.0]
    assert graph.weight.dtype == torch.float64


def test_cycles_loops_and_isolated_nodes():
    cycle = PriorGraph.from_edges([("a", "b"), ("b", "a")])
    assert cycle.input_nodes == cycle.output_nodes == ()
    assert cycle.hidden_nodes == ("a", "b")
    assert cycle.input_index.shape == (0,)
    assert cycle.input_index.dtype == torch.int64
    loop = PriorGraph.from_edges([("a", "a")], nodes=["z", "b"])
    assert loop.nodes == ("a", "b", "z")
    assert loop.hidden_nodes == ("a",)
    assert loop.input_nodes == loop.output_nodes == ("b", "z")
    assert loop.input_index.tolist() == [1, 2]
    wide_input = PriorGraph.from_edges([("a", "b")], widths={"a": 3})
    assert wide_input.input_index.tolist() == [0, 1, 2]


def test_empty_edge_sets_are_refused():
    with pytest.raises(PriorGraphError, match="at least one edge"):
        PriorGraph.from_edges([], nodes=["a"])


def test_subgraph(wide):
    part = wide.subgraph(["o", "h", "c"])
    assert part.edges == (("c", "h"), ("h", "h"), ("h", "o"))
    assert part.widths == {"h": 2, "o": 3}
    assert part.sign.tolist() == [1, 0, -1]
    assert part == PriorGraph.from_edges(
        [("c", "h"), ("h", "h"), ("h", "o")], sign=[1, 0, -1], widths={"h": 2, "o": 3}
    )
    alone = wide.subgraph(iter(["a", "h", "o", "b"])).subgraph(["h", "a", "o"])
    assert alone.nodes == ("a", "h", "o")
    isolated = PriorGraph.from_edges([("a", "b"), ("c", "d")], weight=[1, 2]).subgraph(["a", "b", "c"])
    assert isolated.nodes == ("a", "b", "c")
    assert isolated.weight is None
    assert isolated.to_dict()["nodes"] == ["c"]
    with pytest.raises(PriorGraphError, match=r"'H' \(differs only in case from 'h'\)"):
        wide.subgraph(["H"])
    with pytest.raises(PriorGraphError, match="at least one edge"):
        wide.subgraph(["a", "b"])
    with pytest.raises(PriorGraphError, match="Put a single name in a list"):
        wide.subgraph("a")


def test_reverse():
    graph = PriorGraph.from_edges(
        [("a", "c"), ("a", "b"), ("c", "b")], sign=[1, -1, 0], weight=[2, 3, 5], widths={"c": 2}, nodes=["z"]
    )
    back = graph.reverse()
    assert back == PriorGraph.from_edges(
        [("c", "a"), ("b", "a"), ("b", "c")], sign=[1, -1, 0], weight=[2, 3, 5], widths={"c": 2}, nodes=["z"]
    )
    assert back.reverse() == graph
    assert torch.equal(back.to_mask(), graph.to_mask().T)


def test_to_undirected():
    graph = PriorGraph.from_edges(
        [("a", "c"), ("c", "a"), ("a", "b"), ("c", "c"), ("d", "a")],
        sign=[1, -1, -1, 1, 0],
        weight=[2, 3, 5, 7, 11],
        widths={"c": 2},
        nodes=["z"],
    )
    both = graph.to_undirected()
    assert both == PriorGraph.from_edges(
        [("a", "c"), ("c", "a"), ("a", "b"), ("b", "a"), ("c", "c"), ("d", "a"), ("a", "d")],
        sign=[1, -1, -1, -1, 1, 0, 0],
        weight=[2, 3, 5, 5, 7, 11, 11],
        widths={"c": 2},
        nodes=["z"],
    )
    assert both.nodes == graph.nodes
    assert torch.equal(both.to_mask(), graph.to_mask().maximum(graph.to_mask().T))
    assert both.to_undirected() == both
    assert graph.to_undirected().fingerprint != graph.fingerprint
    with pytest.raises(PriorGraphError, match=r"one set of nodes\. Got a bipartite graph, whose 1 targets"):
        PriorGraph.bipartite([("a", "p"), ("b", "p")]).to_undirected()


def test_repr_is_short(wide):
    text = repr(wide)
    assert len(text) < 120
    assert "nodes=5" in text
    assert "units=8" in text
    assert "units" not in repr(PriorGraph.from_edges(PAIRS))  # as many as nodes
    assert "units" not in repr(PriorGraph.from_edges([(i, i + 1) for i in range(999)]))
    assert "edges=5" in text
    assert wide.fingerprint[:12] in text


# --- bipartite ------------------------------------------------------------------------------------


@pytest.fixture
def sides() -> PriorGraph:
    # "x" stands on both sides, "s" and "q" have no edge
    return PriorGraph.bipartite(
        [("y", "x"), ("x", "p"), ("y", "p")],
        sources=["x", "y", "s"],
        targets=["p", "x", "q"],
        widths={"x": 2, "p": 3},
        sign=[1, -1, 0],
        weight=[1, 2, 3],
    )


def test_bipartite_by_hand(sides):
    assert sides.is_bipartite
    assert sides.source_nodes == ("s", "x", "y")
    assert sides.target_nodes == ("p", "q", "x")
    assert sides.nodes == sides.source_nodes + sides.target_nodes
    assert sides.node_widths == (1, 2, 1, 3, 1, 2)
    assert (sides.num_sources, sides.num_targets, sides.state_dim) == (4, 6, 10)
    assert sides.edges == (("x", "p"), ("y", "p"), ("y", "x"))
    assert sides.edge_index.tolist() == [[1, 2, 2], [0, 0, 2]]
    assert sides.source_index.tolist() == [1, 2, 1, 2, 1, 2, 3, 3, 3, 3, 3]
    assert sides.target_index.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2, 4, 5]
    assert sides.sign.tolist() == [-1, 0, 1]
    assert sides.weight.tolist() == [2, 3, 1]
    assert sides.to_mask().shape == (6, 4)
    assert sides.to_mask()[0].tolist() == [0, 1, 1, 1]
    assert sides.input_nodes == sides.source_nodes
    assert sides.output_nodes == sides.target_nodes
    assert sides.hidden_nodes == ()
    assert sides.input_index.tolist() == [0, 1, 2, 3]
    assert sides.output_index.tolist() == [0, 1, 2, 3, 4, 5]
    assert sides.edge_location("y", "x") == (9, 10)


def test_bipartite_lookups_need_an_unambiguous_side(sides):
    assert sides.node_units("y") == slice(3, 4)
    assert sides.node_units("p") == slice(0, 3)
    assert sides.node_units("x", side="source") == slice(1, 3)
    assert sides.node_units("x", side="target") == slice(4, 6)
    with pytest.raises(PriorGraphError, match="both sides"):
        sides.node_units("x")
    with pytest.raises(PriorGraphError, match="source side"):
        sides.node_units("p", side="source")
    with pytest.raises(PriorGraphError, match="'nope'"):
        sides.node_units("nope")
    with pytest.raises(PriorGraphError, match="target side"):
        sides.edge_location("x", "y")


def test_bipartite_derived_graphs_and_round_trips(sides):
    assert PriorGraph.from_dict(sides.to_dict()) == sides
    assert sides.to_dict()["layout"] == "bipartite"
    assert sides.to_dict()["sources"] == ["s"]
    assert sides.to_dict()["targets"] == ["q"]
    assert pickle.loads(pickle.dumps(sides)) == sides
    assert "sources=3, targets=3" in repr(sides)
    back = sides.reverse()
    assert back.source_nodes == sides.target_nodes
    assert torch.equal(back.to_mask(), sides.to_mask().T)
    assert back.reverse() == sides
    part = sides.subgraph(["x", "y"])
    assert part.source_nodes == ("x", "y")
    assert part.target_nodes == ("x",)
    assert part.edges == (("y", "x"),)


def test_bipartite_is_not_the_plain_graph_of_the_same_edges():
    plain = PriorGraph.from_edges([("a", "b")])
    split = PriorGraph.bipartite([("a", "b")])
    assert plain != split
    assert plain.fingerprint != split.fingerprint
    # the same four tokens, divided in two ways
    one = PriorGraph.bipartite([("a", "d")], sources=["a", "b"], targets=["c", "d"])
    other = PriorGraph.bipartite([("a", "d")], sources=["a"], targets=["b", "c", "d"])
    assert one.nodes == other.nodes
    assert one != other
    assert one.fingerprint != other.fingerprint


def test_bipartite_sides_must_cover_the_edges():
    with pytest.raises(PriorGraphError, match=r"'sources' must list.*'A' \(differs only in case from 'a'\)"):
        PriorGraph.bipartite([("A", "b")], sources=["a"])
    with pytest.raises(PriorGraphError, match="'targets' must list"):
        PriorGraph.bipartite([("a", "b")], targets=["c"])


def test_bipartite_from_a_frame():
    import pandas as pd

    frame = pd.DataFrame({"source": ["g2", "g1"], "target": ["p", "p"], "effect": ["-", "+"]})
    graph = PriorGraph.bipartite(frame, sign="effect")
    assert graph.edges == (("g1", "p"), ("g2", "p"))
    assert graph.sign.tolist() == [1, -1]


# --- scale and import cost ------------------------------------------------------------------------


def test_import_is_light():
    code = (
        "import sys, pyg_kpnn, pyg_kpnn.prior\n"
        "print([m for m in ('pandas', 'networkx', 'torch_geometric') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # torch may bring networkx along by itself; what it brings is not ours
    torch_only = subprocess.run(
        [sys.executable, "-c", code.replace("pyg_kpnn, pyg_kpnn.prior", "torch")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == torch_only.stdout


@pytest.mark.slow
def test_a_million_edges_build_in_seconds():
    draw = np.random.default_rng(0)
    flat = draw.choice(20_000 * 20_000, size=1_000_000, replace=False)
    pairs = np.stack(np.divmod(flat, 20_000), axis=1)
    begin = time.perf_counter()
    graph = PriorGraph.from_edges(pairs)
    frame = graph.to_edgelist()
    again = PriorGraph.from_pandas(frame.sample(frac=1, random_state=1))
    _ = graph.source_index, graph.target_index, graph.edge_index, graph.pair_edge
    assert time.perf_counter() - begin < 10
    assert graph.num_edges == graph.nnz == 1_000_000
    assert again == graph
    assert again.fingerprint == graph.fingerprint


@pytest.mark.parametrize(
    ("node", "asked", "shown"),
    [
        ("\u00e9clair", "e\u0301clair", r"'\\xe9clair'"),
        ("e\u0301clair", "\u00c9clair", r"'e\\u0301clair'"),
        ("TP53\u200b", "TP53", r"'TP53\\u200b'"),
        ("TP53 ", "TP53", "'TP53 '"),
        ("TP53", "\ufeffTP53", "'TP53'"),
    ],
)
def test_names_that_look_alike_are_two_and_hinted_at(node, asked, shown):
    assert PriorGraph.from_edges([(node, asked)]).num_nodes == 2
    graph = PriorGraph.from_edges([(node, "other")])
    with pytest.raises(PriorGraphError, match=rf"differs only in blanks.* from {shown}"):
        graph.node_units(asked)
