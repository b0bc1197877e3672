"""What read_edgelist can do beyond plain text tables: parquet, reports, and rows that are no edges."""

from __future__ import annotations

import gzip

import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def write(tmp_path):
    def _write(text, name="net.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return _write


@pytest.fixture
def parquet(tmp_path):
    def _parquet(columns):
        pq.write_table(pa.table(columns), tmp_path / "net.parquet")
        return tmp_path / "net.parquet"

    return _parquet


def test_without_a_report_the_graph_comes_alone(write):
    path = write("source,target\na,b\n")
    assert isinstance(read_edgelist(path), PriorGraph)
    graph, report = read_edgelist(path, return_report=True)
    assert (graph, report.edges) == (read_edgelist(path), 1)


def test_gold_standards_that_list_every_pair(write):
    path = write("a\tb\t1\na\tc\t0\nb\ta\t0\nd\td\t0.0\nb\tc\t-2\n", "gold.tsv")
    graph, report = read_edgelist(path, header=False, keep_nonzero=2, return_report=True)
    assert graph.edges == (("a", "b"), ("b", "c"))
    assert graph.nodes == ("a", "b", "c", "d")  # a pair without an edge still names two nodes
    (dropped,) = report.dropped
    assert dropped.lines == (2, 3, 4)
    assert dropped.reason == "0 in column 2 (keep_nonzero=)"
    assert report.isolated == ("d",)


def test_keep_nonzero_needs_numbers(write):
    path = write("source,target,k\na,b,yes\nb,c,\nc,d,nan\nd,e,inf\n")
    with pytest.raises(PriorGraphError, match=r"'yes' at line 2 of net.csv, '' at line 3.*nan.*inf"):
        read_edgelist(path, keep_nonzero="k")
    with pytest.raises(PriorGraphError, match="one keep_nonzero column 'x'"):
        read_edgelist(path, keep_nonzero="x")


def test_self_loops_are_left_out_and_told(write):
    path = write("source,target\na,a\na,b\nc,c\n")
    graph, report = read_edgelist(path, drop_self_loops=True, return_report=True)
    assert (graph.edges, graph.nodes) == ((("a", "b"),), ("a", "b", "c"))
    assert report.dropped[0][:2] == ("self-loop (drop_self_loops=True)", (2, 4))
    assert report.self_loops == ()


def test_two_missing_names_are_no_self_loop(parquet):
    path = parquet({"source": ["a", None], "target": ["b", None]})
    with pytest.raises(PriorGraphError, match=r"row 2 of net\.parquet"):
        read_edgelist(path, drop_self_loops=True)


def test_bad_rows_are_refused_or_told(write):
    path = write("source,target\na,b\nc\n,d\ne,f,g\n")
    with pytest.raises(PriorGraphError, match=r"1 on line 3, 3 on line 5"):
        read_edgelist(path)
    graph, report = read_edgelist(path, on_bad_row="drop", return_report=True)
    assert graph.nodes == ("a", "b")
    assert [(group.lines, group.reason) for group in report.dropped] == [
        ((3, 5), "not 2 cells (on_bad_row='drop')"),
        ((4,), "no name of source or target (on_bad_row='drop')"),
    ]
    assert report.dropped[1].edges == (("", "d"),)


def test_lines_before_the_table_and_blanks_between_columns(write):
    path = write("about this file\n\nTF   gene\tw\nPu.1  Gata1   -1.5\n  SCL Pu.1 2\n", "net.txt")
    how = {"sep": "whitespace", "skip_lines": 2, "source": "TF", "target": "gene", "weight": "w"}
    graph, report = read_edgelist(path, return_report=True, **how)
    assert (graph.edges, graph.weight.tolist()) == ((("Pu.1", "Gata1"), ("SCL", "Pu.1")), [-1.5, 2.0])
    assert (report.skipped, report.rows_read) == (2, 2)


def test_bipartite(write):
    path = write("source,target\na,a\nb,a\n")
    graph, report = read_edgelist(path, bipartite=True, return_report=True)
    assert (graph.source_nodes, graph.target_nodes) == (("a", "b"), ("a",))
    assert (report.sides, report.self_loops) == ((2, 1), ())
    with pytest.raises(PriorGraphError, match="two sets of nodes"):
        read_edgelist(path, bipartite=True, nodes=["z"])
    with pytest.raises(PriorGraphError, match="two sets of nodes"):
        read_edgelist(path, bipartite=True, drop_self_loops=True)
    gold = write("source,target,k\na,p,1\nb,q,0\n", "gold.csv")
    assert read_edgelist(gold, bipartite=True, keep_nonzero="k").target_nodes == ("p", "q")


def test_parquet(parquet):
    path = parquet(
        {"tf": [" a", "NA", "x\ny"], "gene": ["c", "c", "c"], "mor": [1, -1, None], "w": [0.1, 2.0, 3.0]}
    )
    graph, report = read_edgelist(
        path, source="tf", target="gene", sign="mor", weight="w", return_report=True
    )
    assert graph.edges == ((" a", "c"), ("NA", "c"), ("x\ny", "c"))
    assert graph.sign.tolist() == [1, -1, 0]
    assert graph.weight.tolist() == [0.1, 2.0, 3.0]
    assert report.rows_read == 3
    assert read_edgelist(path, source=0, target=1) == read_edgelist(path, source="tf", target="gene")


def test_parquet_names_of_other_types(parquet):
    path = parquet(
        {
            "source": pa.array([1, 20, 3]),
            "target": pa.array(["x", "x", "y"]).dictionary_encode(),
            "k": [1, 0, 1],
        }
    )
    graph = read_edgelist(path, keep_nonzero="k")
    assert graph.edges == (("1", "x"), ("3", "y"))
    assert "20" in graph.nodes


@pytest.mark.parametrize(
    ("columns", "how", "words"),
    [
        ({"a": ["x"], "target": ["y"]}, {}, r"one source column 'source'. Got the columns 'a', 'target'"),
        ({"source": ["x", None], "target": ["y", "z"]}, {}, r"row 2 of net.parquet"),
        ({"source": ["x", "x"], "target": ["y", "y"]}, {}, r"row 2 of net.parquet .x -> y. repeats row 1"),
        ({"source": [["x"]], "target": ["y"]}, {}, "must hold text or numbers. Got list"),
        ({"source": [b"x"], "target": ["y"]}, {}, "must hold text or numbers. Got .*binary"),
        ({"source": ["x"], "target": ["y"]}, {"sep": ","}, "Got sep for net.parquet"),
        ({"source": ["x"], "target": ["y"]}, {"header": False, "skip_lines": 1}, "Got header, skip_lines"),
        ({"source": ["x" * 500], "target": ["y"]}, {"max_bytes": 100}, "must hold at most"),
        ({"source": [], "target": []}, {}, "at least one edge"),
    ],
)
def test_parquet_faults(parquet, columns, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_edgelist(parquet(columns), **how)


def test_a_parquet_file_of_many_equal_cells_is_bounded(parquet):
    codes = pa.array([0] * 300_000, pa.int32())
    columns = {"source": ["x" * 1000], "target": ["y"]}
    path = parquet({role: pa.DictionaryArray.from_arrays(codes, words) for role, words in columns.items()})
    assert path.stat().st_size < 100_000
    with pytest.raises(PriorGraphError, match="must hold at most"):
        read_edgelist(path, max_bytes=1_000_000)
    with pytest.raises(PriorGraphError, match="299999 duplicate row"):
        read_edgelist(path)


def test_a_parquet_file_may_be_as_large_as_allowed_and_no_larger(parquet):
    path = parquet({"source": ["a", "b"], "target": ["c", "d"], "unread": ["x" * 99, "y" * 99]})
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(0)
    chunks = sum(group.column(i).total_uncompressed_size for i in range(2))
    both = ["source", "target"]
    cells = next(pq.ParquetFile(path, read_dictionary=both).iter_batches(columns=both)).nbytes
    assert read_edgelist(path, max_bytes=chunks + cells) == read_edgelist(path)
    for fewer in (chunks + cells - 1, chunks, chunks - 1):
        with pytest.raises(PriorGraphError, match=f"at most {fewer} bytes, once unpacked. Got more"):
            read_edgelist(path, max_bytes=fewer)


def test_files_that_are_no_parquet(tmp_path, parquet):
    path = parquet({"source": ["x"], "target": ["y"]})
    whole = path.read_bytes()
    for data in (b"", b"PAR1", b"source,target\na,b\n", whole[:-9], whole[: len(whole) // 2] + b"\0" * 50):
        path.write_bytes(data)
        with pytest.raises(PriorGraphError, match=r"net.parquet must be a parquet file"):
            read_edgelist(path)
    with pytest.raises(FileNotFoundError):
        read_edgelist(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"on_bad_row": "skip"}, "'on_bad_row' must be 'error' or 'drop'. Got 'skip'"),
        ({"skip_lines": -1}, "'skip_lines' must be a whole number"),
        ({"skip_lines": True}, "'skip_lines' must be a whole number"),
        ({"drop_self_loops": "no"}, "'drop_self_loops' must be True or False. Got 'no'"),
        ({"return_report": "yes"}, "'return_report' must be True or False"),
        ({"bipartite": 1}, "'bipartite' must be True or False"),
        ({"max_bytes": 0}, "'max_bytes' must be a positive"),
        ({"skip_lines": 9}, "Got nothing in net.csv"),
        ({"source": -1}, "one source column -1. Got the columns 'source', 'target'"),
        ({"target": 2}, "one target column 2. Got the columns 'source', 'target'"),
        ({"target": 3}, "one target column 3. Got the columns 'source', 'target'"),
        ({"header": False, "target": 2}, "one target column 2. Got 2 columns and no header"),
    ],
)
def test_bad_options(write, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_edgelist(write("source,target\na,b\n"), **how)


def test_quirks_of_the_file_itself(write):
    _, report = read_edgelist(write("a,b,x\r\nb,c,y\r\n"), header=False, return_report=True)
    assert report.quirks[:3] == (
        "no header: source is column 0, target column 1",
        "columns that were not read: '2'",
        "lines end in CRLF",
    )
    many = "".join(f"T{i},{name}_gene\n" for i, name in enumerate(["A", "B", "C", "D", "E", "F"]))
    _, report = read_edgelist(write("source,target\n" + many), return_report=True)
    assert "6 name(s) end in '_gene', which a table of data may not have" in report.quirks
    _, report = read_edgelist(write("source,target,s\na,b,-\nb,c,inhibits\n"), sign="s", return_report=True)
    assert "lines end in CRLF" not in report.quirks
    assert "every row has the same sign, -1: the sign column tells edges nothing" in report.quirks
    _, report = read_edgelist(write("source,target\nA,B\nA_B,B\n"), return_report=True)
    assert "1 name(s) join names of other nodes by '_': 'A_B'" in report.quirks


@pytest.mark.parametrize(("others", "told"), [(3, False), (4, True)])
def test_an_ending_counts_from_five_names_that_have_more_before_it(write, others, told):
    names = ["_gene", "T1_gene", *(f"G{i}_gene" for i in range(others))]  # the first is all ending
    text = "".join(f"T,{name}\n" for name in names)
    _, report = read_edgelist(write("source,target\n" + text), return_report=True)
    assert [quirk for quirk in report.quirks if "end in" in quirk] == (
        ["5 name(s) end in '_gene', which a table of data may not have"] if told else []
    )


def test_a_file_without_edges_is_named(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("source,target\n")
    with pytest.raises(PriorGraphError, match=r"Got no rows in net\.csv"):
        read_edgelist(path)
