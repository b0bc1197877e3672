"""JetSpace: order of multi-indices, sizes, tables, checks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.jets import JetSpace, indices, product
from pyg_kpnn.jets.indices import product_rows, second_order_rows

CPU = torch.device("cpu")


def test_order_by_hand():
    assert JetSpace(3, 1).indices == ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    assert JetSpace(2, 3).indices == (
        (0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (0, 3), (1, 2), (2, 1), (3, 0),
    )  # fmt: skip
    assert JetSpace(1, 3).indices == ((0,), (1,), (2,), (3,))
    assert JetSpace(4, 0).indices == ((0, 0, 0, 0),)


@pytest.mark.parametrize(("n_vars", "order"), [(1, 5), (2, 4), (3, 3), (5, 2)])
def test_all_multi_indices_sorted(n_vars, order):
    space = JetSpace(n_vars, order)
    every = [a for a in itertools.product(range(order + 1), repeat=n_vars) if sum(a) <= order]
    assert list(space.indices) == sorted(every, key=lambda alpha: (sum(alpha), alpha))
    assert space.size == len(every)
    assert [space.position(alpha) for alpha in space.indices] == list(range(space.size))
    assert space.grade_sizes == [sum(sum(a) == k for a in every) for k in range(order + 1)]
    found = space.factorials(torch.zeros(1, dtype=torch.float64)).tolist()
    assert found == [math.prod(math.factorial(a) for a in alpha) for alpha in space.indices]


def test_high_orders_have_factorials():
    assert JetSpace(1, 25).factorials(torch.zeros(1, dtype=torch.float64))[-1] == float(math.factorial(25))


def test_product_rows_add_multi_indices():
    space = JetSpace(3, 5)
    parts = [[a for a in space.indices if sum(a) == k] for k in range(6)]
    rows = product_rows(3, 2, 3, CPU).view(len(parts[2]), len(parts[3]))
    for (i, a), (j, b) in itertools.product(enumerate(parts[2]), enumerate(parts[3])):
        assert parts[5][rows[i, j]] == tuple(np.add(a, b))


def test_second_order_rows():
    # (0,0,2) (0,1,1) (0,2,0) (1,0,1) (1,1,0) (2,0,0) in a 3 x 3 matrix
    assert second_order_rows(3, CPU).tolist() == [8, 5, 4, 2, 1, 0]


def test_tables_are_made_once():
    assert product_rows(3, 1, 1, CPU) is product_rows(3, 1, 1, CPU)


def test_tables_made_in_inference_mode_serve_autograd(monkeypatch):
    monkeypatch.setattr(indices, "_TABLES", {})
    space = JetSpace(2, 3)
    with torch.inference_mode():
        product(torch.ones(space.size), torch.ones(space.size), space)
    jet = torch.ones(space.size, requires_grad=True)
    product(jet, jet, space).sum().backward()
    assert jet.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("n_vars", "order"), [(0, 1), (-1, 1), (1, -1), (1.0, 1), (True, 1), (1, None), (1, "2")]
)
def test_refuses_sizes(n_vars, order):
    with pytest.raises(PriorGraphError, match=r"^(n_vars|order) must be an integer >= [01], got"):
        JetSpace(n_vars, order)


def test_messages_print_no_tensor():
    with pytest.raises(PriorGraphError, match=r"order must be an integer >= 0, got a Tensor"):
        JetSpace(2, torch.tensor(271828))


def test_refuses_an_index_that_is_not_there():
    for alpha in ((0, 3), (1,), (-1, 1), (0, 0, 0)):
        with pytest.raises(PriorGraphError, match="alpha must be 2 integers >= 0 with a sum <= 2, got"):
            JetSpace(2, 2).position(alpha)


@pytest.mark.parametrize("jet", [torch.zeros(5), torch.zeros(7, 6), torch.tensor(1.0), [0.0] * 6, None])
def test_refuses_what_is_no_jet(jet):
    with pytest.raises(PriorGraphError, match="A jet in 2 variables to order 2 must be a tensor with 6 rows"):
        JetSpace(2, 2).grades(jet)
