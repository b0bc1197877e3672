"""Published priors as graphs: real files, small ones of their form, and PyG's own datasets with names."""

from __future__ import annotations

import hashlib
import shutil

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid, TUDataset

from pyg_kpnn.datasets import collectri, dorothea, planetoid_graph, priors, trrust
from pyg_kpnn.datasets.raw import Source
from pyg_kpnn.errors import PriorGraphError

COLLECTRI = (
    "source,target,weight,resources,references,sign_decision\n"
    'MYC,TERT,1,"ExTRI;HTRI",10022128;10491298,PMID\n'
    "NFKB,IL6,-1,ExTRI,1,default\n"
    "MYC,C9orf43,1,,,\n"
)
TRRUST = (
    "AATF\tBAX\tRepression\t22909821\n"
    "AATF\tTP53\tUnknown\t17157788\n"
    "MYC\tBAX\tActivation\t1;2\n"
    "MYC\tBAX\tRepression\t3\n"
    "MYC\tTP53\tActivation\t1\n"
    "MYC\tTP53\tUnknown\t4\n"
)
COLUMNS = [
    "source",
    "target",
    "source_genesymbol",
    "target_genesymbol",
    "is_directed",
    "is_stimulation",
    "is_inhibition",
]
DOROTHEA = [
    "P01 P02 MYC TERT 1 1 0 A",
    "P01 P03 MYC BAX 1 0 1 B",
    "P04 P03 TP53 BAX True True True A;D",
    "P04 P02 TP53 TERT 1 0 0 C",
    "P05 P02 E2F1 TERT 1 1 0 D",
    "P06 P02 MYC TERT 1 1 0 B",  # another protein of the same symbol
]


def table(rows=DOROTHEA, columns=(*COLUMNS, "dorothea_level")):
    return "".join("\t".join(line) + "\n" for line in [columns, *(row.split() for row in rows)])


def put(root, name, text):
    (root / "raw").mkdir(parents=True, exist_ok=True)
    (root / "raw" / name).write_text(text)
    return root


def signs(graph):
    return dict(zip(graph.edges, graph.sign.tolist(), strict=True))


# ---------------------------------------------------------------- CollecTRI and TRRUST


@pytest.mark.parametrize(
    ("read", "file", "nodes", "edges", "unknown"),
    [
        (collectri, "collectri.tsv", 6_894, 42_410, 0),
        (trrust, "trrust_via_dorothea.csv", 2_586, 7_041, 3_026),
    ],
)
def test_the_real_files(tmp_path, data_dir, read, file, nodes, edges, unknown):
    (tmp_path / "raw").mkdir()
    shutil.copy(data_dir / "human_tf" / file, tmp_path / "raw" / file)
    graph = read(tmp_path)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert int((torch.as_tensor(graph.sign) == 0).sum()) == unknown


def test_collectri_as_published(tmp_path):
    graph = collectri(put(tmp_path, "CollecTRI_regulons.csv", COLLECTRI))
    assert signs(graph) == {("MYC", "TERT"): 1, ("NFKB", "IL6"): -1, ("MYC", "C9orf43"): 1}


def test_trrust_as_published(tmp_path):
    graph = trrust(put(tmp_path, "trrust_rawdata.human.tsv", TRRUST))
    assert signs(graph) == {
        ("AATF", "BAX"): -1,
        ("AATF", "TP53"): 0,
        ("MYC", "BAX"): 0,  # one article says +, another -
        ("MYC", "TP53"): 1,
    }


def test_the_published_file_goes_before_the_other_form(tmp_path):
    put(tmp_path, "collectri.tsv", "source\tinteraction\ttarget\na\tactivation\tb\n")
    assert collectri(tmp_path).edges == (("a", "b"),)
    assert collectri(put(tmp_path, "CollecTRI_regulons.csv", COLLECTRI)).num_edges == 3


@pytest.mark.parametrize("read", [collectri, trrust, dorothea])
def test_what_no_prior_can_be_read_from(tmp_path, read):
    with pytest.raises(PriorGraphError, match="'root' must be a folder"):
        read(None)
    for form in ("CollecTRI_regulons.csv", "trrust_rawdata.human.tsv", "dorothea.tsv"):
        put(tmp_path, form, "<html>\n<p>moved</p>\n")
    with pytest.raises(PriorGraphError):
        read(tmp_path)


@pytest.mark.parametrize(
    ("read", "source", "text"),
    [
        (collectri, "_COLLECTRI_SOURCE", COLLECTRI),
        (trrust, "_TRRUST_SOURCE", TRRUST),
        (dorothea, "_DOROTHEA_SOURCE", table()),
    ],
)
def test_downloads(tmp_path, site, monkeypatch, read, source, text):
    body = text.encode()
    sha256 = hashlib.sha256(body).hexdigest()
    url = site.put("/file", body)
    if getattr(priors, source).checksum is not None:  # pinned: anything else is refused
        monkeypatch.setattr(priors, source, getattr(priors, source)._replace(url=url))
        with pytest.raises(PriorGraphError, match=f"4473c9189d.*Got {sha256}"):
            read(tmp_path)
        assert not list((tmp_path / "raw").iterdir())
        monkeypatch.setattr(priors, source, Source(url, 10_000, f"sha256:{sha256}"))
    else:
        monkeypatch.setattr(priors, source, Source(url, 10_000))
    assert read(tmp_path) == read(tmp_path)
    assert site.asked.count("/file") == len(site.asked) <= 2


def test_a_downloaded_prior_that_changed_is_refused(tmp_path, site, monkeypatch):
    monkeypatch.setattr(priors, "_TRRUST_SOURCE", Source(site.put("/file", TRRUST.encode()), 10_000))
    trrust(tmp_path)
    put(tmp_path, "trrust_rawdata.human.tsv", TRRUST + "A\tB\tUnknown\t1\n")
    with pytest.raises(PriorGraphError, match="must be as it was downloaded"):
        trrust(tmp_path)


# ---------------------------------------------------------------- DoRothEA


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ("A", {("MYC", "TERT"): 1, ("TP53", "BAX"): 0}),
        ("BA", {("MYC", "TERT"): 1, ("TP53", "BAX"): 0, ("MYC", "BAX"): -1}),
        ("B", {("MYC", "TERT"): 1, ("MYC", "BAX"): -1}),
        ("ABC", {("MYC", "TERT"): 1, ("TP53", "BAX"): 0, ("MYC", "BAX"): -1, ("TP53", "TERT"): 0}),
        ("D", {("E2F1", "TERT"): 1}),
    ],
)
def test_dorothea_by_levels(tmp_path, levels, wanted):
    assert signs(dorothea(put(tmp_path, "dorothea.tsv", table()), levels)) == wanted


def test_dorothea_has_three_levels_by_default(tmp_path):
    assert dorothea(put(tmp_path, "dorothea.tsv", table())).num_edges == 4


@pytest.mark.parametrize("levels", ["", "E", "abc", None, ["A"], "A,B"])
def test_levels_that_are_none(tmp_path, levels):
    with pytest.raises(PriorGraphError, match="'levels' must be letters of 'ABCD'"):
        dorothea(tmp_path, levels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "It lacks source_genesymbol"),
        (table(columns=[*COLUMNS, "level"]), "It lacks dorothea_level"),
        (table(DOROTHEA[4:5]), "must hold edges of levels 'ABC'. Got none"),
        (table(["P01 P02 MYC TERT 1 1 A"]), "must have 8 cells. Got 7 on line 2"),
        (table(["P01 P02 MYC TERT 1 yes 0 A"]), "Signs in dorothea.tsv must be 0 or 1. Got 'yes' on line 2"),
    ],
)
def test_dorothea_files_that_are_not_what_they_should_be(tmp_path, text, message):
    with pytest.raises(PriorGraphError, match=message):
        dorothea(put(tmp_path, "dorothea.tsv", text))


# ---------------------------------------------------------------- PyG's own


def test_rows_of_a_pyg_graph_are_the_nodes():
    index = torch.tensor([[10, 2, 2, 2], [2, 0, 0, 2]])
    graph = planetoid_graph(Data(edge_index=index, num_nodes=12, edge_weight=torch.tensor([1, 2, 3, 4])))
    assert graph.nodes == tuple(f"{i:02d}" for i in range(12))
    assert graph.edges == (("02", "00"), ("02", "02"), ("10", "02"))  # repeated edges are one
    assert graph.edge_index.tolist() == [[2, 2, 10], [0, 2, 2]]
    assert (graph.weight, graph.sign) == (None, None)
    for count in (1, 10):
        graph = planetoid_graph(Data(edge_index=torch.tensor([[0], [0]]), num_nodes=count))
        assert graph.nodes == tuple("0123456789"[:count])


@pytest.mark.parametrize(("name", "nodes", "edges"), [("Cora", 2_708, 10_556), ("CiteSeer", 3_327, 9_104)])
def test_planetoid(tmp_path, data_dir, name, nodes, edges):
    pytest.importorskip("scipy")
    shutil.copytree(data_dir / "pyg" / "Planetoid" / name, tmp_path / name)
    dataset = Planetoid(str(tmp_path), name)
    graph = planetoid_graph(dataset)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert [int(node) for node in graph.nodes] == list(range(nodes))
    wanted = set(zip(*dataset[0].edge_index.tolist(), strict=True))
    assert set(zip(*graph.edge_index.tolist(), strict=True)) == wanted


def test_a_dataset_of_many_graphs(tmp_path, data_dir):
    shutil.copytree(data_dir / "pyg" / "TUDataset" / "MUTAG", tmp_path / "MUTAG")
    dataset = TUDataset(str(tmp_path), "MUTAG")
    with pytest.raises(PriorGraphError, match=r"one graph\. Got 188 in TUDataset\. Pass one of them"):
        planetoid_graph(dataset)
    assert planetoid_graph(dataset[0]).num_nodes == dataset[0].num_nodes


@pytest.mark.parametrize("data", [None, 3, Data(), Data(x=torch.zeros(2, 1)), torch.tensor([[0], [1]])])
def test_what_is_no_pyg_graph(data):
    with pytest.raises(PriorGraphError, match="comes from a PyG Data with edge_index"):
        planetoid_graph(data)
