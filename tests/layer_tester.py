"""One table of the public layers, and what every test of them needs: build, draw, call, differentiate.

Test files take ``tester`` and ``case`` from ``tests/conftest.py``; a layer that is in the table goes through
the matrix of ``tests/nn/test_layer_matrix.py`` and through ``tests/hardening``, on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import (
    EdgeAttention,
    FixedEdgeModel,
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
# 7 nodes; a loop at 1, node 3 has no edge into it, node 6 none out of it, node 5 none at all.
SQUARE = torch.tensor([[0, 2, 1, 1, 3, 4, 0, 2, 3], [1, 1, 1, 2, 2, 0, 4, 6, 6]])
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
GRAPH_EDGES = torch.cat([GRAPH.edge_index, torch.tensor([0, 2, 3, 4, 5, 6]).expand(2, -1)], dim=1)
# Which keys three samples lack; the second sample has a node with no live source in every graph above.
MASK = torch.tensor(
    [
        [True, False, False, False, True, True, False],
        [False, False, True, False, False, False, False],
        [False, True, False, False, False, True, True],
    ]
)


def attend(q, k, v, edges, hidden=None, bias=None, features=None) -> tuple[Tensor, Tensor]:
    """One sample by loops: q (T, H, d), k and v (S, H, d), edges (2, E), hidden (S,), bias (E, H)."""
    pairs = edges.T.tolist()
    weights = q.new_zeros(len(pairs), q.shape[1])
    mixed = torch.zeros_like(q)
    for target in range(q.shape[0]):
        live = [e for e, (s, t) in enumerate(pairs) if t == target and not (hidden is not None and hidden[s])]
        for head in range(q.shape[1]):
            if not live:
                continue
            extra = [0.0 if features is None else features[e, head] for e in live]
            offers = torch.stack([k[pairs[e][0], head] + x for e, x in zip(live, extra, strict=True)])
            carried = torch.stack([v[pairs[e][0], head] + x for e, x in zip(live, extra, strict=True)])
            scores = offers @ q[target, head] / q.shape[-1] ** 0.5
            if bias is not None:
                scores = scores + torch.stack([bias[e, head] for e in live])
            share = scores.softmax(0)
            cell = torch.zeros(q.shape[0], q.shape[1], 1, dtype=q.dtype)
            cell[target, head] = 1.0
            mixed = mixed + cell * (share @ carried)
            for e, w in zip(live, share.unbind(), strict=True):
                spot = torch.zeros_like(weights)
                spot[e, head] = 1.0
                weights = weights + spot * w
    return mixed, weights


def split(tensor: Tensor) -> Tensor:
    return tensor.unflatten(-1, (HEADS, -1))


# --- oracles: one sample, by loops ----------------------------------------------------------------


def operator_oracle(layer, inputs, mask):
    return attend(*inputs, BIPARTITE, mask)[0]


def packed_oracle(layer, inputs, mask, edges=BIPARTITE):
    query, key, value = inputs * 3 if len(inputs) == 1 else inputs
    q, k, v = (split(p(t)) for p, t in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value)))
    return layer.out_proj(attend(q, k, v, edges, mask)[0].flatten(-2))


def conv_oracle(layer, inputs, mask):
    x, edge_attr, bias = inputs
    missing = torch.tensor([i for i in range(7) if i != 2])
    edges = torch.cat([NODES, missing.expand(2, -1)], dim=1)
    features = split(torch.cat([layer.lin_edge(edge_attr), x.new_zeros(6, EMBED)]))
    bias = torch.cat([bias, x.new_zeros(6, HEADS)])
    q, k, v = (split(lin(x)) for lin in (layer.lin_query, layer.lin_key, layer.lin_value))
    return attend(q, k, v, edges, None, bias, features)[0].flatten(-2) + layer.lin_skip(x)


def pair_oracle(layer, inputs, mask):
    source, target = inputs
    q, k, v = split(layer.lin_query(target)), split(layer.lin_key(source)), split(layer.lin_value(source))
    return attend(q, k, v, BIPARTITE)[0].mean(-2)


def layer_oracle(layer, inputs, mask, bias=None):
    (tokens,) = inputs
    normed, inner = layer.attention_norm(tokens), layer.attention
    q, k, v = (split(p(normed)) for p in (inner.q_proj, inner.k_proj, inner.v_proj))
    mixed = attend(q, k, v, GRAPH_EDGES, mask, bias)[0]
    tokens = tokens + inner.out_proj(mixed.flatten(-2))
    return tokens + layer.feedforward(layer.feedforward_norm(tokens))


def still_hidden(hidden, edges):
    """Masked nodes that no edge tells anything: they stay masked in the next layer."""
    return {t for t in hidden if not any(s not in hidden for s, other in edges if other == t)}


def transformer_oracle(model, inputs, mask):
    (x,) = inputs
    known = 1.0 if mask is None else (~mask).to(x.dtype)
    tokens = model.name_embedding + (x * known).unsqueeze(-1) * model.value_weight
    classes = torch.cat([GRAPH.sign.long() + 1, torch.full((6,), 3)])
    hidden = mask
    for index, layer in enumerate(model.layers):
        bias = model.sign_bias[index][classes] if model.edge_bias == "sign" else None
        tokens = layer_oracle(layer, (tokens,), hidden, bias)
        if hidden is not None:
            stay = still_hidden(set(hidden.nonzero().flatten().tolist()), GRAPH_EDGES.T.tolist())
            hidden = torch.tensor([i in stay for i in range(7)])
    tokens = model.norm(tokens)
    weight, bias = model.head.weight, model.head.bias
    if model.readout == "node":
        return torch.stack([weight[i] @ tokens[i] + bias[i] for i in range(7)])
    live = range(7) if mask is None else [i for i in range(7) if not mask[i]]
    if model.shared_head:
        return weight @ torch.stack([tokens[i] for i in live]).mean(0) + bias
    own = weight.view(len(weight), 7, -1)
    return sum(own[:, i] @ tokens[i] for i in live) + bias


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A layer, how to call it on a list of inputs and a key mask, and what it is for one sample.

    ``roles`` says what lies along the first axis of each input (without the batch axis): queries, keys,
    both (nodes) or edges. ``edges`` are those that attention runs along, with added self-loops.
    """

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    roles: tuple[str, ...]
    edges: Tensor
    call: Callable[..., Tensor]
    weights: Callable[..., Any]  # called as ``call``: output and weights
    oracle: Callable[..., Tensor]
    takes_mask: bool = True
    hides: tuple[int, ...] = ()  # inputs of which nothing masked is read, not even as a query
    pooled: bool = False  # one row a sample comes out, not one a target
    depth: int = 1  # layers of attention
    compiles: bool = True


LOOPED = torch.cat([NODES, torch.arange(7).expand(2, -1)], dim=1)

CASES = {
    "operator": Case(
        EdgeAttention,
        ((5, HEADS, WIDTH), (7, HEADS, WIDTH), (7, HEADS, WIDTH)),
        ("query", "key", "key"),
        BIPARTITE,
        lambda layer, inputs, mask: layer(*inputs, BIPARTITE, key_mask=mask)[0],
        lambda layer, inputs, mask: layer(*inputs, BIPARTITE, key_mask=mask, need_weights=True),
        operator_oracle,
        hides=(1, 2),
    ),
    "packed": Case(
        lambda: PackedMultiheadAttention(BIPARTITE[0], BIPARTITE[1], 5, 7, EMBED, HEADS),
        ((5, EMBED), (7, EMBED), (7, EMBED)),
        ("query", "key", "key"),
        BIPARTITE,
        lambda layer, inputs, mask: layer(*inputs, key_padding_mask=mask)[0],
        lambda layer, inputs, mask: layer(*inputs, key_padding_mask=mask, need_weights=True),
        packed_oracle,
        hides=(1, 2),
    ),
    "self": Case(
        lambda: PackedMultiheadAttention(SQUARE[0], SQUARE[1], 7, 7, EMBED, HEADS),
        ((7, EMBED),),
        ("both",),
        SQUARE,
        lambda layer, inputs, mask: layer(inputs[0], inputs[0], inputs[0], mask)[0],
        lambda layer, inputs, mask: layer(inputs[0], inputs[0], inputs[0], mask, need_weights=True),
        lambda layer, inputs, mask: packed_oracle(layer, inputs, mask, SQUARE),
    ),
    "conv": Case(
        lambda: PriorAttentionConv(4, WIDTH, heads=HEADS, edge_dim=2, add_self_loops=True),
        ((7, 4), (9, 2), (9, HEADS)),
        ("both", "edge", "edge"),
        LOOPED,
        lambda layer, inputs, mask: layer(inputs[0], NODES, inputs[1], inputs[2]),
        lambda layer, inputs, mask: layer(inputs[0], NODES, *inputs[1:], return_attention_weights=True),
        conv_oracle,
        takes_mask=False,
    ),
    "pair": Case(
        lambda: PriorAttentionConv((4, 5), WIDTH, heads=HEADS, concat=False, root_weight=False),
        ((7, 4), (5, 5)),
        ("key", "query"),
        BIPARTITE,
        lambda layer, inputs, mask: layer(tuple(inputs), BIPARTITE),
        lambda layer, inputs, mask: layer(tuple(inputs), BIPARTITE, return_attention_weights=True),
        pair_oracle,
        takes_mask=False,
    ),
    "layer": Case(
        lambda: PriorTransformerLayer(GRAPH, EMBED, HEADS, feedforward_dim=5),
        ((7, EMBED),),
        ("both",),
        GRAPH_EDGES,
        lambda layer, inputs, mask: layer(inputs[0], mask)[0],
        lambda layer, inputs, mask: layer(inputs[0], mask, need_weights=True),
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
        ("both",),
        GRAPH_EDGES,
        lambda layer, inputs, mask: layer(inputs[0], mask),
        lambda layer, inputs, mask: (layer(inputs[0], mask), layer.edge_weights(inputs[0], mask)),
        transformer_oracle,
        hides=(0,),
        pooled=True,
        depth=2,
    ),
    "shared head": Case(
        lambda: PriorTransformer(
            GRAPH, embed_dim=EMBED, num_heads=HEADS, num_layers=2, readout="graph", shared_head=True
        ),
        ((7,),),
        ("both",),
        GRAPH_EDGES,
        lambda layer, inputs, mask: layer(inputs[0], mask),
        lambda layer, inputs, mask: (layer(inputs[0], mask), layer.edge_weights(inputs[0], mask)),
        lambda layer, inputs, mask: transformer_oracle(layer, inputs, mask).squeeze(-1),
        hides=(0,),
        pooled=True,
        depth=2,
    ),
    "fixed": Case(
        lambda: FixedEdgeModel(PriorTransformer(GRAPH, embed_dim=EMBED, num_heads=HEADS, num_layers=2)),
        ((7,),),
        ("both",),
        GRAPH_EDGES,
        lambda layer, inputs, mask: layer(inputs[0], GRAPH.edge_index, key_padding_mask=mask),
        lambda layer, inputs, mask: (
            layer(inputs[0], GRAPH.edge_index, key_padding_mask=mask),
            layer.model.edge_weights(inputs[0], mask),
        ),
        lambda layer, inputs, mask: transformer_oracle(layer.model, inputs, mask),
        hides=(0,),
        depth=2,
        compiles=False,  # it compares edges by value, which a compiled program cannot decide by
    ),
}


class LayerTester:
    """How a layer of the table is built, called and differentiated, the same in every test."""

    cases = CASES
    mask = MASK

    def make(self, case: Case, dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
        """The layer in eval mode; ``settings`` (backend, chunk_size, dropout) go to its operators."""
        torch.manual_seed(0)
        layer = case.build().to(dtype).eval()
        with torch.no_grad():  # biases start at zero, where a mistake in one would not show
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64).to(dtype))
        return self.configure(layer, **settings)

    def configure(self, layer: nn.Module, **settings: Any) -> nn.Module:
        operators = [m for m in layer.modules() if isinstance(m, EdgeAttention)]
        assert operators
        for operator in operators:
            for name, value in settings.items():
                assert hasattr(operator, name)
                setattr(operator, name, value)
        return layer

    def draw(self, case: Case, batch: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Inputs that require gradients, with one batch axis."""
        gen = torch.Generator().manual_seed(1)
        return [
            torch.randn(batch, *shape, generator=gen, dtype=torch.float64).to(dtype).requires_grad_()
            for shape in case.shapes
        ]

    def loss(self, output: Tensor) -> Tensor:
        """A number in which no entry of ``output`` weighs as much as another, and none only linearly."""
        weight = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).view_as(output)
        return (output.square() * weight).sum()

    def derivatives(self, output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        """First derivatives of the loss, and the derivative of their squared norm."""
        first = torch.autograd.grad(self.loss(output), leaves, create_graph=True, materialize_grads=True)
        norm = sum(g.square().sum() for g in first)
        return [*first, *torch.autograd.grad(norm, leaves, materialize_grads=True)]

    def looped(self, case: Case, layer: nn.Module, inputs: list[Tensor], mask: Tensor | None) -> Tensor:
        """What ``case.call`` must return, sample by sample and edge by edge."""
        samples = [
            case.oracle(layer, [t[b] for t in inputs], None if mask is None else mask[b])
            for b in range(inputs[0].shape[0])
        ]
        return torch.stack(samples)

    def touched(self, case: Case, place: int, entry: int, hidden: set[int]) -> set[int]:
        """Targets whose output may read ``entry`` of input ``place`` when the keys ``hidden`` are masked."""
        pairs, role = case.edges.T.tolist(), case.roles[place]
        if role == "edge":
            return {pairs[entry][1]}
        rows = set() if role == "key" else {entry}
        front = set() if role == "query" else {entry}
        away = hidden
        for _ in range(case.depth):
            front = front | {t for s, t in pairs if s in front and s not in away}
            away = still_hidden(away, pairs)
            rows = rows | (front - {entry})
        return rows | ({entry} & {t for s, t in pairs if s == t == entry} - hidden)
