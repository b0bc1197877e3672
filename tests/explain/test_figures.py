"""Pictures are checked by what is drawn, not by pixels: arrows, widths, colours, texts and places."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyg_kpnn import PriorGraph, PriorGraphError

pytest.importorskip("matplotlib")

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from pyg_kpnn.explain.figures import plot_edge_heatmap, plot_subgraph, plot_training

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#7a7a7a"


def table(*edges: tuple[Any, ...], columns: str = "source target weight sign") -> pd.DataFrame:
    return pd.DataFrame(list(edges), columns=columns.split()[: len(edges[0])])


def arrows(axes: Any) -> list[FancyArrowPatch]:
    """Strongest first: that one is drawn last, on top."""
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)][::-1]


def boxes(axes: Any) -> dict[str, Any]:
    """Box of each name, in data coordinates."""
    found = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert len(found) == len(axes.texts)
    return {text.get_text(): box.get_bbox() for text, box in zip(axes.texts, found, strict=True)}


def ends(axes: Any) -> list[tuple[str, str]]:
    """Names at the two ends of each arrow, found by where it starts and ends on paper."""
    axes.figure.draw_without_rendering()
    out = []
    for arrow in arrows(axes):
        points = axes.transData.inverted().transform(
            arrow.get_transform().transform_path(arrow.get_path()).vertices
        )
        near = []
        for point in (points[0], arrow_tip(arrow, axes)):
            gap = {
                name: np.hypot(*np.maximum(np.abs(point - (b.p0 + b.p1) / 2) - (b.p1 - b.p0) / 2, 0))
                for name, b in boxes(axes).items()
            }
            near.append(min(gap, key=lambda name: gap[name]))
        out.append((near[0], near[1]))
    return out


def arrow_tip(arrow: FancyArrowPatch, axes: Any) -> np.ndarray:
    if arrow._path_original is not None:  # a loop
        return arrow._path_original.vertices[-1]
    box = arrow.patchB.get_bbox()
    return (box.p0 + box.p1) / 2


def legend(axes: Any) -> list[str]:
    return [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


FOUR = table(("a", "b", 0.4, 1), ("b", "c", 0.1, -1), ("a", "c", 0.2, 0), ("c", "d", 0.3, 1))


# --- plot_subgraph -------------------------------------------------------------------------------


def test_an_arrow_for_each_edge_from_its_source_to_its_target() -> None:
    axes = plot_subgraph(FOUR)
    assert ends(axes) == [("a", "b"), ("c", "d"), ("a", "c"), ("b", "c")]
    assert set(boxes(axes)) == {"a", "b", "c", "d"}


def test_width_is_in_proportion_and_colour_and_end_are_of_the_sign() -> None:
    drawn = arrows(plot_subgraph(FOUR))
    widths = np.array([arrow.get_linewidth() for arrow in drawn])
    np.testing.assert_allclose((widths - 0.5) / (widths[0] - 0.5), [1.0, 0.75, 0.5, 0.25])
    assert [to_hex(arrow.get_edgecolor()) for arrow in drawn] == [BLUE, BLUE, GREY, ORANGE]
    styles = [type(arrow.get_arrowstyle()).__name__ for arrow in drawn]
    assert styles == ["CurveFilledB", "CurveFilledB", "CurveFilledB", "BracketB"]


def test_legend_names_the_signs_that_are_there_and_the_range_of_weights() -> None:
    words = ["activation", "inhibition", "sign unknown", "weight 0.1", "weight 0.4"]
    assert legend(plot_subgraph(FOUR)) == words
    assert legend(plot_subgraph(FOUR[FOUR["sign"] == 1].assign(weight=0.25))) == ["activation", "weight 0.25"]
    assert legend(plot_subgraph(PriorGraph.from_edges([("a", "b")]))) == []


def test_a_negative_weight_is_as_wide_as_a_positive_one() -> None:
    drawn = arrows(plot_subgraph(table(("a", "b", -2.0), ("b", "c", 2.0), ("c", "d", 1.0))))
    assert drawn[0].get_linewidth() == drawn[1].get_linewidth() > drawn[2].get_linewidth()


def test_names_are_shown_as_they_are_and_long_ones_lose_their_middle() -> None:
    long = "positive regulation of transcription by RNA polymerase II"
    axes = plot_subgraph(table(("$x$ $y$", long, 1.0), (long, "<b>&", 1.0), ("a\nb", "$x$ $y$", 1.0)))
    names = set(boxes(axes))
    assert {"$x$ $y$", "<b>&", "a b"} < names
    (short,) = names - {"$x$ $y$", "<b>&", "a b"}
    assert len(short) == 24
    start, end = short.split("…")
    assert long.startswith(start)
    assert long.endswith(end)
    assert not any(text.get_parse_math() for text in axes.texts)


def test_two_long_names_never_look_the_same() -> None:
    one, other = (f"regulation of a very long {word} process of cells" for word in ("first", "second"))
    assert {one, other} < set(boxes(plot_subgraph(table((one, "t", 1.0), (other, "t", 2.0)))))


RANDOM = np.random.default_rng(5)
SHAPES = {
    "hub": [("hub", f"target{i}") for i in range(40)],
    "in-hub": [(f"source{i}", "hub") for i in range(25)],
    "cycle": [(f"n{i}", f"n{(i + 1) % 9}") for i in range(9)],
    "pieces": [("a", "b"), ("b", "a"), ("c", "d"), ("e", "e"), ("f", "g"), ("g", "h"), ("h", "f")],
    "dense": [(f"gene{i}", f"gene{j}") for i, j in RANDOM.integers(0, 15, (60, 2))],
    "layers": [(f"l{k}n{i}", f"l{k + 1}n{j}") for k in range(3) for i, j in RANDOM.integers(0, 6, (9, 2))],
    "long": [("a name of two dozen letters " + "x" * i, "another such name " + "y" * i) for i in range(5)],
    "one": [("alone", "alone")],
}


@pytest.mark.parametrize(
    ("shape", "layout"),
    [*((shape, "auto") for shape in SHAPES), ("hub", "spread"), ("dense", "layered"), ("cycle", "layered")],
)
def test_nothing_overlaps_and_nothing_is_cut_off(shape: str, layout: str) -> None:
    edges = list(dict.fromkeys(SHAPES[shape]))
    axes = plot_subgraph(
        table(*((s, t, 1.0 + i, 1) for i, (s, t) in enumerate(edges))), top_k=None, layout=layout
    )
    assert len(arrows(axes)) == len(edges)
    figure = axes.figure
    figure.canvas.draw()
    page = figure.bbox
    drawn = [text.get_window_extent() for text in axes.texts]
    placed = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    for text, box in zip(drawn, placed, strict=True):
        assert box.x0 <= text.x0 <= text.x1 <= box.x1  # the name fits its box
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1
    for i, box in enumerate(placed):
        assert not any(box.overlaps(other) for other in placed[:i])
    below = axes.get_legend().get_window_extent()
    assert page.x0 <= below.x0
    assert below.x1 <= page.x1
    assert not any(below.overlaps(box) for box in placed)


def test_the_same_edges_give_the_same_picture_in_any_order() -> None:
    edges = table(*((s, t, 1.0 + i, 1) for i, (s, t) in enumerate(dict.fromkeys(SHAPES["dense"]))))
    state = np.random.get_state()[1].tolist()
    first, second = (
        plot_subgraph(frame, top_k=None) for frame in (edges, edges.sample(frac=1, random_state=3))
    )
    places = [{name: box.bounds for name, box in boxes(axes).items()} for axes in (first, second)]
    assert places[0] == places[1]
    assert ends(first) == ends(second)
    assert np.random.get_state()[1].tolist() == state


def test_a_graph_without_cycles_goes_from_left_to_right() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]
    placed = boxes(plot_subgraph(PriorGraph.from_edges(edges)))
    assert all(placed[s].x1 < placed[t].x0 for s, t in edges)


def test_edges_there_and_back_bend_to_different_sides_and_loops_are_drawn() -> None:
    axes = plot_subgraph(table(("a", "b", 1.0), ("b", "a", 0.9), ("a", "a", 0.8)))
    assert sorted(ends(axes)) == [("a", "a"), ("a", "b"), ("b", "a")]
    there, back = (arrow.get_connectionstyle().rad for arrow in arrows(axes)[:2])
    assert there == back > 0  # each to its own right
    loop = arrows(axes)[2].get_path().vertices
    high = axes.transData.transform(boxes(axes)["a"].p1)[1]
    assert axes.transData.transform(loop)[:, 1].max() > high or loop[:, 1].max() > high


def test_an_edge_bends_around_a_name_in_its_way() -> None:
    from pyg_kpnn.explain.picture_edges import Edges
    from pyg_kpnn.explain.picture_layout import bend, crossing, curve

    edges = Edges(list("abc"), np.array([0, 0]), np.array([2, 1]))
    at, sizes = np.array([[0.0, 0.0], [100.0, 0.0], [200.0, 0.0]]), np.full((3, 2), [30.0, 20.0])
    lines = np.stack([at[edges.source], at[edges.target]], 1)
    assert crossing(curve(at[0], at[2], 0.0), at, sizes, (0, 2)) == 1
    around, straight = bend(edges, lines, at, sizes)
    assert crossing(curve(at[0], at[2], around), at, sizes, (0, 2)) == 0
    assert straight == 0.0


def test_between_layers_edges_meet_the_sides_of_boxes() -> None:
    """At a steep angle an edge to the centre would pass under the names above and below."""
    from pyg_kpnn.explain.picture_edges import Edges
    from pyg_kpnn.explain.picture_layout import ports

    edges = Edges(list("abc"), np.array([0, 2]), np.array([1, 0]))
    at, sizes = np.array([[0.0, 0.0], [100.0, 50.0], [10.0, 40.0]]), np.full((3, 2), [30.0, 20.0])
    found = ports(edges, at, sizes, np.ones(3, dtype=bool))
    assert found.tolist() == [[[15.0, 0.0], [85.0, 50.0]], [[10.0, 40.0], [0.0, 0.0]]]  # the second runs back
    assert ports(edges, at, sizes, np.zeros(3, dtype=bool))[0].tolist() == [[0.0, 0.0], [100.0, 50.0]]


def test_a_node_without_edges_is_drawn_with_the_whole_graph_only() -> None:
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], nodes=["a", "b", "c", "lonely"])
    assert set(boxes(plot_subgraph(graph))) == {"a", "b", "c", "lonely"}
    assert set(boxes(plot_subgraph(graph, top_k=1))) == {"a", "b"}


def test_top_k_nodes_and_around_choose() -> None:
    assert ends(plot_subgraph(FOUR, top_k=2)) == [("a", "b"), ("c", "d")]
    assert set(boxes(plot_subgraph(FOUR, top_k=2))) == {"a", "b", "c", "d"}
    assert set(boxes(plot_subgraph(FOUR, top_k=1))) == {"a", "b"}
    assert ends(plot_subgraph(FOUR, nodes=["a", "b", "c"])) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert set(boxes(plot_subgraph(FOUR, nodes=["a", "d"]))) == {"a", "d"}
    assert sorted(ends(plot_subgraph(FOUR, around="d"))) == [("c", "d")]
    assert sorted(ends(plot_subgraph(FOUR, around=["d"], hops=2))) == [("a", "c"), ("b", "c"), ("c", "d")]
    # near before strong
    assert ends(plot_subgraph(FOUR, around="b", hops=2, top_k=2)) == [("a", "b"), ("b", "c")]


def test_a_graph_is_drawn_with_its_own_signs_weights_and_sides() -> None:
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[1, -1], weight=[1.0, 4.0])
    drawn = arrows(plot_subgraph(graph))
    assert [to_hex(arrow.get_edgecolor()) for arrow in drawn] == [ORANGE, BLUE]
    assert drawn[0].get_linewidth() > drawn[1].get_linewidth()
    sides = PriorGraph.bipartite([("x", "y"), ("y", "x"), ("x", "z")])
    axes = plot_subgraph(sides)
    assert sorted(text.get_text() for text in axes.texts) == ["x", "x", "y", "y", "z"]
    placed = [patch.get_bbox() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    sources, targets = placed[:2], placed[2:]
    assert max(box.x1 for box in sources) < min(box.x0 for box in targets)
    plain = arrows(plot_subgraph(PriorGraph.from_edges([("a", "b"), ("b", "c")])))
    assert {to_hex(arrow.get_edgecolor()) for arrow in plain} == {GREY}


def test_signs_come_from_the_graph_and_an_added_loop_has_none() -> None:
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[1, -1])
    frame = table(("b", "c", 3.0, 1), ("a", "b", 2.0, 1), ("c", "c", 1.0, 1))
    drawn = arrows(plot_subgraph(frame, graph=graph))
    assert [to_hex(arrow.get_edgecolor()) for arrow in drawn] == [ORANGE, BLUE, GREY]


HEADS = pd.DataFrame(
    [(layer, head, s, t, weight + 0.1 * layer + 0.02 * head)
     for layer in (0, 1) for head in (0, 1, 2) for s, t, weight in (("a", "b", 0.5), ("b", "c", 0.2))],
    columns=["layer", "head", "source", "target", "weight"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "weights"),
    [
        ({"layer": 1, "head": 2}, (0.64, 0.34)),
        ({"layer": 0, "head": "mean"}, (0.52, 0.22)),
        ({"layer": "mean", "head": 0}, (0.55, 0.25)),
        ({"layer": "mean", "head": "mean"}, (0.57, 0.27)),
    ],
)
def test_layers_and_heads_are_chosen_or_averaged(
    choice: dict[str, Any], weights: tuple[float, float]
) -> None:
    shuffled = HEADS.sample(frac=1, random_state=1).astype({"source": "category", "target": "category"})
    axes = plot_subgraph(shuffled, **choice)
    assert ends(axes) == [("a", "b"), ("b", "c")]
    assert legend(axes) == [f"weight {weights[1]:.3g}", f"weight {weights[0]:.3g}"]


GRAPH = PriorGraph.from_edges([("a", "b"), ("b", "c")], sign=[1, -1])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([("a", "b")], {}, "DataFrame with the columns 'source', 'target' and 'weight'.*Got list"),
        (FOUR.drop(columns="weight"), {}, "one column 'weight'. Got 'source', 'target', 'sign'"),
        (FOUR.rename(columns={"source": "Source"}), {}, "one column 'source'.*in case from 'Source'"),
        (FOUR, {"weight": "mean"}, "one column 'mean'"),
        (FOUR, {"head": 0}, "one column 'head'"),
        (FOUR.iloc[:0], {}, "an edge or a node to draw. Got none"),
        (FOUR.assign(weight=[1, 2, float("nan"), 4]), {}, "finite weight. Got nan for a -> c"),
        (FOUR.assign(weight=[1, 2, float("inf"), 4]), {}, "finite weight. Got inf for a -> c"),
        (FOUR.assign(weight="x"), {}, "'weight' must hold numbers"),
        (FOUR.assign(source=["a", None, "a", "c"]), {}, "must have a source. Got none at row 1"),
        (FOUR.assign(source=["a", "", "a", "c"]), {}, "must not be empty"),
        (FOUR.assign(sign=["+", "-", "x", "+"]), {}, "A sign must be .*'x' at row 2"),
        (FOUR.assign(source=["a\ud800", "b", "a", "c"]), {}, "lone surrogate"),
        (HEADS, {}, r"one row. Got 6 for a -> b \(layer 0, 1; head 0, 1, 2\). Choose layer=.*head='mean'"),
        (HEADS, {"layer": 0}, r"one row. Got 3 for a -> b \(head 0, 1, 2\). Choose head=… or head='mean'"),
        (HEADS, {"head": "mean"}, r"Got 6 for a -> b \(layer 0, 1\). Choose layer=… or layer='mean'"),
        (HEADS, {"layer": 7, "head": 0}, "'layer' must be 'mean' or one of 0, 1. Got 7"),
        (pd.concat([FOUR, FOUR.iloc[:1]]), {}, "one row. Got 2 for a -> b"),
        (pd.concat([HEADS, HEADS]), {"layer": "mean", "head": "mean"}, "one row. Got 12 for a -> b"),
        (FOUR, {"nodes": ["a", "B"]}, "'nodes' must name nodes of the picture. Got 'B' .*case from 'b'"),
        (FOUR, {"nodes": "a"}, "'nodes' must be a sequence of node names"),
        (FOUR, {"nodes": []}, "'nodes' must name nodes of the picture. Got none"),
        (FOUR, {"around": "z"}, "'around' must name nodes of the picture. Got 'z'"),
        (FOUR, {"around": "a", "nodes": ["a"]}, "'nodes' and 'around' each choose"),
        (FOUR, {"around": "a", "hops": 0}, "hops must be a positive integer, got 0"),
        (FOUR, {"top_k": 0}, "top_k must be a positive integer, got 0"),
        (FOUR, {"top_k": 2.5}, "top_k must be a positive integer, got 2.5"),
        (FOUR, {"layout": "round"}, "'layout' must be 'auto', 'layered' or 'spread'. Got 'round'"),
        (FOUR, {"ax": 3}, "'ax' must be matplotlib axes. Got 3"),
        (FOUR, {"graph": [("a", "b")]}, "'graph' must be a PriorGraph"),
        (FOUR, {"graph": GRAPH}, "Every node of the table must be in the graph. Got 'd'"),
        (FOUR.iloc[:3], {"graph": GRAPH}, "Every edge of the table must be in the graph. Got a -> c"),
        (GRAPH, {"head": 0}, "'head' goes with a table of edges. Got a PriorGraph"),
        (GRAPH, {"graph": GRAPH}, "'graph' goes with a table of edges"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_by_name(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PriorGraphError, match=message):
        plot_subgraph(data, **options)


def test_too_many_nodes_are_refused() -> None:
    frame = table(*((f"s{i}", f"t{i}", 1.0) for i in range(1001)))
    with pytest.raises(PriorGraphError, match=r"At most 2,000 nodes can be drawn. Got 2,002"):
        plot_subgraph(frame, top_k=None)
    assert len(arrows(plot_subgraph(frame, top_k=3))) == 3


def test_axes_of_ones_own_are_used_and_nothing_global_changes() -> None:
    before = dict(matplotlib.rcParams)
    loaded = "matplotlib.pyplot" in sys.modules
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    assert plot_subgraph(FOUR, ax=left, title="one") is left
    plot_subgraph(FOUR, ax=right)
    assert len(figure.axes) == 2
    assert left.get_title() == "one"
    figure.canvas.draw()
    placed = [patch.get_window_extent() for patch in left.patches if isinstance(patch, FancyBboxPatch)]
    inside = left.get_window_extent()
    assert all(inside.x0 <= box.x0 <= box.x1 <= inside.x1 for box in placed)
    assert ("matplotlib.pyplot" in sys.modules) == loaded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading a deprecated setting warns
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("draw", [plot_subgraph, plot_edge_heatmap, plot_training])
def test_missing_matplotlib_names_the_extra(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ImportError, match=r'pip install "pyg_kpnn\[plot\]"'):
        draw(FOUR)


# --- plot_edge_heatmap ---------------------------------------------------------------------------

GROUPS = table(
    ("a", "b", 0.1, "T"), ("a", "b", 0.9, "B"),  # spread 0.8
    ("b", "c", 0.8, "T"), ("b", "c", 0.9, "B"),  # mean 0.85
    ("c", "a", 0.3, "T"),  # not measured in B
    columns="source target weight group",
)  # fmt: skip


def cells(axes: Any) -> np.ma.MaskedArray:
    return axes.images[0].get_array()


def rows(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_heatmap_has_a_row_an_edge_and_a_column_a_group() -> None:
    axes = plot_edge_heatmap(GROUPS)
    assert rows(axes) == ["a → b", "b → c", "c → a"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["B", "T"]
    np.testing.assert_allclose(cells(axes).filled(-1), [[0.9, 0.1], [0.9, 0.8], [-1, 0.3]])
    assert axes.get_xlabel() == "group"
    assert axes.figure.axes[1].get_title() == "weight"


def test_heatmap_rows_are_sorted_and_cut() -> None:
    assert rows(plot_edge_heatmap(GROUPS, sort="weight")) == ["b → c", "a → b", "c → a"]
    assert rows(plot_edge_heatmap(GROUPS, sort="weight", top_k=1)) == ["b → c"]


def test_heatmap_keeps_the_order_of_categories_and_centres_signed_weights() -> None:
    frame = GROUPS.assign(
        group=pd.Categorical(GROUPS["group"], ["T", "unused", "B"]), weight=GROUPS["weight"] - 0.5
    )
    axes = plot_edge_heatmap(frame)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["T", "B"]
    low, high = axes.images[0].get_clim()
    assert low == -high == pytest.approx(-0.4)
    assert plot_edge_heatmap(GROUPS).images[0].get_clim() == (0.0, 0.9)


def test_heatmap_by_head_of_a_layer() -> None:
    axes = plot_edge_heatmap(HEADS, by="head", layer=1, sort="weight")
    np.testing.assert_allclose(cells(axes), [[0.6, 0.62, 0.64], [0.3, 0.32, 0.34]])
    axes = plot_edge_heatmap(HEADS, by="layer", head="mean", sort="weight")
    np.testing.assert_allclose(cells(axes), [[0.52, 0.62], [0.22, 0.32]])


def test_heatmap_names_stay_apart() -> None:
    names = [f"response to a long {word} stimulus of cells" for word in ("first", "second")]
    axes = plot_edge_heatmap(GROUPS.assign(target=[names[0]] * 2 + [names[1]] * 3))
    assert len(set(rows(axes))) == 3
    assert all("…" not in row for row in rows(axes))
    single = plot_edge_heatmap(GROUPS.assign(target=names[0]))
    assert all(
        row.split(" → ")[1] == "response t…ulus of cells"[:10] + "…" + names[0][-9:] for row in rows(single)
    )


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (GROUPS, {"by": "cell"}, "'by' must be 'group', 'head' or 'layer'. Got 'cell'"),
        (GROUPS, {"by": "head"}, "one column 'head'"),
        (GROUPS, {"sort": "name"}, "'sort' must be 'spread' or 'weight'"),
        (GROUPS, {"group": "T"}, "'group' makes the columns. Got group='T' too"),
        (GROUPS, {"top_k": -1}, "top_k must be a positive integer"),
        (GROUPS.iloc[:0], {}, "an edge to draw. Got a table without rows"),
        (GROUPS.assign(group=None), {}, "must have a group. Got none at row 0"),
        (HEADS, {"by": "head"}, r"one row. Got 2 for a -> b \(layer 0, 1\). Choose layer"),
        (GRAPH, {}, "'group' goes with a table of edges"),
    ],
)
def test_heatmap_refuses_bad_input(frame: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PriorGraphError, match=message):
        plot_edge_heatmap(frame, **options)


# --- plot_training -------------------------------------------------------------------------------

HISTORY = {
    "epoch": [0, 1, 2, 3],
    "train_loss": [1.0, 0.5, 0.25, 0.125],
    "val_loss": [1.0, 0.6, 0.4, 0.7],
    "val_auc": [0.5, 0.9, 0.8, 0.7],
}


def curves(axes: Any) -> dict[str, list[list[float]]]:
    lines = [line for ax in axes.figure.axes for line in ax.lines]
    return {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in lines}


@pytest.mark.parametrize("as_frame", [False, True])
def test_training_curves_and_the_best_epoch(as_frame: bool) -> None:
    axes = plot_training(pd.DataFrame(HISTORY) if as_frame else HISTORY)
    drawn = curves(axes)
    for name in ("train_loss", "val_loss", "val_auc"):
        assert drawn[name] == [HISTORY["epoch"], HISTORY[name]]
    assert drawn["best epoch 2"][0] == [2, 2]
    assert legend(axes) == ["train_loss", "val_loss", "val_auc", "best epoch 2"]
    left, right = axes.figure.axes
    assert (left.get_ylabel(), right.get_ylabel(), left.get_xlabel()) == ("loss", "val_auc", "epoch")
    assert left.get_yscale() == right.get_yscale() == "linear"
    assert all(tick == int(tick) for tick in left.get_xticks())


def test_training_marks_the_best_of_another_curve() -> None:
    assert "best epoch 1" in curves(plot_training(HISTORY, best="val_auc"))
    assert "best epoch 0" in curves(plot_training(HISTORY, best="val_auc", mode="min"))
    assert "best epoch 3" in curves(plot_training(HISTORY, best="train_loss"))
    without = {name: values for name, values in HISTORY.items() if name not in ("epoch", "val_loss")}
    assert "best epoch 4" in curves(plot_training(without))  # counted from 1


def test_training_log_scale_is_of_the_losses_only() -> None:
    left, right = plot_training(HISTORY, log=True).figure.axes
    assert (left.get_yscale(), right.get_yscale()) == ("log", "linear")


def test_training_leaves_out_what_is_missing() -> None:
    history = {"train_loss": [1.0, None, 0.5, None], "val_loss": [None, 0.9, None, 0.8], "other": [None] * 4}
    drawn = curves(plot_training(history))
    assert drawn["train_loss"] == [[1, 3], [1.0, 0.5]]
    assert drawn["val_loss"] == [[2, 4], [0.9, 0.8]]
    assert "other" not in drawn
    assert "best epoch 4" in drawn


@pytest.mark.parametrize(
    ("history", "options", "message"),
    [
        ([1.0, 0.5], {}, "a mapping from name to values or a DataFrame. Got list"),
        ({}, {}, "a column with a value. Got none"),
        ({"epoch": [1, 2]}, {}, "a column with a value. Got none"),
        ({"loss": [1.0], "val_loss": [1.0, 2.0]}, {}, "of one length. Got 'loss' 1, 'val_loss' 2"),
        ({"loss": ["low"]}, {}, "must hold numbers. Got something else in 'loss'"),
        ({"loss": 0.5}, {}, "must hold numbers. Got something else in 'loss'"),
        ({3: [0.5]}, {}, "name its columns by text. Got 3"),
        ({"loss": [0.5], "epoch": [None]}, {}, "must have an epoch"),
        ({"loss": [0.5, 0.0]}, {"log": True}, "wants positive losses. Got 0.0 in 'loss'"),
        (HISTORY, {"best": "f1"}, "'best' must name a curve. Got 'f1'"),
        (HISTORY, {"mode": "low"}, "'mode' must be None, 'min' or 'max'"),
        (HISTORY, {"log": 1}, "log must be True or False"),
    ],
)
def test_training_refuses_bad_input(history: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PriorGraphError, match=message):
        plot_training(history, **options)
