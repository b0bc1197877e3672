"""Files and names far too large: an error or the right graph, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager

import pytest

from pyg_kpnn import PriorGraph, PriorGraphError, align_inputs, read_edgelist
from pyg_kpnn.prior.readers import MAX_BYTES
from pyg_kpnn.prior.text import MAX_RECORD

MB = 1_000_000
HEAD = "source,target\n"


@contextmanager
def within(seconds: float, megabytes: float):
    """Fail when the block takes more processor time or more memory at once."""
    tracemalloc.start()
    begun = time.process_time()
    try:
        yield
        took, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < seconds
    assert peak < megabytes * MB, f"{peak / MB:.0f} MB"


def bomb(path, unit: bytes, megabytes: int, head: str = HEAD):
    """A gzip file of a few kilobytes that unpacks to ``megabytes`` of one repeated piece of text."""
    piece = unit * (MB // len(unit))
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head.encode())
        for _ in range(megabytes):
            file.write(piece)
    return path


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (b"a,b\n", "at most 400,000 bytes"),
        (b"\n", "at most 400,000 bytes"),
        (b" \r", "at most 400,000 bytes"),
        (b"#\n", "at most 400,000 bytes"),
        (b"a,b,c\n", "at most 400,000 bytes"),
        (b"x", "at most 400,000 bytes"),
        (b",", "at most 400,000 bytes"),
        (b'"q\n', "well-formed"),
        (b'"q\n",', "at most 400,000 bytes"),
        (b"\0", "at most 400,000 bytes"),
    ],
)
def test_a_gzip_bomb_ends_at_the_bound(tmp_path, unit, words):
    path = bomb(tmp_path / "bomb.csv.gz", unit, 30)
    # rows of all the 30 MB would be far more than this
    with within(10, 25), pytest.raises(PriorGraphError, match=words):
        read_edgelist(path, comment="#", max_bytes=400_000)


@pytest.mark.parametrize("unit", [b"x", b",", b'"",', b'"q\n",'])
def test_one_endless_record_ends_before_the_file_does(tmp_path, unit):
    path = bomb(tmp_path / "bomb.csv.gz", unit, 100)
    begun = time.process_time()
    with pytest.raises(PriorGraphError, match=rf"at most {MAX_RECORD:,} characters.*on line 2"):
        read_edgelist(path)
    assert time.process_time() - begun < 3


def test_the_bound_counts_unpacked_bytes_exactly_and_says_how_to_raise_it(tmp_path):
    text = HEAD + "é,b\na,c\n"
    size = len(text.encode())
    path, packed = tmp_path / "n.csv", tmp_path / "n.csv.gz"
    path.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    for each in (path, packed):
        assert read_edgelist(each, max_bytes=size).edges == (("a", "c"), ("é", "b"))
        with pytest.raises(PriorGraphError, match=rf"at most {size - 1} bytes.*larger max_bytes="):
            read_edgelist(each, max_bytes=size - 1)


@pytest.mark.parametrize("bound", [0, -1, 1.5, "1", True, None])
def test_a_bound_that_is_none_is_told(tmp_path, bound):
    path = tmp_path / "n.csv"
    path.write_text(HEAD + "a,b\n")
    with pytest.raises(PriorGraphError, match="'max_bytes' must be a positive whole number"):
        read_edgelist(path, max_bytes=bound)


def test_members_of_a_gzip_file_count_together(tmp_path):
    path = tmp_path / "n.csv.gz"
    path.write_bytes(gzip.compress(HEAD.encode()) + gzip.compress(b"a,b\n") + gzip.compress(b"c,d\n"))
    assert read_edgelist(path).edges == (("a", "b"), ("c", "d"))
    with pytest.raises(PriorGraphError, match="at most 20 bytes"):
        read_edgelist(path, max_bytes=20)


def test_a_file_without_an_end_ends(tmp_path):
    path = tmp_path / "endless.csv"
    path.symlink_to("/dev/zero")
    with within(5, 20), pytest.raises(PriorGraphError, match="NUL"):
        read_edgelist(path)


def test_the_default_bound_is_what_the_documentation_says():
    assert MAX_BYTES == 256 * 2**20
    assert f"default {MAX_BYTES} (256 MiB)" in read_edgelist.__doc__


# ---------------------------------------------------------------- names


def test_names_of_a_megabyte_are_refused_in_files_and_shown_short(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text(HEAD + f"{'a' * MB},b\n")
    with within(2, 20), pytest.raises(PriorGraphError, match="on line 2") as refused:
        read_edgelist(path)
    assert len(str(refused.value)) < 500


def test_names_of_a_megabyte_are_names_in_memory():
    long = ["x" * MB + end for end in "abc"]
    with within(5, 60):
        graph = PriorGraph.from_edges([(name, "gene") for name in long])
        assert graph.input_nodes == tuple(long)
        assert align_inputs([*reversed(long), "gene"], graph).tolist() == [3, 2, 1, 0]
        assert len(graph.fingerprint) == 64


def huge(end: str) -> str:
    """Half a megabyte of text with no common character, on which a comparison letter by letter is slowest."""
    return "".join(map(chr, range(0x4E00, 0x4E00 + 5_000))) * 100 + end


HUGE = PriorGraph.from_edges([(huge("a"), huge("b")), (huge("a"), "c")])


@pytest.mark.parametrize(
    "use",
    [
        lambda: align_inputs([huge("A"), huge("B"), "c"], HUGE),
        lambda: align_inputs([huge("a"), huge("b"), "c", huge("d")], HUGE, extra="error"),
        lambda: align_inputs([huge("a"), huge("b"), "c", huge("b")], HUGE),
        lambda: align_inputs([huge("a"), huge("b"), "c"], HUGE, nodes=[huge("d")]),
        lambda: HUGE.node_units(huge("B")),
        lambda: HUGE.subgraph([huge("d")]),
        lambda: HUGE.edge_location(huge("b"), huge("a")),
        lambda: PriorGraph.from_edges([(huge("a"), "b")] * 2),
        lambda: PriorGraph.from_edges([(huge("a"), "b")], sign=[huge("+")]),
        lambda: PriorGraph.from_edges([(huge("a"), "b")], weight=[huge("1")]),
        lambda: PriorGraph.from_edges([(huge("a"), "b")], widths={huge("d"): 2}),
        lambda: PriorGraph.from_edges([(huge("a"), "b")], widths={huge("a"): 0}),
        lambda: PriorGraph.from_edges([(huge("\ud800"), "b")]),
        lambda: PriorGraph.from_edges([(huge("a").encode(), "b")]),
        lambda: PriorGraph.from_edges([(huge("a"), "b", "c")]),
        lambda: PriorGraph.from_edges(huge("a")),
        lambda: PriorGraph.from_networkx(PriorGraph.from_edges([(huge("a"), "b")]).to_networkx(), sign="s"),
        lambda: PriorGraph.from_dict({huge("a"): 1}),
        lambda: PriorGraph.from_dict({"kpnn2_spec": 1, "layout": huge("a"), "edges": []}),
        lambda: PriorGraph.bipartite([(huge("a"), "b")], sources=[huge("d")]),
    ],
)
def test_errors_about_huge_names_are_short_and_quick(use):
    begun = time.process_time()
    with pytest.raises(PriorGraphError) as refused:
        use()
    assert time.process_time() - begun < 5
    assert len(str(refused.value)) < 1_500


def test_names_that_nearly_match_among_very_many_take_no_longer():
    graph = PriorGraph.from_edges([(f"gene{i:06}", "target") for i in range(150_000)])
    begun = time.process_time()
    with pytest.raises(PriorGraphError, match=r"no column for 150001 of 150001") as refused:
        align_inputs([f"Gen{i:06}" for i in range(150_000)], graph)
    assert time.process_time() - begun < 10
    assert len(str(refused.value)) < 1_000


# ---------------------------------------------------------------- in a process of its own, at full size

CHILD = """
import json, resource, sys, time
import pandas
from pyg_kpnn import PriorGraphError, read_edgelist
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begun = time.process_time()
try:
    graph = read_edgelist(sys.argv[1], **json.loads(sys.argv[2]))
    said = [graph.num_nodes, graph.num_edges, *graph.edges[:1], *graph.edges[-1:]]
except PriorGraphError as error:
    said = str(error)
took = time.process_time() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"said": said, "seconds": took, "mebibytes": (peak - before) / 1024}))
"""


def in_a_process(path, **options):
    command = [sys.executable, "-c", CHILD, str(path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_table_of_ten_million_rows(tmp_path, capsys):
    path, side = tmp_path / "n.tsv", 3_163
    with path.open("w") as file:
        file.write("source\ttarget\tnote\n")
        for first in range(side):
            file.writelines(f"g{first}\tt{second}\t\n" for second in range(side))
    got = in_a_process(path)
    with capsys.disabled():
        print(f"\n{side**2:,} rows: {got['seconds']:.0f} s, {got['mebibytes']:,.0f} MiB", end=" ")
    assert got["said"] == [2 * side, side**2, ["g0", "t0"], ["g999", "t999"]]
    assert got["seconds"] < 120
    assert got["mebibytes"] < 2_000


@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"x,y,z\n", b"\n", b"x", b'"q\n",'])
def test_a_bomb_of_over_half_a_gigabyte_ends_at_the_default_bound(tmp_path, unit, capsys):
    path = bomb(tmp_path / "bomb.csv.gz", unit, 600)
    got = in_a_process(path)
    with capsys.disabled():
        print(f"\n{unit!r}: {got['seconds']:.0f} s, {got['mebibytes']:,.0f} MiB", end=" ")
    assert "at most" in got["said"]
    assert got["seconds"] < 300
    assert got["mebibytes"] < 1_000
