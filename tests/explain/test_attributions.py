"""Attributions by name: the naming against hand-made tables, Captum's against the axioms."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import map_node_attributions, node_attributions

D = torch.float64
GRAPH = PriorGraph.from_edges([("a", "t"), ("b", "t"), ("c", "a"), ("t", "u")])
NAMES = ["a", "b", "c", "t", "u"]


def build(seed=3, **options):
    torch.manual_seed(seed)
    return PriorTransformer(GRAPH, embed_dim=6, num_heads=2, num_layers=2, **options).to(D).eval()


def values(*shape, seed=5):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


X = values(4, 5)


@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((3, 5), 1), ((5, 3), 0), ((3, 2, 5), 2), ((3, 5, 2), -2)]
)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("reduce", ["mean", "sum", "abs"])
def test_one_value_a_node(shape, axis, named, reduce):
    given = values(*shape)
    table = map_node_attributions(given, GRAPH, axis=axis if named else None, reduce=reduce)
    flat = np.moveaxis(given.numpy(), axis, 0).reshape(5, -1)
    expected = {"mean": flat.mean(1), "sum": flat.sum(1), "abs": np.abs(flat).mean(1)}[reduce]
    assert table.columns.tolist() == ["node", "value"]
    assert table.node.tolist() == NAMES
    np.testing.assert_allclose(table.value, expected, rtol=1e-12)


def test_samples_and_other_axes_may_stay():
    given = values(3, 5, 2)
    table = map_node_attributions(given, GRAPH, sample_axis=0, reduce="sum")
    assert table.columns.tolist() == ["sample", "node", "value"]
    assert table["sample"].tolist() == np.repeat([0, 1, 2], 5).tolist()
    np.testing.assert_allclose(table.value, given.sum(-1).reshape(-1), rtol=1e-12)
    table = map_node_attributions(given, GRAPH, sample_axis=-1, reduce=None)
    assert table.columns.tolist() == ["sample", "node", "axis_0", "value"]
    for row in table.itertuples():
        assert row.value == given[row.axis_0, NAMES.index(row.node), row.sample]


def test_both_sides_of_a_bipartite_graph_and_units():
    graph = PriorGraph.bipartite([("s1", "t1"), ("s2", "t1"), ("s2", "t2")], widths={"s2": 2})
    assert map_node_attributions(values(3), graph).node.tolist() == ["s1", "s2[0]", "s2[1]"]
    assert map_node_attributions(values(2), graph, side="target").node.tolist() == ["t1", "t2"]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (values(3, 4), {}, r"must have the 5 units, got 0 such axes in shape \(3, 4\)"),
        (values(5, 5), {}, "got 2 such axes"),
        (values(5, 4), {"axis": 1}, "Axis 1 must have the 5 units"),
        (values(5, 4), {"axis": 2}, "axis must be an axis of shape"),
        (values(5, 4), {"axis": True}, "axis must be an axis of shape"),
        (values(5, 4), {"sample_axis": 0}, "another axis than that of units"),
        (values(5, 4), {"reduce": "max"}, "'reduce' must be"),
        (values(5, 4), {"side": "left"}, "'side' must be"),
        ([1.0] * 5, {}, "tensor or array of real numbers, got list"),
        (values(5).to(torch.complex64), {}, "real numbers, got complex64"),
    ],
)
def test_refused_tensors(given, options, message):
    with pytest.raises(PriorGraphError, match=message):
        map_node_attributions(given, GRAPH, **options)


def test_a_graph_is_needed():
    with pytest.raises(PriorGraphError, match="graph must be a PriorGraph"):
        map_node_attributions(values(5), NAMES)


# --- Captum ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("readout", "target"), [("node", "t"), ("graph", None), ("class", 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_integrated_gradients_are_complete(readout, target, masked):
    pytest.importorskip("captum")
    model = build(readout=readout, num_classes=3 if readout == "class" else None)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[:2, 1] = masked
    x = X.masked_fill(mask, torch.nan)
    options = {"key_padding_mask": mask} if masked else {}
    table = node_attributions(model, x, target=target, reduce=None, batch_size=3, n_steps=200, **options)
    with torch.no_grad():
        change = model(x, mask) - model(torch.zeros_like(X), mask)
    change = {"node": lambda: change[:, 3], "graph": lambda: change, "class": lambda: change[:, 1]}[readout]()
    assert table.columns.tolist() == ["sample", "node", "value"]
    np.testing.assert_allclose(table.groupby("sample").value.sum(), change, rtol=1e-4, atol=1e-6)
    assert (table.value[(table["sample"] < 2) & (table.node == "b")] == 0.0).all() == masked


def test_saliency_is_the_gradient_and_zero_out_of_reach():
    pytest.importorskip("captum")
    model = build()
    table = node_attributions(model, X, "Saliency", target="a", abs=False)
    x = X.clone().requires_grad_()
    model(x)[:, 0].sum().backward()
    np.testing.assert_allclose(table.value, x.grad.mean(0), rtol=1e-9, atol=1e-15)
    assert (table.set_index("node").value[["b", "t", "u"]] == 0.0).all()
    assert (table.set_index("node").value[["a", "c"]] != 0.0).all()


def test_ablation_is_what_a_knock_out_takes_away():
    from pyg_kpnn.explain import knockout

    pytest.importorskip("captum")
    table = node_attributions(build(), X, "FeatureAblation", target="t")
    change = knockout(build(), X, outputs=["t"]).change
    np.testing.assert_allclose(table.value, -change, rtol=1e-9, atol=1e-14)


def test_training_mode_and_gradients_are_left_alone():
    pytest.importorskip("captum")
    model = build(dropout=0.5).train()
    first = node_attributions(model, X, "Saliency", target="t")
    assert model.training
    assert not X.requires_grad
    assert node_attributions(model, X, "Saliency", target="t").equals(first)


@pytest.mark.parametrize(
    ("model", "x", "method", "target", "message"),
    [
        (build(), X, "Saliencey", "t", "class of captum.attr, got 'Saliencey' .did you mean 'Saliency'"),
        (build(), X, "__doc__", "t", "class of captum.attr"),
        (build(), X, None, "t", "class of captum.attr, got None"),
        (build(), X, "Saliency", "T", "outputs must be among the nodes, got 'T'"),
        (build(), X, "Saliency", None, "target must be a node where there are 5 outputs"),
        (build(readout="class", num_classes=2), X, "Saliency", 2, "columns 0 to 1, got 2"),
        (build(readout="class", num_classes=2), X, "Saliency", None, "target must be a column from 0 to 1"),
        (build(), X / 0.0, "Saliency", "t", "must be finite"),
        (torch.nn.Linear(5, 5), X, "Saliency", 0, "PriorGraph as its attribute graph"),
    ],
)
def test_refused(model, x, method, target, message):
    pytest.importorskip("captum")
    with pytest.raises(PriorGraphError, match=message):
        node_attributions(model, x, method, target=target)


def test_without_captum_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ImportError, match=r"pip install \"pyg_kpnn\[captum\]\""):
        node_attributions(build(), X, target="t")
