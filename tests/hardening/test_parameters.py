"""Every parameter of every configuration is trained; strict arguments are strict."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.nn import (
    EdgeAttention,
    FixedEdgeModel,
    PackedMultiheadAttention,
    PriorAttentionConv,
    PriorTransformerLayer,
)
from pyg_kpnn.ops import EdgeLayout, backends, edge_attention

GRAPH = PriorGraph.from_edges(
    [("a", "b"), ("b", "c"), ("b", "b"), ("d", "c"), ("c", "a")],
    sign=[1, -1, 0, 1, 1],
    weight=[1.0, 2.0, 3.0, 4.0, 5.0],
)
EDGES = GRAPH.edge_index
BOOLS = (False, True)


def configurations():
    """Name, how to build it, how to call it on 2 samples."""

    def packed(options, masked):
        layer = PackedMultiheadAttention(EDGES[0], EDGES[1], 4, 4, 6, 2, **options)
        x = torch.randn(2, 4, 6) if options["batch_first"] else torch.randn(4, 2, 6)
        mask = torch.tensor([[True, False, False, False], [False] * 4]) if masked else None
        return layer, lambda model: model(x, x, x, mask)[0]

    names = ("bias", "batch_first", "add_self_loops", "autocast")
    for values in itertools.product(BOOLS, repeat=4):
        options = dict(zip(names, values, strict=True))
        for masked, chunk, dropout in ((False, None, 0.0), (True, 2, 0.3)):
            full = {**options, "chunk_size": chunk, "dropout": dropout}
            yield f"packed {values} {masked}", lambda o=full, m=masked: packed(o, m)

    def conv(options, edges, kind):
        sizes = {"one": 5, "pair": (5, 3), "lazy": -1}
        layer = PriorAttentionConv(sizes[kind], 3, heads=2, **options)
        x = (torch.randn(2, 4, 5), torch.randn(2, 4, 3)) if kind == "pair" else torch.randn(2, 4, 5)
        attr = torch.randn(edges.shape[1], 2) if options["edge_dim"] else None
        layer(x, edges, attr)  # a lazy one reads its widths
        return layer, lambda model: model(x, edges, attr)

    names = ("bias", "concat", "root_weight", "add_self_loops")
    for values in itertools.product(BOOLS, repeat=4):
        for edge_dim, kind in ((None, "pair"), (2, "one"), (None, "lazy")):
            options = {**dict(zip(names, values, strict=True)), "edge_dim": edge_dim}
            yield f"conv {values} {kind}", lambda o=options, k=kind: conv(o, EDGES, k)
        yield f"conv {values} without edges", lambda o=options: conv(o, EDGES[:, :0], "one")

    def stack(loops):
        layer = PriorTransformerLayer(GRAPH, 6, 2, add_self_loops=loops, dropout=0.1)
        x = torch.randn(2, 4, 6)
        return layer, lambda model: model(x)[0]

    def model(options, masked, fixed):
        built = PriorTransformer(GRAPH, embed_dim=6, num_heads=2, **options)
        x = torch.randn(2, 4)
        mask = torch.tensor([[True, False, False, False], [False] * 4]) if masked else None
        if fixed:
            return FixedEdgeModel(built), lambda model: model(x, EDGES, key_padding_mask=mask)
        return built, lambda model: model(x, mask)

    for loops in BOOLS:
        yield f"layer {loops}", lambda loops=loops: stack(loops)
        for bias, readout in itertools.product((None, "sign", "log_weight"), ("node", "graph", "class")):
            options = {"edge_bias": bias, "readout": readout, "add_self_loops": loops}
            options["num_classes"] = 3 if readout == "class" else None
            for masked, fixed in itertools.product(BOOLS, repeat=2):
                yield (
                    f"transformer {bias} {readout} {loops} {masked} {fixed}",
                    lambda o=options, m=masked, f=fixed: model(o, m, f),
                )


CONFIGURATIONS = dict(configurations())


@pytest.fixture(scope="module")
def one_process():
    """A group of one process, which is enough for DDP to look for parameters without a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    layer, call = CONFIGURATIONS[name]()
    layer.train()
    call(layer).square().sum().backward()
    without_edges = "without edges" in name
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # A key's bias adds the same to every score of a target, and nothing is scored without an edge.
        silent = key.endswith(("k_proj.bias", "lin_key.bias")) or (
            without_edges and not key.startswith("lin_skip")
        )
        assert silent or parameter.grad.abs().max() > 0, key


@pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed")
def test_ddp_finds_no_parameter_unused(one_process):
    usable = [name for name, status in backends().items() if status.available]
    for (name, build), backend in zip(CONFIGURATIONS.items(), itertools.cycle(usable), strict=False):
        layer, call = build()
        for operator in layer.modules():
            if isinstance(operator, EdgeAttention):
                operator.backend = backend
        model = DistributedDataParallel(layer)
        for _ in range(2):  # DDP complains in the second forward
            try:
                call(model).square().sum().backward()
            except RuntimeError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_ddp_would_find_one(one_process):
    class Spare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = DistributedDataParallel(Spare())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        model(torch.ones(1, 2))


# --- strict arguments -----------------------------------------------------------------------------

NOT_BOOLS = [np.True_, np.False_, 1, 0, 1.0, "True", "", torch.tensor(True), [True]]
X4, X3 = torch.randn(4, 6), torch.randn(4, 2, 3)
PACKED = PackedMultiheadAttention(EDGES[0], EDGES[1], 4, 4, 6, 2)


def packed_with(**options):
    return PackedMultiheadAttention(EDGES[0], EDGES[1], 4, 4, 6, 2, **options)


FLAGS = {
    **{
        f"PackedMultiheadAttention.{name}": (name, packed_with)
        for name in ("bias", "batch_first", "add_self_loops", "autocast")
    },
    **{
        f"from_adjacency.{name}": (
            name,
            lambda **options: PackedMultiheadAttention.from_adjacency(GRAPH, 6, 2, **options),
        )
        for name in ("bias", "batch_first", "add_self_loops", "autocast")
    },
    **{
        f"PriorAttentionConv.{name}": (name, lambda **options: PriorAttentionConv(6, 2, **options))
        for name in ("concat", "bias", "root_weight", "add_self_loops")
    },
    "PriorTransformerLayer.add_self_loops": (
        "add_self_loops",
        lambda **options: PriorTransformerLayer(GRAPH, 6, 2, **options),
    ),
    "PriorTransformer.add_self_loops": (
        "add_self_loops",
        lambda **options: PriorTransformer(GRAPH, embed_dim=6, num_heads=2, **options),
    ),
    "packed.need_weights": ("need_weights", lambda **options: PACKED(X4, X4, X4, **options)),
    "packed.average_attn_weights": (
        "average_attn_weights",
        lambda **options: PACKED(X4, X4, X4, need_weights=True, **options),
    ),
    "packed.is_causal": ("is_causal", lambda **options: PACKED(X4, X4, X4, **options)),
    "layer.need_weights": (
        "need_weights",
        lambda **options: PriorTransformerLayer(GRAPH, 6, 2)(X4, **options),
    ),
    "conv.return_attention_weights": (
        "return_attention_weights",
        lambda **options: PriorAttentionConv(6, 2)(X4, EDGES, **options),
    ),
    "EdgeAttention.need_weights": (
        "need_weights",
        lambda **options: EdgeAttention()(X3, X3, X3, EDGES, **options),
    ),
    "EdgeAttention.fixed": ("fixed", lambda **options: EdgeAttention()(X3, X3, X3, EDGES, **options)),
    "edge_attention.need_weights": (
        "need_weights",
        lambda **options: edge_attention(X3, X3, X3, EdgeLayout(EDGES, 4, 4), **options),
    ),
}


@pytest.mark.parametrize("value", NOT_BOOLS, ids=lambda value: f"{type(value).__name__}_{value!s}")
@pytest.mark.parametrize("place", list(FLAGS))
def test_flags_take_true_and_false_alone(place, value):
    name, call = FLAGS[place]
    with pytest.raises(PriorGraphError, match=f"^{name} must be (True or )?False"):
        call(**{name: value})


@pytest.mark.parametrize("place", list(FLAGS))
def test_flags_take_true_and_false(place):
    name, call = FLAGS[place]
    for value in (False, True):
        if name != "is_causal" or not value:
            call(**{name: value})


OPS_LAYOUT = EdgeLayout(EDGES, 4, 4)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        *[({"chunk_size": v}, "chunk_size must be None or a positive integer") for v in
          (True, np.True_, 0, -1, 1.0, "1", np.float64(2), [2])],
        *[({"dropout_p": v}, "dropout_p must be a number in") for v in
          (True, np.False_, "0.1", None, -0.1, 1.5, float("nan"), 1j)],
        *[({"dropout_seed": v}, "dropout_seed must be a 0-d int64 tensor") for v in
          (1, torch.tensor(1.0), torch.tensor([1]), torch.tensor(1, dtype=torch.int32))],
        ({"bias": [0.0] * 5}, "bias must be a tensor or None, got list"),
        ({"edge_features": np.zeros((5, 2, 3))}, "edge_features must be a tensor or None, got ndarray"),
        ({"key_mask": [False] * 4}, "key_mask must be a tensor or None, got list"),
    ],
)  # fmt: skip
def test_settings_of_another_kind_are_refused(settings, rule):
    with pytest.raises(PriorGraphError, match=rule):
        edge_attention(X3, X3, X3, OPS_LAYOUT, **settings)


@pytest.mark.parametrize("size", [True, np.True_, 4.0, "4", None, -1, torch.tensor(4)])
def test_sizes_of_another_kind_are_refused(size):
    for sizes in ((size, 4), (4, size)):
        with pytest.raises(PriorGraphError, match=r"num_(sources|targets) must be an integer >= 0, got"):
            EdgeLayout(EDGES, *sizes)


def test_sizes_of_numpy_are_numbers_like_others():
    edges = torch.tensor([[254, 0], [0, 254]])
    layout = EdgeLayout(edges, np.uint8(255), np.uint8(255))  # 255 + 1 is 0 among those
    assert (type(layout.num_sources), layout.target_ptr.numel()) == (int, 256)
    chunked = edge_attention(X3, X3, X3, OPS_LAYOUT, chunk_size=np.int64(2), dropout_p=np.float32(0.0))
    torch.testing.assert_close(chunked[0], edge_attention(X3, X3, X3, OPS_LAYOUT)[0])
