"""to_edgelist, networkx and torch_geometric, there and back."""

from __future__ import annotations

import contextlib
import pickle

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import LargestConnectedComponents, VirtualNode

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, parse_adjacency

EDGES = [("b", "c"), ("a", "c"), ("c", "d")]


@pytest.fixture
def rich() -> PriorGraph:
    return PriorGraph.from_edges(
        EDGES, sign=[1, -1, 0], weight=[0.5, 0.1, 2], nodes=["z"], widths={"c": 2, "d": 3}
    )


@pytest.fixture
def sides() -> PriorGraph:
    return PriorGraph.bipartite(
        [("y", "x"), ("x", "p"), ("y", "p")],
        sources=["x", "y", "s"],
        widths={"x": 2, "p": 3},
        sign=[1, -1, 0],
    )


# --- frames ---------------------------------------------------------------------------------------


def test_edgelist(rich):
    plain = PriorGraph.from_edges(EDGES).to_edgelist()
    assert list(plain.columns) == ["source", "target"]
    assert plain.values.tolist() == [["a", "c"], ["b", "c"], ["c", "d"]]
    assert all(pd.api.types.is_string_dtype(plain[column]) for column in plain)
    assert parse_adjacency(plain) == PriorGraph.from_edges(EDGES)
    full = rich.to_edgelist()
    assert list(full.columns) == ["source", "target", "sign", "weight"]
    assert full["sign"].tolist() == [-1, 1, 0]
    assert full["weight"].tolist() == [0.1, 0.5, 2.0]
    again = PriorGraph.from_pandas(full, sign="sign", weight="weight", nodes=["z"], widths=rich.widths)
    assert again == rich
    full.loc[0, "source"] = "changed"
    assert rich.to_edgelist()["source"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("infer_string", [False, True])  # the default of pandas 2 and of pandas 3
def test_edgelist_has_memory_of_its_own(infer_string):
    graph = PriorGraph.from_edges(EDGES, weight=[1, 2, 3])
    asked = ("future.infer_string", infer_string, "mode.copy_on_write", True)
    with pd.option_context(*asked) if pd.__version__ < "3" else contextlib.nullcontext():
        frame = graph.to_edgelist()
        frame.loc[0, "source"] = "X"
        frame.loc[0, "weight"] = 9.0
    assert frame["source"].tolist() == ["X", "b", "c"]
    assert graph.edges == (("a", "c"), ("b", "c"), ("c", "d"))
    assert graph.to_edgelist()["source"].tolist() == ["a", "b", "c"]
    assert graph.weight.tolist() == [2, 1, 3]


# --- networkx -------------------------------------------------------------------------------------


def test_to_networkx(rich):
    out = rich.to_networkx()
    assert isinstance(out, nx.DiGraph)
    assert set(out.nodes) == {"a", "b", "c", "d", "z"}
    assert out.edges["a", "c"] == {"sign": -1, "weight": 0.1}
    assert out.nodes["d"] == {"width": 3}
    assert out.nodes["a"] == {"width": 1}
    bare = PriorGraph.from_edges(EDGES).to_networkx()
    assert all(not attributes for _, _, attributes in bare.edges(data=True))
    assert all(not attributes for _, attributes in bare.nodes(data=True))
    widths = nx.get_node_attributes(out, "width")
    assert PriorGraph.from_networkx(out, sign="sign", weight="weight", widths=widths) == rich


def test_bipartite_to_networkx_keeps_both_tokens(sides):
    out = sides.to_networkx()
    assert ("source", "x") in out
    assert ("target", "x") in out
    assert out.nodes["target", "x"] == {"width": 2, "bipartite": 1}
    assert {node for node, side in out.nodes(data="bipartite") if side == 0} == {
        ("source", "s"), ("source", "x"), ("source", "y"),
    }  # fmt: skip
    assert out.edges[("source", "y"), ("target", "x")] == {"sign": 1}
    assert out.number_of_edges() == 3
    assert nx.is_bipartite(out)


def test_insertion_order_never_matters():
    one = nx.DiGraph([(3, 1), (2, 3), (1, 2)])
    other = nx.DiGraph()
    other.add_nodes_from([2, 3, 1])
    other.add_edges_from([(1, 2), (3, 1), (2, 3)])
    assert PriorGraph.from_networkx(one) == PriorGraph.from_networkx(other)


def test_undirected_graphs_are_refused_or_doubled():
    path = nx.Graph([("b", "a"), ("a", "a")])
    path.add_node("z")
    with pytest.raises(PriorGraphError, match=r"undirected Graph with 2 edges.*undirected='both'"):
        PriorGraph.from_networkx(path)
    graph = PriorGraph.from_networkx(path, undirected="both")
    assert graph.edges == (("a", "a"), ("a", "b"), ("b", "a"))
    assert graph.nodes == ("a", "b", "z")
    for wrong in ("yes", np.array(["both", "both"])):
        with pytest.raises(PriorGraphError, match="None or 'both'"):
            PriorGraph.from_networkx(path, undirected=wrong)


def test_parallel_edges():
    multi = nx.MultiDiGraph()
    multi.add_edge("a", "b", weight=2, effect="+")
    multi.add_edge("a", "b", weight=3, effect="?")
    multi.add_edge("b", "c", weight=5, effect="-")
    with pytest.raises(PriorGraphError, match=r"a -> b.*repeats"):
        PriorGraph.from_networkx(multi)
    graph = PriorGraph.from_networkx(multi, sign="effect", weight="weight", on_duplicate="max")
    assert graph.weight.tolist() == [3, 5]
    assert graph.sign.tolist() == [1, -1]
    multi.add_edge("a", "b", weight=1, effect="-")
    with pytest.raises(PriorGraphError, match="both signs"):
        PriorGraph.from_networkx(multi, sign="effect", on_duplicate="first")
    both = nx.MultiGraph([("a", "b"), ("b", "a")])
    doubled = PriorGraph.from_networkx(both, undirected="both", on_duplicate="first")
    assert doubled.edges == (("a", "b"), ("b", "a"))


@pytest.mark.parametrize(
    ("edges", "more", "words"),
    [
        ([("a", "b", {"w": 1})], {"sign": "s"}, "sign attribute 's'.*'w'"),
        ([("a", "b", {"w": 1}), ("b", "c", {})], {"weight": "w"}, "weight attribute 'w'.*b -> c"),
        ([(1, "b", {}), ("1", "c", {})], {}, "Got 1 and '1'|Got '1' and 1"),
        ([], {}, "at least one edge"),
    ],
)
def test_networkx_refuses(edges, more, words):
    graph = nx.DiGraph()
    graph.add_edges_from(edges)
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_networkx(graph, **more)


def test_networkx_partial_signs_are_unknown_and_not_a_graph_is_refused():
    graph = nx.DiGraph()
    graph.add_edges_from([("a", "b", {"s": "-"}), ("b", "c", {})])
    assert PriorGraph.from_networkx(graph, sign="s").sign.tolist() == [-1, 0]
    with pytest.raises(PriorGraphError, match="Got list"):
        PriorGraph.from_networkx([("a", "b")])


# --- torch_geometric ------------------------------------------------------------------------------


def test_to_data_by_hand(rich):
    data = rich.to_data()
    # units: a=0 b=1 c=2,3 d=4,5,6 z=7
    assert data.num_nodes == 8
    assert data.edge_index.tolist() == [
        [0, 0, 1, 1, 2, 3, 2, 3, 2, 3],
        [2, 3, 2, 3, 4, 4, 5, 5, 6, 6],
    ]
    assert data.edge_sign.tolist() == [-1, -1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert data.edge_weight.tolist() == [0.1, 0.1, 0.5, 0.5, 2, 2, 2, 2, 2, 2]
    assert data.node_names == ["a", "b", "c", "c", "d", "d", "d", "z"]
    assert data.input_index.tolist() == [0, 1, 7]
    assert data.output_index.tolist() == [4, 5, 6, 7]
    assert torch.equal(torch.stack([data.source_index, data.target_index]), data.edge_index)
    assert rich.to_data(dtype=torch.float32).edge_weight.dtype == torch.float32
    data.validate(raise_on_error=True)
    assert PriorGraph.from_data(data) == rich
    assert PriorGraph.from_data(pickle.loads(pickle.dumps(data))) == rich


def test_batching_shifts_every_index_and_separates_again(rich):
    small = PriorGraph.from_edges([("p", "q")])
    middle = PriorGraph.from_edges([("u", "v"), ("v", "v")], widths={"v": 3}, sign=[-1, 1])
    graphs = [small, rich, middle]
    batch = Batch.from_data_list([graph.to_data() for graph in graphs])
    assert batch.num_nodes == 2 + 8 + 4
    offsets = [0, 2, 10]
    for name in ("source_index", "target_index", "input_index", "output_index"):
        expected = torch.cat([getattr(g, name) + off for g, off in zip(graphs, offsets, strict=True)])
        assert torch.equal(batch[name], expected), name
    assert torch.equal(batch.edge_index, torch.stack([batch.source_index, batch.target_index]))
    assert batch.edge_sign.shape == batch.edge_weight.shape == (batch.edge_index.shape[1],)
    assert batch.batch.tolist() == [0] * 2 + [1] * 8 + [2] * 4
    for i, graph in enumerate(graphs):
        assert PriorGraph.from_data(batch[i]) == graph
        assert torch.equal(batch[i].output_index, graph.output_index)
    with pytest.raises(PriorGraphError, match=r"batch\[i\]"):
        PriorGraph.from_data(batch)


def test_bipartite_batches_with_one_increment_a_side(sides):
    small = PriorGraph.bipartite([("m", "n")], sources=["m", "k"], targets=["n"])
    batch = Batch.from_data_list([sides.to_data(), small.to_data(), sides.to_data()])
    s, t = sides.num_sources, sides.num_targets
    assert (s, t) == (4, 5)
    expected = torch.cat([sides.source_index, small.source_index + s, sides.source_index + s + 2])
    assert torch.equal(batch.source_index, expected)
    assert torch.equal(batch.edge_index[0], expected)
    expected = torch.cat([sides.target_index, small.target_index + t, sides.target_index + t + 1])
    assert torch.equal(batch.target_index, expected)
    assert torch.equal(batch.edge_index[1], expected)
    assert batch.input_index.tolist() == list(range(4 + 2 + 4))
    assert batch.output_index.tolist() == list(range(5 + 1 + 5))
    for i, graph in enumerate([sides, small, sides]):
        assert PriorGraph.from_data(batch[i]) == graph


@pytest.mark.parametrize(
    ("transform", "nodes"),
    [
        (lambda data: data.subgraph(torch.tensor([1, 2, 3])), 3),
        (lambda data: data.subgraph(torch.arange(8) > 1), 6),
        (LargestConnectedComponents(), 7),
        (VirtualNode(), 9),
    ],
)
def test_batches_after_transforms_that_change_nodes(rich, transform, nodes):
    changed = transform(rich.to_data())
    assert changed.num_nodes == changed.num_sources == changed.num_targets == nodes
    assert torch.equal(changed.source_index, changed.edge_index[0])
    assert torch.equal(changed["target_index"], changed.edge_index[1])
    batch = Batch.from_data_list([changed, changed])
    for name in ("edge_index", "source_index", "target_index", "input_index", "output_index"):
        assert torch.equal(batch[name], torch.cat([changed[name], changed[name] + nodes], -1)), name
    for i in range(2):
        assert torch.equal(batch[i].edge_index, changed.edge_index)
        assert torch.equal(batch[i].input_index, changed.input_index)
        assert batch[i].num_sources == nodes


def test_a_part_of_the_data_is_the_part_of_the_graph(rich):
    part = rich.to_data().subgraph(torch.tensor([1, 2, 3]))
    assert PriorGraph.from_data(part) == rich.subgraph(["b", "c"])
    assert part.input_index.tolist() == [0]  # b, an input before and after
    loop = VirtualNode()(PriorGraph.from_edges([("a", "a")]).to_data())
    assert not loop.is_bipartite  # two nodes, though one side had one


def test_bipartite_data_refuses_other_nodes(sides):
    data = sides.to_data()
    assert data.is_bipartite
    assert (data.num_sources, data["num_targets"]) == (4, 5)
    for changed in (data.subgraph(torch.arange(8)), VirtualNode()(sides.to_data())):
        with pytest.raises(PriorGraphError, match=r"4 \+ 5 units for (8|10) nodes"):
            Batch.from_data_list([changed, changed])
        with pytest.raises(PriorGraphError, match="must be its sides"):
            PriorGraph.from_data(changed, node_names=range(changed.num_nodes))


def test_plain_and_bipartite_batch_together(rich, sides):
    graphs = [rich, sides, rich]
    for order in (graphs, graphs[1:]):
        batch = Batch.from_data_list([graph.to_data() for graph in order])
        assert [PriorGraph.from_data(batch[i]) for i in range(len(order))] == order


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, "float32"])
def test_weights_are_never_cut(rich, dtype):
    with pytest.raises(PriorGraphError, match=r"floating one.*Got"):
        rich.to_data(dtype=dtype)


def test_data_loader_and_extra_features(rich):
    stack = []
    for value in range(3):
        data = rich.to_data()
        data.x = torch.full((8, 2), float(value))
        stack.append(data)
    batch = next(iter(DataLoader(stack, batch_size=3)))
    assert batch.x.shape == (24, 2)
    assert int(batch.edge_index.max()) == 16 + 6


def test_from_plain_data():
    data = Data(
        edge_index=torch.tensor([[10, 2, 2], [2, 0, 10]]),
        edge_weight=torch.tensor([2.0, 3.0, 5.0]),
        num_nodes=12,
    )
    graph = PriorGraph.from_data(data)
    # names sort as text: "10" before "2"
    assert graph.nodes[:4] == ("0", "1", "10", "11")
    assert graph.edges == (("10", "2"), ("2", "0"), ("2", "10"))
    assert graph.weight.tolist() == [2, 3, 5]
    assert len(graph.nodes) == 12
    named = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, node_names=["x", "w"])
    assert PriorGraph.from_data(named).edges == (("x", "w"),)
    assert PriorGraph.from_data(named, node_names=[7, 8]).edges == (("7", "8"),)
    twice = Data(edge_index=torch.tensor([[0, 0], [1, 1]]), num_nodes=2)
    assert PriorGraph.from_data(twice, on_duplicate="first").num_edges == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.zeros(2, 3), "Got Tensor"),
        (Data(num_nodes=3), "edge_index. Got none"),
        (Data(edge_index=torch.tensor([[0.0], [1.0]]), num_nodes=2), "hold integers"),
        (Data(edge_index=torch.tensor([[0], [1], [1]]), num_nodes=2), r"\(2, E\). Got int64 of \(3, 1\)"),
        (Data(edge_index=torch.tensor([[0, 1]]), num_nodes=2), r"\(2, E\). Got int64 of \(1, 2\)"),
        (Data(edge_index=torch.tensor([[0], [2]]), num_nodes=2), "within 0 and 1. Got 2"),
        (Data(edge_index=torch.tensor([[0], [-1]]), num_nodes=2), "within 0 and 1. Got -1"),
        (Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, node_names=["a"]), "Got 1 for 2 nodes"),
        (Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, node_names=["a", "a"]), "each node once"),
        (Data(edge_index=torch.tensor([[0, 0], [1, 1]]), num_nodes=2), "listed once"),
        (
            Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, edge_weight=torch.ones(3)),
            "one entry an edge",
        ),
        (Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, edge_sign=torch.tensor([4])), "sign must be"),
    ],
)
def test_bad_data(data, words):
    with pytest.raises(PriorGraphError, match=words):
        PriorGraph.from_data(data)


def test_a_set_does_not_say_which_node_is_which():
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(PriorGraphError, match=r"'node_names' must be in order. Got a set"):
        PriorGraph.from_data(data, node_names={"a", "b"})


def test_partial_unit_blocks_are_refused(rich):
    data = rich.to_data()
    for name in ("edge_index", "edge_sign", "edge_weight"):
        data[name] = data[name][..., :-1]
    with pytest.raises(PriorGraphError, match=r"full block.*c -> d"):
        PriorGraph.from_data(data)
    data = rich.to_data()
    data.edge_weight[-1] = 3.0
    with pytest.raises(PriorGraphError, match=r"full block.*c -> d"):
        PriorGraph.from_data(data)


@pytest.mark.parametrize(("row", "found", "last"), [(0, 4, 3), (1, 5, 4)])
def test_bipartite_indices_stay_on_their_own_side(sides, row, found, last):
    data = sides.to_data()  # of 4 and 5 units
    data.edge_index[row, -1] = found
    with pytest.raises(PriorGraphError, match=f"within 0 and {last}. Got {found}"):
        PriorGraph.from_data(data)


def test_hundreds_of_pairs_of_units_come_back():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "c")], widths={"a": 17, "b": 19, "c": 3})
    data = graph.to_data()
    assert data.num_edges == 17 * 19 + 19 * 3 + 3 * 3
    assert PriorGraph.from_data(data) == graph


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
def test_weights_of_any_array_and_weights_being_learnt(make):
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, edge_weight=make([0.25, 0.5]))
    if make is torch.tensor:
        data.edge_weight.requires_grad_()
    assert PriorGraph.from_data(data).weight.tolist() == [0.25, 0.5]
