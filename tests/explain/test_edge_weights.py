"""Tables of attention weights against plain means over the weights the layers return."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader

from pyg_kpnn import (
    PackedMultiheadAttention,
    PriorGraph,
    PriorGraphError,
    PriorTransformer,
    PriorTransformerLayer,
)
from pyg_kpnn.explain import edge_weights
from pyg_kpnn.explain.moments import Moments

D = torch.float64
EDGES = [("a", "t"), ("b", "t"), ("c", "a"), ("t", "u"), ("b", "b")]
GRAPH = PriorGraph.from_edges(EDGES)
NAMES = ["a", "b", "c", "t", "u"]
#: The edges by hand: the graph's in alphabetical order, then the loops it has not.
ENDS = [*sorted(EDGES), ("a", "a"), ("c", "c"), ("t", "t"), ("u", "u")]


def build(graph=GRAPH, seed=3, **options):
    torch.manual_seed(seed)
    return PriorTransformer(graph, embed_dim=6, num_heads=2, **options).to(D).eval()


def values(*shape, seed=5):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def names_of(table):
    return list(zip(table.source.astype(str), table.target.astype(str), strict=True))


X = values(7, 5)


def test_mean_and_spread_of_every_edge_in_the_order_of_the_layer():
    model = build()
    table = edge_weights(model, X)
    assert table.columns.tolist() == ["layer", "head", "source", "target", "weight", "std", "samples"]
    expected = torch.stack(model.edge_weights(X)).detach().numpy()  # layers, samples, edges, heads
    at = 0
    for layer in range(2):
        for head in range(2):
            part = table[(table.layer == layer) & (table["head"] == head)]
            assert part.index.tolist() == list(range(at, at + 9))
            assert names_of(part) == ENDS
            np.testing.assert_allclose(part.weight, expected[layer, :, :, head].mean(0), rtol=1e-12)
            np.testing.assert_allclose(
                part["std"], expected[layer, :, :, head].std(0, ddof=1), rtol=1e-9, atol=1e-15
            )
            at += 9
    assert len(table) == at
    assert (table.samples == 7).all()
    assert table.source.cat.categories.tolist() == table.target.cat.categories.tolist() == NAMES


def test_mean_over_heads_is_taken_sample_by_sample():
    model = build()
    table = edge_weights(model, X, heads="mean", layers=[1])
    expected = model.edge_weights(X)[1].detach().numpy().mean(-1)
    assert set(table["head"]) == {"mean"}
    assert set(table.layer) == {1}
    np.testing.assert_allclose(table.weight, expected.mean(0), rtol=1e-12)
    np.testing.assert_allclose(table["std"], expected.std(0, ddof=1), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("how", ["small", "bytes", "list", "generator", "loader", "dataset", "graphs"])
def test_how_samples_come_does_not_matter(how):
    model = build()
    data, options = {
        "small": (X, {"batch_size": 2}),
        "bytes": (X, {"block_bytes": 1}),
        "list": ([X[:3], X[3:]], {}),
        "generator": ((X[start : start + 3] for start in (0, 3, 6)), {}),
        "loader": (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=4), {}),
        "dataset": (torch.utils.data.TensorDataset(X, torch.arange(7)), {"batch_size": 3}),
        "graphs": (GraphLoader([Data(x=row.unsqueeze(-1)) for row in X], batch_size=3), {}),
    }[how]
    labels = list("pqppqpq")
    options["groupby"] = labels
    pd.testing.assert_frame_equal(
        edge_weights(model, data, **options), edge_weights(model, X, groupby=labels), rtol=1e-12, atol=1e-15
    )


def test_groups_are_those_of_pandas():
    model, labels = build(num_layers=1), np.array(["q", "p", "q", "q", "p", "p", "q"])
    table = edge_weights(model, X, groupby=labels, heads="mean", batch_size=3)
    expected = pd.DataFrame(model.edge_weights(X)[0].detach().numpy().mean(-1)).groupby(labels)
    assert table.columns[0] == "group"
    assert table.group.cat.categories.tolist() == ["p", "q"]
    for label, count in (("p", 3), ("q", 4)):
        part = table[table.group == label]
        assert (part.samples == count).all()
        np.testing.assert_allclose(part.weight, expected.mean().loc[label], rtol=1e-12)
        np.testing.assert_allclose(part["std"], expected.std().loc[label], rtol=1e-9, atol=1e-15)


def test_categories_keep_their_order_and_batches_may_bring_labels():
    model = build(num_layers=1)
    labels = pd.Categorical(list("pqpqpqp"), categories=["q", "none", "p"])
    assert edge_weights(model, X, groupby=labels).group.cat.categories.tolist() == ["q", "p"]
    codes = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    shuffled = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X, codes),
        batch_size=2,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    )
    pd.testing.assert_frame_equal(
        edge_weights(model, shuffled, groupby="y"), edge_weights(model, X, groupby=codes), rtol=1e-12
    )


@pytest.mark.parametrize("beside", [True, False])
def test_masked_sources_do_not_count(beside):
    model = build(num_layers=1)
    mask = torch.zeros(7, 5, dtype=torch.bool)
    mask[:4, 0] = True  # a
    mask[:, 2] = True  # c, always
    x = X.masked_fill(mask, torch.nan)
    table = edge_weights(model, x, key_padding_mask=mask) if beside else edge_weights(model, (x, mask))
    weights = model.edge_weights(x, mask)[0].detach().numpy()
    part = table[table["head"] == 1].set_index(["source", "target"])
    assert part.samples.tolist() == [3, 7, 7, 0, 7, 3, 0, 7, 7]
    np.testing.assert_allclose(part.loc[("a", "t"), "weight"], weights[4:, 0, 1].mean(), rtol=1e-12)
    np.testing.assert_allclose(part.loc[("a", "t"), "std"], weights[4:, 0, 1].std(ddof=1), rtol=1e-12)
    np.testing.assert_allclose(part.loc[("b", "t"), "weight"], weights[:, 2, 1].mean(), rtol=1e-12)
    assert np.isnan(part.loc[("c", "a"), ["weight", "std"]].astype(float)).all()


def test_datasets_of_this_package_bring_masks_and_labels():
    from pyg_kpnn.datasets import from_frame
    from pyg_kpnn.datasets.aligned import AlignedGraphs

    frame = pd.DataFrame(X.float().numpy(), columns=NAMES, index=list("1234567")).assign(kind=list("pqpqpqq"))
    frame.loc["3", "b"] = np.nan
    dataset, x = from_frame(frame, GRAPH, label="kind"), torch.tensor(frame[NAMES].to_numpy())
    model = build(num_layers=1).float()
    expected = edge_weights(model, x, groupby=[0, 1, 0, 1, 0, 1, 1], key_padding_mask=x.isnan())
    assert expected.samples.min() == 2
    for data in (dataset, AlignedGraphs(dataset)):
        pd.testing.assert_frame_equal(
            edge_weights(model, data, groupby="y", batch_size=3), expected, rtol=1e-6, atol=1e-7
        )


def test_masks_go_with_their_group():
    model, labels = build(num_layers=1), list("pqpqpqq")
    mask = torch.zeros(7, 5, dtype=torch.bool)
    mask[[0, 1, 3], 0] = True
    table = edge_weights(model, X, groupby=labels, key_padding_mask=mask, heads="mean")
    weights = model.edge_weights(X, mask)[0].detach().numpy()[:, 0].mean(-1)  # a -> t
    part = table[(table.source == "a") & (table.target == "t")]
    assert part.samples.tolist() == [2, 2]
    np.testing.assert_allclose(part.weight, [weights[[2, 4]].mean(), weights[[5, 6]].mean()], rtol=1e-12)


def test_a_masked_source_is_attended_to_from_the_second_layer_on():
    model, mask = build(num_layers=2), torch.zeros(7, 5, dtype=torch.bool)
    mask[[0, 1, 3], 0] = True
    table = edge_weights(model, X.masked_fill(mask, torch.nan), key_padding_mask=mask)
    part = table[(table.source == "a") & (table.target == "t")].groupby("layer").samples.unique()
    assert part.to_dict() == {0: [4], 1: [7]}
    weights = model.edge_weights(X, mask)
    assert (weights[0][[0, 1, 3], 0] == 0).all()
    assert (weights[1][:, 0] > 0).all()


def test_weights_of_one_layer_are_gone_before_the_next():
    model, seen = build(), []
    handles = [layer.register_forward_hook(lambda *call: seen.append(call[2][1])) for layer in model.layers]
    edge_weights(model, X)
    assert seen == [None, None]
    for handle in handles:
        handle.remove()


def test_top_k_is_the_heaviest_of_each_block():
    model = build()
    full, top = edge_weights(model, X), edge_weights(model, X, top_k=2)
    for key, part in full.groupby(["layer", "head"]):
        best = part.sort_values("weight", ascending=False, kind="stable").head(2)
        found = top[(top.layer == key[0]) & (top["head"] == key[1])]
        pd.testing.assert_frame_equal(found.reset_index(drop=True), best.reset_index(drop=True))
    assert len(edge_weights(model, X, top_k=100)) == len(full)


def test_units_of_wide_nodes_have_labels():
    graph = PriorGraph.from_edges([("a", "h")], widths={"h": 2})
    table = edge_weights(build(graph, num_layers=1, add_self_loops=False), values(2, 3), heads="mean")
    assert names_of(table) == [("a", "h[0]"), ("a", "h[1]")]


def test_bare_layers():
    tokens = values(4, 5, 6)
    torch.manual_seed(0)
    layer = PriorTransformerLayer(GRAPH, 6, 2).to(D)
    table = edge_weights(layer, tokens, graph=GRAPH)
    expected = layer(tokens, need_weights=True)[1].detach().numpy().mean(0)
    np.testing.assert_allclose(table.weight, expected.T.reshape(-1), rtol=1e-12)
    for first in (True, False):
        attention = PackedMultiheadAttention.from_adjacency(GRAPH, 6, 2, batch_first=first).to(D)
        given = tokens if first else tokens.transpose(0, 1)
        weights = attention(given, given, given, need_weights=True, average_attn_weights=False)[1]
        expected = weights.detach().numpy().mean(0 if first else 1)
        table = edge_weights(attention, tokens, graph=GRAPH)
        assert names_of(table)[:5] == sorted(EDGES)
        np.testing.assert_allclose(table.weight, expected.T.reshape(-1), rtol=1e-12)


def test_bipartite_layers_take_queries_and_keys():
    graph = PriorGraph.bipartite([("s1", "t1"), ("s2", "t1"), ("s2", "t2"), ("s3", "t2")])
    layer = PackedMultiheadAttention.from_adjacency(graph, 4, 2).to(D)
    query, key = values(3, 2, 4), values(3, 3, 4)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[0, 1] = True
    table = edge_weights(layer, (query, key, mask), graph=graph, heads="mean")
    weights = layer(query, key, key, mask, need_weights=True)[1].detach().numpy()
    assert table.samples.tolist() == [3, 2, 2, 3]
    np.testing.assert_allclose(table.weight[0], weights[:, 0].mean(), rtol=1e-12)
    np.testing.assert_allclose(table.weight[1], weights[1:, 1].mean(), rtol=1e-12)


class Custom(nn.Module):
    """Asks for weights itself, which must stay what they were."""

    def __init__(self, runs=1):
        super().__init__()
        torch.manual_seed(0)
        self.graph, self.runs = GRAPH, runs
        self.embed = nn.Linear(1, 6)
        self.attention = PackedMultiheadAttention.from_adjacency(GRAPH, 6, 2, dropout=0.5)
        self.to(D)

    def forward(self, x):
        tokens = self.embed(x.unsqueeze(-1))
        for _ in range(self.runs):
            mixed, self.seen = self.attention(tokens, tokens, tokens, need_weights=True)
        return mixed.sum((1, 2))


def test_a_model_of_ones_own_sees_what_it_asked_for():
    model = Custom()
    table = edge_weights(model, X, heads="mean")
    assert model.seen.shape == (7, 5)
    np.testing.assert_allclose(table.weight, model.seen.mean(0), rtol=1e-12)
    with pytest.raises(PriorGraphError, match="once a call, got 2 runs of layer 0"):
        edge_weights(Custom(runs=2), X)


def test_modes_hooks_gradients_and_random_state_are_left_alone():
    model = build(dropout=0.5).train()
    model.layers[1].eval()
    modes = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    first = edge_weights(model, torch.utils.data.TensorDataset(X))
    assert torch.equal(torch.get_rng_state(), state)
    pd.testing.assert_frame_equal(first, edge_weights(model.eval(), X))  # dropout was off
    model.train()
    model.layers[1].eval()
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    with pytest.raises(PriorGraphError):
        edge_weights(model, values(2, 4))
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_the_method_of_the_model_is_the_same_table():
    model = build()
    pd.testing.assert_frame_equal(
        model.edge_table(X, groupby=list("ppqqppq")), edge_weights(model, X, groupby=list("ppqqppq"))
    )


def test_moments_keep_a_small_spread_on_a_large_mean():
    x = 1e9 + values(50, 3, 2)
    moments = Moments(3, 2)
    for start in (0, 1, 20, 43):
        moments.add(x[start : {0: 1, 1: 20, 20: 43, 43: 50}[start]], None)
    np.testing.assert_allclose(moments.variance(), x.numpy().var(0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(moments.means(), x.numpy().mean(0), rtol=1e-15)


NAN = X.clone()
NAN[4, 3] = torch.nan
NOBODY = torch.zeros(7, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("model", "data", "options", "message"),
    [
        (build(), "X", {}, "data must be a floating tensor"),
        (build(), X.numpy(), {}, r"data must be a floating tensor .* got ndarray"),
        (build(), X.long(), {}, r"floating tensors .* got \(7, 5\) torch.int64"),
        (build(), X[0], {}, r"floating tensors .* got \(5,\)"),
        (build(), X[:0], {}, r"S at least 1; got \(0, 5\)"),
        (build(), [], {}, "at least one batch, got none"),
        (build(), X[:, :4], {}, r"\(B, 5\)"),
        (build(), NAN, {}, "got t not finite in sample 4"),
        (build(), NAN, {"batch_size": 3}, "got t not finite in sample 4"),
        (build(), X, {"groupby": list("pq")}, "got 2 for 7 samples"),
        (build(), [X], {"groupby": list("pq")}, "got 2 for 7 samples"),
        (build(), [X], {"groupby": list("pqpqpqpq")}, "got 8 for 7 samples"),
        (build(), X, {"groupby": "type"}, "sequence of labels or 'y', got 'type'"),
        (build(), X, {"groupby": "y"}, "got one without y"),
        (build(), X, {"groupby": ["p", None, *"ppppp"]}, "got none for sample 1"),
        (build(), X, {"heads": "all"}, "'heads' must be 'each' or 'mean'"),
        (build(), X, {"layers": [2]}, r"different numbers in \[0, 2\)"),
        (build(), X, {"layers": [0, 0]}, "different numbers"),
        (build(), X, {"top_k": 0}, "top_k must be a positive integer"),
        (build(), X, {"batch_size": 0}, "batch_size must be a positive integer"),
        (build(), X, {"key_padding_mask": NOBODY[:, :4]}, r"shape \(7, 5\), got \(7, 4\)"),
        (build(), [X], {"key_padding_mask": NOBODY}, "goes with data that is a tensor"),
        (nn.Linear(5, 5), X, {}, "PriorGraph as its attribute graph"),
        (nn.Linear(5, 5), X, {"graph": GRAPH}, "must hold a PackedMultiheadAttention"),
        (build(), X, {"graph": PriorGraph.from_edges([("a", "b")])}, "layer 0 does not"),
        (PriorTransformerLayer(GRAPH, 6, 2), X, {"graph": GRAPH}, r"tokens \(S, n, F\)"),
    ],
)  # fmt: skip
def test_refused(model, data, options, message):
    with pytest.raises(PriorGraphError, match=message):
        edge_weights(model, data, **options)


def test_labels_by_position_do_not_go_with_a_shuffled_loader():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), shuffle=True)
    with pytest.raises(PriorGraphError, match="got a DataLoader that shuffles"):
        edge_weights(build(), loader, groupby=list("pqpqpqp"))
