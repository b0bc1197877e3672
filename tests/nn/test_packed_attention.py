"""PackedMultiheadAttention: the reference page line by line, torch's dense layer, kpnn2's layer."""

from __future__ import annotations

import copy
import doctest
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import pyg_kpnn
from pyg_kpnn import PriorGraph, PriorGraphError
from pyg_kpnn.nn import PackedMultiheadAttention
from pyg_kpnn.ops import rows
from pyg_kpnn.ops.dropout import draw_seed

# 7 keys, 5 queries; query 3 has no key, key 6 is read by nobody.
SOURCE = [4, 0, 1, 2, 5, 0, 3, 3, 2, 1]
TARGET = [0, 0, 1, 4, 4, 2, 2, 1, 0, 4]
NNZ = len(SOURCE)
EMBED, HEADS = 6, 2


def make(*, seed: int = 0, dtype=torch.float64, **options) -> PackedMultiheadAttention:
    settings = {name: options.pop(name) for name in ("backend",) if name in options}
    torch.manual_seed(seed)
    layer = PackedMultiheadAttention(SOURCE, TARGET, 5, 7, EMBED, HEADS, **options).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer


def tokens(*lead: int, dtype=torch.float64, seed: int = 1) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*lead, n, EMBED, generator=gen, dtype=torch.float64).to(dtype).requires_grad_()
        for n in (5, 7, 7)
    ]


# --- the reference page ---------------------------------------------------------------------------

CLASS_EXAMPLE = """
>>> import pandas as pd
>>> import torch
>>> import kpnn2
>>> edgelist = pd.DataFrame(
...     {
...         "source": ["x", "a", "b", "a"],
...         "target": ["a", "b", "a", "y"],
...     }
... )
>>> spec = kpnn2.parse_adjacency(edgelist)
>>> attn = kpnn2.PackedMultiheadAttention.from_adjacency(
...     spec,
...     embed_dim=8,
...     num_heads=2,
...     add_self_loops=True,
...     identity=spec.fingerprint,
... )
>>> attn.nnz, attn.head_dim
(8, 4)
>>> tokens = torch.randn(2, spec.state_dim, 8)
>>> output, weights = attn(tokens, tokens, tokens)
>>> tuple(output.shape)
(2, 4, 8)
>>> weights is None
True
>>> _, packed = attn(
...     tokens,
...     tokens,
...     tokens,
...     need_weights=True,
... )
>>> tuple(packed.shape)
(2, 8)
>>> for s, t in zip(
...     attn.source_index.tolist(),
...     attn.target_index.tolist(),
... ):
...     print(spec.nodes[s], "->", spec.nodes[t])
a -> b
a -> y
b -> a
x -> a
a -> a
b -> b
x -> x
y -> y
"""

METHOD_EXAMPLE = """
>>> import pandas as pd
>>> import kpnn2
>>> spec = kpnn2.parse_adjacency(
...     pd.DataFrame(
...         {
...             "source": ["x", "a", "b", "a"],
...             "target": ["a", "b", "a", "y"],
...         }
...     )
... )
>>> attn = kpnn2.PackedMultiheadAttention.from_adjacency(
...     spec,
...     embed_dim=8,
...     num_heads=2,
...     identity=spec.fingerprint,
... )
>>> attn.query_features, attn.key_features, attn.nnz
(4, 4, 4)
"""


@pytest.mark.parametrize("example", [CLASS_EXAMPLE, METHOD_EXAMPLE], ids=["class", "from_adjacency"])
@pytest.mark.parametrize("package", ["pyg_kpnn", "kpnn2"])
def test_examples_of_the_peer_run_with_one_import_changed(example, package):
    pytest.importorskip(package)
    text = example.replace("import kpnn2\n", f"import {package} as kpnn2\n")
    test = doctest.DocTestParser().get_doctest(text, {}, "example", None, None)
    assert len(test.examples) == text.count(">>>")
    log: list[str] = []
    result = doctest.DocTestRunner().run(test, out=log.append)
    assert result.failed == 0, "".join(log)


# --- torch.nn.MultiheadAttention masked by the graph ----------------------------------------------


def dense_twin(layer: PackedMultiheadAttention) -> nn.MultiheadAttention:
    dense = nn.MultiheadAttention(EMBED, HEADS, batch_first=True, bias=layer.q_proj.bias is not None)
    dense = dense.to(layer.q_proj.weight.dtype)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        dense.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        dense.out_proj.weight.copy_(layer.out_proj.weight)
        if layer.q_proj.bias is not None:
            dense.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
            dense.out_proj.bias.copy_(layer.out_proj.bias)
    return dense


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@pytest.mark.parametrize("padded", [False, True], ids=["all_keys", "padded"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "linear"])
def test_equals_masked_dense_attention(backend, chunk, dtype, tolerance, padded, training, bias):
    layer = make(dtype=dtype, chunk_size=chunk, backend=backend, bias=bias).train(training)
    dense = dense_twin(layer).train(training)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    if padded:
        padding[0, [0, 1, 3]] = True  # queries 1 and 2 lose all their keys there
        padding[2, 4] = True
    blocked = torch.ones(5, 7, dtype=torch.bool)
    blocked[TARGET, SOURCE] = False
    blocked = blocked | padding.unsqueeze(1)
    live = ~blocked.all(-1)
    assert live.sum().item() == (12 - 2 if padded else 12)
    # A query without keys is NaN in torch's layer, gradients included: let it see everything
    # there and leave it out of what is compared.
    blocked = blocked & live.unsqueeze(-1)
    grad = torch.randn(3, 5, EMBED, generator=torch.Generator().manual_seed(9)).to(dtype)
    weight_grad = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(8)).to(dtype)

    leaves = tokens(3, dtype=dtype)
    output, weights = layer(*leaves, key_padding_mask=padding if padded else None, need_weights=True)
    loss = (output * grad * live.unsqueeze(-1)).sum()
    loss = loss + (weights * weight_grad[:, TARGET, SOURCE]).sum()
    grads = torch.autograd.grad(loss, [*leaves, *layer.parameters()])
    by_name = dict(
        zip(["query", "key", "value", *(n for n, _ in layer.named_parameters())], grads, strict=True)
    )

    twins = tokens(3, dtype=dtype)
    expected, table = dense(*twins, attn_mask=blocked.repeat_interleave(HEADS, 0), need_weights=True)
    table = table * live.unsqueeze(-1)
    loss = (expected * grad * live.unsqueeze(-1)).sum() + (table * weight_grad).sum()
    names = [n for n, _ in dense.named_parameters()]
    dense_grads = torch.autograd.grad(loss, [*twins, *dense.parameters()])
    wanted = dict(zip(["query", "key", "value", *names], dense_grads, strict=True))
    for kind in ("weight", "bias") if bias else ("weight",):
        parts = wanted.pop(f"in_proj_{kind}").chunk(3)
        wanted.update({f"{p}_proj.{kind}": g for p, g in zip("qkv", parts, strict=True)})
    assert set(wanted) == set(by_name)

    torch.testing.assert_close(output[live], expected[live], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(weights, table[:, TARGET, SOURCE], rtol=tolerance, atol=tolerance)
    # Gradients are sums of a hundred terms or so.
    for name, gradient in wanted.items():
        torch.testing.assert_close(by_name[name], gradient, rtol=tolerance, atol=10 * tolerance, msg=name)


def test_dense_layer_is_nan_where_ours_is_the_bias():
    layer = make().eval()
    blocked = torch.ones(5, 7, dtype=torch.bool)
    blocked[TARGET, SOURCE] = False
    query, key, value = tokens(3)
    assert dense_twin(layer)(query, key, value, attn_mask=blocked)[0][:, 3].isnan().all()
    assert torch.equal(layer(query, key, value)[0][:, 3], layer.out_proj.bias.expand(3, -1))


# --- kpnn2's layer --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"bias": False, "chunk_size": 3}], ids=str)
def test_equals_the_peer(seed, options):
    kpnn2 = pytest.importorskip("kpnn2")
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 12))
    pairs = rng.permutation(nodes * nodes)[: int(rng.integers(1, nodes * nodes + 1))]
    arguments = (pairs // nodes, pairs % nodes, nodes, nodes, 6, 3)
    options = {**options, "add_self_loops": bool(seed % 2), "identity": f"graph {seed}"}
    ours = PackedMultiheadAttention(*arguments, generator=torch.Generator().manual_seed(seed), **options)
    theirs = kpnn2.PackedMultiheadAttention(
        *arguments, generator=torch.Generator().manual_seed(seed), **options
    )
    assert set(ours.state_dict()) == set(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
        assert ours.state_dict()[name].dtype == tensor.dtype
    assert ours.nnz == theirs.nnz
    x = torch.randn(nodes, nodes, 6)
    mask = torch.rand(nodes, nodes) < 0.3
    for hidden in (None, mask):
        got = ours.eval()(x, x, x, hidden, need_weights=True, average_attn_weights=False)
        expected = theirs.eval()(x, x, x, hidden, need_weights=True, average_attn_weights=False)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


def test_same_start_as_the_peer_from_the_global_stream():
    kpnn2 = pytest.importorskip("kpnn2")
    states = []
    for package in (pyg_kpnn, kpnn2):
        torch.manual_seed(3)
        layer = package.PackedMultiheadAttention(SOURCE, TARGET, 5, 7, EMBED, HEADS)
        states.append((layer.state_dict(), torch.get_rng_state()))
    assert torch.equal(states[0][1], states[1][1])
    assert all(torch.equal(t, states[1][0][name]) for name, t in states[0][0].items())


# --- construction ---------------------------------------------------------------------------------

ARGUMENTS = {
    "source_index": SOURCE,
    "target_index": TARGET,
    "query_features": 5,
    "key_features": 7,
    "embed_dim": EMBED,
    "num_heads": HEADS,
}


class Opaque:
    """Neither a tensor nor an array nor a sequence."""

    def __array__(self, *_, **__):
        return np.array([0])


NOT_INDICES = {
    "object_dtype": np.array([1] * NNZ, dtype=object),
    "zero_dim_array": np.array(3),
    "zero_dim_tensor": torch.tensor(3),
    "two_dim_array": np.zeros((NNZ, 1), dtype=np.int64),
    "two_dim_tensor": torch.zeros(NNZ, 1, dtype=torch.int64),
    "two_dim_list": [[0]] * NNZ,
    "str": "0" * NNZ,
    "bytes": b"\0" * NNZ,
    "list_of_str": ["0"] * NNZ,
    "float_list": [0.0] * NNZ,
    "mixed_list": [0] * (NNZ - 1) + [0.5],
    "float_array": np.zeros(NNZ),
    "float_tensor": torch.zeros(NNZ),
    "bool_list": [True] * NNZ,
    "numpy_bool_list": [np.bool_(True)] * NNZ,
    "bool_array": np.zeros(NNZ, dtype=bool),
    "bool_tensor": torch.zeros(NNZ, dtype=torch.bool),
    "complex_array": np.zeros(NNZ, dtype=complex),
    "complex_tensor": torch.zeros(NNZ, dtype=torch.complex64),
    "str_array": np.array(["0"] * NNZ),
    "datetime_array": np.zeros(NNZ, dtype="datetime64[s]"),
    "set": set(range(5)),
    "frozenset": frozenset(range(5)),
    "dict": dict.fromkeys(range(5), 0),
    "dict_keys": dict.fromkeys(range(5), 0).keys(),
    "generator": (0 for _ in range(NNZ)),
    "iterator": iter([0] * NNZ),
    "int": 0,
    "none": None,
    "fractions": [Fraction(0)] * NNZ,
    "opaque": Opaque(),
    "too_long": [2**70] + [0] * (NNZ - 1),
    "meta_tensor": torch.zeros(NNZ, dtype=torch.int64, device="meta"),
}


@pytest.mark.parametrize("side", ["source_index", "target_index"])
@pytest.mark.parametrize("value", list(NOT_INDICES.values()), ids=list(NOT_INDICES))
def test_not_indices(side, value):
    with pytest.raises(PriorGraphError, match=f"{side} must be 1-D integers"):
        PackedMultiheadAttention(**{**ARGUMENTS, side: value})


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda v: np.array(v, dtype=np.uint8),
        lambda v: np.array(v, dtype=">i4"),
        lambda v: torch.tensor(v, dtype=torch.int16),
        lambda v: [np.int32(i) for i in v],
        lambda v: np.array([0, *v])[1:],
        lambda v: torch.tensor(v).repeat_interleave(2)[::2],
        lambda v: torch.tensor(v).requires_grad_(False),
    ],
)
def test_forms_of_indices(convert):
    layer = PackedMultiheadAttention(convert(SOURCE), convert(TARGET), 5, 7, EMBED, HEADS)
    assert layer.source_index.tolist() == SOURCE
    assert layer.target_index.tolist() == TARGET
    assert layer.source_index.dtype == layer.target_index.dtype == torch.int64
    assert layer.nnz == NNZ


def test_a_range_is_a_sequence():
    layer = PackedMultiheadAttention(range(3), range(3), 3, 3, 4, 1)
    assert layer.source_index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", [np.array, torch.tensor, list])
def test_indices_are_copied(form):
    source, target = form(SOURCE), form(TARGET)
    layer = PackedMultiheadAttention(source, target, 5, 7, EMBED, HEADS)
    source[0], target[0] = 6, 3
    assert layer.source_index.tolist() == SOURCE
    assert layer.target_index.tolist() == TARGET
    layer.source_index[1] = 6
    assert source[1] == 0


NOT_POSITIVE_INTEGERS = [
    0,
    -1,
    1.0,
    6.0,
    True,
    np.bool_(True),
    None,
    "6",
    np.float64(6),
    [6],
    2.5,
    float("nan"),
]
NOT_FLAGS = [0, 1, None, "False", "True", np.bool_(True), np.bool_(False), 1.0, [], torch.tensor(True)]
REFUSED = [
    *(({n: v}, f"{n} must be a positive integer")
      for n in ("query_features", "key_features", "embed_dim", "num_heads") for v in NOT_POSITIVE_INTEGERS),
    *(({"chunk_size": v}, "chunk_size must be a positive integer")
      for v in NOT_POSITIVE_INTEGERS if v is not None),
    *(({n: v}, f"{n} must be True or False") for n in ("bias", "batch_first", "add_self_loops", "autocast")
      for v in NOT_FLAGS),
    *(({"dropout": v}, r"dropout must be a number in \[0, 1\]")
      for v in (True, False, np.bool_(True), None, "0.1", float("nan"), float("inf"), -0.1, 1.1, 1j, [0.1])),
    *(({n: v}, f"{n} must be") for n in ("kdim", "vdim") for v in (5, 0, True, 6.0, "6", np.int64(12))),
    ({"embed_dim": 7}, "embed_dim must be divisible by num_heads, got 7 and 2"),
    ({"num_heads": 4}, "embed_dim must be divisible by num_heads, got 6 and 4"),
    ({"embed_dim": 1, "num_heads": 1, "kdim": True}, "kdim must be"),
    ({"source_index": [], "target_index": []}, "source_index must hold at least one edge"),
    ({"target_index": torch.empty(0, dtype=torch.int64)}, "target_index must hold at least one edge"),
    ({"source_index": SOURCE[1:]}, "source_index and target_index must pair up"),
    ({"source_index": [7, *SOURCE[1:]]}, r"source_index must be in \[0, 7\)"),
    ({"source_index": [-1, *SOURCE[1:]]}, r"source_index must be in \[0, 7\)"),
    ({"target_index": [5, *TARGET[1:]]}, r"target_index must be in \[0, 5\)"),
    ({"target_index": [*TARGET[:-1], -5]}, r"target_index must be in \[0, 5\).*position 9"),
    ({"source_index": np.array([2**63, *SOURCE[1:]], dtype=np.uint64)}, r"source_index must be in \[0, 7\)"),
    ({"source_index": [0, 1, 0], "target_index": [2, 2, 2]}, r"must not repeat a .*\(0, 2\)"),
    ({"add_self_loops": True}, "add_self_loops requires query_features == key_features, got 5 and 7"),
    *(({"identity": v}, "identity must be a str or None") for v in (b"g", 3, True, ["g"], torch.zeros(1))),
    *(({"generator": v}, "generator must be a torch.Generator or None")
      for v in (0, 42, "0", True, np.random.default_rng(0))),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "fragment"), REFUSED, ids=lambda v: str(v)[:50])
def test_refused_at_construction(changes, fragment):
    before = torch.get_rng_state()
    with pytest.raises(PriorGraphError, match=fragment):
        PackedMultiheadAttention(**{**ARGUMENTS, **changes})
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_are_stored_as_python_numbers():
    layer = PackedMultiheadAttention(
        SOURCE,
        TARGET,
        np.int8(5),
        np.uint16(7),
        np.int64(EMBED),
        np.int32(HEADS),
        dropout=np.float32(0.25),
        kdim=np.int64(EMBED),
        vdim=EMBED,
        chunk_size=np.int64(3),
    )
    sizes = (layer.query_features, layer.key_features, layer.embed_dim, layer.num_heads, layer.head_dim)
    assert (*sizes, layer.nnz, layer.chunk_size, layer.dropout) == (5, 7, 6, 2, 3, 10, 3, 0.25)
    assert {type(v) for v in (*sizes, layer.nnz, layer.chunk_size)} == {int}
    assert type(layer.dropout) is float
    for whole in (0, 1, np.int64(1)):
        stored = PackedMultiheadAttention(**ARGUMENTS, dropout=whole).dropout
        assert type(stored) is float
        assert stored == whole


def test_signature_of_the_peer():
    # Positions as on its page, the rest by keyword only.
    layer = PackedMultiheadAttention(
        SOURCE, TARGET, 5, 7, 6, 2, 0.5, False, 6, None, False, False, identity="g"
    )
    assert (layer.dropout, layer.q_proj.bias, layer.batch_first, layer.add_self_loops) == (
        0.5,
        None,
        False,
        False,
    )
    assert layer.identity == "g"
    with pytest.raises(TypeError):
        PackedMultiheadAttention(SOURCE, TARGET, 5, 7, 6, 2, 0.5, False, 6, None, False, False, "g")
    defaults = PackedMultiheadAttention(**ARGUMENTS)
    assert (defaults.dropout, defaults.batch_first, defaults.add_self_loops) == (0.0, True, False)
    assert (defaults.identity, defaults.chunk_size, defaults.autocast) == (None, None, False)
    assert all(
        p.bias is not None for p in (defaults.q_proj, defaults.k_proj, defaults.v_proj, defaults.out_proj)
    )


def test_repr():
    text = repr(make(chunk_size=3, dropout=0.5))
    facts = "query_features=5, key_features=7, embed_dim=6, num_heads=2, nnz=10, dropout=0.5, "
    facts += "batch_first=True, add_self_loops=False, chunk_size=3"
    for fact in facts.split(", "):
        assert fact in text


def test_self_loops_are_appended_in_order():
    layer = PackedMultiheadAttention([1, 3, 0], [0, 3, 1], 5, 5, 4, 1, add_self_loops=True)
    assert layer.source_index.tolist() == [1, 3, 0, 0, 1, 2, 4]
    assert layer.target_index.tolist() == [0, 3, 1, 0, 1, 2, 4]
    assert layer.nnz == 7
    assert layer.given_edge_index.tolist() == [[1, 3, 0], [0, 3, 1]]
    whole = PackedMultiheadAttention([0, 1], [0, 1], 2, 2, 4, 1, add_self_loops=True)
    assert whole.nnz == 2


def test_self_loops_given_and_added_are_the_same():
    x = torch.randn(3, 3, 4)
    pairs, given = ([1, 2], [0, 0]), ([1, 2, 0, 1, 2], [0, 0, 0, 1, 2])
    some = ([1, 2, 1], [0, 0, 1])
    outputs = []
    for (source, target), add in ((pairs, True), (given, False), (given, True), (some, True)):
        gen = torch.Generator().manual_seed(0)
        layer = PackedMultiheadAttention(source, target, 3, 3, 4, 2, add_self_loops=add, generator=gen)
        outputs.append(layer(x, x, x)[0])
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


def test_start_is_xavier_in_the_order_q_k_v_out():
    layer = PackedMultiheadAttention(**ARGUMENTS, generator=torch.Generator().manual_seed(5))
    gen = torch.Generator().manual_seed(5)
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        assert torch.equal(linear.weight, nn.init.xavier_uniform_(torch.empty(6, 6), generator=gen))
        assert torch.equal(linear.bias, torch.zeros(6))
    first = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert not torch.equal(layer.q_proj.weight, first["q_proj.weight"])
    layer.reset_parameters(torch.Generator().manual_seed(5))
    assert all(torch.equal(t, first[name]) for name, t in layer.state_dict().items())
    with pytest.raises(PriorGraphError, match="generator must be"):
        layer.reset_parameters(5)


def test_a_generator_leaves_the_global_stream_alone():
    before = torch.get_rng_state()
    layer = PackedMultiheadAttention(**ARGUMENTS, generator=torch.Generator().manual_seed(5))
    layer.reset_parameters(torch.Generator().manual_seed(6))
    assert torch.equal(torch.get_rng_state(), before)
    PackedMultiheadAttention(**ARGUMENTS)
    assert not torch.equal(torch.get_rng_state(), before)


def test_building_on_many_nodes_makes_no_table(largest_tensor):
    n = 20_000
    with largest_tensor() as record:
        layer = PackedMultiheadAttention(
            torch.arange(n - 1), torch.arange(1, n), n, n, 8, 2, add_self_loops=True
        )
    assert layer.nnz == 2 * n - 1
    assert record.numel <= 2 * layer.nnz


# --- from_adjacency -------------------------------------------------------------------------------


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges([("h", "o"), ("a", "h"), ("b", "h"), ("h", "h")], widths={"h": 2})


def test_from_adjacency_is_the_constructor(graph):
    options = {
        "dropout": 0.25,
        "bias": False,
        "batch_first": False,
        "add_self_loops": True,
        "identity": graph.fingerprint,
        "chunk_size": 3,
        "autocast": True,
    }
    layers = [
        PackedMultiheadAttention.from_adjacency(
            graph, 6, 2, generator=torch.Generator().manual_seed(0), **options
        ),
        PackedMultiheadAttention(
            graph.source_index,
            graph.target_index,
            graph.state_dim,
            graph.state_dim,
            6,
            2,
            generator=torch.Generator().manual_seed(0),
            **options,
        ),
    ]
    assert repr(layers[0]) == repr(layers[1])
    states = [layer.state_dict() for layer in layers]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name in ("dropout", "batch_first", "add_self_loops", "identity", "chunk_size", "autocast"):
        assert getattr(layers[0], name) == getattr(layers[1], name) == options[name]
    assert PackedMultiheadAttention.from_adjacency(graph, 6, 2).identity is None


def test_from_adjacency_of_a_bipartite_graph():
    graph = PriorGraph.bipartite([("g1", "p"), ("g2", "p"), ("g3", "q")])
    layer = PackedMultiheadAttention.from_adjacency(graph, 4, 2)
    assert (layer.query_features, layer.key_features, layer.nnz) == (2, 3, 3)
    assert layer(torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 4))[0].shape == (2, 4)
    with pytest.raises(PriorGraphError, match="add_self_loops requires"):
        PackedMultiheadAttention.from_adjacency(graph, 4, 2, add_self_loops=True)


@pytest.mark.parametrize("spec", [None, "graph", {}, [("a", "b")], torch.zeros(2, 3)])
def test_from_adjacency_refuses_other_things(spec):
    with pytest.raises(PriorGraphError, match="spec must be a PriorGraph, got"):
        PackedMultiheadAttention.from_adjacency(spec, 4, 2)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [({"embed_dim": 5}, "divisible"), ({"dropout": 2}, "dropout"), ({"chunk_size": 0}, "chunk_size"),
     ({"bias": 1}, "bias"), ({"identity": 1}, "identity"), ({"generator": 1}, "generator")],
)  # fmt: skip
def test_from_adjacency_refuses_what_the_constructor_does(graph, changes, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        PackedMultiheadAttention.from_adjacency(graph, **{"embed_dim": 6, "num_heads": 2, **changes})


def test_from_adjacency_options_are_keyword_only(graph):
    for extra in ({"kdim": 6}, {"vdim": 6}):
        with pytest.raises(TypeError):
            PackedMultiheadAttention.from_adjacency(graph, 6, 2, **extra)
    with pytest.raises(TypeError):
        PackedMultiheadAttention.from_adjacency(graph, 6, 2, 0.5)


# --- settings that may change ---------------------------------------------------------------------


def test_settings_are_checked_when_they_change():
    layer = make()
    layer.dropout, layer.chunk_size, layer.backend = np.float64(0.5), np.int64(3), "torch"
    assert (layer.attention.dropout, layer.attention.chunk_size, layer.attention.backend) == (0.5, 3, "torch")
    layer.chunk_size = None
    for name, value in (("dropout", 2.0), ("dropout", True), ("chunk_size", 0), ("backend", "gpu")):
        with pytest.raises(PriorGraphError, match=name):
            setattr(layer, name, value)
    assert (layer.dropout, layer.chunk_size, layer.backend) == (0.5, None, "torch")


# --- forward: layouts -----------------------------------------------------------------------------


def test_layouts_agree(backend, chunk):
    first = make(backend=backend, chunk_size=chunk)
    second = make(backend=backend, chunk_size=chunk, batch_first=False)
    query, key, value = tokens(3)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, 0] = mask[2, 4] = True
    kinds = {"need_weights": True, "average_attn_weights": False}
    output, weights = first(query, key, value, mask, **kinds)
    assert (output.shape, weights.shape) == ((3, 5, EMBED), (3, NNZ, HEADS))

    turned = [t.transpose(0, 1) for t in (query, key, value)]
    output2, weights2 = second(*turned, mask, **kinds)
    assert (output2.shape, weights2.shape) == ((5, 3, EMBED), (NNZ, 3, HEADS))
    torch.testing.assert_close(output2.transpose(0, 1), output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(weights2.transpose(0, 1), weights, rtol=1e-12, atol=1e-13)
    _, averaged = second(*turned, mask, need_weights=True)
    assert averaged.shape == (NNZ, 3)
    torch.testing.assert_close(averaged.T, weights.mean(-1), rtol=1e-12, atol=1e-13)

    for layer in (first, second):  # unbatched ignores batch_first
        output1, weights1 = layer(query[1], key[1], value[1], mask[1], **kinds)
        assert (output1.shape, weights1.shape) == ((5, EMBED), (NNZ, HEADS))
        torch.testing.assert_close(output1, output[1], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(weights1, weights[1], rtol=1e-12, atol=1e-13)

    more = [torch.stack([t, t.flip(0)]) for t in (query, key, value)]
    output4, weights4 = first(*more, torch.stack([mask, mask.flip(0)]), **kinds)
    assert (output4.shape, weights4.shape) == ((2, 3, 5, EMBED), (2, 3, NNZ, HEADS))
    torch.testing.assert_close(output4[1], output.flip(0), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(weights4[0], weights, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch_first", [True, False])
def test_batch_of_five_is_not_taken_for_the_sequence(batch_first):
    # As many samples as queries: axes could be confused without an error.
    layer = make(batch_first=batch_first)
    query, key, value = tokens(5)
    axis = 0 if batch_first else 1
    arguments = [t if batch_first else t.transpose(0, 1) for t in (query, key, value)]
    output, weights = layer(*arguments, need_weights=True)
    for b in range(5):
        single, share = layer(query[b], key[b], value[b], need_weights=True)
        torch.testing.assert_close(output.select(axis, b), single, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(weights.select(axis, b), share, rtol=1e-12, atol=1e-13)


def test_zero_samples(backend, chunk):
    for batch_first, masked in ((True, False), (True, True), (False, True)):
        layer = make(backend=backend, chunk_size=chunk, batch_first=batch_first, dropout=0.5)
        leaves = [t.detach() if batch_first else t.detach().transpose(0, 1) for t in tokens(0)]
        leaves = [t.requires_grad_() for t in leaves]
        mask = torch.zeros(0, 7, dtype=torch.bool) if masked else None
        output, weights = layer(*leaves, mask, need_weights=True)
        assert output.shape == leaves[0].shape
        assert weights.shape == ((0, NNZ) if batch_first else (NNZ, 0))
        output.sum().backward()
        assert all(p.grad is None or p.grad.count_nonzero() == 0 for p in layer.parameters())


def test_non_contiguous_inputs(backend, chunk):
    layer = make(backend=backend, chunk_size=chunk)
    query, key, value = (t.detach() for t in tokens(3))
    expected = layer(query, key, value)[0]
    strided = [query.transpose(0, 2).contiguous().transpose(0, 2), key.repeat_interleave(2, 1)[:, ::2]]
    one = value[:1].expand(3, -1, -1)
    assert not any(t.is_contiguous() for t in (*strided, one))
    torch.testing.assert_close(layer(*strided, value)[0], expected, rtol=1e-12, atol=1e-13)
    same = layer(query, key, value[:1].repeat(3, 1, 1))[0]
    torch.testing.assert_close(layer(query, key, one)[0], same, rtol=1e-12, atol=1e-13)


def test_weights_sum_to_one_over_live_keys(backend, chunk):
    layer = make(backend=backend, chunk_size=chunk)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, [0, 1, 3]] = True
    output, weights = layer(*tokens(3), mask, need_weights=True, average_attn_weights=False)
    sums = torch.zeros(3, 5, HEADS, dtype=torch.float64).index_add(1, torch.tensor(TARGET), weights)
    dead = torch.tensor([[False, True, True, True, False], [False, False, False, True, False]])
    dead = dead[[0, 1, 1]]
    torch.testing.assert_close(sums, (~dead).double().unsqueeze(-1).expand_as(sums), rtol=1e-12, atol=0)
    assert torch.equal(output[dead], layer.out_proj.bias.expand(int(dead.sum()), -1))
    assert weights.min() >= 0
    assert layer(*tokens(3), mask)[1] is None


def test_weights_after_dropout_are_those_used():
    layer = make(dropout=0.5).train()
    query, key, value = tokens(3)
    torch.manual_seed(0)
    output, weights = layer(query, key, value, need_weights=True, average_attn_weights=False)
    plain = copy.deepcopy(layer).eval()(query, key, value, need_weights=True, average_attn_weights=False)[1]
    kept = weights != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(weights[kept], 2 * plain[kept])
    carried = layer.v_proj(value).unflatten(-1, (HEADS, -1))[:, SOURCE] * weights.unsqueeze(-1)
    mixed = torch.zeros(3, 5, HEADS, 3, dtype=torch.float64).index_add(1, torch.tensor(TARGET), carried)
    torch.testing.assert_close(output, layer.out_proj(mixed.flatten(-2)))


# --- forward: nothing where there is nothing ------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_query_without_keys_is_the_bias_and_sends_nothing(backend, chunk, training, bias):
    layer = make(backend=backend, chunk_size=chunk, bias=bias, dropout=0.3).train(training)
    leaves = tokens(3)
    output, _ = layer(*leaves)
    expected = layer.out_proj.bias if bias else torch.zeros(EMBED, dtype=torch.float64)
    assert torch.equal(output[:, 3], expected.expand(3, -1))
    output[:, 3].square().sum().backward()
    for leaf in leaves:
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        for parameter in projection.parameters():
            assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def test_absent_and_padded_keys_get_exactly_nothing(backend, chunk):
    layer = make(backend=backend, chunk_size=chunk)
    leaves = tokens(3)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, [0, 1, 3]] = mask[1, 5] = True
    layer(*leaves, mask)[0].square().sum().backward()
    for leaf in leaves[1:]:
        assert leaf.grad[mask].count_nonzero() == 0
        assert leaf.grad[:, 6].count_nonzero() == 0
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("same", [False, True], ids=["key_and_value", "one_tensor"])
def test_padded_values_reach_nothing(backend, chunk, poison, same):
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, [0, 1, 3]] = mask[1, 5] = True
    results = []
    for filler in (0.0, poison):
        layer = make(backend=backend, chunk_size=chunk, dropout=0.3)
        query, key, value = (t.detach() for t in tokens(3))
        key = key.masked_fill(mask.unsqueeze(-1), filler).requires_grad_()
        value = key if same else value.masked_fill(mask.unsqueeze(-1), filler).requires_grad_()
        query.requires_grad_()
        torch.manual_seed(2)
        output, weights = layer(query, key, value, mask, need_weights=True)
        leaves = [query, key, *layer.parameters()] if same else [query, key, value, *layer.parameters()]
        results.append([output, weights, *torch.autograd.grad(output.square().sum(), leaves)])
    for clean, poisoned in zip(*results, strict=True):
        assert torch.equal(clean, poisoned)
        assert poisoned.isfinite().all()


def test_the_callers_tensors_are_left_as_they_were():
    layer = make()
    x = [t.detach() for t in tokens(3)]
    mask = torch.ones(3, 7, dtype=torch.bool)
    before = [t.clone() for t in (*x, mask)]
    layer(*x, mask)
    assert all(torch.equal(a, b) for a, b in zip((*x, mask), before, strict=True))


def test_unmasked_nan_stays_visible():
    layer = make()
    query, key, value = (t.detach() for t in tokens(3))
    key[1, 4] = torch.nan
    output, weights = layer(query, key, value, need_weights=True)
    assert output[1, 0].isnan().all()
    assert weights[1, [0, 1, 8]].isnan().all()
    assert output[1, 1:].isfinite().all()
    assert output[[0, 2]].isfinite().all()


# --- forward: edges -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
def test_order_of_edges_changes_nothing_to_the_bit(backend, chunk):
    order = torch.randperm(NNZ, generator=torch.Generator().manual_seed(0))
    assert order.tolist() != list(range(NNZ))
    bias = torch.randn(NNZ, HEADS, dtype=torch.float64)
    results = []
    for permutation in (torch.arange(NNZ), order):
        torch.manual_seed(0)
        source, target = torch.tensor(SOURCE)[permutation], torch.tensor(TARGET)[permutation]
        layer = PackedMultiheadAttention(source, target, 5, 7, EMBED, HEADS, chunk_size=chunk).double()
        layer.backend = backend
        leaves = tokens(3)
        output, weights = layer(*leaves, need_weights=True, edge_bias=bias[permutation])
        grads = torch.autograd.grad(output.square().sum(), [*leaves, *layer.parameters()])
        results.append((output, weights, grads))
    (output, weights, grads), (output2, weights2, grads2) = results
    assert torch.equal(output, output2)
    assert torch.equal(weights[:, order], weights2)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads2, strict=True))


def test_edge_bias(backend, chunk, attend):
    layer = make(backend=backend, chunk_size=chunk)
    query, key, value = tokens(3)
    q, k, v = (
        p(t).unflatten(-1, (HEADS, -1))
        for p, t in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value))
    )
    gen = torch.Generator().manual_seed(4)
    for shape in ((NNZ,), (NNZ, HEADS), (3, NNZ, HEADS)):
        bias = torch.randn(shape, generator=gen, dtype=torch.float64, requires_grad=True)
        output = layer(query, key, value, edge_bias=bias)[0]
        full = (bias.unsqueeze(-1) if bias.dim() == 1 else bias).expand(3, NNZ, HEADS)
        edges = torch.tensor([SOURCE, TARGET])
        mixed = torch.stack([attend(q[b], k[b], v[b], edges, None, full[b])[0] for b in range(3)])
        expected = layer.out_proj(mixed.flatten(-2))
        torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-12)
        one, two = (torch.autograd.grad(o.pow(3).sum(), bias, retain_graph=True) for o in (output, expected))
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)


def test_log_weights_as_bias_give_the_weights():
    layer = make().eval()
    with torch.no_grad():
        layer.q_proj.weight.zero_()
        layer.q_proj.bias.zero_()
    prior = torch.arange(1.0, NNZ + 1, dtype=torch.float64)
    _, weights = layer(*tokens(3), need_weights=True, edge_bias=prior.log())
    totals = torch.zeros(5, dtype=torch.float64).index_add(0, torch.tensor(TARGET), prior)
    torch.testing.assert_close(weights, (prior / totals[TARGET]).expand(3, -1))


@pytest.mark.parametrize("shape", [(NNZ + 1,), (NNZ, 3), (2, NNZ, HEADS), (3, NNZ), (HEADS, NNZ)])
def test_edge_bias_of_another_shape_is_refused(shape):
    with pytest.raises(PriorGraphError, match="bias must have shape"):
        make()(*tokens(3), edge_bias=torch.zeros(shape, dtype=torch.float64))


# --- forward: random stream -----------------------------------------------------------------------


def test_dropout_draws_one_seed_and_only_in_training(chunk):
    layer = make(dropout=0.5, chunk_size=chunk)
    x = tokens(3)

    def state_after(function):
        torch.manual_seed(7)
        function()
        return torch.get_rng_state()

    one_draw = state_after(lambda: draw_seed(torch.device("cpu")))
    nothing = state_after(lambda: None)
    assert torch.equal(state_after(lambda: layer.train()(*x)[0].sum().backward()), one_draw)
    assert torch.equal(state_after(lambda: layer.train()(*x, need_weights=True)), one_draw)
    assert torch.equal(state_after(lambda: layer.eval()(*x)), nothing)
    layer.dropout = 0.0
    assert torch.equal(state_after(lambda: layer.train()(*x)), nothing)


def test_one_seed_one_mask_whatever_the_chunk(backend):
    outputs = []
    for chunk_size in (None, 1, 3, NNZ, 99):
        layer = make(dropout=0.5, chunk_size=chunk_size, backend=backend).train()
        torch.manual_seed(11)
        outputs.append(layer(*tokens(3), need_weights=True, average_attn_weights=False))
    for output, weights in outputs[1:]:
        torch.testing.assert_close(output, outputs[0][0], rtol=1e-12, atol=1e-13)
        assert torch.equal(weights == 0, outputs[0][1] == 0)


def test_two_calls_drop_different_edges():
    layer = make(dropout=0.5).train()
    torch.manual_seed(0)
    first, second = (layer(*tokens(3), need_weights=True)[1] for _ in range(2))
    assert not torch.equal(first == 0, second == 0)


def test_dropout_one_leaves_the_bias():
    layer = make(dropout=1).train()
    leaves = tokens(3)
    output, weights = layer(*leaves, need_weights=True)
    assert torch.equal(output, layer.out_proj.bias.expand(3, 5, -1))
    assert weights.count_nonzero() == 0
    output.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


# --- forward: refused -----------------------------------------------------------------------------

SECRET = 271828.0


def secret(*shape: int) -> torch.Tensor:
    return torch.full(shape, SECRET)


def _refusals():
    x = {"query": secret(3, 5, EMBED), "key": secret(3, 7, EMBED), "value": secret(3, 7, EMBED)}
    for name, tensor in x.items():
        for kind in (torch.int64, torch.bool, torch.complex64):
            yield (
                True,
                {**x, name: tensor.to(kind)},
                f"{name} must be a floating-point tensor, got dtype {kind}",
            )
        for other in (None, tensor.numpy(), tensor.tolist(), SECRET):
            yield True, {**x, name: other}, f"{name} must be a floating-point tensor, got"
        yield True, {**x, name: tensor[0, 0]}, f"{name} must have at least 2 axes"
        yield (
            True,
            {**x, name: tensor[..., :5]},
            f"{name} must have at least 2 axes, the last of width embed_dim=6",
        )
        yield True, {**x, name: tensor[:, :4]}, f"{name} must hold . tokens along axis -2"
        yield True, {**x, name: tensor.transpose(0, 1)}, f"{name} must hold . tokens along axis -2"
        yield True, {**x, name: tensor[0]}, "must have the same batch axes"
        yield True, {**x, name: tensor[:2]}, "must have the same batch axes"
        yield True, {**x, name: torch.cat([tensor, tensor])}, "must have the same batch axes"
        yield True, {**x, name: tensor[None]}, "must have the same batch axes"
    turned = {name: tensor.transpose(0, 1) for name, tensor in x.items()}
    for name, tensor in turned.items():
        yield False, {**turned, name: tensor[None]}, rf"{name} must be \(seq, embed_dim\) or \(seq, batch"
        yield False, {**turned, name: tensor.transpose(0, 1)}, f"{name} must hold . tokens along axis 0"
        yield False, {**turned, name: tensor[:, :2]}, "must have the same batch axes"
        yield False, {**turned, name: tensor[:, 0]}, "must have the same batch axes"
    mask = torch.zeros(3, 7, dtype=torch.bool)
    for bad in (secret(3, 7), mask.to(torch.uint8), mask.long()):
        yield True, {**x, "key_padding_mask": bad}, "key_padding_mask must be a boolean tensor"
    for bad in (mask.tolist(), mask.numpy(), True):
        yield True, {**x, "key_padding_mask": bad}, "key_padding_mask must be a boolean tensor"
    for bad in (mask[0], mask[:1], mask.T, mask[:, :5], mask[None], mask[:, None], mask[:2]):
        yield True, {**x, "key_padding_mask": bad}, "key_padding_mask must have shape"
    for bad in (mask.T, mask[0], mask[:1]):
        yield False, {**turned, "key_padding_mask": bad}, "key_padding_mask must have shape"
    flat = {name: tensor[0] for name, tensor in x.items()}
    for bad in (mask, mask[:1], mask[0, :5]):
        yield True, {**flat, "key_padding_mask": bad}, "key_padding_mask must have shape"
    for name in ("need_weights", "average_attn_weights"):
        for bad in (0, 1, None, "False", np.bool_(True), secret(5, 7), []):
            yield True, {**x, name: bad}, f"{name} must be True or False"
    for bad in (secret(5, 7), torch.zeros(5, 7, dtype=torch.bool), False, 0):
        yield True, {**x, "attn_mask": bad}, "attn_mask must be None"
    for bad in (True, 0, None, np.bool_(False), secret(5, 7)):
        yield True, {**x, "is_causal": bad}, "is_causal must be False"


@pytest.mark.parametrize(("batch_first", "arguments", "fragment"), list(_refusals()))
def test_refused_in_forward(batch_first, arguments, fragment):
    layer = make(batch_first=batch_first, dtype=torch.float32, dropout=0.5).train()
    before = torch.get_rng_state()
    with pytest.raises(PriorGraphError, match=fragment) as caught:
        layer(**arguments)
    assert "271828" not in str(caught.value)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "name", ["embed_dim", "num_heads", "chunk_size", "bias", "dropout", "kdim", "identity"]
)
def test_messages_print_no_tensor(name):
    with pytest.raises(PriorGraphError, match=name) as caught:
        PackedMultiheadAttention(**{**ARGUMENTS, name: secret(2)})
    assert "271828" not in str(caught.value)


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
@pytest.mark.parametrize("sizes", [(EMBED, 4), (EMBED, 9)])
def test_replaced_projection_of_the_wrong_width(name, sizes):
    layer = make(dtype=torch.float32)
    setattr(layer, name, nn.Linear(*sizes))
    with pytest.raises(PriorGraphError, match=f"{name} must return 6 channels, got {sizes[1]}\\."):
        layer(*tokens(3, dtype=torch.float32))


# --- dtypes and devices ---------------------------------------------------------------------------


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double", "float"])
def test_index_buffers_stay_integers(cast):
    layer = getattr(make(dtype=torch.float32, identity="g"), cast)()
    for name, buffer in layer.named_buffers():
        other = {"identity": torch.uint8, "_layout_source_int32": torch.int32}
        assert buffer.dtype == other.get(name, torch.int64), name
    assert layer.source_index.tolist() == SOURCE
    dtype = layer.q_proj.weight.dtype
    assert layer(*tokens(3, dtype=torch.float32))[0].dtype == dtype  # inputs follow the parameters


def test_built_on_meta_then_filled():
    filled = make(dtype=torch.float32, identity="g")
    with torch.device("meta"):
        layer = PackedMultiheadAttention(SOURCE, TARGET, 5, 7, EMBED, HEADS, identity="g")
    assert layer.q_proj.weight.is_meta
    assert layer.source_index.tolist() == SOURCE
    layer = layer.to_empty(device="cpu")
    assert (layer.source_index.tolist(), layer.target_index.tolist()) == (SOURCE, TARGET)
    layer.load_state_dict(filled.state_dict())
    x = tokens(3, dtype=torch.float32)
    assert torch.equal(layer(*x)[0], filled(*x)[0])


def test_moved_to_meta_and_back():
    filled = make(dtype=torch.float32)
    layer = copy.deepcopy(filled).to("meta")
    assert layer.q_proj.weight.is_meta
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(filled.state_dict())
    x = tokens(3, dtype=torch.float32)
    assert torch.equal(layer(*x)[0], filled(*x)[0])


def test_built_on_meta_with_a_generator():
    with torch.device("meta"):
        layer = PackedMultiheadAttention(**ARGUMENTS, generator=torch.Generator().manual_seed(0))
    assert layer.q_proj.weight.is_meta


def test_seventy_thousand_equal_float16_scores():
    n = 70_000
    layer = PackedMultiheadAttention(torch.arange(n), torch.zeros(n, dtype=torch.int64), 1, n, 2, 1).half()
    key = torch.ones(n, 2, dtype=torch.float16)
    output, weights = layer(torch.ones(1, 2, dtype=torch.float16), key, key, need_weights=True)
    # 1/70000 rounds to a multiple of 2**-24 in float16: a quarter of a percent at most.
    assert weights.double().sum().item() == pytest.approx(1.0, abs=3e-3)
    torch.testing.assert_close(output, layer.out_proj(layer.v_proj(key[:1])), rtol=2e-3, atol=1e-3)


def test_autocast_is_left_at_the_door():
    layer = make(dtype=torch.float32)
    x = tokens(3, dtype=torch.float32)
    plain = layer(*x, need_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer(*x, need_weights=True)
        half = layer(*(t.bfloat16() for t in x))[0]
    assert inside[0].dtype == half.dtype == torch.float32
    assert torch.equal(inside[0], plain[0])
    assert torch.equal(inside[1], plain[1])


def test_autocast_followed(backend):
    layer = make(dtype=torch.float32, autocast=True, backend=backend)
    x = tokens(3, dtype=torch.float32)
    plain, weights = layer(*x, need_weights=True, average_attn_weights=False)
    assert plain.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, inside = layer(*x, need_weights=True, average_attn_weights=False)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), plain, rtol=0.05, atol=0.05)
    torch.testing.assert_close(inside.float(), weights, rtol=0.05, atol=0.02)
    # The softmax itself is exact to float32: each weight was rounded once.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k = layer.q_proj(x[0]), layer.k_proj(x[1])
    q, k = (t.float().unflatten(-1, (HEADS, -1)) for t in (q, k))
    exact = layer.attention.softmax_weights(q, k, layer._layout)
    assert torch.equal(inside, exact.to(inside.dtype))
    output.float().sum().backward()
    assert layer.q_proj.weight.grad.dtype == torch.float32


def test_inputs_of_another_dtype_follow_the_parameters():
    layer = make(dtype=torch.float32)
    x = tokens(3)
    assert layer(*x)[0].dtype == torch.float32
    torch.testing.assert_close(layer(*x)[0], layer(*(t.float() for t in x))[0])


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 512])
@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
def test_nothing_quadratic_and_nothing_of_edges_times_channels(backend, chunk_size, largest_tensor):
    n, edges, embed = 3000, 20_000, 64
    gen = torch.Generator().manual_seed(0)
    pair = torch.randperm(n * n, generator=gen)[:edges]
    layer = PackedMultiheadAttention(pair // n, pair % n, n, n, embed, 4, dropout=0.1, chunk_size=chunk_size)
    layer.backend = backend
    x = torch.randn(n, embed, generator=gen, requires_grad=True)
    mask = torch.rand(n, generator=gen) < 0.1
    with largest_tensor() as record:
        layer(x, x, x, mask)[0].square().sum().backward()
    assert n * embed <= record.numel < (n * n if chunk_size is None else edges * embed)


def test_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = make(dropout=0.1, add_self_loops=False, identity="g", chunk_size=3)
        layer(*tokens(3), need_weights=True)[0].sum().backward()


def test_averaging_buffers_leaves_the_graph_to_the_kernels():
    # torch averages integer buffers with truncation; what the kernels index by is no buffer.
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(300, (600,), generator=generator), torch.arange(600) % 300])
    edges = edges.unique(dim=1)
    layer = PackedMultiheadAttention(edges[0], edges[1], 300, 300, 4, 2)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=average, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(layer)
    x = torch.randn(300, 4)
    torch.testing.assert_close(averaged(x, x, x)[0], layer(x, x, x)[0])


def test_projections_of_another_kind():
    layer = make(dtype=torch.float32)
    layer.q_proj = torch.nn.Sequential(layer.q_proj)
    x = tokens(3, dtype=torch.float32)
    assert layer(*x)[0].dtype == torch.float32


def test_one_product_for_three_projections_equals_three():
    layer = PackedMultiheadAttention([0, 1, 2, 1], [1, 2, 0, 0], 3, 3, 8, 2)
    x = torch.randn(5, 3, 8, requires_grad=True)
    together = layer(x, x, x)[0]
    apart = layer(x, x.clone(), x.clone())[0]
    torch.testing.assert_close(together, apart)
    leaves = [x, *layer.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(together.sin().sum(), leaves, retain_graph=True),
        torch.autograd.grad(apart.sin().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_the_projections_of_the_same_tokens_are_one_product(monkeypatch, bias):
    layer = PackedMultiheadAttention([0, 1, 2, 1], [1, 2, 0, 0], 3, 3, 8, 2, bias=bias)
    x, widths = torch.randn(5, 3, 8), []
    plain = rows.linear

    def linear(tokens, weight, bias):
        widths.append(len(weight))
        return plain(tokens, weight, bias)

    monkeypatch.setattr(rows, "linear", linear)
    layer(x, x, x)
    assert widths == [3 * 8]
    layer(x, x.clone(), x)
    assert widths == [3 * 8]


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_one_projection_without_a_bias(name):
    layer = PackedMultiheadAttention([0, 1, 2, 1], [1, 2, 0, 0], 3, 3, 8, 2)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        nn.init.normal_(projection.bias)
    setattr(layer, name, nn.Linear(8, 8, bias=False))
    x = torch.randn(5, 3, 8)
    torch.testing.assert_close(layer(x, x, x)[0], layer(x, x.clone(), x.clone())[0])


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
@pytest.mark.parametrize("kind", ["hook", "pre_hook", "parametrization", "subclass"])
def test_a_watched_or_changed_projection_is_called_itself(name, kind):
    layer = PackedMultiheadAttention([0, 1, 2, 1], [1, 2, 0, 0], 3, 3, 8, 2)
    x = torch.randn(3, 8)
    before, projection = layer(x, x, x)[0], getattr(layer, name)
    if kind == "hook":
        projection.register_forward_hook(lambda module, inputs, out: out + 1 + inputs[0])
    elif kind == "pre_hook":
        projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * -3,))
    elif kind == "parametrization":
        torch.nn.utils.parametrizations.weight_norm(projection)
        projection.parametrizations.weight.original0.data.mul_(-3)
    else:

        class Scaled(torch.nn.Linear):
            def forward(self, tokens):
                return super().forward(tokens) * -3 + tokens

        other = Scaled(8, 8)
        other.load_state_dict(projection.state_dict())
        setattr(layer, name, other)
    together, apart = layer(x, x, x)[0], layer(x, x.clone(), x.clone())[0]
    torch.testing.assert_close(together, apart)
    assert not torch.allclose(together, before)


@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3)])
def test_self_loops_need_as_many_queries_as_keys(queries, keys):
    with pytest.raises(PriorGraphError, match=f"query_features == key_features, got {queries} and {keys}"):
        PackedMultiheadAttention([0, 1], [1, 2], queries, keys, 4, 2, add_self_loops=True)


def test_kdim_and_vdim_of_any_size():
    layer = PackedMultiheadAttention([0, 1], [1, 2], 3, 3, 1024, 2, kdim=int("1024"), vdim=int("1024"))
    assert layer.embed_dim == 1024
