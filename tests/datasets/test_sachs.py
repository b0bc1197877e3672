"""Protein signalling of Sachs et al.: made-up files of the form bnlearn publishes."""

from __future__ import annotations

import gzip

import networkx as nx
import pytest

from pyg_kpnn.datasets import Sachs, sachs, sachs_graph
from pyg_kpnn.datasets.raw import Source
from pyg_kpnn.errors import PriorGraphError

# as bnlearn writes the network of the paper: [node|parents]
PUBLISHED = (
    "[PKC][PKA|PKC][Raf|PKC:PKA][Mek|PKC:PKA:Raf][Erk|Mek:PKA][Akt|Erk:PKA][P38|PKC:PKA][Jnk|PKC:PKA]"
    "[Plcg][PIP3|Plcg][PIP2|Plcg:PIP3]"
)
HEAD = ["Raf", "Mek", "Plcg", "PIP2", "PIP3", "Erk", "Akt", "PKA", "PKC", "P38", "Jnk"]
OLD = ["praf", "pmek", "plcg", "PIP2", "PIP3", "p44/42", "pakts473", "PKA", "PKC", "P38", "pjnk"]
ROWS = [[f"{10 * r + c}.5" for c in range(11)] for r in range(3)]


def text(head=HEAD, rows=ROWS, sep="\t"):
    return "".join(sep.join(line) + "\n" for line in [head, *rows])


def put(root, content):
    path = root / "raw" / "sachs.data.txt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()))
    return root


def test_the_inferred_network_is_the_published_one():
    wanted = set()
    for part in PUBLISHED[1:-1].split("]["):
        node, _, parents = part.partition("|")
        wanted |= {(parent, node) for parent in parents.split(":") if parent}
    graph = sachs_graph()
    assert len(wanted) == 17
    assert set(graph.edges) == wanted
    assert sorted(graph.nodes) == sorted(HEAD)
    assert graph.sign is None
    assert nx.is_directed_acyclic_graph(graph.to_networkx())


def test_the_consensus_has_the_edges_the_paper_missed():
    inferred, consensus = set(sachs_graph(17).edges), set(sachs_graph(20).edges)
    assert len(consensus) == 20
    assert inferred - consensus == {("Plcg", "PIP3")}
    assert consensus - inferred == {("PIP3", "Plcg"), ("PIP3", "Akt"), ("Plcg", "PKC"), ("PIP2", "PKC")}


@pytest.mark.parametrize("edges", [18, None, "17", True, [17]])
def test_other_networks(tmp_path, edges):
    with pytest.raises(PriorGraphError, match="'edges' must be 17 or 20"):
        sachs_graph(edges)
    with pytest.raises(PriorGraphError, match="'edges' must be 17 or 20"):
        Sachs(tmp_path, edges)


@pytest.mark.parametrize("head", [HEAD, OLD, [f'"{name}"' for name in HEAD]])
@pytest.mark.parametrize("sep", ["\t", " "])
def test_a_small_file(tmp_path, head, sep):
    data = Sachs(put(tmp_path, text(head, sep=sep)))
    assert data.graph.nodes == (
        "Akt",
        "Erk",
        "Jnk",
        "Mek",
        "P38",
        "PIP2",
        "PIP3",
        "PKA",
        "PKC",
        "Plcg",
        "Raf",
    )
    assert data.expression.shape == (3, 11)
    assert data.expression[1].tolist() == [16.5, 15.5, 20.5, 11.5, 19.5, 13.5, 14.5, 17.5, 18.5, 12.5, 10.5]
    item = data[0]
    assert (item.x.shape, item.y.tolist(), item.edge_index.shape) == ((11, 1), [0], (2, 17))
    assert data.sample_names == ("cell_0", "cell_1", "cell_2")
    assert Sachs(tmp_path, edges=20)[0].edge_index.shape == (2, 20)
    assert repr(data) == "Sachs(17edges, 3 cells, 11 nodes, 17 edges, 1 classes)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(HEAD[:-1], [row[:-1] for row in ROWS]), "lacks 'Jnk'"),
        (text([*HEAD, "ERK2"], [[*row, "1"] for row in ROWS]), "also has 'ERK2'"),
        (text(rows=[*ROWS, ["x"] * 11]), "Got 'x' on line 5, column 'Raf'"),
        (text(rows=[]), "at least one row"),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path, content, message):
    with pytest.raises(PriorGraphError, match=message):
        Sachs(put(tmp_path, content))


def test_a_damaged_file(tmp_path):
    path = put(tmp_path, text()) / "raw" / "sachs.data.txt.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(PriorGraphError, match="must be a whole gzip file"):
        Sachs(tmp_path)


def test_the_file_is_downloaded_and_its_checksum_noted(tmp_path, site, monkeypatch):
    content = gzip.compress(text().encode())
    monkeypatch.setattr(sachs, "_FILE", Source(site.put("/sachs.gz", content), 10_000))
    assert len(Sachs(tmp_path)) == len(Sachs(tmp_path)) == 3
    assert site.asked == ["/sachs.gz"]
    path = tmp_path / "raw" / "sachs.data.txt.gz"
    path.write_bytes(gzip.compress(text(rows=ROWS[:1]).encode()))
    with pytest.raises(PriorGraphError, match="must be as it was downloaded"):
        Sachs(tmp_path)
    (tmp_path / "raw" / "sachs.data.txt.gz.sha256").unlink()
    assert len(Sachs(tmp_path)) == 1
