"""What is written reads back as the same graph, or is refused by name."""

from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import (
    PriorGraph,
    read_cytoscape_json,
    read_edgelist,
    read_gml,
    read_gmt,
    read_graphml,
    read_sif,
    write_cytoscape_json,
    write_edgelist,
    write_gmt,
    write_graphml,
    write_sif,
)

HOSTILE = [
    "a,b",
    'say "hi"',
    '"',
    "two\nlines",
    "cr\rlf\r\n.",
    "x\ty",
    "=cmd|' /C calc'!A0",
    "+1",
    "@x",
    "é",
    "e\u0301",
    "名前",
    "🧬",
    "in side",
    "\ufeffbom",
    "l\u2028l",
    "n\x85l",
    "a\u200b",
    "<tag>&amp;",
    "]]>",
    "NA",
    "null",
    "007",
    "1e5",
    "True",
    "#1",
    "source",
    "target",
    "\\",
    "\\n",
    "L" * 300,
]
SIZES = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def prior_graphs(draw, names=HOSTILE, bipartite=False, strategies=None):
    """A graph of tests/strategies.py with names, and with or without signs, weights, widths."""
    nodes, edges = draw(strategies.node_graphs().filter(lambda pair: pair[1].shape[1] > 0))
    chosen = draw(st.permutations(names))[: nodes * 2]
    chosen += [f"n{i}" for i in range(2 * nodes - len(chosen))]
    pairs = [(chosen[s], chosen[nodes * bipartite + t]) for s, t in edges.T.tolist()]
    how = {}
    if draw(st.booleans()):
        how["sign"] = draw(st.lists(st.sampled_from([1, -1, 0]), min_size=len(pairs), max_size=len(pairs)))
    if draw(st.booleans()):
        finite = st.floats(allow_nan=False, allow_infinity=False)
        how["weight"] = draw(st.lists(finite, min_size=len(pairs), max_size=len(pairs)))
    if draw(st.booleans()):
        how["widths"] = {pairs[0][0]: draw(st.integers(2, 9))}
    if bipartite:
        return PriorGraph.bipartite(pairs, sources=chosen[:nodes], targets=chosen[nodes : 2 * nodes], **how)
    return PriorGraph.from_edges(pairs, nodes=chosen[:nodes], **how)


def options(graph, *, widths=True):
    how = {role: role for role in ("sign", "weight") if getattr(graph, role) is not None}
    return {**how, "width": "width"} if graph.widths and widths else how


def same(one, other):
    """Equal, and weights equal bit by bit."""
    assert one == other
    assert one.nodes == other.nodes
    assert one.edges == other.edges
    for a, b in ((one._sign, other._sign), (one._weight, other._weight)):
        assert (a is None) == (b is None)
        assert a is None or a.tobytes() == b.tobytes()
    return True


@pytest.mark.parametrize("bipartite", [False, True])
@pytest.mark.parametrize("suffix", [".graphml", ".graphml.gz"])
def test_graphml_holds_everything(tmp_path, strategies, bipartite, suffix):
    @SIZES
    @given(st.data())
    def check(data):
        graph = data.draw(prior_graphs([*HOSTILE, " blanks "], bipartite, strategies))
        path = tmp_path / f"net{suffix}"
        write_graphml(graph, path)
        more = {"name": "name", "side": "side"} if bipartite else {}
        assert same(read_graphml(path, **options(graph), **more), graph)

    check()


@pytest.mark.parametrize("bipartite", [False, True])
def test_cytoscape_json_holds_everything(tmp_path, strategies, bipartite):
    @SIZES
    @given(st.data())
    def check(data):
        graph = data.draw(prior_graphs([*HOSTILE, " blanks ", "n\0l", "\x01"], bipartite, strategies))
        path = tmp_path / "net.cyjs"
        write_cytoscape_json(graph, path)
        more = {"side": "side"} if bipartite else {}
        assert same(read_cytoscape_json(path, **options(graph), **more), graph)

    check()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("bipartite", [False, True])
def test_edge_tables_hold_names_edges_signs_and_weights(tmp_path, strategies, suffix, bipartite):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    names = [*HOSTILE, " blanks ", "v\x0bt", "n\0l", "\x01"] if suffix == ".parquet" else HOSTILE

    @SIZES
    @given(st.data())
    def check(data):
        graph = data.draw(prior_graphs(names, bipartite, strategies))
        path = tmp_path / f"net{suffix}"
        write_edgelist(graph, path, leave_out=["isolated", "widths"])
        how = options(graph, widths=False)
        # what the file has no room for is given again
        if bipartite:
            used = [sorted({pair[i] for pair in graph.edges}) for i in (0, 1)]
            expected = PriorGraph.bipartite(
                graph.edges, sources=used[0], targets=used[1], sign=graph.sign, weight=graph.weight
            )
            assert same(read_edgelist(path, bipartite=True, **how), expected)
        else:
            back = read_edgelist(path, nodes=graph.nodes, widths=graph.widths, **how)
            assert same(back, graph)

    check()


def test_sif_holds_names_edges_signs_and_isolated_nodes(tmp_path, strategies):
    names = [name for name in HOSTILE if not set("\t\r\n") & set(name) and name[0] != "\ufeff"]

    @SIZES
    @given(st.data())
    def check(data):
        graph = data.draw(prior_graphs(names, False, strategies))
        path = tmp_path / "net.sif"
        write_sif(graph, path, leave_out=["weights", "widths"])
        expected = PriorGraph.from_edges(graph.edges, sign=graph.sign, nodes=graph.nodes)
        assert same(read_sif(path), expected)

    check()


def test_gmt_holds_genes_and_sets(tmp_path, strategies):
    names = [name for name in HOSTILE if not set("\t\r\n") & set(name) and name[0] != "\ufeff"]

    @SIZES
    @given(st.data())
    def check(data):
        graph = data.draw(prior_graphs(names, True, strategies))
        path = tmp_path / "sets.gmt"
        write_gmt(graph, path, leave_out=["isolated", "signs", "weights", "widths"])
        used = sorted({source for source, _ in graph.edges})
        expected = PriorGraph.bipartite(graph.edges, sources=used, targets=graph.target_nodes)
        assert same(read_gmt(path), expected)

    check()


def test_weights_come_back_bit_by_bit(tmp_path):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -2.5, 1e-7, 123456789.123456789, np.nextafter(1, 2)]
    graph = PriorGraph.from_edges([(f"n{i}", "t") for i in range(len(values))], weight=values)
    for write, read, file in (
        (write_edgelist, read_edgelist, "n.csv"),
        (write_edgelist, read_edgelist, "n.parquet"),
        (write_graphml, read_graphml, "n.graphml"),
        (write_cytoscape_json, read_cytoscape_json, "n.json"),
    ):
        write(graph, tmp_path / file)
        assert same(read(tmp_path / file, weight="weight"), graph)
        assert read(tmp_path / file, weight="weight")._weight.tolist() == values


def test_others_read_what_is_written(tmp_path):
    import networkx as nx
    import pandas as pd

    graph = PriorGraph.from_edges([("a, b", "c"), ("c", "c")], sign=[1, -1], weight=[0.1, 2], nodes=["z\r\n"])
    write_graphml(graph, tmp_path / "n.graphml")
    theirs = nx.read_graphml(tmp_path / "n.graphml")
    assert set(theirs.edges) == set(graph.edges)
    assert theirs.edges["a, b", "c"] == {"sign": 1, "weight": 0.1}
    assert theirs.nodes["z\r\n"]["name"] == "z\r\n"
    write_edgelist(graph, tmp_path / "n.csv.gz", leave_out=["isolated"])
    frame = pd.read_csv(tmp_path / "n.csv.gz")
    assert frame.to_dict("list") == {
        "source": ["a, b", "c"],
        "target": ["c", "c"],
        "sign": [1, -1],
        "weight": [0.1, 2.0],
    }
    write_cytoscape_json(graph, tmp_path / "n.json")
    elements = json.loads((tmp_path / "n.json").read_text())["elements"]
    assert {"data": {"id": "a, b", "name": "a, b"}} in elements["nodes"]
    assert elements["edges"][0]["data"] == {
        "id": "e0",
        "source": "a, b",
        "target": "c",
        "sign": 1,
        "weight": 0.1,
    }
    theirs = nx.cytoscape_data(graph.to_networkx())
    (tmp_path / "theirs.json").write_text(json.dumps(theirs))
    assert read_cytoscape_json(tmp_path / "theirs.json", sign="sign", weight="weight") == graph
    nx.write_gml(nx.DiGraph([("a", "b")]), tmp_path / "n.gml")
    assert read_gml(tmp_path / "n.gml").edges == (("a", "b"),)


PLAIN = PriorGraph.from_edges([("a", "b")])
LONE = PriorGraph.from_edges([("a", "b")], nodes=["alone"])
WIDE = PriorGraph.from_edges([("a", "b")], widths={"b": 3})
HEAVY = PriorGraph.from_edges([("a", "b")], weight=[2.0])
SIGNED = PriorGraph.bipartite([("a", "b")], sign=[-1])
SETS = PriorGraph.bipartite([("a", "b")])
SPARE = PriorGraph.bipartite([("a", "b")], sources=["a", "spare"])


def named(name, other="b"):
    return PriorGraph.from_edges([(name, other)])


@pytest.mark.parametrize(
    ("write", "file", "graph", "words"),
    [
        (write_edgelist, "n.csv", LONE, "no room for nodes without an edge. Got 'alone'.*isolated"),
        (write_edgelist, "n.csv", WIDE, "no room for nodes with a width. Got 'b'.*widths"),
        (write_edgelist, "n.parquet", LONE, "Got 'alone'"),
        (write_edgelist, "n.csv", named(" a"), "come back as it is. Got ' a'.*Write parquet"),
        (write_edgelist, "n.tsv", named("a\0"), r"Got 'a\\x00'"),
        (write_edgelist, "n.csv", named("L" * 131_073), "131,072 characters"),
        (write_edgelist, "n.csv", named("A", "not (A)"), "Boolean rules.*'not .A.'"),
        (write_edgelist, "n.dat", PLAIN, "Pass sep="),
        (write_edgelist, "n.csv", "a,b", "must be a PriorGraph. Got str"),
        (write_sif, "n.sif", HEAVY, "no room for weights"),
        (write_sif, "n.sif", WIDE, "no room for nodes with a width"),
        (write_sif, "n.sif", SETS, "one set of nodes. Got a bipartite graph for n.sif"),
        (write_sif, "n.sif", named("a\tb"), r"Got 'a\\tb': SIF has no quotes"),
        (write_sif, "n.sif", named("a "), "Got 'a ': SIF has no quotes"),
        (write_sif, "n.sif", named("a\n"), r"Got 'a\\n'"),
        (write_sif, "n.sif", named("\ufeffa"), "SIF has no quotes"),
        (write_gmt, "n.gmt", PLAIN, "genes and sets. Got a graph of one set of nodes"),
        (write_gmt, "n.gmt", SPARE, "no room for sources in no set. Got 'spare'"),
        (write_gmt, "n.gmt", SIGNED, "no room for signs"),
        (write_gmt, "n.gmt", PriorGraph.bipartite([("a", "b\r")]), r"Got 'b\\r': GMT has no quotes"),
        (write_graphml, "n.graphml", named("a\x01"), r"Got 'a\\x01': XML cannot hold"),
        (write_graphml, "n.graphml", named("a\uffff"), "XML cannot hold"),
        (write_graphml, "n.graphml", 3, "must be a PriorGraph"),
        (write_cytoscape_json, "n.json", None, "must be a PriorGraph"),
    ],
)
def test_what_does_not_come_back_is_not_written(tmp_path, write, file, graph, words):
    with pytest.raises(PriorGraphError, match=words):
        write(graph, tmp_path / file)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_of_a_text_table(tmp_path):
    graph = named("L" * 131_072)
    write_edgelist(graph, tmp_path / "n.csv")
    assert read_edgelist(tmp_path / "n.csv") == graph


@pytest.mark.parametrize(
    ("write", "how", "words"),
    [
        (write_edgelist, {"leave_out": ["colour"]}, "words among.*Got 'colour'"),
        (write_edgelist, {"leave_out": "isolated"}, "'leave_out' must be a sequence"),
        (write_edgelist, {"sep": "whitespace"}, "one character"),
        (write_sif, {"types": {1: "up", -1: "do\twn", 0: "?"}}, "'types' must map"),
        (write_sif, {"types": {1: "up"}}, "'types' must map"),
        (write_sif, {"types": "up"}, "'types' must map"),
    ],
)
def test_bad_options(tmp_path, write, how, words):
    with pytest.raises(PriorGraphError, match=words):
        write(PLAIN, tmp_path / "n.csv", **how)
    with pytest.raises(PriorGraphError, match="'description' must be"):
        write_gmt(SETS, tmp_path / "n.gmt", description="a\nb")
    assert list(tmp_path.iterdir()) == []


def test_leave_out_loses_what_it_names_and_no_more(tmp_path):
    graph = PriorGraph.from_edges([("a", "b")], sign=[-1], weight=[2], nodes=["z"], widths={"b": 2})
    write_sif(graph, tmp_path / "n.sif", leave_out=["weights", "widths"])
    assert read_sif(tmp_path / "n.sif") == PriorGraph.from_edges([("a", "b")], sign=[-1], nodes=["z"])
    write_sif(graph, tmp_path / "n.sif", leave_out=["weights", "widths", "signs", "isolated"])
    assert (tmp_path / "n.sif").read_text() == "a\t0\tb\n"
    write_edgelist(graph, tmp_path / "n.csv", leave_out=["weights", "signs", "widths", "isolated"])
    assert (tmp_path / "n.csv").read_text() == '"source","target"\n"a","b"\n'


@pytest.mark.parametrize("file", ["n.csv", "n.csv.gz", "n.parquet"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, file):
    path = tmp_path / file
    write_edgelist(PLAIN, path)
    before = path.read_bytes()

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_edgelist(HEAVY, path)
    assert [entry.name for entry in tmp_path.iterdir()] == [file]
    assert path.read_bytes() == before


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dump", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_cytoscape_json(PLAIN, tmp_path / "n.json")
    assert list(tmp_path.iterdir()) == []


def test_links_stay_links_and_gzip_is_the_same_each_time(tmp_path):
    (tmp_path / "real.sif").write_text("old")
    (tmp_path / "link.sif").symlink_to(tmp_path / "real.sif")
    write_sif(PLAIN, tmp_path / "link.sif")
    assert (tmp_path / "link.sif").is_symlink()
    assert (tmp_path / "real.sif").read_text() == "a\t0\tb\n"
    for name in ("one.sif.gz", "two.sif.gz"):
        write_sif(PLAIN, tmp_path / name)
    assert (tmp_path / "one.sif.gz").read_bytes() == (tmp_path / "two.sif.gz").read_bytes()
    assert (tmp_path / "one.sif.gz").read_bytes()[4:8] == b"\0" * 4  # no time in its head
    assert gzip.decompress((tmp_path / "one.sif.gz").read_bytes()) == b"a\t0\tb\n"


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "pyg_kpnn\[parquet\]"'):
        write_edgelist(PLAIN, tmp_path / "n.parquet")
    (tmp_path / "n.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r'pip install "pyg_kpnn\[parquet\]"'):
        read_edgelist(tmp_path / "n.parquet")
