"""PriorTransformer and its layer: readouts, what the prior adds to the scores, padding, autocast."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from pyg_kpnn import PriorGraph, PriorGraphError
from pyg_kpnn.nn import PriorTransformer, PriorTransformerLayer

EDGES = [("a", "b"), ("c", "b"), ("b", "b"), ("d", "c"), ("e", "a"), ("a", "e"), ("c", "e")]
GRAPH = PriorGraph.from_edges(EDGES, sign=[1, -1, 1, 0, 1, -1, 1])
WEIGHTED = PriorGraph.from_edges(EDGES, weight=[1.0, 3.0, 2.0, 5.0, 0.5, 1.0, 4.0])
SIZES = {"embed_dim": 6, "num_heads": 2}


def make(graph: PriorGraph = GRAPH, *, seed: int = 0, **options) -> PriorTransformer:
    torch.manual_seed(seed)
    return PriorTransformer(graph, **{**SIZES, **options})


def values(batch: int = 3, nodes: int = 5) -> torch.Tensor:
    return torch.randn(batch, nodes, generator=torch.Generator().manual_seed(1))


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (3, 5)),
        ({"readout": "node"}, (3, 5)),
        ({"readout": "graph"}, (3,)),
        ({"readout": "class", "num_classes": 7}, (3, 7)),
        ({"readout": "class", "num_classes": 1}, (3, 1)),
        ({"readout": "graph", "shared_head": True}, (3,)),
        ({"readout": "class", "num_classes": 7, "shared_head": True}, (3, 7)),
    ],
)
@pytest.mark.parametrize("edge_bias", [None, "sign", "log_weight"])
def test_readouts(options, shape, edge_bias):
    model = make(WEIGHTED, edge_bias=edge_bias, **options)
    out = model(values())
    assert out.shape == shape
    assert out.dtype == torch.float32


@pytest.mark.parametrize(
    ("readout", "shared"), [("node", False), ("node", True), ("graph", False), ("graph", True)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_zero_samples(readout, shared, masked):
    model = make(readout=readout, shared_head=shared, edge_bias="sign")
    out = model(values(0), torch.zeros(0, 5, dtype=torch.bool) if masked else None)
    assert out.shape == ((0, 5) if readout == "node" else (0,))
    assert [w.shape for w in model.edge_weights(values(0))] == [(0, 11, 2)] * 2


def test_wide_nodes_have_a_token_a_unit():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], widths={"b": 3}, sign=[1, -1], weight=[2.0, 3.0])
    for edge_bias in ("sign", "log_weight"):
        model = make(graph, edge_bias=edge_bias)
        assert model(values(3, 5)).shape == (3, 5)
        assert [w.shape for w in model.edge_weights(values(3, 5))] == [(3, 6 + 5, 2)] * 2
    assert model.sign_class is None


def test_edge_weights_follow_the_edges():
    model = make(num_layers=3)
    weights = model.edge_weights(values())
    assert len(weights) == 3
    layer = model.layers[0].attention
    edges = torch.stack([layer.source_index, layer.target_index])
    assert torch.equal(edges[:, : GRAPH.num_edges], GRAPH.edge_index)
    assert edges[:, GRAPH.num_edges :].tolist() == [[0, 2, 3, 4]] * 2
    for w in weights:
        assert w.shape == (3, 11, 2)
        sums = torch.zeros(3, 5, 2).index_add(1, layer.target_index, w)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_layer_shapes():
    layer = PriorTransformerLayer(GRAPH, 6, 2, feedforward_dim=11)
    assert layer.feedforward[0].out_features == 11
    assert PriorTransformerLayer(GRAPH, 6, 2).feedforward[0].out_features == 24
    x = torch.randn(2, 3, 5, 6)
    out, weights = layer(x)
    assert out.shape == x.shape
    assert weights is None
    assert layer(x, need_weights=True)[1].shape == (2, 3, 11, 2)
    assert layer.attention.identity == GRAPH.fingerprint


def test_without_self_loops_a_source_free_node_keeps_to_itself():
    model = make(add_self_loops=False, num_layers=1)
    x = values()
    other = x.clone()
    other[:, [0, 1, 2, 4]] += 1.0
    assert torch.equal(model(x)[:, 3], model(other)[:, 3])  # d has no source
    assert not torch.equal(model(x)[:, 2], model(other)[:, 2])


def test_one_layer_reaches_one_edge_far():
    one, two = make(num_layers=1), make(num_layers=2)
    x = values()
    other = x.clone()
    other[:, 3] += 1.0  # d -> c -> b
    assert torch.equal(one(x)[:, 1], one(other)[:, 1])
    assert not torch.allclose(two(x)[:, 1], two(other)[:, 1])


# --- what the prior adds to the scores ------------------------------------------------------------


def silence_queries(model: PriorTransformer) -> PriorTransformer:
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.q_proj.weight.zero_()
            layer.attention.q_proj.bias.zero_()
    return model


@pytest.mark.parametrize("edge_bias", [None, "sign"])
def test_untrained_attention_is_even_without_log_weights(edge_bias):
    model = silence_queries(make(edge_bias=edge_bias))
    target = model.layers[0].attention.target_index
    for weights in model.edge_weights(values()):
        torch.testing.assert_close(weights, (1.0 / target.bincount()[target]).view(1, -1, 1).expand(3, -1, 2))


def test_untrained_attention_is_in_proportion_to_the_weights():
    model = silence_queries(make(WEIGHTED, edge_bias="log_weight"))
    # Into b: a with 1, b itself with 2, c with 3.
    into_b = [EDGE for EDGE, (_, target) in enumerate(WEIGHTED.edges) if target == "b"]
    for weights in model.edge_weights(values()):
        expected = torch.tensor([1 / 6, 2 / 6, 3 / 6])
        torch.testing.assert_close(weights[:, into_b], expected.view(1, 3, 1).expand(3, 3, 2))
        # Into c: d with 5, and the added loop with 1; into d: its loop alone.
        c, d = WEIGHTED.edges.index(("d", "c")), 7 + 2
        torch.testing.assert_close(weights[:, c], torch.full((3, 2), 5 / 6))
        torch.testing.assert_close(weights[:, 7 + 1], torch.full((3, 2), 1 / 6))
        torch.testing.assert_close(weights[:, d], torch.ones(3, 2))


def test_log_weight_of_a_graph_without_weights_is_zero():
    assert GRAPH.weight is None
    model = make(GRAPH, edge_bias="log_weight")
    assert torch.equal(model.log_weight, torch.zeros(11))


def test_signs_have_a_term_each():
    model = silence_queries(make(edge_bias="sign", num_layers=1))
    assert model.sign_bias.shape == (1, 4, 2)
    signs = dict(zip(GRAPH.edges, GRAPH.sign.tolist(), strict=True))
    assert model.sign_class.tolist() == [signs[e] + 1 for e in GRAPH.edges] + [3] * 4
    with torch.no_grad():
        model.sign_bias[0, 0, 0] = torch.tensor(3.0).log()  # inhibition, first head
        model.sign_bias[0, 3, 1] = -torch.inf  # added loops, second head
    weights = model.edge_weights(values())[0]
    position = {edge: i for i, edge in enumerate(GRAPH.edges)}
    # Into e: a inhibits, c activates, and an added loop.
    into_e = [position["a", "e"], position["c", "e"], 7 + 3]
    torch.testing.assert_close(weights[0, into_e, 0], torch.tensor([3 / 5, 1 / 5, 1 / 5]))
    torch.testing.assert_close(weights[0, into_e, 1], torch.tensor([1 / 2, 1 / 2, 0.0]))


def test_sign_bias_starts_at_zero_and_learns():
    model = make(edge_bias="sign", readout="graph")
    assert torch.equal(model.sign_bias, torch.zeros(2, 4, 2))
    model(values()).square().sum().backward()
    assert (model.sign_bias.grad.abs().amax((0, 2)) > 0).all()
    assert not hasattr(make(), "sign_bias")


# --- padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("readout", ["node", "graph", "class"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_unmeasured_values_reach_nothing(readout, poison):
    model = make(
        readout=readout, num_classes=3 if readout == "class" else None, edge_bias="sign", dropout=0.3
    )
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, [0, 3]] = mask[2, 1] = True
    results = []
    for filler in (0.0, 17.0, poison):
        x = values().masked_fill(mask, filler).requires_grad_()
        torch.manual_seed(3)
        out = model(x, mask)
        assert out.isfinite().all()
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])])
        assert results[-1][1][mask].count_nonzero() == 0
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


def test_an_unmeasured_node_passes_on_what_its_sources_say():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    mask = torch.tensor([[False, True, False]])
    for layers, passes in ((1, False), (2, True)):
        torch.manual_seed(0)
        model = PriorTransformer(graph, embed_dim=8, num_heads=2, num_layers=layers).double().eval()
        x = torch.randn(1, 3, dtype=torch.float64).masked_fill(mask, torch.nan).requires_grad_()
        out = model(x, mask)
        assert out.isfinite().all()
        (grad,) = torch.autograd.grad(out[0, 2], x)
        assert (grad[0, 0] != 0) == passes
        to_c = [weights[0, 1].abs().sum() > 0 for weights in model.edge_weights(x, mask)]
        assert to_c == [False, True][:layers]  # b -> c
        assert grad[0, 1] == 0


def test_an_unmeasured_node_that_heard_nothing_is_not_attended_to():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d"), ("e", "d")])
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 1:3] = True  # b and c, of which b hears a, then c hears b
    mask[1, [0, 1]] = True  # a, which has no source, and b, which has no other
    mask[2, 4] = True  # e, which has no source
    torch.manual_seed(0)
    model = PriorTransformer(graph, embed_dim=8, num_heads=2, num_layers=3).double().eval()
    attended = [
        {graph.edges[e] for e in range(4) if weights[sample, e].abs().sum() > 0}
        for weights in model.edge_weights(torch.randn(3, 5, dtype=torch.float64), mask)
        for sample in range(3)
    ]
    ab, bc, cd, ed = graph.edges
    known = [{cd, ed}, {ab, bc, cd}]  # of the last two samples, in every layer
    assert attended == [{ab, ed}, *known, {ab, bc, ed}, *known, {ab, bc, cd, ed}, *known]
    attention = model.layers[0].attention
    assert attention.has_live_source(mask).tolist() == [
        [True, True, False, True, True],
        [False, False, True, True, True],
        [True, True, True, True, False],
    ]
    with pytest.raises(PriorGraphError, match=r"key_padding_mask must have shape \(3, 5\)"):
        attention.has_live_source(mask[:, 1:])
    for wrong in (None, mask.long()):
        with pytest.raises(PriorGraphError, match="key_padding_mask must be a boolean tensor"):
            attention.has_live_source(wrong)


def test_a_node_is_read_with_weights_of_its_own():
    model, tokens = make().double().eval(), []
    model.norm.register_forward_hook(lambda module, given, out: tokens.append(out))
    out = model(values().double())
    expected = (tokens[0] * model.head.weight).sum(-1) + model.head.bias
    torch.testing.assert_close(out, expected)
    shared = make(shared_head=True).double().eval()
    shared.norm.register_forward_hook(lambda module, given, out: tokens.append(out))
    out = shared(values().double())
    torch.testing.assert_close(out, tokens[1] @ shared.head.weight[0] + shared.head.bias)


@pytest.mark.parametrize("shared", [False, True])
def test_both_heads_follow_autocast(shared):
    for width in (1, 4):
        model = PriorTransformer(GRAPH, embed_dim=width, num_heads=1, shared_head=shared)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(values())
        assert out.dtype == torch.bfloat16
        out.sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in model.head.parameters())


def test_pooling_leaves_unmeasured_nodes_out():
    model = make(readout="graph", shared_head=True).eval()
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, [0, 4]] = True
    pooled = model(values(), mask)
    model.readout = "node"
    nodes = model(values(), mask)
    live = (~mask).float()
    torch.testing.assert_close(pooled, (nodes * live).sum(1) / live.sum(1))


def test_classes_are_read_from_every_channel_of_every_live_token():
    model = make(readout="class", num_classes=3).double().eval()
    tokens = []
    model.norm.register_forward_hook(lambda module, given, out: tokens.append(out))
    x = values().double()
    assert model.head.weight.shape == (3, 5 * model.value_weight.shape[1])
    weight = model.head.weight.unflatten(1, (5, -1))  # class, node, channel
    out = model(x)
    expected = torch.einsum("bnd,cnd->bc", tokens[0], weight) + model.head.bias
    torch.testing.assert_close(out, expected)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, [0, 4]] = True
    hidden = model(x.masked_fill(mask, float("nan")), mask)
    live = tokens[1] * (~mask).unsqueeze(-1)
    torch.testing.assert_close(hidden, torch.einsum("bnd,cnd->bc", live, weight) + model.head.bias)
    assert torch.equal(hidden, model(x.masked_fill(mask, 7.0), mask))
    assert hidden.isfinite().all()
    lost = model(x.index_put((torch.tensor(0), torch.tensor(2)), torch.tensor(float("nan")).double()))
    assert lost[0].isnan().all()
    assert lost[1:].isfinite().all()


def test_nothing_measured_is_finite():
    for readout in ("node", "graph"):
        model = make(readout=readout)
        out = model(torch.full((2, 5), torch.nan), torch.ones(2, 5, dtype=torch.bool))
        assert out.isfinite().all()
        out.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_unmasked_nan_stays_visible():
    x = values()
    x[1, 3] = torch.nan
    out = make()(x)
    assert out[1, [2, 3]].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_no_mask_equals_an_empty_mask():
    for readout in ("node", "graph"):
        model = make(readout=readout)
        torch.testing.assert_close(model(values()), model(values(), torch.zeros(3, 5, dtype=torch.bool)))


# --- refused --------------------------------------------------------------------------------------

BIPARTITE = PriorGraph.bipartite([("a", "p"), ("b", "p")])


@pytest.mark.parametrize(
    ("graph", "options", "fragment"),
    [
        (None, {}, "graph must be a PriorGraph, got NoneType"),
        ([("a", "b")], {}, "graph must be a PriorGraph, got list"),
        (BIPARTITE, {}, "needs one set of nodes, got a bipartite graph"),
        (GRAPH, {"readout": "nodes"}, "readout must be one of node, graph, class, got 'nodes'"),
        (GRAPH, {"readout": None}, "readout must be one of"),
        (GRAPH, {"readout": "class"}, "num_classes goes with readout='class'"),
        (GRAPH, {"num_classes": 3}, "num_classes goes with readout='class'"),
        (GRAPH, {"readout": "class", "num_classes": 0}, "num_classes must be a positive integer"),
        (GRAPH, {"readout": "class", "num_classes": True}, "num_classes must be a positive integer"),
        (GRAPH, {"shared_head": "yes"}, "shared_head must be True or False, got 'yes'"),
        (GRAPH, {"edge_bias": "weight"}, "edge_bias must be None, 'sign' or 'log_weight', got 'weight'"),
        (GRAPH, {"edge_bias": False}, "edge_bias must be None"),
        (GRAPH, {"embed_dim": 0}, "embed_dim must be a positive integer"),
        (GRAPH, {"embed_dim": 6.0}, "embed_dim must be a positive integer"),
        (GRAPH, {"num_heads": True}, "num_heads must be a positive integer"),
        (GRAPH, {"num_layers": 0}, "num_layers must be a positive integer"),
        (GRAPH, {"num_layers": 1.5}, "num_layers must be a positive integer"),
        (GRAPH, {"embed_dim": 7}, "embed_dim must be divisible by num_heads"),
        (GRAPH, {"dropout": 2}, "dropout must be a number"),
        (GRAPH, {"dropout": True}, "dropout must be a number"),
        (GRAPH, {"add_self_loops": 1}, "add_self_loops must be True or False"),
        (GRAPH, {"chunk_size": 0}, "chunk_size must be a positive integer"),
        (PriorGraph.from_edges([("a", "b"), ("b", "a")], weight=[1.0, 0.0]), {"edge_bias": "log_weight"},
         "needs positive weights; b -> a has 0.0"),
        (PriorGraph.from_edges([("a", "b")], weight=[-2.0]), {"edge_bias": "log_weight"}, "a -> b has -2.0"),
        (PriorGraph.from_edges([("a", "b"), ("b", "a"), ("c", "a")], weight=[1.0, -3.0, 0.0]),
         {"edge_bias": "log_weight"}, "b -> a has -3.0"),
    ],
)  # fmt: skip
def test_refused_at_construction(graph, options, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        PriorTransformer(graph, **{**SIZES, **options})


@pytest.mark.parametrize(
    ("graph", "options", "fragment"),
    [
        (BIPARTITE, {}, "needs one set of nodes"),
        ("graph", {}, "must be a PriorGraph"),
        (GRAPH, {"embed_dim": 5}, "divisible"),
        (GRAPH, {"embed_dim": "6"}, "embed_dim must be a positive integer"),
        (GRAPH, {"dropout": -1}, "dropout must be a number"),
        (GRAPH, {"dropout": True}, "dropout must be a number"),
        (GRAPH, {"feedforward_dim": 0}, "feedforward_dim must be a positive integer"),
        (GRAPH, {"add_self_loops": None}, "add_self_loops must be True or False"),
    ],
)
def test_layer_refused_at_construction(graph, options, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        PriorTransformerLayer(graph, **{**SIZES, **options})


@pytest.mark.parametrize(
    "x",
    [values().long(), values().bool(), values(3, 4), values()[0], values().unsqueeze(0), values().T, None,
     values().unsqueeze(-1), values().tolist(), values().numpy(), values().to(torch.complex64)],
)  # fmt: skip
def test_refused_values(x):
    with pytest.raises(PriorGraphError, match=r"x must be floating point of shape \(B, 5\)"):
        make()(x)
    with pytest.raises(PriorGraphError, match=r"x must be floating point of shape \(B, 5\)"):
        make().edge_weights(x)


@pytest.mark.parametrize(
    "mask",
    [torch.zeros(3, 5), torch.zeros(5).bool(), torch.zeros(1, 5).bool(), torch.zeros(5, 3).bool(),
     [[False] * 5] * 3, torch.zeros(3, 5).long()],
)  # fmt: skip
def test_refused_masks(mask):
    with pytest.raises(PriorGraphError, match=r"key_padding_mask must be boolean of shape \(3, 5\)"):
        make()(values(), mask)


# --- parameters and checkpoints -------------------------------------------------------------------


def test_reset_parameters_draws_everything_anew():
    model = make(edge_bias="sign")
    with torch.no_grad():
        model.sign_bias.add_(1.0)
        model.norm.weight.add_(1.0)
    before = copy.deepcopy(dict(model.named_parameters()))
    torch.manual_seed(99)
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        constant = name.endswith("bias") and "feedforward." not in name and "head" not in name
        if constant or "norm" in name:
            value = 1.0 if name.endswith("norm.weight") else 0.0
            assert torch.equal(parameter, torch.full_like(parameter, value)), name
        else:
            assert not torch.equal(parameter, before[name]), name
    again = make(edge_bias="sign")
    torch.manual_seed(99)
    again.reset_parameters()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"embed_dim": 15, "num_heads": 5, "num_layers": 3, "readout": "node", "num_classes": None}
        | {
            "shared_head": False,
            "edge_bias": None,
            "dropout": 0.0,
            "add_self_loops": True,
            "chunk_size": None,
        },
        {"embed_dim": 14, "num_heads": 7, "num_layers": 1, "readout": "class", "num_classes": 4}
        | {
            "shared_head": True,
            "edge_bias": "sign",
            "dropout": 0.25,
            "add_self_loops": False,
            "chunk_size": 3,
        },
        {"embed_dim": 3, "num_heads": 1, "num_layers": 2, "readout": "graph", "num_classes": None}
        | {
            "shared_head": False,
            "edge_bias": "log_weight",
            "dropout": 0.5,
            "add_self_loops": True,
            "chunk_size": 2,
        },
    ],
    ids=["node", "class", "graph"],
)
def test_config_builds_the_same_model(options):
    graph = PriorGraph.from_edges(EDGES, sign=[1, -1, 1, 0, 1, -1, 1], weight=[1, 3, 2, 5, 0.5, 1, 4])
    model = PriorTransformer(graph, **options).eval()
    assert model.config == json.loads(json.dumps(model.config)) == options
    again = PriorTransformer(graph, **model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(values()), model(values()))


def test_one_seed_one_model():
    one, two = make(), make()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("edge_bias", [None, "sign", "log_weight"])
def test_state_dict_holds_nothing_derived(edge_bias):
    model = make(WEIGHTED, edge_bias=edge_bias)
    state = model.state_dict()
    names = {name.rsplit(".", 1)[-1] for name in state}
    assert not {n for n in names if n.startswith("_layout") or n in {"log_weight", "sign_class", "rank"}}
    assert ("sign_bias" in names) == (edge_bias == "sign")
    other = make(WEIGHTED, edge_bias=edge_bias, seed=5)
    other.load_state_dict(state)
    assert torch.equal(other(values()), model(values()))


def test_checkpoint_of_another_graph_changes_nothing():
    model = make(num_layers=2)
    renamed = PriorGraph.from_edges([(s.upper(), t.upper()) for s, t in EDGES])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PriorGraphError, match="same graph"):
        model.load_state_dict(make(renamed, seed=4).state_dict())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_chunks_and_dropout_reach_every_layer():
    model = make(dropout=0.25, chunk_size=3, num_layers=3)
    for layer in model.layers:
        assert (layer.attention.dropout, layer.attention.chunk_size) == (0.25, 3)
        assert layer.dropout.p == layer.feedforward[2].p == 0.25
    whole = make(num_layers=3).eval()
    whole.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(values()), whole(values()))


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_bias", [None, "sign", "log_weight"])
@pytest.mark.parametrize("readout", ["node", "graph"])
def test_autocast_is_followed(edge_bias, readout):
    model = make(WEIGHTED, edge_bias=edge_bias, readout=readout)
    x = values().requires_grad_()
    plain = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        weights = model.edge_weights(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), plain, rtol=0.1, atol=0.1)
    target = model.layers[0].attention.target_index
    for w in weights:
        sums = torch.zeros(3, 5, 2).index_add(1, target, w.float())
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0.02, atol=0)
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_cast(dtype):
    model = make(WEIGHTED, edge_bias="log_weight").to(dtype)
    assert model(values().to(dtype)).dtype == dtype
    assert model(values()).dtype == dtype
    assert model.layers[0].attention.source_index.dtype == torch.int64
    signed = make(edge_bias="sign").to(dtype)
    assert signed.sign_class.dtype == torch.int64
    assert signed(values()).dtype == dtype


def test_moved_to_meta_and_filled():
    model = make(edge_bias="sign")
    with torch.no_grad():
        model.sign_bias.normal_()
    state = copy.deepcopy(model.state_dict())
    expected = model(values())
    with torch.device("meta"):
        empty = PriorTransformer(GRAPH, **SIZES, edge_bias="sign")
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(state)
    assert torch.equal(empty.sign_class, model.sign_class)
    assert torch.equal(empty.layers[0].attention.source_index, model.layers[0].attention.source_index)
    assert torch.equal(empty(values()), expected)


def test_log_weights_survive_to_empty():
    model = make(WEIGHTED, edge_bias="log_weight")
    state, expected = copy.deepcopy(model.state_dict()), model(values())
    with torch.device("meta"):
        empty = PriorTransformer(WEIGHTED, **SIZES, edge_bias="log_weight")
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(state)
    assert torch.equal(empty(values()), expected)
