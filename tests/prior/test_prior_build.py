"""Doors for frames and pairs: parse_adjacency, from_pandas, from_edges; ids, duplicates, signs, widths."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, parse_adjacency


def frame(source, target, **more):
    return pd.DataFrame({"source": source, "target": target, **more})


# --- parse_adjacency ------------------------------------------------------------------------------


def test_parse_by_hand_and_frame_untouched():
    edges = frame(["b", "a", "c"], ["c", "c", "d"], weight=[1, 2, 3], note=["x", None, "y"])
    before = edges.copy(deep=True)
    graph = parse_adjacency(edges, {"c": 2})
    pd.testing.assert_frame_equal(edges, before)
    assert graph.edges == (("a", "c"), ("b", "c"), ("c", "d"))
    assert graph.weight is None
    assert graph.widths == {"c": 2}
    assert parse_adjacency(graph) is graph
    with pytest.raises(PriorGraphError, match="Build it again"):
        parse_adjacency(graph, {"c": 3})


def test_odd_frame_index_and_duplicate_labels_do_not_matter():
    edges = frame(["b", "a"], ["c", "c"])
    edges.index = [7, 7]
    assert parse_adjacency(edges).edges == (("a", "c"), ("b", "c"))


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([("a", "b")], r"must be a pandas.DataFrame. Got list"),
        (None, "Got NoneType"),
        (pd.DataFrame({"source": ["a"], "Target": ["b"]}), "one target column 'target'.*'Target'"),
        (pd.DataFrame([["a", "b", "c"]], columns=["source", "target", "target"]), "Got 2 of that name"),
        (pd.DataFrame({"source": [], "target": []}), "at least one edge"),
        (frame(["a", None, "b"], ["b", "c", "d"]), "name its source.*1 row.*row 1"),
        (frame(["a", "b"], ["b", np.nan]), "name its target.*row 1"),
        (frame(["a", "b"], ["b", pd.NA]), "name its target.*row 1"),
        (frame(["", "b"], ["b", "c"]), "name its source.*row 0"),
        (frame([" \t", "b"], ["b", "c"]), "name its source.*row 0"),
        (frame(pd.array([1, None], dtype="Int64"), [2, 3]), "name its source.*row 1"),
        (frame(pd.array(["a", None], dtype="string"), ["b", "c"]), "name its source.*row 1"),
        (frame(["a", "a", "b"], ["b", "b", "c"]), r"listed once.*1 duplicate.*row 1 \(a -> b\)"),
        (frame(["a", "b"], ["b", "a"]), "input node.*2 nodes"),
        (frame(["a", "b"], ["b", "b"]), "output node.*2 nodes"),
        (frame([["a"], "b"], ["b", "c"]), r"text or numbers. Got \['a'\]"),
        (frame([b"a", "b"], ["b", "c"]), "Decode"),
        (frame(["a", "\ud800"], ["b", "c"]), "lone surrogate"),
    ],
)
def test_parse_refuses(edges, words):
    with pytest.raises(PriorGraphError, match=words):
        parse_adjacency(edges)


def test_long_lists_are_cut_at_five():
    rows = [None] * 7 + ["a"]
    with pytest.raises(PriorGraphError, match=r"row 0, row 1, row 2, row 3, row 4 and 2 more"):
        parse_adjacency(frame(rows, list("bcdefghi")))


@pytest.mark.parametrize(
    ("widths", "words"),
    [
        ({"c": True}, "Got True .bool. for node 'c'"),
        ({"c": np.bool_(True)}, "for node 'c'"),
        ({"c": 2.0}, r"Got 2.0 \(float\)"),
        ({"c": 0}, "Got 0"),
        ({"c": -1}, "Got -1"),
        ({"c": "2"}, "Got '2'"),
        ({"C": 2}, r"'C' \(differs only in case from 'c'\)"),
        ([("c", 2)], "must be a mapping"),
        ({"a": 2}, "input node must have width 1.*'a' with 2"),
        ({1: 2, "1": 2}, "name each node once"),
    ],
)
def test_bad_widths(widths, words):
    with pytest.raises(PriorGraphError, match=words):
        parse_adjacency(frame(["a", "b"], ["c", "c"]), widths)


def test_widths_that_say_nothing_are_equal():
    edges = frame([1, 2], [3, 3])
    assert parse_adjacency(edges) == parse_adjacency(edges, {}) == parse_adjacency(edges, {3: 1, "1": 1})
    assert parse_adjacency(edges, widths={3: np.int32(2)}).widths == {"3": 2}


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["list", "array", "tensor", "ints32", "frame", "Int64", "category", "object"]
)
def test_ints_of_every_kind_are_one_graph(kind):
    pairs = [(10, 9), (9, 100), (7, 10)]
    array = np.array(pairs)
    expected = PriorGraph.from_edges([("10", "9"), ("9", "100"), ("7", "10")])
    columns = {"source": array[:, 0], "target": array[:, 1]}
    built = {
        "list": lambda: PriorGraph.from_edges(pairs),
        "array": lambda: PriorGraph.from_edges(array),
        "tensor": lambda: PriorGraph.from_edges(torch.tensor(pairs)),
        "ints32": lambda: PriorGraph.from_edges([(np.int32(a), b) for a, b in pairs]),
        "frame": lambda: PriorGraph.from_pandas(pd.DataFrame(columns)),
        "Int64": lambda: PriorGraph.from_pandas(pd.DataFrame(columns).astype("Int64")),
        "category": lambda: PriorGraph.from_pandas(pd.DataFrame(columns).astype("category")),
        "object": lambda: PriorGraph.from_pandas(pd.DataFrame(columns).astype(object)),
    }[kind]()
    assert built == expected
    assert built.nodes == ("10", "100", "7", "9")


@pytest.mark.parametrize("dtype", ["object", "string", "str", "category"])
def test_text_of_every_dtype_is_one_graph(dtype):
    edges = frame(["b", "a"], ["c", "c"]).astype(dtype)
    assert PriorGraph.from_pandas(edges).edges == (("a", "c"), ("b", "c"))


class Gene(str, Enum):
    A = "a"


def test_str_subclasses_are_their_text():
    graph = PriorGraph.from_edges([(Gene.A, np.str_("b")), ("b", "a")])
    assert graph.nodes == ("a", "b")
    assert all(type(name) is str for name in graph.nodes)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(1, 2), ("1", 3)], "Got 1 and '1'"),
        ([(1, 2), (3, "1")], "Got 1 and '1'"),
        ([(1, 2), (3, 1.0)], "Got 1 and 1.0"),
        ([(1, 2), (3, True)], "Got 1 and True"),
        ([("1.0", 2), (1.0, 3)], "Got '1.0' and 1.0|Got 1.0 and '1.0'"),
        ([(None, 2), ("None", 3)], "missing or empty"),
        ([((1, 2), "(1, 2)")], r"Got \(1, 2\) and '\(1, 2\)'"),
    ],
)
def test_ids_that_clash_are_refused(pairs, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_edges(pairs)


def test_objects_that_read_alike_are_not_taken_for_one():
    class Gene:
        def __str__(self):
            return "Gata1"

    one, other = Gene(), Gene()
    assert PriorGraph.from_edges([(one, "x"), (one, "y")]).num_nodes == 3
    with pytest.raises(PriorGraphError, match=r"distinct as text.*at row 1.*both would be 'Gata1'"):
        PriorGraph.from_edges([(one, "x"), (other, "y")])


def test_clashes_across_columns_and_nodes():
    with pytest.raises(PriorGraphError, match="Got 1 and '1'"):
        PriorGraph.from_pandas(frame([1, 2], ["1", "3"]))
    with pytest.raises(PriorGraphError, match=r"Got 1 and 1\.0"):
        PriorGraph.from_pandas(frame([1, 2], [1.0, 3.0]))
    with pytest.raises(PriorGraphError, match="Got '1' and 1"):
        PriorGraph.from_edges([("1", "2")], nodes=[1])
    assert PriorGraph.from_edges([(1, 2)], nodes=[np.int64(1), 3]).nodes == ("1", "2", "3")
    assert PriorGraph.from_edges([(0.0, 2.5), (-0.0, 3.5)]).nodes == ("0.0", "2.5", "3.5")


def test_a_nul_does_not_end_a_name():
    assert PriorGraph.from_edges([("a\0", "b"), ("a", "b")]).nodes == ("a", "a\0", "b")


def test_numbers_of_every_size_and_sign_are_names():
    assert PriorGraph.from_edges([(-2.5, "a"), (-1.5, "a"), (-0.0, "a")]).nodes == (
        "-1.5",
        "-2.5",
        "0.0",
        "a",
    )
    assert PriorGraph.from_edges([("a", "b")], nodes=[-2.5, -1.5]).num_nodes == 4
    large = np.array([[2**63 + 1, 2**64 - 1]], dtype=np.uint64)  # beyond int64
    assert PriorGraph.from_edges(large).nodes == ("18446744073709551615", "9223372036854775809")


def test_an_array_of_pairs_is_a_sequence_of_pairs():
    pairs = np.empty(2, dtype=object)
    pairs[:] = [("a", "b"), ("b", "c")]
    assert PriorGraph.from_edges(pairs) == PriorGraph.from_edges([("a", "b"), ("b", "c")])
    assert PriorGraph.from_edges(np.array([["a", "b"], ["b", "c"]])).edges == (("a", "b"), ("b", "c"))


def test_float_ids_read_alike_in_every_container():
    value = np.float32(0.1)
    column = PriorGraph.from_pandas(frame(np.array([value]), ["b"]))
    assert column == PriorGraph.from_edges([(value, "b")])
    assert column.nodes == ("0.1", "b")


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ("ab", "must be a sequence"),
        (["ab", "cd"], "Got 'ab' at row 0"),
        ([("a", "b", 1)], "Signs and weights are given"),
        ([{"a", "b"}], "pair"),
        (5, "Got int"),
        ({"a": "b"}, "Got dict"),
        (np.zeros((2, 3), dtype=int), r"shape \(E, 2\). Got \(2, 3\)"),
        (np.arange(4), r"shape \(E, 2\). Got \(4,\)"),
        (np.zeros((1, 2, 2), dtype=int), r"shape \(E, 2\). Got \(1, 2, 2\)"),
        (frame(["a"], ["b"]), "from_pandas"),
    ],
)
def test_bad_pairs(edges, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_edges(edges)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sign": [1, 1]}, "Got 2 for 1 edges"),
        ({"weight": [1, 1]}, "Got 2 for 1 edges"),
        ({"sign": "+"}, "must be a sequence"),
        ({"sign": torch.ones(1, 1)}, "must be a sequence"),
        ({"weight": np.array(3.0)}, "must be a sequence"),
        ({"weight": np.array([1j])}, "complex"),
        ({"weight": [10**400]}, "finite"),
        ({"sign": [10**400]}, "A sign must be"),
        ({"nodes": np.array(3)}, "must be a sequence"),
        ({"nodes": "abc"}, "Put a single name in a list"),
        ({"nodes": ["c", None]}, "Got None at position 1"),
        ({"on_duplicate": "last"}, "'error', 'first' or 'max'. Got 'last'"),
        ({"on_conflict": "sum"}, "Got 'sum'"),
        ({"on_duplicate": "max"}, "compares weights"),
    ],
)
def test_bad_options(more, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_edges([("a", "b")], **more)


# --- signs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "sign"),
    [
        (
            [
                "+",
                "1",
                "+1",
                "1.0",
                1,
                1.0,
                np.int8(1),
                "activation",
                " Activates ",
                "upregulates-expression",
            ],
            1,
        ),
        (["-", "-1", "-1.0", -1, -1.0, "inhibition", "INHIBITS", "downregulates-expression", "−1"], -1),  # noqa: RUF001
        (["upregulates-expression", "stimulation"], 1),
        (["?", "+-", "0", "0.0", "", "  ", None, np.nan, pd.NA, 0, 0.0, "unknown"], 0),
    ],
)
def test_sign_words(cells, sign):
    for cell in cells:
        graph = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d")], sign=[cell, 1, -1])
        assert graph.sign.tolist() == [sign, 1, -1], cell
    mixed = PriorGraph.from_edges([("a", str(i)) for i in range(len(cells))], sign=cells)
    assert mixed.sign is None if sign == 0 else set(mixed.sign.tolist()) == {sign}


@pytest.mark.parametrize("cell", ["maybe", 2, 0.5, "2", "nan", True, False, np.inf, "++", (1,)])
def test_unreadable_signs_name_row_and_edge(cell):
    with pytest.raises(PriorGraphError, match=r"at row 1 \(b -> c\).*sign_map"):
        PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[1, cell])


def test_sign_map_replaces_the_table():
    edges = frame(["a", "b", "c"], ["x", "x", "x"], kind=["GO", "STOP", None])
    graph = PriorGraph.from_pandas(edges, sign="kind", sign_map={"GO": 1, "STOP": -1})
    assert graph.sign.tolist() == [1, -1, 0]
    flipped = PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[5, "-"], sign_map={5: 1, "-": 1})
    assert flipped.sign.tolist() == [1, 1]
    with pytest.raises(PriorGraphError, match=r"'\+' at row 0 \(a -> b\)"):
        PriorGraph.from_edges([("a", "b")], sign=["+"], sign_map={"GO": 1})
    with pytest.raises(PriorGraphError, match="must be a mapping"):
        PriorGraph.from_edges([("a", "b")], sign=["+"], sign_map=[1])
    with pytest.raises(PriorGraphError, match=r"onto -1, 0 or 1\. Got 2"):
        PriorGraph.from_edges([("a", "b")], sign=["+"], sign_map={"+": 2})


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [np.nan, np.inf, -np.inf, None, "much", pd.NA])
def test_weights_must_be_finite(cell):
    with pytest.raises(PriorGraphError, match=r"finite.*at row 1 \(b -> c\)"):
        PriorGraph.from_edges([("a", "b"), ("b", "c")], weight=[1.0, cell])


def test_weight_zero_and_minus_zero_are_kept_as_one_value():
    one = PriorGraph.from_edges([("a", "b")], weight=[0.0])
    other = PriorGraph.from_edges([("a", "b")], weight=[-0.0])
    assert one.num_edges == 1
    assert one.weight.tolist() == [0.0]
    assert one == other
    assert one.fingerprint == other.fingerprint


# --- duplicates -----------------------------------------------------------------------------------

TWICE = [("a", "b"), ("b", "c"), ("a", "b"), ("a", "b")]


def test_duplicates_error_lists_them():
    with pytest.raises(
        PriorGraphError, match=r"2 duplicate row.*row 2 \(a -> b\) repeats row 0.*row 3 \(a -> b\)"
    ):
        PriorGraph.from_edges(TWICE)


def test_each_duplicate_is_told_beside_the_first_row_of_its_own_edge():
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("d", "e"), ("b", "c"), ("d", "e")]
    with pytest.raises(PriorGraphError, match="3 duplicate row") as caught:
        PriorGraph.from_edges(pairs)
    for again, first, edge in ((5, 1, "b -> c"), (4, 3, "d -> e"), (6, 3, "d -> e")):
        assert f"row {again} ({edge}) repeats row {first} ({edge})" in str(caught.value)


def test_first_and_max():
    first = PriorGraph.from_edges(TWICE, weight=[2, 5, 7, 3], on_duplicate="first")
    assert first.weight.tolist() == [2, 5]
    largest = PriorGraph.from_edges(TWICE, weight=[2, 5, 7, 3], on_duplicate="max")
    assert largest.weight.tolist() == [7, 5]
    assert PriorGraph.from_edges(TWICE, on_duplicate="first").edges == (("a", "b"), ("b", "c"))
    negative = PriorGraph.from_edges(TWICE, weight=[-2, 5, -7, -3], on_duplicate="max")
    assert negative.weight.tolist() == [-2, 5]


def test_first_is_the_first_row_in_large_tables_too():
    pairs = [(i % 7, i % 101) for i in range(5 * 7 * 101)]
    graph = PriorGraph.from_edges(pairs, weight=range(len(pairs)), on_duplicate="first")
    assert sorted(graph.weight.tolist()) == list(range(7 * 101))


def test_signs_are_never_summed():
    known = PriorGraph.from_edges(TWICE, sign=[0, -1, 1, 1], on_duplicate="first")
    assert known.sign.tolist() == [1, -1]
    with pytest.raises(PriorGraphError, match=r"both signs. Got \+ and - for 1 edge.*a -> b.*unknown"):
        PriorGraph.from_edges(TWICE, sign=[1, -1, 1, -1], on_duplicate="first")
    # two pluses and a minus are a conflict, not a plus
    unknown = PriorGraph.from_edges(TWICE, sign=[1, -1, 1, -1], on_duplicate="first", on_conflict="unknown")
    assert unknown.sign.tolist() == [0, -1]
    # on_conflict alone does not allow duplicates
    with pytest.raises(PriorGraphError, match="listed once"):
        PriorGraph.from_edges(TWICE, sign=[1, -1, 1, -1], on_conflict="unknown")


# --- order independence ---------------------------------------------------------------------------

names = st.sampled_from(["a", "B", "b", "é", "10", "9", "A1", "zz"])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_row_order_never_matters(data):
    rows = data.draw(
        st.lists(
            st.tuples(names, names, st.sampled_from([0, 1]), st.integers(-3, 3)), min_size=1, max_size=12
        )
    )
    mixed = data.draw(st.permutations(rows))
    extra = data.draw(st.lists(names, max_size=3))

    def build(these):
        return PriorGraph.from_edges(
            [row[:2] for row in these],
            sign=[row[2] for row in these],
            weight=[row[3] for row in these],
            nodes=extra,
            on_duplicate="max",
        )

    one, other = build(rows), build(mixed)
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert one.edges == tuple(sorted({row[:2] for row in rows}))
    assert torch.equal(one.source_index, other.source_index)
    assert PriorGraph.from_dict(one.to_dict()) == one
    assert one.reverse().reverse() == one


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sets(st.tuples(names, names), min_size=1, max_size=9), st.dictionaries(names, st.integers(1, 3)))
def test_units_agree_with_a_loop(pairs, widths):
    used = {name for pair in pairs for name in pair}
    graph = PriorGraph.from_edges(pairs, widths={k: v for k, v in widths.items() if k in used})
    starts, at = {}, 0
    for name in sorted(used):
        starts[name] = at
        at += widths.get(name, 1)
    expected = [
        (starts[s] + j, starts[t] + i)
        for s, t in sorted(pairs)
        for i in range(widths.get(t, 1))
        for j in range(widths.get(s, 1))
    ]
    got = list(zip(graph.source_index.tolist(), graph.target_index.tolist(), strict=True))
    assert got == expected
    assert graph.state_dim == at


# --- review findings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widths", "words"),
    [
        (
            {"a": 2**32, "b": 2**32},
            "at most 2147483647 units. Got 8589934592, of which node 'a' has 4294967296",
        ),
        ({"b": 2**64}, "Got 18446744073709551617, of which node 'b' has 18446744073709551616"),
        ({"a": 2**30, "b": 2**30}, "Got 2147483648"),
    ],
)
def test_more_units_than_can_be_counted(widths, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_edges([("a", "b")], widths=widths)


def test_as_many_units_as_can_be_counted():
    assert PriorGraph.from_edges([("a", "b")], widths={"a": 2**30, "b": 2**30 - 1}).nnz == 2**60 - 2**30
    with pytest.raises(PriorGraphError, match="Got 2147483648"):  # "a" counts on both sides
        PriorGraph.bipartite([("a", "a")], widths={"a": 2**30})


@pytest.mark.parametrize("role", ["sign", "weight"])
@pytest.mark.parametrize("values", [{1: "x", -1: "y"}, {1, -1}, frozenset([1, -1])])
def test_columns_without_an_order_are_refused(role, values):
    with pytest.raises(PriorGraphError, match=f"'{role}' must be a sequence.* Got {type(values).__name__}"):
        PriorGraph.from_edges([("a", "b"), ("b", "c")], **{role: values})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sign": [[1], 1]}, r"Signs must be text or numbers. Got \[1\] \(list\) at row 0 \(a -> b\)"),
        ({"sign": [1, b"+"]}, r"Signs must be .* bytes b'\+' at row 1 \(b -> c\)"),
        ({"sign": ["x", 1], "sign_map": {"x": np.array([1, -1])}}, "onto -1, 0 or 1. Got array.* for 'x'"),
        ({"sign": ["x", 1], "sign_map": {"x": pd.NA}}, "onto -1, 0 or 1. Got <NA> for 'x'"),
        (
            {"on_duplicate": np.array(["error", "first"])},
            "'on_duplicate' must be 'error', 'first' or 'max'",
        ),
        ({"on_conflict": np.array(["error", "unknown"])}, "'on_conflict' must be 'error' or 'unknown'"),
    ],
)
def test_errors_speak_of_what_was_wrong(more, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_edges([("a", "b"), ("b", "c")], **more)


def test_an_unusable_name_is_shown_with_its_row():
    with pytest.raises(PriorGraphError, match=r"Node names must .* Got \['b'\] \(list\) at row 1"):
        PriorGraph.from_edges([("a", "b"), (["b"], "c")])
