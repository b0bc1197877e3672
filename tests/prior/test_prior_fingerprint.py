"""to_dict, from_dict and the fingerprint, alone and beside kpnn2."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, parse_adjacency

EDGES = [("b", "c"), ("a", "c"), ("c", "c"), ("c", "é")]


def test_payload_and_digest_by_hand():
    graph = PriorGraph.from_edges(EDGES, widths={"c": 2})
    payload = graph.to_dict()
    assert payload == {
        "kpnn2_spec": 1,
        "layout": "adjacency",
        "edges": [["a", "c"], ["b", "c"], ["c", "c"], ["c", "é"]],
        "widths": {"c": 2},
    }
    text = (
        '{"edges":[["a","c"],["b","c"],["c","c"],["c","é"]],"kpnn2_spec":1,"layout":"adjacency",'
        '"widths":{"c":2}}'
    )
    assert graph.fingerprint == hashlib.sha256(text.encode()).hexdigest()


def test_optional_keys_appear_only_when_there_is_something():
    graph = PriorGraph.from_edges(EDGES, sign=[1, -1, 0, 0], weight=[1, 0.1, 1, 2], nodes=["z", "a", "y"])
    payload = graph.to_dict()
    assert payload["signs"] == [-1, 1, 0, 0]
    assert payload["weights"] == [0.1, 1.0, 1.0, 2.0]
    assert payload["nodes"] == ["y", "z"]
    assert all(type(sign) is int for sign in payload["signs"])
    assert set(PriorGraph.from_edges(EDGES).to_dict()) == {"kpnn2_spec", "layout", "edges"}


def test_round_trip_through_json():
    graph = PriorGraph.from_edges(
        EDGES, sign=[1, -1, 0, 0], weight=[1, 0.1, 1e-300, 2], nodes=["z"], widths={"c": 2, "z": 3}
    )
    again = PriorGraph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again == graph
    assert again.fingerprint == graph.fingerprint
    assert again.to_dict() == graph.to_dict()


def test_from_dict_is_lenient_where_it_is_harmless():
    graph = PriorGraph.from_edges(EDGES, sign=[1, -1, 0, 0])
    payload = graph.to_dict()
    payload["edges"] = tuple(tuple(pair) for pair in payload["edges"][::-1])
    payload["signs"] = payload["signs"][::-1]
    payload["made by"] = "someone"
    payload["widths"] = None
    assert PriorGraph.from_dict(payload) == graph


BASE = {"kpnn2_spec": 1, "layout": "adjacency", "edges": [["a", "b"]]}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ([], "must be a mapping"),
        ({}, "must have the keys"),
        ({"kpnn2_spec": 1, "edges": [["a", "b"]]}, r"Got the keys \['kpnn2_spec', 'edges'\]"),
        ({**BASE, "kpnn2_spec": 2}, "must be 1. Got 2"),
        ({**BASE, "kpnn2_spec": True}, "Got True"),
        ({**BASE, "kpnn2_spec": 1.0}, "Got 1.0"),
        ({**BASE, "layout": "layered"}, "'layout'.*Got 'layered'"),
        ({**BASE, "layout": ["adjacency"]}, "'layout'"),
        ({**BASE, "edges": []}, "at least one edge"),
        ({**BASE, "edges": "ab"}, "'edges' of the payload must be a list"),
        ({**BASE, "edges": {"a": "b"}}, "must be a list"),
        ({**BASE, "edges": ["ab"]}, "edge 0 is not. Got 'ab'"),
        ({**BASE, "edges": [["a", "b"], ["a"]]}, "edge 1 is not"),
        ({**BASE, "edges": [["a", "b", "c"]]}, "edge 0 is not"),
        ({**BASE, "edges": [["a", 1]]}, r"two names \(str\)"),
        ({**BASE, "edges": [["a", "b"], ["a", "b"]]}, "listed once"),
        ({**BASE, "edges": [["a", ""]]}, "missing or empty"),
        ({**BASE, "widths": {"c": 2}}, "'c'"),
        ({**BASE, "widths": {"b": 0}}, "Got 0"),
        ({**BASE, "widths": [2]}, "must be a mapping"),
        ({**BASE, "signs": [1, 1]}, "Got 2 for 1 edges"),
        ({**BASE, "signs": ["+"]}, "entry 0 is not. Got '\\+'"),
        ({**BASE, "signs": [True]}, "entry 0 is not. Got True"),
        ({**BASE, "weights": ["1"]}, "must be numbers; entry 0"),
        ({**BASE, "weights": [float("nan")]}, "finite"),
        ({**BASE, "nodes": "c"}, "must be a list"),
        ({**BASE, "nodes": [3]}, "hold names"),
    ],
)
def test_bad_payloads(payload, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_dict(payload)


# --- beside kpnn2 ---------------------------------------------------------------------------------

GRAPHS = [
    ([("b", "h"), ("a", "h"), ("h", "h"), ("h", "o")], {"h": 2, "o": 3}),
    ([("b", "h"), ("a", "h"), ("h", "o")], None),
    ([("in 1", "Zß"), ("in 1", "é\"'"), ("Zß", "é\"'"), ("in 2", "\\n")], {"Zß": 5}),
    ([(10, 9), (2, 9), (9, 100), (100, 9), (9, 1)], {9: 7, 100: 3}),
]


@pytest.mark.parametrize(("pairs", "widths"), GRAPHS)
def test_agrees_with_kpnn2(pairs, widths):
    kpnn2 = pytest.importorskip("kpnn2")
    frame = pd.DataFrame(pairs, columns=["source", "target"])
    theirs = kpnn2.parse_adjacency(frame, widths=widths)
    ours = parse_adjacency(frame, widths=widths)
    assert ours.to_dict() == theirs.to_dict()
    assert ours.fingerprint == theirs.fingerprint
    assert ours.source_index.tolist() == list(theirs.source_index)
    assert ours.target_index.tolist() == list(theirs.target_index)
    assert ours.input_index.tolist() == list(theirs.input_index)
    assert ours.output_index.tolist() == list(theirs.output_index)
    assert ours.state_dim == theirs.state_dim
    for name in ("nodes", "node_widths", "input_nodes", "output_nodes", "hidden_nodes"):
        assert getattr(ours, name) == getattr(theirs, name)
    for s, t in ours.edges:
        assert ours.edge_location(s, t) == tuple(theirs.edge_location(s, t))
    for name in ours.nodes:
        assert ours.node_units(name) == theirs.node_units(name)
    assert (ours.to_mask() == theirs.to_mask()).all()
    assert (ours.to_edgelist().to_numpy() == theirs.to_edgelist().to_numpy()).all()
    # payloads cross over in both directions
    assert PriorGraph.from_dict(theirs.to_dict()) == ours
    assert kpnn2.AdjacencySpec.from_dict(ours.to_dict()) == theirs


def test_agrees_with_kpnn2_on_random_graphs():
    kpnn2 = pytest.importorskip("kpnn2")
    draw = np.random.default_rng(3)
    for trial in range(5):
        pairs = np.unique(draw.integers(0, 23, (61, 2)), axis=0)
        frame = pd.DataFrame(pairs, columns=["source", "target"]).astype(str)
        frame.loc[len(frame)] = ["first", frame["target"][0]]
        frame.loc[len(frame)] = [frame["target"][1], "last"]
        frame = frame.sample(frac=1, random_state=trial)
        widths = {"last": 3, frame["target"].iloc[0]: 2}
        theirs = kpnn2.parse_adjacency(frame, widths=widths)
        ours = parse_adjacency(frame, widths)
        assert ours.fingerprint == theirs.fingerprint
        assert ours.source_index.tolist() == list(theirs.source_index)
        assert ours.target_index.tolist() == list(theirs.target_index)
