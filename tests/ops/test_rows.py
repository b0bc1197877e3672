"""Maps of rows: torch's own values and derivatives, and nothing sent back past NaN."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from pyg_kpnn.ops.rows import apart, finite, layer_norm, linear, times

SHAPES = {"linear": ((2, 3, 5), (7, 5), (7,)), "bare": ((2, 3, 5), (7, 5)), "norm": ((2, 3, 5), (5,), (5,))}
OURS = {
    "linear": linear,
    "bare": lambda rows, weight: linear(rows, weight, None),
    "norm": lambda rows, weight, bias: layer_norm(rows, weight, bias, 1e-5),
}
TORCHS = {
    "linear": functional.linear,
    "bare": functional.linear,
    "norm": lambda rows, weight, bias: functional.layer_norm(rows, (5,), weight, bias, 1e-5),
}


@pytest.fixture(params=list(SHAPES))
def kind(request):
    return request.param


def draw(kind, dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=gen, dtype=torch.float64) for shape in SHAPES[kind]]
    return [t.to(dtype).requires_grad_() for t in tensors]


def test_by_hand():
    rows = torch.tensor([[1.0, 2.0], [torch.nan, 3.0], [4.0, -torch.inf]], requires_grad=True)
    weight = torch.tensor([[1.0, 10.0]], requires_grad=True)
    out = linear(rows, weight, None)
    assert out[0].item() == 21.0
    assert not out[1:].isfinite().any()
    out[0].sum().backward()
    assert weight.grad.tolist() == [[1.0, 2.0]]
    assert rows.grad.tolist() == [[1.0, 10.0], [0.0, 0.0], [0.0, 0.0]]


def test_apart_by_hand():
    rows = torch.tensor([[1.0, 2.0], [torch.nan, 3.0], [4.0, -torch.inf]])
    known, lost = apart(rows)
    assert known.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert lost.isnan().flatten().tolist() == [False, True, True]
    assert apart(torch.tensor([[3e38, -3e38, 3e38]]))[1].tolist() == [[0.0]]  # large, and not lost
    known, lost = apart(torch.zeros(0, 3, 5))
    assert (known.shape, lost.shape) == ((0, 3, 5), (0, 3, 1))


def test_times_by_hand():
    left = torch.tensor([2.0, torch.nan, 3.0, torch.inf, 3e38], requires_grad=True)
    right = torch.tensor([5.0, 7.0, torch.nan, 2.0, 10.0], requires_grad=True)
    out = times(left, right)
    assert out[[0, 3, 4]].tolist() == [10.0, torch.inf, torch.inf]
    assert out[1:3].isnan().all()
    out[:1].sum().backward()
    assert left.grad.tolist() == [5.0, 0.0, 0.0, 0.0, 0.0]
    assert right.grad.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]


def test_finite_is_the_identity_on_numbers():
    numbers = torch.tensor([0.0, -0.0, 1e-45, -3.4e38, 1.5])
    assert torch.equal(finite(numbers).view(torch.int32), numbers.view(torch.int32))


def test_values_and_derivatives_are_torchs_own(kind):
    leaves, results = draw(kind), []
    for function in (OURS[kind], TORCHS[kind]):
        out = function(*leaves)
        first = torch.autograd.grad(out.pow(3).sum(), leaves, retain_graph=True)
        again = torch.autograd.grad(out.pow(3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in again), leaves)
        results.append([out, *first, *again, *second])
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_derivatives(kind):
    leaves = draw(kind)
    assert gradcheck(OURS[kind], leaves, check_forward_ad=True)
    assert gradgradcheck(OURS[kind], leaves, check_fwd_over_rev=True)


def test_hessian_by_every_road(kind):
    arguments = tuple(t.detach() for t in draw(kind))
    every = tuple(range(len(arguments)))

    def loss(*tensors):
        return OURS[kind](*tensors).pow(3).sum()

    expected = func.jacrev(func.jacrev(loss, every), every)(*arguments)
    for outer, inner in ((func.jacfwd, func.jacrev), (func.jacfwd, func.jacfwd), (func.jacrev, func.jacfwd)):
        found = outer(inner(loss, every), every)(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_torch_still_needs_a_layer_norm_of_ours():
    # When this fails, torch differentiates its own rightly, and `layer_norm` needs no forward mode.
    x, *rest = (t.detach() for t in draw("norm"))

    def loss(x):
        return TORCHS["norm"](x, *rest).pow(3).sum()

    right, wrong = func.jacrev(func.jacrev(loss))(x), func.jacfwd(func.jacfwd(loss))(x)
    assert (right - wrong).abs().max() > 0.1


def test_vmap(kind):
    leaves = [t.detach() for t in draw(kind)]
    shared = (0, *(None,) * (len(leaves) - 1))
    whole = OURS[kind](*leaves)
    torch.testing.assert_close(func.vmap(OURS[kind], shared)(*leaves), whole)
    many = [t.expand(3, *t.shape) for t in leaves]
    torch.testing.assert_close(func.vmap(OURS[kind])(*many), whole.expand(3, *whole.shape))


def test_rows_without_a_gradient_get_and_send_none(kind):
    for create_graph in (False, True):
        results = []
        for filler in (1.0, torch.nan):
            rows, *rest = draw(kind)
            with torch.no_grad():
                rows[1, 1, 2] = filler
            out = OURS[kind](rows, *rest)
            assert (filler == filler) == bool(out[1, 1].isfinite().all())
            grads = torch.autograd.grad(out[0].square().sum(), (rows, *rest), create_graph=create_graph)
            results.append(grads)
        torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kind, dtype):
    half, wide = draw(kind, dtype), draw(kind, torch.float32)
    out = OURS[kind](*half)
    assert out.dtype == dtype
    grads = torch.autograd.grad(out.float().square().sum(), half)
    expected = torch.autograd.grad(OURS[kind](*wide).square().sum(), wide)
    for mine, theirs in zip(grads, expected, strict=True):
        assert mine.dtype == dtype
        assert (mine.float() - theirs).norm() < 8 * torch.finfo(dtype).eps * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_is_followed_as_torch_does(kind, dtype):
    results = []
    for function in (OURS[kind], TORCHS[kind]):
        leaves = draw(kind, dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(*leaves)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_into_one_graph(kind):
    torch._dynamo.reset()
    leaves, results = draw(kind), []
    for function in (OURS[kind], torch.compile(OURS[kind], fullgraph=True, backend="aot_eager")):
        out = function(*leaves)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
