"""Autocast and casts: projections in the asked dtype, softmax in float32, results as of nn.Linear."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import PackedMultiheadAttention, PriorAttentionConv, PriorTransformer, PriorTransformerLayer
from pyg_kpnn.ops import EdgeLayout, edge_attention

EDGES = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
GRAPH = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d"), ("a", "c"), ("c", "b")],
                              weight=[3.0, 0.1, 7.0, 2.0, 0.3])  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
PLACES = [("cpu", torch.bfloat16), ("cpu", torch.float16), ("cuda", torch.float16), ("cuda", torch.bfloat16)]


@pytest.fixture(params=PLACES, ids=lambda p: f"{p[0]}-{str(p[1]).removeprefix('torch.')}")
def place(request):
    device, dtype = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return device, dtype


def packed(x, **options):
    layer = PackedMultiheadAttention(EDGES[0], EDGES[1], 4, 4, 8, 2, **options).to(x.device, x.dtype)
    return layer, lambda: layer(x, x, x, need_weights=True, average_attn_weights=False)


def conv(x, **options):
    layer = PriorAttentionConv(8, 4, heads=2, **options).to(x.device, x.dtype)
    edges = EDGES.to(x.device)
    attr = torch.ones(6, 2, device=x.device, dtype=x.dtype) if "edge_dim" in options else None

    def call():
        out, (_, alpha) = layer(x, edges, attr, return_attention_weights=True)
        return out, alpha

    return layer, call


def transformer_layer(x):
    layer = PriorTransformerLayer(GRAPH, 8, 2).to(x.device, x.dtype)
    return layer, lambda: layer(x, need_weights=True)


def transformer(x, **options):
    model = PriorTransformer(GRAPH, embed_dim=8, num_heads=2, **options).to(x.device, x.dtype)
    return model, lambda: (model(x[..., 0]), model.edge_weights(x[..., 0])[0])


FOLLOWING = {
    "packed": lambda x: packed(x, autocast=True),
    "conv": lambda x: conv(x, edge_dim=2, add_self_loops=True),
    "conv_bare": lambda x: conv(x, concat=False, root_weight=False),
    "layer": transformer_layer,
    "node": lambda x: transformer(x, edge_bias="log_weight"),
    "graph": lambda x: transformer(x, edge_bias="sign", readout="graph"),
}


def tokens(device, dtype=torch.float32):
    gen = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, 8, generator=gen).to(device, dtype)


def linear_dtype(x) -> torch.dtype:
    """What nn.Linear returns for ``x`` in the autocast context around."""
    with torch.no_grad():
        return nn.Linear(8, 8).to(x.device, x.dtype)(x).dtype


@pytest.mark.parametrize("name", list(FOLLOWING))
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_layers_follow_autocast_as_linear_does(place, name, wide):
    device, half = place
    x = tokens(device, wide)
    torch.manual_seed(0)
    layer, call = FOLLOWING[name](x)
    plain, _ = call()
    with torch.autocast(device, dtype=half):
        output, weights = call()
        asked = linear_dtype(x)
    assert asked == (half if wide == torch.float32 else torch.float64)
    # A layer with a residual returns the sum of its input and of what Linear gave.
    assert output.dtype == (wide if name == "layer" else asked)
    assert weights.dtype == asked
    bound = 0.0 if asked == wide else 0.15
    torch.testing.assert_close(output.to(wide), plain, rtol=bound, atol=bound)
    output.to(wide).sum().backward()
    for key, parameter in layer.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.dtype == wide, key
            assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_operator_computes_in_its_own_dtype_under_autocast(place, backend, dtype):
    device, half = place
    torch.manual_seed(0)
    layout = EdgeLayout(EDGES, 4, 4).to(device)
    leaves = [torch.randn(4, 2, 3, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
    features = torch.randn(6, 2, 3, dtype=dtype, device=device, requires_grad=True)

    def call():
        options = {} if backend == "native" else {"edge_features": features}
        mixed, _ = edge_attention(*leaves, layout, backend=backend, **options)
        return [mixed, *torch.autograd.grad(mixed.square().sum(), leaves)]

    plain = call()
    with torch.autocast(device, dtype=half):
        assert all(map(torch.equal, call(), plain))


@pytest.mark.parametrize("name", list(FOLLOWING))
def test_the_softmax_of_an_autocast_layer_runs_in_float32(place, name):
    # Weights of a softmax in float32 were rounded once each. One in half precision sums up to far less.
    device, half = place
    torch.manual_seed(0)
    _, call = FOLLOWING[name](10 * tokens(device))
    with torch.no_grad(), torch.autocast(device, dtype=half):
        _, weights = call()
    targets = {"packed": EDGES[1], "conv": torch.cat([EDGES[1], torch.arange(4)]), "conv_bare": EDGES[1]}
    target = targets.get(name, torch.cat([GRAPH.target_index, torch.arange(4)])).to(device)
    sums = torch.zeros(3, 4, 2, device=device).index_add(1, target, weights.float())
    eps = torch.finfo(half).eps
    assert (sums - 1).abs().max().item() <= 2.5 * eps / 2


def test_packed_attention_leaves_autocast_at_the_door_by_default(place):
    device, half = place
    x = tokens(device)
    torch.manual_seed(0)
    layer, call = packed(x)
    results = []
    for enabled in (False, True):
        layer.zero_grad()
        with torch.autocast(device, dtype=half, enabled=enabled):
            output, weights = call()
            loss = output.square().sum() + weights.square().sum()
            loss.backward()  # backward under autocast too
        results.append([output, weights, *(p.grad for p in layer.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["packed", "conv", "conv_bare"])
@pytest.mark.parametrize("own", HALVES, ids=["float16", "bfloat16"])
def test_a_half_precision_layer_may_run_in_the_other_half_precision(place, name, own):
    # nn.Linear may; torch.cat refuses such a mixture.
    device, half = place
    x = tokens(device, own)
    torch.manual_seed(0)
    _, call = FOLLOWING[name](x)
    plain, _ = call()
    with torch.autocast(device, dtype=half):
        output, _ = call()
        assert output.dtype == linear_dtype(x) == half
    torch.testing.assert_close(output.float(), plain.float(), rtol=0.1, atol=0.1)


# --- casts ----------------------------------------------------------------------------------------


def test_logarithms_of_the_weights_are_as_exact_as_the_parameters():
    model = PriorTransformer(GRAPH, embed_dim=8, num_heads=2, edge_bias="log_weight")
    weights = torch.cat([GRAPH.weight.double(), torch.ones(4, dtype=torch.float64)])
    # Through half precision and back: the logarithms come from the graph each time.
    for cast in (torch.float64, torch.float16, torch.float64, torch.bfloat16, torch.float32):
        model.to(cast)
        kept = torch.promote_types(cast, torch.float32)
        assert model.log_weight.dtype == kept
        torch.testing.assert_close(
            model.log_weight.double(), weights.log(), rtol=2 * torch.finfo(kept).eps, atol=0
        )
    with torch.no_grad():
        model.double()
        for layer in model.layers:
            layer.attention.q_proj.weight.zero_()
            layer.attention.q_proj.bias.zero_()
        found = model.edge_weights(torch.randn(1, 4))[0][0, :, 0]
    target = torch.cat([GRAPH.target_index, torch.arange(4)])
    totals = torch.zeros(4, dtype=torch.float64).index_add(0, target, weights)
    torch.testing.assert_close(found, weights / totals[target], rtol=1e-14, atol=0)


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double", "float"])
def test_every_layer_keeps_its_integers_and_its_graph_when_cast(case, tester, cast):
    layer = tester.make(case, torch.float32)
    before = copy.deepcopy(dict(layer.named_buffers()))
    getattr(layer, cast)()
    dtype = {"half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}.get(
        cast, torch.float32
    )
    assert {p.dtype for p in layer.parameters()} <= {dtype}
    for name, buffer in layer.named_buffers():
        if not before[name].is_floating_point():
            assert torch.equal(buffer, before[name]), name
            assert buffer.dtype == before[name].dtype, name
    output = case.call(layer, tester.draw(case, dtype=dtype), None)
    assert output.dtype == dtype
    assert output.isfinite().all()
