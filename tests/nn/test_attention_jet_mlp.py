"""AttentionJetMLP: values, derivatives of every order, training, transforms, what is refused."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, jacfwd, vmap

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import ACTIVATIONS, JetSpace, native, second_order
from pyg_kpnn.nn.attention_jet_mlp import AttentionJetMLP, make_attention_jet_mlp

D = torch.float64
ABLE = [name for name in ACTIVATIONS if name != "relu"]
METHODS = ("value", "gradient", "hessian", "laplacian", "query", "attention_weights")

# A network of two inputs, two hidden units and three slots, and D^alpha u at (1/3, -1/2) for the rows of
# JetSpace(2, 4).indices. From mpmath 1.3: diff(u, x, alpha) with 120 digits and step 1e-20 / beta.
SMALL = dict(
    weights=[[[1 / 2, -1 / 3], [1 / 4, 2 / 5]], [[3 / 4, -1 / 2], [1 / 3, 1]]],
    biases=[[1 / 10, -1 / 5], [0, 1 / 4]],
    keys=[[1, -1 / 2], [0, 3 / 4], [-2 / 3, 1 / 5]],
    values=[[1, 2], [-1 / 2, 1 / 3], [3 / 2, -1]],
    readout_weight=[[1, -3 / 4]],
    readout_bias=[1 / 8],
)
WITHOUT_RESIDUAL = {
    1.5: [0.06374750177422299, 0.25874395220663786, -0.10344518840175158, 0.18563753604399593,
          -0.15683102951184509, 0.095944259735647831, -0.021795080929927802, -0.15828316165521127,
          0.04185364449352285, -0.061851743663701183, -0.42460089099434179, 0.084185783042843734,
          -0.028514044754427527, 0.12455522450261048, -0.023324346626551117],
    # scores 39, 6, -27: the answer is one slot's, and what changes it is 1e-14 of it
    100.0: [-0.37500000000000113, -7.3716657569100499e-14, -3.2901701879258209e-14, -4.8412158076689825e-12,
            -2.147467114668143e-12, -9.6913288804305603e-13, -3.1977805025902742e-10,
            -1.4097726345228677e-10, -6.3225619653970483e-11, -2.8826232556376697e-11,
            -2.1241273233139983e-8, -9.3071671430626411e-9, -4.1481582163168847e-9,
            -1.8793675476453441e-9, -8.6500629899582844e-10],
    # scores 390, 60, -270
    1e3: [-0.375, -5.7660358759019954e-142, -2.5735349332162973e-142, -3.7665939366170799e-139,
          -1.6800908954928494e-139, -7.5070309699168853e-140, -2.4619419073609346e-136,
          -1.0974711733635078e-136, -4.9007152789033435e-137, -2.1921679372608756e-137,
          -1.6101399459623557e-133, -7.1731578383119211e-134, -3.2011627373942625e-134,
          -1.4310430649484252e-134, -6.4082911938376664e-135],
    # scores 38984, 5953, -27048: below the smallest number
    1e5: [-0.375, *[0.0] * 14],
}  # fmt: skip
SATURATED = [-0.0050012131641006209, -0.51878981692891232, -0.109823075756622, -0.22762605490667178,
             0.043196183406583254, -0.11381688023724972, 0.10234609060506659, 0.11416062789352288,
             0.07854757589231231, 0.10901922404082752, 0.36849162915952182, -0.0018531876509553649,
             0.21670377269983309, -0.076969567346580554, 0.083441047842526763]  # fmt: skip
WITH_RESIDUAL = {
    1.5: [0.43374628861012237, -0.26004586472227447, -0.21326826415837358, -0.041988518862675845,
          -0.11363484610526183, -0.017872620501601884, 0.080551009675138783, -0.044122533761688393,
          0.12040122038583516, 0.047167480377126333, -0.056109261834819979, 0.082332595391888369,
          0.18818972794540556, 0.047585657156029922, 0.060116701215975646],
    1e3: SATURATED,
    1e5: SATURATED,
}  # fmt: skip
SMALL_CASES = [(False, b, v) for b, v in WITHOUT_RESIDUAL.items()]
SMALL_CASES += [(True, b, v) for b, v in WITH_RESIDUAL.items()]


def small(beta, residual):
    tensors = {
        name: [torch.tensor(part, dtype=D) for part in value]
        if name in ("weights", "biases")
        else torch.tensor(value, dtype=D)
        for name, value in SMALL.items()
    }
    return AttentionJetMLP.from_parameters(
        **tensors, beta=beta, spec="tanh", in_dim=2, out_dim=1, residual=residual
    )


def points(count, in_dim, dtype=D):
    return torch.randn(count, in_dim, generator=torch.Generator().manual_seed(3), dtype=dtype) * 0.7


def nested(net, x, order):
    """[u, first derivatives (B, out, d), …] of each order by nested jacfwd of ``net.value``."""
    function, found = net.value, []
    for _ in range(order + 1):
        found.append(vmap(function)(x))
        function = jacfwd(function)
    return found


def agree(got, expected, scale, rtol=1e-10):
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= rtol * scale.abs().max()


@pytest.mark.parametrize("grad", [True, False], ids=["traced", "plain"])
@pytest.mark.parametrize(("residual", "beta", "expected"), SMALL_CASES)
def test_small_network_worked_out_elsewhere(residual, beta, expected, grad):
    net = small(beta, residual)
    x = torch.tensor([[1 / 3, -1 / 2]], dtype=D)
    space = JetSpace(2, 4)
    with torch.set_grad_enabled(grad):
        found = net.partials(x, 4)
        second = net.partials(x, 2)
        hessian, gradient, laplacian = net.hessian(x), net.gradient(x), net.laplacian(x)
    rtol = 2e-12 if beta <= 100.0 else 2e-10  # large scores have fewer digits after the point
    for alpha, value in zip(space.indices, expected, strict=True):
        order = sum(alpha)
        scale = max(abs(v) for a, v in zip(space.indices, expected, strict=True) if sum(a) == order)
        assert abs(found[alpha].item() - value) <= rtol * scale, alpha
        if order <= 2:
            assert abs(second[alpha].item() - value) <= rtol * scale, alpha
    yy, xy, xx = expected[3:6]
    scale = torch.tensor([xx, yy, xy], dtype=D)
    agree(hessian, torch.tensor([[[[xx], [xy]], [[xy], [yy]]]], dtype=D), scale, rtol)
    agree(
        gradient,
        torch.tensor([[[expected[2]], [expected[1]]]], dtype=D),
        torch.tensor(expected[1:3], dtype=D),
        rtol,
    )
    agree(laplacian, torch.tensor([[xx + yy]], dtype=D), scale, rtol)


@pytest.mark.parametrize("in_dim", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ABLE)
def test_every_partial_to_fourth_order(name, in_dim):
    # both halves of the options at every activation and every number of inputs
    for residual, value_dim, depth in ((True, None, 2), (False, 3, 1 + in_dim % 3)):
        net = AttentionJetMLP(
            in_dim, 5, 2, depth, name, memory=3, value_dim=value_dim, residual=residual, beta=1.7, dtype=D
        )
        x = points(2, in_dim)
        expected = nested(net, x, 4)
        with torch.no_grad():
            found, second, hessian = net.partials(x, 4), net.partials(x, 2), net.hessian(x)
            gradient, laplacian, value = net.gradient(x), net.laplacian(x), net.value(x)
        assert tuple(found) == JetSpace(in_dim, 4).indices
        for alpha, partial in found.items():
            variables = [v for v, times in enumerate(alpha) for _ in range(times)]
            scale = expected[len(variables)]
            agree(partial, scale[(slice(None), slice(None), *variables)], scale)
            if len(variables) <= 2:
                agree(second[alpha], scale[(slice(None), slice(None), *variables)], scale)
        agree(value, expected[0], expected[0])
        agree(gradient, expected[1].mT, expected[1])
        agree(hessian, expected[2].permute(0, 2, 3, 1), expected[2])
        agree(laplacian, expected[2].diagonal(dim1=2, dim2=3).sum(-1), expected[2])
        assert torch.equal(hessian, hessian.transpose(1, 2))


@pytest.mark.parametrize("in_dim", [11, 12, 13, 30])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("library", [True, False], ids=["library", "torch"])
def test_second_order_with_many_inputs(in_dim, depth, library, monkeypatch):
    """Tables shared by all points or not, several blocks of points, both ways of memory."""
    monkeypatch.setattr(second_order, "_BLOCK", 20_000)
    if not library:
        monkeypatch.setattr(native, "native_missing", lambda: "not built")
    for out_dim, count in ((1, 40), (2, 40), (1, 3)):
        net = AttentionJetMLP(in_dim, 7, out_dim, depth, memory=5, dtype=D)
        x = points(count, in_dim)
        expected = nested(net, x, 2)
        second = expected[2].permute(0, 2, 3, 1)
        results = []
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                value, gradient, hessian = net.value_grad_hessian(x)
                results.append((value, gradient, hessian, net.laplacian(x)))
                assert torch.equal(hessian, hessian.transpose(1, 2))
                agree(value, expected[0], expected[0])
                agree(gradient, expected[1].mT, expected[1])
                agree(hessian, second, second)
                agree(net.hessian(x), second, second)
                agree(results[-1][3], second.diagonal(dim1=1, dim2=2).sum(-1), second)
        for traced, plain in zip(*results, strict=True):
            torch.testing.assert_close(traced, plain, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("residual", [True, False])
def test_fast_paths_are_the_general_one(residual):
    net = AttentionJetMLP(3, 8, 2, residual=residual, dtype=D)
    x = points(6, 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for order in range(3):
                general = net._net().jet(x, order).transpose(0, 1)
                agree(net.jet(x, order), general, general, 1e-13)


def test_jet_rows_are_taylor_coefficients():
    net = AttentionJetMLP(2, 6, dtype=D)
    x, step = points(1, 2), torch.tensor([[1e-2, -2e-2]], dtype=D)
    indices = JetSpace(2, 5).indices
    assert indices[:6] == ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0))
    powers = torch.tensor([step[0, 0] ** i * step[0, 1] ** j for i, j in indices], dtype=D)
    with torch.no_grad():
        series = (net.jet(x, 5)[..., 0] * powers).sum(-1)
        torch.testing.assert_close(series, net.value(x + step)[..., 0], rtol=0, atol=1e-11)


def test_points_in_blocks_of_any_size(monkeypatch):
    from pyg_kpnn.jets import network

    net = AttentionJetMLP(3, 6, dtype=D)
    x = points(11, 3)
    with torch.no_grad():
        whole = net._net().jet(x, 3)
        monkeypatch.setattr(network, "_BLOCK", 600)
        torch.testing.assert_close(net._net().jet(x, 3), whole, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("beta", [1.0, 30.0, 3e3, 1e5])
def test_derivatives_of_the_weights_sum_to_zero(beta):
    net = AttentionJetMLP(2, 5, memory=6, beta=beta, dtype=D)
    # values that read the weights out one by one
    net = AttentionJetMLP.from_parameters(
        list(net.weights), list(net.biases), net.keys, torch.eye(6, dtype=D), torch.eye(6, dtype=D),
        torch.zeros(6, dtype=D), beta, "tanh", 2, 6, residual=False,
    )  # fmt: skip
    space, x = JetSpace(2, 4), points(5, 2)
    for jet in (net.jet(x, 4), net._net().jet(x, 2).transpose(0, 1), net.jet(x, 2)):
        assert jet.isfinite().all()
        torch.testing.assert_close(jet[:, 0], net.attention_weights(x), rtol=1e-12, atol=1e-300)
        for order in range(1, 5 if jet.shape[1] == space.size else 3):
            rows = [row for row, alpha in enumerate(space.indices) if sum(alpha) == order]
            assert jet[:, rows].sum(-1).abs().max() <= 1e-13 * jet[:, rows].abs().max()


def tanh_network(beta, weight):
    """u = tanh(beta * weight x), as a softmax over two opposite keys."""
    one = torch.ones(1, 1, dtype=D)
    pair = torch.tensor([[1.0], [-1.0]], dtype=D)
    return AttentionJetMLP.from_parameters(
        [torch.tensor([weight], dtype=D)], [0 * one[0]], pair, pair, one, 0 * one[0], beta, "identity",
        len(weight), 1, residual=False,
    )  # fmt: skip


@pytest.mark.parametrize("beta", [1.0, 3e3, 1e5])
@pytest.mark.parametrize("score", [0.3, 6.0, 20.0, 300.0, 800.0])
def test_a_softmax_of_two_is_a_tanh(beta, score):
    weight = [0.5, -2.0]
    net = tanh_network(beta, weight)
    x = torch.tensor([[score / beta, -score / beta / 4]], dtype=D)  # scores ± score
    # derivatives of tanh by e = exp(-2z), where 1 - tanh^2 has no digits left
    e = math.exp(-2.0 * score)
    t, s = (1 - e) / (1 + e), 4 * e / (1 + e) ** 2
    tower = [t, s, -2 * t * s, s * (6 * t * t - 2), s * (16 * t - 24 * t**3)]
    found = net.partials(x, 4)
    for alpha, value in found.items():
        expected = tower[sum(alpha)] * (beta * weight[0]) ** alpha[0] * (beta * weight[1]) ** alpha[1]
        assert value.item() == pytest.approx(expected, rel=1e-11, abs=0.0)
    hessian = net.hessian(x)[0, :, :, 0]
    outer = torch.outer(*[torch.tensor(weight, dtype=D) * beta] * 2)
    torch.testing.assert_close(hessian, tower[2] * outer, rtol=1e-11, atol=0)
    torch.testing.assert_close(net.laplacian(x)[0, 0], tower[2] * outer.trace(), rtol=1e-11, atol=0)


def test_leading_axes():
    net = AttentionJetMLP(3, 5, 2, memory=4, dtype=D)
    x = points(6, 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            calls = {name: getattr(net, name) for name in METHODS}
            calls |= {f"jet{order}": lambda p, order=order: net.jet(p, order) for order in range(4)}
            calls |= {f"all{i}": lambda p, i=i: net.value_grad_hessian(p)[i] for i in range(3)}
            for call in calls.values():
                flat = call(x)
                tail = flat.shape[1:]
                assert call(x.view(2, 3, 3)).shape == (2, 3, *tail)
                torch.testing.assert_close(
                    call(x.view(2, 1, 3, 3)).view(6, *tail), flat, rtol=1e-12, atol=1e-14
                )
                torch.testing.assert_close(call(x[0]), flat[0], rtol=1e-12, atol=1e-14)
                assert call(x[:0]).shape == (0, *tail)
                assert call(x.view(2, 3, 3)[:, :0]).shape == (2, 0, *tail)
    assert net.jet(x, 2).shape == (6, 10, 2)
    assert net.gradient(x).shape == (6, 3, 2)
    assert net.hessian(x).shape == (6, 3, 3, 2)
    assert net.partials(x, 1)[0, 1, 0].shape == net.laplacian(x).shape == net(x).shape == (6, 2)
    assert net.query(x).shape == (6, 5)
    assert net.attention_weights(x).shape == (6, 4)


@pytest.mark.parametrize("value_dim", [None, 4])
def test_value_by_hand(value_dim):
    net = AttentionJetMLP(
        2, 5, 3, memory=7, value_dim=value_dim, residual=value_dim is None, beta=2.5, dtype=D
    )
    x = points(4, 2)
    q = x
    for weight, bias in zip(net.weights, net.biases, strict=True):
        q = torch.tanh(q @ weight.T + bias)
    shares = torch.softmax(2.5 * q @ net.keys.T, -1)
    inner = shares @ net.values + (q if value_dim is None else 0)
    torch.testing.assert_close(net(x), inner @ net.readout_weight.T + net.readout_bias)
    torch.testing.assert_close(net.query(x), q)
    torch.testing.assert_close(net.attention_weights(x), shares)


@pytest.mark.parametrize("method", ["gradient", "hessian", "laplacian", "jet"])
def test_gradcheck_in_parameters_and_input(method):
    net = AttentionJetMLP(2, 3, 1, memory=3, dtype=D)
    for bias in (*net.biases, net.readout_bias):
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(1))
    names, values = zip(*net.named_parameters(), strict=True)

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return net.jet(x, 3) if method == "jet" else getattr(net, method)(x)

    def call(x, *parameters):
        return functional_call(Call(), {f"net.{n}": p for n, p in zip(names, parameters, strict=True)}, (x,))

    inputs = (points(2, 2).requires_grad_(True), *[v.detach().clone().requires_grad_(True) for v in values])
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs, atol=1e-4)


def test_trains_on_a_hessian_loss():
    net = AttentionJetMLP(2, 8, memory=4, dtype=D)
    x = points(16, 2)
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        residual = net.laplacian(x) - 1.0
        loss = residual.square().mean() + net.hessian(x)[:, 0, 1].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    for name, parameter in net.named_parameters():
        if name != "readout_bias":  # no derivative in x sees it
            assert parameter.grad.abs().max() > 0, name
            assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("method", [*METHODS, "jet"])
def test_vmap(method):
    net = AttentionJetMLP(3, 5, 2, memory=4, dtype=D)
    x = points(4, 3)

    def call(p):
        return net.jet(p, 3) if method == "jet" else getattr(net, method)(p)

    expected = call(x).detach()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(vmap(call)(x), expected)
            torch.testing.assert_close(vmap(call)(x.view(2, 2, 3)).flatten(0, 1), expected)
            ahead = vmap(jacfwd(call))(x)
            step = 1e-6 * torch.eye(3, dtype=D)
            for v in range(3):
                slope = (call(x + step[v]) - call(x - step[v])) / 2e-6
                torch.testing.assert_close(ahead[..., v], slope, rtol=1e-5, atol=1e-7)


def test_an_ensemble_by_vmap():
    nets = [AttentionJetMLP(3, 5, memory=4, seed=seed, dtype=D) for seed in (1, 2)]
    stacked = {
        name: torch.stack([dict(net.named_parameters())[name] for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    x = points(4, 3)

    def laplacian(parameters):
        class Call(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nets[0]

            def forward(self, x):
                return self.net.laplacian(x)

        return functional_call(Call(), {f"net.{n}": p for n, p in parameters.items()}, (x,))

    torch.testing.assert_close(vmap(laplacian)(stacked), torch.stack([net.laplacian(x) for net in nets]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("method", ["hessian", "laplacian", "gradient", "partials"])
def test_compiles_whole(method, backend):
    net = AttentionJetMLP(3, 5, memory=4, dtype=D)
    x = points(4, 3).requires_grad_(True)

    def call(p):
        return (
            torch.stack(list(net.partials(p, 3).values()))
            if method == "partials"
            else getattr(net, method)(p)
        )

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    expected = call(x)
    got = compiled(x)
    torch.testing.assert_close(got, expected)
    if backend == "aot_eager":
        wanted = torch.autograd.grad(expected.square().sum(), [x, *net.weights, net.beta_raw])
        found = torch.autograd.grad(got.square().sum(), [x, *net.weights, net.beta_raw])
        torch.testing.assert_close(found, wanted)


def test_single_precision():
    double = AttentionJetMLP(3, 16, dtype=D)
    single = AttentionJetMLP(3, 16, dtype=torch.float32)
    x = points(8, 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for order in (2, 4):
                got, expected = single.jet(x.float(), order), double.jet(x, order)
                assert got.dtype == torch.float32
                torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    assert single.hessian(x).dtype == torch.float32  # the parameters' dtype, whatever x is
    expected = single.value_grad_hessian(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(single.hessian(x), expected[2])
        for got, wanted in zip(single.value_grad_hessian(x), expected, strict=True):
            assert torch.equal(got, wanted)
    assert AttentionJetMLP(2, 3).keys.dtype == torch.get_default_dtype()
    assert make_attention_jet_mlp(2, 3).keys.dtype == D


def test_results_are_nobody_elses_memory():
    net = AttentionJetMLP(12, 5, dtype=D)
    x = points(9, 12)
    with torch.no_grad():
        kept = [net.hessian(x), net.laplacian(x), net.jet(x, 2)]
        again = [tensor.clone() for tensor in kept]
        net.hessian(x * 2), net.laplacian(x * 2), net.jet(x * 2, 2)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_inference_mode_then_training():
    net = AttentionJetMLP(3, 5, dtype=D)
    x = points(4, 3)
    with torch.inference_mode():
        quick = net.hessian(x).clone()
    net.hessian(x).sum().backward()
    torch.testing.assert_close(quick, net.hessian(x).detach())


def test_forward_mode_without_gradients():
    net = AttentionJetMLP(3, 5, dtype=D)
    x, v = points(4, 3), points(1, 3).expand(4, 3)
    with torch.no_grad():
        _, along = torch.func.jvp(net.gradient, (x,), (v,))
        torch.testing.assert_close(along, torch.einsum("bijo,bj->bio", net.hessian(x), v))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, v.clone())
            tangent = torch.autograd.forward_ad.unpack_dual(net.gradient(dual)).tangent
            third = torch.autograd.forward_ad.unpack_dual(net.hessian(dual)).tangent
    torch.testing.assert_close(tangent, along)
    assert third.abs().max() > 0


def test_meta_device():
    with torch.device("meta"):
        net = AttentionJetMLP(3, 5)
        x = torch.empty(4, 3)
    assert net.hessian(x).shape == (4, 3, 3, 1)
    assert net.jet(x, 3).is_meta


# parameters


@pytest.mark.parametrize("beta", [1e-12, 1e-3, 0.1, 1 / 3, 0.999, 1.0, 1.5, math.pi, 100.0, 3e3, 1e5, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_beta_is_what_was_given(beta, dtype):
    net = AttentionJetMLP(1, 2, beta=beta, dtype=dtype)
    one_rounding = abs(float(np.spacing(torch.tensor(beta, dtype=dtype).numpy())))
    assert abs(net.beta.item() - beta) <= one_rounding
    assert net.beta.dtype == dtype


@pytest.mark.parametrize("beta", [0.06194225065372699, 0.22918515253190586, 0.05329746722943676])
def test_beta_where_there_and_back_takes_three_roundings(beta):
    assert abs(AttentionJetMLP(1, 2, beta=beta, dtype=D).beta.item() - beta) <= np.spacing(beta)


@pytest.mark.parametrize("raw", [-1e150, -1e8, -2.0, -1e-9, 0.0, 1e-9, 2.0, 1e8, 1e150])
def test_beta_stays_positive(raw):
    net = AttentionJetMLP(1, 2, dtype=D)
    with torch.no_grad():
        net.beta_raw.fill_(raw)
    assert net.beta.item() > 0
    (slope,) = torch.autograd.grad(net.beta, net.beta_raw)
    # r = b - 1/b, so db/dr = 1 / (1 + 1/b^2)
    assert slope.item() == pytest.approx(1 / (1 + net.beta.item() ** -2), rel=1e-9, abs=0.0)


def test_beta_is_smooth():
    raw = torch.tensor([-1.5, -1e-3, 0.0, 1e-3, 1.5], dtype=D, requires_grad=True)
    from pyg_kpnn.jets.parameters import temperature

    assert gradcheck(temperature, raw)
    assert gradgradcheck(temperature, raw)


def test_temperature_may_be_fixed():
    net = AttentionJetMLP(2, 3, beta=2.0, learnable_temperature=False)
    assert not net.beta_raw.requires_grad
    assert "beta_raw" in net.state_dict()
    assert all(p.requires_grad for n, p in net.named_parameters() if n != "beta_raw")


def test_seed_is_its_own():
    state = torch.get_rng_state()
    first = AttentionJetMLP(3, 6, seed=5, dtype=D).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    second = AttentionJetMLP(3, 6, seed=5).state_dict()
    other = AttentionJetMLP(3, 6, seed=6, dtype=D).state_dict()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name].double(), tensor, rtol=1e-6, atol=0)
        fixed = name.startswith("biases") or name in ("readout_bias", "beta_raw")
        assert torch.equal(tensor, other[name]) == fixed
    torch.manual_seed(5)
    free = AttentionJetMLP(3, 6, seed=None)
    assert not torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert torch.equal(AttentionJetMLP(3, 6, seed=None).keys, free.keys)


def test_initial_sizes():
    net = AttentionJetMLP(400, 300, 200, memory=250, weight_init_scale=0.5, dtype=D)
    for tensor, deviation in (
        (net.weights[0], 0.5 / 20.0), (net.weights[1], 0.5 / 300**0.5), (net.keys, 1 / 300**0.5),
        (net.values, 1.0), (net.readout_weight, 0.5 / 300**0.5),
    ):  # fmt: skip
        assert tensor.std().item() == pytest.approx(deviation, rel=0.02)
        assert abs(tensor.mean().item()) < 0.02 * deviation
    assert not any(bias.any() for bias in (*net.biases, net.readout_bias))


def test_sizes_and_repr():
    net = AttentionJetMLP(3, 8, 2, 4, "gelu", memory=5, value_dim=6, residual=False)
    assert (net.in_dim, net.hidden, net.out_dim, net.depth) == (3, 8, 2, 4)
    assert (net.memory, net.value_dim, net.residual) == (5, 6, False)
    assert net.spec is ACTIVATIONS["gelu"]
    assert "in_dim=3, hidden=8, out_dim=2, depth=4, memory=5, value_dim=6" in repr(net)
    assert "base='gelu'" in repr(net)


def test_state_dict_is_ordinary_tensors():
    net = AttentionJetMLP(3, 8, 2)
    names = ["keys", "values", "readout_weight", "readout_bias", "beta_raw"]
    names += [f"{part}.{layer}" for part in ("weights", "biases") for layer in (0, 1)]
    assert sorted(net.state_dict()) == sorted(names)
    assert all(type(tensor) is torch.Tensor for tensor in net.state_dict().values())
    assert {name for name, _ in net.named_parameters()} == set(names)
    other = AttentionJetMLP(3, 8, 2, seed=1)
    other.load_state_dict(net.state_dict())
    x = points(4, 3, torch.float32)
    assert torch.equal(other(x), net(x))
    broken = dict(AttentionJetMLP(3, 8, 2, seed=2).state_dict(), keys=torch.zeros(16, 7))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(RuntimeError):
        other.load_state_dict(broken)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_copies():
    net = AttentionJetMLP(3, 8, 2, base="silu", dtype=D)
    x = points(4, 3)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin.hessian(x), net.hessian(x))
        with torch.no_grad():
            twin.keys.zero_()
        assert net.keys.any()


def test_from_parameters_copies():
    net = AttentionJetMLP(3, 5, 2, 3, memory=4, value_dim=6, residual=False, beta=0.7, dtype=D)
    parts = [net.keys, net.values, net.readout_weight, net.readout_bias, net.beta]
    twin = AttentionJetMLP.from_parameters(
        list(net.weights), list(net.biases), *parts, net.spec, 3, 2, residual=False
    )
    x = points(4, 3)
    torch.testing.assert_close(twin.jet(x, 3), net.jet(x, 3))
    assert twin.beta_raw.requires_grad
    with torch.no_grad():
        net.keys.zero_()
    assert twin.keys.any()
    # what the default of residual asks for
    assert small(1.0, True).residual is True


def square(z, order):
    return [z * z, 2 * z, 2 + 0 * z, *[0 * z] * order][: order + 1]


def test_an_activation_of_your_own():
    net = AttentionJetMLP(2, 4, base=square, dtype=D)
    assert net.spec.name == "square"
    x = points(3, 2)
    expected = nested(net, x, 3)
    agree(net.hessian(x), expected[2].permute(0, 2, 3, 1), expected[2])
    agree(net.partials(x, 3)[1, 2], expected[3][:, :, 0, 1, 1], expected[3])


def test_relu_has_values_and_no_derivatives():
    net = AttentionJetMLP(2, 4, base="relu", dtype=D)
    x = points(3, 2)
    assert net(x).shape == (3, 1)
    assert net.query(x).min() == 0.0
    calls = [net.gradient, net.hessian, net.laplacian, net.value_grad_hessian]
    calls += [lambda p, order=order: net.jet(p, order) for order in range(4)]
    calls += [lambda p: net.partials(p, 1)]
    for call in calls:
        with pytest.raises(PriorGraphError, match=r"tanh, sigmoid, sin, cos, exp, softplus.*got 'relu'"):
            call(x)


# arguments


def test_the_function_has_the_defaults_of_the_class():
    found, expected = make_attention_jet_mlp(3, 5), AttentionJetMLP(3, 5, dtype=D)
    assert found.depth == 2
    assert repr(found) == repr(expected)
    assert found.state_dict().keys() == expected.state_dict().keys()
    x = torch.randn(7, 3, dtype=D)
    assert torch.equal(found(x), expected(x))


@pytest.mark.parametrize("build", [AttentionJetMLP, make_attention_jet_mlp])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(in_dim=0), "in_dim must be a positive integer, got 0"),
        (dict(hidden=-1), "hidden must be a positive integer, got -1"),
        (dict(out_dim=0), "out_dim must be a positive integer, got 0"),
        (dict(out_dim=1.0), "out_dim must be a positive integer, got 1.0"),
        (dict(depth=0), "depth must be a positive integer, got 0"),
        (dict(memory=0), "memory must be a positive integer, got 0"),
        (dict(value_dim=0), "value_dim must be a positive integer, got 0"),
        (dict(beta=0.0), "beta must be a finite number > 0, got 0.0"),
        (dict(beta=-1), "beta must be a finite number > 0, got -1"),
        (dict(beta=math.nan), "beta must be a finite number > 0, got nan"),
        (dict(beta=math.inf), "beta must be a finite number > 0, got inf"),
        (dict(beta=True), "beta must be a finite number > 0, got True"),
        (dict(beta="1"), "beta must be a finite number > 0, got '1'"),
        (dict(beta=torch.ones(2)), "beta must be a finite number > 0, got a Tensor"),
        (dict(beta=1e-320), "beta and 1 / beta must be numbers that torch.float64 can hold, got 1e-320"),
        (dict(value_dim=5), "residual needs value_dim == hidden, got 5 and 4; pass residual=False"),
        (dict(residual=1), "residual must be True or False, got 1"),
        (dict(weight_init_scale=0), "weight_init_scale must be a finite number > 0, got 0"),
        (dict(seed=1.5), "seed must be an integer of 64 bits or None, got 1.5"),
        (dict(seed=2**64), "seed must be an integer of 64 bits or None, got 18446744073709551616"),
        (dict(seed=True), "seed must be an integer of 64 bits or None, got True"),
        (dict(dtype=torch.int64), "dtype must be a floating point torch.dtype, got torch.int64"),
        (dict(base="mish"), "An activation must be one of tanh, .*got 'mish'"),
    ],
)
def test_refuses_arguments(build, change, message):
    arguments = dict(in_dim=2, hidden=4, dtype=D) | change
    with pytest.raises(PriorGraphError, match=f"^{message}"):
        build(**arguments)


def test_refuses_a_temperature_switch():
    with pytest.raises(PriorGraphError, match="learnable_temperature must be True or False, got None"):
        AttentionJetMLP(2, 4, learnable_temperature=None)


@pytest.mark.parametrize("method", [*METHODS, "value_grad_hessian", "forward"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4, 3), r"x must have a last axis of in_dim=2 coordinates, got shape \(4, 3\)"),
        (torch.zeros(()), r"x must have a last axis of in_dim=2 coordinates, got shape \(\)"),
        (torch.zeros(4, 2, dtype=torch.int64), "x must be a floating-point tensor, got dtype torch.int64"),
        ([[0.0, 0.0]], "x must be a floating-point tensor, got list"),
    ],
)
def test_refuses_points(method, x, message):
    with pytest.raises(PriorGraphError, match=f"^{message}"):
        getattr(AttentionJetMLP(2, 4), method)(x)


@pytest.mark.parametrize("order", [-1, 1.0, True, None])
def test_refuses_orders(order):
    net = AttentionJetMLP(2, 4)
    for call in (net.jet, net.partials):
        with pytest.raises(PriorGraphError, match=r"^order must be an integer >= 0, got"):
            call(torch.zeros(1, 2), order)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(weights=[], biases=[]), "weights and biases must hold one tensor .*, got 0 and 0"),
        (dict(biases=[torch.zeros(4)]), "weights and biases must hold one tensor .*, got 2 and 1"),
        (dict(biases=[torch.zeros(4), None]), r"biases\[1\] must be a floating-point tensor, got NoneType"),
        (dict(keys=torch.zeros(3, 4, dtype=torch.int64)), "keys must be a floating-point tensor, got dtype"),
        (dict(keys=torch.zeros(3, 4, dtype=D)), "All tensors must share dtype and device"),
        (dict(keys=torch.zeros(3, 5)), r"keys must have shape \(3, 4\) .*, got \(3, 5\)"),
        (dict(keys=torch.zeros(0, 4)), r"keys must have shape \(0, 4\) with no axis of length 0"),
        (dict(values=torch.zeros(2, 4)), r"values must have shape \(3, 4\) .*, got \(2, 4\)"),
        (
            dict(values=torch.zeros(3, 5), readout_weight=torch.zeros(1, 5)),
            "residual needs value_dim == hidden",
        ),
        (dict(readout_weight=torch.zeros(4)), r"readout_weight must have shape \(1, 4\) .*, got \(4,\)"),
        (dict(readout_bias=torch.zeros(2)), r"readout_bias must have shape \(1,\) .*, got \(2,\)"),
        (dict(in_dim=3), r"weights\[0\] must have shape \(4, 3\) .*, got \(4, 2\)"),
        (dict(out_dim=2), r"readout_weight must have shape \(2, 4\) .*, got \(1, 4\)"),
        (dict(in_dim=True), "in_dim must be a positive integer"),
        (dict(beta=-1.0), "beta must be a finite number > 0, got -1.0"),
        (dict(residual=None), "residual must be True or False"),
    ],
)
def test_refuses_parameters(change, message):
    arguments = dict(
        weights=[torch.zeros(4, 2), torch.zeros(4, 4)], biases=[torch.zeros(4)] * 2, keys=torch.zeros(3, 4),
        values=torch.zeros(3, 4), readout_weight=torch.zeros(1, 4), readout_bias=torch.zeros(1), beta=1.0,
        spec="tanh", in_dim=2, out_dim=1,
    )  # fmt: skip
    AttentionJetMLP.from_parameters(**arguments)
    with pytest.raises(PriorGraphError, match=f"^{message}"):
        AttentionJetMLP.from_parameters(**(arguments | change))
