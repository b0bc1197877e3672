"""Tables of edges in other tools' formats, and back."""

from __future__ import annotations

import json
import os
import sys

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import edge_weights, export_edges, to_networkx

NASTY = [
    "=cmd|' /C calc'!A0",
    "+1-2",
    "-2+3",
    "@SUM(A1)",
    'quo"te',
    "com,ma",
    "tab\tbed",
    "two\nlines",
    "Ω <&>",
]
GRAPH = PriorGraph.from_edges([(name, "gene") for name in NASTY], nodes=["alone"])
WEIGHTS = np.linspace(0.1, 0.9, 9)


def table(**columns):
    frame = edge_weights(
        PriorTransformer(GRAPH, embed_dim=4, num_heads=2, num_layers=1, add_self_loops=False),
        torch.zeros(1, len(GRAPH.nodes)),
        heads="mean",
    )[["source", "target"]]
    return frame.assign(weight=WEIGHTS, **columns)


def edges_of(graph):
    return {(source, target): data["weight"] for source, target, data in graph.edges(data=True)}


EXPECTED = {(s, t): w for (s, t), w in zip(GRAPH.edges, WEIGHTS.tolist(), strict=True)}


@pytest.mark.parametrize("given", [table(), WEIGHTS, torch.tensor(WEIGHTS)], ids=["frame", "array", "tensor"])
def test_networkx_has_every_edge_and_node(given):
    out = to_networkx(given, GRAPH)
    assert type(out) is nx.DiGraph
    assert list(out.nodes) == list(GRAPH.nodes)
    assert edges_of(out) == EXPECTED
    assert all(type(data["weight"]) is float for _, _, data in out.edges(data=True))


def test_without_a_graph_the_nodes_are_those_of_the_edges():
    assert set(to_networkx(table()).nodes) == {*NASTY, "gene"}


def test_several_rows_of_a_pair_are_several_edges():
    model = PriorTransformer(PriorGraph.from_edges([("a", "b")]), embed_dim=4, num_heads=2, num_layers=2)
    frame = edge_weights(model, torch.randn(3, 2), groupby=list("pqp"))
    out = to_networkx(frame)
    assert type(out) is nx.MultiDiGraph
    assert out.number_of_edges() == len(frame) == 2 * 2 * 2 * 3
    rows = frame[(frame.source == "a") & (frame.target == "b")]
    assert sorted(d["weight"] for d in out["a"]["b"].values()) == sorted(rows.weight)
    assert not any("std" in d for *_, d in out.edges(data=True) if d["group"] == "q")  # NaN of one sample
    assert all("std" in d for *_, d in out.edges(data=True) if d["group"] == "p")


def test_columns_of_any_name_are_attributes():
    frame = table(key=list("abcdefghi"), u_of_edge=range(9), layer=pd.array([1] * 8 + [pd.NA], dtype="Int64"))
    data = to_networkx(frame).edges[GRAPH.edges[0]]
    assert data == {"weight": WEIGHTS[0], "key": "a", "u_of_edge": 0, "layer": 1}
    assert "layer" not in to_networkx(frame).edges[GRAPH.edges[8]]


def read(path):
    if path.suffix == ".graphml":
        return edges_of(nx.read_graphml(path))
    if path.suffix in (".cyjs", ".json"):
        return edges_of(nx.cytoscape_graph(json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
    else:
        frame = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", float_precision="round_trip")
    return {(s, t): w for s, t, w in frame[["source", "target", "weight"]].itertuples(index=False)}


@pytest.mark.parametrize("name", ["e.graphml", "e.cyjs", "e.json", "e.csv", "e.tsv", "E.PARQUET"])
def test_every_format_comes_back(name, tmp_path):
    if name == "E.PARQUET":
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_text("old")
    export_edges(table(layer=0, kind="x"), path)
    place = path if name != "E.PARQUET" else path.rename(tmp_path / "e.parquet")
    assert read(place) == EXPECTED
    assert [p.name for p in tmp_path.iterdir()] == [place.name]
    if os.name == "posix":
        mask = os.umask(0)
        os.umask(mask)
        assert place.stat().st_mode & 0o777 == 0o666 & ~mask


def test_isolated_nodes_are_in_graphs(tmp_path):
    export_edges(WEIGHTS, tmp_path / "e.graphml", GRAPH)
    assert "alone" in nx.read_graphml(tmp_path / "e.graphml")
    export_edges(WEIGHTS, tmp_path / "e.cyjs", GRAPH)
    elements = json.loads((tmp_path / "e.cyjs").read_text(encoding="utf-8"))["elements"]
    assert {node["data"]["name"] for node in elements["nodes"]} == set(GRAPH.nodes)
    assert {edge["data"]["source"] for edge in elements["edges"]} == set(NASTY)


def test_json_holds_no_numbers_that_are_none(tmp_path):
    export_edges(table(std=np.nan, far=np.inf), tmp_path / "e.cyjs")
    text = (tmp_path / "e.cyjs").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.parametrize("name", ["e.graphml", "e.cyjs", "e.csv"])
def test_a_failure_leaves_the_old_file_and_nothing_else(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("old")

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        export_edges(table(), path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install \"pyg_kpnn\[parquet\]\""):
        export_edges(table(), tmp_path / "e.parquet")
    assert list(tmp_path.iterdir()) == []


OK = pd.DataFrame({"source": ["a"], "target": ["b"]})


@pytest.mark.parametrize(
    ("given", "graph", "message"),
    [
        (OK.drop(columns="target"), None, "one column 'target', got source"),
        (OK[["source", "target", "source"]], None, "one column 'source', got source, target, source"),
        (OK.assign(source=[None]), None, "Names must be text, got None as source in row 0"),
        (OK.assign(target=[3]), None, "Names must be text, got 3 as target in row 0"),
        (OK, GRAPH, "Names must be in the graph, got 'a'"),
        (OK.assign(source="GENE"), GRAPH, "differs only in case from 'gene'"),
        (WEIGHTS, None, "need a graph beside them"),
        (WEIGHTS[:3], GRAPH, r"need shape \(9,\), got shape \(3,\)"),
        ([("a", "b")], None, "table must be a DataFrame .* got list"),
        (OK, OK, "graph must be a PriorGraph, got DataFrame"),
    ],
)
def test_refused(given, graph, message):
    with pytest.raises(PriorGraphError, match=message):
        to_networkx(given, graph)


def test_refused_paths_and_names(tmp_path):
    with pytest.raises(PriorGraphError, match=r"suffix of path must be one of \.graphml"):
        export_edges(OK, tmp_path / "e.xlsx")
    with pytest.raises(PriorGraphError, match="GraphML cannot hold control characters"):
        export_edges(OK.assign(source="a\x00b"), tmp_path / "e.graphml")
    assert list(tmp_path.iterdir()) == []
