"""A row for every real file that is a graph: its size, and its quirks by name in the report."""

from __future__ import annotations

import re

import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import read_edgelist, read_gmt, read_graphml, read_sif

BEELINE = {"source": "Gene1", "target": "Gene2", "sign": "Type", "on_duplicate": "first"}
SIF = "signalling/cellnopt/PKN-"
COLI = "microbe_grn/ecoli_transcriptional_network_regulonDB_"
YEAST = "microbe_grn/yeast_transcriptional_network_Balaji2006.tsv"
GOLD = {"header": False, "keep_nonzero": 2}
GNW = "dream4/gnw_goldstandard/DREAM4_GoldStandard_InSilico_Size"

# reader, file, options, nodes, edges, what the report says (numbers as in the files' own description)
FILES = [
    (
        read_edgelist,
        "beeline/GSD/refNetwork.csv",
        BEELINE,
        19,
        79,
        {"rows_dropped": 7, "loops": 3},
    ),
    (read_edgelist, "beeline/HSC/refNetwork.csv", BEELINE, 11, 30, {"loops": 4, "rows_dropped": 0}),
    (read_edgelist, "beeline/mCAD/refNetwork.csv", BEELINE, 5, 14, {"rows_dropped": 0}),
    (
        read_edgelist,
        "beeline/THP1/refNetwork.csv",
        BEELINE,
        45,
        335,
        {"quirk": "the same sign, -1"},
    ),
    (
        read_edgelist,
        "human_tf/collectri.tsv",
        {"sign": "interaction"},
        6_894,
        42_410,
        {"reciprocal_pairs": 834, "quirk": "4 not, and none was changed: .*'C9orf43'"},
    ),
    (read_edgelist, "human_tf/causalpath.tsv", {"sign": "interaction"}, 3_451, 12_071, {"components": 16}),
    (
        read_edgelist,
        "human_tf/trrust_via_dorothea.csv",
        {"source": "tf", "sign": "mor"},
        2_586,
        7_041,
        {"loops": 22, "unknown": 3_026, "quirk": "3,026 of 7,041 edges are there with unknown sign"},
    ),
    (
        read_edgelist,
        "human_tf/trrust_via_dorothea.csv",
        {"source": "tf", "sign": "mor"},
        2_586,
        7_041,
        {"quirk": "quoted cells that hold the separator ','"},
    ),
    (
        read_edgelist,
        "signalling/omnipath_carnival.tsv",
        {"sign": "interaction", "on_duplicate": "first", "on_conflict": "unknown"},
        6_124,
        19_806,
        {
            "rows_read": 19_807,
            "rows_dropped": 1,
            "components": 111,
            "conflicts": [("CASP3", "DFFA")],
            "quirk": "1 edge.s. with both . and -",
        },
    ),
    (
        read_edgelist,
        "signalling/omnipath_carnival.tsv",
        {"sign": "interaction", "on_duplicate": "first", "on_conflict": "unknown"},
        6_124,
        19_806,
        {"quirk": "join names of other nodes by '_'"},
    ),
    (read_sif, f"{SIF}ToyMMB.sif", {}, 15, 16, {"cycles": False}),
    (read_sif, f"{SIF}LiverDREAM.sif", {}, 40, 58, {"cycles": False}),
    (read_sif, f"{SIF}ExtLiverPCB.sif", {}, 82, 116, {"cycles": False}),
    (
        read_sif,
        f"{SIF}EGFR-ErbB_PCB2009.sif",
        {},
        202,
        465,
        {"twins": (("ERK12", "erk12"),), "quirk": "98 node.s. named like gates", "cycles": True},
    ),
    (
        read_sif,
        f"{SIF}EGFR-ErbB_PCB2009.sif",
        {},
        202,
        465,
        {"quirk": "1 set of names differing only in case: 'ERK12' / 'erk12'"},
    ),
    (
        read_graphml,
        "signalling/magine_colored_enrichment.graphml",
        {"weight": "weight"},
        19,
        279,
        {"quirk": "18 name.s. with blanks: 'DNA geometric change'"},
    ),
    (
        read_edgelist,
        f"{COLI}6_2.tsv",
        {"header": False, "sign": 2},
        1_502,
        3_586,
        {"loops": 99, "cells": {"+": 1, "-": -1, "+-": 0, "?": 0}, "quirk": "no header"},
    ),
    (
        read_edgelist,
        f"{COLI}6_7.tsv",
        {"header": False, "sign": 2},
        1_565,
        3_758,
        {"loops": 110, "cells": {"+": 1, "-": -1, "+-": 0, "?": 0}, "quirk": "no header"},
    ),
    (read_edgelist, YEAST, {"header": False}, 4_441, 12_873, {"quirk": "lines end in CRLF"}),
    (read_edgelist, "dream4/size10_1/goldStandard.tsv", GOLD, 10, 15, {"rows_read": 90, "rows_dropped": 75}),
    (
        read_edgelist,
        "dream4/size100_1/goldStandard.tsv",
        GOLD,
        100,
        176,
        {"rows_read": 9_900, "rows_dropped": 9_724},
    ),
    (read_edgelist, f"{GNW}10_1.tsv", GOLD, 10, 15, {"rows_dropped": 75}),
    (read_edgelist, f"{GNW}100_1.tsv", GOLD, 100, 176, {"rows_dropped": 9_724}),
    (
        read_edgelist,
        "sergio/DS8/gt_GRN.csv",
        {"header": False},
        100,
        137,
        {"cycles": False, "quirk": "100 name.s. are whole numbers"},
    ),
    (
        read_edgelist,
        "binn_reactome/kpnn_format_Edgelist.csv",
        {"source": "parent", "target": "child"},
        1_549,
        4_323,
        {"cycles": False, "quirk": r"460 name.s. end in '_gene'"},
    ),
    (
        read_edgelist,
        "scanpy/sim_models_krumsiek11.txt",
        {"header": False, "skip_lines": 24, "sep": "whitespace", "weight": 2},
        11,
        30,
        {"skipped": 24},
    ),
]


@pytest.mark.parametrize(
    ("read", "file", "how", "nodes", "edges", "says"),
    FILES,
    ids=[row[1] for row in FILES],
)
def test_file(data_dir, read, file, how, nodes, edges, says):
    graph, report = read(data_dir / file, return_report=True, **how)
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert read(data_dir / file, **how) == graph
    assert (report.nodes, report.edges, report.rows_kept) == (nodes, edges, edges)
    assert report.rows_read == report.rows_kept + report.rows_dropped
    found = {
        "loops": len(report.self_loops),
        "unknown": report.sign_counts and report.sign_counts[2],
        "conflicts": [(e.source, e.target) for e in report.duplicates_conflicting],
        "cycles": report.has_cycle,
        "twins": report.case_twins,
        "cells": {cell.cell: cell.sign for cell in report.sign_cells},
    }
    for what, expected in says.items():
        if what == "quirk":
            assert any(re.search(expected, quirk) for quirk in report.quirks), report.quirks
            continue
        assert (found[what] if what in found else getattr(report, what)) == expected, what


def test_duplicate_rows_of_gsd_are_named(data_dir):
    path = data_dir / "beeline/GSD/refNetwork.csv"
    _, report = read_edgelist(path, return_report=True, **BEELINE)
    rows = [line.strip().split(",")[:2] for line in path.read_text().splitlines()]
    seen = set()
    later = []
    for number, row in enumerate(rows[1:], start=2):
        if tuple(row) in seen:
            later.append((number, *row))
        seen.add(tuple(row))
    frame = report.dropped_frame()
    assert list(zip(frame.line, frame.source, frame.target, strict=True)) == later
    assert len(report.duplicates_agreeing) == len({row[1:] for row in later}) == 6


def test_protein_pathway_table_has_361_duplicates(data_dir):
    path = data_dir / "binn_reactome/uniprot_2_reactome.filtered_to_sample.tsv"
    how = {"header": False, "bipartite": True, "on_duplicate": "first"}
    graph, report = read_edgelist(path, return_report=True, **how)
    assert report.rows_dropped == report.rows_read - 3_218 == 361
    assert graph.num_edges == 3_218


@pytest.mark.parametrize("name", ["h.all.v6.1.symbols", "h.all.v7.0.symbols", "genes"])
def test_gmt(data_dir, name):
    path = data_dir / f"gmt/{name}.gmt"
    graph, report = read_gmt(path, return_report=True)
    lines = [line.rstrip("\n").split("\t") for line in path.read_text().splitlines()]
    pairs = {(gene, line[0]) for line in lines for gene in line[2:]}
    assert set(graph.edges) == pairs
    assert len(graph.target_nodes) == len(lines) == (8 if name == "genes" else 50)
    assert report.rows_kept == len(pairs) == graph.num_edges
    assert report.sides == (len({gene for gene, _ in pairs}), len(lines))


def _lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_reactome_hierarchy_above_gene_sets(data_dir, tmp_path):
    import networkx as nx

    folder = data_dir / "binn_reactome"
    rows = [line.split("\t")[:2] for line in _lines(folder / "uniprot_2_reactome.filtered_to_sample.tsv")]
    sets: dict[str, set[str]] = {}
    for protein, pathway in rows:
        sets.setdefault(pathway, set()).add(protein)
    path = tmp_path / "reactome.gmt"
    path.write_text(
        "".join(f"{name}\tna\t" + "\t".join(sorted(genes)) + "\n" for name, genes in sets.items())
    )
    table = folder / "reactome_pathways_relation_2025_01_14.txt"
    graph, report = read_gmt(path, parents=table, parents_header=False, return_report=True)

    relations = [tuple(line.split()) for line in _lines(table)]
    every = nx.DiGraph([(child, parent) for parent, child in relations])
    above = set(sets).union(*(nx.descendants(every, name) for name in sets if name in every))
    up = {(child, parent) for parent, child in relations if child in above}
    assert set(graph.edges) == up | {(gene, name) for name, genes in sets.items() for gene in genes}
    assert not graph.is_bipartite
    assert report.rows_dropped == len(relations) - len(up)
    assert not report.has_cycle


@pytest.mark.parametrize("name", ["GSD", "HSC", "VSC", "mCAD", "EMT"])
def test_rule_files_are_refused(data_dir, name):
    with pytest.raises(PriorGraphError, match="Boolean rule"):
        read_edgelist(
            data_dir / f"boolode_rules/{name}.txt", source="Gene", target="Rule", return_report=True
        )


def test_one_pair_with_both_signs_is_refused_by_default(data_dir):
    path = data_dir / "signalling/omnipath_carnival.tsv"
    with pytest.raises(PriorGraphError, match=r"\+ and - for 1 edge.*CASP3 -> DFFA"):
        read_edgelist(path, sign="interaction", on_duplicate="first", return_report=True)
