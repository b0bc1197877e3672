"""Knock-outs against calls of the model on inputs changed by hand."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import knockout, knockouts

D = torch.float64
EDGES = [("a", "t"), ("b", "t"), ("c", "a"), ("t", "u"), ("u", "v"), ("e", "e")]
GRAPH = PriorGraph.from_edges(EDGES)
NAMES = ["a", "b", "c", "e", "t", "u", "v"]


def build(seed=3, graph=GRAPH, **options):
    torch.manual_seed(seed)
    return PriorTransformer(graph, embed_dim=6, num_heads=2, **options).to(D).eval()


X = torch.randn(6, 7, dtype=D, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("value", [0.0, -1.5, "mean", "mask"])
@pytest.mark.parametrize("per_sample", [False, True])
def test_changes_are_those_of_changed_inputs(value, per_sample):
    model = build()
    table = knockout(model, X, ["t", ("a", "b")], value=value, per_sample=per_sample, batch_size=4)
    with torch.no_grad():
        base = model(X)
        expected = []
        for places in ([4], [0, 1]):
            x, mask = X.clone(), torch.zeros(6, 7, dtype=torch.bool)
            if value == "mask":
                mask[:, places] = True
                out = model(x, mask)
            else:
                x[:, places] = X.mean(0)[places] if value == "mean" else value
                out = model(x)
            expected.append(out - base)
    change, base = torch.stack(expected, 1).numpy(), base.numpy()
    if per_sample:
        assert table.columns[0] == "sample"
        np.testing.assert_array_equal(table["sample"], np.repeat(np.arange(6), 14))
    else:
        change, base = change.mean(0, keepdims=True), base.mean(0, keepdims=True)
    assert table.columns[-4:].tolist() == ["node", "output", "change", "baseline"]
    assert table.node.astype(str).tolist()[:14] == ["t"] * 7 + ["a + b"] * 7
    assert table.output.astype(str).tolist()[:7] == NAMES
    np.testing.assert_allclose(table.change, change.reshape(-1), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(table.baseline, np.repeat(base[:, None], 2, 1).reshape(-1), rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, "mask", "mean"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_what_a_node_cannot_reach_stays_exactly_and_the_rest_moves(layers, value):
    table = knockout(build(num_layers=layers), X, value=value).set_index(["node", "output"]).change
    reach = dict(nx.all_pairs_shortest_path_length(nx.DiGraph(EDGES), cutoff=layers))
    assert len(table) == 49
    for node in NAMES:
        for output in NAMES:
            assert (table[node, output] != 0.0) == (output in reach[node]), (node, output)


def test_zeros_are_not_only_written_there():
    """Before any bound is applied the model itself does not move what is out of reach."""
    model, x = build(num_layers=1), X.clone()
    x[:, 2] = 0.0
    with torch.no_grad():
        change = model(x) - model(X)
    assert change[:, [1, 3, 4, 5, 6]].abs().max() < 1e-14


def test_what_rounding_would_leave_there_is_taken_away(monkeypatch):
    """As where a device adds in any order: two equal sums differ in the last bit."""
    called, draw = knockouts._called, torch.Generator().manual_seed(0)

    def shaken(model, x, mask):
        out = called(model, x, mask)
        return out + 1e-15 * torch.rand(out.shape, generator=draw, dtype=D)

    monkeypatch.setattr(knockouts, "_called", shaken)
    table = knockout(build(num_layers=1), X, ["c"]).set_index("output").change
    assert (table[["b", "e", "t", "u", "v"]] == 0.0).all()
    assert (table[["a", "c"]] != 0.0).all()


@pytest.mark.parametrize("readout", ["graph", "class"])
def test_pooled_outputs_have_columns(readout):
    model = build(readout=readout, num_classes=3 if readout == "class" else None)
    table = knockout(model, X, ["c"], value="mask")
    count = 3 if readout == "class" else 1
    assert table.output.tolist() == list(range(count))
    mask = torch.zeros(6, 7, dtype=torch.bool)
    mask[:, 2] = True
    with torch.no_grad():
        expected = (model(X, mask) - model(X)).mean(0).reshape(-1)
    np.testing.assert_allclose(table.change, expected, rtol=1e-9)
    if readout == "class":
        assert knockout(model, X, ["c"], outputs=[2]).output.tolist() == [2]


def test_masked_values_have_no_mean_and_no_say():
    model = build()
    mask = torch.zeros(6, 7, dtype=torch.bool)
    mask[:2, 0] = True
    x = X.masked_fill(mask, torch.nan)
    x[0, 0] = 100.0  # masked as well, whatever it holds
    table = knockout(model, x, ["a"], value="mean", outputs=["t"], key_padding_mask=mask, per_sample=True)
    changed = X.clone()
    changed[:, 0] = X[2:, 0].mean()
    with torch.no_grad():
        expected = (model(changed, mask) - model(x, mask))[:, 4]
    np.testing.assert_allclose(table.change, expected, rtol=1e-9, atol=1e-15)
    assert (table.change[:2] == 0.0).all()
    assert (table.change[2:] != 0.0).all()


def test_all_units_of_a_node_go_together():
    graph = PriorGraph.from_edges([("w", "t")], widths={"w": 2})
    model = build(graph=graph)
    x = torch.randn(3, 3, dtype=D)
    changed = x.clone()
    changed[:, model.graph.node_units("w")] = 0.0
    with torch.no_grad():
        expected = (model(changed) - model(x)).mean(0)
    table = knockout(model, x, ["w"])
    assert sorted(table.output.astype(str)) == ["t", "w[0]", "w[1]"]
    np.testing.assert_allclose(table.change, expected, rtol=1e-9)


class Sum(nn.Module):
    graph = GRAPH

    def forward(self, x):
        return x.sum((1, 2)) if x.dim() == 3 else x.sum(1)


def test_models_of_ones_own_with_channels():
    x = torch.arange(28.0, dtype=D).view(2, 7, 2)
    table = knockout(Sum(), x, ["a", "b"], value="mean")
    np.testing.assert_allclose(table.change, [0.0, 0.0], atol=1e-12)
    table = knockout(Sum(), x, ["b"], value=1.0, per_sample=True)
    assert table.change.tolist() == [2 - (2 + 3), 2 - (16 + 17)]


def test_training_mode_comes_back_and_batches_do_not_matter():
    model = build(dropout=0.5).train()
    first = knockout(model, X, ["c", "t"], batch_size=1)
    assert model.training
    pd.testing.assert_frame_equal(
        first, knockout(model.eval(), [X[:4], X[4:]], ["c", "t"]), rtol=1e-9, atol=1e-12
    )


NAN = X.clone()
NAN[1, 2] = torch.inf


@pytest.mark.parametrize(
    ("model", "data", "nodes", "options", "message"),
    [
        (nn.Linear(7, 7), X, ["a"], {}, "PriorGraph as its attribute graph"),
        (build(), X, "a", {}, "Put a single name in a list"),
        (build(), X, ["A"], {}, "differs only in case from 'a'"),
        (build(), X, [("a", "zzz")], {}, "Got 'zzz'"),
        (build(), X, ["a", "a"], {}, "nodes must be different"),
        (build(), X, [("a", "a")], {}, "nodes must be different"),
        (build(), X, [()], {}, "at least one in a tuple"),
        (build(), X, [], {}, "at least one name"),
        (build(), X, ["a"], {"value": "zero"}, "finite number, 'mean' or 'mask', got 'zero'"),
        (build(), X, ["a"], {"value": float("nan")}, "finite number"),
        (build(), X, ["a"], {"value": True}, "finite number"),
        (build(), X, ["a"], {"outputs": ["T"]}, "outputs must be among the nodes, got 'T' .differs only"),
        (build(), X, ["a"], {"outputs": "t"}, "outputs must be a sequence"),
        (build(), X, ["a"], {"per_sample": 1}, "per_sample must be True or False"),
        (build(), X[:, :3], ["a"], {}, r"7 values a sample, one a unit, got \(6, 3\)"),
        (build(), NAN, ["a"], {}, "got c not finite in sample 1"),
        (build(), iter([X]), ["a"], {"value": "mean"}, "goes through the samples 2 times"),
    ],
)
def test_refused(model, data, nodes, options, message):
    with pytest.raises(PriorGraphError, match=message):
        knockout(model, data, nodes, **options)
