"""Payloads of a graph and GraphML files, damaged or made by somebody else."""

from __future__ import annotations

import time

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_kpnn import PriorGraph, PriorGraphError

odd_value = st.sampled_from(
    [
        *(
            None,
            True,
            0,
            1,
            -1,
            2,
            1.0,
            float("nan"),
            10**400,
            "",
            "a",
            "adjacency",
            "bipartite",
            [],
            {},
            [[]],
            {"a": 1},
        ),
        *(
            ["a"],
            ["z"],
            [1],
            [1, -1],
            [1, -1, 0],
            [1, -1, 0, 1],
            [2, 1, 0.5],
            [0, 0, float("inf")],
            [True] * 3,
        ),
        *(
            {"b": 2},
            {"b": 0},
            {"b": 2**40},
            {"z": 2},
            {1: 2},
            [["a", "b"]],
            [["a", "b"], ["a", "b"]],
            [["a", "\ud800"]],
        ),
        *(
            [["b", "a"], ["b", "c"], ["d", "b"]],
            [["a", "b", "c"]],
            [["a", 1]],
            [["a", " "]],
            [("b", "c"), ("a", "b")],
        ),
    ]
)
key = st.sampled_from(
    ["kpnn2_spec", "layout", "edges", "widths", "signs", "weights", "nodes", "sources", "targets"]
)


@settings(max_examples=150, deadline=None)
@given(
    damage=st.dictionaries(key, odd_value, max_size=2),
    lost=st.sets(key, max_size=1),
    sides=st.booleans(),
)
def test_a_damaged_payload_is_another_graph_or_refused(damage, lost, sides):
    build = PriorGraph.bipartite if sides else PriorGraph.from_edges
    graph = build([("a", "b"), ("b", "c"), ("d", "b")], sign=[1, -1, 0], weight=[1, 2, 0.5], widths={"b": 2})
    payload = {**graph.to_dict(), **damage}
    for name in lost:
        payload.pop(name, None)
    try:
        again = PriorGraph.from_dict(payload)
    except PriorGraphError:
        return
    known = {"kpnn2_spec", "layout", "edges", "widths", "signs", "weights"}
    known |= {"sources", "targets"} if sides else {"nodes"}
    changed = any(payload.get(name) != graph.to_dict().get(name) for name in known)
    assert (again == graph) == (again.fingerprint == graph.fingerprint)
    assert again == graph or changed
    assert payload["layout"] == ("bipartite" if again.is_bipartite else "adjacency")
    assert type(payload["kpnn2_spec"]) is int
    assert sorted(again.edges) == sorted(map(tuple, payload["edges"]))


def test_text_that_utf_8_cannot_hold_is_never_taken_for_its_escape():
    for pairs in ([("'\\ud800'", "b"), ("\ud800", "c")], [("\ud800", "c"), ("'\\ud800'", "b")]):
        with pytest.raises(PriorGraphError, match="lone surrogate"):
            PriorGraph.from_edges(pairs)
    assert PriorGraph.from_edges([("'\\ud800'", "b"), ("é", "c")]).num_nodes == 4


def test_graphml_is_read_by_networkx_alone(tmp_path):
    """An entity that grows without end is the XML parser's to refuse; what it gives us is a graph."""
    bomb = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(9))
    text = f'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY e0 "{"x" * 100}">{bomb}]><graphml>&e9;</graphml>'
    path = tmp_path / "bomb.graphml"
    path.write_text(text)
    begun = time.process_time()
    with pytest.raises(Exception, match="amplification"):
        nx.read_graphml(path)
    assert time.process_time() - begun < 5
    graph = nx.DiGraph([("a&b", "<c>", {"sign": "-"})])
    nx.write_graphml(graph, path)
    again = PriorGraph.from_networkx(nx.read_graphml(path), sign="sign")
    assert again.edges == (("a&b", "<c>"),)
    assert again.sign.tolist() == [-1]
