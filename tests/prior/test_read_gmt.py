"""read_gmt: sets, hierarchies, and files of strangers."""

from __future__ import annotations

import gzip

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_gmt

TEXT = "s1\thttp://x\tA\tB\ns2\t\tB\tC\n"
TREE = "parent,child\ntop,mid\nmid,s1\nmid,s2\nother,else\n"


@pytest.fixture
def write(tmp_path):
    def _write(text, name="sets.gmt"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return _write


@pytest.mark.parametrize("name", ["sets.gmt", "sets.gmt.gz", "sets.txt"])
def test_sets_are_the_targets_of_their_genes(write, name):
    graph, report = read_gmt(write(TEXT, name), return_report=True)
    assert graph == PriorGraph.bipartite([("A", "s1"), ("B", "s1"), ("B", "s2"), ("C", "s2")])
    assert (report.sides, report.rows_read, report.has_cycle) == ((3, 2), 4, False)


def test_empty_cells_and_sets_without_genes_are_told(write):
    graph, report = read_gmt(write("s1\tna\tA\t\tB\t\t\r\nbare\tna\r\n"), return_report=True)
    assert graph.edges == (("A", "s1"), ("B", "s1"))
    assert graph.target_nodes == ("bare", "s1")
    (dropped,) = report.dropped
    assert (dropped.reason, dropped.lines) == ("an empty cell in place of a gene", (1, 1, 1))
    assert report.rows_read == 5
    assert report.isolated == ("bare",)
    assert "1 set(s) without a gene: 'bare'" in report.quirks


def test_a_gene_twice_and_a_set_twice(write):
    path = write("s1\tna\tA\tA\n")
    with pytest.raises(PriorGraphError, match=r"line 1 of sets.gmt .A -> s1. repeats line 1"):
        read_gmt(path)
    assert read_gmt(path, on_duplicate="first", return_report=True)[1].rows_dropped == 1
    path = write("s1\tna\tA\ns1\tna\tB\tA\n")
    with pytest.raises(PriorGraphError, match=r"one line. Got 's1' on lines 1 and 2 of sets.gmt"):
        read_gmt(path)
    graph, report = read_gmt(path, on_duplicate="first", return_report=True)
    assert graph.edges == (("A", "s1"), ("B", "s1"))
    assert report.dropped[0].lines == (2,)
    assert any("further line(s) of a set were joined" in quirk for quirk in report.quirks)


def test_a_hierarchy_above_the_sets(write):
    tree = write(TREE, "tree.csv")
    due = [("A", "s1"), ("B", "s1"), ("B", "s2"), ("C", "s2"), ("s1", "mid"), ("s2", "mid"), ("mid", "top")]
    graph, report = read_gmt(write(TEXT), parents=tree, return_report=True)
    assert graph == PriorGraph.from_edges(due)
    assert not graph.is_bipartite
    (dropped,) = report.dropped
    assert dropped.lines == (5,)
    assert dropped.edges == (("else", "other"),)
    assert dropped.reason.startswith("line of tree.csv that leads up from no set of sets.gmt")
    assert read_gmt(write(TEXT), parents=tree, ancestors_only=False) == PriorGraph.from_edges(
        [*due, ("else", "other")]
    )


def test_tables_of_parents_in_any_shape(write):
    due = read_gmt(write(TEXT), parents=write(TREE, "tree.csv"))
    bare = write(TREE.partition("\n")[2].replace(",", "\t"), "tree.txt")
    assert read_gmt(write(TEXT), parents=bare, parents_header=False) == due
    for names in ({"child": "Child"}, {"child": "children"}, {"parent": "Parent"}, {"parent": "up"}):
        with pytest.raises(PriorGraphError, match="Without a header columns are given by position"):
            read_gmt(write(TEXT), parents=bare, parents_header=False, **names)
    turned = write("x;child;up\n;s1;mid\n;s2;mid\n;mid;top\n".replace(";", "\t"), "turned.tsv")
    assert read_gmt(write(TEXT), parents=turned, parent="up") == due
    frame = pd.DataFrame({"low": ["s1", "s2", "mid"], "high": ["mid", "mid", "top"]})
    assert read_gmt(write(TEXT), parents=frame, parent="high", child="low") == due
    numbers = pd.DataFrame({"parent": [7, 7], "child": ["s1", "s2"]})
    assert "7" in read_gmt(write(TEXT), parents=numbers).nodes


def test_a_set_without_a_parent_stays(write):
    graph, report = read_gmt(
        write(TEXT), parents=pd.DataFrame({"parent": ["mid"], "child": ["s1"]}), return_report=True
    )
    assert graph.output_nodes == ("mid", "s2")
    assert "1 set(s) without a parent: 's2'" in report.quirks
    bare = write(TEXT + "bare\tna\n")  # nor with a gene
    assert "bare" in read_gmt(bare, parents=pd.DataFrame({"parent": ["mid"], "child": ["s1"]})).nodes


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("s1\n", {}, r"a description and genes, apart by tabs. Got 's1' on line 1 of sets.gmt"),
        ("s1 na A B\n", {}, "apart by tabs"),
        ("\tna\tA\n", {}, "on line 1 of sets.gmt"),
        ("s1\tna\n", {}, "a set with a gene. Got none in sets.gmt"),
        ("", {}, "a set with a gene"),
        (b"s\t\tA\xff\n", {}, "must be text in utf-8-sig"),
        (TEXT, {"max_bytes": 5}, "at most 5 bytes"),
        (TEXT, {"parents": 5}, "'parents' must be a data frame or the path of a table. Got int"),
        (TEXT, {"parents": pd.DataFrame({"a": ["x"]})}, "one child column 'child'"),
        (
            TEXT,
            {"parents": pd.DataFrame({"parent": ["x"], "child": ["S1"]})},
            "'s1', 's2' among.*'S1'",
        ),
        (TEXT, {"parents": pd.DataFrame({"parent": [None], "child": ["s1"]})}, "none at row 0 of parents"),
        (TEXT, {"parents": pd.DataFrame({"parent": ["A"], "child": ["s1"]})}, "no name may be both. Got 'A'"),
        (
            TEXT,
            {"parents": pd.DataFrame({"parent": ["x", "x"], "child": ["s1", "s1"]})},
            r"row 1 of parents .s1 -> x. repeats row 0 of parents",
        ),
        (TEXT, {"return_report": 1}, "'return_report' must be True or False"),
    ],
)
def test_faults(write, text, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_gmt(write(text), **how)


def test_a_gzip_bomb_ends_at_the_bound(write):
    path = write(b"s\tna\t" + b"A\t" * 400_000, "sets.gmt.gz")
    with pytest.raises(PriorGraphError, match="at most 50,000 bytes"):
        read_gmt(path, max_bytes=50_000)


BYTES = [b"\t", b"\n", b"\r", b" ", b"\0", b"\xff"]
VALID = b"s1\tna\tA\tB\ns2\t\tB\tC\xc3\xa9\n"


@st.composite
def damaged(draw):
    data = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        what = draw(
            st.sampled_from([b"\t", b"\n", b"\r", b" ", b"\0", b"\xff", b"s1", b'"', b"\xef\xbb\xbf"])
        )
        data[at : at + draw(st.integers(0, 3))] = what
    return bytes(data)


def test_any_bytes_give_a_right_graph_or_the_one_error(tmp_path):
    path = tmp_path / "sets.gmt"

    @settings(max_examples=150, deadline=None)
    @given(st.one_of(st.binary(max_size=60), damaged()))
    @example(VALID)
    def check(data):
        path.write_bytes(data)
        try:
            graph, report = read_gmt(path, return_report=True)
        except PriorGraphError:
            return
        text = data.decode("utf-8-sig").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        lines = [[cell.strip() for cell in line.split("\t")] for line in text.split("\n") if line.strip()]
        assert set(graph.edges) == {(gene, cells[0]) for cells in lines for gene in cells[2:] if gene}
        assert set(graph.target_nodes) == {cells[0] for cells in lines}
        assert report.rows_read == sum(len(cells) - 2 for cells in lines)

    check()
