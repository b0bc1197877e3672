"""Every layer through one matrix of checks: oracle, derivatives, transforms, dtypes, compile, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import (
    EdgeAttention,
    PackedMultiheadAttention,
    PriorAttentionConv,
    PriorTransformer,
    PriorTransformerLayer,
)

HEADS, WIDTH = 2, 3
EMBED = HEADS * WIDTH
# 7 sources, 5 targets; target 3 has no source, source 6 feeds nobody.
BIPARTITE = torch.tensor([[4, 0, 1, 2, 5, 0, 3, 3, 2], [0, 0, 1, 4, 4, 2, 2, 1, 0]])
# 7 nodes; 0 -> 1 twice, a loop at 2, node 6 has no edge into it.
NODES = torch.tensor([[0, 3, 0, 2, 5, 6, 4, 4, 1], [1, 1, 1, 2, 2, 3, 3, 0, 5]])
GRAPH = PriorGraph.from_edges(
    [
        ("a", "b"),
        ("c", "b"),
        ("b", "b"),
        ("b", "c"),
        ("d", "c"),
        ("e", "f"),
        ("a", "f"),
        ("g", "a"),
        ("f", "g"),
    ],
    sign=[1, -1, 0, 1, 1, -1, 1, 0, 1],
)


@dataclass(frozen=True)
class Case:
    """A layer, how to call it on (inputs, key mask), and what it is for one sample."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]  # of the inputs, without the batch axis
    call: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    takes_mask: bool = True
    keys: tuple[int, ...] = ()  # inputs that hold keys or values and nothing else


def split(tensor: Tensor) -> Tensor:
    return tensor.unflatten(-1, (HEADS, -1))


def operator_oracle(attend, layer, inputs, mask):
    return attend(*inputs, BIPARTITE, mask)[0]


def packed_oracle(attend, layer, inputs, mask):
    query, key, value = inputs
    q, k, v = (split(p(t)) for p, t in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value)))
    return layer.out_proj(attend(q, k, v, BIPARTITE, mask)[0].flatten(-2))


def conv_oracle(attend, layer, inputs, mask):
    x, edge_attr, bias = inputs
    missing = torch.tensor([i for i in range(7) if i != 2])
    edges = torch.cat([NODES, missing.expand(2, -1)], dim=1)
    features = split(torch.cat([layer.lin_edge(edge_attr), x.new_zeros(6, EMBED)]))
    bias = torch.cat([bias, x.new_zeros(6, HEADS)])
    q, k, v = (split(lin(x)) for lin in (layer.lin_query, layer.lin_key, layer.lin_value))
    return attend(q, k, v, edges, None, bias, features)[0].flatten(-2) + layer.lin_skip(x)


def graph_edges(layer: PackedMultiheadAttention) -> Tensor:
    loops = torch.tensor([i for i in range(7) if i != 1])  # b has its own
    edges = torch.cat([GRAPH.edge_index, loops.expand(2, -1)], dim=1)
    assert torch.equal(torch.stack([layer.source_index, layer.target_index]), edges)
    return edges


def layer_oracle(attend, layer, inputs, mask, bias=None):
    (tokens,) = inputs
    normed, inner = layer.attention_norm(tokens), layer.attention
    q, k, v = (split(p(normed)) for p in (inner.q_proj, inner.k_proj, inner.v_proj))
    mixed = attend(q, k, v, graph_edges(inner), mask, bias)[0]
    tokens = tokens + inner.out_proj(mixed.flatten(-2))
    return tokens + layer.feedforward(layer.feedforward_norm(tokens))


def transformer_oracle(attend, model, inputs, mask):
    (x,) = inputs
    known = 1.0 if mask is None else (~mask).to(x.dtype)
    tokens = model.name_embedding + (x * known).unsqueeze(-1) * model.value_weight
    classes = torch.cat([GRAPH.sign.long() + 1, torch.full((6,), 3)])
    for index, layer in enumerate(model.layers):
        tokens = layer_oracle(attend, layer, (tokens,), mask, model.sign_bias[index][classes])
    tokens = model.norm(tokens)
    live = range(7) if mask is None else [i for i in range(7) if not mask[i]]
    return model.head(torch.stack([tokens[i] for i in live]).mean(0))


CASES = {
    "operator": Case(
        EdgeAttention,
        ((5, HEADS, WIDTH), (7, HEADS, WIDTH), (7, HEADS, WIDTH)),
        lambda layer, inputs, mask: layer(*inputs, BIPARTITE, key_mask=mask)[0],
        operator_oracle,
        keys=(1, 2),
    ),
    "packed": Case(
        lambda: PackedMultiheadAttention(BIPARTITE[0], BIPARTITE[1], 5, 7, EMBED, HEADS),
        ((5, EMBED), (7, EMBED), (7, EMBED)),
        lambda layer, inputs, mask: layer(*inputs, key_padding_mask=mask)[0],
        packed_oracle,
        keys=(1, 2),
    ),
    "conv": Case(
        lambda: PriorAttentionConv(4, WIDTH, heads=HEADS, edge_dim=2, add_self_loops=True),
        ((7, 4), (9, 2), (9, HEADS)),
        lambda layer, inputs, mask: layer(inputs[0], NODES, inputs[1], inputs[2]),
        conv_oracle,
        takes_mask=False,
    ),
    "layer": Case(
        lambda: PriorTransformerLayer(GRAPH, EMBED, HEADS, feedforward_dim=5),
        ((7, EMBED),),
        lambda layer, inputs, mask: layer(inputs[0], mask)[0],
        layer_oracle,
    ),
    "transformer": Case(
        lambda: PriorTransformer(
            GRAPH,
            embed_dim=EMBED,
            num_heads=HEADS,
            num_layers=2,
            readout="class",
            num_classes=3,
            edge_bias="sign",
        ),
        ((7,),),
        lambda layer, inputs, mask: layer(inputs[0], mask),
        transformer_oracle,
        keys=(0,),
    ),
}
MASK = torch.tensor(
    [
        [True, False, False, False, True, True, False],
        [False, False, True, False, False, False, False],
        [False, True, False, False, False, True, True],
    ]
)


@pytest.fixture(params=list(CASES))
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture(params=[False, True], ids=["all_keys", "masked"])
def mask(request, case) -> Tensor | None:
    if request.param and not case.takes_mask:
        pytest.skip("takes no key mask")
    return MASK if request.param else None


def make(case: Case, dtype=torch.float64, **settings) -> nn.Module:
    torch.manual_seed(0)
    layer = case.build().to(dtype).eval()
    with torch.no_grad():  # biases start at zero, where a mistake in one would not show
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64).to(dtype))
    return configure(layer, **settings)


def configure(layer: nn.Module, **settings) -> nn.Module:
    operators = [m for m in layer.modules() if isinstance(m, EdgeAttention)]
    assert operators
    for operator in operators:
        for name, value in settings.items():
            assert hasattr(operator, name)
            setattr(operator, name, value)
    return layer


def draw(case: Case, batch: int = 3, dtype=torch.float64) -> list[Tensor]:
    gen = torch.Generator().manual_seed(1)
    return [
        torch.randn(batch, *shape, generator=gen, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in case.shapes
    ]


def derivatives(output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """First derivatives of a loss, and the derivative of their squared norm."""
    weight = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).view_as(output)
    loss = (output.square() * weight).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    norm = sum(g.square().sum() for g in first)
    return [*first, *torch.autograd.grad(norm, leaves, materialize_grads=True)]


def test_oracle(case, mask, backend, chunk, attend):
    layer, inputs = make(case, backend=backend, chunk_size=chunk), draw(case)
    leaves = [*inputs, *layer.parameters()]
    output = case.call(layer, inputs, mask)
    looped = torch.stack(
        [
            case.oracle(attend, layer, [t[b] for t in inputs], None if mask is None else mask[b])
            for b in range(3)
        ]
    )
    torch.testing.assert_close(output, looped, rtol=1e-11, atol=1e-11)
    got, expected = derivatives(output, leaves), derivatives(looped, leaves)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_first_and_second_derivatives(case, backend, chunk):
    layer, inputs = make(case, backend=backend, chunk_size=chunk), draw(case, 2)
    some = MASK[:2] if case.takes_mask else None

    def function(*tensors):
        return case.call(layer, tensors, some)

    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_forward_mode_equals_reverse_mode(case, mask, backend, chunk):
    layer, inputs = make(case, backend=backend, chunk_size=chunk), draw(case)
    function = lambda *tensors: case.call(layer, tensors, mask)  # noqa: E731
    tangents = [torch.randn_like(t) for t in inputs]
    output, pushed = torch.func.jvp(function, tuple(inputs), tuple(tangents))
    weight = torch.randn_like(output)
    pulled = torch.autograd.grad((function(*inputs) * weight).sum(), inputs)
    by_reverse = sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True))
    torch.testing.assert_close((pushed * weight).sum(), by_reverse, rtol=1e-10, atol=1e-12)


def test_hessian(case, backend, chunk):
    layer = make(case, backend=backend, chunk_size=chunk)
    inputs = [t.detach() for t in draw(case, 1)]

    def loss(first):
        tensors = [first, *inputs[1:]]
        return case.call(layer, tensors, MASK[:1] if case.takes_mask else None).pow(3).sum()

    func = torch.func
    expected = func.jacrev(func.jacrev(loss))(inputs[0])
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(func.hessian(loss)(inputs[0]), expected, rtol=1e-10, atol=1e-10)
    if any(isinstance(m, nn.LayerNorm) for m in layer.modules()):
        return  # forward over forward through torch's own layer norm is wrong (torch 2.13)
    torch.testing.assert_close(func.jacfwd(func.jacfwd(loss))(inputs[0]), expected, rtol=1e-10, atol=1e-10)


def test_vmap(case, mask, backend, chunk):
    layer, inputs = make(case, backend=backend, chunk_size=chunk), [t.detach() for t in draw(case)]

    def sample(tensors, hidden):
        one = [t.unsqueeze(0) for t in tensors]
        return case.call(layer, one, None if hidden is None else hidden.unsqueeze(0)).squeeze(0)

    got = torch.func.vmap(sample, in_dims=(0, None if mask is None else 0))(inputs, mask)
    torch.testing.assert_close(got, case.call(layer, inputs, mask), rtol=1e-11, atol=1e-12)


def test_per_sample_gradients(case, backend, chunk):
    layer, inputs = make(case, backend=backend, chunk_size=chunk), [t.detach() for t in draw(case)]
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
def test_masked_values_reach_nothing(case, backend, chunk, poison):
    if not case.keys:
        pytest.skip("has no input of keys alone")
    layer = make(case, backend=backend, chunk_size=chunk)
    results = []
    for filler in (0.0, poison):
        inputs = [t.detach() for t in draw(case)]
        for i in case.keys:
            hidden = MASK.view(*MASK.shape, *[1] * (inputs[i].dim() - 2))
            inputs[i] = inputs[i].masked_fill(hidden, filler)
        leaves = [*(t.requires_grad_() for t in inputs), *layer.parameters()]
        output = case.call(layer, inputs, MASK)
        results.append([output, *derivatives(output, leaves)])
        for i in case.keys:
            assert results[-1][1 + i][MASK].count_nonzero() == 0
    for clean, poisoned in zip(*results, strict=True):
        assert poisoned.isfinite().all()
        assert torch.equal(clean, poisoned)


def test_masked_tokens_of_a_layer_reach_no_other_token(backend, chunk):
    case = CASES["layer"]
    layer = make(case, backend=backend, chunk_size=chunk)
    (tokens,) = (t.detach() for t in draw(case))
    clean = case.call(layer, [tokens], MASK)
    poisoned = case.call(layer, [tokens.masked_fill(MASK.unsqueeze(-1), torch.nan)], MASK)
    assert torch.equal(clean[~MASK], poisoned[~MASK])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, backend, chunk, dtype):
    layer = make(case, torch.float32, backend=backend, chunk_size=chunk)
    half = copy.deepcopy(layer).to(dtype)
    inputs = draw(case, dtype=dtype)
    output = case.call(half, inputs, None)
    assert output.dtype == dtype
    wide = case.call(layer, [t.detach().float() for t in inputs], None)
    error = (output.float() - wide).norm() / wide.norm()
    assert error < 8 * torch.finfo(dtype).eps
    output.float().square().sum().backward()
    for tensor in (*inputs, *half.parameters()):
        assert tensor.grad.dtype == dtype
        assert tensor.grad.isfinite().all()


def test_float64_is_float64(case, backend):
    layer = make(case, backend=backend)
    assert case.call(layer, draw(case), None).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_without_graph_breaks(case, chunk, mode):
    layer = make(case, chunk_size=chunk, dropout=0.3).train()
    some = MASK if case.takes_mask else None
    torch._dynamo.reset()

    def function(*inputs):
        return case.call(layer, inputs, some)

    compiled = torch.compile(function, fullgraph=True, backend=mode)
    leaves = [*draw(case), *layer.parameters()]
    results = []
    for run in (function, compiled):
        torch.manual_seed(5)
        # Inductor has a random stream of its own.
        configure(layer, dropout=0.3 if mode == "aot_eager" else 0.0)
        output = run(*leaves[: len(case.shapes)])
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deep", "pickle"]
)
def test_copies(case, mask, copied):
    layer, inputs = make(case, chunk_size=3, backend="torch"), draw(case)
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


def test_every_parameter_gets_a_gradient(case, backend, chunk):
    layer = make(case, backend=backend, chunk_size=chunk)
    case.call(layer, draw(case), None).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        if name.endswith(("k_proj.bias", "lin_key.bias")):
            continue  # adds the same number to every score of a target: the softmax does not see it
        assert parameter.grad.abs().max() > 1e-6, name


def test_dropout_is_the_same_on_every_backend(case, mask, backend):
    results = []
    for name, chunk in (("reference", None), (backend, None), (backend, 3)):
        layer = make(case, backend=name, chunk_size=chunk, dropout=0.4).train()
        inputs = draw(case)
        torch.manual_seed(31)
        output = case.call(layer, inputs, mask)
        results.append([output, *derivatives(output, [*inputs, *layer.parameters()])])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-9, atol=1e-9)
    layer = configure(make(case), dropout=0.4)
    assert not torch.allclose(case.call(layer, draw(case), mask), results[0][0])  # eval drops nothing


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_lifted_messages_equal_the_fused_call(case, mask, backend, chunk, dropout):
    fused = make(case, backend=backend, chunk_size=chunk, dropout=dropout).train()
    lifted = copy.deepcopy(fused)
    seen = []
    for module in lifted.modules():
        if isinstance(module, EdgeAttention):
            module.register_message_forward_hook(lambda *_: seen.append(1))
    results = []
    for layer in (fused, lifted):
        inputs = draw(case)
        torch.manual_seed(37)
        output = case.call(layer, inputs, mask)
        results.append([output, *derivatives(output, [*inputs, *layer.parameters()]), torch.get_rng_state()])
    assert len(seen) == sum(isinstance(m, EdgeAttention) for m in lifted.modules())
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_random_state(case):
    layer, inputs = make(case), draw(case)
    torch.manual_seed(41)
    fresh = torch.get_rng_state()
    case.call(layer, inputs, None)
    configure(layer, dropout=0.5)
    case.call(layer, inputs, None)  # eval
    configure(layer.train(), dropout=0.0)
    case.call(layer, inputs, None).sum().backward()
    assert torch.equal(torch.get_rng_state(), fresh)


def test_repr(case):
    assert type(make(case)).__name__ in repr(make(case))
