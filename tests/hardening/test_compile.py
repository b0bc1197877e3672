"""torch.compile: one graph, no other program for other numbers of samples or edges, nothing unchecked."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from pyg_kpnn import PriorGraphError
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv
from pyg_kpnn.ops import EdgeLayout, edge_attention

# torch 2.13's own compiler instantiates autograd functions and warns itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

SLOW = pytest.mark.slow
# Equal to no other size in the table of layers: torch takes two sizes that are equal at first for one.
BATCHES = (10, 11, 13, 17)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compilable(case):
    if not case.compiles:
        pytest.skip("cannot be compiled as a whole")
    return case


def programs(function, calls, dynamic, mode="eager"):
    """Number of programs after each call, each compared with the same call without torch.compile."""
    counter = CompileCounterWithBackend(mode)
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
    made = []
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-10, atol=1e-10)
        made.append(counter.frame_count)
    assert not counters["graph_break"]
    return made


def settle(made, dynamic):
    """By default the first size is taken for a constant, and the second for any; with dynamic the first."""
    settled = 0 if dynamic else 1
    return made[settled:] == [made[settled]] * (len(made) - settled)


@pytest.mark.parametrize(
    ("dynamic", "need_weights", "mode"),
    [
        (None, False, "eager"),
        pytest.param(True, True, "eager", marks=SLOW),
        pytest.param(None, True, "eager", marks=SLOW),
        pytest.param(True, False, "eager", marks=SLOW),
        pytest.param(None, True, "inductor", marks=SLOW),
        pytest.param(True, False, "inductor", marks=SLOW),
    ],
)
def test_another_number_of_samples_makes_no_other_program(compilable, tester, dynamic, need_weights, mode):
    case = compilable
    layer, call = tester.make(case), case.weights if need_weights else case.call

    def function(*inputs):
        mask = tester.mask[0].expand(inputs[0].shape[0], -1) if case.takes_mask else None
        return call(layer, inputs, mask)

    calls = [[t.detach() for t in tester.draw(case, batch)] for batch in BATCHES]
    made = programs(function, calls, dynamic, mode)
    assert settle(made, dynamic), made


@pytest.mark.parametrize("backend", ["auto", "torch"])  # the native kernel has no chunks
@pytest.mark.parametrize("dynamic", [None, True], ids=["default", "dynamic"])
def test_training_makes_no_other_program_for_another_number_of_samples(tester, dynamic, backend):
    case = tester.cases["self"]
    layer = tester.make(case, dropout=0.3, chunk_size=4, backend=backend).train()
    counter = CompileCounterWithBackend("aot_eager")

    def function(tokens):
        return case.call(layer, [tokens], None)

    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
    made = []
    for batch in BATCHES:
        (tokens,), gradients = tester.draw(case, batch), []
        for run in (function, compiled):
            torch.manual_seed(3)
            gradients.append(torch.autograd.grad(run(tokens).square().sum(), tokens)[0])
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
        made.append(counter.frame_count)
    assert settle(made, dynamic), made


@pytest.mark.parametrize("width", [2, 3, 8])
def test_training_self_attention_has_the_gradients_of_eager_calls(width):
    # Here the kernel hands back gradients that lie side by side in one tensor, if it needs no padding.
    torch.manual_seed(0)
    layer = PackedMultiheadAttention([0, 1, 2, 0], [1, 2, 0, 2], 3, 3, 2 * width, 2)
    x, gradients = torch.randn(5, 3, 2 * width), []
    compiled = torch.compile(lambda x: layer(x, x, x)[0], backend="aot_eager", fullgraph=True)
    for run in (compiled, lambda x: layer(x, x, x)[0]):
        leaf = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(run(leaf).square().sum(), [leaf, *layer.parameters()]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("options", "dynamic"),
    [
        ({}, None),
        ({"edge_dim": 2}, True),
        pytest.param({}, True, marks=SLOW),
        pytest.param({"edge_dim": 2}, None, marks=SLOW),
        pytest.param({"edge_dim": 2, "add_self_loops": True}, True, marks=SLOW),
        pytest.param({"edge_dim": 2, "add_self_loops": True}, None, marks=SLOW),
    ],
    ids=str,
)
def test_batches_of_other_graphs_make_no_other_program(options, dynamic):
    # A mini-batch of graphs has another number of nodes and of edges every time.
    torch.manual_seed(0)
    conv = PriorAttentionConv(4, 3, heads=2, **options).double()
    calls = []
    for nodes, edges in ((11, 23), (13, 29), (17, 37), (19, 41)):
        attr = torch.randn(edges, 2, dtype=torch.float64) if "edge_dim" in options else None
        x = torch.randn(nodes, 4, dtype=torch.float64)
        calls.append((x, torch.randint(0, nodes, (2, edges)), attr, None, True))
    made = programs(conv, calls, dynamic)
    assert settle(made, dynamic), made


@pytest.mark.parametrize("name", ["packed", "transformer", pytest.param("conv", marks=SLOW)])
def test_a_layer_may_be_called_twice_in_one_program(tester, name):
    # With dynamic=True sizes and numbers such as dropout are variables, which two calls then share.
    case = tester.cases[name]
    layer = tester.make(case, dropout=0.3).train()
    inputs = [t.detach() for t in tester.draw(case, 10)]
    twice = lambda *inputs: (case.call(layer, inputs, None), case.call(layer, inputs, None))  # noqa: E731
    results = []
    for run in (twice, torch.compile(twice, backend="eager", fullgraph=True, dynamic=True)):
        torch.manual_seed(3)
        results.append(run(*inputs))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(*results[0])


@pytest.mark.parametrize(
    "name", ["packed", pytest.param("conv", marks=SLOW), pytest.param("layer", marks=SLOW)]
)
def test_autocast_inside_a_program_is_autocast_outside(tester, name):
    case = tester.cases[name]
    layer = tester.make(case, torch.float32)
    if name == "packed":
        layer.autocast = True
    inputs = [t.detach() for t in tester.draw(case, dtype=torch.float32)]

    def function(*inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return case.call(layer, inputs, None)

    expected = function(*inputs)
    assert expected.dtype == (torch.float32 if name == "layer" else torch.bfloat16)
    found = torch.compile(function, backend="aot_eager", fullgraph=True)(*inputs)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_settings_may_change_after_compiling(tester):
    # They are read when the program is made; another value must make another program.
    case = tester.cases["self"]
    layer = tester.make(case)
    (tokens,) = (t.detach() for t in tester.draw(case))
    compiled = torch.compile(lambda t: case.call(layer, [t], None), backend="eager", fullgraph=True)
    plain = compiled(tokens)
    for name, value in (("chunk_size", 2), ("backend", "torch"), ("dropout", 0.5)):
        setattr(layer, name, value)
        layer.train(name == "dropout")
        torch.manual_seed(1)
        found = compiled(tokens)
        torch.manual_seed(1)
        torch.testing.assert_close(found, case.call(layer, [tokens], None), rtol=1e-12, atol=1e-12)
        assert torch.allclose(found, plain) == (name != "dropout")


# --- what eager calls refuse ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode", ["eager", pytest.param("aot_eager", marks=SLOW), pytest.param("inductor", marks=SLOW)]
)
@pytest.mark.parametrize("entry", ["conv", "operator", "function"])
def test_an_index_out_of_range_is_refused_in_a_program_too(mode, entry):
    # Unchecked, -1 is the row before the first: numbers of whatever lies there, and no error.
    conv, operator = PriorAttentionConv(4, 3, heads=2), EdgeAttention()
    x, q = torch.randn(11, 4), torch.randn(11, 2, 3)
    edges = torch.randint(0, 11, (2, 23), generator=torch.Generator().manual_seed(0))
    function = {
        "conv": lambda e: conv(x, e),
        "operator": lambda e: operator(q, q, q, e, need_weights=True)[0],
        "function": lambda e: edge_attention(q, q, q, EdgeLayout(e, 11, 11))[0],
    }[entry]
    compiled = torch.compile(function, backend=mode, fullgraph=True)
    compiled(edges)
    for side, name in enumerate(("source", "target")):
        for bad in (-1, -12, 11, 2**40):
            wrong = edges.clone()
            wrong[side, 7] = bad
            rule = rf"{name} index must be in \[0, 11\), got {bad} at edge 7"
            with pytest.raises(PriorGraphError, match=rule):
                compiled(wrong)
    torch.testing.assert_close(compiled(edges), function(edges))


def test_the_check_of_edges_passes_opcheck():
    edges = torch.tensor([[0, 1, 2], [1, 1, 0]])
    checked = torch.ops.pyg_kpnn.checked_edge_index.default
    assert set(torch.library.opcheck(checked, (edges, 3, 2)).values()) == {"SUCCESS"}
    out = checked(edges, 3, 2)
    assert torch.equal(out, edges)
    assert out.data_ptr() != edges.data_ptr()
    empty = edges[:, :0]
    assert checked(empty, 0, 0).shape == (2, 0)
