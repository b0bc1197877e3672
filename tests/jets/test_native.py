"""The compiled routines: torch's formulas, the same bits on any number of threads, when they stand aside."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch.func import jacfwd, vmap

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import AttentionNet, JetSpace, activation, native, second_order
from pyg_kpnn.nn.attention_jet_mlp import AttentionJetMLP
from pyg_kpnn.ops import native_library
from pyg_kpnn.ops.native_library import native_missing

needs_library = pytest.mark.skipif(native_missing() is not None, reason="the native library is not built")
D = torch.float64
NAMES = ("value", "gradient", "hessian", "laplacian")
ABLE = ("tanh", "sigmoid", "sin", "cos", "exp", "softplus", "silu", "gelu", "gaussian", "identity")
# points, in_dim, hidden, out_dim, depth, memory, residual: fewer than lanes and not a multiple of them,
# every width of a register tile, one row of a tile too many, single units
SHAPES = [
    (1, 1, 1, 1, 1, 1, True),
    (3, 2, 5, 1, 2, 3, True),
    (9, 3, 8, 2, 1, 16, False),
    (17, 4, 7, 3, 2, 2, True),
    (8, 5, 13, 4, 3, 5, False),
    (23, 6, 9, 5, 2, 7, True),
    (16, 11, 17, 6, 1, 4, True),
    (5, 13, 33, 7, 2, 9, False),
    (2, 30, 21, 1, 4, 11, True),
]


def network(shape, base="tanh", dtype=D, beta=1.7):
    _, in_dim, hidden, out_dim, depth, memory, residual = shape
    options = dict(memory=memory, residual=residual, beta=beta, dtype=dtype)
    if base == "exp":  # of exp of exp
        options["weight_init_scale"] = 0.1
    net = AttentionJetMLP(in_dim, hidden, out_dim, depth, base, **options)
    for bias in (*net.biases, net.readout_bias):
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(5), std=0.3)
    return net


def points(count, in_dim, dtype=D):
    return torch.randn(count, in_dim, generator=torch.Generator().manual_seed(3), dtype=dtype) * 0.7


def by_torch(net, x):
    """Value, gradient, Hessian and Laplacian by torch's operations, which gradients call for."""
    with torch.enable_grad():
        found = [*net.value_grad_hessian(x), net.laplacian(x)]
    assert all(tensor.requires_grad for tensor in found)
    return [tensor.detach() for tensor in found]


def by_library(net, x):
    with torch.no_grad():
        found = native.second_order(net._net(), x, *NAMES)
    assert found is not None, "the library was not used"
    u, first, second, laplacian = found
    return [u, first, second.permute(0, 2, 3, 1), laplacian]


def near(got, expected, rtol):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.numel():
        assert (got - expected).abs().max() <= rtol * expected.abs().max()


@needs_library
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("base", ABLE)
def test_second_order_is_that_of_torch(shape, base):
    for dtype, rtol in ((D, 1e-12), (torch.float32, 1e-4)):
        net = network(shape, base, dtype)
        x = points(shape[0], shape[1], dtype)
        results = by_library(net, x)
        for got, expected in zip(results, by_torch(net, x), strict=True):
            near(got, expected, rtol)
        assert torch.equal(results[2], results[2].transpose(1, 2))
        # any choice of results, in the order asked for
        with torch.no_grad():
            for names in (("laplacian",), ("hessian", "value"), ("gradient",)):
                some = native.second_order(net._net(), x, *names)
                for name, got in zip(names, some, strict=True):
                    expected = results[NAMES.index(name)]
                    near(got.permute(0, 2, 3, 1) if name == "hessian" else got, expected, rtol)


@needs_library
@pytest.mark.parametrize("shape", SHAPES[:7])
@pytest.mark.parametrize("base", ABLE)
def test_taylor_is_the_general_algebra(shape, base):
    order = 5 if shape[1] == 1 else 3 if shape[1] < 6 else 2
    for dtype, rtol in ((D, 1e-12), (torch.float32, 1e-3)):
        net = network(shape, base, dtype)
        x = points(shape[0], shape[1], dtype)
        space = JetSpace(shape[1], order)
        with torch.no_grad():
            found = native.taylor(net._net(), x, space)
            expected = net._net().jet(x, order).transpose(0, 1)
        for grade, (got, wanted) in enumerate(
            zip(*(t.split(space.grade_sizes, 1) for t in (found, expected)), strict=True)
        ):
            assert wanted.abs().max() > 0 or (base == "identity" and grade), grade
            near(got, wanted, rtol)


@needs_library
def test_methods_use_the_library(monkeypatch):
    net, x, used = network(SHAPES[2]), points(4, 3), []
    for name in ("pk_second_order", "pk_taylor"):
        routine = getattr(native_library.library(), name)
        monkeypatch.setattr(
            native_library.library(), name, lambda p, n=name, r=routine: (used.append(n), r(p))[1]
        )
    with torch.no_grad():
        calls = [net.value, net, net.gradient, net.hessian, net.laplacian, net.value_grad_hessian]
        for call in calls:
            call(x)
        for order in (0, 1, 2, 3):
            net.jet(x, order)
    assert used == ["pk_second_order"] * 9 + ["pk_taylor"]


@needs_library
@pytest.mark.parametrize("base", ["tanh", "gelu"])
def test_threads_and_company_change_no_bit(base, monkeypatch):
    net, x = network((37, 7, 19, 2, 2, 5, True), base), points(37, 7)
    with torch.no_grad():
        encoded = {order: net._net().encode(x, order) for order in (2, 3)}
    # torch's own products may depend on threads
    monkeypatch.setattr(AttentionNet, "encode", lambda self, points, order: encoded[order])
    runs, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            with torch.no_grad():
                runs.append([*by_library(net, x), native.taylor(net._net(), x, JetSpace(7, 3))])
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    if base == "tanh":
        alone = by_library(net, x[20:21])
        assert all(torch.equal(a, b[20:21]) for a, b in zip(alone, runs[0], strict=False))


@needs_library
@pytest.mark.parametrize("base", ["tanh", "silu"])
def test_memory_of_any_layout(base, monkeypatch):
    shape = (11, 4, 6, 2, 2, 5, True)
    net, x = network(shape, base), points(11, 4)
    plain = net._net()
    turned = plain._replace(
        weights=tuple(w.mT.contiguous().mT for w in plain.weights),
        biases=tuple(torch.stack([b, b], 1)[:, 0] for b in plain.biases),
        keys=plain.keys.mT.contiguous().mT,
        values=plain.values.mT.contiguous().mT,
        readout_weight=plain.readout_weight.mT.contiguous().mT,
        readout_bias=torch.stack([plain.readout_bias] * 2, 1)[:, 0],
    )
    strided = torch.stack([x.mT, x.mT], 2)[..., 0].mT
    assert not strided.is_contiguous()
    space = JetSpace(4, 3)
    with torch.no_grad():
        expected = [*native.second_order(plain, x, *NAMES), native.taylor(plain, x, space)]
        found = [*native.second_order(turned, strided, *NAMES), native.taylor(turned, strided, space)]
        monkeypatch.setattr(native, "_BLOCK", 12)  # two points at a time
        pieces = [*native.second_order(turned, strided, *NAMES), native.taylor(turned, strided, space)]
        for a, b, c in zip(expected, found, pieces, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-13, atol=1e-15)
            torch.testing.assert_close(c, a, rtol=1e-13, atol=1e-15)
        none = [*native.second_order(plain, x[:0], *NAMES), native.taylor(plain, x[:0], space)]
    assert [tensor.shape for tensor in none] == [(0, *tensor.shape[1:]) for tensor in expected]


@needs_library
def test_more_inputs_than_a_threads_memory_holds():
    net, x = network((3, 750, 3, 1, 2, 2, True)), points(3, 750)
    for got, expected in zip(by_library(net, x), by_torch(net, x), strict=True):
        near(got, expected, 1e-12)


@needs_library
@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_tanh_keeps_its_digits_in_the_tails(dtype):
    one = torch.ones(1, 1, dtype=dtype)
    net = AttentionJetMLP.from_parameters(
        [one], [0 * one[0]], one, 0 * one, one, 0 * one[0], 1.0, "tanh", 1, 1
    )
    limit = 340.0 if dtype == D else 40.0
    sizes = [0.0, 1e-30, 1e-9, 0.01, 0.17, 0.35, 0.6, 1.0, 3.0, 9.0, 15.0, 19.0, 25.0, 40.0, 170.0, 340.0]
    eps = torch.finfo(dtype).eps
    for z in [sign * size for size in sizes if size <= limit for sign in (1, -1)]:
        z = torch.tensor(z, dtype=dtype).item()
        with torch.no_grad():
            u, first, second = net.value_grad_hessian(torch.tensor([[z]], dtype=dtype))
        slope = 1.0 / math.cosh(z) ** 2
        for got, expected in ((u, math.tanh(z)), (first, slope), (second, -2.0 * math.tanh(z) * slope)):
            # Cody and Waite's reduction in single precision leaves a few units of the argument's
            assert got.item() == pytest.approx(
                expected, rel=(8 + abs(z)) * eps, abs=1e-300 if dtype == D else 1e-37
            )


@needs_library
def test_what_is_not_a_number_stays_with_its_point():
    net, x = network((9, 3, 5, 2, 2, 4, True)), points(9, 3)
    good = by_library(net, x)
    x[4, 1] = math.nan
    x[6] = math.inf
    x[7, 0] = -math.inf
    bad, expected = by_library(net, x), by_torch(net, x)
    kept = torch.tensor([0, 1, 2, 3, 5, 8])
    for got, wanted, before in zip(bad, expected, good, strict=True):
        assert torch.equal(got[kept], before[kept])
        assert got[4].isnan().any()
        torch.testing.assert_close(got.isnan(), wanted.isnan())
    torch.testing.assert_close(bad[0][7], expected[0][7])  # tanh has a limit


@needs_library
def test_scores_of_any_size():
    for beta in (400.0, 1e5):
        for dtype in (D, torch.float32):
            net = network((6, 2, 9, 2, 2, 5, False), dtype=dtype, beta=beta)
            x = points(6, 2, dtype)
            with torch.no_grad():
                jet = native.taylor(net._net(), x, JetSpace(2, 3))
            for got, expected in zip(
                [*by_library(net, x), jet[:, 0]], [*by_torch(net, x), net(x)], strict=True
            ):
                assert got.isfinite().all()
                near(got, expected.detach(), 1e-9 if dtype == D else 0.1)
            assert jet.isfinite().all()


@needs_library
def test_a_sure_answer_keeps_its_digits_wherever_its_slot_is():
    """Scores 39, 6 and -27: derivatives are 1e-14 of u, and which slot leads must not matter."""
    tensors = (
        [[[1 / 2, -1 / 3], [1 / 4, 2 / 5]], [[3 / 4, -1 / 2], [1 / 3, 1]]],
        [[1 / 10, -1 / 5], [0, 1 / 4]],
    )
    layers = [[torch.tensor(part, dtype=D) for part in some] for some in tensors]
    keys = torch.tensor([[1, -1 / 2], [0, 3 / 4], [-2 / 3, 1 / 5]], dtype=D)
    values = torch.tensor([[1, 2], [-1 / 2, 1 / 3], [3 / 2, -1]], dtype=D)
    readout = torch.tensor([[1, -3 / 4]], dtype=D)
    bias = torch.tensor([1 / 8], dtype=D)
    # D^a u at (1/3, -1/2), a = (0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (0, 3): mpmath with 120 digits
    known = [-7.3716657569100499e-14, -3.2901701879258209e-14, -4.8412158076689825e-12,
             -2.147467114668143e-12, -9.6913288804305603e-13, -3.1977805025902742e-10]  # fmt: skip
    x = torch.tensor([[1 / 3, -1 / 2]], dtype=D)
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        net = AttentionJetMLP.from_parameters(
            *layers, keys[order], values[order], readout, bias, 100.0, "tanh", 2, 1, residual=False
        )
        with torch.no_grad():
            jet = native.taylor(net._net(), x, JetSpace(2, 3)) * JetSpace(2, 3).factorials(x)[:, None]
            first, second = native.second_order(net._net(), x, "gradient", "hessian")
        assert jet[0, 1:7, 0].tolist() == pytest.approx(known, rel=2e-12, abs=0.0)
        assert first[0, :, 0].tolist() == pytest.approx(known[1::-1], rel=2e-12, abs=0.0)
        assert second.flatten()[[3, 1, 0]].tolist() == pytest.approx(known[2:5], rel=2e-12, abs=0.0)


def test_stands_aside():
    net, x = network((3, 2, 5, 1, 2, 3, True)), points(3, 2)
    space = JetSpace(2, 3)

    def used(p=x, of=net):
        found = [native.second_order(of._net(), p, "hessian"), native.taylor(of._net(), p, space)]
        assert (found[0] is None) == (found[1] is None)
        return found[0] is not None

    assert not used()  # parameters that want a gradient
    with torch.no_grad():
        assert used() == (native_missing() is None)
        assert not used(x.to(torch.bfloat16))
        assert not used(x.to("meta"))
        for transform in (vmap, jacfwd):
            transform(lambda p: (p, used(p.expand(3, 2)))[0] if not used(x) else None)(x[0])
        with torch.autograd.forward_ad.dual_level():
            assert not used()
        native_order = network((3, 2, 5, 1, 2, 3, True), "gelu")
        assert native.second_order(native_order._net(), x, "value") is None
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert used() == (native_missing() is None)
    assert not used(x.clone().requires_grad_())


def test_a_tower_with_a_parameter_of_its_own_trains():
    rate = torch.tensor(1.3, dtype=D, requires_grad=True)
    base = activation(lambda z, order: [(rate * z).exp() * rate**k for k in range(order + 1)])
    net, x = network((3, 2, 4, 1, 2, 3, True), base), points(3, 2)
    net.requires_grad_(False)
    for call in (net.gradient, net.hessian, net.laplacian, lambda p: net.jet(p, 3)):
        found = call(x)
        assert torch.autograd.grad(found.square().sum(), rate)[0] != 0
        with torch.no_grad():
            torch.testing.assert_close(call(x), found.detach(), rtol=1e-12, atol=1e-14)


def test_a_tower_of_odd_tensors():
    def square(z, order):
        # a value that is a view, derivatives that are one number
        tower = [torch.stack([z * z, z], -1)[..., 0], 2 * z, z.new_full((), 2.0).expand(z.shape)]
        return [*tower, *[z.new_zeros(()).expand(z.shape)] * order][: order + 1]

    def double(z, order):
        return [level.double() for level in square(z, order)]

    net, x = network((9, 2, 5, 1, 2, 3, True), square), points(9, 2)
    expected = by_torch(net, x)
    with torch.no_grad():
        for got, wanted in zip([*net.value_grad_hessian(x), net.laplacian(x)], expected, strict=True):
            near(got, wanted, 1e-12)
        near(net.jet(x, 3), net._net().jet(x, 3).transpose(0, 1), 1e-12)
        mixed = network((9, 2, 5, 1, 1, 3, True), double, torch.float32)
        assert native.second_order(mixed._net(), x.float(), "hessian") is None
        assert native.taylor(mixed._net(), x.float(), JetSpace(2, 3)) is None


def test_a_recorded_function_computes_again():
    net, x, other = network((4, 3, 5, 1, 2, 3, True)), points(4, 3), points(5, 3)[1:]

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, p):
            return self.net.hessian(p)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = torch.jit.trace(Call(), x)
        torch.testing.assert_close(recorded(other), net.hessian(other))


def test_without_the_library(monkeypatch):
    net, x = network((9, 3, 8, 2, 2, 4, True)), points(9, 3)
    calls = [net.value, net.gradient, net.hessian, net.laplacian, *net_jets(net)]
    with torch.no_grad():
        expected = [call(x) for call in calls]
        monkeypatch.setattr(native, "native_missing", lambda: "not built")
        monkeypatch.setattr(second_order, "_BLOCK", 60)
        assert native.second_order(net._net(), x, "value") is None
        for call, wanted in zip(calls, expected, strict=True):
            near(call(x), wanted, 1e-13)
        relu = network((9, 3, 8, 2, 2, 4, True), "relu")
        assert relu(x[:0]).shape == (0, 2)


def net_jets(net):
    return [lambda p, order=order: net.jet(p, order) for order in range(4)]


def test_refuses_without_points_too():
    relu = network((9, 3, 8, 2, 2, 4, True), "relu")
    with torch.no_grad():
        for call in (relu.gradient, relu.hessian, relu.laplacian, *net_jets(relu)):
            with pytest.raises(PriorGraphError, match="got 'relu'"):
                call(points(0, 3))


@needs_library
@pytest.mark.parametrize("level", ["avx2", "baseline"])
def test_levels_below_the_best(level):
    """The same file in a process that is told to use narrower registers."""
    if os.environ.get("PYG_KPNN_SIMD"):
        pytest.skip("this is such a process")
    chosen = "torch or algebra or threads or tails or memory"
    code = (
        "import sys, pytest\n"
        "from pyg_kpnn.ops.native_library import library\n"
        "if library().pk_level().decode() != sys.argv[1]: print('skip'); sys.exit()\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', sys.argv[2], sys.argv[3]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, level, chosen, __file__],
        env={**os.environ, "PYG_KPNN_SIMD": level, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.stdout.strip() == "skip":
        pytest.skip(f"this processor has no {level}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
