"""Taking a joint projection apart: derivatives of every kind, and gradients that are not copied."""

from __future__ import annotations

import pytest
import torch

from pyg_kpnn.ops import EdgeLayout, edge_attention
from pyg_kpnn.ops.native_library import native_missing
from pyg_kpnn.ops.unbind import unbind_three


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_derivatives_are_those_of_unbind():
    packed = draw(2, 5, 3, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(unbind_three, packed, check_forward_ad=True, check_batched_grad=False)

    def curved(x):
        return sum((i + 1) * part.pow(3) for i, part in enumerate(unbind_three(x)))

    assert torch.autograd.gradgradcheck(curved, packed)


def test_parts_that_are_not_used_have_no_gradient():
    packed = draw(2, 5, 3, 2, 2).requires_grad_()
    (grad,) = torch.autograd.grad(unbind_three(packed)[1].sum(), packed)
    assert grad.sum(dim=(0, 1, 3, 4)).tolist() == [0.0, 40.0, 0.0]


def test_composes_with_torch_func():
    packed = draw(4, 5, 3, 2, 2)

    def total(x):
        query, key, value = unbind_three(x)
        return (query * key.sin() * value.exp()).sum()

    expected = torch.stack([torch.func.grad(total)(x) for x in packed])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(packed), expected)
    reverse, forward = (f(total)(packed[0]) for f in (torch.func.jacrev, torch.func.jacfwd))
    torch.testing.assert_close(reverse, forward)


@pytest.mark.skipif(native_missing() is not None, reason="the native library is not built")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["in_order", "swapped"])
def test_gradients_side_by_side_are_taken_over_as_they_lie(order):
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3, 3)
    packed = draw(2, 3, 3, 2, 4).requires_grad_()
    addresses = []

    def gradient_of(unbind):
        parts = unbind(packed)
        parts[0].register_hook(lambda grad: addresses.append(grad.data_ptr()))
        mixed = edge_attention(*(parts[i] for i in order), layout, backend="native")[0]
        return torch.autograd.grad(mixed.sin().sum(), packed)[0]

    found = gradient_of(unbind_three)
    taken_over = found.data_ptr() == addresses[0]
    assert taken_over == (order == (0, 1, 2))
    torch.testing.assert_close(found, gradient_of(lambda x: x.unbind(-3)))
