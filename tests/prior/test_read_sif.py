"""read_sif: lines, types, and files of strangers."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import DEFAULT_SIGNS, PriorGraph, read_sif


@pytest.fixture
def write(tmp_path):
    def _write(text, name="net.sif"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return _write


def test_lines_with_several_targets_and_with_none(write):
    path = write("a\t1\tb\tc\r\nb\t-1\tc\r\n\r\nalone\r\nc\r\n")
    graph, report = read_sif(path, return_report=True)
    assert graph == PriorGraph.from_edges(
        [("a", "b"), ("a", "c"), ("b", "c")], sign=[1, 1, -1], nodes=["alone"]
    )
    assert (report.rows_read, report.node_lines, report.blanks, report.isolated) == (3, 2, 1, ("alone",))
    assert "1 line(s) name several targets, each an edge of its own" in report.quirks
    assert "lines end in CRLF" in report.quirks


def test_lines_of_each_kind_are_counted(write):
    _, report = read_sif(write("a 1 b c\nb 1 c\nc 1 d\na 1 d\ne\nf\n"), return_report=True)
    assert [quirk for quirk in report.quirks if "several targets" in quirk] == [
        "1 line(s) name several targets, each an edge of its own"
    ]
    counts = dict(line.strip().rsplit("  ", 1) for line in str(report).splitlines() if "node only" in line)
    assert {what.strip(): int(count) for what, count in counts.items()} == {"lines that name a node only": 2}
    _, report = read_sif(write("b 1 c\nc 1 d\n"), return_report=True)
    assert "node only" not in str(report)
    assert not any("several targets" in quirk for quirk in report.quirks)


def test_tabs_anywhere_make_blanks_part_of_names(write):
    assert read_sif(write("heat shock\tactivates\tHSF1\nlone one\n")).nodes == (
        "HSF1",
        "heat shock",
        "lone one",
    )
    assert read_sif(write("a   activates  b  c\n  d\n")).nodes == ("a", "b", "c", "d")
    assert read_sif(write("a b\t1\tc\n"), sep="\t").nodes == ("a b", "c")
    assert read_sif(write("a\t1 b\n"), sep=" ").nodes == ("a", "b")


@pytest.mark.parametrize(
    ("word", "sign"),
    [("1", 1), ("-1", -1), ("activates", 1), ("Inhibits", -1), ("0", 0), ("upregulates-expression", 1)],
)
def test_types_of_the_built_in_table(write, word, sign):
    graph = read_sif(write(f"a {word} b\nc 1 d\n"))
    assert graph.sign.tolist() == [sign, 1]


def test_types_are_a_table_the_user_can_change(write):
    path = write("a pp b\na 1 c\nb pd c\n")
    with pytest.raises(
        PriorGraphError, match=r"'pp' at line 1 of net.sif \(a -> b\), 'pd' at line 3.*sign_m"
    ):
        read_sif(path)
    assert read_sif(path, sign_map={**DEFAULT_SIGNS, "pp": 0, "pd": -1}).sign.tolist() == [0, 1, -1]
    graph, report = read_sif(path, read_signs=False, return_report=True)
    assert graph.sign is None
    assert "interaction types that were not read: 'pp', '1', 'pd'" in report.quirks


def test_quotes_are_characters(write):
    assert read_sif(write('"a 1 b"\n')).edges == (('"a', 'b"'),)


def test_options_reach_the_graph(write):
    path = write("# made by hand\na 1 b\na -1 b\nb 1 b\n", "net.sif.gz")
    graph, report = read_sif(
        path,
        comment="#",
        on_duplicate="first",
        on_conflict="unknown",
        drop_self_loops=True,
        nodes=["z"],
        widths={"a": 2},
        return_report=True,
    )
    assert graph == PriorGraph.from_edges([("a", "b")], nodes=["z"], widths={"a": 2})
    assert [(group.lines, group.reason[:7]) for group in report.dropped] == [
        ((4,), "self-lo"),
        ((3,), "repeats"),
    ]
    assert report.comments == 1


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("a 1\n", {}, r"one node. Got 'a 1' on line 1"),
        ("a\t\tb\n", {}, r"Got 'a\\t\\tb' on line 1"),
        ("a\t1\t\tb\n", {}, "on line 1"),
        ("\t1\tb\n", {}, "on line 1"),
        ("a 1 b\na 1 b\n", {}, r"line 2 of net.sif .a -> b. repeats line 1"),
        ("a\n", {}, "at least one edge"),
        ("", {}, "at least one edge"),
        ("a\0 1 b\n", {}, "NUL"),
        (b"\xff\xfe\x00", {}, "must be text in utf-8-sig"),
        ("a 1 b\n", {"sep": ","}, "must be None, a tab or a blank. Got ','"),
        ("a 1 b\n", {"sign_map": "x"}, "'sign_map' must be a mapping"),
        ("a 1 b\n", {"read_signs": 1}, "'read_signs' must be True or False"),
        ("a 1 b\n", {"max_bytes": 3}, "at most 3 bytes"),
        ("a 1 b\n", {"comment": ""}, "'comment' must be"),
        ("a 1 b\n", {"encoding": "utf-99"}, "known text encoding"),
    ],
)
def test_faults(write, text, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_sif(write(text), **how)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sif(tmp_path / "none.sif")


def test_a_gzip_bomb_ends_at_the_bound(write):
    path = write(b"a 1 b\n" * 500_000, "net.sif.gz")
    assert path.stat().st_size < 50_000
    with pytest.raises(PriorGraphError, match="at most 100,000 bytes of text, once unpacked"):
        read_sif(path, max_bytes=100_000)
    cut = path.read_bytes()[:-5]
    path.write_bytes(cut)
    with pytest.raises(PriorGraphError, match="whole gzip file"):
        read_sif(path, on_duplicate="first")


BYTES = [b"\t", b"\n", b"\r", b" ", b"\0", b"\xff"]
VALID = b"a\t1\tb\tc\nb\t-1\td e\n\xc3\xa9\tactivates\ta\nalone\n"


@st.composite
def damaged(draw, valid=VALID):
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        what = draw(
            st.sampled_from([b"\t", b"\n", b"\r", b" ", b"\0", b"\xff", b"1", b"<", b'"', b"\xef\xbb\xbf"])
        )
        data[at : at + draw(st.integers(0, 3))] = what
    return bytes(data)


def test_any_bytes_give_a_right_graph_or_the_one_error(tmp_path):
    path = tmp_path / "net.sif"

    @settings(max_examples=150, deadline=None)
    @given(st.one_of(st.binary(max_size=80), damaged()))
    @example(VALID)
    def check(data):
        path.write_bytes(data)
        try:
            graph, report = read_sif(path, return_report=True)
        except PriorGraphError:
            return
        # a second opinion: bytes to text to lines, nothing shared with the reader
        lines = (
            data.decode("utf-8-sig").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        )
        lines = [line for line in lines if line.strip()]
        edges, alone = set(), set()
        for line in lines:
            cells = line.rstrip("\t ").split("\t") if any("\t" in each for each in lines) else line.split(" ")
            cells = [cell.strip() for cell in cells]
            cells = cells if any("\t" in each for each in lines) else [cell for cell in cells if cell]
            edges |= {(cells[0], target) for target in cells[2:]}
            alone |= {cells[0]}
        assert set(graph.edges) == edges
        assert set(graph.nodes) == alone | {end for edge in edges for end in edge}
        assert report.rows_read == len(edges)

    check()
