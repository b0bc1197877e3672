"""torch.export, ONNX and the meta device: any number of samples, indices that keep their values."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv, PriorTransformer

SLOW = pytest.mark.slow
WEIGHTED = PriorGraph.from_edges([("a", "c"), ("b", "c"), ("c", "a")], weight=[3.0, 0.5, 2.0])


class Program(nn.Module):
    """A layer of the table as a module of tensors alone, whose outputs are a flat tuple."""

    def __init__(self, layer, call, takes_mask):
        super().__init__()
        self.layer, self.call, self.takes_mask = layer, call, takes_mask

    def forward(self, *tensors: Tensor):
        inputs, mask = (tensors[:-1], tensors[-1]) if self.takes_mask else (tensors, None)
        return tuple(flat(self.call(self.layer, list(inputs), mask)))


def flat(outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [t for part in outputs for t in flat(part)]


def arguments(case, tester, batch):
    inputs = [t.detach() for t in tester.draw(case, batch, torch.float32)]
    mask = tester.mask.repeat(4, 1)[:batch]  # the second sample has a query with no live key
    return (*inputs, mask) if case.takes_mask else tuple(inputs)


@pytest.fixture
def program(case, tester) -> Program:
    if not case.compiles:
        pytest.skip("cannot be traced as a whole")
    return Program(tester.make(case, torch.float32), case.weights, case.takes_mask).eval()


def dynamic_batch(example) -> tuple:
    return (tuple({0: torch.export.Dim("batch")} for _ in example),)


# --- torch.export ---------------------------------------------------------------------------------


def test_an_exported_program_takes_any_number_of_samples(program, case, tester):
    example = arguments(case, tester, 5)
    with torch.no_grad():
        exported = torch.export.export(program, example, dynamic_shapes=dynamic_batch(example))
        assert "pyg_kpnn" not in str(exported.graph)  # it runs where this package is not installed
        for batch in (2, 3, 9):
            inputs = arguments(case, tester, batch)
            found = exported.module()(*inputs)
            torch.testing.assert_close(found, program(*inputs), rtol=1e-5, atol=1e-6)


CONVS = [{}, {"edge_dim": 2, "add_self_loops": True}]


def graph_program(options):
    """A conv, a maker of its arguments, and the sizes that stay open: nodes and edges."""
    conv = PriorAttentionConv(4, 3, heads=2, **options).eval()
    gen = torch.Generator().manual_seed(0)

    def draw(nodes, edges):
        attr = (torch.randn(edges, 2, generator=gen),) if "edge_dim" in options else ()
        x = torch.randn(nodes, 4, generator=gen)
        return (x, torch.randint(0, nodes, (2, edges), generator=gen), *attr)

    nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
    shapes = {"x": {0: nodes}, "edge_index": {1: edges}}
    if "edge_dim" in options:
        shapes["edge_attr"] = {0: edges}
    return conv, draw, shapes


@pytest.mark.parametrize("options", CONVS, ids=["plain", "edge_attr_and_loops"])
def test_an_exported_conv_takes_any_graph(options):
    conv, draw, shapes = graph_program(options)
    with torch.no_grad():
        exported = torch.export.export(conv, draw(7, 13), dynamic_shapes=shapes)
        for nodes, edges in ((9, 17), (5, 30), (11, 2)):
            inputs = draw(nodes, edges)
            torch.testing.assert_close(exported.module()(*inputs), conv(*inputs), rtol=1e-5, atol=1e-6)


# --- ONNX -----------------------------------------------------------------------------------------


@pytest.fixture
def session():
    """Exports a module and opens it in onnxruntime; returns a function of its inputs."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")

    def session(module, example, shapes):
        with torch.no_grad():
            exported = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False)
        file = io.BytesIO()
        exported.save(file)
        opened = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in opened.get_inputs()]

        def run(*inputs):
            return opened.run(None, dict(zip(names, (t.numpy() for t in inputs), strict=True)))

        return run

    return session


# Of torch's exporter (2.13) itself.
ONNX_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
]


def onnx(test):
    for mark in ONNX_WARNINGS:
        test = mark(test)
    return test


OTHERS = ("operator", "packed", "conv", "pair", "layer", "transformer")


def close(found, expected) -> bool:
    return all(np.abs(a - b.numpy()).max() <= 1e-5 for a, b in zip(found, expected, strict=True))


@onnx
@pytest.mark.parametrize("name", ["self", *(pytest.param(name, marks=SLOW) for name in OTHERS)])
def test_onnxruntime_gives_the_same_numbers_for_any_number_of_samples(session, tester, name):
    case = tester.cases[name]
    program = Program(tester.make(case, torch.float32), case.weights, case.takes_mask).eval()
    example = arguments(case, tester, 5)
    run = session(program, example, dynamic_batch(example))
    for batch in (1, 2, 9):
        inputs = arguments(case, tester, batch)
        with torch.no_grad():
            expected = program(*inputs)
        assert all(t.isfinite().all() for t in expected)
        assert close(run(*inputs), expected)


@onnx
@pytest.mark.parametrize(
    "options", [CONVS[0], pytest.param(CONVS[1], marks=SLOW)], ids=["plain", "edge_attr"]
)
def test_onnxruntime_runs_a_conv_on_any_graph(session, options):
    conv, draw, shapes = graph_program(options)
    run = session(conv, draw(7, 13), shapes)
    for nodes, edges in ((9, 17), (5, 30), (11, 1)):
        inputs = draw(nodes, edges)
        with torch.no_grad():
            assert close(run(*inputs), [conv(*inputs)])


# --- meta -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["packed", "self", "layer", "transformer"])
def test_shapes_on_meta_are_those_of_the_numbers(tester, chunk, name):
    case = tester.cases[name]
    inputs = [t.detach() for t in tester.draw(case, dtype=torch.float32)]
    shadows = [t.to("meta") for t in inputs]
    real = tester.make(case, torch.float32, chunk_size=chunk)
    shadow = tester.make(case, torch.float32, chunk_size=chunk).to("meta")
    for mask in (None, tester.mask):
        expected = flat(case.weights(real, inputs, mask))
        found = flat(case.weights(shadow, shadows, None if mask is None else mask.to("meta")))
        assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
        assert all(t.is_meta for t in found)


def test_edges_that_come_with_the_call_may_be_on_meta():
    edges = torch.tensor([[0, 1, 2], [1, 1, 0]], device="meta")
    conv = PriorAttentionConv(4, 3, heads=2, add_self_loops=True).to("meta")
    x = torch.empty(5, 3, 4, device="meta")
    out, (used, alpha) = conv(x, edges, return_attention_weights=True)
    assert (out.shape, used.shape, alpha.shape) == ((5, 3, 6), (2, 6), (5, 6, 2))
    assert out.is_meta
    q = torch.empty(5, 3, 2, 3, device="meta")
    assert EdgeAttention()(q, q, q, edges)[0].is_meta


@pytest.mark.parametrize("edge_bias", [None, "log_weight"])
def test_built_on_meta_and_drawn_later_is_the_model_that_was_built_at_once(edge_bias):
    options = {"embed_dim": 6, "num_heads": 2, "edge_bias": edge_bias}
    with torch.device("meta"):
        late = PriorTransformer(WEIGHTED, **options)
    assert all(p.is_meta for p in late.parameters())
    assert late(torch.empty(4, 3, device="meta")).shape == (4, 3)
    late.to_empty(device="cpu")
    at_once = PriorTransformer(WEIGHTED, **options)
    for model in (late, at_once):
        torch.manual_seed(3)
        model.reset_parameters()
    x = torch.randn(4, 3)
    assert torch.equal(late(x), at_once(x))


@pytest.mark.parametrize("name", ["packed", "self", "conv", "pair", "layer", "transformer", "fixed"])
def test_indices_survive_meta_and_to_empty(tester, name):
    case = tester.cases[name]
    filled = tester.make(case, torch.float32)
    with torch.device("meta"):
        built_there = case.build()
    went_there = tester.make(case, torch.float32).to("meta")
    inputs = [t.detach() for t in tester.draw(case, dtype=torch.float32)]
    for layer in (built_there, went_there, went_there.to_empty(device="cpu").to("meta")):
        layer.to_empty(device="cpu").eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(torch.nan)
        layer.load_state_dict(filled.state_dict())
        assert torch.equal(case.call(layer, inputs, None), case.call(filled, inputs, None))
        for (key, mine), (_, theirs) in zip(layer.named_buffers(), filled.named_buffers(), strict=True):
            assert torch.equal(mine, theirs), key


def test_a_layer_that_stays_on_meta_runs_on_no_numbers():
    layer = PackedMultiheadAttention([0, 1, 2], [1, 2, 0], 3, 3, 4, 2).to("meta")
    x = torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="meta"):
        layer(x, x, x)
