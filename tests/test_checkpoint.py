"""Checkpoints: their keys and bytes, what is refused, and loading all of it or nothing."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear as LazyPygLinear

import pyg_kpnn
from pyg_kpnn import (
    PackedMultiheadAttention,
    PriorAttentionConv,
    PriorGraph,
    PriorGraphError,
    PriorTransformer,
    load_checkpoint,
)
from pyg_kpnn.checkpoint import check_checkpoint, encode_identity, index_digest

# 5 keys, 3 queries, 4 edges: sizes that cannot be confused. Width 6 in 2 heads.
SOURCE, TARGET, QUERIES, KEYS = [4, 0, 2, 0], [1, 2, 0, 0], 3, 5
REWIRED = [4, 1, 2, 0]
KEY_NAMES = {"source_index", "target_index", "index_digest"} | {
    f"{name}_proj.{part}" for name in "qkvo" for part in ("weight", "bias")
}
KEY_NAMES = {name.replace("o_proj", "out_proj") for name in KEY_NAMES}


def make(seed: int = 0, source: list[int] = SOURCE, **options: Any) -> PackedMultiheadAttention:
    generator = torch.Generator().manual_seed(seed)
    layer = PackedMultiheadAttention(
        source, TARGET, QUERIES, KEYS, 6, 2, generator=generator, **{"identity": "réseau", **options}
    )
    with torch.no_grad():  # a bias of zero would not tell one layer from another
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=generator)
    return layer


def run(layer: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    query = torch.randn(7, QUERIES, 6, generator=generator)
    key = torch.randn(7, KEYS, 6, generator=generator)
    return layer(query, key, key)[0]


class Foreign(nn.Module):
    """Somebody else's root: our layer comes after layers of torch's."""

    def __init__(self, seed: int = 0, *layers: nn.Module) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(2)
            self.norm.running_mean.normal_()
            self.embed = nn.Embedding(3, 2)
            self.tied = nn.Linear(2, 3, bias=False)
        self.tied.weight = self.embed.weight
        self.register_buffer("scale", torch.full((2,), float(seed)))
        self.register_buffer("scratch", torch.full((2,), float(seed)), persistent=False)
        self.layers = nn.ModuleList(layers)


def contents(model: nn.Module) -> dict[str, Tensor]:
    """Copies of everything that a load could change."""
    every = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {name: tensor.detach().clone() for name, tensor in every}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def assert_refused(
    model: nn.Module,
    load: Callable[[], Any],
    error: type[Exception] | tuple[type[Exception], ...] = PriorGraphError,
    match: str | None = None,
) -> None:
    before = contents(model)
    tensors = {name: id(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(error, match=match):
        load()
    assert same(contents(model), before)
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == tensors


# ---------------------------------------------------------------- keys and bytes


@pytest.mark.parametrize("identity", [None, "réseau"])
def test_keys_are_those_of_kpnn2(identity):
    kpnn2 = pytest.importorskip("kpnn2")
    ours = make(identity=identity)
    peer = kpnn2.PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS, 6, 2, identity=identity)
    named = {"identity"} if identity else set()
    assert set(ours.state_dict()) == set(peer.state_dict()) == KEY_NAMES | named
    for name, theirs in peer.state_dict().items():
        entry = ours.state_dict()[name]
        assert (entry.dtype, entry.shape, entry.device) == (theirs.dtype, theirs.shape, theirs.device)
        if name in {"source_index", "target_index", "index_digest", "identity"}:
            assert torch.equal(entry, theirs)


def test_keys_without_bias():
    assert set(make(bias=False, identity=None).state_dict()) == {
        name for name in KEY_NAMES if not name.endswith("bias")
    }


def test_digest_bytes_by_hand():
    payload = struct.pack("<4q", *SOURCE) + struct.pack("<4q", *TARGET) + struct.pack("<4q", 3, 5, 6, 2)
    expected = list(hashlib.sha256(payload).digest())
    layer = make()
    stored = layer.state_dict()["index_digest"]
    assert stored.dtype == torch.uint8
    assert stored.shape == (32,)
    assert stored.tolist() == layer.index_digest.tolist() == expected
    assert "index_digest" not in dict(layer.named_buffers())
    assert "index_digest" not in dict(layer.named_parameters())
    for dtype in (torch.int32, torch.int64):
        pair = torch.tensor(SOURCE, dtype=dtype), torch.tensor(TARGET, dtype=dtype)
        assert index_digest(*pair, 3, 5, 6, 2).tolist() == expected


def test_digest_tells_edges_and_sizes_apart():
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    variants = [
        (source, target, 3, 5, 6, 2),
        (target, source, 3, 5, 6, 2),
        (source.flip(0), target.flip(0), 3, 5, 6, 2),
        (source, target, 5, 3, 6, 2),
        (source, target, 3, 5, 2, 6),
        (source, target, 3, 5, 6, 3),
        (source[:3], target[:3], 3, 5, 6, 2),
    ]
    assert len({tuple(index_digest(*variant).tolist()) for variant in variants}) == len(variants)


def test_identity_bytes():
    layer = make(identity="réseau ∂")
    stored = layer.state_dict()["identity"]
    assert bytes(stored.tolist()) == "réseau ∂".encode()
    assert (stored.dtype, stored.dim(), stored.device.type) == (torch.uint8, 1, "cpu")
    assert layer.identity == "réseau ∂"
    assert make(identity=None).identity is None
    assert make(identity="").identity == ""
    with pytest.raises((AttributeError, TypeError)):
        layer.identity = "other"
    assert layer.identity == "réseau ∂"
    assert encode_identity("").shape == (0,)


def test_identity_that_utf8_cannot_hold_is_our_error():
    with pytest.raises(PriorGraphError, match="identity"):
        make(identity="\ud800")


def test_added_loops_enter_the_digest_and_derived_tensors_are_not_stored():
    plain, looped = (
        PackedMultiheadAttention([0, 1], [1, 0], 2, 2, 4, 1, add_self_loops=loops) for loops in (False, True)
    )
    assert set(looped.state_dict()) == KEY_NAMES
    assert looped.state_dict()["source_index"].tolist() == [0, 1, 0, 1]
    assert not torch.equal(plain.index_digest, looped.index_digest)
    by_hand = PackedMultiheadAttention([0, 1, 0, 1], [1, 0, 0, 1], 2, 2, 4, 1)
    by_hand.load_state_dict(looped.state_dict())


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
def test_casts_leave_graph_entries_alone(cast):
    layer = make()
    before = layer.state_dict()
    after = getattr(layer, cast)().state_dict()
    for name in ("source_index", "target_index", "index_digest", "identity"):
        assert after[name].dtype == before[name].dtype
        assert torch.equal(after[name], before[name])
    make().load_state_dict(after)


# ---------------------------------------------------------------- plain round trips


@pytest.mark.parametrize("options", [{}, {"chunk_size": 3}, {"dropout": 0.5}])
@pytest.mark.parametrize("load", ["method", "function", "strict_false", "assign"])
def test_round_trip(options, load):
    saved, fresh = make(1, **options).eval(), make(0).eval()
    state = saved.state_dict()
    assert not torch.equal(run(saved), run(fresh))
    result = {
        "method": lambda: fresh.load_state_dict(state),
        "function": lambda: load_checkpoint(fresh, state),
        "strict_false": lambda: fresh.load_state_dict(state, strict=False),
        "assign": lambda: fresh.load_state_dict(state, assign=True),
    }[load]()
    assert result.missing_keys == result.unexpected_keys == []
    assert str(result) == "<All keys matched successfully>"
    assert torch.equal(run(saved), run(fresh))


@pytest.mark.parametrize("load", ["method", "function", "foreign"])
def test_loading_copies_into_the_same_parameters(load):
    """An optimizer made before the load goes on with the loaded weights, and the dict is not aliased."""
    model: nn.Module = Foreign(0, make(0)) if load != "method" else make(0)
    state = (Foreign(1, make(1)) if load != "method" else make(1)).state_dict()
    before = dict(model.named_parameters())
    load_checkpoint(model, state) if load == "function" else model.load_state_dict(state)
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert parameter.data_ptr() != state[name].data_ptr()
        assert torch.equal(parameter, state[name])


def test_assign_takes_the_tensors_of_the_dict():
    layer, state = make(0), make(1).double().state_dict()
    layer.load_state_dict(state, assign=True)
    assert layer.q_proj.weight.dtype == torch.float64
    assert layer.q_proj.weight.data_ptr() == state["q_proj.weight"].data_ptr()
    assert layer.q_proj.weight.requires_grad
    assert layer.identity == "réseau"
    assert set(layer.state_dict()) == KEY_NAMES | {"identity"}


def test_assign_keeps_int64_indices():
    layer, state = make(0), make(1).state_dict()
    state["source_index"] = state["source_index"].to(torch.int32)
    layer.load_state_dict(state, assign=True)
    assert layer.source_index.dtype == torch.int64


@pytest.mark.parametrize("load", ["method", "assign", "function", "foreign", "refused"])
@pytest.mark.parametrize("strict", [True, False])
def test_the_callers_dict_stays_as_it_was(load, strict):
    ours = load in {"method", "assign"}
    model: nn.Module = make(0) if ours else Foreign(0, make(0))
    source = make(1) if ours else Foreign(1, make(1, REWIRED if load == "refused" else SOURCE))
    state = source.state_dict()
    keys, values = list(state), [id(value) for value in state.values()]
    copies, metadata = copy.deepcopy(state), copy.deepcopy(state._metadata)
    if load == "refused":
        with pytest.raises(PriorGraphError):
            load_checkpoint(model, state, strict)
    elif load == "function":
        load_checkpoint(model, state, strict)
    elif load == "assign":  # where torch itself leaves a note in the dict that makes later loads assign
        model.load_state_dict(state, strict=strict, assign=True)
    else:
        model.load_state_dict(state, strict=strict)
    assert list(state) == keys
    assert [id(value) for value in state.values()] == values
    assert same(state, copies)
    assert state._metadata == metadata


def test_parameters_given_as_entries_keep_their_requires_grad():
    frozen, layer = make(1).requires_grad_(False), make(0)
    layer.load_state_dict(frozen.state_dict(keep_vars=True))
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_return_value_and_errors_are_torchs():
    state = make(1).state_dict()
    del state["q_proj.bias"]
    state["extra"] = torch.zeros(1)
    layer = make(0)
    result = layer.load_state_dict(state, strict=False)
    assert result.missing_keys == ["q_proj.bias"]
    assert result.unexpected_keys == ["extra"]
    assert torch.equal(layer.q_proj.weight, state["q_proj.weight"])
    assert load_checkpoint(make(0), state, strict=False) == result
    assert_refused(layer, lambda: layer.load_state_dict(state), RuntimeError, r'Missing key.*"q_proj.bias"')
    assert_refused(layer, lambda: load_checkpoint(layer, state), match=r'Unexpected key[^"]*"extra"')
    with pytest.raises(PriorGraphError, match="mapping"):
        load_checkpoint(layer, [("a", 1)])
    with pytest.raises(TypeError, match="dict-like"):
        layer.load_state_dict([("a", 1)])


def test_missing_indices_are_missing_keys():
    state = make(1).state_dict()
    del state["source_index"]
    layer = make(0)
    assert_refused(layer, lambda: layer.load_state_dict(state), RuntimeError, "source_index")
    assert layer.load_state_dict(state, strict=False).missing_keys == ["source_index"]


# ---------------------------------------------------------------- digest, indices, identity


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        make(1, REWIRED),
        PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS, 6, 3, identity="réseau"),
        PackedMultiheadAttention(SOURCE, TARGET, QUERIES + 1, KEYS, 6, 2, identity="réseau"),
        PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS + 1, 6, 2, identity="réseau"),
        PackedMultiheadAttention(SOURCE[::-1], TARGET[::-1], QUERIES, KEYS, 6, 2, identity="réseau"),
        PackedMultiheadAttention(SOURCE[:3], TARGET[:3], QUERIES, KEYS, 6, 2, identity="réseau"),
    ],
    ids=["rewired", "heads", "queries", "keys", "order", "fewer"],
)
def test_another_graph_is_refused(other, strict):
    layer = make(0)
    assert_refused(layer, lambda: layer.load_state_dict(other.state_dict(), strict=strict), match="edges")
    assert_refused(layer, lambda: load_checkpoint(layer, other.state_dict(), strict))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["source_index", "target_index"])
def test_other_indices_are_refused_without_a_digest(name, strict):
    layer, state = make(0), make(1).state_dict()
    del state["index_digest"]
    layer.load_state_dict(state, strict=strict)
    state[name] = state[name].flip(0)
    assert_refused(layer, lambda: layer.load_state_dict(state, strict=strict), match="edges")
    state[name] = torch.zeros(3, dtype=torch.int64)
    assert_refused(layer, lambda: layer.load_state_dict(state, strict=strict), match="edges")


def test_other_indices_are_refused_beside_the_right_digest():
    layer = make(0)
    state = {**make(1).state_dict(), "source_index": torch.tensor(REWIRED)}
    assert_refused(layer, lambda: layer.load_state_dict(state), match="edges")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(SOURCE).float(),
        torch.tensor(SOURCE) + 0j,
        torch.tensor(SOURCE)[None],
        SOURCE,
        "0",
        torch.tensor(SOURCE).numpy(),
    ],
    ids=["float", "complex", "one_row", "list", "str", "ndarray"],
)
def test_indices_of_another_kind_are_refused(value):
    layer = make(0)
    state = {**make(1).state_dict(), "source_index": value}
    assert_refused(layer, lambda: layer.load_state_dict(state), match="source_index' must be an integer")


@pytest.mark.parametrize(
    "value",
    [
        make().index_digest.to(torch.int64),
        make().index_digest[:31],
        make().index_digest[None],
        make().index_digest.flip(0),
        make().index_digest.tolist(),
        bytes(make().index_digest.tolist()),
        "digest",
    ],
    ids=["int64", "short", "2-D", "wrong", "list", "bytes", "str"],
)
def test_malformed_digests_are_refused(value):
    layer = make(0)
    state = {**make(1).state_dict(), "index_digest": value}
    assert_refused(layer, lambda: layer.load_state_dict(state), match=r"digest.*No weights were loaded")
    assert_refused(layer, lambda: layer.load_state_dict(state, strict=False))


@pytest.mark.parametrize(
    "value",
    [
        encode_identity("réseau").to(torch.int64),
        encode_identity("réseau")[None],
        torch.tensor([0xFF, 0xFE], dtype=torch.uint8),
        "réseau",
        "réseau".encode(),
        list("réseau".encode()),
        torch.tensor(7, dtype=torch.uint8),
    ],
    ids=["int64", "2-D", "not UTF-8", "str", "bytes", "list", "0-d"],
)
@pytest.mark.parametrize("own", [None, "réseau"])
def test_malformed_identities_are_refused(value, own):
    layer = make(0, identity=own)
    state = {**make(1).state_dict(), "identity": value}
    assert_refused(layer, lambda: layer.load_state_dict(state), match="identity")
    root = Foreign(0, layer)
    state = {**Foreign(1, make(1)).state_dict(), "layers.0.identity": value}
    assert_refused(root, lambda: root.load_state_dict(state), match="layers.0.identity")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("door", ["method", "function", "foreign"])
@pytest.mark.parametrize("own", [None, "réseau", ""])
@pytest.mark.parametrize("saved", [None, "réseau", "other", ""])
def test_identity_matrix(own, saved, door, strict):
    layer, other = make(0, identity=own), make(1, identity=saved)
    model, source = (Foreign(0, layer), Foreign(1, other)) if door == "foreign" else (layer, other)
    state = source.state_dict()

    def load() -> Any:
        return (
            load_checkpoint(model, state, strict)
            if door == "function"
            else model.load_state_dict(state, strict)
        )

    if saved is None or saved == own:
        result = load()
        assert result.missing_keys == result.unexpected_keys == []
        assert torch.equal(layer.v_proj.weight, other.v_proj.weight)
    else:
        assert_refused(model, load, match="identity")
    assert layer.identity == own
    assert ("identity" in layer.state_dict()) == (own is not None)


@pytest.mark.parametrize(
    ("saved", "shown"),
    [("k", "k"), ("k" * 24, "k" * 24), ("0123456789ab" + "k" * 13, "0123456789ab…")],
    ids=["short", "24", "25"],
)
def test_a_long_identity_is_shown_by_its_first_twelve_characters(saved, shown):
    layer, state = make(0, identity="mine"), make(1, identity=saved).state_dict()
    assert_refused(layer, lambda: layer.load_state_dict(state), match=f"'mine', the checkpoint '{shown}'\\.")


def test_identities_that_begin_alike_are_shown_as_far_as_they_differ():
    own = "0123456789ab" + "k" * 13
    layer, state = make(0, identity=own), make(1, identity=own + "z" * 30).state_dict()
    match = f"identity '{own}', the checkpoint '{own}{'z' * 24}'\\."
    assert_refused(layer, lambda: layer.load_state_dict(state), match=match)


def test_refusals_are_value_errors_that_print_no_numbers_of_tensors():
    layer = make(0, identity="mine")
    secret = torch.tensor([250, 251, 252], dtype=torch.uint8)
    with pytest.raises(ValueError, match="No weights") as refused:
        layer.load_state_dict({**make(1, identity="mine").state_dict(), "index_digest": secret})
    assert "250" not in str(refused.value)
    assert "tensor(" not in str(refused.value)


# ---------------------------------------------------------------- beside kpnn2


@pytest.mark.parametrize("identity", [None, "réseau"])
@pytest.mark.parametrize("bias", [True, False])
def test_checkpoints_travel_both_ways(identity, bias):
    kpnn2 = pytest.importorskip("kpnn2")

    def peer(source: list[int] = SOURCE, identity: str | None = identity) -> nn.Module:
        return kpnn2.PackedMultiheadAttention(
            source, TARGET, QUERIES, KEYS, 6, 2, bias=bias, identity=identity
        )

    ours, theirs = make(1, bias=bias, identity=identity), peer()
    ours = PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS, 6, 2, bias=bias, identity=identity)
    assert ours.load_state_dict(theirs.state_dict()).unexpected_keys == []
    torch.testing.assert_close(run(ours), run(theirs))
    back = peer()
    assert not torch.equal(back.q_proj.weight, ours.q_proj.weight)
    assert back.load_state_dict(ours.state_dict()).unexpected_keys == []
    torch.testing.assert_close(run(back), run(ours))

    assert_refused(ours, lambda: ours.load_state_dict(peer(REWIRED).state_dict()))
    assert_refused(ours, lambda: ours.load_state_dict(peer(identity="other").state_dict()))
    rewired = make(1, REWIRED, bias=bias, identity=identity).state_dict()
    assert_refused(back, lambda: back.load_state_dict(rewired), kpnn2.Kpnn2Error)


def test_graph_built_layers_travel_too():
    kpnn2 = pytest.importorskip("kpnn2")
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"source": ["x", "a", "b", "a"], "target": ["a", "b", "a", "y"]})
    spec, graph = kpnn2.parse_adjacency(table), pyg_kpnn.parse_adjacency(table)
    options = {"embed_dim": 6, "num_heads": 2, "add_self_loops": True}
    theirs = kpnn2.PackedMultiheadAttention.from_adjacency(spec, identity=spec.fingerprint, **options)
    ours = PackedMultiheadAttention.from_adjacency(graph, identity=graph.fingerprint, **options)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours.index_digest, theirs.state_dict()["index_digest"])


def test_model_that_also_holds_a_peer_layer():
    kpnn2 = pytest.importorskip("kpnn2")

    def both(source: list[int] = SOURCE) -> nn.Module:
        peer = kpnn2.PackedMultiheadAttention(source, TARGET, QUERIES, KEYS, 6, 2, identity="p")
        return Foreign(0, make(1), peer)

    model = both()
    state = both().state_dict()
    load_checkpoint(model, state)
    assert torch.equal(model.layers[1].q_proj.weight, state["layers.1.q_proj.weight"])
    state = both(REWIRED).state_dict()
    assert_refused(model, lambda: load_checkpoint(model, state), (PriorGraphError, kpnn2.Kpnn2Error))


# ---------------------------------------------------------------- all or nothing: load_checkpoint


def broken(state: dict[str, Any], how: str) -> dict[str, Any]:
    """One fault at the end of the model, so that everything before it could be overwritten."""
    state = dict(state)
    if how == "missing":
        del state["layers.1.weight"]
    elif how == "unexpected":
        state["layers.1.extra"] = torch.zeros(1)
    elif how == "shape":
        state["layers.1.weight"] = torch.zeros(2, 2)
    elif how == "buffer":
        state["layers.2.running_mean"] = torch.zeros(9)
    elif how == "kind":
        state["layers.1.weight"] = "not a tensor"
    elif how == "meta":
        state["layers.1.weight"] = state["layers.1.weight"].to("meta")
    elif how == "sparse":
        state["layers.1.weight"] = state["layers.1.weight"].to_sparse()
    elif how == "digest":
        state["layers.0.index_digest"] = state["layers.0.index_digest"].flip(0)
    elif how == "identity":
        state["layers.0.identity"] = encode_identity("other")
    return state


def zoo(seed: int) -> Foreign:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Foreign(seed, make(seed), nn.Linear(2, 3), nn.BatchNorm1d(3))


FAULTS = ["missing", "unexpected", "shape", "buffer", "kind", "meta", "sparse", "digest", "identity"]


@pytest.mark.parametrize("how", FAULTS)
def test_load_checkpoint_changes_nothing_when_anything_is_wrong(how):
    model = zoo(0)
    state = broken(zoo(1).state_dict(), how)
    assert_refused(model, lambda: load_checkpoint(model, state))


@pytest.mark.parametrize("how", FAULTS)
def test_our_models_change_nothing_when_anything_is_wrong(how):
    class Ours(PriorTransformer):
        def __init__(self, seed: int) -> None:
            super().__init__(GRAPH, embed_dim=4, num_heads=2, num_layers=1)
            self.zoo = zoo(seed)

    model = Ours(0)
    rest = Ours(1).state_dict()
    inner = {name: value for name, value in rest.items() if name.startswith("zoo.")}
    inner = broken({name.removeprefix("zoo."): value for name, value in inner.items()}, how)
    state = {name: value for name, value in rest.items() if not name.startswith("zoo.")}
    state.update({f"zoo.{name}": value for name, value in inner.items()})
    assert_refused(model, lambda: model.load_state_dict(state), (RuntimeError, PriorGraphError))
    assert_refused(model, lambda: load_checkpoint(model, state))


@pytest.mark.parametrize("how", ["shape", "digest", "identity"])
def test_strict_false_still_refuses_wrong_entries(how):
    model = zoo(0)
    state = broken(zoo(1).state_dict(), how)
    assert_refused(model, lambda: load_checkpoint(model, state, strict=False))


def test_load_checkpoint_of_a_whole_model():
    model, saved = zoo(0), zoo(1)
    parameters = dict(model.named_parameters())
    result = load_checkpoint(model, saved.state_dict())
    assert result.missing_keys == result.unexpected_keys == []
    expected = contents(saved)
    expected["scratch"] = torch.zeros(2)  # not persistent: not part of a checkpoint
    assert same(contents(model), expected)
    assert model.tied.weight is model.embed.weight is parameters["embed.weight"]
    check_checkpoint(model, zoo(2).state_dict())
    assert same(contents(model), expected)


def test_batch_norm_checkpoints_of_old_versions_load():
    state = zoo(1).state_dict()
    for name in [name for name in state if name.endswith("num_batches_tracked")]:
        del state[name]
    state._metadata.clear()  # version 1 had no counter, and torch fills it in
    assert load_checkpoint(zoo(0), state).missing_keys == []


def test_check_leaves_random_state_gradients_modes_and_hooks_alone():
    model = nn.Sequential(PriorAttentionConv(6, 4), make(0), nn.Dropout())
    saved = nn.Sequential(PriorAttentionConv(6, 4), make(1), nn.Dropout()).state_dict()
    model.eval()
    run(model[1]).sum().backward()
    gradient = model[1].q_proj.weight.grad
    random_state = torch.get_rng_state()
    check_checkpoint(model, saved)
    load_checkpoint(model, saved)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model[1].q_proj.weight.grad is gradient
    assert not model[1].training


class Extra(nn.Module):
    """A foreign layer whose extra state is written into an object it keeps."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.vocabulary = {word: 1}

    def get_extra_state(self) -> dict[str, int]:
        return dict(self.vocabulary)

    def set_extra_state(self, state: dict[str, int]) -> None:
        if "bad" in state:
            raise RuntimeError("bad word")
        self.vocabulary.clear()
        self.vocabulary.update(state)


def test_extra_state_of_foreign_layers():
    model = nn.Sequential(Extra("a"), make(0))
    state = nn.Sequential(Extra("b"), make(1, REWIRED)).state_dict()
    assert_refused(model, lambda: load_checkpoint(model, state))
    assert model[0].vocabulary == {"a": 1}
    state = nn.Sequential(make(1), Extra("bad")).state_dict()
    turned = nn.Sequential(make(0), Extra("a"))
    assert_refused(turned, lambda: load_checkpoint(turned, state))
    load_checkpoint(model, nn.Sequential(Extra("b"), make(1)).state_dict())
    assert model[0].vocabulary == {"b": 1}


@pytest.mark.parametrize("attribute", ["lock", "activation"])
def test_attributes_that_cannot_be_copied_do_not_stop_a_load(attribute):
    model = make(0)
    model.kept = threading.Lock() if attribute == "lock" else run(model)  # not a leaf of autograd
    kept = model.kept
    model.load_state_dict(make(1).state_dict())
    root = nn.Sequential(model)
    root.kept = kept
    load_checkpoint(root, nn.Sequential(make(2)).state_dict())
    assert torch.equal(model.q_proj.weight, make(2).q_proj.weight)
    assert model.kept is root.kept is kept


def test_parametrized_layers():
    def build(seed: int, source: list[int] = SOURCE) -> nn.Module:
        root = Foreign(seed, make(seed, source))
        nn.utils.parametrizations.weight_norm(root.first)
        nn.utils.parametrizations.weight_norm(root.layers[0].out_proj)
        return root

    model = build(0)
    assert_refused(model, lambda: load_checkpoint(model, build(1, REWIRED).state_dict()))
    load_checkpoint(model, build(1).state_dict())
    assert torch.equal(run(model.layers[0]), run(build(1).layers[0]))


def test_lazy_layers():
    def build(seed: int, source: list[int] = SOURCE, lazy: bool = False) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            width = -1 if lazy else 7
            linear = LazyPygLinear(width, 3)
            return nn.Sequential(linear, PriorAttentionConv(width, 4), make(seed, source))

    model = build(0, lazy=True)
    with pytest.raises(PriorGraphError):
        load_checkpoint(model, build(1, REWIRED).state_dict())
    assert nn.parameter.is_lazy(model[0].weight)
    assert model[0].in_channels == -1
    load_checkpoint(model, build(1).state_dict())
    assert torch.equal(model[0].weight, build(1)[0].weight)
    assert model[0].in_channels == 7
    assert model[0](torch.ones(2, 7)).shape == (2, 3)
    assert torch.equal(model[1].lin_query.weight, build(1)[1].lin_query.weight)

    lazy = nn.Sequential(nn.LazyLinear(3), make(0))
    state = nn.Sequential(nn.Linear(7, 3), make(1)).state_dict()
    load_checkpoint(lazy, state)
    assert torch.equal(lazy[0].weight, state["0.weight"])


class Renaming(Foreign):
    """A foreign root that reads an old spelling of its keys."""

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        renamed = {name.replace("blocks.", "layers."): value for name, value in state_dict.items()}
        return super().load_state_dict(renamed, strict=strict)


def old_spelling(model: nn.Module) -> dict[str, Tensor]:
    return {name.replace("layers.", "blocks."): value for name, value in model.state_dict().items()}


@pytest.mark.parametrize("door", ["method", "function"])
def test_root_with_a_load_state_dict_of_its_own(door):
    model = Renaming(0, make(0))

    def load(state: dict[str, Tensor]) -> Any:
        return load_checkpoint(model, state) if door == "function" else model.load_state_dict(state)

    assert_refused(model, lambda: load(old_spelling(Foreign(1, make(1, REWIRED)))))
    saved = Foreign(1, make(1))
    load(old_spelling(saved))
    assert torch.equal(model.layers[0].q_proj.weight, saved.layers[0].q_proj.weight)
    assert torch.equal(model.first.weight, saved.first.weight)


def test_our_model_with_a_load_state_dict_of_its_own():
    class Prefixed(PackedMultiheadAttention):
        def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            renamed = {name.removeprefix("module."): value for name, value in state_dict.items()}
            return super().load_state_dict(renamed, *args, **kwargs)

    model = Prefixed(SOURCE, TARGET, QUERIES, KEYS, 6, 2)
    state = nn.DataParallel(make(1, identity=None)).state_dict()
    load_checkpoint(model, state)
    assert torch.equal(model.q_proj.weight, state["module.q_proj.weight"])
    bad = nn.DataParallel(make(1, REWIRED)).state_dict()
    assert_refused(model, lambda: load_checkpoint(model, bad))


# ---------------------------------------------------------------- all or nothing: foreign roots


def plain(seed: int, source: list[int] = SOURCE) -> Foreign:
    return Foreign(seed, make(seed), make(seed, source))


def attach(how: str, layer: nn.Module) -> Foreign:
    """A foreign root that our layer joins after its containers were attached."""
    root = Foreign(0, nn.Identity())
    if how == "append":
        root.layers.append(layer)
    elif how == "insert":
        root.layers.insert(0, layer)
    elif how == "extend":
        root.layers.extend([layer])
    elif how == "setitem":
        root.layers[0] = layer
    elif how == "setattr":
        root.layers.late = layer
    elif how == "add_module":
        root.layers[0].add_module("late", layer)
    elif how == "dict":
        root.named = nn.ModuleDict()
        root.named["late"] = layer
    elif how == "dict_update":
        root.named = nn.ModuleDict()
        root.named.update({"late": layer})
    elif how == "modules":
        root.layers._modules["late"] = layer
    elif how == "sequential":
        root.late = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
        with torch.no_grad():
            root.late[0][0].weight.fill_(1.0)
            root.late[0][0].bias.fill_(1.0)
        root.late[0].append(layer)
    elif how == "reused":
        root.layers.append(layer)
        root.again = layer
    return root


HOW = ["append", "insert", "extend", "setitem", "setattr", "add_module", "dict", "dict_update", "modules",
       "sequential", "reused"]  # fmt: skip


@pytest.mark.parametrize("travel", ["as is", "deepcopy", "pickle", "torch.save", "wrapped"])
@pytest.mark.parametrize("how", HOW)
def test_foreign_root_changes_nothing_however_our_layer_joined(how, travel):
    def build(layer: nn.Module) -> nn.Module:
        root = attach(how, layer)
        if travel == "deepcopy":
            return copy.deepcopy(root)
        if travel == "pickle":
            return pickle.loads(pickle.dumps(root))
        if travel == "torch.save":
            stream = io.BytesIO()
            torch.save(root, stream)
            stream.seek(0)
            return torch.load(stream, weights_only=False)
        return nn.Sequential(root) if travel == "wrapped" else root

    def moved(model: nn.Module) -> dict[str, Any]:
        return {
            name: value + 1 if value.is_floating_point() else value
            for name, value in model.state_dict().items()
        }

    model = build(make(0))
    for bad in (make(1, REWIRED), make(1, identity="other")):
        state = moved(build(bad))
        assert_refused(model, lambda state=state: model.load_state_dict(state))
        assert_refused(model, lambda state=state: model.load_state_dict(state, strict=False))
        assert_refused(model, lambda state=state: model.load_state_dict(state, strict=True, assign=True))
        assert_refused(model, lambda state=state: load_checkpoint(model, state))
    good = moved(build(make(1)))
    model.load_state_dict(good)
    assert all(torch.equal(value, good[name]) for name, value in model.state_dict().items())


def test_one_bad_layer_among_many():
    model, state = plain(0), plain(1, REWIRED).state_dict()
    assert_refused(model, lambda: model.load_state_dict(state), match=r"layers\.1\.")


@pytest.mark.parametrize("place", ["one", "two"])
def test_layer_shared_by_two_names_is_checked_under_both(place):
    def build(seed: int) -> nn.Module:
        root = Foreign(seed)
        root.one = root.two = make(seed)
        return root

    model = build(0)
    state = build(1).state_dict()
    state.update({f"{place}.{name}": value for name, value in make(1, REWIRED).state_dict().items()})
    assert_refused(model, lambda: model.load_state_dict(state))
    assert_refused(model, lambda: load_checkpoint(model, state))
    model.load_state_dict(build(1).state_dict())


def test_keys_renamed_by_a_pre_hook_are_checked_under_their_new_name():
    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in [name for name in state if name.startswith(f"{prefix}blocks.")]:
            state[name.replace("blocks.", "layers.")] = state.pop(name)

    def build(seed: int, source: list[int] = SOURCE) -> nn.Module:
        root = Foreign(seed, make(seed, source))
        root.register_load_state_dict_pre_hook(rename)
        return root

    model, wrapped = build(0), nn.Sequential(build(0))
    bad, good = (old_spelling(build(1, source)) for source in (REWIRED, SOURCE))
    assert_refused(model, lambda: model.load_state_dict(bad))
    assert_refused(model, lambda: load_checkpoint(model, bad))
    bad = {f"0.{name}": value for name, value in bad.items()}
    assert_refused(wrapped, lambda: wrapped.load_state_dict(bad))
    model.load_state_dict(good)
    assert torch.equal(model.layers[0].q_proj.weight, good["blocks.0.q_proj.weight"])


@pytest.mark.parametrize("how", ["missing", "unexpected", "shape", "kind"])
@pytest.mark.parametrize("strict", [True, False])
def test_torchs_own_mismatches_behave_as_in_torch(how, strict):
    """The same root with a plain module in the place of our layer shows what torch does."""

    def without(state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if not name.startswith("layers.0.")}

    def reference(seed: int) -> Foreign:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Foreign(seed, nn.Identity(), nn.Linear(2, 3), nn.BatchNorm1d(3))

    def outcome(model: nn.Module, state: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
        try:
            result: Any = model.load_state_dict(state, strict=strict)
            result = (result.missing_keys, result.unexpected_keys)
        except RuntimeError as error:
            result = (type(error), str(error))
        return result, without(contents(model))

    state = broken(zoo(1).state_dict(), how)
    ours, ours_after = outcome(zoo(0), state)
    torchs, torchs_after = outcome(reference(0), without(state))
    assert ours == torchs
    assert same(ours_after, torchs_after)
    assert not same(ours_after, without(contents(zoo(0))))  # torch overwrites what it can


def test_modules_without_our_layers_are_torchs():
    linear = nn.Linear(2, 2)
    state = nn.Linear(2, 2).state_dict()
    assert str(linear.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(linear.weight, state["weight"])
    with pytest.raises(TypeError, match="dict-like"):
        nn.Sequential(make()).load_state_dict(3)
    assert nn.Module.load_state_dict.__name__ == "load_state_dict"


# ---------------------------------------------------------------- our models


GRAPH = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "a")], sign=[1, -1, 1], weight=[1.0, 2.0, 0.5])
RENAMED = PriorGraph.from_edges([("a", "b"), ("b", "d"), ("d", "a")], sign=[1, -1, 1], weight=[1.0, 2.0, 0.5])


@pytest.mark.parametrize("edge_bias", [None, "sign", "log_weight"])
def test_prior_transformer_round_trip_and_refusal(edge_bias):
    def build(graph: PriorGraph = GRAPH) -> PriorTransformer:
        return PriorTransformer(graph, embed_dim=4, num_heads=2, num_layers=3, edge_bias=edge_bias)

    model, saved = build(), build()
    x = torch.randn(5, 3)
    state = saved.state_dict()
    assert_refused(model, lambda: model.load_state_dict(build(RENAMED).state_dict()), match="identity")
    mixed = {**state, "layers.2.attention.identity": encode_identity("other")}
    assert_refused(model, lambda: model.load_state_dict(mixed), match=r"layers\.2\.attention")
    root = nn.Sequential(nn.Linear(3, 3), model)
    bad = nn.Sequential(nn.Linear(3, 3), build(RENAMED)).state_dict()
    assert_refused(root, lambda: root.load_state_dict(bad))
    model.load_state_dict(state)
    assert torch.equal(model(x), saved(x))


def test_wrong_shape_at_the_end_of_our_model_changes_nothing():
    model = PriorTransformer(GRAPH, embed_dim=4, num_heads=2)
    state = {
        **PriorTransformer(GRAPH, embed_dim=4, num_heads=2).state_dict(),
        "head.weight": torch.zeros(2, 2),
    }
    assert_refused(model, lambda: model.load_state_dict(state), RuntimeError, "size mismatch for head.weight")
    layer = make(0)
    state = {**make(1).state_dict(), "out_proj.bias": torch.zeros(5)}
    assert_refused(
        layer, lambda: layer.load_state_dict(state), RuntimeError, "size mismatch for out_proj.bias"
    )
    assert_refused(layer, lambda: load_checkpoint(layer, state), match="size mismatch for out_proj.bias")


# ---------------------------------------------------------------- devices and memory


def test_to_empty_then_load_rebuilds_the_layout():
    saved, layer = make(1), make(0)
    layer.to_empty(device="cpu")
    layer.load_state_dict(saved.state_dict())
    assert torch.equal(run(layer), run(saved))
    assert layer.identity == "réseau"


def test_through_the_meta_device():
    saved = Foreign(1, make(1))
    root = Foreign(0, make(0)).to("meta")
    assert root.layers[0].q_proj.weight.is_meta
    root.to_empty(device="cpu").load_state_dict(saved.state_dict())
    assert torch.equal(run(root.layers[0]), run(saved.layers[0]))


@pytest.mark.parametrize("move", ["assign", "to_empty"])
def test_built_on_the_meta_device(move):
    with torch.device("meta"):
        layer = PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS, 6, 2, identity="réseau")
    assert layer.q_proj.weight.is_meta
    assert torch.equal(layer.index_digest, make().index_digest)
    bad = make(1, REWIRED).state_dict()
    with pytest.raises(PriorGraphError, match="edges"):
        layer.load_state_dict(bad, assign=True)
    assert layer.q_proj.weight.is_meta
    if move == "to_empty":
        layer.to_empty(device="cpu")
    layer.load_state_dict(make(1).state_dict(), assign=move == "assign")
    assert torch.equal(run(layer), run(make(1)))


def test_load_checkpoint_onto_a_meta_model_warns_as_torch_does():
    with torch.device("meta"):
        layer = PackedMultiheadAttention(SOURCE, TARGET, QUERIES, KEYS, 6, 2)
    with pytest.warns(UserWarning, match="copying from a non-meta parameter"):
        load_checkpoint(layer, make(1, identity=None).state_dict())
    assert layer.q_proj.weight.is_meta


def test_swapping_tensors_instead_of_copying():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = Foreign(0, make(0))
        parameter = model.layers[0].q_proj.weight
        load_checkpoint(model, Foreign(1, make(1)).state_dict())
        assert model.layers[0].q_proj.weight is parameter
        assert torch.equal(run(model.layers[0]), run(make(1)))
        bad = Foreign(2, make(2, REWIRED)).state_dict()
        assert_refused(model, lambda: model.load_state_dict(bad))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


# ---------------------------------------------------------------- the tools people use


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    for name, build in {
        "layer": make,
        "root": lambda seed: Foreign(seed, make(seed), make(seed + 7)),
    }.items():
        saved, model = build(1), build(0)
        state = {key: value for key, value in saved.state_dict().items() if key != "tied.weight"}
        safetensors.save_file(state, tmp_path / f"{name}.safetensors")
        loaded = safetensors.load_file(tmp_path / f"{name}.safetensors")
        assert loaded.keys() == state.keys()
        result = load_checkpoint(model, loaded, strict=name == "layer")
        assert result.missing_keys == ([] if name == "layer" else ["tied.weight"])
        safetensors.save_model(saved, tmp_path / "whole.safetensors")
        again = build(2)
        assert safetensors.load_model(again, tmp_path / "whole.safetensors") == (set(), [])
        for other in (model, again):
            assert same(dict(other.state_dict()), dict(saved.state_dict()))


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_save_with_weights_only(tmp_path, mmap):
    saved, model = Foreign(1, make(1)), Foreign(0, make(0))
    torch.save(saved.state_dict(), tmp_path / "model.bin")
    state = torch.load(tmp_path / "model.bin", weights_only=True, mmap=mmap)
    load_checkpoint(model, state)
    assert same(dict(model.state_dict()), dict(saved.state_dict()))


@pytest.mark.parametrize("identity", [None, "réseau"])
def test_functional_call_over_a_state_dict(identity):
    layer, other = make(0, identity=identity), make(1, identity=identity)
    query, key = torch.randn(7, QUERIES, 6), torch.randn(7, KEYS, 6)
    before = contents(layer)
    state = dict(other.state_dict())
    state["q_proj.weight"] = state["q_proj.weight"].clone().requires_grad_()
    output, _ = torch.func.functional_call(layer, state, (query, key, key))
    assert torch.equal(output, other(query, key, key)[0])
    (gradient,) = torch.autograd.grad(output.square().sum(), state["q_proj.weight"])
    assert gradient.abs().sum() > 0
    assert same(contents(layer), before)
    assert layer.identity == identity

    root = nn.Sequential(PriorTransformer(GRAPH, embed_dim=4, num_heads=2))
    saved = nn.Sequential(PriorTransformer(GRAPH, embed_dim=4, num_heads=2))
    x = torch.randn(5, 3)
    assert torch.equal(torch.func.functional_call(root, saved.state_dict(), (x,)), saved(x))


def test_stacked_models_for_an_ensemble():
    layers = [make(seed) for seed in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    query, key = torch.randn(QUERIES, 6), torch.randn(KEYS, 6)
    fixed = {name: value[0] for name, value in buffers.items()}

    def call(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], (own, fixed), (query, key, key))[0]

    stacked = torch.func.vmap(call)(parameters)
    torch.testing.assert_close(stacked, torch.stack([layer(query, key, key)[0] for layer in layers]))


def test_moving_average_over_the_float_entries():
    model = Foreign(1, make(1))
    average = {name: value.clone() for name, value in Foreign(0, make(0)).state_dict().items()}
    first = {name: value.clone() for name, value in average.items()}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 0.25)
    target = Foreign(2, make(2))
    load_checkpoint(target, average)
    name = "layers.0.v_proj.weight"
    torch.testing.assert_close(
        target.state_dict()[name], 0.75 * first[name] + 0.25 * model.state_dict()[name]
    )


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_model(use_buffers):
    model = Foreign(0, make(0))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=use_buffers
    )
    average.update_parameters(model)
    model.load_state_dict(Foreign(1, make(1)).state_dict())
    average.update_parameters(model)
    layer = average.module.layers[0]
    torch.testing.assert_close(layer.q_proj.weight, (make(0).q_proj.weight + make(1).q_proj.weight) / 2)
    assert layer.source_index.tolist() == SOURCE
    assert layer.source_index.dtype == torch.int64
    assert layer.identity == "réseau"
    again = torch.optim.swa_utils.AveragedModel(Foreign(2, make(2)))
    again.load_state_dict(average.state_dict())
    assert int(again.n_averaged) == 2
    assert torch.equal(run(again.module.layers[0]), run(layer))
    bad = torch.optim.swa_utils.AveragedModel(Foreign(1, make(1, REWIRED))).state_dict()
    assert_refused(again, lambda: again.load_state_dict(bad))
    assert int(again.n_averaged) == 2


@pytest.mark.parametrize("wrap", ["DataParallel", "twice", "compile"])
def test_prefixes_of_wrappers(wrap):
    def build(seed: int, source: list[int] = SOURCE) -> nn.Module:
        root = Foreign(seed, make(seed, source))
        if wrap == "compile":
            return torch.compile(root, backend="eager")
        return nn.DataParallel(nn.DataParallel(root) if wrap == "twice" else root)

    prefix = {"DataParallel": "module.", "twice": "module.module.", "compile": "_orig_mod."}[wrap]
    model, state = build(0), build(1).state_dict()
    assert f"{prefix}layers.0.index_digest" in state
    bad = build(1, REWIRED).state_dict()
    assert_refused(model, lambda: model.load_state_dict(bad), match=prefix)
    assert_refused(model, lambda: load_checkpoint(model, bad))
    model.load_state_dict(state)
    assert same(dict(model.state_dict()), dict(state))
    load_checkpoint(model, build(2).state_dict())
    assert same(dict(model.state_dict()), dict(build(2).state_dict()))

    inner = Foreign(0, make(0))
    assert_refused(inner, lambda: load_checkpoint(inner, state), match="Unexpected key")
    result = load_checkpoint(inner, state, strict=False)
    assert set(state) == set(result.unexpected_keys)
    assert {"first.weight", "layers.0.q_proj.weight", "layers.0.source_index"} <= set(result.missing_keys)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    load_checkpoint(inner, state)
    assert torch.equal(run(inner.layers[0]), run(make(1)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, while tracing
def test_compiled_layer_loads_and_runs():
    model = torch.compile(make(0), backend="eager")
    run(model)
    saved = torch.compile(make(1), backend="eager")
    assert all(name.startswith("_orig_mod.") for name in saved.state_dict())
    model.load_state_dict(saved.state_dict())
    torch.testing.assert_close(run(model), run(make(1)))
    bad = torch.compile(make(1, REWIRED), backend="eager").state_dict()
    assert_refused(model, lambda: model.load_state_dict(bad))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_keep_their_graph_and_share_nothing(way):
    layer = make(0)
    other = copy.deepcopy(layer) if way == "deepcopy" else pickle.loads(pickle.dumps(layer))
    assert torch.equal(run(other), run(layer))
    assert other.identity == layer.identity
    assert torch.equal(other.index_digest, layer.index_digest)
    other.load_state_dict(make(1).state_dict())
    assert torch.equal(run(layer), run(make(0)))
    assert torch.equal(run(other), run(make(1)))
    assert_refused(other, lambda: other.load_state_dict(make(1, REWIRED).state_dict()))
    assert_refused(other, lambda: other.load_state_dict(make(1, identity="other").state_dict()))


def test_training_goes_on_after_a_load():
    model = make(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.load_state_dict(make(1).state_dict())
    before = contents(model)
    run(model).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in contents(model).items() if not torch.equal(value, before[name])}
    assert {"q_proj.weight", "v_proj.weight", "out_proj.weight", "out_proj.bias"} <= changed
    assert not changed & {"source_index", "target_index", "identity"}


def test_gradients_and_graph_survive_a_load_in_inference_mode():
    model = make(0)
    with torch.inference_mode():
        model.load_state_dict(make(1).state_dict())
    assert torch.equal(run(model), run(make(1)))
