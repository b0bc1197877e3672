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
        ("c", {}, "sequence of node names"),
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
