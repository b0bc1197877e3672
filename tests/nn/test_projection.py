"""Which projections are called as they are, and that the layers ask."""

from __future__ import annotations

import pytest
import torch
import torch_geometric
from torch import nn
from torch.nn.utils import parametrizations

from pyg_kpnn.nn import PackedMultiheadAttention, PriorAttentionConv
from pyg_kpnn.nn.projection import LayerNorm, is_plain, project

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def hooked(kind):
    layer = nn.Linear(3, 2)
    getattr(layer, f"register_{kind}")(lambda *_: None)
    return layer


def with_its_own_forward():
    layer = nn.Linear(3, 2)
    layer.forward = lambda x: torch.ones(*x.shape[:-1], 2)
    return layer


def test_ordinary_ones_are_plain():
    assert is_plain(nn.Linear(3, 2))
    assert is_plain(nn.Linear(3, 2, bias=False))
    assert is_plain(torch_geometric.nn.Linear(3, 2))


@pytest.mark.parametrize(
    "module",
    [
        Doubled(3, 2),
        nn.Sequential(nn.Linear(3, 2)),
        parametrizations.weight_norm(nn.Linear(3, 2)),
        parametrizations.spectral_norm(nn.Linear(3, 2)),
        torch_geometric.nn.Linear(-1, 2),
        hooked("forward_hook"),
        hooked("forward_pre_hook"),
        hooked("full_backward_hook"),
        hooked("full_backward_pre_hook"),
        with_its_own_forward(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_others_are_called_as_they_are(module):
    assert not is_plain(module)
    module.eval()  # spectral_norm changes with every call in training
    x = torch.randn(5, 3)
    torch.testing.assert_close(project(module, x), module(x))


def test_hooks_of_all_modules_see_the_projections():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        x = torch.randn(3, 4)
        PackedMultiheadAttention(EDGES[0], EDGES[1], 3, 3, 4, 2)(x, x, x)
        assert seen.count(nn.Linear) == 4
        seen.clear()
        PriorAttentionConv(4, 2)(x, EDGES)
        assert seen.count(torch_geometric.nn.Linear) == 4
    finally:
        handle.remove()


def test_layer_norm_is_torchs_by_name_state_and_value():
    ours, theirs = LayerNorm(5), nn.LayerNorm(5)
    assert repr(ours) == repr(theirs)
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(ours(x), theirs(x))
