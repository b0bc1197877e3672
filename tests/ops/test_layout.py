"""EdgeLayout: sorted order, pointers, permutations back, checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.ops import EdgeLayout
from pyg_kpnn.ops.layout import _size

# 3 sources, 4 targets; target 2 has no edge, source 1 none, and edge 0 comes twice.
BY_HAND = torch.tensor([[2, 0, 0, 2, 2], [3, 3, 0, 1, 3]])


@pytest.fixture
def by_hand() -> EdgeLayout:
    return EdgeLayout(BY_HAND, 3, 4)


@pytest.fixture
def random_edges() -> torch.Tensor:
    gen = torch.Generator().manual_seed(0)
    return torch.stack([torch.randint(0, 7, (31,), generator=gen), torch.randint(0, 5, (31,), generator=gen)])


def test_by_hand(by_hand):
    assert by_hand.source.tolist() == [0, 2, 0, 2, 2]
    assert by_hand.target.tolist() == [0, 1, 3, 3, 3]
    assert by_hand.by_target.tolist() == [2, 3, 1, 0, 4]
    assert by_hand.rank.tolist() == [3, 2, 0, 1, 4]
    assert by_hand.target_ptr.tolist() == [0, 1, 2, 2, 5]
    assert by_hand.by_source.tolist() == [0, 2, 1, 3, 4]
    assert by_hand.source_ptr.tolist() == [0, 2, 2, 5]
    assert by_hand.target_by_source.tolist() == [0, 3, 1, 3, 3]
    assert (by_hand.num_edges, by_hand.num_sources, by_hand.num_targets) == (5, 3, 4)
    assert repr(by_hand) == "EdgeLayout(num_sources=3, num_targets=4, num_edges=5)"


def test_every_tensor_is_an_integer_and_listed(by_hand):
    tensors = by_hand.tensors()
    assert tuple(tensors) == EdgeLayout.TENSORS
    assert {name for name, t in tensors.items() if t.dtype != torch.int64} == {"source_int32"}
    assert tensors["source_int32"].dtype == torch.int32
    assert tensors["source_int32"].tolist() == tensors["source"].tolist()
    held = {name for name, value in vars(by_hand).items() if isinstance(value, torch.Tensor)}
    assert held == set(EdgeLayout.TENSORS)


def test_permutations_are_inverse_and_pointers_slice(random_edges):
    layout = EdgeLayout(random_edges, 7, 5)
    every = torch.arange(31)
    assert torch.equal(layout.rank[layout.by_target], every)
    assert torch.equal(layout.by_target[layout.rank], every)
    assert torch.equal(layout.edge_index, random_edges)
    assert torch.equal(random_edges[:, layout.by_target], torch.stack([layout.source, layout.target]))
    for t in range(5):
        into = layout.by_target[layout.target_ptr[t] : layout.target_ptr[t + 1]]
        assert sorted(into.tolist()) == (random_edges[1] == t).nonzero().flatten().tolist()
    for s in range(7):
        out = layout.by_source[layout.source_ptr[s] : layout.source_ptr[s + 1]]
        assert sorted(layout.by_target[out].tolist()) == (random_edges[0] == s).nonzero().flatten().tolist()


def test_sorted_order_does_not_depend_on_the_order_given(random_edges):
    layout = EdgeLayout(random_edges, 7, 5)
    other = EdgeLayout(random_edges[:, torch.randperm(31)], 7, 5)
    for name in set(EdgeLayout.TENSORS) - {"by_target", "rank"}:
        assert torch.equal(getattr(layout, name), getattr(other, name)), name


def test_parallel_edges_keep_the_order_given():
    layout = EdgeLayout(torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]), 2, 1)
    assert layout.by_target.tolist() == [1, 0, 2, 3]


def test_edges_as_sources(random_edges):
    layout = EdgeLayout(random_edges, 7, 5)
    own = layout.with_edges_as_sources()
    every = torch.arange(31)
    plain = EdgeLayout(torch.stack([every, random_edges[1]]), 31, 5)
    assert (own.num_sources, own.num_targets, own.num_edges) == (31, 5, 31)
    # The same order of edges as the layout's own, so that weights serve both.
    assert torch.equal(own.by_target, layout.by_target)
    assert torch.equal(own.source, layout.by_target)
    assert torch.equal(own.edge_index, plain.edge_index)
    assert torch.equal(own.source_ptr, plain.source_ptr)
    for s in range(31):
        (sorted_edge,) = own.by_source[own.source_ptr[s] : own.source_ptr[s + 1]].tolist()
        assert own.source[sorted_edge] == s
        assert own.target_by_source[s] == random_edges[1, s]


def test_from_tensors_and_to(by_hand):
    for other in (
        EdgeLayout.from_tensors(by_hand.tensors(), 3, 4),
        by_hand.to("cpu"),
        by_hand.to(torch.device("cpu")),
    ):
        assert repr(other) == repr(by_hand)
        assert all(torch.equal(a, other.tensors()[name]) for name, a in by_hand.tensors().items())
    assert by_hand.to("meta").device.type == "meta"
    assert by_hand.device.type == "cpu"


def test_without_edges():
    layout = EdgeLayout(torch.empty(2, 0, dtype=torch.int64), 3, 2)
    assert layout.num_edges == 0
    assert layout.target_ptr.tolist() == [0, 0, 0]
    assert layout.source_ptr.tolist() == [0, 0, 0, 0]
    assert layout.edge_index.shape == (2, 0)
    assert layout.with_edges_as_sources().num_sources == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integer_dtypes(dtype, by_hand):
    layout = EdgeLayout(BY_HAND.to(dtype), 3, 4)
    assert all(torch.equal(a, layout.tensors()[name]) for name, a in by_hand.tensors().items())


def test_small_dtype_does_not_overflow():
    layout = EdgeLayout(torch.tensor([[199, 3], [199, 1]], dtype=torch.uint8), 200, 200)
    assert layout.by_target.tolist() == [1, 0]


def test_later_writes_do_not_reach_the_layout():
    edges = BY_HAND.clone()
    layout = EdgeLayout(edges, 3, 4)
    edges.zero_()
    assert torch.equal(layout.edge_index, BY_HAND)


@pytest.mark.parametrize(
    ("edge_index", "fragment"),
    [
        ([[0], [0]], "got list"),
        (None, "got NoneType"),
        (BY_HAND.numpy(), "got ndarray"),
        (BY_HAND.float(), "dtype torch.float32"),
        (BY_HAND.bool(), "dtype torch.bool"),
        (BY_HAND.to(torch.complex64), "dtype torch.complex64"),
        (BY_HAND[0], r"shape \(2, E\).*\(5,\)"),
        (BY_HAND[:, 0], r"shape \(2, E\).*\(2,\)"),
        (BY_HAND[0, 0], r"shape \(2, E\).*\(\)"),
        (BY_HAND.T, r"shape \(2, E\).*\(5, 2\)"),
        (BY_HAND.unsqueeze(0), r"shape \(2, E\).*\(1, 2, 5\)"),
        (torch.tensor([[0, 3], [0, 0]]), r"source index must be in \[0, 3\), got 3 at edge 1"),
        (torch.tensor([[0, 0], [0, 4]]), r"target index must be in \[0, 4\), got 4 at edge 1"),
        (torch.tensor([[-1, 0], [0, 0]]), r"source index must be in \[0, 3\), got -1 at edge 0"),
        (torch.tensor([[0, 0, 0], [0, 1, -7]]), r"target index must be in \[0, 4\), got -7 at edge 2"),
    ],
)
def test_refused(edge_index, fragment):
    with pytest.raises(PriorGraphError, match=fragment):
        EdgeLayout(edge_index, 3, 4)


@pytest.mark.parametrize("size", [0, 1, 2**30, 2**31 - 1, np.uint8(255)])
def test_sizes_that_fit_32_bits(size):
    assert _size("num_sources", size) == int(size)
    assert type(_size("num_sources", size)) is int


@pytest.mark.parametrize("size", [-1, 2**31, 2**63, 1.0, True, None, "3"])
@pytest.mark.parametrize("name", ["num_sources", "num_targets"])
def test_sizes_that_are_refused(name, size):
    sizes = {"num_sources": 3, "num_targets": 4, name: size}
    with pytest.raises(PriorGraphError, match=rf"{name} must be (an integer >= 0|below 2\*\*31), got"):
        EdgeLayout(BY_HAND, **sizes)
