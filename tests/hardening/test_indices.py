"""Indices in every form people hold them in, tensors on another device: the right edges or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyg_kpnn import PriorGraphError
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv
from pyg_kpnn.ops import EdgeLayout, edge_attention

# 5 queries, 7 keys.
EDGES = torch.tensor([[4, 0, 1, 2, 5, 0, 3], [0, 0, 1, 4, 4, 2, 2]])
SQUARE = torch.tensor([[0, 2, 1, 3, 3], [1, 1, 2, 2, 0]])  # 4 nodes
X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))


def packed(source, target):
    return PackedMultiheadAttention(source, target, 5, 7, 4, 2)


def read_only(values):
    array = np.array(values)
    array.setflags(write=False)
    return array


# --- forms ----------------------------------------------------------------------------------------

FORMS = {
    "read_only": read_only,
    "read_only_view": lambda v: np.broadcast_to(np.array(v), (3, len(v)))[1],
    "reversed_view": lambda v: np.array(v[::-1])[::-1],
    "big_endian": lambda v: np.array(v, dtype=">u8"),
    "numpy_scalars": lambda v: [np.int8(i) for i in v],
    "mixed_integers": lambda v: [np.uint64(i) if n % 2 else i for n, i in enumerate(v)],
    "uint8": lambda v: torch.tensor(v, dtype=torch.uint8),
    "uint16": lambda v: torch.tensor(v, dtype=torch.uint16),
    "uint32": lambda v: torch.tensor(v, dtype=torch.uint32),
    "uint64": lambda v: torch.tensor(v, dtype=torch.uint64),
    "int32": lambda v: torch.tensor(v, dtype=torch.int32),
    "shared_memory": lambda v: torch.tensor(v).share_memory_(),
    "inference": lambda v: inference(v),
}


def inference(values):
    with torch.inference_mode():
        return torch.tensor(values)


@pytest.mark.parametrize("form", list(FORMS))
def test_fixed_edges_come_in_any_form_of_integers(form):
    layer = packed(*(FORMS[form](side.tolist()) for side in EDGES))
    assert torch.equal(layer.given_edge_index, EDGES)
    assert torch.equal(layer._layout.edge_index, EDGES)
    assert not layer.source_index.is_inference()
    q, k = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4)
    layer(q, k, k)[0].sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("loops", [False, True])
def test_edges_of_a_call_come_in_any_integer_dtype(dtype, loops, backend):
    conv = PriorAttentionConv(6, 3, heads=2, add_self_loops=loops, backend=backend)
    expected = conv(X, SQUARE)
    edges = SQUARE.to(getattr(torch, dtype))
    for _ in range(2):  # the second call finds the layout it remembers
        assert torch.equal(conv(X, edges), expected)


def test_sizes_are_python_integers_whatever_integer_came():
    layout = EdgeLayout(EDGES, np.uint8(7), np.int64(5))
    assert (type(layout.num_sources), type(layout.num_targets)) == (int, int)
    for bad in (7.0, np.float32(7), True, "7", None, -1, [7], torch.tensor(7), 7j):
        with pytest.raises(PriorGraphError, match="num_sources must be an integer >= 0"):
            EdgeLayout(EDGES, bad, 5)
    for bad in (2**31, 2**70):  # the kernels read int32
        with pytest.raises(PriorGraphError, match=r"num_targets must be below 2\*\*31"):
            EdgeLayout(EDGES, 7, bad)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        ([[0, 1], [2]], "list at position 0"),
        (np.array([[0, 1], [2, 3]]), r"got shape \(2, 2\)"),
        (np.array([0, 1], dtype="timedelta64[s]"), "dtype timedelta64"),
        (np.ma.masked_array([0.0, 1.0], mask=[True, False]), "dtype float64"),
        ([0, np.float64(1.0)], "float64 at position 1"),
        ([0, np.bool_(True)], "position 1"),
        ([0, 1 + 0j], "complex at position 1"),
        ([0, None], "NoneType at position 1"),
        ([0, torch.tensor(1)], "Tensor at position 1"),
        (torch.tensor([0, 1], device="meta"), "on meta"),
    ],
)
def test_what_are_no_indices_is_refused_by_name(value, fragment):
    for arguments, name in (((value, [0, 1]), "source_index"), (([0, 1], value), "target_index")):
        with pytest.raises(PriorGraphError, match=f"^{name} must be 1-D integers.*{fragment}"):
            packed(*arguments)


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        (SQUARE.bool(), "integer tensor, got dtype torch.bool"),
        (SQUARE.half(), "integer tensor, got dtype torch.float16"),
        (SQUARE.to(torch.complex64), "integer tensor, got dtype torch.complex64"),
        (SQUARE.numpy(), "tensor or a sparse adjacency, got ndarray"),
        ([[0, 1], [2]], "tensor or a sparse adjacency, got list"),
        (SQUARE[:0], r"shape \(2, E\).*\(0, 5\)"),
        (torch.tensor(3), r"shape \(2, E\).*\(\)"),
        (SQUARE.to("meta"), "edge_index must be on the device of x, cpu, got one on meta"),
        (SQUARE - 1, r"source index must be in \[0, 4\), got -1 at edge 0"),
        ((SQUARE + 3).to(torch.uint64), r"source index must be in \[0, 4\), got . at edge"),
        (torch.tensor([[0], [2**64 - 1]], dtype=torch.uint64), r"target index must be in \[0, 4\)"),
    ],
)
@pytest.mark.parametrize("loops", [False, True])
def test_edges_of_a_call_that_are_none_are_refused(value, fragment, loops):
    conv = PriorAttentionConv(6, 3, add_self_loops=loops)
    with pytest.raises(PriorGraphError, match=fragment):
        conv(X, value)


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("form", ["coo", "csr", "nested"])
def test_sparse_and_nested_tensors_are_no_lists_of_edges(form):
    table = torch.tensor([[0, 1], [1, 0]])
    if form == "nested":
        value = torch.nested.nested_tensor([torch.tensor([0, 1]), torch.tensor([2])])
    else:
        value = table.to_sparse() if form == "coo" else table.to_sparse_csr()
    with pytest.raises(PriorGraphError, match=r"source_index must be 1-D integers.*sparse or nested"):
        packed(value, [0, 1])
    with pytest.raises(PriorGraphError, match="edge_index must be a dense tensor"):
        EdgeLayout(value, 4, 4)


# --- another device -------------------------------------------------------------------------------


def elsewhere(tensor):
    return tensor.to("meta")


def operator_call(backend, **changes):
    gen = torch.Generator().manual_seed(0)
    tensors = {"query": torch.randn(5, 2, 3, generator=gen), "key": torch.randn(7, 2, 3, generator=gen)}
    call = {
        **tensors, "value": tensors["key"], "layout": EdgeLayout(EDGES, 7, 5), "bias": torch.randn(7, 2),
        "edge_features": None, "key_mask": torch.zeros(7, dtype=torch.bool), "dropout_p": 0.5,
        "dropout_seed": torch.tensor(3), "backend": backend,
    }  # fmt: skip
    return edge_attention(**{**call, **changes})


@pytest.mark.parametrize(
    "name", ["query", "key", "value", "bias", "edge_features", "key_mask", "dropout_seed"]
)
def test_a_tensor_on_another_device_is_refused_by_name(name, backend):
    # The native kernel reads memory: a bias that lies elsewhere was taken for none.
    there = {
        "query": torch.zeros(5, 2, 3), "key": torch.zeros(7, 2, 3), "value": torch.zeros(7, 2, 3),
        "bias": torch.zeros(7), "edge_features": torch.zeros(7, 2, 3),
        "key_mask": torch.zeros(7, dtype=torch.bool), "dropout_seed": torch.tensor(3),
    }[name]  # fmt: skip
    with pytest.raises(
        PriorGraphError, match=f"{name} must be on the device of the layout, cpu, got one on meta"
    ):
        operator_call(backend, **{name: elsewhere(there)})


def test_a_layout_on_another_device_is_refused(backend):
    with pytest.raises(
        PriorGraphError, match="query must be on the device of the layout, meta, got one on cpu"
    ):
        operator_call(backend, layout=EdgeLayout(EDGES, 7, 5).to("meta"))


@pytest.mark.parametrize("name", ["query", "key", "value", "key_padding_mask", "edge_bias"])
def test_a_layer_refuses_what_lies_on_another_device(name):
    layer = packed(*EDGES)
    k = torch.randn(3, 7, 4)
    call = {"query": torch.randn(3, 5, 4), "key": k, "value": k,
            "key_padding_mask": torch.zeros(3, 7, dtype=torch.bool), "edge_bias": torch.zeros(7)}  # fmt: skip
    layer(**call)
    with pytest.raises(PriorGraphError, match=r"on one device|on meta"):
        layer(**{**call, name: elsewhere(call[name])})


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("name", ["edge_index", "edge_attr", "edge_bias", "target"])
def test_a_conv_refuses_what_lies_on_another_device(name, loops):
    conv = PriorAttentionConv((6, 6), 3, edge_dim=2, add_self_loops=loops)
    call = {"x": (X, X), "edge_index": SQUARE, "edge_attr": torch.randn(5, 2), "edge_bias": torch.randn(5)}
    conv(**call)
    change = {"x": (X, elsewhere(X))} if name == "target" else {name: elsewhere(call[name])}
    with pytest.raises(PriorGraphError, match=r"must be on the device of .*, cpu, got one on meta"):
        conv(**{**call, **change})


def test_a_mask_on_another_device_than_the_values_is_refused(tester):
    model = tester.make(tester.cases["transformer"])
    x = torch.randn(3, 7, dtype=torch.float64)
    with pytest.raises(
        PriorGraphError, match="key_padding_mask must be on the device of x, cpu, got one on meta"
    ):
        model(x, elsewhere(torch.zeros(3, 7, dtype=torch.bool)))


# --- what is no tensor, or of no use ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"query": [0.0]}, "query must be a"),
        ({"query": torch.zeros(5, 2)}, "query must"),
        ({"bias": [0.0] * 7}, "bias must be a tensor"),
        ({"bias": torch.zeros(7, dtype=torch.int64)}, "bias must be floating point"),
        ({"edge_features": torch.zeros(7, 2, 3, dtype=torch.int64)}, "edge_features must be floating point"),
        ({"key_mask": [True] * 7}, "key_mask must be a"),
    ],
)
def test_what_is_no_tensor_of_numbers_is_refused(change, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        operator_call("auto", **change)
    if "query" in change:
        with pytest.raises(PriorGraphError, match=fragment):
            EdgeAttention()(change["query"], torch.zeros(7, 2, 3), torch.zeros(7, 2, 3), EDGES)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"x": X.long()}, r"x must be floating point of shape \(\.\.\., N, 6\), got torch.int64"),
        (
            {"x": X[..., :5]},
            r"x must be floating point of shape \(\.\.\., N, 6\), got torch.float32 of shape",
        ),
        ({"x": X[0, 0]}, "x must be floating point of shape"),
        ({"x": torch.tensor(1.0)}, "x must be floating point of shape"),
        ({"x": (X, X, X)}, "x must be a tensor or a tuple of two"),
        ({"edge_attr": [[0.0, 0.0]] * 5}, "edge_attr must be a floating-point tensor, got list"),
        (
            {"edge_attr": torch.ones(5, 2, dtype=torch.int64)},
            "edge_attr must be a floating-point tensor, got dtype",
        ),
        ({"edge_bias": [0.0] * 5}, "bias must be a"),
        ({"edge_bias": torch.ones(5, dtype=torch.int64)}, "bias must be"),
    ],
)
@pytest.mark.parametrize("loops", [False, True])
def test_a_conv_says_what_was_wrong_with_what_it_was_given(change, fragment, loops):
    conv = PriorAttentionConv(6, 3, edge_dim=2, add_self_loops=loops)
    with pytest.raises(PriorGraphError, match=fragment):
        conv(**{"x": X, "edge_index": SQUARE, "edge_attr": torch.randn(5, 2), **change})
