"""Public networks with their quirks; skipped where the folder of real files is absent."""

from __future__ import annotations

import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, align_inputs, read_edgelist

BEELINE = {"source": "Gene1", "target": "Gene2", "sign": "Type"}


def size(graph):
    return graph.num_nodes, graph.num_edges


def loops(graph):
    return sum(s == t for s, t in graph.edges)


@pytest.mark.parametrize(
    ("name", "expected"), [("GSD", (19, 79)), ("HSC", (11, 30)), ("mCAD", (5, 14)), ("THP1", (45, 335))]
)
def test_beeline(data_dir, name, expected):
    graph = read_edgelist(data_dir / "beeline" / name / "refNetwork.csv", **BEELINE, on_duplicate="first")
    assert size(graph) == expected
    assert graph.nnz == expected[1]
    if name == "THP1":
        assert set(graph.sign.tolist()) == {-1}
    if name == "HSC":
        assert loops(graph) == 4
    if name == "GSD":
        assert loops(graph) == 3


def test_beeline_duplicates_are_told(data_dir):
    with pytest.raises(PriorGraphError, match=r"7 duplicate row.*and 2 more"):
        read_edgelist(data_dir / "beeline/GSD/refNetwork.csv", **BEELINE)


def test_beeline_expression_aligns_after_a_transpose(data_dir):
    import pandas as pd

    graph = read_edgelist(data_dir / "beeline/HSC/refNetwork.csv", **BEELINE)
    cells = pd.read_csv(data_dir / "beeline/HSC/ExpressionData.csv", index_col=0)
    with pytest.raises(PriorGraphError, match="no column for 11 of 11 nodes"):
        align_inputs(cells, graph)  # genes are in rows
    table = align_inputs(cells.T, graph)
    assert tuple(table.columns) == graph.nodes
    assert table.shape == (2000, 11)


def test_collectri(data_dir):
    graph = read_edgelist(data_dir / "human_tf/collectri.tsv", sign="interaction")
    assert size(graph) == (6_894, 42_410)
    assert "C9orf43" in graph.nodes
    assert set(graph.sign.tolist()) <= {-1, 0, 1}
    pairs = set(graph.edges)
    assert sum((t, s) in pairs for s, t in pairs if s < t) == 834
    with pytest.raises(PriorGraphError, match="differs only in case from 'C9orf43'"):
        graph.node_units("C9ORF43")
    assert PriorGraph.from_dict(graph.to_dict()) == graph


def test_causalpath(data_dir):
    assert size(read_edgelist(data_dir / "human_tf/causalpath.tsv", sign="interaction")) == (3_451, 12_071)


def test_trrust_weight_zero_is_an_unknown_sign_not_a_missing_edge(data_dir):
    graph = read_edgelist(data_dir / "human_tf/trrust_via_dorothea.csv", source="tf", sign="mor")
    assert size(graph) == (2_586, 7_041)
    assert int((graph.sign == 0).sum()) == 3_026
    assert loops(graph) == 22


def test_omnipath_has_one_conflict(data_dir):
    path = data_dir / "signalling/omnipath_carnival.tsv"
    with pytest.raises(PriorGraphError, match="1 duplicate row"):
        read_edgelist(path, sign="interaction")
    with pytest.raises(PriorGraphError, match=r"\+ and - for 1 edge"):
        read_edgelist(path, sign="interaction", on_duplicate="first")
    graph = read_edgelist(path, sign="interaction", on_duplicate="first", on_conflict="unknown")
    assert size(graph) == (6_124, 19_806)
    assert int((graph.sign == 0).sum()) == 1


@pytest.mark.parametrize(("version", "expected"), [("6_2", (1_502, 3_586, 99)), ("6_7", (1_565, 3_758, 110))])
def test_regulondb_without_header(data_dir, version, expected):
    path = data_dir / f"microbe_grn/ecoli_transcriptional_network_regulonDB_{version}.tsv"
    graph = read_edgelist(path, header=False, sign=2)
    assert (*size(graph), loops(graph)) == expected
    cells = [line.split("\t")[2].strip() for line in path.read_text().splitlines() if line.strip()]
    assert {"+", "-", "+-"} <= set(cells) <= {"+", "-", "+-", "?"}
    assert int((graph.sign == 1).sum()) == cells.count("+")
    assert int((graph.sign == -1).sum()) == cells.count("-")


def test_yeast_crlf(data_dir):
    graph = read_edgelist(data_dir / "microbe_grn/yeast_transcriptional_network_Balaji2006.tsv", header=False)
    assert size(graph) == (4_441, 12_873)
    assert not any(name != name.strip() for name in graph.nodes)


def test_sergio_integer_names(data_dir):
    graph = read_edgelist(data_dir / "sergio/DS8/gt_GRN.csv", header=False)
    assert size(graph) == (100, 137)
    assert set(graph.nodes) == {str(i) for i in range(100)}


def test_sergio_ragged_side_file(data_dir):
    with pytest.raises(PriorGraphError, match=r"cells, like its first. Got \d+ on line \d+"):
        read_edgelist(data_dir / "sergio/DS8/Interaction_cID_8.txt", sep=",", header=False)


def test_reactome_parent_child(data_dir):
    path = data_dir / "binn_reactome/kpnn_format_Edgelist.csv"
    graph = read_edgelist(path, source="parent", target="child", on_duplicate="first")
    assert size(graph) == (1_549, 4_323)


@pytest.mark.parametrize("name", ["GSD", "HSC", "VSC", "mCAD", "EMT"])
def test_boolean_rules_are_refused(data_dir, name):
    path = data_dir / "boolode_rules" / f"{name}.txt"
    with pytest.raises(PriorGraphError, match="Boolean rule"):
        read_edgelist(path)
    with pytest.raises(PriorGraphError, match="Boolean rule"):
        read_edgelist(path, source="Gene", target="Rule")


def test_kpnn2_gives_collectri_the_same_fingerprint(data_dir):
    kpnn2 = pytest.importorskip("kpnn2")
    import pandas as pd

    path = data_dir / "human_tf/collectri.tsv"
    frame = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    assert read_edgelist(path).fingerprint == kpnn2.parse_adjacency(frame).fingerprint
