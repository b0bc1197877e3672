"""Interactions against full Hessians of torch.func, their structural zeros, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import hessian, jacfwd, jacrev, vmap

from pyg_kpnn import PackedMultiheadAttention, PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import interactions, second_order
from pyg_kpnn.explain.curvature import Curvature

D = torch.float64
EDGES = [("a", "t"), ("b", "t"), ("c", "a"), ("t", "u"), ("d", "e"), ("f", "d"), ("b", "e")]
GRAPH = PriorGraph.from_edges(EDGES)
NAMES = list(GRAPH.nodes)
PAIRS = [(a, b) for i, a in enumerate(NAMES) for b in NAMES[i:]]
INF = np.inf


def build(seed=3, **options):
    torch.manual_seed(seed)
    return PriorTransformer(GRAPH, embed_dim=6, num_heads=2, **options).to(D).eval()


def values(count=3, *shape):
    size = (count, *(shape or (len(NAMES),)))
    return torch.randn(size, dtype=D, generator=torch.Generator().manual_seed(5))


class Custom(nn.Module):
    """A model of one's own around the attention, with torch's own layers."""

    def __init__(self, per_node=False, channels=0):
        super().__init__()
        torch.manual_seed(1)
        self.graph = GRAPH
        self.embed = nn.Linear(max(channels, 1), 6)
        self.norm = nn.LayerNorm(6)
        self.attention = PackedMultiheadAttention.from_adjacency(GRAPH, 6, 2, add_self_loops=True)
        self.head = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 1))
        self.per_node, self.channels = per_node, channels
        self.to(D)

    def forward(self, x):
        tokens = self.norm(self.embed(x if self.channels else x.unsqueeze(-1)) + torch.arange(6.0).to(D))
        out = self.head(tokens + self.attention(tokens, tokens, tokens)[0]).squeeze(-1)
        return out if self.per_node else out.sum(1)


class Cube(torch.autograd.Function):
    """Written for torch.autograd alone: torch.func refuses a forward that takes ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3.0 * grad * ctx.saved_tensors[0] ** 2


class Unbatched(torch.autograd.Function):
    """Has no rule for vmap, so that rows cannot be taken together."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3.0 * Scaled.apply(grad, x) * x


class Scaled(torch.autograd.Function):
    forward = staticmethod(lambda grad, x: grad * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, change):
        grad, x = ctx.saved_tensors
        return change * x, change * grad


class Stubborn(Custom):
    """A model that torch.func refuses; its double is what it computes."""

    cube = Cube

    def forward(self, x):
        return super().forward(self.cube.apply(x) / 3.0)


class Double(Custom):
    def forward(self, x):
        return super().forward(x**3 / 3.0)


class Plain:
    graph = GRAPH

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


def full(model, x):
    """(B, K, N, N), forward over forward over nothing of ours: torch.func alone, sample by sample."""

    def one(sample):
        return model(sample.reshape(1, *x.shape[1:])).reshape(-1)

    return vmap(jacfwd(jacrev(one)))(x.flatten(1))


def matrix(frame, column="value"):
    """(K, n, n) of a frame of all PAIRS, both triangles."""
    outputs = list(dict.fromkeys(frame["output"]))
    found = torch.zeros(len(outputs), len(NAMES), len(NAMES), dtype=D)
    for row in frame.itertuples():
        i, j = NAMES.index(row.input_a), NAMES.index(row.input_b)
        found[outputs.index(row.output), [i, j], [j, i]] = getattr(row, column)
    return found


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


MODELS = {
    "node": lambda: build(num_layers=1),
    "graph": lambda: build(num_layers=2, readout="graph"),
    "class": lambda: build(num_layers=1, readout="class", num_classes=3),
    "custom": Custom,
    "custom nodes": lambda: Custom(per_node=True),
    "without torch.func": Stubborn,
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "as it chooses") for kind in MODELS),
        ("node", "by rows"),
        ("graph", "small blocks"),
        ("node", "jets in blocks"),
    ],
)
def test_all_pairs_are_the_hessian_of_torch_func(kind, way, monkeypatch):
    model, x = MODELS[kind](), values(2)
    if way in ("by rows", "small blocks"):
        monkeypatch.setattr(second_order, "_MOST_VARIABLES", 0)
    if way.endswith("blocks"):
        monkeypatch.setattr(second_order, "_BLOCK", 20)  # one sample, one row
    oracle = Double() if kind == "without torch.func" else model
    close(matrix(interactions(model, x, pairs=PAIRS)), full(oracle, x).mean(0))


def test_jets_are_taken_where_they_are_cheaper(monkeypatch):
    class Taken(Exception):
        pass

    def taken(*_):
        raise Taken

    monkeypatch.setattr(second_order, "jet_at_units", taken)
    with pytest.raises(Taken):
        interactions(build(), values(), pairs=[("a", "b"), ("b", "d")])
    interactions(build(readout="graph"), values(), pairs=[(a, b) for a, b in PAIRS if a == "a"])


@pytest.mark.parametrize("kind", ["node", "class", "custom", "without torch.func"])
def test_first_derivatives_and_samples(kind):
    model, x = MODELS[kind](), values()
    oracle = Double() if kind == "without torch.func" else model
    frame = interactions(model, x, pairs=["b", ("b", "a"), ("a", "b")], per_sample=True)
    slopes = vmap(jacrev(lambda s: oracle(s.unsqueeze(0)).reshape(-1)))(x)
    curves = full(oracle, x)
    found = torch.tensor(frame["value"].to_numpy()).reshape(3, -1, 3)
    i, j = NAMES.index("a"), NAMES.index("b")
    close(found[0], slopes[:, :, j].T)
    close(found[1], curves[:, :, i, j].T)
    close(found[2], found[1])
    assert frame["sample"].tolist() == [0, 1, 2] * (len(frame) // 3)
    assert frame["input_b"][0] is None
    assert frame.columns.tolist() == ["sample", "input_a", "input_b", "output", "value", "hops"]


def test_symmetric():
    for model in (build(readout="graph"), Custom()):
        forth = interactions(model, values(), pairs=PAIRS)
        back = interactions(model, values(), pairs=[(b, a) for a, b in PAIRS])
        np.testing.assert_allclose(forth["value"], back["value"], rtol=1e-10, atol=1e-12)
        pd.testing.assert_series_equal(forth["hops"], back["hops"])


HOPS = {  # by hand: edges to the nearest common descendant, the node itself included
    ("a", "b"): 1, ("a", "t"): 1, ("c", "b"): 2, ("c", "t"): 2, ("c", "u"): 3, ("f", "b"): 2,
    ("d", "b"): 1, ("f", "d"): 1, ("f", "e"): 2, ("a", "d"): INF, ("f", "u"): INF, ("c", "c"): 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "readout"),
    [
        (1, dict(readout="graph")),
        (2, dict(readout="class", num_classes=2)),
        (2, dict(readout="class", num_classes=2, shared_head=True)),
    ],
)
def test_hops_of_pooled_outputs(layers, readout):
    model, x = build(num_layers=layers, **readout), values()
    frame = interactions(model, x, pairs=list(HOPS), outputs=[0], per_sample=True)
    hessians = full(model, x)[:, 0]
    for (a, b), rows in frame.groupby(["input_a", "input_b"]):
        hops = HOPS[a, b]
        assert (rows["hops"] == hops).all()
        assert (rows["value"] == 0).all() == (hops > layers)
        # and it is exactly so, not by our saying so
        assert bool((hessians[:, NAMES.index(a), NAMES.index(b)] == 0).all()) == (hops > layers)


@pytest.mark.parametrize("layers", [1, 2])
def test_hops_of_node_outputs(layers):
    frame = interactions(build(num_layers=layers), values(), pairs=[("c", "b"), ("a", "b"), ("t", "t"), "c"])
    hops = frame.dropna(subset="input_b").set_index(["input_a", "input_b", "output"])["hops"].sort_index()
    assert hops["c", "b"].to_dict() == {**dict.fromkeys("abcdef", INF), "t": 2, "u": 3}
    assert hops["a", "b"].to_dict() == {**dict.fromkeys("abcdef", INF), "t": 1, "u": 2}
    assert hops["t", "t"].to_dict() == {**dict.fromkeys("abcdef", INF), "t": 0, "u": 1}
    first = frame[frame["input_b"].isna()]
    assert dict(zip(first["output"], first["hops"], strict=True)) == {
        **dict.fromkeys("bdef", INF), "c": 0, "a": 1, "t": 2, "u": 3
    }  # fmt: skip
    assert ((frame["value"] == 0) == (frame["hops"] > layers)).all()


def test_no_bound_where_a_head_may_combine_what_never_met():
    model, x = build(num_layers=1, readout="graph", shared_head=True), values()
    model.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(D)
    frame = interactions(model, x, pairs=[("a", "d")])
    assert frame["hops"].isna().all()
    assert frame["value"][0] != 0
    close(matrix(interactions(model, x, pairs=PAIRS)), full(model, x).mean(0))
    assert len(interactions(model, x, top_k=100)) == 28  # no pair is left out
    # in a node output every token has its own head, so the bound holds
    model = build(num_layers=1)
    model.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(D)
    assert interactions(model, x, pairs=[("a", "d")], outputs=["t"])["hops"].tolist() == [INF]


def test_no_bound_for_other_models_and_changed_layers():
    model = build(num_layers=1, readout="graph")
    model.layers[0].feedforward[1] = nn.ReLU()
    frame = interactions(model, values(), pairs=PAIRS)
    assert frame["hops"].isna().all()
    close(matrix(frame), full(model, values()).mean(0))
    assert interactions(Custom(), values(), pairs=["a"])["hops"].isna().all()


@pytest.mark.parametrize(
    ("kind", "per_sample"),
    [*((kind, False) for kind in MODELS if kind != "custom nodes"), ("node", True), ("custom", True)],
)
def test_top_k_is_the_sorted_table_of_all(kind, per_sample):
    model, x = MODELS[kind](), values()
    hessians = full(Double() if kind == "without torch.func" else model, x)
    strength = (hessians.abs().mean(0) if per_sample else hessians.mean(0).abs()).triu(1)
    expected = strength.flatten().sort(descending=True).values
    every = interactions(model, x, top_k=10**6, per_sample=per_sample)
    value = torch.tensor(every["value"].to_numpy()).reshape(-1, 3 if per_sample else 1)
    close(value.abs().mean(1), expected[: len(value)])
    assert (expected[len(value) :] == 0).all()
    some = interactions(model, x, top_k=4, per_sample=per_sample)
    pd.testing.assert_frame_equal(some, every[: len(some)])
    assert len(some) == 4 * value.shape[1]
    # and the names go with the values
    row = some.iloc[0]
    again = interactions(model, x, pairs=[(row.input_a, row.input_b)], outputs=[row.output])
    found = some["value"][: value.shape[1]].mean()
    np.testing.assert_allclose(again["value"][0], found, rtol=1e-10)


def test_top_k_of_chosen_outputs_and_of_nothing():
    frame = interactions(build(num_layers=1), values(), top_k=100, outputs=["u", "e"])
    assert set(frame["output"]) == {"u", "e"}
    assert len(frame) == 4  # (t, u); (b, d), (b, e), (d, e)
    assert frame["value"].abs().is_monotonic_decreasing
    empty = interactions(build(num_layers=1), values(), top_k=3, outputs=["c"])
    assert len(empty) == 0
    assert empty.columns.tolist() == ["input_a", "input_b", "output", "value", "hops"]


def test_channels_and_units_have_numbers():
    model, x = Custom(channels=2), values(2, len(NAMES), 2)
    frame = interactions(model, x, pairs=[("a[0]", "b[1]"), ("t[1]", "t[0]")])
    hessians = full(model, x).mean(0)[0]
    place = {name: i for i, name in enumerate(NAMES)}
    expected = [hessians[2 * place["a"], 2 * place["b"] + 1], hessians[2 * place["t"] + 1, 2 * place["t"]]]
    close(torch.tensor(frame["value"].to_numpy()), torch.stack(expected))
    wide = Plain(lambda x: x[:, 1] * x[:, 2] * x[:, 0])
    wide.graph = PriorGraph.from_edges([("a", "h")], widths={"h": 2})
    x = torch.tensor([[2.0, 3.0, 5.0]])
    assert interactions(wide, x, pairs=[("h[0]", "h[1]"), ("a", "h[1]")])["value"].tolist() == [2.0, 3.0]
    model = PriorTransformer(wide.graph, embed_dim=4, num_heads=1).eval()
    frame = interactions(model, x, pairs=[("h[0]", "a")], outputs=["h[1]"])
    torch.testing.assert_close(frame["value"][0], full(model, x)[0, 2, 1, 0].item())


def test_linear_constant_and_bipartite_models():
    assert interactions(Plain(lambda x: x.sum(1)), values(), pairs=["a", ("a", "b")])["value"].tolist() == [
        1,
        0,
    ]
    constant = interactions(Plain(lambda x: torch.ones(len(x), 2)), values(), pairs=["a", ("a", "b")])
    assert constant["value"].tolist() == [0] * 4
    assert constant["output"].tolist() == [0, 1, 0, 1]
    model = Plain(lambda x: x.prod(1, keepdim=True) * torch.ones(2))
    model.graph = PriorGraph.bipartite([("g", "s"), ("h", "r")])
    frame = interactions(model, torch.ones(1, 2), pairs=[("g", "h")])
    assert frame[["output", "value"]].to_numpy().tolist() == [["r", 1.0], ["s", 1.0]]


@pytest.mark.parametrize("cube", [Cube, Unbatched])
def test_rows_one_by_one_where_torch_func_refuses(cube, monkeypatch):
    model, taken, row = Stubborn(), [], Curvature._row
    model.cube = cube
    monkeypatch.setattr(Curvature, "_row", lambda self, unit: taken.append(unit) or row(self, unit))
    close(matrix(interactions(model, values(), pairs=PAIRS)), full(Double(), values()).mean(0))
    assert taken == list(range(len(NAMES)))


def test_samples_in_blocks_keep_their_numbers(monkeypatch):
    at_once = interactions(Custom(), values(), pairs=["a", ("a", "b")], per_sample=True)
    monkeypatch.setattr(second_order, "_BLOCK", 1)
    in_blocks = interactions(Custom(), values(), pairs=["a", ("a", "b")], per_sample=True)
    pd.testing.assert_frame_equal(in_blocks, at_once, rtol=1e-10)


def test_linear_and_constant_models_without_torch_func():
    for function, slope in ((lambda x: x[:, :1] * 2, 2.0), (lambda x: x[:, :1].detach(), 0.0)):
        curve = Curvature(function, values(), 0)
        curve._by_autograd()
        assert curve.gradient[:, 0].tolist() == [slope] * 3
        assert not curve.rows([0, 1]).any()


def test_leaves_the_model_and_its_gradients_alone():
    model, x = build(readout="graph"), values().requires_grad_()
    interactions(model, x, top_k=2)
    interactions(model, x, pairs=[("a", "b")])
    assert x.grad is None
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(pairs=["a"], top_k=1), "Either pairs or top_k must be given, got both"),
        (dict(), "Either pairs or top_k must be given, got neither"),
        (dict(pairs=[("a", "T")]), "got 'T' .differs only in case from 't'"),
        (dict(pairs=[("a", 1)]), "by name, got 1"),
        (dict(pairs=[("a", "b", "c")]), "two names or one, got"),
        (dict(pairs="ab"), "pairs must be a sequence"),
        (dict(pairs=[]), "at least one pair"),
        (dict(top_k=0), "top_k must be a positive integer"),
        (dict(top_k=True), "top_k must be a positive integer"),
        (dict(pairs=["a"], per_sample=1), "per_sample must be True or False"),
        (dict(pairs=["a"], outputs=["x"]), "outputs must be among the nodes, got 'x'"),
        (dict(pairs=["a"], outputs=["a", "a"]), "different and at least one"),
        (dict(pairs=["a"], outputs=[]), "different and at least one"),
        (dict(pairs=["a"], outputs="a"), "outputs must be a sequence"),
    ],
)
def test_refuses_arguments(options, message):
    with pytest.raises(PriorGraphError, match=message):
        interactions(build(), values(), **options)


def refused(model, x, message, **options):
    with pytest.raises(PriorGraphError, match=message):
        interactions(model, x, **(options or dict(pairs=["a"])))


def test_refuses_values():
    x = values()
    x[2, NAMES.index("d")] = torch.nan
    refused(build(), x, "finite values, got nan for d in sample 2")
    refused(build(), x * torch.inf, "finite values, got inf for|finite values, got -inf for", top_k=1)
    refused(build(), x[:0], "B at least 1")
    refused(build(), x[:, 1:], r"x must be floating point of shape \(B, 8\)")
    refused(build(), x.nan_to_num().long(), "x must be floating point")
    x = values(1, len(NAMES), 2)
    refused(Custom(channels=2), x, r"got 'a' .it has 2 inputs: a\[0\]")


def test_refuses_models():
    refused(build(dropout=0.5).train(), values(), r"dropout to be off, and layers\.0")
    mixing = build(readout="graph")
    mixing.head = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).to(D)
    refused(mixing, values(), r"influence each other, and head\.0 \(BatchNorm1d\)")
    refused(nn.Linear(8, 1), values(), "PriorGraph as its attribute graph, got Linear with NoneType")
    refused(Plain(lambda x: (x, x)), values(), "model must return .* got tuple")
    refused(Plain(lambda x: x.sum()), values(), "model must return .* got shape")
    refused(build(readout="graph"), values(), "columns 0 to 0, got True", pairs=["a"], outputs=[True])
    refused(build(readout="graph"), values(), "columns 0 to 0, got '0'", pairs=["a"], outputs=["0"])


def test_agrees_with_torch_func_hessian_of_a_sum():
    model, x = build(num_layers=2, readout="graph"), values(1)
    expected = hessian(lambda s: model(s.unsqueeze(0)).squeeze())(x[0])
    close(matrix(interactions(model, x, pairs=PAIRS))[0], expected)


# --- what was not measured ------------------------------------------------------------------------


def holes(count=4):
    mask = torch.zeros(count, len(NAMES), dtype=torch.bool)
    for sample, node in ((0, "t"), (0, "c"), (1, "a"), (2, "b"), (2, "d"), (3, "b"), (1, "b"), (0, "b")):
        mask[sample, NAMES.index(node)] = True
    return mask


class Careless(Custom):
    """Takes a mask and does nothing with it."""

    def forward(self, x, mask):
        return super().forward(x)


def masked_slopes(model, x, mask):
    """First (B, K, N) and second (B, K, N, N) derivatives, NaN where a value was not measured."""
    first, second = [], []
    for sample, hidden in zip(x, mask, strict=True):

        def one(values, hidden=hidden):
            return model(values.masked_fill(hidden, 0.0).unsqueeze(0), hidden.unsqueeze(0)).reshape(-1)

        first.append(jacrev(one)(sample).masked_fill(hidden, torch.nan))
        lost = hidden.unsqueeze(0) | hidden.unsqueeze(1)
        second.append(jacfwd(jacrev(one))(sample).masked_fill(lost, torch.nan))
    return torch.stack(first).detach(), torch.stack(second).detach()


@pytest.mark.parametrize(
    "model",
    [
        lambda: build(num_layers=2),
        lambda: build(num_layers=2, readout="class", num_classes=2),
        lambda: build(num_layers=1, readout="graph", shared_head=True),
        Careless,
    ],
    ids=["node", "class", "graph", "careless"],
)
@pytest.mark.parametrize("jets", [False, True])
def test_derivatives_are_of_what_was_measured(model, jets, monkeypatch):
    model, x, mask = model(), values(4), holes()
    if not jets:
        monkeypatch.setattr(second_order, "_MOST_VARIABLES", 0)
    monkeypatch.setattr(second_order, "_BLOCK", 1)  # a sample at a time
    first, second = masked_slopes(model, x, mask)
    lost = x.masked_fill(mask, torch.nan)
    entries = [*PAIRS[:6], ("b", "t"), "a", "t", "b"]
    table = interactions(model, lost, pairs=entries, per_sample=True, key_padding_mask=mask)
    mean = interactions(model, lost, pairs=entries, key_padding_mask=mask)
    outputs = first.shape[1]
    for place, entry in enumerate(entries):
        a, *b = (NAMES.index(name) for name in (entry if isinstance(entry, tuple) else (entry,)))
        want = (second[:, :, a, b[0]] if b else first[:, :, a]).T  # outputs, samples
        rows = slice(place * outputs * 4, (place + 1) * outputs * 4)
        np.testing.assert_allclose(table.value[rows], want.reshape(-1), rtol=1e-9, atol=1e-11)
        rows = slice(place * outputs, (place + 1) * outputs)
        np.testing.assert_allclose(mean.value[rows], want.nanmean(1), rtol=1e-9, atol=1e-11)
    assert mean.value[mean.input_a == "b"].isna().all()  # b is nowhere measured


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_strongest_are_of_what_was_measured_together(per_sample):
    model, x, mask = build(num_layers=2, readout="graph"), values(4), holes()
    table = interactions(model, x, top_k=100, key_padding_mask=mask, per_sample=per_sample)
    second = masked_slopes(model, x, mask)[1][:, 0]
    size = (second.abs() if per_sample else second).nanmean(0).abs()
    found = table.groupby(["input_a", "input_b"], sort=False).value
    wanted = {
        (NAMES[i], NAMES[j]): float(size[i, j])
        for i in range(8)
        for j in range(i + 1, 8)
        if size[i, j] > 0  # NaN is not
    }
    strengths = {pair: float((rows.abs() if per_sample else rows).mean()) for pair, rows in found}
    assert list(strengths) == sorted(strengths, key=lambda pair: -wanted[pair])
    assert strengths.keys() >= wanted.keys()
    for pair, strength in strengths.items():
        assert abs(strength) == pytest.approx(wanted.get(pair, 0.0), rel=1e-9)


def test_masks_that_do_not_fit():
    for mask in (torch.zeros(3, 8), torch.zeros(3, 6, dtype=torch.bool), [True]):
        with pytest.raises(PriorGraphError, match=r"key_padding_mask must be boolean of shape \(3, 8\)"):
            interactions(build(), values(), pairs=["a"], key_padding_mask=mask)
    with pytest.raises(PriorGraphError, match=r"got nan for a in sample 0\. Mask it, fill it in"):
        interactions(
            build(),
            values().fill_(torch.nan),
            pairs=["a"],
            key_padding_mask=torch.zeros(3, 8, dtype=torch.bool),
        )
