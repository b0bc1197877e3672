"""One kind of fault in a checkpoint each, with what is said about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyg_kpnn import PackedMultiheadAttention, PriorGraph, PriorGraphError, PriorTransformer, load_checkpoint
from pyg_kpnn.checkpoint import check_checkpoint

GRAPH = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")])


def build(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PriorTransformer(GRAPH, embed_dim=4, num_heads=2, num_layers=2)


def foreign(seed=0):
    return nn.Sequential(build(seed), nn.Linear(2, 2))


def contents(model):
    return {name: entry.clone() for name, entry in model.state_dict().items()}


def refused(model, state, error=PriorGraphError, match=None, load=load_checkpoint, **options):
    before = contents(model)
    with pytest.raises(error, match=match):
        load(model, state, **options)
    assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items())


KINDS = {
    "int64": lambda entry: entry.long(),
    "uint16": lambda entry: entry.to(torch.uint16),
    "bool": lambda entry: entry.bool(),
    "complex": lambda entry: entry + 1j,
    "bits": lambda entry: torch.zeros(entry.shape, dtype=torch.uint8).view(torch.bits8),
    "float4": lambda entry: torch.zeros(entry.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "quantized": lambda entry: torch.quantize_per_tensor(entry, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings(r"ignore:torch\.quantize_per_tensor")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [build, foreign])
def test_weights_of_another_kind_are_refused_not_rounded(kind, make):
    """torch drops fractions and imaginary parts without a word, and stops half-way at the last three."""
    if kind == "float4" and not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no such numbers")
    model, state = make(), dict(make(1).state_dict())
    name = next(name for name in reversed(state) if name.endswith("q_proj.weight"))
    state[name] = KINDS[kind](state[name])
    refused(model, state, match=rf"(?s)Nothing was loaded.*{name}")
    refused(model, state, match=name, strict=False)
    if make is build:
        refused(model, state, RuntimeError, name, type(model).load_state_dict)
        refused(model, state, RuntimeError, name, type(model).load_state_dict, assign=True)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double, torch.float8_e5m2])
def test_floating_point_weights_of_another_width_load(dtype):
    model, state = build(), build(1).state_dict()
    state = {name: entry.to(dtype) if entry.is_floating_point() else entry for name, entry in state.items()}
    load_checkpoint(model, state)
    for name, entry in model.state_dict().items():
        assert torch.equal(entry, state[name].to(entry.dtype)), name


def test_integer_buffers_of_another_width_load_and_other_kinds_do_not():
    model, state = nn.BatchNorm1d(2), nn.BatchNorm1d(2).state_dict()
    load_checkpoint(model, {**state, "num_batches_tracked": torch.tensor(7, dtype=torch.int32)})
    assert model.num_batches_tracked.item() == 7
    refused(model, {**state, "num_batches_tracked": torch.tensor(7.5)}, match="num_batches_tracked")


@pytest.mark.parametrize("door", [load_checkpoint, PriorTransformer.load_state_dict])
def test_layers_of_the_model_itself_can_be_exchanged(door):
    model = build()
    before = contents(model)
    state = dict(model.state_dict())  # entries are the model's own tensors
    swapped = {
        name: state[
            name.replace("layers.0.", "layers.9.").replace("layers.1.", "layers.0.").replace("9", "1")
        ]
        for name in state
    }
    door(model, swapped)
    for name, entry in model.state_dict().items():
        other = (
            name.replace("layers.0", "layers.9")
            .replace("layers.1", "layers.0")
            .replace("layers.9", "layers.1")
        )
        assert torch.equal(entry, before[other]), name
    assert not torch.equal(model.layers[0].attention.q_proj.weight, model.layers[1].attention.q_proj.weight)


def test_a_turned_view_of_a_weight_is_what_it_was_when_given():
    model = nn.Linear(3, 3, bias=False)
    before = model.weight.detach().clone()
    load_checkpoint(model, {"weight": model.weight.T})
    assert torch.equal(model.weight, before.T)


@pytest.mark.parametrize("name", ["index_digest", "identity", "source_index"])
def test_an_entry_that_is_none_is_not_an_absent_one(name):
    key = f"layers.1.attention.{name}"
    refused(build(), {**build(1).state_dict(), key: None}, match=f"{key}.*NoneType")


@pytest.mark.parametrize("left_out", ["source_index", "target_index"])
def test_one_index_alone_is_compared_as_well(left_out):
    kept = {"source_index": "target_index", "target_index": "source_index"}[left_out]
    prefix = "layers.0.attention."
    model, state = build(), dict(build(1).state_dict())
    del state[prefix + left_out], state[f"{prefix}index_digest"]
    assert load_checkpoint(model, state, strict=False).missing_keys == [prefix + left_out]
    state[prefix + kept] = state[prefix + kept].flip(0)
    refused(model, state, match=f"edges of '{prefix}'", strict=False)


def test_indices_are_compared_and_never_written():
    model, state = build(), build(1).state_dict()
    layer = model.layers[0].attention
    indices = layer.source_index, layer.target_index
    state["layers.0.attention.source_index"] = state["layers.0.attention.source_index"].to(torch.int16)
    load_checkpoint(model, state)
    model.load_state_dict(state, assign=True)
    assert (layer.source_index, layer.target_index) == indices
    assert layer.source_index is indices[0]


@pytest.mark.parametrize("key", [7, None, b"head.weight", ("head", "weight")])
def test_names_that_are_no_text_are_refused(key):
    refused(build(), {**build(1).state_dict(), key: torch.zeros(1)}, match="Names of entries must be text")
    refused(foreign(), {**foreign(1).state_dict(), key: torch.zeros(1)}, match="must be text")


def test_identities_that_differ_at_their_end_are_shown_whole():
    state = build(1).state_dict()
    state["layers.1.attention.identity"] = state["layers.1.attention.identity"][:-1]
    whole = GRAPH.fingerprint
    refused(
        build(), state, match=rf"'layers.1.attention.' has identity '{whole}', the checkpoint '{whole[:-1]}'"
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", [build, foreign])
def test_tensors_without_plain_numbers_are_named(make):
    for odd in (lambda e: e.to_sparse(), lambda e: e.to("meta"), lambda e: torch.nested.nested_tensor([e])):
        for name in ("layers.1.attention.q_proj.weight", "layers.1.attention.source_index"):
            state = dict(make(1).state_dict())
            name = name if make is build else f"0.{name}"
            state[name] = odd(state[name])
            refused(make(), state, match=f"{name}.* must be ")


class Words(nn.Module):
    """A foreign layer whose extra state is written into an object it keeps."""

    def __init__(self, *words):
        super().__init__()
        self.words = list(words)

    def get_extra_state(self):
        return list(self.words)

    def set_extra_state(self, state):
        self.words[:] = state


def test_extra_state_is_not_written_when_something_later_is_refused():
    model = nn.Sequential(Words("old"), nn.Linear(2, 2))
    state = dict(nn.Sequential(Words("new"), nn.Linear(2, 2)).state_dict())
    del state["1.bias"]
    with pytest.raises(PriorGraphError, match=r"1\.bias"):
        load_checkpoint(model, state)
    assert model[0].words == ["old"]
    check_checkpoint(model, state, strict=False)
    assert model[0].words == ["old"]
    load_checkpoint(model, state, strict=False)
    assert model[0].words == ["new"]


def test_a_model_partly_on_meta_takes_no_entry_without_numbers():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    state = dict(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict())
    state["0.weight"] = state["0.weight"].to("meta")
    with pytest.raises(PriorGraphError, match=r"0\.weight must be a dense tensor with data"):
        load_checkpoint(model, state)


def test_without_a_digest_another_head_split_is_the_callers_to_know():
    """Documented: the sizes of weights do not depend on the number of heads."""
    source, target = [0, 1, 2], [1, 2, 0]
    two, four = (PackedMultiheadAttention(source, target, 3, 3, 8, heads) for heads in (2, 4))
    state = dict(two.state_dict())
    refused(four, state, match="edges and sizes")
    del state["index_digest"]
    load_checkpoint(four, state)
