"""match: which nodes the data measures, what that costs, and which names were meant."""

from __future__ import annotations

import json
import pickle
import types

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import MatchReport, PriorGraph, align_inputs, match, read_edgelist


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges([("TP53", "MDM2"), ("MYC", "MDM2"), ("MDM2", "TP53"), ("MYC", "MYC")])


def adata(var_names, obs_names=("c1",)):
    return types.SimpleNamespace(var_names=list(var_names), obs_names=list(obs_names), X=None)


def test_counts_and_shares_by_hand(graph):
    report = match(graph, ["age", "MDM2", "MYC", "sex", "Tp53"])
    assert report.matched == ("MDM2", "MYC")
    assert report.missing == ("TP53",)
    assert report.extra == ("age", "sex", "Tp53")
    assert report.edges_lost == (("MDM2", "TP53"), ("TP53", "MDM2"))
    assert (report.num_nodes, report.num_features, report.num_edges_lost) == (3, 5, 2)
    assert report.share_matched == 2 / 3
    assert report.share_missing == 1 / 3
    assert report.share_extra == 3 / 5
    assert report.share_edges_lost == 0.5
    assert report.hints == (("TP53", ("Tp53",), "case"),)
    assert match(graph, graph.nodes) == MatchReport(graph, graph.nodes, (), ())


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        np.array,
        pd.Index,
        pd.Series,
        dict.fromkeys,
        iter,
        lambda names: pd.DataFrame(np.zeros((2, len(names))), columns=names),
        adata,
    ],
)
def test_every_kind_of_features(graph, make):
    report = match(graph, make(["MYC", "b", "MDM2"]))
    assert (report.matched, report.missing, report.extra) == (("MDM2", "MYC"), ("TP53",), ("b",))


def test_lost_edges_agree_with_networkx(strategies):
    rng = np.random.default_rng(0)
    net = nx.gnp_random_graph(60, 0.05, seed=1, directed=True)
    graph = PriorGraph.from_networkx(net)
    there = [str(i) for i in rng.permutation(60)[:41]]
    left = net.subgraph([n for n in net if str(n) in there])
    named = set(graph.nodes)
    report = match(graph, there)
    kept = {(str(s), str(t)) for s, t in left.edges}
    assert set(report.edges_lost) == set(graph.edges) - kept
    assert report.num_edges_lost == len(report.edges_lost) == graph.num_edges - len(kept)
    assert set(report.missing) == named - set(there)


@pytest.mark.parametrize(
    ("node", "feature", "reason"),
    [
        ("TP53", "tp53", "case"),
        ("TP53", "Tp53", "case"),
        ("TP53", " TP53 ", "blanks"),
        ("TP53", "TP53\u200b", "blanks"),
        ("TP53", "\u00a0tp53", "case"),
        ("ENSG00000141510", "ENSG00000141510.18", "version"),
        ("ENSG00000141510.18", "ENSG00000141510", "version"),
        ("ENSG00000141510.17", "ENSG00000141510.18", "version"),
        ("NM_000546", "NM_000546.6", "version"),
        ("P04637", "P04637-2", "version"),
        ("MATR3", "MATR3.1", "version"),
        ("TP53", "TP53_gene", "affix"),
        ("TP53_gene", "tp53", "affix"),
        ("TP53", "GRCh38_TP53", "affix"),
        ("TP53", "TP53_HUMAN", "affix"),
        ("Pu1", "Pu.1", "punctuation"),
        ("Pu.1", "PU1", "punctuation"),
        ("NKX2-1", "NKX2_1", "punctuation"),
        ("HLA-DRA", "HLA.DRA", "punctuation"),
        ("apoptosis", "apoptossis", "spelling"),
        ("apoptosis", "apotposis", "spelling"),
        ("apoptosis", "apuptosis", "spelling"),
        ("pathway7a", "pathwy7a", "spelling"),
    ],
)
def test_hints(node, feature, reason):
    graph = PriorGraph.from_edges([(node, "hub")])
    report = match(graph, ["hub", "other", feature])
    assert report.hints == ((node, (feature,), reason),)
    sure = {} if reason == "spelling" else {node: feature}
    assert report.renames() == sure
    assert report.renames(of="data") == {new: old for old, new in sure.items()}
    assert report.renames(reasons=[reason]) == {node: feature}
    assert repr(node) in str(report)
    assert f"({reason}: {feature!a})" in str(report)
    assert match(graph.rename(report.renames(reasons=[reason])), ["hub", feature]).missing == ()


@pytest.mark.parametrize(
    ("node", "feature"),
    [
        ("GATA1", "GATA2"),  # digits tell a family apart
        ("CDKN1A", "CDKN1B"),
        ("RP11-34P13.7", "RP11-34P13.3"),  # a clone's number is no version
        ("NKX2-1", "NKX21"),
        ("pathwayA", "pathwayB"),  # so does the last letter
        ("pathway1x", "pathway2x"),
        ("1.1", "1"),
        ("IL2", "IL"),
        ("ABCC2", "ASCC2"),  # short: both are genes
        ("apoptosis", "apoptessas"),
        ("abcdefgh", "bcdefghi"),  # a shift shares all but one letter, but is no slip
        ("xababyz", "xbabayz"),  # no more is a row of letters turned round
        ("...", "---"),
        ("x" * 300, "X" * 300),
    ],
)
def test_no_hints(node, feature):
    assert match(PriorGraph.from_edges([(node, "hub")]), ["hub", feature]).hints == ()


def test_features_of_other_nodes_are_no_hints():
    graph = PriorGraph.from_edges([("erk12", "ERK12"), ("ERK12", "a")])
    assert match(graph, ["ERK12", "a"]).hints == ()


def test_ambiguous_hints_are_shown_but_not_proposed():
    graph = PriorGraph.from_edges([("TP53", "hub"), ("Myc", "hub"), ("MYC", "hub"), ("MAX", "hub")])
    report = match(graph, ["hub", "tp53", "Tp53", "myc", "max"])
    assert {node: found for node, found, _ in report.hints} == {
        "TP53": ("tp53", "Tp53"),
        "MYC": ("myc",),
        "Myc": ("myc",),
        "MAX": ("max",),
    }
    assert report.renames() == {"MAX": "max"}
    assert "'tp53' or 'Tp53'" in str(report)
    assert report.to_frame().set_index("name").loc["myc", "hint"] == "MYC; Myc"


def test_every_feature_one_slip_away_is_shown():
    report = match(
        PriorGraph.from_edges([("apoptosis", "hub")]), ["hub", "apuptosis", "apyptosis", "apiptosis"]
    )
    assert report.hints == (("apoptosis", ("apuptosis", "apyptosis", "apiptosis"), "spelling"),)


def test_hint_work_is_linear(monkeypatch):
    # Names are normalised a fixed number of times each, whatever the number of names, and no pair is compared
    # beyond a few candidates: counted, as a clock is no judge.
    from pyg_kpnn.prior import hints

    calls = {"fold": 0, "slip": 0}
    fold, slip = hints._fold, hints._one_slip

    def counted_fold(name):
        calls["fold"] += 1
        return fold(name)

    def counted_slip(one, other):
        calls["slip"] += 1
        return slip(one, other)

    monkeypatch.setattr(hints, "_fold", counted_fold)
    monkeypatch.setattr(hints, "_one_slip", counted_slip)
    monkeypatch.setattr(
        hints, "_LEVELS", tuple((r, counted_fold if k is fold else k) for r, k in hints._LEVELS)
    )
    letters = np.array(list("abcdefghijklmnop"))
    rng = np.random.default_rng(0)
    names = list(dict.fromkeys("".join(row) for row in letters[rng.integers(0, 16, (4_000, 9))]))
    features = [name[:4] + "z" + name[4:] for name in names] + ["same" + " " * i for i in range(1, 2_000)]
    found = hints.propose([*names, "same"], features)
    assert sum(hint.reason == "spelling" for hint in found) == len(names)
    assert len(found[-1].features) <= 8  # of a crowd of like names only some are listed
    total = len(names) + len(features)
    assert calls["fold"] <= 15 * total
    assert calls["slip"] <= 10 * total
    calls["slip"] = 0
    one, other = ([f"crowded{chr(first + i)}name" for i in range(500)] for first in (0x4E00, 0x5E00))
    assert len(hints.propose(one, other)) == 500  # every pair is one letter apart
    assert calls["slip"] <= 9 * 500


def test_nodes_and_sides():
    graph = PriorGraph.from_edges([("p1", "path"), ("p2", "path"), ("path", "root")])
    report = match(graph, ["p2"], nodes=graph.input_nodes)
    assert (report.matched, report.missing, report.edges_lost) == (("p2",), ("p1",), (("p1", "path"),))
    genes = PriorGraph.bipartite([("TP53", "death"), ("MYC", "death"), ("MYC", "TP53")])
    report = match(genes, ["MYC"])
    assert (report.missing, report.edges_lost) == (("TP53",), (("TP53", "death"),))
    both = match(genes, ["MYC"], nodes=["TP53", "MYC"])  # by name, so on both sides
    assert both.edges_lost == (("MYC", "TP53"), ("TP53", "death"))


def test_max_loss(graph):
    features = ["MYC", "MDM2", "tp53"]
    assert match(graph, features, max_loss=0.5).share_edges_lost == 0.5
    with pytest.raises(PriorGraphError, match=r"At most 49\.9% .*Got 2 of 4 \(50\.0%\)") as raised:
        match(graph, features, max_loss=0.499)
    for words in ("'TP53' (case: 'tp53')", "1 nodes", "'MDM2' -> 'TP53'", "renames() proposes 1"):
        assert words in str(raised.value)
    match(graph, graph.nodes, max_loss=0)


def test_a_turned_table_is_told(graph):
    frame = pd.DataFrame(np.zeros((3, 2)), index=["TP53", "MYC", "x"], columns=["s1", "s2"])
    report = match(graph, frame)
    assert report.in_rows == 2
    assert "may be turned" in str(report)
    assert match(graph, adata(["s1"], ["MYC"])).in_rows == 1
    assert match(graph, ["s1"]).in_rows == 0


def test_tables(graph):
    report = match(graph, ["MDM2", "Tp53", "age"])
    frame = report.to_frame()
    assert frame.columns.tolist() == ["name", "status", "hint", "reason"]
    assert frame.to_numpy().tolist() == [
        ["MDM2", "matched", "", ""],
        ["MYC", "missing", "", ""],
        ["TP53", "missing", "Tp53", "case"],
        ["Tp53", "extra", "TP53", "case"],
        ["age", "extra", "", ""],
    ]
    # nodes stay in the order of the graph, measured or not
    assert match(graph, ["MYC"]).to_frame()["name"].tolist() == ["MDM2", "MYC", "TP53"]
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["missing"] == ["MYC", "TP53"]
    assert plain["lost"] == [list(edge) for edge in graph.edges]
    assert (plain["edges"], plain["edges_lost"], plain["share_edges_lost"]) == (4, 4, 1.0)
    assert (plain["share_matched"], plain["share_missing"], plain["share_extra"]) == (1 / 3, 2 / 3, 2 / 3)
    assert plain["hints"] == [{"node": "TP53", "features": ["Tp53"], "reason": "case"}]
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    assert hash(again) == hash(report)
    assert again.edges_lost == report.edges_lost
    with pytest.raises(AttributeError):
        report.missing = ()


def test_the_summary_is_short():
    graph = PriorGraph.from_edges([(f"g{i}", "hub") for i in range(500)])
    text = str(match(graph, [f"x{i}" for i in range(500)]))
    assert len(text) < 700
    assert "and 496 more" in text  # 501 nodes, five shown
    (lost,) = (line for line in text.splitlines() if line.startswith("edges lost"))
    assert lost.count(" -> 'hub'") == 5
    assert "and 495 more" in lost
    (extra,) = (line for line in text.splitlines() if line.startswith("not in the prior"))
    assert extra.endswith("'x0', 'x1', 'x2', 'x3', 'x4' and 495 more")


@pytest.mark.parametrize(
    ("features", "more", "words"),
    [
        (["a", "b", "a"], {}, "'a' at column 0 and 'a' at column 2"),
        ([1, "1"], {}, "1 at column 0 and '1' at column 1"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "name of its own"),
        (adata(["a", "a"]), {}, "name of its own"),
        ("TP53", {}, "'features' must be a sequence of column names. Got 'TP53'"),
        (7, {}, "Got 7"),
        (["a", None], {}, "position 1"),
        (["a", " "], {}, "position 1"),
        (np.zeros((2, 3)), {}, r"of shape \(2, 3\)"),
        ([b"a"], {}, "Decode them"),
        (["a"], {"max_loss": 1.5}, "from 0 to 1. Got 1.5"),
        (["a"], {"max_loss": -0.1}, "from 0 to 1"),
        (["a"], {"max_loss": float("nan")}, "from 0 to 1. Got nan"),
        (["a"], {"max_loss": True}, "from 0 to 1. Got True"),
        (["a"], {"max_loss": "0.1"}, "from 0 to 1. Got '0.1'"),
        (["a"], {"nodes": ["tp53"]}, "differs only in case from 'TP53'"),
        (["a"], {"nodes": ["TP53", "TP53"]}, "each node once"),
        (["a"], {"nodes": "TP53"}, "'nodes' must be a sequence"),
    ],
)
def test_refuses(graph, features, more, words):
    with pytest.raises(PriorGraphError, match=words):
        match(graph, features, **more)


def test_refuses_what_is_no_graph_or_reason(graph):
    with pytest.raises(PriorGraphError, match=r"'graph' must be a PriorGraph\. Got list"):
        match([("a", "b")], ["a"])
    report = match(graph, ["MYC"])
    with pytest.raises(PriorGraphError, match="'of' must be 'prior' or 'data'"):
        report.renames(of="both")
    with pytest.raises(PriorGraphError, match="'reasons' must be"):
        report.renames(reasons=["guess"])


def test_align_inputs_reports_what_it_leaves_out(graph):
    index, report = align_inputs(["x", "MYC", "TP53", "MDM2", "y"], graph, report=True)
    assert index.tolist() == [3, 1, 2]
    assert report.extra == ("x", "y")
    frame = pd.DataFrame(np.eye(3), columns=["TP53", "MDM2", "MYC"])
    aligned, report = align_inputs(frame, graph, report=True)
    assert aligned.columns.tolist() == ["MDM2", "MYC", "TP53"]
    assert report.extra == ()
    assert align_inputs(adata(["TP53", "MDM2", "MYC"]), graph).tolist() == [1, 2, 0]
    with pytest.raises(PriorGraphError, match=r"renames\(\) proposes 1.*graph.restrict_to"):
        align_inputs(["tp53", "MDM2", "MYC"], graph)


def test_real_names(data_dir):
    hsc = read_edgelist(
        data_dir / "beeline/HSC/refNetwork.csv",
        source="Gene1",
        target="Gene2",
        sign="Type",
        on_duplicate="first",
    )
    columns = (data_dir / "scanpy/krumsiek11.txt").read_text().splitlines()[7].split()[2:]
    assert "Pu.1" in columns
    report = match(hsc, columns)
    renames = report.renames()
    assert renames["Pu1"] == "Pu.1"
    assert renames["Eklf"] == "EKLF"
    assert renames["Scl"] == "SCL"
    assert match(hsc.rename(renames), columns, max_loss=0).missing == ()
