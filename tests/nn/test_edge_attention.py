"""The operator: hooks, explainer masks, the remembered layout."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import MessagePassing

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention
from pyg_kpnn.ops import EdgeLayout, edge_attention

EDGES = torch.tensor([[0, 1, 2, 0, 4, 3], [0, 0, 0, 2, 2, 1]])


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, 2, 3, generator=gen, dtype=torch.float64) for n in (3, 5, 5)]


def test_is_the_pure_function_as_an_operator(qkv, backend, chunk):
    attend = EdgeAttention(chunk_size=chunk, backend=backend)
    assert isinstance(attend, MessagePassing)
    assert list(attend.parameters()) == []
    assert attend.state_dict() == {}
    layout = EdgeLayout(EDGES, 5, 3)
    options = {
        "bias": torch.randn(6, 2, dtype=torch.float64),
        "edge_features": torch.randn(6, 2, 3, dtype=torch.float64),
        "key_mask": torch.tensor([[True, False, False, False, False], [False] * 5]),
    }
    expected = edge_attention(*qkv, layout, **options, chunk_size=chunk, backend=backend, need_weights=True)
    for edges in (EDGES, layout, EDGES.int(), EdgeIndex(EDGES, sparse_size=(5, 3))):
        mixed, weights = attend(*qkv, edges, **options, need_weights=True)
        assert torch.equal(mixed, expected[0])
        assert torch.equal(weights, expected[1])
        assert attend(*qkv, edges, **options)[1] is None


def test_softmax_weights_are_before_dropout(qkv):
    attend = EdgeAttention(dropout=0.5)
    plain = attend.softmax_weights(*qkv[:2], EDGES)
    sums = torch.zeros(2, 3, 2, dtype=torch.float64).index_add(1, EDGES[1], plain)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    _, dropped = attend(*qkv, EDGES, need_weights=True)
    kept = dropped != 0
    assert not kept.all()
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        ({"dropout": True}, "dropout must be a number"),
        ({"dropout": 1.5}, "dropout must be a number"),
        ({"dropout": "0.1"}, "dropout must be a number"),
        ({"chunk_size": 0}, "chunk_size must be a positive integer"),
        ({"chunk_size": True}, "chunk_size must be a positive integer"),
        ({"chunk_size": 2.0}, "chunk_size must be a positive integer"),
        ({"backend": "gpu"}, "backend must be one of auto"),
        ({"backend": None}, "backend must be one of auto"),
    ],
)
def test_refused_settings(settings, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        EdgeAttention(**settings)


@pytest.mark.parametrize("edges", [[[0], [0]], torch.zeros(2, 3), torch.zeros(3, 2).long(), None])
def test_refused_edges(qkv, edges):
    with pytest.raises(PriorGraphError, match="edge_index must"):
        EdgeAttention()(*qkv, edges)


@pytest.mark.parametrize("bad", [[[5], [0]], [[0], [3]], [[-1], [0]]])
def test_refused_indices(qkv, bad):
    with pytest.raises(PriorGraphError, match=r"index must be in \[0, "):
        EdgeAttention()(*qkv, torch.tensor(bad))


def test_repr():
    attend = EdgeAttention(0.5, 7, "torch")
    assert repr(attend) == "EdgeAttention(dropout=0.5, chunk_size=7, backend='torch')"


# --- the remembered layout ------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """Number of edges of every layout that is built."""
    sizes: list[int] = []
    build = EdgeLayout.__init__

    def count(self, edge_index, num_sources, num_targets):
        sizes.append(edge_index.shape[1])
        build(self, edge_index, num_sources, num_targets)

    monkeypatch.setattr(EdgeLayout, "__init__", count)
    return sizes


def test_layout_is_built_once_a_tensor(qkv, built):
    attend, edges = EdgeAttention(), EDGES.clone()
    for _ in range(3):
        attend(*qkv, edges)
    assert built == [6]
    attend(*qkv, edges.clone())
    assert built == [6, 6]


def test_another_number_of_nodes_builds_another_layout(qkv, built):
    attend, edges = EdgeAttention(), EDGES.clone()
    attend(*qkv, edges)
    more = torch.cat([qkv[0], qkv[0][:, :1]], dim=1)
    assert attend(more, *qkv[1:], edges)[0].shape == (2, 4, 2, 3)
    assert built == [6, 6]


def test_a_write_to_the_edges_is_seen(qkv):
    attend, edges = EdgeAttention(), EDGES.clone()
    before = attend(*qkv, edges)[0]
    edges[:, 0] = torch.tensor([4, 1])
    after = attend(*qkv, edges)[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, EdgeAttention()(*qkv, edges.clone())[0])
    edges[0, 0] = 5
    with pytest.raises(PriorGraphError, match="got 5 at edge 0"):
        attend(*qkv, edges)


def test_the_edges_are_not_kept_alive(qkv):
    attend, edges = EdgeAttention(), EDGES.clone()
    attend(*qkv, edges)
    ref = weakref.ref(edges)
    del edges
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_start_without_a_layout(qkv, copied):
    attend, edges = EdgeAttention(), EDGES.clone()
    expected = attend(*qkv, edges)[0]
    size = len(pickle.dumps(attend))
    twin = copied(attend)
    if copied is not copy.copy:
        assert twin._layouts is not attend._layouts
        assert twin._layouts._last is None
    assert size == len(pickle.dumps(EdgeAttention()))
    assert torch.equal(twin(*qkv, edges)[0], expected)


def test_inference_mode(qkv):
    attend = EdgeAttention()
    with torch.inference_mode():
        edges = EDGES.clone()
        first = attend(*qkv, edges)[0]
        edges[0, 0] = 4
        assert not torch.equal(first, attend(*qkv, edges)[0])
    plain = EDGES.clone()
    with torch.inference_mode():
        attend(*qkv, plain)
    leaf = qkv[0].clone().requires_grad_()
    attend(leaf, *qkv[1:], plain)[0].sum().backward()  # no inference tensor may be left over
    assert leaf.grad is not None


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian]
)
def test_first_call_inside_a_transform(qkv, backend, transform):
    attend, edges = EdgeAttention(backend=backend), EDGES.clone()

    def loss(query):
        return attend(query, *qkv[1:], edges)[0].pow(3).sum()

    first = transform(loss)(qkv[0])
    again = transform(loss)(qkv[0])
    assert torch.equal(first, again)
    # Nothing of the transform is left in what the operator remembers.
    layout = attend._layouts._last[-1]
    if layout is not None:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        assert not any(wrapped(t) for t in layout.tensors().values())
    leaf = qkv[0].clone().requires_grad_()
    loss(leaf).backward()
    assert leaf.grad.isfinite().all()


# --- hooks ----------------------------------------------------------------------------------------


def test_which_hooks_fire_where(qkv):
    attend, calls = EdgeAttention(), []

    def note(name):
        return lambda *_: calls.append(name)

    attend.register_propagate_forward_pre_hook(note("propagate_pre"))
    attend.register_propagate_forward_hook(note("propagate"))
    attend.register_message_and_aggregate_forward_pre_hook(note("fused_pre"))
    attend.register_message_and_aggregate_forward_hook(note("fused"))
    plain = EdgeAttention()(*qkv, EDGES)[0]
    assert torch.equal(attend(*qkv, EDGES)[0], plain)
    assert calls == ["propagate_pre", "fused_pre", "fused", "propagate"]
    calls.clear()
    handles = [
        attend.register_message_forward_pre_hook(note("message_pre")),
        attend.register_message_forward_hook(note("message")),
        attend.register_aggregate_forward_pre_hook(note("aggregate_pre")),
        attend.register_aggregate_forward_hook(note("aggregate")),
    ]
    torch.testing.assert_close(attend(*qkv, EDGES)[0], plain, rtol=1e-12, atol=1e-13)
    assert calls == ["propagate_pre", "message_pre", "message", "aggregate_pre", "aggregate", "propagate"]
    for handle in handles:
        handle.remove()
    calls.clear()
    attend(*qkv, EDGES)
    assert calls == ["propagate_pre", "fused_pre", "fused", "propagate"]


@pytest.mark.parametrize("kind", ["message", "aggregate"])
def test_each_lifting_hook_alone(qkv, kind):
    for when in ("forward_pre_hook", "forward_hook"):
        attend, calls = EdgeAttention(), []
        getattr(attend, f"register_{kind}_{when}")(lambda *_, calls=calls: calls.append(1))
        attend(*qkv, EDGES)
        assert calls == [1]


def test_message_hook_sees_every_edge(qkv):
    attend, seen = EdgeAttention(), {}

    def look(module, inputs, out):
        seen.update(inputs[-1], out=out)

    attend.register_message_forward_hook(look)
    attend(*qkv, EDGES)
    _, weights = EdgeAttention()(*qkv, EDGES, need_weights=True)
    assert seen["out"].shape == (2, 6, 2, 3)
    torch.testing.assert_close(seen["alpha"], weights.mean(0))
    torch.testing.assert_close(seen["weights"], weights)
    torch.testing.assert_close(seen["value_j"], qkv[2][:, EDGES[0]])
    torch.testing.assert_close(seen["out"], qkv[2][:, EDGES[0]] * weights.unsqueeze(-1))


def test_message_hooks_take_effect(qkv):
    plain = EdgeAttention()(*qkv, EDGES)[0]
    attend = EdgeAttention()
    handle = attend.register_message_forward_hook(lambda module, inputs, out: 2 * out)
    torch.testing.assert_close(attend(*qkv, EDGES)[0], 2 * plain)
    handle.remove()

    def silence(module, inputs):
        return ({**inputs[0], "value_j": torch.zeros_like(inputs[0]["value_j"])},)

    handle = attend.register_message_forward_pre_hook(silence)
    assert attend(*qkv, EDGES)[0].count_nonzero() == 0
    handle.remove()
    attend.register_aggregate_forward_hook(lambda module, inputs, out: out + 1)
    torch.testing.assert_close(attend(*qkv, EDGES)[0], plain + 1)


def test_fused_hooks_take_effect(qkv):
    plain = EdgeAttention()(*qkv, EDGES)[0]
    attend = EdgeAttention()
    handle = attend.register_message_and_aggregate_forward_hook(lambda m, i, out: (3 * out[0], out[1]))
    torch.testing.assert_close(attend(*qkv, EDGES)[0], 3 * plain)
    handle.remove()

    def double_values(module, inputs):
        layout, kwargs = inputs
        return layout, {**kwargs, "value": 2 * kwargs["value"]}

    handle = attend.register_message_and_aggregate_forward_pre_hook(double_values)
    torch.testing.assert_close(attend(*qkv, EDGES)[0], 2 * plain)
    handle.remove()
    handle = attend.register_propagate_forward_hook(lambda m, i, out: (out[0] - 1, out[1]))
    torch.testing.assert_close(attend(*qkv, EDGES)[0], plain - 1)
    handle.remove()

    def turn_edges(module, inputs):
        edge_index, size, kwargs = inputs
        return edge_index[:, :3], size, kwargs

    attend.register_propagate_forward_pre_hook(turn_edges)
    assert torch.equal(attend(*qkv, EDGES)[0], EdgeAttention()(*qkv, EDGES[:, :3])[0])


@pytest.mark.parametrize("lifted", [False, True])
def test_propagate_hooks_see_the_edges_given(qkv, lifted):
    attend, seen = EdgeAttention(), []
    if lifted:
        attend.register_message_forward_hook(lambda *_: None)
    attend.register_propagate_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    attend.register_propagate_forward_hook(lambda module, inputs, out: seen.append(inputs[0]))
    attend(*qkv, EDGES)
    assert len(seen) == 2
    assert all(torch.equal(edges, EDGES) for edges in seen)


def test_masked_nan_stays_hidden_when_lifted(qkv):
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 0] = True
    hidden = mask[..., None, None]
    results = []
    for filler in (0.0, torch.nan):
        attend = EdgeAttention()
        attend.register_message_forward_hook(lambda *_: None)
        leaves = [qkv[0].clone(), *(t.masked_fill(hidden, filler) for t in qkv[1:])]
        leaves = [t.requires_grad_() for t in leaves]
        mixed, _ = attend(*leaves, EDGES, key_mask=mask)
        results.append([mixed, *torch.autograd.grad(mixed.square().sum(), leaves)])
    for clean, poisoned in zip(*results, strict=True):
        assert torch.equal(clean, poisoned)


# --- explainer masks ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigmoid", [False, True])
def test_mask_entry_scales_its_own_message(qkv, sigmoid):
    attend = EdgeAttention()
    mask = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64)
    _, weights = attend(*qkv, EDGES, need_weights=True)
    set_masks(attend, mask, EDGES, apply_sigmoid=sigmoid)
    scale = mask.sigmoid() if sigmoid else mask
    messages = (weights * scale.view(-1, 1)).unsqueeze(-1) * qkv[2][:, EDGES[0]]
    expected = torch.zeros_like(qkv[0]).index_add(1, EDGES[1], messages)
    torch.testing.assert_close(attend(*qkv, EDGES)[0], expected, rtol=1e-12, atol=1e-13)
    clear_masks(attend)
    torch.testing.assert_close(attend(*qkv, EDGES)[0], EdgeAttention()(*qkv, EDGES)[0])


def test_added_edges_are_left_alone(qkv):
    attend = EdgeAttention()
    _, weights = attend(*qkv, EDGES, need_weights=True)
    set_masks(attend, torch.zeros(4), EDGES[:, :4], apply_sigmoid=False)
    mixed, _ = attend(*qkv, EDGES, num_given=4)
    messages = weights[:, 4:].unsqueeze(-1) * qkv[2][:, EDGES[0, 4:]]
    expected = torch.zeros_like(qkv[0]).index_add(1, EDGES[1, 4:], messages)
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [5, 7, 0])
def test_mask_of_another_length_is_refused(qkv, size):
    attend = EdgeAttention()
    set_masks(attend, torch.zeros(size), EDGES)
    with pytest.raises(PriorGraphError, match=r"one entry for each of the 6 edges.*got shape"):
        attend(*qkv, EDGES)


def test_explaining_without_a_mask_is_refused(qkv):
    attend = EdgeAttention()
    attend.explain = True
    with pytest.raises(PriorGraphError, match="must set an edge mask"):
        attend(*qkv, EDGES)


@pytest.mark.parametrize("loops", [False, True])
def test_fixed_edges_explained_with_other_edges_are_refused(loops):
    # Own edges: a -> b, b -> b, c -> a, with or without appended loops.
    source, target = [0, 1, 2], [1, 1, 0]
    layer = PackedMultiheadAttention(source, target, 3, 3, 4, 2, add_self_loops=loops)
    x = torch.randn(3, 4)
    own = torch.tensor([source, target])
    assert torch.equal(layer.given_edge_index, own)

    def explained(edge_index):
        set_masks(layer, torch.zeros(edge_index.shape[1]), edge_index, apply_sigmoid=False)
        try:
            return layer(x, x, x)[0]
        finally:
            clear_masks(layer)

    out = explained(own)
    if not loops:  # every message is scaled by 0
        torch.testing.assert_close(out, layer.out_proj.bias.expand(3, -1))
    for other in (own[:, :2], torch.cat([own, own[:, :1]], dim=1), own[:, [1, 0, 2]], own[:, [0, 0, 2]]):
        with pytest.raises(PriorGraphError, match="An edge mask must have one entry"):
            explained(other)
    if loops:
        with pytest.raises(PriorGraphError, match="each of the 3 edges the layer was given"):
            explained(torch.stack([layer.source_index, layer.target_index]))


@pytest.mark.parametrize("shape", [(), (1, 3), (3, 1), (4,), (0,)], ids=str)
def test_edge_masks_of_another_shape_are_refused(shape):
    layer = PackedMultiheadAttention([0, 1, 2], [1, 1, 0], 3, 3, 4, 2, add_self_loops=False)
    x = torch.randn(3, 4)
    set_masks(layer, torch.ones(shape), layer.given_edge_index, apply_sigmoid=False)
    with pytest.raises(PriorGraphError, match=r"one entry for each of the 3 edges.*got shape"):
        layer(x, x, x)
