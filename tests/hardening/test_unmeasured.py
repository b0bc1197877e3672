"""NaN and infinities where nothing was measured: what they may touch, and that they touch nothing else.

An entry of an input is poisoned, and the results are compared with those of a clean run: outputs that do not
depend on it are the same to the bit, and a loss of those outputs has the clean run's derivatives.
"""

from __future__ import annotations

import pytest
import torch

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorTransformerLayer
from pyg_kpnn.ops import EdgeLayout, edge_attention

POISONS = [torch.nan, torch.inf, -torch.inf]
SAMPLE = 1


@pytest.fixture(params=[False, True], ids=["all_keys", "masked"])
def mask(request, case, tester):
    if request.param and not case.takes_mask:
        pytest.skip("takes no key mask")
    return tester.mask if request.param else None


def poisoned(inputs, place, sample, entry, poison):
    """Fresh leaves, one of them with ``poison`` in one entry of one sample (None: in all of it)."""
    leaves = [t.detach().clone() for t in inputs]
    spot = leaves[place][sample] if entry is None else leaves[place][sample, entry]
    spot.fill_(poison)
    return [t.requires_grad_() for t in leaves]


def clean_outputs(case, tester, mask, place, entry, output):
    """Which outputs do not depend on the poisoned entry, (B,) for pooled layers, else (B, N)."""
    clean = torch.ones(output.shape[: 1 if case.pooled else 2], dtype=torch.bool)
    hidden = set() if mask is None else set(mask[SAMPLE].nonzero().flatten().tolist())
    if place in case.hides and entry in hidden:
        return clean
    rows = tester.touched(case, place, entry, hidden)
    if case.pooled:
        clean[SAMPLE] = not rows - hidden
    else:
        clean[SAMPLE, list(rows)] = False
    return clean


def compare(case, tester, layer, inputs, mask, place, entry, poison, orders=2):
    before, after = (
        [t.detach().requires_grad_() for t in inputs],
        poisoned(inputs, place, SAMPLE, entry, poison),
    )
    outputs = [case.call(layer, leaves, mask) for leaves in (before, after)]
    clean = clean_outputs(case, tester, mask, place, entry, outputs[0])
    assert torch.equal(outputs[0][clean], outputs[1][clean])
    results = []
    for leaves, output in zip((before, after), outputs, strict=True):
        every = [*leaves, *layer.parameters()]
        # one fixed loss, in which the touched outputs have no part
        loss = tester.loss(output[clean])
        grads = tester.derivatives(output[clean], every) if orders == 2 else torch.autograd.grad(loss, every)
        grads = list(grads)
        for index in range(place, len(grads), len(every)):
            spot = grads[index][SAMPLE, entry]
            assert spot.isfinite().all()
            grads[index] = grads[index].clone()
            grads[index][SAMPLE, entry] = 0.0
        results.append(grads)
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    return outputs[1], clean


def test_one_token_reaches_what_its_edges_reach_and_nothing_else(case, mask, backend, tester):
    layer, inputs = tester.make(case, backend=backend), tester.draw(case)
    for place, tensor in enumerate(inputs):
        for entry in range(tensor.shape[1]):
            tester.configure(layer, chunk_size=(None, 3)[entry % 2])
            poison = POISONS[entry % 3]
            compare(case, tester, layer, inputs, mask, place, entry, poison, orders=1 + entry % 2)


@pytest.mark.parametrize("name", ["operator", "self", "conv"])
def test_messages_that_somebody_watches_stay_apart_too(name, tester):
    case = tester.cases[name]
    layer, inputs = tester.make(case), tester.draw(case)
    for module in layer.modules():
        if isinstance(module, EdgeAttention):
            module.register_message_forward_hook(lambda *_: None)
    mask = tester.mask if case.takes_mask else None
    for place, tensor in enumerate(inputs):
        for entry in range(tensor.shape[1]):
            compare(case, tester, layer, inputs, mask, place, entry, POISONS[entry % 3])


def test_unmasked_nan_stays_visible(case, mask, backend, tester):
    layer, inputs = tester.make(case, backend=backend), tester.draw(case)
    hidden = set() if mask is None else set(mask[SAMPLE].nonzero().flatten().tolist())
    live = {t for s, t in case.edges.T.tolist() if s not in hidden}
    for place, tensor in enumerate(inputs):
        for entry in range(tensor.shape[1]):
            output = case.call(layer, poisoned(inputs, place, SAMPLE, entry, torch.nan), mask)
            clean = clean_outputs(case, tester, mask, place, entry, output)
            if not case.pooled:  # a query without a live source is not read
                dead = [t for t in range(output.shape[1]) if t not in live]
                clean[:, dead] |= (
                    output[:, dead].flatten(2).isfinite().all(-1)
                    if output.dim() > 2
                    else (output[:, dead].isfinite())
                )
            assert output[~clean].isnan().all()
            assert output[clean].isfinite().all()


@pytest.mark.parametrize(("poison", "chunk"), [(torch.nan, None), (torch.inf, 3)])
def test_one_sample_reaches_no_other(case, mask, backend, chunk, tester, poison):
    layer, inputs = tester.make(case, backend=backend, chunk_size=chunk), tester.draw(case)
    others = [0, 2]
    results = []
    for leaves in ([t.detach().requires_grad_() for t in inputs], None):
        if leaves is None:
            leaves = [t.detach().clone() for t in inputs]
            for t in leaves:
                t[SAMPLE] = poison
                t.requires_grad_()
        output, (_, weights) = case.call(layer, leaves, mask), case.weights(layer, leaves, mask)
        weights = weights if isinstance(weights, (list, tuple)) else [weights]
        weights = [w[others] for w in weights if w.is_floating_point()]
        grads = tester.derivatives(output[others], [*leaves, *layer.parameters()])
        for index, grad in enumerate(grads):
            if index % (len(leaves) + len(list(layer.parameters()))) < len(leaves):
                assert grad[SAMPLE].count_nonzero() == 0
        results.append([output[others], *weights, *grads])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def test_forward_mode_stays_apart_too(case, mask, backend, tester):
    layer, inputs = tester.make(case, backend=backend), [t.detach() for t in tester.draw(case)]
    tangents = tuple(torch.randn_like(t) for t in inputs)
    for place, tensor in enumerate(inputs):
        entry = tensor.shape[1] - 1  # in every graph of the table a node that few read
        results = []
        for poison in (None, torch.nan):
            primals = inputs if poison is None else poisoned(inputs, place, SAMPLE, entry, poison)
            primals = tuple(t.detach() for t in primals)
            output, slope = torch.func.jvp(lambda *t: case.call(layer, t, mask), primals, tangents)
            clean = clean_outputs(case, tester, mask, place, entry, output)
            results.append([output[clean], slope[clean]])
        torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-12)


class Called(torch.nn.Module):
    """A layer of the table as a function of its parameters and inputs."""

    def __init__(self, case, layer, mask):
        super().__init__()
        self.case, self.layer, self.mask = case, layer, mask

    def forward(self, *leaves):
        return self.case.call(self.layer, list(leaves), self.mask)


def test_forward_over_reverse_stays_apart_too(case, mask, tester):
    layer, inputs = tester.make(case), [t.detach() for t in tester.draw(case)]
    called, others = Called(case, layer, mask), [0, 2]
    state = {name: parameter.detach() for name, parameter in called.named_parameters()}
    lost = [t.clone() for t in inputs]
    for tensor in lost:
        tensor[SAMPLE] = torch.nan

    def loss(state, *leaves):
        return tester.loss(torch.func.functional_call(called, state, leaves)[others])

    slopes = torch.func.grad(loss, argnums=tuple(range(1 + len(inputs))))
    along = {name: torch.ones_like(parameter) for name, parameter in state.items()}
    products = []
    for leaves in (inputs, lost):
        _, (of_state, *of_leaves) = torch.func.jvp(
            slopes, (state, *leaves), (along, *map(torch.ones_like, leaves))
        )
        assert all((moved[SAMPLE] == 0).all() for moved in of_leaves)
        products.append([*of_state.values(), *of_leaves])
    torch.testing.assert_close(products[1], products[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("poison", POISONS)
def test_a_masked_token_that_asks_has_a_row_of_its_own(backend, chunk, tester, poison):
    # As with nn.MultiheadAttention its output is NaN. There, so is then the gradient of every weight.
    for name in ("self", "layer"):
        case = tester.cases[name]
        layer, inputs = tester.make(case, backend=backend, chunk_size=chunk), tester.draw(case)
        for entry in tester.mask[SAMPLE].nonzero().flatten().tolist():
            output, clean = compare(case, tester, layer, inputs, tester.mask, 0, entry, poison)
            assert (~clean).nonzero().tolist() == [[SAMPLE, entry]]
            assert not output[~clean].isfinite().any()


def test_the_dense_layer_of_torch_loses_every_gradient_here():
    dense = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    x, mask = torch.randn(2, 5, 6), torch.zeros(2, 5, dtype=torch.bool)
    x[1, 3], mask[1, 3] = torch.nan, True
    dense(x, x, x, mask, need_weights=False)[0][~mask].square().sum().backward()
    assert dense.in_proj_weight.grad.isnan().all()


def test_masked_keys_are_gone_before_a_projection_of_another_kind(backend, tester):
    # With a hook it is called as it is, and torch's gradient of its weight multiplies by what came in.
    case = tester.cases["packed"]
    layer = tester.make(case, backend=backend)
    for projection in (layer.k_proj, layer.v_proj):
        projection.register_forward_hook(lambda *_: None)
    query, *keys = (t.detach() for t in tester.draw(case))
    keys = [t.masked_fill(tester.mask.unsqueeze(-1), torch.nan) for t in keys]
    case.call(layer, [query, *keys], tester.mask).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("training", [False, True])
def test_a_key_that_nobody_reads_may_hold_anything(backend, chunk, training):
    # Every output is finite and part of the loss: NaN gradients would come without a warning.
    layer = PackedMultiheadAttention([0, 1, 1], [0, 0, 1], 3, 3, 6, 2, dropout=0.5, chunk_size=chunk)
    layer.backend = backend
    layer.train(training)
    query, key = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    key[:, 2] = torch.nan  # no edge leaves key 2
    query[:, 2] = torch.nan  # and none ends in query 2
    output, _ = layer(query, key, key)
    assert output.isfinite().all()
    output.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("poison", POISONS)
def test_a_query_with_no_live_key_may_hold_anything(backend, chunk, poison):
    layer = PackedMultiheadAttention([0, 1, 1], [0, 0, 1], 2, 2, 6, 2, chunk_size=chunk)
    layer.backend = backend
    query, key = torch.randn(2, 2, 6), torch.randn(2, 2, 6)
    query[1, 1] = poison
    mask = torch.tensor([[False, False], [False, True]])
    output, _ = layer(query, key, key, mask)
    assert torch.equal(output[1, 1], layer.out_proj.bias)
    output.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("what", ["edge_features", "bias"])
@pytest.mark.parametrize("poison", POISONS)
def test_an_edge_from_a_masked_key_may_carry_anything(backend, chunk, what, poison):
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 0], [1, 1, 1, 0]]), 3, 2)
    gen = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 1, 3, generator=gen, dtype=torch.float64) for n in (2, 3, 3))
    mask = torch.tensor([[False, True, False], [False, True, False]])
    results = []
    for filler in (0.0, poison):
        extra = torch.randn((2, 4, 1, 3) if what == "edge_features" else (2, 4, 1), generator=gen).double()
        extra = torch.ones_like(extra)
        extra[:, 1] = filler
        leaves = [t.clone().requires_grad_() for t in (query, key, value, extra)]
        options = {what: leaves[3], "key_mask": mask, "chunk_size": chunk, "backend": backend}
        mixed, weights = edge_attention(*leaves[:3], layout, **options, need_weights=True)
        loss = mixed.square().sum() + weights.square().sum()
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
        assert grads[3][:, 1].count_nonzero() == 0
        results.append([mixed, weights, *grads, *second])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_backward_stays_apart_too(tester):
    case = tester.cases["self"]
    layer, inputs = tester.make(case), tester.draw(case)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: case.call(layer, t, tester.mask), fullgraph=True, backend="aot_eager")
    clean = tester.mask.logical_not()
    grads = []
    for call in (lambda *t: case.call(layer, t, tester.mask), compiled):
        leaves = [inputs[0].detach().masked_fill(tester.mask.unsqueeze(-1), torch.nan).requires_grad_()]
        output = call(*leaves)
        assert output[clean].isfinite().all()
        grads.append(torch.autograd.grad(tester.loss(output[clean]), [*leaves, *layer.parameters()]))
        assert all(grad.isfinite().all() for grad in grads[-1])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_in_other_dtypes_too(case, backend, tester, dtype):
    layer, inputs = tester.make(case, dtype, backend=backend), tester.draw(case, dtype=dtype)
    leaves = poisoned(inputs, 0, SAMPLE, None, torch.nan)
    output = case.call(layer, leaves, tester.mask if case.takes_mask else None)[[0, 2]]
    output.float().square().sum().backward()
    for tensor in (*leaves, *layer.parameters()):
        assert tensor.grad.isfinite().all()


def test_under_autocast_too(tester):
    for name in ("conv", "layer"):
        case = tester.cases[name]
        layer, inputs = tester.make(case, torch.float32), tester.draw(case, dtype=torch.float32)
        leaves = poisoned(inputs, 0, SAMPLE, None, torch.nan)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = case.call(layer, leaves, None)[[0, 2]]
        output.float().square().sum().backward()
        for tensor in (*leaves, *layer.parameters()):
            assert tensor.grad.dtype == torch.float32
            assert tensor.grad.isfinite().all()


@pytest.mark.parametrize(
    ("query", "keys", "mixed", "grads"),
    [
        # scores -inf and 0
        (1.0, [-torch.inf, 0.0], 3.0, [[0.0], [0.0, 0.0], [0.0, 1.0]]),
        # scores -inf and -inf: nothing is live
        (-torch.inf, [1.0, 2.0], 0.0, [[0.0], [0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_infinities_that_end_in_weight_zero_send_nothing(backend, chunk, query, keys, mixed, grads):
    # The output is finite, and so must be what comes back.
    layout = EdgeLayout(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    numbers = ([query], keys, [2.0, 3.0])
    leaves = [torch.tensor(t).view(1, -1, 1, 1).requires_grad_() for t in numbers]
    found, _ = edge_attention(*leaves, layout, backend=backend, chunk_size=chunk)
    assert found.item() == mixed
    back = torch.autograd.grad(found.sum(), leaves)
    assert [g.flatten().tolist() for g in back] == grads


@pytest.mark.parametrize("poison", POISONS)
def test_one_channel_takes_its_whole_row_along(backend, poison):
    # Node d has no source: nothing but the row itself spreads what one of its channels holds.
    graph = PriorGraph.from_edges([("a", "b"), ("d", "b")])
    layer = PriorTransformerLayer(graph, 6, 2, add_self_loops=False)
    layer.attention.backend = backend
    tokens = torch.randn(2, 3, 6)
    tokens[1, 2, 4] = poison
    output, _ = layer(tokens)
    assert output[1, 2].isnan().sum() >= 5  # the infinity itself may still be one
    assert not output[1, 2].isfinite().any()
    assert output[0].isfinite().all()
