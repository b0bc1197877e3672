"""read_prior: the suffix says which reader, and the options are that reader's."""

from __future__ import annotations

import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import (
    PriorGraph,
    read_prior,
    write_cytoscape_json,
    write_edgelist,
    write_gmt,
    write_graphml,
    write_sif,
)

GRAPH = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("a", "c")], sign=[1, -1, 1])
SETS = PriorGraph.bipartite([("g1", "path"), ("g2", "path")])
GML = 'graph [ directed 1 node [ id 0 label "a" ] node [ id 1 label "b" ] edge [ source 0 target 1 ] ]'


@pytest.mark.parametrize(
    ("write", "file", "how", "graph"),
    [
        (write_edgelist, "n.csv", {"sign": "sign"}, GRAPH),
        (write_edgelist, "n.tsv", {"sign": "sign"}, GRAPH),
        (write_edgelist, "n.csv.gz", {"sign": "sign"}, GRAPH),
        (write_sif, "n.sif", {}, GRAPH),
        (write_sif, "n.sif.gz", {}, GRAPH),
        (write_gmt, "n.gmt", {}, SETS),
        (write_graphml, "n.graphml", {"sign": "sign"}, GRAPH),
        (write_cytoscape_json, "n.cyjs", {"sign": "sign"}, GRAPH),
        (write_cytoscape_json, "n.json", {"sign": "sign"}, GRAPH),
    ],
)
def test_each_suffix_has_its_reader(tmp_path, write, file, how, graph):
    write(graph, tmp_path / file)
    assert read_prior(tmp_path / file, **how) == graph
    assert read_prior(str(tmp_path / file), **how) == graph
    again, report = read_prior(tmp_path / file, return_report=True, **how)
    assert again == graph
    assert report.file == file


def test_gml(tmp_path):
    (tmp_path / "n.gml").write_text(GML)
    assert read_prior(tmp_path / "n.gml").edges == (("a", "b"),)


@pytest.mark.parametrize(
    ("file", "how", "words"),
    [
        ("n.xlsx", {}, r"suffix of a prior must be one of \.csv, .*Got '.*n\.xlsx'"),
        ("n", {}, "suffix of a prior must be one of"),
        ("n.sif", {"colour": 1}, r"read_sif, which reads \.sif files, takes .*max_bytes.*Got colour\."),
        ("n.gmt", {"sign": "s", "height": 2}, r"read_gmt, which reads \.gmt files.*Got height, sign\."),
    ],
)
def test_refused(tmp_path, file, how, words):
    (tmp_path / file).write_text("")
    with pytest.raises(PriorGraphError, match=words):
        read_prior(tmp_path / file, **how)
