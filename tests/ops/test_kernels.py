"""``dot``, ``mix`` and the segment softmax: values by hand, adjoints, transforms, both kernels."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pyg_kpnn.ops import EdgeLayout
from pyg_kpnn.ops.kernels import _TILE, _tiles, dot, mix, segment_softmax

# Sorted edges: 1 -> 0, 0 -> 2, 1 -> 2; source 2 and target 1 have none.
BY_HAND = EdgeLayout(torch.tensor([[0, 1, 1], [2, 0, 2]]), 3, 3)


@pytest.fixture(params=[1, 2, 3, 5, None])
def any_chunk(request):
    return request.param


def rows(*numbers: float) -> torch.Tensor:
    """(1, N, 1, 1) tensor."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1)


@pytest.fixture
def random_case():
    gen = torch.Generator().manual_seed(1)
    edges = torch.stack(
        [torch.randint(0, 7, (13,), generator=gen), torch.randint(0, 5, (13,), generator=gen)]
    )
    make = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64, requires_grad=True)  # noqa: E731
    return EdgeLayout(edges, 7, 5), make(3, 5, 2, 3), make(3, 7, 2, 3), make(3, 13, 2)


def test_dot_by_hand(kernel, any_chunk):
    out = dot(rows(2.0, 3.0, 5.0), rows(7.0, 11.0, 13.0), BY_HAND, kernel, any_chunk)
    assert out.flatten().tolist() == [22.0, 35.0, 55.0]


def test_mix_by_hand(kernel, any_chunk):
    weights = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64).view(1, 3, 1)
    values = rows(7.0, 11.0, 13.0)
    assert mix(weights, values, BY_HAND, kernel, any_chunk).flatten().tolist() == [22.0, 0.0, 76.0]
    back = mix(weights, values, BY_HAND, kernel, any_chunk, "source")
    assert back.flatten().tolist() == [39.0, 2 * 7.0 + 5 * 13.0, 0.0]


def test_segments_by_hand(kernel):
    values = torch.tensor([2.0, 3.0, 5.0]).view(1, 3, 1)
    assert kernel.segment_sum(values, BY_HAND).flatten().tolist() == [2.0, 0.0, 8.0]
    assert kernel.segment_max(values, BY_HAND)[0, [0, 2], 0].tolist() == [2.0, 5.0]
    spread = kernel.spread(torch.tensor([2.0, 3.0, 5.0]).view(1, 3, 1), BY_HAND)
    assert spread.flatten().tolist() == [2.0, 5.0, 5.0]


def test_softmax_by_hand(kernel):
    scores = torch.tensor([9.0, 0.0, torch.log(torch.tensor(3.0))]).view(1, 3, 1)
    weights = segment_softmax(scores, BY_HAND, kernel).flatten()
    assert torch.allclose(weights, torch.tensor([1.0, 0.25, 0.75]))


def test_softmax_of_silent_edges_is_zero(kernel):
    scores = torch.tensor([-torch.inf, -torch.inf, 4.0], dtype=torch.float64, requires_grad=True)
    weights = segment_softmax(scores.view(1, 3, 1), BY_HAND, kernel).flatten()
    assert weights.tolist() == [0.0, 0.0, 1.0]
    weights.sum().backward()
    assert scores.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("width", [1, 1000, 20_001, 2**18, 2**20])
def test_what_is_gathered_at_a_time_fits_the_cache_and_fills_it(any_chunk, width, random_case):
    layout, batch = random_case[0], 11
    chunk = 13 if any_chunk is None else any_chunk
    seen = torch.zeros(batch, 13, dtype=torch.int64)
    for samples, edges in _tiles(batch, layout, width, any_chunk):
        seen[samples, edges] += 1
        fits = samples.stop - samples.start
        assert fits == 1 or fits * min(chunk, 13) * width <= _TILE
        assert (fits + 1) * min(chunk, 13) * width > _TILE
    assert torch.equal(seen, torch.ones_like(seen))


def test_each_sum_is_the_adjoint_of_the_other(kernel, any_chunk, random_case):
    layout, x, y, w = random_case
    with torch.no_grad():
        one = (dot(x, y, layout, kernel, any_chunk) * w).sum()
        to_target = (mix(w, y, layout, kernel, any_chunk) * x).sum()
        to_source = (mix(w, x, layout, kernel, any_chunk, "source") * y).sum()
    assert torch.allclose(one, to_target, rtol=1e-13)
    assert torch.allclose(one, to_source, rtol=1e-13)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives(kernel, chunk, order, random_case):
    layout, *_ = random_case
    x, y, w = (torch.randn(2, n, 1, 2, dtype=torch.float64, requires_grad=True) for n in (5, 7, 13))
    w = w[..., 0].detach().requires_grad_()
    check = (
        (lambda f, args: gradcheck(f, args, check_forward_ad=True))
        if order == 1
        else (lambda f, args: gradgradcheck(f, args, fast_mode=True, check_fwd_over_rev=True))
    )
    assert check(lambda a, b: dot(a, b, layout, kernel, chunk), (x, y))
    assert check(lambda a, b: mix(a, b, layout, kernel, chunk), (w, y))
    assert check(lambda a, b: mix(a, b, layout, kernel, chunk, "source"), (w, x))
    assert check(lambda a: segment_softmax(a, layout, kernel), (w,))


@pytest.mark.parametrize("name", ["segment_sum", "spread"])
def test_second_derivatives_of_segments(kernel, name, random_case):
    # torch_scatter's own segment kernels get these wrong without an error.
    layout, x, _, w = random_case
    values = (w if name == "segment_sum" else x[..., 0]).detach().requires_grad_()
    function = lambda v: getattr(kernel, name)(v, layout) ** 3  # noqa: E731
    assert gradcheck(function, (values,), check_forward_ad=True)
    assert gradgradcheck(function, (values,), fast_mode=True)


@pytest.mark.parametrize("mapped", [(0, 0), (1, 0), (0, None), (None, 2)])
def test_vmap(kernel, chunk, mapped, random_case):
    layout, x, y, w = (t if isinstance(t, EdgeLayout) else t.detach() for t in random_case)
    size = 2

    def stacked(tensor, dim):
        return tensor if dim is None else torch.stack([tensor, 3 - tensor], dim)

    def at(tensor, dim, i):
        return tensor if dim is None else tensor.select(dim, i)

    for function, left, right in (
        (lambda a, b: dot(a, b, layout, kernel, chunk), x, y),
        (lambda a, b: mix(a, b, layout, kernel, chunk), w, y),
        (lambda a, b: mix(a, b, layout, kernel, chunk, "source"), w, x),
        (lambda a, b: segment_softmax(a * b.sum(), layout, kernel), w, x),
    ):
        left, right = stacked(left, mapped[0]), stacked(right, mapped[1])
        out = torch.func.vmap(function, in_dims=mapped)(left, right)
        for i in range(size):
            expected = function(at(left, mapped[0], i), at(right, mapped[1], i))
            assert torch.allclose(out[i], expected, rtol=1e-12)


def test_without_edges_or_samples(kernel, chunk):
    empty = EdgeLayout(torch.empty(2, 0, dtype=torch.int64), 3, 2)
    x, y, w = torch.ones(1, 2, 1, 1), torch.ones(1, 3, 1, 1), torch.ones(1, 0, 1)
    assert dot(x, y, empty, kernel, chunk).shape == (1, 0, 1)
    assert mix(w, y, empty, kernel, chunk).tolist() == [[[[0.0]], [[0.0]]]]
    assert segment_softmax(w, empty, kernel).shape == (1, 0, 1)
    none = torch.ones(0, 3, 1, 1)
    assert dot(none, none, BY_HAND, kernel, chunk).shape == (0, 3, 1)
    assert segment_softmax(torch.ones(0, 3, 1), BY_HAND, kernel).shape == (0, 3, 1)
    assert mix(torch.ones(0, 3, 1), none, BY_HAND, kernel, chunk).shape == (0, 3, 1, 1)


def test_inputs_are_left_as_they_were(kernel, chunk, random_case):
    layout, *tensors = random_case
    before = [t.detach().clone() for t in tensors]
    x, y, w = tensors
    out = mix(segment_softmax(w, layout, kernel), y, layout, kernel, chunk)
    (out.sum() + dot(x, y, layout, kernel, chunk).sum()).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_backward_under_autocast_sums_in_float32(kernel, chunk):
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(n, (97,), generator=generator) for n in (7, 5)])
    layout = EdgeLayout(edges, 7, 5)
    x = torch.randn(2, 5, 3, 11, generator=generator).requires_grad_()
    y = torch.randn(2, 7, 3, 11, generator=generator)
    weights = torch.randn(2, 97, 3, generator=generator).requires_grad_()
    mixed = mix(weights, y, layout, kernel, chunk)
    expected = torch.autograd.grad(mixed, weights, x.detach(), retain_graph=True)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(mixed, weights, x.detach())[0]
        scores = dot(x, y, layout, kernel, chunk)
    assert torch.equal(found, expected)
    assert torch.equal(scores, dot(x, y, layout, kernel, chunk))
