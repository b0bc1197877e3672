"""Overflow and precision: how far results may lie apart, many edges, scores far from and next to zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import (
    EdgeAttention,
    PriorAttentionConv,
    PriorTransformer,
)
from pyg_kpnn.ops import EdgeLayout, edge_attention
from pyg_kpnn.ops.precision import AGREEMENT

DTYPES = pytest.mark.parametrize("dtype", list(AGREEMENT), ids=lambda d: str(d).removeprefix("torch."))


def off(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest entry."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max() / expected.abs().max())


def column(*numbers: float, dtype=torch.float64) -> Tensor:
    """(N, 1, 1): one head of one channel."""
    return torch.tensor(numbers, dtype=dtype).view(-1, 1, 1)


# --- the table of bounds --------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("seed", range(3))
def test_every_backend_chunk_and_order_of_edges_agrees_within_the_table(backend, chunk, dtype, seed):
    gen = torch.Generator().manual_seed(seed)
    nodes, edges = 23, 301  # a hub takes a third of the edges
    edge_index = torch.randint(0, nodes, (2, edges), generator=gen)
    edge_index[1, : edges // 3] = 4
    order = torch.randperm(edges, generator=gen) if seed else torch.arange(edges)

    def draw(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    tensors, bias = [draw(2, nodes, 2, 8) for _ in range(3)], draw(edges, 2)
    mask = torch.rand(2, nodes, generator=gen) < 0.2
    grad = draw(2, nodes, 2, 8)

    def run(compute, edge_index, bias, **options):
        layout = EdgeLayout(edge_index, nodes, nodes)
        leaves = [t.to(compute).requires_grad_() for t in (*tensors, bias)]
        mixed, weights = edge_attention(
            *leaves[:3], layout, bias=leaves[3], key_mask=mask, need_weights=True, **options
        )
        assert mixed.dtype == weights.dtype == compute
        return mixed, weights, *torch.autograd.grad(mixed, leaves, grad.to(compute))

    exact = run(torch.float64, edge_index, bias, backend="reference")
    found = run(dtype, edge_index[:, order], bias[order], backend=backend, chunk_size=chunk)
    for i, (mine, theirs) in enumerate(zip(found, exact, strict=True)):
        theirs = theirs[:, order] if i == 1 else theirs[order] if i == 5 else theirs
        assert off(mine, theirs) <= AGREEMENT[dtype]


@DTYPES
def test_every_layer_agrees_with_itself_in_double_within_the_table(case, tester, backend, dtype):
    # A layer rounds after each of its parts, and the parts that follow carry it on.
    layer = tester.make(case, dtype, backend=backend)
    inputs = tester.draw(case, dtype=dtype)
    output = case.call(layer, inputs, None)
    wide = tester.make(case, backend="reference")
    wide.load_state_dict(layer.state_dict())
    exact = case.call(wide, [t.detach().double() for t in inputs], None)
    assert output.dtype == dtype
    assert off(output, exact) <= 4 * AGREEMENT[dtype]


# --- many edges into one node ---------------------------------------------------------------------

MANY = 70_000
STAR = torch.stack([torch.arange(MANY), torch.zeros(MANY, dtype=torch.int64)])
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


@HALVES
@pytest.mark.parametrize("lifted", [False, True], ids=["fused", "lifted"])
@pytest.mark.parametrize("backend", ["torch", "scatter", "native"], indirect=True)
def test_seventy_thousand_equal_scores_give_weights_that_sum_to_one(backend, dtype, lifted):
    attend = EdgeAttention(backend=backend)
    if lifted:
        attend.register_message_forward_hook(lambda *_: None)
    query, key = torch.ones(1, 1, 2, dtype=dtype), torch.ones(MANY, 1, 2, dtype=dtype).requires_grad_()
    mixed, weights = attend(query, key, key, STAR, need_weights=True)
    # 1/70000 itself is rounded: to a multiple of 2**-24 in float16, to 8 bits in bfloat16.
    assert weights.double().sum().item() == pytest.approx(1.0, abs=4e-3)
    assert mixed.dtype == dtype
    assert mixed.flatten().tolist() == pytest.approx([1.0, 1.0], abs=2e-3)
    mixed.float().sum().backward()
    assert key.grad.double().sum().item() == pytest.approx(2.0, rel=2e-2)


@HALVES
def test_single_messages_are_summed_as_the_fused_call_sums_them(dtype):
    # (256 + 1 - 255) / 3: in half precision the thirds are rounded before most of them cancels
    edges = torch.tensor([[0, 1, 2], [0, 0, 0]])
    query, key = column(0.0, dtype=dtype), column(0.0, 0.0, 0.0, dtype=dtype)
    attend = EdgeAttention()
    attend.register_message_forward_hook(lambda *_: None)
    mixed, _ = attend(query, key, column(256.0, 1.0, -255.0, dtype=dtype), edges)
    assert mixed.dtype == dtype
    assert mixed.item() == pytest.approx(2 / 3, rel=torch.finfo(dtype).eps)


@HALVES
def test_seventy_thousand_sources_of_a_layer_are_one_mean(dtype):
    torch.manual_seed(0)
    conv = PriorAttentionConv((2, 2), 2, root_weight=False).to(dtype)
    x = torch.ones(MANY, 2, dtype=dtype)
    out, (_, alpha) = conv((x, x[:1]), STAR, return_attention_weights=True)
    assert alpha.double().sum().item() == pytest.approx(1.0, abs=4e-3)
    torch.testing.assert_close(out, conv.lin_value(x[:1]), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("backend", "bound"), [("torch", 2e-3), ("scatter", 2e-3), ("native", 1e-6)],
                         indirect=["backend"])  # fmt: skip
def test_float32_sums_over_a_hub_lose_what_the_docs_say(backend, bound):
    layout = EdgeLayout(STAR, MANY, 1)
    query, key = torch.ones(1, 1, 2), torch.ones(MANY, 1, 2)
    mixed, weights = edge_attention(query, key, key, layout, backend=backend, need_weights=True)
    assert weights.double().sum().item() == pytest.approx(1.0, abs=1e-6)  # the softmax loses nothing
    assert mixed.flatten().tolist() == pytest.approx([1.0, 1.0], abs=bound)


@HALVES
def test_the_mean_over_more_nodes_than_half_precision_can_count(dtype):
    graph = PriorGraph.from_edges([(f"{i}", f"{i + 1}") for i in range(MANY)])
    torch.manual_seed(0)
    model = PriorTransformer(graph, embed_dim=2, num_heads=1, num_layers=1, readout="graph").to(dtype).eval()
    with torch.no_grad():
        model.norm.bias.fill_(3.0)  # so that the sum, too, is more than half precision can hold
        x = torch.randn(1, graph.state_dim).to(dtype)
        nothing_missing = torch.zeros(1, graph.state_dim, dtype=torch.bool)
        found, expected = model(x, nothing_missing), model(x)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


# --- scores far from zero -------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("by", ["product", "bias"])
def test_a_group_at_minus_ten_thousand_and_one_at_plus_do_not_disturb_each_other(backend, chunk, dtype, by):
    # into target 0 all scores lie about -1e4, into target 1 about +1e4, into target 2 about 0
    edges = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2]])
    offsets, value = torch.tensor([-1e4, 1e4, 0.0]).to(dtype), column(1.0, 3.0, 8.0, dtype=dtype)
    scale = {"product": (column(*(offsets / 100).tolist()), column(100.0, 100.0, 100.0)),
             "bias": (column(0.0, 0.0, 0.0), column(0.0, 0.0, 0.0))}[by]  # fmt: skip
    query, key = (t.to(dtype) for t in scale)
    bias = offsets[edges[1]] if by == "bias" else torch.zeros(9, dtype=dtype)

    def run(chosen):
        layout = EdgeLayout(edges[:, chosen], 3, 3)
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        mixed, weights = edge_attention(
            *leaves, layout, bias=bias[chosen], backend=backend, chunk_size=chunk, need_weights=True
        )
        return mixed, weights, torch.autograd.grad(mixed.float().sum(), leaves)

    together, weights, grads = run(slice(None))
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))
    assert together.flatten().tolist() == pytest.approx([4.0] * 3, rel=8e-3)
    assert all(g.isfinite().all() for g in grads)
    for target in range(3):
        alone, _, _ = run(slice(3 * target, 3 * target + 3))
        assert torch.equal(alone[target], together[target])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_scores_that_half_precision_cannot_hold_are_computed_in_float32(backend, dtype):
    layout = EdgeLayout(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    query, key = column(300.0, dtype=dtype), column(300.0, 300.0, dtype=dtype)  # 90,000 > 65,504
    mixed, _ = edge_attention(query, key, column(2.0, 4.0, dtype=dtype), layout, backend=backend)
    assert mixed.item() == 3.0


# --- numbers next to zero -------------------------------------------------------------------------


@pytest.fixture
def flushing():
    """torch.set_flush_denormal for one test; the switch belongs to the thread."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


def near_zero(dtype, backend):
    """Mix, weights and gradients of values smaller than the smallest normal number."""
    tiny = torch.finfo(dtype).smallest_normal
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 3, 0], [0, 0, 1, 1, 1]]), 4, 3)
    query, key = column(1.0, 1.0, 1.0, dtype=dtype), column(0.0, -80.0, 1.0, -0.0, dtype=dtype)
    value = column(tiny / 4, tiny / 2, tiny / 8, tiny / 4, dtype=dtype)
    leaves = [t.requires_grad_() for t in (query, key, value)]
    mixed, weights = edge_attention(*leaves, layout, backend=backend, need_weights=True)
    return mixed, weights, *torch.autograd.grad(mixed.float().sum(), leaves)


@DTYPES
def test_subnormal_numbers_are_numbers(backend, dtype):
    mixed, weights, *grads = near_zero(dtype, backend)
    expected = near_zero(torch.float64, "reference")
    assert mixed[0].item() == torch.finfo(dtype).smallest_normal / 4
    assert off(weights, expected[1]) <= AGREEMENT[dtype]
    assert all(g.isfinite().all() for g in grads)
    # Loading and running the kernels leaves the processor's switch as it was.
    assert (torch.tensor(1e-40) * 1.0).item() > 0.0


@DTYPES
@pytest.mark.usefixtures("flushing")
def test_flushing_denormals_takes_no_more_than_denormals(backend, dtype):
    mixed, weights, *grads = near_zero(dtype, backend)
    tiny = torch.finfo(dtype).smallest_normal
    assert 0.0 <= mixed.min().item() <= mixed.max().item() <= tiny
    torch.set_flush_denormal(False)
    expected = near_zero(dtype, backend)
    torch.set_flush_denormal(True)
    for mine, theirs in zip((weights, *grads), expected[1:], strict=True):
        assert (mine - theirs).abs().max().item() <= 4 * tiny


def test_minus_zero_is_zero(backend, chunk):
    layout = EdgeLayout(torch.tensor([[0, 1, 2], [0, 0, 0]]), 3, 2)
    options = {"backend": backend, "chunk_size": chunk, "need_weights": True}
    plain = edge_attention(column(0.0, 0.0), column(0.0, 0.0, 0.0), column(1.0, 2.0, 4.0), layout, **options)
    minus = edge_attention(
        column(-0.0, -0.0), column(-0.0, 0.0, -0.0), column(1.0, 2.0, 4.0), layout,
        bias=torch.full((3,), -0.0, dtype=torch.float64), **options,
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(plain, minus, strict=True))
    nothing = minus[0][1]  # no edge: 0, not -0, whose inverse is another infinity
    assert (1 / nothing).item() == torch.inf
