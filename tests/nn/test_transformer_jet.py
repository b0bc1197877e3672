"""Jets of a PriorTransformer against nested torch.func, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import jacfwd, jacrev

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.jets import JetSpace
from pyg_kpnn.nn import transformer_jet as module
from pyg_kpnn.nn.jet_checks import jet_refusal
from pyg_kpnn.nn.projection import NodeLinear
from pyg_kpnn.nn.transformer_jet import transformer_jet

D = torch.float64
EDGES = [("a", "t"), ("b", "t"), ("c", "a"), ("t", "u"), ("d", "e"), ("b", "e"), ("e", "d")]
GRAPH = PriorGraph.from_edges(
    EDGES, sign=[1, -1, 1, 0, 1, -1, 1], weight=[2.0, 1.0, 0.5, 3.0, 1.0, 4.0, 0.25]
)
MODELS = {
    "node": dict(num_layers=2),
    "graph, sign": dict(num_layers=1, readout="graph", edge_bias="sign"),
    "class, shared": dict(num_layers=1, readout="class", num_classes=2, shared_head=True),
    "class, log_weight": dict(num_layers=2, readout="class", num_classes=3, edge_bias="log_weight"),
    "no loops, chunked": dict(num_layers=2, add_self_loops=False, chunk_size=3, dropout=0.5),
}


def build(graph=GRAPH, *, embed_dim=6, num_heads=2, seed=3, **options):
    torch.manual_seed(seed)
    model = PriorTransformer(graph, embed_dim=embed_dim, num_heads=num_heads, **options).to(D).eval()
    with torch.no_grad():  # every parameter takes part: biases and sign terms start at zero
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def values(count=2, graph=GRAPH, seed=5):
    return torch.randn(count, graph.state_dim, dtype=D, generator=torch.Generator().manual_seed(seed))


def nested(model, point, units, order, chosen=None, mask=None):
    """Rows D^α f / α! of the model at one sample, one output a column, by nested torch.func."""

    def function(some):
        full = point.index_put((torch.tensor(units),), some)
        out = model(full.unsqueeze(0), None if mask is None else mask.unsqueeze(0)).reshape(-1)
        return out if chosen is None else out[chosen]

    tensors, x = [], point[units]
    for level in range(order + 1):
        tensors.append(function(x))
        function = (jacrev if level == 0 else jacfwd)(function)
    rows = []
    for alpha in JetSpace(len(units), order).indices:
        places = [v for v, times in enumerate(alpha) for _ in range(times)]
        rows.append(tensors[len(places)][(..., *places)] / math.prod(map(math.factorial, alpha)))
    return torch.stack(rows)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_second_order_is_that_of_nested_torch_func(kind):
    model, x = build(**MODELS[kind]), values()
    names = ["t", "b", "a", "d"]  # not in the order of the graph
    units = [GRAPH.node_units(name).start for name in names]
    jet = transformer_jet(model, x, inputs=names)
    assert jet.shape[:2] == (2, 15)
    for sample in range(2):
        close(jet[sample], nested(model, x[sample], units, 2))


@pytest.mark.parametrize(("order", "names"), [(0, "a"), (1, "ab"), (3, "ab"), (4, "b")])
def test_other_orders(order, names):
    model, x = build(num_layers=1, readout="class", num_classes=2), values(1)
    units = [GRAPH.node_units(name).start for name in names]
    close(transformer_jet(model, x, order, inputs=list(names))[0], nested(model, x[0], units, order))


def test_chosen_outputs_in_their_order():
    model, x = build(), values()
    every = transformer_jet(model, x, inputs=["a", "b"])
    some = transformer_jet(model, x, inputs=["a", "b"], outputs=["u", "a"])
    torch.testing.assert_close(some, every[..., [GRAPH.nodes.index("u"), GRAPH.nodes.index("a")]])
    model = build(readout="class", num_classes=3)
    every = transformer_jet(model, x, 1, inputs=["a"])
    torch.testing.assert_close(transformer_jet(model, x, 1, inputs=["a"], outputs=[2, 0]), every[..., [2, 0]])


def test_units_of_a_wide_node_are_variables_and_outputs():
    graph = PriorGraph.from_edges([("a", "h"), ("h", "o")], widths={"h": 2})
    model, x = build(graph, num_layers=1), values(1, graph)
    jet = transformer_jet(model, x, inputs=["h", "a"], outputs=["h", "o"])
    assert jet.shape == (1, 10, 3)
    close(jet[0], nested(model, x[0], [1, 2, 0], 2, [1, 2, 3]))


@pytest.mark.parametrize("layers", [1, 2])
def test_zero_to_the_last_bit_where_inputs_do_not_meet(layers):
    model = build(num_layers=layers)
    jet = transformer_jet(model, values(), inputs=["c", "b"], outputs=["t"])
    mixed = jet[:, JetSpace(2, 2).position((1, 1))]
    assert bool((mixed == 0).all()) is (layers == 1)
    alone = transformer_jet(model, values(), inputs=["d", "b"], outputs=["t"])
    assert (alone[:, JetSpace(2, 2).position((1, 1))] == 0).all()  # d is nowhere upstream of t


def test_samples_in_blocks_are_samples_at_once(monkeypatch):
    model, x = build(), values(5)
    at_once = transformer_jet(model, x, inputs=["a", "b"])
    monkeypatch.setattr("pyg_kpnn.nn.transformer_jet._BLOCK", 1)
    torch.testing.assert_close(transformer_jet(model, x, inputs=["a", "b"]), at_once, rtol=1e-13, atol=1e-13)
    assert transformer_jet(model, x[:0], inputs=["a"]).shape == (0, 3, 7)


def test_differentiable_in_parameters_and_values():
    model, x = build(num_layers=1, readout="graph"), values(2).requires_grad_()
    jet = transformer_jet(model, x, inputs=["a", "b"])
    gradients = torch.autograd.grad(jet[:, 0].sum(), [x, *model.parameters()], allow_unused=True)
    expected = torch.autograd.grad(model(x).sum(), [x, *model.parameters()], allow_unused=True)
    for found, wanted in zip(gradients, expected, strict=True):
        close(found, torch.zeros_like(found) if wanted is None else wanted)
    third = torch.autograd.grad(transformer_jet(model, x, inputs=["a", "b"])[:, 4].sum(), x)[0]
    full = transformer_jet(model, x, 3, inputs=["a", "b"]).detach()
    space = JetSpace(2, 3)
    close(third[:, GRAPH.nodes.index("a")], 2 * full[:, space.position((2, 1)), 0])


def test_single_precision_and_a_double_sample():
    model = build().float()
    assert transformer_jet(model, values(), inputs=["a"]).dtype == torch.float32


@pytest.mark.parametrize(
    "mlp",
    [
        nn.Sequential(
            nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 6)
        ),
        nn.Sequential(nn.Linear(6, 6, bias=False), nn.Sequential(nn.Sigmoid(), nn.Identity())),
    ],
    ids=["deep", "nested"],
)
def test_other_modules_the_algebra_knows(mlp):
    model, x = build(num_layers=1, readout="class", num_classes=2, shared_head=True), values(1)
    model.layers[0].feedforward = mlp.to(D)
    model.head = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)).to(D)
    model.eval()
    close(transformer_jet(model, x, inputs=["a", "b"])[0], nested(model, x[0], [0, 1], 2))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("order", [0, 2, 3])
def test_what_was_not_measured_is_no_variable_and_passes_on(kind, order):
    model, x = build(**MODELS[kind]), values(4)
    names, units = ["t", "b", "c"], [GRAPH.node_units(name).start for name in "tbc"]
    mask = torch.zeros(4, 7, dtype=torch.bool)
    mask[0, GRAPH.node_units("t").start] = True  # hears a and b, and tells u
    mask[1, [GRAPH.node_units(name).start for name in "cb"]] = True  # hear nobody
    mask[2] = True
    jet = transformer_jet(model, x.masked_fill(mask, torch.nan), order, inputs=names, key_padding_mask=mask)
    for sample in range(4):
        close(jet[sample], nested(model, x[sample], units, order, mask=mask[sample]))
    if order == 2:
        slopes = JetSpace(3, 2).position((1, 0, 0))
        assert (jet[0, slopes] == 0).all()
        assert (jet[3, slopes] != 0).any()
    close(jet[3:], transformer_jet(model, x[3:], order, inputs=names))


def test_refuses_a_mask_of_another_kind():
    for mask in (torch.zeros(2, 7), torch.zeros(2, 6, dtype=torch.bool), "x"):
        with pytest.raises(PriorGraphError, match=r"key_padding_mask must be boolean of shape \(2, 7\)"):
            transformer_jet(build(), values(), inputs=["a"], key_padding_mask=mask)
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[0, 1] = True
    x = values().masked_fill(mask, torch.nan)
    x[1, 0] = torch.nan
    with pytest.raises(PriorGraphError, match="got nan for a in sample 1"):
        transformer_jet(build(), x, inputs=["a"], key_padding_mask=mask)


class Halved(PriorTransformer):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask) / 2


def replace(path, module):
    def change(model):
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, module)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("layers.1.feedforward.1", nn.ReLU()), r"do not know layers\.1\.feedforward\.1: ReLU"),
        (replace("layers.0.feedforward.1", nn.GELU("tanh")), r"layers\.0\.feedforward\.1: GELU\(approximate"),
        (replace("layers.0.attention.k_proj", nn.Identity()), r"layers\.0\.attention\.k_proj.*Identity"),
        (replace("layers.1.attention_norm", nn.RMSNorm(6)), r"layers\.1\.attention_norm .*got RMSNorm"),
        (replace("norm", nn.LayerNorm((7, 6))), r"norm to be LayerNorm"),
        (replace("norm", nn.LayerNorm(())), r"norm to be LayerNorm"),
        (replace("layers.0.feedforward.1", nn.LayerNorm((7, 6))), r"do not know layers\.0\.feedforward\.1"),
        (replace("head", nn.Bilinear(6, 6, 1)), r"do not know head: Bilinear"),
        (replace("layers.1", nn.Identity()), r"layers\.1 to be PriorTransformerLayer, got Identity"),
        (lambda model: model.head.register_forward_hook(lambda *_: None), r"and head \(NodeLinear\)"),
        (lambda model: setattr(model.layers[0].attention.attention, "explain", True), r"message hooks"),
        (lambda model: nn.utils.parametrizations.orthogonal(model.layers[0].attention.q_proj), r"q_proj"),
    ],
)  # fmt: skip
def test_refuses_a_module_it_does_not_know_by_name(change, message):
    model = build()
    change(model)
    with pytest.raises(PriorGraphError, match=message):
        transformer_jet(model, values(), inputs=["a"])


def test_refuses_a_head_of_other_nodes():
    for readout, nodes in (("node", 8), ("graph", 7)):
        model = build(readout=readout)
        model.head = NodeLinear(nodes, 6).to(D)
        with pytest.raises(PriorGraphError, match="do not know head: NodeLinear"):
            transformer_jet(model, values(), inputs=["a"])


def test_refuses_another_forward():
    model = build()
    model.__class__ = Halved
    assert "Halved" in (jet_refusal(model) or "")


def test_refuses_dropout_at_work():
    model = build(dropout=0.25)
    assert jet_refusal(model) is None
    with pytest.raises(PriorGraphError, match=r"layers\.0.*training mode\. Call model\.eval\(\)"):
        transformer_jet(model.train(), values(), inputs=["a"])
    assert jet_refusal(build().train()) is None  # nothing to drop
    model.eval().layers[1].attention.attention.train()
    assert "layers.1.attention.attention" in (jet_refusal(model) or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(inputs=["A"]), "'A' .differs only in case from 'a'"),
        (dict(inputs="a"), "'inputs' must be a sequence of node names"),
        (dict(inputs=[]), "inputs must be names of different nodes, at least one"),
        (dict(inputs=["a", "b", "a"]), "inputs must be names of different nodes"),
        (dict(inputs={"a", "b"}), "'inputs' must be in order"),
        (dict(inputs=["a"], outputs=["x"]), "'x'"),
        (dict(inputs=["a"], outputs=["a", "a"]), "outputs must be names of different nodes"),
        (dict(inputs=["a"], order=-1), "order must be an integer >= 0"),
    ],
)
def test_refuses_arguments(options, message):
    with pytest.raises(PriorGraphError, match=message):
        transformer_jet(build(), values(), **options)


@pytest.mark.parametrize("outputs", [[3], [-1], ["a"], [True], [], "0", 1])
def test_refuses_what_is_no_class(outputs):
    with pytest.raises(PriorGraphError, match=r"class numbers in \[0, 3\)"):
        transformer_jet(build(readout="class", num_classes=3), values(), inputs=["a"], outputs=outputs)


def test_refuses_values_models_and_heads():
    model, x = build(readout="graph"), values()
    x[1, GRAPH.nodes.index("t")] = torch.nan
    with pytest.raises(PriorGraphError, match="finite values, got nan for t in sample 1"):
        transformer_jet(model, x, inputs=["a"])
    with pytest.raises(PriorGraphError, match=r"x must be floating point of shape \(B, 7\)"):
        transformer_jet(model, x[:, 1:], inputs=["a"])
    with pytest.raises(PriorGraphError, match=r"x must be floating point of shape \(B, 7\).*got \(7,\)"):
        transformer_jet(model, x[0], inputs=["a"])
    with pytest.raises(PriorGraphError, match=r"x must be floating point of shape \(B, 7\).*got \(2, 7, 1\)"):
        transformer_jet(model, x.unsqueeze(-1), inputs=["a"])
    with pytest.raises(PriorGraphError, match="outputs must be None"):
        transformer_jet(model, values(), inputs=["a"], outputs=[0])
    with pytest.raises(PriorGraphError, match="model must be a PriorTransformer, got Linear"):
        transformer_jet(nn.Linear(7, 1), x, inputs=["a"])
    model.head = nn.Linear(6, 2).to(D)
    with pytest.raises(PriorGraphError, match="head must give one number"):
        transformer_jet(model, values(), inputs=["a"])


@pytest.mark.parametrize("readout", ["node", "graph", "class"])
def test_a_readout_that_was_read_from_a_file(readout):
    options = {"num_classes": 3} if readout == "class" else {}
    models = [build(num_layers=1, readout=word, **options) for word in (readout, readout[:1] + readout[1:])]
    assert models[0].readout is not models[1].readout
    for outputs in (None, {"node": ["t", "a"], "class": [2, 0]}.get(readout)):
        one, other = (transformer_jet(model, values(), inputs=["a"], outputs=outputs) for model in models)
        close(one, other)


@pytest.mark.parametrize(
    "pairs",
    [[(i, j) for i in range(20) for j in range(20)], [(i, i + 1) for i in range(80)]],
    ids=["many_edges", "many_units"],
)
def test_many_samples_are_taken_a_block_at_a_time(pairs, monkeypatch, largest_tensor):
    graph = PriorGraph.from_edges(pairs)
    model, x = build(graph, embed_dim=8, num_layers=1), values(64, graph)
    block = 2**17
    with largest_tensor() as record:
        whole = transformer_jet(model, x, inputs=["3", "5"])
    assert record.numel > block * 2  # a block as it is holds more than these samples
    monkeypatch.setattr(module, "_BLOCK", block)
    with largest_tensor() as record:
        pieces = transformer_jet(model, x, inputs=["3", "5"])
    close(pieces, whole)
    # what is counted are products of two jets: the largest tensor is about as large
    assert block / 2 < record.numel < block * 2
    monkeypatch.setattr(module, "_BLOCK", 1)  # not even one sample fits
    close(transformer_jet(model, x[:3], inputs=["3", "5"]), whole[:3])
