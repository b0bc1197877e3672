"""Order and identity of edges: a permutation permutes the weights and no more; loops; explainers; flow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.explain import AttentionExplainer, Explainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.nn import EdgeAttention, FixedEdgeModel, PackedMultiheadAttention, PriorAttentionConv
from pyg_kpnn.ops import EdgeLayout, edge_attention

BACKENDS = ["reference", "torch", "scatter", "native"]
EMBED, HEADS, WIDTH = 6, 2, 3
examples = settings(max_examples=8, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


def draw(gen, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)


# --- permutations ---------------------------------------------------------------------------------


def function(nodes, edges, bias, gen, options):
    q, k, v = (draw(gen, 2, nodes, HEADS, WIDTH).requires_grad_() for _ in range(3))
    mixed, weights = edge_attention(
        q, k, v, EdgeLayout(edges, nodes, nodes), bias=bias, need_weights=True, **options
    )
    return mixed, weights, [q, k, v]


def packed(nodes, edges, bias, gen, options):
    layer = PackedMultiheadAttention(edges[0], edges[1], nodes, nodes, EMBED, HEADS, add_self_loops=True)
    loops = layer.nnz - edges.shape[1]
    layer.backend, layer.chunk_size = options["backend"], options["chunk_size"]
    q, kv = (draw(gen, 2, nodes, EMBED).requires_grad_() for _ in range(2))
    bias = torch.cat([bias, bias.new_zeros(loops, HEADS)])
    out, weights = layer(q, kv, kv, edge_bias=bias, need_weights=True, average_attn_weights=False)
    return out, weights, [q, kv, *layer.parameters()]


def conv(nodes, edges, bias, gen, options):
    layer = PriorAttentionConv(EMBED, WIDTH, HEADS, add_self_loops=True, **options)
    x = draw(gen, 2, nodes, EMBED).requires_grad_()
    out, (_, weights) = layer(x, edges, edge_bias=bias, return_attention_weights=True)
    return out, weights, [x, *layer.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("run", [function, packed, conv], ids=lambda run: run.__name__)
def test_a_permutation_of_the_edges_permutes_the_weights(run, backend, usable, strategies):
    options = {"backend": usable(backend)}

    @examples
    @given(strategies.node_graphs(), seeds, st.sampled_from([None, 1, 3]))
    def check(graph, seed, chunk):
        nodes, edges = graph
        count = edges.shape[1]
        if run is packed and count == 0:
            return  # a layer with fixed edges has some
        gen = torch.Generator().manual_seed(seed)
        order = torch.randperm(count, generator=gen)
        bias = draw(gen, count, HEADS)
        results = []
        for permutation in (torch.arange(count), order):
            torch.manual_seed(0)
            own = bias[permutation].requires_grad_()
            out, weights, leaves = run(
                nodes, edges[:, permutation], own, gen.manual_seed(seed), {**options, "chunk_size": chunk}
            )
            loss = out.square().sum() + (weights[:, :count] * bias[permutation].cos()).sum()
            grads = torch.autograd.grad(loss, leaves)
            plain = torch.autograd.grad(run(
                nodes, edges[:, permutation], own, gen.manual_seed(seed), {**options, "chunk_size": chunk}
            )[0].square().sum(), own)[0]  # fmt: skip
            results.append((out, weights, grads, plain))
        (out, weights, grads, plain), (out2, weights2, grads2, plain2) = results
        assert torch.equal(out, out2)
        assert torch.equal(weights[:, :count][:, order], weights2[:, :count])
        assert torch.equal(weights[:, count:], weights2[:, count:])  # added loops
        assert torch.equal(plain[order], plain2)
        for one, other in zip(grads, grads2, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(1 + one.abs().max()))

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_the_same_to_the_bit_too(backend, usable, strategies):
    usable(backend)

    @examples
    @given(strategies.node_graphs(), seeds, st.sampled_from([None, 1, 3]), st.booleans())
    def check(graph, seed, chunk, need_weights):
        nodes, edges = graph
        gen = torch.Generator().manual_seed(seed)
        order = torch.randperm(edges.shape[1], generator=gen)
        tensors = [draw(gen, 2, nodes, HEADS, WIDTH) for _ in range(3)]
        grad, bias = draw(gen, 2, nodes, HEADS, WIDTH), draw(gen, 2, edges.shape[1], HEADS)
        mask = torch.rand(2, nodes, generator=gen) < 0.3
        results = []
        for permutation in (torch.arange(edges.shape[1]), order):
            leaves = [t.clone().requires_grad_() for t in (*tensors, bias[:, permutation])]
            mixed, weights = edge_attention(
                *leaves[:3], EdgeLayout(edges[:, permutation], nodes, nodes), bias=leaves[3], key_mask=mask,
                backend=backend, chunk_size=chunk, need_weights=need_weights,
            )  # fmt: skip
            loss = (mixed * grad).sum() + (weights.square().sum() * 0.0 if need_weights else 0.0)
            results.append([mixed, *torch.autograd.grad(loss, leaves)])
        first, second = results
        first[-1] = first[-1][:, order]
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_parallel_edges_keep_their_own_weights(backend, usable, strategies):
    # Their sum is rounded in the order given, so here equal means to rounding.
    usable(backend)

    @examples
    @given(strategies.node_graphs(simple=False), seeds)
    def check(graph, seed):
        nodes, edges = graph
        gen = torch.Generator().manual_seed(seed)
        count = edges.shape[1]
        order, bias = torch.randperm(count, generator=gen), draw(gen, count, HEADS, dtype=torch.float64)
        features = draw(gen, count, HEADS, WIDTH, dtype=torch.float64)
        tensors = [draw(gen, 2, nodes, HEADS, WIDTH, dtype=torch.float64) for _ in range(3)]
        options = {"backend": backend, "need_weights": True}
        one = edge_attention(
            *tensors, EdgeLayout(edges, nodes, nodes), bias=bias, edge_features=features, **options
        )
        other = edge_attention(
            *tensors, EdgeLayout(edges[:, order], nodes, nodes), bias=bias[order],
            edge_features=features[order], **options,
        )  # fmt: skip
        torch.testing.assert_close(one[0], other[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one[1][:, order], other[1], rtol=1e-12, atol=1e-12)

    check()


# --- self-loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_loops_given_or_added_or_both_are_one_loop_a_node(backend, usable, strategies):
    usable(backend)

    @examples
    @given(strategies.node_graphs(), seeds)
    def check(graph, seed):
        nodes, edges = graph
        gen = torch.Generator().manual_seed(seed)
        bare = edges[:, edges[0] != edges[1]]
        loops = torch.arange(nodes).expand(2, -1)
        some = torch.randperm(nodes, generator=gen)[: nodes // 2].expand(2, -1)
        x = draw(gen, 2, nodes, EMBED, dtype=torch.float64)
        ways = {"none": bare, "some": torch.cat([some, bare], 1), "all": torch.cat([bare, loops], 1)}
        found = {}
        for way, given_edges in ways.items():
            torch.manual_seed(0)
            layer = PriorAttentionConv(EMBED, WIDTH, HEADS, add_self_loops=True, backend=backend).double()
            out, (_, alpha) = layer(x, given_edges, return_attention_weights=True)
            is_loop = torch.cat([given_edges[0] == given_edges[1], torch.ones(nodes, dtype=torch.bool)])
            ends = torch.cat([given_edges[1], torch.arange(nodes)])
            own = torch.zeros(2, nodes, HEADS, dtype=torch.float64)
            own = own.index_add(1, ends[is_loop], alpha[:, is_loop])
            found[way] = [out, own]
            if given_edges.numel():
                torch.manual_seed(0)
                packed = PackedMultiheadAttention(
                    given_edges[0], given_edges[1], nodes, nodes, EMBED, HEADS, add_self_loops=True
                ).double()
                packed.backend = backend
                out, weights = packed(x, x, x, need_weights=True)
                source, target = packed.source_index, packed.target_index
                assert int((source == target).sum()) == nodes
                own = torch.zeros(2, nodes, dtype=torch.float64)
                own[:, source[source == target]] = weights[:, source == target]
                found[f"packed {way}"] = [out, own]
        torch.manual_seed(0)
        plain = PriorAttentionConv(EMBED, WIDTH, HEADS, backend=backend).double()
        torch.testing.assert_close(plain(x, ways["all"]), found["none"][0], rtol=1e-11, atol=1e-12)
        for way in ("some", "all"):
            torch.testing.assert_close(found[way], found["none"], rtol=1e-11, atol=1e-12)
            last = found.get("packed none", found["packed all"])
            torch.testing.assert_close(found.get(f"packed {way}", last), last, rtol=1e-11, atol=1e-12)

    check()


# --- explainers -----------------------------------------------------------------------------------

# Loops of the user's own at both ends of the list and in the middle.
EDGES = torch.tensor([[2, 0, 1, 3, 3, 0, 4], [2, 1, 2, 3, 0, 4, 4]])


def explained(model, call, mask):
    set_masks(model, mask, EDGES, apply_sigmoid=False)
    try:
        return call()
    finally:
        clear_masks(model)


@pytest.mark.parametrize("loops", [False, True])
def test_a_mask_entry_scales_its_own_edge_of_a_fixed_layer(loops, backend, chunk):
    layer = PackedMultiheadAttention(
        EDGES[0], EDGES[1], 5, 5, EMBED, HEADS, add_self_loops=loops, chunk_size=chunk
    ).double()
    layer.backend = backend
    x = draw(torch.Generator().manual_seed(0), 3, 5, EMBED, dtype=torch.float64)
    plain, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    value = layer.v_proj(x).unflatten(-1, (HEADS, -1))
    for e, (source, target) in enumerate(EDGES.T.tolist()):
        mask = torch.ones(7, dtype=torch.float64)
        mask[e] = 0.25
        lost = torch.zeros(3, 5, EMBED, dtype=torch.float64)
        lost[:, target] = 0.75 * (weights[:, e].unsqueeze(-1) * value[:, source]).flatten(-2)
        expected = plain - lost @ layer.out_proj.weight.T
        got = explained(layer, lambda: layer(x, x, x)[0], mask)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def test_an_explainer_of_a_fixed_model_sees_each_edges_own_weight():
    names = [f"n{i}" for i in range(5)]
    graph = PriorGraph.from_edges([(names[s], names[t]) for s, t in EDGES.T.tolist()], nodes=names)
    torch.manual_seed(0)
    model = FixedEdgeModel(PriorTransformer(graph, embed_dim=EMBED, num_heads=HEADS, num_layers=2)).eval()
    x = draw(torch.Generator().manual_seed(0), 1, 5)
    explainer = Explainer(
        model,
        AttentionExplainer(),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )
    found = explainer(x, graph.edge_index).edge_mask
    weights = torch.stack(model.model.edge_weights(x))  # (layers, 1, edges and loops, heads)
    torch.testing.assert_close(found, weights[:, 0, : graph.num_edges].amax((0, 2)))
    assert found.unique().numel() > 3  # no two edges could be taken for each other
    turned = graph.edge_index[:, torch.randperm(7, generator=torch.Generator().manual_seed(1))]
    with pytest.raises(PriorGraphError, match="edge_index must equal the edges the layers were given"):
        explainer(x, turned)


# --- flow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", ["target_to_source", "sideways", None])
def test_the_other_flow_is_refused(flow):
    # PyG's fused road would honour it where messages are lifted and ours ignore it.
    layers = [
        EdgeAttention(),
        PriorAttentionConv(4, 2),
        PackedMultiheadAttention([0], [1], 2, 2, 4, 2),
    ]
    for layer in layers:
        with pytest.raises(PriorGraphError, match="flow must be 'source_to_target'"):
            layer.flow = flow
        layer.flow = "source_to_target"
        assert layer.flow == "source_to_target"
    for build in (EdgeAttention, lambda **more: PriorAttentionConv(4, 2, **more)):
        with pytest.raises(TypeError, match="flow"):
            build(flow=flow)


def test_edges_run_from_source_to_target(backend, chunk):
    conv = PriorAttentionConv(2, 2, root_weight=False, backend=backend, chunk_size=chunk)
    x = torch.randn(3, 2)
    out = conv(x, torch.tensor([[0], [2]]))
    torch.testing.assert_close(out[2], conv.lin_value(x[0]))
    assert out[:2].count_nonzero() == 0
    back = conv(x, torch.tensor([[0], [2]]).flip(0))
    torch.testing.assert_close(back[0], conv.lin_value(x[2]))
    assert back[1:].count_nonzero() == 0
