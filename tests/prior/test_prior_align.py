"""align_inputs: columns by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, align_inputs


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges([("Gata1", "c"), ("a", "c")], widths={"c": 3})


def test_names_give_an_index(graph):
    index = align_inputs(["c", "age", "Gata1", "a"], graph)
    assert graph.nodes == ("Gata1", "a", "c")
    assert index.dtype == torch.int64
    assert index.tolist() == [2, 3, 0]
    x = torch.arange(8.0).reshape(2, 4)
    assert x[:, index].tolist() == [[2, 3, 0], [6, 7, 4]]
    assert x.numpy()[:, index.numpy()].tolist() == [[2, 3, 0], [6, 7, 4]]
    assert align_inputs(np.array(["c", "Gata1", "a"]), graph).tolist() == [1, 2, 0]
    assert align_inputs(pd.Index(["c", "Gata1", "a"]), graph).tolist() == [1, 2, 0]
    assert align_inputs(["a", "c", "Gata1"], graph, nodes=graph.input_nodes).tolist() == [2, 0]


def test_frame_gives_a_frame(graph):
    table = pd.DataFrame(
        {"c": [1.0, 2], "age": [30, 40], "a": [3.0, 4], "Gata1": [5.0, 6]}, index=["s1", "s2"]
    )
    before = table.copy()
    out = align_inputs(table, graph)
    assert list(out.columns) == ["Gata1", "a", "c"]
    assert list(out.index) == ["s1", "s2"]
    assert out.to_numpy().tolist() == [[5, 3, 1], [6, 4, 2]]
    out.loc["s1", "a"] = -1.0
    pd.testing.assert_frame_equal(table, before)


def test_integer_labels_match_as_text():
    graph = PriorGraph.from_edges([(10, 2)])
    table = pd.DataFrame([[1, 2, 3]], columns=[2, 5, 10])
    assert align_inputs(table, graph).to_numpy().tolist() == [[3, 1]]


def test_bipartite_aligns_the_source_side():
    graph = PriorGraph.bipartite([("g2", "p"), ("g1", "p")])
    assert align_inputs(["p", "g2", "g1"], graph).tolist() == [2, 1]
    assert align_inputs(["p", "g2", "g1"], graph, nodes=graph.target_nodes).tolist() == [0]


@pytest.mark.parametrize(
    ("names", "more", "words"),
    [
        (["c", "a"], {}, "no column for 1 of 3 nodes: 'Gata1'"),
        (["c", "a", "GATA1"], {}, r"'Gata1' \(differs only in case from 'GATA1'\)"),
        (["c", "a", "Gata.1"], {}, r"'Gata1' \(did you mean 'Gata.1'\?\)"),
        (["c", "a", "Gata1", "a"], {}, "'a' at column 1 and 'a' at column 3"),
        (["c", "a", "Gata1", "age"], {"extra": "error"}, "Got 'age'"),
        (["c", "a", "Gata1"], {"extra": "warn"}, "Got 'warn'"),
        (["c", "a", "Gata1"], {"nodes": ["gata1"]}, "differs only in case from 'Gata1'"),
        ("c", {}, "sequence of column names"),
        (
            ["c", "a", "Gata1"],
            {"extra": np.array(["error", "ignore"])},
            "'extra' must be 'ignore' or 'error'",
        ),
        (["c", "a", "Gata1"], {"nodes": ["a", "c", "a"]}, "each node once. Got 'a' more than once"),
        (["c", "a", "Gata1"], {"nodes": {"a", "c"}}, "'nodes' must be in order. Got a set"),
        (["c", "a", "Gata1"], {"nodes": "a"}, "'nodes' must be a sequence of node names. Got 'a'"),
        ({"c", "a", "Gata1"}, {}, "'table' must be in order. Got a set"),
        (frozenset("ca"), {}, "'table' must be in order. Got a frozenset"),
        (["c", "a", "Gata1\u200b"], {}, r"'Gata1' \(differs only in blanks.* from 'Gata1\\u200b'\)"),
        (["c", "a", "\xa0gata1 "], {}, r"'Gata1' \(differs only in blanks.* from '\\xa0gata1 '\)"),
        (["c", None], {}, "position 1"),
    ],
)
def test_refuses(graph, names, more, words):
    with pytest.raises(PriorGraphError, match=words):
        align_inputs(names, graph, **more)


def test_the_graph_must_be_one():
    with pytest.raises(PriorGraphError, match="Got list"):
        align_inputs(["a"], [("a", "b")])


def test_labels_equal_as_text_are_duplicates():
    graph = PriorGraph.from_edges([(1, 2)])
    with pytest.raises(PriorGraphError, match="1 at column 0 and '1' at column 2"):
        align_inputs([1, 2, "1"], graph)


@pytest.mark.parametrize("table", [np.zeros((3, 2)), torch.zeros(3, 2)])
def test_a_table_without_names_is_asked_for_them(graph, table):
    with pytest.raises(PriorGraphError, match=r"of shape \(3, 2\). Pass its column names.") as raised:
        align_inputs(table, graph)
    assert "0." not in str(raised.value)


def test_genes_in_rows(graph):
    table = pd.DataFrame({"s1": [1.0, 2, 3], "s2": [4.0, 5, 6]}, index=["a", "c", "Gata1"])
    with pytest.raises(PriorGraphError, match=r"3 of them are in the index: pass table\.T"):
        align_inputs(table, graph)
    assert align_inputs(table.T, graph).to_numpy().tolist() == [[3, 1, 2], [6, 4, 5]]
    with pytest.raises(PriorGraphError, match="Rename the columns"):
        align_inputs(table.rename(index=str.upper).drop("GATA1").rename(index=str.title), graph)


def test_a_missing_label_is_no_name():
    graph = PriorGraph.from_edges([("nan", "b")])
    table = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["b", np.nan, np.nan])
    with pytest.raises(PriorGraphError, match="no column for 1 of 2 nodes: 'nan'"):
        align_inputs(table, graph)
    assert align_inputs(table, graph, nodes=["b"]).to_numpy().tolist() == [[1]]
    with pytest.raises(PriorGraphError, match="must name a node"):
        align_inputs(table, graph, nodes=["b"], extra="error")
