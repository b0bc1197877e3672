"""The curated tables: complete, consistent with their rules and with the files others use."""

from __future__ import annotations

import csv

import pytest

from pyg_kpnn.datasets import curated_graph, curated_names, tables
from pyg_kpnn.datasets.tables import read_tables, table_path
from pyg_kpnn.errors import PriorGraphError

# edges that activate in the published rules and repress in the reference network of BEELINE
OTHER_SIGN = {"mcad": [("Coup", "Emx2"), ("Sp8", "Pax6")]}
SIZES = {"gsd": (19, 79), "hsc": (11, 30), "mcad": (5, 14), "vsc": (8, 15)}


def edges_of(name):
    with table_path(name, "edges.csv").open(newline="") as file:
        return [(row["source"], row["target"], int(row["sign"])) for row in csv.DictReader(file)]


def test_names():
    assert curated_names() == tuple(SIZES)


@pytest.mark.parametrize("name", list(SIZES))
def test_edges_are_exactly_those_the_rules_imply(name):
    assert edges_of(name) == list(read_tables(name).network.edges())


@pytest.mark.parametrize("name", list(SIZES))
def test_graph_has_the_published_size_names_and_signs(name):
    graph = curated_graph(name)
    assert (len(graph.nodes), graph.edge_index.shape[1]) == SIZES[name]
    assert tuple(graph.nodes) == read_tables(name).network.genes
    source, target = graph.edge_index.tolist()
    signs = [int(sign) for sign in graph.sign.tolist()]
    got = {(graph.nodes[s], graph.nodes[t], sign) for s, t, sign in zip(source, target, signs, strict=True)}
    assert got == set(edges_of(name))


@pytest.mark.parametrize(("name", "folder"), [("hsc", "HSC"), ("gsd", "GSD"), ("mcad", "mCAD")])
def test_edges_equal_the_reference_networks_of_beeline(name, folder, data_dir):
    with (data_dir / "beeline" / folder / "refNetwork.csv").open(newline="") as file:
        rows = [(r["Gene1"], r["Gene2"], {"+": 1, "-": -1}[r["Type"]]) for r in csv.DictReader(file)]
    ours, theirs = set(edges_of(name)), set(rows)  # duplicate rows of the reference drop out
    assert ours - theirs == {(s, t, 1) for s, t in OTHER_SIGN.get(name, [])}
    assert theirs - ours == {(s, t, -1) for s, t in OTHER_SIGN.get(name, [])}
    assert len(rows) - len(set(rows)) == {"hsc": 0, "gsd": 7, "mcad": 0}[name]


@pytest.mark.parametrize(("name", "file"), [("hsc", "HSC"), ("gsd", "GSD"), ("mcad", "mCAD"), ("vsc", "VSC")])
def test_rules_equal_those_of_boolode_but_for_one(name, file, data_dir):
    import itertools

    import numpy as np

    from pyg_kpnn.datasets.rules import BooleanNetwork

    with (data_dir / "boolode_rules" / f"{file}.txt").open(newline="") as handle:
        theirs = BooleanNetwork({r["Gene"]: r["Rule"] for r in csv.DictReader(handle, delimiter="\t")})
    ours = read_tables(name).network
    if len(ours.genes) <= 11:
        states = np.array(list(itertools.product([False, True], repeat=len(ours.genes)))).T
    else:
        states = np.random.default_rng(0).random((len(ours.genes), 4999)) < 0.5
    differ = (ours.update(states) != theirs.update(states)).any(axis=1)
    # the paper needs GATA-1, FOG-1 and SCL together against C/EBPa, BoolODE needs SCL or the other two
    assert [g for g, d in zip(ours.genes, differ, strict=True) if d] == (["Cebpa"] if name == "hsc" else [])
    assert ours.edges() == theirs.edges()


def test_readme_states_sizes_and_sources():
    readme = (table_path("hsc", "edges.csv").parents[1] / "README.md").read_text(encoding="utf-8")
    assert "simulated, never measured" in " ".join(readme.split())
    for name, (genes, edges) in SIZES.items():
        signs = [sign for _, _, sign in edges_of(name)]
        assert f"| {genes} | {edges} ({signs.count(1)}/{signs.count(-1)}) |" in readme
        assert all(fate in readme for fate in read_tables(name).attractors)
    for doi in ["pone.0022649", "s12976-015-0023-0", "pcbi.1000936", "pone.0111430"]:
        assert f"{doi})" in readme


def test_unknown_network_lists_the_known_ones():
    with pytest.raises(PriorGraphError, match="gsd, hsc, mcad, vsc; got 'HSC'"):
        curated_graph("HSC")
    with pytest.raises(PriorGraphError, match="got 7"):
        curated_graph(7)


def test_missing_table_names_both_places(monkeypatch, tmp_path):
    with pytest.raises(PriorGraphError, match=r"'nodes\.csv'; it is neither"):
        table_path("hsc", "nodes.csv")
    monkeypatch.setattr(tables, "_PLACES", (tmp_path / "tables", tmp_path / "datasets"))
    with pytest.raises(PriorGraphError, match="installation is incomplete"):
        table_path("hsc", "edges.csv")


@pytest.mark.parametrize("place", ["tables", "datasets"])
def test_tables_are_found_in_a_wheel_and_in_a_checkout(place, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "_PLACES", (tmp_path / "tables", tmp_path / "datasets"))
    folder = tmp_path / place / "toy"
    folder.mkdir(parents=True)
    (folder / "edges.csv").write_text("source,target,sign\nA,B,-1\nB,A,-1\n")
    (folder / "rules.csv").write_text("gene,rule\nA,not B\nB,not A\n")
    (folder / "states.csv").write_text("role,name,on\nstart,both,A B\nattractor,a,A\n")
    assert curated_names() == ("toy",)
    assert read_tables("toy").attractors == {"a": ("A",)}
    assert read_tables("toy").start == ("A", "B")


@pytest.mark.parametrize(
    ("rules", "states", "match"),
    [
        ("A,A\nA,not A\n", "start,s,A\n", "'A' has two"),
        ("A,not B\nB,not A\n", "attractor,both,A B\n", "fixed point of the rules; 'both'"),
        ("A,not B\nB,not A\n", "attractor,x,C\n", "'C'"),
    ],
)
def test_inconsistent_tables_are_refused(rules, states, match, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "_PLACES", (tmp_path,))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "edges.csv").write_text("source,target,sign\n")
    (tmp_path / "toy" / "rules.csv").write_text("gene,rule\n" + rules)
    (tmp_path / "toy" / "states.csv").write_text("role,name,on\n" + states)
    with pytest.raises(PriorGraphError, match=match):
        read_tables("toy")
