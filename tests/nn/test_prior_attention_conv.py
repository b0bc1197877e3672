"""PriorAttentionConv: torch_geometric's TransformerConv and more, on every form of edges, explained."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.nn import Sequential, TransformerConv, global_mean_pool
from torch_geometric.nn.conv.message_passing import MessagePassing
from torch_geometric.utils import k_hop_subgraph, softmax

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.nn import EdgeAttention, PriorAttentionConv
from pyg_kpnn.ops.dropout import draw_seed

# 7 nodes; 0 -> 1 twice, a loop at 2, no edge into 6.
EDGES = torch.tensor([[0, 3, 0, 2, 5, 6, 4, 4, 1, 6, 5], [1, 1, 1, 2, 2, 3, 3, 0, 5, 5, 4]])
# The same without repeats and loops, for forms that sort or coalesce.
SIMPLE = torch.tensor([[0, 3, 5, 6, 4, 4, 1, 6, 5, 3], [1, 1, 2, 3, 3, 0, 5, 5, 4, 2]])
NEEDS_SAMPLER = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse")),
    reason="NeighborLoader needs pyg-lib or torch-sparse, neither is installed",
)


def features(*lead: int, nodes: int = 7, width: int = 4, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, nodes, width, generator=gen, dtype=torch.float64)


def make(*arguments, seed: int = 0, **options) -> PriorAttentionConv:
    torch.manual_seed(seed)
    return PriorAttentionConv(*(arguments or (4, 3)), **{"heads": 2, **options}).double()


def close(one, other) -> None:
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


# --- torch_geometric's layer ----------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("root_weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_transformer_conv(backend, chunk, edge_dim, concat, root_weight, bias):
    options = {"edge_dim": edge_dim, "concat": concat, "root_weight": root_weight, "bias": bias}
    ours = make(backend=backend, chunk_size=chunk, **options)
    theirs = TransformerConv(4, 3, heads=2, **options).double()
    missing = set(theirs.state_dict()) - set(ours.state_dict())
    assert all(name.startswith("lin_skip") and not root_weight for name in missing)
    ours.load_state_dict({n: t for n, t in theirs.state_dict().items() if n not in missing})
    attr = None if edge_dim is None else torch.randn(11, 2, dtype=torch.float64)
    results = []
    for conv in (ours, theirs):
        x = features().requires_grad_()
        out, (edges, alpha) = conv(x, EDGES, attr, return_attention_weights=True)
        assert torch.equal(conv(x, EDGES, attr), out)
        used = [p for n, p in conv.named_parameters() if n not in missing]
        grads = torch.autograd.grad(out.pow(2).sum() + alpha.pow(3).sum(), [x, *used])
        results.append([out, edges, alpha, *grads])
    close(*results)


def test_state_dict_loads_into_transformer_conv():
    ours, theirs = make(edge_dim=2), TransformerConv(4, 3, heads=2, edge_dim=2).double()
    theirs.load_state_dict(ours.state_dict())
    attr = torch.randn(11, 2, dtype=torch.float64)
    close(ours(features(), EDGES, attr), theirs(features(), EDGES, attr))


def test_parameter_shapes_and_reset():
    conv = make(edge_dim=2, concat=False)
    shapes = {n: tuple(p.shape) for n, p in conv.named_parameters()}
    assert shapes["lin_query.weight"] == (6, 4)
    assert shapes["lin_edge.weight"] == (6, 2)
    assert shapes["lin_skip.weight"] == (3, 4)
    before = copy.deepcopy(conv.state_dict())
    conv.reset_parameters()
    for name, tensor in conv.state_dict().items():
        assert not torch.equal(tensor, before[name]), name
    assert repr(make()) == "PriorAttentionConv(4, 3, heads=2)"


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(3,), (2, 3), (1,), (0,)], ids=str)
def test_static_batch_equals_a_loop(backend, chunk, lead):
    conv = make(backend=backend, chunk_size=chunk, edge_dim=2, add_self_loops=True)
    x, attr = features(*lead), features(*lead, nodes=11, width=2)
    bias = features(*lead, nodes=11, width=2, seed=3)
    out, (edges, alpha) = conv(x, EDGES, attr, bias, return_attention_weights=True)
    assert out.shape == (*lead, 7, 6)
    assert alpha.shape == (*lead, 11 + 7, 2)
    for index in np.ndindex(*lead):
        one, (_, share) = conv(x[index], EDGES, attr[index], bias[index], return_attention_weights=True)
        close(out[index], one)
        close(alpha[index], share)
    shared = (
        conv(x, EDGES, attr[(0,) * len(lead)])
        if 0 not in lead
        else conv(x, EDGES, features(nodes=11, width=2))
    )
    assert shared.shape == out.shape
    assert edges.shape == (2, 18)


def test_batch_of_graphs_equals_the_graphs():
    graphs = [Data(x=features(seed=s), edge_index=EDGES[:, s : s + 6]) for s in range(3)]
    batch = Batch.from_data_list(graphs)
    conv = make(add_self_loops=True)
    expected = torch.cat([conv(g.x, g.edge_index) for g in graphs])
    close(conv(batch.x, batch.edge_index), expected)


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_bipartite_equals_transformer_conv(backend, chunk, edge_dim):
    edges = torch.tensor([[0, 1, 2, 2, 4, 0], [0, 0, 0, 2, 2, 1]])
    ours = make((4, 2), 3, edge_dim=edge_dim, backend=backend, chunk_size=chunk)
    theirs = TransformerConv((4, 2), 3, heads=2, edge_dim=edge_dim).double()
    theirs.load_state_dict(ours.state_dict())
    x = (features(nodes=5), features(nodes=3, width=2))
    attr = None if edge_dim is None else torch.randn(6, 2, dtype=torch.float64)
    close(ours(x, edges, attr), theirs(x, edges, attr))
    batched = (features(3, nodes=5), features(3, nodes=3, width=2))
    out = ours(batched, edges, attr)
    for b in range(3):
        close(out[b], ours((batched[0][b], batched[1][b]), edges, attr))


def test_node_without_sources(backend, chunk):
    conv = make(backend=backend, chunk_size=chunk)
    x = features().requires_grad_()
    out = conv(x, EDGES)
    close(out[6], conv.lin_skip(x[6]))
    bare = make(root_weight=False, backend=backend, chunk_size=chunk)
    assert bare(x, EDGES)[6].count_nonzero() == 0
    bare(x, EDGES)[6].sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_without_edges(backend, chunk):
    none = torch.empty(2, 0, dtype=torch.int64)
    conv = make(backend=backend, chunk_size=chunk, edge_dim=2)
    out, (_, alpha) = conv(
        features(3), none, torch.empty(0, 2, dtype=torch.float64), return_attention_weights=True
    )
    close(out, conv.lin_skip(features(3)))
    assert alpha.shape == (3, 0, 2)


def test_self_loops_alone_pass_on_their_own_value(backend):
    conv = make(backend=backend, add_self_loops=True, root_weight=False)
    none = torch.empty(2, 0, dtype=torch.int64)
    close(conv(features(), none), conv.lin_value(features()))


# --- edges ----------------------------------------------------------------------------------------


def test_parallel_edges_are_edges_of_their_own(backend, chunk):
    conv = make(backend=backend, chunk_size=chunk, edge_dim=2)
    attr = torch.randn(11, 2, dtype=torch.float64)
    _, (_, alpha) = conv(features(), EDGES, attr, return_attention_weights=True)
    assert not torch.allclose(alpha[0], alpha[2])
    sums = torch.zeros(7, 2, dtype=torch.float64).index_add(0, EDGES[1], alpha)
    close(sums[:6], torch.ones(6, 2, dtype=torch.float64))
    plain = make(backend=backend, chunk_size=chunk)
    _, (_, alpha) = plain(features(), EDGES, return_attention_weights=True)
    close(alpha[0], alpha[2])


@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
def test_order_of_edges_changes_nothing_to_the_bit(backend, chunk):
    conv = make(backend=backend, chunk_size=chunk, edge_dim=2)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    attr, bias = torch.randn(10, 2, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    results = []
    for permutation in (torch.arange(10), order):
        x = features(3).requires_grad_()
        out, (edges, alpha) = conv(
            x, SIMPLE[:, permutation], attr[permutation], bias[permutation], return_attention_weights=True
        )
        assert torch.equal(edges, SIMPLE[:, permutation])
        grad = torch.autograd.grad(out.pow(2).sum(), [x, conv.lin_key.weight, conv.lin_value.weight])
        results.append((out, alpha, grad))
    (out, alpha, grad), (out2, alpha2, grad2) = results
    assert torch.equal(out, out2)
    assert torch.equal(alpha[:, order], alpha2)
    assert all(torch.equal(a, b) for a, b in zip(grad, grad2, strict=True))


@pytest.mark.parametrize("shape", [(11,), (11, 2), (3, 11, 2)])
@pytest.mark.parametrize("loops", [False, True])
def test_edge_bias_by_hand(backend, chunk, shape, loops):
    conv = make(backend=backend, chunk_size=chunk, add_self_loops=loops)
    x, bias = features(3), torch.randn(shape, dtype=torch.float64)
    out, (edges, alpha) = conv(x, EDGES, edge_bias=bias, return_attention_weights=True)
    full = (bias.unsqueeze(-1) if bias.dim() == 1 else bias).expand(3, 11, 2)
    if loops:  # node 2 has its own loop, so the appended one is silent
        silent = torch.zeros(3, 7, 2, dtype=torch.float64)
        silent[:, 2] = -torch.inf
        full = torch.cat([full, silent], dim=1)
    query, key, value = (
        lin(x).unflatten(-1, (2, 3)) for lin in (conv.lin_query, conv.lin_key, conv.lin_value)
    )
    scores = (query[:, edges[1]] * key[:, edges[0]]).sum(-1) / 3**0.5 + full
    expected = torch.stack([softmax(scores[b], edges[1], num_nodes=7) for b in range(3)])
    close(alpha, expected)
    mixed = torch.zeros(3, 7, 2, 3, dtype=torch.float64).index_add(
        1, edges[1], expected.unsqueeze(-1) * value[:, edges[0]]
    )
    close(out, mixed.flatten(-2) + conv.lin_skip(x))


def test_self_loops_given_or_added(backend, chunk):
    loops = torch.arange(7).expand(2, -1)
    x = features(3)
    added = make(backend=backend, chunk_size=chunk, add_self_loops=True)
    plain = make(backend=backend, chunk_size=chunk)
    out, (edges, alpha) = added(x, SIMPLE, return_attention_weights=True)
    assert torch.equal(edges, torch.cat([SIMPLE, loops], dim=1))
    close(out, plain(x, torch.cat([SIMPLE, loops], dim=1)))
    sums = torch.zeros(3, 7, 2, dtype=torch.float64).index_add(1, edges[1], alpha)
    close(sums, torch.ones_like(sums))
    # Some loops given: each is used once, the appended twin weighs nothing.
    given = torch.cat([SIMPLE, torch.tensor([[3, 0], [3, 0]])], dim=1)
    out, (edges, alpha) = added(x, given, return_attention_weights=True)
    assert edges.shape == (2, 19)
    assert alpha[:, [12 + 3, 12 + 0]].count_nonzero() == 0
    missing = torch.tensor([1, 2, 4, 5, 6]).expand(2, -1)
    close(out, plain(x, torch.cat([given, missing], dim=1)))
    # All given.
    everything = torch.cat([SIMPLE, loops], dim=1)
    close(added(x, everything), plain(x, everything))


@pytest.mark.parametrize("heads", [1, 3])
def test_loops_are_added_for_any_number_of_heads(backend, heads):
    added, plain = (make(4, 5, heads=heads, backend=backend, add_self_loops=loops) for loops in (True, False))
    loops = torch.arange(7).expand(2, -1)
    close(added(features(), SIMPLE), plain(features(), torch.cat([SIMPLE, loops], dim=1)))


def test_added_loops_have_no_features(backend):
    added, plain = (make(backend=backend, edge_dim=2, add_self_loops=loops) for loops in (True, False))
    attr = torch.randn(10, 2, dtype=torch.float64)
    loops = torch.arange(7).expand(2, -1)
    padded = torch.cat([attr, attr.new_zeros(7, 2)])
    close(added(features(), SIMPLE, attr), plain(features(), torch.cat([SIMPLE, loops], dim=1), padded))


def sparse_forms(edges: torch.Tensor, nodes: int, values: torch.Tensor | None = None):
    """PyG's transposed sparse adjacency ``adj.t()`` in three layouts: rows are targets."""
    values = torch.ones(edges.shape[1], dtype=torch.float64) if values is None else values
    coo = torch.sparse_coo_tensor(edges.flip(0), values, (nodes, nodes), check_invariants=True).coalesce()
    return {"coo": coo, "csr": coo.to_sparse_csr(), "csc": coo.to_sparse_csc()}


IGNORE_SPARSE = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")


@IGNORE_SPARSE
@pytest.mark.parametrize(
    "form", ["coo", "csr", "csc", "edge_index", "edge_index_by_row", "edge_index_by_col", "int32"]
)
@pytest.mark.parametrize("loops", [False, True])
def test_every_form_of_edges(backend, chunk, form, loops):
    conv = make(backend=backend, chunk_size=chunk, add_self_loops=loops)
    x = features(3)
    if form == "int32":
        edges = SIMPLE.int()
    elif form.startswith("edge_index"):
        edges = EdgeIndex(SIMPLE, sparse_size=(7, 7))
        if "_by_" in form:
            edges = edges.sort_by(form[-3:])[0]
    else:
        edges = sparse_forms(SIMPLE, 7)[form]
    out, (used, alpha) = conv(x, edges, return_attention_weights=True)
    expected, (_, weights) = conv(x, SIMPLE, return_attention_weights=True)
    close(out, expected)
    place = {pair: i for i, pair in enumerate(zip(*SIMPLE.tolist(), strict=True))}
    order = [place[pair] for pair in zip(*used[:, :10].tolist(), strict=True)]
    assert sorted(order) == list(range(10))
    close(alpha[:, :10], weights[:, order])
    close(alpha[:, 10:], weights[:, 10:])


@IGNORE_SPARSE
@pytest.mark.parametrize("form", ["csc", "csr", "edge_index_by_col"])
def test_hessian_on_sparse_edges_equals_the_one_on_plain_edges(backend, form):
    conv = make(backend=backend)
    x = features()[None][0]
    edges = (
        EdgeIndex(SIMPLE, sparse_size=(7, 7)).sort_by("col")[0]
        if form == "edge_index_by_col"
        else sparse_forms(SIMPLE, 7)[form]
    )

    def hessian(edges):
        return torch.autograd.functional.hessian(lambda x: conv(x, edges).pow(3).sum(), x)

    expected = hessian(SIMPLE)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(hessian(edges), expected, rtol=1e-9, atol=1e-10)


@IGNORE_SPARSE
def test_sparse_values_of_two_axes_are_edge_features():
    conv = make(edge_dim=2)
    attr = torch.randn(10, 2, dtype=torch.float64)
    coo = torch.sparse_coo_tensor(SIMPLE.flip(0), attr, (7, 7, 2), check_invariants=True).coalesce()
    close(conv(features(), coo), conv(features(), SIMPLE, attr))


# --- inside torch_geometric -----------------------------------------------------------------------


def test_sequential():
    model = Sequential(
        "x, edge_index, batch",
        [
            (PriorAttentionConv(4, 3, heads=2), "x, edge_index -> x"),
            torch.nn.ReLU(inplace=True),
            (PriorAttentionConv(6, 5, concat=False), "x, edge_index -> x"),
            (global_mean_pool, "x, batch -> x"),
        ],
    )
    batch = Batch.from_data_list([Data(x=features().float(), edge_index=EDGES) for _ in range(3)])
    out = model(batch.x, batch.edge_index, batch.batch)
    assert out.shape == (3, 5)
    torch.testing.assert_close(out[0], out[2])


def test_lazy_width():
    conv = PriorAttentionConv(-1, 3, heads=2)
    x = features().float()
    assert conv(x, EDGES).shape == (7, 6)
    assert conv.lin_key.weight.shape == (6, 4)
    both = PriorAttentionConv((-1, -1), 3)
    assert both((features(nodes=5, width=2).float(), x), EDGES[:, [0]]).shape == (7, 3)
    assert (both.lin_key.weight.shape, both.lin_query.weight.shape) == ((3, 2), (3, 4))


def test_projections_of_torch_serve_as_well():
    conv = make()
    expected = conv(features(), EDGES)
    for name in ("lin_key", "lin_query", "lin_value", "lin_skip"):
        ours = getattr(conv, name)
        theirs = torch.nn.Linear(4, 6).double()
        theirs.load_state_dict(ours.state_dict())
        setattr(conv, name, torch.nn.Sequential(theirs))
    close(conv(features(), EDGES), expected)


def test_hand_made_neighbour_batch_equals_the_full_graph():
    # Targets 1 and 5 with all their sources, renumbered: targets first, as a sampler does.
    conv, x = make(edge_dim=2), features()
    attr = torch.randn(11, 2, dtype=torch.float64)
    full = conv(x, EDGES, attr)
    nodes = torch.tensor([1, 5, 0, 3, 6])
    chosen = torch.isin(EDGES[1], nodes[:2]).nonzero().flatten()
    local = torch.full((7,), -1)
    local[nodes] = torch.arange(5)
    sampled = local[EDGES[:, chosen]]
    assert sampled.min() >= 0
    out = conv((x[nodes], x[nodes[:2]]), sampled, attr[chosen])
    close(out, full[nodes[:2]])


def test_k_hop_subgraph_equals_the_full_graph():
    torch.manual_seed(0)
    model = Sequential(
        "x, edge_index",
        [(make(4, 3), "x, edge_index -> x"), (make(6, 2, add_self_loops=True), "x, edge_index -> x")],
    )
    x = features()
    full = model(x, EDGES)
    for centre in range(7):
        nodes, edges, mapping, _ = k_hop_subgraph(centre, 2, EDGES, relabel_nodes=True, num_nodes=7)
        close(model(x[nodes], edges)[mapping], full[[centre]])


@NEEDS_SAMPLER
def test_neighbor_loader_equals_the_full_graph():
    from torch_geometric.loader import NeighborLoader

    conv, x = make(), features()
    full = conv(x, EDGES)
    loader = NeighborLoader(Data(x=x, edge_index=EDGES), num_neighbors=[-1], batch_size=3)
    for batch in loader:
        close(conv(batch.x, batch.edge_index)[: batch.batch_size], full[batch.n_id[: batch.batch_size]])


# --- explained ------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """One or two layers and, for a whole graph, a mean."""

    def __init__(self, *layers: PriorAttentionConv, pool: bool = False):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.pool = pool

    def forward(self, x, edge_index, **options):
        for layer in self.layers:
            x = layer(x, edge_index, **options)
        return x.mean(-2, keepdim=True) if self.pool else x


def explain(model, algorithm, x, edges=EDGES, level="node", **options):
    kind = {"edge_mask_type": "object"}
    if isinstance(algorithm, GNNExplainer):
        kind["node_mask_type"] = "attributes"
    explainer = Explainer(
        model,
        algorithm,
        explanation_type="model",
        model_config={"mode": "regression", "task_level": level, "return_type": "raw"},
        **kind,
    )
    return explainer(x, edges, **options)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("layers", [1, 2])
def test_attention_explainer_shows_the_weights(loops, level, layers):
    convs = [make(4, 3, add_self_loops=loops), make(6, 3, add_self_loops=loops, seed=1)][:layers]
    model = Model(*convs, pool=level == "graph")
    x, expected = features(), []
    hidden = x
    for conv in convs:
        hidden, (edges, alpha) = conv(hidden, EDGES, return_attention_weights=True)
        assert torch.equal(edges[:, :11], EDGES)
        expected.append(alpha[:11].max(-1).values)
    explanation = explain(model, AttentionExplainer(), x, level=level)
    torch.testing.assert_close(explanation.edge_mask, torch.stack(expected).max(0).values)


def test_attention_explainer_of_a_static_batch_shows_the_mean():
    conv = make(add_self_loops=True)
    x = features(3)
    _, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    # The explainer's own shape checks are for one graph; the layer is what is asked here.
    alphas = AttentionExplainer()._collect_attention_coefficients(Model(conv), x, EDGES)
    torch.testing.assert_close(alphas[0], alpha.mean(0))


def test_attention_explainer_meets_each_edge_whatever_the_order():
    conv, x = make(add_self_loops=True), features()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    plain = explain(Model(conv), AttentionExplainer(), x).edge_mask
    turned = explain(Model(conv), AttentionExplainer(), x, EDGES[:, order]).edge_mask
    torch.testing.assert_close(turned, plain[order])


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.*:UserWarning")
def test_gnn_explainer_runs(loops, level):
    model = Model(make(4, 3, add_self_loops=loops), make(6, 2, add_self_loops=loops), pool=level == "graph")
    torch.manual_seed(0)
    options = {"index": 1} if level == "node" else {}
    explanation = explain(model.float(), GNNExplainer(epochs=5), features().float(), level=level, **options)
    assert explanation.edge_mask.shape == (11,)
    assert explanation.edge_mask.isfinite().all()
    if level == "node":  # what is more than two steps away from node 1 has no say
        nodes, _, _, used = k_hop_subgraph(1, 2, EDGES, num_nodes=7)
        assert explanation.edge_mask[~used].count_nonzero() == 0
        assert explanation.edge_mask[used].count_nonzero() > 0
        assert set(nodes.tolist()) != set(range(7))
    assert not any(m.explain for m in model.modules() if isinstance(m, MessagePassing))


def masked(conv, x, mask, edges=EDGES):
    """Output under an explainer's mask, taken as it is."""
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    set_masks(conv, mask, edges, apply_sigmoid=False)
    try:
        return conv(x, edges)
    finally:
        clear_masks(conv)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_mask_entry_e_meets_edge_e(loops, lead):
    # EDGES holds a loop of the caller's own and a parallel pair.
    conv, x = make(add_self_loops=loops), features(*lead)
    plain, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    value = conv.lin_value(x).unflatten(-1, (2, 3))
    close(masked(conv, x, torch.ones(11, dtype=torch.float64)), plain)
    for e, (source, target) in enumerate(EDGES.T.tolist()):
        mask = torch.ones(11, dtype=torch.float64)
        mask[e] = 0.25
        expected = plain.clone()
        lost = 0.75 * alpha[..., e, :].unsqueeze(-1) * value[..., source, :, :]
        expected[..., target, :] -= lost.flatten(-2)
        close(masked(conv, x, mask), expected)


def test_gradient_of_the_mask_is_each_edges_own():
    conv, x = make(add_self_loops=True), features()
    mask = torch.ones(11, dtype=torch.float64, requires_grad=True)
    target = 1
    (grad,) = torch.autograd.grad(masked(conv, x, mask)[target].sum(), mask)
    assert (grad != 0).tolist() == (EDGES[1] == target).tolist()


def test_mask_of_other_edges_is_refused():
    conv = make(add_self_loops=True)
    with pytest.raises(PriorGraphError, match="one entry for each of the 11 edges"):
        masked(conv, features(), torch.ones(18))


# --- hooks, random stream, memory of layouts ------------------------------------------------------


def test_hooks_of_the_operator_take_effect():
    conv, x = make(), features()
    handle = conv.attention.register_message_forward_hook(lambda module, inputs, out: 0 * out)
    close(conv(x, EDGES), conv.lin_skip(x))
    handle.remove()
    assert not torch.allclose(conv(x, EDGES), conv.lin_skip(x))


def test_returned_weights_are_before_dropout():
    conv, x = make(dropout=0.5), features()
    conv.eval()
    _, (_, plain) = conv(x, EDGES, return_attention_weights=True)
    conv.train()
    torch.manual_seed(0)
    out, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    state = torch.get_rng_state()
    close(alpha, plain)
    torch.manual_seed(0)
    close(conv(x, EDGES), out)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    draw_seed(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(out, conv.eval()(x, EDGES))


def test_false_returns_weights_too():
    # As in torch_geometric, where any bool asks for them.
    assert isinstance(make()(features(), EDGES, return_attention_weights=False), tuple)


def test_a_write_to_the_edges_is_seen():
    for loops in (False, True):
        conv, x, edges = make(add_self_loops=loops), features(), EDGES.clone()
        before = conv(x, edges)
        edges[0, 1] = 5
        after = conv(x, edges)
        assert not torch.equal(before, after)
        close(after, conv(x, edges.clone()))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_remember_no_layout(copied):
    conv, x = make(), features()
    expected = conv(x, EDGES)
    twin = copied(conv)
    assert twin.attention._layouts._last is None
    assert torch.equal(twin(x, EDGES), expected)


def test_layout_is_remembered_for_the_callers_tensor(monkeypatch):
    from pyg_kpnn.ops import EdgeLayout

    built, build = [], EdgeLayout.__init__
    monkeypatch.setattr(EdgeLayout, "__init__", lambda self, *args: built.append(1) or build(self, *args))
    for loops in (False, True):
        conv = make(add_self_loops=loops)
        for edges in (EDGES, EdgeIndex(SIMPLE, sparse_size=(7, 7))):
            built.clear()
            for _ in range(3):
                conv(features(3), edges)
            assert built == [1]


def test_layout_with_loops_is_not_taken_for_one_without():
    conv, x = make(), features()
    plain = conv(x, EDGES)
    conv.add_self_loops = True
    close(conv(x, EDGES), make(add_self_loops=True)(x, EDGES))
    conv.add_self_loops = False
    close(conv(x, EDGES), plain)


def test_autocast_is_followed(backend):
    conv = make(backend=backend).float()
    x = features(3).float().requires_grad_()
    plain = conv(x, EDGES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, (_, alpha) = conv(x, EDGES, return_attention_weights=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), plain, rtol=0.05, atol=0.05)
    # The softmax ran in float32: every weight was rounded once.
    sums = torch.zeros(3, 7, 2).index_add(1, EDGES[1], alpha.float())
    torch.testing.assert_close(sums[:, :6], torch.ones(3, 6, 2), rtol=8e-3, atol=0)
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("chunk_size", [None, 512])
@pytest.mark.parametrize("backend", ["torch", "scatter"], indirect=True)
def test_nothing_quadratic_and_nothing_of_edges_times_channels(backend, chunk_size, largest_tensor):
    n, edges, heads, width = 3000, 20_000, 4, 16
    gen = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, n, (2, edges), generator=gen)
    conv = PriorAttentionConv(
        heads * width, width, heads=heads, dropout=0.1, chunk_size=chunk_size, backend=backend
    )
    x = torch.randn(n, heads * width, generator=gen, requires_grad=True)
    with largest_tensor() as record:
        conv(x, edge_index).square().sum().backward()
    limit = n * n if chunk_size is None else min(n * n, edges * heads * width)
    assert n * heads * width <= record.numel < limit


@pytest.mark.usefixtures("without_scatter")
def test_without_torch_scatter():
    out = make(backend="auto")(features(), EDGES)
    torch.testing.assert_close(out, make(backend="torch")(features(), EDGES))
    with pytest.raises(PriorGraphError, match="torch_scatter cannot be imported"):
        make(backend="scatter")(features(), EDGES)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"out_channels": 0}, "out_channels must be a positive integer"),
        ({"out_channels": 2.0}, "out_channels must be a positive integer"),
        ({"heads": 0}, "heads must be a positive integer"),
        ({"heads": True}, "heads must be a positive integer"),
        ({"concat": 1}, "concat must be True or False"),
        ({"root_weight": None}, "root_weight must be True or False"),
        ({"add_self_loops": 0}, "add_self_loops must be True or False"),
        ({"bias": 1}, "bias must be True or False"),
        ({"edge_dim": 0}, "edge_dim must be a positive integer"),
        ({"dropout": 1.5}, "dropout must be a number"),
        ({"chunk_size": -1}, "chunk_size must be a positive integer"),
        ({"backend": "cuda"}, "backend must be one of"),
        ({"in_channels": 0}, "in_channels must be"),
        ({"in_channels": -2}, "in_channels must be"),
        ({"in_channels": 4.0}, "in_channels must be"),
        ({"in_channels": True}, "in_channels must be"),
        ({"in_channels": (4,)}, "in_channels must be"),
        ({"in_channels": (4, 4, 4)}, "in_channels must be"),
        ({"in_channels": (4, None)}, "in_channels must be"),
    ],
)
def test_refused_at_construction(arguments, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        PriorAttentionConv(**{"in_channels": 4, "out_channels": 3, **arguments})


@pytest.mark.parametrize("width", [np.int64(4), np.int32(4)])
def test_numpy_widths_are_stored_as_python_numbers(width):
    conv = PriorAttentionConv(
        width, np.int64(3), heads=np.int8(2), edge_dim=np.int64(2), chunk_size=np.int64(5)
    )
    assert {type(v) for v in (conv.out_channels, conv.heads, conv.edge_dim, conv.attention.chunk_size)} == {
        int
    }
    assert type(conv.in_channels) is int


@pytest.mark.parametrize(
    ("edge_dim", "arguments", "fragment"),
    [
        (
            None,
            {"edge_index": EDGES.tolist()},
            "edge_index must be a .2, E. tensor or a sparse adjacency, got list",
        ),
        (None, {"edge_index": None}, "edge_index must be"),
        (None, {"edge_index": EDGES.float()}, "edge_index must be an integer tensor"),
        (None, {"edge_index": EDGES[0]}, "edge_index must have shape"),
        (None, {"edge_index": EDGES[:, 0]}, "edge_index must have shape"),
        (None, {"edge_index": EDGES.T}, "edge_index must have shape"),
        (None, {"edge_index": EDGES[:1]}, "edge_index must have shape"),
        (None, {"edge_index": EDGES + 1}, r"source index must be in \[0, 7\), got 7 at edge 5"),
        (None, {"edge_index": EDGES - 1}, r"source index must be in \[0, 7\), got -1 at edge 0"),
        (None, {"edge_attr": torch.zeros(11, 2)}, "edge_attr needs edge_dim"),
        (2, {}, "edge_attr must be given to a layer with edge_dim=2"),
        (2, {"edge_attr": torch.zeros(11, 3)}, r"edge_attr must have shape \(\.\.\., 11, 2\)"),
        (2, {"edge_attr": torch.zeros(10, 2)}, r"edge_attr must have shape \(\.\.\., 11, 2\)"),
        (2, {"edge_attr": torch.zeros(11)}, r"edge_attr must have shape \(\.\.\., 11, 2\)"),
        (None, {"edge_bias": torch.zeros(10)}, "bias must have shape"),
        (None, {"edge_bias": torch.zeros(11, 3)}, "bias must have shape"),
        (None, {"edge_bias": torch.tensor(0.0)}, r"bias must (have shape|be a floating-point tensor with)"),
        (None, {"x": features()[0].float()}, r"x must be floating point of shape \(\.\.\., N, 4\)"),
        (None, {"x": [[0.0] * 4] * 7}, "x must be a tensor or a tuple of two"),
        (None, {"x": (features().float(), None)}, "x must be a tensor or a tuple of two"),
        (None, {"x": (features().float(),)}, "x must be a tensor or a tuple of two"),
        (None, {"x": (features().float(),) * 3}, "x must be a tensor or a tuple of two"),
        (None, {"x": ()}, "x must be a tensor or a tuple of two"),
    ],
)
@pytest.mark.parametrize("loops", [False, True])
def test_refused_in_forward(edge_dim, arguments, fragment, loops):
    conv = PriorAttentionConv(4, 3, heads=2, edge_dim=edge_dim, add_self_loops=loops)
    with pytest.raises(PriorGraphError, match=fragment):
        conv(**{"x": features().float(), "edge_index": EDGES, **arguments})


def test_self_loops_need_one_set_of_nodes():
    conv = make(add_self_loops=True)
    with pytest.raises(
        PriorGraphError, match="add_self_loops requires as many source as target nodes, got 7 and 5"
    ):
        conv((features(), features(nodes=5)), EDGES)


def test_is_no_message_passing_layer_but_holds_one():
    # An explainer walks the modules: it must meet the operator once.
    assert [type(m) for m in make().modules() if isinstance(m, MessagePassing)] == [EdgeAttention]


# --- writes that torch does not count -------------------------------------------------------------


@pytest.mark.parametrize("write", ["numpy", "data", "replaced data"])
def test_layout_follows_writes_that_torch_does_not_count(write):
    array = EDGES.numpy().copy()
    edges = torch.from_numpy(array)
    conv = make(backend="torch")
    conv(features(), edges)
    other = EDGES.flip(1).flip(0).contiguous() % 5
    if write == "numpy":
        array[:] = other.numpy()
    elif write == "data":
        edges.data[:] = other
    else:
        edges.data = other.clone()
    assert torch.equal(conv(features(), edges), make(backend="torch")(features(), other))
