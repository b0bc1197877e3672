"""Derivatives by every road that torch has: the same numbers on every backend, layout and chunk size.

What is compared with comes from plain reverse mode on the dense backend, one entry at a time.
"""

from __future__ import annotations

import functools
import itertools
import sys

import pytest
import torch
from torch import func
from torch.autograd import functional
from torch_geometric import EdgeIndex

from pyg_kpnn.nn import EdgeAttention
from pyg_kpnn.ops import EdgeLayout, edge_attention

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def alone(case, tester, layer, place=0):
    """The layer's output (not batched) as a function of one input, and that input."""
    inputs = [t.detach()[0] for t in tester.draw(case, 1)]
    mask = tester.mask[:1] if case.takes_mask else None

    def output(tensor):
        given = [tensor if i == place else t for i, t in enumerate(inputs)]
        return case.call(layer, [t.unsqueeze(0) for t in given], mask).squeeze(0)

    return output, inputs[place]


@functools.cache
def expected(name, place, tester):
    """Output, Jacobian and Hessian of the loss, by reverse mode alone on the reference."""
    case = tester.cases[name]
    output, x = alone(case, tester, tester.make(case, backend="reference"), place)
    leaf = x.clone().requires_grad_()
    out = output(leaf)
    rows = [torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in out.flatten()]
    (grad,) = torch.autograd.grad(tester.loss(out), leaf, create_graph=True)
    hessian = [torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in grad.flatten()]
    shape = (*out.shape, *x.shape)
    hessian = torch.stack(hessian).view(*x.shape, *x.shape)
    assert hessian.abs().max() > 1e-3
    return out.detach(), torch.stack(rows).view(shape), grad.detach(), hessian


SLOW = pytest.mark.slow


@pytest.fixture(
    params=[
        ("reference", None),
        ("torch", 3),
        ("scatter", None),
        ("native", 3),
        pytest.param(("torch", None), marks=SLOW),
        pytest.param(("scatter", 3), marks=SLOW),
        pytest.param(("native", None), marks=SLOW),
    ],
    ids=str,
)
def settings(request, usable):
    backend, chunk = request.param
    return {"backend": usable(backend), "chunk_size": chunk}


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        cases, every = sys.modules["layer_tester"].CASES, []
        for name, case in cases.items():
            for place in range(len(case.shapes)):
                # Fast: one input of each layer, and the keys and edges of those that have some.
                marks = [] if place == 0 or (name, place) in {("packed", 1), ("conv", 1)} else [SLOW]
                every.append(pytest.param(name, place, marks=marks, id=f"{name}{place}"))
        metafunc.parametrize(("name", "place"), every)


def test_jacobians(name, place, settings, tester):
    case = tester.cases[name]
    output, x = alone(case, tester, tester.make(case, **settings), place)
    out, jacobian, gradient, _ = expected(name, place, tester)

    def loss(tensor):
        return tester.loss(output(tensor))

    size = x.numel()
    ways = {
        "jacrev": func.jacrev(output, chunk_size=13)(x),
        "jacfwd": func.jacfwd(output)(x),
        "vmap of vjp": func.vmap(func.vjp(output, x)[1])(
            torch.eye(out.numel(), dtype=x.dtype).view(-1, *out.shape)
        )[0].view_as(jacobian),
        "vmap of jvp": func.vmap(lambda t: func.jvp(output, (x,), (t,))[1], out_dims=-1)(
            torch.eye(size, dtype=x.dtype).view(size, *x.shape)
        ).view_as(jacobian),
        "double backward": torch.stack(
            [functional.jvp(output, x, t.view_as(x))[1] for t in torch.eye(size, dtype=x.dtype)[:2]], -1
        ),
    }
    for way, found in ways.items():
        wanted = jacobian.flatten(out.dim())[..., :2] if way == "double backward" else jacobian
        torch.testing.assert_close(found, wanted, **CLOSE, msg=lambda text, way=way: f"{way}: {text}")
    for found in (func.grad(loss)(x), func.grad_and_value(loss)(x)[0]):
        torch.testing.assert_close(found, gradient, **CLOSE)


def test_hessians(name, place, settings, tester):
    case = tester.cases[name]
    output, x = alone(case, tester, tester.make(case, **settings), place)
    *_, hessian = expected(name, place, tester)

    def loss(tensor):
        return tester.loss(output(tensor))

    roads = {"hessian": func.hessian(loss)(x)}
    if settings["backend"] != "reference":  # slow, and made of torch's own functions
        roads["fwd fwd"] = func.jacfwd(func.jacfwd(loss))(x)
        roads["rev rev"] = func.jacrev(func.jacrev(loss))(x)
        roads["rev fwd"] = func.jacrev(func.jacfwd(loss))(x)
    size = x.numel()
    turned = (*range(x.dim(), 2 * x.dim()), *range(x.dim()))
    for way, found in roads.items():
        torch.testing.assert_close(found, hessian, **CLOSE, msg=lambda text, way=way: f"{way}: {text}")
        torch.testing.assert_close(found, found.permute(turned), **CLOSE)
    direction = torch.linspace(-1, 1, size, dtype=x.dtype).view_as(x)
    product = torch.einsum("ij,j->i", hessian.reshape(size, size), direction.flatten()).view_as(x)
    products = {
        "forward over reverse": func.jvp(func.grad(loss), (x,), (direction,))[1],
        "reverse over reverse": func.vjp(func.grad(loss), x)[1](direction)[0],
        "reverse over forward": func.grad(lambda t: func.jvp(loss, (t,), (direction,))[1])(x),
        "vhp": functional.vhp(loss, x, direction)[1],
        "hvp": functional.hvp(loss, x, direction)[1],
    }
    for way, found in products.items():
        torch.testing.assert_close(found, product, **CLOSE, msg=lambda text, way=way: f"{way}: {text}")


def test_hessians_of_many_samples_at_once(case, backend, tester):
    layer = tester.make(case, backend=backend, chunk_size=3)
    inputs = [t.detach() for t in tester.draw(case, 2)]

    def loss(tensors):
        return tester.loss(case.call(layer, [t.unsqueeze(0) for t in tensors], None))

    def product(tensors, direction):
        return func.jvp(func.grad(loss), (tensors,), (direction,))[1]

    directions = [t.flip(0) for t in inputs]
    together = func.vmap(product)(inputs, directions)
    rows = [product([t[b] for t in inputs], [t[b] for t in directions]) for b in range(2)]
    torch.testing.assert_close(together, [torch.stack(pair) for pair in zip(*rows, strict=True)], **CLOSE)


def test_hessian_in_the_parameters(case, backend, tester):
    layer = tester.make(case, backend=backend, chunk_size=3)
    inputs = [t.detach() for t in tester.draw(case, 2)]
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    if not parameters:
        pytest.skip("has no parameters")
    directions = {
        name: torch.linspace(-1, 1, p.numel()).view_as(p).double() for name, p in parameters.items()
    }

    def loss(parameters):
        def call(module):
            return tester.loss(case.call(module, inputs, tester.mask[:2] if case.takes_mask else None))

        class Whole(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self):
                return call(self.layer)

        return func.functional_call(Whole(), {f"layer.{name}": p for name, p in parameters.items()}, ())

    by_forward = func.jvp(func.grad(loss), (parameters,), (directions,))[1]
    by_reverse = func.vjp(func.grad(loss), parameters)[1](directions)[0]
    other = func.grad(lambda p: func.jvp(loss, (p,), (directions,))[1])(parameters)
    for found in (by_reverse, other):
        torch.testing.assert_close(found, by_forward, rtol=1e-8, atol=1e-9)
    if backend != "reference":
        reference = expected_product(case, tester)
        torch.testing.assert_close(by_forward, reference, rtol=1e-8, atol=1e-9)


@functools.cache
def expected_product(case, tester):
    """Hessian in the parameters times a fixed direction, by reverse mode on the reference."""
    layer = tester.make(case, backend="reference")
    inputs = [t.detach() for t in tester.draw(case, 2)]
    parameters = dict(layer.named_parameters())
    loss = tester.loss(case.call(layer, inputs, tester.mask[:2] if case.takes_mask else None))
    grads = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    total = sum((g * torch.linspace(-1, 1, g.numel()).view_as(g).double()).sum() for g in grads)
    return dict(zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True))


def test_every_layout_of_the_edges_and_every_chunk_size(backend):
    # Parallel edges, a loop, a node that nobody reads, one that reads nothing.
    edges = torch.tensor([[0, 1, 1, 2, 0, 3, 3], [1, 1, 2, 0, 1, 0, 2]])
    forms = [edges, EdgeLayout(edges, 5, 5), edges.int(), EdgeIndex(edges, sparse_size=(5, 5))]
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, 3, generator=gen, dtype=torch.float64)
    bias = torch.randn(7, 2, generator=gen, dtype=torch.float64)
    found = []
    for form, chunk in itertools.product(forms, (None, 1, 2, 3, 7, 99)):
        attend = EdgeAttention(chunk_size=chunk, backend=backend)
        loss = lambda x, attend=attend, form=form: (  # noqa: E731
            attend(x, x.sin(), x.cos(), form, bias=bias)[0].pow(3).sum()
        )
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), leaf)[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-11, atol=1e-12)


def test_where_all_gradients_that_come_in_are_zero(backend, chunk):
    # Double backward through zeros is how forward mode is done without forward mode.
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 0], [1, 1, 1, 0]]), 3, 2)
    gen = torch.Generator().manual_seed(0)
    shapes = ((2, 2, 1, 3), (2, 3, 1, 3), (2, 3, 1, 3))
    leaves = [torch.randn(s, generator=gen, dtype=torch.float64, requires_grad=True) for s in shapes]
    mixed, weights = edge_attention(*leaves, layout, chunk_size=chunk, backend=backend, need_weights=True)
    factors = [torch.zeros_like(t, requires_grad=True) for t in (mixed, weights)]
    grads = torch.autograd.grad((mixed, weights), leaves, factors, create_graph=True)
    tangents = [torch.randn(t.shape, generator=gen, dtype=torch.float64) for t in leaves]
    pushed = torch.autograd.grad(sum((g * t).sum() for g, t in zip(grads, tangents, strict=True)), factors)
    expected = func.jvp(
        lambda *t: edge_attention(*t, layout, backend="reference", need_weights=True),
        tuple(t.detach() for t in leaves),
        tuple(tangents),
    )[1]
    torch.testing.assert_close(pushed, expected, **CLOSE)


def test_dropped_edges_have_derivatives_of_their_own(backend, chunk, tester):
    # Same mask in every evaluation: with the global seed set inside the function differentiated.
    case = tester.cases["packed"]
    found = []
    for name, size in (("reference", None), (backend, chunk)):
        layer = tester.make(case, backend=name, chunk_size=size, dropout=0.4).train()
        inputs = tester.draw(case)
        torch.manual_seed(5)
        output = case.call(layer, inputs, tester.mask)
        found.append([output, *tester.derivatives(output, [*inputs, *layer.parameters()])])
    torch.testing.assert_close(found[1], found[0], **CLOSE)
