"""Targets without a live source: one answer in every mode, and finite gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

from pyg_kpnn import PriorGraph, PriorTransformer
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv, PriorTransformerLayer
from pyg_kpnn.ops import EdgeLayout, edge_attention

MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
EMBED, HEADS = 6, 2
# 5 nodes. Isolated: no edge ends in node 3, which is read, nor in node 4, which nobody reads.
# Padded: every source of node 0 is masked in sample 1.
PAIRS = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "c"), ("b", "a"), ("c", "a")]
GRAPH = PriorGraph.from_edges(PAIRS, nodes=list("abcde"))
EDGES = GRAPH.edge_index
PADDED = torch.zeros(3, 5, dtype=torch.bool)
PADDED[1, [1, 2]] = True


def tokens() -> torch.Tensor:
    return torch.randn(3, 5, EMBED, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def operator(layer, x, mask, need_weights):
    q = x.unflatten(-1, (HEADS, -1))
    mixed, weights = layer(q, q, q, EDGES, key_mask=mask, need_weights=need_weights)
    return mixed.flatten(-2), weights


def packed(layer, x, mask, need_weights):
    return layer(x, x, x, mask, need_weights, average_attn_weights=False)


def conv(layer, x, mask, need_weights):
    out = layer(x, EDGES, return_attention_weights=True if need_weights else None)
    return (out[0], out[1][1]) if need_weights else (out, None)


def stack(layer, x, mask, need_weights):
    return layer(x, mask, need_weights=need_weights)


def alone(layer, x):
    """A row of the transformer layer whose attention has nothing to read."""
    x = x + layer.attention.out_proj.bias
    return x + layer.feedforward(layer.feedforward_norm(x))


# How to build, how to call, whether it takes a mask, and what a target that reads nothing must be.
LAYERS = {
    "operator": (EdgeAttention, operator, True, lambda layer, x: torch.zeros_like(x)),
    "packed": (
        lambda: PackedMultiheadAttention(EDGES[0], EDGES[1], 5, 5, EMBED, HEADS),
        packed, True, lambda layer, x: layer.out_proj.bias.expand_as(x),
    ),
    "packed_without_bias": (
        lambda: PackedMultiheadAttention(EDGES[0], EDGES[1], 5, 5, EMBED, HEADS, bias=False),
        packed, True, lambda layer, x: torch.zeros_like(x),
    ),
    "conv": (lambda: PriorAttentionConv(EMBED, 3, 2), conv, False, lambda layer, x: layer.lin_skip(x)),
    "conv_without_root": (
        lambda: PriorAttentionConv(EMBED, 3, 2, root_weight=False),
        conv, False, lambda layer, x: torch.zeros_like(x),
    ),
    "layer": (
        lambda: PriorTransformerLayer(GRAPH, EMBED, HEADS, add_self_loops=False), stack, True, alone,
    ),
}  # fmt: skip


def make(name, backend, chunk, training):
    build, call, masks, expected = LAYERS[name]
    torch.manual_seed(0)
    layer = build().double().train(training)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3)
    for operator in layer.modules():
        if isinstance(operator, EdgeAttention):
            operator.backend, operator.chunk_size, operator.dropout = backend, chunk, 0.5
    return layer, call, masks, expected


def check_answer(output, weights, wanted, dead, need_weights):
    torch.testing.assert_close(output[dead], wanted[dead], rtol=1e-12, atol=1e-13)
    assert output.isfinite().all()
    assert (weights is not None) == need_weights
    if need_weights:
        assert weights.shape == (3, 6, HEADS)
        assert weights.isfinite().all()
        assert weights[dead[:, EDGES[1]]].count_nonzero() == 0


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", list(LAYERS))
def test_one_answer_in_every_mode(name, need_weights, backend, chunk):
    for training, mode in itertools.product((False, True), MODES):
        layer, call, masks, expected = make(name, backend, chunk, training)
        x, mask = tokens().requires_grad_(mode == "grad"), PADDED if masks else None
        dead = torch.zeros(3, 5, dtype=torch.bool)
        dead[:, [3, 4]] = True
        dead[1, 0] = masks
        with MODES[mode]():
            output, weights = call(layer, x, mask, need_weights)
            check_answer(output, weights, expected(layer, x), dead, need_weights)
        if mode == "grad" and training:
            loss = output.square().sum() + (weights.square().sum() if need_weights else 0.0)
            leaves = [x, *layer.parameters()]
            grads = torch.autograd.grad(loss, leaves, create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves, materialize_grads=True)
            assert all(g.isfinite().all() for g in (*grads, *second))
            if masks:  # of the dead row alone nothing comes back through attention
                own = torch.autograd.grad(call(layer, x, mask, need_weights)[0][1, 0].sum(), x)[0]
                assert own[1, 1:].count_nonzero() == 0
                assert own[[0, 2]].count_nonzero() == 0


@pytest.mark.parametrize("name", list(LAYERS))
def test_no_target_has_a_live_source(name, backend, chunk):
    layer, call, masks, expected = make(name, backend, chunk, True)
    if not masks:
        pytest.skip("takes no key mask")
    x = tokens().requires_grad_()
    output, weights = call(layer, x, torch.ones(3, 5, dtype=torch.bool), True)
    torch.testing.assert_close(output, expected(layer, x), rtol=1e-12, atol=1e-13)
    assert weights.count_nonzero() == 0
    # With no parameters and no root the output is a constant, and still part of the graph of derivatives.
    grads = torch.autograd.grad(output.square().sum(), [x, *layer.parameters()], materialize_grads=True)
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("readout", ["node", "graph", "class"])
def test_nothing_is_measured(readout, training, backend):
    model = PriorTransformer(
        GRAPH, embed_dim=EMBED, num_heads=HEADS, readout=readout, edge_bias="sign", add_self_loops=False,
        num_classes=3 if readout == "class" else None,
    ).double().train(training)  # fmt: skip
    for layer in model.layers:
        layer.attention.backend = backend
    x = torch.full((2, 5), torch.nan, dtype=torch.float64)
    answers = []
    for mode in MODES.values():
        with mode():
            answers.append(model(x, torch.ones(2, 5, dtype=torch.bool)).detach().clone())
    assert answers[0].isfinite().all()
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    model(x, torch.ones(2, 5, dtype=torch.bool)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(("edges", "nodes"), [(0, 3), (0, 1), (1, 1), (1, 3)])
@pytest.mark.parametrize("batch", [(), (0,), (2,), (2, 0)], ids=str)
def test_no_edge_or_one(backend, chunk, edges, nodes, batch):
    layout = EdgeLayout(torch.zeros(2, edges, dtype=torch.int64), nodes, nodes)
    for mode, need_weights in itertools.product(MODES.values(), (False, True)):
        leaves = [torch.ones(*batch, nodes, 2, 3, requires_grad=True) for _ in range(3)]
        bias = torch.zeros(edges, requires_grad=True)
        with mode():
            mixed, weights = edge_attention(
                *leaves, layout, bias=bias, dropout_p=0.0, chunk_size=chunk, backend=backend,
                need_weights=need_weights,
            )  # fmt: skip
        expected = torch.zeros(*batch, nodes, 2, 3)
        expected[..., :edges, :, :] = 1.0
        assert torch.equal(mixed, expected)
        assert (weights is not None) == need_weights
        if need_weights:
            assert torch.equal(weights, torch.ones(*batch, edges, 2))
        if mode is torch.enable_grad:
            grads = torch.autograd.grad(mixed.sum(), [*leaves, bias])
            assert all(g.isfinite().all() for g in grads)
            assert [g.shape for g in grads] == [t.shape for t in (*leaves, bias)]
