"""from_frame: rows of a pandas table by name."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from pyg_kpnn.datasets import from_frame
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, match, read_edgelist

NAN = float("nan")
WANTED = np.array([[2, 1], [NAN, 3], [4, 5]], dtype=np.float32)  # columns a, b


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges([("b", "a")])


def frame(**more):
    columns = {"b": [1.0, 3.0, 5.0], "age": ["x", "y", "z"], "a": [2.0, NAN, 4.0], "kind": ["u", "v", "u"]}
    return pd.DataFrame({**columns, **more}, index=["s0", "s1", "s2"])


def same(x, wanted):
    np.testing.assert_array_equal(np.asarray(x), wanted)


def test_rows(graph):
    data = from_frame(frame(), graph, label="kind")
    x, y, mask = data.tensors()
    same(x, WANTED)
    same(mask, np.isnan(WANTED))
    assert (data.class_names, y.tolist()) == (("u", "v"), [0, 1, 0])
    assert data.report.extra == ("age",)  # the labels are no feature
    assert data.sample_names == ("s0", "s1", "s2")
    same(next(iter(DataLoader(data, batch_size=3))).x, WANTED)
    same(from_frame(frame(), graph)[1], WANTED[1])


@pytest.mark.parametrize(
    "column",
    [
        pd.array([2, None, 4], dtype="Int64"),
        pd.array([2, None, 4], dtype="Float32"),
        pd.Series([2, None, 4], dtype=object, index=["s0", "s1", "s2"]),
        pd.Series([2, pd.NA, 4.0], dtype=object, index=["s0", "s1", "s2"]),
        pd.arrays.SparseArray([2.0, NAN, 4.0]),
    ],
)
def test_missing_cells_of_every_kind(graph, column):
    same(from_frame(frame(a=column), graph).tensors()[0], WANTED)


def test_whole_numbers_and_truth_values(graph):
    x = from_frame(frame(a=[True, False, True], b=np.int8([1, 2, 3])), graph, dtype=torch.float64).tensors()[
        0
    ]
    assert x.dtype == torch.float64
    assert x.tolist() == [[1, 1], [0, 2], [1, 3]]


def test_genes_in_rows(graph):
    turned = frame()[["b", "a"]].T
    data = from_frame(turned, graph, {"s2": "q", "s1": "p", "s0": "p", "other": "r"}, genes_in_rows=True)
    same(data.tensors()[0], WANTED)
    assert data.labels.tolist() == [0, 0, 1]
    assert data.class_names == ("p", "q")
    same(from_frame(frame().T, graph, "kind", genes_in_rows=True).tensors()[0], WANTED)
    with pytest.raises(PriorGraphError, match=r"2 of 2 missing nodes in the index. Pass genes_in_rows=True"):
        from_frame(turned, graph)
    with pytest.raises(PriorGraphError, match=r"in the columns. Pass genes_in_rows=False"):
        from_frame(frame(), graph, genes_in_rows=True)


def test_labels_by_sample(graph):
    series = pd.Series(pd.Categorical(["lo", "hi", "lo"], ["hi", "none", "lo"]), index=["s2", "s0", "s1"])
    data = from_frame(frame(), graph, series)
    assert data.class_names == ("hi", "none", "lo")
    assert data.labels.tolist() == [0, 2, 2]
    with pytest.raises(PriorGraphError, match="1 of 3 samples: 's1'"):
        from_frame(frame(), graph, series.drop("s1"))
    data = from_frame(frame(), graph, series.drop("s1"), missing_labels="drop")
    assert (data.dropped, data.labels.tolist()) == (("s1",), [0, 2])
    same(data.tensors()[0], WANTED[[0, 2]])
    numbered = pd.Series([2, 1, 2], index=["s0", "s2", "s1"])
    assert from_frame(frame(), graph, numbered).labels.tolist() == [1, 1, 0]
    by_number = frame().reset_index(drop=True)
    assert from_frame(by_number, graph, {0: "a", 1: "b", 2: "a"}).labels.tolist() == [0, 1, 0]


def test_missing_nodes():
    graph = PriorGraph.from_edges([("b", "a"), ("A", "b")])
    with pytest.raises(PriorGraphError, match=r"nothing for 1 of 3 nodes: 'A'"):
        from_frame(frame(), graph)
    x, _, mask = from_frame(frame(), graph, missing="mask").tensors()
    assert mask[:, 0].all()
    same(x[:, 1:], WANTED)
    assert from_frame(frame(), graph, missing="restrict").graph.nodes == ("a", "b")


@pytest.mark.parametrize(
    ("make", "label", "more", "words"),
    [
        (dict, None, {}, "must be a pandas.DataFrame. Got dict"),
        (frame, None, {"genes_in_rows": "yes"}, "'genes_in_rows' must be True or False"),
        (lambda: frame(a=["1", "2", "x"]), None, {}, r"Got 'x' \(str\) in column 'a', row 's2'\."),
        (lambda: frame(a=["?", "2", "x"]), None, {}, r"Got '\?' .* row 's0', and 1 more in that"),
        (lambda: frame(a=["1", "2", "3"]), None, {}, r"Got '1' \(str\) in column 'a', row 's0'\."),
        (lambda: frame(a=[1.0, [2], 3]), None, {}, r"Got \[2\] \(list\) in column 'a', row 's1'"),
        (lambda: frame(a=[1j, 2, 3]), None, {}, "in column 'a'"),
        (lambda: frame(a=pd.to_datetime(["2020"] * 3)), None, {}, "must be numbers. Got Timestamp"),
        (lambda: pd.concat([frame(), frame()]), None, {}, "'s0' at rows 0 and 3"),
        (lambda: pd.concat([frame(), frame()], axis=1), None, {}, "'b' at column 0 and 'b' at column 4"),
        (lambda: frame().iloc[:0], None, {}, "at least one sample"),
        (frame, "Kind", {}, "differs only in case from 'kind'"),
        (frame, "a", {}, "'label' must not be a node of the graph"),
        (frame, ["u", "v", "u"], {}, r"Give a list an index"),
        (frame, pd.Series(["u"], index=["x"]), {}, "must be indexed by the names of the samples, as 's0'"),
        (frame, pd.Series(["u", "v"], index=["s0", "s0"]), {}, "each sample once. Got 's0' twice"),
        (lambda: frame(kind=["u", None, "v"]), "kind", {}, "1 of 3 samples: 's1'"),
        (lambda: frame(kind=["1", 1, "v"]), "kind", {}, "must stay distinct as text"),
        (frame, "kind", {"missing_labels": None}, "'missing_labels' must be"),
        (frame, None, {"max_loss": -1}, "'max_loss'"),
        (frame, None, {"dtype": "float32"}, "'dtype' must be"),
    ],
)
def test_refuses(graph, make, label, more, words):
    with pytest.raises(PriorGraphError, match=words):
        from_frame(make(), graph, label, **more)


def test_refuses_what_is_no_graph():
    with pytest.raises(PriorGraphError, match="'graph' must be a PriorGraph"):
        from_frame(frame(), "a", "kind")


def test_infinite_values_are_named(graph):
    data = from_frame(frame(a=[1.0, 1e300, 2.0]), graph)
    with pytest.raises(PriorGraphError, match="Got inf for sample 's1', node 'a'"):
        data.tensors()
    assert from_frame(frame(a=[1.0, 1e300, 2.0]), graph, dtype=torch.float64)[1][0] == 1e300


@pytest.mark.parametrize("name", ["HSC", "GSD", "mCAD", "THP1"])
def test_beeline(data_dir, name):
    folder = data_dir / "beeline" / name
    graph = read_edgelist(
        folder / "refNetwork.csv", source="Gene1", target="Gene2", sign="Type", on_duplicate="first"
    )
    table = pd.read_csv(folder / "ExpressionData.csv", index_col=0)
    data = from_frame(table, graph, genes_in_rows=True)
    assert len(data) == {"THP1": 960}.get(name, 2000)
    x, _, mask = data.tensors()
    assert not mask.any()
    for node in graph.nodes[:3]:
        same(x[:, graph.nodes.index(node)], table.loc[node].to_numpy(np.float32))


def test_proteins(data_dir):
    folder = data_dir / "binn_reactome"
    graph = read_edgelist(
        folder / "kpnn_format_Edgelist.csv", source="child", target="parent", on_duplicate="first"
    )
    table = pd.read_csv(folder / "sample_datamatrix.csv", index_col=0)
    groups = pd.read_csv(folder / "sample_design_matrix.tsv", sep="\t").set_index("sample")["group"]
    report = match(graph, table.T, nodes=graph.input_nodes)
    renames = report.renames()
    assert all(node == f"{protein}_gene" for node, protein in renames.items())
    graph = graph.rename(renames)
    assert "iRT_protein" in match(graph, table.T).extra
    data = from_frame(table, graph, groups, genes_in_rows=True, missing="mask")
    assert data.class_counts() == {"1": 74, "2": 123}
    proteins = [i for i, node in enumerate(graph.nodes) if node in table.index]
    x, _, mask = data.tensors()
    same(x[:, proteins], table.loc[[graph.nodes[i] for i in proteins]].T.to_numpy(np.float32))
    assert mask[:, proteins].float().mean().item() == pytest.approx(
        table.loc[list(renames.values())].isna().to_numpy().mean(), abs=1e-6
    )
    assert 0.3 < mask[:, proteins].float().mean() < 0.45
    assert mask[:, sorted(set(range(graph.num_nodes)) - set(proteins))].all()


def test_a_node_lost_to_its_spelling_is_told():
    graph = PriorGraph.from_edges([("b", "a"), ("b", "c"), ("c", "b")])
    table = frame(c=[1.0, 2.0, 3.0]).rename(columns={"a": "A "})
    with pytest.warns(UserWarning, match=r"1 of the 1 nodes .* as 'a' under 'A '. Rename them first"):
        data = from_frame(table, graph, missing="restrict")
    assert repr(data) == "AlignedDataset(3 samples, 2 of 3 nodes)"
    with pytest.warns(UserWarning, match="under another name"):
        from_frame(table, graph, missing="mask")
    renamed = graph.rename(data.report.renames())
    assert repr(from_frame(table, renamed)) == "AlignedDataset(3 samples, 3 nodes)"


def test_names_of_the_classes_of_samples(graph):
    data = from_frame(frame(kind=["v", "u", "v"]), graph, "kind")
    assert data.label_names == ("v", "u", "v")
    assert data[[1, 2]].label_names == ("u", "v")
    assert from_frame(frame(), graph).label_names == ()


def test_blank_labels_are_none(graph):
    table = frame(kind=["v", " ", "u"])
    with pytest.raises(PriorGraphError, match="1 of 3 samples: 's1'"):
        from_frame(table, graph, "kind")
    data = from_frame(table, graph, "kind", missing_labels="drop")
    assert (data.class_names, data.label_names, data.dropped) == (("u", "v"), ("v", "u"), ("s1",))


def test_doubtful_labels_are_told(graph):
    with pytest.warns(
        UserWarning, match="'Pos' and 'pos ' in column 'kind' are two classes, which look like"
    ):
        from_frame(frame(kind=["pos ", "neg", "Pos"]), graph, "kind")
    ages = pd.DataFrame({"a": range(60), "b": range(60), "age": [20 + i // 2 for i in range(60)]}, dtype=int)
    with pytest.warns(UserWarning, match="30 whole numbers for 60 samples in column 'age' are taken for"):
        from_frame(ages, graph, "age")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_frame(ages.assign(age=[i // 3 for i in range(60)]), graph, "age")  # 20 clusters


def test_a_label_that_is_a_row(graph):
    turned = frame(kind=["u", "v", "u"]).T.assign(a=1.0, b=2.0)
    with pytest.raises(
        PriorGraphError, match=r"Got 'kind', which is a row: the table is turned\. Pass genes_in"
    ):
        from_frame(turned, graph, "kind")
    with pytest.raises(PriorGraphError, match="Got 'zzz', and columns 'b', 'age', 'a', 'kind'"):
        from_frame(frame(), graph, "zzz")
