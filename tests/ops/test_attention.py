"""``edge_attention`` on every backend, whole and chunked, against loops over edges."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pyg_kpnn
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.ops import BACKENDS, EdgeLayout, backends, edge_attention
from pyg_kpnn.ops.attention import _choose
from pyg_kpnn.ops.dropout import draw_seed, keep_mask
from pyg_kpnn.ops.native_library import native_missing
from pyg_kpnn.ops.scatter_kernel import scatter_missing

BIASES = ["none", "edge", "edge_head", "sample"]


def column(*numbers: float) -> torch.Tensor:
    """(N, 1, 1): one head of one channel."""
    return torch.tensor(numbers).view(-1, 1, 1)


# --- values ---------------------------------------------------------------------------------------


def test_by_hand(backend, chunk):
    # Scores ln 3 and 0 into target 0; target 1 sees one source, target 2 none.
    layout = EdgeLayout(torch.tensor([[1, 0, 1], [0, 0, 1]]), 2, 3)
    mixed, weights = edge_attention(
        column(1.0, 5.0, 7.0),
        column(math.log(3.0), 0.0),
        column(8.0, 4.0),
        layout,
        chunk_size=chunk,
        backend=backend,
        need_weights=True,
    )
    assert torch.allclose(weights.flatten(), torch.tensor([0.25, 0.75, 1.0]))
    assert torch.allclose(mixed.flatten(), torch.tensor([7.0, 4.0, 0.0]))


def test_bias_and_features_by_hand(backend):
    layout = EdgeLayout(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    q, k, v = column(2.0), column(0.0, 0.0), column(8.0, 4.0)
    bias = torch.tensor([math.log(3.0), 0.0])
    mixed, _ = edge_attention(q, k, v, layout, bias=bias, backend=backend)
    assert torch.allclose(mixed.flatten(), torch.tensor([7.0]))
    # 2 * (0 + ln(3)/2) = ln 3, and the feature is added to what the edge carries.
    features = column(math.log(3.0) / 2, 0.0)
    mixed, _ = edge_attention(q, k, v, layout, edge_features=features, backend=backend)
    assert torch.allclose(mixed.flatten(), torch.tensor([7.0 + 0.75 * math.log(3.0) / 2]))


@pytest.mark.parametrize("masked", [False, True], ids=["all_keys", "masked"])
@pytest.mark.parametrize(
    ("bias", "features"), [*((bias, "none") for bias in BIASES), ("none", "edge"), ("sample", "sample")]
)
def test_values_and_gradients_equal_loops(loop_attention, problem, backend, chunk, bias, features, masked):
    p = problem()
    tensors = {"query": p.query, "key": p.key, "value": p.value}
    options = {"bias": p.bias[bias], "edge_features": p.features[features]}
    tensors.update({name: t for name, t in options.items() if t is not None})
    mask = p.mask if masked else None

    def run(function, **more):
        leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
        mixed, weights = function(layout=p.layout, key_mask=mask, **leaves, **more)
        loss = (mixed * p.grad).sum() + (weights * p.grad_weights).sum()
        return [mixed, weights, *torch.autograd.grad(loss, list(leaves.values()))]

    expected = run(loop_attention)
    got = run(edge_attention, backend=backend, chunk_size=chunk, need_weights=True)
    for one, other in zip(expected, got, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (2, 3), (0,), (2, 0)], ids=str)
def test_leading_axes(loop_attention, problem, backend, chunk, lead):
    p = problem(lead=lead) if 0 not in lead else problem(lead=(1,))
    if 0 in lead:
        tensors = [torch.zeros(*lead, *t.shape[1:], dtype=t.dtype) for t in (p.query, p.key, p.value)]
        mask = torch.zeros(*lead, 7, dtype=torch.bool)
    else:
        tensors, mask = [p.query, p.key, p.value], p.mask
    options = {"bias": p.bias["edge_head"], "edge_features": p.features["edge"], "key_mask": mask}
    mixed, weights = edge_attention(
        *tensors, p.layout, **options, chunk_size=chunk, backend=backend, need_weights=True
    )
    assert mixed.shape == (*lead, 5, 2, 3)
    assert weights.shape == (*lead, 11, 2)
    if 0 not in lead:
        expected = loop_attention(*tensors, p.layout, **options)
        torch.testing.assert_close((mixed, weights), expected, rtol=1e-12, atol=1e-13)


def test_weights_only_when_asked(problem, backend):
    p = problem()
    assert edge_attention(p.query, p.key, p.value, p.layout, backend=backend)[1] is None


@pytest.mark.parametrize("size", [1, 2, 5, 10, 11, 12, 1000])
def test_every_chunk_size(problem, backend, size):
    p = problem()
    options = {"bias": p.bias["sample"], "edge_features": p.features["edge"], "key_mask": p.mask}
    whole = edge_attention(
        p.query, p.key, p.value, p.layout, **options, need_weights=True, backend="reference"
    )
    got = edge_attention(
        p.query, p.key, p.value, p.layout, **options, chunk_size=size, need_weights=True, backend=backend
    )
    torch.testing.assert_close(got, whole, rtol=1e-12, atol=1e-13)


def test_non_contiguous_inputs(problem, backend, chunk):
    p = problem()
    p.mask[:] = p.mask[0]
    plain = edge_attention(p.query, p.key, p.value, p.layout, key_mask=p.mask, backend=backend)[0]
    q, k = (t.transpose(0, -1).contiguous().transpose(0, -1) for t in (p.query, p.key))
    v = p.value.repeat_interleave(2, dim=1)[:, ::2]
    mask = p.mask[:1].expand(3, -1)
    assert not any(t.is_contiguous() for t in (q, k, v, mask))
    strided = edge_attention(q, k, v, p.layout, key_mask=mask, chunk_size=chunk, backend=backend)[0]
    torch.testing.assert_close(strided, plain, rtol=1e-12, atol=1e-13)


def test_parallel_edges_count_twice(loop_attention, problem, backend, chunk):
    p = problem()
    layout = EdgeLayout(torch.cat([p.layout.edge_index, p.layout.edge_index[:, 3:6]], dim=1), 7, 5)
    bias = torch.randn(14, 2, dtype=torch.float64)
    got = edge_attention(
        p.query, p.key, p.value, layout, bias=bias, chunk_size=chunk, backend=backend, need_weights=True
    )
    torch.testing.assert_close(
        got, loop_attention(p.query, p.key, p.value, layout, bias=bias), rtol=1e-12, atol=1e-13
    )


def test_without_edges(backend, chunk):
    layout = EdgeLayout(torch.empty(2, 0, dtype=torch.int64), 3, 2)
    q, kv = torch.randn(5, 2, 1, 3, requires_grad=True), torch.randn(5, 3, 1, 3, requires_grad=True)
    mixed, weights = edge_attention(
        q, kv, kv, layout, dropout_p=0.5, chunk_size=chunk, backend=backend, need_weights=True
    )
    assert torch.equal(mixed, torch.zeros(5, 2, 1, 3))
    assert weights.shape == (5, 0, 1)
    mixed.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))
    assert torch.equal(kv.grad, torch.zeros_like(kv))


@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
def test_order_of_edges_changes_nothing_to_the_bit(problem, backend, chunk):
    p = problem(dtype=torch.float32)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    shuffled = EdgeLayout(p.layout.edge_index[:, order], 7, 5)
    bias, features = p.bias["sample"], p.features["edge"]

    def run(layout, bias, features):
        leaves = [t.clone().requires_grad_() for t in (p.query, p.key, p.value)]
        mixed, weights = edge_attention(
            *leaves,
            layout,
            bias=bias,
            edge_features=features,
            key_mask=p.mask,
            chunk_size=chunk,
            backend=backend,
            need_weights=True,
        )
        return mixed, weights, torch.autograd.grad((mixed * p.grad).sum(), leaves)

    mixed, weights, grads = run(p.layout, bias, features)
    mixed2, weights2, grads2 = run(shuffled, bias[:, order], features[order])
    assert torch.equal(mixed, mixed2)
    assert torch.equal(weights[:, order], weights2)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads2, strict=True))


# --- derivatives ----------------------------------------------------------------------------------


# The dense reference is slow, and made of torch's own functions.
FAST = {"reference": True, "torch": False, "scatter": False, "native": False}


@pytest.fixture(params=[False, True], ids=["all_keys", "masked"])
def differentiable(request, backend, chunk):
    """A function of (query, key, value, bias, edge_features), and small arguments for it."""
    if backend == "reference" and chunk is not None:
        pytest.skip("the reference has no chunks")
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 0], [1, 1, 1, 0]]), 3, 2)
    gen = torch.Generator().manual_seed(7)
    shapes = ((2, 2, 1, 2), (2, 3, 1, 2), (2, 3, 1, 2), (2, 4, 1), (4, 1, 2))
    arguments = [torch.randn(s, generator=gen, dtype=torch.float64, requires_grad=True) for s in shapes]
    mask = torch.tensor([[False, True, False], [True, False, False]]) if request.param else None

    def function(query, key, value, bias, edge_features):
        return edge_attention(
            query,
            key,
            value,
            layout,
            bias=bias,
            edge_features=edge_features,
            key_mask=mask,
            chunk_size=chunk,
            backend=backend,
            need_weights=True,
        )

    return function, arguments


def test_first_derivatives(differentiable, backend):
    function, arguments = differentiable
    assert gradcheck(function, arguments, check_forward_ad=True, fast_mode=FAST[backend])


def test_second_derivatives(differentiable, backend):
    function, arguments = differentiable
    assert gradgradcheck(function, arguments, check_fwd_over_rev=True, fast_mode=FAST[backend])


def test_hessian_is_the_same_by_every_road(differentiable):
    function, arguments = differentiable
    grad = torch.randn(2, 2, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss(*leaves):
        mixed, weights = function(*leaves)
        return ((mixed**2) * grad).sum() + (weights**3).sum()

    leaves, every = tuple(t.detach() for t in arguments), tuple(range(5))
    func = torch.func
    forward_over_reverse = func.hessian(loss, every)(*leaves)
    reverse = func.jacrev(func.jacrev(loss, every), every)(*leaves)
    forward = func.jacfwd(func.jacfwd(loss, every), every)(*leaves)
    for i in every:
        for j in every:
            block = forward_over_reverse[i][j]
            torch.testing.assert_close(block, reverse[i][j], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(block, forward[i][j], rtol=1e-11, atol=1e-12)
            swapped = reverse[j][i].flatten(leaves[j].dim()).flatten(0, leaves[j].dim() - 1)
            torch.testing.assert_close(block.reshape(swapped.T.shape), swapped.T, rtol=1e-11, atol=1e-12)


def test_hessian_of_dropped_weights(problem, backend, chunk):
    p = problem()
    seed = torch.tensor(4)

    def loss(key):
        mixed, _ = edge_attention(
            p.query,
            key,
            key,
            p.layout,
            dropout_p=0.5,
            dropout_seed=seed,
            chunk_size=chunk,
            backend=backend,
        )
        return (mixed**2 * p.grad).sum()

    assert gradgradcheck(loss, (p.key.clone().requires_grad_(),), fast_mode=True)
    direction = torch.ones_like(p.key)
    by_forward = torch.func.jvp(torch.func.grad(loss), (p.key,), (direction,))[1]
    leaf = p.key.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (by_reverse,) = torch.autograd.grad((grad * direction).sum(), leaf)
    torch.testing.assert_close(by_forward, by_reverse, rtol=1e-11, atol=1e-12)


def test_third_derivative(backend, chunk):
    # d³/dx³ of one weight with scores (x, 0): sigmoid'''(x).
    layout = EdgeLayout(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    one, values = x.new_ones(1, 1, 1), torch.tensor([1.0, 0.0], dtype=x.dtype).view(2, 1, 1)
    out, _ = edge_attention(
        one,
        torch.stack([x, x.new_zeros(())]).view(2, 1, 1),
        values,
        layout,
        chunk_size=chunk,
        backend=backend,
    )
    for _ in range(3):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    s = 1 / (1 + math.exp(-0.3))
    assert out.item() == pytest.approx(s * (1 - s) * (1 - 6 * s + 6 * s * s), rel=1e-12)


def test_vmap(problem, backend, chunk):
    p = problem()

    def sample(query, key, value, bias, mask):
        return edge_attention(
            query,
            key,
            value,
            p.layout,
            bias=bias,
            edge_features=p.features["edge"],
            key_mask=mask,
            chunk_size=chunk,
            backend=backend,
            need_weights=True,
        )

    arguments = (p.query, p.key, p.value, p.bias["sample"], p.mask)
    torch.testing.assert_close(
        torch.func.vmap(sample)(*arguments), sample(*arguments), rtol=1e-12, atol=1e-13
    )
    shared = torch.func.vmap(sample, in_dims=(0, None, None, None, None), out_dims=1)
    mixed, _ = shared(p.query, p.key[0], p.value[0], None, p.mask[0])
    for i in range(3):
        expected, _ = sample(p.query[i], p.key[0], p.value[0], None, p.mask[0])
        torch.testing.assert_close(mixed[:, i], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_over_one_of_two_leading_axes(problem, backend, chunk, axis):
    p = problem(lead=(2, 3))

    def sample(query, key, value):
        return edge_attention(query, key, value, p.layout, chunk_size=chunk, backend=backend)[0]

    arguments = (p.query, p.key, p.value)
    found = torch.func.vmap(sample, in_dims=axis, out_dims=axis)(*arguments)
    torch.testing.assert_close(found, sample(*arguments), rtol=1e-12, atol=1e-13)


def test_per_sample_gradients(problem, backend, chunk):
    p = problem()

    def loss(query, key, grad):
        return (edge_attention(query, key, key, p.layout, chunk_size=chunk, backend=backend)[0] * grad).sum()

    got = torch.func.vmap(torch.func.grad(loss, (0, 1)))(p.query, p.key, p.grad)
    query, key = p.query.clone().requires_grad_(), p.key.clone().requires_grad_()
    expected = torch.autograd.grad(loss(query, key, p.grad), (query, key))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


# --- empty, masked, extreme -----------------------------------------------------------------------


def test_absent_and_masked_keys_get_exactly_nothing(problem, backend, chunk):
    p = problem()
    leaves = [t.clone().requires_grad_() for t in (p.query, p.key, p.value)]
    mixed, weights = edge_attention(
        *leaves, p.layout, key_mask=p.mask, chunk_size=chunk, backend=backend, need_weights=True
    )
    (mixed * p.grad).sum().backward()
    query, key, value = leaves
    assert torch.equal(mixed[:, 1], torch.zeros(3, 2, 3, dtype=torch.float64))  # target 1 has no edge
    assert query.grad[:, 1].count_nonzero() == 0
    for grad in (key.grad, value.grad):
        assert grad[p.mask].count_nonzero() == 0
        assert grad[:, 2].count_nonzero() == 0  # source 2 feeds nobody
        assert grad.isfinite().all()
    assert weights[p.mask[:, p.layout.edge_index[0]]].count_nonzero() == 0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_values_reach_nothing(problem, backend, chunk, poison):
    p = problem()
    results = []
    for filler in (0.0, poison):
        hidden = p.mask[..., None, None]
        leaves = [
            p.query.clone().requires_grad_(),
            p.key.masked_fill(hidden, filler).requires_grad_(),
            p.value.masked_fill(hidden, filler).requires_grad_(),
            p.bias["edge"].clone().requires_grad_(),
        ]
        q, k, v, bias = leaves
        mixed, weights = edge_attention(
            q,
            k,
            v,
            p.layout,
            bias=bias,
            key_mask=p.mask,
            chunk_size=chunk,
            backend=backend,
            need_weights=True,
        )
        grads = torch.autograd.grad((mixed * p.grad).sum() + weights.sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in grads), leaves)
        results.append([mixed, weights, *grads, *second])
    for clean, poisoned in zip(*results, strict=True):
        assert torch.equal(clean, poisoned)
        assert poisoned.isfinite().all()


def test_every_key_masked(problem, backend, chunk):
    p = problem()
    leaves = [t.clone().requires_grad_() for t in (p.query, p.key, p.value)]
    mixed, weights = edge_attention(
        *leaves,
        p.layout,
        key_mask=torch.ones_like(p.mask),
        chunk_size=chunk,
        backend=backend,
        need_weights=True,
    )
    assert mixed.count_nonzero() == 0
    assert weights.count_nonzero() == 0
    for grad in torch.autograd.grad((mixed * p.grad).sum() + weights.sum(), leaves):
        assert grad.count_nonzero() == 0
        assert grad.isfinite().all()


def test_a_bias_of_minus_infinity_removes_an_edge(loop_attention, problem, backend, chunk):
    p = problem()
    bias = torch.zeros(11, dtype=torch.float64)
    bias[4] = -torch.inf
    rest = torch.arange(11) != 4
    fewer = EdgeLayout(p.layout.edge_index[:, rest], 7, 5)
    mixed, weights = edge_attention(
        p.query, p.key, p.value, p.layout, bias=bias, chunk_size=chunk, backend=backend, need_weights=True
    )
    expected, expected_weights = loop_attention(p.query, p.key, p.value, fewer)
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(weights[:, rest], expected_weights, rtol=1e-12, atol=1e-13)
    assert weights[:, 4].count_nonzero() == 0


def test_unmasked_nan_stays_visible(problem, backend, chunk):
    p = problem()
    source, target = p.layout.edge_index[:, 0].tolist()
    reached = [t for s, t in p.layout.edge_index.T.tolist() if s == source]
    p.key[1, source] = torch.nan
    mixed, weights = edge_attention(
        p.query, p.key, p.value, p.layout, chunk_size=chunk, backend=backend, need_weights=True
    )
    assert mixed[1, target].isnan().all()
    assert weights[1, 0].isnan().all()
    clean = [t for t in range(5) if t not in reached]
    assert mixed[1, clean].isfinite().all()
    assert mixed[[0, 2]].isfinite().all()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_scores(backend, chunk, size):
    # All scores into target 0 lie at `size`, those into target 1 at 0: neither sees the other.
    layout = EdgeLayout(torch.tensor([[0, 1, 0, 1, 2], [0, 0, 1, 1, 1]]), 3, 2)
    q, k, v = (t.double() for t in (column(0.0, 0.0), column(0.0, 0.0, 0.0), column(8.0, 4.0, 2.0)))
    scores = [size, size + math.log(3.0), 0.0, math.log(3.0), -math.inf]
    bias = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    mixed, weights = edge_attention(
        q, k, v, layout, bias=bias, chunk_size=chunk, backend=backend, need_weights=True
    )
    assert mixed.flatten().tolist() == pytest.approx([5.0, 5.0], rel=1e-11)
    assert weights.flatten().tolist() == pytest.approx([0.25, 0.75, 0.25, 0.75, 0.0], rel=1e-11)
    mixed.sum().backward()
    assert bias.grad.tolist() == pytest.approx([0.75, -0.75, 0.75, -0.75, 0.0], rel=1e-10)


def test_groups_do_not_disturb_each_other(problem, backend, chunk):
    p = problem(dtype=torch.float32)
    target = int(p.layout.edge_index[1, 0])
    others = [t for t in range(5) if t != target]
    plain = edge_attention(p.query, p.key, p.value, p.layout, chunk_size=chunk, backend=backend)[0]
    loud = p.query.clone()
    loud[:, target] *= 1e4
    moved = edge_attention(loud, p.key, p.value, p.layout, chunk_size=chunk, backend=backend)[0]
    assert torch.equal(plain[:, others], moved[:, others])
    assert moved.isfinite().all()


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(problem, backend, chunk, dtype):
    p = problem(dtype=dtype)
    options = {"chunk_size": chunk, "backend": backend, "need_weights": True, "key_mask": p.mask}
    arguments = (p.query, p.key, p.value)
    mixed, weights = edge_attention(*arguments, p.layout, bias=p.bias["edge_head"], **options)
    wide = edge_attention(
        *(t.float() for t in arguments), p.layout, bias=p.bias["edge_head"].float(), **options
    )
    assert mixed.dtype == weights.dtype == dtype
    # One rounding at the end and no other.
    assert torch.equal(mixed, wide[0].to(dtype))
    assert torch.equal(weights, wide[1].to(dtype))


def test_seventy_thousand_equal_float16_scores(backend):
    if backend == "reference":
        pytest.skip("the reference is dense and for small inputs")
    layout = EdgeLayout(
        torch.stack([torch.arange(70_000), torch.zeros(70_000, dtype=torch.int64)]), 70_000, 1
    )
    q, k = torch.ones(1, 1, 2, dtype=torch.float16), torch.ones(70_000, 1, 2, dtype=torch.float16)
    mixed, weights = edge_attention(q, k, k, layout, backend=backend, need_weights=True)
    assert mixed.flatten().tolist() == pytest.approx([1.0, 1.0], abs=1e-3)
    # 1/70000 rounds to a multiple of 2**-24 in float16: a quarter of a percent at most.
    assert weights.double().sum().item() == pytest.approx(1.0, abs=3e-3)


def test_autocast_leaves_float32_alone(problem, backend, chunk):
    p = problem(dtype=torch.float32)
    plain = edge_attention(
        p.query, p.key, p.value, p.layout, bias=p.bias["edge"], chunk_size=chunk, backend=backend
    )[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = edge_attention(
            p.query, p.key, p.value, p.layout, bias=p.bias["edge"], chunk_size=chunk, backend=backend
        )[0]
    assert inside.dtype == torch.float32
    assert torch.equal(plain, inside)


# --- dropout --------------------------------------------------------------------------------------


def test_dropout_is_the_hashed_mask(loop_attention, problem, backend, chunk):
    p = problem()
    seed = torch.tensor(12345)
    plain, weights = loop_attention(p.query, p.key, p.value, p.layout)
    mixed, dropped = edge_attention(
        p.query,
        p.key,
        p.value,
        p.layout,
        dropout_p=0.5,
        dropout_seed=seed,
        chunk_size=chunk,
        backend=backend,
        need_weights=True,
    )
    keep = keep_mask(seed, 3, torch.arange(11), 2, 0.5)
    assert 0 < keep.sum() < keep.numel()
    torch.testing.assert_close(dropped, weights * keep * 2.0, rtol=1e-12, atol=1e-13)
    source, target = p.layout.edge_index
    expected = torch.zeros_like(plain).index_add(1, target, dropped.unsqueeze(-1) * p.value[:, source])
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-13)


def test_one_global_seed_one_mask(problem, backend):
    p = problem()
    results = []
    for name, size in (("reference", None), (backend, None), (backend, 1), (backend, 3)):
        torch.manual_seed(17)
        leaf = p.key.clone().requires_grad_()
        mixed, weights = edge_attention(
            p.query,
            leaf,
            leaf,
            p.layout,
            bias=p.bias["edge"],
            edge_features=p.features["edge"],
            key_mask=p.mask,
            dropout_p=0.4,
            chunk_size=size,
            backend=name,
            need_weights=True,
        )
        results.append([mixed, weights, *torch.autograd.grad((mixed * p.grad).sum(), leaf)])
    for other in results[1:]:
        assert torch.equal(other[1] == 0, results[0][1] == 0)
        torch.testing.assert_close(other, results[0], rtol=1e-11, atol=1e-12)


def test_the_seed_is_all_that_is_drawn(problem, backend, chunk):
    p = problem()

    def state_after(**dropout):
        torch.manual_seed(23)
        leaf = p.query.clone().requires_grad_()
        edge_attention(leaf, p.key, p.value, p.layout, chunk_size=chunk, backend=backend, **dropout)[
            0
        ].sum().backward()
        return torch.get_rng_state()

    torch.manual_seed(23)
    fresh = torch.get_rng_state()
    draw_seed(torch.device("cpu"))
    one_draw = torch.get_rng_state()
    assert torch.equal(state_after(dropout_p=0.0), fresh)
    assert torch.equal(state_after(dropout_p=0.5, dropout_seed=torch.tensor(1)), fresh)
    assert torch.equal(state_after(dropout_p=0.5), one_draw)


def test_dropping_everything(problem, backend, chunk):
    p = problem()
    leaves = [t.clone().requires_grad_() for t in (p.query, p.key, p.value)]
    mixed, weights = edge_attention(
        *leaves, p.layout, dropout_p=1.0, chunk_size=chunk, backend=backend, need_weights=True
    )
    assert mixed.count_nonzero() == 0
    assert weights.count_nonzero() == 0
    for grad in torch.autograd.grad(mixed.sum(), leaves):
        assert torch.equal(grad, torch.zeros_like(grad))


# --- backends -------------------------------------------------------------------------------------


def test_backends_list():
    status = backends()
    assert pyg_kpnn.backends is backends
    assert ("auto", *status) == BACKENDS
    assert status["reference"] == (True, "")
    assert status["torch"] == (True, "")
    for available, reason in status.values():
        assert available is (reason == "")


def test_a_torch_scatter_of_another_torch_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "torch_scatter.py").write_text("raise OSError('undefined symbol: at\\nin libtorch.so')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_scatter", raising=False)
    scatter_missing.cache_clear()
    try:
        assert backends()["scatter"] == (False, "torch_scatter cannot be imported: undefined symbol: at")
    finally:
        scatter_missing.cache_clear()


@pytest.mark.usefixtures("without_scatter")
def test_without_torch_scatter(problem):
    p = problem()
    available, reason = backends()["scatter"]
    assert not available
    assert "torch_scatter cannot be imported" in reason
    edge_attention(p.query, p.key, p.value, p.layout)
    elsewhere = SimpleNamespace(is_cpu=False, is_meta=False, dtype=torch.float32, device="cuda")
    assert _choose("auto", elsewhere, None, False) == "torch"
    with pytest.raises(PriorGraphError, match="backend='scatter' cannot be used: torch_scatter cannot be"):
        edge_attention(p.query, p.key, p.value, p.layout, backend="scatter")


@pytest.mark.parametrize("backend", ["scatter"], indirect=True)
def test_auto_goes_by_the_device(problem, backend):
    p = problem()
    elsewhere = {"is_cpu": False, "dtype": torch.float32, "device": "cuda"}
    assert _choose("auto", SimpleNamespace(**elsewhere, is_meta=False), None, False) == "scatter"
    assert _choose("auto", SimpleNamespace(**elsewhere, is_meta=True), None, False) == "torch"
    on_cpu = "torch" if native_missing() else "native"
    assert _choose("auto", p.query, None, False) == on_cpu
    assert _choose("auto", p.query, p.query, False) == "torch"  # edge features
    assert _choose(backend, p.query, None, False) == backend
    calls = [edge_attention(p.query, p.key, p.value, p.layout, backend=b)[0] for b in ("auto", on_cpu)]
    assert torch.equal(*calls)


def test_meta_tensors(problem):
    p = problem()
    q, k, v = (t.to("meta") for t in (p.query, p.key, p.value))
    mixed, weights = edge_attention(q, k, v, p.layout.to("meta"), chunk_size=3, need_weights=True)
    assert mixed.shape == p.query.shape
    assert mixed.is_meta
    assert weights.shape == (3, 11, 2)
    with pytest.raises(PriorGraphError, match=r"scatter.*cannot be traced"):
        edge_attention(q, k, v, p.layout.to("meta"), backend="scatter")


# torch 2.13's own compiler instantiates autograd functions and warns itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_without_graph_breaks(problem, chunk, mode):
    p = problem()
    torch._dynamo.reset()

    def function(query, key, value, mask, seed):
        return edge_attention(
            query,
            key,
            value,
            p.layout,
            bias=p.bias["edge"],
            edge_features=p.features["edge"],
            key_mask=mask,
            dropout_p=0.4,
            dropout_seed=seed,
            chunk_size=chunk,
            need_weights=True,
        )

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend=mode)):
        leaves = [t.clone().requires_grad_() for t in (p.query, p.key, p.value)]
        mixed, weights = run(*leaves, p.mask, torch.tensor(9))
        results.append([mixed, weights, *torch.autograd.grad((mixed * p.grad).sum(), leaves)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-12)


def test_export(problem):
    p = problem()

    class Model(torch.nn.Module):
        def forward(self, query, key, value):
            return edge_attention(query, key, value, p.layout, chunk_size=3)[0]

    arguments = (p.query, p.key, p.value)
    exported = torch.export.export(Model(), arguments)
    torch.testing.assert_close(exported.module()(*arguments), Model()(*arguments), rtol=1e-12, atol=1e-13)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
@pytest.mark.parametrize("chunk_size", [None, 512])
def test_nothing_quadratic_and_nothing_of_edges_times_channels(backend, chunk_size, largest_tensor):
    n, edges, heads, width = 3000, 20_000, 4, 16
    gen = torch.Generator().manual_seed(0)
    layout = EdgeLayout(torch.randint(0, n, (2, edges), generator=gen), n, n)
    q, k, v = (torch.randn(n, heads, width, generator=gen, requires_grad=True) for _ in range(3))
    mask = torch.rand(n, generator=gen) < 0.1
    with largest_tensor() as record:
        mixed, _ = edge_attention(
            q,
            k,
            v,
            layout,
            bias=torch.zeros(edges),
            key_mask=mask,
            dropout_p=0.1,
            chunk_size=chunk_size,
            backend=backend,
        )
        mixed.square().sum().backward()
    limit = n * n if chunk_size is None else min(n * n, edges * heads * width)
    assert n * heads * width <= record.numel < limit


# --- refused --------------------------------------------------------------------------------------


def _refusals():
    x, layout = torch.zeros(3, 2, 5), EdgeLayout(torch.tensor([[0, 1], [1, 2]]), 3, 3)
    whole = {"query": x, "key": x, "value": x, "layout": layout}
    for name in ("query", "key", "value"):
        yield {**whole, name: x.long()}, f"{name} must be a floating-point tensor, got dtype torch.int64"
        yield (
            {**whole, name: x.to(torch.complex64)},
            f"{name} must be a floating-point tensor, got dtype torch.complex64",
        )
        yield {**whole, name: x[0]}, rf"{name} must have shape \(\.\.\., 3, H, d\)"
        yield {**whole, name: x[:2]}, rf"{name} must have shape .* got \(2, 2, 5\)"
    for name in ("key", "value"):
        yield {**whole, name: x[None]}, f"{name} must share the leading axes"
        yield {**whole, name: x[:, :1]}, f"{name} must share the leading axes"
        yield {**whole, name: x[..., :4]}, f"{name} must share the leading axes"
    for shape in ((3,), (2, 3), (1, 2, 2), (2, 2, 2), (), (1,)):
        yield {**whole, "bias": torch.zeros(shape)}, "bias must have shape"
    for shape in ((2, 5), (3, 2, 5), (2, 2, 4), (1, 2, 2, 5)):
        yield {**whole, "edge_features": torch.zeros(shape)}, "edge_features must have shape"
    yield {**whole, "key_mask": torch.zeros(3)}, "key_mask must be boolean.*torch.float32"
    for shape in ((2,), (1, 3), ()):
        yield {**whole, "key_mask": torch.zeros(shape, dtype=torch.bool)}, "key_mask must have shape"
    yield (
        {**whole, "backend": "cuda"},
        "backend must be one of auto, reference, torch, scatter, native, got 'cuda'",
    )


@pytest.mark.parametrize(("arguments", "fragment"), list(_refusals()))
def test_refused(arguments, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        edge_attention(**arguments)
