"""restrict_to and rename: new graphs that keep what belongs to an edge with it."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges(
        [("a", "b"), ("c", "b"), ("c", "d"), ("d", "d"), ("e", "c")],
        sign=[1, -1, 1, -1, 0],
        weight=[0.1, 0.2, 0.3, 0.4, 0.5],
        widths={"b": 2, "e": 3},
        nodes=["lone"],
    )


def facts(graph):
    """Everything an edge carries, by name."""
    signs = [None] * graph.num_edges if graph.sign is None else graph.sign.tolist()
    weights = [None] * graph.num_edges if graph.weight is None else graph.weight.tolist()
    return {edge: (s, w) for edge, s, w in zip(graph.edges, signs, weights, strict=True)}


def test_what_is_kept(graph):
    part = graph.restrict_to(["x", "d", "c", "b", "lone", "e"])
    assert part.nodes == ("b", "c", "d", "e", "lone")
    assert part.widths == {"b": 2, "e": 3}
    assert facts(part) == {
        ("c", "b"): (-1, 0.2),
        ("c", "d"): (1, 0.3),
        ("d", "d"): (-1, 0.4),
        ("e", "c"): (0, 0.5),
    }
    assert PriorGraph.from_dict(part.to_dict()) == part
    assert graph.restrict_to([*graph.nodes, "x"]) is graph


def test_isolated_nodes(graph):
    features = ["a", "d", "c", "lone", "e"]
    assert graph.restrict_to(features).nodes == ("a", "c", "d", "e", "lone")
    part = graph.restrict_to(features, isolated="drop")
    assert part.nodes == ("c", "d", "e")
    assert part.edges == (("c", "d"), ("d", "d"), ("e", "c"))
    assert graph.restrict_to(["d", "a"], isolated="drop").nodes == ("d",)  # a loop is an edge
    assert graph.restrict_to(graph.nodes, isolated="drop").nodes == ("a", "b", "c", "d", "e")


def test_only_some_nodes_want_a_feature():
    graph = PriorGraph.from_edges([("p1", "path"), ("p2", "path"), ("path", "root")])
    assert graph.restrict_to(["p2"], nodes=graph.input_nodes).nodes == ("p2", "path", "root")


def test_bipartite_restricts_the_source_side():
    graph = PriorGraph.bipartite([("x", "x"), ("y", "set"), ("z", "set")], weight=[1.0, 2.0, 3.0])
    part = graph.restrict_to(["z", "y"])
    assert (part.source_nodes, part.target_nodes) == (("y", "z"), ("set", "x"))
    assert facts(part) == {("y", "set"): (None, 2.0), ("z", "set"): (None, 3.0)}
    part = graph.restrict_to(["z", "y"], isolated="drop")
    assert (part.source_nodes, part.target_nodes) == (("y", "z"), ("set",))
    part = graph.restrict_to(["x"], isolated="drop")
    assert (part.source_nodes, part.target_nodes) == (("x",), ("x",))


def test_restrict_agrees_with_networkx():
    net = nx.gnp_random_graph(80, 0.04, seed=3, directed=True)
    graph = PriorGraph.from_networkx(net)
    there = [str(i) for i in np.random.default_rng(0).permutation(80)[:60]]
    left = net.subgraph([n for n in net if str(n) in there])
    part = graph.restrict_to(pd.DataFrame(columns=there))
    assert set(part.edges) == {(str(s), str(t)) for s, t in left.edges}
    assert set(part.nodes) == {str(n) for n in left}
    dropped = graph.restrict_to(there, isolated="drop")
    assert set(dropped.nodes) == {str(n) for n in left if left.degree(n)}
    assert dropped.edges == part.edges


@pytest.mark.parametrize(
    ("features", "more", "words"),
    [
        (["A", "B"], {}, r"(?s)at least one edge.*'a' \(case: 'A'\)"),
        ([], {}, "at least one edge"),
        (["a", "c"], {}, "at least one edge"),
        (["a", "b"], {"isolated": "no"}, "'isolated' must be 'keep' or 'drop'"),
        (["a", "a"], {}, "name of its own"),
        ("ab", {}, "must be a sequence"),
        (["a", "b"], {"nodes": ["z"]}, "must be nodes of the graph"),
    ],
)
def test_restrict_refuses(graph, features, more, words):
    with pytest.raises(PriorGraphError, match=words):
        graph.restrict_to(features, **more)


def test_rename_keeps_what_belongs_to_a_name(graph):
    new = {"a": "z", "b": "B2", "d": "0", "lone": "alone"}
    out = graph.rename(new)
    assert out.nodes == ("0", "B2", "alone", "c", "e", "z")
    assert out.widths == {"B2": 2, "e": 3}
    assert facts(out) == {(new.get(s, s), new.get(t, t)): carried for (s, t), carried in facts(graph).items()}
    assert list(out.edges) == sorted(out.edges)
    assert PriorGraph.from_dict(out.to_dict()) == out
    assert out.rename({v: k for k, v in new.items()}) == graph
    assert graph.rename({}) == graph
    assert graph.rename({"a": "b", "b": "a"}).widths == {"a": 2, "e": 3}  # a swap is no clash
    assert graph.rename(str.upper).nodes == ("A", "B", "C", "D", "E", "LONE")
    assert graph.rename({"a": 7}).nodes[0] == "7"


def test_rename_of_both_sides():
    graph = PriorGraph.bipartite([("x", "x"), ("y", "m")], sign=[1, -1], widths={"y": 2})
    out = graph.rename({"x": "zz", "m": "q"})
    assert (out.source_nodes, out.target_nodes) == (("y", "zz"), ("q", "zz"))
    assert facts(out) == {("zz", "zz"): (1, None), ("y", "q"): (-1, None)}
    assert out.widths == {"y": 2}
    # two sides may share a name
    one = PriorGraph.bipartite([("x", "x"), ("y", "m")])
    assert one.rename({"y": "m"}).source_nodes == ("m", "x")
    wide = PriorGraph.bipartite([("x", "p"), ("y", "q")], widths={"x": 2, "y": 3, "p": 5, "q": 7})
    assert wide.rename({"x": "zz", "p": "z"}).widths == {"zz": 2, "y": 3, "z": 5, "q": 7}
    with pytest.raises(PriorGraphError, match=r"one width\. Got 2 and 5 for 'z'"):
        wide.rename({"p": "z", "x": "z"})


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"a": "c"}, "names of their own. Got 'a' and 'c', both named 'c'"),
        ({"a": "n", "c": "n"}, "'a' and 'c', both named 'n'"),
        (lambda name: "same", "Got 'a' and 'b', both named 'same', 'a' and 'c'"),
        ({"A": "x"}, "differs only in case from 'a'"),
        ({"a": ""}, "missing or empty. Got '' for node 'a'"),
        ({"a": None}, "Got None for node 'a'"),
        ({"a": float("nan")}, "Got nan for node 'a'"),
        ({"a": b"x"}, "Decode"),
        ({"a": "\ud800"}, "valid Unicode"),
        ([("a", "b")], "must be a mapping"),
        ("a", "must be a mapping"),
        (None, "must be a mapping"),
    ],
)
def test_rename_refuses(graph, mapping, words):
    with pytest.raises(PriorGraphError, match=words):
        graph.rename(mapping)


def test_clashing_keys_of_a_mapping():
    graph = PriorGraph.from_edges([(1, 2)])
    with pytest.raises(PriorGraphError, match=r"name each node once\. Got '1' twice"):
        graph.rename({1: "a", "1": "b"})
