"""Every layer through one matrix of checks: oracle, derivatives, transforms, dtypes, compile, copies.

The layers are those of ``tests/layer_tester.py``.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from pyg_kpnn.nn import EdgeAttention


@pytest.fixture(params=[False, True], ids=["all_keys", "masked"])
def mask(request, case, tester) -> Tensor | None:
    if request.param and not case.takes_mask:
        pytest.skip("takes no key mask")
    return tester.mask if request.param else None


def test_oracle(case, mask, backend, chunk, tester):
    layer, inputs = tester.make(case, backend=backend, chunk_size=chunk), tester.draw(case)
    leaves = [*inputs, *layer.parameters()]
    output = case.call(layer, inputs, mask)
    looped = tester.looped(case, layer, inputs, mask)
    torch.testing.assert_close(output, looped, rtol=1e-11, atol=1e-11)
    got, expected = tester.derivatives(output, leaves), tester.derivatives(looped, leaves)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_first_and_second_derivatives(case, backend, chunk, tester):
    layer, inputs = tester.make(case, backend=backend, chunk_size=chunk), tester.draw(case, 2)
    some = tester.mask[:2] if case.takes_mask else None

    def function(*tensors):
        return case.call(layer, tensors, some)

    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_forward_mode_equals_reverse_mode(case, mask, backend, chunk, tester):
    layer, inputs = tester.make(case, backend=backend, chunk_size=chunk), tester.draw(case)
    function = lambda *tensors: case.call(layer, tensors, mask)  # noqa: E731
    tangents = [torch.randn_like(t) for t in inputs]
    output, pushed = torch.func.jvp(function, tuple(inputs), tuple(tangents))
    weight = torch.randn_like(output)
    pulled = torch.autograd.grad((function(*inputs) * weight).sum(), inputs)
    by_reverse = sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True))
    torch.testing.assert_close((pushed * weight).sum(), by_reverse, rtol=1e-10, atol=1e-12)


def test_hessian(case, backend, chunk, tester):
    layer = tester.make(case, backend=backend, chunk_size=chunk)
    inputs = [t.detach() for t in tester.draw(case, 1)]

    def loss(first):
        tensors = [first, *inputs[1:]]
        return case.call(layer, tensors, tester.mask[:1] if case.takes_mask else None).pow(3).sum()

    func = torch.func
    expected = func.jacrev(func.jacrev(loss))(inputs[0])
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(func.hessian(loss)(inputs[0]), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(func.jacfwd(func.jacfwd(loss))(inputs[0]), expected, rtol=1e-10, atol=1e-10)


def test_vmap(case, mask, backend, chunk, tester):
    layer, inputs = (
        tester.make(case, backend=backend, chunk_size=chunk),
        [t.detach() for t in tester.draw(case)],
    )

    def sample(tensors, hidden):
        one = [t.unsqueeze(0) for t in tensors]
        return case.call(layer, one, None if hidden is None else hidden.unsqueeze(0)).squeeze(0)

    got = torch.func.vmap(sample, in_dims=(0, None if mask is None else 0))(inputs, mask)
    torch.testing.assert_close(got, case.call(layer, inputs, mask), rtol=1e-11, atol=1e-12)


def test_per_sample_gradients(case, backend, chunk, tester):
    layer, inputs = (
        tester.make(case, backend=backend, chunk_size=chunk),
        [t.detach() for t in tester.draw(case)],
    )
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, tensors):
        class Call(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self):
                return case.call(self.layer, [t.unsqueeze(0) for t in tensors], None).square().sum()

        renamed = {f"layer.{name}": p for name, p in parameters.items()}
        return torch.func.functional_call(Call(), renamed, ())

    if not parameters:
        pytest.skip("has no parameters")
    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    for b in range(3):
        single = case.call(layer, [t[b : b + 1] for t in inputs], None).square().sum()
        expected = torch.autograd.grad(single, list(layer.parameters()))
        for name, grad in zip(parameters, expected, strict=True):
            torch.testing.assert_close(got[name][b], grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_masked_values_reach_nothing(case, backend, chunk, poison, tester):
    if not case.hides:
        pytest.skip("has no input of keys alone")
    layer = tester.make(case, backend=backend, chunk_size=chunk)
    results = []
    for filler in (0.0, poison):
        inputs = [t.detach() for t in tester.draw(case)]
        for i in case.hides:
            hidden = tester.mask.view(*tester.mask.shape, *[1] * (inputs[i].dim() - 2))
            inputs[i] = inputs[i].masked_fill(hidden, filler)
        leaves = [*(t.requires_grad_() for t in inputs), *layer.parameters()]
        output = case.call(layer, inputs, tester.mask)
        results.append([output, *tester.derivatives(output, leaves)])
        for i in case.hides:
            assert results[-1][1 + i][tester.mask].count_nonzero() == 0
    for clean, poisoned in zip(*results, strict=True):
        assert poisoned.isfinite().all()
        assert torch.equal(clean, poisoned)


def test_masked_tokens_of_a_layer_reach_no_other_token(backend, chunk, tester):
    case = tester.cases["layer"]
    layer = tester.make(case, backend=backend, chunk_size=chunk)
    (tokens,) = (t.detach() for t in tester.draw(case))
    clean = case.call(layer, [tokens], tester.mask)
    poisoned = case.call(layer, [tokens.masked_fill(tester.mask.unsqueeze(-1), torch.nan)], tester.mask)
    assert torch.equal(clean[~tester.mask], poisoned[~tester.mask])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, backend, chunk, dtype, tester):
    layer = tester.make(case, torch.float32, backend=backend, chunk_size=chunk)
    half = copy.deepcopy(layer).to(dtype)
    inputs = tester.draw(case, dtype=dtype)
    output = case.call(half, inputs, None)
    assert output.dtype == dtype
    wide = case.call(layer, [t.detach().float() for t in inputs], None)
    error = (output.float() - wide).norm() / wide.norm()
    assert error < 8 * torch.finfo(dtype).eps
    output.float().square().sum().backward()
    for tensor in (*inputs, *half.parameters()):
        assert tensor.grad.dtype == dtype
        assert tensor.grad.isfinite().all()


def test_float64_is_float64(case, backend, tester):
    layer = tester.make(case, backend=backend)
    assert case.call(layer, tester.draw(case), None).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_without_graph_breaks(case, chunk, mode, tester):
    if not case.compiles:
        pytest.skip("cannot be compiled as a whole")
    layer = tester.make(case, chunk_size=chunk, dropout=0.3).train()
    some = tester.mask if case.takes_mask else None
    torch._dynamo.reset()

    def function(*inputs):
        return case.call(layer, inputs, some)

    compiled = torch.compile(function, fullgraph=True, backend=mode)
    leaves = [*tester.draw(case), *layer.parameters()]
    results = []
    for run in (function, compiled):
        torch.manual_seed(5)
        # Inductor has a random stream of its own.
        tester.configure(layer, dropout=0.3 if mode == "aot_eager" else 0.0)
        output = run(*leaves[: len(case.shapes)])
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deep", "pickle"]
)
def test_copies(case, mask, copied, tester):
    layer, inputs = tester.make(case, chunk_size=3, backend="torch"), tester.draw(case)
    output = case.call(layer, inputs, mask)  # fills whatever a layer remembers
    twin = copied(layer)
    assert torch.equal(case.call(twin, inputs, mask), output)
    assert repr(twin) == repr(layer)
    if not list(twin.parameters()):
        return
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(case.call(layer, inputs, mask), output)


def test_every_parameter_gets_a_gradient(case, backend, chunk, tester):
    layer = tester.make(case, backend=backend, chunk_size=chunk)
    case.call(layer, tester.draw(case), None).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        if name.endswith(("k_proj.bias", "lin_key.bias")):
            continue  # adds the same number to every score of a target: the softmax does not see it
        assert parameter.grad.abs().max() > 1e-6, name


def test_dropout_is_the_same_on_every_backend(case, mask, backend, tester):
    results = []
    for name, chunk in (("reference", None), (backend, None), (backend, 3)):
        layer = tester.make(case, backend=name, chunk_size=chunk, dropout=0.4).train()
        inputs = tester.draw(case)
        torch.manual_seed(31)
        output = case.call(layer, inputs, mask)
        results.append([output, *tester.derivatives(output, [*inputs, *layer.parameters()])])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-9, atol=1e-9)
    layer = tester.configure(tester.make(case), dropout=0.4)
    assert not torch.allclose(case.call(layer, tester.draw(case), mask), results[0][0])  # eval drops nothing


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_lifted_messages_equal_the_fused_call(case, mask, backend, chunk, dropout, tester):
    fused = tester.make(case, backend=backend, chunk_size=chunk, dropout=dropout).train()
    lifted = copy.deepcopy(fused)
    seen = []
    for module in lifted.modules():
        if isinstance(module, EdgeAttention):
            module.register_message_forward_hook(lambda *_: seen.append(1))
    results = []
    for layer in (fused, lifted):
        inputs = tester.draw(case)
        torch.manual_seed(37)
        output = case.call(layer, inputs, mask)
        results.append(
            [output, *tester.derivatives(output, [*inputs, *layer.parameters()]), torch.get_rng_state()]
        )
    assert len(seen) == sum(isinstance(m, EdgeAttention) for m in lifted.modules())
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_random_state(case, tester):
    layer, inputs = tester.make(case), tester.draw(case)
    torch.manual_seed(41)
    fresh = torch.get_rng_state()
    case.call(layer, inputs, None)
    tester.configure(layer, dropout=0.5)
    case.call(layer, inputs, None)  # eval
    tester.configure(layer.train(), dropout=0.0)
    case.call(layer, inputs, None).sum().backward()
    assert torch.equal(torch.get_rng_state(), fresh)


def test_repr(case, tester):
    assert type(tester.make(case)).__name__ in repr(tester.make(case))
