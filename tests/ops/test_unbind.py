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


@pytest.mark.parametrize("shape", [(5, 3, 2, 4), (2, 5, 3, 2, 4), (2, 7, 5, 3, 2, 4)], ids=str)
def test_any_number_of_leading_axes(shape):
    packed = draw(*shape).requires_grad_()

    def gradient_of(unbind):
        query, key, value = unbind(packed)
        return torch.autograd.grad((query * key.sin() * value.exp()).sum(), packed)[0]

    torch.testing.assert_close(gradient_of(unbind_three), gradient_of(lambda x: x.unbind(-3)))


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


@pytest.mark.skipif(native_missing() is not None, reason="the native library is not built")
@pytest.mark.parametrize("fixed", [(0,), (1,), (2,), (0, 1), (1, 2)], ids=str)
def test_a_part_that_is_held_fixed_gets_no_gradient(fixed):
    # the kernel's gradients of all three lie side by side, also of those that nobody asked for
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3, 3)
    packed = draw(2, 3, 3, 2, 4).requires_grad_()

    def gradient_of(unbind):
        parts = [part.detach() if i in fixed else part for i, part in enumerate(unbind(packed))]
        mixed = edge_attention(*parts, layout, backend="native")[0]
        return torch.autograd.grad(mixed.sin().sum(), packed)[0]

    found = gradient_of(unbind_three)
    assert not found[:, :, list(fixed)].any()
    torch.testing.assert_close(found, gradient_of(lambda x: x.unbind(-3)))


def test_gradients_side_by_side_are_differentiated_again():
    packed, factors, direction = (draw(2, 5, 3, 2, 4).requires_grad_() for _ in range(3))
    (grad,) = torch.autograd.grad(unbind_three(packed), packed, factors.unbind(-3), create_graph=True)
    torch.testing.assert_close(grad, factors)  # made of three slices of one tensor
    (again,) = torch.autograd.grad((grad * direction).sum(), factors)
    torch.testing.assert_close(again, direction)


def test_meta_tensors_are_taken_apart_too():
    parts = unbind_three(torch.empty(2, 5, 3, 7, 11, device="meta"))
    assert [tuple(part.shape) for part in parts] == [(2, 5, 7, 11)] * 3
