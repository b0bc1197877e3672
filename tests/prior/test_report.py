"""Reports: every row is accounted for, and pieces and cycles are as networkx finds them."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, RepeatedEdge, SignCell, describe, read_edgelist
from pyg_kpnn.prior.topology import cycle_through, strong_components, weak_components

MESSY = """# from the wiki

source,target,sign,w
a,b,+,1
a,b,activates,2
a,b,+,1
b,a,-,0
c,d,+,1
c,d,-,1
e,e,?,1
f,"g, h",+,1
F,a,-,3
"""


@pytest.fixture
def messy(tmp_path):
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    how = {"sign": "sign", "weight": "w", "comment": "#", "nodes": ["lone"], "return_report": True}
    return read_edgelist(path, on_duplicate="first", on_conflict="unknown", **how)


def test_every_field_of_a_messy_file(messy):
    graph, report = messy
    assert graph.num_edges == 6
    assert (report.file, report.rows_read, report.rows_kept, report.rows_dropped) == ("messy.csv", 9, 6, 3)
    assert (report.comments, report.blanks, report.skipped, report.node_lines) == (1, 1, 0, 0)
    (dropped,) = report.dropped
    assert dropped == (
        "repeats an edge (on_duplicate='first')",
        (5, 6, 9),
        (("a", "b"), ("a", "b"), ("c", "d")),
    )
    assert report.duplicates_agreeing == (RepeatedEdge("a", "b", (4, 5, 6), (1, 1, 1), (1.0, 2.0, 1.0)),)
    assert report.duplicates_conflicting == (RepeatedEdge("c", "d", (8, 9), (1, -1), (1.0, 1.0)),)
    assert (report.nodes, report.edges, report.sides) == (9, 6, None)
    assert (report.self_loops, report.isolated, report.components) == (("e",), ("lone",), 5)
    assert (report.cyclic_components, report.example_cycle, report.has_cycle) == (1, ("a", "b", "a"), True)
    assert (report.reciprocal_pairs, report.sign_counts) == (1, (2, 2, 2))
    assert report.sign_cells == (
        SignCell("+", 1, 4),
        SignCell("activates", 1, 1),
        SignCell("-", -1, 3),
        SignCell("?", 0, 1),
    )
    assert report.case_twins == (("F", "f"),)
    for words in (
        "1 edge(s) with both + and -, now unknown (on_conflict='unknown'): c -> d",
        "1 edge(s) in several rows of different weight, one of them kept: a -> b",
        "1 row(s) have quoted cells that hold the separator ','",
        "2 of 6 edges are there with unknown sign (0)",
        "1 edge(s) of weight 0 are kept as edges",
        "1 reciprocal pair(s), an edge each way: a <-> b",
        "1 name(s) with blanks: 'g, h'",
        "1 set of names differing only in case: 'F' / 'f'",
    ):
        assert words in report.quirks, words
    assert len(report.quirks) == 8


def test_text_says_all_of_it(messy):
    lines = str(messy[1]).splitlines()
    assert lines[0] == "Read report: messy.csv"
    for words in (
        r"  rows read +9",
        r"  rows dropped: repeats an edge \(on_duplicate='first'\) +3   lines 5, 6, 9",
        r"  lines passed over: comment +1",
        r"  edges in several rows, signs conflicting +1   c -> d \(lines 8, 9\)",
        r"  self-loops +1   'e'",
        r"  strongly connected components of several nodes +1   a -> b -> a",
    ):
        assert any(re.fullmatch(words, line) for line in lines), words
    assert "  * 1 set of names differing only in case: 'F' / 'f'" in lines
    assert "'activates' is +1 (1), '-' is -1 (3), '?' is unknown (1)" in str(messy[1])


def test_dict_and_frames(messy):
    report = messy[1]
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["dropped"] == [
        {
            "reason": "repeats an edge (on_duplicate='first')",
            "lines": [5, 6, 9],
            "edges": [["a", "b"], ["a", "b"], ["c", "d"]],
        }
    ]
    assert plain["rows_dropped"] == 3
    assert plain["has_cycle"] is True
    assert plain["example_cycle"] == ["a", "b", "a"]
    assert set(plain) == {*report.__dataclass_fields__, "rows_dropped", "has_cycle"}
    frame = report.to_frame().set_index("finding")
    assert frame.loc["edges", "count"] == 6
    assert frame.loc["isolated nodes", "examples"] == "'lone'"
    rows = report.dropped_frame()
    assert rows.to_dict("list") == {
        "line": [5, 6, 9],
        "reason": ["repeats an edge (on_duplicate='first')"] * 3,
        "source": ["a", "a", "c"],
        "target": ["b", "b", "d"],
    }


def test_reports_are_frozen_and_compare_by_value(messy, tmp_path):
    graph, report = messy
    with pytest.raises(AttributeError):
        report.nodes = 3
    assert describe(graph) == describe(graph)
    assert describe(graph) != report


def test_describe_needs_a_graph():
    with pytest.raises(PriorGraphError, match=r"must be a PriorGraph\. Got list"):
        describe([("a", "b")])


def test_bipartite_names_are_two_nodes():
    report = describe(PriorGraph.bipartite([("a", "a"), ("b", "c")], targets=["a", "c", "z"]))
    assert report.sides == (2, 3)
    assert (report.components, report.isolated, report.self_loops, report.has_cycle) == (3, ("z",), (), False)


@pytest.mark.parametrize("seed", range(4))
def test_long_chains_and_rings_need_no_recursion(seed):
    count = 30_000
    order = np.random.default_rng(seed).permutation(count)
    ring = np.stack([order, np.roll(order, -1)])
    assert weak_components(count, *ring) == 1
    assert strong_components(count, *ring) == [list(range(count))]
    assert len(cycle_through(list(range(count)), *ring)) == count + 1
    assert strong_components(count, *ring[:, :-1]) == []
    assert weak_components(count, *ring[:, 1::2]) == count - count // 2


def test_pieces_and_cycles_are_those_of_networkx(strategies):
    @settings(max_examples=100, deadline=None)
    @given(strategies.node_graphs(simple=False))
    def check(pair):
        nodes, edges = pair
        theirs = nx.DiGraph(edges.T.tolist())
        theirs.add_nodes_from(range(nodes))
        source, target = edges.numpy().reshape(2, -1)
        assert weak_components(nodes, source, target) == nx.number_weakly_connected_components(theirs)
        due = sorted(sorted(part) for part in nx.strongly_connected_components(theirs) if len(part) > 1)
        found = strong_components(nodes, source, target)
        assert sorted(found) == due
        assert [len(part) for part in found] == sorted((len(part) for part in due), reverse=True)
        for part in found:
            cycle = cycle_through(part, source, target)
            assert cycle[0] == cycle[-1] == part[0]
            assert all(theirs.has_edge(*step) for step in pairwise(cycle))
            starts = [n for n in theirs[part[0]] if n in part and n != part[0]]
            after = (nx.shortest_path_length(theirs, n, part[0]) for n in starts)
            assert len(cycle) - 1 == 1 + min(after)

    check()


CELLS = st.sampled_from(["a", "b", "c", "A", ""])
ROWS = st.lists(
    st.tuples(CELLS, CELLS, st.sampled_from(["+", "-", "?", "0", "1"]), st.sampled_from(["0", "1", "-2.5"])),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("on_duplicate", ["first", "max"])
def test_every_row_is_kept_or_dropped_with_its_line(tmp_path, on_duplicate):
    path = tmp_path / "rows.csv"

    @settings(max_examples=100, deadline=None)
    @given(ROWS, st.booleans(), st.booleans(), st.sets(st.integers(0, 13)))
    def check(rows, drop_self_loops, keep_nonzero, ragged):
        lines = ["source,target,sign,w,keep"]
        for i, (s, t, sign, weight) in enumerate(rows):
            lines.append(f"{s},{t},{sign},{weight},{weight}" + ",extra" * (i in ragged))
        path.write_text("\n".join(lines) + "\n")
        # by hand: which line gives which edge, and why another does not
        edges, gone = {}, {}
        for line, (i, (s, t, _, weight)) in enumerate(enumerate(rows), start=2):
            if i in ragged:
                gone[line] = "not 5 cells"
            elif not s or not t:
                gone[line] = "no name"
            elif keep_nonzero and weight == "0":
                gone[line] = "0 in column"
            elif drop_self_loops and s == t:
                gone[line] = "self-loop"
            elif (s, t) in edges:
                gone[line] = "repeats"
            else:
                edges[s, t] = line
        how = dict(
            sign="sign",
            weight="w",
            on_duplicate=on_duplicate,
            on_conflict="unknown",
            on_bad_row="drop",
            drop_self_loops=drop_self_loops,
            keep_nonzero="keep" if keep_nonzero else None,
        )
        if not edges:
            with pytest.raises(PriorGraphError, match="at least one edge"):
                read_edgelist(path, **how)
            return
        graph, report = read_edgelist(path, return_report=True, **how)
        assert set(graph.edges) == set(edges)
        assert (report.rows_read, report.rows_kept) == (len(rows), len(edges))
        found = {line: group.reason for group in report.dropped for line in group.lines}
        assert found.keys() == gone.keys()
        assert all(found[line].startswith(reason) for line, reason in gone.items())
        # names in rows that were left out on purpose are nodes all the same
        named = {
            n
            for line, (s, t, _, _) in enumerate(rows, start=2)
            for n in (s, t)
            if gone.get(line, "")[:2] not in ("no",)
        }
        assert set(graph.nodes) == named
        assert json.loads(json.dumps(report.to_dict()))["rows_dropped"] == len(gone)

    check()


def test_names_that_look_alike_in_print():
    graph = PriorGraph.from_edges([("caf\u00e9", "x"), ("cafe\u0301", "y"), ("F", "x"), ("f", "y")])
    quirk = describe(graph).quirks[-1]
    assert quirk.startswith("2 sets of names differing only in case, blanks or Unicode form: ")
    assert "'caf\\xe9'" in quirk
    assert "'cafe\\u0301'" in quirk
