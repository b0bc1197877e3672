"""Explainers of PyG over fixed and free edges, and the names of what they say."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import AttentionExplainer, Explainer, Explanation, GNNExplainer

from pyg_kpnn import PriorAttentionConv, PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import edge_mask_table, explain_edges, node_mask_table

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.*:UserWarning")

EDGES = [("a", "t"), ("b", "t"), ("c", "d"), ("t", "u")]
GRAPH = PriorGraph.from_edges(EDGES)
NAMES = ["a", "b", "c", "d", "t", "u"]


def build(seed=3, graph=GRAPH, **options):
    torch.manual_seed(seed)
    return PriorTransformer(graph, embed_dim=6, num_heads=2, num_layers=2, **options).eval()


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def names_of(table):
    return list(zip(table.source.astype(str), table.target.astype(str), strict=True))


@pytest.mark.parametrize("readout", ["node", "graph", "class"])
def test_gnn_explainer_on_a_batch(readout):
    model = build(readout=readout, num_classes=3 if readout == "class" else None)
    table = explain_edges(model, values(5, 6), algorithm=GNNExplainer(epochs=5))
    assert table.columns.tolist() == ["source", "target", "weight"]
    assert names_of(table) == EDGES
    assert table.weight.between(0.0, 1.0).all()


def test_the_edge_that_matters_is_found():
    """Only the value of a is asked for, through the output of t."""

    class OfT(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build(add_self_loops=False)
            self.graph = GRAPH

        def forward(self, x):
            return 10.0 * self.inner(x)[:, 4:5]

    table = explain_edges(OfT(), values(5, 6), algorithm=GNNExplainer(epochs=10)).set_index(
        ["source", "target"]
    )
    # two edges can reach t; the explainer switches off what has no gradient
    assert (table.weight[[("c", "d"), ("t", "u")]] == 0.0).all()
    assert (table.weight[[("a", "t"), ("b", "t")]] > 0.0).all()


def test_a_seed_gives_the_same_mask_and_leaves_the_global_generator_alone():
    model, x = build(dropout=0.3).train(), values(4, 6)
    state = torch.get_rng_state()
    first = explain_edges(model, x, algorithm=GNNExplainer(epochs=3), seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    torch.manual_seed(77)
    assert explain_edges(model, x, algorithm=GNNExplainer(epochs=3), seed=1).equals(first)
    assert not explain_edges(model, x, algorithm=GNNExplainer(epochs=3), seed=2).equals(first)


def test_attention_explainer_shows_the_largest_mean_weight():
    model, x = build(), values(4, 6)
    table = explain_edges(model, x, algorithm=AttentionExplainer())
    weights = torch.stack(model.edge_weights(x)).detach()[:, :, :4]  # layers, samples, edges, heads
    expected = weights.mean(1).amax((0, -1))
    torch.testing.assert_close(torch.tensor(table.weight.to_numpy()).float(), expected)


def test_a_target_and_a_mask_go_through():
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 0] = True
    x = values(4, 6).masked_fill(mask, torch.nan)
    table = explain_edges(
        build(), x, algorithm=GNNExplainer(epochs=3), key_padding_mask=mask, target=values(4, 6)
    )
    assert table.weight.notna().all()


class Free(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = PriorAttentionConv(2, 3, heads=2)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def explain(x, edges, algorithm):
    explainer = Explainer(
        Free(),
        algorithm,
        explanation_type="model",
        edge_mask_type="object",
        node_mask_type=None if isinstance(algorithm, AttentionExplainer) else "attributes",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    return explainer(x, edges)


def test_free_edges_in_another_order_and_a_batch_of_graphs():
    edges = GRAPH.edge_index[:, [2, 0, 3, 1]]
    batch = Batch.from_data_list([Data(x=values(6, 2), edge_index=edges) for _ in range(3)])
    explanation = explain(batch.x, batch.edge_index, AttentionExplainer())
    table = edge_mask_table(explanation, GRAPH)
    order = [EDGES[place] for place in (2, 0, 3, 1)]
    assert table["sample"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert names_of(table) == order * 3
    assert table.weight.tolist() == explanation.edge_mask.tolist()
    single = edge_mask_table(explain(values(6, 2), edges, AttentionExplainer()), GRAPH)
    assert "sample" not in single
    assert single.weight.tolist() == pytest.approx(table.weight[:4].tolist())


def test_node_masks_have_names():
    explanation = explain(values(6, 2), GRAPH.edge_index, GNNExplainer(epochs=2))
    table = node_mask_table(explanation, GRAPH)
    assert table.node.tolist() == NAMES
    assert table.value.tolist() == pytest.approx(explanation.node_mask.sum(1).tolist())
    twice = Explanation(node_mask=torch.arange(12.0).view(12, 1))
    table = node_mask_table(twice, GRAPH)
    assert table["sample"].tolist() == [0] * 6 + [1] * 6
    assert table.value.tolist() == list(range(12))


INDEX = GRAPH.edge_index


@pytest.mark.parametrize(
    ("explanation", "graph", "message"),
    [
        (Explanation(edge_index=INDEX), GRAPH, "must have edge_mask, got a Explanation without"),
        (Explanation(edge_index=INDEX, edge_mask=torch.ones(3)), GRAPH, r"got \(3,\) beside \(2, 4\)"),
        (Explanation(edge_mask=torch.ones(4)), GRAPH, "beside None"),
        (Explanation(edge_index=INDEX.flip(0), edge_mask=torch.ones(4)), GRAPH, "got t -> a at position 0"),
        (Explanation(edge_index=INDEX * 7, edge_mask=torch.ones(4)), GRAPH, "edges of the graph"),
        # from a in one sample to t in the next
        (Explanation(edge_index=torch.tensor([[0], [10]]), edge_mask=torch.ones(1)), GRAPH, "got a -> t"),
        (Explanation(edge_index=INDEX - 6, edge_mask=torch.ones(4)), GRAPH, "edges of the graph"),
        (Explanation(edge_index=INDEX, edge_mask=torch.ones(4)), None, "graph must be a PriorGraph"),
        (
            Explanation(edge_index=INDEX, edge_mask=torch.ones(4)),
            PriorGraph.bipartite([("a", "b")]),
            "not bipartite, got a bipartite one",
        ),
    ],
)
def test_refused_explanations(explanation, graph, message):
    with pytest.raises(PriorGraphError, match=message):
        edge_mask_table(explanation, graph)


@pytest.mark.parametrize("shape", [(5, 1), (1, 6), (6,), (0, 1)])
def test_refused_node_masks(shape):
    with pytest.raises(PriorGraphError, match="one row for each of the 6 units"):
        node_mask_table(Explanation(node_mask=torch.ones(shape)), GRAPH)


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (nn.Linear(6, 6), values(2, 6), "PriorGraph as its attribute graph"),
        (build(), [0.0] * 6, "floating point of shape"),
        (build(), values(2, 5), r"\(B, 6\)"),
    ],
)
def test_refused_models(model, x, message):
    with pytest.raises(PriorGraphError, match=message):
        explain_edges(model, x, algorithm=GNNExplainer(epochs=1))
